"""An XLNet that reads left to right: [CLS] stays first, whenever it begins to read so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.composing import composed

from clozelab.assembly.encoders import build_objectives
from clozelab.assembly.pretraining import check_inputs
from clozelab.launch.sweep import phase_objectives
from clozelab.models.encoder import Encoder
from clozelab.models.layout import Layout
from clozelab.models.registry import family_of
from clozelab.objectives.objective import EncoderWithHeads

PHASE = "{{seq_length: 16, steps: 2, global_batch_size: 8, micro_batch_size: 8, objective: {}}}"


@pytest.fixture
def make_xlnet(tiny_config: Callable[..., Any]) -> Callable[[bool], Encoder]:
    def make(is_causal: bool) -> Encoder:
        parts = {**family_of("xlnet").parts, "pad_token_id": 0, "initializer_range": 0.3}
        config = tiny_config(model_type="xlnet", is_causal=is_causal, **parts)
        return Encoder(config, torch.Generator().manual_seed(0)).eval()

    return make


def states(encoder: Encoder) -> torch.Tensor:
    places = torch.cat([torch.arange(9), torch.arange(6)])
    stream = (places * 7 + 5, torch.zeros_like(places), places)
    with torch.no_grad():
        return encoder(*stream, Layout.ragged([9, 6])).sequence_output


def test_a_changed_reading_is_that_of_an_encoder_made_so(
    make_xlnet: Callable[[bool], Encoder],
) -> None:
    """Else an encoder that is saved between two phases would compute other states when read."""
    for before, after in ((False, True), (True, False)):
        encoder = make_xlnet(before)
        EncoderWithHeads(encoder).set_reading(after, False)
        assert torch.equal(states(encoder), states(make_xlnet(after)))
        assert not torch.allclose(states(encoder), states(make_xlnet(before)), atol=1e-2)


@pytest.mark.parametrize("phases", ["[ltr]", "[mlm,ltr]", "[ltr,mlm]"])
def test_left_to_right_is_no_reason_to_refuse_it(phases: str, tmp_path: Path) -> None:
    names = phases.strip("[]").split(",")
    words = ["recipe=xlnet", "objective=mlm", f"run_dir={tmp_path}", f"data_dir={tmp_path}"]
    words.append(f"phases=[{','.join(map(PHASE.format, names))}]")
    cfg = composed("pretrain", words).config
    objectives = build_objectives(phase_objectives(cfg))
    assert [objective.is_causal for objective in objectives] == [name == "ltr" for name in names]
    check_inputs(cfg, objectives)


def test_an_objective_of_both_readings_is_still_refused(tmp_path: Path) -> None:
    words = ["recipe=xlnet", "objective=hybrid", f"run_dir={tmp_path}", f"data_dir={tmp_path}"]
    cfg = composed("pretrain", words).config
    with pytest.raises(ValueError, match="tell every token how far"):
        check_inputs(cfg, build_objectives(phase_objectives(cfg)))
