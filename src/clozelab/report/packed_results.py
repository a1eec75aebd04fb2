"""The table of scores that a pack's runs make."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import zip_longest
from pathlib import Path

from clozelab.results.adhoc import infer_table
from clozelab.results.experiment import load_experiment
from clozelab.results.table import build_table
from clozelab.runs.archive import RESULTS, RUNS, Manifest, RunArchive
from clozelab.runs.find import Runs
from clozelab.runs.record import Record

# Of results.csv: packs that were made before these columns existed lack them.
ADDED_COLUMNS = frozenset({"positive_label"})


def write_results_table(
    manifest: Manifest,
    records: Iterable[Record],
    experiment: Path | None,
    folder: Path,
    left_out: Collection[str] = (),
) -> Path:
    """Write every score of the table that an archive's runs make, wherever they lie now.

    Args:
        left_out: columns that it shall not have.

    Returns:
        The path of results.csv, in `folder`.
    """
    from clozelab.report.render import write_results  # matplotlib: not for --help

    prefix = f"{manifest.root}/" if manifest.root else ""
    judged = [record for record in records if record.place.startswith(prefix)]
    # Pre-training first, as in a folder that is searched for runs.
    judged.sort(key=lambda record: (record.stage != "pretrain", record.place))
    runs = Runs(Path(RUNS), judged)
    if experiment is None:
        table = infer_table(runs)
    else:
        table = build_table(load_experiment(experiment), runs)
    write_results(folder / RESULTS, table, manifest.scale, left_out)
    return folder / RESULTS


def table_mismatch(archive: RunArchive) -> tuple[str, int]:
    """Make results.csv of a pack again from its records.

    Returns:
        The first line that differs, as a sentence, or ""; and the number of lines that were made.
    """
    folder = archive.folder / "again"
    folder.mkdir()
    old_lines = (archive.folder / RESULTS).read_text(encoding="utf-8").splitlines()
    # An older table lacks the columns that were added since.
    header = "".join(old_lines[:1]).split(",")
    new_file = write_results_table(
        archive.manifest,
        archive.records,
        archive.experiment,
        folder,
        left_out=ADDED_COLUMNS.difference(header),
    )
    new_lines = new_file.read_text(encoding="utf-8").splitlines()
    mismatch = ""
    for new_line, old_line in zip_longest(new_lines, old_lines, fillvalue=""):
        if new_line != old_line:
            mismatch = f"{RESULTS} says {old_line!r}, and the records say {new_line!r}"
            break
    return mismatch, len(new_lines) - 1
