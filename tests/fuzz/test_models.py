"""Random texts for tokenizers of random rules, and several oddities of one model folder at once.

Ids, states and answers are those of transformers.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given
from tests.fuzz import weights
from tests.fuzz.lab import quieten
from tests.fuzz.labels import twins
from tests.fuzz.making import CASED, Change, agrees, bert, copy_of, load, same_ids, wordpiece
from tests.fuzz.properties import few_and_many

# Letters of several scripts, accents apart, full width, white space and controls of all kinds.
LETTERS = "abcABCÉéöß中文ｃａГдΣσς한שא"
MARKS = "\u0301\u0308\u200b\u200d\u00ad\ufeff\u202e"
SPACES = " \t\n\r\u00a0\u2028\u3000\x85\x0b\x0c\x00\x1b\ufffd"
PLAIN = "0123456789.,:!?\"'-[]()$£€@#_~^`|<>=+*/\\ "
CHARACTERS = st.sampled_from(LETTERS + MARKS + SPACES + PLAIN)
WHOLE = st.sampled_from(["[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]", "##cat", "the cat", "😀"])
RANDOM_TEXTS = st.lists(CHARACTERS | WHOLE, min_size=1, max_size=30).map("".join)


@cache
def tokenizing(lower: bool, strips: bool | None, splits_chinese: bool) -> tuple[Any, Path]:
    quieten()
    rules = {"do_lower_case": lower, "strip_accents": strips}
    tokenizer = wordpiece(CASED, tokenize_chinese_chars=splits_chinese, **rules)
    place = twins() / f"rules-{lower}-{strips}-{splits_chinese}"
    folder = bert(place, tokenizer=tokenizer)
    return load(folder), folder


@few_and_many(40, 1500)
@given(st.booleans(), st.sampled_from([None, True, False]), st.booleans(), RANDOM_TEXTS)
@example(True, None, True, "the cat\u200bsat")
@example(False, True, False, "É中b文 ｃａ")
@example(True, False, True, "a\u0301[MASK]b")
def test_ids(lower: bool, strips: bool | None, splits_chinese: bool, text: str) -> None:
    predictor, folder = tokenizing(lower, strips, splits_chinese)
    # The cat is known to every vocabulary: a text of unknown characters alone is refused.
    same_ids(predictor, folder, [f"{text} cat", f"the cat{text}"])


HARMLESS: dict[str, Change] = {
    "names begin with module.": weights.module,
    "layer norms called gamma and beta": weights.renamed(weights.of_tensorflow),
    "a leftover buffer": weights.given(**weights.positions),
    "a pooler more": weights.given(**weights.pooler),
    "the projection stored twice": weights.with_tensors(
        lambda stored: weights.projection(stored) if weights.WORD_ROWS in stored else {}
    ),
    "weights in a pickle": weights.as_pickle,
    "weights in two files": weights.sharded,
}
LAST = ("weights in a pickle", "weights in two files")


@few_and_many(4, 100)
@given(st.lists(st.sampled_from([*HARMLESS]), min_size=2, max_size=4, unique=True))
@example(["layer norms called gamma and beta", "names begin with module.", LAST[0]])
def test_oddities_of_weights_together(names: list[str]) -> None:
    """Names are changed first, then files; of two kinds of files one is written."""
    files = [name for name in names if name in LAST][:1]
    with tempfile.TemporaryDirectory() as place:
        folder = bert(Path(place))
        twin = copy_of(folder)
        for name in [*(name for name in names if name not in LAST), *files]:
            HARMLESS[name](folder)
        agrees(folder, twin)
