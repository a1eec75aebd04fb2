"""DeBERTa's objectives against transformers' encoders in a plain loop, and their work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.objectives.test_hybrid import MASKING
from tests.screens import refuses
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from clozelab.corpus.instances import SegmentPairs
from clozelab.models.disentangled import EnhancedMaskDecoder
from clozelab.models.encoder import Encoder
from clozelab.models.families.deberta_v2 import FAMILY
from clozelab.models.folders import (
    load_encoder,
    load_head,
    read_tensors,
    save_encoder_folder,
    to_hf_tensors,
)
from clozelab.models.layers import DeltaEmbedding
from clozelab.models.layout import Layout
from clozelab.objectives.emd import EnhancedMaskedLanguageModel
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.nsp import NextSentencePrediction
from clozelab.objectives.objective import Objective, build_models, to_torch
from clozelab.objectives.rtd import ReplacedTokenDetection

transformers = pytest.importorskip("transformers")

SLOTS = 32
NUM = 7
DEBERTA: dict[str, Any] = {
    "model_type": "deberta-v2",
    "type_vocab_size": 0,
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "initializer_range": 0.3,
    "positions": {
        "_target_": "clozelab.models.disentangled.DisentangledPositions",
        "pos_att_type": "c2p|p2c",
        "position_buckets": 8,
        "max_relative_positions": -1,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
    },
    "pooler": {
        "_target_": "clozelab.models.encoder.ContextPooler",
        "dropout": 0.0,
        "hidden_act": "gelu",
        "head_dropout": None,
    },
}


def replaced_tokens(sharing: str) -> Objective:
    token = ReplacedTokenDetection(
        generator_width="1",
        generator_depth="1/2",
        generator_weight=1.0,
        embedding_sharing=sharing,
        weight=50.0,
        **MASKING,
    )
    return Objective(input=SegmentPairs(0.0, "corpus"), token=token, pair=None)


@pytest.fixture
def make(tiny_config: Callable[..., Any], ids: Any, shards: Any) -> Callable[..., Any]:
    """make(sharing): an objective, its models with random weights, and a batch."""

    def make_all(sharing: str) -> tuple[Objective, Any, dict[str, Any]]:
        torch.manual_seed(0)
        objective = replaced_tokens(sharing)
        encoder = Encoder(tiny_config(vocab_size=ids.vocab_size, **DEBERTA)).eval()
        models = build_models(encoder, [objective])
        index = np.arange(6, 6 + NUM)
        return (
            objective,
            models,
            objective.arrays(objective.input.bind(shards, ids, SLOTS), 1, 0, index),
        )

    return make_all


def theirs_of(model: Any, suffix: str) -> Any:
    """transformers' class with a model's weights."""
    encoder = model.encoder
    config = FAMILY.to_hf_config(encoder.config)
    theirs = getattr(transformers, f"DebertaV2{suffix}")(transformers.DebertaV2Config(**config))
    heads = {kind: head for kind, head in model.heads.items() if kind == "lm"}
    tensors = to_hf_tensors(encoder, heads, with_pooler=False)
    if suffix == "Model":
        tensors = {name.removeprefix("deberta."): value for name, value in tensors.items()}
    keys = theirs.load_state_dict(tensors, strict=False)
    assert not keys.unexpected_keys
    theirs.tie_weights()
    return theirs.eval()


def test_the_encoders_loss_does_not_reach_the_generators_embeddings(make):
    """A plain loop: detached embeddings plus a difference, the draw of rtd.py repeated."""
    objective, models, arrays = make("gdes")
    words = models["encoder"].encoder.embeddings.word_embeddings
    assert isinstance(words, DeltaEmbedding) and not words.weight.any()
    with torch.no_grad():
        words.weight.normal_(0.0, 0.1)
    generator = theirs_of(models["generator"], "ForMaskedLM")
    encoder = theirs_of(models["encoder"], "Model")
    delta = words.weight.detach().clone().requires_grad_()
    batch = to_torch(arrays)
    real = torch.arange(SLOTS) < batch["layout"].lengths[:, None]
    masked = batch["input_ids"].view(NUM, SLOTS)
    asked, labels = batch["prediction_positions"], batch["prediction_labels"]
    logits = generator(masked, real.long()).logits.flatten(0, 1)[asked]
    losses = [F.cross_entropy(logits, labels)]
    torch.manual_seed(5)
    below = logits.detach().double().softmax(-1).cumsum(-1) <= torch.rand(len(asked), 1)
    text = masked.flatten().clone()
    text[asked] = labels
    filled = text.clone()
    filled[asked] = below.sum(-1)
    table = generator.deberta.embeddings.word_embeddings.weight
    embedded = (table.detach() + delta)[filled.view(NUM, SLOTS)]
    states = encoder(inputs_embeds=embedded, attention_mask=real.long()).last_hidden_state[real]
    head = models["encoder"].heads["rtd"]
    is_new = (filled != text).view(NUM, SLOTS)[real].float()
    losses.append(F.binary_cross_entropy_with_logits(head(states), is_new))
    torch.manual_seed(5)
    means = [term.loss_sum / term.count for term in objective.terms(models, batch)]
    for mine, theirs in zip(means, losses, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    (means[0] + 50 * means[1]).backward()
    (losses[0] + 50 * losses[1]).backward()
    torch.testing.assert_close(words.weight.grad, delta.grad, atol=1e-4, rtol=1e-4)
    ours = models["generator"].encoder.embeddings.word_embeddings.weight.grad
    # Theirs trains no padding id.
    torch.testing.assert_close(ours[1:], table.grad[1:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("sharing", "reaches"), [("gdes", False), ("all", True)])
def test_with_plain_sharing_it_does(make, sharing, reaches):
    objective, models, arrays = make(sharing)
    torch.manual_seed(5)
    objective.terms(models, to_torch(arrays))[1].loss_sum.backward()
    gradient = models["generator"].encoder.embeddings.word_embeddings.weight.grad
    assert (gradient is not None and bool(gradient.any())) is reaches
    own = models["encoder"].encoder.embeddings.word_embeddings.weight.grad
    assert own.any()


def test_a_folder_has_the_sum(make, tmp_path):
    _, models, arrays = make("gdes")
    model = models["encoder"]
    words = model.encoder.embeddings.word_embeddings
    with torch.no_grad():
        words.weight.normal_()
    save_encoder_folder(
        tmp_path / "encoder",
        model.encoder,
        heads=dict(model.heads.items()),
        tokenizer_files={},
        extra_config={},
    )
    stored = load_file(tmp_path / "encoder" / "model.safetensors")
    source = models["generator"].encoder.embeddings.word_embeddings.weight
    expected = source + words.weight
    assert torch.equal(stored["deberta.embeddings.word_embeddings.weight"], expected)
    batch = to_torch(arrays)
    states: list[Tensor] = []
    for encoder in (model.encoder, load_encoder(tmp_path / "encoder").eval()):
        states.append(encoder.read(batch).sequence_output)
    torch.testing.assert_close(states[1], states[0], atol=1e-5, rtol=1e-5)
    loaded = transformers.AutoModel.from_pretrained(tmp_path / "encoder")
    assert torch.equal(loaded.embeddings.word_embeddings.weight, expected)


@pytest.mark.parametrize("in_input", [False, True])
def test_a_folder_keeps_the_decoders_positions_and_the_encoders_apart(
    tiny_config: Callable[..., Any], tmp_path: Path, in_input: bool
) -> None:
    positions = DEBERTA["positions"] | {"position_biased_input": in_input}
    encoder = Encoder(tiny_config(**DEBERTA | {"positions": positions}))
    head = EnhancedMaskDecoder(encoder)
    heads = {"lm": head}
    save_encoder_folder(tmp_path, encoder, heads=heads, tokenizer_files={}, extra_config={})
    loaded = load_encoder(tmp_path)
    again = FAMILY.head("lm", loaded, stored=read_tensors(tmp_path))
    load_head(tmp_path, "lm", again)
    ours: tuple[Any, ...] = (encoder, head)
    for module, found in zip(ours, (loaded, again), strict=True):
        state = found.state_dict()
        for name, value in module.state_dict().items():
            assert name.startswith("pooler.") or torch.equal(state[name], value), name


def test_what_does_not_go_together_is_refused(make, tiny_config, ids):
    encoder = Encoder(tiny_config(vocab_size=ids.vocab_size, **DEBERTA))
    mlm = MaskedLanguageModel(weight=1.0, **MASKING)
    other = Objective(input=SegmentPairs(0.0, "corpus"), token=mlm, pair=None)
    with refuses("objective.token.embedding_sharing=gdes cannot take turns with"):
        build_models(encoder, [other, replaced_tokens("gdes")])
    with refuses("objective.token.embedding_sharing is 'some'; choose all or gdes"):
        replaced_tokens("some")
    encoder = Encoder(encoder.config)
    narrow = ReplacedTokenDetection(
        generator_width="1/2", generator_weight=1.0, weight=50.0, **MASKING
    )
    with refuses("objective.token.embedding_sharing=all shares the table of"):
        narrow.build({"encoder": build_models(encoder, [other])["encoder"]})


def flops_of_step(model: Any, has_pair: bool) -> float:
    """By torch's counter: of a step that predicts five tokens."""
    stream = torch.arange(NUM * SLOTS)
    batch = {
        "input_ids": stream % model.encoder.config.vocab_size,
        "token_type_ids": stream % 2,
        "position_ids": stream % SLOTS,
        "prediction_positions": stream[:5],
        "layout": Layout.rectangle([SLOTS] * NUM, SLOTS),
    }
    with FlopCounterMode(display=False) as counter:
        output = model.states(batch["input_ids"], batch)
        loss = model.heads["lm"](model.predicted_states(output, batch)).square().sum()
        if has_pair:
            # Its head and pooler are below a thousandth of a real step, and left out.
            loss = loss + output.sequence_output.square().sum()
        loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("with_pair", [False, True])
def test_a_decoders_work_is_counted_as_torch_counts_a_step(tiny_config, ids, layers, with_pair):
    """Forward and backward of a whole step, with attention that has no products of its own beside
    the model's. What only a loss on pairs reads runs backward with one alone.
    """
    config = tiny_config(vocab_size=ids.vocab_size, num_hidden_layers=layers)
    token = EnhancedMaskedLanguageModel(weight=1.0, **MASKING)
    pair = NextSentencePrediction(weight=1.0) if with_pair else None
    objective = Objective(input=SegmentPairs(0.5, "corpus"), token=token, pair=pair)
    model = build_models(Encoder(config), [objective])["encoder"]
    counted = objective.flops_per_token(config, SLOTS, 5 / (NUM * SLOTS)) * NUM * SLOTS
    assert counted == pytest.approx(flops_of_step(model, with_pair), rel=1e-12)
