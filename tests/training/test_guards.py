"""What ends a run before it saves what is no number any more; and what a spike is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from clozelab.training.guards import (
    MAX_SKIPPED,
    MIN_NORMS,
    WINDOW,
    DivergedError,
    SpikeWatch,
    require_finite_state,
)

FIRST: Any = SimpleNamespace(is_global_zero=True)


def fed(action: str, norms: Any, start: int = 1) -> SpikeWatch:
    watch = SpikeWatch(action)
    for step, norm in enumerate(norms, start):
        watch.should_skip(FIRST, step, torch.tensor(float(norm)), reads_norm=True)
    return watch


def usual(count: int, spread: float = 0.3, seed: int = 0) -> Any:
    return np.exp(np.random.default_rng(seed).normal(0.0, spread, count))


@pytest.mark.parametrize("factor", [30.0, 1000.0])
def test_a_norm_far_above_the_usual_one_is_a_spike(factor: float) -> None:
    watch = fed("skip", [*usual(60), factor, *usual(60, seed=1)])
    assert watch.left_out == [61]
    with pytest.raises(DivergedError, match=r"step 61: gradient norm"):
        fed("stop", [*usual(60), factor])
    assert fed("off", [*usual(60), factor]).left_out == []


def test_few_norms_judge_nothing() -> None:
    assert fed("skip", [*usual(MIN_NORMS - 1), 1000.0]).left_out == []
    assert fed("skip", [*usual(MIN_NORMS), 1000.0]).left_out == [MIN_NORMS + 1]


@pytest.mark.parametrize(
    "spread", [*(pytest.param(one, marks=pytest.mark.slow) for one in (0.05, 0.3)), 1.0]
)
def test_training_as_it_is_raises_no_alarm(spread: float) -> None:
    """Norms that fall, rise thirtyfold over a plateau, and scatter, over 60,000 steps."""
    steps = np.arange(60_000)
    trend = np.exp(-steps / 3000) * 3 + 30 ** np.clip((steps - 20_000) / 2000, 0, 1) * 0.2
    assert fed("skip", trend * usual(len(steps), spread)).left_out == []


def test_another_phase_begins_with_norms_of_its_own() -> None:
    """Rows of 64, then of 256: one norm of 7 where 0.5 was usual, and training went on well."""

    def watch_phases(phases: list[int]) -> SpikeWatch:
        watch = SpikeWatch("skip")
        norms = [*usual(60, 0.1), 20.0, *usual(60, 0.1, seed=1), 30.0]
        for step, (norm, phase) in enumerate(zip(norms, phases, strict=True), 1):
            if step == 62:
                # a stop behind the change of phase changes nothing
                resumed = SpikeWatch("skip")
                resumed.load(watch.state())
                watch = resumed
            watch.should_skip(FIRST, step, torch.tensor(norm), phase=phase, reads_norm=True)
        return watch

    assert watch_phases([0] * 60 + [1] * 62).left_out == [122]
    assert watch_phases([0] * 122).left_out == [61, 122]


def test_norms_that_stay_high_are_the_new_usual() -> None:
    watch = fed("skip", [*usual(60, 0.1), *(50.0 * usual(200, 0.1, seed=1))])
    assert 1 <= len(watch.left_out) < 10, "the run does not stand still"


def test_norms_are_judged_alike_however_late_they_are_read_and_over_a_stop() -> None:
    norms = [*usual(70), 500.0, *usual(70, seed=2)]
    late = SpikeWatch("skip")
    for step, norm in enumerate(norms, 1):
        late.should_skip(FIRST, step, torch.tensor(float(norm)), reads_norm=step % 50 == 0)
    assert late.left_out == [71]
    first = fed("skip", norms[:65])
    second = SpikeWatch("skip")
    second.load(first.state())
    for step, norm in enumerate(norms[65:], 66):
        second.should_skip(FIRST, step, torch.tensor(float(norm)), reads_norm=False)
    assert second.limit(FIRST) < 500.0
    assert second.left_out == [71] and second.state() == fed("skip", norms).state()
    assert len(second.state()["logs"]) == WINDOW


def test_what_is_no_number_is_a_spike_where_a_spike_ends_no_run() -> None:
    norms = [*usual(30), float("nan"), 1.0, float("inf")]
    assert fed("skip", norms).left_out == [31, 33]
    assert fed("stop", norms).left_out == [], "the loop's own check says that, with the loss"


def test_spikes_that_do_not_cease_end_the_run() -> None:
    """A run whose every gradient is no number would be complete, and have learnt nothing."""
    rare = []
    for _ in range(MAX_SKIPPED + 5):
        rare.extend((*usual(WINDOW // 5), float("nan")))
    assert len(fed("skip", rare).left_out) == MAX_SKIPPED + 5
    reason = f"step {30 + MAX_SKIPPED + 1}: gradient norm nan.*{MAX_SKIPPED} of the last {WINDOW}"
    with pytest.raises(DivergedError, match=reason):
        fed("skip", [*usual(30), *[float("nan")] * 50])


def test_where_no_update_was_made_the_learning_rate_is_not_to_blame() -> None:
    with pytest.raises(DivergedError, match=r"no update was made before.*read_slots"):
        fed("skip", [float("nan")] * 50)
    with pytest.raises(DivergedError, match="a smaller learning rate"):
        fed("skip", [1.0, *[float("nan")] * 50])


def test_a_spike_does_not_hide_the_next_one() -> None:
    """Among the usual norms a whole spike would widen them, and hide the next ones."""
    norms = [*usual(30), 500.0, *usual(3), 500.0, *usual(3), 500.0, *usual(3), 500.0]
    assert fed("skip", norms).left_out == [31, 35, 39, 43]


def state_of(parameter: torch.Tensor, moment: torch.Tensor) -> Any:
    state = {"step": torch.tensor(1.0), "exp_avg": moment, "none": None}
    trainer = SimpleNamespace(global_step=7, is_global_zero=True)
    trainer.optimizers = [SimpleNamespace(state={0: state})]
    trainer.lightning_module = SimpleNamespace(parameters=lambda: iter([torch.zeros(0), parameter]))
    trainer.strategy = SimpleNamespace(
        root_device=torch.device("cpu"), reduce_boolean_decision=lambda one, all: one
    )
    return trainer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_wrong_value_anywhere_is_found(dtype: torch.dtype, bad: float) -> None:
    good = torch.ones(1000, dtype=dtype)
    wrong = good.clone()
    wrong[731] = bad
    require_finite_state(state_of(good, good))
    for pair in ((wrong, good), (good, wrong)):
        with pytest.raises(DivergedError, match="step 7: weights or optimizer state are no num"):
            require_finite_state(state_of(*pair))
