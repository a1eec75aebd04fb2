"""Jobs of one kind, resolved together: a sweep may have thousands that differ in a few values."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from clozelab.config import MISSING_VALUE, Composed, name_encoder_folders, to_plain
from clozelab.text.plain import PlainDict

OWN_VALUE = "${each_job_has_its_own}"
"""In the place of a value: there is no such key, so that nothing can be made of it."""


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
        self._dependent: list[tuple[PlainDict, DictConfig, str]] = []
        self._set(dict.fromkeys(settings, OWN_VALUE))
        with self._job.resolving() as node:
            self._values = self._resolve(node)

    def _set(self, settings: Mapping[str, object]) -> None:
        for key, value in settings.items():
            OmegaConf.update(self._job.node, key, value)

    def _resolve(self, node: DictConfig) -> PlainDict:
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
                    plain[key] = self._resolve(value)
                else:
                    plain[key] = to_plain(value)
            except OmegaConfBaseException:
                self._dependent.append((plain, node, key))
        return plain

    def values(self, settings: Mapping[str, object]) -> PlainDict:
        """Return the resolved configuration of the job with these values.

        An OmegaConfBaseException or a ValueError: it has none, or needs Hydra's node.
        """
        self._set(settings)
        with self._job.resolving():
            for plain, node, key in self._dependent:
                plain[key] = to_plain(node[key])
        values: PlainDict = pickle.loads(pickle.dumps(self._values))  # a quick copy
        name_encoder_folders(values)
        return values
