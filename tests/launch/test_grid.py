"""Tests of clozelab.launch.sweepers: Hydra's own sweeper, with its checks where they are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException
from hydra.types import HydraContext
from omegaconf import open_dict
from tests.composing import whole

from clozelab.launch import plugins, sweep


def sweeper(*words: str) -> Any:
    """The sweeper that Hydra would make for `finetune -m WORDS`, set up."""
    plugins.register()
    config = whole("finetune", words, sweep=True)
    loader = sweep.make_loader()
    with open_dict(config.hydra):
        config.hydra.sweeper.params = None
    context = HydraContext(config_loader=loader, callbacks=None)  # type: ignore[arg-type]
    return Plugins.instance().instantiate_sweeper(
        hydra_context=context, task_function=lambda _: None, config=config
    )


def test_grid_is_the_usual_sweeper_and_leaves_checking_to_our_launcher() -> None:
    usual = sweeper()
    assert type(usual).__name__ == "GridSweeper"
    usual.grid.validate_batch_is_legal([["seed=x"]])


@pytest.mark.parametrize("wrong", ["max_batch_size: x", "param: {seed: '1,2'}"])
def test_its_settings_are_typed(wrong: str, tmp_path: Path) -> None:
    text = "defaults: [finetune, _self_]\nhydra: {sweeper: {%s}}\n"
    (tmp_path / "right.yaml").write_text(text % "params: {seed: '1,2'}")
    sweep.compose("right", folder=tmp_path, sweep=True)
    (tmp_path / "wrong.yaml").write_text(text % wrong)
    with pytest.raises(ConfigCompositionException):
        sweep.compose("wrong", folder=tmp_path, sweep=True)


def test_its_values_may_stand_on_the_command_line() -> None:
    """Hydra's own sweeper has null there, which takes no key."""
    opened = sweep.Sweep("pretrain", ["+hydra.sweeper.params.seed='1,2'"])
    assert opened.jobs == [("seed=1",), ("seed=2",)]


def test_a_sweep_is_one_batch() -> None:
    with pytest.raises(Exception, match="max_batch_size: a sweep is one batch here") as caught:
        sweeper("hydra.sweeper.max_batch_size=2")
    assert "jobs_at_once" in str(caught.value)
