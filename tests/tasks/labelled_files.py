"""A task of texts in a data module, and from the command line with a YAML of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.parts import TEXTS, data_of, module_of

from clozelab.cli import main
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, Tokenizer, WordPieceTokenizer
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.datamodules.labelled import TaskInputs
from clozelab.tasks.texts import TextUnit

WORDS = ["the", "red", "blue", "big", "small", "car", "house"]
TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *WORDS], lowercase=True)
Rows = Sequence[tuple[str, Any]]  # (text, label)


def write_rows(path: Path, rows: Rows) -> None:
    lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
    path.write_text("\n".join(lines) + "\n")


def read_task(
    folder: Path, target: Any, train: Rows, validation: Rows, **settings: Any
) -> FinetuningDataModule:
    """The data module of two files of objects, read."""
    write_rows(folder / "train.jsonl", train)
    write_rows(folder / "dev.jsonl", validation)
    settings = {
        **TEXTS,
        "inputs": TaskInputs("toy", folder, folder / "cache", TOKENIZER, 16),
        "train_file": "train.jsonl",
        "validation_file": "dev.jsonl",
        "max_seq_length": 16,
        **settings,
    }
    data = data_of(TextUnit, target, settings)
    data.setup()
    return data


def module_on(data: FinetuningDataModule, tiny_module: Any, metric: str, **encoder: Any) -> Any:
    """A module for this data, whose best score is by `metric`."""
    return tiny_module(
        lambda **training: module_of(data.unit, data.target, **training),
        {"vocab_size": data.inputs.tokenizer.vocab_size, **encoder},
        validation=data.validation,
        metric=f"validation/{metric}",
    )


def finetune(
    folder: Path, yaml: str, save_encoder: Callable[..., None], tokenizer: Tokenizer = TOKENIZER
) -> Path:
    """The folder of a run of the task `mine`, whose YAML this is; its files lie in `data`."""
    (folder / "conf/task").mkdir(parents=True)
    (folder / "conf/task/mine.yaml").write_text(yaml)
    save_encoder(folder / "encoder", tokenizer, num_hidden_layers=1, initializer_range=0.1)
    settings = {
        "data_dir": folder / "data",
        "cache_dir": folder / "cache",
        "encoder": folder / "encoder",
        "row": "mine",
        "run_dir": folder / "run",
        "learning_rate": 5e-3,
        "epochs": 12,
        "global_batch_size": 8,
        "evaluations_per_epoch": 1,
        "predict_test": "true",
        "keep_model": "true",
        "trainer.precision": "32-true",
        "trainer.progress_bar": "false",
        "allow_validation_in_training": "true",
    }
    given = [f"{key}={value}" for key, value in settings.items()]
    command = ["finetune", "--config-dir", str(folder / "conf"), "task=mine", *given]
    assert main(command) in (0, None)
    return folder / "run"


def evaluate(folder: Path, *words: str, task: str = "mine") -> Path | None:
    """The folder of an evaluation of that run's model on a task's files; None: refused."""
    settings = {
        "data_dir": folder / "data",
        "cache_dir": folder / "cache",
        "encoder": folder / "run/model",
        "row": "mine",
        "measure.name": "more",
        "run_dir": folder / "evaluated",
        "trainer.precision": "32-true",
        "trainer.progress_bar": "false",
    }
    given = [f"{key}={value}" for key, value in settings.items()]
    command = ["evaluate", "--config-dir", str(folder / "conf"), "measure=labelled"]
    if main([*command, f"task@measure.task={task}", *given, *words]) not in (0, None):
        return None
    return folder / "evaluated"


def records_of(run: Path) -> list[dict[str, Any]]:
    lines = (run / "predictions.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
