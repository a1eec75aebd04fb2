"""What ModernBERT alone has: test_families.py has its layers and heads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.numerics import members
from tests.numerics.members import case_of

from clozelab.models.config import EncoderConfig, ModuleSpec
from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder, save_encoder_folder
from clozelab.models.registry import family_for, family_of

transformers = pytest.importorskip("transformers")

CASE = case_of("modernbert")
SIZES = CASE.settings
WINDOW = SIZES["local_attention"]


@pytest.mark.parametrize("kernel", ["bmm", "sdpa"])
def test_padding_far_from_a_token_gives_no_nan(
    kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot that is further from all real tokens than a window sees itself alone."""
    monkeypatch.setattr("clozelab.models.attention._default_kernel", lambda _: kernel)
    encoder = members.build_pair(CASE, "Model", tmp_path).encoder.train()
    batch = members.make_batch(CASE, "rectangle")
    states = encoder(**batch.ours).sequence_output
    states[batch.rows].square().mean().backward()
    assert states.isfinite().all()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    # What stands on the padding changes nothing.
    ids = batch.ours["input_ids"]
    batch.ours["input_ids"] = torch.where(ids == 0, 9, ids)
    with torch.no_grad():
        other = encoder(**batch.ours).sequence_output[batch.rows]
    members.assert_equal(other, states[batch.rows], "other padding")


def test_an_old_and_a_new_config_are_one() -> None:
    new = members.their_config(CASE).to_dict()
    assert "layer_types" in new and "global_rope_theta" not in new
    old = {key: new[key] for key in new if key not in ("layer_types", "rope_parameters")}
    old |= {"global_attn_every_n_layers": 3, "global_rope_theta": 160_000.0}
    old |= {"local_rope_theta": 10_000.0, "reference_compile": None}
    family = family_of("modernbert")
    config = family.from_hf_config(new)
    assert family.from_hf_config(old) == config
    assert dict(config.attention.options) == {"window": WINDOW // 2, "global_every": 3}
    # null in an old file: the global layers' base.
    null = family.from_hf_config({**old, "local_rope_theta": None})
    assert dict(null.positions.options)["window_base"] == 160_000.0
    # As files of Ettin and mmBERT call rotary positions.
    assert family.from_hf_config({**new, "position_embedding_type": "sans_pos"}) == config
    with pytest.raises(ValueError, match="position_embedding_type is 'relative_key'"):
        family.from_hf_config({**new, "position_embedding_type": "relative_key"})


@pytest.mark.parametrize("num_layers", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("every", "first"), [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0), (3, 2), (5, 0)]
)
def test_a_pattern_is_read_as_it_was_written(num_layers, every, first):
    """Also where so few layers could be of another pattern: theirs names it, too."""
    if first >= num_layers:
        first = 0
    plain = family_of("modernbert").from_hf_config(SIZES | {"num_hidden_layers": num_layers})
    attention = {"_target_": "clozelab.models.attention.FullAttention"}
    if every != 1:
        attention = plain.attention.node() | {"global_every": every}
    if first:
        attention |= {"first_global": first}
    config = replace(plain, attention=ModuleSpec.from_node(attention, ""))
    written = family_for(config).to_hf_config(config)
    assert written["model_type"] == "modernbert"
    assert family_for(config).from_hf_config(json.loads(json.dumps(written))) == config
    hf = transformers.ModernBertConfig(**written)
    assert hf.layer_types == written["layer_types"]
    windows = [mask.window for mask in Encoder(config).masks]
    assert [window is None for window in windows] == [
        layer_type == "full_attention" for layer_type in hf.layer_types
    ]


def test_fresh_weights_are_the_release_s():
    """The deviation of every matrix beside theirs, each cut off at twice its scale."""
    sizes = SIZES | {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 8}
    sizes |= {"vocab_size": 2000, "initializer_range": 0.05}
    hf = transformers.ModernBertForSequenceClassification(transformers.ModernBertConfig(**sizes))
    config = family_of("modernbert").from_hf_config(sizes)
    encoder = Encoder(config)
    heads = {kind: family_for(config).head(kind, encoder) for kind in ("classification", "lm")}
    named = {}
    for module in (encoder, heads["classification"]):
        kind = "encoder" if module is encoder else "classification"
        for name, value in module.state_dict().items():
            named[family_for(config).file_names(f"{kind}.{name}")[0]] = value
    for name, expected in hf.state_dict().items():
        if expected.ndim == 2 and expected.numel() > 10_000:
            assert float(named[name].std()) == pytest.approx(float(expected.std()), rel=0.02), name
            largest = float(expected.abs().max())
            assert float(named[name].abs().max()) == pytest.approx(largest, rel=0.02), name
    dense = heads["lm"].transform.dense.weight
    assert float(dense.std()) == pytest.approx(float(hf.head.dense.weight.std()), rel=0.02)
    out_proj = heads["classification"].out_proj.weight
    assert float(out_proj.abs().max()) <= 2 * 256**-0.5 and float(out_proj.std()) > 0.04


def test_other_parts_are_written_as_no_modernbert(tmp_path):
    """With learned positions, types or a causal mask it is nothing that theirs would compute."""
    plain = family_of("modernbert").from_hf_config(SIZES)
    learned = ModuleSpec("clozelab.models.embeddings.LearnedPositions")
    for change in ({"positions": learned}, {"type_vocab_size": 2}, {"is_causal": True}):
        config: EncoderConfig = replace(plain, **change)
        save_encoder_folder(
            tmp_path / "ours", Encoder(config), heads={}, tokenizer_files={}, extra_config={}
        )
        with pytest.raises(ValueError, match="clozelab_modernbert"):
            transformers.AutoModel.from_pretrained(tmp_path / "ours")
        assert load_encoder(tmp_path / "ours").config == config
