"""Complete runs that are not what they are called: made otherwise than the file of their row or arm says.

An override may undo what a file says, and a file may be changed after its runs were made. Such a row measures
something else than its name, so no claim is judged on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clozelab.config import CONF_DIR
from clozelab.ledger.collect import AnyRun, Collected
from clozelab.ledger.reporting.experiment import Experiment
from clozelab.ledger.stated import Stated, contradictions, read_stated


def misfiled(experiment: Experiment, collected: Collected) -> dict[str, str]:
    """Row -> what its complete runs, or those of its arm, contradict; only rows where they do."""
    found = {}
    for row in experiment.rows:
        runs = [run for run in collected.finetune if run.row == row.name and run.is_complete]
        arm_runs = [run for run in collected.pretrain if run.arm == row.arm and run.is_complete]
        arm = {"encoder_arm": row.arm} if row.arm is not None else {}
        reasons = [
            _contradiction(f"row/{row.name}.yaml", runs, _file(experiment, "row", row.name), collected.root),
            _contradiction(f"row {row.name} of paper.yaml", runs, arm, collected.root),
            _contradiction(f"arm/{row.arm}.yaml", arm_runs, _file(experiment, "arm", str(row.arm)), collected.root),
        ]
        if reason := next(filter(None, reasons), ""):
            found[row.name] = reason
    return found


def _file(experiment: Experiment, kind: str, name: str) -> Stated:
    return read_stated((experiment.folder, CONF_DIR), kind, name)


def _contradiction(what: str, runs: Sequence[AnyRun], stated: Stated, root: Path) -> str:
    """The first setting in which runs are not what is said of them, in words; empty where they are."""
    wrong = [(run, found) for run in runs if (found := _undone(run.state, stated))]
    if not wrong:
        return ""
    run, found = wrong[0]
    key, (value, said) = next(iter(found.items()))
    return (
        f"not what it is called: {what} says {key}={said}, and {len(wrong)} of {len(runs)} complete runs have another "
        f"(e.g. {run.dir.relative_to(root).as_posix()}: {'null' if value is None else value})"
    )


def _undone(state: Mapping[str, Any], stated: Stated) -> dict[str, tuple[Any, Any]]:
    found = contradictions(stated, state.get("config_resolved", {}))
    # An encoder from elsewhere has no arm.
    return {key: pair for key, pair in found.items() if key != "encoder_arm" or pair[0] is not None}
