"""Where a task's data comes from, and what the cache keeps of it.

It comes from files below data_dir, or from the hub. A data set on the Hugging Face hub is fetched
at a pinned commit and written out once as official files, so that both ways give the same examples;
row numbers stand where the originals number their rows.

A cache folder is named by what decides its content. It holds files and `meta.json` with their
checksums and the facts that came with them, and is whole or absent. One that does not match its
checksums is built anew with a warning.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clozelab.corpus.generated import BASELINES_FILE, generator_of
from clozelab.files.digests import file_sha256
from clozelab.files.locks import exclusive_lock
from clozelab.readers.delimited import csv_line
from clozelab.text.did_you_mean import check_choice
from clozelab.text.plain import JsonObject, ReadOnlyJson, read_json

if TYPE_CHECKING:
    from datasets import Dataset

    from clozelab.datamodules.label_kinds import LabelKind

log = logging.getLogger(__name__)

WARNINGS = "warnings"  # among a cache folder's facts: what building it warned of
SOURCE = "{source}"  # stands there for the name of the file
_used: set[str] = set()  # cache folders that this process has asked for
Arrays = dict[str, np.ndarray]
Facts = JsonObject
Scores = dict[str, dict[str, float]]  # baseline -> score's name -> value


@dataclass(frozen=True)
class Preview:
    """One split as written."""

    # part of an example (sentence1, question, ...) -> the distinct or aligned texts of that part
    texts: Mapping[str, Sequence[str]]
    labels: Sequence[str] | None  # one an example, as written; None where the target is no label
    num_examples: int
    counts: Mapping[str, int] = field(default_factory=dict)  # what the reader repaired or skipped
    rows: Sequence[Sequence[str]] = ()  # the texts of each example


@dataclass(frozen=True)
class TaskPreview:
    train: Preview
    validation: Preview
    kind: LabelKind | None  # of the labels; None: there are none
    aligned: bool = False  # text number i of every part, and label i, are of example i
    expects_unanswerable: bool | None = None  # of questions: whether some may have no answer
    warnings: Sequence[str] = ()  # of reading the files

    @property
    def label_names(self) -> Sequence[str] | None:
        """Classes in the order of their indices; None: a number, or no label at all."""
        if self.kind is None:
            return None
        return self.kind.names or None


def require_file(data_dir: str | Path, relative: str, how_to_get: str) -> Path:
    """`data_dir/relative`.

    The ValueError names the missing file, the expected layout and where the file comes from.
    """
    path = Path(data_dir) / relative
    if path.is_file():
        return path
    raise ValueError(
        f"benchmark file not found: {path}\n  expected layout: data_dir/{relative} (data_dir is"
        f" {Path(data_dir).absolute()}; set data_dir=FOLDER)\n  how to get it:"
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


def fingerprint_of(parts: ReadOnlyJson) -> str:
    """sha256 of plain values, whatever their order."""
    text = json.dumps(parts, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()


def content_key(parts: ReadOnlyJson) -> str:
    """16 hex digits that name everything which decides the content."""
    return fingerprint_of(parts)[:16]


def used_folders() -> list[str]:
    """Names of the cache folders that this process has asked for.

    A run's record may say that it refers to them.
    """
    return sorted(_used)


@contextmanager
def collected_warnings() -> Iterator[list[logging.LogRecord]]:
    """The package's warnings meanwhile.

    They are logged as ever; a log that is off stays off.
    """
    logger = logging.getLogger("clozelab")
    level = logger.level
    propagate = logger.propagate
    collector = BufferingHandler(capacity=sys.maxsize)
    collector.setLevel(logging.WARNING)
    logger.addHandler(collector)
    if not logger.isEnabledFor(logging.WARNING):
        logger.setLevel(logging.WARNING)
        logger.propagate = False
    try:
        yield collector.buffer
    finally:
        logger.removeHandler(collector)
        logger.setLevel(level)
        logger.propagate = propagate


def cached_arrays(
    folder: Path, source: Path, build: Callable[[], tuple[Arrays, Facts]]
) -> tuple[Arrays, Facts]:
    """The arrays and facts stored in `folder`.

    They are built and stored first where they are missing or damaged. What building them warned of
    is said again where they are read; `source` is the file that it is about.
    """
    built: Arrays = {}

    def write(target: Path) -> Facts:
        with collected_warnings() as records:
            arrays, facts = build()
        built.update(arrays)
        for name, array in arrays.items():
            np.save(target / f"{name}.npy", array, allow_pickle=False)
        # The folder serves any file of this content, so it holds no file's name.
        texts = [record.getMessage().replace(str(source), SOURCE) for record in records]
        return facts | {WARNINGS: texts}

    facts = cached_folder(folder, write)
    warnings = facts.pop(WARNINGS, [])
    # What was just built need not be read again.
    if built:
        return built, facts
    for text in warnings:
        log.warning("%s", text.replace(SOURCE, str(source)))
    arrays = {}
    for path in folder.glob("*.npy"):
        arrays[path.stem] = np.load(path, allow_pickle=False)
    return arrays, facts


def cached_folder(folder: Path, write: Callable[[Path], Facts]) -> Facts:
    """The facts of `folder`, whose files are then whole.

    Where it is missing or damaged, `write` fills an empty one.
    """
    _used.add(f"{folder.parent.name}/{folder.name}")
    facts = _checked_facts(folder)
    if facts is not None:
        return facts
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder.parent):
        # Another process may have written it while this one waited.
        facts = _checked_facts(folder)
        if facts is not None:
            return facts
        if folder.is_dir():
            log.warning("cached task data in %s is damaged; building it anew", folder)
            shutil.rmtree(folder, ignore_errors=True)
        # A folder is whole or absent: it is filled under another name, and renamed when complete.
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            facts = write(temporary)
            _write_meta(temporary, facts)
            temporary.chmod(0o755)  # mkdtemp makes it private, a cache may be shared
            temporary.rename(folder)
            return facts
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _write_meta(folder: Path, facts: Facts) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    checksums = {}
    for path in files:
        checksums[path.relative_to(folder).as_posix()] = file_sha256(path)
    meta = json.dumps({"checksums": checksums, "facts": facts}, indent=1, sort_keys=True)
    (folder / "meta.json").write_text(meta, encoding="utf-8")


def _checked_facts(folder: Path) -> Facts | None:
    """None where the folder is missing or does not match its checksums."""
    try:
        meta = read_json(folder / "meta.json")
        for name, checksum in meta["checksums"].items():
            if file_sha256(folder / name) != checksum:
                return None
        return meta["facts"]
    except (OSError, ValueError, KeyError):
        return None


HUB_VERSION = 3  # raised when this code writes other files from the same rows of the hub


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
    def of(cls, task: ReadOnlyJson) -> HubSource:
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
        # a branch or a tag may move, and with it the data
        if source.revision is None or not re.fullmatch(r"[0-9a-f]{40}", source.revision):
            raise ValueError(
                f"task.hub.revision={source.revision!r} is no commit of {source.name}: give one (40"
                " hex digits; its page on the hub lists them), since a branch or a tag may move"
            )
        check_choice("task.hub.format", source.format, ("tsv", "csv", "squad"))
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
    import datasets  # takes a second: only who asks for the hub pays

    try:
        return datasets.load_dataset(source.name, config, split=split, revision=source.revision)
    # A foreign library's errors are of many kinds: no network, no such split, a damaged cache.
    except Exception as problem:
        first_line, *_ = str(problem).split("\n")
        raise ValueError(
            f"{source.name} ({config or 'its only configuration'}, {split}) at revision"
            f" {source.revision} is not to be had from the hub: {type(problem).__name__}:"
            f" {first_line}\n  without a network, set hub=false and give the task's files"
            " (data_dir)"
        ) from problem


def _write_table(path: Path, rows: Dataset, source: HubSource, split: str) -> None:
    """Write rows as TSV or CSV, with the columns of the official files."""
    is_test = split.startswith("test")
    frame = rows.to_pandas()[list(source.columns)].rename(columns=dict(source.columns)).astype(str)
    # A test split has no labels, whatever the hub has put there.
    if is_test and source.label_column in frame:
        frame = frame.drop(columns=source.label_column)
    elif source.labels is not None and not is_test:
        numbers = frame[source.label_column].astype(int)
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
