"""Corpus preparation as one plain function: text files to a folder in the cache.

The texts are cut into shards, which a pool of processes takes through the corpus's steps; what has
to be known of all documents is settled between two passes (preparation/). The folder is named by
what decides its content (the files' checksums, the settings, PREPARATION_VERSION), is written
beside its place and renamed: who finds the folder finds it whole. A killed preparation goes on with
the shards that it has finished.
"""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from clozelab.corpus.files import CorpusCounts, CorpusSource, Shard
from clozelab.corpus.preparation import report, texts
from clozelab.corpus.preparation.beginning import check_beginning
from clozelab.corpus.preparation.passes import Work
from clozelab.corpus.preparation.pool import EndedProcessError, ShardPool
from clozelab.corpus.preparation.running import Preparation, begin_work
from clozelab.corpus.preparation.shard_files import read_facts
from clozelab.corpus.preparation.tallies import TokenFacts
from clozelab.corpus.preparation.writing import write_tokens
from clozelab.corpus.shards import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    SHARDS_FILE,
    SPLITS,
    PreparedCorpus,
    ShardWriter,
)
from clozelab.corpus.sources import DatasetSource
from clozelab.corpus.steps.clean import Clean
from clozelab.corpus.steps.step import CorpusStep
from clozelab.corpus.tokenizer_settings import TokenizerSettings
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.files.digests import FileFacts, digest, file_facts
from clozelab.files.locks import exclusive_lock
from clozelab.readers.remote import RemoteError
from clozelab.text.plain import PlainDict
from clozelab.version import __version__

log = logging.getLogger(__name__)

# raise it with every change of reading, splitting or tokenisation: it renames the folder
PREPARATION_VERSION = 4
# the same for changes of how several sources are split
SPLIT_VERSION = 2
LIBRARIES = ("tokenizers", "sentencex")  # whose versions may change a result


@dataclass(frozen=True)
class CorpusPlan:
    """Where a corpus goes, and what decides it."""

    name: str
    folder: Path
    settings: PlainDict  # what the folder's name is a hash of
    files: list[Shard]
    stamps: list[object]  # of the files, taken before their checksums
    source_names: Sequence[str]
    validation_fraction: float
    steps: Sequence[CorpusStep]
    tokenizer: TokenizerSettings
    given_tokenizer: Tokenizer | None  # of a vocabulary that is not to be learnt


MakePool = Callable[[Work], ShardPool]
ONE_PROCESS: MakePool = partial(ShardPool, workers=1)


def prepare_corpus(
    plan: CorpusPlan,
    max_unknown_share: float,
    make_pool: MakePool = ONE_PROCESS,
) -> PreparedCorpus:
    """Prepare a corpus unless the cache has it, and open it.

    It is `cache_dir/corpora/<name>-<hash>`, the same whatever pool of processes is at work.
    ValueError: a binary or damaged file, too many unusable rows, too little text to hold some
    out, text without spaces for WordPiece, a vocabulary that leaves more of the text unknown than
    `max_unknown_share`, a cache not writable.
    """
    folder = plan.folder
    if not folder.exists():
        # Before the lock: a vocabulary that does not fit is said within seconds.
        check_beginning(
            plan.files, plan.steps, plan.tokenizer, plan.given_tokenizer, max_unknown_share
        )
    work_folder = folder.with_name(f".{folder.name}.work")
    with exclusive_lock(folder):
        if folder.exists():
            try:
                corpus = PreparedCorpus.open(folder)
                # of a run that was killed when all was done
                shutil.rmtree(work_folder, ignore_errors=True)
                return corpus
            except ValueError as problem:
                log.warning("%s; preparing it again", problem)
                shutil.rmtree(folder)
        temporary = folder.with_name(f".{folder.name}.tmp")
        # what a killed run left; the lock says nobody else writes it
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            _write_corpus(temporary, work_folder, plan, make_pool)
        except (RemoteError, EndedProcessError):
            # The next time the store may answer, and memory suffice; what is done is taken up.
            raise
        except ValueError:
            # The same text is refused again; nothing of it is of use.
            shutil.rmtree(work_folder, ignore_errors=True)
            raise
        # In one step: whoever sees the folder sees it whole.
        temporary.rename(folder)
        shutil.rmtree(work_folder)
        return PreparedCorpus.open(folder)


def plan_corpus(
    name: str,
    sources: Sequence[CorpusSource | DatasetSource],
    data_dir: str | Path,
    cache_dir: str | Path,
    tokenizer: TokenizerSettings,
    validation_fraction: float,
    steps: Sequence[CorpusStep] = (Clean(),),
) -> CorpusPlan:
    """Say what `prepare_corpus` would prepare, and where; nothing is written.

    Relative paths of sources start at data_dir. `validation_fraction` is of every source's text, in
    stretches by hash; what one source holds out, no other one trains on. ValueError: no files, or
    wrong settings.
    """
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise ValueError(
            f"corpus name {name!r} names a folder: use letters, digits, '_', '-' and '.'"
        )
    names = [source.name for source in sources]
    # 255: a document's source is one byte in the shards.
    if not 1 <= len(set(names)) == len(names) <= 255:
        raise ValueError(f"corpus {name} needs 1 to 255 sources with different names, not {names}")
    files: list[Shard] = []
    for index, source in enumerate(sources):
        files += source.shards(index, Path(data_dir))
    # A damaged file is named before the checksums of all are taken.
    _check_files(files, are_remote=False)
    stamps = [file.stamp() for file in files]
    given_tokenizer = tokenizer.given(data_dir)
    settings: PlainDict = {
        "preparation_version": PREPARATION_VERSION,
        "format_version": FORMAT_VERSION,
        "sources": _source_facts(sources, files),
        "steps": [step.identity() for step in steps],
        "tokenizer": tokenizer.identity(given_tokenizer),
        "validation_fraction": validation_fraction,
    }
    if len(sources) > 1:
        settings["split_version"] = SPLIT_VERSION
    folder = Path(cache_dir).expanduser() / "corpora" / f"{name}-{digest(settings)[:12]}"
    # Of a prepared corpus no remote file is opened.
    if not folder.exists():
        _check_files(files, are_remote=True)
    return CorpusPlan(
        name=name,
        folder=folder,
        settings=settings,
        files=files,
        stamps=stamps,
        source_names=names,
        validation_fraction=validation_fraction,
        steps=tuple(steps),
        tokenizer=tokenizer,
        given_tokenizer=given_tokenizer,
    )


def _check_files(files: Sequence[Shard], *, are_remote: bool) -> None:
    for file in files:
        if file.is_remote == are_remote:
            file.check()


def _source_facts(
    sources: Sequence[CorpusSource | DatasetSource], files: Sequence[Shard]
) -> list[PlainDict]:
    """What a manifest says of each source: its name, its field of text, and its files."""
    facts: list[PlainDict] = []
    for index, source in enumerate(sources):
        own_files = [file.identity() for file in files if file.source == index]
        facts.append({"name": source.name, "text_field": source.text_field, "files": own_files})
    return facts


def _write_corpus(folder: Path, work_folder: Path, plan: CorpusPlan, make_pool: MakePool) -> None:
    """Write a prepared corpus; a killed preparation's `work_folder` is gone on with."""
    versions = {name: version(name) for name in LIBRARIES}
    key = {
        "settings": digest(plan.settings),
        "split_version": SPLIT_VERSION,
        "shard_characters": texts.SHARD_CHARACTERS,
        "versions": {"clozelab": __version__, **versions},
    }
    begin_work(work_folder, key)
    work = Work(work_folder, plan.steps, learns=plan.given_tokenizer is None)
    with make_pool(work) as pool:
        preparation = Preparation(work, pool, plan.files)
        counts = preparation.read_texts()
        if [file.stamp() for file in plan.files] != plan.stamps:
            raise ValueError(
                f"the text of corpus {plan.name} changed while it was read; run the prepare stage"
                " again"
            )
        preparation.take_steps()
        sample_characters = math.inf
        if plan.tokenizer.sample_characters is not None:
            sample_characters = plan.tokenizer.sample_characters
        settled = preparation.settle(plan.validation_fraction, sample_characters)
        report.complete_counts(counts, settled)
        report.log_counts(counts)
        report.warn_of_empty_sources(settled, plan.source_names)
        tokenizer = preparation.write_tokenizer(plan.tokenizer, plan.given_tokenizer)
        # Written as the shards are tokenised: this process would only wait for the others.
        tokens = preparation.tokenise()
        writers = write_tokens(folder, tokens, tokenizer.vocab_size, plan.source_names)
    for side, writer in writers.items():
        if not writer.num_tokens:
            raise ValueError(
                f"corpus {plan.name} is too small: its {side} documents hold no tokens"
            )
    shutil.copytree(work.tokenizer_folder, folder / "tokenizer")
    shards: list[TokenFacts] = [read_facts(path) for path in preparation.token_files()]
    for facts in shards:
        counts.dropped["sentence without tokens"] += facts["sentences_without_tokens"]
    manifest = _manifest_of(folder, plan, tokenizer, writers, counts)
    manifest |= report.of_steps(settled, shards, plan.source_names, writers)
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    (folder / MANIFEST_FILE).write_text(text, encoding="utf-8")


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
    checksums: dict[str, FileFacts] = {}
    splits: dict[str, PlainDict] = {}
    for side in SPLITS:
        facts = dict(writers[side].facts)
        del facts["files"]
        for file, entry in writers[side].facts["files"].items():
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
        "versions": {name: version(name) for name in LIBRARIES},
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
    }
    manifest |= {
        "skipped": written.skipped,
        "first_unusable_rows": written.first_bad,
        "splits": splits,
        "unigram_entropy": writers["train"].facts["unigram_entropy"],
        "files": checksums,
        "fingerprint": digest(checksums),
    }
    if written.removed:
        manifest["removed"] = dict(written.removed)
    return manifest
