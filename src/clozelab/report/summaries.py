"""What the runs of an experiment learnt, cost and lack, and what they were made with: the report's
lists.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from operator import attrgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any

from clozelab.analysis.schema import Row
from clozelab.report import wording
from clozelab.report.inconsistencies import inconsistencies
from clozelab.results.table import ResultTable
from clozelab.runs.outcome import LEARNT_CONTEXT_NATS, context_free, same_fraction
from clozelab.runs.record import grouped
from clozelab.text.formatting import DASH, distinct, duration, listed, percent, rough

if TYPE_CHECKING:
    from clozelab.runs.record import Record

LEARNT_NSP_ACCURACY = 0.55
"""Of held-out pairs inside one source, both kinds counted alike; a few hundred pairs decide it to 2
%. Learnt means above it, and for all pairs above what asking for the sources alone gives."""
# parameters of encoders of one size differ by no larger factor: a head of one's own makes no other
SAME_SIZE = 1.02
# in labels of rows whose encoder has another size at a small scale
PAPER_SIZE = re.compile(r"L=\d+, H=\d+(, A=\d+)?")
SIZE_LETTERS = {"L": "num_hidden_layers", "H": "hidden_size", "A": "num_attention_heads"}


def arm_labels(table: ResultTable) -> dict[str, str]:
    """Arm -> label of the first row that uses it; its own name where that row is but one point of
    it, or missing.
    """
    points = {row for line in table.checkpoint_series for at, row in line.rows.items() if at < 1.0}
    labels: dict[str, str] = {}
    for row in table.experiment.rows:
        if row.arm is not None:
            labels.setdefault(row.arm, row.arm if row.name in points else row.label)
    trained = grouped(table.runs.pretrain)
    labels |= {arm: arm for arm in trained if arm not in labels}
    return {arm: label for arm, label in labels.items() if arm in trained}


def learnt(table: ResultTable) -> list[dict[str, str]]:
    """An entry an arm: how large its encoder is and what its finished runs reached on held-out
    text, as means.
    """
    entries = []
    for arm, label in arm_labels(table).items():
        runs, sizes = table.pretrain_runs.get(arm, []), []
        bounds = [
            (run.facts.get("validation/loss"), known)
            for run in runs
            if (known := run.facts.get("known_loss"))
        ]
        above = [loss - known["nats"] for loss, known in bounds if loss is not None]
        for run in runs:  # rows are named as in the paper, whatever the scale makes of them
            model, parameters = run.config["model"], run.facts.get("parameters")
            count = f", {rough(parameters)}" if parameters else ""
            sizes.append(f"L{model['num_hidden_layers']} H{model['hidden_size']}{count}")
        entries.append(
            {
                "label": label if label == arm else f"{label} ({arm})",
                "encoder": distinct(sizes),
                "rows": distinct(str(run.config["validation"]["seq_length"]) for run in runs),
                "loss": _mean(runs, "validation/loss", "{:.3f}"),
                "without_context": _mean(runs, context_free, "{:.3f}"),
                "bound": distinct(
                    f"{known['nats']:.2f} \u00b1 {known['standard_error']:.2f}"
                    for _, known in bounds
                ),
                "above": f"{fmean(above):.2f}" if above else DASH,
                "accuracy": _mean(runs, "validation/accuracy", "{:.1%}"),
                "nsp": _mean(runs, "validation/nsp_accuracy", "{:.1%}"),
                "nsp_rule": _mean(runs, "validation/nsp_source_rule", "{:.1%}"),
                "nsp_inside": _mean(runs, "validation/nsp_accuracy_one_source", "{:.1%}"),
            }
        )
    return entries


def encoder_sizes(table: ResultTable) -> dict[str, float]:
    """Arm -> parameters of its encoder, as a mean over the runs that know them."""
    sizes = {
        arm: _average(mine, "parameters") for arm, mine in grouped(table.runs.pretrain).items()
    }
    return {arm: size for arm, size in sizes.items() if size}


def with_own_sizes(table: ResultTable) -> ResultTable:
    """The table with our encoders' sizes in the labels of rows that the paper names after its
    own.
    """
    rows = list[Row]()
    for row in table.experiment.rows:
        runs = table.pretrain_runs.get(str(row.arm or row.delta.get("encoder_arm")), [])
        model = runs[0].config["model"] if runs else {}
        own = ", ".join(
            f"{letter}={model[key]}" for letter, key in SIZE_LETTERS.items() if key in model
        )
        label = PAPER_SIZE.sub(own, row.label) if own else row.label
        is_taken = any(label == one.label for one in rows)
        rows.append(
            row.model_copy(update={"label": f"{label} ({row.label})" if is_taken else label})
        )
    return table.with_rows(rows)


def rows_by_size(table: ResultTable) -> list[Row]:
    """The rows to compare by the size of their encoders: of points of one run the last; none where
    sizes are alike.
    """
    earlier = {row for line in table.checkpoint_series for row in list(line.rows.values())[:-1]}
    sizes = encoder_sizes(table)
    rows = [row for row in table.experiment.rows if row.arm in sizes and row.name not in earlier]
    known = [sizes[str(row.arm)] for row in rows]
    return rows if known and max(known) > SAME_SIZE * min(known) else []


def known_losses(table: ResultTable) -> list[dict[str, Any]]:
    """The bounds that a generated corpus knows for its models' losses, each of them once."""
    facts = [run.facts["known_loss"] for run in table.runs.pretrain if run.facts.get("known_loss")]
    different = {(one["reader"], f"{one['nats']:.2f}"): one for one in facts}
    return [known for _, known in sorted(different.items(), key=lambda one: one[0])]


def costs(table: ResultTable) -> list[dict[str, str]]:
    """One line an arm's pre-training, one line a row's fine-tuning, and the sum."""
    runs = table.runs
    trained, tuned = grouped(runs.pretrain), grouped(runs.finetune)
    lines = [(f"pre-training {label}", trained[arm]) for arm, label in arm_labels(table).items()]
    lines += [
        (f"fine-tuning {row.label}", tuned[row.name])
        for row in table.experiment.rows
        if row.name in tuned
    ]
    measured = grouped(runs.evaluate)
    lines += [
        (f"evaluation {row.label}", measured[row.name])
        for row in table.experiment.rows
        if row.name in measured
    ]
    entries = []
    for label, mine in [*lines, ("all", runs.runs)]:
        complete = [run for run in mine if run.is_complete]
        seconds = [run.seconds for run in mine if run.status != "running"]
        entries.append(
            {
                "label": label,
                "runs": f"{len(complete)} of {len(mine)}",
                "tokens": _mean(complete, "tokens"),
                "speed": _mean(complete, "tokens_per_second"),
                "mfu": _mean(complete, "mfu", "{:.0%}"),
                "time": duration(sum(seconds)) if seconds else DASH,
            }
        )
    entries[-1] |= dict.fromkeys(("tokens", "speed", "mfu"), "")
    return entries


def seed_seconds(rows: Iterable[str], tasks: Iterable[str], table: ResultTable) -> float | None:
    """What one more pre-training seed of some rows takes, as finished runs did; None where one has
    none to go by.
    """
    arms = dict.fromkeys(row.arm for row in table.experiment.rows if row.name in rows and row.arm)
    parts = [(table.pretrain_runs.get(arm, []), 1) for arm in arms]
    for row, task in product(rows, tasks):
        mine = table.runs_on(row, task)
        parts.append((mine, len({run.seed for run in mine})))
    means = [_average(runs, lambda run: run.seconds or None) for runs, _ in parts]
    if not means or None in means:
        return None
    work = sum((mean or 0.0) * count for mean, (_, count) in zip(means, parts, strict=True))
    return work / _side_by_side([run for runs, _ in parts for run in runs])


def _side_by_side(runs: Iterable[Record]) -> float:
    """How many of some runs went on at once, on average while any did."""
    read = datetime.fromisoformat
    busy, wall, latest = 0.0, 0.0, datetime.min.replace(tzinfo=UTC)
    for start, end in sorted(
        (read(one.started), read(one.finished)) for one in runs if one.finished
    ):
        busy += (end - start).total_seconds()
        wall += max(0.0, (end - max(start, latest)).total_seconds())
        latest = max(latest, end)
    return busy / wall if wall else 1.0


def _average(runs: Iterable[Record], key: str | Callable[[Record], Any]) -> float | None:
    """Of a fact, or of what `key` makes of a run, over the runs that know it."""
    found = [run.facts.get(key) if isinstance(key, str) else key(run) for run in runs]
    values = [float(one) for one in found if isinstance(one, int | float)]
    return sum(values) / len(values) if values else None


def _mean(runs: Iterable[Record], key: str | Callable[[Record], Any], shape: str = "") -> str:
    mean = _average(runs, key)
    return DASH if mean is None else shape.format(mean) if shape else rough(mean)


def problems(table: ResultTable) -> dict[str, list[str]]:
    """Heading -> lines, of what a reader has to know is not there or not well."""
    runs = table.runs
    strangers = {
        row: mine
        for row, mine in grouped([*runs.finetune, *runs.evaluate]).items()
        if row not in table.rows
    }
    missing, collapsed = _gaps(table)
    pending = [run for run in runs.runs if not run.is_complete]
    unreadable = [line.replace(f"{runs.root}/", "") for line in [*runs.damaged, *runs.lost]]
    left_out = []
    for row, mine in strangers.items():
        left_out.append(f"{len(mine)} runs of row {row}, which paper.yaml does not have")
    found: dict[str, Iterable[str]] = {
        "Another data set": [wording.excluded_runs(excluded) for excluded in table.excluded],
        "Another results version": [*wording.outdated_runs(table.outdated, runs.runs)],
        "Unequal": inconsistencies(table.experiment, runs),
        "Not learnt": [line for line, _ in not_learnt(table)],
        "Missing": missing,
        "Not complete": [
            f"{run.place} ({run.status}){': ' if run.problem else ''}{run.problem}"
            for run in pending
        ],
        "Collapsed": collapsed,
        "Below the floor": _below(table),
        "Left out": left_out,
        "Unreadable": unreadable,
    }
    return {heading: list(lines) for heading, lines in found.items() if lines}


def not_learnt(table: ResultTable) -> list[tuple[str, list[set[str]]]]:
    """(what has not taken hold, groups of arms): a claim that names an arm of each group cannot
    show.
    """
    lines, unlearnt, others = list[tuple[str, list[set[str]]]](), dict[str, str](), set[str]()
    for arm, label in arm_labels(table).items():
        runs, name = table.pretrain_runs.get(arm, []), label if label == arm else f"{label} ({arm})"
        keys = (
            f"validation/nsp_{key}" for key in ("accuracy", "source_rule", "accuracy_one_source")
        )
        accuracy, rule, one = (_average(runs, key) for key in keys)
        if accuracy is None:
            others.add(arm)
        elif rule is not None and (accuracy <= rule or (one or 1.0) < LEARNT_NSP_ACCURACY):
            inside = f"{one:.1%} of those" if one is not None else "there are none"
            unlearnt[arm] = (
                f"{name} {accuracy:.1%} (the sources alone tell {rule:.1%}; inside one source"
                f" {inside})"
            )
        loss, plateau = _average(runs, "validation/loss"), _average(runs, context_free)
        copied = (
            ", and copying what masking leaves in place" if any(map(same_fraction, runs)) else ""
        )
        is_generators = any("validation/rtd_loss" in run.facts for run in runs)
        if (
            loss is not None
            and plateau is not None
            and loss > plateau - LEARNT_CONTEXT_NATS
            and not is_generators
        ):
            said = (
                f"{name}: a held-out loss of {loss:.2f} nats, where {plateau:.2f} takes no context"
                f" (each token's frequency{copied}): its encoder has learnt next to nothing of"
                " context"
            )
            lines.append((said, [{arm}]))
    if unlearnt:
        length = table.pretrain_runs[next(iter(unlearnt))][0].config["validation"]["seq_length"]
        said = (
            f"Next-sentence prediction tells, of held-out pairs of {length} tokens:"
            f" {'; '.join(unlearnt.values())}. Unless longer pairs tell more"
            " (measure=pairs_follows), what it gives or costs cannot show at this budget"
        )
        lines.insert(0, (said, [{*unlearnt}, others]))
    return lines


def _below(table: ResultTable) -> list[str]:
    """Rows that lie below their own floor, and those that a method without any encoder beats."""
    cells = [(row, column) for column in table.with_results for row in table.rows]
    lines = [
        wording.below_floor(below)
        for row, column in cells
        if (below := table.below_floor(row, column))
    ]
    for column in (one for one in table.with_results if one.baseline):
        name, best = column.baseline or ("", 0.0)
        mine = (
            (row.label, table.cells[row.name, column.key].estimate)
            for row in table.experiment.rows
            if row.arm
        )
        less = [label for label, own in mine if own and own.mean < best]
        lines += (
            [f"{listed(less)} below the surface baseline of {column.heading} ({name}: {best:.1f})"]
            if less
            else []
        )
    return lines


def _gaps(table: ResultTable) -> tuple[list[str], list[str]]:
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
                    f"{row.label} on {column.heading}: {cell.num_collapsed} of {len(cell.scores)}"
                    f" runs give one answer to (nearly) every example; mean with them {mean},"
                    f" without them {without}"
                )
        missing += [f"{row.label} on {'; '.join(gaps)}"] if gaps else []
    return missing, collapsed


def provenance(table: ResultTable) -> list[tuple[str, str]]:
    """What the runs were made with: commands, commits, versions, machines, seeds, times."""
    runs = table.runs.runs
    times = sorted(
        one[:16].replace("T", " ") for run in runs for one in (run.started, run.finished) if one
    )
    made = [one for run in runs for one in run.earlier_sessions]
    made += [
        {"git": run.git and run.git.model_dump(), "versions": run.versions, "host": run.host}
        for run in runs
    ]
    named = grouped((run for run in runs if run.machine), attrgetter("machine"))
    machines = [f"{name} ({len(own)} runs)" for name, own in sorted(named.items())]
    commits = []
    for git in (one.get("git") for one in made):
        changed = " with local changes" if git and git.get("dirty") else ""
        commits.append(f"{git['commit'][:12]}{changed}" if git else "not from a checkout")
    return [
        *(("Command", command) for command in commands(runs)),
        ("Commit", distinct(commits)),
        (
            "Versions",
            distinct(", ".join(map(" ".join, (one.get("versions") or {}).items())) for one in made),
        ),
        ("Machine", distinct(_host(one.get("host") or {}) for one in made)),
        *([("Machines", listed(machines))] if len(machines) > 1 else []),
        ("Seeds", seed_counts(table)),
        ("Runs", f"{times[0]} to {times[-1]} UTC" if times else DASH),
        ("Report", f"made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC from run folders alone"),
    ]


def commands(runs: Sequence[Record]) -> list[str]:
    """The sweeps that the runs were made by, with every value that some run has: a multirun over
    their overrides.
    """
    places = grouped(
        (run for run in runs if run.config_name),
        lambda run: (run.stage, run.config_dir.removeprefix(f"{run.started_in}/"), run.config_name),
    )
    lines = []
    for (stage, folder, name), mine in places.items():
        said: dict[str, dict[str, None]] = {}
        for key, _, value in (word.partition("=") for run in mine for word in run.overrides):
            said.setdefault(key, {})[value] = None
        words = ["clozelab", stage, *(["--config-dir", folder] if folder else [])]
        words += [*(["--config-name", name] if name != stage else []), "-m"]
        lines.append(
            shlex.join([*words, *(f"{key}={','.join(values)}" for key, values in said.items())])
        )
    return lines


def _host(host: Mapping[str, Any]) -> str:
    gpus = f", {len(host['gpus'])} x {host['gpus'][0]}" if host.get("gpus") else ""
    return f"{host.get('cpu', 'unknown')}, {host.get('cores', '?')} cores{gpus}"


def seed_counts(table: ResultTable) -> str:
    found = []
    finetune_seeds = sorted({run.seed for run in table.runs.finetune if run.name in table.rows})
    for kind, seeds in (("pre-training", table.pretrain_seeds), ("fine-tuning", finetune_seeds)):
        found += (
            [f"{len(seeds)} {kind} seed{'s' * (len(seeds) > 1)} ({', '.join(map(str, seeds))})"]
            if seeds
            else []
        )
    return ", ".join(found)
