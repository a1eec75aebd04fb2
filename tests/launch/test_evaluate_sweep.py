"""The sweep of an experiment with measured columns: which encoders, which measures, which overrides
reach it.
"""

from __future__ import annotations

from pathlib import Path

from clozelab.launch.experiments import sweeps_in
from clozelab.launch.jobs import planned_jobs
from clozelab.launch.sweep import Sweep
from clozelab.planning.steps import make_steps

PAPER = """
columns:
  - mnli
  - {name: BLiMP, from: evaluate, task: pairs_order, metric: validation/accuracy}
  - {name: Syntax, from: evaluate, task: pairs_order, metric: validation/accuracy_of_field/syntax}
  - {name: Text, from: evaluate, task: held_out_text, metric: validation/bits_per_character}
arms: {mlm: {objective: mlm}, ltr: {objective: ltr}}
rows:
  - {row: mlm, arm: mlm, set: {head: linear}}
  - {row: early, arm: ltr, set: {encoder_fraction: 0.5, epochs: 1}}
  - {row: random, arm: null}
"""


def sweeps_of(folder: Path, *words: str) -> dict[str, Sweep]:
    (folder / "mine").mkdir()
    (folder / "mine/paper.yaml").write_text(PAPER)
    steps = make_steps(folder / "mine", [f"runs_dir={folder}/runs", *words])
    return {step.verb: step.sweep for step in steps if step.is_sweep}


def measured(sweep: Sweep) -> list[str]:
    """The folders of its jobs."""
    return [job.run_dir for job in planned_jobs(sweep)]


def test_every_row_is_measured_by_its_encoder(tmp_path: Path) -> None:
    found = sweeps_of(tmp_path, "scale.pretrain.seeds='1,2'")
    assert list(found) == list(sweeps_in(tmp_path / "mine")) == ["pretrain", "finetune", "evaluate"]
    assert len(found["evaluate"].jobs) == 3 * 2 * 2 and len(found["finetune"].jobs) == 3 * 2 * 2
    place = f"{tmp_path}/runs/mine/demo/evaluate"
    assert f"{place}/early/pretrain-seed-2/pairs_order/seed-1" in measured(found["evaluate"])
    settings = {job[0]: found["evaluate"].settings(job) for job in found["evaluate"].jobs}
    assert settings["measured=early"]["encoder"].endswith("pretrain/ltr/seed-2/encoders/step-1200")
    assert settings["measured=random"]["initialisation"] == "random"
    assert settings["measured=random"]["encoder_arm"] == "mlm"


def test_rows_and_seeds_of_trainings_do_not_rename_what_is_measured(tmp_path: Path) -> None:
    found = sweeps_of(tmp_path, "row=mlm,random", "finetune.seed=3", "pretrain_seed=1")
    rows = [name.split("/")[-4] for name in measured(found["evaluate"])]
    assert rows == ["mlm", "mlm", "random", "random"]


def test_a_seed_of_trainings_is_none_of_a_measure(tmp_path: Path) -> None:
    found = sweeps_of(tmp_path, "evaluate.measure=pairs_order", "seed=4")
    places = measured(found["evaluate"])
    assert {name.split("/")[-1] for name in places} == {"seed-1"} and len(places) == 6


def test_without_measured_columns_there_is_no_such_sweep(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/paper.yaml").write_text("columns: [mnli]\narms: {mlm: {objective: mlm}}\n")
    assert list(sweeps_in(tmp_path / "mine")) == ["pretrain", "finetune"]
