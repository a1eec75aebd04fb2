"""Runs of table 5 that are made up, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests import records

from claims.analysis.verdicts import Judgement, judge
from clozelab.report.problems import inconsistencies
from clozelab.results.experiment import Experiment
from clozelab.results.table import ResultTable, build_table
from clozelab.runs.find import find


class MadeRuns:
    """Folders of runs, which are judged by the experiment or by another one."""

    def __init__(self, experiment: Experiment, make: Callable[..., Path], writers: Any) -> None:
        self.experiment = experiment
        self.make_runs = make
        self.writers = writers
        self.root = Path()

    def make(self, means: Mapping[tuple[str, str], float], **options: Any) -> None:
        """`means`: (row, task) -> the score that runs vary around."""
        self.root = self.make_runs(means, **options)

    def finetune(
        self, row: str, task: str, seeds: tuple[int, int], score: float, **extra: Any
    ) -> None:
        self.writers.finetune(self.root, row, task, seeds, score, **extra)

    def change(self, pattern: str, **values: Any) -> None:
        records.change(self.root, pattern, **values)

    def edit(self, row: str, lines: Mapping[str, Any]) -> None:
        """Let the experiment say these lines of a row."""
        rows = []
        for one in self.experiment.rows:
            rows.append(one.model_copy(update={"delta": lines}) if one.name == row else one)
        self.experiment = self.experiment.model_copy(update={"rows": rows})

    def table(self, **changes: Any) -> ResultTable:
        """`changes` are keys of the experiment."""
        experiment = self.experiment.model_copy(update=changes)
        return build_table(experiment, find(self.root))

    def judge(self, claim: str = "ltr_hurts_mrpc", **changes: Any) -> Judgement:
        """The only judgement of a claim."""
        (one,) = [one for one in judge(self.table(**changes)) if one.claim.id == claim]
        return one

    def unequal(self, **changes: Any) -> list[str]:
        return inconsistencies(self.table(**changes))
