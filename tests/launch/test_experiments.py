"""Arms, rows and sweeps inline in paper.yaml or in one file; sweeps without an experiment."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from tests import forked
from tests.screens import Screens, refuses

from clozelab.launch.experiments import (
    ExperimentSource,
    inline_configs,
    sweeps_in,
    take_experiment,
)
from clozelab.launch.jobs import planned_jobs
from clozelab.launch.sweep import Sweep, compose, make_loader
from clozelab.text.paths import EXPERIMENTS_DIR

ABLATION = """
arms:
  rate15: {objective.token.predict_prob: 0.15}
  rate30: {objective: mlm, objective/input: full_sentences, objective.token.predict_prob: 3e-1}
columns: [mnli, mrpc]
rows:
  - {row: rate15, arm: rate15, floor: random}
  - row: half
    arm: rate30
    set: {encoder_fraction: 0.5, learning_rate: "${task.learning_rate}", max_train_examples: null}
  - {row: random, arm: null}
sweeps:
  pretrain: {model: tiny, seed: "7,8", gradient_clip_norm: 0.5}
  finetune: {epochs: 2}
"""


@pytest.fixture(params=["folder", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "rates"
    folder.mkdir()
    place = folder if request.param == "folder" else folder / "rates.yaml"
    (folder / "paper.yaml" if request.param == "folder" else place).write_text(ABLATION)
    return place


def test_an_ablation_of_one_number_is_one_file(place: Path) -> None:
    assert sweeps_in(place) == {"pretrain": "sweep_pretrain", "finetune": "sweep_finetune"}
    jobs = list(planned_jobs(Sweep("sweep_pretrain", ["runs_dir=R", "scale=demo"], folder=place)))
    assert [job.run_dir for job in jobs] == [
        "R/rates/demo/pretrain/rate15/seed-7",
        "R/rates/demo/pretrain/rate15/seed-8",
        "R/rates/demo/pretrain/rate30/seed-7",
        "R/rates/demo/pretrain/rate30/seed-8",
    ]
    words = ["runs_dir=R", "scale=laptop", "seed=1", "pretrain_seed=1"]
    tuned = Sweep("sweep_finetune", words, folder=place).jobs
    rows = ("row=rate15", "row=half", "row=random")
    assert [job[:2] for job in tuned] == [*product(rows, ("task=snli_95k", "task=mrpc"))]
    # A scale puts nothing in the place of one's own task of that name.
    if place.is_dir():
        (place / "task").mkdir()
        (place / "task/mnli.yaml").write_text("name: mnli\n")
        tuned = Sweep("sweep_finetune", words, folder=place).jobs
        assert {job[1] for job in tuned} == {"task=mnli", "task=mrpc"}


OWN_TASK = """
defaults: [format/labelled@_here_, _self_]
name: mrpc
title: Mine
data: {train_file: mine.csv, text_columns: [text], label_column: label}
"""


def test_a_task_of_ones_own_goes_before_a_benchmark_of_its_name(tmp_path: Path) -> None:
    """In a sweep, and in the process of a job, whose command line names the folder."""
    (tmp_path / "paper.yaml").write_text("arms: {a: {objective: mlm}}\ncolumns: [mrpc]\n")
    (tmp_path / "task").mkdir()
    (tmp_path / "task/mrpc.yaml").write_text(OWN_TASK)
    sweep = Sweep("sweep_finetune", ("scale=demo",), folder=tmp_path)
    assert {sweep.config(job).task.title for job in sweep.jobs} == {"Mine"}
    words = ["--config-dir", str(tmp_path), "--config-name", "sweep_finetune", "row=a"]
    command = [sys.executable, "-m", "clozelab", "finetune", *words, "--cfg", "job"]
    done = forked.run([*command, "task=mrpc"], capture_output=True, text=True, cwd=tmp_path)
    assert OmegaConf.create(done.stdout).task.title == "Mine"
    (tmp_path / "paths.yaml").write_text("{}\n")
    with refuses("clozelab's own paths is replaced by no experiment's", Exception):
        Sweep("sweep_finetune", ("scale=demo",), folder=tmp_path).config(sweep.jobs[0])
    (tmp_path / "paths.yaml").unlink()
    for entry in ("mrpc", "/task: mrpc", "/task@_here_: mrpc"):
        (tmp_path / "task/mrpc.yaml").write_text(f"defaults:\n- {entry}\n- _self_\ntitle: Mine\n")
        with refuses("mrpc, which is this file itself: give it a name of its own", Exception):
            Sweep("sweep_finetune", ("scale=demo",), folder=tmp_path).config(sweep.jobs[0])


def test_arms_may_be_called_as_numbers_are_spelt(tmp_path: Path) -> None:
    """In quotes, as YAML itself has a text; without them a sentence says so."""
    place = tmp_path / "rates.yaml"
    place.write_text(
        "arms: {'0.15': {objective.token.predict_prob: 0.15}, 'null': {}, plain: {}}\n"
        "columns: [mrpc]\n"
    )
    settings = ["runs_dir=R", "scale=demo", "seed=1"]
    jobs = list(planned_jobs(Sweep("sweep_pretrain", settings, folder=place)))
    names = [job.run_dir.removeprefix("R/rates/demo/pretrain/") for job in jobs]
    assert names == ["0.15/seed-1", "null/seed-1", "plain/seed-1"]
    tuned = Sweep("sweep_finetune", [*settings, "pretrain_seed=1"], folder=place)
    rows = [tuned.settings(job)["encoder_arm"] for job in tuned.jobs]
    assert rows == ["0.15", "null", "plain", "0.15"], "the last is the floor"
    place.write_text(place.read_text().replace("'0.15'", "0.15"))
    with refuses("the arm 0.15 is no text: put it in quotes"):
        sweeps_in(place)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arms: {a: {objective: mlm, arm: b}}", "the arm a sets arm, which its runs are found by"),
        ("arms: {a: {experiment: other}}", "the arm a sets experiment"),
        ("arms: {a: {}}\nrows: [{row: r, arm: a, set: {row: s}}]", "the row r sets row"),
    ],
)
def test_an_arm_or_a_row_gives_its_runs_no_other_name(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "paper.yaml").write_text(f"{text}\ncolumns: [mrpc]\n")
    with refuses(message):
        inline_configs(tmp_path)


def test_what_a_delta_says_is_what_a_run_gets(place: Path) -> None:
    composed = compose("sweep_pretrain", ["arm=rate15"], folder=place)
    first = composed.config
    assert (first.arm, first.objective.token["predict_prob"]) == ("rate15", 0.15)
    assert composed.origin.choices["objective"] == "mlm_nsp"
    composed = compose("sweep_pretrain", ["arm=rate30"], folder=place)
    second = composed.config
    assert (second.objective.token["predict_prob"], second.objective.pair) == (0.3, None)
    assert composed.origin.choices["objective/input"] == "full_sentences"
    assert (second.model.hidden_size, second.gradient_clip_norm) == (128, 0.5)
    assert second.share_runs
    words = ["seed=1", "pretrain_seed=1"]
    half, random = (
        compose("sweep_finetune", [f"row={row}", *words], folder=place).config
        for row in ("half", "random")
    )
    assert (half.encoder_arm, half.encoder_fraction) == ("rate30", 0.5)
    assert half.initialisation == "pretrained"
    assert half.learning_rate == half.task.learning_rate and half.max_train_examples is None
    assert (random.encoder_arm, random.initialisation) == ("rate15", "random")
    assert random.experiment == "rates"


def test_rows_may_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "paper.yaml").write_text("arms: {a: {seed: 1}, b: {seed: 2}}\ncolumns: [mnli]\n")
    configs = inline_configs(tmp_path)
    assert [name for name in configs if name.startswith("row/")] == ["row/a", "row/b", "row/random"]
    assert configs["row/random"]["encoder_arm"] == "a"
    assert configs["row/random"]["initialisation"] == "random"
    columns = "columns: [{from: pretrain, metric: x, name: y}]"
    (tmp_path / "paper.yaml").write_text(f"arms: {{a: {{seed: 1}}}}\n{columns}\n")
    assert sweeps_in(tmp_path) == {"pretrain": "sweep_pretrain"}  # nothing to fine-tune on


def test_a_file_comes_before_what_is_inline(tmp_path: Path) -> None:
    (tmp_path / "paper.yaml").write_text(ABLATION)
    (tmp_path / "sweep_pretrain.yaml").write_text("defaults: [pretrain]\nseed: 5\n")
    loader = make_loader(tmp_path)
    assert loader.get_group_options("arm") == ["rate15", "rate30"]
    assert ExperimentSource("", str(tmp_path)).load_config("sweep_pretrain").config.seed == 5
    assert not ExperimentSource("", str(EXPERIMENTS_DIR)).inline


def test_a_slip_in_an_arm_is_refused_by_name_and_key(tmp_path: Path) -> None:
    (tmp_path / "paper.yaml").write_text("arms: {a: {seeed: 1}}\ncolumns: [mnli]\n")
    with pytest.raises(Exception, match=r"(?s)In 'arm/a'.*Key 'seeed'"):
        compose("sweep_pretrain", ["arm=a"], folder=tmp_path)


def test_one_file_on_the_command_line(place: Path, screen: Screens) -> None:
    def shown(*words: str) -> str:
        command = [sys.executable, "-m", "clozelab", *words]
        done = forked.run(command, capture_output=True, text=True, cwd=place.parent)
        assert done.returncode == 0, done.stderr
        text: str = done.stdout
        return text

    tuned = ["finetune.task=mrpc", "finetune.pretrain_seed=7", "finetune.seed=1"]
    text = shown("reproduce", str(place), "scale=demo", "runs_dir=R", "--dry-run", *tuned)
    assert text.count("  new ") == 7
    if place.suffix:  # the folder's are the same
        screen(text)
    named = ["--config-dir", str(place), "--config-name", "sweep_pretrain"]
    text = shown("pretrain", *named, "arm=rate30", "--cfg", "job")
    assert OmegaConf.create(text).objective.token.predict_prob == 0.3


def test_an_experiment_is_taken_from_the_command_line(tmp_path: Path) -> None:
    words = ["--config-dir", f"{tmp_path}/none", "seed=1"]
    assert take_experiment(words) == words, "Hydra says that it is not there"
    assert take_experiment(["--config-dir", str(tmp_path), "seed=1"]) == ["seed=1"]
    (tmp_path / "one.yaml").write_text("arms: {}")
    words = ["-m", f"--config-dir={tmp_path}/one.yaml", "seed=1"]
    assert take_experiment(words) == ["-m", "seed=1"]
    assert take_experiment([]) == []
    assert take_experiment(["--config-d", str(tmp_path), "seed=1"]) == ["seed=1"]
    missing = ["--config-dir", "none", "seed=1"]
    assert take_experiment(["seed=1", "--config-d=none"]) == missing, "no override is its value"
    for words in (["seed=1", "--config-dir"], ["--config-dir=", "seed=1"]):
        with refuses("--config-dir names no place: say --config-dir FOLDER"):
            take_experiment(words)
    with refuses("--config-dir is said for one and two, and is of one place: put the files of"):
        take_experiment(["--config-dir", "one", "--config-dir=two"])
