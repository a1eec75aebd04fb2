"""`make bench-finetuning` on generated files and tiny shapes: every table is whole."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from tests.simulation import run_benchmark

WORDS = ("the", "film", "was", "a", "slow", "bright", "old", "song", "of", "rain")
NUM_ROWS = 48


def sentence(number: int) -> str:
    """3 to 20 words, another sentence for every number."""
    return " ".join(
        WORDS[(number * 7 + place * (1 + number % 3)) % len(WORDS)]
        for place in range(3 + number % 18)
    )


def passage(number: int) -> dict[str, object]:
    context = sentence(number + 8)
    answer = {"text": context.split()[0], "answer_start": 0}
    return {
        "context": context,
        "qas": [{"id": str(number), "question": sentence(number), "answers": [answer]}],
    }


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """SST-2, MRPC, SQuAD 1.1 and a vocabulary in clozelab's layout."""
    numbers = range(NUM_ROWS)
    files = {
        "vocab/bert-base-uncased-vocab.txt": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS],
        "glue/SST-2/train.tsv": ["sentence\tlabel", *(f"{sentence(n)}\t{n % 2}" for n in numbers)],
        "glue/MRPC/train.tsv": [
            "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
            *(f"{n % 2}\t{n}\t{n}\t{sentence(n)}\t{sentence(n + 5)}" for n in numbers),
        ],
        "squad/train-v1.1.json": [
            json.dumps(
                {
                    "version": "1.1",
                    "data": [{"title": "songs", "paragraphs": [passage(n) for n in numbers]}],
                }
            )
        ],
    }
    for name, lines in files.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "data"


def run(data_dir: Path, *words: object) -> subprocess.CompletedProcess[str]:
    usual = ("--smoke", "--threads", 1, "--data-dir", data_dir)
    return run_benchmark("finetuning", *usual, *words)


def bench(data_dir: Path, *words: str) -> str:
    output = data_dir / "report.md"
    done = run(data_dir, "--output", output, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    text = output.read_text()
    assert text.strip() == done.stdout.strip(), "what is printed is what is written"
    return text


def rates(text: str, side: str) -> list[int]:
    """Medians of a side's rows."""
    return [
        int(rate.replace(",", ""))
        for rate in re.findall(rf"\| L1 H128 \| {side} \| ([\d,]+) \(", text)
    ]


def test_one_task(data_dir: Path) -> None:
    pytest.importorskip("transformers")
    text = bench(data_dir, "--tasks", "sst2")
    assert "commit" in text and "## Fine-tuning on SST-2" in text and "MRPC" not in text
    for side in ("clozelab", "transformers fp32"):
        assert len(rates(text, side)) == 1 and min(rates(text, side)) > 0


def test_missing_data_is_named(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    done = run(tmp_path)
    assert (
        done.returncode == 2 and "no vocabulary at" in done.stderr and str(tmp_path) in done.stderr
    )


@pytest.mark.slow
def test_all_tasks(data_dir: Path) -> None:
    pytest.importorskip("transformers")
    text = bench(data_dir, "--peers", "fp32", "bf16")
    for side in ("clozelab", "transformers fp32", "transformers bf16"):
        assert len(rates(text, side)) == 3 and min(rates(text, side)) > 0
