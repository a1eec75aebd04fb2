"""`clozelab doctor`: what this machine can do; with an experiment: what is wrong before anything is trained."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from clozelab.planning.steps import SWEEPS
from clozelab.terminal import Words, make_console, parse, wants_help
from clozelab.verdicts.experiment import find_experiment

HELP = """clozelab doctor [threads=N]
clozelab doctor EXPERIMENT [scale=NAME] [name=value ...]
clozelab doctor pretrain|finetune [--config-dir FOLDER] [--config-name NAME] [name=value ...]

Without an experiment: what this machine can do (matrix products, memory), and which precision, kernels and threads are
taken on it.

With one, the pre-flight: every arm and task of the experiment is looked at before anything is trained. Left-to-right
sees no future, masked models not their labels, neighbours in a batch do not leak; masks and pairs are what the recipe
says; duplicates; labels; texts of the tasks in the corpus; vocabulary; disk and time. Takes the overrides of
`clozelab reproduce`, which runs it before its first sweep (--skip-doctor leaves it out).

With a stage, the same of what `clozelab pretrain` or `clozelab finetune` would start with these words, one run or a
sweep. A sweep (-m) of more than three jobs runs it by itself; CLOZELAB_SKIP_DOCTOR=1 leaves it out.

Exit status: 0, or 1 where a finding is an error."""


def main(words: Sequence[str]) -> int:
    """Print the findings; returns the exit status."""
    if wants_help(words):
        print(HELP)
        return 0
    words = [word for word in words if word not in ("-m", "--multirun")]  # as it is said of a sweep
    options = ("config-dir", "config-name") if set(SWEEPS) & set(words) else ()
    said = parse("doctor", words, names=(0, 1), options=options, takes_overrides=True)
    from clozelab.training.host import tune_allocator

    is_tuned = tune_allocator()  # before torch is imported
    return pre_flight(said) if said.names else machine(said.overrides, is_tuned)


def machine(overrides: Sequence[str], allocator_tuned: bool) -> int:
    """The machine alone."""
    wrong = [word for word in overrides if not word.startswith("threads=")]
    threads = [word.partition("=")[2] for word in overrides if word.startswith("threads=")]
    if wrong or not all(text.isdecimal() and int(text) for text in threads):
        raise ValueError(f"doctor without an experiment takes threads=N only, not {' '.join(wrong or overrides)}")
    from clozelab.checks.machine import look_at_machine, print_facts
    from clozelab.training.host import host_facts, usable_cores

    chosen = int(threads[-1]) if threads else None
    facts = list(look_at_machine(cores=usable_cores(), allocator_tuned=allocator_tuned, threads=chosen))
    host = host_facts()
    print_facts(facts, {"processor": host["host"]["cpu"], **host["versions"]}, make_console())
    return 0


def pre_flight(said: Words) -> int:
    """Everything that can be known to be wrong with an experiment, or with one stage's sweep."""
    started = time.perf_counter()
    from clozelab.training.host import import_torchmetrics_quickly

    import_torchmetrics_quickly()  # before lightning is imported
    from clozelab.checks.run import examine, print_findings
    from clozelab.checks.subject import ERROR
    from clozelab.stages.subject import gather, gather_sweep

    name, logger = said.names[0], logging.getLogger("clozelab")
    level = logger.level
    logger.setLevel(logging.ERROR)  # what matters comes as a finding
    try:
        if name in SWEEPS:
            folder = Path(said.options["config-dir"]) if "config-dir" in said.options else None
            subject = gather_sweep(name, folder, said.options.get("config-name", name), said.overrides)
        else:
            subject = gather(find_experiment(name), said.overrides)
        findings = list(examine(subject))
    finally:
        logger.setLevel(level)
    console = make_console()
    console.print(f"[bold]Pre-flight of {subject.name}[/]", highlight=False)
    print_findings(findings, console)
    console.print(f"{time.perf_counter() - started:.0f} s", style="dim", highlight=False)
    return int(any(one.level == ERROR for one in findings))
