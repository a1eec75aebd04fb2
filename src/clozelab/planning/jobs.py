"""What an experiment will cost, before anything runs: its jobs by shape, with parameters, FLOPs, tokens and disk.

Everything here is arithmetic on composed configurations; speeds come from timing.py, what a budget buys from budget.py.

What to time of a shape: the question that timing_worker.py answers, by which the answer is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate

from clozelab.launch.sweep import phase_objectives
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import electra_flops_per_token, parameter_count, trained_parameters, training_flops_per_token
from clozelab.models.encoder import Encoder
from clozelab.models.features import FeatureMix
from clozelab.objectives.objective import Objective, build_models
from clozelab.planning.sweeps import NO_HISTORY, Histories, History, Job, SweepPlan, sample_rows
from clozelab.planning.timing import Request

ADAM_COPIES = 3
"""Weights and two moments in a checkpoint."""
FLOAT_BYTES = 4
CHARACTERS_A_TOKEN = 4.2
"""Of English prose in a vocabulary of thousands of word pieces, special tokens included."""
ELECTRA_ROOM = 0.15625 / 0.15
"""Of predictions in a row: ELECTRA counts the released code's room for them (20 of 128 positions), not 15 %."""
SENTENCE_WORDS = 15.0
"""Of a tagged sentence whose file is not there."""
PREDICTION_BYTES, NBEST_BYTES, RECORD_BYTES = 105, 3700, 25_000
"""Of one example in predictions.jsonl, of one question in nbest_predictions.json, of what every run folder records."""


@dataclass(frozen=True)
class Arm:
    """One shape of a pre-training run.

    Attributes:
        parameters: of the encoder with its pooler, as published sizes are given.
        trained_parameters: with the objective's heads.
        tokens: of the whole run, padding not counted.
        flops: of the whole run by models/cost.py; `electra_flops` by ELECTRA's convention, every step at the longest
            row.
    """

    name: str
    config: Mapping[str, Any]
    encoder: EncoderConfig
    jobs: list[Job]
    parameters: int
    trained_parameters: int
    tokens: int
    flops: float
    electra_flops: float
    predicted_fraction: float
    speeds: list[float | None] = field(default_factory=list)
    """Tokens a second in each phase."""
    is_estimated: bool = False
    """The speeds are not measured but reckoned from FLOPs."""
    history: History = NO_HISTORY

    @property
    def count(self) -> int:
        return len(self.jobs)

    @property
    def phases(self) -> list[Mapping[str, int]]:
        return list(self.config["phases"])

    @property
    def steps(self) -> int:
        return sum(phase["steps"] for phase in self.phases)

    @property
    def checkpoint_bytes(self) -> int:
        return ADAM_COPIES * FLOAT_BYTES * self.trained_parameters

    @property
    def encoder_bytes(self) -> int:
        """The trained encoder with its heads, and those kept on the way."""
        return (1 + len(self.config["keep_encoders"])) * FLOAT_BYTES * self.trained_parameters


@dataclass(frozen=True)
class Features:
    """A tagging task on a frozen encoder: a BiLSTM over the words of a sentence (models/features.py).

    Attributes:
        input_size, hidden_size, num_layers: of the BiLSTM; the hidden size of one direction.
        words_per_example: of a sentence.
        pass_share: encoders over runs: the features of a text are kept, and read by every other run on that encoder.
    """

    input_size: int
    hidden_size: int
    num_layers: int
    words_per_example: float
    pass_share: float = 1.0

    @property
    def flops_per_word(self) -> float:
        """Of training: four gates, two directions, forward once and backward twice, matrix products only."""
        inputs = [self.input_size, *[2 * self.hidden_size] * (self.num_layers - 1)]
        return 3.0 * sum(16.0 * self.hidden_size * (self.hidden_size + size) for size in inputs)


@dataclass(frozen=True)
class TaskJob:
    """One shape of a fine-tuning run: a task with a head, on an encoder of one size."""

    task: str
    head: str
    jobs: list[Job]
    config: Mapping[str, Any]
    encoder: EncoderConfig
    train_examples: int | None
    validation_examples: int | None
    tokens_per_example: float
    rows_per_example: float
    """Windows of a question's passage; 1 for other tasks."""
    longest: int
    """Tokens of the longest row: the task's, cut to what the encoder was trained on."""
    is_counted: bool
    """False where the files are not there and the length is a guess."""
    speed: float | None = None
    """Tokens a second in training; `forward_speed` in evaluation. On a frozen encoder's features: words a second of
    the BiLSTM, and the encoder's tokens a second."""
    forward_speed: float | None = None
    is_estimated: bool = False
    """The speed is not measured but reckoned from FLOPs."""
    features: Features | None = None
    """Where the encoder is frozen and passes once."""
    encoders: frozenset[tuple[str, ...]] = frozenset()
    """The different ones that its jobs stand on."""
    history: History = NO_HISTORY

    @property
    def count(self) -> int:
        return len(self.jobs)

    @property
    def train_tokens(self) -> float | None:
        return None if self.train_examples is None else self.train_examples * self.epochs * self.tokens_per_example

    @property
    def epochs(self) -> float:
        return float(self.config["epochs"])

    @property
    def flops(self) -> float | None:
        """Of training, without the head; on features: its share of the encoder's pass, and the BiLSTM's training."""
        if self.train_tokens is None or self.train_examples is None:
            return None
        if self.features is None:
            return self.train_tokens * training_flops_per_token(self.encoder, round(self.tokens_per_example), 0.0)
        words = self.train_examples * self.epochs * self.features.words_per_example
        return self.pass_tokens * self.encoder_flops_per_token + words * self.features.flops_per_word

    @property
    def encoder_flops_per_token(self) -> float:
        """Of a pass that trains nothing."""
        return training_flops_per_token(self.encoder, round(self.tokens_per_example), 0.0) / 3

    @property
    def pass_tokens(self) -> float:
        """What a frozen encoder reads for one run: both splits once, shared by all runs on the same encoder."""
        examples = (self.train_examples or 0) + (self.validation_examples or 0)
        return examples * self.tokens_per_example * (self.features.pass_share if self.features else 0.0)

    @property
    def passes(self) -> float:
        """Over the validation split."""
        return max(1.0, round(self.epochs * float(self.config["evaluations_per_epoch"])))

    @property
    def evaluation_tokens(self) -> float:
        """Of all passes over the validation split."""
        return self.passes * (self.validation_examples or 0) * self.tokens_per_example

    @property
    def result_bytes(self) -> int:
        is_span = "span_extraction" in str(self.config["task"]["module"]["_target_"])
        return RECORD_BYTES + (self.validation_examples or 0) * (NBEST_BYTES if is_span else PREDICTION_BYTES)


def arms(plan: SweepPlan, cache_dir: Path, history: Histories | None = None) -> list[Arm]:
    """Every shape of the pre-training sweep; `history` says what runs so far tell of a configuration's jobs."""
    found = [_arm(config, jobs, cache_dir) for config, jobs in zip(plan.configs, plan.jobs, strict=True)]
    return [replace(arm, history=history(arm.config, arm.jobs)) for arm in found] if history else found


def _arm(config: dict[str, Any], jobs: list[Job], cache_dir: Path) -> Arm:
    objectives = [Objective(**instantiate(node, _convert_="all")) for node in phase_objectives(config)]
    objective = objectives[-1]
    encoder = EncoderConfig(
        **config["model"], **config["architecture"],
        vocab_size=vocabulary_size(config, cache_dir)[0], is_causal=objective.is_causal,
    )  # fmt: skip
    fraction = objective.predicted_fraction
    tokens, flops, electra, longest = 0, 0.0, 0.0, max(phase["seq_length"] for phase in config["phases"])
    for phase, own in zip(config["phases"], objectives, strict=True):
        number = phase["steps"] * phase["global_batch_size"] * phase["seq_length"]
        tokens += number
        flops += number * own.token.flops_per_token(encoder, phase["seq_length"], own.predicted_fraction)
        rows = phase["steps"] * phase["global_batch_size"] * longest
        electra += rows * electra_flops_per_token(encoder, longest, min(1.0, fraction * ELECTRA_ROOM))
    with torch.device("meta"):
        trained = trained_parameters(build_models(Encoder(encoder), objectives))
    return Arm(
        str(config["arm"]), config, encoder, jobs, parameter_count(encoder), trained, tokens, flops, electra, fraction
    )


def vocabulary_size(config: Mapping[str, Any], cache_dir: Path) -> tuple[int, bool]:
    """(entries of the corpus's vocabulary, whether it has been made); the configured size is its upper bound."""
    manifest = prepared_manifest(config, cache_dir)
    return (int(config["tokenizer"]["vocab_size"]), False) if manifest is None else (int(manifest["vocab_size"]), True)


def prepared_manifest(config: Mapping[str, Any], cache_dir: Path) -> dict[str, Any] | None:
    """The manifest of a prepared corpus with these settings; the newest where sources have changed since."""
    corpus, tokenizer = config["corpus"], config["tokenizer"]
    rules = ("kind", "vocab_size", "lowercase", "add_prefix_space")
    paths = sorted(cache_dir.glob(f"corpora/{corpus['name']}-*/manifest.json"), key=lambda path: -path.stat().st_mtime)
    for path in paths:
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            made = manifest["settings"]
            same = all(made["tokenizer"].get(key) == tokenizer.get(key) for key in rules)
            if same and made["validation_fraction"] == corpus["validation_fraction"]:
                return dict(manifest) | {"folder": str(path.parent)}
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def task_jobs(plan: SweepPlan, pretrained: Sequence[Arm], history: Histories | None = None) -> list[TaskJob]:
    """Every task and head of the fine-tuning sweep, over rows and seeds.

    Raises:
        ValueError: the experiment pre-trains nothing, so that the encoder's size is not known.
    """
    if not pretrained:
        raise ValueError("plan needs an experiment that pre-trains its encoders")
    by_name = {arm.name: arm for arm in pretrained}
    found: dict[tuple[Any, ...], list[tuple[dict[str, Any], list[Job]]]] = {}
    for config, jobs in zip(plan.configs, plan.jobs, strict=True):
        arm = by_name.get(str(config["encoder_arm"]), pretrained[0])
        size = _features(config, arm.encoder, 0.0)
        found.setdefault((config["task"]["name"], config["head"], arm.parameters, size), []).append((config, jobs))
    kinds = []
    for group in found.values():
        one = _task_job(group[0][0], [job for _, jobs in group for job in jobs], by_name, pretrained[0])
        told = [history(config, jobs) for config, jobs in group] if history else [NO_HISTORY]
        seconds = [each.seconds for each in told if each.seconds is not None]
        mean = sum(seconds) / len(seconds) if seconds else None
        encoders = frozenset(name for config, jobs in group for name in _encoders(config, jobs))
        history_of = History(sum(each.done for each in told), mean)
        kinds.append(replace(one, encoders=encoders, history=history_of))
    return _with_pass_shares(kinds)


def _encoders(config: Mapping[str, Any], jobs: Sequence[Job]) -> Iterator[tuple[str, ...]]:
    """What tells apart the encoders that some jobs of one configuration stand on."""
    which = [str(config[key]) for key in ("encoder_arm", "encoder_fraction", "initialisation")]
    yield from ((*which, job.name.seeds.partition("/")[0]) for job in jobs)


def _with_pass_shares(kinds: Sequence[TaskJob]) -> list[TaskJob]:
    """An encoder passes over a task's text once, for all rows and seeds that stand on it."""
    shared: dict[tuple[str, EncoderConfig], list[TaskJob]] = {}
    for one in kinds:
        if one.features:
            shared.setdefault((one.task, one.encoder), []).append(one)
    share = {
        key: len(frozenset().union(*(one.encoders for one in group))) / sum(one.count for one in group)
        for key, group in shared.items()
    }
    return [
        replace(one, features=replace(one.features, pass_share=share[one.task, one.encoder])) if one.features else one
        for one in kinds
    ]


def _features(config: Mapping[str, Any], encoder: EncoderConfig, words_per_example: float) -> Features | None:
    """The BiLSTM of a feature-based task; None for any other."""
    module = config["task"]["module"]
    if "features" not in config["task"]["data"]:
        return None
    size = FeatureMix(module["features"], encoder.num_hidden_layers, encoder.hidden_size).output_size
    hidden = module["bilstm_hidden_size"] or encoder.hidden_size
    return Features(size, int(hidden), int(module["bilstm_num_layers"]), words_per_example)


def _task_job(config: dict[str, Any], jobs: list[Job], by_name: Mapping[str, Arm], fallback: Arm) -> TaskJob:
    arm = by_name.get(str(config["encoder_arm"]), fallback)
    data, folder = config["task"]["data"], Path(str(config["data_dir"]))
    columns = tuple(data.get("text_columns") or ()), data.get("word_column")
    train = sample_rows(folder / str(data["train_file"]), *columns)
    validation = sample_rows(folder / str(data["validation_file"]), *columns)
    limit = config["max_train_examples"]
    longest = min(int(data["max_seq_length"]), max(phase["seq_length"] for phase in arm.phases))
    length = train.characters / CHARACTERS_A_TOKEN + 2 if train else longest / 2
    if data.get("document_context"):
        length = longest  # neighbouring sentences fill the row
    windows = 1.0
    if length > longest and "doc_stride" in data:
        windows = 1.0 + -(-(length - longest) // min(int(data["doc_stride"]), longest // 2))
    return TaskJob(
        task=config["task"]["name"],
        head=config["head"],
        jobs=jobs,
        config=config,
        encoder=arm.encoder,
        train_examples=limit if train is None else min(train.examples, limit or train.examples),
        validation_examples=validation.examples if validation else None,
        tokens_per_example=max(4.0, min(length, windows * longest)),
        rows_per_example=windows,
        longest=longest,
        is_counted=train is not None,
        features=_features(config, arm.encoder, train.words if train else SENTENCE_WORDS),
    )


def timing_requests(arm: Arm) -> Iterator[Request]:
    """What to time of an arm: every phase."""
    model = arm.encoder.to_dict()
    for phase, node in zip(arm.phases, phase_objectives(arm.config), strict=True):
        question = {
            "kind": "pretrain", "model": model, "phase": {**phase, "steps": 1, "objective": None}, "objective": node,
            **{key: arm.config[key] for key in ("optimizer", "schedule")}, "hardware": hardware(arm.config),
        }  # fmt: skip
        objective = Objective(**instantiate(node, _convert_="all"))
        per_token = objective.token.flops_per_token(arm.encoder, phase["seq_length"], objective.predicted_fraction)
        tokens = phase["global_batch_size"] * phase["seq_length"]
        flops = tokens * per_token
        yield Request(question, f"pre-training {arm.name}, rows of {phase['seq_length']} tokens", tokens, flops)


def task_request(job: TaskJob) -> Request:
    """What to time of a fine-tuning shape; lengths are rounded, so that like tasks share a measurement."""
    model = job.encoder.to_dict()
    length = job.tokens_per_example / job.rows_per_example
    question = {
        "kind": "finetune",
        "model": model,
        "head": job.head,
        "rows": int(job.config["global_batch_size"]),
        "tokens_per_row": round(length / 4) * 4 or 4,
        "max_tokens": job.longest,
        "evaluation_tokens": int(job.config["task"]["data"].get("evaluation_tokens", 8192)),
        "optimizer": job.config["optimizer"],
        "hardware": hardware(job.config),
    }
    tokens = question["rows"] * length
    flops = tokens * training_flops_per_token(job.encoder, round(length), 0.0)
    if job.features:
        words = max(1, round(job.features.words_per_example))
        sizes = {key: getattr(job.features, key) for key in ("input_size", "hidden_size", "num_layers")}
        question |= {"kind": "features", "bilstm": sizes, "words_per_row": words}
        tokens = question["rows"] * words
        flops = tokens * job.features.flops_per_word
    size = f"{job.encoder.num_hidden_layers} layers of {job.encoder.hidden_size}"
    return Request(question, f"fine-tuning {size} on {job.task} ({job.head})", tokens, flops)


def hardware(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the trainer's settings that decides a speed; a measurement has one process."""
    trainer = config["trainer"]
    chosen = {key: trainer[key] for key in ("accelerator", "precision", "threads")}
    return chosen | {"devices": 1, "num_nodes": 1, "strategy": "auto"}
