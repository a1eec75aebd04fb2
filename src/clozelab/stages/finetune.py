"""Stage finetune: one encoder on one downstream task. A table of contents; the work is
elsewhere.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from omegaconf import DictConfig, OmegaConf

from clozelab.corpus.files import digest
from clozelab.corpus.random import derive_seed
from clozelab.datamodules.files import HubSource, hub_files, used_folders
from clozelab.datamodules.finetuning import EncoderSource, FinetuningDataModule, TaskInputs
from clozelab.datamodules.labelled import LabelledDataModule
from clozelab.models.encoder import Encoder, compile_encoder
from clozelab.models.folders import load_encoder
from clozelab.modules.base import build_with_hparams
from clozelab.modules.finetuning import (
    FineTuning,
    save_model,
    write_results,
    write_test_predictions,
)
from clozelab.modules.model import max_positions, open_tokenizer
from clozelab.runs.fingerprint import code_behind, encoder_fingerprint
from clozelab.runs.record import Score
from clozelab.runs.store import Run
from clozelab.stages import building
from clozelab.targets import build, locate
from clozelab.training.checkpoints import newest_whole, seed_initialisation
from clozelab.training.tracking import summarise, tracked
from clozelab.training.trainer import Hardware

log = logging.getLogger(__name__)
CHECKPOINT_INTERVAL_STEPS = 50
# at least between two: a fine-tuning that is done sooner is rather begun again
CHECKPOINT_SECONDS = 300.0
KEPT_RESULTS = ("title", "stand_in_for", "synthetic", "num_examples", "collapsed", "best_step")
"""What the record of a run repeats of scores.json, for tables."""
# what a model remembers of how its texts were cut
LENGTHS = ("max_seq_length", "doc_stride", "max_query_length")


def main(cfg: DictConfig) -> None:
    """Check encoder and data, train, keep the best checkpoint's scores and predictions, complete
    the run.
    """
    hardware, folder = building.begin(cfg, building.check_finetuning)
    inputs = {"encoder": encoder_fingerprint(folder)}
    data = build_data(cfg, folder, inputs["encoder"], hardware)
    inputs |= {"task_files": data.source_fingerprint, "task_data": data.fingerprint}
    inputs |= {"test_data": data.require_test_files()} if cfg.predict_test else {}
    about = {key: cfg.task[key] for key in ("name", "title", "stand_in_for")} | {
        "synthetic": data.synthetic
    }
    encoder = load_encoder(folder, initialisation=cfg.initialisation, seed=cfg.pretrain_seed)
    # Before the claim: a folder claimed for bad data would refuse the mended data.
    data.setup()
    check_numbers(cfg, data)
    is_partial = not {"overfit_batches", "limit_val_batches"}.isdisjoint(cfg.trainer.lightning)
    if is_partial and (cfg.stop_after_step or data.total_steps) >= data.total_steps:
        raise ValueError(
            "overfit_batches and limit_val_batches leave examples out, which gives no score: end"
            f" the training before, with stop_after_step= below its {data.total_steps} steps"
        )
    about |= {"baselines": data.baselines}
    tests = data.load_test() if cfg.predict_test else {}
    task = locate(cfg.task.module["_target_"])
    keys = [f"validation/{key}" for key in task.score_keys(cfg.task.module, cfg.task.data)]
    scores = {key: Score.of(key, are_shares=task.scores_are_shares) for key in keys}
    claimed = Run.claim(
        cfg.run_dir,
        stage="finetune",
        config=cfg,
        inputs=inputs,
        scores=scores,
        metric=cfg.task.metric,
    )
    with claimed as run:
        if run.is_complete:
            if not (run.dir / "scores.json").is_file():
                raise ValueError(
                    f"{run.dir} says complete and has no scores.json; remove the folder to run it"
                    " again"
                )
            log.info("%s is complete already", run.dir)
            return
        # A resumed run keeps the precision that `auto` meant when it began.
        hardware = replace(hardware, precision=run.facts.get("precision", hardware.precision))
        if hardware.compile == "true":
            compile_encoder(encoder, dynamic=True)
        module = build_module(cfg, encoder, data)
        run.record(total_steps=data.total_steps, cache=used_folders(), precision=hardware.precision)
        run.record(threads=torch.get_num_threads())
        checkpoints = run.dir / "checkpoints"
        name = f"{cfg.row}/{cfg.task.name}/pretrain-seed-{cfg.pretrain_seed}/seed-{cfg.seed}"
        with tracked(building.build_loggers(cfg, run, arm=cfg.row, name=name)) as loggers:
            callbacks = building.callbacks_of(
                cfg, run, CHECKPOINT_INTERVAL_STEPS, CHECKPOINT_SECONDS
            )
            trainer = building.make_trainer(
                cfg,
                hardware,
                data.total_steps,
                None,
                callbacks=callbacks,
                loggers=loggers,
                folder=run.dir,
            )
            trainer.fit(module, datamodule=data, ckpt_path=newest_whole(checkpoints))
            if run.is_leader:
                result = write_results(run.dir, module, about)
                summarise(loggers, {**result["scores"], "best_step": result["best_step"]})
            if tests:
                module.restore_best()
            for test, (sequences, split) in tests.items():
                parts: Any = trainer.predict(module, dataloaders=data.evaluation_loader(sequences))
                if run.is_leader:
                    write_test_predictions(
                        run.dir / "test_predictions", module.prediction_files(test, split, parts)
                    )
            if run.is_leader:
                kept = {key: result[key] for key in KEPT_RESULTS}
                if cfg.keep_model:
                    made = {"task": cfg.task.name, "head": cfg.head}
                    made |= {key: data.facts[key] for key in LENGTHS if key in data.facts}
                    if isinstance(data, LabelledDataModule) and data.texts_per_example is not None:
                        made["texts_per_example"] = data.texts_per_example
                    save_model(run.dir / "model", module, folder, data.inputs.tokenizer, **made)
                    kept["model"] = encoder_fingerprint(run.dir / "model")  # its checksums, as one
                run.complete(
                    result,
                    data=data.facts,
                    num_evaluations=len(module.history),
                    **kept,
                    **module.facts(),
                )
                shutil.rmtree(checkpoints, ignore_errors=True)


def parts(cfg: DictConfig) -> tuple[FineTuning, FinetuningDataModule, Trainer]:
    """Module, data and Trainer, for a training of somebody's own; nothing is claimed."""
    hardware, folder = building.begin(cfg, building.check_finetuning)
    data = build_data(cfg, folder, encoder_fingerprint(folder), hardware)
    data.setup()
    check_numbers(cfg, data)
    encoder = load_encoder(folder, initialisation=cfg.initialisation, seed=cfg.pretrain_seed)
    if hardware.compile == "true":
        compile_encoder(encoder, dynamic=True)
    rest: Any = {
        "callbacks": building.chosen_callbacks(cfg),
        "loggers": [],
        "folder": Path(cfg.run_dir),
    }
    trainer = building.make_trainer(cfg, hardware, data.total_steps, None, **rest)
    return build_module(cfg, encoder, data), data, trainer


def build_data(
    cfg: DictConfig, folder: Path, name: str, hardware: Hardware
) -> FinetuningDataModule:
    """The task's data module for an encoder, which `name` names; it has looked for its files."""
    name = (
        name
        if cfg.initialisation == "pretrained"
        else f"{cfg.initialisation}-{cfg.pretrain_seed}-{name}"
    )
    # Fresh weights stand for another pre-training seed: fine-tuning seeds share them, as they share
    # an encoder.
    load = partial(load_encoder, folder, initialisation=cfg.initialisation, seed=cfg.pretrain_seed)
    settings: Any = OmegaConf.to_container(cfg.task, resolve=True)
    cache = Path(cfg.cache_dir)
    files = hub_files(HubSource.of(settings), cache) if cfg.hub else Path(cfg.data_dir)
    places, limit = (files, cache), max_positions(folder)
    source = EncoderSource(name, load, hardware.device)
    tokenizer = open_tokenizer(folder, cfg.token_types)
    code = digest(code_behind([settings["data"]["_target_"]]))
    task = TaskInputs(cfg.task.name, *places, tokenizer, limit, source, cfg.max_unknown_share, code)
    return building.build_task_data(
        cfg, task, seed=draw_seed(cfg), num_workers=cfg.trainer.num_workers
    )


def check_numbers(cfg: DictConfig, data: FinetuningDataModule) -> None:
    """ValueError for a label outside of the numbers that the task's module predicts."""
    if isinstance(data, LabelledDataModule):
        data.refuse_outside(cfg.task.module.get("number_range"))


def draw_seed(cfg: DictConfig) -> int:
    """Seed of what this run draws: head weights, order of examples, dropout.

    From both of its seeds, so that fine-tuning seeds are nested in pre-training seeds: drawn alike
    for every encoder, their effect would be missing from the spread between encoders
    (docs/decisions/0013). Rows of a table are paired: with the same two seeds they draw the
    same."""
    return derive_seed(cfg.pretrain_seed, f"fine-tuning {cfg.seed}")


def build_module(cfg: DictConfig, encoder: Encoder, data: FinetuningDataModule) -> FineTuning:
    """The task's module on the encoder; head weights and dropout are functions of the seeds."""
    seed_initialisation(draw_seed(cfg))
    return build_with_hparams(
        build("task.module", cfg.task.module),
        encoder=encoder,
        head=cfg.head,
        validation=data.validation,
        metric=cfg.task.metric,
        keep_best_weights=cfg.keep_model or cfg.predict_test,
        optimizer_factory=build("optimizer", cfg.optimizer),
        schedule_factory=build("schedule", cfg.schedule),
        total_steps=data.total_steps,
        gradient_clip_norm=cfg.gradient_clip_norm,
        seed=draw_seed(cfg),
        log_interval_steps=cfg.trainer.log_interval_steps,
    )
