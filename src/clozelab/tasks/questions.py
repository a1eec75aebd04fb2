"""What a frozen model is asked about tokens of texts.

A question is one reading of a text: some tokens are hidden, and some are asked for. Questions of
all texts are packed into streams without padding, longest first, so that neighbours are equally
long.

    text         [CLS] cats sleep [SEP]
    question 0   [CLS] [MASK] sleep [SEP]    asked: token 1
    question 1   [CLS] cats [MASK] [SEP]     asked: token 2

Letters: N questions, B questions of a batch, P tokens that are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clozelab.tasks.baselines import Ints
from clozelab.tasks.sequences import (
    Sequences,
    TokenSequences,
    marked_tokens,
    offsets_of,
    ragged_positions,
)

# the numbers of the sequences that some tokens are in, in order, and their positions there
Tokens = tuple[Ints, Ints]


@dataclass(frozen=True)
class Questions(Sequences):
    """Sequences with some tokens hidden, and which tokens are asked for."""

    sequences: TokenSequences  # [N]
    offsets: Ints  # [N + 1]: what number i is asked begins at offsets[i]
    positions: Ints  # [P] of the state that predicts
    ids: Ints  # [P] the tokens that are asked for
    text: Ints  # [P] number of the text that each is of

    @property
    def lengths(self) -> Ints:
        return self.sequences.lengths

    def gather(self, index: Ints) -> dict[str, np.ndarray]:
        """The batch's arrays, and three of the tokens that are asked for [P].

        `prediction_positions` are the slots whose states predict; `prediction_labels` the tokens;
        `prediction_index` their place among all that are asked for.
        """
        arrays = self.sequences.gather(index)
        numbers, slots = marked_tokens(self.offsets, self.positions, index, arrays["lengths"])
        return arrays | {
            "prediction_positions": slots,
            "prediction_labels": self.ids[numbers],
            "prediction_index": numbers,
        }


def token_ranges(starts: Ints, lengths: Ints) -> Tokens:
    """A range of tokens of each sequence.

    Starts [1, 4] and lengths [2, 1] are sequences [0, 0, 1] and positions [1, 2, 4].
    """
    sequence = np.repeat(np.arange(len(starts)), lengths)
    _, position = ragged_positions(starts, lengths)
    return sequence, position


def inner_tokens(texts: TokenSequences) -> Tokens:
    """All tokens between [CLS] and [SEP]."""
    return token_ranges(np.ones_like(texts.lengths), texts.lengths - 2)


def build_questions(
    texts: TokenSequences,
    text: Ints,
    targets: Tokens,
    hidden: Tokens | None,
    *,
    mask_id: int,
    shift: int,
) -> Questions:
    """Questions about texts[text[i]]: which tokens are asked for, and which are hidden.

    `targets` and `hidden` number the questions, and positions in their text. `shift`: how many
    slots before a token the state stands that predicts it, 1 for a causal encoder.
    """
    readings = texts.gather(text)
    ids = readings["input_ids"]
    offsets = offsets_of(readings["lengths"])
    question, position = targets
    # The answers are taken before any token is hidden.
    answers = ids[offsets[question] + position]
    if hidden is not None:
        hidden_question, hidden_position = hidden
        ids[offsets[hidden_question] + hidden_position] = mask_id
    # Token type 1 begins behind the sequence: all of a text is type 0.
    second_starts = readings["lengths"].astype(np.int32)
    sequences = TokenSequences(ids.astype(np.int32), offsets, second_starts)
    num_asked = np.bincount(question, minlength=len(text))
    return Questions(sequences, offsets_of(num_asked), position - shift, answers, text[question])
