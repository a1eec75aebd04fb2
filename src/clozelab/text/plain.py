"""Names for plain values, as JSON and YAML files hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Json: TypeAlias = Any
"""None, a boolean, a number, a text, or a list or an object of these.

What it is follows from the key that it stands at, which mypy cannot see. Where a file comes from
elsewhere, a model of pydantic checks it first (runs/record.py, schema.py).
"""
JsonObject: TypeAlias = dict[str, Any]
ReadOnlyJson: TypeAlias = Mapping[str, Any]
"""An object that whoever takes it does not change."""
