"""One pre-training run for every experiment that asks for the same one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.composing import Given
from tests.runs.claimed import INPUTS, claim, configuration, train
from tests.runs.records import edit, read_json, record_of
from tests.screens import refuses, shows

from clozelab.launch.jobs import job_status
from clozelab.runs.find import find
from clozelab.runs.record import Record
from clozelab.runs.reuse import (
    find_equal_run,
    is_done,
    kept_steps,
    missing_encoders,
    require_kept,
    shared_run_exists,
)
from clozelab.runs.store import share_equal_run


def folder_of(record: Record | None) -> Path | None:
    return record.folder if record else None


def test_touched_files_leave_a_doubt_and_no_silence(tmp_path: Path) -> None:
    """The launch reads them and finds them equal; a listing does not read, and says so."""
    text = tmp_path / "text.txt"
    text.write_text("some words\n")
    source = train(configuration(tmp_path, "first", corpus={"path": str(text)}))
    other = configuration(tmp_path, "second", corpus={"path": str(text)})
    assert job_status(other, other.run_dir) == ("shared", str(source))
    os.utime(text, (1.0, 1.0))
    assert job_status(other, other.run_dir) == ("shared?", str(source))
    assert folder_of(find_equal_run(other, INPUTS)) == source
    different = configuration(
        tmp_path, "second", corpus={"path": str(text)}, objective={"rate": 0.3}
    )
    assert job_status(different, different.run_dir) == ("new", "")


def test_an_equal_run_serves_another_experiment(tmp_path: Path) -> None:
    of_trackers = {"tracker_id": "x", "trackers": ["wandb"]}
    source = train(configuration(tmp_path, "first", arm="no_nsp"), **of_trackers)
    other = configuration(tmp_path, "second")
    assert job_status(other, other.run_dir) == ("shared", str(source))
    share_equal_run(other, INPUTS)
    folder = Path(other.run_dir)
    shared = record_of(folder).shared
    assert shared is not None
    assert shared.run == "../../../../../first/tiny/pretrain/no_nsp/seed-1"
    # The stage then finds a run of its own names and configuration, complete.
    with claim(other) as run:
        assert run.is_complete and run.facts == {"tokens": 1000}
    assert (folder / "encoder" / "config.json").read_text() == "encoder"
    (found,) = find(tmp_path / "second" / "tiny").pretrain
    assert (found.name, found.curves["validation/loss"]) == ("mlm", [(100, 4.5)])
    status, told = job_status(other, other.run_dir)
    assert status == "complete" and Path(told) == source
    # All runs can be moved together: the links are relative.
    shutil.move(tmp_path / "first", tmp_path / "elsewhere" / "first")
    shutil.move(tmp_path / "second", tmp_path / "elsewhere" / "second")
    assert (
        tmp_path / "elsewhere/second/tiny/pretrain/mlm/seed-1/encoder/config.json"
    ).read_text() == "encoder"


def test_a_tracker_knows_a_shared_run_by_the_experiment_that_trained_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    source = train(configuration(tmp_path, "first", arm="no_nsp"), tracker_id="abc")
    other = configuration(tmp_path, "second")
    share_equal_run(other, INPUTS)
    shared = record_of(Path(other.run_dir))
    assert shared.facts == {"tokens": 1000}
    assert record_of(source).facts == {"tokens": 1000, "tracker_id": "abc"}
    shows(caplog.text, "a tracker has its curves in the group first/no_nsp")


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": {"weight": 2.0}},
        {"phases": [{"steps": 10}]},
        {"seed": 2},
        {"scale": {"name": "other"}},
        {"share_runs": False},
        {"experiment": "first"},
    ],
    ids=str,
)
def test_what_is_not_equal_is_trained(tmp_path: Path, changes: dict[str, Any]) -> None:
    train(configuration(tmp_path, "first", arm="no_nsp"))
    equal = configuration(tmp_path, "second")
    assert find_equal_run(equal, INPUTS)  # the control
    assert find_equal_run(equal, {"corpus": "d" * 64}) is None
    other = configuration(tmp_path, **({"experiment": "second"} | changes))
    assert find_equal_run(other, INPUTS) is None
    share_equal_run(other, INPUTS)
    assert not Path(other.run_dir).exists()


def test_an_unfinished_or_damaged_run_is_not_shared(tmp_path: Path) -> None:
    first, other = configuration(tmp_path, "first"), configuration(tmp_path, "second")
    with pytest.raises(RuntimeError), claim(first):
        raise RuntimeError
    assert find_equal_run(other, INPUTS) is None
    source = train(first)
    assert folder_of(find_equal_run(other, INPUTS)) == source  # the control
    # Copied without its weights it counts for a report; nobody else can begin from it.
    (source / "encoder" / "model.safetensors").unlink()
    assert find_equal_run(other, INPUTS) is None
    assert is_done(first.run_dir, stage="pretrain", config=first)
    (source / "run.json").write_text("{")
    assert find_equal_run(other, INPUTS) is None


def test_a_begun_run_goes_on(tmp_path: Path) -> None:
    other = configuration(tmp_path, "second")
    with pytest.raises(KeyboardInterrupt), claim(other):
        raise KeyboardInterrupt
    train(configuration(tmp_path, "first"))
    share_equal_run(other, INPUTS)
    assert not (Path(other.run_dir) / "encoder").exists()
    with claim(other) as run:
        assert run.content.sessions > 1
        run.complete()


def test_kept_encoders_are_part_of_what_is_asked(tmp_path: Path) -> None:
    """Of equal runs, one without the encoders on the way is of no use to who needs them."""
    asking = {"keep_encoders": [0.3, 0.5], "needs_kept_encoders": True}
    other = configuration(tmp_path, "second", **asking)
    assert kept_steps(other.keep_encoders, 10) == [3, 5]
    without = train(configuration(tmp_path, "first"))
    assert find_equal_run(other, INPUTS) is None
    kept = train(configuration(tmp_path, "third", keep_encoders=[0.3, 0.5, 0.9]), steps=(3, 5, 9))
    # their names
    assert record_of(without).fingerprint != record_of(kept).fingerprint
    assert folder_of(find_equal_run(other, INPUTS)) == kept
    # Without the need, the first that is equal will do.
    needless = configuration(tmp_path, "second", keep_encoders=[0.3])
    assert folder_of(find_equal_run(needless, INPUTS)) == without
    share_equal_run(other, INPUTS)
    assert (Path(other.run_dir) / "encoders/step-5/config.json").read_text() == "encoders/step-5"
    assert missing_encoders(other, Path(other.run_dir)) == []


def test_a_complete_run_without_the_needed_encoders_is_refused(tmp_path: Path) -> None:
    train(configuration(tmp_path, "first"))
    asking = configuration(tmp_path, "first", keep_encoders=[0.3], needs_kept_encoders=True)
    assert job_status(asking, asking.run_dir)[0] == "check"
    # so the command line looks further
    assert not is_done(asking.run_dir, stage="pretrain", config=asking)
    plain = configuration(tmp_path, "first")
    assert is_done(plain.run_dir, stage="pretrain", config=plain)
    with refuses("is complete, but has no encoders/step-3: it was trained without"):
        require_kept(asking, record_of(asking.run_dir))


def test_a_complete_run_that_was_told_to_keep_less_is_refused(tmp_path: Path) -> None:
    # Two were kept, of which one is gone: the run has traveled.
    kept = ["encoders/step-3", "encoders/step-5"]
    folder = train(configuration(tmp_path, "first"), steps=(5,), kept=kept)
    for fractions in ([], [0.3], [0.3, 0.5]):
        asking = configuration(tmp_path, "first", keep_encoders=fractions)
        assert is_done(asking.run_dir, stage="pretrain", config=asking)
    asking = configuration(tmp_path, "first", keep_encoders=[0.3, 0.9])
    assert not is_done(asking.run_dir, stage="pretrain", config=asking)
    assert job_status(asking, asking.run_dir)[0] == "conflict"
    with refuses("is complete, but has no encoders/step-9: it was trained without"):
        require_kept(asking, record_of(asking.run_dir))
    # Of a run from before this was recorded, nobody knows.
    facts = read_json(folder, "run.json")["facts"]
    del facts["kept"]
    edit(folder / "run.json", facts=facts)
    assert is_done(asking.run_dir, stage="pretrain", config=asking)


def test_a_folder_of_other_settings_is_a_conflict_before_anything_runs(tmp_path: Path) -> None:
    config = configuration(tmp_path, "first")
    folder = train(config)
    other = configuration(tmp_path, "first", objective={"weight": 2.0})
    assert job_status(config, config.run_dir)[0] == "complete"
    assert job_status(other, other.run_dir)[0] == "conflict"
    edit(folder / "run.json", results_version=0)
    assert job_status(config, config.run_dir)[0] == "conflict"


@pytest.mark.parametrize("fraction", [0, 1, 1.5, 0.01])
def test_impossible_fractions(fraction: float) -> None:
    with refuses(f"keep_encoders: {fraction} of 10 steps: an encoder is kept after a"):
        kept_steps([fraction], 10)


def retrain(config: Given, weights: str, started: str) -> None:
    """The same configuration in the same place once more: its fingerprint stays."""
    folder = Path(config.run_dir)
    fingerprint = record_of(folder).fingerprint
    shutil.rmtree(folder)
    train(config, weights=weights)
    assert record_of(folder).fingerprint == fingerprint
    edit(folder / "run.json", started=started)


def test_a_record_knows_the_folder_of_its_shared_run_behind_a_link_too(tmp_path: Path) -> None:
    source = train(configuration(tmp_path, "first"))
    other = configuration(tmp_path, "second")
    share_equal_run(other, INPUTS)
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "linked"
    link.symlink_to(other.run_dir)
    for folder in (Path(other.run_dir), link):
        assert record_of(folder).shared_folder == source.resolve()
    assert record_of(source).shared_folder is None


@pytest.mark.parametrize("happened", ["removed", "other weights", "encoder removed"])
def test_a_shared_run_whose_source_is_gone_is_not_complete(tmp_path: Path, happened: str) -> None:
    first = configuration(tmp_path, "first")
    source = train(first)
    other = configuration(tmp_path, "second")
    share_equal_run(other, INPUTS)
    folder = Path(other.run_dir)
    assert shared_run_exists(record_of(folder))  # the control
    if happened == "removed":
        shutil.rmtree(source)
    elif happened == "other weights":
        retrain(first, "other", started="2031-01-01T00:00:00+00:00")
    else:
        shutil.rmtree(source / "encoder")
    assert not shared_run_exists(record_of(folder))
    assert job_status(other, other.run_dir)[0] == "check"
    assert not is_done(other.run_dir, stage="pretrain", config=other)
    with refuses("was shared from ../../../../../first/tiny/pretrain/mlm/seed-1"):
        share_equal_run(other, INPUTS)


def test_a_shared_run_that_was_trained_with_other_settings_is_named(tmp_path: Path) -> None:
    """Its links lead to the new curve and the new encoder; a report drew them without a word."""
    source = train(configuration(tmp_path, "first"))
    other = configuration(tmp_path, "second")
    share_equal_run(other, INPUTS)
    assert find(tmp_path / "second").lost == []  # the control
    shutil.rmtree(source)
    train(configuration(tmp_path, "first", objective={"rate": 0.3}))
    (line,) = find(tmp_path / "second").lost
    assert line.startswith(f"{other.run_dir}: the run that it shares")


def test_the_same_weights_trained_anew_are_the_run_that_was_shared(tmp_path: Path) -> None:
    first, other = configuration(tmp_path, "first"), configuration(tmp_path, "second")
    train(first, weights="same")
    share_equal_run(other, INPUTS)
    retrain(first, "same", started="2031-01-01T00:00:00+00:00")
    assert job_status(other, other.run_dir)[0] == "complete"


@pytest.mark.parametrize("left", ["encoder", "metrics.csv"])
def test_what_a_run_has_left_is_not_replaced_by_a_link(tmp_path: Path, left: str) -> None:
    train(configuration(tmp_path, "first"))
    other = configuration(tmp_path, "second")
    folder = train(other)
    (folder / "run.json").unlink()
    for name in {"encoder", "metrics.csv"} - {left}:
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    with refuses(f"holds {left} and no run.json that names its run"):
        share_equal_run(other, INPUTS)
    assert (folder / left).exists() and not (folder / left).is_symlink()


def test_links_without_a_record_are_made_again(tmp_path: Path) -> None:
    """A process that was killed while it shared."""
    source = train(configuration(tmp_path, "first"))
    other = configuration(tmp_path, "second")
    folder = Path(other.run_dir)
    folder.mkdir(parents=True)
    (folder / "encoder").symlink_to(source)  # of no use
    share_equal_run(other, INPUTS)
    assert (folder / "encoder").resolve() == source / "encoder"


def test_a_shared_record_is_not_shared_on(tmp_path: Path) -> None:
    """Everybody links to the run that trained."""
    source = train(configuration(tmp_path, "zzz_first"))
    share_equal_run(configuration(tmp_path, "second"), INPUTS)
    assert folder_of(find_equal_run(configuration(tmp_path, "third"), INPUTS)) == source
