"""Where the sequences of a token stream begin and end.

A batch is one stream of T tokens. Either a *rectangle*: B rows of S slots, real tokens first, T =
B*S; or *ragged*: sequences one after the other without padding, T = sum of lengths. Hidden states
stay [T, H] all the way; only attention, pooling and recurrent heads ask the layout.

Unusual: lengths are kept twice, as a tensor and as host integers, so that grouping never waits for
a device; index tensors derived from them are remembered.

Letters: T tokens in the stream, B sequences, S slots a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass
class PaddedGroups:
    """The stream rearranged into blocks of similar length, each padded to its longest sequence.

    All indices are int64.
    """

    # [padded rows]: the stream row of each padded row; a padding row names its sequence's first
    gather: Tensor
    # [T]: the padded row of each stream row; slots that hold no token name padded row 0.
    scatter: Tensor
    padded_padding: Tensor  # the padded rows that hold no token
    stream_padding: Tensor  # the stream rows that hold no token
    groups: list[tuple[int, Layout]]  # the first padded row of each block, and its rows


@dataclass
class Layout:
    """Sequence boundaries of one batch; made by `rectangle` or `ragged`."""

    lengths: Tensor  # int64 [B], real tokens
    row_slots: int | None  # S for a rectangle, None for a ragged stream
    max_seqlen: int
    lengths_list: list[int]  # `lengths` on the host
    # Of a rectangle, bool [B, S, S]: which slots (last axis) each slot may see, itself among them
    # or not, beside what the layers' masks say. None: all of its sequence.
    visibility: Tensor | None = None
    # Of each sequence the slots that see all of it, and are seen by it (Longformer). None: none.
    global_slots: list[list[int]] | None = None
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def rectangle(
        cls,
        lengths: Sequence[int] | np.ndarray,
        row_slots: int,
        visibility: Tensor | None = None,
    ) -> Layout:
        """B rows of `row_slots` slots; ValueError for a length that is not in 1..row_slots."""
        layout = cls.ragged(lengths)
        if layout.max_seqlen > row_slots:
            raise ValueError(
                f"layout: a sequence of {layout.max_seqlen} tokens does not fit a row of"
                f" {row_slots}"
            )
        layout.row_slots = int(row_slots)
        layout.visibility = visibility
        return layout

    @classmethod
    def ragged(cls, lengths: Sequence[int] | np.ndarray) -> Layout:
        """Sequences one after the other; ValueError for a length below 1."""
        numbers = np.array(lengths, dtype=np.int64)
        host = numbers.tolist()
        if not host:
            raise ValueError("layout: a batch needs at least one sequence")
        if numbers.min() < 1:
            raise ValueError(
                f"layout: a sequence of {min(host)} tokens; every sequence needs at least one"
            )
        return cls(torch.from_numpy(numbers), None, int(numbers.max()), host)

    @property
    def full(self) -> bool:
        """True for a rectangle without any padding."""
        return min(self.lengths_list) == self.row_slots

    @property
    def batch_size(self) -> int:
        return len(self.lengths_list)

    @property
    def num_slots(self) -> int:
        """T, padding included."""
        if self.row_slots is not None:
            return self.batch_size * self.row_slots
        return sum(self.lengths_list)

    @property
    def num_tokens(self) -> int:
        """Real tokens."""
        return sum(self.lengths_list)

    @property
    def dense_width(self) -> int | None:
        """S when the stream can be viewed as [B, S], else None; equal lengths are a rectangle."""
        if self.row_slots is not None:
            return self.row_slots
        if min(self.lengths_list) == self.max_seqlen:
            return self.max_seqlen
        return None

    @property
    def cu_seqlens(self) -> Tensor:
        """int32 [B + 1]: the first slot of each sequence, and T."""
        return self.cached("cu_seqlens", lambda: self._starts().to(torch.int32))

    @property
    def first_rows(self) -> Tensor:
        """int64 [B]: stream row of each sequence's first token."""
        return self.cached("first_rows", lambda: self._starts()[:-1])

    @property
    def last_rows(self) -> Tensor:
        """int64 [B]: stream row of each sequence's last real token."""
        return self.cached("last_rows", lambda: self.first_rows + self.lengths - 1)

    @property
    def reversal(self) -> Tensor:
        """int64 [T]: the slot that each slot's token has in its sequence read backwards.

        Within the real length: [CLS] a b [SEP] [PAD] is [SEP] b a [CLS] [PAD].
        """
        return self.cached("reversal", self._make_reversal)

    def _make_reversal(self) -> Tensor:
        starts = self.first_rows
        if self.row_slots is None:
            owner = torch.repeat_interleave(self.lengths, output_size=self.num_slots)
            slots = torch.arange(self.num_slots, device=self.lengths.device)
            return 2 * starts[owner] + self.lengths[owner] - 1 - slots
        slots = torch.arange(self.row_slots, device=self.lengths.device)
        last = self.lengths[:, None] - 1
        reversed_slots = torch.where(slots <= last, last - slots, slots)  # [B, S]
        return (starts[:, None] + reversed_slots).reshape(-1)

    def key_padding(self) -> Tensor:
        """bool [B, S] of equal rows: True on padding slots."""
        width = self.dense_width
        if width is None:
            raise ValueError("layout: only equal rows have padding slots")
        slots = torch.arange(width, device=self.lengths.device)
        return self.cached("key_padding", lambda: slots >= self.lengths[:, None])

    def global_rows_of(self, width: int) -> Tensor | None:
        """bool [B, S] of equal rows: which slots are global; None: there are none."""
        if self.global_slots is None:
            return None
        rows = torch.zeros(self.batch_size, width, dtype=torch.bool)
        for row, slots in zip(rows, self.global_slots, strict=True):
            row[slots] = True
        return rows.to(self.lengths.device)

    def cached(self, key: Any, make: Callable[[], Any]) -> Any:
        """`make()`, computed once for this layout."""
        if key not in self._cache:
            # A batch that was read in inference may be trained on.
            with torch.inference_mode(False):
                self._cache[key] = make()
        return self._cache[key]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Layout:
        """On `device`; what was remembered is forgotten.

        From pinned memory the copy never waits, asked or not.
        """
        is_pinned = torch.device(device).type == "cuda" and self.lengths.is_pinned()
        return self._moved(lambda x: x.to(device, non_blocking=non_blocking or is_pinned))

    def pin_memory(self) -> Layout:
        return self._moved(Tensor.pin_memory)

    def _moved(self, move: Callable[[Tensor], Tensor]) -> Layout:
        visibility = None if self.visibility is None else move(self.visibility)
        return replace(self, lengths=move(self.lengths), visibility=visibility, _cache={})

    def _starts(self) -> Tensor:
        """int64 [B + 1], computed on the device.

        A copy from the host would wait for all work that is queued there.
        """
        if self.row_slots is not None:
            return torch.arange(self.batch_size + 1, device=self.lengths.device) * self.row_slots
        return torch.nn.functional.pad(self.lengths.cumsum(0), (1, 0))

    def padded_groups(
        self,
        group_size: int,
        num_slots: int | None = None,
        width_multiple: int = 1,
        largest_group: int | None = None,
    ) -> PaddedGroups:
        """Sequences sorted by length in groups, padded to one width inside the group.

        Args:
            group_size: sequences in a group.
            num_slots: T of a stream that goes on after its last sequence, with slots that hold
                nothing.
            width_multiple: what the width is a multiple of.
            largest_group: sequences in a group where they have the same width.
        """
        options = (
            group_size,
            num_slots or self.num_slots,
            width_multiple,
            largest_group or group_size,
        )
        return self.cached(("groups", options), lambda: self._make_groups(*options))

    def _make_groups(
        self, group_size: int, num_slots: int, width_multiple: int, largest_group: int
    ) -> PaddedGroups:
        # Where each sequence of the stream begins; the shortest ones go first.
        lengths = np.asarray(self.lengths_list)
        slots = lengths if self.row_slots is None else np.full_like(lengths, self.row_slots)
        starts = np.cumsum(slots) - slots
        order = np.argsort(lengths, kind="stable")
        widths = -(-lengths[order] // width_multiple) * width_multiple  # rounded up
        scatter = np.full(num_slots, -1, dtype=np.int64)
        gather = []
        is_padding = []
        groups = []
        offset = 0  # padded rows so far
        first = 0
        while first < len(order):
            # The longest of the group is the last; more of its very width may follow.
            width = int(widths[min(first + group_size, len(order)) - 1])
            end_of_width = int(np.searchsorted(widths, width, side="right"))
            last = min(max(first + group_size, end_of_width), first + largest_group)
            members = order[first:last]
            first = last
            slots = np.arange(width)
            real = slots < lengths[members, None]  # [members, width]
            rows = starts[members, None] + np.where(real, slots, 0)
            padded_rows = offset + np.arange(real.size).reshape(real.shape)
            scatter[rows[real]] = padded_rows[real]
            gather.append(rows.reshape(-1))
            is_padding.append(~real.reshape(-1))
            layout = Layout.rectangle(lengths[members], width).to(self.lengths.device)
            if self.global_slots is not None:
                layout.global_slots = [self.global_slots[member] for member in members]
            groups.append((offset, layout))
            offset += real.size
        padded_padding = np.flatnonzero(np.concatenate(is_padding))
        stream_padding = np.flatnonzero(scatter < 0)
        return PaddedGroups(
            gather=self._to_device(np.concatenate(gather)),
            scatter=self._to_device(np.maximum(scatter, 0)),
            padded_padding=self._to_device(padded_padding),
            stream_padding=self._to_device(stream_padding),
            groups=groups,
        )

    def _to_device(self, index: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(index)
        if self.lengths.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.lengths.device, non_blocking=True)


class _Rearrange(torch.autograd.Function):
    """A permutation of rows that leaves gaps (zeros); its backward is the opposite one.

    torch's own would be an accumulating scatter, which is slow on the CPU.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, rows: Tensor, gaps: Tensor, inverse_rows: Tensor, inverse_gaps: Tensor
    ) -> Tensor:
        ctx.save_for_backward(inverse_rows, inverse_gaps)
        return x.index_select(0, rows).index_fill_(0, gaps, 0.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inverse_rows, inverse_gaps = ctx.saved_tensors
        gradient = grads[0].index_select(0, inverse_rows).index_fill_(0, inverse_gaps, 0.0)
        return gradient, None, None, None, None


def to_padded(x: Tensor, groups: PaddedGroups) -> Tensor:
    """Stream [T, ...] -> padded rows [padded rows, ...], zero where there is no token."""
    return _Rearrange.apply(
        x, groups.gather, groups.padded_padding, groups.scatter, groups.stream_padding
    )


def from_padded(x: Tensor, groups: PaddedGroups) -> Tensor:
    """Padded rows [padded rows, ...] -> stream [T, ...], zero where there is no token."""
    return _Rearrange.apply(
        x, groups.scatter, groups.stream_padding, groups.gather, groups.padded_padding
    )
