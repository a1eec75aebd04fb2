"""The schema: what each key may be, what it means for a run, and one sentence for each mistake."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from itertools import product

import pytest
from omegaconf import OmegaConf, open_dict
from tests.composing import whole
from tests.screens import Screens, refuses

from clozelab.config import Composed
from clozelab.schema import IDENTITY, LAYOUT, NEUTRAL, PROTOCOL, SCHEMAS, meaning_of, meanings

REFUSED = [
    ("pretrain", "trainer.strategy=dpp", "is 'dpp': choose one of auto, ddp, fsdp, xla; did you"),
    ("pretrain", "trainer.accelerator=cuda", "is 'cuda': choose one of auto, cpu, gpu, mps, tpu"),
    ("pretrain", "trainer.precision=16-mixed", "is '16-mixed': choose one of auto, bf16-mixed, "),
    ("pretrain", "trainer.compile=yes please", "is 'yes please': choose one of auto, true, false"),
    ("pretrain", "trainer.micro_batch=half", "is 'half': choose one of as_configured, auto"),
    ("pretrain", "fidelity=relased", "is 'relased': choose one of released, paper, ours; did you"),
    ("pretrain", "objective.dupe_factor=0", "is 0: it must be greater than or equal to 1"),
    ("pretrain", "position_growth=tiles", "is 'tiles': choose one of none, tile; did you mean "),
    ("prepare", "corpus.sources.0.format=json", "is 'json': choose one of auto, text, book, jsonl"),
    ("finetune", "initialisation=pretraind", "is 'pretraind': choose one of pretrained, random; "),
    ("pretrain", "trainer.devices=0", "is 0: it must be greater than or equal to 1"),
    ("pretrain", "trainer.num_nodes=0", "is 0: it must be greater than or equal to 1"),
    ("pretrain", "trainer.threads=0", "is 0: it must be greater than or equal to 1"),
    ("pretrain", "trainer.num_workers=-1", "is -1: it must be greater than or equal to 0"),
    ("pretrain", "trainer.log_interval_steps=0", "is 0: it must be greater than or equal to 1"),
    ("pretrain", "trainer.hang_seconds=0", "is 0.0: it must be greater than 0"),
    ("pretrain", "trainer.grace_seconds=-1", "is -1.0: it must be greater than 0"),
    ("pretrain", "trainer.max_time=2h", "is 2h: write it as '02:30:00', with days as '1-02:30:00'"),
    ("finetune", "trainer.max_time=9000", "is 9000: write it as '02:30:00'"),
    ("pretrain", "seed=-1", "is -1: it must be greater than or equal to 0"),
    ("pretrain", "phases.0.seq_length=0", "is 0: it must be greater than or equal to 1"),
    ("pretrain", "phases.1.steps=0", "is 0: it must be greater than or equal to 1"),
    ("pretrain", "phases.0.micro_batch_size=0", "is 0: it must be greater than or equal to 1"),
    ("pretrain", "validation.instances=0", "is 0: it must be greater than or equal to 1"),
    ("pretrain", "validation.interval_steps=0", "is 0: it must be greater than or equal to 1"),
    ("pretrain", "checkpoint_interval_steps=0", "is 0: it must be greater than or equal to 1"),
    ("pretrain", "gradient_clip_norm=-1", "is -1.0: it must be greater than or equal to 0"),
    ("pretrain", "steps_factor=0", "is 0.0: it must be greater than 0"),
    ("pretrain", "steps_factor=inf", "is inf: it must be a finite number"),
    ("pretrain", "steps_factor=nan", "is nan: it must be a finite number"),
    ("pretrain", "keep_encoders.1=1.5", "is 1.5: it must be less than 1"),
    ("prepare", "corpus.validation_fraction=1", "is 1.0: it must be less than 1"),
    ("finetune", "pretrain_seed=-1", "is -1: it must be greater than or equal to 0"),
    ("finetune", "encoder_fraction=1.5", "is 1.5: it must be less than or equal to 1"),
    ("finetune", "learning_rate=0", "is 0.0: it must be greater than 0"),
    ("finetune", "epochs=-1", "is -1.0: it must be greater than 0"),
    ("finetune", "global_batch_size=0", "is 0: it must be greater than or equal to 1"),
    ("finetune", "max_train_examples=0", "is 0: it must be greater than or equal to 1"),
    ("finetune", "evaluations_per_epoch=-1", "is -1: it must be greater than or equal to 0"),
]


@pytest.fixture(scope="module", params=["prepare", "pretrain", "finetune", "evaluate"])
def stage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_value_that_a_key_may_not_have_is_refused_in_one_sentence(stage: str) -> None:
    """Composed once a stage: a mistake is set on a copy, as an override would."""
    right = whole(stage, ["keep_encoders=[0.5,0.6]"] if stage == "pretrain" else [])
    Composed.from_node(right).check()
    for own, word, message in REFUSED:
        if own != stage:
            continue
        key, _, value = word.partition("=")
        wrong = right.copy()
        OmegaConf.update(
            wrong, f"scale.pretrain.{key}" if key.startswith("phases.") else key, value
        )
        with pytest.raises(ValueError, match=f"^{re.escape(f'{key} {message}')}"):
            Composed.from_node(wrong).check()


@pytest.mark.parametrize(
    "word",
    [
        "corpus.steps=[]",
        "corpus.steps=[clean,{near_duplicates:{}}]",
        "corpus.steps=[clean,{quality:{limits:{}}}]",
        "scale.pretrain.phases.0.source_weights={}",
    ],
)
def test_what_no_fingerprint_shows_is_refused(word: str) -> None:
    """An empty list or mapping has no leaf: the run would be taken for one without it."""
    config = whole("pretrain", [word])
    with pytest.raises(ValueError, match="leave an empty list or mapping out, or write null"):
        Composed.from_node(config).check()


def test_what_a_stage_gets_is_not_changed(stage: str) -> None:
    config = Composed.from_node(whole(stage)).config
    with pytest.raises(FrozenInstanceError):
        config.data_dir = "elsewhere"
    with pytest.raises(FrozenInstanceError):
        config.scale.name = "other"


def test_every_mistake_has_a_line(screen: Screens) -> None:
    config = whole("pretrain", ["seed=-1", "trainer.strategy=dpp", "steps_factor=0", "+sead=1"])
    with refuses("sead: there is no such key; did you mean 'seed'?"):
        Composed.from_node(config).check()
    with open_dict(config):
        del config["sead"]
    with pytest.raises(ValueError) as refused:
        Composed.from_node(config).check()
    screen(refused.value)


@pytest.mark.parametrize(
    ("key", "meaning"),
    [
        ("hydra.job.name", NEUTRAL),
        ("scale.model.hidden_size", NEUTRAL),
        ("scale.name", IDENTITY),
        ("phases.3.micro_batch_size", LAYOUT),
        ("phases.3.steps", PROTOCOL),
        ("trainer.devices", LAYOUT),
        ("trainer.hang_seconds", NEUTRAL),
        ("trainer.grace_seconds", NEUTRAL),
        ("trainer.max_time", NEUTRAL),
        ("trainer.precision", PROTOCOL),
        ("task.data.how_to_get", NEUTRAL),
        ("task.data.max_seq_length", PROTOCOL),
        ("objective.token.predict_prob", PROTOCOL),
        ("measure.name", IDENTITY),
        ("measure.data.masking", PROTOCOL),
        ("measure.data.evaluation_tokens", LAYOUT),
        ("measure.task.data.how_to_get", NEUTRAL),
    ],
)
def test_what_a_key_means_for_a_run(key: str, meaning: object) -> None:
    assert meaning_of(key) == meaning


TEST_KEYS = ("test_files", "test_id_column")


def test_a_key_counts_only_while_its_option_is_on() -> None:
    options = {key: meaning.option for key, meaning in meanings().items() if meaning.option}
    assert options == {
        "task.hub": "hub",
        "sampling_seed": "sample_by_seed task.data.validation_folds",
        "callbacks": "callbacks",
        "measure.label_names": "measure.label_names",
        "trainer.lightning": "trainer.lightning",
        "task.data.test_files": "predict_test",
        "task.data.test_id_column": "predict_test",
    } | {
        f"measure.{data}.{key}": "predict_test"
        for data, key in product(("data", "task.data"), TEST_KEYS)
    }
    assert set(SCHEMAS) == {"prepare", "pretrain", "finetune", "evaluate"}
