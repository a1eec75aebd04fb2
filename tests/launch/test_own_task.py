"""`task=FILE`: a labelled table of one's own is the run of a YAML that says the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clozelab.checks.gathering import gather_sweep
from clozelab.launch import sweep
from clozelab.launch.own_task import task_settings, warn_of_doubts
from clozelab.planning.steps import Step
from clozelab.planning.sweeps import doubts_of_own_tasks

YAML = """
defaults: [format/labelled@_here_, _self_]
name: reviews
title: My reviews
epochs: 25  # of two rows
module: {metrics: [accuracy, macro_f1]}
data: {train_file: reviews.csv, text_columns: [review], label_column: verdict}
"""

ROW = ["1", "1,2", "1,2,3"]


def write(folder: Path, header: str, *rows: str, name: str = "reviews.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_is_the_run_of_a_yaml(tmp_path: Path) -> None:
    write(tmp_path, "id,review,verdict", "1,fine,good", "2,dull,bad")
    (tmp_path / "my" / "task").mkdir(parents=True)
    (tmp_path / "my" / "task" / "intent.yaml").write_text(YAML)
    words = ["task=reviews.csv", "text_column=review", "label_column=verdict"]
    short = sweep.compose("finetune", words)
    long = sweep.compose("finetune", ["task=intent", "scale=own"], folder=tmp_path / "my")
    assert short.recorded == long.recorded
    assert short.recorded != sweep.compose("finetune", [*words, "task.metric=f1"]).recorded
    probe = sweep.compose(
        "evaluate", ["measure=probe", "task@measure.task=reviews.csv", *words[1:]]
    )
    assert probe.values["measure"]["task"]["data"] == long.values["task"]["data"]


@pytest.mark.parametrize(
    ("header", "texts", "label"),
    [
        ("text,verdict", ["text"], "verdict"),
        ("id,label,review", ["review"], "label"),
        ("Score,premise,hypothesis", ["premise", "hypothesis"], "Score"),
        ("date,text,label", ["text"], "label"),
    ],
)
def test_columns_that_leave_no_doubt(
    tmp_path: Path, header: str, texts: list[str], label: str
) -> None:
    file = write(tmp_path, header, *[ROW[header.count(",")]] * 2000)
    settings = task_settings(str(file), tmp_path)
    assert settings["epochs"] == 3, "a large file needs no more"
    data = settings["data"]
    assert (data["text_columns"], data["label_column"]) == (texts, label)


def test_a_column_is_named_as_its_file_names_it(tmp_path: Path) -> None:
    write(tmp_path, r"text,a\b", "1,2")
    composed = sweep.compose("finetune", ["task=reviews.csv", r"label_column=a\b"])
    assert composed.values["task"]["data"]["label_column"] == r"a\b"


@pytest.mark.parametrize("rows", [160, 300, 1150])
def test_the_epochs_make_100_steps_of_the_rows_that_are_not_held_out(
    tmp_path: Path, rows: int
) -> None:
    file = write(tmp_path, "text,label", *["1,2"] * rows)
    training_rows = rows - rows // 10
    assert task_settings(str(file), tmp_path)["epochs"] * training_rows / 32 >= 100


@pytest.mark.parametrize("limit", ["max_train_examples", "scale.finetune.max_train_examples"])
def test_so_they_do_where_few_rows_of_a_large_file_are_trained_on(
    limit: str, tmp_path: Path
) -> None:
    write(tmp_path, "text,label", *["1,2"] * 2000)
    (tmp_path / "given").mkdir()
    given = ["task=reviews.csv", f"encoder={tmp_path}/given"]
    few = sweep.compose("finetune", [*given, f"{limit}=500"])
    assert few.values["epochs"] * 500 / 32 >= 100
    assert sweep.compose("finetune", given).values["epochs"] == 3


@pytest.mark.parametrize(
    ("labels", "metric"),
    [
        (["0", "1", "2"], "validation/accuracy"),
        (["0.5", "1", "2"], "validation/spearman"),
        ([str(number) for number in range(30)], "validation/spearman"),
        (["0.5", "1", "many"], "validation/accuracy"),
    ],
)
def test_the_score_goes_by_what_the_labels_are(
    tmp_path: Path, labels: list[str], metric: str
) -> None:
    rows = [json.dumps({"text": f"text {label}", "label": label}) for label in labels]
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", *rows, name="rows.jsonl")
    task = sweep.compose("finetune", ["task=rows.jsonl"]).values["task"]
    assert task["metric"] == metric
    assert task["data"]["numeric_labels"] is ("spearman" in metric)
    words = ["task=rows.jsonl", "task.data.numeric_labels=true"]
    assert sweep.compose("finetune", words).values["task"]["metric"] == "validation/spearman"


IDS = [str(number) for number in range(77)]


@pytest.mark.parametrize(
    ("labels", "are_numbers"),
    [
        (IDS * 2, False),
        (IDS[1:] * 2, False),
        (IDS[2:] * 2, True),
        ([*IDS, "78"] * 2, True),
        ([*IDS * 2, "77"], True),
        ([*IDS, "2.5"] * 2, True),
    ],
)
def test_many_whole_numbers_without_a_gap_are_classes(
    tmp_path: Path, labels: list[str], *, are_numbers: bool
) -> None:
    """77 intents by their number: a rating of so many points would leave some out."""
    file = write(tmp_path, "text,label", *[f"a text,{label}" for label in labels])
    assert task_settings(str(file), tmp_path)["data"]["numeric_labels"] is are_numbers


CLASSES = (
    "reviews.csv: the 77 different whole numbers of label are classes, since they run from 0 or 1"
    " without a gap, each in several rows; {}.data.numeric_labels=true predicts numbers"
)
NUMBERS = (
    "reviews.csv: the 76 different whole numbers of label are to be predicted, since they do not"
    " run from 0 or 1 without a gap, each in several rows; {}.data.numeric_labels=false makes"
    " classes"
)


@pytest.mark.parametrize(
    ("labels", "words", "expected"),
    [
        (IDS, [], CLASSES),
        ([*IDS[:30], *IDS[31:]], [], NUMBERS),
        (IDS, ["numeric_labels=false"], None),
        (IDS, ["numeric_labels=true"], None),
        (IDS[:20], [], None),
        (["0.5", "1"], [], None),
    ],
)
@pytest.mark.parametrize("stage", ["finetune", "evaluate"])
def test_what_may_be_meant_otherwise_is_warned_of(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    stage: str,
    labels: list[str],
    words: list[str],
    expected: str | None,
) -> None:
    write(tmp_path, "text,label", *[f"a text,{label}" for label in labels * 2])
    choice, place = "task", "task"
    if stage == "evaluate":
        choice, place = "task@measure.task", "measure.task"
    overrides = [f"{place}.data.{word}" for word in words]
    if stage == "evaluate":
        overrides.append("measure=probe")
    composed = sweep.compose(stage, [f"{choice}=reviews.csv", *overrides])
    caplog.clear()
    warn_of_doubts([composed, composed])
    messages = [] if expected is None else [expected.format(place)]
    assert caplog.messages == messages


GROUPED = [f"a text {n},{n % 2},{n // 3}" for n in range(12)]


@pytest.mark.parametrize(
    ("header", "words", "named"),
    [
        ("text,label,patient", [], "patient"),
        ("text,label,Doc_ID", [], "Doc_ID"),
        ("text,label,price", [], None),
        ("text,label,patient", ["task.data.group_column=patient"], None),
        ("text,label,patient", ["task.data.validation_file=dev.csv"], None),
        ("text,patient,label", ["label_column=patient"], None),
    ],
)
def test_rows_that_may_belong_together_are_warned_of(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    header: str,
    words: list[str],
    named: str | None,
) -> None:
    """Those of a patient in both parts flatter a score, and nobody sees it."""
    write(tmp_path, header, *GROUPED)
    composed = sweep.compose("finetune", ["task=reviews.csv", *words])
    caplog.clear()
    warn_of_doubts([composed])
    if named is None:
        assert not caplog.messages
    else:
        (message,) = caplog.messages
        assert message.startswith(f"reviews.csv: 12 rows have 4 values of {named}, ")
        assert message.endswith(f"task.data.group_column={named} keeps them together")


def test_a_column_with_a_value_for_each_row_joins_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "text,label,patient", *[f"a text {n},{n % 2},{n}" for n in range(12)])
    warn_of_doubts([sweep.compose("finetune", ["task=reviews.csv"])])
    assert not caplog.messages


def test_a_sweep_says_once_what_may_be_meant_otherwise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "text,label,other", *[f"a text,{label},{label}" for label in IDS * 2])
    words = ["task=reviews.csv", "encoder=nowhere", "row=x", "seed=1,2"]
    opened = sweep.Sweep("finetune", [*words, "text_column=text", "label_column=label,other"])
    messages = doubts_of_own_tasks(opened)
    assert [message.partition(" are ")[0] for message in messages] == [
        f"reviews.csv: the {len(IDS)} different whole numbers of label",
        f"reviews.csv: the {len(IDS)} different whole numbers of other",
    ]
    caplog.clear()
    warn_of_doubts(map(opened.composer.compose, opened.jobs))
    assert caplog.messages == messages
    one_column = (*words[:-1], "text_column=text", "label_column=label")
    step = Step("finetune", "finetune", None, one_column)
    assert messages[0] in {finding.what for finding in gather_sweep(step).noticed}
    assert not gather_sweep(step, tmp_path).noticed, "the sweep that asks has said it"


@pytest.mark.parametrize(
    ("names", "words", "numeric_labels"),
    [
        (["LABEL_0"], [], True),
        (["0", "1", "2"], [], False),
        (["0", "1", "2"], ["measure.task.data.numeric_labels=true"], True),
        ([], [], True),
    ],
)
def test_a_model_says_whether_it_is_scored_on_classes_or_numbers(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    names: list[str],
    words: list[str],
    *,
    numeric_labels: bool,
) -> None:
    """A test file may lack some classes of the training file."""
    with_a_gap = [*IDS[:30], *IDS[31:]]
    write(tmp_path, "text,label", *[f"a text,{label}" for label in with_a_gap])
    (tmp_path / "run" / "model").mkdir(parents=True)
    config = json.dumps({"id2label": dict(enumerate(names))})
    (tmp_path / "run" / "model" / "config.json").write_text(config)
    words = ["measure=labelled", "task@measure.task=reviews.csv", "encoder=run", *words]
    composed = sweep.compose("evaluate", words)
    assert composed.get("measure.task.data.numeric_labels") == numeric_labels
    caplog.clear()
    warn_of_doubts([composed])
    assert bool(caplog.messages) == (not names)


def test_names_are_of_the_file_and_never_a_benchmarks(tmp_path: Path) -> None:
    file = write(tmp_path, "text,label", "a,b", name="my mails (2).csv")
    assert task_settings(str(file), "data")["name"] == "my_mails_2_"
    settings = task_settings(str(write(tmp_path, "text,label", "a,b", name="mrpc.csv")), "data")
    assert (settings["name"], settings["title"]) == ("mrpc_own", "mrpc.csv")


def test_a_sweep_runs_through_other_keys(tmp_path: Path) -> None:
    write(tmp_path, "text,label", "fine,good", "dull,bad")
    opened = sweep.Sweep("finetune", ["task=reviews.csv", "learning_rate=1e-4,1e-3"])
    jobs = opened.jobs
    assert [job[-1].partition("=")[0] for job in jobs] == ["row", "row"] and jobs[0] != jobs[1]
    assert opened.settings(jobs[1])["task"]["data"]["label_column"] == "label"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task=no.csv"], "task=no.csv: there is no such file"),
        (["task=reviews.csv,mrpc"], "a file is the only task of a command"),
        (["task=reviews.csv", "text_column=txt", "label_column=label"], "no column 'txt'"),
        (
            ["task=reviews.csv", "text_column=text", "label_column=label,score"],
            "label,score: some hold classes and some numbers",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, words: list[str], message: str) -> None:
    write(tmp_path, "text,label,score", "fine,good,0.5", "dull,bad,2")
    with pytest.raises(ValueError, match=message):
        sweep.compose("finetune", words, sweep=True)


@pytest.mark.parametrize(
    "header", ["review,verdict", "text,date,author", "label,class,text", "label,review,title"]
)
def test_columns_that_leave_doubt_are_asked_for(tmp_path: Path, header: str) -> None:
    write(tmp_path, header, ROW[header.count(",")])
    columns = header.replace(",", ", ")
    with pytest.raises(ValueError, match=rf"columns {columns}, .*text_column=.*label_column="):
        sweep.compose("finetune", ["task=reviews.csv"])


def test_several_label_columns_are_a_sweep_of_a_task_each(tmp_path: Path) -> None:
    """One row, whatever the column: the report has a column for each."""
    write(tmp_path, "text,topic,urgency", "a,news,1", "b,sport,2")
    words = ["encoder=minilm", "task=reviews.csv", "label_column=topic,urgency", "seed=1,2"]
    opened = sweep.Sweep("finetune", [*words, "text_column=text"])
    tasks = {}
    for job in opened.jobs:
        composed = opened.composer.compose(job)
        assert composed.values["row"] == "minilm"
        tasks[composed.values["run_dir"]] = composed.values["task"]
    assert len(tasks) == 4, "a folder for each column and seed"
    found = {(task["name"], task["title"], task["data"]["label_column"]) for task in tasks.values()}
    assert found == {
        ("reviews_topic", "reviews.csv, topic", "topic"),
        ("reviews_urgency", "reviews.csv, urgency", "urgency"),
    }
