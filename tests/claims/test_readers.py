"""Scores as people have them: tables of several layouts, exports, folders of result files."""

from __future__ import annotations

import json
from pathlib import Path
from unicodedata import normalize

import pytest
from tests.screens import refuses

from claims.analysis.schema import Scale
from claims.report.score_page import judge_files
from claims.tables.claim_file import read_claims
from claims.tables.layout import ScoreLayout
from claims.tables.score_file import make_score_table, read_scores

Cells = dict[tuple[str, str], dict[tuple[int, int], float]]


def cells_of(path: Path, **layout: object) -> Cells:
    return read_scores(path, ScoreLayout.model_validate(layout)).cells


# -- tables ----------------------------------------------------------------------------------------

WIDE = """system,seed,mnli,sst2
bert,1,84.1,92.1
bert,2,84.4,
ours,1,85.0,92.2
ours,2,85.2,92.1
"""
WIDE_CELLS = {
    ("bert", "mnli"): {(1, 0): 84.1, (2, 0): 84.4},
    ("bert", "sst2"): {(1, 0): 92.1},
    ("ours", "mnli"): {(1, 0): 85.0, (2, 0): 85.2},
    ("ours", "sst2"): {(1, 0): 92.2, (2, 0): 92.1},
}


def test_a_line_a_run_is_read(tmp_path: Path) -> None:
    """An empty cell is a score that is missing, and the page says of which cell."""
    path = tmp_path / "scores.csv"
    path.write_text(WIDE)
    assert cells_of(path, arm="system") == WIDE_CELLS
    table = make_score_table(read_scores(path, ScoreLayout(arm="system")), ())
    assert table.cells["bert", "sst2"].missing == ((2, 0),)
    assert not table.cells["bert", "mnli"].missing
    with refuses("no column 'rte'"):
        cells_of(path, arm="system", tasks=["mnli", "rte"])
    assert read_scores(path).cells == WIDE_CELLS, "a system is an arm"
    path.write_text(WIDE.replace("system", "who"))
    with refuses("no column 'arm'; it has who, seed, mnli, sst2"):
        read_scores(path)


def test_the_index_of_pandas_is_no_task(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    (tmp_path / "scores.csv").write_text(WIDE)
    frame = pandas.read_csv(tmp_path / "scores.csv")
    frame.to_csv(tmp_path / "indexed.csv")
    assert (tmp_path / "indexed.csv").read_text().startswith(",system")
    assert cells_of(tmp_path / "indexed.csv") == WIDE_CELLS


def test_a_parquet_file_says_the_same(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    (tmp_path / "scores.csv").write_text(WIDE)
    frame = pandas.read_csv(tmp_path / "scores.csv")
    frame.to_parquet(tmp_path / "scores.parquet")
    assert cells_of(tmp_path / "scores.parquet", arm="system") == WIDE_CELLS


WANDB = """"Name","State","Notes","User","Tags","Created","Runtime","Sweep","model","seed","eval/f1"
"rose-1","finished","-","ann","","2026-11-01T10:00:00.000Z","812","","bert","1","88.1"
"iris-2","finished","-","ann","","2026-11-01T11:00:00.000Z","815","","ours","1","89.0"
"lily-3","crashed","-","ann","","2026-11-01T12:00:00.000Z","99","","ours","2","12.0"
"""


@pytest.mark.parametrize("state", ["State", "state"])
def test_an_export_of_wandb_is_read_without_its_failed_runs(tmp_path: Path, state: str) -> None:
    path = tmp_path / "export.csv"
    path.write_text(WANDB.replace("State", state))
    layout = ScoreLayout(arm="model", tasks=["eval/f1"])
    found = read_scores(path, layout)
    expected = {("bert", "eval/f1"): {(1, 0): 88.1}, ("ours", "eval/f1"): {(1, 0): 89.0}}
    assert found.cells == expected
    assert found.notes == ["1 unfinished run"]
    with refuses("line 2: Name is 'rose-1', which is no score; name the columns of scores"):
        read_scores(path)
    path.write_text(WANDB.replace("finished", "failed"))
    with refuses("no score of a finished run"):
        read_scores(path, layout)


@pytest.mark.parametrize("state", ["crashed ", "ERROR", "fail", "timeout", "Cancelled", "PRUNED"])
def test_a_run_that_any_tool_calls_unfinished_is_left_out(tmp_path: Path, state: str) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(f"arm,seed,status,qa\na,1,finished,80\na,2,{state},12\n")
    found = read_scores(path)
    assert (found.cells, found.notes) == ({("a", "qa"): {(1, 0): 80.0}}, ["1 unfinished run"])


@pytest.mark.parametrize("sign", [";", "\t"])
def test_a_table_of_semicolons_or_tabs_is_read(tmp_path: Path, sign: str) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(WIDE.replace(",", sign))
    assert read_scores(path).cells == WIDE_CELLS
    path.write_text(WIDE.replace(",", ";").replace("84.1", "84,1"))
    with refuses("line 2: score is '84,1'; it is a number with a decimal point"):
        read_scores(path, ScoreLayout(tasks=("mnli",)))


# -- folders ---------------------------------------------------------------------------------------


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def test_results_of_the_harness_are_read(tmp_path: Path) -> None:
    """A perplexity stays what it is, and less of it is better; two filters are two columns."""
    results = {
        "arc_easy": {"alias": "arc_easy", "acc,none": 0.4, "acc_stderr,none": "N/A"},
        "wikitext": {"alias": "wikitext", "word_perplexity,none": 21.5},
        "gsm8k": {"exact_match,strict-match": 0.02, "exact_match,flexible-extract": 0.03},
    }
    file = tmp_path / "runs__mlm-seed-1/results_2026-11-01T10-00-00.000000.json"
    write(file, {"results": results, "config": {"model": "hf"}, "model_name": "runs/mlm-seed-1"})
    cells = cells_of(tmp_path)
    assert cells["mlm", "arc_easy"] == {(1, 0): 40.0}
    assert cells["mlm", "wikitext"] == {(1, 0): 21.5}
    assert cells["mlm", "gsm8k exact_match flexible-extract"] == {(1, 0): 3.0}
    table = make_score_table(read_scores(tmp_path), ())
    scales = {column.heading: column.scale for column in table.columns}
    assert scales["wikitext"] == Scale("word_perplexity", higher_is_better=False)


def test_results_of_mteb_are_those_of_the_test_split(tmp_path: Path) -> None:
    """The mean over its subsets."""
    folder = tmp_path / "me__mlm-seed-3" / "no_revision_available"
    write(folder / "model_meta.json", {"name": "me/mlm-seed-3"})
    subsets = [{"hf_subset": "en", "main_score": 0.7}, {"hf_subset": "de", "main_score": 0.6}]
    scores = {"validation": [{"main_score": 0.1}], "test": subsets}
    write(folder / "STS17.json", {"task_name": "STS17", "mteb_version": "2", "scores": scores})
    assert cells_of(tmp_path) == {("me__mlm", "STS17"): pytest.approx({(3, 0): 65.0})}


def test_of_a_tree_of_the_trainer_no_checkpoint_is_read(tmp_path: Path) -> None:
    """Without `all_results.json` it is the last evaluation."""
    history = [
        {"epoch": 1.0, "eval_accuracy": 0.5, "eval_loss": 2.0, "step": 10},
        {"epoch": 2.0, "eval_accuracy": 0.7, "eval_loss": 1.9, "step": 20},
        {"epoch": 2.0, "train_runtime": 9.0, "train_loss": 0.2, "step": 20},
    ]
    folder = tmp_path / "ours/mrpc/seed-1"
    write(folder / "trainer_state.json", {"log_history": history})
    write(folder / "checkpoint-10/trainer_state.json", {"log_history": history[:1]})
    write(folder / "config.json", {"hidden_size": 128})
    assert cells_of(tmp_path) == {
        ("ours", "mrpc accuracy"): {(1, 0): 70.0},
        ("ours", "mrpc loss"): {(1, 0): 1.9},
    }


def test_other_names_of_runs_are_a_regular_expression(tmp_path: Path) -> None:
    write(tmp_path / "s7_bert/all_results.json", {"eval_accuracy": 0.9})
    with refuses("'s7_bert' does not say which arm and seed it is"):
        read_scores(tmp_path)
    cells = cells_of(tmp_path, run=r"s(?P<seed>\d+)_(?P<arm>\w+)")
    assert cells == {("bert", "accuracy"): {(7, 0): 90.0}}
    (tmp_path / "empty").mkdir()
    with refuses("no result file"):
        read_scores(tmp_path / "empty")
    (tmp_path / "claims.yaml").write_text("scores: {run: '('}\ncompare: all\n")
    with refuses("scores.run is '('; it is a regular expression"):
        judge_files(tmp_path, tmp_path / "claims.yaml", None)


def test_a_seed_beside_a_pre_training_seed_is_that_of_the_fine_tuning(tmp_path: Path) -> None:
    """As results.csv of a report has them: ten fine-tunings of two encoders are two seeds."""
    path = tmp_path / "scores.csv"
    path.write_text("arm,pretrain_seed,seed,task,score\na,1,7,t,80\na,1,8,t,82\na,2,9,t,81\n")
    assert read_scores(path).cells["a", "t"] == {(1, 7): 80.0, (1, 8): 82.0, (2, 9): 81.0}


def test_what_may_mean_two_things_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("system,model,seed,task,score\na,bert,1,t,80\n")
    with refuses("system and model may both name the arms"):
        read_scores(path)
    path.write_text("arm,seed,task,example,score\na,1,t,q1,1\na,1,t,q2,0\na,1,t,,50\n")
    with refuses("scores of single examples and one of the whole run"):
        read_scores(path)


def test_files_that_are_called_like_results_are_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path / "bert/mrpc/seed-1/all_results.json", {"eval_f1": 0.8})
    strange = {
        "results.json": {"foo": 1},
        "results_list.json": [1, 2],
        "notes/all_results.json": ["a note"],
        "ours/mrpc/seed-1/trainer_state.json": {"step": 3},
        "mteb/notes.json": {"remark": "none"},
        "mteb/empty.json": {"task_name": "STS17", "scores": {}},
        "mteb/without.json": {"task_name": "STS17", "scores": {"test": []}},
    }
    write(tmp_path / "mteb/model_meta.json", {"name": "me/mlm-seed-3"})
    for name, content in strange.items():
        write(tmp_path / name, content)
    found = read_scores(tmp_path)
    assert found.cells == {("bert", "mrpc"): {(1, 0): 80.0}}
    named = [note.partition(", which is not laid out as a result file")[0] for note in found.notes]
    assert sorted(named) == sorted(strange)


@pytest.mark.parametrize(("encoding", "name"), [("latin-1", "s.csv"), ("utf-16", "s.csv")])
def test_a_table_in_another_encoding_is_named(tmp_path: Path, encoding: str, name: str) -> None:
    path = tmp_path / name
    path.write_bytes("arm,seed,task,score\nCafé,1,t,80\n".encode(encoding))
    with refuses(f"{path} is not UTF-8"):
        read_scores(path)
    path.write_bytes("arm,seed,task,score\nCafé,1,t,80\n".encode("utf-8-sig"))
    assert read_scores(path).cells == {("Café", "t"): {(1, 0): 80.0}}


def test_a_name_is_the_same_in_both_forms_of_unicode(tmp_path: Path) -> None:
    """macOS writes é with two code points into names of files, a keyboard with one."""
    scores = tmp_path / "scores.csv"
    long_form = "arm,seed,task,score\ncafé,1,thé,80.0\nb,1,thé,70.0\n"
    scores.write_text(long_form + normalize("NFD", "café,2,thé,81.0\n"))
    assert read_scores(scores).cells["café", "thé"] == {(1, 0): 80.0, (2, 0): 81.0}
    claims = tmp_path / "claims.yaml"
    claim = "{text: t, compare: [café, b, thé], direction: higher}"
    claims.write_text(normalize("NFD", f"claims: [{claim}]"))
    assert judge_files(scores, claims, None).judged.claims[0].figures.ours == "+10.0"
    folder = tmp_path / "trained"
    write(folder / normalize("NFD", "café-seed-1") / "all_results.json", {"eval_f1": 0.5})
    assert cells_of(folder) == {("café", "f1"): {(1, 0): 50.0}}


def test_claims_in_another_encoding_are_named(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_bytes("title: Café\ncompare: all\n".encode("latin-1"))
    with refuses(f"{path} is not UTF-8"):
        read_claims(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("columns: 3\ncompare: all\n", "columns is 3; it is a list of columns"),
        ("columns: {a: b}\ncompare: all\n", "columns is {'a': 'b'}; it is a list of columns"),
        (
            "claims: [{text: t, compare: [0.3, a, q], direction: higher}]",
            "is 0.3; it is a text: put",
        ),
        (
            "claims: [{text: t, compare: [a, no, q], direction: higher}]",
            "is False; it is a text: put",
        ),
        ("title: 5\ncompare: all\n", "title is 5; it is a text: put it in quotes"),
        ("title: [a]\ncompare: all\n", "title is ['a']; it is what stands over the page"),
    ],
)
def test_slips_in_claims_are_one_sentence(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(text)
    with refuses(reason):
        read_claims(path)
