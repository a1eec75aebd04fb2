"""What the runs so far say of an experiment's jobs: which need not run again, and how long like ones took here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from clozelab.ledger.collect import AnyRun, Collected
from clozelab.ledger.fingerprint import RESULTS_VERSIONS, SEED_KEYS, canonical
from clozelab.ledger.host import host_facts
from clozelab.ledger.plan import Step
from clozelab.ledger.planning.sweeps import History, Job
from clozelab.ledger.run_record import JobName
from clozelab.ledger.sweep import LIKELY_SHARED

ALIKE = {
    "pretrain": ("model", "objective", "phases"),
    "finetune": ("epochs", "global_batch_size", "head", "learning_rate", "max_train_examples"),
}
"""Settings in which a run has to be equal to take as long."""
MACHINE = ("cpu", "cores", "gpus")
SHARED = ("shared", LIKELY_SHARED)


class Past:
    """Answers for one stage; callable as `Histories`.

    Args:
        step: the stage's sweep.
        collected: every run of the experiment at its scale.
    """

    def __init__(self, step: Step, collected: Collected) -> None:
        self.verb = step.verb
        self.runs = [run for run in _of(collected, step.verb) if run.is_complete]
        self._step = step
        self._shared: set[tuple[str, ...]] | None = None

    def __call__(self, config: Mapping[str, Any], jobs: Sequence[Job]) -> History:
        wanted = json.loads(json.dumps(canonical(OmegaConf.create(dict(config)))))
        named = [run for run in self.runs if _is_named_as(run, jobs)]
        names = {JobName.of(run.state["config_resolved"]) for run in named if self._is_one_of(run, wanted)}
        alike = [run for run in named if self._is_alike(run, wanted)]
        left = [job for job in jobs if job.name not in names]
        shared = sum(job.words in self.shared for job in left) if left and self.verb == "pretrain" else 0
        took = [float(run.state["seconds"]) for run in alike if _is_timed_here(run)]
        return History(len(jobs) - len(left) + shared, sum(took) / len(took) if took else None)

    @property
    def shared(self) -> set[tuple[str, ...]]:
        """Words of jobs for which a run of another experiment will be, or may be, taken."""
        if self._shared is None:
            self._shared = {job.overrides for job in self._step.sweep.planned() if job.status in SHARED}
        return self._shared

    def _is_one_of(self, run: AnyRun, wanted: Mapping[str, Any]) -> bool:
        """Whether it would be taken for a job of this configuration, its seeds aside."""
        if run.state.get("results_version") != RESULTS_VERSIONS[self.verb]:
            return False
        recorded = run.state["config_resolved"]
        keys = (recorded.keys() | wanted.keys()) - set(SEED_KEYS)
        return all(recorded.get(key) == wanted.get(key) for key in keys)

    def _is_alike(self, run: AnyRun, wanted: Mapping[str, Any]) -> bool:
        recorded = run.state["config_resolved"]
        return all(recorded.get(key) == wanted.get(key) for key in ALIKE[self.verb])


def _of(collected: Collected, verb: str) -> Iterable[AnyRun]:
    return collected.pretrain if verb == "pretrain" else collected.finetune


def _is_named_as(run: AnyRun, jobs: Sequence[Job]) -> bool:
    """Whether it is of the jobs' arm or row and task, with any seed."""
    return JobName.of(run.state["config_resolved"])[:2] == jobs[0].name[:2]


def _is_timed_here(run: AnyRun) -> bool:
    host, here = run.state.get("host") or {}, host_facts()["host"]
    is_same = all(host.get(key) == here[key] for key in MACHINE)
    return is_same and "shared" not in run.state and bool(run.state.get("seconds"))
