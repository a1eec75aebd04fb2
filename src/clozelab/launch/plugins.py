"""Our launchers and sweepers as Hydra plugins.

Hydra accepts plugins only from the package hydra_plugins; `register` enters our classes under such names instead of
shipping a second top-level package.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from clozelab.launch.clusters import RayLauncher, SlurmLauncher
from clozelab.launch.launcher import ProcessLauncher
from clozelab.launch.sweep import named_jobs
from clozelab.training.host import require_package

PLUGIN_PACKAGE = "hydra_plugins.clozelab"


class OptunaSweeper(Sweeper):
    """`hydra/sweeper=search`: Optuna's search over `params` (hydra-optuna-sweeper does the work).

    Unusual: there is no study file. The sampler is seeded and complete runs are skipped, so the same command replays
    the search and goes on; name each run folder by the values that are searched.

    Args: as conf/hydra/sweeper/search.yaml says of each.
    """

    def __init__(
        self, sampler: Any, direction: str, num_trials: int, trials_at_once: int, params: DictConfig | None
    ) -> None:
        require_package("hydra_plugins.hydra_optuna_sweeper", "optuna", "hydra/sweeper=search")
        import optuna
        from hydra_plugins.hydra_optuna_sweeper._impl import OptunaSweeperImpl

        optuna.logging.set_verbosity(logging.WARNING)
        settings = {str(key): value for key, value in dict(sampler).items()}
        kind: Any = getattr(optuna.samplers, str(settings.pop("name")), None)
        is_sampler = isinstance(kind, type) and issubclass(kind, optuna.samplers.BaseSampler)
        if not is_sampler or direction not in ("maximize", "minimize") or num_trials < 1 or trials_at_once < 1:
            raise ValueError(
                f"hydra.sweeper: sampler.name={sampler['name']} must be a class of optuna.samplers,"
                f" direction={direction} maximize or minimize, num_trials={num_trials} and"
                f" trials_at_once={trials_at_once} positive"
            )
        nothing = dict.fromkeys(("storage", "study_name", "search_space", "custom_search_space"))
        self.search = OptunaSweeperImpl(
            sampler=kind(**settings), direction=direction, n_trials=num_trials, n_jobs=trials_at_once, params=params,
            max_failure_rate=1.0, **nothing,  # a learning rate that diverges is an answer too
        )  # fmt: skip

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.folder = Path(str(config.hydra.sweep.dir))
        self.search.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def sweep(self, arguments: list[str]) -> None:
        self.search.sweep(arguments)
        best = OmegaConf.load(self.folder / "optimization_results.yaml")  # what the plugin leaves there
        words = " ".join(f"{key}={value}" for key, value in best.best_params.items())
        text = f"best of this search: {best.best_value:.6g} with {words}"
        Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)
        if getattr(self.search.launcher, "failed", 0):
            raise SystemExit(1)


class GridSweeper(Sweeper):
    """`hydra/sweeper=grid`, the usual one: every combination of a sweep's values. Args: those of Hydra's basic sweeper.

    Unusual: Hydra's own sweeper does the work, without its rehearsal, ten seconds for the 120 jobs of a demo: our
    launchers compose and check all jobs before they start the first.
    """

    def __init__(self, max_batch_size: int | None, params: DictConfig | None) -> None:
        # Not a subclass, and imported late: Hydra's search for plugins loads that module anew.
        from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

        grid: Any = BasicSweeper
        self.grid = grid(max_batch_size, params)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.grid.setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self.grid.validate_batch_is_legal = lambda batch: None  # noqa: ARG005
        split = self.grid.split_arguments

        def split_and_name(overrides: Any, max_batch_size: int | None) -> Any:
            (jobs,) = split(overrides, None)
            return list(self.grid.split_overrides_to_chunks(named_jobs(jobs, config), max_batch_size or len(jobs)))

        self.grid.split_arguments = split_and_name

    def sweep(self, arguments: list[str]) -> Any:
        return self.grid.sweep(arguments)


def register() -> None:
    """Let Hydra find the classes that conf/hydra names; harmless when called again."""
    plugins = Plugins.instance()
    for kind in (ProcessLauncher, SlurmLauncher, RayLauncher, GridSweeper, OptunaSweeper):
        plugins.register(kind)
        plugins.class_name_to_class[f"{PLUGIN_PACKAGE}.{kind.__name__}"] = kind
