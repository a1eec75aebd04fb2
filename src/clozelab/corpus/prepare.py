"""Corpus preparation as one plain function: text files to a folder in the cache.

Two passes over the files: a survey (counts, the sample that the vocabulary is learnt from, the
split), then tokens to shards. The folder is named by what decides its content (the files'
checksums, the settings, PREPARATION_VERSION), is written beside its place and renamed: who finds
the folder finds it whole. A killed preparation starts again.
"""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from tokenizers import normalizers, pre_tokenizers

from clozelab.corpus.documents import (
    STRETCH_CHARACTERS,
    Document,
    SplitRule,
    TextSample,
    read_documents,
)
from clozelab.corpus.encoding import refuse_unknown
from clozelab.corpus.files import CorpusCounts, CorpusSource, Shard
from clozelab.corpus.shards import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    SHARDS_FILE,
    SPLITS,
    PreparedCorpus,
    ShardWriter,
)
from clozelab.corpus.tokenizer_settings import TokenizerSettings
from clozelab.corpus.tokenizers import MAX_WORD_CHARACTERS, Tokenizer, WordPieceTokenizer
from clozelab.files.digests import digest, file_facts
from clozelab.files.locks import exclusive_lock
from clozelab.text.plain import JsonObject, PlainDict

log = logging.getLogger(__name__)

# raise it with every change of cleaning, splitting or tokenisation: it renames the folder
PREPARATION_VERSION = 3
BATCH_CHARACTERS = 1_000_000
# at the beginning of the corpus, on which a given vocabulary is tried before anything slow
FIT_CHARACTERS = 200_000
MAX_MEAN_WORD_CHARACTERS = 30  # of the word that a character is in; English has 6, German 10
# prose has 100 to 150; beyond this, the lines of a text file are paragraphs
MAX_MEAN_SENTENCE_CHARACTERS = 300


@dataclass(frozen=True)
class CorpusPlan:
    """Where a corpus goes, and what decides it."""

    name: str
    folder: Path
    settings: JsonObject  # what the folder's name is a hash of
    shards: list[Shard]
    tokenizer: TokenizerSettings
    given_tokenizer: Tokenizer | None  # of a vocabulary that is not to be learnt


def prepare_corpus(plan: CorpusPlan, max_unknown_share: float) -> Path:
    """Prepare a corpus unless the cache has it, and return its folder.

    It is `cache_dir/corpora/<name>-<hash>`. ValueError: a binary or damaged file, too many unusable
    rows, too little text to hold some out, text without spaces for WordPiece, a vocabulary that
    leaves more of the text unknown than `max_unknown_share`, a cache not writable.
    """
    folder = plan.folder
    if not folder.exists():
        # Before the lock: a vocabulary that does not fit is said within seconds.
        _check_beginning(plan, max_unknown_share)
    with exclusive_lock(folder):
        if folder.exists():
            try:
                return PreparedCorpus.open(folder).folder
            except ValueError as problem:
                log.warning("%s; preparing it again", problem)
                shutil.rmtree(folder)
        temporary = folder.with_name(f".{folder.name}.tmp")
        # what a killed run left; the lock says nobody else writes it
        shutil.rmtree(temporary, ignore_errors=True)
        _write_corpus(temporary, plan)
        # In one step: whoever sees the folder sees it whole.
        return temporary.rename(folder)


def plan_corpus(
    name: str,
    sources: Sequence[CorpusSource],
    data_dir: str | Path,
    cache_dir: str | Path,
    tokenizer: TokenizerSettings,
    validation_fraction: float,
) -> CorpusPlan:
    """Say what `prepare_corpus` would prepare, and where; nothing is written.

    Relative paths of sources start at data_dir. `validation_fraction` is of every source's text, in
    stretches by hash. ValueError: no files, or wrong settings.
    """
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise ValueError(
            f"corpus name {name!r} names a folder: use letters, digits, '_', '-' and '.'"
        )
    names = [source.name for source in sources]
    # 255: a document's source is one byte in the shards.
    if not 1 <= len(set(names)) == len(names) <= 255:
        raise ValueError(f"corpus {name} needs 1 to 255 sources with different names, not {names}")
    shards = []
    for index, source in enumerate(sources):
        shards += source.shards(index, Path(data_dir))
    for shard in shards:
        shard.check()
    given_tokenizer = tokenizer.given(data_dir)
    settings = {
        "preparation_version": PREPARATION_VERSION,
        "format_version": FORMAT_VERSION,
        "sources": _source_facts(sources, shards),
        "tokenizer": tokenizer.identity(given_tokenizer),
        "validation_fraction": validation_fraction,
    }
    folder = Path(cache_dir).expanduser() / "corpora" / f"{name}-{digest(settings)[:12]}"
    return CorpusPlan(name, folder, settings, shards, tokenizer, given_tokenizer)


def _source_facts(sources: Sequence[CorpusSource], shards: Sequence[Shard]) -> list[PlainDict]:
    """What a manifest says of each source: its name, its field of text, and its files."""
    facts: list[JsonObject] = []
    for source in sources:
        facts.append({"name": source.name, "text_field": source.text_field, "files": []})
    for shard in shards:
        facts[shard.source]["files"].append(shard.identity())
    return facts


def _write_corpus(folder: Path, plan: CorpusPlan) -> None:
    split = SplitRule(plan.settings["validation_fraction"])
    sample = TextSample(plan.tokenizer.sample_characters or math.inf)
    counts = _survey(plan.shards, split, None if plan.given_tokenizer else sample)
    tokenizer = plan.given_tokenizer or plan.tokenizer.learn(sample.texts())
    (folder / "tokenizer").mkdir(parents=True)
    for file_name, content in tokenizer.files().items():
        (folder / "tokenizer" / file_name).write_bytes(content)
    written = CorpusCounts()
    writers = _write_shards(folder, plan, tokenizer, split, written)
    # The second pass has to meet what the first one counted.
    if (written.documents, written.characters) != (counts.documents, counts.characters):
        raise ValueError(
            f"the text of corpus {plan.name} changed while it was read; run the prepare stage again"
        )
    for side, writer in writers.items():
        if not writer.num_tokens:
            raise ValueError(
                f"corpus {plan.name} is too small: its {side} documents hold no tokens"
            )
    manifest = _manifest_of(folder, plan, tokenizer, writers, written)
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    (folder / MANIFEST_FILE).write_text(text, encoding="utf-8")


def _write_shards(
    folder: Path, plan: CorpusPlan, tokenizer: Tokenizer, split: SplitRule, written: CorpusCounts
) -> dict[str, ShardWriter]:
    """Tokenise all files into the shards of both sides; `written` counts what went into them."""
    names = [source["name"] for source in plan.settings["sources"]]
    writers = {}
    for side in SPLITS:
        writers[side] = ShardWriter(
            folder / side, vocab_size=tokenizer.vocab_size, source_names=names
        )
    with writers["train"], writers["validation"]:
        for batch in _batches(_read(plan.shards, written, "tokenising"), BATCH_CHARACTERS):
            _write_batch(batch, tokenizer, split, writers, written)
    return writers


def _manifest_of(
    folder: Path,
    plan: CorpusPlan,
    tokenizer: Tokenizer,
    writers: Mapping[str, ShardWriter],
    written: CorpusCounts,
) -> PlainDict:
    """How the corpus came about, and the checksums of its files."""
    num_tokens = sum(writer.num_tokens for writer in writers.values())
    num_unknown = 0
    # A tokenizer without an unknown token has the id -1, which would be the last entry.
    if tokenizer.unk_id >= 0:
        num_unknown = sum(int(writer.token_counts[tokenizer.unk_id]) for writer in writers.values())
    # The shards' files have been summed while they were written; the others are read now.
    checksums: PlainDict = {}
    splits: dict[str, PlainDict] = {}
    for side in SPLITS:
        facts = dict(writers[side].facts)
        for file, entry in facts.pop("files").items():
            checksums[f"{side}/{file}"] = entry
        splits[side] = facts
    others = [folder / side / SHARDS_FILE for side in SPLITS]
    others += sorted((folder / "tokenizer").iterdir())
    for path in others:
        checksums[path.relative_to(folder).as_posix()] = file_facts(path)
    manifest: PlainDict = {
        "format_version": FORMAT_VERSION,
        "name": plan.name,
        "settings": plan.settings,
        "versions": {package: version(package) for package in ("tokenizers", "sentencex")},
    }
    manifest |= {
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "unknown_fraction": num_unknown / num_tokens,
        "counts": {
            "rows": written.rows,
            "documents": written.documents,
            "sentences": written.sentences,
            "characters": written.characters,
        },
        "words": {
            source["name"]: written.words[number]
            for number, source in enumerate(plan.settings["sources"])
        },
    }
    manifest |= {
        "skipped": written.skipped,
        "first_unusable_rows": written.first_bad,
        "splits": splits,
        "unigram_entropy": splits["train"]["unigram_entropy"],
        "files": checksums,
        "fingerprint": digest(checksums),
    }
    if written.removed:
        manifest["removed"] = dict(written.removed)
    return manifest


def _check_beginning(plan: CorpusPlan, max_unknown_share: float) -> None:
    """ValueError where the text's beginning is not for this tokenizer.

    It cannot be read in words, or a given vocabulary does not know most of it.
    """
    documents = read_documents(plan.shards, CorpusCounts())
    # some pages are enough to see that a vocabulary does not fit
    sentences = _sentences_of(next(_batches(documents, FIT_CHARACTERS), []))
    if plan.tokenizer.kind == WordPieceTokenizer.kind:
        check_spaces(sentences, plan.tokenizer.lowercase, max_unknown_share)
    given = plan.given_tokenizer
    if given is None:
        return
    ids, _ = given.encode_flat(sentences)
    if len(ids):
        where = (
            "the corpus's beginning, by tokenizer.vocab_file and"
            f" tokenizer.lowercase={given.lowercase},"
        )
        refuse_unknown(where, float((ids == given.unk_id).mean()), max_unknown_share)


def _sentences_of(documents: Iterable[Document]) -> list[str]:
    sentences = []
    for document in documents:
        sentences += document.sentences
    return sentences


def check_spaces(
    sentences: Sequence[str],
    lowercase: bool,
    max_unknown_share: float,
) -> None:
    """ValueError where most of a text stands in words that are longer than WordPiece reads.

    Long words get a warning. Words are WordPiece's own: Chinese characters and punctuation stand
    alone, so such text needs no spaces.
    """
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    splitter = pre_tokenizers.BertPreTokenizer()
    lengths = list[int]()
    for sentence in sentences:
        words = splitter.pre_tokenize_str(normalizer.normalize_str(sentence))
        lengths.extend(end - start for _, (start, end) in words)
    if not lengths:
        return
    characters = np.array(lengths)
    share = float(characters[characters > MAX_WORD_CHARACTERS].sum() / characters.sum())
    # The word that a character is in, on average: a few long numbers or addresses leave it small.
    mean = float((characters**2).sum() / characters.sum())
    instead = "tokenizer=byte_bpe needs none"
    if share > max_unknown_share:
        raise ValueError(
            f"{share:.0%} of the text's beginning are words of more than {MAX_WORD_CHARACTERS}"
            " characters, which WordPiece takes for unknown: there are no spaces between the"
            f" words; {instead} (more than max_unknown_share={max_unknown_share:g} is refused)"
        )
    if mean > MAX_MEAN_WORD_CHARACTERS:
        log.warning(
            "words have some %.0f characters: are there no spaces between the words? %s",
            mean,
            instead,
        )


def _survey(shards: Sequence[Shard], split: SplitRule, sample: TextSample | None) -> CorpusCounts:
    """Count what there is, and settle the split.

    `sample` gets text to learn a vocabulary from; None where one is given.
    """
    counts = CorpusCounts()
    for document in _read(shards, counts, "reading"):
        split.observe(document)
        if sample is not None:
            sample.add(document)
    # one document of several stretches can be divided
    if counts.documents < 2 and split.num_stretches < 2:
        _refuse_small(counts)
    split.settle()
    _log_counts(counts)
    return counts


def _log_counts(counts: CorpusCounts) -> None:
    log.info(
        "%d documents, %d sentences, %d characters",
        counts.documents,
        counts.sentences,
        counts.characters,
    )
    for reason, number in counts.skipped.items():
        log.warning("skipped: %d x %s", number, reason)
    for reason, number in counts.removed.items():
        log.warning("removed from texts that are used: %d x %s", number, reason)
    for row in counts.first_bad:
        log.warning("unusable row %s", row)
    if counts.characters > MAX_MEAN_SENTENCE_CHARACTERS * counts.sentences:
        log.warning(
            "sentences have %d characters on average: plain text needs one sentence a line (only"
            " jsonl and tables are split into sentences), or segments will begin and end at"
            " paragraphs",
            counts.characters / counts.sentences,
        )


def _refuse_small(counts: CorpusCounts) -> NoReturn:
    numbers = {"rows": counts.rows, **counts.skipped, "characters": counts.characters}
    listed = ", ".join(f"{key}: {number}" for key, number in numbers.items())
    raise ValueError(
        f"the corpus has {counts.documents} usable documents ({listed}); at least 2 are needed, one"
        f" on each side of the train/validation split, or one of more than {STRETCH_CHARACTERS}"
        " characters, of which a stretch is held out. In a text file, a blank line separates"
        " documents"
    )


def _batches(documents: Iterable[Document], num_characters: int) -> Iterator[list[Document]]:
    batch = []
    size = 0
    for document in documents:
        batch.append(document)
        size += document.num_characters
        if size >= num_characters:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def _write_batch(
    batch: list[Document],
    tokenizer: Tokenizer,
    split: SplitRule,
    writers: dict[str, ShardWriter],
    counts: CorpusCounts,
) -> None:
    """Tokenise a batch, and add its two sides to their writers.

    What is held out of a document leaves several: the text before it, the stretch itself, the text
    behind it. A part is a run of sentences of one document and one side:

        document_of     0 0 0 0 1 1
        is_held_out     - - + - - -
        first           0   2 3 4      parts of 2, 1, 1 and 2 sentences
    """
    ids, lengths = tokenizer.encode_flat(_sentences_of(batch))
    document_of = np.repeat(np.arange(len(batch)), [len(document.sentences) for document in batch])
    sides = []
    for document in batch:
        sides += split.held_out(document)
    is_held_out = np.array(sides)
    has_tokens = lengths > 0
    counts.dropped["sentence without tokens"] += int((~has_tokens).sum())
    lengths = lengths[has_tokens]
    document_of = document_of[has_tokens]
    is_held_out = is_held_out[has_tokens]
    first = np.flatnonzero(np.diff(2 * document_of + is_held_out, prepend=-1))
    num_sentences = np.diff(np.append(first, len(document_of)))
    document_of_part = document_of[first]
    sources = np.array([document.source for document in batch])[document_of_part]
    # Documents are numbered over the whole corpus: `counts` has this batch already.
    origins = counts.documents - len(batch) + document_of_part
    for side, writer in writers.items():
        is_here = ~is_held_out
        if side == "validation":
            is_here = is_held_out
        in_side = is_here[first]
        # A sentence's mark, repeated, picks its tokens.
        writer.add(
            ids[np.repeat(is_here, lengths)],
            lengths[is_here],
            num_sentences[in_side],
            sources[in_side],
            origins[in_side],
        )


def _read(shards: Sequence[Shard], counts: CorpusCounts, description: str) -> Iterator[Document]:
    """The documents, with a progress bar over the bytes on disk."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    num_bytes = sum(shard.num_bytes for shard in shards)
    with progress:
        task = progress.add_task(description, total=num_bytes)
        yield from read_documents(shards, counts, partial(progress.advance, task))
