"""What was declared before an experiment's first run: claims, arms, rows, seeds and the stopping
rule, with a date.

`clozelab register` writes it beside the runs, as text with its own hash, to be committed or sent
away. The report says whether it came before the first run, and what has been changed since. Who
registers other content adds to the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from claims.text.phrases import join_list
from clozelab.config import GIVEN
from clozelab.files.digests import digest
from clozelab.results.experiment import Experiment
from clozelab.runs.archive import REGISTRATION_FILE
from clozelab.runs.find import Runs
from clozelab.runs.identity import identity_of
from clozelab.runs.record import JobName, Record, now, write_json
from clozelab.text.plain import JsonObject, PlainDict, PlainMapping, ReadOnlyJson, read_json

# of settings that were registered and are not run
MOST_SHOWN = 3
PRETRAINING = "pre-training"
FINETUNING = "fine-tuning"
NAMES = ("experiment", "arm", "row", "seed", "pretrain_seed", "encoder", "runs_dir", "run_dir")
"""Of a configuration, what names a run and is registered apart, or is a place."""


class Registration(NamedTuple):
    """One registration: when, the hash of its content, the content."""

    date: str
    hash: str
    content: JsonObject


# -- what is declared ------------------------------------------------------------------------------


def declared(
    experiment: Experiment, seeds: Mapping[str, Iterable[int]], settings: ReadOnlyJson
) -> PlainDict:
    """The content of a registration: kind -> name -> what is declared of it.

    Args:
        seeds: of pre-training and of fine-tuning.
        settings: what `settings_of` names -> the hashes of all its settings.
    """
    file = experiment.model_dump(
        mode="json", by_alias=True, exclude_defaults=True, exclude={"folder", "sweeps"}
    )
    claim_names = [claim.id or claim.text for claim in experiment.claims]
    claims = dict(zip(claim_names, file.pop("claims", []), strict=True))
    primary = []
    for name, entry in claims.items():
        if entry.get("primary") is True:
            primary.append(name)
    content: PlainDict = {"claim": claims, "order of primary claims": {"": primary}}
    content["row"] = {entry["row"]: entry for entry in file.pop("rows", [])}
    content["column"] = {entry["name"]: entry for entry in file.pop("columns", [])}
    content["arm"] = file.pop("arms", {})
    content["settings of"] = {name: " ".join(sorted(hashes)) for name, hashes in settings.items()}
    content["stopping rule"] = {"": file.pop("stopping", None)}
    # The keys of paper.yaml that are left.
    content["key"] = file
    if experiment.stopping:
        seeds = {**seeds, PRETRAINING: range(1, experiment.stopping.most + 1)}
    content["seeds"] = {stage: sorted(stage_seeds) for stage, stage_seeds in seeds.items()}
    # As it is read back: JSON knows no tuples.
    return json.loads(json.dumps(content))


def settings_of(config: PlainMapping) -> tuple[str, str]:
    """(arm, or row and task, of a recorded configuration; hash of all settings but its seeds, names
    and places).
    """
    job = JobName.from_config(config)
    identity = identity_of(config)
    settings = {}
    for key, value in identity.items():
        if key.split(".")[0] not in NAMES:
            settings[key] = value
    name = f"{job.name} on {job.task}" if job.task else f"arm {job.name}"
    return name, digest(settings)[:16]


def changed(before: ReadOnlyJson, after: ReadOnlyJson) -> list[str]:
    """What of a declaration is another one, in words.

    Of a kind that the older declaration does not know there is nothing to say.
    """
    changes = []
    for kind, entries in after.items():
        if kind != "seeds" and kind in before:
            changes += _changed_entries(kind, before[kind], entries)
    for stage, seeds in after["seeds"].items():
        registered_seeds = before.get("seeds", {}).get(stage, ())
        added = sorted(set(seeds) - set(registered_seeds))
        if added:
            changes.append(f"{_named_seeds(stage, added)} added")
    return changes


def _changed_entries(kind: str, before: PlainMapping, after: PlainMapping) -> list[str]:
    changes = []
    for name in dict.fromkeys([*before, *after]):
        old: Any = before.get(name)
        new: Any = after.get(name)
        if old == new:
            continue
        # More is known of the same inputs than to an older version; a further task has its column.
        if (kind, name) == ("key", GIVEN) and old and new and old.items() <= new.items():
            continue
        change = "changed"
        if name not in after:
            change = "taken away"
        elif name not in before:
            change = "added"
        changes.append(f"{f'{kind} {name}'.strip()} {change}")
    return changes


def _named_seeds(stage: str, seeds: Sequence[int]) -> str:
    """`pre-training seed 3`, `fine-tuning seeds 1 and 2`."""
    plural = "s" if len(seeds) > 1 else ""
    return f"{stage} seed{plural} {join_list(map(str, seeds))}"


# -- the file --------------------------------------------------------------------------------------


def read_registration(root: Path) -> list[Registration]:
    """The registrations of an experiment's runs, the first one first; none where there is no file.

    ValueError: it cannot be read, or does not say what its hash is of.
    """
    path = root / REGISTRATION_FILE
    if not path.is_file():
        return []
    try:
        content = read_json(path)
        entries = [Registration(**entry) for entry in content["registrations"]]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path} is no registration that can be read ({error}); bring the file back"
        ) from error
    for entry in entries:
        if digest([entry.date, entry.content]) != entry.hash:
            raise ValueError(
                f"{path}: the registration of {entry.date[:10]} was edited, since it does not fit"
                " its hash"
            )
    return entries


def register(root: Path, content: PlainDict, *, again: bool) -> tuple[Registration, bool]:
    """Write a registration below `root`.

    Returns it, or the last one if that says the same, and whether it is new. ValueError: one with
    other content is there, and `again` does not say that this is meant.
    """
    entries = read_registration(root)
    if entries and entries[-1].content == content:
        return entries[-1], False
    if entries and not again:
        last = entries[-1]
        changes = join_list(
            changed(last.content, content) or ["fewer seeds, or more of the inputs"]
        )
        raise ValueError(
            f"{root / REGISTRATION_FILE} of {last.date[:10]} differs ({changes}); --again"
            " keeps it and adds what is declared now"
        )
    date = now()
    entry = Registration(date, digest([date, content]), content)
    root.mkdir(parents=True, exist_ok=True)
    registrations = [known._asdict() for known in (*entries, entry)]
    write_json(root / REGISTRATION_FILE, {"registrations": registrations})
    return entry, True


# -- what a report says of it ----------------------------------------------------------------------


def registration_summary(experiment: Experiment | None, runs: Runs) -> str:
    """What a report says of the registration of these runs; empty where there is none.

    Without an experiment nothing is known of what is declared now.
    """
    try:
        entries = read_registration(runs.root)
    except ValueError as error:
        return str(error)
    if not entries:
        return ""
    # A shared run did not begin here.
    started = sorted(run.started for run in runs.runs if run.shared is None)
    # What counts is the last one before the first run, or the first one where runs came before it.
    before = [entry for entry in entries if not started or entry.date <= started[0]]
    entry = before[-1] if before else entries[0]
    phrases = [_when_registered(entry, started)]
    if experiment is None:
        phrases.append("what was changed since is in the report of the experiment")
    else:
        phrases += _differences_from_registration(entry, experiment, runs)
    later = [known.date[:10] for known in entries if known.date > entry.date]
    if later:
        phrases.append(f"registered again on {join_list(later)}")
    return "; ".join(phrases)


def _when_registered(entry: Registration, started: Sequence[str]) -> str:
    """`started`: when the runs made here began, the first one first."""
    text = f"registered on {entry.date[:10]} ({entry.hash[:12]})"
    num_early = sum(time < entry.date for time in started)
    if not num_early:
        return f"{text} before its first run"
    return (
        f"{text}, after {num_early} of {len(started)} runs had begun (the first on"
        f" {started[0][:10]})"
    )


def _differences_from_registration(
    entry: Registration, experiment: Experiment, runs: Runs
) -> Iterator[str]:
    """What is declared or run now and was not registered so, and what has no run yet."""
    seeds = {
        PRETRAINING: {run.pretrain_seed for run in runs.runs},
        FINETUNING: {run.seed for run in runs.finetune},
    }
    registered = {
        name: set(str(hashes).split()) for name, hashes in entry.content["settings of"].items()
    }
    finished = _finished_settings(runs.runs)
    # A setting that no run has yet is as it was registered.
    settings = dict(registered)
    for name, hashes in finished.items():
        settings[name] = hashes | registered.get(name, set())
    present = declared(experiment, seeds, settings)
    # A stopping rule declares its seeds, but only those of runs can have been added.
    present["seeds"] = {stage: sorted(stage_seeds) for stage, stage_seeds in seeds.items()}
    changes = changed(entry.content, present)
    yield f"since then {join_list(changes)}" if changes else "nothing of it was changed"
    for stage, missing_seeds in _missing_seeds(entry, experiment, seeds).items():
        if missing_seeds:
            yield f"no run yet of {_named_seeds(stage, missing_seeds)}"
    names = []
    if finished:
        names = [
            name for name in sorted(registered) if registered[name] - finished.get(name, set())
        ]
    if len(names) > MOST_SHOWN:
        names = [*names[:MOST_SHOWN], f"{len(names) - MOST_SHOWN} more"]
    if names:
        yield f"no run yet of a registered setting of {join_list(names)}"


def _finished_settings(runs: Iterable[Record]) -> dict[str, set[str]]:
    """Arm, or row and task -> the hashes of its complete runs' settings."""
    settings: dict[str, set[str]] = {}
    for run in runs:
        if run.is_complete:
            name, settings_hash = settings_of(run.config)
            settings.setdefault(name, set()).add(settings_hash)
    return settings


def _missing_seeds(
    entry: Registration, experiment: Experiment, seeds: Mapping[str, Set[int]]
) -> dict[str, list[int]]:
    """Stage -> registered seeds that no run has."""
    missing: dict[str, list[int]] = {}
    for stage, run_seeds in seeds.items():
        registered = entry.content["seeds"].get(stage, ())
        may_stop = experiment.stopping is not None and stage == PRETRAINING
        if may_stop or not run_seeds:
            # A stopping rule may need none later than the last one; nor does a stage without runs.
            last = max(run_seeds, default=0)
            registered = [seed for seed in registered if seed < last]
        missing[stage] = [seed for seed in registered if seed not in run_seeds]
    return missing
