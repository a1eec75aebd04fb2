"""Our Hydra launchers and sweepers: every job of a sweep is an operating-system process of its own.

Inside one process Lightning's further ranks would train another job's configuration, and one crash
takes the rest along. Here are what all launchers share and the one for this machine; clusters.py
has those for Slurm and Ray.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from clozelab.launch.jobs import PlannedJob, names_of, plan_job, with_own_folders
from clozelab.launch.processes import ForkServer, Job, ProcessPool, run_verb
from clozelab.launch.progress import Outlook, Pulse, job_key, plan_file
from clozelab.launch.sweep import JobComposer, hydra_config, named_jobs, refuse_repeated
from clozelab.runs.outcome import ending, results, score_in_context, skill_score
from clozelab.runs.progress import write_launch
from clozelab.runs.record import DAMAGED, grouped, read_record
from clozelab.runs.store import accept_other_code
from clozelab.targets import allowed
from clozelab.terminal import Heading, make_table, say
from clozelab.text.did_you_mean import key_of
from clozelab.text.formatting import several
from clozelab.training.host import require_package, usable_cores
from clozelab.training.stopping import OUT_OF_TIME, STOPPED, Interrupted

PLUGIN_PACKAGE = "hydra_plugins.clozelab"
# in the environment: sweeps begin without it; `clozelab reproduce` has its own
SKIP_DOCTOR = "CLOZELAB_SKIP_DOCTOR"
# its value there then: the jobs are noted as those of the whole reproduction already
REPRODUCING = "reproduce"
# in the environment of a sweep's pre-flight: where it leaves sizes of the jobs
PLAN_FOLDER = "CLOZELAB_PLAN_FOLDER"
FEW_JOBS = 3  # so many are sooner run than looked at
LOOKED_AT = ("pretrain", "finetune")
DONE = ("complete", "skipped")  # whose scores a sweep ends with
PRELOADED_PLACES = {
    "finetune": ("task.data", "task.module"),
    "evaluate": ("measure.data", "measure.module", "measure.task.data", "measure.task.module"),
}
"""Places of conf/targets.yaml whose modules a verb's jobs import by address."""
NO_THREADS_AT_IMPORT = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""pandas brings pyarrow, whose allocator starts a thread; a server that forks must have none."""
# decide which jobs there are, and where
PASSED_ON = ("hydra.searchpath", "hydra.sweeper.params", "hydra/launcher")


def look_before(
    verb: str,
    config: DictConfig,
    first_job: Sequence[str],
    num_left: int,
    plan_folder: Path | None = None,
) -> None:
    """Run `clozelab doctor` on a sweep of trainings with so many jobs left, unless they are few or
    nobody wants it. Of a search it sees the first job. It leaves the sizes of the jobs in
    `plan_folder`. ValueError: it found an error, or was killed."""
    is_long = num_left > FEW_JOBS or not is_grid(config)
    if verb not in LOOKED_AT or not is_long or os.environ.get(SKIP_DOCTOR, "0") not in ("", "0"):
        return
    own = [word for word in config.hydra.overrides.hydra if key_of(word).startswith(PASSED_ON)]
    if is_grid(config):
        words = [*config.hydra.overrides.task, *own]
    else:
        words = [
            *first_job,
            *(word for word in own if "sweeper" not in key_of(word)),
            "hydra.sweeper.params=null",
        ]
    pulse = Pulse(
        Console(stderr=True),
        lambda: f"{verb}: the pre-flight still looks at what was composed",
    )
    environment = {}
    if plan_folder:
        environment = {PLAN_FOLDER: str(plan_folder)}
    status = run_verb(
        ["doctor", verb, *configuration_words(config), *words],
        environment=environment,
        pulse=pulse,
    )
    if status in STOPPED:
        raise SystemExit(status)
    if status:
        killed = f"was killed by signal {status - 128} (9: out of memory, as a rule)"
        said = (
            f"the pre-flight {killed if status > 128 else 'has found an error'}, nothing was"
            " started"
        )
        raise ValueError(f"{said}; mend it, or set {SKIP_DOCTOR}=1 to go on anyway")


def configuration_words(config: DictConfig) -> list[str]:
    """Where a sweep's configuration is: --config-dir, --config-name."""
    hydra = config.hydra
    folders = [
        str(one.path) for one in hydra.runtime.config_sources if one.provider == "command-line"
    ]
    return [
        *(word for path in folders for word in ("--config-dir", path)),
        "--config-name",
        str(hydra.job.config_name),
    ]


def is_grid(config: DictConfig) -> bool:
    """Whether all jobs are known beforehand."""
    return str(config.hydra.sweeper._target_).endswith(".GridSweeper")


def require_positive(name: str, value: Any, *, instead: str = "") -> None:
    """ValueError for a launcher's setting that is no whole number above zero."""
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"hydra.launcher.{name} is {value!r}: give a positive number{instead}")


SHOWN_FAILURES = 12  # different reasons that a summary prints
THREAD_VARIABLES = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")


class SweepLauncher(Launcher):
    """What every launcher of ours does around running: it plans, skips what is complete, reports
    what failed.
    """

    stopped_words = "stopped; the same command goes on where it was"

    def get_ready(self, config: DictConfig, num_jobs: int) -> None:
        """Begin what takes time before a first job, of this configuration; all are composed and
        checked meanwhile.
        """

    @abstractmethod
    def run_jobs(
        self, jobs: Sequence[Job], composed: Sequence[DictConfig], console: Console
    ) -> None:
        """Run every waiting job to its end; `composed` are the jobs' configurations. Raises
        Interrupted.
        """

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.context, self.config = hydra_context, config
        self.verb = str(getattr(task_function, "clozelab_verb", config.hydra.job.name))
        # shows a sweep as a whole to its jobs' tracker
        self.track = getattr(task_function, "clozelab_track", None)
        # What that shows of the jobs so far, and how many a search, which launches several times,
        # has gone on without.
        self.rows, self.failed = list[dict[str, object]](), 0
        self.sweep_dir = Path(str(config.hydra.sweep.dir))
        self.place = Outlook()

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        # What Hydra has just written, as it was said, secrets too; launch.json and the runs'
        # records have it without.
        (self.sweep_dir / "multirun.yaml").unlink(missing_ok=True)
        composer = JobComposer(self.context.config_loader, self.config)
        composed, planned = list[DictConfig](), list[PlannedJob]()
        console = Console(stderr=True)
        pulse = Pulse(
            console,
            lambda: f"{self.verb}: {len(planned)} of {len(job_overrides)} jobs composed",
        )
        for overrides in job_overrides:
            pulse.beat()
            composed.append(composer.compose(overrides))
            planned.append(plan_job(composed[-1], overrides))
            if planned[-1].status != "complete" and all(
                plan.status == "complete" for plan in planned[:-1]
            ):
                self.get_ready(composed[-1], len(job_overrides))
        refuse_repeated(plan.overrides for plan in planned)
        planned = list(with_own_folders(planned))
        # there each job refuses its own
        if planned and (reuse := str(composed[0].get("reuse"))) != "same_code":
            places = [
                Path(one.run_dir)
                for one in planned
                if one.run_dir and one.status not in (DAMAGED, "conflict")
            ]
            accept_other_code(map(read_record, places), reuse)
        jobs = [self._job(plan, index) for index, plan in enumerate(planned, initial_job_idx)]
        is_part = os.environ.get(SKIP_DOCTOR) == REPRODUCING
        # An older sweep's; the pre-flight writes ours.
        (self.sweep_dir / plan_file(self.verb)).unlink(
            missing_ok=True,
        )
        if initial_job_idx == 0 and planned:
            if self.verb in LOOKED_AT and not is_part:  # for `clozelab status`
                known = {self.verb: names_of(composed) if is_grid(self.config) else None}
                write_launch(self.sweep_dir.parent, [self.verb, *sys.argv[1:]], known)
            left = sum(plan.status != "complete" for plan in planned)
            look_before(self.verb, self.config, planned[0].overrides, left, self.sweep_dir)
        self.place = Outlook.read(self.sweep_dir, self.verb, is_part=is_part)
        for job, plan in zip(jobs, planned, strict=True):
            job.planned = self.place.planned.get(job_key(plan.overrides))
        status = 0
        try:
            self.run_jobs(jobs, composed, console)
        except Interrupted as stopped:
            status = stopped.code
        _doubt(jobs, planned)
        _summary(jobs, console)
        if status or any(job.state == "stopped" for job in jobs):
            console.print(
                self.stopped_words
                if status
                else "out of trainer.max_time; the same command goes on"
            )
            raise SystemExit(status or OUT_OF_TIME)
        ends = [
            (job, plan.overrides, _returned(job, plan))
            for job, plan in zip(jobs, planned, strict=True)
        ]
        if composed and self.track is not None:
            for job, words, one in ends:  # a failed one's value raises what it failed of
                value = None if job.state == "failed" else one.return_value
                choices = dict(word.split("=", 1) for word in words)
                self.rows.append({"name": job.name, "state": job.state, "value": value, **choices})
            with hydra_config(composed[0]) as config:
                self.track(config, self.verb, self.sweep_dir, self.rows)
        if is_grid(self.config):
            self._show_results(jobs, console)
        for job, words, one in ends if not is_grid(self.config) else ():
            end = f"failed ({job.message})" if job.state == "failed" else one.return_value
            say(console, f"trial {job.name}: {end} with {' '.join(words)}")
        if command := sync_command([self.sweep_dir, *(Path(plan.run_dir) for plan in planned)]):
            say(console, f"W&B offline; to upload all: {command}")
        failed = sum(job.state == "failed" for job in jobs)
        if failed and is_grid(self.config):
            raise SystemExit(1)  # one that searches gets it as a failed trial
        self.failed += failed
        return [one for *_, one in ends]

    def _show_results(self, jobs: Sequence[Job], console: Console) -> None:
        """The sweep's table of scores, and the next command."""
        done = [Path(job.folder) for job in jobs if job.folder and job.state in DONE]
        if not (
            records := [record for folder in done if (record := read_record(folder)) is not None]
        ):
            return
        headings = [
            Heading("name"),
            Heading("task"),
            *(Heading(one, True) for one in ("runs", "score")),
        ]
        console.print(
            make_table([*headings, Heading("beside", folds=True)], results(records), console.width)
        )
        root, own = self.sweep_dir.parent, configuration_words(self.config)
        is_judged = own[0] == "--config-dir" and Path(own[1], "paper.yaml").is_file()
        words = (
            [own[1], f"scale={root.name}", f"runs_dir={root.parent.parent}"]
            if is_judged
            else [str(root)]
        )
        following = [f"next: clozelab report {shlex.join(words)}"]
        if (
            self.verb == "pretrain"
            and not is_judged
            and (best := max(records, key=skill_score))
            and skill_score(best)
        ):
            kinds = {
                (str(one.config.get("objective")), one.choices.get("objective", one.name))
                for one in records
            }
            # their losses do not compare
            title = "best" if len(kinds) == 1 else "most beyond what takes no context"
            following += (
                [f"{title}: {best.name} seed {best.seeds}, {score_in_context(best)}"]
                if len(records) > 1
                else []
            )
            following += [line for line in ending(best) if line.startswith(("next:", "from"))]
        for line in following if os.environ.get(SKIP_DOCTOR) != REPRODUCING else ():
            say(console, line)

    def _job(self, plan: PlannedJob, index: int) -> Job:
        name, above = plan.run_dir.lstrip("/") or f"job-{index}", self.sweep_dir.parent
        if plan.run_dir and Path(plan.run_dir).is_relative_to(above):
            name = str(Path(plan.run_dir).relative_to(above))
        # What a job has to hear of the overrides of Hydra's own keys: where else its files are
        # looked for.
        elsewhere = [
            word
            for word in self.config.hydra.overrides.hydra
            if word.startswith("hydra.searchpath=")
        ]
        words = [
            self.verb,
            *configuration_words(self.config),
            *plan.overrides,
            *elsewhere,
            "hydra.mode=RUN",
        ]
        return Job(
            name,
            [sys.executable, "-m", "clozelab", *words],
            words=words,
            folder=plan.run_dir,
            log=self.sweep_dir / "logs" / f"{self.verb}-{name.replace('/', '--')}.log",
            state="skipped" if plan.status == "complete" else "waiting",
        )


class ProcessLauncher(SweepLauncher):
    """Starts `python -m clozelab VERB ...` for each job not complete. Args: see
    conf/hydra/launcher/processes.yaml.
    """

    def __init__(self, jobs_at_once: int | str, grace_seconds: float, fork: bool) -> None:
        if jobs_at_once != "auto":
            require_positive("jobs_at_once", jobs_at_once, instead=" or auto")
        self.jobs_at_once = jobs_at_once
        self.grace_seconds, self.fork = float(grace_seconds), fork
        self.server: ForkServer | None = None

    def get_ready(self, config: DictConfig, num_jobs: int) -> None:
        if self.fork and num_jobs > 1 and is_one_cpu_process(config):
            environment = self._environment(num_jobs) | NO_THREADS_AT_IMPORT
            self.server = ForkServer("clozelab.cli", modules_of(self.verb), environment)

    def run_jobs(
        self, jobs: Sequence[Job], composed: Sequence[DictConfig], console: Console
    ) -> None:
        at_once, _ = share_cores(self.jobs_at_once, self.config, len(jobs))
        environment = self._environment(len(jobs))
        for job, config in zip(jobs, composed, strict=True):
            job.environment, job.words = (
                environment,
                job.words if is_one_cpu_process(config) else None,
            )
        threads = several(int(environment["OMP_NUM_THREADS"]), "thread")
        console.print(
            f"{self.verb}: {several(len(jobs), 'job')}, {at_once} at a time with {threads} each"
        )
        how: Any = {"at_once": at_once, "grace_seconds": self.grace_seconds, "server": self.server}
        ProcessPool(jobs, console=console, place=self.place, **how).run()

    def _environment(self, num_jobs: int) -> dict[str, str]:
        _, threads = share_cores(self.jobs_at_once, self.config, num_jobs)
        # What the user allows a process; a number meant for a whole machine must not reach every
        # job.
        given = {key: os.environ.get(key, "") for key in THREAD_VARIABLES}
        limits = {
            key: int(said) if said.isdigit() and int(said) > 0 else threads
            for key, said in given.items()
        }
        return {key: str(min(threads, limit)) for key, limit in limits.items()}


def modules_of(verb: str) -> list[str]:
    """What the jobs of a sweep import, for a server to import once.

    Task and measure modules are imported by address, after a job has begun. They bring scipy and
    pandas, which took a sixth of a second of every fine-tuning before its first step."""
    modules = ["clozelab.launch.preloaded", "clozelab.launch.clusters", f"clozelab.stages.{verb}"]
    for place in PRELOADED_PLACES.get(verb, ()):
        for address in allowed()[place]:
            module = address.rpartition(".")[0]
            if module not in modules:
                modules.append(module)
    return modules


def is_one_cpu_process(config: DictConfig) -> bool:
    """Whether a job may be forked: a fork must not inherit a GPU context, and ranks start from a
    command line.
    """
    trainer = config.get("trainer")
    return (
        bool(trainer) and trainer.accelerator == "cpu" and trainer.devices * trainer.num_nodes == 1
    )


def share_cores(jobs_at_once: int | str, config: Any, num_jobs: int) -> tuple[int, int]:
    """(jobs at a time, threads of each job's processes) from the cores that this process may
    use.
    """
    cores = usable_cores()
    trainer = config.get("trainer") or {}
    is_cpu = trainer.get("accelerator", "cpu") == "cpu"
    devices = int(trainer.get("devices", 1)) if is_cpu else 1
    if jobs_at_once == "auto":
        jobs_at_once = cores // (int(trainer.get("threads") or 1) * devices) if is_cpu else 1
    at_once = max(1, min(int(jobs_at_once), num_jobs))
    return at_once, max(1, cores // (at_once * devices))


def _doubt(jobs: Sequence[Job], planned: Sequence[PlannedJob]) -> None:
    """An exit status of 0 is not enough: the run folder has to say that the run is complete."""
    for job, plan in zip(jobs, planned, strict=True):
        if job.state == "complete" and plan.run_dir:
            try:
                record = read_record(Path(plan.run_dir))
                status = "nothing" if record is None else record.status
            except ValueError as error:
                status = str(error)
            if status != "complete":
                job.state, job.message = (
                    "failed",
                    f"ended with exit status 0, but its run folder says {status}",
                )


def _summary(jobs: Sequence[Job], console: Console) -> None:
    states = Counter("not begun" if job.state == "waiting" else job.state for job in jobs)
    order = ("complete", "skipped", "failed", "stopped", "held", "left", "not begun")
    console.print(", ".join(f"{states[state]} {state}" for state in order if states[state]))
    reasons = grouped((job for job in jobs if job.state == "failed"), attrgetter("message"))
    for reason, failed in list(reasons.items())[:SHOWN_FAILURES]:
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        say(console, f"  failed: {failed[0].name}{more}: {reason}\n    log: {failed[0].log}")


def sync_command(folders: Sequence[Path]) -> str | None:
    """The one command that uploads every offline W&B run in these run folders; None where there is
    none.
    """
    offline = [
        str(folder.resolve()) for folder in folders if any(folder.glob("wandb/offline-run-*"))
    ]
    if not offline:
        return None
    return (
        f"find {shlex.quote(os.path.commonpath(offline))} -name 'offline-run-*' -prune -exec wandb"
        " sync {} +"
    )


def _returned(job: Job, plan: PlannedJob) -> JobReturn:
    """A job as Hydra sees it; a sweeper optimises its record's headline: best score in percent, or
    validation loss.
    """
    is_failed = job.state == "failed"
    result = JobReturn(
        overrides=list(plan.overrides),
        status=JobStatus.FAILED if is_failed else JobStatus.COMPLETED,
    )
    record = read_record(Path(plan.run_dir)) if plan.run_dir and not is_failed else None
    result.return_value = (
        RuntimeError(job.message) if is_failed else record.score if record else None
    )
    return result


class OptunaSweeper(Sweeper):
    """`hydra/sweeper=search`: Optuna's search over `params` (hydra-optuna-sweeper does the work).
    Args: see conf/hydra/sweeper/search.yaml. There is no study file: the sampler is seeded and
    complete runs are skipped, so the same command replays the search and goes on; name each run
    folder by the values that are searched."""

    def __init__(
        self,
        sampler: Any,
        direction: str,
        num_trials: int,
        trials_at_once: int,
        params: DictConfig | None,
    ) -> None:
        require_package("hydra_plugins.hydra_optuna_sweeper", "optuna", "hydra/sweeper=search")
        import optuna
        from hydra_plugins.hydra_optuna_sweeper._impl import OptunaSweeperImpl

        optuna.logging.set_verbosity(logging.WARNING)
        settings = {str(key): value for key, value in dict(sampler).items()}
        kind: Any = getattr(optuna.samplers, str(settings.pop("name")), None)
        is_sampler = isinstance(kind, type) and issubclass(kind, optuna.samplers.BaseSampler)
        if (
            not is_sampler
            or direction not in ("maximize", "minimize")
            or num_trials < 1
            or trials_at_once < 1
        ):
            wanted = f"sampler.name={sampler['name']} must be a class of optuna.samplers"
            ways, numbers = (
                f"{direction=!s} maximize or minimize",
                f"{num_trials=} and {trials_at_once=} positive",
            )
            raise ValueError(f"hydra.sweeper: {wanted}, {ways}, {numbers}")
        nothing = dict.fromkeys(("storage", "study_name", "search_space", "custom_search_space"))
        self.search = OptunaSweeperImpl(
            sampler=kind(**settings),
            direction=direction,
            n_trials=num_trials,
            n_jobs=trials_at_once,
            params=params,
            max_failure_rate=1.0,
            **nothing,  # a learning rate that diverges is an answer too
        )

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.folder = Path(str(config.hydra.sweep.dir))
        if (
            getattr(task_function, "clozelab_verb", "") == "pretrain"
            and self.search.direction == "maximize"
        ):
            raise ValueError(
                "a pre-training's value is its loss: say hydra.sweeper.direction=minimize"
            )
        self.search.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def sweep(self, arguments: list[str]) -> None:
        self.search.sweep(arguments)
        # what the plugin leaves there
        best = OmegaConf.load(self.folder / "optimization_results.yaml")
        words = " ".join(f"{key}={value}" for key, value in best.best_params.items())
        say(Console(stderr=True), f"best of this search: {best.best_value:.6g} with {words}")
        if getattr(self.search.launcher, "failed", 0):
            raise SystemExit(1)


class GridSweeper(Sweeper):
    """`hydra/sweeper=grid`: every combination of a sweep's values, by Hydra's basic sweeper, with
    its arguments. Its rehearsal, ten seconds for the 120 jobs of a demo, is left out: our launchers
    check all jobs before the first."""

    def __init__(self, max_batch_size: int | None, params: DictConfig | None) -> None:
        # Not a subclass, and imported late: Hydra's search for plugins loads that module anew.
        from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

        grid: Any = BasicSweeper
        self.grid = grid(max_batch_size, params)

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.grid.setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self.grid.validate_batch_is_legal = lambda batch: None  # noqa: ARG005
        split = self.grid.split_arguments

        def split_and_name(overrides: Any, max_batch_size: int | None) -> Any:
            (jobs,) = split(overrides, None)
            return list(
                self.grid.split_overrides_to_chunks(
                    named_jobs(jobs, config), max_batch_size or len(jobs)
                )
            )

        self.grid.split_arguments = split_and_name

    def sweep(self, arguments: list[str]) -> Any:
        return self.grid.sweep(arguments)


def register() -> None:
    """Let Hydra find the classes that conf/hydra names. It accepts plugins only from the package
    hydra_plugins: ours get names there, and no second top-level package."""
    # which are launchers like those here
    from clozelab.launch.clusters import RayLauncher, SlurmLauncher

    plugins = Plugins.instance()
    for kind in (ProcessLauncher, SlurmLauncher, RayLauncher, GridSweeper, OptunaSweeper):
        plugins.register(kind)
        plugins.class_name_to_class[f"{PLUGIN_PACKAGE}.{kind.__name__}"] = kind
