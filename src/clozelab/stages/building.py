"""From a composed configuration to the objects of a stage."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf
from torch import nn

from clozelab.data.shards import PreparedCorpus
from clozelab.datamodules.finetuning import EncoderSource
from clozelab.ledger.run import Run
from clozelab.models.config import BertConfig
from clozelab.models.encoder import Encoder
from clozelab.models.weights import load_encoder
from clozelab.modules.pretraining import PretrainingModule, check_phases, check_validation
from clozelab.objectives.weighted_sum import Objective
from clozelab.training.metrics_csv import MetricsCsv
from clozelab.training.position_growth import check_position_growth
from clozelab.training.reproducibility import seed_initialisation
from clozelab.training.runtime import matmul_ceiling
from clozelab.training.trainer import Hardware, choose_hardware

_HARDWARE_KEYS = (
    *("accelerator", "devices", "num_nodes", "strategy", "precision", "threads"),
    *("compile", "deterministic", "tf32"),
)


def hardware_of(trainer: DictConfig) -> Hardware:
    """What `cfg.trainer` asks for, resolved and checked; ValueError says what this machine lacks."""
    return choose_hardware(**{key: trainer[key] for key in _HARDWARE_KEYS})


def check_pretraining(cfg: DictConfig, plain: dict[str, Any], hardware: Hardware) -> None:
    """Everything about a pre-training run that can be wrong without looking at the corpus.

    ValueError names the key; `plain` is the resolved configuration.
    """
    check_phases(plain["phases"], cfg.model.max_position_embeddings, hardware.world_size)
    check_validation(plain["validation"], plain["phases"], cfg.model.max_position_embeddings)
    check_position_growth(cfg.position_growth, plain["phases"], hardware.strategy)
    for key, least in (
        ("checkpoint_interval_steps", 1),
        ("gradient_clip_norm", 0),
        ("trainer.log_interval_steps", 1),
        ("trainer.num_workers", 0),
    ):
        if OmegaConf.select(cfg, key) < least:
            raise ValueError(f"{key} is {OmegaConf.select(cfg, key)}: it must be at least {least}")
    BertConfig(**plain["model"], vocab_size=1)
    # Built once on a parameter of no use: their constructors know what they can do.
    optimizer = instantiate(cfg.optimizer, _convert_="all")([("weight", nn.Parameter(torch.zeros(1, 1)))])
    instantiate(cfg.schedule, _convert_="all")(optimizer, total_steps=sum(phase["steps"] for phase in plain["phases"]))


def build_loggers(cfg: DictConfig, run: Run, *, arm: str, name: str) -> list[Logger]:
    """metrics.csv always, and the tracker where one is chosen; `name` is the run's name inside the experiment."""
    loggers: list[Logger] = [MetricsCsv(run.dir)]
    if cfg.logger and "_target_" in cfg.logger:
        # Unresolved: values from the environment may be secrets.
        config: Any = OmegaConf.to_container(cfg, resolve=False)
        tracker = instantiate(cfg.logger)
        loggers.append(tracker(folder=run.dir, experiment=cfg.experiment, arm=arm, name=name, config=config))
    return loggers


def encoder_source(cfg: DictConfig, folder: Path, fingerprint: str, hardware: Hardware) -> EncoderSource:
    """The encoder of a fine-tuning for tasks that compute features with it; `fingerprint` is the folder's."""
    name = (
        fingerprint if cfg.initialisation == "pretrained" else f"{cfg.initialisation}-{cfg.pretrain_seed}-{fingerprint}"
    )
    load = partial(load_encoder, folder, initialisation=cfg.initialisation, seed=cfg.pretrain_seed)
    return EncoderSource(name, load, hardware.device)


def build_pretraining_module(
    cfg: DictConfig, hardware: Hardware, corpus: PreparedCorpus, objective: Objective, total_steps: int
) -> PretrainingModule:
    """A fresh encoder of the configured shape, the corpus's vocabulary and the objective's attention mask."""
    shape: Any = OmegaConf.to_container(cfg.model, resolve=True)
    tokenizer = corpus.tokenizer
    seed_initialisation(cfg.seed)
    config = BertConfig(
        **shape, vocab_size=tokenizer.vocab_size, pad_token_id=tokenizer.pad_id, is_causal=objective.is_causal
    )
    return PretrainingModule(
        Encoder(config),
        objective,
        optimizer_factory=instantiate(cfg.optimizer, _convert_="all"),
        schedule_factory=instantiate(cfg.schedule, _convert_="all"),
        total_steps=total_steps,
        gradient_clip_norm=cfg.gradient_clip_norm,
        seed=cfg.seed,
        log_interval_steps=cfg.trainer.log_interval_steps,
        matmul_ceiling=matmul_ceiling(hardware.precision, hardware.device),
    )


def provenance(plain: dict[str, Any], run: Run, corpus: PreparedCorpus) -> dict[str, Any]:
    """What a pre-trained encoder folder remembers of its making; `plain` is the resolved configuration."""
    return {
        **{key: plain[key] for key in ("experiment", "arm", "seed", "objective", "phases")},
        "run_fingerprint": run.state["fingerprint"],
        "corpus_fingerprint": corpus.fingerprint,
        "tokenizer_fingerprint": corpus.tokenizer.fingerprint,
        "trained_seq_lengths": sorted({phase["seq_length"] for phase in plain["phases"]}),
    }
