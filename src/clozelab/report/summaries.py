"""What the runs of an experiment learnt and cost, and how large and how many they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from claims.analysis.grouping import group_by
from claims.analysis.schema import Row
from claims.text.phrases import DASH, count_noun, distinct, duration, format_count, join_list
from clozelab.results.table import ResultTable
from clozelab.runs.outcome import LEARNT_CONTEXT_NATS, context_free, fresh_heads, same_fraction
from clozelab.runs.record import STAGE_NAMES, Record

LEARNT_NSP_ACCURACY = 0.55
"""Of held-out pairs inside one source, both kinds counted alike; a few hundred pairs decide it to 2
%. Learnt means above it, and for all pairs above what asking for the sources alone gives."""
# in labels of rows whose encoder has another size at a small scale
PAPER_SIZE = re.compile(r"L=\d+, H=\d+(, A=\d+)?")
SIZE_LETTERS = {"L": "num_hidden_layers", "H": "hidden_size", "A": "num_attention_heads"}


# -- means over runs -------------------------------------------------------------------------------


def _facts(runs: Iterable[Record], key: str) -> list[float | None]:
    return [run.facts.get(key) for run in runs]


def _average(values: Iterable[object]) -> float | None:
    """The mean of those values that are numbers; None where none is."""
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    return sum(numbers) / len(numbers) if numbers else None


def _shown_mean(values: Iterable[object], shape: str = "") -> str:
    """The mean in this shape, without one to three digits; a dash where there is no number."""
    mean = _average(values)
    if mean is None:
        return DASH
    return shape.format(mean) if shape else format_count(mean)


# -- arms and their sizes --------------------------------------------------------------------------


def arm_labels(table: ResultTable) -> dict[str, str]:
    """Arm -> label of the first row that uses it, for every arm with runs.

    It is the arm's own name where that row is but one point of its training, or missing.
    """
    points = set()
    for series in table.checkpoint_series:
        points |= {row for fraction, row in series.rows.items() if fraction < 1.0}
    labels: dict[str, str] = {}
    for row in table.experiment.rows:
        if row.arm is not None:
            labels.setdefault(row.arm, row.arm if row.name in points else row.label)
    trained = {run.name: run.name for run in table.runs.pretrain}
    # The order is that of the rows; arms without a row come last.
    return {arm: labels.get(arm, arm) for arm in [*labels, *trained] if arm in trained}


def _label_with_arm(label: str, arm: str) -> str:
    return label if label == arm else f"{label} ({arm})"


def with_own_sizes(table: ResultTable) -> ResultTable:
    """The table with our encoders' sizes in the labels of rows that the paper names after its
    own.

    A row whose new label another one has keeps the old label behind it.
    """
    rows = []
    labels = set()
    for row in table.experiment.rows:
        label = row.label
        size = _own_size(row, table)
        if size:
            label = PAPER_SIZE.sub(size, label)
        if label in labels:
            label = f"{label} ({row.label})"
        labels.add(label)
        rows.append(row.model_copy(update={"label": label}))
    return replace(table, spec=table.spec.model_copy(update={"rows": tuple(rows)}))


def _own_size(row: Row, table: ResultTable) -> str:
    """`L=3, H=64, A=2` of the encoder that a row takes; empty where no run says so."""
    arm = str(row.arm or row.delta.get("encoder_arm"))
    runs = table.complete("pretrain", arm)
    model = runs[0].encoder_shape if runs else {}
    sizes = [f"{letter}={model[key]}" for letter, key in SIZE_LETTERS.items() if key in model]
    return ", ".join(sizes)


# -- what pre-training learnt ----------------------------------------------------------------------


@dataclass(frozen=True)
class LossBound:
    """A held-out loss that no model of its kind can beat, from the corpus's generator."""

    # the kind of model: "masked", "left_to_right"
    reader: str
    nats: float
    standard_error: float
    # what a reader who reaches it sees
    view: str

    @classmethod
    def from_run(cls, run: Record) -> LossBound | None:
        fact = run.facts.get("known_loss")
        if not fact:
            return None
        return cls(fact["reader"], fact["nats"], fact["standard_error"], fact["view"])


@dataclass(frozen=True)
class ArmSummary:
    """How large an arm's encoder is, and what its finished runs reached on held-out text."""

    label: str
    encoder: str
    # tokens a row of held-out text
    rows: str
    loss: str
    without_context: str
    # what no model can be below, and how far above that the loss is
    bound: str
    above: str
    accuracy: str
    # next-sentence prediction: of all pairs, by the sources alone, inside one source
    nsp: str
    nsp_rule: str
    nsp_inside: str


def learning_summary(table: ResultTable) -> list[ArmSummary]:
    """A summary for each arm, figures as means over its finished runs."""
    summaries = []
    for arm, label in arm_labels(table).items():
        runs = table.complete("pretrain", arm)
        summaries.append(_arm_summary(_label_with_arm(label, arm), runs))
    return summaries


def _arm_summary(label: str, runs: Sequence[Record]) -> ArmSummary:
    def share(key: str) -> str:
        return _shown_mean(_facts(runs, f"validation/{key}"), "{:.1%}")

    bounds = []
    above: list[float] = []
    for run in runs:
        bound = LossBound.from_run(run)
        if bound is not None:
            bounds.append(f"{bound.nats:.2f} \u00b1 {bound.standard_error:.2f}")
            above += [
                loss - bound.nats for loss in _facts([run], "validation/loss") if loss is not None
            ]
    encoder = distinct(_encoder_size(run) for run in runs)
    row_lengths = distinct(str(run.config["validation"]["seq_length"]) for run in runs)
    loss = _shown_mean(_facts(runs, "validation/loss"), "{:.3f}")
    without_context = _shown_mean(map(context_free, runs), "{:.3f}")
    return ArmSummary(
        label,
        encoder,
        row_lengths,
        loss,
        without_context,
        bound=distinct(bounds),
        above=_shown_mean(above, "{:.2f}"),
        accuracy=share("accuracy"),
        nsp=share("nsp_accuracy"),
        nsp_rule=share("nsp_source_rule"),
        nsp_inside=share("nsp_accuracy_one_source"),
    )


def _encoder_size(run: Record) -> str:
    """`L2 H128, 1.53 M`: rows are named as in the paper, whatever the scale makes of them."""
    model = run.encoder_shape
    parameters = run.facts.get("parameters")
    if not model:
        return DASH
    size = f"L{model['num_hidden_layers']} H{model['hidden_size']}"
    return f"{size}, {format_count(parameters)}" if parameters else size


def loss_bounds(table: ResultTable) -> list[LossBound]:
    """The bounds that a generated corpus knows for its models' losses, each of them once."""
    bounds = {}
    for run in table.runs.pretrain:
        bound = LossBound.from_run(run)
        if bound is not None:
            bounds[bound.reader, f"{bound.nats:.2f}"] = bound
    return [bounds[key] for key in sorted(bounds)]


@dataclass(frozen=True)
class ArmsBelowBaseline:
    """Arms whose pre-training is not above its baseline.

    A claim that names an arm of each group of arms cannot be judged without it.
    """

    text: str
    groups: list[set[str]]


def arms_below_baseline(table: ResultTable) -> list[ArmsBelowBaseline]:
    """What the arms' pre-training has not learnt: the next sentence first, then context."""
    lacks = [_without_next_sentence(table)]
    for arm, label in arm_labels(table).items():
        lacks.append(_without_context(arm, _label_with_arm(label, arm), table))
    return [lack for lack in lacks if lack is not None]


def _without_next_sentence(table: ResultTable) -> ArmsBelowBaseline | None:
    """Arms whose next-sentence prediction is not above a rule on the sources of the segments."""
    unlearnt = {}
    without_objective = set()
    for arm, label in arm_labels(table).items():
        runs = table.complete("pretrain", arm)
        accuracy = _average(_facts(runs, "validation/nsp_accuracy"))
        rule = _average(_facts(runs, "validation/nsp_source_rule"))
        inside = _average(_facts(runs, "validation/nsp_accuracy_one_source"))
        if accuracy is None:
            without_objective.add(arm)
            continue
        if rule is None:
            continue
        is_weak_inside = inside is not None and inside < LEARNT_NSP_ACCURACY
        if accuracy <= rule or is_weak_inside:
            of_those = "there are none" if inside is None else f"{inside:.1%} of those"
            unlearnt[arm] = (
                f"{_label_with_arm(label, arm)} {accuracy:.1%} (the sources alone tell"
                f" {rule:.1%}; inside one source {of_those})"
            )
    if not unlearnt:
        return None

    first_arm = next(iter(unlearnt))
    length = table.complete("pretrain", first_arm)[0].config["validation"]["seq_length"]
    text = (
        f"Next-sentence prediction, accuracy on held-out pairs of {length} tokens:"
        f" {'; '.join(unlearnt.values())}. Unless longer pairs tell more"
        " (measure=pairs_follows), what it gives or costs cannot show at this budget"
    )
    return ArmsBelowBaseline(text, [set(unlearnt), without_objective])


def _without_context(arm: str, label: str, table: ResultTable) -> ArmsBelowBaseline | None:
    """An arm whose loss is where frequencies alone bring it, or hardly below."""
    runs = table.complete("pretrain", arm)
    if any("validation/rtd_loss" in run.facts for run in runs):
        return None  # its loss is the generator's, which is not kept
    loss = _average(_facts(runs, "validation/loss"))
    plateau = _average(map(context_free, runs))
    if loss is None or plateau is None or loss <= plateau - LEARNT_CONTEXT_NATS:
        return None
    copied = ""
    if any(same_fraction(run) for run in runs):
        copied = ", and copying what masking leaves in place"
    lack = "its encoder has learnt next to nothing of context"
    # A given encoder may know more than its head.
    if runs and all(map(fresh_heads, runs)):
        heads = join_list(fresh_heads(runs[0]))
        lack = f"its given encoder had no trained {heads} head, and the new one needs more steps"
    text = (
        f"{label}: a held-out loss of {loss:.2f} nats, where {plateau:.2f} takes no context"
        f" (each token's frequency{copied}): {lack}"
    )
    return ArmsBelowBaseline(text, [{arm}])


# -- cost ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What some runs took; speeds and tokens are means over the finished ones."""

    label: str
    runs: str
    tokens: str
    speed: str
    mfu: str
    time: str


def costs(table: ResultTable) -> list[Cost]:
    """A line for each arm's pre-training, each row's fine-tuning and evaluation, and the sum."""
    row_labels = {row.name: row.label for row in table.experiment.rows}
    stages = {
        "pretrain": arm_labels(table),
        "finetune": row_labels,
        "evaluate": row_labels,
    }
    by_name = group_by(table.runs.runs, lambda run: (run.stage, run.name))
    lines = []
    for stage, labels in stages.items():
        for name, label in labels.items():
            if (stage, name) in by_name:
                lines.append(_cost(f"{STAGE_NAMES[stage]} {label}", by_name[stage, name]))
    num_complete, time = _runs_and_time(table.runs.runs)
    return [*lines, Cost("all", num_complete, tokens="", speed="", mfu="", time=time)]


def _cost(label: str, runs: Sequence[Record]) -> Cost:
    complete = [run for run in runs if run.is_complete]
    num_complete, time = _runs_and_time(runs)
    return Cost(
        label=label,
        runs=num_complete,
        tokens=_shown_mean(_facts(complete, "tokens")),
        speed=_shown_mean(_facts(complete, "tokens_per_second")),
        mfu=_shown_mean(_facts(complete, "mfu"), "{:.0%}"),
        time=time,
    )


def _runs_and_time(runs: Sequence[Record]) -> tuple[str, str]:
    """(`2 of 3`: how many are complete, how long all took together)."""
    num_complete = sum(run.is_complete for run in runs)
    seconds = [run.seconds for run in runs if run.status != "running"]
    return f"{num_complete} of {len(runs)}", duration(sum(seconds)) if seconds else DASH


# -- seeds ---------------------------------------------------------------------------------------


def seed_counts(table: ResultTable) -> str:
    """`3 pre-training seeds (1, 2, 3), 1 fine-tuning seed (1)`; empty for none.

    Where every row is one given encoder a pair of both seeds is a fine-tuning's: `2 fine-tuning
    seeds (1/1, 2/1)`.
    """
    pretrain_seeds = set()
    seeds = set()
    pairs = set()
    for run in table.runs.finetune:
        if run.name in table.rows:
            pretrain_seeds.add(run.pretrain_seed)
            seeds.add(run.seed)
            pairs.add(run.seeds)
    seeds_of_stage: dict[str, Sequence[int | str]] = {"fine-tuning": sorted(seeds)}
    if not table.experiment.has_fixed_encoders:
        seeds_of_stage = {"pre-training": table.pretrain_seeds, **seeds_of_stage}
    elif len(pretrain_seeds) > 1:
        seeds_of_stage["fine-tuning"] = sorted(pairs)
    counts = []
    for stage, stage_seeds in seeds_of_stage.items():
        if stage_seeds:
            listed_seeds = ", ".join(map(str, stage_seeds))
            counts.append(f"{count_noun(len(stage_seeds), f'{stage} seed')} ({listed_seeds})")
    return ", ".join(counts)
