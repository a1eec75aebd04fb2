"""Tokenizers that learn no pieces: the 256 bytes, and whole words between spaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from clozelab.corpus.tokenizer_files import type_of
from clozelab.corpus.tokenizer_json import Rules
from clozelab.corpus.tokenizers import (
    MIN_PIECE_COUNT,
    SPECIAL_TOKENS,
    ByteBpeTokenizer,
    WordListTokenizer,
    has_sections,
    most_frequent_first,
    or_none,
)
from clozelab.corpus.word_counts import count_words
from clozelab.corpus.words import AT_SPACES, WordRules

# each word can be encoded by itself
WORD_CUTS = WordRules(AT_SPACES, lowers=False, uncut="", bare=None)
# "[MASK]" between two spaces becomes "[ MASK]": text never turns into a special token.
SPECIAL_WORD = Regex(r"(?<!\S)\[(?=(?:PAD|UNK|CLS|SEP|MASK)\](?!\S))")


class BytesTokenizer(ByteBpeTokenizer):
    """The bytes of UTF-8, as ByT5 reads them: byte-level BPE without merges."""

    kind = "bytes"

    @classmethod
    def train(
        cls,
        texts: Iterable[str],  # noqa: ARG003
        vocab_size: int,  # noqa: ARG003
        lowercase: bool,
        add_prefix_space: bool,
    ) -> ByteBpeTokenizer:
        """The 256 bytes and the special tokens; there is nothing to learn from the texts."""
        pad, unknown, begin, separator, mask = cls.default_tokens
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = [begin, pad, separator, unknown, *alphabet, mask]
        return ByteBpeTokenizer(
            vocabulary, [], lowercase=lowercase, add_prefix_space=add_prefix_space
        )


class WhitespaceTokenizer(WordListTokenizer):
    """Words between spaces, punctuation included; each other word is [UNK]."""

    kind = "whitespace"
    draws_special = True
    default_tokens = SPECIAL_TOKENS
    smallest = len(SPECIAL_TOKENS) + 1

    def __init__(self, vocabulary: Sequence[str], *, lowercase: bool) -> None:
        super().__init__(vocabulary, lowercase=lowercase)
        self._word_rules = WORD_CUTS

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, lowercase: bool) -> WhitespaceTokenizer:
        """The most frequent words that occur twice, at most `vocab_size` with special tokens."""
        rules = whitespace_rules(models.WordLevel(), lowercase)
        word_counts = count_words(texts, rules, WORD_CUTS)
        frequent = []
        for word, count in word_counts.items():
            if count >= MIN_PIECE_COUNT and word not in SPECIAL_TOKENS:
                frequent.append(word)
        ranked = most_frequent_first(frequent, word_counts)
        most = vocab_size - len(SPECIAL_TOKENS)
        return cls([*SPECIAL_TOKENS, *ranked[:most]], lowercase=lowercase)

    @classmethod
    def from_rules(cls, rules: Rules) -> WhitespaceTokenizer | None:
        """The one with the words and the rules of a tokenizer.json.

        None where those are not ours.
        """
        if type_of(rules["model"]) != "WordLevel":
            return None
        for lowercase in (True, False):
            if has_sections(rules, whitespace_rules(models.WordLevel(), lowercase)):
                return or_none(cls, rules, lowercase=lowercase)
        return None

    def _identity(self) -> list[object]:
        return [WhitespaceTokenizer.kind, self.vocabulary, self.lowercase]

    def _rules_for_words(self) -> Library:
        model = models.WordLevel(self._ids, unk_token="[UNK]")
        return whitespace_rules(model, self.lowercase)


def whitespace_rules(model: models.Model, lowercase: bool) -> Library:
    """Words between spaces in the library's terms, without special tokens in text."""
    library = Library(model)
    cleaning = normalizers.BertNormalizer(
        handle_chinese_chars=False, strip_accents=lowercase, lowercase=lowercase
    )
    special_words = normalizers.Replace(SPECIAL_WORD, "[ ")
    library.normalizer = normalizers.Sequence([cleaning, special_words])
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return library
