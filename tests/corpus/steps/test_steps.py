"""What holds for every step that a corpus can list."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import clozelab.corpus.steps
from clozelab.addresses import allowed
from clozelab.corpus.steps.near_duplicates import NearDuplicates
from clozelab.corpus.steps.quality import Limit, Quality
from clozelab.corpus.steps.step import (
    EXAMPLE_CHARACTERS,
    MAX_EXAMPLES,
    CorpusStep,
    Document,
    StepReport,
)

REPOSITORY = Path(__file__).parents[3]


def quality(limits: Mapping[str, Limit]) -> CorpusStep:
    pytest.importorskip("datatrove")
    return Quality(limits)


def test_each_step_is_listed_under_its_modules_name_and_described() -> None:
    page = (REPOSITORY / "docs" / "corpora.md").read_text(encoding="utf-8")
    names = []
    for address in allowed()["corpus.steps"]:
        module, _, class_name = address.rpartition(".")
        step = getattr(importlib.import_module(module), class_name)
        assert module.rpartition(".")[2] == step.name
        assert f"\n### `{step.name}`" in page
        names.append(step.name)
    folder = Path(clozelab.corpus.steps.__path__[0])
    for path in set(folder.glob("*.py")) - {folder / "step.py"}:
        found = re.search(r"\((Corpus|Table|Survey)Step\):", path.read_text(encoding="utf-8"))
        assert (found is not None) == (path.stem in names)


def test_other_settings_are_another_identity() -> None:
    assert quality({}).identity() != quality({"min_doc_words": 0}).identity()
    assert NearDuplicates().identity() != NearDuplicates(threshold=0.7).identity()
    assert quality({}).identity() == quality({"min_doc_words": 50}).identity()


def test_reports_of_shards_add_up_and_keep_the_first_examples() -> None:
    total = StepReport()
    for shard in range(4):
        report = StepReport()
        for index in range(3):
            report.drop(Document(shard, index, 0, [f"text {shard} {index}", "x" * 300]), "short")
        report.drop_lines(["abc"], "menu")
        total.add(report)
    assert total.documents == {"short": 12}
    assert total.changed == {"menu": 4}
    assert total.characters == {"short": 12 * 308, "menu": 12}
    assert len(total.examples["short"]) == MAX_EXAMPLES
    assert total.examples["short"][3].startswith("text 1 0 xxx")
    assert len(total.examples["short"][3]) == EXAMPLE_CHARACTERS
    assert total.examples["menu"] == ["abc"]
