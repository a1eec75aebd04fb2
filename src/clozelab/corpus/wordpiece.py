"""WordPiece: training a vocabulary, and text to ids exactly as the released BERT tokenizer does it.

Unusual: training is deterministic. The library numbers the `##x` characters in hash-map order and breaks ties between
merges by those numbers, so two runs differ; here every character gets its number first (passed in as special tokens),
which leaves no tie open.

Known differences from the released code: characters that entered Unicode after the library's tables (2017), and
private-use characters, which the library removes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import WordPieceTrainer

from clozelab.corpus.encoding import (
    MIN_PIECE_COUNT,
    TEXTS_PER_BATCH,
    Tokenizer,
    json_or_empty,
    read_text,
    sha256_of,
    warn_of_fewer,
)

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_WORD_CHARACTERS = 200
"""A longer word is [UNK], as in the released code."""
CHARACTER_COVERAGE = 0.9999
"""Share of the text whose characters enter a trained vocabulary; scripts that are quoted once would only fill it."""

_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffd]")
"""BERT's cleaning removes them, but Python's split() takes some for spaces, and the library refuses surrogates."""


class WordPieceTokenizer(Tokenizer):
    """BERT's rules."""

    kind = "wordpiece"
    special_tokens = SPECIAL_TOKENS
    pair_separators = 1
    has_token_types = True
    _end_of_text = "\x01"  # cleaning removes it from texts

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, lowercase: bool) -> WordPieceTokenizer:
        """Learns a vocabulary of at most `vocab_size` entries; the same texts give the same vocabulary.

        All texts are held in memory: the caller bounds the sample. ValueError where the characters alone exceed
        vocab_size.
        """
        texts = [_CONTROLS.sub("", text) for text in texts]
        alphabet = _alphabet(texts, lowercase, vocab_size)
        library = _wordpiece({token: index for index, token in enumerate(SPECIAL_TOKENS)}, lowercase)
        trainer = WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=MIN_PIECE_COUNT,
            show_progress=False,
            special_tokens=[*SPECIAL_TOKENS, *alphabet],
            initial_alphabet=[token for token in alphabet if len(token) == 1],
            limit_alphabet=sum(len(token) == 1 for token in alphabet),
        )
        library.train_from_iterator(texts, trainer)
        ids = library.get_vocab(with_added_tokens=False)
        warn_of_fewer(len(ids), vocab_size)
        return cls(sorted(ids, key=ids.__getitem__), lowercase=lowercase)

    @classmethod
    def from_vocab(cls, path: str | Path, lowercase: bool) -> WordPieceTokenizer:
        """Reads a `vocab.txt` (one entry a line, the id is the line number); ValueError where it is not one."""
        text = read_text(Path(path), "one entry a line, as in BERT's vocab.txt")
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
        config = json_or_empty(folder / "tokenizer_config.json")
        library = json_or_empty(folder / "tokenizer.json")
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
    def fingerprint(self) -> str:
        return sha256_of([self.vocabulary, self.lowercase, MAX_WORD_CHARACTERS])

    def files(self) -> dict[str, bytes]:
        processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[("[CLS]", self.cls_id), ("[SEP]", self.sep_id)],
        )
        rules = {"do_lower_case": self.lowercase, "strip_accents": None, "tokenize_chinese_chars": True}
        exported = self._exported(self._rules(), processor, tokenizer_class="BertTokenizer", **rules)
        return {"vocab.txt": "".join(f"{token}\n" for token in self.vocabulary).encode(), **exported}

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
    model = models.WordPiece(
        ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARACTERS, continuing_subword_prefix="##"
    )
    library = Library(model)
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    return library


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
    splitter = pre_tokenizers.BertPreTokenizer()
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
    normalizer = _wordpiece({"[UNK]": 0}, lowercase).normalizer
    counts: dict[str, int] = {}
    for code in np.flatnonzero(raw):
        for char in "".join(normalizer.normalize_str(chr(code)).split()):
            counts[char] = counts.get(char, 0) + int(raw[code])
    return counts


def _is_cjk(char: str, lowercase: bool) -> bool:
    """Whether BERT makes this character a word by itself."""
    return " " in _wordpiece({"[UNK]": 0}, lowercase).normalizer.normalize_str(char)
