"""Muon (Jordan et al. 2024): momentum, made orthogonal before it is added to a weight matrix.

The update of a matrix W [rows, columns] with gradient G, momentum m, rate r and decay d:

    B <- m B + (1 - m) G             the momentum
    D  = m B + (1 - m) G             Nesterov's look ahead
    O  = newton_schulz(D)            near U V^T, where D = U S V^T
    W <- (1 - r d) W - r sqrt(max(1, rows / columns)) O

Three things differ from torch.optim.Muon, and none of them from the method:

- The products are in the format that the machine multiplies. Torch's are in bf16 everywhere, and
  a CPU without bf16 spends 80 % of a training step on emulating them.
- Matrices of one shape go through one batched product: a small encoder has dozens of small ones.
- A parameter that holds several matrices, one below the other (query, key and value), is taken
  apart. Each of them is made orthogonal by itself, with its own size in the rate.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clozelab.optim.groups import (
    USUAL,
    NamedParameters,
    OptimizerGroup,
    ParameterGroup,
    own_settings,
)
from clozelab.processor import product_dtype

# End of the name of a parameter that stacks matrices -> how many it stacks. The matrix of a gated
# feed-forward layer stays whole: its name does not tell that it is gated.
FUSED = {".attention.qkv.weight": 3, ".attention.qkv_global.weight": 3}
# Of the odd polynomial a x + b x^3 + c x^5. Five iterations take singular values from (0, 1] to
# about 0.7 to 1.2 (Jordan et al. 2024).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
SMALLEST_NORM = 1e-7
# From so many times as many columns as rows, fp32 iterates on the square X X^T.
WIDE = 2
# Most numbers in one batched product: 64 MiB in fp32, and a few temporary copies.
BATCH_ELEMENTS = 1 << 24


class Update(NamedTuple):
    """One matrix and the direction that it is to take, once that is orthogonal."""

    weight: Tensor  # [rows, columns], a view into its parameter
    direction: Tensor  # [rows, columns]
    rate: float | Tensor


class Muon(Optimizer):
    """Muon over named matrices; each of `named_matrices` is a parameter [rows, columns].

    A group of parameters has `lr`, `weight_decay`, `momentum`, and `matrices`: how many of them
    each parameter stacks.
    """

    def __init__(
        self,
        named_matrices: NamedParameters,
        *,
        learning_rate: float,
        weight_decay: float,
        momentum: float,
        matches: Mapping[str, ParameterGroup] | None = None,
    ) -> None:
        # A group for parameters that stack as many matrices each, of each group of optim/groups.py.
        members = defaultdict(list)
        for name, parameter in named_matrices:
            count = next((count for ending, count in FUSED.items() if name.endswith(ending)), 1)
            members[count, (matches or {}).get(name, USUAL)].append(parameter)
        groups: list[OptimizerGroup] = []
        for (count, group), parameters in members.items():
            settings = own_settings(group, learning_rate)
            groups.append({"params": parameters, "matrices": count, **settings})
        defaults = {"lr": learning_rate, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for (_, rows, columns), updates in self._updates_by_shape().items():
            at_once = max(1, BATCH_ELEMENTS // (rows * columns))
            for start in range(0, len(updates), at_once):
                _apply(updates[start : start + at_once])
        return loss

    def _updates_by_shape(self) -> dict[tuple[torch.device, int, int], list[Update]]:
        """(device, rows, columns) -> its updates.

        Wide and tall matrices of one shape meet in one product: a tall one goes in lying.
        """
        by_shape: dict[tuple[torch.device, int, int], list[Update]] = defaultdict(list)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                for update in self._updates(parameter, group):
                    rows, columns = sorted(update.weight.shape)
                    by_shape[parameter.device, rows, columns].append(update)
        return by_shape

    def _updates(self, parameter: nn.Parameter, group: OptimizerGroup) -> list[Update]:
        """Moves a parameter's momentum, lets its weights decay, and returns an update a matrix."""
        gradient = parameter.grad
        state = self.state[parameter]
        assert gradient is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        buffer = state["momentum_buffer"]
        buffer.lerp_(gradient, 1 - group["momentum"])
        direction = gradient.lerp(buffer, group["momentum"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])

        # The matrices that are stacked, each with its own size in the rate.
        count = group["matrices"]
        rows = parameter.shape[0] // count
        columns = parameter.shape[1]
        rate = group["lr"] * math.sqrt(max(1.0, rows / columns))
        pairs = zip(parameter.chunk(count), direction.chunk(count), strict=True)
        return [Update(weight, chunk, rate) for weight, chunk in pairs]


def _apply(updates: list[Update]) -> None:
    """Makes directions orthogonal and adds them to the weights; all of one shape, tall or wide."""
    dtype = product_dtype(updates[0].weight.device)
    # [N, rows, columns] for one batched product.
    lying = [_as_wide_matrix(update.direction).to(dtype) for update in updates]
    orthogonal = newton_schulz(torch.stack(lying))
    for update, matrix in zip(updates, orthogonal, strict=True):
        is_tall = update.weight.shape[0] > update.weight.shape[1]
        move_against(update.weight, matrix.T if is_tall else matrix, update.rate)


def move_against(weight: Tensor, direction: Tensor, rate: float | Tensor) -> None:
    """weight <- weight - rate * direction; a CUDA graph has the rate on the device, as a scalar."""
    if isinstance(rate, Tensor):
        weight.addcmul_(direction.to(weight.dtype), rate, value=-1.0)
    else:
        weight.add_(direction, alpha=-rate)


def _as_wide_matrix(matrix: Tensor) -> Tensor:
    """[rows, columns] with at most as many rows as columns."""
    if matrix.shape[0] > matrix.shape[1]:
        return matrix.T
    return matrix


def newton_schulz(matrices: Tensor) -> Tensor:
    """[N, rows, columns] with rows <= columns -> the same shape: U f(S) V^T of each U S V^T.

    f(S) is near 1. S is divided by its norm first, so that no singular value is above one. Each
    iteration is

        X <- a X + (b G + c G G) X     with G = X X^T
    """
    norms = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
    scaled = matrices / norms.clamp(min=SMALLEST_NORM)
    if matrices.dtype == torch.float32 and matrices.shape[2] >= WIDE * matrices.shape[1]:
        return _iterate_on_squares(scaled)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = torch.bmm(scaled, scaled.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        scaled = torch.baddbmm(scaled, polynomial, scaled, beta=a)
    return scaled


def _iterate_on_squares(wide: Tensor) -> Tensor:
    """The same iterations by products of [rows, rows]: half of the work where columns = 4 rows.

    With P = a I + b G + c G G an iteration is X <- P X, and G <- P G P for the next one: P and G
    commute. So the P are multiplied up, and meet the wide matrix once. In bf16 the squares would
    lose the small singular values.
    """
    a, b, c = COEFFICIENTS
    gram = torch.bmm(wide, wide.mT)
    product = None
    for iteration in range(ITERATIONS):
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        polynomial.diagonal(dim1=1, dim2=2).add_(a)
        if product is None:
            product = polynomial
        else:
            product = torch.bmm(polynomial, product)
        if iteration + 1 < ITERATIONS:
            gram = torch.bmm(polynomial, torch.bmm(gram, polynomial))
    assert product is not None
    return torch.bmm(product, wide)
