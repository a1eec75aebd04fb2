"""Queries, documents and which of them are relevant, in a folder as BEIR lays it out.

    corpus.jsonl      {"_id": "d1", "title": "Cats", "text": "Cats sleep."}
    queries.jsonl     {"_id": "q1", "text": "what do cats do"}
    qrels/test.tsv    query-id  corpus-id  score

Documents are read a part at a time, so that memory does not grow with their number.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Unpack

import numpy as np

from clozelab.corpus.generated import generator_of
from clozelab.corpus.paths import resolve_path
from clozelab.datamodules.columns import document_text
from clozelab.datamodules.scoring import MeasureArguments, MeasureDataModule
from clozelab.files.digests import file_sha256
from clozelab.readers.records import Table, check_columns
from clozelab.readers.tables import open_table
from clozelab.tasks.batches import Batch, make_batch
from clozelab.tasks.sequences import TokenSequences, encode_examples, token_budget_batches

log = logging.getLogger(__name__)
DOCUMENTS_AT_ONCE = 8192
FIRST_DOCUMENTS = 1024  # of whose tokens the share of [UNK] is measured
SCORES_AT_ONCE = 2**25  # of queries and documents: so many documents fewer where queries are many


class RetrievalFolder(MeasureDataModule):
    """Judged queries over a corpus of any size; queries that nobody has judged are left out.

    Args:
        folder: below data_dir, or from where one stands.
        split: name of the file in qrels/.
    """

    def __init__(
        self, *, folder: str, split: str, how_to_get: str, **common: Unpack[MeasureArguments]
    ) -> None:
        super().__init__(**common)
        root = resolve_path(folder, self.inputs.data_dir)
        self.paths = [root / "corpus.jsonl", root / "queries.jsonl", root / f"qrels/{split}.tsv"]
        for path in self.paths:
            if not path.is_file():
                raise ValueError(
                    f"{path.absolute()} is missing (data_dir, measure.data.folder or"
                    f" measure.data.split is wrong)\n  how to get them: {how_to_get}"
                )
        self.content = [file_sha256(path) for path in self.paths]
        self.synthetic = generator_of(self.inputs.data_dir, self.paths)

    def setup(self, stage: str | None = None) -> None:  # noqa: ARG002
        """Read judgements, queries and the first documents.

        ValueError for a query without a text, an id of two texts, and for texts of too many unknown
        tokens.
        """
        for path in self.paths[:2]:
            _refuse_twins(path)
        self.judgements = _read_judgements(self.paths[2])
        texts = {}
        num_queries = 0
        for name, text in _texts(self.paths[1]):
            num_queries += 1
            if name in self.judgements:
                texts[name] = text
        lacking = next((name for name in self.judgements if name not in texts), None)
        if lacking is not None:
            raise ValueError(
                f"{self.paths[2]} judges the query {lacking!r}, which {self.paths[1]} has not: the"
                " two files are of different versions"
            )
        self.queries = texts
        documents = itertools.islice(_texts(self.paths[0]), FIRST_DOCUMENTS)
        queries = self._sequences(list(texts.values()))
        self.refuse_unknown(queries.input_ids, "the queries of ")
        beginning = self._sequences([text for _, text in documents])
        self.refuse_unknown(beginning.input_ids, "the documents of ")
        self.facts["queries"] = len(texts)
        self.facts["queries_without_judgements"] = num_queries - len(texts)

    def _sequences(self, texts: list[str]) -> TokenSequences:
        return encode_examples(self.inputs.tokenizer, texts, max_seq_length=self.max_seq_length)

    def batches(self, prompts: Mapping[str, str]) -> Iterator[Batch]:
        """The queries, then the documents; `ids` [S] are in the last batch of each part of S texts.

        `prompts`: what stands before a query, and before a document.
        """
        self.num_cut = {"queries": 0, "documents": 0}
        yield from self._encoded("queries", list(self.queries.items()), prompts["query"])
        # The relevant documents that have not come yet.
        lacking = set(itertools.chain.from_iterable(self.judgements.values()))
        num_documents = 0
        documents = _texts(self.paths[0])
        size = min(DOCUMENTS_AT_ONCE, max(1, SCORES_AT_ONCE // len(self.queries)))
        for part in iter(lambda: list(itertools.islice(documents, size)), []):
            num_documents += len(part)
            lacking.difference_update(name for name, _ in part)
            yield from self._encoded("documents", part, prompts["document"])
        self.facts["documents"] = num_documents
        self.facts["judged_documents_missing"] = len(lacking)
        if lacking:
            log.warning(
                f"{self.paths[2]}: {len(lacking)} judged documents are not in {self.paths[0]} and"
                " count as not found"
            )
        for name, num_cut in self.num_cut.items():
            self.facts[f"cut_{name}"] = num_cut
            if num_cut:
                log.warning(
                    "%d of %d %s are longer than max_seq_length=%d and were cut",
                    num_cut,
                    self.facts[name],
                    name,
                    self.max_seq_length,
                )

    def _encoded(self, kind: str, part: list[tuple[str, str]], prompt: str) -> Iterator[Batch]:
        """Batches of texts with their ids; what does not fit is counted by the kind of text."""
        names = [name for name, _ in part]
        sequences = self._sequences([prompt + text for _, text in part])
        self.num_cut[kind] += sequences.cut_counts()["truncated_sequences"]
        batches = token_budget_batches(sequences.lengths, self.evaluation_tokens)
        for number, index in enumerate(batches, 1):
            batch = make_batch(sequences, index, {})
            batch["ids"] = names if number == len(batches) else None
            yield batch


def _open(path: Path, *columns: str) -> Table:
    table = open_table(path)
    check_columns(table.columns, columns, path)
    return table


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """Id and text of each object."""
    for record in _open(path, "_id", "text").whole_rows():
        yield str(record["_id"]), document_text(record)


def _refuse_twins(path: Path) -> None:
    """ValueError for an id of two texts, each of which would count as found.

    A hash of 8 bytes an id is kept, since a corpus may have millions.
    """
    hashes = np.sort(np.fromiter((hash(name) for name, _ in _texts(path)), dtype=np.int64))
    twins = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if twins:
        name = next(name for name, _ in _texts(path) if hash(name) in twins)
        raise ValueError(
            f"{path}: the id {name!r} has two texts or more ({len(twins)} such ids in all): leave"
            " one of each"
        )


def _read_judgements(path: Path) -> dict[str, dict[str, int]]:
    """Query -> document -> grade; ValueError for a grade that is no whole number."""
    judgements: dict[str, dict[str, int]] = {}
    for record in _open(path, "query-id", "corpus-id", "score").whole_rows():
        try:
            grade = int(record["score"])
        except (TypeError, ValueError):
            raise ValueError(
                f"{path}: the score {record['score']!r} of {record['query-id']} is no whole number"
            ) from None
        judgements.setdefault(str(record["query-id"]), {})[str(record["corpus-id"])] = grade
    if not judgements:
        raise ValueError(f"{path} judges nothing: it has no row below its header")
    return judgements
