"""Test predictions of runs, and which of them goes into a benchmark's submission."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clozelab.metrics.glue import TEST_SETS
from clozelab.metrics.metric import base_name
from clozelab.runs.older_scores import older_metric
from clozelab.text.plain import ReadOnlyJson, read_json


@dataclass(frozen=True)
class RunPredictions:
    """One run's predictions for one test set."""

    path: Path
    run: Path
    metric: str
    score: float
    higher_is_better: bool
    stand_in_for: str | None
    task: str


def best_candidate(test_set: str, candidates: Sequence[RunPredictions]) -> RunPredictions:
    """The run with the best validation score; ValueError where scores mean different things.

    A model trained on a stand-in is scored on another validation set, so it counts only where there
    is no other.
    """
    comparable = [candidate for candidate in candidates if candidate.stand_in_for is None]
    if not comparable:
        comparable = list(candidates)
    if len({(candidate.metric, candidate.task) for candidate in comparable}) > 1:
        runs = [
            f"{candidate.run} ({candidate.task}, {candidate.metric})" for candidate in comparable
        ]
        raise ValueError(
            f"{test_set}: nobody can say which is best of {', '.join(runs)}; give only the run that"
            " you mean"
        )
    best = max if comparable[0].higher_is_better else min
    return best(comparable, key=lambda candidate: candidate.score)


def find_predictions(folders: Sequence[Path]) -> dict[str, list[RunPredictions]]:
    """Test set -> the predictions for it in or below the given folders.

    ValueError: a folder does not exist, none holds predictions, or a run has no score beside them.
    """
    candidates: dict[str, list[RunPredictions]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(
                f"{folder} is no folder; give run folders of `clozelab finetune ..."
                " predict_test=true`"
            )
        for candidate in _candidates_below(folder):
            candidates.setdefault(candidate.path.stem, []).append(candidate)
    if not candidates:
        names = ", ".join(map(str, folders)) or "(no folder given)"
        raise ValueError(f"no test predictions in {names}; fine-tune with predict_test=true first")
    return candidates


def _candidates_below(folder: Path) -> Iterator[RunPredictions]:
    for path in sorted(folder.rglob("test_predictions/*.tsv")):
        if path.stem not in TEST_SETS:
            continue
        # RUN/test_predictions/TEST_SET.tsv
        run = path.parents[1]
        try:
            results = read_json(run / "scores.json")
            metric = str(results["metric"])
            candidate = RunPredictions(
                path,
                run,
                metric,
                score=float(results["scores"][metric]),
                higher_is_better=_rises(results, metric),
                stand_in_for=results.get("stand_in_for"),
                task=str(results["name"]),
            )
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(
                f"{run}: no readable scores.json beside its predictions ({error})"
            ) from error
        yield candidate


def _rises(results: ReadOnlyJson, metric: str) -> bool:
    """Whether a higher score is better, by scores.json; KeyError where nothing says it."""
    declared = results.get("metrics", {}).get(base_name(metric))
    if declared is not None:
        return bool(declared["higher_is_better"])
    older = older_metric(metric)
    if older is None:
        raise KeyError(f"no direction of {metric}")
    return older.higher_is_better is not False
