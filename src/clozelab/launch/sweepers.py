"""Our Hydra sweepers, which say what jobs a sweep has: `hydra/sweeper=grid` and `=search`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from hydra.plugins.sweeper import Sweeper
from omegaconf import OmegaConf
from rich.console import Console

from clozelab import hydra_compat
from clozelab.launch.sweep import named_jobs
from clozelab.terminal import say
from clozelab.text.packages import require_package
from clozelab.text.plain import PlainMapping


class GridSweeper(hydra_compat.SweepPlugin, Sweeper):
    """`hydra/sweeper=grid`: every combination of a sweep's values.

    Hydra's basic sweeper does the work, with its arguments; ours gives the jobs their names.
    """

    def __init__(self, max_batch_size: int | None, params: dict[str, str] | None) -> None:
        self.max_batch_size = max_batch_size
        self.params = params

    def prepare(self) -> None:
        self.grid = hydra_compat.make_grid_sweeper(
            self.max_batch_size, self.params, lambda jobs: named_jobs(jobs, self.master)
        )
        self.set_up_copy(self.grid)

    def sweep(self, arguments: list[str]) -> object:
        return self.grid.sweep(arguments)


class OptunaSweeper(hydra_compat.SweepPlugin, Sweeper):
    """`hydra/sweeper=search`: Optuna's search over `params`; see conf/hydra/sweeper/search.yaml.

    hydra-optuna-sweeper does the work. There is no study file: the sampler is seeded and complete
    runs are skipped, so the same command replays the search and goes on. Name each run folder by
    the values that are searched.
    """

    def __init__(
        self,
        sampler: PlainMapping,
        direction: str,
        num_trials: int,
        trials_at_once: int,
        params: Any,
    ) -> None:
        require_package("hydra_plugins.hydra_optuna_sweeper", "optuna", "hydra/sweeper=search")
        import optuna
        from hydra_plugins.hydra_optuna_sweeper._impl import OptunaSweeperImpl

        optuna.logging.set_verbosity(logging.WARNING)
        settings = dict(sampler)
        sampler_class: Any = getattr(optuna.samplers, str(settings.pop("name")), None)
        # The name comes from a command line: of all that the module has, only samplers are classes
        # to make.
        is_sampler = isinstance(sampler_class, type) and issubclass(
            sampler_class, optuna.samplers.BaseSampler
        )
        is_direction = direction in ("maximize", "minimize")
        if not is_sampler or not is_direction or num_trials < 1 or trials_at_once < 1:
            raise ValueError(
                f"hydra.sweeper: sampler.name={sampler['name']} must be a class of optuna.samplers,"
                f" {direction=!s} maximize or minimize, {num_trials=} and {trials_at_once=}"
                " positive"
            )
        # The class around it would make the sampler from settings of its own.
        self.search = OptunaSweeperImpl(
            sampler=sampler_class(**settings),
            direction=direction,
            n_trials=num_trials,
            n_jobs=trials_at_once,
            params=params,
            max_failure_rate=1.0,  # a learning rate that diverges is an answer too
            storage=None,
            study_name=None,
            search_space=None,
            custom_search_space=None,
        )

    def prepare(self) -> None:
        if self.verb == "pretrain" and self.search.direction == "maximize":
            raise ValueError(
                "a pre-training's value is its loss: say hydra.sweeper.direction=minimize"
            )
        self.set_up_copy(self.search)

    def sweep(self, arguments: list[str]) -> None:
        self.search.sweep(arguments)
        # The plugin leaves the best trial in this file.
        folder = Path(self.master.hydra_value("sweep.dir"))
        best = OmegaConf.load(folder / "optimization_results.yaml")
        words = " ".join(f"{key}={value}" for key, value in best.best_params.items())
        say(
            f"best of this search: {best.best_value:.6g} with {words}", console=Console(stderr=True)
        )
        if getattr(self.search.launcher, "failed", 0):
            raise SystemExit(1)
