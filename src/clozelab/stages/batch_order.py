"""Which instances each step of a pre-training read: for an export that others can repeat."""

from __future__ import annotations

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from clozelab.config import Composed
from clozelab.corpus.random import instance_indices
from clozelab.datamodules.corpus import BoundPhase
from clozelab.runs.record import Record
from clozelab.runs.reuse import is_record_of
from clozelab.stages import factory, pretrain

FILE = "batch_order.safetensors"


def batch_order(record: Record) -> bytes:
    """The order of a pre-training run's instances, as a safetensors file.

    Each phase has an array [steps, global batch size] of instances' numbers, `phase_1` and so on.
    The file's metadata say how many instances there are, so after how many a new pass begins.
    Needs the run's corpus. ValueError: it is no pre-training, its corpus or its configuration are
    others now, or it did not read its steps one after another to the end.
    """
    if record.stage != "pretrain":
        raise ValueError(f"{record.folder} is no pre-training: only that has an order of batches")
    with factory.recompose_config(record) as composed:
        require_same_steps(record, composed)
        cfg = composed.config
        corpus = pretrain.recorded_corpus(cfg, record)
        data = pretrain.make_data(cfg, corpus, pretrain.build_objectives(cfg))
    arrays = {}
    metadata = {}
    for bound in data.bound_phases():
        name = f"phase_{bound.number + 1}"
        arrays[name] = instances_by_step(bound)
        metadata[name] = f"{len(bound.instances)} instances of {bound.phase.seq_length} tokens"
    return safetensors.numpy.save(arrays, metadata)


def require_same_steps(record: Record, composed: Composed) -> None:
    """ValueError where a run's steps are not those that its configuration says now."""
    if not is_record_of(record, stage="pretrain", config=composed):
        raise ValueError(
            f"{record.folder}: its command says another configuration now than when it was trained"
        )
    steps = record.facts.get("steps")
    total = record.facts.get("total_steps")
    if steps != total:
        raise ValueError(
            f"{record.folder} ended after {steps} of {total} steps: only a whole run has an order"
        )
    if "overfit_batches" in composed.config.trainer.lightning:
        raise ValueError(
            f"{record.folder} was trained with overfit_batches: it read one step again and again"
        )


def instances_by_step(bound: BoundPhase) -> NDArray[np.int32]:
    """[steps, global batch size]: the numbers of the instances, a step at a time to save memory."""
    size = bound.phase.global_batch_size
    order = np.empty((bound.phase.steps, size), np.int32)
    for step in range(bound.phase.steps):
        places = np.arange(step * size, (step + 1) * size)
        _, order[step] = instance_indices(bound.seed, len(bound.instances), places)
    return order
