"""The allow-list of `_target_` and the check of a node's keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from clozelab.launch import sweep
from clozelab.targets import (
    GIVEN_BY_STAGE,
    build,
    check_targets,
    locate,
    parameters_of,
    parse_allow_targets,
)
from clozelab.text.paths import CONF_DIR

GOOD = {
    "_target_": "clozelab.optim.schedule.LinearWarmupDecay",
    "_partial_": True,
    "warmup_fraction": 0.1,
}


def test_good_nodes_pass() -> None:
    check_targets(OmegaConf.create({"schedule": GOOD, "other": {"list": [{"a": 1}, 1]}}))
    token = {"_target_": "clozelab.objectives.ltr.LeftToRight", "weight": 1.0}
    check_targets(
        {
            "phases": [{"objective": {"token": token}}],
            "scale.pretrain.phases.1.objective": {"token": token},
        }
    )


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "torch.load",
        "clozelab_evil.run",
        "clozelab.cli.main",
        "clozelab.runs.store.Run",
        "${oc.env:HOME}",
        "clozelab.optim.schedule.${x}",
        "clozelab.optim.adamw.torch.load",  # a way round through our own imports
        "clozelab.optim.adamw._private",
        "clozelab.optim",
        "clozelab.optim.adamw.build_adamw",  # right elsewhere
        "clozelab.optim.schedule.linear_warmup_decay",
        3,
        None,
    ],
)
def test_refused_addresses(target: Any) -> None:
    with pytest.raises(ValueError, match="_target_"):
        check_targets({"schedule": {"_target_": target}})


@pytest.mark.parametrize(
    "where", ["a", "schedule.x", "logger.x.y", "phases.0", "hydra.callbacks.x", "task", ""]
)
def test_nothing_is_made_elsewhere(where: str) -> None:
    node: Any = GOOD
    for key in reversed(where.split(".") if where else []):
        node = {key: node}
    with pytest.raises(ValueError, match="nothing is made here"):
        check_targets(node)


def test_the_user_alone_allows_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine_outside.py").write_text(
        "from torch.optim import SGD\ndef sgd(named_parameters, *, learning_rate):\n"
        "    return SGD([one for _, one in named_parameters], lr=learning_rate)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CLOZELAB_ALLOW_TARGETS", "")
    node = {"_target_": "mine_outside.sgd", "_partial_": True, "learning_rate": 0.5}
    with pytest.raises(ValueError, match=r"allow_targets=\[mine_outside\] on your command line"):
        check_targets({"optimizer": node})
    assert parse_allow_targets(["a=1", "allow_targets=[mine_outside,other]", "b=2"]) == [
        "a=1",
        "b=2",
    ]
    weight = torch.nn.Parameter(torch.zeros(2))
    assert build("optimizer", node)([("weight", weight)]).param_groups[0]["lr"] == 0.5
    with pytest.raises(ValueError, match="takes no such argument; did you mean 'learning_rate'"):
        check_targets({"optimizer": {**node, "learning_rat": 1}})
    with pytest.raises(ValueError, match="nothing is made here"):
        check_targets({"elsewhere": node})
    with pytest.raises(ValueError, match="is not allowed"):
        check_targets({"optimizer": {"_target_": "mine_outsider.sgd"}})


def test_a_factory_of_logging_is_a_target() -> None:
    with pytest.raises(ValueError, match=r"'os\.system' is not allowed"):
        check_targets(
            {"hydra": {"job_logging": {"handlers": {"x": {"()": "os.system"}}}}}, signatures=False
        )


@pytest.mark.parametrize(
    "node",
    [{"class": "subprocess.Popen"}, {"_target_": "logging.StreamHandler", "class": "os.open"}],
)
def test_a_class_of_logging_is_a_target(node: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"'(subprocess\.Popen|os\.open)' is not allowed"):
        check_targets({"hydra": {"job_logging": {"handlers": {"console": node}}}}, signatures=False)


def test_misspelt_key_has_a_hint() -> None:
    with pytest.raises(
        ValueError, match=r"schedule\.warmup_fractoin: .* did you mean 'warmup_fraction'"
    ):
        check_targets({"schedule": {**GOOD, "warmup_fractoin": 0.1}})


def test_misspelt_target_has_a_hint() -> None:
    with pytest.raises(
        ValueError, match=r"did you mean 'clozelab\.optim\.schedule\.LinearWarmupDecay'"
    ):
        check_targets({"schedule": {"_target_": "clozelab.optim.schedule.LinearWarmupDecai"}})


def test_positional_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="_args_"):
        check_targets({"schedule": {**GOOD, "_args_": [1]}})


def test_addresses_alone_import_nothing() -> None:
    check_targets({"schedule": {**GOOD, "no_such_key": 1}}, signatures=False)
    with pytest.raises(ValueError, match="not allowed"):
        check_targets({"x": {"_target_": "shutil.rmtree"}}, signatures=False)


@pytest.mark.parametrize(
    ("where", "key"),
    [
        ("schedule", "total_steps"),  # would lose against the stage's own value
        ("optimizer", "named_parameters"),
        ("task.module", "head"),
        ("task.module", "seed"),  # a base's argument, and the stage's
        ("task.module", "input_size"),  # a base's argument, and a subclass's
        ("task.module", "score_keys"),
        ("task.module", "bilstm_numlayers"),
        ("task.data", "plan"),
    ],
)
def test_what_the_stage_passes_is_not_taken_from_the_configuration(where: str, key: str) -> None:
    whole = sweep.without_hydra(sweep.compose("finetune"))
    check_targets(whole)
    OmegaConf.update(whole, f"{where}.{key}", 1, force_add=True)
    with pytest.raises(ValueError, match=rf"{where}\.{key}: "):
        check_targets(whole)


def test_what_a_module_fixes_is_not_taken_from_the_configuration() -> None:
    for task, key in (
        ("swag", "number_range"),
        ("ner_conll2003", "input_size"),
        ("ner_features_conll2003", "input_size"),
    ):
        with pytest.raises(ValueError, match=rf"task\.module\.{key}: the module sets this itself"):
            check_targets(
                sweep.without_hydra(
                    sweep.compose("finetune", [f"task={task}", f"+task.module.{key}=3"])
                )
            )


@pytest.mark.parametrize("task", sorted(path.stem for path in (CONF_DIR / "task").glob("*.yaml")))
def test_every_task_is_made_of_named_parameters(task: str) -> None:
    check_targets(sweep.without_hydra(sweep.compose("finetune", [f"task={task}"])))


def test_what_stages_pass_are_parameters() -> None:
    """A renamed parameter must be renamed in the list too."""
    words = [
        ("pretrain", ["corpus=microworld", "logger=wandb"]),
        ("pretrain", ["corpus=microworld", "logger=[wandb,tensorboard]"]),
        ("finetune", ["task=squad_v1", "logger=tensorboard"]),
        ("evaluate", ["measure=blimp"]),
        ("evaluate", ["measure=probe"]),
    ]
    seen = set()
    for stage, overrides in words:
        plain = OmegaConf.to_container(
            sweep.without_hydra(sweep.compose(stage, overrides)), resolve=False
        )
        for where, names in GIVEN_BY_STAGE.items():
            node = OmegaConf.select(OmegaConf.create(plain), where)
            if node is not None and "_target_" in node:
                seen.add(where)
                assert names <= set(parameters_of(locate(node["_target_"]))), where
    assert seen == set(GIVEN_BY_STAGE)
