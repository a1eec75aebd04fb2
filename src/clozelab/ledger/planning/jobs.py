"""What an experiment will cost, before anything runs: its jobs by shape, with parameters, FLOPs, tokens and disk.

Everything here is arithmetic on composed configurations; speeds come from timing.py, what a budget buys from budget.py.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import OmegaConf

from clozelab.data.readers.files import text_lines
from clozelab.ledger.launching.launcher import share_cores
from clozelab.ledger.plan import Step
from clozelab.ledger.sweep import hydra_config, make_loader, sweep_overrides, without_hydra
from clozelab.models.config import BertConfig
from clozelab.models.encoder import Encoder
from clozelab.models.flops import electra_flops_per_token, parameter_count, training_flops_per_token
from clozelab.objectives.weighted_sum import Objective

SEED_KEYS = ("seed", "pretrain_seed")
ADAM_COPIES = 3
"""Weights and two moments in a checkpoint."""
FLOAT_BYTES = 4
SAMPLE_ROWS = 500
CHARACTERS_A_TOKEN = 4.2
"""Of English prose in a vocabulary of thousands of word pieces, special tokens included."""
PREDICTION_BYTES, NBEST_BYTES, RECORD_BYTES = 105, 3700, 25_000
"""Of one example in predictions.jsonl, of one question in nbest_predictions.json, of what every run folder records."""


@dataclass(frozen=True)
class SweepPlan:
    """One stage's jobs: `jobs` maps a composed configuration's position to its repetitions over seeds."""

    verb: str
    configs: list[dict[str, Any]]
    counts: list[int]
    at_once: int
    threads: int
    num_seeds: int
    """Pre-training seeds."""

    @property
    def num_jobs(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True)
class Arm:
    """One shape of a pre-training run.

    Attributes:
        parameters: of the encoder with its pooler, as published sizes are given.
        trained_parameters: with the objective's heads.
        tokens: of the whole run, padding not counted.
        flops: of the whole run by models/flops.py; `electra_flops` by ELECTRA's convention, every step at the longest
            row.
    """

    name: str
    config: Mapping[str, Any]
    encoder: BertConfig
    count: int
    parameters: int
    trained_parameters: int
    tokens: int
    flops: float
    electra_flops: float
    predicted_fraction: float
    speeds: list[float | None] = field(default_factory=list)
    """Tokens a second in each phase."""

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
class TaskJob:
    """One shape of a fine-tuning run: a task with a head, on an encoder of one size."""

    task: str
    head: str
    count: int
    config: Mapping[str, Any]
    encoder: BertConfig
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
    """Tokens a second in training; `forward_speed` in evaluation."""
    forward_speed: float | None = None

    @property
    def train_tokens(self) -> float | None:
        return None if self.train_examples is None else self.train_examples * self.epochs * self.tokens_per_example

    @property
    def epochs(self) -> float:
        return float(self.config["epochs"])

    @property
    def flops(self) -> float | None:
        """Of training, without the head."""
        per_token = training_flops_per_token(self.encoder, round(self.tokens_per_example), 0.0)
        return None if self.train_tokens is None else self.train_tokens * per_token

    @property
    def evaluation_tokens(self) -> float:
        """Of all passes over the validation split."""
        passes = max(1.0, round(self.epochs * float(self.config["evaluations_per_epoch"])))
        return passes * (self.validation_examples or 0) * self.tokens_per_example

    @property
    def result_bytes(self) -> int:
        is_span = "span_extraction" in str(self.config["task"]["module"]["_target_"])
        return RECORD_BYTES + (self.validation_examples or 0) * (NBEST_BYTES if is_span else PREDICTION_BYTES)


def sweep_plan(step: Step) -> SweepPlan:
    """Compose every job of a sweep that differs in more than its seeds."""
    loader = make_loader(step.folder)
    master = loader.load_configuration(step.config_name, list(step.overrides), run_mode=RunMode.MULTIRUN)
    jobs = sweep_overrides(loader, master)
    kinds: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for words in jobs:
        kinds.setdefault(tuple(word for word in words if word.partition("=")[0] not in SEED_KEYS), []).append(words)
    configs = []
    for repeated in kinds.values():
        composed = loader.load_sweep_config(master, list(repeated[0]))
        with hydra_config(composed):
            plain: Any = OmegaConf.to_container(without_hydra(composed), resolve=True)
        configs.append(plain)
    at_once, threads = share_cores(master.hydra.launcher.get("jobs_at_once", 1), master, len(jobs))
    key = "pretrain_seed=" if step.verb == "finetune" else "seed="
    seeds = {word for words in jobs for word in words if word.startswith(key)}
    return SweepPlan(step.verb, configs, [len(one) for one in kinds.values()], at_once, threads, max(1, len(seeds)))


def arms(plan: SweepPlan, cache_dir: Path) -> list[Arm]:
    """Every shape of the pre-training sweep."""
    return [_arm(config, count, cache_dir) for config, count in zip(plan.configs, plan.counts, strict=True)]


def _arm(config: dict[str, Any], count: int, cache_dir: Path) -> Arm:
    objective = Objective(**instantiate(config["objective"], _convert_="all"))
    encoder = BertConfig(
        **config["model"], vocab_size=vocabulary_size(config["corpus"], cache_dir)[0], is_causal=objective.is_causal
    )
    fraction = objective.predicted_fraction
    tokens, flops, electra, longest = 0, 0.0, 0.0, max(phase["seq_length"] for phase in config["phases"])
    for phase in config["phases"]:
        number = phase["steps"] * phase["global_batch_size"] * phase["seq_length"]
        tokens += number
        flops += number * training_flops_per_token(encoder, phase["seq_length"], fraction)
        rows = phase["steps"] * phase["global_batch_size"] * longest
        electra += rows * electra_flops_per_token(encoder, longest, fraction)
    trained = trained_parameters(encoder, objective)
    return Arm(
        str(config["arm"]), config, encoder, count, parameter_count(encoder), trained, tokens, flops, electra, fraction
    )


def trained_parameters(config: BertConfig, objective: Objective) -> int:
    """Of encoder and heads, each counted once; built without memory."""
    with torch.device("meta"):
        encoder = Encoder(config)
        heads = objective.heads(config, encoder)
    return sum({id(value): value.numel() for part in (encoder, heads) for value in part.parameters()}.values())


def vocabulary_size(corpus: Mapping[str, Any], cache_dir: Path) -> tuple[int, bool]:
    """(entries of the corpus's vocabulary, whether it has been made); the configured size is its upper bound."""
    manifest = prepared_manifest(corpus, cache_dir)
    return (int(corpus["vocab_size"]), False) if manifest is None else (int(manifest["vocab_size"]), True)


def prepared_manifest(corpus: Mapping[str, Any], cache_dir: Path) -> dict[str, Any] | None:
    """The manifest of a prepared corpus with these settings; the newest where sources have changed since."""
    keys = ("vocab_size", "lowercase", "validation_fraction")
    paths = sorted(cache_dir.glob(f"corpora/{corpus['name']}-*/manifest.json"), key=lambda path: -path.stat().st_mtime)
    for path in paths:
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            if all(manifest["settings"].get(key) == corpus[key] for key in keys):
                return dict(manifest) | {"folder": str(path.parent)}
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def task_jobs(plan: SweepPlan, pretrained: Sequence[Arm]) -> list[TaskJob]:
    """Every task and head of the fine-tuning sweep, over rows and seeds.

    Raises:
        ValueError: the experiment pre-trains nothing, so that the encoder's size is not known.
    """
    if not pretrained:
        raise ValueError("plan needs an experiment that pre-trains its encoders")
    by_name = {arm.name: arm for arm in pretrained}
    found: dict[tuple[str, str, int], list[tuple[dict[str, Any], int]]] = {}
    for config, count in zip(plan.configs, plan.counts, strict=True):
        arm = by_name.get(str(config["encoder_arm"]), pretrained[0])
        found.setdefault((config["task"]["name"], config["head"], arm.parameters), []).append((config, count))
    return [
        _task_job(group[0][0], sum(count for _, count in group), by_name, pretrained[0]) for group in found.values()
    ]


def _task_job(config: dict[str, Any], count: int, by_name: Mapping[str, Arm], fallback: Arm) -> TaskJob:
    arm = by_name.get(str(config["encoder_arm"]), fallback)
    data, folder = config["task"]["data"], Path(str(config["data_dir"]))
    columns = tuple(data.get("text_columns") or ()), data.get("word_column")
    train = sample_rows(folder / str(data["train_file"]), *columns)
    validation = sample_rows(folder / str(data["validation_file"]), *columns)
    limit = config["max_train_examples"]
    longest = min(int(data["max_seq_length"]), max(phase["seq_length"] for phase in arm.phases))
    length = train[1] / CHARACTERS_A_TOKEN + 2 if train else longest / 2
    if data.get("document_context"):
        length = longest  # neighbouring sentences fill the row
    windows = 1.0
    if length > longest and "doc_stride" in data:
        windows = 1.0 + -(-(length - longest) // min(int(data["doc_stride"]), longest // 2))
    return TaskJob(
        task=config["task"]["name"],
        head=config["head"],
        count=count,
        config=config,
        encoder=arm.encoder,
        train_examples=limit if train is None else min(train[0], limit or train[0]),
        validation_examples=validation[0] if validation else None,
        tokens_per_example=max(4.0, min(length, windows * longest)),
        rows_per_example=windows,
        longest=longest,
        is_counted=train is not None,
    )


@cache
def sample_rows(path: Path, text_columns: tuple[str, ...], word_column: int | None) -> tuple[int, float] | None:
    """(examples in a task's file, mean characters of the first ones); None where the file is not there.

    Counts lines (questions of SQuAD's JSON): what the readers leave out is counted, too. With a `word_column` it is a
    tagged file, one word a line, and its sentences are counted.
    """
    if not path.is_file():
        return None
    try:
        if path.suffix == ".json":
            return _questions(path)
        lines = [line or "" for _, line in text_lines(path)]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if word_column is not None:
        return _sentences(lines, word_column)
    rows = [line for line in lines if line.strip()]
    separator = "," if path.suffix == ".csv" else "\t"
    sample = list(
        csv.reader(
            rows[: SAMPLE_ROWS + 1],
            delimiter=separator,
            quoting=csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE,
        )
    )
    places = [sample[0].index(name) for name in text_columns if name in sample[0]] if sample else []
    texts = [[row[place] for place in places if place < len(row)] if places else row for row in sample[1:]]
    characters = [sum(len(text) for text in row) for row in texts]
    return max(1, len(rows) - 1), sum(characters) / max(1, len(characters))


def _questions(path: Path) -> tuple[int, float]:
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    lengths = [
        len(paragraph["context"]) + len(question["question"])
        for article in articles for paragraph in article["paragraphs"] for question in paragraph["qas"]
    ]  # fmt: skip
    return len(lengths), sum(lengths) / max(1, len(lengths))


def _sentences(lines: Sequence[str], word_column: int) -> tuple[int, float]:
    lengths: list[int] = [0]
    for line in lines:
        cells = line.split()
        if not cells and lengths[-1]:
            lengths.append(0)
        if len(cells) > word_column and line[0] != "#":
            lengths[-1] += len(cells[word_column]) + 1
    found = [length for length in lengths if length]
    return len(found), sum(found) / max(1, len(found))


def timing_requests(arm: Arm) -> Iterator[dict[str, Any]]:
    """What to time of an arm: every phase."""
    model = {**arm.config["model"], "vocab_size": arm.encoder.vocab_size}
    for phase in arm.phases:
        yield {
            "kind": "pretrain", "model": model, "phase": {**phase, "steps": 1}, "hardware": hardware(arm.config),
            **{key: arm.config[key] for key in ("objective", "optimizer", "schedule")},
        }  # fmt: skip


def task_request(job: TaskJob) -> dict[str, Any]:
    """What to time of a fine-tuning shape; lengths are rounded, so that like tasks share a measurement."""
    model = {name: getattr(job.encoder, name) for name in BertConfig.__dataclass_fields__}
    length = job.tokens_per_example / job.rows_per_example
    return {
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


def hardware(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the trainer's settings that decides a speed; a measurement has one process."""
    trainer = config["trainer"]
    chosen = {key: trainer[key] for key in ("accelerator", "precision", "threads")}
    return chosen | {"devices": 1, "num_nodes": 1, "strategy": "auto"}
