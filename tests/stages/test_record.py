"""`clozelab record`: what is a record, what is none, and what is not even an attempt."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from tests.screens import Screens

from clozelab.cli import main
from clozelab.results.records import read_attempts

MEANS = {("mlm", "mrpc"): 75.0, ("ltr", "mrpc"): 70.0, ("mlm_nsp", "mrpc"): 75.1}
ABOUT = {
    "config__trainer": {"accelerator": "cpu"},
    "facts__text": "0" * 64,
    "facts__world_size": 1,
    "facts__threads": 2,
    "environment__kernels": "x86_64 avx2",
}


def change(root: Path, pattern: str, **values: Any) -> None:
    """Set dotted keys of run.json in all folders that match."""
    folders = list(root.glob(pattern))
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


@pytest.fixture
def root(make_runs: Callable[..., Path]) -> Path:
    """Three arms with five seeds, six minutes of two cores each."""
    root = make_runs(MEANS, pretrain_seeds=(1, 2, 3, 4, 5))
    change(root, "pretrain/*/*", **ABOUT)
    return root


@pytest.fixture
def record(root: Path, tmp_path: Path) -> Callable[..., int]:
    def record(row: str, *words: str, budget: str = "2x6min") -> int:
        places = [f"runs_dir={root.parents[1]}", f"table={tmp_path / 'records.csv'}"]
        names = ["table5_pretraining_tasks", row, "MRPC"]
        return main(["record", *names, f"budget={budget}", "scale=demo", *places, *words])

    return record


def test_a_record_is_surely_above_the_one_before(
    record: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "records.csv"
    assert record("ltr") == 0 and not table.exists(), "nothing is written unasked"
    assert record("ltr", "--add") == 0
    assert record("mlm", "--add") == 0
    first, second = read_attempts(table)
    assert (first.name, second.name) == (
        "table5_pretraining_tasks/ltr",
        "table5_pretraining_tasks/mlm",
    )
    assert first.device_minutes == 12.0 and len(first.values) == 5
    assert sum(second.values) / 5 == pytest.approx(second.mean, abs=1e-4)

    # A tenth of a point above it is none, and is not added.
    capsys.readouterr()
    assert record("mlm_nsp", "--add") == 1
    assert read_attempts(table) == [first, second]
    nearly = read_attempts(table)[1].values
    above = stats.ttest_ind(
        [value + 0.1 for value in nearly], nearly, equal_var=False, alternative="greater"
    )
    assert above.pvalue > 0.01
    assert "no record" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change_of",
    [
        {"facts__text": "1" * 64},
        {"environment__kernels": "x86_64 avx512_bf16"},
        {"host__cpu": "Another processor"},
    ],
)
def test_another_text_or_machine_is_another_contest(
    root: Path, record: Callable[..., int], tmp_path: Path, change_of: dict[str, str]
) -> None:
    assert record("mlm", "--add") == 0
    change(root, "pretrain/ltr/*", **change_of)
    assert record("ltr", "--add") == 0
    assert len(read_attempts(tmp_path / "records.csv")) == 2


def test_what_is_no_attempt_is_refused(
    root: Path, record: Callable[..., int], screen: Screens, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each in a sentence that names the run."""

    def refused(row: str = "mlm", budget: str = "2x6min") -> str:
        capsys.readouterr()
        assert record(row, "--add", budget=budget) == 1
        return capsys.readouterr().err

    cases: list[dict[str, Any]] = [
        {"earlier_sessions": [{"host": {"cpu": "other"}}]},
        {"facts__text": "1" * 64},
        {"host__cpu": "Another processor"},
        {"code": "c" * 64},
        {"config__phases": [{"steps": 3}]},
        {"seconds": 361.0},
        {"status": "interrupted"},
    ]
    texts = []
    for values in cases:
        place = root / "pretrain/mlm/seed-3/run.json"
        whole = place.read_text()
        change(root, "pretrain/mlm/seed-3", **values)
        texts.append(refused())
        place.write_text(whole)
    texts.append(refused(budget="1x6min"))
    texts.append(refused(budget="6min"))
    texts.append(refused("mml"))
    (root / "finetune/mlm/pretrain-seed-5/mrpc/seed-2/run.json").unlink()
    texts.append(refused())
    screen("".join(texts))


def test_a_bad_line_of_the_table_is_named(
    record: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record("mlm", "--add") == 0
    table = tmp_path / "records.csv"
    table.write_text(table.read_text().replace("12.0", "twelve"))
    capsys.readouterr()
    assert record("ltr") == 1
    assert "line 2" in capsys.readouterr().err
