"""Arms that take other numbers of steps, from their composed configurations to the verdict."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clozelab.config import EXPERIMENTS_DIR
from clozelab.launch import sweep
from clozelab.runs.find import collect
from clozelab.runs.fingerprint import canonical
from clozelab.verdicts.consistency import inconsistencies
from clozelab.verdicts.experiment import load_experiment
from clozelab.verdicts.judging import HOLDS, NOT_COMPARABLE, Judgement, judge
from clozelab.verdicts.table import build_table

FACTOR = "steps_factor=0.4"
MEANS = {("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Table 5 with arms of its own."""
    place = tmp_path / "experiment"
    shutil.copytree(EXPERIMENTS_DIR / "table5_pretraining_tasks", place)
    return place


@pytest.fixture
def root(make_runs: Callable[..., Path]) -> Path:
    return make_runs(MEANS)


def in_file(folder: Path) -> None:
    file = folder / "arm" / "ltr.yaml"
    file.write_text(f"{file.read_text()}{FACTOR.replace('=', ': ')}\n")


def match_by(folder: Path, matched_by: str | None) -> None:
    paper = folder / "paper.yaml"
    if matched_by:
        paper.write_text(f"matched_by: {matched_by}\n{paper.read_text()}")


def composed(folder: Path, arm: str, *words: str) -> dict[str, Any]:
    """What run.json says of the configuration."""
    whole = sweep.compose("sweep_pretrain", [f"arm={arm}", *words], folder=folder, sweep=True)
    with sweep.hydra_config(whole):
        return canonical(sweep.without_hydra(whole))


def train(root: Path, folder: Path, arm: str, *words: str, flops: float, seeds: str = "*") -> list[int]:
    """Records as that arm's runs leave them; returns the steps of its phases."""
    config = composed(folder, arm, *words)
    steps = [phase["steps"] for phase in config["phases"]]
    for path in root.glob(f"pretrain/{arm}/seed-{seeds}/run.json"):
        state = json.loads(path.read_text())
        state["config"] = config | {"seed": state["config"]["seed"]}
        state["facts"] |= {"steps": sum(steps), "tokens": 1000.0 * sum(steps), "flops": flops}
        path.write_text(json.dumps(state))
    return steps


def mrpc(folder: Path, root: Path) -> Judgement:
    found = judge(build_table(load_experiment(folder), collect(root)))
    return next(one for one in found if one.claim.id == "ltr_hurts_mrpc")


def unequal(folder: Path, root: Path) -> list[str]:
    return inconsistencies(collect(root), folder, load_experiment(folder).free_keys)


@pytest.mark.parametrize("is_in_file", [True, False], ids=["arm file", "override"])
@pytest.mark.parametrize(
    ("matched_by", "reason"),
    [
        ("flops", ""),
        ("none", ""),
        ("steps", "arms not matched: 960 against 2.4 k steps"),
        ("tokens", "arms not matched: 960 k against 2.4 M tokens"),
        (None, "arms not matched: 960 against 2.4 k steps"),
    ],
)
def test_an_arm_of_other_steps(folder: Path, root: Path, is_in_file: bool, matched_by: str | None, reason: str) -> None:
    match_by(folder, matched_by)
    if is_in_file:
        in_file(folder)
    train(root, folder, "mlm_nsp", flops=1e15)
    assert train(root, folder, "mlm", flops=1e15) == [2200, 200]
    assert train(root, folder, "ltr", *(() if is_in_file else (FACTOR,)), flops=1.01e15) == [880, 80]
    found = mrpc(folder, root)
    assert found.verdict == (NOT_COMPARABLE if reason else HOLDS)
    assert reason in found.note and "another protocol" not in found.note
    # The length is an arm's own where its file says so, or where arms are not matched by it.
    assert bool(unequal(folder, root)) == (not is_in_file and matched_by in (None, "steps"))


def test_other_work_is_still_refused(folder: Path, root: Path) -> None:
    match_by(folder, "flops")
    in_file(folder)
    train(root, folder, "mlm", flops=1e15)
    train(root, folder, "ltr", flops=2e15)
    assert "arms not matched" in mrpc(folder, root).note and "flops" in mrpc(folder, root).note


@pytest.mark.parametrize(
    ("word", "verdict"),
    [
        ("validation.interval_steps=50", HOLDS),
        ("checkpoint_interval_steps=50", HOLDS),
        ("scale.pretrain.phases.0.steps=900", HOLDS),
        ("scale.pretrain.phases.0.global_batch_size=32", NOT_COMPARABLE),
        ("scale.pretrain.phases.0.seq_length=32", NOT_COMPARABLE),
        ("scale.pretrain.learning_rate=1", NOT_COMPARABLE),
    ],
)
def test_what_steps_bring_with_them_and_nothing_else(folder: Path, root: Path, word: str, verdict: str) -> None:
    match_by(folder, "flops")
    train(root, folder, "mlm", flops=1e15)
    train(root, folder, "ltr", word, flops=1e15)
    assert mrpc(folder, root).verdict == verdict


def test_inside_one_arm_runs_have_to_be_equally_long(folder: Path, root: Path) -> None:
    match_by(folder, "flops")
    train(root, folder, "mlm_nsp", flops=1e15)
    train(root, folder, "mlm", flops=1e15)
    train(root, folder, "ltr", FACTOR, flops=1e15)
    assert unequal(folder, root) == []
    train(root, folder, "ltr", flops=1e15, seeds="2")
    lines = unequal(folder, root)
    assert [line.split(":")[0] for line in lines] == [
        f"pre-training runs of ltr differ in phases.{phase}.steps" for phase in (0, 1)
    ]
    assert "2200 (1 runs, e.g. ltr seed 2)" in lines[0] and "880 (2 runs" in lines[0]


def test_the_factor_is_no_setting_of_its_own(folder: Path) -> None:
    """At 1 a run is what it was before there was a factor; at another, what it is with those steps said outright."""
    assert composed(folder, "mlm", "steps_factor=1") == composed(folder, "mlm")
    said = ["scale.pretrain.phases.0.steps=880", "scale.pretrain.phases.1.steps=80"]
    assert composed(folder, "mlm", FACTOR) == composed(folder, "mlm", *said)
    assert composed(folder, "mlm", FACTOR) != composed(folder, "mlm")
    assert [phase["steps"] for phase in composed(folder, "mlm", "steps_factor=1e-9")["phases"]] == [1, 1]


def test_an_override_of_a_phase_is_never_lost() -> None:
    for words in (["phases.0.steps=7"], ["phases.0.steps=14", "steps_factor=0.5"]):
        assert sweep.compose("pretrain", words).phases[0].steps == 7
    with pytest.raises(Exception, match=r"phases\.0\.steps=7"):
        sweep.compose("pretrain", ["steps_factor=0.5", "phases.0.steps=7"])
