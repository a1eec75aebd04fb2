"""What fine-tuning refuses of an encoder before anything slow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clozelab.assembly.factory import check_fraction

PHASES = [{"steps": 100}, {"steps": 300}]


@pytest.mark.parametrize(
    ("fraction", "made", "message"),
    [
        (0.05, {"step": 20, "phases": PHASES}, ""),
        (1.0, {"phases": PHASES}, ""),
        (1.0, {"step": 20, "phases": PHASES}, ""),  # a row of one's own may begin with any encoder
        (
            0.05,
            {"step": 40, "phases": PHASES},
            r"kept after step 40 of 400, which is 0\.1 of its run; 0\.05 would be",
        ),
        (0.5, {"step": 20, "phases": PHASES}, "would be step 200, which keep_encoders has to name"),
        (0.5, {"phases": PHASES}, "names no step"),
        (0.5, {}, "names no step"),
    ],
)
def test_an_encoder_of_another_fraction_is_refused(
    tmp_path: Path, fraction: float, made: dict[str, Any], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"clozelab": made} if made else {}))
    if not message:
        check_fraction(tmp_path, fraction)
        return
    with pytest.raises(ValueError, match=message):
        check_fraction(tmp_path, fraction)
