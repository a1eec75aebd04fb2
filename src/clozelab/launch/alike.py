"""Jobs of one kind, resolved together: a sweep may have thousands that differ in a few values."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import NoReturn

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from clozelab.config import MISSING_VALUE, Composed, to_plain, with_encoder_folders
from clozelab.text.plain import Json, JsonObject, PlainDict


def varying() -> NoReturn:
    """`${varying:}`: a value that each job has its own of, so that nothing can be made of it."""
    raise ValueError("this value is another one in each job")


OmegaConf.register_new_resolver("varying", varying, replace=True)


class AlikeJobs:
    """The configurations of jobs that differ in the values of some keys.

    What these values decide cannot be resolved without them. Everything else is resolved once.

    Args:
        composed: one of the jobs.
        keys: in whose values they may differ.
    """

    def __init__(self, composed: Composed, keys: Iterable[str]) -> None:
        # Without Hydra's node, which is another one in each job: `${hydra:...}` cannot be resolved.
        self._job = Composed(composed.stage, composed.node)
        for key in keys:
            OmegaConf.update(self._job.node, key, "${varying:}")
        self._dependent: list[tuple[str, ...]] = []
        with self._job.resolving() as node:
            common = self._resolve(node, ())
        self._common = pickle.dumps(common)

    def _resolve(self, node: DictConfig, parents: tuple[str, ...]) -> PlainDict:
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
                    plain[key] = self._resolve(value, (*parents, key))
                else:
                    plain[key] = to_plain(value)
            except OmegaConfBaseException:
                self._dependent.append((*parents, key))
        return plain

    def values(self, settings: Mapping[str, object]) -> JsonObject:
        """Return the resolved configuration of the job with these values of the keys.

        An OmegaConfBaseException or a ValueError: it has none, or needs Hydra's node.
        """
        self._set(settings)
        values: JsonObject = pickle.loads(self._common)
        with self._job.resolving() as node:
            for *parents, key in self._dependent:
                place = values
                source = node
                for parent in parents:
                    place = place[parent]
                    source = source[parent]
                place[key] = to_plain(source[key])
        return with_encoder_folders(values)

    def get(self, key: str, settings: Mapping[str, object]) -> Json:
        """Return the value of one key in that job; the same errors."""
        self._set(settings)
        return self._job.get(key)

    def _set(self, settings: Mapping[str, object]) -> None:
        for key, value in settings.items():
            OmegaConf.update(self._job.node, key, value)
