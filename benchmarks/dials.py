"""Verdicts in worlds where theory knows the answer: both dials at nothing, and both at full.

`python benchmarks/dials.py --seeds 101-110 --work FOLDER` runs, for each seed, one world of either
kind: three pre-training seeds of three arms at `scale=dials`, two fine-tuned tasks and one measure,
three claims. Stop it and start it again at any time; several may share FOLDER if each has seeds of
its own. A world takes six minutes of a fast core.
`--count` only counts what is there.

With both dials at nothing no claim is true, so a verdict is a false one. At full all three are.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import yaml

from interleaved import ROOT

COLUMNS, CLAIMS = (
    ("Tags", "Pairs", "One document"),
    ("ltr_hurts_tags", "nsp_helps_pairs", "nsp_helps_documents"),
)
DIALS = {"nothing": (0.0, 0.0), "full": (0.75, 1.0)}  # right, following


def write_experiment(folder: Path) -> Path:
    """The demo's experiment with these claims, what they need, and nothing else."""
    said = yaml.safe_load((ROOT / "experiments/two_sides/paper.yaml").read_text(encoding="utf-8"))
    for part, key, kept in (
        ("columns", "name", COLUMNS),
        ("claims", "id", CLAIMS),
        ("rows", "row", said["arms"]),
    ):
        said[part] = [one for one in said[part] if one[key] in kept]
    for row in said["rows"]:
        del row["floor"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "paper.yaml").write_text(yaml.safe_dump(said, sort_keys=False), encoding="utf-8")
    return folder


def run_world(work: Path, kind: str, seed: int) -> None:
    """Run one world to its verdicts, unless they are there."""
    verdicts, runs = work / f"{kind}-{seed}.csv", work / f"runs-{kind}-{seed}"
    if verdicts.is_file():
        return
    right, following = DIALS[kind]
    words = [
        f"corpus.generator.{key}={one}" for key, one in (("right", right), ("following", following))
    ]
    words += [
        f"corpus.generator.world_seed={seed}",
        "scale=dials",
        "seeds=1,2,3",
        "hydra.launcher.jobs_at_once=1",
    ]
    words += [f"runs_dir={runs}", f"data_dir={runs / 'data'}", f"cache_dir={runs / 'cache'}"]
    experiment = write_experiment(work / "dials_check")
    with (work / f"{kind}-{seed}.log").open("w", encoding="utf-8") as log:
        command = [sys.executable, "-m", "clozelab", "reproduce", str(experiment), *words]
        subprocess.run(
            command, check=True, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
    (found,) = runs.rglob("claims.csv")
    shutil.copyfile(found, verdicts)
    shutil.rmtree(runs)


def count(work: Path) -> None:
    """Print how many claims of how many worlds got which verdict."""
    for kind in DIALS:
        tables = []
        decided = 0
        for path in sorted(work.glob(f"{kind}-*.csv")):
            claims = list(csv.DictReader(path.open(encoding="utf-8")))
            tables.append(claims)
            decided += any(claim["verdict"] != "inconclusive" for claim in claims)
        print(f"dials at {kind}: {len(tables)} worlds, {decided} with a verdict")
        if not tables:
            continue
        for number in range(len(CLAIMS)):
            verdicts = Counter(claims[number]["verdict"] for claims in tables)
            counts = ", ".join(f"{times} {verdict}" for verdict, times in verdicts.items())
            print(f"  {tables[0][number]['text']}: {counts}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="1-20", help="first and last seed of the worlds")
    parser.add_argument(
        "--work", type=Path, default=Path("runs/dials"), help="where runs and verdicts lie"
    )
    parser.add_argument("--count", action="store_true", help="only count")
    said = parser.parse_args()
    first, _, last = said.seeds.partition("-")
    if not said.count:
        for seed in range(int(first), int(last or first) + 1):
            for kind in DIALS:
                run_world(said.work.absolute(), kind, seed)
    count(said.work)


if __name__ == "__main__":
    main()
