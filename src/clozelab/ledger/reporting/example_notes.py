"""One line about two runs on the same examples, for a claim that has no more than one pre-training seed.

It says how sure one may be about this pair of runs and nothing about pre-training seeds, so it stands in a note and
decides no verdict. Span tasks keep no gold answers in their run folders, and get none.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from clozelab.ledger.collect import FinetuneRun
from clozelab.ledger.reporting.examples import Answers, PairedTest, pair_answers, read_answers, scoring_of
from clozelab.ledger.reporting.wording import signed


def compare_examples(first: FinetuneRun, second: FinetuneRun, metric: str) -> str:
    """What these two runs' answers say, in words; empty where there is nothing to pair."""
    names = [path.name for path in sorted(first.dir.glob("predictions*.jsonl"))]
    name, score = _file_and_score(names, metric.rpartition("/")[2])
    files = [run.dir / name for run in (first, second)]
    if not name or not all(path.is_file() for path in files):
        return ""
    try:
        answers = [_read(path, path.stat().st_mtime_ns) for path in files]
        found = pair_answers(answers[0], answers[1], scoring_of(first.state, score))
    except ValueError:
        return ""
    which = f"{first.pretrain_seed}/{first.seed}"
    return f"on these examples, this pair of runs ({which}): {_words(found)}; says nothing about pre-training seeds"


@lru_cache(maxsize=64)
def _read(path: Path, _modified: int) -> Answers:
    """The time is there for the cache alone: a page asks for the same files several times."""
    return read_answers(path.parent, path.name)


def _file_and_score(names: list[str], metric: str) -> tuple[str, str]:
    """(file, score): a second development set has a file of its own, and its name before the score's."""
    for name in names:
        other = name.removeprefix("predictions").removesuffix(".jsonl").lstrip("_")
        if other and metric.startswith(f"{other}_"):
            return name, metric.removeprefix(f"{other}_")
    return ("predictions.jsonl", metric) if "predictions.jsonl" in names else ("", metric)


def _words(found: PairedTest) -> str:
    if found.metric == "accuracy" and (right := found.mcnemar) is not None:
        if right.only_first + right.only_second == 0:
            return "both answer the same examples rightly"
        counts = f"{right.only_first} against {right.only_second} times"
        return f"right where the other is wrong {counts}, McNemar p = {right.p_value:.2g}"
    assert found.bootstrap is not None
    gap = found.bootstrap
    return f"95 % of resampled examples give {signed(gap.low)} to {signed(gap.high)} points"
