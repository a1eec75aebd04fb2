"""What frozen weights save under the enhanced mask decoder, which runs the last layer again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.objectives.test_deberta_objectives import NUM, SLOTS, flops_of_step
from tests.objectives.test_hybrid import MASKING

from clozelab.corpus.instances import SegmentPairs
from clozelab.models.encoder import Encoder
from clozelab.models.trained import freeze, frozen_weights
from clozelab.objectives.emd import EnhancedMaskedLanguageModel
from clozelab.objectives.nsp import NextSentencePrediction
from clozelab.objectives.objective import Objective, build_models


@pytest.mark.parametrize("has_pair", [False, True])
@pytest.mark.parametrize(
    ("patterns", "most"),
    [
        (["layer.2."], 1.0),  # the last one, whose weights each run would train
        (["layer.0.", "layer.1.", "layer.2."], 1.0),
        # Keys and values below the decoder's queries need no gradient either: counted whole.
        ([""], 1.15),
    ],
)
def test_frozen_runs_are_left_out(
    tiny_config: Callable[..., Any], ids: Any, patterns: Sequence[str], most: float, has_pair: bool
) -> None:
    config = tiny_config(vocab_size=ids.vocab_size, num_hidden_layers=3)
    token = EnhancedMaskedLanguageModel(weight=1.0, **MASKING)
    pair = NextSentencePrediction(weight=1.0) if has_pair else None
    objective = Objective(input=SegmentPairs(0.5, "corpus"), token=token, pair=pair)
    encoder = Encoder(config)
    model = build_models(encoder, [objective])["encoder"]
    for name, weight in encoder.named_parameters():
        if any(pattern in name for pattern in patterns):
            freeze([weight])
    shape = (config, SLOTS, 5 / (NUM * SLOTS))
    left_out = token.frozen_flops_per_token(*shape, frozen_weights(encoder), has_pair)
    counted = (objective.flops_per_token(*shape) - left_out) * NUM * SLOTS
    ratio = counted / flops_of_step(model, has_pair)
    assert 0.98 < ratio < most + 0.02
