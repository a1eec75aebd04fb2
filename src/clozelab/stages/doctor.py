"""`clozelab doctor`: what this machine can do, or what is wrong with an experiment."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clozelab.launch.experiments import SWEEPS
from clozelab.planning.steps import step_of
from clozelab.results.experiment import find_experiment
from clozelab.terminal import Grammar, ParsedArgs, parse, quiet_log, say

if TYPE_CHECKING:  # it imports torch: not for --help and mistakes
    from clozelab.checks.subject import Subject

HELP = """clozelab doctor
clozelab doctor EXPERIMENT [scale=NAME] [name=value ...] [--all]
clozelab doctor pretrain|finetune|evaluate [--config-dir FOLDER]
        [--config-name NAME] [name=value ...]

Without an experiment: what this machine can do (matrix products), and which
precision and threads are taken on it.

With one, the pre-flight: every arm and task of the experiment is looked at
before anything is trained (docs/doctor.md lists the checks). It prints what is
not well; --all prints every figure. Takes the overrides of `clozelab
reproduce`, which runs it before its first sweep (--skip-doctor).

With a stage, the same of what `clozelab pretrain` or `clozelab finetune` would
start with these arguments, one run or a sweep: `clozelab doctor pretrain
text=FOLDER` looks at a text. A sweep (-m) of more than three jobs runs it by
itself; CLOZELAB_SKIP_DOCTOR=1 leaves it out.

Exit status: 0, or 1 where a finding is an error."""


def main(argv: Sequence[str]) -> int:
    """Print the findings; returns the exit status."""
    options: tuple[str, ...] = ()
    if set(SWEEPS) & set(argv):
        options = ("config-dir", "config-name")
    grammar = Grammar(names=(0, 1), options=options, flags=("all",), takes_overrides=True)
    args = parse("doctor", argv, grammar)
    from clozelab.training.host import import_torchmetrics_quickly, tune_allocator

    tune_allocator()  # before torch and lightning are imported
    import_torchmetrics_quickly()
    if args.names:
        return _examine_subject(args)
    if args.overrides:
        word = args.overrides[0]
        raise ValueError(
            f"{word}: doctor without an experiment looks at the machine, and takes nothing; for the"
            f" text and settings of a run, say clozelab doctor pretrain {word} (or finetune)"
        )
    return _examine_machine()


def _examine_machine() -> int:
    from clozelab.checks.doctor import machine_facts, print_facts
    from clozelab.training.host import host_facts, usable_cores

    host = host_facts()
    print_facts(
        machine_facts(usable_cores()), {"processor": str(host["host"]["cpu"]), **host["versions"]}
    )
    return 0


def _examine_subject(args: ParsedArgs) -> int:
    """Everything that can be known to be wrong with an experiment, or with one stage's sweep."""
    started = time.perf_counter()
    from clozelab.checks.doctor import examine, print_findings
    from clozelab.checks.subject import ERROR

    # What matters comes as a finding.
    with quiet_log():
        subject = _gather(args)
        findings = list(examine(subject))
    say(f"Pre-flight of {subject.name}", "bold")
    print_findings(findings, shows_all="all" in args.flags)
    say(f"the pre-flight took {time.perf_counter() - started:.0f} s", "dim")
    return int(any(finding.level == ERROR for finding in findings))


def _gather(args: ParsedArgs) -> Subject:
    """What the command line names: an experiment, or one stage's sweep."""
    from clozelab.checks import gathering
    from clozelab.launch.launcher import PLAN_FOLDER

    (name,) = args.names
    if name not in SWEEPS:
        return gathering.gather(find_experiment(name), args.overrides)
    plan_folder = None
    if PLAN_FOLDER in os.environ:
        plan_folder = Path(os.environ[PLAN_FOLDER])
    return gathering.gather_sweep(step_of(args), plan_folder)
