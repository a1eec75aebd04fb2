"""All cases of `make odd`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from tests.fuzz.lab import Case

MODULES = "models weights predicted_files predictions labels tasks given corpora corpus_places"
MODULES += " scores folders tokenizers words"


def chosen(parts: Sequence[str] | None = None) -> list[Case]:
    """All cases, or those whose kind or oddity has one of the parts."""
    every: list[Case] = []
    for name in MODULES.split():
        every += import_module(f"tests.fuzz.{name}").CASES.all
    if parts is None:
        return every

    def is_meant(case: Case) -> bool:
        return any(part in f"{case.kind}/{case.oddity}" for part in parts)

    return [case for case in every if is_meant(case)]
