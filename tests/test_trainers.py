"""Our modules and data modules under a plain Trainer: its epochs, defaults, callbacks, limits,
tuner and strategies.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
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


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("trainers")
    places: dict[str, Any] = {
        name: str(root / name) for name in ("data_dir", "cache_dir", "runs_dir")
    }
    encoder = (
        clozelab.pretrain(scale="demo", objective="mlm_nsp", **places, **TINY, **PRETRAIN).folder
        / "encoder"
    )
    return {"scale": "demo", **places, **TINY, "encoder": encoder}


@pytest.fixture
def compose(places: dict[str, Any]) -> Callable[..., Any]:
    """compose(objective or task, *words) -> module and data module: 4 steps, or 2 epochs of 4
    steps.
    """

    def make(name: str, *words: str) -> Any:
        common = {key: value for key, value in places.items() if key != "encoder"}
        if name not in TASKS:
            return clozelab.compose(
                "pretrain", [f"objective={name}", *words], **common, **PRETRAIN
            )[:2]
        words += ("task.data.features=second_to_last",) * ("features" in name)
        return clozelab.compose(
            "finetune", [f"task={name}", *words], row="mine", **places, **FINETUNE | {"epochs": 2}
        )[:2]

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


def bits(module: torch.nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in module.state_dict().values()]


LONGER = ("mlm", "ltr", "rtd", "stsb", "swag", "ner_microworld", "ner_features_microworld")
NAMES = [
    pytest.param(one, marks=[pytest.mark.slow] * (one in LONGER))
    for one in ("mlm", "mlm_nsp", "ltr", "rtd", *TASKS)
]


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_trainer_trains_the_plan(
    name: str, compose: Callable[..., Any], tmp_path: Path
) -> None:
    module, data = compose(name)
    is_task = name in TASKS
    monitor = f"validation/{TASKS.get(name, 'loss')}"
    counts = Counts()
    saved = ModelCheckpoint(tmp_path, monitor=monitor, mode="max" if is_task else "min")
    speed = ThroughputMonitor(batch_size_fn=lambda batch: len(batch), window_size=2)
    trainer = Trainer(
        **QUIET,
        max_epochs=3,
        log_every_n_steps=1,
        logger=[CSVLogger(tmp_path, "one"), CSVLogger(tmp_path, "two")],
        callbacks=[
            counts,
            saved,
            EarlyStopping(monitor, mode="max" if is_task else "min", patience=9),
            speed,
        ],
    )
    trainer.fit(module, datamodule=data)
    assert counts.steps == list(range(module.total_steps)), (
        "each step of the plan once, under max_epochs=3"
    )
    assert counts.validations == len(data.epoch_ends)
    assert {"train/loss", monitor} <= trainer.callback_metrics.keys()
    assert (tmp_path / "two/version_0/metrics.csv").is_file()
    last = dict(trainer.callback_metrics)
    assert trainer.validate(module, datamodule=data, verbose=False)[0][monitor] == float(
        last[monitor]
    )
    assert float(saved.best_model_score) == float(last[monitor]) or is_task
    held = torch.load(saved.best_model_path, weights_only=True)
    assert held["state_dict"].keys() == module.state_dict().keys()
    again, _ = compose(name)
    loaded = type(again).load_from_checkpoint(
        saved.best_model_path, weights_only=True, **again.arguments
    )
    assert all(
        torch.equal(value, held["state_dict"][key]) for key, value in loaded.state_dict().items()
    )
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
    compose: Callable[..., Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    module, data = compose(name, *["task.data.evaluation_tokens=200"] * (name == "sst2"))
    counts = Counts()
    trainer = Trainer(
        **QUIET, logger=False, default_root_dir=tmp_path, callbacks=[counts], **limits
    )
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
        trainer = Trainer(
            **QUIET,
            logger=False,
            default_root_dir=tmp_path / folder,
            enable_checkpointing=False,
            **options,
        )
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint)
        return module, trainer

    whole, _ = fit("whole", max_epochs=2)
    # in the middle of an epoch of fine-tuning, and at its end
    for stopped in ({"max_steps": 3}, {"max_epochs": 1}):
        _, trainer = fit("part", **stopped)
        trainer.save_checkpoint(tmp_path / "part.ckpt")
        module, trainer = fit("part", tmp_path / "part.ckpt", max_epochs=2)
        assert trainer.global_step == whole.total_steps
        assert all(
            torch.equal(one, other) for one, other in zip(bits(whole), bits(module), strict=True)
        )


@pytest.mark.parametrize("option", [{"accumulate_grad_batches": 2}, {"gradient_clip_val": 1.0}])
def test_what_would_change_a_step_is_refused(
    option: dict[str, Any], compose: Callable[..., Any], tmp_path: Path
) -> None:
    for name in ("mlm", "sst2"):
        module, data = compose(name)
        trainer = Trainer(**QUIET, logger=False, default_root_dir=tmp_path, **option)
        with pytest.raises(
            Exception, match=r"a batch is a whole optimizer step|not supported for manual"
        ):
            trainer.fit(module, datamodule=data)


@pytest.mark.parametrize("name", [pytest.param("mlm", marks=pytest.mark.slow), "sst2"])
def test_the_tuner_finds_a_learning_rate(
    name: str, compose: Callable[..., Any], tmp_path: Path
) -> None:
    module, data = compose(name)
    before = bits(module)
    trainer = Trainer(**QUIET, logger=False, default_root_dir=tmp_path, enable_checkpointing=False)
    finder = Tuner(trainer).lr_find(module, datamodule=data, num_training=4, update_attr=False)
    assert len(finder.results["loss"]) == 4 and finder.results["lr"][0] < finder.results["lr"][-1]
    assert all(torch.equal(one, other) for one, other in zip(before, bits(module), strict=True))
    module.learning_rate = 0.25
    rates: list[float] = []
    watch = Counts()
    watch.on_train_batch_end = lambda trainer, *_: rates.append(
        trainer.optimizers[0].param_groups[0]["lr"]
    )  # type: ignore[method-assign]
    Trainer(**QUIET, logger=False, default_root_dir=tmp_path, callbacks=[watch]).fit(
        module, datamodule=data
    )
    assert len(rates) == module.total_steps and 0.1 < max(rates) <= 0.25
    with pytest.raises(Exception, match="batch_size"):
        Tuner(trainer).scale_batch_size(module, datamodule=data)


QUICK = ("mlm_nsp", "sst2")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=[pytest.mark.slow] * (one not in QUICK))
        for one in ("mlm", "mlm_nsp", "ltr", "rtd", *TASKS)
    ],
)
def test_two_processes_train_as_one(name: str, compose: Callable[..., Any], tmp_path: Path) -> None:
    found: list[dict[str, float]] = []
    off = ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"]
    for folder, options in (("one", {}), ("two", {"strategy": "ddp_fork", "devices": 2})):
        module, data = compose(name, *off * (name not in TASKS))
        trainer = Trainer(
            **QUIET, logger=False, default_root_dir=tmp_path / folder, max_epochs=2, **options
        )
        trainer.fit(module, datamodule=data)
        found.append({key: float(value) for key, value in trainer.callback_metrics.items()})
        (path,) = (tmp_path / folder).rglob("*.ckpt")
        assert torch.load(path, weights_only=True)["global_step"] == module.total_steps
    one, two = found
    assert one.keys() == two.keys()
    if name not in TASKS:
        assert one["validation/loss"] == pytest.approx(two["validation/loss"], rel=1e-4)


def test_chosen_callbacks_and_loggers_work_in_a_run(places: dict[str, Any]) -> None:
    common = {key: value for key, value in places.items() if key != "encoder"} | PRETRAIN
    common |= {"objective": "mlm", "validation": PRETRAIN["validation"] | {"interval_steps": 1}}
    common["trainer"] = TINY["trainer"] | {"log_interval_steps": 1}
    plain = clozelab.pretrain("+trainer.lightning.detect_anomaly=true", **common, arm="plain")
    names = "callbacks=[early_stopping,ema,lr_monitor,gradient_statistics,throughput]"
    loose = {"early_stopping": {"min_delta": 100.0, "patience": 1}, "ema": {"decay": 0.5}}
    run = clozelab.pretrain(
        names, "logger=[csv,tensorboard]", **common, arm="watched", callbacks=loose
    )
    assert (plain.facts["steps"], run.facts["steps"], run.status) == (
        4,
        2,
        "complete",
    ), "stopped early"
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
    assert (
        yaml.safe_load((run.folder / "csv/hparams.yaml").read_text())["position_growth"] == "tile"
    )
    assert any((run.folder / "tensorboard").iterdir())
    first = [line.split(",")[-1] for line in said.splitlines() if ",validation/loss," in line]
    usual = (plain.folder / "metrics.csv").read_text()
    assert first[1] not in usual, "the averaged weights are validated"


@pytest.mark.parametrize("stop", [4, 8])
def test_a_resumed_fine_tuning_forgets_no_evaluation(places: dict[str, Any], stop: int) -> None:
    """The second of four evaluations, of which none is better, ends it: after it, or after the one
    before, it is stopped and goes on.
    """
    task: dict[str, Any] = places | FINETUNE | {"row": f"stop{stop}", "task": "sst2", "epochs": 4}
    task["callbacks"] = {"early_stopping": {"patience": 1, "min_delta": 100.0}}
    with pytest.raises(SystemExit):
        clozelab.finetune("callbacks=early_stopping_score", **task, stop_after_step=stop)
    run = clozelab.finetune("callbacks=early_stopping_score", **task)
    assert (run.status, run.facts["steps"]) == ("complete", 8)


def test_groups_and_their_refusals(places: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as where it is not installed
    task: dict[str, Any] = places | FINETUNE | {"row": "mine", "task": "sst2", "seed": 5}
    module, data, trainer = clozelab.compose("finetune", ["callbacks=early_stopping_score"], **task)
    assert [one.monitor for one in trainer.callbacks if isinstance(one, EarlyStopping)] == [
        "validation/accuracy"
    ]
    trainer.fit(module, datamodule=data)
    assert (
        trainer.callback_metrics["validation/accuracy"] == module.best.scores["validation/accuracy"]
    )
    with pytest.raises(SystemExit) as stopped:
        clozelab.finetune("debug=overfit", **task | {"stop_after_step": 3})
    assert stopped.value.code == 143
    lines = next(Path(places["runs_dir"]).glob("debug/**/metrics.csv")).read_text().splitlines()
    tokens = [int(line.split(",")[1]) for line in lines if ",train/loss," in line]
    assert tokens == [tokens[0], 2 * tokens[0], 3 * tokens[0]], "the same batch at each step"
    for words, message in (
        (["logger=mlflow"], "mlflow"),
        (
            ["+trainer.lightning.max_epochs=3"],
            "trainer.lightning.max_epochs: no such argument is open here",
        ),
        (["trainer=mps"], "trainer=mps needs Apple's GPU"),
        (["callbacks=ema", "callbacks.ema.decy=1"], "decy"),
        (["+callbacks.mine._target_=os.system"], "is not allowed"),
    ):
        with pytest.raises(Exception, match=message):
            clozelab.compose("finetune", words, **task)


def test_positions_grow_under_a_trainer_of_ones_own(
    places: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    grown: list[tuple[int, int]] = []
    monkeypatch.setattr(Embeddings, "tile_positions", lambda _, *how: grown.append(how))
    common = {key: value for key, value in places.items() if key != "encoder"} | PRETRAIN
    common["phases"] = [
        PRETRAIN["phases"][0] | {"steps": 1, "seq_length": length} for length in (32, 64)
    ]
    module, data, own = clozelab.compose(
        "pretrain", ["objective=mlm", "position_growth=tile"], **common
    )
    Trainer(**QUIET, logger=False, enable_checkpointing=False, max_epochs=1).fit(
        module, datamodule=data
    )
    assert grown == [(32, 64)]
    own.fit(module, datamodule=data)
    assert grown == [(32, 64)] * 2


def test_compiling_and_recomputing_are_the_modules_own(
    places: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []
    for module_name in ("modules.pretraining", "assembly.finetuning"):
        noted = lambda encoder, dynamic, **_: compiled.append((encoder, dynamic))  # noqa: E731
        monkeypatch.setattr(f"clozelab.{module_name}.compile_encoder", noted)
    common = {key: value for key, value in places.items() if key != "encoder"} | PRETRAIN
    words = ["trainer.compile=true", "trainer.gradient_checkpointing=true"]
    module, _, _ = clozelab.compose("pretrain", ["objective=mlm", *words], **common)
    tuned, _, _ = clozelab.compose(
        "finetune", ["task=sst2", words[0]], row="mine", **places, **FINETUNE
    )
    assert [*module.model.encoders] == [encoder for encoder, dynamic in compiled if not dynamic]
    assert [tuned.encoder] == [encoder for encoder, dynamic in compiled if dynamic]
    assert (
        module.model.encoders[0].gradient_checkpointing and not tuned.encoder.gradient_checkpointing
    )


def test_averaged_weights_are_kept_with_the_answers_that_they_gave(places: dict[str, Any]) -> None:
    words = [
        "callbacks=ema",
        "callbacks.ema.decay=0.9",
        "task=sst2",
        "keep_model=true",
        "learning_rate=0.01",
    ]
    module, data, trainer = clozelab.compose("finetune", words, row="mine", **places, **FINETUNE)
    trainer.fit(module, datamodule=data)
    kept, module.best = module.best, None
    module.load_state_dict(kept.weights)
    Trainer(**QUIET, logger=False).validate(module, datamodule=data, verbose=False)
    assert [one["logits"] for one in kept.predictions] == [
        one["logits"] for one in module.best.predictions
    ]


@pytest.mark.parametrize("decay", [0.5, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_run_with_averages_goes_on_to_the_same_bits_and_keeps_averages(
    places: dict[str, Any], decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With decay 1 the average is that of the first step for ever: in a kept encoder as in the last
    one.
    """
    common = {key: value for key, value in places.items() if key != "encoder"} | PRETRAIN
    common |= {"objective": "mlm", "keep_encoders": [0.75], "seed": 7}
    common["validation"] = PRETRAIN["validation"] | {"interval_steps": 1}
    loose = {"early_stopping": {"patience": 4}, "ema": {"decay": decay}}

    def killed(_module: object) -> None:
        raise OSError("killed")

    of_arm: dict[str, Any] = common | {"callbacks": loose}
    words = ["callbacks=[early_stopping,ema]"]
    whole = clozelab.pretrain(*words, **of_arm, arm=f"whole{decay}")
    with pytest.raises(SystemExit):
        clozelab.pretrain(*words, **of_arm, arm=f"parts{decay}", stop_after_step=2)
    # Killed behind its last checkpoint, it has nothing left to train.
    with monkeypatch.context() as patch, pytest.raises(OSError, match="killed"):
        patch.setattr(PretrainingModule, "on_train_end", killed)
        clozelab.pretrain(*words, **of_arm, arm=f"parts{decay}")
    parts = clozelab.pretrain(*words, **of_arm, arm=f"parts{decay}")
    assert (whole.status, parts.status, parts.facts["steps"]) == ("complete", "complete", 4)
    for place in ("encoder", "encoders/step-3"):
        one, other = (load_file(run.folder / place / "model.safetensors") for run in (whole, parts))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    last, kept = (
        load_file(whole.folder / place / "model.safetensors")
        for place in ("encoder", "encoders/step-3")
    )
    assert all(torch.equal(last[key], kept[key]) for key in last) == (decay == 1.0)


def test_a_run_that_reuses_nothing_begins_anew(places: dict[str, Any]) -> None:
    common = {key: value for key, value in places.items() if key != "encoder"} | PRETRAIN
    common |= {
        "objective": "mlm",
        "arm": "again",
        "trainer": TINY["trainer"] | {"log_interval_steps": 1},
    }
    whole = clozelab.pretrain(**common)
    (whole.folder / "of_before").touch()
    assert (clozelab.pretrain(**common).folder / "of_before").is_file(), (
        "the control: it is complete already"
    )
    again = clozelab.pretrain(**common, reuse="never")
    assert (again.status, again.fingerprint) == ("complete", whole.fingerprint)
    assert not (again.folder / "of_before").exists()
    for mode, reason in (
        ("fast", "stopped after step 3, by stop_after_step"),
        ("profiler", "stopped after step 3, by stop_after_step"),
    ):  # of other settings, in one folder
        with refuses(reason, SystemExit):
            clozelab.pretrain(f"debug={mode}", **common, stop_after_step=3)
        (folder,) = Path(places["runs_dir"]).glob("debug/*/pretrain/again/*")
        steps = [
            line.split(",")[0]
            for line in (folder / "metrics.csv").read_text().splitlines()
            if ",train/loss" in line
        ]
        assert steps == ["1", "2", "3"]
    assert (folder / "fit-profile.txt").is_file()
