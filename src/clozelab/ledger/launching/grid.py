"""`hydra/sweeper=grid`, the usual one: every combination of a sweep's values.

Unusual: Hydra's own sweeper does the work, without its rehearsal. It composes each job once for validation and hands
the words to the launcher, which composes it again; our launchers compose and check all jobs they are given before they
start the first. For the 120 jobs of a demo the rehearsal took ten seconds. Other launchers keep it.
"""

from __future__ import annotations

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from clozelab.ledger.launching.launcher import SweepLauncher


class GridSweeper(Sweeper):
    """Args: those of Hydra's `hydra/sweeper=basic`."""

    def __init__(self, max_batch_size: int | None, params: DictConfig | None) -> None:
        # Not a subclass, and imported late: Hydra's search for plugins loads that module anew.
        from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

        grid: Any = BasicSweeper
        self.grid = grid(max_batch_size, params)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.grid.setup(hydra_context=hydra_context, task_function=task_function, config=config)
        if isinstance(self.grid.launcher, SweepLauncher):
            self.grid.validate_batch_is_legal = lambda batch: None  # noqa: ARG005

    def sweep(self, arguments: list[str]) -> Any:
        return self.grid.sweep(arguments)
