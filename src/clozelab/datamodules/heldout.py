"""Held-out text for measures of an encoder.

The measures are its loss, its words from the left, the right and both, and pairs of its sentences
for probes.

Without text of its own (`sources`) a measure reads the held-out documents of the corpus that the
encoder was trained on, which lies in the cache and whose fingerprint the encoder's folder keeps:
the same documents whatever the tokenizer. Each source gives an equal number of sentences, and one
document a tenth of that at most: the same ones for every vocabulary.

Letters: V entries of the vocabulary, P tokens that are asked for.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Unpack

import numpy as np

from clozelab.corpus.documents import read_documents
from clozelab.corpus.encoding import Tokenizer
from clozelab.corpus.files import CorpusCounts, CorpusSource, content_marks, text_marks
from clozelab.corpus.generated import generator_of
from clozelab.corpus.manifest import CorpusManifest
from clozelab.corpus.random import Draws
from clozelab.corpus.shards import PreparedCorpus, TokenShards, further_steps, split_facts
from clozelab.corpus.tokenizer_files import WORD_MARKS
from clozelab.datamodules.scoring import MeasureArguments, MeasureDataModule, ScoringDataModule
from clozelab.metrics.metric import Metric
from clozelab.tasks.baselines import Floats, Ints
from clozelab.tasks.questions import Questions, inner_tokens, token_ranges
from clozelab.tasks.sequences import assemble
from clozelab.text.did_you_mean import check_choice, check_count
from clozelab.text.plain import PlainDict, read_json

Document = tuple[int, list[np.ndarray]]  # number of its source; the tokens of its sentences
Pair = tuple[np.ndarray, np.ndarray]  # tokens of the first and of the second text
log = logging.getLogger(__name__)
SEED = 20260917  # of what is hidden, and of which sentences make a pair: the same for every encoder
LARGEST_SHARE = 0.1  # of a source's sentences, from one document
# byte-level signs of 80 to BF: a character's further bytes
LATER_BYTES = re.compile("[\xa1-\xbf\u0122-\u0143]")
# vowels and last consonants of Korean syllables, as uncased text has them
LATER_PARTS = re.compile("[\u1160-\u11ff]")
# settings that decide the held-out documents
OF_THE_TEXT = ("preparation_version", "sources", "validation_fraction")
SOURCE_KEYS = ("name", "path", "format", "text_field")


class HeldOutArguments(MeasureArguments):
    """What every measure of held-out text takes."""

    sources: Sequence[Mapping[str, str]] | None
    max_sentences: int


def file_sources(entries: Sequence[object] | None) -> list[CorpusSource]:
    """Those of measure.data.sources; ValueError where one names no file, or has another key."""
    return list(map(_file_source, entries or ()))


def _file_source(settings: object) -> CorpusSource:
    if not isinstance(settings, Mapping) or not {"name", "path"} <= settings.keys():
        raise ValueError(
            "measure.data.sources: say each file's name, too: [{name: mine, path: mine.txt}]"
        )
    for key, value in settings.items():
        check_choice("measure.data.sources: key", key, SOURCE_KEYS)
        if not isinstance(value, str) and (key != "path" or not isinstance(value, list)):
            raise ValueError(f"measure.data.sources: {key} is {value!r}: write a text")
    return CorpusSource(
        **settings,
        how_to_get="measure.data.sources names them, from data_dir or the working directory on",
        key_format="measure.data.sources.{index}.{name}",
    )


class HeldOutMeasure(MeasureDataModule):
    """Base: `sources` None is the encoder's own corpus; `max_sentences` of the text are read."""

    def __init__(
        self,
        *,
        sources: Sequence[Mapping[str, str]] | None,
        max_sentences: int,
        **common: Unpack[MeasureArguments],
    ) -> None:
        super().__init__(**common)
        if sources:
            text = self._text_of_sources(file_sources(sources))
        else:
            text = self._text_of_corpus()
        self.content = [self.content, max_sentences]
        self.documents = self._sample_sentences(text, max_sentences)
        if not self.documents:
            raise ValueError(
                "the held-out text has no sentence: name a longer one, measure.data.sources",
            )
        self.facts["documents"] = len(self.documents)
        self.facts["sentences"] = sum(len(sentences) for _, sentences in self.documents)

    def _sample_sentences(self, text: Iterator[Document], max_sentences: int) -> list[Document]:
        """Equally many sentences of each source, and at most a LARGEST_SHARE of one document."""
        num_sources = len(self.source_names)
        share = max_sentences // num_sources
        if share < 1:
            raise ValueError(
                f"measure.data.max_sentences={max_sentences}: {num_sources} or more, one of each"
                " source"
            )

        # Documents come in their order; reading stops when every source has its share.
        largest = max(1, int(share * LARGEST_SHARE))
        documents: list[Document] = []
        lacking = [share] * num_sources
        skipped = [0] * num_sources
        for source, sentences in text:
            read = sentences[: min(lacking[source], largest)]
            kept = [ids for ids in read if len(ids)]
            if kept:
                documents.append((source, kept))
                lacking[source] -= len(read)
                skipped[source] += len(sentences) - len(read)
            if not any(lacking):
                break
        self._warn_of_skipped(lacking, skipped, largest)
        return documents

    def _warn_of_skipped(self, lacking: list[int], skipped: list[int], largest: int) -> None:
        """A source of few long documents gives less than its share, though it has more."""
        for name, num_lacking, more in zip(self.source_names, lacking, skipped, strict=True):
            if num_lacking and more:
                log.warning(
                    f"{name}: {num_lacking:,} sentences fewer than its share are read, since one"
                    f" document gives {largest:,} at most; {more:,} more stand in its long"
                    " documents"
                )

    def _text_of_sources(self, sources: Sequence[CorpusSource]) -> Iterator[Document]:
        """Text of one's own."""
        self.source_names = [source.name for source in sources]
        if len(set(self.source_names)) < len(sources):
            raise ValueError(
                "measure.data.sources: two sources have one name, and a score each; give each"
                " its own"
            )
        shards = []
        for number, source in enumerate(sources):
            shards += source.shards(number, self.inputs.data_dir)
        for shard in shards:
            shard.check()
        facts: Any = []
        for shard in shards:
            facts.append({"files": [shard.identity()], "text_field": shard.text_field})
        self.content = text_marks(facts)
        self.synthetic = generator_of(self.inputs.data_dir, checksums=content_marks(facts))
        documents = read_documents(shards, CorpusCounts())
        encode = self.inputs.tokenizer.encode_batch
        return ((document.source, encode(document.lines)) for document in documents)

    def _text_of_corpus(self) -> Iterator[Document]:
        """The held-out documents of the encoder's own corpus.

        ValueError where the cache does not have it.
        """
        tokenizer = self.inputs.tokenizer
        corpus = self._corpus_of_encoder()
        if corpus is None or corpus[1]["tokenizer_fingerprint"] != tokenizer.fingerprint:
            raise ValueError(
                "no held-out text: the corpus that this encoder was trained on is not in"
                f" {self.inputs.cache_dir}, or was prepared with another tokenizer; name text of"
                " your own, measure.data.sources=[{name: A, path: FILE}]"
            )
        folder, manifest = corpus
        shards = PreparedCorpus.open(folder).validation
        settings = manifest["settings"]
        self.source_names = list(shards.source_names)
        self.content = {key: settings.get(key) for key in OF_THE_TEXT}
        self.content |= split_facts(settings)
        if further_steps(settings):
            self.content["steps"] = settings["steps"]
        elif self.content["preparation_version"] == 4:
            self.content["preparation_version"] = 3  # which held out the same documents
        checksums = content_marks(settings["sources"])
        self.synthetic = generator_of(self.inputs.data_dir, checksums=checksums)
        return documents_of(shards)

    def _corpus_of_encoder(self) -> tuple[Path, CorpusManifest] | None:
        """The folder and the manifest of the prepared corpus that the encoder was trained on."""
        if not self.inputs.corpus:
            return None
        # Hidden folders are filled or deleted by now. Of several folders with one text the oldest
        # counts, whatever is prepared later.
        paths = list(self.inputs.cache_dir.glob("corpora/[!.]*/manifest.json"))
        for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
            with suppress(ValueError):  # damaged, and of another encoder's corpus
                manifest: CorpusManifest = read_json(path)
                if manifest.get("fingerprint") == self.inputs.corpus:
                    return path.parent, manifest
        return None


def documents_of(shards: TokenShards) -> Iterator[Document]:
    """The documents of a split, each as the tokens of its sentences."""
    for number, source in enumerate(shards.document_source.tolist()):
        # Document -> range of sentences -> range of tokens, cut where the inner sentences end.
        first, last = shards.document_offsets[number : number + 2].tolist()
        offsets = shards.sentence_offsets[first : last + 1]
        tokens = shards.tokens[int(offsets[0]) : int(offsets[-1])].astype(np.int32)
        yield source, np.split(tokens, offsets[1:-1] - offsets[0])


class HeldOutText(HeldOutMeasure, ScoringDataModule):
    """Loss of held-out text, in nats a token and bits a character.

    It is given by source, and by how frequent the tokens are. Texts are whole sentences of one
    document, as many as fit a sequence; a longer sentence is read in several, so that no token is
    lost. From left to right every token is predicted once. A masked model reads each text
    `mask_parts` times, with another part of it hidden, so that it predicts every token once, too: a
    pseudo-loss, which depends on that number. Bits a character compare between byte-level BPEs.
    """

    metrics = (
        Metric("loss", "nats", higher_is_better=False),
        Metric.share("accuracy"),
        Metric("bits_per_character", "bits", higher_is_better=False),
    )

    def __init__(
        self, *, mask_parts: int, frequency_ranks: Sequence[int], **common: Unpack[HeldOutArguments]
    ) -> None:
        super().__init__(**common)
        if mask_parts < 1:
            raise ValueError(f"measure.data.mask_parts={mask_parts}: a text is read once or more")
        self.mask_parts = mask_parts
        self.ranks = sorted(frequency_ranks)
        self.facts["tokenizer"] = self.inputs.tokenizer.fingerprint
        self.facts["is_causal"] = self.is_causal
        # Ranks [100, 1000] are the bands 1-100, 101-1000 and 1001-end.
        firsts = [1, *(rank + 1 for rank in self.ranks)]
        lasts = [*self.ranks, "end"]
        bounds = zip(firsts, lasts, strict=True)
        self.bands = [f"rank_{first}-{last}" for first, last in bounds]

    def make_questions(self) -> Questions:
        pieces: list[np.ndarray] = []
        sources = []  # of each piece
        for source, document in self.documents:
            for piece in windows(document, self.max_seq_length - 2):
                pieces.append(piece)
                sources.append(source)
        self.source = np.array(sources)
        texts = assemble(self.inputs.tokenizer, pieces)
        text, position = inner_tokens(texts)
        if self.is_causal:
            return self.build_questions(texts, np.arange(len(texts)), (text, position))
        # Each token belongs to one part of its text. A question is one (text, part) that has
        # tokens; `key` numbers these pairs, and `question` says to which a token belongs.
        part = Draws(SEED, 0, text).integers("mask parts", position, high=self.mask_parts)
        key, question = np.unique(text * self.mask_parts + part, return_inverse=True)
        order = np.argsort(question, kind="stable")
        targets = (question[order], position[order])
        return self.build_questions(texts, key // self.mask_parts, targets, hidden=targets)

    def score(self, log_probs: Floats, credit: Floats) -> tuple[dict[str, float], list[PlainDict]]:
        ids = self.questions.ids
        text = self.questions.text
        characters = piece_lengths(self.inputs.tokenizer)[ids].sum()
        bits = -log_probs.sum() / np.log(2) / characters
        scores = {"loss": -log_probs.mean(), "accuracy": credit.mean(), "bits_per_character": bits}
        # The rank of each entry by how often the text has it (1: most often), and its band.
        rank = np.argsort(np.argsort(-np.bincount(ids), kind="stable")) + 1
        band = np.searchsorted(self.ranks, rank[ids])
        for names, number in ((self.source_names, self.source[text]), (self.bands, band)):
            for i in np.unique(number):
                scores[f"loss/{names[i]}"] = -log_probs[number == i].mean()
        sums = np.bincount(text, log_probs, len(self.source)).round(4).tolist()
        records = []
        for source, log_prob in zip(self.source, sums, strict=True):
            records.append({"source": self.source_names[source], "log_prob": log_prob})
        return {name: float(value) for name, value in scores.items()}, records


def windows(sentences: Sequence[np.ndarray], room: int) -> Iterator[np.ndarray]:
    """A document's sentences behind each other, in pieces of at most `room` tokens.

    Each token is in one piece. Pieces are whole sentences; one of more than `room` tokens is spread
    over several.
    """
    window = np.zeros(0, dtype=np.int32)
    for sentence in sentences:
        for start in range(0, len(sentence), room):
            piece = sentence[start : start + room]
            if len(window) + len(piece) > room:
                yield window
                window = window[:0]
            window = np.concatenate([window, piece])
    yield window


def piece_lengths(tokenizer: Tokenizer) -> Ints:
    """[V]: the characters of each entry of the vocabulary in a text."""
    vocabulary = tokenizer.vocabulary
    if tokenizer.kind == "byte_bpe":  # an entry has its blank
        return np.array([len(LATER_BYTES.sub("", piece)) for piece in vocabulary])
    if tokenizer.kind == "wordpiece":
        return np.array([_wordpiece_length(piece) for piece in vocabulary])
    return np.array([len(piece) for piece in vocabulary])  # so has one of Metaspace


def _wordpiece_length(piece: str) -> int:
    """A word has a blank before it; punctuation and later pieces ("##ing") have none."""
    length = len(LATER_PARTS.sub("", piece.removeprefix("##") or piece))
    # Chinese characters are words of one character, and stand side by side.
    is_chinese = "\u3400" <= piece[:1] <= "\u9fff" or piece[:1] >= "\uf900"
    if piece[:1].isalnum() and not is_chinese:
        length += 1
    return length


def word_starts(tokenizer: Tokenizer) -> np.ndarray:
    """bool [V]: entries that begin a word of letters.

    ValueError where entries do not say where words begin.
    """
    if tokenizer.kind == "wordpiece":
        return np.array([piece[0].isalnum() for piece in tokenizer.vocabulary])
    mark = WORD_MARKS.get(tokenizer.kind)
    if mark is None:
        raise ValueError(
            "words cannot be chosen: this tokenizer's entries do not mark where words begin"
        )
    return np.array([piece[0] == mark for piece in tokenizer.vocabulary])


class ClozeBySide(HeldOutMeasure, ScoringDataModule):
    """One word of each held-out sentence: does the left, the right or both tell it?

    The word is a single token with two or more on both sides. Of a side that is not given every
    token is hidden, so that its length stays and no end of a text gives anything away. A causal
    encoder has the left alone.
    """

    SIDES = ("left", "right", "both")
    metrics = (Metric.share("accuracy"), Metric("loss", "nats", higher_is_better=False))

    def __init__(
        self,
        *,
        sides: Sequence[str] | None,
        max_words: int,
        min_tokens: int,
        **common: Unpack[HeldOutArguments],
    ) -> None:
        readable: tuple[str, ...] = self.SIDES
        if common["is_causal"]:
            readable = self.SIDES[:1]
        self.sides = tuple(sides or readable)
        self.max_words = max_words
        self.min_tokens = max(min_tokens, 5)
        for side in self.sides:
            check_choice("measure.data.sides", side, self.SIDES)
        unreadable = set(self.sides) - set(readable)
        if unreadable:
            raise ValueError(
                f"measure.data.sides={min(unreadable)}: a causal encoder reads from the left alone,"
                " and cannot fill in a word from its right; say measure.data.sides=[left], or null"
                " for what an encoder can read"
            )
        super().__init__(**common)
        self.facts["tokenizer"] = self.inputs.tokenizer.fingerprint

    def make_questions(self) -> Questions:
        sentences, word_positions = self._choose_words()
        self._warn_of_long_sentences(self.max_seq_length - 2)
        if not sentences:
            raise ValueError(
                "no held-out sentence has a word with two tokens on both sides: name longer text"
            )
        texts = assemble(self.inputs.tokenizer, sentences)
        position = np.array(word_positions)
        # Where the hidden range begins, and its length: the word with all that a reader of this
        # side is not given. [CLS] is position 0, [SEP] the last one.
        ones = np.ones_like(position)
        ranges = {
            "left": (position, texts.lengths - 1 - position),
            "right": (ones, position),
            "both": (position, ones),
        }
        begins, lengths = np.hstack([ranges[side] for side in self.sides])
        hidden = token_ranges(begins, lengths)
        # All texts from one side, then all from the next one.
        text = np.tile(np.arange(len(texts)), len(self.sides))
        targets = (np.arange(len(text)), np.tile(position, len(self.sides)))
        return self.build_questions(texts, text, targets, hidden)

    def _choose_words(self) -> tuple[list[np.ndarray], list[int]]:
        """Sentences of equally many from each source, and the place of the word to ask for in each.

        The place counts [CLS].
        """
        tokenizer = self.inputs.tokenizer
        room = self.max_seq_length - 2
        starts = word_starts(tokenizer)
        sentences: list[np.ndarray] = []
        word_positions: list[int] = []
        num_sources = len(self.source_names)
        lacking = [max(1, self.max_words // num_sources)] * num_sources
        for source, document in self.documents:
            for ids in document:
                if not self.min_tokens <= len(ids) <= room or not lacking[source]:
                    continue
                # A word of a single token begins one, and so does the token behind it.
                begins_word = starts[ids]
                is_word = begins_word & np.append(begins_word[1:], False)
                is_word &= ids != tokenizer.unk_id
                candidates = np.flatnonzero(is_word[:-2])
                candidates = candidates[candidates >= 2]  # two tokens on both sides
                if not len(candidates):
                    continue
                lacking[source] -= 1
                draw = Draws(SEED, 0, np.array([len(sentences)])).integers(
                    "cloze", high=len(candidates)
                )[0]
                sentences.append(ids)
                word_positions.append(1 + candidates[draw])
        return sentences, word_positions

    def constant_answer_scores(self) -> PlainDict:
        # Each side asks for the same words.
        share = float(np.bincount(self.questions.ids).max() / len(self.questions.ids))
        return {f"validation/accuracy/{side}": share for side in self.sides}

    def _warn_of_long_sentences(self, room: int) -> None:
        """A part of a sentence would be a text that ends where the encoder's length does."""
        lengths: list[int] = []
        for _, document in self.documents:
            lengths += map(len, document)
        num_too_long = sum(length > room for length in lengths)
        if num_too_long:
            log.warning(
                f"{num_too_long:,} of {len(lengths):,} sentences are not asked: they have more than"
                f" {room} tokens"
            )

    def score(self, log_probs: Floats, credit: Floats) -> tuple[dict[str, float], list[PlainDict]]:
        # Questions are all words from one side, then all from the next: [figures * sides, words].
        figures = np.stack([credit, -log_probs]).reshape(2 * len(self.sides), -1)
        num_words = figures.shape[1]
        names = [f"accuracy/{side}" for side in self.sides]
        names += [f"loss/{side}" for side in self.sides]
        scores = dict(zip(names, figures.mean(axis=1).tolist(), strict=True))
        vocabulary = self.inputs.tokenizer.vocabulary
        words = [vocabulary[i] for i in self.questions.ids[:num_words]]
        losses = figures[len(self.sides) :].T.round(4).tolist()
        records = []
        for word, word_losses in zip(words, losses, strict=True):
            records.append({"word": word} | dict(zip(self.sides, word_losses, strict=True)))
        return scores, records


def _join_sentences(sentences: Sequence[np.ndarray], number: int) -> list[np.ndarray]:
    """So many sentences at a time as one text; what is left over at the end is none."""
    ends = range(number, len(sentences) + 1, number)
    return [np.concatenate(sentences[end - number : end]) for end in ends]


class SentencePairs(HeldOutMeasure):
    """Pairs for a probe of what an encoder knows of two sentences.

    Its `question` is one of these. next: is it the next one, or one of the same document that is no
    neighbour? document: is it such a one, or one of another document of the same source? order: do
    two neighbours stand as they are, or the other way round? follows, as next-sentence prediction
    asks it: is it the next one, or one of another document of the same source?

    Half of the pairs are right, no document is on both sides of the split, and each source gives
    its share. A text is so many `sentences` of a document, one after another; fewer at its end are
    dropped: their length would give away that they follow.
    """

    QUESTIONS = ("next", "document", "order", "follows")

    def __init__(
        self,
        *,
        question: str,
        sentences: int,
        max_train_pairs: int,
        max_validation_pairs: int,
        **common: Unpack[HeldOutArguments],
    ) -> None:
        check_choice("measure.data.question", question, self.QUESTIONS)
        if sentences < 1:
            raise ValueError(f"measure.data.sentences={sentences}: a text has at least one")
        check_count("measure.data.max_train_pairs", max_train_pairs)
        check_count("measure.data.max_validation_pairs", max_validation_pairs)
        super().__init__(**common)
        self.question = question
        self.max_pairs = {"training": max_train_pairs, "validation": max_validation_pairs}
        self.documents = [
            (source, _join_sentences(text, sentences))
            for source, text in self.documents
            if len(text) >= sentences
        ]

    def setup(self, stage: str | None = None) -> None:  # noqa: ARG002
        third = Draws(SEED, 0, np.arange(len(self.documents))).integers("probe split", high=3)
        self.train = self._split(third != 0, "training")
        self.validation = self._split(third == 0, "validation")
        self.train_sequences = self.train.sequences
        self.validation_sequences = self.validation.sequences
        self._warn_of_cut_pairs()
        self.refuse_unknown(self.train_sequences.input_ids)

    def _warn_of_cut_pairs(self) -> None:
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

    def _split(self, is_in_split: np.ndarray, split: str) -> SimpleNamespace:
        """Each first sentence stands once with a right second one and once with a wrong one."""
        pairs: list[Pair] = []
        num_sources = len(self.source_names)
        # An even number: a right pair has its wrong one beside it.
        share = max(2, self.max_pairs[split] // num_sources // 2 * 2)
        in_split = np.flatnonzero(is_in_split).tolist()
        for source, name in enumerate(self.source_names):
            of_source = [number for number in in_split if self.documents[number][0] == source]
            possible_pairs = (self._pairs(number, of_source) for number in of_source)
            source_pairs = list(islice(chain.from_iterable(possible_pairs), share))
            pairs += source_pairs
            if not source_pairs:
                log.warning(
                    f"{name} gives the {split} split no pair: too few, or too short, documents"
                )
        if not pairs:
            raise ValueError(
                "the held-out text is too short for pairs to train on and pairs to ask: name longer"
                " text"
            )
        # A text is cut by its own length alone: how long the other one is must not show.
        half = (self.max_seq_length - 2 - self.inputs.tokenizer.pair_separators) // 2
        firsts = [first[:half] for first, _ in pairs]
        seconds = [second[:half] for _, second in pairs]
        cut = []
        for first, second in pairs:
            cut.append(max(0, len(first) - half) + max(0, len(second) - half))
        return SimpleNamespace(
            sequences=assemble(self.inputs.tokenizer, firsts, seconds, cut),
            labels=np.tile([1, 0], len(pairs) // 2),
            label_names=("no", "yes"),
        )

    def _pairs(self, number: int, same_source: Sequence[int]) -> Iterator[Pair]:
        """A right and a wrong pair of every second sentence of a document.

        `same_source` are the numbers of the documents of its source.
        """
        _, document = self.documents[number]
        other_documents = [self.documents[i][1] for i in same_source if i != number]
        for i in range(0, len(document) - 1, 2):
            first = document[i]
            neighbour = document[i + 1]
            if self.question == "order":
                yield first, neighbour
                yield neighbour, first
                continue
            # Drawn for each sentence by its place, so the pairs are the same for every encoder.
            draws = (
                Draws(SEED, number, np.array([i]))
                .integers("pair", np.arange(3), high=2**31)
                .tolist()
            )
            distant = [ids for j, ids in enumerate(document) if abs(j - i) > 1]
            distant_one = distant[draws[0] % len(distant)] if distant else None
            stranger = None
            if other_documents:
                other = other_documents[draws[1] % len(other_documents)]
                stranger = other[draws[2] % len(other)]
            right, wrong = {
                "next": (neighbour, distant_one),
                "document": (distant_one, stranger),
                "follows": (neighbour, stranger),
            }[self.question]
            if right is not None and wrong is not None:
                yield first, right
                yield first, wrong
