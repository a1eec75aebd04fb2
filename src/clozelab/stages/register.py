"""`clozelab register`: what an experiment claims, frozen before its first run."""

from __future__ import annotations

from collections.abc import Sequence

from clozelab.config import canonical
from clozelab.planning.steps import Step, make_steps
from clozelab.report import registration
from clozelab.results.experiment import open_experiment
from clozelab.runs.archive import REGISTRATION_FILE
from clozelab.runs.identity import SEED_KEYS
from clozelab.terminal import ParsedArgs, say, verb
from clozelab.text.did_you_mean import values_of

HELP = """clozelab register EXPERIMENT [scale=NAME] [name=value ...] [--again]

Freezes what an experiment claims and how it will be tested, before its first
run, in registration.json beside the runs (RUNS_DIR/EXPERIMENT/SCALE), with the
date and a hash: commit it, or send it to somebody. The report says whether it
came before the first run, and names what was changed afterwards. Takes the
overrides of `clozelab reproduce`.

  --again    where another declaration is registered: keeps that one, and adds
             what is declared now"""


@verb("register", HELP, names=(1, 1), flags=("again",), takes_overrides=True)
def main(args: ParsedArgs) -> int:
    """Write what is declared beside the runs; returns the exit status."""
    experiment = open_experiment(args.names[0])
    steps = make_steps(experiment.folder, args.overrides)
    sweeps = [step for step in steps if step.is_sweep]
    content = registration.declared(experiment, *declared_jobs(sweeps))
    root, _ = sweeps[0].root
    entry, is_new = registration.register(root, content, again="again" in args.flags)
    outcome = "registered" if is_new else "registered already"
    say(f"{outcome} on {entry.date}: sha256 {entry.hash}")
    file = (root / REGISTRATION_FILE).resolve()
    say(f"{file}: commit it, or send it to somebody who keeps it")
    return 0


def declared_jobs(sweeps: Sequence[Step]) -> tuple[dict[str, set[int]], dict[str, set[str]]]:
    """Collect the seeds and settings of every job of an experiment's sweeps.

    Returns:
        Seeds of "pre-training" and of "fine-tuning"; and arm, or row and task -> hashes of its
        settings, several where a row tries several rates.
    """
    seeds: dict[str, set[int]] = {"pre-training": set(), "fine-tuning": set()}
    settings: dict[str, set[str]] = {}
    for step in sweeps:
        # What a job's pre-training seed is called.
        pretrain_seed = {"pretrain": "seed"}.get(step.verb, "pretrain_seed")
        for jobs in step.sweep.groups(lambda key: key not in SEED_KEYS).values():
            # They differ by their seeds alone: one of them has the settings of all.
            config = canonical(step.sweep.settings(jobs[0]))
            name, settings_hash = registration.settings_of(config)
            settings.setdefault(name, set()).add(settings_hash)
            for job in jobs:
                values = config | values_of(job)
                seeds["pre-training"].add(int(str(values[pretrain_seed])))
                if step.verb == "finetune":
                    seeds["fine-tuning"].add(int(str(values["seed"])))
    return seeds, settings
