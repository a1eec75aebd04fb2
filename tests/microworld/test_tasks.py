"""Each task's files: official columns, even classes, labels that follow from the text, answers
where they are said to be."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from microworld.baselines import surface_baselines
from microworld.decisions import Choices
from microworld.grammar import TEMPLATES, slots_of
from microworld.lexicon import (
    ANY_VERBS,
    COMPARISONS,
    KIND_VERBS,
    MEN,
    SURNAMES,
    TRANSFERS,
    WOMEN,
    Person,
    split_of,
)
from microworld.pairs import HOME_SCENES
from microworld.passages import tell_passage

NLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
    "sentence1_parse\tsentence2_parse\tsentence1\tsentence2"
)
HEADERS = {
    "SST-2/train": "sentence\tlabel",
    "SST-2/test": "index\tsentence",
    "MRPC/dev": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "MRPC/test": "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "QQP/train": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "QQP/test": "id\tquestion1\tquestion2",
    "STS-B/train": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
    ),
    "RTE/train": "index\tsentence1\tsentence2\tlabel",
    "RTE/test": "index\tsentence1\tsentence2",
    "QNLI/dev": "index\tquestion\tsentence\tlabel",
    "MNLI/train": f"{NLI}\tlabel1\tgold_label",
    "MNLI/dev_mismatched": f"{NLI}\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
    "CoLA/test": "index\tsentence",
}


def read_tsv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.mark.parametrize("name", HEADERS)
def test_official_headers(small_world: Path, name: str) -> None:
    lines = (small_world / f"glue/{name}.tsv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == HEADERS[name]
    assert {line.count("\t") for line in lines} == {HEADERS[name].count("\t")}
    assert len(lines) == 1 + (600 if name.endswith("train") else 300)


def test_cola_has_no_header_and_stars_what_is_wrong(small_world: Path) -> None:
    rows = [
        line.split("\t")
        for line in (small_world / "glue/CoLA/train.tsv").read_text(encoding="utf-8").splitlines()
    ]
    assert len(rows) == 600
    assert {(label, mark) for _, label, mark, _ in rows} == {("0", "*"), ("1", "")}


@pytest.mark.parametrize(
    ("name", "column", "classes"),
    [
        ("SST-2/train", "label", 2),
        ("MRPC/train", "Quality", 2),
        ("QQP/train", "is_duplicate", 2),
        ("RTE/train", "label", 2),
        ("QNLI/train", "label", 2),
        ("MNLI/train", "gold_label", 3),
    ],
)
def test_classes_are_even(small_world: Path, name: str, column: str, classes: int) -> None:
    counts = Counter(row[column] for row in read_tsv(small_world / f"glue/{name}.tsv"))
    assert len(counts) == classes
    assert max(counts.values()) / 600 < 1 / classes + 0.07


# ---- labels, checked by reading the sentences back
# ------------------------------------------------------------------------------

VERBS = [*chain(ANY_VERBS, *KIND_VERBS.values())]
BASE_OF = {past: base for base, past, _ in VERBS}
BASE_OF |= {participle: base for base, _, participle in VERBS}
GIVE_OF: dict[str, str] = {}
for transfer in TRANSFERS:
    GIVE_OF |= dict.fromkeys(transfer, transfer[0])
PROPERTY_OF: dict[str, str] = {}
for more, (less, plain) in COMPARISONS.items():
    PROPERTY_OF |= dict.fromkeys((more, less, plain), more)
PERSON = r"[A-Z][a-z]+ [A-Z][a-z]+"
SLOT_PATTERNS = {"obj": r"[Tt]he [a-z]+", "place": r"[Tt]he [a-z]+", "place2": r"[Tt]he [a-z]+"}


def _pattern(template: str) -> re.Pattern[str]:
    text = re.escape(template).replace(r"\{", "{").replace(r"\}", "}")
    for slot in slots_of(template):
        inner = PERSON if slot[0] in "PQ" else SLOT_PATTERNS.get(slot, r"[A-Za-z]+")
        text = text.replace("{" + slot + "}", f"(?P<{slot}>{inner})")
    return re.compile(text + "$")


PATTERNS: list[tuple[str, re.Pattern[str]]] = []
for kind in ("did", "transfer", "compare"):
    PATTERNS += [(kind, _pattern(text)) for text in TEMPLATES[kind]]


def _fits(slots: dict[str, str]) -> bool:
    """Whether the comparison's form belongs in its slot ("poorer" is never `more`)."""
    less = {less for less, _ in COMPARISONS.values()}
    return slots.get("more", "older") in COMPARISONS and slots.get("less", "younger") in less


def meanings(sentence: str) -> set[tuple[str, ...]]:
    """Every fact that the sentence can be read as."""
    found = set()
    for kind, pattern in PATTERNS:
        if not (match := pattern.match(sentence)):
            continue
        if kind == "compare" and not _fits(match.groupdict()):
            continue
        slots = {
            name.removesuffix("_obj"): value.lower() for name, value in match.groupdict().items()
        }
        forms = [
            slots.get(name)
            for name in ("base", "past", "part", "rpast", "more", "less", "plain")
            if name in slots
        ]
        table = {"did": BASE_OF, "transfer": GIVE_OF, "compare": PROPERTY_OF}[kind]
        verb = table.get(forms[-1] or "", forms[-1] or "")
        found.add(
            (kind, verb, *(slots.get(name, "") for name in ("P", "Q", "obj", "place", "day")))
        )
    return found


def test_paraphrases_mean_the_same_and_others_do_not(small_world: Path) -> None:
    for row in read_tsv(small_world / "glue/MRPC/train.tsv"):
        one, two = meanings(row["#1 String"]), meanings(row["#2 String"])
        assert one and two, row
        assert bool(one & two) == (row["Quality"] == "1"), row


def test_similarity_falls_with_each_difference(small_world: Path) -> None:
    rows = read_tsv(small_world / "glue/STS-B/train.tsv")
    assert {row["score"] for row in rows} == {f"{number}.000" for number in range(6)}
    for row in rows:
        same = bool(meanings(row["sentence1"]) & meanings(row["sentence2"]))
        assert same == (row["score"] == "5.000"), row


# ---- spans
# ------------------------------------------------------------------------------


def _paragraphs(path: Path) -> list[dict[str, Any]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    result = []
    for article in content["data"]:
        result.extend(article["paragraphs"])
    return result


@pytest.mark.parametrize("name", ["train-v1.1", "dev-v1.1", "train-v2.0", "dev-v2.0"])
def test_answers_stand_where_they_are_said_to(small_world: Path, name: str) -> None:
    entries = []
    for paragraph in _paragraphs(small_world / f"squad/{name}.json"):
        entries += [(paragraph["context"], entry) for entry in paragraph["qas"]]
    assert len(entries) == (600 if name.startswith("train") else 300)
    assert len({qa["id"] for _, qa in entries}) == len(entries)
    for context, qa in entries:
        for answer in qa["answers"]:
            assert context[answer["answer_start"] :].startswith(answer["text"])
        if "v2.0" in name:
            assert qa["is_impossible"] == (not qa["answers"])
        else:
            assert len(qa["answers"]) == 1 and "is_impossible" not in qa
    if "v2.0" in name:
        share = sum(qa["is_impossible"] for _, qa in entries) / len(entries)
        assert 0.25 < share < 0.55


def test_every_passage_has_a_rival_answer() -> None:
    for number in range(50):
        passage = tell_passage(Choices(f"rival {number}"), "train", HOME_SCENES)
        did = [fact for fact in passage.facts if fact.kind == "did"]
        assert {fact.people[0] for fact in did} == set(passage.cast)
        assert 3 <= len(passage.told) <= 4


def test_continuations_have_the_official_header(small_world: Path) -> None:
    with (small_world / "swag/train.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    header = (
        ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,"
        "ending0,ending1,ending2,ending3,label"
    )
    assert ",".join(rows[0]) == header
    for row in rows:
        assert row["startphrase"] == f"{row['sent1']} {row['sent2']}"
        assert len({row[f"ending{number}"] for number in range(4)}) == 4
    assert max(Counter(row["label"] for row in rows).values()) < 0.33 * len(rows)


def test_entities_in_conll_columns(small_world: Path) -> None:
    text = (small_world / "ner/train.txt").read_text(encoding="utf-8")
    assert text.startswith("-DOCSTART- -X- -X- O\n\n")
    lines = [line.split(" ") for line in text.splitlines() if line]
    assert {len(line) for line in lines} == {4}
    tags = [line[-1] for line in lines]
    assert set(tags) == {"O", "B-PER", "I-PER", "B-LOC", "B-ORG", "I-ORG"}
    assert all(tag[0] != "I" or before[2:] == tag[2:] for before, tag in itertools.pairwise(tags))
    by_word: dict[str, set[str]] = {}
    for word, _, _, tag in lines:
        by_word.setdefault(word, set()).add(tag)
    assert sum(len(found) > 1 for found in by_word.values()) > 20  # the word alone does not decide


def test_surface_stays_below_the_ceiling(small_world: Path) -> None:
    files = {}
    for path in small_world.rglob("*.*"):
        files[str(path.relative_to(small_world))] = path.read_text()
    results = surface_baselines(files)
    tasks = ("CoLA", "SST-2", "MRPC", "QQP", "STS-B", "RTE", "QNLI")
    expected = {f"glue/{name}/dev.tsv" for name in tasks}
    expected |= {"glue/MNLI/dev_matched.tsv", "glue/MNLI/dev_mismatched.tsv", "swag/val.csv"}
    expected |= {"ner/dev.txt", "squad/dev-v1.1.json", "squad/dev-v2.0.json"}
    assert set(results) == expected
    for file, baselines in results.items():
        ceiling = 85.0 if "squad" in file else 0.85
        for scores in baselines.values():
            assert all(-0.2 < score < ceiling for score in scores.values()), (file, scores)
    # The bag finds what lies on the surface: a task in which it was at chance would be a broken
    # baseline.
    assert results["glue/QNLI/dev.tsv"]["bag of words"]["accuracy"] > 0.55
    kept = json.loads((small_world / "glue/QNLI/baselines.json").read_text())["dev.tsv"]
    assert set(kept) == {"bag of words", "longest overlap"}
    found = results["glue/QNLI/dev.tsv"]["bag of words"]["accuracy"]
    assert kept["bag of words"]["accuracy"] == pytest.approx(found, abs=1e-4)


# ---- nothing of an evaluated example can be looked up in the corpus or in the training file
# --------------------------

FULL_NAME = re.compile(rf"\b({'|'.join(WOMEN + MEN)}) ({'|'.join(SURNAMES)})\b")
FILES = {
    "train": ["glue/*/train.tsv", "squad/train-*.json", "swag/train.csv", "ner/train.txt"],
    "validation": ["glue/*/dev*.tsv", "squad/dev-*.json", "swag/val.csv", "ner/dev.txt"],
    "test": ["glue/*/test*.tsv", "ner/test.txt"],
}


def _text(folder: Path, patterns: list[str]) -> str:
    paths = []
    for pattern in patterns:
        paths.extend(sorted(folder.glob(pattern)))
    assert paths
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return "\n".join(
        re.sub(r" -X- O \S+\n", " ", text) if "-DOCSTART-" in text else text for text in texts
    )


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_people_of_a_split_are_nowhere_else(small_world: Path, split: str) -> None:
    corpus = (small_world / "corpus/microworld.txt").read_text(encoding="utf-8")
    people = {
        " ".join(match.groups()) for match in FULL_NAME.finditer(_text(small_world, FILES[split]))
    }
    assert len(people) > 100
    assert {split_of(Person(*name.split())) for name in people} == {split}
    assert not [name for name in people if name in corpus]
    for other in set(FILES) - {split}:
        text = _text(small_world, FILES[other])
        assert not [name for name in people if name in text]


def test_answers_cannot_be_read_off_the_corpus(small_world: Path) -> None:
    """Looking up the sentence of the corpus that shares most words with a question gives the answer
    no oftener than looking up the question of another passage."""
    sentences = (
        (small_world / "corpus/microworld.txt").read_text(encoding="utf-8").lower().splitlines()
    )
    bags = [set(re.findall(r"\w+", sentence)) for sentence in sentences if sentence]
    entries = []
    for paragraph in _paragraphs(small_world / "squad/dev-v1.1.json"):
        entries += paragraph["qas"]
    entries = entries[:150]
    answers = [
        set(re.findall(r"\w+", qa["answers"][0]["text"].lower())) - {"the"} for qa in entries
    ]
    found = []
    for qa in entries:
        asked = set(re.findall(r"\w+", qa["question"].lower()))
        found.append(max(bags, key=lambda bag: len(bag & asked)))
    right = sum(answer <= bag for answer, bag in zip(answers, found, strict=True))
    # By chance: the answers beside the sentences of other questions, at ten shifts.
    num_hits = 0
    for shift in range(1, 11):
        shifted = found[shift:] + found[:shift]
        num_hits += sum(answer <= bag for answer, bag in zip(answers, shifted, strict=True))
    chance = num_hits / 10
    assert right - chance < 0.08 * len(entries)
