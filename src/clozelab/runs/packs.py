"""A pack: what a report needs of runs, and what tells whether it is true, in one small zip.

Records, scores, predictions, curves, configurations, the encoders' small files and the launch's notes, each below the
place that it has below runs_dir. Encoders' weights come along on request; fine-tuned models,
checkpoints, logs and n-best lists never do.
`manifest.json` names every file with its sha256. Of equal files (the vocabulary of every encoder) one is stored. The
same runs make the same bytes.

A pack may be anybody's. Names, kinds and sizes are looked at before anything is unpacked, and nothing of it is run.
"""

from __future__ import annotations

import fnmatch
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from clozelab.corpus.files import MAX_EXPANSION, MIN_BOMB_BYTES, file_sha256, whole_file
from clozelab.runs.record import CONFIG_FILE, RUN_FILE

MANIFEST, RESULTS = "manifest.json", "results.csv"
RUNS, EXPERIMENT = "runs", "experiment"
OF_A_RUN = (
    *(RUN_FILE, CONFIG_FILE, "metrics.csv", "scores.json", "predictions*.json*", "null_odds.json"),
    *("test_predictions/*", "encoder/*", "encoders/*/*"),
)
NOTES = ("looks.jsonl", "registration*", "launcher/launch.json")
"""Of a folder above runs: how often they were judged, what was promised before, and the jobs that there were to be."""
ALLOWED = (*(f"{RUNS}/*{name}" for name in (*OF_A_RUN, *NOTES)), f"{EXPERIMENT}/*.yaml", f"{EXPERIMENT}/*.md", RESULTS)
WEIGHTS = ".safetensors"
FIRST_DATE = (1980, 1, 1, 0, 0, 0)
LONGEST_NAME = 1000


class PackedRun(BaseModel):
    """What made a run, and where."""

    model_config = ConfigDict(extra="forbid")

    fingerprint: str
    code: str
    machine: str


class Manifest(BaseModel):
    """What a pack says of itself."""

    model_config = ConfigDict(extra="forbid")

    experiment: str  # file or folder below experiment/ that the runs below `root` are judged by; empty for none
    root: str  # below runs/, where the judged runs are; empty for all of them
    scale: str
    results_versions: dict[str, int]
    runs: dict[str, PackedRun]  # by their places below runs/
    files: dict[str, str]  # name -> sha256


def run_files(folder: Path, weights: bool) -> Iterator[Path]:
    """What a pack takes of a run's folder."""
    for path in sorted(path for pattern in OF_A_RUN for path in folder.glob(pattern)):
        if path.is_file() and not path.name.startswith(".") and (weights or path.suffix != WEIGHTS):
            yield path


def write_pack(path: Path, manifest: Manifest, files: Mapping[str, Path]) -> None:
    """Write a pack of these files, by name, in one rename; their checksums go into its manifest."""
    manifest.files = {name: file_sha256(files[name]) for name in sorted(files)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr(_entry(MANIFEST), manifest.model_dump_json(indent=1) + "\n", compresslevel=9)
        for name in _stored(manifest).values():
            with files[name].open("rb") as source, archive.open(_entry(name), "w", force_zip64=True) as target:
                shutil.copyfileobj(source, target)


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, FIRST_DATE)
    entry.compress_type, entry.create_system, entry.external_attr = zipfile.ZIP_DEFLATED, 3, 0o100644 << 16
    return entry


def _stored(manifest: Manifest) -> dict[str, str]:
    """sha256 -> the first name of a file with that content, which is the one that the zip has."""
    return {sha: name for name, sha in reversed(manifest.files.items())}


def unpack(path: Path, folder: Path) -> tuple[Manifest, list[str]]:
    """Write a pack's files into an empty folder: (its manifest, the names of files that are not what it says).

    ValueError where it is no pack, is damaged, or holds what no pack holds; then nothing was unpacked.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = _checked_manifest(path, archive)
            stored, wrong = _stored(manifest), list[str]()
            for name, sha in manifest.files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                if (first := stored[sha]) == name:
                    with archive.open(name) as source, (folder / name).open("xb") as target:
                        shutil.copyfileobj(source, target)
                else:
                    shutil.copyfile(folder / first, folder / name)
                wrong += [name] if file_sha256(folder / name) != sha else []
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged, or no pack ({error}); fetch it again") from error
    return manifest, wrong


def _checked_manifest(path: Path, archive: zipfile.ZipFile) -> Manifest:
    """The manifest of an archive that holds plain files alone, under plain names, of a size that packs have."""
    entries = {one.filename: one for one in archive.infolist()}
    limit = max(MIN_BOMB_BYTES, MAX_EXPANSION * path.stat().st_size)
    if MANIFEST not in entries or entries[MANIFEST].file_size > limit:
        raise ValueError(f"{path} is no pack: it has no {MANIFEST}")
    for name, entry in entries.items():
        is_plain = stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG) and not entry.flag_bits & 1
        if not is_plain or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{path}: {name!r} is a link, encrypted or packed otherwise, as nothing in a pack is")
    try:
        manifest = Manifest.model_validate_json(archive.read(MANIFEST))
    except ValidationError as error:
        raise ValueError(f"{path}: its {MANIFEST} is not that of a pack of this version") from error
    folders = [f"{RUNS}/{place}" for place in (*manifest.runs, *filter(None, [manifest.root]))]
    if odd := next((name for name in (*manifest.files, *folders) if not _is_plain(name)), None):
        raise ValueError(f"{path}: {odd!r} leads out of a folder, or is hidden; no file of a pack is called so")
    if odd := next((one for one in manifest.files if not any(fnmatch.fnmatch(one, known) for known in ALLOWED)), None):
        raise ValueError(f"{path}: {odd!r} is no file that packs have")
    stored = _stored(manifest)
    if len(archive.infolist()) != len(entries) or {*entries} != {MANIFEST, *stored.values()}:
        odd = next(iter({*entries} ^ {MANIFEST, *stored.values()}), MANIFEST)
        raise ValueError(f"{path} is damaged: its {MANIFEST} and what it holds do not agree (e.g. {odd!r})")
    if sum(entries[stored[sha]].file_size for sha in manifest.files.values()) > limit:
        raise ValueError(f"{path} unpacks to over {limit:,} bytes, as no pack does")
    if lost := next((one for one in manifest.runs if f"{RUNS}/{one}/{RUN_FILE}" not in manifest.files), None):
        raise ValueError(f"{path} is damaged: it lacks the record of {lost}")
    return manifest


def _is_plain(name: str) -> bool:
    parts = name.split("/")
    return len(name) < LONGEST_NAME and all(
        part and not part.startswith(".") and part.isprintable() and "\\" not in part for part in parts
    )
