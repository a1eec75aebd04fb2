"""What makes complete runs unequal beyond what their names and their own lines say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from clozelab.analysis.comparability import (
    NO_VALUE,
    group_by,
    is_within,
    join_facts,
)
from clozelab.analysis.contrasts import duplicate_seeds
from clozelab.analysis.schema import RATE_KEYS
from clozelab.report.wording import SHOWN, shared_encoder, some
from clozelab.results.evidence import (
    encoder_of,
    made_with,
    seeds_of,
    settings,
    treatment_factors,
)
from clozelab.results.experiment import Experiment
from clozelab.results.table import scored_run

if TYPE_CHECKING:
    from clozelab.runs.find import Runs
    from clozelab.runs.record import Record


def inconsistencies(experiment: Experiment, runs: Runs) -> list[str]:
    """A line for everything that makes complete runs unequal."""
    pretrain = [run for run in runs.pretrain if run.is_complete]
    finetune = [run for run in runs.finetune if run.is_complete]
    evaluate = [run for run in runs.evaluate if run.is_complete]
    scored = [*finetune, *evaluate]

    lines = list(_unequal_settings("pre-training runs", pretrain, experiment.free_keys))
    by_task = group_by(scored, lambda run: (run.stage, run.task))
    for (stage, task), group in sorted(by_task.items(), key=lambda item: item[0]):
        kind = "fine-tuning" if stage == "finetune" else "evaluation"
        lines += _unequal_settings(f"{kind} runs on {task}", group, experiment.free_keys)

    lines += _different_versions("pre-training", pretrain)
    lines += _different_versions("fine-tuning", finetune)
    lines += _different_versions("evaluation", evaluate)

    for row, group in group_by(scored, lambda run: run.name).items():
        lines += _encoders_of_row(row, group)
    lines += _began_too_early(pretrain, scored)
    return lines


def _different_versions(kind: str, runs: Sequence[Record]) -> list[str]:
    """What the runs of a stage were made with, where that is not the same for all."""
    # key -> version -> the first run that was made with it
    examples: dict[str, dict[str, Record]] = {}
    for run in reversed(runs):
        for key, version in made_with(run).items():
            examples.setdefault(key, {})[version] = run
    texts: list[str] = []
    for key, by_version in examples.items():
        if len(by_version) > 1:
            versions = [
                f"{version} (e.g. {run.place})" for version, run in sorted(by_version.items())
            ]
            texts.append(f"{key}: {some(versions)}")
    return [f"{kind} runs were made with different {some(texts, '; ')}"] if texts else []


def _encoders_of_row(row: str, runs: Sequence[Record]) -> Iterator[str]:
    """A pre-training seed that stands for several encoders, or an encoder for several seeds."""
    encoders: dict[tuple[int, float], set[str]] = {}
    for run in runs:
        encoder = encoder_of(run)
        if encoder:
            key = (run.pretrain_seed, run.config.get("encoder_fraction", 1.0))
            encoders.setdefault(key, set()).add(encoder)
    for (seed, _), used in encoders.items():
        if len(used) > 1:
            yield (
                f"{row}, pre-training seed {seed}: its runs began with {len(used)} different"
                " encoders"
            )
    seeds = duplicate_seeds(scored_run(run) for run in runs)
    if seeds:
        yield f"{row}: {shared_encoder(seeds)}"


def _began_too_early(pretrain: Sequence[Record], scored: Sequence[Record]) -> Iterator[str]:
    """Runs that began from an encoder before its training ended."""
    finished = {(run.name, run.seed): run.finished or "" for run in pretrain}
    for run in scored:
        arm = str(run.config.get("encoder_arm"))
        is_last = float(run.config.get("encoder_fraction", 1.0)) == 1.0
        if not encoder_of(run) or not is_last:
            continue
        if finished.get((arm, run.pretrain_seed), "") > run.started:
            yield (
                f"{run.place}: began before {arm} seed {run.pretrain_seed} was trained to its end"
                " (anew since?)"
            )


def _unequal_settings(
    kind: str, runs: Sequence[Record], free_keys: frozenset[str]
) -> Iterator[str]:
    """A line for each setting that is not the same in all runs.

    One that sets an arm or row apart has to be the same in all of its own runs.
    """
    by_name = group_by(runs, lambda run: run.name)
    own_keys: dict[str, frozenset[str]] = {}
    for name, group in by_name.items():
        factors = [treatment_factors(group, others) for others in by_name.values()]
        own_keys[name] = free_keys.union(*factors)
    compared = {run.folder: _settings_to_compare(run, by_name[run.name]) for run in runs}
    keys: set[str] = set().union(*compared.values())

    # (key, its owner or nobody) -> value -> runs
    values: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for key in sorted(keys):
        for run in runs:
            owner = run.name if is_within(key, own_keys[run.name]) else ""
            value = compared[run.folder].get(key, NO_VALUE)
            values.setdefault((key, owner), {}).setdefault(value, []).append(run)
    unequal = {where: by_value for where, by_value in values.items() if len(by_value) > 1}
    for (key, owner), by_value in unequal.items():
        of_owner = f" of {owner}" if owner else ""
        yield f"{kind}{of_owner} differ in {key}: {_values(by_value)}"


def _settings_to_compare(run: Record, group: Sequence[Record]) -> dict[str, str]:
    """A run's settings, and what its encoder decides for it, which no setting says."""
    same_seeds = [other for other in group if seeds_of(other) == seeds_of(run)]
    known = settings(run)
    if len(same_seeds) > 1:
        # A row takes one of the learning rates that were tried for all its seeds.
        tuned = [settings(other) for other in same_seeds if other.stage == "finetune"]
        rates = join_facts(tuned)
        known |= {key: rates[key] for key in RATE_KEYS if key in rates}
    data = run.facts.get("data") or {}
    if data.get("max_seq_length"):
        known["the length that texts are cut to"] = f"{data['max_seq_length']} tokens"
    if data.get("token_types"):
        known["the token types of a pair"] = str(data["token_types"])
    return known


def _values(by_value: Mapping[str, Sequence[Record]]) -> str:
    """The first values with their runs; those that lack it come last."""
    ordered = sorted(by_value.items(), key=lambda item: item[0] == NO_VALUE)
    texts: list[str] = []
    for value, runs in ordered[:SHOWN]:
        example = runs[0]
        texts.append(f"{value} ({len(runs)} runs, e.g. {example.name} seed {example.seeds})")
    return ", ".join(texts)
