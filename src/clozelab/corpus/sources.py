"""The sources that a configuration names: files (corpus/files.py), or a data set of the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clozelab.corpus.files import CorpusCounts, CorpusSource, Rows, Shard, text_of
from clozelab.corpus.text_column import DEFAULT_TEXT_COLUMN
from clozelab.readers.hub import open_builder, require_commit
from clozelab.readers.lines import Advance
from clozelab.readers.records import check_columns
from clozelab.readers.remote import named_errors
from clozelab.text.plain import PlainDict, ReadOnlyJson

if TYPE_CHECKING:
    from datasets import DatasetBuilder

# what belongs to one kind of source alone
FILE_KEYS = ("path", "format")
HUB_KEYS = ("dataset", "config", "split", "revision")
OF_TRAINING = ("weight",)  # how much of a source training reads, whatever is prepared of it


def make_source(
    settings: ReadOnlyJson, index: int, hub: bool, how_to_get: str | None = None
) -> CorpusSource | DatasetSource:
    """Source number `index` of a corpus, by its settings.

    ValueError: neither files nor a data set, both, a data set without hub=true or without a commit.
    """
    key = f"corpus.sources.{index}"
    settings = {field: value for field, value in settings.items() if field not in OF_TRAINING}
    name = settings["name"]
    dataset = settings.get("dataset")
    if (dataset is None) == (settings.get("path") is None):
        raise ValueError(
            f"source {name}: name either its files ({key}.path) or a data set of the hub"
            f" ({key}.dataset)"
        )
    if dataset is None:
        values = {field: value for field, value in settings.items() if field not in HUB_KEYS}
        return CorpusSource(**values, how_to_get=how_to_get)
    if not hub:
        raise ValueError(
            f"source {name}: {dataset} comes from the Hugging Face hub, which is asked only with"
            f" hub=true; without a network name files of your own, {key}.path"
        )
    require_commit(settings.get("revision"), dataset, f"{key}.revision")
    values = {field: value for field, value in settings.items() if field not in FILE_KEYS}
    return DatasetSource(**values)


@dataclass(frozen=True)
class DatasetSource:
    """A split of a data set of the hub, streamed: nothing of it is kept on disk."""

    name: str
    dataset: str
    revision: str
    config: str | None = None
    split: str = "train"
    text_field: str = DEFAULT_TEXT_COLUMN

    def shards(self, index: int, _: Path) -> list[Shard]:
        """The split as one shard; the hub is not asked before its rows are read."""
        place = "/".join(filter(None, (self.dataset, self.config, self.split)))
        return [DatasetSplit(place, index, self.text_field, self)]

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
