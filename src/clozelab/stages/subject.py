"""From an experiment's composed sweeps to what the pre-flight looks at: plain arms, tasks and room."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from clozelab.checks.machine import WEIGHT_BYTES
from clozelab.checks.subject import WARNING, Arm, Corpus, Finding, Room, Subject, Task, Time, made_up_corpus
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import PreparedCorpus
from clozelab.datamodules.finetuning import TaskInputs
from clozelab.launch.mistakes import CONFIGURATION_ERRORS, explain
from clozelab.launch.plan import Step, make_steps, runs_root
from clozelab.launch.sweep import Sweep
from clozelab.models.cost import parameter_count
from clozelab.models.folders import PICKLED_WEIGHTS_FILE, WEIGHTS_FILE, read_config, read_config_dict
from clozelab.modules.results import max_positions, open_tokenizer
from clozelab.planning.costing import cost
from clozelab.planning.timing import USUAL_SHARE
from clozelab.runs.find import collect
from clozelab.runs.fingerprint import SEED_KEYS, require_encoder
from clozelab.stages.building import (
    build_objectives,
    check_finetuning,
    check_pretraining,
    encoder_config,
    hardware_of,
)
from clozelab.stages.finetune import build_plan
from clozelab.stages.prepare import find_corpus
from clozelab.targets import check_targets
from clozelab.training.runtime import matmul_ceiling
from clozelab.training.trainer import Hardware

USER_ERRORS: tuple[type[Exception], ...] = (ValueError, FileNotFoundError, PermissionError, *CONFIGURATION_ERRORS)


NAMES = {"pretrain": "pre-training", "finetune": "fine-tuning"}


class Gathering:
    """Collects the parts of some steps; what cannot be built is kept as a refusal with its reason."""

    def __init__(self, name: str, steps: Sequence[Step], experiment: str = "") -> None:
        self.name, self.steps, self.experiment = name, {step.verb: step for step in steps}, experiment
        self.refusals: list[tuple[str, str]] = []
        self.unprepared: list[str] = []
        self.noticed: list[Finding] = []
        self.arms: list[Arm] = []
        self.tasks: list[Task] = []
        self._awaits_world = False
        self._corpora: dict[str, Corpus | None] = {}
        self._hardware: Hardware | None = None
        self._cache_dir = Path()

    def subject(self) -> Subject:
        """All of it as it would run."""
        last = list(self.steps.values())[-1]
        root, scale = runs_root(last.folder, last.overrides, last.config_name)
        if "pretrain" in self.steps:
            self._add_arms(self.steps["pretrain"].sweep)
        # Runs outside an experiment are of many sweeps: none is known to be one of these.
        room = _room(root, [root / verb for verb in self.steps] if last.folder else [])
        if "finetune" in self.steps:
            room = self._add_tasks(self.steps["finetune"].sweep, room)
        unprepared, noticed = list(dict.fromkeys(self.unprepared)), list(dict.fromkeys(self.noticed))
        return Subject(
            name=f"{self.name} ({scale})", arms=self.arms, tasks=self.tasks, room=room, refusals=self.refusals,
            unprepared=unprepared, noticed=noticed, experiment=self.experiment, time=self._time(root),
        )  # fmt: skip

    def _time(self, root: Path) -> Time:
        """Of what is left, by speeds that are known; nothing is timed but a matrix product."""
        if not self.arms:
            return Time()
        steps = list(self.steps.values())
        try:
            found = cost(steps, self._cache_dir, measure=False, collected=collect(root))
        except USER_ERRORS:
            return Time()  # said as a refusal already
        stages = {NAMES[verb]: found.wall(verb, only_left=True) for verb in NAMES if verb in self.steps}
        unknown = [verb for verb, name in NAMES.items() if stages.get(name, 0.0) is None]
        hardware = self._hardware
        if not unknown or hardware is None:
            return Time(stages)
        devices = 1 if hardware.accelerator == "cpu" else hardware.world_size
        rate = devices * USUAL_SHARE * matmul_ceiling(hardware.precision, hardware.device)
        return Time(stages, sum(map(found.flops_left, unknown)) / rate)

    def _add_arms(self, sweep: Sweep) -> None:
        groups = sweep.groups(lambda key: key != "seed")
        for words, jobs in groups.items():
            try:
                arm = self._arm(_settings(sweep, jobs[0]), len(jobs), sweep.runs_here)
            except USER_ERRORS as error:
                self.refusals.append((f"pre-training {_title(words, groups)}", _plain(error)))
            else:
                self.arms.append(arm)

    def _arm(self, cfg: DictConfig, count: int, runs_here: bool) -> Arm:
        check_targets(cfg)
        plain: Any = OmegaConf.to_container(cfg, resolve=True)
        objectives = build_objectives(plain)
        check_pretraining(cfg, plain, self._hardware_of(cfg.trainer, runs_here))
        corpus = self._corpus(cfg) or made_up_corpus(int(cfg.tokenizer.vocab_size))
        config = encoder_config(plain, corpus.ids, objectives[-1])
        if cfg.encoder is not None:
            config = replace(read_config(cfg.encoder), is_causal=objectives[-1].is_causal)
        warmup = float(plain["schedule"].get("warmup_fraction", 0.0))
        self._cache_dir = Path(cfg.cache_dir)
        encoders = 1 + len(cfg.keep_encoders)
        phases = plain["phases"]
        return Arm(cfg.arm, objectives[-1], config, phases, warmup, corpus, count, encoders, objectives)

    def _hardware_of(self, trainer: DictConfig, runs_here: bool) -> Hardware:
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

    def _corpus(self, cfg: DictConfig) -> Corpus | None:
        """The prepared corpus of a configuration; None where it is not prepared yet."""
        key = "".join(OmegaConf.to_yaml(node, resolve=True) for node in (cfg.corpus, cfg.tokenizer))
        if key not in self._corpora:
            folder = find_corpus(cfg)
            self._corpora[key] = None if folder is None else _open(PreparedCorpus.open(folder), cfg.corpus.name)
        if self._corpora[key] is None:
            # A generated world brings its tasks along.
            self._awaits_world |= cfg.corpus.generator is not None
            self.unprepared.append(cfg.corpus.name)
        return self._corpora[key]

    def _add_tasks(self, sweep: Sweep, room: Room) -> Room:
        lacking = {} if "pretrain" in self.steps else _lacking_encoders(sweep)
        self._check_rows(sweep)
        saved = 0
        groups = sweep.groups(lambda key: key in ("task", "encoder"))
        for jobs in groups.values():
            # An encoder that is not there is no fault of the task's: another one shows whether the task is sound.
            config = _settings(sweep, next((job for job in jobs if job not in lacking), jobs[0]))
            given = None if "pretrain" in self.steps else Path(str(config.encoder))
            if config.save_model:
                saved = max(saved, self._model_bytes(given))
            try:
                if given is not None:
                    require_encoder(config.encoder)
                self._add_task(config, given)
            except USER_ERRORS as error:
                if self._awaits_world and "not found" in str(error):
                    self.unprepared.append(f"task {config.task.name}")
                    continue
                self.refusals.append((f"task {config.task.name}", _plain(error)))
        if 0 < len(lacking) < len(sweep.jobs):
            figure = f"{len(lacking)} of {len(sweep.jobs)} jobs, e.g. {next(iter(lacking.values()))}"
            what = "some jobs have no encoder: those that are not complete will fail, the others run"
            self.noticed.append(Finding("encoder", WARNING, what, figure, "pre-train it first, or leave its row out"))
        return replace(room, num_finetunings=len(sweep.jobs), model_bytes=saved)

    def _check_rows(self, sweep: Sweep) -> None:
        """Look at every row's settings on every task; what is wrong with many of them is said once."""
        wrong: dict[str, list[str]] = {}
        kinds = sweep.groups(lambda key: key not in SEED_KEYS)
        for words, jobs in kinds.items():
            try:
                config = _settings(sweep, jobs[0])
                check_targets(config)
                check_finetuning(config)
            except USER_ERRORS as error:
                wrong.setdefault(_plain(error), []).append(_title(words, kinds))
        for reason, titles in wrong.items():
            more = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
            self.refusals.append((f"fine-tuning {titles[0]}{more}", reason))

    def _model_bytes(self, given: Path | None) -> int:
        """Of a fine-tuned model's weights, which are the encoder's but for a head."""
        if given is not None:
            return sum(
                path.stat().st_size for name in (WEIGHTS_FILE, PICKLED_WEIGHTS_FILE) for path in given.glob(name)
            )
        return max((WEIGHT_BYTES * parameter_count(arm.config) for arm in self.arms), default=0)

    def _add_task(self, cfg: DictConfig, given: Path | None) -> None:
        """Look at a task on the arms' encoders, or on a given one."""
        if cfg.hub:
            what = f"{cfg.task.name}: its files come from the hub and are not looked at"
            self.noticed.append(Finding("task", WARNING, what, "", "data_dir=FOLDER with the same files would be"))
            return
        tokenizers = [arm.corpus.tokenizer for arm in self.arms if arm.corpus.tokenizer is not None]
        tokenizer = open_tokenizer(given) if given else next(iter(tokenizers), None)
        trained = max_positions(given) if given else min((arm.longest for arm in self.arms), default=512)
        plain: Any = OmegaConf.to_container(cfg.task, resolve=True)
        inputs = TaskInputs(cfg.task.name, Path(cfg.data_dir), Path(cfg.cache_dir), tokenizer, trained)  # type: ignore[arg-type]  # only looked at
        data = instantiate(cfg.task.data, _convert_="all")(inputs=inputs, plan=build_plan(cfg))
        preview = data.preview()
        if preview is not None:
            module, names = (
                plain["module"],
                list((read_config_dict(given).get("id2label") or {}).values()) if given else [],
            )
            metrics, span = module.get("metrics") or (), module.get("number_range")
            longest = plain["data"]["max_seq_length"]
            self.tasks.append(Task(cfg.task.name, preview, tokenizer, longest, trained, metrics, span, names))


def _settings(sweep: Sweep, words: Sequence[str]) -> DictConfig:
    return OmegaConf.create(sweep.settings(words))


def _lacking_encoders(sweep: Sweep) -> dict[tuple[str, ...], str]:
    """The jobs whose encoder is not there, with its folder; fine-tuning seeds all begin from the same."""
    found: dict[tuple[str, ...], str] = {}
    for jobs in sweep.groups(lambda key: key != "seed").values():
        encoder = sweep.settings(jobs[0])["encoder"]
        try:
            require_encoder(encoder)
        except ValueError:
            found |= dict.fromkeys(jobs, str(encoder))
    return found


def _title(words: Sequence[str], groups: Collection[Sequence[str]]) -> str:
    """A group of jobs by the words that not all have."""
    return " ".join(word for word in words if len(groups) == 1 or any(word not in other for other in groups))


def _open(prepared: PreparedCorpus, name: str) -> Corpus:
    tokenizer = prepared.tokenizer
    ids = SpecialIds.of(tokenizer)
    return Corpus(name, prepared.train, prepared.validation, ids, tokenizer.unk_id, tokenizer)


def _room(root: Path, stages: Sequence[Path]) -> Room:
    """Free space where the runs go, and what those of some stages hold already."""
    there = next(folder for folder in (root.absolute(), *root.absolute().parents) if folder.is_dir())
    used = sum(path.stat().st_size for stage in stages for path in stage.rglob("*") if path.is_file())
    return Room(str(root), shutil.disk_usage(there).free, used)


def _plain(error: Exception) -> str:
    cause: BaseException = (
        error.__cause__ if type(error).__name__ == "InstantiationException" and error.__cause__ else error
    )
    return " ".join(str(cause).split())


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
