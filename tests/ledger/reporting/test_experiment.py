"""A typo in an experiment's files is refused with file and key whenever the experiment is opened."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clozelab.config import CONF_DIR, EXPERIMENTS_DIR
from clozelab.launch import sweep
from clozelab.launch.plan import make_steps
from clozelab.modules.pretraining import validation_metrics
from clozelab.targets import locate
from clozelab.training.measuring import Throughput
from clozelab.verdicts.experiment import find_experiment, list_experiments, load_experiment
from clozelab.verdicts.paper import FACTS, Tasks, check_fact, check_setting

TASK = "name: mine\ndefaults: [format/glue@_here_, _self_]\nmodule: {metrics: [matthews]}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Table 5 with files of its own."""
    place = tmp_path / "experiment"
    shutil.copytree(EXPERIMENTS_DIR / "table5_pretraining_tasks", place)
    load_experiment(place)
    return place


def edit(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))


QNLI = "{name: QNLI, metric: validation/accuracy, task: qnli, stand_ins: [qnli_derived], benchmarks: [QNLI]}"
PERPLEXITY = "  - {name: LM, from: pretrain, metric: validation/perplexty}\nrows:"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("split: dev\n", "split: dve\n", r"split is 'dve'; it is one of dev, test"),
        ("split: dev\n", "split: dev\ndiffer_in: [epocs]\n", r"differ_in: .* a key 'epocs'; did you mean 'epochs'\?"),
        ("split: dev\n", "split: dev\ndiffer_in: [task.dat]\n", r"differ_in: .*'task\.dat'; did you mean 'task\.data'"),
        (
            "split: dev\n",
            "split: dev\ndiffer_in: [phases.*.step]\n",
            r"differ_in: .*'phases\.\*\.step'; .* 'phases\.\*\.steps'\?",
        ),
        (
            "split: dev\n",
            "split: dev\ndiffer_in: [phases.steps]\n",
            r"differ_in: .*'phases\.steps'; did you mean 'phases\.\*'\?",
        ),
        ("split: dev\n", "split: dev\ndiffer_in: [epochs.x]\n", r"differ_in: .*'epochs\.x'; did you mean 'epochs'\?"),
        (
            QNLI,
            QNLI.replace("task: qnli", "task: qnlli"),
            r"columns\.1: task 'qnlli' is no task; did you mean 'qnli'\?",
        ),
        (QNLI, QNLI.replace("_derived", "_derivd"), r"columns\.1: stand_ins: 'qnli_derivd' .* mean 'qnli_derived'\?"),
        (
            QNLI,
            QNLI.replace("[qnli_derived]", "qnli_derived"),
            r"columns\.1: stand_ins is 'qnli_derived'; it is a list",
        ),
        (QNLI, QNLI.replace("[QNLI]", "QNLI"), r"columns\.1: benchmarks is 'QNLI'; it is a list"),
        (
            QNLI,
            QNLI.replace("accuracy", "acuracy"),
            r"columns\.1: metric 'validation/acuracy' is no score of qnli; did you mean 'validation/accuracy'\?$",
        ),
        (
            QNLI,
            QNLI.replace("accuracy", "f1"),
            r"columns\.1: metric 'validation/f1' is no score of qnli; there are validation/accuracy$",
        ),
        (QNLI, QNLI.replace("[QNLI]", "[QNLI], split: tset"), r"columns\.1: split is 'tset'; it is one of dev, test"),
        (
            "rows:",
            PERPLEXITY,
            r"columns\.5: metric 'validation/perplexty' is no fact .* mean 'validation/perplexity'\?",
        ),
        (
            "rows:",
            "  - {name: A, mean_of: [QNLI, [MRPC, {MRPC: validation/f2}]]}\nrows:",
            r"columns\.5: mean_of: MRPC: 'validation/f2' is no score of mrpc; did you mean 'validation/f1'\?",
        ),
        ("rows:", "  - {name: A, mean_of: [QNLI, MRPC], split: tset}\nrows:", r"columns\.5: split is 'tset'"),
    ],
)
def test_a_typo_in_the_table_names_the_key_and_what_was_meant(folder: Path, old: str, new: str, message: str) -> None:
    edit(folder, "paper.yaml", old, new)
    with pytest.raises(ValueError, match=rf"{re.escape(str(folder / 'paper.yaml'))}: {message}"):
        find_experiment(str(folder))


@pytest.mark.parametrize("task", ["anli", "conll", "sst5", "qn"])
def test_a_data_set_that_nothing_reads_may_have_a_stand_in(folder: Path, task: str) -> None:
    edit(folder, "paper.yaml", QNLI, QNLI.replace("task: qnli", f"task: {task}"))
    assert find_experiment(str(folder)) == folder
    edit(folder, "paper.yaml", f"task: {task},", "task: qnil,")
    with pytest.raises(ValueError, match="'qnil' is no task; did you mean 'qnli'"):
        find_experiment(str(folder))


def test_a_sweep_may_add_a_group(folder: Path) -> None:
    edit(folder, "sweep_pretrain.yaml", "    params:\n", "    params:\n      +objective/pair: nsp\n")
    assert find_experiment(str(folder)) == folder


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("row/mlm.yaml", ": mlm\nhead", ": mlmm\nhead", r"encoder_arm 'mlmm' has no file arm/mlmm\.yaml; .* 'mlm'\?"),
        ("row/mlm.yaml", ": mlm\nhead", ": ltr\nhead", "encoder_arm is 'ltr', and paper.yaml says arm: 'mlm' of this"),
        ("row/mlm.yaml", ": mlm\nhead", ": null\nhead", "encoder_arm is null, and paper.yaml says arm: 'mlm' of this"),
        (
            "row/random.yaml",
            "initialisation: random",
            "initialisation: pretrained",
            "encoder_arm is 'mlm', .* arm: null",
        ),
        ("row/ltr.yaml", "encoder_arm", "encoder_armm", r"finetune has no key 'encoder_armm'; .*'encoder_arm'\?"),
        ("row/ltr.yaml", "head: linear", "task: {epoch: 1}", r"finetune has no key 'task\.epoch'; .*'task\.epochs'\?"),
        ("arm/ltr.yaml", "arm: ltr", "amr: ltr", r"pretrain has no key 'amr'; did you mean 'arm'\?"),
        ("arm/ltr.yaml", "arm: ltr", "arm: [ltr", "is not valid YAML"),
        ("sweep_finetune.yaml", "row: mlm_nsp,mlm", "row: mlm_nsp,mml", r"\.row: 'mml' has no file row/mml\.yaml"),
        ("sweep_pretrain.yaml", "arm: mlm_nsp,mlm", "arm: mlm_nsp,mml", r"\.arm: 'mml' has no file arm/mml\.yaml"),
        (
            "sweep_pretrain.yaml",
            "      seed:",
            "      sed:",
            r"params: pretrain has no key 'sed'; did you mean 'seed'\?",
        ),
    ],
)
def test_a_typo_beside_the_table_is_refused_before_a_step(
    folder: Path, file: str, old: str, new: str, message: str
) -> None:
    edit(folder, file, old, new)
    with pytest.raises(ValueError, match=rf"(?s){re.escape(str(folder / file))}.*{message}"):
        find_experiment(str(folder))


@pytest.mark.parametrize("verb", ["reproduce", "doctor", "plan", "report"])
def test_every_verb_that_opens_an_experiment_refuses(folder: Path, verb: str) -> None:
    edit(folder, "row/mlm.yaml", ": mlm\nhead", ": mlmm\nhead")
    words = [sys.executable, "-m", "clozelab", verb, str(folder), f"runs_dir={folder}/runs"]
    source = str(Path(__file__).parents[3] / "src")
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": source})
    assert done.returncode == 1 and not done.stdout and not (folder / "runs").exists()
    assert f"error: {folder}/row/mlm.yaml: encoder_arm 'mlmm'" in done.stderr


def test_what_is_left_open_is_no_typo(folder: Path) -> None:
    """An interpolated arm, a glob, a group of the experiment's own, a set that no task here reads."""
    edit(folder, "row/mlm.yaml", "encoder_arm: mlm", "encoder_arm: ${row}")
    edit(folder, "sweep_pretrain.yaml", "arm: mlm_nsp,mlm,ltr", "arm: glob(*)\n      flavour: one")
    edit(folder, "paper.yaml", "task: sst2", "task: fremde_daten")
    edit(
        folder, "paper.yaml", "split: dev\n", "split: dev\ndiffer_in: [task.data, 'phases.*.steps', optimizer.betas]\n"
    )
    (folder / "flavour").mkdir()
    assert find_experiment(str(folder)) == folder


@pytest.mark.parametrize("place", ["experiment", "search path"])
def test_tasks_of_ones_own_are_looked_for_where_hydra_looks(folder: Path, tmp_path: Path, place: str) -> None:
    edit(folder, "paper.yaml", "task: sst2", "task: mine")
    edit(folder, "paper.yaml", "stand_ins: [qnli_derived]", "stand_ins: [qnlli]")
    own = folder if place == "experiment" else tmp_path / "conf"
    (own / "task").mkdir(parents=True)
    for name in ("mine", "qnlli"):
        (own / f"task/{name}.yaml").write_text(TASK)
    if place == "search path":
        edit(folder, "sweep_finetune.yaml", "hydra:\n", f"hydra:\n  searchpath: [file://{own}]\n")
    assert sweep.compose("sweep_finetune", ["task=mine"], folder=folder).task.module.metrics == ["matthews"]
    with pytest.raises(ValueError, match="'validation/accuracy' is no score of mine; there are validation/matthews"):
        find_experiment(str(folder))
    edit(folder, "paper.yaml", "validation/accuracy, task: mine", "validation/matthews, task: mine")
    assert find_experiment(str(folder)) == folder


@pytest.mark.parametrize("task", sorted(path.stem for path in (CONF_DIR / "task").glob("*.yaml")))
def test_scores_are_those_that_the_module_has(task: str) -> None:
    composed = sweep.without_hydra(sweep.compose("finetune", [f"task={task}"]))
    module = locate(composed.task.module["_target_"], "task.module")
    expected = list(module.score_keys(composed.task.module, composed.task.data))
    assert list(Tasks(CONF_DIR)._scores(task)) == expected


def test_facts_are_those_that_a_run_records() -> None:
    recorded = {**validation_metrics({name: [1.0, 1.0, 1.0] for name in ("mlm", "nsp", "nsp/wiki")}, "mlm")}
    throughput = Throughput()
    throughput.total_seconds = 1.0
    for fact in {*recorded, *throughput.facts(1, 1.0), "parameters", "unigram_entropy"}:
        check_fact(fact, EXPERIMENTS_DIR, "")
    assert set(FACTS) >= set(throughput.facts(1, 1.0))
    with pytest.raises(ValueError, match="did you mean 'validation/nsp_accuracy'"):
        check_fact("validation/nsp_acuracy", EXPERIMENTS_DIR, "")


def test_settings_are_any_that_a_stage_has() -> None:
    for key in (
        "epochs",
        "learning_rate",
        "model",
        "objective.token.predict_prob",
        "task.always.head",
        "phases.0.steps",
    ):
        check_setting(key, "")


def test_opening_every_experiment_imports_no_torch() -> None:
    code = (
        "import sys\nfrom clozelab.verdicts.experiment import find_experiment\n"
        f"[find_experiment(name) for name in {list_experiments()!r}]\nassert 'torch' not in sys.modules\n"
    )
    source = str(Path(__file__).parents[3] / "src")
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": source})


def test_a_right_experiment_goes_on_to_its_steps(folder: Path) -> None:
    assert [step.verb for step in make_steps(find_experiment(str(folder)), [])] == ["prepare", "pretrain", "finetune"]


def test_the_whole_file_that_the_page_shows_can_be_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "claims.md").read_text()
    shown = page.split("## A whole paper.yaml")[1].split("```yaml\n")[1].split("```")[0]
    (tmp_path / "paper.yaml").write_text(shown)
    read = load_experiment(tmp_path)
    assert [row.floor for row in read.rows] == ["random", "random", None] and len(read.claims) == 1
