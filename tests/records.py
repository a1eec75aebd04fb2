"""Records of runs: made up without a folder, and changed in theirs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clozelab.config import canonical
from clozelab.planning.steps import Step
from clozelab.results.experiment import Experiment
from clozelab.results.table import ResultTable, build_table
from clozelab.runs.find import Runs
from clozelab.runs.identity import RESULTS_VERSIONS
from clozelab.runs.record import Record
from clozelab.training.host import host_facts


def change(root: Path, pattern: str = "", **values: Any) -> None:
    """Set keys of run.json in all folders that match, or in `root` itself.

    Two underscores stand for a dot: `config__epochs=3` is epochs of the configuration.
    """
    folders = list(root.glob(pattern)) if pattern else [root]
    assert folders
    for folder in folders:
        state = json.loads((folder / "run.json").read_text())
        for key, value in values.items():
            part = state
            *parents, last = key.split("__")
            for name in parents:
                part = part.setdefault(name, {})
            part[last] = value
        (folder / "run.json").write_text(json.dumps(state))


def made_up(stage: str, **fields: Any) -> Record:
    """A complete run's record, which is not validated: simulations take thousands."""
    usual: dict[str, Any] = {
        "status": "complete",
        "scale": "",
        "fingerprint": "f",
        "results_version": 0,
        "config": {},
        "inputs": {},
        "choices": {},
        "arm_delta": {},
        "row_delta": {},
        "metric": "",
        "scores": {},
        "facts": {},
        "folder": Path("none"),
        "started": "2030-01-01T00:00:00+00:00",
    }
    return Record.model_construct(stage=stage, **usual | fields)


def finish_job(step: Step, words: tuple[str, ...], started: str = "", **changes: Any) -> Path:
    """The folder of a complete run of a job, as its stage leaves it; `changes` of its settings."""
    config = step.sweep.settings(words) | changes
    folder = Path(config["run_dir"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    state = {
        "status": "complete",
        "stage": step.verb,
        "seconds": 10.0,
        "host": host_facts()["host"],
        "inputs": {},
        "scale": "demo",
        "watched": {},
        "started": started,
        "fingerprint": "f" * 64,
        "facts": {},
        "config": canonical(config),
        "results_version": RESULTS_VERSIONS[step.verb],
        "metric": "validation/accuracy",
        "scores": {
            "validation/accuracy": {"unit": "percent", "higher_is_better": True, "value": 70.0}
        },
    }
    (folder / "run.json").write_text(json.dumps(state))
    (folder / "scores.json").write_text("{}")
    return folder


def table_of(
    experiment: Experiment, records: Iterable[Record], root: Path = Path("none")
) -> ResultTable:
    """The table of records that lie in no folder."""
    return build_table(experiment, Runs(root, list(records)))
