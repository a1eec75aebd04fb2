"""A fine-tuning: what it checks, its data and its module, and how it is trained."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import nn

from clozelab.addresses import build, build_parts, check_targets
from clozelab.assembly import factory, task_data
from clozelab.assembly.heads import load_heads, pretraining_heads
from clozelab.config import Composed
from clozelab.corpus.random import derive_seed
from clozelab.datamodules.files import HubSource, hub_files
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.datamodules.labelled import TrainingPlan
from clozelab.files.origin import GIVEN, is_given, scale_of_encoder
from clozelab.files.public import public_name
from clozelab.launch.overrides import OWN_TASK
from clozelab.models.adaptation import save_adapter
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder, compile_encoder
from clozelab.models.families.bert import EXTRA_CONFIG_KEY
from clozelab.models.folders import WEIGHTS, load_encoder, read_config_dict
from clozelab.models.fresh import reinitialise_top
from clozelab.modules.base import build_with_hparams
from clozelab.modules.finetuning import (
    FineTuning,
    check_head,
    check_metric,
    save_model,
    write_results,
    write_test_predictions,
)
from clozelab.modules.model import with_pooling
from clozelab.runs.inputs import encoder_fingerprint
from clozelab.runs.record import Score, read_record
from clozelab.runs.reuse import require_kept
from clozelab.runs.store import Run
from clozelab.schema import FinetuneConfig
from clozelab.tasks.cache import used_folders
from clozelab.tasks.sequences import Sequences
from clozelab.tasks.splitting import Fold
from clozelab.tasks.target import metrics_of
from clozelab.tasks.unit import EncoderSource, Split
from clozelab.text.did_you_mean import values_of
from clozelab.text.plain import JsonObject, PlainDict, PlainMapping
from clozelab.training.checkpoints import newest_intact, seed_initialisation
from clozelab.training.tracking import summarise, tracked
from clozelab.training.trainer import Hardware

log = logging.getLogger(__name__)
# A given encoder hardly moves in fewer steps: 120 short texts of three classes are told apart after
# 40 at 3e-5, and not after 12.
FEW_STEPS = 100
SMALL_LEARNING_RATE = 2e-4
CHECKPOINT_INTERVAL_STEPS = 50
# at least between two: a fine-tuning that is done sooner is rather begun again
CHECKPOINT_SECONDS = 300.0
# What a model's config.json says of its task, which an adapter's folder says, too.
CONFIG_OF_TASK = (
    "architectures",
    "model_type",
    EXTRA_CONFIG_KEY,
    "id2label",
    "label2id",
    "problem_type",
    "clozelab",
)
RESULTS_IN_RECORD = (
    "title",
    "stand_in_for",
    "synthetic",
    "num_examples",
    "num_entities",
    "collapsed",
    "best_step",
)
"""What the record of a run repeats of scores.json, for tables."""


@dataclass(frozen=True)
class FinetuneJob:
    """What a fine-tuning works with, once every check has passed."""

    cfg: FinetuneConfig
    hardware: Hardware
    encoder_folder: Path
    module: FineTuning
    data: FinetuningDataModule  # set up: read and tokenised
    inputs: dict[str, str]  # name -> fingerprint of what is read


def prepare(cfg: FinetuneConfig, *, with_test_files: bool = False) -> FinetuneJob:
    """Check the settings, load the encoder, and read the task's data.

    ValueError for anything wrong, also (`with_test_files`) for test files that are missing.
    """
    # From the cheap checks to the slow ones: settings, machine, files, encoder, texts.
    check_finetuning(cfg)
    hardware, folder = factory.require_machine_and_encoder(cfg)
    data, inputs = open_inputs(cfg, hardware, folder, with_test_files=with_test_files)
    encoder = load_encoder(folder, initialisation=cfg.initialisation, seed=cfg.pretrain_seed)
    check_adaptation(cfg, encoder.config)
    if cfg.reinitialise_layers:
        seed = derive_seed(draw_seed(cfg), "reinitialised layers")
        reinitialise_top(encoder, cfg.reinitialise_layers, seed)
    data.target.check_encoder(encoder.config, data.unit)
    given_heads = pretraining_heads(data.target, encoder, folder, cfg.pretrain_seed)
    if cfg.initialisation == "pretrained":
        has_fresh_pooler = encoder.has_fresh_pooler
        load_heads(given_heads, folder, cfg.task.name, has_fresh_pooler=has_fresh_pooler)
    data.setup()
    data.refuse_overlap(allowed=cfg.allow_validation_in_training)
    data.refuse_outside()
    # An encoder is adapted once: whatever trains it takes this module.
    module = build_module(cfg, encoder, data, given_heads)
    top_layer = module.encoder.layer[-1].parameters()
    if cfg.reinitialise_layers and not any(value.requires_grad for value in top_layer):
        raise ValueError(
            f"reinitialise_layers={cfg.reinitialise_layers}: these layers are frozen, so they would"
            " stay random: leave it out"
        )
    return FinetuneJob(cfg, hardware, folder, module, data, inputs)


def open_inputs(
    cfg: FinetuneConfig, hardware: Hardware, folder: Path, *, with_test_files: bool
) -> tuple[FinetuningDataModule, dict[str, str]]:
    """The task's data module, and fingerprints of all that is read; no weights are looked at."""
    fingerprint = encoder_fingerprint(folder)
    data = build_data(cfg, folder, fingerprint, hardware)
    inputs = {
        "encoder": fingerprint,
        "task_files": data.source_fingerprint,
        "task_data": data.fingerprint,
    }
    if with_test_files:
        inputs["test_data"] = data.require_test_files()
    inputs |= factory.adapter_inputs(cfg.adaptation, fingerprint)
    return data, inputs


def is_complete_without_weights(cfg: FinetuneConfig, composed: Composed) -> bool:
    """Whether the folder holds this run, complete, and its encoder came without its weights.

    A pack leaves them out. ValueError where the run has read other data than is here now.
    """
    record = read_record(Path(cfg.run_dir))
    if record is None or not record.is_complete or composed.get("reuse") == "never":
        return False
    hardware, folder = factory.require_machine_and_encoder(cfg)
    if any((folder / name).is_file() for name in WEIGHTS):
        return False
    _, inputs = open_inputs(cfg, hardware, folder, with_test_files=cfg.predict_test)
    with Run.claim(cfg.run_dir, stage="finetune", config=composed, inputs=inputs) as run:
        require_whole(run, composed)
    return True


def check_finetuning(cfg: FinetuneConfig) -> None:
    """Refuse what can be wrong with a fine-tuning without encoder or data."""
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
    check_targets({"task": vars(cfg.task)})
    # What a task can do is known to its parts, before a file is read.
    unit, target = build_parts(vars(cfg.task))
    unit.check_target(target)
    check_head(cfg.head, unit)
    check_metric(cfg.task.metric, metrics_of(target, extra_splits(cfg)))
    num_mined = cfg.task.data.get("mined_negatives")
    adapter = dict(cfg.adaptation or {}).get("adapter")
    if num_mined and adapter is not None:
        raise ValueError(
            f"task.data.mined_negatives={num_mined} are mined by encoder=, which lacks"
            f" adaptation.adapter={adapter}: merge them (clozelab export {adapter} to=MERGED) and"
            " begin with encoder=MERGED"
        )
    factory.check_optimizer(cfg, 1)


def check_adaptation(cfg: FinetuneConfig, config: EncoderConfig) -> None:
    """Refuse what an encoder of this shape cannot have, before a text is read."""
    with torch.device("meta"):
        encoder = Encoder(config)
        factory.adaptation(vars(cfg), encoder)()
    fresh = nn.ModuleList(encoder.layers()[config.num_hidden_layers - cfg.reinitialise_layers :])
    if not all(weight.requires_grad for weight in fresh.parameters()):
        raise ValueError(
            "reinitialise_layers= gives layers fresh weights, which adaptation= or freeze= would"
            " leave untrained: leave one of them out"
        )


def extra_splits(cfg: FinetuneConfig) -> Sequence[str]:
    """The names of a task's further validation splits."""
    return list(cfg.task.data.get("extra_validation_files") or ())


def refuse_partial_scores(cfg: FinetuneConfig, total_steps: int) -> None:
    """ValueError for a training that ends with a score of a part of the examples."""
    if {"overfit_batches", "limit_val_batches"}.isdisjoint(cfg.trainer.lightning):
        return
    # A training that stops on its way scores nothing yet.
    if (cfg.stop_after_step or total_steps) >= total_steps:
        raise ValueError(
            "overfit_batches and limit_val_batches leave examples out, which gives no score: end"
            f" the training before, with stop_after_step= below its {total_steps} steps"
        )


def log_recipe(cfg: FinetuneConfig, folder: Path, total_steps: int) -> None:
    """Log how the encoder is trained, and why a given encoder does not take the scale's recipe."""
    log.info(
        "learning rate %g, %d steps (epochs=%g of batches of %d)",
        cfg.learning_rate,
        total_steps,
        cfg.epochs,
        cfg.global_batch_size,
    )
    if cfg.adaptation is not None:
        warn_of_learning_rate(cfg)
    if not is_given(folder, cfg.scale.name):
        return
    # The recipe of a scale was made for the encoders that are pre-trained at that scale.
    of_scale = []
    for key in ("learning_rate", "epochs", "global_batch_size"):
        value = getattr(cfg.scale.finetune, key)
        if value not in (None, getattr(cfg, key)):
            of_scale.append(f"{key}={value:g}")
    scale = scale_of_encoder(folder)
    if scale != GIVEN:
        log.warning(
            "%s was pre-trained at scale=%s: say that for its learning rate and epochs",
            folder,
            scale,
        )
    elif of_scale:
        log.info(
            "%s is a given encoder: %s of scale=%s is for encoders that it pre-trains",
            public_name(folder) or folder,
            " ".join(of_scale),
            cfg.scale.name,
        )
    if total_steps < FEW_STEPS and cfg.learning_rate <= SMALL_LEARNING_RATE:
        log.warning(
            "%d steps are few at learning rate %g: epochs=%d takes %d",
            total_steps,
            cfg.learning_rate,
            math.ceil(cfg.epochs * FEW_STEPS / total_steps),
            FEW_STEPS,
        )


def warn_of_learning_rate(cfg: FinetuneConfig) -> None:
    """Warn of a learning rate that is far from those of the adaptation's paper."""
    rates = build("adaptation", cfg.adaptation).learning_rates
    if rates is not None and not rates[0] / 2 <= cfg.learning_rate <= rates[1] * 2:
        log.warning(
            "learning_rate=%g is for training all weights; this adaptation usually takes %g to %g",
            cfg.learning_rate,
            *rates,
        )


def describe_task(job: FinetuneJob, composed: Composed) -> PlainDict:
    """What scores.json keeps about the task.

    A task that gets a new name on the command line does not keep the title of its file.
    """
    task = job.cfg.task
    title = task.title
    given = values_of(composed.origin.overrides) if composed.origin else {}
    if "task.name" in given and "task.title" not in given:
        title = task.name
    if composed.origin and composed.origin.choices.get("task") == OWN_TASK:
        label_kind = "number" if task.data["numeric_labels"] else "class"
        log.info(
            "%s: text is read from %s, and %s holds the label, a %s",
            title,
            " and ".join(task.data["text_columns"]),
            task.data["label_column"],
            label_kind,
        )
    return {
        "name": task.name,
        "title": title,
        "stand_in_for": task.stand_in_for,
        "synthetic": job.data.synthetic,
        "baselines": job.data.baselines,
    }


def claim_run(job: FinetuneJob, composed: Composed) -> Run:
    """Take the run's folder for this fine-tuning."""
    task = job.cfg.task
    target = job.data.target
    scores = {}
    for metric in metrics_of(target, extra_splits(job.cfg)):
        scores[metric.key] = Score.of(metric, target.positive_label)
    return Run.claim(
        job.cfg.run_dir,
        stage="finetune",
        config=composed,
        inputs=job.inputs,
        scores=scores,
        metric=task.metric,
    )


def require_whole(run: Run, composed: Composed) -> None:
    """ValueError for a complete run that lacks its scores, or what is kept or needed here."""
    if not (run.dir / "scores.json").is_file():
        raise ValueError(
            f"{run.dir} is complete and has no scores.json; remove the folder to run it again"
        )
    require_kept(composed, run.content)


# Name -> (sequences, split), as a data module's `load_test` gives them.
TestSplits = Mapping[str, tuple[Sequences, Split]]


def train(
    job: FinetuneJob,
    run: Run,
    description: PlainMapping,
    test_splits: TestSplits,
) -> None:
    """Train from the newest checkpoint to the end, write what comes of it, complete the run."""
    cfg = job.cfg
    data = job.data
    # Batches have as many tokens as their examples: one compiled graph for all sizes.
    module = job.module
    if job.hardware.compile == "true":
        compile_encoder(module.encoder, dynamic=True)
    begun_with = factory.encoder_facts(job.encoder_folder, module.encoder.config)
    factory.record_begin(
        run,
        job.hardware,
        total_steps=data.total_steps,
        cache=used_folders(),
        encoder=begun_with,
    )
    callbacks = factory.build_callbacks(cfg, run, CHECKPOINT_INTERVAL_STEPS, CHECKPOINT_SECONDS)
    loggers = factory.build_loggers(cfg, run, arm=cfg.row)
    with tracked(loggers):
        trainer = factory.make_trainer(
            cfg,
            job.hardware,
            data.total_steps,
            validation_interval_steps=None,  # the end of each stretch that the data module gives
            callbacks=callbacks,
            loggers=loggers,
            folder=run.dir,
        )
        trainer.fit(module, datamodule=data, ckpt_path=newest_intact(run.dir / "checkpoints"))
        # What comes of it is written while the trackers are still open.
        results: JsonObject = {}
        if run.is_leader:
            results = write_results(run.dir, module, description)
            summarise(loggers, {**results["scores"], "best_step": results["best_step"]})
        # Every rank predicts, and the leader writes.
        if test_splits:
            module.restore_best()
            out = run.dir / "test_predictions"
            predict_splits(module, trainer, data, test_splits, out, writes=run.is_leader)
        if run.is_leader:
            finish(job, run, module, results)


def predict_splits(
    module: FineTuning,
    trainer: Trainer,
    data: FinetuningDataModule,
    splits: TestSplits,
    folder: Path,
    *,
    writes: bool = True,
) -> list[Path]:
    """Predict each test split, and write its files into a folder if this process `writes`.

    Returns the files. `splits`: name -> (sequences, split) of `load_test`.
    """
    written = []
    for name, (sequences, split) in splits.items():
        batches: Any = trainer.predict(module, dataloaders=data.evaluation_loader(sequences))
        if writes:
            files = module.prediction_files(name, split, batches)
            write_test_predictions(folder, files)
            written += [folder / file_name for file_name in files]
    return written


def write_adapter(job: FinetuneJob, run: Run, module: FineTuning, config: PlainMapping) -> None:
    """Write what was added to the encoder, if anything was; `config` is the model's config.json."""
    token_types = "one"
    if job.data.inputs.tokenizer.has_token_types:
        token_types = "two"
    of_task = {key: config[key] for key in CONFIG_OF_TASK if key in config}
    save_adapter(
        run.dir / "adapter",
        module.encoder,
        module.heads(),
        str(job.encoder_folder),
        base_fingerprint=run.content.inputs["encoder"],
        config=of_task,
        token_types=token_types,
    )


def finish(job: FinetuneJob, run: Run, module: FineTuning, results: PlainMapping) -> None:
    """Write the model's folder if it is to be kept, complete the record, drop the checkpoints."""
    facts = {key: results[key] for key in RESULTS_IN_RECORD}
    kept = []
    if job.cfg.keep_model:
        kept.append("model")
        folder = run.dir / "model"
        save_model(
            folder, module, job.encoder_folder, job.data.inputs.tokenizer, **model_facts(job)
        )
        facts["model"] = encoder_fingerprint(folder)  # its checksums, as one
        # Updates of random weights are none of the folder's.
        if job.cfg.initialisation == "pretrained":
            write_adapter(job, run, module, dict(read_config_dict(folder)))
    run.complete(
        results,
        data=job.data.facts,
        next_command=module.target.next_command,
        num_evaluations=len(module.history),
        kept=kept,
        **facts,
        **module.facts(),
    )
    # Only now: until the record says complete, the run goes on from them.
    shutil.rmtree(run.dir / "checkpoints", ignore_errors=True)


def model_facts(job: FinetuneJob) -> PlainDict:
    """What a model's config.json keeps about its fine-tuning."""
    facts = {"task": job.cfg.task.name, "head": job.cfg.head, **job.data.config_to_save()}
    if "document_context" in facts:
        facts["has_documents"] = job.data.train.counts["has_documents"]
    # An evaluation on the same file is of the rows that were not trained on.
    if job.data.held_out is not None:
        facts["held_out"] = job.data.held_out_settings
    if isinstance(job.data.held_out, Fold):
        facts["validation_fold"] = job.data.held_out.number
    return facts


def training_objects(cfg: FinetuneConfig) -> tuple[FineTuning, FinetuningDataModule, Trainer]:
    """Module, data and Trainer, for a training from Python; no run folder is claimed."""
    job = prepare(cfg)
    if job.hardware.compile == "true":
        compile_encoder(job.module.encoder, dynamic=True)
    trainer = factory.standalone_trainer(cfg, job.hardware, job.data.total_steps, None)
    return job.module, job.data, trainer


def build_data(
    cfg: FinetuneConfig, folder: Path, fingerprint: str, hardware: Hardware
) -> FinetuningDataModule:
    """The task's data module for the encoder in a folder; it has looked for its files."""
    # Fresh weights stand for another pre-training seed: fine-tuning seeds share them, and the
    # features made with them, as they share an encoder.
    weights_name = fingerprint
    if cfg.initialisation != "pretrained":
        weights_name = f"{cfg.initialisation}-{cfg.pretrain_seed}-{fingerprint}"
    load = partial(load_encoder, folder, initialisation=cfg.initialisation, seed=cfg.pretrain_seed)
    task = vars(cfg.task)
    source = EncoderSource(weights_name, load, hardware.device)
    inputs = task_data.task_inputs(cfg, cfg.task.name, task, folder)
    inputs = replace(inputs, encoder=source, seed=sampling_seed(cfg))
    # The hub's copies lie in the cache, laid out as the task's own files.
    if cfg.hub:
        data_dir = hub_files(HubSource.from_task(task), inputs.cache_dir)
        inputs = replace(inputs, data_dir=data_dir)
    plan = TrainingPlan(
        global_batch_size=cfg.global_batch_size,
        epochs=cfg.epochs,
        evaluations_per_epoch=cfg.evaluations_per_epoch,
        max_train_examples=cfg.max_train_examples,
        seed=draw_seed(cfg),
        num_workers=cfg.trainer.num_workers,
        sample_seed=sampling_seed(cfg) if cfg.sample_by_seed else None,
    )
    task = task | {"module": with_pooling(cfg.task.module, folder)}
    return task_data.build_task_data(task, inputs, plan, hub=cfg.hub)


def sampling_seed(cfg: FinetuneConfig) -> int:
    """Seed of which examples this run reads: of a few-shot draw, and of its fold.

    Where each pre-training seed has one fine-tuning, its own seed would give all the same ones.
    """
    if cfg.sampling_seed == "pretrain_seed":
        return cfg.pretrain_seed
    return cfg.seed


def draw_seed(cfg: FinetuneConfig) -> int:
    """Seed of what this run draws: head weights, order of examples, dropout.

    It is made from both seeds of the run, so that fine-tuning seeds are nested in pre-training
    seeds. Drawn alike for every encoder, their effect would be missing from the spread between
    encoders (docs/decisions/0013). Rows of a table are paired: with the same two seeds they draw
    the same.
    """
    return derive_seed(cfg.pretrain_seed, f"fine-tuning {cfg.seed}")


def build_module(
    cfg: FinetuneConfig,
    encoder: Encoder,
    data: FinetuningDataModule,
    given_heads: Mapping[str, nn.Module],
) -> FineTuning:
    """The task's module on the encoder; head weights and dropout are functions of the seeds."""
    seed = draw_seed(cfg)
    seed_initialisation(seed)
    arguments = task_data.task_module_arguments(vars(cfg.task), data)
    arguments |= factory.optimization(cfg, data.total_steps, seed)
    return build_with_hparams(
        FineTuning,
        factory.adaptation(vars(cfg), encoder),
        encoder=encoder,
        head=cfg.head,
        given_heads=given_heads,
        # Both write what the best weights give, after others have been trained.
        keep_best_weights=cfg.keep_model or cfg.predict_test,
        **arguments,
    )
