"""Longformer (Beltagy et al. 2020): RoBERTa's layers; a window in each, and global tokens.

Global tokens see everything, by matrices of their own, and everything sees them. As in
transformers they are the first token of a text that is classified, a question's tokens, or those
of a choice; where tokens are predicted or tagged there are none.

Unusual: whatever token ends a sequence counts as the separator. A window in config.json is of both
sides together; ours is of one side.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from clozelab.models.config import EncoderConfig, ModuleSpec
from clozelab.models.config_keys import ConfigJson
from clozelab.models.families.roberta import POSITIONS, Roberta
from clozelab.models.layout import Layout
from clozelab.text.plain import PlainDict

if TYPE_CHECKING:
    from clozelab.models.encoder import Encoder

# Kinds of heads that have global tokens.
GLOBAL_KINDS = frozenset({"classification", "spans", "choices"})
ATTENTION = {"_target_": "clozelab.models.attention.LongAttention", "window": 256}


def global_slots(kind: str, ids: Tensor, layout: Layout) -> list[list[int]]:
    """Of each sequence of ids [T], those that a head of this kind lets see everything."""
    slots_of_texts = []
    for start, length in zip(layout.first_rows.tolist(), layout.lengths_list, strict=True):
        text = ids[start : start + length].tolist()
        # [CLS] a b [SEP] [SEP] c [SEP]: the separators are 3, 4 and 6. One text has one of them.
        separators = [slot for slot, token in enumerate(text) if token == text[-1]]
        slots = range(0)
        if kind == "classification":
            slots = range(1)
        elif len(separators) > 1 and kind == "spans":
            slots = range(separators[0])
        elif len(separators) > 1:
            slots = range(separators[-2] + 1, length)
        slots_of_texts.append(list(slots))
    return slots_of_texts


def _windows_of_layers(config: EncoderConfig) -> tuple[int, ...]:
    window = dict(config.attention.options).get("window", ATTENTION["window"])
    if isinstance(window, int):
        window = [window]
    return tuple(window[number % len(window)] for number in range(config.num_hidden_layers))


class Longformer(Roberta):
    model_type = "longformer"
    class_name = "Longformer"
    prefix = "longformer."
    layer_names = {
        **Roberta.layer_names,
        "attention.query_global": "attention.self.query_global",
        "attention.key_global": "attention.self.key_global",
        "attention.value_global": "attention.self.value_global",
    }
    parts = {"positions": POSITIONS, "attention": ATTENTION}
    defaults = {**Roberta.defaults, "attention_window": 512, "sep_token_id": 2}
    separated_kinds = frozenset({"choices", "spans"})
    pair_separators = 2
    # The last three are of the release's own code.
    fixed = {
        "is_decoder": False,
        "attention_mode": "longformer",
        "autoregressive": False,
        "ignore_attention_mask": False,
    }
    harmless = ("onnx_export",)

    def head(self, kind: str, encoder: Encoder, **options: Any) -> nn.Module:
        """Also lets the encoder know which tokens are global."""
        encoder.choose_global = None
        if kind in GLOBAL_KINDS and not encoder.config.is_causal:
            encoder.choose_global = partial(global_slots, kind)
        return super().head(kind, encoder, **options)

    def to_hf_config(self, config: EncoderConfig, kinds: Collection[str] = ()) -> PlainDict:
        # Compared with what is read back, which has a window a layer.
        options = dict(config.attention.options)
        if not isinstance(options.get("window", 0), int):
            windows = _windows_of_layers(config)
            options["window"] = windows[0] if len(set(windows)) == 1 else windows
            attention = ModuleSpec(config.attention.target, tuple(sorted(options.items())))
            config = replace(config, attention=attention)
        return super().to_hf_config(config, kinds)

    def to_hf_keys(self, config: EncoderConfig) -> PlainDict:
        doubled = [2 * window for window in _windows_of_layers(config)]
        return {**super().to_hf_keys(config), "attention_window": doubled}

    def from_hf_keys(self, values: ConfigJson) -> PlainDict:
        given = values["attention_window"]
        depth = values["num_hidden_layers"]
        if isinstance(given, int):
            windows = [given] * depth
        else:
            windows = given
        if len(windows) != depth or any(window < 2 or window % 2 for window in windows):
            raise ValueError(
                f"attention_window is {given}; it is an even number above 0, or one"
                f" for each of {depth} layers"
            )
        window: Any = [window // 2 for window in windows]
        if len(set(window)) == 1:
            window = window[0]
        arguments = super().from_hf_keys({**values, "is_decoder": False})
        return {**arguments, "attention": ATTENTION | {"window": window}}


FAMILY = Longformer()
