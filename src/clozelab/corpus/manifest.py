"""What the JSON files of a prepared corpus say: `manifest.json`, and a split's `shards.json`."""

from __future__ import annotations

from typing import TypedDict

from clozelab.files.digests import FileFacts
from clozelab.text.plain import PlainDict


class SourceFile(TypedDict, total=False):
    """A file of a source: the checksum of its content, or the version that its store says."""

    sha256: str
    version: str
    format: str
    column: str  # of a table


class SourceFacts(TypedDict, total=False):
    """A source: its files, and how they are read."""

    files: list[SourceFile]
    text_field: str


class CorpusSettings(TypedDict, total=False):
    """What a folder's name is a hash of."""

    sources: list[SourceFacts]
    steps: list[PlainDict]
    split_version: int  # of several sources, where their split is not that of version 1


class StepFacts(TypedDict):
    """What a step left of each source, and what it did to the rest."""

    step: str
    kept: dict[str, dict[str, int]]
    reasons: dict[str, dict[str, int]]
    examples: dict[str, list[str]]  # reason -> texts


class SplitFacts(TypedDict):
    """`shards.json`."""

    vocab_size: int
    source_names: list[str]
    num_tokens: int
    num_sentences: int
    num_documents: int
    unigram_entropy: float
    files: dict[str, FileFacts]
    fingerprint: str


class CorpusManifest(TypedDict, total=False):
    """`manifest.json`, as far as it is read. Without removed texts it lacks `removed`."""

    format_version: int
    name: str
    settings: CorpusSettings
    tokenizer_fingerprint: str
    unknown_fraction: float
    skipped: dict[str, int]
    files: dict[str, FileFacts]
    fingerprint: str
    removed: dict[str, int]
    steps: list[StepFacts]
    repeated_lines: list[PlainDict]
    words: dict[str, dict[str, int]]
