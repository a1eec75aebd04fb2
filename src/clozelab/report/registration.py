"""What was declared before an experiment's first run: claims, arms, rows, seeds and the stopping
rule, with a date.

`clozelab register` writes it beside the runs, as text with its own hash, to be committed or sent
away. The report says whether it came before the first run, and what has been changed since. Who
registers other content adds to the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clozelab.corpus.files import digest
from clozelab.results.experiment import Experiment
from clozelab.runs.identity import identity_of
from clozelab.runs.record import JobName, grouped, now, write_json
from clozelab.text.formatting import listed

if TYPE_CHECKING:
    from clozelab.runs.find import Runs

MOST_SHOWN = 3  # of what was registered and is not run
REGISTRATION_FILE = "registration.json"
NAMES = ("experiment", "arm", "row", "seed", "pretrain_seed", "encoder", "runs_dir", "run_dir")
"""Of a configuration, what names a run and is registered apart, or is a place."""


class Entry(NamedTuple):
    """One registration: when, the hash of its content, the content."""

    date: str
    hash: str
    content: dict[str, Any]


def declared(
    experiment: Experiment, seeds: Mapping[str, Iterable[int]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """What a registration says: seeds of pre-training and fine-tuning, `settings_of` every arm and
    row.
    """
    said = experiment.model_dump(
        mode="json", by_alias=True, exclude_defaults=True, exclude={"folder", "sweeps"}
    )
    names = [one.id or one.text for one in experiment.claims]
    claims = dict(zip(names, said.pop("claims", []), strict=True))
    named = {
        "claim": claims,
        "order of primary claims": {
            "": [name for name, entry in claims.items() if entry.get("primary")]
        },
        "row": {one["row"]: one for one in said.pop("rows", [])},
        "column": {one["name"]: one for one in said.pop("columns", [])},
        "arm": said.pop("arms", {}),
        "settings of": {name: " ".join(sorted(hashes)) for name, hashes in settings.items()},
        "stopping rule": {"": said.pop("stopping", None)},
        "key": said,
    }
    if experiment.stopping:
        seeds = {**seeds, "pre-training": range(1, experiment.stopping.most + 1)}
    return json.loads(
        json.dumps(named | {"seeds": {kind: sorted(known) for kind, known in seeds.items()}})
    )


def settings_of(config: Mapping[str, Any]) -> tuple[str, str]:
    """(arm, or row and task, of a recorded configuration; hash of all settings but its seeds, names
    and places).
    """
    name = JobName.of(config)
    kept = {key: one for key, one in identity_of(config).items() if key.split(".")[0] not in NAMES}
    return f"{name.name} on {name.task}" if name.task else f"arm {name.name}", digest(kept)[:16]


def read_registration(root: Path) -> list[Entry]:
    """The registrations of an experiment's runs, the first one first; none where there is no file.

    ValueError: it cannot be read, or does not say what its hash is of."""
    path = root / REGISTRATION_FILE
    if not path.is_file():
        return []
    try:
        found = [
            Entry(**one) for one in json.loads(path.read_text(encoding="utf-8"))["registrations"]
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path} is no registration that can be read ({error}); bring the file back"
        ) from error
    if wrong := next((one for one in found if digest([one.date, one.content]) != one.hash), None):
        raise ValueError(
            f"{path}: the registration of {wrong.date[:10]} was edited, since it does not fit its"
            " hash"
        )
    return found


def register(root: Path, content: dict[str, Any], *, again: bool) -> tuple[Entry, bool]:
    """Write a registration below `root`; (it, or the last one if that says the same; whether it is
    new).

    ValueError: one with other content is there, and `again` does not say that this is meant."""
    known = read_registration(root)
    if known and known[-1].content == content:
        return known[-1], False
    if known and not again:
        other = listed(changed(known[-1].content, content) or ["fewer seeds"])
        said = f"{root / REGISTRATION_FILE} of {known[-1].date[:10]} says otherwise ({other})"
        raise ValueError(f"{said}; --again keeps it and adds what is declared now")
    date = now()
    entry = Entry(date, digest([date, content]), content)
    root.mkdir(parents=True, exist_ok=True)
    write_json(
        root / REGISTRATION_FILE, {"registrations": [one._asdict() for one in (*known, entry)]}
    )
    return entry, True


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What of a declaration is another one, in words; of a kind that the older one does not know
    nothing.
    """
    said = []
    for kind in (kind for kind in after if kind != "seeds" and kind in before):
        old, new = before[kind], after[kind]
        for name in dict.fromkeys([*old, *new]):
            if old.get(name) != new.get(name):
                how = (
                    "changed"
                    if name in old and name in new
                    else "added"
                    if name in new
                    else "taken away"
                )
                said.append(f"{kind} {name}".strip() + f" {how}")
    for kind, seeds in after["seeds"].items():
        more = sorted(set(seeds) - set(before.get("seeds", {}).get(kind, ())))
        said += (
            [f"{kind} seed{'s' * (len(more) > 1)} {listed(map(str, more))} added"] if more else []
        )
    return said


def said_of(experiment: Experiment, runs: Runs) -> str:
    """What a report says of the registration of these runs; empty where there is none."""
    try:
        known = read_registration(runs.root)
    except ValueError as error:
        return str(error)
    if not known:
        return ""
    own = [run for run in runs.runs if run.shared is None]  # a shared one did not begin here
    began = min((run.started for run in own if run.started), default="")
    before = [
        one
        for one in known
        if not began or datetime.fromisoformat(one.date) <= datetime.fromisoformat(began)
    ]
    entry = before[-1] if before else known[0]
    said = f"registered on {entry.date[:10]} ({entry.hash[:12]})"
    if before:
        said += " before its first run"
    else:
        early = sum(run.started < entry.date for run in own)
        said += f", after {early} of {len(own)} runs had begun (the first on {began[:10]})"
    made = grouped(
        (settings_of(run.config) for run in runs.runs if run.is_complete), lambda one: one[0]
    )
    known_settings = {
        name: {*str(hashes).split()} for name, hashes in entry.content["settings of"].items()
    }
    settings = {
        name: known_settings.get(name, set()) | {hash for _, hash in found}
        for name, found in made.items()
    }
    seeds = {
        "pre-training": {run.pretrain_seed for run in runs.runs},
        "fine-tuning": {run.seed for run in runs.finetune},
    }
    # A setting that no run has yet is as it was registered.
    present = declared(experiment, seeds, known_settings | settings)
    present["seeds"] = {kind: sorted(found) for kind, found in seeds.items()}
    changes = changed(entry.content, present)
    said += f"; since then {listed(changes)}" if changes else "; nothing of it was changed"
    for kind, found in seeds.items():
        may_stop = experiment.stopping and kind == "pre-training"  # a rule may need no later one
        last = max(found, default=0) if may_stop or not found else math.inf
        lacking = [
            one for one in entry.content["seeds"].get(kind, ()) if one not in found and one < last
        ]
        said += f"; no run yet of {kind} seed {listed(map(str, lacking))}" if lacking else ""
    unrun = sorted(
        name
        for name, one in known_settings.items()
        if one - {hash for _, hash in made.get(name, ())}
    )
    shown = (
        unrun
        if len(unrun) <= MOST_SHOWN
        else [*unrun[:MOST_SHOWN], f"{len(unrun) - MOST_SHOWN} more"]
    )
    said += f"; no run yet of a registered setting of {listed(shown)}" if unrun and made else ""
    later = [one.date[:10] for one in known if one.date > entry.date]
    return said + (f"; registered again on {listed(later)}" if later else "")
