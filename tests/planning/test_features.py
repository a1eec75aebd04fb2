"""A frozen encoder passes once: what is trained, and costs, is the BiLSTM on its features."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clozelab.models.cost import training_flops_per_token
from clozelab.planning.cost import lengths_of
from clozelab.planning.shapes import FORWARD_SHARE, Request, Speed
from clozelab.planning.steps import make_steps
from clozelab.planning.sweeps import Corpora, analyse
from clozelab.planning.tasks import CHARACTERS_A_TOKEN, Sample, TaskJob
from clozelab.results.experiment import find_experiment


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> list[TaskJob]:
    root = tmp_path_factory.mktemp("table7")
    for name, sentences in (("train", 300), ("dev", 100)):
        path = root / f"{name}.conll"
        path.write_text(
            "".join("Rex NNP B-NP B-PER\nruns VBZ B-VP O\n\n" for _ in range(sentences))
        )
    words = [
        "scale=demo",
        "finetune.task=ner_conll2003",
        "finetune.row=mlm_nsp,last,embeddings,concat_last_four",
        "model.num_hidden_layers=4",
        f"data_dir={root}",
        f"cache_dir={root}/cache",
        "finetune.task.data.train_file=train.conll",
        "finetune.task.data.validation_file=dev.conll",
    ]
    return list(
        analyse(
            make_steps(find_experiment("table7_feature_based_ner"), words), Corpora(strict=False)
        ).tasks
    )


def by_size(jobs: list[TaskJob], size: int) -> TaskJob:
    return next(job for job in jobs if job.features and job.features.input_size == size)


def test_shapes(jobs: list[TaskJob]) -> None:
    """One fine-tuned row; last and embeddings have one shape, the concatenation another."""
    assert [(job.head, job.features and job.features.input_size) for job in jobs] == [
        ("linear", None),
        ("bilstm", 128),
        ("bilstm", 512),
    ]
    assert len(by_size(jobs, 128).jobs) == 2 * len(by_size(jobs, 512).jobs)


def test_every_arms_encoder_passes_for_itself(folders: list[str]) -> None:
    words = ["scale=demo", "finetune.task=ner_features_conll2003", *folders]
    found = analyse(
        make_steps(find_experiment("table8_masking"), words), Corpora(strict=False)
    ).tasks
    passes = sum(job.pass_share * job.count for job in found)
    # six arms and fresh weights, two pre-training seeds
    assert passes == pytest.approx((6 + 1) * 2)


def test_flops_by_hand(jobs: list[TaskJob]) -> None:
    job = by_size(jobs, 512)
    # A gate is a product with the input and one with the state: four gates, two directions, two
    # layers of 128.
    per_word = 2 * 4 * 2 * 128 * ((512 + 128) + (256 + 128))
    training = 3 * per_word * 10 * 300 * 2  # ten epochs of 300 sentences of two words
    per_token = training_flops_per_token(job.encoder, round(job.lengths.tokens), 0.0) / 3
    seeds = set()
    for words in job.jobs:
        for word in words:
            if word.startswith("pretrain_seed="):
                seeds.add(word)
    runs = sum(len(one.jobs) for one in jobs if one.features)
    # both splits, once an encoder
    encoding = 400 * job.lengths.tokens * per_token * len(seeds) / runs
    assert job.flops == pytest.approx(training + encoding)
    # not ten epochs of the encoder
    assert job.flops < 10 * 300 * job.lengths.tokens * 3 * per_token + training


def test_a_task_knows_the_units_of_its_scores(jobs: list[TaskJob]) -> None:
    job = jobs[0]
    target = {"_target_": "clozelab.tasks.token_numbers.TokenNumberTarget"}
    task = replace(job.settings.task, target=target, metric="validation/mae")
    in_points = replace(job, settings=replace(job.settings, task=task))
    assert (job.units[""], in_points.units[""]) == ("percent", "points")
    assert in_points.units["mae"] == "points" and "mae" not in job.units


def test_frozen_layers_are_not_counted_as_trained(jobs: list[TaskJob]) -> None:
    """Embeddings and two of four layers: half of the backward pass is left out."""
    job = next(job for job in jobs if not job.features)
    groups = [
        {"pattern": pattern, "frozen": True} for pattern in ("*.embeddings.*", "*.layer.[01].*")
    ]
    groups.append({"pattern": "classifier.*", "learning_rate_factor": 2.0})
    optimizer = {**job.settings.optimizer, "groups": groups}
    frozen = replace(job, settings=replace(job.settings, optimizer=optimizer))
    assert frozen.flops_per_token == pytest.approx(job.flops_per_token * (3 - 1) / 3)


def test_seconds_by_hand(jobs: list[TaskJob]) -> None:
    job = replace(by_size(jobs, 128), speeds=[Speed(1000.0), Speed(50_000.0)], start=5.0)
    training = 10 * 300 * 2 / 1000.0
    passes = round(job.settings.epochs * job.settings.evaluations_per_epoch)
    evaluation = passes * 100 * 2 / 1000.0 * FORWARD_SHARE
    encoding = job.pass_tokens / 50_000.0
    assert job.seconds == pytest.approx(5.0 + training + evaluation + encoding)


def test_seconds_of_a_whole_encoder_by_hand(jobs: list[TaskJob]) -> None:
    job = replace(jobs[0], speeds=[Speed(1000.0), Speed(5000.0)], start=2.0)
    tokens = job.lengths.tokens
    training = job.trained_examples * tokens / 1000.0
    assert job.seconds == pytest.approx(2.0 + training + job.validations * 100 * tokens / 5000.0)


@pytest.mark.parametrize(
    ("data", "length", "tokens", "inputs"),
    # 500 tokens: windows of 384 begin at 0 and 128, and the second has what is left.
    [
        ({"doc_stride": 128}, 500, 384 + (500 - 128), 2),
        ({"doc_stride": 128}, 4800, 35 * 384 + (4800 - 35 * 128), 36),
        ({"long_documents": "windows", "window_stride": 64}, 500, 2 * 384 + (500 - 2 * 64), 3),
        ({"long_documents": "truncate", "window_stride": 64}, 500, 384, 1),
        ({"doc_stride": 128}, 300, 300, 1),
    ],
)
def test_every_window_of_a_long_text_is_read(
    jobs: list[TaskJob], data: dict[str, Any], length: int, tokens: int, inputs: int
) -> None:
    task = replace(jobs[0].settings.task, data=data)
    sample = Sample(10, 1.0, (length - 2) * CHARACTERS_A_TOKEN, 1.0)
    assert lengths_of(task, sample, 384) == pytest.approx((tokens, inputs))


def request_of(job: TaskJob) -> Request:
    return next(job.requests())


def test_what_is_timed(jobs: list[TaskJob]) -> None:
    """The BiLSTM as configured, on sentences of words; a fine-tuned encoder's question is what it
    was.
    """
    asked = request_of(by_size(jobs, 512)).question
    assert asked["kind"] == "features" and asked["words_each"] == 2
    assert asked["bilstm"] == {"input_size": 512, "hidden_size": 128, "num_layers": 2}
    _, passes = by_size(jobs, 512).requests()
    assert passes.question["kind"] == "forward"
    assert passes.question["hardware"]["precision"] == "32-true"
    whole, _ = jobs[0].requests()
    assert {"bilstm", "words_each"}.isdisjoint(whole.question)


def test_the_worker_trains_the_bilstm_alone(
    jobs: list[TaskJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    from clozelab.planning import timing

    monkeypatch.setattr(timing, "SECONDS", 0.01)
    monkeypatch.setattr(timing, "ceiling", lambda precision, device: 1e30)
    small = {
        "bilstm": {"input_size": 8, "hidden_size": 8, "num_layers": 2},
        "batch_size": 2,
        "evaluation_tokens": 200,
    }
    for request in by_size(jobs, 128).requests():
        speed = timing.time_shape(replace(request, question={**request.question, **small}))
        assert not speed.problem and speed.tokens_per_second > 0
