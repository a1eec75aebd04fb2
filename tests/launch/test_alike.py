"""Jobs that differ in plain values are resolved as each of them is by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf.errors import OmegaConfBaseException
from tests.screens import refuses

from clozelab import config
from clozelab.config import to_plain
from clozelab.launch.alike import AlikeJobs
from clozelab.launch.experiments import sweeps_in
from clozelab.launch.sweep import Sweep, make_loader
from clozelab.results.experiment import find_experiment, list_experiments, load_experiment
from clozelab.runs.identity import SEED_KEYS
from clozelab.text.paths import EXPERIMENTS_DIR
from clozelab.text.plain import hydra_text


def inputs_of(name: str) -> object:
    """What a user has to bring."""
    return load_experiment(find_experiment(name)).inputs


def kinds(sweep: Sweep) -> set[object]:
    return {sweep.composer.kind_of(job)[0] for job in sweep.jobs}


@pytest.mark.parametrize(
    ("experiment", "stage", "words"),
    [
        ("table8_masking", "pretrain", ["seed=1,2"]),
        ("table5_pretraining_tasks", "finetune", ["task=mrpc,squad_v1", "pretrain_seed=1"]),
        # A recipe of the given encoder's own, which resolvers look up in the whole configuration.
        ("table1_glue", "finetune", ["task=mrpc", "recipe_for=null", "pretrain_seed=1,2"]),
    ],
)
def test_settings_are_those_of_each_job_composed_by_itself(
    experiment: str, stage: str, words: list[str]
) -> None:
    folder = EXPERIMENTS_DIR / experiment
    sweep = Sweep(f"sweep_{stage}", ["scale=demo", *words], folder=folder)
    assert len(kinds(sweep)) < len(sweep.jobs)
    for job in sweep.jobs[:: max(1, len(sweep.jobs) // 5)]:
        composed = sweep.composer.compose(job)
        assert sweep.settings(job) == composed.values
        assert list(sweep.settings(job)) == list(composed.values)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in list_experiments() if not inputs_of(name)])
def test_settings_of_every_arm_and_row_of_the_house(name: str) -> None:
    folder = find_experiment(name)
    for config_name in sweeps_in(folder).values():
        sweep = Sweep(config_name, ["scale=demo"], folder=folder)
        try:
            groups = sweep.groups(lambda key: key not in SEED_KEYS)
        except OmegaConfBaseException as error:
            # Its measures have no files at this scale.
            assert "evaluate=none leaves them out" in str(error)
            continue
        for jobs in groups.values():
            assert sweep.settings(jobs[-1]) == sweep.composer.compose(jobs[-1]).values


def test_what_is_resolved_once_is_what_omegaconf_makes_of_it_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = EXPERIMENTS_DIR / "table5_pretraining_tasks"
    sweep = Sweep("sweep_finetune", ["scale=demo", "task=mrpc"], folder=folder)
    composed = sweep.composer.compose(sweep.jobs[0])
    # Undone before the block ends: it restores what was found before it.
    with composed.resolving() as node, monkeypatch.context() as patched:
        patched.setattr(config._reading, "found", None)
        values = to_plain(node)
    assert config._reading.found is None
    assert values == composed.values


def test_what_hangs_on_a_value_is_resolved_for_each_job() -> None:
    words = ["arm=a", "optimizer.learning_rate=0.1,0.2", "steps_factor=1.0,0.5", "seed=1,2"]
    words += ["model.hidden_dropout_prob=${optimizer.learning_rate}"]
    sweep = Sweep("pretrain", ["scale=demo", *words])
    assert len(sweep.jobs) == 8 and len(kinds(sweep)) == 1
    for job in sweep.jobs:
        values = sweep.settings(job)
        assert values == sweep.composer.compose(job).values
        assert values["model"]["hidden_dropout_prob"] == values["optimizer"]["learning_rate"]
    steps = {sweep.settings(job)["phases"][0]["steps"] for job in sweep.jobs}
    assert len(steps) == 2


@pytest.mark.parametrize("runs_dir", ["runs", "1.5", "null", "../runs", "a b", "it's", "\u00e9"])
def test_folders_that_jobs_share_are_part_of_what_they_do_not(runs_dir: str) -> None:
    place = r"${runs_dir}/${runs_dir}/${cache_dir}${arm}/\${runs_dir}/\\${runs_dir}/${seed}"
    words = [f"runs_dir={hydra_text(runs_dir)}", "cache_dir=${runs_dir}", "seed=1,2", "arm=a"]
    words += [f"run_dir='{place}'", "data_dir='${fallback:${runs_dir}/${seed}}'"]
    sweep = Sweep("pretrain", ["scale=demo", *words])
    for job in sweep.jobs:
        values = sweep.settings(job)
        assert values == sweep.composer.compose(job).values
        assert values["data_dir"] == f"{runs_dir}/{values['seed']}"


def test_a_recipe_hangs_on_where_each_jobs_encoder_comes_from(tmp_path: Path) -> None:
    """The scale's own encoder, one that is yet to be trained, a narrow given one, and none."""
    own, missing, given = tmp_path / "run/encoder", tmp_path / "missing", tmp_path / "given"
    for folder in (own, given):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"model_type": "bert", "hidden_size": 384}')
    record = own.parent / "run.json"
    record.write_text('{"scale": "demo"}')
    encoders = f"encoder={own},{missing},{given}"
    sweep = Sweep("finetune", ["scale=demo", "task=mrpc", "row=a", encoders, "seed=1,2"])
    assert len(sweep.jobs) == 6 and len(kinds(sweep)) == 1
    rates = {}
    # a run of another scale has trained it since
    for scale in ("demo", "small"):
        record.write_text(f'{{"scale": "{scale}"}}')
        for job in sweep.jobs:
            values = sweep.settings(job)
            assert values == sweep.composer.compose(job).values
            rates[scale, Path(values["encoder"]).name] = values["learning_rate"]
    of_scale = rates["demo", "encoder"]
    assert of_scale == rates["demo", "missing"] == rates["small", "missing"]
    assert of_scale != rates["demo", "given"] == rates["small", "encoder"]


def test_what_depends_on_hydras_own_node_is_not_shared() -> None:
    sweep = Sweep("pretrain", ["scale=demo", "seed=1,2"])
    _, settings = sweep.composer.kind_of(sweep.jobs[0])
    alike = AlikeJobs(sweep.composer.compose(sweep.jobs[0]), settings)
    with refuses(
        "HydraConfig was not set", OmegaConfBaseException
    ):  # ${hydra:runtime.choices.objective}
        alike.values(settings)
    assert sweep.settings(sweep.jobs[1])["arm"] == "mlm_nsp"
    assert sweep.settings(sweep.jobs[1])["run_dir"].endswith("mlm_nsp/seed-2")


def test_a_word_of_hydras_own_node_stands_beside_a_choice() -> None:
    words = ["task=mrpc", "encoder=x", "adaptation=full,lora"]
    sweep = Sweep("finetune", [*words, "row=${hydra:runtime.choices.adaptation}"])
    rows = [sweep.settings(job)["row"] for job in sweep.jobs]
    assert rows == ["full+adaptation-full", "lora+adaptation-lora"]


def test_a_value_that_does_not_fit_is_refused_of_its_own_job() -> None:
    sweep = Sweep("pretrain", ["scale=demo", "arm=a", "trainer.precision=32-true,fp33", "seed=1"])
    right, wrong = sweep.jobs
    assert sweep.settings(right)["trainer"]["precision"] == "32-true"
    with refuses("trainer.precision is 'fp33': choose one of"):
        sweep.settings(wrong)
    assert sweep.settings(right)["trainer"]["precision"] == "32-true"


ARMS = """\
columns: [mnli]
arms:
  slow: {optimizer.learning_rate: 0.001}
  fast: {optimizer.learning_rate: 0.002}
"""


def test_an_arm_that_a_file_of_another_choice_is_called_as(tmp_path: Path) -> None:
    """Two groups name the arm: its own, and the defaults of a file that is no arm's."""
    (tmp_path / "paper.yaml").write_text(ARMS)
    for group in ("flavour", "rates"):
        (tmp_path / group).mkdir()
    (tmp_path / "flavour/plain.yaml").write_text("# @package _global_\ngradient_clip_norm: 7\n")
    (tmp_path / "flavour/named.yaml").write_text(
        "# @package _global_\ndefaults: [_self_, /rates: '${arm}']\n"
    )
    for arm, norm in (("slow", 1), ("fast", 2)):
        text = f"# @package _global_\ngradient_clip_norm: {norm}\n"
        (tmp_path / f"rates/{arm}.yaml").write_text(text)
    (tmp_path / "sweep_pretrain.yaml").write_text(
        "defaults: [pretrain, _self_, flavour: plain, arm: slow]\nexperiment: rates\n"
    )
    words = ["scale=demo", "arm=slow,fast", "flavour=plain,named", "seed=1"]
    sweep = Sweep("sweep_pretrain", words, folder=tmp_path)
    norms = set()
    for job in sweep.jobs:
        by_hydra = make_loader(tmp_path).load_sweep_config(sweep.master.node, list(job))
        settings = sweep.settings(job)
        assert settings["gradient_clip_norm"] == by_hydra.gradient_clip_norm
        assert sweep.composer.compose(job).get("gradient_clip_norm") == by_hydra.gradient_clip_norm
        norms.add(settings["gradient_clip_norm"])
    assert norms == {1, 2, 7}
