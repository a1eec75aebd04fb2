"""Our modules and data modules under a plain Trainer of somebody else's."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, ThroughputMonitor
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner
from safetensors.torch import load_file
from tests.screens import refuses
from tests.test_python import FINETUNE, PRETRAIN, TINY

import clozelab
from clozelab.models.embeddings import Embeddings
from clozelab.modules.pretraining import PretrainingModule

TASKS = {
    "sst2": "accuracy",
    "stsb": "spearman",
    "stsb_siamese": "spearman",
    "swag": "accuracy",
    "squad_v2": "f1",
    "ner_microworld": "f1",
    "ner_features_microworld": "f1",
}
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
BARE: dict[str, Any] = QUIET | {"logger": False}


def names(*quick: str) -> list[Any]:
    """Every objective and kind of task, of which all but some are slow."""
    every = ("mlm", "mlm_nsp", "ltr", "rtd", *TASKS)
    return [pytest.param(one, marks=[pytest.mark.slow] * (one not in quick)) for one in every]


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("trainers")
    places: dict[str, Any] = {"scale": "demo", **TINY}
    places |= {name: str(root / name) for name in ("data_dir", "cache_dir", "runs_dir")}
    run = clozelab.pretrain(objective="mlm_nsp", **places, **PRETRAIN)
    return places | {"encoder": run.folder / "encoder"}


@pytest.fixture
def pretraining(places: dict[str, Any]) -> dict[str, Any]:
    """Settings of a pre-training of 4 steps."""
    return {key: value for key, value in places.items() if key != "encoder"} | PRETRAIN


@pytest.fixture
def finetuning(places: dict[str, Any]) -> dict[str, Any]:
    """Settings of a fine-tuning of 4 steps an epoch."""
    return places | FINETUNE | {"row": "mine"}


@pytest.fixture
def compose(pretraining: dict[str, Any], finetuning: dict[str, Any]) -> Callable[..., Any]:
    """compose(objective or task, *words) -> module and data module, of 4 or 8 steps."""

    def make(name: str, *words: str) -> Any:
        if name not in TASKS:
            return clozelab.compose("pretrain", [f"objective={name}", *words], **pretraining)[:2]
        words += ("task.data.features=second_to_last",) * ("features" in name)
        task = finetuning | {"epochs": 2}
        return clozelab.compose("finetune", [f"task={name}", *words], **task)[:2]

    return make


class Counts(Callback):
    """One of somebody's own: the steps that began, and the validations."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.validations = 0

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self.steps.append(trainer.global_step)

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        self.validations += not trainer.sanity_checking


def bits(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in module.state_dict().items()}


def are_same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", names("mlm_nsp", "sst2", "stsb_siamese", "squad_v2"))
def test_a_plain_trainer_trains_the_plan(
    name: str, compose: Callable[..., Any], tmp_path: Path
) -> None:
    module, data = compose(name)
    is_task = name in TASKS
    monitor = f"validation/{TASKS.get(name, 'loss')}"
    counts = Counts()
    mode = "max" if is_task else "min"
    saved = ModelCheckpoint(tmp_path, monitor=monitor, mode=mode)
    stopping = EarlyStopping(monitor, mode=mode, patience=9)
    speed = ThroughputMonitor(batch_size_fn=lambda batch: len(batch), window_size=2)
    trainer = Trainer(
        **QUIET,
        max_epochs=3,
        log_every_n_steps=1,
        logger=[CSVLogger(tmp_path, "one"), CSVLogger(tmp_path, "two")],
        callbacks=[counts, saved, stopping, speed],
    )
    trainer.fit(module, datamodule=data)
    # Each step of the plan once, under max_epochs=3.
    assert counts.steps == list(range(module.total_steps))
    assert counts.validations == len(data.epoch_ends)
    assert {"train/loss", monitor} <= trainer.callback_metrics.keys()
    assert (tmp_path / "two/version_0/metrics.csv").is_file()
    last = float(trainer.callback_metrics[monitor])
    (validated,) = trainer.validate(module, datamodule=data, verbose=False)
    assert validated[monitor] == last
    assert float(saved.best_model_score) == last or is_task
    held = torch.load(saved.best_model_path, weights_only=True)["state_dict"]
    assert held.keys() == module.state_dict().keys()
    again, _ = compose(name)
    options = again.arguments | {"weights_only": True}
    loaded = type(again).load_from_checkpoint(saved.best_model_path, **options)
    assert are_same(loaded.state_dict(), held)
    again, _ = compose(name)
    trainer.validate(again, datamodule=data, ckpt_path=saved.best_model_path, verbose=False)
    assert trainer.callback_metrics[monitor] == saved.best_model_score


PART = "validation saw 1 of 3 batches, as the Trainer wants it: a score needs all"


LIMITS: list[tuple[dict[str, Any], list[int] | None, str]] = [
    ({"max_steps": 2}, [0, 1], "the Trainer stops after 2 of the plan's"),
    (
        {"max_epochs": 1, "limit_train_batches": 3},
        [0, 1, 2],
        "the Trainer stops after 3 of the plan's",
    ),
    ({"fast_dev_run": True}, [0], PART),
    ({"max_epochs": 2, "overfit_batches": 1}, [0, 1], PART),
    ({"limit_val_batches": 1, "max_epochs": -1}, None, PART),
]
LIMITED = [pytest.param("mlm_nsp", *LIMITS[0])]
for limits in LIMITS:
    LIMITED.append(pytest.param("sst2", *limits))
for limits in LIMITS[1:]:
    LIMITED.append(pytest.param("mlm_nsp", *limits, marks=pytest.mark.slow))


@pytest.mark.parametrize(("name", "limits", "steps", "warning"), LIMITED)
def test_limits(
    name: str,
    limits: dict[str, Any],
    steps: list[int] | None,
    warning: str,
    compose: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    module, data = compose(name, *["task.data.evaluation_tokens=200"] * (name == "sst2"))
    counts = Counts()
    trainer = Trainer(**BARE, default_root_dir=tmp_path, callbacks=[counts], **limits)
    with caplog.at_level(logging.WARNING, "clozelab"):
        trainer.fit(module, datamodule=data)
    assert counts.steps == (steps or list(range(module.total_steps)))
    # A score needs all examples, and pre-training has none.
    assert (warning in caplog.text) == (warning != PART or name == "sst2")


@pytest.mark.parametrize("name", ["mlm", "sst2"])
def test_a_stopped_training_goes_on_to_the_same_bits(
    name: str, compose: Callable[..., Any], tmp_path: Path
) -> None:
    def fit(folder: str, checkpoint: Path | None = None, **options: Any) -> Any:
        module, data = compose(name)
        options |= {"default_root_dir": tmp_path / folder, "enable_checkpointing": False}
        trainer = Trainer(**BARE, **options)
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint)
        return module, trainer

    whole, _ = fit("whole", max_epochs=2)
    # in the middle of an epoch of fine-tuning, and at its end
    for stopped in ({"max_steps": 3}, {"max_epochs": 1}):
        _, trainer = fit("part", **stopped)
        trainer.save_checkpoint(tmp_path / "part.ckpt")
        module, trainer = fit("part", tmp_path / "part.ckpt", max_epochs=2)
        assert trainer.global_step == whole.total_steps
        assert are_same(bits(whole), bits(module))


@pytest.mark.parametrize("option", [{"accumulate_grad_batches": 2}, {"gradient_clip_val": 1.0}])
def test_what_would_change_a_step_is_refused(
    option: dict[str, Any], compose: Callable[..., Any], tmp_path: Path
) -> None:
    for name in ("mlm", "sst2"):
        module, data = compose(name)
        trainer = Trainer(**BARE, default_root_dir=tmp_path, **option)
        reason = "a batch is a whole optimizer step|not supported for manual"
        with pytest.raises(Exception, match=reason):
            trainer.fit(module, datamodule=data)


@pytest.mark.parametrize("name", [pytest.param("mlm", marks=pytest.mark.slow), "sst2"])
def test_the_tuner_finds_a_learning_rate(
    name: str, compose: Callable[..., Any], tmp_path: Path
) -> None:
    module, data = compose(name)
    before = bits(module)
    trainer = Trainer(**BARE, default_root_dir=tmp_path, enable_checkpointing=False)
    finder = Tuner(trainer).lr_find(module, datamodule=data, num_training=4, update_attr=False)
    assert len(finder.results["loss"]) == 4 and finder.results["lr"][0] < finder.results["lr"][-1]
    assert are_same(before, bits(module))
    module.learning_rate = 0.25
    rates: list[float] = []
    watch = Counts()
    watch.on_train_batch_end = lambda trainer, *_: rates.append(
        trainer.optimizers[0].param_groups[0]["lr"]
    )  # type: ignore[method-assign]
    trainer_of_it = Trainer(**BARE, default_root_dir=tmp_path, callbacks=[watch])
    trainer_of_it.fit(module, datamodule=data)
    assert len(rates) == module.total_steps and 0.1 < max(rates) <= 0.25
    with pytest.raises(Exception, match="batch_size"):
        Tuner(trainer).scale_batch_size(module, datamodule=data)


@pytest.mark.parametrize("name", names("mlm_nsp", "sst2"))
def test_two_processes_train_as_one(name: str, compose: Callable[..., Any], tmp_path: Path) -> None:
    found: list[dict[str, float]] = []
    off = ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"]
    for folder, options in (("one", {}), ("two", {"strategy": "ddp_fork", "devices": 2})):
        module, data = compose(name, *off * (name not in TASKS))
        trainer = Trainer(**BARE, default_root_dir=tmp_path / folder, max_epochs=2, **options)
        trainer.fit(module, datamodule=data)
        found.append({key: float(value) for key, value in trainer.callback_metrics.items()})
        (path,) = (tmp_path / folder).rglob("*.ckpt")
        assert torch.load(path, weights_only=True)["global_step"] == module.total_steps
    one, two = found
    assert one.keys() == two.keys()
    if name not in TASKS:
        assert one["validation/loss"] == pytest.approx(two["validation/loss"], rel=1e-4)


def test_chosen_callbacks_and_loggers_work_in_a_run(pretraining: dict[str, Any]) -> None:
    common = pretraining | {"objective": "mlm"}
    common["validation"] = PRETRAIN["validation"] | {"interval_steps": 1}
    common["trainer"] = TINY["trainer"] | {"log_interval_steps": 1}
    plain = clozelab.pretrain("+trainer.lightning.detect_anomaly=true", **common, arm="plain")
    names = "callbacks=[early_stopping,ema,lr_monitor,gradient_statistics,throughput]"
    loose = {"early_stopping": {"min_delta": 100.0, "patience": 1}, "ema": {"decay": 0.5}}
    run = clozelab.pretrain(
        names, "logger=[csv,tensorboard]", **common, arm="watched", callbacks=loose
    )
    assert (plain.facts["steps"], run.facts["steps"]) == (4, 2), "stopped early"
    assert run.status == "complete"
    assert run.fingerprint != plain.fingerprint
    said = (run.folder / "metrics.csv").read_text()
    for key in ("lr-AdamW/pg1", "gradient/grad_2.0_norm_total", "train/samples", "validation/loss"):
        assert f",{key}," in said, key
    clocks: dict[str, set[str]] = {}
    for line in said.splitlines():
        step, tokens, _, key, _ = line.split(",")
        if key in ("train/loss", "gradient/grad_2.0_norm_total"):
            clocks.setdefault(step, set()).add(tokens)
    assert [len(tokens) for tokens in clocks.values()] == [1, 1], "one step has one clock"
    assert "final/validation/loss" in (run.folder / "csv/metrics.csv").read_text()
    shown = yaml.safe_load((run.folder / "csv/hparams.yaml").read_text())
    assert shown["position_growth"] == "tile"
    assert any((run.folder / "tensorboard").iterdir())
    first = [line.split(",")[-1] for line in said.splitlines() if ",validation/loss," in line]
    usual = (plain.folder / "metrics.csv").read_text()
    assert first[1] not in usual, "the averaged weights are validated"


@pytest.mark.parametrize("stop", [4, 8])
def test_a_resumed_fine_tuning_forgets_no_evaluation(finetuning: dict[str, Any], stop: int) -> None:
    """The second of four evaluations ends it, also where it was stopped there or before."""
    task = finetuning | {"row": f"stop{stop}", "task": "sst2", "epochs": 4}
    task["callbacks"] = {"early_stopping": {"patience": 1, "min_delta": 100.0}}
    with pytest.raises(SystemExit):
        clozelab.finetune("callbacks=early_stopping_score", **task, stop_after_step=stop)
    run = clozelab.finetune("callbacks=early_stopping_score", **task)
    assert (run.status, run.facts["steps"]) == ("complete", 8)


def test_groups_and_their_refusals(
    finetuning: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as where it is not installed
    task, score = finetuning | {"task": "sst2", "seed": 5}, "validation/accuracy"
    module, data, trainer = clozelab.compose("finetune", ["callbacks=early_stopping_score"], **task)
    (stopping,) = (one for one in trainer.callbacks if isinstance(one, EarlyStopping))
    assert stopping.monitor == score
    trainer.fit(module, datamodule=data)
    assert trainer.callback_metrics[score] == module.best.scores[score]
    with pytest.raises(SystemExit) as stopped:
        clozelab.finetune("debug=overfit", **task | {"stop_after_step": 3})
    assert stopped.value.code == 143
    lines = next(Path(task["runs_dir"]).glob("debug/**/metrics.csv")).read_text().splitlines()
    tokens = [int(line.split(",")[1]) for line in lines if ",train/loss," in line]
    assert tokens == [tokens[0], 2 * tokens[0], 3 * tokens[0]], "the same batch at each step"
    for words, message in (
        (["logger=mlflow"], "mlflow"),
        (["+trainer.lightning.max_epochs=3"], "max_epochs: no such argument is open here"),
        (["trainer=mps"], "trainer=mps needs Apple's GPU"),
        (["callbacks=ema", "callbacks.ema.decy=1"], "decy"),
        (["+callbacks.mine._target_=os.system"], "is not allowed"),
    ):
        with pytest.raises(Exception, match=message):
            clozelab.compose("finetune", words, **task)


def test_positions_grow_under_a_trainer_of_ones_own(
    pretraining: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    grown: list[tuple[int, int]] = []
    monkeypatch.setattr(Embeddings, "tile_positions", lambda _, *how: grown.append(how))
    phase = PRETRAIN["phases"][0] | {"steps": 1}
    phases = [phase | {"seq_length": length} for length in (32, 64)]
    words = ["objective=mlm", "position_growth=tile"]
    module, data, own = clozelab.compose("pretrain", words, **pretraining | {"phases": phases})
    trainer = Trainer(**BARE, enable_checkpointing=False, max_epochs=1)
    trainer.fit(module, datamodule=data)
    assert grown == [(32, 64)]
    own.fit(module, datamodule=data)
    assert grown == [(32, 64)] * 2


def test_compiling_and_recomputing_are_the_modules_own(
    compose: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []
    for module_name in ("modules.pretraining", "assembly.finetuning"):
        noted = lambda encoder, dynamic, **_: compiled.append((encoder, dynamic))  # noqa: E731
        monkeypatch.setattr(f"clozelab.{module_name}.compile_encoder", noted)
    module, _ = compose("mlm", "trainer.compile=true", "trainer.gradient_checkpointing=true")
    tuned, _ = compose("sst2", "trainer.compile=true")
    assert [*module.model.encoders] == [encoder for encoder, dynamic in compiled if not dynamic]
    assert [tuned.encoder] == [encoder for encoder, dynamic in compiled if dynamic]
    assert module.model.encoders[0].gradient_checkpointing
    assert not tuned.encoder.gradient_checkpointing


def test_averaged_weights_are_kept_with_the_answers_that_they_gave(
    finetuning: dict[str, Any],
) -> None:
    words = ["task=sst2", "callbacks=ema", "callbacks.ema.decay=0.9"]
    settings = finetuning | {"keep_model": True, "learning_rate": 0.01}
    module, data, trainer = clozelab.compose("finetune", words, **settings)
    trainer.fit(module, datamodule=data)
    kept, module.best = module.best, None
    module.load_state_dict(kept.weights)
    Trainer(**BARE).validate(module, datamodule=data, verbose=False)
    logits = [prediction["logits"] for prediction in kept.predictions]
    assert logits == [prediction["logits"] for prediction in module.best.predictions]


@pytest.mark.parametrize("decay", [0.5, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_run_with_averages_goes_on_to_the_same_bits_and_keeps_averages(
    pretraining: dict[str, Any], decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With decay 1 the average is that of the first step for ever, in every kept encoder."""
    common = pretraining | {"objective": "mlm", "keep_encoders": [0.75], "seed": 7}
    common["validation"] = PRETRAIN["validation"] | {"interval_steps": 1}
    common["callbacks"] = {"early_stopping": {"patience": 4}, "ema": {"decay": decay}}

    def train(arm: str, **more: Any) -> Any:
        words = "callbacks=[early_stopping,ema]"
        return clozelab.pretrain(words, **common, arm=f"{arm}{decay}", **more)

    def killed(_module: object) -> None:
        raise OSError("killed")

    whole = train("whole")
    with pytest.raises(SystemExit):
        train("parts", stop_after_step=2)
    # Killed behind its last checkpoint, it has nothing left to train.
    with monkeypatch.context() as patch, pytest.raises(OSError, match="killed"):
        patch.setattr(PretrainingModule, "on_train_end", killed)
        train("parts")
    parts = train("parts")
    assert (whole.status, parts.status, parts.facts["steps"]) == ("complete", "complete", 4)
    weights = {}
    for place in ("encoder", "encoders/step-3"):
        one, other = (load_file(run.folder / place / "model.safetensors") for run in (whole, parts))
        assert are_same(one, other)
        weights[place] = one
    assert are_same(weights["encoder"], weights["encoders/step-3"]) == (decay == 1.0)


def test_a_run_that_reuses_nothing_begins_anew(pretraining: dict[str, Any]) -> None:
    common = pretraining | {"objective": "mlm", "arm": "again"}
    common["trainer"] = TINY["trainer"] | {"log_interval_steps": 1}
    whole = clozelab.pretrain(**common)
    (whole.folder / "of_before").touch()
    assert (clozelab.pretrain(**common).folder / "of_before").is_file()  # the control
    again = clozelab.pretrain(**common, reuse="never")
    assert (again.status, again.fingerprint) == ("complete", whole.fingerprint)
    assert not (again.folder / "of_before").exists()
    for mode in ("fast", "profiler"):  # of other settings, in one folder
        with refuses("stopped after step 3, by stop_after_step", SystemExit):
            clozelab.pretrain(f"debug={mode}", **common, stop_after_step=3)
        (folder,) = Path(common["runs_dir"]).glob("debug/*/pretrain/again/*")
        lines = (folder / "metrics.csv").read_text().splitlines()
        assert [line[:2] for line in lines if ",train/loss" in line] == ["1,", "2,", "3,"]
    assert (folder / "fit-profile.txt").is_file()
