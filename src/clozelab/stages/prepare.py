"""Stage prepare: text to a prepared corpus in the cache. `prepared_corpus` is what pre-training
calls, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from clozelab.corpus.encoding import refuse_unknown
from clozelab.corpus.files import Source
from clozelab.corpus.prepare import find_prepared_corpus, prepare_corpus
from clozelab.corpus.shards import PreparedCorpus
from clozelab.corpus.tokenizers import TokenizerSettings
from clozelab.targets import build, check_targets


def main(cfg: Any) -> Path:
    """Prepares `cfg.corpus` and prints where it lies."""
    check_targets(cfg)
    # Every byte, once before a sweep: its jobs compare sizes alone.
    corpus = prepared_corpus(cfg, verify="full")
    for name, split in (("train", corpus.train), ("validation", corpus.validation)):
        sizes = (
            f"{split.num_documents:,} documents, {split.num_sentences:,} sentences,"
            f" {split.num_tokens:,} tokens"
        )
        print(f"{name}: {sizes}")
    print(f"vocabulary: {corpus.tokenizer.vocab_size:,} entries")
    print(f"unigram entropy: {corpus.train.unigram_entropy:.3f} nats per token")
    print(f"prepared corpus: {corpus.folder}")
    return corpus.folder


def prepared_corpus(cfg: Any, *, verify: str = "sizes") -> PreparedCorpus:
    """The prepared corpus of `cfg.corpus` and `cfg.tokenizer`: generated first if it is an embedded
    one, prepared unless cached.

    A generator is a partial that takes `output_dir` and does nothing where its files lie already;
    with `only_look` it says whether they do, and writes nothing."""
    settings, generator = _settings(cfg)
    if generator:
        build("corpus.generator", generator)(output_dir=cfg.data_dir)
    corpus = PreparedCorpus.open(
        prepare_corpus(max_unknown_share=cfg.max_unknown_share, **settings), verify
    )
    refuse_unknown(
        f"corpus {cfg.corpus.name}", corpus.manifest["unknown_fraction"], cfg.max_unknown_share
    )
    return corpus


def find_corpus(cfg: Any) -> Path | None:
    """Where a configuration's prepared corpus lies, if it does; writes none. ValueError: preparing
    would be refused.
    """
    settings, generator = _settings(cfg)
    if (
        generator
        and build("corpus.generator", generator)(output_dir=cfg.data_dir, only_look=True) is None
    ):
        return None
    return find_prepared_corpus(**settings)


def _settings(cfg: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(arguments of prepare_corpus, the generator's node)."""
    corpus, tokenizer = (
        cast(dict[str, Any], OmegaConf.to_container(node, resolve=True, throw_on_missing=True))
        for node in (cfg.corpus, cfg.tokenizer)
    )
    generator = corpus.pop("generator", None)
    made = {
        "sources": [Source(**source) for source in corpus["sources"]],
        "tokenizer": TokenizerSettings(**tokenizer),
    }
    return corpus | made | {"data_dir": cfg.data_dir, "cache_dir": cfg.cache_dir}, generator
