"""The endpoint: what it answers, what it refuses, and that a crowd is answered together."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.screens import shows

import clozelab
from clozelab.cli import main
from clozelab.modules import serving
from clozelab.modules.serving import MAX_WAITING, PendingRequest, build_app
from clozelab.readers.records import PlacedRow

testing = pytest.importorskip("starlette.testclient", reason="needs pip install 'clozelab[serve]'")


@pytest.fixture
def client(predictor: Any) -> Iterator[Any]:
    app = build_app(predictor, max_bytes=2000)
    with testing.TestClient(app, raise_server_exceptions=False) as client:
        yield client


def predictions(client: Any, body: dict[str, Any]) -> list[Any]:
    answer = client.post("/predict", json=body)
    assert answer.status_code == 200
    found: list[Any] = answer.json()["predictions"]
    return found


def test_it_answers_as_predict(client: Any, predictor: Any) -> None:
    assert predictions(client, {"text": "a b c"}) == [predictor.classify("a b c").to_dict()]
    records = [{"text": "a b", "pair": "c"}, {"text": "x", "pair": "y z"}]
    found = predictions(client, {"do": "classify", "records": records})
    pairs = predictor.classify([("a b", "c"), ("x", "y z")])
    assert found == [answer.to_dict() for answer in pairs]
    vectors = predictions(client, {"do": "embed", "pooling": "cls", "text": "q r"})
    assert np.array_equal(np.float32(vectors[0]), predictor.embed("q r", pooling="cls"))
    health = client.get("/health").json()
    assert (health["status"], health["waiting"], health["labels"]) == ("ok", 0, ["no", "yes"])
    assert health["architecture"] == "BertForSequenceClassification"


def test_health_calls_labels_as_answers_do(predictor: Any) -> None:
    renamed = clozelab.load(predictor.model.folder, label_names={"no": "bad"})
    with testing.TestClient(build_app(renamed, max_bytes=2000)) as client:
        labels = client.get("/health").json()["labels"]
        (answer,) = predictions(client, {"text": "a b c"})
    assert labels == [*answer["probabilities"]] == ["bad", "yes"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("[1]", 400, "send a JSON object"),
        ("{", 400, "send a JSON object"),
        ("[" * 1500, 400, "send a JSON object"),
        ('{"text": 3}', 400, "record 1 has 3 as 'text': a string was expected"),
        ('{"pair": "a"}', 400, "record 1 has pair alone: do=classify reads text, pair"),
        (
            '{"text": "a", "sentence2": "b"}',
            400,
            "record 1 has 'sentence2', which nothing reads; did you mean 'pair'?",
        ),
        ('{"txt": "a"}', 400, "did you mean 'text'?"),
        ('{"text": "a", "words": ["b"]}', 400, "'words', which do=classify does not read"),
        ('{"text": "a", "errors": "ignore"}', 400, "errors=ignore: choose one of mark, raise"),
        ('{"records": [{"text": "a"}, {"text": ""}], "errors": "raise"}', 400, "record 2 is empty"),
        ('{"records": [{"text": ""}, {"text": null}]}', 400, "record 1 is empty"),
        ('{"text": ""}', 400, "record 1 is empty"),
        ('{"text": "a", "do": "sing"}', 400, "do=sing: choose one of"),
        ('{"text": "a", "do": ["tag"]}', 400, "do=['tag']: choose one of"),
        ('{"text": "a", "do": "tag"}', 400, "its tags head was never trained"),
        ('{"text": "a", "top_k": 3}', 400, "top_k=3 is nothing for do=classify"),
        ('{"records": [{"text": "a"}], "pair": "b"}', 400, "pair stands beside records"),
        ('{"records": []}', 400, "records is a list of objects"),
        (json.dumps({"text": "a " * 1000}), 413, "a request has at most 2000 bytes"),
        (json.dumps({"text": "a " * 900}), 400, "reads 64 at once"),
    ],
)
def test_what_is_wrong_is_said_in_json(client: Any, body: str, status: int, said: str) -> None:
    answer = client.post("/predict", content=body)
    assert answer.status_code == status
    assert said in answer.json()["error"]


def test_an_odd_record_takes_no_other_along(client: Any, predictor: Any) -> None:
    records = [{"text": "a b"}, {"text": ""}, {"text": None}, {"text": "a " * 100}, {"text": "c"}]
    first, *odd, last = predictions(client, {"records": records})
    expected = [one.label for one in predictor.classify(["a b", "c"])]
    assert [first["label"], last["label"]] == expected
    for found, word in zip(odd, ("is empty", "has no 'text'", "has 102 tokens"), strict=True):
        assert found.keys() == {"error"}
        assert word in found["error"]
    vectors = predictions(client, {"do": "embed", "records": [{"text": ""}]})
    assert np.array_equal(np.float32(vectors[0]), predictor.embed([""])[0])


def test_a_text_that_was_cut_is_named_to_who_sent_it(
    client: Any, predictor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    provenance = {**predictor.model.provenance, "max_seq_length": 10}
    monkeypatch.setitem(predictor.model.config, "clozelab", provenance)
    long, short, empty = {"text": "a b " * 50}, {"text": "a"}, {"text": ""}
    answer = client.post("/predict", json={"records": [empty, long, short, long]}).json()
    assert answer["cut"] == [2, 4] and "label" in answer["predictions"][1]
    assert client.post("/predict", json=long).json()["cut"] == [1]
    for body in (short, {"do": "embed", **short}):
        assert "cut" not in client.post("/predict", json=body).json()
    # Of two requests in one batch each hears of its own texts.
    requests = []
    for records in ([short, short], [empty, long]):
        rows = [PlacedRow("record", record, None) for record in records]
        requests.append(PendingRequest("", "classify", {}, rows, True, answer=None))
    first, second = map(dict, serving.answer_batch(predictor, requests))
    assert "cut" not in first and second["cut"] == [2]


SINGLE: dict[str, Any] = {"text": "a b"}
TWO: dict[str, Any] = {"text": "a b", "pair": "c"}


@pytest.mark.parametrize(
    ("trained", "read", "other", "said"),
    [
        (1, SINGLE, TWO, "is a pair, and single texts are read here"),
        (2, TWO, SINGLE, "is a single text, and pairs are read here"),
    ],
)
def test_a_record_of_another_kind_takes_no_other_along(
    client: Any,
    predictor: Any,
    monkeypatch: pytest.MonkeyPatch,
    trained: int,
    read: dict[str, Any],
    other: dict[str, Any],
    said: str,
) -> None:
    # Nobody knows what it was trained on: the first record says it.
    answers = predictions(client, {"records": [read, other, read]})
    assert ["label" in answer for answer in answers] == [True, False, True]
    assert said in answers[1]["error"]
    provenance = {**predictor.model.provenance, "texts_per_example": trained}
    monkeypatch.setitem(predictor.model.config, "clozelab", provenance)
    answers = predictions(client, {"records": [other, read]})
    assert said in answers[0]["error"] and "label" in answers[1]
    for body in ({"records": [read, other], "errors": "raise"}, other):
        answer = client.post("/predict", json=body)
        assert answer.status_code == 400 and said in answer.json()["error"]


def test_other_places_are_errors_in_json(
    client: Any, predictor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get("/nothing").status_code == 404
    assert "error" in client.get("/nothing").json()
    assert client.get("/predict").status_code == 405

    def break_down(batches: Any) -> Any:
        raise RuntimeError("out of memory at /home/somebody")

    monkeypatch.setattr(predictor, "progress", break_down)
    broken = client.post("/predict", json={"text": "a"})
    assert broken.status_code == 500
    assert broken.json() == {"error": "RuntimeError in the model"}
    monkeypatch.undo()
    assert client.post("/predict", json={"text": "a"}).status_code == 200, "and it goes on"


def test_a_crowd_is_answered_together_and_each_hears_of_its_own_mistake(
    client: Any, predictor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, sizes = threading.Event(), []

    def hold(batches: Any) -> Any:
        sizes.append(sum(map(len, batches)))
        gate.wait(30)
        return batches

    def ask(text: str) -> Any:
        return client.post("/predict", json={"text": text})

    def crowd(texts: list[str]) -> list[Any]:
        gate.clear()
        sizes.clear()
        with ThreadPoolExecutor(32) as pool:
            first = pool.submit(ask, "x")
            while not sizes:
                time.sleep(0.01)
            pending = [pool.submit(ask, text) for text in texts]
            while client.get("/health").json()["waiting"] < len(texts):
                time.sleep(0.01)
            gate.set()
            return [one.result() for one in (first, *pending)]

    monkeypatch.setattr(predictor, "progress", hold)
    texts = ["a b", "c", "d e f"] * 3
    answers = crowd(texts)
    assert sizes == [1, 9], "what waited while the first was read is one batch"
    expected = [predictor.classify(text).to_dict() for text in ["x", *texts]]
    found = [one.json()["predictions"][0] for one in answers]
    assert [one["label"] for one in found] == [one["label"] for one in expected]
    assert [one["probability"] for one in found] == pytest.approx(
        [one["probability"] for one in expected], abs=1e-6
    )
    answers = crowd(["a", "", "b"])
    assert [one.status_code for one in answers] == [200, 200, 400, 200]
    shows(answers[2].json()["error"], "record 1 is empty: there is nothing to read")
    assert len(crowd(["a"] * 5)) == 6
    assert MAX_WAITING >= 64


def test_who_comes_when_too_many_wait_is_told_so(
    predictor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(predictor, "progress", lambda batches: gate.wait(30) and batches)
    monkeypatch.setattr(serving, "MAX_WAITING", 2)
    with (
        testing.TestClient(build_app(predictor, max_bytes=2000)) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        pending = [pool.submit(client.post, "/predict", json={"text": "a"}) for _ in range(6)]
        refused = next(iter(as_completed(pending))).result()
        assert refused.status_code == 503
        assert refused.json()["error"] == "2 requests wait already; ask again later"
        gate.set()
        answers = [one.result().status_code for one in pending]
    assert set(answers) == {200, 503} and answers.count(200) >= 2, "those that waited are answered"


def test_words_that_it_does_not_take(
    predictor: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(predictor.model.folder)
    for word in ("port=0", "port=x", "max_bytes=-1"):
        assert main(["serve", str(folder), word]) == 1
        assert f"{word}: give a whole number" in capsys.readouterr().err
    asked: dict[str, Any] = {}
    monkeypatch.setattr("uvicorn.run", lambda app, **options: asked.update(options))
    assert main(["serve", str(folder), "device=cpu"]) == 0
    assert (asked["host"], asked["port"]) == ("127.0.0.1", 8000), "this machine alone"
    monkeypatch.setattr("uvicorn.run", lambda *_, **__: (_ for _ in ()).throw(SystemExit(143)))
    capsys.readouterr()
    assert main(["serve", str(folder), "device=cpu"]) == 0
    shows(capsys.readouterr().err, "serve: reading")
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    assert main(["serve", str(folder)]) == 1
    shows(capsys.readouterr().err, "error: serve needs uvicorn: pip install 'clozelab[serve]'")
