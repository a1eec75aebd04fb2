"""Where the files that ship with the project lie, and how a command line names those of others."""

from __future__ import annotations

from pathlib import Path


def _shipped(name: str) -> Path:
    """Return a folder of YAML that the project ships.

    It lies inside the package in a wheel, and at the top of the repository in an editable checkout.
    """
    package = Path(__file__).resolve().parents[1]
    inside = package / name
    if inside.is_dir():
        return inside
    return package.parents[1] / name


CONF_DIR = _shipped("conf")
EXPERIMENTS_DIR = _shipped("experiments")
# of Hydra, as argparse takes it
CONFIG_DIR_OPTIONS = ("--config-dir", "--config-di", "--config-d", "-cd")
