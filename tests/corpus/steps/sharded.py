"""Runs a step over documents that are cut into shards, as a preparation does, in this process."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from clozelab.corpus.steps.step import (
    Arrays,
    CorpusStep,
    Document,
    StepReport,
    SurveyStep,
    TableStep,
)

Lines = Sequence[str]


def run(
    step: CorpusStep, documents: Sequence[Lines], num_shards: int = 1
) -> tuple[list[Lines], StepReport]:
    """Lines of the documents that stay, and the report of all shards."""
    cuts = [len(documents) * number // num_shards for number in range(num_shards + 1)]
    shards = []
    for shard, (start, end) in enumerate(pairwise(cuts)):
        numbered = enumerate(documents[start:end])
        shards.append([Document(shard, index, 0, list(lines)) for index, lines in numbered])
    table: Arrays = {}
    if isinstance(step, TableStep):
        surveys = []
        if isinstance(step, SurveyStep):
            surveys = [_on_disk(_sent(step).survey(iter(shard))) for shard in shards]
        table = _on_disk(step.settle(surveys))
    kept = []
    report = StepReport()
    for shard in shards:
        report_of_shard = StepReport()
        kept += list(_sent(step).apply(iter(shard), table, report_of_shard))
        report.add(report_of_shard)
    keys = [document.key for document in kept]
    assert keys == sorted(set(keys))
    return [list(document.lines) for document in kept], report


def run_any(step: CorpusStep, documents: Sequence[Lines]) -> tuple[list[Lines], StepReport]:
    """As `run`; the same for one, three and seven shards, an empty one among them."""
    expected = run(step, documents)
    for num_shards in (3, 7, len(documents) + 1):
        assert run(step, documents, num_shards) == expected
    return expected


def _sent(step: CorpusStep) -> CorpusStep:
    """The step as another process gets it."""
    return pickle.loads(pickle.dumps(step))


def _on_disk(arrays: Arrays) -> Arrays:
    """Arrays that were written to a file and are read from it when they are asked for."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    file.seek(0)
    return np.load(file)
