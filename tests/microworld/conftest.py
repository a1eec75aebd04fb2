"""A small world on disk, written once for all tests here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
    return write_world(tmp_path_factory.mktemp("microworld"), **SETTINGS)
