"""Phrases and names of a file are masked whole or not at all, against a plain scan of the text."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.objectives.conftest import VOCAB_SIZE

from clozelab.corpus.instances import FullSentences
from clozelab.corpus.packing import SpecialIds, begin_words, inside_units
from clozelab.corpus.shards import TokenShards
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.objectives.mlm import MaskedLanguageModel

SLOTS = 48
TOKENIZER = WordPieceTokenizer(
    [*SPECIAL_TOKENS, *(f"w{i}" for i in range(VOCAB_SIZE - 5))], lowercase=True
)


def token_of(path: Path | None) -> MaskedLanguageModel:
    return MaskedLanguageModel(
        predict_prob=0.3,
        mask_fraction=1.0,
        random_fraction=0.0,
        same_fraction=0.0,
        weight=1.0,
        units=None if path is None else str(path),
    )


@pytest.fixture
def text(shards: TokenShards) -> Any:
    packed = (
        FullSentences()
        .bind(shards, SpecialIds.from_tokenizer(TOKENIZER), SLOTS)
        .pack(1, 0, np.arange(12))
    )
    assert (packed.input_ids[packed.special] < 5).all()
    return packed


@pytest.fixture
def units(tmp_path: Path, text: Any) -> tuple[Path, list[list[int]]]:
    """Eighty runs of two to four tokens that stand in the text, and one that does not."""
    rng = np.random.default_rng(0)
    runs = [[5, 5, 5, 5, 5]]
    for start in rng.integers(1, len(text.input_ids) - 4, 200).tolist():
        length = int(rng.integers(2, 5))
        if not text.special[start : start + length].any():
            runs.append(text.input_ids[start : start + length].tolist())
    runs = runs[:80]
    words = np.array(TOKENIZER.vocabulary)
    lines = [" ".join(words[run]) for run in runs]
    path = tmp_path / "units.txt"
    path.write_text("\n".join([lines[0].upper(), "", *lines[1:]]), encoding="utf-8")
    return path, runs


def plain_units(ids: list[int], runs: list[list[int]]) -> list[range]:
    """Where units stand: the longest first, of equal ones the first."""
    taken: set[int] = set()
    ranges = []
    for length in (5, 4, 3, 2):
        for start in range(len(ids) - length + 1):
            here = range(start, start + length)
            if ids[start : start + length] in runs and not taken & set(here):
                taken |= set(here)
                ranges.append(here)
    return ranges


def test_units_are_hidden_whole_or_not_at_all(
    text: Any, units: tuple[Path, list[list[int]]]
) -> None:
    path, runs = units
    ranges = plain_units(text.input_ids.tolist(), runs)
    assert len(ranges) > 40

    def torn(token: MaskedLanguageModel) -> tuple[int, int, np.ndarray]:
        """How many units are hidden in part, how many as a whole; and the predictions."""
        arrays = token.arrays(text)
        positions = set(arrays["prediction_positions"].tolist())
        shares = [len(positions & set(here)) / len(here) for here in ranges]
        whole = sum(share == 1 for share in shares)
        return sum(0 < share < 1 for share in shares), whole, arrays["prediction_positions"]

    num_torn, num_whole, positions = torn(token_of(path))
    assert num_torn == 0 and num_whole > 5
    assert torn(token_of(None))[0] > 5
    # The budget counts tokens: each instance has as many as without units, or a few less.
    number = np.bincount(positions // SLOTS, minlength=text.num_instances)
    budget = np.rint(0.3 * (~text.special).reshape(-1, SLOTS).sum(1))
    assert (number <= budget).all() and number.sum() > 0.95 * budget.sum()
    # What the batch of one instance hides is what that of all hides: nothing is carried over.
    again = torn(pickle.loads(pickle.dumps(token_of(path))))[2]
    assert np.array_equal(again, positions)


def test_where_units_stand_is_a_plain_scan(text: Any, units: tuple[Path, list[list[int]]]) -> None:
    path, runs = units
    is_continuation = np.zeros(len(text.input_ids), dtype=bool)
    for here in plain_units(text.input_ids.tolist(), runs):
        is_continuation[here.start + 1 : here.stop] = True
    begins = token_of(path).begins(text).reshape(-1)
    assert np.array_equal(begins, begin_words(text, None).reshape(-1) & ~is_continuation)
    assert inside_units(np.array([7]), {2: np.array([[7, 8]])}).tolist() == [False]


def test_another_worker_process_knows_the_units(text: Any, units: Any) -> None:
    mine = token_of(units[0]).arrays(pickle.loads(pickle.dumps(text)))
    theirs = token_of(units[0]).arrays(text)
    assert np.array_equal(mine["prediction_positions"], theirs["prediction_positions"])
    # A plan without a tokenizer masks tokens.
    unknown = replace(text, ids=replace(text.ids, encode=None))
    assert len(token_of(units[0]).arrays(unknown)["prediction_labels"])


def test_the_file_is_an_input_of_the_run(units: Any) -> None:
    assert token_of(units[0]).files() == {"units": units[0]}
    assert token_of(None).files() == {}


def test_a_file_without_units_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*none.txt; give a text file with a p"):
        token_of(tmp_path / "none.txt")
    (tmp_path / "units.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="has no unit: write one a line"):
        token_of(tmp_path / "units.txt")
