"""What Python is given is read as what it is, or named; never as something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from tests.screens import shows

from clozelab.datamodules.columns import choose_columns, refuse_unknown_keys
from clozelab.datamodules.texts import Unreadable, read_texts, with_columns

FRAME = pandas.DataFrame(
    {"id": [7, 8, 9], "review": ["a", None, "b"], "stars": [1.0, float("nan"), 3.0]}, [5, 6, 7]
)


@pytest.mark.parametrize(
    ("given", "act", "items"),
    [
        ("one", "classify", ["one"]),
        (("one", "two"), "classify", [("one", "two")]),
        ({"text": "one"}, "classify", ["one"]),
        ({"text": "one", "pair": "two"}, "embed", [("one", "two")]),
        ({"words": ["Ann", "ran"]}, "tag", [["Ann", "ran"]]),
        (("Ann", "ran"), "tag", [["Ann", "ran"]]),
        ({"question": "who", "passages": ["a", "b"]}, "answer", [("who", ["a", "b"])]),
    ],
)
def test_one_text(given: Any, act: str, items: Any) -> None:
    read = read_texts(given, act)
    assert (read.items, read.is_single, read.table) == (items, True, None)


@pytest.mark.parametrize(
    ("given", "act", "items"),
    [
        (["one", "two"], "classify", ["one", "two"]),
        ((text for text in ("one", "two")), "classify", ["one", "two"]),
        (pandas.Series(["one", "two"]), "classify", ["one", "two"]),
        (np.array(["one", "two"]), "classify", ["one", "two"]),
        ([["one", "two"]], "classify", [("one", "two")]),
        (
            np.array([["one", "two"], ["three", "four"]]),
            "classify",
            [("one", "two"), ("three", "four")],
        ),
        ([["one", "two"]], "tag", [["one", "two"]]),
        ({"text": ["one", "two"]}, "classify", ["one", "two"]),
        ({"text": ["one"], "pair": ["two"]}, "classify", [("one", "two")]),
        ({"words": [["one", "two"]]}, "tag", [["one", "two"]]),
        ([{"text": "one"}, {"text": "two"}], "classify", ["one", "two"]),
        (
            [("who", "he"), ("what", ["this", "that"])],
            "answer",
            [("who", ["he"]), ("what", ["this", "that"])],
        ),
    ],
)
def test_many_texts(given: Any, act: str, items: list[Any]) -> None:
    read = read_texts(given, act)
    assert (read.items, read.is_single) == (items, False)
    assert all(type(item) is not np.str_ for item in read.items)


def test_a_column_of_a_table() -> None:
    read = read_texts(FRAME, columns="review")
    assert read.items[0] == "a" and read.items[2] == "b" and read.table is FRAME
    assert isinstance(read.items[1], Unreadable)
    shows(read.items[1].reason, "has no 'review': the cell is empty")
    numbers = read_texts(FRAME, columns="stars").items
    shows(numbers[0].reason, "has 1.0 as 'stars': a string was expected")
    pairs = pandas.DataFrame({"premise": ["a"], "hypothesis": ["b"], "label": [0]})
    assert read_texts(pairs).items == [("a", "b")]
    assert read_texts(pairs, columns=["hypothesis", "premise"]).items == [("b", "a")]
    asked = pandas.DataFrame({"question": ["who"], "context": ["he"]})
    assert read_texts(asked, "answer").items == [("who", ["he"])]


def test_a_table_comes_back_with_its_own_columns_unchanged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answered = with_columns(FRAME, {"prediction": ["x", None, "y"]})
    pandas.testing.assert_frame_equal(answered[FRAME.columns], FRAME)
    assert answered.prediction[5] == "x" and "prediction" not in FRAME.columns and not caplog.text
    assert with_columns(answered, {"prediction": ["z"] * 3}).prediction.tolist() == ["z"] * 3
    shows(caplog.text, "the table's column prediction is replaced by the answers'")
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "n": [1, 2]})
    assert read_texts(data).items == ["a", "b"]
    assert with_columns(data, {"error": [None, "is empty"]}).to_dict()["error"] == [
        None,
        "is empty",
    ]
    assert read_texts(data.data.table).items == ["a", "b"], "a table of Arrow"


@pytest.mark.parametrize("library", ["pyarrow", "polars"])
def test_whole_numbers_beside_an_empty_cell_keep_their_digits(library: str) -> None:
    numbers = [1234567890123456789, None]
    table = pytest.importorskip("pyarrow").table({"id": numbers, "text": ["a", "b"]})
    if library == "polars":
        table = pytest.importorskip("polars").from_arrow(table)
    read = read_texts(table)
    assert read.items == ["a", "b"]
    assert list(with_columns(read.table, {"error": [None, None]}).id) == numbers


@pytest.mark.parametrize(
    ("columns", "act", "roles"),
    [
        (["id", "text", "label"], "classify", {"text": "text"}),
        (["text", "pair"], "classify", {"text": "text", "pair": "pair"}),
        (["idx", "Sentence", "label"], "classify", {"text": "Sentence"}),
        (
            ["question1", "question2", "label"],
            "classify",
            {"text": "question1", "pair": "question2"},
        ),
        (["review"], "classify", {"text": "review"}),
        (
            ["id", "question", "context", "answers"],
            "answer",
            {"question": "question", "text": "context"},
        ),
        (["question", "text"], "answer", {"text": "text", "question": "question"}),
        (["id", "words"], "tag", {"words": "words"}),
    ],
)
def test_columns_are_found_by_name(columns: list[str], act: str, roles: dict[str, str]) -> None:
    assert choose_columns(columns, act) == roles


@pytest.mark.parametrize("names", [["text", "text"], ["text", "pair", "pair"]])
def test_two_columns_of_one_name_are_refused_though_nobody_named_them(names: list[str]) -> None:
    frame = pandas.DataFrame([["x", "y", "z"][: len(names)]], columns=names)
    with pytest.raises(ValueError, match=f"the table has two columns '{names[-1]}'"):
        read_texts(frame)
    other = pandas.DataFrame([["x", 1, 2]], columns=["text", "n", "n"])
    assert read_texts(other).items == ["x"]


# What is refused: what is given, and a part of the sentence

NO_TEXTS: list[tuple[Any, str]] = [
    (["a", None], "text 2 is None: a string was expected"),
    (["a", 3], "text 2 is 3: a string was expected"),
    (pandas.Series(["a", float("nan")]), "text 2 is nan: a string was expected"),
    ([b"a"], "text 1 is bytes: .*decode"),
    (b"a", "bytes were given"),
    (None, "None was given: a text, a pair"),
    (3, "3 was given"),
    (np.array("a"), "was given: a text"),
    (Path("a.txt"), r"Path\('a.txt'\) was given"),
    ({"a", "b"}, "a set has no order"),
    ([], "the list is empty"),
    (pandas.DataFrame({"text": []}), "the table has no row"),
    ([("a", "b", "c")], "text 1 is a sequence of 3: a pair"),
    ([("a", None)], "text 1, part 2 is None"),
    (["a", ("a", "b")], "some texts are pairs and some are not"),
    ({"text": "a", "text_pair": "b"}, "'text_pair', which nothing reads; did you mean 'pair'?"),
    ({"txt": "a"}, "'txt', which nothing reads; did you mean 'text'?"),
    ({"text": "a", "question": "b"}, "'question', which do=classify does not read"),
    ({"text": ["a"], "pair": ["b", "c"]}, "different lengths"),
    ([{"text": "a"}, {"text": None}], "text 2 has no 'text'"),
    (FRAME, r"'id', 'review', 'stars', and nobody can tell .* columns=\['COLUMN'\]"),
    # In what a program writes down only the names that are documented are meant.
    ({"sentence1": "one", "sentence2": "two"}, "'sentence1', which nothing reads"),
]


@pytest.mark.parametrize(("given", "sentence"), NO_TEXTS)
def test_no_texts(given: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_texts(given, "classify")


@pytest.mark.parametrize(
    ("given", "act", "sentence"),
    [
        ([["Ann", 3]], "tag", "text 1, part 2 is 3"),
        ([("a", "b")], "score", "do=score takes single texts"),
        ([("who", 3)], "answer", "the passages are 3"),
        ([("who", ["a", None])], "answer", "passage 2 is None"),
        (["who"], "answer", "question 1 is 'who' alone"),
    ],
)
def test_no_texts_for_an_act(given: Any, act: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_texts(given, act)


@pytest.mark.parametrize(
    ("given", "columns", "sentence"),
    [
        (["a"], "a", "columns='a' names columns of a table, and no table was given"),
        (FRAME, "reviw", r"no column 'reviw'; its columns are .* \(did you mean 'review'"),
        (pandas.DataFrame([["x", "y"]], columns=["a", "a"]), "a", "two columns 'a'"),
    ],
)
def test_columns_that_are_not_there(given: Any, columns: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_texts(given, columns=columns)


def test_a_dictionary_of_data_sets() -> None:
    datasets = pytest.importorskip("datasets")
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": ["a"]})})
    sentence = "a dictionary of data sets was given: choose one of train"
    with pytest.raises(ValueError, match=sentence):
        read_texts(splits)


def test_an_unknown_key_of_a_request() -> None:
    refuse_unknown_keys({"text": "a", "pair": "b"}, "classify", "record 1")
    sentence = "record 1 has 'sentence2', which nothing reads; did you mean 'pair'"
    with pytest.raises(ValueError, match=sentence):
        refuse_unknown_keys({"text": "a", "sentence2": "b"}, "classify", "record 1")


@pytest.mark.parametrize(
    ("columns", "act", "sentence"),
    [
        (["a great film", "label"], "classify", "nobody can tell"),  # it may be a text
        (["a great film"], "classify", "nobody can tell"),
        (["text", "sentence2"], "classify", "did you mean 'pair'"),
        (["text", "label"], "next", "two columns are read"),
        (["text", "pair"], "score", "'pair', which do=score does not read"),
        (["text", "word"], "classify", "'word', which do=classify does not read"),
    ],
)
def test_columns_that_are_not_chosen(columns: list[str], act: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        choose_columns(columns, act)
