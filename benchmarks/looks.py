"""Tables of drawn scores and the real judge, for tests of what looks and forecasts do.

A table has pairs of rows and one claim a pair. Both rows of a pair share what a seed does to them;
their difference varies by one point (a standard deviation) from seed to seed. One fine-tuning seed
each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Judgement, judge
from clozelab.results.experiment import Experiment, load_experiment
from clozelab.results.table import build_table
from clozelab.runs.find import Runs
from clozelab.runs.record import Record, Score

Differences = NDArray[np.float64]
"""[claims, seeds]: second row of a pair less the first."""
FIRST = 3
LONGEST = 30
"""Seeds that a simulated reader has at most."""
METRIC = "validation/accuracy"


def make_experiment(
    folder: Path, claims: int, num_primary: int = 0, primary: bool | str = True, **more: Any
) -> Experiment:
    """Claim i: row `b<i>` is above row `a<i>`. `more`: other keys of paper.yaml."""
    rows = []
    for i in range(claims):
        for name in (f"a{i}", f"b{i}"):
            rows.append({"row": name, "arm": name, "floor": None})
    claimed = []
    for i in range(claims):
        claim: dict[str, Any] = {"text": f"claim {i}", "compare": [f"b{i}", f"a{i}", "task"]}
        claim |= {"direction": "higher", "primary": primary if i < num_primary else False}
        claimed.append(claim)
    said = {
        "columns": [{"name": "task", "task": "task", "metric": METRIC}],
        "arms": {row["row"]: {} for row in rows},
        "rows": rows,
        "claims": claimed,
        "matched_by": "none",
        **more,
    }
    folder.mkdir()
    (folder / "paper.yaml").write_text(json.dumps(said))
    return load_experiment(folder)


def judged(experiment: Experiment, differences: Differences, seeds: int) -> list[Judgement]:
    """What the project says of the first so many seeds of a table."""
    return judge_records(experiment, records(differences, seeds))


def judge_records(experiment: Experiment, found: list[Record]) -> list[Judgement]:
    return judge(build_table(experiment, Runs(Path("none"), found)))


def records(differences: Differences, seeds: int) -> list[Record]:
    draw = np.random.default_rng(0)
    found = []
    for i, mine in enumerate(differences):
        for seed, gap in enumerate(mine[:seeds], 1):
            base = 70.0 + draw.normal()
            found += [record(f"a{i}", seed, base), record(f"b{i}", seed, base + float(gap))]
    return found


def record(row: str, seed: int, score: float) -> Record:
    """A complete run's record; not validated, since there are many."""
    config = {"row": row, "task": {"name": "task"}, "pretrain_seed": seed, "seed": 1}
    return Record.model_construct(
        status="complete",
        stage="finetune",
        scale="",
        fingerprint="f",
        results_version=0,
        config=config,
        inputs={},
        metric=METRIC,
        scores={METRIC: Score(unit="percent", higher_is_better=True, value=score)},
        folder=Path("none"),
    )


def is_false(judgements: Sequence[Judgement]) -> bool:
    """Of a table without any true difference."""
    return any(one.verdict in (Verdict.HOLDS, Verdict.CONTRADICTED) for one in judgements)


def half_power(one: Judgement, level: float) -> int | None:
    """The forecast that reports gave before: the seeds at which an interval of this mean and spread
    excludes zero.
    """
    found = one.difference
    if found is None or not found.sd:
        return None
    sizes = range(found.count + 1, LONGEST + 1)
    return next(
        (
            n
            for n in sizes
            if found.sd * stats.t.ppf(1 - level / 2, n - 1) < abs(found.mean) * n**0.5
        ),
        None,
    )


def former(judgements: Sequence[Judgement]) -> list[int]:
    """Former forecasts of all open claims: each at the step of Holm's that its rank had."""
    order = sorted(judgements, key=lambda one: 1.0 if one.p_value is None else one.p_value)
    found = [
        half_power(one, 0.05 / (len(order) - i))
        for i, one in enumerate(order)
        if one.verdict == Verdict.INCONCLUSIVE
    ]
    return [count for count in found if count]


def looks(
    experiment: Experiment,
    differences: Differences,
    forecast: Callable[[Sequence[Judgement]], list[int]],
    most: int,
) -> Iterator[list[Judgement]]:
    """What somebody sees who adds seeds up to the nearest forecast and looks again, as long as
    there is one.
    """
    seeds = FIRST
    for _ in range(most):
        yield (found := judged(experiment, differences, seeds))
        nearest = min(forecast(found), default=0)
        if nearest <= seeds:
            return
        seeds = nearest


def one_more(judgements: Sequence[Judgement]) -> list[int]:
    """Not a forecast: a seed more whatever the page says, up to ten."""
    count = max((one.difference.count for one in judgements if one.difference), default=0)
    return [count + 1] if count < 10 else []
