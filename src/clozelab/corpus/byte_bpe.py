"""Byte-level BPE: training a vocabulary, and text to ids exactly as the released RoBERTa tokenizer does it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

from clozelab.corpus.encoding import (
    MIN_PIECE_COUNT,
    SURROGATES,
    Tokenizer,
    json_or_empty,
    read_text,
    sha256_of,
    warn_of_fewer,
)

SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
"""The ids of a trained vocabulary are RoBERTa's: <s> 0, <pad> 1, </s> 2, <unk> 3, <mask> the last."""

_CHUNK = re.compile(" ?[^ ]+")
_ODD_SPACE = re.compile(r"[^\S ]|\u180e|\s\s|\s$")
"""Where a text cannot be cut before every space: byte-level BPE looks at runs of whitespace."""


class ByteBpeTokenizer(Tokenizer):
    """RoBERTa's rules: every text has ids, and the ids give the text back.

    A word is written with the space before it. `add_prefix_space` gives the first word of a text one, too, so that it
    is the same word wherever it stands; RoBERTa's release has none there.
    """

    kind = "byte_bpe"
    special_tokens = SPECIAL_TOKENS
    pair_separators = 2
    has_token_types = False
    _end_of_text = ""  # a word has at least one character
    SMALLEST = len(SPECIAL_TOKENS) + 256
    """Entries: the special tokens and every byte."""

    def __init__(
        self, vocabulary: Sequence[str], merges: Sequence[tuple[str, str]], *, lowercase: bool, add_prefix_space: bool
    ) -> None:
        self.merges, self.add_prefix_space = [(first, second) for first, second in merges], add_prefix_space
        super().__init__(vocabulary, lowercase=lowercase)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, lowercase: bool, add_prefix_space: bool) -> ByteBpeTokenizer:
        """Learns a vocabulary of at most `vocab_size` entries; the same texts give the same one.

        Each line of a text is one for itself. ValueError where bytes and special tokens alone exceed vocab_size.
        """
        pad, unknown, begin, separator, mask = SPECIAL_TOKENS
        library = Library(models.BPE())
        library.normalizer = normalizers.Lowercase() if lowercase else None
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
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
        warn_of_fewer(len(vocabulary), vocab_size)
        return cls(vocabulary, learnt["merges"], lowercase=lowercase, add_prefix_space=add_prefix_space)

    @classmethod
    def from_vocab(cls, path: str | Path, lowercase: bool, add_prefix_space: bool) -> ByteBpeTokenizer:
        """Reads a folder's `vocab.json` (entry to id) and `merges.txt`; ValueError where they are not such files."""
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        entries = json.loads(read_text(folder / "vocab.json", "entries and their ids, as in RoBERTa's vocab.json"))
        lines = read_text(folder / "merges.txt", "two pieces a line, as in RoBERTa's merges.txt").split("\n")
        merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
        return cls._checked(folder, entries, merges, lowercase, add_prefix_space)

    @classmethod
    def from_folder(cls, folder: str | Path) -> ByteBpeTokenizer:
        """Reads the tokenizer of a RoBERTa folder: `tokenizer.json`, or `vocab.json` with `merges.txt`.

        ValueError where it has other rules than RoBERTa's: this model would read other tokens than it was trained on.
        """
        folder = Path(folder)
        library = json_or_empty(folder / "tokenizer.json")
        prefix = json_or_empty(folder / "tokenizer_config.json").get("add_prefix_space", False)
        if not library:
            return cls.from_vocab(folder, False, prefix)
        model, splitter, normalizer = (library.get(key) or {} for key in ("model", "pre_tokenizer", "normalizer"))
        if model.get("type") != "BPE" or splitter.get("type") != "ByteLevel" or not splitter.get("use_regex", True):
            raise ValueError(f"{folder / 'tokenizer.json'} is no byte-level BPE tokenizer as RoBERTa's")
        if normalizer.get("type") not in (None, "Lowercase"):
            raise ValueError(
                f"{folder / 'tokenizer.json'} normalises text ({normalizer['type']}); RoBERTa's does not, and lower "
                "case is the only other rule known here"
            )
        entries = model["vocab"] | {token["content"]: token["id"] for token in library.get("added_tokens", ())}
        merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        return cls._checked(folder, entries, merges, bool(normalizer), splitter["add_prefix_space"])

    @classmethod
    def _checked(
        cls, folder: Path, entries: Mapping[str, int], merges: Sequence[Sequence[str]], lowercase: bool, prefix: bool
    ) -> ByteBpeTokenizer:
        vocabulary = sorted(entries, key=entries.__getitem__)
        try:
            if [entries[token] for token in vocabulary] != list(range(len(vocabulary))):
                raise ValueError(f"its ids are not 0 to {len(vocabulary) - 1}")
            pairs = [(first, second) for first, second in merges]
            return cls(vocabulary, pairs, lowercase=lowercase, add_prefix_space=prefix)
        except Exception as error:  # the library's own is a bare one
            raise ValueError(f"the vocabulary in {folder} is not one of byte-level BPE: {error}") from None

    @property
    def undrawn_ids(self) -> tuple[int, ...]:
        return tuple(sorted(self._ids[token] for token in self.special_tokens))

    @property
    def fingerprint(self) -> str:
        return sha256_of([self.kind, self.vocabulary, self.merges, self.lowercase, self.add_prefix_space])

    def files(self) -> dict[str, bytes]:
        processor = processors.RobertaProcessing(
            ("</s>", self.sep_id), ("<s>", self.cls_id), add_prefix_space=self.add_prefix_space
        )
        rules = {"add_prefix_space": self.add_prefix_space, "bos_token": "<s>", "eos_token": "</s>"}
        # transformers' own class builds its rules anew, without a normaliser.
        name = "PreTrainedTokenizerFast" if self.lowercase else "RobertaTokenizer"
        merges = "".join(f"{first} {second}\n" for first, second in self.merges)
        library = self._rules(self.add_prefix_space)
        return {
            "vocab.json": (json.dumps(self._ids, ensure_ascii=False) + "\n").encode(),
            "merges.txt": f"#version: 0.2\n{merges}".encode(),
            **self._exported(library, processor, tokenizer_class=name, **rules),
        }

    def encode_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return self.encode_flat([_spaced(word) for word in words])

    def _rules(self, add_prefix_space: bool = False) -> Library:
        library = Library(models.BPE(self._ids, self.merges))
        library.normalizer = normalizers.Lowercase() if self.lowercase else None
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
        library.post_processor = processors.ByteLevel(trim_offsets=True, add_prefix_space=add_prefix_space)
        library.decoder = decoders.ByteLevel()
        return library

    def _aligned(self, texts: Sequence[str]) -> tuple[Library, list[str]]:
        return self._rules(self.add_prefix_space), super()._aligned(texts)[1]

    def _words(self, texts: Sequence[str]) -> list[str]:
        words: list[str] = []
        for text in texts:
            text = SURROGATES.sub("\ufffd", _spaced(text) if self.add_prefix_space else text)
            words += [text] if text and _ODD_SPACE.search(text) else _CHUNK.findall(text)
            words.append(self._end_of_text)
        return words


def _spaced(text: str) -> str:
    return f" {text}" if text and text[0] != " " else text
