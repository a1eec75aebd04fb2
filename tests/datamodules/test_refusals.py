"""What this room refuses, and the sentence that says so: a row a case."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from tests.calling import call_with_fixtures
from tests.datamodules import (
    test_choices,
    test_corpus,
    test_labelled,
    test_labels,
    test_squad,
    test_tags,
    test_texts,
)

from clozelab.corpus.tokenizers import WordPieceTokenizer
from clozelab.datamodules.choices import ChoiceDataModule
from clozelab.datamodules.columns import choose_columns, refuse_unknown_keys
from clozelab.datamodules.corpus import CorpusDataModule
from clozelab.datamodules.examples import encode_examples, encode_windows
from clozelab.datamodules.files import HubSource, baselines_of, cached_arrays, require_file
from clozelab.datamodules.labelled import LabelledDataModule, TableFormat
from clozelab.datamodules.labels import ANY, CLASSES, NUMBERS
from clozelab.datamodules.squad import WindowSettings
from clozelab.datamodules.tags import TagDataModule, read_tags
from clozelab.datamodules.texts import read_texts
from clozelab.launch import sweep
from clozelab.readers.bad_rows import refuse_wrong_file
from clozelab.readers.conll import ColumnFormat, predicted_lines
from clozelab.readers.lines import text_lines
from clozelab.readers.squad import read_squad
from clozelab.training.runtime import Prefetched

make_choices = test_choices.make
make_corpus = test_corpus.make
corpus = test_corpus.corpus
make_labelled = test_labelled.make
film_tokenizer = test_labelled.film_tokenizer
make_tags = test_tags.make_tags


def an_error_reaches_the_reader_after_the_batches_before_it() -> None:
    def batches():
        yield 1
        raise ValueError("row 2 is bad")

    seen = []
    seen.extend(iter(Prefetched(batches(), lambda n: n)))
    pytest.fail("the error was lost")


def a_torn_row_of_choices(make_choices: Callable[..., ChoiceDataModule], tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("sent1,e0,e1,e2\n" + "c,a,b,c\n" * 200 + "c,a\n")
    data = make_choices()
    data.setup()
    data.load_test()


def a_split_without_documents(make_corpus: Callable[..., CorpusDataModule], corpus: Any) -> None:
    corpus.validation = test_corpus.make_shards(0, 0)
    make_corpus().setup("fit")


def a_split_of_one_document(make_corpus: Callable[..., CorpusDataModule], corpus: Any) -> None:
    corpus.validation = test_corpus.make_shards(0, 0)
    corpus.train = test_corpus.make_shards(1, 0)
    make_corpus().setup("fit")


def damaged_zstd_file(tmp_path: Path) -> None:
    (tmp_path / "x.zst").write_bytes(b"no zstd at all")
    list(text_lines(tmp_path / "x.zst"))


def more_damage_than_is_rare(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("a whole row\n")
    refuse_wrong_file(path, ["x.tsv:3: short"] * 2, 199, "two columns")


def a_file_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("a whole row\n")
    refuse_wrong_file(path, [], 0, "two columns")


def damaged_baselines_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "dev.tsv").write_text("rows")
    (tmp_path / "baselines.json").write_text(text)
    baselines_of(tmp_path, tmp_path / "dev.tsv")


def failed_build_leaves_nothing(tmp_path: Path) -> None:
    def build() -> Any:
        raise ValueError("bad label")

    cached_arrays(tmp_path / "x-1", tmp_path, build)


def sources_that_cannot_be(overrides: list[str]) -> None:
    HubSource.of(sweep.compose("finetune", overrides).get("task"))


def wrong_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = test_labelled.write_table(tmp_path, "sentence\tlabel\nfine\t1\nsentence, label\n")
    test_labelled.read_table_of(path, test_labelled.SINGLE, ["1"])


def a_header_with_one_name_twice_is_refused(tmp_path: Path) -> None:
    """Nobody can know which of the two is meant."""
    path = test_labelled.write_table(tmp_path, "sentence\tlabel\tlabel\na\t1\t0\n")
    test_labelled.read_table_of(path, test_labelled.SINGLE, ["0", "1"])


def unknown_label_names_line_and_known_labels(tmp_path: Path) -> None:
    path = test_labelled.write_table(tmp_path, "sentence\tlabel\na\t1\nb\tmaybe\n")
    test_labelled.read_table_of(path, test_labelled.SINGLE, ["0", "1"])


def missing_label_column_only_for_prediction(tmp_path: Path) -> None:
    path = test_labelled.write_table(tmp_path, "index\tsentence\n0\ta\n")
    test_labelled.read_table_of(path, test_labelled.SINGLE, ["1"])


def json_without_the_text_column(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"s": "a", "label": 1}\n' * 100)
    test_labelled.read_table_of(tmp_path / "x.jsonl", TableFormat(["text"], "label"))


def a_line_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("no json\n")
    test_labelled.read_table_of(tmp_path / "x.jsonl", TableFormat(["s"], "label"))


def an_unknown_format_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("no json\n")
    test_labelled.read_table_of(
        tmp_path / "x.jsonl", TableFormat(["s"], "label", file_format="xml")
    )


def numbers_and_files_without_labels(tmp_path: Path, tokenizer: WordPieceTokenizer) -> None:
    numbers: dict[str, Any] = {
        "name": "n.tsv",
        "label_column": "score",
        "labels": None,
        "numeric_labels": True,
    }
    path = tmp_path / "n.tsv"
    path.write_text("text\tscore\nthe cat\t4.25\nthe dog\t0\n")
    (tmp_path / "test.tsv").write_text("text\nthe cat\n")
    path.write_text("text\tscore\nthe cat\tnan\n")
    test_labelled.load(tmp_path, tokenizer, **numbers)


def ids_that_stand_twice_are_refused_where_they_are_predicted(
    tmp_path: Path, tokenizer: WordPieceTokenizer
) -> None:
    (tmp_path / "train.tsv").write_text(
        "id\ttext\tlabel\na\tthe cat\tyes\na\tthe cat\tyes\nb\tthe dog\tno\n"
    )
    (tmp_path / "x.tsv").write_text("id\ttext\tlabel\na\tthe cat\tyes\nb\tthe dog\tno\n")
    settings: dict[str, Any] = {"id_column": "id", "train_file": "train.tsv"}
    test_labelled.load(tmp_path, tokenizer, **settings, validation_file="train.tsv")


def classes_without_an_example(tmp_path: Path, tokenizer: WordPieceTokenizer) -> None:
    (tmp_path / "x.tsv").write_text("text\tlabel\nthe cat\tyes\n \tyes\n")
    test_labelled.load(tmp_path, tokenizer, labels=None)


def numbers_out_of_range_are_refused_with_their_line(
    tmp_path: Path, tokenizer: WordPieceTokenizer
) -> None:
    (tmp_path / "n.tsv").write_text("text\tscore\nthe cat\t0.1\nthe dog\t0.7\nthe cow\t0.2\n")
    data = test_labelled.module(
        tmp_path, tokenizer, name="n.tsv", label_column="score", labels=None, numeric_labels=True
    )
    data.setup()
    data.refuse_outside(None)
    data.refuse_outside([0.1, 0.7])
    data.refuse_outside([0.1, 0.6])


def labels_from_the_data_bind_the_validation_split(
    make_labelled: Callable[..., LabelledDataModule], tmp_path: Path
) -> None:
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\ngood\t2\n")
    make_labelled(labels=None).setup()


def a_test_file_that_is_not_there(make_labelled: Callable[..., LabelledDataModule]) -> None:
    files = {"test_files": {"Toy": "test.tsv"}, "test_id_column": "index"}
    make_labelled(**files).require_test_files()


def a_torn_row_of_a_test_file(
    make_labelled: Callable[..., LabelledDataModule], tmp_path: Path
) -> None:
    rows = [f"{number}\tgood\n" for number in range(200)]
    (tmp_path / "test.tsv").write_text("".join(["index\tsentence\n", *rows, "torn\n"]))
    data = make_labelled(test_files={"Toy": "test.tsv"}, test_id_column="index")
    data.setup()
    data.load_test()


def a_label_with_a_space(tmp_path: Path) -> None:
    path = test_labels.write(tmp_path, "jsonl", ["yes", "no", "yes ", "YES", "yes "])
    test_labels.read(path, names=["yes", "no"])


def a_listed_class_may_be_empty(tmp_path: Path) -> None:
    path = test_labels.write(tmp_path, "csv", ["", "b"] * 4)
    TableFormat(["text"], "label").read(path, expected=ANY, listed=["a", "b"])


def other_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "train.json"
    path.write_text(content)
    read_squad(path, for_training=True)


def what_is_no_answer(tmp_path: Path, changes: dict[str, Any]) -> None:
    row = {
        "id": "a",
        "context": test_squad.CONTEXT,
        "question": "Who?",
        "answers": {"text": ["cat"], "answer_start": [2]},
    }
    (tmp_path / "x.jsonl").write_text(json.dumps(row | changes) + "\n")
    read_squad(tmp_path / "x.jsonl", for_training=False, with_unanswerable=True)


def a_validation_file_without_answers(tmp_path: Path) -> None:
    qas = [{"id": str(i), "question": "who"} for i in range(3)]
    (tmp_path / "test.json").write_text(
        json.dumps({"data": [{"paragraphs": [{"context": "sat cat", "qas": qas}]}]})
    )
    test_squad.build_module(tmp_path, validation_file="test.json").setup()


def questions_without_answer(tmp_path: Path) -> None:
    content = {
        "data": [
            {
                "paragraphs": [
                    {"context": "sat", "qas": [{"id": "n", "question": "who", "answers": []}]}
                ]
            }
        ]
    }
    (tmp_path / "none.json").write_text(json.dumps(content))
    files = {"train_file": "none.json", "validation_file": "none.json"}
    test_squad.build_module(tmp_path, **files).setup()


def predictions_of_words_alone(tmp_path: Path) -> None:
    test_tags.read(tmp_path, "a\n\nb\n", tags=False)
    list(predicted_lines(tmp_path / "x.txt", test_tags.CONLL, ["O"] * 3))


def a_torn_row_of_tags(make_tags: Callable[..., TagDataModule], tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text("a O\n\n" * 150 + "b\n")
    data = make_tags()
    data.setup()
    data.load_test()


def what_is_no_tag(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "x.conll").write_text(content)
    read_tags(tmp_path / "x.conll", ColumnFormat("columns", 0, -1), expected)


def a_part_of_speech_that_nobody_gave(tmp_path: Path) -> None:
    """conllu writes `_`; of features it is an answer, and of a file that is predicted nobody
    asks.
    """
    path = tmp_path / "x.conllu"
    path.write_text(
        "".join(f"{n}\tw\t_\t{tag}" + "\t_" * 6 + "\n" for n, tag in enumerate(("NN", "_"), 1))
    )
    read_tags(path, ColumnFormat("conllu", 1, 3))


def a_dictionary_of_data_sets() -> None:
    datasets = pytest.importorskip("datasets")
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": ["a"]})})
    read_texts(splits)


def a_missing_file(tmp_path: Path) -> None:
    require_file(tmp_path, "glue/RTE/train.tsv", "RTE.zip of the\n benchmark's page")


def a_row_that_is_cut_at_the_end_of_the_file(tmp_path: Path) -> None:
    """One damaged row of many is forgiven; not where the file ends in the middle of it."""
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\n" + "the film\t1\n" * 500 + "the fi")
    TableFormat(["text"], "label").read(path)


REFUSALS: list[tuple[str, Callable[..., Any], type[Exception], str]] = [
    (
        "a missing file: where",
        a_missing_file,
        ValueError,
        r"benchmark file not found: /\S+/glue/RTE/train\.tsv\n",
    ),
    (
        "a missing file: its layout",
        a_missing_file,
        ValueError,
        r"expected layout: data_dir/glue/RTE/train\.tsv",
    ),
    (
        "a missing file: what to do",
        a_missing_file,
        ValueError,
        r"how to get it: RTE\.zip of the benchmark's page",
    ),
    (
        "no room for text",
        lambda tokenizer: encode_examples(tokenizer, ["a"], ["b"], max_seq_length=4),
        ValueError,
        "max_seq_length=4 leaves no room",
    ),
    (
        "an error reaches the reader after the batches before it",
        an_error_reaches_the_reader_after_the_batches_before_it,
        ValueError,
        "row 2 is bad",
    ),
    (
        "a bad file: is empty",
        lambda tmp_path: test_choices.SWAG.read(test_choices.write(tmp_path / "x.csv", "")),
        ValueError,
        "is empty",
    ),
    (
        "a bad file: has no examples",
        lambda tmp_path: test_choices.SWAG.read(
            test_choices.write(tmp_path / "x.csv", test_choices.HEADER)
        ),
        ValueError,
        "has no examples",
    ),
    (
        "a bad file: no column label can only",
        lambda tmp_path: test_choices.SWAG.read(
            test_choices.write(
                tmp_path / "x.csv",
                test_choices.HEADER.replace(",label", "") + "0,v,1,x,a,b,gold,c,d,e,f\n",
            )
        ),
        ValueError,
        "no column 'label'.*can only be predicted",
    ),
    (
        "a bad file: no column sent1 its columns",
        lambda tmp_path: test_choices.SWAG.read(
            test_choices.write(
                tmp_path / "x.csv",
                test_choices.HEADER.replace("sent1", "context") + test_choices.row(0) + "\n",
            )
        ),
        ValueError,
        "no column 'sent1'; its columns are",
    ),
    (
        "a bad file: x.csv:3: label 4 is not",
        lambda tmp_path: test_choices.SWAG.read(
            test_choices.write(
                tmp_path / "x.csv",
                test_choices.HEADER
                + test_choices.row(0)
                + "\n"
                + test_choices.row(1, label="4")
                + "\n",
            )
        ),
        ValueError,
        r"x.csv:3: label '4' is not one of the known labels \['0', '1', '2', '3'\]",
    ),
    (
        "a bad file: x.csv:2: label entailment",
        lambda tmp_path: test_choices.SWAG.read(
            test_choices.write(
                tmp_path / "x.csv",
                test_choices.HEADER + test_choices.row(0, label="entailment") + "\n",
            )
        ),
        ValueError,
        r"x.csv:2: label 'entailment'",
    ),
    (
        "a bad file: x.csv:2: 13 fields, expected 12",
        lambda tmp_path: test_choices.SWAG.read(
            test_choices.write(
                tmp_path / "x.csv", test_choices.HEADER + test_choices.row(0) + ",more\n"
            )
        ),
        ValueError,
        r"(?s)x.csv:2: 13 fields, expected 12.*1 of 1 rows",
    ),
    (
        "a bad file: not a csv file",
        lambda tmp_path: test_choices.SWAG.read(
            test_choices.write(
                tmp_path / "x.csv", test_choices.HEADER + test_choices.row(0, sent1='"open') + "\n"
            )
        ),
        ValueError,
        "not a CSV file",
    ),
    (
        "folds of one file: held_out_fold= is not one of",
        lambda make_choices: make_choices(folds=3),
        ValueError,
        r"held_out_fold=\w+ is not one of folds=\w+",
    ),
    (
        "folds of one file: held_out_fold= is not one of 2",
        lambda make_choices: make_choices(held_out_fold=0),
        ValueError,
        r"held_out_fold=\w+ is not one of folds=\w+",
    ),
    (
        "folds of one file: held_out_fold= is not one of 3",
        lambda make_choices: make_choices(folds=5, held_out_fold=5),
        ValueError,
        r"held_out_fold=\w+ is not one of folds=\w+",
    ),
    (
        "a torn row of choices",
        a_torn_row_of_choices,
        ValueError,
        "1 damaged rows; predictions must be made for every row",
    ),
    (
        "missing file is said before anything is read",
        lambda make_choices: make_choices(validation_file="nowhere.csv"),
        ValueError,
        r"(?s)nowhere.csv.*how to get it: make it",
    ),
    (
        "clear errors: validation split has 4 instances",
        lambda make_corpus: make_corpus(validation_instances=4).validation_stream(0, 8),
        ValueError,
        "validation split has 4 instances for 8 devices",
    ),
    (
        "a split without documents",
        a_split_without_documents,
        ValueError,
        "The validation split at seq_length 24: there is no document",
    ),
    (
        "a split of one document",
        a_split_of_one_document,
        ValueError,
        "The train split at seq_length 16: the split has a single document",
    ),
    (
        "damaged zstd file",
        damaged_zstd_file,
        ValueError,
        r"x\.zst is damaged or incomplete",
    ),
    (
        "more damage than is rare",
        more_damage_than_is_rare,
        ValueError,
        r"x.tsv:3: short\n  2 of 199 rows do not fit two columns",
    ),
    (
        "a file without rows",
        a_file_without_rows,
        ValueError,
        r"x\.tsv has no examples",
    ),
    (
        "damaged baselines are refused: no list of baselines",
        lambda tmp_path: damaged_baselines_are_refused(tmp_path, "{"),
        ValueError,
        "no list of baselines",
    ),
    (
        "damaged baselines are refused: no list of baselines 2",
        lambda tmp_path: damaged_baselines_are_refused(tmp_path, "[]"),
        ValueError,
        "no list of baselines",
    ),
    (
        "damaged baselines are refused: no list of baselines 3",
        lambda tmp_path: damaged_baselines_are_refused(tmp_path, '{"dev.tsv": {"a bag": 0.5}}'),
        ValueError,
        "no list of baselines",
    ),
    (
        "damaged baselines are refused: no list of baselines 4",
        lambda tmp_path: damaged_baselines_are_refused(
            tmp_path, '{"dev.tsv": {"a bag": {"f1": "high"}}}'
        ),
        ValueError,
        "no list of baselines",
    ),
    (
        "failed build leaves nothing",
        failed_build_leaves_nothing,
        ValueError,
        "bad label",
    ),
    (
        "a source: task snli_95k has no source",
        lambda: sources_that_cannot_be(["task=snli_95k"]),
        ValueError,
        "task 'snli_95k' has no source on the hub; set hub=false",
    ),
    (
        "a source: task codah has no source",
        lambda: sources_that_cannot_be(["task=codah"]),
        ValueError,
        "task 'codah' has no source on the hub",
    ),
    (
        "a source: task.hub.revision=none is no commit of",
        lambda: sources_that_cannot_be(["task=swag"]),
        ValueError,
        r"task.hub.revision=None is no commit of allenai/swag: give one",
    ),
    (
        "a source: task.hub.revision= main is no commit",
        lambda: sources_that_cannot_be(["task=sst2", "task.hub.revision=main"]),
        ValueError,
        r"task.hub.revision='main' is no commit",
    ),
    (
        "a source: task.hub.format= json is unknown known",
        lambda: sources_that_cannot_be(["task=sst2", "task.hub.format=json"]),
        ValueError,
        r"task.hub.format='json' is unknown; known: tsv, csv, squad",
    ),
    (
        "a source: task.hub: branch unknown or missing",
        lambda: sources_that_cannot_be(["task=sst2", "+task.hub.branch=x"]),
        ValueError,
        r"task.hub: branch unknown or missing; it takes splits, columns",
    ),
    (
        "wrong file is refused with its line",
        wrong_file_is_refused_with_its_line,
        ValueError,
        r"train.tsv:3: 1 fields, expected 2(.|\n)*1 of 2 rows",
    ),
    (
        "a header with one name twice is refused",
        a_header_with_one_name_twice_is_refused,
        ValueError,
        r"train.tsv has two columns 'label'; rename one",
    ),
    (
        "unknown label names line and known labels",
        unknown_label_names_line_and_known_labels,
        ValueError,
        r"train.tsv:3: label 'maybe' .*\['0', '1'\]",
    ),
    (
        "missing label column only for prediction",
        missing_label_column_only_for_prediction,
        ValueError,
        r"no column 'label'.*can only be predicted",
    ),
    (
        "missing text column names those found",
        lambda tmp_path: test_labelled.read_table_of(
            test_labelled.write_table(tmp_path, "text\tlabel\na\t1\n"), test_labelled.SINGLE
        ),
        ValueError,
        r"no column 'sentence'; its columns are 'text', 'label'",
    ),
    (
        "json without the text column",
        json_without_the_text_column,
        ValueError,
        r"no column 'text'; its columns are 's', 'label'",
    ),
    (
        "a line that is no json",
        a_line_that_is_no_json,
        ValueError,
        r"x.jsonl:1: no JSON object",
    ),
    (
        "an unknown format of a table",
        an_unknown_format_of_a_table,
        ValueError,
        "file_format='xml' is unknown; known: auto, tsv, csv, jsonl",
    ),
    (
        "empty file: is empty has no examples",
        lambda tmp_path: test_labelled.read_table_of(
            test_labelled.write_table(tmp_path, ""), test_labelled.SINGLE
        ),
        ValueError,
        r"is empty|has no examples",
    ),
    (
        "empty file: is empty has no examples 2",
        lambda tmp_path: test_labelled.read_table_of(
            test_labelled.write_table(tmp_path, "sentence\tlabel\n"), test_labelled.SINGLE
        ),
        ValueError,
        r"is empty|has no examples",
    ),
    (
        "numbers and files without labels",
        numbers_and_files_without_labels,
        ValueError,
        r"n.tsv:2: label 'nan' is not a number",
    ),
    (
        "ids that stand twice are refused where they are predicted",
        ids_that_stand_twice_are_refused_where_they_are_predicted,
        ValueError,
        r"train\.tsv: 1 ids of the column 'id' stand there twice, the first 'a'",
    ),
    (
        "classes without an example",
        classes_without_an_example,
        ValueError,
        r"x\.tsv: all rows have one label, 'yes'",
    ),
    (
        "numbers out of range are refused with their line",
        numbers_out_of_range_are_refused_with_their_line,
        ValueError,
        r"n\.tsv:3: label 0\.7 lies outside of 0\.1 to 0\.6",
    ),
    (
        "missing file is said before anything is read 2",
        lambda make_labelled: make_labelled(validation_file="nowhere.tsv"),
        ValueError,
        r"(?s)nowhere.tsv.*how to get it: make it",
    ),
    (
        "labels from the data bind the validation split",
        labels_from_the_data_bind_the_validation_split,
        ValueError,
        r"dev.tsv:2: label '2' .*\['0', '1'\]",
    ),
    (
        "test files: toy has no test files",
        lambda make_labelled: make_labelled().require_test_files(),
        ValueError,
        "'toy' has no test files",
    ),
    (
        "a test file that is not there",
        a_test_file_that_is_not_there,
        ValueError,
        r"(?s)test.tsv.*how to get it",
    ),
    (
        "a torn row of a test file",
        a_torn_row_of_a_test_file,
        ValueError,
        "1 damaged rows; predictions must be made for every row",
    ),
    (
        "a label named twice is refused",
        lambda make_labelled: make_labelled(labels=[0, 0, 1]),
        ValueError,
        r"task.data.labels names a label twice: \['0', '0', '1'\]",
    ),
    (
        "windows that cannot be: long_documents= split is unknown known",
        lambda make_labelled: make_labelled(
            **({"long_documents": "windows"} | {"long_documents": "split"})
        ).setup(),
        ValueError,
        "long_documents='split' is unknown; known: truncate, windows",
    ),
    (
        "windows that cannot be: window_pooling= sum is unknown known",
        lambda make_labelled: make_labelled(
            **({"long_documents": "windows"} | {"window_pooling": "sum"})
        ).setup(),
        ValueError,
        "window_pooling='sum' is unknown; known: mean, max",
    ),
    (
        "windows that cannot be: long_documents=windows is for single texts",
        lambda make_labelled: make_labelled(
            **({"long_documents": "windows"} | {"text_columns": ["sentence", "label"]})
        ).setup(),
        ValueError,
        "long_documents=windows is for single texts",
    ),
    (
        "windows that cannot be: window_stride=15 tokens: sequences of 16",
        lambda make_labelled: make_labelled(
            **({"long_documents": "windows"} | {"window_stride": 15})
        ).setup(),
        ValueError,
        r"window_stride=15 tokens: sequences of 16 hold 14 .* give 1 to 14",
    ),
    (
        "windows that cannot be: window_stride=0 tokens",
        lambda make_labelled: make_labelled(
            **({"long_documents": "windows"} | {"window_stride": 0})
        ).setup(),
        ValueError,
        "window_stride=0 tokens",
    ),
    (
        "a list is no label: 1: label is a list",
        lambda tmp_path: test_labels.read(test_labels.write(tmp_path, "jsonl", [["a"], ["a"]])),
        ValueError,
        r":1: label is a list \(\['a'\]\), not one text or number \(2 rows, lines 1, 2\)",
    ),
    (
        "a list is no label: 1: label is a list 2",
        lambda tmp_path: test_labels.read(test_labels.write(tmp_path, "parquet", [["a"], ["a"]])),
        ValueError,
        r":1: label is a list \(\['a'\]\), not one text or number \(2 rows, lines 1, 2\)",
    ),
    (
        "a label with a space",
        a_label_with_a_space,
        ValueError,
        r":3: label 'yes ' is not .* from 'yes' by spaces alone \(2 rows, lines 3, 5\)",
    ),
    (
        "a known label that is near is named: label yes differs from yes",
        lambda tmp_path: test_labels.read(
            test_labels.write(tmp_path, "jsonl", ["yes", "YES"]), names=["yes", "no"]
        ),
        ValueError,
        r"label 'YES' .* differs from 'yes' by case alone",
    ),
    (
        "what is no text is a damaged row",
        lambda tmp_path: test_labels.read(
            test_labels.write(tmp_path, "jsonl", ["a", "b"] * 5, {1: ["x"]})
        ),
        ValueError,
        r"x\.jsonl:2: text is a list \(\['x'\]\), and a text was expected",
    ),
    (
        "a listed class may be empty",
        a_listed_class_may_be_empty,
        ValueError,
        "label is empty",
    ),
    (
        "names of a class label column",
        lambda tmp_path: test_labels.read(test_labels.class_label_file(tmp_path, [0, 1, -1])),
        ValueError,
        "label is empty",
    ),
    (
        "duplicate id: train.json: the question id a",
        lambda tmp_path: read_squad(
            test_squad.write_articles(
                tmp_path, [test_squad.question("a"), test_squad.question("a")]
            ),
            for_training=False,
        ),
        ValueError,
        r"train.json: the question id 'a' occurs twice",
    ),
    (
        "duplicate id: train.json: the question id a 2",
        lambda tmp_path: read_squad(
            test_squad.write_articles(
                tmp_path, [test_squad.question("a"), test_squad.question("a", "ran", 17)]
            ),
            for_training=True,
        ),
        ValueError,
        r"train.json: the question id 'a' occurs twice",
    ),
    (
        "another file: is not a json file",
        lambda tmp_path: other_files_are_refused(tmp_path, "{"),
        ValueError,
        "is not a JSON file",
    ),
    (
        "another file: a list of objects",
        lambda tmp_path: other_files_are_refused(tmp_path, "[]"),
        ValueError,
        "a list of objects was expected",
    ),
    (
        "another file: expected a list paragraphs",
        lambda tmp_path: other_files_are_refused(tmp_path, '{"data": [{"title": "x"}]}'),
        ValueError,
        "expected a list 'paragraphs'",
    ),
    (
        "another file: expected a text context",
        lambda tmp_path: other_files_are_refused(
            tmp_path, '{"data": [{"paragraphs": [{"qas": []}]}]}'
        ),
        ValueError,
        "expected a text 'context'",
    ),
    (
        "another file: expected a text id",
        lambda tmp_path: other_files_are_refused(
            tmp_path, '{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": 7}]}]}]}'
        ),
        ValueError,
        "expected a text 'id'",
    ),
    (
        "another file: no usable question",
        lambda tmp_path: other_files_are_refused(tmp_path, '{"data": []}'),
        ValueError,
        "no usable question",
    ),
    (
        "offset that is no number",
        lambda tmp_path: read_squad(
            test_squad.write_articles(tmp_path, [test_squad.question("a", start="2")]),
            for_training=True,
        ),
        ValueError,
        r"question 'a': answer_start is '2'",
    ),
    (
        "what is no answer: question a has no answers",
        lambda tmp_path: what_is_no_answer(tmp_path, {"answers": None}),
        ValueError,
        "question 'a' has no 'answers': a question without an answer has an empty list",
    ),
    (
        "what is no answer: question a : answers are",
        lambda tmp_path: what_is_no_answer(tmp_path, {"answers": "cat"}),
        ValueError,
        "question 'a': answers are 'cat', expected a list",
    ),
    (
        "what is no answer: answers need two equally long",
        lambda tmp_path: what_is_no_answer(
            tmp_path, {"answers": {"text": ["cat"], "answer_start": []}}
        ),
        ValueError,
        "answers need two equally long lists",
    ),
    (
        "what is no answer: question a has answers and",
        lambda tmp_path: what_is_no_answer(tmp_path, {"is_impossible": True}),
        ValueError,
        "question 'a' has answers and is_impossible=true",
    ),
    (
        "what is no answer: answer_start is true, expected a",
        lambda tmp_path: what_is_no_answer(
            tmp_path, {"answers": {"text": ["cat"], "answer_start": [True]}}
        ),
        ValueError,
        "answer_start is True, expected a number",
    ),
    (
        "what is no answer: expected a text context",
        lambda tmp_path: what_is_no_answer(tmp_path, {"context": None}),
        ValueError,
        "expected a text 'context'",
    ),
    (
        "rows too short for any question",
        lambda: WindowSettings.fitted(7, 128, 64),
        ValueError,
        r"sequences of 7 tokens are too short.*trained on longer sequences",
    ),
    (
        "unanswerable questions are another data set",
        lambda tmp_path, tokenizer: test_squad.load_split(
            test_squad.write_split(tmp_path, 5, 4), tokenizer
        ),
        ValueError,
        r"4 questions have no answer .*needs SQuAD 1\.1",
    ),
    (
        "a validation file without answers",
        a_validation_file_without_answers,
        ValueError,
        "question '0' has no 'answers': a question without an answer has an empty",
    ),
    (
        "encoder too short for any question",
        lambda tmp_path: test_squad.build_module(tmp_path, max_positions=6),
        ValueError,
        "sequences of 6 tokens are too short",
    ),
    (
        "questions without answer",
        questions_without_answer,
        ValueError,
        r"no usable question",
    ),
    (
        "a bad file: has no examples 2",
        lambda tmp_path: test_tags.read(tmp_path, "", test_tags.CONLL),
        ValueError,
        "has no examples",
    ),
    (
        "a bad file: x.txt:1: 1 columns can only",
        lambda tmp_path: test_tags.read(tmp_path, "a\nb\n", test_tags.CONLL),
        ValueError,
        r"x.txt:1: 1 columns.*can only be predicted",
    ),
    (
        "a bad file: x.txt:1: 2 columns, but the",
        lambda tmp_path: test_tags.read(tmp_path, "a O\n", ColumnFormat("columns", 0, 3)),
        ValueError,
        r"x.txt:1: 2 columns, but the tag.*tag_column=3",
    ),
    (
        "a bad file: x.txt:2: 3 columns, expected 2",
        lambda tmp_path: test_tags.read(tmp_path, "a O\nb X O\n", test_tags.CONLL),
        ValueError,
        r"(?s)x.txt:2: 3 columns, expected 2.*1 of 1 rows",
    ),
    (
        "a bad file: x.txt:1: 2 columns, expected 10",
        lambda tmp_path: test_tags.read(tmp_path, "a O\n", test_tags.UPOS),
        ValueError,
        r"x.txt:1: 2 columns, expected 10",
    ),
    (
        "unknown format",
        lambda: ColumnFormat("xml", 0, 1),
        ValueError,
        "file_format='xml' is unknown; known: columns, conllu",
    ),
    (
        "predictions of words alone",
        predictions_of_words_alone,
        AssertionError,
        "one tag a word",
    ),
    (
        "a torn row of tags",
        a_torn_row_of_tags,
        ValueError,
        "1 damaged rows; predictions must be made for every row",
    ),
    (
        "refusals: dev.txt:1: tag b-org does not",
        lambda make_tags: make_tags(validation="a I-ORG\n").setup(),
        ValueError,
        r"dev.txt:1: tag 'B-ORG' does not occur in the training file; its tags are",
    ),
    (
        "refusals: train.txt: noun is not an",
        lambda make_tags: make_tags("a NOUN\n").setup(),
        ValueError,
        r"train.txt: 'NOUN' is not an entity tag.*tag_column=-1 the right one",
    ),
    (
        "refusals: nowhere how to get it",
        lambda make_tags: make_tags(train_file="nowhere"),
        ValueError,
        r"(?s)nowhere.*how to get it: make_tags it",
    ),
    (
        "what is no tag: x .conll:2: tag is empty",
        lambda tmp_path: what_is_no_tag(tmp_path, "a\tNN\nb\t\nc\tVB\n", CLASSES),
        ValueError,
        r"x\.conll:2: tag is empty: give each row one tag",
    ),
    (
        "what is no tag: b-per line 1 and b-per",
        lambda tmp_path: what_is_no_tag(tmp_path, "a\tB-PER\nb\tB-PER \n", ANY),
        ValueError,
        r"'B-PER' \(line 1\) and 'B-PER ' \(line 2\) differ by spaces alone",
    ),
    (
        "what is no tag: 30 different ones, is task",
        lambda tmp_path: what_is_no_tag(tmp_path, "\n".join(f"w x{n}" for n in range(30)), CLASSES),
        ValueError,
        r"30 different ones, .* is task\.data\.tag_column the right",
    ),
    (
        "a part of speech that nobody gave",
        a_part_of_speech_that_nobody_gave,
        ValueError,
        r"x\.conllu:2: tag is empty",
    ),
    (
        "no text: text 2 is none: a",
        lambda: read_texts(["a", None], "classify"),
        ValueError,
        "text 2 is None: a string was expected",
    ),
    (
        "no text: text 2 is 3: a",
        lambda: read_texts(["a", 3], "classify"),
        ValueError,
        "text 2 is 3: a string was expected",
    ),
    (
        "no text: text 2 is nan: a",
        lambda: read_texts(pandas.Series(["a", float("nan")]), "classify"),
        ValueError,
        "text 2 is nan: a string was expected",
    ),
    (
        "no text: text 1 is bytes: decode",
        lambda: read_texts([b"a"], "classify"),
        ValueError,
        "text 1 is bytes: .*decode",
    ),
    (
        "no text: bytes were given",
        lambda: read_texts(b"a", "classify"),
        ValueError,
        "bytes were given",
    ),
    (
        "no text: none was given: a text",
        lambda: read_texts(None, "classify"),
        ValueError,
        "None was given: a text, a pair",
    ),
    (
        "no text: 3 was given",
        lambda: read_texts(3, "classify"),
        ValueError,
        "3 was given",
    ),
    (
        "no text: was given: a text",
        lambda: read_texts(np.array("a"), "classify"),
        ValueError,
        "was given: a text",
    ),
    (
        "no text: path a.txt was given",
        lambda: read_texts(Path("a.txt"), "classify"),
        ValueError,
        r"Path\('a.txt'\) was given",
    ),
    (
        "no text: a set has no order",
        lambda: read_texts({"a", "b"}, "classify"),
        ValueError,
        "a set has no order",
    ),
    (
        "no text: the list is empty",
        lambda: read_texts([], "classify"),
        ValueError,
        "the list is empty",
    ),
    (
        "no text: the table has no row",
        lambda: read_texts(pandas.DataFrame({"text": []}), "classify"),
        ValueError,
        "the table has no row",
    ),
    (
        "no text: text 1 is a sequence",
        lambda: read_texts([("a", "b", "c")], "classify"),
        ValueError,
        "text 1 is a sequence of 3: a pair",
    ),
    (
        "no text: text 1, part 2 is",
        lambda: read_texts([("a", None)], "classify"),
        ValueError,
        "text 1, part 2 is None",
    ),
    (
        "no text: text 1, part 2 is 2",
        lambda: read_texts([["Ann", 3]], "tag"),
        ValueError,
        "text 1, part 2 is 3",
    ),
    (
        "no text: some texts are pairs and",
        lambda: read_texts(["a", ("a", "b")], "classify"),
        ValueError,
        "some texts are pairs and some are not",
    ),
    (
        "no text: do=score takes single texts",
        lambda: read_texts([("a", "b")], "score"),
        ValueError,
        "do=score takes single texts",
    ),
    (
        "no text: text_pair , which nothing reads",
        lambda: read_texts({"text": "a", "text_pair": "b"}, "classify"),
        ValueError,
        "'text_pair', which nothing reads; did you mean 'pair'?",
    ),
    (
        "no text: txt , which nothing reads",
        lambda: read_texts({"txt": "a"}, "classify"),
        ValueError,
        "'txt', which nothing reads; did you mean 'text'?",
    ),
    (
        "no text: question , which do=classify does",
        lambda: read_texts({"text": "a", "question": "b"}, "classify"),
        ValueError,
        "'question', which do=classify does not read",
    ),
    (
        "no text: different lengths",
        lambda: read_texts({"text": ["a"], "pair": ["b", "c"]}, "classify"),
        ValueError,
        "different lengths",
    ),
    (
        "no text: text 2 has no text",
        lambda: read_texts([{"text": "a"}, {"text": None}], "classify"),
        ValueError,
        "text 2 has no 'text'",
    ),
    (
        "no text: id , review , stars",
        lambda: read_texts(test_texts.FRAME, "classify"),
        ValueError,
        r"'id', 'review', 'stars', and nobody can tell .* columns=\['COLUMN'\]",
    ),
    (
        "no text: the passages are 3",
        lambda: read_texts([("who", 3)], "answer"),
        ValueError,
        "the passages are 3",
    ),
    (
        "no text: passage 2 is none",
        lambda: read_texts([("who", ["a", None])], "answer"),
        ValueError,
        "passage 2 is None",
    ),
    (
        "no text: question 1 is who alone",
        lambda: read_texts(["who"], "answer"),
        ValueError,
        "question 1 is 'who' alone",
    ),
    (
        "columns belong to tables: columns= a names columns of",
        lambda: read_texts(["a"], columns="a"),
        ValueError,
        "columns='a' names columns of a table, and no table was given",
    ),
    (
        "columns belong to tables: no column reviw did you",
        lambda: read_texts(test_texts.FRAME, columns="reviw"),
        ValueError,
        r"no column 'reviw'; its columns are .* \(did you mean 'review'",
    ),
    (
        "columns belong to tables: two columns a",
        lambda: read_texts(pandas.DataFrame([["x", "y"]], columns=["a", "a"]), columns="a"),
        ValueError,
        "two columns 'a'",
    ),
    (
        "a dictionary of data sets",
        a_dictionary_of_data_sets,
        ValueError,
        "a dictionary of data sets was given: choose one of train",
    ),
    (
        "keys of a request are known",
        lambda: refuse_unknown_keys({"text": "a", "sentence2": "b"}, "classify", "record 1"),
        ValueError,
        "record 1 has 'sentence2', which nothing reads; did you mean 'pair'",
    ),
    (
        "a stride that leaves words out",
        lambda tokenizer: encode_windows(tokenizer, ["the cat"], max_seq_length=5, stride=4),
        ValueError,
        "window_stride=4 tokens: sequences of 5 hold 3 beside the special tokens",
    ),
    (
        "a row that is cut at the end of the file is no dirt",
        a_row_that_is_cut_at_the_end_of_the_file,
        ValueError,
        r"train\.tsv:502: 1 fields, expected 2: .* it was cut; fetch it again",
    ),
    (
        # In what a program writes down only the names that are documented are meant.
        "a name of the benchmarks in a program's record",
        lambda: read_texts({"sentence1": "one", "sentence2": "two"}, "classify"),
        ValueError,
        "'sentence1', which nothing reads",
    ),
    (
        "columns: one column beside the label",
        lambda: choose_columns(["a great film", "label"], "classify"),
        ValueError,
        "nobody can tell",
    ),
    (
        "columns: no header: it is a text",
        lambda: choose_columns(["a great film"], "classify"),
        ValueError,
        "nobody can tell",
    ),
    (
        "columns: a name close to another",
        lambda: choose_columns(["text", "sentence2"], "classify"),
        ValueError,
        "did you mean 'pair'",
    ),
    (
        "columns: one text of two",
        lambda: choose_columns(["text", "label"], "next"),
        ValueError,
        "two columns are read",
    ),
    (
        "columns: a pair where texts are scored",
        lambda: choose_columns(["text", "pair"], "score"),
        ValueError,
        "'pair', which do=score does not read",
    ),
    (
        "columns: a column of another act",
        lambda: choose_columns(["text", "word"], "classify"),
        ValueError,
        "'word', which do=classify does not read",
    ),
    (
        "labels: NaN in jsonl",
        lambda tmp_path: test_labels.read(
            test_labels.write(tmp_path, "jsonl", [1.0, float("nan"), 0.0] * 5)
        ),
        ValueError,
        "label is empty",
    ),
    (
        "labels: NaN in parquet",
        lambda tmp_path: test_labels.read(
            test_labels.write(tmp_path, "parquet", [1.0, float("nan"), 0.0] * 5)
        ),
        ValueError,
        "label is empty",
    ),
    (
        "labels: NaN in csv",
        lambda tmp_path: test_labels.read(
            test_labels.write(tmp_path, "csv", [1.0, float("nan"), 0.0] * 5)
        ),
        ValueError,
        "label is empty",
    ),
    (
        "labels: nan as a text",
        lambda tmp_path: test_labels.read(test_labels.write(tmp_path, "jsonl", ["nan", "a", "b"])),
        ValueError,
        "label 'nan' is how a missing value is written",
    ),
    (
        "labels: a list that a csv has as text",
        lambda tmp_path: test_labels.read(
            test_labels.write(tmp_path, "csv", ["a", "b", "['a', 'b']"] * 3)
        ),
        ValueError,
        r"label is a list or an object \(\['a', 'b'\]\) \(3 rows, lines",
    ),
    (
        "labels: a space at the end",
        lambda tmp_path: test_labels.read(
            test_labels.write(tmp_path, "jsonl", ["yes", "yes ", "no"])
        ),
        ValueError,
        r"'yes' \(line 1\) and 'yes ' \(line 2\) differ by spaces alone",
    ),
    (
        "labels: two spaces",
        lambda tmp_path: test_labels.read(
            test_labels.write(tmp_path, "jsonl", ["new york", "new  york", "no"])
        ),
        ValueError,
        "differ by spaces alone",
    ),
    (
        "labels: two spellings in Unicode",
        lambda tmp_path: test_labels.read(
            test_labels.write(tmp_path, "jsonl", ["caf\u00e9", "cafe\u0301", "no"])
        ),
        ValueError,
        r"differ by how Unicode writes accents \(NFC and NFD\) alone",
    ),
    (
        "labels: two spellings of a number",
        lambda tmp_path: test_labels.read(test_labels.write(tmp_path, "jsonl", [1, 1.0, 0])),
        ValueError,
        "'1' .* and '1.0' .* are the same number",
    ),
    (
        "labels: fractions",
        lambda tmp_path: test_labels.read(test_labels.write(tmp_path, "jsonl", [0.5, 1.5, 0.5])),
        ValueError,
        r"'0\.5' \(2 rows, lines 1, 3\) is a number with a fraction: task.data.numeric_labels=true",
    ),
    (
        "labels: days",
        lambda tmp_path: test_labels.read(
            test_labels.write(tmp_path, "jsonl", [f"2024-01-{day:02d}" for day in range(1, 31)])
        ),
        ValueError,
        "30 different ones, such as '2024-01-01', in 30 rows: is task",
    ),
    (
        "labels: 1_0 is no number",
        lambda tmp_path: test_labels.read(
            test_labels.write(tmp_path, "tsv", ["1", "1_0", " -.5e1 "]), expected=NUMBERS
        ),
        ValueError,
        "is not a number",
    ),
    (
        "labels: infinity is no number",
        lambda tmp_path: test_labels.read(
            test_labels.write(tmp_path, "tsv", ["1", "infinity", " -.5e1 "]), expected=NUMBERS
        ),
        ValueError,
        "is not a number",
    ),
    (
        "labels: 0x1 is no number",
        lambda tmp_path: test_labels.read(
            test_labels.write(tmp_path, "tsv", ["1", "0x1", " -.5e1 "]), expected=NUMBERS
        ),
        ValueError,
        "is not a number",
    ),
    (
        "labels: 1e999 is no number",
        lambda tmp_path: test_labels.read(
            test_labels.write(tmp_path, "tsv", ["1", "1e999", " -.5e1 "]), expected=NUMBERS
        ),
        ValueError,
        "is not a number",
    ),
    (
        "labels: a wide 1 is no number",
        lambda tmp_path: test_labels.read(
            test_labels.write(tmp_path, "tsv", ["1", "１", " -.5e1 "]), expected=NUMBERS
        ),
        ValueError,
        "is not a number",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "sentence"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_refusal(
    request: pytest.FixtureRequest,
    call: Callable[..., Any],
    error: type[Exception],
    sentence: str,
) -> None:
    with pytest.raises(error, match=sentence):
        call_with_fixtures(call, request)
