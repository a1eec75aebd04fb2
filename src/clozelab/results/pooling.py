"""`clozelab pool`: the runs of several packs become one table.

Packs are unpacked elsewhere, and compared with each other and with the runs that are there. Only
then all files are put in place, the records last: after a pool that was cut off, a run that is not
whole has no record.
"""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from claims.analysis.history import ANALYSIS_LOG
from clozelab.files.atomic import atomic_open, atomic_write_lines
from clozelab.files.locks import exclusive_lock
from clozelab.files.origin import RUN_FILE
from clozelab.results.experiment import load_experiment
from clozelab.runs.archive import (
    MERGED_NOTES,
    REGISTRATION_FILE,
    RUNS,
    RunArchive,
    open_archive,
)
from clozelab.runs.find import cell_of, find, is_copy
from clozelab.runs.progress import merge_launches
from clozelab.runs.record import CONFIG_FILE, LOCK_FILE, Record, read_record, write_json
from clozelab.text.plain import PlainDict, read_json

POOL_LOCK = ".pool.lock"  # below runs_dir
# Of a record: what may differ between two copies of a run. Its fingerprint knows the rest.
MAY_DIFFER = {
    "watched",
    "started_in",
    "config_dir",
    "overrides",
    "error",
    "arm_delta",
    "row_delta",
}


def open_intact_archive(name: str, folder: Path) -> RunArchive:
    """Unpack a pack into an empty folder; ValueError where it differs from its manifest."""
    archive = open_archive(Path(name), folder)
    if archive.changed:
        raise ValueError(
            f"{name} is damaged: {archive.changed[0]} does not match the manifest; fetch it again"
        )
    return archive


def check_archives(archives: Sequence[RunArchive], runs_dir: Path) -> dict[str, Path]:
    """Compare packs with each other and with the runs that are there.

    Returns:
        Name below runs_dir -> file of a pack, of all that is not there.

    Raises:
        ValueError: they do not fit together.
    """
    _check_claims(archives)
    present = find(runs_dir).runs
    _check_cells(archives, runs_dir, present)
    _check_versions(archives, runs_dir, present)
    return _new_files(archives, runs_dir)


def _check_claims(archives: Iterable[RunArchive]) -> None:
    """ValueError where two packs judge one experiment differently."""
    # experiment -> the first pack that has it, and its claims
    first: dict[str, tuple[RunArchive, PlainDict]] = {}
    for archive in archives:
        if archive.experiment is None:
            continue
        name = archive.manifest.experiment
        claims = load_experiment(archive.experiment).model_dump(mode="json", exclude={"folder"})
        first_archive, first_claims = first.setdefault(name, (archive, claims))
        differing = [key for key in claims if claims[key] != first_claims[key]]
        if differing:
            raise ValueError(
                f"{archive.path}: its {name} has other {' and '.join(differing)} than that of"
                f" {first_archive.path}; pack both with one paper.yaml"
            )


def _check_cells(archives: Iterable[RunArchive], runs_dir: Path, present: Sequence[Record]) -> None:
    """ValueError for another run of a cell at another place; a copy is none."""
    # cell -> the first run of it, and the pack or folder that has it
    first: dict[tuple[Hashable, ...], tuple[Path, Record]] = {}
    sources = [(runs_dir, present)]
    sources += [(archive.path, archive.records) for archive in archives]
    # A cell is an arm or a row and task, its seeds and its learning rate.
    for source, records in sources:
        for record in records:
            first_source, first_record = first.setdefault(cell_of(record), (source, record))
            if record.place != first_record.place and not is_copy(record, first_record):
                raise ValueError(
                    f"{source}: {record.place} is another run than {first_record.place} in"
                    f" {first_source}, of the same cell; pack without one of them (name= task="
                    " seeds=)"
                )


def _check_versions(
    archives: Iterable[RunArchive], runs_dir: Path, present: Sequence[Record]
) -> None:
    """ValueError where a pack brings a second results version into a column or among encoders."""
    # column -> a complete run in it, and the pack or folder that has it
    first = {_column_of(record): (runs_dir, record) for record in present if record.is_complete}
    for archive in archives:
        for record in archive.records:
            if not record.is_complete:
                continue
            source, first_record = first.setdefault(_column_of(record), (archive.path, record))
            if record.stage_version != first_record.stage_version:
                raise ValueError(
                    f"{archive.path}: {record.place} has results version {record.stage_version}"
                    f" of {record.stage}, and {first_record.place} in {source} has"
                    f" {first_record.stage_version}; no column may mix them: give each its own"
                    " runs_dir"
                )


def _column_of(record: Record) -> tuple[str, ...]:
    return record.experiment, record.scale, record.stage, record.task


def _new_files(archives: Iterable[RunArchive], runs_dir: Path) -> dict[str, Path]:
    """Name below runs_dir -> file of a pack, of all that is not there.

    Raises:
        ValueError: another file is there.
    """
    new_files: dict[str, Path] = {}
    for archive in archives:
        for name in _names_of_runs(archive):
            if name.endswith(MERGED_NOTES):
                continue
            file = archive.folder / RUNS / name
            # Of an earlier pack of this command, or where the runs are.
            present_file = new_files.get(name, runs_dir / name)
            if not present_file.exists():
                new_files[name] = file
            elif not _is_same_file(file, present_file):
                source: Path | str = "a pack"
                if present_file == runs_dir / name:
                    source = runs_dir
                raise ValueError(
                    f"{archive.path}: {name} is another one than in {source}: two runs of one"
                    " cell; pack without one of them (name= task= seeds=)"
                )
    return new_files


def _names_of_runs(archive: RunArchive) -> Iterator[str]:
    """The names of a pack's files below runs/, without that folder."""
    for name in archive.manifest.files:
        if name.startswith(f"{RUNS}/"):
            yield name.removeprefix(f"{RUNS}/")


def _is_same_file(first: Path, second: Path) -> bool:
    """Whether two files say the same; of a run's record and configuration, paths may differ."""
    if filecmp.cmp(first, second, shallow=False):
        return True
    if first.name not in (RUN_FILE, CONFIG_FILE):
        return False
    records = [read_record(path.parent) for path in (first, second)]
    dumps = [record and record.model_dump(exclude=MAY_DIFFER) for record in records]
    return dumps[0] is not None and dumps[0] == dumps[1]


def pooling_lock(runs_dir: Path) -> AbstractContextManager[None]:
    """Hold back other pools: what they have put there is compared with as well, and kept."""
    remedy = "name another folder with runs_dir="
    return exclusive_lock(runs_dir, lock_file=runs_dir / POOL_LOCK, remedy=remedy)


def copy_files(new_files: Mapping[str, Path], runs_dir: Path) -> None:
    """Put files in place: first a sign of every run, last the records.

    What is cut off in between is no run, and is named as none.
    """
    records = [name for name in new_files if name.endswith(f"/{RUN_FILE}")]
    # A folder with a lock file and without a record is a run that was cut off.
    for name in records:
        folder = (runs_dir / name).parent
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK_FILE).touch()
    for name in sorted(new_files.keys() - records):
        _copy_atomically(new_files[name], runs_dir / name)
    for name in sorted(records):
        _copy_atomically(new_files[name], runs_dir / name)


def _copy_atomically(source: Path, target: Path) -> None:
    """Copy a file in one rename."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as content, atomic_open(target) as file:
        shutil.copyfileobj(content, file)


def merge_notes(archives: Iterable[RunArchive], runs_dir: Path) -> None:
    """Merge looks and registrations, each once and in their order, and the jobs of all launches."""
    for archive in archives:
        for name in _names_of_runs(archive):
            if not name.endswith(MERGED_NOTES):
                continue
            note = archive.folder / RUNS / name
            path = runs_dir / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                shutil.copyfile(note, path)
            elif name.endswith(ANALYSIS_LOG):
                _merge_analyses(path, note)
            elif name.endswith(REGISTRATION_FILE):
                _merge_registrations(path, note)
            else:
                # The folder of the launch lies in that of the runs.
                merge_launches(path.parents[1], note.parents[1])


def _merge_analyses(path: Path, more: Path) -> None:
    """Add the lines of another file of looks; each begins with its time."""
    text = path.read_text(encoding="utf-8") + "\n" + more.read_text(encoding="utf-8")
    lines = sorted(set(text.splitlines()) - {""})
    atomic_write_lines(path, lines)


def _merge_registrations(path: Path, more: Path) -> None:
    """Add the registrations of another file, by date: a report says which of them counts."""
    by_hash = _registrations(path) | _registrations(more)
    entries = sorted(by_hash.values(), key=lambda entry: str(entry["date"]))
    write_json(path, {"registrations": entries})


def _registrations(path: Path) -> dict[str, PlainDict]:
    """Hash -> registration. ValueError: the file is none."""
    try:
        return {str(entry["hash"]): entry for entry in read_json(path)["registrations"]}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no registration that can be read ({error})") from error
