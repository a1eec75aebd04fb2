"""A caller's texts as sequences for a model that answers.

What it cannot read is left out, each with its reason. A text longer than the model reads is one
that it cannot read, unless it is read in windows, or cut as in the model's fine-tuning.

Letters: N texts, R readable ones, W windows of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.texts import Unreadable
from clozelab.tasks.sequences import (
    Int32s,
    Ints,
    TokenSequences,
    assemble,
    assemble_windows,
    longest_first,
)

SIDES = ("first", "second")
Text = Unreadable | str | Sequence[str]  # one text, or a pair
Sides = tuple[Int32s, ...]  # ids of a text, or of the two of a pair, without special tokens


@dataclass(frozen=True)
class Encoded:
    """`reasons[n]` is None for a readable text; else it goes on where "text 7" ends: "is empty"."""

    sequences: TokenSequences  # [W], of the readable texts alone
    window_offsets: Ints  # [R + 1] where each readable text's windows begin
    reasons: list[str | None]  # [N]
    was_cut: Sequence[bool] = ()  # [N] whether a text is read up to the largest length alone


def encode_texts(
    texts: Sequence[Text],
    tokenizer: Tokenizer,
    max_length: int,
    *,
    stride: int | None = None,
    reads_empty: bool = False,
    has_masks: bool = False,
    is_cut: bool = False,
) -> Encoded:
    """Sequences of texts or pairs (datamodules/texts.py: `Texts.items`).

    Args:
        max_length: tokens that the model reads at once, special ones included.
        stride: of single texts; a longer one is read in windows so many tokens apart.
        reads_empty: a text without a token is its special tokens, rather than unreadable.
        has_masks: the tokenizer's mask token in a text is one, rather than some characters.
        is_cut: a longer text, or pair, loses what `encode_examples` cuts in training.
    """
    if stride is not None and not 1 <= stride <= max_length - 2:
        raise ValueError(
            f"stride={stride}: give 1 to {max_length - 2} tokens, which is what this model reads at"
            " once"
        )
    # Every text is unreadable for a reason, or goes on to be a sequence.
    encoded = _encode_sides(texts, tokenizer, has_masks)
    reasons: list[str | None] = []
    readable: list[Sides] = []
    was_cut = [False] * len(texts)
    for index, (text, sides) in enumerate(zip(texts, encoded, strict=True)):
        if isinstance(text, Unreadable):
            reasons.append(text.reason)
            continue
        reason = _unread(sides, tokenizer, reads_empty, has_masks)
        # A single text is never too long where it is read in windows.
        is_windowed = stride is not None and len(sides) == 1
        if reason is None and not is_windowed:
            if is_cut:
                whole = sides
                sides = _cut(whole, tokenizer, max_length)
                was_cut[index] = sum(map(len, sides)) < sum(map(len, whole))
            reason = _too_long(sides, tokenizer, max_length)
        reasons.append(reason)
        if reason is None:
            readable.append(sides)
    assembled = _assembled(readable, reasons, tokenizer, max_length, stride)
    return replace(assembled, was_cut=was_cut)


def unread_reason(ids: Int32s, tokenizer: Tokenizer, name: str = "") -> str | None:
    """Why nothing can be said of a text with these tokens: it has none, or unknown ones alone.

    `name` is the side of a pair that it is.
    """
    if not len(ids):
        if not name:
            return "is empty: there is nothing to read"
        return f"is not whole: its {name} text is empty"
    if (ids == tokenizer.unk_id).all():
        unknown = tokenizer.special_tokens[1]
        where = ""
        if name:
            where = f" in its {name} text"
        return (
            f"has no token but {unknown}{where}, so the model sees nothing of it: "
            "is it in the language and case of the model's vocabulary?"
        )
    return None


def _unread(sides: Sides, tokenizer: Tokenizer, reads_empty: bool, has_masks: bool) -> str | None:
    if has_masks:
        return None  # a mask alone is a question
    for side, ids in zip(SIDES, sides, strict=False):
        # such a text is its special tokens alone
        if reads_empty and not len(ids):
            continue
        name = ""
        if len(sides) > 1:
            name = side
        reason = unread_reason(ids, tokenizer, name)
        if reason is not None:
            return reason
    return None


def _num_special(sides: Sides, tokenizer: Tokenizer) -> int:
    """[CLS], the last [SEP], and what stands between the two of a pair."""
    if len(sides) == 2:
        return 2 + tokenizer.pair_separators
    return 2


def _cut(sides: Sides, tokenizer: Tokenizer, max_length: int) -> Sides:
    """What training reads of a text; of a pair the longer text is cut first."""
    budget = max_length - _num_special(sides, tokenizer)
    if len(sides) == 1:
        return (sides[0][:budget],)
    first, second = sides
    keep_first, keep_second = longest_first(len(first), len(second), budget)
    return first[:keep_first], second[:keep_second]


def _too_long(sides: Sides, tokenizer: Tokenizer, max_length: int) -> str | None:
    length = _num_special(sides, tokenizer) + sum(map(len, sides))
    if length <= max_length:
        return None
    return (
        f"has {length} tokens and this model reads {max_length} at once: shorten it, or, to"
        " classify or embed single texts, say stride=N to read it in windows N tokens apart"
    )


def _encode_sides(texts: Sequence[Text], tokenizer: Tokenizer, has_masks: bool) -> list[Sides]:
    """The ids of each text, of each side of a pair; none of what is unreadable."""
    # All sides are encoded at once; then each text takes as many of the encoded as it has sides.
    flat = []
    for text in texts:
        flat += _sides_of(text)
    encode = tokenizer.encode_masked if has_masks else tokenizer.encode_batch
    ids = iter(encode(flat))
    return [tuple(islice(ids, len(_sides_of(text)))) for text in texts]


def _sides_of(text: Text) -> list[str]:
    if isinstance(text, Unreadable):
        return []
    if isinstance(text, str):
        return [text]
    return list(text)


def _assembled(
    readable: Sequence[Sides],
    reasons: list[str | None],
    tokenizer: Tokenizer,
    max_length: int,
    stride: int | None,
) -> Encoded:
    # Texts of one call are all pairs, or all single ones.
    one_window_each = np.arange(len(readable) + 1)
    if readable and len(readable[0]) == 2:
        firsts, seconds = zip(*readable, strict=True)
        return Encoded(assemble(tokenizer, firsts, seconds), one_window_each, reasons)
    singles = [sides[0] for sides in readable]
    if stride is None:
        return Encoded(assemble(tokenizer, singles), one_window_each, reasons)
    sequences, offsets = assemble_windows(tokenizer, singles, max_length - 2, stride)
    return Encoded(sequences, offsets, reasons)
