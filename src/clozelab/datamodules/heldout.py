"""Held-out text: its loss, its words from the left, the right and both, and pairs of its sentences
for probes.

Without text of its own (`sources`) a measure reads the held-out documents of the corpus that the
encoder was trained on, which lies in the cache and whose fingerprint the encoder's folder keeps:
the same documents whatever the tokenizer. Each source gives an equal number of sentences, and one
document a tenth of that at most: the same ones for every vocabulary.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any

import numpy as np

from clozelab.corpus.documents import read_documents
from clozelab.corpus.encoding import Tokenizer, refuse_unknown
from clozelab.corpus.files import CorpusCounts, Source, check_head, file_sha256, find_files
from clozelab.corpus.generated import generator_of
from clozelab.corpus.random import integers
from clozelab.corpus.shards import PreparedCorpus, TokenShards
from clozelab.datamodules.baselines import Floats, Ints
from clozelab.datamodules.examples import assemble
from clozelab.datamodules.scoring import (
    MeasureDataModule,
    Questions,
    ScoringDataModule,
    inner_tokens,
    token_ranges,
)

Document = tuple[int, list[np.ndarray]]  # number of its source; the tokens of its sentences
log = logging.getLogger(__name__)
SEED = 20260917  # of what is hidden, and of which sentences make a pair: the same for every encoder
LARGEST_SHARE = 0.1  # of a source's sentences, from one document
# byte-level signs of 80 to BF: a character's further bytes
LATER_BYTES = re.compile("[\xa1-\xbf\u0122-\u0143]")
WORD_MARKS = {"byte_bpe": "Ġ", "metaspace": "▁"}  # before an entry that begins a word
# vowels and last consonants of Korean syllables, as uncased text has them
LATER_PARTS = re.compile("[\u1160-\u11ff]")
# settings that decide the held-out documents
OF_THE_TEXT = ("preparation_version", "sources", "validation_fraction")


class OfHeldOut(MeasureDataModule):
    """Base: `sources` None is the encoder's own corpus; `max_sentences` of the text are read."""

    def __init__(
        self, *, sources: Sequence[Mapping[str, str]] | None, max_sentences: int, **common: Any
    ) -> None:
        super().__init__(**common)
        if isinstance(sources, str) or any(not isinstance(one, Mapping) for one in sources or ()):
            raise ValueError(
                "measure.data.sources: say each file's name, too: [{name: mine, path: mine.txt}]"
            )
        text = self._given([Source(**source) for source in sources]) if sources else self._own()
        self.content = [self.content, max_sentences]
        self.documents = self._take(text, max_sentences)
        if not self.documents:
            raise ValueError(
                "the held-out text has no sentence: name a longer one, measure.data.sources",
            )
        self.facts["documents"] = len(self.documents)
        self.facts["sentences"] = sum(len(sentences) for _, sentences in self.documents)

    def _take(self, text: Iterator[Document], max_sentences: int) -> list[Document]:
        """Equally many sentences of each source, and of one document a LARGEST_SHARE of these at
        most."""
        num_sources = len(self.source_names)
        share = max_sentences // num_sources
        if share < 1:
            least = f"{num_sources} or more, one of each source"
            raise ValueError(f"measure.data.max_sentences={max_sentences}: {least}")

        most = max(1, int(share * LARGEST_SHARE))
        documents: list[Document] = []
        left = [share] * num_sources
        passed_over = [0] * num_sources
        for source, sentences in text:
            read = sentences[: min(left[source], most)]
            kept = [ids for ids in read if len(ids)]
            if kept:
                documents.append((source, kept))
                left[source] -= len(read)
                passed_over[source] += len(sentences) - len(read)
            if not any(left):
                break
        self._say_what_is_passed_over(left, passed_over, most)
        return documents

    def _say_what_is_passed_over(self, left: list[int], passed_over: list[int], most: int) -> None:
        """A source of few long documents gives less than its share, though it has more."""
        for name, lacking, more in zip(self.source_names, left, passed_over, strict=True):
            if lacking and more:
                log.warning(
                    f"{name}: {lacking:,} sentences fewer than its share are read, since one"
                    f" document gives {most:,} at most; {more:,} more stand in its long documents"
                )

    def _given(self, sources: Sequence[Source]) -> Iterator[Document]:
        """Text of one's own."""
        if len({one.name for one in sources}) < len(sources):
            raise ValueError(
                "measure.data.sources: two sources have one name, and a score each; give each"
                " its own"
            )
        files = [
            file
            for i, source in enumerate(sources)
            for file in find_files(source, i, self.inputs.data_dir)
        ]
        for file in files:
            check_head(file)
        self.source_names, self.content = (
            [one.name for one in sources],
            [file_sha256(file.path) for file in files],
        )
        self.synthetic = generator_of(self.inputs.data_dir, checksums=self.content)
        read, encode = read_documents(files, CorpusCounts()), self.inputs.tokenizer.encode_batch
        return ((document.source, encode(document.sentences)) for document in read)

    def _own(self) -> Iterator[Document]:
        """The held-out documents of the encoder's own corpus; ValueError where the cache does not
        have it.
        """
        inputs = self.inputs
        manifests = (
            sorted(inputs.cache_dir.glob("corpora/*/manifest.json")) if inputs.corpus else ()
        )
        said = {path.parent: json.loads(path.read_text(encoding="utf-8")) for path in manifests}
        folder = next(
            (folder for folder, one in said.items() if one.get("fingerprint") == inputs.corpus),
            None,
        )
        if folder is None or said[folder]["tokenizer_fingerprint"] != inputs.tokenizer.fingerprint:
            gone = f"the corpus that this encoder was trained on is not in {inputs.cache_dir}"
            own = "name text of your own, measure.data.sources=[{name: A, path: FILE}]"
            raise ValueError(
                f"no held-out text: {gone}, or was prepared with another tokenizer; {own}"
            )
        shards, settings = PreparedCorpus.open(folder).validation, said[folder]["settings"]
        self.source_names, self.content = (
            list(shards.source_names),
            {key: settings.get(key) for key in OF_THE_TEXT},
        )
        checksums = [file["sha256"] for source in settings["sources"] for file in source["files"]]
        self.synthetic = generator_of(inputs.data_dir, checksums=checksums)
        return documents_of(shards)


def documents_of(shards: TokenShards) -> Iterator[Document]:
    for number, source in enumerate(shards.document_source.tolist()):
        first, last = shards.document_offsets[number : number + 2].tolist()
        ends = shards.sentence_offsets[first : last + 1]
        yield (
            source,
            np.split(
                shards.tokens[int(ends[0]) : int(ends[-1])].astype(np.int32), ends[1:-1] - ends[0]
            ),
        )


class HeldOutText(OfHeldOut, ScoringDataModule):
    """Loss of held-out text, in nats a token and bits a character; by source, and by how frequent
    the tokens are.

    Texts are whole sentences of one document, as many as fit a sequence; a longer sentence is read
    in several, so that no token is lost. From left to right every token is predicted once. A masked
    model reads each text `mask_parts` times, with another part of it hidden, so that it predicts
    every token once, too: a pseudo-loss, which depends on that number. Bits a character compare
    between byte-level BPEs.
    """

    def __init__(self, *, mask_parts: int, frequency_ranks: Sequence[int], **common: Any) -> None:
        super().__init__(**common)
        if mask_parts < 1:
            raise ValueError(f"measure.data.mask_parts={mask_parts}: a text is read once or more")
        self.mask_parts, self.ranks = mask_parts, sorted(frequency_ranks)
        self.facts["is_causal"] = self.is_causal
        ends = zip([1, *(rank + 1 for rank in self.ranks)], [*self.ranks, "end"], strict=True)
        self.bands = [f"rank_{first}-{last}" for first, last in ends]

    def make_questions(self) -> Questions:
        room = self.max_seq_length - 2
        pieces = [
            (source, piece)
            for source, document in self.documents
            for piece in windows(document, room)
        ]
        self.source = np.array([source for source, _ in pieces])
        texts = assemble(self.inputs.tokenizer, [piece for _, piece in pieces])
        text, position = inner_tokens(texts)
        if self.is_causal:
            return self.ask(texts, np.arange(len(texts)), (text, position))
        part = integers(SEED, 0, "mask parts", text, position, high=self.mask_parts)
        key, number = np.unique(text * self.mask_parts + part, return_inverse=True)
        order = np.argsort(number, kind="stable")
        asked = number[order], position[order]
        return self.ask(texts, key // self.mask_parts, asked, hidden=asked)

    def score(
        self, log_probs: Floats, credit: Floats
    ) -> tuple[dict[str, float], list[dict[str, Any]]]:
        ids, text = self.questions.ids, self.questions.text
        characters = piece_lengths(self.inputs.tokenizer)[ids].sum()
        bits = -log_probs.sum() / np.log(2) / characters
        scores = {"loss": -log_probs.mean(), "accuracy": credit.mean(), "bits_per_character": bits}
        rank = np.argsort(np.argsort(-np.bincount(ids), kind="stable")) + 1
        band = np.searchsorted(self.ranks, rank[ids])
        for names, number in ((self.source_names, self.source[text]), (self.bands, band)):
            scores |= {
                f"loss/{names[i]}": -log_probs[number == i].mean() for i in np.unique(number)
            }
        sums = np.bincount(text, log_probs, len(self.source)).round(4).tolist()
        records = [
            {"source": self.source_names[i], "log_prob": one}
            for i, one in zip(self.source, sums, strict=True)
        ]
        return {name: float(value) for name, value in scores.items()}, records


def windows(sentences: Sequence[np.ndarray], room: int) -> Iterator[np.ndarray]:
    """A document's sentences behind each other, in pieces of at most `room` tokens.

    Each token is in one piece. Pieces are whole sentences; one of more than `room` tokens is spread
    over several."""
    piece = np.zeros(0, dtype=np.int32)
    for part in _parts(sentences, room):
        if len(piece) + len(part) > room:
            yield piece
            piece = piece[:0]
        piece = np.concatenate([piece, part])
    yield piece


def _parts(sentences: Sequence[np.ndarray], room: int) -> Iterator[np.ndarray]:
    for sentence in sentences:
        for start in range(0, len(sentence), room):
            yield sentence[start : start + room]


def piece_lengths(tokenizer: Tokenizer) -> Ints:
    """[V]: characters of each entry in a text; of WordPiece a word has a blank before it,
    punctuation has none.
    """
    known = tokenizer.vocabulary
    if tokenizer.kind == "byte_bpe":  # an entry has its blank
        return np.array([len(LATER_BYTES.sub("", piece)) for piece in known])
    if tokenizer.kind != "wordpiece":  # so has one of Metaspace
        return np.array([len(piece) for piece in known])

    # Chinese characters are words of one character, and stand side by side
    def has_blank(piece: str) -> bool:
        return piece[:1].isalnum() and not (
            "\u3400" <= piece[0] <= "\u9fff" or piece[0] >= "\uf900"
        )

    return np.array(
        [
            len(LATER_PARTS.sub("", piece.removeprefix("##") or piece)) + has_blank(piece)
            for piece in known
        ]
    )


def word_starts(tokenizer: Tokenizer) -> np.ndarray:
    """bool [V]: entries that begin a word of letters; ValueError where entries do not say where
    words begin."""
    if tokenizer.kind == "wordpiece":
        return np.array([piece[0].isalnum() for piece in tokenizer.vocabulary])
    if tokenizer.kind not in WORD_MARKS:
        raise ValueError(
            "which words to ask for cannot be told: this tokenizer's entries do not say where words"
            " begin"
        )
    return np.array([piece[0] == WORD_MARKS[tokenizer.kind] for piece in tokenizer.vocabulary])


class ClozeBySide(OfHeldOut, ScoringDataModule):
    """One word of each held-out sentence: does the left, the right or both tell it?

    The word is a single token with two or more on both sides. Of a side that is not given every
    token is hidden, so that its length stays and no end of a text gives anything away. A causal
    encoder has the left alone."""

    SIDES = ("left", "right", "both")

    def __init__(
        self, *, sides: Sequence[str] | None, max_words: int, min_tokens: int, **common: Any
    ) -> None:
        readable = self.SIDES[:1] if common["is_causal"] else self.SIDES
        self.sides, self.max_words, self.min_tokens = (
            tuple(sides or readable),
            max_words,
            max(min_tokens, 5),
        )
        if unknown := {*self.sides} - {*self.SIDES}:
            raise ValueError(
                f"measure.data.sides: {min(unknown)} is unknown; known: {', '.join(self.SIDES)}"
            )
        if beyond := {*self.sides} - {*readable}:
            why = (
                "a causal encoder reads from the left alone, and cannot fill in a word from its"
                " right"
            )
            instead = "say measure.data.sides=[left], or null for what an encoder can read"
            raise ValueError(f"measure.data.sides={min(beyond)}: {why}; {instead}")
        super().__init__(**common)

    def make_questions(self) -> Questions:
        tokenizer, room = self.inputs.tokenizer, self.max_seq_length - 2
        starts = word_starts(tokenizer)
        chosen: list[tuple[np.ndarray, int]] = []
        left = [max(1, self.max_words // len(self.source_names))] * len(self.source_names)
        self._say_what_is_too_long(room)
        sentences = ((source, ids) for source, document in self.documents for ids in document)
        for source, ids in (one for one in sentences if self.min_tokens <= len(one[1]) <= room):
            is_word = starts[ids] & np.append(starts[ids][1:], False) & (ids != tokenizer.unk_id)
            places = np.flatnonzero(is_word[:-2])
            if len(places := places[places >= 2]) and left[source]:
                left[source] -= 1
                chosen.append(
                    (ids, 1 + places[integers(SEED, 0, "cloze", len(chosen), high=len(places))[0]])
                )
        if not chosen:
            raise ValueError(
                "no held-out sentence has a word with two tokens on both sides: name longer text"
            )
        texts, position = (
            assemble(tokenizer, [ids for ids, _ in chosen]),
            np.array([place for _, place in chosen]),
        )
        one = np.ones_like(position)
        hidden = {
            "left": (position, texts.lengths - 1 - position),
            "right": (one, position),
            "both": (position, one),
        }
        begins, lengths = (np.concatenate([hidden[side][i] for side in self.sides]) for i in (0, 1))
        text, asked = (
            np.tile(values, len(self.sides)) for values in (np.arange(len(texts)), position)
        )
        return self.ask(texts, text, (np.arange(len(text)), asked), token_ranges(begins, lengths))

    def _say_what_is_too_long(self, room: int) -> None:
        """A part of a sentence would be a text that ends where the encoder's length does."""
        lengths = [*map(len, chain.from_iterable(document for _, document in self.documents))]
        too_long = sum(length > room for length in lengths)
        if too_long:
            log.warning(
                f"{too_long:,} of {len(lengths):,} sentences are not asked: they have more than"
                f" {room} tokens"
            )

    def score(
        self, log_probs: Floats, credit: Floats
    ) -> tuple[dict[str, float], list[dict[str, Any]]]:
        figures = np.stack([credit, -log_probs]).reshape(2 * len(self.sides), -1)
        names = [f"{figure}/{side}" for figure in ("accuracy", "loss") for side in self.sides]
        words = [
            self.inputs.tokenizer.vocabulary[i] for i in self.questions.ids[: figures.shape[1]]
        ]
        losses = figures[len(self.sides) :].T.round(4).tolist()
        asked = zip(words, losses, strict=True)
        records = [{"word": word} | dict(zip(self.sides, own, strict=True)) for word, own in asked]
        return dict(zip(names, figures.mean(axis=1).tolist(), strict=True)), records


def _joined(sentences: Sequence[np.ndarray], number: int) -> list[np.ndarray]:
    """So many sentences at a time as one text; what is left over at the end is none."""
    ends = range(number, len(sentences) + 1, number)
    return [np.concatenate(sentences[end - number : end]) for end in ends]


class SentencePairs(OfHeldOut):
    """Pairs for a probe: is the second sentence the next one, of the same document, in the right
    order?

    next: the next one, or one of the same document that is no neighbour. document: such a one, or
    one of another document of the same source. order: two neighbours as they stand, or the other
    way round. follows, as next-sentence prediction asks it: the next one, or one of another
    document of the same source. Half of the pairs are right, no document is on both sides of the
    split, and each source gives its share. A text is so many `sentences` of a document, one after
    another; fewer at its end are dropped: their length would give away that they follow.
    """

    QUESTIONS = ("next", "document", "order", "follows")

    def __init__(
        self,
        *,
        question: str,
        sentences: int,
        max_train_pairs: int,
        max_validation_pairs: int,
        **common: Any,
    ) -> None:
        if question not in self.QUESTIONS:
            raise ValueError(
                f"measure.data.question={question!r} is unknown; known: {', '.join(self.QUESTIONS)}"
            )
        if sentences < 1:
            raise ValueError(f"measure.data.sentences={sentences}: a text has at least one")
        super().__init__(**common)
        self.question, self.limits = question, (max_train_pairs, max_validation_pairs)
        self.documents = [
            (source, _joined(text, sentences))
            for source, text in self.documents
            if len(text) >= sentences
        ]

    def setup(self, stage: str | None = None) -> None:  # noqa: ARG002
        third = integers(SEED, 0, "probe split", np.arange(len(self.documents)), high=3)
        self.train, self.validation = (self._split(third != 0, 0), self._split(third == 0, 1))
        self.train_sequences, self.validation_sequences = (
            self.train.sequences,
            self.validation.sequences,
        )
        self._say_what_is_cut()
        unknown = (self.train_sequences.input_ids == self.inputs.tokenizer.unk_id).mean()
        refuse_unknown(f"measure {self.inputs.name}", float(unknown), self.inputs.max_unknown_share)

    def _say_what_is_cut(self) -> None:
        """Of both splits, as a warning and in the run's record."""
        pairs = cut_pairs = tokens = 0
        for sequences in (self.train_sequences, self.validation_sequences):
            counts = sequences.cut_counts()
            pairs += len(sequences)
            cut_pairs += counts["truncated_sequences"]
            tokens += counts["truncated_tokens"]
        self.facts |= {"pairs": pairs, "cut_pairs": cut_pairs, "cut_tokens": tokens}
        if cut_pairs:
            log.warning(
                f"{cut_pairs:,} of {pairs:,} pairs are cut, by {tokens:,} tokens in all: of each"
                f" text the first half of {self.max_seq_length} tokens is read"
            )

    def _split(self, is_mine: np.ndarray, side: int) -> SimpleNamespace:
        """Each first sentence stands once with a right second one and once with a wrong one."""
        found, sources = list[tuple[np.ndarray, np.ndarray]](), range(len(self.source_names))
        share = max(2, self.limits[side] // len(sources) // 2 * 2)
        for source in sources:
            mine = [i for i in np.flatnonzero(is_mine).tolist() if self.documents[i][0] == source]
            before = len(found)
            found += islice((pair for number in mine for pair in self._pairs(number, mine)), share)
            if len(found) == before:
                split = ("training", "validation")[side]
                log.warning(
                    f"{self.source_names[source]} gives the {split} split no pair: too few, or too"
                    " short, documents"
                )
        if not found:
            raise ValueError(
                "the held-out text is too short for pairs to train on and pairs to ask: name longer"
                " text"
            )
        half = (self.max_seq_length - 2 - self.inputs.tokenizer.pair_separators) // 2
        firsts = [first[:half] for first, _ in found]
        seconds = [second[:half] for _, second in found]
        cut = [max(0, len(first) - half) + max(0, len(second) - half) for first, second in found]
        texts = assemble(self.inputs.tokenizer, firsts, seconds, cut)
        return SimpleNamespace(
            sequences=texts, labels=np.tile([1, 0], len(found) // 2), label_names=("no", "yes")
        )

    def _pairs(self, number: int, others: Sequence[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """A right and a wrong pair of every second sentence of a document; `others` of its
        source.
        """
        document = self.documents[number][1]
        strangers = [self.documents[i][1] for i in others if i != number]
        for i in range(0, len(document) - 1, 2):
            if self.question == "order":
                yield from ((document[i], document[i + 1]), (document[i + 1], document[i]))
                continue
            apart = [ids for j, ids in enumerate(document) if abs(j - i) > 1]
            draws = integers(SEED, number, "pair", i, np.arange(3), high=2**31).tolist()
            far = apart[draws[0] % len(apart)] if apart else None
            other = strangers[draws[1] % len(strangers)] if strangers else [None]
            right = far if self.question == "document" else document[i + 1]
            wrong = far if self.question == "next" else other[draws[2] % len(other)]
            if right is not None and wrong is not None:
                yield from ((document[i], right), (document[i], wrong))
