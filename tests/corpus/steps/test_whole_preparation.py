"""All steps in one preparation: exactly the planted documents go, for any shards and processes."""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.corpus.test_prepare import files_of

from clozelab.corpus.files import CorpusSource
from clozelab.corpus.preparation.pool import ShardPool
from clozelab.corpus.prepare import plan_corpus, prepare_corpus
from clozelab.corpus.steps.clean import Clean
from clozelab.corpus.steps.decontaminate import Decontaminate
from clozelab.corpus.steps.near_duplicates import NearDuplicates
from clozelab.corpus.steps.quality import Quality
from clozelab.corpus.steps.repeated_lines import RepeatedLines
from clozelab.corpus.steps.step import CorpusStep
from clozelab.corpus.steps.unicode import Unicode
from clozelab.corpus.tokenizer_settings import TokenizerSettings

NOTICE = "We use cookies to make this site better. Accept all or read more."
EXAMPLE = "In March the council said that a plan would close both bridges for a year of repairs."
SYLLABLES = ["".join(letters) for letters in product("bdfgklmnprst", "aeiou")]
WORDS = ["".join(syllables) for syllables in product(SYLLABLES, SYLLABLES)]
REASONS = {
    "13 words of mrpc.tsv": 5,
    "near duplicate of an earlier document": 20,
    "gopher_enough_stop_words": 6,
}
NUM_KEPT = 90


def sentence(generator: random.Random) -> str:
    words = generator.choices(WORDS, k=8)
    return f"The {words[0]} of {words[1]} and {' '.join(words[2:])} {generator.randrange(1000)}."


def documents() -> list[list[str]]:
    """Texts that stay; behind some of them one that goes, of each reason as REASONS say."""
    generator = random.Random(5)
    result = []
    for number in range(NUM_KEPT):
        text = [sentence(generator) for _ in range(12)]
        result.append(text)
        if number < 20:
            result.append([*text[:6], text[6].replace("The", "This", 1), *text[7:]])
        if number % 20 == 9:
            result.append([*text[:6:-1], EXAMPLE, *[sentence(generator) for _ in range(9)]])
        if number % 15 == 8:
            result.append([f"Home {word}." for word in generator.choices(WORDS, k=60)])
    return result


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "mrpc.tsv").write_text(f"label\ttext\n1\t{EXAMPLE}\n")
    rows = [json.dumps({"text": "\n".join([*lines, NOTICE])}) for lines in documents()]
    rows[0] = rows[0].replace("The ", "The\N{COMBINING ACUTE ACCENT} ", 1)
    (folder / "web.jsonl").write_text("\n".join(rows[:70]))
    (folder / "more.jsonl").write_text("\n".join(rows[70:]))
    return folder


def prepare(data: Path, cache: str, steps: list[CorpusStep], workers: int = 1) -> Path:
    plan = plan_corpus(
        name="web",
        sources=[CorpusSource("web", "web.jsonl"), CorpusSource("more", "more.jsonl")],
        data_dir=data,
        cache_dir=data.parent / cache,
        tokenizer=TokenizerSettings("wordpiece", lowercase=True, vocab_size=400),
        validation_fraction=0.1,
        steps=steps,
    )
    return prepare_corpus(plan, 1.0, partial(ShardPool, workers=workers)).folder


def all_steps(data: Path) -> list[CorpusStep]:
    pytest.importorskip("datatrove")
    return [
        Clean(),
        Unicode(),
        RepeatedLines(max_document_share=0.5),
        Quality(),
        NearDuplicates(),
        Decontaminate(["mrpc.tsv"], data_dir=data),
    ]


def manifest_of(prepared: Path) -> dict[str, Any]:
    return json.loads((prepared / "manifest.json").read_text())


def test_exactly_the_planted_documents_go(data: Path) -> None:
    manifest = manifest_of(prepare(data, "cache", all_steps(data)))
    assert len(documents()) == NUM_KEPT + sum(REASONS.values())
    assert manifest["counts"]["documents"] == NUM_KEPT
    dropped: Counter[str] = Counter()
    for facts in manifest["steps"]:
        for reason, numbers in facts["reasons"].items():
            dropped[reason] += numbers["dropped_documents"]
    assert +dropped == REASONS
    written = next(facts for facts in manifest["steps"] if facts["step"] == "unicode")
    assert written["reasons"]["written in NFC"]["changed_documents"] == 1
    repeated = next(facts for facts in manifest["steps"] if facts["step"] == "repeated_lines")
    assert repeated["reasons"]["repeated line"]["characters"] == len(documents()) * len(NOTICE)
    assert repeated["examples"]["repeated line"] == [NOTICE]


def test_small_shards_and_two_processes_make_the_same(data: Path) -> None:
    whole = files_of(prepare(data, "cache", all_steps(data)))
    with patch("clozelab.corpus.preparation.texts.SHARD_CHARACTERS", 5000):
        cut = prepare(data, "other", all_steps(data), workers=2)
    assert files_of(cut) == whole
