"""Tables of the verbs about runs: what a terminal's width leaves out, and what a pipe is given."""

from __future__ import annotations

import pytest

from clozelab.terminal import Heading, make_console, make_table

HEADINGS = [Heading("kind"), Heading("why", drop=1), Heading("path", folds=True)]
ROW = ["leftovers", "temporary", "/" + "/".join(["folder"] * 60)]


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    console = make_console()
    console.print(make_table(HEADINGS, [ROW], console.width))
    return [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_a_row_is_one_line_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys)
    assert len(lines) == 3 and lines[-1].split() == ROW
    # Nothing is padded to the width of the console.
    assert max(map(len, lines)) < 2 * len(ROW[-1])


def test_a_terminal_folds_the_path_and_drops_what_matters_least(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = printed(capsys)
    assert len(lines) > 3 and max(map(len, lines)) <= 60 and "why" not in lines[0]
    assert "".join(line.split()[-1] for line in lines[2:]) == ROW[-1]
