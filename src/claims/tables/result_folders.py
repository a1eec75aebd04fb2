"""Scores from a folder of result files, as evaluation libraries write them.

- lm-evaluation-harness: `results_TIME.json`, with the model's name in it;
- MTEB: `MODEL/REVISION/TASK.json` beside `model_meta.json`; the mean of the subsets' main scores;
- transformers' Trainer: `all_results.json`, else the last evaluation of `trainer_state.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import StatisticsError, fmean
from typing import Any, NamedTuple

from claims.tables.layout import OF_MODEL, OF_TASK, ScoreLayout, ScoreRows
from claims.text.safe_yaml import composed

# what Trainer measures beside scores
NO_SCORES = ("runtime", "per_second", "samples", "time")


class WrittenScore(NamedTuple):
    """One number of a result file; a file of one task may leave its name to the folder."""

    task: str
    metric: str
    value: float
    # True or False, where the file itself says so
    higher_is_better: str = ""


class NoResultFile(ValueError):
    """A folder has none that is known."""


def read_result_folder(folder: Path, layout: ScoreLayout) -> ScoreRows:
    """Read all result files below a folder.

    A file with the name of a result file and another content is left out, and noted. ValueError:
    there is no result file, or a run's name does not say which arm and seed it is.
    """
    rows = []
    notes = []
    for path in sorted(folder.rglob("*.json")):
        relative = path.relative_to(folder)
        try:
            name, scores = _read_file(path, relative.parent.as_posix())
        except (AttributeError, KeyError, TypeError, StopIteration, StatisticsError):
            notes.append(f"{relative.as_posix()}, which is not laid out as a result file")
            continue
        for name_and_value in scores:
            cells, score = _named(name, name_and_value, layout, path)
            cells |= {"task": score.task, "metric": score.metric, "score": repr(score.value)}
            cells["higher_is_better"] = score.higher_is_better
            rows.append((relative.as_posix(), cells))
    if not rows:
        raise NoResultFile(f"{folder}: no result file of lm-evaluation-harness, MTEB or Trainer")
    return ScoreRows(rows, notes)


def _read_file(path: Path, run: str) -> tuple[str, list[WrittenScore]]:
    """The name of a file's run, and its scores; none where it is no result file."""
    is_checkpoint = path.parent.name.startswith("checkpoint-")
    has_results = is_checkpoint or path.with_name("all_results.json").is_file()
    is_of_mteb = path.name != "model_meta.json" and path.with_name("model_meta.json").is_file()
    if path.name == "all_results.json":
        return run, list(_of_trainer(_load(path)))
    if path.name == "trainer_state.json" and not has_results:
        evaluations = [list(_of_trainer(entry)) for entry in _load(path)["log_history"]]
        return run, next(filter(None, reversed(evaluations)), [])
    if path.name.startswith("results"):
        results = _load(path)
        return str(results.get("model_name", run)), list(_of_harness(results))
    if is_of_mteb:
        return run, [_of_mteb(_load(path))]
    return run, []


def _load(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None


def _of_trainer(results: Mapping[str, Any]) -> Iterator[WrittenScore]:
    for key, value in results.items():
        if key.startswith("eval_") and not key.endswith(NO_SCORES):
            yield WrittenScore("", key.removeprefix("eval_"), value)


def _of_mteb(result: Mapping[str, Any]) -> WrittenScore:
    """The mean over subsets of the test split, as MTEB's own tables have it; else of the first."""
    splits = result["scores"]
    entries = splits.get("test", next(iter(splits.values())))
    return WrittenScore(result["task_name"], "", fmean(entry["main_score"] for entry in entries))


def _of_harness(results: Mapping[str, Any]) -> Iterator[WrittenScore]:
    """Of `acc,none` the metric is acc; of `exact_match,strict-match` it is both words."""
    for task, values in results["results"].items():
        rises = results.get("higher_is_better", {}).get(task, {})
        for key, value in values.items():
            metric, comma, kind = key.partition(",")
            if not comma or metric.endswith("_stderr") or isinstance(value, str):
                continue
            name = metric if kind == "none" else f"{metric} {kind}"
            # The harness leaves a metric out, or writes null, where it does not know.
            higher_is_better = ""
            if rises.get(metric) is not None:
                higher_is_better = str(rises[metric])
            yield WrittenScore(task, name, value, higher_is_better)


def _named(
    name: str, score: WrittenScore, layout: ScoreLayout, path: Path
) -> tuple[dict[str, str], WrittenScore]:
    """Arm and seed of a run, and a score with its task. ValueError: its name does not say them."""
    pattern = OF_MODEL if score.task else OF_TASK
    if layout.run:
        pattern = layout.run
    match = pattern.search(composed(name))
    groups = match.groupdict("") if match else {}
    if not {"arm", "seed"} <= groups.keys():
        raise ValueError(
            f"{path}: {name!r} does not say which arm and seed it is; name runs as mlm-seed-1, or"
            " write `scores: {run: REGULAR EXPRESSION}` in the file of claims (docs/judge.md)"
        )
    if groups.get("task") and not score.task:
        score = score._replace(task=groups["task"])
    elif not score.task:
        # Of a tree without folders of tasks, a metric is what a column is about.
        score = score._replace(task=score.metric, metric="")
    return {"arm": groups["arm"], "seed": groups["seed"]}, score
