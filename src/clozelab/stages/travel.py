"""`clozelab pack` and `clozelab pool`: runs travel in small files, and those of several machines
become one table.

A pack is one zip: files of runs, each below the place that it has below runs_dir, and a manifest
with their sha256. It may be anybody's: names, kinds and sizes are looked at before anything is
unpacked, and nothing of it is run.

A pool unpacks elsewhere, and compares. Then it puts all files in place, the records last: after a
pool that was cut off, a run that is not whole has no record.
"""

from __future__ import annotations

import filecmp
import fnmatch
import json
import os
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from rich import filesize
from rich.console import Console

from clozelab.analysis.history import ANALYSIS_LOG
from clozelab.corpus.files import file_sha256, whole_file
from clozelab.corpus.lines import MAX_EXPANSION, MIN_BOMB_BYTES
from clozelab.planning.steps import runs_root
from clozelab.results.adhoc import infer_table
from clozelab.results.experiment import find_experiment, load_experiment
from clozelab.results.table import build_table
from clozelab.runs.find import Runs, cell_of, find, is_copy, select
from clozelab.runs.identity import RESULTS_VERSIONS
from clozelab.runs.progress import LAUNCH_FILE, merge_launches
from clozelab.runs.record import CONFIG_FILE, COPY_FILE, LOCK_FILE, RUN_FILE, Record, read_record
from clozelab.terminal import Words, path_of, say, verb
from clozelab.text.safe_yaml import own_text

PACK_HELP = """clozelab pack EXPERIMENT out=FILE [scale=NAME] [runs_dir=FOLDER] [encoders=true] [name=value ...]
clozelab pack FOLDER out=FILE [encoders=true] [name=value ...]

Packs records, scores, predictions, curves, configurations, vocabularies and the launch's notes of an experiment's runs,
or of all runs below a FOLDER, into one zip; with encoders=true their weights, too. The same runs make the same bytes.
Runs that are going on are left out, and so are damaged ones; failed ones come along.

  stage= name= task= seeds=   only these runs (name: arm or row; seeds: 1, or pre-training/fine-tuning 1/2)

`clozelab pool` puts packs together."""
POOL_HELP = """clozelab pool FILE... [runs_dir=FOLDER]

Puts the runs of packs into runs_dir (default `runs`), beside those that are there, so that report, status, runs and
reproduce find one table. The same pack again changes nothing.

All of it is refused, before anything is written, where a pack is damaged, was made by newer code, judges an experiment
by other claims than another pack, has another run of a cell that is there already, or brings a second results version
into a column. Runs of one row that were made in different ways are named by the report, which then decides nothing by
them."""
FILTERS = ("stage", "name", "task", "seeds")
PACKED = ("complete", "failed", "interrupted")
# notes that packs have in common, and that say different things
MERGED = (ANALYSIS_LOG, str(LAUNCH_FILE))
MANIFEST, RESULTS = "manifest.json", "results.csv"
RUNS, EXPERIMENT = "runs", "experiment"
OF_A_RUN = (
    *(RUN_FILE, CONFIG_FILE, "metrics.csv", "scores.json", "predictions*.json*", "null_odds.json"),
    *("test_predictions/*", "encoder/*", "encoders/*/*"),
)
# of a folder above runs: looks and launches, and what was promised before
NOTES = (*MERGED, "registration*")
ALLOWED = (
    *(f"{RUNS}/*{name}" for name in (*OF_A_RUN, *NOTES)),
    f"{EXPERIMENT}/*.yaml",
    f"{EXPERIMENT}/*.md",
    RESULTS,
)


class PackedRun(BaseModel, extra="forbid"):
    """What made a run, and where."""

    fingerprint: str
    code: str
    machine: str


class Manifest(BaseModel, extra="forbid"):
    """What a pack says of itself."""

    # file or folder below experiment/ that the runs below `root` are judged by; empty for none
    experiment: str
    root: str  # below runs/, where the judged runs are; empty for all of them
    scale: str
    results_versions: dict[str, int]
    runs: dict[str, PackedRun]  # by their places below runs/
    files: dict[str, str]  # name -> sha256


@verb("pack", PACK_HELP, names=(1, 1), keys=("out", "encoders", *FILTERS), takes_overrides=True)
def pack(said: Words) -> int:
    """Write the pack and say what it holds; returns the exit status."""
    weights = said.values.get("encoders", "false")
    if "out" not in said.values or weights not in ("true", "false"):
        raise ValueError("pack needs out=FILE, the file to write; encoders= is true or false")
    root, experiment, scale = Path(said.names[0]).absolute(), None, ""
    if not root.is_dir() or (root / "paper.yaml").is_file():
        experiment = find_experiment(said.names[0])
        root, scale = runs_root(experiment, said.overrides)
        root = root.absolute()
    elif said.overrides:
        raise ValueError(f"{said.overrides[0]}: pack has no such key for a folder of runs")
    filters = {key: said.values[key] for key in FILTERS if key in said.values}
    found = select(find(root).records if root.is_dir() else [], None, filters)
    chosen = [one for one in found if one.status in PACKED]
    if not chosen:
        raise ValueError(
            f"no run to pack below {root} {filters or ''}; say runs_dir=FOLDER or scale=NAME"
        )
    base, out = root.parents[1] if experiment else _runs_dir(root, chosen), Path(said.values["out"])
    runs = [
        one.model_copy(update={"place": _below(one.folder, base)})
        for one in (*chosen, *_shared(chosen, base))
    ]
    files = {
        f"{RUNS}/{_below(path, base)}": path
        for one in runs
        for path in run_files(one.folder, weights == "true")
    }
    files |= {
        f"{RUNS}/{_below(path, base)}": path
        for name in NOTES
        for path in root.rglob(name)
        if path.is_file()
    }
    files |= (
        {f"{EXPERIMENT}/{name}": path for name, path in _files_of(experiment)} if experiment else {}
    )
    manifest = Manifest(
        experiment=experiment.name if experiment else "",
        root=_below(root, base) if experiment else "",
        scale=scale or ", ".join(sorted({one.scale for one in chosen} - {""})),
        results_versions=RESULTS_VERSIONS,
        runs={
            one.place: PackedRun(fingerprint=one.fingerprint, code=one.code, machine=one.machine)
            for one in runs
        },
        files={},
    )
    with tempfile.TemporaryDirectory(prefix="clozelab-pack-") as place:
        files[RESULTS] = results_of(manifest, runs, experiment, Path(place))
        own = {f"{RUNS}/{one.place}": [one] for one in runs}
        for name in fnmatch.filter(files, f"{RUNS}/*"):
            if not name.endswith((f"/{RUN_FILE}", f"/{CONFIG_FILE}", f"/{LAUNCH_FILE.name}")):
                continue
            text, files[name] = files[name].read_text(encoding="utf-8"), Path(place) / name
            files[name].parent.mkdir(parents=True, exist_ok=True)
            for one in own.get(name.rpartition("/")[0], runs):
                text = _from(base, RUNS, _from(Path(one.started_in), ".", text, one), one)
            files[name].write_text(text, encoding="utf-8")
        write_pack(out, manifest, files)
    left = Counter(one.status for one in found if one not in chosen)
    parts = [f"{len(runs)} runs, {filesize.decimal(out.stat().st_size)}", *_machines(runs)]
    parts += (
        [f"left out: {', '.join(f'{count} {status}' for status, count in left.items())}"]
        if left
        else []
    )
    say(Console(), f"{out}: {'; '.join(parts)}")
    return 0


def _from(folder: Path, name: str, text: str, run: Record) -> str:
    """With paths as they are seen from a folder, or below its new name: a pack tells nobody's
    folders. Those in a run's configuration stay: its fingerprint knows them."""
    if len(folder.parts) < 2:
        return text
    known = re.findall(
        rf'{re.escape(str(folder))}[^"]*', json.dumps(run.config, ensure_ascii=False)
    )
    kept = "".join(rf"(?!{re.escape(path)}(?![\w./-]))" for path in known)
    found = rf"(?<![\w./-]){kept}{re.escape(str(folder))}(/(?=[\w.])|(?![\w.-]))"
    return re.sub(
        found, lambda match: ("" if name == "." else f"{name}/") if match[1] else name, text
    )


def _below(path: Path, base: Path) -> str:
    return path.relative_to(base).as_posix()


def _runs_dir(root: Path, records: Iterable[Record]) -> Path:
    """The folder that the runs below `root` were made below, if they lie there as then; else
    `root`.
    """
    for one in records:
        home = Path(one.home).parts
        if home and one.folder.parts[-len(home) :] == home:
            above = one.folder.parents[len(home) - 1]
            return above if root.is_relative_to(above) else root
    return root


def _shared(records: Sequence[Record], base: Path) -> Iterator[Record]:
    """The runs of other experiments that some records speak for: without them nobody would know
    their encoders.
    """
    places = [Path(os.path.normpath(one.folder / one.shared.run)) for one in records if one.shared]
    own = {one.folder for one in records}
    for folder in dict.fromkeys(
        place for place in places if place not in own and place.is_relative_to(base)
    ):
        if (record := read_record(folder)) is not None:
            yield record


def _files_of(experiment: Path) -> Iterator[tuple[str, Path]]:
    """An experiment's own files, by their names below experiment/; none may lead out of its
    folder.
    """
    if experiment.is_file():
        yield experiment.name, experiment
        return
    for path in (*experiment.rglob("*.yaml"), *experiment.glob("*.md")):
        own_text(path, experiment)
        yield f"{experiment.name}/{_below(path, experiment)}", path


def results_of(
    manifest: Manifest, records: Iterable[Record], experiment: Path | None, folder: Path
) -> Path:
    """Write every score of the table that a pack's runs make, wherever they lie."""
    from clozelab.report.render import write_results  # matplotlib: not for --help

    prefix = f"{manifest.root}/" if manifest.root else ""
    judged = (one for one in records if one.place.startswith(prefix))
    runs = Runs(Path(RUNS), sorted(judged, key=lambda one: (one.stage != "pretrain", one.place)))
    table = build_table(load_experiment(experiment), runs) if experiment else infer_table(runs)
    write_results(folder / RESULTS, table, manifest.scale)
    return folder / RESULTS


def _machines(records: Iterable[Record]) -> list[str]:
    counts = Counter(one.machine or "an unknown machine" for one in records)
    shown = ", ".join(f"{name} ({count} runs)" for name, count in sorted(counts.items()))
    return [f"machines: {shown}"] if len(counts) > 1 else []


def run_files(folder: Path, weights: bool) -> Iterator[Path]:
    """What a pack takes of a run's folder."""
    for path in sorted(path for pattern in OF_A_RUN for path in folder.glob(pattern)):
        if (
            path.is_file()
            and not path.name.startswith(".")
            and (weights or path.suffix != ".safetensors")
        ):
            yield path


def write_pack(path: Path, manifest: Manifest, files: Mapping[str, Path]) -> None:
    """Write a pack of these files, by name, in one rename; their checksums go into its manifest."""
    manifest.files = {name: file_sha256(files[name]) for name in sorted(files)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        whole_file(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
    ):
        archive.writestr(
            _entry(MANIFEST), manifest.model_dump_json(indent=1) + "\n", compresslevel=9
        )
        for name in _stored(manifest).values():
            with (
                files[name].open("rb") as source,
                archive.open(_entry(name), "w", force_zip64=True) as target,
            ):
                shutil.copyfileobj(source, target)


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type, entry.create_system, entry.external_attr = (
        zipfile.ZIP_DEFLATED,
        3,
        0o100644 << 16,
    )
    return entry


def _stored(manifest: Manifest) -> dict[str, str]:
    """sha256 -> the first name of a file with that content, which is the one that the zip has."""
    return {sha: name for name, sha in reversed(manifest.files.items())}


def unpack(path: Path, folder: Path) -> tuple[Manifest, list[str]]:
    """Write a pack's files into an empty folder: (its manifest, files that are not what it says).
    ValueError, and nothing unpacked, where it is no pack, is damaged, or holds what no pack
    holds."""
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
    return manifest, wrong


def _checked_manifest(path: Path, archive: zipfile.ZipFile) -> Manifest:
    """The manifest of an archive that holds plain files alone, under plain names, of a size that
    packs have.
    """
    entries = {one.filename: one for one in archive.infolist()}
    limit = max(MIN_BOMB_BYTES, MAX_EXPANSION * path.stat().st_size)
    if MANIFEST not in entries or entries[MANIFEST].file_size > limit:
        raise ValueError(f"{path} is no pack: it has no {MANIFEST}")
    for name, entry in entries.items():
        is_plain = (
            stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG) and not entry.flag_bits & 1
        )
        if not is_plain or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(
                f"{path}: {name!r} is a link, encrypted or packed otherwise, as nothing in a"
                " pack is"
            )
    try:
        manifest = Manifest.model_validate_json(archive.read(MANIFEST))
    except ValidationError as error:
        raise ValueError(f"{path}: its {MANIFEST} is not that of a pack of this version") from error
    folders = [f"{RUNS}/{place}" for place in (*manifest.runs, *filter(None, [manifest.root]))]
    if odd := next((name for name in (*manifest.files, *folders) if not _is_plain(name)), None):
        raise ValueError(
            f"{path}: {odd!r} leads out of a folder, or is hidden; no file of a pack is called so"
        )
    if odd := next(
        (
            one
            for one in manifest.files
            if not any(fnmatch.fnmatch(one, known) for known in ALLOWED)
        ),
        None,
    ):
        raise ValueError(f"{path}: {odd!r} is no file that packs have")
    stored = _stored(manifest)
    if len(archive.infolist()) != len(entries) or {*entries} != {MANIFEST, *stored.values()}:
        odd = next(iter({*entries} ^ {MANIFEST, *stored.values()}), MANIFEST)
        raise ValueError(
            f"{path} is damaged: its {MANIFEST} and what it holds do not agree (e.g. {odd!r})"
        )
    if sum(entries[stored[sha]].file_size for sha in manifest.files.values()) > limit:
        raise ValueError(f"{path} unpacks to over {limit:,} bytes, as no pack does")
    records = {
        name[len(RUNS) + 1 : -len(RUN_FILE) - 1]
        for name in manifest.files
        if name.endswith(f"/{RUN_FILE}")
    }
    if odd := next(iter(records ^ {*manifest.runs}), None):
        raise ValueError(
            f"{path} is damaged: its {MANIFEST} and its records do not agree ({odd!r})"
        )
    return manifest


def _is_plain(name: str) -> bool:
    said = [
        part and not part.startswith(".") and part.isprintable() and "\\" not in part
        for part in name.split("/")
    ]
    return len(name) < 1000 and all(said)


@dataclass(frozen=True)
class Parcel:
    """A pack, unpacked elsewhere."""

    path: Path
    folder: Path
    manifest: Manifest
    records: list[Record]

    @property
    def experiment(self) -> Path | None:
        return (
            self.folder / EXPERIMENT / self.manifest.experiment
            if self.manifest.experiment
            else None
        )


def open_parcel(path: Path, folder: Path) -> tuple[Parcel, list[str]]:
    """(a pack, its files that are not what its manifest says). ValueError: it is none, or newer
    code made it."""
    manifest, wrong = unpack(path, folder)
    parcel = Parcel(path, folder, manifest, find(folder / RUNS).records)
    for one in parcel.records:
        # A damaged record has no fingerprint, and no version either.
        if one.fingerprint and one.results_version > RESULTS_VERSIONS[one.stage]:
            raise ValueError(
                f"{path}: {one.place} has results version {one.results_version} of {one.stage}, and"
                f" this code knows {RESULTS_VERSIONS[one.stage]}: take the commit that made it,"
                f" {one.git and one.git.commit}, or a newer one"
            )
    return parcel, wrong


@verb("pool", POOL_HELP, names=(1, None), keys=("runs_dir",))
def pool(said: Words) -> int:
    """Put the runs of packs where they belong; returns the exit status."""
    target = Path(path_of("runs_dir", said.values))
    with tempfile.TemporaryDirectory(prefix="clozelab-pool-") as place:
        parcels = []
        for number, name in enumerate(said.names):
            parcel, wrong = open_parcel(Path(name), Path(place) / str(number))
            known = {one.place: one.fingerprint for one in parcel.records if one.status in PACKED}
            wrong += [
                key
                for key, one in parcel.manifest.runs.items()
                if known.get(key) != one.fingerprint
            ]
            if wrong or len(known) < len(parcel.records):
                what = (wrong or [one.place for one in parcel.records if one.place not in known])[0]
                raise ValueError(
                    f"{name} is damaged: {what} is not what its manifest says; fetch it again"
                )
            parcels.append(parcel)
        _check_claims(parcels)
        present = find(target).runs
        _check_cells(parcels, target, present)
        _check_versions(parcels, target, present)
        new = _missing(parcels, target)
        _put(new, target)
        _merge_notes(parcels, target)
    added = sum(name.endswith(f"/{RUN_FILE}") for name in new)
    records = find(target).records
    parts = [f"{added} runs added, {len(records) - added} were there", *_machines(records)]
    say(Console(), f"{target}: {'; '.join(parts)}")
    return 0


def _check_claims(parcels: Iterable[Parcel]) -> None:
    """ValueError where two packs judge one experiment differently."""
    first: dict[str, tuple[Parcel, Any]] = {}
    for parcel in parcels:
        if parcel.experiment:
            claims = load_experiment(parcel.experiment).model_dump(mode="json", exclude={"folder"})
            other, theirs = first.setdefault(parcel.manifest.experiment, (parcel, claims))
            if apart := [key for key in claims if claims[key] != theirs[key]]:
                raise ValueError(
                    f"{parcel.path}: its {parcel.manifest.experiment} has other"
                    f" {' and '.join(apart)} than that of {other.path}; pack both with one"
                    " paper.yaml"
                )


def _check_cells(parcels: Iterable[Parcel], target: Path, present: Sequence[Record]) -> None:
    """ValueError for another run of a cell at another place; a copy is none."""
    first: dict[tuple[Any, ...], tuple[Path, Record]] = {}
    for where, records in [(target, present), *((one.path, one.records) for one in parcels)]:
        for one in records:
            there, other = first.setdefault(cell_of(one), (where, one))
            if one.place != other.place and not is_copy(one, other):
                raise ValueError(
                    f"{where}: {one.place} is another run than {other.place} in {there}, of the"
                    " same cell; pack without one of them (name= task= seeds=)"
                )


def _check_versions(parcels: Iterable[Parcel], target: Path, present: Sequence[Record]) -> None:
    """ValueError where a pack would bring a second results version into a column or among
    encoders."""
    first = {_column_of(one): (target, one) for one in present if one.is_complete}
    packed = [(parcel.path, one) for parcel in parcels for one in parcel.records if one.is_complete]
    for path, one in packed:
        there, other = first.setdefault(_column_of(one), (path, one))
        if one.results_version != other.results_version:
            raise ValueError(
                f"{path}: {one.place} has results version {one.results_version} of {one.stage}, and"
                f" {other.place} in {there} has {other.results_version}; no column may mix them:"
                " give each its own runs_dir"
            )


def _column_of(one: Record) -> tuple[str, ...]:
    return one.experiment, one.scale, one.stage, one.task


def _missing(parcels: Iterable[Parcel], target: Path) -> dict[str, Path]:
    """Name below `target` -> file of a pack, of all that is not there. ValueError where another
    file is.
    """
    new: dict[str, Path] = {}
    for parcel in parcels:
        for name in (
            name.removeprefix(f"{RUNS}/")
            for name in parcel.manifest.files
            if name.startswith(f"{RUNS}/")
        ):
            if name.endswith(MERGED):
                continue
            mine, there = parcel.folder / RUNS / name, new.get(name, target / name)
            if not there.exists():
                new[name] = mine
            elif not _is_same(mine, there):
                raise ValueError(
                    f"{parcel.path}: {name} is another one than in"
                    f" {target if there == target / name else 'a pack'}: two runs of one cell; pack"
                    " without one of them (name= task= seeds=)"
                )
    return new


def _is_same(one: Path, other: Path) -> bool:
    """Whether two files say the same. Of a record and what it was configured by, paths and times of
    inputs may differ: its fingerprint knows the rest."""
    if (is_equal := filecmp.cmp(one, other, shallow=False)) or one.name not in (
        RUN_FILE,
        CONFIG_FILE,
    ):
        return is_equal
    records = [read_record(path.parent) for path in (one, other)]
    open_to = {
        "watched",
        "started_in",
        "config_dir",
        "overrides",
        "error",
        "arm_delta",
        "row_delta",
    }
    return (
        None not in records
        and len({one.model_dump_json(exclude=open_to) for one in records if one}) == 1
    )


def _put(new: Mapping[str, Path], target: Path) -> None:
    """First a sign of every run, last their records: what is cut off in between is no run, and is
    named as none.
    """
    records = [name for name in new if name.endswith(f"/{RUN_FILE}")]
    for name in records:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).with_name(LOCK_FILE).touch()
    for name in sorted(new, key=lambda name: (name in records, name)):
        path = target / name
        for place in [path.with_name(COPY_FILE), path] if name in records else [path]:
            place.parent.mkdir(parents=True, exist_ok=True)
            with new[name].open("rb") as source, whole_file(place) as file:
                shutil.copyfileobj(source, file)


def _merge_notes(parcels: Iterable[Parcel], target: Path) -> None:
    """Looks that anybody took, each once and in their order; jobs that any launch was to run."""
    for parcel in parcels:
        for name in (
            name.removeprefix(f"{RUNS}/") for name in parcel.manifest.files if name.endswith(MERGED)
        ):
            path, theirs = target / name, parcel.folder / RUNS / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                shutil.copyfile(theirs, path)
            elif name.endswith(ANALYSIS_LOG):
                lines = [
                    line
                    for one in (path, theirs)
                    for line in one.read_text(encoding="utf-8").splitlines()
                ]
                ordered = sorted({*filter(None, lines)})  # each begins with its time
                path.write_text("".join(f"{line}\n" for line in ordered), encoding="utf-8")
            else:
                merge_launches(path.parents[1], theirs.parents[1])
