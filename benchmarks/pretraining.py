"""Pre-training throughput beside transformers, in one interleaved run.

`python benchmarks/pretraining.py` times optimizer steps of clozelab and of `BertForPreTraining` on
the same rows (sequence length 128, 15 % predicted, NSP labels, BERT's own dropout, vocabulary
30,522) and prints tokens/s as median (min-max) and the ratio, pair by pair. Peers: transformers'
own Trainer as documented, in fp32 and bf16 (trainer-fp32, trainer-bf16), and the same model in the
shortest possible loop (fp32, bf16), also with torch.compile around the model (fp32-compiled,
bf16-compiled; they compile before their first turn). Without `--peers` they are those that may be
the strongest on this machine, by what its matrix products reach in bf16 and in fp32. Below each
size stands which of them was the strongest: the ratio to quote. `ceiling` is no peer: the tokens/s
that clozelab's floating-point operations (models/cost.py, without what the last layer leaves out
at slots that nobody reads) would come to as large matrix products and nothing else, in the
precision that clozelab takes; clozelab's ratio to it is its share of the machine. Times are wall
clock around whole steps: forward, backward, clip, update.
"""

# ruff: noqa: ARG002  (transformers fixes the signatures of its hooks)

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from encoders import (
    SHAPES,
    VOCAB_SIZE,
    clozelab_encoder,
    clozelab_optimizer,
    clozelab_precision,
    pairs_objective,
    peer_step,
    shape,
    size_name,
    training_step,
)
from interleaved import (
    Answers,
    fastest,
    parser,
    race,
    rate_rows,
    rate_table,
    ratios,
    repeated,
    report,
    say,
    serve,
    start_worker,
)

TITLE = "Pre-training beside transformers"
SEQ_LENGTH = 128
BATCH = {"smoke": 2, "tiny": 64, "mini": 64, "small": 64, "medium": 32, "base": 16, "large": 8}
"""Rows a step, the same on all sides: as many as let the slowest take a step in seconds."""
SIZES = ("tiny", "mini", "small", "medium", "base")
CEILING = "ceiling"
PEERS = ("bf16-compiled", "fp32-compiled", "trainer-fp32", "trainer-bf16", "fp32", "bf16", CEILING)
SIDE_NAMES = {
    CEILING: "the matrix products' ceiling",
    "bf16-compiled": "transformers bf16 + torch.compile",
    "fp32-compiled": "transformers fp32 + torch.compile",
}


def make_rows(batch_size: int, seq_length: int = SEQ_LENGTH) -> dict[str, Any]:
    """[B, S] ids, types, predicted positions with labels, and NSP labels; alike for all sides."""
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

    from clozelab.modules.pretraining import PretrainingModel

    torch.manual_seed(seed)
    return PretrainingModel(clozelab_encoder(size), [pairs_objective()])


def clozelab_batch(rows: dict[str, Any]) -> dict[str, Any]:
    """`make_rows` as the micro-batch of clozelab's modules."""
    import numpy as np
    import torch

    from clozelab.models.layout import Layout

    batch_size, seq_length = rows["ids"].shape
    return {
        "input_ids": torch.from_numpy(rows["masked"].reshape(-1)),
        "token_type_ids": torch.from_numpy(rows["types"].reshape(-1)),
        "position_ids": torch.arange(seq_length).repeat(batch_size),
        "layout": Layout.rectangle([seq_length] * batch_size, seq_length),
        "prediction_positions": torch.from_numpy(np.flatnonzero(rows["predicted"].reshape(-1))),
        "prediction_labels": torch.from_numpy(rows["ids"][rows["predicted"]]),
        "next_sentence_label": torch.from_numpy(rows["next"]),
        "source": torch.zeros(batch_size, dtype=torch.int64),
    }


def clozelab_step(size: str, batch_size: int | None = None) -> Callable[[], float]:
    """One optimizer step of clozelab's module, in the precision that `precision=auto` takes."""
    model = clozelab_model(size)
    optimizer, is_bf16 = clozelab_optimizer(model.named_parameters()), clozelab_precision()
    batch = clozelab_batch(make_rows(batch_size or BATCH[size]))

    def loss() -> Any:
        return sum(term.loss_sum / term.count for term in model(batch))

    return lambda: training_step(loss, model, optimizer, is_bf16)


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


def transformers_step(
    size: str, is_bf16: bool, batch_size: int | None = None, *, compiles: bool = False
) -> Callable[[], float]:
    """A step of `BertForPreTraining`, as `peer_step` has it."""
    import torch

    model = transformers_model(size)
    run = torch.compile(model) if compiles else model
    inputs = transformers_batch(make_rows(batch_size or BATCH[size]))
    return peer_step(lambda: run(**inputs).loss, model, is_bf16, compiles)


def flops_behind_attention(layer: Any) -> float:
    """Of a training step, for a token: three products with each of the three matrices there."""
    matrices = (layer.attention.output.dense, layer.intermediate.dense, layer.output.dense)
    return 6.0 * sum(matrix.weight.numel() for matrix in matrices)


def serve_ceiling(size: str) -> None:
    """Answers with the tokens/s that large matrix products alone would come to."""
    import torch

    from clozelab.models.cost import training_flops_per_token
    from clozelab.training.runtime import matmul_ceiling

    precision = "bf16-mixed" if clozelab_precision() else "32-true"
    encoder = clozelab_encoder(size)
    predicted = float(make_rows(1)["predicted"].mean())
    flops = training_flops_per_token(encoder.config, SEQ_LENGTH, predicted)
    # Of a row the predicted tokens and [CLS] are read.
    unread = 1.0 - predicted - 1.0 / SEQ_LENGTH
    flops -= unread * flops_behind_attention(encoder.layer[-1])
    serve(lambda seconds: matmul_ceiling(precision, torch.device("cpu"), seconds) / flops)


def serve_trainer(size: str, is_bf16: bool) -> None:
    """transformers' Trainer as its documentation shows it, answering between two of its steps."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    batch = transformers_batch(make_rows(BATCH[size]))
    examples = []
    for row in range(BATCH[size]):
        examples.append({key: value[row] for key, value in batch.items()})

    class Endless(torch.utils.data.IterableDataset[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            while True:
                yield from examples

    answers = Answers(BATCH[size] * SEQ_LENGTH)

    class Answer(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = not answers.after_step()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH[size],
            max_steps=10**6,
            learning_rate=1e-4,
            weight_decay=0.01,
            bf16=is_bf16,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",  # its lines would be taken for answers
            report_to="none",
            disable_tqdm=True,
        )
        Trainer(
            model=transformers_model(size),
            args=arguments,
            train_dataset=Endless(),
            callbacks=[Answer()],
        ).train()


def work(side: str, size: str, threads: int) -> None:
    """The process of one side: builds its model, then answers each line `SECONDS` with tokens/s."""
    start_worker(side in ("clozelab", "ceiling"), threads)
    if side == "ceiling":
        return serve_ceiling(size)
    if side.startswith("trainer-"):
        return serve_trainer(size, is_bf16=side == "trainer-bf16")
    if side == "clozelab":
        step = clozelab_step(size)
    else:
        step = transformers_step(
            size, is_bf16=side.startswith("bf16"), compiles=side.endswith("-compiled")
        )
    return serve(repeated(step, BATCH[size] * SEQ_LENGTH))


def is_bf16_faster() -> bool:
    """Whether large products are faster in bf16 than in fp32; emulated bf16 is slower."""
    import torch

    from clozelab.training.runtime import matmul_ceiling

    cpu = torch.device("cpu")
    return matmul_ceiling("bf16-mixed", cpu) > matmul_ceiling("32-true", cpu)


def usual_peers(bf16_is_faster: bool) -> tuple[str, ...]:
    """Those that may be the strongest; without bf16 products none that computes in bf16."""
    if bf16_is_faster:
        return "bf16-compiled", "trainer-fp32", "trainer-bf16", CEILING
    return "fp32-compiled", "trainer-fp32", CEILING


def sides_of(peers: Sequence[str]) -> dict[str, str]:
    """Worker of each side by the name that the table gives it; clozelab's is the first."""
    names = {"clozelab": "clozelab"}
    for peer in peers:
        names[SIDE_NAMES.get(peer, f"transformers {peer}")] = peer
    return names


def compare(
    sizes: Sequence[str], peers: Sequence[str], threads: int, rounds: int, seconds: float
) -> list[str]:
    """The table of these sizes."""
    lines, summary = rate_table("tokens/s", rounds, seconds), list[str]()
    names = sides_of(peers)
    for size in sizes:
        sides = race(__file__, names, ["--sizes", size], threads, rounds, seconds)
        lines += rate_rows(f"{size_name(size)}, {BATCH[size]} rows", sides)
        theirs = {
            name: side for name, side in sides.items() if names[name] not in ("clozelab", CEILING)
        }
        if theirs:
            strongest = fastest(theirs)
            faster = ratios(sides["clozelab"].rates, theirs[strongest].rates)
            summary.append(
                f"- {size_name(size)}: the strongest peer is {strongest}, clozelab is faster by"
                f" {faster}"
            )
    return lines + say("", *summary)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SHAPES))
    options.add_argument(
        "--peers", nargs="+", choices=PEERS, help="default: the usual ones for this machine"
    )
    arguments = options.parse_args()
    if arguments.worker:
        return work(arguments.worker, arguments.sizes[0], arguments.threads)
    peers = arguments.peers or usual_peers(is_bf16_faster())
    effort = (arguments.threads, arguments.rounds, arguments.seconds)
    part = partial(compare, arguments.sizes, peers, *effort)
    report("Benchmarks", arguments.threads, {TITLE: part}, arguments.output)
    return None


if __name__ == "__main__":
    main()
