"""Every experiment: its paper.yaml is sound, its sweeps expand to the jobs they declare, every job
composes.

Composing takes a third of a second, and there are hundreds of jobs at five scales. So each sweep is
composed once, arms and rows that are plain values are merged into it as Hydra merges them, and
another scale is put in place of `scale`, on which every value of it hangs by interpolation.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from tests.composing import given, known_to_hydra, without_hydra
from tests.covers import few
from tests.records import made_up
from tests.screens import refuses

from claims.analysis.comparability import is_within
from clozelab.addresses import check_targets
from clozelab.config import Composed, canonical, kept_step, scaled, total_steps
from clozelab.files.digests import digest
from clozelab.launch import sweep
from clozelab.launch.experiments import KINDS, ExperimentSource, sweeps_in
from clozelab.launch.jobs import planned_jobs
from clozelab.models.config import EncoderConfig
from clozelab.results.evidence import MAY_DIFFER, edited_lines, treatment_factors
from clozelab.results.experiment import find_experiment, list_experiments, load_experiment
from clozelab.runs.identity import as_before_units
from clozelab.runs.provenance import provenance_of, read_delta
from clozelab.runs.record import Record
from clozelab.runs.reuse import kept_steps, trained_by
from clozelab.runs.store import Run
from clozelab.schema import ScaleConfig
from clozelab.text.paths import CONF_DIR, EXPERIMENTS_DIR
from clozelab.text.plain import flatten

TABLE5 = EXPERIMENTS_DIR / "table5_pretraining_tasks"
SMALL_WORLD = "dials"
"""The scale of one experiment, whose tasks are its own."""
OF_SOMEBODY = {"own", "adapt"}
"""The scales for a text, or an encoder, of somebody's own, at which no experiment says what it
costs.
"""
COMPLETE = [
    name for name in list_experiments() if not load_experiment(find_experiment(name)).inputs
]
"""The others are filled in first (planning/test_inputs.py)."""
SCALES = sorted(
    {path.stem for path in (CONF_DIR / "scale").glob("*.yaml")} - {SMALL_WORLD, *OF_SOMEBODY}
)
# Whose rows are scored by another stage than pre-training.
SCORED = [name for name in COMPLETE if len(sweeps_in(find_experiment(name))) > 1]
DELTAS = {"pretrain": "arm", "finetune": "row", "evaluate": "measured"}
OF_EVERY_KIND = (
    "table5_pretraining_tasks",
    "table7_feature_based_ner",
    "table8_masking",
    "family",
    "prompting",
    "zero_shot",
)
"""Other experiments are slow where all rows have to be composed: these have fine-tuned and
feature-based rows, prompts and measures, other heads, architectures and steps."""


def slow_but(names: Sequence[str]) -> list[Any]:
    """Experiments as parameters of a test; those of no new kind are slow."""
    cases = []
    for name in names:
        marks = [] if name in OF_EVERY_KIND else [pytest.mark.slow]
        cases.append(pytest.param(name, marks=marks))
    return cases


@cache
def stages_of(folder: Path) -> tuple[str, ...]:
    """Pre-training, and what its rows are scored by first: fine-tuning, or measures where there is
    none. Of an experiment whose rows are scored by pre-training itself, that alone.
    """
    sweeps = sweeps_in(folder)
    others = [stage for stage in sweeps if stage != "pretrain"]
    if "pretrain" not in sweeps and others:
        return (others[0],)  # of a given encoder alone
    return ("pretrain", *others[:1])


@cache
def loader(folder: Path) -> ConfigLoader:
    return sweep.make_loader(folder)


@cache
def master(folder: Path, stage: str, *words: str) -> DictConfig:
    """A sweep's own configuration, with its first arm or row."""
    return loader(folder).load_configuration(
        f"sweep_{stage}", ["runs_dir=R", *words], run_mode=RunMode.MULTIRUN
    )


@cache
def scale_values(scale: str) -> DictConfig:
    values = OmegaConf.merge(
        OmegaConf.structured(ScaleConfig), OmegaConf.load(CONF_DIR / "scale" / f"{scale}.yaml")
    )
    assert isinstance(values, DictConfig)
    return values


@cache
def plain(folder: Path, stage: str, *words: str) -> DictConfig:
    """What the sweep's jobs get; a tenth of the nodes, so copies of it are cheap."""
    return without_hydra(master(folder, stage, *words))


def at_scale(config: DictConfig, scale: str) -> DictConfig:
    """The configuration at another scale; the corpus aside, which test_conf.py looks at."""
    config = copy.deepcopy(config)
    with open_dict(config):
        config.scale = scale_values(scale)
    return config


def deltas(folder: Path, stage: str) -> list[str]:
    return sorted(loader(folder).get_group_options(DELTAS[stage]))


@cache
def source(folder: Path) -> ExperimentSource:
    return ExperimentSource("", str(folder))


def group_file(folder: Path, group: str, name: str) -> DictConfig:
    """What the file of an arm or a row says, or its entry in paper.yaml."""
    config = source(folder).load_config(f"{group}/{name}").config
    assert isinstance(config, DictConfig)
    return config


@cache
def parts_of_deltas() -> dict[tuple[str, str, str], frozenset[tuple[str, str]]]:
    """(experiment, stage, arm or row) -> the keys that it sets there, and what it chooses."""
    parts = {}
    for name in COMPLETE:
        folder = EXPERIMENTS_DIR / name
        for stage in stages_of(folder):
            for delta in deltas(folder, stage):
                said = OmegaConf.to_container(group_file(folder, DELTAS[stage], delta))
                assert isinstance(said, dict)
                words = [str(entry) for entry in said.pop("defaults", ())]
                keys = flatten({str(key): value for key, value in said.items()})
                parts[name, stage, delta] = frozenset((stage, word) for word in (*keys, *words))
    return parts


@cache
def few_deltas() -> list[tuple[str, str, str]]:
    """Those that together set every key and choose every choice."""
    return few(parts_of_deltas())


def words_of(folder: Path, stage: str, name: str) -> list[str]:
    """What Hydra has to compose an arm or a row with: nothing where its file is plain values."""
    group = DELTAS[stage]
    chosen = set(map(str, group_file(folder, group, name).get("defaults", ()))) - {"_self_"}
    # What the row composed first says of its encoder would stay in the others.
    is_beside_given = "encoder" in group_file(folder, group, deltas(folder, stage)[0])
    if stage == "finetune" and "task" in group_file(folder, group, name) and not chosen:
        # Only the sweep's own task has what the row sets of it.
        return [f"{group}={name}", f"task={master(folder, stage).hydra.sweeper.params.task}"]
    return [f"{group}={name}"] if chosen or is_beside_given else []


@cache
def with_delta(folder: Path, stage: str, name: str) -> DictConfig:
    """The sweep's configuration with one of its arms or rows."""
    words = words_of(folder, stage, name)
    if words:
        return plain(folder, stage, *words)
    delta = group_file(folder, DELTAS[stage], name)
    delta.pop("defaults", None)
    delta.pop("hydra", None)
    config = copy.deepcopy(plain(folder, stage))
    OmegaConf.set_struct(config, True)
    merged = OmegaConf.merge(config, delta)
    assert isinstance(merged, DictConfig)
    return merged


@cache
def delta_at(folder: Path, stage: str, name: str, scale: str) -> DictConfig:
    """The sweep's configuration with one of its arms or rows, at a scale."""
    return at_scale(with_delta(folder, stage, name), scale)


def resolved(config: DictConfig, stage: str) -> dict[str, Any]:
    """Checked against the stage's schema, and without anything missing."""
    given(stage, config).check()
    values = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def jobs_at(folder: Path, stage: str, scale: DictConfig, *keys: str) -> list[list[str]]:
    """The words of each job of a sweep at a scale; with `keys`, as if it swept these alone."""
    # Rates are chosen by the scale, which only composing anew shows.
    words = (
        [f"scale={scale.name}"] if (folder / "rates" / f"scale_{scale.name}.yaml").is_file() else []
    )
    params = master(folder, stage, *words).hydra.sweeper.params
    config = OmegaConf.create({"scale": scale, "params": params})
    words = [f"{key}={config.params[key]}" for key in keys or config.params]
    parsed = OverridesParser.create(config_loader=loader(folder)).parse_overrides(words)
    result = []
    for batch in BasicSweeper.split_arguments(parsed, None):
        result.extend(batch)
    return result


def tasks_at(scale: DictConfig) -> set[str]:
    """The tasks that any experiment is fine-tuned on at a scale, and those that the scale names for
    others.
    """
    own = scale.finetune
    named = {*own.tasks.split(","), *own.glue_tasks.split(","), *own.benchmarks.values()}
    folders = [EXPERIMENTS_DIR / name for name in COMPLETE]
    tuned = [folder for folder in folders if "finetune" in stages_of(folder)]
    jobs = []
    for folder in tuned:
        jobs.extend(jobs_at(folder, "finetune", scale, "task"))
    return named | {word.removeprefix("task=") for (word,) in jobs}


def known_tasks() -> set[str]:
    return set(loader(TABLE5).get_group_options("task"))


def cost_table(name: str) -> dict[str, tuple[int, int]]:
    """Scale -> (pre-training runs, fine-tuning runs) that the README declares."""
    text = (EXPERIMENTS_DIR / name / "README.md").read_text()
    lines = re.findall(
        r"^\| (\w+) \| (\d+)\b[^|]* \| (\d+)\b[^|]* \|", text.split("## Cost")[1], re.MULTILINE
    )
    return {scale: (int(first), int(second)) for scale, first, second in lines}


@pytest.mark.parametrize("name", COMPLETE)
def test_paper_yaml_and_readme(name: str) -> None:
    experiment = load_experiment(find_experiment(name))
    if name in SCORED:
        tuned = {row.name for row in experiment.rows if "combine" not in row.delta}
        assert tuned == {*deltas(experiment.folder, stages_of(experiment.folder)[1])}
    assert {row.arm for row in experiment.rows} - {None} == {*deltas(experiment.folder, "pretrain")}
    readme = (experiment.folder / "README.md").read_text()
    assert all(row.label in readme for row in experiment.rows)
    assert name in (EXPERIMENTS_DIR / "README.md").read_text()


@pytest.mark.parametrize("name", SCORED)
def test_every_row_of_its_own_has_a_floor(name: str) -> None:
    """An arm's rows name one: fresh weights, and the head that they have; it is fine-tuned by the
    same sweep.
    """
    experiment = load_experiment(find_experiment(name))
    stage = stages_of(experiment.folder)[1]
    swept = str(master(experiment.folder, stage).hydra.sweeper.params[DELTAS[stage]]).split(",")
    for row in experiment.rows:
        if row.arm is None:
            continue
        assert row.floor is not None and row.floor in swept, row.name
        if "combine" in row.delta:
            continue  # models of another row, which has this floor
        own, floor = (plain_row(experiment.folder, one) for one in (row.name, row.floor))
        assert floor["initialisation"] == "random"
        assert own.get("head") == floor.get("head") and own.get("defaults") == floor.get("defaults")


def plain_row(folder: Path, name: str) -> dict[str, Any]:
    values = OmegaConf.to_container(group_file(folder, "row", name))
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


ARMS_WITH_PHASES = [("recipes", "falling"), ("recipes", "flat")]
"""Whose question is the phases themselves."""


@pytest.mark.parametrize(("name", "arm"), ARMS_WITH_PHASES)
def test_arms_with_phases_of_their_own_see_as_many_tokens(name: str, arm: str) -> None:
    [scale] = scales_of(name)
    phases = OmegaConf.load(CONF_DIR / "scale" / f"{scale}.yaml").pretrain.phases
    own = group_file(EXPERIMENTS_DIR / name, "arm", arm).scale.pretrain.phases
    assert tokens_of(own) == tokens_of(phases)


def tokens_of(phases: Any) -> int:
    return sum(one.steps * one.global_batch_size * one.seq_length for one in phases)


@pytest.mark.parametrize("name", COMPLETE)
def test_no_python_and_no_sizes_in_arms(name: str) -> None:
    folder = EXPERIMENTS_DIR / name
    assert not list(folder.rglob("*.py"))
    for arm in deltas(folder, "pretrain"):
        if (name, arm) in ARMS_WITH_PHASES:
            continue
        said = OmegaConf.to_yaml(group_file(folder, "arm", arm))
        assert not re.search(r"steps(?!_factor)|hidden_size|num_hidden_layers|batch_size", said), (
            arm
        )


@pytest.mark.parametrize("name", list_experiments())
def test_readme_says_what_a_reader_needs(name: str) -> None:
    text = (EXPERIMENTS_DIR / name / "README.md").read_text()
    assert re.search(r"^\*\*The question\.\*\* \S", text, re.MULTILINE)
    for heading in (
        "The paper's numbers",
        "Protocol",
        "Where ours differs",
        "Cost",
        "Results so far",
        "Run it",
    ):
        assert re.search(rf"^## {heading}", text, re.MULTILINE), heading


@pytest.mark.parametrize("name", ["zero_shot", "figure5_training_steps"])
def test_a_measure_that_a_scale_has_no_files_for_is_left_out(name: str) -> None:
    """BLiMP is not for an embedded world: its sweep runs all others there."""
    sweep_of_measures = master(EXPERIMENTS_DIR / name, "evaluate")
    swept = {}
    for scale in ("demo", "laptop"):
        params = at_scale(sweep_of_measures, scale).hydra.sweeper.params
        swept[scale] = str(params.measure).split(",")
    assert "blimp" in swept["laptop"] and "probe_pos_ewt" in swept["laptop"]
    assert swept["demo"] == [
        {"probe_pos_ewt": "probe_ner_microworld"}.get(one, one)
        for one in swept["laptop"]
        if one != "blimp"
    ]


@pytest.mark.parametrize("name", COMPLETE)
def test_tasks_of_the_paper_exist(name: str) -> None:
    columns = OmegaConf.load(EXPERIMENTS_DIR / name / "paper.yaml").columns
    columns = [column for column in columns if not isinstance(column, str)]
    tasks = {path.stem for path in (CONF_DIR / "task").glob("*.yaml")}
    for column in columns:
        if "task" not in column:
            assert column.get("from") == "pretrain" or "mean_of" in column
            continue
        if column.get("from") == "evaluate":
            assert (CONF_DIR / "measure" / f"{column.task}.yaml").exists()
            continue
        assert {column.task, *column.get("stand_ins", ())} <= tasks
        assert not _stand_in_for(column.task)
        for stand_in in column.get("stand_ins", ()):
            # A benchmark of its own may stand in as well (WNUT-17, CODAH); one made for it says so.
            own = (None, column.name, column.task, *column.benchmarks)
            assert _stand_in_for(stand_in) in own, stand_in


def _stand_in_for(task: str) -> str | None:
    value = OmegaConf.select(OmegaConf.load(CONF_DIR / "task" / f"{task}.yaml"), "stand_in_for")
    return None if value is None else str(value)


def scales_of(name: str) -> list[str]:
    # Its own phases, or settings, are for this scale.
    names = ("recipes", "small_fine_tuning", "fine_tuned_crossing", "fine_tuning_recipes")
    names += ("public_encoder", "minimal_pairs_record", "mined_negatives")
    if name in names:
        return ["laptop"]
    # Own data alone.
    if name in ("two_sides", "hybrid_ratio", "ltr_plus_rtl"):
        return [SMALL_WORLD]
    # No files of these tasks are in the demo's world.
    if name in ("zero_shot", "what_fine_tuning_says"):
        return [scale for scale in SCALES if scale != "demo"]
    return SCALES


def every_experiment_at_its_scales() -> list[Any]:
    """In turn one of the scales of each is looked at; the others, which differ in numbers, are
    slow.
    """
    cases = []
    for number, name in enumerate(COMPLETE):
        scales = scales_of(name)
        for scale in scales:
            marks = [] if scale == scales[number % len(scales)] else [pytest.mark.slow]
            cases.append(pytest.param(name, scale, marks=marks))
    return cases


@pytest.mark.parametrize("scale", ["demo", SMALL_WORLD])
def test_an_embedded_world_is_asked_for_no_benchmark_that_it_stands_in_for(scale: str) -> None:
    for name in COMPLETE:
        folder = EXPERIMENTS_DIR / name
        if scale in scales_of(name) and "finetune" in stages_of(folder):
            swept = at_scale(master(folder, "finetune"), scale).hydra.sweeper.params.get("task")
            assert "conll2003" not in str(swept), name


@pytest.mark.parametrize(("name", "scale"), every_experiment_at_its_scales())
def test_sweeps_have_the_declared_number_of_jobs(name: str, scale: str) -> None:
    folder = EXPERIMENTS_DIR / name
    stages = stages_of(folder)
    counts = [len(jobs_at(folder, stage, scale_values(scale))) for stage in stages]
    if "pretrain" not in stages:
        counts.insert(0, 0)
    assert tuple(counts) == cost_table(name)[scale][: len(counts)]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", COMPLETE)
def test_every_arm_and_row_composes_at_every_scale(name: str, every: bool) -> None:
    """In each run of the suite the first of each stage, and few that set every key and choose every
    choice of any experiment; `slow` has them all.
    """
    folder = EXPERIMENTS_DIR / name
    arms = deltas(folder, "pretrain")
    chosen = few_deltas()
    for stage in stages_of(folder):
        key = "arm" if stage == "pretrain" else "row"
        first, *_ = deltas(folder, stage)
        for delta in deltas(folder, stage):
            if not (every or delta == first or (name, stage, delta) in chosen):
                continue
            config = with_delta(folder, stage, delta)
            values = resolved(config, stage)
            check_targets(values)
            assert values[key] == delta and values["experiment"] == name
            if stage != "pretrain":
                assert values["encoder_arm"] in (None, *arms)
    # Numbers are the scale's: its own scales have to have them all, and sizes that can be built.
    scales = scales_of(name)
    if not every:
        scales = scales[-1:]
    for scale, stage in product(scales, stages_of(folder)):
        assert resolved(at_scale(plain(folder, stage), scale), stage)["scale"]["name"] == scale


@pytest.mark.parametrize("name", ["modernbert_parts", "public_encoder", "table7_feature_based_ner"])
def test_what_arms_and_rows_record_is_what_their_lines_say(name: str) -> None:
    """No run of an experiment that nobody edited is told that its lines are others now."""
    folder = EXPERIMENTS_DIR / name
    for stage in set(stages_of(folder)) - {"evaluate"}:
        origin = Composed.from_node(master(folder, stage)).origin
        assert origin is not None
        for delta in deltas(folder, stage):
            lines = read_delta(origin, DELTAS[stage], delta)
            config = {"arm": delta, "row": delta}
            deltas_of_run = {"arm_delta": lines, "row_delta": lines}
            run = made_up(stage, config=config, choices=origin.choices, **deltas_of_run)
            assert run.name == delta
            assert edited_lines(run, load_experiment(folder)) == ()


@pytest.mark.parametrize("scale", SCALES)
def test_every_task_of_every_sweep_is_known(scale: str) -> None:
    assert tasks_at(scale_values(scale)) <= known_tasks()


def test_columns_name_measures_as_their_runs_are_named() -> None:
    """Else a column finds no run, and stays empty without a word."""
    columns: list[Any] = []
    for name in COMPLETE:
        columns += load_experiment(find_experiment(name)).columns
    measures = {column.task for column in columns if column.is_measured}
    assert "probe_pos_ewt" in measures
    for name in measures:
        assert sweep.compose("evaluate", [f"measure={name}", "row=one"]).get("measure.name") == name


@pytest.mark.parametrize("key", ["tasks", "glue_tasks", "benchmarks.ner", "benchmarks.new"])
def test_a_task_that_a_scale_misspells_is_found(key: str) -> None:
    values = scale_values("gpu_day").copy()
    OmegaConf.update(values, f"finetune.{key}", "ner_conll2033", force_add=True)
    assert tasks_at(values) - known_tasks() == {"ner_conll2033"}


def recorded(folder: Path, stage: str, delta: str) -> Record:
    """What a run of an arm or row says of its configuration and of what was said for it."""
    group = DELTAS[stage]
    whole = master(folder, stage, *words_of(folder, stage, delta))
    with known_to_hydra(whole):
        config = canonical(delta_at(folder, stage, delta, "laptop"))
    origin = Composed.from_node(whole).origin
    assert origin is not None
    said = provenance_of(origin)
    said["choices"] |= {group: delta}
    said[f"{KINDS[stage]}_delta"] = read_delta(origin, group, delta)
    return Record.model_construct(stage=stage, config=config, **said)


@pytest.mark.parametrize("name", slow_but(COMPLETE))
def test_arms_and_rows_differ_in_what_their_lines_say(name: str) -> None:
    """So that a table's own rows are comparable, and nothing else has to be let through for it."""
    folder = EXPERIMENTS_DIR / name
    differ_in = load_experiment(folder).differ_in
    for stage in stages_of(folder):
        runs = {delta: recorded(folder, stage, delta) for delta in deltas(folder, stage)}
        # as claims compare them: a task's parts by their addresses in every record
        settings = {delta: as_before_units(flatten(run.config)) for delta, run in runs.items()}
        for first, second in combinations(runs, 2):
            free = {*MAY_DIFFER, *differ_in, *treatment_factors([runs[first]], [runs[second]])}
            one, other = settings[first], settings[second]
            apart = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
            assert {key for key in apart if not is_within(key, free)} == set(), (
                f"{first} and {second}"
            )


PARTS_OF_MODELS = ("model", "size", "architecture", "tokenizer", "defaults")
ENDS_OF_SCALES = []
"""The smallest and the largest; those between are slow."""
for scale_name in SCALES:
    slow = [] if scale_name in ("demo", "paper") else [pytest.mark.slow]
    ENDS_OF_SCALES.append(pytest.param(scale_name, marks=slow))


@pytest.mark.parametrize("scale", ENDS_OF_SCALES)
def test_every_arm_is_a_model_at_every_scale(scale: str) -> None:
    """Arms that say the same of their model are looked at once."""
    arms: dict[str, tuple[Path, str]] = {}
    for name in COMPLETE:
        folder = EXPERIMENTS_DIR / name
        for arm in deltas(folder, "pretrain"):
            text = []
            for config in (plain(folder, "pretrain"), group_file(folder, "arm", arm)):
                parts = [config.get(key) for key in PARTS_OF_MODELS]
                text += [OmegaConf.to_yaml(part) for part in parts if part is not None]
            arms.setdefault("".join(text), (folder, arm))
    assert len(arms) > 10
    for folder, arm in arms.values():
        config = delta_at(folder, "pretrain", arm, scale)
        model = OmegaConf.to_container(config.model, resolve=True)
        assert isinstance(model, dict)
        EncoderConfig(
            **{str(key): value for key, value in model.items()},
            vocab_size=config.tokenizer.vocab_size,
        )


@pytest.mark.parametrize("name", slow_but(SCORED))
def test_what_finetuning_reads_is_what_pretraining_writes(name: str) -> None:
    """At the smallest and the largest of its scales; those between differ in the same numbers."""
    folder = EXPERIMENTS_DIR / name
    stage = stages_of(folder)[1]
    scales = scales_of(name)
    for row, scale in product(deltas(folder, stage), {scales[0], scales[-1]}):
        config = delta_at(folder, stage, row, scale)
        if config.encoder_arm is None:
            continue
        run = delta_at(folder, "pretrain", config.encoder_arm, scale)
        # Before there is a run, nothing says that it will have other steps than the scale's.
        total = sum(phase.steps for phase in run.scale.pretrain.phases)
        # What the sweep of an experiment keeps, or its scale.
        params = master(folder, "pretrain").hydra.sweeper.params
        shares = OmegaConf.create(str(params.get("keep_encoders", run.keep_encoders)))
        kept = {f"{run.run_dir}/encoders/step-{kept_step(share, total)}" for share in shares}
        assert str(config.encoder) in {f"{run.run_dir}/encoder", *kept}
        assert run.share_runs


def test_a_fraction_is_one_of_the_runs_own_steps(tmp_path: Path) -> None:
    """Also where an override has made the run another than the scale's: what it was trained with is
    in its record.
    """
    folder = EXPERIMENTS_DIR / "figure5_training_steps"
    words = ["scale=demo", f"runs_dir={tmp_path}"]
    run = sweep.compose("sweep_pretrain", [*words, "phases.0.steps=1000", "arm=mlm"], folder=folder)
    run_dir = Path(run.get("run_dir"))

    rows = [f"mlm_{name}" for name in ("05", "50", "100")]
    composed = [
        sweep.compose("sweep_finetune", [*words, f"row={row}"], folder=folder) for row in rows
    ]

    def encoders() -> list[str]:
        return [str(Path(config.get("encoder")).relative_to(run_dir)) for config in composed]

    def kept() -> list[str]:
        num_steps = total_steps(run.values["phases"])
        steps = kept_steps(run.values["keep_encoders"], num_steps)
        assert len(steps) == 5
        return [*(f"encoders/step-{steps[place]}" for place in (0, 3)), "encoder"]

    assert encoders() != kept()  # nothing says yet that the run will be another than the scale's
    with Run.claim(run_dir, stage="pretrain", config=run):
        pass
    assert encoders() == kept()


def shared_arms(scale: str) -> set[frozenset[str]]:
    """What experiments/README.md calls shared, as "experiment/arm"."""
    wide = {"table7_feature_based_ner/mlm_nsp", "table8_masking/mask80_same10_random10"}
    tables = ("table1_glue", "table2_squad_v1", "table3_squad_v2", "table4_swag")
    default = {f"{name}/mlm_nsp" for name in (*tables, "table5_pretraining_tasks")}
    default |= {"roberta_nsp_x_format/pairs_nsp", "family/bert", "sentence_embeddings/mlm_nsp"}
    same = ["table5_pretraining_tasks", "figure5_training_steps"]
    for name in ("zero_shot", "what_fine_tuning_says"):
        if scale in scales_of(name):
            default, same = default | {f"{name}/mlm_nsp"}, [*same, name]
    others = [
        {f"{name}/mlm" for name in (*same, "layers", "prompting")}
        | {"roberta_nsp_x_format/pairs", "sentence_embeddings/mlm"},
        {f"{name}/ltr" for name in (*same, "layers")},
        {"roberta_nsp_x_format/full_sentences", "masking_rate/rate15"},
    ]
    if scale == "laptop":
        others[1].add("minimal_pairs_record/ltr_twice")
        # with half of the steps
        half = ("fine_tuned_crossing", "minimal_pairs_record", "public_encoder")
        half += ("small_fine_tuning",)
        for arm in ("mlm", "ltr"):
            others.append({f"{name}/{arm}" for name in half})
        others[-2].add("fine_tuning_recipes/mlm")
    if scale in ("demo", "laptop"):  # without dropout
        others[2].add("family_equal_compute/bert")
        return {frozenset(group) for group in (default, wide, *others)}
    base = {"table6_model_size/base"} if scale in ("gpu_day", "paper") else set()
    return {frozenset(group) for group in (default | wide | base, *others)}


SHARING = [pytest.param("laptop", OF_EVERY_KIND)]
"""In each run of the suite between a few experiments."""
for scale_name in SCALES:
    SHARING.append(pytest.param(scale_name, COMPLETE, marks=pytest.mark.slow))


@pytest.mark.parametrize(("scale", "names"), SHARING)
def test_the_same_run_in_two_experiments_is_one(scale: str, names: Sequence[str]) -> None:
    """What is shared has the same configuration but for its names; no other two arms have."""
    groups: dict[str, set[str]] = {}
    for name in (name for name in names if scale in scales_of(name)):
        for arm in deltas(EXPERIMENTS_DIR / name, "pretrain"):
            if (name, arm) in ARMS_WITH_PHASES:
                continue  # at_scale puts the scale's phases back
            config = delta_at(EXPERIMENTS_DIR / name, "pretrain", arm, scale)
            groups.setdefault(digest(trained_by(canonical(config))), set()).add(f"{name}/{arm}")
    expected = []
    for shared in shared_arms(scale):
        expected.append({arm for arm in shared if arm.partition("/")[0] in names})
    assert {frozenset(group) for group in groups.values() if len(group) > 1} == {
        frozenset(group) for group in expected if len(group) > 1
    }


@pytest.mark.parametrize("scale", ENDS_OF_SCALES)
def test_sizes_are_the_papers_in_shape(scale: str) -> None:
    """Table 6's rows at any scale: the same ratios, and two rows of equal parameters."""
    folder = EXPERIMENTS_DIR / "table6_model_size"

    def shape(arm: str) -> tuple[int, int, int]:
        model = delta_at(folder, "pretrain", arm, scale).model
        assert model.intermediate_size == 4 * model.hidden_size
        return model.num_hidden_layers, model.hidden_size, model.num_attention_heads

    layers, width, heads = shape("base")
    assert shape("depth_quarter") == (layers // 4, width, heads)
    assert shape("depth_half") == (layers // 2, width, heads)
    assert shape("depth_half_few_heads") == (layers // 2, width, heads // 4)
    assert shape("wide") == (layers, width * 4 // 3, heads * 4 // 3)
    assert shape("deep_wide") == (layers * 2, width * 4 // 3, heads * 4 // 3)
    if scale == "paper":
        assert (layers, width, heads) == (12, 768, 12)


NO_SIZE = "is no size: it has to be a positive whole number"
NO_RATIO = "give a ratio as 1, 1/2 or 4/3"


@pytest.mark.parametrize(
    ("ratio", "reason"),
    [
        ("1/3", f"4 x 1/3 = 1.33333 {NO_SIZE}"),
        ("0", f"4 x 0 = 0 {NO_SIZE}"),
        ("-1", f"4 x -1 = -4 {NO_SIZE}"),
        ("many", f"many: {NO_RATIO}"),
        ("1/0", f"1/0: {NO_RATIO}"),
    ],
)
def test_a_ratio_that_gives_no_size_is_refused(ratio: str, reason: str) -> None:
    assert scaled(4, "3/4", "4/3") == 4
    with refuses(reason):
        scaled(4, ratio)
    config = with_delta(EXPERIMENTS_DIR / "table6_model_size", "pretrain", "base").copy()
    config.size.depth = ratio
    with refuses(reason, OmegaConfBaseException):
        _ = config.model.num_hidden_layers


def test_the_papers_scale_is_the_paper() -> None:
    values = resolved(delta_at(TABLE5, "pretrain", "mlm_nsp", "paper"), "pretrain")
    phases = values["phases"]
    assert [(one["seq_length"], one["steps"], one["global_batch_size"]) for one in phases] == [
        (128, 900_000, 256),
        (512, 100_000, 256),
    ]
    told = flatten(values)
    for key, value in {
        "schedule.warmup_fraction": 0.01,
        "optimizer.learning_rate": 1e-4,
        "optimizer.weight_decay": 0.01,
        "optimizer.betas.0": 0.9,
        "optimizer.betas.1": 0.999,
        "optimizer.bias_correction": True,
        "model.hidden_dropout_prob": 0.1,
        "model.initializer_range": 0.02,
        "model.position_embedding_init": "normal",
        "model.num_hidden_layers": 12,
        "model.hidden_size": 768,
        "position_growth": "none",
        "tokenizer.vocab_size": 30522,
        "objective.dupe_factor": 10,  # static masking
    }.items():
        assert told[key] == value, key
    tuned = resolved(at_scale(plain(TABLE5, "finetune", "task=squad_v1"), "paper"), "finetune")
    assert (tuned["learning_rate"], tuned["epochs"], tuned["global_batch_size"]) == (5e-5, 3, 32)
    assert tuned["max_train_examples"] is None


def test_the_papers_four_learning_rates_are_tried_in_table_1() -> None:
    """At scale=paper, for both rows of its own encoder; elsewhere the scale's one rate, which is no
    word of a job.
    """
    folder = EXPERIMENTS_DIR / "table1_glue"
    words = ["task=rte", "seed=1", "pretrain_seed=1", "runs_dir=R"]
    places = [
        job.run_dir.split("/")
        for job in planned_jobs(
            sweep.Sweep("sweep_finetune", ["scale=paper", *words], folder=folder)
        )
    ]
    rates = ["rate-5e-05", "rate-4e-05", "rate-3e-05", "rate-2e-05"]
    assert [(place[4], place[-2]) for place in places] == list(
        product(["mlm_nsp", "random"], rates)
    )
    jobs = list(
        planned_jobs(sweep.Sweep("sweep_finetune", ["scale=gpu_day", *words], folder=folder))
    )
    assert [job.run_dir.split("/")[-2] for job in jobs] == ["rate-3e-05"] * 2
    for job in jobs:
        assert not any(word.startswith("learning_rate=") for word in job.overrides)


def test_feature_based_rows_bring_their_own_recipe() -> None:
    """A scale's recipe for fine-tuning an encoder is not one for a fresh BiLSTM on a frozen
    encoder.
    """
    folder = EXPERIMENTS_DIR / "table7_feature_based_ner"
    row = resolved(delta_at(folder, "finetune", "concat_last_four", "laptop"), "finetune")
    assert (row["head"], row["epochs"], row["task"]["data"]["features"]) == (
        "bilstm",
        10,
        "concat_last_four",
    )
    fine_tuned = resolved(delta_at(folder, "finetune", "mlm_nsp", "laptop"), "finetune")
    assert (fine_tuned["head"], fine_tuned["epochs"]) == ("linear", 2)
    assert row["task"]["name"] == fine_tuned["task"]["name"]


def test_a_sweep_without_jobs_or_with_one_twice_is_an_error() -> None:
    assert sweep.Sweep("sweep_finetune", ["task=glob(m*)"], folder=TABLE5).jobs
    for word, reason in (
        ("task=glob(zz*)", "this sweep expands to no job at all; check its values and globs"),
        ("seed=1,2,1", "this sweep has the same job twice, row=mlm_nsp task=mnli"),
    ):
        with refuses(reason):
            _ = sweep.Sweep("sweep_finetune", [word], folder=TABLE5).jobs
