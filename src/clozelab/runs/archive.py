"""The file that `clozelab pack` writes: an archive of runs, which travels between machines.

An archive is one zip. It holds files of runs, each below the place that it has below runs_dir, and
a manifest with their sha256. It may be anybody's: names, kinds and sizes are looked at before
anything is unpacked, and nothing of it is run.
"""

from __future__ import annotations

import fnmatch
import re
import shutil
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from claims.analysis.history import ANALYSIS_LOG
from claims.tables.layout import SCORES_FILE
from clozelab.files.atomic import atomic_open
from clozelab.files.digests import file_sha256
from clozelab.files.origin import RUN_FILE
from clozelab.readers.lines import MAX_EXPANSION, MIN_BOMB_BYTES
from clozelab.runs.find import find
from clozelab.runs.identity import results_version_of
from clozelab.runs.progress import LAUNCH_FILE
from clozelab.runs.record import CONFIG_FILE, Record

PACKED_STATUSES = ("complete", "failed", "interrupted")
MANIFEST = "manifest.json"
RUNS = "runs"
EXPERIMENT = "experiment"
# what was declared before the first run (report/registration.py)
REGISTRATION_FILE = "registration.json"
# Notes that archives have in common, and that say different things in each.
MERGED_NOTES = (ANALYSIS_LOG, str(LAUNCH_FILE), REGISTRATION_FILE)
# Notes of a folder above runs: looks and launches, and what was promised before.
NOTE_PATTERNS = (*MERGED_NOTES, "registration*")
# The answers to single examples: nearly all that an archive weighs.
PREDICTION_PATTERNS = ("predictions*.json*", "null_odds.json", "test_predictions/*")
# Files of a run's folder. Its checkpoints, its model and its log stay at home.
RUN_PATTERNS = (
    RUN_FILE,
    CONFIG_FILE,
    "metrics.csv",
    "scores.json",
    "classes*.csv",
    "confusion*.csv",
    *PREDICTION_PATTERNS,
    "encoder/*",
    "encoders/*/*",
)
ALLOWED_PATTERNS = (
    *(f"{RUNS}/*{pattern}" for pattern in RUN_PATTERNS + NOTE_PATTERNS),
    f"{EXPERIMENT}/*.yaml",
    f"{EXPERIMENT}/*.md",
    SCORES_FILE,
)
WEIGHTS = ".safetensors"
LONGEST_NAME = 1000  # characters
# Names between slashes, of which none is hidden ("." and ".." are, too).
PLAIN_PATH = re.compile(r"[^/\\.][^/\\]*(/[^/\\.][^/\\]*)*")
UNIX = 3  # the operating system of a zip's entry


class Manifest(BaseModel):
    """What an archive says of itself."""

    # file or folder below experiment/ that the runs below `root` are judged by; empty for none
    experiment: str
    root: str  # below runs/, where the judged runs are; empty for all of them
    scale: str
    results_versions: dict[str, int]
    files: dict[str, str]  # name -> sha256


@dataclass(frozen=True)
class RunArchive:
    """An archive that was unpacked into a folder of its own."""

    path: Path
    folder: Path
    manifest: Manifest
    records: list[Record]
    changed: list[str]  # files and places of runs that are not what the manifest says

    @property
    def experiment(self) -> Path | None:
        """The unpacked experiment that judges the runs, or None."""
        if not self.manifest.experiment:
            return None
        return self.folder / EXPERIMENT / self.manifest.experiment


def run_files(folder: Path, left_out: Collection[str]) -> list[Path]:
    """List the files of a run's folder that an archive takes.

    `left_out` are some of RUN_PATTERNS, and endings of names.
    """
    files = set()
    for pattern in set(RUN_PATTERNS).difference(left_out):
        files |= set(plain_files(folder, pattern))
    return sorted(path for path in files if path.suffix not in left_out)


def plain_files(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the files of a pattern that are not hidden: no archive may have a hidden name.

    Those belong to tools, such as .pre-commit-config.yaml.
    """
    for path in folder.glob(pattern):
        if path.is_file() and "/." not in f"/{path.relative_to(folder)}":
            yield path


def write_archive(path: Path, manifest: Manifest, files: Mapping[str, Path]) -> None:
    """Write an archive of these files, by name, in one rename.

    The checksums of the files are written into its manifest. The same files make the same bytes.
    ValueError where a file has a name that no archive may have.
    """
    # Names in order, one date, one compression: all that could make the bytes differ is fixed.
    checksums = {name: file_sha256(files[name]) for name in sorted(files)}
    manifest = manifest.model_copy(update={"files": checksums})
    _check_names(path, manifest)
    text = manifest.model_dump_json(indent=1) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        atomic_open(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as zipped,
    ):
        zipped.writestr(_new_entry(MANIFEST), text, compresslevel=9)
        for name in _stored_names(manifest).values():
            with (
                files[name].open("rb") as source,
                zipped.open(_new_entry(name), "w", force_zip64=True) as target,
            ):
                shutil.copyfileobj(source, target)


def _new_entry(name: str) -> zipfile.ZipInfo:
    """Describe a file of a zip, with the same date and permissions for all of them."""
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system = UNIX
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    return entry


def _stored_names(manifest: Manifest) -> dict[str, str]:
    """Map each sha256 to the first name of a file with that content: the zip has that one alone."""
    return {checksum: name for name, checksum in reversed(manifest.files.items())}


def describe_machines(records: Iterable[Record]) -> str:
    """Name the machines of some runs with their counts; an empty text for a single machine."""
    counts = Counter(record.machine or "an unknown machine" for record in records)
    if len(counts) < 2:
        return ""
    names = (f"{name} ({count} runs)" for name, count in sorted(counts.items()))
    return f"machines: {', '.join(names)}"


def open_archive(path: Path, folder: Path) -> RunArchive:
    """Unpack an archive into an empty folder and read its records.

    Raises:
        ValueError: it is no archive, or newer code made one of its runs.
    """
    manifest, changed = unpack(path, folder)
    records = find(folder / RUNS).records
    for record in records:
        if record.status not in PACKED_STATUSES:
            changed.append(record.place)
        version = results_version_of(record.stage, record.config)
        if record.results_version > version:
            raise ValueError(
                f"{path}: {record.place} has results version {record.results_version} of"
                f" {record.stage}, and this code has {version}: take the"
                f" commit that made it, {record.git and record.git.commit}, or a newer one"
            )
    # A damaged record has no fingerprint.
    readable = [record for record in records if record.fingerprint]
    return RunArchive(path, folder, manifest, readable, changed)


def unpack(path: Path, folder: Path) -> tuple[Manifest, list[str]]:
    """Write an archive's files into an empty folder.

    Returns:
        Its manifest, and the names of files whose sha256 is not the manifest's.

    Raises:
        ValueError: it is no archive, is damaged, or holds what no archive holds. Where its
            manifest tells that, nothing is unpacked.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        with zipfile.ZipFile(path) as zipped:
            manifest = _checked_manifest(path, zipped)
            _extract(zipped, manifest, folder)
        # A manifest may list another checksum than its file has: that is for the caller to judge.
        changed_files = []
        for name, checksum in manifest.files.items():
            if file_sha256(folder / name) != checksum:
                changed_files.append(name)
    # What zipfile raises for a damaged file, and for one that it cannot read.
    except (
        zipfile.BadZipFile,
        zlib.error,
        OSError,
        EOFError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise ValueError(
            f"{path} is no pack, or it was damaged on the way ({error}): copy it again"
        ) from error
    return manifest, changed_files


def _extract(zipped: zipfile.ZipFile, manifest: Manifest, folder: Path) -> None:
    """Write every file of a checked manifest; equal contents are stored once, and copied."""
    stored_names = _stored_names(manifest)
    for name, checksum in manifest.files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        stored_name = stored_names[checksum]
        if stored_name != name:
            shutil.copyfile(folder / stored_name, target)
            continue
        with zipped.open(name) as source, target.open("xb") as file:
            shutil.copyfileobj(source, file)


def _checked_manifest(path: Path, zipped: zipfile.ZipFile) -> Manifest:
    """Read the manifest and hold the zip against it.

    Raises:
        ValueError: the zip holds anything but plain files, under plain names that archives have,
            of a size that archives have.
    """
    entries = {entry.filename: entry for entry in zipped.infolist()}
    # A small zip may unpack to a full disk: text of runs never shrinks that much.
    max_bytes = max(MIN_BOMB_BYTES, MAX_EXPANSION * path.stat().st_size)
    if MANIFEST not in entries or entries[MANIFEST].file_size > max_bytes:
        raise ValueError(f"{path} is no pack: it has no {MANIFEST}")
    for name, entry in entries.items():
        # The upper half of external_attr is Unix's mode; 0 is that of a zip made elsewhere.
        if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
            raise ValueError(f"{path}: {name!r} is a link or the like, as nothing in a pack is")
    try:
        manifest = Manifest.model_validate_json(zipped.read(MANIFEST))
    except ValidationError as error:
        raise ValueError(f"{path}: its {MANIFEST} is not that of a pack of this version") from error
    _check_names(path, manifest)

    # The zip holds the manifest and each content once, and nothing else.
    stored_names = _stored_names(manifest)
    listed_names = {MANIFEST, *stored_names.values()}
    if len(zipped.infolist()) != len(entries) or entries.keys() != listed_names:
        # They are equal where a name is there twice.
        example = min(entries.keys() ^ listed_names, default=MANIFEST)
        raise ValueError(
            f"{path} is damaged: its {MANIFEST} and what it holds do not agree (e.g. {example!r})"
        )
    # Equal contents are stored once and unpacked as often as they are listed.
    sizes = (entries[stored_names[checksum]].file_size for checksum in manifest.files.values())
    if sum(sizes) > max_bytes:
        raise ValueError(f"{path} unpacks to over {max_bytes:,} bytes, as no pack does")
    return manifest


def _check_names(path: Path, manifest: Manifest) -> None:
    """ValueError for a name that leads out of the folder, is hidden, or is none of an archive."""
    names = list(manifest.files)
    if manifest.root:
        names.append(f"{RUNS}/{manifest.root}")
    strange = []
    for name in names:
        if not (PLAIN_PATH.fullmatch(name) and name.isprintable() and len(name) < LONGEST_NAME):
            strange.append(name)
    allowed = re.compile("|".join(map(fnmatch.translate, ALLOWED_PATTERNS)))
    strange += [name for name in manifest.files if not allowed.match(name)]
    if strange:
        raise ValueError(f"{path}: {strange[0]!r} is no name that a pack has")
