"""metrics.csv: every logged number of a run in long form (step, tokens, seconds, key, value).

A Lightning logger, so it hears what `self.log` and `publish` say. Appends; `truncate_after` drops what a resumed run
will write again. The keys train/tokens and train/seconds fill the columns of the rows that follow and get no rows
themselves.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from clozelab.training.metrics_rows import COLUMNS, parse

TOKENS_KEY, SECONDS_KEY = "train/tokens", "train/seconds"


class MetricsCsv(Logger):
    """Appends to `folder/metrics.csv` on rank zero."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = Path(folder) / "metrics.csv"
        self._tokens, self._seconds = 0, 0.0

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        self._tokens = int(metrics.get(TOKENS_KEY, self._tokens))
        self._seconds = float(metrics.get(SECONDS_KEY, self._seconds))
        rows = [
            (step, self._tokens, f"{self._seconds:.3f}", key, repr(float(value)))
            for key, value in metrics.items()
            if key not in (TOKENS_KEY, SECONDS_KEY, "epoch")
        ]
        is_new = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerows([COLUMNS, *rows] if is_new else rows)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """The configuration is in config.yaml and run.json, not here."""

    @rank_zero_only
    def truncate_after(self, step: int) -> None:
        """Drop rows of later steps, and a last line that was cut in the middle."""
        if not self.path.exists():
            return
        temporary = self.path.with_name(".metrics.csv.tmp")
        with (
            self.path.open(newline="", encoding="utf-8") as source,
            temporary.open("w", newline="", encoding="utf-8") as target,
        ):
            target.write(",".join(COLUMNS) + "\n")
            for line in source:
                if line.endswith("\n") and (row := parse(line)) and row.step <= step:
                    target.write(line)
        temporary.replace(self.path)
