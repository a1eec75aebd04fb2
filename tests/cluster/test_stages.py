"""Every stage on a real engine: a job is killed with -9, named, and taken up by the same command.

What comes out is what this machine alone makes, byte for byte.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cluster.engines import (
    COMMON,
    CORPUS,
    Engine,
    Place,
    checksums,
    kill_job,
    outcome,
    pretraining,
    wait_until,
)

FILES = {
    "prepare": ("*.bin", "*.npy", "*.json", "*.txt"),
    "pretrain": ("model.safetensors",),
    "finetune": ("model.safetensors", "predictions.jsonl"),
    "evaluate": ("predictions.jsonl", "scores.json"),
}
"""Verb -> the files of its runs that are the same wherever they are made."""
SIGNS = {
    "prepare": "launcher/logs/prepare*.log",
    "pretrain": "adhoc/*/pretrain/*/*/checkpoints/last.ckpt",
    "finetune": "adhoc/*/finetune/*/*/*/*/metrics.csv",
    "evaluate": "adhoc/*/evaluate/*/*/*/*/run.json",
}
"""Verb -> the first files that a job writes which is well under way."""


def words_of(verb: str, local: Place) -> list[str]:
    """The sweep of a stage: two jobs. Fine-tunings and measures read an encoder of `local`."""
    encoder = f"encoder={local.runs}/adhoc/demo/pretrain/mlm_nsp/seed-1/encoder"
    if verb == "prepare":
        return ["prepare", "-m", *CORPUS, "tokenizer.vocab_size=60,70"]
    if verb == "pretrain":
        return pretraining()
    if verb == "finetune":
        task = ("task=sst2", "epochs=20", "row=given", "global_batch_size=8")
        allowed = "allow_validation_in_training=true"
        return ["finetune", "-m", "seed=1,2", *task, allowed, *COMMON, encoder]
    questions = "measure=pairs_document,pairs_next"
    return ["evaluate", "-m", "seed=1", questions, "row=given", *COMMON, encoder]


def has_begun(verb: str, place: Place) -> bool:
    return any(path.stat().st_size for path in place.runs.glob(SIGNS[verb]))


def results(verb: str, place: Place) -> dict[str, str]:
    folder = place.runs / "cache"
    if verb != "prepare":
        folder = place.runs / "adhoc/demo" / verb
    return checksums(folder, *FILES[verb])


def names_the_killed_job(verb: str, engine: Engine, text: str, status: str) -> None:
    """Assert that `status` has the job that a sweep's `text` calls lost.

    Slurm's table of jobs has its number. Of a job of Ray's `status` has the run.
    """
    if engine.name == "ray":
        killed = rf"(?m)^killed: adhoc/demo/{verb}/\S+: its process has gone"
        # An evaluation takes .1 s: its job is mostly killed before or behind it.
        has_no_run = verb == "evaluate" and "not begun" in status
        assert has_no_run or re.search(killed, status), status
        return
    (job,) = re.findall(r"job (\d+) is lost: ", text)
    assert re.search(rf"(?m)^ *{job} +lost +{verb}/\S+ ", status), status


@pytest.mark.parametrize("verb", ["prepare", "pretrain", "finetune", "evaluate"])
def test_a_job_killed_at_a_stage_is_named_and_taken_up(
    verb: str, engine: Engine, data: Path, local: Place, tmp_path: Path
) -> None:
    words = words_of(verb, local)
    place = Place(data, tmp_path / "runs", engine)
    launcher = place.start(*words)
    wait_until(lambda: has_begun(verb, place) or launcher.poll() is not None, f"a job of {verb}")
    wait_until(lambda: kill_job(data, verb) or launcher.poll() is not None, f"a job of {verb}")
    text = outcome(launcher, 1)
    assert "the same command takes it up" in text, text
    lost = {"slurm": "is lost: Slurm says ", "ray": "Ray lost it: "}[engine.name]
    assert lost in text and "1 complete, 1 failed" in text, text
    assert "Traceback" not in text and "core_worker" not in text, text
    if verb != "prepare":  # which has no run
        names_the_killed_job(verb, engine, text, place.status())
    again = place.run(*words)
    rest = {"prepare": "2 complete"}.get(verb, "1 complete, 1 skipped")
    assert rest in again, again
    local.run(*words)
    expected = results(verb, local)
    assert expected and results(verb, place) == expected
