"""Inputs of an experiment by name: what is refused, what is written, and what is remembered."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.composing import composed

from clozelab.assembly.finetuning import sampling_seed
from clozelab.cli import main
from clozelab.config import canonical
from clozelab.corpus.paths import matching_files
from clozelab.launch.sweep import Sweep
from clozelab.planning.inputs import fill
from clozelab.planning.tasks import require_percent
from clozelab.results.experiment import is_filled_form

FORM = """
title: Mine
scale: adapt
inputs:
  encoder: {kind: model, about: an encoder}
  text: {kind: corpus, about: a text}
  task: {kind: tasks, about: tasks}
  general: {kind: corpus, default: null, about: another text}
  pairs: {kind: file, default: not/there.tsv, about: a file that need not be there}
  words: {kind: number, default: 0, about: a number}
columns:
  - {name: "${inputs.task.title}", task: "${inputs.task}"}
  - {name: Other text, from: evaluate, task: held_out_text, metric: validation/loss, needs: general}
arms:
  further: {encoder: "${inputs.encoder}", tokenizer.vocab_file: "${inputs.encoder.vocabulary}"}
sweeps:
  pretrain: {corpus.sources: [{name: text, path: "${inputs.text}"}]}
rows:
  - {row: further, arm: further}
  - {row: random, arm: null}
claims:
  - id: "a_${inputs.task}"
    text: "${inputs.task.title}"
    compare: [further, random, "${inputs.task.title}"]
    direction: higher
    points: 1.0
  - {text: forgets, compare: [further, random, Other text], direction: lower, needs: general}
"""
ENTRIES = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n"
GIVEN = ["inputs.encoder=bert", "inputs.text=texts", "inputs.task=mrpc"]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a form, an encoder, texts, and a task of each kind."""
    files = {
        "mine/paper.yaml": FORM,
        "bert/config.json": "{}",
        "bert/vocab.txt": ENTRIES,
        "bert/tokenizer_config.json": '{"do_lower_case": true}',
        "unsaid/config.json": "{}",
        "unsaid/vocab.txt": ENTRIES,
        "bare/config.json": "{}",
        "texts/a.txt": "one\ntwo\n",
        "other.txt": "three\n",
        "empty/x.png": "",
        "words.csv": "text,label\na,b\n",
        "text.csv": "text,label\na,b\n",
        "encoder.csv": "text,label\na,b\n",
        "general.csv": "text,label\na,b\n",
        "many.csv": "id,review,remark,stars\n1,a,c,good\n2,b,d,bad\n",
        "intent/rows.csv": "text,label\na,b\n",
        "intent/intent.yaml": "name: intent\ntitle: Intents\ndata: {train_file: rows.csv}\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "mine has inputs, and none is given: say clozelab plan mine inputs.encoder=... "),
        (GIVEN[:2], r"inputs.task= is missing: say clozelab plan mine .*task: tasks"),
        ([*GIVEN[:2], "inputs.task="], r"inputs.task= is missing"),
        (
            [*GIVEN, "inputs.txt=texts"],
            r"inputs.txt: mine has no such input; did you mean 'inputs.text'",
        ),
        ([*GIVEN, "text=texts"], r"text=texts: mine takes it as inputs.text=texts"),
        ([*GIVEN, "inputs.encoder=nowhere"], r"inputs.encoder=nowhere: no model here"),
        ([*GIVEN, "inputs.encoder=minilmm"], r"did you mean 'inputs.encoder=minilm'"),
        ([*GIVEN, "inputs.task=absent.csv"], r"inputs.task=absent.csv: there is no such file"),
        ([*GIVEN, "inputs.encoder=bare"], r"bare has no tokenizer.json and no vocab.txt"),
        ([*GIVEN, "inputs.encoder=unsaid"], r"unsaid does not say whether .* is lower-cased"),
        ([*GIVEN, "inputs.text=empty"], r"inputs.text=empty: no text here; give one folder"),
        ([*GIVEN, "inputs.text=s3://a/b"], r"copy the text to this machine first"),
        ([*GIVEN, "inputs.task=mprc"], r"inputs.task=mprc is no task: .* did you mean 'mrpc'"),
        ([*GIVEN, "inputs.task=mrpc,mrpc"], r"two tasks are called mrpc"),
        ([*GIVEN, "inputs.task=words.csv"], r"words.csv: inputs.words is another input: rename"),
        ([*GIVEN, "inputs.task=text.csv"], r"text.csv: inputs.text is another input: rename"),
        ([*GIVEN, "inputs.task=encoder.csv"], r"encoder.csv: inputs.encoder is another input"),
        ([*GIVEN, "inputs.task=general.csv"], r"general.csv: inputs.general is another input"),
        (
            [*GIVEN, "inputs.task=many.csv"],
            r"many.csv has the columns id, review, remark, stars, .*add text_column=COLUMN",
        ),
        ([*GIVEN, "inputs.general=nothing.txt"], r"inputs.general=nothing.txt: no text here"),
        ([*GIVEN, "inputs.pairs=dve.tsv"], r"inputs.pairs=dve.tsv: there is no such file"),
    ],
)
def test_refusals(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message) if "..." in message else message):
        fill("plan", ["mine", *words])
    assert not Path("runs").exists()


def test_an_experiment_without_inputs_takes_none() -> None:
    with pytest.raises(ValueError, match="table1_glue declares no inputs"):
        fill("plan", ["table1_glue", "inputs.text=texts"])
    assert fill("plan", ["table1_glue", "scale=demo"]) == ["table1_glue", "scale=demo"]


def test_filled_experiment(workplace: Path) -> None:
    words = ["mine", "inputs.encoder=bert", "inputs.text=other.txt", "seeds=1"]
    words += ["inputs.task=mrpc,many.csv,intent/intent.yaml"]
    words += ["text_column=review", "label_column=stars"]
    filled = fill("plan", words)
    assert filled == ["runs/mine/adapt/given/mine", "seeds=1", "scale=adapt"]
    paper = yaml.safe_load(Path(filled[0], "paper.yaml").read_text())

    # A column and a claim a task; what needs the text that is not given has gone.
    assert [column["task"] for column in paper["columns"]] == ["mrpc", "many", "intent"]
    assert [claim["id"] for claim in paper["claims"]] == ["a_mrpc", "a_many", "a_intent"]
    assert [claim["text"] for claim in paper["claims"]] == ["MRPC", "many.csv", "Intents"]
    place = "${runs_dir}/mine/adapt/given"
    assert paper["arms"]["further"]["tokenizer.vocab_file"] == f"{place}/encoder/vocab.txt"
    (source,) = paper["sweeps"]["pretrain"]["corpus.sources"]
    assert source["path"] == f"{place}/text/other.txt"
    of_tasks = {"mrpc", "many", "many/files", "intent", "intent/files"}
    assert set(paper["given"]) == {"/form", "encoder", "text", "text/fields", "words", *of_tasks}
    # No path of the inputs is in it; links say where they are.
    assert str(workplace) not in str(paper)
    given = Path("runs/mine/adapt/given")
    assert (given / "encoder").resolve() == workplace / "bert"
    assert (given / "text/other.txt").read_text() == "three\n"

    many = yaml.safe_load((given / "mine/task/many.yaml").read_text())
    assert many["data"] == {
        "train_file": f"{place}/tasks/many/many.csv",
        "text_columns": ["review"],
        "label_column": "stars",
        "numeric_labels": False,
    }
    intent = yaml.safe_load((given / "mine/task/intent.yaml").read_text())
    assert intent["data"]["train_file"] == f"{place}/tasks/intent/rows.csv"
    assert (given / "tasks/intent/rows.csv").is_file()


def test_each_label_column_of_a_file_is_a_column() -> None:
    words = ["mine", *GIVEN, "inputs.task=many.csv", "text_column=review"]
    (filled, _) = fill("plan", [*words, "label_column=stars,remark"])
    columns = yaml.safe_load(Path(filled, "paper.yaml").read_text())["columns"]
    assert [column["name"] for column in columns] == ["many.csv, stars", "many.csv, remark"]
    task = yaml.safe_load(Path(filled, "task/many_remark.yaml").read_text())
    assert task["data"]["label_column"] == "remark"


def test_a_doubtful_target_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"a,{number}" for number in range(30)]
    Path("intents.csv").write_text("\n".join(["text,label", *rows, *rows]))
    fill("plan", ["mine", *GIVEN, "inputs.task=intents.csv"])
    said = capsys.readouterr().err
    assert said.startswith("inputs: intents.csv: the 30 different whole numbers of label are")
    assert "a task's YAML with data.numeric_labels=true predicts numbers" in said


def test_columns_are_named_beside_the_file_that_has_them() -> None:
    """Said later, or of another task, they were dropped without a word."""
    columns = ["text_column=review", "label_column=stars"]
    fill("plan", ["mine", *GIVEN, "inputs.task=many.csv", *columns])
    with pytest.raises(ValueError, match=r"label_column=remark: it is of a labelled file; say all"):
        fill("reproduce", ["mine", "label_column=remark"])
    with pytest.raises(ValueError, match=r"label_column=stars: inputs.task= has no labelled file"):
        fill("plan", ["mine", *GIVEN, "label_column=stars"])


def test_inputs_are_remembered_and_kept_apart() -> None:
    first = fill("reproduce", ["mine", *GIVEN])
    assert fill("report", ["mine"]) == first
    # Before the first run they may be corrected.
    assert fill("reproduce", ["mine", *GIVEN, "inputs.text=other.txt"]) == first
    fill("reproduce", ["mine", *GIVEN])
    run = Path("runs/mine/adapt/pretrain/further/seed-1/run.json")
    run.parent.mkdir(parents=True)
    run.write_text("{}")
    assert fill("reproduce", ["mine", *GIVEN]) == first
    # Another task is more columns; another text would be another table.
    fill("reproduce", ["mine", *GIVEN, "inputs.task=mrpc,intent/intent.yaml"])
    with pytest.raises(ValueError, match=r"has runs of another text.*say experiment=mine_2"):
        fill("reproduce", ["mine", *GIVEN, "inputs.text=other.txt"])
    Path("texts/a.txt").write_text("changed\n")
    with pytest.raises(ValueError, match="has runs of another text"):
        fill("reproduce", ["mine", *GIVEN])
    second = fill("reproduce", ["mine", *GIVEN, "experiment=mine_2"])
    assert second == ["runs/mine_2/adapt/given/mine_2", "scale=adapt"]
    assert fill("report", ["mine", "experiment=mine_2"]) == second


TEXTS = {"folder": "texts", "glob": "texts/*.txt", "file": "texts/a.txt", "link": "{given}/text"}


@pytest.mark.parametrize(
    "ways", [("folder", "glob"), ("glob", "folder"), ("file", "folder", "link")]
)
def test_inputs_said_in_another_way_leave_the_files_as_they_are(ways: tuple[str, ...]) -> None:
    given = Path("runs/mine/adapt/given")
    for way in ways:
        fill("plan", ["mine", *GIVEN, f"inputs.text={TEXTS[way].format(given=given)}"])
        assert not Path("texts/a.txt").is_symlink()
        assert Path("texts/a.txt").read_text() == "one\ntwo\n"
        assert (given / "text/a.txt").samefile("texts/a.txt")


def test_a_text_is_what_was_said_last() -> None:
    Path("texts/b.txt").write_text("four\n")
    Path("texts/c.txt").write_text("five\n")
    fill("plan", ["mine", *GIVEN, "inputs.text=texts/[ab].txt"])
    fill("plan", ["mine", *GIVEN, "inputs.text=texts/[bc].txt"])
    links = Path("runs/mine/adapt/given/text").iterdir()
    assert sorted(link.name for link in links) == ["b.txt", "c.txt"]


@pytest.mark.parametrize("text", ["texts", "other.txt", "texts/*.txt"])
def test_a_text_that_changes_after_it_was_given_is_given_again(text: str) -> None:
    words = ["mine", *GIVEN, f"inputs.text={text}"]
    filled = fill("plan", words)
    assert fill("reproduce", ["mine"]) == filled
    changed = Path("other.txt") if text == "other.txt" else Path("texts/a.txt")
    changed.write_text("another\n")
    with pytest.raises(ValueError, match=r"inputs.text: the text has changed since it was given"):
        fill("reproduce", ["mine"])
    # `status` prints the folder in the place of the name.
    with pytest.raises(ValueError, match=r"inputs.text: the text has changed since it was given"):
        fill("reproduce", filled)
    # What only reads runs goes on; what is given again is taken.
    assert fill("report", ["mine"]) == filled == fill("reproduce", words)
    assert fill("report", filled) == filled == fill("reproduce", filled)


FILES_OF_TASK = {
    "train_file": "rows.csv",
    "validation_file": "far.csv",  # below data_dir
    "train_extra": ["more/rows.csv"],
    "extra_validation_files": {"hard": "hard.csv"},
    "test_files": {"one": "one.csv", "two": "absent.csv"},
}


def test_every_file_that_a_task_names_comes_along_and_counts() -> None:
    """Of lists and of named files nothing was known, and a change of them was not noticed."""
    files = [Path("whole", name) for name in ("rows.csv", "more/rows.csv", "hard.csv", "one.csv")]
    files.append(Path("data/far.csv"))
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"text,label\n{file},b\n")
    Path("whole/whole.yaml").write_text(yaml.safe_dump({"name": "whole", "data": FILES_OF_TASK}))
    words = ["mine", *GIVEN, "inputs.task=whole/whole.yaml"]
    (filled, _) = fill("plan", words)
    data = yaml.safe_load(Path(filled, "task/whole.yaml").read_text())["data"]
    assert data["validation_file"] == "far.csv" and data["test_files"]["two"] == "absent.csv"
    links = Path(filled).parent / "tasks/whole"
    named = [data["train_file"], *data["train_extra"], data["extra_validation_files"]["hard"]]
    for value, file in zip([*named, data["test_files"]["one"]], files, strict=False):
        assert value.startswith("${runs_dir}/mine/adapt/given/tasks/whole/")
        assert (links / Path(value).name).samefile(file)

    for file in files:
        content = file.read_text()
        assert fill("reproduce", ["mine"])[0] == filled
        file.write_text("text,label\nanother,b\n")
        with pytest.raises(ValueError, match="a file of the task whole has changed"):
            fill("reproduce", ["mine"])
        assert fill("report", ["mine"])[0] == filled
        file.write_text(content)
    run = Path("runs/mine/adapt/pretrain/further/seed-1/run.json")
    run.parent.mkdir(parents=True)
    run.write_text("{}")
    assert fill("plan", words)[0] == filled
    files[1].write_text("text,label\nanother,b\n")
    with pytest.raises(ValueError, match=r"has runs of another whole, .*say experiment=mine_2"):
        fill("plan", words)


def test_a_file_that_is_named_by_data_dir_counts() -> None:
    Path("data").mkdir()
    Path("data/far.csv").write_text("text,label\na,b\n")
    Path("far.yaml").write_text("name: far\ndata: {train_file: '${data_dir}/far.csv'}\n")
    fill("plan", ["mine", *GIVEN, "inputs.task=far.yaml"])
    fill("reproduce", ["mine"])
    Path("data/far.csv").write_text("text,label\nanother,b\n")
    with pytest.raises(ValueError, match=r"a file of the task far has changed.*or is not in data"):
        fill("reproduce", ["mine"])


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("train_file", "part-*.csv"),
        ("passages", "part-1.csv"),
        ("lexicon", {"path": "${data_dir}/*.csv"}),
    ],
)
def test_files_by_a_glob_and_of_a_setting_of_ones_own_count(setting: str, value: object) -> None:
    Path("data").mkdir()
    for number in (1, 2):
        Path(f"data/part-{number}.csv").write_text("text,label\na,b\n")
    # words that name no file, or a folder, are none
    words = {"separator": "/", "missing": "*", "here": ".", "help": "Is it there? " * 40}
    task = {"name": "parts", "data": {setting: value} | words}
    Path("parts.yaml").write_text(yaml.safe_dump(task))
    words_of_plan = ["mine", *GIVEN, "inputs.task=parts.yaml"]
    fill("plan", words_of_plan)
    fill("reproduce", ["mine"])
    Path("data/unread.txt").write_text("changed")
    fill("reproduce", ["mine"])
    Path("data/part-1.csv").write_text("text,label\nanother,b\n")
    with pytest.raises(ValueError, match=r"a file of the task parts has changed"):
        fill("reproduce", ["mine"])
    _add_run()
    with pytest.raises(ValueError, match="has runs of another parts"):
        fill("plan", words_of_plan)


def test_an_input_that_is_one_file_counts() -> None:
    Path("pairs.tsv").write_text("a\tb\t1\n")
    words = ["mine", *GIVEN, "inputs.pairs=pairs.tsv"]
    filled = fill("plan", words)
    assert fill("reproduce", ["mine"]) == filled
    Path("pairs.tsv").write_text("a\tb\t2\n")
    with pytest.raises(ValueError, match=r"inputs.pairs: the file has changed since it was given"):
        fill("reproduce", ["mine"])
    assert fill("report", ["mine"]) == filled == fill("reproduce", words)
    _add_run()
    Path("pairs.tsv").write_text("a\tb\t3\n")
    with pytest.raises(ValueError, match="has runs of another pairs"):
        fill("reproduce", words)
    Path("pairs.tsv").unlink()
    assert fill("reproduce", ["mine"]) == filled


def _add_run() -> None:
    run = Path("runs/mine/adapt/pretrain/further/seed-1/run.json")
    run.parent.mkdir(parents=True)
    run.write_text("{}")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"train_file": "x" * 300}, r"the task odd, train_file: .*File name too long"),
        ({"test_files": {1: "a.csv", "b": "c.csv"}}, "put the numbers into quotes"),
    ],
)
def test_a_task_that_cannot_be_kept_is_refused_in_a_sentence(
    data: dict[str, object], message: str
) -> None:
    Path("odd.yaml").write_text(yaml.safe_dump({"name": "odd", "data": data}))
    with pytest.raises(ValueError, match=message):
        fill("plan", ["mine", *GIVEN, "inputs.task=odd.yaml"])


@pytest.mark.parametrize("key", ["name", "title"])
def test_a_task_is_called_by_no_interpolation(key: str) -> None:
    Path("odd.yaml").write_text(yaml.safe_dump({"name": "odd", key: "of ${x}"}))
    message = rf"odd.yaml: the {key} 'of \${{x}}' would be looked up; leave '\${{' out"
    with pytest.raises(ValueError, match=message):
        fill("plan", ["mine", *GIVEN, "inputs.task=odd.yaml"])


def test_files_of_one_name_stay_apart() -> None:
    """Training was validated on its own file where both were called data.csv."""
    for role in ("train", "dev"):
        Path(role).mkdir()
        Path(role, "data.csv").write_text(f"text,label\n{role},b\n")
    data = "data: {train_file: train/data.csv, validation_file: dev/data.csv}\n"
    Path("roles.yaml").write_text("name: roles\ntitle: Roles\n" + data)
    (filled, _) = fill("plan", ["mine", *GIVEN, "inputs.task=roles.yaml"])
    data = yaml.safe_load(Path(filled, "task/roles.yaml").read_text())["data"]
    links = Path(filled).parent / "tasks/roles"
    for role, setting in (("train", "train_file"), ("dev", "validation_file")):
        assert role in (links / Path(data[setting]).name).read_text()


def test_a_glob_reads_what_it_names_also_behind_links() -> None:
    """A folder would leave out what is no text by its suffix."""
    Path("notes").mkdir()
    for name in ("a.md", "b.md", "c.txt"):
        Path("notes", name).write_text(f"{name}\n")
    for pattern, names in (
        ("notes/*.md", {"a.md", "b.md"}),
        ("notes/*", {"a.md", "b.md", "c.txt"}),
    ):
        (filled, _) = fill("plan", ["mine", *GIVEN, f"inputs.text={pattern}"])
        paper = yaml.safe_load(Path(filled, "paper.yaml").read_text())
        (source,) = paper["sweeps"]["pretrain"]["corpus.sources"]
        path = source["path"].replace("${runs_dir}", "runs")
        assert matching_files(path, "data")[0].keys() == names


def test_records_name_inputs_without_their_place() -> None:
    config = {
        "runs_dir": "/home/me/runs",
        "experiment": "mine",
        "scale": {"name": "adapt"},
        "task": {"data": {"train_file": "/home/me/runs/mine/adapt/given/tasks/a/a.csv"}},
        "tokenizer": {"vocab_file": "/home/me/runs/other/vocab.txt"},
    }
    recorded = canonical(config)
    assert recorded["task"]["data"]["train_file"] == "given/tasks/a/a.csv"
    assert recorded["tokenizer"]["vocab_file"] == "/home/me/runs/other/vocab.txt"


def test_each_seed_of_worth_it_draws_its_own_examples_for_all_its_rows() -> None:
    """Its fine-tunings have one seed each, by which all pre-training seeds had one draw."""
    (filled, _) = fill("plan", ["worth_it", *GIVEN, "inputs.words=0"])
    words = ("scale=adapt", "row=further,given", "task=mrpc", "pretrain_seed=1,2")
    sweep = Sweep("sweep_finetune", words, folder=Path(filled))
    configs = [sweep.config(job) for job in sweep.jobs]
    drawn = sorted((config.row, config.pretrain_seed, sampling_seed(config)) for config in configs)
    assert drawn == [("further", 1, 1), ("further", 2, 2), ("given", 1, 1), ("given", 2, 2)]


@pytest.mark.parametrize("name", ["2024", "null", "täglich"])
def test_a_labelled_file_may_be_called_as_it_likes(name: str) -> None:
    """Hydra read a number or nothing, or refused the letters."""
    Path(f"{name}.csv").write_text("text,label\na,b\n")
    words = ["worth_it", *GIVEN, "inputs.words=0", f"inputs.task={name}.csv"]
    (filled, _) = fill("plan", words)
    sweep = Sweep("sweep_finetune", ("scale=adapt", "row=given"), folder=Path(filled))
    assert {sweep.config(job).task.name for job in sweep.jobs} == {name}


def test_a_task_without_a_title_is_called_by_its_name() -> None:
    Path("plain.yaml").write_text(
        "defaults: [format/labelled@_here_, _self_]\nname: plain\nmetric: validation/accuracy\n"
        "module: {metrics: [accuracy]}\ndata: {train_file: many.csv, label_column: stars}\n"
    )
    (filled, _) = fill("plan", ["worth_it", *GIVEN, "inputs.words=0", "inputs.task=plain.yaml"])
    sweep = Sweep("sweep_finetune", ("scale=adapt", "row=given"), folder=Path(filled))
    assert {sweep.config(job).task.title for job in sweep.jobs} == {"plain"}


def test_pairs_are_read_where_they_lie_and_records_name_no_place(workplace: Path) -> None:
    Path("text").mkdir()
    Path("text/dev.tsv").write_text("a\tb\t1\n")
    words = ["worth_it", *GIVEN, "inputs.words=0"]
    for place, recorded in (
        ("text/dev.tsv", "text/dev.tsv"),
        (f"{workplace}/text/dev.tsv", "given/pairs/dev.tsv"),
    ):
        (filled, _) = fill("plan", [*words, f"inputs.pairs={place}"])
        sweep = Sweep("sweep_evaluate", ("scale=adapt", "measure=given_pairs"), folder=Path(filled))
        config = sweep.composer.compose(sweep.jobs[0])
        file = config.config.measure.task["data"]["validation_file"]
        assert Path(file).samefile("text/dev.tsv")
        assert canonical(config.values)["measure"]["task"]["data"]["validation_file"] == recorded
        assert fill("reproduce", ["worth_it"])[0] == filled
    Path("text/dev.tsv").write_text("a\tb\t2\n")
    with pytest.raises(ValueError, match=r"inputs.pairs: the file has changed since it was given"):
        fill("reproduce", ["worth_it"])


def test_new_words_are_those_of_the_field_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that was named later changed the text alone; a task made all words anew."""
    made: list[list[str]] = []

    def lengthen(argv: list[str], environment: dict[str, str]) -> int:
        made.append(argv[3:])
        # The verb prints it, so it is the place where the encoder stays.
        assert argv[2] == "to=runs/worth_it/adapt/given/longer"
        Path("runs/worth_it/adapt/given/longer").mkdir()
        return 0

    monkeypatch.setattr("clozelab.planning.inputs.run_verb", lengthen)
    words = ["worth_it", *GIVEN]
    fill("plan", words)
    text = "text=runs/worth_it/adapt/given/text"
    assert made == [[text, "add=1000"]]
    fill("plan", [*words, "pretrain.corpus.sources.0.text_field=body"])
    assert made[1:] == [[text, "add=1000", "text_field=body"]]
    words[-1] = "inputs.task=mrpc,intent/intent.yaml"
    fill("plan", [*words, "corpus.sources.0.text_field=body"])
    assert len(made) == 2
    run = Path("runs/worth_it/adapt/pretrain/longer/seed-1/run.json")
    run.parent.mkdir(parents=True)
    run.write_text("{}")
    words.append("corpus.sources.0.text_field=body")
    fill("plan", words)
    assert len(made) == 2
    fill("reproduce", ["worth_it", "corpus.sources.0.text_field=body"])
    with pytest.raises(ValueError, match=r"text: it was given with other settings of corpus"):
        fill("reproduce", ["worth_it"])
    with pytest.raises(ValueError, match=r"text: .* has runs of another text, and"):
        fill("plan", ["worth_it", *GIVEN])
    given = Path("runs/worth_it/adapt/given")
    assert (given / "longer").is_dir()
    (given / "longer").rmdir()
    with pytest.raises(ValueError, match=r"inputs.words=1000: the encoder with these words was no"):
        fill("reproduce", ["worth_it", "corpus.sources.0.text_field=body"])


def test_similarity_is_of_the_pairs_that_are_named(workplace: Path) -> None:
    (workplace / "pairs.tsv").write_text("a\tb\t1\n")
    words = ["worth_it", *GIVEN, "inputs.words=0", "inputs.pairs=pairs.tsv"]
    (filled, _) = fill("plan", words)
    sweep = Sweep("sweep_evaluate", ("scale=adapt", "measure=given_pairs"), folder=Path(filled))
    for job in sweep.jobs:
        data = sweep.config(job).measure.task["data"]
        assert data["train_file"] == data["validation_file"]
        assert Path(data["validation_file"]).read_text() == "a\tb\t1\n"


def test_tasks_of_errors_are_refused_before_claims_are_about_them() -> None:
    """Of an error lower is better, and `higher by one point` would contradict what helped."""
    data = "task.data.train_file=a.csv"
    percent = composed("finetune", ["task=sst2", "encoder=none", "row=mine"]).config.task
    require_percent(percent)
    # A score of a further validation file is one of the task's.
    task = composed("finetune", ["task=mnli", "encoder=none", "row=mine"]).config.task
    (further,) = task.data["extra_validation_files"]
    require_percent(replace(task, metric=f"validation/{further}_accuracy"))
    words = ["+task/format@task=word_numbers", "task.name=gaze", "task.title=Gaze", data]
    task = composed("finetune", [*words, "encoder=none", "row=mine"]).config.task
    with pytest.raises(ValueError, match=r"Gaze: .*validation/mae is none; say .*/spearman in"):
        require_percent(task)
    (filled, _) = fill("plan", ["mine", *GIVEN])
    assert is_filled_form(Path(filled)) and not is_filled_form(Path("mine"))


@pytest.mark.slow
def test_a_whole_answer(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Plan, both seeds, the report's first sentence, and the table again with nothing said."""
    transformers = pytest.importorskip("transformers")
    words = [f"word{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *words[0], "##a"]
    Path("tiny").mkdir()
    Path("tiny/vocab.txt").write_text("\n".join(dict.fromkeys(vocabulary)))
    Path("tiny/tokenizer_config.json").write_text('{"do_lower_case": true}')
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(
        vocab_size=len(set(vocabulary)), intermediate_size=32, max_position_embeddings=64, **shape
    )
    transformers.BertModel(config).save_pretrained("tiny")
    draw = random.Random(1)
    sentences = [" ".join(draw.choices(words, k=20)) for _ in range(200)]
    Path("long.txt").write_text("\n\n".join(sentences))
    rows = [f"{words[number % 26]} {number % 2}" for number in range(40)]
    lines = [f"{row},{'even' if number % 2 else 'odd'}\n" for number, row in enumerate(rows)]
    Path("parity.csv").write_text("text,label\n" + "".join(lines))

    command = ["reproduce", "worth_it", "inputs.encoder=tiny", "inputs.text=long.txt"]
    command += ["inputs.task=parity.csv", "inputs.general=long.txt", "inputs.words=0"]
    command += ["seeds=1,2", "pretrain.steps_factor=0.1", "finetune.epochs=1", "--no-measure"]
    assert main([*command, f"cache_dir={workplace}/cache", "--skip-doctor"]) == 0
    report = Path("runs/worth_it/adapt/report/report.md").read_text()
    # Words at random teach no context: the loss stays where their frequencies are.
    asked = "Is further pre-training on this text worth it? No answer yet. Trained further (fur"
    assert asked in report
    # Every cell of the four rows is there, also of a text that an encoder without a head predicts.
    assert "missing" not in report.partition("## The table")[2].partition("##")[0]
    # Its head is of another seed each time, and it is one encoder all the same.
    assert "says fixed_encoder" not in report
    # Its arms and rows are those of the filled file.
    assert "not of its lines" not in report
    capfd.readouterr()
    assert main(["report", "worth_it"]) == 0
    assert "worth it? No answer yet." in " ".join(capfd.readouterr().out.split())
    record = Path("runs/worth_it/adapt/pretrain/further/seed-1/run.json").read_text()
    assert '"given/text/long.txt"' in record and "parity.csv" not in record
