"""A part of the training file is held out: what each role reads of it, and what stands in both."""

from __future__ import annotations

import json
import string
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.parts import PAIRS, TEXTS, contrastive_data, data_of, labelled_data, squad_data

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.datamodules.labelled import TaskInputs, TrainingPlan
from clozelab.tasks.retrieval import RetrievalTarget, RetrievalUnit

TOKENIZER = WordPieceTokenizer(
    [*SPECIAL_TOKENS, *string.ascii_lowercase, *string.digits]
    + [f"##{sign}" for sign in string.ascii_lowercase + string.digits],
    lowercase=True,
)
RETRIEVAL = {
    "text_columns": ["query", "passage"],
    "negative_columns": ["negative"],
    "label_column": "",
    "right_label": None,
    "prompts": {"query": "", "document": ""},
    "mined_negatives": 0,
    "skipped_negatives": 0,
    "micro_batch_size": None,
    "pairs": "apart",
    "pooling": "mean",
    "metrics": ["mrr"],
    "temperature": 0.05,
    "sizes": None,
}
QUESTIONS = {"with_unanswerable": False, "doc_stride": 8, "max_query_length": 8, "train_extra": []}
SCORED = PAIRS | {"label_column": "score", "numeric_labels": True}


def settings(folder: Path, *, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """What a data module of any task takes; a part of its training file is held out."""
    common: dict[str, Any] = {
        "inputs": TaskInputs("toy", folder, folder / "cache", TOKENIZER, 32, code="x", seed=seed),
        "plan": TrainingPlan(8, 1.0, 1, None, 1, 0),
        "train_file": "train.jsonl",
        "validation_file": None,
        "validation_fraction": 0.2,
        "max_seq_length": 32,
    }
    return common | changes


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")


def read(data: FinetuningDataModule) -> FinetuningDataModule:
    data.setup()
    data.refuse_overlap(allowed=False)
    return data


def retrieval_data(folder: Path, **changes: Any) -> FinetuningDataModule:
    given = settings(folder, **changes)
    return read(data_of(RetrievalUnit, RetrievalTarget, RETRIEVAL | given))


def ids_of(data: FinetuningDataModule, role: str) -> list[str]:
    return list(data.examples(data.train_path, role).ids)


def write_passages(path: Path, prefix: str, lost: tuple[int, ...] = ()) -> None:
    """Forty passages with two questions each; of those in `lost` the first has no place."""
    rows = []
    for number in range(40):
        context = f"{prefix} {number} sits here"
        for place, text in enumerate([prefix, "here"]):
            answer = "nowhere" if place == 0 and number in lost else text
            answers = {"text": [answer], "answer_start": [context.find(text)]}
            row = {"id": f"{prefix}{number}-{place}", "question": f"who {place}"}
            rows.append(row | {"context": context, "answers": answers})
    write_rows(path, rows)


def test_folds_are_of_the_rows_that_validation_reads(tmp_path: Path) -> None:
    """One row without a negative is damaged for training alone, and moves no other row."""
    rows = []
    for number in range(120):
        negative = None if number == 7 else f"no {number}"
        rows.append({"query": f"q {number}", "passage": f"p {number}", "negative": negative})
    write_rows(tmp_path / "train.jsonl", rows)
    validated: Counter[str] = Counter()
    sources = set()
    for seed in range(5):
        data = retrieval_data(tmp_path, seed=seed, validation_folds=5)
        assert data.facts["held_out"] == {"folds": 5, "seed": 1, "number": seed}
        sources.add(data.source_fingerprint)
        held_out = set(ids_of(data, "validation"))
        trained = set(ids_of(data, "training"))
        assert len(held_out) == 24 and not held_out & trained
        assert held_out | trained | {"7"} == {str(number) for number in range(120)}
        assert data.overlap.num_seen == 0
        validated.update(held_out)
    assert set(validated.values()) == {1} and len(validated) == 120
    assert len(sources) == 1, "tables compare runs of equal data: the seed alone tells folds apart"
    with pytest.raises(ValueError, match="for a task without a validation file"):
        retrieval_data(tmp_path, validation_file="train.jsonl", validation_folds=5)


def test_a_class_of_one_row_is_known_in_every_fold(tmp_path: Path) -> None:
    """The fold that holds its row out trains without an example of it, and is scored."""
    rows = [{"text": f"t {n}", "label": "b" if n % 2 else "a"} for n in range(60)]
    rows[7]["label"] = "rare"
    write_rows(tmp_path / "train.jsonl", rows)
    num_examples = []
    for seed in range(5):
        given = settings(tmp_path, seed=seed, validation_folds=5)
        data = read(labelled_data(**TEXTS, **given))
        assert data.target.classes == ["a", "b", "rare"]
        num_examples.append(int((data.train.labels == 2).sum()))
        assert data.baselines  # a bag of words that has not seen the class guesses another
    assert sorted(num_examples) == [0, 1, 1, 1, 1]


def test_a_score_over_few_rows_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for num_rows, is_warned in ((16, True), (200, False)):
        rows = [{"text": f"t {n}", "label": "b" if n % 2 else "a"} for n in range(num_rows)]
        write_rows(tmp_path / "train.jsonl", rows)
        caplog.clear()
        data = read(labelled_data(**TEXTS, **settings(tmp_path, validation_fraction=0.15)))
        few = f"a score is over {len(data.validation)} example(s), held out of"
        assert (few in caplog.text) == is_warned
        assert any(few in warning for warning in data.preview().warnings) == is_warned
    caplog.clear()
    read(labelled_data(**TEXTS, **settings(tmp_path, validation_folds=40)))
    assert "a score is over" not in caplog.text  # the seeds go through all rows together


def test_the_split_is_the_same_whichever_role_is_read_first(tmp_path: Path) -> None:
    rows = [{"query": f"q {n}", "passage": f"p {n}", "negative": "no"} for n in range(120)]
    rows[3]["negative"] = None  # type: ignore[assignment]
    write_rows(tmp_path / "train.jsonl", rows)
    data = retrieval_data(tmp_path, validation_folds=5)
    trained = ids_of(data, "training")
    # now from the cache, so that nothing is read before the validation rows are
    again = retrieval_data(tmp_path, validation_folds=5)
    assert set(ids_of(again, "validation")).isdisjoint(trained)
    assert ids_of(again, "training") == trained


def test_a_pair_and_its_swap_stay_together_beside_negatives(tmp_path: Path) -> None:
    rows = []
    for number in range(60):
        for first, second in ("ab", "ba"):
            row = {"query": f"{first} {number}", "passage": f"{second} {number}"}
            rows.append(row | {"negative": "x"})
    write_rows(tmp_path / "train.jsonl", rows)
    data = retrieval_data(tmp_path)
    assert data.overlap.num_seen == 0 < data.overlap.num_rows
    assert len(data.train) + len(data.validation) == 120


def test_questions_that_cannot_be_learned_move_no_passage(tmp_path: Path) -> None:
    write_passages(tmp_path / "train.jsonl", "cat", lost=(3, 20))
    for seed in range(4):
        given = settings(tmp_path, seed=seed, validation_folds=4) | QUESTIONS
        data = read(squad_data(**given))
        held_out = set(ids_of(data, "validation"))
        trained = set(ids_of(data, "training"))
        assert len(held_out) == 20 and not held_out & trained
        assert len(held_out | trained | {"cat3-0", "cat20-0"}) == 80
        # the place in the file, whatever was left out before it
        lines = data._rows["training", data.train_path]["row_lines"]
        names = np.array([row["id"] for row in rows_of(tmp_path / "train.jsonl")])
        assert set(names[lines - 1]) == trained


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_scored(path: Path) -> None:
    rows = []
    for number in range(60):
        row = {"first": f"a {number}", "second": f"b {number}", "third": f"c {number}"}
        rows.append(row | {"score": number % 6})
    write_rows(path, rows)


def test_training_without_labels_has_the_validation_rows_shares(tmp_path: Path) -> None:
    """Training reads no numbers; the split is by the numbers all the same."""
    write_scored(tmp_path / "train.jsonl")
    given = settings(tmp_path) | SCORED
    data = read(contrastive_data(train_columns=["first", "first"], **given))
    assert Counter(data.validation.labels.tolist()) == dict.fromkeys(range(6), 2)
    assert set(ids_of(data, "training")).isdisjoint(ids_of(data, "validation"))
    assert len(data.train) == 48
    # a few examples, of no classes
    plan = TrainingPlan(8, 1.0, 1, 16, 1, 0, sample_seed=3)
    few = read(contrastive_data(train_columns=["first", "first"], **(given | {"plan": plan})))
    assert len(few.train) == 16 and len(few.validation) == 12


def test_parts_of_one_file_may_not_share_a_row(tmp_path: Path) -> None:
    """Training reads other columns, in which there is the pair of the next row."""
    write_scored(tmp_path / "train.jsonl")
    rows = rows_of(tmp_path / "train.jsonl")
    for number, row in enumerate(rows):
        following = rows[(number + 1) % len(rows)]
        row |= {"third": following["first"], "fourth": following["second"]}
    write_rows(tmp_path / "train.jsonl", rows)
    given = SCORED | settings(tmp_path)
    data = contrastive_data(train_columns=["third", "fourth"], **given)
    data.setup()
    with pytest.raises(ValueError, match=r"training reads other columns of it, so name a"):
        data.refuse_overlap(allowed=False)
    data.refuse_overlap(allowed=True)
    read(contrastive_data(train_columns=["first", "second"], **given))


def write_patients(path: Path, first: int, number: int) -> None:
    """Six notes of each patient, of both classes; the last one is the same for all."""
    rows = []
    for patient in range(first, first + number):
        for note in range(6):
            text = "all is well" if note == 5 else f"note {note} of {patient}"
            rows.append({"text": text, "label": "ab"[note % 2], "patient": f"p{patient}"})
    write_rows(path, rows)


@pytest.mark.parametrize("folds", [None, 5])
def test_rows_of_one_group_are_in_one_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, folds: int | None
) -> None:
    write_patients(tmp_path / "train.jsonl", 0, 40)
    patients = [row["patient"] for row in rows_of(tmp_path / "train.jsonl")]

    def parts(**changes: Any) -> tuple[FinetuningDataModule, list[set[str]]]:
        data = labelled_data(**TEXTS, **settings(tmp_path, validation_folds=folds, **changes))
        data.setup()
        of_role = []
        for role in ("training", "validation"):
            of_role.append({patients[int(name)] for name in ids_of(data, role)})
        return data, of_role

    apart, (trained, held_out) = parts(group_column="patient")
    assert not trained & held_out and len(trained | held_out) == 40
    assert len(held_out) == 8
    assert 24 <= len(apart.validation) <= 48
    assert apart.facts["held_out"]["group_column"] == "patient"
    apart.refuse_overlap(allowed=False)  # a text that many patients have is counted, and said
    assert "stand in the training file" in caplog.text
    # without the column they are in both parts, so the test above can fail
    mixed, (trained, held_out) = parts()
    assert len(trained & held_out) > 10
    assert apart.source_fingerprint != mixed.source_fingerprint
    assert "group_column" not in mixed.facts["held_out"]


def test_a_group_in_two_files_is_refused(tmp_path: Path) -> None:
    write_patients(tmp_path / "train.jsonl", 0, 10)
    write_patients(tmp_path / "dev.jsonl", 9, 2)
    write_patients(tmp_path / "new.jsonl", 10, 2)
    given = settings(tmp_path) | TEXTS

    def refuse_overlap(file: str, column: str | None, *, allowed: bool = False) -> None:
        data = labelled_data(**(given | {"validation_file": file, "group_column": column}))
        data.setup()
        data.refuse_overlap(allowed=allowed)

    with pytest.raises(ValueError, match=r"6 of 12 rows of .*dev.jsonl have a patient that is als"):
        refuse_overlap("dev.jsonl", "patient")
    refuse_overlap("dev.jsonl", "patient", allowed=True)
    refuse_overlap("dev.jsonl", None)
    refuse_overlap("new.jsonl", "patient")
    with pytest.raises(ValueError, match="has no column 'doctor'"):
        refuse_overlap("new.jsonl", "doctor")


def test_further_training_files_are_compared_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_passages(tmp_path / "train.jsonl", "cat")
    write_passages(tmp_path / "dev.jsonl", "dog")
    questions = rows_of(tmp_path / "dev.jsonl")
    write_rows(tmp_path / "more.jsonl", questions[-2:])
    given = settings(tmp_path, validation_file="dev.jsonl") | QUESTIONS
    data = read(squad_data(**(given | {"train_extra": ["more.jsonl"]})))
    assert data.facts["validation_in_training"] == 2
    assert (
        f"the training file {tmp_path / 'more.jsonl'} (the first: question 79 is question 1 of"
        in (caplog.text)
    )
    with pytest.raises(ValueError, match=r"80 of 80 rows .* the training file .*/dev.jsonl "):
        read(squad_data(**(given | {"train_extra": ["dev.jsonl"]})))


def write_labelled(path: Path, name: str, number: int = 40) -> None:
    rows = [{"text": f"{name} {n}", "label": ("no", "yes")[n % 2]} for n in range(number)]
    write_rows(path, rows)


def test_further_validation_files_are_compared_too(tmp_path: Path) -> None:
    for name in ("train", "dev", "other"):
        write_labelled(tmp_path / f"{name}.jsonl", name)
    given = settings(tmp_path, validation_file="dev.jsonl") | TEXTS
    read(labelled_data(extra_validation_files={"more": "other.jsonl"}, **given))
    with pytest.raises(ValueError, match=r"name another task.data.extra_validation_files.same "):
        read(labelled_data(extra_validation_files={"same": "train.jsonl"}, **given))


def test_baselines_are_of_the_label_and_the_scores_asked_for(tmp_path: Path) -> None:
    write_labelled(tmp_path / "train.jsonl", "a", 91)
    write_labelled(tmp_path / "dev.jsonl", "b", 33)
    given = settings(tmp_path, validation_file="dev.jsonl") | TEXTS

    def scores(**changes: Any) -> dict[str, float]:
        (of_words,) = read(labelled_data(**(given | changes))).baselines.values()
        return of_words

    positive = scores(positive_label="yes", metrics=["f1"])
    negative = scores(positive_label="no", metrics=["f1"])
    assert positive["f1"] != negative["f1"]
    assert scores(positive_label="yes", metrics=["f1"]) == positive
    rows = [{"query": f"q {n}", "passage": f"p {n}", "negative": "no"} for n in range(50)]
    write_rows(tmp_path / "train.jsonl", rows)
    for metric in ("map", "mrr"):
        assert set(retrieval_data(tmp_path, metrics=[metric]).baselines["BM25"]) == {metric}
