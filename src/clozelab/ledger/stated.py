"""What a row's or an arm's own file says that its runs are: the values it spells out and the parts it is made of.

What it leaves open is not of it: null, to be given, and `${...}`, another key's to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from clozelab.ledger.fingerprint import LATER_KEYS, is_of_no_account

TARGET = "_target_"
Stated = Mapping[str, Any]
"""Dotted key -> value; "/group" -> choice."""


def find_file(folders: Iterable[Path], kind: str, name: str) -> Path | None:
    """The file of a row, an arm or another group's choice: the first folder's that has it."""
    paths = (folder / kind / f"{name}.yaml" for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def read_stated(folders: Sequence[Path], kind: str, name: str) -> Stated:
    """What the file says; nothing where there is none.

    Of a part that it replaces (`override /objective: mlm`), the classes and choices: its settings are the part's.
    """
    return _stated(folders, kind, name, "")


def contradictions(stated: Stated, config: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Key -> (what the configuration has, what the file says), where they differ.

    A key that a recorded configuration does not have says nothing, unless it has the value of before there was it.
    """
    found = {}
    for key, value in stated.items():
        if key.startswith("/") or (key != "encoder" and is_of_no_account(key)):
            continue
        known, other = _look_up(config, key)
        if known and not _fits(other, value, key):
            found[key] = (other, value)
    return found


def _fits(found: Any, said: Any, key: str) -> bool:
    """Whether a value is what was said; of a mapping in a list what counts and was said, whatever else it has."""
    if isinstance(said, Mapping) and isinstance(found, Mapping):
        counting = {name: value for name, value in said.items() if not is_of_no_account(f"{key}.{name}")}
        return all(_fits(found.get(name), value, f"{key}.{name}") for name, value in counting.items())
    if isinstance(said, list) and isinstance(found, list):
        pairs = zip(found, said, strict=False)
        return len(found) == len(said) and all(_fits(*pair, f"{key}.{place}") for place, pair in enumerate(pairs))
    return bool(found == said) or str(found) == str(said)


def _look_up(config: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    """(whether the configuration says anything of a dotted key, what)."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping):
            return True, None  # what it is a part of has been taken out
        if part not in node:
            return key in LATER_KEYS, LATER_KEYS.get(key)
        node = node[part]
    return True, node


def _stated(folders: Sequence[Path], group: str, name: str, package: str) -> dict[str, Any]:
    path = find_file(folders, group, name)
    if path is None:
        return {}
    plain = _read(path, path.stat().st_mtime_ns)
    found: dict[str, Any] = {}
    for part, choice in _choices(plain.get("defaults", ()), group):
        inner = _stated(folders, part, choice, part.replace("/", "."))
        found |= {f"/{part}": choice}
        found |= {key: value for key, value in inner.items() if key.startswith("/") or key.endswith(TARGET)}
    own = {key: value for key, value in plain.items() if key not in ("defaults", "hydra")}
    return found | dict(_literals(own, package))


@cache
def _read(path: Path, _time: int) -> dict[str, Any]:
    plain = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    return {str(key): value for key, value in plain.items()} if isinstance(plain, dict) else {}


def _choices(defaults: Iterable[Any], group: str) -> Iterator[tuple[str, str]]:
    """(group, choice) of a defaults list; an entry that lays a file over another part is that part's matter."""
    for entry in defaults:
        for text, choice in entry.items() if isinstance(entry, Mapping) else ():
            part = str(text).removeprefix("override ").strip()
            if isinstance(choice, str) and "@" not in part and "${" not in choice:
                yield (part.removeprefix("/") if part.startswith("/") else f"{group}/{part}"), choice


def _literals(node: Mapping[Any, Any], where: str) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        path = f"{where}.{key}" if where else str(key)
        if isinstance(value, Mapping):
            yield from _literals(value, path)
        elif value is not None and "${" not in str(value) and value != "???":
            yield path, value
