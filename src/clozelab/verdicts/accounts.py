"""What the runs of an experiment learnt, cost and lack, and what they were made with: the report's lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from clozelab.objectives.plateau import context_free_loss
from clozelab.runs.find import AnyRun, Collected, PretrainRun
from clozelab.runs.progress import read_launches
from clozelab.verdicts.columns import Cell
from clozelab.verdicts.consistency import inconsistencies
from clozelab.verdicts.experiment import Experiment, Row
from clozelab.verdicts.points import find_lines
from clozelab.verdicts.table import Table
from clozelab.verdicts.wording import DASH, distinct, duration, percent, rough

LEARNT_NSP_ACCURACY = 0.55
"""Of held-out pairs; below it, an arm is said not to have learnt the task (a few hundred pairs decide it to 2 %)."""
LEARNT_CONTEXT_NATS = 0.2
"""A token below the loss of a model without context; before that, an arm is on the plateau that it began on."""
SAME_SIZE = 1.02
"""Encoders whose parameters differ by no more than that factor: a head of one's own does not make another size."""
TIGHTNESS = {
    "masked": (
        "This is a lower bound, not the exact best: alternatives that need two changed decisions are not counted, and "
        "half of the rows show two shorter pieces of text."
    ),
    "left_to_right": (
        "For that reader it is exact but for sampling; for the model it is a lower bound, since its rows begin inside "
        "documents, and [SEP] is taken to cost nothing."
    ),
}


def place(run: AnyRun, collected: Collected) -> str:
    """The run's folder below the experiment's, which is the same on every machine."""
    return run.dir.relative_to(collected.root).as_posix()


def arm_labels(experiment: Experiment) -> dict[str, str]:
    """Arm -> label of the first row that uses it, in the table's order; its own name where that row is but one point
    of its pre-training."""
    points = {row for line in find_lines(experiment) for row in line.rows.values()}
    labels: dict[str, str] = {}
    for row in experiment.rows:
        if row.arm is not None:
            labels.setdefault(row.arm, row.arm if row.name in points else row.label)
    return labels


def arms_run(experiment: Experiment, collected: Collected) -> dict[str, str]:
    """Arm -> label, of every arm with a run: the table's first, then any other."""
    known = arm_labels(experiment)
    labels = known | {run.arm: run.arm for run in collected.pretrain if run.arm not in known}
    return {arm: label for arm, label in labels.items() if any(run.arm == arm for run in collected.pretrain)}


def _full_label(arm: str, label: str) -> str:
    return label if label == arm else f"{label} ({arm})"


def learnt(arm: str, label: str, collected: Collected) -> dict[str, str]:
    """How large an arm's encoder is and what its finished runs reached on held-out text, as means over seeds."""
    runs = [run for run in collected.pretrain if run.arm == arm and run.is_complete]
    facts = [run.facts for run in runs]
    known = [one["known_loss"] for one in facts if one.get("known_loss")]
    distances = [
        {"above": one["validation/loss"] - one["known_loss"]["nats"]}
        for one in facts
        if one.get("known_loss") and "validation/loss" in one
    ]
    return {
        "label": _full_label(arm, label),
        "encoder": distinct(_size(run) for run in runs),
        "loss": _mean(facts, "validation/loss", "{:.3f}"),
        "without_context": _mean([{"nats": _context_free(run)} for run in runs], "nats", "{:.3f}"),
        "bound": distinct(f"{one['nats']:.2f} \u00b1 {one['standard_error']:.2f}" for one in known),
        "above": _mean(distances, "above", "{:.2f}"),
        "accuracy": _mean(facts, "validation/accuracy", "{:.1%}"),
        "nsp": _mean(facts, "validation/nsp_accuracy", "{:.1%}"),
    }


def _size(run: PretrainRun) -> str:
    """L2 H128, 1.53 M: rows are named as in the paper, whatever the scale makes of them."""
    model, parameters = run.state["config_resolved"]["model"], run.facts.get("parameters")
    shape = f"L{model['num_hidden_layers']} H{model['hidden_size']}"
    return f"{shape}, {rough(parameters)}" if parameters else shape


def encoder_sizes(collected: Collected) -> dict[str, float]:
    """Arm -> parameters of its encoder, as a mean over the runs that know them."""
    facts: dict[str, list[Mapping[str, Any]]] = {}
    for run in collected.pretrain:
        facts.setdefault(run.arm, []).append(run.facts)
    found = {arm: _average(mine, "parameters") for arm, mine in facts.items()}
    return {arm: size for arm, size in found.items() if size}


def rows_by_size(experiment: Experiment, collected: Collected) -> list[Row]:
    """The rows to compare by the size of their encoders: of points of one run the last; none where sizes are alike."""
    earlier = {row for line in find_lines(experiment) for row in list(line.rows.values())[:-1]}
    sizes = encoder_sizes(collected)
    rows = [row for row in experiment.rows if row.arm in sizes and row.name not in earlier]
    known = [sizes[str(row.arm)] for row in rows]
    return rows if known and max(known) > SAME_SIZE * min(known) else []


def known_losses(collected: Collected) -> list[dict[str, Any]]:
    """The bounds that a generated corpus knows for its models' losses, each once: `nats` and `text`."""
    facts = [run.facts["known_loss"] for run in collected.pretrain if run.facts.get("known_loss")]
    different = {(one["reader"], f"{one['nats']:.2f}"): one for one in facts}
    return [{"nats": known["nats"], "text": _bound(reader, known)} for (reader, _), known in sorted(different.items())]


def _bound(reader: str, known: Mapping[str, Any]) -> str:
    return (
        f"No {reader.replace('_', '-')} model can be below {known['nats']:.2f} \u00b1 {known['standard_error']:.2f} on "
        f"average (from the generator; one standard error). That is what a reader reaches who knows the generator and "
        f"sees {known['view']}. {TIGHTNESS[reader]}"
    )


def costs(experiment: Experiment, collected: Collected) -> list[dict[str, str]]:
    """One line an arm's pre-training, one line a row's fine-tuning, and the sum."""
    lines: list[tuple[str, Sequence[AnyRun]]] = [
        (f"pre-training {label}", [run for run in collected.pretrain if run.arm == arm])
        for arm, label in arms_run(experiment, collected).items()
    ]
    lines += [
        (f"fine-tuning {row.label}", [run for run in collected.finetune if run.row == row.name])
        for row in experiment.rows
    ]
    ceilings = _ceilings(collected)
    total = _cost("all", collected.runs, ceilings) | dict.fromkeys(("tokens", "speed", "mfu"), "")
    return [*(_cost(label, runs, ceilings) for label, runs in lines if runs), total]


def _ceilings(collected: Collected) -> dict[tuple[str, Any], float]:
    """(machine, precision) -> the highest ceiling of matrix products that any run measured there.

    Each run measures it for a moment when it begins, perhaps beside other work: a low one flatters the run.
    """
    found: dict[tuple[str, Any], float] = {}
    for run in collected.pretrain:
        if ceiling := run.facts.get("matmul_ceiling"):
            found[_machine(run)] = max(found.get(_machine(run), 0.0), float(ceiling))
    return found


def _machine(run: AnyRun) -> tuple[str, Any]:
    return _host(run.state.get("host", {})), run.state.get("facts", {}).get("precision")


def _against_ceiling(run: AnyRun, ceilings: Mapping[tuple[str, Any], float]) -> dict[str, Any]:
    """A run's facts, its utilisation being that of the highest ceiling of its machine."""
    facts = dict(run.state.get("facts", {}))
    if facts.get("mfu") and facts.get("matmul_ceiling"):
        facts["mfu"] *= facts["matmul_ceiling"] / ceilings[_machine(run)]
    return facts


def _cost(label: str, runs: Sequence[AnyRun], ceilings: Mapping[tuple[str, Any], float]) -> dict[str, str]:
    facts = [_against_ceiling(run, ceilings) for run in runs if run.is_complete]
    seconds = [float(run.state.get("seconds", 0.0)) for run in runs if run.state["status"] != "running"]
    return {
        "label": label,
        "runs": f"{len(facts)} of {len(runs)}",
        "tokens": _mean(facts, "tokens"),
        "speed": _mean(facts, "tokens_per_second"),
        "mfu": _mean(facts, "mfu", "{:.0%}"),
        "time": duration(sum(seconds)) if seconds else DASH,
    }


def _mean(facts: Sequence[Mapping[str, Any]], key: str, shape: str = "") -> str:
    mean = _average(facts, key)
    if mean is None:
        return DASH
    return shape.format(mean) if shape else rough(mean)


def problems(collected: Collected, table: Table) -> dict[str, list[str]]:
    """Heading -> lines, of what a reader has to know is not there or not well."""
    root, experiment = f"{collected.root}/", table.experiment
    unequal = inconsistencies(collected, experiment.folder, experiment.free_keys)
    found = {
        "Misfiled": list(dict.fromkeys(table.comparability.misfiled.values())),  # rows may share an arm
        "Another data set": list(table.strays),
        "Unequal": [line.replace(root, "") for line in unequal],
        "Not learnt": _not_learnt(experiment, collected),
        "Missing": _missing(table),
        "Not complete": [line.replace(root, "") for line in _troubled(collected)],
        "Collapsed": _collapsed(table),
        "Left out": _left_out(collected, table),
        "Unreadable": [line.replace(root, "") for line in collected.damaged],
    }
    return {heading: lines for heading, lines in found.items() if lines}


def _not_learnt(experiment: Experiment, collected: Collected) -> list[str]:
    """Arms whose pre-training has not taken hold: what depends on it cannot show in their rows."""
    lines = []
    for arm, label in arms_run(experiment, collected).items():
        runs = [run for run in collected.pretrain if run.arm == arm and run.is_complete]
        facts = [run.facts for run in runs]
        accuracy = _average(facts, "validation/nsp_accuracy")
        if accuracy is not None and accuracy < LEARNT_NSP_ACCURACY:
            lines.append(
                f"{_full_label(arm, label)}: next-sentence prediction is right for {accuracy:.1%} of held-out pairs, "
                "where guessing is right for 50%; what it gives or costs cannot show at this budget"
            )
        loss, without = _average(facts, "validation/loss"), [_context_free(run) for run in runs]
        known = [one for one in without if one is not None]
        copied = ", and copying what masking leaves in place" if any(map(_same_fraction, runs)) else ""
        if loss is not None and known and loss > (plateau := sum(known) / len(known)) - LEARNT_CONTEXT_NATS:
            lines.append(
                f"{_full_label(arm, label)}: a held-out loss of {loss:.2f} nats, where {plateau:.2f} takes no context "
                f"(each token's frequency{copied}): its encoder has learnt next to nothing of context"
            )
    return lines


def _context_free(run: PretrainRun) -> float | None:
    """The loss that no model without context gets below on the run's held-out text, masked as the run masks."""
    entropy = run.facts.get("unigram_entropy")
    return None if entropy is None else context_free_loss(float(entropy), _same_fraction(run))


def _same_fraction(run: PretrainRun) -> float:
    """Of the predicted tokens, what masking leaves in place; none where every token is predicted."""
    token = (run.state["config_resolved"].get("objective") or {}).get("token") or {}
    return float(token.get("same_fraction") or 0.0)


def _average(facts: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [float(one[key]) for one in facts if isinstance(one.get(key), int | float)]
    return sum(values) / len(values) if values else None


def _missing(table: Table) -> list[str]:
    lines = []
    for row in table.experiment.rows:
        gaps = []
        for column in table.with_results:
            cell = table.cells[row.name, column.key]
            if cell.missing and column.task:
                seeds = ", ".join(f"{first}/{second}" for first, second in cell.missing)
                gaps.append(
                    f"{column.heading} ({f'pre-training/fine-tuning seed {seeds}' if cell.scores else 'every seed'})"
                )
        if gaps:
            lines.append(f"{row.label} on {'; '.join(gaps)}")
    return lines


def _left_out(collected: Collected, table: Table) -> list[str]:
    """Runs of rows that the table does not have."""
    known = {row.name for row in table.experiment.rows}
    rows = [run.row for run in collected.finetune if run.row not in known]
    return [f"{rows.count(row)} runs of row {row}, which paper.yaml does not have" for row in dict.fromkeys(rows)]


def _troubled(collected: Collected) -> list[str]:
    """Runs that began and did not end well, with the reason."""
    lines = []
    for run in collected.runs:
        if run.state["status"] != "complete":
            reason = " ".join(str(run.state.get("error") or "").split())
            lines.append(f"{place(run, collected)} ({run.state['status']}){': ' if reason else ''}{reason}")
    return lines


def _collapsed(table: Table) -> list[str]:
    lines = []
    for row in table.experiment.rows:
        for column in table.columns:
            cell = table.cells[row.name, column.key]
            if cell.num_collapsed and column.task:
                without = percent(cell.without_collapsed) if cell.without_collapsed else "none left"
                lines.append(
                    f"{row.label} on {column.heading}: {cell.num_collapsed} of {len(cell.scores)} runs give one answer "
                    f"to every example; mean with them {_mean_of(cell)}, without them {without}"
                )
    return lines


def _mean_of(cell: Cell) -> str:
    """Without an interval where all have collapsed: their spread measures nothing."""
    return f"{cell.estimate.mean:.1f}" if cell.is_collapsed and cell.estimate else percent(cell.estimate)


def provenance(collected: Collected, table: Table) -> list[tuple[str, str]]:
    states = collected.states
    made_by = [one for state in states for one in (*state.get("earlier_sessions", ()), state)]
    times = sorted(
        str(state[key])[:16].replace("T", " ") for state in states for key in ("started", "finished") if state.get(key)
    )
    return [
        *_commands(collected),
        ("Commit", distinct(_commit(one.get("git")) for one in made_by)),
        ("Versions", distinct(", ".join(map(" ".join, one.get("versions", {}).items())) for one in made_by)),
        ("Machine", distinct(_host(one.get("host", {})) for one in made_by)),
        ("Seeds", seed_counts(table)),
        ("Runs", f"{times[0]} to {times[-1]} UTC" if times else DASH),
        ("Report", f"made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC from run folders alone"),
    ]


def _commands(collected: Collected) -> list[tuple[str, str]]:
    """The launches behind the runs; where none has left a note, the runs' own commands."""
    lines = [one.command(collected.root) for one in read_launches(collected.root).values()]
    lines = lines or [run.state["command"] for run in collected.runs]
    return [("Command", line) for line in dict.fromkeys(lines) if line]


def _commit(git: Mapping[str, Any] | None) -> str:
    return f"{git['commit'][:12]}{' with local changes' if git.get('dirty') else ''}" if git else "not from a checkout"


def _host(host: Mapping[str, Any]) -> str:
    gpus = f", {len(host['gpus'])} x {host['gpus'][0]}" if host.get("gpus") else ""
    return f"{host.get('cpu', 'unknown')}, {host.get('cores', '?')} cores{gpus}"


def seed_counts(table: Table) -> str:
    kinds = (("pre-training", table.pretrain_seeds), ("fine-tuning", table.finetune_seeds))
    return ", ".join(f"{len(seeds)} {kind} seed{'' if len(seeds) == 1 else 's'} ({', '.join(map(str, seeds))})"
                     for kind, seeds in kinds if seeds)  # fmt: skip
