"""Sentence embeddings from the command line: trained on pairs, measured without training, searched,
exported.
"""

from __future__ import annotations

import json
import random
import shutil
import string
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.screens import shows
from tests.stages.conftest import TOKENIZER

import clozelab
from clozelab.cli import main
from clozelab.models.encoder import Encoder
from clozelab.modules.model import sentence_vectors, write_model
from clozelab.modules.sentence_folders import SentenceVectors, read_sentence_vectors

# The validation rows of the made STS-B stand in training as well.
SEEN = {"allow_validation_in_training": True}
RATE: dict[str, Any] = {"evaluations_per_epoch": 1, "learning_rate": 1e-3} | SEEN
QUICK = {"trainer": {"precision": "32-true", "threads": 1, "progress_bar": False}, "scale": "demo"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_config: Any) -> dict[str, Any]:
    """A random encoder, 96 pairs of a made STS-B, and a run of task=stsb_siamese on them with
    pooling=cls.
    """
    root = tmp_path_factory.mktemp("siamese")
    torch.manual_seed(1)
    encoder = Encoder(tiny_config(vocab_size=TOKENIZER.vocab_size))
    write_model(root / "encoder", encoder, {}, TOKENIZER)
    draw = random.Random(1)
    rows = ["index\tsentence1\tsentence2\tscore"]
    for number in range(96):
        first = draw.sample(string.ascii_lowercase, 5)
        same = draw.randint(0, 5)
        second = first[:same] + draw.sample(sorted({*string.ascii_lowercase} - {*first}), 5 - same)
        rows.append(f"{number}\t{' '.join(first)}\t{' '.join(draw.sample(second, 5))}\t{same}.000")
    (root / "glue/STS-B").mkdir(parents=True)
    for name, some in (("train", rows), ("dev", [rows[0], *rows[1:33]])):
        (root / f"glue/STS-B/{name}.tsv").write_text("\n".join(some) + "\n", encoding="utf-8")
    places: dict[str, Any] = {"data_dir": str(root), "cache_dir": str(root / "cache")}
    common = QUICK | places | {"runs_dir": str(root / "runs")}
    siamese: dict[str, Any] = {"task": "stsb_siamese", "pooling": "cls", "epochs": 20}
    run = clozelab.finetune(encoder=str(root / "encoder"), row="mine", **siamese, **RATE, **common)
    return {"root": root, "run": run, "common": common}


def predictions_of(run: Path) -> list[Any]:
    lines = (run / "predictions.jsonl").read_text().splitlines()
    return [json.loads(line)["prediction"] for line in lines]


def test_a_runs_model_is_a_folder_of_sentence_transformers(trained: dict[str, Any]) -> None:
    folder = trained["run"].folder / "model"
    assert sentence_vectors(folder) == SentenceVectors("cls")
    assert read_sentence_vectors(trained["root"] / "encoder") is None
    # A training that is told nothing else goes on with the folder's pooling.
    auto: dict[str, Any] = {"task": "stsb_siamese", "pooling": "auto", "epochs": 1}
    common = SEEN | trained["common"]
    again = clozelab.finetune(encoder=str(folder), row="again", **auto, **common)
    assert sentence_vectors(again.folder / "model") == SentenceVectors("cls")


def test_texts_alone_improve_the_vectors(trained: dict[str, Any]) -> None:
    encoder, common = str(trained["root"] / "encoder"), trained["common"]
    frozen = clozelab.evaluate(encoder=encoder, row="frozen", measure="similarity", **common)
    # The encoder's own dropout is 0.
    simcse = {"row": "simcse", "task": "stsb_simcse", "epochs": 20, "learning_rate": 1e-3}
    simcse |= SEEN | common
    with pytest.raises(ValueError, match="one column twice, and the encoder trains without"):
        clozelab.finetune("task.module.dropout=null", encoder=encoder, **simcse)
    run = clozelab.finetune(encoder=encoder, **simcse)
    assert run.values["validation/spearman"] > frozen.values["validation/spearman"] + 2


def test_a_run_is_scored_and_used_with_the_pooling_of_its_training(
    trained: Any, tmp_path: Path, capsys: Any
) -> None:
    run, common = trained["run"], trained["common"]
    model = clozelab.load(run.folder, precision="32-true")
    assert model.model.task == "embedding"
    assert model.model.config["clozelab"]["pooling"] == "cls"
    texts = ["a b c", "x y"]
    assert np.array_equal(model.embed(texts), model.embed(texts, pooling="cls"))
    assert np.abs(model.embed(texts) - model.embed(texts, pooling="mean")).max() > 1e-3
    # Measured without training, its own pooling again; the encoder that it was made from, by the
    # mean.
    again = clozelab.evaluate(
        encoder=str(run.folder / "model"), row="mine", measure="similarity", **common
    )
    assert again.values["validation/spearman"] == pytest.approx(
        run.values["validation/spearman"], abs=1e-3
    )
    encoder = str(trained["root"] / "encoder")
    untrained: dict[str, Any] = {"encoder": encoder, "measure": "similarity", **common}
    mean, cls = (
        clozelab.evaluate(row=one, pooling=one, **untrained).values for one in ("mean", "cls")
    )
    assert cls["validation/spearman"] < run.values["validation/spearman"] - 5
    assert mean != cls
    assert all(-5 <= prediction <= 5.001 for prediction in predictions_of(run.folder))
    to = [f"to={tmp_path / 'st'}", "format=sentence_transformers"]
    assert main(["export", str(run.folder), *to]) == 0
    pooling = json.loads((tmp_path / "st/1_Pooling/config.json").read_text())
    assert pooling["pooling_mode_cls_token"]
    assert not pooling["pooling_mode_mean_tokens"]
    assert "pooling" in clozelab.load(tmp_path / "st").model.config["clozelab"], (
        "it is remembered there, too"
    )


def test_classes_are_told_from_two_embeddings_also_of_a_test_file(trained: Any) -> None:
    """The matrix stays in the folder for `predict RUN --test`; transformers reads past it."""
    root, common = trained["root"], trained["common"]
    lines = (root / "glue/STS-B/train.tsv").read_text().splitlines()[1:]
    cells = [line.split("\t") for line in lines]
    labelled = [
        f"{i}\t{a}\t{b}\t{'not_' * (float(score) < 3)}entailment" for i, a, b, score in cells
    ]
    (root / "glue/RTE").mkdir()
    header = "index\tsentence1\tsentence2"
    for name, some in (("train", labelled), ("dev", labelled[:32])):
        (root / f"glue/RTE/{name}.tsv").write_text("\n".join([f"{header}\tlabel", *some]) + "\n")
    test = "\n".join([header, *("\t".join(row[:3]) for row in cells[:32])])
    (root / "glue/RTE/test.tsv").write_text(test + "\n")
    rte: dict[str, Any] = {"encoder": str(root / "encoder"), "row": "mine", "task": "rte"}
    run = clozelab.finetune("+task/format@task=siamese", **rte, epochs=1, **RATE, **common)
    assert main(["predict", str(run.folder), "--test"]) == 0
    lines = (run.folder / "test_predictions/RTE.tsv").read_text().splitlines()[1:]
    test_predictions = [line.split("\t")[1] for line in lines]
    assert test_predictions == predictions_of(run.folder)
    assert len(test_predictions) == 32
    config = json.loads((run.folder / "model/config.json").read_text())
    assert (config["architectures"], config["clozelab"]["pooling"]) == (["BertModel"], "mean")
    transformers = pytest.importorskip("transformers")
    ours = clozelab.load(run.folder, precision="32-true")
    theirs = transformers.AutoModel.from_pretrained(run.folder / "model").eval()
    text = TOKENIZER.encode_batch(["a b"])[0].tolist()
    ids = torch.tensor([[TOKENIZER.cls_id, *text, TOKENIZER.sep_id]])
    with torch.inference_mode():
        mean = theirs(ids).last_hidden_state[0].mean(0)
    assert np.abs(ours.embed("a b") - mean.numpy()).max() <= 1e-5


def test_a_named_pooling_searches_where_the_folders_own_is_not_computed(
    trained: Any, tmp_path: Path, capsys: Any
) -> None:
    folder, file = tmp_path / "dense", tmp_path / "lines.txt"
    copytree(trained["run"].folder / "model", folder, ignore=ignore_patterns("checksums.json"))
    modules = [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    file.write_text("a b c d e\nv w x y z\n")
    words = ["search", str(folder), "query=a b c d e", f"in={file}", "top_k=1"]
    words.append(f"cache_dir={tmp_path / 'cache'}")
    assert main(words) == 1
    assert "a Dense module" in " ".join(capsys.readouterr().err.split())
    assert main([*words, "pooling=mean"]) == 0
    assert capsys.readouterr().out.startswith("1.0000\t1\t")


def test_search_embeds_once_for_each_model(trained: Any, tmp_path: Path, capsys: Any) -> None:
    run, file = trained["run"].folder, tmp_path / "lines.txt"
    file.write_text("a b c d e\nv w x y z\ne d c b a\n", encoding="utf-8")
    cache = tmp_path / "cache"

    def search(model: Path, *words: str) -> tuple[int, list[str]]:
        capsys.readouterr()
        places = [f"in={file}", f"cache_dir={cache}"]
        status = main(
            ["search", str(model), "query=a b c d e", "precision=32-true", *places, *words]
        )
        return status, capsys.readouterr().out.splitlines()

    def kept() -> list[Path]:
        return sorted(cache.glob("embeddings/*/vectors.npy"))

    status, lines = search(run, "top_k=2")
    assert status == 0
    assert len(lines) == 2
    assert lines[0] == "1.0000\t1\ta b c d e"
    (path,) = kept()
    vectors = np.load(path)
    model = clozelab.load(run, precision="32-true")
    assert np.abs(vectors - model.embed(file.read_text().splitlines())).max() <= 1e-6
    cosine = vectors[0] @ vectors[2] / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[2])
    stamp = path.stat().st_mtime_ns
    hits = [json.loads(line) for line in search(run, "--json")[1]]
    assert path.stat().st_mtime_ns == stamp, "embedded once"
    assert next(one for one in hits if one["line"] == 3)["cosine"] == pytest.approx(
        cosine, abs=1e-4
    )
    # Another model, another pooling and other lines have vectors of their own.
    assert search(trained["root"] / "encoder")[0] == 0
    assert search(run, "pooling=mean")[0] == 0
    assert len(kept()) == 3
    file.write_text("v w x y z\na b c d e\n", encoding="utf-8")
    status, lines = search(run)
    assert status == 0
    assert lines[0].startswith("1.0000\t2\t")
    (new,) = set(kept()) - {path} - {one for one in kept() if len(np.load(one)) == 3}
    new.write_bytes(b"half")
    assert search(run)[1] == lines, "what is damaged is not taken"
    assert sorted(tmp_path.iterdir()) == [cache, file], "nothing is written beside the file"
    assert search(run, "top_k=0")[0] == 1
    assert main(["search", str(run), "query=a"]) == 1


def trained_on(trained: dict[str, Any], run: Path, **data: Any) -> None:
    """A copy of the run whose record says other columns."""
    copytree(trained["run"].folder, run)
    record = json.loads((run / "run.json").read_text())
    record["config"]["task"]["data"] |= data
    (run / "run.json").write_text(json.dumps(record))


def test_a_search_reads_the_columns_that_the_model_was_trained_on(
    trained: Any, tmp_path: Path, capsys: Any
) -> None:
    run, file = tmp_path / "run", tmp_path / "faq.tsv"
    trained_on(trained, run, text_columns=["ask"])
    file.write_text("ask\tsay\nv w x y z\ta b c d e\na b c d e\tv w x y z\n")
    words = [f"in={file}", f"cache_dir={tmp_path / 'cache'}", "top_k=1"]
    assert main(["search", str(run), "query=a b c d e", *words]) == 0
    assert capsys.readouterr().out.endswith("\t3\ta b c d e\n")


def test_a_search_in_pairs_asks_for_the_column(
    trained: dict[str, Any], tmp_path: Path, capsys: Any
) -> None:
    """Each tower of the run read one of the two columns, and none read both."""
    (tmp_path / "faq.tsv").write_text("sentence1\tsentence2\na b c\tv w x\nk l m\td e f\n")
    words = ["query=d e f", f"in={tmp_path / 'faq.tsv'}", f"cache_dir={tmp_path}", "top_k=1"]
    assert main(["search", str(trained["run"].folder), *words]) != 0
    shows(capsys.readouterr().err, "embeds single texts, and text 1 is a pair: name the one column")
    assert main(["search", str(trained["run"].folder), "text=sentence2", *words]) == 0
    assert capsys.readouterr().out == "1.0000\t3\td e f\n"


def test_a_retrieval_run_searches_passages_for_queries(
    trained: dict[str, Any], tmp_path: Path, capsys: Any
) -> None:
    run, file = tmp_path / "run", tmp_path / "faq.tsv"
    trained_on(trained, run, text_columns=["ask", "say"], negative_columns=[])
    file.write_text("ask\tsay\na b c d e\tv w x y z\nv w x y z\ta b c d e\n")
    words = [f"in={file}", f"cache_dir={tmp_path / 'cache'}", "top_k=1"]
    assert main(["search", str(run), "query=a b c d e", *words]) == 0
    assert capsys.readouterr().out.endswith("\t3\ta b c d e\n")
    assert main(["search", str(run / "model"), f"queries={file}", *words]) == 0
    hits = [line.split("\t")[-1] for line in capsys.readouterr().out.splitlines()]
    assert hits == ["# a b c d e", "a b c d e", "# v w x y z", "v w x y z"]


@pytest.mark.parametrize(("words", "line"), [([], 1), (["text=text"], 2)])
def test_a_documents_title_is_read_before_its_text(
    trained: Any, tmp_path: Path, capsys: Any, words: list[str], line: int
) -> None:
    """As measure=retrieval reads a BEIR folder, unless the column is named."""
    documents = [{"title": "a b c", "text": "d e"}, {"title": "v w x", "text": "a b c d e"}]
    objects = [{"_id": f"d{number}", **document} for number, document in enumerate(documents)]
    file = tmp_path / "corpus.jsonl"
    file.write_text("".join(f"{json.dumps(document)}\n" for document in objects))
    words += [f"in={file}", f"cache_dir={trained['root'] / 'titles'}", "top_k=1", "--json"]
    run = str(trained["run"].folder)
    assert main(["search", run, "query=a b c d e", "precision=32-true", *words]) == 0
    hit = json.loads(capsys.readouterr().out)
    assert (hit["line"], hit["cosine"]) == (line, 1.0)
    assert hit["text"] == documents[line - 1]["text"], "the record is as it stands there"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("q.txt", "a b c d e\n\nv w x y z\n"),
        ("q.csv", 'text,label\n"a b c d e",ok\n,ok\nv w x y z,\n'),
        ("q.tsv", "label\ttext\nok\ta b c d e\nok\tv w x y z\n"),
        ("q.jsonl", '{"text": "a b c d e", "id": 1}\n{"text": "v w x y z", "id": 2}\n'),
        ("q.json", '[{"text": "a b c d e"}, {"text": "v w x y z"}]'),
        # `ask` is a column of the searched file and of this one, which has a `text` as well
        ("asked.csv", "text,ask\nx y z,a b c d e\nx y z,v w x y z\n"),
    ],
)
def test_queries_of_a_table_are_its_texts(
    trained: Any, tmp_path: Path, capsys: Any, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    (tmp_path / "faq.csv").write_text("id,ask\n1,v w x y z\n2,a b c d e\n")
    words = [f"queries={tmp_path / name}", f"in={tmp_path / 'faq.csv'}", "text=ask", "top_k=1"]
    words += ["precision=32-true", f"cache_dir={tmp_path / 'cache'}", "--json"]
    assert main(["search", str(trained["run"].folder), *words]) == 0
    hits = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    queries = ["a b c d e", "v w x y z"]
    assert [(hit["query"], hit["ask"], hit["cosine"]) for hit in hits] == [
        (query, query, 1.0) for query in queries
    ]
    assert all("row" not in hit for hit in hits)


def test_columns_that_are_called_as_a_hits_own_stand_below_row(
    trained: Any, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "q.txt").write_text("a b c d e\nv w x y z\n")
    (tmp_path / "pairs.csv").write_text("line,query,passage\n7,what,v w x y z\n8,who,a b c d e\n")
    words = [f"in={tmp_path / 'pairs.csv'}", "text=passage", "top_k=1", "--json"]
    words += ["precision=32-true", f"cache_dir={tmp_path / 'cache'}"]
    run = str(trained["run"].folder)
    first = {"line": "7", "query": "what", "passage": "v w x y z"}
    second = {"line": "8", "query": "who", "passage": "a b c d e"}
    for given, replaced, queries, rows in (
        (
            f"queries={tmp_path / 'q.txt'}",
            "line, query",
            ["a b c d e", "v w x y z"],
            [second, first],
        ),
        ("query=a b c d e", "line", ["who"], [second]),
    ):
        assert main(["search", run, given, *words]) == 0
        out, err = capsys.readouterr()
        assert err.count(f"pairs.csv: {replaced} of a hit is the search's own; the file's") == 1
        hits = [json.loads(line) for line in out.splitlines()]
        assert [hit["query"] for hit in hits] == queries
        assert [hit["row"] for hit in hits] == rows


@pytest.mark.parametrize(
    ("word", "content", "message"),
    [
        ("query= ", "", "query= is empty: say what to search for"),
        ("queries=q.csv", "ask,say\na,b\n", "nobody can tell which is the text"),
        ("queries=q.csv", "text,pair\na,b\n", "has two texts a row, and a query is one"),
        ("queries=q.jsonl", '{"text": "a"}\n{"text": 5}\n', "q.jsonl:2 holds no text"),
        ("queries=q.jsonl", '{"text": "a"}\n{"te\n', "q.jsonl:2 is damaged: no JSON object"),
        ("queries=q.txt", "\n \n", "queries=q.txt has no text to search for"),
    ],
)
def test_queries_that_are_no_texts_are_refused(
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    content: str,
    message: str,
) -> None:
    """Before a model is loaded: here is none."""
    monkeypatch.chdir(tmp_path)
    if content:
        Path(word.partition("=")[2]).write_text(content)
    Path("lines.txt").write_text("a b c\n")
    assert main(["search", "model", word, "in=lines.txt"]) == 1
    assert message in " ".join(capsys.readouterr().err.split())


def test_any_text_file_is_searched(trained: Any, tmp_path: Path, capsys: Any) -> None:
    """Blank lines have a vector and are never among the answers; a line that cannot be read is
    counted.
    """
    file = tmp_path / "README.md"
    file.write_text("a b c\n\n\td e\n\U0001f600\n  \nx y z\n", encoding="utf-8")
    cache = tmp_path / "cache"
    words = [str(trained["run"].folder), "query=a b c", "precision=32-true", f"cache_dir={cache}"]
    capsys.readouterr()
    assert main(["search", *words, f"in={file}", "top_k=9"]) == 0
    out, err = capsys.readouterr()
    lines = [int(line.split("\t")[1]) for line in out.splitlines()]
    assert lines[0] == 1
    assert sorted(lines) == [1, 3, 6]
    shows(err, "has no token but [UNK], so the model sees nothing of it: is it in the")
    (path,) = cache.glob("embeddings/*/vectors.npy")
    kept = np.load(path)
    assert np.isnan(kept[3]).all()
    assert np.isfinite(kept[[0, 1, 2, 4, 5]]).all()
    # With kept vectors, too, such a line is counted, or refused.
    assert main(["search", *words, f"in={file}", "top_k=9"]) == 0
    shows(capsys.readouterr().err, "1 of 6 texts", "has no token but [UNK]")
    assert main(["search", *words, f"in={file}", "errors=raise"]) == 1
    shows(capsys.readouterr().err, "README.md:4 has no token but [UNK], so the model sees nothing")
    (tmp_path / "queries.txt").write_text("a b\n\U0001f600\n", encoding="utf-8")
    queries = [words[0], f"queries={tmp_path / 'queries.txt'}", *words[2:]]
    assert main(["search", *queries, f"in={file}"]) == 1
    shows(capsys.readouterr().err, "query '\U0001f600' has no token but [UNK]")
    # Where no line can be read, that is what is said, each time.
    (tmp_path / "none.txt").write_text("\U0001f600\n\U0001f601\n", encoding="utf-8")
    for _ in range(2):
        assert main(["search", *words, f"in={tmp_path / 'none.txt'}"]) == 1
        shows(capsys.readouterr().err, "none.txt:1 has no token but [UNK]", "none of the other 1")
    for name, content in (("blank.txt", "\n  \n"), ("blank.csv", "id,text\n1,\n2,\n")):
        (tmp_path / name).write_text(content)
        assert main(["search", *words, f"in={tmp_path / name}"]) == 1
        shows(capsys.readouterr().err, f"{name} has no text to search in")
    (tmp_path / "faq.csv").write_text('id,ask\n1,"x y\nz"\n2,a b c\n')
    words += [f"in={tmp_path / 'faq.csv'}", "text=ask", "--json", "top_k=1"]
    assert main(["search", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"id": "2", "ask": "a b c", "line": 4, "cosine": 1.0}


def test_cut_lines_are_counted_each_time(trained: Any, tmp_path: Path, caplog: Any) -> None:
    file = tmp_path / "long.txt"
    file.write_text(f"a b c\n{'a ' * 300}\n", encoding="utf-8")
    words = [str(trained["run"].folder), "query=a b", "precision=32-true"]
    for _ in range(2):  # the second time from the cache
        caplog.clear()
        assert main(["search", *words, f"in={file}", f"cache_dir={tmp_path / 'cache'}"]) == 0
        assert caplog.text.count("1 text cut at the") == 1


def test_a_line_is_shown_with_its_own_number_and_a_file_of_weights_is_a_model(
    trained: Any, tmp_path: Path, capsys: Any
) -> None:
    folder, file = tmp_path / "m", tmp_path / "lines.jsonl"
    shutil.copytree(trained["run"].folder / "model", folder)
    weights = load_file(folder / "model.safetensors")
    save_file({name: 1.5 * value for name, value in weights.items()}, folder / "other.safetensors")
    rows = [{"text": "v w x y z", "line": 7, "cosine": 1.0}]
    rows.append({"text": "a b c d e", "line": 8, "cosine": 0.0})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    cache = tmp_path / "cache"
    words = ["query=a b c d e", f"in={file}", "precision=32-true", f"cache_dir={cache}", "--json"]

    def search(model: Path) -> tuple[int, Any]:
        capsys.readouterr()
        status = main(["search", str(model), *words])
        return status, capsys.readouterr()

    status, captured = search(folder / "model.safetensors")
    assert status == 0, captured.err
    best, worse = map(json.loads, captured.out.splitlines())
    assert (best["line"], worse["line"], best["cosine"]) == (2, 1, 1.0)
    assert worse["cosine"] < 1.0
    status, captured = search(folder / "other.safetensors")
    assert status == 0, captured.err
    assert len(list(cache.glob("embeddings/*"))) == 2, "one of several files of weights"
