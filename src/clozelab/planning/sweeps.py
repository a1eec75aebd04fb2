"""From composed sweeps to what the planner counts: arms, their corpora and their tasks."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from clozelab.assembly import encoders
from clozelab.assembly.corpora import (
    find_corpus,
    prepared_corpus,
    require_sources,
    source_weights,
)
from clozelab.assembly.labelled import labelled_data
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import PreparedCorpus
from clozelab.corpus.sources import make_source
from clozelab.corpus.tokenizer_settings import TokenizerSettings
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.labelled import LabelledData, TaskInputs
from clozelab.launch.mistakes import CONFIGURATION_ERRORS
from clozelab.launch.own_task import doubts_of_own_task, has_own_task
from clozelab.launch.sweep import Sweep, phase_objectives
from clozelab.objectives.objective import Objective
from clozelab.planning.arms import Arm, Corpus, synthetic_corpus
from clozelab.planning.cost import Costing, TaskFiles, assemble
from clozelab.planning.shapes import JobGroup, TaskPlace, Words
from clozelab.planning.starts import constants, core_slowness
from clozelab.planning.steps import Step
from clozelab.runs.find import Runs
from clozelab.runs.identity import SEED_KEYS
from clozelab.schema import Component, PretrainConfig, StageConfig
from clozelab.tasks.preview import TaskPreview
from clozelab.terminal import quiet_log
from clozelab.text.plain import PlainDict

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


def doubts_of_own_tasks(sweep: Sweep) -> list[str]:
    """What to say of labelled files that may be meant otherwise than they are read, once each."""
    messages = []
    for jobs in jobs_by_settings(sweep).values():
        if has_own_task(jobs[0]):
            messages += doubts_of_own_task(jobs[0], sweep.settings(jobs[0]))
    return list(dict.fromkeys(messages))


@dataclass(kw_only=True)
class Corpora:
    """The corpus of each pre-training configuration, opened once.

    It is made-up text where it is not prepared yet or, unless `strict`, has no files. ValueError
    where preparing it would be refused.

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
    _built: dict[str, tuple[list[PlainDict], list[Objective]]] = field(default_factory=dict)

    def __call__(self, cfg: PretrainConfig) -> Corpus:
        key = repr((cfg.corpus, cfg.tokenizer))
        if key not in self._opened:
            self._opened[key] = self._open(cfg)
        corpus = self._opened[key]
        if corpus.folder is None:
            self.awaits_world |= cfg.corpus.generator is not None
            self.unprepared.append(cfg.corpus.name)
        return corpus

    def objectives(self, cfg: PretrainConfig) -> tuple[list[PlainDict], list[Objective]]:
        """The objective of each phase, configured and built; arms of equal settings share them."""
        settings = (cfg.objective, cfg.phases, cfg.scale, cfg.fidelity, cfg.fidelities)
        key = repr(settings)
        if key not in self._built:
            nodes = phase_objectives(cfg)
            self._built[key] = (nodes, encoders.build_objectives(nodes))
        return self._built[key]

    def _open(self, cfg: PretrainConfig) -> Corpus:
        try:
            folder = find_corpus(cfg)
        except USER_ERRORS as error:
            # What is not there yet can be planned; a text that is there would be refused again.
            is_missing = isinstance(error, FileNotFoundError)
            if self.strict or (not is_missing and _has_text(cfg)):
                raise
            folder = None
        if folder is not None:
            return self._open_folder(cfg, folder)
        # Not prepared yet: a small one of its kind, or nothing but sizes.
        if cfg.corpus.generator is not None and self.world is not None:
            return self._sample_world(cfg, cfg.corpus.generator, self.world)
        self.preparing += text_bytes(cfg) / constants().prepared_bytes_per_second
        return synthetic_corpus(_vocab_size(cfg))

    def _open_folder(self, cfg: PretrainConfig, folder: Path) -> Corpus:
        prepared = PreparedCorpus.open(folder)
        tokenizer = prepared.tokenizer
        return Corpus(
            cfg.corpus.name,
            prepared.train,
            prepared.validation,
            SpecialIds.from_tokenizer(tokenizer),
            tokenizer.unk_id,
            tokenizer,
            folder,
        )

    def _sample_world(self, cfg: PretrainConfig, generator: Component, world: Path) -> Corpus:
        """A generated corpus with few of its documents, prepared in a folder of the caller's."""
        started = time.process_time()
        generator = dict(generator)
        # Text grows with the number of documents. The bound of the loss is computed on a
        # few documents more, and is not needed here.
        num_documents = generator.get("num_documents", 1)
        scale = max(1.0, num_documents / SAMPLED_DOCUMENTS["num_documents"])
        for key in SAMPLED_DOCUMENTS.keys() & generator.keys():
            generator[key] = min(int(generator[key]), SAMPLED_DOCUMENTS[key])
        small = replace(
            cfg,
            corpus=replace(cfg.corpus, generator=generator),
            data_dir=str(world),
            cache_dir=str(world / "cache"),
        )
        # What is said of a sample, such as how large its vocabulary is, is not of the corpus.
        with quiet_log():
            prepared = prepared_corpus(small)
        seconds = time.process_time() - started
        self.sampling += seconds
        # The tasks and the bound of the loss take the same in a world of any size.
        more_documents = max(0, num_documents - SAMPLED_DOCUMENTS["num_documents"])
        documents_per_second = constants().generated_documents_per_second / core_slowness()
        self.preparing += seconds + more_documents / documents_per_second
        sample = self._open_folder(cfg, prepared.folder)
        sentences = scale * (sample.train.num_sentences + sample.validation.num_sentences)
        held_out = round(sentences * cfg.corpus.validation_fraction)
        return replace(sample, folder=None, sampled=scale, sampled_held_out=held_out)

    def read_preview(self, place: TaskPlace) -> TaskPreview:
        """Texts and labels of a task's files."""
        try:
            return read_preview(place)
        except (OSError, ValueError):
            if not self.sampling:
                raise
            return read_preview(place._replace(data_dir=str(self.world)))


def _vocab_size(cfg: PretrainConfig) -> int:
    """Entries of the vocabulary: of a given one as many as it has, else as are to be learnt."""
    try:
        tokenizer = TokenizerSettings(**vars(cfg.tokenizer)).given(cfg.data_dir)
    except USER_ERRORS:  # preparing says what is wrong with it
        tokenizer = None
    if tokenizer is None:
        return cfg.tokenizer.vocab_size
    return tokenizer.vocab_size


def _has_text(cfg: PretrainConfig) -> bool:
    """Whether all files of a corpus that is not generated are there."""
    try:
        require_sources(cfg)
    except USER_ERRORS:
        return False
    return cfg.corpus.generator is None


def text_bytes(cfg: PretrainConfig) -> int:
    """Bytes of a corpus's sources on disk; 0 where they are not there, with a warning."""
    total = 0
    try:
        for index, source in enumerate(cfg.corpus.sources):
            files = make_source(vars(source), index, cfg.corpus.hub)
            for shard in files.shards(index, Path(cfg.data_dir)):
                total += shard.num_bytes
    except (OSError, ValueError, TypeError) as error:
        log.warning("%s", str(error).partition("\n")[0])
        return 0
    return total


def open_arm(cfg: PretrainConfig, jobs: Sequence[Words], corpora: Corpora) -> Arm:
    """The arm of a composed pre-training configuration."""
    nodes, objectives = corpora.objectives(cfg)
    last_objective = objectives[-1]
    corpus = corpora(cfg)
    if cfg.encoder is None:
        config = encoders.encoder_config(cfg, corpus.ids, last_objective)
    else:
        config = replace(
            encoders.given_config(cfg),
            is_causal=last_objective.is_causal,
            predicts_next=last_objective.predicts_next,
        )
    phases = [vars(phase) for phase in cfg.phases]
    return Arm(
        name=cfg.arm,
        objective=last_objective,
        config=config,
        phases=phases,
        corpus=corpus,
        objectives=objectives,
        nodes=nodes,
        settings=cfg,
        jobs=jobs,
        source_weights=source_weights(cfg),
    )


def analyse(steps: Sequence[Step], corpora: Corpora, runs: Runs | None = None) -> Costing:
    """What an experiment costs as far as it is known without timing anything.

    `runs` are its own, at this scale.
    """
    groups: dict[str, list[JobGroup[Any]]] = {"pretrain": [], "finetune": [], "evaluate": []}
    for step in steps:
        if step.is_sweep:
            for jobs in jobs_by_settings(step.sweep).values():
                groups[step.verb].append(JobGroup(step.sweep.config(jobs[0]), jobs))
    arms = [open_arm(settings, jobs, corpora) for settings, jobs in groups["pretrain"]]
    files = TaskFiles(corpora.read_preview)
    evaluations = []
    for group in groups["evaluate"]:
        settings = group.settings
        # Read the small world's files where the real ones are not there yet.
        if corpora.sampling:
            settings = replace(settings, data_dir=str(corpora.world))
        evaluations.append(group._replace(settings=settings))
    return assemble(steps, arms, groups["finetune"], files, runs, evaluations)


def task_inputs(
    cfg: StageConfig | TaskPlace, name: str, tokenizer: Tokenizer | None = None, longest: int = 512
) -> TaskInputs:
    """What data are opened with before any encoder is there: for their texts, not their tokens."""
    return TaskInputs(
        name=name,
        data_dir=Path(cfg.data_dir),
        cache_dir=Path(cfg.cache_dir),
        tokenizer=cast("Tokenizer", tokenizer),
        max_positions=longest,
    )


def open_task(
    place: TaskPlace, tokenizer: Tokenizer | None = None, longest: int = 512
) -> LabelledData:
    """A task's data before any encoder is there."""
    inputs = task_inputs(place, place.task["name"], tokenizer, longest)
    return labelled_data(LabelledData, place.task, inputs, hub=place.hub)


def read_preview(place: TaskPlace) -> TaskPreview:
    """Texts and labels of a task's files. ValueError: they are not right."""
    return open_task(place).preview()
