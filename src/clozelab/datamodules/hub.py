"""Benchmarks by their name on the Hugging Face hub: fetched at a pinned revision, written out once as official files.

The readers of files then read them as they read the originals, so both ways give the same examples. Unusual: row
numbers stand where the originals number their rows, and a revision is a commit, since a branch or a tag may move.
Nothing here runs, and `datasets` is not imported, unless a user asks for it.
"""

from __future__ import annotations

import csv
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from clozelab.datamodules.cache import content_key, one_at_a_time

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
"""Raised when this code writes other files from the same rows."""
Row = Mapping[str, Any]
COMMIT = re.compile(r"[0-9a-f]{40}")
FIELD_BREAKS = re.compile(r"[\t\r\n]+")


@dataclass(frozen=True)
class HubSource:
    """Where a task's files come from.

    Attributes:
        name: on the hub, such as nyu-mll/glue.
        config: the hub's name for a part of it; None: it has one.
        revision: a commit of that repository; None: none is pinned, and the user has to give one.
        format: tsv | csv | squad: of the files.
        files: file below data_dir -> split, or config/split.
        columns: column on the hub -> column of the file, for tsv and csv.
        label_column: of the file; left out of test files.
        labels: the file's spelling of the hub's class numbers, in their order; None: as they are.
        index_column: of the file: the row's number; None: none.
        headerless: all columns of the training and validation files, which name none themselves; None: they do.
    """

    name: str
    config: str | None
    revision: str | None
    format: str
    files: Mapping[str, str]
    columns: Mapping[str, str]
    label_column: str | None
    labels: Sequence[str] | None
    index_column: str | None
    headerless: Sequence[str] | None

    @classmethod
    def of(cls, task: Mapping[str, Any]) -> HubSource:
        """From a task's configuration, whose `hub.splits` says of its data's files (`train_file`, `test_files.NAME`)
        which split each is.

        Raises:
            ValueError: the task has no source there, a key is unknown or missing, or the revision is no commit.
        """
        if task.get("hub") is None:
            raise ValueError(
                f"task {task['name']!r} has no source on the hub; set hub=false and give its files (data_dir)"
            )
        settings = {**task["hub"]}
        splits = settings.pop("splits", {})
        known = {field.name for field in fields(cls)} - {"files"}
        if set(settings) != known:
            odd = sorted(set(settings) ^ known)
            raise ValueError(
                f"task.hub: {', '.join(odd)} unknown or missing; it takes splits, {', '.join(sorted(known))}"
            )
        named = {setting: _file_of(task["data"], setting) for setting in splits}
        files = {file: splits[setting] for setting, file in named.items() if file is not None}
        source = cls(files=files, **settings)
        if source.revision is None or not COMMIT.fullmatch(source.revision):
            raise ValueError(
                f"task.hub.revision={source.revision!r} is no commit of {source.name}: give one (40 hex digits; its "
                "page on the hub lists them), since a branch or a tag may move"
            )
        if source.format not in WRITERS:
            raise ValueError(f"task.hub.format={source.format!r} is unknown; known: {', '.join(WRITERS)}")
        return source


def _file_of(data: Mapping[str, Any], setting: str) -> str | None:
    """The file that a setting of the data names, `train_file` or `test_files.NAME`; None where it names none."""
    key, _, name = setting.partition(".")
    value = data.get(key)
    return value.get(name) if isinstance(value, Mapping) else value


def hub_files(source: HubSource, cache_dir: Path) -> Path:
    """A data_dir with the source's files, from the cache where they were written before.

    Raises:
        ValueError: the hub cannot be reached, or has no such rows.
    """
    key = content_key({"version": FORMAT_VERSION, **asdict(source)})
    folder = cache_dir / "hub" / f"{source.name.replace('/', '--')}-{key}"
    with one_at_a_time(folder.parent):
        if not folder.is_dir():
            _write_folder(source, folder)
    return folder


def _write_folder(source: HubSource, folder: Path) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for file, place in source.files.items():
            config, _, split = place.rpartition("/")
            rows = fetch(source.name, config or source.config, split, str(source.revision))
            path = temporary / file
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                number = WRITERS[source.format](path, rows, source, split.startswith("test"))
            except (KeyError, IndexError, TypeError) as problem:
                raise ValueError(
                    f"{source.name} at {source.revision}, {place}: the rows are not as expected ({problem!r}); another "
                    "revision has other columns"
                ) from problem
            log.info("%s %s at %s: %d rows as %s", source.name, place, source.revision, number, file)
        temporary.chmod(0o755)  # mkdtemp makes it private, a cache may be shared
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def fetch(name: str, config: str | None, split: str, revision: str) -> Iterable[Row]:
    """The rows of one split; ValueError where they cannot be had."""
    import datasets  # takes a second: only who asks for the hub pays

    try:
        rows: Iterable[Row] = datasets.load_dataset(name, config, split=split, revision=revision)
    except Exception as problem:  # a foreign library's, of many kinds: no network, no such split, a damaged cache
        raise ValueError(
            f"{name} ({config or 'its only configuration'}, {split}) at revision {revision} is not to be had from the "
            f"hub: {type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}\n"
            "  without a network, set hub=false and give the task's files (data_dir)"
        ) from problem
    return rows


def _write_table(path: Path, rows: Iterable[Row], source: HubSource, is_test: bool, is_csv: bool) -> int:
    """TSV is not CSV: what would break a field becomes a space there, as it has none in the originals."""
    wanted = {hub: column for hub, column in source.columns.items() if not (is_test and column == source.label_column)}
    header = source.headerless if source.headerless and not is_test else None
    columns = header or [*([source.index_column] if source.index_column is not None else []), *wanted.values()]
    number = changed = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        write: Callable[[Sequence[str]], Any] = (
            writer.writerow if is_csv else lambda row: file.write("\t".join(row) + "\n")
        )
        if header is None:
            write(columns)
        for row in rows:
            cells = {column: _cell(row[hub], column, source) for hub, column in wanted.items()}
            if not is_csv:
                whole = {column: FIELD_BREAKS.sub(" ", cell) for column, cell in cells.items()}
                changed += whole != cells
                cells = whole
            write([cells.get(column, str(number) if column == source.index_column else "") for column in columns])
            number += 1
    if changed:
        log.warning("%s: tabs or line breaks inside the texts of %d rows became spaces", path.name, changed)
    return number


def _cell(value: Any, column: str, source: HubSource) -> str:
    if column != source.label_column or source.labels is None:
        return str(value)
    if not 0 <= value < len(source.labels):
        raise IndexError(f"class {value} of {len(source.labels)}")
    return source.labels[value]


def _write_squad(path: Path, rows: Iterable[Row], source: HubSource, is_test: bool) -> int:  # noqa: ARG001
    """Rows of questions become articles of passages again; neighbours with the same passage share it."""
    articles: list[dict[str, Any]] = []
    number = 0
    for row in rows:
        if not articles or articles[-1]["title"] != row["title"]:
            articles.append({"title": row["title"], "paragraphs": []})
        paragraphs = articles[-1]["paragraphs"]
        if not paragraphs or paragraphs[-1]["context"] != row["context"]:
            paragraphs.append({"context": row["context"], "qas": []})
        found = row["answers"]
        pairs = zip(found["text"], found["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in pairs]
        question = {"id": row["id"], "question": row["question"], "answers": answers, "is_impossible": not answers}
        paragraphs[-1]["qas"].append(question)
        number += 1
    content = {"version": f"{source.name} {source.revision}", "data": articles}
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return number


def _write_tsv(path: Path, rows: Iterable[Row], source: HubSource, is_test: bool) -> int:
    return _write_table(path, rows, source, is_test, is_csv=False)


def _write_csv(path: Path, rows: Iterable[Row], source: HubSource, is_test: bool) -> int:
    return _write_table(path, rows, source, is_test, is_csv=True)


WRITERS: dict[str, Callable[[Path, Iterable[Row], HubSource, bool], int]] = {
    "tsv": _write_tsv,
    "csv": _write_csv,
    "squad": _write_squad,
}
