"""Pre-training throughput beside transformers, in one interleaved run.

`python benchmarks/pretraining.py` times optimizer steps of clozelab and of `BertForPreTraining` + AdamW on the same
rows (sequence length 128, 15 % predicted, NSP labels, BERT's own dropout, vocabulary 30,522) and prints tokens/s as
median (min-max) and the ratio, pair by pair. Each side is a process of its own (their allocator settings differ), both
stay alive, and they take turns: A B A B, so a machine that slows down slows both. Times are wall clock around whole
steps: forward, backward, clip, update.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from side_by_side import (
    SHAPES,
    VOCAB_SIZE,
    Side,
    clozelab_encoder,
    clozelab_optimizer,
    clozelab_precision,
    compare,
    header,
    serve,
    shape,
    training_step,
)

SEQ_LENGTH = 128
BATCH = {"tiny": 64, "mini": 32, "small": 32, "medium": 16, "base": 8}


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
    from clozelab.modules.pretraining import PretrainingModel
    from clozelab.objectives.mlm import MaskedLanguageModel
    from clozelab.objectives.nsp import NextSentencePrediction
    from clozelab.objectives.weighted_sum import Objective

    torch.manual_seed(0)
    objective = Objective(
        input=SegmentPairs(random_next_prob=0.5, negative_scope="corpus"),
        token=MaskedLanguageModel(
            predict_prob=0.15, mask_fraction=0.8, random_fraction=0.1, same_fraction=0.1, weight=1.0
        ),
        pair=NextSentencePrediction(weight=1.0),
    )
    model = PretrainingModel(clozelab_encoder(size), objective)
    optimizer = clozelab_optimizer(model.named_parameters(), 1e-4)
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
    is_bf16 = clozelab_precision()

    def loss() -> Any:
        return sum(term.loss_sum / term.count for term in model(batch))

    return lambda: training_step(loss, model, optimizer, is_bf16)


def transformers_step(size: str, is_bf16: bool) -> Callable[[], float]:
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

    return lambda: training_step(lambda: model(**inputs).loss, model, optimizer, is_bf16)


def work(side: str, size: str, threads: int) -> None:
    """The process of one side: builds its model and measures tokens/s."""

    def build() -> tuple[Callable[[float], float], float]:
        step = clozelab_step(size) if side == "clozelab" else transformers_step(size, is_bf16=side == "bf16")
        first_loss = step()
        step()

        def measure(seconds: float) -> float:
            steps, start = 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                step()
                steps += 1
            return steps * BATCH[size] * SEQ_LENGTH / (time.perf_counter() - start)

        return measure, first_loss

    serve(side == "clozelab", threads, build)


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
    lines = header(arguments.threads, "tokens/s")
    for size in arguments.sizes:
        names = {"clozelab": "clozelab"} | {f"transformers {peer}": peer for peer in arguments.peers}
        sides = {name: Side(__file__, side, ["--sizes", size], arguments.threads) for name, side in names.items()}
        what = f"L{SHAPES[size][0]} H{SHAPES[size][1]}"
        lines += compare(what, sides, arguments.rounds, arguments.seconds)
    if arguments.output:
        arguments.output.write_text("# Pre-training throughput beside transformers\n\n" + "\n".join(lines) + "\n")
    return None


if __name__ == "__main__":
    main()
