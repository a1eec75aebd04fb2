"""Unigram and characters: words with the space before them, cut into the most probable pieces.

A space is "▁". Unigram learns its pieces as SentencePiece does (unigram_training.py), for models
like ALBERT, XLNet and DeBERTa v3. Characters are a Unigram whose pieces have one character each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from clozelab.corpus.tokenizer_files import type_of
from clozelab.corpus.tokenizer_json import Rules
from clozelab.corpus.tokenizers import (
    SPECIAL_TOKENS,
    VocabularyTokenizer,
    covering_characters,
    has_sections,
    require_room,
)
from clozelab.corpus.unigram_training import learn_pieces
from clozelab.corpus.word_counts import count_characters, count_words, lines_of
from clozelab.corpus.words import AT_SPACES, WordRules

SPACE = "▁"
# "[MASK]" in a text is cut into characters: of these all have pieces, and a special token is worse.
ASCII = [chr(code) for code in range(0x21, 0x7F)]
SPECIAL_SCORE = -1e6
SCORE_DECIMALS = 6
SPACES = Regex(" {2,}")
# A text is encoded word by word, unless it has something that normalisation makes a space of.
ODD_CHARACTER = (
    "[^\t\n\r -~\u00a1-\ufaff]"
    "|[\u00a8\u00af\u00b4\u00b8\u02d8-\u02dd\u037a\u0384\u0385\u1680\u180e\u1fbd-\u1fff"
    "\u2000-\u200f\u2017\u2028-\u202f\u203e\u205f-\u206f\u2581\u3000\u309b\u309c]"
)


class UnigramTokenizer(VocabularyTokenizer):
    """SentencePiece's rules with BERT's special tokens around texts and pairs."""

    kind = "unigram"
    default_tokens = SPECIAL_TOKENS
    smallest = len(SPECIAL_TOKENS) + len(ASCII) + len(SPACE)
    trims_spaces = True

    def __init__(self, pieces: Sequence[tuple[str, float]], *, lowercase: bool) -> None:
        """`pieces` have log-probabilities, and their places are their ids."""
        self.pieces = [(piece, score) for piece, score in pieces]
        self.lowercase = lowercase
        super().__init__([piece for piece, _ in self.pieces])
        self._word_rules = word_cuts(lowercase)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, lowercase: bool) -> UnigramTokenizer:
        """Learn at most `vocab_size` entries. The same texts give the same entries, in any order.

        ValueError where the characters alone are more.
        """
        # At most half of the entries are single characters, beside ASCII.
        word_counts, characters = _words_and_characters(texts, lowercase, vocab_size // 2)
        require_room(vocab_size, characters)
        # Of a word with another character its parts beside that one count.
        word_counts = _cut_at_others(word_counts, characters)
        # A text may say "[UNK]", which is no piece: it is an entry already.
        num_pieces = vocab_size - len(SPECIAL_TOKENS)
        scores = learn_pieces(word_counts, characters, num_pieces, reserved=SPECIAL_TOKENS)
        return cls._of(scores, lowercase)

    @classmethod
    def _of(cls, scores: dict[str, float], lowercase: bool) -> UnigramTokenizer:
        """The one with these pieces behind the special tokens."""
        pieces = [(token, SPECIAL_SCORE) for token in SPECIAL_TOKENS]
        pieces += [(piece, round(score, SCORE_DECIMALS)) for piece, score in scores.items()]
        return UnigramTokenizer(pieces, lowercase=lowercase)

    @classmethod
    def from_vocab(cls, path: str | Path, lowercase: bool) -> UnigramTokenizer:  # noqa: ARG003
        """ValueError: only tokenizer.json holds pieces and their scores."""
        raise ValueError(
            f"tokenizer.vocab_file is {path}: {cls.kind} is read from a tokenizer.json alone, so"
            " give that file"
        )

    @classmethod
    def from_rules(cls, rules: Rules) -> UnigramTokenizer | None:
        """The one with the pieces and the rules of a tokenizer.json.

        None where those are not ours.
        """
        if type_of(rules["model"]) != "Unigram":
            return None
        pieces = rules["model"]["vocab"]
        names = {piece for piece, _ in pieces}
        unknown = rules["model"]["unk_id"]
        if not set(SPECIAL_TOKENS) <= names or pieces[unknown][0] != "[UNK]":
            return None
        for lowercase in (True, False):
            if has_sections(rules, unigram_rules(models.Unigram(), lowercase)):
                return UnigramTokenizer(pieces, lowercase=lowercase)
        return None

    def _identity(self) -> list[object]:
        return ["unigram", self.pieces, self.lowercase]

    def _rules_for_words(self) -> Library:
        unknown = self._ids["[UNK]"]
        return unigram_rules(models.Unigram(self.pieces, unk_id=unknown), self.lowercase)


class CharacterTokenizer(UnigramTokenizer):
    """The characters of a text, of which a space is one; nothing else is learnt."""

    kind = "characters"

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, lowercase: bool) -> UnigramTokenizer:
        """The characters that cover the texts, at most `vocab_size` with the special tokens."""
        _, characters = _words_and_characters(texts, lowercase, vocab_size - cls.smallest)
        return cls._of(dict.fromkeys(characters, 0.0), lowercase)


def unigram_rules(model: models.Model, lowercase: bool) -> Library:
    """SentencePiece's rules in the library's terms, without special tokens in text."""
    library = Library(model)
    steps: list[normalizers.Normalizer] = [normalizers.Nmt()]
    if lowercase:
        steps += [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    steps += [normalizers.NFKC(), normalizers.Replace(SPACES, " "), normalizers.Strip()]
    library.normalizer = normalizers.Sequence(steps)
    library.pre_tokenizer = pre_tokenizers.Metaspace(SPACE)
    library.decoder = decoders.Metaspace(SPACE)
    return library


def word_cuts(lowercase: bool) -> WordRules:
    """How a text is cut into words that can be encoded by themselves."""
    return WordRules(AT_SPACES, lowers=lowercase, uncut=ODD_CHARACTER, bare=None)


def _words_and_characters(
    texts: Iterable[str], lowercase: bool, most: int
) -> tuple[Counter[str], list[str]]:
    """How often each word occurs, and the characters that get entries.

    These are `most` that cover the text, and all of ASCII.
    """
    rules = unigram_rules(models.Unigram(), lowercase)
    word_counts = count_words(lines_of(texts), rules, word_cuts(lowercase))
    counts = count_characters(word_counts)
    # A corpus has no NUL, and NumPy would take one from the end of a piece.
    del counts["\0"]
    ascii_characters = rules.normalizer.normalize_str("".join(ASCII))
    characters = sorted({SPACE, *ascii_characters, *covering_characters(counts, most)})
    return word_counts, characters


def _cut_at_others(word_counts: Counter[str], characters: Sequence[str]) -> Counter[str]:
    """The longest parts of words that consist of these characters."""
    alphabet = set(characters)
    counts: Counter[str] = Counter()
    for word, count in word_counts.items():
        if alphabet.issuperset(word):
            counts[word] += count
            continue
        spaced = "".join(character if character in alphabet else " " for character in word)
        for part in spaced.split():
            counts[part] += count
    return counts
