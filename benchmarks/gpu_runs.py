"""Whole runs through `clozelab`'s verbs, on a GPU and on the CPU: a part of gpu.py.

The embedded world is the data. What has to be equal is compared in fp32: pre-training of one seed,
four kinds of fine-tuning and a measure of one encoder, and predictions of one model. The ordinary
settings of a GPU (bf16, compiled, CUDA graphs) stand beside them with wider limits, and another
seed shows that the limits notice something.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gpu_plan import Plan, require

STOPPED = 143
EARLY_LINES = 5  # of the log: what rounding makes of a training grows with its steps
FP32 = ("trainer.precision=32-true",)
AS_WRITTEN = ("trainer.compile=false", 'trainer.cuda_graphs="off"')
DEVICES = ("cpu", "gpu")

# A task of each kind; nothing is drawn while they train, so that both devices do the same.
TASKS: dict[str, tuple[str, ...]] = {
    "mnli": (),
    "ner_microworld": (),
    "squad_v2": (),
    "stsb_simcse": (
        "task.data.train_columns=[sentence1,sentence2]",
        "task.module.dropout=0.0",
    ),
}
PREDICTIONS: dict[str, tuple[str, ...]] = {
    "mnli": ("text=a friend saw it .", "pair=a friend saw it ."),
    "embed": ("do=embed", "text=a friend saw it ."),
    "fill": ("text=a friend [MASK] it .", "top_k=3"),
}


@dataclass
class Runs:
    """Commands of clozelab in one folder; several run side by side."""

    plan: Plan
    folder: Path
    wrong: list[str] = field(default_factory=list)

    def clozelab(self, *words: str) -> str:
        """What a command prints; AssertionError with its last lines where it fails.

        A run that ends where it was told to stop says so with a status of its own.
        """
        command = [sys.executable, "-m", "clozelab", *words]
        threads = "1" if self.plan.smoke else "2"
        names = ("TORCHINDUCTOR_COMPILE_THREADS", "OMP_NUM_THREADS")
        variables = os.environ | dict.fromkeys(names, threads)
        limit = max(1.0, self.plan.seconds_left())
        result = subprocess.run(
            command, capture_output=True, text=True, env=variables, timeout=limit, check=False
        )
        tail = " / ".join((result.stdout + result.stderr).strip().splitlines()[-8:])
        statuses = (0, STOPPED) if any("stop_after_step" in word for word in words) else (0,)
        require(result.returncode in statuses, f"status {result.returncode}: {tail[-900:]}")
        return result.stdout

    def job(self, name: str, verb: str, device: str, *words: str) -> None:
        """A run of a verb on a device, in a folder of its name."""
        on_device = "cpu" if self.plan.smoke else device
        places = [f"{key}_dir={self.folder}/{key}" for key in ("data", "cache", "runs")]
        usual = ["scale=demo", "trainer.progress_bar=false", f"trainer={on_device}"]
        if on_device == "cpu":
            usual.append("trainer.threads=1" if self.plan.smoke else "trainer.threads=2")
        self.clozelab(verb, *usual, *places, f"run_dir={self.place(name)}", *words)

    def place(self, name: str) -> Path:
        return self.folder / name.replace(" ", "_").replace(",", "")

    def together(self, jobs: Mapping[str, Sequence[str]]) -> set[str]:
        """Runs (name: verb, device, words) side by side; the names of those that ended well."""
        start = time.perf_counter()
        done = set()
        with ThreadPoolExecutor(2 if self.plan.smoke else 16) as pool:
            futures = {name: pool.submit(self.job, name, *words) for name, words in jobs.items()}
            for name, future in futures.items():
                try:
                    future.result()
                    done.add(name)
                except Exception as error:
                    self.plan.say("", f"{name}: FAILED: {type(error).__name__}: {error}", "")
                    self.wrong.append(name)
        self.plan.say("", f"({len(done)} runs, {time.perf_counter() - start:.0f} s)", "")
        return done

    def losses(self, name: str) -> list[float]:
        """The training losses of a run, a line of its log each."""
        with (self.place(name) / "metrics.csv").open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["key"] == "train/loss"]
        return [float(row["value"]) for row in rows]

    def record(self, name: str) -> dict[str, Any]:
        path = self.place(name) / "run.json"
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return record

    def scores(self, name: str) -> dict[str, float]:
        """What a fine-tuning or a measure publishes."""
        text = (self.place(name) / "scores.json").read_text(encoding="utf-8")
        scores: dict[str, float] = json.loads(text)["scores"]
        return scores

    def check(self, title: str, value: float, limit: float, *, is_control: bool = False) -> None:
        """Writes a line; a control has to be above the limit."""
        is_right = value > limit if is_control else value <= limit
        sign = ">" if is_control else "<="
        self.plan.say(f"| {title} | {value:.1e} | {sign} {limit:.0e} | {word(is_right)} |")
        self.plan.record(title, value=value, limit=limit)
        if not is_right:
            self.wrong.append(title)


def word(is_right: bool) -> str:
    return "ok" if is_right else "WRONG"


def check_runs(plan: Plan) -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(plan, Path(folder))
        check_pretraining(runs)
        check_tasks(runs)
        check_predictions(runs)
        require(not runs.wrong, "; ".join(runs.wrong))


def check_pretraining(runs: Runs) -> None:
    """One seed's pre-training in fp32 on both devices, as a GPU does it by itself, and resumed."""
    length = "steps_factor=0.02" if runs.plan.smoke else "steps_factor=0.25"
    stop = 20 if runs.plan.smoke else 250
    words = (length, "trainer.log_interval_steps=10")
    jobs = {
        "cpu": ("pretrain", "cpu", *words, *FP32),
        "cpu, another seed": ("pretrain", "cpu", *words, *FP32, "seed=2"),
        "gpu, fp32, as written": ("pretrain", "gpu", *words, *FP32, *AS_WRITTEN),
        "gpu, fp32": ("pretrain", "gpu", *words, *FP32),
        "gpu": ("pretrain", "gpu", *words),
        "gpu, whole": ("pretrain", "gpu", *words, "trainer.compile=whole"),
        "gpu, resumed": ("pretrain", "gpu", *words, f"stop_after_step={stop}"),
    }
    if runs.plan.smoke:
        jobs = {name: jobs[name] for name in ("cpu", "gpu, resumed")}
    done = runs.together(jobs)
    # The same command again, without its stop.
    if "gpu, resumed" in done:
        done -= {"gpu, resumed"}
        done |= runs.together({"gpu, resumed": ("pretrain", "gpu", *words)})
    _say_pretrainings(runs, [name for name in jobs if name in done])
    for name, early, late in (
        ("gpu, fp32, as written", 1e-3, 2e-2),
        ("gpu, fp32", 1e-3, 2e-2),
        ("gpu", 2e-2, 3e-2),
        ("gpu, whole", 2e-2, 3e-2),
        ("gpu, resumed", 2e-2, 3e-2),
    ):
        if {name, "cpu"} <= done:
            runs.check(f"{name}: early losses", _early_difference(runs, name, "cpu"), early)
            runs.check(f"{name}: held-out loss", _final_difference(runs, name, "cpu"), late)
    if {"cpu", "cpu, another seed"} <= done:
        difference = _early_difference(runs, "cpu, another seed", "cpu")
        runs.check("another seed: early losses", difference, 1e-3, is_control=True)


def _say_pretrainings(runs: Runs, names: Sequence[str]) -> None:
    say = runs.plan.say
    say("| run | graphs | compiled | precision | seconds | first, last loss | held-out loss |")
    say("|---|---|---|---|--:|---|--:|")
    for name in names:
        record = runs.record(name)
        facts = record["facts"]
        losses = runs.losses(name)
        cells = [facts.get("cuda_graphs"), facts.get("compiled"), facts.get("precision")]
        words = " | ".join(map(str, cells))
        say(
            f"| {name} | {words} | {record['seconds']:.0f} | {losses[0]:.4f}, {losses[-1]:.4f} |"
            f" {_held_out(record):.5f} |"
        )
    say("", "| compared with the CPU's fp32 | difference | wanted | |", "|---|--:|--:|---|")


def _held_out(record: Mapping[str, Any]) -> float:
    scores = record["scores"]
    score = scores["validation/loss"]
    return float(score["value"] if isinstance(score, dict) else score)


def _early_difference(runs: Runs, name: str, other: str) -> float:
    """The largest relative difference of the first log lines' losses."""
    pairs = list(zip(runs.losses(name), runs.losses(other), strict=True))[:EARLY_LINES]
    return max(abs(loss - expected) / expected for loss, expected in pairs)


def _final_difference(runs: Runs, name: str, other: str) -> float:
    expected = _held_out(runs.record(other))
    return abs(_held_out(runs.record(name)) - expected) / expected


def check_tasks(runs: Runs) -> None:
    """Fine-tunings and a measure of the CPU's encoder, in fp32 on both devices, and a GPU's own."""
    examples = 48 if runs.plan.smoke else 640
    encoder = f"encoder={runs.place('cpu')}/encoder"
    words: tuple[str, ...] = (encoder, "row=checked", "epochs=1", "trainer.log_interval_steps=1")
    words += (f"max_train_examples={examples}",)
    jobs: dict[str, Sequence[str]] = {}
    for device in DEVICES:
        for task, changes in TASKS.items():
            name = f"{task}, {device}"
            jobs[name] = ("finetune", device, f"task={task}", *words, *changes, *FP32)
        held_out = ("evaluate", device, "measure=held_out_text", encoder, "row=checked", *FP32)
        jobs[f"held_out_text, {device}"] = held_out
    for task, changes in TASKS.items():
        jobs[f"{task}, bf16"] = ("finetune", "gpu", f"task={task}", *words, *changes)
    if runs.plan.smoke:
        jobs = {name: job for name, job in jobs.items() if name.endswith("cpu") or "mnli" in name}
    done = runs.together(jobs)
    runs.plan.say("| compared with the CPU's fp32 | difference | wanted | |", "|---|--:|--:|---|")
    for task in TASKS:
        if f"{task}, cpu" not in done:
            continue
        for name, early, late in ((f"{task}, gpu", 1e-3, 2.0), (f"{task}, bf16", 5e-2, 6.0)):
            if name in done:
                expected = f"{task}, cpu"
                runs.check(f"{name}: early losses", _early_difference(runs, name, expected), early)
                runs.check(f"{name}: points", _points_apart(runs, name, expected), late)
    if {"held_out_text, cpu", "held_out_text, gpu"} <= done:
        cpu_loss = runs.scores("held_out_text, cpu")["validation/loss"]
        loss = runs.scores("held_out_text, gpu")["validation/loss"]
        runs.check("held_out_text, gpu: loss", abs(loss - cpu_loss) / cpu_loss, 1e-5)


def _points_apart(runs: Runs, name: str, other: str) -> float:
    """Difference of the task's own metric, in points of a hundred."""
    metric = runs.record(other)["metric"]
    key = metric if isinstance(metric, str) else metric["key"]
    expected = runs.scores(other)[key]
    score = runs.scores(name)[key]
    runs.plan.say(f"| {name}: {key} | {score:.4f} | CPU {expected:.4f} | |")
    factor = 1.0 if other.startswith("squad") else 100.0
    return factor * abs(score - expected)


def check_predictions(runs: Runs) -> None:
    """Answers of one model on both devices, in fp32."""
    models = dict.fromkeys(PREDICTIONS, runs.place("cpu") / "encoder")
    models["mnli"] = runs.place("mnli, cpu")
    answers = {}
    chosen = PREDICTIONS
    if runs.plan.smoke:
        chosen = {"mnli": PREDICTIONS["mnli"]}
    with ThreadPoolExecutor(2 if runs.plan.smoke else 8) as pool:
        for name, words in chosen.items():
            for device in DEVICES:
                on_device = "cuda" if device == "gpu" and not runs.plan.smoke else "cpu"
                options = ("precision=32-true", f"device={on_device}", "--json")
                command = partial(runs.clozelab, "predict", str(models[name]), *words, *options)
                answers[name, device] = pool.submit(command)
    runs.plan.say("", "| answers beside the CPU's | difference | wanted | |", "|---|--:|--:|---|")
    for name in chosen:
        try:
            numbers, texts = _leaves(json.loads(answers[name, "gpu"].result()))
            expected, expected_texts = _leaves(json.loads(answers[name, "cpu"].result()))
            require(texts == expected_texts, f"{texts} instead of {expected_texts}")
            pairs = zip(numbers, expected, strict=True)
            difference = max(abs(number - wanted) for number, wanted in pairs)
            runs.check(f"predict, {name}, {len(numbers)} numbers", difference, 2e-5)
        except Exception as error:
            runs.plan.say("", f"predict, {name}: FAILED: {type(error).__name__}: {error}", "")
            runs.wrong.append(name)


def _leaves(value: Any) -> tuple[list[float], list[str]]:
    """All numbers and all texts of a JSON object, in its order."""
    numbers: list[float] = []
    texts: list[str] = []
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        if isinstance(value, int | float):
            return [float(value)], []
        return [], [str(value)]
    for item in value:
        more_numbers, more_texts = _leaves(item)
        numbers += more_numbers
        texts += more_texts
    return numbers, texts
