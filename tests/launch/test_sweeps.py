"""Real sweeps on this machine: a job that fails and is tried again, and two sweeps started
together.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

_path = Path(__file__).with_name("test_slurm_launcher.py")
_spec = importlib.util.spec_from_file_location(_path.stem, _path)
assert _spec is not None and _spec.loader is not None
tiny = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny)
corpus = tiny.corpus


@pytest.mark.slow
def test_a_failed_job_is_reported_and_tried_again(corpus: Path, tmp_path: Path) -> None:
    later = corpus / "later.txt"
    choices = ("corpus.sources.0.path=later.txt,text.txt", "arm=from-${corpus.sources.0.path}")
    words = tiny.pretraining(corpus, tmp_path, *choices)
    text = tiny.said(tiny.start(words), 1)
    assert tiny.counts(text) == {"complete": 1, "failed": 1}
    assert re.search(
        r"failed: pretrain/from-later.txt/seed-1: exit status 1: error: .*later\.txt", text
    ), text
    assert {name: one["status"] for name, one in tiny.states(tmp_path).items()} == {
        "from-text.txt/seed-1": "complete"
    }
    later.write_text((corpus / "text.txt").read_text())
    try:
        assert tiny.counts(tiny.said(tiny.start(words), 0)) == {"complete": 1, "skipped": 1}
    finally:
        later.unlink()
    assert {name: one["sessions"] for name, one in tiny.states(tmp_path).items()} == {
        "from-later.txt/seed-1": 1,
        "from-text.txt/seed-1": 1,
    }


@pytest.mark.slow
def test_two_sweeps_started_together_never_write_one_folder(corpus: Path, tmp_path: Path) -> None:
    """Each run is trained by one of them; the other waits for it, and both end with everything
    complete.
    """
    words = tiny.pretraining(
        corpus, tmp_path, "seed=1,2", "hydra.launcher.jobs_at_once=2", steps=60
    )
    sweeps = [tiny.start(words), tiny.start(words)]
    texts = [sweep.communicate(timeout=500)[1] for sweep in sweeps]
    states = tiny.states(tmp_path)
    assert {name: one["status"] for name, one in states.items()} == dict.fromkeys(
        states, "complete"
    ), texts
    assert {one["sessions"] for one in states.values()} == {1}
    for seed in (1, 2):
        assert tiny.trained_steps(tmp_path / f"adhoc/demo/pretrain/mlm_nsp/seed-{seed}") == list(
            range(1, 61)
        )
    assert [sweep.returncode for sweep in sweeps] == [0, 0], texts
    assert any("works in its folder" in text for text in texts), texts
    assert tiny.counts(tiny.said(tiny.start(words), 0)) == {"skipped": 2}
