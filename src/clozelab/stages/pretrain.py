"""Stage pretrain: one encoder from a prepared corpus. A table of contents, and what a run adapts to
its machine.

A resumed run reads that in run.json, so that it goes on with the very same kernels and
micro-batches, whatever the machine or the cache would say today.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from omegaconf import DictConfig, OmegaConf

from clozelab.corpus.shards import PreparedCorpus
from clozelab.datamodules.corpus import CorpusDataModule
from clozelab.models.encoder import compile_encoder
from clozelab.modules.pretraining import PretrainingModule
from clozelab.objectives.objective import Objective
from clozelab.runs.record import Score
from clozelab.runs.reuse import kept_steps, require_kept_encoders
from clozelab.runs.store import Run, share_equal_run
from clozelab.stages import building
from clozelab.stages.prepare import prepared_corpus
from clozelab.targets import check_targets
from clozelab.text.formatting import passes
from clozelab.training.callbacks import KeepEncoders
from clozelab.training.checkpoints import newest_whole
from clozelab.training.host import process_rank
from clozelab.training.runtime import largest_that_fits, try_step
from clozelab.training.tracking import summarise, tracked
from clozelab.training.trainer import Hardware

log = logging.getLogger(__name__)
SCORES = tuple(
    f"validation/{name}"
    for name in (
        *(
            "loss",
            "perplexity",
            "accuracy",
            "nsp_accuracy",
            "nsp_accuracy_one_source",
            "nsp_source_rule",
        ),
        *("sop_accuracy", "rtd_loss", "rtd_accuracy"),
    )
)
"""Of a pre-training; the first is its headline."""


def adapt(
    cfg: DictConfig, run: Run, hardware: Hardware, module: PretrainingModule, data: CorpusDataModule
) -> None:
    """Choose micro-batch sizes and whether to compile, or read what this run chose when it began;
    record them.
    """
    sizes = run.facts.get("micro_batch_sizes") or _micro_batch_sizes(cfg, hardware, module, data)
    data.phases = [
        replace(phase, micro_batch_size=size)
        for phase, size in zip(data.phases, sizes, strict=True)
    ]
    compiles = run.facts.get("compiled", hardware.compiles_pretraining)
    for encoder in module.model.encoders if compiles else ():
        compile_encoder(encoder, dynamic=False)
    run.record(compiled=compiles, micro_batch_sizes=sizes)


def _micro_batch_sizes(
    cfg: DictConfig, hardware: Hardware, module: PretrainingModule, data: CorpusDataModule
) -> list[int]:
    """As configured, or the largest of its halves that fits; several devices would have to agree,
    and do not.
    """
    configured = [phase.micro_batch_size for phase in data.phases]
    if cfg.trainer.micro_batch != "auto" or hardware.accelerator != "gpu":
        return configured
    if hardware.world_size > 1:
        log.warning("trainer.micro_batch=auto is for one device: micro-batches stay as configured")
        return configured
    found = []
    for number, size in enumerate(configured):
        step = data.first_steps[number]
        wanted = min(size, data.phases[number].global_batch_size)

        def attempt(size: int, number: int = number, step: int = step) -> None:
            data.phases[number] = replace(data.phases[number], micro_batch_size=size)
            batch = data.train_stream(step, 0, 1).micro_batches(step)[0]
            try_step(module.model, batch, hardware.device, hardware.precision)

        found.append(largest_that_fits(attempt, wanted))
        data.phases[number] = replace(data.phases[number], micro_batch_size=size)
    if found != configured:
        log.info("micro-batches of %s instances fit, of the configured %s", found, configured)
    return found


def begin(cfg: DictConfig) -> tuple[Hardware, PreparedCorpus, list[Objective], CorpusDataModule]:
    """What a pre-training is made of. All that can be wrong is found here, before a run folder is
    taken.
    """
    check_targets(cfg)
    plain: Any = OmegaConf.to_container(cfg, resolve=True)
    hardware, objectives = building.hardware_of(cfg.trainer), building.build_objectives(plain)
    building.check_pretraining(cfg, plain, hardware)
    building.check_trackers(cfg)
    kept_steps(cfg)  # of wrong fractions
    # every byte, once a run
    corpus = prepared_corpus(cfg, verify="sizes" if process_rank() else "full")
    validation = {
        f"validation_{key}": plain["validation"][key] for key in ("instances", "seq_length")
    }
    how = {"phases": plain["phases"], "seed": cfg.seed, "num_workers": cfg.trainer.num_workers}
    data = CorpusDataModule(corpus, objectives, **how, **validation)
    data.setup("fit")
    planned = sum(one.steps * one.global_batch_size * one.seq_length for one in data.phases)
    said, is_much = passes(planned, corpus.train.num_tokens)
    log.log(logging.WARNING if is_much else logging.INFO, "%s", said)
    return hardware, corpus, objectives, data


def parts(cfg: DictConfig) -> tuple[PretrainingModule, CorpusDataModule, Trainer]:
    """Module, data and Trainer, for a training of somebody's own; nothing is claimed."""
    hardware, corpus, objectives, data = begin(cfg)
    building.require_own_vocabulary(cfg, corpus)
    module = building.build_pretraining_module(cfg, hardware, corpus, objectives, data.total_steps)
    for encoder in module.model.encoders if hardware.compiles_pretraining else ():
        compile_encoder(encoder, dynamic=False)
    rest: Any = {
        "callbacks": building.chosen_callbacks(cfg),
        "loggers": [],
        "folder": Path(cfg.run_dir),
    }
    return module, data, make_trainer(cfg, hardware, data, **rest)


def make_trainer(
    cfg: DictConfig, hardware: Hardware, data: CorpusDataModule, **rest: Any
) -> Trainer:
    return building.make_trainer(
        cfg, hardware, data.total_steps, cfg.validation.interval_steps, **rest
    )


def main(cfg: DictConfig) -> None:
    """Prepare the corpus if need be, train (or go on training), save the encoder folder, complete
    the run.
    """
    (hardware, corpus, objectives, data), steps_to_keep = begin(cfg), kept_steps(cfg)
    plain: Any = OmegaConf.to_container(cfg, resolve=True)
    inputs = {"corpus": corpus.fingerprint} | building.require_own_vocabulary(cfg, corpus)
    tokenizer = building.encoder_tokenizer(cfg, corpus, objectives)
    share_equal_run(cfg, inputs)
    scores = {key: Score.of(key, are_shares=True) for key in SCORES}
    with Run.claim(
        cfg.run_dir, stage="pretrain", config=cfg, inputs=inputs, scores=scores, metric=SCORES[0]
    ) as run:
        if run.is_complete:
            require_kept_encoders(cfg)
            log.info("%s is complete already", run.dir)
            return
        # A resumed run keeps the precision that `auto` meant when it began.
        hardware = replace(hardware, precision=run.facts.get("precision", hardware.precision))
        module = building.build_pretraining_module(
            cfg, hardware, corpus, objectives, data.total_steps
        )
        adapt(cfg, run, hardware, module, data)
        facts = building.corpus_facts(cfg, corpus, objectives[-1], data) | module.facts()
        run.record(precision=hardware.precision, threads=torch.get_num_threads(), **facts)

        def save_encoder(step: int | None = None) -> None:
            folder = run.dir / ("encoder" if step is None else f"encoders/step-{step}")
            module.save_encoder(
                folder,
                tokenizer.files(),
                building.provenance(plain, run.content, corpus, step=step),
            )

        keep = KeepEncoders(steps_to_keep, save_encoder)
        callbacks = building.callbacks_of(cfg, run, cfg.checkpoint_interval_steps, 0.0, keep)
        with tracked(
            building.build_loggers(cfg, run, arm=cfg.arm, name=f"{cfg.arm}/seed-{cfg.seed}")
        ) as loggers:
            trainer = make_trainer(
                cfg, hardware, data, callbacks=callbacks, loggers=loggers, folder=run.dir
            )
            trainer.fit(module, datamodule=data, ckpt_path=newest_whole(run.dir / "checkpoints"))
            if run.is_leader:
                save_encoder()
                summarise(loggers, module.facts())
                run.complete({"scores": module.facts()}, **module.facts())
