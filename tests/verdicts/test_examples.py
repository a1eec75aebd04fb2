"""Two runs on the same examples, against scipy's own tests and numbers worked out by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from clozelab.runs.find import find
from clozelab.runs.record import Record
from clozelab.verdicts.examples import compare_examples
from clozelab.verdicts.experiment import find_experiment, load_experiment
from clozelab.verdicts.judging import ONE_SEED, judge
from clozelab.verdicts.table import build_table


def run(folder: Path, predictions: Sequence[Any], labels: Sequence[Any], name: str = "predictions.jsonl") -> Record:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"id": str(i), "prediction": p, "label": t} for i, (p, t) in enumerate(zip(predictions, labels, strict=True))
    ]
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return record(folder)


def record(folder: Path) -> Record:
    config = {"row": "r", "task": {"name": "t"}, "pretrain_seed": 1, "seed": 2}
    return Record.model_construct(stage="finetune", config=config, folder=folder)


def test_mcnemar_is_exact(tmp_path: Path) -> None:
    labels = ["1"] * 20
    first = run(tmp_path / "a", ["1"] * 12 + ["0"] * 8, labels)
    second = run(tmp_path / "b", ["1"] * 3 + ["0"] * 9 + ["1"] * 2 + ["0"] * 6, labels)
    found = compare_examples(first, second, "validation/accuracy")
    # 9 that the first alone gets right, 2 that the second alone does: 2 * (1 + 11 + 55) / 2**11
    assert "right where the other is wrong 9 against 2 times, McNemar p = 0.065" in found
    assert "this pair of runs (1/2)" in found and "says nothing about pre-training seeds" in found


def test_the_same_answers(tmp_path: Path) -> None:
    runs = [run(tmp_path / name, ["1", "0"], ["1", "1"]) for name in "ab"]
    assert "both answer the same examples rightly" in compare_examples(runs[0], runs[1], "validation/accuracy")


def test_bootstrap_knows_a_difference_from_none(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 400)
    good = np.where(generator.random(400) < 0.9, labels, 1 - labels)
    also = np.where(generator.random(400) < 0.9, labels, 1 - labels)
    poor = np.where(generator.random(400) < 0.6, labels, 1 - labels)
    runs = [
        run(tmp_path / str(i), [str(x) for x in one], [str(x) for x in labels])
        for i, one in enumerate((good, also, poor))
    ]
    for score in ("f1", "matthews"):
        assert " give −" in compare_examples(runs[0], runs[1], f"validation/{score}")
        assert " give +" in compare_examples(runs[0], runs[2], f"validation/{score}")


def test_interval_is_scipys_paired_bootstrap(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    labels = generator.normal(size=80)
    values = [labels + generator.normal(size=80), labels + 2 * generator.normal(size=80)]
    runs = [run(tmp_path / str(i), one.tolist(), labels.tolist()) for i, one in enumerate(values)]
    found = compare_examples(runs[0], runs[1], "validation/pearson")

    def difference(one: np.ndarray, other: np.ndarray, truth: np.ndarray) -> float:
        return 100 * float(stats.pearsonr(one, truth).statistic - stats.pearsonr(other, truth).statistic)

    expected = stats.bootstrap(
        (*values, labels), difference, paired=True, vectorized=False, n_resamples=2000, method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    low, high = (float(text.replace("−", "-")) for text in re.findall(r"[+−]\d+\.\d", found))
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1.5)  # other batches, other draws


def test_what_cannot_be_compared_says_nothing(tmp_path: Path) -> None:
    one, other = run(tmp_path / "a", ["1"], ["1"]), run(tmp_path / "b", ["1"], ["0"])
    assert compare_examples(one, other, "validation/accuracy") == ""  # other labels: another data set
    assert compare_examples(one, record(tmp_path / "c"), "validation/accuracy") == ""
    words = [run(tmp_path / name, ["yes"], ["no"]) for name in "de"]
    assert compare_examples(words[0], words[1], "validation/f1") == ""
    assert compare_examples(words[0], words[1], "validation/exact_match") == ""
    (tmp_path / "e" / "predictions.jsonl").write_text("{broken")
    assert compare_examples(words[0], words[1], "validation/accuracy") == ""


def test_a_second_development_set_has_its_own_file(tmp_path: Path) -> None:
    runs = []
    for name, wrong in (("a", 1), ("b", 3)):
        run(tmp_path / name, ["x"] * 4, ["x"] * 4)
        runs.append(
            run(tmp_path / name, ["y"] * wrong + ["x"] * (4 - wrong), ["x"] * 4, "predictions_mismatched.jsonl")
        )
    assert "2 against 0 times" in compare_examples(runs[0], runs[1], "validation/mismatched_accuracy")


def test_only_one_seed_is_compared_on_examples(make_runs: Callable[..., Path]) -> None:
    means = {("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0}
    root = make_runs(means, pretrain_seeds=(1,))
    for seeds, expected in (((1,), True), ((1, 2), False)):
        make_more(root, seeds)
        for index, folder in enumerate(sorted(root.glob("finetune/*/*/mrpc/*"))):
            run(folder, [str(index % 2)] * 3, ["1"] * 3)
        found = judge(build_table(load_experiment(find_experiment("table5_pretraining_tasks")), find(root)))
        one = next(one for one in found if one.claim.id == "ltr_hurts_mrpc")
        assert ("on these examples, this pair of runs" in one.note) == expected == (one.verdict == ONE_SEED)


def make_more(root: Path, seeds: Sequence[int]) -> None:
    """The first pre-training seed's fine-tuning runs again, as those of the others."""
    for path in list(root.glob("finetune/*/pretrain-seed-1/*/*/run.json")):
        for seed in seeds[1:]:
            folder = Path(str(path.parent).replace("pretrain-seed-1", f"pretrain-seed-{seed}"))
            folder.mkdir(parents=True)
            state = json.loads(path.read_text())
            state["config"]["pretrain_seed"] = seed
            for score in state["scores"].values():
                score["value"] += seed
            (folder / "run.json").write_text(json.dumps(state))
