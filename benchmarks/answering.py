"""Answers of a finished model beside each peer's fastest way, in one interleaved run.

`python benchmarks/answering.py` classifies and embeds sentences of SST-2 with all-MiniLM-L6-v2
(its classifier has fresh weights), from text to answer. clozelab has its defaults. The peers are:

- the pipeline of transformers, 32 texts at once, as its documentation shows it
- the same model in batches of 32 that are sorted by length, in bf16 where the machine is fast at it
- onnxruntime on the same model in fp32, in the same batches
- `encode` of sentence-transformers, which sorts by itself, in that precision

All read one folder, and the largest distance of their answers from clozelab's is printed.

Writes docs/results/answering-DATE-COMMIT.md; `--smoke` only shows that everything runs (its numbers
mean nothing, and nothing is written unless --output says where). Needs the data in clozelab's
layout (`--data-dir`; by default CLOZELAB_SHARED/data or ../shared/data) and the extra `public`.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from interleaved import (
    ROOT,
    default_report,
    parser,
    race,
    rate_rows,
    rate_table,
    report,
    say,
    serve,
    start_worker,
)
from pretraining import is_bf16_faster

Answer = Callable[[list[str]], Any]
"""Texts -> float32 [N, K]: the probabilities of each text's classes, or its vector."""

TITLES = {
    "classify": "Classifying sentences beside each peer's fastest way",
    "embed": "Embedding sentences beside each peer's fastest way",
}
SIDES = {
    "classify": {
        "clozelab": "clozelab",
        "transformers, pipeline of 32": "pipeline",
        "transformers, sorted batches of 32": "sorted",
        "onnxruntime, sorted batches of 32": "onnx",
    },
    "embed": {
        "clozelab": "clozelab",
        "sentence-transformers, encode": "encode",
        "onnxruntime, sorted batches of 32": "onnx",
    },
}
ROWS, LONGEST = 32, 128
NUM_COMPARED = 256
"""Sentences whose answers are compared."""


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2."""
    from clozelab.files.public import encoder_folder

    return Path(encoder_folder("minilm"))


def save_classifier(folder: Path) -> None:
    """MiniLM under a classifier of two classes with fresh weights, as transformers writes it."""
    import torch
    from transformers import AutoTokenizer, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification.from_pretrained(minilm(), num_labels=2)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(minilm()).save_pretrained(folder)


def fast_precision() -> Callable[[], Any]:
    """Makes the peer's context: autocast in bf16 where the processor multiplies that faster."""
    import torch

    if is_bf16_faster():
        return partial(torch.autocast, "cpu", torch.bfloat16)
    return nullcontext


def sorted_batches(tokenizer: Any, texts: list[str]) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """(numbers of the texts, their tensors padded to the longest of them), the longest first."""
    read = tokenizer(texts, truncation=True, max_length=LONGEST)
    lengths = list(map(len, read["input_ids"]))
    order = sorted(range(len(texts)), key=lengths.__getitem__, reverse=True)
    for start in range(0, len(order), ROWS):
        chosen = order[start : start + ROWS]
        rows = {}
        for name, values in read.items():
            rows[name] = [values[i] for i in chosen]
        yield chosen, tokenizer.pad(rows, return_tensors="pt")


def in_sorted_batches(folder: Path, compute: Callable[[dict[str, Any]], Any]) -> Answer:
    """The answers of `compute`, which takes one batch, in the order of the texts."""
    import numpy as np
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def answer(texts: list[str]) -> Any:
        answers: list[Any] = [None] * len(texts)
        for chosen, batch in sorted_batches(tokenizer, texts):
            for i, row in zip(chosen, compute(batch), strict=True):
                answers[i] = row
        return np.stack(answers)

    return answer


def transformers_model(task: str, folder: Path) -> Any:
    """A module of ids, mask and token types -> probabilities or normalised means of states."""
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification

    kind = AutoModelForSequenceClassification if task == "classify" else AutoModel
    model = kind.from_pretrained(folder).eval()

    class Answering(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            names = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
            output = self.model(input_ids=input_ids, **names)
            if task == "classify":
                return output.logits.float().softmax(-1)
            weights = attention_mask[:, :, None].float()
            means = (output.last_hidden_state.float() * weights).sum(1) / weights.sum(1)
            return torch.nn.functional.normalize(means, dim=-1)

    return Answering().eval()


def clozelab_answer(task: str, folder: Path) -> Answer:
    import numpy as np

    import clozelab

    ready = clozelab.load(folder)
    if task == "embed":
        return lambda texts: ready.embed(texts)

    def classify(texts: list[str]) -> Any:
        rows = [list(answer.probabilities.values()) for answer in ready.classify(texts)]
        return np.array(rows, dtype=np.float32)

    return classify


def pipeline_answer(folder: Path) -> Answer:
    import numpy as np
    from transformers import pipeline

    ready = pipeline("text-classification", model=str(folder), batch_size=ROWS, device="cpu")

    def classify(texts: list[str]) -> Any:
        rows = []
        for scores in ready(texts, truncation=True, max_length=LONGEST, top_k=None):
            # the pipeline has the most probable class first
            ordered = sorted(scores, key=lambda score: score["label"])
            rows.append([score["score"] for score in ordered])
        return np.array(rows, dtype=np.float32)

    return classify


def sorted_answer(task: str, folder: Path) -> Answer:
    import torch

    model, precision = transformers_model(task, folder), fast_precision()

    def compute(batch: dict[str, Any]) -> Any:
        with torch.inference_mode(), precision():
            return model(**batch).numpy()

    return in_sorted_batches(folder, compute)


def onnx_answer(task: str, folder: Path, threads: int) -> Answer:
    import onnxruntime
    import torch

    model = transformers_model(task, folder)
    ids = torch.randint(1000, 2000, (3, 7))
    example = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
    }
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=LONGEST)}
    # what the exporter says of its steps goes to stdout, where the worker answers
    with redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program: Any = torch.onnx.export(
            model,
            kwargs=example,
            input_names=list(example),
            dynamo=True,
            verbose=False,
            dynamic_shapes=dict.fromkeys(example, sizes),
        )
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    content = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, settings)

    def compute(batch: dict[str, Any]) -> Any:
        inputs = {name: batch[name].numpy() for name in example}
        return session.run(None, inputs)[0]

    return in_sorted_batches(folder, compute)


def encode_answer(folder: Path) -> Answer:
    from sentence_transformers import SentenceTransformer

    ready = SentenceTransformer(str(folder), device="cpu")
    ready.max_seq_length = LONGEST
    precision = fast_precision()

    def embed(texts: list[str]) -> Any:
        with precision():
            return ready.encode(texts, batch_size=ROWS, show_progress_bar=False)

    return embed


def answer_of(side: str, task: str, folder: Path, threads: int) -> Answer:
    if side == "clozelab":
        return clozelab_answer(task, folder)
    if side == "pipeline":
        return pipeline_answer(folder)
    if side == "sorted":
        return sorted_answer(task, folder)
    if side == "onnx":
        return onnx_answer(task, folder, threads)
    return encode_answer(folder)


def work(arguments: argparse.Namespace) -> None:
    side, task, threads = arguments.worker, arguments.tasks[0], arguments.threads
    start_worker(side == "clozelab", threads)
    lines = (arguments.data_dir / "glue/SST-2/train.tsv").read_text(encoding="utf-8").splitlines()
    texts = [line.split("\t")[0].strip() for line in lines[1 : arguments.sentences + 1]]
    answer = answer_of(side, task, arguments.model, threads)
    first = answer(texts[:NUM_COMPARED])

    def measure(_seconds: float) -> float:
        start = time.perf_counter()
        answer(texts)
        return len(texts) / (time.perf_counter() - start)

    serve(measure, first.tolist())


def compare(task: str, arguments: argparse.Namespace) -> list[str]:
    """The table, and how far apart the answers are; a turn is all sentences once."""
    import numpy as np

    lines = rate_table(f"sentences/s of {arguments.sentences:,}", arguments.rounds, 0.0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = minilm()
        if task == "classify":
            folder = Path(temporary) / "model"
            save_classifier(folder)
        options = ["--tasks", task, "--model", folder, "--data-dir", arguments.data_dir]
        options += ["--sentences", arguments.sentences]
        environment = {"TOKENIZERS_PARALLELISM": "true"}
        effort = (arguments.threads, arguments.rounds, 0.0)
        sides = race(__file__, SIDES[task], options, *effort, environment)
    lines += rate_rows("MiniLM", sides)
    ours, *others = (np.array(side.hello) for side in sides.values())
    distances = [f"{np.abs(ours - other).max():.1e}" for other in others]
    return lines + say("", f"Largest distance from clozelab's answers: {', '.join(distances)}.")


def main(words: Sequence[str] | None = None) -> int:
    shared = Path(os.environ.get("CLOZELAB_SHARED", ROOT.parent / "shared"))
    options = parser(__doc__, rounds=3)
    options.add_argument("--tasks", nargs="+", default=list(TITLES), choices=list(TITLES))
    options.add_argument("--sentences", type=int, default=4_000)
    options.add_argument("--data-dir", type=Path, default=shared / "data")
    options.add_argument("--smoke", action="store_true")
    options.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    arguments = options.parse_args(words)
    if arguments.smoke:
        arguments.sentences, arguments.rounds = 40, 1
    if arguments.worker:
        work(arguments)
        return 0
    output = arguments.output
    if output is None and not arguments.smoke:
        output = default_report("answering")
    parts = {TITLES[task]: partial(compare, task, arguments) for task in arguments.tasks}
    report("Answers of a finished model", arguments.threads, parts, output)
    return 0


if __name__ == "__main__":
    for package in ("transformers", "sentence_transformers", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            sys.exit(f"a peer is missing: pip install {package}")
    sys.exit(main())
