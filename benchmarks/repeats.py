"""How often decided claims come out again with other seeds: `repeats.py [--lot N --seed S]`

Reads claims.csv of every page below docs/results, and its seeds. A claim that a table has decided
is looked up in every other table of the same experiment whose pre-training seeds are all other
ones. `--lot` draws so many of the decided claims, each from its latest table, and leaves the
others out.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from claims.analysis.schema import BaseClaim
from claims.analysis.verdict_codes import Verdict as Code
from claims.analysis.verdict_codes import read_verdict
from claims.report.verdict_styles import LABELS, label_of
from clozelab.results.experiment import find_experiment, load_experiment

RESULTS = Path(__file__).parents[1] / "docs" / "results"
DECIDED = (LABELS[Code.HOLDS], LABELS[Code.CONTRADICTED])


@dataclass(frozen=True)
class Verdict:
    """A claim as a published table judged it."""

    page: str  # below docs/results; begins with its date
    experiment: str
    seeds: frozenset[str]  # of pre-training
    text: str
    judged_on: str  # a column's name
    verdict: str
    difference: str  # as it is shown, with the claim's sign; "–" where there is none
    interval: str

    @property
    def claim(self) -> tuple[str, str, str]:
        """What makes two verdicts one of the same claim."""
        return self.experiment, self.text, self.judged_on


@dataclass(frozen=True)
class Repeat:
    """A decided claim, and another table that asked for it with other seeds."""

    first: Verdict
    again: Verdict

    @property
    def outcome(self) -> str:
        if self.again.verdict in DECIDED:
            if self.again.verdict == self.first.verdict:
                return "decided alike"
            return "decided otherwise"
        if side(self.again) == side(self.first):
            return "open, on the same side"
        return "open, on the other side"


def side(verdict: Verdict) -> bool:
    """Whether the difference alone speaks for the claim, by its sign or by lying in a margin."""
    difference = float(verdict.difference.replace("−", "-"))
    return claim_of(verdict.experiment, verdict.text).is_supported_by(difference)


@cache
def claim_of(experiment: str, text: str) -> BaseClaim:
    for claim in load_experiment(find_experiment(experiment)).claims:
        if claim.text == text:
            return claim
    raise ValueError(f"experiments/{experiment}/paper.yaml has no claim {text!r} any more")


def read_page(folder: Path) -> list[Verdict]:
    """The verdicts of one page that have a difference."""
    experiment, seeds = read_runs(folder)
    verdicts = []
    with (folder / "claims.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if not row["ours"].strip("–"):
                continue
            verdicts.append(
                Verdict(
                    page=folder.name,
                    experiment=experiment,
                    seeds=seeds,
                    text=row["text"],
                    judged_on=row["judged_on"],
                    verdict=_label(row),
                    difference=row["ours"],
                    interval=row["interval"],
                )
            )
    return verdicts


def _label(row: dict[str, str]) -> str:
    """The verdict of a line as a reader sees it; older pages have no column `exploratory`."""
    code, is_exploratory = read_verdict(row["verdict"])
    if row.get("exploratory") == "True":
        is_exploratory = True
    return label_of(code, is_exploratory=is_exploratory)


def read_runs(folder: Path) -> tuple[str, frozenset[str]]:
    """(experiment, pre-training seeds) of a page: of its runs, or of its registration without
    them.
    """
    if (folder / "results.csv").exists():
        with (folder / "results.csv").open(encoding="utf-8") as file:
            runs = list(csv.DictReader(file))
        seeds = frozenset(run["pretrain_seed"] for run in runs if run["stage"] == "pretrain")
        return runs[0]["experiment"], seeds
    registrations = json.loads((folder / "registration.json").read_text(encoding="utf-8"))
    content = registrations["registrations"][-1]["content"]
    seeds = frozenset(str(seed) for seed in content["seeds"]["pre-training"])
    return content["key"]["name"], seeds


def read_results(folder: Path) -> list[Verdict]:
    """The verdicts of every page, the oldest day first, and of one day the fewest seeds first."""
    verdicts = []
    for claims in folder.glob("*/claims.csv"):
        verdicts.extend(read_page(claims.parent))
    return sorted(verdicts, key=lambda verdict: (verdict.page[:10], len(verdict.seeds)))


def latest_decided(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Of each claim that its latest table decides, that verdict."""
    latest = {verdict.claim: verdict for verdict in verdicts}
    return [verdict for verdict in latest.values() if verdict.verdict in DECIDED]


def repeats_of(decided: Iterable[Verdict], verdicts: Iterable[Verdict]) -> list[Repeat]:
    """Each decided claim beside every other table that asked for it with other seeds alone."""
    others: dict[tuple[str, ...], list[Verdict]] = {}
    for verdict in verdicts:
        others.setdefault(verdict.claim, []).append(verdict)
    repeats = []
    for first in decided:
        for again in others[first.claim]:
            if again.seeds.isdisjoint(first.seeds):
                repeats.append(Repeat(first, again))
    return repeats


def shown(decided: list[Verdict], repeats: list[Repeat]) -> str:
    """The table and its sums, as Markdown."""
    lines = [
        "| claim | decided | again, with other seeds | outcome |",
        "|---|---|---|---|",
    ]
    for repeat in repeats:
        first, again = repeat.first, repeat.again
        lines.append(
            f"| {first.text} | {cell(first)} | {again.verdict}: {cell(again)} | {repeat.outcome} |"
        )
    asked_again = {repeat.first.claim for repeat in repeats}
    lines.append("")
    for verdict in decided:
        if verdict.claim not in asked_again:
            lines.append(f"not asked again: {verdict.text} ({verdict.page})")
    counts = Counter(repeat.outcome for repeat in repeats)
    sums = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    lines.append(
        f"{len(decided)} decided claims, {len(asked_again)} of them asked again with other seeds,"
        f" in {len(repeats)} tables: {sums}"
    )
    return "\n".join(lines)


def cell(verdict: Verdict) -> str:
    seeds = len(verdict.seeds)
    return f"{verdict.difference} {verdict.interval}, {seeds} seeds ({verdict.page})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lot", type=int, help="draw so many of the decided claims")
    parser.add_argument("--seed", type=int, default=0, help="of the lot")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the pages")
    arguments = parser.parse_args()

    verdicts = read_results(arguments.results)
    decided = latest_decided(verdicts)
    if arguments.lot is not None:
        decided = random.Random(arguments.seed).sample(decided, arguments.lot)
    print(shown(decided, repeats_of(decided, verdicts)))


if __name__ == "__main__":
    main()
