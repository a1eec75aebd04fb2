"""ELECTRA (Clark et al. 2020): a discriminator of replaced tokens, and its narrower generator.

Both are encoders without a pooler, and share their embeddings while they are trained; each has a
folder of its own.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from clozelab.models.config import EncoderConfig
from clozelab.models.families.bert import Family
from clozelab.text.plain import JsonObject


class Electra(Family):
    model_type = "electra"
    class_name = "Electra"
    prefix = "electra."
    head_names = {
        "lm": "generator_lm_head",
        "lm.transform": "generator_predictions",
        "choices.dense": "sequence_summary.summary",
        "choices.out_proj": "classifier",
    }
    decoder = "generator_lm_head"
    pretraining = ((frozenset({"rtd"}), "ForPreTraining"), (frozenset({"lm"}), "ForMaskedLM"))
    causal_lm = "ForCausalLM"
    more_keys = ("embedding_size",)
    parts = {"pooler": None}
    defaults = {**Family.defaults, "embedding_size": 128}
    # Of the head on choices.
    fixed = {
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
        "summary_proj_to_labels": False,
    }
    lm_act = "gelu"
    dense_heads = {"classification": "gelu", "choices": "gelu"}


def generator_config(
    config: EncoderConfig, width: str | float | Fraction, depth: str | float | Fraction = 1
) -> EncoderConfig:
    """A generator for this discriminator, with embeddings as wide.

    Otherwise it is `width` times as wide, with as many times the heads, and `depth` times as deep.
    ValueError where that gives no whole sizes.
    """
    ratios = dict.fromkeys(("hidden_size", "num_attention_heads", "intermediate_size"), width)
    if Fraction(str(depth)) != 1:
        ratios |= dict.fromkeys(("num_hidden_layers", "num_hidden_groups"), depth)
    sizes: JsonObject = {}
    for name, ratio in ratios.items():
        discriminator_size = getattr(config, name)
        size = discriminator_size * Fraction(str(ratio))
        if size.denominator != 1 or not size > 0:
            side = "depth" if name.startswith("num_hidden") else "width"
            raise ValueError(
                f"a generator of {side} {ratio} would have {name} {float(size):g}: choose a {side}"
                f" that divides the discriminator's {discriminator_size}"
            )
        sizes[name] = int(size)
    return replace(config, **sizes)


FAMILY = Electra()
