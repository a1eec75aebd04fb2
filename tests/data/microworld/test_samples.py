"""The samples are what the files hold, with the answer marked."""

from __future__ import annotations

import re
from pathlib import Path

from microworld.samples import sample_documents, sample_tasks


def test_shows_what_the_files_hold(small_world: Path) -> None:
    """The samples are the first lines of the files that `prepare` writes for the same seed."""
    corpus = (small_world / "corpus/microworld.txt").read_text(encoding="utf-8")
    assert corpus.startswith("\n\n".join("\n".join(document) for document in sample_documents(2, 7)))
    files = {"MRPC": "glue/MRPC/train.tsv", "SWAG": "swag/train.csv", "SQuAD 2.0": "squad/train-v2.0.json"}
    for sample in sample_tasks(7):
        if sample.task in files:
            text = (small_world / files[sample.task]).read_text(encoding="utf-8")[:4000]
            shown = ["".join(part for part, _ in parts) for name, parts in sample.lines if name != "answer"]
            assert all(line in text for line in shown), (sample, text)


def test_the_answer_is_marked() -> None:
    for sample in sample_tasks(1):
        marks = {mark for _, parts in sample.lines for _, mark in parts}
        assert ({"PER", "LOC", "ORG"} if sample.task == "NER" else {"right"}) & marks, sample.task


def test_entities_read_well() -> None:
    ner = next(sample for sample in sample_tasks(1) if sample.task == "NER")
    text = "\n".join("".join(part for part, _ in parts) for _, parts in ner.lines)
    assert re.search(r"\[PER \w+ \w+\] ", text) and " ." not in text and "] ]" not in text
