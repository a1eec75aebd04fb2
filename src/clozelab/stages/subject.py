"""From composed sweeps to what the pre-flight looks at: arms, tasks, and what their runs will want."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from clozelab.checks.subject import WARNING, Budget, Finding, Subject, Task
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import PreparedCorpus
from clozelab.launch.sweep import CONFIGURATION_ERRORS, Sweep, explain
from clozelab.models.folders import read_config_dict
from clozelab.planning.cost import assemble, with_speeds
from clozelab.planning.jobs import Arm, Corpus, Words, kinds, made_up_corpus, make_arm
from clozelab.planning.steps import Step, make_steps, runs_root
from clozelab.planning.tasks import Kind, TaskFiles, read_preview
from clozelab.planning.timing import USUAL_SHARE
from clozelab.runs.find import find
from clozelab.runs.fingerprint import require_encoder
from clozelab.stages.building import check_finetuning, check_pretraining, hardware_of
from clozelab.stages.prepare import find_corpus
from clozelab.targets import check_targets
from clozelab.training.runtime import matmul_ceiling
from clozelab.training.trainer import Hardware

USER_ERRORS: tuple[type[Exception], ...] = (ValueError, FileNotFoundError, PermissionError, *CONFIGURATION_ERRORS)
NAMES = {"pretrain": "pre-training", "finetune": "fine-tuning"}


def gather(folder: Path, words: Sequence[str]) -> Subject:
    """What `examine` wants to know of an experiment with the user's overrides; ValueError for one no stage takes."""
    return Gathering(folder.name, make_steps(folder, words), folder.name).subject()


def gather_sweep(verb: str, folder: Path | None, config_name: str, words: Sequence[str]) -> Subject:
    """The same of one stage's sweep, or of a single run, as `clozelab VERB` would start it with these overrides.

    Raises:
        ValueError: an override is wrong.
    """
    name = f"{folder.name}, {NAMES[verb]}" if folder else NAMES[verb]
    try:
        step = Step(verb, config_name, folder, tuple(words))
        return Gathering(name, [step], folder.name if folder else "").subject()
    except CONFIGURATION_ERRORS as error:
        raise ValueError(explain(error, verb, config_name=config_name, folder=folder)) from error


class Corpora:
    """The corpus of each pre-training configuration, opened once; made-up text where it is not prepared yet.

    Where it is not `strict`, a corpus that cannot be prepared as things are counts as not prepared.
    """

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.unprepared: list[str] = []
        self.awaits_world = False
        """A generated one, which brings its tasks along."""
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
        if folder is None:
            return made_up_corpus(int(settings["tokenizer"]["vocab_size"]))
        prepared = PreparedCorpus.open(folder)
        tokenizer = prepared.tokenizer
        ids = SpecialIds.of(tokenizer)
        name = str(settings["corpus"]["name"])
        return Corpus(name, prepared.train, prepared.validation, ids, tokenizer.unk_id, tokenizer, folder)


class Gathering:
    """Collects the parts of some steps; what cannot be built is kept as a refusal with its reason."""

    def __init__(self, name: str, steps: Sequence[Step], experiment: str = "") -> None:
        self.name, self.experiment = name, experiment
        self.steps = {step.verb: step for step in steps if step.is_sweep}
        self.refusals: list[tuple[str, str]] = []
        self.noticed: list[Finding] = []
        self.arms: list[Arm] = []
        self.tasks: list[Task] = []
        self.finetunings: list[Kind] = []
        self.corpora, self.files = Corpora(strict=True), TaskFiles()
        self._hardware: Hardware | None = None

    def subject(self) -> Subject:
        """All of it as it would run."""
        last = list(self.steps.values())[-1]
        root, scale = runs_root(last.folder, last.overrides, last.config_name)
        if "pretrain" in self.steps:
            self._add_arms(self.steps["pretrain"].sweep)
        if "finetune" in self.steps:
            self._add_finetunings(self.steps["finetune"].sweep)
            self._add_tasks(self.steps["finetune"].sweep)
        budget = self._budget(root, has_folder=last.folder is not None)
        return Subject(
            f"{self.name} ({scale})", self.arms, self.tasks, budget, self.refusals,
            list(dict.fromkeys(self.corpora.unprepared)), list(dict.fromkeys(self.noticed)), self.experiment,
        )  # fmt: skip

    @contextmanager
    def _refused(self, what: str) -> Iterator[None]:
        try:
            yield
        except USER_ERRORS as error:
            self.refusals.append((what, _plain(error)))

    def _add_arms(self, sweep: Sweep) -> None:
        for title, jobs in kinds(sweep).items():
            with self._refused(f"pre-training {' '.join(title)}"):
                settings = sweep.settings(jobs[0])
                cfg = OmegaConf.create(settings)
                check_targets(cfg)
                check_pretraining(cfg, settings, self._hardware_of(cfg.trainer, sweep.runs_here))
                self.arms.append(make_arm(settings, jobs, self.corpora(settings)))

    def _hardware_of(self, trainer: Any, runs_here: bool) -> Hardware:
        """Of this machine; where it is none for jobs that run elsewhere, what they ask for."""
        try:
            self._hardware = hardware_of(trainer)
        except USER_ERRORS as error:
            if runs_here:
                raise
            remedy = "the jobs run elsewhere, and each checks its own machine"
            self.noticed.append(Finding("machine", WARNING, f"not to be had here: {_plain(error)}", "", remedy))
            return Hardware("cpu", trainer.devices, trainer.num_nodes, trainer.strategy, trainer.precision)
        return self._hardware

    def _add_finetunings(self, sweep: Sweep) -> None:
        """Look at every row's settings on every task; what is wrong with many of them is said once."""
        wrong: dict[str, list[Words]] = {}
        for title, jobs in kinds(sweep).items():
            try:
                settings = sweep.settings(jobs[0])
                cfg = OmegaConf.create(settings)
                check_targets(cfg)
                check_finetuning(cfg)
                self.finetunings.append((settings, jobs))
            except USER_ERRORS as error:
                wrong.setdefault(_plain(error), []).append(title)
        for reason, titles in wrong.items():
            more = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
            self.refusals.append((f"fine-tuning {' '.join(titles[0])}{more}", reason))

    def _add_tasks(self, sweep: Sweep) -> None:
        lacking = {} if "pretrain" in self.steps else _lacking_encoders(sweep)
        for jobs in sweep.groups(lambda key: key in ("task", "encoder")).values():
            # An encoder that is not there is no fault of the task's: another one shows whether the task is sound.
            settings = sweep.settings(next((job for job in jobs if job not in lacking), jobs[0]))
            name = settings["task"]["name"]
            try:
                self._add_task(settings)
            except USER_ERRORS as error:
                if self.corpora.awaits_world and "not found" in str(error):
                    self.corpora.unprepared.append(f"task {name}")
                else:
                    self.refusals.append((f"task {name}", _plain(error)))
        if 0 < len(lacking) < len(sweep.jobs):
            figure = f"{len(lacking)} of {len(sweep.jobs)} jobs, e.g. {next(iter(lacking.values()))}"
            what = "some jobs have no encoder: those that are not complete will fail, the others run"
            self.noticed.append(Finding("encoder", WARNING, what, figure, "pre-train it first, or leave its row out"))

    def _add_task(self, settings: dict[str, Any]) -> None:
        """Look at a task on the arms' encoders, or on a given one."""
        name, data, module = (settings["task"][key] for key in ("name", "data", "module"))
        names: list[str] = []
        if "pretrain" in self.steps:
            tokenizer = next((arm.corpus.tokenizer for arm in self.arms if arm.corpus.tokenizer is not None), None)
            trained = min((arm.longest for arm in self.arms), default=512)
        else:
            from clozelab.modules.results import max_positions, open_tokenizer

            given = Path(str(settings["encoder"]))
            require_encoder(settings["encoder"])
            tokenizer, trained = open_tokenizer(given), max_positions(given)
            names = list((read_config_dict(given).get("id2label") or {}).values())
        if settings["hub"]:
            what = f"{name}: its files come from the hub and are not looked at"
            self.noticed.append(Finding("task", WARNING, what, "", "data_dir=FOLDER with the same files would be"))
            return
        if (preview := read_preview(settings, tokenizer, trained)) is not None:
            self.files.of(settings, preview)
            metrics, span, longest = module.get("metrics") or (), module.get("number_range"), data["max_seq_length"]
            self.tasks.append(Task(name, preview, tokenizer, longest, trained, metrics, span, names))

    def _budget(self, root: Path, *, has_folder: bool) -> Budget:
        """Of what is left, by speeds that are known; nothing is timed but a matrix product."""
        there = next(folder for folder in (root.absolute(), *root.absolute().parents) if folder.is_dir())
        # Runs outside an experiment are of many sweeps: none is known to be one of these.
        folders = [root / verb for verb in self.steps] if has_folder else []
        used = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
        known = [kind for kind in self.finetunings if "pretrain" in self.steps or _is_there(kind[0]["encoder"])]
        if "pretrain" in self.steps and not self.arms:
            known = []
        costing = assemble(list(self.steps.values()), self.arms, known, self.files, find(root))
        room = str(root), shutil.disk_usage(there).free, costing.run_bytes, used
        if not self.arms:
            return Budget(*room)
        costing = with_speeds(costing, Path(self.arms[0].settings["cache_dir"]), measure=False)
        seconds = {verb: costing.wall(verb, only_left=True) for verb in NAMES if verb in self.steps}
        stages = {NAMES[verb]: value for verb, value in seconds.items()}
        unknown = [verb for verb, value in seconds.items() if value is None]
        hardware = self._hardware
        if not unknown or hardware is None:
            return Budget(*room, stages)
        devices = 1 if hardware.accelerator == "cpu" else hardware.world_size
        rate = devices * USUAL_SHARE * matmul_ceiling(hardware.precision, hardware.device)
        return Budget(*room, stages, sum(map(costing.flops_left, unknown)) / rate)


def _lacking_encoders(sweep: Sweep) -> dict[Words, str]:
    """The jobs whose encoder is not there, with its folder; fine-tuning seeds all begin from the same."""
    found: dict[Words, str] = {}
    for jobs in sweep.groups(lambda key: key != "seed").values():
        encoder = sweep.settings(jobs[0])["encoder"]
        if not _is_there(encoder):
            found |= dict.fromkeys(jobs, str(encoder))
    return found


def _is_there(encoder: Any) -> bool:
    try:
        require_encoder(encoder)
    except ValueError:
        return False
    return True


def _plain(error: Exception) -> str:
    is_wrapped = type(error).__name__ == "InstantiationException" and error.__cause__
    return " ".join(str(error.__cause__ if is_wrapped else error).split())
