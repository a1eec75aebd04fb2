"""Odd Python objects, settings and texts for `predict` and `embed`.

Each text is answered as transformers answers it alone. One that cannot be answered has to be marked
with a reason, and every other has to be answered as if it stood alone.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pyarrow
import torch
import transformers
from tests.fuzz.answering import (
    TEXTS,
    Text,
    compare,
    is_marked,
    masked,
    model,
    predictor,
    probabilities,
    reader,
    rows_of,
    shares_of,
    tagger,
    their_classifier,
    vector_of,
    with_odd,
)
from tests.fuzz.lab import EITHER, READ, REFUSED, Cases, check, close, equal
from tests.fuzz.making import encoded, load, theirs
from tests.fuzz.tasks import PAIRS, mrpc_twin

CASES = Cases("prediction inputs")
MARKED: list[Text | None] = with_odd(None)
FRAME = pandas.DataFrame({"text": TEXTS, "label": range(5)})
TWO: list[Text] = [(str(text), "a dog sat") for text in TEXTS]
SECOND = "a dog sat"


@CASES.rows("predict")
def object_case(
    _: Path, make: Callable[[], Any], texts: Sequence[Text | None] | None = TEXTS
) -> None:
    """`texts` None: it is to be refused whatever comes out."""
    answers = predictor().classify(make())
    if texts is not None:
        compare(rows_of(answers), texts, "text")


# Objects that hold texts

ALL_READ: dict[str, Callable[[], Any]] = {
    "nothing: the control of the objects": lambda: TEXTS,
    "a generator": lambda: (text for text in TEXTS),
    "a Series whose index is not 0, 1, 2": lambda: pandas.Series(TEXTS, index=[9, 3, 3, 1, 0]),
    "a Series of categories": lambda: pandas.Series(TEXTS, dtype="category"),
    "an array of numpy": lambda: np.array(TEXTS),
    "an array of objects": lambda: np.array(TEXTS, dtype=object),
    "a column of a Dataset": lambda: datasets.Dataset.from_pandas(FRAME)["text"],
    "texts of numpy's own kind": lambda: [np.str_(text) for text in TEXTS],
}
for _oddity, _make in ALL_READ.items():
    object_case(_oddity, READ, _make)
object_case("one text, not a list", READ, lambda: TEXTS[0], TEXTS[:1])
object_case("a list of pairs", READ, lambda: TWO, TWO)

SOME_READ: dict[str, tuple[Callable[[], Any], Sequence[Text | None] | None, str]] = {
    "a tuple of three texts": (lambda: tuple(TEXTS[:3]), TEXTS[:3], "pair|two"),
    "pairs that are lists, not tuples": (lambda: [[*pair] for pair in TWO], TWO, "expected|text"),
    "a dict with the key text": (lambda: {"text": TEXTS[0]}, TEXTS[:1], "dict|key"),
    "a dict with the keys text and pair": (
        lambda: {"text": TEXTS[0], "pair": SECOND},
        TWO[:1],
        "dict|key",
    ),
    "a dict of lists": (lambda: {"text": TEXTS}, TEXTS, "dict|key"),
    "a list of dicts": (lambda: [{"text": text} for text in TEXTS], TEXTS, "dict|expected"),
    "a DataFrame with a column text": (lambda: FRAME, TEXTS, "DataFrame|column"),
    "an array of two dimensions": (
        lambda: np.array([[text, SECOND] for text in TEXTS]),
        TWO,
        "expected|text",
    ),
    "an array of pyarrow": (lambda: pyarrow.array(TEXTS), TEXTS, "expected|text"),
    "a Dataset of the datasets library": (
        lambda: datasets.Dataset.from_pandas(FRAME),
        TEXTS,
        "Dataset|column|expected",
    ),
    "the keys of a Counter": (lambda: Counter(TEXTS).keys(), TEXTS, "expected|text"),
    "an empty list": (list, [], "empty"),
    "bytes among the texts": (lambda: with_odd(b"the cat"), MARKED, "text 3"),
    "None among the texts": (lambda: with_odd(None), MARKED, "text 3"),
    "NaN among the texts, as pandas has it": (lambda: with_odd(float("nan")), MARKED, "text 3"),
    "pandas.NA among the texts": (
        lambda: pandas.Series(with_odd(pandas.NA), dtype="string"),
        MARKED,
        "text 3",
    ),
    "a number among the texts": (lambda: with_odd(7), MARKED, "text 3"),
    "a pair among texts": (lambda: with_odd(("a cat", "a dog")), None, "pair"),
    "a pair whose second text is None": (
        lambda: [*TWO[:2], ("a cat", None)],
        [*TWO[:2], None],
        "text 3",
    ),
    "a pair whose second text is empty": (
        lambda: [*TWO[:2], ("a cat", "")],
        [*TWO[:2], None],
        "text 3",
    ),
    "a tuple of three among pairs": (
        lambda: [*TWO[:2], ("a", "b", "c")],
        [*TWO[:2], None],
        "pair|text 3",
    ),
    "half a surrogate pair inside a text": (
        lambda: with_odd("the cat\ud800 sat"),
        with_odd("the cat sat"),
        "text 3",
    ),
}
for _oddity, (_make, _texts, _names) in SOME_READ.items():
    object_case(_oddity, EITHER, _make, _texts, names=_names)

NEVER_READ: dict[str, tuple[Callable[[], Any], str]] = {
    "a set, which has no order": (lambda: set(TEXTS), "set"),
    "a dict whose keys nobody knows": (lambda: {"headline": TEXTS}, "headline|dict"),
    "a DataFrame without a column text": (
        lambda: FRAME.rename(columns={"text": "body"}),
        "DataFrame|column",
    ),
    "bytes": (lambda: b"the red film", "bytes"),
    "None in place of the texts": (lambda: None, "None"),
    "numbers alone": (lambda: [1, 2], "text 1"),
    "a number in place of the texts": (lambda: 7, "7|int"),
    "a Path in place of the texts": (lambda: Path("a.txt"), "path"),
    "lists in lists in a list": (lambda: [[[text] for text in TEXTS]], "expected|text"),
}
for _oddity, (_make, _names) in NEVER_READ.items():
    object_case(_oddity, REFUSED, _make, None, names=_names)

# Characters of texts: what stands in the third place, and the text that is answered so

CHARACTERS: dict[str, tuple[str, str | None]] = {
    "an empty text": ("", None),
    "a text of blanks, tabs and line breaks": (" \t\n\u00a0", None),
    "a text of zero-width and control characters": ("\u200b\u200e\0\x1b", None),
    "an emoji alone, which the vocabulary does not know": ("😀", None),
    "a text of a thousand words": ("the cat " * 500, None),
    "a NUL inside a text": ("the c\0at sat", "the cat sat"),
    "accents apart from their letters": (unicodedata.normalize("NFD", "thé cät"), "the cat"),
    "marks of writing from right to left inside words": ("the \u202ecat\u202c sat", "the cat sat"),
    "letters of full width": ("the ｃａｔ sat", "the ｃａｔ sat"),
    "line breaks and tabs inside a text": ("the cat\r\n\tsat", "the cat sat"),
}
for _oddity, (_text, _read) in CHARACTERS.items():
    object_case(_oddity, READ, partial(with_odd, _text), with_odd(_read))


@CASES.add("predict", READ)
def special_tokens_in_a_text(_: Path) -> None:
    """Special tokens written in a text: read as letters (BERT's release) or as themselves
    (transformers)
    """
    text = "the [SEP] cat [PAD]"
    answer = predictor().classify([TEXTS[0], text])[1]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model())
    inner = tokenizer("the [ sep ] cat [ pad ]", add_special_tokens=False)["input_ids"]
    letters = torch.tensor([[tokenizer.cls_token_id, *inner, tokenizer.sep_token_id]])
    with torch.no_grad():
        released = their_classifier()(input_ids=letters).logits[0].softmax(-1).numpy()
    given = np.array(probabilities(answer, "text 2"))
    errors = [float(np.abs(given - expected).max()) for expected in (released, shares_of(text))]
    check(min(errors) < 2e-4, "neither as BERT's release nor as transformers reads it")


@CASES.add("predict", REFUSED, "pair")
def pair_model_python(_: Path) -> None:
    """One text for a model that was trained on pairs, from Python"""
    load(mrpc_twin(tuple(PAIRS))).classify("the cat sat")


@CASES.rows("embed", "text 2")
def embed_beside(_: Path, odd: Any) -> None:
    """WrongError unless the texts beside an odd one have their vectors."""
    vectors = predictor().embed(["the cat sat", odd, "a dog ran"])
    close(vectors[[0, 2]], [vector_of("the cat sat"), vector_of("a dog ran")], "vectors")


embed_beside("A text of unknown characters alone among texts to embed", EITHER, "😀")
embed_beside("None among texts to embed", EITHER, None)


# Settings, and acts that a model has no head for


@CASES.rows("predict")
def setting_case(_: Path, act: str, text: str, **settings: Any) -> None:
    getattr(predictor(), act)(text, **settings)


@CASES.rows("embed")
def vector_case(_: Path, **settings: Any) -> None:
    predictor().embed("the cat", **settings)


for _stride in (0, "3", 1.5):
    oddity = f"a stride of {_stride!r}"
    setting_case(oddity, REFUSED, "classify", "the cat", stride=_stride, names="stride")
for _setting in ({"pooling": "max"}, {"layer": 2}, {"layer": "last"}):
    vector_case(f"vectors with {_setting}", REFUSED, names=next(iter(_setting)), **_setting)
setting_case("a mask to fill by a classifier", REFUSED, "fill_mask", "the [MASK]", names="lm")
setting_case("words to tag by a classifier", REFUSED, "tag", "the cat", names="tag")


@CASES.add("predict", READ)
def two_masks(_: Path) -> None:
    """A text with two masks, beside one with one"""
    their_model = theirs(masked(), "ForMaskedLM")
    tokenizer = transformers.AutoTokenizer.from_pretrained(masked())
    texts = ["the [MASK] sat on[MASK]mat", "a [MASK]"]
    for text, filled in zip(texts, load(masked()).fill_mask(texts, top_k=3), strict=True):
        inputs = encoded(masked(), text)
        places = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0]
        with torch.no_grad():
            best = their_model(**inputs).logits[0, places].topk(3).indices.tolist()
        ids = []
        for mask in filled.masks:
            ids.append([token.id for token in mask])
        equal(ids, best, f"tokens for {text!r}")


@CASES.add("predict", REFUSED, "top_k")
def top_k_text(_: Path) -> None:
    """A top_k that is text"""
    load(masked()).fill_mask("the [MASK]", top_k="5")


@CASES.add("predict", EITHER, "text 2")
def no_mask(_: Path) -> None:
    """No mask in one of three texts"""
    filled = load(masked()).fill_mask(["the [MASK]", "the cat", "a [MASK]"])
    check(is_marked(filled[1]), "the text without a mask is not marked")
    equal([len(filled[0].masks), len(filled[2].masks)], [1, 1], "masks of the others")


@CASES.add("predict", READ)
def tag_odd_words(_: Path) -> None:
    """Words to tag with emoji, accents apart from their letters and zero-width characters: spans
    are their own
    """
    text = "Ada 😀 sat\u200b on\u00a0a mat, e\u0301 中文.\tBob"
    answer = load(tagger()).tag(text)
    check(len(answer.words) >= 8, f"{len(answer.words)} words")
    for span in answer.words:
        equal(text[span.start : span.end], span.text, "the text of a span")
    covered = "".join(span.text for span in answer.words)
    lost = [char for char in text if char.isalnum() and char not in covered]
    equal(lost, [], "letters in no word")


@CASES.rows("predict")
def word_case(_: Path, word: Any) -> None:
    """A list of words to tag with an odd one: it is a word of its own, or refused."""
    answer = load(tagger()).tag([["the", word, "cat"]])[0]
    equal([span.text for span in answer.words], ["the", str(word), "cat"], "words")


word_case("an empty word in a list of words to tag", EITHER, "", names="word 2|text 1")
word_case("a number among the words to tag", EITHER, 7, names="words|text 1")


@CASES.add("predict", READ)
def answer_odd_passage(_: Path) -> None:
    """A passage with emoji, accents apart and line breaks: the answer is what stands at its
    place
    """
    passage = "😀 the cäfe\u0301:\r\n the cat sat on\u00a0a \u200bmat and ran. " * 6
    answer = load(reader()).answer("who sat ?", [passage], top_k=5)
    for candidate in [answer, *answer.others]:
        if candidate.text:
            text = passage[candidate.start : candidate.end]
            equal(text, candidate.text, "the text of an answer")


for _oddity, _question, _passage, _names in (
    ("an empty passage", "who sat ?", " ", "passage"),
    ("an empty question", "", "the cat sat", "question"),
    ("None in place of a passage", "who sat ?", ["the cat sat", None], "passage|None"),
):
    asked = (_question, _passage)
    CASES.add("predict", REFUSED, _names, oddity=_oddity)(
        lambda _, asked=asked: load(reader()).answer(*asked)  # type: ignore[misc]
    )
