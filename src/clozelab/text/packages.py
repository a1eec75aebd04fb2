"""Packages that only some features need."""

from __future__ import annotations

import importlib.util
from contextlib import suppress


def require_package(package: str, extra: str, feature: str) -> None:
    """ValueError with the command that installs an extra, where its package is missing.

    `feature`: what needs the package, in the message.
    """
    spec = None
    with suppress(ModuleNotFoundError):  # not even the package that it lies in
        spec = importlib.util.find_spec(package)
    if spec is None:
        raise ValueError(
            f"{feature} needs the package {package!r}, which is not installed: pip install"
            f" 'clozelab[{extra}]' (in a checkout: pip install -c constraints.txt -e '.[{extra}]')"
        )
