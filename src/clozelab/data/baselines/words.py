"""Words of a text, and answers that need nothing but them: phrases for questions, tags for words."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

WORD = re.compile(r"\w+|[^\w\s]")
"""What BERT's basic tokeniser makes of plain text, nearly."""
BAG, OVERLAP, TAGS = "bag of words", "longest overlap", "most frequent tag"
"""Names of the baselines, as a run's record and the report have them."""
_ARTICLES = ("a", "an", "the")
_LONGEST_PHRASE = 2


def words_of(text: str) -> list[str]:
    return WORD.findall(text.lower())


def bare_words(text: str) -> list[str]:
    """Words without articles and punctuation, as SQuAD's official scorer compares them."""
    return [word for word, _, _ in _places(text)]


def _places(text: str) -> list[tuple[str, int, int]]:
    """(bare word, where it begins, where it ends) of every word that counts."""
    found = ((match.group().lower(), *match.span()) for match in re.finditer(r"\w+", text))
    return [place for place in found if place[0] not in _ARTICLES]


class PhraseGuesser:
    """For a question: the sentence that shares most words with it, and in it the first phrase (of two words or one)
    that answered a question of such a beginning in training."""

    def __init__(self, questions: Sequence[str], answers: Sequence[Sequence[str]]) -> None:
        self.known: dict[str, set[str]] = defaultdict(set)
        for question, texts in zip(questions, answers, strict=True):
            self.known[_beginning(question)].update(" ".join(bare_words(text)) for text in texts)
        self._sentences: tuple[str, list[tuple[str, list[tuple[str, int, int]], set[str]]]] = ("", [])

    def guess(self, passage: str, question: str) -> str:
        """A piece of the passage; empty where no phrase is known."""
        asked, known = set(bare_words(question)), self.known.get(_beginning(question), set())
        for sentence, places, _ in sorted(self._split(passage), key=lambda one: -len(asked & one[2])):
            for width in range(_LONGEST_PHRASE, 0, -1):
                for first in range(len(places) - width + 1):
                    phrase = [word for word, _, _ in places[first : first + width]]
                    if " ".join(phrase) in known and not asked.intersection(phrase):
                        return sentence[places[first][1] : places[first + width - 1][2]]
        return ""

    def _split(self, passage: str) -> list[tuple[str, list[tuple[str, int, int]], set[str]]]:
        """(text, places of its words, the words) of each sentence; a passage's questions come one after the other."""
        if self._sentences[0] != passage:
            parts = [(text, _places(text)) for text in passage.split(". ")]
            self._sentences = passage, [(text, places, {word for word, _, _ in places}) for text, places in parts]
        return self._sentences[1]


def _beginning(question: str) -> str:
    return " ".join(question.split(" ")[:2])


def most_frequent_tags(
    train: Iterable[tuple[Sequence[str], Sequence[str]]], asked: Iterable[Sequence[str]], unknown: str
) -> list[list[str]]:
    """Each asked word's most frequent tag in the (words, tags) of training, whatever its case; `unknown` for a word
    that is not there."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for words, names in train:
        for word, name in zip(words, names, strict=True):
            counts[word.lower()][name] += 1
    best = {word: counted.most_common(1)[0][0] for word, counted in counts.items()}
    return [[best.get(word.lower(), unknown) for word in words] for words in asked]
