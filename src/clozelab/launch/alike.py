"""Jobs of one kind, resolved together: a sweep may have thousands that differ in a few values."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from omegaconf import DictConfig, OmegaConf, StringNode
from omegaconf.errors import OmegaConfBaseException

from clozelab.config import (
    MISSING_VALUE,
    Composed,
    found_once,
    given_encoder,
    interpolation_of,
    name_encoder_folders,
    to_plain,
)
from clozelab.text.plain import PlainDict

OWN_VALUE = "${each_job_has_its_own}"
"""In the place of a value: there is no such key, so whatever refers to it cannot be resolved."""
FOLDER = re.compile(r"(?<!\\)\$\{([a-z_][\w.]*)\}(?=/)")
"""A reference with a slash behind it: whatever it means becomes part of a longer text."""
PLAIN_PATH = re.compile(r"[\w./-]+", re.ASCII)
"""A text that means itself between slashes, in OmegaConf's grammar."""
OWN_PATH = re.compile(r"([\w./-]|\$\{\w+\})+", re.ASCII)
"""The same with values of the job in it."""


class Resolved(NamedTuple):
    """What jobs have in common, and where each has a value of its own.

    Attributes:
        values: plain ones, to be copied for each job.
        dependent: what holds a job's own value there, and the node and the key to find it by.
        paths: what holds a path there, its key, and the path as `str.format` fills it from
            `values`: `runs/{arm}/seed-{seed}`.
    """

    values: PlainDict
    dependent: list[tuple[PlainDict, DictConfig, str]]
    paths: list[tuple[PlainDict, str, str]]


class AlikeJobs:
    """The configurations of jobs that differ in the values of some keys.

    What these values decide cannot be resolved without them. Everything else is resolved once.
    `${hydra:...}` cannot be resolved either: Hydra's own node is another one in each job.

    Args:
        job: one of them.
        settings: its own values.
    """

    def __init__(self, job: Composed, settings: Mapping[str, object]) -> None:
        self._job = Composed(job.stage, job.node)
        self._own: dict[str, object] = {}
        self._set(dict.fromkeys(settings, OWN_VALUE))
        with self._job.resolving() as node:
            self._common = self._resolve_all(node)
        places = [(plain is self._common.values, key) for plain, _, key in self._common.dependent]
        self._has_own_encoder = (True, "encoder") in places
        # Of an encoder, a recipe mostly asks one thing: whether the scale's own runs have made it.
        self._of_scale = self._common
        if self._has_own_encoder:
            with self._job.resolving() as node:
                # Noted down as found, so that `given_encoder` says: none, the scale's own.
                found_once(node, lambda _: None)
                self._of_scale = self._resolve_all(node)

    def _set(self, settings: Mapping[str, object]) -> None:
        for key, value in settings.items():
            # A job mostly differs from the one before in a seed alone.
            if self._own.get(key) is not value:
                OmegaConf.update(self._job.node, key, value)
                self._own[key] = value

    def _resolve_all(self, node: DictConfig) -> Resolved:
        """Resolve what jobs share; of the rest, tell paths of own values from other values."""
        not_resolved: list[tuple[PlainDict, DictConfig, str]] = []
        resolved = Resolved(self._resolve(node, not_resolved), [], [])
        for plain, parent, key in not_resolved:
            _name_common_folders(parent, key, node)
            text = interpolation_of(parent, key)
            is_text = isinstance(parent._get_node(key), StringNode)
            is_path = is_text and "/" in text and OWN_PATH.fullmatch(text)
            # A path of the job's own values needs no OmegaConf, once these are there.
            if is_path and self._own.keys() >= set(re.findall(r"\$\{(\w+)\}", text)):
                resolved.paths.append((plain, key, text.replace("${", "{")))
            else:
                resolved.dependent.append((plain, parent, key))
        return resolved

    def _resolve(
        self, node: DictConfig, dependent: list[tuple[PlainDict, DictConfig, str]]
    ) -> PlainDict:
        """Return what can be resolved of a node, as plain values, and note where the rest is."""
        plain: PlainDict = {}
        for key in map(str, node):
            plain[key] = MISSING_VALUE
            if OmegaConf.is_missing(node, key):
                continue
            is_reference = OmegaConf.is_interpolation(node, key)
            try:
                value = node[key]
                if isinstance(value, DictConfig) and not is_reference:
                    plain[key] = self._resolve(value, dependent)
                else:
                    plain[key] = to_plain(value)
            except OmegaConfBaseException:
                dependent.append((plain, node, key))
        return plain

    def values(self, settings: Mapping[str, object]) -> PlainDict:
        """Return the resolved configuration of the job with these values.

        An OmegaConfBaseException or a ValueError where it cannot be resolved, or refers to
        `${hydra:...}`. Values that jobs share are written over at each call, so a copy is returned.
        """
        self._set(settings)
        with self._job.resolving() as root:
            resolved = self._common
            if self._has_own_encoder and given_encoder(root) is None:
                resolved = self._of_scale
            for plain, node, key in resolved.dependent:
                plain[key] = to_plain(node[key])
        for plain, key, path in resolved.paths:
            plain[key] = path.format_map(resolved.values)
        values: PlainDict = pickle.loads(pickle.dumps(resolved.values))  # a quick copy
        name_encoder_folders(values)
        return values


def _name_common_folders(node: DictConfig, key: str, root: DictConfig) -> None:
    """Put the folders that do not depend on a job into the text of a value that does.

    `${runs_dir}/${arm}` becomes `runs/${arm}`.
    """

    def folder(reference: re.Match[str]) -> str:
        with suppress(OmegaConfBaseException):
            value = OmegaConf.select(root, reference[1])
            if isinstance(value, str) and PLAIN_PATH.fullmatch(value):
                return value
        return reference[0]

    text = interpolation_of(node, key)
    named = FOLDER.sub(folder, text)
    if named != text:
        node[key] = named
