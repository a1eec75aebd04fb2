"""Configuration errors in words that help: the nearest key, the reason in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra.errors import ConfigCompositionException
from omegaconf.errors import OmegaConfBaseException
from tests.screens import shows

from clozelab.launch import sweep
from clozelab.launch.mistakes import explain
from clozelab.text.paths import CONF_DIR


def mistake(name: str, words: list[str], **more: Any) -> Exception:
    """What Hydra says of words that cannot be composed."""
    with pytest.raises(ConfigCompositionException) as caught:
        sweep.compose(name, words, **more)
    return caught.value


def test_a_wrong_key_is_explained_without_hydras_advice() -> None:
    error = mistake("pretrain", ["sed=3"])
    text = "pretrain has no key 'sed'; did you mean 'seed'? (see `clozelab pretrain --cfg job`)"
    assert explain(error, "pretrain") == text
    # verbs without a configuration of their own point to one that has it
    shows(explain(error, "report"), "pretrain has no key 'sed'; did you mean 'seed'? (see")


def test_a_wrong_key_of_a_choice_is_answered_with_the_keys_of_that_choice(tmp_path: Path) -> None:
    choices = tmp_path / "optimizer"
    choices.mkdir()
    (choices / "plain.yaml").write_text("defaults: [sgd]\nshrink: 0.5\nlearning_rate: 1\n")
    words = ["optimizer=plain", "optimizer.shrnk=1"]
    for found in (
        mistake("pretrain", words, folder=tmp_path),
        mistake("pretrain", [f"hydra.searchpath=[file://{tmp_path}]", *words]),
    ):
        shows(explain(found, "pretrain"), "did you mean 'optimizer.shrink'?")
    # Of several choices each may have other keys.
    assert "no key 'optimizer.x'" in explain(
        mistake("pretrain", ["optimizer=sgd,lamb", "optimizer.x=1"], sweep=True), "pretrain"
    )


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "measure.data.sources.0.path",
            "measure.data.sources has no entry 0 yet; write all: 'measure.data.sources=[{...}]'",
        ),
        ("corpus.sources.0.path", "evaluate has no corpus; a text of your own is measure="),
        ("logger.0.name", "evaluate has no key 'logger.0.name'"),  # no list
    ],
)
def test_what_evaluate_has_no_list_of_is_told_in_the_form_that_works(
    key: str, message: str
) -> None:
    error = mistake("evaluate", ["measure=held_out_text", f"{key}=x"])
    assert message in explain(error, "evaluate")
    whole = "measure.data.sources=[{name: mine, path: FILE}]"
    composed = sweep.compose("evaluate", ["measure=held_out_text", whole])
    assert composed.get("measure.data.sources") == [{"name": "mine", "path": "FILE"}]


def test_numbers_in_the_place_of_texts_are_told_in_the_form_that_works() -> None:
    """The command line has no texts for the keys of {...}."""
    words = ["measure=zero_shot", "measure.task.data.words={0: all, 1: run}"]
    shows(explain(mistake("evaluate", words), "evaluate"), "measure.task.data.words.0=VALUE")
    composed = sweep.compose("evaluate", ["measure=zero_shot", "measure.task.data.words.0=all"])
    assert composed.get("measure.task.data.words.0") == "all"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["steps=100"], "steps and batches are those of its phases: phases=[{"),
        (["epochs=1"], "or steps_factor=0.5 (see"),
        (["warmup_steps=100"], "schedule.warmup_fraction="),
        (["lr=1"], "optimizer.learning_rate="),
        (["mlm_probability=0.3"], "objective.token.predict_prob="),
        (["max_train_examples=9"], "no key 'max_train_examples'; see"),  # no scale.finetune. here
        (["phases.0.stepz=3"], "a phase has seq_length, steps, global_batch_size,"),
        (["phases=[{steps:3,rate:1}]"], "phases: a phase has no 'rate'; it has seq_length, steps"),
        (["steps_factor=0.5", "phases.0.steps=9"], "leave it out, or change what it multiplies"),
    ],
)
def test_what_a_pre_training_calls_otherwise_is_told_with_its_place(
    words: list[str], message: str
) -> None:
    assert message in explain(mistake("pretrain", words), "pretrain")


@pytest.mark.parametrize(
    ("stage", "word", "message"),
    [
        ("finetune", "model=minilm", "'model'; what is fine-tuned is encoder=FOLDER, or"),
        ("finetune", "lr=1e-3", "'lr'; the learning rate is learning_rate=2e-5"),
        ("finetune", "text_colum=review", "did you mean 'text_column'?"),
        ("prepare", "txt=texts", "did you mean 'text'?"),
    ],
)
def test_what_no_configuration_has_is_named_all_the_same(
    stage: str, word: str, message: str
) -> None:
    assert message in explain(mistake(stage, [word]), stage)


def test_a_key_that_is_a_folder_of_files_as_well_is_told_how_one_is_chosen(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text("# @package _global_\nseed: 3\n")
    error = mistake("pretrain", ["experiment=mine"], folder=tmp_path)
    assert explain(error, "pretrain", folder=tmp_path) == (
        "experiment is also a folder of configurations here; to choose one of its files, say"
        " +experiment=mine"
    )
    composed = sweep.compose("pretrain", ["+experiment=mine"], folder=tmp_path)
    assert composed.get("seed") == 3


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "hydra.launcher.n_jobs",
            "hydra.launcher has _target_, jobs_at_once, grace_seconds, fork (see",
        ),
        ("hydra.launcher.partitoin", "did you mean 'hydra.launcher.partition'? (see"),
        ("hydra.launcher.job_at_once", "did you mean 'hydra.launcher.jobs_at_once'? (see"),
        ("validation.xyzzy", "validation has interval_steps, instances, seq_length (see"),
        ("xyzzy", "see"),
    ],
)
def test_where_nothing_is_spelt_alike_the_keys_beside_are_named(key: str, message: str) -> None:
    shown = "hydra" if key.startswith("hydra.") else "job"
    found = explain(mistake("pretrain", [f"{key}=3"]), "pretrain").removesuffix(")")
    assert found == f"pretrain has no key '{key}'; {message} `clozelab pretrain --cfg {shown}`"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "scale/mine.yaml",
            "pretrain: {sedes: '1'}\n",
            "has no key 'scale.pretrain.sedes'; did you mean 'scale.pretrain.seeds'",
        ),
        (
            "mine.yaml",
            "defaults: [pretrain, _self_]\nhydra: {sweeper: {parms: 1}}\n",
            "has no key 'hydra.sweeper.parms'; did you mean 'hydra.sweeper.params'",
        ),
    ],
)
def test_a_wrong_key_in_a_file_is_named_with_the_file(
    tmp_path: Path, file: str, text: str, message: str
) -> None:
    (tmp_path / "scale").mkdir()
    (tmp_path / file).write_text(text)
    name, words = ("pretrain", ["scale=mine", "corpus=microworld"]) if "/" in file else ("mine", [])
    error = mistake(name, words, folder=tmp_path)
    said = explain(error, "pretrain", config_name=name, folder=tmp_path)
    assert said.startswith(f"{tmp_path / file}: pretrain {message}")
    # Its folder is not known.
    assert explain(error, "pretrain").startswith(f"{file.removesuffix('.yaml')}: pretrain")


def test_a_wrong_key_inside_a_value_is_named() -> None:
    error = mistake("pretrain", ["phases=[{step: 3}]"])
    shows(explain(error, "pretrain"), "phases: a phase has no 'step'; it has seq_length")


def test_an_interpolation_that_leads_nowhere_is_one_line() -> None:
    composed = sweep.compose("pretrain", ["run_dir='${nope}'"])
    with pytest.raises(OmegaConfBaseException) as caught:
        composed.get("run_dir")
    assert explain(caught.value, "pretrain") == "run_dir: Interpolation key 'nope' not found"


def test_jobs_have_no_number() -> None:
    words = ["seed=1,2", "hydra.sweep.subdir='x/${hydra.job.num}'"]
    composed = sweep.compose("pretrain", words, sweep=True)
    with pytest.raises(OmegaConfBaseException) as caught:
        composed.hydra_value("sweep.subdir")
    shows(explain(caught.value, "pretrain"), "jobs have no number here; run_dir= names each one's")


def test_a_setting_of_a_launcher_that_was_not_chosen_names_it() -> None:
    message = explain(mistake("pretrain", ["hydra.launcher.partition=gpu"]), "pretrain")
    assert message == "pretrain has no key 'hydra.launcher.partition' without hydra/launcher=slurm"


def test_a_launcher_that_is_refused_is_not_offered() -> None:
    error = mistake("pretrain", ["hydra/launcher=basc"])
    shows(explain(error, "pretrain"), "there is no hydra/launcher 'basc' (there are processes, ray")
    # A folder of an experiment may have none.
    place = CONF_DIR / "hydra" / "launcher" / "basc.yaml"
    assert f"one of your own: {place}" in explain(error, "pretrain")


def test_a_scale_of_ones_own_without_a_text_asks_for_one(tmp_path: Path) -> None:
    (tmp_path / "scale").mkdir()
    (tmp_path / "scale" / "night.yaml").write_text("defaults: [own]\nname: night\n")
    error = mistake("pretrain", ["scale=night"], folder=tmp_path)
    message = explain(error, "pretrain", folder=tmp_path)
    shows(
        message, "no corpus 'scale_night': scale=night brings no text; say text=FOLDER, or corpus"
    )


def test_a_misspelt_corpus_of_a_scale_is_named() -> None:
    message = explain(mistake("pretrain", ["corpus=scale_lapto"]), "pretrain")
    shows(
        message, "there is no corpus 'scale_lapto'; did you mean 'scale_laptop'? Else scale=lapto"
    )


def test_an_arm_that_changes_one_entry_of_a_list_is_told_to_give_all(tmp_path: Path) -> None:
    (tmp_path / "paper.yaml").write_text(
        "arms: {short: {objective: mlm, phases.0.steps: 3}}\ncolumns: [mrpc]\n"
    )
    error = mistake("sweep_pretrain", ["arm=short"], folder=tmp_path)
    message = explain(error, "pretrain", config_name="sweep_pretrain", folder=tmp_path)
    shows(message, "arm/short: it changes one entry of a list, as phases.0.steps would")
