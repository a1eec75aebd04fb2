"""Whether runs may be compared: were they made in the same way, apart from what they are about?

What two arms or rows are about is what their own lines (a file, or paper.yaml) say differently, as the runs recorded
it, with the settings that the configuration derives from those; and what paper.yaml lists in `differ_in`. How a row is
fine-tuned (PROTOCOL) is never a row's subject unless `differ_in` says so. Arms must have seen as much as `matched_by`
asks for. Two seeds that are one and the same run are copies: they have no spread, and decide nothing.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from clozelab.runs.fingerprint import CONDITIONAL_KEYS, flatten, is_of_no_account
from clozelab.suggestions import CONF_DIR
from clozelab.verdicts.experiment import RATE_KEYS, STEP_KEYS, Experiment, read_yaml
from clozelab.verdicts.wording import rough

if TYPE_CHECKING:
    from clozelab.runs.find import Runs
    from clozelab.runs.record import Record
    from clozelab.verdicts.table import Table

NAMES = ("experiment", "arm", "row", "encoder_arm", "encoder_fraction", "pretrain_seed", "seed")
"""What runs are called and paired by."""
MAY_DIFFER = (
    *NAMES,
    *("save_model", "predict_test"),
    *(key for key, option in CONDITIONAL_KEYS.items() if option == "predict_test"),
)
READ = {"pretrain": "corpus", "finetune": "task_files"}
"""Stage -> its input that has to be the same in all runs."""
PROTOCOL = frozenset(
    {
        *("epochs", "evaluations_per_epoch", "global_batch_size", "gradient_clip_norm", "learning_rate"),
        *("max_train_examples", "optimizer", "schedule"),
    }
)
TOLERANCE = 0.02
AMOUNTS = ("steps", "tokens", "flops", "training_seconds")
AMOUNT_NAMES = {"training_seconds": "training time (seconds x devices)"}
SHOWN = 3
ANSWERS = ("predictions*.json*", "nbest_predictions.json", "null_odds.json")
REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")

Settings = dict[tuple[int, int], dict[str, str]]
"""(pre-training seed, fine-tuning seed) -> dotted key -> its value in the run."""


def why_not(table: Table, first: str, second: str, tasks: Iterable[str]) -> str:
    """Why two rows' scores on these tasks are not comparable; empty where they are."""
    experiment = table.experiment
    arms = [next((row.arm for row in experiment.rows if row.name == name), None) for name in (first, second)]
    reasons = [_unmatched(table, arms[0], arms[1])] if arms[0] and arms[1] and arms[0] != arms[1] else []
    rows = [table.tuned.get(name, []) for name in (first, second)]
    about = {key for key in meant_to_differ(*rows) if key.split(".")[0] not in PROTOCOL}
    for task in tasks:
        mine, theirs = ([run for run in one if run.task == task] for one in rows)
        reasons.append(_difference("fine-tuned", mine, theirs, {*experiment.free_keys, *about}))
    reasons += [_not_as_called(name, arm, mine) for name, arm, mine in zip((first, second), arms, rows, strict=True)]
    if arms[0] and arms[0] == arms[1]:
        reasons.append(_other_encoder(*rows))
    return next(filter(None, reasons), "")


def _not_as_called(name: str, arm: str | None, runs: Sequence[Record]) -> str:
    """A row that was fine-tuned from another arm's encoder, or from two versions of its own lines."""
    other = [run for run in runs if arm and run.config.get("encoder_arm", arm) not in (arm, None)]
    if other:
        return (
            f"not what it is called: paper.yaml says arm {arm} of the row {name}, and {len(other)} of {len(runs)} runs "
            f"have the encoder of {other[0].config['encoder_arm']} (e.g. {other[0].place})"
        )
    return _two_versions("row", name, runs)


def _two_versions(kind: str, name: str, runs: Sequence[Record]) -> str:
    said = {tuple(sorted((key, str(value)) for key, value in _delta(run).items())) for run in runs}
    return f"the runs of {name} were made from {len(said)} versions of its {kind}" if len(said) > 1 else ""


def _delta(run: Record) -> Mapping[str, Any]:
    """What the run's arm or row itself says."""
    return run.arm_delta if run.stage == "pretrain" else run.row_delta


def _unmatched(table: Table, first: str, second: str) -> str:
    """Why two arms are not comparable: they saw unequal amounts, or were trained in other ways."""
    experiment = table.experiment
    both = {arm: table.trained.get(arm, []) for arm in (first, second)}
    if experiment.matched and (absent := [arm for arm, mine in both.items() if not mine]):
        return f"no complete pre-training run of {' and '.join(absent)}"
    amounts = {arm: _amounts(mine) for arm, mine in both.items()}
    for key in experiment.matched:
        name = AMOUNT_NAMES.get(key, key)
        if unknown := [arm for arm, one in amounts.items() if key not in one]:
            return f"{name} of pre-training not known for {' and '.join(unknown)}, so nobody can say the arms match"
        pair = [one[key] for one in amounts.values()]
        if abs(pair[0] - pair[1]) > TOLERANCE * max(pair):
            return (
                f"arms not matched: {rough(pair[0])} against {rough(pair[1])} {name} of pre-training, and matched_by "
                "in paper.yaml does not say that this is meant"
            )
    if versions := next(filter(None, (_two_versions("arm", arm, mine) for arm, mine in both.items())), ""):
        return versions
    free = {*experiment.free_keys, *meant_to_differ(both[first], both[second])}
    return _difference("pre-trained", both[first], both[second], free)


def _amounts(runs: Sequence[Record]) -> dict[str, float]:
    """What a run saw and took, all its devices together: means over seeds, of what every run knows of itself."""
    known = []
    for run in runs:
        mine = {key: float(run.facts[key]) for key in AMOUNTS if isinstance(run.facts.get(key), int | float)}
        if "training_seconds" in mine:
            mine["training_seconds"] *= run.facts.get("world_size", 1)
        known.append(mine)
    shared = [key for key in AMOUNTS if known and all(key in one for one in known)]
    return {key: sum(one[key] for one in known) / len(known) for key in shared}


def _other_encoder(first: Sequence[Record], second: Sequence[Record]) -> str:
    """Two rows of one arm are about one encoder; one that was given from elsewhere is another."""
    began: list[dict[tuple[int, float], set[str]]] = [{}, {}]
    for found, runs in zip(began, (first, second), strict=True):
        for run in runs:
            if encoder := encoder_of(run):
                key = run.pretrain_seed, float(run.config.get("encoder_fraction", 1.0))
                found.setdefault(key, set()).add(encoder)
    for key in sorted(began[0].keys() & began[1].keys()):
        if began[0][key] != began[1][key]:
            return f"the rows stand for one encoder, and began from different ones (pre-training seed {key[0]})"
    return ""


def encoder_of(run: Record) -> str | None:
    """Checksum of the weights that a run began with; None where they were fresh or nothing is recorded."""
    return run.inputs.get("encoder") if run.config.get("initialisation") == "pretrained" else None


def meant_to_differ(first: Sequence[Record], second: Sequence[Record]) -> frozenset[str]:
    """The settings that two arms' (or rows') own lines set differently, with all that follows from them.

    The same text is the same value, unless it refers to a setting that differs.
    """
    if not first or not second:
        return frozenset()
    one, other = first[0], second[0]
    here, there = _delta(one), _delta(other)
    said = {key: [str(one[key]) if key in one else "(nothing)" for one in (here, there)] for key in {**here, **there}}
    different = {key for key, (mine, theirs) in said.items() if mine != theirs}
    found = {key for key in different if not key.startswith("/")}
    for key in different - found:
        found |= _chosen_apart(key.removeprefix("/"), one, other)
    references = derived() | {
        key: REFERENCE.findall(str(here[key])) for key in here if key in there and here[key] == there[key]
    }
    while True:
        more = {key for key, names in references.items() if any(is_within(name, found) for name in names)}
        if more <= found:
            return frozenset(found)
        found |= more


def _chosen_apart(group: str, one: Record, other: Record) -> set[str]:
    """What two choices of a group set apart: the sub-groups that they choose differently, else the whole part.

    MLM with and without NSP differ in objective.pair; how tokens are masked has to be equal.
    """
    below = {key for key in one.choices.keys() | other.choices.keys() if key.startswith(f"{group}/")}
    apart = {key for key in below if one.choices.get(key) != other.choices.get(key)}
    is_one_object = "_target_" in ((one.config.get(group) or {}).keys() | (other.config.get(group) or {}).keys())
    return {key.replace("/", ".") for key in apart} if below and not is_one_object else {group.replace("/", ".")}


@cache
def derived() -> dict[str, list[str]]:
    """Setting -> the settings that the shipped configuration derives it from: epochs from task.epochs.

    How long phases are follows from steps_factor, and nothing else of them does.
    """
    found: dict[str, list[str]] = {}
    for stage in ("pretrain", "finetune"):
        for key, value in flatten(read_yaml(CONF_DIR / f"{stage}.yaml")).items():
            found.setdefault(key, []).extend(REFERENCE.findall(str(value)))
    for path in (CONF_DIR / "model").glob("*.yaml"):
        for key, value in flatten(read_yaml(path)).items():
            found.setdefault(f"model.{key}", []).extend(REFERENCE.findall(str(value)))
    found |= dict.fromkeys(STEP_KEYS[:1], found.pop("phases", []))
    return {key: names for key, names in found.items() if names and key.split(".")[0] not in ("hydra", "run_dir")}


def is_within(key: str, parts: Iterable[str]) -> bool:
    """Whether a dotted key is one of these, or inside one; a `*` stands for anything."""
    return any(key == part or key.startswith(f"{part}.") or fnmatch.fnmatchcase(key, part) for part in parts)


def settings(run: Record) -> dict[str, str]:
    """Dotted key -> value of all that should be equal in compared runs.

    How the work was laid out on a machine is not of it (fingerprint.LAYOUT_KEYS); precision is.
    """
    values = {key: value for key, value in flatten(run.config).items() if _counts(key)}
    if (name := READ[run.stage]) in run.inputs:
        values[f"input {name}"] = run.inputs[name][:12]
    if "precision" in run.facts:
        values["precision"] = run.facts["precision"]
    return {key: str(value) for key, value in values.items()} | {"results_version": str(run.results_version)}


@cache
def _counts(key: str) -> bool:
    return not is_within(key, MAY_DIFFER) and not is_of_no_account(key)


def _by_seeds(runs: Sequence[Record]) -> Settings:
    """The runs' settings; of a learning rate, all that were tried, since a row takes one for all its seeds."""
    found: dict[tuple[int, int], dict[str, set[str]]] = {}
    rates: dict[str, set[str]] = {}
    for run in runs:
        for key, value in settings(run).items():
            is_rate = run.stage == "finetune" and key in RATE_KEYS
            mine = rates if is_rate else found.setdefault((run.pretrain_seed, run.seed), {})
            mine.setdefault(key, set()).add(value)
    return {
        seeds: {key: "/".join(sorted(values)) for key, values in (one | rates).items()} for seeds, one in found.items()
    }


def _difference(how: str, first: Sequence[Record], second: Sequence[Record], free: Iterable[str]) -> str:
    """In words, what two rows' settings differ in for some seeds that both have: a difference is paired by seed."""
    mine, theirs, free = _by_seeds(first), _by_seeds(second), set(free)
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for seeds in sorted(mine.keys() & theirs.keys()):
        for key in mine[seeds].keys() | theirs[seeds].keys():
            pair = mine[seeds].get(key, "none"), theirs[seeds].get(key, "none")
            if pair[0] != pair[1] and not is_within(key, free):
                for values, value in zip(found.setdefault(key, ({}, {})), pair, strict=True):
                    values[value] = None
    # The optimizer's rate repeats the run's own.
    differing = [key for key in sorted(found) if key != RATE_KEYS[1] or RATE_KEYS[0] not in found]
    if not differing:
        return ""
    parts = [f"{key} {'/'.join(found[key][0])} against {'/'.join(found[key][1])}" for key in differing[:SHOWN]]
    more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    return f"another protocol: {how} with {'; '.join(parts)}{more}, which differ_in in paper.yaml does not allow for"


def inconsistencies(experiment: Experiment, runs: Runs) -> list[str]:
    """One line for everything that makes complete runs unequal beyond what their names and their own lines say."""
    pretrain = [run for run in runs.pretrain if run.is_complete]
    finetune = [run for run in runs.finetune if run.is_complete]
    lines = _unequal("pre-training runs", pretrain, experiment.free_keys)
    for task in sorted({run.task for run in finetune}):
        mine = [run for run in finetune if run.task == task]
        lines += _unequal(f"fine-tuning runs on {task}", mine, experiment.free_keys)
    return lines + _shared_encoders(finetune) + _replaced_encoders(pretrain, finetune)


def _unequal(what: str, runs: Sequence[Record], free: Iterable[str]) -> list[str]:
    """Lines for what is not the same in all runs, or, where it sets an arm or row apart, not in all of its own."""
    by_name: dict[str, list[Record]] = {}
    for run in runs:
        by_name.setdefault(run.name, []).append(run)
    own = {
        name: frozenset(free).union(*(meant_to_differ(mine, others) for others in by_name.values()))
        for name, mine in by_name.items()
    }
    values: dict[tuple[str, str], dict[str, list[Record]]] = {}
    known = {run.folder: settings(run) | _cut(run) | _tried(run, by_name[run.name]) for run in runs}
    for key in sorted({key for mine in known.values() for key in mine}):
        for run in runs:
            owner = run.name if is_within(key, own[run.name]) else ""
            values.setdefault((key, owner), {}).setdefault(known[run.folder].get(key, "none"), []).append(run)
    lines = []
    for (key, owner), found in values.items():
        if len(found) > 1:
            shown = sorted(found.items(), key=lambda one: one[0] == "none")
            parts = [f"{value} ({len(mine)} runs, e.g. {_name(mine[0])})" for value, mine in shown[:SHOWN]]
            lines.append(f"{what}{f' of {owner}' if owner else ''} differ in {key}: {', '.join(parts)}")
    return lines


def _cut(run: Record) -> dict[str, str]:
    """Texts are cut to what an encoder was trained on, which no setting says."""
    length = (run.facts.get("data") or {}).get("max_seq_length")
    return {"the length that texts are cut to": f"{length} tokens"} if length else {}


def _tried(run: Record, others: Sequence[Record]) -> dict[str, str]:
    """Key of a learning rate -> all that were tried for these seeds: the table takes the best of them."""
    same = [one for one in others if (one.pretrain_seed, one.seed, one.task) == (run.pretrain_seed, run.seed, run.task)]
    found = [settings(one) for one in same] if len(same) > 1 and run.stage == "finetune" else []
    return {
        key: "/".join(sorted({one[key] for one in found if key in one}))
        for key in RATE_KEYS
        if any(key in one for one in found)
    }


def _name(run: Record) -> str:
    return f"{run.name} seed {run.seeds}"


def _shared_encoders(runs: Sequence[Record]) -> list[str]:
    """A pre-training seed of a row is one encoder, and two seeds are two."""
    encoders: dict[tuple[str, int], set[str]] = {}
    for run in runs:
        if encoder := encoder_of(run):
            encoders.setdefault((run.name, run.pretrain_seed), set()).add(encoder)
    seeds: dict[tuple[str, str], list[str]] = {}
    for (row, seed), used in encoders.items():
        for encoder in used:
            seeds.setdefault((row, encoder), []).append(str(seed))
    return [
        f"{row}, pre-training seed {seed}: its runs began with {len(used)} different encoders"
        for (row, seed), used in encoders.items()
        if len(used) > 1
    ] + [
        f"{row}: pre-training seeds {', '.join(same)} are one and the same encoder"
        for (row, _), same in seeds.items()
        if len(same) > 1
    ]


def _replaced_encoders(pretrain: Sequence[Record], finetune: Sequence[Record]) -> list[str]:
    """Scores of an encoder that has been trained anew since."""
    finished = {(run.name, run.seed): run.finished or "" for run in pretrain}
    lines = []
    for run in finetune:
        arm, is_last = str(run.config.get("encoder_arm")), float(run.config.get("encoder_fraction", 1.0)) == 1.0
        if encoder_of(run) and is_last and finished.get((arm, run.pretrain_seed), "") > run.started:
            lines.append(
                f"{run.place}: began before {arm} seed {run.pretrain_seed} was trained to its end (anew since?)"
            )
    return lines


def copied_seeds(runs: Iterable[Record]) -> str:
    """Which seeds of one row on one task are copies, in words; empty where none are known to be.

    Told by what they began with, or by what they answered and the losses on the way, never by equal scores alone: on
    400 examples two honest runs often have the same accuracy. Two that collapsed answer alike without being one.
    """
    ordered = sorted(
        (run for run in runs if not run.facts.get("collapsed")), key=lambda run: (run.pretrain_seed, run.seed)
    )
    encoders: dict[str, set[int]] = {}
    for run in ordered:
        if encoder := encoder_of(run):
            encoders.setdefault(encoder, set()).add(run.pretrain_seed)
    for seeds in encoders.values():
        if len(seeds) > 1:
            return f"pre-training seeds {_listed(map(str, sorted(seeds)))} are one and the same encoder"
    if same := next(_equal_answers(ordered), []):
        names = _listed(run.seeds for run in same)
        return f"runs {names} (pre-training/fine-tuning seed) gave the same answers to the last digit"
    return ""


def _equal_answers(runs: Sequence[Record]) -> Iterator[list[Record]]:
    """Groups of runs with the same files of predictions; files are read only where all scores are equal.

    Some files hold answers without numbers behind them (tags), on which two good runs may agree: their training losses
    do not.
    """

    def scores(run: Record) -> list[tuple[str, float]]:
        return sorted(run.values.items())

    for _, group in groupby(sorted(runs, key=scores), key=scores):
        equal = list(group)
        answers: dict[tuple[tuple[str, str], ...], list[Record]] = {}
        for run in equal if len(equal) > 1 else []:
            if files := _predictions(run):
                answers.setdefault(tuple(sorted(files.items())), []).append(run)
        yield from (same for same in answers.values() if len(same) > 1)


def _predictions(run: Record) -> Mapping[str, str]:
    """Name -> sha256 of the files that hold its answers and what they came from; nothing without answers."""
    from clozelab.training.measuring import read_rows  # only where two runs look alike

    files: list[Any] = [path for pattern in ANSWERS for path in sorted(run.folder.glob(pattern)) if path.is_file()]
    if not files:
        return {}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    losses = [(row.step, row.value) for row in read_rows(run.folder / "metrics.csv") if row.key == "train/loss"]
    return found | {"losses": str(losses)}


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}"
