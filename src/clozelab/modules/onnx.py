"""A model as ONNX: encoder and heads over padded batches of any size and length.

The file is compared with what the model gave here. Unusual: the encoder has no batch dimension, so
a batch [B, S] goes through it as one stream of B*S tokens, by the very modules that were trained;
only what attention is told of the batch is made from the attention mask.

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

from clozelab.models.attention import DenseRows, Mask, masked_pairs
from clozelab.models.disentangled import DisentangledPositions
from clozelab.models.encoder import MeanPooler
from clozelab.models.families.bert import POOLED_KINDS
from clozelab.models.layout import Layout
from clozelab.models.segmented import SegmentedDistances
from clozelab.modules.model import Model, has_pooler
from clozelab.text.packages import require_package

# int64 [B, S] each; the mask is 1 for tokens, which stand in front, and 0 for padding.
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TOLERANCE = 1e-4
# Kind of head -> what its output is called beside others. Alone it is called "logits", and others
# KIND_logits.
OUTPUTS = {"lm": "prediction_logits", "nsp": "seq_relationship_logits"}


class Padded(nn.Module):
    """Encoder and heads over a padded batch.

    [B, S] three times -> last_hidden_state [B, S, H], pooler_output [B, H] where it is trained, and
    the outputs of each head.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.encoder = model.encoder
        self.heads = model.heads

    def outputs(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> dict[str, Tensor]:
        """The outputs by their names."""
        size, width = input_ids.shape
        states = self._stream(input_ids, attention_mask, token_type_ids).view(size, width, -1)
        return named_outputs(self.model, states, self._pooled(states, attention_mask))

    def _pooled(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        """[B, S, H] -> [B, H]: the mean of a row's tokens, or the state of one of them."""
        if isinstance(self.encoder.pooler, MeanPooler):
            weights = attention_mask[:, :, None].to(states.dtype)
            return (states * weights).sum(1) / weights.sum(1)
        slots = torch.zeros_like(attention_mask[:, 0])
        if self.encoder.config.pools_last_token:
            slots = attention_mask.sum(1) - 1
        return states.gather(1, slots[:, None, None].expand(-1, 1, states.shape[2])).squeeze(1)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, ...]:
        return tuple(self.outputs(input_ids, attention_mask, token_type_ids).values())

    def _stream(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """[B*S, H]."""
        encoder = self.encoder
        size, width = input_ids.shape
        positions = torch.arange(width, device=input_ids.device).expand(size, width).flatten()
        hidden = encoder.embed(input_ids.flatten(), token_type_ids.flatten(), positions)
        # A padding slot sees itself, or its softmax would have nothing to add up.
        is_padding = attention_mask[:, None, None] == 0  # [B, 1, 1, S]
        hidden_padding = is_padding & ~torch.eye(width, dtype=torch.bool)

        def rows(mask: Mask) -> DenseRows:
            unseen = masked_pairs(width, mask, input_ids.device) | hidden_padding  # [B, 1, S, S]
            bias = torch.zeros(unseen.shape, dtype=hidden.dtype).masked_fill(unseen, -torch.inf)
            return DenseRows(size, width, bias, "sdpa", mask)

        inputs = encoder.attention_inputs(positions, rows)
        for layer, mask in zip(encoder.layers(), encoder.masks, strict=True):
            hidden = layer(hidden, inputs[mask])
        return encoder.final_norm(hidden)


def named_outputs(model: Model, states: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """The outputs by their names, of states [..., H] and what is pooled of each row [B, H]."""
    outputs = {"last_hidden_state": states}
    if has_pooler(model):
        outputs["pooler_output"] = model.encoder.pooler(tokens)
    for head_kind, head in model.heads.items():
        if head_kind == "spans":
            outputs["start_logits"], outputs["end_logits"] = head(states).unbind(-1)
            continue
        head_input = states
        if head_kind in POOLED_KINDS:
            reads_tokens = getattr(head, "reads_token_states", False)
            head_input = tokens if reads_tokens else model.encoder.pooler(tokens)
        name = "logits" if len(model.heads) == 1 else OUTPUTS.get(head_kind, f"{head_kind}_logits")
        outputs[name] = head(head_input)
    return outputs


def to_onnx(model: Model) -> bytes:
    """The file, compared with the model on three shapes that the export has not seen.

    ValueError where they differ.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        require_package(package, "export", "format=onnx")
    between = {"bilstm", "feature_mix"} & set(model.heads)
    if between:
        raise ValueError(
            f"{model.folder} has a {between.pop()} between encoder and head, which is not exported"
            " to ONNX"
        )
    if model.encoder.config.num_directions == 2:
        raise ValueError(f"{model.folder} reads in two directions, which is not exported to ONNX")
    if model.encoder.choose_global is not None or any(mask.blocks for mask in model.encoder.masks):
        raise ValueError(
            f"{model.folder}: attention that depends on a text's tokens or its length (Longformer's"
            " global tokens, BigBird) is not exported to ONNX; take format=transformers"
        )
    not_exported = (DisentangledPositions, SegmentedDistances)
    if isinstance(model.encoder.embeddings.position_embeddings, not_exported):
        raise ValueError(
            f"{model.folder}: scores of distances (DeBERTa, XLNet) are not exported to ONNX; take"
            " format=transformers"
        )
    for head in model.heads.values():
        if getattr(head, "reads_hidden_states", False):
            raise ValueError(
                f"{model.folder}: a head that reads states below the last ones (mlm_emd) is not"
                " exported to ONNX; take format=transformers"
            )
    padded = Padded(model).eval()
    # Both dimensions of all inputs may have other sizes than the example's.
    dimensions = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=model.max_length)}
    example = tuple(random_rows(model, [min(7, model.max_length), 3]).values())
    names = list(padded.outputs(*example))
    # Its own account of the steps is long, and goes to stdout.
    with redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"), torch.no_grad():
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            padded,
            example,
            input_names=INPUTS,
            output_names=names,
            dynamo=True,
            verbose=False,
            dynamic_shapes=dict.fromkeys(INPUTS, dimensions),
        )
    assert program is not None
    content = program.model_proto.SerializeToString()
    distance = difference(model, names, content)
    if not distance <= TOLERANCE:  # or it is no number
        raise ValueError(
            f"{model.folder}: onnxruntime gives outputs that are {distance:.1e} away from the"
            " model's"
        )
    return bytes(content)


def random_rows(model: Model, lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    """Random padded sequences of these lengths, under the names of INPUTS."""
    config = model.encoder.config
    is_real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]  # [B, S]
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, config.vocab_size, is_real.shape, generator=generator)
    types = torch.randint(0, max(1, config.type_vocab_size), is_real.shape, generator=generator)
    return {
        "input_ids": torch.where(is_real, ids, config.pad_token_id),
        "attention_mask": is_real.long(),
        "token_type_ids": types * is_real,
    }


def difference(model: Model, names: list[str], content: bytes) -> float:
    """The largest difference on real tokens between onnxruntime's outputs and the model's own."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content)
    longest = model.max_length
    batches = ([2], [5, 1, 4, 5], [longest, max(1, longest // 2), 3])
    largest = 0.0
    for seed, wanted_lengths in enumerate(batches, start=1):
        lengths = [min(length, longest) for length in wanted_lengths]
        batch = random_rows(model, lengths, seed)
        inputs = {name: value.numpy() for name, value in batch.items()}
        exported_outputs = session.run(None, inputs)
        with torch.no_grad():
            model_outputs = stream_outputs(model, batch, lengths)
        is_real = batch["attention_mask"].bool().numpy()
        for name, exported in zip(names, exported_outputs, strict=True):
            expected = model_outputs[name].numpy()
            # Outputs of tokens are padded there: [B, S, ...] -> [T, ...].
            if len(expected) == is_real.sum() and exported.shape[:2] == is_real.shape:
                exported = exported[is_real]
            distance = np.abs(expected - exported).max()
            largest = float(np.maximum(largest, distance))  # which keeps a NaN
    return largest


def stream_outputs(model: Model, batch: dict[str, Tensor], lengths: list[int]) -> dict[str, Tensor]:
    """The same outputs by the model itself: [T, ...] of tokens, [B, ...] of sequences."""
    encoder = model.encoder
    is_real = batch["attention_mask"].bool()
    positions = torch.cat([torch.arange(length) for length in lengths])
    layout = Layout.ragged(lengths)
    states = encoder(
        batch["input_ids"][is_real], batch["token_type_ids"][is_real], positions, layout
    ).sequence_output
    return named_outputs(model, states, encoder.pooled_states(states, layout))
