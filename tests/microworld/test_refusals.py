"""What this room refuses, and the sentence that says so: a row a case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.calling import call_with_fixtures
from tests.microworld.test_dials import SETTINGS
from tests.microworld.test_world import TINY

from microworld import dials, world


def dials_over_another_world(tmp_path: Path) -> None:
    dials.write_world(tmp_path, **SETTINGS)
    dials.write_world(tmp_path, **SETTINGS | {"right": 0.5})


def a_changed_file(tmp_path: Path) -> None:
    world.write_world(tmp_path, **TINY)
    (tmp_path / "glue/RTE/dev.tsv").write_text("mine\n", encoding="utf-8")
    world.write_world(tmp_path, **TINY)


def other_settings(tmp_path: Path) -> None:
    world.write_world(tmp_path, **TINY)
    world.write_world(tmp_path, **TINY | {"world_seed": 2})


def files_of_others(tmp_path: Path) -> None:
    (tmp_path / "glue/RTE").mkdir(parents=True)
    (tmp_path / "glue/RTE/dev.tsv").write_text("official\n", encoding="utf-8")
    world.write_world(tmp_path, **TINY)


REFUSALS: list[tuple[str, Callable[..., Any], type[Exception], str]] = [
    (
        "dials over another world",
        dials_over_another_world,
        ValueError,
        r"holds another generated world \(right 1.0 -> 0.5\)",
    ),
    (
        "no share",
        lambda tmp_path: dials.write_world(tmp_path, **SETTINGS | {"right": 2}),
        ValueError,
        "right must be between 0 and 1, not 2",
    ),
    ("a changed file", a_changed_file, ValueError, "was changed"),
    ("other settings", other_settings, ValueError, "world_seed 1 -> 2"),
    ("files of others", files_of_others, ValueError, "not written by a generator"),
    (
        "no documents",
        lambda tmp_path: world.write_world(tmp_path, **TINY | {"num_documents": 0}),
        ValueError,
        "num_documents",
    ),
    (
        "fewer than no examples",
        lambda tmp_path: world.write_world(tmp_path, **TINY | {"train_examples": -1}),
        ValueError,
        "train_examples",
    ),
    (
        "fewer than no documents of entropy",
        lambda tmp_path: world.write_world(tmp_path, **TINY | {"entropy_documents": -1}),
        ValueError,
        "entropy_documents",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "sentence"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_refusal(
    request: pytest.FixtureRequest,
    call: Callable[..., Any],
    error: type[Exception],
    sentence: str,
) -> None:
    with pytest.raises(error, match=sentence):
        call_with_fixtures(call, request)
