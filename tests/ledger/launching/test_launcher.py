"""What the launcher believes of its jobs."""

from __future__ import annotations

import json
from pathlib import Path

from clozelab.ledger.launching.launcher import _doubt
from clozelab.ledger.launching.processes import Job
from clozelab.ledger.sweep import PlannedJob


def test_an_exit_status_of_zero_is_not_enough(tmp_path: Path) -> None:
    names = ("complete", "running", "absent", "no folder")
    jobs = [Job(name, [], tmp_path / "log", state="complete") for name in names]
    planned = [PlannedJob((), str(tmp_path / name) if name != "no folder" else "", "new") for name in names]
    for name in names[:2]:
        (tmp_path / name).mkdir()
        state = {"status": name, "fingerprint": "", "stage": "pretrain", "config_resolved": {}}
        (tmp_path / name / "run.json").write_text(json.dumps(state))
    _doubt(jobs, planned)
    assert [job.state for job in jobs] == ["complete", "failed", "failed", "complete"]
    assert "its run folder says running" in jobs[1].message and "says nothing" in jobs[2].message
