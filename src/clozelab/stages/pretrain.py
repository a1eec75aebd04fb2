"""Stage pretrain: one encoder from a prepared corpus. A table of contents; the work is elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf

from clozelab.datamodules.corpus import CorpusDataModule
from clozelab.ledger.run import Run
from clozelab.ledger.sharing import kept_steps, require_kept_encoders, share_equal_run
from clozelab.ledger.targets import check_targets
from clozelab.modules.pretraining import PretrainingModule
from clozelab.objectives.weighted_sum import Objective
from clozelab.stages.adapting import adapt, check_adapting
from clozelab.stages.building import (
    build_loggers,
    build_pretraining_module,
    check_trackers,
    corpus_facts,
    hardware_of,
    provenance,
)
from clozelab.stages.checks import check_pretraining
from clozelab.stages.prepare import prepared_corpus
from clozelab.training.kept_encoders import KeepEncoders
from clozelab.training.position_growth import PositionGrowth, growth_steps
from clozelab.training.tracking import summarise, tracked
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
    check_trackers(cfg)
    steps_to_keep = kept_steps(cfg)
    corpus = prepared_corpus(cfg.corpus, cfg.data_dir, cfg.cache_dir)
    validation = {f"validation_{key}": plain["validation"][key] for key in ("instances", "seq_length")}
    workers = cfg.trainer.num_workers
    data = CorpusDataModule(corpus, objective, phases=plain["phases"], seed=cfg.seed, num_workers=workers, **validation)
    # All that can be wrong is found before the run folder is taken: a failed run of wrong settings would keep it.
    data.setup("fit")
    inputs = {"corpus": corpus.fingerprint}
    share_equal_run(cfg, inputs)
    with Run.claim(cfg.run_dir, stage="pretrain", config=cfg, inputs=inputs) as run:
        if run.is_complete:
            require_kept_encoders(cfg)
            log.info("%s is complete already", run.dir)
            return
        # A resumed run keeps the precision that `auto` meant when it began.
        hardware = replace(hardware, precision=run.state["facts"].get("precision", hardware.precision))
        module = build_pretraining_module(cfg, hardware, corpus, objective, data.total_steps)
        adapt(cfg, run, hardware, module, data)
        facts = corpus_facts(cfg, corpus, objective, data) | module.facts()
        run.record(precision=hardware.precision, **facts)

        def save_encoder(step: int | None = None) -> None:
            folder = run.dir / ("encoder" if step is None else f"encoders/step-{step}")
            module.save_encoder(folder, corpus.tokenizer.files(), provenance(plain, run, corpus, step=step))

        with tracked(build_loggers(cfg, run, arm=cfg.arm, name=f"{cfg.arm}/seed-{cfg.seed}")) as loggers:
            fit(cfg, run, hardware, module, data, loggers, KeepEncoders(steps_to_keep, save_encoder))
            if run.is_leader:
                save_encoder()
                summarise(loggers, module.facts())
                run.complete(**module.facts())


def fit(
    cfg: DictConfig,
    run: Run,
    hardware: Hardware,
    module: PretrainingModule,
    data: CorpusDataModule,
    loggers: Sequence[Logger],
    keep_encoders: KeepEncoders,
) -> None:
    """Train from the last checkpoint, or from the beginning."""
    last = run.dir / "checkpoints" / "last.ckpt"
    trainer = build_trainer(
        hardware,
        max_steps=data.total_steps,
        validation_interval_steps=cfg.validation.interval_steps,
        callbacks=[
            keep_encoders,
            *stage_callbacks(
                checkpoint=last,
                checkpoint_interval_steps=cfg.checkpoint_interval_steps,
                fingerprint=run.state["fingerprint"],
                progress_bar=cfg.trainer.progress_bar,
            ),
            PositionGrowth(growth_steps(cfg.phases) if cfg.position_growth == "tile" else {}),
        ],
        loggers=loggers,
        folder=run.dir,
        log_interval_steps=cfg.trainer.log_interval_steps,
    )
    trainer.fit(module, datamodule=data, ckpt_path=str(last) if last.exists() else None)
