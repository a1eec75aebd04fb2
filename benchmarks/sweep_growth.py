"""How cost grows with a sweep: `plan`, `status`, `report` and `judge` for 1, 5, 50 and 500 arms.

    python benchmarks/sweep_growth.py --folder FOLDER [--arms 1,5,50] [--verbs plan,report]

Two tiny runs are made once. Every other run of a sweep is a copy of these whose record says another
arm, seed and score, so 5,000 runs take a minute. Each verb runs in a fresh process of one thread.
Printed are its CPU seconds (user and system, imports included) and its largest memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]

SEEDS = (1, 2, 3, 4, 5)
TASK = "sst2"
FILE = "sweep.yaml"
ROOT = Path("runs/sweep/demo")
"""Folder of the runs at their scale, below that of a sweep."""
FLOOR = "random"  # the row that is not pre-trained
PLANS = {"before": ["runs_dir=none"], "plan": [], "gpu": ["runs_dir=none", "trainer=gpu"]}
"""Plans of a sweep that has no run yet, of one whose runs are all done, and for a GPU."""
VERBS = (*PLANS, "status", "report", "judge")


class Cost(NamedTuple):
    """What a command took."""

    seconds: float  # of the processor, user and system
    megabytes: float  # resident, at most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--arms", default="1,5,50,500")
    parser.add_argument("--verbs", default=",".join(VERBS))
    options = parser.parse_args()
    folder = options.folder.resolve()
    template = folder / "template"
    if not template.is_dir():
        make_template(template)
    for number in map(int, options.arms.split(",")):
        sweep = folder / f"arms-{number}"
        if not sweep.is_dir():
            make_sweep(sweep, template, number)
        for verb in options.verbs.split(","):
            # One arm has nothing to be compared with.
            if verb == "judge" and number == 1:
                continue
            cost = measure(command_of(verb, template), sweep)
            figures = f"{cost.seconds:.1f} s, {cost.megabytes:.0f} MB"
            print(f"{number} arms, {verb}: {figures}", flush=True)


def command_of(verb: str, template: Path) -> list[str]:
    """The words that are measured, in the folder of a sweep."""
    places = [f"data_dir={template}/data"]
    if verb in PLANS:
        return ["clozelab", "plan", FILE, "scale=demo", "--no-measure", *PLANS[verb], *places]
    if verb == "report":
        return ["clozelab", "report", FILE, "scale=demo", "report_dir=report"]
    if verb == "judge":
        return ["claims", "judge", "scores.csv", "claims.yaml"]
    return ["clozelab", verb]


def measure(words: Sequence[str], folder: Path) -> Cost:
    """What a command takes in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    with (folder / f"{words[1]}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=folder, env=environment, stdout=log, stderr=log
        )
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(words)} in {folder}:\n{Path(log.name).read_text()}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


# -- an experiment and its runs --------------------------------------------------------------------


def write_experiment(folder: Path, num_arms: int) -> None:
    """Write the experiment and, for `judge`, its claims alone."""
    arms = [f"rate{number}" for number in range(num_arms)]
    claims = []
    # every other arm against the first one
    for arm in arms[1:]:
        claims.append({"text": f"{arm} helps", "compare": [arm, arms[0], TASK]})
    for claim in claims or [{"text": "rate0 helps", "compare": [arms[0], FLOOR, TASK]}]:
        claim["direction"] = "higher"
    seeds = ",".join(map(str, SEEDS))
    few = {"max_train_examples": 100, "epochs": 1}
    experiment = {
        "columns": [TASK],
        "arms": {arm: {"optimizer.learning_rate": rate_of(arm)} for arm in arms},
        "sweeps": {
            "pretrain": {"seed": seeds, "steps_factor": 0.02},
            "finetune": {"pretrain_seed": seeds, "seed": "1", **few},
        },
        "claims": claims,
    }
    folder.mkdir(parents=True)
    (folder / FILE).write_text(yaml.safe_dump(experiment, sort_keys=False))
    (folder / "claims.yaml").write_text(yaml.safe_dump({"claims": claims}))


def rate_of(arm: str) -> float:
    return round(1e-3 + 1e-6 * int(arm.removeprefix("rate")), 6)


def make_template(folder: Path) -> None:
    """Train one arm and fine-tune it, and the floor, for a few steps."""
    write_experiment(folder, 1)
    words = [sys.executable, "-m", "clozelab", "reproduce", FILE, "scale=demo", "seeds=1"]
    words += ["--skip-doctor", "hydra.launcher.jobs_at_once=1"]
    subprocess.run(words, cwd=folder, check=True)


def make_sweep(folder: Path, template: Path, num_arms: int) -> None:
    """Make the experiment of so many arms, and all of its runs of copies."""
    write_experiment(folder, num_arms)
    rows = [f"rate{number}" for number in range(num_arms)]
    jobs: dict[str, list[tuple[str, str, str]]] = {"pretrain": [], "finetune": []}
    scores = ["arm,seed,task,score"]
    for arm, seed in product(rows, SEEDS):
        place = "pretrain/{}/seed-{}"
        copy_run(template, place.format("rate0", 1), folder, place.format(arm, seed), arm, seed)
        jobs["pretrain"].append((arm, "", str(seed)))
    for row, seed in product([*rows, FLOOR], SEEDS):
        place = f"finetune/{{}}/pretrain-seed-{{}}/{TASK}/seed-1"
        made = FLOOR if row == FLOOR else "rate0"
        run = copy_run(template, place.format(made, 1), folder, place.format(row, seed), row, seed)
        jobs["finetune"].append((row, TASK, f"{seed}/1"))
        scores.append(f"{row},{seed},{TASK},{run['scores'][run['metric']]['value']}")
    (folder / "scores.csv").write_text("\n".join(scores) + "\n")

    # The note of the launch names the jobs of all arms.
    launches = json.loads((template / ROOT / "launcher/launch.json").read_text())
    for stage, launch in launches.items():
        launch |= {"jobs": jobs[stage], "root": str(folder / ROOT)}
    (folder / ROOT / "launcher").mkdir()
    (folder / ROOT / "launcher/launch.json").write_text(json.dumps(launches))


def copy_run(
    template: Path, place: str, folder: Path, new_place: str, name: str, seed: int
) -> dict[str, Any]:
    """Link every file of a run but its record, which says another arm or row, seed and score.

    Returns that record.
    """
    source = template / ROOT / place
    target = folder / ROOT / new_place
    without = shutil.ignore_patterns("run.json", "checkpoints")
    shutil.copytree(source, target, ignore=without, copy_function=os.link)
    record = json.loads((source / "run.json").read_text())
    rename(record, name, seed)
    record["home"] = f"sweep/demo/{new_place}"
    record["fingerprint"] = f"{random.Random(new_place).getrandbits(256):064x}"
    # One seed's scores of all rows go along with each other, as those of paired runs do.
    shift = random.Random(seed).gauss(0, 2) + random.Random(new_place).gauss(0, 1)
    if record["stage"] == "finetune":
        # A few steps teach nothing, and what has learnt nothing is not tested.
        record["facts"]["collapsed"] = False
        record["scores"][record["metric"]]["value"] = 75 + shift
    (target / "run.json").write_text(json.dumps(record, indent=2))
    return dict(record)


def rename(record: dict[str, Any], name: str, seed: int) -> None:
    """Let a record be of another arm or row, and of another seed of pre-training."""
    config = record["config"]
    if record["stage"] == "pretrain":
        config |= {"arm": name, "seed": seed}
        record["overrides"] = [f"arm={name}", f"seed={seed}", "scale=demo"]
        record["arm_delta"] |= {"arm": name, "optimizer.learning_rate": rate_of(name)}
        config["optimizer"]["learning_rate"] = rate_of(name)
        return
    config |= {"row": name, "pretrain_seed": seed}
    record["overrides"] = [f"row={name}", f"pretrain_seed={seed}", "scale=demo"]
    # Each run begins with an encoder of its own.
    encoder = random.Random(f"{name} {seed}").getrandbits(256)
    record["inputs"]["encoder"] = f"{encoder:064x}"
    if name != FLOOR:
        config["encoder_arm"] = name
        record["row_delta"] |= {"row": name, "encoder_arm": name}


if __name__ == "__main__":
    main()
