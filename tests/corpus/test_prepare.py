"""Preparation as a whole: the shards hold the text, the cache is addressed by content."""

from __future__ import annotations

import json
import multiprocessing
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from pyarrow import parquet
from tests.screens import shows
from tokenizers import Tokenizer as Library

from clozelab.corpus import prepare
from clozelab.corpus.files import CorpusCounts, CorpusSource, Rows, Shard, TableFile
from clozelab.corpus.preparation import texts
from clozelab.corpus.prepare import plan_corpus, prepare_corpus
from clozelab.corpus.shards import PreparedCorpus, TokenShards
from clozelab.corpus.tokenizer_settings import TokenizerSettings
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer

NOUNS = ["cat", "dog", "house", "river", "mountain", "song"]


def make_text(num_documents: int, first: int = 0) -> str:
    """One sentence a line, a blank line between documents; no two documents alike."""
    documents = []
    for index in range(first, first + num_documents):
        lines = [
            f"The {NOUNS[(index + n) % 6]} number {index} has {n} friends."
            for n in range(1 + index % 4)
        ]
        documents.append("\n".join(lines))
    return "\n\n".join(documents) + "\n"


WORDPIECE = {"kind": "wordpiece", "vocab_size": 150, "lowercase": True}
RULES = ("kind", "vocab_size", "lowercase", "vocab_file", "add_prefix_space", "sample_characters")


def run(tmp_path: Path, path: str | None = None, **changes: Any) -> Path:
    """The folder of a prepared corpus of two sources, or of one at `path`."""
    if path is not None:
        changes["sources"] = [CorpusSource("one", path)]
    arguments: dict[str, Any] = {
        "name": "small",
        "sources": [CorpusSource("one", "one.txt"), CorpusSource("two", "two.txt")],
        "data_dir": tmp_path / "data",
        "cache_dir": tmp_path / "cache",
        "tokenizer": TokenizerSettings(
            **(WORDPIECE | {key: changes.pop(key) for key in [*changes] if key in RULES})
        ),
        "validation_fraction": 0.2,
    }
    share = changes.pop("max_unknown_share", 0.5)
    return prepare_corpus(plan_corpus(**(arguments | changes)), share).folder


def opened(*where: Any, **changes: Any) -> PreparedCorpus:
    """As `run`, the corpus itself."""
    return PreparedCorpus.open(run(*where, **changes))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "one.txt").write_text(make_text(60))
    (folder / "two.txt").write_text(make_text(40, first=60))
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_shards_hold_the_text(tmp_path: Path, data: Path) -> None:
    corpus = opened(tmp_path)
    corpus.require_checksums()
    documents = {}
    for split in (corpus.train, corpus.validation):
        assert split.source_names == ("one", "two")
        for d in range(split.num_documents):
            sentences = [
                tuple(
                    split.tokens[split.sentence_offsets[s] : split.sentence_offsets[s + 1]].tolist()
                )
                for s in range(split.document_offsets[d], split.document_offsets[d + 1])
            ]
            documents[tuple(sentences)] = int(split.document_source[d])
    expected = {}
    for source, name in enumerate(("one.txt", "two.txt")):
        for text in (data / name).read_text().strip().split("\n\n"):
            encoded = corpus.tokenizer.encode_batch(text.split("\n"))
            expected[tuple(tuple(ids.tolist()) for ids in encoded)] = source
    assert documents == expected
    assert len(documents) == 100
    assert 0 < corpus.validation.num_documents < corpus.train.num_documents
    counts = np.bincount(corpus.train.tokens[:])
    share = counts[counts > 0] / counts.sum()
    assert corpus.train.unigram_entropy == pytest.approx(-(share * np.log(share)).sum())


def test_one_corpus_has_one_result(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes do not depend on where the data lie, nor on how it is cut into batches."""
    first = run(tmp_path)
    moved = tmp_path / "elsewhere"
    data.rename(moved)
    monkeypatch.setattr("clozelab.corpus.preparation.writing.BATCH_CHARACTERS", 100)
    second = run(tmp_path, data_dir=moved, cache_dir=tmp_path / "cache2")
    assert first.name == second.name
    assert files_of(first) == files_of(second)
    assert str(tmp_path) not in (second / "manifest.json").read_text()


def test_long_documents_are_held_out_in_stretches(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every source gives its share, no book lies on one side, no text is joined over a cut."""
    monkeypatch.setattr("clozelab.corpus.preparation.survey.STRETCH_CHARACTERS", 400)
    books = []
    for book in range(4):
        books.append([f"Book {NOUNS[book]} says line {line}." for line in range(300)])
    (data / "two.txt").write_text("\n\n".join("\n".join(book) for book in books))
    corpus = opened(tmp_path, validation_fraction=0.1)
    position = {}
    for number, book in enumerate(books):
        for line, ids in enumerate(corpus.tokenizer.encode_batch(book)):
            position[tuple(ids.tolist())] = (60 + number, line)
    shares, seen = {}, []
    for name in ("train", "validation"):
        split = getattr(corpus, name)
        parts = [position_of(split, number, position) for number in range(split.num_documents)]
        lines = [
            part for source, part in zip(split.document_source, parts, strict=True) if source == 1
        ]
        for origin, part in zip(
            split.document_origin[split.document_source == 1], lines, strict=True
        ):
            assert {document for document, _ in part} == {origin}
            assert [line for _, line in part] == list(range(part[0][1], part[-1][1] + 1)), (
                "without a gap"
            )
        seen += chain.from_iterable(lines)
        tokens = np.diff(split.sentence_offsets[split.document_offsets])
        shares[name] = np.bincount(split.document_source, weights=tokens)
        numbers = {document for document, _ in chain.from_iterable(lines)}
        assert len(numbers) == 4 or name == "validation"
        assert len(lines) > 3, "of several places"
        assert name == "train" or max(map(len, lines)) <= 3 * 16, "a stretch is some 15 lines"
    assert sorted(seen) == sorted(position.values()), "all text, each line once"
    total = shares["train"] + shares["validation"]
    assert (abs(shares["validation"] / total - 0.1) < 0.02).all(), "of each source a tenth"


def position_of(split: TokenShards, number: int, position: dict[tuple[int, ...], Any]) -> list[Any]:
    """Where each sentence of a document stands in the text; None where it is not looked for."""
    low, high = split.document_offsets[number : number + 2]
    ranges = pairwise(split.sentence_offsets[low : high + 1])
    return [position.get(tuple(split.tokens[start:end].tolist())) for start, end in ranges]


def test_the_cache_is_used_and_addressed_by_content(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(tmp_path)
    changed = [
        run(tmp_path, vocab_size=120),
        run(tmp_path, lowercase=False),
        run(tmp_path, validation_fraction=0.3),
        run(tmp_path, "one.txt"),
    ]
    (data / "two.txt").write_text(make_text(41, first=60))
    changed.append(run(tmp_path))
    assert len({first, *changed}) == 6
    (data / "two.txt").write_text(make_text(40, first=60))
    monkeypatch.setattr(prepare, "_write_corpus", lambda *args: pytest.fail("prepared twice"))
    assert run(tmp_path) == first


def test_a_given_vocabulary_is_looked_for_below_data_dir_and_then_here(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sources are."""
    monkeypatch.chdir(tmp_path)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789."
    entries = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]
    (tmp_path / "vocab.txt").write_text("\n".join(entries))
    settings = TokenizerSettings(**(WORDPIECE | {"vocab_file": "vocab.txt"}))
    given = settings.given("data")
    assert given is not None and given.vocabulary == tuple(entries)
    (data / "vocab.txt").write_text("\n".join([*entries, "friend"]))
    given = settings.given("data")
    assert given is not None and given.vocabulary[-1] == "friend"
    with pytest.raises(ValueError, match=r"data/none/tokenizer\.json does not exist"):
        TokenizerSettings(**(WORDPIECE | {"vocab_file": "none/tokenizer.json"})).given("data")


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_a_corpus_has_the_token_types_of_the_vocabulary_that_was_given(
    tmp_path: Path, data: Path, order: tuple[str, str]
) -> None:
    learnt = opened(tmp_path).tokenizer
    for number in order:
        given = learnt.with_token_types(number)
        (data / number).mkdir()
        for name, content in given.files().items():
            (data / number / name).write_bytes(content)
        folder = run(tmp_path, vocab_file=f"{number}/tokenizer.json")
        assert PreparedCorpus.open(folder).tokenizer.files() == given.files()


def test_two_processes_prepare_once(tmp_path: Path, data: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        folders = pool.map(run, [tmp_path, tmp_path])
    assert folders[0] == folders[1]
    PreparedCorpus.open(folders[0]).require_checksums()


def test_a_damaged_cache_folder_is_prepared_again(tmp_path: Path, data: Path) -> None:
    folder = run(tmp_path)
    before = files_of(folder)
    (folder / "train" / "sentence_offsets.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"sentence_offsets.bin has 0 bytes"):
        PreparedCorpus.open(folder)
    assert files_of(run(tmp_path)) == before


def test_the_manifest_says_what_was_skipped(tmp_path: Path, data: Path) -> None:
    rows = [json.dumps({"text": f"Row {index} is a document."}) for index in range(300)]
    (data / "rows.jsonl").write_text("\n".join([*rows, rows[0], "{", json.dumps({"text": "<br>"})]))
    manifest = opened(tmp_path, "rows.jsonl").manifest
    assert manifest["counts"]["documents"] == 300
    assert manifest["skipped"]["duplicate document"] == 1
    assert manifest["skipped"]["empty document"] == 1
    assert manifest["skipped"]["no JSON object"] == 1
    assert manifest["first_unusable_rows"] == ["rows.jsonl:302: no JSON object"]


def test_two_documents_are_enough(tmp_path: Path, data: Path) -> None:
    (data / "tiny.txt").write_text("One document here.\n\nAnd another there.")
    corpus = opened(tmp_path, "tiny.txt", validation_fraction=0.001)
    assert (corpus.train.num_documents, corpus.validation.num_documents) == (1, 1)


def test_a_stretch_of_a_single_long_document_is_held_out(tmp_path: Path, data: Path) -> None:
    """A novel without a blank line: both sides together are the whole text, each line once."""
    lines = [f"The {NOUNS[n % 6]} of line {n} is long." for n in range(2000)]
    (data / "novel.txt").write_text("\n".join(lines))
    corpus = opened(tmp_path, "novel.txt", validation_fraction=0.01)
    assert corpus.validation.num_documents == 1 and corpus.train.num_documents <= 2
    assert corpus.train.num_sentences + corpus.validation.num_sentences == 2000
    assert 400 < corpus.validation.num_sentences < 700, "one of four stretches"


def test_removed_characters_are_in_the_manifest(tmp_path: Path, data: Path) -> None:
    assert "removed" not in opened(tmp_path).manifest
    with (data / "one.txt").open("a") as file:
        file.write("A stray\0 one.\n")
    manifest = opened(tmp_path).manifest
    assert manifest["removed"] == {"NUL character": 1} and "NUL byte" not in manifest["skipped"]


def unspaced(length: int, letters: str = "ACGT") -> str:
    rng = np.random.default_rng(0)
    return "\n\n".join("".join(rng.choice(list(letters), length)) for _ in range(30))


@pytest.mark.parametrize("letters", ["ACGT", "กขคงจฉชซ"])
def test_text_without_spaces_is_for_another_tokenizer(
    tmp_path: Path, data: Path, letters: str
) -> None:
    """Said at once; byte-level BPE reads it, and so does WordPiece where spaces are there."""
    (data / "one.txt").write_text(unspaced(400, letters))
    with pytest.raises(
        ValueError, match="there are no spaces between the words; tokenizer=byte_bpe needs none"
    ):
        run(tmp_path, "one.txt")
    assert not list((tmp_path / "cache" / "corpora").glob("small-*"))
    bpe = {"kind": "byte_bpe", "vocab_size": 300, "add_prefix_space": False}
    assert opened(tmp_path, "one.txt", **bpe).manifest["unknown_fraction"] == 0
    (data / "one.txt").write_text(
        "\n\n".join(" ".join([unspaced(9, letters)[:9]] * 3 + [str(n)]) for n in range(30))
    )
    run(tmp_path, "one.txt")


def test_text_without_spaces_is_not_warned_of(
    tmp_path: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (data / "one.txt").write_text(unspaced(400, "汉语又称中文华唐话"))
    corpus = opened(tmp_path, "one.txt")
    assert corpus.manifest["unknown_fraction"] == 0
    shows(
        caplog.text,
        "sentences have 400 characters on average: plain text needs one",
        "the text gives a vocabulary of 14 entries, 150 were asked for",
    )


@pytest.mark.parametrize(("lowercase", "every", "warns"), [(1, 20, 1), (1, 500, 0), (0, 20, 0)])
def test_words_that_lose_their_accents_are_counted(
    tmp_path: Path,
    data: Path,
    caplog: pytest.LogCaptureFixture,
    lowercase: int,
    every: int,
    warns: int,
) -> None:
    words = ["groß"] * 1000  # ß has no accent
    words[::every] = ["schön"] * len(words[::every])
    lines = [" ".join(words[start : start + 10]) for start in range(0, 1000, 10)]
    (data / "one.txt").write_text("\n\n".join(f"{line} {n}" for n, line in enumerate(lines)))
    run(tmp_path, "one.txt", lowercase=bool(lowercase))
    warned = [text for text in caplog.messages if "strips accents" in text]
    assert len(warned) == warns
    if warns:
        shows(warned[0], "changes 5% of the words ('schön' to 'schon')")


PARAGRAPHS = ["The river is long. " * 30 + f"It has number {index}." for index in range(20)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("\n\n".join(PARAGRAPHS), "characters on average: plain text needs one sentence a line"),
        (unspaced(70), "words have some 70 characters: are there no spaces between the words?"),
    ],
)
def test_a_text_that_looks_wrong_is_warned_of(
    tmp_path: Path, data: Path, caplog: pytest.LogCaptureFixture, text: str, sentence: str
) -> None:
    run(tmp_path)
    assert sentence not in caplog.text
    (data / "one.txt").write_text(text)
    run(tmp_path, "one.txt")
    assert sentence in caplog.text


def test_a_table_gives_the_same_shards_as_its_jsonl(tmp_path: Path, data: Path) -> None:
    texts = [f"The {NOUNS[n % 6]} has number {n}. It is long." for n in range(50)]
    (data / "x.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    pandas.DataFrame({"n": range(50), "body": texts}).to_parquet(data / "x.parquet")
    first, second = (opened(tmp_path, name) for name in ("x.jsonl", "x.parquet"))
    assert first.fingerprint == second.fingerprint and first.folder != second.folder
    assert second.manifest["settings"]["sources"][0]["files"][0]["column"] == "body"
    assert "column" not in first.manifest["settings"]["sources"][0]["files"][0]


def test_a_vocabulary_of_another_language_is_refused(tmp_path: Path, data: Path) -> None:
    (data / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *"абвгдежз", "."]))
    sentence = r"8\d\.\d% of the tokens of .*tokenizer\.vocab_file.* are \[UNK\]"
    with pytest.raises(ValueError, match=sentence):
        run(tmp_path, vocab_file="vocab.txt")
    assert not list((tmp_path / "cache" / "corpora").glob("small-*"))
    run(tmp_path, vocab_file="vocab.txt", max_unknown_share=0.95)


def test_unknown_tokens_are_counted(tmp_path: Path, data: Path) -> None:
    assert opened(tmp_path).manifest["unknown_fraction"] == 0
    letters = "abcdefghijklmnopqrstuvwxyz."  # no digits
    entries = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]
    (data / "vocab.txt").write_text("\n".join(entries))
    corpus = opened(tmp_path, vocab_file="vocab.txt")
    assert corpus.tokenizer.vocabulary == tuple(entries)
    tokens = np.concatenate([corpus.train.tokens[:], corpus.validation.tokens[:]])
    share = corpus.manifest["unknown_fraction"]
    assert share == pytest.approx((tokens == 1).mean()) and 0.01 < share < 0.5


def test_a_tokenizer_without_an_unknown_token_counts_none(tmp_path: Path, data: Path) -> None:
    """Its last entry is a token like any other."""
    letters = sorted({*make_text(100).lower()} - {" ", "\n"})
    entries = [*SPECIAL_TOKENS, "friend", *(f"##{letter}" for letter in letters), *letters]
    made = WordPieceTokenizer([*entries, "the"], lowercase=True)
    content = json.loads(made.files()["tokenizer.json"])
    content["model"]["unk_token"] = "[none]"
    content["added_tokens"] = [
        token for token in content["added_tokens"] if token["content"] != "[UNK]"
    ]
    (data / "tokenizer.json").write_text(json.dumps(content))
    corpus = opened(tmp_path, vocab_file="tokenizer.json")
    assert corpus.tokenizer.unk_id == -1
    assert (corpus.train.tokens[:] == corpus.tokenizer.vocab_size - 1).any()
    assert corpus.manifest["unknown_fraction"] == 0


def test_a_sample_without_a_text_is_refused_by_its_setting(tmp_path: Path, data: Path) -> None:
    """And not as text of another language than the vocabulary's, which has nothing."""
    with pytest.raises(ValueError, match="sample_characters=20 leaves no text to learn"):
        run(tmp_path, "one.txt", sample_characters=20)


def _peak_megabytes(tmp_path: Path) -> float:
    texts.SHARD_CHARACTERS = 500_000
    run(tmp_path, "one.txt", sample_characters=200_000)
    # ru_maxrss would begin at what the process had that started this one.
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak) / 1024


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """Of 2.9 MB of text more: what a document costs is half a kilobyte, and its text is let go.

    The first corpus is more than a batch already.
    """
    context = multiprocessing.get_context("spawn")
    peaks = []
    for num_documents in (12_000, 44_000):
        folder = tmp_path / str(num_documents)
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "one.txt").write_text(make_text(num_documents))
        with context.Pool(1) as pool:
            peaks.append(pool.apply(_peak_megabytes, (folder,)))
    assert peaks[1] < peaks[0] + 30


@pytest.mark.parametrize("kind", ["other names", "whole texts"])
def test_any_tokenizer_json_prepares_a_corpus(tmp_path: Path, data: Path, kind: str) -> None:
    """A kind that no code here names: the file and the roles of its special tokens are enough."""
    from tests.corpus.test_folder_tokenizers import KINDS

    KINDS[kind](data / "theirs")
    folder = run(tmp_path, vocab_file="theirs/tokenizer.json", max_unknown_share=1.0)
    corpus = PreparedCorpus.open(folder)
    assert corpus.tokenizer.mask_token == "<hole>"
    library = Library.from_file(str(data / "theirs/tokenizer.json"))
    sentences = [line for line in make_text(100).split("\n") if line]
    expected = {tuple(library.encode(line, add_special_tokens=False).ids) for line in sentences}
    found = set()
    for split in (corpus.train, corpus.validation):
        bounds = split.sentence_offsets.tolist()
        found |= {tuple(split.tokens[a:b].tolist()) for a, b in pairwise(bounds)}
    assert expected == found


@dataclass(frozen=True)
class RowGroup(TableFile):
    """A row group of a Parquet file, as a shard of its own."""

    group: int = 0

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "row_group": self.group}

    def rows(self, counts: CorpusCounts, advance: Any) -> Rows:
        with parquet.ParquetFile(self.path) as file:
            column = file.read_row_group(self.group, [self.text_field])[self.text_field]
        yield from enumerate(column.to_pylist(), 1)


class RowGroups(CorpusSource):
    def shards(self, index: int, data_dir: Path) -> list[Shard]:
        (whole,) = super().shards(index, data_dir)
        with parquet.ParquetFile(whole.path) as file:
            return [RowGroup(**vars(whole), group=group) for group in range(file.num_row_groups)]


def test_a_source_of_other_shards_gives_the_same_corpus(tmp_path: Path, data: Path) -> None:
    """The corpus is what its texts are in order; the folder's name is what the shards are."""
    texts = make_text(60).split("\n\n")
    pandas.DataFrame({"text": texts}).to_parquet(data / "one.parquet", row_group_size=7)
    serial = opened(tmp_path, "one.parquet")
    sharded = opened(tmp_path, sources=[RowGroups("one", "one.parquet")])
    assert sharded.folder != serial.folder and sharded.fingerprint == serial.fingerprint
    shards = sharded.manifest["settings"]["sources"][0]["files"]
    assert [shard["row_group"] for shard in shards] == list(range(9))


# What is refused


def one_bit_changed(folder: Path) -> None:
    tokens = folder / "train" / "tokens-00000.bin"
    content = bytearray(tokens.read_bytes())
    content[10] ^= 1
    tokens.write_bytes(content)


def other_words(folder: Path) -> None:
    path = folder / "tokenizer" / "vocab.txt"
    path.write_text(path.read_text().replace("cat", "cta"))


def other_tokenizer(folder: Path) -> None:
    other_words(folder)
    path = folder / "tokenizer" / "tokenizer.json"
    path.write_text(path.read_text().replace('"cat"', '"cta"'))


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (one_bit_changed, "tokens-00000.bin has changed"),
    (other_words, "vocab.txt has 'cta' where tokenizer.json has 'cat'"),
    (other_tokenizer, "is not the one the shards were made with"),
    (shutil.rmtree, "manifest.json is missing; run the prepare stage"),
]


@pytest.mark.parametrize(("damage", "sentence"), DAMAGES)
def test_a_damaged_corpus_does_not_open(
    tmp_path: Path, data: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    folder = run(tmp_path)
    PreparedCorpus.open(folder)
    damage(folder)
    with pytest.raises(ValueError, match=sentence):
        PreparedCorpus.open(folder).require_checksums()


@pytest.mark.parametrize("text", ["", "\n\n", "One document only.", "Twice the same.\n\n" * 2])
def test_a_corpus_too_small_to_split(tmp_path: Path, data: Path, text: str) -> None:
    (data / "tiny.txt").write_text(text)
    sentence = r"the corpus has [01] usable documents .*at least 2 are needed"
    with pytest.raises(ValueError, match=sentence):
        run(tmp_path, "tiny.txt")


ONE, TWO = CorpusSource("one", "one.txt"), CorpusSource("one", "two.txt")
PICTURE = CorpusSource("picture", "picture.txt")
BAD_SETTINGS: dict[str, dict[str, Any]] = {
    "names a folder": {"name": "../up"},
    "sources with different names": {"sources": [ONE, TWO]},
    r"absent.txt does not exist": {"vocab_file": "absent.txt"},
    r"picture.txt is binary": {"sources": [ONE, PICTURE]},
    r"vocab_size is 5: .*special tokens": {"vocab_size": 5},
}


@pytest.mark.parametrize(("sentence", "changes"), BAD_SETTINGS.items())
def test_settings_are_refused_before_anything_slow(
    tmp_path: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    sentence: str,
    changes: dict[str, Any],
) -> None:
    monkeypatch.setattr("clozelab.files.digests.file_sha256", lambda path: pytest.fail("slow step"))
    (data / "picture.txt").write_bytes(b"\x89PNG\0\0")
    with pytest.raises(ValueError, match=sentence):
        run(tmp_path, **changes)


def test_a_cache_that_cannot_be_written(tmp_path: Path, data: Path) -> None:
    sentence = r"cannot write below .*one.txt/corpora .*set cache_dir"
    with pytest.raises(ValueError, match=sentence):
        run(tmp_path, cache_dir=data / "one.txt")
