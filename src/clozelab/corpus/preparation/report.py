"""What a preparation says: on the terminal while it runs, and in the manifest for good."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NoReturn

from clozelab.corpus.fertility import total_words
from clozelab.corpus.files import CorpusCounts
from clozelab.corpus.preparation.settled import Settled
from clozelab.corpus.preparation.survey import STRETCH_CHARACTERS
from clozelab.corpus.preparation.tallies import Tally, TokenFacts
from clozelab.corpus.shards import ShardWriter
from clozelab.text.formatting import shortened
from clozelab.text.plain import PlainDict

log = logging.getLogger(__name__)

# prose has 100 to 150; beyond this, the lines of a text file are paragraphs
MAX_MEAN_SENTENCE_CHARACTERS = 300
# of all tokens: a line that has more of them is named
REPEATED_SHARE = 0.01
MIN_REPEATS = 20
SPARED_CHARACTERS = 30  # a shorter line is often a heading or an answer
SHOWN_LINES = 5
SHOWN_CHARACTERS = 80


def complete_counts(counts: CorpusCounts, settled: Settled) -> None:
    """Add to the counts of rows what was used and what was dropped.

    ValueError for a corpus that cannot be split.
    """
    counts.documents = settled.tallies[-1].documents.total()
    counts.sentences = settled.num_sentences
    counts.characters = settled.tallies[-1].characters.total()
    for tally in settled.tallies:
        counts.dropped.update(tally.report.documents)
    # One document of several stretches can be divided.
    if counts.documents < 2 and settled.num_stretches < 2:
        _refuse_small(counts)


def log_counts(counts: CorpusCounts) -> None:
    """Say how much text there is, and what was left out."""
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


def warn_of_empty_sources(settled: Settled, names: Sequence[str]) -> None:
    """Name each source of which no document is left: nothing of it would be trained on."""
    documents = settled.tallies[-1].documents
    for number, name in enumerate(names):
        if not documents[number]:
            log.warning(
                "source %s has no documents left: check its files, what the steps drop, and whether"
                " all are copies of another source's",
                name,
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


def of_steps(
    settled: Settled,
    shards: Sequence[TokenFacts],
    source_names: Sequence[str],
    writers: Mapping[str, ShardWriter],
) -> PlainDict:
    """What a manifest says of the steps, of repeated lines, and of the words of each source.

    `shards` are the facts of the tokenised shards.
    """
    num_tokens = sum(writer.num_tokens for writer in writers.values())
    return {
        "steps": [_step_facts(tally, source_names) for tally in settled.tallies],
        "repeated_lines": _repeated_lines(shards, num_tokens),
        "words": total_words([shard["words"] for shard in shards], source_names),
    }


def _step_facts(tally: Tally, source_names: Sequence[str]) -> PlainDict:
    """What a step kept of each source, and dropped for each reason."""
    kept = {}
    for source, documents in sorted(tally.documents.items()):
        kept[source_names[source]] = {
            "documents": documents,
            "characters": tally.characters[source],
        }
    report = tally.report
    reasons = {}
    # A step that only rewrites text loses no characters, nor does a document without any.
    for reason in {**report.characters, **report.changed, **report.documents}:
        reasons[reason] = {
            "dropped_documents": report.documents[reason],
            "changed_documents": report.changed[reason],
            "characters": report.characters[reason],
        }
    return {"step": tally.step, "kept": kept, "reasons": reasons, "examples": report.examples}


def _repeated_lines(shards: Sequence[TokenFacts], num_tokens: int) -> list[PlainDict]:
    """The lines with the largest shares of a corpus's tokens; a warning names them."""
    copies: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for facts in shards:
        for line, (line_copies, line_tokens) in facts["lines"].items():
            copies[line] += line_copies
            tokens[line] += line_tokens
    repeated: list[PlainDict] = []
    for line, number in tokens.most_common():
        share = number / num_tokens
        if share < REPEATED_SHARE or copies[line] < MIN_REPEATS:
            continue
        repeated.append({"line": line, "copies": copies[line], "token_share": share})
        if len(repeated) <= SHOWN_LINES:
            log.warning(
                "one line has %.1f%% of all tokens: %d x %r; such lines are dropped by"
                " 'corpus.steps=[clean,{repeated_lines:{max_count:%d,min_characters:%d}}]' (of"
                " jsonl and tables where they are paragraphs)",
                100 * share,
                copies[line],
                shortened(line, SHOWN_CHARACTERS),
                min(MIN_REPEATS, copies[line] - 1),
                min(SPARED_CHARACTERS, len(line)),
            )
    return repeated
