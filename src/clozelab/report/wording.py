"""The words of verdicts: every sentence that stands for a typed reason, in one place.

analysis/ and results/ decide on types; nothing decides on what is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING

from clozelab.analysis import history, reasons, verdicts
from clozelab.analysis.claims import ALL_COLUMNS
from clozelab.analysis.contrasts import Contrast
from clozelab.analysis.crossover import Crossover
from clozelab.analysis.reasons import (
    CellCaution,
    CellNote,
    Incomparability,
    Missing,
    Outdated,
    ProvenanceDifference,
    SettingDifference,
)
from clozelab.analysis.schema import OUR_SPLIT
from clozelab.analysis.scores import Cell, DataColumn, Origin
from clozelab.analysis.statistics import SIGNIFICANCE
from clozelab.analysis.verdicts import Forecast, Judgement, Verdict
from clozelab.results.experiment import Experiment
from clozelab.results.table import ExcludedRuns
from clozelab.results.versions import OutdatedFolders
from clozelab.text.formatting import duration, interval, listed, rough, signed

if TYPE_CHECKING:
    from clozelab.runs.record import Record

EXPLORATORY = " (exploratory)"
# of the paper's cells; ours are means
AVERAGES = {"mean": "means", "median": "medians", "best": "the best"}
# of several names or differences
SHOWN = 3
# reasons without parameters
PLAIN_SENTENCES: dict[type, str] = {
    reasons.DifferentTargets: (
        "their objectives predict other tokens, so losses do not compare: measure=held_out_text"
        " asks alike"
    ),
    reasons.DifferentContext: "one is asked from the left, one from both sides",
    reasons.NoCommonSeed: "the rows have no seed in common",
    reasons.NoCheckpoints: "no runs at two or more fractions of both arms' steps",
    verdicts.NeedsTwoSeeds: "needs 2 or more pre-training seeds",
}


# -- data sets and cells ---------------------------------------------------------------------------


def role_of(column: DataColumn) -> str:
    """What a data set is to the paper's column; empty for the paper's own."""
    name = column.column.name if column.column else ""
    if column.origin is Origin.SYNTHETIC:
        return f"synthetic, for {name}" if name else "synthetic"
    if column.origin is Origin.STAND_IN:
        stand_ins = f": {', '.join(column.stand_in_parts)}" if column.stand_in_parts else ""
        return f"stand-in for {name}{stand_ins}"
    if column.origin is Origin.OTHER_SPLIT and column.column:
        return f"{OUR_SPLIT}; the paper's numbers are on {column.column.split}"
    if column.origin is Origin.HELD_OUT_TEXT:
        return "our held-out text"
    if column.origin is Origin.OWN_MEASURE:
        return "ours, not in the paper"
    return ""


def cell_note(cell: Cell) -> str:
    """What sets a cell apart from other cells; empty for nothing."""
    return "; ".join(_note(note) for note in cell.notes)


@singledispatch
def _note(note: CellNote) -> str:
    raise TypeError(type(note))


@_note.register
def _(note: reasons.RunsLackMetric) -> str:
    text = f"{note.count} run(s) lack {note.metric}"
    if note.suggestion:
        text += f" (did you mean {note.suggestion!r}?)"
    return text


@_note.register
def _(note: reasons.LearningRateChosen) -> str:
    text = f"learning rate {note.learning_rate}, best of {note.num_rates} on {OUR_SPLIT}"
    if note.num_common < note.num_seeds:
        text += f" over {note.num_common} of {note.num_seeds} seeds"
    if note.num_left_out:
        text += f" ({note.num_left_out} more with fewer seeds left out)"
    return text


@_note.register
def _(note: reasons.LearningRateWithoutChoice) -> str:
    return f"learning rate {note.learning_rate}, of {note.num_rates} without a seed in common"


@_note.register
def _(note: reasons.OlderRunsLeftOut) -> str:
    return f"{note.count} run(s) of an older results version left out"


def below_floor(below: reasons.BelowFloor) -> str:
    floor = "the same head on random weights" if below.is_random_weights else "one fixed answer"
    return (
        f"{below.row} has {below.mean:.1f} on {below.dataset}, where {floor} has {below.floor:.1f}"
    )


def excluded_runs(excluded: ExcludedRuns) -> str:
    files = "files that no generator wrote"
    if excluded.generator:
        files = f"files of {excluded.generator}"
    return (
        f"{excluded.task}: {excluded.count} run(s) of {', '.join(excluded.rows)} are on {files},"
        f" the others on {excluded.usual_generator or 'real ones'}: another data set, in no cell;"
        " give it a runs_dir or scale of its own"
    )


# -- results versions ------------------------------------------------------------------------------


def outdated(reason: Outdated) -> str:
    if reason.age is reasons.Age.OLDER_ENCODER:
        return "on encoders of an older results version than others"
    return f"of results version {reason.version}, beside others of {reason.newest}"


def outdated_runs(folders: OutdatedFolders, runs: Sequence[Record]) -> Iterable[str]:
    """A line for each stage, task and reason: how many runs are left out, of which rows."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for run in runs:
        if run.folder in folders:
            key = (run.stage, run.task, outdated(folders[run.folder]))
            groups.setdefault(key, []).append(run.name)
    for (stage, task, reason), names in groups.items():
        yield (
            f"{f'{stage} {task}'.strip()}: {len(names)} run(s) of"
            f" {', '.join(dict.fromkeys(names))} are {reason}: no comparison mixes them, so they"
            " are in no cell; make them again, or give them a runs_dir of their own"
        )


# -- why cells may not be compared -----------------------------------------------------------------


@singledispatch
def incomparability(reason: Incomparability) -> str:
    return PLAIN_SENTENCES[type(reason)]


@incomparability.register
def _(reason: reasons.DifferentSplits) -> str:
    return f"another split: cells of {' against cells of '.join(reason.splits)}"


@incomparability.register
def _(reason: reasons.DifferentMetric) -> str:
    return f"another metric: {reason.metric}, where the claim is about {reason.claimed}"


@incomparability.register
def _(reason: reasons.OutdatedRuns) -> str:
    why = min(outdated(one) for one in reason.outdated)
    return f"all {reason.count} run(s) of {reason.name} are {why}, and no comparison mixes them"


@incomparability.register
def _(reason: reasons.NoPretraining) -> str:
    return f"no complete pre-training run of {' and '.join(reason.arms)}"


@incomparability.register
def _(reason: reasons.UnknownAmount) -> str:
    return (
        f"{_amount_name(reason.amount)} of pre-training not known for"
        f" {' and '.join(reason.arms)}, so nobody can say the arms match"
    )


@incomparability.register
def _(reason: reasons.UnmatchedAmount) -> str:
    return (
        f"arms not matched: {rough(reason.first)} against {rough(reason.second)}"
        f" {_amount_name(reason.amount)} of pre-training, and matched_by in paper.yaml does not say"
        " that this is meant"
    )


def _amount_name(amount: str) -> str:
    return "training time (seconds x devices)" if amount == "training_seconds" else amount


@incomparability.register
def _(reason: reasons.SeveralVersions) -> str:
    kind = "arm" if reason.is_arm else "row"
    return f"the runs of {reason.name} were made from {reason.count} versions of its {kind}"


@incomparability.register
def _(reason: reasons.DifferentProtocol) -> str:
    return (
        f"another protocol: {_stage(reason.stage)} with {setting_differences(reason.differences)},"
        " which differ_in in paper.yaml does not allow for"
    )


@incomparability.register
def _(reason: reasons.DifferentCode) -> str:
    return (
        f"other code: {_stage(reason.stage)} with two versions of {some(reason.modules)}, and"
        " differ_in does not say code"
    )


@incomparability.register
def _(reason: reasons.WrongEncoder) -> str:
    return (
        f"not what it is called: paper.yaml says arm {reason.arm} of the row {reason.row}, and"
        f" {reason.count} of {reason.num_runs} runs have the encoder of {reason.actual_arm}"
        f" (e.g. {reason.example})"
    )


@incomparability.register
def _(reason: reasons.SharedEncoder) -> str:
    stand_for, began_from = "two encoders", "one and the same"
    if reason.should_share:
        stand_for, began_from = "one encoder", "different ones"
    return (
        f"the rows stand for {stand_for}, and began from {began_from} (pre-training seed"
        f" {reason.pretrain_seed})"
    )


def _stage(stage: reasons.Stage) -> str:
    return "pre-trained" if stage is reasons.Stage.PRETRAINED else "fine-tuned"


def setting_differences(differences: Sequence[SettingDifference]) -> str:
    """`torch 2.13 against 2.11; numpy ...` of the first keys; empty for none."""
    texts = [
        f"{one.key} {'/'.join(one.first)} against {'/'.join(one.second)}" for one in differences
    ]
    return some(texts, "; ")


def some(names: Sequence[str], between: str = ", ") -> str:
    """The first names, and how many more there are."""
    text = between.join(names[:SHOWN])
    if len(names) > SHOWN:
        text += f" and {len(names) - SHOWN} more"
    return text


def provenance(differences: Sequence[ProvenanceDifference]) -> str:
    texts = [
        f"{_stage(one.stage)} with {setting_differences(one.differences)}" for one in differences
    ]
    return "; ".join(dict.fromkeys(texts))


def duplicates(duplicate_seeds: Iterable[reasons.DuplicateSeeds]) -> str:
    """`MLM: pre-training seeds 1 and 2 are one and the same encoder`; empty for none."""
    return "; ".join(f"{one.row}: {shared_encoder(one.seeds)}" for one in duplicate_seeds)


def shared_encoder(seeds: Sequence[int]) -> str:
    return f"pre-training seeds {listed(map(str, seeds))} are one and the same encoder"


def text_lengths(lengths: Sequence[Sequence[int]]) -> str:
    """To how many tokens the cells' texts were cut; empty where that is the same for all."""
    if not lengths:
        return ""
    texts = ["/".join(map(str, known)) for known in lengths]
    return f"texts cut to {' against '.join(texts)} tokens"


# -- what is missing -------------------------------------------------------------------------------


@singledispatch
def missing(reason: Missing) -> str:
    return PLAIN_SENTENCES[type(reason)]


@missing.register
def _(reason: reasons.NoScoresOfMetric) -> str:
    of_row = f" of {reason.row}" if reason.row is not None else ""
    return f"another metric: {reason.count} complete run(s){of_row} have no {reason.metric}"


@missing.register
def _(reason: reasons.NoCompleteRun) -> str:
    return f"no complete run of {' and '.join(reason.rows)}"


@missing.register
def _(reason: reasons.NoRunInColumn) -> str:
    return f"no run on {reason.column} or a stand-in for it"


@missing.register
def _(reason: reasons.NoCounterpart) -> str:
    if reason.task is None:
        return f"{reason.column} has no counterpart of {reason.dataset} in paper.yaml"
    return f"no run on {reason.task}, the counterpart of {reason.dataset} in {reason.column}"


@missing.register
def _(reason: reasons.TooFewPoints) -> str:
    return f"{reason.first} and {reason.second} have less than two points"


@missing.register
def _(reason: reasons.NoCommonStretch) -> str:
    return f"the lines have no stretch of {reason.unit} in common"


# -- verdicts --------------------------------------------------------------------------------------


def verdict_label(judgement: Judgement) -> str:
    """The verdict, and whether it is exploratory."""
    if judgement.is_exploratory:
        return f"{judgement.verdict}{EXPLORATORY}"
    return str(judgement.verdict)


def summarise(judgements: Sequence[Judgement]) -> str:
    """The verdicts counted: "2 hold, 1 contradicted, 3 inconclusive"."""
    order: list[str] = []
    for verdict in Verdict:
        order += [str(verdict), f"{verdict}{EXPLORATORY}"]
    return _counted([verdict_label(one) for one in judgements], order) or "no claims"


def _counted(labels: Sequence[str], order: Sequence[str]) -> str:
    counts: list[str] = []
    for label in order:
        count = labels.count(label)
        if count > 1:
            label = label.replace(Verdict.HOLDS, "hold")
        if count:
            counts.append(f"{count} {label}")
    return ", ".join(counts)


def forecast(judgement: Judgement, seconds_a_seed: float | None) -> str:
    """How many pre-training seeds would decide it; empty where seeds are not what is lacking."""
    if judgement.forecast is None:
        return ""
    text = _forecast(judgement.forecast)
    additional = judgement.forecast.additional_seeds
    if additional and seconds_a_seed:
        verb = "takes" if additional == 1 else "take"
        time = duration(additional * seconds_a_seed)
        text += f"; {additional} more {verb} about {time}, as these runs took"
    return text


@singledispatch
def _forecast(reason: Forecast) -> str:
    return PLAIN_SENTENCES[type(reason)]


@_forecast.register
def _(reason: verdicts.FirstAnalysisAhead) -> str:
    return f"the first look is at {reason.first} pre-training seeds"


@_forecast.register
def _(reason: verdicts.GatedByPrimary) -> str:
    return f"first the primary claim '{reason.claim}' has to be decided"


@_forecast.register
def _(reason: verdicts.TooManySeedsNeeded) -> str:
    return f"more than {reason.most} pre-training seeds at this difference and spread"


@_forecast.register
def _(reason: verdicts.SeedsNeeded) -> str:
    text = (
        f"with {reason.count} pre-training seeds 4 of 5 repetitions decide, at this difference and"
        " spread"
    )
    if reason.fewer_after:
        text += f"; with fewer once '{reason.fewer_after}' is decided"
    return text


def judgement_note(judgement: Judgement) -> str:
    """The reason of a verdict, or what to keep in mind beside it."""
    notes = [_breach(breach) for breach in judgement.breaches]
    if judgement.crossover:
        holds = judgement.verdict is Verdict.HOLDS
        notes.append(crossover_sentence(judgement.crossover, holds=holds))
    if judgement.claim.column == ALL_COLUMNS:
        notes += _notes_on_all_columns(judgement)
    else:
        notes += _notes_on_dataset(judgement)
    return "; ".join(dict.fromkeys(filter(None, notes)))


@singledispatch
def _breach(breach: history.Breach) -> str:
    raise TypeError(type(breach))


@_breach.register
def _(breach: history.SeedsAdded) -> str:
    return f"seeds were added after a look at {_look(breach)}"


@_breach.register
def _(breach: history.DesignChanged) -> str:
    return f"the stopping rule was changed after a look at {_look(breach)}"


def _look(breach: history.SeedsAdded) -> str:
    seeds = "unknown seeds" if breach.seeds is None else breach.seeds
    verdict = "another claim" if breach.verdict is None else breach.verdict
    return f"{seeds} ({breach.time[:10]}: {verdict})"


@_breach.register
def _(breach: history.ClaimedLate) -> str:
    return f"claimed after a look at its numbers ({breach.time[:10]})"


@_breach.register
def _(breach: history.ClaimDropped) -> str:
    return (
        f"a claim that its test allowed for was dropped or moved after a look ({breach.time[:10]})"
    )


def _notes_on_all_columns(judgement: Judgement) -> list[str]:
    """Of a claim about all columns: the verdict on each."""
    placed = judgement.placed
    names = [contrast.label or placed.judged_on for contrast in placed.contrasts]
    verdicts_on: list[str] = []
    direction_only: list[str] = []
    for name, contrast, verdict in zip(names, placed.contrasts, judgement.verdicts, strict=True):
        if verdict is not Verdict.NOT_COMPARABLE:
            verdicts_on.append(f"{name}: {verdict}")
            direction_only += _direction_only(contrast)

    absent: list[str] = []
    incomparable: list[str] = []
    provenances: list[str] = []
    for name, contrast in zip(names, placed.contrasts, strict=True):
        reason = contrast.obstacles.incomparability
        if reason:
            incomparable.append(f"not comparable on {name} ({incomparability(reason)})")
            continue
        provenances.append(provenance(contrast.context.provenance))
        if contrast.obstacles.missing:
            absent.append(name)
    absent += placed.silent_columns
    notes = verdicts_on + direction_only
    if absent:
        notes.append(f"no runs for {', '.join(dict.fromkeys(absent))}")
    return notes + incomparable + provenances


def _direction_only(contrast: Contrast) -> list[str]:
    columns = [term.column for term in contrast.terms]
    return [f"{role_of(column)}: direction only" for column in columns if column.is_other_split]


def _notes_on_dataset(judgement: Judgement) -> list[str]:
    """Why it is not comparable; else what a reader must know beside the verdict."""
    contrasts = judgement.placed.contrasts
    notes: list[str] = []
    if contrasts and not contrasts[0].obstacles.incomparability:
        notes.append(size_obstacle(judgement))
    if judgement.verdict is Verdict.NOT_COMPARABLE:
        return notes + _why_not_comparable(judgement)

    if len(contrasts) > 1:
        labels = [str(verdict) for verdict in judgement.verdicts]
        counted = _counted(labels, list(dict.fromkeys(labels)))
        notes.append(f"of {len(labels)} differences {counted}")
        for contrast in contrasts:
            if contrast.obstacles.missing:
                notes.append(f"{contrast.label}: {missing(contrast.obstacles.missing)}")
    notes.append(_plain_interval_excludes(judgement))
    for contrast in contrasts:
        notes += _cautions(contrast)
    if judgement.weakest:
        notes.append(_of_collapsed_runs(judgement.weakest))
    return notes


def _why_not_comparable(judgement: Judgement) -> list[str]:
    placed = judgement.placed
    barred = [contrast.obstacles.incomparability for contrast in placed.contrasts]
    why = [incomparability(reason) for reason in barred if reason]
    if why:
        return why
    if placed.missing:
        return [missing(placed.missing)]
    absent = [contrast.obstacles.missing for contrast in placed.contrasts]
    return [missing(reason) for reason in absent if reason]


def _plain_interval_excludes(judgement: Judgement) -> str:
    """Where the plain interval and the verdict would seem to contradict each other."""
    weakest = judgement.weakest
    if weakest is None or weakest.p_value is None or judgement.placed.curves:
        return ""
    corrected = judgement.corrected_p or 0.0
    if not weakest.p_value < SIGNIFICANCE <= corrected:
        return ""
    excluded = "the margin" if weakest.margin else "zero"
    is_primary = judgement.claim.primary
    test = f"the test corrected for {judgement.num_tests} differences does not"
    if is_primary:
        test = "the test as a primary one does not"
    if judgement.gated_by and is_primary:
        test = f"the test waits for the primary claim '{judgement.gated_by}'"
    elif judgement.gated_by:
        test = (
            "the test at 1 % does not: it has 5 % once the primary claim"
            f" '{judgement.gated_by}' is decided"
        )
    return f"the plain interval excludes {excluded}, {test}"


def size_obstacle(judgement: Judgement) -> str:
    """Why our difference is not held against the size of the paper's; empty where it is."""
    obstacle = judgement.size_obstacle
    if obstacle is None:
        return ""
    if isinstance(obstacle, verdicts.OtherStatistic):
        averages = AVERAGES[obstacle.averaging]
        return f"the paper's numbers are {averages} of its runs, ours means: direction only"
    column = obstacle.column
    if column.is_other_split or column.is_measured:
        return f"{role_of(column)}: direction only"
    if column.is_pretraining:
        return "our own held-out text: direction only"
    kind = "synthetic" if column.is_synthetic else "stand-in"
    if obstacle.is_equivalence:
        return f"{kind}: says nothing of the sizes in the paper"
    return f"{kind}: direction only"


def _cautions(contrast: Contrast) -> list[str]:
    notes: list[str] = []
    for cell in contrast.context.cells:
        notes += _cell_cautions(cell)

    difference = contrast.difference
    design = contrast.design
    obstacles = contrast.obstacles
    if design and difference and difference.count > design.most:
        notes.append(f"seeds after the last look ({design.most}) decide nothing")
    if obstacles.duplicates:
        notes.append(f"{duplicates(obstacles.duplicates)}: copies decide nothing")
    elif difference and difference.has_no_spread and not obstacles.every_run_collapsed:
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
    notes.append(text_lengths(contrast.context.text_lengths))
    notes.append(provenance(contrast.context.provenance))
    below = "; ".join(below_floor(one) for one in contrast.context.below_floor)
    if below:
        notes.append(
            f"below its floor: {below}; such a row decides nothing about what pre-training gives"
        )
    return notes


def _cell_cautions(cell: CellCaution) -> list[str]:
    notes: list[str] = []
    if cell.num_missing:
        notes.append(f"{cell.num_missing} run(s) of {cell.row} missing")
    if cell.num_collapsed:
        notes.append(f"{cell.num_collapsed} collapsed run(s) of {cell.row}")
    if cell.every_run_collapsed:
        notes.append(f"every run of {cell.row} collapsed: it has measured nothing")
    return notes


def _of_collapsed_runs(contrast: Contrast) -> str:
    """The difference over the runs that did not collapse; empty where none or all did."""
    if contrast.obstacles.every_run_collapsed or not contrast.has_collapsed:
        return ""
    others = contrast.without_collapsed
    if others is None:
        text = "without collapsed runs no pair of seeds is left"
    else:
        text = f"without collapsed runs {signed(others.mean)} {interval(others)}".rstrip()
    if not contrast.is_tested:
        return text
    if contrast.rests_on_collapsed:
        return f"{text}: the difference rests on them and decides nothing"
    if others:
        return f"{text}; p is the larger one, with or without"
    return text


def contrast_notes(contrast: Contrast) -> list[str]:
    """What a reader must know of a contrast that no claim is about; empty texts for nothing."""
    obstacles = contrast.obstacles
    context = contrast.context
    notes: list[str] = []
    if obstacles.incomparability:
        notes.append(incomparability(obstacles.incomparability))
    notes.append(duplicates(obstacles.duplicates))
    notes.append(text_lengths(context.text_lengths))
    notes.append(provenance(context.provenance))
    notes.append("; ".join(below_floor(below) for below in context.below_floor))
    return notes


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
    texts: list[str] = []
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
        return lambda amount: f"{rough(amount)} tokens"
    return lambda share: f"{100 * share:.3g} % of the steps"


def unnoted_analysis(error: OSError) -> str:
    return f"this look could not be noted ({error}): a later one will not know of it"


# -- experiments ---------------------------------------------------------------------------------


def statistic(experiment: Experiment) -> str:
    """What the paper's cells are; empty where it does not say."""
    if not experiment.seeds and not experiment.averaging:
        return ""
    of_runs = f"{AVERAGES[experiment.averaging]} of " if experiment.averaging else "over "
    plural = "" if experiment.seeds == 1 else "s"
    return f"{of_runs}{experiment.seeds or 'several'} run{plural} a cell"


# -- plans -----------------------------------------------------------------------------------------


def detectable_difference(detectable: verdicts.DetectableDifference | None) -> str:
    if detectable is None:
        return (
            "smallest detectable difference: none; one pre-training seed cannot tell an arm from"
            " its luck"
        )
    basis = "assumed: no comparison of two seeds so far"
    if detectable.num_contrasts:
        basis = f"median of {detectable.num_contrasts} comparisons so far"
    return (
        f"smallest detectable difference: {detectable.difference:.1f} points between two arms. With"
        f" {detectable.seeds} pre-training seeds 4 of 5 experiments find it, if it varies by"
        f" {detectable.sd:.1f} points from seed to seed ({basis}). This is for one difference"
        " alone; budget=TIME shows all claims together"
    )
