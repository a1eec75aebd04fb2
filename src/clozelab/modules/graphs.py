"""A training step as CUDA graphs: a GPU repeats what it was given once, without Python.

A small encoder's step is hundreds of kernels that each take the device less time than Python takes
to launch them. A graph launches all of them at once. Its kernels read and write the same memory
each time, so a batch is copied to where the graph reads it.

Three graphs make a step: forward and backward of a micro-batch (one graph for each shape), the norm
of the gradient, and the update. Dropout goes on being a function of (seed, step, micro-batch):
torch's generator is seeded before each replay, and a graph draws from its state. A function runs as
written, and trains, `WARM_UP` times before its capture: compilers and libraries set up meanwhile.

Host values that a function reads are those of its capture: of a batch only tensors, its layout and
its phase are there to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from clozelab.models.layout import Layout
from clozelab.optim.adamw import CombinedOptimizer, UncorrectedAdamW
from clozelab.optim.muon import Muon

Batch = dict[str, Any]

WARM_UP = 3  # runs as written before a capture
MAX_SHAPES = 16  # of micro-batches, each with a graph; further ones run as written
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
    ) -> None:
        self.forward_backward = forward_backward
        self.optimizer = optimizer
        self.device = device
        self.captures = captures
        self.pool = torch.cuda.graph_pool_handle() if captures else None
        self._clip = Replay(clip, captures=captures, pool=self.pool)
        # fp32 as torch's kernels want it
        self.rates = torch.zeros(len(optimizer.param_groups), device=device)
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
            _copy_batch(batch, own_batch)
            own_global.copy_(counts, non_blocking=True)
            own_own.copy_(own_counts, non_blocking=True)
        return step()

    def _run_micro_step(self, batch: Batch, counts: Tensor, own_counts: Tensor) -> Tensor:
        # What a layout remembers was made of an earlier batch's lengths.
        layout = replace(batch["layout"], _cache={})
        return self.forward_backward(batch | {"layout": layout}, counts, own_counts)

    def clip(self) -> Tensor:
        """The norm of the gradient, which is cut."""
        return self._clip().clone()

    def finish(self, *, updates: bool) -> None:
        """Updates the weights, or not, and lets the gradient be zero."""
        if not updates:
            self._forget_gradient()
            return
        if self.captures:
            rates = torch.tensor([group["lr"] for group in self.optimizer.param_groups])
            self.rates.copy_(rates.pin_memory(), non_blocking=True)
        self._update()

    def _run_update(self) -> None:
        with self._rates_on_device():
            self.optimizer.step()
        self._forget_gradient()

    def _forget_gradient(self) -> None:
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
            is_capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
            for group, rate in zip(groups, self.rates, strict=True):
                group["lr"] = rate
                if "capturable" in group:
                    group["capturable"] = is_capturing
        try:
            yield
        finally:
            for group, settings in zip(groups, before, strict=True):
                group.update(settings)


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


def _copy_batch(source: Batch, target: Batch) -> None:
    pairs = zip(_tensors_of(source), _tensors_of(target), strict=True)
    for (_, value), (_, own) in pairs:
        own.copy_(value, non_blocking=True)


def refusal(optimizer: Optimizer, masks: Sequence[Any]) -> str:
    """Why a step cannot be captured, of what decides it; empty where it can.

    `masks`: of the encoders' layers.
    """
    parts = [optimizer]
    if isinstance(optimizer, CombinedOptimizer):
        parts = list(optimizer.optimizers)
    for part in parts:
        if not isinstance(part, CAPTURED_OPTIMIZERS):
            return f"the optimizer {type(part).__name__} has no learning rate on the device"
    if any(mask.blocks for mask in masks):
        return "attention in blocks is laid out on the host"
    return ""
