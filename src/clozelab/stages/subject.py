"""From an experiment's composed sweeps to what the pre-flight looks at: plain arms, tasks and room."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from clozelab.data.packing import SpecialIds
from clozelab.data.shards import PreparedCorpus
from clozelab.datamodules.finetuning import TaskInputs
from clozelab.ledger.collect import collect
from clozelab.ledger.mistakes import CONFIGURATION_ERRORS, explain
from clozelab.ledger.plan import Step, make_steps, runs_root
from clozelab.ledger.planning.costing import cost
from clozelab.ledger.planning.timing import USUAL_SHARE
from clozelab.ledger.targets import check_targets
from clozelab.models.config import BertConfig
from clozelab.models.weights import read_config_dict
from clozelab.modules.encoder_folder import max_positions, open_tokenizer
from clozelab.objectives.weighted_sum import Objective
from clozelab.preflight.subject import Arm, Corpus, Room, Subject, Task, Time, made_up_corpus
from clozelab.stages.building import check_pretraining, hardware_of
from clozelab.stages.checks import check_finetuning
from clozelab.stages.finetune import build_plan
from clozelab.stages.prepare import find_corpus
from clozelab.training.runtime import matmul_ceiling

USER_ERRORS: tuple[type[Exception], ...] = (ValueError, FileNotFoundError, PermissionError, *CONFIGURATION_ERRORS)


NAMES = {"pretrain": "pre-training", "finetune": "fine-tuning"}


class Gathering:
    """Collects the parts of some steps; what cannot be built is kept as a refusal with its reason."""

    def __init__(self, name: str, steps: Sequence[Step]) -> None:
        self.name, self.steps = name, {step.verb: step for step in steps}
        self.refusals: list[tuple[str, str]] = []
        self.unprepared: list[str] = []
        self.arms: list[Arm] = []
        self.tasks: list[Task] = []
        self._awaits_world = False
        self._corpora: dict[str, Corpus | None] = {}
        self._trainer: DictConfig | None = None
        self._cache_dir = Path()

    def subject(self) -> Subject:
        """All of it as it would run."""
        last = list(self.steps.values())[-1]
        root, scale = runs_root(last.folder, last.overrides, last.config_name)
        if "pretrain" in self.steps:
            self._add_arms(self.steps["pretrain"])
        room = _room(root)
        if "finetune" in self.steps:
            room = self._add_tasks(self.steps["finetune"], room)
        unprepared = list(dict.fromkeys(self.unprepared))
        return Subject(
            f"{self.name} ({scale})", self.arms, self.tasks, room, self.refusals, unprepared, self._time(root)
        )

    def _time(self, root: Path) -> Time:
        """Of what is left, by speeds that are known; nothing is timed but a matrix product."""
        if not self.arms or self._trainer is None:
            return Time()
        steps = list(self.steps.values())
        try:
            found = cost(steps, self._cache_dir, measure=False, collected=collect(root))
        except USER_ERRORS:
            return Time()  # said as a refusal already
        stages = {NAMES[verb]: found.wall(verb, only_left=True) for verb in NAMES if verb in self.steps}
        unknown = [verb for verb, name in NAMES.items() if stages.get(name, 0.0) is None]
        if not unknown:
            return Time(stages)
        hardware = hardware_of(self._trainer)
        devices = 1 if hardware.accelerator == "cpu" else hardware.world_size
        rate = devices * USUAL_SHARE * matmul_ceiling(hardware.precision, hardware.device)
        return Time(stages, sum(map(found.flops_left, unknown)) / rate)

    def _add_arms(self, step: Step) -> None:
        groups = _jobs_by(step, lambda key: key != "seed")
        for name, count, config in groups:
            try:
                arm = self._arm(config, count)
            except USER_ERRORS as error:
                self.refusals.append((f"pre-training {name}", _plain(error)))
            else:
                self.arms.append(arm)

    def _arm(self, cfg: DictConfig, count: int) -> Arm:
        check_targets(cfg)
        plain: Any = OmegaConf.to_container(cfg, resolve=True)
        objective = Objective(**instantiate(cfg.objective, _convert_="all"))
        check_pretraining(cfg, plain, hardware_of(cfg.trainer))
        corpus = self._corpus(cfg) or made_up_corpus(int(cfg.corpus.vocab_size))
        config = BertConfig(
            **plain["model"], vocab_size=corpus.ids.vocab_size, pad_token_id=corpus.ids.pad,
            is_causal=objective.is_causal,
        )  # fmt: skip
        warmup = float(plain["schedule"].get("warmup_fraction", 0.0))
        self._trainer, self._cache_dir = cfg.trainer, Path(cfg.cache_dir)
        encoders = 1 + len(cfg.keep_encoders)
        return Arm(cfg.arm, objective, config, plain["phases"], warmup, corpus, count, encoders)

    def _corpus(self, cfg: DictConfig) -> Corpus | None:
        """The prepared corpus of a configuration; None where it is not prepared yet."""
        key = OmegaConf.to_yaml(cfg.corpus, resolve=True)
        if key not in self._corpora:
            folder = find_corpus(cfg.corpus, cfg.data_dir, cfg.cache_dir)
            self._corpora[key] = None if folder is None else _open(PreparedCorpus.open(folder), cfg.corpus.name)
        if self._corpora[key] is None:
            # A generated world brings its tasks along.
            self._awaits_world |= cfg.corpus.generator is not None
            self.unprepared.append(cfg.corpus.name)
        return self._corpora[key]

    def _add_tasks(self, step: Step, room: Room) -> Room:
        total, saves = 0, False
        for name, count, config in _jobs_by(step, lambda key: key in ("task", "encoder")):
            total, saves = total + count, saves or bool(config.save_model)
            try:
                self._add_task(config)
            except USER_ERRORS as error:
                if self._awaits_world and "not found" in str(error):
                    self.unprepared.append(f"task {config.task.name}")
                    continue
                self.refusals.append((f"task {config.task.get('name', name)}", _plain(error)))
        return Room(room.folder, room.free_bytes, room.used_bytes, total, saves)

    def _add_task(self, cfg: DictConfig) -> None:
        check_targets(cfg)
        check_finetuning(cfg)
        given = Path(str(cfg.encoder)) if "pretrain" not in self.steps and cfg.encoder else None
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


def _jobs_by(step: Step, counts: Callable[[str], bool]) -> Iterator[tuple[str, int, DictConfig]]:
    """(name, number of jobs, configuration of the first) of a sweep's jobs that are equal in the keys that count."""
    sweep = step.open_sweep()
    for name, jobs in sweep.groups(counts).items():
        yield " ".join(name), len(jobs), OmegaConf.create(sweep.settings(jobs[0]))


def _open(prepared: PreparedCorpus, name: str) -> Corpus:
    tokenizer = prepared.tokenizer
    ids = SpecialIds.of(tokenizer)
    return Corpus(name, prepared.train, prepared.validation, ids, tokenizer.unk_id, tokenizer)


def _room(root: Path) -> Room:
    """Free space where the runs go, and what is there already."""
    there = next(folder for folder in (root.absolute(), *root.absolute().parents) if folder.is_dir())
    used = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) if root.is_dir() else 0
    return Room(str(root), shutil.disk_usage(there).free, used)


def _plain(error: Exception) -> str:
    cause: BaseException = (
        error.__cause__ if type(error).__name__ == "InstantiationException" and error.__cause__ else error
    )
    return " ".join(str(cause).split())


def gather(folder: Path, words: Sequence[str]) -> Subject:
    """What `examine` wants to know of an experiment with the user's overrides; ValueError for one no stage takes."""
    return Gathering(folder.name, make_steps(folder, words)).subject()


def gather_sweep(verb: str, folder: Path | None, config_name: str, words: Sequence[str]) -> Subject:
    """The same of one stage's sweep, or of a single run, as `clozelab VERB` would start it with these overrides.

    Raises:
        ValueError: an override is wrong.
    """
    name = f"{folder.name}, {NAMES[verb]}" if folder else NAMES[verb]
    try:
        return Gathering(name, [Step(verb, config_name, folder, tuple(words))]).subject()
    except CONFIGURATION_ERRORS as error:
        raise ValueError(explain(error, verb, config_name=config_name, folder=folder)) from error
