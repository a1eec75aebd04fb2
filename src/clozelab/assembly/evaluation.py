"""Stage evaluate: an encoder, or a fine-tuned model, measured without training it.

A measure brings its own data (minimal pairs, held-out text), or takes a task's: to probe the
encoder's states with it, or to score a fine-tuned model on another file, by the task's own module
and official scorer. The latter has no module of its own: `measure.module` is null.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from claims.text.phrases import truncate_list
from clozelab.addresses import build, locate
from clozelab.assembly import factory
from clozelab.assembly.heads import fresh_heads, load_heads, pretraining_heads
from clozelab.assembly.labelled import READ_ONCE
from clozelab.assembly.task_data import build_task_data, task_inputs, untrained_module
from clozelab.assembly.together import (
    average_predictions,
    average_weights,
    check_folds,
    check_together,
    mean_threshold,
    model_folders,
)
from clozelab.config import Composed
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.datamodules.labelled import TaskInputs
from clozelab.datamodules.scoring import MeasureDataModule
from clozelab.metrics.metric import metric_of
from clozelab.models import folders
from clozelab.models.config_keys import Provenance
from clozelab.models.encoder import Encoder
from clozelab.models.locate import config_path
from clozelab.modules.finetuning import FineTuning, write_results
from clozelab.modules.measures import Measurement
from clozelab.modules.model import (
    log_max_positions,
    named_labels,
    read_as_class,
    renamed_labels,
    with_pooling,
)
from clozelab.modules.model_tasks import MULTI_LABEL, classes_of
from clozelab.runs.inputs import encoder_fingerprint
from clozelab.runs.record import Score, read_record
from clozelab.runs.store import Run
from clozelab.schema import EvaluateConfig
from clozelab.tasks.cache import used_folders
from clozelab.tasks.splitting import Fold
from clozelab.tasks.target import Target
from clozelab.text.plain import JsonObject, PlainDict, PlainMapping
from clozelab.training.callbacks import GracefulStop
from clozelab.training.checkpoints import seed_initialisation
from clozelab.training.tracking import summarise, tracked
from clozelab.training.trainer import Hardware, build_trainer

log = logging.getLogger(__name__)
DataModule: TypeAlias = MeasureDataModule | FinetuningDataModule
ScoringModule: TypeAlias = Measurement | FineTuning
RESULTS_IN_RECORD = ("title", "synthetic", "num_examples", "num_entities", "collapsed")
"""What the record of a run repeats of scores.json, for tables."""


@dataclass(frozen=True)
class EvaluationJob:
    """What an evaluation works with, once every check has passed."""

    cfg: EvaluateConfig
    hardware: Hardware
    data: DataModule  # set up: read and tokenised
    module: ScoringModule
    saved_config: PlainDict  # what the model's folder says of its predictions
    inputs: dict[str, str]  # name -> fingerprint of what is read


def prepare(cfg: EvaluateConfig) -> EvaluationJob:
    """Check the settings, load the model, and read the measure's data."""
    check_evaluation(cfg)
    together = model_folders(cfg.models) if cfg.models is not None else []
    if together:
        # The first one's folder says how all of them read and predict.
        cfg = replace(cfg, encoder=str(together[0]))
    hardware, folder = factory.require_machine_and_encoder(cfg)
    encoder = folders.load_encoder(
        folder, initialisation=cfg.initialisation, seed=cfg.pretrain_seed
    )
    data = build_data(cfg, folder, encoder)
    if together and isinstance(data, FinetuningDataModule) and isinstance(data.held_out, Fold):
        check_folds(together)
    data.setup("validate")
    module = build_module(cfg, folder, encoder, data)
    saved_config = restore_config(cfg, [folder, *together[1:]], module)
    inputs = {
        "encoder": encoder_fingerprint(folder),
        "task_data": data.fingerprint,
        "task_files": data.source_fingerprint,
    }
    if together:
        modules: list[Any] = [module]
        for number, member in enumerate(together[1:], start=2):
            inputs[f"model_{number}"] = encoder_fingerprint(member)
            modules.append(build_module(cfg, member, folders.load_encoder(member), data))
        average = average_weights if cfg.combine == "weights" else average_predictions
        average(modules)
        saved_config |= {"combine": cfg.combine, "num_models": len(together)}
    return EvaluationJob(cfg, hardware, data, module, saved_config, inputs)


def check_evaluation(cfg: EvaluateConfig) -> None:
    """Refuse what can be wrong with an evaluation without encoder or data."""
    check_together(cfg)
    measure = cfg.measure
    task = measure.task
    num_devices = cfg.trainer.devices * cfg.trainer.num_nodes
    if num_devices > 1 or cfg.trainer.precision == "bf16-true":
        raise ValueError(
            "an evaluation runs on one device, not in bf16-true: say trainer.devices=1"
            " trainer.precision=auto"
        )
    # Either a task, whose data is read, or data of the measure's own; without a task nobody but the
    # measure can have a module.
    has_one_source = (measure.data is None) != (task is None)
    if not has_one_source or (measure.module is None and task is None):
        raise ValueError(f"measure {measure.name}: give it a task, or module and data of its own")
    if task is not None and "features" in task["data"]:
        raise ValueError(
            f"task {task['name']} reads stored features; take the task of the words themselves"
        )


def claim_run(job: EvaluationJob, composed: Composed) -> Run:
    """Take the run's folder for this evaluation."""
    # Which further scores there are is known when they are computed.
    metric = job.module.metric
    return Run.claim(
        job.cfg.run_dir,
        stage="evaluate",
        config=composed,
        inputs=job.inputs,
        scores={metric: score_of(job.module, metric)},
        metric=metric,
    )


def evaluate(job: EvaluationJob, run: Run) -> None:
    """Run the model once over the data, write scores and predictions, complete the run."""
    cfg = job.cfg
    folder = Path(str(cfg.encoder))
    begun_with = factory.encoder_facts(folder, folders.read_config(folder))
    factory.record_begin(run, job.hardware, cache=used_folders(), encoder=begun_with)
    loggers = factory.build_loggers(cfg, run, arm=cfg.row)
    with tracked(loggers):
        # A Trainer wants a length, although nothing is trained.
        trainer = build_trainer(
            job.hardware,
            max_steps=1,
            validation_interval_steps=None,
            callbacks=[GracefulStop(run.watch, reuse=cfg.reuse)],
            loggers=loggers,
            folder=run.dir,
            log_interval_steps=1,
            limit_val_batches=1.0,
        )
        # A Measurement brings its loaders itself.
        datamodule = None
        if cfg.measure.module is None:
            datamodule = job.data
        trainer.validate(job.module, datamodule=datamodule, verbose=False)
        results = write_results(run.dir, job.module, describe_measure(job))
        summarise(loggers, results["scores"])
        run.content.scores = {key: score_of(job.module, key) for key in results["scores"]}
        facts = {key: results[key] for key in RESULTS_IN_RECORD}
        # The baselines of a probe were asked for just now.
        facts["cache"] = used_folders()
        run.complete(results, data=job.data.facts, **facts, **job.saved_config)


def score_of(module: ScoringModule, key: str) -> Score:
    """The record's entry for one of a module's scores."""
    return Score.of(metric_of(key, module.metrics), module.positive_label)


def describe_measure(job: EvaluationJob) -> PlainDict:
    """What scores.json keeps about the measure."""
    measure = job.cfg.measure
    description: PlainDict = {
        "name": measure.name,
        "title": measure.title,
        "synthetic": job.data.synthetic,
    }
    if measure.module is not None and isinstance(job.data, FinetuningDataModule):
        description["baselines"] = job.data.baselines
    return description | job.saved_config


def build_data(cfg: EvaluateConfig, folder: Path, encoder: Encoder) -> DataModule:
    """The data module of the measure, or of its task; its files are there, and not yet read.

    A fine-tuned model is scored by its own classes, under the names that the task's file has.
    ValueError where files, settings or labels do not fit the model.
    """
    measure = cfg.measure
    task = measure.task
    inputs = _task_inputs(cfg, folder, encoder)
    if task is None:
        return build("measure.data", measure.data)(
            inputs=inputs, is_causal=encoder.config.is_causal
        )
    label_names = None
    if measure.module is None:
        warn_of_other_task(task, folder)
        # Questions have answers and no classes, whatever a folder calls its two outputs.
        if {"label_column", "tag_column"} & set(task["data"]):
            label_names = label_names_of(cfg, folder)
    inputs = replace(inputs, label_names=label_names)
    if label_names is not None:
        task = with_positive_label(task, cfg, folder)
    plan = replace(READ_ONCE, max_train_examples=measure.max_train_examples)
    task = task | {"module": with_pooling(task["module"], folder)}
    data = build_task_data(task, inputs, plan)
    if measure.module is None:
        check_outputs(data.target, folder)
    if label_names is not None:
        check_labels(data, label_names, folder)
    return data


def _task_inputs(cfg: EvaluateConfig, folder: Path, encoder: Encoder) -> TaskInputs:
    """What the measure's data is made from; the labels' names are not among it."""
    provenance = folders.read_provenance(folder)
    log_max_positions(folder)
    inputs = task_inputs(cfg, cfg.measure.name, cfg.measure.task, folder)
    # A fine-tuned model is scored on texts cut as in its training.
    longest = provenance.get("max_seq_length") or inputs.max_positions
    return replace(
        inputs,
        max_positions=min(longest, inputs.max_positions),
        # A fine-tuned model is scored on the fold that it was not trained on.
        seed=provenance.get("validation_fold", cfg.seed),
        # What the encoder itself has seen, and how it predicts, only a measure asks.
        corpus=provenance.get("corpus_fingerprint"),
        predicts_next=encoder.config.predicts_next,
    )


def warn_of_other_task(task: PlainMapping, folder: Path) -> None:
    """Warn where a fine-tuned model is scored on a task that it was not trained on."""
    provenance = folders.read_provenance(folder)
    trained_on = provenance.get("task", task["name"])
    if trained_on != task["name"]:
        # The names of classes may agree and mean something else.
        log.warning(
            "%s was fine-tuned on %s: do its classes mean the same on %s?",
            folder,
            trained_on,
            task["name"],
        )


def with_positive_label(task: JsonObject, cfg: EvaluateConfig, folder: Path) -> JsonObject:
    """The task with the class that F1 was of in the model's training, unless it names another."""
    trained = folders.read_provenance(folder).get("positive_label")
    data = task["data"]
    if trained is None or data.get("positive_label", trained) is not None:
        return task
    # The file may call it otherwise.
    if cfg.measure.label_names:
        trained = cfg.measure.label_names.get(trained, trained)
    return task | {"data": data | {"positive_label": trained}}


def check_reading(reads: PlainMapping, trained: PlainMapping, folder: Path) -> None:
    """ValueError where a model would read texts otherwise than in its fine-tuning.

    Both are by the names of settings; `trained` is what its folder says.
    """
    # Folders of before say less than their runs do.
    run = read_record(folder.parent)
    if run is not None and run.stage == "finetune":
        trained = {**run.config["task"]["data"], **trained}
    settings = []
    for key, value in reads.items():
        # A score of another class is one more measure of the same answers.
        if key == "positive_label":
            continue
        # None is of a setting that means nothing beside the others.
        if None not in (value, trained.get(key)) and trained[key] != value:
            settings.append(f"measure.task.data.{key}={trained[key]}")
    if settings:
        raise ValueError(
            f"{folder} was fine-tuned to read texts otherwise, and would not score as its run has:"
            f" say {' '.join(settings)}"
        )


def check_held_out(held_out: PlainDict | None, trained: Provenance, folder: Path) -> None:
    """ValueError where rows are held out that a fine-tuning, with other settings, has trained on.

    `held_out` are the settings here; None where validation has a file.
    """
    of_model = trained.get("held_out")
    if held_out is None or held_out == of_model or "task" not in trained:
        return
    if of_model is None:
        raise ValueError(
            f"{folder} was fine-tuned with a validation file, so on all rows of its training file:"
            " name the file to score, measure.task.data.validation_file=FILE"
        )
    # Without folds it is a fraction.
    settings: PlainDict = {"validation_folds": "null"}
    if "group_column" in held_out:
        settings["group_column"] = "null"
    settings |= of_model
    overrides = [f"measure.task.data.{key}={value}" for key, value in settings.items()]
    raise ValueError(
        f"{folder} held out other rows of a file in its fine-tuning, so it was trained on some of"
        f" these: say {' '.join(overrides)}, or name a file, measure.task.data.validation_file=FILE"
    )


def label_names_of(cfg: EvaluateConfig, folder: Path) -> list[str] | None:
    """A fine-tuned model's classes in the order of its outputs, as the file calls them.

    None: in the task's order.
    """
    config = folders.read_config_dict(folder)
    path = config_path(folder)
    # In the order of the model's outputs, which need not be the task's.
    # of ordered classes an output is no class by itself
    names = [*classes_of(config, named_labels(config, path))]
    given = cfg.measure.label_names
    if given:
        return renamed_labels(names, given, path)
    # What transformers calls classes that nobody has named.
    if names != [f"LABEL_{number}" for number in range(len(names))]:
        return names
    if len(names) > 1:
        log.warning(
            "%s calls its classes LABEL_0, ...: they are taken in the task's order"
            " (measure.label_names names them)",
            folder,
        )
    return None


def check_outputs(target: Target, folder: Path) -> None:
    """ValueError where the outputs of a model mean something else than the task's.

    A model of one class a text is not looked at: other libraries do not record that.
    """
    config = folders.read_config_dict(folder)
    problem_types = (config.get("problem_type"), target.problem_type)
    if MULTI_LABEL not in problem_types:
        return
    names = named_labels(config, config_path(folder))
    has_other_number = bool(target.classes) and len(names) != target.num_outputs
    if len(set(problem_types)) > 1 or has_other_number:
        raise ValueError(
            f"{config_path(folder)}: its problem_type is {problem_types[0]} with {len(names)}"
            f" outputs, and the measure's task needs {problem_types[1]}: take a task of the format"
            " that the model was fine-tuned with"
        )


def check_labels(data: FinetuningDataModule, names: Sequence[str], folder: Path) -> None:
    """ValueError where a file's label is none of the model's classes.

    It says what to type, and fills in what differs only in letters' case.
    """
    if sorted(data.target.configured_classes or ()) != sorted(names):
        return  # numbers, choices, or tags that are looked at as they are read
    # The training file's labels are not looked at: nothing is trained.
    # The preview reads texts and labels without tokenising them: this check is cheap.
    labels = sorted(set(data.preview().validation.labels or ()))
    unknown = [label for label in labels if label not in names]
    if not unknown:
        return
    name_of_word = {name.casefold(): name for name in names}
    # {"positive": "Positive", "negative": "..."}: the user fills in the dots.
    label_of_name = dict.fromkeys(names, "...")
    for label in unknown:
        if label.casefold() in name_of_word:
            label_of_name[name_of_word[label.casefold()]] = label
    pairs = [f"{name}: {label}" for name, label in label_of_name.items() if label not in names]
    all_unknown = ""
    if len(unknown) > 1:
        listed = truncate_list(list(map(repr, unknown)))
        all_unknown = f" ({len(unknown)} unknown labels in all: {listed})"
    raise ValueError(
        f"{data.validation_path}: label {unknown[0]!r} is not one of the known labels {list(names)}"
        f" of {folder}{all_unknown}: say which is which,"
        f" 'measure.label_names={{{', '.join(pairs)}}}'"
    )


def restore_config(cfg: EvaluateConfig, models: Sequence[Path], module: ScoringModule) -> PlainDict:
    """Let a fine-tuned model, or several as one, predict as the folders say.

    Returns what the record says of that, nothing for an encoder.
    """
    if isinstance(module, Measurement):
        return {}
    saved_config: Provenance = {}
    # A threshold belongs to the weights it was chosen with.
    if cfg.initialisation == "pretrained":
        saved_config = mean_threshold(models)
    return dict(module.restore_config(saved_config))


def build_module(
    cfg: EvaluateConfig, folder: Path, encoder: Encoder, data: DataModule
) -> ScoringModule:
    """The measure's module on the encoder, or the task's on the fine-tuned model.

    Heads have the weights of the folder.
    """
    task = cfg.measure.task or {}
    settings = cfg.measure.module
    # Before the module: what a head reads counts as trained there.
    has_fresh_pooler = encoder.has_fresh_pooler
    if settings is None:
        module = _build_task_module(cfg, task, folder, encoder, data)
        heads = module.heads()
    else:
        # With fresh weights (initialisation=random) the heads are of the same seed.
        kinds = locate(settings["_target_"]).needs
        heads = fresh_heads(kinds, encoder, folder, cfg.pretrain_seed)
        module = build("measure.module", with_pooling(settings, folder))(
            encoder=encoder, heads=heads, data=data, metric=cfg.measure.metric
        )
    if cfg.initialisation == "pretrained":
        load_heads(heads, folder, cfg.measure.name, has_fresh_pooler=has_fresh_pooler)
        # As predict reads the same folder.
        if heads:
            read_as_class(encoder, folder, None, data.inputs.tokenizer.sep_id)
    return module


def _build_task_module(
    cfg: EvaluateConfig,
    task: PlainMapping,
    folder: Path,
    encoder: Encoder,
    data: Any,
) -> Any:
    """A task's module on a fine-tuned model, which has to be read as it was trained."""
    seed_initialisation(cfg.pretrain_seed)
    provenance = folders.read_provenance(folder)
    if "features" in provenance:
        raise ValueError(
            f"{folder} tags words by features of several layers, which an evaluation does not read;"
            " `clozelab predict` does"
        )
    check_reading(data.config_to_save(), provenance, folder)
    check_held_out(data.held_out_settings, provenance, folder)
    given_heads = pretraining_heads(data.target, encoder, folder, cfg.pretrain_seed)
    return untrained_module(task, data, encoder, provenance.get("head", "linear"), given_heads)
