"""Vocabularies with BERT's or RoBERTa's rules: learnt, or read from a file.

They are for prepared corpora, and for folders without a tokenizer.json; other folders have rules of
their own. `read_tokenizer` tells which it is.

Unusual: training is deterministic. The library numbers WordPiece's `##x` characters in hash-map
order and breaks ties between merges by those numbers; here every character gets its number first
(passed in as special tokens).

Known differences from BERT's released code: characters that entered Unicode after the library's
tables (2017), and private-use characters, which the library removes.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library
from tokenizers.trainers import BpeTrainer, WordPieceTrainer

from clozelab.corpus.encoding import TEXTS_PER_BATCH
from clozelab.corpus.encoding import Tokenizer as Tokenizer
from clozelab.corpus.files import resolve_path
from clozelab.corpus.tokenizer_classes import (
    BOS_CLASSES,
    BUILT_MODELS,
    FOLLOWED,
    MPNET_CLASS,
    is_generic,
    own_code,
    refuse_python_rules,
    vocabulary_file,
)
from clozelab.corpus.tokenizer_files import (
    CONFIG_FILE,
    ROLES,
    content_of,
    json_bytes,
    json_or_empty,
    open_library,
    read_config,
    read_text,
    reads_token_types,
    settled,
    type_of,
    unknown_token,
)
from clozelab.corpus.tokenizer_files import TOKENIZER_FILE as TOKENIZER_FILE
from clozelab.files.lines import SURROGATES
from clozelab.text.plain import Json, JsonObject, ReadOnlyJson

log = logging.getLogger(__name__)

# WordPiece's, as BERT's; byte-level BPE has RoBERTa's
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MIN_PIECE_COUNT = 2  # of an entry that is learnt
MAX_WORD_CHARACTERS = 200  # a longer word is [UNK], as in BERT's released code
# of the text, by the characters of a trained vocabulary; rare scripts would only fill it
CHARACTER_COVERAGE = 0.9999

# RoBERTa's template, before it has its tokens
ROBERTA_PROCESSOR: ReadOnlyJson = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
# BERT's cleaning removes them
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffd]")


class VocabularyTokenizer(Tokenizer):
    """A vocabulary and known rules, in which text never turns into a special token.

    ValueError where the vocabulary is none.
    """

    usual_tokens: tuple[str, str, str, str, str]  # of files.ROLES
    smallest: int  # entries without which no text can be encoded
    trims_spaces = False  # the rules leave none
    has_token_types = True

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._ids = ids_of(vocabulary, self.usual_tokens)
        super().__init__(
            Path(TOKENIZER_FILE), json.loads(self.rules()), self._roles(), finds_added=False
        )

    @abstractmethod
    def _rules_for_words(self) -> Library:
        """The rules in the library's terms, without special tokens in text."""

    @abstractmethod
    def _template(self) -> processors.PostProcessor:
        """What stands around texts and pairs, in the library's terms."""

    def _roles(self) -> dict[str, str]:
        keys = [f"{role}_token" for role in ROLES]
        return dict(zip(keys, self.usual_tokens, strict=True))

    def rules(self) -> str:
        """tokenizer.json, which knows the special tokens."""
        library = self._rules_for_words()
        added = []
        for token in sorted(self.usual_tokens, key=self._ids.__getitem__):
            # RoBERTa's <mask> takes the space before it along.
            takes_space = token == "<mask>"
            added.append(AddedToken(token, special=True, normalized=False, lstrip=takes_space))
        library.add_special_tokens(added)
        library.post_processor = self._template()
        return library.to_str(pretty=True) + "\n"

    def _rule_files(self, **config: object) -> dict[str, bytes]:
        """tokenizer.json and tokenizer_config.json."""
        config |= {"model_max_length": 512, **self._roles()}
        return {TOKENIZER_FILE: self.rules().encode(), CONFIG_FILE: json_bytes(config)}

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


class WordPieceTokenizer(VocabularyTokenizer):
    """BERT's rules."""

    kind = "wordpiece"
    usual_tokens = SPECIAL_TOKENS
    first_tokens = SPECIAL_TOKENS  # of a vocabulary that is learnt
    library_class = "BertTokenizer"  # of transformers
    smallest = len(SPECIAL_TOKENS) + 1

    def __init__(self, vocabulary: Sequence[str], *, lowercase: bool) -> None:
        self.lowercase = lowercase
        super().__init__(vocabulary)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, lowercase: bool) -> WordPieceTokenizer:
        """Learn at most `vocab_size` entries from texts in memory.

        ValueError where the characters alone are more.
        """
        texts = [_CONTROLS.sub("", text) for text in texts]
        alphabet = _alphabet(texts, lowercase, vocab_size)
        special_ids = {token: index for index, token in enumerate(cls.first_tokens)}
        library = _wordpiece(special_ids, lowercase)
        characters = [token for token in alphabet if len(token) == 1]
        trainer = WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=MIN_PIECE_COUNT,
            show_progress=False,
            special_tokens=[*cls.first_tokens, *alphabet],
            initial_alphabet=characters,
            limit_alphabet=len(characters),
        )
        library.train_from_iterator(texts, trainer)
        ids = library.get_vocab(with_added_tokens=False)
        return cls(sorted(ids, key=ids.__getitem__), lowercase=lowercase)

    @classmethod
    def from_vocab(cls, path: str | Path, lowercase: bool) -> WordPieceTokenizer:
        """Read a `vocab.txt` (one entry a line, the id is the line number).

        ValueError where it is not one.
        """
        try:
            return cls(_lines_of(Path(path)), lowercase=lowercase)
        except ValueError as error:
            raise ValueError(f"vocabulary file {path}: {error}") from None

    @classmethod
    def of_rules(cls, rules: ReadOnlyJson) -> WordPieceTokenizer | None:
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
        return _or_none(cls, rules, lowercase=lowercase)

    def files(self) -> dict[str, bytes]:
        config: JsonObject = {
            "tokenizer_class": self.library_class,
            "do_lower_case": self.lowercase,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
        }
        if not self.has_token_types:
            config["model_input_names"] = ["input_ids", "attention_mask"]
        vocabulary = "".join(f"{token}\n" for token in self.vocabulary)
        return {"vocab.txt": vocabulary.encode(), **self._rule_files(**config)}

    def _identity(self) -> list[Json]:
        return [self.vocabulary, self.lowercase, MAX_WORD_CHARACTERS]

    def _rules_for_words(self) -> Library:
        return _wordpiece(self._ids, self.lowercase)

    def _template(self) -> processors.PostProcessor:
        second_type = 1 if self.has_token_types else 0
        return processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair=f"[CLS]:0 $A:0 [SEP]:0 $B:{second_type} [SEP]:{second_type}",
            special_tokens=[(name, self._ids[name]) for name in ("[CLS]", "[SEP]")],
        )

    def _cleaned(self, texts: Sequence[str]) -> list[str]:
        if self.lowercase:
            texts = [_final_sigma(text) for text in texts]
        return super()._cleaned(texts)


def _lines_of(path: Path) -> list[str]:
    """The entries of a vocab.txt."""
    # Only "\n" ends an entry: vocabularies hold other line separators as entries.
    text = read_text(path, "one entry a line, as in BERT's vocab.txt")
    return [line.strip() for line in text.removesuffix("\n").split("\n")]


class MpnetTokenizer(WordPieceTokenizer):
    """BERT's rules with RoBERTa's special tokens around texts and pairs, without token types."""

    kind = "wordpiece_roberta"
    usual_tokens = ("<pad>", "[UNK]", "<s>", "</s>", "<mask>")
    first_tokens = ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")
    library_class = "MPNetTokenizer"

    def __init__(self, vocabulary: Sequence[str], *, lowercase: bool) -> None:
        super().__init__(vocabulary, lowercase=lowercase)
        self.undrawn_ids = tuple(sorted(self._ids[token] for token in self.usual_tokens))

    def _template(self) -> processors.PostProcessor:
        return processors.RobertaProcessing(
            ("</s>", self._ids["</s>"]), ("<s>", self._ids["<s>"]), add_prefix_space=False
        )


def _wordpiece(ids: dict[str, int], lowercase: bool) -> Library:
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


def _alphabet(texts: Sequence[str], lowercase: bool, vocab_size: int) -> list[str]:
    """Single characters and their `##` forms that a vocabulary starts with, in code-point order.

    ValueError where they are more than the vocabulary is to have.
    """
    rules = _wordpiece({"[UNK]": 0}, lowercase)
    counts = _character_counts(texts, rules)
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    # As many of the most frequent characters as cover CHARACTER_COVERAGE of the text.
    covered = np.cumsum([counts[character] for character in ranked]) / max(1, counts.total())
    kept = ranked[: int(np.searchsorted(covered, CHARACTER_COVERAGE)) + 1]
    # At most half of the entries are single characters; plain ASCII is worth its few entries
    # however rare.
    ascii_characters = {character for character in counts if character.isascii()}
    kept = sorted({*kept[: vocab_size // 4], *ascii_characters})
    # A character that BERT makes a word by itself has no `##` form: punctuation, and Chinese ones.
    alphabet = list(kept)
    for character in kept:
        is_word = len(rules.pre_tokenizer.pre_tokenize_str("a" + character)) != 1
        if not is_word and " " not in rules.normalizer.normalize_str(character):
            alphabet.append(f"##{character}")
    needed = len(SPECIAL_TOKENS) + len(alphabet)
    if needed > vocab_size:
        raise ValueError(
            f"vocab_size {vocab_size} is below the {needed} entries that special tokens and single"
            " characters of this text need; raise it"
        )
    return alphabet


def _character_counts(texts: Sequence[str], rules: Library) -> Counter[str]:
    """How often each character stands in what BERT's normalisation makes of the texts."""
    # Characters are counted as written, and each kind is normalised once.
    # Unicode has 0x110000 code points: a counter for each.
    raw = np.zeros(0x110000, dtype=np.int64)
    for start in range(0, len(texts), TEXTS_PER_BATCH):
        block = "".join(texts[start : start + TEXTS_PER_BATCH])
        # UTF-32 has four bytes a character, and they are its code point.
        codes = np.frombuffer(block.encode("utf-32-le"), dtype="<u4").astype(np.int64)
        raw += np.bincount(codes, minlength=len(raw))
    counts: Counter[str] = Counter()
    for code in np.flatnonzero(raw):
        for character in "".join(rules.normalizer.normalize_str(chr(code)).split()):
            counts[character] += int(raw[code])
    return counts


class ByteBpeTokenizer(VocabularyTokenizer):
    """RoBERTa's rules and special ids: every text has ids, and the ids give the text back.

    A word is written with the space before it; `add_prefix_space` gives the first word of a text
    one, too, as RoBERTa's release does not.
    """

    kind = "byte_bpe"
    usual_tokens = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
    smallest = len(usual_tokens) + 256

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
        self.undrawn_ids = tuple(sorted(self._ids[token] for token in self.usual_tokens))

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int, lowercase: bool, add_prefix_space: bool
    ) -> ByteBpeTokenizer:
        """Learn at most `vocab_size` entries, from each line by itself.

        The same texts give the same entries.
        """
        # RoBERTa's ids: <s> <pad> </s> <unk> are 0 to 3, and <mask> is the last one.
        pad, unknown, begin, separator, mask = cls.usual_tokens
        library = _byte_bpe(models.BPE(), lowercase, add_prefix_space)
        trainer = BpeTrainer(
            vocab_size=vocab_size - 1,
            min_frequency=MIN_PIECE_COUNT,
            show_progress=False,
            special_tokens=[begin, pad, separator, unknown],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )
        lines = itertools.chain.from_iterable(text.split("\n") for text in texts)
        library.train_from_iterator((SURROGATES.sub("\ufffd", line) for line in lines), trainer)
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
    def of_rules(cls, rules: ReadOnlyJson) -> ByteBpeTokenizer | None:
        """The one with the vocabulary and the rules of a tokenizer.json.

        None where those are not RoBERTa's.
        """
        splitter = rules.get("pre_tokenizer") or {}
        normalizer = type_of(rules.get("normalizer"))
        is_robertas = type_of(rules["model"]) == "BPE" and splitter.get("type") == "ByteLevel"
        if not is_robertas or not splitter.get("use_regex", True):
            return None
        if normalizer not in (None, "Lowercase"):
            return None
        merges = []
        for pair in rules["model"]["merges"]:
            # Older versions of the library write "a b" for ["a", "b"].
            pieces = pair.split(" ") if isinstance(pair, str) else pair
            merges.append(tuple(pieces))
        return _or_none(
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
            name = "PreTrainedTokenizerFast"
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

    def _identity(self) -> list[Json]:
        return [self.kind, self.vocabulary, self.merges, self.lowercase, self.add_prefix_space]

    def _rules_for_words(self) -> Library:
        model = models.BPE(self._ids, self.merges)
        return _byte_bpe(model, self.lowercase, self.add_prefix_space)

    def _template(self) -> processors.PostProcessor:
        return processors.RobertaProcessing(
            ("</s>", self._ids["</s>"]),
            ("<s>", self._ids["<s>"]),
            add_prefix_space=self.add_prefix_space,
        )


def _byte_bpe(model: models.BPE, lowercase: bool, add_prefix_space: bool) -> Library:
    """RoBERTa's rules in the library's terms."""
    library = Library(model)
    if lowercase:
        library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    library.decoder = decoders.ByteLevel()
    return library


KINDS: ReadOnlyJson = {
    WordPieceTokenizer.kind: WordPieceTokenizer,
    MpnetTokenizer.kind: MpnetTokenizer,
    ByteBpeTokenizer.kind: ByteBpeTokenizer,
}


@dataclass(frozen=True)
class TokenizerSettings:
    """What a corpus's tokenizer is to be; the keys of conf/tokenizer.

    `kind` is wordpiece, wordpiece_roberta or byte_bpe.
    """

    kind: str
    vocab_size: int
    lowercase: bool
    vocab_file: str | None = None
    """Instead of learning one.

    It is a vocab.txt, byte_bpe's folder (vocab.json, merges.txt), or any tokenizer.json.
    """
    add_prefix_space: bool | None = None  # of byte_bpe alone

    def __post_init__(self) -> None:
        if (self.kind == ByteBpeTokenizer.kind) != (self.add_prefix_space is not None):
            raise ValueError(
                f"tokenizer.add_prefix_space={self.add_prefix_space}: true or false for byte_bpe"
                " alone"
            )
        least = KINDS[self.kind].smallest
        if self.vocab_file is None and self.vocab_size < least:
            raise ValueError(
                f"tokenizer.vocab_size is {self.vocab_size}: {self.kind} needs {least} for special"
                " tokens and single characters; give the number of entries to learn, some thousands"
            )

    @property
    def _rules(self) -> dict[str, bool]:
        rules = {"lowercase": self.lowercase}
        if self.add_prefix_space is not None:
            rules["add_prefix_space"] = self.add_prefix_space
        return rules

    def given(self, data_dir: str | Path) -> Tokenizer | None:
        """The tokenizer of `vocab_file`, which is looked for as a source is.

        That is below data_dir first, then in the current folder. None where one is to be learnt. A
        tokenizer.json is taken as it is. ValueError where `lowercase` is not what it does.
        """
        if self.vocab_file is None:
            return None
        path = resolve_path(self.vocab_file, data_dir)
        if path.name != TOKENIZER_FILE:
            return KINDS[self.kind].from_vocab(path, **self._rules)
        if not path.is_file():
            raise ValueError(
                f"vocabulary file {path} does not exist; expected a tokenizer of the tokenizers"
                " library"
            )
        tokenizer = read_tokenizer(path.parent)
        if tokenizer.lowercase != self.lowercase:
            behaviour = "keeps capital letters"
            if tokenizer.lowercase:
                behaviour = "lower-cases text"
            raise ValueError(
                f"tokenizer.lowercase={json.dumps(self.lowercase)}, and {path} {behaviour}: "
                f"say tokenizer.lowercase={json.dumps(tokenizer.lowercase)}"
            )
        return tokenizer

    def learn(self, texts: Iterable[str]) -> Tokenizer:
        # the longest silence of a preparation
        log.info("learning a vocabulary of %d entries", self.vocab_size)
        tokenizer: Tokenizer = KINDS[self.kind].train(texts, self.vocab_size, **self._rules)
        if tokenizer.vocab_size < self.vocab_size:
            log.warning(
                "the text gives a vocabulary of %d entries, %d were asked for",
                tokenizer.vocab_size,
                self.vocab_size,
            )
        return tokenizer

    def identity(self, given: Tokenizer | None) -> JsonObject:
        """What decides the ids, wherever the file lies."""
        size = self.vocab_size
        vocabulary = None
        if given:
            size = given.vocab_size
            vocabulary = given.fingerprint
        return {"kind": self.kind, "vocab_size": size, "vocabulary": vocabulary, **self._rules}


def read_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of a model's folder; ValueError where there is none that can be read.

    It is read from `tokenizer.json` as it is, unless one of the two kinds here wrote it. Without
    that file it is read from `vocab.txt`, or `vocab.json` and `merges.txt`, by the rules of its
    class (tokenizer_classes.py) and what tokenizer_config.json says.
    """
    folder = Path(folder)
    config = read_config(folder)
    refuse_python_rules(folder, config["tokenizer_class"])
    if config.get("truncation_side") == "left":
        log.warning("%s: truncation_side left is not followed: a long text loses its end", folder)
    if (folder / TOKENIZER_FILE).is_file():
        return _of_tokenizer_json(folder, config)
    path = vocabulary_file(folder, config)
    if path is not None and path.suffix == ".txt":
        return _of_vocab_txt(path, config)
    if path is not None:
        return _of_vocab_json(path, config)
    advice = ""
    sentencepiece_files = sorted(folder.glob("*.model"))
    if sentencepiece_files:
        advice = (
            f"; of {sentencepiece_files[0].name} transformers makes one:"
            " AutoTokenizer.from_pretrained(F).save_pretrained(F)"
        )
    raise ValueError(
        f"{folder} holds no tokenizer: expected tokenizer.json, vocab.txt, or vocab.json with"
        f" merges.txt{advice}"
    )


def _of_tokenizer_json(folder: Path, config: ReadOnlyJson) -> Tokenizer:
    path = folder / TOKENIZER_FILE
    content = json_or_empty(path)
    rules = settled(path, content, config)
    for section in ("normalizer", "pre_tokenizer"):
        if rules.get(section) != content.get(section):
            log.warning(
                "%s has the %s %s and tokenizer_config.json makes it %s, which counts, as in"
                " AutoTokenizer; put right the one that is wrong",
                path,
                section,
                json.dumps(content[section]),
                json.dumps(rules[section]),
            )
    _compare_vocabularies(folder, rules["model"])
    released = None
    for tokenizer_class in (MpnetTokenizer, WordPieceTokenizer, ByteBpeTokenizer):
        released = released or tokenizer_class.of_rules(rules)
    tokenizer: Tokenizer
    if released is None:
        tokenizer = Tokenizer(path, rules, config)
    elif _is_writer_of(released, path, rules):
        tokenizer = released.with_token_types(_number_of_types(config))
    else:
        tokenizer = Tokenizer(path, rules, config, released.fingerprint)
    _compare_settings(path, tokenizer, rules, config)
    return tokenizer


def _compare_settings(
    path: Path, tokenizer: Tokenizer, rules: ReadOnlyJson, config: ReadOnlyJson
) -> None:
    """ValueError where tokenizer_config.json says what tokenizer.json does not do.

    Only what AutoTokenizer would do by tokenizer_config.json counts: a class that takes
    tokenizer.json as it is looks at none of it.
    """
    name = config["tokenizer_class"]
    if own_code(config):
        log.warning("%s: %s of auto_map is not run; the file counts", path, own_code(config))
    if is_generic(name):
        return
    model = rules["model"]
    kind = "BPE with </w>" if model.get("end_of_word_suffix") == "</w>" else type_of(model)
    built = BUILT_MODELS.get(name, kind)
    if built != kind:
        log.warning(
            "%s holds %s, of whose entries %s of transformers 5 builds %s; here the file counts",
            path,
            kind,
            name,
            built,
        )
    first = tokenizer.vocabulary[tokenizer.cls_id]
    last = tokenizer.vocabulary[tokenizer.sep_id]
    does: JsonObject = {"cls_token": first, "sep_token": last, "unk_token": unknown_token(model)}
    if name in BOS_CLASSES:
        does |= {"bos_token": first, "eos_token": last}
    for key, value in tokenizer.settings().items():
        if name in FOLLOWED[key]:
            does[key] = value
    for key, value in does.items():
        given = config.get(key)
        if isinstance(value, str):
            given = content_of(given)
        # A model without an unknown token contradicts nothing.
        if given not in (None, "", value) and value != "":
            raise ValueError(
                f"{path.parent}: {CONFIG_FILE} says {key} {json.dumps(given)}, which {name} of"
                f" transformers follows, and {TOKENIZER_FILE} has {json.dumps(value)}: put right"
                " the one that is wrong"
            )


def _of_vocab_txt(path: Path, config: ReadOnlyJson) -> Tokenizer:
    """BERT's rules, with what tokenizer_config.json says of case, accents and Chinese characters.

    A folder of Google's, which has none of transformers' files, is read by the rules of the
    released code.
    """
    entries = _lines_of(path)
    lowercase = _is_lowercase(path.parent, entries, config)
    is_mpnet = config["tokenizer_class"] == MPNET_CLASS
    tokenizer_class = MpnetTokenizer if is_mpnet else WordPieceTokenizer
    if not any(path.with_name(name).is_file() for name in ("config.json", CONFIG_FILE)):
        return tokenizer_class.from_vocab(path, lowercase)
    plain = None
    if set(tokenizer_class.usual_tokens) <= set(entries):
        plain = tokenizer_class.from_vocab(path, lowercase)
    config = _with_usual_roles(config, tokenizer_class.usual_tokens)
    if is_mpnet and isinstance(config["mask_token"], str):
        config["mask_token"] = {"content": config["mask_token"], "lstrip": True}
    rules = json.loads(_wordpiece(_ids_of_file(path, entries, config), lowercase).to_str())
    unknown = content_of(config["unk_token"])
    rules["model"] |= {"unk_token": unknown, "max_input_chars_per_word": 100}  # theirs
    if is_mpnet:
        rules["post_processor"] = ROBERTA_PROCESSOR
    return _as_class_builds(path.parent, rules, config, plain)


def _is_lowercase(folder: Path, entries: Sequence[str], config: ReadOnlyJson) -> bool:
    """Whether text is lower-cased for a vocab.txt; ValueError where nothing says it."""
    lowercase = config.get("do_lower_case")
    if lowercase is not None:
        return bool(lowercase)
    if (folder / "bert_config.json").is_file():
        # Google's folders do not say it; a vocabulary of lower-cased text has no capital letter.
        words = [entry for entry in entries if not entry.startswith("[")]
        return all(word == word.lower() for word in words)
    raise ValueError(
        f"{folder} does not say whether its vocabulary is lower-cased: put do_lower_case into"
        " tokenizer_config.json"
    )


def _of_vocab_json(path: Path, config: ReadOnlyJson) -> Tokenizer:
    """RoBERTa's rules, with what tokenizer_config.json says of the space before a text."""
    prefix = bool(config.get("add_prefix_space"))
    plain = ByteBpeTokenizer.from_vocab(path.parent, False, prefix)
    config = _with_usual_roles(config, plain.usual_tokens)
    model = models.BPE(_ids_of_file(path, plain.vocabulary, config), plain.merges)
    rules = json.loads(_byte_bpe(model, False, prefix).to_str())
    rules["post_processor"] = {**ROBERTA_PROCESSOR, "add_prefix_space": prefix}
    return _as_class_builds(path.parent, rules, config, plain)


def _as_class_builds(
    folder: Path, rules: ReadOnlyJson, config: ReadOnlyJson, plain: VocabularyTokenizer | None
) -> Tokenizer:
    """The tokenizer that AutoTokenizer makes of a vocabulary and these rules.

    `plain` has the same vocabulary, and may have the same rules.
    """
    path = folder / TOKENIZER_FILE  # which is not there
    complete = settled(path, rules, config)
    released = None
    if plain is not None and complete["normalizer"] == rules["normalizer"]:
        is_plain = _roles_in(config) == list(plain.usual_tokens)
        released = plain.fingerprint if is_plain else None
    return Tokenizer(path, complete, config, released)


def _ids_of_file(path: Path, entries: Sequence[str], config: ReadOnlyJson) -> dict[str, int]:
    """Entry -> id; ValueError names the file where a role is no entry."""
    try:
        return ids_of(entries, _roles_in(config))
    except ValueError as error:
        raise ValueError(f"vocabulary file {path}: {error}") from None


def _roles_in(config: ReadOnlyJson) -> list[str]:
    """The names of the special tokens in a configuration that names them all."""
    return [content_of(config[f"{role}_token"]) for role in ROLES]


def _with_usual_roles(config: ReadOnlyJson, tokens: Sequence[str]) -> JsonObject:
    """tokenizer_config.json with the special tokens of the class where it names none."""
    complete = dict(config)
    # RoBERTa's classes have these beside the five.
    if "<s>" in tokens:
        complete = {"bos_token": "<s>", "eos_token": "</s>", **config}
    for role, token in zip(ROLES, tokens, strict=True):
        key = f"{role}_token"
        complete[key] = config.get(key) or token
    return complete


def _number_of_types(config: ReadOnlyJson) -> str:
    if reads_token_types(config):
        return "two"
    return "one"


def _is_writer_of(released: VocabularyTokenizer, path: Path, rules: ReadOnlyJson) -> bool:
    """Whether this very tokenizer wrote the file: then text never turns into a special token."""
    # transformers' tokenizers differ in these at the least, and the comparison of the whole takes a
    # while.
    model = rules["model"]
    longest_word = model.get("max_input_chars_per_word", MAX_WORD_CHARACTERS)
    if longest_word != MAX_WORD_CHARACTERS or model.get("end_of_word_suffix") is not None:
        return False
    for number in ("two", "one"):
        written = json.loads(released.with_token_types(number).rules())
        # An older version of the library may have spelt it otherwise.
        if written == rules or written == json.loads(open_library(path, rules).to_str()):
            return True
    return False


def _compare_vocabularies(folder: Path, model: ReadOnlyJson) -> None:
    """ValueError where a vocabulary beside tokenizer.json gives an id to another entry.

    Nobody could tell which of them was trained.
    """
    path = folder / "vocab.json"
    if model.get("type") == "WordPiece":
        path = folder / "vocab.txt"
    if not path.is_file() or not isinstance(model["vocab"], dict):
        return
    if path.suffix == ".json":
        beside = json_or_empty(path)
    else:
        lines = read_text(path, "one entry a line").removesuffix("\n").split("\n")
        beside = {line.removesuffix("\r"): number for number, line in enumerate(lines)}
    if beside == model["vocab"]:
        return
    names = {index: entry for entry, index in model["vocab"].items()}
    for entry, index in beside.items():
        if names.get(index, entry) != entry:
            raise ValueError(
                f"{path} has {entry!r} where {TOKENIZER_FILE} has {names[index]!r} (id {index});"
                f" AutoTokenizer reads {TOKENIZER_FILE} alone: take {path.name} away if that is"
                f" right, else make {TOKENIZER_FILE} anew"
            )


def _has(node: ReadOnlyJson, **values: object) -> bool:
    return all(node.get(key) == value for key, value in values.items())


def _entries_by_id(ids: Mapping[str, int]) -> list[str]:
    """Entries by their ids; ValueError where those are not 0, 1, 2, ..."""
    entries = sorted(ids, key=ids.__getitem__)
    if [ids[entry] for entry in entries] != list(range(len(entries))):
        raise ValueError(f"its ids are not 0 to {len(entries) - 1}")
    return entries


T = TypeVar("T")


def _or_none(
    cls: Callable[..., T], rules: ReadOnlyJson, *merges: object, **settings: object
) -> T | None:
    """A tokenizer of this class, or None where the vocabulary is not one of it."""
    try:
        return cls(_entries_by_id(rules["model"]["vocab"]), *merges, **settings)
    except Exception:  # the library's own is a bare one
        return None
