"""Whether variable-length attention is right on this device; the first part of
benchmarks/gpu.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from clozelab.models.attention import AttentionInputs, Mask, attention, reference_attention
from clozelab.models.layout import Layout
from gpu_plan import Plan

HEAD_DIMS = (64, 8, 26)
"""BERT's, the smallest that the variable-length kernel takes, and TinyBERT's, which it refuses."""


def check_kernels(plan: Plan) -> None:
    """The error of `attention` against fp32, beside that of the reference in the same precision."""
    generator = torch.Generator().manual_seed(0)
    longest, count = (16, 5) if plan.smoke else (512, 64)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    plan.say(
        "| layout | causal | D | error forward | error with backward | the reference's own |"
        " verdict |",
        "|---|---|---|---|---|---|---|",
    )
    for name, layout in (
        ("ragged", Layout.ragged(lengths)),
        ("padded", Layout.rectangle(lengths, longest)),
    ):
        for is_causal in (False, True):
            for head_dim in HEAD_DIMS:
                _check_kernel(plan, name, layout.to(plan.device), is_causal, head_dim, generator)
    _check_dropout(plan, Layout.ragged(lengths).to(plan.device))


def _check_kernel(
    plan: Plan,
    name: str,
    layout: Layout,
    is_causal: bool,
    head_dim: int,
    generator: torch.Generator,
) -> None:
    shape_ = (layout.num_slots, 4, head_dim)
    exact = [
        torch.randn(shape_, generator=generator).to(plan.device).bfloat16().float()
        for _ in range(3)
    ]
    bounds = zip(layout.first_rows.tolist(), layout.lengths_list, strict=True)
    rows = torch.cat([torch.arange(start, start + length) for start, length in bounds]).to(
        plan.device
    )
    weights = torch.randn((len(rows), 4, head_dim), generator=generator).to(plan.device)

    def run(inputs: Sequence[Tensor], kernel: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        out = kernel(*leaves)[rows]
        (out.float() * weights).sum().backward()
        return [
            out.detach().float(),
            *(leaf.grad[rows].float() for leaf in leaves if leaf.grad is not None),
        ]

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(
            q, k, v, AttentionInputs(layout, Mask(is_causal)), dropout_prob=0.0, training=True
        )

    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return reference_attention(q, k, v, layout, mask=Mask(is_causal))

    low = [x.bfloat16() for x in exact]
    # Output and gradients in 32 bits, then both kernels in 16.
    wanted = run(exact, reference)
    result = run(low, ours)
    error = largest_error(result, wanted)
    usual_error = largest_error(run(low, reference), wanted)
    forward = float((result[0] - wanted[0]).abs().max())
    verdict = "ok" if error <= 2 * usual_error + 1e-2 else "WRONG"
    plan.say(
        f"| {name} | {is_causal} | {head_dim} | {forward:.1e} | {error:.1e} | {usual_error:.1e} |"
        f" {verdict} |"
    )
    if verdict != "ok":
        raise AssertionError(
            f"attention of a {name} stream, D {head_dim}, errs by {error:.2e}, the reference by"
            f" {usual_error:.2e}"
        )


def largest_error(tensors: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    errors = []
    for tensor, wanted in zip(tensors, exact, strict=True):
        errors.append(float((tensor - wanted).abs().max()))
    return max(errors)


def _check_dropout(plan: Plan, layout: Layout) -> None:
    """Dropout in force is dropout: about that share of a probe's weight is gone, in another place
    each time.
    """
    torch.manual_seed(0)
    q = torch.zeros(layout.num_slots, 4, 64, device=plan.device, dtype=torch.bfloat16)
    v = torch.ones_like(q)
    outs = [
        attention(q, q, v, AttentionInputs(layout, Mask()), dropout_prob=0.5, training=True).float()
        for _ in range(2)
    ]
    mean = float(outs[0].mean())
    different = not torch.equal(outs[0], outs[1])
    plan.say(
        "",
        f"Attention dropout of a ragged stream: mean {mean:.3f} (1 expected), anew each time:"
        f" {different}.",
    )
    if not different or abs(mean - 1.0) > 0.25:
        raise AssertionError("attention dropout is not in force")
