"""What a run is known by: its resolved configuration, without what cannot change a result.

A run's fingerprint (store.new_record) is a hash of `identity_of` its configuration, its inputs and
the results version of its stage. Values from the environment (`${oc.env:NAME}`) and what looks like
a secret are in it as hashes (runs/redaction.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from omegaconf.resolvers import oc

from clozelab.runs.redaction import digested, redacted
from clozelab.schema import IDENTITY, LAYOUT, NEUTRAL, is_as_before, meaning_of, meanings

RESULTS_VERSIONS = {"pretrain": 6, "finetune": 5, "evaluate": 4}
"""Of each stage; raised when a change of code changes its results: then no older run is taken for
the same, and no comparison mixes both (docs/decisions/0019). Older runs and packs are still
read."""

SEED_KEYS = ("seed", "pretrain_seed")
CONDITIONAL_KEYS = {key: meaning.option for key, meaning in meanings().items() if meaning.option}
"""Key -> the option without which it cannot change a result."""


def identity_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run is known by: dotted key -> value, of its recorded configuration.

    How the work is laid out on a machine is left out. So is a key with the value that it had before
    it existed (schema.Added): older records lack it, and are of the same run.
    """
    identity = {}
    for key, value in flatten(dict(config)).items():
        if meaning_of(key) != LAYOUT and not is_as_before(key, value):
            identity[key] = value
    return identity


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested mappings and lists as one mapping of dotted keys; empty ones have none."""
    if not isinstance(value, dict | list):
        return {prefix: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    leaves: dict[str, Any] = {}
    for key, child in items:
        leaves.update(flatten(child, f"{prefix}.{key}" if prefix else str(key)))
    return leaves


def canonical(config: DictConfig, *, hides: bool = True) -> dict[str, Any]:
    """Return a configuration as plain values, resolved, without what changes nothing.

    ValueError where a value is missing. With `hides`, what comes from the environment and what
    looks like a secret is a hash.
    """
    switched_off = set()
    for key, option in CONDITIONAL_KEYS.items():
        if not OmegaConf.select(config, option):
            switched_off.add(key)
    return _PlainValues(hides, frozenset(switched_off)).mapping(config, "")


@dataclass(frozen=True)
class _PlainValues:
    """Walks through a configuration for `canonical`; `path` is the dotted key of a node."""

    hides: bool
    switched_off: frozenset[str]

    def mapping(self, node: DictConfig, path: str) -> dict[str, Any]:
        plain = {}
        for key in node:
            child_path = f"{path}.{key!s}" if path else str(key)
            if child_path not in self.switched_off and meaning_of(child_path) != NEUTRAL:
                plain[str(key)] = self.value(node, key, child_path)
        return plain

    def value(self, node: DictConfig | ListConfig, key: Any, path: str) -> Any:
        try:
            value = node[key]
        except MissingMandatoryValue as error:
            raise ValueError(no_value(path)) from error

        # written down as it is, or as the hash of what the environment says
        interpolation = _interpolation(node, key)
        if meaning_of(path) == IDENTITY and "oc.env" not in interpolation:
            return value
        if self.hides and interpolation and _is_from_environment(node, key, interpolation, value):
            return f"{interpolation} {digested(value)}"

        # a node of nodes, or a value that may look like a secret
        if isinstance(value, DictConfig):
            return self.mapping(value, path)
        if isinstance(value, ListConfig):
            return [self.value(value, index, f"{path}.{index}") for index in range(len(value))]
        shown = redacted(value, path) if self.hides else value
        if shown == value:
            return value
        return f"{shown} {digested(value)}"


def _interpolation(node: DictConfig | ListConfig, key: Any) -> str:
    """Return the text of an interpolation, as `${scale.vocab_size}`; "" for any other value."""
    raw = node._get_node(key)
    if raw is None or not OmegaConf.is_interpolation(node, key):
        return ""
    text: str = raw._value()  # type: ignore[union-attr]
    return text


def _is_from_environment(
    node: DictConfig | ListConfig, key: Any, interpolation: str, value: Any
) -> bool:
    """Whether an interpolated value would be another one in another environment."""
    if "oc.env" in interpolation:
        return True
    if isinstance(value, DictConfig | ListConfig) and ":" not in interpolation:
        return False  # another part of the configuration: its own values will be asked
    # also through other keys and inside longer values
    with _environment_of_names():
        try:
            return bool(node[key] != value)
        except (OmegaConfBaseException, TypeError, ValueError):
            return True  # its type, or a resolver, cannot do with "(env NAME)"


@contextmanager
def _environment_of_names() -> Iterator[None]:
    """Let `${oc.env:NAME}` read "(env NAME)" while inside.

    OmegaConf has one table of resolvers for the whole process, so no other thread may resolve a
    configuration meanwhile.
    """

    def name_of_variable(name: str, *_default: str) -> str:
        return f"(env {name})"

    OmegaConf.register_new_resolver("oc.env", name_of_variable, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def no_value(key: str) -> str:
    """Return what to say of a key that has to be given and is not."""
    return f"{key} has no value; give one: {key}=..."
