"""What a corpus's tokenizer is to be: one that a file holds, or one that is learnt."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from clozelab.corpus.encoding import Tokenizer
from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.paths import resolve_path
from clozelab.corpus.simple_tokenizers import BytesTokenizer, WhitespaceTokenizer
from clozelab.corpus.tokenizer_files import TOKENIZER_FILE
from clozelab.corpus.tokenizers import ByteBpeTokenizer, MpnetTokenizer, WordPieceTokenizer
from clozelab.corpus.unigram import CharacterTokenizer, UnigramTokenizer
from clozelab.text.plain import PlainDict, ReadOnlyJson

log = logging.getLogger(__name__)

KINDS: ReadOnlyJson = {
    WordPieceTokenizer.kind: WordPieceTokenizer,
    MpnetTokenizer.kind: MpnetTokenizer,
    ByteBpeTokenizer.kind: ByteBpeTokenizer,
    BytesTokenizer.kind: BytesTokenizer,
    UnigramTokenizer.kind: UnigramTokenizer,
    CharacterTokenizer.kind: CharacterTokenizer,
    WhitespaceTokenizer.kind: WhitespaceTokenizer,
}
# of the text that a vocabulary is learnt from; frequencies are settled long before
SAMPLE_CHARACTERS = 64_000_000


@dataclass(frozen=True)
class TokenizerSettings:
    """What a corpus's tokenizer is to be; the keys of conf/tokenizer.

    `kind` is one of KINDS.
    """

    kind: str
    vocab_size: int
    lowercase: bool
    vocab_file: str | None = None
    """Instead of learning one.

    It is a vocab.txt, byte_bpe's folder (vocab.json, merges.txt), or any tokenizer.json.
    """
    add_prefix_space: bool | None = None  # of byte_bpe and bytes alone
    sample_characters: int | None = SAMPLE_CHARACTERS
    """Of the text, chosen by a hash, that a vocabulary is learnt from; None: all of it."""

    def __post_init__(self) -> None:
        has_bytes = issubclass(KINDS[self.kind], ByteBpeTokenizer)
        if has_bytes != (self.add_prefix_space is not None):
            raise ValueError(
                f"tokenizer.add_prefix_space={json.dumps(self.add_prefix_space)}: say true or false"
                " for byte_bpe and bytes, and nothing for other kinds"
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
        """Learn a vocabulary from a sample; ValueError where it was too small to have a text."""
        remaining = iter(texts)
        first = next(remaining, None)
        if first is None:
            raise ValueError(
                f"tokenizer.sample_characters={self.sample_characters} leaves no text to learn a"
                " vocabulary from: it is drawn in blocks of some 32 sentences, so give thousands,"
                " or null for all of the text"
            )
        # the longest silence of a preparation
        log.info("learning a vocabulary of %d entries", self.vocab_size)
        tokenizer: Tokenizer = KINDS[self.kind].train(
            chain([first], remaining), self.vocab_size, **self._rules
        )
        if tokenizer.vocab_size < self.vocab_size:
            log.warning(
                "the text gives a vocabulary of %d entries, %d were asked for",
                tokenizer.vocab_size,
                self.vocab_size,
            )
        return tokenizer

    def identity(self, given: Tokenizer | None) -> PlainDict:
        """What decides the ids and the token types, wherever the file lies."""
        size = self.vocab_size
        vocabulary = None
        if given:
            size = given.vocab_size
            vocabulary = given.fingerprint
        # Folders of older versions are named without these.
        further: PlainDict = {}
        if given is None and self.sample_characters != SAMPLE_CHARACTERS:
            further["sample_characters"] = self.sample_characters
        if given and given.can_have_token_types and not given.has_token_types:
            further["token_types"] = "one"
        return {
            "kind": self.kind,
            "vocab_size": size,
            "vocabulary": vocabulary,
            **self._rules,
            **further,
        }
