"""From composed sweeps to what the pre-flight looks at: arms, tasks, and disk."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from clozelab.addresses import build, build_parts, check_targets
from clozelab.assembly import evaluation, factory, finetuning, pretraining
from clozelab.assembly.heads import has_word_head, no_word_head
from clozelab.assembly.together import model_folders
from clozelab.checks.subject import WARNING, Finding, Subject, Task
from clozelab.config import kept_step, typed
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.heldout import file_sources
from clozelab.launch.mistakes import CONFIGURATION_ERRORS, explain
from clozelab.launch.progress import write_plan
from clozelab.launch.sweep import Sweep
from clozelab.modules.model import max_positions, open_tokenizer
from clozelab.planning.arms import Arm
from clozelab.planning.cost import Costing, DiskUsage, TaskFiles, assemble, sizes, with_speeds
from clozelab.planning.shapes import JobGroup, TaskPlace, Words
from clozelab.planning.steps import Step, make_steps
from clozelab.planning.sweeps import (
    USER_ERRORS,
    Corpora,
    doubts_of_own_tasks,
    jobs_by_settings,
    open_arm,
    open_task,
    read_preview,
    task_inputs,
)
from clozelab.planning.tasks import require_percent
from clozelab.results.experiment import is_filled_form
from clozelab.runs.find import find
from clozelab.runs.inputs import require_encoder
from clozelab.runs.record import STAGE_NAMES
from clozelab.runs.reuse import kept_steps
from clozelab.schema import EvaluateConfig, FinetuneConfig, PretrainConfig, TrainerConfig
from clozelab.training.trainer import Hardware


def gather(folder: Path, overrides: Sequence[str]) -> Subject:
    """What `examine` wants to know of an experiment with the user's overrides.

    ValueError for one that no stage takes.
    """
    return Gathering(folder.name, make_steps(folder, overrides), folder.name).subject()


def gather_sweep(step: Step, plan_folder: Path | None = None) -> Subject:
    """The same of one stage's sweep, or of a single run.

    `plan_folder`: where the sizes of its jobs are left for the sweep that asked.
    """
    experiment = ""
    name = STAGE_NAMES[step.verb]
    # A folder of one's own tasks and scales is no experiment: its verb has no sweep of its own.
    if step.folder and step.config_name != step.verb:
        experiment = step.folder.name
        name = f"{experiment}, {name}"
    try:
        gathering = Gathering(name, [step], experiment)
        if plan_folder is None:  # a sweep has said it by itself
            for message in doubts_of_own_tasks(step.sweep):
                gathering.noticed.append(Finding("task", WARNING, message))
        subject = gathering.subject()
        if plan_folder is not None and gathering.costing is not None:
            write_plan(plan_folder, [sizes(gathering.costing, step.verb)], step.verb)
        return subject
    except CONFIGURATION_ERRORS as error:
        reason = explain(error, step.verb, config_name=step.config_name, folder=step.folder)
        raise ValueError(reason) from error


class Gathering:
    """Collects what the pre-flight looks at, from some steps.

    What cannot be built is kept as a refusal with its reason.
    """

    def __init__(self, name: str, steps: Sequence[Step], experiment: str = "") -> None:
        self.name = name
        self.experiment = experiment
        self.steps = {step.verb: step for step in steps if step.is_sweep}
        self.refusals: list[tuple[str, str]] = []
        self.noticed: list[Finding] = []
        self.arms: list[Arm] = []
        self.tasks: list[Task] = []
        self.finetunings: list[JobGroup[FinetuneConfig]] = []
        self.evaluations: list[JobGroup[EvaluateConfig]] = []
        self.costing: Costing | None = None
        self.corpora = Corpora(strict=True)
        self.files = TaskFiles(read_preview)

    def subject(self) -> Subject:
        """All of it as it would run."""
        *_, last_step = self.steps.values()
        root, scale = last_step.root
        for verb, step in self.steps.items():
            self._add_settings(verb, step.sweep)
        if "finetune" in self.steps:
            self._add_tasks(self.steps["finetune"].sweep)
        # Several arms share a corpus, and several jobs a notice or a refusal.
        unprepared = dict.fromkeys(self.corpora.unprepared)
        noticed = dict.fromkeys(self.noticed)
        return Subject(
            f"{self.name} ({scale})",
            self.arms,
            self.tasks,
            self._disk_usage(root),
            list(dict.fromkeys(self.refusals)),
            unprepared=list(unprepared),
            noticed=list(noticed),
        )

    # Settings of arms, of rows on tasks, of measures

    def _add_settings(self, verb: str, sweep: Sweep) -> None:
        """Look at the settings of every arm, or of every row on every task.

        What is wrong with many is said once.
        """
        titles_of: dict[str, list[str]] = {}  # reason -> which jobs are refused for it
        for title, jobs in jobs_by_settings(sweep).items():
            try:
                self._add_kind(verb, sweep, jobs)
            except USER_ERRORS as error:
                titles_of.setdefault(_reason(error), []).append(" ".join(title))
        for reason, titles in titles_of.items():
            refused = f"{STAGE_NAMES[verb]} {titles[0]}"
            if len(titles) > 1:
                refused += f" and {len(titles) - 1} more"
            self.refusals.append((refused, reason))

    def _add_kind(self, verb: str, sweep: Sweep, jobs: Sequence[Words]) -> None:
        """Check jobs that differ in seeds alone as their stage would; ValueError as it would."""
        settings = sweep.settings(jobs[0])
        check_targets(settings)
        cfg = typed(verb, settings)
        if verb == "pretrain":
            self.arms.append(self._checked_arm(cfg, sweep, jobs))
        elif verb == "evaluate":
            evaluation.check_evaluation(cfg)
            if self.experiment and f"measure={cfg.measure.name}" not in jobs[0]:
                raise ValueError(
                    f"no column would find this measure, which is named {cfg.measure.name}:"
                    " give it a file of that name in conf/measure (or your own folder),"
                    " and say that name in the column"
                )
            self._require_kept(cfg)
            self._require_models(cfg)
            self._require_files(cfg)
            self.evaluations.append(JobGroup(cfg, jobs))
        else:
            finetuning.check_finetuning(cfg)
            self._require_kept(cfg)
            if is_filled_form(self.steps[verb].folder):
                require_percent(cfg.task)
            self.finetunings.append(JobGroup(cfg, jobs))

    def _checked_arm(self, cfg: PretrainConfig, sweep: Sweep, jobs: Sequence[Words]) -> Arm:
        """What is pre-trained; ValueError as its stage would, but for encoders that come yet."""
        hardware = self._hardware_of(cfg.trainer, sweep.runs_here)
        _, objectives = self.corpora.objectives(cfg)
        pretraining.check_pretraining(cfg, hardware, objectives)
        arm = open_arm(cfg, jobs, self.corpora)
        folders = pretraining.read_folders(cfg, arm.objectives)
        for name, encoder in folders.items():
            if not _is_there(encoder) and not _belongs_to_sweep(encoder, sweep):
                require_encoder(encoder, name)
        if all(map(_is_there, folders.values())):
            pretraining.check_inputs(cfg, arm.objectives)
        return arm

    def _require_kept(self, cfg: FinetuneConfig | EvaluateConfig) -> None:
        """ValueError for an encoder on the way that its arm neither has kept nor will keep."""
        fraction = cfg.encoder_fraction
        if fraction == 1.0 or cfg.encoder is None or _is_there(cfg.encoder):
            return
        for arm in self.arms:
            if arm.name != cfg.encoder_arm or arm.settings.keep_encoders_at_words is not None:
                continue
            steps = kept_steps(arm.settings.keep_encoders, arm.steps)
            if kept_step(fraction, arm.steps) not in steps:
                raise ValueError(
                    f"encoder_fraction={fraction:g}: the arm {arm.name} keeps no encoder there; say"
                    f" keep_encoders: [{fraction:g}] in the arm, or for all arms below sweeps:"
                    " pretrain"
                )

    def _require_models(self, cfg: EvaluateConfig) -> None:
        """ValueError where what is measured is not there, and no other step will leave it."""
        if set(self.steps) != {"evaluate"}:
            return
        if cfg.models is not None:
            model_folders(cfg.models)
        else:
            require_encoder(cfg.encoder)

    def _require_files(self, cfg: EvaluateConfig) -> None:
        """ValueError where a measure's own files are not there, or no text can be read in them.

        The text of a corpus comes with the corpus.
        """
        measure = cfg.measure
        data = measure.data or {}
        try:
            if measure.task is not None:
                place = TaskPlace.of_measure(cfg)
                open_task(place)
                _require_prompted(place, cfg, measure.name)
            elif "files" in data or "folder" in data:
                inputs = task_inputs(cfg, measure.name)
                build("measure.data", data)(inputs=inputs, is_causal=False)
            for source in file_sources(data.get("sources")):
                source.require_files(cfg.data_dir)
                for shard in source.shards(0, Path(cfg.data_dir)):
                    shard.check()
        except ValueError as error:
            if not self.corpora.awaits_world:
                raise ValueError(f"{error}\n  to go without measures: evaluate=none") from error
            self.corpora.unprepared.append(f"measure {measure.name}")

    def _hardware_of(self, trainer: TrainerConfig, runs_here: bool) -> Hardware:
        """This machine; for jobs that run elsewhere what they ask for, where it has not that."""
        try:
            return factory.hardware_of(trainer)
        except USER_ERRORS as error:
            if runs_here:
                raise
            problem = f"not to be had here: {_reason(error)}"
            remedy = "the jobs run elsewhere, and each checks its own machine"
            self.noticed.append(Finding("machine", WARNING, problem, "", remedy))
            return Hardware(
                "cpu", trainer.devices, trainer.num_nodes, trainer.strategy, trainer.precision
            )

    # Tasks

    def _add_tasks(self, sweep: Sweep) -> None:
        """Look at every task on every encoder."""
        missing_encoder_of = self._missing_encoders(sweep)
        for jobs in sweep.groups(_tells_tasks_apart).values():
            # An encoder that is not there is no fault of the task's: another one shows whether the
            # task is sound.
            job = next((job for job in jobs if job not in missing_encoder_of), jobs[0])
            name = sweep.settings(job)["task"]["name"]
            try:
                self._add_task(sweep.config(job))
            except USER_ERRORS as error:
                if self.corpora.awaits_world and "not found" in str(error):
                    self.corpora.unprepared.append(f"task {name}")
                else:
                    remedy = _without_task(sweep, job)
                    self.refusals.append((f"task {name}", _reason(error) + remedy))
        if 0 < len(missing_encoder_of) < len(sweep.jobs):
            example = next(iter(missing_encoder_of.values()))
            problem = "some jobs have no encoder: those that are not complete will fail"
            figure = f"{len(missing_encoder_of)} of {len(sweep.jobs)} jobs, e.g. {example}"
            remedy = "pre-train it first, or leave its row out"
            self.noticed.append(Finding("encoder", WARNING, problem, figure, remedy))

    def _missing_encoders(self, sweep: Sweep) -> dict[Words, str]:
        """Job -> the encoder that it needs and that neither is there nor will be pre-trained."""
        if "pretrain" in self.steps:
            return {}
        missing_encoder_of: dict[Words, str] = {}
        # Fine-tuning seeds all begin from the same encoder.
        for jobs in sweep.groups(lambda key: key != "seed").values():
            encoder = str(sweep.settings(jobs[0])["encoder"])
            if not _is_there(encoder):
                missing_encoder_of |= dict.fromkeys(jobs, encoder)
        return missing_encoder_of

    def _add_task(self, cfg: FinetuneConfig) -> None:
        """Look at a task on the arms' encoders, or on a given one."""
        task = cfg.task
        name = task.name
        if "pretrain" in self.steps:
            tokenizers = self._tokenizers()
            trained_length = min((arm.longest for arm in self.arms), default=512)
        else:
            encoder = Path(require_encoder(cfg.encoder))
            tokenizers = {encoder.name: open_tokenizer(encoder)}
            trained_length = max_positions(encoder)
        if cfg.hub:
            problem = f"{name}: its files come from the hub and are not looked at"
            remedy = "data_dir=FOLDER with the same files would be"
            self.noticed.append(Finding("task", WARNING, problem, "", remedy))
            return
        # The files: that they are there, and what they hold.
        task_place = TaskPlace.of_finetuning(cfg)
        tokenizer = next(iter(tokenizers.values()), None)
        task_data = open_task(task_place, tokenizer, trained_length)
        _require_prompted(task_place, cfg, name)
        if cfg.predict_test:
            task_data.require_test_files()
        preview = task_data.preview()
        self.files.of(task_place, preview)
        metrics = task.module.get("metrics")
        reads_windows = task.data.get("long_documents") == "windows"
        subject = Task(
            name,
            preview,
            tokenizers,
            max_seq_length=task.data["max_seq_length"],
            trained_length=trained_length,
            metrics=metrics or (),
            number_range=task.module.get("number_range"),
            reads_windows=reads_windows,
        )
        self.tasks.append(subject)

    def _tokenizers(self) -> dict[str, Tokenizer]:
        """Arm -> its tokenizer, each vocabulary once."""
        named: dict[str, tuple[str, Tokenizer]] = {}
        for arm in self.arms:
            # A corpus that is not prepared yet has none.
            if arm.corpus.tokenizer is not None:
                named.setdefault(arm.corpus.tokenizer.fingerprint, (arm.name, arm.corpus.tokenizer))
        return dict(named.values())

    # Disk

    def _disk_usage(self, root: Path) -> DiskUsage:
        """What all runs want; notes sizes of jobs by speeds that are known: nothing is timed."""
        steps = list(self.steps.values())
        evaluations: list[JobGroup[EvaluateConfig]] = []
        if self.arms:
            evaluations = self.evaluations
        # Those whose encoder's shape is known.
        finetunings = self.finetunings
        if "pretrain" not in self.steps:
            finetunings = [group for group in finetunings if _is_there(str(group.settings.encoder))]
        elif not self.arms:
            finetunings = []
        costing = assemble(steps, self.arms, finetunings, self.files, find(root), evaluations)
        if costing.shapes:
            cache_dir = Path(costing.shapes[0].settings.cache_dir)
            self.costing = with_speeds(costing, cache_dir, measure=False)
        return costing.disk_usage(root, steps)


def _tells_tasks_apart(key: str) -> bool:
    """Whether an override of this key may have another task, other files or another encoder."""
    return key in ("task", "encoder") or key.startswith(("task.data.", "task.module."))


def _without_task(sweep: Sweep, job: Words) -> str:
    """What to add to a job's refusal: the override without its task, where others are left."""
    task_overrides = chain.from_iterable(sweep.groups(lambda key: key == "task"))
    others = [override.partition("=")[2] for override in task_overrides if override not in job]
    if not others:
        return ""
    return f"; to go without it: task={','.join(others)}"


def _require_prompted(place: TaskPlace, cfg: FinetuneConfig | EvaluateConfig, name: str) -> None:
    """ValueError where an encoder that is there cannot answer a prompt.

    It has to have the head of pre-training, and each word as one token; the template has to leave a
    place for the text. A `name` is of a task or a measure.
    """
    _, target = build_parts(place.task)
    if "lm" not in target.head_kinds or cfg.encoder is None or not _is_there(cfg.encoder):
        return
    folder = Path(cfg.encoder)
    tokenizer = open_tokenizer(folder)
    data = open_task(place, tokenizer, max_positions(folder))
    data.target.fitted(tokenizer)
    data.unit.check_tokenizer(tokenizer)
    if cfg.initialisation == "pretrained" and not has_word_head(folder):
        raise no_word_head(folder, name)


def _is_there(encoder: str | Path) -> bool:
    try:
        require_encoder(encoder)
    except ValueError:
        return False
    return True


def _belongs_to_sweep(encoder: Path, sweep: Sweep) -> bool:
    """Whether a job of the sweep will leave this encoder."""
    return any(encoder.is_relative_to(sweep.settings(job)["run_dir"]) for job in sweep.jobs)


def _reason(error: Exception) -> str:
    """An error's message as one line; of one that Hydra has wrapped, the cause's."""
    if type(error).__name__ == "InstantiationException" and error.__cause__:
        return " ".join(str(error.__cause__).split())
    return " ".join(str(error).split())
