"""Plain values, as JSON and YAML files hold them: names for them, and how they are read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

Json: TypeAlias = Any
"""None, a boolean, a number, a text, or a list or an object of these.

What it is follows from the key that it stands at, which mypy cannot see. Where a file comes from
elsewhere, a model of pydantic checks it first (runs/record.py, schema.py).
"""
JsonObject: TypeAlias = dict[str, Any]
ReadOnlyJson: TypeAlias = Mapping[str, Any]
"""An object that whoever takes it does not change."""
PlainDict: TypeAlias = dict[str, object]
"""Values by name that are passed on, compared or written.

Unlike a JsonObject's, they can be used only after a check of their type.
"""
PlainMapping: TypeAlias = Mapping[str, object]
"""The same for whoever does not change it."""
NESTED = (dict, list)
SPELT_VALUES = ("true", "false", "null", "inf", "nan")  # which Hydra would not take for text
PLAIN_TEXT = re.compile(r"[A-Za-z_/.][\w./-]*", re.ASCII)
"""A text that Hydra's grammar takes without quotes."""


def read_json(path: Path) -> Json:
    """Return what a JSON file holds; OSError or ValueError where it cannot be read."""
    return json.loads(path.read_text(encoding="utf-8"))


def flatten(value: Json, prefix: str = "") -> JsonObject:
    """Return nested mappings and lists as one mapping of dotted keys; empty ones have none."""
    if not isinstance(value, NESTED):
        return {prefix: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    leaves: JsonObject = {}
    for key, child in items:
        name = f"{prefix}.{key}" if prefix else str(key)
        # Most are leaves: they need no call of their own.
        if isinstance(child, NESTED):
            leaves.update(flatten(child, name))
        else:
            leaves[name] = child
    return leaves


def with_changes(settings: PlainMapping, changes: PlainMapping) -> PlainDict:
    """Return nested settings with some of them changed, at any depth."""
    changed = dict(settings)
    for key, value in changes.items():
        below = changed.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            changed[key] = with_changes(below, value)
        else:
            changed[key] = value
    return changed


def hydra_text(text: str) -> str:
    """Write a text in Hydra's grammar, in quotes where it needs some."""
    if PLAIN_TEXT.fullmatch(text) and text.lower() not in SPELT_VALUES:
        return text
    # Hydra's grammar reads a backslash as itself, but before a quote, where it has to be doubled.
    doubled = re.sub(r"(\\+)(?='|$)", lambda match: match[1] * 2, text)
    quoted = doubled.replace("'", "\\'")
    return f"'{quoted}'"


def hydra_literal(value: object) -> str:
    """Write a value in Hydra's grammar: `{name:mine,path:[a.txt,b.txt]}`.

    ValueError for what no configuration holds.
    """
    if isinstance(value, Mapping):
        items = [f"{key}:{hydra_literal(child)}" for key, child in value.items()]
        return f"{{{','.join(items)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(hydra_literal, value))}]"
    if isinstance(value, str | os.PathLike):
        return hydra_text(os.fspath(value))
    plain = value.item() if hasattr(value, "item") else value  # numpy's numbers
    if isinstance(plain, float):
        return repr(plain)
    # Hydra spells true, false, null and whole numbers as JSON does.
    try:
        return json.dumps(plain)
    except TypeError:
        raise ValueError(
            f"a {type(value).__name__} is no value of a configuration: write a table or a data set"
            " to a file (to_parquet) and give its path"
        ) from None
