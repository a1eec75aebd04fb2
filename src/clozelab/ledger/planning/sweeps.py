"""The jobs of an experiment's sweep, by configuration: seeds alone make no other shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hydra.types import RunMode
from omegaconf import OmegaConf

from clozelab.ledger.fingerprint import SEED_KEYS
from clozelab.ledger.launching.launcher import share_cores
from clozelab.ledger.plan import Step
from clozelab.ledger.run_record import JobName
from clozelab.ledger.sweep import hydra_config, make_loader, sweep_overrides, without_hydra


class Job(NamedTuple):
    """One job of a sweep: its words, and what it is found by."""

    words: tuple[str, ...]
    name: JobName


@dataclass(frozen=True)
class SweepPlan:
    """One stage's jobs: `configs` are composed configurations, `jobs` the repetitions of each over seeds."""

    verb: str
    configs: list[dict[str, Any]]
    jobs: list[list[Job]]
    at_once: int
    threads: int
    timed_at_once: int
    """Processes side by side in which speeds are measured here: one where the jobs run elsewhere."""
    num_seeds: int
    """Pre-training seeds."""

    @property
    def num_jobs(self) -> int:
        return sum(map(len, self.jobs))


class History(NamedTuple):
    """What runs so far say of a shape: `done` of its jobs, and what finished ones took on this machine, in seconds."""

    done: int = 0
    seconds: float | None = None


NO_HISTORY = History()
Histories = Callable[[Mapping[str, Any], Sequence[Job]], History]
"""(a configuration, its jobs) -> what runs so far tell of them."""


def sweep_plan(step: Step) -> SweepPlan:
    """Compose every job of a sweep that differs in more than its seeds."""
    loader = make_loader(step.folder)
    master = loader.load_configuration(step.config_name, list(step.overrides), run_mode=RunMode.MULTIRUN)
    jobs = sweep_overrides(loader, master)
    kinds: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for words in jobs:
        kinds.setdefault(tuple(word for word in words if word.partition("=")[0] not in SEED_KEYS), []).append(words)
    configs = []
    for repeated in kinds.values():
        composed = loader.load_sweep_config(master, list(repeated[0]))
        with hydra_config(composed):
            plain: Any = OmegaConf.to_container(without_hydra(composed), resolve=True)
        configs.append(plain)
    named = [
        [Job(words, JobName.of(config | _seeds(words))) for words in repeated]
        for config, repeated in zip(configs, kinds.values(), strict=True)
    ]
    at_once, threads = share_cores(master.hydra.launcher.get("jobs_at_once", 1), master, len(jobs))
    key = "pretrain_seed=" if step.verb == "finetune" else "seed="
    seeds = {word for words in jobs for word in words if word.startswith(key)}
    timed = at_once if str(master.hydra.launcher._target_).endswith(".ProcessLauncher") else 1
    return SweepPlan(step.verb, configs, named, at_once, threads, timed, max(1, len(seeds)))


def _seeds(words: Sequence[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if word.partition("=")[0] in SEED_KEYS)
