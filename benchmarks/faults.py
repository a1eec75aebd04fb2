"""What a run survives: faults are put into real trainings, and each must end as a table says.

`make faults` (eight minutes at most) or `make faults LONG=1` (each fault as often as
docs/reliability.md says), on Linux. It prints the table and writes it into docs/reliability.md.
`--only PART...` tries some parts and writes nothing.

A run is killed or stopped several times on its way. That counts where its end is that of an
undisturbed run, bit for
bit: curve, encoder, optimizer state and the digest of its batches. Parts run side by side, one for
each core.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

# These two make the helpers of the tests importable.
from faults_lab import Lab, Row, Trial, at_call, changed, die, end, expect, fork, is_close
from interleaved import ROOT, commit, machine

# isort: split
import torch
from tests.forked import gone
from tests.runs.test_pretrain_run import state, tensors, write_text
from tests.runs.test_stops import children

from clozelab import cli
from clozelab.assembly import corpora
from clozelab.datamodules.corpus import CorpusDataModule
from clozelab.modules import pretraining
from clozelab.modules.pretraining import PretrainingModule
from clozelab.training import checkpoints
from clozelab.training.checkpoints import LAST, PREVIOUS, AtomicCheckpointIO, load_file
from clozelab.training.stopping import SIGNALS, TERMINATED

PAGE = ROOT / "docs" / "reliability.md"
# one for the short form, one for the long
TABLE = r"(<!-- make faults{form} -->\n).*?(<!-- end -->)"
HOSTILE, OUTSIDE = "faults_hostile", "faults_outside"  # modules beside this one
KILLS_A_RUN = 5
NO_DROPOUT: dict[str, Any] = {
    "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0,
}
SAME = "goes on to the same bits"


# Faults


def die_in_a_save(number: int, draw: random.Random) -> None:
    """SIGKILL in the number-th save: amid its bytes, before its checksum, or around a rename."""
    share = draw.random()
    moments = ["bytes", "bytes", "checksum", "first rename", "last rename", "link"]
    moment = draw.choice(moments)

    def torn(content: Any, stream: Any) -> None:
        whole = BytesIO()
        torch.serialization.save(content, whole)
        stream.write(whole.getvalue()[: int(share * whole.tell())])
        stream.flush()
        die()

    def arm() -> None:
        if moment == "bytes":
            library: Any = torch
            library.save = torn
        elif moment == "checksum":
            at_call(os, "fsync", 0, die)
        else:
            method = "hardlink_to" if moment == "link" else "replace"
            at_call(Path, method, int(moment == "last rename"), die)

    at_call(checkpoints, "save_file", number, arm)


def kills_in_training(lab: Lab) -> Iterator[Row]:
    """One in five in the first half second, else after a random number of lines of the curve."""
    draw = random.Random("training")

    def kill(trial: Trial) -> bool:
        pid, is_start = trial.start(), draw.random() < 0.2
        is_there = is_start or trial.reaches(pid, draw.uniform(1, 120))
        time.sleep(draw.uniform(0.0, 0.5 if is_start else 0.02))
        os.kill(pid, signal.SIGKILL)
        return end(pid) == -signal.SIGKILL and is_there

    yield Row("kill -9 in training", SAME, *killed(lab, "killed", lab.count(15, 100), kill))


def kills_in_saves(lab: Lab) -> Iterator[Row]:
    draw = random.Random("save")

    def kill(trial: Trial) -> bool:
        return trial.train(partial(die_in_a_save, draw.randint(0, 2), draw)) == -signal.SIGKILL

    yield Row("kill -9 inside a save", SAME, *killed(lab, "saving", lab.count(10, 30), kill))


def killed(lab: Lab, name: str, wanted: int, kill: Callable[[Trial], bool]) -> tuple[int, int]:
    """(kills, those of runs that ended as the undisturbed one); the run then goes on to its end."""
    trials = passed = number = 0
    while trials < wanted:
        trial, kills, number = lab.trial(f"{name}-{number}"), 0, number + 1
        while kills < min(KILLS_A_RUN, wanted - trials) and kill(trial):
            kills += 1
        trial.train()
        trials, passed = trials + kills, passed + kills * lab.is_whole(trial)
        shutil.rmtree(trial.run_dir)
    return trials, passed


def prepared(config: Any) -> int:
    """Prepare a pre-training's corpus; returns the exit status."""
    return int(corpora.prepared_corpus(config) is None)


def kills_in_prepare(lab: Lab) -> Iterator[Row]:
    """Corpora of a large text, killed while they are prepared, are compared by their bytes."""
    draw, wanted, trials, passed = random.Random("prepare"), lab.count(10, 30), 0, 0
    write_text(lab.folder / "large", documents=8000)

    def begun(name: str) -> int:
        places = {"data_dir": str(lab.folder / "large"), "cache_dir": str(lab.folder / name)}
        config = changed(lab.single, places).config
        work = partial(cli._with_error_report, lambda: prepared(config), "prepare")
        return fork(work, lab.folder / f"{name}.said")

    def contents(name: str) -> dict[str, bytes]:
        found = sorted((lab.folder / name / "corpora").rglob("*"))
        return {
            str(one.relative_to(lab.folder / name)): one.read_bytes()
            for one in found
            if one.is_file()
        }

    began = time.monotonic()
    expect(end(begun("prepared")) == 0, (lab.folder / "prepared.said").read_text())
    seconds, expected = time.monotonic() - began, contents("prepared")
    while trials < wanted:
        name, kills = f"preparing-{trials}", 0
        for _ in range(min(KILLS_A_RUN, wanted - trials)):
            pid = begun(name)
            time.sleep(draw.uniform(0.0, seconds))
            os.kill(pid, signal.SIGKILL)
            kills += end(pid) == -signal.SIGKILL
        is_whole = end(begun(name)) == 0 and contents(name) == expected
        trials, passed = trials + kills, passed + kills * is_whole
    yield Row("kill -9 in prepare", "is prepared again to the same bytes", trials, passed)


def stops(lab: Lab) -> Iterator[Row]:
    """Each signal in training, in a validation and in a save of one run, which then goes on."""
    draw, places = random.Random("stops"), {"training": 0, "validation": 0, "a save": 0}
    rounds = lab.count(1, 20)
    for number, repeat in itertools.product(SIGNALS, range(rounds)):
        trial = lab.trial(f"stopped-{number}-{repeat}")
        moments = [
            (PretrainingModule, "training_step", draw.randint(1, 12)),
            (PretrainingModule, "validation_step", draw.randint(0, 2)),
            (checkpoints, "save_file", 0),
        ]
        ends = [trial.train(partial(at_call, *moment, partial(send, number))) for moment in moments]
        is_whole = trial.train() == 0 and lab.is_whole(trial)
        for place, status in zip(places, ends, strict=True):
            places[place] += is_whole and status == 128 + number
    names = ", ".join(signal.Signals(one).name for one in SIGNALS)
    for place, passed in places.items():
        must = f"saves, ends with 128 + n, {SAME}"
        yield Row(f"{names} in {place}", must, rounds * len(SIGNALS), passed)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def controls(lab: Lab) -> Iterator[Row]:
    """What a restore leaves out on purpose: a comparison has to notice it."""

    module: Any = pretraining
    data: Any = CorpusDataModule
    checkpoint_io: Any = AtomicCheckpointIO

    def no_generator() -> None:
        module.seed_forward = lambda *_: None

    def no_position() -> None:
        stream = data.train_stream
        data.train_stream = lambda self, _, *place: stream(self, 0, *place)

    def no_schedule() -> None:
        load = checkpoint_io.load_checkpoint
        checkpoint_io.load_checkpoint = lambda *args, **more: (
            load(*args, **more) | {"lr_schedulers": []}
        )

    before = lab.stopped("control", 17)
    same: list[bool] = []
    for plant in (lambda: None, no_generator, no_position, no_schedule):
        trial = lab.trial(f"control-{len(same)}")
        shutil.copytree(before.run_dir, trial.run_dir)
        expect(trial.train(plant) == 0, trial.said)
        same.append(lab.is_whole(trial))
    done = "control: a run goes on, and nothing is left out"
    yield Row(done, "the comparison says: the same", 1, int(same[0]))
    for name, is_same_run in zip(("random numbers", "sampler", "schedule"), same[1:], strict=True):
        done = f"control: the restore leaves out the {name}"
        yield Row(done, "the comparison notices", 1, int(not is_same_run))


def damaged_checkpoints(lab: Lab) -> Iterator[Row]:
    draw, rounds = random.Random("damage"), lab.count(1, 10)
    passed = {"cut": 0, "emptied": 0, "one bit flipped": 0}
    for number in range(rounds):
        trial, named = lab.stopped(f"damaged-{number}", 12), []
        for damage, stop in ((halve, 22), (empty, 32), (partial(flip_a_bit, draw=draw), None)):
            newest = trial.run_dir / "checkpoints" / LAST
            damage(newest)
            status = trial.train(stop_after_step=stop)
            is_named = (
                str(newest) in trial.said and "passed over" in trial.said and PREVIOUS in trial.said
            )
            named.append(is_named and status == (TERMINATED if stop else 0))
        for name, is_named in zip(passed, named, strict=True):
            passed[name] += is_named and lab.is_whole(trial)
    for name, count in passed.items():
        yield Row(f"newest checkpoint {name}", f"is named and passed over, {SAME}", rounds, count)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip_a_bit(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


@contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[str], None]]:
    """A file system of its own for this process and its forks; yields remount(options)."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, new_users, remount, read_only = 0x20000, 0x10000000, 0x20, 0x1
    user = os.geteuid()
    if libc.unshare(new_mounts | (new_users if user else 0)):
        raise OSError(ctypes.get_errno(), "this machine lets nobody mount")
    if user:
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    folder.mkdir()
    # recursively private: nobody else sees what follows
    libc.mount(None, b"/", None, 0x4000 | 0x40000, None)

    def mount(options: str, flags: int = 0) -> None:
        flags |= read_only if options == "ro" else 0
        data = options.replace("ro", "").encode() or None
        if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, data):
            raise OSError(ctypes.get_errno(), f"mount -o {options} {folder}")

    mount("size=64m")
    try:
        yield lambda options: mount(options, remount)
    finally:
        libc.umount2(os.fsencode(folder), 2)


def disks(lab: Lab) -> Iterator[Row]:
    """A run stops; its disk has no room for the next save, from none at all to a tenth too little;
    then room is made.

    At each size twice: the second time the disk says that it has room, and fails while it is
    written to.
    """
    full, locked = "disk full, at ten sizes, before a write and in it", "disk read-only"
    must = "one sentence with the path, what was saved stays"

    def liar() -> None:
        module: Any = checkpoints
        library: Any = shutil
        module.shutil.disk_usage = lambda _: library._ntuple_diskusage(2**40, 0, 2**40)

    try:
        with small_disk(lab.folder / "disk") as remount:
            trial = lab.stopped("small", 12, place="disk")
            needed = (trial.run_dir / "checkpoints" / LAST).stat().st_size
            used = shutil.disk_usage(lab.folder / "disk").used
            ends = []
            for tenth, plant in itertools.product(range(10), (lambda: None, liar)):
                remount(f"size={used + needed * tenth // 10}")
                status, said = trial.train(plant), trial.said
                is_said = (
                    f"{trial.run_dir}" in said
                    and "No space left" in said
                    and "Traceback" not in said
                )
                kept = load_file(trial.run_dir / "checkpoints" / LAST)["global_step"]
                is_clean = not [*(trial.run_dir / "checkpoints").glob(".*")]
                ends.append(status == 1 and is_said and kept == 12 and is_clean)
            remount("size=64m")
            remount("ro")
            status, said = trial.train(), trial.said
            is_told = (
                status == 1 and "read-only file system" in said.lower() and "Traceback" not in said
            )
            remount("size=64m")
            is_whole = trial.train() == 0 and lab.is_whole(trial)
        yield Row(full, f"{must}, {SAME}", len(ends), sum(ends) * is_whole)
        yield Row(locked, f"{must}, {SAME}", 1, int(is_told and is_whole))
    except OSError as error:
        yield Row(f"{full}; {locked} (not tried: {error})", must, 0, 0)


def ranks(lab: Lab) -> Iterator[Row]:
    """Two processes with gloo. The rank that goes down takes the other along."""
    whole, passed, trials = lab.trial("two-ranks", is_double=True), 0, lab.count(2, 10)
    expect(whole.train() == 0, whole.said)
    for number in range(trials):
        trial = lab.trial(f"rank-killed-{number}", is_double=True)
        pid = trial.start()
        expect(trial.reaches(pid, 60), trial.said)
        second = children(pid)
        os.kill(second[0] if number % 2 else pid, signal.SIGKILL)
        is_ended = end(pid) != 0 and gone(second, 20.0)
        passed += is_ended and trial.train() == 0 and lab.is_whole(trial, "two-ranks")
    yield Row("one of two ranks killed", f"the other ends too, {SAME}", trials, passed)

    still = lab.trial("no-dropout", **NO_DROPOUT)
    expect(still.train() == 0, still.said)
    ends = []
    for is_double, stop in ((False, 13), (True, 27), (False, None)):
        trial = lab.trial("elastic", is_double=is_double, **NO_DROPOUT)
        ends.append(trial.train(stop_after_step=stop))
    is_near = ends == [TERMINATED, TERMINATED, 0] and is_close(trial.run_dir, still.run_dir)
    must = "each instance once, losses and weights within 1e-5"
    yield Row("1, then 2, then 1 ranks", must, 1, int(is_near))


def workers(lab: Lab) -> Iterator[Row]:
    passed, trials = 0, lab.count(2, 10)
    for number in range(trials):
        one_worker: dict[str, Any] = {"trainer.num_workers": 1}
        trial = lab.trial(f"worker-{number}", **one_worker)
        pid = trial.start()
        expect(trial.reaches(pid, 40 + 10 * number), trial.said)
        for one in children(pid):
            os.kill(one, signal.SIGKILL)
        passed += end(pid) != 0 and trial.train() == 0 and lab.is_whole(trial)
    yield Row("data worker killed", f"the run ends with an error, {SAME}", trials, passed)


def gradients(lab: Lab) -> Iterator[Row]:
    """A wrong gradient in one step: its update is left out, or the run ends unsaved."""
    passed = {"stop": 0, "skip": 0}
    factors = (float("nan"), float("inf"), 1000.0)
    for number, factor in enumerate(factors):
        spoil = partial(multiply_gradient, 27, factor)
        trial = lab.trial(f"gradient-{number}-stop")
        status = trial.train(spoil, spike="stop")
        passed["stop"] += (
            status == 1 and "step 27" in trial.said and trial.train() == 0 and lab.is_whole(trial)
        )
        trial = lab.trial(f"gradient-{number}-skip")
        status = trial.train(spoil, spike="skip")
        is_said = status == 0 and state(trial.run_dir)["facts"].get("steps_left_out") == [27]
        passed["skip"] += is_said and all(
            bool(one.isfinite().all()) for one in tensors(trial.run_dir).values()
        )
    what = "gradient of one step NaN, Inf, x1000"
    must = f"the run ends, names the step, saves none of it, {SAME}"
    yield Row(f"{what}; spike=stop", must, 3, passed["stop"])
    must = "that update alone is left out and recorded, and every weight is a number"
    yield Row(f"{what}; spike=skip", must, 3, passed["skip"])


def multiply_gradient(step: int, factor: float) -> None:
    original = PretrainingModule.clip_gradient_norm

    def clip(self: Any) -> Any:
        for one in self.parameters():
            if one.grad is not None and self.trainer.global_step + 1 == step:
                one.grad.mul_(factor)
        return original(self)

    module: Any = PretrainingModule
    module.clip_gradient_norm = clip


def launches(lab: Lab) -> Iterator[Row]:
    passed, trials = 0, lab.count(3, 20)
    for number in range(trials):
        trial = lab.trial(f"twice-{number}")
        both = [trial.start(), trial.start()]
        passed += sorted(map(end, both)) == [0, 75] and lab.is_whole(trial)
    must = "one trains, the other says so and ends with 75"
    yield Row("two launches on one folder at once", must, trials, passed)


def shards(lab: Lab) -> Iterator[Row]:
    """A corpus of wrong sizes is prepared again; one whose bytes are wrong is refused."""
    cache, rounds = lab.folder / "shards", lab.count(1, 5)
    passed = {"flipped": 0, "cut": 0, "missing": 0}
    shutil.copytree(lab.folder / "cache", cache)
    (folder,) = (cache / "corpora").glob("[!.]*/")
    files = sorted(path.relative_to(folder) for path in (folder / "train").glob("*.bin"))
    flip = partial(flip_a_bit, draw=random.Random("shards"))
    damages: dict[str, Callable[[Path], object]] = dict(
        zip(passed, (flip, halve, Path.unlink), strict=True)
    )
    for (kind, damage), file, number in itertools.product(damages.items(), files, range(rounds)):
        whole = (folder / file).read_bytes()
        (folder / file).chmod(0o644)
        damage(folder / file)
        trial = lab.trial(f"shard-{kind}-{file.stem}-{number}", cache_dir=str(cache))
        status, said = trial.train(), trial.said
        is_right = (
            lab.is_whole(trial) if status == 0 else not (trial.run_dir / "metrics.csv").exists()
        )
        passed[kind] += file.name in said and is_right
        if status:
            (folder / file).write_bytes(whole)
    must = "named before the first step; refused, or prepared again to the same bits"
    for kind, count in passed.items():
        yield Row(f"a corpus file {kind}", must, rounds * len(files), count)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def hostile(lab: Lab) -> Iterator[Row]:
    """Configurations, pickles, archives and paths of others; and a look at the network."""
    place = lab.folder / "hostile"
    place.mkdir()
    yield from itertools.starmap(Row, importlib.import_module(HOSTILE).run(lab.is_long, place))


def outside(lab: Lab, part: str) -> Iterator[Row]:
    """What a run waits for outside of itself."""
    yield from getattr(importlib.import_module(OUTSIDE), part)(lab)


PARTS: dict[str, Callable[[Lab], Iterator[Row]]] = {
    "training": kills_in_training,
    "saves": kills_in_saves,
    "prepare": kills_in_prepare,
    "stops": stops,
    "controls": controls,
    "checkpoints": damaged_checkpoints,
    "disks": disks,
    "ranks": ranks,
    "workers": workers,
    "gradients": gradients,
    "launches": launches,
    "shards": shards,
    "trackers": partial(outside, part="trackers"),
    "silence": partial(outside, part="silence"),
    "slurm": partial(outside, part="slurm"),
    "hostile": hostile,
}


# The table


def try_all(lab: Lab, names: Sequence[str]) -> list[Row]:
    """Each part in a fork of its own, as many at once as there are cores."""
    undisturbed = lab.trial("whole")
    expect(undisturbed.train() == 0, undisturbed.said)
    num_cores = max(1, len(os.sched_getaffinity(0)))
    waiting = sorted(names, key=lambda name: name != "hostile")  # the longest first
    running: dict[int, tuple[str, float]] = {}
    rows: dict[str, list[Row]] = {}
    while waiting or running:
        while waiting and len(running) < num_cores:
            name = waiting.pop(0)
            work = partial(write_rows, PARTS[name], lab, lab.folder / f"{name}.json")
            running[fork(work, lab.folder / f"{name}.log")] = (name, time.monotonic())
        pid, _ = os.wait()
        name, began = running.pop(pid)
        rows[name] = read_rows(lab.folder, name)
        counts = ", ".join(f"{row.passed} of {row.trials}" for row in rows[name])
        print(f"{name}: {counts} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)
    return [*itertools.chain.from_iterable(rows[name] for name in names)]


def read_rows(folder: Path, name: str) -> list[Row]:
    """What a part has written, or one row that says how it failed."""
    result = folder / f"{name}.json"
    if result.exists():
        return [Row(*cells) for cells in json.loads(result.read_text())]
    log = folder / f"{name}.log"
    return [Row(f"{name}: it failed itself", log.read_text()[-300:], 1, 0)]


def write_rows(part: Callable[[Lab], Iterator[Row]], lab: Lab, path: Path) -> int:
    path.write_text(json.dumps(list(part(lab))))
    return 0


def table(found: Sequence[Row], seconds: float, is_long: bool) -> str:
    form = "long" if is_long else "short"
    about = (
        f"{date.today()} · commit {commit()} · {machine()}, {os.cpu_count()} cores · torch"
        f" {torch.__version__}"
    )
    trials, passed = sum(row.trials for row in found), sum(row.passed for row in found)
    lines = [f"{about} · {form} form, {seconds:.0f} s · {passed} of {trials} as they must be", ""]
    lines += ["| done | must | trials | passed | noticed after |", "|---|---|---|---|---|"]
    lines += [
        f"| {row.done} | {row.must} | {row.trials} | {row.passed} | {row.noticed} |"
        for row in found
    ]
    return "\n".join(lines) + "\n"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--long", action="store_true", help="each fault as often as docs/reliability.md promises"
    )
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, help="these parts alone; nothing is written"
    )
    said = parser.parse_args(words)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="clozelab-faults-") as place:
        lab = Lab(Path(place), said.long)
        has_hostile = (ROOT / "benchmarks" / f"{HOSTILE}.py").exists()
        found = try_all(
            lab, said.only or [name for name in PARTS if name != "hostile" or has_hostile]
        )
    text = table(found, time.monotonic() - began, said.long)
    print(text)
    if not said.only:
        own = re.compile(TABLE.format(form=" LONG=1" if said.long else ""), re.DOTALL)
        PAGE.write_text(own.sub(lambda match: f"{match[1]}\n{text}\n{match[2]}", PAGE.read_text()))
    return int(any(row.passed < row.trials for row in found))


if __name__ == "__main__":
    sys.exit(main())
