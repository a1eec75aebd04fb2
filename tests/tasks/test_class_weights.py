"""Weights of classes in the loss."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.labelled_files import TOKENIZER, Rows, read_task
from torch.nn import functional as F

from clozelab.datamodules.labelled import TaskInputs
from clozelab.tasks.classes import ClassTarget, class_or_number

WORDS = ["red car", "blue house", "big car", "small house", "the red", "the blue", "big", "small"]
LABELLED = list(zip("aaaaabbc", WORDS, strict=True))
TRAIN = [(f"{text} {more}", label) for (label, text), more in product(LABELLED, WORDS)]
VALIDATION = [("the car", "a")]


def target_of(folder: Path, weights: Any, train: Rows = TRAIN, **settings: Any) -> ClassTarget:
    make = partial(ClassTarget, class_weights=weights)
    target = read_task(folder, make, train, VALIDATION, **settings).target
    assert isinstance(target, ClassTarget)
    return target


def batch_of(target: ClassTarget) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    labels = torch.from_numpy(target.encode([label for _, label in TRAIN]))
    return torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(0)), {
        "labels": labels
    }


def test_balanced_is_scikit_learns(tmp_path: Path) -> None:
    """Over all training examples it is torch's weighted mean, whose weights sum to their number."""
    class_weight = pytest.importorskip("sklearn.utils.class_weight")
    target = target_of(tmp_path, "balanced")
    logits, batch = batch_of(target)
    labels = batch["labels"]
    weights = class_weight.compute_class_weight("balanced", classes=np.arange(3), y=labels.numpy())
    expected = F.cross_entropy(logits, labels, torch.tensor(weights, dtype=torch.float32))
    loss = target.loss(logits, batch) / len(labels)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    plain = target_of(tmp_path, None).loss(logits, batch) / len(labels)
    torch.testing.assert_close(plain, F.cross_entropy(logits, labels), rtol=1e-6, atol=0)
    assert abs(plain - expected) > 1e-2, "the weights change this loss"


def test_each_window_of_a_text_is_balanced(tmp_path: Path) -> None:
    """The loss sums over windows: four of the one text, and one of the other."""
    rows = [("the red car " * 2, "a"), ("blue", "b")]
    inputs = TaskInputs("toy", tmp_path, tmp_path / "cache", TOKENIZER, 5)
    settings = {"inputs": inputs, "long_documents": "windows", "window_stride": 1}
    target = target_of(tmp_path, "balanced", rows, max_seq_length=5, **settings)
    assert target.weights is not None
    assert target.weights.tolist() == [5 / 8, 5 / 2]


def test_a_mapping_names_some_classes(tmp_path: Path) -> None:
    target = target_of(tmp_path, {"c": 4, "a": 0.5})
    logits, batch = batch_of(target)
    each = F.cross_entropy(logits, batch["labels"], reduction="none")
    expected = (each * torch.tensor([0.5, 1.0, 4.0])[batch["labels"]]).sum()
    torch.testing.assert_close(target.loss(logits, batch), expected)


@pytest.mark.parametrize("weights", ["balance", {"d": 2}, {"a": 0}, {"a": "much"}])
def test_wrong_weights_are_refused(tmp_path: Path, weights: object) -> None:
    with pytest.raises(ValueError, match=r"class_weights=.*write balanced.*classes a, b, c"):
        target_of(tmp_path, weights)


def test_numbers_have_no_classes_to_weigh() -> None:
    settings = {"labels": None, "positive_label": None, "number_range": None}
    with pytest.raises(ValueError, match=r"task.module.class_weights=balanced: .* a number"):
        class_or_number(
            numeric_labels=True, metrics=["pearson"], class_weights="balanced", **settings
        )
