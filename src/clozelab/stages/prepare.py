"""Stage prepare: text to a prepared corpus in the cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich import filesize

from claims.text.phrases import duration
from claims.text.terminal import Heading
from clozelab.assembly import corpora
from clozelab.corpus.manifest import StepFacts
from clozelab.corpus.preparation.forecast import CorpusForecast
from clozelab.corpus.simple_tokenizers import BytesTokenizer
from clozelab.report.inspection import print_words
from clozelab.schema import PrepareConfig
from clozelab.terminal import print_table
from clozelab.text.formatting import visible

STEPS = (
    Heading("step"),
    Heading("documents", is_number=True),
    Heading("characters", is_number=True),
    Heading("what it did", folds=True),
)
SHOWN_EXAMPLES = 2  # of each reason; the manifest has five
FORECASTS = (
    Heading("source"),
    Heading("files", is_number=True),
    Heading("on disk", is_number=True),
    Heading("documents", is_number=True),
    Heading("characters", is_number=True),
    Heading("tokens", is_number=True),
)


def main(cfg: PrepareConfig) -> Path | None:
    """Prepare `cfg.corpus` and print where it lies; with `dry_run` only what it would take."""
    if cfg.dry_run:
        print_forecast(cfg)
        return None
    corpus = corpora.prepared_corpus(cfg)
    # Every byte, once before a sweep: its jobs compare sizes alone.
    corpus.require_checksums()
    print_table(STEPS, [step_row(step) for step in corpus.manifest["steps"]])
    print_examples(corpus.manifest["steps"])
    for name, split in (("train", corpus.train), ("validation", corpus.validation)):
        sizes = (
            f"{split.num_documents:,} documents, {split.num_sentences:,} sentences,"
            f" {split.num_tokens:,} tokens"
        )
        print(f"{name}: {sizes}")
    print(f"vocabulary: {corpus.tokenizer.vocab_size:,} entries")
    print(f"unigram entropy: {corpus.train.unigram_entropy:.3f} nats per token")
    print_words(corpus.manifest["words"])
    print(f"prepared corpus: {corpus.folder}")
    return corpus.folder


def print_examples(steps: Sequence[StepFacts]) -> None:
    """Print some of what the steps dropped, for a person to look at."""
    for step in steps:
        for reason, texts in step["examples"].items():
            for text in texts[:SHOWN_EXAMPLES]:
                print(f"{step['step']}: {reason}: {visible(text)}")


def step_row(step: StepFacts) -> Sequence[str]:
    """What a step left of all sources, and what it did to the rest."""
    documents = sum(kept["documents"] for kept in step["kept"].values())
    characters = sum(kept["characters"] for kept in step["kept"].values())
    actions = []
    for reason, counts in step["reasons"].items():
        for action in ("dropped", "changed"):
            number = counts[f"{action}_documents"]
            if number:
                actions.append(f"{reason}: {number:,} {action}")
    return step["step"], f"{documents:,}", f"{characters:,}", "; ".join(actions)


def print_forecast(cfg: PrepareConfig) -> None:
    """Say what a preparation would take, or that it is done.

    ValueError: it would be refused, or the corpus is generated and not there yet.
    """
    plan = corpora.planned_corpus(cfg)
    if plan is None:
        raise ValueError(
            f"corpus {cfg.corpus.name} is generated when it is prepared, within minutes: there is"
            " no text yet to measure; leave --dry-run out"
        )
    if plan.folder.exists():
        print(f"prepared already: {plan.folder}")
        return
    forecasts = corpora.forecast_corpus(plan)
    total = CorpusForecast()
    rows = []
    for name, forecast in forecasts.items():
        total.add(forecast)
        rows.append(_forecast_row(name, forecast))
    if len(rows) > 1:
        rows.append(_forecast_row("all", total))
    print_table(FORECASTS, rows)
    print_needs(cfg, total)
    is_learnt = cfg.tokenizer.vocab_file is None and cfg.tokenizer.kind != BytesTokenizer.kind
    if is_learnt:
        print("tokens are guessed: the vocabulary is still to be learnt, within a minute or two")
    print("nothing was written (--dry-run)")


def print_needs(cfg: PrepareConfig, total: CorpusForecast) -> None:
    """Say what time and disk a preparation would need, where its size is known."""
    if math.isnan(total.characters):
        print("time and disk: not known, since a source does not say how large it is")
        return
    workers = corpora.num_workers(cfg)
    seconds = duration(max(1.0, total.duration(workers)))
    print(f"time: some {seconds}, with {workers} at work (corpus.workers)")
    # While it is prepared, the tokens of shards are there until they are put together.
    size = filesize.decimal(int(total.result_bytes))
    print(f"disk: some {size}, and twice that while it is prepared, in {cfg.cache_dir}")


def _forecast_row(name: str, forecast: CorpusForecast) -> Sequence[str]:
    if math.isnan(forecast.characters):
        return name, f"{forecast.files:,}", *["not known"] * 4
    numbers = [forecast.documents, forecast.characters, forecast.tokens]
    rounded = [f"{int(float(f'{number:.2g}')):,}" for number in numbers]
    return name, f"{forecast.files:,}", filesize.decimal(int(forecast.disk_bytes)), *rounded
