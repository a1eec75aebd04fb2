"""Checks of what a person sets of a step; each is a ValueError of one sentence."""

from __future__ import annotations


def check_count(key: str, value: object, least: int) -> None:
    """Refuse what is no whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{key}={value} must be a whole number of at least {least}")


def check_range(key: str, value: object, least: float, greatest: float) -> None:
    """Refuse a number outside its range."""
    is_inside = isinstance(value, int | float) and least <= value <= greatest
    if isinstance(value, bool) or not is_inside:
        raise ValueError(f"{key}={value} must be between {least:g} and {greatest:g}")


def list_of_texts(key: str, value: object) -> list[str]:
    """A list of texts; a text alone is a list of one."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{key}={value} must be a list of texts")
    return list(value)
