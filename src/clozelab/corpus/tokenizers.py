"""Vocabularies with BERT's or RoBERTa's rules: learnt, or read from a file.

They are for prepared corpora, and for folders without a tokenizer.json; other folders have rules of
their own. `read_tokenizer` (folder_tokenizers.py) tells which it is.

Unusual: training is deterministic. The library numbers WordPiece's `##x` characters in hash-map
order and breaks ties between merges by those numbers; here every character gets its number first
(passed in as special tokens).

Known differences from BERT's released code: characters that entered Unicode after the library's
tables (2017), and private-use characters, which the library removes.
"""

from __future__ import annotations

import itertools
import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library
from tokenizers.trainers import BpeTrainer, WordPieceTrainer

from clozelab.corpus.encoding import MAX_LENGTH
from clozelab.corpus.encoding import Tokenizer as Tokenizer
from clozelab.corpus.tokenizer_classes import GENERIC_FAST
from clozelab.corpus.tokenizer_files import (
    CONFIG_FILE,
    ROLES,
    TOKENIZER_FILE,
    json_bytes,
    read_text,
    splits_as_roberta,
    type_of,
)
from clozelab.corpus.tokenizer_json import Rules
from clozelab.corpus.word_counts import (
    count_characters,
    count_words,
    lines_of,
    train_on_words,
)
from clozelab.text.plain import PlainDict, PlainMapping

# WordPiece's, as BERT's; byte-level BPE has RoBERTa's
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MIN_PIECE_COUNT = 2  # of an entry that is learnt
MAX_WORD_CHARACTERS = 200  # a longer word is [UNK], as in BERT's released code
# of the text, by the characters of a trained vocabulary; rare scripts would only fill it
CHARACTER_COVERAGE = 0.9999

# BERT's cleaning removes them
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffd]")


class VocabularyTokenizer(Tokenizer):
    """A vocabulary and known rules, in which text never turns into a special token.

    ValueError where the vocabulary is none.
    """

    default_tokens: tuple[str, str, str, str, str]  # of files.ROLES
    smallest: int  # entries without which no text can be encoded
    trims_spaces = False  # the rules leave none
    has_token_types = True
    draws_special = False  # whether a random token of masking may be a special one, as BERT's may

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._ids = ids_of(vocabulary, self.default_tokens)
        super().__init__(
            Path(TOKENIZER_FILE), json.loads(self.rules()), self._roles(), finds_added=False
        )
        if not self.draws_special:
            self.undrawn_ids = tuple(sorted(self._ids[token] for token in self.default_tokens))

    @abstractmethod
    def _rules_for_words(self) -> Library:
        """The rules in the library's terms, without special tokens in text."""

    def _template(self) -> processors.PostProcessor:
        """What stands around texts and pairs, in the library's terms: BERT's."""
        second_type = 1 if self.has_token_types else 0
        return processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair=f"[CLS]:0 $A:0 [SEP]:0 $B:{second_type} [SEP]:{second_type}",
            special_tokens=[(name, self._ids[name]) for name in ("[CLS]", "[SEP]")],
        )

    def _roles(self) -> dict[str, str]:
        keys = [f"{role}_token" for role in ROLES]
        return dict(zip(keys, self.default_tokens, strict=True))

    def rules(self) -> str:
        """tokenizer.json, with the special tokens."""
        library = self._rules_for_words()
        added = []
        for token in sorted(self.default_tokens, key=self._ids.__getitem__):
            # RoBERTa's <mask> takes the space before it along.
            takes_space = token == "<mask>"
            added.append(AddedToken(token, special=True, normalized=False, lstrip=takes_space))
        library.add_special_tokens(added)
        library.post_processor = self._template()
        return library.to_str(pretty=True) + "\n"

    def _rule_files(self, **config: object) -> dict[str, bytes]:
        """tokenizer.json and tokenizer_config.json."""
        config |= {"model_max_length": MAX_LENGTH, **self._roles()}
        return {TOKENIZER_FILE: self.rules().encode(), CONFIG_FILE: json_bytes(config)}

    def files(self) -> dict[str, bytes]:
        """tokenizer.json, and a tokenizer_config.json by which AutoTokenizer takes it as it is."""
        return self._rule_files(
            tokenizer_class=GENERIC_FAST,
            do_lower_case=self.lowercase,
            model_input_names=self._input_names(),
        )

    def has_mask(self, text: str) -> bool:
        return self.mask_token in text

    def encode_masked(self, texts: Sequence[str]) -> list[np.ndarray]:
        # RoBERTa's takes the blanks before it along.
        split = []
        for text in texts:
            split.append(re.sub(r"\s+<mask>", "<mask>", text).split(self.mask_token))
        encoded = iter(self.encode_batch(list(itertools.chain.from_iterable(split))))
        mask = np.array([self.mask_id], dtype=np.int32)
        rows = []
        for pieces in split:
            # "a [MASK] b" was split into "a " and " b": their ids, with the mask's between.
            row = [next(encoded)]
            for _ in pieces[1:]:
                row += [mask, next(encoded)]
            rows.append(np.concatenate(row))
        return rows


def ids_of(vocabulary: Sequence[str], special_tokens: Sequence[str]) -> dict[str, int]:
    """Entry -> id; ValueError for a vocabulary that lacks a special token, or is ambiguous."""
    ids = {token: index for index, token in enumerate(vocabulary)}
    missing = [token for token in special_tokens if token not in ids]
    if missing:
        raise ValueError(f"the vocabulary of {len(vocabulary)} entries lacks {', '.join(missing)}")
    if len(ids) != len(vocabulary):
        double = next(token for index, token in enumerate(vocabulary) if ids[token] != index)
        raise ValueError(
            f"entry {double!r} stands twice in the vocabulary, so ids would be ambiguous"
        )
    if "" in ids:
        raise ValueError(f"entry {ids['']} of the vocabulary is empty")
    return ids


class WordListTokenizer(VocabularyTokenizer):
    """A vocabulary that a vocab.txt holds."""

    def __init__(self, vocabulary: Sequence[str], *, lowercase: bool) -> None:
        self.lowercase = lowercase
        super().__init__(vocabulary)

    @classmethod
    def from_vocab(cls, path: str | Path, lowercase: bool) -> Self:
        """Read a `vocab.txt` (one entry a line, the id is the line number).

        ValueError where it is not one.
        """
        try:
            return cls(entries_of(Path(path)), lowercase=lowercase)
        except ValueError as error:
            raise ValueError(f"vocabulary file {path}: {error}") from None


class WordPieceTokenizer(WordListTokenizer):
    """BERT's rules."""

    kind = "wordpiece"
    draws_special = True
    default_tokens = SPECIAL_TOKENS
    first_tokens = SPECIAL_TOKENS  # of a vocabulary that is learnt
    library_class = "BertTokenizer"  # of transformers
    smallest = len(SPECIAL_TOKENS) + 1
    _unclean = (*VocabularyTokenizer._unclean, re.compile("Σ".encode()))

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, lowercase: bool) -> WordPieceTokenizer:
        """Learn at most `vocab_size` entries from texts in memory.

        ValueError where the characters alone are more.
        """
        special_ids = {token: index for index, token in enumerate(cls.first_tokens)}
        library = wordpiece_rules(special_ids, lowercase)
        word_counts = count_words((_CONTROLS.sub("", text) for text in texts), library)
        alphabet, left_out = _alphabet(word_counts, library, vocab_size)
        characters = [token for token in alphabet if len(token) == 1]
        trainer = WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=MIN_PIECE_COUNT,
            show_progress=False,
            special_tokens=[*cls.first_tokens, *alphabet],
            initial_alphabet=characters,
            limit_alphabet=len(characters),
        )
        library = train_on_words(library.model, trainer, word_counts)
        ids = library.get_vocab(with_added_tokens=False)
        vocabulary = sorted(ids, key=ids.__getitem__)
        # Where the text has no more words to learn, further characters take what is free.
        for forms in left_out:
            if len(vocabulary) + len(forms) <= vocab_size:
                vocabulary += forms
        return cls(vocabulary, lowercase=lowercase)

    @classmethod
    def from_rules(cls, rules: Rules) -> WordPieceTokenizer | None:
        """The one with the vocabulary and the rules of a tokenizer.json.

        None where those are not BERT's.
        """
        normalizer = rules.get("normalizer") or {}
        lowercase = normalizer.get("lowercase")
        has_pieces = _has(rules["model"], type="WordPiece", continuing_subword_prefix="##")
        cleans = _has(normalizer, type="BertNormalizer", clean_text=True, handle_chinese_chars=True)
        strips = normalizer.get("strip_accents") in (None, lowercase)
        splits = type_of(rules.get("pre_tokenizer")) == "BertPreTokenizer"
        if lowercase is None or not (has_pieces and cleans and strips and splits):
            return None
        return or_none(cls, rules, lowercase=lowercase)

    def files(self) -> dict[str, bytes]:
        config: PlainDict = {
            "tokenizer_class": self.library_class,
            "do_lower_case": self.lowercase,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
        }
        if not self.has_token_types:
            config["model_input_names"] = self._input_names()
        vocabulary = "".join(f"{token}\n" for token in self.vocabulary)
        return {"vocab.txt": vocabulary.encode(), **self._rule_files(**config)}

    def _identity(self) -> list[object]:
        return [self.vocabulary, self.lowercase, MAX_WORD_CHARACTERS]

    def _rules_for_words(self) -> Library:
        return wordpiece_rules(self._ids, self.lowercase)

    def _cleaned(self, texts: Sequence[str]) -> list[str]:
        if self.lowercase and "Σ" in "".join(texts):
            texts = [_final_sigma(text) for text in texts]
        return super()._cleaned(texts)


def entries_of(path: Path) -> list[str]:
    """The entries of a vocab.txt."""
    # Only "\n" ends an entry: vocabularies hold other line separators as entries.
    text = read_text(path, "one entry a line, as in BERT's vocab.txt")
    return [line.strip() for line in text.removesuffix("\n").split("\n")]


class MpnetTokenizer(WordPieceTokenizer):
    """BERT's rules with RoBERTa's special tokens around texts and pairs, without token types."""

    kind = "wordpiece_roberta"
    default_tokens = ("<pad>", "[UNK]", "<s>", "</s>", "<mask>")
    first_tokens = ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")
    library_class = "MPNetTokenizer"
    draws_special = False

    def _template(self) -> processors.PostProcessor:
        return processors.RobertaProcessing(
            ("</s>", self._ids["</s>"]), ("<s>", self._ids["<s>"]), add_prefix_space=False
        )


def wordpiece_rules(ids: dict[str, int], lowercase: bool) -> Library:
    """BERT's rules in the library's terms, without special tokens in text."""
    library = Library(
        models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARACTERS)
    )
    library.normalizer = normalizers.BertNormalizer(strip_accents=lowercase, lowercase=lowercase)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    return library


def _final_sigma(text: str) -> str:
    """Turn a capital sigma that ends a word into its final form.

    Python's lower() does so in the released code. The text keeps its length.
    """
    if "Σ" not in text:
        return text
    # "İ" alone grows when lower-cased; as "I" it is still a cased letter, which is all that counts
    # here. What BERT's cleaning removes must not end a word: a zero-width space does not.
    lowered = _CONTROLS.sub("\u200b", text.replace("İ", "I")).lower()
    characters = list(text)
    for place, (character, low) in enumerate(zip(text, lowered, strict=True)):
        if character == "Σ" and low == "ς":
            characters[place] = "ς"
    return "".join(characters)


def _alphabet(
    words: Mapping[str, int], rules: Library, vocab_size: int
) -> tuple[list[str], list[list[str]]]:
    """Single characters and their `##` forms that a vocabulary starts with, in code-point order.

    Also the entries of each character that is left out, the most frequent one first. ValueError
    where the first are more than the vocabulary is to have.
    """
    counts = count_characters(words)
    covering = covering_characters(counts, len(counts))
    alphabet: list[str] = []
    left_out: list[list[str]] = []
    # At most half of the entries are single characters.
    room = vocab_size // 2
    for character in most_frequent_first(covering, counts):
        forms = [character]
        # A character that BERT makes a word by itself has no `##` form: punctuation, and Chinese
        # ones.
        is_word = len(rules.pre_tokenizer.pre_tokenize_str("a" + character)) != 1
        if not is_word and " " not in rules.normalizer.normalize_str(character):
            forms.append(f"##{character}")
        if len(forms) <= room or character.isascii():
            alphabet += forms
            room -= len(forms)
        else:
            left_out.append(forms)
    alphabet.sort(key=lambda entry: (len(entry), entry))
    require_room(vocab_size, alphabet)
    return alphabet, left_out


def require_room(vocab_size: int, alphabet: Sequence[str]) -> None:
    """ValueError for a vocabulary that special tokens and an alphabet would be too many for."""
    needed = len(SPECIAL_TOKENS) + len(alphabet)
    if needed > vocab_size:
        raise ValueError(
            f"vocab_size {vocab_size} is below the {needed} entries that special tokens and single"
            " characters of this text need; raise it"
        )


def most_frequent_first(texts: Iterable[str], counts: Mapping[str, int]) -> list[str]:
    """Texts by how often each occurs, then in code-point order."""
    return sorted(texts, key=lambda text: (-counts[text], text))


def covering_characters(counts: Counter[str], most: int) -> list[str]:
    """At most so many of the most frequent characters as cover a text, in code-point order."""
    ranked = most_frequent_first(counts, counts)
    # As many as cover CHARACTER_COVERAGE of the text.
    covered = np.cumsum([counts[character] for character in ranked]) / max(1, counts.total())
    kept = ranked[: int(np.searchsorted(covered, CHARACTER_COVERAGE)) + 1]
    # Plain ASCII is worth its few entries however rare.
    ascii_characters = {character for character in counts if character.isascii()}
    return sorted({*kept[:most], *ascii_characters})


class ByteBpeTokenizer(VocabularyTokenizer):
    """RoBERTa's rules and special ids: every text has ids, and the ids give the text back.

    A word is written with the space before it; `add_prefix_space` gives the first word of a text
    one, too, as RoBERTa's release does not.
    """

    kind = "byte_bpe"
    default_tokens = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
    smallest = len(default_tokens) + 256

    def __init__(
        self,
        vocabulary: Sequence[str],
        merges: Sequence[tuple[str, str]],
        *,
        lowercase: bool,
        add_prefix_space: bool,
    ) -> None:
        self.merges = [(first, second) for first, second in merges]
        self.lowercase = lowercase
        self.add_prefix_space = add_prefix_space
        super().__init__(vocabulary)

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int, lowercase: bool, add_prefix_space: bool
    ) -> ByteBpeTokenizer:
        """Learn at most `vocab_size` entries, from each line by itself.

        The same texts give the same entries.
        """
        # RoBERTa's ids: <s> <pad> </s> <unk> are 0 to 3, and <mask> is the last one.
        pad, unknown, begin, separator, mask = cls.default_tokens
        library = byte_bpe_rules(models.BPE(), lowercase, add_prefix_space)
        trainer = BpeTrainer(
            vocab_size=vocab_size - 1,
            min_frequency=MIN_PIECE_COUNT,
            show_progress=False,
            special_tokens=[begin, pad, separator, unknown],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )
        word_counts = count_words(lines_of(texts), library)
        library = train_on_words(models.BPE(), trainer, word_counts)
        model = json.loads(library.to_str())["model"]
        ids = model["vocab"]
        vocabulary = [*sorted(ids, key=ids.__getitem__), mask]
        return cls(
            vocabulary, model["merges"], lowercase=lowercase, add_prefix_space=add_prefix_space
        )

    @classmethod
    def from_vocab(
        cls, path: str | Path, lowercase: bool, add_prefix_space: bool
    ) -> ByteBpeTokenizer:
        """Read a folder's `vocab.json` (entry to id) and `merges.txt`.

        ValueError where they are not such files.
        """
        folder = Path(path)
        if not folder.is_dir():
            folder = folder.parent
        entries = read_text(folder / "vocab.json", "entries and ids, as in RoBERTa's vocab.json")
        lines = read_text(folder / "merges.txt", "two pieces a line, as in RoBERTa's merges.txt")
        try:
            vocabulary = _entries_by_id(json.loads(entries))
            merges = []
            for line in lines.split("\n"):
                if line and not line.startswith("#version"):
                    first, second = line.split(" ")
                    merges.append((first, second))
            return cls(vocabulary, merges, lowercase=lowercase, add_prefix_space=add_prefix_space)
        except Exception as error:  # the library's own is a bare one
            raise ValueError(
                f"the vocabulary in {folder} is not one of byte-level BPE: {error}"
            ) from None

    @classmethod
    def from_rules(cls, rules: Rules) -> ByteBpeTokenizer | None:
        """The one with the vocabulary and the rules of a tokenizer.json.

        None where those are not RoBERTa's.
        """
        splitter = rules.get("pre_tokenizer") or {}
        normalizer = type_of(rules.get("normalizer"))
        if type_of(rules["model"]) != "BPE" or not splits_as_roberta(splitter):
            return None
        if normalizer not in (None, "Lowercase"):
            return None
        merges = []
        for pair in rules["model"]["merges"]:
            # Older versions of the library write "a b" for ["a", "b"].
            pieces = pair.split(" ") if isinstance(pair, str) else pair
            merges.append(tuple(pieces))
        return or_none(
            cls,
            rules,
            merges,
            lowercase=normalizer is not None,
            add_prefix_space=splitter.get("add_prefix_space", True),
        )

    def files(self) -> dict[str, bytes]:
        name = "RobertaTokenizer"
        if self.lowercase:
            # transformers' own class builds its rules anew, without a normaliser.
            name = GENERIC_FAST
        config = {
            "tokenizer_class": name,
            "add_prefix_space": self.add_prefix_space,
            "bos_token": "<s>",
            "eos_token": "</s>",
        }
        entries = {token: index for index, token in enumerate(self.vocabulary)}
        merges = "".join(f"{first} {second}\n" for first, second in self.merges)
        return {
            "vocab.json": (json.dumps(entries, ensure_ascii=False) + "\n").encode(),
            "merges.txt": f"#version: 0.2\n{merges}".encode(),
            **self._rule_files(**config),
        }

    def _identity(self) -> list[object]:
        return [self.kind, self.vocabulary, self.merges, self.lowercase, self.add_prefix_space]

    def _rules_for_words(self) -> Library:
        model = models.BPE(self._ids, self.merges)
        return byte_bpe_rules(model, self.lowercase, self.add_prefix_space)

    def _template(self) -> processors.PostProcessor:
        return processors.RobertaProcessing(
            ("</s>", self._ids["</s>"]),
            ("<s>", self._ids["<s>"]),
            add_prefix_space=self.add_prefix_space,
        )


def byte_bpe_rules(model: models.BPE, lowercase: bool, add_prefix_space: bool) -> Library:
    """RoBERTa's rules in the library's terms."""
    library = Library(model)
    if lowercase:
        library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    library.decoder = decoders.ByteLevel()
    return library


def _has(node: PlainMapping, **values: object) -> bool:
    return all(node.get(key) == value for key, value in values.items())


def has_sections(rules: Rules, library: Library) -> bool:
    """Whether a tokenizer.json normalises and splits text as a tokenizer of the library does."""
    expected = json.loads(library.to_str())
    is_normalised_so = rules.get("normalizer") == expected["normalizer"]
    return is_normalised_so and rules.get("pre_tokenizer") == expected["pre_tokenizer"]


def _entries_by_id(ids: Mapping[str, int]) -> list[str]:
    """Entries by their ids; ValueError where those are not 0, 1, 2, ..."""
    entries = sorted(ids, key=ids.__getitem__)
    if [ids[entry] for entry in entries] != list(range(len(entries))):
        raise ValueError(f"its ids are not 0 to {len(entries) - 1}")
    return entries


T = TypeVar("T")


def or_none(cls: Callable[..., T], rules: Rules, *merges: object, **settings: object) -> T | None:
    """A tokenizer of this class, or None where the vocabulary is not one of it."""
    try:
        return cls(_entries_by_id(rules["model"]["vocab"]), *merges, **settings)
    except Exception:  # the library's own is a bare one
        return None
