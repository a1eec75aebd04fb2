"""From a composed configuration to the objects of a stage."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf

from clozelab.data.known_loss import known_loss
from clozelab.data.shards import PreparedCorpus
from clozelab.datamodules.corpus import CorpusDataModule
from clozelab.datamodules.finetuning import EncoderSource
from clozelab.ledger.reporting.tracked import tracked_job, tracker_nodes
from clozelab.ledger.run import Run
from clozelab.models.config import BertConfig
from clozelab.models.encoder import Encoder
from clozelab.models.weights import load_encoder
from clozelab.modules.pretraining import PretrainingModule
from clozelab.objectives.weighted_sum import Objective
from clozelab.training.metrics_csv import MetricsCsv
from clozelab.training.reproducibility import seed_initialisation
from clozelab.training.runtime import matmul_ceiling
from clozelab.training.tracking import TrackedJob
from clozelab.training.trainer import Hardware, choose_hardware

_HARDWARE_KEYS = (
    *("accelerator", "devices", "num_nodes", "strategy", "precision", "threads"),
    *("compile", "deterministic", "tf32"),
)


def hardware_of(trainer: DictConfig) -> Hardware:
    """What `cfg.trainer` asks for, resolved and checked; ValueError says what this machine lacks."""
    return choose_hardware(**{key: trainer[key] for key in _HARDWARE_KEYS})


def check_trackers(cfg: DictConfig) -> None:
    """ValueError for a tracker whose package is missing or whose settings are wrong, before anything slow."""
    probe = TrackedJob(folder=Path(), run_id="", experiment="", arm="", stage="", name="")
    for node in tracker_nodes(cfg.logger):
        instantiate(node)(job=probe)


def build_loggers(cfg: DictConfig, run: Run, *, arm: str, name: str) -> list[Logger]:
    """metrics.csv always, and the trackers that are chosen; `name` is the run's name inside the experiment."""
    loggers: list[Logger] = [MetricsCsv(run.dir)]
    nodes = tracker_nodes(cfg.logger)
    if nodes:
        job = tracked_job(cfg, run, arm=arm, name=name)
        loggers += [instantiate(node)(job=job) for node in nodes]
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


def corpus_facts(
    cfg: DictConfig, corpus: PreparedCorpus, objective: Objective, data: CorpusDataModule
) -> dict[str, Any]:
    """What the report has to know of the corpus: how far a loss can be from doing nothing and, for a generated one,
    from the best."""
    facts: dict[str, Any] = {"unigram_entropy": corpus.train.unigram_entropy}
    masking = getattr(objective.token, "masking", None)
    if not cfg.corpus.generator or (masking is None and not objective.is_causal):
        return facts
    shares = None if masking is None else (masking.predict_prob, masking.same_fraction)
    length = data.validation_seq_length
    known = known_loss(cfg.data_dir, corpus.tokenizer, data.held_out_labels(), seq_length=length, masking=shares)
    return facts | ({"known_loss": known} if known else {})


def provenance(plain: dict[str, Any], run: Run, corpus: PreparedCorpus, *, step: int | None = None) -> dict[str, Any]:
    """What a pre-trained encoder folder remembers of its making; encoders are given away, so no secrets.

    Args:
        plain: the resolved configuration.
        step: after how many steps it was kept; None: after the last. It has seen no longer rows than until then.
    """
    begins = accumulate((phase["steps"] for phase in plain["phases"][:-1]), initial=0)
    begun = [phase for phase, first in zip(plain["phases"], begins, strict=True) if step is None or first < step]
    return {
        **({} if step is None else {"step": step}),
        **{key: run.state["config_resolved"][key] for key in ("experiment", "arm", "seed", "objective", "phases")},
        "run_fingerprint": run.state["fingerprint"],
        "corpus_fingerprint": corpus.fingerprint,
        "tokenizer_fingerprint": corpus.tokenizer.fingerprint,
        "trained_seq_lengths": sorted({phase["seq_length"] for phase in begun}),
    }
