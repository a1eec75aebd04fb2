"""The encoder from below: the two halves of a layer, the layers, and the whole over a token stream.

Unusual: no batch dimension and no padding arithmetic; hidden states are [T, H] all the way and only
attention looks at the layout. Query, key and value are one matrix. Parameter names are like BERT's
in Hugging Face; what a folder calls them is in families/.

Letters: T tokens in the stream, B sequences, E embedding size, H hidden size, N heads, D head
dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from clozelab.models import attention
from clozelab.models.attention import (
    AttentionInputs,
    DenseRows,
    LongAttention,
    Mask,
    attention_of,
    dense_rows,
)
from clozelab.models.config import EncoderConfig
from clozelab.models.embeddings import Embeddings
from clozelab.models.layers import Dropout, Linear, ReadSlots, activation, initialise_
from clozelab.models.layout import Layout
from clozelab.models.trained import freeze
from clozelab.models.windows import weighted_values

SENTENCE_POOLINGS = ("mean", "cls")
# Share of the slots from which on the last layer goes on for all: to choose has a cost, too.
READS_ALL_FROM = 0.8
# Shapes that are compiled before torch gives up and runs the rest uncompiled: phases x (with,
# without padding) x (last micro-batch, others).
MAX_SHAPES = 64


def layer_norm(config: EncoderConfig) -> nn.Module:
    return config.norm.build(config, config.hidden_size)


def residual_scale(config: EncoderConfig) -> float:
    """So that a sum of two outputs a layer is no larger at any depth (Radford et al. 2019)."""
    return (2.0 * config.num_hidden_layers) ** -0.5


class LayerNorm(nn.LayerNorm):
    """Mean 0 and deviation 1, times a learned gain, plus a learned bias where that is wanted."""

    def __init__(self, config: EncoderConfig, size: int, bias: bool = True) -> None:
        super().__init__(size, config.layer_norm_eps, bias=bias)


class RMSNorm(nn.RMSNorm):
    """Root mean square 1, times a learned gain (Zhang and Sennrich 2019)."""

    def __init__(self, config: EncoderConfig, size: int) -> None:
        super().__init__(size, config.layer_norm_eps)


class Bottleneck(nn.Module):
    """An adapter: x plus a narrow layer of x, which is close to zero at first.

    Source: Houlsby et al. 2019, whose matrices begin with a deviation of 0.01.
    """

    def __init__(self, config: EncoderConfig, size: int) -> None:
        super().__init__()
        self.down = Linear(config.hidden_size, size)
        self.activation = activation("gelu")
        self.up = Linear(size, config.hidden_size)
        for matrix in (self.down, self.up):
            matrix.init_scale = 0.01 / config.initializer_range

    def forward(self, x: Tensor) -> Tensor:
        """[T, H] -> [T, H]."""
        return x + self.up(self.activation(self.down(x)))


class ResidualOutput(nn.Module):
    """How both halves of a layer end: dense, dropout, an adapter if there is one, the residual.

    A norm follows where that comes last. `adapter_size` 0: no adapter.
    """

    def __init__(
        self, input_size: int, config: EncoderConfig, norm_last: bool, adapter_size: int = 0
    ) -> None:
        super().__init__()
        self.dense = Linear(input_size, config.hidden_size, config.use_bias)
        self.LayerNorm = layer_norm(config) if norm_last else nn.Identity()
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.adapter = Bottleneck(config, adapter_size) if adapter_size else nn.Identity()

    def forward(self, x: Tensor, residual: Tensor, read: ReadSlots | None = None) -> Tensor:
        """[T, input size], [T, H] -> [T, H]; with R rows where `read` says which slots they are."""
        return self.LayerNorm(self.adapter(self.dropout(self.dense(x), read)) + residual)


class SelfAttention(nn.Module):
    def __init__(self, config: EncoderConfig, norm_last: bool) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_dim = config.head_dim
        self.dropout_prob = config.attention_probs_dropout_prob
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size, config.use_bias)
        # Of tokens that see everything; trained once a head has some.
        self.qkv_global = None
        if isinstance(config.attention.build(config), LongAttention):
            self.qkv_global = Linear(config.hidden_size, 3 * config.hidden_size, config.use_bias)
            freeze(self.qkv_global.parameters())
        self.output = ResidualOutput(
            config.hidden_size, config, norm_last, config.attention_adapter
        )

    def forward(
        self,
        hidden: Tensor,
        residual: Tensor,
        inputs: AttentionInputs,
        queries: Tensor | None = None,
    ) -> Tensor:
        """[T, H] twice -> [T, H], or [R, H] of the slots that are read.

        `queries` [T, H] ask instead of `hidden`.
        """
        if queries is None:
            qkv = self.qkv(hidden)
        else:
            # Query from one stream, key and value from the other: two parts of one matrix.
            width = hidden.shape[1]
            query = self.project(queries, slice(width))
            qkv = torch.cat([query, self.project(hidden, slice(width, None))], dim=1)
        qkv = qkv.view(-1, 3, self.num_heads, self.head_dim)  # [T, 3, N, D]
        inputs = inputs.of_layer(self)
        attended = attention_of(qkv, inputs, dropout_prob=self.dropout_prob, training=self.training)
        if inputs.stream is not None and self.qkv_global is not None:
            states = self.qkv_global(hidden).view(qkv.shape)
            attended = self._attend_globally(states, attended, inputs.stream)
        attended = attended.flatten(1)
        if inputs.read is not None:
            attended = attended.index_select(0, inputs.read.slots)
            residual = residual.index_select(0, inputs.read.slots)
        return self.output(attended, residual, inputs.read)

    def _attend_globally(self, qkv: Tensor, attended: Tensor, layout: Layout) -> Tensor:
        """`attended` [T, N, D], where global tokens see all of their sequences instead."""
        assert layout.global_slots is not None
        prob = self.dropout_prob if self.training else 0.0
        rows = []
        outs = []
        starts = layout.first_rows.tolist()
        texts = zip(starts, layout.lengths_list, layout.global_slots, strict=True)
        for start, length, slots in texts:
            q, k, v = qkv[start : start + length].permute(1, 2, 0, 3)  # [N, S, D]
            out = weighted_values(q[:, slots], k, v, self.head_dim**-0.5, prob)
            outs.append(out.transpose(0, 1))
            rows += [start + slot for slot in slots]
        out = torch.cat(outs).to(attended.dtype)
        return attended.index_copy(0, torch.tensor(rows, device=out.device).long(), out)

    def project(self, x: Tensor, rows: slice) -> Tensor:
        """[..., H] by some rows of the matrix of query, key and value."""
        bias = None if self.qkv.bias is None else self.qkv.bias[rows]
        return F.linear(x, self.qkv.weight[rows], bias)


class Intermediate(nn.Module):
    """Dense and activation.

    Gated (Shazeer 2020, GeGLU): times a second dense, from one matrix of both.
    """

    def __init__(self, config: EncoderConfig, gated: bool) -> None:
        super().__init__()
        self.gated = gated
        size = config.intermediate_size * (2 if gated else 1)
        self.dense = Linear(config.hidden_size, size, config.use_bias)
        self.activation = activation(config.hidden_act)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, H] -> [T, intermediate size]."""
        if not self.gated:
            return self.activation(self.dense(hidden))
        inner, gate = self.dense(hidden).chunk(2, dim=-1)
        return self.activation(inner) * gate


class Block(nn.Module):
    """What the encoder asks of a layer."""

    reads_neighbours: ClassVar[bool] = False  # beside attention: padding slots are then zero
    reads_some_slots: ClassVar[bool] = False  # whether it knows of AttentionInputs.read
    embedding_norm: bool = True  # behind the embeddings

    @classmethod
    def build_final_norm(cls, config: EncoderConfig) -> nn.Module:  # noqa: ARG003
        """What stands behind the last of such layers."""
        return nn.Identity()


class PostNorm(Block):
    """BERT's layer: each half ends with a norm. `gated`: see Intermediate.

    `layer_index` is the layer's number; of layers that share weights, the first one's.
    """

    reads_some_slots = True

    def __init__(
        self,
        config: EncoderConfig,
        layer_index: int,  # noqa: ARG002
        gated: bool = False,
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(config, norm_last=True)
        self.intermediate = Intermediate(config, gated)
        self.output = ResidualOutput(
            config.intermediate_size, config, True, config.feed_forward_adapter
        )

    def forward(
        self, hidden: Tensor, inputs: AttentionInputs, queries: Tensor | None = None
    ) -> Tensor:
        """[T, H] -> [T, H], or [R, H] of the slots that are read.

        `queries` [T, H] ask and are gone on from, instead of `hidden`.
        """
        # DeBERTa's decoder asks with positions, of states that have none.
        residual = hidden if queries is None else queries
        attended = self.attention(hidden, residual, inputs, queries)
        return self.output(self.intermediate(attended), attended, inputs.read)


class PreNorm(Block):
    """Each half begins with a norm (Xiong et al. 2020).

    The encoder adds one after its last layer. `first_norm` False: layer 0 reads the embeddings as
    they are. `scaled_outputs`: fresh matrices that end a half are smaller by sqrt(2 layers).
    `embedding_norm` False: none behind the embeddings.
    """

    reads_some_slots = True

    def __init__(
        self,
        config: EncoderConfig,
        layer_index: int,
        gated: bool = False,
        first_norm: bool = True,
        scaled_outputs: bool = False,
        embedding_norm: bool = True,
    ) -> None:
        super().__init__()
        self.embedding_norm = embedding_norm
        has_norm = first_norm or layer_index > 0
        self.attention_norm = layer_norm(config) if has_norm else nn.Identity()
        self.feed_forward_norm = layer_norm(config)
        self.attention = SelfAttention(config, norm_last=False)
        self.intermediate = Intermediate(config, gated)
        self.output = ResidualOutput(
            config.intermediate_size, config, False, config.feed_forward_adapter
        )
        # The matrices that end the two halves of a layer.
        if scaled_outputs:
            for half in (self.attention, self):
                half.output.dense.init_scale = residual_scale(config)

    @classmethod
    def build_final_norm(cls, config: EncoderConfig) -> nn.Module:
        return layer_norm(config)

    def forward(self, hidden: Tensor, inputs: AttentionInputs) -> Tensor:
        """[T, H] -> [T, H], or [R, H] of the slots that are read."""
        attended = self.attention(self.attention_norm(hidden), hidden, inputs)
        inner = self.intermediate(self.feed_forward_norm(attended))
        return self.output(inner, attended, inputs.read)


class EncoderOutput(NamedTuple):
    """What the encoder gives.

    A named tuple, not a dataclass: wrappers for sharded training look for tensors in outputs and
    know tuples.
    """

    sequence_output: Tensor  # [T, H]
    # The first layer's input and each layer's output, [T, H], the last one as above, behind a norm
    # where the family has one there; none of them where they are not asked for.
    hidden_states: tuple[Tensor, ...]


def round_up_to_bucket(num_slots: int) -> int:
    """T of a ragged stream rounded up, to one of sixteen sizes between powers of two.

    That is 3 % more on average. oneDNN builds its matrix kernels anew for every T, which took 5 of
    12 ms a training step for 450 tokens at H 128.
    """
    step = max(8, 1 << max(0, num_slots.bit_length() - 5))
    return -(-num_slots // step) * step


class Pooler(nn.Module):
    """Dense and tanh on one token of each sequence."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = Linear(config.output_size, config.output_size, config.use_bias)

    def forward(self, token_states: Tensor) -> Tensor:
        """[B, H] -> [B, H]."""
        return torch.tanh(self.dense(token_states))


class RightToLeftStack(nn.Module):
    """The layers that read from right to left, with a final norm where the others have one."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        blocks = _make_blocks(config)
        self.layer = nn.ModuleList(blocks)
        self.final_norm = blocks[0].build_final_norm(config)


def _make_blocks(config: EncoderConfig) -> list[Block]:
    """A block for each set of weights, made for the first layer that has it."""
    blocks: list[Block] = []
    for layer_index in range(config.num_hidden_layers):
        if group_of_layer(config, layer_index) == len(blocks):
            blocks.append(config.block.build(config, layer_index))
    return blocks


def group_of_layer(config: EncoderConfig, layer_index: int) -> int:
    """The set of weights of a layer; divided as transformers does for ALBERT, rounding included."""
    return int(layer_index / (config.num_hidden_layers / config.num_hidden_groups))


class MeanPooler(nn.Module):
    """The mean of a sequence's states stands for it, as it is."""

    def __init__(self, config: EncoderConfig) -> None:  # noqa: ARG002
        super().__init__()

    def forward(self, mean_states: Tensor) -> Tensor:
        """[B, H] -> [B, H]."""
        return mean_states


class ContextPooler(Pooler):
    """Dropout, dense and activation on one token of each sequence (He et al. 2021).

    `head_dropout` stands between it and a head; None: the hidden dropout.
    """

    def __init__(
        self,
        config: EncoderConfig,
        dropout: float = 0.0,
        hidden_act: str = "gelu",
        head_dropout: float | None = None,
    ) -> None:
        super().__init__(config)
        self.dropout = Dropout(dropout)
        self.activation = activation(hidden_act)
        self.head_dropout = head_dropout

    def forward(self, token_states: Tensor) -> Tensor:
        """[B, H] -> [B, H]."""
        return self.activation(self.dense(self.dropout(token_states)))


def score_dtype(hidden: Tensor) -> torch.dtype:
    """That of query and key of these states, which autocast may make narrower."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return hidden.dtype


class Encoder(nn.Module):
    """Embeddings, layers and pooler, with fresh weights.

    With two directions there is a second stack of layers, `backward_stack`, on the same embeddings.
    It reads each sequence reversed within its length, and its states stand behind the first one's.

    `generator` is their source; None: torch's global random state. `embeddings`: those of another
    encoder with as many words, as wide, to share; they stay as they are. `is_drawn`: False leaves
    the memory of embeddings and matrices unset, for who fills all of it. `gradient_checkpointing`,
    set from outside, keeps only each layer's input and computes the rest again in backward.
    """

    def __init__(
        self,
        config: EncoderConfig,
        generator: torch.Generator | None = None,
        embeddings: Embeddings | None = None,
        *,
        is_drawn: bool = True,
    ) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        self.run_stack: Any = run_layers  # or, compiled, the same
        self.is_compiled = False
        # A folder's may be.
        self.has_trained_pooler = False
        pattern = config.attention.build(config)
        self.masks: list[Mask] = [
            pattern.mask(number) for number in range(config.num_hidden_layers)
        ]
        # Token ids [T] and their layout -> its global slots; a head may put it here.
        self.choose_global: Any = None
        if embeddings is None:
            self.embeddings = Embeddings(config)
        self.embeddings_project = None
        if config.has_projection:
            self.embeddings_project = Linear(config.embedding_size, config.hidden_size)
        self.layer = nn.ModuleList(_make_blocks(config))
        if embeddings is None and not self.first_block.embedding_norm:
            self.embeddings.LayerNorm = nn.Identity()
        self.final_norm = self.first_block.build_final_norm(config)
        self.backward_stack = RightToLeftStack(config) if config.num_directions == 2 else None
        self.pooler: nn.Module = config.pooler.build(config) if config.pooler else nn.Identity()
        if is_drawn:
            initialise_(self, config.initializer_range, generator)
        if embeddings is None:
            self.embeddings.position_embeddings.start(config.initializer_range)
        else:
            self.embeddings = embeddings

    @property
    def has_fresh_pooler(self) -> bool:
        """Whether it has a pooler that no loss has read."""
        return bool(list(self.pooler.parameters())) and not self.has_trained_pooler

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        position_ids: Tensor,
        layout: Layout,
        output_hidden_states: bool = False,
        read_slots: Tensor | None = None,
    ) -> EncoderOutput:
        """int64 [T] each -> [T, H]; padding slots hold values that mean nothing.

        With two directions -> [T, 2 H]. `read_slots` int64 [R]: only these states are wanted;
        the others are NaN where the last layer did not go on for them.
        """
        if self.choose_global is not None and layout.global_slots is None:
            slots = self.choose_global(input_ids, layout)
            layout = replace(layout, global_slots=slots, _cache={})
        stream = (input_ids, token_type_ids, position_ids)
        if output_hidden_states or not self.can_read_some_slots:
            read_slots = None
        elif read_slots is not None:
            read_slots = read_slots.unique()
        output = self._read_one_way(
            stream, layout, self, output_hidden_states, read_slots=read_slots
        )
        if self.backward_stack is None:
            return output
        reversal = layout.reversal
        # Positions count from the right; then the stream is turned round, and back at the end.
        from_right = position_ids.index_select(0, reversal)
        stream = (input_ids, token_type_ids, from_right)
        backward = self._read_one_way(
            stream, layout, self.backward_stack, output_hidden_states, reversal
        )
        # Side by side, once both are in the text's order again.
        states = []
        pairs = zip(output.hidden_states, backward.hidden_states, strict=True)
        for left, right in [*pairs, (output.sequence_output, backward.sequence_output)]:
            states.append(torch.cat([left, right.index_select(0, reversal)], dim=-1))
        return EncoderOutput(states.pop(), tuple(states))

    def _read_one_way(
        self,
        stream: tuple[Tensor, Tensor, Tensor],
        layout: Layout,
        stack: Encoder | RightToLeftStack,
        output_hidden_states: bool,
        reversal: Tensor | None = None,
        read_slots: Tensor | None = None,
    ) -> EncoderOutput:
        """[T, H] of the layers of one stack; their first input is in the order of `reversal`."""
        scheme: Any = self.embeddings.position_embeddings
        hidden = scheme.with_queries(self.embed(*stream), layout)
        _, token_type_ids, position_ids = stream
        position_ids = scheme.places(position_ids, token_type_ids, layout)
        if reversal is not None:
            hidden = hidden.index_select(0, reversal)
            position_ids = position_ids.index_select(0, reversal)
        num_slots = len(hidden)
        # A ragged stream goes on after its last sequence; what is added is cut off at the end.
        if layout.dense_width is None and hidden.device.type == "cpu":
            padding = round_up_to_bucket(num_slots) - num_slots
            hidden = F.pad(hidden, (0, 0, 0, padding))
            added = position_ids.new_zeros(padding, *position_ids.shape[1:])
            position_ids = torch.cat([position_ids, added])
        # A convolution reads across an edge of the text, where Hugging Face has zeros.
        is_padded = layout.row_slots is not None and not layout.full
        if is_padded and self.first_block.reads_neighbours:
            hidden = hidden.masked_fill(layout.key_padding().reshape(-1, 1), 0.0)
        inputs = self._inputs_of_stack(position_ids, hidden, layout)
        of_layers = [inputs[mask] for mask in self.masks]
        read = _some_slots(read_slots, num_slots, len(hidden))
        of_layers[-1] = of_layers[-1]._replace(read=read)
        hidden, kept = self.run_stack(self, stack, hidden, of_layers, output_hidden_states)
        hidden = stack.final_norm(hidden)
        if read is None or read_slots is None:
            hidden = hidden[:num_slots]
        else:
            _require_states(self.layers(stack)[-1], hidden, read)
            # Who reads another slot by mistake gets NaN, which no loss hides.
            others = hidden.new_full((num_slots, hidden.shape[1]), torch.nan)
            hidden = others.index_copy(0, read_slots, hidden[: len(read_slots)])
        hidden_states = [states[:num_slots] for states in kept]
        return EncoderOutput(hidden, (*hidden_states, hidden) if output_hidden_states else ())

    def _inputs_of_stack(
        self, position_ids: Tensor, hidden: Tensor, layout: Layout
    ) -> dict[Mask, AttentionInputs]:
        """Mask -> what each of its layers is given, made once for all of them."""
        inputs = self.attention_inputs(position_ids, self.rows_of(hidden, layout))
        dtype = score_dtype(hidden)
        for mask, of_mask in inputs.items():
            inputs[mask] = of_mask.with_fixed_bias(dtype)
            if layout.global_slots is not None:
                inputs[mask] = inputs[mask]._replace(stream=layout)
        return inputs

    @property
    def can_read_some_slots(self) -> bool:
        """Whether the last layer may go on for the slots alone that are read.

        On a GPU, and compiled, each number of slots would be a new shape.
        """
        last: Any = self.layers()[-1]
        # Not of a weight by its name: one with an update would be computed for that.
        has_few_shapes = self.is_compiled or next(last.parameters()).device.type != "cpu"
        if self.backward_stack is not None or has_few_shapes:
            return False
        return last.reads_some_slots and not last.reads_neighbours

    def read(
        self,
        batch: Mapping[str, object],
        output_hidden_states: bool = False,
        read_slots: Tensor | None = None,
    ) -> EncoderOutput:
        """The forward on a batch, whose keys are called as its arguments."""
        return self(
            batch["input_ids"],
            batch["token_type_ids"],
            batch["position_ids"],
            batch["layout"],
            output_hidden_states,
            read_slots,
        )

    def share_projections(self, *, only_equal: bool = False) -> None:
        """Lets the matrices of global tokens be the others, while nothing is global.

        So both begin alike where something is (Beltagy et al. 2020). `only_equal`: of a layer whose
        two are alike, as pre-training leaves them.
        """
        for block in self.blocks:
            attention: Any = block.attention
            if attention.qkv_global is None:
                continue
            is_equal = torch.equal(attention.qkv.weight, attention.qkv_global.weight)
            if is_equal or not only_equal:
                attention.qkv_global = attention.qkv

    def set_dropout(self, prob: float) -> None:
        """One probability of dropout everywhere, whatever the configuration says."""
        for module in self.modules():
            if isinstance(module, Dropout):
                module.prob = prob
            elif isinstance(module, SelfAttention):
                module.dropout_prob = prob

    def embed(self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor) -> Tensor:
        """int64 [T] each -> what goes into the first layer, [T, H]."""
        hidden = self.embeddings(input_ids, token_type_ids, position_ids)  # [T, E]
        if self.embeddings_project is not None:
            hidden = self.embeddings_project(hidden)
        return hidden

    @property
    def blocks(self) -> list[nn.Module]:
        """The modules of all layers, of both directions."""
        if self.backward_stack is None:
            return list(self.layer)
        return [*self.layer, *self.backward_stack.layer]

    @property
    def first_block(self) -> Block:
        block: Any = self.layer[0]
        return block

    def layers(self, stack: Encoder | RightToLeftStack | None = None) -> list[nn.Module]:
        """One module a layer, of one direction; neighbours may share one."""
        blocks = list((stack or self).layer)
        layers = range(self.config.num_hidden_layers)
        return [blocks[group_of_layer(self.config, number)] for number in layers]

    def rows_of(self, hidden: Tensor, layout: Layout) -> Callable[[Mask], Layout | DenseRows]:
        """How attention sees the stream of `hidden` [T, H], by mask."""
        num_heads = self.config.num_attention_heads
        dtype = score_dtype(hidden)
        positions: Any = self.embeddings.position_embeddings
        in_chunks = not positions.has_layers_shape

        def rows(mask: Mask) -> Layout | DenseRows:
            equal = dense_rows(layout, mask, num_heads, dtype, hidden.device, in_chunks)
            return layout if equal is None else equal

        return rows

    def attention_inputs(
        self, position_ids: Tensor, rows: Callable[[Mask], Layout | DenseRows]
    ) -> dict[Mask, AttentionInputs]:
        """What attention is told, by mask: worked out once for all layers that have it."""
        positions = self.embeddings.position_embeddings
        inputs = {}
        for mask in self.masks:
            if mask not in inputs:
                inputs[mask] = AttentionInputs(
                    rows(mask),
                    mask,
                    positions.rotation(position_ids, mask),
                    positions.score_bias(position_ids),
                )
        return inputs

    def token_states(self, sequence_output: Tensor, layout: Layout) -> Tensor:
        """[T, H] -> [B, H]: the state of each sequence's first token.

        Of a causal encoder it is its last real one, unless its configuration says
        `pools_first_token`. With two directions it is what each of them has read last.
        """
        if self.backward_stack is not None:
            return last_of_directions(sequence_output, layout)
        return sequence_output.index_select(0, self.token_slots(layout))

    def token_slots(self, layout: Layout) -> Tensor:
        """int64 [B]: where `token_states` stand in the stream of an encoder of one direction."""
        return layout.last_rows if self.config.pools_last_token else layout.first_rows

    def pooled_slots(self, layout: Layout) -> Tensor | None:
        """int64 [B]: the slots that `pooled_states` reads; None: all of them."""
        return None if isinstance(self.pooler, MeanPooler) else self.token_slots(layout)

    def sentence_slots(self, layout: Layout, pooling: str) -> Tensor | None:
        """int64 [B]: the slots that `sentence_states` reads; None: all of them."""
        return self.token_slots(layout) if pooling == "cls" else None

    def sentence_states(self, hidden: Tensor, layout: Layout, pooling: str) -> Tensor:
        """[T, H] -> fp32 [B, H]: each sequence's mean over all its tokens.

        With the pooling `cls` its `token_states`.
        """
        if pooling == "cls":
            return self.token_states(hidden, layout).float()
        if layout.row_slots is not None:
            states = hidden.float().view(layout.batch_size, layout.row_slots, -1)
            sums = states.masked_fill(layout.key_padding()[:, :, None], 0.0).sum(1)
            return sums / layout.lengths[:, None]
        # owner [T]: which sequence each token is of.
        owner = torch.repeat_interleave(layout.lengths, output_size=len(hidden))
        sums = hidden.new_zeros(layout.batch_size, hidden.shape[1], dtype=torch.float32)
        return sums.index_add(0, owner, hidden.float()) / layout.lengths[:, None]

    def pooled_states(self, sequence_output: Tensor, layout: Layout) -> Tensor:
        """[T, H] -> [B, H]: what the pooler reads, `token_states` or the mean."""
        if isinstance(self.pooler, MeanPooler):
            means = self.sentence_states(sequence_output, layout, "mean")
            return means.to(sequence_output.dtype)
        return self.token_states(sequence_output, layout)

    def pool(
        self, sequence_output: Tensor, layout: Layout, head: nn.Module | None = None
    ) -> Tensor:
        """[T, H] -> [B, H]: what `head` reads of a sequence.

        That is the pooler's output, unless the head has its own dense layer.
        """
        states = self.pooled_states(sequence_output, layout)
        if getattr(head, "reads_token_states", False):
            return states
        return self.pooler(states)


def _some_slots(slots: Tensor | None, num_slots: int, num_rows: int) -> ReadSlots | None:
    """Where the last layer goes on; None: everywhere, since nearly all slots are read.

    Their number is rounded up as that of a stream is, by slot 0 once more: its states there are
    cut off again. `num_rows`: of the stream, which may go on after its last sequence.
    """
    if slots is None:
        return None
    number = round_up_to_bucket(len(slots))
    if number >= READS_ALL_FROM * num_slots:
        return None
    return ReadSlots(F.pad(slots, (0, number - len(slots))), num_rows)


def _require_states(layer: nn.Module, hidden: Tensor, read: ReadSlots) -> None:
    """ValueError where a layer gave other states than those that are read."""
    if len(hidden) != len(read.slots):
        raise ValueError(
            f"{type(layer).__name__} gives {len(hidden)} states where {len(read.slots)} slots are"
            " read: its forward has to follow inputs.read, or the class says"
            " reads_some_slots = False"
        )


def last_of_directions(states: Tensor, layout: Layout) -> Tensor:
    """[T, 2 G] -> [B, 2 G]: each direction's state where it has read the whole sequence."""
    forward, backward = states.chunk(2, dim=-1)
    last_states = forward.index_select(0, layout.last_rows)
    first_states = backward.index_select(0, layout.first_rows)
    return torch.cat((last_states, first_states), dim=-1)


def run_layers(
    encoder: Encoder,
    stack: Encoder | RightToLeftStack,
    hidden: Tensor,
    inputs: Sequence[AttentionInputs],
    keeps_states: bool,
) -> tuple[Tensor, list[Tensor]]:
    """[T, H] through the layers of a stack; what each was given, where that is kept."""
    states = []
    for layer, of_layer in zip(encoder.layers(stack), inputs, strict=True):
        if keeps_states:
            states.append(hidden)
        if encoder.gradient_checkpointing and encoder.training and torch.is_grad_enabled():
            # Dropout is drawn again from the saved generator state: the same bits.
            hidden = checkpoint(layer, hidden, of_layer, use_reentrant=False)
        else:
            hidden = layer(hidden, of_layer)
    return hidden, states


def compile_encoder(
    encoder: Encoder, *, dynamic: bool, whole: bool = False, **options: Any
) -> None:
    """Compiles `encoder` where it stands, with `options` of torch.compile.

    `dynamic` False: one compilation a shape, for batches of few shapes; True: one for all, for
    ragged batches. `whole`: all layers in one, which takes longer and is a little faster then.
    """
    import torch._dynamo  # a second of start-up that only compiled runs pay

    encoder.is_compiled = True
    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, MAX_SHAPES)
    # Host-side grouping of ragged batches: nothing in it to compile, and no two batches are alike.
    if not getattr(attention._grouped, "_torchdynamo_disable", False):
        attention._grouped = torch.compiler.disable(attention._grouped)
    encoder.embeddings.compile(dynamic=dynamic, **options)
    if whole:
        # Not all of its forward: that reads each length on the host, and would compile for each.
        encoder.run_stack = torch.compile(run_layers, dynamic=dynamic, **options)
        return
    for block in encoder.blocks:
        block.compile(dynamic=dynamic, **options)
