"""The pre-flight of a sweep that was started with plain `-m`: `clozelab doctor` in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from omegaconf import DictConfig

from clozelab.ledger.words import key_of

SKIP_DOCTOR = "CLOZELAB_SKIP_DOCTOR"
"""In the environment: sweeps begin without it. `clozelab reproduce`, which has its own, says so to its sweeps."""
FEW_JOBS = 3
"""So many are sooner run than looked at."""
STOPPED = (130, 143)
"""Exit statuses of a process that was asked to stop, by a signal that it has taken."""
LOOKED_AT = ("pretrain", "finetune")
PASSED_ON = ("hydra.searchpath", "hydra.sweeper.params", "hydra/launcher")
"""Of Hydra's own keys, what decides which jobs there are and where they run."""


def look_before(verb: str, config: DictConfig, first_job: Sequence[str], num_left: int) -> None:
    """Look at a sweep of trainings before its first job, unless it is short or the user wants none of it.

    Args:
        config: the sweep's, with its `hydra` node.
        first_job: words of its first job: all that is known of a search beforehand.
        num_left: jobs that are not complete.

    Raises:
        ValueError: an error was found, or the pre-flight itself was killed.
        SystemExit: it was stopped.
    """
    is_long = num_left > FEW_JOBS or not is_grid(config)
    if verb not in LOOKED_AT or not is_long or os.environ.get(SKIP_DOCTOR, "0") not in ("", "0"):
        return
    words = [verb, *configuration_words(config), *_sweep_words(config, first_job)]
    status = subprocess.run([sys.executable, "-m", "clozelab", "doctor", *words], check=False).returncode
    if -status in (signal.SIGINT, signal.SIGTERM) or status in STOPPED:
        raise SystemExit(130)
    if status < 0:
        raise ValueError(
            f"the pre-flight was killed by signal {-status} (9: out of memory, as a rule), nothing was started; set "
            f"{SKIP_DOCTOR}=1 to go on without it"
        )
    if status:
        raise ValueError(
            f"the pre-flight has found an error, nothing was started; mend it, or set {SKIP_DOCTOR}=1 to go on anyway"
        )


def configuration_words(config: DictConfig) -> list[str]:
    """Where a sweep's configuration is: --config-dir, --config-name."""
    hydra = config.hydra
    folders = [str(one.path) for one in hydra.runtime.config_sources if one.provider == "command-line"]
    return [*(word for path in folders for word in ("--config-dir", path)), "--config-name", str(hydra.job.config_name)]


def search_path_words(config: DictConfig) -> list[str]:
    """What a sweep's jobs have to hear of the overrides of Hydra's own keys: where else its files are looked for."""
    return [word for word in config.hydra.overrides.hydra if word.startswith("hydra.searchpath=")]


def is_grid(config: DictConfig) -> bool:
    """Whether all jobs are known beforehand."""
    return str(config.hydra.sweeper._target_).endswith((".GridSweeper", ".BasicSweeper"))


def _sweep_words(config: DictConfig, first_job: Sequence[str]) -> list[str]:
    hydra = [word for word in config.hydra.overrides.hydra if key_of(word).startswith(PASSED_ON)]
    if is_grid(config):
        return [*config.hydra.overrides.task, *hydra]
    return [*first_job, *(word for word in hydra if "sweeper" not in key_of(word)), "hydra.sweeper.params=null"]
