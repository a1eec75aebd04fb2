"""Probes of frozen states: scikit-learn's regression, controls; and fine-tuned models."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.composing import composed, run_stage
from tests.screens import refuses, shows
from tests.tasks.labelled_files import read_task
from torch import nn

from clozelab.models.encoder import Encoder
from clozelab.models.heads import BiLSTM
from clozelab.models.registry import family_for
from clozelab.modules.measures import (
    CONVERGED,
    Probe,
    control_labels,
    logistic_regression,
    mix_weights,
    online_code_length,
)
from clozelab.modules.model import write_model
from clozelab.modules.model_tasks import MULTI_LABEL
from clozelab.runs.find import find
from clozelab.tasks.several_classes import SeveralClassesTarget


@pytest.mark.parametrize("num_classes", [2, 5])
def test_the_regression_is_scikit_learns(num_classes: int) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    x, direction = rng.normal(size=(300, 7)), rng.normal(size=(7, num_classes))
    labels = (x @ direction + rng.gumbel(size=(300, num_classes))).argmax(1)
    theirs = linear_model.LogisticRegression(C=0.3, tol=1e-9, max_iter=5000).fit(x, labels)
    weights, gradient = logistic_regression(
        x, labels, num_classes, strength=0.3, max_iterations=1000
    )
    scores = x @ weights[:-1] + weights[-1]
    expected = theirs.predict_log_proba(x)
    found = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    assert np.abs(found - expected).max() < 1e-4
    assert (scores.argmax(1) == theirs.predict(x)).all()
    assert gradient < CONVERGED
    _, early = logistic_regression(x, labels, num_classes, strength=0.3, max_iterations=2)
    assert early > CONVERGED


def labelled_states(num: int = 400, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(num, 5))
    return x, (2 * x @ rng.normal(size=(5, classes)) + rng.gumbel(size=(num, classes))).argmax(1)


def test_a_code_length_is_that_of_a_plain_loop() -> None:
    """One label after the other, by scikit-learn's probabilities."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    x, labels = labelled_states()
    order = np.random.default_rng(0).permutation(400)
    bits, start = 0.0, 0
    for end in (1, 2, 3, 6, 13, 25, 50, 100, 200, 400):  # 0.1 % to 100 %; 0.4 and 0.8 are 0 and 1
        seen = order[:start]
        has_classes = len(set(labels[seen])) > 1
        probe = linear_model.LogisticRegression(C=1.0, tol=1e-10, max_iter=9999)
        if has_classes:
            probe.fit(x[seen], labels[seen])
        for number in order[start:end]:
            found = dict.fromkeys(labels[seen].tolist(), 1.0)
            if has_classes:
                (of_classes,) = probe.predict_proba(x[[number]])
                found = dict(zip(probe.classes_.tolist(), of_classes, strict=True))
            bits -= np.log2((start * found.get(int(labels[number]), 0.0) + 1) / (start + 3))
        start = end
    solver = {"strength": 1.0, "max_iterations": 2000}
    found_bits = online_code_length(x, labels, 3, **solver)
    assert found_bits == pytest.approx(bits / 400, rel=1e-5)
    # negative control: labels that the states do not tell cost what they cost without states
    shuffled = np.random.default_rng(2).permutation(labels)
    assert online_code_length(x, shuffled, 3, **solver) > np.log2(3) > 1.3 * bits / 400


def test_a_mix_is_the_best_probe_of_a_weighted_sum() -> None:
    """With the learnt shares scikit-learn has the same classifier, with others a worse one."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    x, labels = labelled_states()
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(3, *x.shape))
    layers = np.stack([noise[0], x + 0.5 * noise[1], x + 0.8 * noise[2]], axis=1)
    weights, gradient = logistic_regression(layers, labels, 3, strength=1.0, max_iterations=2000)
    shares = mix_weights(weights, 3)
    assert gradient < CONVERGED and shares.sum() == pytest.approx(1.0)
    assert shares[1] > shares[2] > shares[0] >= 0.0

    def fitted(shares: np.ndarray) -> tuple[float, np.ndarray]:
        mixed = np.einsum("nch,c->nh", layers, shares)
        probe = linear_model.LogisticRegression(C=1.0, tol=1e-10, max_iter=9999).fit(mixed, labels)
        log_probs = probe.predict_log_proba(mixed)
        loss = -log_probs[np.arange(400), labels].sum() + 0.5 * np.square(probe.coef_).sum()
        return loss, log_probs

    loss, expected = fitted(shares)
    scores = layers.reshape(400, -1) @ weights[:-1] + weights[-1]
    found = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    assert np.abs(found - expected).max() < 1e-3
    for other in ([0.1, -0.1, 0.0], [0.0, -0.1, 0.1], [0.0, 0.02, -0.02]):
        moved = np.clip(shares + other, 0.0, 1.0)
        assert fitted(moved / moved.sum())[0] > loss


def test_a_control_label_is_a_words_own() -> None:
    words = [f"word{i}" for i in range(3000)]
    train, asked = control_labels(words + words[:10], words[::-1], 7)
    assert (train[:3000] == asked[::-1]).all() and (train[:10] == train[3000:]).all()
    assert np.bincount(asked).min() > 0.8 * len(asked) / 7


TAGS = {
    "the": "D",
    "a": "D",
    "cat": "N",
    "dog": "N",
    "mat": "N",
    "hill": "N",
    "sat": "V",
    "ran": "V",
    "red": "A",
}


def write_tagged(path: Path, number: int, seed: int) -> None:
    """A word's tag is its own, but for `fast`, whose tag is that of the word behind it."""
    rng = np.random.default_rng(seed)
    blocks = []
    for _ in range(number):
        words = list(rng.choice([*TAGS], 6))
        lines = [f"{word} {TAGS[word]}" for word in words]
        blocks.append("\n".join([*lines, f"fast {TAGS[words[-1]]}"]))
    path.write_text("\n\n".join(blocks) + "\n")


@pytest.fixture
def tagged(tmp_path: Path, save_encoder: Callable[..., Path]) -> list[str]:
    """Overrides that probe a random encoder with a made-up tagging task."""
    save_encoder(tmp_path / "encoder")
    for name, number, seed in (("train", 200, 0), ("dev", 60, 1)):
        write_tagged(tmp_path / f"{name}.conll", number, seed)
    data = {
        "train_file": "train.conll",
        "validation_file": "dev.conll",
        "file_format": "columns",
        "word_column": 0,
        "tag_column": 1,
    }
    return [
        "measure=probe",
        "measure.task.name=tags",
        *(f"measure.task.data.{key}={one}" for key, one in data.items()),
    ]


def test_words_that_the_encoder_cannot_tell_apart_have_one_control_label(
    tmp_path: Path, tagged: list[str], evaluate: Callable[..., Path]
) -> None:
    """Half of each word's occurrences are in capitals, and the encoder is uncased."""
    rng, spelt = np.random.default_rng(0), (str.lower, str.upper)
    for name, number in (("train", 200), ("dev", 60)):
        words = [spelt[rng.integers(2)](word) for word in rng.choice([*TAGS], 6 * number)]
        lines = [
            f"{word} {TAGS[word.lower()]}" + "\n" * (i % 6 == 5) for i, word in enumerate(words)
        ]
        (tmp_path / f"{name}.conll").write_text("\n".join(lines) + "\n")
    (record,) = find(evaluate(*tagged)).evaluate
    assert record.values["validation/control_accuracy/layer_0"] > 99.0
    assert record.values["validation/selectivity/layer_0"] < 1.0


def test_a_probe_of_words(tmp_path: Path, tagged: list[str], evaluate: Callable[..., Path]) -> None:
    (record,) = find(evaluate(*tagged)).evaluate
    values = {key.removeprefix("validation/"): one for key, one in record.values.items()}
    assert record.task == "probe_tags" and record.facts["num_examples"] == 60 * 7
    # The embeddings tell every word apart, so the tags that are a word's own are all right: six
    # words of seven.
    assert values["accuracy/layer_0"] > 6 / 7 * 100 - 0.5
    assert values["accuracy"] == max(values[f"accuracy/layer_{i}"] for i in range(3))
    assert values["selectivity/layer_0"] == pytest.approx(
        values["accuracy/layer_0"] - values["control_accuracy/layer_0"]
    )
    # ten words: a probe knows their labels by heart
    assert values["control_accuracy/layer_0"] > 80.0
    assert record.scores["validation/accuracy"].majority < 45.0
    rows = [
        json.loads(line) for line in (tmp_path / "run/predictions.jsonl").read_text().splitlines()
    ]
    assert np.mean([row["prediction"] == row["label"] for row in rows]) * 100 == pytest.approx(
        values["accuracy"]
    )


def test_a_mix_and_a_code_length_beside_the_layers(
    tagged: list[str], evaluate: Callable[..., Path]
) -> None:
    tagged += ["measure.max_train_examples=40", "measure.module.max_iterations=25"]
    (plain,) = find(evaluate(*tagged)).evaluate
    further = ["measure.module.mix=true", "measure.module.description_length=true"]
    (record,) = find(evaluate(*tagged, *further, name="more")).evaluate
    values = {key.removeprefix("validation/"): one for key, one in record.values.items()}
    for layer in range(3):
        for metric in ("accuracy", "selectivity"):
            key = f"validation/{metric}/layer_{layer}"
            assert record.values[key] == plain.values[key]
        assert 0.0 < values[f"bits/layer_{layer}"] < np.log2(4)  # less than without states
    assert values["accuracy/mix"] > 6 / 7 * 100 - 0.5
    assert sum(values[f"mix_weight/layer_{layer}"] for layer in range(3)) == pytest.approx(100.0)
    assert values["bits"] in [
        values[f"bits/{name}"] for name in ("layer_0", "layer_1", "layer_2", "mix")
    ]
    assert record.scores["validation/bits"].unit == "bits"


def test_a_probe_of_texts_and_its_floor(
    tmp_path: Path, save_encoder: Callable[..., Path], evaluate: Any
) -> None:
    """Whether a cat is in the text, which any layer tells; a coin, which nothing tells."""
    save_encoder(tmp_path / "encoder")
    rng = np.random.default_rng(0)
    for name, number in (("train", 300), ("dev", 200)):
        rows = []
        for _ in range(number):
            filler = rng.choice(["the", "red", "green", "sat", "ran", "hill"], 5)
            words = [*filler, str(rng.choice(["cat", "dog"]))]
            rows.append(f"{' '.join(words)}\t{int(words[-1] == 'cat')}\t{rng.integers(2)}")
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\tcoin\n" + "\n".join(rows) + "\n")
    words = ["measure=probe", "task@measure.task=sst2"]
    words += [
        f"measure.task.data.{split}_file={name}.tsv"
        for split, name in (("train", "train"), ("validation", "dev"))
    ]
    (record,) = find(evaluate(*words)).evaluate
    assert record.task == "probe_sst2" and record.values["validation/accuracy/layer_2"] > 95.0
    assert "validation/accuracy/pooled" in record.values
    assert "validation/selectivity" not in record.values
    (floor,) = find(evaluate(*words, "measure.task.data.label_column=coin", name="floor")).evaluate
    assert abs(floor.values["validation/accuracy"] - 50.0) < 10.0


def test_several_labels_of_a_text_are_not_probed(tmp_path: Path, tiny_config: Any) -> None:
    rows = [("the red car", "a,b"), ("the house", "b"), ("red", "a")]
    measurement: dict[str, Any] = {"heads": {}, "metric": "validation/accuracy"}
    measurement["data"] = read_task(tmp_path, SeveralClassesTarget, rows, rows)
    measurement["encoder"] = Encoder(tiny_config())
    with pytest.raises(ValueError, match="several labels of a text"):
        Probe(strength=1.0, max_iterations=1, **measurement)
    # A penalty below zero, and no step at all, gave scores of one class.
    with refuses("measure.module.strength=-1: give a number above 0"):
        Probe(strength=-1, max_iterations=1, **measurement)
    with refuses("measure.module.max_iterations=0: give a whole number"):
        Probe(strength=1.0, max_iterations=0, **measurement)


def test_a_task_with_a_second_validation_file_is_probed_on_its_first(
    tmp_path: Path, save_encoder: Callable[..., Path], evaluate: Callable[..., Path]
) -> None:
    save_encoder(tmp_path / "encoder")
    rng, names = np.random.default_rng(0), ["entailment", "neutral", "contradiction"]
    for name, number in (("train", 90), ("dev_matched", 30), ("dev_mismatched", 18)):
        rows = [
            f"the {rng.choice(['cat', 'dog'])} sat\tit ran\t{names[i % 3]}" for i in range(number)
        ]
        path = tmp_path / f"glue/MNLI/{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("sentence1\tsentence2\tgold_label\n" + "\n".join(rows) + "\n")
    (record,) = find(evaluate("measure=probe", "task@measure.task=mnli")).evaluate
    assert record.facts["num_examples"] == 30


def test_a_fine_tuned_model_on_another_file(
    tmp_path: Path, evaluate: Any, save_encoder: Any
) -> None:
    """Its own validation file gives its run's score, another one another; nothing is touched."""
    from clozelab.stages.finetune import main

    save_encoder(tmp_path / "encoder")
    rng = np.random.default_rng(0)
    folder = tmp_path / "glue/SST-2"
    folder.mkdir(parents=True)
    for name, number in (("train", 96), ("dev", 40), ("shifted", 30)):
        rows = [
            f"the {rng.choice(['red', 'green'] if i % 2 else ['cat', 'dog'])} sat\t{i % 2}"
            for i in range(number)
        ]
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    settings = {
        "data_dir": tmp_path,
        "cache_dir": tmp_path / "cache",
        "encoder": tmp_path / "encoder",
        "run_dir": tmp_path / "tuned",
        "allow_validation_in_training": "true",
    }
    settings |= {"task": "sst2", "epochs": 3, "learning_rate": "1e-2", "global_batch_size": 8}
    settings |= {"trainer.precision": "32-true", "trainer.progress_bar": "false"}
    words = [f"{key}={value}" for key, value in settings.items()]
    run_stage(main, composed("finetune", words))
    before = {path: path.read_bytes() for path in (tmp_path / "tuned").rglob("*") if path.is_file()}
    words = ["measure=labelled", f"encoder={tmp_path / 'tuned/model'}"]
    (own,) = find(evaluate(*words, "measure.task.data.validation_file=glue/SST-2/dev.tsv")).evaluate
    (made,) = find(tmp_path / "tuned").finetune
    assert own.values == made.values and own.score > 90.0
    assert (tmp_path / "run/predictions.jsonl").read_bytes() == (
        tmp_path / "tuned/predictions.jsonl"
    ).read_bytes()
    text = (folder / "shifted.tsv").read_text()
    (folder / "shifted.tsv").write_text(
        text.replace("\t1", "\tx").replace("\t0", "\t1").replace("\tx", "\t0")
    )
    shifted = ["measure.task.data.validation_file=glue/SST-2/shifted.tsv", "measure.name=shifted"]
    (other,) = find(evaluate(*words, *shifted, name="other")).evaluate
    assert other.task == "shifted" and other.score < 10.0 and "baselines" not in other.facts
    assert {path: path.read_bytes() for path in before} == before
    # A folder of before does not say that texts were cut; its run does.
    config = json.loads((tmp_path / "tuned/model/config.json").read_text())
    del config["clozelab"]["long_documents"]
    (tmp_path / "tuned/model/config.json").write_text(json.dumps(config))
    (tmp_path / "tuned/model/checksums.json").unlink()
    otherwise = ["validation_file=glue/SST-2/dev.tsv", "long_documents=windows", "window_stride=9"]
    with pytest.raises(ValueError, match=r"say measure\.task\.data\.long_documents=truncate"):
        evaluate(*words, *(f"measure.task.data.{setting}" for setting in otherwise))
    (folder / "odd.tsv").write_text("sentence\tlabel\nthe cat sat\tgood\n")
    with refuses("label 'good' is not one of the known labels ['0', '1'] of"):
        evaluate(*words, "measure.task.data.validation_file=glue/SST-2/odd.tsv", name="odd")
    with refuses("tensor classifier.weight (and 1 more) of this Bert model is"):
        evaluate(
            "measure=labelled", "measure.task.data.validation_file=glue/SST-2/dev.tsv", name="bare"
        )


@pytest.fixture
def save_tuned(
    tmp_path: Path, tiny_config: Callable[..., Any], tokenizer: Any
) -> Callable[..., str]:
    """save_tuned(kind, **more): the word that names a model with fresh weights and a head."""

    def save(kind: str, num_labels: int = 2, bilstm: nn.Module | None = None, **more: Any) -> str:
        torch.manual_seed(0)
        encoder = Encoder(tiny_config(vocab_size=tokenizer.vocab_size))
        head = family_for(encoder.config).head(kind, encoder, num_labels=num_labels)
        heads = {kind: head}
        if bilstm is not None:
            heads["bilstm"] = bilstm
        write_model(tmp_path / "model", encoder, heads, tokenizer, **more)
        return f"encoder={tmp_path / 'model'}"

    return save


def reviews(folder: Path) -> list[str]:
    (folder / "more.tsv").write_text("sentence\tlabel\nthe cat sat\t0\na dog ran\t1\n")
    return ["measure=labelled", "measure.task.data.validation_file=more.tsv"]


def test_what_stands_between_encoder_and_head_is_read_whole_or_refused(
    tmp_path: Path, save_tuned: Any, evaluate: Any
) -> None:
    """A second layer, or a mix of layers, would be left out, and the score be another model's."""
    made = {"head": "bilstm"}
    config = {"clozelab": made}
    model = save_tuned("classification", bilstm=BiLSTM(24, 12, 2, 0.0), extra_config=config)
    with refuses("has a BiLSTM of more layers than"):
        evaluate(*reviews(tmp_path), model)
    layers = "measure.task.module.bilstm_num_layers=2"
    size = "measure.task.module.bilstm_hidden_size=12"
    evaluate(*reviews(tmp_path), model, layers, size)
    made["features"] = "last"
    model = save_tuned("classification", bilstm=BiLSTM(24, 12, 1, 0.0), extra_config=config)
    with refuses("tags words by features of several layers, which an evaluation"):
        evaluate(*reviews(tmp_path), model, size, name="mix")


def test_a_model_reads_texts_as_in_its_training_or_is_refused(
    tmp_path: Path, save_tuned: Any, evaluate: Any
) -> None:
    """Cut elsewhere, or pooled otherwise, it would get another score than its own run."""
    trained = {"max_seq_length": 8, "long_documents": "windows", "window_pooling": "max"}
    config = {"clozelab": trained | {"window_stride": 3}}
    model = save_tuned("classification", labels=["0", "1"], extra_config=config)
    alike = [f"measure.task.data.{key}={value}" for key, value in trained.items()]
    match = r"say measure\.task\.data\.long_documents=windows .*window_pooling=max"
    with pytest.raises(ValueError, match=match):
        evaluate(*reviews(tmp_path), model)
    with pytest.raises(ValueError, match=r"say measure\.task\.data\.window_stride=3"):
        evaluate(*reviews(tmp_path), model, *alike, "measure.task.data.window_stride=4")
    alike.append("measure.task.data.window_stride=3")
    with pytest.raises(ValueError, match=r"say measure\.task\.data\.max_seq_length=8"):
        evaluate(*reviews(tmp_path), model, *alike, "measure.task.data.max_seq_length=7")
    evaluate(*reviews(tmp_path), model, *alike)


@pytest.mark.parametrize(
    ("labels", "task", "reasons"),
    [
        (["0", "1"], "mrpc", ["was fine-tuned on mrpc: do its classes mean the same on sst2?"]),
        (
            ["LABEL_0", "LABEL_1"],
            "sst2",
            ["calls its classes LABEL_0, ...: they are taken in the task's"],
        ),
        (["0", "1"], "sst2", []),
    ],
    ids=["another task", "classes without names", "nothing"],
)
def test_what_may_mean_something_else_is_warned_of(
    tmp_path: Path,
    save_tuned: Any,
    evaluate: Any,
    caplog: pytest.LogCaptureFixture,
    labels: list[str],
    task: str,
    reasons: list[str],
) -> None:
    trained = {"clozelab": {"task": task}}
    model = save_tuned("classification", labels=labels, extra_config=trained)
    run = evaluate(*reviews(tmp_path), model)
    assert json.loads((run / "scores.json").read_text())["collapsed"] is True
    shows(caplog.text, *reasons, "collapsed run: the same answer for (nearly) every validation")
    assert ("was fine-tuned on" in caplog.text) == (task == "mrpc")
    assert ("calls its classes" in caplog.text) == (labels[0] == "LABEL_0")


def nli(folder: Path, labels: str = "contradiction entailment neutral") -> list[str]:
    rows = [f"the cat sat\ta dog ran\t{label}" for label in labels.split() * 2]
    (folder / "nli.tsv").write_text("\n".join(["sentence1\tsentence2\tgold_label", *rows]) + "\n")
    return [
        "measure=labelled",
        "task@measure.task=snli_95k",
        "measure.task.data.validation_file=nli.tsv",
    ]


NLI = ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"]  # another order than the task's


def test_classes_of_others_are_matched_by_a_key(
    tmp_path: Path, save_tuned: Any, evaluate: Any
) -> None:
    model = save_tuned("classification", num_labels=3, labels=NLI)
    with refuses("label 'contradiction' is not one of the known labels") as refusal:
        evaluate(*nli(tmp_path), model)
    # The line to type is in the message, and does it.
    (word,) = re.findall("'(measure.label_names=.*)'", str(refusal.value))
    names = "{CONTRADICTION: contradiction, NEUTRAL: neutral, ENTAILMENT: entailment}"
    assert word == f"measure.label_names={names}"
    by_key = (
        evaluate(*nli(tmp_path), model, word, name="by_key") / "predictions.jsonl"
    ).read_text()
    own = save_tuned("classification", num_labels=3, labels=[name.lower() for name in NLI])
    assert by_key == (evaluate(*nli(tmp_path), own, name="own") / "predictions.jsonl").read_text()
    left = save_tuned("classification", num_labels=3, labels=["LABEL_0", "LABEL_1", "LABEL_2"])
    word = "measure.label_names={LABEL_0: contradiction, LABEL_1: neutral, LABEL_2: entailment}"
    assert (
        by_key
        == (evaluate(*nli(tmp_path), left, word, name="left") / "predictions.jsonl").read_text()
    )


@pytest.mark.parametrize(
    ("config", "words", "reason"),
    [
        ({}, ["measure.label_names={CONTRA: x}"], "no label 'CONTRA'; did you mean 'CONTRADICTIO"),
        ({"label2id": {"CONTRADICTION": 2}}, [], "'CONTRADICTION' is output 0 in id2label and"),
        ({"id2label": {"0": "a", "2": "b", "3": "c"}}, [], "id2label has no name for output 1"),
        ({"problem_type": MULTI_LABEL}, [], f"its problem_type is {MULTI_LABEL} with 3 outputs"),
    ],
)
def test_names_that_fit_nothing_are_refused(
    tmp_path: Path,
    save_tuned: Any,
    evaluate: Any,
    config: dict[str, Any],
    words: list[str],
    reason: str,
) -> None:
    model = save_tuned("classification", num_labels=3, labels=NLI)
    place = tmp_path / "model/config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | config))
    (tmp_path / "model/checksums.json").unlink()
    with refuses(reason):
        evaluate(*nli(tmp_path), model, *words)
    assert not (tmp_path / "run").exists()


def test_a_fresh_head_comes_from_the_seed(tmp_path: Path, save_tuned: Any, evaluate: Any) -> None:
    """The floor of a fine-tuned model: whatever was drawn before, one seed has one floor."""
    words = [
        *reviews(tmp_path),
        save_tuned("classification", labels=["0", "1"]),
        "initialisation=random",
    ]
    found = []
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        torch.manual_seed(len(found))
        found.append(
            (evaluate(*words, f"pretrain_seed={seed}", name=name) / "predictions.jsonl").read_text()
        )
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("threshold", "initialisation", "used", "source"),
    [
        (-1e5, "pretrained", -1e5, "the model's own, from its fine-tuning"),
        (None, "pretrained", 0.0, "the default: the model records none"),
        (1e5, "random", 0.0, "the default: the model records none"),
    ],
)
def test_the_threshold_of_no_answer_is_not_tuned_on_the_file_that_is_scored(
    tmp_path: Path,
    save_tuned: Any,
    evaluate: Any,
    caplog: Any,
    threshold: Any,
    initialisation: str,
    used: float,
    source: str,
) -> None:
    asked = {"id": "1", "question": "who ran?", "answers": [{"text": "dog", "answer_start": 2}]}
    paragraphs = [
        {
            "context": "a dog ran",
            "qas": [asked, asked | {"id": "2", "answers": [], "is_impossible": True}],
        }
    ]
    (tmp_path / "dev.json").write_text(
        json.dumps({"version": "2", "data": [{"title": "", "paragraphs": paragraphs}]})
    )
    rules = {
        "n_best_size": 20,
        "max_answer_length": 40,
        "with_unanswerable": True,
        "threshold": threshold,
    }
    model = save_tuned("spans", extra_config={"clozelab": {"answers": rules}})
    words = [
        "measure=labelled",
        "task@measure.task=squad_v2",
        "measure.task.data.validation_file=dev.json",
        model,
    ]
    folder = evaluate(*words, f"initialisation={initialisation}")
    (record,) = find(folder).evaluate
    said = {"value": used, "source": source}
    assert record.facts["no_answer_threshold"] == said
    assert json.loads((folder / "scores.json").read_text())["no_answer_threshold"] == said
    assert record.values["validation/threshold"] == used

    is_named = (
        "the model was fine-tuned with max_answer_length 40, and is scored with 30" in caplog.text
    )
    assert is_named == (initialisation == "pretrained")

    # A threshold above all odds answers both questions, one below them neither; tuned, it would be
    # right more often.
    texts = json.loads((folder / "predictions.json").read_text())
    odds = json.loads((folder / "null_odds.json").read_text())
    assert {key: text == "" for key, text in texts.items()} == {
        key: odds[key] > used for key in odds
    }
    assert record.values["validation/best_f1"] >= record.values["validation/f1"]
    if abs(used) == 1e5:
        assert record.values["validation/NoAns_f1"] == (0.0 if used > 0 else 100.0)


def test_a_probe_of_one_class_is_refused() -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 7))
    labels = np.zeros(300, dtype=int)
    with pytest.raises(ValueError, match="every training example has the same class"):
        logistic_regression(vectors, labels, 2, strength=0.3, max_iterations=9)


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("stsb", "a probe classifies words, texts or pairs by one label each; this task"),
        ("ner_features_wnut17", "reads stored features; take the task of the words themselves"),
    ],
)
def test_what_no_probe_can_tell_is_refused(
    tmp_path: Path, save_encoder: Any, evaluate: Any, task: str, reason: str
) -> None:
    save_encoder(tmp_path / "encoder")
    rows = "a cat\ta dog\t1.5\t0\na dog\ta cat\t2\t1\n"
    (tmp_path / "all.tsv").write_text(f"sentence1\tsentence2\tscore\tindex\n{rows}")
    files = [f"measure.task.data.{name}_file=all.tsv" for name in ("train", "validation")]
    with pytest.raises(ValueError, match=reason):
        evaluate("measure=probe", f"task@measure.task={task}", *files)
