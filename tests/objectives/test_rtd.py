"""Replaced-token detection against transformers' two halves of ELECTRA in a plain loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.plugins import HalfPrecision, Precision
from tests.objectives.test_hybrid import MASKING
from torch import Tensor
from torch.nn import functional as F

from clozelab.corpus.instances import SegmentPairs
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards
from clozelab.models.cost import trained_parameters
from clozelab.models.encoder import Encoder
from clozelab.models.folders import to_hf_tensors
from clozelab.models.layout import Layout
from clozelab.models.registry import family_of
from clozelab.objectives.objective import (
    EncoderWithHeads,
    Objective,
    build_models,
    to_torch,
)
from clozelab.objectives.rtd import ReplacedTokenDetection

SLOTS = 32
NUM = 7


@pytest.fixture
def objective() -> Objective:
    token = ReplacedTokenDetection(
        generator_width="1/2",
        generator_weight=1.0,
        weight=50.0,
        **MASKING | {"mask_fraction": 0.85, "random_fraction": 0.0, "same_fraction": 0.15},
    )
    return Objective(input=SegmentPairs(0.0, "corpus"), token=token, pair=None)


@pytest.fixture
def models(
    make_encoder: Callable[..., Encoder], objective: Objective
) -> dict[str, EncoderWithHeads]:
    sizes = {"hidden_size": 24, "embedding_size": 16, "num_attention_heads": 4}
    encoder = make_encoder(False, model_type="electra", pooler=None, **sizes)
    return build_models(encoder, [objective])


@pytest.fixture
def batch(objective: Objective, shards: TokenShards, ids: SpecialIds) -> dict[str, Any]:
    found = objective.arrays(objective.input.bind(shards, ids, SLOTS), 1, 0, np.arange(6, 6 + NUM))
    assert min(found["lengths"]) < SLOTS  # padding must count nowhere
    return found


def gradients(model: EncoderWithHeads) -> dict[str, Tensor]:
    """Under Hugging Face's names."""
    both = copy.deepcopy(model)
    for mine, original in zip(both.parameters(), model.parameters(), strict=True):
        mine.data = torch.zeros_like(original) if original.grad is None else original.grad.clone()
    return to_hf_tensors(both.encoder, dict(both.heads.items()))


def reference(
    models: dict[str, EncoderWithHeads], batch: dict[str, Any], seed: int
) -> tuple[Any, Any, list[Tensor]]:
    """transformers' generator and discriminator with these weights; both losses of a step."""
    from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

    halves = []
    for name, kind in (("generator", ElectraForMaskedLM), ("encoder", ElectraForPreTraining)):
        encoder = models[name].encoder
        config = family_of("electra").to_hf_config(encoder.config)
        half = kind(ElectraConfig(**config)).eval()
        missing = half.load_state_dict(
            to_hf_tensors(encoder, dict(models[name].heads.items())), strict=False
        )
        assert not missing.unexpected_keys
        assert set(missing.missing_keys) <= {"generator_lm_head.weight"}
        half.tie_weights()
        halves.append(half)
    generator, discriminator = halves
    discriminator.electra.embeddings = generator.electra.embeddings
    masked, types = (
        torch.from_numpy(batch[key]).view(NUM, SLOTS) for key in ("input_ids", "token_type_ids")
    )
    real = torch.arange(SLOTS) < torch.from_numpy(batch["lengths"])[:, None]
    asked, labels = (
        torch.from_numpy(batch[f"prediction_{key}"]) for key in ("positions", "labels")
    )
    logits = generator(masked, real.long(), types).logits.flatten(0, 1)[asked]
    losses = [F.cross_entropy(logits, labels)]
    torch.manual_seed(seed)
    text = masked.flatten().clone()
    text[asked] = labels
    filled = text.clone()
    below = logits.detach().double().softmax(-1).cumsum(-1) <= torch.rand(len(asked), 1)
    # the first word up to which the probabilities exceed the number drawn
    filled[asked] = below.sum(-1)
    found = discriminator(filled.view(NUM, SLOTS), real.long(), types).logits
    is_new = (filled != text).view(NUM, SLOTS).float()
    losses.append(F.binary_cross_entropy_with_logits(found[real], is_new[real]))
    return generator, discriminator, losses


def test_losses_and_gradients_are_those_of_a_plain_electra(
    objective: Objective, models: dict[str, EncoderWithHeads], batch: dict[str, Any]
) -> None:
    generator, discriminator, losses = reference(models, batch, 5)
    torch.manual_seed(5)
    terms = objective.terms(models, to_torch(batch))
    assert objective.weights == {"mlm": 1.0, "rtd": 50.0}
    assert [term.name for term in terms] == ["mlm", "rtd"]
    assert [term.count for term in terms] == [
        len(batch["prediction_labels"]),
        batch["lengths"].sum(),
    ]
    means = [term.loss_sum / term.count for term in terms]
    for mine, theirs in zip(means, losses, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    (means[0] + 50 * means[1]).backward()
    (losses[0] + 50 * losses[1]).backward()
    for name, half in (("generator", generator), ("encoder", discriminator)):
        theirs = dict(half.named_parameters())
        found = gradients(models[name])
        assert found.keys() == theirs.keys() - {"generator_lm_head.weight"}
        for key, value in found.items():
            torch.testing.assert_close(
                value, theirs[key].grad, atol=1e-4, rtol=1e-4, msg=f"{name} {key}"
            )


def test_embeddings_are_one_and_their_gradient_is_the_sum(
    objective: Objective, models: dict[str, EncoderWithHeads], batch: dict[str, Any]
) -> None:
    generator = models["generator"].encoder
    encoder = models["encoder"].encoder
    assert generator.embeddings is encoder.embeddings
    words = encoder.embeddings.word_embeddings.weight
    assert models["generator"].heads["lm"].word_embedding_weight is words
    whole = torch.nn.ModuleDict(models)
    assert sum(parameter is words for parameter in whole.parameters()) == 1
    assert trained_parameters(models) == sum(weight.numel() for weight in whole.parameters())
    assert generator.config.hidden_size == 12 and generator.embeddings_project is not None

    def gradient(*names: str) -> Tensor:
        whole.zero_grad()
        torch.manual_seed(5)
        sum(
            t.loss_sum for t in objective.terms(models, to_torch(batch)) if t.name in names
        ).backward()
        return words.grad.clone()

    one = gradient("mlm")
    other = gradient("rtd")
    assert one.abs().sum() > 0 and other.abs().sum() > 0
    torch.testing.assert_close(gradient("mlm", "rtd"), one + other, atol=1e-4, rtol=1e-4)


def test_what_is_drawn_and_reported(
    objective: Objective, models: dict[str, EncoderWithHeads], batch: dict[str, Any]
) -> None:
    token = objective.token
    torch_batch = to_torch(batch)
    hidden = token.generate(models, torch_batch)
    torch.manual_seed(5)
    filled, is_new = token.replace(models["generator"], hidden, torch_batch)
    text = torch_batch["input_ids"].index_copy(
        0, torch_batch["prediction_positions"], torch_batch["prediction_labels"]
    )
    assert torch.equal(is_new, filled != text)
    assert 0 < int(is_new.sum()) <= len(batch["prediction_labels"])
    assert set(is_new.nonzero()[:, 0].tolist()) <= set(batch["prediction_positions"].tolist())
    torch.manual_seed(5)
    term = objective.terms(models, torch_batch)[1]
    replaced = term.figures["rtd_replaced"]
    trivial = term.figures["rtd_trivial_accuracy"]
    assert int(replaced[0]) == int(is_new.sum())
    assert int(replaced[0] + trivial[0]) == term.count == trivial[1]
    # Words come by the generator's probabilities, and the same seed draws the same.
    torch.manual_seed(5)
    drawn = token.draw(models["generator"], hidden[:1].expand(20_000, -1))
    shares = torch.bincount(drawn, minlength=60) / 20_000
    wanted = models["generator"].heads["lm"](hidden[:1]).softmax(-1)[0]
    assert (shares - wanted).abs().max() < 4.5 * 0.5 / 20_000**0.5


def test_half_precision_draws_the_same_words(
    objective: Objective, models: dict[str, EncoderWithHeads], batch: dict[str, Any]
) -> None:
    """Under trainer.precision=bf16-true, random numbers would have 8 bits by default."""
    token = objective.token
    hidden = token.generate(models, to_torch(batch))[:1].expand(20_000, -1)
    draws = []
    for precision in (Precision(), HalfPrecision("bf16-true")):
        torch.manual_seed(5)
        with precision.forward_context():
            draws.append(token.draw(models["generator"], hidden))
    assert torch.equal(*draws)


@pytest.mark.parametrize("changes", [{"generator_width": "1/4"}, {"embedding_sharing": "gdes"}])
def test_phases_train_one_generator(
    make_encoder: Callable[..., Encoder], objective: Objective, changes: dict[str, Any]
) -> None:
    masking = MASKING | {"generator_weight": 1.0, "weight": 50.0}
    token = ReplacedTokenDetection(**masking | {"generator_width": "1/2"} | changes)
    other = Objective(input=objective.input, token=token, pair=None)
    encoder = make_encoder(False, model_type="electra", pooler=None, num_attention_heads=4)
    with pytest.raises(ValueError, match="phases train two kinds of generator"):
        build_models(encoder, [objective, other])


def test_both_models_are_counted(objective: Objective, models: dict[str, EncoderWithHeads]) -> None:
    """Against torch's counter on a whole step, with one more projection for the draw."""
    from torch.utils.flop_counter import FlopCounterMode

    config = models["encoder"].encoder.config
    generator = models["generator"].encoder.config
    with FlopCounterMode(display=False) as counter:
        for part, kind, positions in (("generator", "lm", 5), ("encoder", "rtd", SLOTS)):
            stream = torch.zeros(SLOTS, dtype=torch.int64)
            layout = Layout.rectangle([SLOTS], SLOTS)
            states = (
                models[part].encoder(stream, stream, torch.arange(SLOTS), layout).sequence_output
            )
            models[part].heads[kind](states[:positions])
    projection = 5 * 2 * (generator.hidden_size * 16 + 16 * generator.vocab_size)
    wanted = 3 * counter.get_total_flops() + projection
    found = objective.token.flops_per_token(config, SLOTS, 5 / SLOTS) * SLOTS
    assert found == pytest.approx(wanted, rel=1e-6)
