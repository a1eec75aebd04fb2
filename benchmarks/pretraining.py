"""Pre-training throughput beside transformers, in one interleaved run.

`python benchmarks/pretraining.py` times optimizer steps of clozelab and of `BertForPreTraining` on the same rows
(sequence length 128, 15 % predicted, NSP labels, BERT's own dropout, vocabulary 30,522) and prints tokens/s as median
(min-max) and the ratio, pair by pair. Peers: transformers' own Trainer as documented, in fp32 and bf16 (trainer-fp32,
trainer-bf16), and the same model in the shortest possible loop (fp32, bf16). Times are wall clock around whole steps:
forward, backward, clip, update.
"""

# ruff: noqa: ARG002  (transformers fixes the signatures of its hooks)

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from interleaved import Side, about, ratios, serve, spread, take_turns

SEQ_LENGTH, VOCAB_SIZE = 128, 30_522
SHAPES = {
    "smoke": (1, 128),
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
}
SHAPES |= {"large": (24, 1024)}
BATCH = {"smoke": 2, "tiny": 64, "mini": 32, "small": 32, "medium": 16, "base": 8, "large": 4}
SIZES = ("tiny", "mini", "small", "medium", "base")
PEERS = ("trainer-fp32", "trainer-bf16", "fp32", "bf16")


def shape(size: str) -> dict[str, int]:
    layers, hidden = SHAPES[size]
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
    }


def make_rows(batch_size: int, seq_length: int = SEQ_LENGTH) -> dict[str, Any]:
    """[B, S] ids, token types, the predicted positions and their labels, and NSP labels; the same for all sides."""
    import numpy as np

    rng = np.random.default_rng(0)
    ids = rng.integers(1000, VOCAB_SIZE, (batch_size, seq_length))
    predicted = np.zeros_like(ids, dtype=bool)
    count = round(0.15 * (seq_length - 3))
    for row in predicted:
        row[1 + rng.permutation(seq_length - 2)[:count]] = True
    masked = np.where(predicted, 103, ids)
    types = np.repeat([[0] * (seq_length // 2) + [1] * (seq_length // 2)], batch_size, axis=0)
    labels = rng.integers(0, 2, batch_size)
    return {"ids": ids, "masked": masked, "predicted": predicted, "types": types, "next": labels}


def clozelab_model(size: str, seed: int = 0) -> Any:
    """clozelab's own PretrainingModel: MLM and NSP, BERT's own dropout."""
    import torch

    from clozelab.data.segments import SegmentPairs
    from clozelab.models.config import BertConfig
    from clozelab.models.encoder import Encoder
    from clozelab.objectives.mlm import MaskedLanguageModel
    from clozelab.objectives.nsp import NextSentencePrediction
    from clozelab.objectives.weighted_sum import Objective

    torch.manual_seed(seed)
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
    encoder = Encoder(config)
    try:
        from clozelab.modules.pretraining import PretrainingModel
    except ModuleNotFoundError:  # a machine without lightning: the model itself does not need it
        return _plain_model(encoder, objective)
    return PretrainingModel(encoder, objective)


def _plain_model(encoder: Any, objective: Any) -> Any:
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.objective = encoder, objective
            self.heads = objective.heads(encoder.config, encoder)

        def forward(self, batch: dict[str, Any]) -> Any:
            return self.objective.losses(self.heads, self.encoder, batch)

    return Model()


def clozelab_batch(rows: dict[str, Any]) -> dict[str, Any]:
    """`make_rows` as the micro-batch of clozelab's modules."""
    import numpy as np
    import torch

    from clozelab.models.attention import Layout

    batch_size, seq_length = rows["ids"].shape
    return {
        "input_ids": torch.from_numpy(rows["masked"].reshape(-1)),
        "token_type_ids": torch.from_numpy(rows["types"].reshape(-1)),
        "position_ids": torch.arange(seq_length).repeat(batch_size),
        "layout": Layout.rectangle([seq_length] * batch_size, seq_length),
        "prediction_rows": torch.from_numpy(np.flatnonzero(rows["predicted"].reshape(-1))),
        "prediction_labels": torch.from_numpy(rows["ids"][rows["predicted"]]),
        "next_sentence_label": torch.from_numpy(rows["next"]),
        "source": torch.zeros(batch_size, dtype=torch.int64),
    }


def clozelab_optimizer(parameters: Any) -> Any:
    from clozelab.optim.adamw import build_adamw

    return build_adamw(
        parameters, learning_rate=1e-4, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, bias_correction=True
    )


def clozelab_step(size: str, batch_size: int | None = None) -> Callable[[], float]:
    """One optimizer step of clozelab's own module pieces, precision chosen as `precision=auto` does."""
    import torch

    from clozelab.training.runtime import choose_precision, use_onednn_fp32

    model = clozelab_model(size)
    optimizer = clozelab_optimizer(model.named_parameters())
    batch = clozelab_batch(make_rows(batch_size or BATCH[size]))
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


def transformers_model(size: str) -> Any:
    import torch
    from transformers import BertConfig, BertForPreTraining

    torch.manual_seed(0)
    return BertForPreTraining(BertConfig(vocab_size=VOCAB_SIZE, **shape(size))).train()


def transformers_batch(rows: dict[str, Any]) -> dict[str, Any]:
    """`make_rows` as BertForPreTraining's arguments: labels are -100 where nothing is predicted."""
    import numpy as np
    import torch

    return {
        "input_ids": torch.from_numpy(rows["masked"]),
        "attention_mask": torch.ones(rows["ids"].shape, dtype=torch.long),
        "token_type_ids": torch.from_numpy(rows["types"]),
        "labels": torch.from_numpy(np.where(rows["predicted"], rows["ids"], -100)),
        "next_sentence_label": torch.from_numpy(rows["next"]),
    }


def transformers_step(size: str, bf16: bool, batch_size: int | None = None) -> Callable[[], float]:
    """One step of `BertForPreTraining` + torch's AdamW in the shortest loop."""
    import torch

    model = transformers_model(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    inputs = transformers_batch(make_rows(batch_size or BATCH[size]))

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def serve_trainer(size: str, bf16: bool) -> None:
    """transformers' Trainer as its documentation shows it, answering between two of its steps."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    batch = transformers_batch(make_rows(BATCH[size]))
    examples = [{key: value[row] for key, value in batch.items()} for row in range(BATCH[size])]

    class Endless(torch.utils.data.IterableDataset[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            while True:
                yield from examples

    class Answer(TrainerCallback):
        """Reads the next turn's seconds after warm-up, and whenever a turn is over."""

        def __init__(self) -> None:
            self.steps, self.start, self.seconds = -2, 0.0, 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.steps += 1
            if self.steps < 0:
                return
            taken = time.perf_counter() - self.start
            if self.steps == 0:
                print(json.dumps({"loss": None}), flush=True)
            elif taken < self.seconds:
                return
            else:
                print(json.dumps(self.steps * BATCH[size] * SEQ_LENGTH / taken), flush=True)
            line = sys.stdin.readline()
            if not line:
                control.should_training_stop = True
                return
            self.steps, self.seconds, self.start = 0, float(line), time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH[size],
            max_steps=10**6,
            learning_rate=1e-4,
            weight_decay=0.01,
            bf16=bf16,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",  # its lines would be taken for answers
            report_to="none",
            disable_tqdm=True,
        )
        Trainer(model=transformers_model(size), args=arguments, train_dataset=Endless(), callbacks=[Answer()]).train()


def work(side: str, size: str, threads: int) -> None:
    """The process of one side: builds its model, then answers each line `SECONDS` with a JSON line of tokens/s."""
    if side == "clozelab":
        from clozelab.training.allocator import tune_allocator

        tune_allocator()
    import torch

    torch.set_num_threads(threads)
    if side.startswith("trainer-"):
        return serve_trainer(size, bf16=side == "trainer-bf16")
    step = clozelab_step(size) if side == "clozelab" else transformers_step(size, bf16=side == "bf16")
    serve(step, BATCH[size] * SEQ_LENGTH, {"torch": torch.__version__})
    return None


def compare(size: str, peers: list[str], threads: int, rounds: int, seconds: float) -> list[str]:
    """Markdown table rows of one size."""
    names = ["clozelab", *peers]
    options = ["--sizes", size, "--threads", str(threads)]
    sides = {name: Side([__file__, "--worker", name, *options], threads) for name in names}
    take_turns(sides, rounds, seconds)
    ours = sides["clozelab"].rates
    rows = []
    for name in names:
        what = "clozelab" if name == "clozelab" else f"transformers {name}"
        faster = ratios(ours, sides[name].rates) if name in peers else "1"
        rows.append(f"| L{SHAPES[size][0]} H{SHAPES[size][1]} | {what} | {spread(sides[name].rates)} | {faster} |")
        print(rows[-1], flush=True)
    return rows


TABLE = [
    "| size | side | tokens/s, median (min-max) | clozelab is faster by, median (min-max) |",
    "|---|---|---|---|",
]


def header(threads: int) -> list[str]:
    return [about(threads), "", *TABLE]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SHAPES))
    parser.add_argument("--peers", nargs="+", default=["trainer-fp32", "trainer-bf16"], choices=PEERS)
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
