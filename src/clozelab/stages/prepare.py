"""Stage prepare: text to a prepared corpus in the cache. `prepared_corpus` is what pre-training calls, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from hydra.utils import instantiate
from omegaconf import OmegaConf

from clozelab.corpus.files import Source
from clozelab.corpus.prepare import find_prepared_corpus, prepare_corpus
from clozelab.corpus.shards import PreparedCorpus
from clozelab.targets import check_targets


def main(cfg: Any) -> Path:
    """Prepares `cfg.corpus` and prints where it lies."""
    check_targets(cfg)
    # Every byte, once before a sweep: its jobs compare sizes alone.
    corpus = prepared_corpus(cfg.corpus, cfg.data_dir, cfg.cache_dir, verify="full")
    for name, split in (("train", corpus.train), ("validation", corpus.validation)):
        sizes = f"{split.num_documents:,} documents, {split.num_sentences:,} sentences, {split.num_tokens:,} tokens"
        print(f"{name}: {sizes}")
    print(f"vocabulary: {corpus.tokenizer.vocab_size:,} entries")
    print(f"unigram entropy: {corpus.unigram_entropy:.3f} nats per token")
    print(f"prepared corpus: {corpus.folder}")
    return corpus.folder


def prepared_corpus(
    cfg_corpus: Any, data_dir: str | Path, cache_dir: str | Path, *, verify: str = "sizes"
) -> PreparedCorpus:
    """The prepared corpus of a CorpusConfig node: generated first if it is an embedded one, prepared unless cached.

    A generator is a partial that takes `output_dir` and does nothing where its files lie already; with `only_look` it
    says whether they do, and writes nothing.
    """
    settings, generator = _settings(cfg_corpus)
    if generator:
        instantiate(generator)(output_dir=data_dir)
    folder = prepare_corpus(**settings, data_dir=data_dir, cache_dir=cache_dir)
    return PreparedCorpus.open(folder, verify)


def find_corpus(cfg_corpus: Any, data_dir: str | Path, cache_dir: str | Path) -> Path | None:
    """Where the prepared corpus of a CorpusConfig node lies, if it is prepared; generates and writes nothing.

    ValueError where preparing would be refused: a generated corpus's files are another one's.
    """
    settings, generator = _settings(cfg_corpus)
    if generator and instantiate(generator)(output_dir=data_dir, only_look=True) is None:
        return None
    return find_prepared_corpus(**settings, data_dir=data_dir, cache_dir=cache_dir)


def _settings(cfg_corpus: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(arguments of prepare_corpus but the folders, the generator's node)."""
    settings = cast(dict[str, Any], OmegaConf.to_container(cfg_corpus, resolve=True, throw_on_missing=True))
    generator = settings.pop("generator", None)
    return settings | {"sources": [Source(**source) for source in settings["sources"]]}, generator
