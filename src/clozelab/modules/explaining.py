"""Why a model says what it says of one text: where its attention looks, and which tokens the answer
rests on.

Integrated gradients (Sundararajan et al. 2017): the word embeddings go in a straight line from
those of a text without content, every token masked, to the text's own. A token's share is the mean
gradient along the way times its part of the way. All shares together are what the answer's logit
gains on that way; `gap` is what their sum lacks of it.

Letters: S tokens of the text, E embedding size, N heads, K points on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from clozelab.datamodules.finetuning import make_batch
from clozelab.models.attention import out_of_sight
from clozelab.models.encoder import Encoder, SelfAttention
from clozelab.models.layout import Layout
from clozelab.modules.answers import Result
from clozelab.modules.classification import sequence_states

if TYPE_CHECKING:
    from clozelab.modules.predictor import Predictor

HEADS = {"classify": "classification", "fill": "lm", "answer": "spans"}
TOKENS_AT_ONCE = 2048
# word embeddings [K, S, E] -> what the head says of each [K, outputs]
Outputs = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Attribution(Result):
    """`logit` is the answer's, `without` the same of the text without content; `shares` add up to
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


@contextmanager
def noted_attention(encoder: Encoder, note: Callable[[Tensor], None]) -> Iterator[None]:
    """Calls `note` with each layer's attention, fp32 [N, S, S], computed beside the kernel, which
    does not give it.

    Batches must hold one sequence each.
    """

    def look(module: Any, given: tuple[Any, ...]) -> None:
        hidden, _, context = given
        q, k, _ = (
            module.qkv(hidden).view(-1, 3, module.num_heads, module.head_dim).float().unbind(1)
        )
        if context.rotation is not None:
            q, k = context.rotation(q), context.rotation(k)
        with torch.autocast(q.device.type, enabled=False):
            scores = torch.einsum("qnd,knd->nqk", q, k) * module.head_dim**-0.5
        note(
            scores.masked_fill(out_of_sight(len(q), context.mask, q.device), -torch.inf).softmax(-1)
        )

    parts = [module for module in encoder.modules() if isinstance(module, SelfAttention)]
    handles = [part.register_forward_pre_hook(look) for part in parts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def tokens_of(predictor: Predictor, text: Any) -> tuple[str, ...]:
    """What a text's sequence shows, [CLS] and [SEP] included."""
    tokenizer, ids = predictor.tokenizer, predictor.sequences_of([text]).input_ids.tolist()
    return tuple(tokenizer.shown(index) for index in ids)


def attribute(
    predictor: Predictor, act: str, text: Any, *, target: str | None = None, steps: int = 64
) -> Attribution:
    """Of classify (`target`: a label; None: the best one), fill (a token for the first mask) or
    answer (the best span,
    `text` is (question, passage)), in fp32; `steps` points of Gauss and Legendre."""
    tokenizer, words = predictor.tokenizer, predictor.encoder.embeddings.word_embeddings
    if act == "classify":
        predictor.require_kind([text])
    outputs, ids = _outputs(predictor, act, text)
    with torch.no_grad():
        is_special = torch.isin(ids, ids.new_tensor([tokenizer.cls_id, tokenizer.sep_id]))
        start, end = words(torch.where(is_special, ids, tokenizer.mask_id)), words(ids)  # [S, E]
        without, own = outputs(torch.stack([start, end]))
    name, chosen = _target(predictor, act, text, ids.tolist(), own, target)
    total, way = torch.zeros_like(end), end - start
    nodes, weights = (
        torch.from_numpy(one).to(way) for one in np.polynomial.legendre.leggauss(steps)
    )
    at_once = max(1, TOKENS_AT_ONCE // len(ids))
    for places, shares in zip(
        ((nodes + 1) / 2).split(at_once), (weights / 2).split(at_once), strict=True
    ):
        embedded = (start + places[:, None, None] * way).requires_grad_()
        (gradient,) = torch.autograd.grad(outputs(embedded)[:, chosen].sum(), embedded)
        total += (shares[:, None, None] * gradient).sum(0)
    found = (total * way).sum(1).tolist()
    scores = float(own[chosen].sum()), float(without[chosen].sum())
    return Attribution(name, tokens_of(predictor, text), tuple(found), *scores)


def _outputs(predictor: Predictor, act: str, text: Any) -> tuple[Outputs, Tensor]:
    """What the head says of the text by its word embeddings (of an answer all starts, then all
    ends); its ids [S].
    """
    encoder, head, heads = (
        predictor.encoder,
        predictor.heads[HEADS[act]],
        dict(predictor.heads.items()),
    )
    batch = make_batch(predictor.sequences_of([text]), np.zeros(1, dtype=np.int64), {})
    ids, *others = (
        batch[key].to(predictor.device) for key in ("input_ids", "token_type_ids", "position_ids")
    )
    masks, length = (
        (ids == predictor.tokenizer.mask_id).nonzero()[:, 0] - int(encoder.config.is_causal),
        len(ids),
    )

    def outputs(embedded: Tensor) -> Tensor:
        number = len(embedded)
        layout = Layout.ragged([length] * number).to(ids.device)
        handle = encoder.embeddings.word_embeddings.register_forward_hook(
            lambda *_: embedded.flatten(0, 1)
        )
        try:
            hidden = encoder(
                ids.repeat(number), *(one.repeat(number) for one in others), layout
            ).sequence_output
        finally:
            handle.remove()
        if act == "fill":
            return head(hidden.view(number, length, -1)[:, masks[0]])
        hidden = heads["bilstm"](hidden, layout) if "bilstm" in heads else hidden
        if act == "answer":
            return head(hidden).view(number, length, 2).transpose(1, 2).flatten(1)
        return head(sequence_states(encoder, head, hidden, layout, "bilstm" in heads))

    return outputs, ids


def _target(
    predictor: Predictor, act: str, text: Any, ids: list[int], own: Tensor, target: str | None
) -> tuple[str, list[int]]:
    """What is explained, in words, and the outputs whose sum it is."""
    if target is not None and (act == "answer" or predictor.model.task == "regression"):
        raise ValueError(
            f"target={target}: this model gives a {'span' if act == 'answer' else 'number'}: leave"
            " it out"
        )
    if act == "answer":
        tokenizer, last = predictor.tokenizer, len(ids) - 1
        # of the passage
        first = 1 + len(tokenizer.encode_batch([text[0]])[0]) + tokenizer.pair_separators
        sums = own[first:last, None] + own[len(ids) :][first:last]
        rules = predictor.model.config.get("clozelab", {}).get("answers", {})
        spans = torch.ones_like(sums).triu().tril(rules.get("max_answer_length", 30) - 1) > 0
        sums = sums.masked_fill(~spans, -torch.inf)
        odds, start, end = (
            float(own[0] + own[len(ids)] - sums.max()),
            *divmod(int(sums.argmax()), last - first),
        )
        if rules.get("with_unanswerable") and odds > (rules.get("threshold") or 0.0):
            return "no answer", [0, len(ids)]
        return predictor.tokenizer.decode(ids[first + start : first + end + 1]), [
            first + start,
            len(ids) + first + end,
        ]
    if predictor.model.task == "regression":
        return "the value", [0]
    names = predictor.labels if act == "classify" else predictor.tokenizer.vocabulary
    if target is not None and target not in names:
        known = f"knows {', '.join(names)}" if act == "classify" else "has no such token"
        raise ValueError(f"target={target}: this model {known}")
    index = int(own[: len(names)].argmax()) if target is None else names.index(target)
    return names[index], [index]
