"""The parts of a plan's time: measures, start-ups, a reproduction's other steps."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claims.text.phrases import duration
from clozelab.launch.process_launcher import ProcessLauncher
from clozelab.planning import starts
from clozelab.planning.cost import Costing, Pool, parts_of, sizes
from clozelab.planning.measures import Reading
from clozelab.planning.plan import save_plan
from clozelab.planning.shapes import Shape, Speed, rounded_length
from clozelab.planning.starts import constants, start_seconds
from clozelab.planning.steps import make_steps
from clozelab.planning.sweeps import Corpora, analyse, text_bytes
from clozelab.planning.tables import sums
from clozelab.results.experiment import find_experiment
from clozelab.schema import CorpusConfig, PretrainConfig, SourceConfig

FOLDER = find_experiment("two_sides")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Corpora:
    """The demo's, which are not there yet."""
    return Corpora(strict=False, world=tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def costing(corpora: Corpora, tmp_path_factory: pytest.TempPathFactory) -> Costing:
    """The demo on a world that is not there yet; nothing is said of the small one's vocabulary."""
    root = tmp_path_factory.mktemp("world")
    words = [
        "scale=dials",
        f"data_dir={root}/data",
        f"cache_dir={root}/cache",
        f"runs_dir={root}/runs",
    ]
    said: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = said.append  # type: ignore[method-assign]
    logger = logging.getLogger("clozelab")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    costing = analyse(make_steps(FOLDER, words), corpora)
    logger.removeHandler(handler)
    logger.setLevel(level)
    assert not [record for record in said if "vocabulary" in record.getMessage()]
    return costing


def timed(shape: Shape, speed: float = 1000.0) -> Any:
    return replace(shape, speeds=[Speed(speed)] * len(list(shape.requests())))


def test_a_world_that_is_not_there_yet_is_counted_on_a_small_one(costing: Costing) -> None:
    pairs = next(job for job in costing.tasks if job.task == "dials_pairs")
    tags = next(job for job in costing.tasks if job.task == "dials_tags")
    assert pairs.samples.train and pairs.train_examples == 125 and tags.train_examples == 1000
    assert pairs.validation_examples == 800
    arm = costing.arms[0]
    assert arm.corpus.folder is None and arm.corpus.sampled == 12.0
    assert arm.tokens < arm.steps * 32 * 32, "instances are as full as the real ones"


def test_only_the_documents_of_a_world_take_longer_if_it_is_large(
    corpora: Corpora, costing: Costing
) -> None:
    """Its tasks are all in the small one: 12 times their time was ten times the truth."""
    assert costing.arms[0].corpus.sampled == 12.0
    further = 11_000 / constants().generated_documents_per_second
    assert corpora.preparing == pytest.approx(corpora.sampling + further)


def test_measures_by_what_they_read(costing: Costing) -> None:
    found = {(job.measure, job.encoder.is_causal): job for job in costing.measures}
    masked, causal = (
        found["dials_minimal_pairs", is_causal].reading for is_causal in (False, True)
    )
    assert masked and causal and causal.inputs == 3200, (
        "1,600 pairs of two sentences, from left to right once each"
    )
    assert masked.inputs == pytest.approx(3200 * (masked.tokens_each - 2)), (
        "masked once for each token"
    )
    document = found["pairs_document", False]
    assert document.reading and 1800 < document.reading.inputs < 3000, (
        "by the whole world's held-out text"
    )
    # two thirds to train on; two layers, embeddings and the pooled state
    assert document.fitted_values == pytest.approx(document.reading.inputs * 2 / 3 * 4 * 96)
    assert sum(job.count for job in costing.measures) == 40


def test_seconds_of_a_measure_by_hand(costing: Costing) -> None:
    job = next(one for one in costing.measures if one.fitted_values)
    assert job.seconds is None, "nothing is timed yet"
    job = replace(
        job,
        reading=Reading(100, 10.0),
        fitted_values=2.0 * constants().fitted_values_per_second,
        speeds=[Speed(500.0)],
        start=3.0,
    )
    assert job.seconds == pytest.approx(3.0 + 100 * 10.0 / 500.0 + 2.0)
    unknown = replace(job, reading=None, speeds=())
    assert unknown.seconds == 63.0


def test_the_whole_reproduction_is_in_the_sum(
    costing: Costing, tmp_path: Path, folders: list[str]
) -> None:
    steps = make_steps(FOLDER, ["scale=dials", *folders])
    assert parts_of(costing, steps, 10.0, 5.0) is None, "no speed is known"
    pools = {verb: replace(pool, at_once=2, forks=True) for verb, pool in costing.pools.items()}
    known = replace(
        costing,
        pools=pools,
        arms=[timed(one) for one in costing.arms],
        tasks=[timed(one) for one in costing.tasks],
        measures=[timed(one) for one in costing.measures],
    )
    parts = parts_of(known, steps, 10.0, 5.0)
    assert parts is not None
    assert [part.name for part in parts] == [
        "prepare",
        "doctor",
        "pretrain",
        "finetune",
        "evaluate",
        "report",
    ]
    assert [len(part.jobs) for part in parts] == [0, 0, 15, 60, 40, 0]
    (seconds,) = {one.seconds for one in known.arms if one.name == "mlm"}
    assert {value for key, value in parts[2].jobs.items() if key.startswith("arm=mlm seed=")} == {
        seconds
    }
    assert parts[2].seconds == pytest.approx(
        (known.wall("pretrain") or 0) + start_seconds("server", forks=True)
    )
    *_, together = sums(known, parts)
    whole = sum(part.seconds for part in parts)
    assert together.startswith(
        f"together about {duration(whole)}, with preparing 5 s, pre-flight 9 s and report 5 s"
    )
    save_plan(tmp_path, parts)
    assert len(json.loads((tmp_path / "plan.json").read_text())["parts"]) == 6
    save_plan(tmp_path, None)
    assert not (tmp_path / "plan.json").exists(), "an old plan would be taken for this one"


def test_sizes_without_a_speed_are_relative(costing: Costing) -> None:
    part = sizes(costing, "pretrain")
    large = {value for key, value in part.jobs.items() if key.startswith("arm=ltr ")}
    small = {value for key, value in part.jobs.items() if key.startswith("arm=mlm ")}
    assert part.is_relative and min(large) > max(small)
    known = replace(costing, arms=[timed(one) for one in costing.arms])
    assert not sizes(known, "pretrain").is_relative


def test_a_slow_machine_starts_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = constants().usual_starts
    twice = [2.0 * constants().python_seconds, 9.0]
    monkeypatch.setattr(starts.timeit, "repeat", lambda *_, **__: twice)
    monkeypatch.setattr(starts, "core_slowness", starts.core_slowness.__wrapped__)
    seconds = start_seconds
    assert seconds("server", forks=True) == pytest.approx(2 * usual["server"])
    assert seconds("pretrain", forks=True) == pytest.approx(2 * usual["pretrain"])
    alone = 2 * (usual["finetune"] + usual["server"])
    assert seconds("finetune", forks=False) == pytest.approx(alone)


def test_lengths_are_rounded_to_an_eighth() -> None:
    assert [rounded_length(one) for one in (2.0, 7.2, 17.3, 45.0, 120.0)] == [4, 7, 18, 44, 120]
    assert all(abs(rounded_length(one) / one - 1) <= 1 / 8 for one in range(4, 500))


def test_pools_know_whether_jobs_are_forked(folders: list[str]) -> None:
    words = ["scale=dials", *folders]
    for more, forks in (
        ([], True),
        (["hydra.launcher.fork=false"], False),
        (["trainer.accelerator=gpu"], False),
    ):
        step = next(step for step in make_steps(FOLDER, [*words, *more]) if step.verb == "pretrain")
        assert Pool.from_step(step).forks is forks


@pytest.mark.parametrize(("limit", "threads"), [("", 4), ("16", 4), ("3", 3), ("no number", 4)])
def test_a_plan_has_the_threads_of_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, threads: int
) -> None:
    """Two jobs share eight cores, and the user may allow fewer threads than that."""
    monkeypatch.setattr("clozelab.launch.process_launcher.usable_cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    words = ["scale=dials", f"data_dir={tmp_path}", "hydra.launcher.jobs_at_once=2"]
    step = next(step for step in make_steps(FOLDER, words) if step.verb == "pretrain")
    pool = Pool.from_step(step)
    assert (pool.at_once, pool.threads) == (2, threads)
    launcher = ProcessLauncher(2, 1.0, fork=False)
    launcher.master = step.sweep.master
    environment = launcher._environment(len(step.sweep.jobs))
    assert environment["OMP_NUM_THREADS"] == str(pool.threads)


def test_a_source_that_is_not_there_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A plan goes on without any text, as for who has none yet; a slip in a path would be lost."""
    source = {"name": "mine", "path": "nowhere"}
    corpus = CorpusConfig(sources=[SourceConfig(**source)])
    assert text_bytes(PretrainConfig(data_dir=str(tmp_path), corpus=corpus)) == 0
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert str(tmp_path / "nowhere") in record.message
