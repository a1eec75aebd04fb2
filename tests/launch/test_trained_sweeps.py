"""A whole sweep of `evaluate`, whose jobs the fork server forks.

The server imports what a configuration names by address, so that its forks need not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests import forked

from clozelab.corpus.tokenizers import WordPieceTokenizer
from clozelab.launch.process_launcher import modules_of
from clozelab.models.encoder import Encoder
from clozelab.models.folders import save_encoder_folder
from clozelab.models.registry import family_for
from clozelab.runs.find import find

SRC = Path(__file__).parents[2] / "src"
COLOURS = ("red", "green", "blue")
LABELS = ("entailment", "neutral", "contradiction")
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


def sweep(world: Path, runs: Path) -> str:
    """What a sweep says by its end."""
    places = [f"data_dir={world}", f"cache_dir={runs}/cache", f"runs_dir={runs}"]
    words = [*EVALUATE, *SETTINGS, *places, f"encoder={world}/encoder"]
    done = forked.run(
        [sys.executable, "-m", "clozelab", *words],
        env=os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_sweep_over_tasks_is_whole_and_its_jobs_find_their_modules(
    world: Path, tmp_path: Path
) -> None:
    assert "2 complete" in sweep(world, tmp_path)
    assert [run.status for run in find(tmp_path).evaluate] == ["complete", "complete"]
    modules = set()
    for file in tmp_path.rglob("config.yaml"):
        task = yaml.safe_load(file.read_text())["measure"]["task"]
        modules |= {task[part]["_target_"].rpartition(".")[0] for part in ("unit", "target")}
    assert modules == {"clozelab.tasks.texts", "clozelab.tasks.classes"}
    assert modules < set(modules_of("evaluate"))
    assert "2 skipped" in sweep(world, tmp_path)
