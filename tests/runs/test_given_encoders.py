"""A given encoder is fine-tuned by the task's own recipe; the scale's is for its own runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.composing import composed

from clozelab.files.origin import GIVEN, is_given, scale_of_encoder
from clozelab.runs.identity import identity_of

RECIPE = ("learning_rate", "epochs", "global_batch_size")
OWN = [1e-3, 3, 16]  # of scale=own
TASK = [3e-5, 3, 32]  # of the paper's tasks


def make_encoder(folder: Path, model_type: str = "bert", **config: int | str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type} | config))
    return folder


def make_run(folder: Path, scale: str, begun_with: str | None = None, **record: Any) -> Path:
    """A run's folder with an encoder; `begun_with`: the scale that its record says of its start."""
    facts = {} if begun_with is None else {"encoder": {"scale": begun_with}}
    folder.mkdir(parents=True, exist_ok=True)
    run = {"stage": "pretrain", "scale": scale, "facts": facts} | record
    (folder / "run.json").write_text(json.dumps(run))
    return folder


def recipe(*words: str) -> list[float]:
    config = composed("finetune", ["scale=own", "task=sst2", *words])
    return [config.get(key) for key in RECIPE]


@pytest.mark.parametrize(
    ("name", "record", "scale"),
    [
        ("elsewhere", None, GIVEN),
        ("run/encoder", {"scale": "own"}, "own"),
        ("run/encoders/step-5", {"scale": "own"}, "own"),
        ("run/model", {"scale": "own", "stage": "finetune"}, "own"),
        ("run/encoder", {"scale": "demo"}, "demo"),
        ("run/encoder", {"scale": "own", "begun_with": GIVEN}, GIVEN),
        ("run/encoder", {"scale": "laptop", "begun_with": "own"}, "own"),
        ("run/encoder", None, GIVEN),
        # Somebody has put a public encoder into a run's folder.
        ("run/public", {"scale": "own"}, GIVEN),
        ("run/encoder/public", {"scale": "own"}, GIVEN),
    ],
)
def test_where_weights_come_from(
    name: str, record: dict[str, str] | None, scale: str, tmp_path: Path
) -> None:
    folder = make_encoder(tmp_path / name)
    if record is not None:
        make_run(tmp_path / "run", **record)
    assert scale_of_encoder(folder) == scale
    assert is_given(folder, "own") is (scale != "own")
    # A link to it is the same encoder.
    (tmp_path / "link").symlink_to(folder)
    assert scale_of_encoder(tmp_path / "link") == scale


@pytest.mark.parametrize("damaged", ["", "{", "[1]", '{"facts": null}'])
def test_a_damaged_record_says_nothing_of_an_encoder(damaged: str, tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "run/encoder")
    (tmp_path / "run/run.json").write_text(damaged)
    assert scale_of_encoder(folder) == GIVEN


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], TASK),
        # What is said counts.
        (["learning_rate=2e-4", "epochs=7"], [2e-4, 7, 32]),
        # Fresh weights of its shape, its floor, are trained alike.
        (["initialisation=random"], TASK),
        # Few examples are gone through more often.
        *(
            ([f"max_train_examples={examples}"], [3e-5, epochs, 32])
            for examples, epochs in ((10_000, 3), (1600, 3), (1000, 5), (500, 10), (16, 25))
        ),
        (["max_train_examples=500", "epochs=1"], [3e-5, 1, 32]),
    ],
    ids=str,
)
def test_a_given_encoder_takes_the_tasks_recipe(
    words: list[str], expected: list[float], tmp_path: Path
) -> None:
    assert recipe(f"encoder={make_encoder(tmp_path / 'given')}", *words) == expected


def test_a_folder_that_the_environment_names_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the recipe is recorded as numbers: it is the same wherever the folder lies."""
    monkeypatch.setenv("PLACE", str(tmp_path))
    make_encoder(tmp_path / "given")
    config = composed("finetune", ["scale=own", "task=sst2", "encoder=${oc.env:PLACE}/given"])
    assert [config.get(key) for key in RECIPE] == TASK
    assert [config.recorded[key] for key in RECIPE] == TASK


def test_an_encoder_of_the_scale_keeps_the_scales_recipe(tmp_path: Path) -> None:
    runs = [f"runs_dir={tmp_path}", "encoder_arm=mlm"]
    assert recipe(*runs, "max_train_examples=500") == OWN
    before = composed("finetune", ["scale=own", "task=sst2", *runs])
    folder = tmp_path / "adhoc/own/pretrain/mlm/seed-1"
    make_run(folder, "own")
    encoder = make_encoder(folder / "encoder")
    after = composed("finetune", ["scale=own", "task=sst2", *runs])
    named = composed("finetune", ["scale=own", "task=sst2", *runs, f"encoder={encoder}"])
    for config in (before, after, named):
        assert [config.get(key) for key in RECIPE] == OWN
        assert identity_of(config.recorded) == identity_of(before.recorded)
    # The same run trained further from weights that were given: an arm, and a folder by name.
    make_run(folder, "own", begun_with=GIVEN)
    assert recipe(*runs) == recipe(f"encoder={encoder}") == TASK
    # Another scale's run.
    make_run(folder, "demo")
    assert recipe(f"encoder={encoder}") == TASK


@pytest.mark.parametrize(
    ("model_type", "task", "learning_rate"),
    [
        ("bert", "sst2", 3e-5),
        ("bert", "pos_ewt", 5e-5),
        ("roberta", "pos_ewt", 3e-5),
        ("roberta", "sst2", 3e-5),
        ("electra", "sst2", 1e-4),
        ("deberta-v2", "squad_v1", 3e-5),
        ("modernbert", "pos_ewt", 5e-5),
        ("never_heard_of", "sst2", 3e-5),
        # A task of a frozen encoder has a recipe of its own.
        ("electra", "ner_features_conll2003", 1e-3),
    ],
)
def test_the_range_of_its_family(
    model_type: str, task: str, learning_rate: float, tmp_path: Path
) -> None:
    given = make_encoder(tmp_path / "given", model_type)
    for scale in ("own", "paper"):
        words = [f"scale={scale}", f"task={task}", f"encoder={given}"]
        assert composed("finetune", words).get("learning_rate") == learning_rate
    # An encoder of the scale keeps what the scale, or else the task, says.
    own = make_encoder(make_run(tmp_path / "run", "paper") / "encoder", model_type)
    config = composed("finetune", ["scale=paper", f"task={task}", f"encoder={own}"])
    assert config.get("learning_rate") == config.get("task.learning_rate")


@pytest.mark.parametrize(
    ("model_type", "config", "learning_rate"),
    [
        ("bert", {"hidden_size": 1024}, 3e-5),
        ("bert", {"hidden_size": 768}, 3e-5),
        ("bert", {"hidden_size": 512}, 6.8e-5),
        ("bert", {"hidden_size": 128}, 1e-3),
        ("distilbert", {"dim": 384}, 1.2e-4),
        # ELECTRA-Small: 3e-4 in its paper
        ("electra", {"hidden_size": 256}, 2.7e-4),
        ("clozelab_electra", {"hidden_size": 128}, 3e-4),
        # One width counts, the encoder's own.
        ("bert", {"hidden_size": 384, "d_model": 384}, 1.2e-4),
        ("roberta", {"hidden_size": 384}, 3e-5),
    ],
    ids=str,
)
def test_a_narrow_encoder_bears_more(
    model_type: str, config: dict[str, int], learning_rate: float, tmp_path: Path
) -> None:
    given = make_encoder(tmp_path / "given", model_type, **config)
    assert recipe(f"encoder={given}") == [learning_rate, *TASK[1:]]


def test_so_does_a_small_encoder_as_google_released_it(tmp_path: Path) -> None:
    (tmp_path / "bert_config.json").write_text('{"hidden_size": 128}')
    assert recipe(f"encoder={tmp_path}") == [1e-3, *TASK[1:]]


def test_encoders_beside_a_given_one_are_trained_as_it_is(tmp_path: Path) -> None:
    """Also from fresh weights, and before their run has begun: a table compares like with like."""
    given = make_encoder(tmp_path / "given", hidden_size=384)
    of_run = make_encoder(make_run(tmp_path / "run", "adapt") / "encoder", hidden_size=384)
    few = ("scale=adapt", "max_train_examples=500")
    alike = recipe(*few, f"encoder={given}")
    assert alike == [1.2e-4, 10, 32]
    for encoder in (of_run, tmp_path / "to_come/encoder"):
        assert recipe(*few, f"encoder={encoder}", f"recipe_for={given}") == alike
    assert recipe(*few, f"encoder={of_run}") == TASK


@pytest.mark.parametrize(
    ("optimizer", "of_scale", "of_given"),
    [
        ([], [1.5e-3, 0.01], [1e-4, None]),  # Muon with AdamW: given weights by AdamW alone
        *((f"optimizer={name}".split(), [1.5e-3], [1e-4]) for name in ("adafactor", "lamb", "sgd")),
    ],
    ids=str,
)
def test_given_weights_are_trained_further_at_their_rate(
    optimizer: list[str], of_scale: list[float], of_given: list[float | None], tmp_path: Path
) -> None:
    def rates(*words: str) -> list[float]:
        config = composed("pretrain", ["scale=own", "objective=mlm", *optimizer, *words])
        keys = ("optimizer.learning_rate", "optimizer.matrix_learning_rate")
        return [config.get(key) for key in keys[: len(of_scale)]]

    assert rates() == of_scale
    given = f"encoder={make_encoder(tmp_path / 'given')}"
    assert rates(given) == of_given
    assert rates(given, "given_learning_rate=2e-5") == [2e-5, *of_given[1:]]
    own = make_encoder(make_run(tmp_path / "run", "own") / "encoder")
    assert rates(f"encoder={own}") == of_scale


@pytest.mark.parametrize(
    ("files", "dtype", "num_weights"),
    [
        ({"model.safetensors": 4}, None, 1),
        ({"model-00001-of-00002.safetensors": 4, "model-00002-of-00002.safetensors": 8}, None, 3),
        ({"model.safetensors": 4, "pytorch_model.bin": 4, "optimizer.pt": 8}, "float32", 1),
        ({"pytorch_model.bin": 4}, "float16", 2),
        ({"model.safetensors": 4}, "bfloat16", 2),
        ({"bert_model.ckpt.data-00000-of-00001": 4}, None, 1),
    ],
)
def test_an_adaptation_is_bounded_by_the_weights_of_an_encoder(
    files: dict[str, int], dtype: str | None, num_weights: int, tmp_path: Path
) -> None:
    """Whatever their format, and for a run's folder, too: 2e14 FLOPs of 1,024 tokens a step."""
    folder = make_encoder(tmp_path / "run/encoder", **({} if dtype is None else {"dtype": dtype}))
    for name, weights in files.items():
        with (folder / name).open("wb") as file:
            file.truncate(weights * 1_000_000)
    text = tmp_path / "text.txt"
    with text.open("wb") as file:
        file.truncate(10**10)
    expected = round(2e14 / (6 * 1024 * num_weights * 1_000_000))
    for encoder in (folder, folder.parent):
        words = ["scale=adapt", f"encoder={encoder}", f"corpus.sources.0.path={text}"]
        assert composed("pretrain", words).get("phases.0.steps") == expected


@pytest.mark.parametrize("word", ["", "sample_by_seed=true", "task.data.validation_folds=5"])
def test_the_seed_that_samples_counts_where_something_is_sampled(word: str) -> None:
    """Other runs are the same whatever it is, and those of before are of their own seed."""
    words = ["task=sst2", "encoder=none", "row=mine", *filter(None, [word])]
    identities = []
    for seed in ("seed", "pretrain_seed"):
        recorded = composed("finetune", [*words, f"sampling_seed={seed}"]).recorded
        identities.append(identity_of(recorded).get("sampling_seed"))
    assert identities == [None, "pretrain_seed" if word else None]


def test_the_steps_follow_from_a_text_whatever_its_files_are(tmp_path: Path) -> None:
    """Three passes: bytes of whole files gave ten times as many with a long field beside it."""
    text = "a line of a text, and of each document\n" * 20
    number = 300
    (tmp_path / "a.txt").write_text(f"{text}\n" * number)
    row = json.dumps({"html": "<p>" * 3000, "text": text.rstrip("\n")})
    (tmp_path / "a.jsonl").write_text(f"{row}\n" * number)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(f"{row}\n".encode() * number))
    expected = round(3 * number * (len(text) + 1) / 4.5 / 1024)
    for name in ("a.txt", "a.jsonl", "a.jsonl.gz"):
        words = ["scale=adapt", f"corpus.sources.0.path={tmp_path / name}"]
        assert composed("pretrain", words).get("phases.0.steps") == expected
    # More than one source, and what is read otherwise.
    sources = [f"{{name: {name}, path: {tmp_path}/a.{name}}}" for name in ("txt", "jsonl")]
    words = ["scale=adapt", f"corpus.sources=[{', '.join(sources)}]"]
    steps = composed("pretrain", words).get("phases.0.steps")
    assert steps == pytest.approx(2 * expected, abs=1)
    words = ["scale=adapt", f"corpus.sources.0.path={tmp_path}/a.jsonl"]
    words.append("corpus.sources.0.text_field=html")
    assert composed("pretrain", words).get("phases.0.steps") > 10 * expected
