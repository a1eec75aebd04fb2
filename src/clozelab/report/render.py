"""results.csv: every score of every run, one a line, from which each cell of the table can be computed again.

Pre-training runs first, then fine-tuning runs, each by folder; a run's headline score first, the others by name. A run
without a score (not complete) has one line without. docs/runs.md says how to compute a cell.

The report of an experiment at one scale: report.md, one self-contained report.html, plots and results.csv.

Reads run folders and the experiment's own files and nothing else, so it can be made again at any time, also while runs
are going on. What the pages say is in page.py, how they look in templates/.
"""

from __future__ import annotations

import base64
import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from clozelab.report.page import build_page
from clozelab.report.plots import STYLES, Picture, draw_curves, draw_table
from clozelab.report.point_plots import draw_lines, draw_sizes
from clozelab.runs.find import SHARE, AnyRun, Collected, FinetuneRun, PretrainRun, collect, unit_of
from clozelab.runs.record import NO_UNIT, PERCENT
from clozelab.verdicts.accounts import arm_labels, encoder_sizes, place, rows_by_size
from clozelab.verdicts.experiment import Experiment
from clozelab.verdicts.judging import Judgement, judge
from clozelab.verdicts.points import find_lines, find_races
from clozelab.verdicts.table import Table, build_table

PRETRAIN_HEADLINE = "validation/loss"
RESULT_FIELDS = (
    "experiment", "scale", "stage", "row", "arm", "task", "stand_in_for", "synthetic", "pretrain_seed", "seed",
    "learning_rate", "metric", "unit", "score", "is_headline", "column", "counts", "majority", "baseline", "examples",
    "collapsed", "status", "tokens", "tokens_per_second", "seconds", "commit", "local_changes", "fingerprint", "folder",
)  # fmt: skip
"""What each holds is in docs/runs.md."""


def write_results(path: Path, collected: Collected, table: Table, scale: str) -> None:
    """Write every run of an experiment at one scale, complete or not."""
    counting = _tuned_in_cells(table) | {run.dir for run in collected.pretrain if run.is_complete}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, RESULT_FIELDS, restval="", lineterminator="\n")
        writer.writeheader()
        for run in collected.runs:
            common = {"experiment": table.experiment.name, "scale": scale, "counts": run.dir in counting}
            world = collected.synthetic if isinstance(run, PretrainRun) else collected.world_of(run)
            common |= {"synthetic": world} | _common(run, collected)
            lines = _pretraining(run, table) if isinstance(run, PretrainRun) else _finetuning(run, table)
            for line in lines:
                writer.writerow({key: _shown(value) for key, value in (common | line).items()})


def _shown(value: Any) -> Any:
    """Ten digits: more of a score is the noise of its arithmetic."""
    return f"{value:.10g}" if isinstance(value, float) else "" if value is None else value


def _tuned_in_cells(table: Table) -> set[Path]:
    """Folders of the fine-tuning runs that cells are means over: complete, and at the learning rate the cell takes."""
    cells = [*table.cells.values()]
    cells += [part for cell in table.cells.values() for group in cell.groups for _, part in group]
    return {run.dir for cell in cells for run in cell.runs.values()}


def _common(run: AnyRun, collected: Collected) -> dict[str, Any]:
    config, git = run.state["config_resolved"], run.state.get("git") or {}
    optimizer = config.get("optimizer") or {}
    return {
        "stage": run.state["stage"],
        "learning_rate": config.get("learning_rate", optimizer.get("learning_rate")),
        "status": run.state["status"],
        "tokens": run.state.get("facts", {}).get("tokens"),
        "tokens_per_second": run.state.get("facts", {}).get("tokens_per_second"),
        "seconds": run.state.get("seconds"),
        "commit": git.get("commit"),
        "local_changes": git.get("dirty"),
        "fingerprint": run.state["fingerprint"],
        "folder": place(run, collected),
    }


def _pretraining(run: PretrainRun, table: Table) -> Iterator[dict[str, Any]]:
    """The facts of a pre-training run that are held-out figures, or that a column of the table shows."""
    shown = {one.metric: one.heading for one in table.columns if one.is_pretraining and not one.is_paper}
    known = [key for key in run.facts if key.startswith("validation/") or key in shown] if run.is_complete else []
    scores = {key: float(run.facts[key]) for key in known if isinstance(run.facts[key], int | float)}
    for line in _scores(scores, PRETRAIN_HEADLINE):
        metric = line.get("metric", "")
        unit = unit_of(metric).replace(PERCENT, SHARE) if metric.startswith("validation/") else NO_UNIT
        about = {"arm": run.arm, "pretrain_seed": run.seed, "unit": unit, "column": shown.get(metric)}
        yield line | about


def _finetuning(run: FinetuneRun, table: Table) -> Iterator[dict[str, Any]]:
    arms = {row.name: row.arm for row in table.experiment.rows}
    about = {
        "row": run.row,
        "arm": arms.get(run.row, run.state["config_resolved"].get("encoder_arm")),
        "task": run.task,
        "stand_in_for": run.stand_in_for,
        "pretrain_seed": run.pretrain_seed,
        "seed": run.seed,
        "examples": run.num_examples,
        "collapsed": run.collapsed if run.is_complete else None,
    }
    shown = {one.metric: one.heading for one in table.columns if one.task == run.task} if run.row in arms else {}
    for line in _scores(run.scores, run.metric):
        metric = line.get("metric", "")
        baselines = [scores[metric] for scores in run.baselines.values() if metric in scores]
        yield (
            line
            | about
            | {
                "unit": unit_of(metric) if metric else "",
                "column": shown.get(metric),
                "majority": run.majority if metric == run.metric else None,
                "baseline": max(baselines, default=None),
            }
        )


def _scores(scores: Mapping[str, float], headline: str) -> Iterator[dict[str, Any]]:
    """A line a score, or an empty one."""
    for metric in sorted(scores, key=lambda metric: (metric != headline, metric)):
        yield {"metric": metric, "score": scores[metric], "is_headline": metric == headline}
    if not scores:
        yield {}


@dataclass(frozen=True)
class Report:
    """What was written and what it says."""

    folder: Path
    table: Table
    judgements: list[Judgement]
    page: dict[str, Any]

    @property
    def html(self) -> Path:
        return self.folder / "report.html"


def write_report(experiment: Experiment, root: Path, folder: Path, *, scale: str) -> Report:
    """Collect the runs below `root`, judge them and write the report into `folder`.

    Raises:
        ValueError: there is no run at all.
    """
    collected = collect(root)
    if not collected.runs:
        raise ValueError(f"no run below {root}; `clozelab reproduce {experiment.name} scale={scale}` makes them")
    table = build_table(experiment, collected)
    judgements = judge(table)
    folder.mkdir(parents=True, exist_ok=True)
    page = build_page(experiment, collected, table, judgements, scale)
    page["plots"] = _plots(experiment, collected, table, folder)
    environment = Environment(
        loader=PackageLoader(__package__ or "", "templates"),
        autoescape=lambda name: bool(name and ".html" in name),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("report.md", "report.html"):
        text = environment.get_template(f"{name}.j2").render(page)
        (folder / name).write_text(text, encoding="utf-8")
    write_results(folder / "results.csv", collected, table, scale)
    return Report(folder, table, judgements, page)


def _plots(experiment: Experiment, collected: Collected, table: Table, folder: Path) -> dict[str, dict[str, str]]:
    """Write NAME.png and NAME.svg, and the same with -dark, of every plot there is data for.

    Returns name -> style -> the SVG as base64: sharp at any size, and smaller than the PNG.
    """
    lines = find_lines(experiment, collected)
    races = find_races(lines, table)
    rows, sizes = rows_by_size(experiment, collected), encoder_sizes(collected)
    draw: dict[str, Callable[[str], Picture | None]] = {
        "table": lambda style: draw_table(table, style),
        "points": lambda style: draw_lines(lines, races, table, style),
        "sizes": lambda style: draw_sizes(rows, sizes, table, style),
        "curves": lambda style: draw_curves(collected.pretrain, arm_labels(experiment), style),
    }
    plots: dict[str, dict[str, str]] = {}
    for name, style in product(draw, STYLES):
        picture = draw[name](style)
        if picture is not None:
            stem = name if style == "light" else f"{name}-{style}"
            (folder / f"{stem}.png").write_bytes(picture.png)
            (folder / f"{stem}.svg").write_bytes(picture.svg)
            plots.setdefault(name, {})[style] = base64.b64encode(picture.svg).decode()
    return plots
