"""Overrides that cannot be meant: a value that changes nothing, an encoder under another's name."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from clozelab.launch import sweep
from clozelab.launch.jobs import plan_job
from clozelab.launch.overrides import check_overrides
from clozelab.text.paths import EXPERIMENTS_DIR

PHASES = "[{seq_length:64,steps:40,global_batch_size:16,micro_batch_size:16}]"
TABLE5 = "table5_pretraining_tasks"
FACTOR = r"steps_factor=0\.5 would change nothing.*scale\.pretrain\.phases="
RATIO = r"size\.\w+ would change nothing: model=\w+ .*model=ratio"
GIVEN = r" would change nothing: encoder=F brings its own shape"
TUNED = ("encoder=x", "row=y", "task=mrpc")

# Stage, words, and the sentence that refuses them; empty where they change something.
CHANGES_NOTHING = [
    # factors beside phases that they do not reach
    ("pretrain", [f"phases={PHASES}", "steps_factor=0.5"], FACTOR),
    ("pretrain", [f"phases={PHASES}"], ""),
    ("pretrain", [f"scale.pretrain.phases={PHASES}", "steps_factor=0.5"], ""),
    # ratios that the model does not take
    ("pretrain", ["size.depth=1/2"], RATIO),
    ("pretrain", ["size.depth=1/2", "model=ratio"], ""),
    ("pretrain", ["model=tiny", "size.heads=2"], RATIO),
    # the shape of an encoder that brings its own
    ("pretrain", ["encoder=F", "model=tiny"], "model=tiny" + GIVEN),
    ("pretrain", ["encoder=F", "model.hidden_dropout_prob=0"], "hidden_dropout_prob=0" + GIVEN),
    ("pretrain", ["encoder=F", "architecture=modernbert"], "architecture=modernbert" + GIVEN),
    ("pretrain", ["encoder=F", "recipe=modernbert"], ""),  # its other choices count
    ("pretrain", ["encoder=F", "recipe=longformer", "model.max_position_embeddings=4096"], ""),
    ("pretrain", ["encoder=F", "architecture=longformer", "architecture.attention.window=8"], ""),
    ("pretrain", ["encoder=F", "recipe=longformer", "model=tiny"], "model=tiny" + GIVEN),
    (
        "pretrain",
        ["encoder=F", "recipe=longformer", "architecture.use_bias=false"],
        "use_bias=false" + GIVEN,
    ),
    # a setting of the hardware that fine-tuning does not have
    ("pretrain", ["trainer.gradient_checkpointing=true"], ""),
    (
        "finetune",
        ["trainer.gradient_checkpointing=true", *TUNED],
        r"trainer\.gradient_checkpointing=true would change nothing in fine-tuning",
    ),
]
# values of a task that the scale replaces
for key, value in (("learning_rate", "7.0"), ("epochs", "7.0"), ("global_batch_size", "7")):
    REPLACED = rf"task\.{key}={value} would change nothing.*scale=demo.*Say {key}={value}"
    CHANGES_NOTHING += [
        ("finetune", [f"task.{key}=7"], REPLACED),
        ("finetune", [f"{key}=7"], ""),
        ("finetune", [f"task.{key}=7", f"scale.finetune.{key}=null"], ""),
    ]


def refusal(message: str) -> AbstractContextManager[object]:
    """Expect an error with this message, or none at all where the message is empty."""
    if not message:
        return nullcontext()
    return pytest.raises(ValueError, match=message)


@pytest.mark.parametrize(("stage", "words", "message"), CHANGES_NOTHING)
def test_a_word_that_would_change_nothing_is_refused(
    stage: str, words: list[str], message: str
) -> None:
    composed = sweep.compose(stage, ["scale=demo", *words])
    with refusal(message):
        check_overrides(composed)


def test_a_longformer_that_goes_on_keeps_its_windows(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "clozelab_longformer"}')
    words = ["scale=demo", f"encoder={tmp_path}", "architecture=longformer"]
    check_overrides(sweep.compose("pretrain", words))
    for word in ("architecture.attention.window=7", "model.max_position_embeddings=4096"):
        with refusal(f"{word} would change nothing"):
            check_overrides(sweep.compose("pretrain", [*words, word]))


@pytest.mark.parametrize(
    ("model_type", "rows", "positions"), [("bert", 512, 512), ("roberta", 514, 512)]
)
@pytest.mark.parametrize("recipe", ["longformer", "bigbird"])
def test_a_longer_encoder_has_no_fewer_positions(
    tmp_path: Path, recipe: str, model_type: str, rows: int, positions: int
) -> None:
    given = {"model_type": model_type, "max_position_embeddings": rows}
    (tmp_path / "config.json").write_text(json.dumps(given))
    words = ["scale=demo", f"encoder={tmp_path}", f"recipe={recipe}"]
    for number in (positions - 1, positions):
        word = f"model.max_position_embeddings={number}"
        message = f"{word} would change nothing: .* has {positions} positions"
        with refusal(message if number < positions else ""):
            check_overrides(sweep.compose("pretrain", [*words, word]))
    # nobody has said the number that a model has by itself
    given["max_position_embeddings"] = 4096
    (tmp_path / "config.json").write_text(json.dumps(given))
    check_overrides(sweep.compose("pretrain", words))


@pytest.mark.parametrize(
    ("words", "experiment", "message"),
    [
        (["encoder=F"], "", "filed as the row mlm_nsp: say row=NAME"),
        (["encoder=F", "run_dir=R"], "", "filed as the row mlm_nsp: say row=NAME"),
        (["encoder=F", "row=mine"], "", ""),
        (["encoder=F", "encoder_arm=mlm"], "", ""),
        (["encoder_arm=mlm"], "", ""),
        (["encoder=F", "row=ltr"], TABLE5, "the row ltr stands for the encoder that the arm ltr"),
        (["row=ltr"], TABLE5, ""),
        (["encoder=F", "row=given", "task=mrpc"], "table1_glue", ""),
        (["encoder=F", "row=mlm_nsp"], "table1_glue", "take row=given"),
        (["encoder=F", "row=last", "task=ner_conll2003"], "table7_feature_based_ner", ""),
        (["row=ltr", "encoder='elsewhere/${encoder_arm}'"], TABLE5, ""),
    ],
)
def test_a_given_encoder_needs_a_name_of_its_own(
    words: list[str], experiment: str, message: str
) -> None:
    folder = EXPERIMENTS_DIR / experiment if experiment else None
    name = "sweep_finetune" if experiment else "finetune"
    composed = sweep.compose(name, ["scale=demo", *words], folder=folder)
    with refusal(message):
        check_overrides(composed)


def test_an_encoder_in_a_configuration_of_ones_own_needs_a_name_too(tmp_path: Path) -> None:
    text = "defaults: [finetune, _self_]\nexperiment: mine\nencoder: some/FOLDER\n"
    (tmp_path / "mine.yaml").write_text(text)
    with refusal("filed as the row mlm_nsp"):
        plan_job(sweep.compose("mine", [], folder=tmp_path), [])
    (tmp_path / "mine.yaml").write_text(text + "row: mine\n")
    plan_job(sweep.compose("mine", [], folder=tmp_path), [])


# Experiment -> a choice of its arms or rows, a word beside it, and the sentence that refuses both.
MISFILED = {
    TABLE5: [
        ("row=ltr", "encoder_arm=mlm_nsp", "the row ltr stands for .*encoder_arm=ltr,"),
        ("row=ltr", "initialisation=random", "stands for .*initialisation=pretrained"),
        ("row=ltr", "head=bilstm", "stands for .*head=linear"),
        ("row=ltr", "head=linear", ""),
        ("row=ltr", "epochs=7", ""),
        ("row=ltr", "encoder_fraction=0.5", "the row ltr stands for .*encoder_fraction=1.0,"),
        ("arm=mlm_nsp", "seed=1", ""),
        ("arm=mlm_nsp", "objective=mlm", "objective=mlm: .*stands for .*objective=mlm_nsp"),
        ("arm=mlm_nsp", "objective.pair=null", "pair=null: the arm mlm_nsp stands for"),
        ("arm=mlm", "+objective/pair=nsp", "pair=nsp: the arm mlm stands for .*objective=mlm"),
        ("arm=mlm", "objective.token.predict_prob=0.4", ""),
    ],
    "table1_glue": [
        ("row=given", "encoder_fraction=1", ""),
        ("row=given", "learning_rate=1e-5", ""),
        ("row=given", "max_train_examples=7", ""),
    ],
    "figure5_training_steps": [
        ("row=mlm_05", "encoder_fraction=0.5", "stands for .*encoder_fraction=0.05"),
    ],
    "table7_feature_based_ner": [
        ("row=last", "task.data.features=embeddings", "stands for .*task.data.features=last"),
    ],
    "masking_rate": [
        ("arm=rate40", "objective.token.predict_prob=0.15", "the arm rate40 stands for .*=0.4,"),
        ("arm=rate40", "objective.token.predict_prob=0.40", ""),
        ("arm=rate40", "objective/input=segment_pairs", "stands for .*input=full_sentences"),
    ],
    "table6_model_size": [
        ("arm=base", "size.depth=1/2", "the arm base stands for .*size.depth=1,"),
    ],
}
MISFILED_ROWS = []
for name, rows in MISFILED.items():
    MISFILED_ROWS += [(name, *row) for row in rows]


@pytest.mark.parametrize(("experiment", "choice", "word", "message"), MISFILED_ROWS)
def test_what_the_file_of_a_row_or_an_arm_says_is_not_undone(
    experiment: str, choice: str, word: str, message: str
) -> None:
    """Its results would be filed under its name, and claims judged on them."""
    name = "sweep_finetune" if choice.startswith("row=") else "sweep_pretrain"
    words = ["scale=demo", choice, word, "runs_dir=R"]
    composed = sweep.compose(name, words, folder=EXPERIMENTS_DIR / experiment)
    with refusal(message):
        plan_job(composed, [])


PHASES_FILE = """
title: Own phases
split: dev
columns: [{name: Perplexity, from: pretrain, metric: validation/perplexity}]
arms:
  long:
    objective: mlm
    scale.pretrain.phases:
      - {seq_length: 32, steps: 4, global_batch_size: 2, micro_batch_size: 2}
rows: [{row: long, label: Long, arm: long}]
claims: []
"""


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("seed=1", ""),
        ("steps_factor=2", ""),
        ("scale.pretrain.phases.0.seq_length=64", "the arm long stands for"),
    ],
)
def test_an_arm_may_list_phases(tmp_path: Path, word: str, message: str) -> None:
    """The schema fills in what a phase leaves out, which undoes nothing."""
    (tmp_path / "paper.yaml").write_text(PHASES_FILE)
    words = ["scale=demo", "arm=long", word, "runs_dir=R"]
    with refusal(message):
        plan_job(sweep.compose("sweep_pretrain", words, folder=tmp_path), [])


def test_a_name_that_no_file_has_may_stand_for_anything(tmp_path: Path) -> None:
    text = "defaults: [sweep_finetune, _self_]\nhead: bilstm\nrow: {}\n"
    (tmp_path / "row").mkdir()
    for name in ("mlm", "mlm_nsp"):
        row = f"# @package _global_\nrow: {name}\nhead: linear\n"
        (tmp_path / f"row/{name}.yaml").write_text(row)
    sweep_file = EXPERIMENTS_DIR / "table5_pretraining_tasks/sweep_finetune.yaml"
    (tmp_path / "sweep_finetune.yaml").write_text(sweep_file.read_text())
    for row, message in (
        ("mine", ""),
        ("mlm_nsp", "head=bilstm: the row mlm_nsp stands for .*head=linear"),
        ("mlm", "row=mlm: the row"),
    ):
        (tmp_path / "one.yaml").write_text(text.format(row))
        with refusal(message):
            plan_job(sweep.compose("one", ["runs_dir=R"], folder=tmp_path), [])
    for stage, words in (
        ("pretrain", ["arm=mine", "objective.pair=null"]),
        ("finetune", ["row=mine", "head=bilstm"]),
    ):
        plan_job(sweep.compose(stage, [*words, "runs_dir=R"]), [])


PAIRS = "measure=minimal_pairs"
EVALUATED = [
    ([PAIRS, "encoder=F"], "filed as the row mlm_nsp: say row=NAME too"),
    ([PAIRS, "encoder=F", "row=mine"], ""),
    ([PAIRS, "encoder=F", "encoder_arm=mlm"], ""),
    ([PAIRS, "encoder_fraction=0.5"], ""),
    ([PAIRS], ""),
    (["measured=mlm", "initialisation=random"], "=random: the row mlm stands for .* another row"),
    (["measured=mlm", "encoder_arm=ltr"], "the row mlm stands for .*encoder_arm=mlm,"),
    (["measured=mlm", "encoder=F"], "the row mlm stands for the encoder that the arm mlm has"),
    (["measured=mlm", "encoder_fraction=0.5"], "row mlm stands for encoder_fraction=1.0,"),
    (["measured=mlm"], ""),
    (["measured=mlm_25", "encoder_fraction=0.25"], ""),
    (["measured=random", "initialisation=random"], ""),
]


@pytest.mark.parametrize(("words", "message"), EVALUATED)
def test_an_evaluation_is_filed_as_what_it_is(words: list[str], message: str) -> None:
    """By itself, and among those of an experiment's rows."""
    name, folder = "evaluate", None
    if PAIRS not in words:
        name, folder = "sweep_evaluate", EXPERIMENTS_DIR / "zero_shot"
    composed = sweep.compose(name, ["scale=demo", "runs_dir=R", *words], folder=folder)
    with refusal(message):
        plan_job(composed, [])
