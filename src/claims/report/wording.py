"""The words of verdicts: a judgement's label, its note and its forecast.

What bars or limits a contrast says so itself (analysis/); here is what a whole verdict says.
Nothing decides on these words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from claims.analysis.contrasts import Contrast
from claims.analysis.crossover import Crossover
from claims.analysis.examples import mcnemar, multi_bootstrap, paired_differences
from claims.analysis.history import Breach, BreachKind
from claims.analysis.hypotheses import NOTHING, ResolvedClaim
from claims.analysis.schema import ALL_COLUMNS, PERCENT, PRETRAINING_SEED
from claims.analysis.scores import ScoreTable
from claims.analysis.statistics import SIGNIFICANCE
from claims.analysis.verdict_codes import Verdict, read_verdict
from claims.analysis.verdicts import DetectableDifference, Judgement
from claims.report.estimates import interval, probability
from claims.report.verdict_styles import EXPLORATORY, label_of
from claims.text.phrases import count_noun, duration, format_count, join_list, signed


def seed_words(text: str, table: ScoreTable) -> str:
    """A text in which seeds are called seeds where nobody knows what was trained with them."""
    if not table.has_plain_seeds:
        return text
    return text.replace("pre-training seed", "seed")


def verdict_label(judgement: Judgement) -> str:
    """The verdict, and whether it is exploratory."""
    return label_of(judgement.verdict, is_exploratory=judgement.is_exploratory)


def summarise(judgements: Sequence[Judgement]) -> str:
    """The verdicts counted: "2 hold, 1 contradicted, 3 inconclusive"."""
    verdicts = [(one.verdict, one.is_exploratory) for one in judgements]
    return _count_verdicts(verdicts, list(product(Verdict, (False, True)))) or "no claims"


ANSWERS = {Verdict.HOLDS: "yes", Verdict.CONTRADICTED: "no"}


def answer(judgements: Sequence[Judgement]) -> str:
    """What the primary claims say to the experiment's question, and what it costs.

    "yes on MRPC (+2.3); not decided on CoLA (+0.4). But contradicted: it costs general text less
    than 0.05 bits a character". An exploratory verdict is called so.
    """
    by_answer: dict[str, list[str]] = {"yes": [], "no": [], "not decided": []}
    lost = []
    for judgement in judgements:
        if judgement.claim.primary:
            size = f" ({signed(judgement.difference.mean, 2)})" if judgement.difference else ""
            answered = ANSWERS.get(judgement.verdict, "not decided")
            dataset = judgement.judged_on
            # Nothing is scored for it yet.
            if dataset == NOTHING:
                dataset = f"{judgement.claim.text!r}"
            by_answer[answered].append(f"{dataset}{size}{_exploratory(judgement)}")
        elif judgement.claim.limits_a_loss and judgement.verdict is Verdict.CONTRADICTED:
            lost.append(f"{judgement.claim.text}{_exploratory(judgement)}")
    parts = [f"{word} on {join_list(names)}" for word, names in by_answer.items() if names]
    text = "; ".join(parts)
    if lost:
        text += f". But {label_of(Verdict.CONTRADICTED)}: {'; '.join(lost)}"
    return text[:1].upper() + text[1:]


def _exploratory(judgement: Judgement) -> str:
    return EXPLORATORY if judgement.is_exploratory else ""


def _count_verdicts(
    verdicts: Sequence[tuple[Verdict, bool]], order: Iterable[tuple[Verdict, bool]]
) -> str:
    """`2 hold, 1 inconclusive`, of pairs of a verdict and whether it is exploratory."""
    texts = []
    for verdict, is_exploratory in order:
        count = verdicts.count((verdict, is_exploratory))
        if count:
            label = label_of(verdict, is_exploratory=is_exploratory, count=count)
            texts.append(f"{count} {label}")
    return ", ".join(texts)


def forecast(judgement: Judgement, seconds_a_seed: float | None) -> str:
    """How many pre-training seeds would decide it; empty where seeds are not what is lacking."""
    if judgement.forecast is None:
        return ""
    text = judgement.forecast.text
    additional = judgement.forecast.additional_seeds
    if additional and seconds_a_seed:
        verb = "takes" if additional == 1 else "take"
        time = duration(additional * seconds_a_seed)
        text += f"; {additional} more {verb} about {time}, as these runs took"
    return text


def judgement_note(judgement: Judgement) -> str:
    """The reason of a verdict, or what to keep in mind beside it."""
    notes = [breach_text(breach) for breach in judgement.breaches]
    if judgement.crossover:
        holds = judgement.verdict is Verdict.HOLDS
        notes.append(crossover_sentence(judgement.crossover, holds=holds))
    if judgement.claim.column == ALL_COLUMNS:
        notes += _notes_on_all_columns(judgement)
    else:
        notes += _notes_on_dataset(judgement)
    return "; ".join(dict.fromkeys(filter(None, notes)))


CHANGES = {
    BreachKind.SEEDS_ADDED: "seeds were added",
    BreachKind.SEEDS_LEFT_OUT: "seeds were left out",
    BreachKind.RULE_CHANGED: "the stopping rule was changed",
}


def breach_text(breach: Breach) -> str:
    """What makes a verdict exploratory."""
    if breach.kind is BreachKind.CLAIMED_LATE:
        return f"claimed after an interim analysis of it ({breach.day})"
    if breach.kind is BreachKind.CLAIM_DROPPED:
        dropped = "a claim that its test allowed for was dropped or moved"
        return f"{dropped} after an interim analysis ({breach.day})"
    change = CHANGES[breach.kind]
    verdict = "another claim"
    if breach.verdict:
        verdict = _stored_label(breach.verdict)
    return f"{change} after an interim analysis of {breach.seeds} ({breach.day}: {verdict})"


def _stored_label(text: str) -> str:
    """The label of a verdict as the log has it; the text itself where it is no verdict."""
    try:
        return label_of(read_verdict(text).code)
    except ValueError:
        return text


def _notes_on_all_columns(judgement: Judgement) -> list[str]:
    """Of a claim about all columns: the verdict on each."""
    resolved = judgement.resolved
    if resolved.missing:
        return [resolved.missing.text]
    notes = []
    columns = []
    for contrast, verdict in zip(resolved.contrasts, judgement.verdicts, strict=True):
        if verdict is not Verdict.NOT_COMPARABLE:
            notes.append(f"{contrast.label}: {label_of(verdict)}")
            columns += [term.column for term in contrast.terms]
    notes += [f"{column.role}: direction only" for column in columns if column.is_other_split]

    absent = []
    incomparable = []
    provenances = []
    for contrast in resolved.contrasts:
        exclusions = contrast.exclusions
        if exclusions.incomparability:
            reason = exclusions.incomparability.text
            label = label_of(Verdict.NOT_COMPARABLE)
            incomparable.append(f"{label} on {contrast.label} ({reason})")
            continue
        provenances.append(contrast.context.provenance)
        if exclusions.missing:
            absent.append(contrast.label)
    absent += resolved.columns_without_data
    if absent:
        notes.append(f"no runs for {', '.join(dict.fromkeys(absent))}")
    return notes + incomparable + provenances


def _notes_on_dataset(judgement: Judgement) -> list[str]:
    """Why it is not comparable; else what a reader must know beside the verdict."""
    contrasts = judgement.resolved.contrasts
    notes = []
    if contrasts and not contrasts[0].exclusions.incomparability:
        notes.append(judgement.size_obstacle)
    if judgement.verdict is Verdict.NOT_COMPARABLE:
        return notes + _why_not_comparable(judgement.resolved)

    if len(contrasts) > 1:
        verdicts = [(verdict, False) for verdict in judgement.verdicts]
        counts = _count_verdicts(verdicts, dict.fromkeys(verdicts))
        notes.append(f"of {len(verdicts)} differences {counts}")
        for contrast in contrasts:
            if contrast.exclusions.missing:
                notes.append(f"{contrast.label}: {contrast.exclusions.missing.text}")
    notes.append(_plain_interval_excludes(judgement))
    for contrast in contrasts:
        notes += _cautions(contrast)
    if judgement.weakest:
        notes.append(_of_collapsed_runs(judgement.weakest))
    return notes


def _why_not_comparable(resolved: ResolvedClaim) -> list[str]:
    incomparabilities = [contrast.exclusions.incomparability for contrast in resolved.contrasts]
    absent = [contrast.exclusions.missing for contrast in resolved.contrasts]
    # What forbids a comparison goes before what is merely missing.
    reasons = incomparabilities if any(incomparabilities) else [resolved.missing, *absent]
    return [reason.text for reason in reasons if reason]


def _plain_interval_excludes(judgement: Judgement) -> str:
    """Where the plain interval and the verdict would seem to contradict each other."""
    weakest = judgement.weakest
    if weakest is None or weakest.p_value is None or judgement.resolved.curves:
        return ""
    corrected = judgement.corrected_p or 0.0
    # Only where the plain test finds something and the corrected one does not.
    if not weakest.p_value < SIGNIFICANCE <= corrected:
        return ""
    excluded = "the margin" if judgement.claim.has_margin else "zero"
    is_primary = judgement.claim.primary
    sequential_p = weakest.sequentially_adjusted_p
    test = f"the test corrected for {judgement.num_tests} differences does not"
    if weakest.design and sequential_p is not None and sequential_p >= SIGNIFICANCE:
        test = "the test corrected for all planned analyses does not"
    elif is_primary:
        test = "the test as a primary one does not"
    if judgement.gated_by and is_primary:
        test = f"the test waits for {judgement.gated_by}"
    elif judgement.gated_by:
        test = f"the test at 1 % does not: it has 5 % once {judgement.gated_by} is decided"
    return f"the plain interval excludes {excluded}, {test}"


def _cautions(contrast: Contrast) -> list[str]:
    notes = [*contrast.context.encoders, *contrast.context.cells]
    difference = contrast.difference
    design = contrast.design
    exclusions = contrast.exclusions
    if design and difference and difference.count > design.most:
        notes.append(f"seeds after the last interim analysis ({design.most}) decide nothing")
    if exclusions.duplicates:
        notes.append(f"{exclusions.duplicates}: copies decide nothing")
    elif difference and difference.has_no_spread and not exclusions.every_run_collapsed:
        notes.append(
            "the same difference for every seed: no spread to judge it by, as may happen on few"
            " examples"
        )
    if difference and difference.is_at_ceiling:
        notes.append(
            "every run answers every example: tested as if each score might be one example lower"
        )
    if difference and not difference.is_balanced:
        notes.append("pre-training seeds have unequally many runs and weigh the same")
    notes += [contrast.context.text_lengths, contrast.context.provenance]
    below = contrast.context.below_baseline
    if below:
        notes.append(
            f"below its baseline: {below}; such a row decides nothing about what pre-training gives"
        )
    return notes


def _of_collapsed_runs(contrast: Contrast) -> str:
    """The difference over the runs that did not collapse; empty where none or all did."""
    if contrast.exclusions.every_run_collapsed or not contrast.has_collapsed:
        return ""
    without_collapsed = contrast.without_collapsed
    if without_collapsed is None:
        text = "without collapsed runs no pair of seeds is left"
    else:
        mean = signed(without_collapsed.mean)
        ends = interval(without_collapsed, boundaries=contrast.boundaries)
        text = f"without collapsed runs {mean} {ends}".rstrip()
    if not contrast.is_tested:
        return text
    if contrast.depends_on_collapsed_runs:
        return f"{text}: the difference rests on them and decides nothing"
    if without_collapsed:
        return f"{text}; p is the larger one, with or without"
    return text


def contrast_notes(contrast: Contrast) -> list[str]:
    """What a reader must know of a contrast that no claim is about; empty texts for nothing."""
    reason = contrast.exclusions.incomparability
    notes = [reason.text] if reason else []
    return [*notes, *_cautions(contrast), _of_collapsed_runs(contrast)]


def untested(contrast: Contrast) -> str:
    """Why a difference has an interval and no p-value; empty where another note says it."""
    difference = contrast.difference
    if contrast.exclusions.every_run_collapsed:
        return "no p: every run of a row collapsed"
    if difference is None or contrast.has_replications(difference):
        return ""
    kind = "fine-tuning" if contrast.has_fixed_encoders else "pre-training"
    return f"no p: a test takes two {kind} seeds that both rows have"


def resampled(contrast: Contrast | None, table: ScoreTable) -> str:
    """What resampling or McNemar's test says of a difference.

    It is empty where single examples are unknown and no seed has several fine-tunings, and for a
    table of run folders (docs/decisions/0006: its intervals are Student's alone).
    """
    if contrast is None or contrast.difference is None or table.has_evidence:
        return ""
    differences = paired_differences(contrast, table)
    num_runs = sum(map(len, differences))
    num_examples = differences[0].shape[1] if differences else 1
    is_nested = num_runs > len(differences) > 1
    if num_examples == 1 and not is_nested:
        return ""
    over = [f"{len(differences)} seeds"]
    if num_runs > len(differences):
        over = [count_noun(len(differences), "pre-training seed"), f"{num_runs} fine-tunings"]
    if num_examples > 1:
        over.append(f"{num_examples:,} examples")
    name = "multi-bootstrap"
    if num_runs == 1:
        name = "these two runs alone: paired bootstrap"
        over = over[1:]
        # The two are right or wrong on each example, and nothing between.
        right = 100.0 if contrast.terms[0].column.unit == PERCENT else 1.0
        if len(contrast.terms) == 2 and np.isin(differences[0], (-right, 0.0, right)).all():
            return _mcnemar(contrast, differences[0], table)
    found = multi_bootstrap(differences)
    decimals = contrast.terms[0].column.decimals
    ends = f"[{signed(found.low, decimals)}, {signed(found.high, decimals)}]"
    return f"{name} over {join_list(over)}: {ends}"


def _mcnemar(contrast: Contrast, differences: NDArray[np.float64], table: ScoreTable) -> str:
    test = mcnemar(differences > 0.0, differences < 0.0)
    first, second = (table.label(term.row) for term in contrast.terms)
    counted = "right" if contrast.terms[0].column.scale.higher_is_better else "wrong"
    return (
        f"these two runs alone: of {differences.size:,} examples only {first} has"
        f" {test.only_first} {counted}, only {second} {test.only_second}; exact McNemar"
        f" {probability(test.p_value)}"
    )


# -- crossing lines --------------------------------------------------------------------------------


def crossover_place(crossover: Crossover) -> str:
    if crossover.point is None:
        return "none seen"
    return f"at {_amount_in(crossover.unit)(crossover.point)}"


def crossover_interval(crossover: Crossover) -> str:
    """Where the lines may be level; empty where no crossing was seen."""
    return "" if crossover.point is None else _stretches(crossover)


def crossover_sentence(crossover: Crossover, *, holds: bool) -> str:
    say = _amount_in(crossover.unit)
    stretches = _stretches(crossover)
    start = say(crossover.start)
    end = say(crossover.end)
    if crossover.point is not None:
        verb = "overtakes" if holds else "goes past, in the mean,"
        text = f"{crossover.first} {verb} {crossover.second} at {say(crossover.point)}"
        return f"{text}; 95 % interval: {stretches}" if stretches else text
    if crossover.leader is None:
        return f"no crossing in the claimed direction between {start} and {end}"
    text = f"no crossing: {crossover.leader} leads at every point from {start} to {end}"
    if stretches:
        text += f"; that both are level is not excluded {stretches}"
    return text


def _stretches(crossover: Crossover) -> str:
    say = _amount_in(crossover.unit)
    texts = []
    for low, high in crossover.level_stretches:
        # One that reaches an end of the lines may go on beyond.
        is_from_start = low == crossover.start
        is_to_end = high == crossover.end
        if is_from_start and is_to_end:
            texts.append("anywhere")
        elif is_from_start:
            texts.append(f"up to {say(high)}")
        elif is_to_end:
            texts.append(f"from {say(low)} on")
        else:
            texts.append(f"[{say(low)}, {say(high)}]")
    return " or ".join(texts)


def _amount_in(unit: str) -> Callable[[float], str]:
    if unit == "seconds":
        return duration
    if unit == "flops":
        return "{:.3g} FLOPs".format
    if unit:
        return lambda amount: f"{format_count(amount)} tokens"
    return lambda share: f"{100 * share:.3g} % of the steps"


# -- plans -----------------------------------------------------------------------------------------


def detectable_difference(detectable: DetectableDifference | None, replication: str) -> str:
    if detectable is None:
        return (
            f"smallest detectable difference: none; one {replication} cannot tell a row from its"
            " luck"
        )
    advice = ""
    if replication == PRETRAINING_SEED:
        advice = "; budget=TIME shows all claims together"
    basis = "assumed: no comparison of two seeds so far"
    if detectable.num_contrasts:
        basis = f"median of {detectable.num_contrasts} comparisons so far"
    return (
        f"smallest detectable difference: {detectable.difference:.1f} points between two rows. With"
        f" {detectable.seeds} {replication}s 4 of 5 experiments find it, if it varies by"
        f" {detectable.sd:.1f} points from seed to seed ({basis}). This is for one difference"
        f" alone{advice}"
    )
