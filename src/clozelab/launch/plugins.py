"""The launchers and sweepers that conf/hydra names, where Hydra finds them."""

from __future__ import annotations

from clozelab import hydra_compat
from clozelab.launch.process_launcher import ProcessLauncher
from clozelab.launch.ray_launcher import RayLauncher
from clozelab.launch.slurm_launcher import SlurmLauncher
from clozelab.launch.sweepers import GridSweeper, OptunaSweeper

PACKAGE = "hydra_plugins.clozelab"
CLASSES = (ProcessLauncher, SlurmLauncher, RayLauncher, GridSweeper, OptunaSweeper)


def register() -> None:
    """Let Hydra find the classes; harmless when called again."""
    hydra_compat.register_plugins(PACKAGE, CLASSES)
