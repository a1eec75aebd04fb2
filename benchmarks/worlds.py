"""The demo in worlds of other seeds: does each of its nine claims hold there, too?

    python benchmarks/worlds.py --seeds 1-15 --work FOLDER

runs what `make demo` runs, once for each seed of the world, and keeps the verdicts and scores of
each in FOLDER. Stop it and start it again at any time: a world that is judged is not run again.
`--count` only counts what is there.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

KEPT = ("claims.csv", "results.csv")


def run_world(work: Path, seed: int) -> None:
    """Run the demo in one world, unless its verdicts are there."""
    if (work / f"world-{seed}-claims.csv").is_file():
        return
    runs = work / f"runs-{seed}"
    command = [sys.executable, "-m", "clozelab", "reproduce", "two_sides", "scale=dials"]
    command += [f"corpus.generator.world_seed={seed}", f"runs_dir={runs}"]
    command += [f"data_dir={runs / 'data'}", f"cache_dir={runs / 'cache'}"]
    began = time.monotonic()
    with (work / f"world-{seed}.log").open("w", encoding="utf-8") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log)
    minutes = (time.monotonic() - began) / 60
    for name in KEPT:
        (path,) = runs.rglob(name)
        shutil.copyfile(path, work / f"world-{seed}-{name}")
    shutil.rmtree(runs)
    print(f"world {seed}: {minutes:.1f} minutes", flush=True)


def count(work: Path) -> None:
    """Print in how many worlds each claim got which verdict."""
    verdicts: dict[str, Counter[str]] = {}
    paths = sorted(work.glob("world-*-claims.csv"))
    for path in paths:
        for row in csv.DictReader(path.open(encoding="utf-8")):
            verdicts.setdefault(row["text"], Counter())[row["verdict"]] += 1
    print(f"{len(paths)} worlds")
    for text, counts in verdicts.items():
        shares = ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common())
        print(f"  {text}: {shares}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="1-15", help="first and last seed of the worlds")
    parser.add_argument("--work", type=Path, default=Path("runs/worlds"), help="where results lie")
    parser.add_argument("--count", action="store_true", help="only count")
    arguments = parser.parse_args()
    work = arguments.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    first, _, last = arguments.seeds.partition("-")
    if not last:
        last = first
    if not arguments.count:
        for seed in range(int(first), int(last) + 1):
            run_world(work, seed)
    count(work)


if __name__ == "__main__":
    main()
