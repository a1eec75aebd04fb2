"""The sources that a configuration names: files (corpus/files.py), or a data set of the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clozelab.corpus.files import CorpusCounts, CorpusSource, Rows, Shard, text_of
from clozelab.readers.hub import open_builder, require_commit
from clozelab.readers.lines import Advance
from clozelab.readers.records import check_columns
from clozelab.readers.remote import named_errors
from clozelab.text.plain import PlainDict, ReadOnlyJson

if TYPE_CHECKING:
    from datasets import DatasetBuilder


def make_source(
    settings: ReadOnlyJson, index: int, hub: bool, how_to_get: str | None = None
) -> CorpusSource | DatasetSource:
    """Source number `index` of a corpus, by its settings.

    ValueError for a data set without hub=true or without a commit.
    """
    name = settings["name"]
    dataset = settings["dataset"]
    text_field = settings["text_field"]
    if dataset is None:
        return CorpusSource(name, settings["path"], settings["format"], text_field, how_to_get)
    key = f"corpus.sources.{index}"
    if not hub:
        raise ValueError(
            f"source {name}: {dataset} comes from the Hugging Face hub, which is asked only with"
            f" hub=true; without a network name files of your own, {key}.path"
        )
    revision = settings["revision"]
    require_commit(revision, dataset, f"{key}.revision")
    split = settings["split"]
    return DatasetSource(name, dataset, revision, settings["config"], split, text_field)


@dataclass(frozen=True)
class DatasetSource:
    """A split of a data set of the hub, streamed: nothing of it is kept on disk."""

    name: str
    dataset: str
    revision: str
    config: str | None
    split: str
    text_field: str

    def shards(self, index: int, _: Path) -> list[Shard]:
        """The split as one shard; the hub is not asked before its rows are read."""
        place = "/".join(filter(None, (self.dataset, self.config, self.split)))
        return [DatasetSplit(place, index, "hub", self.text_field, self)]

    def require_files(self, _: str | Path) -> None:
        """The hub is not asked before its rows are read."""


@dataclass(frozen=True)
class DatasetSplit(Shard):
    """A row is a document; what decides the texts is the commit."""

    origin: DatasetSource

    @property
    def place(self) -> str:
        return f"{self.name} at revision {self.origin.revision}"

    @property
    def num_bytes(self) -> int:
        """As the data set's card says; 0 where it does not."""
        splits = self._builder().info.splits or {}
        split = splits.get(self.origin.split)
        return split.num_bytes if split else 0

    def identity(self) -> PlainDict:
        version = f"{self.name}@{self.origin.revision}"
        return {"name": self.name, "version": version, "column": self.text_field}

    def rows(self, counts: CorpusCounts, advance: Advance) -> Rows:
        builder = self._builder()
        with named_errors(self.place):
            rows = builder.as_streaming_dataset(self.origin.split)
            key = f": name one by corpus.sources.{self.source}.text_field"
            if rows.column_names is not None:
                check_columns(rows.column_names, [self.text_field], self.place, key)
                rows = rows.select_columns([self.text_field])
            for number, record in enumerate(rows, 1):
                text = text_of(record, self.text_field, counts)
                if isinstance(text, str):
                    advance(len(text.encode("utf-8", "replace")))
                yield number, text

    def _builder(self) -> DatasetBuilder:
        return open_builder(self.origin.dataset, self.origin.config, self.origin.revision)
