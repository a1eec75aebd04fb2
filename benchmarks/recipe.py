"""What instances and masks are like: the released code's own, ours as released, ours by default;
and what they cost.

`python benchmarks/recipe.py SHARED --code BERT --corpus PREPARED` prints three tables. SHARED holds
`data/oracles` (instances of the released code with their text) and `data/vocab`; BERT is a checkout
of google-research/bert, which is run itself; PREPARED is the folder that `clozelab prepare` names.
The first table is at the settings of the released instances; its spread is over seeds of the
builder. The second is of real text, in one copy at three lengths. The third is batches a second of
the loader's work, without a model.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from clozelab.corpus.instances import SegmentPairs
from clozelab.corpus.packing import PackedInstances, SpecialIds
from clozelab.corpus.random import Draws, instance_indices
from clozelab.corpus.shards import PreparedCorpus, TokenShards, TokenStream
from clozelab.corpus.tokenizers import WordPieceTokenizer
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.nsp import NextSentencePrediction
from clozelab.objectives.objective import Objective

OURS = SegmentPairs(0.5, "corpus")
RELEASED = replace(
    OURS, cuts="released", short_seq_prob=0.1, put_back_unused=True, lone_sentences="random"
)


def mlm(**settings: Any) -> MaskedLanguageModel:
    return MaskedLanguageModel(0.15, 0.8, 0.1, 0.1, weight=1.0, **settings)


RECIPES: dict[str, tuple[SegmentPairs, MaskedLanguageModel]] = {
    "ours": (OURS, mlm()),
    "released": (RELEASED, mlm(count_specials=True, max_predictions_fraction=20 / 128)),
    "released, whole words": (
        RELEASED,
        mlm(count_specials=True, max_predictions_fraction=20 / 128, whole_words=True),
    ),
    "ours, whole words": (OURS, mlm(whole_words=True)),
    "ours, n-grams of words": (OURS, mlm(whole_words=True, span_weights=[6, 3, 2])),
}
ORACLE = "create_pretraining_readme_uncased_seed12345_dupe5_len128.json"
RELEASED_INSTANCES = "the released instances"


def shards_of(
    documents: Iterable[Sequence[np.ndarray]], vocab_size: int, source: Sequence[int]
) -> TokenShards:
    sentences: list[np.ndarray] = []
    document_ends = [0]
    for document in documents:
        sentences += [ids for ids in document if len(ids)]
        document_ends.append(len(sentences))
    lengths = [len(ids) for ids in sentences]
    return TokenShards(
        tokens=TokenStream([np.concatenate(sentences)]),
        sentence_offsets=np.append(0, np.cumsum(lengths)),
        document_offsets=np.array(document_ends),
        document_source=np.asarray(source, dtype=np.uint8),
        source_names=("wiki", "books"),
        vocab_size=vocab_size,
        unigram_entropy=0.0,
        fingerprint="",
    )


def figures(
    packed: PackedInstances, position: np.ndarray, continues: np.ndarray, width: int
) -> dict[str, float]:
    text = ~packed.special
    hit = np.zeros(packed.special.size, dtype=bool)
    hit[position] = True
    # A word goes on over a piece that stands beside it; a segment's first token begins one.
    begins = text & ~(continues[packed.input_ids] & np.append(False, text[:-1]))
    # Of each word: its pieces, and those of them that are predicted.
    word = np.cumsum(begins)
    pieces = np.bincount(word[text])
    hits = np.bincount(word[hit], minlength=int(word.max()) + 1)
    is_long = pieces > 1
    counts = {
        "instances": packed.num_instances,
        "full length, %": 100 * float((packed.lengths == width).mean()),
        "tokens": float(packed.lengths.mean()),
        "random next, %": 100 * float(np.mean(packed.next_sentence_label)),
    }
    predicted = {
        "predictions": len(position) / packed.num_instances,
        "predicted, % of the slots": 100 * len(position) / packed.special.size,
        "predicted, % of the tokens": 100 * len(position) / float(packed.lengths.sum()),
    }
    words = {
        "words of several pieces, whole": float((is_long & (hits == pieces)).sum()),
        "words of several pieces, in part": float((is_long & (hits > 0) & (hits < pieces)).sum()),
    }
    return {**counts, **predicted, **words}


def all_of(
    shards: TokenShards,
    ids: SpecialIds,
    recipe: str,
    length: int,
    seed: int,
    copies: int,
    most: int = 1 << 30,
) -> dict[str, float]:
    """Figures of `copies` ways to see the corpus: copies of the released builder, epochs of
    ours.
    """
    layout, token = RECIPES[recipe]
    is_released = layout.cuts == "released"
    instances = replace(layout, builder_seed=seed, copies=copies if is_released else 1).bind(
        shards, ids, length
    )
    epochs = 1 if is_released else copies
    number = min(most, len(instances))
    index = np.tile(instance_indices(seed, len(instances), np.arange(number))[1], epochs)
    epoch = np.repeat(np.arange(epochs), number)
    packed = instances.pack(seed, epoch, index)
    assert ids.continues is not None
    found = figures(packed, token.apply(packed)[1], ids.continues, length)
    return found | {"instances": len(instances) * epochs}


def their_figures(
    instances: Sequence[dict[str, Any]],
    width: int,
    tokenizer: WordPieceTokenizer,
    ids: SpecialIds,
) -> dict[str, float]:
    """The released code's instances as a rectangle, to be counted by the same code."""
    numbers = {token: number for number, token in enumerate(tokenizer.vocabulary)}
    rows = np.zeros((len(instances), width), dtype=np.int64)
    special = np.ones(rows.shape, dtype=bool)
    assert ids.continues is not None
    position = []
    lengths = []
    for row, instance in enumerate(instances):
        tokens = list(instance["tokens"])
        slots = instance["masked_lm_positions"]
        for slot, label in zip(slots, instance["masked_lm_labels"], strict=True):
            tokens[slot] = label
            position.append(row * width + slot)
        rows[row, : len(tokens)] = [numbers[token] for token in tokens]
        special[row, : len(tokens)] = [token in ("[CLS]", "[SEP]") for token in tokens]
        lengths.append(len(tokens))
    is_random_next = [instance["is_random_next"] for instance in instances]
    packed = PackedInstances(
        input_ids=rows.reshape(-1),
        token_type_ids=np.zeros(rows.size, dtype=np.int64),
        position_ids=np.tile(np.arange(width), len(rows)),
        lengths=np.array(lengths),
        width=width,
        ids=ids,
        draws=Draws(0, 0, np.arange(len(rows))),
        special=special.reshape(-1),
        next_sentence_label=np.array(is_random_next, dtype=np.int64),
    )
    return figures(packed, np.array(position), ids.continues, width)


def released_code(
    folder: Path, data: Path, oracle: dict[str, Any]
) -> Callable[[int, bool], list[dict[str, Any]]]:
    """The released builder itself, as a function of seed and whole-word masks.

    It needs nothing of TensorFlow but flags and an open file. SystemExit where it does not make the
    oracle's instances.
    """
    flags, args = SimpleNamespace(), oracle["args"]
    define = {
        f"DEFINE_{kind}": lambda *rest: setattr(flags, *rest[:2])
        for kind in ("string", "bool", "integer", "float")
    }
    stand_in: Any = ModuleType("tensorflow")
    stand_in.flags, stand_in.gfile = (
        SimpleNamespace(FLAGS=flags, **define),
        SimpleNamespace(GFile=open),
    )
    six: Any = ModuleType("six")
    six.PY2, six.PY3 = False, True
    sys.modules |= {"tensorflow": stand_in, "six": six}
    sys.path.insert(0, str(folder))
    builder, tokenization = (
        import_module(name) for name in ("create_pretraining_data", "tokenization")
    )
    tokenizer = tokenization.FullTokenizer(
        str(data / "vocab" / args["vocab"]), do_lower_case=args["do_lower_case"]
    )
    text = [str(data / "oracles" / "google_bert_sample_text.txt")]
    settings = (
        args["max_seq_length"],
        args["dupe_factor"],
        oracle["short_seq_prob"],
        oracle["masked_lm_prob"],
    )

    def instances(seed: int, whole_words: bool) -> list[dict[str, Any]]:
        flags.do_whole_word_mask = whole_words
        rng, most = random.Random(seed), args["max_predictions_per_seq"]
        return [
            *map(vars, builder.create_training_instances(text, tokenizer, *settings, most, rng))
        ]

    if instances(args["random_seed"], args["do_whole_word_mask"]) != oracle["instances"]:
        raise SystemExit(
            f"{folder} does not make the instances of {ORACLE}: give the code of"
            " google-research/bert."
        )
    return instances


def table(title: str, columns: dict[str, Callable[[str], str]], keys: Iterable[str]) -> None:
    print(f"\n{title}\n\n| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for key in keys:
        print(f"| {key} | {' | '.join(cell(key) for cell in columns.values())} |")


def at_the_released_settings(
    data: Path, code: Path | None, tokenizer: WordPieceTokenizer, ids: SpecialIds, seeds: int
) -> None:
    oracle = json.loads((data / "oracles" / ORACLE).read_text(encoding="utf-8"))
    text = (data / "oracles" / "google_bert_sample_text.txt").read_text(encoding="utf-8")
    blocks = [block.split("\n") for block in text.split("\n\n") if block.strip()]
    documents = [tokenizer.encode_batch(block) for block in blocks]
    shards = shards_of(documents, ids.vocab_size, [0] * len(documents))
    width = oracle["args"]["max_seq_length"]
    copies = oracle["args"]["dupe_factor"]
    build = released_code(code, data, oracle) if code else None
    # Name of a column -> its figures, one dictionary a seed.
    released = their_figures(oracle["instances"], width, tokenizer, ids)
    columns: dict[str, list[dict[str, float]]] = {RELEASED_INSTANCES: [released]}
    for recipe, whole_words in (("released", False), ("released, whole words", True)):
        if build:
            name = "released code, whole words" if whole_words else "released code"
            columns[name] = []
            for seed in range(seeds):
                instances = build(seed, whole_words)
                columns[name].append(their_figures(instances, width, tokenizer, ids))
        columns[f"ours: {recipe}"] = [
            all_of(shards, ids, recipe, width, seed, copies) for seed in range(seeds)
        ]
    columns["ours: ours"] = [
        all_of(shards, ids, "ours", width, seed, copies) for seed in range(seeds)
    ]

    about = f"{len(documents)} documents, length {width}, {copies} copies"
    table(
        f"At the settings of the released instances ({about}): mean (sd over {seeds} seeds)",
        {name: partial(cell, columns, name) for name in columns},
        released,
    )


def cell(columns: dict[str, list[dict[str, float]]], name: str, key: str) -> str:
    """Mean (sd over seeds), and how far the released instances lie off, and the mean of the column
    before.
    """
    values = np.array([figures[key] for figures in columns[name]])
    if len(values) == 1:
        return f"{values[0]:.4g}"
    spread = values.std()
    notes = [f"{spread:.2g}"]
    if spread > 1e-9 and "whole" not in name:
        released = columns[RELEASED_INSTANCES][0][key]
        notes.append(f"the released instances {(released - values.mean()) / spread:+.1f} sd")
    names = [*columns]
    before = names[names.index(name) - 1]
    if before.startswith("released code"):
        theirs = np.array([figures[key] for figures in columns[before]])
        error = np.sqrt((values.var() + theirs.var()) / len(values))
        if error:
            distance = (values.mean() - theirs.mean()) / error
            notes.append(f"means {distance:+.1f} errors apart")
        else:
            notes.append("means equal")
    return f"{values.mean():.4g} ({'; '.join(notes)})"


def on_real_text(shards: TokenShards, ids: SpecialIds, most: int) -> None:
    for length in (32, 128, 512):
        runs = {recipe: all_of(shards, ids, recipe, length, 1, 1, most) for recipe in RECIPES}
        columns = {recipe: lambda key, run=run: f"{run[key]:,.4g}" for recipe, run in runs.items()}
        keys = next(iter(runs.values()))
        about = (
            f"{shards.num_tokens:,} tokens, one copy; all but the first line over {most:,}"
            " instances at most"
        )
        table(f"Real text in instances of {length} ({about})", columns, keys)


def loading(shards: TokenShards, ids: SpecialIds, seconds: float, rounds: int = 5) -> None:
    """Batches of 64 x 128, all recipes in turn; median (lowest to highest), and the seconds to find
    the instances.
    """
    print(
        "\nBatches of 64 x 128 a second, one core\n\n| | batches/s | instances found in"
        " |\n|---|---|---|"
    )
    sides: dict[str, tuple[Objective, Any, float]] = {}
    for recipe, (layout, token) in RECIPES.items():
        start = time.process_time()
        objective = Objective(input=layout, token=token, pair=NextSentencePrediction(weight=1.0))
        sides[recipe] = objective, objective.bind(shards, ids, 128), time.process_time() - start
    rates: dict[str, list[float]] = {recipe: [] for recipe in sides}
    for turn in range(rounds + 1):
        for recipe, (objective, instances, _) in sides.items():
            start, step = time.process_time(), 0
            while time.process_time() - start < seconds:
                positions = np.arange(step * 64, step * 64 + 64)
                objective.arrays(instances, 1, 0, instance_indices(1, len(instances), positions)[1])
                step += 1
            if turn:
                rates[recipe].append(step / (time.process_time() - start))
    for recipe, found in rates.items():
        spread = f"{np.median(found):,.0f} ({min(found):,.0f}-{max(found):,.0f})"
        print(f"| {recipe} | {spread} | {sides[recipe][2]:.2f} s |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path)
    parser.add_argument(
        "--code",
        type=Path,
        help="checkout of google-research/bert, to be run with as many seeds as ours",
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        help="folder of a prepared corpus, for the second and the third table",
    )
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--instances", type=int, default=50_000)
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="of each turn of the third table"
    )
    said = parser.parse_args()
    data = said.shared / "data"
    tokenizer = WordPieceTokenizer.from_vocab(
        data / "vocab" / "bert-base-uncased-vocab.txt", lowercase=True
    )
    if said.seeds:
        at_the_released_settings(
            data, said.code, tokenizer, SpecialIds.from_tokenizer(tokenizer), said.seeds
        )
    if said.corpus:
        corpus = PreparedCorpus.open(said.corpus)
        ids = SpecialIds.from_tokenizer(corpus.tokenizer)
        if said.instances:
            on_real_text(corpus.train, ids, said.instances)
        loading(corpus.train, ids, said.seconds)


if __name__ == "__main__":
    main()
