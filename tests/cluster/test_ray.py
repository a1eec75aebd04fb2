"""What happens on a real Ray of two nodes: who has no token, and a head that is lost."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from tests.cluster.conftest import require_ray
from tests.cluster.engines import Place, kill_session, outcome, pretraining, ray_engine

DUMP = re.compile(r"Traceback|\.cc:\d+|rpc_client|core_worker|StackTrace|\*\*\* ")
"""What Ray's own output looks like, which belongs into its log."""


def test_a_lost_head_is_one_clear_line_and_the_same_command_goes_on(
    data: Path, tmp_path: Path
) -> None:
    require_ray()
    words = pretraining(steps=1500)
    with ray_engine(tmp_path / "first") as (engine, head):
        stranger = replace(engine, environment=engine.environment | {"RAY_AUTH_TOKEN": "0" * 64})
        refused = Place(data, tmp_path / "refused", stranger).run(*pretraining(), status=1)
        assert refused.splitlines()[-1].startswith("error: hydra/launcher=ray: "), refused
        assert "export RAY_AUTH_MODE=token" in refused and not DUMP.search(refused), refused

        place = Place(data, tmp_path / "runs", engine)
        launcher = place.start_to_checkpoint(*words)
        kill_session(head.pid)
        text = outcome(launcher, 1)
        assert re.search(r"(?m)^2 failed$", text), text
        assert "Ray is lost, its head or this machine's part (see " in text, text
        assert not DUMP.search(text), text
    with ray_engine(tmp_path / "second") as (engine, _):
        again = Place(data, place.runs, engine).run(*words)
        # A job may end well before it notices that the head is lost.
        assert re.search(r"(?m)^(2 complete|1 complete, 1 skipped)$", again), again
    alone = Place(data, tmp_path / "alone", None)
    alone.run(*words)
    assert place.weights() == alone.weights()
