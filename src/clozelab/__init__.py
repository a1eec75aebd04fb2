"""clozelab: BERT as an experiment platform. Importing this package imports nothing heavy: names
come when asked for.

docs/python.md shows how: pre-train, fine-tune and use a model in ten lines each. The verbs are
functions here:
`pretrain(scale="demo", objective="mlm", seed=2)` does what the command line does. Keywords are keys
and group choices, nested ones dictionaries (`trainer={"precision": "32-true"}`); words are
overrides as the command line has them (`"objective/input=full_sentences"`). Wrong ones raise
ValueError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule, Trainer

    from clozelab.datamodules.corpus import CorpusDataModule
    from clozelab.datamodules.finetuning import FinetuningDataModule
    from clozelab.modules.base import TrainingModule
    from clozelab.modules.finetuning import FineTuning
    from clozelab.modules.predictor import Predictor, load
    from clozelab.modules.pretraining import PretrainingModule
    from clozelab.report.render import Report
    from clozelab.runs.record import Record

__all__ = [
    "CorpusDataModule",
    "FineTuning",
    "FinetuningDataModule",
    "Predictor",
    "PretrainingModule",
    "compose",
    "evaluate",
    "finetune",
    "load",
    "make_report",
    "prepare",
    "pretrain",
]
_PLACES = {
    "CorpusDataModule": "datamodules.corpus",
    "FinetuningDataModule": "datamodules.finetuning",
    "FineTuning": "modules.finetuning",
    "PretrainingModule": "modules.pretraining",
    "Predictor": "modules.predictor",
    "load": "modules.predictor",
}
SPELT_VALUES = ("true", "false", "null", "inf", "nan")  # which Hydra would not take for text


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'clozelab' has no attribute {name!r}")
    return getattr(import_module(f"clozelab.{_PLACES[name]}"), name)


def prepare(*words: str, **overrides: Any) -> Path:
    """Prepare a corpus; returns its folder in the cache."""
    from clozelab.stages.prepare import find_corpus

    folder: Path = _run("prepare", words, overrides, find_corpus)
    return folder


def pretrain(*words: str, **overrides: Any) -> Record:
    """Pre-train an encoder, or go on; returns the run's record (`folder`, `scores`, `facts`,
    ...).
    """
    return _run("pretrain", words, overrides)


def finetune(*words: str, **overrides: Any) -> Record:
    """Fine-tune an encoder on a task; returns the run's record."""
    return _run("finetune", words, overrides)


def evaluate(*words: str, **overrides: Any) -> Record:
    """Measure an encoder or a fine-tuned model; returns the run's record."""
    return _run("evaluate", words, overrides)


def make_report(
    name: str | Path, *words: str, report_dir: str | None = None, **overrides: Any
) -> Report:
    """Judge an experiment, or make the table of a folder of runs; returns the report (`page`,
    `folder`).
    """
    from clozelab.stages.report import make

    return make(str(name), [*words, *_words(overrides)], report_dir)


def compose(
    verb: str, words: Sequence[str] = (), **overrides: Any
) -> tuple[TrainingModule, LightningDataModule, Trainer]:
    """Lightning's objects of a pre-training or a fine-tuning: `trainer.fit(module, datamodule)`
    trains the plan.

    Nothing is claimed or recorded; any other Trainer does as well.
    """
    if verb not in ("pretrain", "finetune"):
        raise ValueError(
            f"compose makes what trains, and {verb!r} does not: choose 'pretrain' or 'finetune'"
        )
    made: Any = _run(
        verb,
        tuple(words),
        overrides,
        lambda cfg: import_module(f"clozelab.stages.{verb}").training_objects(cfg),
    )
    return made


def _run(verb: str, words: tuple[str, ...], overrides: Mapping[str, Any], then: Any = None) -> Any:
    from clozelab.cli import job
    from clozelab.launch.sweep import CONFIGURATION_ERRORS, compose, explain, hydra_config
    from clozelab.runs.record import read_record
    from clozelab.targets import take_permission

    try:
        composed = compose(verb, take_permission([*words, *_words(overrides)]))
    except CONFIGURATION_ERRORS as error:
        raise ValueError(explain(error, verb)) from error
    with hydra_config(composed) as cfg:
        if then is None or verb == "prepare":
            job(verb, cfg)
        return then(cfg) if then else read_record(Path(cfg.run_dir))


def _words(overrides: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """`key=value` in Hydra's grammar."""
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            yield from _words(value, f"{above}{key}.")
        else:
            yield f"{above}{key}={_said(value)}"


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_said(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_said, value)) + "]"
    if not isinstance(value, str | Path):
        plain = value.item() if hasattr(value, "item") else value  # numpy's numbers
        return repr(plain) if isinstance(plain, float) else json.dumps(plain)
    text = str(value)
    if re.fullmatch(r"[A-Za-z_/.][\w./-]*", text, re.ASCII) and text.lower() not in SPELT_VALUES:
        return text
    # In Hydra's grammar a backslash is doubled before a quote alone.
    return (
        "'" + re.sub(r"(\\*)('|$)", lambda one: one[1] * 2 + one[2].replace("'", "\\'"), text) + "'"
    )
