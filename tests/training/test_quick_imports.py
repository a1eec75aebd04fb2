"""Tests of clozelab.training.host, each in a process of its own: what is imported, and what still works."""

from __future__ import annotations

import subprocess
import sys

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


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_metrics_work_and_nothing_optional_is_imported() -> None:
    done = run(CODE)
    assert done.returncode == 0 and done.stdout.strip() == "fine", done.stderr[-2000:]


def test_who_imported_torchmetrics_first_keeps_all_of_it() -> None:
    code = "import torchmetrics; from clozelab.training.host import import_torchmetrics_quickly as q; print(q())"
    done = run(code)
    assert done.stdout.strip() == "False", done.stderr[-2000:]
