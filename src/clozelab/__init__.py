"""clozelab: BERT as an experiment platform.

Importing this package imports nothing heavy: names come when asked for. docs/python.md shows how to
pre-train, fine-tune and use a model in ten lines each.

The verbs are functions here: `pretrain(scale="demo", objective="mlm", seed=2)` does what the
command line does. Keywords are keys and group choices, nested ones dictionaries
(`trainer={"precision": "32-true"}`); positional arguments are overrides as the command line has
them (`"objective/input=full_sentences"`). Wrong ones raise ValueError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from clozelab.text.plain import hydra_literal
from clozelab.version import __version__ as __version__

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule, Trainer

    from clozelab.config import Composed
    from clozelab.datamodules.corpus import CorpusDataModule
    from clozelab.datamodules.finetuning import FinetuningDataModule
    from clozelab.modules.base import TrainingModule
    from clozelab.modules.finetuning import FineTuning
    from clozelab.modules.mteb import MtebEncoder
    from clozelab.modules.predictor import Predictor, load
    from clozelab.modules.pretraining import PretrainingModule
    from clozelab.report.render import Report
    from clozelab.runs.record import Record

__all__ = [
    "CorpusDataModule",
    "FineTuning",
    "FinetuningDataModule",
    "MtebEncoder",
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
    "MtebEncoder": "modules.mteb",
    "FinetuningDataModule": "datamodules.finetuning",
    "FineTuning": "modules.finetuning",
    "PretrainingModule": "modules.pretraining",
    "Predictor": "modules.predictor",
    "load": "modules.predictor",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'clozelab' has no attribute {name!r}")
    return getattr(import_module(f"clozelab.{_PLACES[name]}"), name)


def prepare(*argv: str, **overrides: object) -> Path:
    """Prepare a corpus; return its folder in the cache."""
    from clozelab.assembly.corpora import find_corpus
    from clozelab.cli import job

    composed = _composed("prepare", argv, overrides)
    if composed.config.dry_run:
        raise ValueError("a dry run prints what it finds: clozelab prepare --dry-run")
    job(composed)
    folder = find_corpus(composed.config)
    assert folder is not None  # it has just been prepared
    return folder


def pretrain(*argv: str, **overrides: object) -> Record:
    """Pre-train an encoder, or go on.

    Returns the run's record (`folder`, `scores`, `facts`, ...).
    """
    return _run("pretrain", argv, overrides)


def finetune(*argv: str, **overrides: object) -> Record:
    """Fine-tune an encoder on a task; return the run's record."""
    return _run("finetune", argv, overrides)


def evaluate(*argv: str, **overrides: object) -> Record:
    """Measure an encoder or a fine-tuned model; return the run's record."""
    return _run("evaluate", argv, overrides)


def make_report(
    name: str | Path, *argv: str, report_dir: str | None = None, **overrides: object
) -> Report:
    """Judge an experiment, or make the table of a folder of runs.

    Returns the report (`page`, `folder`).
    """
    from clozelab.report.judging import make

    return make(str(name), [*argv, *_to_argv(overrides)], report_dir)


def compose(
    verb: str, argv: Sequence[str] = (), **overrides: object
) -> tuple[TrainingModule, LightningDataModule, Trainer]:
    """Return Lightning's objects of a pre-training or a fine-tuning.

    `trainer.fit(module, datamodule)` trains the plan. Nothing is claimed or recorded; any other
    Trainer does as well.
    """
    if verb not in ("pretrain", "finetune"):
        raise ValueError(
            f"compose makes what trains, and {verb!r} does not: choose 'pretrain' or 'finetune'"
        )
    from clozelab.addresses import check_targets

    composed = _composed(verb, argv, overrides)
    check_targets(composed.values)
    room = {"pretrain": "pretraining", "finetune": "finetuning"}[verb]
    assembly = import_module(f"clozelab.assembly.{room}")
    return assembly.training_objects(composed.config)


def _run(verb: str, argv: Sequence[str], overrides: Mapping[str, object]) -> Record:
    from clozelab.cli import job
    from clozelab.runs.record import read_record

    composed = _composed(verb, argv, overrides)
    job(composed)
    record = read_record(Path(composed.values["run_dir"]))
    assert record is not None  # the job has just written it
    return record


def _composed(verb: str, argv: Sequence[str], overrides: Mapping[str, object]) -> Composed:
    """Return a verb's configuration; ValueError for wrong arguments."""
    from clozelab.addresses import parse_allow_targets
    from clozelab.launch.mistakes import CONFIGURATION_ERRORS, explain
    from clozelab.launch.sweep import compose

    try:
        return compose(verb, parse_allow_targets([*argv, *_to_argv(overrides)]))
    except CONFIGURATION_ERRORS as error:
        raise ValueError(explain(error, verb)) from error


def _to_argv(overrides: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yield `key=value` in Hydra's grammar."""
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            yield from _to_argv(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={hydra_literal(value)}"
