"""Pre-trainings beside the published runs of their kind: on a screen, as a page, as a picture."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from claims.text.phrases import format_count
from clozelab.runs import loss_bands, outcome
from clozelab.runs.find import find
from clozelab.runs.record import Record
from clozelab.terminal import say


def sentences(run: Record) -> list[str]:
    """Say where a pre-training is, and where that is unusual, what may be the cause.

    The first sentence is the verdict.
    """
    from claims.report.page import paragraphs  # scipy takes a second
    from clozelab.report.page import templates

    if "validation/loss" not in run.curves:
        return ["not known: it has no held-out loss yet"]
    template = templates().get_template("curves.txt.j2")
    return paragraphs(
        template.render(run=run, bands=loss_bands, outcome=outcome, count=format_count)
    )


def print_curve(run: Record) -> None:
    """Print what there is to say of a pre-training."""
    say(f"{run.place}: {run.name}, seed {run.seeds}, {run.status}", style="bold")
    for sentence in sentences(run):
        say(sentence, wraps=True)


def print_outside(records: Iterable[Record]) -> None:
    """Print a line for each pre-training whose loss is outside of the band of its kind."""
    for run in records:
        match = loss_bands.match_of(run) if run.stage == "pretrain" and run.fingerprint else None
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
        if not plots:
            raise ValueError(f"{root}: no pre-training has a held-out loss yet")
        if suffix != ".html":
            return (Path(folder) / f"curves{suffix}").read_bytes()
    page = templates().get_template("curves.html.j2")
    return page.render(root=root, runs=runs.pretrain, sentences=sentences, plots=plots).encode()
