"""The loss curves of packs in one small table: `loss_curves.py OUT.csv.gz PACK ...`

One line for each step at which a pre-training run logged a loss. docs/results/loss-curves.csv.gz
holds the curves of every pack that was published here up to 2026-11-25; later work draws its
reference bands from it. A run that several packs hold is there once.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any


@dataclass(frozen=True)
class CurvePoint:
    """A pre-training run at one of its steps."""

    result: str  # the page below docs/results
    experiment: str
    arm: str
    seed: int
    layers: int
    width: int
    heads: int
    vocabulary: int
    optimizer: str
    parameters: int
    machine: str
    commit: str
    step: int
    tokens: int
    seconds: float
    train_loss: float | None  # nats, the sum of all objectives, since the step before
    validation_loss: float | None  # nats a predicted token of held-out text


def read_pack(pack: Path, seen: set[tuple[str, str]]) -> Iterator[CurvePoint]:
    """The points of every complete pre-training run of a pack, in the order of its names.

    `seen` has (fingerprint, start) of the runs of other packs; this pack's are added.
    """
    result = pack.parent.name
    with zipfile.ZipFile(pack) as archive:
        names = set(archive.namelist())
        for name in sorted(names):
            path = PurePosixPath(name)
            metrics = str(path.with_name("metrics.csv"))
            if path.name != "run.json" or metrics not in names:
                continue
            run = json.loads(archive.read(name))
            key = (run["fingerprint"], run["started"])
            if run["stage"] != "pretrain" or run["status"] != "complete" or key in seen:
                continue
            seen.add(key)
            text = archive.read(metrics).decode()
            yield from _points(result, run, list(csv.DictReader(io.StringIO(text))))


def _points(
    result: str, run: dict[str, Any], metrics: list[dict[str, str]]
) -> Iterator[CurvePoint]:
    config = run["config"]
    model = config["model"]
    optimizer = "adamw"
    if config["optimizer"].get("matrix_learning_rate"):
        optimizer = "muon"
    losses: dict[tuple[int, int, float], dict[str, float]] = {}
    for line in metrics:
        if line["key"] in ("train/loss", "validation/loss"):
            place = (int(line["step"]), int(line["tokens"]), round(float(line["seconds"]), 1))
            losses.setdefault(place, {})[line["key"]] = round(float(line["value"]), 4)
    for (step, tokens, seconds), at_step in losses.items():
        yield CurvePoint(
            result=result,
            experiment=config["experiment"],
            arm=config["arm"],
            seed=config["seed"],
            layers=model["num_hidden_layers"],
            width=model["hidden_size"],
            heads=model["num_attention_heads"],
            vocabulary=config["tokenizer"]["vocab_size"],
            optimizer=optimizer,
            parameters=run["facts"]["parameters"],
            machine=run["host"]["cpu"],
            commit=run["git"]["commit"][:7],
            step=step,
            tokens=tokens,
            seconds=seconds,
            train_loss=at_step.get("train/loss"),
            validation_loss=at_step.get("validation/loss"),
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="the table, a .csv.gz")
    parser.add_argument("packs", nargs="+", type=Path, help="runs.zip in a folder of docs/results")
    arguments = parser.parse_args()
    seen: set[tuple[str, str]] = set()
    text = io.StringIO()
    names = [field.name for field in fields(CurvePoint)]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for pack in arguments.packs:
        for point in read_pack(pack, seen):
            writer.writerow(asdict(point))
    # No date inside: the same packs give the same bytes.
    arguments.out.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
    print(f"{arguments.out}: {len(seen)} runs")


if __name__ == "__main__":
    main()
