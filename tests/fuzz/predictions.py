"""Odd Python objects, settings and texts for `predict` and `embed`.

Each text is answered as transformers answers it alone. One that cannot be answered has to be marked
with a reason, and every other has to be answered as if it stood alone.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
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
def object_case(_: Path, given: Any, texts: Sequence[Text | None] | None = TEXTS) -> None:
    """`given`: an object, or a function that makes it; `texts` None: it is to be refused whatever
    comes out.
    """
    answers = predictor().classify(given() if callable(given) else given)
    if texts is not None:
        compare(rows_of(answers), texts, "text")


# Objects that hold texts

object_case("nothing: the control of the objects", READ, TEXTS)
object_case("one text, not a list", READ, TEXTS[0], TEXTS[:1])
object_case("a list of pairs", READ, TWO, TWO)
object_case("a generator", READ, lambda: (text for text in TEXTS))
shuffled = pandas.Series(TEXTS, index=[9, 3, 3, 1, 0])
object_case("a Series whose index is not 0, 1, 2", READ, shuffled)
object_case("a Series of categories", READ, pandas.Series(TEXTS, dtype="category"))
object_case("an array of numpy", READ, np.array(TEXTS))
object_case("an array of objects", READ, np.array(TEXTS, dtype=object))
object_case("a column of a Dataset", READ, lambda: datasets.Dataset.from_pandas(FRAME)["text"])
object_case("texts of numpy's own kind", READ, [np.str_(text) for text in TEXTS])

object_case("a tuple of three texts", EITHER, tuple(TEXTS[:3]), TEXTS[:3], names="pair|two")
listed = [[*pair] for pair in TWO]
object_case("pairs that are lists, not tuples", EITHER, listed, TWO, names="expected|text")
one_text = {"text": TEXTS[0]}
object_case("a dict with the key text", EITHER, one_text, TEXTS[:1], names="dict|key")
one_pair = one_text | {"pair": SECOND}
object_case("a dict with the keys text and pair", EITHER, one_pair, TWO[:1], names="dict|key")
object_case("a dict of lists", EITHER, {"text": TEXTS}, names="dict|key")
rows = [{"text": text} for text in TEXTS]
object_case("a list of dicts", EITHER, rows, names="dict|expected")
object_case("a DataFrame with a column text", EITHER, FRAME, names="DataFrame|column")
square = np.array([[text, SECOND] for text in TEXTS])
object_case("an array of two dimensions", EITHER, square, TWO, names="expected|text")
object_case("an array of pyarrow", EITHER, lambda: pyarrow.array(TEXTS), names="expected|text")
as_dataset = partial(datasets.Dataset.from_pandas, FRAME)
oddity = "a Dataset of the datasets library"
object_case(oddity, EITHER, as_dataset, names="Dataset|column|expected")
object_case("the keys of a Counter", EITHER, Counter(TEXTS).keys(), names="expected|text")
object_case("an empty list", EITHER, [], [], names="empty")
for _oddity, _odd in {
    "bytes among the texts": b"the cat",
    "None among the texts": None,
    "NaN among the texts, as pandas has it": float("nan"),
    "a number among the texts": 7,
}.items():
    object_case(_oddity, EITHER, with_odd(_odd), MARKED, names="text 3")
missing = pandas.Series(with_odd(pandas.NA), dtype="string")
object_case("pandas.NA among the texts", EITHER, missing, MARKED, names="text 3")
object_case("a pair among texts", EITHER, with_odd(("a cat", "a dog")), None, names="pair")
for _oddity, _pair, _names in (
    ("a pair whose second text is None", ("a cat", None), "text 3"),
    ("a pair whose second text is empty", ("a cat", ""), "text 3"),
    ("a tuple of three among pairs", ("a", "b", "c"), "pair|text 3"),
):
    object_case(_oddity, EITHER, [*TWO[:2], _pair], [*TWO[:2], None], names=_names)
half, read_so = with_odd("the cat\ud800 sat"), with_odd("the cat sat")
object_case("half a surrogate pair inside a text", EITHER, half, read_so, names="text 3")

no_text = FRAME.rename(columns={"text": "body"})
for _oddity, _given, _names in (
    ("a set, which has no order", set(TEXTS), "set"),
    ("a dict whose keys nobody knows", {"headline": TEXTS}, "headline|dict"),
    ("a DataFrame without a column text", no_text, "DataFrame|column"),
    ("bytes", b"the red film", "bytes"),
    ("None in place of the texts", None, "None"),
    ("numbers alone", [1, 2], "text 1"),
    ("a number in place of the texts", 7, "7|int"),
    ("a Path in place of the texts", Path("a.txt"), "path"),
    ("lists in lists in a list", [[[text] for text in TEXTS]], "expected|text"),
):
    object_case(_oddity, REFUSED, _given, None, names=_names)

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
    object_case(_oddity, READ, with_odd(_text), with_odd(_read))


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


@CASES.rows("predict")
def question_case(_: Path, question: str, passage: Any) -> None:
    load(reader()).answer(question, passage)


question_case("an empty passage", REFUSED, "who sat ?", " ", names="passage")
question_case("an empty question", REFUSED, "", "the cat sat", names="question")
none = ["the cat sat", None]
question_case("None in place of a passage", REFUSED, "who sat ?", none, names="passage|None")
