"""Attention in windows and blocks at long rows, beside plain masked attention, in time and memory.

Masks are those of the recipes of Longformer, ModernBERT (its local layers) and BigBird. "Plain" is
one product, one softmax and one product more on padded rows. Both run forward and backward in bf16;
errors are those against one sequence after the other in fp32.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from clozelab.models.attention import (
    AttentionInputs,
    Mask,
    attention,
    dense_rows,
    has_varlen_kernel,
    masked_pairs,
)
from clozelab.models.layout import Layout
from clozelab.models.windows import block_bias
from families import FULL_ROWS, MEMBERS, make_member
from gpu_kernels import largest_error
from gpu_plan import Line, Plan, require, table

NAMES = ("Longformer", "ModernBERT", "BigBird")
TITLES = ("way", "error", "plain's error", "ms", "plain's ms", "peak GiB", "plain's peak GiB")
Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]


def check_long_rows(plan: Plan) -> list[Line]:
    """A line a mask and layout."""
    table(plan, "attention of long rows", *TITLES, "seconds", "verdict")
    lines = []
    for name in NAMES:
        line = Line(name)
        mask = line.attempt("build", partial(recipe_mask, name))
        if mask is None:
            line.write(plan, [], len(TITLES))
            lines.append(line)
            continue
        for kind in ("padded", "ragged"):
            line = Line(f"{name}, {kind}")
            cells = line.check("rows", len(TITLES), partial(long_cells, plan, mask, kind))
            line.write(plan, cells, len(TITLES))
            lines.append(line)
            plan.free()
    return lines


def recipe_mask(name: str) -> Mask:
    """Of the last of two layers; in ModernBERT the first one sees all."""
    member = make_member(MEMBERS[name], 1, always=("model=tiny", FULL_ROWS))
    mask: Mask = member.model.encoder.masks[-1]
    return mask


def long_cells(plan: Plan, mask: Mask, kind: str) -> list[str]:
    """AssertionError where ours errs by more than twice of what plain attention does."""
    rows = LongRows(plan, mask, kind)
    generator = torch.Generator().manual_seed(0)
    shape = (rows.layout.num_slots, rows.heads, rows.head_dim)
    low = []
    for _ in range(4):
        low.append(torch.randn(shape, generator=generator).to(plan.device, torch.bfloat16))
    exact = rows.run(rows.one_by_one, [x.float() for x in low])
    plain = rows.plain()
    error = largest_error(rows.run(rows.attend, low), exact)
    usual_error = largest_error(rows.run(plain, low), exact)
    del exact
    times = []
    peaks = []
    for kernel in (rows.attend, plain):
        milliseconds, peak = rows.measure(kernel, low)
        times.append(f"{milliseconds:.1f}")
        peaks.append(peak)
    require(error <= 2 * usual_error + 1e-2, f"errs by {error:.1e}, plain by {usual_error:.1e}")
    return [rows.way(low[0]), f"{error:.0e}", f"{usual_error:.0e}", *times, *peaks]


class LongRows:
    """Some long sequences, padded or in a ragged stream, and the ways to attend in them."""

    def __init__(self, plan: Plan, mask: Mask, kind: str) -> None:
        self.plan = plan
        self.mask = mask
        self.lengths = [1024, 760] if plan.smoke else [4096, 3000, 2500, 2048]
        self.heads = 1 if plan.smoke else 12
        self.head_dim = 16 if plan.smoke else 64
        self.scale = self.head_dim**-0.5
        width = self.lengths[0]
        layout = Layout.rectangle(self.lengths, width)
        # Where the real tokens are in padded rows, and in the stream.
        self.places = (~layout.key_padding()).flatten().nonzero()[:, 0].to(plan.device)
        self.slots = self.places
        if kind == "ragged":
            layout = Layout.ragged(self.lengths)
            self.slots = torch.arange(layout.num_slots, device=plan.device)
        self.layout = layout.to(plan.device)

    def run(self, kernel: Kernel, given: list[Tensor]) -> list[Tensor]:
        """Output and gradients of the real tokens, in fp32; `given`: q, k, v and a weight."""
        leaves = [x.detach().clone().requires_grad_() for x in given[:3]]
        out = kernel(*leaves)[self.slots]
        (out.float() * given[3][self.slots].float()).sum().backward()
        results = [out.detach().float()]
        for leaf in leaves:
            assert leaf.grad is not None
            results.append(leaf.grad[self.slots].float())
        return results

    def measure(self, kernel: Kernel, given: list[Tensor]) -> tuple[float, str]:
        """Milliseconds forward and backward, the least of three, and the peak beyond the start."""
        seconds = []
        self.plan.peak_gib()
        before = self.plan.allocated_gib()
        for _ in range(1 if self.plan.smoke else 3):
            self.plan.wait()
            start = time.perf_counter()
            self.run(kernel, given)
            self.plan.wait()
            seconds.append(time.perf_counter() - start)
        return 1e3 * min(seconds), self.plan.peak_gib(beyond=before, digits=2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As a layer does."""
        inputs = AttentionInputs(self.layout, self.mask)
        return attention(q, k, v, inputs, dropout_prob=0.0, training=True)

    def plain(self) -> Kernel:
        """On all rows at once, padded, with everything added that a mask says."""
        width = self.lengths[0]
        shape = (len(self.lengths), 1, width, width)
        bias = torch.zeros(shape, device=self.plan.device, dtype=torch.bfloat16)
        for row, length in zip(bias, self.lengths, strict=True):
            row[:, :length, :length] = self.bias(length)
            row[:, :length, length:] = -torch.inf

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (self.padded(x) for x in (q, k, v))
            scores = q * self.scale @ k.transpose(2, 3) + bias
            out = (scores.softmax(-1) @ v).transpose(1, 2).flatten(0, 1)
            stream = out.new_zeros(self.layout.num_slots, *out.shape[1:])
            return stream.index_copy(0, self.slots, out[self.places])

        return attend

    def padded(self, x: Tensor) -> Tensor:
        """[T, N, D] -> [B, N, S, D]."""
        width = self.lengths[0]
        rows = x.new_zeros(len(self.lengths) * width, *x.shape[1:])
        rows = rows.index_copy(0, self.places, x[self.slots])
        return rows.unflatten(0, (-1, width)).transpose(1, 2)

    def one_by_one(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One sequence after the other."""
        outs = []
        for slots in self.slots.split(self.lengths):
            q_i, k_i, v_i = (x[slots].transpose(0, 1) for x in (q, k, v))  # [N, length, D]
            scores = q_i * self.scale @ k_i.transpose(1, 2) + self.bias(len(slots))
            outs.append((scores.softmax(-1) @ v_i).transpose(0, 1))
        return torch.zeros_like(q).index_copy(0, self.slots, torch.cat(outs))

    def bias(self, length: int) -> Tensor:
        """[length, length], fp32: what the mask adds to the scores of a whole text."""
        if self.mask.blocks is not None:
            return block_bias([length], length, *self.mask.blocks)[0].to(self.plan.device)
        bias = torch.zeros(length, length, device=self.plan.device)
        unseen = masked_pairs(length, self.mask, self.plan.device)
        return bias.masked_fill_(unseen, -torch.inf)

    def way(self, q: Tensor) -> str:
        """Which kernel attention.py takes, and what torch makes of it."""
        rows = dense_rows(self.layout, self.mask, self.heads, q.dtype, q.device)
        if rows is None:
            return "varlen" if has_varlen_kernel(q, self.mask) else "groups"
        if rows.kernel != "sdpa":
            return rows.kernel
        shape = (rows.batch_size, rows.width, self.heads, self.head_dim)
        states = q.detach().requires_grad_().view(shape).transpose(1, 2)
        number = torch._fused_sdp_choice(states, states, states, attn_mask=rows.bias)
        return f"sdpa, {torch.nn.attention.SDPBackend(number).name.lower()}"
