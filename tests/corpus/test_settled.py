"""What is settled of a corpus as a whole: the first of several copies, the split, the sample."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from clozelab.corpus.documents import hash_of
from clozelab.corpus.preparation.passes import held_out_sentences
from clozelab.corpus.preparation.settled import Settled, first_of_each, settle
from clozelab.corpus.preparation.shard_files import write_file
from clozelab.corpus.preparation.survey import (
    STRETCH_CHARACTERS,
    blocks_of,
    stretches,
    survey_documents,
)
from clozelab.corpus.steps.step import Arrays, Document


def make_documents(num_documents: int) -> list[Document]:
    result = []
    for index in range(num_documents):
        lines = [f"Document {index} sentence {n}." for n in range(40)]
        result.append(Document(0, index, 0, lines))
    return result


def settle_documents(
    folder: Path, documents: Sequence[Document], fraction: float = 0.1, sample: int = 10_000
) -> tuple[Settled, Arrays]:
    """What is settled of one shard of documents, and their survey."""
    survey = survey_documents(documents, learns=True)
    write_file(folder / "shard.npz", survey, {"tallies": [], "lines": {}})
    return settle([folder / "shard.npz"], fraction, sample), survey


def sampled(folder: Path, documents: Sequence[Document], characters: int) -> list[str]:
    settled, survey = settle_documents(folder, documents, sample=characters)
    blocks = list(chain.from_iterable(blocks_of(document.lines) for document in documents))
    chosen = survey["block_hash"] < settled.sample_limit
    return [block for block, is_chosen in zip(blocks, chosen, strict=True) if is_chosen]


def sides_of(
    folder: Path, documents: Sequence[Document], fraction: float
) -> dict[tuple[int, int], list[bool]]:
    """(source, number) of each document -> which of its sentences are held out."""
    settled, survey = settle_documents(folder, documents, fraction)
    is_held_out = held_out_sentences(settled, survey).tolist()
    sides = {}
    for document in documents:
        sides[document.source, document.index] = is_held_out[: len(document.lines)]
        del is_held_out[: len(document.lines)]
    return sides


def test_the_sample_is_bounded_and_does_not_depend_on_order(tmp_path: Path) -> None:
    documents = make_documents(100)
    samples = []
    for order in (documents, documents[::-1]):
        samples.append(sorted(sampled(tmp_path, order, 10_000)))
    assert samples[0] == samples[1]
    assert 2_000 < sum(map(len, samples[0])) <= 10_000


def test_the_sample_is_not_the_held_out_documents(tmp_path: Path) -> None:
    """Both take the lowest hashes: of one hash they would take the same documents."""
    documents = [Document(0, n, 0, [f"Document {n}."]) for n in range(4000)]
    taken = set(sampled(tmp_path, documents, 8_000))
    assert len(taken) > 200
    sides = sides_of(tmp_path, documents, 0.1)
    both = [document for document in documents if document.lines[0] in taken]
    assert 0.03 < sum(sides[0, document.index][0] for document in both) / len(taken) < 0.2


@pytest.mark.parametrize("seed", range(5))
def test_the_first_of_each_hash_is_kept(seed: int) -> None:
    hashes = np.random.default_rng(seed).integers(0, 40, 100).astype(np.uint64) + 2**63
    seen: set[int] = set()
    expected = []
    for value in hashes.tolist():
        expected.append(value not in seen)
        seen.add(value)
    assert first_of_each(hashes).tolist() == expected
    assert first_of_each(hashes[:0]).tolist() == []


@pytest.mark.parametrize(("fraction", "expected"), [(0.1, 20), (1e-9, 1), (1 - 1e-9, 199)])
def test_the_split_follows_the_hash_and_leaves_no_side_empty(
    tmp_path: Path, fraction: float, expected: int
) -> None:
    documents = make_documents(200)
    for order in (documents, documents[::-1]):
        sides = sides_of(tmp_path, order, fraction)
        assert all(len(set(side)) == 1 for side in sides.values()), (
            "short documents lie on one side"
        )
        held_out = {number for (_, number), side in sides.items() if side[0]}
        assert len(held_out) == expected
        lowest = sorted(documents, key=lambda one: hash_of("\n".join(one.lines)))[:expected]
        assert held_out == {one.index for one in lowest}


def make_book(source: int, number: int, characters: int) -> Document:
    name = f"Book {number} of source {source}"
    sentences = [f"{name} tells sentence {n} of many." for n in range(characters // 50)]
    return Document(0, number, source, sentences)


def test_stretches_are_even_bounded_and_whole_documents_where_those_are_short() -> None:
    document = make_book(0, 0, 100_000)
    found = stretches(document.lines)
    sizes = [characters for _, characters, _ in found]
    assert len(found) == -(-document.num_characters // STRETCH_CHARACTERS)
    assert max(sizes) - min(sizes) < 100 and max(sizes) <= STRETCH_CHARACTERS + 100
    assert sum(sizes) == document.num_characters and found[-1][0] == len(document.lines)
    first = 0
    for end, characters, stretch in found:
        part = document.lines[first:end]
        assert (sum(map(len, part)), hash_of("\n".join(part))) == (characters, stretch)
        first = end
    short = ["One sentence.", "And another."]
    assert stretches(short) == [(2, 25, hash_of("One sentence.\nAnd another."))]


def test_a_source_of_one_stretch_is_trained_on_unless_all_are(tmp_path: Path) -> None:
    single = [Document(0, 0, 0, ["Alone."]), Document(0, 1, 1, ["Alone too."])]
    many = [Document(0, n, 2, [f"One of many, {n}."]) for n in range(10)]
    sides = sides_of(tmp_path, [*single, *many], 0.3)
    assert sides[0, 0] == sides[1, 1] == [False]
    assert sum(sides[2, n][0] for n in range(10)) == 3
    assert sorted(sides_of(tmp_path, single, 0.3).values()) == [[False], [True]]


def test_a_stretch_lies_on_one_side_in_all_sources(tmp_path: Path) -> None:
    book = make_book(0, 0, 400_000)
    articles = [make_book(1, 100 + n, 3_000) for n in range(100)]
    excerpts: list[Document] = []
    start = 0
    for end, _, _ in stretches(book.lines):
        excerpts.append(Document(0, len(excerpts), 1, book.lines[start:end]))
        start = end
    sides = sides_of(tmp_path, [book, *excerpts, *articles], 0.3)
    of_excerpts = [sides[1, one.index] for one in excerpts]
    assert sides[0, 0] == list(chain.from_iterable(of_excerpts))
    assert len(set(sides[0, 0])) == 2


@pytest.mark.parametrize("other", ["Alone.", "One more."])
def test_a_text_that_repeats_itself_leaves_no_side_empty(tmp_path: Path, other: str) -> None:
    """Its stretches are all the same text, and lie on one side."""
    repeated = Document(0, 0, 0, ["The same line again. " * 800] * 5)
    sides = sides_of(tmp_path, [repeated, Document(0, 1, 0, [other])], 1e-9)
    assert {len(set(side)) for side in sides.values()} == {1}
    assert sides[0, 0][0] != sides[0, 1][0]
