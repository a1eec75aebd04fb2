"""Members of the BERT family: one file each, named as its model_type; nobody lists them."""

from __future__ import annotations

import pkgutil


def names() -> list[str]:
    """Every family, by its model_type."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))
