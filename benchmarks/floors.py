"""How many cells of published tables lie below their own floor, and which claims rest on them.

    python benchmarks/floors.py docs/results/2026-11-2*/

A floor is the row of the same head on random weights. A cell is the mean over the pre-training
seeds of their means.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from clozelab.results.experiment import find_experiment, load_experiment


def means(folder: Path) -> tuple[str, pd.Series]:
    """The experiment's name, and the mean of each (row, task)."""
    runs = pd.read_csv(folder / "results.csv")
    if "experiment" not in runs:  # the first report's file: one line a run
        runs = runs.rename(columns={"name": "row", "score_percent": "score"})
        runs = runs.assign(experiment="table5_pretraining_tasks", is_headline=True)
    runs = runs[(runs.stage == "finetune") & runs.is_headline.astype(bool)]
    by_seed = runs.groupby(["row", "task", "pretrain_seed"]).score.mean()
    return runs.experiment.iloc[0], by_seed.groupby(["row", "task"]).mean()


def main(folders: list[Path]) -> None:
    print(
        "| report | cells of rows with pre-training | below their floor | which"
        " |\n|---|--:|--:|---|"
    )
    for folder in folders:
        name, cells = means(folder)
        experiment = load_experiment(find_experiment(name))
        rows = {row.name: row for row in experiment.rows if row.arm and row.floor}
        held = [
            (row, task)
            for row, task in cells.index
            if row in rows and (rows[row].floor, task) in cells.index
        ]
        below = [
            (row, task) for row, task in held if cells[row, task] < cells[rows[row].floor, task]
        ]
        which = "; ".join(
            f"{row} on {task} {cells[row, task]:.1f} ({cells[rows[row].floor, task]:.1f})"
            for row, task in below
        )
        print(f"| {folder.name} | {len(held)} | {len(below)} | {which} |")


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
