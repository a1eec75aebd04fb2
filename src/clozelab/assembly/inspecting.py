"""What `clozelab inspect` shows of a prepared corpus, by the configuration of a pre-training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from clozelab.addresses import check_targets
from clozelab.assembly import corpora
from clozelab.assembly.encoders import build_objectives
from clozelab.assembly.pretraining import make_data
from clozelab.config import Composed
from clozelab.corpus.shards import MANIFEST_FILE, PreparedCorpus, TokenShards
from clozelab.datamodules.corpus import phase_at
from clozelab.datamodules.inspection import (
    Inspection,
    instance_lengths,
    length_histogram,
    show_document,
    show_instances,
)
from clozelab.launch.sweep import compose, phase_objectives
from clozelab.terminal import told_if_slow
from clozelab.text.did_you_mean import key_of
from clozelab.text.formatting import visible

CORPUS_KEYS = ("text", "corpus", "tokenizer", "data_dir")  # of a corpus that is to be prepared


def configuration(overrides: Sequence[str], folder: str | None) -> Composed:
    """The configuration of a pre-training; ValueError for overrides that do not fit `folder`."""
    if folder is not None and not (Path(folder) / MANIFEST_FILE).is_file():
        raise ValueError(
            f"{folder} is no prepared corpus (it has no {MANIFEST_FILE}); for a file or a folder of"
            f" text say text={folder}"
        )
    for override in overrides:
        key = key_of(override).partition(".")[0]
        if folder is not None and key in CORPUS_KEYS:
            raise ValueError(
                f"{folder} is prepared already, so {override} cannot change it: leave one"
            )
    composed = compose("pretrain", overrides)
    composed.check()
    check_targets(composed.values)
    return composed


def inspect_corpus(
    composed: Composed,
    folder: str | None,
    *,
    documents: int,
    document: int | None,
    instances: int,
    step: int,
) -> Inspection:
    """Look at a prepared corpus, that of `folder` or of the configuration.

    Args:
        composed: a configuration of the stage pretrain.
        folder: of a prepared corpus.
        documents: how many documents of the training split to draw.
        document: the number of one to take instead.
        instances: how many training instances to show, of one phase at most.
        step: the optimizer step, counted from 0, whose first instances these are.

    ValueError for numbers beyond what there is.
    """
    cfg = composed.config
    if folder is None:
        corpus = corpora.prepared_corpus(cfg)
    else:
        corpus = PreparedCorpus.open(folder)
    data = make_data(cfg, corpus, build_objectives(phase_objectives(cfg)))
    if step >= data.total_steps:
        raise ValueError(f"step={step}: the training has steps 0 to {data.total_steps - 1}")
    with told_if_slow("inspect: finding the training instances"):
        bound = phase_at(data.bound_phases(), step)
    train = corpus.train
    if document is None:
        numbers = _draw_documents(train, documents, cfg.seed)
    elif document < train.num_documents:
        numbers = [document]
    else:
        raise ValueError(
            f"document={document}: the training split has documents 0 to {train.num_documents - 1}"
        )
    seq_length = bound.phase.seq_length
    histograms = [
        length_histogram("tokens a sentence", np.diff(train.sentence_offsets)),
        length_histogram("sentences a document", np.diff(train.document_offsets)),
        length_histogram(f"tokens an instance of {seq_length} slots", instance_lengths(bound)),
    ]
    phase = (
        f"Training instances from step {step} on (phase {bound.number}, seq_length {seq_length},"
        f" arm {cfg.arm}, seed {cfg.seed})"
    )
    shown_documents = [show_document(train, corpus.tokenizer, number) for number in numbers]
    names = train.source_names
    facts = list(_facts(corpus))
    # Behind the phase come other instances, or none.
    steps_left = bound.first_step + bound.phase.steps - step
    instances = min(instances, steps_left * bound.phase.global_batch_size)
    return Inspection(
        title=f"Corpus {corpus.manifest['name']}",
        facts=facts,
        words=corpus.manifest["words"],
        histograms=histograms,
        documents=shown_documents,
        phase=phase,
        instances=show_instances(bound, corpus.tokenizer, names, step, instances),
    )


def _draw_documents(shards: TokenShards, number: int, seed: int) -> list[int]:
    """Numbers of different documents, ascending."""
    most = min(number, shards.num_documents)
    chosen = np.random.default_rng(seed).choice(shards.num_documents, most, replace=False)
    return sorted(chosen.tolist())


def _facts(corpus: PreparedCorpus) -> Iterator[str]:
    """What the manifest says, in sentences."""
    manifest = corpus.manifest
    yield f"folder: {corpus.folder}"
    for name, shards in (("train", corpus.train), ("validation", corpus.validation)):
        yield (
            f"{name}: {shards.num_documents:,} documents, {shards.num_sentences:,} sentences,"
            f" {shards.num_tokens:,} tokens"
        )
    unknown = manifest["unknown_fraction"]
    yield f"vocabulary: {corpus.tokenizer.vocab_size:,} entries; unknown tokens: {unknown:.3%}"
    for reason, number in (manifest["skipped"] | manifest.get("removed", {})).items():
        if number:
            yield f"left out: {number:,} x {reason}"
    for line in manifest["repeated_lines"]:
        yield (
            f"repeated line: {line['copies']:,} x {visible(str(line['line']))}"
            f" ({line['token_share']:.1%} of all tokens)"
        )
