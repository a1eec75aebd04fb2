"""Start-up: keep out what lightning's dependency torchmetrics imports and no training here uses. Imports nothing heavy.

Unusual: torchmetrics imports scipy.signal only to patch an old name into it (0.5 s), matplotlib and transformers for
metrics that draw or embed (up to 1 s where they are installed). While it is imported, the first is an empty stand-in,
gone afterwards; of the others it is told that they are not installed. In a process that has torchmetrics already,
nothing happens. Whoever wants its BERTScore or plots imports torchmetrics before clozelab's stages.
"""

from __future__ import annotations

import importlib.util
import sys
import types

FLAGS = (
    "_MATPLOTLIB_AVAILABLE",
    "_SCIENCEPLOT_AVAILABLE",
    "_TRANSFORMERS_AVAILABLE",
    "_TRANSFORMERS_GREATER_EQUAL_4_4",
    "_TRANSFORMERS_GREATER_EQUAL_4_10",
)
_IMPORTS = "torchmetrics.utilities.imports"
_SIGNAL = "scipy.signal"


def import_torchmetrics_quickly() -> bool:
    """Import torchmetrics without its optional parts; False where it is imported already, or absent."""
    if "torchmetrics" in sys.modules or importlib.util.find_spec("torchmetrics") is None:
        return False
    _preload_flags()
    stand_in = None
    if _SIGNAL not in sys.modules:
        stand_in = types.ModuleType(_SIGNAL)
        stand_in.hamming = None  # type: ignore[attr-defined]  # the name it looks for
        sys.modules[_SIGNAL] = stand_in
    try:
        import torchmetrics  # noqa: F401
    finally:
        if stand_in is not None:
            del sys.modules[_SIGNAL]
            scipy = sys.modules.get("scipy")
            if scipy is not None and vars(scipy).get("signal") is stand_in:
                del scipy.signal
    return True


def _preload_flags() -> None:
    """torchmetrics' list of what is installed, with FLAGS off, in place before the package itself."""
    spec = importlib.util.find_spec("torchmetrics")
    assert spec is not None and spec.submodule_search_locations is not None
    path = f"{spec.submodule_search_locations[0]}/utilities/imports.py"
    found = importlib.util.spec_from_file_location(_IMPORTS, path)
    if found is None or found.loader is None:
        return
    module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except (ImportError, OSError):  # another version keeps it elsewhere: then it starts as it always does
        return
    for name in FLAGS:
        if hasattr(module, name):
            setattr(module, name, False)
    sys.modules[_IMPORTS] = module
