"""Stage prepare: text to a prepared corpus in the cache."""

from __future__ import annotations

from pathlib import Path

from clozelab.assembly import corpora
from clozelab.report.inspection import print_words
from clozelab.schema import PrepareConfig


def main(cfg: PrepareConfig) -> Path:
    """Prepare `cfg.corpus` and print where it lies."""
    # Every byte, once before a sweep: its jobs compare sizes alone.
    corpus = corpora.prepared_corpus(cfg, verify="full")
    for name, split in (("train", corpus.train), ("validation", corpus.validation)):
        sizes = (
            f"{split.num_documents:,} documents, {split.num_sentences:,} sentences,"
            f" {split.num_tokens:,} tokens"
        )
        print(f"{name}: {sizes}")
    print(f"vocabulary: {corpus.tokenizer.vocab_size:,} entries")
    print(f"unigram entropy: {corpus.train.unigram_entropy:.3f} nats per token")
    # A corpus of an older version has not counted them.
    if "words" in corpus.manifest:
        print_words(corpus.manifest["words"])
    print(f"prepared corpus: {corpus.folder}")
    return corpus.folder
