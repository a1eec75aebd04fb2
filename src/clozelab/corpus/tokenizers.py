"""WordPiece: training a vocabulary, and text to ids exactly as the released BERT tokenizer does it.

Unusual:
- Encoding looks whitespace-separated words up in a cache and asks the `tokenizers` library for unseen ones only. BERT
  splits at whitespace before anything else, so the result is the library's, at three times its speed.
- Training is deterministic. The library numbers the `##x` characters in hash-map order and breaks ties between merges
  by those numbers, so two runs differ; here every character gets its number first (passed in as special tokens), which
  leaves no tie open.
- Text never turns into a special token: "[MASK]" in a document is three words. Only the exported `tokenizer.json`
  knows them.

Known differences from the released code: characters that entered Unicode after the library's tables (2017), and
private-use characters, which the library removes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordPieceTrainer

log = logging.getLogger(__name__)

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_WORD_CHARACTERS = 200
"""A longer word is [UNK], as in the released code."""
CHARACTER_COVERAGE = 0.9999
"""Share of the text whose characters enter a trained vocabulary; scripts that are quoted once would only fill it."""
MIN_WORD_PIECE_COUNT = 2
CACHED_CHARACTERS = 4_000_000
"""Characters of cached words, about 100 MB; then the cache starts again (frequent words are back within a batch)."""
TEXTS_PER_BATCH = 8192
WORDS_PER_CALL = 512

_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffd]")
"""BERT's cleaning removes them, but Python's split() takes some for spaces, and the library refuses surrogates."""
_END_OF_TEXT = "\x01"


class WordPieceTokenizer:
    """A vocabulary and BERT's rules. Ids never include special tokens unless the caller adds them."""

    def __init__(self, vocabulary: Sequence[str], *, lowercase: bool) -> None:
        self.vocabulary = tuple(vocabulary)
        self.lowercase = lowercase
        ids = _check_vocabulary(self.vocabulary)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[token] for token in SPECIAL_TOKENS)
        self._library = _library_tokenizer(ids, lowercase)
        self._cache: dict[str, bytes] = {}
        self._cached_characters = 0

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, lowercase: bool) -> WordPieceTokenizer:
        """Learns a vocabulary of at most `vocab_size` entries; the same texts give the same vocabulary.

        All texts are held in memory: the caller bounds the sample. ValueError where the characters alone exceed
        vocab_size.
        """
        texts = [_CONTROLS.sub("", text) for text in texts]
        alphabet = _alphabet(texts, lowercase, vocab_size)
        library = _library_tokenizer({token: index for index, token in enumerate(SPECIAL_TOKENS)}, lowercase)
        trainer = WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=MIN_WORD_PIECE_COUNT,
            show_progress=False,
            special_tokens=[*SPECIAL_TOKENS, *alphabet],
            initial_alphabet=[token for token in alphabet if len(token) == 1],
            limit_alphabet=sum(len(token) == 1 for token in alphabet),
        )
        library.train_from_iterator(texts, trainer)
        ids = library.get_vocab(with_added_tokens=False)
        if len(ids) < vocab_size:
            log.warning("the text gives a vocabulary of %d entries, %d were asked for", len(ids), vocab_size)
        return cls(sorted(ids, key=ids.__getitem__), lowercase=lowercase)

    @classmethod
    def from_vocab(cls, path: str | Path, lowercase: bool) -> WordPieceTokenizer:
        """Reads a `vocab.txt` (one entry a line, the id is the line number); ValueError where it is not one."""
        path = Path(path)
        if not path.is_file():
            raise ValueError(
                f"vocabulary file {path} does not exist; expected one entry a line, as in BERT's vocab.txt"
            )
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"vocabulary file {path} is not UTF-8 text: {error}") from None
        # Only "\n" ends an entry: vocabularies hold other line separators as entries.
        lines = text.removesuffix("\n").split("\n")
        try:
            return cls([line.strip() for line in lines], lowercase=lowercase)
        except ValueError as error:
            raise ValueError(f"vocabulary file {path}: {error}") from None

    @classmethod
    def from_folder(cls, folder: str | Path) -> WordPieceTokenizer:
        """Reads the tokenizer of a BERT folder: `vocab.txt` with `tokenizer_config.json`, or `tokenizer.json` alone.

        Case comes from `do_lower_case`, else from `tokenizer.json`'s normalizer; ValueError where neither says, and
        where the folder has other rules than BERT's for accents and Chinese characters.
        """
        folder = Path(folder)
        config = _json_or_empty(folder / "tokenizer_config.json")
        library = _json_or_empty(folder / "tokenizer.json")
        normalizer = library.get("normalizer") or {}
        lowercase = config.get("do_lower_case", normalizer.get("lowercase"))
        _check_rules(folder / "tokenizer_config.json", config, "tokenize_chinese_chars", lowercase)
        _check_rules(folder / "tokenizer.json", normalizer, "handle_chinese_chars", lowercase)
        if (folder / "vocab.txt").is_file():
            if lowercase is None:
                raise ValueError(
                    f"{folder} does not say whether its vocabulary is lower-cased: put do_lower_case into "
                    "tokenizer_config.json"
                )
            return cls.from_vocab(folder / "vocab.txt", bool(lowercase))
        model = library.get("model", {})
        if model.get("type") != "WordPiece" or lowercase is None:
            raise ValueError(
                f"{folder} holds no WordPiece tokenizer: expected vocab.txt, or tokenizer.json of a BERT model"
            )
        return cls(sorted(model["vocab"], key=model["vocab"].__getitem__), lowercase=bool(lowercase))

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    @property
    def fingerprint(self) -> str:
        """sha256 over vocabulary and rules: equal fingerprints give equal ids."""
        rules = json.dumps([self.vocabulary, self.lowercase, MAX_WORD_CHARACTERS], ensure_ascii=False)
        return hashlib.sha256(rules.encode("utf-8", "surrogatepass")).hexdigest()

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts one after the other, int32 [T], and each text's number of ids, int64 [len(texts)]."""
        batches = [self._encode(texts[i : i + TEXTS_PER_BATCH]) for i in range(0, len(texts), TEXTS_PER_BATCH)]
        if not batches:
            return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
        ids, lengths = zip(*batches, strict=True)
        return np.concatenate(ids), np.concatenate(lengths)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, int32 [n]."""
        ids, lengths = self.encode_flat(texts)
        return np.split(ids, np.cumsum(lengths)[:-1]) if len(texts) else []

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Ids int32 [n] of each text and their character ranges in it, int64 [n, 2] (start, end)."""
        # A surrogate is replaced, not removed: the ranges are positions in the text as given.
        cleaned = [
            re.sub("[\ud800-\udfff]", "\ufffd", _final_sigma(text) if self.lowercase else text) for text in texts
        ]
        encodings = self._library.encode_batch(cleaned, add_special_tokens=False)
        return [
            (np.array(encoding.ids, dtype=np.int32), np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2))
            for encoding in encodings
        ]

    def tokenize(self, text: str) -> list[str]:
        ids, _ = self.encode_flat([text])
        return [self.vocabulary[index] for index in ids]

    def files(self) -> dict[str, bytes]:
        """The files by which `transformers` loads this tokenizer (`AutoTokenizer.from_pretrained(folder)`)."""
        config = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.lowercase,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            "model_max_length": 512,
            **{f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS},
        }
        return {
            "vocab.txt": "".join(f"{token}\n" for token in self.vocabulary).encode(),
            "tokenizer.json": (self._exported().to_str(pretty=True) + "\n").encode(),
            "tokenizer_config.json": (json.dumps(config, indent=2) + "\n").encode(),
        }

    def _exported(self) -> Tokenizer:
        library = _library_tokenizer({token: index for index, token in enumerate(self.vocabulary)}, self.lowercase)
        library.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
        library.decoder = WordPieceDecoder(prefix="##")
        library.post_processor = TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[("[CLS]", self.cls_id), ("[SEP]", self.sep_id)],
        )
        return library

    def _encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        together = "".join(texts)
        if _CONTROLS.search(together):
            texts = [_CONTROLS.sub("", text) for text in texts]
        if self.lowercase and "Σ" in together:
            texts = [_final_sigma(text) for text in texts]
        # One split and one join for the whole batch: a word that no text can hold marks where a text ends.
        words = f" {_END_OF_TEXT} ".join([*texts, ""]).split()
        self._learn(words)
        ids = np.frombuffer(bytearray().join(map(self._cache.__getitem__, words)), dtype=np.int32)
        ends = np.flatnonzero(ids < 0)
        lengths = np.diff(ends, prepend=-1) - 1
        return ids[ids >= 0], lengths

    def _learn(self, words: list[str]) -> None:
        """Brings every word of a batch into the cache."""
        if self._cached_characters > CACHED_CHARACTERS:
            self._cache, self._cached_characters = {}, 0
        self._cache[_END_OF_TEXT] = np.int32(-1).tobytes()
        missing = list(set(words).difference(self._cache))
        calls = [missing[i : i + WORDS_PER_CALL] for i in range(0, len(missing), WORDS_PER_CALL)]
        encodings = self._library.encode_batch(calls, is_pretokenized=True, add_special_tokens=False)
        for call, encoding in zip(calls, encodings, strict=True):
            data = np.array(encoding.ids, dtype=np.int32).tobytes()
            counts = np.bincount(np.array(encoding.word_ids, dtype=np.int64), minlength=len(call))
            ends = (4 * np.cumsum(counts)).tolist()
            for word, start, end in zip(call, [0, *ends], ends, strict=False):
                self._cache[word] = data[start:end]
        self._cached_characters += sum(map(len, missing))


def _library_tokenizer(ids: dict[str, int], lowercase: bool) -> Tokenizer:
    """BERT's rules in the library's terms, without special tokens in text."""
    model = WordPiece(
        ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARACTERS, continuing_subword_prefix="##"
    )
    library = Tokenizer(model)
    library.normalizer = BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )
    library.pre_tokenizer = BertPreTokenizer()
    return library


def _check_vocabulary(vocabulary: Sequence[str]) -> dict[str, int]:
    ids = {token: index for index, token in enumerate(vocabulary)}
    missing = [token for token in SPECIAL_TOKENS if token not in ids]
    if missing:
        raise ValueError(f"the vocabulary of {len(vocabulary)} entries lacks {', '.join(missing)}")
    if len(ids) != len(vocabulary):
        double = next(token for index, token in enumerate(vocabulary) if ids[token] != index)
        raise ValueError(f"entry {double!r} stands twice in the vocabulary, so ids would be ambiguous")
    if "" in ids:
        raise ValueError(f"entry {ids['']} of the vocabulary is empty")
    return ids


def _check_rules(path: Path, rules: Mapping[str, Any], chinese: str, lowercase: bool | None) -> None:
    """Refuse what this tokenizer would silently do otherwise: its model was trained on other ids."""
    accents = rules.get("strip_accents")
    if accents is not None and lowercase is not None and bool(accents) != bool(lowercase):
        raise ValueError(
            f"{path} says strip_accents={json.dumps(accents)} and lower case {json.dumps(bool(lowercase))}: here, as in"
            " the released BERT, accents are stripped with lower case and only then, so this model would read other"
            " tokens than it was trained on"
        )
    if rules.get(chinese) is False:
        raise ValueError(
            f"{path} says {chinese}=false: here every Chinese character is a word, as in the released BERT, so this"
            " model would read other tokens than it was trained on"
        )


def _json_or_empty(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None


def _final_sigma(text: str) -> str:
    """Capital sigma that ends a word to its final form, as Python's lower() in the released code; same length."""
    if "Σ" not in text:
        return text
    # "İ" alone grows when lower-cased; as "I" it is still a cased letter, which is all that counts here. What BERT's
    # cleaning removes must not end a word: a zero-width space does not.
    lowered = _CONTROLS.sub("\u200b", text.replace("İ", "I")).lower()
    return "".join("ς" if char == "Σ" and low == "ς" else char for char, low in zip(text, lowered, strict=True))


def _alphabet(texts: Sequence[str], lowercase: bool, vocab_size: int) -> list[str]:
    """Single characters and their `##` forms that a vocabulary learnt from `texts` starts with, in code-point order."""
    counts = _character_counts(texts, lowercase)
    ranked = sorted(counts, key=lambda char: (-counts[char], char))
    covered = np.cumsum([counts[char] for char in ranked]) / max(1, sum(counts.values()))
    kept = ranked[: int(np.searchsorted(covered, CHARACTER_COVERAGE)) + 1]
    # At most half of the entries are single characters; plain ASCII is worth its few entries however rare.
    kept = sorted({*kept[: vocab_size // 4], *(char for char in counts if char.isascii())})
    splitter = BertPreTokenizer()
    inside = [char for char in kept if len(splitter.pre_tokenize_str("a" + char)) == 1 and not _is_cjk(char, lowercase)]
    alphabet = [*kept, *(f"##{char}" for char in inside)]
    if len(SPECIAL_TOKENS) + len(alphabet) > vocab_size:
        raise ValueError(
            f"vocab_size {vocab_size} is below the {len(SPECIAL_TOKENS) + len(alphabet)} entries that special tokens "
            "and single characters of this text need; raise it"
        )
    return alphabet


def _character_counts(texts: Sequence[str], lowercase: bool) -> dict[str, int]:
    """How often each non-space character occurs after BERT's normalisation."""
    raw = np.zeros(0x110000, dtype=np.int64)
    for start in range(0, len(texts), TEXTS_PER_BATCH):
        block = "".join(texts[start : start + TEXTS_PER_BATCH])
        codes = np.frombuffer(block.encode("utf-32-le"), dtype="<u4").astype(np.int64)
        raw += np.bincount(codes, minlength=len(raw))
    normalizer = _library_tokenizer({"[UNK]": 0}, lowercase).normalizer
    counts: dict[str, int] = {}
    for code in np.flatnonzero(raw):
        for char in "".join(normalizer.normalize_str(chr(code)).split()):
            counts[char] = counts.get(char, 0) + int(raw[code])
    return counts


def _is_cjk(char: str, lowercase: bool) -> bool:
    """Whether BERT makes this character a word by itself."""
    return " " in _library_tokenizer({"[UNK]": 0}, lowercase).normalizer.normalize_str(char)
