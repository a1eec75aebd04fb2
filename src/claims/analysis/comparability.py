"""Whether the runs of two rows may be compared: a list of rules, each asking one thing.

Were they made in the same way, apart from what they are about? What that is, `Pair` says: the
settings that the arms' and rows' own lines set differently, and those that paper.yaml leaves free.
Arms must have seen as much as `matched_by` asks for. How a row is fine-tuned is no row's subject
unless `differ_in` says so.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from claims.analysis.grouping import group_by
from claims.text.phrases import format_count, truncate_list

if TYPE_CHECKING:
    from claims.analysis.statistics import Seeds  # which brings scipy

# of fine-tuning: no row's subject unless differ_in says so
PROTOCOL = (
    "epochs",
    "evaluations_per_epoch",
    "global_batch_size",
    "gradient_clip_norm",
    "learning_rate",
    "max_train_examples",
    "optimizer",
    "schedule",
)
# the learning rate of a fine-tuning, and the optimizer's, which repeats it
RATE_KEYS = ("learning_rate", "optimizer.learning_rate")
# how far amounts of two arms may be apart, as a share of the larger one
TOLERANCE = 0.02
# what `differ_in` says where rows may be of other versions of the code
CODE = "code"
NO_VALUE = "none"

Facts = Mapping[str, str]


class Exclusion(NamedTuple):
    """Why there is no verdict: a word that programs may ask for, and a sentence for people."""

    code: str
    text: str


@dataclass(frozen=True)
class RunEvidence:
    """How one run was made."""

    # how a message calls it
    place: str
    is_finetuning: bool
    seeds: Seeds
    # all that should be equal in compared runs: precision, but not a machine's layout
    settings: Facts
    # module -> version of the code; a run that went on under other code has both: "a1/b2"
    code: Facts
    # code, and the versions of what it was made with
    environment: Facts
    # what its arm's or row's own lines say
    delta: Facts
    # checksum of the weights that it began with; None where they were fresh
    encoder: str | None
    # whose encoder its configuration names; None for none
    encoder_arm: str | None
    encoder_fraction: float
    # what it saw or took, all devices together: "tokens", "steps", "training_seconds"
    amounts: Mapping[str, float]


Runs = Sequence[RunEvidence]


@dataclass(frozen=True)
class RowEvidence:
    """All complete runs behind a row."""

    name: str
    arm: str | None
    pretraining: Runs
    finetuning: Runs
    evaluation: Runs
    # of the compared tasks: fine-tunings and evaluations
    by_task: Mapping[str, Runs]


@dataclass(frozen=True)
class Pair:
    """Two rows whose scores on some tasks are compared."""

    first: RowEvidence
    second: RowEvidence
    # amounts of the arms' pre-training that have to agree
    matched: tuple[str, ...]
    # settings in which any two rows or arms may differ
    free_keys: frozenset[str]
    # settings that the two arms' own lines set differently, and those of the two rows
    arm_factors: frozenset[str]
    row_factors: frozenset[str]
    # why an arm or a row has no run that may be compared, though it has some; empty where none is
    outdated: str = ""
    # which runs are of other lines than paper.yaml has now; empty where none are
    edited: str = ""

    @property
    def sides(self) -> tuple[RowEvidence, RowEvidence]:
        return self.first, self.second

    @property
    def has_two_arms(self) -> bool:
        return bool(self.first.arm and self.second.arm and self.first.arm != self.second.arm)

    def stages_apart(self) -> Iterator[tuple[str, Runs, Runs]]:
        """(stage, runs, runs) of all that two rows' scores come from apart from each other."""
        if self.has_two_arms:
            yield "pre-trained", self.first.pretraining, self.second.pretraining
        for task, runs in self.first.by_task.items():
            yield "fine-tuned", runs, self.second.by_task[task]


Rule = Callable[[Pair], Exclusion | None]


def find_incomparability(pair: Pair) -> Exclusion | None:
    """The first reason for which two rows' scores are not comparable; None where they are."""
    for rule in RULES:
        reason = rule(pair)
        if reason is not None:
            return reason
    return None


def provenance(pair: Pair) -> str:
    """What two rows' runs of the same seeds were made with unequally, where that bars nothing."""
    texts: dict[str, None] = {}
    for stage, first, second in pair.stages_apart():
        differences = _known_differences(first, second, lambda run: run.environment)
        if differences:
            texts[f"{stage} with {_named(differences)}"] = None
    return "; ".join(texts)


# -- the rules, in the order in which they are asked --------------------------------------------


def results_are_current(pair: Pair) -> Exclusion | None:
    return Exclusion("older version", pair.outdated) if pair.outdated else None


def arms_are_pretrained(pair: Pair) -> Exclusion | None:
    """Both arms have a complete run, where something of it has to agree."""
    if not pair.has_two_arms or not pair.matched:
        return None
    absent = " and ".join(str(side.arm) for side in pair.sides if not side.pretraining)
    if not absent:
        return None
    return Exclusion("no pre-training", f"no complete pre-training run of {absent}")


def amounts_match(pair: Pair) -> Exclusion | None:
    """Two arms saw equally many tokens, or whatever `matched_by` asks for."""
    if not pair.has_two_arms:
        return None
    return next(filter(None, (_unmatched(pair, amount) for amount in pair.matched)), None)


def arms_are_of_one_version(pair: Pair) -> Exclusion | None:
    """Each arm is: that of a row beside its floor, and one that two rows have in common, too."""
    for side in pair.sides:
        reason = _several_versions(str(side.arm), "arm", side.pretraining) if side.arm else None
        if reason is not None:
            return reason
    return None


def runs_are_of_present_lines(pair: Pair) -> Exclusion | None:
    return Exclusion("edited lines", pair.edited) if pair.edited else None


def arms_are_pretrained_alike(pair: Pair) -> Exclusion | None:
    if not pair.has_two_arms:
        return None
    allowed = pair.free_keys | pair.arm_factors
    return _other_protocol("pre-trained", pair.first.pretraining, pair.second.pretraining, allowed)


def rows_are_finetuned_alike(pair: Pair) -> Exclusion | None:
    factors = set()
    for key in pair.row_factors:
        if key.split(".")[0] not in PROTOCOL:
            factors.add(key)
    allowed = pair.free_keys | factors
    for task, runs in pair.first.by_task.items():
        reason = _other_protocol("fine-tuned", runs, pair.second.by_task[task], allowed)
        if reason is not None:
            return reason
    return None


def code_is_the_same(pair: Pair) -> Exclusion | None:
    if CODE in pair.free_keys:
        return None
    for stage, first, second in pair.stages_apart():
        modules = _known_differences(first, second, lambda run: run.code)
        if modules:
            return Exclusion(
                "other code",
                f"other code: {stage} with two versions of {truncate_list(list(modules))}, and"
                " differ_in does not say code",
            )
    return None


def rows_match_their_overrides(pair: Pair) -> Exclusion | None:
    """A row's runs have the encoder of its arm, and are of one version of the row's own lines."""
    for runs_of in (attrgetter("finetuning"), attrgetter("evaluation")):
        for side in pair.sides:
            runs = runs_of(side)
            reason = _wrong_encoder(side, runs) or _several_versions(side.name, "row", runs)
            if reason is not None:
                return reason
    return None


def encoders_are_shared_as_arms_are(pair: Pair) -> Exclusion | None:
    """Two rows of one arm are about one encoder, those of two arms about two."""
    if not pair.first.arm or not pair.second.arm:
        return None
    should_share = pair.first.arm == pair.second.arm
    stand_for = "two encoders, and began from one and the same"
    if should_share:
        stand_for = "one encoder, and began from different ones"
    first, second = (_encoders((*side.finetuning, *side.evaluation)) for side in pair.sides)
    for seed, fraction in sorted(first.keys() & second.keys()):
        is_shared = first[seed, fraction] == second[seed, fraction]
        if is_shared != should_share:
            return Exclusion(
                "shared encoder", f"the rows stand for {stand_for} (pre-training seed {seed})"
            )
    return None


RULES: tuple[Rule, ...] = (
    results_are_current,
    arms_are_pretrained,
    amounts_match,
    arms_are_of_one_version,
    runs_are_of_present_lines,
    arms_are_pretrained_alike,
    rows_are_finetuned_alike,
    code_is_the_same,
    rows_match_their_overrides,
    encoders_are_shared_as_arms_are,
)


# -- what the rules ask of runs ------------------------------------------------------------------


def _unmatched(pair: Pair, amount: str) -> Exclusion | None:
    name = "training time (seconds x devices)" if amount == "training_seconds" else amount
    means = {}
    for side in pair.sides:
        means[str(side.arm)] = _mean_amount(side.pretraining, amount)
    unknown = " and ".join(arm for arm, mean in means.items() if mean is None)
    if unknown:
        return Exclusion(
            "unknown amount",
            f"{name} of pre-training not known for {unknown}, so nobody can say the arms match",
        )
    first, second = (mean or 0.0 for mean in means.values())
    if abs(first - second) <= TOLERANCE * max(first, second):
        return None
    return Exclusion(
        "unmatched amount",
        f"arms not matched: {format_count(first)} against {format_count(second)} {name} of"
        " pre-training, and matched_by in paper.yaml does not say that this is meant",
    )


def _mean_amount(runs: Runs, amount: str) -> float | None:
    """What an arm saw or took, as a mean over seeds; None where a run does not know."""
    known = [run.amounts[amount] for run in runs if amount in run.amounts]
    if not known or len(known) < len(runs):
        return None
    return fmean(known)


def _several_versions(name: str, kind: str, runs: Runs) -> Exclusion | None:
    """Runs of one arm or row that were made from several versions of its own lines."""
    versions = {tuple(sorted(run.delta.items())): run.delta for run in runs}
    if len(versions) < 2:
        return None
    differences = {}
    for key in sorted(set().union(*versions.values())):
        values = dict.fromkeys(lines.get(key, NO_VALUE) for lines in versions.values())
        if len(values) > 1:
            differences[key] = " against ".join(values)
    return Exclusion(
        "several versions",
        f"the runs of {name} were made from {len(versions)} versions of its {kind}:"
        f" {_named(differences)}",
    )


def _wrong_encoder(side: RowEvidence, runs: Runs) -> Exclusion | None:
    """Runs of a row began from the encoder of another arm than paper.yaml says."""
    foreign_runs = []
    for run in runs:
        if side.arm and run.encoder_arm not in (side.arm, None):
            foreign_runs.append(run)
    if not foreign_runs:
        return None
    example = foreign_runs[0]
    return Exclusion(
        "wrong encoder",
        f"not what it is called: paper.yaml says arm {side.arm} of the row {side.name}, and"
        f" {len(foreign_runs)} of {len(runs)} runs have the encoder of {example.encoder_arm}"
        f" (e.g. {example.place})",
    )


def _encoders(runs: Iterable[RunEvidence]) -> dict[tuple[int, float], set[str]]:
    """(pre-training seed, fraction of its steps) -> the encoders that runs began with."""
    encoders: dict[tuple[int, float], set[str]] = {}
    for run in runs:
        if run.encoder:
            pretrain_seed, _ = run.seeds
            encoders.setdefault((pretrain_seed, run.encoder_fraction), set()).add(run.encoder)
    return encoders


def _other_protocol(
    stage: str, first: Runs, second: Runs, allowed: Iterable[str]
) -> Exclusion | None:
    """What two rows' settings differ in for seeds that both have: a difference is paired."""
    allowed = list(allowed)
    differences = _differences(_settings_by_seeds(first), _settings_by_seeds(second))
    unmeant = {}
    for key, apart in differences.items():
        if not is_within(key, allowed):
            unmeant[key] = apart
    if RATE_KEYS[0] in unmeant:
        # The optimizer's rate repeats the run's own.
        unmeant.pop(RATE_KEYS[1], None)
    if not unmeant:
        return None
    return Exclusion(
        "other protocol",
        f"another protocol: {stage} with {_named(unmeant)}, which differ_in in paper.yaml does not"
        " allow for",
    )


def _settings_by_seeds(runs: Runs) -> dict[Seeds, Facts]:
    """Seeds -> settings; learning rates are all that were tried, since a row takes one of them."""
    rates = tried_rates([run.settings for run in runs if run.is_finetuning])
    by_seeds = _by_seeds(runs, attrgetter("settings"))
    return {seeds: facts | rates for seeds, facts in by_seeds.items()}


def _by_seeds(runs: Runs, facts_of: Callable[[RunEvidence], Facts]) -> dict[Seeds, dict[str, str]]:
    groups = group_by(runs, attrgetter("seeds"))
    return {seeds: join_facts(list(map(facts_of, group))) for seeds, group in groups.items()}


def _known_differences(
    first: Runs, second: Runs, facts_of: Callable[[RunEvidence], Facts]
) -> dict[str, str]:
    """What runs of two rows know of themselves and have otherwise, as `_differences` has it.

    What one does not know is no difference.
    """
    facts = [facts_of(run) for run in (*first, *second)]
    if all(run_facts == facts[0] for run_facts in facts):
        return {}
    sides = (_by_seeds(first, facts_of), _by_seeds(second, facts_of))
    return _differences(*sides, frozenset({"", NO_VALUE}))


def _differences(
    first: Mapping[Seeds, Facts],
    second: Mapping[Seeds, Facts],
    unknown: frozenset[str] = frozenset(),
) -> dict[str, str]:
    """Key -> `5.0/3.0 against none`: what two sides have otherwise for seeds that both have.

    What one side does not have is NO_VALUE; a value among the `unknown` ones is no difference.
    """
    common = sorted(first.keys() & second.keys())
    unlike: set[str] = set()
    for seeds in common:
        unlike |= keys_apart(first[seeds], second[seeds])
    differences = {}
    for key in sorted(unlike):
        ours = [first[seeds].get(key, NO_VALUE) for seeds in common]
        theirs = [second[seeds].get(key, NO_VALUE) for seeds in common]
        pairs = [pair for pair in zip(ours, theirs, strict=True) if unknown.isdisjoint(pair)]
        apart = [pair for pair in pairs if pair[0] != pair[1]]
        sides = map(dict.fromkeys, zip(*apart, strict=True))
        differences[key] = " against ".join(map("/".join, sides))
    return {key: apart for key, apart in differences.items() if apart}


def _named(differences: Mapping[str, str]) -> str:
    """`torch 2.13 against 2.11; numpy ...` of the first keys."""
    return truncate_list([f"{key} {apart}" for key, apart in differences.items()], "; ")


def keys_apart(first: Facts, second: Facts) -> set[str]:
    """The keys that only one side has, or that have two values."""
    return {key for key, _ in first.items() ^ second.items()}


def tried_rates(facts: Sequence[Facts]) -> dict[str, str]:
    """Of RATE_KEYS, the values that some runs have, as `join_facts` has them."""
    rates = {}
    for key in RATE_KEYS:
        tried = {of_run[key] for of_run in facts if key in of_run}
        if tried:
            rates[key] = "/".join(sorted(tried))
    return rates


def join_facts(facts: Sequence[Facts]) -> dict[str, str]:
    """Key -> all values that some runs have of it, between slashes."""
    if len(facts) == 1:
        return dict(facts[0])
    values: dict[str, set[str]] = {}
    for run_facts in facts:
        for key, value in run_facts.items():
            values.setdefault(key, set()).add(value)
    return {key: "/".join(sorted(seen)) for key, seen in values.items()}


def is_within(key: str, parents: Iterable[str]) -> bool:
    """Whether a dotted key is one of these, or inside one; a `*` stands for anything."""
    for parent in parents:
        if key == parent or key.startswith(f"{parent}.") or fnmatch.fnmatchcase(key, parent):
            return True
    return False
