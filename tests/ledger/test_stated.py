"""What a row or an arm says of itself, and what is no contradiction to it."""

from __future__ import annotations

from typing import Any

import pytest

from clozelab.launch.overrides import contradictions

SOURCE = {"name": "x", "path": "a.txt"}


@pytest.mark.parametrize(
    ("stated", "config", "is_contradicted"),
    [
        ({"head": "linear"}, {"head": "bilstm"}, True),
        ({"head": "linear"}, {"head": "linear"}, False),
        ({"size.depth": "1/2"}, {"size": {"depth": "1"}}, True),
        ({"corpus.sources": [SOURCE]}, {"corpus": {"sources": [SOURCE | {"format": "auto"}]}}, False),
        ({"corpus.sources": [SOURCE]}, {"corpus": {"sources": [SOURCE | {"path": "b.txt"}]}}, True),
        ({"corpus.sources": [SOURCE]}, {"corpus": {"sources": [SOURCE, SOURCE]}}, True),
        ({"keep_encoders": [0.5]}, {"keep_encoders": []}, False),  # changes no result
        ({"trainer.num_workers": 0}, {"trainer": {"num_workers": 2}}, False),
        ({"phases": [{"steps": 7, "micro_batch_size": 4}]}, {"phases": [{"steps": 7, "micro_batch_size": 8}]}, False),
        ({"phases": [{"steps": 7, "micro_batch_size": 4}]}, {"phases": [{"steps": 8, "micro_batch_size": 4}]}, True),
    ],
)
def test_contradictions(stated: dict[str, Any], config: dict[str, Any], is_contradicted: bool) -> None:
    assert bool(contradictions(stated, config)) == is_contradicted
