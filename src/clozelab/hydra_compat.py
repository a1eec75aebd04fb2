"""What we take from the inside of Hydra and OmegaConf, and what we change there, in one file.

pyproject.toml keeps hydra-core at 1.3 and omegaconf at 2.3, whose insides these are. Importing this
module imports all of Hydra, so whoever has to begin quickly imports it inside a function.

Used as they are: the sources of files, a search path and its repository, the sweepers. Extended:
the loader of configurations. Changed: `running_application` and `compose_quickly`, a comment a
patch.
"""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
from abc import ABCMeta, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar

import omegaconf
from hydra._internal import config_loader_impl, defaults_list
from hydra._internal import hydra as hydra_application
from hydra._internal import utils as hydra_utils
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import (
    CachingConfigRepository,
    ConfigRepository,
    IConfigRepository,
)
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins import basic_sweeper
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.defaults_list import DefaultsList
from hydra._internal.sources_registry import SourcesRegistry
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import InputDefault, ResultDefault
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.plugin import Plugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, ListConfig, OmegaConf, UnionNode, ValueNode, grammar_parser
from omegaconf.errors import OmegaConfBaseException

from clozelab.config import RESOLVERS, Composed, found_once, to_plain
from clozelab.schema import SCHEMAS
from clozelab.text.plain import flatten

__all__ = ["ConfigRepository", "SourcesRegistry", "create_config_search_path"]


class VersionedSource(FileConfigSource):
    """A source of YAML files that says when one has changed."""

    @abstractmethod
    def version(self, config_path: str) -> tuple[object, ...]:
        """Return what is another value when the file, or what stands for it, has changed.

        It holds the source's place, so that two search paths never share what was merged.
        """


class Files(list[ResultDefault]):
    """The files of a composition in order, and what they were merged into, pickled."""

    merged: bytes | None = None


class Beginning(ResultDefault):
    """The first files of a composition, merged and pickled, in the place of a file."""

    merged: bytes


class CachedMergeLoader(ConfigLoaderImpl):
    """Hydra's loader, which merges the same files once in a process.

    Jobs mostly differ in overrides of single keys, which Hydra sets after merging: so each gets a
    copy of what was merged before. Compositions of another choice have the files before it in
    common: what three of them begin with is merged once, too.
    """

    _times_begun: ClassVar[Counter[tuple[object, ...]]] = Counter()
    _beginnings: ClassVar[dict[tuple[object, ...], bytes]] = {}

    def _compose_config_from_defaults_list(
        self, defaults: list[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:
        assert isinstance(defaults, Files)
        if defaults.merged is None:
            defaults.merged = pickle.dumps(self._merge(defaults, repo))
        return pickle.loads(defaults.merged)

    def _merge(self, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        """Merge files in order, after what other lists begin with as well."""
        merge = super()._compose_config_from_defaults_list
        files: list[object] = [repr(repo.get_sources())]
        lists = []
        for default in defaults:
            files.append(repr((default, _versions([str(default.config_path)], repo))))
            lists.append(tuple(files))
        number = sum(self._times_begun[beginning] > 1 for beginning in lists)
        self._times_begun.update(lists)
        if not number:
            return merge(defaults, repo)
        key = lists[number - 1]
        if key not in self._beginnings:
            self._beginnings[key] = pickle.dumps(merge(defaults[:number], repo))
        beginning = Beginning(config_path="", primary=True)
        beginning.merged = self._beginnings[key]
        return merge([beginning, *defaults[number:]], repo)

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        if isinstance(default, Beginning):
            merged = pickle.loads(default.merged)
            return ConfigResult(provider="", path="", config=merged, header={})
        return super()._load_single_config(default, repo)


class CheckingLoader(CachedMergeLoader):
    """It shows `check` all that it composes before anybody else sees it."""

    def load_configuration(
        self, config_name: str | None, overrides: list[str], *args: Any, **options: Any
    ) -> DictConfig:
        try:
            whole = super().load_configuration(config_name, overrides, *args, **options)
        except ConfigCompositionException as error:
            # whoever explains it may compose the choices among them
            error.overrides = overrides  # type: ignore[attr-defined]
            error.loader = self  # type: ignore[attr-defined]
            raise
        self.check(Composed("", whole, whole))
        return whole

    @abstractmethod
    def check(self, composed: Composed) -> None:
        """ValueError for what must not be run."""


class JobComposer:
    """Composes a sweep's jobs as Hydra does.

    It does so once for all that differ in plain values: `seed=2` is set on a copy, and so are the
    values of `arm=b` where `arm=a` gives values to the same keys.
    """

    def __init__(self, loader: ConfigLoader, master: Composed) -> None:
        self.loader: Any = loader  # Hydra's interface leaves its repository of files out
        self.master = master.node
        # then there are more groups than the loader knows of
        self._has_searchpath = bool(master.node.hydra.searchpath)
        self._parser = OverridesParser.create(config_loader=loader)
        self._names_group = functools.cache(
            lambda key: bool(loader.get_group_options(key))
        )  # reads folders
        self._last_group = functools.cache(self._find_last_group)
        # as of when a sweep was opened, as are the templates
        self._settings_of_choice = functools.cache(self._read_settings_of_choice)
        self._templates: dict[tuple[str, ...], bytes] = {}

    def compose(self, overrides: Sequence[str]) -> Composed:
        """Compose a job's configuration."""
        return Composed.from_node(self._compose(overrides))

    def kind_of(self, overrides: Sequence[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Return what a job has in common with those that differ in plain values, and its own.

        ("objective=mlm", "seed", "seed"): the overrides without these values, and their keys.
        """
        parsed = self._parser.parse_overrides(list(overrides))
        common = []
        settings: dict[str, Any] = {}
        for override in parsed:
            of_override = self._plain_settings(override, parsed)
            common.append(override.key_or_group if of_override else str(override.input_line))
            settings |= of_override
        return (*common, *settings), settings

    def _compose(self, overrides: Sequence[str]) -> DictConfig:
        """Return it with its `hydra` node."""
        job_kind, settings = self.kind_of(overrides)
        if job_kind not in self._templates:
            loaded = self.loader.load_sweep_config(self.master, list(overrides))
            self._templates[job_kind] = pickle.dumps(loaded)
        config: DictConfig = pickle.loads(self._templates[job_kind])
        try:
            for key, value in settings.items():
                OmegaConf.update(config, key, value)
        except OmegaConfBaseException:
            # Hydra says what is wrong, as anywhere
            return self.loader.load_sweep_config(self.master, list(overrides))
        # What resolvers such as `now:` have given the master is the job's as well.
        OmegaConf.copy_cache(from_config=self.master, to_config=config)
        self._record_overrides(config, self._parser.parse_overrides(list(overrides)))
        return config

    @staticmethod
    def _record_overrides(config: DictConfig, overrides: Sequence[Override]) -> None:
        """Let the `hydra` node say of this job what the template's says of its own."""
        of_task = [override for override in overrides if not override.is_hydra_override()]
        dirname = config.hydra.job.config.override_dirname
        OmegaConf.set_readonly(config.hydra, False)
        config.hydra.overrides.task = [override.input_line for override in of_task]
        for override in of_task:
            if override.package is None and override.key_or_group in config.hydra.runtime.choices:
                config.hydra.runtime.choices[override.key_or_group] = override.value()
        config.hydra.job.override_dirname = get_overrides_dirname(
            of_task,
            kv_sep=dirname.kv_sep,
            item_sep=dirname.item_sep,
            exclude_keys=dirname.exclude_keys,
        )

    def _plain_settings(self, override: Override, all_of_job: Sequence[Override]) -> dict[str, Any]:
        """Return key -> value of what an override does, if that may be done to a copy; else empty.

        It gives existing keys a number or a text, and overlaps no other override.
        """
        if not self._is_one_value(override):
            return {}
        settings = {override.key_or_group: override.value()}
        if self._is_choice(override):
            # `+group=name` would be merged after the choice.
            if any(other.type != OverrideType.CHANGE for other in all_of_job):
                return {}
            # The job's other choices may bring files of their own.
            lines = [choice.input_line for choice in all_of_job if self._is_choice(choice)]
            lines.remove(override.input_line)
            name = str(override.value())
            settings = self._settings_of_choice(override.key_or_group, name, tuple(lines))
        other_keys = [other.key_or_group for other in all_of_job if other is not override]
        if any(itertools.starmap(_overlap, itertools.product(settings, other_keys))):
            return {}
        # An address is for the gate to see.
        if any("_target_" in key for key in settings):
            return {}
        return settings

    def _is_choice(self, override: Override) -> bool:
        return self._names_group(override.key_or_group)

    def _is_one_value(self, override: Override) -> bool:
        """Whether an override gives one key, or one group, a number or a text."""
        if self._has_searchpath or override.is_hydra_override():
            return False
        if override.type != OverrideType.CHANGE or override.package is not None:
            return False
        return isinstance(override.value(), int | float | str)

    def _read_settings_of_choice(
        self, group: str, choice: str, other_choices: Sequence[str]
    ) -> dict[str, Any]:
        """Return the keys and values of a choice's file, which no other file may change.

        Empty where it says more than numbers and texts, or is not merged last.
        """
        if group != self._last_group():
            return {}
        result = self.loader.repository.load_config(f"{group}/{choice}")
        is_last = group == self._last_group(*other_choices)
        if not is_last or result is None or result.header["package"] != "_global_":
            return {}
        content = to_plain(result.config, resolve=False)
        has_others = not all(default.is_self() for default in result.defaults_list)
        if has_others or not _is_literal(content):
            return {}
        return flatten(content)

    def _find_last_group(self, *choices: str) -> str:
        """The group whose file is merged after all others, of a job with some choices.

        Empty where some file's defaults are called as its choice is: `rates: ${arm}`.
        """
        # As they were written: only Hydra resolves what a word says of its own node.
        overrides = [*to_plain(self.master.hydra.overrides.task, resolve=False), *choices]
        name = self.master.hydra.job.config_name
        listed = self.loader.compute_defaults_list(name, overrides, RunMode.MULTIRUN)
        group = str(listed.defaults[-1].config_path).rpartition("/")[0]
        for file in listed.defaults:
            result = self.loader.repository.load_config(file.config_path)
            if result is not None and f"${{{group}}}" in str(result.defaults_list):
                return ""
        return group


def _is_literal(value: object) -> bool:
    """Say whether a value of a file is a number, a text that calls nothing, or keys with such.

    A list is none, which replaces the one that is there, and neither are keys without a value.
    """
    if isinstance(value, dict):
        return bool(value) and all(map(_is_literal, value.values()))
    calls = ("${", "???")
    return isinstance(value, int | float | str) and not any(call in str(value) for call in calls)


def _overlap(key: str, other: str) -> bool:
    """Say whether one of two keys is the other, or a node that holds it."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


class SweepPlugin(Plugin):
    """The facts of a sweep that our launchers and our sweeper get."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.context = hydra_context
        self.task = task_function
        self.master = Composed.from_node(config)
        self.verb: str = getattr(task_function, "clozelab_verb", self.master.stage)
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Take from `context`, `task`, `master` and `verb` what the sweep needs."""


@functools.cache
def register() -> None:
    """Make the root schemas and the resolvers known to Hydra, once."""
    for stage, schema in SCHEMAS.items():
        ConfigStore.instance().store(name=f"{stage}_schema", node=schema, provider="clozelab")
    for resolver in RESOLVERS:
        OmegaConf.register_new_resolver(resolver.__name__, resolver, replace=True)
    compose_quickly()


@contextmanager
def running_application(
    loader: type[ConfigLoaderImpl], *, is_one_job: bool, is_plain: bool
) -> Iterator[None]:
    """Let `hydra.main` run in our way, until the block ends.

    Args:
        loader: the class that composes.
        is_one_job: the command line says `hydra.mode=RUN`.
        is_plain: nothing says any mode, neither the command line nor a file that it may choose.
    """
    application: Any = hydra_application
    # mypy lets nobody assign to a method of a class
    hydra_class: Any = hydra_application.Hydra
    before = (application.ConfigLoaderImpl, hydra_utils.run_and_report, hydra_class.get_mode)

    # Hydra instantiates callbacks, logging and a launcher from what it has composed, before our
    # function is called: any file could have code run. Our loader refuses that first.
    application.ConfigLoaderImpl = loader

    # Hydra prints every error itself, with advice about its own variables, and exits with 1. We let
    # it through: the command line says what is wrong, and ends with the exit status that it means.
    hydra_utils.run_and_report = lambda func: func()

    # Hydra composes everything once only to read `hydra.mode`. The jobs of a sweep say it on their
    # command line, and would compose twice, as would most single runs, which say nothing.
    if is_one_job:
        hydra_class.get_mode = lambda *_, **__: RunMode.RUN
    elif is_plain:
        hydra_class.get_mode = lambda *_, **__: None

    try:
        yield
    finally:
        application.ConfigLoaderImpl, hydra_utils.run_and_report, hydra_class.get_mode = before


def compose_quickly() -> None:
    """Spare OmegaConf and Hydra work whose results nobody reads, half of the time and more."""
    # OmegaConf parses the text of an interpolation each time that it is looked at. Its trees are
    # only read, so each text is parsed once.
    parse = functools.cache(grammar_parser.parse)
    modules: list[Any] = [omegaconf.base, omegaconf._utils]
    for module in modules:
        module.parse = parse

    # It asks a million times what kind of value there is: see `NodeKind` and `_is_missing_value`.
    for kind_of_node in _kinds_below(omegaconf.Node):
        kind_of_node.__class__ = NodeKind
    for module in vars(omegaconf).copy().values():
        for function in (_get_value, _is_interpolation, _is_missing_value):
            if isinstance(module, ModuleType) and hasattr(module, function.__name__):
                setattr(module, function.__name__, function)

    # Each key that is read asks whether its node follows a schema.
    dict_class: Any = DictConfig
    dict_class._is_typed = _is_typed

    # It resolves an interpolation each time that it is looked at, also by another one.
    container_class: Any = omegaconf.base.Container
    container_class._maybe_resolve_interpolation = _resolved_once(
        container_class._maybe_resolve_interpolation
    )

    # Each configuration file gets a node of all choices so far, for defaults such as `tokenizer:
    # ${corpus}`. Hardly any file has such a default.
    make_choices = defaults_list._create_interpolation_map

    @functools.wraps(make_choices)
    def choices(
        overrides: defaults_list.Overrides, defaults: list[InputDefault], self_added: bool
    ) -> object:
        if not any(default.is_interpolation() for default in defaults):
            return None
        return make_choices(overrides, defaults, self_added)

    defaults_list._create_interpolation_map = choices  # type: ignore[assignment]

    # Whoever composes parses the same overrides several times.
    parse_once = functools.cache(OverridesParser.create().parse_rule)

    def parse_rule(self: OverridesParser, s: str, rule_name: str) -> object:  # noqa: ARG001
        # Each parser writes its own loader into the override that it gets.
        return copy.copy(parse_once(s, rule_name))

    OverridesParser.parse_rule = parse_rule  # type: ignore[method-assign]

    # Each composition parses Hydra's own files anew, and copies the schemas node by node.
    repository: Any = ConfigRepository
    repository.__deepcopy__ = lambda self, _: copy.copy(self)
    repository.load_config = _cached_load(ConfigRepository.load_config)

    # Each composition reads all of its files to find out which they are.
    loader_module: Any = config_loader_impl
    loader_module.create_defaults_list = _cached_listing(defaults_list.create_defaults_list)

    # Each merge, and each key that is set, copies nodes.
    for kind in (DictConfig, ListConfig, *ValueNode.__subclasses__()):
        node_class: Any = kind
        node_class.__deepcopy__ = _copy_of_node
    metadata_class: Any = omegaconf.base.Metadata
    metadata_class.__deepcopy__ = _copy_of_metadata

    # Each merge tells all nodes their parents, which nearly all have already.
    box_class: Any = omegaconf.base.Box
    box_class._re_parent = _parents_where_missing(box_class._re_parent)


class NodeKind(ABCMeta):
    """The class of OmegaConf's kinds of nodes, which are abstract, but have no registered members.

    So `isinstance` need not look for any.
    """

    __instancecheck__ = type.__instancecheck__


def _kinds_below(kind: type) -> Iterator[Any]:
    """Yield a kind of nodes and all that are derived from it."""
    yield kind
    derived_kinds: list[type] = kind.__subclasses__()
    for derived in derived_kinds:
        yield from _kinds_below(derived)


# OmegaConf's own import what they compare with at each call.


@functools.wraps(omegaconf._utils._is_missing_value)
def _is_missing_value(value: Any) -> bool:
    if isinstance(value, omegaconf.Node):
        value = value._value()
    return isinstance(value, str) and value == "???"


@functools.wraps(omegaconf._utils._is_interpolation)
def _is_interpolation(v: Any, strict_interpolation_validation: bool = False) -> bool:
    if isinstance(v, omegaconf.Node):
        v = v._value()
    if not isinstance(v, str):
        return False
    return omegaconf._utils._is_interpolation_string(v, strict_interpolation_validation)


@functools.wraps(omegaconf._utils._get_value)
def _get_value(value: Any) -> Any:
    if isinstance(value, ValueNode):
        return value._value()
    if not isinstance(value, omegaconf.base.Box):
        return value
    boxed = value._value()
    if boxed is None or _is_missing_value(boxed) or _is_interpolation(boxed):
        return boxed
    if isinstance(value, UnionNode):
        return _get_value(boxed)
    return value


_is_dict: Callable[[Any], bool] = functools.cache(omegaconf._utils.is_dict)


@functools.wraps(DictConfig._is_typed)
def _is_typed(node: DictConfig) -> bool:
    schema = node._metadata.object_type
    return schema not in (Any, None) and not _is_dict(schema)


def _resolved_once(resolve: Callable[..., Any]) -> Callable[..., Any]:
    """Return OmegaConf's `_maybe_resolve_interpolation`, which remembers what a node means."""

    @functools.wraps(resolve)
    def maybe_resolve(container: Any, *, value: Any, **options: Any) -> Any:
        def meaning(node: Any) -> Any:
            return resolve(container, value=node, **options)

        # Who wants no error gets None for what means nothing.
        if options["throw_on_resolution_failure"]:
            return found_once(value, meaning)
        return meaning(value)

    return maybe_resolve


def _copy_of_node(node: Any, memo: dict[int, object]) -> object:
    """Copy a node as its own `__deepcopy__` does, which makes an empty node first and fills it.

    The copy has the same parent and the same value; only a container's children are copied.
    """
    copied = object.__new__(type(node))
    state = copied.__dict__
    state.update(node.__dict__)
    state["_metadata"] = copy.deepcopy(node.__dict__["_metadata"], memo)
    state["_flags_cache"] = None
    content = state.get("_content")
    if isinstance(content, dict | list):
        children: Any = copy.deepcopy(content, memo)
        state["_content"] = children
        if isinstance(content, dict):
            children = children.values()
        for child in children:
            child.__dict__["_parent"] = copied
    return copied


def _copy_of_metadata(metadata: Any, memo: dict[int, object]) -> object:
    """Copy a node's metadata, of which only flags and remembered values ever change."""
    copied = object.__new__(type(metadata))
    copied.__dict__.update(metadata.__dict__)
    copied.flags = copy.copy(metadata.flags)
    copied.resolver_cache = copy.deepcopy(metadata.resolver_cache, memo)
    return copied


def _parents_where_missing(tell_all: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return OmegaConf's `_re_parent`, which passes over nodes that have their parent."""

    @functools.wraps(tell_all)
    def re_parent(box: Any) -> None:
        children = box.__dict__["_content"]
        if isinstance(children, dict):
            children = children.values()
        elif not isinstance(children, list):
            tell_all(box)
            return
        for child in children:
            if child.__dict__["_parent"] is not box:
                child._set_parent(box)
            if isinstance(child, omegaconf.base.Box):
                re_parent(child)

    return re_parent


def _cached_listing(make: Callable[..., DefaultsList]) -> Callable[..., DefaultsList]:
    """Return Hydra's maker of the list of files to compose, which lists those of a choice once.

    It lists them anew where one of them has changed.
    """
    lists: dict[object, tuple[Sequence[str], object, DefaultsList]] = {}

    @functools.wraps(make)
    def create_defaults_list(
        repo: CachingConfigRepository, overrides_list: list[Override], **options: object
    ) -> DefaultsList:
        # `seed=2` is set after merging: only choices of files decide which they are.
        settings = defaults_list.Overrides(repo, overrides_list).config_overrides
        choices = [override for override in overrides_list if override not in settings]
        input_lines = [choice.input_line for choice in choices]
        key = repr((repo.get_sources(), input_lines, options))  # a source says its place
        paths, versions, listed = lists.get(key, ((), None, None))
        if listed is None or versions != _versions(paths, repo):
            listed = make(repo=repo, overrides_list=choices, **options)
            listed.defaults = Files(listed.defaults)
            paths = [name.removeprefix("config_path=") for name in repo.cache]
            lists[key] = (paths, _versions(paths, repo), listed)
        return replace(listed, config_overrides=settings)

    return create_defaults_list


def _versions(config_paths: Sequence[str], repo: IConfigRepository) -> list[object]:
    """Return what is another value when one of some files has changed, in any of the sources."""
    versions: list[object] = []
    for source in repo.get_sources():
        if isinstance(source, VersionedSource):
            versions.extend(map(source.version, config_paths))
    return versions


def _version(config_path: str, repo: IConfigRepository) -> object:
    """Return what is another value when another file, or another version of it, has this name."""
    for source in repo.get_sources():
        if source.is_config(config_path):
            if isinstance(source, VersionedSource):
                return repr(source), source.version(config_path)
            return repr(source)
    return None


Load = Callable[[ConfigRepository, str], ConfigResult | None]


def _cached_load(load: Load) -> Load:
    """Return a repository's `load_config`, which loads each version of a file once in a process.

    A file says the same whatever other sources there are, as beside an experiment.
    """
    loaded: dict[str, bytes] = {}

    @functools.wraps(load)
    def load_config(repo: ConfigRepository, config_path: str) -> ConfigResult | None:
        key = repr((config_path, _version(config_path, repo)))
        if key not in loaded:
            loaded[key] = pickle.dumps(load(repo, config_path))
        return pickle.loads(loaded[key])

    return load_config


def config_repository(places: Sequence[tuple[str, str]]) -> ConfigRepository:
    """Return a reader of single files.

    `places` are (provider, `file://FOLDER` or the like).
    """
    Plugins.instance()  # among which are the sources of files
    search_path = ConfigSearchPathImpl()
    for provider, path in places:
        search_path.append(provider, path)
    return ConfigRepository(search_path)


def register_plugin(address: str, plugin_class: type[Plugin]) -> None:
    """Make a plugin known under an address of the package hydra_plugins, which need not exist."""
    plugins = Plugins.instance()
    plugins.register(plugin_class)
    plugins.class_name_to_class[address] = plugin_class


def expand_grid(overrides: list[Override]) -> list[tuple[str, ...]]:
    """Return every combination of a sweep's values, as overrides, in Hydra's order.

    ValueError for an interval, which has no values to combine.
    """
    for override in overrides:
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise ValueError(
                f"{override.input_line}: an interval is no list of values; a sweep takes"
                f" {override.key_or_group}=VALUE,VALUE or range(1,4)"
            )
    (jobs,) = basic_sweeper.BasicSweeper.split_arguments(overrides, None)
    return [tuple(job) for job in jobs]


def make_grid_sweeper(
    params: dict[str, str] | None,
    rename_jobs: Callable[[list[tuple[str, ...]]], Sequence[tuple[str, ...]]],
) -> Sweeper:
    """Return Hydra's basic sweeper, whose jobs pass through `rename_jobs`."""
    # Looked up now and not subclassed: Hydra's search for plugins runs that module's code anew, and
    # an older class of it no longer works.
    sweeper: Any = basic_sweeper.BasicSweeper(None, params)

    # It composes every job of a batch to throw it away, ten seconds for the 120 jobs of a demo. Our
    # launchers check all jobs before the first.
    sweeper.validate_batch_is_legal = lambda batch: None  # noqa: ARG005

    # It has no place between the making of its jobs and their launch, where ours get names.
    def split_and_rename(overrides: list[Override], batch_size: None) -> list[object]:
        assert batch_size is None, "a sweep is one batch"
        return [rename_jobs(expand_grid(overrides))]

    sweeper.split_arguments = split_and_rename
    return sweeper
