"""Same names, same numbers, one compilation a shape. The backends need no C++."""

from __future__ import annotations

import copy

import pytest
import torch

from clozelab.models.encoder import Encoder, compile_encoder
from clozelab.training.runtime import uncompiled

SLOTS = 12


class Counter:
    """A backend that compiles nothing and counts how often it is asked."""

    def __init__(self) -> None:
        self.compilations = self.calls = 0

    def __call__(self, graph, inputs):
        self.compilations += 1

        def run(*arguments):
            self.calls += 1
            return graph.forward(*arguments)

        return run


@pytest.fixture(autouse=True)
def _fresh_compiler():
    yield
    torch._dynamo.reset()


def _encoder(tiny_config, **changes):
    return Encoder(tiny_config(**changes), torch.Generator().manual_seed(0))


@pytest.mark.parametrize("whole", [False, True])
def test_names_stay_and_numbers_too(tiny_config, stream, whole):
    encoder = _encoder(tiny_config)
    plain = copy.deepcopy(encoder)
    names = list(encoder.state_dict())
    compile_encoder(encoder, dynamic=False, whole=whole, backend="aot_eager")
    assert list(encoder.state_dict()) == names
    for lengths in ([SLOTS] * 3, [SLOTS, 5, 2]):
        outputs = [model(**stream(lengths, SLOTS)).sequence_output for model in (encoder, plain)]
        torch.testing.assert_close(*outputs, atol=1e-6, rtol=0)
        for model, output in zip((encoder, plain), outputs, strict=True):
            model.zero_grad()
            output.square().mean().backward()
        for ours, theirs in zip(encoder.parameters(), plain.parameters(), strict=True):
            if theirs.grad is not None:
                torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("whole", "calls"), [(False, 4), (True, 2)])
def test_layers_share_a_compilation_and_other_lengths_ask_for_none(
    tiny_config, stream, whole, calls
):
    """Two are compiled: embeddings, and one layer or all."""
    encoder = _encoder(tiny_config, num_hidden_layers=3)
    backend = Counter()
    compile_encoder(encoder, dynamic=False, whole=whole, backend=backend)
    with torch.no_grad():
        for lengths in ([SLOTS, 4, 3], [SLOTS, 5, 2], [7, 7, 7], [1, 2, 3]):
            encoder(**stream(lengths, SLOTS))
            assert backend.compilations == 2
    assert backend.calls == 4 * calls, "nothing fell back to running uncompiled"


def test_evaluation_may_stay_uncompiled(tiny_config, stream):
    encoder = _encoder(tiny_config)
    backend = Counter()
    compile_encoder(encoder, dynamic=False, backend=backend)
    with torch.no_grad(), uncompiled():
        encoder(**stream([SLOTS] * 2, SLOTS))
    assert backend.calls == 0
    with torch.no_grad():
        encoder(**stream([SLOTS] * 2, SLOTS))
    assert backend.calls > 0


def test_ragged_batches_run_too(tiny_config, stream):
    encoder = _encoder(tiny_config).eval()
    plain = copy.deepcopy(encoder)
    compile_encoder(encoder, dynamic=True, backend="eager")
    for lengths in ([5, 9, 2, 7], [3, 3, 11]):
        with torch.no_grad():
            ours, theirs = (model(**stream(lengths)).sequence_output for model in (encoder, plain))
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_checkpointed_layers_give_the_same_gradients(tiny_config, stream, is_compiled):
    """Bit for bit, dropout included: it is drawn again from the saved generator state."""
    gradients = []
    for checkpointing in (False, True):
        encoder = _encoder(tiny_config, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
        encoder.gradient_checkpointing = checkpointing
        if is_compiled:
            compile_encoder(encoder, dynamic=False, backend="aot_eager")
        torch.manual_seed(3)
        encoder(**stream([SLOTS, 5, 2], SLOTS)).sequence_output.square().sum().backward()
        gradients.append([p.grad.clone() for p in encoder.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert len(gradients[0]) > 10
