"""What a sweep consists of: its jobs, their run folders and how each stands.

Composes exactly as Hydra does for `--config-dir FOLDER --config-name NAME -m`, with Hydra's own loader and basic
sweeper, so that `reproduce --dry-run` and the report's plan never disagree with what runs (a job that differs from
another in plain values alone, such as seeds, is not composed anew: JobComposer).
"""

from __future__ import annotations

import copy
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.utils import setup_globals
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from clozelab import config as schema
from clozelab.launch import experiments
from clozelab.launch.experiments import KINDS
from clozelab.launch.overrides import check_overrides
from clozelab.runs.record import JobName, read_record
from clozelab.runs.store import find_equal_run, is_done, is_record_of
from clozelab.suggestions import CONF_DIR
from clozelab.terminal import key_of

LIKELY_SHARED = "shared?"
NAMED_BY = {"objective", "encoder_arm"}
"""What alone gives an arm or a row its name already, in conf/pretrain.yaml and conf/finetune.yaml."""
LONGEST_VALUE = 40


@dataclass(frozen=True)
class PlannedJob:
    """One job of a sweep before it runs."""

    overrides: tuple[str, ...]
    run_dir: str
    status: str
    """new | conflict (a run of other settings is there) | shared (new, and an equal run of another experiment will be
    taken) | shared? (will be, if the files it read are still the same) | complete | running | interrupted | failed |
    check (complete, but perhaps of other inputs)."""
    source: str = ""
    """Folder of the run that is, or will be, shared."""


def make_loader(folder: Path | None = None) -> ConfigLoader:
    """Hydra's loader over conf/ and, before it, an experiment's folder."""
    schema.register()
    experiments.register()
    setup_globals()
    search_path = create_config_search_path(str(CONF_DIR))
    if folder is not None:
        if not folder.exists():
            raise ValueError(f"{folder} is no folder")
        path = f"file://{folder.resolve()}"
        search_path.prepend(provider="command-line", path=path, anchor=SearchPathQuery(provider="schema"))
    return ConfigLoaderImpl(config_search_path=search_path)


def compose(name: str, overrides: Sequence[str] = (), *, folder: Path | None = None, sweep: bool = False) -> DictConfig:
    """One composed configuration with its `hydra` node; with `sweep`, the master configuration of a multirun."""
    mode = RunMode.MULTIRUN if sweep else RunMode.RUN
    return make_loader(folder).load_configuration(config_name=name, overrides=list(overrides), run_mode=mode)


def phase_objectives(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The objective of each phase as a node, from a pre-training run's plain configuration.

    Raises:
        ValueError: a phase changes a setting that the run's objective does not have.
        An error of Hydra's: it names an objective that is not there.
    """
    usual, found = config["objective"], []
    for number, phase in enumerate(config["phases"]):
        said = phase.get("objective") or {}
        if isinstance(said, str):
            # Composed as on a command line, but for what the run says of every objective.
            loader = (
                GlobalHydra.instance().config_loader() if GlobalHydra.instance().is_initialized() else make_loader()
            )
            composed = loader.load_configuration("pretrain", [f"objective={said}"], run_mode=RunMode.RUN)
            node: Any = OmegaConf.to_container(composed.objective, resolve=False)
            found.append(node | {"dupe_factor": usual["dupe_factor"]})
        else:
            found.append(_changed(usual, said, f"phases.{number}.objective"))
    return found


def _changed(node: Mapping[str, Any], change: Mapping[str, Any], where: str) -> dict[str, Any]:
    if strange := [key for key in change if key not in node]:
        raise ValueError(f"{where}.{strange[0]}: the run's objective has {', '.join(map(str, node))} there")
    parts = {
        key: _changed(node[key], value, f"{where}.{key}")
        if isinstance(value, Mapping) and isinstance(node[key], Mapping)
        else value
        for key, value in change.items()
    }
    return {**node, **parts}


class Sweep:
    """A sweep opened with the user's overrides: its master configuration, its jobs' words, any job composed.

    Raises:
        ValueError or an error of Hydra's: an override is wrong; asked for its jobs, also that there is none.
    """

    def __init__(self, name: str, overrides: Sequence[str] = (), *, folder: Path | None = None) -> None:
        loader = make_loader(folder)
        self.master = loader.load_configuration(name, list(overrides), run_mode=RunMode.MULTIRUN)
        self.composer = JobComposer(loader, self.master)
        self._settings: dict[tuple[str, ...], dict[str, Any]] = {}

    @cached_property
    def jobs(self) -> list[tuple[str, ...]]:
        """Every job's words, in the order in which they are started."""
        return sweep_overrides(self.composer.loader, self.master)

    @property
    def runs_here(self) -> bool:
        """Whether its jobs are processes of this machine, not of a cluster's."""
        return str(self.master.hydra.launcher._target_).endswith((".ProcessLauncher", ".BasicLauncher"))

    def settings(self, words: Sequence[str]) -> dict[str, Any]:
        """A job's configuration in plain values, as its stage gets it; the caller's own."""
        key = tuple(words)
        if key not in self._settings:
            composed = self.composer.compose(words)
            with hydra_config(composed):
                self._settings[key] = OmegaConf.to_container(without_hydra(composed), resolve=True)  # type: ignore[assignment]  # a DictConfig's is a dict
        return copy.deepcopy(self._settings[key])

    def planned(self) -> Iterator[PlannedJob]:
        """Every job, in the order in which it is started, with how it stands now."""
        return with_own_folders(plan_job(self.composer.compose(words), words) for words in self.jobs)

    def groups(self, counts: Callable[[str], bool]) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
        """The jobs that have equal words for the keys that count, by those words."""
        found: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for words in self.jobs:
            found.setdefault(tuple(word for word in words if counts(key_of(word))), []).append(words)
        return found


def job_names(name: str, overrides: Sequence[str], *, folder: Path | None = None) -> list[JobName]:
    """The name of every job of a sweep, as its run will have it: for counting many jobs at once.

    The jobs are not composed: an arm, a row and a task are called as their files are.
    """
    sweep = Sweep(name, overrides, folder=folder)
    master, jobs = sweep.master, sweep.jobs
    pretrains = master.hydra.job.name == "pretrain"
    with hydra_config(master):
        said = {key: str(master[key]) for key in (("arm", "seed") if pretrains else ("row", "pretrain_seed", "seed"))}
        said["task"] = "" if pretrains else str(master.task.name)
    found = []
    for words in jobs:
        job = said | {key_of(word): word.partition("=")[2].strip("'\"") for word in words}
        seeds = job["seed"] if pretrains else f"{job['pretrain_seed']}/{job['seed']}"
        found.append(JobName(job["arm"] if pretrains else job["row"], job["task"], seeds))
    return found


def sweep_overrides(loader: ConfigLoader, master: DictConfig) -> list[tuple[str, ...]]:
    """The product of the sweeper's parameters and the command line's, later ones winning.

    Raises:
        ValueError: it is empty, which must not look like finished; or it has a job twice.
    """
    with hydra_config(master):
        params = master.hydra.sweeper.params
        parameters = {} if params is None else OmegaConf.to_container(params, resolve=True)
    assert isinstance(parameters, dict)
    words = [f"{key!s}={value}" for key, value in parameters.items()] + list(master.hydra.overrides.task)
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(words)
    jobs = [tuple(job) for batch in BasicSweeper.split_arguments(parsed, None) for job in batch]
    if not jobs:
        raise ValueError(f"this sweep expands to no job at all; check its values and globs: {' '.join(words)}")
    refuse_repeated(jobs)
    return named_jobs(jobs, master)


def named_jobs(jobs: Sequence[Sequence[str]], master: DictConfig) -> list[tuple[str, ...]]:
    """The jobs, each with an arm's or a row's name of what it differs in, where nothing else names its folder.

    `-m objective.token.predict_prob=0.15,0.3 seed=1,2` gets the arms predict_prob-0.15 and predict_prob-0.3. An
    experiment names its arms and rows itself, and a key that run_dir contains needs no other name.
    """
    plain = [tuple(job) for job in jobs]
    kind = KINDS.get(str(master.hydra.job.name))
    values = {
        key: {word: None for job in plain for word in job if key_of(word) == key} for key in map(key_of, plain[0])
    }
    swept = [key for key, words in values.items() if len(words) > 1]
    place = str(OmegaConf.to_container(without_hydra(master), resolve=False).get("run_dir"))  # type: ignore[union-attr]
    named = {key for key in swept if f"${{{key}}}" in place or f"${{{key}.name}}" in place}
    telling = [key for key in swept if key not in named]
    if kind is None or kind in values or kind in master.hydra.runtime.choices or not set(telling) - NAMED_BY:
        return plain
    return [(*job, f"{kind}={_name([word for word in job if key_of(word) in telling], telling)}") for job in plain]


def _name(words: Sequence[str], keys: Sequence[str]) -> str:
    """What differs, in letters that a path and Hydra's grammar take; values too long to read are a checksum."""
    parts = []
    for key, _, value in (word.lstrip("+").partition("=") for word in words):
        last = key.replace("/", ".").rpartition(".")[2]
        short = last if sum(one.replace("/", ".").endswith(f".{last}") or one == last for one in keys) == 1 else key
        said = re.sub(r"[^\w.]+", "_", value).strip("_")
        said = said if len(said) <= LONGEST_VALUE else hashlib.sha256(value.encode()).hexdigest()[:8]
        parts.append(said if key in NAMED_BY else f"{short.replace('/', '.')}-{said}")
    return "+".join(parts)


def refuse_repeated(jobs: Iterable[tuple[str, ...]]) -> None:
    """Raise ValueError where a sweep has a job twice, or twice a key in a job: two processes would want one folder."""
    for job, times in Counter(jobs).items():
        if times > 1:
            raise ValueError(f"this sweep has the same job twice, {' '.join(job)}: some value is given twice in a list")
        forced = {key_of(word): word for word in job if word.startswith("++")}
        if twice := next((word for word in job if word not in forced.values() and key_of(word) in forced), None):
            key = key_of(twice)
            raise ValueError(f"{forced[key]} stands beside the sweep's own {twice}: write {key}= to replace its values")


class ReadOnce(CachingConfigRepository):
    """Hydra's repository of YAML files, which it would read anew for every job; a copy of what was read, for Hydra
    merges into it. Its copies, of which Hydra makes one a job, share what was read.
    """

    def load_config(self, config_path: str) -> ConfigResult | None:
        return copy.deepcopy(super().load_config(config_path))

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        self.cache = {}  # in other folders other files are found
        super().initialize_sources(config_search_path)

    def __deepcopy__(self, memo: dict[int, Any]) -> ReadOnce:
        copied = copy.copy(self)
        copied.delegate = copy.deepcopy(self.delegate, memo)
        return copied


class JobComposer:
    """Composes a sweep's jobs as Hydra does, and once for all that differ in plain values alone.

    Composing a job reads and merges two dozen files. A word such as `seed=2` chooses none of them: set on a copy of a
    job that is otherwise equal, it gives what Hydra gives, in a fraction of the time.
    """

    def __init__(self, loader: ConfigLoader, master: DictConfig) -> None:
        self.loader, self.master = loader, master
        if isinstance(loader, ConfigLoaderImpl):
            loader.repository = ReadOnce(loader.repository)  # type: ignore[assignment]  # all it wants is the interface
        self._parser = OverridesParser.create(config_loader=loader)
        self._names_group = cache(lambda key: bool(loader.get_group_options(key)))  # reads folders
        self._composed: dict[tuple[str, ...], DictConfig] = {}

    def compose(self, words: Sequence[str]) -> DictConfig:
        """A job's configuration with its `hydra` node.

        Raises:
            ValueError: a key that the stage does not have.
        """
        parsed = self._parser.parse_overrides(list(words))
        plain = [one for one in parsed if self._is_plain(one) and self._stands_alone(one, parsed)]
        kind = tuple(one.key_or_group if one in plain else word for one, word in zip(parsed, words, strict=True))
        if kind not in self._composed:
            config = self.loader.load_sweep_config(self.master, list(words))
            self._composed[kind] = config
        config = copy.deepcopy(self._composed[kind])
        try:
            for one in plain:
                OmegaConf.update(config, one.key_or_group, one.value())
        except OmegaConfBaseException:
            return self.loader.load_sweep_config(self.master, list(words))  # Hydra says what is wrong, as anywhere
        OmegaConf.copy_cache(from_config=self.master, to_config=config)
        self._tell_hydra(config, [one for one in parsed if not one.is_hydra_override()])
        return config

    @staticmethod
    def _stands_alone(override: Override, others: Sequence[Override]) -> bool:
        """Whether no other word is about its key, a part of it or what it is a part of: their order would count."""
        key = f"{override.key_or_group}."
        keys = [f"{one.key_or_group}." for one in others if one is not override]
        return not any(key.startswith(other) or other.startswith(key) for other in keys)

    def _is_plain(self, override: Override) -> bool:
        """Whether it gives one existing key a number or a text, and chooses nothing."""
        if self.master.hydra.searchpath:
            return False  # more groups than the loader knows of
        is_change = override.type == OverrideType.CHANGE and override.package is None
        is_value = isinstance(override.value(), int | float | str) and not override.is_hydra_override()
        return is_change and is_value and not self._names_group(override.key_or_group)

    @staticmethod
    def _tell_hydra(config: DictConfig, overrides: list[Override]) -> None:
        """What the `hydra` node says of a job's own words."""
        names = config.hydra.job.config.override_dirname
        OmegaConf.set_readonly(config.hydra, False)
        config.hydra.overrides.task = [one.input_line for one in overrides]
        config.hydra.job.override_dirname = get_overrides_dirname(
            overrides, kv_sep=names.kv_sep, item_sep=names.item_sep, exclude_keys=names.exclude_keys
        )


def plan_job(composed: DictConfig, overrides: Sequence[str]) -> PlannedJob:
    """Where a composed job runs and how its folder stands. ValueError for overrides that cannot be meant."""
    stage = str(composed.hydra.job.name)
    with hydra_config(composed):
        task_config = without_hydra(composed)
        schema.check_config(stage, task_config)
        if stage in ("pretrain", "finetune"):
            check_overrides(task_config)
        run_dir = str(task_config.get("run_dir") or "")
        status, source = job_status(stage, task_config, run_dir) if run_dir else ("new", "")
    return PlannedJob(tuple(overrides), run_dir, status, source)


def with_own_folders(planned: Iterable[PlannedJob]) -> Iterator[PlannedJob]:
    """The jobs as they are; ValueError for one whose folder is another's, whom it would wait for or be refused by."""
    seen: dict[str, PlannedJob] = {}
    for plan in planned:
        other = seen.setdefault(plan.run_dir, plan) if plan.run_dir else plan
        if other is not plan:
            differing = sorted(set(plan.overrides) ^ set(other.overrides))
            raise ValueError(
                f"two jobs of this sweep would share the folder {plan.run_dir}; they differ in {', '.join(differing)}. "
                "Sweep a key that run_dir contains, or put it there: run_dir='...${key}...'"
            )
        yield plan


def job_status(stage: str, config: DictConfig, run_dir: str) -> tuple[str, str]:
    """(the folder's status, the run it shares); `complete` only where nothing it was made from can have changed.

    `conflict`: the folder holds a run of another configuration, and will be refused.
    """
    folder = Path(run_dir)
    record = read_record(folder)
    if record is None:
        return _status_of_new(config) if stage == "pretrain" else ("new", "")
    source_place = os.path.normpath(folder / record.shared.run) if record.shared else ""
    if is_done(run_dir, stage=stage, config=config):
        return "complete", source_place
    with suppress(ValueError):  # a value is missing: the job itself says which
        if not is_record_of(record, stage=stage, config=config):
            return "conflict", source_place
    return "check" if record.is_complete else record.status, source_place


def _status_of_new(config: DictConfig) -> tuple[str, str]:
    """Of a pre-training run that has no folder yet."""
    if source := find_equal_run(config):
        return "shared", str(source.folder)
    likely = find_equal_run(config, is_touched_ok=True)
    return (LIKELY_SHARED, str(likely.folder)) if likely else ("new", "")


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
