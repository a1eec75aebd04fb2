"""What Hydra composed a run's configuration from: its command line, its choices, its arm's node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from hydra.core.default_element import ConfigDefault, GroupDefault
from omegaconf import OmegaConf

from clozelab.config import Composition
from clozelab.hydra_compat import ConfigRepository, config_repository
from clozelab.text.plain import PlainDict, PlainMapping
from clozelab.text.redaction import redact_argv, redacted

DELTA_FIELDS = {"arm": "arm_delta", "row": "row_delta", "measured": "row_delta"}
"""Group of an experiment's own choices -> the field of a record that has the choice's delta."""


def provenance_of(origin: Composition | None) -> PlainDict:
    """Return the fields of a record that say what a configuration is composed of.

    There are none without Hydra.
    """
    if origin is None:
        return {}
    choices = {}
    for group, choice in origin.choices.items():
        # Groups of Hydra's own (hydra/launcher) say how a run was started, not what it is.
        if "hydra/" not in group:
            choices[group] = str(choice)

    deltas = {}
    for group, field in DELTA_FIELDS.items():
        if group in choices:
            deltas[field] = read_delta(origin, group, choices[group])

    search_path = [word for word in origin.hydra_overrides if word.startswith("hydra.searchpath=")]
    return {
        **deltas,
        "started_in": str(Path.cwd()),
        "config_dir": origin.config_dir,
        "config_name": origin.config_name,
        "overrides": redact_argv([*origin.overrides, *search_path]),
        "choices": choices,
    }


def read_delta(
    origin: Composition, group: str, choice: str, *, with_parts: bool = True
) -> PlainDict:
    """Return what the node of one group's choice itself says: key -> value, "/group" -> choice.

    Keys are dotted. What a file chooses in its defaults list counts, and what it lays over a part
    (`/task/format/features@task`). Where a choice is of the whole configuration (`# @package
    _global_`: recipe, architecture), so does all that it says. Without `with_parts` what a chosen
    file says of its own group (`model: mini` of its sizes) is left out.
    """
    search_path = []
    for source in origin.sources:
        if source.schema:
            search_path.append((source.provider, f"{source.schema}://{source.path}"))
    return _DeltaReader(config_repository(search_path), with_parts).delta_of(group, choice)


def delta_of_choices(folders: Iterable[Path], choices: PlainMapping) -> PlainDict | None:
    """Return what choices ("/group", "/group@package" -> choice) bring into a delta.

    None where the file of one is in none of these folders.
    """
    places = [(folder.name, f"file://{folder.resolve()}") for folder in folders]
    reader = _DeltaReader(config_repository(places), with_parts=True)
    delta: PlainDict = {}
    for key, choice in choices.items():
        name, _, package = key.removeprefix("/").partition("@")
        if not reader.repository.config_exists(f"{name}/{choice}"):
            return None
        if package:
            included = ConfigDefault(path=f"/{name}/{choice}", package=package)
            merge_delta(delta, reader.of_included_file("", included))
        else:
            reader.merge_choice(delta, name, str(choice))
    return delta


@dataclass(frozen=True)
class _DeltaReader:
    """Reads the files of `read_delta`: defaults list first, then what a file says itself."""

    repository: ConfigRepository
    with_parts: bool

    def delta_of(self, group: str, choice: str) -> PlainDict:
        file = self.repository.load_config(f"{group}/{choice}")
        delta: PlainDict = {}
        if file is None:
            return delta
        for default in file.defaults_list or ():
            if isinstance(default, ConfigDefault):
                merge_delta(delta, self.of_included_file(group, default))
            elif isinstance(default, GroupDefault) and isinstance(default.value, str):
                self._merge_group_choice(delta, group, default)
        # Its own values are laid over those of its defaults list.
        merge_delta(delta, _leaves_of(file.config, ""))
        return delta

    def of_included_file(self, group: str, default: ConfigDefault) -> PlainDict:
        """Return the delta of `- other`, or of `- /task/format/features@task`."""
        if default.package:
            file = self.repository.load_config(str(default.path).lstrip("/"))
            return _leaves_of(file.config, default.package) if file else {}
        if default.path == "_self_":
            return {}
        return self.delta_of(group, str(default.path))

    def _merge_group_choice(self, delta: PlainDict, group: str, default: GroupDefault) -> None:
        """Merge `- /model: mini`, or `- size: mini` of a group below this one."""
        name = str(default.group).lstrip("/")
        if not str(default.group).startswith("/"):
            name = f"{group}/{name}"
        self.merge_choice(delta, name, str(default.value))

    def merge_choice(self, delta: PlainDict, name: str, choice: str) -> None:
        """Merge a choice, and what its file says of it."""
        delta[f"/{name}"] = choice
        file = self.repository.load_config(f"{name}/{choice}")
        if file is None:
            return
        if file.header.get("package") == "_global_":
            merge_delta(delta, self.delta_of(name, choice))
        elif self.with_parts:
            merge_delta(delta, _leaves_of(file.config, name.replace("/", ".")))


def merge_delta(delta: PlainDict, later: PlainMapping) -> None:
    """Lay a later delta over one, in place.

    A value replaces what was said inside of it: `architecture.pooler: null` all of a pooler.
    """
    # Over a copy of the keys, as some are removed meanwhile.
    for old, new in product([*delta], later):
        if old.startswith(f"{new}.") or new.startswith(f"{old}."):
            delta.pop(old, None)
    delta.update(later)


def _leaves_of(config: object, prefix: str) -> PlainDict:
    """Return dotted key -> value of a file's node, unresolved and without secrets."""
    node = redacted(OmegaConf.to_container(config, resolve=False))
    if not node:
        return {}
    return dict(_leaves(node, prefix))


def _leaves(node: object, prefix: str) -> Iterator[tuple[str, object]]:
    """Yield the values below a node; a list and an empty mapping are values."""
    if not isinstance(node, dict) or not node:
        yield prefix, node
        return
    for key, value in node.items():
        yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
