"""What frozen weights save under the enhanced mask decoder, which runs the last layer again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from clozelab.corpus.instances import SegmentPairs
from clozelab.models.encoder import Encoder
from clozelab.models.layout import Layout
from clozelab.models.trained import freeze, frozen_weights
from clozelab.objectives.emd import EnhancedMaskedLanguageModel
from clozelab.objectives.nsp import NextSentencePrediction
from clozelab.objectives.objective import Objective, build_models

MASKING: dict[str, Any] = {
    "predict_prob": 0.15,
    "mask_fraction": 0.8,
    "random_fraction": 0.1,
    "same_fraction": 0.1,
}
NUM, SLOTS = 7, 32


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
    stream = torch.arange(NUM * SLOTS)
    batch = {
        "input_ids": stream % ids.vocab_size,
        "token_type_ids": stream % 2,
        "position_ids": stream % SLOTS,
        "prediction_positions": stream[:5],
        "layout": Layout.rectangle([SLOTS] * NUM, SLOTS),
    }
    with FlopCounterMode(display=False) as counter:
        output = model.states(batch["input_ids"], batch)
        loss = model.heads["lm"](model.predicted_states(output, batch)).square().sum()
        if has_pair:
            loss = loss + output.sequence_output.square().sum()
        loss.backward()
    shape = (config, SLOTS, 5 / len(stream))
    left_out = token.frozen_flops_per_token(*shape, frozen_weights(encoder), has_pair)
    counted = (objective.flops_per_token(*shape) - left_out) * len(stream)
    ratio = counted / counter.get_total_flops()
    assert 0.98 < ratio < most + 0.02
