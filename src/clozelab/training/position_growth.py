"""Longer rows in a later phase: new positions start as copies of trained ones.

Unusual: the copying happens at the first step of the phase that is longer than all before it, and nowhere is it
remembered; the step alone says when, so a run that stops at any step and goes on does the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

POSITION_GROWTH = ("none", "tile")


def growth_steps(phases: Sequence[Mapping[str, int]]) -> dict[int, tuple[int, int]]:
    """First step of each phase that is longer than all before it -> (positions trained so far, positions wanted)."""
    growth, step, longest = {}, 0, 0
    for phase in phases:
        if longest and phase["seq_length"] > longest:
            growth[step] = (longest, phase["seq_length"])
        step += phase["steps"]
        longest = max(longest, phase["seq_length"])
    return growth


def check_position_growth(position_growth: str, phases: Sequence[Mapping[str, int]], strategy: str) -> None:
    """ValueError for an unknown setting, or for one that the strategy cannot do."""
    if position_growth not in POSITION_GROWTH:
        raise ValueError(f"position_growth is {position_growth!r}: choose one of {', '.join(POSITION_GROWTH)}")
    if position_growth == "tile" and strategy == "fsdp" and growth_steps(phases):
        raise ValueError("position_growth=tile copies rows of a whole matrix, and trainer=fsdp splits it: choose none")


class PositionGrowth(Callback):
    """Tiles the encoder's position embeddings when a phase needs more of them; `growth` as `growth_steps` gives it."""

    def __init__(self, growth: Mapping[int, tuple[int, int]]) -> None:
        self.growth = growth

    def on_train_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        if trainer.global_step in self.growth:
            module: Any = pl_module
            module.model.encoder.embeddings.tile_positions(*self.growth[trainer.global_step])
