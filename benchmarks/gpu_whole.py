"""`trainer.compile=whole` beside the compiled layers: right, and fast; BERT-Large. Parts of gpu.py.

Steps go through the loop of `pretrain`, as in gpu_steps.py. Rows are of a corpus, and some are
padded: their padding is counted as tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpu_plan import Plan, require, table
from gpu_steps import Case, compare, measure_cases


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
    others: dict[str, dict[str, Any]] = {"again": {}, **usual, "another seed": {"seed": 2}}
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
    measure_cases(plan, cases)


def measure_large(plan: Plan) -> None:
    """BERT-Large by layers, at both lengths, then as a whole."""
    large = Case("large", 256, 128, spike="skip", dropout=0.1, vocab_size=30_522, muon=False)
    cases = [large, replace(large, rows=64, length=512), replace(large, compiled="whole")]
    measure_cases(plan, cases, blocks=2)
