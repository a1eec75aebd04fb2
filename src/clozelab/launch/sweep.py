"""What a sweep consists of: its jobs' overrides, and the configuration of any of them.

Composes as Hydra does for `--config-dir FOLDER --config-name NAME -m`, with its own loader and
basic sweeper, so that `reproduce --dry-run` and the report's plan never disagree with what runs.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import setup_globals
from hydra.errors import ConfigCompositionException, HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from claims.analysis.grouping import group_by
from clozelab import hydra_compat
from clozelab.addresses import locate, validate_config_security
from clozelab.config import Composed, to_plain, typed, validation_messages
from clozelab.launch import experiments
from clozelab.launch.alike import AlikeJobs
from clozelab.launch.experiments import KINDS, MEASURED, sweeps_in
from clozelab.launch.overrides import check_overrides
from clozelab.launch.own_task import with_own_task
from clozelab.launch.own_text import (
    NO_CORPUS,
    has_own_text,
    with_corpus,
    with_measured_text,
    without_own_text,
)
from clozelab.launch.plugins import PACKAGE
from clozelab.runs.identity import SEED_KEYS
from clozelab.schema import PretrainConfig
from clozelab.text.did_you_mean import key_of, values_of
from clozelab.text.paths import CONF_DIR
from clozelab.text.plain import JsonObject, PlainDict, PlainMapping
from clozelab.text.redaction import redact_argv

# what names an arm or a row already, in conf/pretrain.yaml and finetune.yaml
NAMED_BY = {"objective", "encoder_arm"}
LONGEST_VALUE = 40  # characters of a value that a run folder's name shows


def make_loader(folder: Path | None = None) -> ConfigLoader:
    """Return Hydra's loader over conf/ and, before it, an experiment's folder."""
    hydra_compat.register()
    experiments.register()
    setup_globals()
    # An experiment's files come before those of conf/, which may have the same names.
    search_path = hydra_compat.create_config_search_path(str(CONF_DIR))
    if folder is not None:
        if not folder.exists():
            raise ValueError(f"{folder} is no folder")
        path = f"file://{folder.resolve()}"
        search_path.prepend(
            provider="command-line", path=path, anchor=SearchPathQuery(provider="main")
        )
    return GatedLoader(config_search_path=search_path)


class GatedLoader(hydra_compat.CheckingLoader):
    """Hydra's loader, whose configurations have passed the gate.

    They have passed it before Hydra or anybody makes anything of them. `text=FOLDER` and
    `task=FILE` are spelt out first.
    """

    def load_configuration(
        self, config_name: str | None, overrides: list[str], *args: Any, **options: Any
    ) -> DictConfig:
        """Compose; ValueError for what must not be run, and for a text beside another one."""

        def data_dir_of(words: list[str]) -> str:
            others = without_own_text(words)
            composed = GatedLoader.load_configuration(self, config_name, others, *args, **options)
            return str(composed.data_dir)

        _refuse_missing_folders(overrides)
        overrides = with_own_task(config_name, overrides, data_dir_of)
        if not has_own_text(overrides):
            return super().load_configuration(config_name, overrides, *args, **options)
        try:
            words = with_corpus(overrides)
            return super().load_configuration(config_name, words, *args, **options)
        except ConfigCompositionException as error:
            if NO_CORPUS not in str(error):
                raise
        # A stage without a corpus: an evaluation may measure on a text.
        others = without_own_text(overrides)
        composed = super().load_configuration(config_name, others, *args, **options)
        words = with_measured_text(overrides, composed)
        return super().load_configuration(config_name, words, *args, **options)

    def check(self, composed: Composed) -> None:
        plain = composed.partly_resolved()
        validate_config_security(plain)
        experiments.check_values(plain, composed.resolved_texts(experiments.INTERPOLATED))


def _refuse_missing_folders(overrides: Sequence[str]) -> None:
    """ValueError for a folder of hydra.searchpath that is not there, of which Hydra only warns."""
    for word in overrides:
        if key_of(word) != "hydra.searchpath":
            continue
        paths: Any = OverridesParser.create().parse_override(word).value()
        for path in paths or ():
            folder = str(path).removeprefix("file://")
            # pkg:// is no folder, and what is interpolated is not known yet.
            is_known = "://" not in folder and "${" not in folder
            if is_known and not Path(folder).is_dir():
                raise ValueError(f"hydra.searchpath: {folder} is no folder")


def compose(
    name: str, overrides: Sequence[str] = (), *, folder: Path | None = None, sweep: bool = False
) -> Composed:
    """Return one composed configuration; with `sweep` the master configuration of a multirun."""
    mode = RunMode.RUN
    if sweep:
        mode = RunMode.MULTIRUN
    whole = make_loader(folder).load_configuration(
        config_name=name, overrides=list(overrides), run_mode=mode
    )
    return Composed.from_node(whole)


def phase_objectives(cfg: PretrainConfig) -> list[PlainDict]:
    """Return the objective of each phase as a node.

    A phase may name another objective (`ltr`), or change settings of the run's own (`{token:
    {predict_prob: 0.3}}`). ValueError for an unknown setting.
    """
    nodes = []
    for number, phase in enumerate(cfg.phases):
        objective = phase.objective or {}
        if isinstance(objective, str):
            nodes.append(_named_objective(objective, cfg))
        else:
            nodes.append(_changed_objective(objective, asdict(cfg.objective), number))
    return nodes


def _named_objective(name: str, cfg: PretrainConfig) -> PlainDict:
    """Compose it as on a command line, but for what the run and its scale say of every one."""
    hydra = GlobalHydra.instance()
    if hydra.is_initialized():
        loader = hydra.config_loader()
    else:
        loader = make_loader()
    composed = loader.load_configuration("pretrain", [f"objective={name}"], run_mode=RunMode.RUN)
    of_run = asdict(cfg)
    composed.merge_with({key: of_run[key] for key in ("scale", "fidelity", "fidelities")})
    composed.objective.dupe_factor = cfg.objective.dupe_factor
    return to_plain(composed.objective)


def _changed_objective(changes: PlainMapping, run_objective: PlainDict, number: int) -> PlainDict:
    """Return the run's objective with the changes of phase `number`."""
    try:
        merged = OmegaConf.merge(OmegaConf.create(run_objective, flags={"struct": True}), changes)
    except ConfigKeyError as error:
        parent = (error.full_key or "").rpartition(".")[0]
        siblings: Iterable[object] = run_objective
        if parent:
            siblings = OmegaConf.select(OmegaConf.create(run_objective), parent)
        raise ValueError(
            f"phases.{number}.objective.{error.full_key}: the run's objective has"
            f" {', '.join(map(str, siblings))} there"
        ) from error
    return to_plain(merged, resolve=False)


class Sweep:
    """A sweep opened with the user's overrides.

    It has a master configuration, the overrides of its jobs, and any job composed.
    """

    def __init__(
        self, name: str, overrides: Sequence[str] = (), *, folder: Path | None = None
    ) -> None:
        loader = make_loader(folder)
        master = loader.load_configuration(name, list(overrides), run_mode=RunMode.MULTIRUN)
        self.master = Composed.from_node(master)
        self.composer = hydra_compat.JobComposer(loader, self.master)
        self._alike: dict[tuple[str, ...], AlikeJobs] = {}

    @cached_property
    def jobs(self) -> list[tuple[str, ...]]:
        """The overrides of every job, in the order in which they are started.

        They are the product of the sweeper's and the user's.
        """
        # The sweeper's own parameters come first, as in Hydra's basic sweeper.
        params = self.master.hydra_value("sweeper.params") or {}
        overrides = [f"{key!s}={value}" for key, value in params.items()]
        overrides += self.master.unresolved_hydra["hydra"]["overrides"]["task"]
        parser = OverridesParser.create(config_loader=self.composer.loader)
        jobs = hydra_compat.expand_grid(parser.parse_overrides(overrides))
        refuse_repeated(jobs)
        return named_jobs(jobs, self.master)

    @property
    def runs_here(self) -> bool:
        """Whether its jobs are processes of this machine, not of a cluster's."""
        address = str(self.master.hydra_value("launcher._target_"))
        # Of another's launcher nothing is known, and from Python nobody has told Hydra of ours.
        if not address.startswith(f"{PACKAGE}clozelab."):
            return False
        runs_here: bool = locate(address.removeprefix(PACKAGE)).runs_here
        return runs_here

    @property
    def folder(self) -> Path:
        """Where the sweep's own files lie."""
        return Path(str(self.master.hydra_value("sweep.dir")))

    def settings(self, overrides: Sequence[str]) -> JsonObject:
        """Return a job's configuration in plain values, as its stage gets it; the caller's own.

        ValueError for overrides that cannot be meant; of alike jobs one is looked at.
        """
        alike, settings = self._alike_jobs(overrides)
        with suppress(OmegaConfBaseException, ValueError):
            values = alike.values(settings)
            if not validation_messages(self.master.stage, values):
                return values
        # What is wrong is said of the job as it is composed by itself.
        job = self.composer.compose(overrides)
        job.check()
        return job.values

    def config(self, overrides: Sequence[str]) -> Any:
        """Return the same as an object of the stage's schema."""
        alike, settings = self._alike_jobs(overrides)
        with suppress(OmegaConfBaseException, ValueError):
            return typed(self.master.stage, alike.values(settings))
        return typed(self.master.stage, self.settings(overrides))

    def _alike_jobs(self, overrides: Sequence[str]) -> tuple[AlikeJobs, PlainDict]:
        """Return the jobs of a job's kind, and its own values.

        ValueError for the first of them where its overrides cannot be meant.
        """
        job_kind, settings = self.composer.kind_of(overrides)
        if job_kind not in self._alike:
            job = self.composer.compose(overrides)
            job.check()
            check_overrides(job)
            self._alike[job_kind] = AlikeJobs(job, settings)
        return self._alike[job_kind], settings

    def groups(self, counts: Callable[[str], bool]) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the jobs that have equal overrides of the keys that count, by those overrides."""

        return group_by(self.jobs, lambda job: tuple(word for word in job if counts(key_of(word))))


def named_jobs(jobs: Sequence[Sequence[str]], master: Composed) -> list[tuple[str, ...]]:
    """Give each job a name of what it differs in, where nothing else names its folder.

    `-m objective.token.predict_prob=0.15,0.3 seed=1,2` gets the arms predict_prob-0.15 and
    predict_prob-0.3, a fine-tuning rows; with arm=short they are short+predict_prob-0.15 and
    short+predict_prob-0.3. An experiment names its arms and rows itself, and a key that run_dir
    contains needs no other name.
    """
    if not jobs:
        raise ValueError("this sweep expands to no job at all; check its values and globs")
    plain = [tuple(job) for job in jobs]
    group = KINDS.get(master.stage)
    if group is None:
        return plain
    overrides_by_key = _overrides_by_key(plain)
    if group in master.hydra_value("runtime.choices") or MEASURED in overrides_by_key:
        return plain

    # What is said of the name: row=public, or row=${task.name}.
    given_names = overrides_by_key.pop(group, set())
    # The task's name, which the folder contains, may contain a key itself.
    given_names |= overrides_by_key.get("task.name", set())
    name_keys = _distinguishing_keys(
        overrides_by_key, [str(master.unresolved["run_dir"]), *given_names]
    )
    if not name_keys or (not given_names and set(name_keys) <= NAMED_BY):
        return plain
    return [_with_name(job, group, name_keys) for job in plain]


def _with_name(job: tuple[str, ...], group: str, name_keys: Sequence[str]) -> tuple[str, ...]:
    """A job's words with a name of the telling ones, behind the name that is said."""
    overrides = [word for word in job if key_of(word) != group]
    name = _name([word for word in overrides if key_of(word) in name_keys], name_keys)
    given_name = values_of(job).get(group)
    if given_name is not None:
        name = "{}+{}".format(given_name.strip("'\""), name)
    return (*overrides, f"{group}={name}")


def _distinguishing_keys(
    overrides_by_key: Mapping[str, set[str]], names: Sequence[str]
) -> list[str]:
    """The keys with several values that no name or folder contains as `${key}`.

    Seeds are none: runs that differ in them are of one arm, wherever they lie.
    """
    # Hydra's grammar gives a job's override as `$\{key\}`.
    contained = " ".join(names).replace("\\", "")
    name_keys = []
    for key, words in overrides_by_key.items():
        is_contained = f"${{{key}}}" in contained or f"${{{key}.name}}" in contained
        if len(words) > 1 and key not in SEED_KEYS and not is_contained:
            name_keys.append(key)
    return name_keys


def _overrides_by_key(jobs: Sequence[tuple[str, ...]]) -> dict[str, set[str]]:
    """Return key -> its words in all jobs, of the keys that the first one has."""
    overrides_by_key: dict[str, set[str]] = {key_of(word): set() for word in jobs[0]}
    for job in jobs:
        for word in job:
            if key_of(word) in overrides_by_key:
                overrides_by_key[key_of(word)].add(word)
    return overrides_by_key


def _name(words: Sequence[str], keys: Sequence[str]) -> str:
    """Say what differs, in letters that a path and Hydra's grammar take.

    Values too long to read are a checksum.
    """
    names = []
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        # "[a, b/c]" -> "a_b_c"; a long or secret value goes by its hash
        label = re.sub(r"[^\w.]+", "_", value).strip("_")
        assignment = f"{key}={value}"
        if len(label) > LONGEST_VALUE or redact_argv([assignment]) != [assignment]:
            label = hashlib.sha256(value.encode()).hexdigest()[:8]
        if key not in NAMED_BY:
            label = f"{_short_key(key, keys)}-{label}"
        names.append(label)
    return "+".join(names)


def _short_key(key: str, keys: Sequence[str]) -> str:
    """Return the last part of a key, where no other of the keys ends so; else all of it."""
    dotted = key.replace("/", ".")
    last = dotted.rpartition(".")[2]
    alike = [name for name in keys if f".{name.replace('/', '.')}".endswith(f".{last}")]
    if len(alike) == 1:
        return last
    return dotted


def refuse_repeated(jobs: Iterable[tuple[str, ...]]) -> None:
    """Raise ValueError where a sweep has a job twice, or twice a key in a job.

    Two processes would want one folder.
    """
    for job, times in Counter(jobs).items():
        if times > 1:
            raise ValueError(
                f"this sweep has the same job twice, {' '.join(job)}: some value is given twice in"
                " a list"
            )
        # To Hydra's sweeper `++seed=3` is a key of its own: it does not replace `seed=1,2`.
        forced = {key_of(word): word for word in job if word.startswith("++")}
        for word in job:
            key = key_of(word)
            if key in forced and word not in forced.values():
                raise ValueError(
                    f"{forced[key]} stands beside the sweep's own {word}: write {key}= to replace"
                    " its values"
                )


def sweeps_of(folder: Path) -> dict[str, str]:
    """Stage -> the experiment's sweep configuration. Raises ValueError where there is none."""
    names = sweeps_in(folder)
    if not names:
        raise ValueError(
            f"{folder} has no sweep: give arms in paper.yaml, or sweep_pretrain.yaml and"
            " sweep_finetune.yaml"
        )
    return names


def runs_root(folder: Path | None, overrides: Sequence[str]) -> tuple[Path, str]:
    """Folder of an experiment's runs at its scale, and the scale's name."""
    return root_of(open_master(folder or Path(), overrides))


def open_master(folder: Path, overrides: Sequence[str]) -> Composed:
    """The master configuration of the first of an experiment's sweeps that the overrides fit.

    Who reads runs alone has to name no text, and allow no code, of the trainings. ValueError or an
    error of Hydra's, that of the first sweep, where they fit none.
    """
    mistakes: list[Exception] = []
    for name in sweeps_of(folder).values():
        try:
            return compose(name, overrides, folder=folder, sweep=True)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            mistakes.append(error)
    raise mistakes[0]


def root_of(master: Composed) -> tuple[Path, str]:
    """(folder of the runs at the scale, the scale's name) of a sweep's master configuration."""
    scale = str(master.get("scale.name"))
    return Path(str(master.get("runs_dir"))) / str(master.get("experiment")) / scale, scale
