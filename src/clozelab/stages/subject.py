"""From composed sweeps to what the planner counts and the pre-flight looks at.

That is arms, tasks, and the disk and time that runs will want.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import cast

from clozelab.checks.subject import WARNING, Finding, Subject, Task
from clozelab.config import typed
from clozelab.corpus.files import Source
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import PreparedCorpus
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.finetuning import FinetuningDataModule, TaskInputs
from clozelab.launch.mistakes import CONFIGURATION_ERRORS, explain
from clozelab.launch.progress import write_plan
from clozelab.launch.sweep import Sweep, phase_objectives
from clozelab.models.folders import read_config_dict
from clozelab.modules.model import max_positions, named_labels, open_tokenizer
from clozelab.planning.cost import Costing, DiskUsage, TaskFiles, assemble, sizes, with_speeds
from clozelab.planning.jobs import Arm, Corpus, JobGroup, Words, made_up_corpus
from clozelab.planning.starts import constants
from clozelab.planning.steps import Step, make_steps
from clozelab.runs.find import Runs, find
from clozelab.runs.identity import SEED_KEYS
from clozelab.runs.inputs import require_encoder
from clozelab.schema import TrainerConfig
from clozelab.stages import evaluate, factory, finetune, pretrain
from clozelab.stages.prepare import find_corpus, prepared_corpus
from clozelab.targets import build, check_targets
from clozelab.tasks.preview import TaskPreview
from clozelab.terminal import quiet_log
from clozelab.text.formatting import STAGE_NAMES
from clozelab.text.plain import JsonObject, ReadOnlyJson
from clozelab.training.trainer import Hardware

log = logging.getLogger(__name__)

SAMPLED_DOCUMENTS = {"num_documents": 1000, "entropy_documents": 10}
"""Key of a generator -> its largest value, where a small world stands for one not there yet."""
USER_ERRORS: tuple[type[Exception], ...] = (
    ValueError,
    FileNotFoundError,
    PermissionError,
    *CONFIGURATION_ERRORS,
)


def jobs_by_settings(sweep: Sweep) -> dict[Words, list[Words]]:
    """The jobs of a sweep, grouped so that those of a group differ in seeds alone.

    The keys are the words that tell a group from the others.
    """
    # (arm=a, scale=demo) and (arm=b, scale=demo) are told apart by arm=a and arm=b.
    groups = sweep.groups(lambda key: key not in SEED_KEYS)
    common = set()
    if len(groups) > 1:
        common = set.intersection(*map(set, groups))
    jobs_of = {}
    for words, jobs in groups.items():
        jobs_of[tuple(word for word in words if word not in common)] = jobs
    return jobs_of


@dataclass(kw_only=True)
class Corpora:
    """The corpus of each pre-training configuration, opened once.

    It is made-up text where it is not prepared yet or, unless `strict`, cannot be.

    Attributes:
        awaits_world: one of those not prepared is generated, and brings its tasks along.
        world: a folder to generate a small one into, for what it and its tasks hold.
        preparing: seconds that it will take to prepare what is not prepared yet.
        sampling: processor seconds that the small worlds took.
    """

    strict: bool
    world: Path | None = None
    awaits_world: bool = False
    preparing: float = 0.0
    sampling: float = 0.0
    unprepared: list[str] = field(default_factory=list)
    _opened: dict[str, Corpus] = field(default_factory=dict)

    def __call__(self, settings: ReadOnlyJson) -> Corpus:
        key = repr((settings["corpus"], settings["tokenizer"]))
        if key not in self._opened:
            self._opened[key] = self._open(settings)
        corpus = self._opened[key]
        if corpus.folder is None:
            self.awaits_world |= settings["corpus"]["generator"] is not None
            self.unprepared.append(settings["corpus"]["name"])
        return corpus

    def _open(self, settings: ReadOnlyJson) -> Corpus:
        try:
            folder = find_corpus(typed("pretrain", settings))
        except USER_ERRORS:
            if self.strict:
                raise
            folder = None
        if folder is not None:
            return self._open_folder(settings, folder)
        # Not prepared yet: a small one of its kind, or nothing but sizes.
        if settings["corpus"]["generator"] is not None and self.world is not None:
            return self._sample_world(settings, self.world)
        self.preparing += text_bytes(settings) / float(constants()["prepared_bytes_per_second"])
        return made_up_corpus(int(settings["tokenizer"]["vocab_size"]))

    def _open_folder(self, settings: ReadOnlyJson, folder: Path) -> Corpus:
        prepared = PreparedCorpus.open(folder)
        tokenizer = prepared.tokenizer
        return Corpus(
            str(settings["corpus"]["name"]),
            prepared.train,
            prepared.validation,
            SpecialIds.of(tokenizer),
            tokenizer.unk_id,
            tokenizer,
            folder,
        )

    def _sample_world(self, settings: ReadOnlyJson, world: Path) -> Corpus:
        """A generated corpus with few of its documents, prepared in a folder of the caller's."""
        started = time.process_time()
        corpus = copy.deepcopy(dict(settings["corpus"]))
        generator = corpus["generator"]
        # Text and time grow with the number of documents. The bound of the loss is computed on a
        # few documents more, and is not needed here.
        scale = max(1.0, generator.get("num_documents", 1) / SAMPLED_DOCUMENTS["num_documents"])
        for key in SAMPLED_DOCUMENTS.keys() & generator.keys():
            generator[key] = min(int(generator[key]), SAMPLED_DOCUMENTS[key])
        small = {"corpus": corpus, "data_dir": str(world), "cache_dir": str(world / "cache")}
        # What is said of a sample, such as how large its vocabulary is, is not of the corpus.
        with quiet_log():
            prepared = prepared_corpus(typed("pretrain", {**settings, **small}))
        seconds = time.process_time() - started
        # The whole world will take so many times as long.
        self.sampling += seconds
        self.preparing += scale * seconds
        sample = self._open_folder(settings, prepared.folder)
        sentences = scale * (sample.train.num_sentences + sample.validation.num_sentences)
        held_out = round(sentences * float(corpus["validation_fraction"]))
        return replace(sample, folder=None, sampled=scale, sampled_held_out=held_out)

    def read_preview(self, settings: ReadOnlyJson) -> TaskPreview:
        """Texts and labels of a task's files."""
        try:
            return read_preview(settings)
        except (OSError, ValueError):
            if not self.sampling:
                raise
            return read_preview(self.where_it_is(settings))

    def where_it_is(self, settings: ReadOnlyJson) -> ReadOnlyJson:
        """The settings, with the small world's folder where the real one is not there yet."""
        if not self.sampling:
            return settings
        return {**settings, "data_dir": str(self.world)}


def text_bytes(settings: ReadOnlyJson) -> int:
    """Bytes of a corpus's sources on disk; 0 where they are not there, with a warning."""
    data_dir = Path(settings["data_dir"])
    total = 0
    try:
        for index, source in enumerate(settings["corpus"]["sources"]):
            for shard in Source(**source).shards(index, data_dir):
                total += shard.num_bytes
    except (OSError, ValueError, TypeError) as error:
        log.warning("%s", str(error).partition("\n")[0])
        return 0
    return total


def open_arm(settings: ReadOnlyJson, jobs: Sequence[Words], corpora: Corpora) -> Arm:
    """The arm of a composed pre-training configuration."""
    cfg = typed("pretrain", settings)
    objectives = pretrain.build_objectives(cfg)
    last_objective = objectives[-1]
    corpus = corpora(settings)
    if settings["encoder"] is None:
        config = pretrain.encoder_config(cfg, corpus.ids, last_objective)
    else:
        config = replace(
            pretrain.given_config(cfg),
            is_causal=last_objective.is_causal,
            predicts_next=last_objective.predicts_next,
        )
    return Arm(
        name=str(settings["arm"]),
        objective=last_objective,
        config=config,
        phases=settings["phases"],
        corpus=corpus,
        objectives=objectives,
        nodes=phase_objectives(cfg),
        settings=settings,
        jobs=jobs,
    )


def analyse(steps: Sequence[Step], corpora: Corpora, runs: Runs | None = None) -> Costing:
    """What an experiment costs as far as it is known without timing anything.

    `runs` are its own, at this scale.
    """
    groups: dict[str, list[JobGroup]] = {"pretrain": [], "finetune": [], "evaluate": []}
    for step in steps:
        if step.is_sweep:
            for jobs in jobs_by_settings(step.sweep).values():
                groups[step.verb].append(JobGroup(step.sweep.settings(jobs[0]), jobs))
    arms = [open_arm(settings, jobs, corpora) for settings, jobs in groups["pretrain"]]
    files = TaskFiles(corpora.read_preview)
    evaluations = []
    for group in groups["evaluate"]:
        evaluations.append(group._replace(settings=corpora.where_it_is(group.settings)))
    return assemble(steps, arms, groups["finetune"], files, runs, evaluations)


def task_inputs(
    settings: ReadOnlyJson, name: str, tokenizer: Tokenizer | None = None, longest: int = 512
) -> TaskInputs:
    """What data are opened with before any encoder is there: for their texts, not their tokens."""
    return TaskInputs(
        name=name,
        data_dir=Path(settings["data_dir"]),
        cache_dir=Path(settings["cache_dir"]),
        tokenizer=cast("Tokenizer", tokenizer),
        max_positions=longest,
    )


def open_task(
    settings: ReadOnlyJson, tokenizer: Tokenizer | None = None, longest: int = 512
) -> FinetuningDataModule:
    """A task's data before any encoder is there."""
    inputs = task_inputs(settings, settings["task"]["name"], tokenizer, longest)
    return factory.build_task_data(settings["task"], inputs, hub=settings.get("hub"))


def read_preview(settings: ReadOnlyJson) -> TaskPreview:
    """Texts and labels of a task's files. ValueError: they are not right."""
    return open_task(settings).preview()


def gather(folder: Path, words: Sequence[str]) -> Subject:
    """What `examine` wants to know of an experiment with the user's overrides.

    ValueError for one that no stage takes.
    """
    return Gathering(folder.name, make_steps(folder, words), folder.name).subject()


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
        self.finetunings: list[JobGroup] = []
        self.evaluations: list[JobGroup] = []
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
        # Several arms share a corpus, and several jobs a notice.
        unprepared = dict.fromkeys(self.corpora.unprepared)
        noticed = dict.fromkeys(self.noticed)
        return Subject(
            f"{self.name} ({scale})",
            self.arms,
            self.tasks,
            self._disk_usage(root),
            self.refusals,
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
            hardware = self._hardware_of(cfg.trainer, sweep.runs_here)
            pretrain.check_pretraining(cfg, hardware)
            arm = open_arm(settings, jobs, self.corpora)
            for name, encoder in pretrain.read_folders(cfg, arm.objectives).items():
                if not _is_there(encoder) and not _is_of_sweep(encoder, sweep):
                    require_encoder(encoder, name)
            if all(map(_is_there, pretrain.read_folders(cfg, arm.objectives).values())):
                pretrain.check_inputs(cfg, arm.objectives)
            self.arms.append(arm)
        elif verb == "evaluate":
            evaluate.check_evaluation(cfg)
            if self.experiment and f"measure={cfg.measure.name}" not in jobs[0]:
                raise ValueError(
                    f"no column would find this measure, which is named {cfg.measure.name}:"
                    " give it a file of that name in conf/measure (or your own folder),"
                    " and say that name in the column"
                )
            self._require_files(settings)
            self.evaluations.append(JobGroup(settings, jobs))
        else:
            finetune.check_finetuning(cfg)
            self.finetunings.append(JobGroup(settings, jobs))

    def _require_files(self, settings: ReadOnlyJson) -> None:
        """ValueError where a measure's own files are not there.

        The text of a corpus comes with the corpus.
        """
        measure = settings["measure"]
        try:
            if measure["task"] is not None:
                open_task({**settings, "task": measure["task"]})
            elif "files" in measure["data"]:
                inputs = task_inputs(settings, measure["name"])
                build("measure.data", measure["data"])(inputs=inputs, is_causal=False)
        except ValueError as error:
            if not self.corpora.awaits_world:
                raise ValueError(f"{error}\n  to go without measures: evaluate=none") from error
            self.corpora.unprepared.append(f"measure {measure['name']}")

    def _hardware_of(self, trainer: TrainerConfig, runs_here: bool) -> Hardware:
        """This machine; for jobs that run elsewhere what they ask for, where it has not that."""
        try:
            return factory.hardware_of(trainer)
        except USER_ERRORS as error:
            if runs_here:
                raise
            what = f"not to be had here: {_reason(error)}"
            remedy = "the jobs run elsewhere, and each checks its own machine"
            self.noticed.append(Finding("machine", WARNING, what, "", remedy))
            return Hardware(
                "cpu", trainer.devices, trainer.num_nodes, trainer.strategy, trainer.precision
            )

    # Tasks

    def _add_tasks(self, sweep: Sweep) -> None:
        """Look at every task on every encoder."""
        missing_encoder_of = self._missing_encoders(sweep)
        for jobs in sweep.groups(lambda key: key in ("task", "encoder")).values():
            # An encoder that is not there is no fault of the task's: another one shows whether the
            # task is sound.
            job = next((job for job in jobs if job not in missing_encoder_of), jobs[0])
            settings = sweep.settings(job)
            name = settings["task"]["name"]
            try:
                self._add_task(settings)
            except USER_ERRORS as error:
                if self.corpora.awaits_world and "not found" in str(error):
                    self.corpora.unprepared.append(f"task {name}")
                else:
                    remedy = _without_task(sweep, name)
                    self.refusals.append((f"task {name}", _reason(error) + remedy))
        if 0 < len(missing_encoder_of) < len(sweep.jobs):
            example = next(iter(missing_encoder_of.values()))
            what = "some jobs have no encoder: those that are not complete will fail"
            figure = f"{len(missing_encoder_of)} of {len(sweep.jobs)} jobs, e.g. {example}"
            remedy = "pre-train it first, or leave its row out"
            self.noticed.append(Finding("encoder", WARNING, what, figure, remedy))

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

    def _add_task(self, settings: JsonObject) -> None:
        """Look at a task on the arms' encoders, or on a given one."""
        task = settings["task"]
        name = task["name"]
        stored_label_names = []
        if "pretrain" in self.steps:
            # A corpus that is not prepared yet has no tokenizer.
            tokenizers = [arm.corpus.tokenizer for arm in self.arms if arm.corpus.tokenizer]
            tokenizer = next(iter(tokenizers), None)
            trained_length = min((arm.longest for arm in self.arms), default=512)
        else:
            encoder = Path(require_encoder(settings["encoder"]))
            tokenizer = open_tokenizer(encoder)
            trained_length = max_positions(encoder)
            stored_label_names = named_labels(read_config_dict(encoder), encoder)
        if settings["hub"]:
            what = f"{name}: its files come from the hub and are not looked at"
            remedy = "data_dir=FOLDER with the same files would be"
            self.noticed.append(Finding("task", WARNING, what, "", remedy))
            return
        # The files: that they are there, and what they hold.
        task_data = open_task(settings, tokenizer, trained_length)
        if settings["predict_test"]:
            task_data.require_test_files()
        preview = task_data.preview()
        self.files.of(settings, preview)
        module = task["module"]
        self.tasks.append(
            Task(
                name,
                preview,
                tokenizer,
                max_seq_length=task["data"]["max_seq_length"],
                trained_length=trained_length,
                metrics=module.get("metrics") or (),
                number_range=module.get("number_range"),
                stored_label_names=stored_label_names,
            )
        )

    # Disk

    def _disk_usage(self, root: Path) -> DiskUsage:
        """What all runs want; notes sizes of jobs by speeds that are known: nothing is timed."""
        steps = list(self.steps.values())
        evaluations: list[JobGroup] = []
        if self.arms:
            evaluations = self.evaluations
        # Those whose encoder's shape is known.
        finetunings = self.finetunings
        if "pretrain" not in self.steps:
            finetunings = [group for group in finetunings if _is_there(group.settings["encoder"])]
        elif not self.arms:
            finetunings = []
        costing = assemble(steps, self.arms, finetunings, self.files, find(root), evaluations)
        if costing.shapes:
            cache_dir = Path(costing.shapes[0].settings["cache_dir"])
            self.costing = with_speeds(costing, cache_dir, measure=False)
        return costing.disk_usage(root, steps)


def _without_task(sweep: Sweep, name: str) -> str:
    """What to add to a refusal: the override that goes without a task, where others are left."""
    words = chain.from_iterable(sweep.groups(lambda key: key == "task"))
    others = [word.partition("=")[2] for word in words if word != f"task={name}"]
    if not others:
        return ""
    return f"; to go without it: task={','.join(others)}"


def _is_there(encoder: str | Path) -> bool:
    try:
        require_encoder(encoder)
    except ValueError:
        return False
    return True


def _is_of_sweep(encoder: Path, sweep: Sweep) -> bool:
    """Whether a job of the sweep will leave this encoder."""
    return any(encoder.is_relative_to(sweep.settings(job)["run_dir"]) for job in sweep.jobs)


def _reason(error: Exception) -> str:
    """An error's message as one line; of one that Hydra has wrapped, the cause's."""
    if type(error).__name__ == "InstantiationException" and error.__cause__:
        return " ".join(str(error.__cause__).split())
    return " ".join(str(error).split())
