"""How a file of scores is laid out, and what its rows are once they are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import Field

from claims.analysis.schema import Entry

# the tables of a report
SCORES_FILE = "results.csv"
CLAIMS_FILE = "claims.csv"
OF_MODEL = re.compile(r"(?P<arm>[^/]+?)[-_/]?seed[-_=]?(?P<seed>\d+)")
"""A model or a folder without its task: `mlm-seed-1`, `runs/mlm/seed_1`."""
OF_TASK = re.compile(r"^(?P<arm>[^/]+?)(/(?P<task>[^/]+?))?[-_/]?seed[-_=]?(?P<seed>\d+)")
"""A folder, with its task where that is a folder, too: `mlm/mrpc/seed_1`."""


class ScoreLayout(Entry):
    """The names of a file's columns (`scores:` in a file of claims)."""

    arm: str = "arm"
    """the column of the systems that are compared"""
    seed: str = "seed"
    """the column of the seeds"""
    finetuning_seed: str = ""
    """the column of the fine-tuning seeds, where seed is that of the pre-training"""
    example: str = ""
    """the column of the examples, in a file with a line for each example of a run"""
    task: str = "task"
    """the column of the tasks"""
    score: str = "score"
    """the column of the scores"""
    tasks: tuple[str, ...] = Field(default=())
    """a list of the columns that hold a task's scores each, in a file with a line a run"""
    run: re.Pattern[str] | None = None
    """a regular expression of a run's name, with the groups arm and seed, and task if it has one"""


DEFAULT_LAYOUT = ScoreLayout()


@dataclass(frozen=True)
class ScoreRows:
    """Scores in long form: a row a score.

    A row has the cells arm, seed, task and score, and may have finetuning_seed, metric, unit,
    higher_is_better and example.
    """

    # (where it stands, its cells)
    rows: list[tuple[str, dict[str, str]]]
    # what a reader of the page has to know
    notes: list[str] = field(default_factory=list)
    # a column says what each score is in, so none is taken for a fraction
    has_units: bool = False
    # tasks that no layout names: columns of a file with a line a run
    assumed_tasks: Sequence[str] = ()
