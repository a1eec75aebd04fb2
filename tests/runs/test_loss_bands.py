"""Bands of held-out losses: where another seed is expected, and which runs are of one kind."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from clozelab.runs import loss_bands
from clozelab.runs.loss_bands import (
    Band,
    LossReading,
    differences,
    expected_range,
    load_bands,
    match_of,
    nearest,
    settings_of,
)
from clozelab.runs.record import Record

CONFIG = {
    "experiment": "mine",
    "arm": "mlm",
    "seed": 7,
    "trainer": {"precision": "auto"},
    "optimizer": {"learning_rate": 0.005, "betas": [0.9, 0.98]},
    "schedule": {"warmup_fraction": 0.03},
    "corpus": {"name": "text", "sources": [{"name": "a", "path": "texts/*"}]},
    "tokenizer": {"kind": "wordpiece", "vocab_size": 8192},
    "model": {"num_hidden_layers": 2, "hidden_size": 128, "initializer_range": 0.05},
    "objective": {
        "token": {
            "_target_": "clozelab.objectives.mlm.MaskedLanguageModel",
            "predict_prob": 0.15,
            "same_fraction": 0.1,
        }
    },
    "phases": [
        {"seq_length": 32, "steps": 100, "global_batch_size": 64},
        {"seq_length": 128, "steps": 100, "global_batch_size": 16},
    ],
    "validation": {"seq_length": 32, "interval_steps": 50, "instances": 4096},
}
CURVE = {200_000: 6.5, 400_000: 5.0}


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Record]:
    """make_run(curve, **{"optimizer__learning_rate": 0.1}) -> a record with a metrics.csv."""

    def make(curve: Mapping[int, float] = CURVE, text: str = "f" * 64, **changes: object) -> Record:
        config = copy.deepcopy(CONFIG)
        for path, value in changes.items():
            *parents, name = path.split("__")
            node: Any = config
            for parent in parents:
                node = node[int(parent)] if parent.isdigit() else node[parent]
            node[name] = value
        lines = ["step,tokens,seconds,key,value"]
        for tokens, loss in curve.items():
            lines.append(f"{tokens // 2048},{tokens},1.0,validation/loss,{loss}")
        (tmp_path / "metrics.csv").write_text("\n".join(lines) + "\n")
        known = {"inputs": {"corpus": text}, "facts": {"unigram_loss": 7.0}}
        return Record.model_construct(stage="pretrain", config=config, folder=tmp_path, **known)

    return make


@pytest.fixture
def band(make_run: Callable[..., Record], monkeypatch: pytest.MonkeyPatch) -> Band:
    """The only band: three seeds of the run's kind at 200 k and 400 k tokens."""
    losses = [[6.4, 6.5, 6.6], [4.9, 5.0, 5.1]]
    band = Band("mlm", ["made"], settings_of(make_run()), 7.0, 1e6, [200_000, 400_000], losses)
    monkeypatch.setattr(loss_bands, "load_bands", lambda: [band])
    return band


@pytest.mark.parametrize("seeds", [[4.0, 4.1, 4.3], [1.0, 1.2, 1.1, 1.4, 1.3]])
def test_another_seed_is_expected_in_the_prediction_interval(seeds: list[float]) -> None:
    spread = np.std(seeds, ddof=1) * math.sqrt(1 + 1 / len(seeds))
    expected = stats.t.interval(0.95, len(seeds) - 1, np.mean(seeds), spread)
    assert expected_range(seeds) == pytest.approx(expected)


def test_a_band_speaks_between_its_evaluations(band: Band) -> None:
    assert band.at(200_000) == [6.4, 6.5, 6.6]
    # halfway along log(tokens)
    assert band.at(200_000 * math.sqrt(2)) == pytest.approx([5.65, 5.75, 5.85])
    assert band.at(403_000) == [4.9, 5.0, 5.1], "rows are not equally full"
    assert band.at(150_000) == band.at(500_000) == []


@pytest.mark.parametrize(("loss", "verdict"), [(5.0, "inside"), (5.9, "above"), (4.4, "below")])
def test_a_run_beside_its_band(
    band: Band, make_run: Callable[..., Record], loss: float, verdict: str
) -> None:
    match = match_of(make_run({100_000: 7.0, 200_000: 6.5, 400_000: loss}))
    assert match is not None and match.differing == {}
    assert [reading.tokens for reading in match.readings] == [200_000, 400_000]
    assert match.readings[-1].verdict == verdict
    assert match.is_outside == (verdict != "inside")


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        ({"seed": 8, "arm": "x", "experiment": "y", "trainer__precision": "bf16-mixed"}, set()),
        ({"corpus__sources__0__path": "elsewhere/*"}, set()),
        ({"optimizer__learning_rate": 0.001}, {"optimizer.learning_rate"}),
        ({"model__initializer_range": 0.02}, {"model.initializer_range"}),
        ({"phases__0__steps": 120}, set()),  # a tenth longer is as long
        ({"phases__0__steps": 300}, {"planned tokens"}),
        ({"phases__0__seq_length": 128}, {"phases.0.seq_length", "planned tokens"}),
    ],
)
def test_how_a_run_is_trained_makes_no_other_kind(
    band: Band, make_run: Callable[..., Record], change: dict[str, object], keys: set[str]
) -> None:
    match = match_of(make_run(**change))
    assert match is not None and set(match.differing) == keys


@pytest.mark.parametrize(
    ("change", "is_comparable"),
    [
        ({"model__hidden_size": 256}, True),
        ({"objective__pair": {"_target_": "nsp"}}, True),
        ({"corpus__sources__0__weight": 2.0}, False),
        ({"tokenizer__vocab_size": 30522}, False),
        ({"objective__token__predict_prob": 0.4}, False),
        ({"validation__seq_length": 128}, False),
        ({"text": "0" * 64}, False),
    ],
)
def test_another_kind_or_another_text_has_no_band(
    band: Band, make_run: Callable[..., Record], change: dict[str, Any], is_comparable: bool
) -> None:
    run = make_run(**change)
    assert match_of(run) is None
    (near,) = nearest(run, [band])
    assert (near.differing or "text" in change) and near.is_comparable == is_comparable


def test_before_the_first_evaluation_and_beyond_the_band_nothing_is_said(
    band: Band, make_run: Callable[..., Record]
) -> None:
    assert match_of(make_run({})) is None
    assert match_of(make_run({900_000: 4.0})) is None


def test_the_band_that_is_trained_alike_comes_first(
    make_run: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    bands = []
    for rate in (0.1, 0.005):
        settings = settings_of(make_run(optimizer__learning_rate=rate))
        losses = [[5.0, 5.1, 5.2]] * 2
        bands.append(Band(f"{rate}", [], settings, 7.0, 1e6, [200_000, 400_000], losses))
    monkeypatch.setattr(loss_bands, "load_bands", lambda: bands)
    assert [match.band.name for match in nearest(make_run(), bands)] == ["0.005", "0.1"]


def test_bands_of_the_same_text_come_first(make_run: Callable[..., Record]) -> None:
    """However many settings differ: losses of two texts say nothing of each other."""
    kinds: dict[str, dict[str, Any]] = {
        "another text": {"text": "0" * 64},
        "another shape": {"model__num_hidden_layers": 4, "model__hidden_size": 256},
    }
    bands = []
    for name, changes in kinds.items():
        settings = settings_of(make_run(**changes))
        bands.append(Band(name, [], settings, 7.0, 1e6, [200_000, 400_000], [[5.0, 5.1]] * 2))
    named = [match.band.name for match in nearest(make_run(), bands)]
    assert named == ["another shape", "another text"]


def test_lengths_within_a_quarter_are_equal() -> None:
    own = {"planned tokens": 100}
    assert differences(own, {"planned tokens": 125}) == {}
    assert differences(own, {"planned tokens": 126}) == {"planned tokens": (100, 126)}


def test_the_bands_that_come_along_are_whole() -> None:
    bands = load_bands()
    assert len(bands) >= 60
    assert len({str(sorted(band.settings.items())) for band in bands}) == len(bands)
    for band in bands:
        assert len(band.tokens) == len(band.losses)
        assert band.tokens == sorted(band.tokens)
        assert len({len(losses) for losses in band.losses}) == 1 and len(band.losses[0]) >= 3
        assert 0.0 < min(band.losses[-1]) < band.unigram_loss


def test_seeds_of_the_bands_are_rarely_outside_of_the_others() -> None:
    """Leave one seed out of each: the share outside is what 95 % promise, about one in twenty."""
    verdicts: Counter[str] = Counter()
    for band in load_bands():
        losses = band.losses[-1]
        for index, loss in enumerate(losses):
            others = losses[:index] + losses[index + 1 :]
            if len(others) >= 3:
                reading = LossReading(band.tokens[-1], loss, others, *expected_range(others))
                verdicts[reading.verdict] += 1
    share = 1 - verdicts["inside"] / verdicts.total()
    assert verdicts.total() > 250 and 0.02 < share < 0.09
