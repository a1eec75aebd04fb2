"""The folder: deterministic bytes, written once, never half, never over something else; and the
controls.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from clozelab.corpus.generated import MANIFEST
from microworld import lexicon
from microworld.lexicon import words_of
from microworld.world import write_world

TINY: dict[str, Any] = {
    "world_seed": 1,
    "num_documents": 20,
    "train_examples": 12,
    "validation_examples": 6,
    "entropy_documents": 0,
}


def _tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def corpus_text(folder: Path | None) -> str:
    assert folder is not None
    return (folder / "corpus/microworld.txt").read_text(encoding="utf-8")


def test_manifest_says_what_it_is(small_world: Path, small_settings: dict[str, Any]) -> None:
    manifest = json.loads((small_world / MANIFEST).read_text(encoding="utf-8"))
    assert manifest["about"].startswith("Synthetic")
    assert manifest["settings"].items() >= small_settings.items()
    assert (
        manifest["entropy_nats_per_word"]["unigram_entropy"]
        > manifest["entropy_nats_per_word"]["left_to_right_loss"]
    )
    for name, checksum in manifest["sha256"].items():
        assert hashlib.sha256((small_world / name).read_bytes()).hexdigest() == checksum
    assert set(_tree(small_world)) == {*manifest["sha256"], MANIFEST}


def test_same_settings_same_bytes_other_seed_other_bytes(tmp_path: Path) -> None:
    one = _tree(write_world(tmp_path / "one", **TINY))
    two = _tree(write_world(tmp_path / "two", **TINY))
    three = _tree(write_world(tmp_path / "three", **TINY | {"world_seed": 2}))
    assert one == two
    assert one["corpus/microworld.txt"] != three["corpus/microworld.txt"]
    assert set(one) == set(three)


def test_known_bytes(tmp_path: Path) -> None:
    """Pins the world: a change here needs a new WORLD_VERSION, since published scores belong to
    these bytes.
    """
    text = (write_world(tmp_path, **TINY) / "corpus/microworld.txt").read_bytes()
    assert hashlib.sha256(text).hexdigest()[:16] == "7b1d302add8fc686"


def test_written_once(tmp_path: Path) -> None:
    write_world(tmp_path, **TINY)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    write_world(tmp_path, **TINY)
    assert times == {
        path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()
    }


def test_a_missing_file_is_written_again(tmp_path: Path) -> None:
    before = _tree(write_world(tmp_path, **TINY))
    (tmp_path / "glue/RTE/dev.tsv").unlink()
    assert _tree(write_world(tmp_path, **TINY)) == before


def test_what_is_known_is_brought_up_to_date(tmp_path: Path) -> None:
    """A world of the same bytes from before there were baselines: they and the manifest are
    written, nothing else.
    """
    before = _tree(write_world(tmp_path, **TINY))
    manifest = json.loads(before[MANIFEST])
    del manifest["facts_version"]
    manifest["sha256"] = {
        name: key for name, key in manifest["sha256"].items() if "baselines" not in name
    }
    (tmp_path / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    (tmp_path / "glue/RTE/baselines.json").unlink()
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.t*")}
    assert _tree(write_world(tmp_path, **TINY)) == before
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.t*")}


def test_shuffled_sentences_keep_the_sentences_and_lose_the_documents(tmp_path: Path) -> None:
    plain = corpus_text(write_world(tmp_path / "a", **TINY))
    mixed = corpus_text(write_world(tmp_path / "b", **TINY, shuffle_sentences=True))
    assert Counter(plain.splitlines()) == Counter(mixed.splitlines())
    lengths = []
    for text in (plain, mixed):
        lengths.append([len(block.splitlines()) for block in text.strip().split("\n\n")])
    assert lengths[0] == lengths[1]
    neighbours = [
        set(zip(text.splitlines(), text.splitlines()[1:], strict=False)) for text in (plain, mixed)
    ]
    assert len(neighbours[0] & neighbours[1]) < 10


def test_shuffled_labels_change_training_labels_only(tmp_path: Path) -> None:
    settings = TINY | {"train_examples": 60}
    plain = _tree(write_world(tmp_path / "a", **settings))
    mixed = _tree(write_world(tmp_path / "b", **settings, shuffle_labels=True))
    changed = {name for name in plain if plain[name] != mixed[name]} - {MANIFEST}
    changed = {name for name in changed if not name.endswith("/baselines.json")}
    tasks = ("CoLA", "SST-2", "MRPC", "QQP", "STS-B", "RTE", "MNLI", "QNLI")
    expected = {f"glue/{task}/train.tsv" for task in tasks}
    expected |= {"squad/train-v1.1.json", "squad/train-v2.0.json", "swag/train.csv"}
    assert changed == expected | {"ner/train.txt"}
    rows = [
        list(csv.reader(tree["glue/RTE/train.tsv"].decode().splitlines(), delimiter="\t"))
        for tree in (plain, mixed)
    ]
    assert [row[:3] for row in rows[0]] == [row[:3] for row in rows[1]]
    assert Counter(row[3] for row in rows[0]) == Counter(row[3] for row in rows[1])
    content = json.loads(mixed["squad/train-v1.1.json"])
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                answer = qa["answers"][0]
                assert paragraph["context"][answer["answer_start"] :].startswith(answer["text"])


# ---- controls: shuffled sentences leave no thread, shuffled labels nothing to learn
# ----------------------------------

CHANCE = {"MRPC": 0.5, "QQP": 0.5, "RTE": 0.5, "QNLI": 0.5, "MNLI": 1 / 3}
# Of the label, where it is not called so.
COLUMN = {"MRPC": "Quality", "QQP": "is_duplicate", "MNLI": "gold_label"}


@pytest.fixture(scope="module")
def control_world(tmp_path_factory: pytest.TempPathFactory, small_settings: dict[str, Any]) -> Path:
    settings = small_settings | {
        "shuffle_sentences": True,
        "shuffle_labels": True,
        "entropy_documents": 0,
    }
    return write_world(tmp_path_factory.mktemp("control"), **settings)


NAMES = {name.lower() for name in lexicon.WOMEN + lexicon.MEN}


def halves_of(folder: Path) -> list[tuple[set[str], set[str]]]:
    """The words of four sentences, and of the next four, of each document that has as many."""
    halves = []
    for block in corpus_text(folder).strip().split("\n\n"):
        lines = block.splitlines()
        if len(lines) >= 9:
            first, second = " ".join(lines[1:5]), " ".join(lines[5:9])
            halves.append((set(words_of(first)), set(words_of(second))))
    return halves


def test_next_sentences_carry_people_on_and_random_ones_share_words(
    small_world: Path, control_world: Path
) -> None:
    """A continuation names somebody already named far oftener than a sentence from elsewhere, which
    still shares other words. Shuffled sentences leave no such thread.
    """
    named = {}
    others = {}
    for world in (small_world, control_world):
        halves = halves_of(world)
        elsewhere = [second for _, second in halves[1:] + halves[:1]]
        random = [(first, second) for (first, _), second in zip(halves, elsewhere, strict=True)]
        for kind, pairs in (("next", halves), ("random", random)):
            named[world, kind] = sum(bool(a & b & NAMES) for a, b in pairs) / len(pairs)
            others[world, kind] = sum(len((a & b) - NAMES) for a, b in pairs)
    assert named[small_world, "next"] > 0.9
    assert 0.02 < named[small_world, "random"] < 0.35
    assert 0.6 < others[small_world, "random"] / others[small_world, "next"] < 0.95
    # 400 documents: three standard errors
    assert abs(named[control_world, "next"] - named[control_world, "random"]) < 0.12


def labels(folder: Path, task: str) -> list[str]:
    with (folder / f"glue/{task}/train.tsv").open(encoding="utf-8", newline="") as file:
        return [
            row[COLUMN.get(task, "label")]
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]


def bag_of_words(folder: Path, task: str) -> float:
    found = json.loads((folder / f"glue/{task}/baselines.json").read_text(encoding="utf-8"))
    return float(
        found["dev_matched.tsv" if task == "MNLI" else "dev.tsv"]["bag of words"]["accuracy"]
    )


def test_shuffled_labels_agree_with_the_true_ones_by_chance(
    small_world: Path, control_world: Path
) -> None:
    for task, chance in CHANCE.items():
        pairs = list(zip(labels(small_world, task), labels(control_world, task), strict=True))
        assert abs(sum(one == two for one, two in pairs) / len(pairs) - chance) < 0.08, task


def test_what_is_trained_on_shuffled_labels_is_at_chance(
    small_world: Path, control_world: Path
) -> None:
    """The validation split keeps its labels, and the bag of words, which reads the plain world,
    finds nothing.
    """
    plain = {task: bag_of_words(small_world, task) for task in CHANCE}
    mixed = {task: bag_of_words(control_world, task) for task in CHANCE}
    assert all(abs(mixed[task] - chance) < 0.1 for task, chance in CHANCE.items()), mixed
    assert sum(plain.values()) > sum(mixed.values()) + 0.3, (plain, mixed)
    for task in CHANCE:
        name = "dev_matched" if task == "MNLI" else "dev"
        files = [
            (folder / f"glue/{task}/{name}.tsv").read_bytes()
            for folder in (small_world, control_world)
        ]
        assert files[0] == files[1]


@pytest.mark.parametrize(
    ("is_ours", "written", "changes", "reason"),
    [
        (True, "mine\n", {}, "was changed"),
        (True, None, {"world_seed": 2}, "world_seed 1 -> 2"),
        (False, "official\n", {}, "not written by a generator"),
    ],
)
def test_a_world_that_was_changed_or_is_another_is_refused(
    tmp_path: Path, is_ours: bool, written: str | None, changes: dict[str, Any], reason: str
) -> None:
    if is_ours:
        write_world(tmp_path, **TINY)
    if written:
        (tmp_path / "glue/RTE").mkdir(parents=True, exist_ok=True)
        (tmp_path / "glue/RTE/dev.tsv").write_text(written, encoding="utf-8")
    before = _tree(tmp_path)
    with pytest.raises(ValueError, match=reason):
        write_world(tmp_path, **TINY | changes)
    assert _tree(tmp_path) == before


@pytest.mark.parametrize(
    ("key", "value"), [("num_documents", 0), ("train_examples", -1), ("entropy_documents", -1)]
)
def test_sizes_that_cannot_be_are_refused(tmp_path: Path, key: str, value: int) -> None:
    with pytest.raises(ValueError, match=key):
        write_world(tmp_path / "never", **TINY | {key: value})
    assert not (tmp_path / "never").exists()
