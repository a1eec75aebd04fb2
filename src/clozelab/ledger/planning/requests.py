"""What to time of a shape: the question that timing_worker.py answers, by which the answer is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clozelab.ledger.planning.jobs import Arm, TaskJob
from clozelab.ledger.planning.timing import Request
from clozelab.models.config import BertConfig
from clozelab.models.flops import training_flops_per_token


def timing_requests(arm: Arm) -> Iterator[Request]:
    """What to time of an arm: every phase."""
    model = {**arm.config["model"], "vocab_size": arm.encoder.vocab_size}
    for phase in arm.phases:
        question = {
            "kind": "pretrain", "model": model, "phase": {**phase, "steps": 1}, "hardware": hardware(arm.config),
            **{key: arm.config[key] for key in ("objective", "optimizer", "schedule")},
        }  # fmt: skip
        tokens = phase["global_batch_size"] * phase["seq_length"]
        flops = tokens * training_flops_per_token(arm.encoder, phase["seq_length"], arm.predicted_fraction)
        yield Request(question, f"pre-training {arm.name}, rows of {phase['seq_length']} tokens", tokens, flops)


def task_request(job: TaskJob) -> Request:
    """What to time of a fine-tuning shape; lengths are rounded, so that like tasks share a measurement."""
    model = {name: getattr(job.encoder, name) for name in BertConfig.__dataclass_fields__}
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
