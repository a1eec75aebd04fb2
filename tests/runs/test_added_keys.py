"""A key that is added to the schema, at the value that held before, makes no run another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from omegaconf import MISSING, OmegaConf
from tests.composing import Given, given
from tests.runs.records import record_of
from tests.screens import refuses

from clozelab.results.evidence import settings
from clozelab.runs.reuse import find_equal_run, is_done
from clozelab.runs.store import Run, RunConflictError
from clozelab.schema import (
    SCHEMAS,
    Added,
    PhaseConfig,
    PretrainConfig,
    added_keys,
    added_of,
    meaning_of,
    meanings,
)


@dataclass
class AddedPhaseConfig(PhaseConfig):
    decay: Annotated[str | None, Added(was=None)] = MISSING


@dataclass
class AddedConfig(PretrainConfig):
    """The schema with a key of its own, one in every phase, and an argument of a `_target_`."""

    z_loss: Annotated[float, Added(was=0.0)] = MISSING
    phases: list[AddedPhaseConfig] = MISSING  # type: ignore[assignment]
    optimizer: Annotated[dict[str, Any], {"cautious": Added(was=False)}] = MISSING


@dataclass
class PlainPhaseConfig(PhaseConfig):
    decay: str | None = MISSING


@dataclass
class PlainConfig(PretrainConfig):
    """The same keys, which do not say what they were."""

    z_loss: float = MISSING
    phases: list[PlainPhaseConfig] = MISSING  # type: ignore[assignment]


# dotted key, its value before it existed, another one
KEYS = [
    ("z_loss", 0.0, 1e-4),
    ("phases.1.decay", None, "cosine"),
    ("optimizer.cautious", False, True),
]


@pytest.fixture
def use_schema(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[type], None]]:
    """use_schema(schema): from now on the schema of pre-training."""

    def clear() -> None:
        for table in (meanings, meaning_of, added_keys, added_of):
            table.cache_clear()

    def use(schema: type) -> None:
        monkeypatch.setitem(SCHEMAS, "pretrain", schema)
        clear()

    yield use
    monkeypatch.undo()
    clear()


def make_config(runs: Path, experiment: str = "first", *, below: str = "", **added: Any) -> Given:
    """A pre-training of two phases with added keys, below a folder that `below` may name."""
    config = OmegaConf.create(
        {
            "experiment": experiment,
            "arm": "mlm",
            "seed": 1,
            "runs_dir": str(runs),
            "run_dir": str(runs / (below or experiment) / "tiny/pretrain/mlm/seed-1"),
            "scale": {"name": "tiny"},
            "optimizer": {"lr": 0.1},
            "phases": [{"steps": 9, "seq_length": 8}, {"steps": 1, "seq_length": 16}],
            "share_runs": True,
        }
    )
    for key, value in added.items():
        OmegaConf.update(config, key, value, force_add=True)
    return given("pretrain", config)


def claim(config: Given) -> Run:
    return Run.claim(config.run_dir, stage="pretrain", config=config, inputs={"corpus": "c"})


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """The folder of a complete run, made before there were such keys."""
    config = make_config(tmp_path)
    with claim(config) as run:
        run.complete()
    weights = Path(config.run_dir) / "encoder" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"weights")
    return Path(config.run_dir)


@pytest.mark.parametrize(("key", "was", "other"), KEYS)
def test_an_old_run_is_one_of_the_value_before(
    tmp_path: Path, old_run: Path, use_schema: Any, key: str, was: Any, other: Any
) -> None:
    use_schema(AddedConfig)
    config = make_config(tmp_path, **{key: was})
    assert is_done(old_run, stage="pretrain", config=config)
    elsewhere = make_config(tmp_path, "second", **{key: was})
    equal_run = find_equal_run(elsewhere, {"corpus": "c"})
    assert equal_run is not None and equal_run.folder == old_run
    with claim(config) as run:
        assert run.is_complete

    # A new run has the old fingerprint, and counts beside the old one.
    with claim(make_config(tmp_path, below="second", **{key: was})) as run:
        run.complete()
    new, old = run.content, record_of(old_run)
    assert OmegaConf.select(OmegaConf.create(new.config), key) == was
    assert new.fingerprint == old.fingerprint
    assert settings(new) == settings(old)

    # At another value it is another run.
    config = make_config(tmp_path, **{key: other})
    assert not is_done(old_run, stage="pretrain", config=config)
    assert find_equal_run(make_config(tmp_path, "third", **{key: other})) is None
    with refuses(f"{key}: there '(none)', now {other!r}", RunConflictError):
        claim(config)


@pytest.mark.parametrize(("key", "was"), [(key, was) for key, was, _ in KEYS])
def test_without_the_annotation_every_old_run_is_another(
    tmp_path: Path, old_run: Path, use_schema: Callable[[type], None], key: str, was: Any
) -> None:
    """The control."""
    use_schema(PlainConfig)
    config = make_config(tmp_path, **{key: was})
    assert not is_done(old_run, stage="pretrain", config=config)
    with pytest.raises(RunConflictError):
        claim(config)


def test_the_shipped_schema_names_values_that_may_stand_there() -> None:
    for key, added in added_keys().items():
        assert added.was is None or isinstance(added.was, bool | int | float | str), key
