"""What this room refuses, and the sentence that says so: a row a case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.calling import call_with_fixtures
from tests.objectives import test_hybrid, test_ltr_rtl, test_sop, test_units, test_weighted_sum

from clozelab.corpus.instances import FullSentences, SegmentPairs
from clozelab.models.encoder import Encoder
from clozelab.objectives.nsp import NextSentencePrediction
from clozelab.objectives.objective import Objective, build_models
from clozelab.objectives.sop import SentencePairs


def copies_are_all_in_one_epoch(make_mlm: test_weighted_sum.MakeMlm, wrong: Any) -> None:
    """Six ways to see the corpus: two copies of the released builder, each masked in three."""
    pairs = SegmentPairs(0.5, "corpus", cuts="released", copies=2)
    Objective(input=pairs, token=make_mlm(), pair=None, dupe_factor=wrong)


def misfits_are_refused(make_mlm: test_weighted_sum.MakeMlm) -> None:
    nsp = NextSentencePrediction(weight=1.0)
    Objective(input=FullSentences(), token=make_mlm(), pair=nsp)


def masked_in_two_directions(tiny_config: Any, make_mlm: test_weighted_sum.MakeMlm) -> None:
    encoder = Encoder(tiny_config(num_directions=2, is_causal=True))
    objective = Objective(input=FullSentences(), token=make_mlm(), pair=None)
    build_models(encoder, [objective])


def empty_units(tmp_path: Path) -> None:
    (tmp_path / "units.txt").write_text("\n \n")
    test_units.token_of(tmp_path / "units.txt")


def hybrid_with_next_sentences() -> None:
    Objective(
        input=SegmentPairs(0.5, "corpus"),
        token=test_hybrid.hybrid(0.25),
        pair=NextSentencePrediction(weight=1.0),
    )


REFUSALS: list[tuple[str, Callable[..., Any], type[Exception], str]] = [
    (
        "facts and errors",
        lambda make_mlm: make_mlm(0.8, 0.1, 0.2),
        ValueError,
        "sum to 1",
    ),
    (
        "two directions: a masked model copies what it is asked for",
        masked_in_two_directions,
        ValueError,
        "objective mlm would show each token to its own prediction",
    ),
    (
        "two directions: an encoder of one",
        lambda make_encoder: build_models(make_encoder(True), [test_ltr_rtl.OBJECTIVE]),
        ValueError,
        "say architecture=two_directions",
    ),
    (
        "units: no file",
        lambda tmp_path: test_units.token_of(tmp_path / "none.txt"),
        ValueError,
        "there is no file .*none.txt; give a text file with a phrase or a name a line",
    ),
    (
        "units: nothing in it",
        empty_units,
        ValueError,
        "has no unit: write one a line",
    ),
    (
        "hybrid: no such fraction",
        lambda: test_hybrid.hybrid(1.5),
        ValueError,
        r"causal_fraction is 1.5; it must lie in \[0, 1\]",
    ),
    (
        "hybrid: no such shift",
        lambda: test_hybrid.hybrid(0.5, shift=2),
        ValueError,
        "shift is 2",
    ),
    (
        "hybrid: a pair objective beside causal instances",
        hybrid_with_next_sentences,
        ValueError,
        "nsp cannot be learnt there",
    ),
    (
        "hybrid: too small a batch",
        lambda: test_hybrid.hybrid(1 / 16).check_batch(8),
        ValueError,
        "choose phases.global_batch_size of 16 or more",
    ),
    (
        "misfits are refused: choose objective/input=sentence_pairs",
        lambda make_mlm: Objective(
            input=SegmentPairs(0.0, "corpus"), token=make_mlm(), pair=test_sop.SOP
        ),
        ValueError,
        "choose objective/input=sentence_pairs",
    ),
    (
        "misfits are refused: choose objective/input=sentence_pairs 2",
        lambda make_mlm: Objective(input=FullSentences(), token=make_mlm(), pair=test_sop.SOP),
        ValueError,
        "choose objective/input=sentence_pairs",
    ),
    (
        "misfits are refused: no two sentences of a",
        lambda shards, ids: SentencePairs().bind(shards, ids, 8),
        ValueError,
        "no two sentences of a document fit into 8 tokens",
    ),
    (
        "copies are all in one epoch: dupe_factor is multiple",
        lambda make_mlm: copies_are_all_in_one_epoch(make_mlm, 3),
        ValueError,
        r"dupe_factor is .* multiple",
    ),
    (
        "copies are all in one epoch: dupe_factor is multiple 2",
        lambda make_mlm: copies_are_all_in_one_epoch(make_mlm, 0),
        ValueError,
        r"dupe_factor is .* multiple",
    ),
    (
        "copies are all in one epoch: dupe_factor is multiple 3",
        lambda make_mlm: copies_are_all_in_one_epoch(make_mlm, -2),
        ValueError,
        r"dupe_factor is .* multiple",
    ),
    (
        "misfits are refused",
        misfits_are_refused,
        ValueError,
        "needs segment pairs",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "sentence"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_refusal(
    request: pytest.FixtureRequest,
    call: Callable[..., Any],
    error: type[Exception],
    sentence: str,
) -> None:
    with pytest.raises(error, match=sentence):
        call_with_fixtures(call, request)
