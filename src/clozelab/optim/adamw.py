"""AdamW for BERT: torch's fused kernel, or the released code's variant without bias correction;
Muon; others by name.

Weight matrices and embeddings decay, biases and LayerNorm do not, as in the released code. The rule
is the number of
dimensions: every bias and every LayerNorm gain is a vector, everything that decays is a matrix.

Unusual: the released BERT optimiser leaves the moments uncorrected, so its first updates are larger
by up to 1 / sqrt(1 - beta2) per unit of learning rate; `bias_correction: false` gives exactly that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from clozelab.optim.muon import Muon

LIBRARIES = ("torch.optim", "pytorch_optimizer")


def decay_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]], weight_decay: float
) -> list[dict[str, Any]]:
    """Two optimiser groups, matrices, which decay, first; frozen parameters are left out, an empty
    group is dropped.
    """
    trainable = [parameter for _, parameter in named_parameters if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_adamw(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    learning_rate: float,
    betas: Iterable[float],
    eps: float,
    weight_decay: float,
    bias_correction: bool,
    matrix_learning_rate: float | None = None,
    momentum: float = 0.95,
) -> Optimizer:
    """AdamW over `module.named_parameters()` with decay groups; fused where every parameter's
    device has the kernel.

    With a `matrix_learning_rate`, Muon takes the matrices of the layers, and AdamW all else,
    embeddings and heads too (Jordan et al. 2024). ValueError where there is no such matrix, as
    where a strategy shards them."""
    beta1, beta2 = (float(beta) for beta in betas)
    check_hyperparameters(learning_rate, (beta1, beta2), eps, weight_decay)
    named = list(named_parameters)
    matrices = []
    if matrix_learning_rate is not None:
        matrices = [
            (name, p) for name, p in named if p.requires_grad and p.ndim == 2 and ".layer." in name
        ]
    taken = {id(p) for _, p in matrices}
    groups = decay_groups(((name, p) for name, p in named if id(p) not in taken), weight_decay)
    fused = all(
        p.device.type in {"cpu", "cuda"} and p.is_floating_point()
        for g in groups
        for p in g["params"]
    )
    adamw: Optimizer = UncorrectedAdamW(
        groups, learning_rate=learning_rate, betas=(beta1, beta2), eps=eps
    )
    if bias_correction:
        adamw = AdamW(groups, lr=learning_rate, betas=(beta1, beta2), eps=eps, fused=fused or None)
    if matrix_learning_rate is None:
        return adamw
    check_hyperparameters(matrix_learning_rate, (momentum, 0.0), eps, weight_decay)
    if not matrices:
        raise ValueError(
            "optimizer: Muon finds no whole matrix of a layer; with trainer=fsdp say"
            " optimizer=adamw"
        )
    muon = Muon(
        matrices,
        learning_rate=matrix_learning_rate,
        weight_decay=weight_decay,
        momentum=momentum,
    )
    return Together(adamw, muon)


class Together(Optimizer):
    """Several optimisers, of other parameters each, as one to its schedule and its checkpoint."""

    def __init__(self, *parts: Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss, groups = closure() if closure is not None else None, iter(self.param_groups)
        # a loaded checkpoint has put new groups and a new state into this one alone
        for part in self.parts:
            part.param_groups, part.state = [next(groups) for _ in part.param_groups], self.state
            part.step()
        return loss


def build_torch(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    name: str,
    learning_rate: float,
    weight_decay: float,
    betas: Iterable[float] | None = None,
    settings: Mapping[str, Any] | None = None,
    library: str = "torch.optim",
) -> Optimizer:
    """A class of torch.optim, or of the library pytorch_optimizer (LAMB, Lion, ...), by its name,
    with decay groups.

    `settings` are its own, `betas` for those with any. ValueError for a name that the library does
    not have, and for what the class does not take."""
    if library not in LIBRARIES:
        raise ValueError(f"optimizer.library is {library!r}: choose one of {', '.join(LIBRARIES)}")
    try:
        found = vars(import_module(library))
    except ImportError as error:
        raise ValueError(
            f"optimizer.library={library} needs pip install 'clozelab[optimizers]'"
        ) from error
    known = [
        one for one, kind in found.items() if isinstance(kind, type) and issubclass(kind, Optimizer)
    ]
    if name not in known:
        raise ValueError(f"optimizer.name is {name!r}: {library} has {', '.join(known)}")
    kind, said = found[name], {"lr": learning_rate, **(settings or {})}
    if betas is not None and "betas" in inspect.signature(kind).parameters:
        said["betas"] = tuple(betas)
    try:
        return kind(decay_groups(named_parameters, weight_decay), **said)
    except (TypeError, ValueError) as error:
        raise ValueError(f"optimizer: {library}.{name} does not take this: {error}") from error


def check_hyperparameters(
    learning_rate: float, betas: tuple[float, float], eps: float, weight_decay: float
) -> None:
    """Raise ValueError, naming the setting, for anything outside its range."""
    for name, value in (
        ("learning_rate", learning_rate),
        ("eps", eps),
        ("weight_decay", weight_decay),
    ):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"optimizer.{name} is {value!r}: it must be a number")
        if not (value > 0.0 if name == "eps" else value >= 0.0):
            raise ValueError(
                f"optimizer.{name} is {value}: it must be {'> 0' if name == 'eps' else '>= 0'}"
            )
    for name, beta in zip(("first", "second"), betas, strict=True):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"optimizer.betas: the {name} one is {beta}: it must be in [0, 1)")


class UncorrectedAdamW(Optimizer):
    """AdamWeightDecayOptimizer of google-research/bert (optimization.py), without bias correction:
    update = m /
    (sqrt(v) + eps) + weight_decay * p;  p <- p - learning_rate * update."""

    def __init__(
        self, params: Any, *, learning_rate: float, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(
            params, {"lr": learning_rate, "betas": betas, "eps": eps, "weight_decay": 0.0}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                if not self.state[p]:
                    self.state[p] = {
                        "exp_avg": torch.zeros_like(p),
                        "exp_avg_sq": torch.zeros_like(p),
                    }
            grads = [p.grad for p in params]
            means, squares = (
                [self.state[p][name] for p in params] for name in ("exp_avg", "exp_avg_sq")
            )
            beta1, beta2 = group["betas"]
            if params:  # torch's loops over tensors take no empty list
                torch._foreach_lerp_(means, grads, 1.0 - beta1)
                torch._foreach_mul_(squares, beta2)
                torch._foreach_addcmul_(squares, grads, grads, value=1.0 - beta2)
                denominators = torch._foreach_sqrt(squares)
                torch._foreach_add_(denominators, group["eps"])
                updates = torch._foreach_div(means, denominators)
                torch._foreach_add_(updates, params, alpha=group["weight_decay"])
                torch._foreach_add_(params, updates, alpha=-group["lr"])
        return loss
