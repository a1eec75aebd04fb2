"""`clozelab inspect`: a corpus in the terminal and as a page, whatever its text is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.corpus.test_prepare import make_text
from tests.screens import refuses, shows

import clozelab
from clozelab.cli import main
from clozelab.datamodules.inspection import (
    Histogram,
    Inspection,
    InstancePart,
    Segment,
    ShownDocument,
    ShownInstance,
)
from clozelab.report.inspection import print_inspection, render_page
from clozelab.stages import inspect

HOSTILE = "\x1b[31mred\x1b[0m <script>alert(1)</script> [bold]x[/bold] \u202eevil {{ 7 * 7 }}"
SETTINGS = ["phases.0.seq_length=32", "validation.seq_length=32", "tokenizer.vocab_size=150"]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A text of one's own, and where its corpus goes."""
    folder = tmp_path_factory.mktemp("inspect")
    hostile = "Some <script>alert(1)</script> and [bold]text[/bold] number {}.\n"
    lines = [hostile.format(number) + "It is about friends.\n" for number in range(40)]
    (folder / "text.txt").write_text(make_text(200) + "\n" + "\n".join(lines))
    return [f"text={folder / 'text.txt'}", f"cache_dir={folder / 'cache'}", *SETTINGS]


def shown(capsys: pytest.CaptureFixture[str], words: Sequence[str]) -> str:
    capsys.readouterr()
    assert inspect.main(words) == 0
    return capsys.readouterr().out


def test_a_text_is_prepared_and_shown(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    screen = shown(capsys, ["documents=2", "instances=4", "objective=mlm_nsp", *words])
    assert max(map(len, screen.splitlines())) <= 80
    shows(screen, "vocabulary: 150 entries", "tokens a sentence: mean", "sentences a document:")
    shows(screen, "[MASK]{label}: hidden, the label is predicted", "next_sentence_label")
    assert screen.count("\ninstance ") == 4
    assert screen.count("\ndocument ") == 2
    assert "\ninstance " not in shown(capsys, ["documents=0", "instances=0", *words])
    assert re.search(r"\[MASK\]\{[^}]+\}", screen)


def test_the_same_words_show_the_same(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    first = shown(capsys, words)
    assert shown(capsys, words) == first
    other = shown(capsys, [*words, "seed=2"])
    assert other != first
    # Another step of the same training.
    assert shown(capsys, [*words, "step=1"]) != first


def test_a_prepared_folder_is_taken_as_it_is(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = clozelab.prepare(*words[:2], words[-1])
    expected = shown(capsys, words)
    assert shown(capsys, [str(folder), *SETTINGS[:2]]) == expected
    screen = shown(capsys, [str(folder), *SETTINGS[:2], "document=5", "objective=ltr"])
    shows(screen, "document 5 of", "one-sided: the text is whole")
    for word, reason in (
        ("tokenizer=bytes", "is prepared already, so tokenizer=bytes cannot change it"),
        ("document=99999", "document=99999: the training split has documents 0 to"),
        ("step=10000000", "step=10000000: the training has steps 0 to"),
    ):
        with refuses(reason):
            inspect.main([str(folder), word, *SETTINGS[:2]])


def test_no_instance_is_shown_that_no_step_reads(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind a phase comes another, with other rows, or the end of the training."""
    sizes = "steps: 1, global_batch_size: 4, micro_batch_size: 4"
    phases = [f"{{seq_length: {length}, {sizes}}}" for length in (32, 64)]
    settings = [*words, f"phases=[{', '.join(phases)}]"]
    for step in (0, 1):
        screen = shown(capsys, [*settings, f"step={step}", "instances=9"])
        assert re.findall(r"instance (\d+);", screen) == ["0", "1", "2", "3"]


def test_a_page_has_no_markup_of_the_text(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    screen = shown(capsys, [*words, f"html={page}", "documents=200"])
    assert screen.strip() == str(page)
    content = page.read_text(encoding="utf-8")
    assert re.search("&lt; ?script ?&gt;", content)
    assert "<script" not in content
    assert not re.search(r"(?:src|href)=", content)
    assert 'class="masked"' in content


def hostile_inspection() -> Inspection:
    parts = [
        InstancePart("special", "[CLS]", "", " "),
        InstancePart("masked", "[MASK]", HOSTILE, " "),
        InstancePart("random", HOSTILE, "cat", ""),
        InstancePart("kept", "sat", "sat", " "),
        InstancePart("text", HOSTILE, "", " "),
    ]
    instance = ShownInstance(
        number=7,
        source=HOSTILE,
        num_tokens=24,
        num_slots=32,
        predictions={"masked": 1, "random": 1, "kept": 1},  # type: ignore[arg-type]
        pair="",
        segments=[Segment(0, parts)],
    )
    return Inspection(
        title="Corpus text",
        facts=["train: 1 document"],
        words={HOSTILE: {"words": 8, "tokens": 12, "unknown_words": 1}},
        histograms=[Histogram("tokens", {"1": 3}, 1.0, 1)],
        documents=[ShownDocument(3, HOSTILE, 9, 30, [HOSTILE])],
        phase="Training instances",
        instances=[instance],
    )


def test_hostile_text_is_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_inspection(hostile_inspection())
    screen = capsys.readouterr().out
    page = render_page(hostile_inspection()).decode()
    for content in (screen, page):
        assert "\x1b" not in content
        assert "\u202e" not in content
        assert "\\x1b[31mred\\x1b[0m" in content
        assert "\\u202eevil" in content
    assert "[bold]x[/bold]" in screen
    assert "{{ 7 * 7 }}" in page
    assert "<script" not in page


def test_marks_tell_the_kinds_apart_without_colours(capsys: pytest.CaptureFixture[str]) -> None:
    print_inspection(hostile_inspection())
    screen = " ".join(capsys.readouterr().out.split())
    shows(screen, "[CLS] [MASK]{", "{cat} =sat{sat}", "~\\x1b[31m")
    shows(screen, "24 of 32 slots (25% padding); predicted: 1 kept, 1 masked, 1 random")
    shows(screen, "1.50", "12.50%", "30 sentences, 9 tokens; the first 1:")


def test_colours_tell_the_kinds_apart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    print_inspection(hostile_inspection())
    screen = capsys.readouterr().out
    styles = set(re.findall(r"\x1b\[([\d;]+)m(?:\[MASK\]\{l|~token|=token)", screen))
    assert len(styles) == 3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["documents=x"], "documents=x: give a whole number from 0 on"),
        (["step=-1"], "step=-1: give a whole number from 0 on"),
        (["html=page.pdf"], "html=page.pdf: give a .html"),
        (
            ["document=3", "documents=2"],
            "document=3 shows one document, so documents=2 would change nothing: leave one out",
        ),
        (["."], "is no prepared corpus (it has no manifest.json)"),
    ],
)
def test_wrong_words(arguments: list[str], reason: str) -> None:
    with refuses(reason):
        inspect.main(arguments)


def test_a_wrong_key_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "objektive=mlm"]) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    shows(error, "objektive")
