"""A model as ONNX: encoder and heads over padded batches of any size and length, compared with what
they gave here.

Unusual: the encoder has no batch dimension, so a batch [B, S] goes through it as one stream of B*S
tokens, by the very modules that were trained; only what attention is told of the batch is made from
the attention mask.

Letters: T tokens in the stream, B sequences, S slots a row, H hidden size, K labels, V vocabulary.
"""

from __future__ import annotations

import io
import logging
import warnings
from contextlib import redirect_stdout

import numpy as np
import torch
from torch import Tensor, nn

from clozelab.models.attention import Context, DenseRows, out_of_sight
from clozelab.models.families.bert import POOLED_KINDS
from clozelab.models.layout import Layout
from clozelab.modules.model import Model, has_pooler
from clozelab.training.host import require_package

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""int64 [B, S] each; the mask is 1 for tokens, which stand in front, and 0 for padding."""
TOLERANCE = 1e-4
OUTPUTS = {"lm": "prediction_logits", "nsp": "seq_relationship_logits"}
"""Kind of head -> what its output is called beside others; alone it is called "logits", and others
KIND_logits.
"""


class Padded(nn.Module):
    """[B, S] three times -> last_hidden_state [B, S, H], pooler_output [B, H] where it is trained,
    and each head's.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder, self.heads, self.kinds = model.encoder, model.heads, list(model.heads)
        self.has_pooler = has_pooler(model)
        self.names = ["last_hidden_state", *(["pooler_output"] if self.has_pooler else [])]
        self.names += [name for kind in self.kinds for name in names_of(kind, model)]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, ...]:
        size, width = input_ids.shape
        states = self._stream(input_ids, attention_mask, token_type_ids).view(size, width, -1)
        pooled = torch.zeros_like(input_ids[:, 0])
        if self.encoder.config.pools_last_token:
            pooled = attention_mask.sum(1) - 1
        tokens = states.gather(1, pooled[:, None, None].expand(-1, 1, states.shape[2])).squeeze(1)
        found = [states, *([self.encoder.pooler(tokens)] if self.has_pooler else [])]
        for kind in self.kinds:
            head = self.heads[kind]
            if kind in POOLED_KINDS:
                reads_states = getattr(head, "reads_token_states", False)
                found.append(head(tokens if reads_states else self.encoder.pooler(tokens)))
            elif kind == "spans":
                found += head(states).unbind(-1)
            else:
                found.append(head(states))
        return tuple(found)

    def _stream(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """[B*S, H]."""
        encoder, (size, width) = self.encoder, input_ids.shape
        positions = torch.arange(width, device=input_ids.device).expand(size, width).flatten()
        hidden = encoder.embeddings(input_ids.flatten(), token_type_ids.flatten(), positions)
        if encoder.embeddings_project is not None:
            hidden = encoder.embeddings_project(hidden)
        rotation = encoder.embeddings.position_embeddings.rotation(positions)
        padding, itself = attention_mask[:, None, None] == 0, torch.eye(width, dtype=torch.bool)
        for number, mask in enumerate(encoder.masks):
            # [B, 1, S, S]
            unseen = out_of_sight(width, mask, input_ids.device) | (padding & ~itself)
            bias = torch.zeros(unseen.shape, dtype=hidden.dtype).masked_fill(unseen, -torch.inf)
            context = Context(DenseRows(size, width, bias, "sdpa", mask), mask, rotation)
            hidden = encoder.layer[number * len(encoder.layer) // len(encoder.masks)](
                hidden, context
            )
        return encoder.final_norm(hidden)


def names_of(kind: str, model: Model) -> list[str]:
    """What the outputs of a head are called."""
    if kind == "spans":
        return ["start_logits", "end_logits"]
    return ["logits" if len(model.heads) == 1 else OUTPUTS.get(kind, f"{kind}_logits")]


def to_onnx(model: Model) -> bytes:
    """The file, compared with the model on three shapes that the export has not seen; ValueError
    where they differ.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        require_package(package, "export", "format=onnx")
    if between := {"bilstm", "feature_mix"} & set(model.heads):
        raise ValueError(
            f"{model.folder} has a {between.pop()} between encoder and head, which is not exported"
            " to ONNX"
        )
    padded = Padded(model).eval()
    dimensions = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=model.max_length)}
    example = tuple(rows(model, [min(7, model.max_length), 3]).values())
    # Its own account of the steps is long, and goes to stdout.
    with redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"), torch.no_grad():
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            padded,
            example,
            input_names=INPUTS,
            output_names=padded.names,
            dynamo=True,
            verbose=False,
            dynamic_shapes=dict.fromkeys(INPUTS, dimensions),
        )
    assert program is not None
    content = program.model_proto.SerializeToString()
    if not (worst := difference(model, padded, content)) <= TOLERANCE:  # or it is no number
        raise ValueError(
            f"{model.folder}: onnxruntime gives outputs that are {worst:.1e} away from the model's"
        )
    return bytes(content)


def rows(model: Model, lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    """Random padded sequences of these lengths."""
    config, slots = model.encoder.config, torch.arange(max(lengths))
    real = slots < torch.tensor(lengths)[:, None]
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, config.vocab_size, real.shape, generator=generator)
    types = torch.randint(0, max(1, config.type_vocab_size), real.shape, generator=generator)
    return dict(
        zip(
            INPUTS,
            (torch.where(real, ids, config.pad_token_id), real.long(), types * real),
            strict=True,
        )
    )


def difference(model: Model, padded: Padded, content: bytes) -> float:
    """The largest difference on real tokens between onnxruntime's outputs and those of the stream
    that was trained.
    """
    import onnxruntime

    session, worst, longest = onnxruntime.InferenceSession(content), 0.0, model.max_length
    for seed, wanted in enumerate(([2], [5, 1, 4, 5], [longest, max(1, longest // 2), 3]), start=1):
        lengths = [min(length, longest) for length in wanted]
        batch = rows(model, lengths, seed)
        theirs = session.run(None, {name: value.numpy() for name, value in batch.items()})
        with torch.no_grad():
            ours = stream_outputs(model, batch, lengths)
        real = batch["attention_mask"].bool().numpy()
        for name, other in zip(padded.names, theirs, strict=True):
            of_tokens = len(ours[name]) == real.sum() and other.shape[:2] == real.shape
            far = np.abs(ours[name].numpy() - (other[real] if of_tokens else other)).max()
            worst = float(np.maximum(worst, far))  # which keeps a NaN
    return worst


def stream_outputs(model: Model, batch: dict[str, Tensor], lengths: list[int]) -> dict[str, Tensor]:
    """The same outputs by the model itself: [T, ...] of tokens, [B, ...] of sequences."""
    real, encoder = batch["attention_mask"].bool(), model.encoder
    ids, types = batch["input_ids"][real], batch["token_type_ids"][real]
    positions, layout = (
        torch.cat([torch.arange(length) for length in lengths]),
        Layout.ragged(lengths),
    )
    states = encoder(ids, types, positions, layout).sequence_output
    found = {"last_hidden_state": states, "pooler_output": encoder.pool(states, layout)}
    for kind, head in model.heads.items():
        out = head(encoder.pool(states, layout, head) if kind in POOLED_KINDS else states)
        found |= zip(
            names_of(kind, model), out.unbind(-1) if kind == "spans" else [out], strict=True
        )
    return found
