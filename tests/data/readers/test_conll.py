"""Column files and conllu: sentences, documents, and every way in which a file is not what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard

from clozelab.datamodules.tagged import ColumnFormat, TaggedSentences, predicted_lines, read_conll

CONLL = ColumnFormat("columns", 0, -1)
UPOS = ColumnFormat("conllu", 1, 3)
NEWS = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

Peter NNP B-NP B-PER

-DOCSTART- -X- O O

# NN B-NP O
1 CD I-NP O
"""
TREE = """# newdoc id = a
# text = can't go
1-2\tcan't\t_\t_\t_\t_\t_\t_\t_\t_
1\tca\tcan\tAUX\tMD\t_\t0\troot\t_\t_
2\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_
2.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_

# newdoc
# sent_id = 2
1\t10 000\t10000\tNUM\tCD\t_\t0\troot\t_\t_

1\t#\t#\tSYM\t#\t_\t0\troot\t_\t_
"""


def read(tmp_path: Path, text: str | bytes, layout: ColumnFormat = CONLL, tags: bool = True) -> TaggedSentences:
    path = tmp_path / "x.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_conll(path, layout, require_tags=tags)


@pytest.mark.parametrize("change", ["plain", "crlf_bom", "no_end", "tabs"])
def test_conll_2003(tmp_path: Path, change: str) -> None:
    text = {
        "plain": NEWS,
        "crlf_bom": "\ufeff" + NEWS.replace("\n", "\r\n"),
        "no_end": NEWS.rstrip("\n"),
        "tabs": NEWS.replace(" ", "\t").replace("\n\n", "\n\t\n"),  # WNUT-17 ends sentences with a lone tab
    }[change]
    sentences = read(tmp_path, text)
    assert sentences.words == [["EU", "rejects"], ["Peter"], ["#", "1"]]
    assert sentences.tags == [["B-ORG", "O"], ["B-PER"], ["O", "O"]]
    assert sentences.lines == [3, 6, 10]
    assert sentences.has_documents
    assert sentences.documents[0] == sentences.documents[1] != sentences.documents[2]


def test_conllu(tmp_path: Path) -> None:
    sentences = read(tmp_path, TREE, UPOS)
    assert sentences.words == [["ca", "n't"], ["10 000"], ["#"]]
    assert sentences.tags == [["AUX", "PART"], ["NUM"], ["SYM"]]
    assert sentences.documents[0] != sentences.documents[1] == sentences.documents[2]
    packed = tmp_path / "x.conllu.zst"
    packed.write_bytes(zstandard.compress(TREE.encode()))
    assert read_conll(packed, UPOS, require_tags=True) == sentences


def test_without_document_marks_every_sentence_is_alone(tmp_path: Path) -> None:
    sentences = read(tmp_path, "a O\n\nb O\nc O\n")
    assert not sentences.has_documents
    assert len(set(sentences.documents)) == 2


def test_only_tabs_and_blanks_separate(tmp_path: Path) -> None:
    sentences = read(tmp_path, "a\u00a0b\tO\n\u2028\tB-X\n\tO\n")
    assert sentences.words == [["a\u00a0b", "\u2028", ""]]


def test_damaged_sentences_are_left_out_and_counted(tmp_path: Path) -> None:
    good = "a O\n\n" * 199
    sentences = read(tmp_path, good + "b O\nc\nd O\n")
    assert (len(sentences), sentences.counts["damaged_sentences"]) == (199, 1)
    sentences = read(tmp_path, good.encode() + b"\xff\xfe O\n")
    assert sentences.counts["damaged_sentences"] == 1


@pytest.mark.parametrize(
    ("text", "layout", "message"),
    [
        ("", CONLL, "has no examples"),
        ("a\nb\n", CONLL, r"x.txt:1: 1 columns.*can only be predicted"),
        ("a O\n", ColumnFormat("columns", 0, 3), r"x.txt:1: 2 columns, but the tag.*tag_column=3"),
        ("a O\nb X O\n", CONLL, r"(?s)x.txt:2: 3 columns, expected 2.*1 of 1 rows"),
        ("a O\n", UPOS, r"x.txt:1: 2 columns, expected 10"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, layout: ColumnFormat, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(tmp_path, text, layout)


def test_files_without_tags_can_be_read(tmp_path: Path) -> None:
    sentences = read(tmp_path, "a\nb\n\nc\n", tags=False)
    assert (sentences.words, sentences.tags) == ([["a", "b"], ["c"]], None)


def test_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="file_format='xml' is unknown; known: columns, conllu"):
        ColumnFormat("xml", 0, 1)


@pytest.mark.shared
def test_shared_files(shared_dir: Path) -> None:
    names = {"wnut17train.conll": 3394, "emerging.dev.conll": 1009, "emerging.test.annotated": 1287}
    for name, count in names.items():
        sentences = read_conll(shared_dir / "data/ner" / name, CONLL, require_tags=True)
        assert (len(sentences), sentences.counts["damaged_sentences"]) == (count, 0)
    sentences = read_conll(shared_dir / "data/pos/en_ewt-ud-dev.conllu.zst", UPOS, require_tags=True)
    assert (len(sentences), sum(map(len, sentences.words)), sentences.has_documents) == (2001, 25147, True)


@pytest.mark.parametrize("blank", [" ", "\t"])
def test_predictions_are_a_last_column(tmp_path: Path, blank: str) -> None:
    """Everything else stays as it was, so that conlleval finds the gold tags beside them."""
    text = NEWS.replace(" ", blank)
    sentences = read(tmp_path, text)
    tags = [f"T{i}" for i in range(sum(map(len, sentences.words)))]
    (tmp_path / "new.txt").write_text("\n".join(predicted_lines(tmp_path / "x.txt", CONLL, tags)))
    before, after = (path.read_text().rstrip("\n").split("\n") for path in (tmp_path / "x.txt", tmp_path / "new.txt"))
    assert [line.rpartition(blank)[0] if line else "" for line in after] == before
    again = read_conll(tmp_path / "new.txt", CONLL, require_tags=True)
    assert again.words == sentences.words and again.documents == sentences.documents
    assert [tag for sentence in again.tags or [] for tag in sentence] == tags


def test_predictions_of_words_alone(tmp_path: Path) -> None:
    read(tmp_path, "a\n\nb\n", tags=False)
    assert list(predicted_lines(tmp_path / "x.txt", CONLL, ["O", "B-X"])) == ["a O", "", "b B-X"]
    with pytest.raises(AssertionError, match="one tag a word"):
        list(predicted_lines(tmp_path / "x.txt", CONLL, ["O"] * 3))


def test_predictions_take_the_tags_place_in_conllu(tmp_path: Path) -> None:
    sentences = read(tmp_path, TREE, UPOS)
    tags = ["T" + str(i) for i in range(4)]
    (tmp_path / "new.txt").write_text("\n".join(predicted_lines(tmp_path / "x.txt", UPOS, tags)) + "\n")
    before, after = (path.read_text().split("\n") for path in (tmp_path / "x.txt", tmp_path / "new.txt"))
    assert len(before) == len(after) and sum(a != b for a, b in zip(before, after, strict=True)) == 4
    again = read_conll(tmp_path / "new.txt", UPOS, require_tags=True)
    assert again.words == sentences.words
    assert [tag for sentence in again.tags or [] for tag in sentence] == tags
