"""Phrases for questions and tags for words, on texts that can be worked out by hand."""

from __future__ import annotations

from clozelab.datamodules.baselines import PhraseGuesser, bare_words, most_frequent_tags, words_of

PASSAGE = "Anna sang in Rome. In the old Town, Bob met a King of France. Bob left"


def test_words() -> None:
    assert words_of("It's A dog.") == ["it", "'", "s", "a", "dog", "."]
    assert bare_words("The dog, an owl and A cat!") == ["dog", "owl", "and", "cat"]


def test_the_first_known_phrase_of_the_sentence_most_like_the_question() -> None:
    questions = ["Who did he meet?", "Who did she see?", "Where was it?"]
    guesser = PhraseGuesser(questions, [["Bob"], ["the King of", "king"], ["Rome", "old town"]])
    # "who did" knows bob, king of and king; in the second sentence two words go before one.
    assert guesser.guess(PASSAGE, "Who did somebody meet in the old town?") == "King of"
    assert guesser.guess(PASSAGE, "Who did Anna meet in Rome?") == "King of"  # nothing in the first sentence is known
    assert guesser.guess(PASSAGE, "Who did the king of France meet?") == "Bob"  # what the question says is no answer
    assert guesser.guess(PASSAGE, "Where was Bob, who met the king?") == "old Town"
    assert guesser.guess(PASSAGE, "Why is it so?") == ""


def test_each_words_most_frequent_tag() -> None:
    train = [(["Rome", "is", "old"], ["B-LOC", "O", "O"]), (["rome", "ROME"], ["B-ORG", "B-LOC"])]
    assert most_frequent_tags(train, [["In", "Rome"], ["OLD"]], "?") == [["?", "B-LOC"], ["O"]]
