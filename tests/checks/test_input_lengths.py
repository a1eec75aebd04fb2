"""Which inputs do not fit is counted of what an encoder reads: a choice with its context, a prompt
with its template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.checks.conftest import make_task
from tests.composing import composed
from tests.runs.sentiment import TOKENIZER, write_sentiment

from clozelab.checks.gathering import Gathering
from clozelab.checks.subject import ERROR, OK, WARNING, Task
from clozelab.checks.tasks import check_text
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.planning.shapes import TaskPlace
from clozelab.planning.sweeps import open_task

FILES = {"train_file": "train.csv", "validation_file": "dev.csv"}


def level_of(folder: Path, words: Sequence[str], longest: int) -> tuple[str, str]:
    """The pre-flight's answer about a task's lengths, on an encoder of so many positions."""
    words = [*words, f"data_dir={folder}", f"cache_dir={folder / 'cache'}", "encoder=x", "row=x"]
    config = composed("finetune", words)
    data = open_task(TaskPlace.of_finetuning(config.config), TOKENIZER, longest)
    task = Task(
        "task", data.preview(), {"mlm": TOKENIZER}, max_seq_length=128, trained_length=longest
    )
    (finding,) = [one for one in check_text(task) if one.check == "lengths"]
    return finding.level, finding.what


@pytest.mark.parametrize(("longest", "level"), [(13, OK), (12, WARNING)])
def test_a_choice_is_read_with_its_context(tmp_path: Path, longest: int, level: str) -> None:
    """[CLS] six words [SEP] four words [SEP]: none of both alone is too long."""
    for name in FILES.values():
        rows = ["the film good bad the film,the film bad good,the film bad bad,0"] * 3
        (tmp_path / name).write_text("\n".join(["context,a,b,label", *rows]))
    words = ["task=codah", "task.data.context_column=context", "task.data.label_column=label"]
    words += ["task.data.ending_columns=[a,b]", "task.data.file_format=csv", "task.data.folds=null"]
    words += [
        "task.data.held_out_fold=null",
        "task.data.columns=null",
        "task.data.start_column=null",
    ]
    words += [f"task.data.{key}={file}" for key, file in FILES.items()]
    assert level_of(tmp_path, words, longest)[0] == level


@pytest.mark.parametrize(
    ("longest", "level", "what"),
    [(9, OK, "texts fit"), (8, WARNING, "do not fit"), (5, ERROR, "leaves no place for a text")],
)
def test_a_prompt_is_read_with_its_template(
    tmp_path: Path, longest: int, level: str, what: str
) -> None:
    """[CLS] three words, the film the [MASK] [SEP]: the text alone would fit twice."""
    write_sentiment(tmp_path, train=16, dev=8)
    words = ["task=sst2_prompt", "task.data.template='{text} the film the [MASK]'"]
    found = level_of(tmp_path, words, longest)
    assert found[0] == level and what in found[1]


def test_every_vocabulary_of_the_arms_is_looked_at(tokenizer: WordPieceTokenizer) -> None:
    other = WordPieceTokenizer([*SPECIAL_TOKENS, "x"], lowercase=True)
    prepared = [("first", tokenizer), ("none", None), ("again", tokenizer), ("other", other)]
    arms = [
        SimpleNamespace(name=name, corpus=SimpleNamespace(tokenizer=of_arm))
        for name, of_arm in prepared
    ]
    subject: Any = SimpleNamespace(arms=arms)
    assert Gathering._tokenizers(subject) == {"first": tokenizer, "other": other}
    task = replace(make_task(tokenizer), tokenizers={"first": tokenizer, "other": other})
    found = [one for one in check_text(task) if one.check == "unknown tokens"]
    assert [one.level for one in found] == [OK, ERROR]
    assert found[0].what.startswith("nli, first: ")
    assert found[1].what == "nli, other: many tokens are [UNK]"


def test_a_text_that_is_read_in_windows_is_not_cut(tokenizer: WordPieceTokenizer) -> None:
    short = replace(make_task(tokenizer), trained_length=12)
    whole = replace(short, reads_windows=True)
    levels = []
    for task in (short, whole):
        (finding,) = [one for one in check_text(task) if one.check == "lengths"]
        levels.append(finding.level)
    assert levels == [WARNING, OK]
    assert finding.figure.endswith("longer than 12 tokens, read in windows")
