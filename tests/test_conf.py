"""conf/: every choice of every group composes, targets are allowed, a misspelt key is refused
wherever it stands.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue
from tests.screens import Screens

from clozelab.config import check_config, fallback
from clozelab.launch import sweep
from clozelab.launch.mistakes import explain
from clozelab.models.config import EncoderConfig
from clozelab.runs.identity import canonical
from clozelab.stages.factory import build_objectives
from clozelab.targets import check_targets
from clozelab.text.paths import CONF_DIR


def members(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF_DIR / group).glob("*.yaml"))


MUST_SAY = {
    "corpus=text": ("corpus.sources.0.path=my/texts",),
    "measure=minimal_pairs": ("measure.data.files=pairs.jsonl",),
    "measure=labelled": ("measure.task.data.validation_file=more.tsv",),
}
"""What a choice cannot do without."""


@cache
def whole(stage: str, *overrides: str) -> DictConfig:
    said = []
    for override in overrides:
        said.extend(MUST_SAY.get(override, ()))
    return sweep.compose(stage, [*said, *overrides])


@cache
def composed(stage: str, *overrides: str) -> DictConfig:
    """The configuration of a stage, looked at, read-only: a choice is composed once for all tests
    of it.
    """
    with sweep.hydra_config(whole(stage, *overrides)) as plain:
        look_at(stage, plain)
    OmegaConf.set_readonly(plain, True)
    return plain


def look_at(stage: str, plain: DictConfig) -> None:
    """Every mandatory value is there, every target's address is allowed, and a record can be
    written of it.
    """
    check_config(stage, plain)
    check_targets(plain, signatures=False)
    OmegaConf.to_container(plain, resolve=True, throw_on_missing=True)
    canonical(plain)


@pytest.mark.parametrize(
    ("stage", "group"),
    [
        ("prepare", "corpus"),
        ("prepare", "scale"),
        ("pretrain", "corpus"),
        ("pretrain", "model"),
        ("pretrain", "architecture"),
        ("pretrain", "objective"),
        ("pretrain", "objective/input"),
        ("pretrain", "objective/token"),
        ("pretrain", "objective/pair"),
        ("pretrain", "optimizer"),
        ("pretrain", "schedule"),
        ("pretrain", "scale"),
        ("pretrain", "trainer"),
        ("pretrain", "logger"),
        ("finetune", "task"),
        ("finetune", "scale"),
        ("finetune", "trainer"),
        ("finetune", "logger"),
        ("evaluate", "measure"),
        ("evaluate", "scale"),
    ],
)
def test_every_member_composes(stage: str, group: str) -> None:
    assert members(group)
    for name in members(group):
        composed(stage, f"{group}={name}")


@pytest.mark.parametrize("scale", members("scale"))
@pytest.mark.parametrize("trainer", members("trainer"))
def test_every_scale_on_every_trainer(scale: str, trainer: str) -> None:
    """The trainer's own composition with the values of another scale, which is what Hydra would put
    there.
    """
    for stage in ("pretrain", "finetune"):
        with sweep.hydra_config(whole(stage, f"trainer={trainer}")) as config:
            config.scale = composed(stage, f"scale={scale}").scale
            look_at(stage, config)
        assert config.scale.name == scale


@pytest.mark.parametrize("scale", members("scale"))
def test_a_scale_brings_its_corpus_and_tasks(scale: str) -> None:
    for stage in ("prepare", "pretrain"):
        config = composed(stage, f"scale={scale}")
        assert config.corpus.name == {"demo": "microworld", "dials": "dials", "own": "text"}.get(
            scale, "wiki_books"
        )
    assert composed("prepare", f"scale={scale}", "corpus=text").corpus.name == "text"
    # A task's own composition with the values of the scale, which is what Hydra would put there.
    finetuning = composed("finetune", f"scale={scale}").scale
    for task in finetuning.finetune.tasks.split(","):
        with sweep.hydra_config(whole("finetune", f"task={task}")) as config:
            config.scale = finetuning
            look_at("finetune", config)


OURS = {
    "negative_scope": "source",
    "cuts": "ours",
    "short_seq_prob": 0.0,
    "put_back_unused": False,
    "lone_sentences": "left_out",
    "copies": 1,
}
PAPER = OURS | {"negative_scope": "corpus"}
RELEASED = {
    "negative_scope": "corpus",
    "cuts": "released",
    "short_seq_prob": 0.1,
    "put_back_unused": True,
    "lone_sentences": "random",
    "copies": 10,
}


@pytest.mark.parametrize(
    ("words", "pairs", "dupe_factor", "count_specials"),
    [
        (["scale=demo"], OURS, None, False),
        (["scale=gpu_day"], PAPER, None, False),
        (["scale=paper"], RELEASED, 10, True),
        (["fidelity=released"], RELEASED, 10, True),
        (["fidelity=paper"], PAPER, 10, False),
        (["scale=paper", "fidelity=ours"], PAPER, None, False),
        (["scale=paper", "recipe=roberta"], None, None, False),
        (["scale=paper", "objective=ltr"], RELEASED, 10, None),
        (["scale=paper", "objective=rtd"], RELEASED | {"lone_sentences": "left_out"}, 10, True),
        (["scale=paper", "objective/input=full_sentences", "objective=mlm"], None, 10, True),
        (["fidelity=released", "objective.dupe_factor=4"], RELEASED | {"copies": 4}, 4, True),
        (["fidelity=released", "objective.dupe_factor=null"], RELEASED | {"copies": 1}, None, True),
        (
            ["fidelity=released", "objective.input.short_seq_prob=0"],
            RELEASED | {"short_seq_prob": 0},
            10,
            True,
        ),
        (["fidelity=released", "objective.token.count_specials=false"], RELEASED, 10, False),
        (
            ["fidelity=released", "objective.input.negative_scope=source"],
            RELEASED | {"negative_scope": "source"},
            10,
            True,
        ),
        (["scale=paper", "recipe=electra"], PAPER, None, False),
        (["scale=paper", "recipe=albert"], None, 10, True),
        (["objective.input.cuts=released"], OURS | {"cuts": "released"}, None, False),
    ],
)
def test_a_fidelity_is_a_name_for_settings(
    words: list[str],
    pairs: dict[str, object] | None,
    dupe_factor: int | None,
    count_specials: bool | None,
) -> None:
    """Each can be said by itself, and every combination builds; a phase's own objective has the
    run's.
    """
    plain = OmegaConf.to_container(composed("pretrain", *words, "arm=any"), resolve=True)
    assert isinstance(plain, dict)
    plain["phases"].append({**plain["phases"][0], "objective": "mlm_nsp"})
    objective, *_, last = build_objectives(plain)
    assert objective.dupe_factor == last.dupe_factor == dupe_factor
    if pairs is not None:
        assert {key: getattr(objective.input, key) for key in pairs} == pairs
    assert count_specials == getattr(objective.token, "count_specials", None)
    usual = build_objectives(
        plain | {"phases": [{"objective": None}], "objective": plain["objective"]}
    )[0]
    assert repr(usual.input) == repr(objective.input)
    if len(words) == 1 and words[0].startswith(("scale=", "fidelity=")):
        assert repr(last.input) == repr(objective.input)
        assert getattr(last.token, "count_specials", None) == count_specials


@pytest.mark.parametrize("stage", ["prepare", "pretrain"])
def test_own_text_has_to_be_named(stage: str) -> None:
    """Once it was data_dir/corpus, whatever lay there."""
    with pytest.raises(MissingMandatoryValue) as caught:
        OmegaConf.to_container(
            sweep.compose(stage, ["corpus=text"]).corpus, resolve=True, throw_on_missing=True
        )
    assert (
        explain(caught.value, stage)
        == "corpus.sources.0.path has no value; give one: corpus.sources.0.path=..."
    )


def test_targets_fit_their_signatures() -> None:
    for objective in members("objective"):
        check_targets(composed("pretrain", f"objective={objective}"))
    for corpus in members("corpus"):
        check_targets(composed("prepare", f"corpus={corpus}"))
    for task in members("task"):
        check_targets(composed("finetune", f"task={task}"))
    for measure in members("measure"):
        check_targets(composed("evaluate", f"measure={measure}"))
    check_targets(composed("pretrain", "logger=wandb"))


def test_any_task_can_be_probed_and_no_measure_has_its_name() -> None:
    names = {
        str(composed("evaluate", f"measure={measure}").measure.name)
        for measure in members("measure")
    }
    for task in members("task"):
        config = composed("evaluate", "measure=probe", f"task@measure.task={task}")
        assert config.measure.name == f"probe_{task}" and config.measure.task.data
    assert not names & {*members("task")} and names >= {
        "blimp",
        "labelled_sst2",
        "probe_pos_ewt",
        "pairs_order",
    }


@pytest.mark.parametrize(
    ("stage", "override", "message"),
    [
        ("pretrain", "sed=1", "has no key 'sed'; did you mean 'seed'?"),
        (
            "pretrain",
            "trainer.thread=1",
            "has no key 'trainer.thread'; did you mean 'trainer.threads'?",
        ),
        (
            "pretrain",
            "scale.pretrain.seed=1",
            "has no key 'scale.pretrain.seed'; did you mean 'scale.pretrain.seeds'?",
        ),
        (
            "pretrain",
            "model.hidden_sise=8",
            "has no key 'model.hidden_sise'; did you mean 'model.hidden_size'?",
        ),
        (
            "pretrain",
            "+model.hidden_sise=8",
            "model.hidden_sise: there is no such key; did you mean 'hidden_size'?",
        ),
        (
            "pretrain",
            "validation.interval=1",
            "'validation.interval'; did you mean 'validation.interval_steps'?",
        ),
        ("pretrain", "phases.0.seq_len=1", "has no key 'phases.0.seq_len'; "),
        (
            "pretrain",
            "objective.token.predict_probb=0.1",
            "did you mean 'objective.token.predict_prob'?",
        ),
        (
            "pretrain",
            "optimizer.lr=1",
            "has no key 'optimizer.lr'; optimizer has _target_, _partial_, learning_rate, ",
        ),
        ("pretrain", "model=tyni", "there is no model 'tyni'; did you mean 'tiny'?"),
        ("pretrain", "objectiv=mlm", "has no key 'objectiv'; did you mean 'objective'?"),
        (
            "prepare",
            "tokenizer.lower=true",
            "has no key 'tokenizer.lower'; did you mean 'tokenizer.lowercase'?",
        ),
        ("prepare", "corpus.sources.0.pth=x", "has no key 'corpus.sources.0.pth'; "),
        ("evaluate", "measure.data.sides=[left]", "has no key 'measure.data.sides'; "),
        ("evaluate", "measure=blip", "there is no measure 'blip'; did you mean 'blimp'?"),
        ("finetune", "task.nam=x", "has no key 'task.nam'; did you mean 'task.name'?"),
        (
            "finetune",
            "task.data.max_seq_len=x",
            "'task.data.max_seq_len'; did you mean 'task.data.max_seq_length'?",
        ),
        (
            "finetune",
            "+encoder_folder=x",
            "encoder_folder: there is no such key; did you mean 'encoder_arm'",
        ),
        (
            "pretrain",
            "seed=one",
            "seed=one: Value 'one' of type 'str' could not be converted to Integer",
        ),
        ("pretrain", "trainer.devices=many", "trainer.devices=many: Value 'many' of type 'str'"),
    ],
)
def test_a_typo_on_the_command_line_is_refused_by_its_key(
    stage: str, override: str, message: str
) -> None:
    with pytest.raises((ConfigCompositionException, ValueError)) as caught:
        composed(stage, override)
    assert message in explain(caught.value, stage)


@pytest.mark.parametrize(
    ("group", "text", "key"),
    [
        ("model", "defaults: [tiny]\nhidden_sizes: 3\n", "hidden_sizes"),
        ("scale", "defaults: [demo]\npretrain: {step: 3}\n", "step"),
        ("trainer", "defaults: [cpu]\nacelerator: gpu\n", "acelerator"),
        ("corpus", "defaults: [text]\nsources: [{name: a, paht: b}]\n", "paht"),
        ("objective", "defaults: [mlm]\ntokens: {}\n", "tokens"),
    ],
)
def test_a_typo_in_a_group_file_is_refused_by_file_and_key(
    tmp_path: Path, group: str, text: str, key: str
) -> None:
    (tmp_path / group).mkdir()
    (tmp_path / group / "mine.yaml").write_text(text)
    (tmp_path / "corpus").mkdir(exist_ok=True)
    (tmp_path / "corpus" / "scale_mine.yaml").write_text("defaults: [text]\n")
    with pytest.raises(ConfigCompositionException) as caught:
        sweep.compose("pretrain", [f"{group}=mine"], folder=tmp_path)
    message = explain(caught.value, "pretrain")
    assert f"{group}/mine" in message and key in message


def test_a_typo_below_a_target_is_refused(tmp_path: Path, screen: Screens) -> None:
    (tmp_path / "objective").mkdir()
    (tmp_path / "objective" / "mine.yaml").write_text(
        "defaults: [mlm]\ntoken: {predict_probb: 0.3}\n"
    )
    mine = sweep.compose("pretrain", ["objective=mine"], folder=tmp_path)
    with screen.refuses(ValueError):
        check_targets(sweep.without_hydra(mine))


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "electra"])
def test_an_architecture_is_what_its_family_writes_and_reads(name: str) -> None:
    """Its YAML and its file of models/families agree: a folder needs no word of ours to be read
    again.
    """
    config = composed("pretrain", f"architecture={name}", "model=base")
    check_targets(config)
    plain = {
        key: OmegaConf.to_container(config[key], resolve=True) for key in ("model", "architecture")
    }
    encoder = EncoderConfig(**plain["model"], **plain["architecture"], vocab_size=100)
    written = encoder.family.to_hf_config(encoder)
    assert written["model_type"] == name and encoder.family.from_hf_config(written) == encoder


def test_finetuning_values_come_from_the_scale_or_else_the_task() -> None:
    config = composed("finetune", "scale=demo", "task=mrpc")
    assert (
        config.learning_rate
        == config.scale.finetune.learning_rate
        == config.optimizer.learning_rate
    )
    config = composed("finetune", "scale=demo", "task=mrpc", "scale.finetune.learning_rate=null")
    assert config.learning_rate == config.task.learning_rate == config.optimizer.learning_rate
    assert fallback(None, 2) == 2 and fallback(0, 2) == 0 and fallback() is None


@pytest.mark.parametrize(
    ("scale", "scope"),
    [
        ("demo", "source"),
        ("laptop", "source"),
        ("gpu30", "corpus"),
        ("gpu_day", "corpus"),
        ("paper", "corpus"),
    ],
)
def test_where_random_segments_come_from_is_the_scales(scale: str, scope: str) -> None:
    """Also of an objective that a phase names; an arm says otherwise in one word."""
    phases = "phases=[{seq_length:32,steps:1,global_batch_size:1,micro_batch_size:1,objective:ltr}]"
    config = composed("pretrain", f"scale={scale}", phases, "arm=any", "run_dir=anywhere")
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict) and plain["objective"]["input"]["negative_scope"] == scope
    assert [one["input"]["negative_scope"] for one in sweep.phase_objectives(plain)] == [scope]
    changed = composed("pretrain", f"scale={scale}", "objective.input.negative_scope=corpus")
    assert changed.objective.input.negative_scope == "corpus"


def test_no_group_file_names_a_machine() -> None:
    for path in CONF_DIR.rglob("*.yaml"):
        absolute = re.findall(r"""(?:^|[\s"'=:\[,])(/\w+/\S*)""", path.read_text())
        # "override /hydra/launcher: ..." names a group.
        assert not [one for one in absolute if not one.endswith(":")], (path, absolute)


def test_own_corpus_needs_no_yaml() -> None:
    config = composed("prepare", "corpus=text", "corpus.sources.0.path=my folder/text.txt")
    assert config.corpus.sources[0].path == "my folder/text.txt"
