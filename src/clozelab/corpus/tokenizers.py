"""The two kinds of tokenizers, WordPiece and byte-level BPE: learning a vocabulary, and text to ids
as released.

These are for prepared corpora, and for folders without a tokenizer.json; other folders have rules
of their own (folder_tokenizer.py). `read_tokenizer` tells which it is.

Unusual: training is deterministic. The library numbers WordPiece's `##x` characters in hash-map
order and breaks ties between merges by those numbers; here every character gets its number first
(passed in as special tokens).

Known differences from BERT's released code: characters that entered Unicode after the library's
tables (2017), and private-use characters, which the library removes.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer, WordPieceTrainer

from clozelab.corpus.encoding import TEXTS_PER_BATCH, json_or_empty, read_text
from clozelab.corpus.encoding import Tokenizer as Tokenizer
from clozelab.corpus.folder_tokenizer import (
    BERT_RULES,
    FolderTokenizer,
    open_library,
    read_config,
    settled,
)
from clozelab.corpus.lines import SURROGATES

log = logging.getLogger(__name__)

TOKENIZER_FILE = "tokenizer.json"
# WordPiece's, as BERT's; byte-level BPE has RoBERTa's
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MIN_PIECE_COUNT = 2  # of an entry that is learnt
MAX_WORD_CHARACTERS = 200  # a longer word is [UNK], as in BERT's released code
# of the text, by the characters of a trained vocabulary; rare scripts would only fill it
CHARACTER_COVERAGE = 0.9999

_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffd]")
"""BERT's cleaning removes them, but Python's split() takes some for spaces, and the library refuses
surrogates.
"""
_CHUNK = re.compile(" ?[^ ]+")
# no cut before each space: byte-level BPE looks at runs of them
_ODD_SPACE = re.compile(r"[^\S ]|\u180e|\s\s|\s$")


class WordPieceTokenizer(Tokenizer):
    """BERT's rules."""

    kind = "wordpiece"
    special_tokens = SPECIAL_TOKENS
    smallest = len(SPECIAL_TOKENS) + 1
    pair_separators = 1
    has_token_types = can_have_token_types = True
    continuing = re.compile("##")
    _end_of_text = "\x01"  # cleaning removes it from texts

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, lowercase: bool) -> WordPieceTokenizer:
        """Learns at most `vocab_size` entries from texts in memory; ValueError where the characters
        alone are more.
        """
        texts = [_CONTROLS.sub("", text) for text in texts]
        alphabet = _alphabet(texts, lowercase, vocab_size)
        library = _wordpiece(
            {token: index for index, token in enumerate(SPECIAL_TOKENS)}, lowercase
        )
        characters = [token for token in alphabet if len(token) == 1]
        trainer = WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=MIN_PIECE_COUNT,
            show_progress=False,
            special_tokens=[*SPECIAL_TOKENS, *alphabet],
            initial_alphabet=characters,
            limit_alphabet=len(characters),
        )
        library.train_from_iterator(texts, trainer)
        ids = library.get_vocab(with_added_tokens=False)
        return cls(sorted(ids, key=ids.__getitem__), lowercase=lowercase)

    @classmethod
    def from_vocab(cls, path: str | Path, lowercase: bool) -> WordPieceTokenizer:
        """Reads a `vocab.txt` (one entry a line, the id is the line number); ValueError where it is
        not one.
        """
        # Only "\n" ends an entry: vocabularies hold other line separators as entries.
        lines = (
            read_text(Path(path), "one entry a line, as in BERT's vocab.txt")
            .removesuffix("\n")
            .split("\n")
        )
        try:
            return cls([line.strip() for line in lines], lowercase=lowercase)
        except ValueError as error:
            raise ValueError(f"vocabulary file {path}: {error}") from None

    @classmethod
    def of_rules(cls, rules: Mapping[str, Any]) -> WordPieceTokenizer | None:
        """The one with the vocabulary and the rules of a tokenizer.json; None where those are not
        BERT's."""
        model, normalizer, splitter = (
            rules.get(key) or {} for key in ("model", "normalizer", "pre_tokenizer")
        )
        if model.get("type") != "WordPiece" or model.get("continuing_subword_prefix") != "##":
            return None
        if normalizer.get("type") != "BertNormalizer" or splitter.get("type") != "BertPreTokenizer":
            return None
        lowercase, strips = normalizer.get("lowercase"), normalizer.get("strip_accents")
        if (
            lowercase is None
            or not normalizer.get("clean_text")
            or not normalizer.get("handle_chinese_chars")
        ):
            return None
        if strips is not None and strips != lowercase:
            return None
        return _or_none(cls, _listed(model["vocab"]), lowercase=lowercase)

    def files(self) -> dict[str, bytes]:
        processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair="[CLS]:0 $A:0 [SEP]:0 $B:{0} [SEP]:{0}".format(int(self.has_token_types)),
            special_tokens=[("[CLS]", self.cls_id), ("[SEP]", self.sep_id)],
        )
        rules: dict[str, Any] = {
            "do_lower_case": self.lowercase,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
        }
        rules |= (
            {} if self.has_token_types else {"model_input_names": ["input_ids", "attention_mask"]}
        )
        exported = self._exported(
            self._rules(), processor, tokenizer_class="BertTokenizer", **rules
        )
        return {
            "vocab.txt": "".join(f"{token}\n" for token in self.vocabulary).encode(),
            **exported,
        }

    def _identity(self) -> list[Any]:
        return [self.vocabulary, self.lowercase, MAX_WORD_CHARACTERS]

    def _rules(self) -> Library:
        return _wordpiece(self._ids, self.lowercase)

    def _aligned(self, texts: Sequence[str]) -> tuple[Library, list[str]]:
        return super()._aligned([_final_sigma(text) if self.lowercase else text for text in texts])

    def _words(self, texts: Sequence[str]) -> list[str]:
        together = "".join(texts)
        if _CONTROLS.search(together):
            texts = [_CONTROLS.sub("", text) for text in texts]
        if self.lowercase and "Σ" in together:
            texts = [_final_sigma(text) for text in texts]
        # One split and one join for the whole batch.
        return f" {self._end_of_text} ".join([*texts, ""]).split()


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
    """Capital sigma that ends a word to its final form, as Python's lower() in the released code;
    same length.
    """
    if "Σ" not in text:
        return text
    # "İ" alone grows when lower-cased; as "I" it is still a cased letter, which is all that counts
    # here. What BERT's cleaning removes must not end a word: a zero-width space does not.
    lowered = _CONTROLS.sub("\u200b", text.replace("İ", "I")).lower()
    return "".join(
        "ς" if char == "Σ" and low == "ς" else char for char, low in zip(text, lowered, strict=True)
    )


def _alphabet(texts: Sequence[str], lowercase: bool, vocab_size: int) -> list[str]:
    """Single characters and their `##` forms that a vocabulary learnt from `texts` starts with, in
    code-point order.
    """
    raw = np.zeros(0x110000, dtype=np.int64)
    for start in range(0, len(texts), TEXTS_PER_BATCH):
        block = "".join(texts[start : start + TEXTS_PER_BATCH])
        codes = np.frombuffer(block.encode("utf-32-le"), dtype="<u4").astype(np.int64)
        raw += np.bincount(codes, minlength=len(raw))
    rules = _wordpiece({"[UNK]": 0}, lowercase)
    counts: Counter[str] = Counter()  # of what BERT's normalisation makes of each character
    for code in np.flatnonzero(raw):
        for char in "".join(rules.normalizer.normalize_str(chr(code)).split()):
            counts[char] += int(raw[code])
    ranked = sorted(counts, key=lambda char: (-counts[char], char))
    covered = np.cumsum([counts[char] for char in ranked]) / max(1, counts.total())
    kept = ranked[: int(np.searchsorted(covered, CHARACTER_COVERAGE)) + 1]
    # At most half of the entries are single characters; plain ASCII is worth its few entries
    # however rare.
    kept = sorted({*kept[: vocab_size // 4], *(char for char in counts if char.isascii())})
    # A character that BERT makes a word by itself has no `##` form: punctuation, and Chinese ones.
    inside = [char for char in kept if len(rules.pre_tokenizer.pre_tokenize_str("a" + char)) == 1]
    inside = [char for char in inside if " " not in rules.normalizer.normalize_str(char)]
    alphabet = [*kept, *(f"##{char}" for char in inside)]
    if (needed := len(SPECIAL_TOKENS) + len(alphabet)) > vocab_size:
        what = "special tokens and single characters of this text"
        raise ValueError(
            f"vocab_size {vocab_size} is below the {needed} entries that {what} need; raise it"
        )
    return alphabet


class ByteBpeTokenizer(Tokenizer):
    """RoBERTa's rules and special ids: every text has ids, and the ids give the text back. A word
    is written with the space before it; `add_prefix_space` gives the first word of a text one, too,
    as RoBERTa's release does not."""

    kind = "byte_bpe"
    special_tokens = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
    smallest = len(special_tokens) + 256
    pair_separators = 2
    has_token_types = can_have_token_types = False
    continuing = re.compile("[^Ġ]")
    _end_of_text = ""  # a word has at least one character

    def __init__(
        self,
        vocabulary: Sequence[str],
        merges: Sequence[tuple[str, str]],
        *,
        lowercase: bool,
        add_prefix_space: bool,
    ) -> None:
        self.merges, self.add_prefix_space = (
            [(first, second) for first, second in merges],
            add_prefix_space,
        )
        super().__init__(vocabulary, lowercase=lowercase)
        self.undrawn_ids = tuple(sorted(self._ids[token] for token in self.special_tokens))

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int, lowercase: bool, add_prefix_space: bool
    ) -> ByteBpeTokenizer:
        """Learns at most `vocab_size` entries, from each line by itself; the same texts give the
        same ones.
        """
        pad, unknown, begin, separator, mask = cls.special_tokens
        library = _byte_bpe(models.BPE(), lowercase, add_prefix_space)
        trainer = BpeTrainer(
            vocab_size=vocab_size - 1,
            min_frequency=MIN_PIECE_COUNT,
            show_progress=False,
            special_tokens=[begin, pad, separator, unknown],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )
        lines = (SURROGATES.sub("\ufffd", line) for text in texts for line in text.split("\n"))
        library.train_from_iterator(lines, trainer)
        learnt = json.loads(library.to_str())["model"]
        vocabulary = [*sorted(learnt["vocab"], key=learnt["vocab"].__getitem__), mask]
        return cls(
            vocabulary, learnt["merges"], lowercase=lowercase, add_prefix_space=add_prefix_space
        )

    @classmethod
    def from_vocab(
        cls, path: str | Path, lowercase: bool, add_prefix_space: bool
    ) -> ByteBpeTokenizer:
        """Reads a folder's `vocab.json` (entry to id) and `merges.txt`; ValueError where they are
        not such files.
        """
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        entries = json.loads(
            read_text(folder / "vocab.json", "entries and their ids, as in RoBERTa's vocab.json")
        )
        lines = read_text(
            folder / "merges.txt", "two pieces a line, as in RoBERTa's merges.txt"
        ).split("\n")
        merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
        return cls._checked(folder, entries, merges, lowercase, add_prefix_space)

    @classmethod
    def of_rules(cls, rules: Mapping[str, Any]) -> ByteBpeTokenizer | None:
        """The one with the vocabulary and the rules of a tokenizer.json; None where those are not
        RoBERTa's."""
        model, normalizer, splitter = (
            rules.get(key) or {} for key in ("model", "normalizer", "pre_tokenizer")
        )
        if (
            model.get("type") != "BPE"
            or splitter.get("type") != "ByteLevel"
            or not splitter.get("use_regex", True)
        ):
            return None
        if normalizer.get("type") not in (None, "Lowercase"):
            return None
        merges = [
            tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair)
            for pair in model["merges"]
        ]
        prefix = splitter.get("add_prefix_space", True)
        vocabulary = _listed(model["vocab"])
        return _or_none(
            cls,
            vocabulary,
            merges,
            lowercase=bool(normalizer),
            add_prefix_space=prefix,
        )

    @classmethod
    def _checked(
        cls,
        folder: Path,
        entries: Mapping[str, int],
        merges: Sequence[Sequence[str]],
        lowercase: bool,
        prefix: bool,
    ) -> ByteBpeTokenizer:
        vocabulary = sorted(entries, key=entries.__getitem__)
        try:
            if [entries[token] for token in vocabulary] != list(range(len(vocabulary))):
                raise ValueError(f"its ids are not 0 to {len(vocabulary) - 1}")
            pairs = [(first, second) for first, second in merges]
            return cls(vocabulary, pairs, lowercase=lowercase, add_prefix_space=prefix)
        except Exception as error:  # the library's own is a bare one
            raise ValueError(
                f"the vocabulary in {folder} is not one of byte-level BPE: {error}"
            ) from None

    def files(self) -> dict[str, bytes]:
        prefix = self.add_prefix_space
        processor = processors.RobertaProcessing(
            ("</s>", self.sep_id), ("<s>", self.cls_id), add_prefix_space=prefix
        )
        rules = {"add_prefix_space": prefix, "bos_token": "<s>", "eos_token": "</s>"}
        # transformers' own class builds its rules anew, without a normaliser.
        name = "PreTrainedTokenizerFast" if self.lowercase else "RobertaTokenizer"
        merges = "".join(f"{first} {second}\n" for first, second in self.merges)
        return {
            "vocab.json": (json.dumps(self._ids, ensure_ascii=False) + "\n").encode(),
            "merges.txt": f"#version: 0.2\n{merges}".encode(),
            **self._exported(self._rules(prefix), processor, tokenizer_class=name, **rules),
        }

    def encode_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return self.encode_flat([_spaced(word) for word in words])

    def _identity(self) -> list[Any]:
        return [self.kind, self.vocabulary, self.merges, self.lowercase, self.add_prefix_space]

    def _rules(self, add_prefix_space: bool = False) -> Library:
        return _byte_bpe(models.BPE(self._ids, self.merges), self.lowercase, add_prefix_space)

    def _aligned(self, texts: Sequence[str]) -> tuple[Library, list[str]]:
        return self._rules(self.add_prefix_space), super()._aligned(texts)[1]

    def _words(self, texts: Sequence[str]) -> list[str]:
        words: list[str] = []
        for text in texts:
            text = SURROGATES.sub("\ufffd", _spaced(text) if self.add_prefix_space else text)
            words += [text] if text and _ODD_SPACE.search(text) else _CHUNK.findall(text)
            words.append(self._end_of_text)
        return words


def _byte_bpe(model: models.BPE, lowercase: bool, add_prefix_space: bool) -> Library:
    """RoBERTa's rules in the library's terms."""
    library = Library(model)
    library.normalizer = normalizers.Lowercase() if lowercase else None
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    library.post_processor = processors.ByteLevel(
        trim_offsets=True, add_prefix_space=add_prefix_space
    )
    library.decoder = decoders.ByteLevel()
    return library


def _spaced(text: str) -> str:
    return f" {text}" if text and text[0] != " " else text


KINDS: Mapping[str, Any] = {one.kind: one for one in (WordPieceTokenizer, ByteBpeTokenizer)}


@dataclass(frozen=True)
class TokenizerSettings:
    """What a corpus's tokenizer is to be; the keys of conf/tokenizer. `kind` is wordpiece or
    byte_bpe.
    """

    kind: str
    vocab_size: int
    lowercase: bool
    vocab_file: str | None = None
    """Instead of learning one: a vocab.txt, byte_bpe's folder (vocab.json, merges.txt), or any
    tokenizer.json."""
    add_prefix_space: bool | None = None  # of byte_bpe alone

    def __post_init__(self) -> None:
        if (self.kind == ByteBpeTokenizer.kind) != (self.add_prefix_space is not None):
            raise ValueError(
                f"tokenizer.add_prefix_space={self.add_prefix_space}: true or false for byte_bpe"
                " alone"
            )
        least = KINDS[self.kind].smallest
        if self.vocab_file is None and self.vocab_size < least:
            needs = f"{self.kind} needs {least} for special tokens and single characters"
            wanted = "give the number of entries to learn, some thousands"
            raise ValueError(f"tokenizer.vocab_size is {self.vocab_size}: {needs}; {wanted}")

    @property
    def _rules(self) -> dict[str, bool]:
        prefix = (
            {} if self.add_prefix_space is None else {"add_prefix_space": self.add_prefix_space}
        )
        return {"lowercase": self.lowercase, **prefix}

    def given(self, data_dir: str | Path) -> Tokenizer | None:
        """The tokenizer of `vocab_file`, a path that starts at data_dir; None where one is to be
        learnt.

        A tokenizer.json is taken as it is. ValueError where `lowercase` is not what it does.
        """
        if self.vocab_file is None:
            return None
        path = Path(data_dir, Path(self.vocab_file).expanduser())
        if path.name != TOKENIZER_FILE:
            tokenizer: Tokenizer = KINDS[self.kind].from_vocab(path, **self._rules)
            return tokenizer
        if not path.is_file():
            raise ValueError(
                f"vocabulary file {path} does not exist; expected a tokenizer of the tokenizers"
                " library"
            )
        own = read_tokenizer(path.parent)
        if own.lowercase != self.lowercase:
            does = "keeps capital letters"
            if own.lowercase:
                does = "lower-cases text"
            raise ValueError(
                f"tokenizer.lowercase={json.dumps(self.lowercase)}, and {path} {does}: "
                f"say tokenizer.lowercase={json.dumps(own.lowercase)}"
            )
        return own

    def learn(self, texts: Iterable[str]) -> Tokenizer:
        # the longest silence of a preparation
        log.info("learning a vocabulary of %d entries", self.vocab_size)
        learnt: Tokenizer = KINDS[self.kind].train(texts, self.vocab_size, **self._rules)
        if (size := learnt.vocab_size) < self.vocab_size:
            log.warning(
                "the text gives a vocabulary of %d entries, %d were asked for",
                size,
                self.vocab_size,
            )
        return learnt

    def identity(self, given: Tokenizer | None) -> dict[str, Any]:
        """What decides the ids, wherever the file lies."""
        size, vocabulary = (
            (given.vocab_size, given.fingerprint) if given else (self.vocab_size, None)
        )
        return {"kind": self.kind, "vocab_size": size, "vocabulary": vocabulary, **self._rules}


def read_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of a model's folder; ValueError where there is none that can be read.

    By `tokenizer.json` as it is, unless one of the two kinds here wrote it. Without that file by
    `vocab.txt`, or `vocab.json` and `merges.txt`, with BERT's or RoBERTa's rules and what
    tokenizer_config.json says."""
    folder = Path(folder)
    if (folder / TOKENIZER_FILE).is_file():
        return _of_tokenizer_json(folder)
    config = read_config(folder)
    if (folder / "vocab.txt").is_file():
        return _of_vocab_txt(folder, config)
    if (folder / "vocab.json").is_file():
        tokenizer: Tokenizer = ByteBpeTokenizer.from_vocab(
            folder,
            False,
            config.get("add_prefix_space", False),
        )
        return _with_more_tokens(folder, tokenizer, config)
    told = ""
    if models_of := sorted(folder.glob("*.model")):
        told = (
            f"; of {models_of[0].name} transformers makes one:"
            " AutoTokenizer.from_pretrained(F).save_pretrained(F)"
        )
    raise ValueError(
        f"{folder} holds no tokenizer: expected tokenizer.json, vocab.txt, or vocab.json with"
        f" merges.txt{told}"
    )


def _of_tokenizer_json(folder: Path) -> Tokenizer:
    place, config = folder / TOKENIZER_FILE, read_config(folder)
    content = json_or_empty(place)
    rules = settled(place, content, config)
    _compare_vocabularies(folder, rules["model"])
    released = WordPieceTokenizer.of_rules(rules) or ByteBpeTokenizer.of_rules(rules)
    if released is not None and _wrote(released, place, rules):
        return released.with_token_types(_number_of_types(config))
    return FolderTokenizer(place, rules, config, released.fingerprint if released else None)


def _of_vocab_txt(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """BERT's rules, or those with what tokenizer_config.json says of accents and Chinese
    characters."""
    lowercase = config.get("do_lower_case")
    if lowercase is None and (folder / "bert_config.json").is_file():
        # Google's folders do not say it; a vocabulary of lower-cased text has no capital letter.
        entries = read_text(folder / "vocab.txt", "one entry a line, as in BERT's vocab.txt").split(
            "\n",
        )
        lowercase = not any(
            entry != entry.lower() for entry in entries if not entry.startswith("[")
        )
    if lowercase is None:
        told = "put do_lower_case into tokenizer_config.json"
        raise ValueError(f"{folder} does not say whether its vocabulary is lower-cased: {told}")
    plain = WordPieceTokenizer.from_vocab(folder / "vocab.txt", bool(lowercase))
    plain = plain.with_token_types(_number_of_types(config))
    return _with_more_tokens(folder, plain, config)


def _with_more_tokens(folder: Path, plain: Tokenizer, config: Mapping[str, Any]) -> Tokenizer:
    """A tokenizer of a vocabulary alone; as AutoTokenizer makes it where there are added tokens or
    other rules."""
    place = folder / TOKENIZER_FILE  # which is not there
    written = json.loads(plain.files()[TOKENIZER_FILE])
    rules = settled(place, {**written, **_said_rules(written, config)}, config)
    before = {token["content"] for token in written["added_tokens"]}
    after = {token["content"] for token in rules["added_tokens"]}
    if before == after and rules["normalizer"] == written["normalizer"]:
        return plain
    if rules["model"]["type"] == "WordPiece":
        rules["model"] = {**rules["model"], "max_input_chars_per_word": 100}  # theirs
    return FolderTokenizer(place, rules, config, plain.fingerprint)


def _said_rules(written: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """BERT's normaliser with the rules that tokenizer_config.json names and BERT does not have."""
    normalizer = written["normalizer"] or {}
    if normalizer.get("type") != "BertNormalizer":
        return {}
    said = {
        ours: config[theirs]
        for theirs, ours in BERT_RULES.items()
        if config.get(theirs) is not None
    }
    return {"normalizer": {**normalizer, **said}}


def _number_of_types(config: Mapping[str, Any]) -> str:
    names = config.get("model_input_names") or ("token_type_ids",)
    if "token_type_ids" in names:
        return "two"
    return "one"


def _wrote(released: Tokenizer, place: Path, rules: Mapping[str, Any]) -> bool:
    """Whether this very tokenizer wrote the file: then text never turns into a special token."""
    # transformers' tokenizers differ in these at the least, and the comparison of the whole takes a
    # while.
    model = rules["model"]
    if (
        model["type"] == "WordPiece"
        and model.get("max_input_chars_per_word") != MAX_WORD_CHARACTERS
    ):
        return False
    if model["type"] == "BPE" and model.get("end_of_word_suffix") is not None:
        return False
    wrote = [
        json.loads(released.with_token_types(number).files()[TOKENIZER_FILE])
        for number in ("two", "one")
    ]
    if rules in wrote:
        return True
    # An older version of the library may have spelt it otherwise.
    return json.loads(open_library(place, rules).to_str()) in wrote


def _compare_vocabularies(folder: Path, model: Mapping[str, Any]) -> None:
    """ValueError where a vocabulary beside tokenizer.json gives an id to another entry: which one
    was trained?"""
    path = folder / ("vocab.txt" if model.get("type") == "WordPiece" else "vocab.json")
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


def _listed(ids: Mapping[str, int]) -> list[str] | None:
    """Entries by their ids, if those are 0, 1, 2, ..."""
    entries = sorted(ids, key=ids.__getitem__)
    if [ids[entry] for entry in entries] == list(range(len(entries))):
        return entries
    return None


def _or_none(kind: Any, vocabulary: list[str] | None, *rules: Any, **more: Any) -> Any:
    """A tokenizer of this kind, or None where its vocabulary is not one."""
    if vocabulary is None:
        return None
    try:
        return kind(vocabulary, *rules, **more)
    except Exception:  # the library's own is a bare one
        return None
