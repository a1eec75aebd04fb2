"""A complete fine-tuning's model predicts its task's test files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from clozelab.assembly import factory, finetuning
from clozelab.assembly.heads import pretraining_heads
from clozelab.assembly.task_data import untrained_module
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.models import folders
from clozelab.modules.finetuning import Evaluation, FineTuning
from clozelab.modules.model import renamed_labels
from clozelab.runs.inputs import encoder_fingerprint
from clozelab.runs.record import Record, read_record
from clozelab.runs.reuse import is_record_of
from clozelab.schema import FinetuneConfig
from clozelab.tasks.target import Target
from clozelab.text.plain import read_json
from clozelab.training.trainer import build_trainer


def predict_task(
    run: Path, file: str | None, output: str | None, label_names: Mapping[str, str]
) -> list[Path]:
    """Predict a task's test files (or one `file` like them) with a complete run's model.

    Nothing is trained again. `label_names`: the task's names of classes -> what the predictions
    call them. Returns the files written.
    """
    # Below, the working folder is the one that the run was started in.
    if file:
        file = str(Path(file).resolve())
    record = require_finetuning(run)
    if file and not Path(file).exists():
        raise ValueError(f"test={file}: there is no such file or folder")
    model_folder = (run / "model").resolve()
    scores_path = (run / "scores.json").resolve()
    out = Path(output or run / "test_predictions").resolve()
    with factory.recompose_config(record) as composed:
        if not is_record_of(record, stage="finetune", recorded=composed.recorded):
            raise ValueError(
                f"{run}: its command gives another configuration now than when it was trained"
            )
        # Whatever the run began from, its model is trained now.
        cfg = replace(composed.config, initialisation="pretrained")
        # one of the machine's devices, with the precision that the run was trained in
        hardware = factory.hardware_of(cfg.trainer)
        precision = record.facts.get("precision", hardware.precision)
        hardware = replace(hardware, devices=1, num_nodes=1, strategy="auto", precision=precision)
        data = finetuning.build_data(cfg, model_folder, encoder_fingerprint(model_folder), hardware)
        if data.source_fingerprint != record.inputs["task_files"]:
            raise ValueError(
                f"{run} was trained on other task files than are here now, so labels may be others"
            )
        if file:
            if output is None and Path(file).stem in data.test_files:
                raise ValueError(
                    f"test={file} is called as the task's own test set: say output=FOLDER"
                )
            data.test_files = {Path(file).stem: file}
        data.require_test_files()
        data.setup()
        module = load_module(cfg, model_folder, scores_path, data)
        if label_names:
            module.target = rename_classes(module.target, label_names, run)
        trainer = build_trainer(
            hardware,
            max_steps=1,
            validation_interval_steps=None,
            callbacks=[],
            loggers=[],
            folder=out.parent,
            log_interval_steps=1,
        )
        return sorted(finetuning.predict_splits(module, trainer, data, data.load_test(), out))


def rename_classes(target: Target, label_names: Mapping[str, str], run: Path) -> Target:
    """The target whose predictions call its classes so; ValueError where they call none by name."""
    if not target.writes_names():
        raise ValueError(
            f"label_names: the test predictions of {run} are numbers, or words that its benchmark"
            " wants: leave it out"
        )
    return target.renamed(renamed_labels(target.classes, label_names, run))


def require_finetuning(run: Path) -> Record:
    """The record of a complete fine-tuning that kept its model; ValueError for any other folder."""
    record = read_record(run) if run.is_dir() else None
    is_finetuning = record is not None and record.stage == "finetune" and record.is_complete
    if record is None or not is_finetuning or not record.config_name:
        raise ValueError(
            f"{run} is no complete fine-tuning of a command line; only that has its task's"
            " format. Any other model reads a file as input=FILE, with text=COLUMN"
        )
    if not (run / "model" / "config.json").is_file():
        raise ValueError(
            f"{run} kept no model (keep_model=false, or gc took it), so it cannot predict"
        )
    return record


def load_module(
    cfg: FinetuneConfig, model_folder: Path, scores_path: Path, data: FinetuningDataModule
) -> FineTuning:
    """A run's module with its trained weights and its best scores."""
    encoder = folders.load_encoder(model_folder)
    heads = pretraining_heads(data.target, encoder, model_folder, cfg.pretrain_seed)
    module = untrained_module(vars(cfg.task), data, encoder, cfg.head, heads)
    for kind, head in module.heads().items():
        folders.load_head(model_folder, kind, head)
    scores = read_json(scores_path)["scores"]
    # Among them is SQuAD 2.0's threshold, which tells questions without an answer.
    module.best = Evaluation(0, scores, [], is_collapsed=False)
    return module
