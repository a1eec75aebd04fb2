"""Stage pretrain: one encoder from a prepared corpus. A table of contents; the work is elsewhere."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from clozelab.datamodules.corpus import CorpusDataModule
from clozelab.ledger.run import Run
from clozelab.ledger.targets import check_targets
from clozelab.modules.pretraining import PretrainingModule
from clozelab.objectives.weighted_sum import Objective
from clozelab.stages.adapting import adapt, check_adapting
from clozelab.stages.building import (
    build_loggers,
    build_pretraining_module,
    check_pretraining,
    hardware_of,
    provenance,
)
from clozelab.stages.prepare import prepared_corpus
from clozelab.training.position_growth import PositionGrowth, growth_steps
from clozelab.training.trainer import Hardware, build_trainer, stage_callbacks

log = logging.getLogger(__name__)


def main(cfg: DictConfig) -> None:
    """Prepare the corpus if need be, train (or go on training), save the encoder folder, complete the run."""
    check_targets(cfg)
    plain: Any = OmegaConf.to_container(cfg, resolve=True)
    hardware = hardware_of(cfg.trainer)
    objective = Objective(**instantiate(cfg.objective, _convert_="all"))
    check_pretraining(cfg, plain, hardware)
    check_adapting(cfg, hardware)
    corpus = prepared_corpus(cfg.corpus, cfg.data_dir, cfg.cache_dir)
    validation = {f"validation_{key}": plain["validation"][key] for key in ("instances", "seq_length")}
    workers = cfg.trainer.num_workers
    data = CorpusDataModule(corpus, objective, phases=plain["phases"], seed=cfg.seed, num_workers=workers, **validation)
    # All that can be wrong is found before the run folder is taken: a failed run of wrong settings would keep it.
    data.setup("fit")
    with Run.claim(cfg.run_dir, stage="pretrain", config=cfg, inputs={"corpus": corpus.fingerprint}) as run:
        if run.is_complete:
            log.info("%s is complete already", run.dir)
            return
        # A resumed run keeps the precision that `auto` meant when it began.
        hardware = replace(hardware, precision=run.state["facts"].get("precision", hardware.precision))
        module = build_pretraining_module(cfg, hardware, corpus, objective, data.total_steps)
        adapt(cfg, run, hardware, module, data)
        run.record(precision=hardware.precision, unigram_entropy=corpus.train.unigram_entropy, **module.facts())
        fit(cfg, run, hardware, module, data)
        if run.is_leader:
            module.save_encoder(run.dir / "encoder", corpus.tokenizer.files(), provenance(plain, run, corpus))
            run.complete(**module.facts())


def fit(cfg: DictConfig, run: Run, hardware: Hardware, module: PretrainingModule, data: CorpusDataModule) -> None:
    """Train from the last checkpoint, or from the beginning."""
    last = run.dir / "checkpoints" / "last.ckpt"
    trainer = build_trainer(
        hardware,
        max_steps=data.total_steps,
        validation_interval_steps=cfg.validation.interval_steps,
        callbacks=[
            *stage_callbacks(
                checkpoint=last,
                checkpoint_interval_steps=cfg.checkpoint_interval_steps,
                fingerprint=run.state["fingerprint"],
                progress_bar=cfg.trainer.progress_bar,
            ),
            PositionGrowth(growth_steps(cfg.phases) if cfg.position_growth == "tile" else {}),
        ],
        loggers=build_loggers(cfg, run, arm=cfg.arm, name=f"{cfg.arm}/seed-{cfg.seed}"),
        folder=run.dir,
        log_interval_steps=cfg.trainer.log_interval_steps,
    )
    trainer.fit(module, datamodule=data, ckpt_path=str(last) if last.exists() else None)
