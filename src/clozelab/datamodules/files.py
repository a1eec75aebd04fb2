"""Where a task's data comes from, and what the cache keeps of it.

It comes from files below data_dir, or from the hub. A data set on the Hugging Face hub is fetched
at a pinned commit and written out once as official files, so that both ways give the same examples;
row numbers stand where the originals number their rows.

A cache folder is named by what decides its content. It holds files and `meta.json` with their
checksums and the facts that came with them, and is whole or absent. One that does not match its
checksums is built anew with a warning.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from clozelab.corpus.generated import BASELINES_FILE, generator_of
from clozelab.corpus.paths import resolve_path
from clozelab.readers.delimited import csv_line
from clozelab.readers.hub import open_builder, require_commit
from clozelab.readers.remote import named_errors
from clozelab.tasks.baselines import Scores
from clozelab.tasks.cache import Facts, cached_folder, content_key
from clozelab.text.did_you_mean import check_choice
from clozelab.text.plain import ReadOnlyJson, read_json

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame


log = logging.getLogger(__name__)


class MissingFileError(ValueError):
    """A file or folder of a task is not there."""


def require_file(
    data_dir: str | Path, relative: str, how_to_get: str, *, is_folder: bool = False
) -> Path:
    """`data_dir/relative`; where nothing is there, `relative` from where one stands.

    With `is_folder` it is a folder of files. The ValueError names the missing file, the expected
    layout and where the file comes from.
    """
    path = resolve_path(relative, data_dir)
    noun = "file"
    is_there = path.is_file()
    if is_folder:
        noun = "folder"
        is_there = path.is_dir()
    if is_there:
        return path
    layout = ""
    if not Path(relative).is_absolute():
        layout = (
            f"\n  expected layout: data_dir/{relative} (data_dir is {Path(data_dir).absolute()};"
            " set data_dir=FOLDER)"
        )
    raise MissingFileError(
        f"benchmark {noun} not found: {path}{layout}\n  how to get it:"
        f" {' '.join(how_to_get.split())}"
    )


def baselines_of(data_dir: str | Path, path: Path) -> Scores:
    """What `baselines.json` beside a validation file says; empty where none is there.

    ValueError for something else. A generator's list says nothing of a real file that has taken the
    generated one's place.
    """
    listed = path.with_name(BASELINES_FILE)
    if not listed.is_file() or generator_of(data_dir, [listed]) != generator_of(data_dir, [path]):
        return {}
    try:
        content = read_json(listed)
        baselines: Scores = {}
        for name, scores in content.get(path.name, {}).items():
            baselines[name] = {metric: float(value) for metric, value in scores.items()}
        return baselines
    except (ValueError, TypeError, AttributeError) as problem:
        shape = json.dumps({path.name: {"name of a baseline": {"accuracy": 0.5}}})
        raise ValueError(
            f"{listed} is no list of baselines ({problem}): it holds {shape}; mend or delete it"
        ) from None


HUB_VERSION = 4  # raised when this code writes other files from the same rows of the hub


@dataclass(frozen=True)
class HubSource:
    """Where a task's files come from.

    conf/task/format/glue.yaml says what each key of `hub` means.
    """

    name: str
    config: str | None
    revision: str | None  # None: none is pinned, the user has to give one
    format: str
    files: Mapping[str, str]  # file below data_dir -> split, or config/split
    columns: Mapping[str, str]
    label_column: str | None
    labels: Sequence[str] | None
    index_column: str | None
    headerless: Sequence[str] | None

    @classmethod
    def from_task(cls, task: ReadOnlyJson) -> HubSource:
        """From a task's configuration.

        Its `hub.splits` says of its data's files (`train_file`, `test_files.NAME`) which split each
        is. ValueError where there is no hub, a key is unknown or missing, or the revision is no
        commit.
        """
        if not task.get("hub"):
            raise ValueError(
                f"task {task['name']!r} has no source on the hub; set hub=false, and data_dir to"
                " its files"
            )
        settings = dict(task["hub"])
        files = _split_of_files(settings.pop("splits", {}), task["data"])
        # Every key but `files` has to be there, and no other.
        keys = {field.name for field in fields(cls)} - {"files"}
        odd = ", ".join(sorted(set(settings) ^ keys))
        if odd:
            raise ValueError(
                f"task.hub: {odd} unknown or missing; it takes splits, {', '.join(sorted(keys))}"
            )
        source = cls(files=files, **settings)
        require_commit(source.revision, source.name, "task.hub.revision")
        check_choice("task.hub.format", source.format, ("tsv", "csv", "parquet", "squad"))
        return source


def _split_of_files(splits: Mapping[str, str], data: ReadOnlyJson) -> dict[str, str]:
    """File -> its split on the hub; a file that the task does not name is not fetched.

    `splits` has keys of the task's data: `train_file`, or `test_files.NAME`.
    """
    files: dict[str, str] = {}
    for setting, split in splits.items():
        key, _, name = setting.partition(".")
        file = data.get(key)
        if isinstance(file, Mapping):
            file = file.get(name)
        if file is not None:
            files[file] = split
    return files


def hub_files(source: HubSource, cache_dir: Path) -> Path:
    """A data_dir with the source's files.

    ValueError where the hub cannot be reached, or has no such rows.
    """

    def write(target: Path) -> Facts:
        for file, split in source.files.items():
            _write_hub_file(source, split, file, target)
        return {}

    key = content_key({"version": HUB_VERSION, **asdict(source)})
    folder = cache_dir / "hub" / f"{source.name.replace('/', '--')}-{key}"
    cached_folder(folder, write)
    return folder


def _write_hub_file(source: HubSource, config_and_split: str, file: str, folder: Path) -> None:
    config, _, split = config_and_split.rpartition("/")
    rows = _fetch(source, config or source.config, split)
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if source.format == "squad":
            rows.to_json(path, force_ascii=False)  # a question a line, which the reader knows
        elif source.format == "parquet":
            _write_parquet(path, rows, source, split)
        else:
            _write_table(path, rows, source, split)
    except (KeyError, IndexError, TypeError) as problem:
        raise ValueError(
            f"{source.name} at {source.revision}, {config_and_split}: the rows are not as expected"
            f" ({problem!r}); another revision has other columns"
        ) from problem
    log.info(
        "%s %s at %s: %d rows as %s",
        source.name,
        config_and_split,
        source.revision,
        len(rows),
        file,
    )


def _fetch(source: HubSource, config: str | None, split: str) -> Dataset:
    try:
        builder = open_builder(source.name, config, str(source.revision))
        with named_errors(f"{source.name} ({config or 'its only configuration'}, {split})"):
            builder.download_and_prepare()
            return builder.as_dataset(split)
    except ValueError as problem:
        raise ValueError(
            f"{problem}\n  without a network, set hub=false and give the task's files (data_dir)"
        ) from problem


def _write_parquet(path: Path, rows: Dataset, source: HubSource, split: str) -> None:
    """Write rows with their types; the file names the classes as the hub does."""
    if source.labels or source.index_column or source.headerless:
        raise ValueError(
            f"{path.name}: task.hub.format=parquet keeps the hub's classes and rows: leave"
            " task.hub.labels, index_column and headerless null"
        )
    rows = rows.select_columns(list(source.columns)).rename_columns(dict(source.columns))
    if split.startswith("test") and source.label_column in rows.column_names:
        rows = rows.remove_columns(source.label_column)
    rows.to_parquet(path)


def _write_table(path: Path, rows: Dataset, source: HubSource, split: str) -> None:
    """Write rows as TSV or CSV, with the columns of the official files."""
    is_test = split.startswith("test")
    for column, feature in rows.features.items():
        if column in source.columns and not hasattr(feature, "dtype"):
            raise ValueError(
                f"{path.name}: the hub's column {column!r} holds lists or objects, which"
                f" {source.format} has not: take task.hub.format=parquet, and file names that end"
                " in .parquet"
            )
    frame = _cells_of(rows, list(source.columns)).rename(columns=dict(source.columns))
    # A test split has no labels, whatever the hub has put there.
    if is_test and source.label_column in frame:
        frame = frame.drop(columns=source.label_column)
    elif source.labels is not None and not is_test:
        numbers = frame[source.label_column].replace("", "-1").astype(int)
        frame[source.label_column] = _class_names(numbers, source.labels, path)
    if source.index_column is not None:
        frame.insert(0, source.index_column, range(len(frame)))
    # CoLA and others have a file without a header, of more columns than the hub has.
    has_header = is_test or not source.headerless
    if not has_header:
        frame = frame.reindex(columns=source.headerless, fill_value="")
    line_of: Callable[[Iterable[str]], str] = csv_line
    if source.format == "tsv":
        line_of = _tsv_line
        # TSV is not CSV: what would break a field becomes a space, as the originals have none.
        mended = frame.replace(r"[\t\r\n]+", " ", regex=True)
        num_changed = int((mended != frame).any(axis=1).sum())
        frame = mended
        if num_changed:
            log.warning(
                "%s: tabs or line breaks inside the texts of %d rows became spaces",
                path.name,
                num_changed,
            )
    with path.open("w", encoding="utf-8", newline="") as file:
        if has_header:
            file.write(line_of(frame.columns))
        file.writelines(map(line_of, frame.astype(str).itertuples(index=False, name=None)))


def _cells_of(rows: Dataset, columns: list[str]) -> DataFrame:
    """The cells of some columns as text: "" for null and NaN, a truth as JSON writes it."""
    # Whole numbers stay whole beside a null: pandas would make them 1.0.
    values = rows.with_format("arrow")[:].to_pandas(integer_object_nulls=True)[columns]
    cells = values.astype(str)
    for column in columns:
        if rows.features[column].dtype == "bool":
            cells[column] = cells[column].str.lower()
    return cells.mask(values.isna(), "")


def _tsv_line(cells: Iterable[str]) -> str:
    return "\t".join(cells) + "\n"


def _class_names(numbers: Iterable[int], labels: Sequence[str], path: Path) -> list[str]:
    """The names of numbered classes; ValueError for a number without one."""
    numbers = list(numbers)
    # SNLI has -1: no gold label
    odd = [number for number in numbers if not 0 <= number < len(labels)]
    if odd:
        raise ValueError(
            f"{path.name}: {len(odd)} rows have a class such as {odd[0]}, outside of {labels}"
        )
    return [labels[number] for number in numbers]
