"""What `corpus.steps` lists: from words of a configuration to documents that stay."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.corpus.test_prepare import files_of
from tests.reference.corpora import CORPORA, jsonl, plain, prepare, rows
from tests.screens import refuses

from clozelab.addresses import PERMITTED
from clozelab.assembly.corpora import corpus_steps
from clozelab.corpus.preparation import texts
from clozelab.corpus.shards import further_steps
from clozelab.corpus.steps.clean import Clean
from clozelab.corpus.steps.near_duplicates import NearDuplicates
from clozelab.corpus.steps.repeated_lines import RepeatedLines
from clozelab.corpus.steps.step import Arrays, CorpusStep, Document, StepReport
from clozelab.launch.sweep import compose
from clozelab.runs.identity import identity_of

NOTICE = "We use cookies to make this site better."


class Shout(CorpusStep):
    """A step of somebody else's, whose only setting is a sign."""

    name = "shout"

    def __init__(self, sign: str = "!") -> None:
        self.sign = sign

    def apply(
        self, documents: Iterable[Document], table: Arrays, report: StepReport
    ) -> Iterator[Document]:
        for document in documents:
            yield replace(document, lines=[line.upper() + self.sign for line in document.lines])


class QuietClean(Clean):
    """A step of somebody else's that builds on one of ours, and says no name of its own."""

    def apply(
        self, documents: Iterable[Document], table: Arrays, report: StepReport
    ) -> Iterator[Document]:
        for document in super().apply(documents, table, report):
            yield replace(document, lines=[line for line in document.lines if line != NOTICE])


def write_notices(folder: Path) -> None:
    """A notice in every document, and near duplicates."""
    documents = rows(10, 60)
    copies = [text.replace("ka", "kaka", 1) for text in rows(10, 12)]
    texts = [f"{text}\n{NOTICE}" for text in [*documents, *copies]]
    (folder / "a.jsonl").write_text(jsonl(texts))
    (folder / "b.txt").write_text(plain(3, 40).replace("\n\n", f"\n{NOTICE}\n\n"))


def write_nothing(folder: Path) -> None:
    for name in ("a.jsonl", "b.txt"):
        (folder / name).write_text("")


def write_one_empty(folder: Path) -> None:
    write_notices(folder)
    (folder / "b.txt").write_text("\n\n")


NOTICES = replace(CORPORA["several"], write=write_notices, paths=["a.jsonl", "b.txt"])
STEPS = (Clean(), RepeatedLines(max_count=30), NearDuplicates(threshold=0.5), Shout())


def manifest_of(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_text())


def number_of(step: Any) -> int:
    """The documents that a step leaves."""
    return sum(kept["documents"] for kept in step["kept"].values())


def test_steps_with_tables_give_the_same_for_any_shards(tmp_path: Path) -> None:
    whole = prepare(NOTICES, tmp_path, steps=STEPS)
    with patch.object(texts, "SHARD_CHARACTERS", 15_000):
        other = prepare(NOTICES, tmp_path, cache="other", steps=STEPS, workers=2)
    assert files_of(other) == files_of(whole)


def test_files_without_text_are_refused_for_steps_with_tables(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the corpus has 0 usable documents"):
        prepare(replace(NOTICES, write=write_nothing), tmp_path, steps=STEPS)


def test_a_source_without_documents_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(replace(NOTICES, write=write_one_empty), tmp_path, steps=STEPS)
    messages = [record.getMessage() for record in caplog.records]
    named = [message for message in messages if "has no documents" in message]
    assert len(named) == 1 and named[0].startswith("source source1 ")


def test_the_manifest_says_what_each_step_did(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = manifest_of(prepare(NOTICES, tmp_path, steps=STEPS))
    steps = {step["step"]: step for step in manifest["steps"]}
    names = ["clean", "repeated_lines", "near_duplicates", "shout"]
    assert list(steps) == ["read", *names, "sentences", "duplicates"]
    assert steps["read"]["kept"]["source0"]["documents"] == 72
    lost = steps["repeated_lines"]["reasons"]["repeated line"]
    assert lost["changed_documents"] == 72 + 39
    assert lost["characters"] == len(NOTICE) * (72 + 39)
    near = steps["near_duplicates"]["reasons"]["near duplicate of an earlier document"]
    assert near["dropped_documents"] >= 12
    before, after = (number_of(steps[name]) for name in ("repeated_lines", "near_duplicates"))
    assert after == before - near["dropped_documents"]
    assert number_of(steps["shout"]) == after
    assert "one line has" not in caplog.text


def test_a_step_that_builds_on_one_of_ours_makes_a_corpus_of_its_own(tmp_path: Path) -> None:
    ours = prepare(NOTICES, tmp_path)
    quiet = prepare(NOTICES, tmp_path, steps=(QuietClean(),))
    assert quiet != ours
    assert manifest_of(ours)["repeated_lines"] and not manifest_of(quiet)["repeated_lines"]


def test_a_repeated_line_is_named_without_the_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for characters in (15_000, 16_000_000):
        caplog.clear()
        with patch.object(texts, "SHARD_CHARACTERS", characters):
            prepared = prepare(NOTICES, tmp_path, cache=str(characters))
        (repeated,) = manifest_of(prepared)["repeated_lines"]
        assert (repeated["line"], repeated["copies"]) == (NOTICE, 72 + 39)
        assert 0.02 < repeated["token_share"] < 0.4
        sentence = f"tokens: 111 x {NOTICE!r}; such lines are dropped by 'corpus.steps="
        assert sentence in caplog.text


CHINESE_NOTICE = "本网站使用甲乙丙丁戊己庚辛壬癸接受阅读更多内容"
BYTES = {"kind": "bytes", "vocab_size": 261, "lowercase": False, "add_prefix_space": False}


def write_chinese_notices(folder: Path) -> None:
    texts = [f"{text}\n{CHINESE_NOTICE}" for text in rows(10, 20)]
    texts += [f"Text {number} has plain words and no others." for number in range(2700)]
    (folder / "a.jsonl").write_text(jsonl(texts))


def test_a_repeated_line_of_few_characters_and_many_tokens_is_named(tmp_path: Path) -> None:
    """A character of Chinese is three bytes, and a token at least."""
    corpus = replace(NOTICES, write=write_chinese_notices, paths=["a.jsonl"], tokenizer=BYTES)
    manifest = manifest_of(prepare(corpus, tmp_path))
    (repeated,) = manifest["repeated_lines"]
    assert (repeated["line"], repeated["copies"]) == (CHINESE_NOTICE, 20)
    assert len(CHINESE_NOTICE) * 20 < 0.004 * manifest["counts"]["characters"]


SHORT_NOTICE = "Read more."


def write_short_notices(folder: Path) -> None:
    notice = f"\n{SHORT_NOTICE}" * 4
    texts = [f"Text {number} of several words.{notice}" for number in range(5)]
    (folder / "b.txt").write_text("\n\n".join(texts))


def test_the_steps_that_a_warning_names_drop_the_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also a short line, and one that has just so many copies."""
    corpus = replace(NOTICES, write=write_short_notices, paths=["b.txt"])
    (repeated,) = manifest_of(prepare(corpus, tmp_path))["repeated_lines"]
    assert repeated["line"] == SHORT_NOTICE and repeated["copies"] == 20
    steps = re.search(r"'corpus\.steps=(.*?)'", caplog.text)
    assert steps is not None
    config = compose("prepare", ["scale=own", f"corpus.steps={steps[1]}"]).config
    advised = tuple(corpus_steps(config.corpus.steps, "."))
    manifest = manifest_of(prepare(corpus, tmp_path, cache="advised", steps=advised))
    assert manifest["repeated_lines"] == []


def test_empty_documents_are_told_of(tmp_path: Path) -> None:
    """Though no character is lost with them."""

    def write(folder: Path) -> None:
        rows = [{"text": f"Text {number}."} for number in range(30)] + [{"text": ""}] * 3
        (folder / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    corpus = replace(NOTICES, write=write, paths=["a.jsonl"])
    manifest = manifest_of(prepare(corpus, tmp_path))
    step = next(step for step in manifest["steps"] if step["step"] == "clean")
    facts = {"dropped_documents": 3, "changed_documents": 0, "characters": 0}
    assert step["reasons"] == {"empty document": facts}
    assert step["examples"] == {}  # there is nothing to see


def test_other_steps_are_another_corpus(tmp_path: Path) -> None:
    plain_folder = prepare(NOTICES, tmp_path)
    lists: list[tuple[CorpusStep, ...]] = [
        (Clean(), Shout()),
        (Clean(), Shout("?")),
        (Shout(), Clean()),
        (Shout(),),
    ]
    folders = [prepare(NOTICES, tmp_path, steps=steps) for steps in lists]
    assert len({plain_folder, *folders}) == 5
    assert further_steps(manifest_of(plain_folder)["settings"]) == []
    names = [step["name"] for step in further_steps(manifest_of(folders[0])["settings"])]
    assert names == ["clean", "shout"]


# From words to steps


def test_steps_are_named_with_or_without_settings() -> None:
    clean, lines = corpus_steps(["clean", {"repeated_lines": {"max_count": 9}}], ".")
    assert isinstance(clean, Clean)
    assert isinstance(lines, RepeatedLines) and lines.max_count == 9
    assert isinstance(corpus_steps([{"clean": None}], ".")[0], Clean)


def test_a_step_of_a_permitted_package(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"_target_": "tests.corpus.test_corpus_steps.Shout", "sign": "?"}
    with refuses("is not allowed"):
        corpus_steps([node], ".")
    monkeypatch.setenv(PERMITTED, "tests")
    (step,) = corpus_steps([node], ".")
    assert isinstance(step, Shout) and step.sign == "?"


def test_a_step_of_ones_own_without_a_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_steps.py").write_text(
        "from clozelab.corpus.steps.step import CorpusStep\n"
        "class Nameless(CorpusStep):\n    def apply(self, documents, table, report): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(PERMITTED, "own_steps")
    with refuses("corpus.steps.0: own_steps.Nameless has no `name`, by which the corpus's report"):
        corpus_steps([{"_target_": "own_steps.Nameless"}], ".")


REFUSED: list[tuple[list[Any], str]] = [
    ([], "corpus.steps is empty: list at least one step, as corpus.steps=[clean]"),
    (["claen"], "corpus.steps.0: there is no 'claen'; did you mean 'clean'?"),
    (["clean", {"near_duplicates": {"treshold": 1}}], "did you mean 'threshold'?"),
    (["clean", 7], "corpus.steps.1 is 7: write a name, or {NAME: {KEY: VALUE}}"),
    ([{"clean": {}, "unicode": {}}], "write a name, or {NAME: {KEY: VALUE}}"),
    ([{"clean": 3}], "corpus.steps.0.clean is 3: write its settings as {KEY: VALUE}"),
    ([{"decontaminate": {"files": ["x"], "data_dir": "."}}], "the stage sets this itself"),
    ([{"near_duplicates": {"threshold": 3}}], "threshold=3 must be between 0.5 and 1"),
    ([{"near_duplicates": {"threshold": None}}], "threshold=None must be between 0.5 and 1"),
    ([{"repeated_lines": {"max_count": True}}], "max_count=True must be a whole number"),
]


@pytest.mark.parametrize(("entries", "sentence"), REFUSED)
def test_wrong_steps_are_refused(entries: list[Any], sentence: str) -> None:
    with refuses(sentence):
        corpus_steps(entries, ".")


def test_runs_of_before_are_known_and_other_steps_are_other_runs() -> None:
    """Cleaning alone is what there was before a corpus listed steps."""

    def identity(*steps: object) -> dict[str, Any]:
        return dict(identity_of({"corpus": {"name": "a", "steps": list(steps)}}))

    assert identity("clean") == dict(identity_of({"corpus": {"name": "a"}}))
    lists = [("clean",), ("clean", "unicode"), ("unicode",), ("unicode", "clean")]
    lists.append(("clean", "clean"))
    identities = [json.dumps(identity(*steps), sort_keys=True) for steps in lists]
    assert len(set(identities)) == len(lists)
