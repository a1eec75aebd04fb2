"""The launchers and sweepers that conf/targets.yaml lists, where Hydra finds them."""

from __future__ import annotations

from clozelab import hydra_compat
from clozelab.addresses import allowed, locate

PACKAGE = "hydra_plugins."
"""Hydra accepts no plugin from elsewhere: `hydra_plugins.clozelab.X` is our `clozelab.X`."""


def register() -> None:
    """Let Hydra find the classes; harmless when called again."""
    for place in ("hydra.launcher", "hydra.sweeper"):
        for address in allowed()[place]:
            hydra_compat.register_plugin(address, locate(address.removeprefix(PACKAGE)))
