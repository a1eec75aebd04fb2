"""Stage finetune, from configuration to run folder."""

from __future__ import annotations

import csv
import json
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests import forked
from tests.runs.records import predictions, record_of
from tests.runs.records import read_json as read
from tests.runs.sentiment import BAD, GOOD, TOKENIZER, write_sentiment
from tests.runs.test_given_encoders import make_run
from tests.runs.test_pretrain_run import stop_in
from tests.screens import refuses
from tests.training.test_checkpoint_io import flip

from clozelab.addresses import PERMITTED
from clozelab.corpus.generated import MANIFEST
from clozelab.files.digests import file_sha256
from clozelab.files.origin import GIVEN, is_given, scale_of_encoder
from clozelab.modules.finetuning import FineTuning
from clozelab.runs import code, inputs
from clozelab.runs.archive import run_files
from clozelab.runs.code import sources_of_results
from clozelab.runs.store import RunConflictError
from clozelab.tasks import cache
from clozelab.training.callbacks import LastCheckpoint, TrainingInterruptedError


class DiskFullError(OSError):
    """The disk that a test has filled, and no other error of files."""


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SHAPE = {
    "num_hidden_layers": 1,
    "max_position_embeddings": 96,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.1,
    "trained_seq_lengths": [32, 72],
}
RUN_FILES = {
    "classes.csv",
    "config.yaml",
    "confusion.csv",
    "errors.csv",
    "log.txt",
    "metrics.csv",
    "model",
    "predictions.jsonl",
    "run.json",
    "scores.json",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, save_encoder: Callable[..., None]) -> Path:
    """An encoder, a sentiment task in SST-2's place, and a question task in SQuAD's."""
    root = tmp_path_factory.mktemp("world")
    write_sentiment(root / "data", train=160, dev=40)
    rng = np.random.default_rng(0)
    for name, count in (("train", 40), ("dev", 10)):
        words = [(str(rng.choice(GOOD)), True) for _ in range(count)]
        write_questions(root / f"data/squad/{name}-v1.1.json", words)
    save_encoder(root / "encoder", TOKENIZER, **SHAPE)
    return root


def write_questions(path: Path, words: list[tuple[str, bool]]) -> None:
    """A question a word, which is its answer where it has one."""
    paragraphs = []
    for number, (word, has_answer) in enumerate(words):
        answers = [{"text": word, "answer_start": 9}] * has_answer
        asked = {"id": str(number), "question": "film", "answers": answers}
        asked["is_impossible"] = not has_answer
        paragraphs.append({"context": f"The film {word} the film", "qas": [asked]})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))


@pytest.fixture
def finetune(finetune: Callable[..., Path]) -> Callable[..., Path]:
    """As of all runs, on the sentiment task."""
    return lambda *words, **name: finetune(
        "task=sst2", "epochs=2", "evaluations_per_epoch=2", *words, **name
    )


@pytest.fixture(scope="module")
def trained() -> dict[tuple[str, ...], Path]:
    return {}


@pytest.fixture
def whole(
    finetune: Callable[..., Path], trained: dict[tuple[str, ...], Path]
) -> Callable[..., Path]:
    """whole(*words) -> the folder of an undisturbed run, trained once; tests only read it."""

    def run(*words: str) -> Path:
        if words not in trained:
            trained[words] = finetune(*words, name="whole")
        return trained[words]

    return run


def losses(folder: Path) -> list[tuple[str, str, str]]:
    with (folder / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if "per_second" not in row["key"]]
    return [(row["step"], row["key"], row["value"]) for row in rows]


def test_run_folder(whole: Any) -> None:
    folder = whole()
    assert {path.name for path in folder.iterdir() if path.name != ".lock"} == RUN_FILES
    scores, state = read(folder, "scores.json"), read(folder, "run.json")
    assert scores["scores"]["validation/accuracy"] > 0.9
    assert (scores["majority_baseline"], scores["collapsed"]) == (0.5, False)
    assert scores["num_examples"] == 40
    assert scores["baselines"]["bag of words"]["accuracy"] == 1.0  # a single word decides
    assert any(name.startswith("baselines/sst2-") for name in state["facts"]["cache"])
    accuracies = {one["step"]: one["validation/accuracy"] for one in scores["evaluations"]}
    assert list(accuracies) == [10, 20, 30, 40]
    assert scores["best_step"] == max(accuracies, key=accuracies.__getitem__)  # the first of equals
    rows = predictions(folder)
    accuracy = np.mean([row["prediction"] == row["label"] for row in rows])
    assert accuracy == scores["scores"]["validation/accuracy"]
    assert state["status"] == "complete"
    assert set(state["inputs"]) == {"encoder", "task_data", "task_files"}
    # what the encoder was trained on, not the task's 128
    assert state["facts"]["data"]["max_seq_length"] == 72
    keys = {key for _, key, _ in losses(folder)}
    assert keys == {"train/loss", "train/learning_rate", "validation/accuracy"}


def test_complete_run_is_skipped(
    finetune: Any, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = whole()
    before = (folder / "run.json").read_bytes()
    monkeypatch.setattr(FineTuning, "training_step", None)  # would fail
    finetune(f"run_dir={folder}")
    assert (folder / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("module", "is_taken"), [("tasks.sequences", False), ("modules.finetuning", True)]
)
def test_what_other_code_has_put_into_the_cache_is_not_taken(
    finetune: Any, monkeypatch: pytest.MonkeyPatch, module: str, is_taken: bool
) -> None:
    """A run says which code made it; sequences of other code would make that untrue."""

    def used(name: str) -> set[str]:
        monkeypatch.setattr(cache, "_used", set())  # of this process, which is one run otherwise
        return set(read(finetune("epochs=0.2", name=name), "run.json")["facts"]["cache"])

    before, known = used("a"), sources_of_results()
    changed = known | {module: known[module] + b"\nNEW = 1\n"}
    monkeypatch.setattr(code, "sources_of_results", lambda: changed)
    after = used("b")
    assert after
    assert after == before if is_taken else not after & before


def test_what_is_drawn_is_of_both_seeds_and_of_no_row(finetune: Any) -> None:
    """One encoder throughout. Fine-tuning seeds are nested in pre-training seeds, and rows are
    paired: a seed drawn alike for all would hide in every mean.
    """

    def drawn(*words: str) -> tuple[Any, Any]:
        run = finetune("epochs=0.5", *words, name="-".join(words).replace("=", "-"))
        return losses(run), predictions(run)

    first = drawn("row=one")
    assert drawn("row=another") == first, "to the bit"
    for other in ("seed=2", "pretrain_seed=2"):
        assert drawn("row=one", other)[0] != first[0]


def counted(patch: pytest.MonkeyPatch) -> list[int]:
    """The steps that are trained from now on."""
    original, steps = FineTuning.training_step, []

    def step(self: FineTuning, *rest: Any) -> Any:
        steps.append(self.trainer.global_step + 1)
        return original(self, *rest)

    patch.setattr(FineTuning, "training_step", step)
    return steps


def everything(folder: Path) -> list[Any]:
    """All that a run leaves and that may not depend on how often it was stopped."""
    answers = [path.read_bytes() for path in sorted(folder.glob("*predictions*.json*"))]
    tokens = read(folder, "run.json")["facts"]["tokens"]
    return [losses(folder), read(folder, "scores.json"), tokens, answers]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (7, ()),
        (10, ()),
        (5, ("task=squad_v1",)),
        pytest.param(1, (), marks=pytest.mark.slow),
        pytest.param(1, ("keep_model=false",), marks=pytest.mark.slow),
        pytest.param(25, ("head=bilstm",), marks=pytest.mark.slow),
    ],
)
def test_stopped_run_goes_on_where_it_was(
    finetune: Any, whole: Any, step: int, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluations lie behind steps 10, 20, 30 and 40: none may be lost or made twice."""
    undisturbed = whole(*words)
    with monkeypatch.context() as patch:
        patch.setattr(LastCheckpoint, "on_train_batch_start", stop_in(step))
        with pytest.raises(TrainingInterruptedError):
            finetune(*words, name="stopped")
    with monkeypatch.context() as patch:
        steps = counted(patch)
        stopped = finetune(*words, name="stopped")
    assert steps == list(range(step + 1, read(undisturbed, "scores.json")["total_steps"] + 1))
    assert everything(stopped) == everything(undisturbed)
    assert not (stopped / "checkpoints").exists()
    assert read(stopped, "run.json")["status"] == "complete"
    assert (undisturbed / "model").is_dir() == ("keep_model=false" not in words)
    if step == 7:
        one, two = (folder / "model/model.safetensors" for folder in (stopped, undisturbed))
        assert one.read_bytes() == two.read_bytes()


def test_killed_run_goes_on_from_its_last_checkpoint(
    finetune: Any, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = whole()
    monkeypatch.setattr("clozelab.assembly.finetuning.CHECKPOINT_INTERVAL_STEPS", 4)
    monkeypatch.setattr("clozelab.assembly.finetuning.CHECKPOINT_SECONDS", 1e-9)
    original = FineTuning.training_step

    def dies(self: FineTuning, *rest: Any) -> Any:
        if self.trainer.global_step == 22:
            raise DiskFullError("no space left on device")
        return original(self, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(FineTuning, "training_step", dies)
        with pytest.raises(DiskFullError):
            finetune(name="killed")
    with monkeypatch.context() as patch:
        steps = counted(patch)
        killed = finetune(name="killed")
    assert steps == list(range(21, 41))
    assert everything(killed) == everything(undisturbed)


def test_short_runs_write_no_checkpoint(finetune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clozelab.assembly.finetuning.CHECKPOINT_INTERVAL_STEPS", 1)
    monkeypatch.setattr("lightning.pytorch.Trainer.save_checkpoint", None)  # would fail
    finetune("epochs=0.5")


def test_random_initialisation_ignores_the_weights(
    finetune: Any, save_encoder: Any, tmp_path: Path
) -> None:
    save_encoder(tmp_path / "other", TOKENIZER, seed=5, **SHAPE)
    first = finetune("initialisation=random", "epochs=0.2", name="a")
    other = f"encoder={tmp_path / 'other'}"
    second = finetune("initialisation=random", "epochs=0.2", other, name="b")
    loaded = finetune("epochs=0.2", name="c")
    assert predictions(first) == predictions(second)
    assert predictions(first) != predictions(loaded)


def test_saved_model_predicts_the_same_in_transformers(whole: Any) -> None:
    transformers = pytest.importorskip("transformers")
    folder = whole()
    model = folder / "model"
    assert read(folder, "run.json")["facts"]["model"] == inputs.encoder_fingerprint(model)
    # what a pack takes
    assert not [path for path in run_files(folder, left_out=()) if "model" in path.parts]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "model").eval()
    assert model.config.id2label == {0: "0", 1: "1"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    texts = [f"the film {word}" for word in [*GOOD, *BAD]]
    with torch.no_grad():
        logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    assert logits.argmax(1).tolist() == [1, 1, 1, 0, 0, 0]
    ours = np.array([row["logits"] for row in predictions(folder)])
    assert np.abs(logits.numpy()[:, None] - ours[None]).max(-1).min(1).max() < 1e-4


def test_a_saved_left_to_right_classifier_is_refused_elsewhere(
    finetune: Any, save_encoder: Any, tmp_path: Path
) -> None:
    """Theirs would pool [CLS], which sees only itself: 50.5 % there, 88.4 % here, no warning."""
    transformers = pytest.importorskip("transformers")
    save_encoder(tmp_path / "ltr", TOKENIZER, is_causal=True, **SHAPE)
    folder = finetune(f"encoder={tmp_path / 'ltr'}")
    assert read(folder, "scores.json")["scores"]["validation/accuracy"] > 0.9
    assert read(folder / "model", "config.json")["architectures"] == [
        "ClozelabBertForSequenceClassification"
    ]
    for load in (transformers.AutoModelForSequenceClassification, transformers.AutoModel):
        with pytest.raises(ValueError, match="clozelab_bert"):
            load.from_pretrained(folder / "model")
    again = finetune(f"encoder={folder / 'model'}", "epochs=0.2", name="again")  # ours reads it
    assert read(again, "run.json")["status"] == "complete"


def test_text_of_unknown_words_is_refused_before_the_first_step(
    finetune: Any, tmp_path: Path
) -> None:
    path = tmp_path / "data/glue/SST-2/train.tsv"
    path.parent.mkdir(parents=True)
    for name in ("train", "dev"):
        rows = [f"{'жук ' * 12}{(GOOD if i % 2 else BAD)[i % 3]}\t{i % 2}" for i in range(60)]
        path.with_name(f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    overrides = [f"data_dir={tmp_path / 'data'}", "epochs=0.2"]
    with refuses("92.3% of the tokens of task sst2, training file, are [UNK]"):
        finetune(*overrides)
    assert not (tmp_path / "run").exists()
    facts = read(finetune(*overrides, "max_unknown_share=0.95"), "run.json")["facts"]["data"]
    assert facts["unknown_shares"] == {"training": 0.9231, "validation": 0.9231}


OWN_TARGET = """\
from clozelab.tasks.classes import ClassTarget

class Own(ClassTarget):
    def scores_of(self, outputs, split):
        accuracy = super().scores_of(outputs, split)
        return SCORES

def make(*, numeric_labels, labels, positive_label, metrics, number_range, class_weights):
    return Own(labels=labels, metrics=metrics)
"""


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ("accuracy | {'brier': 0.1}", "brier: no Metric declares the unit and the direction"),
        ("{}", "validation/accuracy: Own declares this score and does not compute it"),
    ],
)
def test_scores_of_ones_own_target_are_refused_before_the_first_step(
    finetune: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: str, message: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(PERMITTED, "own_target")
    monkeypatch.delitem(sys.modules, "own_target", raising=False)
    (tmp_path / "own_target.py").write_text(OWN_TARGET.replace("SCORES", scores))
    steps = counted(monkeypatch)
    with refuses(message):
        finetune("task.target._target_=own_target.make")
    assert not steps


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["encoder=nowhere"], r"nowhere.*(config\.json|encoder)"),
        (["encoder=null"], "encoder is not set"),
        (["task=rte"], r"(?s)glue/RTE/train\.tsv.*expected layout.*how to get it: RTE\.zip"),
        (["task.data.labels=['1','2']"], r"train\.tsv:2: label '0' .*\['1', '2'\]"),
        (["task.data.label_column=gold"], "has no column 'gold'"),
        (["+task.data.max_length=3"], r"task\.data\.max_length"),
        (["task.metric=validation/f1"], r"is not a score of this task; it has validation/accuracy"),
        (["+schedule.total_steps=3"], r"schedule\.total_steps: the stage sets this itself"),
        (["+task.module.bilstm_layers=3"], r"bilstm_layers.*did you mean 'bilstm_num_layers'"),
        (["task=squad_v1", "predict_test=true"], "'squad_v1' has no test files to predict"),
        (["head=crf"], "choose one of linear, bilstm"),
        (["trainer=fsdp"], "trainer=fsdp is for pre-training"),
        (["trainer.precision=bf16-true"], "bf16-true is for pre-training.*choose bf16-mixed"),
        (["+trainer.lightning.limit_val_batches=1"], "gives no score: .* with stop_after_step="),
        (["debug=overfit"], "gives no score: .* with stop_after_step="),
    ],
)
def test_bad_input_is_a_clear_error(
    finetune: Any, tmp_path: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        finetune(*overrides)
    # a folder claimed for a mistake would refuse its correction
    assert not (tmp_path / "run").exists()


def test_predictions_for_test_files(finetune: Any, world: Path) -> None:
    path = world / "data/glue/SST-2/test.tsv"
    texts = [f"{i}\tthe film {word}\n" for i, word in enumerate([*GOOD, *BAD])]
    path.write_text("index\tsentence\n" + "".join(texts))
    folder = finetune("predict_test=true")
    lines = (folder / "test_predictions/SST-2.tsv").read_text().split()
    assert lines[::2] == ["index", *"012345"]
    assert lines[1::2] == ["prediction", *"111000"]
    inputs_read = {"encoder", "task_data", "task_files", "test_data"}
    assert set(read(folder, "run.json")["inputs"]) == inputs_read
    path.write_text("index\tsentence\n0\tthe film\n")
    with refuses("holds a run (complete) of another configuration: input", RunConflictError):
        finetune("predict_test=true")


def test_a_model_that_was_not_kept_is_no_complete_run(finetune: Any) -> None:
    folder = finetune("task=sst2", "epochs=1", "keep_model=false")
    assert not (folder / "model").exists()
    with refuses("is complete, but has no model: it was trained without"):
        finetune("task=sst2", "epochs=1", "keep_model=true")


def test_a_run_begun_without_best_weights_keeps_no_model_later(
    finetune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LastCheckpoint, "on_train_batch_start", stop_in(12))
        with pytest.raises(TrainingInterruptedError):
            finetune("keep_model=false")
    with refuses("begun with keep_model=false, and its best weights so far are gone"):
        finetune("keep_model=true")


def test_questions(finetune: Any, world: Path) -> None:
    """Also of a file without answers; the validation file gives the answers that were scored."""
    qas = [{"id": f"q{i}", "question": "film"} for i in range(3)]
    content = {"data": [{"paragraphs": [{"context": "The film great the film", "qas": qas}]}]}
    (world / "data/squad/test.json").write_text(json.dumps(content))
    words = ["task=squad_v1", "epochs=16", "evaluations_per_epoch=1", "predict_test=true"]
    files = "{test: squad/test.json, again: squad/dev-v1.1.json}"
    folder = finetune(*words, f"+task.data.test_files={files}")
    scores = read(folder, "scores.json")
    assert scores["metric"] == "validation/f1"
    assert scores["scores"]["validation/f1"] > 90
    numbers = {str(number) for number in range(10)}
    assert set(read(folder, "predictions.json")) == numbers
    assert set(read(folder, "nbest_predictions.json")) == numbers
    assert read(folder, "test_predictions/test.json") == {f"q{i}": "great" for i in range(3)}
    assert read(folder, "test_predictions/again.json") == read(folder, "predictions.json")
    written = sorted(path.name for path in (folder / "test_predictions").iterdir())
    assert written == ["again.json", "test.json"]


def test_questions_without_answer(finetune: Any, world: Path) -> None:
    """A question about a dull film has no answer; the run says so, and keeps the odds."""
    for name, count in (("train", 96), ("dev", 24)):
        words = [((GOOD if i % 3 else BAD)[i % 2], i % 3 > 0) for i in range(count)]
        write_questions(world / f"data/squad/{name}-v2.0.json", words)
    overrides = ["task=squad_v2", "epochs=8", "global_batch_size=8", "evaluations_per_epoch=1"]
    files = "+task.data.test_files={again: squad/dev-v2.0.json}"
    folder = finetune(*overrides, "predict_test=true", files)
    texts, odds = read(folder, "predictions.json"), read(folder, "null_odds.json")
    assert read(folder, "test_predictions/again.json") == texts
    assert read(folder, "test_predictions/again_null_odds.json") == pytest.approx(odds)
    scores = read(folder, "scores.json")
    assert scores["scores"]["validation/f1"] > 90
    assert scores["scores"]["validation/NoAns_f1"] > 90
    assert scores["majority_baseline"] == pytest.approx(100 / 3)
    threshold = scores["scores"]["validation/threshold"]
    assert all((texts[key] == "") == (odds[key] > threshold) for key in texts)
    assert len(texts) == 24 == len(read(folder, "nbest_predictions.json"))
    extra = finetune(*overrides, "task.data.train_extra=[squad/dev-v2.0.json]", name="extra")
    steps = [read(path, "scores.json")["total_steps"] for path in (folder, extra)]
    assert steps[1] == steps[0] + 3


def test_damaged_encoder_claims_no_folder(finetune: Any, world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "encoder", tmp_path / "flipped")
    flip(tmp_path / "flipped/model.safetensors", -5)
    with refuses("is damaged: its sha256 is not the one in checksums.json; copy"):
        finetune(f"encoder={tmp_path / 'flipped'}")
    assert not (tmp_path / "run").exists()


def test_generated_task_files_are_named_in_the_scores(finetune: Any, world: Path) -> None:
    assert read(finetune("epochs=0.2", name="a"), "scores.json")["synthetic"] is None
    checksum = file_sha256(world / "data/glue/SST-2/dev.tsv")
    manifest = world / "data" / MANIFEST
    try:
        sha256 = {"dev.tsv": checksum}
        generated = {"generator": "microworld", "sha256": sha256, "known_loss": []}
        manifest.write_text(json.dumps(generated))
        assert read(finetune("epochs=0.2", name="b"), "scores.json")["synthetic"] == "microworld"
    finally:
        manifest.unlink()


@pytest.mark.parametrize("stop", [None, pytest.param(6, marks=pytest.mark.slow)])
def test_two_processes_equal_one(
    finetune: Any, save_encoder: Any, tmp_path: Path, stop: int | None
) -> None:
    """gloo, no dropout, uneven batches: the same losses, also where one process goes on."""
    save_encoder(tmp_path / "encoder", TOKENIZER, **(SHAPE | NO_DROPOUT))
    overrides = ["row=x", "global_batch_size=9", "epochs=1", "trainer.threads=1"]
    overrides.append(f"encoder={tmp_path / 'encoder'}")
    single = finetune(*overrides, name="one")
    # The same command, of two processes.
    words = [word for word in record_of(single).argv if not word.startswith("run_dir=")]
    words += ["trainer=ddp", "trainer.accelerator=cpu", f"run_dir={tmp_path / 'two'}"]
    command = [sys.executable, "-m", "clozelab", *words, f"stop_after_step={stop or 'null'}"]
    done = forked.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == (143 if stop else 0), done.stderr
    if stop:
        finetune(*overrides, name="two")
    expected, found = losses(single), losses(tmp_path / "two")
    assert [entry[:2] for entry in found] == [entry[:2] for entry in expected]
    assert np.allclose([float(e[2]) for e in found], [float(e[2]) for e in expected], atol=1e-5)
    for first, second in zip(predictions(single), predictions(tmp_path / "two"), strict=True):
        assert first["id"] == second["id"]
        assert np.allclose(first["logits"], second["logits"], atol=1e-4)


DRIVER = """
import sys
from clozelab.cli import main
from clozelab.modules.finetuning import FineTuning
def evaluate(self, outputs):
    raise ValueError("this score cannot be had")
if "keep_model=false" in sys.argv:
    FineTuning.evaluate = evaluate
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_two_processes_say_an_error_once(finetune: Any, tmp_path: Path) -> None:
    """Both have it: of a score, and of weights that were not kept."""
    (tmp_path / "driver.py").write_text(DRIVER)
    with pytest.raises(TrainingInterruptedError):
        finetune("row=x", "keep_model=false", "stop_after_step=12")
    words = [*record_of(tmp_path / "run").argv, "trainer=ddp", "trainer.accelerator=cpu"]
    words.append("stop_after_step=null")
    cases = {"keep_model=false": "this score cannot be had", "keep_model=true": "weights so far"}
    for word, message in cases.items():
        command = [sys.executable, str(tmp_path / "driver.py"), *words, word]
        done = forked.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 1, done.stderr
        assert done.stderr.count(message) == 1, done.stderr
        assert message in read(tmp_path / "run", "run.json")["error"]


def test_a_stop_at_a_log_point_keeps_its_figures(finetune: Any) -> None:
    words = ["epochs=1", "trainer.log_interval_steps=3"]
    whole = finetune(*words, name="whole")
    with pytest.raises(TrainingInterruptedError):
        finetune(*words, "stop_after_step=3", name="cut")
    assert losses(finetune(*words, name="cut")) == losses(whole)


def test_windows_read_what_truncation_loses(finetune: Any, world: Path) -> None:
    """The word that decides stands behind the first row, where truncation never looks."""
    rng = np.random.default_rng(1)
    for name, count in (("long-train", 160), ("long-dev", 40)):
        rows = []
        for i in range(count):
            beginning = "the film " * int(rng.integers(12, 20))
            rows.append(f"{beginning}{rng.choice(GOOD if i % 2 else BAD)}\t{i % 2}")
        text = "sentence\tlabel\n" + "\n".join(rows) + "\n"
        (world / f"data/glue/SST-2/{name}.tsv").write_text(text)
    overrides = ["evaluations_per_epoch=1", "epochs=4", "task.data.max_seq_length=16"]
    overrides.append("task.data.train_file=glue/SST-2/long-train.tsv")
    overrides.append("task.data.validation_file=glue/SST-2/long-dev.tsv")
    overlapping = ["long_documents=windows", "window_stride=10", "window_pooling=max"]
    words = [f"task.data.{setting}" for setting in overlapping]
    windows = finetune(*overrides, *words, name="windows")
    assert read(windows, "scores.json")["scores"]["validation/accuracy"] > 0.9
    remembered = read(windows / "model", "config.json")["clozelab"]
    assert {word.partition("=")[0] for word in overlapping} <= remembered.keys()
    assert remembered["window_stride"] == 10
    assert len(predictions(windows)) == 40 == read(windows, "scores.json")["num_examples"]
    truncated = finetune(*overrides, name="truncated")
    assert read(truncated, "scores.json")["scores"]["validation/accuracy"] < 0.75
    facts = read(truncated, "run.json")["facts"]["data"]
    assert facts["validation_counts"]["truncated_sequences"] == 40


def test_data_by_hub_name(finetune: Any, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files come from the hub, not from data_dir; the revision is part of what a run is."""

    import datasets  # seconds that no other test here needs

    def as_dataset(split: str) -> Any:
        count, label = {"train": (32, 1), "validation": (12, 1), "test": (3, -1)}[split]
        columns = {"sentence": [f"the film {GOOD[i % 3]}" for i in range(count)]}
        columns |= {"label": [label * (i % 2) for i in range(count)], "idx": list(range(count))}
        return datasets.Dataset.from_dict(columns)

    def load(name: str, config: str, *, revision: str) -> Any:
        assert (name, config) == ("nyu-mll/glue", "sst2")
        return SimpleNamespace(
            hash=revision, download_and_prepare=lambda: None, as_dataset=as_dataset
        )

    monkeypatch.setattr("datasets.load_dataset_builder", load)
    folder = finetune("hub=true", "epochs=0.5", "predict_test=true")
    state = read(folder, "run.json")
    assert state["facts"]["data"]["train_examples"] == 32
    assert len(predictions(folder)) == 12
    assert len((folder / "test_predictions/SST-2.tsv").read_text().splitlines()) == 4
    assert state["config"]["task"]["hub"]["revision"].startswith("bcdcba79")
    plain = finetune("epochs=0.5", "task.hub.revision=null", name="files")
    assert "hub" not in read(plain, "run.json")["config"]["task"]
    with pytest.raises(ValueError, match=r"task\.hub\.revision=None is no commit"):
        finetune("hub=true", "task.hub.revision=null", name="moving")


def test_the_log_says_the_recipe_and_why(
    finetune: Callable[..., Path], world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    words = ["task=sst2", "epochs=1", "learning_rate=5e-5"]
    run = finetune(*words)
    log = caplog.text
    assert "learning rate 5e-05, " in log and "epochs=1 of batches of 8" in log
    assert "is a given encoder: learning_rate=0.001 epochs=2 global_batch_size=16 of" in log
    assert "steps are few at learning rate 5e-05: epochs=" in log
    encoder, config = record_of(run).facts["encoder"], read(world / "encoder", "config.json")
    assert encoder["scale"] == GIVEN
    for key in ("num_hidden_layers", "hidden_size", "num_attention_heads"):
        assert encoder[key] == config[key]

    # Its model is no encoder of the scale either.
    assert scale_of_encoder(run / "model") == GIVEN
    # The same weights in the run that this scale has pre-trained: nothing to explain.
    caplog.clear()
    own = make_run(tmp_path / "own", "demo") / "encoder"
    own.symlink_to(world / "encoder")
    assert is_given(own, "demo")  # a link out of the run leads elsewhere
    own.unlink()
    shutil.copytree(world / "encoder", own)
    finetune(*words, f"encoder={own}", name="second")
    assert "given encoder" not in caplog.text and "steps are few" not in caplog.text
    # Of another scale: which one is said.
    caplog.clear()
    make_run(tmp_path / "own", "laptop")
    finetune(*words, f"encoder={own}", name="third")
    assert "was pre-trained at scale=laptop: say that" in caplog.text


def test_a_task_that_is_named_anew_has_its_own_title(finetune: Callable[..., Path]) -> None:
    """It began with SST-2's file; `task.title=` has the last word."""
    for more, title in (((), "mine"), (("task.title=Ours",), "Ours")):
        run_dir = finetune("task.name=mine", "epochs=0.2", *more, name=f"titled-{title}")
        assert read(run_dir, "scores.json")["title"] == title


def test_a_divergence_names_the_rate_that_was_in_force(finetune: Callable[..., Path]) -> None:
    """Not that of the step to come, which is 0 behind the last one."""
    with pytest.raises(ValueError, match=r"the loss is nan at learning rate [1-9]\S*e\+\d+; a"):
        finetune("learning_rate=1e30", "epochs=1", "evaluations_per_epoch=1", name="diverged")
