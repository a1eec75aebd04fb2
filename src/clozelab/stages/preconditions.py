"""What a stage refuses before anything slow, and before it claims a run folder for a wrong value.

Every refusal is a ValueError that names the key.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn

from clozelab.config import check_config, kept_step, total_steps
from clozelab.corpus.shards import PreparedCorpus
from clozelab.corpus.tokenizers import TOKENIZER_FILE
from clozelab.models import folders
from clozelab.models.config import EncoderConfig
from clozelab.modules.finetuning import check_metric
from clozelab.modules.model import open_tokenizer
from clozelab.modules.pretraining import check_lengths
from clozelab.runs.inputs import encoder_fingerprint, require_encoder
from clozelab.stages import factory
from clozelab.targets import build, check_targets, locate
from clozelab.text.did_you_mean import hint
from clozelab.training.callbacks import check_position_growth
from clozelab.training.jobs import TrackedJob
from clozelab.training.trainer import Hardware

LIGHTNING_ARGUMENTS = (
    "profiler",
    "detect_anomaly",
    "benchmark",
    "overfit_batches",
    "limit_train_batches",
    "limit_val_batches",
)
"""What `trainer.lightning` may say of Lightning's Trainer.

All else is the plan's, the run's, or another key's.
"""


def prepare_stage(cfg: DictConfig, check: Callable[[DictConfig], None]) -> tuple[Hardware, Path]:
    """Look at all that a stage on an encoder needs but its data.

    That is the settings (`check`), the trackers, this machine and the encoder's folder. Returns the
    last two.
    """
    check_targets(cfg)
    check(cfg)
    check_trackers(cfg)
    hardware = factory.hardware_of(cfg.trainer)
    folder = require_encoder(cfg.encoder)
    check_fraction(folder, cfg.encoder_fraction)
    return hardware, folder


def check_pretraining(cfg: DictConfig, plain: dict[str, Any], hardware: Hardware) -> None:
    """Refuse what can be wrong with a pre-training before its corpus is looked at."""
    check_config("pretrain", cfg)
    if cfg.trainer.gradient_checkpointing and hardware.strategy == "fsdp":
        raise ValueError(
            "trainer.gradient_checkpointing=true does not work with trainer=fsdp yet: choose one of"
            " them"
        )
    # A given encoder brings its own shape, whatever the configuration says of a model.
    positions = cfg.model.max_position_embeddings
    if cfg.encoder is not None:
        positions = folders.read_config(require_encoder(cfg.encoder)).max_position_embeddings
        folders.refuse_untied(cfg.encoder)
    phases = plain["phases"]
    check_lengths(phases, plain["validation"], positions, hardware.world_size)
    check_position_growth(cfg.position_growth, phases, hardware.strategy)
    # The constructor refuses sizes and parts that do not fit together.
    EncoderConfig(**plain["model"], **plain["architecture"], vocab_size=1)
    _check_optimizer(cfg, sum(phase["steps"] for phase in phases))


def check_finetuning(cfg: DictConfig) -> None:
    """Refuse what can be wrong with a fine-tuning without encoder or data."""
    check_config("finetune", cfg)
    if cfg.trainer.strategy == "fsdp":
        raise ValueError(
            "fine-tuning runs on one device or with trainer=ddp; trainer=fsdp is for pre-training"
        )
    if cfg.trainer.precision == "bf16-true":
        raise ValueError(
            "trainer.precision=bf16-true is for pre-training: fine-tuning's steps are too small for"
            " weights of 8 bits, and its losses are fp32; choose bf16-mixed, or 32-true (on TPUs"
            " the only one)"
        )
    # What a task can do is known to its module's class, before one is built.
    module = locate(cfg.task.module["_target_"])
    module.check_head(cfg.head)
    module.check_settings(cfg.task.module)
    check_metric(cfg.task.metric, module.score_keys(cfg.task.module, cfg.task.data))
    _check_optimizer(cfg, 1)


def check_evaluation(cfg: DictConfig) -> None:
    """Refuse what can be wrong with an evaluation without encoder or data."""
    check_config("evaluate", cfg)
    measure = cfg.measure
    task = measure.task
    num_devices = cfg.trainer.devices * cfg.trainer.num_nodes
    if num_devices > 1 or cfg.trainer.precision == "bf16-true":
        raise ValueError(
            "an evaluation runs on one device, not in bf16-true: say trainer.devices=1"
            " trainer.precision=auto"
        )
    # Either a task, whose data is read, or data of the measure's own; without a task nobody but the
    # measure can have a module.
    has_one_source = (measure.data is None) != (task is None)
    if not has_one_source or (measure.module is None and task is None):
        raise ValueError(f"measure {measure.name}: give it a task, or module and data of its own")
    if task is not None and "features" in task.data:
        raise ValueError(
            f"task {task.name} reads stored features; take the task of the words themselves"
        )


def _check_optimizer(cfg: DictConfig, steps: int) -> None:
    """Build optimizer and schedule once: their constructors know what they can do.

    The parameters are of no use; one has the name of a layer's, for optimizers that tell by it.
    """
    names = ("weight", "encoder.layer.0.weight")
    parameters = [(name, nn.Parameter(torch.zeros(1, 1))) for name in names]
    optimizer = build("optimizer", cfg.optimizer)(parameters)
    build("schedule", cfg.schedule)(optimizer, total_steps=steps)


def check_trackers(cfg: DictConfig) -> None:
    """Refuse trackers and callbacks whose package is missing or whose settings are wrong."""
    nobody = TrackedJob(folder=Path(), run_id="", experiment="", arm="", stage="", name="")
    factory.build_trackers(cfg, nobody)
    # An evaluation has no callbacks to choose.
    if "callbacks" in cfg:
        factory.configured_callbacks(cfg)
    for key in cfg.trainer.lightning:
        if key not in LIGHTNING_ARGUMENTS:
            raise ValueError(
                f"trainer.lightning.{key}: no such argument is open here;"
                f" {hint(str(key), LIGHTNING_ARGUMENTS)}"
            )


def check_fraction(folder: Path, fraction: float) -> None:
    """Refuse an encoder that was not kept after this fraction of its own run.

    Its folder says after which step it was kept, and how many there were.
    """
    if fraction == 1.0:
        return
    provenance = folders.read_config_dict(folder).get("clozelab", {})
    step = provenance.get("step")
    phases = provenance.get("phases")
    if step is None or not phases:
        raise ValueError(
            f"encoder_fraction={fraction:g}: {folder} is no encoder that a run has kept on its way"
            " (its config.json names no step); take one that keep_encoders has written, or"
            " encoder_fraction=1"
        )
    steps = total_steps(phases)
    if step != kept_step(fraction, steps):
        raise ValueError(
            f"encoder_fraction={fraction:g}: {folder} was kept after step {step} of {steps}, which"
            f" is {step / steps:.3g} of its run; {fraction:g} would be step"
            f" {kept_step(fraction, steps)}, which keep_encoders has to name"
        )


def require_same_vocabulary(cfg: DictConfig, corpus: PreparedCorpus) -> dict[str, str]:
    """Refuse a given encoder that does not read the corpus's tokens.

    Returns what to record of it among the run's inputs, nothing without one.
    """
    if cfg.encoder is None:
        return {}
    folder = require_encoder(cfg.encoder)
    tokenizer = open_tokenizer(folder)
    of_corpus = corpus.tokenizer.fingerprint
    # A folder of somebody's may follow the same rules in files of its own: `released` names them.
    if of_corpus not in (tokenizer.fingerprint, tokenizer.released):
        name = "vocab.txt"
        if (folder / TOKENIZER_FILE).is_file():
            name = TOKENIZER_FILE
        raise ValueError(
            f"encoder={folder} was trained with another vocabulary than the corpus is prepared with"
            f" (fingerprints {tokenizer.fingerprint[:12]} and {of_corpus[:12]}): its token ids mean"
            f" other words; prepare the corpus with the folder's own,"
            f" tokenizer.vocab_file=FOLDER/{name}"
        )
    return {"encoder": encoder_fingerprint(folder)}
