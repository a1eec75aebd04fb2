"""Builds the objects of a stage from its composed configuration.

What a configuration may not say is refused before, in `preconditions.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import fields
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf

from clozelab.corpus.generated import known_loss
from clozelab.corpus.packing import Masking, SpecialIds
from clozelab.corpus.shards import PreparedCorpus, unigram_loss
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.corpus import CorpusDataModule
from clozelab.datamodules.finetuning import FinetuningDataModule, TaskInputs, TrainingPlan
from clozelab.launch.sweep import compose, hydra_config, phase_objectives
from clozelab.models import folders
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder
from clozelab.models.locate import CONFIG_FILE
from clozelab.modules.base import build_with_hparams
from clozelab.modules.model import open_tokenizer
from clozelab.modules.pretraining import PretrainingModel, PretrainingModule
from clozelab.objectives.objective import EncoderWithHeads, Objective
from clozelab.report.tracked import tracked_job
from clozelab.runs.record import Record
from clozelab.runs.store import Run
from clozelab.targets import build, check_targets
from clozelab.training.background import BackgroundLogger
from clozelab.training.callbacks import PositionGrowth, growth_steps
from clozelab.training.checkpoints import LAST, seed_initialisation
from clozelab.training.jobs import TrackedJob
from clozelab.training.runtime import matmul_ceiling
from clozelab.training.tracking import MetricsCsv, TensorBoardTracker, WandbTracker
from clozelab.training.trainer import Hardware, build_trainer, choose_hardware, stage_callbacks

log = logging.getLogger(__name__)
PLAN_KEYS = ("global_batch_size", "epochs", "evaluations_per_epoch", "max_train_examples")


def hardware_of(trainer: DictConfig) -> Hardware:
    """Resolve what `cfg.trainer` asks for.

    ValueError says what this machine lacks.
    """
    keys = [field.name for field in fields(Hardware)]
    # These two are settings of the process rather than of a Trainer.
    keys += ["threads", "tf32"]
    return choose_hardware(**{key: trainer[key] for key in keys})


@contextmanager
def recompose_config(record: Record, overrides: Sequence[str] = ()) -> Iterator[DictConfig]:
    """Compose a run's configuration from its command line and further `overrides`.

    The block runs in the folder that the run was started in, for paths may be relative to it.
    """
    if not record.config_name:
        raise ValueError(f"{record.folder} was not made by a command line")
    with chdir(record.started_in or "."):
        # An experiment's own folder, where its command line named one.
        folder = None
        if record.config_dir:
            folder = Path(record.config_dir)
        composed = compose(record.config_name, [*record.overrides, *overrides], folder=folder)
        with hydra_config(composed) as cfg:
            check_targets(cfg)
            yield cfg


# Trackers, callbacks, Trainer


def build_loggers(cfg: DictConfig, run: Run, *, arm: str, name: str) -> list[Logger]:
    """Build metrics.csv's logger and the chosen trackers.

    `name` is the run's name inside the experiment.
    """
    loggers: list[Logger] = [MetricsCsv(run.dir)]
    if not cfg.logger:
        return loggers
    job = tracked_job(cfg, run, arm=arm, name=name)
    for label, tracker in build_trackers(cfg, job).items():
        logger = BackgroundLogger(tracker, label, run.dir)
        # W&B has the configuration from the job, and TensorBoard never gets it.
        if not isinstance(tracker, WandbTracker | TensorBoardTracker):
            logger.log_hyperparams(dict(job.config))
        loggers.append(logger)
    return loggers


def build_trackers(cfg: DictConfig, job: TrackedJob) -> dict[str, Logger]:
    """Build the chosen trackers, by their names in `logger`.

    Ours wait to be told of the job; Lightning's are whole already.
    """
    trackers = {}
    for label, tracker in build("logger", cfg.logger or {}).items():
        if not tracker:
            continue
        if not isinstance(tracker, Logger):
            tracker = tracker(job=job)
        trackers[str(label)] = tracker
    return trackers


def build_callbacks(
    cfg: DictConfig,
    run: Run,
    interval_steps: int,
    min_seconds: float = 0.0,
    before_checkpoint: Sequence[Callback] = (),
) -> list[Callback]:
    """Build the callbacks of a training, in the order they need.

    Checkpoints lie at least `interval_steps` and `min_seconds` apart. `before_checkpoint` finds a
    step's averages made, and the step not yet saved.
    """
    of_stage = stage_callbacks(
        run.dir / "checkpoints" / LAST,
        interval_steps,
        min_seconds,
        fingerprint=run.fingerprint,
        watch=run.watch,
        progress_bar=cfg.trainer.progress_bar,
        stop_after_step=cfg.stop_after_step,
    )
    return [*configured_callbacks(cfg), *before_checkpoint, *of_stage]


def configured_callbacks(cfg: DictConfig) -> list[Callback]:
    """Build what the group `callbacks` chooses."""
    callbacks = build("callbacks", cfg.callbacks or {}).values()
    return [callback for callback in callbacks if callback]


def make_trainer(
    cfg: DictConfig,
    hardware: Hardware,
    total_steps: int,
    validation_interval_steps: int | None,
    *,
    callbacks: Sequence[Callback],
    loggers: Sequence[Logger],
    folder: Path,
) -> Trainer:
    """A Trainer that follows the plan, with what `trainer.lightning` says.

    It validates every `validation_interval_steps`, or (None) at the end of each short epoch.
    """
    # The data modules are asked for the next stretch, also where a run goes back.
    options: dict[str, Any] = {"reload_dataloaders_every_n_epochs": 1}
    if not validation_interval_steps:
        options["limit_val_batches"] = 1.0
    options |= build("trainer.lightning", cfg.trainer.lightning)
    return build_trainer(
        hardware,
        max_steps=total_steps,
        validation_interval_steps=validation_interval_steps,
        callbacks=callbacks,
        loggers=loggers,
        folder=folder,
        log_interval_steps=cfg.trainer.log_interval_steps,
        **options,
    )


def optimization(cfg: DictConfig, total_steps: int, seed: int) -> dict[str, Any]:
    """The arguments that all training modules share."""
    return {
        "optimizer_factory": build("optimizer", cfg.optimizer),
        "schedule_factory": build("schedule", cfg.schedule),
        "total_steps": total_steps,
        "gradient_clip_norm": cfg.gradient_clip_norm,
        "seed": seed,
        "log_interval_steps": cfg.trainer.log_interval_steps,
    }


# Fine-tuning


def build_task_data(
    settings: Mapping[str, Any], inputs: TaskInputs, *, seed: int = 0, num_workers: int = 0
) -> FinetuningDataModule:
    """Build the task's data module; it has looked for its files, and read nothing yet."""
    lengths = {key: settings[key] for key in PLAN_KEYS}
    plan = TrainingPlan(**lengths, seed=seed, num_workers=num_workers)
    task = settings["task"]
    further = {}
    # An evaluation has no `hub`, so it is not advised there.
    if settings.get("hub") is False and task["hub"]:
        further["how_to_get"] = f"{task['data']['how_to_get']}; or say hub=true"
    return build("task.data", task["data"])(inputs=inputs, plan=plan, **further)


# Pre-training


def build_pretraining_module(
    cfg: DictConfig,
    hardware: Hardware,
    corpus: PreparedCorpus,
    objectives: Sequence[Objective],
    total_steps: int,
) -> PretrainingModule:
    """Build the module that trains an encoder with its heads.

    The encoder is a fresh one of the configured shape and the corpus's vocabulary, or a given one.
    """
    # Fresh weights, also those of the heads, are a function of the seed alone.
    seed_initialisation(cfg.seed)
    if cfg.encoder is None:
        plain: Any = OmegaConf.to_container(cfg, resolve=True)
        encoder = Encoder(encoder_config(plain, SpecialIds.of(corpus.tokenizer), objectives[-1]))
    else:
        encoder = folders.load_encoder(cfg.encoder, seed=cfg.seed)
    module: PretrainingModule = build_with_hparams(
        PretrainingModule,
        encoder=encoder,
        objectives=objectives,
        **optimization(cfg, total_steps, cfg.seed),
        matmul_ceiling=matmul_ceiling(hardware.precision, hardware.device),
        spike=cfg.spike,
    )
    for trained in module.model.encoders:
        trained.gradient_checkpointing = cfg.trainer.gradient_checkpointing
    growth = {}
    if cfg.position_growth == "tile":
        growth = growth_steps(cfg.phases)
    # The module brings this callback itself, for a Trainer of somebody's own needs it too.
    callbacks = [PositionGrowth(growth)]
    module.configure_callbacks = partial(list, callbacks)  # type: ignore[method-assign]
    if cfg.encoder is not None:
        _load_given_heads(module.model, Path(cfg.encoder))
    return module


def build_objectives(plain: Mapping[str, Any]) -> list[Objective]:
    """Build one objective a phase; phases of equal settings share one."""
    nodes = phase_objectives(plain)
    built = [Objective(**build("objective", node)) for node in nodes]
    # `index` finds the first of several equal nodes.
    return [built[nodes.index(node)] for node in nodes]


def encoder_config(
    plain: Mapping[str, Any], ids: SpecialIds, objective: Objective
) -> EncoderConfig:
    """The shape of a fresh encoder, from a run's plain configuration."""
    return EncoderConfig(
        **plain["model"],
        **plain["architecture"],
        vocab_size=ids.vocab_size,
        pad_token_id=ids.pad,
        is_causal=objective.is_causal,
    )


def encoder_tokenizer(
    cfg: DictConfig, corpus: PreparedCorpus, objectives: Sequence[Objective]
) -> Tokenizer:
    """The tokenizer that the encoder's folder gets.

    It has no token type 1 where neither this run nor that of a given encoder has trained it: then
    fine-tuning gives both texts of a pair the trained one, here and in transformers.
    """
    if any(objective.input.num_segments > 1 for objective in objectives):
        return corpus.tokenizer
    if cfg.encoder is not None and open_tokenizer(cfg.encoder).has_token_types:
        return corpus.tokenizer
    return corpus.tokenizer.with_token_types("one")


def _load_given_heads(model: PretrainingModel, folder: Path) -> None:
    """Load the heads that a given encoder's folder has.

    A further model (generator) and its heads come from the folder of its name beside it.
    """
    for name, with_heads in model.named_models.items():
        if name == "encoder":
            _load_heads(with_heads, folder, name)
            continue
        if not with_heads.is_trained:
            continue
        beside = folder.with_name(name)
        if (beside / CONFIG_FILE).is_file():
            with_heads.encoder.load_state_dict(folders.load_encoder(beside).state_dict())
        _load_heads(with_heads, beside, name)


def _load_heads(model: EncoderWithHeads, folder: Path, model_name: str) -> None:
    # A further model's folder may be missing: an encoder alone is a valid beginning.
    stored: Collection[str] = ()
    if (folder / CONFIG_FILE).is_file():
        stored = folders.read_tensors(folder)
    for head_name, head in model.heads.items():
        if folders.has_head(model.encoder.config.family, head_name, head, stored):
            folders.load_head(folder, head_name, head)
            continue
        log.info(
            "%s has no %s head of the %s: it starts from fresh weights",
            folder,
            head_name,
            model_name,
        )


# What a pre-training's record and folders say of it


def corpus_facts(
    cfg: DictConfig, corpus: PreparedCorpus, objective: Objective, data: CorpusDataModule
) -> dict[str, Any]:
    """Losses on the held-out text that the report compares the trained model's with.

    `unigram_loss` is what the training text's frequencies alone give there. A generated text has
    `known_loss` too, the best that any model can do.
    """
    labels = data.held_out_labels()
    facts: dict[str, Any] = {"unigram_loss": unigram_loss(corpus.train, labels)}
    if not cfg.corpus.generator:
        return facts
    # (share of tokens that are predicted, share of these that stay as they are)
    masking_shares = None
    if isinstance(objective.token, Masking):
        masking = objective.token
        # Of tokens masked in spans the best loss is not known.
        if len(masking.span_weights) > 1:
            return facts
        predicted = min(masking.predict_prob, masking.max_predictions_fraction)
        masking_shares = (predicted, masking.same_fraction)
    elif not objective.is_causal:
        return facts
    best = known_loss(
        cfg.data_dir,
        corpus.tokenizer,
        labels,
        seq_length=data.validation_seq_length,
        masking=masking_shares,
    )
    if best:
        facts["known_loss"] = best
    return facts


def encoder_provenance(
    plain: dict[str, Any], record: Record, corpus: PreparedCorpus, *, step: int | None = None
) -> dict[str, Any]:
    """What an encoder folder remembers of its making, without secrets, for it is given away.

    `step` is the one after which it was kept (None: the last). It has seen no longer sequences than
    until then.
    """
    phases = plain["phases"]
    # Phases of 900, 50 and 50 steps begin after steps 0, 900 and 950.
    first_steps = accumulate((phase["steps"] for phase in phases[:-1]), initial=0)
    seq_lengths = set()
    if plain["encoder"]:
        given = folders.read_config_dict(plain["encoder"]).get("clozelab", {})
        seq_lengths.update(given.get("trained_seq_lengths", ()))
    for phase, first_step in zip(phases, first_steps, strict=True):
        if step is None or first_step < step:
            seq_lengths.add(phase["seq_length"])
    provenance: dict[str, Any] = {}
    if step is not None:
        provenance["step"] = step
    for key in ("experiment", "arm", "seed", "objective", "phases"):
        provenance[key] = record.config[key]
    return provenance | {
        "run_fingerprint": record.fingerprint,
        "corpus_fingerprint": corpus.fingerprint,
        "tokenizer_fingerprint": corpus.tokenizer.fingerprint,
        "trained_seq_lengths": sorted(seq_lengths),
    }
