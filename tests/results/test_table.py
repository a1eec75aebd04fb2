"""Which runs stand in which column: several scores of one task, another split than the paper's,
learning rates.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.records import made_up
from tests.records import table_of as records_table
from tests.results.words import cell_note, incomparability_of, judgement_note, role_of
from tests.screens import refuses

from claims.analysis.scores import Cell
from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import judge
from clozelab.launch import sweep
from clozelab.results.experiment import load_experiment
from clozelab.results.table import ResultTable
from clozelab.runs.record import MASKING, Record, Score
from clozelab.text.paths import EXPERIMENTS_DIR


def run(
    row: str, task: str, scores: float | dict[str, float], metric: str = "", **about: Any
) -> Record:
    """A complete run's record; one score is its accuracy. `about` are names, facts, settings of
    the task, or the record's own fields.
    """
    values = {"validation/accuracy": scores} if isinstance(scores, float) else scores
    found = {}
    for key, value in values.items():
        found[key] = Score(unit="percent", higher_is_better=True, value=value)
    config = {"row": row, "task": {"name": task, "data": about.pop("data", {})}}
    for name, usual in (("pretrain_seed", 1), ("seed", 1), ("learning_rate", 1e-4)):
        config[name] = about.pop(name, usual)
    folder = about.pop("folder", Path(row))
    status = about.pop("status", "complete")
    return made_up(
        "finetune",
        status=status,
        folder=folder,
        config=config,
        facts={"title": task.upper()} | about,
        metric=metric or next(iter(values), ""),
        scores=found,
    )


def table_of(name: str, *runs: Record) -> ResultTable:
    return records_table(load_experiment(EXPERIMENTS_DIR / name), runs)


def test_one_task_fills_several_columns() -> None:
    scores = {"validation/exact_match": 70.0, "validation/f1": 80.0}
    table = table_of("table2_squad_v1", run("large", "squad_v1", scores, "validation/f1"))
    assert [(one.heading, one.is_paper) for one in table.columns] == [
        (name, True) for name in ("dev EM", "dev F1", "test EM", "test F1")
    ]
    assert len({one.key for one in table.columns}) == 4
    means = [table.cells["large", one.key].estimate for one in table.columns]
    assert [one and one.mean for one in means] == [70.0, 80.0, None, None]
    assert [table.paper_value("large_extra", one) for one in table.columns] == [
        84.2,
        91.1,
        85.1,
        91.8,
    ]


@pytest.mark.parametrize(
    ("table", "task", "about", "names"),
    [
        (
            "table2_squad_v1",
            "squad_v1",
            {"synthetic": "microworld"},
            ["microworld dev EM", "microworld SQuAD F1"],
        ),
        ("table3_squad_v2", "squad_v2_partial", {}, ["squad_v2_partial dev EM", "SQuAD F1"]),
    ],
)
def test_a_score_is_not_called_by_anothers_name(
    table: str, task: str, about: dict[str, Any], names: list[str]
) -> None:
    """The task's title says F1, which is the score that it is selected by."""
    scores = {"validation/exact_match": 70.0, "validation/exact": 70.0, "validation/f1": 80.0}
    about |= {"title": "SQuAD F1", "num_examples": 900}
    found = table_of(table, run("large", task, scores, "validation/f1", **about))
    assert [one.heading for one in found.with_results] == names
    # both are over the same questions
    assert [one.num_examples for one in found.with_results] == [900, 900]
    of = {one.judged_on for one in judge(found) if one.claim.column == "dev EM"}
    assert of == ({names[0]} if table == "table2_squad_v1" else set())


def test_a_slip_in_a_metric_is_told_by_what_the_runs_have(tmp_path: Path) -> None:
    columns = (
        "[{name: RTE, task: rte, metric: validation/acuracy}, {name: LM, from: pretrain, metric:"
        " validation/los}]"
    )
    (tmp_path / "paper.yaml").write_text(
        f"title: T\ncolumns: {columns}\nrows: [{{row: a, arm: a}}]\n"
    )
    tuned = run("a", "rte", 70.0)
    trained = tuned.model_copy(update={"stage": "pretrain", "config": {"arm": "a", "seed": 1}})
    trained.facts = {"validation/loss": 2.0}
    table = records_table(load_experiment(tmp_path), [trained, tuned])
    assert table.cells["a", "rte"].notes == (
        "1 run(s) lack validation/acuracy (did you mean 'validation/accuracy'?)",
    )
    assert table.cells["a", "pretrain:LM"].notes == (
        "1 run(s) lack validation/los (did you mean 'validation/loss'?)",
    )


@pytest.mark.parametrize("synthetic", [None, "microworld"])
def test_examples_are_those_of_the_scores_own_file(synthetic: str | None) -> None:
    data = {"extra_validation_files": {"mismatched": "dev_mismatched.tsv"}}
    scores = {"validation/accuracy": 80.0, "validation/mismatched_accuracy": 81.0}
    one = run(
        "large", "mnli", scores, num_examples=9815, synthetic=synthetic, title="MNLI-m", data=data
    )
    table = table_of("table1_glue", one)
    names = (
        [f"{synthetic} MNLI-m", f"{synthetic} MNLI-mm"]
        if synthetic
        else ["MNLI-m (dev)", "MNLI-mm (dev)"]
    )
    assert [(one.heading, one.num_examples) for one in table.with_results] == [
        (names[0], 9815),
        (names[1], None),
    ]


def test_a_real_score_is_no_generated_one() -> None:
    """A given encoder on real files, in the folder of runs on a generated world's files of the same
    name.
    """
    scores = {"validation/accuracy": 60.0}
    world = run("mlm_nsp", "rte", scores, synthetic="microworld")
    real = run("given", "rte", 47.0)
    both = table_of("table1_glue", world, real)
    assert [one.heading for one in both.with_results] == ["microworld RTE"]
    assert not both.cells["given", "rte"].scores and both.cells["mlm_nsp", "rte"].scores
    (excluded,) = both.excluded
    assert excluded == (
        "rte: 1 run(s) of given are on files that no generator wrote, the others on microworld:"
        " another data set, in no cell; give it a runs_dir or scale of its own"
    )
    alone = table_of("table1_glue", real)
    assert [one.heading for one in alone.with_results] == ["RTE (dev)"] and not alone.excluded
    unsaid = run("mlm_nsp", "rte", {}, synthetic="microworld", status="running")
    assert table_of("table1_glue", real, unsaid).cells["given", "rte"].scores


def test_one_run_on_generated_files_leaves_the_real_ones_their_columns(tmp_path: Path) -> None:
    (tmp_path / "paper.yaml").write_text(
        "title: T\nrows: [{row: a, arm: a}, {row: b, arm: a}]\ncolumns:\n"
        "  [{name: RTE, task: rte}, {name: LM, from: pretrain, metric: validation/loss}]\n"
    )
    scores = {"validation/accuracy": 60.0}
    real = [run("a", "rte", scores, seed=seed) for seed in (1, 2)]
    world = run("b", "rte", scores, synthetic="microworld")
    trained = real[0].model_copy(update={"stage": "pretrain", "config": {"arm": "a", "seed": 1}})
    trained.facts = {"validation/loss": 2.0}
    table = records_table(load_experiment(tmp_path), [trained, world, *real])
    assert len(table.cells["a", "rte"].scores) == 2 and not table.cells["b", "rte"].scores
    assert table.excluded[0].startswith("rte: 1 run(s) of b are on files of microworld")
    assert not any(column.is_synthetic for column in table.columns)
    assert table.generator is None and not table.runs_on("b", "rte")


@pytest.mark.parametrize(
    ("row", "task", "generator"), [("try", "rte", None), ("a", "cola", "microworld")]
)
def test_what_no_cell_shows_makes_no_page_of_generated_data(
    tmp_path: Path, row: str, task: str, generator: str | None
) -> None:
    (tmp_path / "paper.yaml").write_text(
        "title: T\nrows: [{row: a, arm: a}]\n"
        "columns: [{name: RTE, task: rte}, {name: CoLA, task: cola}]\n"
    )
    real = [run("a", "rte", 60.0)]
    trial = run(row, task, {}, status="failed", synthetic="microworld", folder=Path("t"))
    table = records_table(load_experiment(tmp_path), [*real, trial])
    assert table.generator == generator


@pytest.mark.parametrize(
    ("sizes", "baseline", "trained_on"),
    [((100, 100), ("bag of words", 65.0), (100, 1000)), ((100, 500), None, None)],
)
def test_sizes_of_training_share_no_baseline(
    sizes: tuple[int, int], baseline: tuple[str, float] | None, trained_on: tuple[int, int] | None
) -> None:
    """A simple method learns from as many examples as the run that it stands beside."""
    runs = []
    for row, size in zip(("mlm_nsp", "given"), sizes, strict=True):
        data = {"train_examples": size, "train_examples_available": 1000}
        one = run(row, "rte", 70.0)
        one.facts["data"] = data
        one.scores["validation/accuracy"].baselines = {"bag of words": 60.0 + size / 20}
        one.scores["validation/accuracy"].majority = 50.0
        runs.append(one)
    (column,) = table_of("table1_glue", *runs).with_results
    assert (column.baseline, column.trained_on, column.majority) == (baseline, trained_on, 50.0)


GLUE_SCORES = {
    "cola": ["matthews"],
    "sst2": ["accuracy"],
    "mrpc": ["f1", "accuracy"],
    "stsb": ["spearman", "pearson"],
    "qqp": ["f1", "accuracy"],
    "mnli": ["accuracy", "mismatched_accuracy"],
    "qnli": ["accuracy"],
    "rte": ["accuracy"],
}


def glue_runs(cells: str) -> list[Record]:
    """One run a task of GLUE_SCORES, with the cells of a published line: `89.3/85.4` are two
    scores.
    """
    runs = []
    for (task, names), cell in zip(GLUE_SCORES.items(), cells.split(), strict=True):
        values = map(float, cell.split("/"))
        scores = {f"validation/{name}": value for name, value in zip(names, values, strict=True)}
        runs.append(run("large", task, scores))
    return runs


def means_of_columns(runs: list[Record]) -> dict[str, float]:
    table = table_of("table1_glue", *runs)
    found = {
        one.column.name: table.cells["large", one.key].estimate
        for one in table.with_results
        if one.column
    }
    return {name: one.mean for name, one in found.items() if one is not None}


# Published test scores of three compact models; the official score has 62.3 on WNLI, too.
@pytest.mark.parametrize(
    ("cells", "official"),
    [
        ("0.0 85.9 81.1/71.8 73.3/75.4 66.4/86.2 74.8/74.3 84.1 57.9", 65.8),
        ("27.8 89.7 83.4/76.2 77.0/78.8 68.1/87.0 77.6/77.0 86.4 61.8", 71.2),
        ("38.0 89.6 86.6/81.6 78.4/80.4 69.6/87.9 80.0/79.1 87.7 62.2", 73.5),
    ],
)
def test_the_benchmarks_own_score(cells: str, official: float) -> None:
    found = means_of_columns(glue_runs(cells))["GLUE score without WNLI"]
    assert (8 * found + 62.3) / 9 == pytest.approx(official, abs=0.051)


def test_the_papers_average_and_a_mean_that_lacks_a_part() -> None:
    """BERT-Large's test scores as if they were ours."""
    runs = glue_runs("60.5 94.9 89.3/85.4 86.5/87.6 72.1/89.3 86.7/85.9 92.7 70.1")
    found = means_of_columns(runs)
    assert (
        round(found["Average"], 1) == 82.1 and round(found["GLUE score without WNLI"], 2) == 82.45
    )
    lacking = [one for one in runs if one.task != "stsb"]
    lacking.append(run("large", "stsb", {"validation/spearman": 86.5}))
    without = means_of_columns(lacking)
    assert "Average" in without and "GLUE score without WNLI" not in without, (
        "a mean over fewer is another number"
    )


def test_another_split_stands_apart_and_judges_direction_only() -> None:
    scores = {"validation/accuracy": 80.0, "validation/mismatched_accuracy": 81.0}
    runs = [run(row, "mnli", scores) for row in ("large", "mlm_nsp")]
    runs += [run(row, "rte", 70.0) for row in ("large", "mlm_nsp")]
    table = table_of("table1_glue", *runs)
    ours = {one.heading: one for one in table.with_results}
    assert list(ours) == ["MNLI-m (dev)", "MNLI-mm (dev)", "RTE (dev)"]
    cell = table.cells["large", ours["MNLI-mm (dev)"].key]
    assert cell.estimate is not None and cell.estimate.mean == 81.0
    assert all(table.paper_value("large", one) is None for one in ours.values())
    assert all(role_of(one) == "dev; the paper's numbers are on test" for one in ours.values())
    paper = [table.paper_value("large", one) for one in table.columns if one.is_paper]
    assert paper == [86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1, 82.1, None]
    everywhere, rte, cola, average = judge(table)
    note = "dev; the paper's numbers are on test: direction only"
    # as any other data set with a seed
    assert (everywhere.verdict, rte.verdict) == (Verdict.ONE_SEED, Verdict.ONE_SEED)
    assert judgement_note(rte).startswith(note) and judgement_note(everywhere).count(note) == 1
    alone = judge(table_of("table1_glue", run("large", "rte", 70.0)))
    assert alone[0].verdict == Verdict.NOT_COMPARABLE and note not in judgement_note(
        alone[0]
    )  # nothing is judged
    assert {cola.verdict, average.verdict} == {Verdict.NOT_COMPARABLE}


def test_the_size_of_another_split_is_not_compared() -> None:
    """Six seeds of a sure difference: the claim holds, and the paper's 3.7 points on test stand
    nowhere beside it.
    """
    runs = [
        run(row, "rte", score + wobble * (seed % 3), pretrain_seed=seed)
        for (row, score, wobble), seed in product(
            (("large", 73.0, 0.1), ("mlm_nsp", 70.0, 0.2)), range(1, 7)
        )
    ]
    table = table_of("table1_glue", *runs)
    found = next(one for one in judge(table) if one.claim.id == "large_helps_small_data")
    assert (found.verdict, found.judged_on, found.claim.paper_delta) == (
        Verdict.HOLDS,
        "RTE (dev)",
        3.7,
    )
    assert (
        found.paper_size is None
        and judgement_note(found) == "dev; the paper's numbers are on test: direction only"
    )


def test_a_cell_of_one_split_against_a_cell_of_another_is_refused(tmp_path: Path) -> None:
    """Whatever the columns are called: what the scores say of themselves decides."""
    (tmp_path / "paper.yaml").write_text(
        "title: T\nsource: S\nsplit: dev\ncolumns:\n  - {name: dev, metric: validation/accuracy,"
        " task: rte, stand_ins: [], benchmarks: []}\n  - {name: test, metric: test/accuracy, task:"
        " rte, stand_ins: [], benchmarks: []}\nrows:\n  - {row: a, label: A, arm: null, cells: [0,"
        " 1]}\n  - {row: b, label: B, arm: null, cells: [1, 1]}\nclaims:\n  - {id: c, text: t,"
        " paper_delta: -1, direction: lower, compare: [a, b, dev], against: [a, b, test]}\n"
    )
    scores = {"validation/accuracy": 70.0, "test/accuracy": 60.0}
    runs = [run(row, "rte", scores) for row in ("a", "b")]
    (found,) = judge(records_table(load_experiment(tmp_path), runs))
    assert found.verdict == Verdict.NOT_COMPARABLE
    assert incomparability_of(found).text == (
        "another split: cells of validation against cells of test"
    )


def test_stand_in_speaks_for_one_column_only() -> None:
    found = run("given", "snli_95k", 80.0, stand_in_for="mnli")
    table = table_of("table1_glue", found)
    assert [one.column.name for one in table.with_results if one.column] == ["MNLI-m"]


def test_best_learning_rate_is_chosen_by_its_mean() -> None:
    def at(rate: float, seed: int, accuracy: float, f1: float) -> Record:
        scores = {"validation/accuracy": accuracy, "validation/f1": f1}
        return run("given", "mrpc", scores, learning_rate=rate, seed=seed)

    runs = [
        at(5e-5, 1, 90.0, 92.0),
        at(5e-5, 2, 70.0, 95.0),
        at(3e-5, 1, 84.0, 88.0),
        at(3e-5, 2, 86.0, 89.0),
    ]
    table = table_of("table1_glue", *runs, at(2e-5, 1, 99.0, 99.0))
    cell = table.cells["given", "mrpc"]
    assert dict(cell.scores) == {(1, 1): 88.0, (1, 2): 89.0}
    assert (
        cell_note(cell)
        == "learning rate 3e-05, best of 2 on dev (1 more with fewer seeds left out)"
    )


def test_learning_rates_are_compared_on_the_seeds_they_share() -> None:
    """Seed 9 is a lucky one and seed 1 an unlucky one, at any rate."""

    def cell_of(*scores: tuple[float, int, float]) -> Cell:
        runs = [
            run("given", "rte", score, learning_rate=rate, seed=seed)
            for rate, seed, score in scores
        ]
        return table_of("table1_glue", *runs).cells["given", "rte"]

    cell = cell_of((5e-5, 1, 50.0), (5e-5, 2, 72.0), (3e-5, 2, 70.0), (3e-5, 9, 90.0))
    assert dict(cell.scores) == {(1, 1): 50.0, (1, 2): 72.0}
    assert cell_note(cell) == "learning rate 5e-05, best of 2 on dev over 1 of 2 seeds"
    cell = cell_of((5e-5, 1, 50.0), (3e-5, 9, 90.0))
    assert (
        dict(cell.scores) == {(1, 1): 50.0}
        and cell_note(cell) == "learning rate 5e-05, of 2 without a seed in common"
    )


@pytest.mark.parametrize("name", ["table2_squad_v1", "table3_squad_v2"])
def test_no_runs(name: str) -> None:
    table = table_of(name)
    assert all(one.is_paper for one in table.columns) and not table.with_results
    assert {one.verdict for one in judge(table)} == {Verdict.NOT_COMPARABLE}


def test_what_a_student_keeps_of_its_teacher(tmp_path: Path) -> None:
    """Of the score, and of the part above the floor; a loss is no share of anything."""
    (tmp_path / "paper.yaml").write_text(
        "title: x\nretained_of: teacher\ncolumns: [mrpc]\narms: {teacher: {}, student: {}}\nrows:\n"
        "  - {row: teacher, label: Teacher, arm: teacher, floor: random}\n"
        "  - {row: student, label: Student, arm: student, floor: random}\n"
        "  - {row: random, label: none, arm: null}\n"
    )
    runs = [
        run(row, "mrpc", score)
        for row, score in (("teacher", 80.0), ("student", 77.5), ("random", 60.0))
    ]
    table = records_table(load_experiment(tmp_path), runs)
    (column,) = table.columns
    notes = {row: table.retained(row, column) for row in ("teacher", "student", "random")}
    assert notes == {
        "teacher": "",
        "student": "97 % of Teacher, 88 % above the floor",
        "random": "",
    }
    without_floor = records_table(load_experiment(tmp_path), runs[:2])
    assert without_floor.retained("student", without_floor.columns[0]) == "97 % of Teacher"
    alone = records_table(load_experiment(tmp_path), runs[1:])
    assert alone.retained("student", alone.columns[0]) == ""
    paper = tmp_path / "paper.yaml"
    paper.write_text(paper.read_text().replace("retained_of: teacher", "retained_of: techer"))
    with pytest.raises(ValueError, match=r"retained_of.*techer.*teacher"):
        load_experiment(tmp_path)


def test_a_teacher_is_asked_for_the_same_tokens() -> None:
    """So a student's held-out loss stands beside that of one without a teacher; another masking
    rate, or replaced tokens, ask for others.
    """

    def predicts(objective: str, *words: str) -> str:
        config = sweep.compose("pretrain", [f"objective={objective}", *words])
        return Record.model_construct(config=config.recorded).predicts

    # A setting that chooses tokens and is not listed would make two maskings one.
    token = sweep.compose("pretrain", ["objective=mlm"]).recorded["objective"]["token"]
    assert {*token} == {*MASKING, "_target_", "weight"}
    masked = predicts("mlm")
    assert predicts("distillation", "objective.token.teacher=somewhere") == masked
    assert predicts("distillation", "objective.token.soft_weight=0") == masked
    assert predicts("mlm_emd") == masked
    others = [
        predicts("mlm", "objective.token.predict_prob=0.3"),
        predicts("distillation", "objective.token.predict_prob=0.3"),
        predicts("mlm", "objective.token.whole_words=true"),
        predicts("rtd"),
        predicts("ltr"),
    ]
    assert masked not in others and len(set(others)) == 4


def test_names_of_rows_and_columns() -> None:
    scores = {"validation/accuracy": 70.0, "validation/f1": 80.0}
    runs = [run("mlm", task, scores) for task in ("mrpc", "snli_95k")]
    table = table_of("table5_pretraining_tasks", *runs)
    assert table.find_row("No NSP") == table.find_row("mlm") == "mlm"
    for name in ("MNLI-m", "snli_95k", "SNLI_95K"):
        assert table.find_column(name).task == "snli_95k"
    with refuses("no column 'QNLI' with a run; did you mean 'MNLI-m'?"):
        table.find_column("QNLI")
    with refuses("no column 'mrcp' with a run; did you mean 'mrpc'?"):
        table.find_column("mrcp")
    with refuses("no row 'mlm-nsp'; did you mean 'mlm_nsp'?"):
        table.find_row("mlm-nsp")
