"""The commands of a report: those that were given, else those that make just these runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import pytest

from clozelab.report.provenance import commands
from clozelab.runs.find import find
from clozelab.runs.progress import write_launch
from clozelab.runs.record import JobName

ARMS = ("mlm_nsp", "mlm", "ltr")
RUNS = list(product(sorted(ARMS), (1, 2)))
SWEEP = "clozelab pretrain --config-dir 'an experiment' --config-name sweep_pretrain"


@pytest.fixture
def root(make_runs: Callable[..., Path]) -> Path:
    """Two seeds of three arms, each run with its arm among its overrides."""
    root = make_runs({}, pretrain_seeds=(1, 2))
    for arm in ARMS:
        for seed in (1, 2):
            give(root, arm, seed, [f"arm={arm}", f"seed={seed}"])
    return root


def give(root: Path, arm: str, seed: int, overrides: Sequence[str]) -> None:
    """Let a run have been started with these overrides."""
    path = root / f"pretrain/{arm}/seed-{seed}/run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"overrides": list(overrides)}))


def commands_of(root: Path) -> list[str]:
    return commands(find(root).runs)


def jobs_of(*arms: str) -> list[JobName]:
    return [JobName(arm, "", seed) for arm, seed in product(arms, "12")]


def test_a_launch_stands_as_it_was_given(root: Path) -> None:
    write_launch(root, ["reproduce", "rates.yaml", "scale=demo"], {"pretrain": jobs_of(*ARMS)})
    assert commands_of(root) == ["clozelab reproduce rates.yaml scale=demo"]


def test_a_run_beside_a_launch_is_not_put_into_it(root: Path) -> None:
    give(root, "ltr", 1, ["objective=ltr", "steps_factor=0.01"])
    (root / "pretrain/ltr/seed-2").rename(root / "gone")
    (root / "gone/run.json").unlink()
    words = ["pretrain", "-m", "arm=mlm,mlm_nsp", "seed=1,2", "hydra.launcher.jobs_at_once=1"]
    write_launch(root, words, {"pretrain": jobs_of("mlm", "mlm_nsp")})
    assert commands_of(root) == [
        "clozelab pretrain -m arm=mlm,mlm_nsp seed=1,2 hydra.launcher.jobs_at_once=1",
        f"{SWEEP} objective=ltr steps_factor=0.01 hydra.mode=RUN",
    ]


def test_a_launch_with_other_values_has_not_made_a_run(root: Path) -> None:
    for arm in ARMS:
        for seed, rate in ((1, "0.001"), (2, "0.002")):
            give(root, arm, seed, [f"arm={arm}", f"seed={seed}", f"rate={rate}"])
    arms = ",".join(ARMS)
    words = ["pretrain", "-m", f"arm={arms}", "seed=1", "rate=1e-3"]
    write_launch(root, words, {"pretrain": jobs_of(*ARMS)})
    assert commands_of(root) == [
        f"clozelab pretrain -m arm={arms} seed=1 rate=1e-3",
        *(f"{SWEEP} arm={arm} seed=2 rate=0.002 hydra.mode=RUN" for arm in sorted(ARMS)),
    ]


def test_runs_without_a_launch_have_their_own_commands(root: Path) -> None:
    own = [f"{SWEEP} arm={arm} seed={seed} hydra.mode=RUN" for arm, seed in RUNS]
    assert commands_of(root) == own


def test_many_own_commands_are_cut(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clozelab.report.provenance.MAX_OWN_COMMANDS", 4)
    *shown, rest = commands_of(root)
    assert len(shown) == 4 and rest == "# and 2 more: clozelab runs FOLDER --csv"
