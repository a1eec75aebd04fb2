"""Words, keys and files at wrong places on a command line.

Each command has to end with status 1 or 2 and one sentence that has the words given here, which say
what to write instead; and it has to leave nothing behind. Few are read: these do what the same
words do in their usual order.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from tests.fuzz.answering import masked
from tests.fuzz.lab import READ, Cases, check, equal

from clozelab import cli

CASES = Cases("words at wrong places")
FINETUNE = ["finetune", "task=sst2", "encoder=bert", "row=x"]
PREDICT = ["predict", "bert", "do=embed", "input=lines.txt"]
SEARCH = ["search", "bert", "in=lines.txt", "top_k=2"]
LINES = ("a good film", "the slow film ran", "a bad one")
EXPERIMENT = """
title: Is more better?
arms:
  rate15: {objective: mlm, objective.token.predict_prob: 0.15}
  rate30: {objective: mlm, objective.token.predict_prob: 0.3}
columns: [{name: MRPC, task: mrpc}]
claims: [{text: more helps, primary: true, compare: [rate30, rate15, MRPC], direction: higher}]
"""


def furnish(place: Path) -> None:
    """A folder with a model, two runs, texts, and files that cannot be what they are named as."""
    for name in ("bert", "fine-tuned/model", "pre-trained/encoder"):
        shutil.copytree(masked(), place / name)
    (place / "lines.txt").write_text("\n".join(LINES) + "\n")
    (place / "queries.txt").write_text("a film\nthe slow one\n")
    (place / "blank.txt").write_text("\n \n")
    (place / "latin.txt").write_bytes("ein Löwe\n".encode("latin-1"))
    (place / "read-only.npy").write_bytes(b"kept")
    (place / "read-only.npy").chmod(0o444)
    (place / "other-name.txt").symlink_to("lines.txt")
    (place / "dangling").symlink_to("nowhere/at-all")
    (place / "my/task").mkdir(parents=True)
    (place / "rates.yaml").write_text(EXPERIMENT)


def command(place: Path, words: Sequence[str]) -> tuple[int, str]:
    """Status and output of a command that is given in a folder."""
    output = io.StringIO()
    with (
        contextlib.chdir(place),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
        mock.patch.dict(os.environ, CLOZELAB_CACHE=f"{place}-cache"),
    ):
        try:
            status = cli.main([*words])
        except SystemExit as stop:  # argparse's
            status = int(stop.code or 0)
    return status, output.getvalue()


def contents(place: Path) -> dict[str, bytes]:
    files = [path for path in sorted(place.rglob("*")) if path.is_file()]
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in files}


def refused(oddity: str, words: Sequence[str], *sentence: str) -> None:
    """Register a command that has to be refused in a sentence with these words."""

    def act(place: Path) -> None:
        furnish(place)
        before = contents(place)
        status, output = command(place, words)
        line = output.rpartition("error: ")[2].strip()
        check(status in (1, 2), f"status {status}: {output[-200:]}")
        check("Traceback" not in output, output[-300:])
        check("\n" not in line, f"more than a sentence: {line}")
        for part in sentence:
            check(part in line, f"{part!r} is missing in: {line}")
        equal(contents(place), before, "files")

    CASES.add(words[0], READ, oddity=oddity)(act)


refused(
    "encoder= names the folder of a fine-tuning instead of its model",
    ["finetune", "task=sst2", "encoder=fine-tuned", "row=x"],
    "say encoder=fine-tuned/model",
)
refused(
    "encoder= names the folder of a pre-training instead of its encoder",
    ["evaluate", "measure=blimp", "encoder=pre-trained", "row=x"],
    "say encoder=pre-trained/encoder",
)
for key in ("train_file", "validation_file", "text_columns", "label_column"):
    words = [*FINETUNE, f"{key}=lines.txt"]
    refused(f"{key}= without its place", words, f"did you mean 'task.data.{key}'?")
in_its_place = "did you mean 'optimizer.learning_rate'?"
alone = ["pretrain", "learning_rate=1e-4"]
refused("learning_rate= of a pre-training without its place", alone, in_its_place)
for value in ("inf", "nan", "-1"):
    word = f"optimizer.learning_rate={value}"
    sentence = f"optimizer.learning_rate is {value}"
    refused(f"a learning rate of {value}", ["pretrain", word], sentence, "finite")
decay = "optimizer.weight_decay"
refused("a weight decay of infinity", [*FINETUNE, f"{decay}=inf"], f"{decay} is inf")
for _oddity, _pattern, _hint in (
    ("a group of parameters whose pattern fits no name", "*.layers.0.*", ".layer.0."),
    ("a group of a layer that the model does not have", "*.layer.77.*", ""),
):
    group = f'optimizer.groups=[{{pattern: "{_pattern}", frozen: true}}]'
    refused(_oddity, ["pretrain", group], f"no parameter's name fits '{_pattern}'", _hint)
behind = "optimizer.groups=[{pattern: '*', weight_decay: 0}, {pattern: '*.layer.0.*'}]"
oddity = "a group behind one that takes every parameter"
refused(oddity, ["pretrain", behind], "an earlier pattern fits")
frozen = 'optimizer.groups=[{pattern: "*", frozen: true}]'
refused("every parameter is frozen", ["pretrain", frozen], "freezes every parameter")
refused("query= names a file", [*SEARCH, "query=queries.txt"], "say queries=queries.txt")
no_file = "queries=a good film"
refused("queries= names no file", [*SEARCH, no_file], f"{no_file}: there is no such file")
both = [*SEARCH, "query=film", "queries=queries.txt"]
refused("query= and queries= at once", both, "query=TEXT or queries=FILE")
blank = "queries=blank.txt"
oddity = "a file of queries with blank lines alone"
refused(oddity, [*SEARCH, blank], f"{blank} has no text to search for")
refused("a file of queries in Latin-1", [*SEARCH, "queries=latin.txt"], ":1: not UTF-8 text")
refused("output= is the input", [*PREDICT, "output=lines.txt"], "output=lines.txt is the input")
link = "output=other-name.txt"
refused("output= is a link to the input", [*PREDICT, link], f"{link} is the input")
read_only = [*PREDICT, "output=read-only.npy"]
refused("output= is a read-only file", read_only, "read-only.npy is read-only")
refused("verify of a pack that is not there", ["verify", "monday.zip"], "monday.zip does not exist")
refused(
    "a misspelt key of the corpus for a whole experiment",
    ["reproduce", "rates.yaml", "corpus.sources.0.pth=texts", "scale=own", "--dry-run"],
    "did you mean 'corpus.sources.0.path'?",
)
refused(
    "a corpus for an experiment whose encoder is given",
    ["reproduce", "table1_glue", "encoder=bert", "corpus.sources.0.path=texts", "--dry-run"],
    "no step 'pretrain'",
    "with encoder=",
)


@CASES.add("pretrain", READ)
def runs_dir_is_a_dangling_link(place: Path) -> None:
    """runs_dir= is a link to nothing"""
    furnish(place)
    text = "\n\n".join(f"cat {number} sat .\nthe mat had {number} ." for number in range(900))
    (place / "text.txt").write_text(text)
    words = ["corpus=text", "corpus.sources.0.path=text.txt", "tokenizer.vocab_size=100"]
    status, output = command(place, ["pretrain", "runs_dir=dangling", *words, "data_dir=."])
    line = output.rpartition("error: ")[2].strip()
    equal((status, line), (1, "dangling is a link to nowhere/at-all, which does not exist"), "end")
    check(not (place / "nowhere").exists(), "the link's place was made")


@CASES.add("finetune", READ)
def config_dir_behind_a_key(place: Path) -> None:
    """--config-dir stands between keys"""
    furnish(place)
    keys = FINETUNE[2:]
    before = command(place, ["finetune", "--config-dir", "my", "task=sst2", *keys])
    between = command(place, ["finetune", "task=sst2", "--config-dir", "my", *keys])
    check("benchmark file not found" in before[1], before[1])
    # Without the lines of the log, which have the time.
    equal(between[1].partition("error: ")[2], before[1].partition("error: ")[2], "sentence")


@CASES.add("search", READ)
def queries_in_a_file(place: Path) -> None:
    """queries= of two lines answers as two searches do"""
    furnish(place)

    def found(word: str) -> list[dict[str, Any]]:
        _, output = command(place, [*SEARCH, word, "--json"])
        return [json.loads(line) for line in output.splitlines() if line.startswith("{")]

    alone = []
    for query in ("a film", "the slow one"):
        alone += [hit | {"query": query} for hit in found(f"query={query}")]
    together = found("queries=queries.txt")
    equal(len(together), 4, "hits")
    equal(together, alone, "hits")
