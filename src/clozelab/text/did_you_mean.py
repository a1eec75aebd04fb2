"""The keys of overrides, and the refusal of values that they cannot have."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def key_of(override: str) -> str:
    """Return the key of an override: `seed` of `seed=1` and of `++seed=1`."""
    return override.partition("=")[0].lstrip("+~")


def values_of(overrides: Iterable[str]) -> dict[str, str]:
    """Return key -> value of overrides; of two of a key the later one counts."""
    return {key_of(override): override.partition("=")[2] for override in overrides}


def check_choice(key: str, value: object, choices: Collection[object]) -> None:
    """ValueError for a value of a key that is none of its choices."""
    if value not in choices:
        raise ValueError(f"{key}={value}: choose one of {', '.join(map(str, choices))}")


def check_count(key: str, value: object) -> None:
    """ValueError for a value of a key that is no whole number above 0."""
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{key}={value}: give a whole number above 0")
