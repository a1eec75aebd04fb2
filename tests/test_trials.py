"""A newcomer's way, whole: text of one's own becomes an encoder, two tasks and a prediction. It takes minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clozelab.runs.find import find
from clozelab.runs.upkeep import LEARNT_NOTHING, gain, reached
from microworld.world import write_world

SRC = Path(__file__).parents[1] / "src"
TASK = """\
defaults: [format/labelled@_here_, _self_]
name: {name}
title: {name}
data:
  train_file: {name}/train.tsv
  validation_file: {name}/validation.tsv
  text_columns: [text]
  label_column: label
"""


def clozelab(place: Path, *words: str) -> str:
    told = os.environ | {"PYTHONPATH": str(SRC), "CLOZELAB_CACHE": str(place / "cache"), "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-m", "clozelab", *words], cwd=place, env=told, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def write_task(place: Path, name: str, sentences: list[str], words: tuple[str, str]) -> None:
    """Which of two words does a sentence hold? The word itself is taken out of the text."""
    lines = [(" ".join(one for one in line.split() if one not in words), word)
             for line in sentences for word in words if word in line.split()]  # fmt: skip
    assert len(lines) > 600, f"{name}: {len(lines)}"
    (place / "data" / name).mkdir(parents=True)
    (place / "my/task").mkdir(parents=True, exist_ok=True)
    (place / f"my/task/{name}.yaml").write_text(TASK.format(name=name))
    for split, part in (("train", lines[:500]), ("validation", lines[500:600])):
        text = "".join(f"{text}\t{label}\n" for text, label in part)
        (place / "data" / name / f"{split}.tsv").write_text(f"text\tlabel\n{text}")


@pytest.mark.slow
def test_own_text_becomes_an_encoder_two_tasks_and_a_prediction(tmp_path: Path) -> None:
    """Above the word-frequency baseline within two minutes of a core, by a vocabulary that suits so little text."""
    made = write_world(tmp_path / "world", 1, 4000, 10, 10, 2)
    assert made is not None
    text = next(made.rglob("microworld.txt")).read_text()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/mine.txt").write_text(text)
    usual = [word for word in ("and", "the", "is", "was", "in", "with", "to", "has") if text.split().count(word) > 800]
    lines = [line for line in text.splitlines() if line]
    write_task(tmp_path, "first", lines, (usual[0], usual[1]))
    write_task(tmp_path, "second", lines, (usual[2], usual[3]))
    small = ["scale=own", "corpus=text", "corpus.sources.0.path=texts", "tokenizer.vocab_size=800"]
    said = clozelab(tmp_path, "pretrain", *small, "objective=mlm", "steps_factor=0.3")
    assert "next: clozelab finetune" in said and LEARNT_NOTHING not in said
    (run,) = find(tmp_path / "runs").pretrain
    assert gain(run) > 0.03 and "word frequencies give" in reached(run)
    encoder = f"encoder={run.folder / 'encoder'}"
    words = ["--config-dir", "my", "scale=own", "task=first,second", "row=mine", "data_dir=data", encoder, "epochs=1"]
    clozelab(tmp_path, "finetune", "-m", *words)
    tuned = find(tmp_path / "runs").finetune
    assert {one.task for one in tuned} == {"first", "second"} and all(one.is_complete for one in tuned)
    answer = clozelab(tmp_path, "predict", str(tuned[0].folder), f"text={lines[-1]}", "--json").splitlines()[0]
    assert json.loads(answer)["prediction"]["label"] in usual
