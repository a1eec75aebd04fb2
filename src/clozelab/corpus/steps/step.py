"""The steps that a corpus lists: what happens to its documents before they are tokenised.

    corpus.steps: [clean, {near_duplicates: {threshold: 0.8}}]

A step is a class with `apply`. One that has to know all documents first (SurveyStep) also has
`survey`, which looks at the documents of one shard, and `settle`, which makes one small table of
all surveys. Results never depend on where shards begin and end, nor on how many processes work:
`settle` may use hashes and the order of documents alone.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from clozelab.files.digests import file_sha256
from clozelab.text.plain import PlainDict

# what one shard tells of its documents, and what is known of all: arrays by name, in one .npz file
Arrays = Mapping[str, np.ndarray]
MAX_EXAMPLES = 5  # texts that a report shows for each reason
EXAMPLE_CHARACTERS = 160


@dataclass(frozen=True)
class Document:
    """A text, cut into lines.

    A line is a paragraph; in a text file it is a sentence. Documents are numbered by their shard,
    and in it by the order in which they were read.
    """

    shard: int
    index: int
    source: int  # index into the corpus's sources
    lines: Sequence[str]
    has_sentences: bool = False  # whether its lines are sentences already

    @cached_property
    def num_characters(self) -> int:
        return sum(map(len, self.lines))

    @property
    def key(self) -> int:
        """A number that orders all documents; it fits into int64."""
        return self.shard << 32 | self.index


@dataclass
class StepReport:
    """What a step did to the documents of a shard; the reports of all shards are added up.

    `documents` and `characters` count what was dropped, by reason; `changed` counts documents that
    stayed and lost some of their text. `examples` has the first few texts of each reason, for a
    person to look at.
    """

    documents: Counter[str] = field(default_factory=Counter)
    characters: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def drop(self, document: Document, reason: str, examples: Sequence[str] = ()) -> None:
        """Count a document that is dropped; it is the example unless others are given."""
        self.documents[reason] += 1
        self._count(document.lines, reason, examples)

    def drop_lines(self, lines: Sequence[str], reason: str, examples: Sequence[str] = ()) -> None:
        """Count a document that stays, and the lines that it lost."""
        self.changed[reason] += 1
        self._count(lines, reason, examples)

    def show(self, reason: str, text: str) -> None:
        """Keep the beginning of a text as an example, unless it is there or there are enough.

        Of white space there is nothing to see.
        """
        if not text.strip():
            return
        examples = self.examples.setdefault(reason, [])
        beginning = text[:EXAMPLE_CHARACTERS]
        if len(examples) < MAX_EXAMPLES and beginning not in examples:
            examples.append(beginning)

    def add(self, other: StepReport) -> None:
        """Add the report of a later shard."""
        self.documents += other.documents
        self.characters += other.characters
        self.changed += other.changed
        for reason, texts in other.examples.items():
            for text in texts:
                self.show(reason, text)

    def _count(self, lines: Sequence[str], reason: str, examples: Sequence[str]) -> None:
        self.characters[reason] += sum(map(len, lines))
        if not examples:
            examples = [" ".join(lines)]
        for text in examples:
            self.show(reason, text)


class CorpusStep(ABC):
    """A step over documents.

    Its constructor takes the step's settings, and keeps each under its name: they are part of the
    corpus's fingerprint. One called `data_dir` is no setting: it gets the folder that relative
    paths start at. `version` rises with every change of what the step does. A step is sent to other
    processes, so what is large is read when it is needed first.
    """

    name: str  # as `corpus.steps` lists it
    version = 1

    @abstractmethod
    def apply(
        self, documents: Iterable[Document], table: Arrays, report: StepReport
    ) -> Iterator[Document]:
        """The documents of one shard that stay, in order.

        A changed document is a new object with the same numbers (dataclasses.replace), and its
        lines hold no line ends. `table` is empty for a step without one.
        """

    def inputs(self) -> Mapping[str, str]:
        """Checksums of the files that decide the result, by their names; for the fingerprint."""
        return {}

    def identity(self) -> PlainDict:
        """What decides its result, as a corpus's fingerprint has it.

        Of a class of the user's its address and its file count, too: one that builds on a step of
        ours has inherited that one's name and version.
        """
        names = [name for name in inspect.signature(type(self)).parameters if name != "data_dir"]
        settings = {name: getattr(self, name) for name in names}
        identity: PlainDict = {"name": self.name, "version": self.version, "settings": settings}
        inputs = self.inputs()
        if inputs:
            identity["inputs"] = dict(inputs)
        module = type(self).__module__
        if not module.startswith("clozelab."):
            identity["class"] = f"{module}.{type(self).__qualname__}"
            identity["file"] = file_sha256(Path(inspect.getfile(type(self))))
        return identity


class TableStep(CorpusStep):
    """A step that needs a table; without a survey it follows from the settings alone."""

    @abstractmethod
    def settle(self, surveys: Sequence[Arrays]) -> Arrays:
        """The table of all shards, from their surveys in order."""


class SurveyStep(TableStep):
    """A step that has to know all documents before it can apply."""

    @abstractmethod
    def survey(self, documents: Iterable[Document]) -> Arrays:
        """What the documents of one shard add to the table."""
