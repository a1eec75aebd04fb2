"""The prepared corpus of a configuration: found in the cache, or made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from claims.text.did_you_mean import hint
from clozelab.addresses import allowed, build, locate, parameters_of
from clozelab.corpus.encoding import refuse_unknown
from clozelab.corpus.files import CorpusSource
from clozelab.corpus.mixing import check_weights
from clozelab.corpus.preparation.forecast import (
    SECONDS,
    CorpusForecast,
    forecast_source,
    settled_steps,
)
from clozelab.corpus.preparation.pool import ShardPool
from clozelab.corpus.prepare import CorpusPlan, MakePool, plan_corpus, prepare_corpus
from clozelab.corpus.shards import PreparedCorpus
from clozelab.corpus.sources import DatasetSource, make_source
from clozelab.corpus.steps.step import CorpusStep
from clozelab.corpus.tokenizer_settings import TokenizerSettings
from clozelab.schema import Component, PrepareConfig, PretrainConfig
from clozelab.training.host import usable_cores

STEPS = "corpus.steps"
EXECUTOR = "corpus.executor"


class CorpusArguments(NamedTuple):
    """The arguments of plan_corpus, in its order."""

    name: str
    sources: Sequence[CorpusSource | DatasetSource]
    data_dir: str
    cache_dir: str
    tokenizer: TokenizerSettings
    validation_fraction: float
    steps: Sequence[CorpusStep]


def prepared_corpus(cfg: PrepareConfig | PretrainConfig) -> PreparedCorpus:
    """The corpus of `cfg.corpus` and `cfg.tokenizer`, prepared unless it is in the cache.

    An embedded one is generated first.
    """
    arguments = _prepare_arguments(cfg)
    make_pool: MakePool = partial(ShardPool, workers=num_workers(cfg))
    if cfg.corpus.executor:
        addresses = {address.rpartition(".")[2]: address for address in allowed()[EXECUTOR]}
        make_pool = build(EXECUTOR, _named_node(EXECUTOR, cfg.corpus.executor, addresses))
    generate = _generator(cfg)
    if generate is not None:
        generate(output_dir=cfg.data_dir)
    plan = plan_corpus(*arguments)
    corpus = prepare_corpus(plan, cfg.max_unknown_share, make_pool)
    refuse_unknown(
        f"corpus {cfg.corpus.name}", corpus.manifest["unknown_fraction"], cfg.max_unknown_share
    )
    return corpus


def num_workers(cfg: PrepareConfig | PretrainConfig) -> int:
    """The processes that prepare a corpus: as configured, else one a core."""
    if cfg.corpus.workers is None:
        return usable_cores()
    return cfg.corpus.workers


def forecast_corpus(plan: CorpusPlan) -> dict[str, CorpusForecast]:
    """Source -> what preparing it would take; nothing is written."""
    steps = settled_steps(plan.steps)
    seconds = SECONDS / len(plan.source_names)
    tokenizer = plan.tokenizer
    forecasts = {}
    for index, name in enumerate(plan.source_names):
        files = [file for file in plan.files if file.source == index]
        forecasts[name] = forecast_source(
            files, steps, plan.given_tokenizer, seconds, tokenizer.kind, tokenizer.vocab_size
        )
    return forecasts


def require_sources(cfg: PrepareConfig | PretrainConfig) -> None:
    """ValueError where a source has no file, unless the corpus is generated."""
    if cfg.corpus.generator:
        return
    for source in _prepare_arguments(cfg).sources:
        source.require_files(cfg.data_dir)


def planned_corpus(cfg: PrepareConfig | PretrainConfig) -> CorpusPlan | None:
    """What a configuration would prepare, and where; None where its text is still to be generated.

    ValueError: preparing would be refused.
    """
    arguments = _prepare_arguments(cfg)
    generate = _generator(cfg)
    if generate is not None and generate(output_dir=cfg.data_dir, only_look=True) is None:
        return None
    return plan_corpus(*arguments)


def find_corpus(cfg: PrepareConfig | PretrainConfig) -> Path | None:
    """Where a configuration's prepared corpus lies, if it does; writes none.

    ValueError: preparing would be refused.
    """
    plan = planned_corpus(cfg)
    if plan is None or not plan.folder.exists():
        return None
    return plan.folder


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


def _prepare_arguments(cfg: PrepareConfig | PretrainConfig) -> CorpusArguments:
    sources: list[CorpusSource | DatasetSource] = []
    for index, source in enumerate(cfg.corpus.sources):
        settings = vars(source)
        sources.append(make_source(settings, index, cfg.corpus.hub, cfg.corpus.how_to_get))
    tokenizer = TokenizerSettings(**vars(cfg.tokenizer))
    return CorpusArguments(
        cfg.corpus.name,
        sources,
        cfg.data_dir,
        cfg.cache_dir,
        tokenizer,
        cfg.corpus.validation_fraction,
        corpus_steps(cfg.corpus.steps, cfg.data_dir),
    )


def corpus_steps(entries: Sequence[object], data_dir: str) -> list[CorpusStep]:
    """The steps that `corpus.steps` lists; relative paths of theirs start at `data_dir`.

    ValueError for an unknown step, and for a setting that a step does not take.
    """
    if not entries:
        raise ValueError(
            "corpus.steps is empty: list at least one step, as corpus.steps=[clean]; conf/targets."
            "yaml has them all"
        )
    addresses = {address.split(".")[-2]: address for address in allowed()[STEPS]}
    steps = []
    for number, entry in enumerate(entries):
        node = _named_node(f"{STEPS}.{number}", entry, addresses)
        make_step = build(STEPS, node | {"_partial_": True})
        arguments = {}
        if "data_dir" in parameters_of(locate(node["_target_"])):
            arguments["data_dir"] = data_dir
        step = make_step(**arguments)
        if not hasattr(step, "name"):
            raise ValueError(
                f"{STEPS}.{number}: {node['_target_']} has no `name`, by which the corpus's report"
                " and its fingerprint call a step"
            )
        steps.append(step)
    return steps


def _named_node(key: str, entry: object, addresses: Mapping[str, str]) -> Component:
    """An entry as a node with `_target_`: it is NAME, {NAME: settings}, or such a node."""
    if isinstance(entry, str):
        entry = {entry: {}}
    if isinstance(entry, dict) and "_target_" in entry:
        return entry
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ValueError(f"{key} is {entry!r}: write a name, or {{NAME: {{KEY: VALUE}}}}")
    ((name, settings),) = entry.items()
    if name not in addresses:
        raise ValueError(f"{key}: there is no {name!r}; {hint(str(name), addresses)}")
    if settings is None:
        settings = {}
    if not isinstance(settings, dict):
        raise ValueError(f"{key}.{name} is {settings!r}: write its settings as {{KEY: VALUE}}")
    return {"_target_": addresses[name], **settings}


def _generator(cfg: PrepareConfig | PretrainConfig) -> Callable[..., object] | None:
    """What generates an embedded corpus; None for any other.

    It takes `output_dir` and does nothing where its files lie already. With `only_look` it says
    whether they do, and writes nothing.
    """
    if not cfg.corpus.generator:
        return None
    return build("corpus.generator", cfg.corpus.generator)
