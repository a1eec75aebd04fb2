"""`clozelab verify RUN`: a stretch is trained again, and what is not the same run is noticed."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests import forked
from tests.runs.archives import contents, say
from tests.runs.records import edit
from tests.runs.test_pretrain_run import command, run_alone
from tests.screens import shows

from clozelab.results import rerun
from clozelab.results.rerun import TIMED, run_differences
from clozelab.runs.find import open_run
from clozelab.runs.record import Record, Score
from clozelab.training.callbacks import SameConfig
from clozelab.training.checkpoints import load_file, save_file
from clozelab.training.measuring import read_rows

OTHER_DROPOUT = """
import sys
from clozelab.modules import pretraining
seeded = pretraining.seed_forward
# As a restore would be that forgets where the random numbers were: behind step 6 dropout is
# drawn anew.
def seed_forward(seed, step, *more):
    return seeded(seed if step < 6 else seed + 1, step, *more)
pretraining.seed_forward = seed_forward
from clozelab.cli import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`clozelab verify` trains in a fork of the tests' server."""

    def run(words: list[str], preexec_fn: object = None, **options: Any) -> Any:
        return forked.run(words, **options)

    monkeypatch.setattr(rerun.subprocess, "run", run)


def verify(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """(exit status, what is said, in one line)."""
    return say(["verify", str(folder)], capsys)


@pytest.fixture(scope="module")
def place(workplace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with a cache of their own: seeds 1 and 2, and another dropout behind step 6."""
    folder = tmp_path_factory.mktemp("verify")
    shutil.copy(workplace / "text.txt", folder)
    changes = {"checkpoint_interval_steps": 5, "validation.interval_steps": 100}
    run_alone(command(folder, folder / "seed-1", **changes))
    run_alone(command(folder, folder / "seed-2", seed=2, **changes))
    _, _, _, *words = command(folder, folder / "dropout", **changes)
    run_alone([sys.executable, "-c", OTHER_DROPOUT, *words])
    return folder


def test_the_same_run_is_the_same_to_the_bit_and_stays_untouched(place: Path, capsys: Any) -> None:
    before = contents(place / "seed-1")
    status, said = verify(place / "seed-1", capsys)
    assert status == 0
    shows(said, f"{place / 'seed-1'} is the same run (steps 6 to 10 trained again and compared to")
    assert contents(place / "seed-1") == before


def test_a_run_that_its_command_began_anew_goes_on_from_its_checkpoint(
    place: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`reuse=never` would remove the copied checkpoint, and train all of it again."""
    run = Path(shutil.copytree(place / "seed-1", tmp_path / "run"))
    record = json.loads((run / "run.json").read_text())
    record["overrides"].append("reuse=never")
    (run / "run.json").write_text(json.dumps(record))
    logs = []

    def run_again(words: list[str], preexec_fn: object = None, **options: Any) -> Any:
        done = forked.run(words, **options)
        logs.append(str(done.stderr))
        return done

    monkeypatch.setattr(rerun.subprocess, "run", run_again)
    status, _ = verify(run, capsys)
    assert status == 0
    assert "going on after step 5 of 10" in "".join(logs)


def test_a_run_with_one_checkpoint_is_trained_again_from_the_beginning(
    place: Path, tmp_path: Path, capsys: Any
) -> None:
    run = Path(shutil.copytree(place / "seed-1", tmp_path / "run"))
    (run / "checkpoints" / "previous.ckpt").unlink()
    status, said = verify(run, capsys)
    assert status == 0
    shows(said, "is the same run (steps 1 to 10 trained again and compared to the bit)")


def test_on_another_machine_it_says_by_how_many_figures(
    place: Path, tmp_path: Path, capsys: Any
) -> None:
    """There may be none in a stretch: then only the batches are known to be the same."""
    run = Path(shutil.copytree(place / "seed-1", tmp_path / "run"))
    edit(run / "run.json", environment={"torch": "another"})
    keys = {row.key for row in read_rows(run / "metrics.csv") if 6 <= row.step <= 10}
    status, said = verify(run, capsys)
    assert status == 0 and keys - {*TIMED}
    shows(said, "is the same run (steps 6 to 10 trained again and compared by all")


@pytest.mark.parametrize(
    ("accelerator", "deterministic", "drifts"),
    [("cpu", False, False), ("gpu", True, False), ("gpu", False, True), ("auto", False, True)],
)
def test_of_a_gpu_it_says_that_it_can_drift(
    place: Path, capsys: Any, monkeypatch: Any, accelerator: str, deterministic: bool, drifts: bool
) -> None:
    trainer = {"accelerator": accelerator, "deterministic": deterministic}
    record: Any = SimpleNamespace(config={"trainer": trainer})
    assert rerun.can_drift(record) is drifts
    if drifts:
        monkeypatch.setattr(rerun, "is_reproducible", lambda record: False)
        monkeypatch.setattr(rerun, "can_drift", lambda record: True)
        status, said = verify(place / "seed-1", capsys)
        assert status == 0 and "trainer.deterministic=true" in said


def test_other_batches_are_noticed(place: Path, tmp_path: Path, capsys: Any) -> None:
    """The end of another seed's run, under this one's name."""
    run = Path(shutil.copytree(place / "seed-1", tmp_path / "run"))
    last = "checkpoints/last.ckpt"
    mine, other = (load_file(place / name / last) for name in ("seed-1", "seed-2"))
    save_file(other | {SameConfig.KEY: mine[SameConfig.KEY]}, run / last)
    status, said = verify(run, capsys)
    assert status == 1
    shows(said, "is not the same run: other batches were read; weights or optimizer")


def test_another_dropout_behind_the_checkpoint_is_noticed(place: Path, capsys: Any) -> None:
    """The batches are the same ones: only figures and weights can tell it."""
    status, said = verify(place / "dropout", capsys)
    assert status == 1
    shows(said, "is not the same run: ", "figures differ, first train/loss of step 7")


def test_a_changed_shard_is_noticed(place: Path, tmp_path: Path, capsys: Any) -> None:
    """Other tokens in the prepared corpus, of the same number: whoever looks first says so."""
    (tokens,) = (place / "cache").glob("corpora/*/train/tokens-00000.bin")
    whole = tokens.read_bytes()
    try:
        tokens.chmod(0o644)
        tokens.write_bytes(np.frombuffer(whole, dtype="<u2")[::-1].tobytes())
        status, said = verify(place / "seed-1", capsys)
    finally:
        tokens.write_bytes(whole)
    assert status == 1 and (
        "is not the same run: other batches were read" in said or "cannot be trained again" in said
    )


def test_what_cannot_be_trained_again_is_one_sentence(
    place: Path, tmp_path: Path, capsys: Any
) -> None:
    run = Path(shutil.copytree(place / "seed-1", tmp_path / "run"))
    shutil.rmtree(run / "checkpoints")
    for folder, sentence in (
        (run, f"has no {run / 'checkpoints' / 'last.ckpt'}"),
        (tmp_path, "is no run folder"),
    ):
        status, said = verify(folder, capsys)
        assert status == 1 and sentence in said


def test_a_run_that_is_another_one_is_told_by_its_figures_weights_and_batches(place: Path) -> None:
    one, other, late = (open_run(str(place / name)) for name in ("seed-1", "seed-2", "dropout"))
    assert not [*run_differences(one, one)]
    for another, reason in (
        (other, "is of another configuration: seed: there 1, now 2 read other"),
        (late, "figures differ, first train/loss of step 7: "),
    ):
        shows("\n".join(run_differences(one, another)), reason)


@pytest.mark.parametrize(("now", "num_different"), [("nan", 0), ("1.5", 1), (None, 1)])
def test_a_loss_that_was_no_number_is_so_again(
    now: str | None, num_different: int, tmp_path: Path
) -> None:
    """As of a step whose update spike=skip has left out."""
    for name, value in (("old", "nan"), ("new", now)):
        lines = ["step,tokens,seconds,key,value", "5,10,0.1,train/gradient_norm,inf"]
        if value is not None:
            lines.append(f"5,10,0.1,train/loss,{value}")
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.csv").write_text("\n".join(lines) + "\n")
    differences = rerun.figure_differences(tmp_path / "old", tmp_path / "new", range(1, 6), 0.0)
    assert len(differences) == num_different


def test_a_score_of_zero_is_a_score(place: Path) -> None:
    """On another kind of machine the headline score alone is compared."""
    record, metric = open_run(str(place / "seed-1")), "validation/matthews"

    def run_with(value: float) -> Record:
        scores = {metric: Score(unit="", higher_is_better=True, value=value)}
        changes: dict[str, Any] = {"stage": "finetune", "metric": metric, "scores": scores}
        changes["environment"] = {"kernels": "another machine's"}
        return record.model_copy(update=changes)

    assert not [*run_differences(run_with(0.0), run_with(0.0))]
    (difference,) = run_differences(run_with(0.0), run_with(5.0))
    assert difference == "has validation/matthews 5, where it was 0"


@pytest.fixture
def said(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words by which a run is trained again whose own has two more."""
    said: list[str] = []

    def note(words: list[str], **_: Any) -> Any:
        said.extend(words)
        return SimpleNamespace(returncode=1, stderr="noted")

    monkeypatch.setattr(rerun.subprocess, "run", note)
    record = open_run(str(place / "seed-1"))
    record.overrides += ["allow_targets=[os]", "reuse=never"]
    with pytest.raises(ValueError, match="noted"):
        rerun.rerun_from_checkpoint(record, tmp_path)
    return said


def test_a_record_gives_no_permission(said: list[str]) -> None:
    assert any(one.startswith("stop_after_step=") for one in said)
    assert "allow_targets=[os]" not in said


def test_the_checkpoint_that_is_compared_with_is_not_removed(said: list[str]) -> None:
    """As `reuse=never` would, of a run's own or of `debug=...`: all of it was trained again."""
    assert "reuse=any" in said and "reuse=never" not in said


@pytest.fixture(scope="module")
def measured(place: Path) -> Path:
    """An evaluation of minimal pairs, of the first run's encoder."""
    pairs = [("the cat sat", "sat the cat"), ("a dog ran", "ran a dog")] * 3
    lines = [json.dumps({"good": good, "bad": bad}) for good, bad in pairs]
    (place / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    settings = {
        "measure": "minimal_pairs",
        "measure.data.files": "pairs.jsonl",
        "measure.data.columns": "{good: good, bad: bad, group: null, field: null}",
        "max_unknown_share": 1.0,
        "data_dir": place,
        "cache_dir": place / "cache",
        "run_dir": place / "measured",
        "encoder": place / "seed-1" / "encoder",
        "row": "mine",
        "trainer.progress_bar": "false",
    }
    words = [f"{key}={value}" for key, value in settings.items()]
    run_alone([sys.executable, "-m", "clozelab", "evaluate", *words])
    return place / "measured"


def test_an_evaluation_is_measured_again_and_asks_for_no_checkpoint(
    measured: Path, tmp_path: Path, capsys: Any
) -> None:
    before = contents(measured)
    status, said = verify(measured, capsys)
    assert status == 0, said
    shows(said, "is the same run (measured again and compared to the bit) verify: reading")
    assert contents(measured) == before

    # Another answer, or another figure, is another run.
    for name in ("predictions.jsonl", "metrics.csv"):
        other = Path(shutil.copytree(measured, tmp_path / name))
        text = (measured / name).read_text()
        (other / name).write_text(text.replace("0.25", "0.75").replace('"won": 0.0', '"won": 1.0'))
        assert (other / name).read_text() != text
        assert [*run_differences(open_run(str(other)), open_run(str(measured)))]
    assert not [*run_differences(open_run(str(measured)), open_run(str(measured)))]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"results_version": 1}, "has results version 1 of evaluate, and this code makes version"),
        ({"status": "failed"}, "is failed, not complete: there is nothing to compare"),
        ({"config_name": "", "seconds": 0.161}, "again; it took 1 s "),
        ({"config_name": ""}, "was not made by a command line"),
        ({"started_in": "/gone"}, "was started in /gone, which is gone"),
    ],
)
def test_an_evaluation_that_cannot_be_made_again(
    measured: Path, tmp_path: Path, capsys: Any, change: dict[str, Any], message: str
) -> None:
    run = Path(shutil.copytree(measured, tmp_path / "run"))
    edit(run / "run.json", **change)
    status, said = verify(run, capsys)
    assert status == 1 and message in said


def test_why_an_evaluation_cannot_be_made_again_is_said_without_its_log(
    measured: Path, tmp_path: Path, capsys: Any
) -> None:
    run = Path(shutil.copytree(measured, tmp_path / "run"))
    record = json.loads((run / "run.json").read_text())
    overrides = [*record["overrides"], "measure.metric=validation/nonsense"]
    edit(run / "run.json", overrides=overrides)
    status, said = verify(run, capsys)
    assert status == 1 and "cannot be made again: validation/nonsense: no Metric declares" in said
