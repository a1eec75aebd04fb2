"""What the runs of an experiment learnt, cost and lack, and what they were made with: the report's lists."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from clozelab.suggestions import DASH, distinct, duration, percent, rough
from clozelab.training.measuring import read_rows
from clozelab.verdicts.comparability import inconsistencies
from clozelab.verdicts.experiment import Experiment, Row
from clozelab.verdicts.table import Table, grouped

if TYPE_CHECKING:
    from clozelab.runs.find import Runs
    from clozelab.runs.record import Record

POINT = "encoder_fraction"
LEARNT_NSP_ACCURACY = 0.55
"""Of held-out pairs; below it, an arm is said not to have learnt the task (a few hundred pairs decide it to 2 %)."""
LEARNT_CONTEXT_NATS = 0.2
"""A token below the loss of a model without context; before that, an arm is on the plateau that it began on."""
SAME_SIZE = 1.02
"""Encoders whose parameters differ by no more than that factor: a head of one's own does not make another size."""


@dataclass(frozen=True)
class Line:
    """The rows along one arm's pre-training."""

    name: str
    arm: str
    rows: Mapping[float, str]  # fraction of the steps -> row, in the order of the steps; two or more
    tokens: Mapping[float, float]  # fraction -> seen, a mean over seeds; empty where not known of every fraction
    floor: str | None  # the row without pre-training that all of them name, where the line begins


def find_lines(experiment: Experiment, runs: Runs) -> list[Line]:
    """Every arm with rows at two or more fractions of its steps, and nothing else that they set differently."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], dict[float, str]] = {}
    for row in experiment.rows:
        run = next((run for run in runs.finetune if run.name == row.name), None)
        if row.arm is not None and run is not None:
            others = frozenset((key, str(value)) for key, value in run.row_delta.items() if key not in ("row", POINT))
            found.setdefault((row.arm, others), {})[float(run.config.get(POINT, 1.0))] = row.name
    long = {key: dict(sorted(rows.items())) for key, rows in found.items() if len(rows) > 1}
    lines = []
    for (arm, others), rows in long.items():
        # Of several lines of one arm, each is called by what sets it apart, too.
        shared = frozenset.intersection(*(one for other, one in long if other == arm))
        name = ", ".join([arm, *(f"{key} {value}" for key, value in sorted(others - shared))])
        floors = {row.floor for row in experiment.rows if row.name in rows.values()}
        tokens = _tokens([run for run in runs.pretrain if run.name == arm and run.is_complete], list(rows))
        lines.append(Line(name, arm, rows, tokens, floors.pop() if len(floors) == 1 else None))
    return lines


def _tokens(runs: Sequence[Record], fractions: Sequence[float]) -> dict[float, float]:
    """Seen after each fraction of the steps, as a mean over the runs; empty where one is not known."""
    found: dict[float, list[float]] = {fraction: [] for fraction in fractions}
    for run in runs:
        steps, tokens = run.facts.get("steps"), run.facts.get("tokens")
        if not steps or not tokens:
            continue
        logged = {row.step: float(row.tokens) for row in read_rows(run.folder / "metrics.csv")}
        known = dict(sorted((logged | {0: 0.0, int(steps): float(tokens)}).items()))
        for fraction, values in found.items():
            step = round(fraction * steps)
            if len(known) > 2 or step in known:
                values.append(float(np.interp(step, list(known), list(known.values()))))
    return {key: float(np.mean(values)) for key, values in found.items()} if all(found.values()) else {}


def arm_labels(table: Table) -> dict[str, str]:
    """Arm -> label of the first row that uses it, in the table's order; other arms with runs by their names.

    An arm whose row is but one point of its pre-training goes by its own name, too.
    """
    points = {row for line in find_lines(table.experiment, table.runs) for row in line.rows.values()}
    labels: dict[str, str] = {}
    for row in table.experiment.rows:
        if row.arm is not None:
            labels.setdefault(row.arm, row.arm if row.name in points else row.label)
    labels |= {run.name: run.name for run in table.runs.pretrain if run.name not in labels}
    trained = {run.name for run in table.runs.pretrain}
    return {arm: label for arm, label in labels.items() if arm in trained}


def _full_label(arm: str, label: str) -> str:
    return label if label == arm else f"{label} ({arm})"


def learnt(table: Table) -> list[dict[str, str]]:
    """An entry an arm: how large its encoder is and what its finished runs reached on held-out text, as means."""
    entries = []
    for arm, label in arm_labels(table).items():
        runs = table.trained.get(arm, [])
        facts = [run.facts for run in runs]
        bounds = [(one.get("validation/loss"), known) for one in facts if (known := one.get("known_loss"))]
        above = [{"above": loss - known["nats"]} for loss, known in bounds if loss is not None]
        sizes = []
        for run in runs:  # rows are named as in the paper, whatever the scale makes of them
            model, parameters = run.config["model"], run.facts.get("parameters")
            count = f", {rough(parameters)}" if parameters else ""
            sizes.append(f"L{model['num_hidden_layers']} H{model['hidden_size']}{count}")
        entries.append(
            {
                "label": _full_label(arm, label),
                "encoder": distinct(sizes),
                "loss": _mean(facts, "validation/loss", "{:.3f}"),
                "without_context": _mean([{"nats": _context_free(run)} for run in runs], "nats", "{:.3f}"),
                "bound": distinct(f"{known['nats']:.2f} \u00b1 {known['standard_error']:.2f}" for _, known in bounds),
                "above": _mean(above, "above", "{:.2f}"),
                "accuracy": _mean(facts, "validation/accuracy", "{:.1%}"),
                "nsp": _mean(facts, "validation/nsp_accuracy", "{:.1%}"),
            }
        )
    return entries


def encoder_sizes(table: Table) -> dict[str, float]:
    """Arm -> parameters of its encoder, as a mean over the runs that know them."""
    found = {
        arm: _average([run.facts for run in mine], "parameters") for arm, mine in grouped(table.runs.pretrain).items()
    }
    return {arm: size for arm, size in found.items() if size}


def rows_by_size(table: Table) -> list[Row]:
    """The rows to compare by the size of their encoders: of points of one run the last; none where sizes are alike."""
    lines = find_lines(table.experiment, table.runs)
    earlier = {row for line in lines for row in list(line.rows.values())[:-1]}
    sizes = encoder_sizes(table)
    rows = [row for row in table.experiment.rows if row.arm in sizes and row.name not in earlier]
    known = [sizes[str(row.arm)] for row in rows]
    return rows if known and max(known) > SAME_SIZE * min(known) else []


def known_losses(table: Table) -> list[dict[str, Any]]:
    """The bounds that a generated corpus knows for its models' losses, each of them once."""
    facts = [run.facts["known_loss"] for run in table.runs.pretrain if run.facts.get("known_loss")]
    different = {(one["reader"], f"{one['nats']:.2f}"): one for one in facts}
    return [known for _, known in sorted(different.items(), key=lambda one: one[0])]


def costs(table: Table) -> list[dict[str, str]]:
    """One line an arm's pre-training, one line a row's fine-tuning, and the sum.

    Utilisation is of the highest ceiling of a machine and precision: a low one, measured beside other work, flatters.
    """
    runs = table.runs
    trained, tuned = grouped(runs.pretrain), grouped(runs.finetune)
    lines = [(f"pre-training {label}", trained[arm]) for arm, label in arm_labels(table).items()]
    lines += [(f"fine-tuning {row.label}", tuned[row.name]) for row in table.experiment.rows if row.name in tuned]
    machines = {run.folder: (_host(run.host), run.facts.get("precision")) for run in runs.runs}
    ceilings: dict[tuple[str, Any], float] = {}
    for run in runs.pretrain:
        machine, ceiling = machines[run.folder], float(run.facts.get("matmul_ceiling") or 0.0)
        ceilings[machine] = max(ceilings.get(machine, 0.0), ceiling)
    entries = []
    for label, mine in [*lines, ("all", runs.runs)]:
        facts = []
        for run in (one for one in mine if one.is_complete):
            facts.append(dict(run.facts))
            if run.facts.get("mfu") and run.facts.get("matmul_ceiling"):
                facts[-1]["mfu"] *= run.facts["matmul_ceiling"] / ceilings[machines[run.folder]]
        seconds = [run.seconds for run in mine if run.status != "running"]
        entries.append(
            {
                "label": label,
                "runs": f"{len(facts)} of {len(mine)}",
                "tokens": _mean(facts, "tokens"),
                "speed": _mean(facts, "tokens_per_second"),
                "mfu": _mean(facts, "mfu", "{:.0%}"),
                "time": duration(sum(seconds)) if seconds else DASH,
            }
        )
    entries[-1] |= dict.fromkeys(("tokens", "speed", "mfu"), "")
    return entries


def _mean(facts: Sequence[Mapping[str, Any]], key: str, shape: str = "") -> str:
    mean = _average(facts, key)
    if mean is None:
        return DASH
    return shape.format(mean) if shape else rough(mean)


def _average(facts: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [float(one[key]) for one in facts if isinstance(one.get(key), int | float)]
    return sum(values) / len(values) if values else None


def problems(table: Table) -> dict[str, list[str]]:
    """Heading -> lines, of what a reader has to know is not there or not well."""
    runs = table.runs
    strangers = {row: mine for row, mine in grouped(runs.finetune).items() if row not in table.rows}
    missing, collapsed = _gaps(table)
    found = {
        "Another data set": table.strays,
        "Unequal": inconsistencies(table.experiment, runs),
        "Not learnt": _not_learnt(table),
        "Missing": missing,
        "Not complete": [
            f"{run.place} ({run.status}){': ' if run.problem else ''}{run.problem}"
            for run in runs.runs
            if not run.is_complete
        ],
        "Collapsed": collapsed,
        "Left out": [
            f"{len(mine)} runs of row {row}, which paper.yaml does not have" for row, mine in strangers.items()
        ],
        "Unreadable": [line.replace(f"{runs.root}/", "") for line in runs.damaged],
    }
    return {heading: list(lines) for heading, lines in found.items() if lines}


def _not_learnt(table: Table) -> list[str]:
    """Arms whose pre-training has not taken hold: what depends on it cannot show in their rows."""
    lines = []
    for arm, label in arm_labels(table).items():
        runs, name = table.trained.get(arm, []), _full_label(arm, label)
        facts = [run.facts for run in runs]
        accuracy = _average(facts, "validation/nsp_accuracy")
        if accuracy is not None and accuracy < LEARNT_NSP_ACCURACY:
            lines.append(
                f"{name}: next-sentence prediction is right for {accuracy:.1%} of held-out pairs, where guessing is "
                "right for 50%; what it gives or costs cannot show at this budget"
            )
        loss, plateau = _average(facts, "validation/loss"), _average([{"at": _context_free(run)} for run in runs], "at")
        copied = ", and copying what masking leaves in place" if any(map(_same_fraction, runs)) else ""
        if loss is not None and plateau is not None and loss > plateau - LEARNT_CONTEXT_NATS:
            lines.append(
                f"{name}: a held-out loss of {loss:.2f} nats, where {plateau:.2f} takes no context (each token's "
                f"frequency{copied}): its encoder has learnt next to nothing of context"
            )
    return lines


def _context_free(run: Record) -> float | None:
    """The loss that no model without context gets below on the run's held-out text, masked as the run masks.

    It knows the tokens' frequencies, and copies what is left in place where it predicts.
    """
    entropy = run.facts.get("unigram_entropy")
    return None if entropy is None else (1.0 - _same_fraction(run)) * float(entropy)


def _same_fraction(run: Record) -> float:
    """Of the predicted tokens, what masking leaves in place; none where every token is predicted."""
    token = (run.config.get("objective") or {}).get("token") or {}
    return float(token.get("same_fraction") or 0.0)


def _gaps(table: Table) -> tuple[list[str], list[str]]:
    """(a line for each row with missing runs, a line for each cell with collapsed ones)."""
    missing, collapsed = [], []
    for row in table.experiment.rows:
        gaps = []
        for column in (one for one in table.columns if one.task):
            cell = table.cells[row.name, column.key]
            if cell.missing and table.has_results(column):
                seeds = ", ".join(f"{first}/{second}" for first, second in cell.missing)
                which = f"pre-training/fine-tuning seed {seeds}" if cell.scores else "every seed"
                gaps.append(f"{column.heading} ({which})")
            if cell.num_collapsed and cell.estimate:
                # The spread of runs that have all collapsed measures nothing.
                mean = f"{cell.estimate.mean:.1f}" if cell.is_collapsed else percent(cell.estimate)
                without = percent(cell.without_collapsed) if cell.without_collapsed else "none left"
                collapsed.append(
                    f"{row.label} on {column.heading}: {cell.num_collapsed} of {len(cell.scores)} runs give one answer "
                    f"to every example; mean with them {mean}, without them {without}"
                )
        missing += [f"{row.label} on {'; '.join(gaps)}"] if gaps else []
    return missing, collapsed


def provenance(table: Table) -> list[tuple[str, str]]:
    """What the runs were made with: commands, commits, versions, machines, seeds, times."""
    runs = table.runs.runs
    times = sorted(one[:16].replace("T", " ") for run in runs for one in (run.started, run.finished) if one)
    made = [one for run in runs for one in run.earlier_sessions]
    made += [{"git": run.git and run.git.model_dump(), "versions": run.versions, "host": run.host} for run in runs]
    commits = []
    for git in (one.get("git") for one in made):
        changed = " with local changes" if git and git.get("dirty") else ""
        commits.append(f"{git['commit'][:12]}{changed}" if git else "not from a checkout")
    return [
        *(("Command", command) for command in commands(runs)),
        ("Commit", distinct(commits)),
        ("Versions", distinct(", ".join(map(" ".join, (one.get("versions") or {}).items())) for one in made)),
        ("Machine", distinct(_host(one.get("host") or {}) for one in made)),
        ("Seeds", seed_counts(table)),
        ("Runs", f"{times[0]} to {times[-1]} UTC" if times else DASH),
        ("Report", f"made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC from run folders alone"),
    ]


def commands(runs: Sequence[Record]) -> list[str]:
    """The sweeps that the runs were made by, with every value that some run has: a multirun over their overrides."""
    found: dict[tuple[str, str, str], dict[str, dict[str, None]]] = {}
    for run in runs:
        if run.config_name:
            place = run.config_dir.removeprefix(f"{run.started_in}/")
            said = found.setdefault((run.stage, place, run.config_name), {})
            for word in run.overrides:
                key, _, value = word.partition("=")
                said.setdefault(key, {})[value] = None
    lines = []
    for (stage, folder, name), said in found.items():
        words = ["clozelab", stage, *(["--config-dir", folder] if folder else [])]
        words += ["--config-name", name] if name != stage else []
        words += ["-m", *(f"{key}={','.join(values)}" for key, values in said.items())]
        lines.append(shlex.join(words))
    return lines


def _host(host: Mapping[str, Any]) -> str:
    gpus = f", {len(host['gpus'])} x {host['gpus'][0]}" if host.get("gpus") else ""
    return f"{host.get('cpu', 'unknown')}, {host.get('cores', '?')} cores{gpus}"


def seed_counts(table: Table) -> str:
    kinds = {"pre-training": table.pretrain_seeds, "fine-tuning": table.finetune_seeds}
    words = {kind: f"{kind} seed{'' if len(seeds) == 1 else 's'}" for kind, seeds in kinds.items()}
    return ", ".join(
        f"{len(seeds)} {words[kind]} ({', '.join(map(str, seeds))})" for kind, seeds in kinds.items() if seeds
    )
