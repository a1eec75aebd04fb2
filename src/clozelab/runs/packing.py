"""What goes into a pack: runs, their files, and notes, without the names of folders."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from claims.text.safe_yaml import own_text
from clozelab.files.origin import RUN_FILE
from clozelab.runs.archive import (
    EXPERIMENT,
    NOTE_PATTERNS,
    PACKED_STATUSES,
    RUNS,
    Manifest,
    plain_files,
    run_files,
)
from clozelab.runs.find import find, no_match, of_other_scales, select
from clozelab.runs.identity import RESULTS_VERSIONS
from clozelab.runs.progress import LAUNCH_FILE
from clozelab.runs.record import CONFIG_FILE, Record, read_record

# Files of text that name folders of the machine on which they were written.
FILES_WITH_PATHS = (RUN_FILE, CONFIG_FILE, LAUNCH_FILE.name)


@dataclass(frozen=True)
class Selection:
    """The runs to pack, and where they come from."""

    root: Path  # the folder of the runs
    runs_dir: Path  # the names in the archive are relative to it
    experiment: Path | None  # what judges the runs
    scale: str
    # The chosen runs, then those of other experiments that they share; each one's `place` is
    # below runs_dir.
    records: list[Record]
    num_left_out: Counter[str]  # by status


def select_runs(
    root: Path, experiment: Path | None, scale: str, filters: Mapping[str, str]
) -> Selection:
    """Find the runs below `root` that a command line names; ValueError where there are none."""
    every_record = find(root).records
    matching = select(every_record, None, filters)
    packed = [record for record in matching if record.status in PACKED_STATUSES]
    if every_record and not matching:
        raise ValueError(no_match(every_record, filters))
    if not packed:
        scales = of_other_scales(root) if experiment else ""
        raise ValueError(f"no run to pack below {root}{scales}; say runs_dir=FOLDER or scale=NAME")

    if experiment:
        runs_dir = root.parents[1]  # RUNS_DIR/EXPERIMENT/SCALE
    else:
        runs_dir = _original_runs_dir(root, packed)
    if not scale:
        scale = ", ".join(sorted({record.scale for record in packed} - {""}))
    records = [
        record.model_copy(update={"place": name_below(record.folder, runs_dir)})
        for record in [*packed, *_shared_runs(packed, runs_dir)]
    ]
    num_left_out = Counter(
        record.status for record in matching if record.status not in PACKED_STATUSES
    )
    return Selection(root, runs_dir, experiment, scale, records, num_left_out)


def _original_runs_dir(root: Path, records: Sequence[Record]) -> Path:
    """The folder that the runs below `root` were made below; `root`, if they do not lie as then."""
    for record in records:
        home = Path(record.home).parts  # such as ("glue", "base", "pretrain", "mlm", "seed-1")
        if home and record.folder.parts[-len(home) :] == home:
            runs_dir = record.folder.parents[len(home) - 1]
            if root.is_relative_to(runs_dir):
                return runs_dir
            return root
    return root


def _shared_runs(records: Sequence[Record], runs_dir: Path) -> list[Record]:
    """Read the runs of other experiments that some records stand for.

    Without them nobody would know their encoders.
    """
    packed_folders = {record.folder for record in records}
    real_folders = dict.fromkeys(filter(None, (record.shared_folder for record in records)))
    shared = []
    for folder in _below(runs_dir, real_folders):
        if folder in packed_folders:
            continue
        shared_record = read_record(folder)
        if shared_record is not None:
            shared.append(shared_record)
    return shared


def _below(runs_dir: Path, real_folders: Iterable[Path]) -> Iterator[Path]:
    """Yield where these folders of runs lie below `runs_dir`, those that do."""
    inside = runs_dir.resolve()
    behind_links: dict[Path, Path] | None = None
    for real_folder in real_folders:
        if real_folder.is_relative_to(inside):
            yield runs_dir / real_folder.relative_to(inside)
            continue
        if behind_links is None:
            runs = find(runs_dir).records
            behind_links = {run.folder.resolve(): run.folder for run in runs}
        if real_folder in behind_links:
            yield behind_links[real_folder]


def files_to_pack(selection: Selection, left_out: Collection[str]) -> dict[str, Path]:
    """Map the names in the archive to the files of runs, of notes and of the experiment."""
    paths = []
    for record in selection.records:
        paths += run_files(record.folder, left_out)
    # The notes are of many runs, and lie in folders above them.
    for pattern in NOTE_PATTERNS:
        paths += plain_files(selection.root, f"**/{pattern}")
    files = {f"{RUNS}/{name_below(path, selection.runs_dir)}": path for path in paths}
    if selection.experiment:
        files |= _experiment_files(selection.experiment)
    return files


def _experiment_files(experiment: Path) -> dict[str, Path]:
    """Map the names in the archive to an experiment's own files.

    Raises:
        ValueError: one of them leads out of its folder.
    """
    if experiment.is_file():
        return {f"{EXPERIMENT}/{experiment.name}": experiment}
    files = {}
    for path in [*plain_files(experiment, "**/*.yaml"), *experiment.glob("[!.]*.md")]:
        own_text(path, experiment)
        files[f"{EXPERIMENT}/{experiment.name}/{name_below(path, experiment)}"] = path
    return files


def make_manifest(selection: Selection) -> Manifest:
    """What the archive says of itself, but for its files."""
    name = ""
    root = ""
    if selection.experiment:
        name = selection.experiment.name
        root = name_below(selection.root, selection.runs_dir)
    return Manifest(
        experiment=name,
        root=root,
        scale=selection.scale,
        results_versions=RESULTS_VERSIONS,
        files={},
    )


def hide_folders(selection: Selection, files: dict[str, Path], target: Path) -> dict[str, Path]:
    """Write copies of records, configurations and launches that name nobody's folders.

    Paths become relative to where the command was started; those below runs_dir begin with "runs".

    Returns:
        The copies, below `target`, by their names in the archive.
    """
    record_of = {f"{RUNS}/{record.place}": record for record in selection.records}
    copies = {}
    for name, path in files.items():
        folder, _, file_name = name.rpartition("/")
        if not name.startswith(f"{RUNS}/") or file_name not in FILES_WITH_PATHS:
            continue
        # A launch is of many runs.
        records = selection.records
        if folder in record_of:
            records = [record_of[folder]]
        text = path.read_text(encoding="utf-8")
        configs = "\n".join(json.dumps(record.config, ensure_ascii=False) for record in records)
        if file_name == LAUNCH_FILE.name:  # which says where its runs really lie, behind a link
            place = str(Path(name).parents[1])
            text = _renamed_paths(text, path.parents[1].resolve(), place, configs)
        for started_in in dict.fromkeys(record.started_in for record in records):
            text = _renamed_paths(text, Path(started_in), ".", configs)
        text = _renamed_paths(text, selection.runs_dir, RUNS, configs)
        copies[name] = target / name
        copies[name].parent.mkdir(parents=True, exist_ok=True)
        copies[name].write_text(text, encoding="utf-8")
    return copies


def _renamed_paths(text: str, folder: Path, new_name: str, configs: str) -> str:
    """Let the paths in a text that begin with `folder` begin with its new name, "." for none.

    Those that a run's configuration (`configs`, as JSON) has stay as they are: its fingerprint
    knows them, and the words of a launch are those of its runs.
    """
    if len(folder.parts) < 2:  # "/" or "."
        return text
    begin = re.escape(str(folder))
    # Not where a path of the configuration stands: behind it the path would have to go on.
    not_of_config = ""
    for path in dict.fromkeys(re.findall(rf'{begin}[^"]*', configs)):
        not_of_config += rf"(?!{re.escape(path)}(?![\w./-]))"
    # Not inside a longer path; then a slash before a name (group 1), or the end of the path.
    pattern = rf"(?<![\w./-]){not_of_config}{begin}(/(?=[\w.])|(?![\w.-]))"

    def rename(match: re.Match[str]) -> str:
        if not match[1]:
            return new_name
        if new_name == ".":
            return ""
        return f"{new_name}/"

    return re.sub(pattern, rename, text)


def name_below(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
