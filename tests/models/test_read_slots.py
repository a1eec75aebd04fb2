"""Where few states are read, the last layer goes on for them alone, and all else is the same.

Each architecture of conf/ reads a batch twice, with dropout and from one random state: whole, and
for some slots alone. The states there and every gradient are equal to rounding; the other states
are NaN, so that no loss can read them by mistake.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.composing import composed
from torch import Tensor

from clozelab.models import encoder as encoder_module
from clozelab.models.adaptation import LoRA, LowRank, adapt
from clozelab.models.attention import AttentionInputs
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Block, Encoder, PostNorm, SelfAttention, compile_encoder
from clozelab.models.layers import Linear, initialise_
from clozelab.text.paths import CONF_DIR

LENGTHS = [7, 12, 3, 12]
READ = [20, 0, 3, 14, 20]  # in any order, and one twice
ARCHITECTURES = sorted(path.stem for path in (CONF_DIR / "architecture").glob("*.yaml"))
# Two stacks of layers, or a dropout behind the last one: these go on for all slots.
READS_ALL = {"two_directions", "xlnet"}
SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
}


def encoder_of(name: str, **changes: Any) -> Encoder:
    """A small one of an architecture, with its own dropout, in training."""
    plain = composed("pretrain", [f"architecture={name}"]).values
    config = EncoderConfig(**(plain["model"] | plain["architecture"] | SIZES | changes))
    return Encoder(config, torch.Generator().manual_seed(0)).train()


def read(encoder: Encoder, arguments: Any, slots: list[int] | None) -> tuple[Tensor, list[Tensor]]:
    """The states [T, H], and the gradients of a loss on those of `READ`."""
    torch.manual_seed(3)
    encoder.zero_grad()
    wanted = None if slots is None else torch.tensor(slots)
    states = encoder(**arguments, read_slots=wanted).sequence_output
    weights = torch.linspace(-1.0, 1.0, states.shape[1])
    (states[READ] * weights).square().sum().backward()
    gradients = []
    for parameter in encoder.parameters():
        gradients.append(torch.zeros(()) if parameter.grad is None else parameter.grad.clone())
    return states.detach(), gradients


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_states_and_gradients_are_those_of_a_whole_reading(stream: Any, name: str) -> None:
    encoder = encoder_of(name)
    # A ragged stream, and equal rows.
    for arguments in (stream(LENGTHS), stream(LENGTHS, 14)):
        whole, gradients = read(encoder, arguments, None)
        states, narrow_gradients = read(encoder, arguments, READ)
        torch.testing.assert_close(states[READ], whole[READ], atol=1e-6, rtol=1e-5)
        for gradient, expected in zip(narrow_gradients, gradients, strict=True):
            torch.testing.assert_close(gradient, expected, atol=2e-5, rtol=1e-4)
        unread = [slot for slot in range(len(states)) if slot not in READ]
        assert bool(states[unread].isnan().all()) == (name not in READS_ALL)


def test_the_last_layer_goes_on_for_the_slots_alone(
    stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In rows of 14 slots, and where nearly all are read, or all layers, or it is compiled."""
    encoder = encoder_of("bert")
    rows = []
    forward = Linear.forward

    def count(self: Linear, x: Tensor) -> Tensor:
        if self is encoder.layer[-1].output.dense:
            rows.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(Linear, "forward", count)
    arguments = stream(LENGTHS, 14)
    nearly_all = torch.arange(46)
    for slots in (torch.tensor(READ), nearly_all, None):
        encoder(**arguments, read_slots=slots)
    encoder(**arguments, read_slots=torch.tensor(READ), output_hidden_states=True)
    # Four slots are rounded up to eight; all are 4 x 14.
    assert rows == [8, 56, 56, 56]
    monkeypatch.setattr(encoder_module, "READS_ALL_FROM", 1.0)
    encoder(**arguments, read_slots=nearly_all)
    assert rows[-1] == 46 + 2
    compile_encoder(encoder, dynamic=False, backend="eager")
    assert not encoder.can_read_some_slots


class AddsInput(PostNorm):
    """A layer of one's own, whose forward knows nothing of `read`."""

    def forward(
        self, hidden: Tensor, inputs: AttentionInputs, queries: Tensor | None = None
    ) -> Tensor:
        return super().forward(hidden, inputs._replace(read=None), queries) + hidden


class OwnBlock(Block):
    def __init__(self, config: EncoderConfig, layer_index: int) -> None:
        super().__init__()
        self.attention = SelfAttention(config, norm_last=True)

    def forward(self, hidden: Tensor, inputs: AttentionInputs) -> Tensor:
        return self.attention(hidden, hidden, inputs) + hidden


@pytest.mark.parametrize("lengths", [LENGTHS, [9, 7]])
def test_a_layer_of_ones_own_goes_on_for_all_slots(
    stream: Any, monkeypatch: pytest.MonkeyPatch, lengths: list[int]
) -> None:
    """Unless it says that it knows of them; then it must give as many states."""
    arguments = stream(lengths)
    # Of 16 slots ten are rounded up to all.
    slots = torch.arange(10)
    encoder = encoder_of("bert")
    encoder.layer[-1] = OwnBlock(encoder.config, 2)
    initialise_(encoder.layer[-1], 0.02)
    states = encoder(**arguments, read_slots=slots).sequence_output
    assert states.isfinite().all()
    encoder.layer[-1] = AddsInput(encoder.config, 2)
    initialise_(encoder.layer[-1], 0.02)
    if lengths == LENGTHS:
        with pytest.raises(ValueError, match=r"AddsInput.*40 states.*16 slots.*reads_some_slots"):
            encoder(**arguments, read_slots=slots)
    monkeypatch.setattr(AddsInput, "reads_some_slots", False)
    states = encoder(**arguments, read_slots=slots).sequence_output
    assert states.isfinite().all()


def test_whether_slots_are_chosen_computes_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A low-rank update is added to its weight each time that one looks at this."""
    encoder = encoder_of("bert")
    adapt(encoder, LoRA(rank=2, alpha=4, targets=["query"]), None, has_fresh_pooler=False)
    monkeypatch.setattr(LowRank, "forward", None)
    assert encoder.can_read_some_slots


def test_a_state_that_was_not_asked_for_shows(stream: Any) -> None:
    encoder = encoder_of("bert")
    states = encoder(**stream(LENGTHS), read_slots=torch.tensor(READ)).sequence_output
    assert states[READ].isfinite().all()
    assert states.sum().isnan()
