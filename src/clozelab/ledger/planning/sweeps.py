"""The jobs of an experiment's sweep, by configuration: seeds alone make no other shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from clozelab.ledger.fingerprint import SEED_KEYS
from clozelab.ledger.launching.launcher import share_cores
from clozelab.ledger.plan import Step
from clozelab.ledger.run_record import JobName
from clozelab.ledger.words import key_of


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
    sweep = step.sweep
    kinds = sweep.groups(lambda key: key not in SEED_KEYS)
    configs = [sweep.settings(repeated[0]) for repeated in kinds.values()]
    named = [
        [Job(words, JobName.of(config | _seeds(words))) for words in repeated]
        for config, repeated in zip(configs, kinds.values(), strict=True)
    ]
    launcher = sweep.master.hydra.launcher
    at_once, threads = share_cores(launcher.get("jobs_at_once", 1), sweep.master, len(sweep.jobs))
    seed = "pretrain_seed" if step.verb == "finetune" else "seed"
    num_seeds = len(sweep.groups(lambda key: key == seed))
    timed = at_once if sweep.runs_here else 1
    return SweepPlan(step.verb, configs, named, at_once, threads, timed, num_seeds)


def _seeds(words: Sequence[str]) -> dict[str, str]:
    return {key: word.partition("=")[2] for word in words if (key := key_of(word)) in SEED_KEYS}
