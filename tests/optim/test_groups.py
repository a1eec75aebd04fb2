"""Groups of parameters by their names, from a key of the configuration to the optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from clozelab.addresses import build
from clozelab.launch.sweep import compose
from clozelab.models.encoder import Encoder
from clozelab.modules.base import build_with_hparams
from clozelab.optim.groups import frozen_by_groups, frozen_names, match_groups

GROUPS = (
    'optimizer.groups=[{pattern: "*.layer.1.*", frozen: true},'
    ' {pattern: "encoder.embeddings.*", learning_rate_factor: 0.5, weight_decay: 0.3}]'
)


class Trained(nn.Module):
    """An encoder as a training module has it."""

    def __init__(self, encoder: Encoder, optimizer_factory: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.optimizer_factory = optimizer_factory


def factory_of(*overrides: str) -> Any:
    return build("optimizer", compose("pretrain", [*overrides]).get("optimizer"))


def groups_of(module: nn.Module, optimizer: Any) -> dict[str, dict[str, Any]]:
    """Name -> the optimizer's group that the parameter is in."""
    names = {id(value): name for name, value in module.named_parameters()}
    groups = {}
    for group in optimizer.param_groups:
        for value in group["params"]:
            groups[names[id(value)]] = group
    return groups


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_a_key_of_the_configuration(tiny_config, optimizer: str) -> None:
    torch.manual_seed(0)
    overrides = [f"optimizer={optimizer}", "optimizer.learning_rate=0.1", GROUPS]
    factory = factory_of(*overrides)
    module = build_with_hparams(Trained, encoder=Encoder(tiny_config()), optimizer_factory=factory)
    named = dict(module.named_parameters())
    frozen = {name for name, value in named.items() if not value.requires_grad}
    assert frozen == {name for name in named if ".layer.1." in name}
    groups = groups_of(module, factory(module.named_parameters()))
    assert groups.keys() == named.keys() - frozen
    for name, group in groups.items():
        if name.startswith("encoder.embeddings."):
            assert (group["lr"], group["weight_decay"]) == (0.05, 0.3), name
        elif named[name].ndim < 2:
            assert (group["lr"], group["weight_decay"]) == (0.1, 0.0), name


def test_the_rate_of_a_matrix_under_muon(tiny_config) -> None:
    groups = [{"pattern": "*.layer.0.*", "learning_rate_factor": 0.1}]
    settings = ["optimizer=muon", "optimizer.matrix_learning_rate=0.02"]
    model = Trained(Encoder(tiny_config()), None)
    optimizer = factory_of(*settings)(model.named_parameters(), groups=groups)
    for name, group in groups_of(model, optimizer).items():
        if "matrices" in group:
            assert group["lr"] == pytest.approx(0.002 if ".layer.0." in name else 0.02)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (
            {"pattern": "*.layers.*"},
            r"no parameter's name fits '\*\.layers\.\*'; of the model's \d+ names .*layer\.0\.",
        ),
        ({"pattern": "*", "rate": 1}, "unexpected keyword argument 'rate'"),
        ({"pattern": "*", "frozen": True}, "freezes every parameter"),
    ],
)
def test_a_group_that_means_nothing(tiny_config, group: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        frozen_by_groups(Encoder(tiny_config()), [group])


def test_the_log_counts_what_is_frozen(tiny_config, caplog: pytest.LogCaptureFixture) -> None:
    encoder = Encoder(tiny_config())
    with caplog.at_level("INFO"):
        frozen_by_groups(encoder, [{"pattern": "*embeddings.*", "frozen": True}])
    table = [value for name, value in encoder.named_parameters() if "embeddings." in name]
    weights = sum(value.numel() for value in table)
    total = len(list(encoder.parameters()))
    assert f"{len(table)} of {total} tensors, {weights:,} weights, frozen" in caplog.text


def test_a_group_behind_one_that_takes_all_is_refused() -> None:
    nodes = [{"pattern": "*", "learning_rate_factor": 0.5}, {"pattern": "a.*", "frozen": True}]
    with pytest.raises(ValueError, match=r"'a\.\*' fits only parameters that an earlier pattern"):
        match_groups(["a.b", "c"], nodes)


def test_the_first_group_counts() -> None:
    first, second = {"pattern": "a.*", "frozen": True}, {"pattern": "*", "frozen": False}
    matches = match_groups(["a.b", "c"], [first, second])
    assert (matches["a.b"].pattern, matches["c"].pattern) == ("a.*", "*")


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate_factor": -0.5},
        {"learning_rate_factor": None},
        {"weight_decay": -0.1},
        {"weight_decay": "much"},
        {"frozen": "no"},
    ],
)
def test_a_setting_that_is_no_value_of_its_kind_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"optimizer\.groups: {next(iter(settings))} of 'a\.\*'"):
        match_groups(["a.b", "c"], [{"pattern": "a.*", **settings}])


def test_a_group_without_a_pattern_is_of_all_in_a_plan_as_in_training() -> None:
    assert frozen_names(["a.b"], [{"frozen": True}]) == ["a.b"]
    assert frozen_names(["a.b"], [{"weight_decay": 0.1}]) == []
