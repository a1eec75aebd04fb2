"""A training step as CUDA graphs: a GPU repeats what it was given once, without Python.

A small encoder's step is hundreds of kernels that each take the device less time than Python takes
to launch them. A graph launches all of them at once. Its kernels read and write the same memory
each time, so a batch is copied to where the graph reads it.

Three graphs make a step: forward and backward of a micro-batch (one graph for each shape), the norm
of the gradient, and the update. Dropout goes on being a function of (seed, step, micro-batch):
torch's generator is seeded before each replay, and a graph draws from its state. A function runs as
written, and trains, `WARM_UP` times before its capture: compilers and libraries set up meanwhile.

Host values that a function reads are those of its capture: of a batch only tensors, its layout and
its phase are there to be read. So what decides over an update is on the device: its norm, and the
limit that the host gives (training/guards.py). A step beyond it is taken, and then taken back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.optim import AdamW, Optimizer

from clozelab.models.config import DEFAULT_MODULES
from clozelab.models.encoder import Encoder
from clozelab.models.layout import Layout
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.objective import Objective
from clozelab.optim.adamw import UncorrectedAdamW
from clozelab.optim.muon import Muon

Batch = dict[str, Any]

WARM_UP = 3  # runs as written before a capture
MAX_SHAPES = 16  # of micro-batches, each with a graph; further ones run as written
CAPTURED_PARTS = (DEFAULT_MODULES["positions"].target, DEFAULT_MODULES["attention"].target)
SILENCED_HOOKS = ("on_before_backward", "on_after_backward", "on_before_optimizer_step")
CAPTURED_OPTIMIZERS = (AdamW, UncorrectedAdamW, Muon)  # that take a learning rate on the device


class Replay:
    """A function whose inputs keep their memory, captured once and then replayed.

    Args:
        function: takes the inputs, and returns tensors that are there until the next call.
        captures: False runs it as written each time, on the same memory: for devices without
            graphs.
        pool: of memory, shared by graphs that take turns.
    """

    def __init__(
        self, function: Callable[..., Any], *inputs: Any, captures: bool, pool: Any
    ) -> None:
        self.function = function
        self.inputs = inputs
        self.captures = captures
        self.pool = pool
        self.num_runs = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.outputs: Any = None

    def __call__(self) -> Any:
        """What the function returns for what its inputs hold now."""
        self.num_runs += 1
        if not self.captures or self.num_runs <= WARM_UP:
            return self.function(*self.inputs)
        if self.graph is None:
            self._capture()
        assert self.graph is not None
        self.graph.replay()
        return self.outputs

    def _capture(self) -> None:
        self.graph = torch.cuda.CUDAGraph()
        # Autocast remembers rounded weights: a graph that read these would go on with old ones.
        torch.clear_autocast_cache()
        # Another thread makes batches meanwhile, and may ask for memory.
        mode = "thread_local"
        with torch.cuda.graph(self.graph, pool=self.pool, capture_error_mode=mode):
            self.outputs = self.function(*self.inputs)
        torch.clear_autocast_cache()


class StepGraphs:
    """The three parts of a training step, replayed.

    Args:
        forward_backward: a micro-batch, the number of predictions of each loss term in the global
            batch [terms] and in this micro-batch [terms] -> its loss; adds to the gradients.
        clip: cuts the gradient and returns its norm.
        optimizer: what updates; its learning rates stay numbers of the host between two updates.
        skips: an update may be left out by its norm.
        captures: False: as written, for devices without graphs.
    """

    def __init__(
        self,
        forward_backward: Callable[[Batch, Tensor, Tensor], Tensor],
        clip: Callable[[], Tensor],
        optimizer: Optimizer,
        device: torch.device,
        *,
        captures: bool,
        skips: bool = False,
    ) -> None:
        self.forward_backward = forward_backward
        self.clip_gradient = clip
        self.optimizer = optimizer
        self.skips = skips
        self.device = device
        self.captures = captures
        self.pool = torch.cuda.graph_pool_handle() if captures else None
        self._clip = Replay(self._run_clip, captures=captures, pool=self.pool)
        self.norm = torch.zeros((), device=device)
        # Of the next update: a learning rate for each group of parameters, and the largest norm.
        # Rounded from fp64 they are what the host's numbers would be.
        num_groups = len(optimizer.param_groups)
        self.numbers = torch.zeros(num_groups + 1, dtype=torch.float64, device=device)
        self._update = Replay(self._run_update, captures=captures, pool=self.pool)
        self._micro_steps: dict[Hashable, Replay] = {}
        # Only of parameters that this phase trains: an optimizer passes over the others.
        optimizer.zero_grad(set_to_none=True)

    def add_gradient(self, batch: Batch, counts: Tensor, own_counts: Tensor) -> Tensor:
        """The loss of a micro-batch, whose gradient is added.

        `batch` is on the host or on the device.
        """
        key = shapes_of(batch)
        step = self._micro_steps.get(key)
        if step is None:
            inputs = (_moved(batch, self.device), counts.clone(), own_counts.clone())
            if len(self._micro_steps) == MAX_SHAPES:
                return self.forward_backward(*inputs)
            step = Replay(self._run_micro_step, *inputs, captures=self.captures, pool=self.pool)
            self._micro_steps[key] = step
        else:
            own_batch, own_global, own_own = step.inputs
            pairs = zip(_tensors_of(batch), _tensors_of(own_batch), strict=True)
            for (_, value), (_, own) in pairs:
                own.copy_(value, non_blocking=True)
            own_global.copy_(counts, non_blocking=True)
            own_own.copy_(own_counts, non_blocking=True)
        return step()

    def _run_micro_step(self, batch: Batch, counts: Tensor, own_counts: Tensor) -> Tensor:
        # What a layout remembers was made of an earlier batch's lengths.
        layout = replace(batch["layout"], _cache={})
        return self.forward_backward(batch | {"layout": layout}, counts, own_counts)

    def clip(self) -> Tensor:
        """The norm of the gradient, which is cut."""
        self._clip()
        return self.norm.clone()

    def _run_clip(self) -> None:
        self.norm.copy_(self.clip_gradient())

    def finish(self, *, updates: bool, limit: float = math.inf) -> None:
        """Updates the weights, or not, and lets the gradient be zero.

        With `skips` nothing is updated where the norm is above `limit`, or no number.
        """
        if not updates:
            self._clear_gradient()
            return
        rates = [group["lr"] for group in self.optimizer.param_groups]
        numbers = torch.tensor([*rates, limit], dtype=torch.float64)
        if self.captures:
            numbers = numbers.pin_memory()
        self.numbers.copy_(numbers, non_blocking=True)
        self._update()

    def _run_update(self) -> None:
        before: dict[Tensor, Tensor] = {}
        if self.skips:
            before = {value: value.detach().clone() for value in self._updated_values()}
        with self._rates_on_device():
            self.optimizer.step()
        if self.skips:
            self._undo_on_spike(before)
        self._clear_gradient()

    @torch.no_grad()
    def _undo_on_spike(self, before: Mapping[Tensor, Tensor]) -> None:
        """Weights and moments are again what they were, where the norm says so."""
        is_spike = ~(self.norm.isfinite() & (self.norm <= self.numbers[-1]))
        for value in self._updated_values():
            is_spike = is_spike.to(value.device)
            if value in before:
                torch.where(is_spike, before[value], value, out=value)
            else:  # the first update has made it, and it began with zeros
                value.masked_fill_(is_spike, 0)

    def _updated_values(self) -> list[Tensor]:
        """What an update changes: weights that have a gradient, and their moments."""
        values: list[Tensor] = []
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.optimizer.state.get(parameter, {})
                    values += [parameter, *state.values()]
        return values

    def _clear_gradient(self) -> None:
        """The gradient is zero, and its memory stays."""
        gradients = []
        for group in self.optimizer.param_groups:
            gradients += [p.grad for p in group["params"] if p.grad is not None]
        torch._foreach_zero_(gradients)

    @contextmanager
    def _rates_on_device(self) -> Iterator[None]:
        """Inside, the optimizer reads its learning rates where a graph can, if there is one."""
        groups = self.optimizer.param_groups
        before = [dict(group) for group in groups]
        if self.captures:
            self._put_rates_on_device()
        try:
            yield
        finally:
            for group, settings in zip(groups, before, strict=True):
                group.update(settings)

    def _put_rates_on_device(self) -> None:
        is_capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        for group, rate in zip(self.optimizer.param_groups, self.numbers[:-1], strict=True):
            group["lr"] = rate
            if "capturable" in group:  # torch's own, whose kernels want fp32
                group |= {"lr": rate.float(), "capturable": is_capturing}


class DeferredNumber:
    """A number of the device that the host reads later, without waiting for later work."""

    def __init__(self, value: Tensor) -> None:
        self.value = value
        self.event: torch.cuda.Event | None = None
        if value.is_cuda:
            self.value = torch.empty_like(value, device="cpu", pin_memory=True)
            self.value.copy_(value, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()

    def __float__(self) -> float:
        if self.event is not None:
            self.event.synchronize()
        return float(self.value)


def shapes_of(batch: Mapping[str, Any]) -> Hashable:
    """What decides which kernels run on a micro-batch: batches of one answer share a graph."""
    layout = batch["layout"]
    facts: list[Hashable] = [batch.get("phase", 0), layout.row_slots, layout.full]
    if layout.row_slots is None:
        facts.append(tuple(layout.lengths_list))
    for name, value in _tensors_of(batch):
        facts.append((name, value.shape, value.dtype))
    return tuple(facts)


def _tensors_of(batch: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    tensors = [("lengths", batch["layout"].lengths)]
    if batch["layout"].visibility is not None:
        tensors.append(("visibility", batch["layout"].visibility))
    for name in sorted(batch):
        if isinstance(batch[name], Tensor):
            tensors.append((name, batch[name]))
    return tensors


def _moved(batch: Batch, device: torch.device) -> Batch:
    """A copy on the device that holds what a graph may read: tensors, the layout, the phase."""
    layout: Layout = batch["layout"]
    visibility = layout.visibility
    if visibility is not None:
        visibility = visibility.to(device, copy=True)
    lengths = layout.lengths.to(device, copy=True)
    moved: Batch = {
        "layout": replace(layout, lengths=lengths, visibility=visibility, _cache={}),
        "phase": batch.get("phase", 0),
    }
    for name, value in batch.items():
        if isinstance(value, Tensor):
            moved[name] = value.to(device, copy=True)
    return moved


def refusal(
    optimizer: Optimizer,
    encoders: Sequence[Encoder],
    objectives: Sequence[Objective],
    callbacks: Iterable[Callback] = (),
) -> str:
    """Why a step is not captured; empty where it is.

    What is captured was shown to be right on a GPU. Other parts may read numbers on the host.
    """
    for callback, hook in product(callbacks, SILENCED_HOOKS):
        if is_overridden(hook, callback, Callback):
            return f"the callback {type(callback).__name__} acts inside of a step ({hook})"
    if any(encoder.gradient_checkpointing for encoder in encoders):
        return "trainer.gradient_checkpointing reads the random generator on the host"
    optimizers = getattr(optimizer, "optimizers", (optimizer,))  # of one that combines several
    unknown = [
        f"the optimizer {type(part).__name__}" for part in optimizers if not _is_captured(part)
    ]
    tokens = [objective.token for objective in objectives]
    unknown += [
        f"the objective {token.name}" for token in tokens if type(token) is not MaskedLanguageModel
    ]
    specs = [encoder.config.positions for encoder in encoders]
    specs += [encoder.config.attention for encoder in encoders]
    unknown += [f"the part {spec.target}" for spec in specs if spec.target not in CAPTURED_PARTS]
    return f"{unknown[0]} is none of those that can be replayed" if unknown else ""


def _is_captured(optimizer: Optimizer) -> bool:
    if type(optimizer) is AdamW:
        # Without its fused kernel it counts its steps on the host.
        return bool(optimizer.defaults["fused"])
    return type(optimizer) in CAPTURED_OPTIMIZERS
