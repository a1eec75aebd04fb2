"""Corpus preparation as one plain function: text files to a prepared corpus folder in the
content-addressed cache.

Two passes over the files: a survey (counts, the sample that the vocabulary is learnt from, the
split), then tokens to shards. The folder is named by what decides its content (the files'
checksums, the settings, PREPARATION_VERSION), is written beside its place and renamed: who finds
the folder finds it whole. A killed preparation starts again.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from filelock import FileLock, Timeout
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
from clozelab.corpus.encoding import MAX_UNKNOWN_SHARE, refuse_unknown
from clozelab.corpus.files import (
    CorpusCounts,
    Source,
    TextFile,
    check_head,
    digest,
    file_facts,
    find_files,
)
from clozelab.corpus.shards import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    SHARDS_FILE,
    SPLITS,
    PreparedCorpus,
    ShardWriter,
)
from clozelab.corpus.tokenizers import (
    MAX_WORD_CHARACTERS,
    Tokenizer,
    TokenizerSettings,
    WordPieceTokenizer,
)

log = logging.getLogger(__name__)

# raise it with every change of cleaning, splitting or tokenisation: it renames the folder
PREPARATION_VERSION = 3
# that a vocabulary is learnt from; frequencies are settled long before
VOCABULARY_SAMPLE_CHARACTERS = 64_000_000
BATCH_CHARACTERS = 1_000_000
# at the beginning of the corpus, on which a given vocabulary is tried before anything slow
FIT_CHARACTERS = 200_000
MAX_MEAN_WORD_CHARACTERS = 30  # of the word that a character is in; English has 6, German 10
# prose has 100 to 150; beyond this, the lines of a text file are paragraphs
MAX_MEAN_SENTENCE_CHARACTERS = 300


def prepare_corpus(*, max_unknown_share: float = MAX_UNKNOWN_SHARE, **arguments: Any) -> Path:
    """Prepares a corpus unless the cache has it, and returns its folder,
    `cache_dir/corpora/<name>-<hash>`.

    `arguments` are those of `_plan`. ValueError: no files, a binary or damaged file, too many
    unusable rows, too little text to hold some out, text without spaces for WordPiece, a vocabulary
    that leaves more of the text unknown than `max_unknown_share`, a cache not writable."""
    folder, settings, files, given = _plan(**arguments)
    if not folder.exists():
        _check_beginning(files, arguments["tokenizer"], given, max_unknown_share)
    # One process at a time per folder; the others wait and then find it prepared.
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        log.info("another process is preparing %s; waiting for it", folder)
        lock.acquire()
    except OSError as error:
        places = (
            "set cache_dir, or the environment variable CLOZELAB_CACHE, to a folder that can be"
            " written"
        )
        raise ValueError(
            f"cannot write below {folder.parent} ({error.strerror}): {places}"
        ) from error
    try:
        if folder.exists():
            try:
                return PreparedCorpus.open(folder).folder
            except ValueError as problem:
                log.warning("%s; preparing it again", problem)
                shutil.rmtree(folder)
        temporary = folder.with_name(f".{folder.name}.tmp")
        # what a killed run left; the lock says nobody else writes it
        shutil.rmtree(temporary, ignore_errors=True)
        _write_corpus(temporary, settings, files, given, arguments["name"], arguments["tokenizer"])
        return temporary.rename(folder)
    finally:
        lock.release()


def find_prepared_corpus(**arguments: Any) -> Path | None:
    """Where `prepare_corpus` put its folder, if it did; writes nothing. ValueError as there for
    files and settings.
    """
    folder = _plan(**arguments)[0]
    return folder if folder.exists() else None


def _plan(
    name: str,
    sources: Sequence[Source],
    data_dir: str | Path,
    cache_dir: str | Path,
    tokenizer: TokenizerSettings,
    validation_fraction: float,
) -> tuple[Path, dict[str, Any], list[TextFile], Tokenizer | None]:
    """Where a corpus goes, what decides it, its files, and the tokenizer of a vocabulary that is
    not to be learnt.

    Relative paths of sources start at data_dir. `validation_fraction` is of every source's text, in
    stretches by hash.
    """
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise ValueError(
            f"corpus name {name!r} names a folder: use letters, digits, '_', '-' and '.'"
        )
    names = [source.name for source in sources]
    if not 1 <= len(set(names)) == len(names) <= 255:
        raise ValueError(f"corpus {name} needs 1 to 255 sources with different names, not {names}")
    files = [
        file
        for index, source in enumerate(sources)
        for file in find_files(source, index, Path(data_dir))
    ]
    for file in files:
        check_head(file)
    given = tokenizer.given(data_dir)
    read: list[dict[str, Any]] = [
        {"name": source.name, "text_field": source.text_field, "files": []} for source in sources
    ]
    for file in files:
        facts = {"name": file.name, **file_facts(file.path), "format": file.format}
        if file.is_table:
            facts["column"] = file.text_field
        read[file.source]["files"].append(facts)
    settings = {
        "preparation_version": PREPARATION_VERSION,
        "format_version": FORMAT_VERSION,
        "sources": read,
        "tokenizer": tokenizer.identity(given),
        "validation_fraction": validation_fraction,
    }
    folder = Path(cache_dir).expanduser() / "corpora" / f"{name}-{digest(settings)[:12]}"
    return folder, settings, files, given


def _write_corpus(
    folder: Path,
    settings: dict[str, Any],
    files: list[TextFile],
    given: Tokenizer | None,
    name: str,
    wanted: TokenizerSettings,
) -> None:
    split = SplitRule(settings["validation_fraction"])
    counts, sample = _survey(files, split, learn=given is None)
    tokenizer = given or wanted.learn(sample)
    (folder / "tokenizer").mkdir(parents=True)
    for file_name, content in tokenizer.files().items():
        (folder / "tokenizer" / file_name).write_bytes(content)
    written = CorpusCounts()
    names = [source["name"] for source in settings["sources"]]
    writers = {
        side: ShardWriter(folder / side, vocab_size=tokenizer.vocab_size, source_names=names)
        for side in SPLITS
    }
    with writers["train"], writers["validation"]:
        for batch in _batches(_read(files, written, "tokenising"), BATCH_CHARACTERS):
            _write_batch(batch, tokenizer, split, writers, written)
    if (written.documents, written.characters) != (counts.documents, counts.characters):
        raise ValueError(
            f"the text of corpus {name} changed while it was read; run the prepare stage again"
        )
    for side, writer in writers.items():
        if not writer.num_tokens:
            raise ValueError(f"corpus {name} is too small: its {side} documents hold no tokens")
    tokens = sum(writer.num_tokens for writer in writers.values())
    unknown = (
        sum(int(writer.token_counts[tokenizer.unk_id]) for writer in writers.values()) / tokens
    )
    facts = {side: writer.facts for side, writer in writers.items()}
    checksums = {
        f"{side}/{file}": entry for side in SPLITS for file, entry in facts[side]["files"].items()
    }
    for path in [folder / side / SHARDS_FILE for side in SPLITS] + sorted(
        (folder / "tokenizer").iterdir()
    ):
        checksums[path.relative_to(folder).as_posix()] = file_facts(path)
    manifest = {
        "format_version": FORMAT_VERSION,
        "name": name,
        "settings": settings,
        "versions": {package: version(package) for package in ("tokenizers", "sentencex")},
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "unknown_fraction": unknown,
        "counts": {
            what: getattr(written, what)
            for what in ("rows", "documents", "sentences", "characters")
        },
        "skipped": written.skipped,
        "first_unusable_rows": written.first_bad,
        "splits": {
            side: {key: value for key, value in facts[side].items() if key != "files"}
            for side in SPLITS
        },
        "unigram_entropy": facts["train"]["unigram_entropy"],
        "files": checksums,
        "fingerprint": digest(checksums),
    }
    if written.removed:
        manifest["removed"] = dict(written.removed)
    (folder / MANIFEST_FILE).write_text(
        json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _check_beginning(
    files: Sequence[TextFile],
    wanted: TokenizerSettings,
    given: Tokenizer | None,
    max_unknown_share: float,
) -> None:
    """ValueError where the text's beginning cannot be read in words, or a given vocabulary does not
    know most of it."""
    beginning = next(_batches(read_documents(files, CorpusCounts()), FIT_CHARACTERS), [])
    sentences = [sentence for document in beginning for sentence in document.sentences]
    if wanted.kind == WordPieceTokenizer.kind:
        check_spaces(sentences, wanted.lowercase, max_unknown_share)
    if given is None:
        return
    ids, _ = given.encode_flat(sentences)
    if len(ids):
        beginning_of = (
            "the corpus's beginning, by tokenizer.vocab_file and"
            f" tokenizer.lowercase={given.lowercase},"
        )
        refuse_unknown(beginning_of, float((ids == given.unk_id).mean()), max_unknown_share)


def check_spaces(
    sentences: Sequence[str],
    lowercase: bool,
    max_unknown_share: float = MAX_UNKNOWN_SHARE,
) -> None:
    """ValueError where most of a text stands in words that are longer than WordPiece reads; a
    warning for long words.

    Words are WordPiece's own: Chinese characters and punctuation stand alone, so such text needs no
    spaces."""
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


def _survey(
    files: Sequence[TextFile], split: SplitRule, learn: bool
) -> tuple[CorpusCounts, list[str]]:
    """Counts, and text to learn a vocabulary from (none unless `learn`); settles the split and logs
    what was met.
    """
    counts = CorpusCounts()
    sample = TextSample(VOCABULARY_SAMPLE_CHARACTERS)
    for document in _read(files, counts, "reading"):
        split.observe(document)
        if learn:
            sample.add(document)
    if counts.documents < 2 and split.num_stretches < 2:
        _refuse_small(counts)
    split.settle()
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
    return counts, sample.texts()


def _refuse_small(counts: CorpusCounts) -> NoReturn:
    met = {"rows": counts.rows, **counts.skipped, "characters": counts.characters}
    shown = ", ".join(f"{key}: {number}" for key, number in met.items())
    raise ValueError(
        f"the corpus has {counts.documents} usable documents ({shown}); at least 2 are needed, one"
        f" on each side of the train/validation split, or one of more than {STRETCH_CHARACTERS}"
        " characters, of which a stretch is held out. In a text file, a blank line separates"
        " documents"
    )


def _batches(documents: Iterable[Document], num_characters: int) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += document.num_characters
        if size >= num_characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _write_batch(
    batch: list[Document],
    tokenizer: Tokenizer,
    split: SplitRule,
    writers: dict[str, ShardWriter],
    counts: CorpusCounts,
) -> None:
    """What is held out of a document leaves several: the text before it, the stretch itself, the
    text behind it.
    """
    ids, lengths = tokenizer.encode_flat(
        [sentence for document in batch for sentence in document.sentences]
    )
    document_of = np.repeat(np.arange(len(batch)), [len(document.sentences) for document in batch])
    is_held_out = np.array([side for document in batch for side in split.held_out(document)])
    kept = lengths > 0
    counts.dropped["sentence without tokens"] += int((~kept).sum())
    lengths, document_of, is_held_out = lengths[kept], document_of[kept], is_held_out[kept]
    part = 2 * document_of + is_held_out
    first = np.flatnonzero(np.diff(part, prepend=-1))
    sentences, origins = np.diff(np.append(first, len(part))), document_of[first]
    sources = np.array([document.source for document in batch])[origins]
    for writer, chosen in zip(writers.values(), (~is_held_out, is_held_out), strict=True):
        parts = chosen[first]
        numbers = counts.documents - len(batch) + origins[parts]
        writer.add(
            ids[np.repeat(chosen, lengths)],
            lengths[chosen],
            sentences[parts],
            sources[parts],
            numbers,
        )


def _read(files: Sequence[TextFile], counts: CorpusCounts, description: str) -> Iterator[Document]:
    """The documents, with a progress bar over the bytes on disk."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(description, total=sum(file.path.stat().st_size for file in files))
        yield from read_documents(files, counts, partial(progress.advance, task))
