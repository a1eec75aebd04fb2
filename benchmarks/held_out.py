"""What the held-out text of prepared corpora is made of, and what can be known of it without a
model.

    clozelab prepare scale=laptop data_dir=FOLDER
    python benchmarks/held_out.py ~/.cache/clozelab/corpora/wiki_books-* [seq_length=64]
    [instances=4096]

For each folder: tokens by source and what share of each is held out; how much of that is of one
document; on how many held-out pairs it is right to ask whether both segments are of one source
(with random segments of the whole corpus, and of the first one's source); the lines that take no
context; and how many predictions from left to right are [SEP]. Folders of earlier formats are read,
too: a document whose parts are not named is whole.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from clozelab.corpus.instances import FullSentences, SegmentPairs, source_rule
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.random import instance_indices
from clozelab.corpus.shards import (
    TokenShards,
    TokenStream,
    token_dtype,
    unigram_entropy,
    unigram_loss,
)
from clozelab.corpus.tokenizers import read_tokenizer
from clozelab.datamodules.corpus import VALIDATION_SEED
from clozelab.objectives.ltr import LeftToRight
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.objective import Objective, TokenObjective

MLM = MaskedLanguageModel(
    predict_prob=0.15, mask_fraction=0.8, random_fraction=0.1, same_fraction=0.1, weight=1.0
)


def read_split(folder: Path) -> TokenShards:
    """As `TokenShards.open`, of any format so far."""
    facts = json.loads((folder / "shards.json").read_text())
    tokens = [
        np.fromfile(path, token_dtype(facts["vocab_size"]))
        for path in sorted(folder.glob("tokens-*.bin"))
    ]
    sentences, documents = (
        np.fromfile(folder / f"{name}_offsets.bin", "<i8") for name in ("sentence", "document")
    )
    origin = folder / "document_origin.bin"
    return TokenShards(
        tokens=TokenStream(tokens),
        sentence_offsets=sentences,
        document_offsets=documents,
        document_source=np.fromfile(folder / "document_source.bin", "u1"),
        source_names=tuple(facts["source_names"]),
        vocab_size=facts["vocab_size"],
        unigram_entropy=facts["unigram_entropy"],
        fingerprint=facts["fingerprint"],
        document_origin=(
            np.fromfile(origin, "<i8") if origin.is_file() else np.arange(len(documents) - 1)
        ),
    )


def tokens_of(shards: TokenShards) -> np.ndarray:
    """Of each document, or part of one."""
    return np.diff(shards.sentence_offsets[shards.document_offsets])


def composition(train: TokenShards, held_out: TokenShards) -> Iterator[tuple[str, str]]:
    sizes = [
        np.bincount(one.document_source, tokens_of(one), len(one.source_names))
        for one in (train, held_out)
    ]
    for name, trained, held in zip(train.source_names, *sizes, strict=True):
        yield f"{name}: held out, of its tokens", f"{held:,.0f} ({held / (trained + held):.2%})"
        yield f"{name}: share of the held-out tokens", f"{held / sizes[1].sum():.1%}"
    assert held_out.document_origin is not None
    parts = np.sort(np.bincount(held_out.document_origin, tokens_of(held_out)))[::-1]
    yield "documents with held-out text", f"{np.count_nonzero(parts):,}"
    yield "the largest document's share of the held-out tokens", f"{parts[0] / parts.sum():.1%}"
    yield "the five largest ones'", f"{parts[:5].sum() / parts.sum():.1%}"


def batch_of(
    shards: TokenShards, ids: SpecialIds, token: TokenObjective, scope: str, **sizes: int
) -> dict[str, Any]:
    layout = SegmentPairs(0.5, scope) if scope else FullSentences()
    instances = layout.bind(shards, ids, sizes["seq_length"])
    count = min(sizes["instances"], len(instances))
    index = instance_indices(VALIDATION_SEED, len(instances), np.arange(count))[1]
    packed = instances.pack(VALIDATION_SEED, 0, index)
    objective = Objective(input=layout, token=token, pair=None)
    return objective.arrays_of(packed, ids, VALIDATION_SEED, 0) | {
        "label": packed.next_sentence_label
    }


def known_without_a_model(
    train: TokenShards, held_out: TokenShards, ids: SpecialIds, **sizes: int
) -> Iterator[tuple[str, str]]:
    for scope in ("corpus", "source"):
        batch = batch_of(held_out, ids, MLM, scope, **sizes)
        number, rule = (
            len(batch["label"]),
            source_rule(batch["label"], batch["source"] == batch["b_source"]),
        )
        yield f"source rule, negative_scope={scope}", f"{rule:.1%} of {number:,} pairs"
    labels = batch_of(held_out, ids, MLM, "corpus", **sizes)["prediction_labels"]
    yield "entropy of the training text", f"{train.unigram_entropy:.3f} nats"
    yield (
        f"its frequencies on the {len(labels):,} held-out masked labels",
        f"{unigram_loss(train, labels):.3f} nats",
    )
    yield "entropy of those labels", f"{unigram_entropy(np.bincount(labels)):.3f} nats"
    for scope, name in (("corpus", "segment pairs"), ("", "full sentences")):
        asked = batch_of(held_out, ids, LeftToRight(weight=1.0), scope, **sizes)[
            "prediction_labels"
        ]
        yield (
            f"[SEP] among the predictions from left to right, {name}",
            f"{(asked == ids.sep).mean():.1%}",
        )


def main(words: list[str]) -> None:
    sizes = {"seq_length": 64, "instances": 4096}
    for word in words:
        key, _, value = word.partition("=")
        if key in sizes:
            sizes[key] = int(value)
    for folder in (Path(word) for word in words if word.partition("=")[0] not in sizes):
        train, held_out = (read_split(folder / split) for split in ("train", "validation"))
        ids = SpecialIds.of(read_tokenizer(folder / "tokenizer"))
        print(f"\n{folder.name}, instances of {sizes['seq_length']} tokens\n")
        for name, value in (
            *composition(train, held_out),
            *known_without_a_model(train, held_out, ids, **sizes),
        ):
            print(f"| {name} | {value} |")


if __name__ == "__main__":
    main(sys.argv[1:])
