"""The allow-list of `_target_` and the check of a node's keys."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from clozelab.ledger.targets import check_targets

GOOD = {"_target_": "clozelab.optim.schedule.LinearWarmupDecay", "_partial_": True, "warmup_fraction": 0.1}


def test_good_nodes_pass() -> None:
    check_targets(OmegaConf.create({"schedule": GOOD, "other": {"list": [GOOD, 1]}}))


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "torch.load",
        "clozelab_evil.run",
        "clozelab.cli.main",
        "clozelab.ledger.run.Run",
        "${oc.env:HOME}",
        "clozelab.optim.schedule.${x}",
        "clozelab.optim.adamw.torch.load",  # a way round through our own imports
        "clozelab.optim.adamw._private",
        "clozelab.optim",
        3,
    ],
)
def test_refused_addresses(target: Any) -> None:
    with pytest.raises(ValueError, match="_target_"):
        check_targets({"a": {"b": [{"_target_": target}]}})


def test_misspelt_key_has_a_hint() -> None:
    with pytest.raises(ValueError, match=r"schedule\.warmup_fractoin: .* did you mean 'warmup_fraction'"):
        check_targets({"schedule": {**GOOD, "warmup_fractoin": 0.1}})


def test_misspelt_target_has_a_hint() -> None:
    with pytest.raises(ValueError, match="did you mean 'LinearWarmupDecay'"):
        check_targets({"schedule": {"_target_": "clozelab.optim.schedule.LinearWarmupDecai"}})
    with pytest.raises(ValueError, match="there is no"):
        check_targets({"schedule": {"_target_": "clozelab.optim.nowhere.Thing"}})


def test_positional_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="_args_"):
        check_targets({"schedule": {**GOOD, "_args_": [1]}})


def test_addresses_alone_import_nothing() -> None:
    check_targets({"x": {"_target_": "clozelab.optim.nowhere.Thing"}}, signatures=False)
    with pytest.raises(ValueError, match="not allowed"):
        check_targets({"x": {"_target_": "shutil.rmtree"}}, signatures=False)
