"""Whole sweeps of `finetune` and `evaluate`, whose jobs the fork server forks.

The server imports what a configuration names by address, so that its forks need not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests import forked

from clozelab.corpus.tokenizers import WordPieceTokenizer
from clozelab.models.encoder import Encoder
from clozelab.models.folders import save_encoder_folder
from clozelab.models.registry import family_for
from clozelab.runs.find import find

SRC = Path(__file__).parents[2] / "src"
CODE = """
import sys
from clozelab.cli import main
from clozelab.launch import process_launcher as launcher

class ForkServer(launcher.ForkServer):
    def __init__(self, module, preload, environment):
        print("preloaded", *preload, file=sys.stderr)
        super().__init__(module, preload, environment)

launcher.ForkServer = ForkServer
{change}
sys.exit(main(sys.argv[1:]))
"""
"""The command line, whose launcher also says what its fork server imports."""
COLOURS = ("red", "green", "blue")
LABELS = ("entailment", "neutral", "contradiction")
FINETUNE = ["finetune", "-m", "task=sst2,mnli", "seed=1", "epochs=1"]
EVALUATE = ["evaluate", "-m", "measure=probe", "task@measure.task=sst2,mnli", "seed=1"]
SETTINGS = ["trainer.precision=32-true", "trainer.progress_bar=false", "row=given"]


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_config: Callable[..., Any],
    tokenizer: WordPieceTokenizer,
) -> Path:
    """An encoder of random weights, a task of single texts and one of pairs."""
    root = tmp_path_factory.mktemp("world")
    torch.manual_seed(0)
    encoder = Encoder(tiny_config(vocab_size=tokenizer.vocab_size))
    heads = {"lm": family_for(encoder.config).head("lm", encoder)}
    files = tokenizer.files()
    save_encoder_folder(
        root / "encoder", encoder, heads=heads, tokenizer_files=files, extra_config={}
    )
    single = ["sentence\tlabel"]
    pairs = ["sentence1\tsentence2\tgold_label"]
    for number, animal in enumerate(["cat", "dog"] * 12):
        single.append(f"the {animal} sat on the {COLOURS[number % 3]} mat\t{number % 2}")
        pairs.append(f"the {animal} ran\tthe {animal} sat\t{LABELS[number % 3]}")
    for name in ("SST-2/train", "SST-2/dev"):
        write(root / f"glue/{name}.tsv", single)
    for name in ("train", "dev_matched", "dev_mismatched"):
        write(root / f"glue/MNLI/{name}.tsv", pairs)
    return root


def write(file: Path, lines: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def sweep(
    words: list[str], world: Path, runs: Path, preload: tuple[str, ...] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a sweep of a command line; `preload` stands in for the verb's preloaded places."""
    change = "pass"
    if preload is not None:
        change = f"launcher.PRELOADED_PLACES[{words[0]!r}] = {preload!r}"
    places = [f"data_dir={world}", f"cache_dir={runs}/cache", f"runs_dir={runs}"]
    words = [*words, *SETTINGS, *places, f"encoder={world}/encoder"]
    if words[0] == "finetune":
        words += ["allow_validation_in_training=true", "global_batch_size=8"]
    return forked.run(
        [sys.executable, "-c", CODE.format(change=change), *words],
        env=os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def preloaded(text: str) -> set[str]:
    """The modules that the launcher has its fork server import; without a server none."""
    return set(" ".join(re.findall(r"(?m)^preloaded (.*)$", text)).split())


def task_modules(runs: Path) -> set[str]:
    """The modules of the units and targets that finished runs name in their configurations."""
    modules = set()
    for file in runs.rglob("config.yaml"):
        config = yaml.safe_load(file.read_text())
        task = config.get("task") or config["measure"]["task"]
        for part in ("unit", "target"):
            modules.add(task[part]["_target_"].rpartition(".")[0])
    return modules


@pytest.mark.parametrize("words", [FINETUNE, EVALUATE], ids=["finetune", "evaluate"])
def test_a_sweep_over_tasks_is_whole_and_its_jobs_find_their_modules(
    words: list[str], world: Path, tmp_path: Path
) -> None:
    done = sweep(words, world, tmp_path)
    assert done.returncode == 0 and "2 complete" in done.stderr, done.stderr
    runs = getattr(find(tmp_path), words[0])
    assert [run.status for run in runs] == ["complete", "complete"]
    assert {"clozelab.tasks.texts", "clozelab.tasks.classes"} == task_modules(tmp_path)
    assert task_modules(tmp_path) < preloaded(done.stderr)
    again = sweep(words, world, tmp_path)
    assert again.returncode == 0 and "2 skipped" in again.stderr, again.stderr


@pytest.mark.parametrize("words", [FINETUNE, EVALUATE], ids=["finetune", "evaluate"])
def test_the_control_a_list_without_the_tasks_modules_shows(
    words: list[str], world: Path, tmp_path: Path
) -> None:
    """A place that conf/targets.yaml lacks ends the sweep, and an empty list is seen above."""
    done = sweep(words, world, tmp_path, preload=("task.data",))
    assert done.returncode == 1 and "KeyError: 'task.data'" in done.stderr, done.stderr
    done = sweep(words, world, tmp_path, preload=())
    assert done.returncode == 0 and f"clozelab.stages.{words[0]}" in preloaded(done.stderr)
    assert not task_modules(tmp_path) & preloaded(done.stderr)
