"""Peak memory of a pre-training step beside transformers: BERT-Base, micro-batch 32 x 128.

Each side is a process of its own that takes a few steps and reports the largest resident size it
ever had (ru_maxrss), and that of the same process before its model was built, so that what the
libraries take can be told apart.
"""

from __future__ import annotations

import json
import resource
from functools import partial

from encoders import SHAPES, size_name
from interleaved import Side, parser, race, report, say, start_worker
from pretraining import SEQ_LENGTH, clozelab_step, transformers_step

TITLE = "Peak memory of a pre-training step"
ROWS = 32
SIDES = ("clozelab", "fp32", "bf16")
HEADINGS = ("size", "micro-batch", "side", "peak GiB", "of it before the model")


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def work(side: str, size: str, rows: int, steps: int, threads: int) -> None:
    """The process of one side: steps, then one JSON line."""
    start_worker(side == "clozelab", threads)
    if side == "clozelab":
        # Libraries come before the model, as on the other side.
        import clozelab.modules.pretraining  # noqa: F401
    else:
        import transformers.models.bert.modeling_bert  # noqa: F401
    before = peak_gib()
    step = (
        clozelab_step(size, rows)
        if side == "clozelab"
        else transformers_step(size, side == "bf16", rows)
    )
    for _ in range(steps):
        step()
    print(json.dumps({"peak": peak_gib(), "before": before}), flush=True)


def compare(size: str = "base", rows: int = ROWS, threads: int = 1, steps: int = 2) -> list[str]:
    """The table; one process after the other, so that they do not compete for memory."""
    found: dict[str, Side] = {}
    for side in SIDES:
        options = ["--size", size, "--rows", rows, "--steps", steps]
        found |= race(__file__, {side: side}, options, threads, rounds=0, seconds=0.0)
    titles = [*HEADINGS, "share of transformers fp32"]
    lines = say(f"| {' | '.join(titles)} |", "|---" * len(titles) + "|")
    for side, process in found.items():
        values = process.hello
        name = side if side == "clozelab" else f"transformers {side}"
        share = values["peak"] / found["fp32"].hello["peak"]
        case = f"{size_name(size)} | {rows} x {SEQ_LENGTH} | {name}"
        gib = f"{values['peak']:.2f} | {values['before']:.2f}"
        lines += say(f"| {case} | {gib} | **{share:.2f}** |")
    return lines


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--size", default="base", choices=list(SHAPES))
    options.add_argument("--rows", type=int, default=ROWS)
    options.add_argument("--steps", type=int, default=2)
    arguments = options.parse_args()
    if arguments.worker:
        return work(
            arguments.worker, arguments.size, arguments.rows, arguments.steps, arguments.threads
        )
    part = partial(compare, arguments.size, arguments.rows, arguments.threads, arguments.steps)
    report("Benchmarks", arguments.threads, {TITLE: part}, arguments.output)
    return None


if __name__ == "__main__":
    main()
