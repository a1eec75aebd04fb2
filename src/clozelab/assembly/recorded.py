"""What is made again from a pre-training's record: the order of its batches, and its encoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from clozelab.assembly import encoders, factory, pretraining
from clozelab.config import Composed
from clozelab.datamodules.corpus import BoundPhase
from clozelab.runs.record import Record, read_record
from clozelab.runs.reuse import is_record_of
from clozelab.training.callbacks import SameConfig
from clozelab.training.checkpoints import load_file, newest_intact
from clozelab.training.trainer import Hardware

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
        corpus = pretraining.recorded_corpus(cfg, record)
        data = pretraining.make_data(cfg, corpus, encoders.build_objectives(cfg))
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
            f"{record.folder}: its command gives another configuration now than when it was trained"
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
        # Places count through all steps of a phase: a pass over the text may end within a step.
        places = np.arange(step * size, (step + 1) * size)
        _, order[step] = bound.places(places)
    return order


def export_checkpoint(run: Path, to: Path | None) -> Path:
    """Write the encoder of a run's newest checkpoint; returns its folder.

    That is RUN/encoders/step-N unless `to` is given. A checkpoint holds whole weights whatever the
    strategy: FSDP gathers its shards to save it. So one process on a CPU is enough, on any machine
    that has the run's corpus. ValueError where the run has no checkpoint of its own.
    """
    record = read_record(run)
    checkpoint_path = newest_intact(run / "checkpoints", set_aside=False)
    if record is None or record.stage != "pretrain" or checkpoint_path is None:
        raise ValueError(
            f"{run} is no pre-training run with a checkpoint; a complete one has its encoder/"
            " already"
        )
    checkpoint = load_file(checkpoint_path)
    if checkpoint[SameConfig.KEY] != record.fingerprint:
        raise ValueError(f"{checkpoint_path} is of another run than the run.json above it")
    with factory.recompose_config(record) as composed:
        cfg = composed.config
        objectives = encoders.build_objectives(cfg)
        corpus = pretraining.recorded_corpus(cfg, record)
        # Whatever it was trained on, this process only loads and writes.
        hardware = Hardware("cpu", 1, 1, "auto", "32-true")
        module = encoders.build_module(cfg, hardware, corpus, objectives, total_steps=1)
        tokenizer = encoders.encoder_tokenizer(cfg, corpus, objectives)
    module.load_state_dict(checkpoint["state_dict"])
    step = int(checkpoint["global_step"])
    folder = run / "encoders" / f"step-{step}"
    if to is not None:
        folder = to.resolve()
    provenance = pretraining.encoder_provenance(cfg, record, corpus, step=step)
    module.save_encoder(folder, tokenizer.files(), provenance, cfg.encoder_dtype)
    return folder
