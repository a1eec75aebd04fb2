"""Pre-trainings beside the published runs of their kind: on a screen, as a page, as a picture."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from claims.text.phrases import format_count
from claims.text.terminal import Heading
from clozelab.runs.find import find
from clozelab.runs.loss_bands import likely_causes, match_of, nearest, plateau_of
from clozelab.runs.record import Record
from clozelab.terminal import print_table, say

COLUMNS = ("tokens", "this run", "seeds", "expected", "")
NEAREST = 3  # kinds that are named where a run's own is not known


def sentences(run: Record) -> list[str]:
    """Say where a pre-training is, and where that is unusual, what may be the cause.

    The first sentence is the verdict.
    """
    from claims.report.page import paragraphs  # scipy takes a second
    from clozelab.report.page import templates

    if not run.curves.get("validation/loss"):
        return ["not known: it has no held-out loss yet"]
    match = match_of(run)
    near = [match] if match else nearest(run)[:NEAREST]
    plateau = plateau_of(run)
    causes = []
    if match is None or match.is_outside or plateau:
        causes = likely_causes(near[0])
    template = templates().get_template("curves.txt.j2")
    shown = {"run": run, "match": match, "near": near, "plateau": plateau, "causes": causes}
    return paragraphs(template.render(shown, count=format_count))


def reading_rows(run: Record) -> list[list[str]]:
    """A line for each evaluation that the band of a run's kind knows the tokens of."""
    match = match_of(run)
    rows = []
    for reading in match.readings if match else []:
        seeds = f"{min(reading.seeds):.2f} to {max(reading.seeds):.2f}"
        expected = f"{reading.low:.2f} to {reading.high:.2f}"
        tokens = format_count(reading.tokens)
        rows.append([tokens, f"{reading.loss:.2f}", seeds, expected, reading.verdict])
    return rows


def print_curve(run: Record) -> None:
    """Print a pre-training's evaluations as a table, and sentences below it."""
    say(f"{run.place}: {run.name}, seed {run.seeds}, {run.status}", style="bold")
    rows = reading_rows(run)
    if rows:
        print_table([Heading(name, is_number=True) for name in COLUMNS], rows)
    for sentence in sentences(run):
        say(sentence, wraps=True)


def print_outside(records: Iterable[Record]) -> None:
    """Print a line for each pre-training whose loss is outside of the band of its kind."""
    for run in records:
        match = match_of(run) if run.stage == "pretrain" and run.fingerprint else None
        if match and match.is_outside:
            say(f"{run.place}: {sentences(run)[0]}; see clozelab curves", "yellow", wraps=True)


def draw(root: Path, suffix: str) -> bytes:
    """A report's picture of curves, as .svg or .png, or an .html page with the words."""
    from claims.report.files import write_pictures
    from clozelab.report.page import templates
    from clozelab.report.plots import draw_curves
    from clozelab.results.adhoc import infer_table

    runs = find(root)
    with TemporaryDirectory() as folder:
        drawing = partial(draw_curves, infer_table(runs))
        plots = write_pictures({"curves": drawing}, Path(folder))
        if suffix != ".html":
            return (Path(folder) / f"curves{suffix}").read_bytes()
    views = [(run, reading_rows(run), sentences(run)) for run in runs.pretrain]
    page = templates().get_template("curves.html.j2")
    return page.render(root=root, views=views, columns=COLUMNS, plots=plots).encode()
