"""How runs were made, as comparability asks: from records to evidence on two rows.

Two arms or rows are about what their own lines say differently, as the runs recorded it, with the
settings that the configuration derives from those, and about what `differ_in` lists. The rules
that decide are in analysis/comparability.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

from claims.analysis.comparability import RunEvidence, is_within
from claims.analysis.grouping import group_by
from claims.analysis.statistics import Seeds
from clozelab.launch.experiments import MEASURED, OF_ENCODER
from clozelab.results.experiment import STEP_KEYS, Experiment, read_yaml, with_input_corpus
from clozelab.runs.identity import delta_as_before_units, identity_of
from clozelab.runs.inputs import encoder_fingerprint
from clozelab.runs.provenance import delta_of_choices
from clozelab.runs.record import Record
from clozelab.schema import CONDITIONAL_KEYS, LAYOUT, NEUTRAL, meaning_of
from clozelab.text.paths import CONF_DIR
from clozelab.text.plain import PlainDict, PlainMapping, flatten
from clozelab.text.redaction import redacted

# what runs are called by
NAMES = ("experiment", "arm", "row", "encoder_arm", "pretrain_seed", "seed", "encoder_fraction")
MAY_DIFFER = (
    *NAMES[:-1],
    "predict_test",
    *(key for key, condition in CONDITIONAL_KEYS.items() if condition == "predict_test"),
)
REFERENCE = re.compile(r"\$\{([A-Za-z_.][\w.]*)\}")
NO_LINE = "(nothing)"
# what a delta has of an arm's or a row's name and encoder, without a line that says so
OF_EVERY_DELTA = ("arm", "row", "encoder_arm", "initialisation")
# what `differ_in` says where rows may be of different results versions
VERSION_KEY = "results_version"


def seeds_of(run: Record) -> Seeds:
    return (run.seed, 0) if run.stage == "pretrain" else (run.pretrain_seed, run.seed)


def encoder_of(run: Record) -> str | None:
    """Checksum of the weights that a run began with; None where they were fresh or nothing is
    recorded.
    """
    return run.inputs.get("encoder") if is_pretrained(run) else None


def is_pretrained(run: Record) -> bool:
    return run.config.get("initialisation") == "pretrained"


# -- one run ---------------------------------------------------------------------------------------


def evidence_of(run: Record) -> RunEvidence:
    is_finetuning = run.stage == "finetune"
    seeds = seeds_of(run)
    run_settings = settings(run)
    code = values_over_sessions("modules", run)
    # versions of what the run was made with, and of the code
    environment = values_over_sessions("environment", run) | code
    delta = delta_of(run)
    encoder = encoder_of(run)
    fraction = run.config.get("encoder_fraction", 1.0)
    amounts = _amounts(run)
    return RunEvidence(
        place=run.place,
        is_finetuning=is_finetuning,
        seeds=seeds,
        settings=run_settings,
        code=code,
        environment=environment,
        delta=delta,
        encoder=encoder,
        encoder_arm=run.encoder_arm,
        encoder_fraction=fraction,
        amounts=amounts,
    )


def settings(run: Record) -> dict[str, str]:
    """Dotted key -> value of all that should be equal in compared runs.

    Precision is among it, and a machine's layout is not.
    """
    values = {}
    for key, value in identity_of(run.config).items():
        if _counts(key):
            values[key] = str(value)
    files = "corpus" if run.stage == "pretrain" else "task_files"
    if files in run.inputs:
        values[f"input {files}"] = run.inputs[files][:12]
    if "phase_objectives" in run.inputs:
        # Below `phases`: where these may differ, so may the objectives that they name.
        values["phases.objective"] = run.inputs["phase_objectives"][:12]
    if "precision" in run.facts:
        values["precision"] = str(run.facts["precision"])
    return values | {VERSION_KEY: str(run.stage_version)}


@cache
def _counts(key: str) -> bool:
    return not is_within(key, MAY_DIFFER) and meaning_of(key) not in (NEUTRAL, LAYOUT)


def values_over_sessions(field: str, run: Record) -> dict[str, str]:
    """What all sessions of a run were made with.

    A run that went on under other code is of two versions: "a1/b2".
    """
    if not run.earlier_sessions:
        return dict(getattr(run, field))
    sessions = [getattr(session, field) for session in run.sessions_before]
    sessions.append(getattr(run, field))
    versions: dict[str, str] = {}
    for key in sessions[-1]:
        seen = dict.fromkeys(session[key] for session in sessions if key in session)
        versions[key] = "/".join(seen)
    return versions


def delta_of(run: Record) -> dict[str, str]:
    """What the lines of a run's arm or row say."""
    delta = delta_as_before_units(_recorded_lines(run), run.config)
    return {key: str(value) for key, value in delta.items()}


def _recorded_lines(run: Record) -> PlainDict:
    return run.arm_delta if run.stage == "pretrain" else run.row_delta


def _amounts(run: Record) -> dict[str, float]:
    """Numbers that a run knows of itself; time is of all its devices together."""
    facts = run.facts.items()
    amounts = {}
    for key, value in facts:
        if isinstance(value, int | float):
            amounts[key] = float(value)
    if "training_seconds" in amounts:
        amounts["training_seconds"] *= run.facts.get("world_size", 1)
    return amounts


# -- lines of paper.yaml that were edited after a run ----------------------------------------------


class EditedLine(NamedTuple):
    """A setting, or "/group", of an arm or a row: what a run has, and what paper.yaml says now."""

    key: str
    then: str
    now: str

    @property
    def is_another_run(self) -> bool:
        """Whether a run of the line as it is now surely has other results.

        A folder may have moved, a reference may come to the same, and so may the default.
        """
        if self.now == NO_LINE or "${" in self.now:
            return False
        is_derived_from = any(self.key in names for names in derived_settings().values())
        return meaning_of(self.key) not in (NEUTRAL, LAYOUT) or is_derived_from

    def __str__(self) -> str:
        return f"{self.key} {self.then} then, {self.now} now"


def edited_lines(run: Record, experiment: Experiment) -> tuple[EditedLine, ...]:
    """What the lines of a run's arm or row say otherwise now than the run recorded, and has.

    There are none for a run that recorded nothing, and for an evaluation whose encoder has a file
    of its own.
    """
    present = _present_lines(run, experiment)
    if present is None or not _recorded_lines(run):
        return ()
    recorded = flatten(delta_as_before_units(_recorded_lines(run), run.config))
    lines = _spelt_as_recorded(present, run)
    unlike = _unlike_lines(recorded, lines, _brought_along(lines, run, experiment))
    if not unlike:
        return ()
    has = flatten(dict(run.config)) | {f"/{group}": name for group, name in run.choices.items()}
    edited = []
    for key, now in sorted(unlike.items()):
        then = str(recorded.get(key, has.get(key, NO_LINE)))
        if "@" not in key and _as_text(has.get(key, NO_LINE)) != _as_text(now):
            edited.append(EditedLine(key, then, now))
    return tuple(edited)


def _unlike_lines(
    recorded: PlainMapping, present: PlainMapping, brought_along: PlainMapping | None
) -> dict[str, str]:
    """Key -> what the present lines say, where the recorded ones say something else.

    Args:
        recorded: lines and, of each choice, what its file says.
        present: lines alone.
        brought_along: what the files of their choices say; None where that is not known.
    """
    unlike = {}
    for key, value in present.items():
        if _as_text(recorded.get(key, NO_LINE)) != _as_text(value):
            unlike[key] = str(value)
    if brought_along is None:
        return unlike
    for key in recorded.keys() - present.keys() - set(OF_EVERY_DELTA):
        # A reference beside a choice is mostly the file's, which may have another by now.
        if brought_along and "${" in str(recorded[key]):
            continue
        if _as_text(recorded[key]) != _as_text(brought_along.get(key, NO_LINE)):
            unlike[key] = NO_LINE
    return unlike


def _brought_along(lines: PlainMapping, run: Record, experiment: Experiment) -> PlainDict | None:
    """What the files of the lines' choices say as of today: a record has it among its lines."""
    choices = {key: choice for key, choice in lines.items() if key.startswith("/")}
    if not choices:
        return {}
    # An experiment's files come before those of conf/.
    folders = [folder for folder in (experiment.folder, CONF_DIR) if folder.is_dir()]
    said = delta_of_choices(folders, choices)
    if said is None:
        return None
    return flatten(delta_as_before_units(said, run.config))


def _present_lines(run: Record, experiment: Experiment) -> PlainDict | None:
    if run.stage == "pretrain":
        return experiment.arms.get(run.name)
    name = run.name
    lines = next((row.delta for row in experiment.rows if row.name == name), None)
    if run.stage == "finetune" or lines is None:
        return lines
    if (experiment.folder / MEASURED / f"{run.name}.yaml").is_file():
        return None
    # what an evaluation takes of a row's lines
    return {key: lines[key] for key in OF_ENCODER if key in lines}


def _spelt_as_recorded(lines: PlainMapping, run: Record) -> PlainDict:
    """Lines of paper.yaml by the keys that a record has: "/group" of a choice, and no `+`."""
    spelt: PlainDict = {}
    for key, value in redacted(dict(lines)).items():
        name = key.lstrip("+")
        if "/" in name or (isinstance(value, str) and name in run.choices):
            spelt[f"/{name}"] = value
        else:
            spelt |= flatten(value, name)
    return delta_as_before_units(spelt, dict(run.config) | spelt)


def _as_text(value: object) -> str:
    """A value as text, a number as a float's: YAML and a schema write one in several ways."""
    text = str(value)
    with suppress(ValueError):
        text = str(float(text))
    return text


# -- two rows --------------------------------------------------------------------------------------


def treatment_factors(first: Sequence[Record], second: Sequence[Record]) -> frozenset[str]:
    """The settings that two arms' (or rows') own lines set differently.

    What refers to one of them is among them, as is what the configuration derives from them.
    """
    if not first or not second:
        return frozenset()
    run = first[0]
    other_run = second[0]
    lines = delta_of(run)
    other_lines = delta_of(other_run)
    factors = set()
    equal_lines = set()
    for key in lines.keys() | other_lines.keys():
        if lines.get(key, NO_LINE) == other_lines.get(key, NO_LINE):
            equal_lines.add((key, lines.get(key, "")))
        elif key.startswith("/"):
            factors |= _differing_choices(key.removeprefix("/"), run, other_run)
        else:
            factors.add(key)

    return _with_referring_keys(frozenset(factors), frozenset(equal_lines))


def own_factors(groups: Mapping[str, Sequence[Record]]) -> dict[str, frozenset[str]]:
    """Arm or row -> the settings that its own lines set differently from those of some other."""
    lines = {name: delta_of(runs[0]) for name, runs in groups.items()}
    apart = _differing_keys(list(lines.values()))
    choices = {key for key in apart if key.startswith("/")}
    settings = frozenset(apart - choices)
    factors = {}
    for name, delta in lines.items():
        shared_lines = frozenset(item for item in delta.items() if item[0] not in apart)
        factors[name] = _with_referring_keys(settings, shared_lines)
        # What another choice brings along depends on both runs.
        for key, (other, other_delta) in product(choices, lines.items()):
            if delta.get(key) != other_delta.get(key):
                factors[name] |= treatment_factors(groups[name], groups[other])
    return factors


def _differing_keys(deltas: Sequence[Mapping[str, str]]) -> set[str]:
    """The keys of which not all say the same: then each of them differs from some other."""
    differing = set()
    for key in set().union(*deltas):
        if len({delta.get(key) for delta in deltas}) > 1:
            differing.add(key)
    return differing


@cache
def _with_referring_keys(
    factors: frozenset[str], equal_lines: frozenset[tuple[str, str]]
) -> frozenset[str]:
    """The factors, with every setting that refers to one of them, directly or through others.

    Settings refer to others in conf/ and in the lines that are equal. The arms of a sweep mostly
    set the same keys: one answer does for all pairs of them.
    """
    references = dict(derived_settings())
    for key, text in equal_lines:
        references[key] = _references_in(key, text)
    while True:
        referring: set[str] = set()
        for key, names in references.items():
            if any(is_within(name, factors) for name in names):
                referring.add(key)
        if referring <= factors:
            break
        factors = factors | referring
    return with_input_corpus(factors)


def _differing_choices(group: str, run: Record, other: Record) -> set[str]:
    """The sub-groups that two choices of a group choose differently, such as objective.pair.

    The whole group where it has none, or is one object.
    """
    inside = set()
    for key in run.choices.keys() | other.choices.keys():
        if key.startswith(f"{group}/"):
            inside.add(key)
    is_one_object = any(
        "_target_" in (config.get(group) or {}) for config in (run.config, other.config)
    )
    if not inside or is_one_object:
        return {group.replace("/", ".")}
    apart = set()
    for key in inside:
        if run.choices.get(key) != other.choices.get(key):
            apart.add(key)
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
    kept = {}
    for key, names in references.items():
        if names and key.split(".")[0] not in ("hydra", "run_dir"):
            kept[key] = names
    return kept


def _references_in(key: str, text: str) -> list[str]:
    """The settings that a value refers to.

    `${..data.x}` of task.module.y is task.data.x: two steps up from it.
    """
    names = []
    for reference in REFERENCE.findall(text):
        name = reference.lstrip(".")
        steps_up = len(reference) - len(name)
        above = key.split(".")[:-steps_up] if steps_up else []
        names.append(".".join([*above, name]))
    return names


# -- results versions ------------------------------------------------------------------------------


def find_outdated(runs: Iterable[Record], free_keys: Iterable[str]) -> dict[Path, str]:
    """Folder of a complete run that is in no cell, beside newer ones -> why not.

    A results version (runs/fingerprint.py) forbids mixing within a comparison, not reading
    (docs/decisions/0019). So a column is of the newest version that any of its complete runs has,
    and runs on encoders that stand in no cell stand in none. With VERSION_KEY among `free_keys`
    rows may be of different versions; each takes its own newest.
    """
    complete = [run for run in runs if run.is_complete]
    outdated = _older_versions(complete, is_free=VERSION_KEY in free_keys)
    trained = [run for run in complete if run.stage == "pretrain"]
    old_encoders = {(run.name, run.seed) for run in trained if run.folder in outdated}
    if not old_encoders:
        return outdated
    # What was measured on an encoder that is left out would bring the old version in again. The arm
    # and seed may have been trained anew, though, and a run may have begun with that.
    current_encoders = _encoder_checksums(run for run in trained if run.folder not in outdated)
    for run in complete:
        encoder = (run.encoder_arm, run.pretrain_seed)
        is_measured = run.stage != "pretrain" and is_pretrained(run)
        is_old = run.inputs.get("encoder") not in current_encoders
        if is_measured and is_old and encoder in old_encoders:
            outdated.setdefault(run.folder, "on encoders of an older results version than others")
    return outdated


def _older_versions(runs: Iterable[Record], *, is_free: bool) -> dict[Path, str]:
    """Folder of a run beside newer ones of its column, or with `is_free` of its row -> why not."""

    outdated = {}
    comparisons = group_by(runs, lambda run: (run.stage, run.task, run.name if is_free else ""))
    for group in comparisons.values():
        newest = max(run.stage_version for run in group)
        for run in group:
            missing = newest - run.stage_version
            if missing > 0:
                version = run.results_version
                needed = f"beside the others take {version + missing}"
                outdated[run.folder] = f"of results version {version}, and {needed}"
    return outdated


def _encoder_checksums(runs: Iterable[Record]) -> set[str]:
    """The fingerprints of all encoders that some pre-trainings have kept."""
    checksums = set()
    for run in runs:
        # encoder/, and those of points on the way
        for file in run.folder.glob("encoder*/**/checksums.json"):
            with suppress(ValueError):  # its other files are gone
                checksums.add(encoder_fingerprint(file.parent))
    return checksums
