"""Runs of different seeds that are one and the same run: they have no spread to speak of, and decide nothing.

Told by what they began with, or by what they answered and the losses on the way, never by equal scores alone: on 400
examples two honest runs often have the same accuracy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from clozelab.ledger.collect import FinetuneRun
from clozelab.ledger.reporting.consistency import encoder_of
from clozelab.training.metrics_rows import read_rows

ANSWERS = ("predictions*.json*", "nbest_predictions.json", "null_odds.json")


def copied_seeds(runs: Iterable[FinetuneRun]) -> str:
    """Which seeds of one row on one task are copies, in words; empty where none are known to be."""
    # Two runs that have both collapsed answer alike without being one.
    ordered = sorted((run for run in runs if not run.collapsed), key=lambda run: (run.pretrain_seed, run.seed))
    encoders: dict[str, set[int]] = {}
    for run in ordered:
        if encoder := encoder_of(run):
            encoders.setdefault(encoder, set()).add(run.pretrain_seed)
    for seeds in encoders.values():
        if len(seeds) > 1:
            return f"pre-training seeds {_listed(map(str, sorted(seeds)))} are one and the same encoder"
    if same := next(_equal_answers(ordered), []):
        names = (f"{run.pretrain_seed}/{run.seed}" for run in same)
        return f"runs {_listed(names)} (pre-training/fine-tuning seed) gave the same answers to the last digit"
    return ""


def _equal_answers(runs: list[FinetuneRun]) -> Iterator[list[FinetuneRun]]:
    """Groups of runs with the same files of predictions; files are read only where all scores are equal.

    Some files hold answers without numbers behind them (tags), on which two good runs may agree: their training losses
    do not.
    """

    def scores(run: FinetuneRun) -> list[tuple[str, float]]:
        return sorted(run.scores.items())

    for _, group in groupby(sorted(runs, key=scores), key=scores):
        equal = list(group)
        answers: dict[tuple[tuple[str, str], ...], list[FinetuneRun]] = {}
        for run in equal if len(equal) > 1 else []:
            if files := _predictions(run):
                answers.setdefault(tuple(sorted(files.items())), []).append(run)
        yield from (same for same in answers.values() if len(same) > 1)


def _predictions(run: FinetuneRun) -> Mapping[str, str]:
    """Name -> sha256 of the files that hold its answers and what they came from; nothing without answers."""
    files = [path for pattern in ANSWERS for path in sorted(run.dir.glob(pattern)) if path.is_file()]
    if not files:
        return {}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    losses = [(row.step, row.value) for row in read_rows(run.dir / "metrics.csv") if row.key == "train/loss"]
    return found | {"losses": str(losses)}


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}"
