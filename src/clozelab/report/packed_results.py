"""The table of scores that a pack's runs make."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from claims.tables.layout import SCORES_FILE
from clozelab.results.adhoc import infer_table
from clozelab.results.experiment import load_experiment
from clozelab.results.table import build_table
from clozelab.runs.archive import RUNS, Manifest
from clozelab.runs.find import Runs
from clozelab.runs.record import Record


def write_results_table(
    manifest: Manifest, records: Iterable[Record], experiment: Path | None, folder: Path
) -> Path:
    """Write every score of the table that an archive's runs make, wherever they lie now.

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
    write_results(folder / SCORES_FILE, table, manifest.scale)
    return folder / SCORES_FILE
