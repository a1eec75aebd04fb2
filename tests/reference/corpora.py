"""Small corpora whose prepared bytes are frozen, in frozen_corpora.json.

    python -m tests.reference.corpora        writes the file anew

Freeze anew only where other bytes are meant, and write the reason down in README.md.
"""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import zstandard
from pyarrow import feather
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, processors

from clozelab.corpus.files import CorpusSource
from clozelab.corpus.preparation.pool import ShardPool
from clozelab.corpus.prepare import MakePool, plan_corpus, prepare_corpus
from clozelab.corpus.steps.clean import Clean
from clozelab.corpus.steps.step import CorpusStep
from clozelab.corpus.tokenizer_settings import TokenizerSettings
from clozelab.corpus.tokenizers import SPECIAL_TOKENS

FROZEN = Path(__file__).with_name("frozen_corpora.json")
SYLLABLES = ["ka", "lo", "mi", "re", "tun", "sa", "vel", "ino", "bar", "qu", "é", "sch"]
WORDPIECE = {"kind": "wordpiece", "vocab_size": 200, "lowercase": True}
BYTE_BPE = {"kind": "byte_bpe", "vocab_size": 320, "lowercase": False, "add_prefix_space": False}
COUNTED = ("counts", "skipped", "first_unusable_rows", "removed", "unknown_fraction", "vocab_size")


@dataclass
class FrozenCorpus:
    """Files to write below a data folder, and the settings to prepare them with."""

    write: Callable[[Path], None]
    paths: list[str]
    tokenizer: dict[str, Any] = field(default_factory=lambda: WORDPIECE)
    validation_fraction: float = 0.1
    text_field: str = "text"


# Text


def words(seed: int) -> Iterator[str]:
    """Words without end, some more frequent than others."""
    draw = random.Random(seed)
    lexicon = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(300)]
    while True:
        yield lexicon[int(300 * draw.random() ** 2)]


def sentences(seed: int, number: int) -> list[str]:
    draw = random.Random(seed)
    source = words(seed % 7)
    lines = []
    for _ in range(number):
        line = " ".join(next(source) for _ in range(draw.randint(3, 14)))
        lines.append(f"{line.capitalize()}{draw.choice('.!?')}")
    return lines


def document(seed: int, paragraphs: int = 3) -> str:
    """Paragraphs of several sentences, with some dirt and some quotations."""
    draw = random.Random(seed)
    texts = []
    for number in range(paragraphs):
        text = " ".join(sentences(1000 * seed + number, draw.randint(1, 5)))
        dirt = draw.choice(["", "<br>", "&amp; ", "## ", "\u200b", '"', "**bold** ", "_so_ "])
        texts.append(f"{dirt}{text}")
    return "\n".join(texts)


def plain(seed: int, documents: int) -> str:
    """One sentence a line, blank lines between documents."""
    texts = []
    for number in range(documents):
        texts.append("\n".join(sentences(seed + number, 1 + number % 6)))
    return "\n\n".join(texts) + "\n"


def rows(seed: int, number: int) -> list[str]:
    return [document(seed + row) for row in range(number)]


def jsonl(texts: list[str]) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


# Files


def write_text(folder: Path) -> None:
    (folder / "a.txt").write_text(plain(1, 80))
    (folder / "b.txt").write_text("\ufeff" + plain(200, 60).replace("\n", "\r\n") + "\r\n \r\n")


def write_packed(folder: Path) -> None:
    content = jsonl(rows(1, 120)).encode()
    half = len(content) // 2
    packed = zstandard.compress(content[:half]) + zstandard.compress(content[half:])
    (folder / "a.jsonl.zst").write_bytes(packed)


def write_csv(folder: Path) -> None:
    table = pandas.DataFrame({"id": range(90), "text": rows(5, 90)})
    table.loc[7, "text"] = None
    table.loc[8, "text"] = "<br>"
    table.to_csv(folder / "a.csv", index=False)


def write_tables(folder: Path) -> None:
    pandas.DataFrame({"body": rows(9, 90)}).to_parquet(folder / "a.parquet", row_group_size=16)
    table = pyarrow.table({"body": rows(300, 50)})
    feather.write_feather(table, folder / "b.arrow", compression="uncompressed")


def write_several(folder: Path) -> None:
    """Duplicates in a file, between files, and between sources; one source has one stretch."""
    texts = rows(20, 60)
    (folder / "a.jsonl").write_text(jsonl([*texts, *texts[:9]]))
    packed = gzip.compress(jsonl([*texts[50:], *rows(400, 30)]).encode(), mtime=0)
    (folder / "b.jsonl.gz").write_bytes(packed)
    pandas.DataFrame({"text": [*texts[5:9], *rows(600, 40)]}).to_parquet(folder / "c.parquet")
    (folder / "d.txt").write_text("A single document.\nIt has two lines.\n")
    (folder / "e.txt").write_text(plain(1, 30) + "\n" + plain(1, 35))


def write_long(folder: Path) -> None:
    """A book of several stretches, one without line ends, and short documents."""
    (folder / "a.txt").write_text("\n".join(sentences(3, 5000)))
    book = " ".join(sentences(4, 1500))
    long_line = " ".join(next(iter([word])) for word, _ in zip(words(1), range(3000), strict=False))
    (folder / "b.jsonl").write_text(jsonl([book, *rows(50, 30), long_line, book]))


def write_bad(folder: Path) -> None:
    lines = jsonl(rows(70, 400)).splitlines()
    lines[30] = "{"
    lines[31] = json.dumps({"body": "no text"})
    lines[32] = json.dumps({"text": None})
    lines[33] = json.dumps({"text": "A stray\0\0 one, and half \ud83d a character."})
    (folder / "a.jsonl").write_text("\n".join(lines))
    text = plain(9, 120).encode().split(b"\n")
    text[60] = b"\xff\xfe broken"
    (folder / "b.txt").write_bytes(b"\n".join(text))


def write_given(folder: Path) -> None:
    write_text(folder)
    letters = "abcdefghijklmnoprstuvwxyz."  # without q
    entries = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]
    entries += ["##ka", "##lo", "sa", "tun", "vel"]
    (folder / "vocab.txt").write_text("\n".join(entries))


def write_rules(folder: Path) -> None:
    """A tokenizer.json of whole words, and text of which some words are unknown."""
    write_packed(folder)
    names = ["<none>", "<odd>", "<begin>", "<end>", "<hole>"]
    known = sorted({word for word, _ in zip(words(2), range(2000), strict=False)})
    vocabulary = {word: index for index, word in enumerate([*names, *known])}
    library = Library(models.WordLevel(vocabulary, unk_token="<odd>"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.post_processor = processors.TemplateProcessing(
        single="<begin> $A <end>",
        pair="<begin> $A <end> $B:1 <end>:1",
        special_tokens=[("<begin>", 2), ("<end>", 3)],
    )
    (folder / "words").mkdir()
    library.save(str(folder / "words" / "tokenizer.json"))
    roles = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    config = json.dumps(dict(zip(roles, names, strict=True)))
    (folder / "words" / "tokenizer_config.json").write_text(config)


def write_odd(folder: Path) -> None:
    """Speeches, long sentences, other scripts, and lines that hold no word."""
    speech = ' "'.join(sentences(8, 40)) + '"'
    texts = [
        f'He said: "{speech}',
        "汉语又称中文。华唐话很长。" * 40,
        "Wort-für-Wort " * 400,
        "-----\n* * *\n...\nWord.",
        "a<b and c>d\x93 \u2028 next line\x0cpage",
        "=== \n",
        # BERT's cleaning removes letters that are newer than its tables.
        "\U00010f30\U00010f31\nA line behind them.",
        *rows(90, 60),
    ]
    (folder / "a.jsonl").write_text(jsonl(texts))


EVERY_SOURCE = ["a.jsonl", "b.jsonl.gz", "c.parquet", "d.txt", "e.txt"]
RULES = {"kind": "wordpiece", "vocab_size": 9, "lowercase": False}
CORPORA = {
    "text": FrozenCorpus(write_text, ["*.txt"]),
    "jsonl_zst": FrozenCorpus(write_packed, ["a.jsonl.zst"]),
    "csv": FrozenCorpus(write_csv, ["a.csv"], validation_fraction=0.3),
    "tables": FrozenCorpus(write_tables, ["a.parquet", "b.arrow"], text_field="body"),
    "several": FrozenCorpus(write_several, EVERY_SOURCE),
    "one_source_of_several": FrozenCorpus(write_several, ["*.*"], validation_fraction=0.02),
    "long": FrozenCorpus(write_long, ["a.txt", "b.jsonl"]),
    "bad": FrozenCorpus(write_bad, ["a.jsonl", "b.txt"]),
    "given": FrozenCorpus(write_given, ["a.txt", "b.txt"], WORDPIECE | {"vocab_file": "vocab.txt"}),
    "byte_bpe": FrozenCorpus(write_packed, ["a.jsonl.zst"], BYTE_BPE),
    "byte_bpe_several": FrozenCorpus(write_several, EVERY_SOURCE, BYTE_BPE),
    "rules": FrozenCorpus(
        write_rules, ["a.jsonl.zst"], RULES | {"vocab_file": "words/tokenizer.json"}
    ),
    "sampled": FrozenCorpus(write_several, EVERY_SOURCE, WORDPIECE | {"sample_characters": 20_000}),
    "roberta": FrozenCorpus(write_csv, ["a.csv"], WORDPIECE | {"kind": "wordpiece_roberta"}),
    "cased": FrozenCorpus(write_odd, ["a.jsonl"], WORDPIECE | {"lowercase": False}),
    "odd_bytes": FrozenCorpus(write_odd, ["a.jsonl"], BYTE_BPE),
}


def prepare(
    corpus: FrozenCorpus,
    folder: Path,
    cache: str = "cache",
    steps: Sequence[CorpusStep] = (Clean(),),
    workers: int = 1,
    make_pool: MakePool | None = None,
) -> Path:
    """Write a corpus's files below `folder` unless they are there, and prepare it."""
    data = folder / "data"
    if not data.exists():
        data.mkdir(parents=True)
        corpus.write(data)
    sources = []
    for number, path in enumerate(corpus.paths):
        sources.append(CorpusSource(f"source{number}", path, text_field=corpus.text_field))
    plan = plan_corpus(
        name="frozen",
        sources=sources,
        data_dir=data,
        cache_dir=folder / cache,
        tokenizer=TokenizerSettings(**corpus.tokenizer),
        validation_fraction=corpus.validation_fraction,
        steps=steps,
    )
    if make_pool is None:
        make_pool = partial(ShardPool, workers=workers)
    return prepare_corpus(plan, 1.0, make_pool).folder


def facts(prepared: Path) -> dict[str, Any]:
    """Checksums of every file but the manifest, and what the manifest counts."""
    manifest = json.loads((prepared / "manifest.json").read_text())
    checksums = {}
    for path in sorted(prepared.rglob("*")):
        if path.is_file() and path.name != "manifest.json":
            checksums[path.relative_to(prepared).as_posix()] = sha256(path.read_bytes()).hexdigest()
    counted = {key: manifest[key] for key in COUNTED if key in manifest}
    return {"files": checksums, "fingerprint": manifest["fingerprint"], **counted}


def main() -> None:
    frozen = {}
    for name, corpus in CORPORA.items():
        with tempfile.TemporaryDirectory() as folder:
            frozen[name] = facts(prepare(corpus, Path(folder)))
    FROZEN.write_text(json.dumps(frozen, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
