"""Stage pretrain: one encoder from a prepared corpus.

Micro-batch sizes and compilation are chosen for the machine when a run begins. A run that goes on
reads them in run.json: the very same kernels and micro-batches, whatever the machine or the cache
would say today.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from omegaconf import DictConfig, OmegaConf

from clozelab.corpus.shards import PreparedCorpus
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.corpus import CorpusDataModule
from clozelab.models.encoder import compile_encoder
from clozelab.modules.pretraining import PretrainingModule
from clozelab.objectives.objective import Objective
from clozelab.runs.inputs import encoder_fingerprint
from clozelab.runs.record import Score
from clozelab.runs.reuse import kept_steps, require_kept_encoders
from clozelab.runs.store import Run, share_equal_run
from clozelab.stages import factory, preconditions
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
SCORES = (
    "validation/loss",
    "validation/perplexity",
    "validation/accuracy",
    "validation/nsp_accuracy",
    "validation/nsp_accuracy_one_source",
    "validation/nsp_source_rule",
    "validation/sop_accuracy",
    "validation/rtd_loss",
    "validation/rtd_accuracy",
)
"""Scores of a pre-training; the first is its headline."""


@dataclass(frozen=True)
class PretrainingJob:
    """What a pre-training works with, once all that can be refused has been looked at."""

    cfg: DictConfig
    plain: dict[str, Any]  # `cfg` as dictionaries and lists, resolved
    hardware: Hardware
    corpus: PreparedCorpus
    objectives: list[Objective]  # one a phase
    data: CorpusDataModule
    steps_to_keep: list[int]  # after which the encoder is kept on its way


def main(cfg: DictConfig) -> None:
    """Prepare the corpus if need be, train or go on, save the encoder folder, complete the run."""
    job = prepare_pretraining(cfg)
    inputs = {"corpus": job.corpus.fingerprint}
    inputs |= preconditions.require_same_vocabulary(cfg, job.corpus)
    for objective in job.objectives:
        for name, folder in objective.token.inputs().items():
            inputs[name] = encoder_fingerprint(folder)
    tokenizer = factory.encoder_tokenizer(cfg, job.corpus, job.objectives)
    # The very same run of another experiment is not trained again.
    share_equal_run(cfg, inputs)
    with Run.claim(
        cfg.run_dir,
        stage="pretrain",
        config=cfg,
        inputs=inputs,
        scores={key: Score.of(key, are_shares=True) for key in SCORES},
        metric=SCORES[0],
    ) as run:
        if run.is_complete:
            require_kept_encoders(cfg)
            log.info("%s is complete already", run.dir)
            return
        # A resumed run keeps the precision that `auto` meant when it began.
        precision = run.facts.get("precision", job.hardware.precision)
        job = replace(job, hardware=replace(job.hardware, precision=precision))
        train(job, run, tokenizer)


def prepare_pretraining(cfg: DictConfig) -> PretrainingJob:
    """Check the settings, prepare the corpus, and open it as the phases read it.

    All that can be wrong is found here, before a run folder is taken.
    """
    check_targets(cfg)
    plain: Any = OmegaConf.to_container(cfg, resolve=True)
    hardware = factory.hardware_of(cfg.trainer)
    objectives = factory.build_objectives(plain)
    preconditions.check_pretraining(cfg, plain, hardware)
    preconditions.check_trackers(cfg)
    steps_to_keep = kept_steps(cfg)
    # One process reads every byte, once a run.
    verify = "full"
    if process_rank():
        verify = "sizes"
    corpus = prepared_corpus(cfg, verify=verify)
    data = CorpusDataModule(
        corpus,
        objectives,
        phases=plain["phases"],
        seed=cfg.seed,
        num_workers=cfg.trainer.num_workers,
        validation_instances=plain["validation"]["instances"],
        validation_seq_length=plain["validation"]["seq_length"],
    )
    # Finds the instances: a phase that the corpus cannot fill is refused.
    data.setup("fit")
    log_passes(data, corpus)
    return PretrainingJob(cfg, plain, hardware, corpus, objectives, data, steps_to_keep)


def log_passes(data: CorpusDataModule, corpus: PreparedCorpus) -> None:
    """Say how often the plan reads the corpus; many passes are a warning."""
    planned_tokens = 0
    for phase in data.phases:
        planned_tokens += phase.steps * phase.global_batch_size * phase.seq_length
    sentence, is_much = passes(planned_tokens, corpus.train.num_tokens)
    level = logging.INFO
    if is_much:
        level = logging.WARNING
    log.log(level, "%s", sentence)


def train(job: PretrainingJob, run: Run, tokenizer: Tokenizer) -> None:
    """Train from the newest checkpoint to the end, save the encoder, complete the run."""
    cfg = job.cfg
    module = build_module(job)
    choose_micro_batch_and_compile(job, run, module)
    facts = factory.corpus_facts(cfg, job.corpus, job.objectives[-1], job.data) | module.facts()
    run.record(precision=job.hardware.precision, threads=torch.get_num_threads(), **facts)
    # What is kept on the way is written as the last one is.
    save = partial(save_encoder, job, run, module, tokenizer)
    callbacks = factory.build_callbacks(
        cfg,
        run,
        cfg.checkpoint_interval_steps,
        before_checkpoint=[KeepEncoders(job.steps_to_keep, save)],
    )
    loggers = factory.build_loggers(cfg, run, arm=cfg.arm, name=f"{cfg.arm}/seed-{cfg.seed}")
    with tracked(loggers):
        trainer = factory.make_trainer(
            cfg,
            job.hardware,
            job.data.total_steps,
            cfg.validation.interval_steps,
            callbacks=callbacks,
            loggers=loggers,
            folder=run.dir,
        )
        trainer.fit(module, datamodule=job.data, ckpt_path=newest_whole(run.dir / "checkpoints"))
        if run.is_leader:
            save()
            summarise(loggers, module.facts())
            run.complete({"scores": module.facts()}, **module.facts())


def training_objects(cfg: DictConfig) -> tuple[PretrainingModule, CorpusDataModule, Trainer]:
    """Module, data and Trainer, for a training of somebody's own; nothing is claimed."""
    job = prepare_pretraining(cfg)
    preconditions.require_same_vocabulary(cfg, job.corpus)
    module = build_module(job)
    if job.hardware.compiles_pretraining:
        _compile_encoders(module)
    trainer = factory.make_trainer(
        cfg,
        job.hardware,
        job.data.total_steps,
        cfg.validation.interval_steps,
        callbacks=factory.configured_callbacks(cfg),
        loggers=[],
        folder=Path(cfg.run_dir),
    )
    return module, job.data, trainer


def build_module(job: PretrainingJob) -> PretrainingModule:
    """The module that trains the job's encoder."""
    return factory.build_pretraining_module(
        job.cfg, job.hardware, job.corpus, job.objectives, job.data.total_steps
    )


def save_encoder(
    job: PretrainingJob,
    run: Run,
    module: PretrainingModule,
    tokenizer: Tokenizer,
    step: int | None = None,
) -> None:
    """Write the encoder as it is after `step` (None: after the last) into the run's folder."""
    folder = run.dir / "encoder"
    if step is not None:
        folder = run.dir / f"encoders/step-{step}"
    provenance = factory.encoder_provenance(job.plain, run.content, job.corpus, step=step)
    module.save_encoder(folder, tokenizer.files(), provenance)


# What a run adapts to its machine


def choose_micro_batch_and_compile(
    job: PretrainingJob, run: Run, module: PretrainingModule
) -> None:
    """Choose micro-batch sizes and whether to compile, or read what this run chose when it began.

    Both are applied, and recorded.
    """
    data = job.data
    # Another layout (devices, micro-batches) has dropped these facts: then they are chosen anew.
    sizes = run.facts.get("micro_batch_sizes") or _micro_batch_sizes(job, module)
    phases = zip(data.phases, sizes, strict=True)
    data.phases = [replace(phase, micro_batch_size=size) for phase, size in phases]
    is_compiled = run.facts.get("compiled", job.hardware.compiles_pretraining)
    if is_compiled:
        _compile_encoders(module)
    run.record(compiled=is_compiled, micro_batch_sizes=sizes)


def _compile_encoders(module: PretrainingModule) -> None:
    for encoder in module.model.encoders:
        compile_encoder(encoder, dynamic=False)


def _micro_batch_sizes(job: PretrainingJob, module: PretrainingModule) -> list[int]:
    """Each phase's size: as configured or, with `auto`, what fits in the device's memory.

    Several devices would have to agree, and do not.
    """
    configured = [phase.micro_batch_size for phase in job.data.phases]
    if job.cfg.trainer.micro_batch != "auto" or job.hardware.accelerator != "gpu":
        return configured
    if job.hardware.world_size > 1:
        log.warning("trainer.micro_batch=auto is for one device: micro-batches stay as configured")
        return configured
    fitting = [_largest_micro_batch(job, module, index) for index in range(len(configured))]
    if fitting != configured:
        log.info("micro-batches of %s instances fit, of the configured %s", fitting, configured)
    return fitting


def _largest_micro_batch(job: PretrainingJob, module: PretrainingModule, index: int) -> int:
    """The largest of a phase's configured size and its halves of which a step fits in memory."""
    data = job.data
    phase = data.phases[index]
    first_step = data.first_steps[index]

    # The first batch of a phase stands for all of them.
    def attempt(size: int) -> None:
        data.phases[index] = replace(phase, micro_batch_size=size)
        micro_batch = data.train_stream(first_step, 0, 1).micro_batches(first_step)[0]
        try_step(module.model, micro_batch, job.hardware.device, job.hardware.precision)

    fitting = largest_that_fits(attempt, min(phase.micro_batch_size, phase.global_batch_size))
    # The trials changed the plan; the caller changes it once, for all phases.
    data.phases[index] = phase
    return fitting
