"""Where each task lies and how its file looks: the official layouts of GLUE, SQuAD, SWAG and
CoNLL-2003.

GLUE's TSV has no quoting and CoLA no header; test files carry no labels. Entities are people, towns
(LOC) and houses of trade (ORG). Many surnames are also towns or the first word of a house's name,
so the word alone does not decide.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from microworld import pairs, passages
from microworld.decisions import Choices
from microworld.grammar import Sentence
from microworld.lexicon import TOKEN, Person, Scene
from microworld.pairs import AWAY_SCENES, HOME_SCENES, Maker, Row
from microworld.stories import Story

Columns = tuple[tuple[str, str], ...]
"""(header, key of the row or, where no row has that key, a constant)."""


@dataclass(frozen=True)
class Table:
    """One GLUE task: its columns in the files with labels and in test.tsv."""

    maker: Maker
    labelled: Columns
    test: Columns
    has_header: bool = True
    key: str = ""
    """Name of the decisions' stream; the folder's name where empty."""


def _columns(text: str) -> Columns:
    """`header=key header=key`, `header` alone for a key of the same name."""
    pieces = (piece.partition("=") for piece in text.split("|"))
    return tuple((name, key or name) for name, _, key in pieces)


_PARSES = "sentence1_binary_parse=-|sentence2_binary_parse=-|sentence1_parse=-|sentence2_parse=-"
_NLI = f"index|promptID=index|pairID=index|genre|{_PARSES}|sentence1|sentence2"
_STSB = (
    "index|genre|filename=microworld|year=-|old_index=index|source1=none|source2=none"
    "|sentence1|sentence2"
)
TABLES: dict[str, Table] = {
    "CoLA": Table(
        pairs.cola,
        _columns("source=mw|label|mark|sentence"),
        _columns("index|sentence"),
        has_header=False,
    ),
    "SST-2": Table(pairs.sst2, _columns("sentence|label"), _columns("index|sentence")),
    "MRPC": Table(
        pairs.mrpc,
        _columns("Quality=label|#1 ID=index|#2 ID=index|#1 String=sentence1|#2 String=sentence2"),
        _columns("index|#1 ID=index|#2 ID=index|#1 String=sentence1|#2 String=sentence2"),
    ),
    "QQP": Table(
        pairs.qqp,
        _columns(
            "id=index|qid1=index|qid2=index|question1=sentence1|question2=sentence2"
            "|is_duplicate=label"
        ),
        _columns("id=index|question1=sentence1|question2=sentence2"),
    ),
    "STS-B": Table(pairs.stsb, _columns(f"{_STSB}|score=label"), _columns(_STSB)),
    "RTE": Table(
        pairs.rte,
        _columns("index|sentence1|sentence2|label"),
        _columns("index|sentence1|sentence2"),
    ),
    "QNLI": Table(
        passages.qnli,
        _columns("index|question|sentence|label"),
        _columns("index|question|sentence"),
    ),
    "MNLI": Table(pairs.mnli, _columns(f"{_NLI}|label1=label|gold_label=label"), _columns(_NLI)),
}
SWAG_COLUMNS = _columns(
    "=index|video-id|fold-ind=index|startphrase|sent1|sent2|gold-source=gold"
    "|ending0|ending1|ending2|ending3|label"
)
SPLIT_FILES = {"train": "train", "validation": "dev", "test": "test"}


def make_rows(
    maker: Maker, stream: str, split: str, scenes: Sequence[Scene], count: int
) -> list[Row]:
    """`count` examples; each depends on its stream and number alone."""
    rows = []
    for index in range(count):
        row = maker(Choices(f"{stream}/{split}/{scenes[0].name}/{index}"), split, scenes)
        genre = "home" if scenes is HOME_SCENES else "away"
        rows.append(row | {"index": str(index), "genre": genre, "mark": _mark(row["label"])})
    return rows


def shuffle_column(rows: Sequence[Row], key: str, choices: Choices) -> list[Row]:
    """The rows with one column's values permuted: the control in which nothing can be learnt."""
    values = choices.shuffled(key, [row[key] for row in rows])
    return [
        row | {key: value, "mark": _mark(value)} for row, value in zip(rows, values, strict=True)
    ]


def _mark(label: str) -> str:
    """CoLA's third column: the linguists' star."""
    return "*" if label == "0" else ""


def tsv(rows: Sequence[Row], columns: Columns, has_header: bool) -> str:
    lines = []
    if has_header:
        lines.append("\t".join(name for name, _ in columns))
    for row in rows:
        # A key that no row has is a constant: it stands for itself.
        lines.append("\t".join(row.get(key, key) for _, key in columns))
    return "\n".join(lines) + "\n"


def glue_files(seed: str, sizes: Mapping[str, int], shuffle_labels: bool) -> dict[str, str]:
    """Path below `glue/` -> content."""
    files = {}
    for name, table in TABLES.items():
        for split, scenes, path in _glue_splits(name):
            rows = make_rows(table.maker, f"{seed}/{name}", split, scenes, sizes[split])
            if shuffle_labels and split == "train":
                rows = shuffle_column(rows, "label", Choices(f"{seed}/{name}/shuffled"))
            has_header = table.has_header or split == "test"
            files[path] = tsv(rows, _glue_columns(name, split), has_header)
    return files


def _glue_columns(name: str, split: str) -> Columns:
    table = TABLES[name]
    if split == "test":
        return table.test
    if name != "MNLI" or split == "train":
        return table.labelled
    # MNLI's validation files show the labels of five annotators before the gold one.
    annotators = tuple((f"label{number}", "label") for number in range(2, 6))
    return (*table.labelled[:-1], *annotators, table.labelled[-1])


def _glue_splits(name: str) -> list[tuple[str, Sequence[Scene], str]]:
    if name != "MNLI":
        return [
            (split, HOME_SCENES, f"glue/{name}/{file}.tsv") for split, file in SPLIT_FILES.items()
        ]
    result: list[tuple[str, Sequence[Scene], str]] = [("train", HOME_SCENES, "glue/MNLI/train.tsv")]
    for split in ("validation", "test"):
        for suffix, scenes in (("matched", HOME_SCENES), ("mismatched", AWAY_SCENES)):
            result.append((split, scenes, f"glue/MNLI/{SPLIT_FILES[split]}_{suffix}.tsv"))
    return result


def squad_files(seed: str, sizes: Mapping[str, int], shuffle_labels: bool) -> dict[str, str]:
    files = {}
    for version, name in (("1.1", "v1.1"), ("v2.0", "v2.0")):
        for split in ("train", "validation"):
            content = passages.squad(seed, split, HOME_SCENES, sizes[split], version)
            if shuffle_labels and split == "train":
                _shuffle_answers(content, Choices(f"{seed}/squad-{version}/shuffled"))
            files[f"squad/{SPLIT_FILES[split]}-{name}.json"] = json.dumps(content) + "\n"
    return files


def _shuffle_answers(content: dict[str, Any], choices: Choices) -> None:
    """Every answer becomes some word of its passage; which questions have one is permuted too."""
    entries: list[tuple[str, dict[str, Any]]] = []
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            entries += [(paragraph["context"], entry) for entry in paragraph["qas"]]
    impossible = choices.shuffled(
        "impossible", [entry.get("is_impossible") for _, entry in entries]
    )
    for (context, entry), flag in zip(entries, impossible, strict=True):
        words = context.split(" ")
        index = choices.pick((entry["id"], "word"), range(len(words)))
        answer = {
            "text": words[index].rstrip(".,"),
            "answer_start": len(" ".join([*words[:index], ""])),
        }
        entry["answers"] = [] if flag else [answer]
        entry.pop("plausible_answers", None)
        if flag is not None:
            entry["is_impossible"] = flag


def swag_files(seed: str, sizes: Mapping[str, int], shuffle_labels: bool) -> dict[str, str]:
    files = {}
    for split, name in (("train", "train"), ("validation", "val")):
        rows = make_rows(passages.continuation, f"{seed}/SWAG", split, HOME_SCENES, sizes[split])
        if shuffle_labels and split == "train":
            rows = shuffle_column(rows, "label", Choices(f"{seed}/SWAG/shuffled"))
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow([column for column, _ in SWAG_COLUMNS])
        for row in rows:
            extra = {
                "video-id": f"microworld~{split}-{row['index']}",
                "startphrase": f"{row['sent1']} {row['sent2']}",
            }
            writer.writerow([(row | extra).get(key, key) for _, key in SWAG_COLUMNS])
        files[f"swag/{name}.csv"] = buffer.getvalue()
    return files


# ---- entities
# ------------------------------------------------------------------------------

Tagged = list[tuple[str, str]]
"""(token, IOB2 tag) of each token of a sentence."""
ENTITY_KINDS = ("home", "home", "employ", "employ", "transfer", "compare", "did")


def tagged_sentence(sentence: Sentence, cast: Sequence[Person]) -> Tagged:
    spans = _entity_spans(sentence, cast)
    return [(match.group(), _tag(match.start(), spans)) for match in TOKEN.finditer(sentence.text)]


def _entity_spans(sentence: Sentence, cast: Sequence[Person]) -> list[tuple[int, int, str]]:
    """(start, end, type) of each entity, in characters. A person is one only where named."""
    names = set()
    for person in cast:
        names |= {person.first, person.full}
    types = {"town": "LOC", "org": "ORG", "P": "PER", "Q": "PER", "P_obj": "PER", "Q_obj": "PER"}
    spans = []
    for slot, start, end in sentence.spans:
        if slot not in types:
            continue
        if types[slot] != "PER" or sentence.text[start:end] in names:
            spans.append((start, end, types[slot]))
    return spans


def _tag(position: int, spans: Sequence[tuple[int, int, str]]) -> str:
    """The IOB2 tag of the token that begins at a character."""
    for start, end, name in spans:
        if position == start:
            return f"B-{name}"
        if start < position < end:
            return f"I-{name}"
    return "O"


def tagged_document(choices: Choices, split: str, scenes: Sequence[Scene]) -> list[Tagged]:
    """A short story as tagged sentences."""
    story = Story(choices, split, scenes)
    result = []
    for index in range(choices.pick("length", range(4, 8))):
        kinds = [kind for kind in ENTITY_KINDS if story.can_tell(kind)]
        fact = story.new_fact(choices.pick((index, "kind"), kinds))
        result.append(tagged_sentence(story.tell(fact), story.cast))
    return result


def ner_files(seed: str, sizes: Mapping[str, int], shuffle_labels: bool) -> dict[str, str]:
    """`sizes` counts sentences. Four columns as CoNLL-2003; part of speech and chunk are
    placeholders.
    """
    files = {}
    for split, name in SPLIT_FILES.items():
        documents: list[list[Tagged]] = []
        while sum(map(len, documents)) < sizes[split]:
            choices = Choices(f"{seed}/ner/{split}/{len(documents)}")
            documents.append(tagged_document(choices, split, HOME_SCENES))
        if shuffle_labels and split == "train":
            documents = _shuffle_tags(documents, Choices(f"{seed}/ner/shuffled"))
        files[f"ner/{name}.txt"] = "".join(map(_conll_document, documents))
    return files


def _shuffle_tags(documents: list[list[Tagged]], choices: Choices) -> list[list[Tagged]]:
    """Every token gets a tag at random, each tag as often as before."""
    counts: Counter[str] = Counter()
    for document in documents:
        for sentence in document:
            counts.update(tag for _, tag in sentence)
    names = tuple(counts)
    weights = tuple(counts.values())
    shuffled = []
    for d, document in enumerate(documents):
        sentences = []
        for s, sentence in enumerate(document):
            tagged = []
            for t, (token, _) in enumerate(sentence):
                tagged.append((token, choices.pick((d, s, t), names, weights)))
            sentences.append(tagged)
        shuffled.append(sentences)
    return shuffled


def _conll_document(document: list[Tagged]) -> str:
    blocks = ["-DOCSTART- -X- -X- O\n\n"]
    for sentence in document:
        lines = [f"{token} -X- O {tag}\n" for token, tag in sentence]
        blocks.append("".join(lines) + "\n")
    return "".join(blocks)
