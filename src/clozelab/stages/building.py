"""From a composed configuration to the objects of a stage.

What a stage refuses before anything slow, and before it claims a run folder for a wrong value.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import fields
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf
from torch import nn

from clozelab.config import check_config, kept_step, total_steps
from clozelab.corpus.generated import known_loss
from clozelab.corpus.packing import Masking, SpecialIds
from clozelab.corpus.shards import PreparedCorpus, unigram_loss
from clozelab.corpus.tokenizers import TOKENIZER_FILE, Tokenizer
from clozelab.datamodules.corpus import CorpusDataModule
from clozelab.datamodules.finetuning import FinetuningDataModule, TaskInputs, TrainingPlan
from clozelab.launch.sweep import compose, hydra_config, phase_objectives
from clozelab.models import folders
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder
from clozelab.modules.base import build_with_hparams
from clozelab.modules.finetuning import check_metric
from clozelab.modules.model import open_tokenizer
from clozelab.modules.pretraining import PretrainingModel, PretrainingModule, check_lengths
from clozelab.objectives.objective import Objective
from clozelab.report.tracked import tracked_job
from clozelab.runs.fingerprint import encoder_fingerprint, require_encoder
from clozelab.runs.record import Record
from clozelab.runs.store import Run
from clozelab.suggestions import hint
from clozelab.targets import build, check_targets, locate
from clozelab.training.background import BackgroundLogger
from clozelab.training.callbacks import PositionGrowth, check_position_growth, growth_steps
from clozelab.training.checkpoints import LAST, seed_initialisation
from clozelab.training.runtime import matmul_ceiling
from clozelab.training.tracking import MetricsCsv, TensorBoardTracker, TrackedJob, WandbTracker
from clozelab.training.trainer import Hardware, build_trainer, choose_hardware, stage_callbacks

log = logging.getLogger(__name__)
LIGHTNINGS = (
    "profiler",
    "detect_anomaly",
    "benchmark",
    "overfit_batches",
    "limit_train_batches",
    "limit_val_batches",
)
"""Of Lightning's Trainer what `trainer.lightning` may say: all else is the plan's, the run's, or
another key's.
"""
PLAN_KEYS = ("global_batch_size", "epochs", "evaluations_per_epoch", "max_train_examples")


def hardware_of(trainer: DictConfig) -> Hardware:
    """What `cfg.trainer` asks for, resolved and checked; ValueError says what this machine
    lacks.
    """
    keys = (*(one.name for one in fields(Hardware)), "threads", "tf32")
    return choose_hardware(**{key: trainer[key] for key in keys})


def begin(cfg: DictConfig, check: Callable[[DictConfig], None]) -> tuple[Hardware, Path]:
    """What is looked at before any data: settings (`check`), trackers, this machine, the encoder's
    folder.
    """
    check_targets(cfg)
    check(cfg)
    check_trackers(cfg)
    hardware, folder = hardware_of(cfg.trainer), require_encoder(cfg.encoder)
    check_fraction(folder, cfg.encoder_fraction)
    return hardware, folder


@contextmanager
def said_again(record: Record, more: Sequence[str] = ()) -> Iterator[DictConfig]:
    """The configuration that a run's command line composes, with `more` overrides, in the folder it
    was said in."""
    if not record.config_name:
        raise ValueError(f"{record.folder} was not made by a command line")
    with chdir(record.started_in or "."):  # paths may be relative
        folder = Path(record.config_dir) if record.config_dir else None
        with hydra_config(
            compose(record.config_name, [*record.overrides, *more], folder=folder),
        ) as cfg:
            check_targets(cfg)
            yield cfg


def check_trackers(cfg: DictConfig) -> None:
    """ValueError for a tracker or a callback whose package is missing, and for settings of theirs
    that are wrong.
    """
    build_trackers(
        cfg,
        TrackedJob(folder=Path(), run_id="", experiment="", arm="", stage="", name=""),
    )
    if "callbacks" in cfg:
        chosen_callbacks(cfg)
    if wrong := next((key for key in cfg.trainer.lightning if key not in LIGHTNINGS), None):
        raise ValueError(
            f"trainer.lightning.{wrong}: no such argument is open here;"
            f" {hint(str(wrong), LIGHTNINGS)}"
        )


def build_loggers(cfg: DictConfig, run: Run, *, arm: str, name: str) -> list[Logger]:
    """metrics.csv always, and the trackers that are chosen; `name` is the run's name inside the
    experiment.
    """
    loggers: list[Logger] = [MetricsCsv(run.dir)]
    if not cfg.logger:
        return loggers
    job = tracked_job(cfg, run, arm=arm, name=name)
    for label, tracker in build_trackers(cfg, job).items():
        logger = BackgroundLogger(tracker, label, run.dir)
        if not isinstance(
            tracker,
            WandbTracker | TensorBoardTracker,
        ):  # W&B has it from the job, TensorBoard never
            logger.log_hyperparams(dict(job.config))
        loggers.append(logger)
    return loggers


def build_trackers(cfg: DictConfig, job: TrackedJob) -> dict[str, Logger]:
    """The chosen trackers by their names in `logger`. Ours are told of the job; Lightning's are
    whole already."""
    trackers = {}
    for label, made in build("logger", cfg.logger or {}).items():
        if made:
            if isinstance(made, Logger):
                trackers[str(label)] = made
            else:
                trackers[str(label)] = made(job=job)
    return trackers


def callbacks_of(
    cfg: DictConfig, run: Run, interval_steps: int, least_seconds: float = 0.0, *before: Callback
) -> list[Callback]:
    """Of a training; it is saved at least so many steps, and so many seconds, apart. `before` that,
    what is to find a step's averages made."""
    how: Any = {"progress_bar": cfg.trainer.progress_bar, "stop_after_step": cfg.stop_after_step}
    last = run.dir / "checkpoints" / LAST
    own = stage_callbacks(
        last, interval_steps, least_seconds, fingerprint=run.fingerprint, watch=run.watch, **how
    )
    return [*chosen_callbacks(cfg), *before, *own]


def chosen_callbacks(cfg: DictConfig) -> list[Callback]:
    """What the group `callbacks` chooses."""
    return [one for one in build("callbacks", cfg.callbacks or {}).values() if one]


def make_trainer(
    cfg: DictConfig, hardware: Hardware, total_steps: int, interval_steps: int | None, **rest: Any
) -> Trainer:
    """One that follows the plan, with what `trainer.lightning` says; `rest`: callbacks, loggers,
    folder.

    It validates every `interval_steps`, or at the end of each (short) epoch."""
    said = build("trainer.lightning", cfg.trainer.lightning)
    # The data modules are asked for the next stretch, also where a run goes back.
    ours = {"reload_dataloaders_every_n_epochs": 1} | (
        {} if interval_steps else {"limit_val_batches": 1.0}
    )
    steps = {"max_steps": total_steps, "log_interval_steps": cfg.trainer.log_interval_steps}
    return build_trainer(
        hardware, validation_interval_steps=interval_steps, **steps, **rest, **(ours | said)
    )


def build_task_data(
    settings: Mapping[str, Any], inputs: TaskInputs, *, seed: int = 0, num_workers: int = 0
) -> FinetuningDataModule:
    """The task's data module; it has looked for its files, and read nothing yet."""
    plan = TrainingPlan(
        **{key: settings[key] for key in PLAN_KEYS}, seed=seed, num_workers=num_workers
    )
    task, more = settings["task"], {}
    if settings.get("hub") is False and task["hub"]:
        more["how_to_get"] = f"{task['data']['how_to_get']}; or say hub=true"
    return build("task.data", task["data"])(inputs=inputs, plan=plan, **more)


def build_pretraining_module(
    cfg: DictConfig,
    hardware: Hardware,
    corpus: PreparedCorpus,
    objectives: Sequence[Objective],
    total_steps: int,
) -> PretrainingModule:
    """A fresh encoder of the configured shape and the corpus's vocabulary, or a given one, with its
    heads.
    """
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
        optimizer_factory=build("optimizer", cfg.optimizer),
        schedule_factory=build("schedule", cfg.schedule),
        total_steps=total_steps,
        gradient_clip_norm=cfg.gradient_clip_norm,
        seed=cfg.seed,
        log_interval_steps=cfg.trainer.log_interval_steps,
        matmul_ceiling=matmul_ceiling(hardware.precision, hardware.device),
        spike=cfg.spike,
    )
    for one in module.model.encoders:
        one.gradient_checkpointing = cfg.trainer.gradient_checkpointing
    growth = growth_steps(cfg.phases) if cfg.position_growth == "tile" else {}
    # Under a Trainer of somebody's own, too.
    module.configure_callbacks = partial(list, [PositionGrowth(growth)])  # type: ignore[method-assign]
    if cfg.encoder is not None:
        _take_heads(module.model, Path(cfg.encoder))
    return module


def build_objectives(plain: Mapping[str, Any]) -> list[Objective]:
    """One a phase; those of equal settings are the same."""
    nodes = phase_objectives(plain)
    built = [Objective(**build("objective", node)) for node in nodes]
    return [built[nodes.index(node)] for node in nodes]


def encoder_config(
    plain: Mapping[str, Any], ids: SpecialIds, objective: Objective
) -> EncoderConfig:
    """Of a fresh encoder, from a run's plain configuration; a given one brings its own."""
    return EncoderConfig(
        **plain["model"],
        **plain["architecture"],
        vocab_size=ids.vocab_size,
        pad_token_id=ids.pad,
        is_causal=objective.is_causal,
    )


def require_own_vocabulary(cfg: DictConfig, corpus: PreparedCorpus) -> dict[str, str]:
    """What to record of a given encoder among the inputs; ValueError where it does not read the
    corpus's tokens.
    """
    if cfg.encoder is None:
        return {}
    folder = require_encoder(cfg.encoder)
    own, wanted = open_tokenizer(folder), corpus.tokenizer.fingerprint
    found = own.fingerprint
    if wanted not in (found, own.released):
        name = "vocab.txt"
        if (folder / TOKENIZER_FILE).is_file():
            name = TOKENIZER_FILE
        raise ValueError(
            f"encoder={folder} was trained with another vocabulary than the corpus is prepared with"
            f" (fingerprints {found[:12]} and {wanted[:12]}): its token ids mean other words;"
            f" prepare the corpus with the folder's own, tokenizer.vocab_file=FOLDER/{name}"
        )
    return {"encoder": encoder_fingerprint(folder)}


def encoder_tokenizer(
    cfg: DictConfig, corpus: PreparedCorpus, objectives: Sequence[Objective]
) -> Tokenizer:
    """What the encoder's folder gets: without token type 1 where neither this run nor a given
    encoder's has trained it, so that fine-tuning gives both texts of a pair the trained one, here
    and in transformers."""
    has_segments = any(objective.input.num_segments > 1 for objective in objectives)
    if has_segments or (cfg.encoder is not None and open_tokenizer(cfg.encoder).has_token_types):
        return corpus.tokenizer
    return corpus.tokenizer.with_token_types("one")


def _take_heads(model: PretrainingModel, folder: Path) -> None:
    """Fill the heads that a folder has; of further models, all that the folder of their name beside
    it has.
    """
    for name, part in model.named_models.items():
        place = folder if name == "encoder" else folder.with_name(name)
        stored: Collection[str] = ()
        if (place / folders.CONFIG_FILE).is_file():
            stored = folders.read_tensors(place)
            if name != "encoder":
                part.encoder.load_state_dict(folders.load_encoder(place).state_dict())
        for kind, head in part.heads.items():
            if folders.has_head(part.encoder.config.family, kind, head, stored):
                folders.load_head(place, kind, head)
            else:
                log.info(
                    "%s has no %s head of the %s: it starts from fresh weights", place, kind, name
                )


def corpus_facts(
    cfg: DictConfig, corpus: PreparedCorpus, objective: Objective, data: CorpusDataModule
) -> dict[str, Any]:
    """What the report has to know of the held-out text: what the training text's frequencies alone
    give there and, for a generated one, the best of all."""
    labels = data.held_out_labels()
    facts: dict[str, Any] = {"unigram_loss": unigram_loss(corpus.train, labels)}
    mask = objective.token if isinstance(objective.token, Masking) else None
    if not cfg.corpus.generator or (
        not objective.is_causal if mask is None else len(mask.span_weights) > 1
    ):
        return facts
    shares = (
        None
        if mask is None
        else (min(mask.predict_prob, mask.max_predictions_fraction), mask.same_fraction)
    )
    known = known_loss(
        cfg.data_dir,
        corpus.tokenizer,
        labels,
        seq_length=data.validation_seq_length,
        masking=shares,
    )
    return facts | ({"known_loss": known} if known else {})


def provenance(
    plain: dict[str, Any], record: Record, corpus: PreparedCorpus, *, step: int | None = None
) -> dict[str, Any]:
    """What an encoder folder remembers of its making, without secrets, for it is given away;
    `step`: after how many it was kept (None: the last). It has seen no longer rows than until
    then."""
    begins = accumulate((phase["steps"] for phase in plain["phases"][:-1]), initial=0)
    begun = [
        phase
        for phase, first in zip(plain["phases"], begins, strict=True)
        if step is None or first < step
    ]
    before = (
        folders.read_config_dict(plain["encoder"]).get("clozelab", {}) if plain["encoder"] else {}
    )
    return {
        **({} if step is None else {"step": step}),
        **{key: record.config[key] for key in ("experiment", "arm", "seed", "objective", "phases")},
        "run_fingerprint": record.fingerprint,
        "corpus_fingerprint": corpus.fingerprint,
        "tokenizer_fingerprint": corpus.tokenizer.fingerprint,
        "trained_seq_lengths": sorted(
            {phase["seq_length"] for phase in begun} | {*before.get("trained_seq_lengths", ())}
        ),
    }


def check_pretraining(cfg: DictConfig, plain: dict[str, Any], hardware: Hardware) -> None:
    """ValueError, naming the key, for all that can be wrong with a pre-training before its corpus
    is looked at.
    """
    check_config("pretrain", cfg)
    trainer, positions = cfg.trainer, cfg.model.max_position_embeddings
    if trainer.gradient_checkpointing and hardware.strategy == "fsdp":
        raise ValueError(
            "trainer.gradient_checkpointing=true does not work with trainer=fsdp yet: choose one of"
            " them"
        )
    if cfg.encoder is not None:
        positions = folders.read_config(require_encoder(cfg.encoder)).max_position_embeddings
        folders.refuse_untied(cfg.encoder)
    check_lengths(plain["phases"], plain["validation"], positions, hardware.world_size)
    check_position_growth(cfg.position_growth, plain["phases"], hardware.strategy)
    EncoderConfig(**plain["model"], **plain["architecture"], vocab_size=1)
    _check_optimizer(cfg, sum(phase["steps"] for phase in plain["phases"]))


def check_finetuning(cfg: DictConfig) -> None:
    """Everything about a fine-tuning that can be wrong without encoder or data; ValueError names
    the key.
    """
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
    module = locate(cfg.task.module["_target_"])
    module.check_head(cfg.head)
    module.check_settings(cfg.task.module)
    check_metric(cfg.task.metric, module.score_keys(cfg.task.module, cfg.task.data))
    _check_optimizer(cfg, 1)


def check_evaluation(cfg: DictConfig) -> None:
    """Everything about an evaluation that can be wrong without encoder or data; ValueError names
    the key.
    """
    check_config("evaluate", cfg)
    measure, task, trainer = cfg.measure, cfg.measure.task, cfg.trainer
    if trainer.devices * trainer.num_nodes > 1 or trainer.precision == "bf16-true":
        raise ValueError(
            "an evaluation runs on one device, not in bf16-true: say trainer.devices=1"
            " trainer.precision=auto"
        )
    if (measure.data is None) == (task is None) or (measure.module is None and task is None):
        raise ValueError(f"measure {measure.name}: give it a task, or module and data of its own")
    if task is not None and "features" in task.data:
        raise ValueError(
            f"task {task.name} reads stored features; take the task of the words themselves"
        )


def _check_optimizer(cfg: DictConfig, steps: int) -> None:
    """Built once on a parameter of no use: their constructors know what they can do."""
    parameters = [
        (name, nn.Parameter(torch.zeros(1, 1))) for name in ("weight", "encoder.layer.0.weight")
    ]
    optimizer = build("optimizer", cfg.optimizer)(parameters)
    build("schedule", cfg.schedule)(optimizer, total_steps=steps)


def check_fraction(folder: Path, fraction: float) -> None:
    """ValueError for an encoder that was not kept after this fraction of its own run, by what its
    folder says.
    """
    if fraction == 1.0:
        return
    made = folders.read_config_dict(folder).get("clozelab", {})
    step, phases = made.get("step"), made.get("phases")
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
