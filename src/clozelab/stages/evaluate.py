"""Stage evaluate: an encoder, or a fine-tuned model, measured without training it. A table of
contents.

A measure brings its own data (minimal pairs, held-out text), or takes a task's: to probe the
encoder's states with it, or to score a fine-tuned model on another file, by the task's own module
and official scorer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from clozelab.corpus.files import digest
from clozelab.datamodules.files import used_folders
from clozelab.datamodules.finetuning import TaskInputs
from clozelab.datamodules.labelled import LabelledDataModule
from clozelab.models import folders
from clozelab.models.encoder import Encoder
from clozelab.modules.finetuning import write_results
from clozelab.modules.model import (
    MULTI_LABEL,
    max_positions,
    named_labels,
    open_tokenizer,
    renamed_labels,
    trained_pooling,
)
from clozelab.runs.code import code_behind
from clozelab.runs.inputs import encoder_fingerprint
from clozelab.runs.record import Score
from clozelab.runs.store import Run
from clozelab.stages import building
from clozelab.targets import build, locate
from clozelab.training.callbacks import GracefulStop
from clozelab.training.checkpoints import seed_initialisation
from clozelab.training.tracking import summarise, tracked
from clozelab.training.trainer import build_trainer

log = logging.getLogger(__name__)


def main(cfg: DictConfig) -> None:
    """Check model and data, score once, keep scores and predictions, complete the run."""
    hardware, folder = building.begin(cfg, building.check_evaluation)
    encoder = folders.load_encoder(
        folder, initialisation=cfg.initialisation, seed=cfg.pretrain_seed
    )
    data = build_data(cfg, folder, encoder)
    # Before the claim: a folder claimed for bad data would refuse the mended data.
    data.setup()
    module = build_module(cfg, folder, encoder, data)
    recalled = recall(cfg, folder, module)
    inputs = {"encoder": encoder_fingerprint(folder), "task_data": data.fingerprint}
    inputs["task_files"], metric = data.source_fingerprint, module.metric
    score_of = partial(Score.of, are_shares=module.scores_are_shares)
    claim: Any = {
        "config": cfg,
        "inputs": inputs,
        "scores": {metric: score_of(metric)},
        "metric": metric,
    }
    with Run.claim(cfg.run_dir, stage="evaluate", **claim) as run:
        if run.is_complete:
            log.info("%s is complete already", run.dir)
            return
        run.record(
            cache=used_folders(), precision=hardware.precision, threads=torch.get_num_threads()
        )
        name = f"{cfg.row}/{cfg.measure.name}/pretrain-seed-{cfg.pretrain_seed}/seed-{cfg.seed}"
        with tracked(building.build_loggers(cfg, run, arm=cfg.row, name=name)) as loggers:
            once: Any = {
                "max_steps": 1,
                "validation_interval_steps": None,
                "limit_val_batches": 1.0,
            }
            places: Any = {
                "callbacks": [GracefulStop(run.watch)],
                "loggers": loggers,
                "folder": run.dir,
            }
            trainer = build_trainer(hardware, log_interval_steps=1, **once, **places)
            # fine-tuned, and scored by its task's own module
            is_of_model = cfg.measure.module is None
            trainer.validate(module, datamodule=data if is_of_model else None, verbose=False)
            about = {key: cfg.measure[key] for key in ("name", "title")} | {
                "synthetic": data.synthetic
            }
            about |= {"baselines": data.baselines} if cfg.measure.task and not is_of_model else {}
            about |= recalled
            result = write_results(run.dir, module, about)
            summarise(loggers, result["scores"])
            run.content.scores = {key: score_of(key) for key in result["scores"]}
            kept = {key: result[key] for key in ("title", "synthetic", "num_examples", "collapsed")}
            run.complete(result, data=data.facts, **kept, **recalled)


def build_data(cfg: DictConfig, folder: Path, encoder: Encoder) -> Any:
    """The measure's data module, or its task's; it has looked for its files."""
    measure: Any = OmegaConf.to_container(cfg.measure, resolve=True)
    own = folders.read_config_dict(folder).get("clozelab", {})
    names = None
    if cfg.measure.module is None:
        names = label_names_of(cfg, folder)
    places = Path(cfg.data_dir), Path(cfg.cache_dir), open_tokenizer(folder, cfg.token_types)
    if cfg.measure.module is None and own.get("task") not in (
        None,
        task := measure["task"]["name"],
    ):
        log.warning(
            "%s was fine-tuned on %s: do its classes mean the same on %s?",
            folder,
            own["task"],
            task,
        )
    code = ""
    if measure["task"]:
        code = digest(code_behind([measure["task"]["data"]["_target_"]]))
    longest = min(filter(None, (max_positions(folder), own.get("max_seq_length"))))
    inputs = TaskInputs(
        *(measure["name"], *places, longest),
        max_unknown_share=cfg.max_unknown_share,
        label_names=names,
        corpus=own.get("corpus_fingerprint"),
        code=code,
    )
    if measure["task"] is None:
        return build("measure.data", cfg.measure.data)(
            inputs=inputs, is_causal=encoder.config.is_causal
        )
    plan = dict.fromkeys(("global_batch_size", "epochs", "evaluations_per_epoch"), 1)
    data = building.build_task_data(
        plan | {key: measure[key] for key in ("task", "max_train_examples")},
        inputs,
    )
    if names is not None:
        check_labels(data, names, folder)
    return data


def label_names_of(cfg: DictConfig, folder: Path) -> list[str] | None:
    """A fine-tuned model's classes in the order of its outputs, as the file calls them; None: in
    the task's order."""
    config, place = folders.read_config_dict(folder), folders.config_path(folder)
    if config.get("problem_type") == MULTI_LABEL:
        raise ValueError(
            f"{place}: problem_type is {MULTI_LABEL}, and only one label an example can be scored",
        )
    names = named_labels(config, place)
    if cfg.measure.label_names:
        given = cfg.measure.label_names
        if OmegaConf.is_config(given):
            plain = OmegaConf.to_container(given)
        else:
            plain = given
        return renamed_labels(names, plain, place)
    if names != [f"LABEL_{number}" for number in range(len(names))]:
        return names
    if len(names) > 1:
        log.warning(
            "%s calls its classes LABEL_0, ...: they are taken in the task's order"
            " (measure.label_names names them)",
            folder,
        )
    return None


def check_labels(data: Any, names: Sequence[str], folder: Path) -> None:
    """ValueError where a file's label is none of the model's, with what to type where only letters'
    case differs."""
    if not isinstance(data, LabelledDataModule) or data.numeric_labels:
        return
    labels = sorted(set(data.preview().validation.labels or ()))
    unknown = [label for label in labels if label not in names]
    if not unknown:
        return
    by_word = {name.casefold(): name for name in names}
    meant = dict.fromkeys(names, "...")
    for label in unknown:
        if label.casefold() in by_word:
            meant[by_word[label.casefold()]] = label
    pairs = ", ".join(f"{name}: {label}" for name, label in meant.items() if label not in names)
    raise ValueError(
        f"{data.validation_path}: label {unknown[0]!r} is not one of the known labels {list(names)}"
        f" of {folder}: say which is which, 'measure.label_names={{{pairs}}}'"
    )


def recall(cfg: DictConfig, folder: Path, module: Any) -> dict[str, Any]:
    """Let a fine-tuned model predict as its folder says; what the record says of that, nothing for
    an encoder."""
    if cfg.measure.module is not None:
        return {}
    made = folders.read_config_dict(folder).get("clozelab", {})
    if cfg.initialisation != "pretrained":
        made = {}  # a threshold belongs to the weights it was chosen with
    return dict(module.recall(made))


def build_module(cfg: DictConfig, folder: Path, encoder: Encoder, data: Any) -> Any:
    """The measure's module on the encoder, or the task's on the fine-tuned model, with the heads of
    the folder.
    """
    made, settings = (
        folders.read_config_dict(folder).get("clozelab", {}),
        cfg.measure.module or cfg.measure.task.module,
    )
    pooling = {"pooling": trained_pooling(folder)} if settings.get("pooling") == "auto" else {}
    if cfg.measure.module is None:
        seed_initialisation(cfg.pretrain_seed)
        of_training = (
            "optimizer_factory",
            "schedule_factory",
            "total_steps",
            "gradient_clip_norm",
            "seed",
        )
        module = build("task.module", cfg.measure.task.module)(
            encoder=encoder,
            head=made.get("head", "linear"),
            validation=data.validation,
            metric=cfg.measure.task.metric,
            **pooling,
            **dict.fromkeys((*of_training, "log_interval_steps", "keep_best_weights"), 0),
        )
        heads = module.heads()
    else:
        kinds = locate(cfg.measure.module["_target_"]).needs
        generator = torch.Generator().manual_seed(cfg.pretrain_seed)
        heads = {
            kind: encoder.config.family.head(kind, encoder, generator=generator) for kind in kinds
        }
        common = {"encoder": encoder, "heads": heads, "data": data, "metric": cfg.measure.metric}
        module = build("measure.module", cfg.measure.module)(**common, **pooling)
    for kind, head in heads.items() if cfg.initialisation == "pretrained" else ():
        try:
            folders.load_head(folder, kind, head)
        except ValueError as problem:
            trained = (
                "pre-training"
                if kind == "lm"
                else "fine-tuning that kept its model, on a task of this kind"
            )
            why = f"{cfg.measure.name} asks what a model predicts: give it a folder of a {trained}"
            raise ValueError(f"{problem}; {why}") from problem
    return module
