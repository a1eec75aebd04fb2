"""measure=retrieval on a BEIR folder: trec_eval's figures on the vectors of the encoder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clozelab
from clozelab.datamodules import retrieval as data_room

WORDS = ["the cat sat", "a dog ran", "cat", "dog a cat", "ran the", "sat sat a", "the dog", "a"]


def write_folder(folder: Path) -> tuple[dict[str, str], dict[str, str], dict[str, dict[str, int]]]:
    """Sixty documents, some of them equal, one without a text; graded judgements."""
    draw = np.random.default_rng(0)
    documents = {}
    for number in range(60):
        documents[f"d{number}"] = " ".join(draw.choice(WORDS, 3))
    documents["d3"] = documents["d40"] = documents["d7"]
    documents["q2"] = WORDS[2]  # a document with a query's id is no answer of it
    queries = {f"q{number}": text for number, text in enumerate(WORDS)}
    judgements = {}
    for query in list(queries)[:6]:
        names = draw.choice(list(documents), 9, replace=False).tolist()
        judgements[query] = dict(zip(names, draw.integers(0, 3, 9).tolist(), strict=True))
    judgements["q5"] = {"d1": 0}
    judgements["q4"]["lost"] = 1
    (folder / "qrels").mkdir(parents=True)
    lines = [
        {"_id": name, "title": text.split()[0], "text": " ".join(text.split()[1:])}
        for name, text in documents.items()
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    lines = [{"_id": name, "text": text} for name, text in queries.items()]
    (folder / "queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = ["query-id\tcorpus-id\tscore"]
    for query, grades in judgements.items():
        rows += [f"{query}\t{name}\t{grade}" for name, grade in grades.items()]
    (folder / "qrels/test.tsv").write_text("\n".join(rows) + "\n")
    return queries, documents, judgements


def test_figures_are_trec_evals(
    tmp_path: Path,
    save_encoder: Callable[..., Path],
    evaluate: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    oracle = pytest.importorskip("pytrec_eval")
    queries, documents, judgements = write_folder(tmp_path / "beir")
    encoder = save_encoder(tmp_path / "encoder")
    # Parts of seven documents: what is found does not depend on how they come.
    monkeypatch.setattr(data_room, "DOCUMENTS_AT_ONCE", 7)
    words = ["measure=retrieval", "measure.data.folder=beir", "measure.module.depth=20"]
    words.append("measure.module.prompts={query: 'a ', document: ''}")
    run = evaluate(*words)
    results = json.loads((run / "scores.json").read_text())
    assert results["num_examples"] == 6
    model = clozelab.load(encoder, precision="32-true")

    def vectors(texts: list[str]) -> Any:
        found = model.embed(texts, pooling="mean")
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    names = list(documents)
    similarities = (
        vectors([f"a {text}" for text in queries.values()]) @ vectors(list(documents.values())).T
    )
    written: dict[str, dict[str, float]] = {}
    for line in (run / "run.trec").read_text().splitlines():
        query, _, document, _, score, _ = line.split()
        expected = similarities[list(queries).index(query), names.index(document)]
        assert float(score) == pytest.approx(expected, abs=1e-5)
        written.setdefault(query, {})[document] = float(score)
    assert set(written) == set(judgements) and "q2" not in written["q2"]
    # Exactly as in the run: equal documents have one score.
    assert {len(hits) for hits in written.values()} == {20}
    measures = {"ndcg_cut_10": "ndcg_at_10", "map": "map", "recall_100": "recall_at_100"}
    theirs = oracle.RelevanceEvaluator(judgements, set(measures)).evaluate(written)
    for name, ours in measures.items():
        expected = np.mean([scores[name] for scores in theirs.values()])
        assert results["scores"][f"validation/{ours}"] == pytest.approx(expected, abs=1e-9)
    record = json.loads((run / "run.json").read_text())
    facts = record["facts"]["data"]
    assert facts["documents"] == 61 and facts["judged_documents_missing"] == 1
    assert facts["queries_without_judgements"] == 2


def test_ids_with_blanks_make_no_run_of_trec_eval(
    tmp_path: Path, save_encoder: Any, evaluate: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It would read their second words as further columns."""
    write_folder(tmp_path / "beir")
    for file in (tmp_path / "beir").rglob("*.*"):
        file.write_text(re.sub(r"\b([dq])(\d+)\b", r"\1 \2", file.read_text()))
    save_encoder(tmp_path / "encoder")
    run = evaluate("measure=retrieval", "measure.data.folder=beir")
    assert "run.trec is left out" in caplog.text and not (run / "run.trec").exists()
    assert json.loads((run / "scores.json").read_text())["num_examples"] == 6


def test_what_is_cut_is_counted_and_said(
    tmp_path: Path, save_encoder: Any, evaluate: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queries, documents, judgements = write_folder(tmp_path / "beir")
    save_encoder(tmp_path / "encoder")
    words = ["measure=retrieval", "measure.data.folder=beir", "measure.data.max_seq_length=5"]
    run = evaluate(*words, "measure.module.prompts={query: 'a ', document: ''}")
    facts = json.loads((run / "run.json").read_text())["facts"]["data"]
    # beside [CLS] and [SEP], and behind the prompt of a query
    num_queries = sum(len(queries[name].split()) > 2 for name in judgements)
    num_documents = sum(len(text.split()) > 3 for text in documents.values())
    assert (facts["cut_queries"], facts["cut_documents"]) == (num_queries, num_documents)
    assert min(num_queries, num_documents) > 0
    said = f"{num_documents} of 61 documents are longer than max_seq_length=5 and were cut"
    assert said in caplog.text


UNKNOWN = "\u4e00\u4e01\u4e02\u4e03\u4e04\u4e05"


def row(name: str, text: str = "a") -> str:
    return json.dumps({"_id": name, "text": text}) + "\n"


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("qrels/test.tsv", None, "qrels/test.tsv is missing (data_dir, measure.data.folder"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq77\td1\t1\n", "judges the query 'q77'"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\tx\n", "the score 'x' of q1 is no"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\n", "judges nothing"),
        ("corpus.jsonl", '{"id": "d1", "text": "a"}\n', "_id"),
        (
            "corpus.jsonl",
            row("d1") + row("d2") + row("d1"),
            "'d1' has two texts or more (1 such ids",
        ),
        ("queries.jsonl", row("q1") + row("q1", "cat"), "the id 'q1' has two texts or more"),
        ("corpus.jsonl", row("d1", UNKNOWN), "of the documents of measure retrieval are [UNK]"),
    ],
)
def test_a_wrong_folder_is_refused(
    tmp_path: Path, save_encoder: Any, evaluate: Any, file: str, text: str | None, reason: str
) -> None:
    write_folder(tmp_path / "beir")
    save_encoder(tmp_path / "encoder")
    if text is None:
        (tmp_path / "beir" / file).unlink()
    else:
        (tmp_path / "beir" / file).write_text(text)
    with pytest.raises(ValueError, match=re.escape(reason)):
        evaluate("measure=retrieval", "measure.data.folder=beir")


@pytest.mark.parametrize(
    "word", ["size=0", "size=-1", "size=99", "size=2.5", "depth=0", "depth=-2"]
)
def test_numbers_that_no_vector_or_list_has_are_refused(
    tmp_path: Path, save_encoder: Any, evaluate: Any, word: str
) -> None:
    """size=-1 left out the last number of each vector, and size=99 took all, without a word."""
    write_folder(tmp_path / "beir")
    save_encoder(tmp_path / "encoder")
    with pytest.raises(ValueError, match=re.escape(f"measure.module.{word}: ")):
        evaluate("measure=retrieval", "measure.data.folder=beir", f"measure.module.{word}")
