"""Vocabulary projection and cross-entropy in one, without ever holding all logits.

Rows go through in chunks; a chunk's logits become its gradient in place, and that is multiplied out
while it is still in cache. So memory is one chunk. With a loss on every position this is 70 % of a
small model's step.

Unusual: gradients are computed in forward (only where somebody will ask), and backward hands them
out scaled in place, so it can run once; a derivative of the gradient does not exist.

Letters: P predicted positions, H hidden size, V vocabulary, C rows of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clozelab.models.layers import fuses_bias, linear_by_onednn

# In one projection chunk, 512 rows at V 8,192; measured: fewer add up [V, H] more often.
CHUNK_LOGITS = 1 << 22
# The same in bf16, 128 MB: products take so little time there that the sums would show.
BF16_CHUNK_LOGITS = 1 << 26
MIN_CHUNK_ROWS = 256
# Not measured: a launch costs more than memory there (0.8 GB with bf16).
ACCELERATOR_CHUNK_LOGITS = 1 << 27
CACHED_LOGITS = 1 << 19  # logits in one softmax block: 2 MB as fp32, what stays in a core's cache
IGNORED_LABEL = -100
# fp32 numbers in a cache line.
LINE_LOGITS = 16
# Columns of ones beside the states. One is read; with 32 each row still begins at a cache line.
NUM_ONES = 32
# A smaller one is not read from the softmax, whose fp32 ends there, but from the logits.
SURE_PROB = 1e-30


@dataclass(frozen=True)
class PredictionLoss:
    """Sums over the predicted positions: any number of them can be added before dividing."""

    loss_sum: Tensor  # fp32 scalar, nats
    num_correct: Tensor  # int64 scalar: positions whose largest logit is the label's
    count: Tensor  # int64 scalar: positions with a label


@dataclass
class _Sums:
    """What the chunks add to.

    A gradient is None before the first chunk, and for good where nobody needs it.
    """

    needed: tuple[bool, ...]  # gradients somebody will ask for: hidden, weight, bias
    vocab_size: int  # logits may have further columns
    loss: Tensor
    num_correct: Tensor
    grad_hidden: Tensor | None = None
    grad_weight: Tensor | None = None
    grad_bias: Tensor | None = None


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor
) -> PredictionLoss:
    """Sum over rows of cross-entropy(hidden @ weight.T + bias, labels).

    hidden [P, H], weight [V, H], bias [V], labels int64 [P] (-100: no label, no loss); P may be 0.
    Matrix products run in autocast's type where autocast is on; the softmax is fp32, and so are the
    sums over chunks.
    """
    is_grad = torch.is_grad_enabled()
    needed = (
        is_grad and hidden.requires_grad,
        is_grad and weight.requires_grad,
        is_grad and bias.requires_grad,
    )
    device_type = hidden.device.type
    in_autocast = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type) if in_autocast else hidden.dtype
    chunk = ACCELERATOR_CHUNK_LOGITS
    if _on_cpu(hidden):
        chunk = BF16_CHUNK_LOGITS if dtype == torch.bfloat16 else CHUNK_LOGITS
    loss_sum, num_correct = _LinearCrossEntropy.apply(
        hidden, weight, bias, labels, dtype, needed, chunk
    )
    return PredictionLoss(loss_sum, num_correct, (labels >= 0).sum())


def all_at_once(hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> PredictionLoss:
    """The same of all logits at once, for a compiler, which need not keep them in fp32."""
    logits = F.linear(hidden, weight, bias).float()
    loss_sum = F.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    # No logit's place is the label of a row without one.
    num_correct = (logits.argmax(1) == labels).sum()
    return PredictionLoss(loss_sum, num_correct, (labels >= 0).sum())


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        labels: Tensor,
        dtype: torch.dtype,
        needed: tuple[bool, ...],
        chunk_logits: int,
    ) -> tuple[Tensor, Tensor]:
        num_rows = hidden.shape[0]
        vocab_size = weight.shape[0]
        sums = _Sums(
            needed,
            vocab_size,
            loss=torch.zeros((), dtype=torch.float32, device=hidden.device),
            num_correct=torch.zeros((), dtype=torch.int64, device=hidden.device),
        )
        if needed[0]:
            sums.grad_hidden = torch.empty_like(hidden)
        chunk_rows = min(num_rows, max(MIN_CHUNK_ROWS, chunk_logits // vocab_size))
        block_rows = CACHED_LOGITS // vocab_size if _on_cpu(hidden) else chunk_rows
        low_hidden = hidden.to(dtype)
        low_weight = weight.to(dtype)
        low_bias = bias.to(dtype)
        # A copy of the weights, which few rows would not pay for.
        if num_rows >= MIN_CHUNK_ROWS:
            low_weight, low_bias = _in_whole_lines(low_weight, low_bias)
        # One buffer for all chunks: fresh memory of this size costs page faults. oneDNN takes none.
        buffer = None
        if not fuses_bias(low_hidden):
            buffer = low_hidden.new_empty(chunk_rows, len(low_weight))
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, num_rows, max(1, chunk_rows)):
                rows = slice(start, start + chunk_rows)
                chunk = low_hidden[rows]
                logits = _logits(chunk, low_weight, low_bias, buffer)
                _softmax_blocks(logits, labels[rows], sums, max(1, block_rows))
                _multiply_out(logits, chunk, low_weight, sums, rows)
                # Before the next chunk's are made.
                del logits
        grad_weight = _finished(sums.grad_weight, weight, needed[1])
        grad_bias = _finished(sums.grad_bias, bias, needed[2])
        ctx.gradients = (sums.grad_hidden, grad_weight, grad_bias)
        ctx.mark_non_differentiable(sums.num_correct)
        return sums.loss, sums.num_correct

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError(
                "linear_cross_entropy: backward ran already; its gradients are handed out once"
            )
        gradients = ctx.gradients
        ctx.gradients = None
        for gradient in gradients:
            if gradient is not None:
                gradient.mul_(grads[0])
        return *gradients, None, None, None, None


def _on_cpu(x: Tensor) -> bool:
    return x.device.type == "cpu"


def _in_whole_lines(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """weight [V, H] and bias [V], with further entries of probability 0 where that is faster.

    The product that makes logits takes 0.7 of the time at V 30,522 where each row of them begins at
    a cache line. All bits are the same. Measured for fp32 on a CPU with AVX2 alone.
    """
    missing = -len(weight) % LINE_LOGITS
    is_measured = _on_cpu(weight) and weight.dtype == torch.float32
    if not missing or not is_measured or torch.backends.cpu.get_cpu_capability() != "AVX2":
        return weight, bias
    # F.pad would fill all of the new memory first.
    zeros = weight.new_zeros(missing, weight.shape[1])
    nothing = bias.new_full((missing,), -torch.inf)
    return torch.cat([weight, zeros]), torch.cat([bias, nothing])


def _finished(grad: Tensor | None, parameter: Tensor, is_needed: bool) -> Tensor | None:
    """The sum in the parameter's type; zero when there was no chunk."""
    if grad is not None:
        return grad.to(parameter.dtype)
    if is_needed:
        return torch.zeros_like(parameter)
    return None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor, buffer: Tensor | None) -> Tensor:
    """hidden [C, H] -> logits [C, V], in the first rows of `buffer` where there is one."""
    if buffer is None:
        return linear_by_onednn(hidden, weight, bias)
    return torch.addmm(bias, hidden, weight.t(), out=buffer[: len(hidden)])


def _softmax_blocks(logits: Tensor, labels: Tensor, sums: _Sums, block_rows: int) -> None:
    """Adds loss and correct count of logits [C, V], `block_rows` at a time.

    Turns them into d loss / d logits, in place, where that is needed.
    """
    has_label = labels >= 0
    all_labelled = _on_cpu(logits) and bool(has_label.all())
    for start in range(0, logits.shape[0], block_rows):
        rows = slice(start, start + block_rows)
        block = logits[rows]
        targets = labels[rows].clamp_min(0)[:, None]  # [rows, 1]
        probs = torch.softmax(block, dim=-1, dtype=torch.float32)
        target_probs = probs.gather(1, targets)
        # The gradient of a row: its probabilities, with 1 taken from the target's.
        probs.scatter_(1, targets, target_probs - 1.0)
        log_probs, correct = _scored(block, probs, target_probs, targets)
        if not all_labelled:
            probs.mul_(has_label[rows, None])
            log_probs = log_probs * has_label[rows]
            correct = correct & has_label[rows]
        sums.loss -= log_probs.sum()
        sums.num_correct += correct.sum()
        if any(sums.needed):
            block.copy_(probs)


def _scored(
    logits: Tensor, signed_probs: Tensor, target_probs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """fp32 [rows]: the target's log-probability; bool [rows]: whether it is the argmax.

    Of a tie the first is, as for torch.argmax. signed_probs [rows, V]: probabilities with the
    target's made negative; target_probs, targets [rows, 1]. Half-precision logits tie often:
    counting every tie as correct would flatter the accuracy. On the CPU an argmax costs ten times a
    maximum, so only tied rows pay for it; elsewhere nothing waits for the device.
    """
    log_probs = target_probs.log()
    if not _on_cpu(signed_probs):
        best, index = signed_probs.max(dim=-1, keepdim=True)
        # Where the target is nearly impossible, `best` is the largest of all.
        gap = logits.gather(1, targets).float() - logits.gather(1, index).float()
        log_probs = torch.where(target_probs < SURE_PROB, gap + best.log(), log_probs)
        is_tied_first = (target_probs == best) & (targets < index)
        correct = (target_probs > best) | is_tied_first
        return log_probs.squeeze(1), correct.squeeze(1)
    best = signed_probs.amax(dim=-1, keepdim=True)
    correct = (target_probs > best).squeeze(1)
    tied = (target_probs == best).nonzero()[:, 0]
    rare = (target_probs < SURE_PROB).nonzero()[:, 0]
    if tied.numel():
        correct[tied] = targets[tied, 0] < signed_probs[tied].argmax(dim=-1)
    if rare.numel():
        log_probs[rare] = logits[rare].float().log_softmax(dim=-1).gather(1, targets[rare])
    return log_probs.squeeze(1), correct


def _multiply_out(
    grad_logits: Tensor, hidden: Tensor, weight: Tensor, sums: _Sums, rows: slice
) -> None:
    """grad_logits [C, V], hidden [C, H] -> the chunk's share of every gradient."""
    if sums.grad_hidden is not None:
        sums.grad_hidden[rows] = grad_logits @ weight
    # Not the sums are cut: autograd adds the gradient of the looked-up embeddings to them in place,
    # but not to a view.
    grad_logits = grad_logits[:, : sums.vocab_size]
    if _on_cpu(hidden) and hidden.dtype == torch.bfloat16 and all(sums.needed):
        # A column of ones adds up the rows: one product is the gradient of the weights and of the
        # bias, and the logits are read once for both.
        ones = hidden.new_ones(len(hidden), NUM_ONES)
        both = grad_logits.t() @ torch.cat([hidden, ones], dim=1)
        size = hidden.shape[1]
        sums.grad_weight = _plus(sums.grad_weight, both[:, :size])
        sums.grad_bias = _plus(sums.grad_bias, both[:, size])
        return
    if sums.needed[1] and sums.grad_weight is not None and hidden.dtype == torch.float32:
        sums.grad_weight.addmm_(grad_logits.t(), hidden)
    elif sums.needed[1]:
        sums.grad_weight = _plus(sums.grad_weight, grad_logits.t() @ hidden)
    if sums.needed[2]:
        # sum(dtype=float32) would first copy the chunk: 5 x the time.
        sums.grad_bias = _plus(sums.grad_bias, grad_logits.sum(dim=0))


def _plus(total: Tensor | None, part: Tensor) -> Tensor:
    """`part` in fp32, or the sum of both, which is `total` itself."""
    if total is None:
        return part.float()
    total += part
    return total
