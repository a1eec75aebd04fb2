"""Simple methods: words, phrases, bags; and what they score on the examples of a run."""

from __future__ import annotations

import json
import shutil
import string
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clozelab.assembly.task_data import build_task_data
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.datamodules.labelled import TaskInputs, TrainingPlan
from clozelab.launch import sweep
from clozelab.tasks.baselines import (
    PhraseGuesser,
    bare_words,
    guess_choices,
    guess_classes,
    guess_numbers,
    most_frequent_tags,
    words_of,
)

Make = Callable[..., FinetuningDataModule]
TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *string.ascii_lowercase], lowercase=True)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(task, words, limit): the data module of conf/, on files of `write` or real ones."""

    def build(
        task: str, *words: str, limit: int | None = None, data_dir: Path = tmp_path
    ) -> FinetuningDataModule:
        config = sweep.compose("finetune", [f"task={task}", f"data_dir={data_dir}", *words])
        # knows letters
        inputs = TaskInputs(
            task, data_dir, tmp_path / "cache", TOKENIZER, 64, max_unknown_share=1.0
        )
        plan = TrainingPlan(8, 1, 1, limit, 1, 0)
        data = build_task_data(vars(config.config.task), inputs, plan)
        data.setup()
        return data

    return build


def write(folder: Path, **files: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")


def sentiment(number: int, seed: int, flipped: float = 0.0) -> list[str]:
    """A good or a bad word says the label; of a share `flipped` it says the contrary."""
    rng = np.random.default_rng(seed)
    labels, wrong = rng.integers(0, 2, number), rng.random(number) < flipped
    others = rng.choice(["a", "film", "with", "people"], (number, 3))
    word = [("bad", "good")[label] for label in labels]
    return [
        f"{' '.join(more)} {w}\t{label ^ bad}"
        for more, w, label, bad in zip(others, word, labels, wrong, strict=True)
    ]


def test_they_are_learnt_from_the_examples_of_the_run(make: Make, tmp_path: Path) -> None:
    rows = sentiment(400, 1)
    write(tmp_path / "glue/SST-2", train=rows, dev=sentiment(200, 2))
    names = ("accuracy", "f1", "macro_f1", "weighted_f1", "matthews")
    assert make("sst2").baselines == {"bag of words": dict.fromkeys(names, 1.0)}
    one = make("sst2", limit=1).baselines["bag of words"]
    # of one example only one label can be learnt
    assert one["accuracy"] < 0.7 and one["matthews"] == 0.0


def test_labels_that_mean_nothing_leave_chance(make: Make, tmp_path: Path) -> None:
    texts, labels = zip(*(row.split("\t") for row in sentiment(1000, 2)), strict=True)
    shuffled = np.random.default_rng(4).permutation(labels)
    dev = [f"{text}\t{label}" for text, label in zip(texts, shuffled, strict=True)]
    write(tmp_path / "glue/SST-2", train=sentiment(1000, 1), dev=dev)
    assert abs(make("sst2").baselines["bag of words"]["accuracy"] - 0.5) < 0.05


def test_computed_once_and_again_where_it_is_damaged(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "glue/SST-2", train=sentiment(100, 1), dev=sentiment(50, 2))
    calls: list[int] = []
    original = FinetuningDataModule.compute_baselines

    def counted(data: FinetuningDataModule) -> Any:
        calls.append(1)
        return original(data)

    monkeypatch.setattr(FinetuningDataModule, "compute_baselines", counted)
    modules = [make("sst2") for _ in range(4)]
    # the lock counts by open file, so threads stand for processes
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda one: one.baselines, modules))
    assert len(calls) == 1 and all(one == found[0] for one in found)
    (meta,) = (tmp_path / "cache/baselines").glob("*/meta.json")
    meta.write_text(meta.read_text()[:-9])
    assert make("sst2").baselines == found[0] and len(calls) == 2
    assert make("sst2", limit=50).baselines and len(calls) == 3  # other examples, other scores
    write(tmp_path / "glue/SST-2", dev=sentiment(60, 3))
    assert make("sst2").baselines and len(calls) == 4


def test_a_list_beside_the_files_goes_before(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "glue/SST-2", train=sentiment(40, 1), dev=sentiment(20, 2))
    (tmp_path / "glue/SST-2/baselines.json").write_text(
        json.dumps({"dev.tsv": {"mine": {"accuracy": 0.25}}})
    )
    assert make("sst2").baselines == {"mine": {"accuracy": 0.25}}
    assert not (tmp_path / "cache/baselines").exists()


def test_labels_of_a_test_file_are_not_looked_at(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "glue/SST-2", train=sentiment(40, 1), dev=sentiment(20, 2))
    before = make("sst2").baselines
    shutil.rmtree(tmp_path / "cache")
    write(tmp_path / "glue/SST-2", test=sentiment(20, 3))
    assert make("sst2").baselines == before


def test_a_further_validation_set_has_scores_of_its_own(make: Make, tmp_path: Path) -> None:
    write(
        tmp_path / "glue/SST-2",
        train=sentiment(400, 1),
        dev=sentiment(200, 2),
        away=sentiment(200, 3, flipped=1.0),
    )
    data = make("sst2", "+task.data.extra_validation_files={mismatched: glue/SST-2/away.tsv}")
    scores = data.baselines["bag of words"]
    assert (scores["accuracy"], scores["mismatched_accuracy"]) == (1.0, 0.0)


OF_CLASSES = {"accuracy", "macro_f1", "weighted_f1", "matthews"}


@pytest.mark.parametrize(
    ("task", "baseline", "scores"),
    [
        ("stsb", "bag of words", {"spearman", "pearson"}),
        ("mnli", "bag of words", OF_CLASSES | {f"mismatched_{name}" for name in OF_CLASSES}),
        ("swag", "bag of words", {"accuracy"}),
        ("squad_v1", "longest overlap", {"exact_match", "f1"}),
        ("squad_v2", "longest overlap", {"exact", "f1"}),
        ("ner_microworld", "most frequent tag", {"f1", "precision", "recall", "accuracy"}),
    ],
)
def test_every_kind_of_task_has_one(
    make: Make, world: Path, task: str, baseline: str, scores: set[str]
) -> None:
    """On the generated world, whose own list is of the same examples."""
    data = make(task, data_dir=world)
    computed, listed = data.compute_baselines(), data.baselines
    assert set(computed) == {baseline} and set(computed[baseline]) == scores
    for name, value in listed[baseline].items():
        unit = 100.0 if task.startswith("squad") else 1.0
        expected = pytest.approx(value, abs=2e-2 * unit)
        assert computed[baseline][name] == expected or (
            task == "squad_v2" and computed[baseline][name] > value
        ), name


def test_the_error_of_numbers_has_one(make: Make, tmp_path: Path) -> None:
    """Of the bag of words, on the scale of the labels."""
    rows = []
    for number in range(40):
        rows.append(f"the film {'good' if number % 2 else 'bad'} {number}\t{100 + number % 2}")
    write(tmp_path / "glue/SST-2", train=rows, dev=rows)
    numbers = ["task.data.numeric_labels=true", "task.data.labels=null"]
    scores = ["task.metric=validation/mae", "task.module.metrics=[mae]"]
    data = make("sst2", *numbers, *scores)
    computed = data.compute_baselines()["bag of words"]
    assert set(computed) == {"spearman", "pearson", "mae"}
    assert 0.0 < computed["mae"] < 0.5


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from microworld.world import write_world

    settings = {
        "world_seed": 3,
        "num_documents": 20,
        "train_examples": 200,
        "validation_examples": 100,
    }
    return write_world(tmp_path_factory.mktemp("world"), **settings, entropy_documents=1)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("task", "limit", "accuracy"), [("mrpc", None, 0.723), ("sst2", 20000, 0.790)]
)
def test_real_files(
    make: Make, shared_dir: Path, task: str, limit: int | None, accuracy: float
) -> None:
    data = make(task, limit=limit, data_dir=shared_dir / "data")
    assert data.baselines["bag of words"]["accuracy"] == pytest.approx(accuracy, abs=2e-3)


WORDS = ["red", "blue", "old", "new", "cat", "dog", "runs", "sits", "here", "there", "fast", "slow"]


def texts(number: int, seed: int) -> list[tuple[str, str]]:
    rng = np.random.default_rng(seed)
    return [(" ".join(rng.choice(WORDS, 5)), " ".join(rng.choice(WORDS, 3))) for _ in range(number)]


def plain_features(first: str, second: str) -> set[str]:
    """What the module says of a pair, in other words."""
    one, two = set(first.split()), set(second.split())
    named = {"1": one, "2": two, "both": one & two, "only2": two - one}
    features = {
        f"share {round(10 * len(one & two) / len(two))}",
        f"missing {len(two - one)}",
        "always",
    }
    for name, words in named.items():
        features |= {f"{name} {word}" for word in words}
    return features


def dense(
    train: list[tuple[str, str]], asked: list[tuple[str, str]]
) -> tuple[np.ndarray, np.ndarray]:
    counts = Counter(chain.from_iterable(plain_features(*text) for text in train))
    names = sorted(name for name, count in counts.items() if count >= 2)

    def matrix(texts: list[tuple[str, str]]) -> np.ndarray:
        rows = []
        for text in texts:
            features = plain_features(*text)
            rows.append([float(name in features) for name in names])
        return np.array(rows)

    return matrix(train), matrix(asked)


def label_of(text: tuple[str, str]) -> int:
    first, second = (set(part.split()) for part in text)
    return 2 if first & second else int("red" in first)


@pytest.mark.parametrize("balanced", [False, True])
def test_classes_are_those_of_a_plain_logistic_regression(balanced: bool) -> None:
    train, asked = texts(80, 0), texts(300, 1)
    # so that how often a class occurs decides as well
    noise = np.random.default_rng(11).random(len(train)) < 0.5
    labels = np.where(noise, 2, [label_of(text) for text in train])
    x, x_asked = dense(train, asked)
    weights = speed = np.zeros((x.shape[1], 3))
    for _ in range(200):
        odds = np.exp(x @ weights)
        gradient = np.zeros_like(weights)
        for row, probabilities, label in zip(
            x, odds / odds.sum(1, keepdims=True), labels, strict=True
        ):
            share = len(labels) / (3 * np.count_nonzero(labels == label)) if balanced else 1.0
            gradient += share * np.outer(row, probabilities - (np.arange(3) == label)) / len(labels)
        speed = 0.9 * speed - 0.5 * (gradient + 1e-4 * weights)
        weights = weights + speed
    scores = x_asked @ weights
    first, second = np.sort(scores, axis=1)[:, -1], np.sort(scores, axis=1)[:, -2]
    clear = first - second > 1e-6
    assert clear.all()
    np.testing.assert_array_equal(
        guess_classes(train, labels, asked, 3, balanced=balanced), scores.argmax(1)
    )


def test_numbers_are_those_of_a_closed_form_ridge_regression() -> None:
    train, asked = texts(60, 2), texts(20, 3)
    numbers = np.array(
        [5.0 * len(set(a.split()) & set(b.split())) / len(set(b.split())) for a, b in train]
    )
    x, x_asked = dense(train, asked)
    weights = np.linalg.solve(x.T @ x + 10.0 * np.eye(x.shape[1]), x.T @ (numbers - numbers.mean()))
    expected = x_asked @ weights + numbers.mean()
    np.testing.assert_allclose(guess_numbers(train, numbers, asked), expected, atol=1e-5)


def test_the_ending_that_looks_right_wins() -> None:
    rng = np.random.default_rng(10)
    labels = rng.integers(0, 4, 300)
    endings = [["dog sits"] * 4 for _ in labels]
    for ending, label in zip(endings, labels, strict=True):
        ending[label] = "cat runs"
    choices = list(zip(["old new here"] * 300, endings, strict=True))
    np.testing.assert_array_equal(
        guess_choices(choices[:200], labels[:200], choices[200:]), labels[200:]
    )


def test_texts_without_a_word_are_guessed_as_well() -> None:
    train, labels = (
        [("red", ""), ("", ""), ("red", ""), ("blue", ""), ("blue", "")],
        np.array([1, 0, 1, 0, 0]),
    )
    np.testing.assert_array_equal(
        guess_classes(train, labels, [("", ""), ("red", ""), ("", "")], 2), [0, 1, 0]
    )


PASSAGE = "Anna sang in Rome. In the old Town, Bob met a King of France. Bob left"


def test_words() -> None:
    assert words_of("It's A dog.") == ["it", "'", "s", "a", "dog", "."]
    # A vowel of Hindi and an accent apart are parts of their words.
    assert words_of("किताबें पढ़ीं।") == ["किताबें", "पढ़ीं", "।"]
    assert words_of("cafe\u0301s x_2") == ["cafe\u0301s", "x_2"]
    # Characters of a script without blanks are words.
    assert words_of("我喜欢, abc電影") == [*"我喜欢", ",", "abc", *"電影"]
    assert bare_words("The किताबें, cafe\u0301") == ["किताबें", "cafe\u0301"]
    assert bare_words("The dog, an owl and A cat!") == ["dog", "owl", "and", "cat"]


def test_the_first_known_phrase_of_the_sentence_most_like_the_question() -> None:
    questions = ["Who did he meet?", "Who did she see?", "Where was it?"]
    guesser = PhraseGuesser(questions, [["Bob"], ["the King of", "king"], ["Rome", "old town"]])
    # "who did" knows bob, king of and king; in the second sentence two words go before one.
    assert guesser.guess(PASSAGE, "Who did somebody meet in the old town?") == "King of"
    # nothing in the first sentence is known
    assert guesser.guess(PASSAGE, "Who did Anna meet in Rome?") == "King of"
    # what the question says is no answer
    assert guesser.guess(PASSAGE, "Who did the king of France meet?") == "Bob"
    assert guesser.guess(PASSAGE, "Where was Bob, who met the king?") == "old Town"
    assert guesser.guess(PASSAGE, "Why is it so?") == ""


def test_each_words_most_frequent_tag() -> None:
    train = [(["Rome", "is", "old"], ["B-LOC", "O", "O"]), (["rome", "ROME"], ["B-ORG", "B-LOC"])]
    assert most_frequent_tags(train, [["In", "Rome"], ["OLD"]], "?") == [["?", "B-LOC"], ["O"]]
