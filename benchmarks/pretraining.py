"""Pre-training throughput beside transformers, in one interleaved run.

`python benchmarks/pretraining.py` times optimizer steps of clozelab and of `BertForPreTraining` + AdamW on the same
rows (sequence length 128, 15 % predicted, NSP labels, BERT's own dropout, vocabulary 30,522) and prints tokens/s as
median (min-max) and the ratio, pair by pair. Each side is a process of its own (their allocator settings differ), both
stay alive, and they take turns: A B A B, so a machine that slows down slows both. Times are wall clock around whole
steps: forward, backward, clip, update.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

SEQ_LENGTH, VOCAB_SIZE = 128, 30_522
SHAPES = {"tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512), "base": (12, 768)}
BATCH = {"tiny": 64, "mini": 32, "small": 32, "medium": 16, "base": 8}


def shape(size: str) -> dict[str, int]:
    layers, hidden = SHAPES[size]
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
    }


def make_rows(batch_size: int) -> dict[str, Any]:
    """[B, S] ids, token types, the predicted positions and their labels, and NSP labels; the same for both sides."""
    import numpy as np

    rng = np.random.default_rng(0)
    ids = rng.integers(1000, VOCAB_SIZE, (batch_size, SEQ_LENGTH))
    predicted = np.zeros_like(ids, dtype=bool)
    count = round(0.15 * (SEQ_LENGTH - 3))
    for row in predicted:
        row[1 + rng.permutation(SEQ_LENGTH - 2)[:count]] = True
    masked = np.where(predicted, 103, ids)
    types = np.repeat([[0] * (SEQ_LENGTH // 2) + [1] * (SEQ_LENGTH // 2)], batch_size, axis=0)
    labels = rng.integers(0, 2, batch_size)
    return {"ids": ids, "masked": masked, "predicted": predicted, "types": types, "next": labels}


def clozelab_step(size: str) -> Callable[[], float]:
    """One optimizer step of clozelab's own module pieces, precision chosen as `precision=auto` does."""
    import numpy as np
    import torch

    from clozelab.data.segments import SegmentPairs
    from clozelab.models.attention import Layout
    from clozelab.models.config import BertConfig
    from clozelab.models.encoder import Encoder
    from clozelab.modules.pretraining import PretrainingModel
    from clozelab.objectives.mlm import MaskedLanguageModel
    from clozelab.objectives.nsp import NextSentencePrediction
    from clozelab.objectives.weighted_sum import Objective
    from clozelab.optim.adamw import build_adamw
    from clozelab.training.runtime import choose_precision, use_onednn_fp32

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_act="gelu",
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        max_position_embeddings=512,
        type_vocab_size=2,
        initializer_range=0.02,
        layer_norm_eps=1e-12,
        position_embedding_init="normal",
        **shape(size),
    )
    objective = Objective(
        input=SegmentPairs(random_next_prob=0.5, negative_scope="corpus"),
        token=MaskedLanguageModel(
            predict_prob=0.15, mask_fraction=0.8, random_fraction=0.1, same_fraction=0.1, weight=1.0
        ),
        pair=NextSentencePrediction(weight=1.0),
    )
    model = PretrainingModel(Encoder(config), objective)
    optimizer = build_adamw(
        model.named_parameters(),
        learning_rate=1e-4,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=0.01,
        bias_correction=True,
    )
    rows = make_rows(BATCH[size])
    batch = {
        "input_ids": torch.from_numpy(rows["masked"].reshape(-1)),
        "token_type_ids": torch.from_numpy(rows["types"].reshape(-1)),
        "position_ids": torch.arange(SEQ_LENGTH).repeat(BATCH[size]),
        "layout": Layout.rectangle([SEQ_LENGTH] * BATCH[size], SEQ_LENGTH),
        "prediction_rows": torch.from_numpy(np.flatnonzero(rows["predicted"].reshape(-1))),
        "prediction_labels": torch.from_numpy(rows["ids"][rows["predicted"]]),
        "next_sentence_label": torch.from_numpy(rows["next"]),
        "source": torch.zeros(BATCH[size], dtype=torch.int64),
    }
    bf16 = choose_precision("auto", "cpu") == "bf16-mixed"
    if not bf16:
        use_onednn_fp32()

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = sum(term.loss_sum / term.count for term in model(batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def transformers_step(size: str, bf16: bool) -> Callable[[], float]:
    """One step of `BertForPreTraining` + torch's AdamW as documented, labels -100 where nothing is predicted."""
    import numpy as np
    import torch
    from transformers import BertConfig, BertForPreTraining

    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig(vocab_size=VOCAB_SIZE, **shape(size)))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    rows = make_rows(BATCH[size])
    inputs = {
        "input_ids": torch.from_numpy(rows["masked"]),
        "attention_mask": torch.ones(BATCH[size], SEQ_LENGTH, dtype=torch.long),
        "token_type_ids": torch.from_numpy(rows["types"]),
        "labels": torch.from_numpy(np.where(rows["predicted"], rows["ids"], -100)),
        "next_sentence_label": torch.from_numpy(rows["next"]),
    }

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def work(side: str, size: str, threads: int) -> None:
    """The process of one side: builds its model, then answers each line `SECONDS` with a JSON line of tokens/s."""
    if side == "clozelab":
        from clozelab.training.allocator import tune_allocator

        tune_allocator()
    import torch

    torch.set_num_threads(threads)
    step = clozelab_step(size) if side == "clozelab" else transformers_step(size, bf16=side == "bf16")
    first_loss = step()
    step()
    print(json.dumps({"loss": first_loss, "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        seconds, steps, start = float(line), 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            step()
            steps += 1
        rate = steps * BATCH[size] * SEQ_LENGTH / (time.perf_counter() - start)
        print(json.dumps(rate), flush=True)


class Side:
    """One side's living process."""

    def __init__(self, side: str, size: str, threads: int) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, __file__, "--worker", side, "--sizes", size, "--threads", str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.hello = json.loads(self._line())
        self.rates: list[float] = []

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a benchmark process ended early; its error is above")
        return line

    def run(self, seconds: float) -> None:
        assert self.process.stdin is not None
        print(seconds, file=self.process.stdin, flush=True)
        self.rates.append(json.loads(self._line()))

    def close(self) -> None:
        self.process.communicate("")


def compare(size: str, peers: list[str], threads: int, rounds: int, seconds: float) -> list[str]:
    """Markdown table rows of one size."""
    names = ["clozelab", *peers]
    sides = {name: Side(name, size, threads) for name in names}
    for _ in range(rounds):
        for name in names:
            sides[name].run(seconds)
    for side in sides.values():
        side.close()
    ours = sides["clozelab"].rates
    rows = []
    for name in names:
        rates = sides[name].rates
        ratios = [a / b for a, b in zip(ours, rates, strict=True)]
        what = "clozelab" if name == "clozelab" else f"transformers {name}"
        faster = f"**{statistics.median(ratios):.1f}** ({min(ratios):.1f}-{max(ratios):.1f})" if name in peers else "1"
        speed = f"{statistics.median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f})"
        rows.append(f"| L{SHAPES[size][0]} H{SHAPES[size][1]} | {what} | {speed} | {faster} |")
        print(rows[-1], flush=True)
    return rows


def header(threads: int) -> list[str]:
    from importlib.metadata import version

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "lightning"))
    return [
        f"{date.today()} · commit {commit} · {cpu}, {threads} thread{'s' if threads > 1 else ''} · {versions}",
        "",
        "| size | side | tokens/s, median (min-max) | clozelab is faster by, median (min-max) |",
        "|---|---|---|---|",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["tiny", "mini", "medium", "base"], choices=list(SHAPES))
    parser.add_argument("--peers", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments.worker, arguments.sizes[0], arguments.threads)
    lines = header(arguments.threads)
    print("\n".join(lines), flush=True)
    for size in arguments.sizes:
        lines += compare(size, arguments.peers, arguments.threads, arguments.rounds, arguments.seconds)
    if arguments.output:
        arguments.output.write_text("# Pre-training throughput beside transformers\n\n" + "\n".join(lines) + "\n")
    return None


if __name__ == "__main__":
    main()
