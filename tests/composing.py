"""Configurations for tests that are not about composing them.

Hydra composes once for all words that differ in plain values, as for the jobs of a sweep: 15 ms
instead of 100.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from clozelab.config import Composed, without_hydra_part
from clozelab.hydra_compat import JobComposer
from clozelab.launch import plugins, sweep


class Given(Composed):
    """Settings that a test gives itself, whose keys are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.unresolved:
            raise AttributeError(name)
        return self.get(name)


def given(stage: str, settings: Mapping[str, Any] | DictConfig) -> Given:
    """A stage's configuration of settings that Hydra knows nothing of."""
    if not isinstance(settings, DictConfig):
        settings = OmegaConf.create(dict(settings))
    return Given(stage, settings)


@cache
def composer(stage: str) -> JobComposer:
    plugins.register()
    loader = sweep.make_loader()
    master = loader.load_configuration(stage, [], run_mode=RunMode.RUN)
    return JobComposer(loader, Composed.from_node(master))


def run_stage(main: Callable[..., Any], composed: Composed) -> None:
    """Let a stage's `main` work, as the command line does."""
    main(composed.config, composed)


def composed(stage: str, words: Sequence[str]) -> Composed:
    """What `clozelab STAGE WORDS` would give its stage."""
    return composer(stage).compose(words)


def whole(name: str, words: Sequence[str] = (), **options: Any) -> DictConfig:
    """A composed configuration with its `hydra` node, as Hydra has it."""
    return sweep.compose(name, words, **options).node


def without_hydra(node: DictConfig) -> DictConfig:
    """A copy of a composed configuration without its `hydra` node."""
    with without_hydra_part(node) as stage_part:
        return copy.deepcopy(stage_part)


@contextmanager
def known_to_hydra(node: DictConfig) -> Iterator[DictConfig]:
    """Let `${hydra:...}` mean this configuration; yields a copy of it without that node."""
    with Composed.from_node(node)._known_to_hydra():
        yield without_hydra(node)
