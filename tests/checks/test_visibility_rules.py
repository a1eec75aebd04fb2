"""The pre-flight and an objective whose batches say what each token may see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.checks.conftest import MASKING, make_arm

from clozelab.checks.doctor import examine
from clozelab.checks.subject import ERROR
from clozelab.models.registry import family_of
from clozelab.objectives.hybrid import Hybrid
from clozelab.objectives.ltr_rtl import BothDirections
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.objective import VisibilitySpec
from clozelab.objectives.permuted import PermutedLanguageModel
from clozelab.objectives.spans import SpanBoundary


class Prefix(MaskedLanguageModel):
    """The first ten tokens are seen by all; behind them a token sees what stands before it."""

    is_hidden = True  # False: the rule is declared, and the batches forget it

    def arrays(self, packed: Any, *draws: Any) -> dict[str, Any]:
        arrays = super().arrays(packed, *draws)
        if self.is_hidden:
            slots = np.arange(packed.width)
            seen = may_see(slots[:, None], slots[None, :], packed.width)
            arrays["visibility"] = np.broadcast_to(seen, (packed.num_instances, *seen.shape)).copy()
        return arrays

    def visibility(self, packed: Any, arrays: Any) -> list[VisibilitySpec]:
        (spec,) = super().visibility(packed, arrays)
        return [replace(spec, sees=lambda query, key: may_see(query, key, packed.width))]


def may_see(query: np.ndarray, key: np.ndarray, width: int) -> np.ndarray:
    return (key % width < 10) | (key <= query)


def errors_of(subject: Any, arm: Any, token: MaskedLanguageModel) -> set[tuple[str, str]]:
    """Check and task of each error that is found in an arm with another objective."""
    objective = type(arm.objective)(input=arm.objective.input, token=token, pair=None)
    examined = replace(subject, arms=[replace(arm, objective=objective)])
    errors = [finding for finding in examine(examined) if finding.level == ERROR]
    return {(finding.check, finding.what.split(":")[0]) for finding in errors}


def checks_of(subject: Any, arm: Any, token: MaskedLanguageModel) -> set[str]:
    return {check for check, _ in errors_of(subject, arm, token)}


class Leaking(PermutedLanguageModel):
    """Its queries see what is `ahead` behind them in the order, 0: their own token."""

    ahead = -1

    def arrays(self, packed: Any, *draws: Any) -> dict[str, Any]:
        arrays = super().arrays(packed, *draws)
        queries = arrays["prediction_positions"]
        instance, slot = np.divmod(queries, arrays["width"])
        text = arrays["position_ids"][queries]
        told = instance[: len(instance) - self.ahead] == instance[self.ahead :]
        viewer = np.flatnonzero(told)
        arrays["visibility"][instance[viewer], slot[viewer], text[viewer + self.ahead]] = True
        return arrays


@pytest.mark.parametrize(
    ("sees_every_position", "member"), [(True, "bert"), (False, "bert"), (False, "xlnet")]
)
@pytest.mark.parametrize(("ahead", "checks"), [(None, set()), (0, {"own label"}), (1, {"future"})])
def test_an_order_of_predictions(
    subject: Any,
    corpus: Any,
    monkeypatch: pytest.MonkeyPatch,
    sees_every_position: bool,
    member: str,
    ahead: int | None,
    checks: set[str],
) -> None:
    """A permuted model passes; one that sees its own token, or the next in the order, does not."""
    monkeypatch.setattr(Leaking, "ahead", ahead)
    token_class = PermutedLanguageModel if ahead is None else Leaking
    arm = make_arm("mlm", corpus)
    token = token_class(**MASKING, sees_every_position=sees_every_position)
    if member == "xlnet":
        parts = family_of(member).parts
        arm = replace(arm, config=replace(arm.config, model_type=member, **parts))
    errors = checks_of(subject, arm, token)
    assert errors >= checks and bool(errors) == bool(checks)


@pytest.mark.parametrize("is_hidden", [True, False])
def test_a_rule_of_its_own(
    subject: Any, corpus: Any, monkeypatch: pytest.MonkeyPatch, is_hidden: bool
) -> None:
    monkeypatch.setattr(Prefix, "is_hidden", is_hidden)
    errors = checks_of(subject, make_arm("mlm", corpus), Prefix(**MASKING))
    assert errors == (set() if is_hidden else {"future"})


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("is_hidden", [True, False])
def test_causal_examples_beside_masked_ones(
    subject: Any, corpus: Any, is_hidden: bool, shift: int
) -> None:
    """A bidirectional mask with causal labels would give all of them away."""

    class Forgetful(Hybrid):
        def arrays(self, *arguments: Any) -> dict[str, Any]:
            arrays = super().arrays(*arguments)
            if not is_hidden:
                arrays.pop("visibility")
            return arrays

    token = Forgetful(causal_fraction=0.25, shift=shift, **MASKING)
    errors = errors_of(subject, make_arm("mlm", corpus), token)
    if is_hidden:
        assert not errors
    else:
        # The masked examples' own labels stay hidden, those of the causal ones do not.
        assert errors == {("future", "mlm, mlm"), ("future", "mlm, ltr"), ("own label", "mlm, ltr")}


@pytest.mark.parametrize("is_in_sight", [False, True])
def test_span_boundaries(subject: Any, corpus: Any, is_in_sight: bool) -> None:
    """A token that stays in sight is a leak, whichever head reads it."""

    class InSight(SpanBoundary):
        def predictions(self, models: Any, batch: Any) -> Any:
            if is_in_sight:
                labels = batch["prediction_labels"]
                text = batch["input_ids"].index_copy(0, batch["prediction_positions"], labels)
                batch = batch | {"input_ids": text}
            return super().predictions(models, batch)

    spans: dict[str, Any] = {"span_weights": [1.0, 1.0, 1.0], "one_action_a_span": True}
    token = InSight(**MASKING, **spans, boundary_weight=1.0)
    errors = checks_of(subject, make_arm("mlm", corpus), token)
    assert errors == ({"own label"} if is_in_sight else set())


@pytest.mark.parametrize("step", [1, 0, -1])
def test_two_directions(subject: Any, corpus: Any, step: int) -> None:
    """From the right a token is predicted one slot behind it; its own state has seen it."""

    class Misplaced(BothDirections):
        def arrays(self, packed: Any, *draws: Any) -> dict[str, Any]:
            arrays = super().arrays(packed, *draws)
            numbers = arrays["rtl_numbers"]
            arrays["prediction_positions"][numbers] += step - 1
            return arrays

        def visibility(self, packed: Any, arrays: Any) -> list[VisibilitySpec]:
            ltr, rtl = super().visibility(packed, arrays)
            return [ltr, replace(rtl, about=rtl.positions - step)]

    arm = make_arm("ltr", corpus)
    arm = replace(arm, config=replace(arm.config, is_causal=True, num_directions=2))
    errors = checks_of(subject, arm, Misplaced(weight=1.0))
    assert errors == (set() if step == 1 else {"own label"})
