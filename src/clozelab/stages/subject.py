"""From composed sweeps to what the planner counts and the pre-flight looks at: arms, tasks, and
what runs will want.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from clozelab.checks.subject import WARNING, Budget, Finding, Subject, Task
from clozelab.corpus.files import Source, find_files
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import PreparedCorpus
from clozelab.datamodules.files import TaskPreview
from clozelab.datamodules.finetuning import FinetuningDataModule, TaskInputs
from clozelab.launch.progress import write_plan
from clozelab.launch.sweep import CONFIGURATION_ERRORS, Sweep, explain, phase_objectives
from clozelab.models.folders import read_config, read_config_dict
from clozelab.modules.model import max_positions, named_labels, open_tokenizer
from clozelab.planning.cost import Costing, TaskFiles, assemble, sizes, with_speeds
from clozelab.planning.jobs import Arm, Corpus, Kind, Words, made_up_corpus
from clozelab.planning.starts import constants
from clozelab.planning.steps import Step, make_steps
from clozelab.runs.find import Runs, find
from clozelab.runs.fingerprint import SEED_KEYS, require_encoder
from clozelab.stages import factory, preconditions
from clozelab.stages.prepare import find_corpus, prepared_corpus
from clozelab.suggestions import STAGE_NAMES
from clozelab.targets import build, check_targets
from clozelab.training.trainer import Hardware

# of a generated world that is not there yet
SAMPLED_DOCUMENTS = {"num_documents": 1000, "entropy_documents": 10}
USER_ERRORS: tuple[type[Exception], ...] = (
    ValueError,
    FileNotFoundError,
    PermissionError,
    *CONFIGURATION_ERRORS,
)


def kinds(sweep: Sweep) -> dict[Words, list[Words]]:
    """The jobs of a sweep that differ in seeds alone, by the words that tell them from the
    others.
    """
    groups = sweep.groups(lambda key: key not in SEED_KEYS)
    common = set.intersection(*map(set, groups)) if len(groups) > 1 else set()
    return {
        tuple(word for word in words if word not in common): jobs for words, jobs in groups.items()
    }


class Corpora:
    """The corpus of each pre-training configuration, opened once; made-up text where it is not
    prepared yet or, unless `strict`, cannot be. `awaits_world`: one of those not prepared is
    generated, and brings its tasks along.

    `world`: a folder to generate a small one into, for what it and its tasks hold. `preparing`:
    seconds that it will take to prepare what is not prepared yet; `sampling`: processor seconds
    that the small worlds took."""

    def __init__(self, *, strict: bool, world: Path | None = None) -> None:
        self.strict, self.awaits_world = strict, False
        self.world, self.preparing, self.sampling = world, 0.0, 0.0
        self.unprepared: list[str] = []
        self._found: dict[str, Corpus] = {}

    def __call__(self, settings: Mapping[str, Any]) -> Corpus:
        key = repr((settings["corpus"], settings["tokenizer"]))
        if key not in self._found:
            self._found[key] = self._open(settings)
        if self._found[key].folder is None:
            self.awaits_world |= settings["corpus"]["generator"] is not None
            self.unprepared.append(settings["corpus"]["name"])
        return self._found[key]

    def _open(self, settings: Mapping[str, Any]) -> Corpus:
        try:
            folder = find_corpus(OmegaConf.create(dict(settings)))
        except USER_ERRORS:
            if self.strict:
                raise
            folder = None
        if (
            folder is None
            and settings["corpus"]["generator"] is not None
            and self.world is not None
        ):
            return self._sample_world(settings, self.world)
        if folder is None:
            self.preparing += text_bytes(settings) / float(constants()["prepared_bytes_per_second"])
            return made_up_corpus(int(settings["tokenizer"]["vocab_size"]))
        return self._of_folder(settings, folder)

    def _sample_world(self, settings: Mapping[str, Any], world: Path) -> Corpus:
        """A generated corpus with few of its documents, prepared in a folder of the caller's."""
        started = time.process_time()
        corpus = copy.deepcopy(dict(settings["corpus"]))
        generator = corpus["generator"]
        # What text and time grow with; a bound of the loss, which is computed on a few documents,
        # is not needed here.
        of_all = max(1.0, generator.get("num_documents", 1) / SAMPLED_DOCUMENTS["num_documents"])
        for key in SAMPLED_DOCUMENTS.keys() & generator.keys():
            generator[key] = min(int(generator[key]), SAMPLED_DOCUMENTS[key])
        places = {"corpus": corpus, "data_dir": str(world), "cache_dir": str(world / "cache")}
        prepared = prepared_corpus(OmegaConf.create({**settings, **places}))
        took = time.process_time() - started
        self.sampling += took
        self.preparing += of_all * took
        small = self._of_folder(settings, prepared.folder)
        sentences = of_all * (small.train.num_sentences + small.validation.num_sentences)
        held_out = round(sentences * float(corpus["validation_fraction"]))
        return replace(small, folder=None, sampled=of_all, sampled_held_out=held_out)

    def read_preview(self, settings: Mapping[str, Any]) -> TaskPreview:
        """Texts and labels of a task's files; of a world that is not there yet, those of its small
        one."""
        try:
            return read_preview(settings)
        except (OSError, ValueError):
            if not self.sampling:
                raise
            return read_preview(self.where_it_is(settings))

    def where_it_is(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Settings whose files are looked for in the small world, where the real one is not there
        yet."""
        if self.world is None or not self.sampling:
            return settings
        return {**settings, "data_dir": str(self.world)}

    def _of_folder(self, settings: Mapping[str, Any], folder: Path) -> Corpus:
        found = PreparedCorpus.open(folder)
        splits, tokenizer = (found.train, found.validation), found.tokenizer
        name, ids = str(settings["corpus"]["name"]), SpecialIds.of(tokenizer)
        return Corpus(name, *splits, ids, tokenizer.unk_id, tokenizer, folder)


def text_bytes(settings: Mapping[str, Any]) -> int:
    """Of a corpus's sources on disk; 0 where they are not there."""
    corpus = settings["corpus"]
    try:
        sources = [Source(**source) for source in corpus["sources"]]
        files = [
            file
            for i, one in enumerate(sources)
            for file in find_files(one, i, Path(settings["data_dir"]))
        ]
        return sum(file.path.stat().st_size for file in files)
    except (OSError, ValueError, TypeError):
        return 0


def open_arm(settings: Mapping[str, Any], jobs: Sequence[Words], corpora: Corpora) -> Arm:
    """The arm of a composed pre-training configuration."""
    objectives, corpus = factory.build_objectives(settings), corpora(settings)
    if settings["encoder"] is None:
        config = factory.encoder_config(settings, corpus.ids, objectives[-1])
    else:
        config = replace(read_config(settings["encoder"]), is_causal=objectives[-1].is_causal)
    shape = (
        objectives[-1],
        config,
        settings["phases"],
        corpus,
        objectives,
        phase_objectives(settings),
    )
    return Arm(str(settings["arm"]), *shape, settings=settings, jobs=jobs)


def analyse(steps: Sequence[Step], corpora: Corpora, runs: Runs | None = None) -> Costing:
    """What an experiment costs as far as it is known without timing anything; `runs` are its own,
    at this scale.
    """
    found: dict[str, list[Kind]] = {}
    for step in steps:
        if step.is_sweep:
            of_step = kinds(step.sweep).values()
            found[step.verb] = [(step.sweep.settings(jobs[0]), jobs) for jobs in of_step]
    arms = [open_arm(*kind, corpora) for kind in found.get("pretrain", ())]
    files = TaskFiles(corpora.read_preview)
    evaluations = [
        (corpora.where_it_is(settings), jobs) for settings, jobs in found.get("evaluate", ())
    ]
    return assemble(steps, arms, found.get("finetune", ()), files, runs, evaluations)


def open_task(
    settings: Mapping[str, Any], tokenizer: Any = None, longest: int = 512
) -> FinetuningDataModule:
    """A task's data before any encoder is there: for its texts and labels, not to be tokenised."""
    places = Path(settings["data_dir"]), Path(settings["cache_dir"])
    return factory.build_task_data(
        settings, TaskInputs(settings["task"]["name"], *places, tokenizer, longest)
    )


def read_preview(settings: Mapping[str, Any]) -> TaskPreview:
    """Texts and labels of a task's files. ValueError: they are not right."""
    return open_task(settings).preview()


def gather(folder: Path, words: Sequence[str]) -> Subject:
    """What `examine` wants to know of an experiment with the user's overrides; ValueError for one
    no stage takes.
    """
    return Gathering(folder.name, make_steps(folder, words), folder.name).subject()


def gather_sweep(
    verb: str,
    folder: Path | None,
    config_name: str,
    words: Sequence[str],
    plan_folder: Path | None = None,
) -> Subject:
    """The same of one stage's sweep, or of a single run, as `clozelab VERB` would start it with
    these overrides.

    `plan_folder`: where the sizes of its jobs are left for the sweep that asked.
    """
    name = f"{folder.name}, {STAGE_NAMES[verb]}" if folder else STAGE_NAMES[verb]
    try:
        step = Step(verb, config_name, folder, tuple(words))
        gathering = Gathering(name, [step], folder.name if folder else "")
        subject = gathering.subject()
        if plan_folder is not None and gathering.costing is not None:
            write_plan(plan_folder, [sizes(gathering.costing, verb)], verb)
        return subject
    except CONFIGURATION_ERRORS as error:
        raise ValueError(explain(error, verb, config_name=config_name, folder=folder)) from error


class Gathering:
    """Collects the parts of some steps; what cannot be built is kept as a refusal with its
    reason.
    """

    def __init__(self, name: str, steps: Sequence[Step], experiment: str = "") -> None:
        self.name, self.experiment = name, experiment
        self.steps = {step.verb: step for step in steps if step.is_sweep}
        self.refusals: list[tuple[str, str]] = []
        self.noticed: list[Finding] = []
        self.arms: list[Arm] = []
        self.tasks: list[Task] = []
        self.finetunings: list[Kind] = []
        self.evaluations: list[Kind] = []
        self.costing: Costing | None = None
        self.corpora, self.files = Corpora(strict=True), TaskFiles(read_preview)

    def subject(self) -> Subject:
        """All of it as it would run."""
        root, scale = list(self.steps.values())[-1].root
        for verb, step in self.steps.items():
            self._add_kinds(verb, step.sweep)
        if "finetune" in self.steps:
            self._add_tasks(self.steps["finetune"].sweep)
        unprepared, noticed = dict.fromkeys(self.corpora.unprepared), dict.fromkeys(self.noticed)
        found = (
            self.arms,
            self.tasks,
            self._budget(root),
            self.refusals,
            [*unprepared],
            [*noticed],
            self.experiment,
        )
        return Subject(f"{self.name} ({scale})", *found)

    def _add_kinds(self, verb: str, sweep: Sweep) -> None:
        """Look at the settings of every arm, or of every row on every task; what is wrong with many
        is said once.
        """
        wrong: dict[str, list[str]] = {}
        for title, jobs in kinds(sweep).items():
            try:
                settings = sweep.settings(jobs[0])
                cfg = OmegaConf.create(settings)
                check_targets(cfg)
                if verb == "pretrain":
                    preconditions.check_pretraining(
                        cfg, settings, self._hardware_of(cfg.trainer, sweep.runs_here)
                    )
                    self.arms.append(open_arm(settings, jobs, self.corpora))
                elif verb == "evaluate":
                    preconditions.check_evaluation(cfg)
                    if self.experiment and f"measure={cfg.measure.name}" not in jobs[0]:
                        raise ValueError(
                            f"no column would find this measure, which is named {cfg.measure.name}:"
                            " give it a file of that name in conf/measure (or your own folder),"
                            " and say that name in the column"
                        )
                    self._require_files(settings)
                    self.evaluations.append((settings, jobs))
                else:
                    preconditions.check_finetuning(cfg)
                    self.finetunings.append((settings, jobs))
            except USER_ERRORS as error:
                wrong.setdefault(_plain(error), []).append(" ".join(title))
        for reason, (first, *others) in wrong.items():
            more = f" and {len(others)} more" if others else ""
            self.refusals.append((f"{STAGE_NAMES[verb]} {first}{more}", reason))

    def _require_files(self, settings: Mapping[str, Any]) -> None:
        """ValueError where a measure's own files are not there. The text of a corpus comes with the
        corpus.
        """
        measure, no_tokenizer_yet = settings["measure"], cast("Any", None)
        try:
            if measure["task"] is not None:
                open_task(
                    dict(settings) | dict.fromkeys(factory.PLAN_KEYS, 1) | {"task": measure["task"]}
                )
            elif "files" in measure["data"]:
                folders = Path(settings["data_dir"]), Path(settings["cache_dir"])
                inputs = TaskInputs(measure["name"], *folders, no_tokenizer_yet, 512)
                build("measure.data", measure["data"])(inputs=inputs, is_causal=False)
        except ValueError as error:
            if not self.corpora.awaits_world:
                raise ValueError(f"{error}\n  to go without measures: evaluate=none") from error
            self.corpora.unprepared.append(f"measure {measure['name']}")

    def _hardware_of(self, trainer: Any, runs_here: bool) -> Hardware:
        """Of this machine; where it is none for jobs that run elsewhere, what they ask for."""
        try:
            return factory.hardware_of(trainer)
        except USER_ERRORS as error:
            if runs_here:
                raise
            remedy = "the jobs run elsewhere, and each checks its own machine"
            self._notice("machine", f"not to be had here: {_plain(error)}", "", remedy)
            return Hardware(
                "cpu", trainer.devices, trainer.num_nodes, trainer.strategy, trainer.precision
            )

    def _notice(self, check: str, what: str, figure: str, remedy: str) -> None:
        self.noticed.append(Finding(check, WARNING, what, figure, remedy))

    def _add_tasks(self, sweep: Sweep) -> None:
        # Fine-tuning seeds all begin from the same encoder.
        seeds = (
            []
            if "pretrain" in self.steps
            else list(sweep.groups(lambda key: key != "seed").values())
        )
        encoders = [(str(sweep.settings(jobs[0])["encoder"]), jobs) for jobs in seeds]
        lacking = {
            job: encoder for encoder, jobs in encoders if not _is_there(encoder) for job in jobs
        }
        tasks = [
            word.partition("=")[2]
            for words in sweep.groups(lambda key: key == "task")
            for word in words
        ]
        for jobs in sweep.groups(lambda key: key in ("task", "encoder")).values():
            # An encoder that is not there is no fault of the task's: another one shows whether the
            # task is sound.
            settings = sweep.settings(next((job for job in jobs if job not in lacking), jobs[0]))
            name = f"task {settings['task']['name']}"
            try:
                self._add_task(settings)
            except USER_ERRORS as error:
                if self.corpora.awaits_world and "not found" in str(error):
                    self.corpora.unprepared.append(name)
                else:
                    others = ",".join(task for task in tasks if task != settings["task"]["name"])
                    without = f"; to go without it: task={others}" if others else ""
                    self.refusals.append((name, _plain(error) + without))
        if 0 < len(lacking) < len(sweep.jobs):
            figure = (
                f"{len(lacking)} of {len(sweep.jobs)} jobs, e.g. {next(iter(lacking.values()))}"
            )
            what = (
                "some jobs have no encoder: those that are not complete will fail, the others run"
            )
            self._notice("encoder", what, figure, "pre-train it first, or leave its row out")

    def _add_task(self, settings: dict[str, Any]) -> None:
        """Look at a task on the arms' encoders, or on a given one."""
        name, data, module = (settings["task"][key] for key in ("name", "data", "module"))
        names: list[str] = []
        if "pretrain" in self.steps:
            tokenizer = next(
                (arm.corpus.tokenizer for arm in self.arms if arm.corpus.tokenizer is not None),
                None,
            )
            trained = min((arm.longest for arm in self.arms), default=512)
        else:
            given = Path(require_encoder(settings["encoder"]))
            tokenizer, trained = open_tokenizer(given), max_positions(given)
            names = named_labels(read_config_dict(given), given)
        if settings["hub"]:
            what = f"{name}: its files come from the hub and are not looked at"
            self._notice("task", what, "", "data_dir=FOLDER with the same files would be")
            return
        task = open_task(settings, tokenizer, trained)
        if settings["predict_test"]:
            task.require_test_files()
        preview = task.preview()
        self.files.of(settings, preview)
        metrics, span, longest = (
            module.get("metrics") or (),
            module.get("number_range"),
            data["max_seq_length"],
        )
        self.tasks.append(Task(name, preview, tokenizer, longest, trained, metrics, span, names))

    def _budget(self, root: Path) -> Budget:
        """Of what is left, by speeds that are known; nothing is timed."""
        steps, pretrains = list(self.steps.values()), "pretrain" in self.steps
        known = [
            one
            for one in self.finetunings
            if (self.arms if pretrains else _is_there(one[0]["encoder"]))
        ]
        measured = []
        if self.arms:
            measured = self.evaluations
        costing = assemble(steps, self.arms, known, self.files, find(root), measured)
        room = costing.room(root, steps)
        if costing.shapes:
            cache_dir = Path(costing.shapes[0].settings["cache_dir"])
            costing = self.costing = with_speeds(costing, cache_dir, measure=False)
        if not self.arms:
            return Budget(*room)
        seconds = {verb: costing.wall(verb, only_left=True) for verb in costing.pools}
        return Budget(*room, {STAGE_NAMES[verb]: value for verb, value in seconds.items()})


def _is_there(encoder: Any) -> bool:
    try:
        require_encoder(encoder)
    except ValueError:
        return False
    return True


def _plain(error: Exception) -> str:
    is_wrapped = type(error).__name__ == "InstantiationException" and error.__cause__
    return " ".join(str(error.__cause__ if is_wrapped else error).split())
