"""Runs with two models, with objectives in turn, and from given weights."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.errors import InstantiationException, MissingConfigException
from tests.composing import composed
from tests.runs.records import read_json, record_of
from tests.runs.test_pretrain_run import (
    NO_DROPOUT,
    SHORT,
    assert_near,
    assert_same_bits,
    command,
    overrides,
    ranks,
    rows,
    run_alone,
    run_here,
    state,
    stop_and_go_on,
    weights,
)
from tests.screens import refuses, shows

from clozelab.launch import sweep
from clozelab.models.folders import load_encoder
from clozelab.modules.model import open_tokenizer
from clozelab.runs.inputs import encoder_fingerprint
from clozelab.runs.outcome import same_fraction
from clozelab.runs.reuse import is_done

RTD = {"objective": "rtd", "model.num_attention_heads": 4}
# architecture -> the model_type of its folders, where they have another name
MODEL_TYPES = {"deberta": "deberta-v2", "two_directions": "bert"}
ONE = "{seq_length: 16, steps: 4, global_batch_size: 8, micro_batch_size: 8"


@pytest.fixture(scope="module")
def rtd_run(workplace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rtd") / "run"
    run_here(workplace, folder, **RTD)
    return folder


def test_both_halves_are_kept_and_reported(rtd_run: Path) -> None:
    generator, encoder = load_encoder(rtd_run / "generator"), load_encoder(rtd_run / "encoder")
    assert (generator.config.hidden_size, encoder.config.hidden_size) == (8, 16)
    assert torch.equal(
        generator.embeddings.word_embeddings.weight, encoder.embeddings.word_embeddings.weight
    )
    last = {key: float(value) for _, key, value in rows(rtd_run)}
    scores = ("loss", "accuracy", "rtd_loss", "rtd_accuracy")
    assert {f"validation/{name}" for name in scores} <= last.keys()
    replaced = last["validation/rtd_replaced"]
    assert 0 < replaced < 0.2
    assert last["validation/rtd_trivial_accuracy"] == pytest.approx(1 - replaced)
    total = last["train/mlm_loss"] + 50 * last["train/rtd_loss"]
    assert last["train/loss"] == pytest.approx(total, rel=1e-6)


def test_stopped_xlnet_goes_on_with_the_same_bits(workplace: Path, tmp_path: Path) -> None:
    """Dropout of the table of distances, too; texts of the folder end with [CLS]."""
    changes = {"objective": "permuted", "architecture": "xlnet"}
    run_here(workplace, tmp_path / "whole", **changes)
    stop_and_go_on(workplace, tmp_path / "run", 4, **changes)
    assert_same_bits(tmp_path / "whole", tmp_path / "run")
    assert weights(tmp_path / "run")["encoder transformer.mask_emb"].abs().min() > 0
    tokenizer = open_tokenizer(tmp_path / "run" / "encoder")
    assert tokenizer.cls_is_last and tokenizer.has_token_types
    # Another run goes on from it; a BERT cannot have its tokenizer.
    encoder = tmp_path / "run" / "encoder"
    run_here(workplace, tmp_path / "on", encoder=encoder, phases=SHORT, **changes)
    given = tmp_path / "run" / "encoder" / "tokenizer.json"
    with refuses("text: the tokenizer's template (post_processor) does not put"):
        run_here(workplace, tmp_path / "no", **{"tokenizer.vocab_file": given})


DRIVER = """
import sys
from clozelab.cli import main
from clozelab.objectives.rtd import ReplacedTokenDetection as Rtd
Rtd.draw = lambda self, generator, hidden: generator.heads["lm"](hidden).argmax(-1)
sys.exit(main(sys.argv[1:]))
"""
"""What is drawn depends on rank and micro-batch; here the generator's first choice is taken, which
does not.
"""


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_two_processes_equal_one(workplace: Path, tmp_path: Path, strategy: str) -> None:
    """Both losses and both models: shared embeddings get the gradient of all ranks and passes."""
    (tmp_path / "driver.py").write_text(DRIVER)
    phases = f"[{ONE.replace('micro_batch_size: 8', 'micro_batch_size: 3')}}}]"
    changes = RTD | NO_DROPOUT | {"position_growth": "none", "phases": phases}
    for name, more in (("one", {}), ("two", ranks(strategy))):
        words = command(workplace, tmp_path / name, **more | changes)[3:]
        run_alone([sys.executable, str(tmp_path / "driver.py"), *words])
    assert_near(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_two_processes_change_the_objective(workplace: Path, tmp_path: Path) -> None:
    """The first phase gives the second one's heads no gradient, and nobody waits for it."""
    phases = f"[{ONE}, objective: mlm}}, {ONE}, objective: mlm_nsp}}, {ONE}, objective: rtd}}]"
    changes = RTD | ranks("ddp") | {"phases": phases, "position_growth": "none"}
    run_alone(command(workplace, tmp_path / "run", **changes))
    keys = {key for step, key, _ in rows(tmp_path / "run") if step == 9}
    assert {"train/mlm_loss", "train/rtd_loss"} <= keys


def test_a_named_objective_is_known_by_its_settings(
    workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases = f"[{ONE}}}, {ONE}, objective: ltr}}]"
    changes = {"objective": "mlm", "phases": phases}
    run_here(workplace, tmp_path / "run", **changes)
    record = record_of(tmp_path / "run")
    # The loss is the last phase's, which masks nothing and leaves nothing in place.
    assert "LeftToRight" in record.predicts
    assert same_fraction(record) == 0
    assert record.config["objective"]["token"]["same_fraction"] > 0
    # What the file of that name says by now is seen by the run alone, not before it.
    config = composed("pretrain", overrides(workplace, tmp_path / "run", **changes))
    assert not is_done(tmp_path / "run", stage="pretrain", config=config)
    named = sweep._named_objective

    def edited(name: str, cfg: Any) -> Any:
        node = named(name, cfg)
        node["token"]["weight"] = 0.5
        return node

    monkeypatch.setattr(sweep, "_named_objective", edited)
    with pytest.raises(ValueError, match="phase_objectives"):
        run_here(workplace, tmp_path / "run", **changes)


def test_objectives_in_turn(workplace: Path, tmp_path: Path) -> None:
    """The first phase is, to the last bit, that of a run with its objective alone."""
    both = f"[{ONE}, objective: ltr}}, {ONE}, objective: {{token: {{predict_prob: 0.4}}}}}}]"
    often = {"validation.interval_steps": 2}
    run_here(workplace, tmp_path / "both", objective="mlm", phases=both, **often)
    found = rows(tmp_path / "both")
    losses = {(step, key) for step, key, _ in found if key in ("train/ltr_loss", "train/mlm_loss")}
    ltr = {(step, "train/ltr_loss") for step in (1, 2, 3, 4)}
    assert losses == ltr | {(step, "train/mlm_loss") for step in (5, 6, 7, 8)}
    assert read_json(tmp_path / "both", "encoder/config.json")["is_decoder"] is False
    # Both have the same rates: warm-up and decay are over the whole run.
    alone = f"[{ONE}}}, {ONE}}}]"
    run_here(workplace, tmp_path / "ltr", objective="ltr", phases=alone, **often)
    first = [row for row in rows(tmp_path / "ltr") if row[0] <= 4]
    assert [row for row in found if row[0] <= 4] == first and len(first) > 20
    made = read_json(tmp_path / "ltr", "encoder/config.json")
    assert made["is_decoder"] is True, "an encoder remembers its mask"
    for name, objective in (("both", {"token": {"predict_prob": 0.4}}), ("ltr", None)):
        assert state(tmp_path / name)["config"]["phases"][1]["objective"] == objective


SLOW_MEMBERS = (
    ("mlm_sop", "albert"),
    ("spans", "bert"),
    ("mlm", "roberta"),
    ("mlm_emd", "deberta"),
    ("mlm", "neobert"),
    ("mlm", "ultrabert"),
    ("mpnet", "mpnet"),
    ("ltr_rtl", "two_directions"),
    ("hybrid", "bert"),
)


@pytest.mark.parametrize(
    ("objective", "architecture"),
    [
        ("mlm", "ernie"),
        ("rtd_gdes", "deberta"),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in SLOW_MEMBERS),
    ],
)
def test_members_go_on_with_the_same_bits(
    workplace: Path, tmp_path: Path, objective: str, architecture: str
) -> None:
    """Stopped after step 3 of 4.

    The fast two have what no other run here has: units of text, and a generator. The slow ones are
    other encoders below the same loop.
    """
    changes = {"objective": objective, "architecture": architecture, "phases": f"[{ONE}}}]"}
    changes |= {"model.num_hidden_layers": 2}
    if objective == "hybrid":
        # One instance of sixteen is read from left to right, and each step needs one.
        sixteen = ONE.replace("global_batch_size: 8", "global_batch_size: 16")
        changes["phases"] = f"[{sixteen}}}]"
    if architecture == "deberta":
        changes |= {"architecture.positions.position_buckets": 8}
    if architecture == "ernie":
        # Beginnings of lines of the corpus.
        lines = (workplace / "text.txt").read_text().splitlines()
        units = [" ".join(line.split()[:2]) for line in lines]
        (tmp_path / "units.txt").write_text("\n".join(units))
        changes |= {"objective.token.units": str(tmp_path / "units.txt")}
    run_here(workplace, tmp_path / "whole", **changes)
    stop_and_go_on(workplace, tmp_path / "run", 3, **changes)
    assert_same_bits(tmp_path / "whole", tmp_path / "run")
    record = state(tmp_path / "run")
    assert ("units" in record["inputs"]) == (architecture == "ernie")
    model_type = MODEL_TYPES.get(architecture, architecture)
    config = read_json(tmp_path / "run", "encoder/config.json")
    assert config["model_type"].removeprefix("clozelab_") == model_type


def test_a_phase_with_an_impossible_objective(workplace: Path, tmp_path: Path) -> None:
    misspelled = f"[{ONE}, objective: {{token: {{predict_probb: 0.4}}}}}}]"
    with refuses("phases.0.objective.token.predict_probb: the run's objective has"):
        run_here(workplace, tmp_path / "run", phases=misspelled)
    with pytest.raises(MissingConfigException) as refused:
        run_here(workplace, tmp_path / "run", phases=f"[{ONE}, objective: nonsense}}]")
    assert refused.value.missing_cfg_file == "objective/nonsense"
    assert not (tmp_path / "run").exists()


def test_units_of_every_phase_count(workplace: Path, tmp_path: Path) -> None:
    phases = []
    for name in ("first", "second"):
        file = tmp_path / f"{name}.txt"
        file.write_text(f"{name} unit")
        phases.append(f"{ONE}, objective: {{token: {{units: {file}}}}}}}")
    words = {"objective": "mlm", "phases": f"[{', '.join(phases)}]"}
    run_here(workplace, tmp_path / "run", **words)
    run_here(workplace, tmp_path / "run", **words)
    (tmp_path / "first.txt").write_text("another unit")
    with refuses("holds a run (complete) of another configuration: input units"):
        run_here(workplace, tmp_path / "run", **words)


def test_going_on_from_given_weights(
    workplace: Path, rtd_run: Path, teacher: Path, tmp_path: Path
) -> None:
    """A run of no rate leaves encoder, heads, generator and trained positions as they were."""
    phases = f"[{ONE}}}, {ONE.replace('16', '32')}}}]"
    still = {"optimizer.learning_rate": 0.0, "optimizer.weight_decay": 0.0, "phases": phases}
    still["position_growth"] = "tile"
    run_here(workplace, tmp_path / "on", encoder=rtd_run / "encoder", **RTD, **still)
    mine, theirs = weights(tmp_path / "on"), weights(rtd_run)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    inputs = state(tmp_path / "on")["inputs"]
    assert inputs.keys() == {"corpus", "encoder", "generator"}
    made = read_json(tmp_path / "on", "encoder/config.json")["clozelab"]
    assert made["trained_seq_lengths"] == [16, 32]
    # Another objective on the same encoder: its head is fresh, the encoder is not.
    run_here(workplace, tmp_path / "mlm", encoder=rtd_run / "encoder", objective="mlm", **still)
    words = "encoder bert.embeddings.word_embeddings.weight"
    assert torch.equal(weights(tmp_path / "mlm")[words], theirs[words])
    run_here(workplace, tmp_path / "student", **distilled(teacher), **still)
    name = "embeddings.position_embeddings.weight"
    student = weights(tmp_path / "student")[f"encoder distilbert.{name}"]
    assert torch.equal(student, weights(teacher.parent)[f"encoder bert.{name}"])
    still |= {"encoder": rtd_run / "encoder", "tokenizer.vocab_size": 140}
    with refuses("was trained with another vocabulary than the corpus is prepared"):
        run_here(workplace, tmp_path / "no", **still)
    assert not (tmp_path / "no").exists()


def test_a_given_generator_that_does_not_fit_is_refused_before_anything_is_claimed(
    workplace: Path, rtd_run: Path, tmp_path: Path
) -> None:
    """Embeddings of a pair that has them apart would become the generator's own, unsaid."""
    run = tmp_path / "run"
    wider = RTD | {"objective.token.generator_width": 1}
    with refuses("/generator: its hidden_size is 8, and that of this objective's generator 16:"):
        run_here(workplace, run, encoder=rtd_run / "encoder", **wider)
    gdes = RTD | {"objective.token.embedding_sharing": "gdes"}
    run_here(workplace, tmp_path / "gdes", phases=SHORT, **gdes)
    with refuses("have embeddings of their own, and this objective shares one table: say"):
        run_here(workplace, run, encoder=tmp_path / "gdes/encoder", **RTD)
    assert not run.exists()
    # Embeddings that are one may part.
    run_here(workplace, run, encoder=rtd_run / "encoder", phases=SHORT, **gdes)


@pytest.fixture(scope="module")
def teacher(workplace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher") / "run"
    run_here(workplace, folder, objective="mlm", **{"model.num_hidden_layers": 4})
    return folder / "encoder"


def test_a_plain_head_is_refused_for_mlm_emd_before_anything_is_prepared(
    workplace: Path, rtd_run: Path, teacher: Path, tmp_path: Path
) -> None:
    """It lacks the positions; without a head of words, the decoder starts from fresh weights."""
    words = {"objective": "mlm_emd", "phases": SHORT}
    cache = tmp_path / "cache"
    with refuses("predicts tokens without absolute positions, and mlm_emd needs them: train it on"):
        run_here(workplace, tmp_path / "run", encoder=teacher, cache_dir=cache, **words)
    assert not cache.exists() and not (tmp_path / "run").exists()
    run_here(workplace, tmp_path / "fresh", encoder=teacher, fresh_weights="true", **words)
    run_here(workplace, tmp_path / "first", encoder=rtd_run / "encoder", **words)
    run_here(workplace, tmp_path / "on", encoder=tmp_path / "first/encoder", **words)


def distilled(teacher: Path, **changes: object) -> dict[str, object]:
    settings = {
        "objective": "distillation",
        "architecture": "distilbert",
        "model.num_hidden_layers": 2,
        "objective.token.teacher": teacher,
        "objective.token.teacher_layers": "even",
        "objective.token.hidden_layers": "[[0,0],[2,4]]",
        "objective.token.score_layers": "[[2,4]]",
    }
    return settings | changes


@pytest.fixture(scope="module")
def student(workplace: Path, teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed distillation, which tests only read."""
    folder = tmp_path_factory.mktemp("student") / "run"
    run_here(workplace, folder, **distilled(teacher))
    return folder


def test_a_stopped_distillation_goes_on_with_the_same_bits(
    workplace: Path, teacher: Path, student: Path, tmp_path: Path
) -> None:
    """The learned matrix is in the checkpoint, the teacher is not; its content is an input."""
    stop_and_go_on(workplace, tmp_path / "run", 4, **distilled(teacher))
    assert_same_bits(student, tmp_path / "run")
    names = {key for _, key, _ in rows(tmp_path / "run")}
    losses = {f"validation/{name}_loss" for name in ("soft", "cosine", "hidden", "scores")}
    assert losses | {"validation/loss"} <= names and "validation/cosine_accuracy" not in names
    assert state(tmp_path / "run")["inputs"]["teacher"] == encoder_fingerprint(teacher)
    made = read_json(tmp_path / "run", "encoder/config.json")
    assert (made["architectures"], made["n_layers"]) == (["DistilBertForMaskedLM"], 2)


def test_another_teacher_is_another_run(
    workplace: Path, teacher: Path, student: Path, tmp_path: Path
) -> None:
    """Where it lies does not matter, what it holds does."""
    moved = tmp_path / "elsewhere"
    shutil.copytree(teacher, moved)
    before = state(student)
    run_here(workplace, student, **distilled(moved))
    assert state(student)["fingerprint"] == before["fingerprint"]
    deep = {"objective": "mlm", "model.num_hidden_layers": 4, "phases": SHORT}
    run_here(workplace, tmp_path / "other", seed=2, **deep)
    with refuses("holds a run (complete) of another configuration: input teacher"):
        run_here(workplace, student, **distilled(tmp_path / "other" / "encoder"))


def test_teachers_that_do_not_fit_are_refused_before_anything_is_claimed(
    workplace: Path, teacher: Path, rtd_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for changes, reason in (
        (distilled(tmp_path / "nowhere"), "/nowhere: no encoder here (config.json is missing)"),
        (distilled(rtd_run / "encoder"), "/encoder: the folder holds no lm head"),
        (distilled(teacher, **{"tokenizer.vocab_size": 140}), "trained with another vocabulary"),
        (distilled(teacher, encoder=teacher, architecture="bert"), "leave one of them out"),
    ):
        with refuses(reason):
            run_here(workplace, run, **changes)
        assert not run.exists()
    with pytest.raises(InstantiationException) as refused:
        run_here(workplace, run, objective="distillation")
    shows(refused.value.__cause__, "objective.token.teacher is not set: give the folder")
