"""What this room warns of and what it marks as unanswered, and the sentence that says so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
from tests.calling import call_with_fixtures
from tests.modules import test_encoder_folder, test_predictor, test_results

from clozelab.modules.finetuning import write_results
from clozelab.modules.model import open_tokenizer

model = test_predictor.model
lm = test_predictor.lm


def a_collapsed_run(tmp_path: Path) -> None:
    module = test_results.module_with([test_results.ROW], is_collapsed=True)
    write_results(tmp_path, module, test_results.TASK)


def odd_texts(model: Any) -> Any:
    """Its texts are one to be read, an empty, an unknown and a too long one, and one to be read."""
    return model("classification", labels=("no", "yes"))[0].classify(test_predictor.ODD)


def an_empty_second_text(model: Any) -> Any:
    classifier, _ = model("classification", labels=("no", "yes"))
    return classifier.classify([("cat", "dog"), ("cat", "")])[1]


def questions_without_an_answer(model: Any) -> Any:
    questions = [("who", "ann ran"), ("", "ann ran"), ("who", ["", " "])]
    return model("spans", labels=())[0].answer_all(questions)


def a_cell_without_text(model: Any) -> Any:
    frame = pandas.DataFrame({"n": [1, 2, 3], "review": ["the cat", None, "dog"]}, index=[7, 8, 9])
    classifier, _ = model("classification", labels=("no", "yes"))
    return classifier.classify(frame, columns="review").error[8]


WARNINGS: list[tuple[str, Callable[..., Any], str]] = [
    (
        "padded embeddings",
        lambda tmp_path: open_tokenizer(test_encoder_folder.write(tmp_path, 64)),
        "33 embeddings behind the vocabulary of 31 are padding",
    ),
    ("a collapsed run", a_collapsed_run, "collapsed run"),
    (
        "texts that are not answered",
        odd_texts,
        "3 of 5 texts were not answered: text 2 is empty",
    ),
    (
        "a question that is cut",
        lambda model: model("spans", labels=())[0].answer("who " * 40, "the cat sat"),
        "questions of more than 29 tokens are cut",
    ),
]


@pytest.mark.parametrize(
    ("call", "sentence"), [row[1:] for row in WARNINGS], ids=[row[0] for row in WARNINGS]
)
def test_warning(
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    call: Callable[..., Any],
    sentence: str,
) -> None:
    with caplog.at_level(logging.INFO):
        call_with_fixtures(call, request)
    assert sentence in caplog.text


MARKS: list[tuple[str, Callable[..., Any], str]] = [
    ("an empty text", lambda model: odd_texts(model)[1].error, "is empty"),
    ("an unknown text", lambda model: odd_texts(model)[2].error, "no token but [UNK]"),
    ("a text too long", lambda model: odd_texts(model)[3].error, "has 82 tokens"),
    (
        "an empty second text",
        lambda model: an_empty_second_text(model).error,
        "its second text is empty",
    ),
    (
        "a text without a mask",
        lambda lm: lm.fill_mask(["a [MASK]", "cat"])[1].error,
        "has no [MASK]",
    ),
    (
        "masks in a text too long",
        lambda lm: lm.fill_mask(["a [MASK]", "[MASK] cat " * 40])[1].error,
        "has 82 tokens",
    ),
    (
        "an empty question",
        lambda model: questions_without_an_answer(model)[1].error,
        "is empty",
    ),
    (
        "no passage",
        lambda model: questions_without_an_answer(model)[2].error,
        "no passage with text",
    ),
    ("an empty cell", a_cell_without_text, "has no 'review': the cell is empty"),
]


@pytest.mark.parametrize(
    ("call", "sentence"), [row[1:] for row in MARKS], ids=[row[0] for row in MARKS]
)
def test_mark(request: pytest.FixtureRequest, call: Callable[..., Any], sentence: str) -> None:
    assert sentence in call_with_fixtures(call, request)
