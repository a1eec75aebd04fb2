"""How often the real judge is wrong where seeds are added after a look, and how often its forecasts
come true.

Run it at the top of a checkout: `python benchmarks/looks.py [--tables N] [--cases N]`. It draws the
scores of whole tables, judges them as `clozelab report` does, follows the report's own forecasts,
and prints two Markdown tables. docs/results/2026-11-22-looks-and-forecasts.md has a run of it.

A table has pairs of rows and one claim a pair. Both rows of a pair share what a seed does to them;
their difference varies by one point (a standard deviation) from seed to seed. One fine-tuning seed
each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
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
    said = {
        "columns": [{"name": "task", "task": "task", "metric": METRIC}],
        "arms": {row["row"]: {} for row in rows},
        "rows": rows,
        "claims": [
            {
                "text": f"claim {i}",
                "compare": [f"b{i}", f"a{i}", "task"],
                "direction": "higher",
                "primary": primary if i < num_primary else False,
            }
            for i in range(claims)
        ],
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


def present(judgements: Sequence[Judgement]) -> list[int]:
    """Forecasts of all open claims, as the report says them."""
    return [
        one.decisive_seeds
        for one in judgements
        if one.decisive_seeds and one.decisive_seeds <= LONGEST
    ]


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


def false_verdicts(tables: int, sizes: Sequence[int], folder: Path) -> None:
    print(f"### False verdicts in {tables} tables without any true difference\n")
    print("| claims | what is done | one look | all looks | looks a table |")
    print("|--:|---|--:|--:|--:|")
    ways = {
        f"{FIRST} seeds, then the nearest forecast (as it was), once": (former, 2),
        "the same, until nothing is forecast": (former, 9),
        f"{FIRST} seeds, then the nearest forecast (as it is), once": (present, 2),
        "the same, until nothing is forecast ": (present, 9),
        f"a seed more from {FIRST} to 10, looking each time": (one_more, 9),
    }
    for claims in sizes:
        experiment = make_experiment(folder / f"null-{claims}", claims)
        for name, (forecast, most) in ways.items():
            draw, count = np.random.default_rng(claims), Counter[str]()
            for _ in range(tables):
                # A look sees the differences that the last one saw, and more.
                seen = list(looks(experiment, draw.normal(size=(claims, LONGEST)), forecast, most))
                count["first"] += is_false(seen[0])
                count["any"] += any(map(is_false, seen))
                count["looks"] += len(seen)
            first, ever = (f"{100 * count[key] / tables:.1f} %" for key in ("first", "any"))
            print(
                f"| {claims} | {name.strip()} | {first} | {ever} | {count['looks'] / tables:.2f} |",
                flush=True,
            )


def forecasts(cases: int, sizes: Sequence[int], folder: Path) -> None:
    print(f"\n### Forecasts that came true, of up to {cases} a line\n")
    print(
        "| claims | true difference, sd | seeds so far | forecasts | median forecast | new seeds,"
        " at the mean and spread that were seen: as it was | as it is | new seeds, at the truth: as"
        " it was | as it is |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for claims in sizes:
        experiment = make_experiment(folder / f"power-{claims}", claims)
        for truth in (0.5, 1.0, 2.0):
            for pilot in (3, 5):
                print(forecast_line(experiment, claims, truth, pilot, cases), flush=True)


def forecast_line(experiment: Experiment, claims: int, truth: float, pilot: int, cases: int) -> str:
    draw = np.random.default_rng(claims)
    forecast: list[int] = []
    true = Counter[str]()
    tried = Counter[str]()
    for _ in range(8 * cases // claims):
        if len(forecast) >= cases:
            break
        seen = draw.normal(truth, 1.0, size=(claims, pilot))
        mean = seen.mean(1, keepdims=True)
        deviation = seen.std(1, ddof=1, keepdims=True)
        for i, counts in forecasts_of(experiment, seen).items():
            if counts["is"] is not None:
                forecast.append(counts["is"])
            for name, count in counts.items():
                if count is None:
                    continue
                tried[name] += 1
                noise = draw.normal(size=(claims, count))
                true[f"{name} seen"] += is_decided(experiment, mean + deviation * noise, i)
                true[f"{name} truth"] += is_decided(experiment, truth + noise, i)
    shares = []
    for key in ("was seen", "is seen", "was truth", "is truth"):
        number = tried[key.split()[0]]
        shares.append(f"{100 * true[key] / number:.0f} %" if number else "-")
    middle = f"{np.median(forecast):.0f}" if forecast else "-"
    return f"| {claims} | {truth:g} | {pilot} | {len(forecast)} | {middle} | {' | '.join(shares)} |"


def forecasts_of(experiment: Experiment, seen: Differences) -> dict[int, dict[str, int | None]]:
    """Number of each inconclusive claim -> the seeds it would take, as forecast once (`was`) and
    now (`is`); None where there is no forecast.
    """
    claims, pilot = seen.shape
    judgements = judged(experiment, seen, pilot)
    by_p_value = sorted(judgements, key=lambda judgement: judgement.p_value or 0.0)
    rank = {judgement.claim.text: i for i, judgement in enumerate(by_p_value)}
    forecasts: dict[int, dict[str, int | None]] = {}
    for i, judgement in enumerate(judgements):
        if judgement.verdict != Verdict.INCONCLUSIVE:
            continue
        before = half_power(judgement, 0.05 / (claims - rank[judgement.claim.text]))
        after = judgement.decisive_seeds
        if not after or after > LONGEST:
            after = None
        forecasts[i] = {"was": before, "is": after}
    return forecasts


def is_decided(experiment: Experiment, deltas: Differences, claim: int) -> bool:
    """Whether a claim holds or fails on these differences, [claims, seeds]."""
    judgement = judged(experiment, deltas, deltas.shape[1])[claim]
    return judgement.verdict in (Verdict.HOLDS, Verdict.CONTRADICTED)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tables", type=int, default=1000, help="without any true difference, a line; 0: none"
    )
    parser.add_argument("--cases", type=int, default=400, help="forecasts, a line; 0: none")
    parser.add_argument("--claims", type=int, nargs="+", default=[1, 9], help="of a table")
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if said.tables:
            false_verdicts(said.tables, said.claims, Path(folder))
        if said.cases:
            forecasts(said.cases, said.claims, Path(folder))


if __name__ == "__main__":
    main()
