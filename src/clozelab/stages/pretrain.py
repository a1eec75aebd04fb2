"""Stage pretrain: one encoder from a prepared corpus. A table of contents; the work is elsewhere."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf

from clozelab.data.shards import PreparedCorpus
from clozelab.datamodules.corpus import CorpusDataModule
from clozelab.ledger.run import Run
from clozelab.ledger.targets import check_targets
from clozelab.models.config import BertConfig
from clozelab.models.encoder import Encoder
from clozelab.modules.pretraining import PretrainingModule, check_phases
from clozelab.objectives.weighted_sum import Objective
from clozelab.stages.prepare import prepared_corpus
from clozelab.training.metrics_csv import MetricsCsv
from clozelab.training.reproducibility import seed_initialisation
from clozelab.training.runtime import matmul_ceiling
from clozelab.training.trainer import Hardware, build_trainer, choose_hardware, stage_callbacks

log = logging.getLogger(__name__)
HARDWARE_KEYS = ("accelerator", "devices", "num_nodes", "strategy", "precision", "threads")


def main(cfg: DictConfig) -> None:
    """Prepare the corpus if need be, train (or go on training), save the encoder folder, complete the run."""
    check_targets(cfg)
    phases: Any = OmegaConf.to_container(cfg.phases, resolve=True)
    check_phases(phases, cfg.model.max_position_embeddings, cfg.trainer.devices * cfg.trainer.num_nodes)
    hardware = choose_hardware(**{key: cfg.trainer[key] for key in HARDWARE_KEYS})
    corpus = prepared_corpus(cfg.corpus, cfg.data_dir, cfg.cache_dir)
    with Run.claim(cfg.run_dir, stage="pretrain", config=cfg, inputs={"corpus": corpus.fingerprint}) as run:
        if run.is_complete:
            log.info("%s is complete already", run.dir)
            return
        # A resumed run keeps the precision that `auto` meant when it began.
        hardware = replace(hardware, precision=run.state["facts"].get("precision", hardware.precision))
        objective = Objective(**instantiate(cfg.objective, _convert_="all"))
        data = CorpusDataModule(
            corpus,
            objective,
            phases=phases,
            seed=cfg.seed,
            validation_instances=cfg.validation.instances,
            validation_seq_length=cfg.validation.seq_length,
            num_workers=cfg.trainer.num_workers,
        )
        module = build_module(cfg, hardware, corpus, objective, data.total_steps)
        run.record(precision=hardware.precision, **module.facts(), unigram_entropy=corpus.train.unigram_entropy)
        fit(cfg, run, hardware, module, data)
        if run.is_leader:
            module.save_encoder(run.dir / "encoder", corpus.tokenizer.files(), provenance(cfg, run, corpus, phases))
            run.complete(**module.facts())


def build_module(
    cfg: DictConfig, hardware: Hardware, corpus: PreparedCorpus, objective: Objective, total_steps: int
) -> PretrainingModule:
    """A fresh encoder of the configured shape, the corpus's vocabulary and the objective's attention mask."""
    shape: Any = OmegaConf.to_container(cfg.model, resolve=True)
    seed_initialisation(cfg.seed)
    encoder = Encoder(
        BertConfig(
            **shape,
            vocab_size=corpus.tokenizer.vocab_size,
            pad_token_id=corpus.tokenizer.pad_id,
            is_causal=objective.is_causal,
        )
    )
    return PretrainingModule(
        encoder,
        objective,
        optimizer_factory=instantiate(cfg.optimizer, _convert_="all"),
        schedule_factory=instantiate(cfg.schedule, _convert_="all"),
        total_steps=total_steps,
        gradient_clip_norm=cfg.gradient_clip_norm,
        seed=cfg.seed,
        log_interval_steps=cfg.trainer.log_interval_steps,
        matmul_ceiling=matmul_ceiling(hardware.precision, hardware.device),
    )


def fit(cfg: DictConfig, run: Run, hardware: Hardware, module: PretrainingModule, data: CorpusDataModule) -> None:
    """Train from the last checkpoint, or from the beginning."""
    last = run.dir / "checkpoints" / "last.ckpt"
    trainer = build_trainer(
        hardware,
        max_steps=data.total_steps,
        validation_interval_steps=cfg.validation.interval_steps,
        callbacks=stage_callbacks(
            checkpoint=last,
            checkpoint_interval_steps=cfg.checkpoint_interval_steps,
            fingerprint=run.state["fingerprint"],
            progress_bar=cfg.trainer.progress_bar,
        ),
        loggers=build_loggers(cfg, run),
        folder=run.dir,
        log_interval_steps=cfg.trainer.log_interval_steps,
    )
    trainer.fit(module, datamodule=data, ckpt_path=str(last) if last.exists() else None)


def build_loggers(cfg: DictConfig, run: Run) -> list[Logger]:
    """metrics.csv always, and the tracker where one is chosen."""
    loggers: list[Logger] = [MetricsCsv(run.dir)]
    if cfg.logger and "_target_" in cfg.logger:
        config: Any = OmegaConf.to_container(cfg, resolve=False)
        name = f"{cfg.arm}/seed-{cfg.seed}"
        tracker = instantiate(cfg.logger)
        loggers.append(tracker(folder=run.dir, experiment=cfg.experiment, arm=cfg.arm, name=name, config=config))
    return loggers


def provenance(cfg: DictConfig, run: Run, corpus: PreparedCorpus, phases: list[dict[str, int]]) -> dict[str, Any]:
    """What the encoder folder remembers of its making."""
    return {
        "run_fingerprint": run.state["fingerprint"],
        "experiment": cfg.experiment,
        "arm": cfg.arm,
        "seed": cfg.seed,
        "objective": OmegaConf.to_container(cfg.objective, resolve=True),
        "corpus": corpus.fingerprint,
        "trained_seq_lengths": sorted({phase["seq_length"] for phase in phases}),
    }
