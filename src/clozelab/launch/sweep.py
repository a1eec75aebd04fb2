"""What a sweep consists of: its jobs' words, and any of them composed; and what was wrong where one
does not compose.

Composes as Hydra does for `--config-dir FOLDER --config-name NAME -m`, with its own loader and
basic sweeper, so that
`reproduce --dry-run` and the report's plan never disagree with what runs.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from clozelab import config as schema
from clozelab.config import copied
from clozelab.launch import experiments
from clozelab.launch.experiments import KINDS, MEASURED
from clozelab.runs.identity import no_value
from clozelab.runs.record import grouped
from clozelab.runs.redaction import redacted_words
from clozelab.schema import SCHEMAS
from clozelab.targets import validate_config_security
from clozelab.text.did_you_mean import key_of, nearest
from clozelab.text.paths import CONF_DIR

# what names an arm or a row already, in conf/pretrain.yaml and finetune.yaml
NAMED_BY = {"objective", "encoder_arm"}
LONGEST_VALUE = 40


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
        search_path.prepend(
            provider="command-line", path=path, anchor=SearchPathQuery(provider="schema")
        )
    return GatedLoader(config_search_path=search_path)


class GatedLoader(ConfigLoaderImpl):
    """Hydra's loader; whatever it composes has passed the gate, before Hydra or anybody makes
    anything of it.
    """

    def load_configuration(self, *args: Any, **options: Any) -> DictConfig:
        composed: DictConfig = super().load_configuration(*args, **options)
        with hydra_config(composed):
            validate_config_security(composed)
            experiments.check_values(composed)
        OmegaConf.set_readonly(composed.hydra, False)  # as it was
        return composed


def compose(
    name: str, overrides: Sequence[str] = (), *, folder: Path | None = None, sweep: bool = False
) -> DictConfig:
    """One composed configuration with its `hydra` node; with `sweep`, the master configuration of a
    multirun.
    """
    mode = RunMode.MULTIRUN if sweep else RunMode.RUN
    return make_loader(folder).load_configuration(
        config_name=name, overrides=list(overrides), run_mode=mode
    )


def phase_objectives(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The objective of each phase as a node, from a run's plain configuration; ValueError for an
    unknown setting.
    """
    usual, found = config["objective"], []
    for number, phase in enumerate(config["phases"]):
        said = phase.get("objective") or {}
        if isinstance(said, str):
            # Composed as on a command line, but for what the run and its scale say of every
            # objective.
            loaded = GlobalHydra.instance()
            loader = loaded.config_loader() if loaded.is_initialized() else make_loader()
            composed = loader.load_configuration(
                "pretrain", [f"objective={said}"], run_mode=RunMode.RUN
            )
            composed.merge_with({key: config[key] for key in ("scale", "fidelity", "fidelities")})
            composed.objective.dupe_factor = usual["dupe_factor"]
            node: Any = OmegaConf.to_container(composed.objective, resolve=True)
            found.append(node)
            continue
        try:
            node = OmegaConf.merge(OmegaConf.create(usual, flags={"struct": True}), said)
        except ConfigKeyError as error:
            above = (error.full_key or "").rpartition(".")[0]
            there = OmegaConf.select(OmegaConf.create(usual), above) if above else usual
            where = f"phases.{number}.objective.{error.full_key}"
            raise ValueError(
                f"{where}: the run's objective has {', '.join(map(str, there))} there"
            ) from error
        found.append(OmegaConf.to_container(node))
    return found


class Sweep:
    """A sweep opened with the user's overrides: its master configuration, its jobs' words, any job
    composed.
    """

    def __init__(
        self, name: str, overrides: Sequence[str] = (), *, folder: Path | None = None
    ) -> None:
        loader = make_loader(folder)
        self.master = loader.load_configuration(name, list(overrides), run_mode=RunMode.MULTIRUN)
        self.composer = JobComposer(loader, self.master)
        self._settings: dict[tuple[str, ...], dict[str, Any]] = {}

    @cached_property
    def jobs(self) -> list[tuple[str, ...]]:
        """Every job's words, in the order in which they are started: the product of the sweeper's
        and the user's.
        """
        with hydra_config(self.master):
            params: Any = OmegaConf.to_container(
                self.master.hydra.sweeper.params or OmegaConf.create(), resolve=True
            )
        words = [f"{key!s}={value}" for key, value in params.items()] + list(
            self.master.hydra.overrides.task
        )
        parsed = OverridesParser.create(config_loader=self.composer.loader).parse_overrides(words)
        jobs = [tuple(job) for batch in BasicSweeper.split_arguments(parsed, None) for job in batch]
        refuse_repeated(jobs)
        return named_jobs(jobs, self.master)

    @property
    def runs_here(self) -> bool:
        """Whether its jobs are processes of this machine, not of a cluster's."""
        return str(self.master.hydra.launcher._target_).endswith(".ProcessLauncher")

    def settings(self, words: Sequence[str]) -> dict[str, Any]:
        """A job's configuration in plain values, as its stage gets it; the caller's own."""
        key = tuple(words)
        if key not in self._settings:
            with hydra_config(self.composer.compose(words)) as config:
                schema.check_config(str(self.master.hydra.job.name), config)
                # a DictConfig's is a dict
                self._settings[key] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
        return copy.deepcopy(self._settings[key])

    def groups(self, counts: Callable[[str], bool]) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
        """The jobs that have equal words for the keys that count, by those words."""
        return grouped(
            self.jobs, lambda words: tuple(word for word in words if counts(key_of(word)))
        )


def named_jobs(jobs: Sequence[Sequence[str]], master: DictConfig) -> list[tuple[str, ...]]:
    """The jobs, each with an arm's or a row's name of what it differs in, where nothing else names
    its folder.

    `-m objective.token.predict_prob=0.15,0.3 seed=1,2` gets the arms predict_prob-0.15 and
    predict_prob-0.3. An experiment names its arms and rows itself, and a key that run_dir contains
    needs no other name."""
    if not jobs:
        raise ValueError("this sweep expands to no job at all; check its values and globs")
    plain = [tuple(job) for job in jobs]
    kind = KINDS.get(str(master.hydra.job.name))
    values = {
        key: {word for job in plain for word in job if key_of(word) == key}
        for key in map(key_of, plain[0])
    }
    place = str(OmegaConf.to_container(OmegaConf.masked_copy(master, "run_dir"), resolve=False))
    swept = [key for key, words in values.items() if len(words) > 1]
    telling = [
        key for key in swept if f"${{{key}}}" not in place and f"${{{key}.name}}" not in place
    ]
    is_named = {kind, MEASURED} & values.keys() or kind in master.hydra.runtime.choices
    if kind is None or is_named or not set(telling) - NAMED_BY:
        return plain
    return [
        (*job, f"{kind}={_name([word for word in job if key_of(word) in telling], telling)}")
        for job in plain
    ]


def _name(words: Sequence[str], keys: Sequence[str]) -> str:
    """What differs, in letters that a path and Hydra's grammar take; values too long to read are a
    checksum.
    """
    parts = []
    for key, _, value in (word.lstrip("+").partition("=") for word in words):
        last = key.replace("/", ".").rpartition(".")[2]
        short = (
            last
            if sum(one.replace("/", ".").endswith(f".{last}") or one == last for one in keys) == 1
            else key
        )
        said = re.sub(r"[^\w.]+", "_", value).strip("_")
        is_shown = len(said) <= LONGEST_VALUE and redacted_words([f"{key}={value}"]) == [
            f"{key}={value}"
        ]
        said = said if is_shown else hashlib.sha256(value.encode()).hexdigest()[:8]
        parts.append(said if key in NAMED_BY else f"{short.replace('/', '.')}-{said}")
    return "+".join(parts)


def refuse_repeated(jobs: Iterable[tuple[str, ...]]) -> None:
    """Raise ValueError where a sweep has a job twice, or twice a key in a job: two processes would
    want one folder.
    """
    for job, times in Counter(jobs).items():
        if times > 1:
            raise ValueError(
                f"this sweep has the same job twice, {' '.join(job)}: some value is given twice in"
                " a list"
            )
        forced = {key_of(word): word for word in job if word.startswith("++")}
        if twice := next(
            (word for word in job if word not in forced.values() and key_of(word) in forced), None
        ):
            key = key_of(twice)
            raise ValueError(
                f"{forced[key]} stands beside the sweep's own {twice}: write {key}= to replace its"
                " values"
            )


class JobComposer:
    """Composes a sweep's jobs as Hydra does, once for all that differ in plain values: `seed=2` is
    set on a copy.
    """

    def __init__(self, loader: ConfigLoader, master: DictConfig) -> None:
        self.loader, self.master = loader, master
        self._parser = OverridesParser.create(config_loader=loader)
        self._names_group = cache(lambda key: bool(loader.get_group_options(key)))  # reads folders
        self._composed: dict[tuple[str, ...], DictConfig] = {}

    def compose(self, words: Sequence[str]) -> DictConfig:
        """A job's configuration with its `hydra` node."""
        parsed = self._parser.parse_overrides(list(words))
        plain = [one for one in parsed if self._is_plain(one, parsed)]
        kind = tuple(
            one.key_or_group if one in plain else word
            for one, word in zip(parsed, words, strict=True)
        )
        if kind not in self._composed:
            self._composed[kind] = self.loader.load_sweep_config(self.master, list(words))
        config: DictConfig = copied(self._composed[kind])
        try:
            for one in plain:
                OmegaConf.update(config, one.key_or_group, one.value())
        except OmegaConfBaseException:
            # Hydra says what is wrong, as anywhere
            return self.loader.load_sweep_config(self.master, list(words))
        OmegaConf.copy_cache(from_config=self.master, to_config=config)
        own, names = (
            [one for one in parsed if not one.is_hydra_override()],
            config.hydra.job.config.override_dirname,
        )
        OmegaConf.set_readonly(config.hydra, False)
        config.hydra.overrides.task = [one.input_line for one in own]
        config.hydra.job.override_dirname = get_overrides_dirname(
            own, kv_sep=names.kv_sep, item_sep=names.item_sep, exclude_keys=names.exclude_keys
        )
        return config

    def _is_plain(self, override: Override, all_of_job: Sequence[Override]) -> bool:
        """Whether it gives one existing key a number or a text, chooses nothing, and overlaps no
        other word.
        """
        key = f"{override.key_or_group}."
        others = [f"{one.key_or_group}." for one in all_of_job if one is not override]
        return (
            not self.master.hydra.searchpath  # more groups than the loader knows of
            and override.type == OverrideType.CHANGE
            and override.package is None
            and isinstance(override.value(), int | float | str)
            and "_target_" not in key  # for the gate to see
            and not override.is_hydra_override()
            and not self._names_group(override.key_or_group)
            and not any(key.startswith(other) or other.startswith(key) for other in others)
        )


def without_hydra(composed: DictConfig) -> DictConfig:
    """The part of a composed configuration that a stage gets."""
    nodes = composed.__dict__["_content"]
    # half of the nodes
    composed.__dict__["_content"] = {key: node for key, node in nodes.items() if key != "hydra"}
    try:
        config: DictConfig = copied(composed)
    finally:
        composed.__dict__["_content"] = nodes
    return config


@contextmanager
def hydra_config(composed: DictConfig) -> Iterator[DictConfig]:
    """Let `${hydra:...}` mean this configuration; what a stage gets of it."""
    holder = HydraConfig.instance()
    before, holder.cfg = holder.cfg, None
    holder.set_config(composed)
    try:
        yield without_hydra(composed)
    finally:
        holder.cfg = before


CONFIGURATION_ERRORS: tuple[type[Exception], ...] = (
    HydraException,
    OmegaConfBaseException,
    YAMLError,
)
WRONG_CHOICE = re.compile(
    r"Could not find '(.+)/([^/']+)'\s+Available options in '[^']+':\n((?:[ \t]+\S+\n?)+)"
)
WRONG_IN_FILE = re.compile(
    r"In '([^']+)': \w+ raised while composing config:\s*Key '[^']+' .*\s+full_key: (\S+)"
)


def explain(
    error: BaseException, verb: str, *, config_name: str | None = None, folder: Path | None = None
) -> str:
    """The message of an error from composing a verb's configuration; an unknown key comes with the
    nearest one.
    """
    text, cause = str(error).strip(), error.__cause__
    stage = verb if verb in SCHEMAS else "pretrain"  # which the verbs without a configuration ask
    if found := WRONG_CHOICE.search(text):
        group, name, known = found[1], found[2], found[3].split()
        near = nearest(name, known, cutoff=0.5 if len(name) < 6 else 0.6)
        meant = f"; did you mean {near!r}?" if near else ""
        own = (
            ""
            if folder
            else f"; one of your own: FOLDER/{group}/{name}.yaml and --config-dir FOLDER"
        )
        return f"there is no {group} {name!r}{meant} (there are {', '.join(known)}{own})"
    if found := WRONG_IN_FILE.match(text):
        name, key = found.groups()
        files = [place / f"{name}.yaml" for place in (folder, CONF_DIR) if place is not None]
        file = next((one for one in files if one.is_file()), name)
        return (
            f"{file}:"
            f" {_no_key(stage, key, known_keys(stage, None, of_hydra=key.startswith('hydra.')))}"
        )
    if found := re.match(r"Could not override '([^']+)'", text):
        known = known_keys(config_name or stage, folder, of_hydra=found[1].startswith("hydra."))
        if found[1] in known:  # the key is right, something in its value is not
            of_row = (
                "this sweep takes rows as measured=NAME"
                if (stage, found[1]) == ("evaluate", "row")
                else ""
            )
            return f"{found[1]}: {of_row or (str(cause or '').strip() or text).splitlines()[0]}"
        return _no_key(stage, found[1], known)
    if isinstance(error, HydraException) and isinstance(cause, OmegaConfBaseException):
        word, reason = text.removeprefix("Error merging override "), str(cause).strip()
        return f"{word}: {reason.splitlines()[0]}" if word != text else f"{text}\n{reason}"
    if isinstance(error, MissingMandatoryValue):
        return no_value(re.sub(r"\[(\d+)\]", r".\1", str(error.full_key)))
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        return f"{error.full_key}: {text.splitlines()[0]}"
    return text


def _no_key(stage: str, key: str, known: Sequence[str]) -> str:
    where = f"see `clozelab {stage} --cfg {'hydra' if key.startswith('hydra.') else 'job'}`"
    if near := nearest_key(key, known):
        return f"{stage} has no key {key!r}; did you mean {near!r}? ({where})"
    parent = key.rpartition(".")[0]
    beside = [
        name.rpartition(".")[2] for name in known if parent and name.rpartition(".")[0] == parent
    ]
    return f"{stage} has no key {key!r}; " + (
        f"{parent} has {', '.join(beside)} ({where})" if beside else where
    )


def known_keys(config_name: str, folder: Path | None, *, of_hydra: bool = False) -> list[str]:
    """Dotted names of all keys of a configuration, or of Hydra's own beside it; none where it does
    not compose.
    """

    def dotted(value: Any, where: str) -> Iterator[str]:
        for key, child in value.items() if isinstance(value, dict) else ():
            yield f"{where}{key}"
            yield from dotted(child, f"{where}{key}.")

    try:
        whole = compose(config_name, folder=folder)
    except CONFIGURATION_ERRORS:
        return []
    config = OmegaConf.masked_copy(whole, "hydra") if of_hydra else without_hydra(whole)
    return [*dotted(OmegaConf.to_container(config, resolve=False), "")]


def nearest_key(key: str, known: Sequence[str]) -> str | None:
    """The key that was probably meant: one beside it that is spelt alike, else any that is or that
    ends in it.
    """
    parent, _, last = key.rpartition(".")
    parts = {name: name.rpartition(".")[::2] for name in known}
    beside = {own: name for name, (above, own) in parts.items() if above == parent}
    if near := nearest(last, beside):
        return beside[near]
    # By whole names, its neighbours and what it stands below would always win.
    others = [name for name in known if not key.startswith(f"{name}.") and parts[name][0] != parent]
    return next((name for name in known if parts[name][1] == last), None) or nearest(
        key, others, cutoff=0.75
    )
