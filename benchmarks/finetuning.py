"""Fine-tuning throughput beside transformers, in one interleaved run.

`python benchmarks/finetuning.py` takes the rows of SST-2, MRPC and SQuAD 1.1 as they are (their
true lengths, with BERT's released vocabulary) and times optimizer steps of clozelab, which computes
no padding, and of transformers' run_glue and run_qa as documented: every row padded to 128 (384)
tokens, fp32, AdamW. Both sides count *real* tokens a second, special tokens included and padding
left out. Sides take turns (interleaved.py). A finished model's speed: benchmarks/answering.py.

Writes docs/results/finetuning-DATE-COMMIT.md; `--smoke` only shows that everything runs (its
numbers mean nothing, and nothing is written unless --output says where).

Needs the data in clozelab's layout (`--data-dir`; by default CLOZELAB_SHARED/data or
../shared/data) and BERT's uncased vocabulary (`--vocab`; by default
vocab/bert-base-uncased-vocab.txt in it).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from encoders import (
    SHAPES,
    VOCAB_SIZE,
    clozelab_encoder,
    clozelab_optimizer,
    clozelab_precision,
    shape,
    size_name,
    training_step,
)
from interleaved import (
    ROOT,
    Side,
    default_report,
    parser,
    race,
    rate_rows,
    rate_table,
    repeated,
    report,
    serve,
    start_worker,
)

TITLES = {
    "sst2": "Fine-tuning on SST-2 beside transformers' run_glue",
    "mrpc": "Fine-tuning on MRPC beside transformers' run_glue",
    "squad": "Fine-tuning on SQuAD 1.1 beside transformers' run_qa",
}
GLUE = {
    "sst2": ("glue/SST-2/train.tsv", ["sentence"], "label"),
    "mrpc": ("glue/MRPC/train.tsv", ["#1 String", "#2 String"], "Quality"),
}
BATCH = {"sst2": 32, "mrpc": 32, "squad": 12}
"""As in the documented commands of run_glue and run_qa."""
MAX_SEQ_LENGTH = {"sst2": 128, "mrpc": 128, "squad": 384}
DOC_STRIDE, MAX_QUERY_LENGTH = 128, 64
MAX_EXAMPLES = 4096
"""A fixed pseudo-random choice of the training file: as long as all of it on average, and soon
tokenised.
"""
SIZES = ("tiny", "mini", "base")


def open_tokenizer(vocab: Path) -> Any:
    from clozelab.corpus.tokenizers import WordPieceTokenizer

    return WordPieceTokenizer.from_vocab(vocab, lowercase=True)


def load_rows(task: str, data_dir: Path, vocab: Path) -> tuple[Any, dict[str, Any]]:
    """(rows, targets) of a training file, the same for both sides."""
    import numpy as np

    from clozelab.readers.squad import read_squad
    from clozelab.tasks.classes import ClassTarget
    from clozelab.tasks.passages import WindowSettings, build_features
    from clozelab.tasks.sequences import encode_examples, subset
    from clozelab.tasks.tables import TableFormat

    tokenizer, length = open_tokenizer(vocab), MAX_SEQ_LENGTH[task]
    if task == "squad":
        questions = read_squad(data_dir / "squad/train-v1.1.json", for_training=True)
        chosen = questions.select(subset(len(questions), MAX_EXAMPLES))
        windows = WindowSettings(length, DOC_STRIDE, MAX_QUERY_LENGTH)
        features, _ = build_features(chosen, tokenizer, windows)
        names = ("start_positions", "end_positions")
        return features.sequences, {
            name: getattr(features, name).astype(np.int64) for name in names
        }
    file, columns, label = GLUE[task]
    read = TableFormat(columns, label).read(data_dir / file)
    examples = read.select(subset(len(read), MAX_EXAMPLES))
    texts = [list(part) for part in zip(*examples.texts, strict=True)]
    labels: Any = examples.labels
    return encode_examples(tokenizer, *texts, max_seq_length=length), {
        "labels": ClassTarget(labels=["0", "1"]).encode(labels)
    }


def clozelab_training(
    task: str, size: str, rows: Any, targets: dict[str, Any]
) -> Callable[[], int]:
    """A step of clozelab's own pieces on bucketed batches of packed rows; gives real tokens."""
    import torch
    from torch.nn import functional as F

    from clozelab.models.heads import LinearHead, SequenceClassificationHead
    from clozelab.tasks.batches import make_batch
    from clozelab.tasks.sequences import bucketed_batches
    from clozelab.tasks.spans import pad_tokens

    torch.manual_seed(0)
    encoder = clozelab_encoder(size)
    head: torch.nn.Module = LinearHead(encoder.config)
    if task != "squad":
        head = SequenceClassificationHead(encoder.config, 2)
    model = torch.nn.ModuleDict({"encoder": encoder, "head": head}).train()
    optimizer, is_bf16 = clozelab_optimizer(model.named_parameters(), 3e-5), clozelab_precision()

    def loss(batch: dict[str, Any]) -> Any:
        ids = (batch["input_ids"], batch["token_type_ids"], batch["position_ids"])
        hidden, layout = encoder(*ids, batch["layout"]).sequence_output, batch["layout"]
        pooled = hidden if task == "squad" else encoder.pool(hidden, layout)
        with torch.autocast("cpu", enabled=False):
            logits = head(pooled.float())
        if task != "squad":
            return F.cross_entropy(logits, batch["labels"])
        answers = torch.stack([batch["start_positions"], batch["end_positions"]], dim=1)
        return F.cross_entropy(pad_tokens(logits, batch), answers)

    def batches() -> Any:
        epoch = 0
        while True:
            yield from bucketed_batches(rows.lengths, batch_size=BATCH[task], seed=1, epoch=epoch)
            epoch += 1

    stream = batches()

    def step() -> int:
        batch = make_batch(rows, next(stream), targets)
        training_step(lambda: loss(batch), model, optimizer, is_bf16)
        return int(batch["layout"].num_tokens)

    return step


def transformers_training(
    task: str, size: str, rows: Any, targets: dict[str, Any], is_bf16: bool
) -> Callable[[], int]:
    """A step on shuffled batches padded to the longest row, as run_glue and run_qa do."""
    import numpy as np
    import torch
    from transformers import BertConfig, BertForQuestionAnswering, BertForSequenceClassification

    torch.manual_seed(0)
    kind = BertForQuestionAnswering if task == "squad" else BertForSequenceClassification
    model = kind(BertConfig(vocab_size=VOCAB_SIZE, num_labels=2, **shape(size)))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, weight_decay=0.0)
    rng, slots, lengths = np.random.default_rng(1), MAX_SEQ_LENGTH[task], rows.lengths
    # run_glue tokenises (and pads) before it trains.
    padded = np.zeros((3, len(rows), slots), dtype=np.int64)
    for i in range(len(rows)):
        own = rows.gather(np.array([i]))
        padded[0, i, : lengths[i]] = own["input_ids"]
        padded[1, i, : lengths[i]] = own["token_type_ids"]
        padded[2, i, : lengths[i]] = 1

    def step() -> int:
        index = rng.choice(len(rows), BATCH[task], replace=False)
        ids, types, mask = (torch.from_numpy(part[index]) for part in padded)
        answers = {name: torch.from_numpy(values[index]) for name, values in targets.items()}
        inputs = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask, **answers}
        training_step(lambda: model(**inputs).loss, model, optimizer, is_bf16)
        return int(lengths[index].sum())

    return step


def training(
    side: str, task: str, size: str, data_dir: Path, vocab: Path
) -> Callable[[float], float]:
    """Measures real tokens/s."""
    data = load_rows(task, data_dir, vocab)
    if side == "clozelab":
        step = clozelab_training(task, size, *data)
    else:
        step = transformers_training(task, size, *data, side == "bf16")
    return repeated(step, warm_up=3)


def race_on_data(
    names: dict[str, str], options: list[object], arguments: argparse.Namespace, seconds: float
) -> dict[str, Side]:
    more = ["--data-dir", arguments.data_dir, "--vocab", arguments.vocab, *options]
    environment = {"TOKENIZERS_PARALLELISM": "true"}
    return race(__file__, names, more, arguments.threads, arguments.rounds, seconds, environment)


def compare_training(task: str, arguments: argparse.Namespace) -> list[str]:
    """The table of one task."""
    names = {"clozelab": "clozelab"} | {f"transformers {peer}": peer for peer in arguments.peers}
    lines = rate_table("real tokens/s", arguments.rounds, arguments.seconds)
    for size in arguments.sizes:
        options = ["--tasks", task, "--sizes", size]
        sides = race_on_data(names, options, arguments, arguments.seconds)
        lines += rate_rows(size_name(size), sides)
    return lines


def work(arguments: argparse.Namespace) -> None:
    side, task, size = arguments.worker, arguments.tasks[0], arguments.sizes[0]
    start_worker(side == "clozelab", arguments.threads)
    serve(training(side, task, size, arguments.data_dir, arguments.vocab))


def read_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    shared = Path(os.environ.get("CLOZELAB_SHARED", ROOT.parent / "shared"))
    options = parser(__doc__, seconds=6.0)
    options.add_argument("--tasks", nargs="+", default=list(TITLES), choices=list(TITLES))
    options.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SHAPES))
    options.add_argument("--peers", nargs="+", default=["fp32"], choices=["fp32", "bf16"])
    options.add_argument("--data-dir", type=Path, default=shared / "data")
    options.add_argument("--vocab", type=Path)
    options.add_argument("--smoke", action="store_true")
    arguments = options.parse_args(words)
    arguments.vocab = arguments.vocab or arguments.data_dir / "vocab/bert-base-uncased-vocab.txt"
    if not arguments.vocab.is_file():
        options.error(f"no vocabulary at {arguments.vocab}: give --data-dir and --vocab")
    if arguments.smoke:
        arguments.sizes = ["smoke"]
        arguments.rounds, arguments.seconds = 1, 0.05
    return arguments


def main(words: Sequence[str] | None = None) -> int:
    arguments = read_arguments(words)
    if arguments.worker:
        work(arguments)
        return 0
    parts: dict[str, Callable[[], list[str]]] = {}
    for task in arguments.tasks:
        parts[TITLES[task]] = partial(compare_training, task, arguments)
    output = arguments.output or (None if arguments.smoke else default_report("finetuning"))
    report("Fine-tuning benchmarks", arguments.threads, parts, output)
    return 0


if __name__ == "__main__":
    if importlib.util.find_spec("transformers") is None:
        sys.exit("the peer is missing: pip install 'clozelab[hf]'")
    sys.exit(main())
