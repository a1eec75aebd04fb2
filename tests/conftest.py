"""Fixtures that every part of the tests may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with real data and oracles: CLOZELAB_SHARED, or `../shared` beside the checkout; skips without it."""
    default = Path(__file__).resolve().parents[1].parent / "shared"
    folder = Path(os.environ.get("CLOZELAB_SHARED", default))
    if not folder.is_dir():
        pytest.skip(f"real data not available: {folder} is not a folder (set CLOZELAB_SHARED)")
    return folder
