"""What is read of a tokenizer.json of the tokenizers library. Its parts have more keys than these.

`type` says what kind of normaliser, pre-tokeniser, template or model a part is.
"""

from __future__ import annotations

from typing import Any, TypedDict

from clozelab.text.plain import PlainMapping


class RulePart(TypedDict, total=False):
    """A normaliser or a pre-tokeniser."""

    type: str
    lowercase: bool | None
    strip_accents: bool | None
    handle_chinese_chars: bool | None
    add_prefix_space: bool
    use_regex: bool
    pretokenizers: list[RulePart]  # of a sequence


class ModelPart(TypedDict, total=False):
    """The model: its entries, and how a word is cut into them."""

    type: str
    vocab: Any  # entry -> id; of Unigram a list of entries with their scores
    merges: list[str | list[str]]
    dropout: float | None
    unk_token: str | None
    unk_id: int | None  # of Unigram
    continuing_subword_prefix: str | None
    end_of_word_suffix: str | None
    max_input_chars_per_word: int


class AddedPart(TypedDict):
    """A token that stands beside the model's entries."""

    id: int
    content: str
    normalized: bool


class Rules(TypedDict, total=False):
    """A whole tokenizer.json."""

    added_tokens: list[AddedPart]
    normalizer: RulePart | None
    pre_tokenizer: RulePart | None
    post_processor: PlainMapping | None  # the template
    model: ModelPart
