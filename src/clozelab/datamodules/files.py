"""Where a task's data comes from: files below data_dir, or the hub; what they hold, and what the
cache keeps of them.

A data set on the Hugging Face hub is fetched at a pinned commit and written out once as official
files, so that both ways give the same examples; row numbers stand where the originals number their
rows.

A cache folder is named by what decides its content. It holds files and `meta.json` with their
checksums and the facts that came with them, and is whole or absent. One that does not match its
checksums is built anew with a warning.
"""

from __future__ import annotations

import csv
import hashlib
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from clozelab.corpus.files import file_sha256
from clozelab.corpus.generated import BASELINES_FILE, generator_of
from clozelab.corpus.lines import COMPRESSIONS
from clozelab.corpus.lines import text_lines as text_lines
from clozelab.corpus.tables import COLUMNAR, table_format

log = logging.getLogger(__name__)

MAX_BAD_FRACTION = 0.01
_used: set[str] = set()  # cache folders that this process has asked for
Arrays = dict[str, NDArray[Any]]
Facts = dict[str, Any]
Scores = dict[str, dict[str, float]]  # baseline -> score's name -> value


@dataclass(frozen=True)
class Preview:
    """One split. `texts`: part (sentence1, question, ...) -> the distinct or aligned texts of that
    part.
    """

    texts: Mapping[str, Sequence[str]]
    labels: Sequence[str] | None  # one an example, as written; None where the target is no label
    num_examples: int
    counts: Mapping[str, int] = field(default_factory=dict)  # what the reader repaired or skipped


@dataclass(frozen=True)
class TaskPreview:
    train: Preview
    validation: Preview
    # classes in the order of their indices; None: a number, or no label at all
    label_names: Sequence[str] | None
    is_regression: bool = False
    aligned: bool = False  # text number i of every part, and label i, are of example i
    expects_unanswerable: bool | None = None  # of questions: whether some may have no answer


def require_file(data_dir: str | Path, relative: str, how_to_get: str) -> Path:
    """`data_dir/relative`, or a ValueError that names the file, the expected layout and where it
    comes from.
    """
    path = Path(data_dir) / relative
    if path.is_file():
        return path
    raise ValueError(
        f"benchmark file not found: {path}\n  expected layout: data_dir/{relative} (data_dir is"
        f" {Path(data_dir).absolute()}; set data_dir=FOLDER)\n  how to get it:"
        f" {' '.join(how_to_get.split())}"
    )


def refuse_wrong_file(path: Path, bad: Sequence[str], num_rows: int, expected: str) -> None:
    """ValueError for a file without rows, or with more damaged ones than are dirt; `bad` says where
    and what.
    """
    if num_rows == 0:
        raise ValueError(f"{path} has no examples")
    has_lines = path.suffix not in COMPRESSIONS and table_format(path) not in COLUMNAR
    if bad and has_lines and not path.read_bytes().endswith(b"\n"):
        *_, (number, _) = text_lines(path)
        if bad[-1].startswith(f"{path}:{number}: "):
            raise ValueError(
                f"{bad[-1]}: the file ends in the middle of this line, so it was cut; fetch it"
                " again"
            )
    if len(bad) > MAX_BAD_FRACTION * num_rows:
        raise ValueError(
            f"{bad[0]}\n  {len(bad)} of {num_rows} rows do not fit {expected}: another format, or"
            " damage"
        )


def baselines_of(data_dir: str | Path, path: Path) -> Scores:
    """As `baselines.json` beside a validation file says; empty where none is there. ValueError for
    something else.

    A generator's list says nothing of a real file that has taken the generated one's place."""
    listed = path.with_name(BASELINES_FILE)
    if not listed.is_file() or generator_of(data_dir, [listed]) != generator_of(data_dir, [path]):
        return {}
    try:
        found = json.loads(listed.read_text(encoding="utf-8")).get(path.name, {})
        return {
            name: {metric: float(value) for metric, value in scores.items()}
            for name, scores in found.items()
        }
    except (ValueError, TypeError, AttributeError) as problem:
        shape = json.dumps({path.name: {"name of a baseline": {"accuracy": 0.5}}})
        raise ValueError(
            f"{listed} is no list of baselines ({problem}): it holds {shape}; mend or delete it"
        ) from None


def fingerprint_of(parts: Mapping[str, Any]) -> str:
    """sha256 of plain values, whatever their order."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=list).encode()).hexdigest()


def content_key(parts: Mapping[str, Any]) -> str:
    """16 hex digits that name everything which decides the content."""
    return fingerprint_of(parts)[:16]


def used_folders() -> list[str]:
    """Names of the cache folders that this process has asked for: what a run's record may say it
    refers to.
    """
    return sorted(_used)


def cached_arrays(folder: Path, build: Callable[[], tuple[Arrays, Facts]]) -> tuple[Arrays, Facts]:
    """The arrays and facts stored in `folder`, built and stored first where they are missing or
    damaged.
    """
    built: Arrays = {}

    def write(target: Path) -> Facts:
        arrays, facts = build()
        built.update(arrays)
        for name, array in arrays.items():
            np.save(target / f"{name}.npy", array, allow_pickle=False)
        return facts

    facts = cached_folder(folder, write)
    return (
        built or {path.stem: np.load(path, allow_pickle=False) for path in folder.glob("*.npy")},
        facts,
    )


def cached_folder(folder: Path, write: Callable[[Path], Facts]) -> Facts:
    """The facts of `folder`, whose files are then whole; where it is missing or damaged, `write`
    fills an empty one.
    """
    _used.add(f"{folder.parent.name}/{folder.name}")
    if (facts := _checked_facts(folder)) is not None:
        return facts
    with one_at_a_time(folder.parent):
        if (facts := _checked_facts(folder)) is not None:
            return facts
        if folder.is_dir():
            log.warning("cached task data in %s is damaged; building it anew", folder)
            shutil.rmtree(folder, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            facts = write(temporary)
            files = sorted(path for path in temporary.rglob("*") if path.is_file())
            checksums = {
                path.relative_to(temporary).as_posix(): file_sha256(path) for path in files
            }
            meta = json.dumps({"checksums": checksums, "facts": facts}, indent=1, sort_keys=True)
            (temporary / "meta.json").write_text(meta, encoding="utf-8")
            temporary.chmod(0o755)  # mkdtemp makes it private, a cache may be shared
            temporary.rename(folder)
            return facts
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Holds back other processes that want to write there: who waits finds the work of the first
    one done.

    The lock ends with the process that holds it; one that hangs is waited for, and that is said.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.parent / f".{folder.name}.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        log.info("another process is writing below %s; waiting for it", folder)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _checked_facts(folder: Path) -> Facts | None:
    """None where the folder is missing or does not match its checksums."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        whole = all(
            file_sha256(folder / name) == checksum for name, checksum in meta["checksums"].items()
        )
        return meta["facts"] if whole else None
    except (OSError, ValueError, KeyError):
        return None


HUB_VERSION = 2  # raised when this code writes other files from the same rows of the hub


@dataclass(frozen=True)
class HubSource:
    """Where a task's files come from; conf/task/format/glue.yaml says what each key of `hub`
    means.
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
    def of(cls, task: Mapping[str, Any]) -> HubSource:
        """From a task's configuration, whose `hub.splits` says of its data's files (`train_file`,
        `test_files.NAME`) which split each is. ValueError where there is none, a key is unknown or
        missing, or the revision no commit."""
        if not task.get("hub"):
            raise ValueError(
                f"task {task['name']!r} has no source on the hub; set hub=false, and data_dir to"
                " its files"
            )
        settings, files = {**task["hub"]}, dict[str, str]()
        for setting, split in settings.pop("splits", {}).items():
            key, _, name = setting.partition(".")
            file = task["data"].get(key)
            file = file.get(name) if isinstance(file, Mapping) else file
            files |= {} if file is None else {file: split}
        known = {one.name for one in fields(cls)} - {"files"}
        if odd := ", ".join(sorted(set(settings) ^ known)):
            raise ValueError(
                f"task.hub: {odd} unknown or missing; it takes splits, {', '.join(sorted(known))}"
            )
        source = cls(files=files, **settings)
        if source.revision is None or not re.fullmatch(r"[0-9a-f]{40}", source.revision):
            wanted = (
                "give one (40 hex digits; its page on the hub lists them), since a branch or a tag"
                " may move"
            )
            raise ValueError(
                f"task.hub.revision={source.revision!r} is no commit of {source.name}: {wanted}"
            )
        if source.format not in ("tsv", "csv", "squad"):
            raise ValueError(
                f"task.hub.format={source.format!r} is unknown; known: tsv, csv, squad"
            )
        return source


def hub_files(source: HubSource, cache_dir: Path) -> Path:
    """A data_dir with the source's files; ValueError where the hub cannot be reached, or has no
    such rows.
    """

    def write(target: Path) -> Facts:
        for file, place in source.files.items():
            config, _, split = place.rpartition("/")
            rows, path = _fetch(source, config or source.config, split), target / file
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                (_write_squad if source.format == "squad" else _write_table)(
                    path, rows, source, split
                )
            except (KeyError, IndexError, TypeError) as problem:
                odd = (
                    f"the rows are not as expected ({problem!r}); another revision has other"
                    " columns"
                )
                raise ValueError(f"{source.name} at {source.revision}, {place}: {odd}") from problem
            log.info(
                "%s %s at %s: %d rows as %s", source.name, place, source.revision, len(rows), file
            )
        return {}

    key = content_key({"version": HUB_VERSION, **asdict(source)})
    folder = cache_dir / "hub" / f"{source.name.replace('/', '--')}-{key}"
    cached_folder(folder, write)
    return folder


def _fetch(source: HubSource, config: str | None, split: str) -> Any:
    import datasets  # takes a second: only who asks for the hub pays

    try:
        return datasets.load_dataset(source.name, config, split=split, revision=source.revision)
    except (
        Exception
    ) as problem:  # a foreign library's, of many kinds: no network, no such split, a damaged cache
        which = (
            f"{source.name} ({config or 'its only configuration'}, {split}) at revision"
            f" {source.revision}"
        )
        why = f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}"
        instead = "without a network, set hub=false and give the task's files (data_dir)"
        raise ValueError(f"{which} is not to be had from the hub: {why}\n  {instead}") from problem


def _write_table(path: Path, rows: Any, source: HubSource, split: str) -> None:
    """TSV is not CSV: what would break a field becomes a space there, as it has none in the
    originals.
    """
    is_test = split.startswith("test")
    frame = rows.to_pandas()[list(source.columns)].rename(columns=dict(source.columns)).astype(str)
    if is_test and source.label_column in frame:
        frame = frame.drop(columns=source.label_column)
    elif source.labels is not None and not is_test:
        classes = frame[source.label_column].astype(int)
        # SNLI has -1: no gold label
        if odd := [one for one in classes if not 0 <= one < len(source.labels)]:
            raise ValueError(
                f"{path.name}: {len(odd)} rows have a class such as {odd[0]}, outside of"
                f" {source.labels}"
            )
        frame[source.label_column] = [source.labels[one] for one in classes]
    if source.index_column is not None:
        frame.insert(0, source.index_column, range(len(frame)))
    if headerless := None if is_test else source.headerless:
        frame = frame.reindex(columns=headerless, fill_value="")
    how: dict[str, Any] = {}
    if source.format == "tsv":
        whole = frame.replace(r"[\t\r\n]+", " ", regex=True)
        if changed := int((whole != frame).any(axis=1).sum()):
            log.warning(
                "%s: tabs or line breaks inside the texts of %d rows became spaces",
                path.name,
                changed,
            )
        frame, how = whole, {"sep": "\t", "quoting": csv.QUOTE_NONE}
    frame.to_csv(path, index=False, header=not headerless, lineterminator="\n", **how)


def _write_squad(path: Path, rows: Any, source: HubSource, _: str) -> None:
    """Rows of questions become articles of passages again; neighbours with the same passage share
    it.
    """
    articles = []
    for title, of_title in groupby(rows, key=lambda row: row["title"]):
        paragraphs = []
        for context, of_context in groupby(of_title, key=lambda row: row["context"]):
            questions = []
            for row in of_context:
                pairs = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
                answers = [{"text": text, "answer_start": start} for text, start in pairs]
                asked = {"id": row["id"], "question": row["question"]}
                questions.append(asked | {"answers": answers, "is_impossible": not answers})
            paragraphs.append({"context": context, "qas": questions})
        articles.append({"title": title, "paragraphs": paragraphs})
    content = {"version": f"{source.name} {source.revision}", "data": articles}
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
