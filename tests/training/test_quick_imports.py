"""Tests of clozelab.training.host: what is imported in a process of its own, and what still works
there.
"""

from __future__ import annotations

import subprocess
import sys

from clozelab.training.host import import_torchmetrics_quickly

CODE = """
import sys
from clozelab.training.host import import_torchmetrics_quickly
assert import_torchmetrics_quickly() is True
assert import_torchmetrics_quickly() is False, "once is enough"
loaded = [name for name in ("transformers", "matplotlib", "scipy.signal") if name in sys.modules]
assert not loaded, loaded
import torch, torchmetrics
from lightning.pytorch.core.module import Metric
assert Metric is torchmetrics.Metric
accuracy = torchmetrics.classification.BinaryAccuracy()
accuracy.update(torch.tensor([1, 0, 1]), torch.tensor([1, 1, 1]))
assert abs(float(accuracy.compute()) - 2 / 3) < 1e-6
import scipy.signal
assert scipy.signal.convolve([1.0], [2.0]) == [2.0], "the real one, afterwards"
import matplotlib.pyplot
print("fine")
"""


def test_metrics_work_and_nothing_optional_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.strip() == "fine", done.stderr[-2000:]


def test_who_imported_torchmetrics_first_keeps_all_of_it() -> None:
    import torchmetrics

    before = dict(sys.modules)
    assert import_torchmetrics_quickly() is False
    assert sys.modules == before and sys.modules["torchmetrics"] is torchmetrics
