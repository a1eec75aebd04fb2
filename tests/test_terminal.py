"""The command line of the plain verbs, tables in a terminal and in a pipe, and what an unknown word
was meant to be.
"""

from __future__ import annotations

import pytest
from tests.screens import refuses, shows

from claims.text.did_you_mean import hint, nearest
from claims.text.terminal import Heading, fitting, make_console, make_table
from clozelab.terminal import Grammar, parse
from clozelab.text.did_you_mean import key_of

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


def test_an_empty_column_goes_first_and_folded_text_keeps_some_width() -> None:
    headings = [Heading("run"), Heading("why", drop=2), Heading("took", drop=1)]
    assert fitting(headings, [["one", "a reason", ""]], 18) == [0, 1]
    headings = [Heading("run"), Heading("beside", folds=True), Heading("started", drop=1)]
    assert fitting(headings, [["one", "most frequent label 40", "2026-11-22 19:40"]], 40) == [0, 1]


def test_a_heading_of_two_lines_is_as_wide_as_the_longer_one() -> None:
    headings = [Heading("seeds"), Heading("fine-tuning\nseeds"), Heading("took", drop=1)]
    assert fitting(headings, [["5", "3", "2 h"]], 30) == [0, 1, 2]


def test_names_are_cut_before_a_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    headings = [Heading(name) for name in ("row", "task", "status")]
    headings += [Heading("score", is_number=True)]
    rows = [["a_long_name_of_a_row", "held_out_text_of_many", "complete", "bits/char 1.234"]]
    console = make_console()
    console.print(make_table(headings, rows, console.width))
    out = capsys.readouterr().out
    shows(
        out, "row task status score", "a_long_… held_ou… complete bits/char 1.234"
    )  # the names alone are cut
    assert max(map(len, out.splitlines())) <= 50


def test_hydra_s_words_are_passed_on_as_they_are() -> None:
    words = ["~logger", "+seed=1", "objective/pair=none", "~task.data={a: 1}"]
    words += ["hydra/launcher=slurm"]
    grammar = Grammar(names=(0, 1), takes_overrides=True)
    args = parse("doctor", ["pretrain", *words], grammar)
    assert args.names == ["pretrain"] and args.overrides == words


@pytest.mark.parametrize("flag", ["-m", "--multirun"])
def test_a_sweep_s_command_line_may_be_given_as_it_is(flag: str) -> None:
    argv = ["pretrain", flag, "seed=1,2"]
    args = parse("plan", argv, Grammar(names=(1, 1), takes_overrides=True))
    assert (args.names, args.overrides) == (["pretrain"], ["seed=1,2"])
    with pytest.raises(ValueError, match=f"list has no option {flag}"):
        parse("list", argv, Grammar(names=(0, None), keys=["seed"]))


def test_an_option_has_one_value() -> None:
    """The last of two folders took the place of the first without a word."""
    words = ["pretrain", "--config-dir", "one", "--config-dir=two"]
    with refuses("plan: --config-dir is said twice"):
        parse("plan", words, Grammar(names=(1, 1), options=["config-dir"]))


def test_a_path_may_have_a_sign_in_it() -> None:
    grammar = Grammar(names=(1, 2), keys=["out"])
    args = parse("submit", ["glue", "runs/lr=1e-3", "out=there"], grammar)
    assert args.names == ["glue", "runs/lr=1e-3"] and args.values == {"out": "there"}
    with refuses("submit has no key 'ot'; did you mean 'out'?"):
        parse("submit", ["glue", "ot=there"], grammar)


@pytest.mark.parametrize("word", ["seed=1", "+seed=1", "++seed=1", "~seed"])
def test_the_key_of_a_word(word: str) -> None:
    assert key_of(word) == "seed"


NAMES = ["table5_pretraining_tasks", "table6_model_size", "mlm", "mlm_nsp", "ltr"]
NAMES += ["figure5_training_steps"]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("table5", "table5_pretraining_tasks"),  # the only one that begins so
        ("TABLE6_MODEL_SIZE", "table6_model_size"),
        ("MLM", "mlm"),  # mlm_nsp begins so too
        ("mlm_nps", "mlm_nsp"),
        ("table", None),  # two begin so
        ("fi", None),  # too short to say
        ("pretrain", None),
        ("", None),
    ],
)
def test_nearest(word: str, meant: str | None) -> None:
    assert nearest(word, NAMES) == meant


def test_cutoff_is_how_alike_it_must_be() -> None:
    assert (
        nearest("abcx", ["abcdef"]) == "abcdef" and nearest("abcx", ["abcdef"], cutoff=0.7) is None
    )


def test_hint_names_the_nearest_or_all_in_order() -> None:
    assert hint("figure5", NAMES) == "did you mean 'figure5_training_steps'?"
    assert hint("nothing", {"b", "a"}) == "there are a, b"
    assert hint("nothing", []) == "there are none"
    assert hint("x", ["b", "a"], prefix="--") == "there are --a, --b"
