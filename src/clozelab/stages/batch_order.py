"""Which instances each step of a pre-training read: for an export that others can repeat."""

from __future__ import annotations

import numpy as np
import safetensors.numpy

from clozelab.corpus.random import instance_indices
from clozelab.runs.record import Record
from clozelab.stages import factory, pretrain

FILE = "batch_order.safetensors"


def batch_order(record: Record) -> bytes:
    """The order of a pre-training run's instances, as a safetensors file.

    Each phase has an array [steps, global batch size] of instances' numbers, `phase_1` and so on.
    The file's metadata say how many instances there are, so after how many a new pass begins, with
    other masks. Needs the run's corpus. ValueError: it is no pre-training, or its corpus is another
    one now.
    """
    if record.stage != "pretrain":
        raise ValueError(f"{record.folder} is no pre-training: only that has an order of batches")
    with factory.recompose_config(record) as composed:
        cfg = composed.config
        corpus = pretrain.recorded_corpus(cfg, record)
        data = pretrain.make_data(cfg, corpus, pretrain.build_objectives(cfg))
    arrays = {}
    metadata = {}
    for bound in data.bound_phases():
        name = f"phase_{bound.number + 1}"
        places = np.arange(bound.phase.steps * bound.phase.global_batch_size)
        _, instances = instance_indices(bound.seed, len(bound.instances), places)
        arrays[name] = instances.astype(np.int32).reshape(bound.phase.steps, -1)
        metadata[name] = f"{len(bound.instances)} instances of {bound.phase.seq_length} tokens"
    return safetensors.numpy.save(arrays, metadata)
