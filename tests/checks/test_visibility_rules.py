"""The pre-flight and an objective whose batches say what each token may see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clozelab.checks.doctor import examine
from clozelab.checks.subject import ERROR
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.objective import VisibilitySpec
from clozelab.objectives.permuted import PermutedLanguageModel


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


MASKING = {
    "predict_prob": 0.15,
    "mask_fraction": 0.8,
    "random_fraction": 0.1,
    "same_fraction": 0.1,
    "weight": 1.0,
}


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


@pytest.mark.parametrize("sees_every_position", [True, False])
@pytest.mark.parametrize(("ahead", "checks"), [(None, set()), (0, {"own label"}), (1, {"future"})])
def test_an_order_of_predictions(
    subject: Any,
    corpus: Any,
    make: Any,
    monkeypatch: pytest.MonkeyPatch,
    sees_every_position: bool,
    ahead: int | None,
    checks: set[str],
) -> None:
    """A permuted model passes; one that sees its own token, or the next in the order, does not."""
    monkeypatch.setattr(Leaking, "ahead", ahead)
    token_class = PermutedLanguageModel if ahead is None else Leaking
    arm = make("arm", "mlm", corpus)
    token = token_class(**MASKING, sees_every_position=sees_every_position)
    arm = replace(arm, objective=replace_token(arm.objective, token))
    findings = list(examine(replace(subject, arms=[arm])))
    errors = {finding.check for finding in findings if finding.level == ERROR}
    assert errors >= checks and bool(errors) == bool(checks)
    (future,) = [finding for finding in findings if finding.check == "future"]
    assert ("sees what it may" in future.what) == ("future" not in errors)


@pytest.mark.parametrize("is_hidden", [True, False])
def test_a_rule_of_its_own(
    subject: Any, corpus: Any, make: Any, monkeypatch: pytest.MonkeyPatch, is_hidden: bool
) -> None:
    monkeypatch.setattr(Prefix, "is_hidden", is_hidden)
    arm = make("arm", "mlm", corpus)
    token = Prefix(**MASKING)
    objective = replace_token(arm.objective, token)
    findings = list(examine(replace(subject, arms=[replace(arm, objective=objective)])))
    (future,) = [finding for finding in findings if finding.check == "future"]
    errors = {finding.check for finding in findings if finding.level == ERROR}
    if is_hidden:
        assert not errors and "sees what it may" in future.what
    else:
        assert errors == {"future"} and "sees what its objective hides" in future.what


def replace_token(objective: Any, token: MaskedLanguageModel) -> Any:
    return type(objective)(input=objective.input, token=token, pair=None)
