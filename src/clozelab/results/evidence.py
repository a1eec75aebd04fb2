"""How runs were made, as comparability asks: from records to evidence on two rows.

Two arms or rows are about what their own lines say differently, as the runs recorded it, with the
settings that the configuration derives from those, and about what `differ_in` lists. The rules
that decide are in analysis/comparability.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from clozelab.analysis.comparability import (
    RunEvidence,
    is_within,
)
from clozelab.analysis.statistics import Seeds
from clozelab.results.experiment import STEP_KEYS, read_yaml
from clozelab.runs.identity import CONDITIONAL_KEYS, flatten, identity_of
from clozelab.schema import LAYOUT, NEUTRAL, meaning_of
from clozelab.text.paths import CONF_DIR

if TYPE_CHECKING:
    from clozelab.runs.record import Record

# what runs are called by
NAMES = ("experiment", "arm", "row", "encoder_arm", "pretrain_seed", "seed", "encoder_fraction")
MAY_DIFFER = (
    *NAMES[:-1],
    "predict_test",
    *(key for key, condition in CONDITIONAL_KEYS.items() if condition == "predict_test"),
)
REFERENCE = re.compile(r"\$\{([A-Za-z_.][\w.]*)\}")
NO_LINE = "(nothing)"


def seeds_of(run: Record) -> Seeds:
    return (run.seed, 0) if run.stage == "pretrain" else (run.pretrain_seed, run.seed)


def encoder_of(run: Record) -> str | None:
    """Checksum of the weights that a run began with; None where they were fresh or nothing is
    recorded.
    """
    if run.config.get("initialisation") != "pretrained":
        return None
    return run.inputs.get("encoder")


# -- one run ---------------------------------------------------------------------------------------


def evidence_of(run: Record) -> RunEvidence:
    delta = {key: str(value) for key, value in delta_of(run).items()}
    encoder_arm = run.config.get("encoder_arm")
    if encoder_arm is not None:
        encoder_arm = str(encoder_arm)
    encoder_fraction = run.config.get("encoder_fraction", 1.0)
    return RunEvidence(
        place=str(run.place),
        is_finetuning=run.stage == "finetune",
        seeds=seeds_of(run),
        settings=settings(run),
        code=of_all_sessions("modules", run),
        environment=made_with(run),
        delta=delta,
        encoder=encoder_of(run),
        encoder_arm=encoder_arm,
        encoder_fraction=encoder_fraction,
        amounts=_amounts(run),
    )


def settings(run: Record) -> dict[str, str]:
    """Dotted key -> value of all that should be equal in compared runs.

    Precision is among it, and a machine's layout is not.
    """
    values = {key: value for key, value in identity_of(run.config).items() if _counts(key)}
    files = "corpus" if run.stage == "pretrain" else "task_files"
    if files in run.inputs:
        values[f"input {files}"] = run.inputs[files][:12]
    if "precision" in run.facts:
        values["precision"] = run.facts["precision"]
    as_text = {key: str(value) for key, value in values.items()}
    return as_text | {"results_version": str(run.results_version)}


@cache
def _counts(key: str) -> bool:
    return not is_within(key, MAY_DIFFER) and meaning_of(key) not in (NEUTRAL, LAYOUT)


def made_with(run: Record) -> dict[str, str]:
    """Versions of what a run was made with, and of the code."""
    return of_all_sessions("environment", run) | of_all_sessions("modules", run)


def of_all_sessions(field: str, run: Record) -> dict[str, str]:
    """What all sessions of a run were made with.

    A run that went on under other code is of two versions: "a1/b2".
    """
    sessions = [session.get(field) or {} for session in run.earlier_sessions]
    sessions.append(getattr(run, field))
    versions: dict[str, str] = {}
    for key in sessions[-1]:
        seen = dict.fromkeys(session[key] for session in sessions if key in session)
        versions[key] = "/".join(seen)
    return versions


def delta_of(run: Record) -> Mapping[str, Any]:
    """What the lines of a run's arm or row say."""
    return run.arm_delta if run.stage == "pretrain" else run.row_delta


def _amounts(run: Record) -> dict[str, float]:
    """Numbers that a run knows of itself; time is of all its devices together."""
    amounts: dict[str, float] = {}
    for key, value in run.facts.items():
        if isinstance(value, int | float):
            amounts[key] = float(value)
    if "training_seconds" in amounts:
        amounts["training_seconds"] *= run.facts.get("world_size", 1)
    return amounts


# -- two rows --------------------------------------------------------------------------------------


def treatment_factors(first: Sequence[Record], second: Sequence[Record]) -> frozenset[str]:
    """The settings that two arms' (or rows') own lines set differently.

    What refers to one of them is among them, as is what the configuration derives from them.
    """
    if not first or not second:
        return frozenset()
    run, other = first[0], second[0]
    lines = {key: str(value) for key, value in delta_of(run).items()}
    other_lines = {key: str(value) for key, value in delta_of(other).items()}
    factors: set[str] = set()
    for key in lines.keys() | other_lines.keys():
        if lines.get(key, NO_LINE) == other_lines.get(key, NO_LINE):
            continue
        if key.startswith("/"):
            factors |= _choices_apart(key.removeprefix("/"), run, other)
        else:
            factors.add(key)

    references = dict(derived_settings())
    for key, text in lines.items():
        if other_lines.get(key) == text:
            references[key] = _references_in(key, text)
    factors = _with_all_that_refer(factors, references)
    if any(key.split(".")[0] == "tokenizer" for key in factors):
        # The same text, as other tokens.
        factors.add("input corpus")
    return frozenset(factors)


def _with_all_that_refer(factors: set[str], references: Mapping[str, Sequence[str]]) -> set[str]:
    """The factors, with every setting that refers to one of them, directly or through others."""
    while True:
        referring: set[str] = set()
        for key, names in references.items():
            if any(is_within(name, factors) for name in names):
                referring.add(key)
        if referring <= factors:
            return factors
        factors = factors | referring


def _choices_apart(group: str, run: Record, other: Record) -> set[str]:
    """The sub-groups that two choices of a group choose differently, such as objective.pair.

    The whole group where it has none, or is one object.
    """
    inside = {
        key for key in run.choices.keys() | other.choices.keys() if key.startswith(f"{group}/")
    }
    is_one_object = any(
        "_target_" in (config.get(group) or {}) for config in (run.config, other.config)
    )
    if not inside or is_one_object:
        return {group.replace("/", ".")}
    apart = {key for key in inside if run.choices.get(key) != other.choices.get(key)}
    return {key.replace("/", ".") for key in apart}


@cache
def derived_settings() -> dict[str, list[str]]:
    """Setting -> those that conf/ derives it from: epochs from task.epochs.

    Of phases only their length is derived.
    """
    files = [("", CONF_DIR / f"{stage}.yaml") for stage in ("pretrain", "finetune")]
    files += [("model.", path) for path in (CONF_DIR / "model").glob("*.yaml")]
    for path in (CONF_DIR / "objective").glob("*/*.yaml"):
        files.append((f"objective.{path.parent.name}.", path))

    references: dict[str, list[str]] = {}
    for prefix, path in files:
        for name, value in flatten(read_yaml(path)).items():
            key = f"{prefix}{name}"
            references.setdefault(key, []).extend(_references_in(key, str(value)))
    references[STEP_KEYS[0]] = references.pop("phases", [])
    return {
        key: names
        for key, names in references.items()
        if names and key.split(".")[0] not in ("hydra", "run_dir")
    }


def _references_in(key: str, text: str) -> list[str]:
    """The settings that a value refers to.

    `${..data.x}` of task.module.y is task.data.x: two steps up from it.
    """
    names: list[str] = []
    for reference in REFERENCE.findall(text):
        name = reference.lstrip(".")
        steps_up = len(reference) - len(name)
        above = key.split(".")[:-steps_up] if steps_up else []
        names.append(".".join([*above, name]))
    return names
