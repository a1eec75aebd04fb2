"""What a report does grows with the arms of a sweep, not with the pairs of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from clozelab.report import render
from clozelab.results import evidence, table
from clozelab.results.experiment import load_experiment
from clozelab.runs import find

SEEDS = (1, 2)


def write_sweep(folder: Path, num_arms: int, writers: Any) -> Path:
    """An experiment whose arms are all compared with the first one, with all of its runs."""
    arms = [f"rate{number}" for number in range(num_arms)]
    claims = []
    for arm in arms[1:]:
        claims.append({"text": arm, "compare": [arm, arms[0], "mnli"], "direction": "higher"})
    file = folder / "sweep.yaml"
    root = folder / "runs/table5_pretraining_tasks/demo"
    for number, arm in enumerate(arms):
        for seed in SEEDS:
            writers.pretrain(root, arm, seed)
            writers.finetune(root, arm, "mnli", (seed, 1), 70.0 + number + seed / (number + 2))
    settings = {arm: {"gradient_clip_norm": number + 1.0} for number, arm in enumerate(arms)}
    file.write_text(yaml.safe_dump({"columns": ["mnli"], "arms": settings, "claims": claims}))
    return file


def count_calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a report does what costs most, by name."""
    calls = Counter[str]()

    def counted(module: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(module, name)

        def call(*arguments: Any) -> Any:
            calls[name] += 1
            return original(*arguments)

        monkeypatch.setattr(module, name, call)

    counted(find, "read_record")
    counted(table, "evidence_of")
    counted(table, "compare_rows")
    # what the list of unequal runs asks
    counted(evidence, "treatment_factors")
    return calls


def test_a_record_is_read_once_and_a_claim_compares_its_own_rows(
    tmp_path: Path, writers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "_plots", lambda *_: {})
    for num_arms in (2, 6):
        folder = tmp_path / str(num_arms)
        folder.mkdir()
        experiment = load_experiment(write_sweep(folder, num_arms, writers))
        with monkeypatch.context() as patched:
            calls = count_calls(patched)
            root = folder / "runs/table5_pretraining_tasks/demo"
            report = render.write_report(experiment, root, folder / "report", scale="demo")
        num_runs = 2 * len(SEEDS) * num_arms
        assert len(report.judgements) == num_arms - 1
        assert calls == {
            "read_record": num_runs,
            "evidence_of": num_runs,
            # Arms whose lines give the same keys are not compared in pairs.
            "compare_rows": num_arms - 1,
        }
