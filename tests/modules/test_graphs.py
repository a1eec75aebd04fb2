"""A step whose batches keep their memory, as CUDA graphs want it, is the ordinary step to the bit.

Nothing is captured on a CPU: what is there runs as written, on the memory that a graph would have.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from tests.composing import composed
from tests.modules.test_pretraining import (
    HARDWARE,
    TOTAL,
    Spikes,
    ToyRun,
    collate,
    global_batch,
)
from torch import Tensor, nn

from clozelab.addresses import build
from clozelab.assembly.encoders import build_objectives, encoder_config
from clozelab.corpus.packing import SpecialIds
from clozelab.launch.sweep import phase_objectives
from clozelab.models.encoder import Encoder
from clozelab.modules import graphs, pretraining
from clozelab.modules.graphs import DeferredNumber, StepGraphs, shapes_of
from clozelab.modules.pretraining import PretrainingModule
from clozelab.optim.adamw import UncorrectedAdamW, build_adamw
from clozelab.training import guards, trainer
from clozelab.training.callbacks import GradientStatistics, TrainingInterruptedError
from clozelab.training.checkpoints import load_file
from clozelab.training.trainer import choose_hardware


def trained(run: ToyRun) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in run.fit().state_dict().items()}


def require_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"micro": 4},  # a smaller micro-batch at the end of each step
        {"micro": 6, "spike": "skip", "validation": 3, "log": 3},
        {"dropout": 0.0, "clip": 0.0},
    ],
)
def test_the_same_bits_as_the_ordinary_step(tmp_path: Path, options: dict[str, Any]) -> None:
    ordinary = ToyRun(tmp_path / "ordinary", **options)
    replayed = ToyRun(tmp_path / "replayed", graphs=True, **options)
    require_same(trained(ordinary), trained(replayed))
    assert ordinary.rows() == replayed.rows()
    assert replayed.module._graphs is not None


class GradientPlaces(Callback):
    """Where the gradients lie behind each step: a graph writes there and nowhere else."""

    def __init__(self) -> None:
        self.places: set[tuple[int, ...]] = set()

    def on_train_batch_end(self, _: Trainer, module: Any, *__: object, **___: object) -> None:
        gradients = [p.grad for p in module.parameters() if p.requires_grad]
        self.places.add(tuple(0 if grad is None else grad.data_ptr() for grad in gradients))


def test_a_validation_leaves_the_gradients_where_graphs_write_them(tmp_path: Path) -> None:
    """Lightning frees them before a validation, and a replay makes no new ones."""
    kept = GradientPlaces()
    ToyRun(tmp_path, graphs=True, validation=2).fit(kept)
    assert len(kept.places) == 1 and 0 not in kept.places.pop()


def test_another_learning_rate_is_noticed(tmp_path: Path) -> None:
    ordinary = trained(ToyRun(tmp_path / "ordinary"))
    other = trained(ToyRun(tmp_path / "other", graphs=True, rate=0.0100001))
    assert any(not torch.equal(value, other[name]) for name, value in ordinary.items())


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    whole = ToyRun(tmp_path / "whole", graphs=True)
    weights = trained(whole)
    cut = ToyRun(tmp_path / "cut", graphs=True, stop_after=3, log=2)
    with pytest.raises(TrainingInterruptedError):
        cut.fit()
    cut.options["stop_after"] = None
    require_same(weights, trained(cut))
    # And where it goes on without.
    other = ToyRun(tmp_path / "other", graphs=True, stop_after=5)
    with pytest.raises(TrainingInterruptedError):
        other.fit()
    other.options |= {"stop_after": None, "graphs": False}
    require_same(weights, trained(other))
    assert TOTAL > 5


def on_cpu(
    optimizer: Any,
    forward_backward: Any = lambda *_: torch.zeros(()),
    norm: Any = lambda: torch.ones(()),
    **options: bool,
) -> StepGraphs:
    """The steps of graphs, which are not captured."""
    cpu = torch.device("cpu")
    return StepGraphs(forward_backward, norm, optimizer, cpu, captures=False, **options)


class OneWeight:
    """A loss that is linear in one weight, and a parameter that no batch reaches."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(torch.ones(2, 3))
        self.unused = nn.Parameter(torch.ones(2, 3))
        named = {"encoder.layer.0.weight": self.weight, "encoder.layer.1.weight": self.unused}
        self.optimizer = build_adamw(
            named.items(),
            learning_rate=0.1,
            betas=(0.9, 0.999),
            eps=1e-8,
            weight_decay=0.1,
            bias_correction=True,
        )
        self.seen: list[list[int]] = []
        self.graphs = on_cpu(self.optimizer, self.forward_backward)

    def forward_backward(self, batch: dict[str, Any], counts: Tensor, own: Tensor) -> Tensor:
        self.seen.append(batch["layout"].first_rows.tolist())
        assert set(batch) <= {"layout", "phase", "input_ids", "next_sentence_label"} | {
            "prediction_positions",
            "prediction_labels",
        }, "host values would be those of a capture"
        loss = (self.weight * batch["prediction_labels"].sum()).sum() / counts[0]
        loss.backward()
        return loss.detach()


def test_what_no_batch_reaches_is_not_updated() -> None:
    step = OneWeight()
    batch = collate(global_batch(0)) | {"contents": 7, "num_predictions": 3}
    for _ in range(3):
        step.graphs.add_gradient(batch, torch.ones(1), torch.ones(1))
        step.graphs.finish(updates=True)
    assert torch.equal(step.unused, torch.ones(2, 3)), "not even decayed"
    assert not torch.equal(step.weight, torch.ones(2, 3))
    assert step.weight.grad is not None and not step.weight.grad.any()


def test_an_update_that_is_left_out_changes_nothing() -> None:
    step = OneWeight()
    batch = collate(global_batch(0))
    for updates in (True, False, True):
        before = step.weight.clone()
        step.graphs.add_gradient(batch, torch.ones(1), torch.ones(1))
        step.graphs.finish(updates=updates)
        assert torch.equal(before, step.weight) is not updates
    assert float(step.optimizer.state[step.weight]["step"]) == 2


def test_batches_of_other_shapes_have_memory_of_their_own() -> None:
    step = OneWeight()
    for rows in (6, 4, 6, 4):
        loss = step.graphs.add_gradient(
            collate(global_batch(rows)[:rows]), torch.ones(1), torch.ones(1)
        )
        labels = collate(global_batch(rows)[:rows])["prediction_labels"]
        assert float(loss) == 6 * float(labels.sum())
    assert step.seen == [[0, 7, 14, 21, 28, 35], [0, 7, 14, 21]] * 2
    # An overflow runs on memory that is not kept.
    for rows in range(1, 4):
        assert len({shapes_of(collate(global_batch(0)[:n])) for n in range(1, rows + 1)}) == rows


def test_padding_is_another_shape_and_other_lengths_are_not() -> None:
    batch = collate(global_batch(0))
    layout = type(batch["layout"])
    padded = batch | {"layout": layout.rectangle([7, 7, 7, 7, 7, 3], 7)}
    otherwise = batch | {"layout": layout.rectangle([7, 2, 7, 7, 7, 7], 7)}
    assert shapes_of(padded) == shapes_of(otherwise) != shapes_of(batch)
    ragged = [batch | {"layout": layout.ragged(lengths)} for lengths in ([7, 6, 8], [8, 6, 7])]
    assert shapes_of(ragged[0]) != shapes_of(ragged[1]), "a ragged stream is laid out on the host"


OPTIMIZERS = {
    "adamw": {"bias_correction": True},
    "uncorrected": {"bias_correction": False},
    "muon": {"bias_correction": True, "matrix_learning_rate": 0.02},
}
USUAL: dict[str, Any] = {"betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.01}
EVERY_OPTIMIZER = pytest.mark.parametrize("settings", OPTIMIZERS.values(), ids=OPTIMIZERS)


@EVERY_OPTIMIZER
def test_a_rate_on_the_device_is_the_same_rate(settings: dict[str, Any]) -> None:
    """Graphs put rates there; the numbers of the host come back behind each update."""
    results = []
    for on_device in (False, True):
        generator = torch.Generator().manual_seed(0)
        model = {
            key: nn.Parameter(torch.randn(shape, generator=generator))
            for key, shape in (
                ("encoder.layer.0.weight", (8, 4)),
                ("encoder.layer.0.bias", (8,)),
                ("encoder.embeddings.weight", (9, 4)),
            )
        }
        optimizer = build_adamw(model.items(), learning_rate=0.01, **USUAL, **settings)
        step = on_cpu(optimizer)
        for number in range(5):
            for group in optimizer.param_groups:
                group["lr"] *= 0.9
            for parameter in model.values():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            rates = [group["lr"] for group in optimizer.param_groups]
            step.captures = on_device
            step.numbers.copy_(torch.tensor([*rates, math.inf]))
            step._run_update()
            step.captures = False
            assert [group["lr"] for group in optimizer.param_groups] == rates, number
            assert all(isinstance(rate, float) for rate in rates)
        results.append(torch.cat([parameter.detach().reshape(-1) for parameter in model.values()]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-6)
    assert graphs.refusal(optimizer, [], []) == ""


@EVERY_OPTIMIZER
@pytest.mark.parametrize("spikes", [[1, 2, 5], pytest.param([3], marks=pytest.mark.slow)])
def test_an_update_beyond_the_limit_is_taken_back_to_the_bit(
    settings: dict[str, Any], spikes: list[int]
) -> None:
    """Weights, moments and counts; as if those steps had never been, whatever their gradients."""

    def trained_by(numbers: Iterable[int], *, left_out: Container[int]) -> list[Tensor]:
        weights = {
            key: nn.Parameter(torch.ones(shape))
            for key, shape in (("encoder.layer.0.weight", (8, 4)), ("encoder.layer.0.bias", (8,)))
        }
        optimizer = build_adamw(weights.items(), learning_rate=0.01, **USUAL, **settings)
        step = on_cpu(optimizer, norm=lambda: norm, skips=True)
        for number in numbers:
            is_spike = number in left_out
            norm = torch.tensor(1e9 if number == 3 else math.nan) if is_spike else torch.ones(())
            for weight in weights.values():
                generator = torch.Generator().manual_seed(number)
                gradient = torch.randn(weight.shape, generator=generator)
                weight.grad = gradient * math.nan if is_spike else gradient
            step.clip()
            step.finish(updates=True, limit=10.0)
        states = [state.values() for state in optimizer.state.values()]
        return [*weights.values(), *chain.from_iterable(states)]

    rest = [number for number in range(1, 7) if number not in spikes]
    left_out = trained_by(range(1, 7), left_out=spikes)
    for ours, expected in zip(left_out, trained_by(rest, left_out=()), strict=True):
        assert torch.equal(ours, expected)
    taken = trained_by(range(1, 7), left_out=())
    assert not torch.equal(left_out[0], taken[0]), "the spike's update is what is missing"


@pytest.mark.parametrize("factor", [1e6, float("nan")])
@pytest.mark.parametrize(
    ("steps", "options"),
    [([5], {"log": 3, "interval": 2}), ([4, 5, 7], {"log": 10}), ([8], {})],
)
def test_a_spike_that_the_device_leaves_out_is_recorded(
    tmp_path: Path,
    knows_soon: None,
    caplog: pytest.LogCaptureFixture,
    steps: list[int],
    options: dict[str, Any],
    factor: float,
) -> None:
    """A step late, and with the weights, curves, numbers and warnings of the ordinary step."""
    facts = []
    warnings = []
    runs = []
    for has_graphs in (False, True):
        caplog.clear()
        run = ToyRun(tmp_path / str(has_graphs), spike="skip", graphs=has_graphs, **options)
        run.fit(Spikes(steps, factor))
        runs.append(run)
        facts.append(run.module.facts()["steps_left_out"])
        # Other libraries log as well, and not all fill in their sentences.
        sentences = [message for message in caplog.messages if "left out" in message]
        warnings.append(sentences)
    assert facts[0] == facts[1] == steps
    assert len(warnings[0]) == len(facts[0])
    assert warnings[0] == warnings[1]
    require_same(runs[0].module.state_dict(), runs[1].module.state_dict())
    ordinary, replayed = (list(map(str, run.rows())) for run in runs)
    assert ordinary == replayed
    assert runs[0].module.spikes.state() == runs[1].module.spikes.state()


def test_a_norm_is_read_behind_the_update_that_it_decides_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So nothing waits; what is saved has the norms of all steps."""
    events: list[str] = []
    read = DeferredNumber.__float__
    finish = StepGraphs.finish
    monkeypatch.setattr(
        DeferredNumber, "__float__", lambda late: (events.append("read"), read(late))[1]
    )

    def finishing(step: StepGraphs, **options: Any) -> None:
        events.append("update")
        finish(step, **options)

    monkeypatch.setattr(StepGraphs, "finish", finishing)
    run = ToyRun(tmp_path, spike="skip", graphs=True, log=100)
    run.fit()
    # The last step is a log point.
    assert events == ["update", *["read", "update"] * (TOTAL - 2), "read", "read", "update"]
    assert len(run.module.spikes.state()["logs"]) == TOTAL


def test_spikes_that_do_not_cease_end_a_run_of_graphs(
    tmp_path: Path, knows_soon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "MAX_SKIPPED", 3)
    run = ToyRun(tmp_path, spike="skip", graphs=True, interval=2)
    with pytest.raises(guards.DivergedError, match=r"step 6: .* the updates of 3 of the last"):
        run.fit(Spikes(range(3, 9), math.nan))
    assert run.module.spikes.left_out == [3, 4, 5]
    assert load_file(tmp_path / "checkpoints" / "last.ckpt")["global_step"] == 4


def test_what_cannot_be_captured_is_said() -> None:
    weight = nn.Parameter(torch.ones(2))
    assert "SGD" in graphs.refusal(torch.optim.SGD([weight], 0.1), [], [])
    plain = torch.optim.AdamW([weight], 0.1, fused=False)
    assert "AdamW" in graphs.refusal(plain, [], []), "it counts its steps on the host"
    assert graphs.refusal(torch.optim.AdamW([weight], 0.1, fused=True), [], []) == ""
    adamw = UncorrectedAdamW([weight], learning_rate=0.1, betas=(0.9, 0.99), eps=1e-6)
    assert graphs.refusal(adamw, [], []) == ""


def build_module(words: list[str]) -> PretrainingModule:
    """The module that a command line makes at scale=demo."""
    cfg = composed("pretrain", ["scale=demo", *words]).config
    objectives = build_objectives(phase_objectives(cfg))
    ids = SpecialIds(cls=2, sep=3, pad=0, mask=4, vocab_size=100)
    encoder = Encoder(encoder_config(cfg, ids, objectives[-1]))
    encoder.gradient_checkpointing = cfg.trainer.gradient_checkpointing
    return PretrainingModule(
        encoder,
        objectives,
        log_interval_steps=1,
        matmul_ceiling=0.0,
        optimizer_factory=build("optimizer", cfg.optimizer),
        schedule_factory=lambda optimizer, total_steps: None,
        total_steps=1,
        gradient_clip_norm=1.0,
        seed=1,
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], ""),
        (["objective=mlm", "optimizer=muon", "architecture=roberta"], ""),
        (["objective=rtd"], "the objective"),
        (["objective=ltr"], "the objective ltr"),
        (["architecture=longformer"], "LongAttention"),
        (["architecture=modernbert"], "RotaryPositions"),
        (["trainer.gradient_checkpointing=true"], "gradient_checkpointing"),
        (["optimizer=sgd"], "the optimizer SGD"),
    ],
)
def test_graphs_are_for_what_a_gpu_has_shown(words: list[str], reason: str) -> None:
    """auto passes over the rest in silence; on says why it cannot be."""
    module = build_module(words)
    module.choose_graphs("off")
    assert not module.cuda_graphs
    module.choose_graphs("auto")
    assert module.cuda_graphs is not bool(reason)
    if reason:
        with pytest.raises(ValueError, match=f"trainer.cuda_graphs=on does .*{reason}"):
            module.choose_graphs("on")
    else:
        module.choose_graphs("on")
    assert module.cuda_graphs is not bool(reason)


def test_graphs_leave_no_callback_silent() -> None:
    module = build_module([])
    module.choose_graphs("auto", [GradientStatistics()])
    assert not module.cuda_graphs
    with pytest.raises(ValueError, match="the callback GradientStatistics acts inside of a step"):
        module.choose_graphs("on", [GradientStatistics()])
    module.choose_graphs("on", [LearningRateMonitor()])
    assert module.cuda_graphs


def test_a_large_encoder_takes_graphs_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    module = build_module([])
    size = sum(parameter.numel() for parameter in module.parameters())
    for most, expected in ((size, True), (size - 1, False)):
        monkeypatch.setattr(pretraining, "MOST_PARAMETERS_OF_GRAPHS", most)
        module.cuda_graphs = False
        module.choose_graphs("auto")
        assert module.cuda_graphs is expected
    module.choose_graphs("on")
    assert module.cuda_graphs


def test_without_one_gpu_there_are_no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_hardware(**HARDWARE, cuda_graphs="auto").cuda_graphs == "off"
    message = "cuda_graphs=on is for one CUDA device"
    with pytest.raises(ValueError, match=message):
        choose_hardware(**HARDWARE, cuda_graphs="on")
    monkeypatch.setattr(trainer, "resolve_accelerator", lambda *_: "gpu")
    for choice in ("auto", "on", "off"):
        assert choose_hardware(**HARDWARE, cuda_graphs=choice).cuda_graphs == choice
    two = HARDWARE | {"devices": 2, "strategy": "ddp"}
    assert choose_hardware(**two, cuda_graphs="auto").cuda_graphs == "off"
    with pytest.raises(ValueError, match=message):
        choose_hardware(**two, cuda_graphs="on")
    for name in ("cpu", "gpu", "ddp", "fsdp"):
        assert composed("pretrain", [f"trainer={name}"]).config.trainer.cuda_graphs == "off"
