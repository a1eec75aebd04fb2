"""A step whose batches keep their memory, as CUDA graphs want it, is the ordinary step to the bit.

Nothing is captured on a CPU: what is there runs as written, on the memory that a graph would have.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.modules.test_pretraining import TOTAL, ToyRun, collate, global_batch
from torch import Tensor, nn

from clozelab.modules import graphs
from clozelab.modules.graphs import StepGraphs, shapes_of
from clozelab.optim.adamw import UncorrectedAdamW, build_adamw
from clozelab.training.callbacks import TrainingInterruptedError


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
        self.graphs = StepGraphs(
            self.forward_backward,
            lambda: torch.ones(()),
            self.optimizer,
            torch.device("cpu"),
            captures=False,
        )

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


def optimizers() -> Iterator[tuple[str, Any]]:
    settings = {"betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.01}
    yield "adamw", {**settings, "bias_correction": True}
    yield "uncorrected", {**settings, "bias_correction": False}
    yield "muon", {**settings, "bias_correction": True, "matrix_learning_rate": 0.02}


@pytest.mark.parametrize(("name", "settings"), list(optimizers()))
def test_a_rate_on_the_device_is_the_same_rate(name: str, settings: dict[str, Any]) -> None:
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
        optimizer = build_adamw(model.items(), learning_rate=0.01, **settings)
        step = StepGraphs(
            lambda *_: torch.zeros(()),
            lambda: torch.zeros(()),
            optimizer,
            torch.device("cpu"),
            captures=False,
        )
        for number in range(5):
            for group in optimizer.param_groups:
                group["lr"] *= 0.9
            for parameter in model.values():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            rates = [group["lr"] for group in optimizer.param_groups]
            step.captures = on_device
            step.rates.copy_(torch.tensor(rates))
            step._run_update()
            step.captures = False
            assert [group["lr"] for group in optimizer.param_groups] == rates, number
            assert all(isinstance(rate, float) for rate in rates)
        results.append(torch.cat([parameter.detach().reshape(-1) for parameter in model.values()]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-6)
    assert graphs.refusal(optimizer, []) == "", name


def test_what_cannot_be_captured_is_said() -> None:
    weight = nn.Parameter(torch.ones(2))
    assert "SGD" in graphs.refusal(torch.optim.SGD([weight], 0.1), [])
    adamw = UncorrectedAdamW([weight], learning_rate=0.1, betas=(0.9, 0.99), eps=1e-6)
    assert graphs.refusal(adamw, []) == ""
