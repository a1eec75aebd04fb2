"""No key of a config.json is passed over in silence: with each key changed, one at a time, a folder
gives the numbers of transformers (1e-5), or is refused by our reader.

The keys are those of the installed transformers' own classes: a release that adds one fails here.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.numerics.test_modern_relatives import NEOBERT

from clozelab.models.config_keys import ABSENT, HARMLESS
from clozelab.models.encoder import Encoder
from clozelab.models.folders import read_config
from clozelab.models.registry import family_of

transformers = pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import config_keys  # noqa: E402

sys.path.pop(0)
FAMILIES = sorted({subject.model_type for subject in config_keys.SUBJECTS.values()})
# Changes that need not be refused, and give other numbers, in every family that has the key: so a
# key that is read is told from one that is passed over.
TELLING = ("layer_norm_eps", "norm_eps", "rms_norm_eps", "num_attention_heads", "n_heads", "n_head")


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_key_of_the_class_is_known(model_type: str) -> None:
    config = transformers.CONFIG_MAPPING[model_type]()
    names = {*config.to_dict(), *type(config).__dataclass_fields__}
    public = {name for name in names if not name.startswith("_")}
    # Class attributes, which are never written.
    public -= {name for name in public if name.startswith(("base_", "extra_", "sub_configs"))}
    public.discard("attribute_map")
    unknown = family_of(model_type).unknown_keys(dict.fromkeys(public, 1))
    assert unknown == (), f"transformers' {type(config).__name__} has keys that no table here has"
    assert family_of(model_type).unknown_keys({"ours": 1, "empty": None}) == ("ours",)


def test_every_key_of_generation_is_known() -> None:
    """transformers takes them out of a configuration."""
    names = transformers.GenerationConfig._get_default_generation_params()
    assert set(names) <= HARMLESS


@pytest.mark.parametrize("model_type", FAMILIES)
def test_what_a_missing_key_means_is_the_classs_default(model_type: str) -> None:
    family = family_of(model_type)
    theirs = transformers.CONFIG_MAPPING[model_type]().to_dict()
    ours = {**ABSENT, **family.defaults, **family.fixed}
    for key in ours.keys() & theirs.keys():
        # `None`, `{}` and `False` all say that a feature is absent.
        assert theirs[key] == ours[key] or not (theirs[key] or ours[key]), key


EVERY_CLASS = [False, pytest.param(True, marks=pytest.mark.slow)]


@pytest.mark.parametrize("every_class", EVERY_CLASS, ids=["where_it_matters", "everywhere"])
@pytest.mark.parametrize("name", list(config_keys.SUBJECTS))
def test_a_changed_key_is_read_or_refused(name: str, every_class: bool) -> None:
    """In each run of the suite, a change of the encoder in its language model, one of a head in all
    classes, and keys that no family reads in BERT. What our configuration shows to be read is
    compared with transformers in every seventh family that has the key. `slow` builds all classes
    with every change.
    """
    with config_keys.quiet():
        outcomes = config_keys.outcomes(name, every_class)
    ends: dict[str, list[Any]] = {"equal": [], "refused": [], "impossible": [], "read": []}
    for outcome in outcomes:
        assert outcome.end != "different", outcome
        ends[outcome.end].append(outcome.key)
    assert {*ends["equal"], *ends["read"]} & set(TELLING)
    assert "quantization_config" in ends["refused"]
    # Each sentence names the key, one that contradicts it, or the tensor that it adds or removes.
    family = family_of(config_keys.SUBJECTS[name].model_type)
    spellings = {own: bert for bert, own in family.renamed.items()}
    for outcome in outcomes:
        if outcome.end == "refused":
            names = [outcome.key, spellings.get(outcome.key, outcome.key)]
            names += ["tensor", "rope_type", "num_key_value_heads"]
            assert any(word in outcome.sentence for word in names), outcome


def test_a_key_that_nobody_knows_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = config_keys.SUBJECTS["BERT"].settings
    config = {"model_type": "bert", **sizes, "layer_scale": 0.1, "my_notes": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with caplog.at_level(logging.WARNING):
        read_config(tmp_path)
        read_config(tmp_path)
    (record,) = caplog.records
    assert "reads layer_scale; if code" in record.getMessage()


ODD_LAYERS = ["sliding_attention", *["full_attention"] * 3]
STRETCHED = {"full_attention": {"rope_type": "linear", "rope_theta": 1e4}}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("BERT", {"auto_map": {"AutoModel": "modeling.MyBert"}}, "cannot be read here: code of"),
        ("BERT", {"quantization_config": {"load_in_8bit": True}}, "float32 first"),
        ("BERT", {"adapters": {"adapters": {"a": "x"}}}, "merge its adapters"),
        ("BERT", {"position_embedding_type": None}, "embedding_type is None, and only 'absolute'"),
        ("BERT", {"tie_encoder_decoder": True}, "tie_encoder_decoder is True"),
        ("BERT", {"add_cross_attention": True}, "add_cross_attention is True, and only False"),
        ("BERT", {"directionality": "left"}, "only 'bidi'"),
        ("BERT", {"hidden_act": "tanh"}, ": model.hidden_act is 'tanh'; choose one of gelu,"),
        ("RoBERTa", {"vocab_size": None}, "lacks vocab_size: not a complete ROBERTA"),
        ("DistilBERT", {"activation": "tanh"}, ": activation is 'tanh'; choose one of gelu,"),
        ("DistilBERT", {"num_attention_heads": 4}, "num_attention_heads is 4 and n_heads is 2"),
        ("XLNet", {"ff_activation": "tanh"}, ": ff_activation is 'tanh'; choose one of gelu,"),
        ("XLNet", {"hidden_size": 8}, "hidden_size is 8 and d_model is 16"),
        ("XLNet", {"attn_type": "uni"}, "attn_type is 'uni', and only"),
        ("XLNet", {"bi_data": True}, "bi_data is True, and only"),
        ("XLNet", {"clamp_len": 8}, "clamp_len is 8, and only"),
        ("XLNet", {"summary_type": "first"}, "summary_type is 'first', and only"),
        ("XLNet", {"d_head": 4}, "d_head is 4, and only"),
        ("ModernBERT", {"attention_bias": True}, "attention_bias, mlp_bias, classifier_bias diff"),
        ("ModernBERT", {"decoder_bias": False}, "decoder_bias is False, and only True"),
        ("ModernBERT", {"classifier_activation": "relu"}, "only 'gelu' can be read"),
        ("ModernBERT", {"layer_types": ODD_LAYERS}, "only full_attention at every n-th layer"),
        ("ModernBERT", {"rope_parameters": STRETCHED}, "positions of full_attention are stretched"),
        ("ModernBERT", {"sliding_window": 2}, "sliding_window is 2, and only 4"),
        ("ModernBERT", {"rope_parameters": {"rope_theta": 5.0, "beta_fast": 2}}, "'beta_fast'"),
        ("Longformer", {"attention_window": 7}, "an even number above 0"),
        ("Longformer", {"attention_window": [8, 0]}, "an even number above 0"),
        ("Longformer", {"attention_window": [8, 4, 8]}, "or one for each of 2 layers"),
        ("BigBird", {"use_bias": False}, "use_bias is False, and only True"),
        ("BigBird", {"rescale_embeddings": True}, "rescale_embeddings is True, and only False"),
        ("BigBird", {"block_size": 0}, "block_size 0 must be at least 1"),
    ],
)
def test_what_is_not_here_is_refused_with_the_way_on(
    tmp_path: Path, name: str, change: dict[str, Any], message: str
) -> None:
    """By the family's own key; two keys of one number may not contradict each other."""
    subject = config_keys.SUBJECTS[name]
    config = {"model_type": subject.model_type, **subject.settings, **change}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        Encoder(read_config(tmp_path))


@pytest.mark.parametrize(("name", "kind"), [("Longformer", "choices"), ("BigBird", "spans")])
def test_a_question_is_found_by_one_separator(name: str, kind: str) -> None:
    """transformers finds it by config.json's, our heads by the tokenizer's."""
    family = family_of(config_keys.SUBJECTS[name].model_type)
    family.require_separator({"sep_token_id": 3}, [kind], 3, "F")
    family.require_separator({"sep_token_id": 2}, ["lm"], 3, "F")
    with pytest.raises(ValueError, match=r"F: sep_token_id is 2 in config.json and 3 for the tok"):
        family.require_separator({"sep_token_id": 2}, [kind], 3, "F")
    with pytest.raises(ValueError, match=r"write 3 in config.json"):
        family.require_separator({}, [kind], 3, "F")


@pytest.mark.parametrize("name", [*config_keys.SUBJECTS, "NeoBERT"])
def test_what_we_write_is_known_to_us(name: str) -> None:
    """Stock folders, and those that only we read."""
    if name == "NeoBERT":
        family = family_of("neobert")
        config = family.from_hf_config(NEOBERT)
    else:
        subject = config_keys.SUBJECTS[name]
        family = family_of(subject.model_type)
        config = family.from_hf_config(subject.settings)
    changes: list[dict[str, Any]] = [{}, {"is_causal": True}, {"embedding_size": 8}]
    changes.append({"position_embedding_init": "sinusoidal"})
    for change in changes:
        changed = replace(config, **change)
        for kinds in ((), ("lm",), ("classification",)):
            values = json.loads(json.dumps(family.to_hf_config(changed, kinds)))
            assert family.unknown_keys(values) == ()
            pools = replace(family.from_hf_config(values), predicts_next=changed.predicts_next)
            assert pools == changed
