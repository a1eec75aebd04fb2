"""Another vocabulary for an encoder: entries for words, and the old pieces of each new entry.

    words = useful_words(tokenizer, Counter({"carcinoma": 12, "the": 90}), 1000)
    longer = with_entries(tokenizer, entries_of(tokenizer, words))   # "carcinoma" is one token
    old_pieces(longer, tokenizer)[-1]           # the old ids of "car", "##cino", "##ma"

An entry is what the model reads of a word, such as byte-level BPE's "Ġcarcinoma". BPE takes it
where a word is nothing else, so all other words keep their tokens. WordPiece, which takes the
longest beginning, also takes it where a word begins with it: "carcinomas" is "carcinoma ##s". So
does Unigram, where it would have cut the word there before.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from clozelab.corpus.encoding import Tokenizer
from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.steps.step import Document
from clozelab.corpus.tokenizer_classes import GENERIC_FAST
from clozelab.corpus.tokenizer_files import CONFIG_FILE, TOKENIZER_FILE, json_bytes, read_text
from clozelab.corpus.unigram import SPACE
from clozelab.text.words import JOINERS, runs_of

MODELS = ("WordPiece", "BPE", "Unigram", "WordLevel")  # that take further entries
MIN_WORD_COUNT = 2  # of a word that gets an entry
# Unigram takes a new piece, since its score is so much above the sum of its old pieces' scores.
UNIGRAM_MARGIN = 1e-3
UNIGRAM_UNKNOWN = 10.0  # an unknown character's score is so far below the lowest


def count_words(documents: Iterable[Document]) -> Counter[str]:
    """Runs of letters with their marks, as they are written."""
    counts: Counter[str] = Counter()
    for document in documents:
        counts.update(word_pattern().findall("\n".join(document.lines)))
    return counts


@cache
def word_pattern() -> re.Pattern[str]:
    return re.compile(runs_of(r"[^\W\d_]", JOINERS))


def pieces_per_word(tokenizer: Tokenizer, counts: Mapping[str, int]) -> float:
    """Tokens that a word has on average, each word as often as it occurs."""
    _, lengths = tokenizer.encode_words(list(counts))
    numbers = np.array(list(counts.values()))
    return float(lengths @ numbers / max(1, numbers.sum()))


def useful_words(tokenizer: Tokenizer, counts: Mapping[str, int], number: int) -> list[str]:
    """The words whose entries would save most tokens, the most useful first."""
    merged: Counter[str] = Counter()
    for word, count in counts.items():
        merged[word.lower() if tokenizer.lowercase else word] += count
    frequent = [word for word in merged if merged[word] >= MIN_WORD_COUNT]
    old_entries = set(tokenizer.vocabulary)
    _, lengths = tokenizer.encode_words(frequent)
    saved = {}
    for word, length in zip(frequent, lengths.tolist(), strict=True):
        # The tokenizer cuts at hyphens and the like first; only an uncut word can be an entry.
        pieces = tokenizer.split(word)
        if len(pieces) == 1 and pieces[0] not in old_entries:
            # A word that is unknown as a whole is one token, and worth more.
            saved[word] = merged[word] * max(1, length - 1)
    return sorted(saved, key=lambda word: (-saved[word], word))[:number]


def entries_of(tokenizer: Tokenizer, words: Iterable[str]) -> list[str]:
    """The entries of words, without those that there are already.

    A word of byte-level BPE has two: with the space before it, and without, as behind a bracket.
    ValueError for a word that the tokenizer always cuts, as at a hyphen.
    """
    entries: dict[str, None] = {}
    for word in words:
        pieces = tokenizer.split(word)
        if len(pieces) != 1:
            raise ValueError(
                f"the word {word!r} can be no entry: this tokenizer cuts it into {pieces} before"
                " anything else; leave it out, or give its parts"
            )
        entries |= {pieces[0]: None, pieces[0].removeprefix("Ġ"): None}
    for entry in tokenizer.vocabulary:
        entries.pop(entry, None)
    return list(entries)


def with_entries(tokenizer: Tokenizer, entries: Sequence[str]) -> Tokenizer:
    """A tokenizer whose vocabulary has these behind its own entries.

    ValueError for rules that know no such words.
    """
    files = tokenizer.files()
    rules = json.loads(files[TOKENIZER_FILE])
    config = json.loads(files[CONFIG_FILE])
    model = rules["model"]
    if model["type"] not in MODELS or not rules["pre_tokenizer"]:
        raise ValueError(
            f"{tokenizer.path}: words can be added to {', '.join(MODELS)} behind a pre-tokenizer,"
            f" and this is {model['type']}; give another tokenizer (tokenizer=)"
        )
    # Added tokens behind the model's own entries keep their ids by being entries, too.
    vocabulary = model["vocab"]
    names = [*tokenizer.vocabulary[len(vocabulary) :], *entries]
    if model["type"] == "Unigram":
        vocabulary += _scored(vocabulary, tokenizer, names)
    else:
        vocabulary |= {name: n for n, name in enumerate(names, len(vocabulary))}
    if model["type"] == "BPE":
        model["ignore_merges"] = True
        config["tokenizer_class"] = GENERIC_FAST
    # Which class reads them is for `read_tokenizer` to say.
    with TemporaryDirectory() as folder:
        (Path(folder) / TOKENIZER_FILE).write_bytes(json_bytes(rules))
        (Path(folder) / CONFIG_FILE).write_bytes(json_bytes(config))
        return read_tokenizer(folder)


def _scored(
    vocabulary: Sequence[tuple[str, float]], tokenizer: Tokenizer, names: Sequence[str]
) -> list[tuple[str, float]]:
    """Pieces for Unigram, each with the score of its old pieces and a little more."""
    scores = np.array([score for _, score in vocabulary])
    scores[tokenizer.unk_id] = scores.min() - UNIGRAM_UNKNOWN
    scored = []
    for name in names:
        # A tokenizer takes the mark of a word's beginning for a blank, so it adds that itself.
        ids, _ = tokenizer.encode_words(
            [name.removeprefix(SPACE)], inside=not name.startswith(SPACE)
        )
        scored.append((name, float(scores[ids].sum()) + UNIGRAM_MARGIN))
    return scored


def old_pieces(new: Tokenizer, old: Tokenizer) -> list[list[int]]:
    """Of each id of `new` the ids of `old` that say the same: one, several, or none.

    A special token has the old one of its role. An entry that both have is itself, where entries of
    both say alike whether they begin a word. All others have the pieces into which `old` cuts their
    text.
    """
    same = {}
    if new.kind == old.kind:
        same = {entry: [index] for index, entry in enumerate(old.vocabulary)}
    # These are no text to be cut: added tokens, and special ones of the old tokenizer.
    same |= {name: same.get(name, []) for name in new.added_tokens}
    same |= {name: [] for name in old.special_tokens}
    for name, old_name in zip(new.special_tokens, old.special_tokens, strict=True):
        if old_name:
            same[name] = [old.vocabulary.index(old_name)]
    continues = new.continues()
    pieces = []
    for index, entry in enumerate(new.vocabulary):
        ids = same.get(entry)
        if ids is None:
            is_continuation = continues is not None and bool(continues[index])
            ids = _pieces_of(old, new.shown(index).removeprefix("##"), is_continuation)
        pieces.append(ids)
    return pieces


def _pieces_of(old: Tokenizer, text: str, is_continuation: bool) -> list[int]:
    """Ids of a stretch of text that begins a word, or goes on with one; none if it is unknown."""
    # A mark is a word by itself to WordPiece, and has no space before it elsewhere.
    if not text[:1].isalnum():
        is_continuation = old.kind != "wordpiece"
    ids, _ = old.encode_words([text], inside=is_continuation)
    # Bytes that are only a part of a character are shown as a question mark.
    return ids[ids != old.unk_id].tolist() if "\ufffd" not in text else []


def read_words(file: Path) -> list[str]:
    """The words of a file with one a line; ValueError for a line of two."""
    new_words = []
    for number, line in enumerate(read_text(file, "one word a line").splitlines(), start=1):
        of_line = line.split()
        if len(of_line) > 1:
            raise ValueError(f"{file}:{number}: {line.strip()!r} is no one word; give one a line")
        new_words += of_line
    return new_words


def match_token_layout(old: Tokenizer, new: Tokenizer) -> Tokenizer:
    """Another tokenizer, with [CLS] where the old one has it, and no more token types than it.

    ValueError for one that ends a text with [CLS], which an XLNet alone reads there.
    """
    if old.cls_is_last:
        return new.ending_with_cls()
    if new.cls_is_last:
        raise ValueError(
            f"{new.path}: it ends a text with [CLS], and this model reads [CLS] first: give another"
            " tokenizer (tokenizer=)"
        )
    if not old.has_token_types:
        return new.with_token_types("one")
    return new
