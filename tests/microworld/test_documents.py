"""What the corpus promises: continuity, shared words, words decided from their right, and what is
known of its loss.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Hashable
from itertools import chain
from pathlib import Path

import pytest
from tokenizers.pre_tokenizers import BertPreTokenizer

from microworld import lexicon
from microworld.decisions import (
    Choices,
    Decision,
    Unreachable,
    known_entropy,
    left_to_right,
    read_document,
    retell,
    unigram_entropy,
    word_posterior,
)
from microworld.grammar import TEMPLATES, render
from microworld.lexicon import words_of
from microworld.stories import Story, tell_document


def _documents(folder: Path) -> list[list[str]]:
    text = (folder / "corpus/microworld.txt").read_text(encoding="utf-8")
    return [block.splitlines() for block in text.strip().split("\n\n")]


def _words_and_marks(text: str) -> set[str]:
    return {piece for piece, _ in BertPreTokenizer().pre_tokenize_str(text.lower())}


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
    sentences = []
    for document in documents:
        sentences.extend(document)
    lengths = [len(sentence.split()) for sentence in sentences]
    assert len(documents) == 400
    assert 500 < len(set(chain.from_iterable(map(words_of, sentences)))) < 1200
    assert 7 < sum(lengths) / len(lengths) < 12
    assert all(sentence[0].isupper() and sentence.endswith((".", "?")) for sentence in sentences)


def test_the_corpus_shows_every_word_and_mark_of_the_tasks(small_world: Path) -> None:
    """Else an encoder meets an unknown token in fine-tuning: the question mark would be one in
    every question.
    """
    corpus = _words_and_marks((small_world / "corpus/microworld.txt").read_text(encoding="utf-8"))
    squad = json.loads((small_world / "squad/dev-v2.0.json").read_text(encoding="utf-8"))
    paragraphs = []
    for article in squad["data"]:
        paragraphs.extend(article["paragraphs"])
    texts = []
    for one in paragraphs:
        texts.extend((one["context"], *(qa["question"] for qa in one["qas"])))
    for path in small_world.glob("glue/*/dev*.tsv"):
        for line in path.read_text(encoding="utf-8").splitlines()[1:]:
            texts += [field for field in line.split("\t") if " " in field]
    assert _words_and_marks(" ".join(texts)) - corpus == set()


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
    text = words_of(" ".join(chain.from_iterable(_documents(small_world))))
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


# ---- the known entropy: posteriors that sum to one, bounds in their order, and how tight they are
# --------------------

SEED = "entropy test"


def _decisions(seed: str) -> tuple[dict[Hashable, Decision], list[str], float]:
    choices = Choices(seed, record=True)
    words = words_of(" ".join(sentence.text for sentence in tell_document(choices)))
    return choices.decisions, words, choices.log_probability


def test_log_probability_is_the_product_of_the_decisions() -> None:
    choices = Choices("p", record=True)
    choices.pick("a", (1, 2, 3, 4))
    first = choices.pick("b", ("x", "y"), (3, 1))
    assert choices.log_probability == pytest.approx(
        math.log(0.25) + math.log(0.75 if first == "x" else 0.25)
    )


def test_no_decision_is_hidden() -> None:
    """Every other decision that can be made gives other words; so the decisions' entropy is the
    text's.
    """
    decisions, words, _ = _decisions(SEED)
    values = {address: decision.value for address, decision in decisions.items()}
    tried = 0
    for address, decision in decisions.items():
        for option in decision.options:
            choices = Choices("", forced={**values, address: option}, record=True)
            if option == decision.value:
                continue
            try:
                other = words_of(" ".join(sentence.text for sentence in tell_document(choices)))
            except Unreachable:
                continue
            tried += 1
            assert other != words, address
    assert tried > 100


def test_posterior_sums_to_one_and_knows_what_is_certain() -> None:
    reading = read_document(tell_document, SEED)
    for position, word in enumerate(reading.words):
        posterior = word_posterior(reading, position, [position])
        assert sum(posterior.values()) == pytest.approx(1.0)
        if word in (".", "the", "of", "was"):
            assert posterior[word] > 0.5


def test_a_repeated_fact_decides_its_word() -> None:
    """With both mentions hidden a word is open, with one in view it is certain."""
    for number in range(30):
        reading = read_document(tell_document, f"{SEED} {number}")
        for alternatives in reading.by_position.values():
            for alternative in alternatives:
                if len(alternative.positions) == 2 and alternative.weight > 0.5:
                    position = min(alternative.positions)
                    closed = word_posterior(reading, position, [position])
                    opened = word_posterior(reading, position, alternative.positions)
                    assert alternative.words[position] in opened
                    assert opened[reading.words[position]] < closed[reading.words[position]]
                    return
    pytest.fail("no fact was told twice in 30 documents")


def test_losses_stand_in_their_order() -> None:
    entropy = known_entropy(tell_document, SEED, 2)
    texts = []
    for number in range(300):
        texts += [sentence.text for sentence in tell_document(Choices(f"unigram {number}"))]
    unigram = unigram_entropy(texts)
    assert 0 < entropy["masked_one_loss"] <= entropy["masked_document_loss"] * 1.15
    assert entropy["masked_document_loss"] < entropy["masked_window_loss"]
    assert entropy["masked_one_loss"] < entropy["masked_window_loss"] * 1.15
    assert entropy["masked_window_loss"] < entropy["left_to_right_loss"] < unigram < 5.5
    assert 0.5 < entropy["masked_one_accuracy"] < 1.0


def test_left_to_right_is_the_mean_over_documents_without_their_length() -> None:
    entropy = left_to_right(tell_document, SEED, 20)
    nats, words = [], []
    for number in range(20):
        choices = Choices(f"{SEED}/{number}", record=True)
        words.append(len(words_of(" ".join(sentence.text for sentence in tell_document(choices)))))
        nats.append(-choices.log_probability - math.log(6))  # MIN_FACTS to MAX_FACTS, evenly
    assert entropy["left_to_right_loss"] == pytest.approx(sum(nats) / sum(words))
    assert entropy["left_to_right_words"] == sum(words)
    assert 0.005 < entropy["left_to_right_standard_error"] < 0.1


@pytest.mark.slow
def test_pairs_of_changes_add_next_to_nothing() -> None:
    """The bound leaves out alternatives that need two changed decisions. All pairs within a
    sentence among those that decide how it is told: they raise the loss of one masked word by less
    than 0.02 nats."""
    decisions, words, log_probability = _decisions(SEED)
    values = {address: decision.value for address, decision in decisions.items()}
    names = {"subject", "other", "mention", "template", "frame", "with adjective"}
    tellings = [
        a
        for a, d in decisions.items()
        if isinstance(a, tuple) and a[1] in names and len(d.options) > 1
    ]
    added: dict[int, float] = {}
    for one, two in itertools.combinations(tellings, 2):
        if one[0] != two[0]:
            continue
        for first, second in itertools.product(decisions[one].options, decisions[two].options):
            if first == values[one] or second == values[two]:
                continue
            found = retell(
                tell_document, {**values, one: first, two: second}, words, log_probability
            )
            if found and len(found.positions) == 1:
                position = min(found.positions)
                added[position] = added.get(position, 0.0) + found.weight
    reading = read_document(tell_document, SEED)
    more = 0.0
    for position, weight in added.items():
        single = 1.0 / word_posterior(reading, position, [position])[words[position]]
        more += math.log(single + weight) - math.log(single)
    assert more / len(words) < 0.02
