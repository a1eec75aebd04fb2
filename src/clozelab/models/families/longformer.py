"""Longformer (Beltagy et al. 2020): RoBERTa's layers; a window in each, and global tokens.

These see everything, by matrices of their own, and everything sees them. As in transformers they
are the first token of a text that is classified, a question's tokens, or those of a choice; where
tokens are predicted or tagged there are none.

Unusual: the separator is what a sequence ends with. config.json has whole windows, ours are the
tokens on each side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from clozelab.models.config import EncoderConfig
from clozelab.models.families.roberta import POSITIONS, Roberta
from clozelab.models.layout import Layout
from clozelab.text.plain import JsonObject, ReadOnlyJson

if TYPE_CHECKING:
    from clozelab.models.encoder import Encoder

ATTENTION = {"_target_": "clozelab.models.attention.LongAttention", "window": 256}


def first_tokens(ids: Tensor, layout: Layout) -> Tensor:
    """Of ids [T], bool [T]: each sequence's first one."""
    return torch.zeros_like(ids, dtype=torch.bool).index_fill(0, layout.first_rows, True)


def questions(ids: Tensor, layout: Layout) -> Tensor:
    """What stands before the first separator of two or more."""
    # [CLS] a b [SEP] c [SEP]: the first three. A single text has no question.
    is_separator, before, owner = _separators(ids, layout)
    is_pair = before[layout.last_rows][owner] > 0
    return is_pair & (before == 0) & ~is_separator


def choices(ids: Tensor, layout: Layout) -> Tensor:
    """What stands behind the separators in the middle: above c and the last one."""
    is_separator, before, owner = _separators(ids, layout)
    is_last = torch.arange(len(ids), device=ids.device) == layout.last_rows[owner]
    return (before > 0) & (is_last | ~is_separator)


def _separators(ids: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """[T] each: whether a token is one, how many stand before it, and its sequence's number."""
    starts = layout.first_rows
    slots = torch.arange(len(ids), device=ids.device)
    owner = torch.searchsorted(starts, slots, right=True) - 1
    is_separator = ids == ids[layout.last_rows][owner]
    before = is_separator.cumsum(0) - is_separator.long()
    return is_separator, before - before[starts][owner], owner


GLOBAL_TOKENS: Mapping[str, Callable[[Tensor, Layout], Tensor]] = {
    "classification": first_tokens,
    "spans": questions,
    "choices": choices,
}


class Longformer(Roberta):
    model_type = "longformer"
    class_name = "Longformer"
    prefix = "longformer."
    layer_names: ClassVar[Mapping[str, str]] = {
        **Roberta.layer_names,
        "attention.query_global": "attention.self.query_global",
        "attention.key_global": "attention.self.key_global",
        "attention.value_global": "attention.self.value_global",
    }
    parts: ClassVar[Mapping[str, Any]] = {"positions": POSITIONS, "attention": ATTENTION}
    defaults: ClassVar[Mapping[str, Any]] = {**Roberta.defaults, "attention_window": 512}
    reads_two_directions: ClassVar[bool] = False
    names_separator: ClassVar[bool] = True

    def head(self, kind: str, encoder: Encoder, **options: Any) -> nn.Module:
        """Also lets the encoder know which tokens are global, and trains their matrices then."""
        choose = None if encoder.config.is_causal else GLOBAL_TOKENS.get(kind)
        encoder.choose_global = choose
        for name, parameter in encoder.named_parameters():
            if ".qkv_global." in name:
                parameter.requires_grad_(choose is not None)
        return super().head(kind, encoder, **options)

    def to_hf_keys(self, config: EncoderConfig) -> JsonObject:
        values = super().to_hf_keys(config)
        # Their classes have no causal mask and would not look at the key.
        del values["is_decoder"]
        del values["use_cache"]
        window = dict(config.attention.options).get("window", ATTENTION["window"])
        if isinstance(window, int):
            window = [window] * config.num_hidden_layers
        return {**values, "attention_window": [2 * side for side in window]}

    def from_hf_keys(self, values: ReadOnlyJson) -> JsonObject:
        given = values["attention_window"]
        windows = [given] if isinstance(given, int) else list(given)
        if any(window < 2 or window % 2 for window in windows):
            raise ValueError(
                f"config.json: attention_window is {given}; a window is an even number above 0"
            )
        sides = [window // 2 for window in windows]
        side = sides[0] if len(set(sides)) == 1 else sides
        arguments = super().from_hf_keys({**values, "is_decoder": False})
        return {**arguments, "attention": ATTENTION | {"window": side}}


FAMILY = Longformer()
