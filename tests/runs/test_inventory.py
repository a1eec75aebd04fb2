"""Every run folder as a record: damaged, killed and held ones are told apart."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.runs.records import edit, read_json
from tests.screens import Screens, refuses, shows

from clozelab.runs.cleanup import held
from clozelab.runs.find import find, select
from clozelab.runs.progress import elapsed, read_progress, sweep_state, trouble_of
from clozelab.runs.record import JobName
from clozelab.stages.runs import main as runs_verb
from clozelab.stages.status import main as status_verb
from clozelab.stages.verify import main as verify_verb
from clozelab.training.host import holder

EXPERIMENT = "table5_pretraining_tasks"
needs_locks = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux lists who holds a lock"
)
PHASE = {"steps": 100, "global_batch_size": 10, "micro_batch_size": 10}
PHASES = [PHASE | {"seq_length": 32}, PHASE | {"seq_length": 64}]


@pytest.fixture
def root(make_runs: Callable[..., Path], writers: Any) -> Path:
    """runs_dir with finished runs, a failed, a damaged, and one that was running."""
    scale = make_runs({("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0})
    writers.finetune(scale, "ltr", "qnli", (1, 1), 0.0, status="failed")
    (scale / "finetune/mlm/pretrain-seed-1/mrpc/seed-1/run.json").write_text('{"status": ')
    (scale / "finetune/mlm/pretrain-seed-1/mrpc/seed-2/run.json").write_text("{}")
    writers.pretrain(scale, "mlm", 9, status="running")
    folder = scale / "pretrain/mlm/seed-9"
    config = read_json(folder, "run.json")["config"] | {"phases": PHASES}
    edit(folder / "run.json", config=config)
    (folder / ".lock").touch()
    return scale.parents[1]


def by_status(root: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in find(root).records:
        found.setdefault(one.status, []).append(one.place.removeprefix(f"{EXPERIMENT}/demo/"))
    return found


@needs_locks
def test_every_folder_is_there_with_its_status(root: Path) -> None:
    found = by_status(root)
    assert found["failed"] == ["finetune/ltr/pretrain-seed-1/qnli/seed-1"]
    assert found["damaged"] == [f"finetune/mlm/pretrain-seed-1/mrpc/seed-{seed}" for seed in (1, 2)]
    assert found["killed"] == ["pretrain/mlm/seed-9"]
    assert len(found["complete"]) == 9 + 12 - 2
    # A run of another machine is not called killed, nor is a folder without a record a run.
    runs = root / EXPERIMENT / "demo/pretrain"
    edit(runs / "mlm/seed-9/run.json", process={"pid": 1, "host": "elsewhere"})
    (runs / "ltr/seed-9").mkdir()
    (runs / "ltr/seed-9/config.yaml").write_text("seed: 9\n")
    assert by_status(root)["running"] == ["pretrain/mlm/seed-9"]
    metrics = runs / "mlm/seed-9/metrics.csv"
    metrics.touch()
    # Whether it still runs is not known here, but since when it has written nothing.
    for minutes, trouble in ((0, ""), (30, "silent for 30.0 min; its process on elsewhere is not")):
        os.utime(metrics, (time.time() - 60 * minutes, time.time() - 60 * minutes))
        (record,) = (one for one in find(root).records if one.folder == runs / "mlm/seed-9")
        assert trouble_of(record).startswith(trouble) and bool(trouble_of(record)) == bool(trouble)
    (record,) = (one for one in find(root).records if one.folder == runs / "ltr/seed-9")
    said = "no run.json; remove the folder to run it again"
    assert (record.status, record.problem) == ("damaged", said)


@needs_locks
def test_a_held_lock_means_running_and_stays_free_for_others_to_be_refused(root: Path) -> None:
    folder = root / EXPERIMENT / "demo/pretrain/mlm/seed-9"
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert by_status(root)["running"] == ["pretrain/mlm/seed-9"]
        assert holder(folder / ".lock") == os.getpid()
        with held(folder / ".lock") as mine:
            assert not mine
    assert holder(folder / ".lock") is None
    with held(folder / ".lock") as mine:
        assert mine and holder(folder / ".lock") == os.getpid()


def test_a_damaged_record_is_called_so_once(root: Path, capsys: Any) -> None:
    folder = root / EXPERIMENT / "demo/finetune/mlm/pretrain-seed-1/mrpc/seed-1"
    with refuses(f"{folder}/run.json cannot be read as the record of a run of this version") as why:
        verify_verb([str(folder)])
    assert str(why.value).count(str(folder)) == 1
    runs_verb([f"runs_dir={root}"])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if str(folder) in line)
    assert line.startswith("damaged: ") and "is damaged" not in line


def test_selection(root: Path) -> None:
    records = find(root).records
    chosen = select(records, EXPERIMENT, {"task": "mrpc", "name": "ltr,mlm_nsp", "seeds": "1/2"})
    assert [one.place.removeprefix(f"{EXPERIMENT}/demo/") for one in chosen] == [
        "finetune/ltr/pretrain-seed-1/mrpc/seed-2"
    ]
    with refuses("status=faild: there is no such status; did you mean 'failed'?"):
        select(records, None, {"status": "faild"})
    with refuses("no run of 'table5_pretraining_task' here; did you mean"):
        select(records, "table5_pretraining_task", {})


def test_progress_knows_that_later_steps_are_longer(root: Path) -> None:
    record = next(one for one in find(root).records if one.place.endswith("mlm/seed-9"))
    path = record.folder / "metrics.csv"
    lines = "".join(
        f"{step},{step * 320},{step / 10},train/tokens_per_second,3200\n"
        for step in range(10, 60, 10)
    )
    path.write_text("step,tokens,seconds,key,value\n" + lines + "60,19200,6.0,train/tokens_per_sec")
    at = read_progress(record)
    assert (at.step, at.total_steps, at.tokens, at.tokens_per_second) == (50, 200, 16000, 3200.0)
    # 50 steps of 320 slots are done; 50 of 320 and 100 of 640 are left: five times as much, at 3200
    # a second.
    assert at.seconds_left == pytest.approx(25.0)
    assert elapsed(record) == 360.0


def test_time_left_counts_jobs_without_folders(root: Path) -> None:
    records = find(root).records
    seeds = [f"{first}/{second}" for first, second in product("123", repeat=2)]
    jobs = [JobName("ltr", "mrpc", one) for one in seeds]
    jobs += [JobName("ltr", "qnli", one) for one in seeds[:3]]
    state = sweep_state("finetune", records, jobs)
    # Six folders of nine mrpc jobs, one (failed) of three qnli jobs; every finished run took 360 s.
    # Those of the row mlm are none of the jobs.
    assert (state.planned, state.not_begun, state.others) == (12, 3 + 2, 6)
    assert state.counts == {"complete": 6, "failed": 1}
    assert state.seconds_left() == pytest.approx((5 + 1) * 360.0)  # and the failed one again
    assert sweep_state("finetune", [], jobs).seconds_left() is None


def test_a_job_takes_as_long_as_runs_of_its_own_arm(root: Path) -> None:
    edit(root / EXPERIMENT / "demo/pretrain/ltr/seed-1/run.json", seconds=1000.0)
    left = [JobName("ltr", "", str(seed)) for seed in (1, 2, 3, 4)]
    state = sweep_state("pretrain", [one for one in find(root).records if one.seeds in "12"], left)
    assert state.not_begun == 2 and state.seconds_left() == pytest.approx(2 * (1000.0 + 360.0) / 2)


@needs_locks
def test_runs_verb(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs_verb([f"runs_dir={root}"]) == 0
    rest = "complete loss 4.400 word frequencies give 6.20 6.0 min 2030-01-01"
    shows(capsys.readouterr().out, *(f"{arm} {rest}" for arm in ("ltr 1", "ltr 3", "mlm 2")))
    assert runs_verb([EXPERIMENT, f"runs_dir={root}", "status=failed", "--csv"]) == 0
    _, line = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{EXPERIMENT},demo,finetune,ltr,qnli,1/1,failed,")
    # A folder as a name, as `report` and `pack` take it.
    assert runs_verb([str(root / EXPERIMENT), "status=failed", "--csv"]) == 0
    _, line = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{EXPERIMENT},demo,finetune,ltr,qnli,1/1,failed,")
    # Filters that only together fit nothing.
    runs_verb([f"runs_dir={root}", "stage=pretrain", "task=mrpc"])
    shows(capsys.readouterr().out, "none of the 23 runs has stage=pretrain and task=mrpc")


def test_a_score_is_whole_in_80_columns(
    tmp_path: Path, writers: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for seed in (1, 2):
        bits = {"validation/bits_per_character": 1.23 + seed / 1000}
        root = tmp_path / "runs" / EXPERIMENT / "demo"
        writers.evaluation(root, "mlm_from_the_left_to_the_right", "held_out_text", seed, bits)
    runs_verb([f"runs_dir={tmp_path / 'runs'}"])
    out = capsys.readouterr().out
    shows(
        out,
        "mlm_from_the_left_to_the… held_out_text 1/1 complete bits/char 1.231",
        "mlm_from_the_left_to_the… held_out_text 2/1 complete bits/char 1.232",
    )
    assert max(map(len, out.splitlines())) <= 80


OF_CORES = {r"with \d+ jobs? at a time": "with N jobs at a time", r" +\d+\.\d min": "  TIME"}
"""How many jobs run at once, and so the time that is left, is the machine's."""


@needs_locks
def test_status_verb(root: Path, capsys: pytest.CaptureFixture[str], screen: Screens) -> None:
    folder = root / EXPERIMENT / "demo/pretrain/mlm/seed-9"
    assert status_verb([f"runs_dir={root}"]) == 0
    out = capsys.readouterr().out
    screen(out, hide=OF_CORES)  # the killed one and the failed one each have a command to go on
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert status_verb([EXPERIMENT, f"runs_dir={root}", "scale=demo"]) == 0
    shows(
        capsys.readouterr().out,
        "pre-training 9 1 0 0 0 10",
        "mlm/seed 9 100 of 200",
        "failed: table5_pretraining_tasks/demo/finetune/ltr/pretrain-seed-1/qnli/seed-1",
    )


@pytest.mark.parametrize("verb", [status_verb, runs_verb])
def test_a_filter_that_nothing_fits_says_so(
    root: Path, tmp_path: Path, capsys: Any, verb: Callable[[list[str]], int]
) -> None:
    assert verb([f"runs_dir={root}", "scale=laptop"]) == 0
    shows(capsys.readouterr().out, "none of the 23 runs has scale=laptop (there are demo)")
    assert verb([EXPERIMENT, f"runs_dir={root}", "scale=dmo"]) == 0
    shows(capsys.readouterr().out, "none of the 23 runs has scale=dmo (did you mean 'demo'?)")
    (tmp_path / "empty").mkdir()
    assert verb([f"runs_dir={tmp_path / 'empty'}", "scale=demo"]) == 0
    shows(capsys.readouterr().out, "no runs in" if verb is status_verb else "0 runs")
