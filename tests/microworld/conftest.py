"""A small world on disk, written once for all tests here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from microworld.world import write_world

SETTINGS: dict[str, Any] = {
    "world_seed": 7,
    "num_documents": 400,
    "train_examples": 600,
    "validation_examples": 300,
    "entropy_documents": 1,
}


@pytest.fixture(scope="session")
def small_settings() -> dict[str, Any]:
    return dict(SETTINGS)


@pytest.fixture(scope="session")
def small_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by the first of pytest-xdist's processes that needs it (8 s); nobody changes it."""
    is_alone = "PYTEST_XDIST_WORKER" not in os.environ
    base = tmp_path_factory.getbasetemp() if is_alone else tmp_path_factory.getbasetemp().parent
    with FileLock(base / "microworld.lock"):
        return write_world(base / "microworld", **SETTINGS)  # does nothing where it lies already
