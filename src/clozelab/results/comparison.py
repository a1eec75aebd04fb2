"""What differs between two runs, and what they score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from claims.analysis.comparability import is_within
from claims.text.phrases import join_list, truncate_list
from clozelab.metrics.metric import PREFIX
from clozelab.runs.identity import counting_leaves
from clozelab.runs.record import Record
from clozelab.text.plain import flatten

NONE = "(none)"
SHOWN_DIGITS = 12  # of a checksum: its beginning tells it apart
# Fields of a record: what its fingerprint is made of, and what was the same by intention, and may
# not be.
# Settings that decide which tokens or examples are asked for, and how.
OF_EVALUATION = ("validation.seq_length", "validation.instances", "measure")
COMPARED_FIELDS: dict[str, dict[str, bool | set[str]]] = {
    "configuration": {"config": True, "inputs": True, "results_version": True},
    "made with": {"versions": True, "git": True, "host": True, "facts": {"precision"}},
}


def differences(records: Sequence[Record], aspect: str) -> list[list[str]]:
    """List [dotted key, value of A, value of B, ...] of everything that is not the same."""
    dumps = []
    for record in records:
        dumps.append(flatten(record.model_dump(include=COMPARED_FIELDS[aspect])))
    rows = []
    # In the order in which they first come.
    for key in dict.fromkeys(chain(*dumps)):
        values = [str(dump.get(key, NONE)) for dump in dumps]
        if len(set(values)) == 1:
            continue
        if key.startswith("inputs."):
            values = [checksum[:SHOWN_DIGITS] for checksum in values]
        rows.append([key.removeprefix("config."), *values])
    return rows


@dataclass(frozen=True)
class HeldOutFigure:
    """A held-out figure of two runs: at their ends, and at the last tokens that both have seen.

    There the longer run's lies on the line between its evaluations around them. None: there are no
    such tokens.
    """

    key: str
    last: tuple[float, ...]
    common_tokens: int | None
    common: tuple[float, ...] | None


def held_out_figures(first: Record, second: Record) -> list[HeldOutFigure]:
    """Every held-out figure that two trainings of one stage have.

    Those of two stages only share names, and an evaluation has no course.
    """
    if first.stage != second.stage or first.stage == "evaluate":
        return []
    return [_held_out_figure(key, first, second) for key in first.curves if key in second.curves]


def _held_out_figure(key: str, first: Record, second: Record) -> HeldOutFigure:
    curves = []  # of each run [2, evaluations]: tokens, and the figure in its unit
    for run in (first, second):
        tokens, values = np.array(run.curves[key], dtype=np.float64).T
        curves.append((tokens, run.score_of(key).factor * values))
    last = tuple(float(values[-1]) for _, values in curves)
    # The curve that goes on is read off where the other one ends.
    limit = min(int(tokens[-1]) for tokens, _ in curves)
    # One had ended before the other was first evaluated.
    if any(tokens[0] > limit for tokens, _ in curves):
        return HeldOutFigure(key, last, None, None)
    common = tuple(float(np.interp(limit, tokens, values)) for tokens, values in curves)
    return HeldOutFigure(key, last, limit, common)


def final_scores(first: Record, second: Record) -> list[tuple[str, float, float]]:
    """List (key, first, second) of two complete fine-tunings or evaluations, each in its unit."""
    if any(record.stage == "pretrain" or not record.is_complete for record in (first, second)):
        return []
    common = [key for key in first.values if key in second.values]
    return [(key, first.values[key], second.values[key]) for key in common]


def name_with_unit(record: Record, key: str) -> str:
    """`f1, percent`; a perplexity has its name alone."""
    name = record.score_name(key)
    unit = record.score_of(key).unit
    if not unit:
        return name
    return f"{name}, {unit}"


def cautions_of(records: Sequence[Record]) -> list[str]:
    """Say why figures of some runs of one stage cannot be compared, if so."""
    # What their figures are over: one corpus, or one task's files.
    data = set()
    for record in records:
        data.add((record.stage, record.inputs.get("corpus"), record.inputs.get("task_files")))
    versions = sorted({record.stage_version for record in records})
    predicted = {record.predicts for record in records}
    cautions = []
    if len(data) > 1:
        cautions.append(
            "They were not evaluated on the same data: their figures cannot be compared."
        )
    if len(versions) > 1:
        cautions.append(
            f"They are of results versions {join_list(map(str, versions))}: their figures cannot be"
            " compared."
        )
    if records[0].stage == "pretrain" and len(predicted) > 1:
        cautions.append(
            "The objectives predict other tokens or score them otherwise: their losses cannot be"
            " compared."
        )
    return [*cautions, *_cautions_of_asking(records), *_cautions_of_reading(records)]


def _cautions_of_asking(records: Sequence[Record]) -> Iterator[str]:
    """Say why figures over equal files cannot be compared, if so: they were asked for otherwise."""
    differing = _differing_settings(records)
    if differing:
        yield (
            f"They were not evaluated in the same way ({truncate_list(differing)}): their figures"
            " cannot be compared."
        )
    if len({_fold_of(record) for record in records}) > 1:
        yield "They were scored on other folds: their figures cannot be compared."
    for key in records[0].values:
        labels = [record.score_of(key).positive_label for record in records]
        if len(set(labels)) > 1 and None not in labels:
            name = key.removeprefix(PREFIX)
            yield (
                f"{name} is of the class {labels[0]} in A and of {labels[-1]} in B: it cannot be"
                " compared."
            )


def _differing_settings(records: Sequence[Record]) -> list[str]:
    """The settings of an evaluation that some records have otherwise."""
    settings = []
    for record in records:
        leaves = counting_leaves(record.config)
        settings.append({key: leaves[key] for key in leaves if is_within(key, OF_EVALUATION)})
    differing = []
    for key in dict.fromkeys(chain(*settings)):
        values = {str(leaves.get(key)) for leaves in settings}
        if len(values) > 1:
            differing.append(key)
    return differing


def _fold_of(record: Record) -> int | None:
    """The number of the fold that a fine-tuning was scored on; None without folds."""
    task = record.config.get("task") or {}
    folds = task.get("data", {}).get("validation_folds")
    if folds is None:
        return None
    seed = record.seed
    if record.config.get("sampling_seed") == "pretrain_seed":
        seed = record.pretrain_seed
    return seed % int(folds)


def _cautions_of_reading(records: Sequence[Record]) -> list[str]:
    """Say why measures of held-out text cannot be compared, if so: as a report refuses them."""
    tokenizers = set()
    contexts = set()
    for record in records:
        data = record.facts.get("data") or {}
        tokenizers.add(data.get("tokenizer"))
        contexts.add(data.get("is_causal"))
    cautions = []
    if len(tokenizers - {None}) > 1:
        cautions.append(
            "Their tokenizers cut text into other tokens: scores of a token cannot be compared;"
            " bits_per_character can."
        )
    if len(contexts - {None}) > 1:
        cautions.append(
            "One is asked from the left, one from both sides: their scores cannot be compared."
        )
    return cautions
