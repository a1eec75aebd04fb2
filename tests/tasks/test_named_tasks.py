"""Tasks that people name, on made-up files in exactly their official formats.

Each is read by its own YAML, trained for three steps, scored on random outputs as a plain second
implementation of the official scorer does, and predicted in the form of its submission.
"""

from __future__ import annotations

import csv
import json
import random
import re
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from sklearn.metrics import accuracy_score, f1_score
from tests.modules.training import evaluate, train
from tests.tasks.labelled_files import TOKENIZER, module_on
from torch.nn import functional as F

from clozelab.assembly.task_data import build_task_data
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.datamodules.labelled import TaskInputs, TrainingPlan
from clozelab.readers.tables import open_table
from clozelab.tasks.batches import make_batch
from clozelab.text.paths import CONF_DIR

WORDS = ["the", "red", "blue", "big", "small", "car", "house"]
NUM_ROWS = 10
RNG = random.Random(1)


def text(size: int = 4) -> str:
    return " ".join(RNG.choices(WORDS, k=size))


def write_jsonl(path: Path, rows: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def task_of(name: str, folder: Path = CONF_DIR / "task") -> Any:
    """A task's settings as Hydra composes them; test_conf.py composes each by Hydra itself."""
    path = folder / f"{name}.yaml"
    node = OmegaConf.load(path)
    parts = []
    for part in node.pop("defaults", ["_self_"]):
        base = part.removesuffix("@_here_")
        parts.append(node if part == "_self_" else task_of(base, path.parent))
    return OmegaConf.merge(*parts)


# The official formats: number of an example -> what the file holds of it.


def boolq(n: int) -> Any:
    return {"question": text(), "passage": text(9), "idx": n, "label": n % 3 == 0}


def cb(n: int) -> Any:
    label = ["entailment", "contradiction", "neutral"][n % 3]
    return {"premise": text(9), "hypothesis": text(), "idx": n, "label": label}


def copa(n: int) -> Any:
    kind = ["cause", "effect"][n % 2]
    choices = {"choice1": text(), "choice2": text()}
    return {"premise": text(), **choices, "question": kind, "idx": n, "label": n // 2 % 2}


def wic(n: int) -> Any:
    spans = {"start1": 4, "end1": 7, "start2": 8, "end2": 11}
    sentences = {"sentence1": f"the car {text()}", "sentence2": f"the big car {text()}"}
    return {"word": "car", **sentences, "idx": n, "label": n % 2 == 0, **spans, "version": 1.1}


def wsc(n: int) -> Any:
    spans = {"span1_index": 0, "span1_text": "The red car", "span2_index": 4, "span2_text": "it"}
    row = {"text": f"the red  car saw it, {text()}", "idx": n, "label": n % 2 == 0}
    return {**row, "target": spans}


def multirc(n: int) -> Any:
    questions = []
    for q in range(2):
        answers = [{"text": text(2), "idx": a, "label": RNG.randint(0, 1)} for a in range(q + 2)]
        questions.append({"question": f"{text()}?", "answers": answers, "idx": 2 * n + q})
    return {"idx": n, "passage": {"text": text(20), "questions": questions}}


def record(n: int) -> Any:
    names = ["The Red House", "Red House", "Red House Inn", "AC/DC", "Car"]
    passage = ""
    entities = []
    for name in [*names, "Car"]:  # one is named twice
        entities.append({"start": len(passage), "end": len(passage) + len(name) - 1})
        passage += f"{name} {text(2)} "
    queries = []
    for q in range(2):
        answers = [{**entities[place], "text": names[place]} for place in {n % 5, q}]
        query = f"{text(2)} @placeholder {text(2)}"
        queries.append({"query": query, "answers": answers, "idx": 2 * n + q})
    return {
        "source": "",
        "passage": {"text": passage, "entities": entities},
        "qas": queries,
        "idx": n,
    }


def write_race(folder: Path) -> None:
    for school, part, n in product(("middle", "high"), ("train", "dev"), "12"):
        content = {
            "answers": RNG.choices("ABCD", k=3),
            "options": [list(map(text, [2] * 4)) for _ in range(3)],
            "questions": [text() for _ in range(3)],
            "article": text(12),
            "id": f"{school}{n}.txt",
        }
        write_jsonl(folder / "RACE" / part / school / f"{n}.txt", [content])


def write_imdb(folder: Path) -> None:
    for part, label, n in product(("train", "test"), ("neg", "pos", "unsup"), range(20)):
        file = folder / f"aclImdb/{part}/{label}/{n}_{len(label)}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text()}<br /><br />{text()}")
    (folder / "aclImdb/train/urls_pos.txt").write_text("http://no.review\n")


def write_ag_news(folder: Path) -> None:
    (folder / "ag_news").mkdir()
    for part in ("train", "test"):
        with (folder / f"ag_news/{part}.csv").open("w", newline="") as file:
            rows = [(n % 4 + 1, f"{text()}, x", f"{text()}\\band {n}") for n in range(60)]
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)


LANGUAGES = ["en", *task_of("xnli").data.extra_validation_files]
XNLI_HEADER = (
    "language\tgold_label\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse"
    "\tsentence2_parse\tsentence1\tsentence2\tpromptID\tpairID\tgenre\tlabel1\tmatch"
)


def write_xnli(folder: Path) -> None:
    """The official file holds all languages; those of one are cut out as the task's YAML says."""
    names = ["contradiction", "entailment", "neutral"]
    write_jsonl(folder / "glue/MNLI/x", [])
    rows = [f"{n}\t{text()}\t{text()}\t{names[n % 3]}" for n in range(12)]
    (folder / "glue/MNLI/train.tsv").write_text(
        "\n".join(["index\tsentence1\tsentence2\tgold_label", *rows])
    )
    (folder / "xnli").mkdir()
    for language in LANGUAGES:
        lines = [XNLI_HEADER]
        for n in range(6):
            cells = [language, names[n % 3], *[""] * 4, text(), text()]
            cells += [str(n), str(n), "g", "", "True"]
            lines.append("\t".join(cells))
        (folder / f"xnli/dev.{language}.tsv").write_text("\n".join(lines) + "\n")


def write_triviaqa(folder: Path) -> None:
    """A paragraph each; every third has no answer in the words that were kept."""
    for part in ("train", "dev"):
        data = []
        for n in range(9):
            context = f"{text(6)} number{n} {text(6)}"
            answers = [{"text": f"number{n}", "answer_start": context.index("number")}]
            qa = {
                "question": text(),
                "answers": answers if n % 3 else [],
                "id": f"tc_{n}--x.txt",
                "qid": f"tc_{n}",
            }
            data.append({"paragraphs": [{"context": context, "qas": [qa]}]})
        write_jsonl(
            folder / f"triviaqa/squad-wikipedia-{part}.json", [{"data": data, "version": "1.0"}]
        )


SUPERGLUE = {
    "boolq": ("BoolQ", boolq),
    "cb": ("CB", cb),
    "copa": ("COPA", copa),
    "wic": ("WiC", wic),
}
SUPERGLUE |= {"wsc": ("WSC", wsc), "multirc": ("MultiRC", multirc), "record": ("ReCoRD", record)}
OTHERS: dict[str, Callable[[Path], None]] = {
    "race": write_race,
    "imdb": write_imdb,
    "ag_news": write_ag_news,
    "xnli": write_xnli,
    "triviaqa": write_triviaqa,
}


def read(name: str, folder: Path, **module: Any) -> FinetuningDataModule:
    if name in SUPERGLUE:
        official, make = SUPERGLUE[name]
        for part in ("train", "val"):
            rows = [make(n) for n in range(NUM_ROWS)]
            write_jsonl(folder / f"superglue/{official}/{part}.jsonl", rows)
    else:
        OTHERS[name](folder)
    plan = TrainingPlan(4, 1.0, 1, None, 1, 0)
    inputs = TaskInputs(name, folder, folder / "cache", TOKENIZER, 64, max_unknown_share=1.0)
    task: Any = OmegaConf.to_container(task_of(name), resolve=True)
    task["module"] |= module
    data = build_task_data(task, inputs, plan)
    data.setup()
    return data


# The official scorers, a second time: from the file of gold answers and the submission.


def labels_of(rows: Any) -> list[Any]:
    return [row["label"] for row in rows]


def multirc_scores(gold: Any, submitted: Any) -> dict[str, float]:
    labels, answers, right = [], [], []
    for of_gold, of_submission in zip(gold, submitted, strict=True):
        pairs = zip(
            of_gold["passage"]["questions"], of_submission["passage"]["questions"], strict=True
        )
        for question, answered in pairs:
            assert question["idx"] == answered["idx"]
            labels += labels_of(question["answers"])
            answers += labels_of(answered["answers"])
            right.append(labels_of(question["answers"]) == labels_of(answered["answers"]))
    return {"f1a": f1_score(labels, answers), "em": sum(right) / len(right)}


def normal(answer: str) -> list[str]:
    kept = "".join(letter for letter in answer.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def token_f1(answer: str, gold: str) -> float:
    words, expected = normal(answer), normal(gold)
    common = sum((Counter(words) & Counter(expected)).values())
    return 2 * common / (len(words) + len(expected))


def record_scores(gold: Any, submitted: Any) -> dict[str, float]:
    answers = {row["idx"]: row["label"] for row in submitted}
    f1, em = [], []
    for question in chain.from_iterable(row["qas"] for row in gold):
        texts = [answer["text"] for answer in question["answers"]]
        given = answers[question["idx"]]
        em.append(max(normal(given) == normal(one) for one in texts))
        f1.append(max(token_f1(given, one) for one in texts))
    return {"f1": float(np.mean(f1)), "em": float(np.mean(em))}


def class_scores(gold: Any, submitted: Any) -> dict[str, float]:
    labels = [str(label).lower() for label in labels_of(gold)]
    answers = [str(label).lower() for label in labels_of(submitted)]
    assert set(answers) <= set(labels)
    macro = f1_score(labels, answers, average="macro")
    return {"accuracy": accuracy_score(labels, answers), "macro_f1": macro}


SCORERS = defaultdict(lambda: class_scores, multirc=multirc_scores, record=record_scores)


def three_steps(data: FinetuningDataModule, tiny_module: Any) -> Any:
    """A module that was trained for three steps, and said something of each validation example."""
    metric = data.target.metrics[-1].name
    module = module_on(data, tiny_module, metric, max_position_embeddings=64)
    index = np.arange(min(4, len(data.train_sequences)))
    batch = make_batch(data.train_sequences, index, data.train_targets)
    losses = train(module, [batch] * 3, rate=1e-3)
    assert losses[2] < losses[0]
    return evaluate(module, data.val_dataloader())


@pytest.mark.parametrize("name", SUPERGLUE)
def test_superglue(name: str, tmp_path: Path, tiny_module: Any) -> None:
    data = read(name, tmp_path)
    best = three_steps(data, tiny_module)
    assert set(best.scores) >= {metric.key for metric in data.target.metrics}
    assert data.compute_baselines()
    official, _ = SUPERGLUE[name]
    gold = [json.loads(line) for line in (tmp_path / f"superglue/{official}/val.jsonl").open()]
    shape = (len(data.validation), 2 if name != "cb" else 3)
    generator = np.random.default_rng(3)
    for _ in range(5):
        outputs = generator.normal(size=shape)
        scores = data.target.evaluate(outputs, data.validation).scores
        ((file, lines),) = data.target.prediction_files(
            official, data.validation, outputs, {}
        ).items()
        assert file == f"{official}.jsonl"
        submitted = [json.loads(line) for line in lines]
        assert [row["idx"] for row in submitted if name != "record"] in ([], list(range(NUM_ROWS)))
        expected = SCORERS[name](gold, submitted)
        assert scores == pytest.approx({metric: expected[metric] for metric in scores}, abs=1e-9)


def test_spellings_of_submissions(tmp_path: Path) -> None:
    """Names of classes, but numbers of choices; WSC alone has capitals."""
    expected = {"boolq": {"true", "false"}, "wsc": {"True", "False"}, "copa": {0, 1}}
    for name, spellings in expected.items():
        data = read(name, tmp_path / name)
        outputs = np.random.default_rng(0).normal(size=(NUM_ROWS, 2))
        (lines,) = data.target.prediction_files("T", data.validation, outputs, {}).values()
        assert {json.loads(line)["label"] for line in lines} == spellings


def test_right_candidates_may_weigh_more(tmp_path: Path) -> None:
    data = read("record", tmp_path, class_weights="balanced")
    labels = torch.from_numpy(data.train.labels)
    logits = torch.randn(len(labels), 2, generator=torch.Generator().manual_seed(0))
    weights = len(labels) / (2 * torch.bincount(labels))
    assert weights[1] > 1.2 * weights[0]
    each = F.cross_entropy(logits, labels, reduction="none")
    expected = (each * weights[labels]).sum()
    torch.testing.assert_close(data.target.loss(logits, {"labels": labels}), expected)


@pytest.mark.parametrize("name", ["race", "imdb", "ag_news", "xnli"])
def test_other_tasks(name: str, tmp_path: Path, tiny_module: Any) -> None:
    """Scores of every split are scikit-learn's."""
    data = read(name, tmp_path)
    best = three_steps(data, tiny_module)
    scored = {"race": ["high", "middle"], "xnli": LANGUAGES}.get(name, ["test"])
    assert set(data.validation.extra) == set(scored) - {"en"}
    for split in [data.validation, *data.validation.extra.values()]:
        outputs = np.random.default_rng(1).normal(size=(len(split), len(data.target.classes)))
        outcome = data.target.evaluate(outputs, split)
        expected = accuracy_score(split.labels, outputs.argmax(1))
        assert outcome.scores["accuracy"] == pytest.approx(expected)
    keys = {f"validation/{part}_accuracy" for part in data.validation.extra}
    assert keys | {"validation/accuracy"} <= set(best.scores) and data.compute_baselines()


def rows_of(path: Path, file_format: str) -> list[Any]:
    return [record for _, record in open_table(path, file_format).rows()]


def test_what_is_read(tmp_path: Path) -> None:
    """Marked words, filled-in names, letters of answers, folders without their other files."""
    for name in ("wic", "wsc", "record", "multirc", "copa"):
        write_jsonl(tmp_path / name, [SUPERGLUE[name][1](n) for n in range(2)])
    found = {name: rows_of(tmp_path / name, name) for name in ("wic", "wsc", "record", "copa")}
    assert found["wic"][0]["sentence1"].startswith("the *car* ")
    assert found["wic"][0]["sentence2"].startswith("the big *car* ")
    # written otherwise than in the text, with two blanks, so its words are counted
    assert found["wsc"][0]["text"].startswith("*the red  car* saw #it#, ")
    names = ["The Red House", "Red House", "Red House Inn", "AC/DC", "Car"]
    of_query = found["record"][:5]
    assert [row["id"] for row in of_query] == [f"0/{name}" for name in names]
    assert all(name in row["query"] for name, row in zip(names, of_query, strict=True))
    assert [row["label"] for row in of_query] == [1, 0, 0, 0, 0]
    assert found["copa"][1]["question_text"] == "What happened as a result?"
    assert len(rows_of(tmp_path / "multirc", "multirc")) == 10
    write_race(tmp_path)
    assert len(rows_of(tmp_path / "RACE/dev", "race")) == 12
    content = json.loads((tmp_path / "RACE/dev/high/1.txt").read_text())
    rows = rows_of(tmp_path / "RACE/dev/high", "race")[:3]
    assert [row["label"] for row in rows] == [str("ABCD".index(one)) for one in content["answers"]]
    assert [rows[2][f"option{n}"] for n in range(4)] == content["options"][2]
    write_imdb(tmp_path)
    labels = Counter(row["label"] for row in rows_of(tmp_path / "aclImdb/train", "text_folders"))
    assert labels == {"neg": 20, "pos": 20}


def test_triviaqa(tmp_path: Path, tiny_module: Any) -> None:
    """What has no answer there is not trained on, and is wrong in validation."""
    data = read("triviaqa", tmp_path)
    assert len(data.train) == 6 and len(data.validation) == 9
    best = three_steps(data, tiny_module)
    assert best.scores["validation/exact_match"] <= 100 * 6 / 9


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("copa", {"question": "why"}, r"x:1: not an object of this benchmark \(KeyError: 'why'\)"),
        ("wic", {"sentence1": "a"}, r"x:1: .*'start1'"),
        ("multirc", {"passage": "a"}, "x:1: .*TypeError"),
    ],
)
def test_another_file(name: str, row: Any, message: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x", [row])
    with pytest.raises(ValueError, match=message):
        open_table(tmp_path / "x", name)


def test_a_folder_has_to_be_there(tmp_path: Path) -> None:
    write_imdb(tmp_path)
    (tmp_path / "aclImdb/test").rename(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"benchmark folder not found: \S+/aclImdb/test"):
        read_again = TaskInputs("imdb", tmp_path, tmp_path, TOKENIZER, 64)
        build_task_data(OmegaConf.to_container(task_of("imdb"), resolve=True), read_again)
