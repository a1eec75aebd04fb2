"""Injected results flip every verdict: each claim is made to hold, to fail, to stay open and to be
incomparable.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.records import change
from tests.results.every_kind import paper_of_every_kind
from tests.results.words import forecast, incomparability_of, missing_in

from claims.analysis.scores import Origin
from claims.analysis.statistics import FINETUNING_SEEDS
from claims.analysis.verdicts import Judgement, Verdict, judge
from clozelab.results.experiment import Experiment, load_experiment
from clozelab.results.table import build_table
from clozelab.runs.find import find

TASKS = {"mnli": "MNLI-m", "qnli": "QNLI", "mrpc": "MRPC", "sst2": "SST-2", "squad_v1": "SQuAD F1"}
ROWS = ("mlm_nsp", "mlm", "ltr", "ltr_bilstm")
SEEDS = (1, 2, 3, 4)


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    folder = tmp_path / "table"
    folder.mkdir()
    (folder / "paper.yaml").write_text(paper_of_every_kind("SST-2"))
    return load_experiment(folder)


class Lab:
    """Run folders whose every score is chosen: means, and a wobble from seed to seed that no
    pairing removes.
    """

    def __init__(self, root: Path, writers: Any) -> None:
        self.root, self.writers = root, writers

    def write(
        self,
        means: Mapping[tuple[str, str], float],
        perplexities: Mapping[str, float],
        wobble: float = 0.1,
        seeds: tuple[int, ...] = SEEDS,
    ) -> Path:
        shutil.rmtree(self.root, ignore_errors=True)
        for place, (arm, value) in enumerate(perplexities.items()):
            for seed in seeds:
                facts = {"validation/perplexity": value + wobble * self.noise(place, seed)}
                self.writers.pretrain(self.root, arm, seed, known=facts)
        for place, ((row, task), mean) in enumerate(means.items()):
            for seed in seeds:
                for restart in (1, 2):
                    noise = wobble * (self.noise(place, seed) + 0.1 * restart)
                    self.writers.finetune(self.root, row, task, (seed, restart), mean + noise)
        return self.root

    @staticmethod
    def noise(place: int, seed: int) -> float:
        """Different for every cell, so that no difference is without a spread."""
        return ((7 * place + 3 * seed + place * seed) % 11) / 5.0 - 1.0


@pytest.fixture
def lab(tmp_path: Path, writers: Any) -> Lab:
    return Lab(tmp_path / "runs", writers)


def scores(**rows: float | Mapping[str, float]) -> dict[tuple[str, str], float]:
    """row=score on all tasks, or row={task: score}."""
    means: dict[tuple[str, str], float] = {}
    for row, value in rows.items():
        by_task = value
        if not isinstance(by_task, Mapping):
            by_task = dict.fromkeys(TASKS, by_task)
        means |= {(row, task): by_task[task] for task in TASKS}
    return means


AS_CLAIMED = scores(
    mlm_nsp={task: 80.4 if task == "sst2" else 85.0 for task in TASKS} | {"qnli": 90.0},
    mlm=dict.fromkeys(TASKS, 80.0),
    ltr=dict.fromkeys(TASKS, 60.0) | {"mrpc": 65.0},
    ltr_bilstm=dict.fromkeys(TASKS, 70.0) | {"mrpc": 60.0},
)
THE_OTHER_WAY = scores(
    mlm_nsp=dict.fromkeys(TASKS, 60.0) | {"qnli": 50.0},
    mlm=65.0,
    ltr=dict.fromkeys(TASKS, 80.0) | {"mrpc": 70.0},
    ltr_bilstm=dict.fromkeys(TASKS, 70.0) | {"mrpc": 75.0},
)
PERPLEXITIES = {"mlm_nsp": 20.0, "mlm": 25.0, "ltr": 30.0}


def verdicts(experiment: Experiment, root: Path) -> dict[str, Judgement]:
    found = {one.claim.id: one for one in judge(build_table(experiment, find(root)))}
    assert set(found) == {claim.id for claim in experiment.claims}
    return found


def test_every_claim_holds(experiment: Experiment, lab: Lab) -> None:
    found = verdicts(experiment, lab.write(AS_CLAIMED, PERPLEXITIES, wobble=0.02))
    assert {name: one.verdict for name, one in found.items()} == dict.fromkeys(found, Verdict.HOLDS)
    assert found["chain"].reported_contrast == "No NSP − MLM & NSP"  # 0.4 points, the other step 20
    perplexity = found["perplexity"]
    assert perplexity.judged_on == "perplexity"
    assert perplexity.column is not None and perplexity.column.origin is Origin.HELD_OUT_TEXT
    assert perplexity.size_obstacle == "our own held-out text: direction only"
    assert all(
        one.corrected_p is not None and one.p_value is not None and one.p_value <= one.corrected_p
        for one in found.values()
    )


def test_every_claim_fails(experiment: Experiment, lab: Lab) -> None:
    swapped = dict(zip(PERPLEXITIES, reversed(PERPLEXITIES.values()), strict=True))
    found = verdicts(experiment, lab.write(THE_OTHER_WAY, swapped))
    assert {name: one.verdict for name, one in found.items()} == dict.fromkeys(
        found, Verdict.CONTRADICTED
    )


def test_every_claim_stays_open(experiment: Experiment, lab: Lab) -> None:
    level = scores(**dict.fromkeys(ROWS, 70.0))
    found = verdicts(experiment, lab.write(level, dict.fromkeys(PERPLEXITIES, 25.0), wobble=3.0))
    assert {name: one.verdict for name, one in found.items()} == dict.fromkeys(
        found, Verdict.INCONCLUSIVE
    )
    for one in found.values():
        assert one.forecast is not None and one.forecast.text.endswith("difference and spread")


def test_one_seed_leaves_every_claim_open(experiment: Experiment, lab: Lab) -> None:
    found = verdicts(experiment, lab.write(AS_CLAIMED, PERPLEXITIES, seeds=(1,)))
    assert {name: one.verdict for name, one in found.items()} == dict.fromkeys(
        found, Verdict.ONE_SEED
    )
    assert all(forecast(one) == "needs 2 or more pre-training seeds" for one in found.values())
    assert all(one.corrected_p is None for one in found.values())
    shown = found["ltr_hurts_mrpc"].difference
    assert shown is not None and shown.basis == FINETUNING_SEEDS and shown.low is not None


def test_no_claim_is_comparable(experiment: Experiment, lab: Lab) -> None:
    """Every arm saw another amount of text, and the two rows of one arm were fine-tuned in two
    ways.
    """
    root = lab.write(AS_CLAIMED, PERPLEXITIES)
    for factor, arm in enumerate(PERPLEXITIES, 1):
        change(root, f"pretrain/{arm}/*", facts__tokens=factor * 1_000_000)
    change(root, "finetune/ltr_bilstm/*/*/*", config__epochs=9)
    found = verdicts(experiment, root)
    assert {name: one.verdict for name, one in found.items()} == dict.fromkeys(
        found, Verdict.NOT_COMPARABLE
    )
    unmatched = incomparability_of(found["perplexity"])
    assert unmatched.code == "unmatched amount"
    assert "1 M against 2 M tokens of pre-training" in unmatched.text
    protocol = incomparability_of(found["bilstm_helps_squad"])
    assert protocol.code == "other protocol"
    assert "fine-tuned with epochs 9 against none" in protocol.text


def test_a_link_too_many(experiment: Experiment, lab: Lab) -> None:
    """A chain needs all of its steps, and says which one is lacking."""
    root = lab.write(AS_CLAIMED | {("mlm", "sst2"): 60.0}, PERPLEXITIES, wobble=0.5)
    found = verdicts(experiment, root)["chain"]
    assert found.verdict == Verdict.INCONCLUSIVE
    assert found.reported_contrast == "LTR & No NSP − No NSP"
    assert found.verdicts == (Verdict.HOLDS, Verdict.INCONCLUSIVE)
    root = lab.write(AS_CLAIMED | {("mlm", "sst2"): 55.0}, PERPLEXITIES)
    found = verdicts(experiment, root)["chain"]
    assert found.verdict == Verdict.CONTRADICTED
    assert found.verdicts == (Verdict.HOLDS, Verdict.CONTRADICTED)
    shutil.rmtree(root / "finetune" / "ltr")
    without_ltr = {key: one for key, one in AS_CLAIMED.items() if key[0] != "ltr"}
    found = verdicts(experiment, lab.write(without_ltr, PERPLEXITIES))["chain"]
    assert found.verdict == Verdict.INCONCLUSIVE
    assert missing_in(found) == "no complete run of LTR & No NSP"


def test_the_correction_can_take_a_verdict_away(experiment: Experiment, lab: Lab) -> None:
    level = scores(**dict.fromkeys(ROWS, 70.0))
    root = lab.write(level | {("ltr", "mrpc"): 66.9}, dict.fromkeys(PERPLEXITIES, 25.0), wobble=1.0)
    found = verdicts(experiment, root)["ltr_hurts_mrpc"]
    assert (
        found.difference is not None
        and found.difference.high is not None
        and found.difference.high < 0
    )
    assert (
        found.p_value is not None
        and found.corrected_p is not None
        and found.p_value < 0.05 < found.corrected_p
    )
    assert found.verdict == Verdict.INCONCLUSIVE
    assert found.gated_by == "" and not found.claim.primary
    assert found.decisive_seeds is not None and found.decisive_seeds > len(SEEDS)


def test_a_shared_difference_is_tested_once(experiment: Experiment, lab: Lab) -> None:
    found = verdicts(experiment, lab.write(AS_CLAIMED, PERPLEXITIES))
    # 9 claims of the table, of which one is about five tasks and shares two of them; chain 2, alike
    # 1 (another hypothesis than zero), difference of differences 1, perplexity 1, average 1, each
    # 1; chain's and each's other one is among the five.
    assert {one.num_tests for one in found.values()} == {8 + 3 + 1 + 1 + 1 + 1 + 1 + 1}


def test_a_mean_needs_all_its_parts(experiment: Experiment, lab: Lab) -> None:
    root = lab.write(
        {key: one for key, one in AS_CLAIMED.items() if key[1] != "mrpc"}, PERPLEXITIES
    )
    found = verdicts(experiment, root)["average"]
    assert found.verdict == Verdict.NOT_COMPARABLE
    assert missing_in(found) == "no run on Average or a substitute for it"
    root = lab.write(AS_CLAIMED, PERPLEXITIES)
    shutil.rmtree(root / "finetune" / "mlm" / "pretrain-seed-2" / "qnli" / "seed-1")
    table = build_table(experiment, find(root))
    cell = table.cells["mlm", "mean:Average"]
    assert cell.missing == ((2, 1),) and len(cell.scores) == 7
    parts = [table.cells["mlm", task].scores[1, 1] for task in ("mnli", "qnli", "mrpc", "sst2")]
    assert cell.scores[1, 1] == pytest.approx(sum(parts) / 4)


def test_a_perplexity_is_the_arms_and_not_in_percent(experiment: Experiment, lab: Lab) -> None:
    table = build_table(experiment, find(lab.write(AS_CLAIMED, PERPLEXITIES, wobble=0.0)))
    cells = {row: table.cells[row, "pretrain:perplexity"] for row in (*ROWS, "random")}
    assert {row: cell.estimate and cell.estimate.mean for row, cell in cells.items()} == {
        "mlm_nsp": 20.0,
        "mlm": 25.0,
        "ltr": 30.0,
        "ltr_bilstm": 30.0,
        "random": None,
    }
    assert len(cells["mlm"].scores) == len(SEEDS) and cells["random"].missing == ()
    (column,) = (one for one in table.columns if one.key == "pretrain:perplexity")
    assert (column.decimals, column.unit, column.is_paper) == (2, "perplexity", False)


def test_a_row_against_each_of_several_is_held_up_by_the_best_of_them(
    experiment: Experiment, lab: Lab
) -> None:
    def each(bilstm: float, wobble: float = 0.1) -> Judgement:
        means = scores(mlm_nsp=85.0, mlm=80.0, ltr=60.0, ltr_bilstm=bilstm)
        return verdicts(experiment, lab.write(means, PERPLEXITIES, wobble))["each"]

    assert each(70.0).verdict == Verdict.HOLDS
    assert each(90.0).verdict == Verdict.CONTRADICTED
    found = each(79.9, wobble=0.5)
    assert (found.verdict, found.reported_contrast) == (Verdict.INCONCLUSIVE, "No NSP − + BiLSTM")
    assert found.verdicts == (Verdict.HOLDS, Verdict.INCONCLUSIVE)


def test_a_mean_over_copies_decides_nothing(experiment: Experiment, lab: Lab) -> None:
    root = lab.write(AS_CLAIMED, PERPLEXITIES)
    change(root, "finetune/*/*/*/*", config__initialisation="pretrained")
    assert verdicts(experiment, root)["average"].verdict == Verdict.HOLDS
    change(root, "finetune/ltr/*/*/*", inputs__encoder="one for all seeds")
    found = verdicts(experiment, root)["average"]
    assert found.verdict == Verdict.INCONCLUSIVE
    copies = found.resolved.contrasts[0].exclusions.duplicates
    for copy in copies.split("; "):
        assert copy.endswith("pre-training seeds 1, 2, 3 and 4 are one and the same encoder")


def test_collapsed_runs_keep_no_margin(experiment: Experiment, lab: Lab, writers: Any) -> None:
    """The healthy runs are five points apart; a collapsed one of each encoder brings the means to
    half a point.
    """
    root = lab.write(
        AS_CLAIMED | {("mlm_nsp", "sst2"): 85.0, ("mlm", "sst2"): 90.0}, PERPLEXITIES, wobble=0.02
    )
    for seed in SEEDS:
        writers.finetune(root, "mlm_nsp", "sst2", (seed, 3), 85.0)
        writers.finetune(root, "mlm", "sst2", (seed, 3), 73.5 + 0.01 * seed, collapsed=True)
    found = verdicts(experiment, root)["alike"]
    assert found.difference is not None and abs(found.difference.mean) == pytest.approx(
        0.5, abs=0.1
    )
    assert found.verdict == Verdict.INCONCLUSIVE and not forecast(found)
