"""`trainer.compile=whole` beside the compiled layers: right, and fast; BERT-Large. Parts of gpu.py.

Steps go through the loop of `pretrain`, as in gpu_steps.py. Rows are of a corpus, and some are
padded: their padding is counted as tokens.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from clozelab.models.cost import training_flops_per_token
from gpu_plan import Plan, require, table
from gpu_steps import BLOCK, WARM_UP, Case, Clock, Fit, compare, told

BLOCKS = 3
LEAST_SECONDS = 20.0  # what the shortest case takes
PREDICTED_SHARE = 0.15


def check_whole(plan: Plan) -> None:
    """30 steps as written, compiled by layers and as a whole, without dropout, which draws.

    Compiled fp32 is not the same to the bit: sums come in another order.
    """
    size, rows, length = ("smoke", 4, 32) if plan.smoke else ("mini", 64, 128)
    steps = 4 if plan.smoke else 30
    usual = {"layers": {"compiled": "layers"}, "whole": {"compiled": "whole"}}
    titles = ("last loss", "loss differs by", "weights differ by", "wanted", "steps left out")
    table(plan, f"{steps} steps", *titles)
    as_written = Case(size, rows, length, compiled="", bf16=False, muon=False)
    others = {"again": {}, **usual, "another seed": {"seed": 2}}
    wrong = compare(plan, as_written, others, steps, 1e-4)
    in_bf16 = replace(as_written, bf16=True)
    others = {"again": {}, **usual, "graphs, whole": {"compiled": "whole"}}
    wrong += compare(plan, in_bf16, others, steps, 1e-2)
    require(not wrong, "; ".join(wrong))


def measure_whole(plan: Plan) -> None:
    """BERT-Base by layers and as a whole, without and with graphs."""
    base = Case("base", 256, 128, spike="skip", dropout=0.1, vocab_size=30_522, muon=False)
    whole = replace(base, compiled="whole")
    cases = [base, whole, replace(base, graphs=True), replace(whole, graphs=True)]
    cases += [replace(whole, rows=64, length=512), replace(base, rows=64, length=512)]
    _measure(plan, cases)


def measure_large(plan: Plan) -> None:
    """BERT-Large by layers, at both lengths, then as a whole."""
    large = Case("large", 256, 128, spike="skip", dropout=0.1, vocab_size=30_522, muon=False)
    cases = [large, replace(large, rows=64, length=512), replace(large, compiled="whole")]
    _measure(plan, cases, blocks=2)


def _measure(plan: Plan, cases: Sequence[Case], blocks: int = BLOCKS) -> None:
    if plan.smoke:
        small = {"size": "smoke", "rows": 4, "length": 32, "vocab_size": 8192}
        cases = [replace(case, **small) for case in cases[:2]]
    titles = ("case", "graphs", "ms a step, median (min-max)", "tokens/s", "share of the ceiling")
    table(plan, *titles, "peak GiB", "seconds before the blocks", "seconds in all")
    wrong = []
    for case in cases:
        name = f"{case.name} | {case.graphs}"
        if plan.seconds_left() < LEAST_SECONDS:
            plan.say(f"| {name} | left out, no time |")
            continue
        try:
            _measure_case(plan, case, name, 1 if plan.smoke else blocks)
        except Exception as error:
            plan.say(f"| {name} | FAILED: {told(error)} |")
            wrong.append(name)
        plan.free()
    require(not wrong, "; ".join(wrong))


def _measure_case(plan: Plan, case: Case, name: str, blocks: int) -> None:
    start = time.perf_counter()
    clock = Clock(plan)
    fit = Fit(plan, case, 1000, clock).run(WARM_UP + blocks * BLOCK)
    seconds = time.perf_counter() - start
    milliseconds = [1000 * each for each in clock.seconds]
    median = statistics.median(milliseconds)
    tokens = 1000 * case.rows * case.length / median
    predicted = PREDICTED_SHARE * (case.length - 3) / case.length
    config = fit.module.model.encoder.config
    share = tokens * training_flops_per_token(config, case.length, predicted) / plan.ceiling
    before = seconds - BLOCK * sum(clock.seconds)
    spread = f"{median:.2f} ({min(milliseconds):.2f}-{max(milliseconds):.2f})"
    plan.say(
        f"| {name} | {spread} | {tokens:,.0f} | {share:.1%} | {plan.peak_gib()} | {before:.0f} |"
        f" {seconds:.0f} |"
    )
    plan.record(name, milliseconds=median, share=share, tokens=tokens, before=before)
