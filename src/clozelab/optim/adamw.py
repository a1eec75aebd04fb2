"""AdamW for BERT: torch's fused kernel, or the release's variant; Muon; others by name.

Unusual: the released BERT optimizer leaves the moments uncorrected, so its first updates are larger
by up to 1 / sqrt(1 - beta2) per unit of learning rate; `bias_correction: false` gives exactly that.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from importlib import import_module

import torch
from torch.optim import AdamW, Optimizer
from torch.optim.optimizer import ParamsT

from clozelab.optim.groups import GroupNodes, NamedParameters, OptimizerGroup, decay_groups
from clozelab.optim.layers import match_parameters
from clozelab.optim.muon import Muon
from clozelab.text.plain import PlainMapping

LIBRARIES = ("torch.optim", "pytorch_optimizer")
# What a class calls it -> its key of ours: in `settings` it would be lost, or be logged as another.
OWN_KEYS = {"lr": "learning_rate", "weight_decay": "weight_decay", "betas": "betas"}


def build_adamw(
    named_parameters: NamedParameters,
    *,
    learning_rate: float,
    betas: Iterable[float],
    eps: float,
    weight_decay: float,
    bias_correction: bool,
    matrix_learning_rate: float | None = None,
    momentum: float = 0.95,
    groups: GroupNodes = None,
    layer_decay: float | None = None,
    layer_decay_rule: str = "electra",
) -> Optimizer:
    """AdamW over `module.named_parameters()`, with groups of optim/groups.py and optim/layers.py.

    It is fused where every parameter's device has the kernel. With a `matrix_learning_rate`, Muon
    takes the matrices of the layers, and AdamW all else, embeddings and heads too (Jordan et al.
    2024). ValueError where there is no such matrix, as where a strategy shards them.
    """
    beta_pair = _two_numbers(betas)
    check_hyperparameters(learning_rate, beta_pair, eps, weight_decay)
    named, matches = match_parameters(named_parameters, groups, layer_decay, layer_decay_rule)
    # With a rate of their own the matrices of layers are another optimizer's.
    matrices = {}
    remaining = []
    for name, parameter in named.items():
        is_matrix = parameter.requires_grad and parameter.ndim == 2 and ".layer." in name
        # A sharded matrix is taken apart into copies: no update would reach it.
        is_matrix = is_matrix and not hasattr(parameter, "full_tensor")
        if matrix_learning_rate is not None and is_matrix:
            matrices[name] = parameter
        else:
            remaining.append((name, parameter))
    param_groups = decay_groups(remaining, weight_decay, learning_rate, matches)
    adamw = _adamw(param_groups, learning_rate, beta_pair, eps, bias_correction)
    if matrix_learning_rate is None:
        return adamw
    _check_number("matrix_learning_rate", matrix_learning_rate)
    if not 0.0 <= momentum < 1.0:
        raise ValueError(f"optimizer.momentum is {momentum}: it must be in [0, 1)")
    if not matrices:
        raise ValueError(
            "optimizer: Muon finds no whole matrix of a layer; with trainer=fsdp say"
            " optimizer=adamw"
        )
    muon = Muon(
        matrices.items(),
        learning_rate=matrix_learning_rate,
        weight_decay=weight_decay,
        momentum=momentum,
        matches=matches,
    )
    return CombinedOptimizer(adamw, muon)


def _adamw(
    groups: list[OptimizerGroup],
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
    bias_correction: bool,
) -> Optimizer:
    if not bias_correction:
        return UncorrectedAdamW(groups, learning_rate=learning_rate, betas=betas, eps=eps)
    # torch's fused kernel takes floats on these devices alone.
    fused = True
    for group in groups:
        for parameter in group["params"]:
            if parameter.device.type not in {"cpu", "cuda"} or not parameter.is_floating_point():
                fused = False
    return AdamW(groups, lr=learning_rate, betas=betas, eps=eps, fused=fused or None)


class CombinedOptimizer(Optimizer):
    """Several optimizers, of different parameters, as one to its schedule and its checkpoint."""

    def __init__(self, *optimizers: Optimizer) -> None:
        self.optimizers = optimizers
        groups = []
        for optimizer in optimizers:
            groups += optimizer.param_groups
        super().__init__(groups, {})

    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """One update of every parameter that has a gradient."""
        loss = closure() if closure is not None else None
        groups = iter(self.param_groups)
        # A loaded checkpoint has put new groups and a new state into this one alone: hand them on.
        for optimizer in self.optimizers:
            optimizer.param_groups = [next(groups) for _ in optimizer.param_groups]
            optimizer.state = self.state
            optimizer.step()
        return loss


def build_torch(
    named_parameters: NamedParameters,
    *,
    name: str,
    learning_rate: float,
    weight_decay: float,
    betas: Iterable[float] | None = None,
    settings: PlainMapping | None = None,
    groups: GroupNodes = None,
    library: str = "torch.optim",
    layer_decay: float | None = None,
    layer_decay_rule: str = "electra",
) -> Optimizer:
    """A class of torch.optim, or of pytorch_optimizer (LAMB, Lion, ...), with the same groups.

    `settings` are its own, `betas` for those with any. ValueError for a name that the library does
    not have, for a class with weights of its own for evaluation, and for what the class does not
    take.
    """
    own_settings = dict(settings) if settings else {}
    optimizer_class = _optimizer_class(library, name)
    _check_settings(optimizer_class, f"{library}.{name}", weight_decay, own_settings)
    named, matches = match_parameters(named_parameters, groups, layer_decay, layer_decay_rule)
    param_groups = decay_groups(named.items(), weight_decay, learning_rate, matches)
    arguments: dict[str, object] = {"lr": learning_rate, **own_settings}
    try:
        if betas is not None and "betas" in inspect.signature(optimizer_class).parameters:
            arguments["betas"] = tuple(betas)
        return optimizer_class(param_groups, **arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"optimizer: {library}.{name} does not take this: {error}") from error


def _optimizer_class(library: str, name: str) -> Callable[..., Optimizer]:
    """The class of a library; ValueError where either is not there."""
    if library not in LIBRARIES:
        raise ValueError(f"optimizer.library is {library!r}: choose one of {', '.join(LIBRARIES)}")
    try:
        members = vars(import_module(library))
    except ImportError as error:
        raise ValueError(
            f"optimizer.library={library} needs pip install 'clozelab[optimizers]'"
        ) from error
    # Every class of the library that is an optimizer may be named.
    optimizers: dict[str, Callable[..., Optimizer]] = {}
    for member_name, member in members.items():
        if isinstance(member, type) and issubclass(member, Optimizer):
            optimizers[member_name] = member
    if name not in optimizers:
        raise ValueError(f"optimizer.name is {name!r}: {library} has {', '.join(optimizers)}")
    return optimizers[name]


def _check_settings(
    optimizer_class: Callable[..., Optimizer],
    name: str,
    weight_decay: float,
    settings: PlainMapping,
) -> None:
    """ValueError for a class that cannot be used here, and for settings without effect."""
    # Schedule-free ones, for example: nobody here would call it before a validation.
    if hasattr(optimizer_class, "eval"):
        raise ValueError(
            f"optimizer: {name} evaluates other weights than it trains, which is not"
            " supported here: choose another"
        )
    for key, own_key in OWN_KEYS.items():
        if key in settings:
            word = f"optimizer.{own_key}={settings[key]}"
            raise ValueError(f"optimizer.settings.{key}: say {word} instead")
    parameters = inspect.signature(optimizer_class).parameters
    if weight_decay and not parameters.keys() & {"weight_decay", "kwargs"}:
        raise ValueError(f"optimizer: {name} has no weight decay: say optimizer.weight_decay=0")


def _two_numbers(betas: object) -> tuple[float, float]:
    """`optimizer.betas`; ValueError for anything else."""
    match betas:
        case [int() | float() as first, int() | float() as second]:
            return float(first), float(second)
    raise ValueError(f"optimizer.betas is {betas}: give two numbers, such as [0.9, 0.999]")


def check_hyperparameters(
    learning_rate: float, betas: tuple[float, float], eps: float, weight_decay: float
) -> None:
    """Raises ValueError, naming the setting, for anything outside its range."""
    settings = {"learning_rate": learning_rate, "eps": eps, "weight_decay": weight_decay}
    for name, value in settings.items():
        _check_number(name, value)
    if eps == 0.0:
        raise ValueError(f"optimizer.eps is {eps}: it must be > 0")
    for name, beta in zip(("first", "second"), betas, strict=True):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"optimizer.betas: the {name} one is {beta}: it must be in [0, 1)")


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"optimizer.{name} is {value!r}: it must be a number")
    if not 0.0 <= value < math.inf:
        raise ValueError(f"optimizer.{name} is {value}: it must be >= 0 and finite")


class UncorrectedAdamW(Optimizer):
    """AdamWeightDecayOptimizer of google-research/bert (optimization.py), without bias correction.

    update = m / (sqrt(v) + eps) + weight_decay * p
    p <- p - learning_rate * update
    """

    def __init__(
        self, params: ParamsT, *, learning_rate: float, betas: tuple[float, float], eps: float
    ) -> None:
        defaults = {"lr": learning_rate, "betas": betas, "eps": eps, "weight_decay": 0.0}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """One update of every parameter that has a gradient."""
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for group in self.param_groups:
            self._update(group)
        return loss

    def _update(self, group: OptimizerGroup) -> None:
        """One update of a group, in torch's loops over lists of tensors."""
        params = [p for p in group["params"] if p.grad is not None]
        if not params:  # those loops take no empty list
            return
        for p in params:
            if not self.state[p]:
                self.state[p] = {
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }
        # m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2
        grads = [p.grad for p in params]
        means = [self.state[p]["exp_avg"] for p in params]
        squares = [self.state[p]["exp_avg_sq"] for p in params]
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(means, grads, 1.0 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, value=1.0 - beta2)
        # The update, with the weights' decay in it.
        denominators = torch._foreach_sqrt(squares)
        torch._foreach_add_(denominators, group["eps"])
        updates = torch._foreach_div(means, denominators)
        torch._foreach_add_(updates, params, alpha=group["weight_decay"])
        rate = group["lr"]
        if isinstance(rate, torch.Tensor):  # on the device, in a CUDA graph
            torch._foreach_mul_(updates, rate)
            rate = 1.0
        torch._foreach_add_(params, updates, alpha=-rate)
