"""Jobs of a sweep are composed to the node as Hydra composes each by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra.core.config_loader import ConfigLoader
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from clozelab.config import EXPERIMENTS_DIR
from clozelab.ledger.fingerprint import canonical
from clozelab.ledger.mistakes import CONFIGURATION_ERRORS
from clozelab.ledger.sweep import JobComposer, hydra_config, make_loader, sweep_overrides, without_hydra

Opened = tuple[ConfigLoader, DictConfig, list[tuple[str, ...]]]


def opened(experiment: str, sweep: str, *words: str) -> Opened:
    loader = make_loader(EXPERIMENTS_DIR / experiment)
    overrides = ["scale=demo", *words]
    master = loader.load_configuration(config_name=sweep, overrides=overrides, run_mode=RunMode.MULTIRUN)
    return loader, master, sweep_overrides(loader, master)


def seen(config: DictConfig) -> tuple[Any, Any, str]:
    with hydra_config(config):
        task = without_hydra(config)
        return OmegaConf.to_container(config, resolve=False), canonical(task), str(task.run_dir)


@pytest.mark.parametrize(
    ("experiment", "sweep", "words"),
    [
        ("table5_pretraining_tasks", "sweep_finetune", ["row=mlm,ltr_bilstm", "task=mrpc,squad_v1"]),
        ("table5_pretraining_tasks", "sweep_pretrain", ["optimizer.betas=[0.9,0.98],[0.9,0.999]"]),
        ("table6_model_size", "sweep_pretrain", ["arm=glob(*)", "seed=1"]),
        ("table7_feature_based_ner", "sweep_finetune", ["row=mlm_nsp,last", "learning_rate=1e-3,2e-3"]),
        ("figure5_training_steps", "sweep_finetune", ["task=mrpc", "row=mlm_05,mlm_100"]),
    ],
)
def test_as_hydra_composes_it(experiment: str, sweep: str, words: list[str]) -> None:
    loader, master, jobs = opened(experiment, sweep, *words)
    composer = JobComposer(loader, master)
    composed = [composer.compose(job) for job in jobs]
    picked = list(range(0, len(jobs), max(1, len(jobs) // 8)))
    assert len(jobs) > 1 and len({str(seen(one)) for one in composed}) == len(jobs)
    for index in picked:
        assert seen(composed[index]) == seen(loader.load_sweep_config(master, list(jobs[index]))), jobs[index]


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
    loader, master, _ = opened("table5_pretraining_tasks", "sweep_finetune")
    composer = JobComposer(loader, master)
    for seed in (1, 2):
        job = ("row=mlm", *words, f"pretrain_seed={seed}")
        assert seen(composer.compose(job)) == seen(loader.load_sweep_config(master, list(job)))


def test_groups_that_only_a_searchpath_knows(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "flavour").mkdir(exist_ok=True)
        (tmp_path / "flavour" / f"{name}.yaml").write_text(f"# @package _global_\narm: {name}\n")
    words = [f"hydra.searchpath=[file://{tmp_path}]", "+flavour=one,two", "seed=1"]
    loader, master, jobs = opened("table5_pretraining_tasks", "sweep_pretrain", *words)
    composer = JobComposer(loader, master)
    assert {composer.compose(job).arm for job in jobs} == {"one", "two"}


def test_jobs_that_differ_in_seeds_are_composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loader, master, jobs = opened("table5_pretraining_tasks", "sweep_finetune", "row=mlm,ltr", "task=mrpc")
    calls = []
    original = loader.load_sweep_config
    monkeypatch.setattr(loader, "load_sweep_config", lambda *args: calls.append(args) or original(*args))
    composer = JobComposer(loader, master)
    first = composer.compose(jobs[0])
    with hydra_config(first):  # makes its hydra node read-only, as planning a job does
        first.seed = 77
    assert [composer.compose(job).seed for job in jobs].count(77) == 0
    assert len(jobs) == 8 and len(calls) == 2


@pytest.mark.parametrize(
    ("second", "message"),
    [("seed=one", "seed"), ("sead=2", "sead"), ("+sead=2", "sead"), ("task=mrcp", "mrcp"), ("seed=null", "seed")],
)
def test_a_wrong_word_is_refused_behind_a_right_one(second: str, message: str, tmp_path: Path) -> None:
    loader, master, _ = opened("table5_pretraining_tasks", "sweep_finetune", f"runs_dir={tmp_path}")
    composer = JobComposer(loader, master)
    composer.compose(("row=mlm", "task=mrpc", "seed=1"))
    with pytest.raises((*CONFIGURATION_ERRORS, ValueError), match=message):
        composer.compose(("row=mlm", "task=mrpc", second))
