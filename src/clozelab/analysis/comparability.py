"""Whether the runs of two rows may be compared: a list of rules, each asking one thing.

Were they made in the same way, apart from what they are about? What that is, `Pair` says: the
settings that the arms' and rows' own lines set differently, and those that paper.yaml leaves free.
Arms must have seen as much as `matched_by` asks for. How a row is fine-tuned is no row's subject
unless `differ_in` says so.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeVar

from clozelab.analysis.reasons import (
    DifferentCode,
    DifferentProtocol,
    Incomparability,
    NoPretraining,
    OutdatedRuns,
    ProvenanceDifference,
    SettingDifference,
    SeveralVersions,
    SharedEncoder,
    Stage,
    UnknownAmount,
    UnmatchedAmount,
    WrongEncoder,
)
from clozelab.analysis.schema import RATE_KEYS
from clozelab.analysis.statistics import Seeds

T = TypeVar("T")
K = TypeVar("K")

# how far amounts of two arms may be apart, as a share of the larger one
TOLERANCE = 0.02
# what `differ_in` says where rows may be of other versions of the code
CODE = "code"
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
NO_VALUE = "none"

Facts = Mapping[str, str]


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
    amounts: Mapping[str, float] = field(default_factory=dict)


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
    # why an arm or a row has no run that may be compared, though it has some
    outdated: OutdatedRuns | None = None

    @property
    def sides(self) -> tuple[RowEvidence, RowEvidence]:
        return self.first, self.second

    @property
    def has_two_arms(self) -> bool:
        return bool(self.first.arm and self.second.arm and self.first.arm != self.second.arm)

    def stages_apart(self) -> Iterator[tuple[Stage, Runs, Runs]]:
        """(stage, runs, runs) of all that two rows' scores come from apart from each other."""
        if self.has_two_arms:
            yield Stage.PRETRAINED, self.first.pretraining, self.second.pretraining
        for task, runs in self.first.by_task.items():
            yield Stage.FINETUNED, runs, self.second.by_task[task]


Rule = Callable[[Pair], Incomparability | None]


def find_incomparability(pair: Pair) -> Incomparability | None:
    """The first reason for which two rows' scores are not comparable; None where they are."""
    for rule in RULES:
        reason = rule(pair)
        if reason is not None:
            return reason
    return None


def provenance_differences(pair: Pair) -> tuple[ProvenanceDifference, ...]:
    """What two rows' runs of the same seeds were made with unequally, where that bars nothing."""
    found: list[ProvenanceDifference] = []
    for stage, first, second in pair.stages_apart():
        differences = _known_differences(first, second, lambda run: run.environment)
        if differences:
            found.append(ProvenanceDifference(stage, differences))
    return tuple(dict.fromkeys(found))


# -- the rules, in the order in which they are asked --------------------------------------------


def results_are_current(pair: Pair) -> OutdatedRuns | None:
    return pair.outdated


def arms_are_pretrained(pair: Pair) -> NoPretraining | None:
    """Both arms have a complete run, where something of it has to agree."""
    if not pair.has_two_arms or not pair.matched:
        return None
    absent = [str(side.arm) for side in pair.sides if not side.pretraining]
    return NoPretraining(tuple(absent)) if absent else None


def amounts_match(pair: Pair) -> UnknownAmount | UnmatchedAmount | None:
    """Two arms saw equally many tokens, or whatever `matched_by` asks for."""
    if not pair.has_two_arms:
        return None
    for amount in pair.matched:
        means = [_mean_amount(side.pretraining, amount) for side in pair.sides]
        unknown = [
            str(side.arm) for side, mean in zip(pair.sides, means, strict=True) if mean is None
        ]
        if unknown:
            return UnknownAmount(amount, tuple(unknown))
        first, second = (mean or 0.0 for mean in means)
        if abs(first - second) > TOLERANCE * max(first, second):
            return UnmatchedAmount(amount, first, second)
    return None


def arms_are_of_one_version(pair: Pair) -> SeveralVersions | None:
    if not pair.has_two_arms:
        return None
    for side in pair.sides:
        versions = _num_versions(side.pretraining)
        if versions > 1:
            return SeveralVersions(is_arm=True, name=str(side.arm), count=versions)
    return None


def arms_are_pretrained_alike(pair: Pair) -> DifferentProtocol | None:
    if not pair.has_two_arms:
        return None
    allowed = pair.free_keys | pair.arm_factors
    return _protocol_difference(
        Stage.PRETRAINED, pair.first.pretraining, pair.second.pretraining, allowed
    )


def rows_are_finetuned_alike(pair: Pair) -> DifferentProtocol | None:
    factors = {key for key in pair.row_factors if key.split(".")[0] not in PROTOCOL}
    allowed = pair.free_keys | factors
    for task, runs in pair.first.by_task.items():
        reason = _protocol_difference(Stage.FINETUNED, runs, pair.second.by_task[task], allowed)
        if reason is not None:
            return reason
    return None


def code_is_the_same(pair: Pair) -> DifferentCode | None:
    if CODE in pair.free_keys:
        return None
    for stage, first, second in pair.stages_apart():
        differences = _known_differences(first, second, lambda run: run.code)
        if differences:
            return DifferentCode(stage, tuple(difference.key for difference in differences))
    return None


def rows_are_what_they_are_called(pair: Pair) -> WrongEncoder | SeveralVersions | None:
    """A row's runs have the encoder of its arm, and are of one version of the row's own lines."""
    for runs_of in (lambda side: side.finetuning, lambda side: side.evaluation):
        for side in pair.sides:
            runs = runs_of(side)
            reason = _wrong_encoder(side, runs)
            if reason is not None:
                return reason
            versions = _num_versions(runs)
            if versions > 1:
                return SeveralVersions(is_arm=False, name=side.name, count=versions)
    return None


def encoders_are_shared_as_arms_are(pair: Pair) -> SharedEncoder | None:
    """Two rows of one arm are about one encoder, those of two arms about two."""
    if not pair.first.arm or not pair.second.arm:
        return None
    should_share = pair.first.arm == pair.second.arm
    first, second = (_encoders((*side.finetuning, *side.evaluation)) for side in pair.sides)
    for seed, fraction in sorted(first.keys() & second.keys()):
        is_shared = first[seed, fraction] == second[seed, fraction]
        if is_shared != should_share:
            return SharedEncoder(should_share, seed)
    return None


RULES: tuple[Rule, ...] = (
    results_are_current,
    arms_are_pretrained,
    amounts_match,
    arms_are_of_one_version,
    arms_are_pretrained_alike,
    rows_are_finetuned_alike,
    code_is_the_same,
    rows_are_what_they_are_called,
    encoders_are_shared_as_arms_are,
)


# -- what the rules ask of runs ------------------------------------------------------------------


def _mean_amount(runs: Runs, amount: str) -> float | None:
    """What an arm saw or took, as a mean over seeds; None where a run does not know."""
    known = [run.amounts[amount] for run in runs if amount in run.amounts]
    if not known or len(known) < len(runs):
        return None
    return fmean(known)


def _num_versions(runs: Runs) -> int:
    return len({tuple(sorted(run.delta.items())) for run in runs})


def _wrong_encoder(side: RowEvidence, runs: Runs) -> WrongEncoder | None:
    if not side.arm:
        return None
    strangers = [run for run in runs if run.encoder_arm not in (side.arm, None)]
    if not strangers:
        return None
    example = strangers[0]
    return WrongEncoder(
        row=side.name,
        arm=side.arm,
        count=len(strangers),
        num_runs=len(runs),
        actual_arm=str(example.encoder_arm),
        example=example.place,
    )


def _encoders(runs: Iterable[RunEvidence]) -> dict[tuple[int, float], set[str]]:
    """(pre-training seed, fraction of its steps) -> the encoders that runs began with."""
    encoders: dict[tuple[int, float], set[str]] = {}
    for run in runs:
        if run.encoder:
            pretrain_seed, _ = run.seeds
            encoders.setdefault((pretrain_seed, run.encoder_fraction), set()).add(run.encoder)
    return encoders


def _protocol_difference(
    stage: Stage, first: Runs, second: Runs, allowed: Iterable[str]
) -> DifferentProtocol | None:
    """What two rows' settings differ in for seeds that both have: a difference is paired."""
    allowed = list(allowed)
    differences = [
        difference
        for difference in _differences(_settings_by_seeds(first), _settings_by_seeds(second))
        if not is_within(difference.key, allowed)
    ]
    keys = {difference.key for difference in differences}
    if RATE_KEYS[0] in keys:
        # The optimizer's rate repeats the run's own.
        differences = [one for one in differences if one.key != RATE_KEYS[1]]
    if not differences:
        return None
    return DifferentProtocol(stage, tuple(differences))


def _settings_by_seeds(runs: Runs) -> dict[Seeds, Facts]:
    """Seeds -> settings; learning rates are all that were tried, since a row takes one of them."""
    tuned = join_facts([run.settings for run in runs if run.is_finetuning])
    rates = {key: tuned[key] for key in RATE_KEYS if key in tuned}
    by_seeds: dict[Seeds, Facts] = {}
    for seeds, group in group_by(runs, lambda run: run.seeds).items():
        by_seeds[seeds] = join_facts([run.settings for run in group]) | rates
    return by_seeds


def _known_differences(
    first: Runs, second: Runs, facts_of: Callable[[RunEvidence], Facts]
) -> tuple[SettingDifference, ...]:
    """What runs of two rows know of themselves and have otherwise.

    What one does not know is no difference.
    """
    different = {tuple(sorted(facts_of(run).items())) for run in (*first, *second)}
    if len(different) < 2:
        return ()
    sides: list[dict[Seeds, Facts]] = []
    for runs in (first, second):
        groups = group_by(runs, lambda run: run.seeds)
        sides.append({key: join_facts(list(map(facts_of, group))) for key, group in groups.items()})
    return tuple(_differences(*sides, skips_unknown=True))


def _differences(
    first: Mapping[Seeds, Facts], second: Mapping[Seeds, Facts], *, skips_unknown: bool = False
) -> list[SettingDifference]:
    """Keys in which two sides differ for seeds that both have, by name.

    What one side does not know is NO_VALUE, or with `skips_unknown` no difference.
    """
    values: dict[str, list[tuple[str, str]]] = {}
    for seeds in sorted(first.keys() & second.keys()):
        ours = first[seeds]
        theirs = second[seeds]
        for key in ours.keys() | theirs.keys():
            if skips_unknown and not (ours.get(key) and theirs.get(key)):
                continue
            pair = (ours.get(key, NO_VALUE), theirs.get(key, NO_VALUE))
            if pair[0] != pair[1]:
                values.setdefault(key, []).append(pair)
    differences: list[SettingDifference] = []
    for key in sorted(values):
        ours_seen = tuple(dict.fromkeys(pair[0] for pair in values[key]))
        theirs_seen = tuple(dict.fromkeys(pair[1] for pair in values[key]))
        differences.append(SettingDifference(key, ours_seen, theirs_seen))
    return differences


def join_facts(facts: Sequence[Facts]) -> dict[str, str]:
    """Key -> all values that some runs have of it, between slashes."""
    values: dict[str, set[str]] = {}
    for run_facts in facts:
        for key, value in run_facts.items():
            values.setdefault(key, set()).add(value)
    return {key: "/".join(sorted(seen)) for key, seen in values.items()}


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """What `key` makes of an item -> its items, in their order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def is_within(key: str, parents: Iterable[str]) -> bool:
    """Whether a dotted key is one of these, or inside one; a `*` stands for anything."""
    for parent in parents:
        if key == parent or key.startswith(f"{parent}.") or fnmatch.fnmatchcase(key, parent):
            return True
    return False
