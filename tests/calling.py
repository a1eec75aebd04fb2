"""Calls that name the fixtures they need, for tables whose rows need different ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest


def call_with_fixtures(call: Callable[..., Any], request: pytest.FixtureRequest) -> Any:
    """The result of `call`, each of its parameters filled by the fixture of that name."""
    names = inspect.signature(call).parameters
    return call(*[request.getfixturevalue(name) for name in names])
