"""Ways of new users, whole: text of one's own becomes an encoder, two tasks and a prediction; a
Hydra user's own experiment, task, scale, optimizer and package run from a wheel in an empty
environment. They take minutes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from clozelab.runs.find import find
from clozelab.runs.outcome import score_in_context, skill_score
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


def clozelab(place: Path, *words: str, python: str = sys.executable, path: Path = SRC) -> str:
    told = os.environ | {"PYTHONPATH": str(path), "COLUMNS": "100"}
    told["CLOZELAB_CACHE"] = str(place / "cache")
    command = [python, "-m", "clozelab", *words]
    done = subprocess.run(command, cwd=place, env=told, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def write_task(place: Path, name: str, sentences: list[str], words: tuple[str, str]) -> None:
    """Which of two words does a sentence hold? The word itself is taken out of the text."""
    lines = []
    for line in sentences:
        for word in words:
            if word in line.split():
                lines.append((" ".join(one for one in line.split() if one not in words), word))
    assert len(lines) > 600, f"{name}: {len(lines)}"
    (place / "data" / name).mkdir(parents=True)
    (place / "my/task").mkdir(parents=True, exist_ok=True)
    (place / f"my/task/{name}.yaml").write_text(TASK.format(name=name))
    for split, part in (("train", lines[:500]), ("validation", lines[500:600])):
        text = "".join(f"{text}\t{label}\n" for text, label in part)
        (place / "data" / name / f"{split}.tsv").write_text(f"text\tlabel\n{text}")


def write_text(place: Path, documents: int) -> list[str]:
    """A text of the microworld in texts/, and its lines."""
    made = write_world(place / "world", 1, documents, 10, 10, 2)
    assert made is not None
    text = next(made.rglob("microworld.txt")).read_text()
    (place / "texts").mkdir()
    (place / "texts/mine.txt").write_text(text)
    return [line for line in text.splitlines() if line]


OWN_TEXT = ("corpus=text", "corpus.sources.0.path=texts", "tokenizer.vocab_size=800")


@pytest.mark.slow
def test_own_text_becomes_an_encoder_two_tasks_and_a_prediction(tmp_path: Path) -> None:
    """Above word frequencies within two minutes, by a vocabulary that suits so little text."""
    lines = write_text(tmp_path, 4000)
    counts = Counter(" ".join(lines).split())
    words = ("and", "the", "is", "was", "in", "with", "to", "has")
    usual = [word for word in words if counts[word] > 800]
    write_task(tmp_path, "first", lines, (usual[0], usual[1]))
    write_task(tmp_path, "second", lines, (usual[2], usual[3]))
    small = ["scale=own", *OWN_TEXT, "objective=mlm", "steps_factor=0.3"]
    said = clozelab(tmp_path, "pretrain", *small)
    assert "next: clozelab finetune" in said and "learnt nothing" not in said
    (run,) = find(tmp_path / "runs").pretrain
    assert skill_score(run) > 0.03 and "word frequencies give" in score_in_context(run)
    settings = ["scale=own", "task=first,second", "row=mine", "data_dir=data", "epochs=1"]
    settings.append(f"encoder={run.folder / 'encoder'}")
    clozelab(tmp_path, "finetune", "-m", "--config-dir", "my", *settings)
    tuned = find(tmp_path / "runs").finetune
    assert {one.task for one in tuned} == {"first", "second"}
    assert all(one.is_complete for one in tuned)
    words = [str(tuned[0].folder), f"text={lines[-1]}", "--json"]
    answer = clozelab(tmp_path, "predict", *words).splitlines()[0]
    assert json.loads(answer)["prediction"]["label"] in usual


PAPER = """\
title: Does an optimizer of my own do?
arms:
  usual: {objective: mlm}
  mine: {objective: mlm, optimizer: mine}
columns: [own]
claims:
  - {text: mine is worse, compare: [mine, usual, own], direction: lower}
"""
OPTIMIZER = """\
_target_: mypkg.plain
_partial_: true
learning_rate: 0.5
"""
PACKAGE = """\
import torch

def plain(named_parameters, *, learning_rate):
    trained = [one for _, one in named_parameters if one.requires_grad]
    return torch.optim.SGD(trained, lr=learning_rate)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment with the wheel and the dependencies of here."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    build = ["build", "--wheel", "--no-isolation", "--outdir", str(folder), str(SRC.parent)]
    subprocess.run([sys.executable, "-m", *build], check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv/bin/python"
    (wheel,) = folder.glob("clozelab-*.whl")
    install = ["pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([python, "-m", *install], check=True)
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    # Their folder, not its .pth files: an editable clozelab of here is not seen there.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    return str(python)


@pytest.mark.slow
def test_a_hydra_users_own_files_run_from_a_wheel(installed: str, tmp_path: Path) -> None:
    lines = write_text(tmp_path, 2000)
    words = " ".join(lines).split()
    (first, _), (second, _) = Counter(one for one in words if len(one) < 5).most_common(2)
    write_task(tmp_path, "own", lines, (first, second))
    folder = tmp_path / "question"
    shutil.copytree(tmp_path / "my", folder)  # its task
    files = {"paper.yaml": PAPER, "optimizer/mine.yaml": OPTIMIZER, "../packages/mypkg.py": PACKAGE}
    scale = yaml.safe_load((SRC.parent / "conf/scale/own.yaml").read_text()) | {"name": "short"}
    phase = {"seq_length": 64, "steps": 60, "global_batch_size": 32, "micro_batch_size": 32}
    scale["pretrain"] |= {"phases": [phase], "seeds": "1,2", "position_growth": "none"}
    scale["finetune"] |= {"epochs": 1, "seeds": "1", "tasks": "own"}
    files["scale/short.yaml"] = yaml.safe_dump(scale)
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    words = ["scale=short", "data_dir=data", *OWN_TEXT]
    how: Any = {"python": installed, "path": tmp_path / "packages"}
    told = os.environ | {"PYTHONPATH": str(tmp_path / "packages")}
    code = "import clozelab; print(clozelab.__file__)"
    where = subprocess.check_output([installed, "-c", code], text=True, env=told)
    assert where.startswith(str(Path(installed).parents[1])), "the wheel is what runs"
    with pytest.raises(AssertionError, match=r"mypkg\.plain' is not allowed"):
        clozelab(tmp_path, "reproduce", "question", *words, **how)
    clozelab(tmp_path, "reproduce", "question", *words, "allow_targets=[mypkg]", **how)
    report = (tmp_path / "runs/question/short/report/report.md").read_text()
    assert "mine is worse" in report and "(one seed)" not in report
    losses = {}
    for run in find(tmp_path / "runs").pretrain:
        losses[run.config["arm"], run.config["seed"]] = run.scores["validation/loss"].value
    assert set(losses) == set(product(("usual", "mine"), (1, 2)))
    assert all(losses["mine", seed] != losses["usual", seed] for seed in (1, 2))
    assert "question" in clozelab(tmp_path, "list", **how)
