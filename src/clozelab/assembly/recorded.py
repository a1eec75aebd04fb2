"""The encoder of a pre-training's newest checkpoint, made from the run's record."""

from __future__ import annotations

from pathlib import Path

from clozelab.assembly import encoders, factory, pretraining
from clozelab.assembly.pretraining_module import build_module
from clozelab.launch.sweep import phase_objectives
from clozelab.runs.record import read_record
from clozelab.training.callbacks import SameConfig
from clozelab.training.checkpoints import load_file, newest_intact
from clozelab.training.trainer import Hardware


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
        objectives = encoders.build_objectives(phase_objectives(cfg))
        corpus = pretraining.recorded_corpus(cfg, record)
        # Whatever it was trained on, this process only loads and writes.
        hardware = Hardware("cpu", 1, 1, "auto", "32-true")
        module = build_module(cfg, hardware, corpus, objectives, total_steps=1)
        tokenizer = encoders.encoder_tokenizer(cfg, corpus, objectives)
    module.load_state_dict(checkpoint["state_dict"])
    module.restore_readings(checkpoint)
    step = int(checkpoint["global_step"])
    folder = run / "encoders" / f"step-{step}"
    if to is not None:
        folder = to.resolve()
    provenance = pretraining.encoder_provenance(cfg, record, corpus, step=step)
    num_phases = pretraining.phases_begun(cfg, step)
    module.save_encoder(folder, tokenizer.files(), provenance, cfg.encoder_dtype, num_phases)
    return folder
