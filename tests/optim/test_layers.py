"""Learning rates by layer, by the rules of two releases and a paper, for every optimizer."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from tests.optim.test_groups import groups_of
from torch import nn

from clozelab.addresses import build
from clozelab.launch.sweep import compose
from clozelab.models.encoder import Encoder
from clozelab.models.fresh import reinitialise_top
from clozelab.optim.adamw import build_adamw
from clozelab.optim.layers import levels_of
from clozelab.training.unfreezing import GradualUnfreezing

DECAY = 0.5
# Three layers: exponents as the released codes and the paper give them.
RULES = {
    "electra": {"embeddings": 5, "layer.0": 4, "layer.1": 3, "layer.2": 2, "pooler": 1, "head": 0},
    "xlnet": {"embeddings": 0, "layer.0": 2, "layer.1": 1, "layer.2": 0, "pooler": 0, "head": 0},
    "ulmfit": {"embeddings": 4, "layer.0": 3, "layer.1": 2, "layer.2": 1, "pooler": 0, "head": 0},
}


class Model(nn.Module):
    """An encoder of three layers and a head, as a training module has them."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = nn.Linear(encoder.config.hidden_size, 2)


@pytest.fixture
def model(tiny_config: Any) -> Model:
    torch.manual_seed(0)
    return Model(Encoder(tiny_config(num_hidden_layers=3)))


@cache
def factory_of(*words: str) -> Any:
    """The factory of a configuration, as the stage builds it."""
    return build("optimizer", compose("finetune", list(words)).get("optimizer"))


def rates_of(model: nn.Module, factory: Any, **settings: Any) -> dict[str, float]:
    """Name -> learning rate; `settings` are called as the optimizer's keys."""
    groups = groups_of(model, factory(model.named_parameters(), **settings))
    return {name: group["lr"] for name, group in groups.items()}


def part_of(name: str) -> str:
    parts = ("embeddings", "layer.0", "layer.1", "layer.2", "pooler")
    return next((part for part in parts if name.startswith(f"encoder.{part}")), "head")


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "adafactor", "lamb", "sgd"])
def test_rates_are_those_of_the_releases(model: Model, optimizer: str) -> None:
    if optimizer == "lamb":
        pytest.importorskip("pytorch_optimizer")
    factory = factory_of(f"optimizer={optimizer}")
    plain = rates_of(model, factory)
    for rule, exponents in RULES.items():
        decayed = rates_of(model, factory, layer_decay=DECAY, layer_decay_rule=rule)
        assert decayed.keys() == plain.keys() == dict(model.named_parameters()).keys()
        for name, rate in decayed.items():
            expected = plain[name] * DECAY ** exponents[part_of(name)]
            assert rate == pytest.approx(expected), (rule, name)


def test_the_key_reaches_an_update(model: Model) -> None:
    """Plain SGD on a gradient of ones moves each parameter by its rate."""
    words = ["optimizer=sgd", "optimizer.layer_decay=0.5", "optimizer.weight_decay=0"]
    words += ["optimizer.settings.momentum=0", "optimizer.learning_rate=1.0"]
    factory = factory_of(*words)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for value in model.parameters():
        value.grad = torch.ones_like(value)
    factory(model.named_parameters()).step()
    for name, value in model.named_parameters():
        expected = DECAY ** RULES["electra"][part_of(name)]
        torch.testing.assert_close(before[name] - value, torch.full_like(value, expected))


def test_a_group_multiplies_and_a_frozen_one_stays_away(model: Model) -> None:
    groups = [
        {"pattern": "classifier.*", "learning_rate_factor": 10.0},
        {"pattern": "*.layer.0.*", "learning_rate_factor": 3.0, "weight_decay": 0.3},
    ]
    model.encoder.embeddings.requires_grad_(False)
    factory = factory_of("optimizer=adamw")
    rate = rates_of(model, factory)["classifier.weight"]
    rates = rates_of(model, factory, groups=groups, layer_decay=DECAY)
    assert rates["classifier.weight"] == pytest.approx(10.0 * rate)
    assert rates["encoder.layer.0.output.dense.weight"] == pytest.approx(3.0 * rate * DECAY**4)
    assert not any("embeddings" in name for name in rates)
    # The rate that is logged, the first one's, is the highest.
    options = {"layer_decay": DECAY, "layer_decay_rule": "ulmfit"}
    assert factory(model.encoder.named_parameters(), **options).param_groups[0]["lr"] == rate


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layer_decay": 1.5}, r"layer_decay is 1.5: it must be in \(0, 1\]"),
        ({"layer_decay_rule": "bert"}, "layer_decay_rule=bert: choose one of electra"),
        ({"layer_decay": 0.9}, "no parameter of an encoder's layers is trained"),
    ],
)
def test_what_means_nothing_is_refused(
    model: Model, settings: dict[str, Any], message: str
) -> None:
    model.encoder.requires_grad_(False)
    usual: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0}
    with pytest.raises(ValueError, match=message):
        build_adamw(
            model.named_parameters(), learning_rate=0.1, bias_correction=True, **usual, **settings
        )


def test_shared_layers_are_one_and_both_directions_have_their_own(tiny_config: Any) -> None:
    shared = levels_of(dict(Encoder(tiny_config(num_hidden_groups=1)).named_parameters()))
    assert {level.num_layers for level in shared.values()} == {1}
    two = levels_of(dict(Encoder(tiny_config(num_directions=2)).named_parameters()))
    for name, level in two.items():
        assert level == two[name.replace("backward_stack.", "")], name
    # Two encoders of different depth, and a name that only looks like a layer's.
    names = ["a.layer.0.w", "a.layer.1.w", "b.layer.0.w", "b.final_norm.w", "c.my_layer.0.w"]
    assert [level.number for level in levels_of(names).values()] == [1, 2, 1, 2, 4]


def test_unfreezing_needs_one_interval() -> None:
    for interval in ({}, {"interval_epochs": 1.0, "interval_steps": 2}, {"interval_steps": 0}):
        with pytest.raises(ValueError, match="give interval_epochs or interval_steps"):
            GradualUnfreezing(**interval)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_layers", [1, 3])
def test_top_layers_begin_afresh(tiny_config: Any, num_layers: int) -> None:
    encoder = Encoder(tiny_config(num_hidden_layers=3))
    nn.init.constant_(encoder.layer[2].output.LayerNorm.weight, 2.0)  # type: ignore[union-attr]
    before = {name: value.detach().clone() for name, value in encoder.named_parameters()}
    reinitialise_top(encoder, num_layers, seed=3)
    after = dict(encoder.named_parameters())
    levels = levels_of(before)
    for name, value in before.items():
        is_old = levels[name].number <= 3 - num_layers
        # Biases and norms are what they were but for the one that was trained.
        if value.ndim == 2 or is_old:
            assert torch.equal(value, after[name]) == is_old, name
    assert after["layer.2.output.LayerNorm.weight"].eq(1.0).all()
    again = Encoder(tiny_config(num_hidden_layers=3))
    reinitialise_top(again, num_layers, seed=3)
    fresh: list[Any] = [again.layer[2], encoder.layer[2]]
    assert torch.equal(fresh[0].attention.qkv.weight, fresh[1].attention.qkv.weight)


def test_layers_that_cannot_begin_afresh(tiny_config: Any) -> None:
    with pytest.raises(ValueError, match="the encoder has 2 layers"):
        reinitialise_top(Encoder(tiny_config()), 3, 0)
    shared = Encoder(tiny_config(num_hidden_groups=1))
    with pytest.raises(ValueError, match=r"shares its weights .*1 sets of weights for 2 layers"):
        reinitialise_top(shared, 1, 0)
    reinitialise_top(shared, 2, 0)
