"""Which known word an unknown one was probably meant to be."""

from __future__ import annotations

import pytest

from clozelab.suggestions import hint, nearest

NAMES = ["table5_pretraining_tasks", "table6_model_size", "mlm", "mlm_nsp", "ltr", "figure5_training_steps"]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("table5", "table5_pretraining_tasks"),  # the only one that begins so
        ("TABLE6_MODEL_SIZE", "table6_model_size"),
        ("MLM", "mlm"),  # mlm_nsp begins so too
        ("mlm_nps", "mlm_nsp"),
        ("table", None),  # two begin so
        ("fi", None),  # too short to say
        ("pretrain", None),
        ("", None),
    ],
)
def test_nearest(word: str, meant: str | None) -> None:
    assert nearest(word, NAMES) == meant


def test_cutoff_is_how_alike_it_must_be() -> None:
    assert nearest("abcx", ["abcdef"]) == "abcdef" and nearest("abcx", ["abcdef"], cutoff=0.7) is None


def test_hint_names_the_nearest_or_all_in_order() -> None:
    assert hint("figure5", NAMES) == "did you mean 'figure5_training_steps'?"
    assert hint("nothing", {"b", "a"}) == "there are a, b"
    assert hint("nothing", []) == "there are none"
    assert hint("x", ["b", "a"], prefix="--") == "there are --a, --b"
