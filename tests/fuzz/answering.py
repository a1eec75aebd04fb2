"""Tiny models that predict, and what transformers answers in their place, a text at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import torch
from tests.fuzz.lab import check, close, equal
from tests.fuzz.labels import twins
from tests.fuzz.making import CASED, bert, classifier, encoded, load, theirs, wordpiece

from clozelab.stages import predict

Text = str | tuple[str, str]
TEXTS: list[Text] = [
    f"the {word} film ran {number}"
    for number, word in enumerate(("red", "slow", "blue", "good", "bad"))
]


def with_odd(odd: Any) -> list[Any]:
    """The texts with an odd one in the third place."""
    return [*TEXTS[:2], odd, *TEXTS[2:]]


# The models, and the answers of transformers


@cache
def model() -> Path:
    return classifier(twins() / "classifier")


@cache
def predictor() -> Any:
    return load(model())


@cache
def tagger() -> Path:
    labels = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}}
    numbers = {"label2id": {"O": 0, "B-PER": 1, "I-PER": 2}}
    cased = wordpiece(CASED, do_lower_case=False)
    folder = twins() / "tagger"
    return bert(folder, "ForTokenClassification", tokenizer=cased, **labels, **numbers)


@cache
def reader() -> Path:
    cased = wordpiece(CASED, do_lower_case=False)
    return bert(twins() / "reader", "ForQuestionAnswering", tokenizer=cased)


@cache
def masked() -> Path:
    return bert(twins() / "masked")


@cache
def their_classifier() -> Any:
    return theirs(model(), "ForSequenceClassification")


@cache
def shares_of(text: Text) -> list[float]:
    """Probabilities of the classes, as transformers gives them for one text or pair."""
    inputs = encoded(model(), *(text if isinstance(text, tuple) else (text,)))
    with torch.no_grad():
        shares: list[float] = their_classifier()(**inputs).logits[0].softmax(-1).tolist()
    return shares


@cache
def vector_of(text: str) -> np.ndarray:
    """The mean of the last states of all tokens, the special ones among them."""
    with torch.no_grad():
        return np.asarray(theirs(model())(**encoded(model(), text)).last_hidden_state[0].mean(0))


def is_marked(row: Any) -> bool:
    """Whether a row has no answer, and says why."""
    values = row if isinstance(row, dict) else getattr(row, "__dict__", {})
    inner = values.get("prediction")
    flat = values | (inner if isinstance(inner, dict) else {})
    reasons = [value for key, value in flat.items() if "error" in key or "reason" in key]
    has_reason = any(isinstance(value, str) and value.strip() for value in reasons)
    return has_reason and "probabilities" not in flat


def rows_of(answers: Any) -> list[Any]:
    """One answer for each text; a table has them as columns."""
    if isinstance(answers, datasets.Dataset):
        answers = answers.to_pandas()
    if isinstance(answers, pandas.DataFrame):
        columns = [name for name in answers.columns if str(name).startswith("probability_")]
        return [{"probabilities": dict(row)} for _, row in answers[columns].iterrows()]
    return answers if isinstance(answers, list) else [answers]


def compare(rows: Sequence[Any], texts: Sequence[Text | None], subject: str) -> None:
    """WrongError unless each row is answered as transformers does; None: it has to be marked."""
    equal(len(rows), len(texts), "answers")
    for number, (row, text) in enumerate(zip(rows, texts, strict=True), 1):
        if text is None:
            check(is_marked(row), f"{subject} {number} is not marked, and cannot be answered")
        else:
            close(probabilities(row, f"{subject} {number}"), shares_of(text), f"{subject} {number}")


def probabilities(row: Any, subject: str) -> list[float]:
    said = row.get("prediction", row) if isinstance(row, dict) else row
    held = said if isinstance(said, dict) else getattr(said, "__dict__", {})
    values = held.get("probabilities")
    check(isinstance(values, dict), f"{subject} has no answer: {said!r:.60}")
    return list(values.values())


# Files


def run_predict(
    input_path: Path, output: Path, *words: str, model_folder: Path | None = None
) -> None:
    """The verb on a file, by the classifier unless another model is given."""
    source = model() if model_folder is None else model_folder
    settings = ["precision=32-true", "device=cpu", *words]
    predict.main([str(source), f"input={input_path}", f"output={output}", *settings])


def rows_written(path: Path) -> list[Any]:
    """The lines of a JSON-lines output; a line ends with a line feed and nothing else."""
    lines = path.read_bytes().decode().removesuffix("\n").split("\n")
    return [json.loads(line) for line in lines]
