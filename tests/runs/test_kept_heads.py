"""An encoder that is kept on the way has the heads of the phases that it has gone through."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.runs.test_pretrain_run import run_here

from clozelab.assembly.recorded import export_checkpoint
from clozelab.modules.model import read_model
from clozelab.training.callbacks import TrainingInterruptedError

PHASE = "{{seq_length: 16, steps: 2, global_batch_size: 8, micro_batch_size: 8, objective: {}}}"
PHASES = {"phases": f"[{PHASE.format('mlm')}, {PHASE.format('mlm_nsp')}]"}


def heads(folder: Path) -> set[str]:
    """The file's tensors that belong to no encoder, by the beginnings of their names."""
    names = load_file(folder / "model.safetensors").keys()
    return {name.split(".")[1] for name in names if name.startswith("cls.")}


def marked(folder: Path) -> object:
    return json.loads((folder / "config.json").read_text())["clozelab"].get("untrained")


def test_a_head_of_a_later_phase_is_not_kept(workplace: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_here(workplace, run, keep_encoders="[0.5,0.75]", **PHASES)
    before, after = run / "encoders/step-2", run / "encoders/step-3"
    assert marked(before) == ["pooler"] and heads(before) == {"predictions"}
    # Its bytes stay: a fine-tuning begins from them.
    assert "bert.pooler.dense.weight" in load_file(before / "model.safetensors")
    assert "pooler" in read_model(before).untrained
    for folder in (after, run / "encoder"):
        assert marked(folder) is None and heads(folder) == {"predictions", "seq_relationship"}
        assert read_model(folder).untrained == ()

    # What a given encoder has brought is trained, whichever phase goes on with it.
    further = tmp_path / "further"
    run_here(workplace, further, encoder=run / "encoder", keep_encoders="[0.5]", **PHASES)
    kept = further / "encoders/step-2"
    assert marked(kept) == [] and heads(kept) == {"predictions", "seq_relationship"}


def test_an_export_of_a_checkpoint_knows_its_phase(workplace: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(TrainingInterruptedError):
        run_here(workplace, run, stop_after_step=2, **PHASES)
    folder = export_checkpoint(run, None)
    assert marked(folder) == ["pooler"] and heads(folder) == {"predictions"}
