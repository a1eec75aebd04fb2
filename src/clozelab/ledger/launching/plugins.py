"""Makes our launchers and our sweepers known to Hydra.

Hydra accepts plugins only from the package hydra_plugins; `register` enters our classes under such names instead of
shipping a second top-level package.
"""

from __future__ import annotations

from hydra.core.plugins import Plugins

from clozelab.ledger.launching.grid import GridSweeper
from clozelab.ledger.launching.launcher import ProcessLauncher
from clozelab.ledger.launching.ray_launcher import RayLauncher
from clozelab.ledger.launching.search import OptunaSweeper
from clozelab.ledger.launching.slurm_launcher import SlurmLauncher

PLUGIN_PACKAGE = "hydra_plugins.clozelab"


def register() -> None:
    """Let Hydra find the classes that conf/hydra names; harmless when called again."""
    plugins = Plugins.instance()
    for kind in (ProcessLauncher, SlurmLauncher, RayLauncher, GridSweeper, OptunaSweeper):
        plugins.register(kind)
        plugins.class_name_to_class[f"{PLUGIN_PACKAGE}.{kind.__name__}"] = kind
