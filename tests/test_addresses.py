"""The allow-list of `_target_` and the check of a node's keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tests.screens import refuses

from clozelab.addresses import (
    GIVEN_BY_STAGE,
    build,
    check_targets,
    locate,
    parameters_of,
    parse_allow_targets,
)
from clozelab.launch import sweep

WITHOUT: dict[str, Any] = {
    "_target_": "clozelab.optim.schedule.LinearWarmupDecay",
    "_partial_": True,
}
GOOD = {**WITHOUT, "warmup_fraction": 0.1}


def test_good_nodes_pass() -> None:
    check_targets({"schedule": GOOD, "other": {"list": [{"a": 1}, 1]}})
    token = {"_target_": "clozelab.objectives.ltr.LeftToRight", "weight": 1.0}
    check_targets({"phases": [{"objective": {"token": token}}]})
    check_targets({"scale.pretrain.phases.1.objective": {"token": token}})


ADDRESSES = [
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
]
ELSEWHERE = [
    GOOD,
    {"a": GOOD},
    {"schedule": {"x": GOOD}},
    {"logger": {"x": {"y": GOOD}}},
    {"phases": {"0": GOOD}},
    {"hydra": {"callbacks": {"x": GOOD}}},
    {"task": GOOD},
]


def handler(**node: Any) -> dict[str, Any]:
    """A handler of Python's logging, which Hydra makes from its configuration."""
    return {"hydra": {"job_logging": {"handlers": {"console": node}}}}


def schedule(**changes: Any) -> dict[str, Any]:
    return {"schedule": {**GOOD, **changes}}


# What is refused with the arguments looked at, and why.
REFUSED = [
    *[(schedule(_target_=target), "_target_") for target in ADDRESSES],
    *[(node, "nothing is made here") for node in ELSEWHERE],
    (schedule(warmup_fractoin=0.1), r"schedule\.warmup_fractoin: .* mean 'warmup_fraction'"),
    (
        schedule(_target_=f"{GOOD['_target_']}s"),
        r"mean 'clozelab\.optim\.schedule\.LinearWarmupDecay'",
    ),
    (schedule(_args_=[1]), "_args_"),
    (schedule(warmup_fraction="5%"), r"schedule\.warmup_fraction is the text '5%': give a number"),
    ({"schedule": WITHOUT}, r"schedule\.warmup_fraction is missing, and nothing stands for it"),
]
# What is refused by its address alone, before anything is imported.
REFUSED_BY_ADDRESS = [
    (handler(**{"()": "os.system"}), r"'os\.system' is not allowed"),
    (handler(**{"class": "subprocess.Popen"}), r"'subprocess\.Popen' is not allowed"),
    (
        handler(_target_="logging.StreamHandler", **{"class": "os.open"}),
        r"'os\.open' is not allowed",
    ),
    ({"x": {"_target_": "shutil.rmtree"}}, "not allowed"),
]


@pytest.mark.parametrize(
    ("config", "sentence", "signatures"),
    [
        *[(config, sentence, True) for config, sentence in REFUSED],
        *[(config, sentence, False) for config, sentence in REFUSED_BY_ADDRESS],
    ],
)
def test_what_is_refused(config: Any, sentence: str, signatures: bool) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_targets(config, signatures=signatures)


def test_the_user_alone_allows_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine_outside.py").write_text(
        "from torch.optim import SGD\ndef sgd(named_parameters, *, learning_rate):\n"
        "    return SGD([one for _, one in named_parameters], lr=learning_rate)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CLOZELAB_ALLOW_TARGETS", "")
    node = {"_target_": "mine_outside.sgd", "_partial_": True, "learning_rate": 0.5}
    with refuses("optimizer._target_: 'mine_outside.sgd' is not allowed; there are"):
        check_targets({"optimizer": node})
    words = ["a=1", "allow_targets=[mine_outside,other]", "b=2"]
    assert parse_allow_targets(words) == ["a=1", "b=2"]
    weight = torch.nn.Parameter(torch.zeros(2))
    assert build("optimizer", node)([("weight", weight)]).param_groups[0]["lr"] == 0.5
    for config, reason in (
        ({"optimizer": {**node, "learning_rat": 1}}, "did you mean 'learning_rate'?"),
        ({"elsewhere": node}, "'mine_outside.sgd' is not allowed; nothing is made here"),
        ({"optimizer": {"_target_": "mine_outsider.sgd"}}, "'mine_outsider.sgd' is not allowed"),
    ):
        with refuses(reason):
            check_targets(config)


def test_a_function_of_ones_own_may_take_further_keys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mine_open.py").write_text(
        "def sgd(named_parameters, *, learning_rate, **others):\n    return others\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CLOZELAB_ALLOW_TARGETS", "mine_open")
    node = {"_target_": "mine_open.sgd", "_partial_": True, "learning_rate": 0.5, "eps": 1}
    assert build("optimizer", node)([]) == {"eps": 1}
    with refuses("optimizer.named_parameters: the stage sets this itself"):
        check_targets({"optimizer": {**node, "named_parameters": 1}})


def test_addresses_alone_import_nothing() -> None:
    check_targets({"schedule": {**GOOD, "no_such_key": 1}}, signatures=False)


@pytest.mark.parametrize(
    ("where", "key"),
    [
        ("schedule", "total_steps"),  # would lose against the stage's own value
        ("optimizer", "named_parameters"),
        ("task.module", "head"),
        ("task.module", "seed"),  # a base's argument, and the stage's
        ("task.module", "input_size"),  # a base's argument, and a subclass's
        ("task.module", "metrics_of"),
        ("task.module", "bilstm_numlayers"),
        ("task.data", "plan"),
    ],
)
def test_what_the_stage_passes_is_not_taken_from_the_configuration(where: str, key: str) -> None:
    values = sweep.compose("finetune").values
    check_targets(values)
    node = values
    for name in where.split("."):
        node = node[name]
    node[key] = 1
    with pytest.raises(ValueError, match=rf"{where}\.{key}: "):
        check_targets(values)


def test_a_setting_is_taken_by_a_part_of_its_task() -> None:
    """The same key is a setting of one task, and of another one a mistake."""
    check_targets(sweep.compose("finetune", ["task=stsb", "task.module.number_range=[0,5]"]).values)
    for words, reason in (
        (["task=swag", "+task.module.number_range=3"], "task.module.number_range: no part of"),
        (["task=ner_conll2003", "+task.data.pairs=joint"], "task.data.pairs: no part of this task"),
        (["task=swag", "~task.data.context_column"], "task.data.context_column is missing"),
        (["task=squad_v1", "task.module.n_best_size=20%"], "task.module.n_best_size is the text"),
    ):
        with refuses(reason):
            check_targets(sweep.compose("finetune", words).values)


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
        plain = sweep.compose(stage, overrides).unresolved
        for where, names in GIVEN_BY_STAGE.items():
            node = OmegaConf.select(OmegaConf.create(plain), where)
            if node is not None and "_target_" in node:
                seen.add(where)
                assert names <= set(parameters_of(locate(node["_target_"]))), where
    # Steps are named without their addresses; of each, its own test asks.
    assert seen == set(GIVEN_BY_STAGE) - {"corpus.steps"}


def test_an_address_of_ones_own_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_found.py").write_text("import os\ndef sgd(): ...\n")
    (tmp_path / "mine_broken.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with refuses("mine_found.sdg: mine_found has no sdg; did you mean 'sgd'?"):
        locate("mine_found.sdg")
    with refuses("mine_lost.sgd: there is no module mine_lost (the current folder is not searched"):
        locate("mine_lost.sgd")
    with refuses("mine_found.sub.sgd: there is no module mine_found.sub"):
        locate("mine_found.sub.sgd")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        locate("mine_broken.sgd")
