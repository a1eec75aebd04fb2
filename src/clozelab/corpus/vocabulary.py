"""Another vocabulary for an encoder: entries for words, and the old pieces of each new entry.

    entries = useful_entries(tokenizer, Counter({"carcinoma": 12, "the": 90}), 1000)
    longer = with_entries(tokenizer, entries)   # "carcinoma" is one token
    old_pieces(longer, tokenizer)[-1]           # the old ids of "car", "##cino", "##ma"

An entry is what the model reads of a word, such as byte-level BPE's "Ġcarcinoma". BPE takes it where
a word is nothing else, so all other words keep their tokens. WordPiece, which takes the longest
beginning, and Unigram also take it where a word begins with it: "carcinomas" is "carcinoma ##s".
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from clozelab.corpus.encoding import Tokenizer
from clozelab.corpus.tokenizer_files import CONFIG_FILE, TOKENIZER_FILE, json_bytes
from clozelab.corpus.tokenizers import read_tokenizer

MIN_WORD_COUNT = 2  # of a word that gets an entry
WORD = re.compile(r"[^\W\d_]+")
GENERIC_CLASS = "PreTrainedTokenizerFast"  # takes tokenizer.json as it is
# What a new piece of Unigram has more than the old ones of its word, so that it is taken instead.
UNIGRAM_MARGIN = 1e-3
UNIGRAM_UNKNOWN = 10.0  # an unknown character's score is so far below the lowest


def count_words(sentences: Iterable[str]) -> Counter[str]:
    """Runs of letters, as they are written."""
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(WORD.findall(sentence))
    return counts


def pieces_per_word(tokenizer: Tokenizer, counts: Mapping[str, int]) -> float:
    """Tokens of all words by the number of words."""
    _, lengths = tokenizer.encode_words(list(counts))
    numbers = np.array(list(counts.values()))
    return float(lengths @ numbers / max(1, numbers.sum()))


def useful_entries(tokenizer: Tokenizer, counts: Mapping[str, int], number: int) -> list[str]:
    """The entries of the words that would save most tokens, the most useful first."""
    _, lengths = tokenizer.encode_words(list(counts))
    known = set(tokenizer.vocabulary)
    # "Word" and "word" are one entry where text is lower-cased.
    entry_counts: Counter[str] = Counter()
    saved: Counter[str] = Counter()
    for (word, count), length in zip(counts.items(), lengths.tolist(), strict=True):
        entries = tokenizer.split(word)
        if len(entries) == 1 and entries[0] not in known:
            entry_counts[entries[0]] += count
            # A word that is unknown as a whole is one token, and worth more.
            saved[entries[0]] += count * max(1, length - 1)
    ranked = sorted(saved, key=lambda entry: (-saved[entry], entry))
    return [entry for entry in ranked if entry_counts[entry] >= MIN_WORD_COUNT][:number]


def entries_of(tokenizer: Tokenizer, words: Iterable[str]) -> list[str]:
    """The entries of given words, without those that there are already.

    ValueError for a word that the tokenizer always cuts, as at a hyphen.
    """
    known = set(tokenizer.vocabulary)
    entries: dict[str, None] = {}
    for word in words:
        parts = tokenizer.split(word)
        if len(parts) != 1:
            raise ValueError(
                f"the word {word!r} can be no entry: this tokenizer cuts it into {parts} before"
                " anything else; leave it out, or give its parts"
            )
        if parts[0] not in known:
            entries[parts[0]] = None
    return list(entries)


def with_entries(tokenizer: Tokenizer, entries: Sequence[str]) -> Tokenizer:
    """A tokenizer whose vocabulary has these behind its own entries.

    ValueError for rules that know no such words.
    """
    files = tokenizer.files()
    rules = json.loads(files[TOKENIZER_FILE])
    config = json.loads(files[CONFIG_FILE])
    model = rules["model"]
    if model["type"] not in ("WordPiece", "BPE", "Unigram") or not rules["pre_tokenizer"]:
        raise ValueError(
            f"{tokenizer.path}: words can be added to WordPiece, BPE and Unigram behind a"
            f" pre-tokenizer, and this is {model['type']}; give another tokenizer (tokenizer=)"
        )
    # Added tokens behind the model's own entries keep their ids by being entries, too.
    names = [*tokenizer.vocabulary[len(model["vocab"]) :], *entries]
    if model["type"] == "Unigram":
        _add_pieces(model["vocab"], tokenizer, names)
    else:
        model["vocab"] |= {name: n for n, name in enumerate(names, len(model["vocab"]))}
    if model["type"] == "BPE":
        model["ignore_merges"] = True
        config["tokenizer_class"] = GENERIC_CLASS
    # Which class reads them is for `read_tokenizer` to say.
    with TemporaryDirectory() as folder:
        (Path(folder) / TOKENIZER_FILE).write_bytes(json_bytes(rules))
        (Path(folder) / CONFIG_FILE).write_bytes(json_bytes(config))
        return read_tokenizer(folder)


def _add_pieces(vocabulary: list, tokenizer: Tokenizer, names: Sequence[str]) -> None:
    """Add to Unigram's list of pieces and scores; a piece's id is its place."""
    scores = [score for _, score in vocabulary]
    scores[tokenizer.unk_id] = min(scores) - UNIGRAM_UNKNOWN
    ids, lengths = tokenizer.encode_words(names, inside=True)
    for name, pieces in zip(names, np.split(ids, np.cumsum(lengths)[:-1]), strict=True):
        vocabulary.append([name, sum(scores[index] for index in pieces) + UNIGRAM_MARGIN])


def both_forms(tokenizer: Tokenizer, entries: Sequence[str]) -> list[str]:
    """Entries, of byte-level BPE also without the space before them, as behind a bracket."""
    if tokenizer.kind != "byte_bpe":
        return list(entries)
    known = set(tokenizer.vocabulary)
    forms = dict.fromkeys(entries)
    forms |= dict.fromkeys(entry.removeprefix("Ġ") for entry in entries)
    return [form for form in forms if form not in known]


def old_pieces(new: Tokenizer, old: Tokenizer) -> list[list[int]]:
    """Of each id of `new` the ids of `old` that say the same: one, several, or none.

    Special tokens have their role's. An entry that both have is itself, where entries of both say
    alike whether they begin a word. All others have the pieces into which `old` cuts their text.
    """
    roles = {}
    for name, old_name in zip(new.special_tokens, old.special_tokens, strict=True):
        if name and old_name:
            roles[name] = [old.vocabulary.index(old_name)]
    shared = {}
    if new.kind == old.kind:
        shared = {entry: [index] for index, entry in enumerate(old.vocabulary)}
    for name in (*new.special_tokens, *old.special_tokens):
        shared.pop(name, None)
    same = shared | roles
    pieces: list[list[int]] = [same.get(entry, []) for entry in new.vocabulary]
    # What is left: texts that begin a word, and such as go on with one.
    texts: dict[bool, dict[int, str]] = {True: {}, False: {}}
    continues = new.continues()
    for index, entry in enumerate(new.vocabulary):
        text = new.shown(index).removeprefix("##")
        if entry in same or entry in new.added_tokens or "\ufffd" in text:
            continue
        goes_on = continues is not None and bool(continues[index])
        # A mark is a word by itself to WordPiece, and has no space before it elsewhere.
        if not text[:1].isalnum():
            goes_on = old.kind != "wordpiece"
        texts[goes_on][index] = text
    for inside, by_index in texts.items():
        ids, lengths = old.encode_words(list(by_index.values()), inside=inside)
        for index, row in zip(by_index, np.split(ids, np.cumsum(lengths)[:-1]), strict=False):
            pieces[index] = row[row != old.unk_id].tolist()
    return pieces
