"""Longer rows later: which steps grow, and that copied positions carry on what was learnt."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import WeightAveraging

from clozelab.models.config import EncoderConfig
from clozelab.models.embeddings import Embeddings
from clozelab.training.callbacks import PositionGrowth, check_position_growth, growth_steps


def phase(seq_length: int, steps: int) -> dict[str, int]:
    return {"seq_length": seq_length, "steps": steps, "global_batch_size": 1, "micro_batch_size": 1}


@pytest.mark.parametrize(
    ("lengths", "given", "expected"),
    [
        ([32], 0, {}),
        ([32, 64, 128], 0, {10: (32, 64), 20: (64, 128)}),
        # going back to a length that was trained is no growth
        ([128, 32, 128, 256], 0, {30: (128, 256)}),
        # nor is what given weights have trained
        ([32, 64, 128], 100, {20: (100, 128)}),
        # a first phase, too, may be longer than these
        ([64, 128], 32, {0: (32, 64), 10: (64, 128)}),
    ],
)
def test_growth_steps(lengths: list[int], given: int, expected: dict[int, tuple[int, int]]) -> None:
    assert growth_steps([phase(length, 10) for length in lengths], given) == expected


@pytest.fixture
def embeddings(tiny_config: Callable[..., EncoderConfig]) -> Embeddings:
    torch.manual_seed(0)
    embeddings = Embeddings(tiny_config(max_position_embeddings=12))
    # the encoder does this; memory as found may hold NaN
    torch.nn.init.normal_(embeddings.position_embeddings.weight)
    return embeddings


def test_new_positions_repeat_the_trained_ones_without_the_first(embeddings: Embeddings) -> None:
    before = embeddings.position_embeddings.weight.detach().clone()
    embeddings.tile_positions(4, 10)
    after = embeddings.position_embeddings.weight.detach()
    sources = [0, 1, 2, 3, 1, 2, 3, 1, 2, 3, 10, 11]
    torch.testing.assert_close(after, before[sources], rtol=0, atol=0)


def test_the_callback_grows_before_the_first_longer_step_and_at_no_other(
    embeddings: Embeddings,
) -> None:
    callback = PositionGrowth(growth_steps([phase(4, 3), phase(8, 2), phase(4, 2)]))
    # A generator beside the encoder; of two that share a table, it is copied twice.
    generator = deepcopy(embeddings)
    encoders = [SimpleNamespace(embeddings=one) for one in (embeddings, generator, generator)]
    module: Any = SimpleNamespace(model=SimpleNamespace(encoders=encoders))
    weight = embeddings.position_embeddings.weight
    averaged = deepcopy(module)
    average = WeightAveraging()
    average._average_model = SimpleNamespace(module=averaged)  # type: ignore[assignment]
    grown = []
    for step in range(7):
        before = weight.detach().clone()
        trainer: Any = SimpleNamespace(global_step=step, callbacks=[average, WeightAveraging()])
        callback.on_train_batch_start(trainer, module, None, step)
        if not torch.equal(weight, before):
            grown.append(step)
            assert torch.equal(weight[4:8], before[[1, 2, 3, 1]])
            assert torch.equal(weight[8:], before[8:])
    assert grown == [3]
    for one in (*encoders, *averaged.model.encoders):
        assert torch.equal(one.embeddings.position_embeddings.weight, weight), "so does an average"


def test_growth_that_cannot_be_is_refused(embeddings: Embeddings) -> None:
    with pytest.raises(ValueError, match="fsdp"):
        check_position_growth("tile", [phase(32, 10), phase(64, 10)], "fsdp")
    with pytest.raises(ValueError, match="fsdp"):
        check_position_growth("tile", [phase(64, 10)], "fsdp", given=32)
    with pytest.raises(ValueError, match="the model has 12"):
        embeddings.tile_positions(4, 13)
