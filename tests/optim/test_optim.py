"""AdamW against the released formulas, its decay groups, and schedules."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest
import torch
from torch import nn

from clozelab.addresses import build
from clozelab.launch.sweep import compose
from clozelab.optim import muon
from clozelab.optim.adamw import UncorrectedAdamW, build_adamw, build_torch
from clozelab.optim.schedule import CosineDecay, LinearWarmupDecay, WarmupStableDecay

SETTINGS = {
    "learning_rate": 0.01,
    "betas": (0.9, 0.98),
    "eps": 1e-6,
    "weight_decay": 0.1,
    "bias_correction": True,
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Embedding(3, 4))


def released_step(
    p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, decay: float, lr: float
):
    """AdamWeightDecayOptimizer.apply_gradients of google-research/bert, in float64."""
    m = 0.9 * m + 0.1 * g
    v = 0.98 * v + 0.02 * g * g
    update = m / (v.sqrt() + 1e-6) + decay * p
    return p - lr * update, m, v


def test_released_variant_equals_its_formulas() -> None:
    net = model()
    optimizer = build_adamw(net.named_parameters(), **(SETTINGS | {"bias_correction": False}))
    assert isinstance(optimizer, UncorrectedAdamW)
    names = [name for name, _ in net.named_parameters()]
    expected = {
        name: (p.detach().double(), 0 * p.detach().double(), 0 * p.detach().double())
        for name, p in net.named_parameters()
    }
    for step in range(5):
        torch.manual_seed(step)
        gradients = {name: torch.randn_like(p) for name, p in net.named_parameters()}
        for name, p in net.named_parameters():
            p.grad = gradients[name]
        optimizer.step()
        for name in names:
            p, m, v = expected[name]
            decay = 0.1 if p.ndim == 2 else 0.0
            expected[name] = released_step(p, gradients[name].double(), m, v, decay, 0.01)
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.detach().double(), expected[name][0], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "settings"), [("SGD", {"momentum": 0.9}), ("Adafactor", {}), ("NAdam", {})]
)
def test_optimizers_of_torch(name: str, settings: dict[str, float]) -> None:
    net = model()
    options = {"learning_rate": 0.01, "weight_decay": 0.1, "betas": [0.8, 0.9]}
    optimizer = build_torch(net.named_parameters(), name=name, settings=settings, **options)
    assert type(optimizer) is getattr(torch.optim, name)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert optimizer.param_groups[0].get("betas", (0.8, 0.9)) == (0.8, 0.9)
    before = [p.detach().clone() for p in net.parameters()]
    sum((p**2).sum() for p in net.parameters()).backward()
    optimizer.step()
    assert all(
        not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True) if a.any()
    )


@pytest.mark.parametrize("name", ["Lamb", "Lion"])
def test_optimizers_of_a_library(name: str) -> None:
    library = pytest.importorskip(
        "pytorch_optimizer", reason="needs pip install 'clozelab[optimizers]'"
    )
    torch.manual_seed(0)
    net = nn.ModuleDict(
        {"embeddings": nn.Embedding(6, 4), "layer": nn.ModuleList([nn.Linear(4, 4)])}
    )
    names = [f"net.{one}" for one, _ in net.named_parameters()]
    twin = copy.deepcopy(net)
    ours = build_torch(
        zip(names, net.parameters(), strict=True),
        name=name,
        library="pytorch_optimizer",
        learning_rate=0.02,
        weight_decay=0.1,
        betas=[0.8, 0.9],
    )
    embedding, matrix, bias = twin.parameters()
    groups = [
        {"params": [embedding, matrix], "weight_decay": 0.1},
        {"params": [bias], "weight_decay": 0.0},
    ]
    theirs = getattr(library, name)(groups, lr=0.02, betas=(0.8, 0.9))
    before = [p.detach().clone() for p in net.parameters()]
    for _ in range(3):
        for one, optimizer in ((net, ours), (twin, theirs)):
            optimizer.zero_grad()
            sum((p**3).sum() for p in one.parameters()).backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), twin.parameters(), strict=True))
    assert all(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_muon_against_another_library_and_over_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(muon, "product_dtype", lambda device: torch.bfloat16)  # as theirs
    library = pytest.importorskip(
        "pytorch_optimizer", reason="needs pip install 'clozelab[optimizers]'"
    )
    torch.manual_seed(0)
    net = nn.ModuleDict(
        {"embeddings": nn.Embedding(6, 4), "layer": nn.ModuleList([nn.Linear(4, 16)])}
    )
    twin = copy.deepcopy(net)

    def make() -> torch.optim.Optimizer:
        named = [(f"net.{name}", one) for name, one in net.named_parameters()]
        return build_adamw(named, **SETTINGS, matrix_learning_rate=0.02)

    ours = make()
    parts = zip(
        twin.parameters(), (0.1, 0.1, 0.0), (False, True, False), (0.01, 0.02, 0.01), strict=True
    )
    groups = [
        {"params": [p], "weight_decay": decay, "use_muon": muon, "lr": lr}
        for p, decay, muon, lr in parts
    ]
    theirs = library.Muon(groups, adamw_betas=SETTINGS["betas"], adamw_eps=SETTINGS["eps"])
    for step in range(6):
        if step == 3:  # another process goes on from a checkpoint, at another rate
            saved = ours.state_dict()
            ours = make()
            ours.load_state_dict(copy.deepcopy(saved))
            for group in [*ours.param_groups, *theirs.param_groups]:
                group["lr"] *= 0.5
        for one, optimizer in ((net, ours), (twin, theirs)):
            optimizer.zero_grad()
            sum((p**3).sum() for p in one.parameters()).backward()
            optimizer.step()
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"matrix_learning_rate": -1.0}, "optimizer.matrix_learning_rate is -1"),
        ({"matrix_learning_rate": 0.02, "momentum": 1.5}, "optimizer.momentum is 1.5"),
        ({"matrix_learning_rate": 0.02}, "no whole matrix of a layer"),
    ]
    for settings, message in refused:
        with pytest.raises(ValueError, match=message):
            build_adamw(model().named_parameters(), **SETTINGS, **settings)


def test_muon_takes_no_part_of_a_matrix() -> None:
    """What it takes apart of a sharded one is a copy, which no weight would hear of."""
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.ones(4, 4))
    net = nn.ModuleDict({"layer": nn.ModuleList([layer]), "head": nn.Linear(4, 2)})
    names = dict(net.named_parameters(prefix="net"))
    build_adamw(names.items(), **SETTINGS, matrix_learning_rate=0.02)
    layer.weight.full_tensor = None
    with pytest.raises(ValueError, match="with trainer=fsdp say optimizer=adamw"):
        build_adamw(names.items(), **SETTINGS, matrix_learning_rate=0.02)


@pytest.mark.parametrize("schedule", [LinearWarmupDecay, CosineDecay])
def test_warm_up_of_all_steps_ends(schedule: Any) -> None:
    """Of two steps 0.8 are both; the rate of a step behind the last one is asked for, too."""
    assert rates(2, 0.8, schedule)[:2] == [0.0, 1.0]


def test_other_schedules() -> None:
    cosine = rates(100, 0.1, CosineDecay, final_fraction=0.1)
    assert cosine[0] == 0
    assert cosine[10] == 2.0
    assert cosine[55] == pytest.approx(1.1)
    assert cosine[100] == pytest.approx(0.2)
    assert cosine[10:] == sorted(cosine[10:], reverse=True)
    stable = rates(100, 0.1, WarmupStableDecay, decay_fraction=0.2)
    assert stable[5] == 1.0
    assert set(stable[10:81]) == {2.0}
    assert stable[90] == pytest.approx(1.0)
    assert stable[100] == 0
    assert set(rates(100, 0.1, WarmupStableDecay, decay_fraction=0.0)[10:]) == {2.0}


def rates(
    total_steps: int, warmup_fraction: float, kind: type = LinearWarmupDecay, **settings: float
) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = kind(optimizer, total_steps=total_steps, warmup_fraction=warmup_fraction, **settings)
    seen = []
    for _ in range(total_steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return [*seen, optimizer.param_groups[0]["lr"]]


def test_rates_over_a_run() -> None:
    assert rates(10, 0.2) == pytest.approx([0.0, 1.0, 1.6, 1.4, 1.2, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0])
    assert rates(4, 0.0) == pytest.approx([2.0, 1.5, 1.0, 0.5, 0.0])


@pytest.mark.parametrize(
    ("words", "takes"),
    [
        (["scale=laptop"], True),
        (["scale=paper"], False),
        (["scale=laptop", "optimizer=adamw"], False),
    ],
)
def test_the_scale_says_whether_muon_takes_the_matrices(words: list[str], takes: bool) -> None:
    optimizer = build("optimizer", compose("pretrain", words).get("optimizer"))
    named = [(f"encoder.layer.0.{name}", p) for name, p in model().named_parameters()]
    parts = getattr(optimizer(named), "optimizers", [optimizer(named)])
    assert [type(part).__name__ for part in parts] == ["AdamW", *["Muon"] * takes]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("learning_rate", -1.0),
        ("learning_rate", "fast"),
        ("betas", (1.0, 0.9)),
        ("betas", (0.9, -0.1)),
        ("betas", 0.9),
        ("betas", [0.9]),
        ("betas", ["high", 0.9]),
        ("eps", 0.0),
        ("weight_decay", -0.1),
        ("weight_decay", None),
    ],
)
def test_settings_out_of_range_are_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        build_adamw(model().named_parameters(), **SETTINGS | {key: value})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"library": "os"}, r"choose one of torch\.optim, pytorch_optimizer"),
        ({"library": "pytorch_optimizer"}, r"pip install 'clozelab\[optimizers\]'"),
        ({"name": "Nadam"}, "torch.optim has .*NAdam"),
        ({"name": "SGD", "settings": {"speed": 1}}, "SGD does not take this: .*speed"),
        ({"name": "load"}, "optimizer.name is 'load'"),
        (
            {"name": "SGD", "settings": {"weight_decay": 1}},
            r"say optimizer\.weight_decay=1 instead",
        ),
        ({"name": "SGD", "settings": {"lr": 2.0}}, r"say optimizer\.learning_rate=2\.0 instead"),
        ({"name": "NAdam", "settings": {"betas": [0.5, 0.6]}}, r"say optimizer\.betas="),
        ({"name": "Rprop", "weight_decay": 0.1}, "Rprop has no weight decay: say optimizer.weight"),
    ],
)
def test_an_optimizer_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], reason: str
) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    usual: dict[str, Any] = {"name": "Lamb", "learning_rate": 0.1, "weight_decay": 0.0}
    with pytest.raises(ValueError, match=reason):
        build_torch(model().named_parameters(), **usual | given)


def test_an_optimizer_with_weights_for_evaluation_is_refused() -> None:
    pytest.importorskip("pytorch_optimizer", reason="needs pip install 'clozelab[optimizers]'")
    usual = {"library": "pytorch_optimizer", "learning_rate": 0.1, "weight_decay": 0.0}
    with pytest.raises(ValueError, match="ScheduleFreeAdamW"):
        build_torch(model().named_parameters(), name="ScheduleFreeAdamW", **usual)


@pytest.mark.parametrize(
    ("arguments", "options", "reason"),
    [
        ((100, 0.1, CosineDecay), {"final_fraction": 1.1}, r"final_fraction is .*: it must be in"),
        ((9, 0.1, WarmupStableDecay), {"decay_fraction": -0.1}, r"decay_fraction is .*: it must"),
        ((0, 0.1), {}, "total_steps"),
        ((10, 1.0), {}, "warmup_fraction"),
    ],
)
def test_schedules_that_cannot_be_are_refused(arguments: Any, options: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        rates(*arguments, **options)
