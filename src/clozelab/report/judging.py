"""A report from a folder of runs: judged as an experiment, or as any sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clozelab.launch.sweep import compose, open_master, root_of
from clozelab.report.screen import show
from clozelab.report.tracked import track_report
from clozelab.results.experiment import Experiment, open_experiment
from clozelab.runs.find import is_folder_of_runs

if TYPE_CHECKING:
    from clozelab.report.render import Report


def make(name: str, overrides: Sequence[str], target: str | None) -> Report:
    """Write and print the report of an experiment or of a folder of runs."""
    if not is_folder_of_runs(name):
        return judge(open_experiment(name), overrides, target=target)
    fixed_rows: list[str] = []
    for word in overrides:
        key, _, value = word.partition("=")
        if key != "fixed_encoder":
            raise ValueError(
                f"{word}: the report of a folder takes report_dir=, fixed_encoder=ROW and --paper"
            )
        fixed_rows.append(value)
    # With matplotlib and scipy, which a wrong name need not wait for.
    from clozelab.report.render import write_sweep_report

    folder = Path(name)
    report = write_sweep_report(folder, Path(target or folder / "report"), fixed_rows)
    show(report)
    return report


def judge(
    experiment: Experiment,
    overrides: Sequence[str],
    config_name: str | None = None,
    target: str | None = None,
) -> Report:
    """Write an experiment's report, print it, and give it to a tracker.

    Args:
        overrides: they choose scale, runs and tracker (logger=wandb), as for one of its sweeps.
        config_name: that sweep's; None for the first that they fit.
        target: the folder to write to; None for one beside the runs.
    """
    from clozelab.report.render import write_report

    folder = experiment.folder
    if config_name is None:
        config = open_master(folder, overrides)
    else:
        config = compose(config_name, overrides, folder=folder, sweep=True)
    root, scale = root_of(config)
    report_folder = Path(target or root / "report")
    report = write_report(experiment, root, report_folder, scale=scale)
    show(report)
    track_report(config, report, experiment=folder.name, scale=scale)
    return report
