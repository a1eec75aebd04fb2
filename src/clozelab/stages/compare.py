"""`clozelab compare A B`: two run folders side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from clozelab.ledger.inventory import Record
from clozelab.ledger.lists import Heading, make_console, make_table, say
from clozelab.ledger.reporting import comparing
from clozelab.ledger.reporting.comparing import (
    evaluation_words,
    has_other_targets,
    has_other_text,
    main_curve,
    open_run,
    point_rows,
    score_rows,
    title,
    with_unit,
)
from clozelab.ledger.words import parse, wants_help

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
        from clozelab.ledger.reporting.plots import draw_two  # matplotlib takes a second

        curves = [(f"{letter} {title(record)}", main_curve(record)) for letter, record in (("A", one), ("B", two))]
        lines = [(label, [(tokens, value) for _, tokens, value in curve]) for label, (_, curve) in curves]
        Path(said.options["plot"]).write_bytes(draw_two(lines, with_unit(curves[0][1][0])))
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
    from clozelab.ledger.reporting.examples import describe, paired_test  # scipy takes half a second

    try:
        for line in describe(paired_test(one, two, data_dir)):
            say(console, line)
    except ValueError as error:
        say(console, f"no paired test: {error}", style="yellow")
