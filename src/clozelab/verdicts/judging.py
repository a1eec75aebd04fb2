"""A claim of the paper against our runs: holds, contradicted, inconclusive or not comparable, and
on what.

A claim rests on one difference between rows or on several (its links). A link is decided by
Student's t over pre-training seeds, after Holm's correction for every difference that the table's
claims rest on. One pre-training seed cannot tell an arm from its luck: such a claim stays open.
Every look at other seeds is noted beside the runs: what is decided after seeds were added is
exploratory (decision 15). Last: the smallest difference that seeds can show.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import takewhile
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from clozelab.metrics.statistics import (
    MOST_SEEDS,
    PRETRAINING_SEEDS,
    Estimate,
    look_level,
    seeds_needed,
    smallest_gap,
)
from clozelab.text.formatting import duration
from clozelab.verdicts.accounts import Crossing, find_crossing, seed_seconds
from clozelab.verdicts.experiment import (
    ALL_COLUMNS,
    AVERAGES,
    FALLING,
    PERCENT,
    SPREAD,
    Claim,
    Experiment,
)
from clozelab.verdicts.links import (
    SIGNIFICANCE,
    Case,
    Correction,
    Link,
    correct,
    families_of,
    find_cases,
)
from clozelab.verdicts.table import DataColumn, Table, build_table

if TYPE_CHECKING:
    from clozelab.runs.find import Runs

HOLDS, FAILS, INCONCLUSIVE = "holds", "contradicted", "inconclusive"
ONE_SEED, BELOW_FLOOR, NOT_COMPARABLE = (
    "inconclusive (one seed)",
    "inconclusive (below its floor)",
    "not comparable",
)
VERDICTS = (HOLDS, FAILS, INCONCLUSIVE, ONE_SEED, BELOW_FLOOR, NOT_COMPARABLE)
EXPLORATORY = " (exploratory)"
LOOKS_FILE = "looks.jsonl"
# points, of the difference of two arms over pre-training seeds, where no finished run says more
ASSUMED_SD = 1.0


@dataclass(frozen=True)
class Judgement:
    """One claim on one data set (or on all of them)."""

    claim: Claim
    # the data set; None where there is none, or for a claim about all columns
    column: DataColumn | None
    judged_on: str  # in words
    # first - second in the column's unit; of several, what supports the claim least
    difference: Estimate | None
    verdict: str
    note: str = ""  # the reason, or what to keep in mind
    shown: str = ""  # which difference that is, where there are several
    p: float | None = None  # of that difference; None where nothing is tested
    corrected: float | None = None  # the same with the correction for the table
    # pre-training seeds in all that would decide it, where a number can be given
    decisive_seeds: int | None = None
    needs: str = ""  # the same in words; empty where more seeds are not what is lacking
    family: int = 0  # differences that are tested together
    # the paper's difference, where ours may be held against its size
    paper_size: float | None = None
    # tested difference -> the seeds that it is over
    seeds: Mapping[str, str] = field(default_factory=dict)
    # decided after an earlier look at other seeds, or claimed after one
    is_exploratory: bool = False
    rows: Sequence[str] = ()  # all that it is about
    where: Crossing | None = None  # one line overtakes another, for a claim that it does

    @property
    def word(self) -> str:
        return f"{self.verdict}{EXPLORATORY}" if self.is_exploratory else self.verdict


class Look(NamedTuple):
    """One time that claims were judged: the seeds of every tested difference, and the verdicts."""

    time: str
    seeds: Mapping[str, str]
    verdicts: Mapping[str, str]  # claim, and what it is judged on -> verdict
    rule: str = ""  # the stopping rule that its tests allowed for, in words; empty for none
    # id or text -> what was claimed of which rows, if tested; empty: nobody knows
    claims: Mapping[str, str] = {}


def look_at(table: Table) -> tuple[list[Judgement], list[Look], str]:
    """Judge a table and note the look beside its runs, if its seeds are new: (judgements, looks so
    far, why it could not be noted). A line that cannot be read stands for a look at seeds that
    nobody knows."""
    path, looks = table.runs.root / LOOKS_FILE, list[Look]()
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    for line in filter(None, text.splitlines()):
        try:
            looks.append(Look(**json.loads(line)))
        except (TypeError, ValueError):
            looks.append(Look("unreadable", {}, {}))
    judgements = judge(table, looks)
    seeds = {key: one for judgement in judgements for key, one in judgement.seeds.items()}
    rule = _rule(table.experiment)
    if not seeds or any(one.seeds == seeds and one.rule == rule for one in looks):
        return judgements, looks, ""
    verdicts = {f"{one.claim.text} ({one.judged_on})": one.verdict for one in judgements}
    claims = dict(_stated(one.claim) for one in judgements if one.seeds)
    looks.append(
        Look(datetime.now(UTC).isoformat(timespec="seconds"), seeds, verdicts, rule, claims)
    )
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(
                "\n" * (text[-1:] not in ("", "\n")) + json.dumps(looks[-1]._asdict()) + "\n"
            )
    except OSError as error:
        return (
            judgements,
            looks,
            f"this look could not be noted ({error}): a later one will not know of it",
        )
    return judgements, looks, ""


def judge(table: Table, looks: Sequence[Look] = ()) -> list[Judgement]:
    """Every claim on every data set that speaks for its column; at least one judgement a claim. Of
    the `looks` at the table those before the first one at these seeds count against it, unless the
    stopping rule allows for them. So does the first look at a claim's difference, at whatever
    seeds, if the claim was another one then, or none."""
    cases = [case for claim in table.experiment.claims for case in find_cases(claim, table)]
    correction = correct(families_of(cases))
    seeds = {
        link.key_of_looks: link.seeds for case in cases for link in case.links if link.is_tested
    }
    rule = _rule(table.experiment)
    before = list(takewhile(lambda look: look.seeds != seeds or look.rule != rule, looks))
    return [_judgement(case, correction, table, before, looks) for case in cases]


def _stated(claim: Claim) -> tuple[str, str]:
    said = claim.model_dump_json(exclude={"id", "text", "paper_delta"}, exclude_defaults=True)
    return claim.id or claim.text, said


def _allowed_for(mine: str, claims: Iterable[str]) -> set[str]:
    """The claims that a claim's test allows for, each by rows, column and whether it has a margin:
    of a primary claim the primary ones before it, and whether there are others; of any other claim
    all, and which of them are primary."""
    known = [json.loads(one) for one in claims]
    names = [
        json.dumps([*map(one.get, ("rows", "column", "against")), "points" in one]) for one in known
    ]
    first = [one for one, claim in zip(names, known, strict=True) if claim.get("primary")]
    if json.loads(mine).get("primary"):
        before = first[: [one for one in known if one.get("primary")].index(json.loads(mine))]
        return {*before, *["others"] * (len(first) < len(known))}
    return {*names, *(f"first {one}" for one in first)}


def _rule(experiment: Experiment) -> str:
    rule = experiment.stopping
    return f"a look after each of {rule.first} to {rule.most} pre-training seeds" if rule else ""


def _is_planned(then: str, now: str, rule: str) -> bool:
    """Whether a look was at these seeds, or by the rule at the first of them and at the same
    fine-tuning seeds.
    """
    (first, tuned), (all_first, all_tuned) = (one.split("/") for one in (then, now))
    return then == now or (
        bool(rule) and tuned == all_tuned and f"{all_first} ".startswith(f"{first} ")
    )


def summarise(judgements: Sequence[Judgement]) -> str:
    """The verdicts counted: "2 hold, 1 contradicted, 3 inconclusive"."""
    order = [f"{verdict}{more}" for verdict in VERDICTS for more in ("", EXPLORATORY)]
    return _counted([one.word for one in judgements], order) or "no claims"


def _counted(verdicts: Sequence[str], order: Sequence[str]) -> str:
    counts = {verdict: verdicts.count(verdict) for verdict in order if verdict in verdicts}
    plural = {verdict: verdict.replace(HOLDS, "hold") for verdict in counts}
    return ", ".join(
        f"{count} {plural[verdict] if count > 1 else verdict}" for verdict, count in counts.items()
    )


def _judgement(
    case: Case, correction: Correction, table: Table, before: Sequence[Look], looks: Sequence[Look]
) -> Judgement:
    verdicts = [
        link_verdict(link, case.claim, correction.corrected.get(link.key)) for link in case.links
    ]
    verdict, weakest = _conjunction(case, verdicts), _weakest(case, verdicts)
    count, needs, more = _needs(case, verdicts, verdict, correction)
    tasks = dict.fromkeys(
        task for link in case.links for _, _, column in link.terms for task in column.tasks
    )
    if more and (seconds := seed_seconds(case.rows, tasks, table)):
        needs += (
            f"; {more} more take{'s' * (more == 1)} about {duration(more * seconds)}, as these runs"
            " took"
        )
    is_on_all = case.claim.column == ALL_COLUMNS
    notes = (
        _notes_on_all(case, verdicts)
        if is_on_all
        else _notes(case, verdicts, verdict, weakest, correction, table)
    )
    where = (
        find_crossing(case, table, holds=verdict == HOLDS) if verdict != NOT_COMPARABLE else None
    )
    notes = [where.sentence, *notes] if where else notes
    seeds = {link.key_of_looks: link.seeds for link in case.links if link.is_tested}
    rule = _rule(table.experiment)
    earlier = [
        (look, key)
        for look in before
        for key, now in seeds.items()
        if not look.seeds  # a line that nobody can read
        or (
            key in look.seeds and (look.rule != rule or not _is_planned(look.seeds[key], now, rule))
        )
    ]
    if earlier:
        look, key = earlier[0]
        verdict_then = look.verdicts.get(f"{case.claim.text} ({case.judged_on})", "another claim")
        then = look.seeds.get(key, "unknown seeds")
        what = "the stopping rule was changed" if then == seeds[key] else "seeds were added"
        notes.insert(0, f"{what} after a look at {then} ({look.time[:10]}: {verdict_then})")
    first = next((look for look in looks if look.claims and seeds.keys() & look.seeds.keys()), None)
    # whatever it was called
    is_late = first is not None and _stated(case.claim)[1] not in first.claims.values()
    if first and is_late:
        notes.insert(0, f"claimed after a look at its numbers ({first.time[:10]})")
    mine, now = _stated(case.claim)[1], [_stated(claim)[1] for claim in table.experiment.claims]
    is_eased = bool(
        first
        and not is_late
        and not _allowed_for(mine, first.claims.values()) <= _allowed_for(mine, now)
    )
    if first and is_eased:
        notes.insert(
            0,
            "a claim that its test allowed for was dropped or moved after a look"
            f" ({first.time[:10]})",
        )
    return Judgement(
        claim=case.claim,
        column=case.column,
        judged_on=case.judged_on,
        rows=case.rows,
        verdict=verdict,
        note="; ".join(dict.fromkeys(filter(None, notes))),
        difference=weakest.difference if weakest else None,
        p=weakest.p if weakest else None,
        shown=weakest.name if weakest and len(case.links) > 1 else "",
        corrected=correction.corrected.get(weakest.key) if weakest and weakest.is_tested else None,
        decisive_seeds=count,
        needs=needs,
        family=len(correction.corrected),
        seeds=seeds,
        where=where,
        paper_size=None if _why_no_size(case, table) else case.claim.paper_delta,
        is_exploratory=(bool(earlier) or is_late or is_eased) and verdict in (HOLDS, FAILS),
    )


def link_verdict(link: Link, claim: Claim, corrected: float | None) -> str:
    """The verdict on one link of a claim; `corrected` is its p-value after the table's
    correction.
    """
    if link.difference is None or link.barred or link.absent:
        return NOT_COMPARABLE
    if link.difference.basis != PRETRAINING_SEEDS:
        return ONE_SEED
    # A row that answers the same whatever it reads has measured nothing, however small its spread.
    if not link.is_tested or corrected is None or corrected >= SIGNIFICANCE:
        return INCONCLUSIVE
    if link.below:
        return BELOW_FLOOR
    return HOLDS if _supports(link, claim) else FAILS


def _supports(link: Link, claim: Claim) -> bool:
    mean = link.decided_on.mean if link.decided_on else math.nan
    if claim.kind == SPREAD:
        return abs(mean) < claim.points
    return mean < 0.0 if claim.direction in FALLING else mean > 0.0


def _conjunction(case: Case, verdicts: Sequence[str]) -> str:
    """All links must hold; one that confidently goes the other way is enough to fail."""
    spoken = [verdict for verdict in verdicts if verdict != NOT_COMPARABLE]
    is_barred = case.claim.column != ALL_COLUMNS and any(link.barred for link in case.links)
    if FAILS in spoken:
        return FAILS
    if not spoken or is_barred:
        return NOT_COMPARABLE
    if open_one := next((one for one in (ONE_SEED, BELOW_FLOOR) if one in spoken), ""):
        return open_one
    is_whole = len(spoken) == len(verdicts) and not case.silent
    return HOLDS if is_whole and set(spoken) == {HOLDS} else INCONCLUSIVE


def _weakest(case: Case, verdicts: Sequence[str]) -> Link | None:
    """The link that supports the claim least, of those that there is a difference for."""
    if len(case.links) == 1:
        return case.links[0]

    # from 0, surely as claimed, to 2, surely the other way; the size
    def doubt(link: Link) -> tuple[float, float]:
        size, p = (
            abs(link.difference.mean) if link.difference else 0.0,
            1.0 if link.p is None else link.p,
        )
        if _supports(link, case.claim):
            return p, size if case.claim.kind == SPREAD else -size
        return 2.0 - p, size

    spoken = [link for link, one in zip(case.links, verdicts, strict=True) if one != NOT_COMPARABLE]
    return max(spoken, key=doubt, default=None)


def _needs(
    case: Case, verdicts: Sequence[str], verdict: str, correction: Correction
) -> tuple[int | None, str, int]:
    """How many pre-training seeds would decide an undecided claim, as a number and in words; how
    many more it takes.
    """
    if verdict == ONE_SEED:
        return None, "needs 2 or more pre-training seeds", 1
    open_links = [
        link for link, one in zip(case.links, verdicts, strict=True) if one == INCONCLUSIVE
    ]
    is_stuck = any(
        link.copies or link.is_collapsed or link.rests_on_collapsed or link.below
        for link in open_links
    )
    if (
        verdict != INCONCLUSIVE
        or not open_links
        or case.silent
        or NOT_COMPARABLE in verdicts
        or is_stuck
    ):
        return None, "", 0
    rule, present = (
        case.links[0].stopping,
        max(link.difference.count for link in open_links if link.difference),
    )
    if rule and not all(link.earlier for link in open_links):
        return None, f"the first look is at {rule.first} pre-training seeds", rule.first - present
    first = next(filter(None, (correction.waits_for.get(link.key) for link in open_links)), "")
    if first and case.claim.primary:
        return None, f"first the primary claim '{first}' has to be decided", 0
    # Holm's step that surely comes: any later one waits for those before it, which may fail. One
    # link that goes the other way is enough to fail; to hold, all have to be found.
    level = min(correction.level.get(link.key, SIGNIFICANCE) for link in open_links)
    level = look_level(level, rule.first, rule.most) if rule else level
    against = [link.effects for link in open_links if not _supports(link, case.claim)]
    ways = against or [[effect for link in case.links for effect in link.effects]]
    most = rule.most if rule else MOST_SEEDS
    counts = [
        count
        for effects in ways
        if (count := seeds_needed(effects, 1.0 - level, most=most)) is not None
    ]
    # The next seed cannot make it fewer than there are.
    count = max(min(counts, default=most + 1), 1 + present)
    if count > most:
        return (
            None,
            f"more than {most} pre-training seeds at this difference and spread",
            most - present,
        )
    words = (
        f"with {count} pre-training seeds 4 of 5 repetitions decide, at this difference and spread"
    )
    words += f"; with fewer once '{first}' is decided" if first else ""
    return count, words, count - present


def _notes(
    case: Case,
    verdicts: Sequence[str],
    verdict: str,
    weakest: Link | None,
    correction: Correction,
    table: Table,
) -> list[str]:
    """Why it is not comparable; else what a reader must know beside the verdict."""
    notes = [_why_no_size(case, table)] if case.links and not case.links[0].barred else []
    if verdict == NOT_COMPARABLE:
        reasons = [link.barred for link in case.links if link.barred]
        return [*notes, *(reasons or [link.absent for link in case.links] or case.silent)]
    if len(case.links) > 1:
        notes.append(
            f"of {len(verdicts)} differences {_counted(verdicts, list(dict.fromkeys(verdicts)))}"
        )
        notes += [f"{link.name}: {link.absent}" for link in case.links if link.absent]
    p, corrected = (
        (weakest.p, correction.corrected.get(weakest.key, 0.0)) if weakest else (None, 0.0)
    )
    if weakest and p is not None and not case.courses and p < SIGNIFICANCE <= corrected:
        # The plain interval and the verdict would seem to contradict each other.
        count, what = len(correction.corrected), "the margin" if weakest.margin else "zero"
        test = (
            "the test"
            f" {'as a primary one' if case.claim.primary else f'corrected for {count} differences'}"
            " does not"
        )
        if awaited := correction.waits_for[weakest.key]:
            of_others = (
                f"the test at 1 % does not: it has 5 % once the primary claim '{awaited}' is"
                " decided"
            )
            test = (
                f"the test waits for the primary claim '{awaited}'"
                if case.claim.primary
                else of_others
            )
        notes.append(f"the plain interval excludes {what}, {test}")
    for link in case.links:
        notes += _cautions(link, table)
    if weakest and (found := weakest.without_collapsed()):
        if weakest.is_tested and weakest.rests_on_collapsed:
            found = f"{found}: the difference rests on them and decides nothing"
        elif weakest.is_tested and weakest.healthy:
            found = f"{found}; p is the larger one, with or without"
        notes.append(found)
    return notes


def _notes_on_all(case: Case, verdicts: Sequence[str]) -> list[str]:
    """Of a claim about all columns: the verdict on each."""
    named = [
        (link.name or case.judged_on, link, one)
        for link, one in zip(case.links, verdicts, strict=True)
    ]
    notes = [f"{name}: {one}" for name, _, one in named if one != NOT_COMPARABLE]
    spoken = [
        column for _, link, one in named if one != NOT_COMPARABLE for _, _, column in link.terms
    ]
    notes += [f"{one.role}: direction only" for one in spoken if one.is_other_split]  # said once
    absent = [*(name for name, link, _ in named if link.absent and not link.barred), *case.silent]
    notes += [f"no runs for {', '.join(dict.fromkeys(absent))}"] if absent else []
    notes += [f"not comparable on {name} ({link.barred})" for name, link, _ in named if link.barred]
    return notes + [link.made for _, link, _ in named if not link.barred]


def _why_no_size(case: Case, table: Table) -> str:
    """Why our difference is not held against the size of the paper's; empty where it is."""
    column, is_of_means = case.column, table.experiment.averaging in ("", "mean")
    if not table.experiment.has_paper or (is_of_means and (column is None or column.is_paper)):
        return ""
    if column is None or column.is_paper:
        return (
            f"the paper's numbers are {AVERAGES[table.experiment.averaging]} of its runs, ours"
            " means: direction only"
        )
    if column.is_other_split or column.is_measured:
        return f"{column.role}: direction only"
    if column.is_pretraining:
        return "our own held-out text: direction only"
    kind = "synthetic" if column.role.startswith("synthetic") else "stand-in"
    return (
        f"{kind}:"
        f" {'says nothing of the sizes in the paper' if case.claim.kind == SPREAD else 'direction only'}"
    )


def _cautions(link: Link, table: Table) -> list[str]:
    notes = []
    cells = {(row, column.key): table.cells[row, column.key] for _, row, column in link.terms}
    for (row, _), cell in cells.items():
        label = table.experiment.label(row)
        notes += [f"{len(cell.missing)} run(s) of {label} missing"] if cell.missing else []
        notes += [f"{cell.num_collapsed} collapsed run(s) of {label}"] if cell.num_collapsed else []
        notes += (
            [f"every run of {label} collapsed: it has measured nothing"]
            if cell.is_collapsed
            else []
        )
    found, rule = link.difference, link.stopping
    if rule and found and found.count > rule.most:
        notes.append(f"seeds after the last look ({rule.most}) decide nothing")
    if link.copies:
        notes.append(f"{link.copies}: copies decide nothing")
    elif found is not None and found.has_no_spread and not link.is_collapsed:
        notes.append(
            "the same difference for every seed: no spread to judge it by, as may happen on few"
            " examples"
        )
    if found is not None and not found.is_balanced:
        notes.append("pre-training seeds have unequally many runs and weigh the same")
    below = (
        f"below its floor: {link.below}; such a row decides nothing about what pre-training gives"
    )
    return [*notes, link.lengths, link.made, below if link.below else ""]


def describe(experiment: Experiment, runs: Runs, seeds: int) -> str:
    """The smallest difference that so many pre-training seeds can show, by the median spread of
    claims so far.
    """
    if seeds < 2:
        return (
            "smallest detectable difference: none; one pre-training seed cannot tell an arm from"
            " its luck"
        )
    table = build_table(experiment, runs)
    links = [
        link
        for claim in experiment.claims
        for case in find_cases(claim, table)
        for link in case.links
    ]
    links = [
        link for link in links if all(one.tasks and one.unit == PERCENT for *_, one in link.terms)
    ]
    known = {
        link.key: link.difference.sd or 0.0 for link in links if link.is_tested and link.difference
    }
    deviation = median(known.values()) if known else ASSUMED_SD
    basis = (
        f"median of {len(known)} comparisons so far"
        if known
        else "assumed: no comparison of two seeds so far"
    )
    rule = experiment.stopping
    level = look_level(SIGNIFICANCE, rule.first, rule.most) if rule else SIGNIFICANCE
    return (
        f"smallest detectable difference: {smallest_gap(deviation, seeds, 1.0 - level):.1f} points"
        f" between two arms. With {seeds} pre-training seeds 4 of 5 experiments find it, if it"
        f" varies by {deviation:.1f} points from seed to seed ({basis}). This is for one difference"
        " alone; budget=TIME shows all claims together"
    )
