"""Two run folders side by side: what differs in their making, how they learnt, what they reached.

`clozelab compare A B`: two run folders side by side.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from clozelab.runs.find import open_folder
from clozelab.runs.fingerprint import flatten
from clozelab.runs.record import PERCENT, Record, Score
from clozelab.stages import compare as comparing
from clozelab.terminal import Heading, make_console, make_table, parse, say, wants_help
from clozelab.training.metrics_rows import read_rows
from clozelab.verdicts.wording import rough, signed

NONE = "(none)"
Curve = list[tuple[int, int, float]]
"""[(step, tokens, value)]."""


@dataclass(frozen=True)
class Point:
    """A held-out figure of both runs: at their ends, and at the last tokens that both have seen."""

    key: str
    ends: tuple[float, float]
    tokens: int | None
    """None where they have nothing in common."""
    common: tuple[float, float] | None


def open_run(path: str) -> Record:
    """The record of one run folder.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    folder = Path(path)
    if not (folder / "run.json").is_file():
        raise ValueError(f"{path} is no run folder (no run.json); `clozelab runs --csv` lists them")
    record = open_folder(folder, folder)
    if record.status == "damaged":
        raise ValueError(f"{path} is damaged: {record.problem}")
    return record


def config_differences(one: Record, two: Record) -> list[tuple[str, str, str]]:
    """(dotted key, there, here) of everything that the fingerprints are made of and that is not the same."""
    found = []
    for part, label in (("config", ""), ("inputs", "input "), ("results_version", "results_version")):
        found += _differing(*(flatten(record.model_dump()[part], label) for record in (one, two)))
    return [(key, _short(key, before), _short(key, after)) for key, before, after in found]


def making_differences(one: Record, two: Record) -> list[tuple[str, str, str]]:
    """What was the same by intention and may not be: versions, commit, machine, precision."""
    found = []
    for part in ("versions", "git", "host"):
        found += _differing(*(flatten(record.model_dump()[part] or {}, part) for record in (one, two)))
    precisions = [{"precision": record.facts.get("precision", NONE)} for record in (one, two)]
    return [(key, str(a), str(b)) for key, a, b in found + _differing(*precisions)]


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    keys = dict.fromkeys([*before, *after])
    pairs = [(key, before.get(key, NONE), after.get(key, NONE)) for key in keys]
    return [(key, old, new) for key, old, new in pairs if old != new]


def _short(key: str, value: Any) -> str:
    """Fingerprints are long, and their beginnings tell them apart."""
    text = str(value)
    return text[:12] if key.startswith("input ") and len(text) == 64 else text


def read_validation(record: Record) -> dict[str, Curve]:
    """Every held-out figure of a run, each in its unit."""
    curves: dict[str, Curve] = {}
    for row in read_rows(record.folder / "metrics.csv"):
        if row.key.startswith("validation/"):
            value = score_of(record, row.key).factor * row.value
            curves.setdefault(row.key, []).append((row.step, row.tokens, value))
    return curves


def score_of(record: Record, key: str) -> Score:
    """What a figure is, also one that was not declared (of one source of a corpus)."""
    are_shares = record.stage == "pretrain" or any(one.factor != 1.0 for one in record.scores.values())
    return record.scores.get(key) or Score.of(key, are_shares=are_shares)


def with_unit(record: Record, key: str) -> str:
    """`f1, percent`; a perplexity has its name alone."""
    return ", ".join(filter(None, (key.removeprefix("validation/"), score_of(record, key).unit)))


def points(one: Record, two: Record) -> list[Point]:
    """Every held-out figure that both runs have; none of runs of different stages, whose figures only share names."""
    if one.stage != two.stage:
        return []
    first, second = read_validation(one), read_validation(two)
    return [_point(key, first[key], second[key]) for key in first if key in second]


def _point(key: str, first: Curve, second: Curve) -> Point:
    """At the shorter run's end; the longer one's value there lies on the line between its evaluations around it."""
    limit = min(first[-1][1], second[-1][1])
    ends = first[-1][2], second[-1][2]
    if limit < max(first[0][1], second[0][1]):
        return Point(key, ends, None, None)
    there = [
        float(np.interp(limit, [at for _, at, _ in curve], [value for *_, value in curve])) for curve in (first, second)
    ]
    return Point(key, ends, limit, (there[0], there[1]))


def final_scores(one: Record, two: Record) -> list[tuple[str, float, float]]:
    """(score's key, first, second) of two complete fine-tuning runs, each in its unit; empty for others."""
    if any(record.stage != "finetune" or record.status != "complete" for record in (one, two)):
        return []
    return [(key, value, two.values[key]) for key, value in one.values.items() if key in two.values]


def point_rows(one: Record, two: Record) -> list[list[str]]:
    """`points` as a table's cells, each with its unit."""
    rows = []
    for point in points(one, two):
        decimals = 2 if score_of(one, point.key).unit == PERCENT else 4
        values = [f"{value:.{decimals}f}" for value in (*point.ends, *(point.common or ()))]
        common = [rough(point.tokens or 0), *values[2:]] if point.common else [""] * 3
        rows.append([with_unit(one, point.key), *values[:2], *common])
    return rows


def evaluation_words(one: Record, two: Record) -> str:
    """Which evaluation the two runs' scores are of; empty where there are none to compare."""
    if not final_scores(one, two):
        return ""
    steps = []
    for letter, record in (("A", one), ("B", two)):
        saved = json.loads((record.folder / "scores.json").read_text(encoding="utf-8"))
        total = f" of {saved['total_steps']}" if "total_steps" in saved else ""
        steps.append(f"{letter}: step {saved.get('best_step', NONE)}{total}")
    return (
        f"Scores are those of each run's best evaluation by {one.metric.removeprefix('validation/')} "
        f"({', '.join(steps)}), as in reports; held-out figures are those of the last one."
    )


def score_rows(one: Record, two: Record) -> list[list[str]]:
    """`final_scores` as a table's cells, each with its unit."""
    return [[with_unit(one, key), f"{a:.2f}", f"{b:.2f}", signed(b - a)] for key, a, b in final_scores(one, two)]


def has_other_text(one: Record, two: Record) -> bool:
    """Whether the runs read other data, so that what was held out differs as well."""
    inputs = [record.inputs for record in (one, two)]
    data = "task_files" if all("task_files" in one for one in inputs) else "task_data"
    return any(inputs[0].get(key) != inputs[1].get(key) for key in ("corpus", data))


def has_other_targets(one: Record, two: Record) -> bool:
    """Whether two pre-training runs predict tokens in different ways, so that a lower loss is no better one."""
    tokens = [record.config.get("objective", {}).get("token") for record in (one, two)]
    return one.stage == two.stage == "pretrain" and tokens[0] != tokens[1]


def main_curve(record: Record) -> tuple[str, Curve]:
    """(key, curve) that says most of a run: the loss of pre-training, the selecting score of fine-tuning.

    Raises:
        ValueError: the run has no held-out figure yet.
    """
    curves = read_validation(record)
    key = record.metric or "validation/loss"
    if key not in curves:
        raise ValueError(f"{record.folder} has no {key} in its metrics.csv to draw")
    return key, curves[key]


def title(record: Record) -> str:
    """What a run is, in a few words."""
    return " ".join(filter(None, (record.stage, record.name, record.task, f"seed {record.seeds}")))


HELP = """clozelab compare RUN RUN [data_dir=FOLDER] [--plot FILE]

Two run folders: the configuration and inputs that differ, held-out figures at the last evaluation and at equal tokens,
scores (of the best evaluation), and, for two fine-tuning runs on one task, a paired test on their common
examples: McNemar's exact test of right and wrong answers, a paired bootstrap for other scores. It is about these two
runs: another seed may differ more than they do.

  data_dir=FOLDER   where the task's files lie, should they have moved (SQuAD's right answers)
  --plot FILE       draw both held-out curves as PNG"""


def main(words: Sequence[str]) -> int:
    """Print the comparison; returns the exit status."""
    if wants_help(words, also_without_words=True):
        print(HELP)
        return 0
    said = parse("compare", words, names=(2, 2), keys=("data_dir",), options=("plot",))
    one, two = (open_run(name) for name in said.names)
    console = make_console()
    for letter, record in (("A", one), ("B", two)):
        say(console, f"{letter}  {title(record)}, {record.status}, {record.fingerprint[:12]}: {record.folder}")
    differing = {"configuration": comparing.config_differences, "made with": comparing.making_differences}
    for name, rows in ((name, differences(one, two)) for name, differences in differing.items()):
        if rows:
            console.print(
                make_table([Heading(name), Heading("A", folds=True), Heading("B", folds=True)], rows, console.width)
            )
        else:
            say(console, f"{name}: the same")
    show_figures(one, two, console)
    if one.stage == two.stage == "finetune":
        show_test(one, two, said.values.get("data_dir"), console)
    if "plot" in said.options:
        from clozelab.report.plots import draw_two  # matplotlib takes a second

        curves = [(f"{letter} {title(record)}", main_curve(record)) for letter, record in (("A", one), ("B", two))]
        lines = [(label, [(tokens, value) for _, tokens, value in curve]) for label, (_, curve) in curves]
        Path(said.options["plot"]).write_bytes(draw_two(lines, with_unit(one, curves[0][1][0])))
        say(console, f"Plot: {Path(said.options['plot']).resolve()}")
    return 0


def show_figures(one: Record, two: Record, console: Console) -> None:
    """Held-out figures at the end and at equal tokens, and the scores."""
    names = ("A, last", "B, last", "tokens", "A, there", "B, there")
    if rows := point_rows(one, two):
        console.print(
            make_table(
                [Heading("held out, last evaluation"), *(Heading(name, True) for name in names)], rows, console.width
            )
        )
    if one.stage == two.stage and has_other_text(one, two):
        say(console, "They were not evaluated on the same data: their figures cannot be compared.", style="yellow")
    if has_other_targets(one, two):
        say(console, "The objectives predict other tokens: their losses cannot be compared.", style="yellow")
    if rows := score_rows(one, two):
        headings = [Heading("score, best evaluation"), *(Heading(name, True) for name in ("A", "B", "B - A"))]
        console.print(make_table(headings, rows, console.width))
        say(console, evaluation_words(one, two), style="dim")


def show_test(one: Record, two: Record, data_dir: str | None, console: Console) -> None:
    """The paired test, or why there is none."""
    from clozelab.verdicts.examples import describe, paired_test  # scipy takes half a second

    try:
        for line in describe(paired_test(one, two, data_dir)):
            say(console, line)
    except ValueError as error:
        say(console, f"no paired test: {error}", style="yellow")
