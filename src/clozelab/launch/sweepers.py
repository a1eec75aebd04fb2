"""Our Hydra sweeper, which says what jobs a sweep has: `hydra/sweeper=grid`."""

from __future__ import annotations

from hydra.plugins.sweeper import Sweeper

from clozelab import hydra_compat
from clozelab.launch.sweep import named_jobs


class GridSweeper(hydra_compat.SweepPlugin, Sweeper):
    """`hydra/sweeper=grid`: every combination of a sweep's values.

    Hydra's basic sweeper does the work, with its arguments; ours gives the jobs their names.
    """

    def __init__(self, max_batch_size: int | None, params: dict[str, str] | None) -> None:
        if max_batch_size is not None:
            raise ValueError(
                "hydra.sweeper.max_batch_size: a sweep is one batch here, so leave it out; with"
                " hydra.launcher=processes, hydra.launcher.jobs_at_once says how many jobs run at"
                " once"
            )
        self.params = params

    def prepare(self) -> None:
        self.grid = hydra_compat.make_grid_sweeper(
            self.params, lambda jobs: named_jobs(jobs, self.master)
        )
        self.grid.setup(
            hydra_context=self.context, task_function=self.task, config=self.master.node
        )

    def sweep(self, arguments: list[str]) -> object:
        return self.grid.sweep(arguments)
