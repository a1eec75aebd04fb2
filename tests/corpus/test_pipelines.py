"""A corpus that pipelines of datatrove prepare is the one of our own processes, to the byte."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.corpus.test_prepare import files_of
from tests.reference.corpora import CORPORA, prepare

from clozelab.corpus.preparation import pipelines
from clozelab.corpus.preparation.pool import EndedProcessError
from clozelab.corpus.prepare import MakePool
from clozelab.corpus.steps.clean import Clean
from clozelab.corpus.steps.repeated_lines import RepeatedLines

pytest.importorskip("datatrove")
pytestmark = pytest.mark.slow
# One node that runs the jobs of an array one after another; squeue knows them until they are done.
COMMANDS = {
    "sbatch": """script="${@: -1}"
number=$(ls "$FAKE" | grep -c job)
if grep -q merge_stats "$script"; then echo "Submitted batch job 99"; exit; fi
cp "$script" "$FAKE/job$number"
last=$(sed -n 's/^#SBATCH --array=0-//p' "$script")
(for rank in $(seq 0 $last); do
  SLURM_ARRAY_TASK_ID=$rank SLURM_NODELIST=localhost bash "$FAKE/job$number"
done; touch "$FAKE/done$number") >/dev/null 2>&1 &
echo "Submitted batch job $number"
""",
    "srun": 'shift 3; [ -e "$FAKE/broken" ] || exec "$@"\n',
    "scontrol": "echo localhost\n",
    "squeue": """[ -e "$FAKE/done${2#--jobs=}" ] || { echo "${2#--jobs=}"; exit; }
echo "slurm_load_jobs error: Invalid job id specified" >&2
exit 1
""",
}
STEPS = (Clean(), RepeatedLines(max_count=20))


def prepared(folder: Path, make_pool: MakePool | None = None) -> dict[str, bytes]:
    """The files of a corpus of several shards, with a step that has to know all documents."""
    with patch("clozelab.corpus.preparation.texts.SHARD_CHARACTERS", 40_000):
        return files_of(prepare(CORPORA["several"], folder, "other", STEPS, make_pool=make_pool))


def test_local_ranks_make_the_same(tmp_path: Path) -> None:
    with patch("clozelab.corpus.preparation.texts.SHARD_CHARACTERS", 40_000):
        ours = files_of(prepare(CORPORA["several"], tmp_path, steps=STEPS))
    assert prepared(tmp_path, pipelines.local(tasks=2)) == ours


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, text in COMMANDS.items():
        (commands / name).write_text(f"#!/bin/bash\n{text}")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(commands))
    monkeypatch.setattr(pipelines, "POLL_SECONDS", 0.5)
    return commands


def test_jobs_of_slurm_make_the_same(tmp_path: Path, fake_slurm: Path) -> None:
    ours = prepared(tmp_path / "ours")
    make_pool = pipelines.slurm(tasks=2, partition="cpu", time="01:00:00")
    # Jobs that Slurm loses are named, and the same command goes on.
    (fake_slurm / "broken").touch()
    with pytest.raises(EndedProcessError, match=r"ranks \[0, 1\] of a pipeline ended"):
        prepared(tmp_path, make_pool)
    (fake_slurm / "broken").unlink()
    assert prepared(tmp_path, make_pool) == ours
    assert "#SBATCH --partition=cpu\n" in (fake_slurm / "job0").read_text()


def test_a_line_for_sbatch_is_refused() -> None:
    with pytest.raises(ValueError, match="no plain name"):
        pipelines.slurm(tasks=2, partition="cpu\n#SBATCH --uid=0", time="1")
