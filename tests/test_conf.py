"""conf/: every choice of every group composes, targets are allowed, a misspelt key is refused
wherever it stands.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import ConfigCompositionException, OverrideParseException
from omegaconf import MISSING, OmegaConf

from clozelab.addresses import check_targets
from clozelab.assembly.encoders import build_objectives
from clozelab.config import Composed, fallback
from clozelab.launch import sweep
from clozelab.launch.mistakes import explain
from clozelab.models.config import EncoderConfig
from clozelab.models.registry import family_for
from clozelab.schema import PhaseConfig
from clozelab.text.paths import CONF_DIR


def members(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF_DIR / group).glob("*.yaml"))


MUST_SAY = {
    "corpus=text": ("corpus.sources.0.path=my/texts",),
    "task=own": ("task.data.train_file=reviews.csv",),
    "task@measure.task=own": ("measure.task.data.train_file=reviews.csv",),
    "task=pairs": ("task.data.train_file=pairs.csv",),
    "measure=retrieval": ("measure.data.folder=scifact",),
    "measure=minimal_pairs": ("measure.data.files=pairs.jsonl",),
    "measure=labelled": ("measure.task.data.validation_file=more.tsv",),
}
"""What a choice cannot do without."""


@cache
def composed(stage: str, *overrides: str) -> Composed:
    """The configuration of a stage, looked at: a choice is composed once for all tests of it."""
    said = []
    for override in overrides:
        said.extend(MUST_SAY.get(override, ()))
    composed = sweep.compose(stage, [*said, *overrides])
    look_at(composed)
    return composed


def config(stage: str, *overrides: str) -> Any:
    """The same as its stage gets it."""
    return composed(stage, *overrides).config


def look_at(composed: Composed) -> None:
    """Every mandatory value is there, every target's address is allowed, its stage gets just what
    was composed, and a record can be written of it.
    """
    check_targets(composed.values, signatures=False)
    assert asdict(composed.config) == composed.values and composed.recorded


@pytest.mark.parametrize(
    ("stage", "group"),
    [
        ("prepare", "corpus"),
        ("prepare", "scale"),
        pytest.param("pretrain", "corpus", marks=pytest.mark.slow),
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
        ("finetune", "fine_tuning"),
        ("finetune", "callbacks"),
        ("finetune", "scale"),
        ("finetune", "trainer"),
        ("finetune", "logger"),
        ("evaluate", "measure"),
        ("evaluate", "scale"),
    ],
)
def test_every_member_composes(stage: str, group: str) -> None:
    """The targets of each fit their signatures, and a task is called as its file is."""
    assert members(group)
    for name in members(group):
        values = composed(stage, f"{group}={name}").values
        check_targets(values)
        assert group != "task" or values["task"]["name"] == name


FAST_SCALES = ("demo", "paper")
EVERY_SCALE = [
    pytest.param(scale, marks=[] if scale == "paper" else [pytest.mark.slow])
    for scale in members("scale")
]


@pytest.mark.parametrize("scale", EVERY_SCALE)
@pytest.mark.parametrize("trainer", members("trainer"))
def test_every_scale_on_every_trainer(scale: str, trainer: str) -> None:
    """The trainer's own composition with the values of another scale, which is what Hydra would put
    there. Each scale is composed above, and each trainer with scale=demo; the fast pairs are of the
    largest scale.
    """
    for stage in ("pretrain", "finetune"):
        node = composed(stage, f"trainer={trainer}").node.copy()
        node.scale = composed(stage, f"scale={scale}").node.scale
        at_scale = Composed.from_node(node)
        look_at(at_scale)
        assert at_scale.config.scale.name == scale


@pytest.mark.parametrize("scale", members("scale"))
def test_a_scale_brings_its_corpus_and_tasks(scale: str) -> None:
    for stage in ("prepare", "pretrain"):
        corpus = {"adapt": "text", "demo": "microworld", "dials": "dials", "own": "text"}
        expected = corpus.get(scale, "wiki_books")
        assert config(stage, f"scale={scale}").corpus.name == expected
    assert config("prepare", f"scale={scale}", "corpus=text").corpus.name == "text"
    # A task's own composition with the values of the scale, which is what Hydra would put there.
    finetuning = composed("finetune", f"scale={scale}").node.scale
    tasks = finetuning.finetune.tasks.split(",")
    assert {*tasks} <= {*members("task")}
    for task in tasks if scale in FAST_SCALES else tasks[:1]:
        node = composed("finetune", f"task={task}").node.copy()
        node.scale = finetuning
        look_at(Composed.from_node(node))


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


# The same ways with other recipes.
OTHER_FIDELITIES = [
    pytest.param(*case, marks=pytest.mark.slow)
    for case in (
        (["scale=paper", "fidelity=ours"], PAPER, None, False),
        (["scale=paper", "recipe=roberta"], None, None, False),
        (["scale=paper", "recipe=albert"], None, 10, True),
    )
]


@pytest.mark.parametrize(
    ("words", "pairs", "dupe_factor", "count_specials"),
    [
        (["scale=demo"], OURS, None, False),
        (["scale=demo", "objective.input.negative_scope=corpus"], PAPER, None, False),
        (["scale=laptop"], OURS, None, False),
        (["scale=gpu30"], PAPER, None, False),
        (["scale=gpu_day"], PAPER, None, False),
        (["scale=paper"], RELEASED, 10, True),
        (["fidelity=released"], RELEASED, 10, True),
        (["fidelity=paper"], PAPER, 10, False),
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
        (["scale=paper", "recipe=electra"], PAPER, None, False),
        *OTHER_FIDELITIES,
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
    plain = config("pretrain", *words, "arm=any")
    named = replace(plain.phases[0], objective="mlm_nsp")
    more = replace(plain, phases=[*plain.phases, named])
    objective, *_, last = build_objectives(sweep.phase_objectives(more))
    assert objective.dupe_factor == last.dupe_factor == dupe_factor
    if pairs is not None:
        assert {key: getattr(objective.input, key) for key in pairs} == pairs
    assert count_specials == getattr(objective.token, "count_specials", None)
    unnamed = replace(plain, phases=[replace(plain.phases[0], objective=None)])
    usual = build_objectives(sweep.phase_objectives(unnamed))[0]
    assert repr(usual.input) == repr(objective.input)
    if len(words) == 1 and words[0].startswith(("scale=", "fidelity=")):
        assert repr(last.input) == repr(objective.input)
        assert getattr(last.token, "count_specials", None) == count_specials


@pytest.mark.parametrize(
    ("recipe", "shares"),
    [("electra", (0.85, 0.0, 0.15)), ("deberta_v3", (1.0, 0.0, 0.0)), ("neobert", (1.0, 0.0, 0.0))],
)
def test_a_recipe_hides_as_the_released_code_does(recipe: str, shares: tuple[float, ...]) -> None:
    """What stands in place of a predicted token: [MASK], another one, itself."""
    token = config("pretrain", f"recipe={recipe}").objective.token
    names = ("mask_fraction", "random_fraction", "same_fraction")
    assert tuple(token[name] for name in names) == shares


def test_ernie_hides_words_whole_and_each_token_by_itself() -> None:
    """As the released code: names are chosen whole, what stands there is drawn for each token."""
    token = config("pretrain", "recipe=ernie").objective.token
    assert token["whole_words"] and not token["one_action_a_span"]


def test_spans_of_xlnet_are_of_the_released_lengths() -> None:
    """A length of n tokens, one to five, is drawn with a weight of 1 / n."""
    weights = config("pretrain", "recipe=xlnet").objective.token["span_weights"]
    products = [weight * length for length, weight in enumerate(weights, start=1)]
    assert products == [products[0]] * 5


@pytest.mark.parametrize("stage", ["prepare", "pretrain", "finetune", "evaluate"])
def test_a_configuration_is_written_as_omegaconf_writes_it(stage: str) -> None:
    """Words with letters of other alphabets, and those that look like a number or a truth."""
    written = composed(stage, "data_dir='é: yes'", "runs_dir='1e-3'", "cache_dir='yes'")
    assert written.yaml == OmegaConf.to_yaml(OmegaConf.create(written.unresolved))


@pytest.mark.parametrize("stage", ["prepare", "pretrain"])
def test_own_text_has_to_be_named(stage: str) -> None:
    """Once it was data_dir/corpus, whatever lay there."""
    message = "corpus.sources.0.path has no value; give one: corpus.sources.0.path=..."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        assert sweep.compose(stage, ["corpus=text"]).config


def test_no_measure_has_the_name_of_a_task() -> None:
    names = set()
    for measure in members("measure"):
        names.add(config("evaluate", f"measure={measure}").measure.name)
    assert not names & {*members("task")}
    assert names >= {"blimp", "labelled_sst2", "probe_pos_ewt", "pairs_order"}


def one_task_a_format() -> list[Any]:
    """Every task; the first one of each format is fast, and the others have its keys."""
    seen: set[str] = set()
    tasks = []
    for task in members("task"):
        text = (CONF_DIR / "task" / f"{task}.yaml").read_text(encoding="utf-8")
        found = re.search(r"format/\w+", text)
        name = found[0] if found else task
        marks = [pytest.mark.slow] if name in seen else []
        seen.add(name)
        tasks.append(pytest.param(task, marks=marks))
    return tasks


@pytest.mark.parametrize("task", one_task_a_format())
def test_any_task_can_be_probed(task: str) -> None:
    words = ["measure=probe", f"task@measure.task={task}"]
    if task in ("own", "pairs"):  # of files of one's own
        words.append("measure.task.data.train_file=mine.csv")
    measure = config("evaluate", *words).measure
    assert measure.name == f"probe_{task}" and measure.task["data"]


@pytest.mark.parametrize(
    ("stage", "override", "message"),
    [
        ("pretrain", "trainer.thread=1", "did you mean 'trainer.threads'?"),
        ("pretrain", "scale.pretrain.seed=1", "did you mean 'scale.pretrain.seeds'?"),
        ("pretrain", "model.hidden_sise=8", "did you mean 'model.hidden_size'?"),
        ("pretrain", "+model.hidden_sise=8", "there is no such key; did you mean 'hidden_size'?"),
        ("pretrain", "validation.interval=1", "did you mean 'validation.interval_steps'?"),
        ("pretrain", "phases.0.seq_len=1", "has no key 'phases.0.seq_len'; "),
        ("pretrain", "objective.token.predict_probb=0.1", "mean 'objective.token.predict_prob'?"),
        ("pretrain", "optimizer.lr=1", "'optimizer.lr'; optimizer has _target_, _partial_, learn"),
        ("pretrain", "hidden_size=3", "did you mean 'model.hidden_size'?"),
        ("pretrain", "model=tyni", "there is no model 'tyni'; did you mean 'tiny'?"),
        ("prepare", "tokenizer.lower=true", "did you mean 'tokenizer.lowercase'?"),
        ("prepare", "corpus.sources.0.pth=x", "has no key 'corpus.sources.0.pth'; "),
        ("evaluate", "measure.data.sides=[left]", "has no key 'measure.data.sides'; "),
        ("evaluate", "measure=blip", "there is no measure 'blip'; did you mean 'blimp'?"),
        ("finetune", "task.nam=x", "has no key 'task.nam'; did you mean 'task.name'?"),
        ("finetune", "task.data.max_seq_len=x", "did you mean 'task.data.max_seq_length'?"),
        ("finetune", "+encoder_folder=x", "there is no such key; did you mean 'encoder_arm'"),
        ("pretrain", "seed=one", "seed=one: Value 'one' of type 'str' could not be converted"),
        ("pretrain", "trainer.devices=many", "trainer.devices=many: Value 'many' of type 'str'"),
        ("pretrain", "texts", "name=value without blanks; 'texts' is none"),
        ("pretrain", "seed 2", "'seed 2' is none"),
        ("pretrain", "seed=1,2", "seed=1,2: for a sweep add -m; if it is a text"),
        ("pretrain", "data_dir=it's", """put it in quotes: "data_dir='it\\'s'\""""),
        ("pretrain", "phases.7.steps=3", "phases has no entry 7 yet; write all"),
        ("pretrain", "corpus.sources.9={name: a, path: b}", "corpus.sources has no entry 9 yet"),
    ],
)
def test_a_typo_on_the_command_line_is_refused_by_its_key(
    stage: str, override: str, message: str
) -> None:
    errors = (ConfigCompositionException, OverrideParseException, ValueError)
    with pytest.raises(errors) as caught:
        assert composed(stage, override).config
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


# Of two directions there is no family: their encoder is one of BERT's.
@pytest.mark.parametrize("name", sorted({*members("architecture")} - {"two_directions"}))
def test_an_architecture_is_what_its_family_writes_and_reads(name: str) -> None:
    """Its YAML and its file of models/families agree: a folder needs no word of ours to be read
    again.
    """
    plain = composed("pretrain", f"architecture={name}", "model=base").values
    check_targets(plain)
    # MPNet's classes take padding for the id 1, which its tokenizer has there.
    padding = {"mpnet": 1}.get(name, 0)
    sizes = plain["model"] | plain["architecture"] | {"vocab_size": 100, "pad_token_id": padding}
    encoder = EncoderConfig(**sizes)
    family = family_for(encoder)
    written = family.to_hf_config(encoder)
    model_type = {"deberta": "deberta-v2", "bigbird": "big_bird"}.get(name, name)
    assert written["model_type"] == model_type and family.from_hf_config(written) == encoder


@dataclass
class Phases:
    """Phases as a configuration holds them, and those that a factor multiplies."""

    own: list[PhaseConfig] = MISSING
    of_the_scale: list[PhaseConfig] = MISSING


def test_phases_of_an_arm_replace_those_that_a_factor_made() -> None:
    """A file that lists phases is merged over the resolver's result, which has to be of the
    schema's type.
    """
    phase = {"seq_length": 8, "steps": 10, "global_batch_size": 1, "micro_batch_size": 1}
    made = {"own": "${scaled_phases:${of_the_scale},0.5}", "of_the_scale": [phase, phase]}
    config = OmegaConf.merge(OmegaConf.structured(Phases), made)
    assert [one.steps for one in config.own] == [5, 5]
    assert [one.steps for one in OmegaConf.merge(config, {"own": [phase]}).own] == [10]


def test_finetuning_values_come_from_the_scale_or_else_the_task() -> None:
    demo = config("finetune", "scale=demo", "task=mrpc")
    rate = demo.learning_rate
    assert rate == demo.scale.finetune.learning_rate == demo.optimizer["learning_rate"]
    own = config("finetune", "scale=demo", "task=mrpc", "scale.finetune.learning_rate=null")
    assert own.learning_rate == own.task.learning_rate == own.optimizer["learning_rate"]
    assert fallback(None, 2) == 2 and fallback(0, 2) == 0 and fallback() is None


def test_a_score_stops_a_training_in_its_own_direction() -> None:
    falling = ("task=stsb", "task.module.metrics=[mae,pearson]", "task.metric=validation/mae")
    for words, mode in ((("task=mnli",), "max"), (falling, "min")):
        cfg = config("finetune", "callbacks=early_stopping_score", *words)
        assert cfg.callbacks["early_stopping"]["mode"] == mode
        assert cfg.callbacks["early_stopping"]["monitor"] == cfg.task.metric
    further = "task.metric=validation/mismatched_accuracy"
    cfg = config("finetune", "callbacks=early_stopping_score", "task=mnli", further)
    assert cfg.callbacks["early_stopping"]["mode"] == "max"


def test_no_group_file_names_a_machine() -> None:
    for path in CONF_DIR.rglob("*.yaml"):
        absolute = re.findall(r"""(?:^|[\s"'=:\[,])(/\w+/\S*)""", path.read_text())
        # "override /hydra/launcher: ..." names a group.
        assert not [one for one in absolute if not one.endswith(":")], (path, absolute)
