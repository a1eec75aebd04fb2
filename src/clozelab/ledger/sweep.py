"""What a sweep consists of: its jobs, their run folders and how each stands.

Composes exactly as Hydra does for `--config-dir FOLDER --config-name NAME -m`, with Hydra's own loader and basic
sweeper, so that `reproduce --dry-run` and the report's plan never disagree with what runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import setup_globals
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from clozelab import config as schema
from clozelab.ledger.run import is_settled, read_state
from clozelab.ledger.sharing import find_equal_run, missing_encoders, shared_run_is_there


@dataclass(frozen=True)
class PlannedJob:
    """One job of a sweep before it runs."""

    overrides: tuple[str, ...]
    run_dir: str
    status: str
    """new | shared (new, and an equal run of another experiment will be taken) | complete | running | interrupted |
    failed | check (complete, but perhaps of other inputs)."""
    source: str = ""
    """Folder of the run that is, or will be, shared."""


def make_loader(folder: Path | None = None) -> ConfigLoader:
    """Hydra's loader over conf/ and, before it, an experiment's folder."""
    schema.register()
    setup_globals()
    search_path = create_config_search_path(str(schema.CONF_DIR))
    if folder is not None:
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder")
        path = f"file://{folder.resolve()}"
        search_path.prepend(provider="command-line", path=path, anchor=SearchPathQuery(provider="schema"))
    return ConfigLoaderImpl(config_search_path=search_path)


def compose(name: str, overrides: Sequence[str] = (), *, folder: Path | None = None, sweep: bool = False) -> DictConfig:
    """One composed configuration with its `hydra` node; with `sweep`, the master configuration of a multirun."""
    mode = RunMode.MULTIRUN if sweep else RunMode.RUN
    return make_loader(folder).load_configuration(config_name=name, overrides=list(overrides), run_mode=mode)


def expand(name: str, overrides: Sequence[str], *, folder: Path | None = None) -> Iterator[PlannedJob]:
    """Every job of a sweep configuration, in the order in which it is started."""
    loader = make_loader(folder)
    master = loader.load_configuration(config_name=name, overrides=list(overrides), run_mode=RunMode.MULTIRUN)
    for job_overrides in sweep_overrides(loader, master):
        yield plan_job(loader.load_sweep_config(master, list(job_overrides)), job_overrides)


def job_words(name: str, overrides: Sequence[str], *, folder: Path | None = None) -> list[dict[str, str]]:
    """Every job of a sweep as {key: value}, without composing each: for counting many jobs at once."""
    loader = make_loader(folder)
    master = loader.load_configuration(config_name=name, overrides=list(overrides), run_mode=RunMode.MULTIRUN)
    pairs = ([word.lstrip("+").partition("=") for word in words] for words in sweep_overrides(loader, master))
    return [{key: value for key, _, value in words} for words in pairs]


def sweep_overrides(loader: ConfigLoader, master: DictConfig) -> list[tuple[str, ...]]:
    """The product of the sweeper's parameters and the command line's, later ones winning.

    Raises:
        ValueError: it is empty; an empty sweep must not look like a finished one.
    """
    with hydra_config(master):
        parameters = OmegaConf.to_container(master.hydra.sweeper.params or {}, resolve=True)
    assert isinstance(parameters, dict)
    words = [f"{key!s}={value}" for key, value in parameters.items()] + list(master.hydra.overrides.task)
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(words)
    jobs = [tuple(job) for batch in BasicSweeper.split_arguments(parsed, None) for job in batch]
    if not jobs:
        raise ValueError(f"this sweep expands to no job at all; check its values and globs: {' '.join(words)}")
    return jobs


def plan_job(composed: DictConfig, overrides: Sequence[str]) -> PlannedJob:
    """Where a composed job runs and how its folder stands.

    Raises:
        ValueError: a key that the stage does not have.
    """
    stage = str(composed.hydra.job.name)
    with hydra_config(composed):
        task_config = without_hydra(composed)
        schema.check_schema(stage, task_config)
        run_dir = str(task_config.get("run_dir") or "")
        status, source = job_status(stage, task_config, run_dir) if run_dir else ("new", "")
    return PlannedJob(tuple(overrides), run_dir, status, source)


def job_status(stage: str, config: DictConfig, run_dir: str) -> tuple[str, str]:
    """(the folder's status, the run it shares); `complete` only where nothing it was made from can have changed."""
    folder = Path(run_dir)
    state = read_state(folder)
    if state is None:
        source = find_equal_run(config) if stage == "pretrain" else None
        return ("shared", str(source)) if source else ("new", "")
    source_place = os.path.normpath(folder / state["shared"]["run"]) if "shared" in state else ""
    if state["status"] == "complete":
        is_whole = not source_place or shared_run_is_there(folder, state)
        is_whole = is_whole and is_settled(run_dir, stage=stage, config=config)
        is_whole = is_whole and (stage != "pretrain" or not missing_encoders(config, folder))
        return "complete" if is_whole else "check", source_place
    return str(state["status"]), source_place


def without_hydra(composed: DictConfig) -> DictConfig:
    """The part of a composed configuration that a stage gets."""
    config = composed.copy()
    with open_dict(config):
        config.pop("hydra", None)
    return config


@contextmanager
def hydra_config(composed: DictConfig) -> Iterator[None]:
    """Let `${hydra:...}` mean this configuration."""
    holder = HydraConfig.instance()
    before = holder.cfg
    holder.cfg = None
    holder.set_config(composed)
    try:
        yield
    finally:
        holder.cfg = before
