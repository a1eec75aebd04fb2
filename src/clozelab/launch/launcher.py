"""What our Hydra launchers have in common: a sweep from its jobs' overrides to its exit status.

Every job is an operating-system process of its own. Inside one process Lightning's further ranks
would train another job's configuration, and one crash would take the other jobs along.

A launch composes and checks all jobs, has the pre-flight look at them, runs those that are not
complete, and reports. How jobs run is a launcher's own: process_launcher.py has the one for this
machine, slurm_launcher.py and ray_launcher.py those for clusters.
"""

from __future__ import annotations

import os
import shlex
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path, PurePath
from typing import ClassVar

from hydra.core.utils import JobReturn, env_override
from hydra.plugins.launcher import Launcher
from rich.console import Console

from claims.analysis.grouping import group_by
from claims.text.terminal import Heading
from clozelab import hydra_compat
from clozelab.config import Composed
from clozelab.files.digests import digest
from clozelab.launch.jobs import PlannedJob, names_of, plan_job, with_own_folders
from clozelab.launch.own_task import warn_of_doubts
from clozelab.launch.pool import ProcessPool
from clozelab.launch.processes import ForkServer, Job, JobState, run_verb
from clozelab.launch.progress import Heartbeat, SweepEstimate, job_key, plan_file
from clozelab.launch.sweep import refuse_repeated, root_of
from clozelab.runs.outcome import ending, ignores_context, results, score_in_context, skill_score
from clozelab.runs.progress import note_refused, write_launch
from clozelab.runs.record import DAMAGED, KILLED, STAGE_NAMES, Record, read_record
from clozelab.runs.store import warn_of_other_code
from clozelab.terminal import print_table, say
from clozelab.text.did_you_mean import key_of
from clozelab.text.plain import flatten
from clozelab.training.stopping import OUT_OF_TIME, STOPPED, Interrupted

# In the environment: sweeps begin without the pre-flight. `clozelab reproduce` has its own.
SKIP_DOCTOR = "CLOZELAB_SKIP_DOCTOR"
# Its value there: the jobs are noted as those of the whole reproduction already.
REPRODUCING = "reproduce"
# In the environment of a sweep's pre-flight: where it leaves the sizes of the jobs.
PLAN_FOLDER = "CLOZELAB_PLAN_FOLDER"
FEW_JOBS = 3  # so many are sooner run than checked
TRAININGS = ("pretrain", "finetune")  # the verbs whose sweeps have a pre-flight
BEGUN = ("running", "interrupted", "failed", KILLED)  # how the run of a resumed job stands
DONE = (JobState.COMPLETE, JobState.SKIPPED)  # whose scores a sweep ends with
# Overrides of Hydra's own keys that decide which jobs there are, and where.
PASSED_ON = ("hydra.searchpath", "hydra.sweeper.params", "hydra/launcher")
# Those that each job hears as well: where its files are looked for, and what its process is like.
PASSED_TO_JOBS = (
    "hydra.searchpath",
    "hydra.job",
    "hydra/job_logging",
    "hydra.verbose",
    "hydra.sweep.",
)
# Those of one folder of Hydra's, which jobs do not have, and what they are else.
OF_ONE_FOLDER = {"job.chdir": False, "run.dir": "."}
SHOWN_FAILURES = 12  # different reasons that a summary prints
THREAD_VARIABLES = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")


class SweepLauncher(hydra_compat.SweepPlugin, Launcher):
    """Plans the jobs, skips what is complete, and reports what failed; a subclass runs them."""

    runs_here: ClassVar[bool] = False  # whether its jobs are processes of this machine
    stopped_words = "stopped; the same command goes on where it was"
    grace_seconds: float  # that jobs get to save when they are stopped

    def get_ready(self, config: Composed, num_jobs: int) -> None:
        """Begin what takes time before a first job, which has this configuration.

        The other jobs are composed and checked meanwhile.
        """

    @abstractmethod
    def run_jobs(self, jobs: Sequence[Job], composed: Sequence[Composed], console: Console) -> None:
        """Run every waiting job to its end; `composed` has the jobs' configurations.

        Raises Interrupted after a signal.
        """

    def run_pool(
        self,
        jobs: Sequence[Job],
        console: Console,
        at_once: int,
        server: ForkServer | None = None,
    ) -> None:
        """Run every waiting job, so many at a time; a server forks those that may be forked."""
        ProcessPool(
            jobs,
            at_once=at_once,
            grace_seconds=self.grace_seconds,
            console=console,
            server=server,
            estimate=self.estimate,
        ).run()

    def prepare(self) -> None:
        self.sweep_dir = Path(str(self.master.hydra_value("sweep.dir")))
        self.root, _ = root_of(self.master)
        for key, usual in OF_ONE_FOLDER.items():
            if self.master.hydra_value(key) != usual:
                raise ValueError(
                    f"hydra.{key} is for one run: leave it out with -m, where each job writes into"
                    " its run_dir, and paths count from where the sweep was started"
                )
        self.estimate = SweepEstimate()

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run a sweep's jobs; returns nothing that Hydra's sweeper would read.

        Raises SystemExit where jobs have failed, or where the sweep was stopped.
        """
        # Hydra has just written this file with all arguments as they were said, secrets too.
        # launch.json and the runs' records have them without.
        (self.sweep_dir / "multirun.yaml").unlink(missing_ok=True)
        console = Console(stderr=True)
        composed, planned = self._compose_jobs(job_overrides, console)
        warn_of_doubts(composed)
        jobs = [self._job(plan, index) for index, plan in enumerate(planned, initial_job_idx)]
        wait_for_inputs(jobs, composed)
        self._preflight(composed, planned)
        self.estimate = SweepEstimate.read(
            self.sweep_dir, self.verb, is_part=_is_part_of_reproduction()
        )
        for job in jobs:
            job.planned = self.estimate.planned.get(job_key(job.overrides))
        exit_status = 0
        try:
            self.run_jobs(jobs, composed, console)
        except Interrupted as stopped:
            exit_status = stopped.code
        records = read_records(jobs)
        _note_refused(self.verb, jobs, planned, composed)
        _print_summary(jobs, console)
        self._exit_if_stopped(jobs, exit_status, console)

        scores = {name: record.score for name, record in records.items()}
        if composed:
            self._track(composed[0], jobs, scores)
        self._print_scores(list(records.values()), console)
        folders = [self.sweep_dir, *(Path(job.folder) for job in jobs)]
        command = sync_command(folders, self.root)
        if command:
            say(f"W&B offline; to upload all: {command}", console=console)
        if any(job.state == JobState.FAILED for job in jobs):
            raise SystemExit(1)
        return []

    def _compose_jobs(
        self, job_overrides: Sequence[Sequence[str]], console: Console
    ) -> tuple[list[Composed], list[PlannedJob]]:
        """Return the configuration of each job, and how it stands.

        ValueError for jobs that cannot be meant, or that must not go on with what other code has
        made.
        """
        composer = hydra_compat.JobComposer(self.context.config_loader, self.master)
        composed = []
        planned: list[PlannedJob] = []
        heartbeat = Heartbeat(
            console,
            lambda: f"{self.verb}: {len(planned)} of {len(job_overrides)} jobs composed",
        )
        is_ready = False
        for overrides in job_overrides:
            # Hundreds of jobs take minutes: somebody may want to know that it goes on.
            heartbeat.beat()
            config = composer.compose(overrides)
            composed.append(config)
            planned.append(plan_job(config, overrides))
            # A launcher begins with what the first job to run needs, while the others are composed.
            if not is_ready and planned[-1].status != "complete":
                self.get_ready(config, len(job_overrides))
                is_ready = True
        refuse_repeated(plan.overrides for plan in planned)
        planned = list(with_own_folders(planned))
        if composed and composed[0].get("reuse") != "never":
            _warn_of_other_code(planned)
        return composed, planned

    def _job(self, plan: PlannedJob, index: int) -> Job:
        """The process of a planned job: named by its run folder, if it has one."""
        # runs/NAME/demo/pretrain/mlm/seed-1 is called pretrain/mlm/seed-1.
        name = plan.run_dir.lstrip("/") or f"job-{index}"
        if plan.run_dir and Path(plan.run_dir).is_relative_to(self.root):
            name = str(Path(plan.run_dir).relative_to(self.root))
        # As they were said: a job resolves what is a secret of the environment by itself.
        arguments = [self.verb, *configuration_options(self.master), *plan.overrides]
        for word in self.master.unresolved_hydra["hydra"]["overrides"]["hydra"]:
            if key_of(word).startswith(PASSED_TO_JOBS):
                arguments.append(word)
        arguments.append("hydra.mode=RUN")
        log_name = f"{self.verb}-{name.replace('/', '--')}"
        if not plan.run_dir:
            # A second sweep of `prepare` has jobs of the same numbers, maybe at the same time.
            log_name += f"-{digest(arguments)[:8]}"
        log = self.sweep_dir / "logs" / f"{log_name}.log"
        state = JobState.WAITING
        if plan.status == "complete":
            state = JobState.SKIPPED
        return Job(
            name,
            [sys.executable, "-m", "clozelab", *arguments],
            argv=arguments,
            overrides=plan.overrides,
            folder=plan.run_dir,
            log=log,
            state=state,
            is_resumed=plan.status in BEGUN,
        )

    def _preflight(self, composed: Sequence[Composed], planned: Sequence[PlannedJob]) -> None:
        """Note what is started and have it looked at."""
        # An older sweep's plan; the pre-flight writes ours.
        (self.sweep_dir / plan_file(self.verb)).unlink(missing_ok=True)
        if not planned:
            return
        # For `clozelab status`, which then knows how many jobs there are to be.
        if self.verb in STAGE_NAMES and not _is_part_of_reproduction():
            words = getattr(self.task, "clozelab_words", [self.verb, *sys.argv[1:]])
            for root, jobs in group_by(composed, lambda job: root_of(job)[0]).items():
                write_launch(root, words, {self.verb: names_of(jobs)})
        num_left = sum(plan.status != "complete" for plan in planned)
        run_preflight(self.verb, self.master, num_left, self.sweep_dir)

    def _exit_if_stopped(self, jobs: Sequence[Job], exit_status: int, console: Console) -> None:
        """Raise SystemExit where a signal, or trainer.max_time, has left jobs unfinished."""
        if exit_status:
            console.print(self.stopped_words)
            raise SystemExit(exit_status)
        if any(job.state == JobState.STOPPED for job in jobs):
            console.print("out of trainer.max_time; the same command goes on")
            raise SystemExit(OUT_OF_TIME)

    def _track(
        self, config: Composed, jobs: Sequence[Job], scores: Mapping[str, float | None]
    ) -> None:
        """Show the sweep to the jobs' tracker: a row a job."""
        track = getattr(self.task, "clozelab_track", None)
        if track is None:
            return
        rows = []
        for job in jobs:
            # `~hub` takes a key out: it has no value.
            pairs = [word.partition("=") for word in job.overrides]
            choices = {key: choice for key, _, choice in pairs}
            value = scores.get(job.name)
            rows.append({"name": job.name, "state": str(job.state), "value": value, **choices})
        # The table is one of the jobs' tracker, which may hear of it by the environment alone.
        with env_override(self.master.hydra_value("job.env_set")):
            track(config, self.verb, self.sweep_dir, rows)

    def _print_scores(self, records: Sequence[Record], console: Console) -> None:
        """Print the table of scores and the next command."""
        if not records:
            return
        headings = [
            Heading("name"),
            Heading("task"),
            Heading("runs", is_number=True),
            Heading("score", is_number=True),
            Heading("beside", folds=True),
        ]
        print_table(headings, results(records), console)
        if not _is_part_of_reproduction():
            for line in self._next_steps(records):
                say(line, console=console)

    def _next_steps(self, records: Sequence[Record]) -> list[str]:
        """Return the command that reports on these runs, and how to use the best pre-training."""
        root = self.root
        folders = [str(record.folder.absolute()) for record in records]
        if Path(os.path.commonpath([*folders, root.absolute()])).resolve() != root.resolve():
            # run_dir= has put them elsewhere, or they are of several scales.
            root = Path(os.path.relpath(os.path.commonpath(folders)))
        options = configuration_options(self.master)
        # An experiment with claims: its folder, or its one file, is what `report` takes. Its runs
        # are in runs_dir/EXPERIMENT/SCALE.
        place = Path(options[1])
        is_experiment = place.is_file() or (place / "paper.yaml").is_file()
        is_judged = options[0] == "--config-dir" and is_experiment
        reports = [[str(root)]]
        if is_judged:
            runs_dir = f"runs_dir={self.root.parent.parent}"
            scales = dict.fromkeys(record.scale for record in records)
            reports = [[options[1], f"scale={scale}", runs_dir] for scale in scales]
        lines = [f"next: clozelab report {shlex.join(arguments)}" for arguments in reports]
        if self.verb == "pretrain" and not is_judged:
            lines += _best_pretraining(records)
        return lines


def run_preflight(
    verb: str,
    config: Composed,
    num_left: int,
    plan_folder: Path | None = None,
) -> None:
    """Run `clozelab doctor` on a sweep of trainings, unless few jobs are left or nobody wants it.

    Args:
        num_left: how many jobs are not complete yet.
        plan_folder: where it leaves the sizes of the jobs.

    Raises:
        ValueError: it has found an error, or was killed.
        SystemExit: it was stopped.
    """
    is_unwanted = os.environ.get(SKIP_DOCTOR, "0") not in ("", "0")
    if verb not in TRAININGS or num_left <= FEW_JOBS or is_unwanted:
        return
    heartbeat = Heartbeat(
        Console(stderr=True),
        lambda: f"{verb}: the pre-flight still looks for faults in the jobs",
    )
    environment = {}
    if plan_folder:
        environment = {PLAN_FOLDER: str(plan_folder)}
    # The overrides of the sweep as they were said.
    arguments = configuration_options(config)
    arguments += config.unresolved_hydra["hydra"]["overrides"]["task"]
    for word in config.hydra_value("overrides.hydra"):
        if key_of(word).startswith(PASSED_ON):
            arguments.append(word)
    with heartbeat.in_background():
        status = run_verb(["doctor", verb, *arguments], environment=environment)
    if status in STOPPED:
        raise SystemExit(status)
    if status:
        end = "has found an error"
        if status > 128:
            end = f"was killed by signal {status - 128} (9: out of memory, as a rule)"
        raise ValueError(
            f"the pre-flight {end}, nothing was started;"
            f" mend it, or set {SKIP_DOCTOR}=1 to go on anyway"
        )


def configuration_options(config: Composed) -> list[str]:
    """Return where a sweep's configuration is: --config-dir, --config-name."""
    options = []
    for source in config.hydra_value("runtime.config_sources"):
        if source["provider"] == "command-line":
            options += ["--config-dir", str(source["path"])]
    return [*options, "--config-name", str(config.hydra_value("job.config_name"))]


def require_positive(name: str, value: object, *, instead: str = "") -> None:
    """Raise ValueError for a launcher's setting that is no whole number above zero."""
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"hydra.launcher.{name} is {value!r}: give a positive number{instead}")


def wait_for_inputs(jobs: Sequence[Job], composed: Sequence[Composed]) -> None:
    """Let a job that names something in another one's run folder begin when that one has ended.

    So a student waits for its teacher: `objective.token.teacher=RUN_DIR/encoder`. Where the other
    one fails, the job says itself that there is no encoder.
    """
    job_of = {job.folder: job for job in jobs if job.folder}
    for job, config in zip(jobs, composed, strict=True):
        named = job_of.keys() & _folders_named(config) - {job.folder}
        job.waits_for = [job_of[folder] for folder in sorted(named)]


def _folders_named(config: Composed) -> set[str]:
    """Every folder that a text of a configuration may lie in: `a` and `a/b` of `a/b/c`."""
    folders: set[str] = set()
    for value in flatten(config.values).values():
        if isinstance(value, str) and "/" in value:
            folders.update(map(str, PurePath(value).parents))
    return folders


def _is_part_of_reproduction() -> bool:
    return os.environ.get(SKIP_DOCTOR) == REPRODUCING


def _warn_of_other_code(planned: Sequence[PlannedJob]) -> None:
    """Warn of runs that other code has made, which the sweep takes."""
    # Of damaged folders, and of those that another run has, nothing is read.
    folders = []
    for plan in planned:
        if plan.run_dir and plan.status not in (DAMAGED, "conflict"):
            folders.append(Path(plan.run_dir))
    warn_of_other_code(map(read_record, folders))


def read_records(jobs: Iterable[Job]) -> dict[str, Record]:
    """Return name of a job -> the record of its run, where that is complete.

    A job that ended with 0 although its run folder does not say so has failed.
    """
    records = {}
    for job in jobs:
        if job.state not in DONE or not job.folder:
            continue
        record = None
        status = "nothing"
        try:
            record = read_record(Path(job.folder))
        except ValueError as error:
            status = str(error)
        if record is not None and record.is_complete:
            records[job.name] = record
            continue
        if record is not None:
            status = record.status
        job.state = JobState.FAILED
        job.message = f"ended with exit status 0, but its run folder says {status}"
    return records


def _note_refused(
    verb: str, jobs: Sequence[Job], planned: Sequence[PlannedJob], composed: Sequence[Composed]
) -> None:
    """Note for `clozelab status` in whose folders runs lie that are none of the jobs."""
    refused: dict[Path, list[str]] = {}
    for job, plan, config in zip(jobs, planned, composed, strict=True):
        if job.state != JobState.FAILED or plan.status not in ("conflict", "check"):
            continue
        record = read_record(Path(job.folder))
        if record is not None:
            refused.setdefault(root_of(config)[0], []).append(record.fingerprint)
    for root, fingerprints in refused.items():
        note_refused(root, verb, fingerprints)


def _print_summary(jobs: Sequence[Job], console: Console) -> None:
    """Print how many jobs ended in which way, and each reason for a failure once."""
    counts = Counter(job.state for job in jobs)
    words = {JobState.WAITING: "not begun"}
    in_order = [state for state in JobState if counts[state]]
    console.print(", ".join(f"{counts[state]} {words.get(state, state)}" for state in in_order))
    failed = [job for job in jobs if job.state == JobState.FAILED]
    by_reason = group_by(failed, attrgetter("message"))
    for reason, same in list(by_reason.items())[:SHOWN_FAILURES]:
        more = ""
        if len(same) > 1:
            more = f" and {len(same) - 1} more"
        say(f"  failed: {same[0].name}{more}: {reason}", console=console)
        if same[0].log.exists():  # a job that never began has none
            say(f"    log: {same[0].log}", console=console)


def _best_pretraining(records: Sequence[Record]) -> list[str]:
    """Say which of several pre-trainings is best, and how its encoder is used.

    Nothing where none has learnt anything.
    """
    best = max(records, key=skill_score)
    context = score_in_context(best)
    if not context or ignores_context(best):
        return []
    lines = []
    if len(records) > 1:
        objectives = set()
        for record in records:
            objectives.add(
                (str(record.config.get("objective")), record.choices.get("objective", record.name))
            )
        title = "best"
        if len(objectives) > 1:  # their losses do not compare
            title = "most beyond what takes no context"
        lines = [f"{title}: {best.name} seed {best.seeds}, {context}"]
    return lines + [line for line in ending(best) if line.startswith(("next:", "from"))]


def sync_command(folders: Sequence[Path], root: Path) -> str | None:
    """Return the one command that uploads every offline W&B run in these run folders.

    Those that are not below `root`, as the experiment's own are, are named one by one: what lies
    around them may be somebody else's. None where there is no such run.
    """
    below_root = []
    searched_folders = []
    for folder in folders:
        if not any(folder.glob("wandb/offline-run-*")):
            continue
        if folder.resolve().is_relative_to(root.resolve()):
            below_root.append(str(folder.resolve()))
        else:
            searched_folders.append(str(folder.resolve()))
    if below_root:
        searched_folders.append(os.path.commonpath(below_root))
    if not searched_folders:
        return None
    named = shlex.join(searched_folders)
    # A resumed run has a folder for each start, whose name has the time: they are sent in order.
    return f"find {named} -name 'offline-run-*' -prune -print0 | sort -z | xargs -0 wandb sync"
