"""Speeds: measured once a shape and machine and kept in the cache.

Other work of the machine changes what is measured a little: a speed that was measured on a busy
machine is kept for an hour, so that a restart need not time it again, and no longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from clozelab.files.digests import digest
from clozelab.planning.shapes import Request, Speed
from clozelab.runs.record import write_json
from clozelab.text.plain import PlainMapping, read_json
from clozelab.training.host import host_facts, import_torchmetrics_quickly

HOST = ("cpu", "cores", "gpus")  # what a speed depends on of a machine
TIMING_VERSION = 2  # raised when what is timed changes
BUSY_SECONDS = 3600.0  # for which a speed of a busy machine is kept


def measured_speeds(
    requests: Sequence[Request],
    cache_dir: Path,
    *,
    at_once: int,
    threads: int,
    measure: bool,
    measures_again: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> list[Speed | None]:
    """The speed of each request; None for one not in the cache where none is measured.

    A measured speed is kept as soon as it is there; BUSY_SECONDS long if the machine was busy.

    Args:
        at_once: processes to time side by side.
        threads: of each of them.
        measure: time what the cache does not have.
        measures_again: time all, whatever the cache has, and on a GPU with compiled steps.
        say: called with a line about each shape that is timed.
    """
    facts = host_facts()
    machine = {
        "version": TIMING_VERSION,
        **{key: facts["host"][key] for key in HOST},
        "torch": facts["versions"].get("torch"),
        "at_once": at_once,
        "threads": threads,
    }
    paths = []
    missing = {}  # each once, though several shapes may ask it
    speeds: dict[Path, Speed | None] = {}
    for request in requests:
        key = digest({"machine": machine, "request": dict(request.question)})[:16]
        path = cache_dir / "speeds" / f"{key}.json"
        paths.append(path)
        speeds[path] = None
        if not (measures_again and measure):
            speeds[path] = _load_speed(path)
        if speeds[path] is None:
            missing[path] = request
    num_busy = sum(speed.is_busy for speed in speeds.values() if speed)
    if num_busy:
        say(f"not timed again: {num_busy} speeds, measured within an hour on this busy machine")
    if missing and measure:
        import_torchmetrics_quickly()
        from clozelab.planning import timing  # lazy: it imports Lightning

        shapes = list(missing.values())
        answers = iter(timing.measure(shapes, at_once, threads, compiles=measures_again))
        for number, (path, request) in enumerate(missing.items(), 1):
            say(f"timing {number} of {len(missing)}: {request.title}")
            speed = next(answers)
            speeds[path] = speed
            _save_speed(path, speed, request, machine)
    return [speeds[path] for path in paths]


def _save_speed(path: Path, speed: Speed, request: Request, machine: PlainMapping) -> None:
    """Write a speed into the cache; one that is doubtful is asked for again the next time."""
    if speed.problem or speed.is_estimated:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {
        "tokens_per_second": speed.tokens_per_second,
        "is_uncompiled": speed.is_uncompiled,
        "is_busy": speed.is_busy,
        "machine": machine,
    }
    write_json(path, kept | {"request": dict(request.question)})


def _load_speed(path: Path) -> Speed | None:
    """A speed of the cache; None where there is none, a damaged one, or an old doubtful one."""
    try:
        kept = read_json(path)
        is_uncompiled = bool(kept.get("is_uncompiled"))
        is_busy = bool(kept.get("is_busy"))
        if is_busy and time.time() - path.stat().st_mtime > BUSY_SECONDS:
            return None
        speed = float(kept["tokens_per_second"])
        return Speed(speed, is_uncompiled=is_uncompiled, is_busy=is_busy)
    except (OSError, ValueError, KeyError, TypeError):
        return None
