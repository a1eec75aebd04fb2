"""`clozelab reproduce EXPERIMENT scale=NAME`: prepare, the sweeps, report. Every step skips what is
done.

Each step is a process of its own, so it can be stopped and started again at any moment and nothing
is shared but files.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf
from rich.console import Console
from rich.markup import escape

from clozelab.launch.jobs import LIKELY_SHARED, names_of, planned_jobs
from clozelab.launch.launcher import REPRODUCING, SKIP_DOCTOR
from clozelab.launch.processes import run_verb
from clozelab.launch.progress import Outlook, Pulse, counted, left_at, plan_file, time_words
from clozelab.planning.steps import SWEEPS, Step, chooses_seeds, make_steps
from clozelab.results.experiment import Experiment, find_experiment, load_experiment
from clozelab.runs.find import find
from clozelab.runs.identity import SEED_KEYS, canonical
from clozelab.runs.progress import write_launch
from clozelab.runs.store import accept_other_code
from clozelab.stages.plan import parse_budget
from clozelab.stages.report import judge
from clozelab.terminal import Words, say, verb
from clozelab.text.did_you_mean import key_of
from clozelab.text.formatting import duration
from clozelab.training.stopping import STOPPED

if TYPE_CHECKING:
    from clozelab.analysis.verdicts import Judgement
    from clozelab.report.render import Report

HELP = """clozelab reproduce EXPERIMENT [scale=NAME] [name=value ...] [--dry-run]
clozelab reproduce EXPERIMENT until=decided [budget=8h] ...

Prepares the corpus, says how long all takes, runs every sweep and writes the report. Stop it and start it again at any
time. In a pipe or a file it prints a line at least every 30 seconds.

  name=value             goes to every stage that has such a key
  prepare.name=value     goes to that stage alone; so do pretrain., finetune. and evaluate.
  seeds=1,2,3            the pre-training seeds, in every stage
  evaluate=none          leaves the measures out; finetune=none leaves the fine-tuning out
  until=decided          gives one more pre-training seed to the claim that is nearest to a verdict (a primary one
                         first), looks, and goes on so: until all are decided, or the last look of the rule
                         (stopping: in paper.yaml, written before the first look)
  budget=8h              begins no seed that would end later
  --skip-doctor          goes on whatever the pre-flight (clozelab doctor) would find
  --no-measure           times nothing before it begins: how long it takes is said by speeds that are known alone
  --dry-run              lists the jobs and how each stands: new, running, interrupted, failed, complete;
                         conflict (its folder holds a run of other settings, and it will be refused);
                         check (complete, its inputs have to be read to be sure);
                         shared (an equal run of another experiment will be taken);
                         shared? (will be taken if the files it was trained on are still the same)"""


REGISTER_HELP = """clozelab register EXPERIMENT [scale=NAME] [name=value ...] [--again]

Freezes what an experiment claims and how it will be tested, before its first run, in registration.json beside the runs
(RUNS_DIR/EXPERIMENT/SCALE), with the date and a hash: commit it, or send it to somebody. The report says whether it
came before the first run, and names what was changed afterwards. Takes the overrides of `clozelab reproduce`.

  --again    where another declaration is registered: keeps that one, and adds what is declared now"""


@verb(
    "reproduce",
    HELP,
    names=(1, 1),
    keys=("until", "budget"),
    flags=("dry-run", "skip-doctor", "no-measure"),
    takes_overrides=True,
)
def main(said: Words) -> int:
    """Run the experiment; returns 0 only if every step went well."""
    folder, is_checked = find_experiment(said.names[0]), "skip-doctor" in said.flags
    if said.values:
        seeds = [first_seeds(load_experiment(folder), said.values.get("until"), said.overrides)]
        budget = parse_budget(said.values["budget"]) if "budget" in said.values else math.inf
        if "dry-run" not in said.flags:
            return until_decided(
                folder, said.words, said.overrides, seeds, budget, is_checked=is_checked
            )
        said.overrides.extend(seeds)
    steps = make_steps(folder, said.overrides)
    if "dry-run" in said.flags:
        return dry_run(steps)
    return run_round(folder, said.words, said.overrides, steps, is_checked=is_checked)[0]


def run_round(
    folder: Path,
    words: Sequence[str],
    overrides: Sequence[str],
    steps: list[Step],
    *,
    is_checked: bool,
) -> tuple[int, Report | None]:
    """Run what is not complete and judge: (exit status, the report, or none where it was
    stopped).
    """
    last, console, status = steps[-1], Console(stderr=True), 0
    jobs = {
        one.verb: names_of(map(one.sweep.composer.compose, one.sweep.jobs))
        for one in steps
        if one.is_sweep
    }
    asked = [stage for stage in SWEEPS if stage in jobs or stage != "evaluate"]
    write_launch(
        last.root[0], ["reproduce", *words], {stage: jobs.get(stage, []) for stage in asked}
    )
    if all_complete(steps):
        console.print("every run is complete", style="dim")
        accept_other_code(find(last.root[0]).runs, "any")
    else:
        before = sum(not step.is_sweep for step in steps)
        if is_checked:
            checks = []
        else:
            checks = [Step("doctor", "", None, (str(folder), *overrides))]
        brief = ("--brief", *(("--no-measure",) if "--no-measure" in words else ()))
        steps[before:before] = [Step("plan", "", None, (str(folder), *overrides, *brief)), *checks]
        launcher = Path(str(last.sweep.master.hydra.sweep.dir))
        # An older reproduction's, perhaps of other settings.
        (launcher / plan_file(None)).unlink(
            missing_ok=True,
        )
        status, is_stopped = run_steps(steps, console, launcher)
        if is_stopped:
            return status, None
    console.rule("report", align="left")
    started = time.monotonic()
    pulse = Pulse(console, lambda: f"report runs for {duration(time.monotonic() - started)}")
    with pulse.in_background():
        report = judge(folder, last.overrides, last.config_name)
    return status, report


def first_seeds(experiment: Experiment, until: str | None, overrides: Sequence[str]) -> str:
    """The override for the first look. ValueError: there is no such rule, or the seeds are chosen
    already.
    """
    if until != "decided":
        raise ValueError(
            f"until={until}: there is until=decided alone"
            if until
            else "budget= needs until=decided"
        )
    if (rule := experiment.stopping) is None:
        raise ValueError(
            f"{experiment.folder}: until=decided needs a stopping rule in paper.yaml, written"
            " before the first look, such as stopping: {first: 3, most: 8}"
        )
    if given := next(filter(chooses_seeds, overrides), ""):
        raise ValueError(f"{given}: until=decided chooses the pre-training seeds itself")
    return f"seeds={','.join(map(str, range(1, rule.first + 1)))}"


def until_decided(
    folder: Path,
    words: Sequence[str],
    overrides: Sequence[str],
    more: list[str],
    budget: float,
    *,
    is_checked: bool,
) -> int:
    """One look after the other, each with a seed more of the rows of one claim; returns the exit
    status.
    """
    from clozelab.report.summaries import seed_seconds

    experiment, console, began = load_experiment(folder), Console(), time.monotonic()
    while True:
        started = time.monotonic()
        steps = make_steps(folder, [*overrides, *more])
        stages = {word.partition(".")[0] for word in more}
        steps = [
            step
            for step in steps
            if step.verb in stages or not step.is_sweep or more[0].startswith("seeds=")
        ]
        status, report = run_round(folder, words, [*overrides, *more], steps, is_checked=is_checked)
        if report is None or status:
            return status
        claim = nearest(report.judgements, experiment)
        if claim is None:
            say(console, "No claim is left that one more seed of the stopping rule could decide.")
            return 0
        now = time.monotonic()
        tasks = claim.column.tasks if claim.column else ()
        # this round may have found all its runs complete
        known = seed_seconds(claim.rows, tasks, report.table) or 0.0
        one_seed = max((now - started) / len(more[0].split(",")), known)
        if now - began + one_seed > budget:
            say(
                console,
                "The budget ends before another seed would, which takes about"
                f" {duration(one_seed)}.",
            )
            return 0
        before, more, is_checked = more, next_seed(claim, experiment), True
        if more == before:
            raise ValueError(f"a seed more gave '{claim.claim.text}' none: {' '.join(more)}")
        say(console, f"One more seed for '{claim.claim.text}': {' '.join(more)}")


def nearest(judgements: Sequence[Judgement], experiment: Experiment) -> Judgement | None:
    """The undecided claim to give the next seed to: the first primary one, or else that with the
    nearest forecast.
    """
    from clozelab.analysis.verdicts import Verdict  # scipy: not for --help

    most, arms = (
        experiment.stopping.most if experiment.stopping else 0,
        {row.name: row.arm for row in experiment.rows},
    )
    undecided = [one for one in judgements if one.verdict is Verdict.INCONCLUSIVE]
    # The primary claims behind the first open one wait; the others gain by it.
    gate = [
        one
        for one in judgements
        if one.claim.primary and one.verdict in (Verdict.INCONCLUSIVE, Verdict.ONE_SEED)
    ][:1]
    able = [
        one
        for one in undecided
        if one.p_value is not None
        and one.difference
        and one.difference.count < most
        and any(arms[row] for row in one.rows)
        and (one in gate or not one.claim.primary)
    ]
    able = [one for one in able if one.claim.primary] or able
    return min(able, key=lambda one: (one.decisive_seeds or math.inf, one.p_value), default=None)


def next_seed(one: Judgement, experiment: Experiment) -> list[str]:
    """The overrides that give the rows of a claim one more pre-training seed, on the data sets that
    it is about.
    """
    # A row without an arm takes the shape of one, from its encoder's folder.
    shape = next((row.arm for row in experiment.rows if row.arm), "")
    shapes = {
        row.name: str(row.arm or row.delta.get("encoder_arm") or shape) for row in experiment.rows
    }
    arms = dict.fromkeys(shapes[row] for row in one.rows)
    seed = 1 + min(max(map(int, known.split("/")[0].split())) for known in one.seeds.values())
    words = [f"pretrain.seed={seed}", f"pretrain.arm={','.join(arms)}"]
    if one.claim.against:  # another column's runs, too
        return [f"seeds={seed}", words[1], f"row={','.join(one.rows)}"]
    if one.column and one.column.is_pretraining:
        return words
    if one.column and one.column.is_measured:
        measures = f"evaluate.measure={','.join(one.column.tasks)}"
        return [
            *words,
            f"evaluate.pretrain_seed={seed}",
            f"evaluate.measured={','.join(one.rows)}",
            measures,
        ]
    words += [f"finetune.pretrain_seed={seed}", f"finetune.row={','.join(one.rows)}"]
    return [*words, f"finetune.task={','.join(one.column.tasks)}"] if one.column else words


def all_complete(steps: Sequence[Step]) -> bool:
    """Looks at no further job once one is not complete."""
    return all(
        job.status == "complete"
        for step in steps
        if step.is_sweep
        for job in planned_jobs(step.sweep)
    )


def run_steps(steps: Sequence[Step], console: Console, launcher: Path = Path()) -> tuple[int, bool]:
    """(status, whether nothing more is to be done): one process a step, up to the first that must
    not be passed.

    `launcher`: the folder in which a plan of all steps may lie.
    """
    failed = False
    for number, step in enumerate(steps, 1):
        console.rule(
            escape(f"{number} of {len(steps) + 1}: clozelab {' '.join(step.words())}"), align="left"
        )
        # A sweep speaks for itself.
        if step.is_sweep:
            pulse = None
        else:
            pulse = Pulse(console, partial(quiet_line, step.verb, time.monotonic(), launcher))
        status = run_verb(step.words(), environment={SKIP_DOCTOR: REPRODUCING}, pulse=pulse)
        if step.verb == "plan" and status not in STOPPED and status <= 128:
            continue  # without it nothing is known of the time, and all the rest goes on
        if status > 128 or status in STOPPED or (status and not step.is_sweep):
            return status, True
        failed |= status != 0
    return int(failed), False


def quiet_line(verb: str, started: float, launcher: Path) -> str:
    """`doctor runs for 30 s, 0 of 92 done, about 9.0 min left`, as far as a plan is there."""
    line = f"{verb} runs for {duration(time.monotonic() - started)}"
    place = Outlook.read(launcher, verb, is_part=True)
    if not place.jobs_after:
        return line
    return f"{line}, {counted([], place)}{time_words(left_at(place, [], 1))}"


def dry_run(steps: Sequence[Step]) -> int:
    """List every job with its state and start nothing."""
    console = Console()
    for step in steps:
        console.print(
            f"clozelab {' '.join(step.words())}", style="bold", markup=False, soft_wrap=True
        )
        if not step.is_sweep:
            continue
        jobs = list(planned_jobs(step.sweep))
        for job in jobs:
            doubt = ", if its files are still the same" if job.status == LIKELY_SHARED else ""
            source = f"  (trained as {job.source}{doubt})" if job.source else ""
            console.print(
                f"  {job.status:<12} {job.run_dir}{source}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        counts = Counter(job.status for job in jobs)
        console.print("  " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    return 0


@verb("register", REGISTER_HELP, names=(1, 1), flags=("again",), takes_overrides=True)
def register(said: Words) -> int:
    """Write what is declared beside the runs; returns the exit status."""
    from clozelab.report import registration  # pandas: not for --help

    folder = find_experiment(said.names[0])
    sweeps = [step for step in make_steps(folder, said.overrides) if step.is_sweep]
    settings, seeds = dict[str, set[str]](), {"pre-training": set[int](), "fine-tuning": set[int]()}
    for step in sweeps:
        for jobs in step.sweep.groups(lambda key: key not in SEED_KEYS).values():
            config = canonical(OmegaConf.create(step.sweep.settings(jobs[0])))
            name, value = registration.settings_of(json.loads(json.dumps(config)))
            settings.setdefault(name, set()).add(value)  # several, where a row tries several rates
            for job in jobs:
                chosen = config | {key_of(word): word.partition("=")[2] for word in job}
                first = "seed" if step.verb == "pretrain" else "pretrain_seed"
                seeds["pre-training"].add(int(chosen[first]))
                seeds["fine-tuning"] |= {int(chosen["seed"])} if step.verb == "finetune" else set()
    content = registration.declared(load_experiment(folder), seeds, settings)
    root, _ = sweeps[0].root
    entry, is_new = registration.register(root, content, again="again" in said.flags)
    console = Console()
    say(
        console,
        f"{'registered' if is_new else 'registered already'} on {entry.date}: sha256 {entry.hash}",
    )
    say(
        console,
        f"{(root / registration.REGISTRATION_FILE).resolve()}: commit it, or send it to somebody"
        " who keeps it",
    )
    return 0
