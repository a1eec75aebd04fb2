"""What the pre-flight looks at, and what a check says of it.

checks/gathering.py composes it from an experiment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.planning.arms import Arm, Corpus
from clozelab.planning.cost import DiskUsage
from clozelab.tasks.preview import TaskPreview

OK = "ok"
WARNING = "warning"
ERROR = "error"
PROBE_SEED = 20181011
# Standard deviations of a binomial bound: a sound recipe is outside once in 150,000 checks.
SIGMAS = 4.5


class Case(NamedTuple):
    """What may be wrong."""

    is_so: bool
    level: str  # warning | error
    what: str
    remedy: str


@dataclass(frozen=True)
class Finding:
    check: str
    level: str  # ok | warning (the run goes on) | error (it does not)
    what: str
    figure: str = ""
    remedy: str = ""


def all_findings(
    check: str, name: str, good: str, figure: str, cases: Iterable[Case]
) -> list[Finding]:
    """A check's answer: all that is wrong with an arm, corpus or task, or that all is well.

    Args:
        check: its name.
        name: of what was looked at.
        good: what to say where all is well.
        figure: what was counted.
        cases: what may be wrong.
    """
    wrong = []
    for case in cases:
        if case.is_so:
            wrong.append(Finding(check, case.level, f"{name}: {case.what}", figure, case.remedy))
    if not wrong:
        return [Finding(check, OK, f"{name}: {good}", figure)]
    return wrong


def first_finding(check: str, name: str, good: str, figure: str, *cases: Case) -> Finding:
    """The same, of cases of which only the first counts."""
    return all_findings(check, name, good, figure, cases)[0]


def share(count: float, total: float) -> str:
    """`12 of 300 (4.0 %)`."""
    if not total:
        return "none"
    return f"{count:,.0f} of {total:,.0f} ({100 * count / total:.1f} %)"


def deviation(probability: float, number: int) -> float:
    """How far an observed share of `number` draws may lie from its probability by chance."""
    return SIGMAS * float(probability * (1 - probability) / max(1, number)) ** 0.5


@dataclass(frozen=True)
class Task:
    """One downstream task as the experiment has it."""

    name: str
    preview: TaskPreview
    tokenizers: Mapping[str, Tokenizer]  # by an arm that has it, each vocabulary once
    max_seq_length: int  # what its configuration asks for
    trained_length: int  # tokens of the longest instance that its encoders are trained on
    metrics: Sequence[str] = ()
    number_range: Sequence[float] | None = None
    reads_windows: bool = False  # all of a long text, a part at a time


@dataclass(frozen=True)
class Subject:
    name: str
    arms: Sequence[Arm]
    tasks: Sequence[Task]
    disk: DiskUsage
    # (what, why) of settings, files, a corpus that could not even be built
    refusals: Sequence[tuple[str, str]] = ()
    unprepared: Sequence[str] = ()  # corpora that are not prepared yet
    noticed: Sequence[Finding] = ()  # what composing it has shown already

    @property
    def corpora(self) -> list[Corpus]:
        """The prepared ones of the arms, once each."""
        prepared = [arm.corpus for arm in self.arms if arm.corpus.tokenizer is not None]
        return list({id(corpus): corpus for corpus in prepared}.values())
