"""The prepared corpus of a configuration: found in the cache, or made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from clozelab.addresses import build
from clozelab.corpus.encoding import refuse_unknown
from clozelab.corpus.files import CorpusSource, source_files
from clozelab.corpus.mixing import check_weights
from clozelab.corpus.prepare import plan_corpus, prepare_corpus
from clozelab.corpus.shards import PreparedCorpus
from clozelab.corpus.tokenizer_settings import TokenizerSettings
from clozelab.schema import PrepareConfig, PretrainConfig
from clozelab.text.plain import JsonObject, PlainMapping


def prepared_corpus(
    cfg: PrepareConfig | PretrainConfig, *, verify: str = "sizes"
) -> PreparedCorpus:
    """The corpus of `cfg.corpus` and `cfg.tokenizer`, prepared unless it is in the cache.

    An embedded one is generated first.
    """
    arguments = _prepare_arguments(cfg)
    generate = _generator(cfg)
    if generate is not None:
        generate(output_dir=cfg.data_dir)
    plan = plan_corpus(**arguments)
    folder = prepare_corpus(plan, cfg.max_unknown_share)
    corpus = PreparedCorpus.open(folder, verify)
    refuse_unknown(
        f"corpus {cfg.corpus.name}", corpus.manifest["unknown_fraction"], cfg.max_unknown_share
    )
    return corpus


def require_sources(cfg: PrepareConfig | PretrainConfig) -> None:
    """ValueError where a source has no file, unless the corpus is generated."""
    if cfg.corpus.generator:
        return
    for source in _prepare_arguments(cfg)["sources"]:
        source_files(source, cfg.data_dir)


def find_corpus(cfg: PrepareConfig | PretrainConfig) -> Path | None:
    """Where a configuration's prepared corpus lies, if it does; writes none.

    ValueError: preparing would be refused.
    """
    arguments = _prepare_arguments(cfg)
    generate = _generator(cfg)
    if generate is not None and generate(output_dir=cfg.data_dir, only_look=True) is None:
        return None
    folder = plan_corpus(**arguments).folder
    return folder if folder.exists() else None


def corpus_source(settings: PlainMapping) -> CorpusSource:
    """A source as preparing knows it: not how much training reads of it."""
    arguments: JsonObject = {key: value for key, value in settings.items() if key != "weight"}
    return CorpusSource(**arguments)


def source_weights(cfg: PretrainConfig) -> list[Mapping[str, float]]:
    """The mixing weights of each phase: its own, else the corpus's, empty without any.

    ValueError for weights that say no share of each source.
    """
    given = {source.name: source.weight for source in cfg.corpus.sources}
    of_corpus = {name: weight for name, weight in given.items() if weight is not None}
    if of_corpus:
        check_weights("corpus.sources", of_corpus, list(given))
    weights: list[Mapping[str, float]] = [of_corpus] * len(cfg.phases)
    for number, phase in enumerate(cfg.phases):
        if phase.source_weights is not None:
            check_weights(f"phases.{number}.source_weights", phase.source_weights, list(given))
            weights[number] = phase.source_weights
    return weights


def _prepare_arguments(cfg: PrepareConfig | PretrainConfig) -> JsonObject:
    """The arguments of plan_corpus."""
    # Preparing knows nothing of where the text came from.
    sources = [corpus_source(vars(source)) for source in cfg.corpus.sources]
    tokenizer = TokenizerSettings(**vars(cfg.tokenizer))
    return {
        "name": cfg.corpus.name,
        "validation_fraction": cfg.corpus.validation_fraction,
        "sources": sources,
        "tokenizer": tokenizer,
        "data_dir": cfg.data_dir,
        "cache_dir": cfg.cache_dir,
    }


def _generator(cfg: PrepareConfig | PretrainConfig) -> Callable[..., object] | None:
    """What generates an embedded corpus; None for any other.

    It takes `output_dir` and does nothing where its files lie already. With `only_look` it says
    whether they do, and writes nothing.
    """
    if not cfg.corpus.generator:
        return None
    return build("corpus.generator", cfg.corpus.generator)
