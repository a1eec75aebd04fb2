"""Jobs of a sweep are composed to the node as Hydra composes each by itself."""

from __future__ import annotations

import copy
import pickle
from abc import ABCMeta
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

import omegaconf
import pytest
from hydra._internal import config_loader_impl, defaults_list
from hydra._internal.config_repository import ConfigRepository
from hydra.plugins.config_source import ConfigResult
from omegaconf import AnyNode, DictConfig, ListConfig, OmegaConf, UnionNode
from tests.screens import refuses

from clozelab import hydra_compat
from clozelab.config import Composed
from clozelab.hydra_compat import CachedMergeLoader, FileConfigSource
from clozelab.launch.application import run_application
from clozelab.launch.jobs import plan_job
from clozelab.launch.mistakes import CONFIGURATION_ERRORS
from clozelab.launch.sweep import GatedLoader, Sweep, compose, make_loader, named_jobs
from clozelab.schema import SCHEMAS
from clozelab.text.did_you_mean import key_of
from clozelab.text.paths import CONF_DIR, EXPERIMENTS_DIR

LISTING = "create_defaults_list"
TABLE5 = "table5_pretraining_tasks"


def opened(experiment: str, name: str, *words: str) -> Sweep:
    return Sweep(name, ["scale=demo", *words], folder=EXPERIMENTS_DIR / experiment)


def as_hydra_does(sweep: Sweep, job: Sequence[str]) -> Composed:
    """By a loader that has composed no other job."""
    assert sweep.master.origin is not None
    folder = Path(sweep.master.origin.config_dir)
    return Composed.from_node(make_loader(folder).load_sweep_config(sweep.master.node, list(job)))


def seen(job: Composed) -> tuple[Any, Any, str]:
    plain = OmegaConf.to_container(job.node, resolve=False)
    return plain, job.recorded, str(job.get("run_dir"))


@pytest.mark.parametrize(
    ("experiment", "name", "words"),
    [
        (TABLE5, "sweep_finetune", ["row=mlm,ltr_bilstm", "task=mrpc,squad_v1"]),
        (
            TABLE5,
            "sweep_pretrain",
            ["optimizer.betas=[0.9,0.98],[0.9,0.999]", "arm=mlm,ltr", "seed=1"],
        ),
        ("table6_model_size", "sweep_pretrain", ["arm=glob(depth*)", "seed=1"]),
        pytest.param(
            "table7_feature_based_ner",
            "sweep_finetune",
            ["row=mlm_nsp,last", "learning_rate=1e-3,2e-3"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "figure5_training_steps",
            "sweep_finetune",
            ["task=mrpc", "row=mlm_05,mlm_100"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_as_hydra_composes_it(experiment: str, name: str, words: list[str]) -> None:
    sweep = opened(experiment, name, *words)
    jobs = sweep.jobs
    composed = [sweep.composer.compose(job) for job in jobs]
    picked = list(range(0, len(jobs), max(1, len(jobs) // 2)))
    assert len(jobs) > 1 and len({str(seen(one)) for one in composed}) == len(jobs)
    for index in picked:
        assert seen(composed[index]) == seen(as_hydra_does(sweep, jobs[index])), jobs[index]


@pytest.mark.parametrize(
    "words",
    [
        ("max_train_examples=7", "max_train_examples=null"),
        ("learning_rate=3e-4", "++learning_rate=2e-4"),
        ("learning_rate=3e-4", "learning_rate=2e-4"),
        ("scale.finetune.epochs=1", "scale.finetune={epochs:3}"),
        ("task.always.epochs=1", "task=mrpc"),
        ("seed='1'", "learning_rate=0.001", "optimizer.betas.0=0.8"),
    ],
)
def test_words_about_one_key_keep_their_order(words: tuple[str, ...]) -> None:
    sweep = opened(TABLE5, "sweep_finetune")
    for seed in (1, 2):
        job = ("row=mlm", *words, f"pretrain_seed={seed}")
        assert seen(sweep.composer.compose(job)) == seen(as_hydra_does(sweep, job))


def test_groups_that_only_a_searchpath_knows(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "flavour").mkdir(exist_ok=True)
        (tmp_path / "flavour" / f"{name}.yaml").write_text(f"# @package _global_\narm: {name}\n")
    words = [f"hydra.searchpath=[file://{tmp_path}]", "+flavour=one,two", "seed=1"]
    sweep = opened(TABLE5, "sweep_pretrain", *words)
    assert {sweep.composer.compose(job).get("arm") for job in sweep.jobs} == {"one", "two"}


def test_a_folder_of_the_searchpath_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (f"file://{tmp_path}/nowhere", f"{tmp_path}/nowhere"):
        with refuses("nowhere is no folder"):
            compose("pretrain", [f"hydra.searchpath=[{path}]"])
    for word in (f"hydra.searchpath=['{tmp_path}',pkg://clozelab]", "hydra.searchpath=[]"):
        assert compose("pretrain", [word]).stage == "pretrain"


def test_a_file_counts_as_it_is_now_and_where_it_is_put(tmp_path: Path) -> None:
    (tmp_path / "flavour").mkdir()
    for name in ("sweet", "salty"):
        (tmp_path / "flavour" / "of_now.yaml").write_text(f"name: {name}\n")
        for place in ("hydra.job.env_set", "hydra.callbacks"):
            words = [f"hydra.searchpath=[file://{tmp_path}]", f"+flavour@{place}=of_now"]
            assert OmegaConf.select(compose("pretrain", words).node, f"{place}.name") == name


@pytest.mark.parametrize("stage", ["prepare", "pretrain"])
def test_work_that_hydra_is_spared_changes_no_configuration(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Defaults such as `corpus: scale_${scale}` still mean what was chosen."""
    for scale in ("demo", "own", "paper"):  # files before the scale's are merged by now
        compose(stage, [f"scale={scale}"])
    quick = compose(stage, ["scale=laptop"])
    assert CachedMergeLoader._beginnings
    choices = cast("Any", defaults_list._create_interpolation_map)
    monkeypatch.setattr(defaults_list, "_create_interpolation_map", choices.__wrapped__)
    monkeypatch.delattr(ConfigRepository, "__deepcopy__")
    for place, name in ((ConfigRepository, "load_config"), (config_loader_impl, LISTING)):
        monkeypatch.setattr(place, name, getattr(place, name).__wrapped__)
    monkeypatch.delattr(CachedMergeLoader, "_compose_config_from_defaults_list")
    slow = compose(stage, ["scale=laptop"])
    assert OmegaConf.to_container(slow.node) == OmegaConf.to_container(quick.node)
    assert slow.config == quick.config and [*slow.node] == [*quick.node]
    assert quick.hydra_value("runtime.choices")["corpus"] == "scale_laptop"


def test_a_copied_node_is_its_own_and_the_same() -> None:
    """A pickled one, whose making is another code, has the same values, types, keys and flags."""

    def seen(node: Any) -> list[object]:
        """All that a node and those below it hold, in order."""
        state = dict(node.__dict__)
        parent, content = state.pop("_parent"), state.pop("_content", None)
        del state["_flags_cache"]
        held = [type(node), type(parent), state]
        children = content if isinstance(content, list) else getattr(content, "values", list)()
        for child in children:
            assert child._get_parent() is node
            held += seen(child)
        return held

    whole = compose("pretrain", ["scale=laptop"]).node
    copied, pickled = copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))
    assert len(seen(copied)) > 1000
    assert seen(copied) == seen(pickled) == seen(whole)
    below = copy.deepcopy(whole.objective)
    assert below._get_parent() is whole, "interpolations still find what they name"

    OmegaConf.set_struct(copied.objective, False)
    copied.seed, copied.objective.odd = 77, [1]
    copied.hydra.overrides.task.append("more")
    assert seen(whole) == seen(pickled) != seen(copied)


@pytest.mark.parametrize("stage", [*SCHEMAS])
def test_what_omegaconf_asks_of_a_node_has_its_answers(stage: str) -> None:
    """Of all nodes, their values, and odd ones; its own functions are behind ours."""

    def below(node: Any) -> Iterator[Any]:
        yield from (node, node._value())
        content = node.__dict__.get("_content")
        if isinstance(content, dict | list):
            for child in content.values() if isinstance(content, dict) else content:
                yield from below(child)

    union = UnionNode("${a}", ref_type=int | str)
    odd = [None, "???", "${a}", "a", "", 0, UnionNode("b", ref_type=int | str), union, object()]
    odd += [DictConfig(None), ListConfig("???"), DictConfig("${a}"), AnyNode("???"), b"???"]
    values = [*below(compose(stage).node), *odd]
    assert len(values) > 400
    kinds = [*hydra_compat._kinds_below(omegaconf.Node)]
    for value in values:
        for name in ("_get_value", "_is_interpolation", "_is_missing_value"):
            ours = getattr(omegaconf._utils, name)
            found, expected = ours(value), ours.__wrapped__(value)
            assert type(found) is type(expected), (name, value)
            assert found is expected or found == expected, (name, value)
        found = [isinstance(value, kind) for kind in kinds]
        assert found == [ABCMeta.__instancecheck__(kind, value) for kind in kinds], value
        if isinstance(value, DictConfig):
            assert value._is_typed() is DictConfig._is_typed.__wrapped__(value), value


def count_loads(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A list that grows by one whenever a job of a sweep is composed by Hydra."""
    calls: list[object] = []
    original = sweep.composer.loader.load_sweep_config

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(sweep.composer.loader, "load_sweep_config", counted)
    return calls


def test_jobs_that_differ_in_seeds_are_composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = opened(TABLE5, "sweep_finetune", "row=mlm,ltr", "task=mrpc")
    jobs, composer = sweep.jobs, sweep.composer
    calls = count_loads(sweep, monkeypatch)
    first = composer.compose(jobs[0])
    first.node.seed = 77
    assert [composer.compose(job).get("seed") for job in jobs].count(77) == 0
    assert len(jobs) == 8 and len(calls) == 2


ARMS = """\
columns: [mnli]
arms:
  slow: {optimizer.learning_rate: 0.001, gradient_clip_norm: 1.0}
  fast: {optimizer.learning_rate: 0.002, gradient_clip_norm: 2}
  late: {gradient_clip_norm: 0.5, optimizer.learning_rate: 3e-3}
  other: {objective: ltr, optimizer.learning_rate: 0.004}
  called: {optimizer.learning_rate: "${scale.pretrain.learning_rate}"}
  clipped: {gradient_clip_norm: 0.25}
  unclean: {gradient_clip_norm: 0.25, corpus.steps: []}
  cleaned: {gradient_clip_norm: 0.25, corpus.steps: [clean]}
"""


@pytest.mark.parametrize(
    ("words", "loads"),
    [
        (["arm=slow,fast"], 1),
        # Another order of keys, another choice, and a value that is looked up.
        (["arm=slow,fast,late,other,called"], 4),
        # A list replaces the one that is there.
        (["arm=clipped,unclean,cleaned"], 3),
        # A word about what the arm says counts, wherever it stands.
        (["arm=slow,fast", "gradient_clip_norm=3"], 2),
        (["arm=slow,fast", "++optimizer.learning_rate=1"], 2),
        # This file is merged behind the arm's.
        (["arm=slow,fast", "+debug@_global_=fast"], 2),
    ],
)
def test_arms_of_the_same_keys_are_composed_once(
    words: list[str], loads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paper.yaml").write_text(ARMS)
    sweep = Sweep("sweep_pretrain", ["scale=demo", "seed=1,2", *words], folder=tmp_path)
    expected = {job: seen(as_hydra_does(sweep, job)) for job in sweep.jobs}
    calls = count_loads(sweep, monkeypatch)
    for job in sweep.jobs:
        assert seen(sweep.composer.compose(job)) == expected[job], job
    assert len(calls) == loads


@pytest.mark.parametrize(
    "defaults",
    [
        "[pretrain, arm: slow, _self_]",  # what is below comes last
        "[pretrain, _self_, arm: slow, optional rates: 'of_${arm}']",
    ],
)
def test_an_arm_that_another_file_may_change_is_composed_by_itself(
    defaults: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paper.yaml").write_text(ARMS)
    text = f"defaults: {defaults}\ngradient_clip_norm: 7\nexperiment: rates\n"
    (tmp_path / "sweep_pretrain.yaml").write_text(text)
    sweep = Sweep("sweep_pretrain", ["scale=demo", "arm=slow,fast", "seed=1"], folder=tmp_path)
    calls = count_loads(sweep, monkeypatch)
    for job in sweep.jobs:
        assert seen(sweep.composer.compose(job)) == seen(as_hydra_does(sweep, job))
    assert len(calls) == 2


def test_a_file_is_read_once_for_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("row=mlm,ltr,ltr_bilstm", "task=mrpc,sst2", "seed=1")
    sweep = opened(TABLE5, "sweep_finetune", *words)
    read: list[str] = []
    load = FileConfigSource.load_config

    def counted(source: FileConfigSource, config_path: str) -> ConfigResult:
        read.append(f"{source.path}/{config_path}")
        return load(source, config_path)

    monkeypatch.setattr(FileConfigSource, "load_config", counted)
    # What earlier tests have read is forgotten.
    load_anew = hydra_compat._cached_load(ConfigRepository.load_config.__wrapped__)
    list_anew = hydra_compat._cached_listing(defaults_list.create_defaults_list)
    monkeypatch.setattr(ConfigRepository, "load_config", load_anew)
    monkeypatch.setattr(config_loader_impl, LISTING, list_anew)
    kinds = {seen(sweep.composer.compose(job))[2] for job in sweep.jobs}
    assert len(kinds) == 12 and {
        f"{CONF_DIR}/task/{name}" for name in ("sst2", "format/glue")
    } <= set(read)
    assert len(read) == len(set(read))


def test_a_run_whose_words_ask_for_no_mode_is_composed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word about Hydra may ask for a sweep, so that Hydra looks first: it composes twice."""
    monkeypatch.chdir(tmp_path)
    composed: list[object] = []
    load = GatedLoader.load_configuration

    def counted(loader: GatedLoader, *given: Any, **options: Any) -> Any:
        composed.append(options)
        return load(loader, *given, **options)

    monkeypatch.setattr(GatedLoader, "load_configuration", counted)
    jobs: list[Any] = []

    def run_job(job: Composed) -> None:
        assert job.origin is not None
        jobs.append((job.values, job.origin.hydra_overrides))

    words = ["scale=demo", "tokenizer.vocab_size=300", f"data_dir={tmp_path}"]
    for number, more in ((1, []), (3, ["hydra.verbose=false"])):
        run_application("prepare", [*words, *more], run_job, lambda *_: None)
        assert len(composed) == number
    (plain, said), (other, said_of_other) = jobs
    assert plain == other and plain["tokenizer"]["vocab_size"] == 300
    assert said == ["hydra.mode=RUN"] and said_of_other == ["hydra.verbose=false", *said]
    # Nothing in conf/ that such words choose says a mode.
    for stage in SCHEMAS:
        assert compose(stage).hydra_value("mode") is None


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("seed=one", "seed"),
        ("sead=2", "sead"),
        ("+sead=2", "sead"),
        ("task=mrcp", "mrcp"),
        ("seed=null", "seed"),
    ],
)
def test_a_wrong_word_is_refused_behind_a_right_one(
    second: str, message: str, tmp_path: Path
) -> None:
    composer = opened(TABLE5, "sweep_finetune", f"runs_dir={tmp_path}").composer
    composer.compose(("row=mlm", "task=mrpc", "seed=1"))
    with pytest.raises((*CONFIGURATION_ERRORS, ValueError), match=message):
        plan_job(composer.compose(("row=mlm", "task=mrpc", second)), ())


def test_jobs_are_grouped_by_the_keys_that_count() -> None:
    words = ("row=mlm,ltr", "task=mrpc,sst2", "++scale.model.hidden_size=48,96")
    sweep = opened(TABLE5, "sweep_finetune", *words)
    assert [*sweep.groups(lambda key: key == "task")] == [("task=mrpc",), ("task=sst2",)]
    shapes = sweep.groups(lambda key: key == "scale.model.hidden_size")
    assert [*shapes] == [(f"++scale.model.hidden_size={size}",) for size in (48, 96)]
    alike = sweep.groups(lambda key: key not in ("seed", "pretrain_seed"))
    assert len(alike) == 2 * 2 * 2 and {len(jobs) for jobs in alike.values()} == {2 * 2}
    assert {*chain.from_iterable(alike.values())} == {*sweep.jobs} and len(sweep.jobs) == 8 * 4
    settings = sweep.settings(shapes[("++scale.model.hidden_size=96",)][0])
    assert settings["row"] == "mlm" and settings["scale"]["model"]["hidden_size"] == 96
    assert "hydra" not in settings


def test_an_interval_is_no_list_of_values() -> None:
    with refuses("seed=interval(1,3): an interval is no list of values; a sweep takes seed=VALUE"):
        _ = Sweep("pretrain", ["seed=interval(1,3)"]).jobs


def test_a_key_twice_in_a_job_is_refused() -> None:
    sweep = opened(TABLE5, "sweep_finetune", "row=mlm", "++seed=1,2,3")
    with refuses("++seed=1 stands beside the sweep's own seed=1: write seed= to"):
        _ = sweep.jobs


@pytest.mark.parametrize(
    ("stage", "words", "names"),
    [
        ("finetune", ["learning_rate=5e-5,2e-4"], ["learning_rate-5e_05", "learning_rate-0.0002"]),
        (
            "finetune",
            ["row=public", "learning_rate=5e-5,2e-4", "seed=1"],
            ["public+learning_rate-5e_05", "public+learning_rate-0.0002"],
        ),
        (
            "finetune",
            ["row=public,ours", "epochs=1,2"],
            ["public+epochs-1", "public+epochs-2", "ours+epochs-1", "ours+epochs-2"],
        ),
        # A name with an interpolation is each job's own, and says enough where it has the key.
        (
            "finetune",
            ["row=lr-${learning_rate}", "learning_rate=5e-5,2e-4"],
            ["lr-5e-05", "lr-0.0002"],
        ),
        (
            "finetune",
            ["row=on-${task.name}", "task=mrpc,sst2", "epochs=1,2"],
            ["on-mrpc+epochs-1", "on-mrpc+epochs-2", "on-sst2+epochs-1", "on-sst2+epochs-2"],
        ),
        # Two encoders by one name.
        ("finetune", ["row=r", "encoder=a,b"], ["r+encoder-a", "r+encoder-b"]),
        # Seeds and tasks have their own places in the folder's name.
        ("finetune", ["row=public", "seed=1,2", "task=mrpc,sst2"], ["public"] * 4),
        # Also where Hydra's own word names the folder.
        ("pretrain", ["seed=1,2", "run_dir=x/${hydra:job.override_dirname}"], ["mlm_nsp"] * 2),
        ("pretrain", ["arm=short", "objective=mlm,ltr"], ["short+mlm", "short+ltr"]),
        ("pretrain", ["objective=mlm,ltr"], ["mlm", "ltr"]),
        ("pretrain", ["model=tiny,mini"], ["model-tiny", "model-mini"]),
        ("finetune", ["encoder=/a/b,/a/c"], ["encoder-a_b", "encoder-a_c"]),
        # Of two keys that end alike all is said.
        (
            "pretrain",
            ["objective.token.weight=1.0,2.0", "objective.pair.weight=3.0,4.0"],
            [
                "objective.token.weight-1.0+objective.pair.weight-3.0",
                "objective.token.weight-1.0+objective.pair.weight-4.0",
                "objective.token.weight-2.0+objective.pair.weight-3.0",
                "objective.token.weight-2.0+objective.pair.weight-4.0",
            ],
        ),
        (
            "finetune",
            ["encoder_arm=a,b", "epochs=1,2"],
            ["a+epochs-1", "a+epochs-2", "b+epochs-1", "b+epochs-2"],
        ),
    ],
)
def test_jobs_that_differ_have_names_that_differ(
    stage: str, words: list[str], names: list[str]
) -> None:
    sweep = Sweep(stage, words)
    key = "arm" if stage == "pretrain" else "row"
    composed = [sweep.composer.compose(job) for job in sweep.jobs]
    assert [job.get(key) for job in composed] == names
    assert len({job.get("run_dir") for job in composed}) == len(composed)


@pytest.mark.parametrize(
    ("words", "swept"),
    [
        (["row=lr-${learning_rate}"], "learning_rate"),
        (["row=r", "run_dir=x/${learning_rate}"], "learning_rate"),
        (["row=r", "run_dir=x/${task.name}"], "task"),
    ],
)
def test_a_name_or_a_folder_that_tells_jobs_apart_is_left_alone(
    words: list[str], swept: str
) -> None:
    master = compose("finetune", words, sweep=True)
    values = {"learning_rate": ("1e-3", "2e-3"), "task": ("mrpc", "sst2")}[swept]
    jobs = [(*words, f"{swept}={value}") for value in values]
    assert named_jobs(jobs, master) == jobs
    # Another key that differs is in neither.
    more = [(*job, "epochs=1") for job in jobs] + [(*job, "epochs=2") for job in jobs]
    assert all(
        key_of(job[-1]) == "row" and "+epochs-" in job[-1] for job in named_jobs(more, master)
    )
