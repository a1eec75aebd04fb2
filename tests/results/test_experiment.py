"""What paper.yaml may say, and one sentence with file and key for everything else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.results.words import read_claim

from claims.analysis.schema import Part
from clozelab.cli import main
from clozelab.report.page import statistic_of
from clozelab.results import experiment
from clozelab.results.experiment import find_experiment, list_experiments, load_experiment
from clozelab.results.units import scale_without_runs
from clozelab.stages import register, report
from clozelab.text.paths import EXPERIMENTS_DIR

SOURCE = str(Path(__file__).parents[2] / "src")
TABLE = """
title: T
source: S
split: dev
columns:
  - {name: MNLI, metric: validation/accuracy, task: mnli, stand_ins: [snli_95k], benchmarks: []}
  - {name: MRPC, metric: validation/accuracy, task: mrpc}
  - {name: LM, from: pretrain, metric: validation/perplexity}
  - {name: Average, mean_of: [MNLI, MRPC]}
rows:
  - {row: small, label: Small, arm: small, cells: [80.0, 70.0, 5.84, 75.0]}
  - {row: base, label: Base, arm: base, cells: [82.0, 75.0, 3.99, 78.5], floor: small}
  - {row: large, label: Large, arm: large, cells: [83.0, null, 3.23, null]}
claims:
  - {id: series, text: series, rows: [small, base, large], column: LM, direction: decreasing}
  - {id: spread, text: spread, rows: [small, base], column: MNLI, direction: within, points: 1.0}
  - {id: contrast, text: contrast, paper_delta: -3,
     compare: [base, small, MNLI], against: [base, small, MRPC], direction: lower}
  - {id: each, text: each, compare: [large, [small, base], MNLI], direction: higher}
  - {id: order, text: order, paper_delta: 2.0, compare: [base, small, MNLI], direction: higher}
"""
ABLATION = """
title: How many tokens to mask
arms:
  rate15: {objective: mlm, objective.token.predict_prob: 0.15}
  rate30: {objective: mlm, objective.token.predict_prob: 0.3}
columns: [mnli, {name: loss, from: pretrain, metric: validation/loss}]
claims:
  - {text: masking 30 % beats 15 % on MNLI, compare: [rate30, rate15, mnli], direction: higher}
"""


def write(folder: Path, text: str) -> Path:
    (folder / "paper.yaml").write_text(text)
    return folder


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_three_kinds_of_columns(tmp_path: Path) -> None:
    mnli, mrpc, facts, mean = load_experiment(write(tmp_path, TABLE)).columns
    units = [scale_without_runs(column).unit for column in (facts, mnli)]
    assert units == ["perplexity", "percent"] and mean.parts == ((Part("MNLI"),), (Part("MRPC"),))
    assert [bool(one.task) for one in (mnli, mrpc, facts, mean)] == [True, True, False, False]
    assert (
        mnli.accepts("snli_95k", None)
        and mnli.accepts("x", "mnli")
        and not mnli.accepts("mrpc", None)
    )
    assert not mean.accepts("", None)


def test_an_ablation_of_one_number_is_one_file(tmp_path: Path) -> None:
    found = load_experiment(write(tmp_path, ABLATION))
    assert [(row.name, row.label, row.arm, row.cells, row.floor) for row in found.rows] == [
        ("rate15", "rate15", "rate15", (None, None), "random"),
        ("rate30", "rate30", "rate30", (None, None), "random"),
        ("random", "No pre-training", None, (None, None), None),
    ]
    assert found.columns[0].task == "mnli" and not found.has_paper
    own = "rows: [{row: half, arm: rate30, set: {encoder_fraction: 0.5}}]\n"
    (row,) = load_experiment(write(tmp_path, ABLATION.split("claims")[0] + own)).rows
    assert row.delta == {"encoder_fraction": 0.5} and row.label == "half"


@pytest.mark.parametrize("delta", ["null", "0", "0.0"])
@pytest.mark.parametrize("direction", ["lower", "higher"])
def test_a_size_of_none_contradicts_no_direction(delta: str, direction: str) -> None:
    claim = {
        "text": "t",
        "compare": ["a", "b", "C"],
        "direction": direction,
        "paper_delta": None if delta == "null" else float(delta),
    }
    assert not read_claim(claim).paper_delta


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", ""),
        ("seeds: 5\naveraging: mean", "means of 5 runs a cell"),
        ("seeds: 5\naveraging: median", "medians of 5 runs a cell"),
        ("averaging: best", "the best of several runs a cell"),
        ("seeds: 1", "over 1 run a cell"),
    ],
)
def test_what_the_papers_cells_are_of_its_runs(tmp_path: Path, lines: str, words: str) -> None:
    assert statistic_of(load_experiment(write(tmp_path, f"{TABLE}{lines}\n"))) == words


SERIES = "rows: [small, base, large], column: LM"
ORDERED = "compare: [base, small, MNLI], direction: higher"
MEAN_OF_WHAT = "columns.3.mean_of: it is a list of two or more different columns"
OF_TWO_ROWS = "a claim needs two or more different rows"
# A part of TABLE -> what stands in its place -> why that is refused.
REFUSED = {
    "title: T": {
        "titel: T": "has no key 'titel'; did you mean 'title'?",
        "name: T": "has no key 'name'; an experiment is called as its folder",
        "title: [T": "is not valid YAML",
        "title: T\nclaims: []": "is not valid YAML: the key 'claims' is there twice",
    },
    "source: S": {
        "matched_by: luck": "matched_by is 'luck'; it is one of steps, tokens,",
        "seeds: 0": "seeds is 0; it is the number of runs behind a cell",
        "averaging: average": "averaging is 'average'; it is one of mean, median, best",
        "differ_in: epochs": "differ_in is 'epochs'; it is a list of settings",
        "arms: [a]": "arms is .'a'.; it is a mapping of arms, each a mapping of settings",
        "sweeps: {finetun: {}}": "sweeps: has no key 'finetun'; did you mean 'finetune'?",
    },
    "split: dev": {"split: dve": "split is 'dve'; it is dev or test"},
    "[snli_95k]": {"snli_95k": "columns.0.stand_ins is 'snli_95k'; it is a list of tasks"},
    "benchmarks: []": {
        "benchmarks: [], split: tset": "columns.0.split is 'tset'; it is dev or test"
    },
    "task: mnli,": {
        "tasks: mnli,": "columns.0: has no key 'tasks'; did you mean 'task'?",
        "": "columns.0: a column has one of task, from: pretrain and mean_of",
    },
    "from: pretrain": {
        "from: pretraining": "columns.2.from is 'pretraining'; it is pretrain, evaluate, or left"
    },
    ", metric: validation/perplexity": {"": "columns.2: a column from pretrain has a metric"},
    "[MNLI, MRPC]": {
        "[MNLI, MRPCC]": "columns.3: mean_of: 'MRPCC' is none .* did you mean 'MRPC'?",
        "[MNLI, LM]": "columns.3: mean_of: 'LM' is none of the tasks' columns",
        "[MNLI, [MRPC, MRPC]]": MEAN_OF_WHAT,
        "[[MNLI, MRPC]]": MEAN_OF_WHAT,
        "[{MNLI: validation/accuracy, LM: x}, MRPC]": "columns.3: mean_of: .*MNLI.* is none",
        "MNLI": f"{MEAN_OF_WHAT}, not 'MNLI'",
        "[MNLI, MRPC], stand_ins: [x]": "columns.3: stand_ins, benchmarks and a metric belong",
    },
    "task: mrpc": {
        "task: mrpc, from: evaluate": "columns.3: mean_of: tasks and measures have seeds of their"
    },
    "name: MRPC": {"name: MNLI": "columns: name 'MNLI' is there twice"},
    "3.99, 78.5]": {
        "3.99]": "rows.1: 3 cells for 4 columns",
        "3.99, high]": "rows.1.cells.3 is 'high'; it is a list with a number, or null",
    },
    "floor: small": {
        "floor: smal": "rows.1: floor: 'smal' is none of the rows; did you mean 'small'?"
    },
    "row: base,": {
        "row: small,": "rows: row 'small' is there twice",
        "": "rows.1: lacks row, the row's name",
    },
    "decreasing": {
        "down": "claims.0.direction is 'down'; it is lower, higher, not_lower",
        "lower": "claims.0: direction is 'lower'; with rows it is increasing, decreasing or within",
        "decreasing, points: 1.0": "claims.0: points, a number above 0, belongs to direction: with",
        "decreasing, paper_delta: -1.5": "claims.0: paper_delta is -1.5; of several differences",
    },
    SERIES: {
        "rows: [small], column: LM": f"claims.0: {OF_TWO_ROWS}, not small",
        "rows: [small, small], column: LM": f"claims.0: {OF_TWO_ROWS}",
        "rows: [small, bas], column: LM": "claims.0: 'bas' is none of the rows; did you mean 'base",
        "rows: [small, base], column: L": "claims.0: 'L' is none of the columns; did you mean 'LM'",
        "rows: [small, base]": "claims.0: lacks column, a column's name, or all",
    },
    "points: 1.0": {
        "points: 0": "claims.1: points, a number above 0, belongs to direction: within",
        "points: true": "claims.1.points is True; it is a number above 0",
    },
    "[base, small, MRPC]": {
        "[base, small, LM]": "claims.2: compare is in percent and against",
        "[base, small, all]": "claims.2: against: 'all' is none of",
        "[base, small, MNLI]": "claims.2: against is the same difference as",
        "[base, MRPC]": "claims.2.against.2 is .*; it is .row, row, column.",
        "[base, base, MRPC]": "claims.2: against compares 'base' with itself",
    },
    "paper_delta: -3": {
        "paper_delta: 3": "claims.2: paper_delta is 3 and direction is lower: .* is wrong",
        "paper_delta: -7": "claims.2: paper_delta is -7, and its cells say -3$",
    },
    "[small, base], MNLI]": {
        "[small, small], MNLI]": f"claims.3: {OF_TWO_ROWS}",
        "[small, large], MNLI]": f"claims.3: {OF_TWO_ROWS}",
        "[small, base]]": "claims.3: compare is .row, row, column. or",
    },
    ORDERED: {
        ORDERED.replace("small", "base"): f"claims.4: {OF_TWO_ROWS}",
        ORDERED.replace("higher", "within"): "claims.4: direction is 'within'; with compare it is",
        ORDERED.replace("MNLI", "all"): "claims.4: paper_delta is 2; of several differences",
    },
    "paper_delta: 2.0": {
        "paper_delta: lots": "claims.4.paper_delta is 'lots'; it is a number in the column's unit",
        "paper_delta: 20": "claims.4: paper_delta is 20, and its cells say 2$",
        "size: 2.0": "claims.4: has no key 'size'; there are ",
    },
    "id: order": {"id: each": "claims: id 'each' is there twice"},
    "text: order": {"text: each": "claims: text 'each' is there twice"},
}
SLIPS = []
for line, slips in REFUSED.items():
    SLIPS += [(line, slip, message) for slip, message in slips.items()]


@pytest.mark.parametrize(("old", "new", "message"), SLIPS)
def test_a_slip_in_the_table_is_refused_in_one_sentence(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    write(tmp_path, TABLE)
    edit(tmp_path / "paper.yaml", old, new)
    place = re.escape(str(tmp_path / "paper.yaml"))
    with pytest.raises(ValueError, match=rf"^{place}:? " + message.replace("?", r"\?")):
        find_experiment(str(tmp_path))


BESIDE = [
    (
        "floor: random_bilstm, set: {",
        "floor: random_bilstm, set: {encoder_arm: lrt, ",
        "encoder_arm: 'lrt' is none of the arms; did you mean 'ltr'?",
    ),
    (
        "{row: random,",
        "{row: randm,",
        "rows.0: floor: 'random' is none of the rows; did you mean 'random_bilstm'?",
    ),
    ("  ltr: {", "  mine: {", "encoder_arm: 'ltr' is none of the arms"),
]


@pytest.fixture
def table5(tmp_path: Path) -> Path:
    return Path(
        shutil.copytree(EXPERIMENTS_DIR / "table5_pretraining_tasks", tmp_path / "experiment")
    )


@pytest.mark.parametrize(("old", "new", "message"), BESIDE)
def test_a_name_that_no_line_has_is_refused(table5: Path, old: str, new: str, message: str) -> None:
    file = table5 / "paper.yaml"
    edit(file, old, new)
    with pytest.raises(ValueError, match=f"{re.escape(str(file))}.*" + message.replace("?", r"\?")):
        find_experiment(str(table5))


@pytest.mark.parametrize("verb", ["plan", "report"])
def test_a_verb_refuses_arms_and_rows_in_files_of_their_own(
    table5: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (table5 / "row").mkdir()
    (table5 / "row/mlm.yaml").write_text("# @package _global_\nhead: bilstm\n")
    assert main([verb, str(table5), f"runs_dir={table5}/runs"]) == 1
    printed = capsys.readouterr()
    assert not printed.out and not (table5 / "runs").exists()
    assert f"error: {table5}/row/mlm.yaml: arms and rows are no files of their own" in printed.err


RATES = """\
columns: [mnli, {name: Probe, from: evaluate, task: probe, metric: validation/accuracy}]
arms:
  mlm: {objective: mlm}
sweeps:
  finetune: {task: mnli, learning_rate: 1.0e-3}
rows:
  - {row: given, arm: null, set: {learning_rate: 1.0e-4}}
  - {row: mlm, arm: mlm}
claims:
  - {text: t, compare: [given, mlm, mnli], direction: higher}
"""


def test_rows_that_would_not_be_compared_are_refused_before_any_run(tmp_path: Path) -> None:
    folder = write(tmp_path, RATES)
    sentence = "given is fine-tuned with learning_rate 0.0001 and mlm with 0.001"
    with pytest.raises(ValueError, match=sentence):
        load_experiment(folder)
    fine = (
        # It is meant; it is the same; it is no number; nothing is fine-tuned.
        ("claims:", "differ_in: [learning_rate]\nclaims:"),
        ("1.0e-4", "1.0e-3"),
        ("1.0e-4", '"${task.learning_rate}"'),
        (", learning_rate: 1.0e-3", ""),
        ("mlm, mnli]", "mlm, Probe]"),
        ("learning_rate: 1.0e-4", "head: bilstm"),
    )
    for old, new in fine:
        write(tmp_path, RATES)
        edit(folder / "paper.yaml", old, new)
        assert len(load_experiment(folder).claims) == 1


def test_what_is_left_open_is_no_slip(table5: Path) -> None:
    """An interpolated arm, a glob, a group of the experiment's own, a set that no task here reads,
    a module's score.
    """
    edit(table5 / "paper.yaml", "{encoder_arm: mlm, head", "{encoder_arm: '${row}', head")
    edit(table5 / "sweep_pretrain.yaml", "arm: mlm_nsp,mlm,ltr", "arm: glob(*)\n      flavour: one")
    edit(table5 / "paper.yaml", "accuracy, task: sst2", "bleu, task: fremde_daten")
    edit(
        table5 / "paper.yaml",
        "split: dev\n",
        "split: dev\ndiffer_in: [task.data, 'phases.*.steps']\n",
    )
    (table5 / "flavour").mkdir()
    assert find_experiment(str(table5)) == table5


def test_a_verb_reads_and_checks_its_experiment_once(
    tmp_path: Path, writers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers.pretrain(tmp_path / "runs" / tmp_path.name / "dials", "mlm", 1)
    column = "{name: loss, from: pretrain, metric: validation/loss}"
    write(tmp_path, f"arms: {{mlm: {{objective: mlm}}}}\ncolumns: [{column}]\n")
    opened = []
    monkeypatch.setattr(experiment, "_check_arms", lambda *_: opened.append(1))
    words = [str(tmp_path), "scale=dials", f"runs_dir={tmp_path}/runs"]
    for verb in (register, report):
        assert verb.main(words) == 0
        assert opened == [1], verb.__name__
        opened.clear()


def test_opening_every_experiment_imports_neither_torch_nor_hydra() -> None:
    code = (
        "import sys\nfrom clozelab.results.experiment import find_experiment\n"
        f"[find_experiment(name) for name in {list_experiments()!r}]\n"
        "assert not {'torch', 'hydra', 'omegaconf', 'scipy'} & sys.modules.keys()\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": SOURCE}
    )


def test_the_whole_file_that_the_page_shows_can_be_read(tmp_path: Path) -> None:
    page = (Path(SOURCE).parent / "docs" / "claims.md").read_text()
    shown = page.split("## A whole paper.yaml")[1].split("```yaml\n")[1].split("```")[0]
    assert len(load_experiment(write(tmp_path, shown)).claims) == 1
