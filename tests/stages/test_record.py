"""`clozelab record`: what is a record, what is none, and what is not even an attempt."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from tests.records import change
from tests.screens import shows

from clozelab.cli import main
from clozelab.results.contests import read_attempts
from clozelab.runs.inputs import encoder_fingerprint

ARMS = ("mlm_nsp", "mlm", "ltr")
MEANS = {("mlm", "mrpc"): 75.0, ("ltr", "mrpc"): 70.0, ("mlm_nsp", "mrpc"): 75.1}
ABOUT = {
    "config__trainer": {"accelerator": "cpu"},
    "facts__text": "0" * 64,
    "facts__world_size": 1,
    "facts__threads": 2,
    "environment__kernels": "x86_64 avx2",
}


@pytest.fixture
def root(make_runs: Callable[..., Path]) -> Path:
    """Three arms with five seeds, six minutes of two cores each."""
    root = make_runs(MEANS, pretrain_seeds=(1, 2, 3, 4, 5))
    change(root, "pretrain/*/*", **ABOUT)
    change(root, "finetune/*/*/*/*", inputs__task_files="f" * 64)
    for arm, seed in product(ARMS, range(1, 6)):
        encoder = root / f"pretrain/{arm}/seed-{seed}/encoder"
        encoder.mkdir()
        for name in ("config.json", "checksums.json"):
            (encoder / name).write_text(json.dumps({"arm": arm, "seed": seed}))
        scored = f"finetune/{arm}/pretrain-seed-{seed}/*/*"
        change(root, scored, inputs__encoder=encoder_fingerprint(encoder))
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
    names = [attempt.name.partition("/") for attempt in (first, second)]
    assert names == [("table5_pretraining_tasks", "/", arm) for arm in ("ltr", "mlm")]
    assert first.device_minutes == 12.0 and len(first.values) == 5
    assert second.mean == pytest.approx(75.0, abs=0.5)

    # A tenth of a point above it is none, and is not added.
    capsys.readouterr()
    assert record("mlm_nsp", "--add") == 1
    assert read_attempts(table) == [first, second]
    nearly = read_attempts(table)[1].values
    more = [value + 0.1 for value in nearly]
    above = stats.ttest_ind(more, nearly, equal_var=False, alternative="greater")
    assert above.pvalue > 0.01
    assert "no record" in capsys.readouterr().out


def test_records_of_two_commands_are_both_kept(
    record: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waits, and has to beat what the first has added."""
    table = tmp_path / "records.csv"
    assert record("ltr", "--add") == 0
    first = table.read_text()
    table.unlink()

    @contextmanager
    def wait(path: Path, **_: Any) -> Iterator[None]:
        path.write_text(first)
        yield

    monkeypatch.setattr("clozelab.stages.record.exclusive_lock", wait)
    assert record("mlm", "--add") == 0
    names = [attempt.name.rpartition("/")[2] for attempt in read_attempts(table)]
    assert names == ["ltr", "mlm"]


def test_a_run_of_another_experiment_counts_with_its_minutes(
    root: Path, record: Callable[..., int], tmp_path: Path
) -> None:
    for seed in range(1, 6):
        place = root / f"pretrain/ltr/seed-{seed}"
        other = root.parents[1] / f"figure5_training_steps/demo/pretrain/ltr/seed-{seed}"
        shutil.copytree(place, other)
        trained = json.loads((other / "run.json").read_text())
        shared = {
            "run": os.path.relpath(other, place),
            "fingerprint": trained["fingerprint"],
            "weights": encoder_fingerprint(other / "encoder"),
        }
        shutil.rmtree(place / "encoder")
        (place / "encoder").symlink_to(other / "encoder")
        (place / "run.json").write_text(json.dumps(trained | {"shared": shared}))
    assert record("ltr", "--add") == 0
    (attempt,) = read_attempts(tmp_path / "records.csv")
    assert attempt.device_minutes == 12.0

    # Trained anew over there, it is not what was scored.
    (other / "encoder" / "config.json").write_text("{}")
    (other / "encoder" / "checksums.json").write_text("{}")
    assert record("ltr") == 1


@pytest.mark.parametrize(
    ("pattern", "values"),
    [
        ("pretrain/ltr/*", {"facts__text": "1" * 64}),
        ("pretrain/ltr/*", {"environment__kernels": "x86_64 avx512_bf16"}),
        ("pretrain/ltr/*", {"host__cpu": "Another processor"}),
        ("finetune/ltr/*/*/*", {"inputs__task_files": "1" * 64}),
    ],
)
def test_another_text_machine_or_question_is_another_contest(
    root: Path, record: Callable[..., int], tmp_path: Path, pattern: str, values: dict[str, str]
) -> None:
    assert record("mlm", "--add") == 0
    change(root, pattern, **values)
    assert record("ltr", "--add") == 0
    assert len(read_attempts(tmp_path / "records.csv")) == 2


def test_a_budget_is_what_it_amounts_to(
    root: Path, record: Callable[..., int], tmp_path: Path
) -> None:
    """And the best of a contest has to be beaten, wherever its line stands."""
    assert record("ltr", "--add", budget="2x6min") == 0
    assert record("mlm", "--add", budget="1x12min") == 0
    table = tmp_path / "records.csv"
    heading, ltr, mlm = table.read_text().splitlines()
    table.write_text("\n".join([heading, mlm, ltr, ""]))
    assert record("mlm_nsp", "--add", budget="4x3min") == 1


def test_what_is_no_attempt_is_refused(
    root: Path, record: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each in a sentence that names the run."""

    def refused(row: str = "mlm", budget: str = "2x6min") -> str:
        capsys.readouterr()
        assert record(row, "--add", budget=budget) == 1
        return capsys.readouterr().err

    cases: list[dict[str, Any]] = [
        {"sessions": 2},
        {"inputs__encoder": "e" * 64},
        {"inputs__teacher": "e" * 64},
        {"config__trainer": {"accelerator": "tpu"}},
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
    texts += [refused(budget="1x6min"), refused(budget="6min"), refused("mml"), refused("random")]
    change(root, "finetune/mlm/pretrain-seed-2/mrpc/*", inputs__encoder="e" * 64)
    texts.append(refused())
    change(root, "finetune/mlm/pretrain-seed-2/mrpc/seed-1", code="c" * 64)
    texts.append(refused())
    (root / "finetune/mlm/pretrain-seed-5/mrpc/seed-2/run.json").unlink()
    texts.append(refused())
    shows(
        "".join(texts),
        "pretrain/mlm/seed-3 read another text than pretrain/mlm/seed-1",
        "pretrain/mlm/seed-3 has other settings than pretrain/mlm/seed-1",
        "pretrain/mlm/seed-3 took 12.03 device minutes, and 2x6min is",
        "pretrain/mlm/seed-1 took 12.00 device minutes, and 1x6min is 6.00",
        "record needs budget=DEVICESxTIME, such as 2x15min (two cores)",
    )


def test_a_bad_line_of_the_table_is_named(
    record: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record("mlm", "--add") == 0
    table = tmp_path / "records.csv"
    table.write_text(table.read_text().replace("12.0", "twelve", 1))
    capsys.readouterr()
    assert record("ltr") == 1
    assert "line 2" in capsys.readouterr().err
