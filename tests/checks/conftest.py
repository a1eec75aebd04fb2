"""A sound experiment in memory: three arms on a small corpus with a real tokenizer, and three
tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.conftest import TINY

from clozelab.checks.subject import Subject, Task
from clozelab.corpus.instances import SegmentPairs
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards, TokenStream
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.models.config import EncoderConfig
from clozelab.objectives.ltr import LeftToRight
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.nsp import NextSentencePrediction
from clozelab.objectives.objective import Objective
from clozelab.planning.arms import Arm, Corpus
from clozelab.planning.cost import DiskUsage
from clozelab.schema import PretrainConfig
from clozelab.tasks.baselines import guess_classes
from clozelab.tasks.classes import DEFAULT_POSITIVE_LABELS
from clozelab.tasks.preview import Preview, TaskPreview

WORDS = ["".join(letters) for letters in product("bdfgklmnprst", "aeiou", "bdgklmnrst")]
PHASES = [{"seq_length": 48, "steps": 1000, "global_batch_size": 64, "micro_batch_size": 64}]


@pytest.fixture(scope="session")
def tokenizer() -> WordPieceTokenizer:
    return WordPieceTokenizer([*SPECIAL_TOKENS, *WORDS], lowercase=True)


def make_shards(seed: int, num_documents: int, vocab_size: int) -> TokenShards:
    """Documents of 4..15 sentences of 4..20 random words."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(4, 16, num_documents)
    lengths = rng.integers(4, 21, sizes.sum())
    return TokenShards(
        tokens=TokenStream(
            [rng.integers(len(SPECIAL_TOKENS), vocab_size, lengths.sum()).astype("<u2")]
        ),
        sentence_offsets=np.append(0, np.cumsum(lengths)),
        document_offsets=np.append(0, np.cumsum(sizes)),
        document_source=np.zeros(num_documents, dtype=np.uint8),
        source_names=("words",),
        vocab_size=vocab_size,
        unigram_entropy=5.0,
        fingerprint="",
    )


@pytest.fixture(scope="session")
def corpus(tokenizer: WordPieceTokenizer) -> Corpus:
    size = tokenizer.vocab_size
    train, held_out = make_shards(1, 600, size), make_shards(2, 30, size)
    return Corpus(
        "words", train, held_out, SpecialIds.from_tokenizer(tokenizer), tokenizer.unk_id, tokenizer
    )


MASKING = {
    "predict_prob": 0.15,
    "mask_fraction": 0.8,
    "random_fraction": 0.1,
    "same_fraction": 0.1,
    "weight": 1.0,
}


def make_mlm(**changes: float) -> MaskedLanguageModel:
    return MaskedLanguageModel(**{**MASKING, **changes})


def make_arm(name: str, corpus: Corpus, **changes: Any) -> Arm:
    token: Any = LeftToRight(weight=1.0) if name == "ltr" else make_mlm()
    pair = NextSentencePrediction(weight=1.0) if name == "mlm_nsp" else None
    objective = Objective(input=SegmentPairs(0.5, "corpus"), token=token, pair=pair)
    sizes = {"vocab_size": corpus.ids.vocab_size, "hidden_size": 16, "num_attention_heads": 2}
    config = EncoderConfig(**{**TINY, **sizes}, is_causal=objective.is_causal)
    settings = PretrainConfig(
        fresh_weights=False,
        schedule={"warmup_fraction": 0.05},
        optimizer={},
        encoder=None,
        keep_encoders=[],
    )
    return replace(Arm(name, objective, config, PHASES, corpus, settings=settings), **changes)


def make_split(seed: int, number: int, *, names: Sequence[str]) -> Preview:
    """Each label has some words of its own, in the second text."""
    first, second, label = drawn_texts(seed, number, len(names))
    texts = {"first": [*first], "second": [*second]}
    rows = list(zip(first, second, strict=True))
    return Preview(texts, [names[k] for k in label], number, rows=rows)


@cache  # for every subject, since drawing takes a third of a second
def drawn_texts(seed: int, number: int, num_labels: int) -> tuple[list[str], list[str], list[int]]:
    rng = np.random.default_rng(seed)
    label = rng.integers(0, num_labels, number).tolist()
    first = [" ".join(rng.choice(WORDS, 12)) for _ in range(number)]
    second = [
        " ".join([*rng.choice(WORDS, 9), *rng.choice(WORDS[k * 20 : k * 20 + 20], 4)])
        for k in label
    ]
    return first, second, label


def make_task(
    tokenizer: WordPieceTokenizer, names: Sequence[str] = ("contradiction", "entailment", "neutral")
) -> Task:
    train, held_out = make_split(11, 600, names=names), make_split(12, 300, names=names)
    return Task(
        "nli",
        TaskPreview(
            train,
            held_out,
            label_names=names,
            positive_label=DEFAULT_POSITIVE_LABELS.get(frozenset(names)),
            aligned=True,
        ),
        {"mlm": tokenizer},
        48,
        48,
        ["accuracy"],
    )


def make_numbers(tokenizer: WordPieceTokenizer) -> Task:
    """Regression: the number is the share of words that both texts have."""
    splits = []
    for first, second, shared in drawn_numbers():
        splits.append(
            Preview(
                {"first": [*first], "second": [*second]}, [f"{k:.1f}" for k in shared], len(shared)
            )
        )
    preview = TaskPreview(*splits, predicts_numbers=True, aligned=True)
    return Task("similar", preview, {"mlm": tokenizer}, 48, 48, ["spearman"], (0, 5))


@cache
def drawn_numbers() -> list[tuple[list[str], list[str], list[int]]]:
    """Two texts and the number of words in both, of two splits."""
    splits = []
    for seed in (13, 14):
        rng = np.random.default_rng(seed)
        shared = rng.integers(0, 6, 300)
        first = [rng.choice(WORDS, 10, replace=False) for _ in shared]
        second = [
            [*a[: 2 * k], *rng.choice(WORDS, 10 - 2 * k)]
            for a, k in zip(first, shared, strict=True)
        ]
        splits.append(
            ([" ".join(a) for a in first], [" ".join(b) for b in second], shared.tolist())
        )
    return splits


def make_questions(tokenizer: WordPieceTokenizer, **counts: int) -> Task:
    split = Preview(
        {"question": ["bab dab"] * 20, "passage": ["bab dab fab gab"] * 5}, None, 20, counts
    )
    preview = TaskPreview(split, split, expects_unanswerable=False)
    return Task("span", preview, {"mlm": tokenizer}, 48, 48)


@cache
def guesses(
    train: tuple[Any, ...],
    labels: tuple[int, ...],
    test: tuple[Any, ...],
    num_classes: int,
    balanced: bool,
) -> np.ndarray:
    return guess_classes(train, np.array(labels), test, num_classes, balanced=balanced)


@pytest.fixture(autouse=True)
def equal_texts_are_guessed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests leave the tasks as they are, and a guess is a function of texts and labels."""

    def guess_once(
        train: Any, labels: np.ndarray, test: Any, num_classes: int, *, balanced: bool
    ) -> np.ndarray:
        given = (tuple(train), tuple(labels.tolist()), tuple(test), num_classes, balanced)
        return guesses(*given)

    monkeypatch.setattr("clozelab.checks.tasks.guess_classes", guess_once)


@pytest.fixture
def subject(corpus: Corpus, tokenizer: WordPieceTokenizer) -> Subject:
    arms = [make_arm(name, corpus) for name in ("mlm_nsp", "mlm", "ltr")]
    tasks = [make_task(tokenizer), make_numbers(tokenizer), make_questions(tokenizer)]
    return Subject("sound", arms, tasks, DiskUsage("runs", 10**12))
