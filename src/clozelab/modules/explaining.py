"""Why a model answers as it does for one text: where its attention looks, and what each token adds.

Integrated gradients (Sundararajan et al. 2017): the word embeddings go in a straight line from
those of a text without content, every token masked, to the text's own. A token's share is the mean
gradient along the way times its part of the way. All shares together are what the answer's logit
gains on that way; `gap` is what their sum lacks of it.

Letters: S tokens of the text, E embedding size, N heads, K points on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from clozelab.models.layout import Layout
from clozelab.modules.answers import Result
from clozelab.tasks.batches import apply_head_fp32, make_batch
from clozelab.tasks.texts import sequence_states

if TYPE_CHECKING:
    from clozelab.modules.predictor import Predictor

# What is explained -> the head that says it.
HEADS = {"classify": "classification", "fill": "lm", "answer": "spans"}
TOKENS_AT_ONCE = 2048
# Word embeddings [K, S, E] -> the head's outputs for each of them [K, outputs].
Outputs = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Attribution(Result):
    """What each token adds to an answer.

    `logit` is the answer's, `without` the same of the text without content; `shares` add up to
    their difference.
    """

    answer: str
    tokens: tuple[str, ...]
    shares: tuple[float, ...]
    logit: float
    without: float

    @property
    def gap(self) -> float:
        return self.logit - self.without - sum(self.shares)


def tokens_of(predictor: Predictor, text: object) -> tuple[str, ...]:
    """A text's tokens as they are shown, [CLS] and [SEP] included."""
    ids = predictor.sequences_of([text]).input_ids.tolist()
    return tuple(predictor.tokenizer.shown(index) for index in ids)


def attribute(
    predictor: Predictor,
    act: str,
    text: str | tuple[str, str],
    *,
    target: str | None = None,
    steps: int = 64,
) -> Attribution:
    """What each token adds to the model's answer, in fp32.

    Args:
        act: classify, fill (of the first mask) or answer (the best span; `text` is (question,
            passage)).
        target: the label or token that is explained; None: the best one.
        steps: points of Gauss and Legendre on the way.
    """
    tokenizer = predictor.tokenizer
    embed = predictor.encoder.embeddings.word_embeddings
    if act == "classify":
        predictor.require_kind([text])
    outputs, ids = _outputs(predictor, act, text)
    with torch.no_grad():
        # The text without content: [CLS] and [SEP] stay, all else is masked.
        is_special = torch.isin(ids, ids.new_tensor([tokenizer.cls_id, tokenizer.sep_id]))
        start = embed(torch.where(is_special, ids, tokenizer.mask_id))  # [S, E]
        end = embed(ids)
        start_logits, end_logits = outputs(torch.stack([start, end]))
    name, columns = _target(predictor, act, text, ids.tolist(), end_logits, target)
    # The integral over the way from 0 to 1; Gauss and Legendre have theirs from -1 to 1.
    nodes, node_weights = np.polynomial.legendre.leggauss(steps)
    positions = (torch.from_numpy(nodes).to(end) + 1) / 2
    weights = torch.from_numpy(node_weights).to(end) / 2
    difference = end - start
    total = torch.zeros_like(end)
    points_at_once = max(1, TOKENS_AT_ONCE // len(ids))
    chunks = zip(positions.split(points_at_once), weights.split(points_at_once), strict=True)
    for chunk_positions, chunk_weights in chunks:
        embedded = start + chunk_positions[:, None, None] * difference  # [K, S, E]
        embedded.requires_grad_()
        (gradient,) = torch.autograd.grad(outputs(embedded)[:, columns].sum(), embedded)
        total += (chunk_weights[:, None, None] * gradient).sum(0)
    shares = (total * difference).sum(1)  # [S, E] -> [S]
    return Attribution(
        answer=name,
        tokens=tokens_of(predictor, text),
        shares=tuple(shares.tolist()),
        logit=float(end_logits[columns].sum()),
        without=float(start_logits[columns].sum()),
    )


def _outputs(predictor: Predictor, act: str, text: object) -> tuple[Outputs, Tensor]:
    """The head's outputs as a function of the text's word embeddings; and the text's ids [S].

    Of an answer the outputs are all start logits, then all end logits.
    """
    encoder = predictor.encoder
    head: Any = predictor.heads[HEADS[act]]
    bilstm = None
    if "bilstm" in predictor.heads:
        bilstm = predictor.heads["bilstm"]
    batch = make_batch(predictor.sequences_of([text]), np.zeros(1, dtype=np.int64), {})
    ids = batch["input_ids"].to(predictor.device)
    token_types = batch["token_type_ids"].to(predictor.device)
    positions = batch["position_ids"].to(predictor.device)
    length = len(ids)
    masks = (ids == predictor.tokenizer.mask_id).nonzero()[:, 0] - encoder.config.prediction_shift

    def outputs(embedded: Tensor) -> Tensor:
        number = len(embedded)
        layout = Layout.ragged([length] * number).to(ids.device)
        # The embeddings take the place of what the word embeddings give for the ids.
        handle = encoder.embeddings.word_embeddings.register_forward_hook(
            lambda *_: embedded.flatten(0, 1)
        )
        try:
            output = encoder(
                ids.repeat(number),
                token_types.repeat(number),
                positions.repeat(number),
                layout,
                getattr(head, "reads_hidden_states", False),
            )
        finally:
            handle.remove()
        hidden = output.sequence_output
        if act == "fill":
            # The one mask of each of the texts [number], behind each other in the stream.
            at_masks = {
                "prediction_positions": length * torch.arange(number, device=ids.device) + masks[0],
                "position_ids": positions.repeat(number),
                "layout": layout,
            }
            return head(head.states(encoder, output, at_masks))
        if bilstm is not None:
            hidden = bilstm(hidden, layout)
        if act == "answer":
            return head(hidden).view(number, length, 2).transpose(1, 2).flatten(1)
        states = sequence_states(encoder, head, hidden, layout, bilstm is not None)
        return apply_head_fp32(head, states)

    return outputs, ids


def _target(
    predictor: Predictor,
    act: str,
    text: str | tuple[str, str],
    ids: list[int],
    logits: Tensor,
    target: str | None,
) -> tuple[str, list[int]]:
    """What is explained, in words, and the outputs whose sum it is.

    `logits` are the outputs for the text itself.
    """
    gives_number = predictor.model.task == "regression"
    if target is not None and (act == "answer" or gives_number):
        raise ValueError(
            f"target={target}: this model gives a {'span' if act == 'answer' else 'number'}: leave"
            " it out"
        )
    if act == "answer":
        return _best_span(predictor, text[0], ids, logits)
    if gives_number:
        return "the value", [0]
    names = predictor.output_names if act == "classify" else predictor.tokenizer.vocabulary
    if target is None:
        index = int(logits[: len(names)].argmax())
    elif target in names:
        index = names.index(target)
    else:
        reason = f"knows {', '.join(names)}" if act == "classify" else "has no such token"
        raise ValueError(f"target={target}: this model {reason}")
    return names[index], [index]


def _best_span(
    predictor: Predictor, question: str, ids: list[int], logits: Tensor
) -> tuple[str, list[int]]:
    """The text of the best span, or "no answer"; and the outputs of its start and its end."""
    tokenizer = predictor.tokenizer
    # The passage is tokens first to last - 1; the last is [SEP].
    first = 1 + len(tokenizer.encode_batch([question])[0]) + tokenizer.pair_separators
    last = len(ids) - 1
    start_logits = logits[: len(ids)]
    end_logits = logits[len(ids) :]
    rules = predictor.model.answer_rules
    # [start, end]: the spans that do not end before they start, and are not too long
    sums = start_logits[first:last, None] + end_logits[first:last]
    is_span = torch.ones_like(sums).triu().tril(rules.get("max_answer_length", 30) - 1) > 0
    sums = sums.masked_fill(~is_span, -torch.inf)
    start, end = divmod(int(sums.argmax()), last - first)
    null_odds = float(start_logits[0] + end_logits[0] - sums.max())
    if rules.get("with_unanswerable") and null_odds > (rules.get("threshold") or 0.0):
        return "no answer", [0, len(ids)]
    answer = tokenizer.decode(ids[first + start : first + end + 1])
    return answer, [first + start, len(ids) + first + end]
