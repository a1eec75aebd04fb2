"""A stage's configuration for tests that are not about composing it.

Hydra composes once for all words that differ in plain values, as for the jobs of a sweep: 15 ms
instead of 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from hydra.types import RunMode
from omegaconf import DictConfig

from clozelab.launch import plugins, sweep


@cache
def composer(stage: str) -> sweep.JobComposer:
    plugins.register()
    loader = sweep.make_loader()
    return sweep.JobComposer(loader, loader.load_configuration(stage, [], run_mode=RunMode.RUN))


def composed(stage: str, words: Sequence[str]) -> DictConfig:
    """What `clozelab STAGE WORDS` would give its stage; the caller's own."""
    return sweep.without_hydra(composer(stage).compose(words))
