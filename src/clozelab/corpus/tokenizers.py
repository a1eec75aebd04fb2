"""The tokenizer of a corpus and of a model's folder, of whichever kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clozelab.corpus.byte_bpe import ByteBpeTokenizer
from clozelab.corpus.encoding import Tokenizer, json_or_empty
from clozelab.corpus.wordpiece import SPECIAL_TOKENS, WordPieceTokenizer

__all__ = (
    "SPECIAL_TOKENS",
    "ByteBpeTokenizer",
    "Tokenizer",
    "TokenizerSettings",
    "WordPieceTokenizer",
    "read_tokenizer",
)

KINDS: dict[str, type[Tokenizer]] = {one.kind: one for one in (WordPieceTokenizer, ByteBpeTokenizer)}


@dataclass(frozen=True)
class TokenizerSettings:
    """What a corpus's tokenizer is to be: conf/tokenizer."""

    kind: str
    """wordpiece | byte_bpe."""
    vocab_size: int
    """Entries to learn, at most."""
    lowercase: bool
    """Lower-case the text; of WordPiece strip accents, too, as BERT's uncased models."""
    vocab_file: str | None = None
    """A vocabulary to use instead of learning one: a vocab.txt; of byte_bpe a folder with vocab.json and merges.txt."""
    add_prefix_space: bool | None = None
    """Of byte_bpe: whether the first word of a text has a space before it, as the others have."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"tokenizer.kind={self.kind!r} is unknown; known: {', '.join(KINDS)}")
        if (self.kind == ByteBpeTokenizer.kind) != (self.add_prefix_space is not None):
            raise ValueError(f"tokenizer.add_prefix_space={self.add_prefix_space}: true or false for byte_bpe alone")
        least = ByteBpeTokenizer.SMALLEST if self.kind == ByteBpeTokenizer.kind else len(SPECIAL_TOKENS) + 1
        if self.vocab_file is None and self.vocab_size < least:
            raise ValueError(
                f"tokenizer.vocab_size is {self.vocab_size}: {self.kind} needs {least} for special tokens and single "
                "characters; give the number of entries to learn, some thousands"
            )

    @property
    def _rules(self) -> dict[str, bool]:
        prefix = {} if self.add_prefix_space is None else {"add_prefix_space": self.add_prefix_space}
        return {"lowercase": self.lowercase, **prefix}

    def given(self, data_dir: str | Path) -> Tokenizer | None:
        """The tokenizer of `vocab_file`, a path that starts at data_dir; None where one is to be learnt."""
        if self.vocab_file is None:
            return None
        path = Path(data_dir, Path(self.vocab_file).expanduser())
        if self.kind == WordPieceTokenizer.kind:
            return WordPieceTokenizer.from_vocab(path, **self._rules)
        return ByteBpeTokenizer.from_vocab(path, **self._rules)

    def learn(self, texts: Iterable[str]) -> Tokenizer:
        """A tokenizer learnt from texts."""
        if self.kind == WordPieceTokenizer.kind:
            return WordPieceTokenizer.train(texts, self.vocab_size, **self._rules)
        return ByteBpeTokenizer.train(texts, self.vocab_size, **self._rules)

    def identity(self, given: Tokenizer | None) -> dict[str, Any]:
        """What decides the ids, wherever the file lies."""
        size = self.vocab_size if given is None else given.vocab_size
        vocabulary = None if given is None else given.fingerprint
        return {"kind": self.kind, "vocab_size": size, "vocabulary": vocabulary, **self._rules}


def read_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of a model's folder, of whichever kind; ValueError where it is of none, or has other rules."""
    folder = Path(folder)
    model = (json_or_empty(folder / "tokenizer.json").get("model") or {}).get("type")
    if (folder / "vocab.txt").is_file() or model == "WordPiece":
        return WordPieceTokenizer.from_folder(folder)
    if (folder / "vocab.json").is_file() or model == "BPE":
        return ByteBpeTokenizer.from_folder(folder)
    raise ValueError(
        f"{folder} holds no WordPiece tokenizer and no byte-level BPE: expected vocab.txt, vocab.json with merges.txt, "
        "or tokenizer.json of such a model" + (f"; its tokenizer.json is {model}" if model else "")
    )
