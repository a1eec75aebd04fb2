"""Every experiment: its paper.yaml is sound, its sweeps expand to the jobs they declare, every job composes."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from clozelab.config import CONF_DIR, EXPERIMENTS_DIR
from clozelab.ledger import sweep
from clozelab.ledger.experiment import find_experiment, list_experiments, load_experiment
from clozelab.ledger.plan import make_steps, require_task_files
from clozelab.ledger.targets import check_targets

TABLE5 = EXPERIMENTS_DIR / "table5_pretraining_tasks"
SCALES = sorted(path.stem for path in (CONF_DIR / "scale").glob("*.yaml"))


@pytest.mark.parametrize("name", list_experiments())
def test_paper_yaml_and_readme(name: str) -> None:
    experiment = load_experiment(find_experiment(name))
    rows = {path.stem for path in (experiment.folder / "row").glob("*.yaml")}
    arms = {path.stem for path in (experiment.folder / "arm").glob("*.yaml")}
    assert {row.name for row in experiment.rows} == rows
    assert {row.arm for row in experiment.rows} - {None} == arms
    readme = (experiment.folder / "README.md").read_text()
    assert all(row.label in readme for row in experiment.rows)
    assert name in (EXPERIMENTS_DIR / "README.md").read_text()


@pytest.mark.parametrize("name", list_experiments())
def test_no_python_and_no_sizes_in_arms(name: str) -> None:
    folder = EXPERIMENTS_DIR / name
    assert not list(folder.rglob("*.py"))
    for path in (folder / "arm").glob("*.yaml"):
        assert not re.search(r"steps|hidden_size|num_hidden_layers|batch_size", path.read_text()), path


def test_tasks_of_the_paper_exist() -> None:
    experiment = load_experiment(TABLE5)
    tasks = {path.stem for path in (CONF_DIR / "task").glob("*.yaml")}
    for column in experiment.columns:
        assert {column.task, *column.stand_ins} <= tasks
        task = OmegaConf.load(CONF_DIR / "task" / f"{column.task}.yaml")
        assert not OmegaConf.select(task, "stand_in_for")
        for name in column.stand_ins:
            stand_in = OmegaConf.load(CONF_DIR / "task" / f"{name}.yaml").stand_in_for
            assert column.accepts("some other task", stand_in), f"{name} stands in for {stand_in}, not {column.name}"


@pytest.mark.parametrize("scale", SCALES)
def test_pretraining_sweep(scale: str) -> None:
    jobs = list(sweep.expand("sweep_pretrain", [f"scale={scale}", "runs_dir=R"], folder=TABLE5))
    seeds = OmegaConf.load(CONF_DIR / "scale" / f"{scale}.yaml").pretrain.seeds.split(",")
    expected = {
        f"R/table5_pretraining_tasks/{scale}/pretrain/{a}/seed-{s}" for a in ("mlm_nsp", "mlm", "ltr") for s in seeds
    }
    assert {job.run_dir for job in jobs} == expected and len(jobs) == len(expected)
    assert {job.status for job in jobs} == {"new"}


def test_finetuning_sweep() -> None:
    words = ["scale=demo", "runs_dir=R", "task=mrpc,squad_v1", "pretrain_seed=1,2", "seed=3"]
    jobs = list(sweep.expand("sweep_finetune", words, folder=TABLE5))
    rows = ("mlm_nsp", "mlm", "ltr", "ltr_bilstm", "random", "random_bilstm")
    root = "R/table5_pretraining_tasks/demo/finetune"
    expected = [f"{root}/{r}/pretrain-seed-{p}/{t}/seed-3" for r, t, p in product(rows, ("mrpc", "squad_v1"), (1, 2))]
    assert sorted(job.run_dir for job in jobs) == sorted(expected)


@pytest.mark.parametrize("scale", SCALES)
def test_finetuning_sweep_uses_the_scales_lists(scale: str) -> None:
    words = [f"scale={scale}", "runs_dir=R", "row=mlm"]
    folders = [job.run_dir for job in sweep.expand("sweep_finetune", words, folder=TABLE5)]
    chosen = OmegaConf.load(CONF_DIR / "scale" / f"{scale}.yaml")
    seeds = (chosen.pretrain.seeds.split(","), chosen.finetune.tasks.split(","), chosen.finetune.seeds.split(","))
    assert len(folders) == len(set(folders)) == len(list(product(*seeds)))


@pytest.mark.parametrize(
    ("row", "arm", "head", "initialisation"),
    [
        ("mlm_nsp", "mlm_nsp", "linear", "pretrained"),
        ("ltr_bilstm", "ltr", "bilstm", "pretrained"),
        ("random", "mlm", "linear", "random"),
        ("random_bilstm", "ltr", "bilstm", "random"),
    ],
)
def test_rows(row: str, arm: str, head: str, initialisation: str) -> None:
    composed = sweep.compose("sweep_finetune", [f"row={row}", "runs_dir=R", "pretrain_seed=2"], folder=TABLE5)
    assert (composed.row, composed.encoder_arm, composed.head, composed.initialisation) == (
        row,
        arm,
        head,
        initialisation,
    )
    # What the pre-training sweep writes is what fine-tuning reads.
    (job,) = sweep.expand("sweep_pretrain", [f"arm={arm}", "seed=2", "runs_dir=R"], folder=TABLE5)
    assert composed.encoder == f"{job.run_dir}/encoder"


@pytest.mark.parametrize("arm", ["mlm_nsp", "mlm", "ltr"])
def test_arms(arm: str) -> None:
    composed = sweep.compose("sweep_pretrain", [f"arm={arm}"], folder=TABLE5)
    with sweep.hydra_config(composed):
        plain = sweep.without_hydra(composed)
        check_targets(plain, signatures=False)
        assert plain.arm == arm and composed.hydra.runtime.choices.objective == arm
        assert (plain.objective.pair is None) == (arm != "mlm_nsp")


def test_steps_and_overrides() -> None:
    words = [
        "scale=laptop",
        "data_dir=D",
        "trainer=gpu",
        "pretrain.seed=7,8",
        "finetune.task=mrpc",
        "prepare.corpus.lowercase=false",
    ]
    prepare, pretrain, finetune = make_steps(TABLE5, words)
    assert prepare.words()[:3] == ["prepare", "corpus=scale_laptop", "scale=laptop"]
    assert "corpus.lowercase=false" in prepare.overrides and "trainer=gpu" not in prepare.overrides
    assert pretrain.overrides == ("scale=laptop", "data_dir=D", "trainer=gpu", "seed=7,8")
    assert finetune.overrides == ("scale=laptop", "data_dir=D", "trainer=gpu", "task=mrpc")
    assert pretrain.words()[:6] == ["pretrain", "--config-dir", str(TABLE5), "--config-name", "sweep_pretrain", "-m"]


@pytest.mark.parametrize("word", ["scale=lapto", "trainr=gpu", "corpus=nothing", "seed"])
def test_overrides_that_no_stage_takes(word: str) -> None:
    with pytest.raises(ValueError, match="no stage takes"):
        make_steps(TABLE5, [word])


def test_corpus_follows_the_users_choice() -> None:
    assert "corpus=text" in make_steps(TABLE5, ["corpus=text"])[0].overrides


def test_unknown_experiment() -> None:
    with pytest.raises(ValueError, match="did you mean 'table5_pretraining_tasks'"):
        find_experiment("table5_pretraining_task")


def test_folder_of_ones_own(tmp_path: Path) -> None:
    for path in TABLE5.rglob("*.yaml"):
        target = tmp_path / "mine" / path.relative_to(TABLE5)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text().replace("experiment: table5_pretraining_tasks", "experiment: mine"))
    folder = find_experiment(str(tmp_path / "mine"))
    assert next(sweep.expand("sweep_pretrain", ["runs_dir=R"], folder=folder)).run_dir.startswith("R/mine/demo/")
    (tmp_path / "mine" / "arm" / "mlm.yaml").write_text("# @package _global_\narmm: mlm\n")
    with pytest.raises(Exception, match="armm"):
        list(sweep.expand("sweep_pretrain", ["arm=mlm"], folder=folder))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("direction: lower}", "direction: down}", "direction is 'down'"),
        ("compare: [mlm, mlm_nsp, QNLI]", "compare: [mlm, mlm_nsp, QNLY]", r"columns \["),
        ("cells: [84.4, 88.4, 86.7, 92.7, 88.5]", "cells: [84.4]", "1 cells for 5 columns"),
        ("label: No NSP,", "lable: No NSP,", "needs exactly the keys"),
        ("compare: [mlm, mlm_nsp, QNLI]", "compare: [mlm, mlm_nsp]", r"compare is \[row, row, column\]"),
        ("split: dev", "split: [dev", "is not valid YAML"),
    ],
)
def test_bad_paper_yaml(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (TABLE5 / "paper.yaml").read_text()
    assert old in text
    (tmp_path / "paper.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        load_experiment(tmp_path)


@pytest.mark.parametrize("name", ["table1_glue", "table2_squad_v1", "table3_squad_v2"])
def test_a_given_encoder_needs_no_pretraining(name: str) -> None:
    folder = EXPERIMENTS_DIR / name
    (step,) = make_steps(folder, ["encoder=/x", "scale=laptop", "runs_dir=R"])
    assert (step.verb, step.overrides[0]) == ("finetune", "row=given")
    jobs = list(sweep.expand(step.config_name, [*step.overrides, "seed=1"], folder=folder))
    assert all(job.run_dir.startswith(f"R/{name}/laptop/finetune/given/pretrain-seed-1/") for job in jobs)
    assert len({job.run_dir for job in jobs}) == len(jobs)
    (large,) = make_steps(folder, ["row=large", "encoder=/x"])
    assert large.overrides == ("row=large", "encoder=/x")
    assert [one.verb for one in make_steps(folder, [])] == ["prepare", "pretrain", "finetune"]
    with pytest.raises(ValueError, match=r"has no row/given\.yaml"):
        make_steps(TABLE5, ["encoder=/x"])


def test_given_encoder_is_fine_tuned_by_the_papers_protocol() -> None:
    words = ["row=given", "encoder=/x", "scale=laptop", "task=rte", "seed=1", "runs_dir=R"]
    jobs = list(sweep.expand("sweep_finetune", words, folder=EXPERIMENTS_DIR / "table1_glue"))
    assert [job.run_dir.split("/")[-2] for job in jobs] == ["rate-5e-05", "rate-4e-05", "rate-3e-05", "rate-2e-05"]
    composed = sweep.compose("sweep_finetune", words, folder=EXPERIMENTS_DIR / "table1_glue")
    assert (composed.epochs, composed.max_train_examples, composed.encoder) == (3, None, "/x")


def test_a_row_of_the_table_without_a_file_is_refused(tmp_path: Path) -> None:
    text = (TABLE5 / "paper.yaml").read_text()
    (tmp_path / "paper.yaml").write_text(text.replace("{row: ltr_bilstm,", "{row: ltr_bilstmm,"))
    (tmp_path / "row").mkdir()
    for path in (TABLE5 / "row").glob("*.yaml"):
        (tmp_path / "row" / path.name).write_text(path.read_text())
    with pytest.raises(ValueError, match=r"row 'ltr_bilstmm' has no file row/.*did you mean 'ltr_bilstm'"):
        load_experiment(tmp_path)


def test_missing_task_files_are_said_before_pretraining(tmp_path: Path) -> None:
    step = make_steps(TABLE5, ["scale=demo", f"data_dir={tmp_path}", "finetune.task=mrpc,squad_v1"])[-1]
    with pytest.raises(
        ValueError, match=r"(?s)task mrpc: .*MRPC/train\.tsv.*to go without it: finetune\.task=squad_v1"
    ):
        require_task_files(step)
    for name in ("glue/MRPC/train.tsv", "glue/MRPC/dev.tsv", "squad/train-v1.1.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    with pytest.raises(ValueError, match=r"task squad_v1: .*dev-v1\.1\.json"):
        require_task_files(step)
    (tmp_path / "squad/dev-v1.1.json").write_text("")
    require_task_files(step)
