"""What this room refuses, and the sentence that says so: a row a case."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import zstandard
from tests.calling import call_with_fixtures
from tests.corpus import (
    test_documents,
    test_instances,
    test_prepare,
    test_released,
    test_shards,
    test_tables,
)

from clozelab.corpus.files import JsonLinesFile, Source
from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.instances import FullSentences, SegmentPairs
from clozelab.corpus.packing import Masking, SpecialIds
from clozelab.corpus.random import instance_indices
from clozelab.corpus.shards import PreparedCorpus, ShardWriter, TokenShards
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.readers.rows import open_rows

data = test_prepare.data
documents = test_shards.documents


def a_cut_off_file_is_an_error(tmp_path: Path, suffix: str) -> None:
    rng = random.Random(0)
    content = test_documents.jsonl(*({"text": f"Row {rng.random()}."} for _ in range(5000)))
    packed = gzip.compress(content) if suffix == ".gz" else zstandard.compress(content)
    (tmp_path / f"rows.jsonl{suffix}").write_bytes(packed[: len(packed) // 2])
    test_documents.read(tmp_path, "rows.jsonl*")


def many_bad_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        test_documents.jsonl(*({"text": f"Good {index}."} for index in range(50))) + b"{\n{\n"
    )
    test_documents.read(tmp_path, "a.jsonl")


def rows_without_the_field(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        test_documents.jsonl(*({"text": f"Good {index}."} for index in range(50))) + b"{\n{\n"
    )
    test_documents.read(tmp_path, "a.jsonl", text_field="body")


def a_file_of_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(256)) * 100)
    test_documents.read(tmp_path, "a.txt")


def a_file_in_utf16(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(256)) * 100)
    (tmp_path / "b.txt").write_text("wide", encoding="utf-16")
    test_documents.read(tmp_path, "b.txt")


def many_nuls_or_other_controls_are_binary(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    test_documents.read(tmp_path, "a.txt")


def a_wrong_file_is_known_by_its_beginning(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    (file,) = Source("source", name).shards(0, tmp_path)
    file.check()


def rows_too_short_for_pairs(make_shards: test_instances.MakeShards, ids: SpecialIds) -> None:
    pairs = SegmentPairs(0.5, "corpus")
    pairs.bind(make_shards([[3, 3], [3, 3]]), ids, 5)


def documents_of_one_sentence(make_shards: test_instances.MakeShards, ids: SpecialIds) -> None:
    pairs = SegmentPairs(0.5, "corpus")
    pairs.bind(make_shards([[3], [4]]), ids, 32)


def pairs_of_no_document(make_shards: test_instances.MakeShards, ids: SpecialIds) -> None:
    pairs = SegmentPairs(0.5, "corpus")
    pairs.bind(make_shards([]), ids, 32)


def pairs_of_a_single_document(make_shards: test_instances.MakeShards, ids: SpecialIds) -> None:
    pairs = SegmentPairs(0.5, "corpus")
    pairs.bind(make_shards([[3, 3, 3], [4]]), ids, 32)


def a_path_from_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, name in (
        (tmp_path / "here" / "texts", "a.txt"),
        (tmp_path / "data" / "both", "b.txt"),
    ):
        place.mkdir(parents=True)
        (place / name).write_text("one sentence\n")
    (tmp_path / "here" / "both").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Source("mine", "none").shards(0, tmp_path / "data")


def the_fields_that_there_are_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(json.dumps({"title": "t", "body": "b"}) for _ in range(20)) + "\n")
    JsonLinesFile(path, path.name, 0, "jsonl", "text").check()


def a_damaged_cache_folder_is_prepared_again(tmp_path: Path, data: Path) -> None:
    folder = test_prepare.run(tmp_path)
    (folder / "train" / "sentence_offsets.bin").write_bytes(b"")
    PreparedCorpus.open(folder)


def tokens_that_changed(tmp_path: Path, data: Path) -> None:
    folder = test_prepare.run(tmp_path)
    tokens = folder / "train" / "tokens-00000.bin"
    content = bytearray(tokens.read_bytes())
    content[10] ^= 1
    tokens.write_bytes(content)
    PreparedCorpus.open(folder)
    PreparedCorpus.open(folder, verify="full")


def a_vocabulary_of_other_words(tmp_path: Path, data: Path) -> None:
    folder = test_prepare.run(tmp_path)
    vocabulary = folder / "tokenizer" / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("cat", "cta"))
    PreparedCorpus.open(folder)


def another_tokenizer(tmp_path: Path, data: Path) -> None:
    folder = test_prepare.run(tmp_path)
    vocabulary, rules = folder / "tokenizer/vocab.txt", folder / "tokenizer/tokenizer.json"
    vocabulary.write_text(vocabulary.read_text().replace("cat", "cta"))
    rules.write_text(rules.read_text().replace('"cat"', '"cta"'))
    PreparedCorpus.open(folder)


def a_folder_that_was_not_prepared(tmp_path: Path) -> None:
    PreparedCorpus.open(tmp_path)


def a_corpus_too_small_to_split_is_refused(tmp_path: Path, data: Path, text: str) -> None:
    (data / "tiny.txt").write_text(text)
    test_prepare.run(tmp_path, sources=[Source("tiny", "tiny.txt")])


def a_picture_before_anything_slow(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clozelab.files.digests.file_sha256", lambda path: pytest.fail("slow step"))
    (data / "picture.txt").write_bytes(b"\x89PNG\0\0")
    test_prepare.run(tmp_path, sources=[Source("one", "one.txt"), Source("picture", "picture.txt")])


def a_vocabulary_too_small_before_anything_slow(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clozelab.files.digests.file_sha256", lambda path: pytest.fail("slow step"))
    (data / "picture.txt").write_bytes(b"\x89PNG\0\0")
    test_prepare.run(tmp_path, vocab_size=5)


def a_vocabulary_of_another_language_is_refused(tmp_path: Path, data: Path) -> None:
    (data / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *"абвгдежз", "."]))
    test_prepare.run(tmp_path, vocab_file="vocab.txt")


def what_is_piped_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\x0cthree\n"))
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "one"}\n\xe9\n'), encoding="utf-8")
    )
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    open_rows("-")


def what_spoils_a_whole_file_is_said_first(
    tmp_path: Path, name: str, content: str, form: str
) -> None:
    (tmp_path / name).write_text(content)
    open_rows(str(tmp_path / name), form)


def lines_that_end_with_carriage_returns_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"one\rtwo\rthree\r")
    open_rows(str(path))


def an_unfinished_folder_does_not_open(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        ShardWriter(tmp_path, vocab_size=9, source_names=["one"]) as writer,
    ):
        writer.add(np.array([1, 2]), np.array([2]), np.array([1]), np.array([0]), np.array([0]))
        raise KeyboardInterrupt
    TokenShards.open(tmp_path)


def a_shortened_file(tmp_path: Path, documents: list) -> None:
    test_shards.write(tmp_path, documents)
    path = tmp_path / "sentence_offsets.bin"
    path.write_bytes(path.read_bytes()[:-8])
    TokenShards.open(tmp_path)


def a_missing_file(tmp_path: Path, documents: list) -> None:
    test_shards.write(tmp_path, documents)
    path = tmp_path / "sentence_offsets.bin"
    path.write_bytes(path.read_bytes()[:-8])
    path.unlink()
    TokenShards.open(tmp_path)


def a_damaged_index(tmp_path: Path, documents: list) -> None:
    test_shards.write(tmp_path, documents)
    path = tmp_path / "sentence_offsets.bin"
    path.write_bytes(path.read_bytes()[:-8])
    path.unlink()
    (tmp_path / "shards.json").write_text("{")
    TokenShards.open(tmp_path)


def half_of_a_binary_table_is_refused(tmp_path: Path, name: str) -> None:
    test_tables.WRITERS[name](tmp_path / name)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    test_tables.read(tmp_path, name)


def a_stream_whose_writer_was_stopped_is_refused(tmp_path: Path) -> None:
    """It ends between two batches, so it reads well: only its end mark is missing."""
    test_tables.write_stream(tmp_path / "x.arrow")
    content = (tmp_path / "x.arrow").read_bytes()
    (tmp_path / "x.arrow").write_bytes(content[:-8])
    test_tables.read(tmp_path, "x.arrow")


def a_list_is_no_text(tmp_path: Path) -> None:
    pandas.DataFrame({"text": [["two", "words"]] * 3}).to_parquet(tmp_path / "x.parquet")
    test_tables.read(tmp_path, "x.parquet")


def a_first_row_is_not_taken_for_names(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(
        "".join(f'"The cat sat on mat number {n}.",{n}\n' for n in range(20))
    )
    test_tables.read(tmp_path, "x.csv")


def an_open_quotation_mark_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('text\n"opened and never closed\n' + "a line\n" * 50)
    test_tables.read(tmp_path, "x.csv")


def json_lines_called_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(test_tables.jsonl_of(test_tables.TEXTS))
    test_tables.read(tmp_path, "a.txt")


def an_array_called_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(test_tables.jsonl_of(test_tables.TEXTS))
    (tmp_path / "b.jsonl").write_text(json.dumps([{"text": text} for text in test_tables.TEXTS]))
    test_tables.read(tmp_path, "b.jsonl")


def a_bad_vocabulary_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    WordPieceTokenizer.from_vocab(tmp_path / "vocab.txt", True)


REFUSALS: list[tuple[str, Callable[..., Any], type[Exception], str]] = [
    (
        "a cut off file is an error: rows.jsonl is damaged or incomplete",
        lambda tmp_path: a_cut_off_file_is_an_error(tmp_path, ".gz"),
        ValueError,
        r"rows.jsonl.* is damaged or incomplete",
    ),
    (
        "a cut off file is an error: rows.jsonl is damaged or incomplete 2",
        lambda tmp_path: a_cut_off_file_is_an_error(tmp_path, ".zst"),
        ValueError,
        r"rows.jsonl.* is damaged or incomplete",
    ),
    (
        "many bad rows",
        many_bad_rows,
        ValueError,
        r"2 of 52 rows cannot be read(?s:.*)a.jsonl:51: no JSON object(?s:.*)text_field",
    ),
    (
        "rows without the field",
        rows_without_the_field,
        ValueError,
        "no text in field 'body'",
    ),
    (
        "a file of bytes",
        a_file_of_bytes,
        ValueError,
        r"a.txt is binary \(or UTF-16\)",
    ),
    (
        "a file in utf16",
        a_file_in_utf16,
        ValueError,
        "UTF-16",
    ),
    (
        "many nuls or other controls are binary: a.txt is binary or utf-16",
        lambda tmp_path: many_nuls_or_other_controls_are_binary(tmp_path, b"text\0" * 30),
        ValueError,
        r"a.txt is binary \(or UTF-16\)",
    ),
    (
        "many nuls or other controls are binary: a.txt is binary or utf-16 2",
        lambda tmp_path: many_nuls_or_other_controls_are_binary(
            tmp_path, b"\x7fELF\x02\x01\x01\0 and words"
        ),
        ValueError,
        r"a.txt is binary \(or UTF-16\)",
    ),
    (
        "many nuls or other controls are binary: a.txt is binary or utf-16 3",
        lambda tmp_path: many_nuls_or_other_controls_are_binary(
            tmp_path, b"caf\xe9 with a \0 in another encoding"
        ),
        ValueError,
        r"a.txt is binary \(or UTF-16\)",
    ),
    (
        "many nuls or other controls are binary: a.txt is binary or utf-16 4",
        lambda tmp_path: many_nuls_or_other_controls_are_binary(
            tmp_path, b"name.txt" + bytes(92) + b"0000644\0" + b"words of a text\n" * 500
        ),
        ValueError,
        r"a.txt is binary \(or UTF-16\)",
    ),
    (
        "a wrong file is known by its beginning: a.txt is binary",
        lambda tmp_path: a_wrong_file_is_known_by_its_beginning(
            tmp_path, "a.txt", b"\x89PNG\0" + bytes(range(256)) * 10
        ),
        ValueError,
        "a.txt is binary",
    ),
    (
        "a wrong file is known by its beginning: a.txt: 40 of its first",
        lambda tmp_path: a_wrong_file_is_known_by_its_beginning(
            tmp_path, "a.txt", b"caf\xe9 latin\n" * 40
        ),
        ValueError,
        r"a.txt: 40 of its first 40 rows .*40 x not UTF-8 text; first: a.txt:1",
    ),
    (
        "a wrong file is known by its beginning: 40 x no text in",
        lambda tmp_path: a_wrong_file_is_known_by_its_beginning(
            tmp_path, "a.jsonl", test_documents.jsonl(*({"body": "x"} for _ in range(40)))
        ),
        ValueError,
        "40 x no text in field 'text'",
    ),
    (
        "a wrong file is known by its beginning: 40 x invalid json",
        lambda tmp_path: a_wrong_file_is_known_by_its_beginning(
            tmp_path, "a.jsonl", b"plain text\n" * 40
        ),
        ValueError,
        "40 x no JSON object",
    ),
    (
        "a wrong file is known by its beginning: damaged or incomplete",
        lambda tmp_path: a_wrong_file_is_known_by_its_beginning(
            tmp_path, "a.jsonl.gz", b"not compressed"
        ),
        ValueError,
        "damaged or incomplete",
    ),
    (
        "clear errors: random_next_prob",
        lambda: SegmentPairs(1.5, "corpus"),
        ValueError,
        "random_next_prob",
    ),
    (
        "clear errors: negative_scope",
        lambda: SegmentPairs(0.5, "genre"),
        ValueError,
        "negative_scope",
    ),
    (
        "rows too short for pairs",
        rows_too_short_for_pairs,
        ValueError,
        "too short",
    ),
    (
        "documents of one sentence",
        documents_of_one_sentence,
        ValueError,
        "no document with two sentences",
    ),
    (
        "pairs of no document",
        pairs_of_no_document,
        ValueError,
        "no document with two sentences",
    ),
    (
        "pairs of a single document",
        pairs_of_a_single_document,
        ValueError,
        "single document",
    ),
    (
        "clear errors: no text",
        lambda make_shards, ids: FullSentences().bind(make_shards([]), ids, 32),
        ValueError,
        "no text",
    ),
    (
        "a path from where one stands",
        a_path_from_where_one_stands,
        ValueError,
        r"no text files at .*/data/none, nor from here",
    ),
    (
        "the fields that there are are named",
        the_fields_that_there_are_are_named,
        ValueError,
        r"x\.jsonl:1: no text in field 'text' \(there are body, title\)",
    ),
    (
        "clear errors: sum to 1 predict_prob",
        lambda: Masking(*(0.15, 0.8, 0.1, 0.2)),
        ValueError,
        r"sum to 1|predict_prob",
    ),
    (
        "clear errors: sum to 1 predict_prob 2",
        lambda: Masking(*(0.15, 1.2, -0.1, -0.1)),
        ValueError,
        r"sum to 1|predict_prob",
    ),
    (
        "clear errors: sum to 1 predict_prob 3",
        lambda: Masking(*(0.0, 0.8, 0.1, 0.1)),
        ValueError,
        r"sum to 1|predict_prob",
    ),
    (
        "clear errors: sum to 1 predict_prob 4",
        lambda: Masking(*(1.5, 1, 0, 0)),
        ValueError,
        r"sum to 1|predict_prob",
    ),
    (
        "a damaged cache folder is prepared again",
        a_damaged_cache_folder_is_prepared_again,
        ValueError,
        r"sentence_offsets.bin has 0 bytes",
    ),
    (
        "tokens that changed",
        tokens_that_changed,
        ValueError,
        r"tokens-00000.bin has changed",
    ),
    (
        "a vocabulary of other words",
        a_vocabulary_of_other_words,
        ValueError,
        r"vocab.txt has 'cta' where tokenizer.json has 'cat'",
    ),
    (
        "another tokenizer",
        another_tokenizer,
        ValueError,
        "is not the one the shards were made with",
    ),
    (
        "a folder that was not prepared",
        a_folder_that_was_not_prepared,
        ValueError,
        r"manifest.json is missing; run the prepare stage",
    ),
    (
        "a corpus too small to split is refused: the corpus has 01 usable",
        lambda tmp_path, data: a_corpus_too_small_to_split_is_refused(tmp_path, data, ""),
        ValueError,
        r"the corpus has [01] usable documents .*at least 2 are needed",
    ),
    (
        "a corpus too small to split is refused: the corpus has 01 usable 2",
        lambda tmp_path, data: a_corpus_too_small_to_split_is_refused(tmp_path, data, "\n\n"),
        ValueError,
        r"the corpus has [01] usable documents .*at least 2 are needed",
    ),
    (
        "a corpus too small to split is refused: the corpus has 01 usable 3",
        lambda tmp_path, data: a_corpus_too_small_to_split_is_refused(
            tmp_path, data, "One document only."
        ),
        ValueError,
        r"the corpus has [01] usable documents .*at least 2 are needed",
    ),
    (
        "a corpus too small to split is refused: the corpus has 01 usable 4",
        lambda tmp_path, data: a_corpus_too_small_to_split_is_refused(
            tmp_path, data, "Twice the same.\n\nTwice the same."
        ),
        ValueError,
        r"the corpus has [01] usable documents .*at least 2 are needed",
    ),
    (
        "bad settings are refused: names a folder",
        lambda tmp_path, data: test_prepare.run(tmp_path, name="../up"),
        ValueError,
        "names a folder",
    ),
    (
        "bad settings are refused: sources with different names",
        lambda tmp_path, data: test_prepare.run(
            tmp_path, sources=[Source("one", "one.txt"), Source("one", "two.txt")]
        ),
        ValueError,
        "sources with different names",
    ),
    (
        "bad settings are refused: absent.txt does not exist",
        lambda tmp_path, data: test_prepare.run(tmp_path, vocab_file="absent.txt"),
        ValueError,
        r"absent.txt does not exist",
    ),
    (
        "a picture before anything slow",
        a_picture_before_anything_slow,
        ValueError,
        r"picture.txt is binary",
    ),
    (
        "a vocabulary too small before anything slow",
        a_vocabulary_too_small_before_anything_slow,
        ValueError,
        r"vocab_size is 5: .*special tokens",
    ),
    (
        "a vocabulary of another language is refused",
        a_vocabulary_of_another_language_is_refused,
        ValueError,
        r"8\d\.\d% of the tokens of .*tokenizer\.vocab_file.* are \[UNK\]",
    ),
    (
        "a cache that cannot be written is named",
        lambda tmp_path, data: test_prepare.run(tmp_path, cache_dir=data / "one.txt"),
        ValueError,
        r"cannot write below .*one.txt/corpora .*set cache_dir",
    ),
    (
        "no instances is a clear error",
        lambda: instance_indices(1, 0, np.arange(3)),
        ValueError,
        "0 instances",
    ),
    (
        "clear errors: single document 2",
        lambda make_shards, ids: test_released.RELEASED.bind(make_shards([[3, 3, 3]]), ids, 32),
        ValueError,
        "single document",
    ),
    (
        "clear errors: no document with two sentences 3",
        lambda make_shards, ids: test_released.RELEASED.bind(make_shards([]), ids, 32),
        ValueError,
        "no document with two sentences",
    ),
    (
        "clear errors: cuts=ours",
        lambda: SegmentPairs(0.5, "corpus", put_back_unused=True),
        ValueError,
        "cuts=ours",
    ),
    (
        "clear errors: cuts=ours 2",
        lambda: SegmentPairs(0.5, "corpus", copies=2),
        ValueError,
        "cuts=ours",
    ),
    (
        "clear errors: cuts=ours 3",
        lambda: SegmentPairs(0.5, "corpus", lone_sentences="random"),
        ValueError,
        "cuts=ours",
    ),
    (
        "clear errors: short_seq_prob",
        lambda: replace(test_released.RELEASED, short_seq_prob=1.5),
        ValueError,
        "short_seq_prob",
    ),
    (
        "clear errors: cuts",
        lambda: replace(test_released.RELEASED, cuts="google"),
        ValueError,
        "cuts",
    ),
    (
        "clear errors: lone_sentences",
        lambda: replace(test_released.RELEASED, lone_sentences="never"),
        ValueError,
        "lone_sentences",
    ),
    (
        "clear errors: copies",
        lambda: replace(test_released.RELEASED, copies=0),
        ValueError,
        "copies",
    ),
    (
        "the share counts special tokens and is held down: max_predictions_fraction",
        lambda: Masking(0.15, 0.8, 0.1, 0.1, max_predictions_fraction=0.0),
        ValueError,
        "max_predictions_fraction",
    ),
    (
        "the share counts special tokens and is held down: span_weights",
        lambda: Masking(0.15, 0.8, 0.1, 0.1, span_weights=()),
        ValueError,
        "span_weights",
    ),
    (
        "the share counts special tokens and is held down: span_weights 2",
        lambda: Masking(0.15, 0.8, 0.1, 0.1, span_weights=(0.0,)),
        ValueError,
        "span_weights",
    ),
    (
        "the share counts special tokens and is held down: span_weights 3",
        lambda: Masking(0.15, 0.8, 0.1, 0.1, span_weights=(1.0, -1.0)),
        ValueError,
        "span_weights",
    ),
    (
        "what is piped in",
        what_is_piped_in,
        ValueError,
        "input=- has no line to read",
    ),
    (
        "what spoils a whole file is said first: a.csv:4: not a csv file",
        lambda tmp_path: what_spoils_a_whole_file_is_said_first(
            tmp_path, "a.csv", 'text,n\none,1\n"two,2\nthree,3\n', "auto"
        ),
        ValueError,
        "a.csv:4: not a CSV file",
    ),
    (
        "what spoils a whole file is said first: two columns text",
        lambda tmp_path: what_spoils_a_whole_file_is_said_first(
            tmp_path, "a.csv", "text,text\none,two\n", "auto"
        ),
        ValueError,
        "two columns 'text'",
    ),
    (
        "what spoils a whole file is said first: a header and no row",
        lambda tmp_path: what_spoils_a_whole_file_is_said_first(
            tmp_path, "a.csv", "text\n", "auto"
        ),
        ValueError,
        "a header and no row below it",
    ),
    (
        "what spoils a whole file is said first: is empty",
        lambda tmp_path: what_spoils_a_whole_file_is_said_first(tmp_path, "a.csv", "", "auto"),
        ValueError,
        "is empty",
    ),
    (
        "what spoils a whole file is said first: has no line to read",
        lambda tmp_path: what_spoils_a_whole_file_is_said_first(tmp_path, "a.txt", "", "auto"),
        ValueError,
        "has no line to read",
    ),
    (
        "what spoils a whole file is said first: three columns and more: call",
        lambda tmp_path: what_spoils_a_whole_file_is_said_first(
            tmp_path, "a.txt", "one\t1\tx\ntwo\t2\ty\n", "auto"
        ),
        ValueError,
        "three columns and more: call it .tsv, or say format=tsv",
    ),
    (
        "what spoils a whole file is said first: a.jsonl:1 is no json object",
        lambda tmp_path: what_spoils_a_whole_file_is_said_first(
            tmp_path, "a.jsonl", "[1]\n", "auto"
        ),
        ValueError,
        "a.jsonl:1 begins a JSON array",
    ),
    (
        "what spoils a whole file is said first: a list of objects was",
        lambda tmp_path: what_spoils_a_whole_file_is_said_first(tmp_path, "a.json", "[1]", "auto"),
        ValueError,
        "a list of objects was expected",
    ),
    (
        "what spoils a whole file is said first: is binary",
        lambda tmp_path: what_spoils_a_whole_file_is_said_first(
            tmp_path, "a.xlsx", "PK\x03\x04" + "\0" * 100, "auto"
        ),
        ValueError,
        "is binary",
    ),
    (
        "what spoils a whole file is said first: no parquet file",
        lambda tmp_path: what_spoils_a_whole_file_is_said_first(
            tmp_path, "a.parquet", "text", "auto"
        ),
        ValueError,
        "no parquet file",
    ),
    (
        "what spoils a whole file is said first: format=xml: choose auto, lines",
        lambda tmp_path: what_spoils_a_whole_file_is_said_first(tmp_path, "a.txt", "one", "xml"),
        ValueError,
        "format=xml: choose auto, lines",
    ),
    (
        "lines that end with carriage returns alone",
        lines_that_end_with_carriage_returns_alone,
        ValueError,
        r"x\.txt ends its lines with a carriage return alone",
    ),
    (
        "positions outside the stream are refused: outside",
        lambda tmp_path, documents: test_shards.write(tmp_path, documents).tokens.take(
            np.array([-1])
        ),
        IndexError,
        "outside",
    ),
    (
        "positions outside the stream are refused: outside 2",
        lambda tmp_path, documents: test_shards.write(tmp_path, documents).tokens.take(
            np.array([10**6])
        ),
        IndexError,
        "outside",
    ),
    (
        "an unfinished folder does not open",
        an_unfinished_folder_does_not_open,
        ValueError,
        r"shards.json is missing; run the prepare stage",
    ),
    (
        "a shortened file",
        a_shortened_file,
        ValueError,
        r"sentence_offsets.bin has \d+ bytes instead of",
    ),
    (
        "a missing file",
        a_missing_file,
        ValueError,
        r"sentence_offsets.bin is missing",
    ),
    (
        "a damaged index",
        a_damaged_index,
        ValueError,
        "damaged",
    ),
    (
        "half of a binary table is refused: is no parquet arrow file",
        lambda tmp_path: half_of_a_binary_table_is_refused(tmp_path, "x.parquet"),
        ValueError,
        r"is no (parquet|arrow) file, or is damaged or incomplete",
    ),
    (
        "half of a binary table is refused: is no parquet arrow file 2",
        lambda tmp_path: half_of_a_binary_table_is_refused(tmp_path, "x.feather"),
        ValueError,
        r"is no (parquet|arrow) file, or is damaged or incomplete",
    ),
    (
        "half of a binary table is refused: is no parquet arrow file 3",
        lambda tmp_path: half_of_a_binary_table_is_refused(tmp_path, "x.arrow"),
        ValueError,
        r"is no (parquet|arrow) file, or is damaged or incomplete",
    ),
    (
        "a stream whose writer was stopped is refused",
        a_stream_whose_writer_was_stopped_is_refused,
        ValueError,
        "does not end with its mark",
    ),
    (
        "a list is no text",
        a_list_is_no_text,
        ValueError,
        r"the column 'text' holds list<.*>, no text",
    ),
    (
        "a first row is not taken for names",
        a_first_row_is_not_taken_for_names,
        ValueError,
        r"first line names no columns \('The cat sat on mat number 0.'\)",
    ),
    (
        "an open quotation mark is named",
        an_open_quotation_mark_is_named,
        ValueError,
        r"x\.csv:52: not a CSV file: unexpected end of data",
    ),
    (
        "json lines called text",
        json_lines_called_text,
        ValueError,
        r"a\.txt holds JSON.*corpus\.sources\.0\.format=jsonl",
    ),
    (
        "an array called lines",
        an_array_called_lines,
        ValueError,
        r"b\.jsonl:1 begins a JSON array",
    ),
    (
        "a vocabulary smaller than the alphabet is refused",
        lambda: WordPieceTokenizer.train(["the quick brown fox jumps over a lazy dog"], 20, True),
        ValueError,
        "vocab_size 20 is below",
    ),
    (
        "a bad vocabulary file is refused: lacks cls",
        lambda tmp_path: a_bad_vocabulary_file_is_refused(tmp_path, b"[PAD]\n[UNK]\n"),
        ValueError,
        r"lacks \[CLS\]",
    ),
    (
        "a bad vocabulary file is refused: stands twice",
        lambda tmp_path: a_bad_vocabulary_file_is_refused(
            tmp_path, "\n".join([*SPECIAL_TOKENS, "a", "a"]).encode()
        ),
        ValueError,
        "stands twice",
    ),
    (
        "a bad vocabulary file is refused: is empty",
        lambda tmp_path: a_bad_vocabulary_file_is_refused(
            tmp_path, "\n".join([*SPECIAL_TOKENS, "", "a"]).encode()
        ),
        ValueError,
        "is empty",
    ),
    (
        "a bad vocabulary file is refused: not utf-8",
        lambda tmp_path: a_bad_vocabulary_file_is_refused(tmp_path, b"\xff\xfe"),
        ValueError,
        "not UTF-8",
    ),
    (
        "a missing vocabulary file is named",
        lambda tmp_path: WordPieceTokenizer.from_vocab(tmp_path / "absent.txt", True),
        ValueError,
        r"absent.txt does not exist",
    ),
    (
        "a folder without a tokenizer",
        lambda tmp_path: read_tokenizer(tmp_path),
        ValueError,
        "holds no tokenizer",
    ),
    (
        "no text at a pattern",
        lambda tmp_path: test_documents.read(tmp_path, "none-*.jsonl"),
        ValueError,
        r"no text files at .*none-\*\.jsonl(?s:.*)one sentence a line(?s:.*)set data_dir",
    ),
    (
        "no text at a file",
        lambda tmp_path: test_documents.read(tmp_path, "absent.txt"),
        ValueError,
        r"no text files at .*absent\.txt(?s:.*)one sentence a line(?s:.*)set data_dir",
    ),
    (
        "no text at a folder",
        lambda tmp_path: test_documents.read(tmp_path, "/absent/folder"),
        ValueError,
        r"no text files at .*/absent/folder(?s:.*)one sentence a line(?s:.*)set data_dir",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "sentence"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_refusal(
    request: pytest.FixtureRequest,
    call: Callable[..., Any],
    error: type[Exception],
    sentence: str,
) -> None:
    with pytest.raises(error, match=sentence):
        call_with_fixtures(call, request)
