"""Several small encoders that train side by side on one GPU: a part of benchmarks/gpu.py.

Each is a process of its own, as a sweep's runs are. Their kernels run at the same time where
NVIDIA's multi-process service (MPS) is up; else they take turns.

`python benchmarks/gpu_side.py FOLDER NUMBER OF` is one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from gpu_plan import Plan, require, table
from gpu_steps import Case, Clock, Fit, told

SHAPES = ((64, 128), (512, 64))
WARM_UP = 20  # steps that compile, and are captured
BLOCK = 10  # steps between two times
SECONDS = 5.0  # that all measure together
WAITS = 40.0  # seconds at most until all are ready
NUM_ENCODERS = 15


class Together(Callback):
    """Waits behind the warm-up until all are ready, and counts steps for some seconds."""

    def __init__(self, plan: Plan, folder: Path, name: str, number: int, of: int) -> None:
        self.plan = plan
        self.folder = folder
        self.name = name
        self.number = number
        self.of = of
        self.steps = 0
        self.times: list[float] = []  # at the start, and behind each block

    def on_train_batch_end(self, trainer: Trainer, *_: object, **__: object) -> None:
        if trainer.global_step < WARM_UP:
            return
        if trainer.global_step == WARM_UP:
            self._wait_for_all()
            return
        self.steps += 1
        if self.steps % BLOCK == 0:
            # Under `skip` the host is at most a step ahead of the device.
            self.times.append(time.perf_counter())
            trainer.should_stop = self.times[-1] - self.times[0] > self._limit()

    def _limit(self) -> float:
        return 0.2 if self.plan.smoke else SECONDS

    def _wait_for_all(self) -> None:
        self.plan.wait()
        (self.folder / f"{self.name}-{self.number}").touch()
        deadline = time.monotonic() + WAITS
        while len(list(self.folder.glob(f"{self.name}-*"))) < self.of:
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        self.times.append(time.perf_counter())


def take_part(plan: Plan, folder: Path, number: int, of: int) -> None:
    """One encoder: a line of JSON for each shape."""
    torch.set_num_threads(1)
    shapes = ((4, 32),) if plan.smoke else SHAPES
    for rows, length in shapes:
        size = "smoke" if plan.smoke else "mini"
        case = Case(size, rows, length, graphs=True, spike="skip", seed=number)
        together = Together(plan, folder, f"{rows}x{length}", number, of)
        fit = Fit(plan, case, 5_000, Clock(plan, keeps_losses=False))
        try:
            fit.run(5_000, None, together)
        except Exception as error:
            print(json.dumps({"shape": f"{rows} x {length}", "problem": told(error)}), flush=True)
            continue
        times = together.times
        block = statistics.median(later - earlier for earlier, later in pairwise(times))
        figures = {
            "shape": f"{rows} x {length}",
            "tokens_per_second": together.steps * rows * length / (times[-1] - times[0]),
            "milliseconds": 1000 * block / BLOCK,
            "usual": BLOCK * rows * length / block,
            "left_out": len(fit.module.spikes.left_out),
        }
        print(json.dumps(figures), flush=True)
        plan.free()


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """NVIDIA's multi-process service, where it starts; says whether it does."""
    program = shutil.which("nvidia-cuda-mps-control")
    if program is None:
        yield "there is no nvidia-cuda-mps-control"
        return
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = str(folder / "pipe")
    os.environ["CUDA_MPS_LOG_DIRECTORY"] = str(folder / "log")
    for name in ("pipe", "log"):
        (folder / name).mkdir()
    started = subprocess.run([program, "-d"], capture_output=True, text=True, timeout=20)
    said = " ".join((started.stdout + started.stderr).split())
    try:
        yield f"MPS, status {started.returncode} {said}"
    finally:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run([program], input="quit\n", text=True, timeout=20, capture_output=True)


def measure_side_by_side(plan: Plan) -> None:
    """Tokens a second of all together, under MPS."""
    of = 2 if plan.smoke else NUM_ENCODERS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with service(folder) as about:
            if not plan.smoke:
                # This process measures nothing: it came to the device before the service did.
                plan.free()
            plan.say(f"{of} encoders of 4 layers of 256, {about}.", "")
            lines = _lines_of_all(plan, folder, of)
        logs = sorted(folder.glob("log/*.log"))
        tails = [path.read_text(errors="replace").splitlines()[-3:] for path in logs]
    titles = ("encoders", "ms a step, median, least to most", "tokens/s together", "by medians")
    table(plan, "rows x length", *titles)
    by_shape: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if "problem" in line:
            plan.say(f"FAILED: {line['problem'][:300]}")
        else:
            by_shape.setdefault(line["shape"], []).append(line)
    for shape, answers in by_shape.items():
        total = sum(answer["tokens_per_second"] for answer in answers)
        times = [answer["milliseconds"] for answer in answers]
        usual = sum(answer["usual"] for answer in answers)
        plan.say(
            f"| {shape} | {len(answers)} | {min(times):.2f} to {max(times):.2f} | {total:,.0f} |"
            f" {usual:,.0f} |"
        )
        plan.record(f"side {shape}", encoders=len(answers), tokens_per_second=total, usual=usual)
    for tail in tails:
        plan.say("", *[line[:200] for line in tail])
    require(bool(by_shape), "no encoder was measured")


def _lines_of_all(plan: Plan, folder: Path, of: int) -> list[dict[str, Any]]:
    """What all say before the part's time is over."""
    begin = time.monotonic()
    processes = []
    for number in range(1, of + 1):
        words = [sys.executable, __file__, str(folder), str(number), str(of)]
        if plan.smoke:
            words.append("--smoke")
        output = (folder / f"output-{number}").open("w")
        variables = os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        processes.append(
            subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, env=variables)
        )
    while any(process.poll() is None for process in processes) and plan.seconds_left() > 3:
        time.sleep(0.1)
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
    plan.say(f"({time.monotonic() - begin:.0f} s)", "")
    lines = []
    for number in range(1, of + 1):
        text = (folder / f"output-{number}").read_text(errors="replace").splitlines()
        answers = [line for line in text if line.startswith('{"shape"')]
        lines += [json.loads(line) for line in answers]
        if not answers:
            plan.say(f"{number} said nothing but: {' / '.join(text[-4:])[-500:]}", "")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("number", type=int)
    parser.add_argument("of", type=int)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    device = torch.device("cpu" if arguments.smoke else "cuda")
    plan = Plan(device, arguments.smoke, time.monotonic() + 600)
    take_part(plan, arguments.folder, arguments.number, arguments.of)


if __name__ == "__main__":
    main()
