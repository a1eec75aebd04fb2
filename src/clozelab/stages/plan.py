"""`clozelab plan EXPERIMENT`: parameters, FLOPs, jobs, time, disk and what the seeds can show, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from clozelab.launch.plan import make_steps, runs_root
from clozelab.terminal import make_console, make_table, parse, say, wants_help
from clozelab.verdicts.experiment import find_experiment, load_experiment

HELP = """clozelab plan EXPERIMENT [scale=NAME] [name=value ...] [budget=TIME [matched_by=QUANTITY]] [--no-measure]
clozelab plan EXPERIMENT ... --dry-run

Counts parameters and FLOPs, measures tokens per second once a shape (a few steps on made-up text, kept in the cache),
and says how many jobs there are and how many of them are left, how long they take, what they leave on disk, and the
smallest difference that the seeds can be expected to show. Overrides are those of `clozelab reproduce`.

  budget=2h        for the whole experiment: what each arm can afford, and the steps_factor for it, a line of
                   arm/NAME.yaml or pretrain.arm=NAME pretrain.steps_factor=... (with matched_by in paper.yaml)
  matched_by=      what arms get equal shares of: steps, tokens, flops or time (default: each in turn)
  --no-measure     only speeds that are in the cache, else what finished runs took here (*)
  --dry-run        list every job with its state, as `clozelab reproduce --dry-run` does

A shape whose steps would take more than 30 s here is not timed but reckoned from its FLOPs (?).

FLOPs are 3 (L (24 H^2 + 4 S H) + f (2 H^2 + 2 H V)) a token (forward once, backward twice, matrix products only; f the
share of predicted positions); beside them ELECTRA's convention, which other papers quote: backward counted once, the
embedding look-up as a product, every step at the longest row, the room for predictions (20 of 128 positions)."""


def main(words: Sequence[str]) -> int:
    """Print the plan; returns the exit status."""
    if wants_help(words, also_without_words=True):
        print(HELP)
        return 0
    said = parse("plan", words, names=(1, 1), keys=("budget", "matched_by"), flags=("no-measure", "dry-run"),
                 takes_overrides=True)  # fmt: skip
    from clozelab.planning.costing import check_matching, parse_budget

    budget = parse_budget(said.values["budget"]) if "budget" in said.values else None
    if matched_by := said.values.get("matched_by"):
        check_matching(matched_by)
        if budget is None:
            raise ValueError(f"matched_by={matched_by} divides a budget among the arms: say budget=TIME too")
    folder = find_experiment(said.names[0])
    steps = make_steps(folder, said.overrides)
    if "dry-run" in said.flags:
        from clozelab.stages.reproduce import dry_run

        return dry_run(steps)
    from clozelab.launch.sweep import compose
    from clozelab.planning import costing, wording
    from clozelab.runs.find import collect, find
    from clozelab.verdicts import judging as detectable  # torch and scipy: not for --help and mistakes

    sweep = next(step for step in steps if step.is_sweep)
    cache_dir = Path(str(compose(sweep.config_name, sweep.overrides, folder=folder, sweep=True).cache_dir))
    console, progress = make_console(), Console(stderr=True)
    root = runs_root(folder, sweep.overrides, sweep.config_name)[0]
    done, runs = collect(root), find(root)
    found = costing.analyse(steps, cache_dir, done)
    for headings, rows in wording.size_tables(found):
        console.print(make_table(headings, rows, console.width))
    for line in wording.totals(found):
        say(console, line)
    measure = "no-measure" not in said.flags
    found = costing.with_speeds(found, cache_dir, measure=measure, say=lambda line: say(progress, line, style="dim"))
    for headings, rows in wording.time_tables(found, done):
        console.print(make_table(headings, rows, console.width))
    for line in wording.sums(found):
        say(console, line)
    shares = {} if budget is None else costing.affordable(found, budget, matched_by)
    for name, part in shares.items():
        console.print(make_table(*wording.share_table(name, part), console.width))
    say(console, detectable.describe(load_experiment(folder), runs, found.num_seeds))
    for line in wording.warnings(found, shares):
        say(console, line, style="yellow")
    return 0
