"""What the corpus promises: continuity, shared words, words decided from their right."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from tokenizers.pre_tokenizers import BertPreTokenizer

from clozelab.datamodules.baselines import words_of
from microworld import lexicon
from microworld.choices import Choices, Unreachable
from microworld.documents import Story, tell_document
from microworld.grammar import TEMPLATES, render


def _documents(folder: Path) -> list[list[str]]:
    text = (folder / "corpus/microworld.txt").read_text(encoding="utf-8")
    return [block.splitlines() for block in text.strip().split("\n\n")]


def _words_and_marks(text: str) -> set[str]:
    return {piece for piece, _ in BertPreTokenizer().pre_tokenize_str(text.lower())}


def test_same_seed_same_document() -> None:
    one, two, three = (tell_document(Choices(seed)) for seed in ("a", "a", "b"))
    assert [s.text for s in one] == [s.text for s in two] != [s.text for s in three]


def test_recorded_decisions_tell_the_same_document() -> None:
    choices = Choices("again", record=True)
    text = [s.text for s in tell_document(choices)]
    values = {address: decision.value for address, decision in choices.decisions.items()}
    assert [s.text for s in tell_document(Choices("", forced=values))] == text


def test_impossible_decision_is_unreachable() -> None:
    with pytest.raises(Unreachable):
        Choices("", forced={"a": 3}).pick("a", (1, 2))
    with pytest.raises(Unreachable):
        Choices("", forced={}).pick("a", (1, 2))


def test_weights_are_respected() -> None:
    choices = Choices("weights")
    counts = Counter(choices.pick(index, ("x", "y"), (3, 1)) for index in range(4000))
    assert 0.72 < counts["x"] / 4000 < 0.78


def test_vocabulary_is_small_and_sentences_are_short(small_world: Path) -> None:
    documents = _documents(small_world)
    sentences = [sentence for document in documents for sentence in document]
    lengths = [len(sentence.split()) for sentence in sentences]
    assert 500 < len({word for sentence in sentences for word in words_of(sentence)}) < 1200
    assert 7 < sum(lengths) / len(lengths) < 12
    assert all(sentence[0].isupper() and sentence.endswith((".", "?")) for sentence in sentences)


def test_the_corpus_shows_every_word_and_mark_of_the_tasks(small_world: Path) -> None:
    """Else an encoder meets an unknown token in fine-tuning: the question mark would be one in every question."""
    corpus = _words_and_marks((small_world / "corpus/microworld.txt").read_text(encoding="utf-8"))
    squad = json.loads((small_world / "squad/dev-v2.0.json").read_text(encoding="utf-8"))
    paragraphs = [paragraph for article in squad["data"] for paragraph in article["paragraphs"]]
    texts = [text for one in paragraphs for text in (one["context"], *(qa["question"] for qa in one["qas"]))]
    texts += [
        field
        for path in small_world.glob("glue/*/dev*.tsv")
        for line in path.read_text(encoding="utf-8").splitlines()[1:]
        for field in line.split("\t")
        if " " in field
    ]
    assert _words_and_marks(" ".join(texts)) - corpus == set()


def test_next_sentences_carry_people_on_and_random_ones_share_words(small_world: Path) -> None:
    """A continuation names somebody already named far oftener than a sentence from elsewhere, which still shares other
    words."""
    names = {name.lower() for name in lexicon.WOMEN + lexicon.MEN}
    halves = [
        (set(words_of(" ".join(document[1:5]))), set(words_of(" ".join(document[5:9]))))
        for document in _documents(small_world)
        if len(document) >= 9
    ]
    others = [second for _, second in halves[1:] + halves[:1]]
    true = sum(bool(a & b & names) for a, b in halves) / len(halves)
    false = sum(bool(a & b & names) for (a, _), b in zip(halves, others, strict=True)) / len(halves)
    shared_true = sum(len((a & b) - names) for a, b in halves)
    shared_false = sum(len((a & b) - names) for (a, _), b in zip(halves, others, strict=True))
    assert true > 0.9
    assert 0.02 < false < 0.35
    assert 0.6 < shared_false / shared_true < 0.95


def test_topic_alone_does_not_tell_documents_apart(small_world: Path) -> None:
    """Every word of the world's things occurs in documents of several scenes."""
    seen: dict[str, set[str]] = {}
    for document in _documents(small_world):
        scene = next(scene.name for scene in lexicon.SCENES if scene.name in words_of(document[0]))
        for word in set(words_of(" ".join(document[1:]))) & set(lexicon.OBJECTS):
            seen.setdefault(word, set()).add(scene)
    assert set(seen) == set(lexicon.OBJECTS)
    assert min(map(len, seen.values())) >= 2


def test_half_of_the_templates_tell_the_answer_first() -> None:
    """Where a thing was done stands left of who did it in at least 40 % of the wordings."""
    templates = TEMPLATES["did"]
    before = sum(template.index("{place}") < template.index("{P") for template in templates)
    assert before / len(templates) >= 0.4


def test_articles_and_classifiers_agree(small_world: Path) -> None:
    text = words_of(" ".join(sentence for document in _documents(small_world) for sentence in document))
    for left, right in itertools.pairwise(text):
        if left in ("a", "an"):
            assert left == lexicon.article(right), (left, right)
    for index, word in enumerate(text[:-3]):
        if word in lexicon.GROUPS and text[index + 1] == "of":
            assert lexicon.CLASSIFIER_OF[text[index + 3]] == word


def test_pronouns_agree_with_the_last_subject() -> None:
    for number in range(200):
        story = Story(Choices(f"pronoun {number}"), "corpus", lexicon.SCENES, cast_size=2)
        first = story.new_fact("own", story.cast[0])
        story.tell(first)
        text = story.tell(story.new_fact("cause", story.cast[0])).text
        wrong = "he" if story.cast[0].is_woman else "she"
        assert wrong not in words_of(text)


def test_spans_point_at_their_text() -> None:
    random_01 = random.Random(1).random
    for number in range(100):
        for sentence in tell_document(Choices(f"spans {number} {random_01()}")):
            assert sentence.fact is None or sentence.spans
            for slot, start, end in sentence.spans:
                part = sentence.text[start:end]
                assert part
                if sentence.fact and slot in dict(sentence.fact.args):
                    assert part.lower() == sentence.fact[slot].lower()


def test_render_capitalises_the_first_letter_only() -> None:
    assert render("{a} is {b}.", {"a": "the Mill", "b": "Old"}, None).text == "The Mill is Old."


def test_people_belong_to_one_split() -> None:
    for first in lexicon.WOMEN + lexicon.MEN:
        lists = [lexicon.surnames_of(first, split) for split in lexicon.SPLITS]
        assert sum(map(len, lists)) == len(lexicon.SURNAMES) == len(set().union(*lists))
    for split in lexicon.SPLITS:
        assert len(lexicon.first_names(split)) == 40
