"""A results version: which it is of a kind of task, and what a head's outputs are made into.

RESULTS_VERSIONS are raised by hand, and complete runs of the same version are never made again.
Batches, losses and weights are held by tests/reference. Here are the scores and predictions of
given outputs, which are the same on every machine.
"""

from __future__ import annotations

import hashlib
import json
import random
import string
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.composing import composed

from clozelab.assembly import finetuning as assembly
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.modules.finetuning import Evaluation, FineTuning, write_results
from clozelab.results.rerun import refuse_other_version
from clozelab.runs.identity import results_version_of
from clozelab.runs.record import Record
from clozelab.runs.reuse import is_record_of
from clozelab.tasks.passages import PassageSplit
from clozelab.tasks.words import WordSplit

ANSWERS = {
    "mrpc": "a1b616992c168f9b",
    "stsb": "d4a957305ed274b9",
    "swag": "47f4b9e44c26b9d6",
    "squad_v1": "42030fb60ebb03fe",
    "squad_v2": "70071a3c371ea8a2",
    "stsb_siamese": "c753e0d6c1cb0750",
    "ner_conll2003": "f8b8c000d0a75d8b",
}
"""Task -> sha256 of all scores and predictions from given outputs of its head; the same on every
machine.
"""
SETTINGS = {
    "mrpc": ["task.metric=validation/f1"],
    "stsb": ["task.metric=validation/pearson"],
    "squad_v1": ["task.data.doc_stride=16"],
    "squad_v2": ["task.data.doc_stride=16"],
}
WEIGHTS = "corpus.sources=[{name: a, path: a, weight: 1}, {name: b, path: b, weight: 0}]"
PHASE_WEIGHTS = "phases.0.source_weights={microworld: 1}"
CHANGED = """\
results have changed: raise RESULTS_VERSIONS in runs/identity.py and pin the new values here, or
find out why. Now: """


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, save_encoder: Callable[..., None]) -> Path:
    """A few examples of each kind of task, and an encoder for them."""
    root, draw = tmp_path_factory.mktemp("world"), random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(120)]
    write_tasks(root / "data", words)
    letters = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
    tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, *letters], lowercase=True)
    save_encoder(
        root / "encoder", tokenizer, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1
    )
    return root


def write_tasks(data: Path, words: list[str]) -> None:
    """Each in the official files' places."""
    draw = random.Random(1)

    def save(name: str, *lines: str) -> None:
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text("\n".join(lines) + "\n")

    def text(least: int, most: int) -> str:
        return " ".join(draw.choices(words, k=draw.randint(least, most)))

    def question(name: str, passage: list[str], has_answer: bool) -> dict[str, Any]:
        first = draw.randrange(len(passage) - 3)
        golds = [" ".join(passage[first : first + size]) for size in (2, 3)]
        found = [
            {"text": gold, "answer_start": len(" ".join(["", *passage[:first]]))} for gold in golds
        ]
        return {"id": name, "question": text(1, 3), "answers": found if has_answer else []}

    def article(count: int, share: int) -> dict[str, Any]:
        passages = [text(14, 20).split() for _ in range(count)]
        asked = []
        for i, one in enumerate(passages):
            asked.append([question(f"{i}.{j}", one, (i + j) % share > 0) for j in (0, 1)])
        pairs = zip(passages, asked, strict=True)
        paragraphs = [{"context": " ".join(one), "qas": qas} for one, qas in pairs]
        return {"title": "t", "paragraphs": paragraphs}

    for split, count in (("train", 16), ("dev", 12)):
        pairs = [f"{text(2, 5)}\t{text(2, 5)}" for _ in range(2 * count)]
        save(
            f"glue/MRPC/{split}.tsv",
            "Quality\t#1 String\t#2 String",
            *(f"{min(i % 3, 1)}\t{'xyy'[i % 3]} {pair}" for i, pair in enumerate(pairs[:count])),
        )
        save(
            f"glue/STS-B/{split}.tsv",
            "index\tsentence1\tsentence2\tscore",
            *(f"{i}\t{pair}\t{draw.randint(0, 50) / 10}" for i, pair in enumerate(pairs[count:])),
        )
        choices = []
        for i in range(count):
            cells = [text(2, 4), text(1, 2), *(text(1, 4) for _ in range(4)), str(i % 4)]
            choices.append(",".join(cells))
        save(
            f"swag/{split.replace('dev', 'val')}.csv",
            "sent1,sent2,ending0,ending1,ending2,ending3,label",
            *choices,
        )
        for version, share in (("1.1", count), ("2.0", 3)):
            made = article(count // 2, share if version == "2.0" else 1000)
            save(f"squad/{split}-v{version}.json", json.dumps({"version": version, "data": [made]}))
        kinds = ("O O", "B-PER I-PER", "B-LOC O", "O B-PER B-LOC")
        tags = [draw.choice(kinds) for _ in range(2 * count)]
        marked = {"O": "", "B-PER": "x", "I-PER": "y", "B-LOC": "z"}
        sentences = []
        for one in tags:
            marks = [f"{marked[tag]}{text(1, 1)} X X {tag}" for tag in one.split()]
            sentences.append("\n".join(marks) + "\n")
        documents = []
        for i in range(0, len(sentences), 4):
            documents.append(["-DOCSTART- -X- -X- O\n", *sentences[i : i + 4]])
        save(f"ner/conll2003/{split}.txt", *chain.from_iterable(documents))


@pytest.mark.parametrize(
    ("stage", "words", "version"),
    [
        ("finetune", ["task=stsb_simcse"], 6),
        ("finetune", ["task=stsb", "+task/format@task=contrastive"], 6),
        ("finetune", ["task=stsb_siamese"], 5),
        ("finetune", ["task=stsb"], 5),
        ("evaluate", ["measure=similarity"], 4),
        ("pretrain", [], 6),
        ("pretrain", ["objective=mlm_nsp", "fidelity=paper"], 6),
        ("pretrain", ["objective=mlm_nsp", "fidelity=paper", WEIGHTS], 8),
        ("pretrain", ["objective=mlm_nsp", WEIGHTS], 7),
        ("pretrain", ["objective=mlm_nsp", "fidelity=paper", PHASE_WEIGHTS], 8),
        ("pretrain", ["objective=mlm", "objective/input=full_sentences", WEIGHTS], 6),
    ],
    ids=str,
)
def test_a_kind_of_task_has_a_further_version(stage: str, words: list[str], version: int) -> None:
    """Contrastive tasks, and pre-trainings on pairs from weighted sources."""
    assert results_version_of(stage, composed(stage, words).recorded) == version


def test_an_older_contrastive_run_is_of_another_version() -> None:
    """It is not taken for done, nor made again; one of another task of the same version is."""
    for task, is_current in (("stsb_simcse", False), ("stsb_siamese", True)):
        config = composed("finetune", [f"task={task}", "encoder=there"])
        made: dict[str, Any] = {"scale": "demo", "inputs": {}, "watched": {}, "started": ""}
        made |= {"status": "complete", "stage": "finetune", "results_version": 5}
        made |= {"config": config.recorded, "fingerprint": "", "folder": Path("there")}
        record = Record(**made)
        assert is_record_of(record, stage="finetune", recorded=config.recorded) == is_current
        if is_current:
            refuse_other_version(record)
        else:
            with pytest.raises(ValueError, match="version 5 of finetune, and this code makes ver"):
                refuse_other_version(record)


def answers(module: FineTuning) -> Evaluation:
    """What a module makes of outputs that no processor rounds; most tags are right."""
    split, draw = module.validation, np.random.default_rng(0)
    if isinstance(split, PassageSplit):
        number, shape = len(split.features.sequences), (len(split.features.sequences.input_ids), 2)
    elif isinstance(split, WordSplit):
        number, shape = len(split.words), (len(split.words), len(module.target.classes))
    else:
        number, shape = split.num_outputs, (split.num_outputs, module.target.num_outputs)
    logits = draw.normal(size=shape).astype(np.float32)
    if isinstance(split, WordSplit):
        logits[np.arange(number), split.labels] += 2.0
    numbers = torch.arange(number)
    indices = {"example_index": numbers, "word_index": numbers}
    return module.evaluate([module.outputs(torch.from_numpy(logits), indices)])


def rounded(value: Any) -> Any:
    """Numbers as text of five digits, wherever they are."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return f"{value:.5g}" if isinstance(value, float) else value


@pytest.mark.parametrize("task", ANSWERS)
def test_every_kind_of_task(
    finetune: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    made: list[Any] = []

    def keep(folder: Path, module: FineTuning, node: Mapping[str, Any]) -> dict[str, Any]:
        found = answers(module)
        made.append(rounded([found.scores, found.predictions, found.is_collapsed]))
        return write_results(folder, module, node)

    monkeypatch.setattr(assembly, "write_results", keep)
    finetune(f"task={task}", "epochs=1", "evaluations_per_epoch=1", *SETTINGS.get(task, ()))
    text = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:16]
    assert text == ANSWERS[task], f"{CHANGED}{task}: {text!r}"
