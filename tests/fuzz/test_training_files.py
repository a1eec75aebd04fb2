"""Random files of labels and tags for `finetune`, and random corpora for `prepare`.

A run is right where it was trained and scored as its twin, whose clean file holds the same rows; a
corpus is right where its shards hold the documents that were written.
"""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import example, given
from tests.fuzz.corpora import holds, make_document, prepare, text_of
from tests.fuzz.labels import VALIDATION, finetune, is_labelled_as, jsonl, labelled_words, learnt_as
from tests.fuzz.properties import SEPARATORS, Layout, few_and_many, layouts, texts
from tests.fuzz.tasks import TAGGED, bioes, columns, iob1, tag_run, tagged_of, twin

CLEAN = Layout(has_mark=False, line_end="\n", has_last_end=True, is_packed=False)
LABELS = st.lists(
    st.sampled_from(["yes", "no", "a, b", 'the "first"', "é", "-1", "x;y", "two words"]),
    min_size=2,
    max_size=3,
    unique=True,
)


@st.composite
def labelled(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Sixteen different texts; each label stands at some of them."""
    labels = draw(LABELS)
    rows = []
    for number in range(16):
        text = f"{draw(texts(SEPARATORS))} {number}"
        rows.append((text, labels[number % len(labels)]))
    return rows


@few_and_many(3, 60)
@given(labelled(), layouts(), st.sampled_from([",", ";", "\t"]), st.booleans())
def test_labels(
    rows: list[tuple[str, str]], layout: Layout, separator: str, is_text_first: bool
) -> None:
    """A table of labels, with its columns in either order and any usual character between them."""
    header = [("text", "label"), *rows]
    written = header if is_text_first else [row[::-1] for row in header]
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=separator, lineterminator="\n").writerows(written)
    name = f"train.csv{layout.suffix}"
    labels = sorted({label for _, label in rows})
    validation = [(text, labels[n % len(labels)]) for n, (text, _) in enumerate(VALIDATION)]
    files = {name: layout.write(buffer.getvalue()), "validation.jsonl": jsonl(validation)}
    with tempfile.TemporaryDirectory() as place:
        run = finetune(Path(place), files, labelled_words(name, "validation.jsonl"))
        is_labelled_as(run, rows, validation)


@few_and_many(3, 40)
@given(
    st.sampled_from([list, iob1, bioes]),
    st.sampled_from([" ", "\t", "  "]),
    st.sampled_from(["", " ", "\n", "\t\n\n"]),
    st.integers(0, 2),
    layouts(),
)
@example(iob1, "\t", "", 2, CLEAN)
def test_tags(scheme: object, separator: str, between: str, num_more: int, layout: Layout) -> None:
    """Tags in any scheme, with more columns between the word and its tag."""
    content = columns(
        tags=scheme,  # type: ignore[arg-type]
        separator=separator,
        between=between,
        row=lambda word, tag: [word, *["X"] * num_more, tag],
    )
    unpacked = Layout(layout.has_mark, layout.line_end, layout.has_last_end, is_packed=False)
    with tempfile.TemporaryDirectory() as place:
        written = unpacked.write(content)
        run = tag_run(Path(place), written, ".txt", written, [])
        assert tagged_of(run) == TAGGED
        learnt_as(run, twin(tag_run, columns(), ".txt", columns(), ()))


@few_and_many(5, 60)
@given(
    st.lists(st.integers(1, 4), min_size=20, max_size=30),
    st.sampled_from(["", " ", "\n", "\t\n\n"]),
    layouts(),
)
def test_corpora(lengths: list[int], between: str, layout: Layout) -> None:
    """Documents of one to four sentences, with blank lines of any kind between them."""
    documents = []
    for number, length in enumerate(lengths):
        documents.append([*make_document(number), f"It was day {number}."][:length])
    content = layout.write(text_of(documents, between))
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "text" / f"a.txt{layout.suffix}"
        path.parent.mkdir()
        path.write_bytes(content)
        holds(prepare(Path(place)), documents)
