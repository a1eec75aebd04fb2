"""The step `decontaminate` takes examples of benchmarks out of a corpus.

A document is contaminated that has a run of 13 words in common with an example, as for GPT-3 (Brown
et al. 2020, appendix C): upper case, punctuation and spaces do not count.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress
from pathlib import Path
from typing import Literal

import numpy as np

from clozelab.corpus.paths import files_below, matching_files, resolve_path
from clozelab.corpus.steps.example_texts import texts_of_file
from clozelab.corpus.steps.ngrams import ngram_hashes, words_of
from clozelab.corpus.steps.settings import check_count, list_of_texts
from clozelab.corpus.steps.step import Arrays, Document, StepReport, TableStep
from clozelab.files.digests import file_sha256
from clozelab.text.did_you_mean import check_choice

log = logging.getLogger(__name__)

FIRST_BITS = 24
REMOVE = ("document", "lines")
NOTHING_LEFT = "nothing but lines of benchmarks"


class Decontaminate(TableStep):
    """Drops documents that share a run of `ngram` words with the examples of benchmarks.

    `files` are paths, folders or globs below the data directory, such as `glue/MRPC/*.tsv`. All
    texts in them count. A text of fewer words than the run is not looked for. `remove: lines` drops
    only the lines that the run stands in, and `lines_around` of them on either side.

    The table has 12 bytes for each different run of the examples; each process reads it.
    """

    name = "decontaminate"
    version = 5  # ids and tags of words do not count

    def __init__(
        self,
        files: Sequence[str],
        ngram: int = 13,
        remove: Literal["document", "lines"] = "document",
        lines_around: int = 1,
        data_dir: str | Path = ".",
    ) -> None:
        check_choice("decontaminate: remove", remove, REMOVE)
        check_count("decontaminate: ngram", ngram, 1)
        check_count("decontaminate: lines_around", lines_around, 0)
        self.files = list_of_texts("decontaminate: files", files)
        self.ngram = ngram
        self.remove = remove
        self.lines_around = lines_around
        self.paths = _benchmark_files(self.files, data_dir)

    def inputs(self) -> Mapping[str, str]:
        """Checksums of the benchmarks' files."""
        return {name: file_sha256(path) for name, path in self.paths.items()}

    def settle(self, surveys: Sequence[Arrays]) -> Arrays:  # noqa: ARG002
        """Sorted `ngrams` [G] uint64 of the benchmarks, and the number of the file of each."""
        hashes = []
        files = []
        for number, (name, path) in enumerate(self.paths.items()):
            of_texts = [ngram_hashes(words_of(text), self.ngram) for text in texts_of_file(path)]
            distinct = np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *of_texts]))
            if not len(distinct):
                log.warning("decontaminate: no text in %s has %d words", name, self.ngram)
            hashes.append(distinct)
            files.append(np.full(len(distinct), number, dtype=np.uint32))
        # Of several files with the same run the first one counts.
        ngrams, first = np.unique(np.concatenate(hashes), return_index=True)
        if not len(ngrams):
            raise ValueError(
                f"decontaminate: no text in {', '.join(self.files)} has {self.ngram} words: choose"
                " a smaller ngram"
            )
        return {"ngrams": ngrams, "files": np.concatenate(files)[first]}

    def apply(
        self, documents: Iterable[Document], table: Arrays, report: StepReport
    ) -> Iterator[Document]:
        """As `CorpusStep` says; a document counts for the file of its first run."""
        ngrams = table["ngrams"]
        # Most runs are of no benchmark: their first bits say so faster than a search.
        is_beginning = np.zeros(2**FIRST_BITS, dtype=bool)
        is_beginning[_first_bits(ngrams)] = True
        names = list(self.paths)
        for document in documents:
            words_by_line = [words_of(line) for line in document.lines]
            all_words = list(chain.from_iterable(words_by_line))
            hashes = ngram_hashes(all_words, self.ngram)
            starts = np.flatnonzero(is_beginning[_first_bits(hashes)])
            rows = np.minimum(np.searchsorted(ngrams, hashes[starts]), len(ngrams) - 1)
            is_equal = ngrams[rows] == hashes[starts]
            starts = starts[is_equal]
            if not len(starts):
                yield document
                continue
            file = table["files"][rows[is_equal][0]]
            reason = f"{self.ngram} words of {names[file]}"
            run = " ".join(all_words[starts[0] : starts[0] + self.ngram])
            if self.remove == "lines":
                is_dropped = self._lines_to_drop(list(map(len, words_by_line)), starts)
                lines = list(compress(document.lines, ~is_dropped))
                if lines:
                    report.show(reason, run)
                    report.drop_lines(list(compress(document.lines, is_dropped)), reason)
                    yield replace(document, lines=lines)
                    continue
                reason = NOTHING_LEFT
            report.show(reason, run)
            report.drop(document, reason)

    def _lines_to_drop(self, num_words: Sequence[int], starts: np.ndarray) -> np.ndarray:
        """[lines] bool, from the number of words of each line and the first words of all runs."""
        line_of_word = np.repeat(np.arange(len(num_words)), num_words)
        is_dropped = np.zeros(len(num_words), dtype=bool)
        for start in starts:
            first = line_of_word[start] - self.lines_around
            last = line_of_word[start + self.ngram - 1] + self.lines_around
            is_dropped[max(0, first) : last + 1] = True
        return is_dropped


def _first_bits(hashes: np.ndarray) -> np.ndarray:
    return hashes >> np.uint64(64 - FIRST_BITS)


def _benchmark_files(patterns: Sequence[str], data_dir: str | Path) -> dict[str, Path]:
    """Name -> path of the files; ValueError without any, and for a pattern that no file has."""
    if not patterns:
        raise ValueError("decontaminate needs files: paths or globs of benchmarks")
    paths = {}
    for pattern in patterns:
        folder = resolve_path(pattern, data_dir)
        if folder.is_dir():
            matching = files_below(folder)
        else:
            matching, _ = matching_files(pattern, data_dir)
        if not matching:
            raise ValueError(
                f"decontaminate: no file is called {pattern} below {data_dir}, nor from here: get"
                " the benchmark first, or take it off the list of files"
            )
        for name, path in sorted(matching.items()):
            is_single = len(matching) == 1
            paths[pattern if is_single else f"{pattern}: {name}"] = path
    return paths
