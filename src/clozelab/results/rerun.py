"""A run made again by its own command, and compared with what it was.

A training goes on again from its earlier checkpoint: what is tested is what a resumed run does,
restore, data, masks, dropout and kernels.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from claims.text.phrases import duration
from clozelab.readers.tables import open_table
from clozelab.runs.identity import identity_of, results_version_of
from clozelab.runs.record import Record, changes, read_record, write_record
from clozelab.runs.store import fingerprint_of
from clozelab.terminal import say
from clozelab.text.did_you_mean import key_of
from clozelab.text.plain import PlainMapping, flatten, hydra_text
from clozelab.training.host import host_facts
from clozelab.training.measuring import MetricRow, read_rows
from clozelab.training.stopping import TERMINATED, die_with_parent

TIMED = ("train/tokens_per_second", "train/mfu")
TOLERANCE = 0.01  # of figures, where bits cannot be expected to be the same
RETRAINED_TOLERANCE = 0.05  # of a headline score, on another kind of machine
SHOWN_CHARACTERS = 600  # of the end of what a failed process said
# Keys of a run's command that are chosen anew.
REPLACED_KEYS = (
    "run_dir",
    "logger",
    "reuse",
    "stop_after_step",
    "share_runs",
    "trainer.threads",
    "allow_targets",
)
# Settings with defaults that depend on where the encoder comes from and on the version of the code.
RECIPE_KEY = re.compile(r"learning_rate|epochs|global_batch_size|optimizer\.[a-z]\w*")
# Files of two runs that are equal to the byte, if all is.
COMPARED_FILES = ("encoder*/**/checksums.json", "predictions*.json*", "null_odds.json")
ALL_STEPS = range(10**9)


@dataclass(frozen=True)
class Comparison:
    """A run that was made again, beside the original."""

    description: str  # what was made again, and how exactly it was compared
    differences: list[str]


def refuse_other_version(record: Record) -> None:
    """ValueError for a run whose results are of another version than those that this code makes."""
    version = results_version_of(record.stage, record.config)
    if record.results_version == version:
        return
    commit = "unknown"
    if record.git:
        commit = record.git.commit
    raise ValueError(
        f"{record.folder} has results version {record.results_version} of {record.stage}, and this"
        f" code makes version {version}: verify it with the code that made it (commit {commit})"
    )


def rerun_from_beginning(record: Record, folder: Path) -> Comparison:
    """Make all of a complete run again in `folder`; it has no checkpoint to go on from.

    Raises:
        ValueError: it is not complete, or cannot be made again.
    """
    if not record.is_complete:
        raise ValueError(
            f"{record.folder} is {record.status}, not complete: there is nothing to compare",
        )
    say(f"making {record.place} again; it took {duration(math.ceil(record.seconds))}")
    new_folder = folder / "again"
    label = unnamed_positive_label(record)
    further = {}
    if label is not None:
        further["++task.data.positive_label"] = json.dumps(label, ensure_ascii=False)
    process = run_command_again(record, new_folder, further)
    new_record = read_record(new_folder)
    if process.returncode or new_record is None or not new_record.is_complete:
        raise ValueError(f"it cannot be made again: {_why_it_failed(process.stderr)}")
    stretch = "trained again"
    if record.stage == "evaluate":
        stretch = "measured again"
    accuracy = f"within {RETRAINED_TOLERANCE:.0%}, for another kind of machine"
    if is_reproducible(record):
        accuracy = "to the bit"
    differences = list(run_differences(in_current_notation(record, new_record, label), new_record))
    return Comparison(f"{stretch} and compared {accuracy}", differences)


def _why_it_failed(stderr: str) -> str:
    """The error of a command without the log before it; else the end of what it said."""
    _, _, why = f"\n{stderr.strip()}".rpartition("\nerror: ")
    return why.strip()[-SHOWN_CHARACTERS:]


def unnamed_positive_label(run: Record) -> str | None:
    """The class that an older fine-tuning's F1 is of, where its record does not name one.

    It is the second of two labels. None for 0 and 1 and the like, whose F1 needs no name.
    """
    from clozelab.tasks.classes import DEFAULT_POSITIVE_LABELS

    answers = run.folder / "predictions.jsonl"
    score = run.scores.get("validation/f1")
    if run.stage != "finetune" or score is None or not answers.is_file():
        return None
    labels = [row.get("label") for row in open_table(answers).whole_rows()]
    if score.positive_label is not None or not labels or not isinstance(labels[0], str):
        return None
    listed = run.config["task"].get("data", {}).get("labels") or ()
    names = list(dict.fromkeys([*map(str, listed), *sorted(map(str, labels))]))
    # A text with $ would mean something to Hydra.
    if len(names) != 2 or frozenset(names) in DEFAULT_POSITIVE_LABELS or "$" in names[1]:
        return None
    return names[1]


def rerun_from_checkpoint(record: Record, folder: Path) -> Comparison:
    """Train a run again in `folder`, from its earlier checkpoint (or its beginning) to its last.

    Raises:
        ValueError: it has no checkpoint of its own, or cannot be trained again.
    """
    # torch: a mistake need not wait for it
    from clozelab.training.checkpoints import LAST, PREVIOUS, load_file

    checkpoints = record.folder / "checkpoints"
    new_folder = folder / "run"
    new_checkpoints = new_folder / "checkpoints"
    if record.shared:
        raise ValueError(f"{record.folder} shares {record.shared.run}: verify that")
    if not (checkpoints / LAST).is_file():
        raise ValueError(f"{record.folder} has no {checkpoints / LAST}")

    # A folder that looks as if the run had been interrupted at its earlier checkpoint.
    new_checkpoints.mkdir(parents=True)
    last = load_file(checkpoints / LAST)
    begin = 0
    if (checkpoints / PREVIOUS).is_file():
        shutil.copyfile(checkpoints / PREVIOUS, new_checkpoints / LAST)
        begin = load_file(new_checkpoints / LAST)["global_step"]
    steps = range(begin + 1, last["global_step"] + 1)
    write_record(record.model_copy(update={"folder": new_folder, "status": "interrupted"}))
    overrides = {"stop_after_step": last["global_step"]}
    if record.stage == "pretrain":
        overrides["share_runs"] = "false"
    process = run_command_again(record, new_folder, overrides)
    if process.returncode not in (0, TERMINATED) or not (new_checkpoints / LAST).is_file():
        raise ValueError(
            f"{record.folder} cannot be trained again: {_why_it_failed(process.stderr)}"
        )

    # The digest of all batches is exact on every machine, figures and weights are not.
    new_last = load_file(new_checkpoints / LAST)
    differences = []
    if new_last["batches_seen"] != last["batches_seen"]:
        differences.append("other batches were read")
    if is_reproducible(record):
        differences += figure_differences(record.folder, new_folder, steps, tolerance=0.0)
        if not is_same_state(new_last, last):
            differences.append("weights or optimizer state differ")
        accuracy = "to the bit"
    else:
        differences += figure_differences(record.folder, new_folder, steps, tolerance=TOLERANCE)
        num_figures = len(_logged_rows(record.folder, steps))
        accuracy = f"by all batches, and by {num_figures} figures within {TOLERANCE:.0%}"
        if can_drift(record):
            accuracy += "; without trainer.deterministic=true a GPU alone can drift further"
    stretch = f"steps {steps[0]} to {steps[-1]} trained again"
    return Comparison(f"{stretch} and compared {accuracy}", differences)


def run_command_again(
    record: Record, folder: Path, overrides: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a run's own command with another run folder and more overrides, and keep what it prints.

    Its learning rate, epochs, batch size and optimizer are those of the record, whatever the
    command's defaults are today. Its process dies with this one.
    """
    if not record.config_name:
        raise ValueError(f"{record.folder} was not made by a command line")
    if record.started_in and not Path(record.started_in).is_dir():
        raise ValueError(
            f"{record.folder} was started in {record.started_in}, which is gone: its command needs"
            " that folder"
        )
    overrides = recorded_recipe(record) | dict(overrides)
    replaced = (*REPLACED_KEYS, *overrides)
    arguments = []
    for argument in record.argv:
        if key_of(argument) not in replaced and not argument.startswith("logger."):
            arguments.append(argument)
    # `debug=...` removes what a run's folder holds, too: the checkpoint to go on from.
    arguments += ["logger=none", "reuse=any", f"run_dir={hydra_text(str(folder))}"]
    arguments += [f"{key}={value}" for key, value in overrides.items()]
    if "threads" in record.facts:
        arguments.append(f"trainer.threads={record.facts['threads']}")
    return subprocess.run(
        [sys.executable, "-m", "clozelab", *arguments],
        cwd=record.started_in or None,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        preexec_fn=die_with_parent,
    )


def recorded_recipe(record: Record) -> dict[str, str]:
    """Key -> value, as a command says it, of the numbers by which a run was trained."""
    # A record may be anybody's: its texts are left to the command.
    return {
        key: json.dumps(value)
        for key, value in flatten(record.config).items()
        if RECIPE_KEY.fullmatch(key) and isinstance(value, int | float | None)
    }


def in_current_notation(old: Record, new: Record, positive_label: str | None) -> Record:
    """The old record with what this code writes down otherwise, to be held against the new one.

    Args:
        positive_label: the class of its F1, where the old record does not name it.

    Raises:
        ValueError: the command has other settings today, so that nothing can be compared.
    """
    today = old.model_copy(deep=True)
    if positive_label is not None:
        today.config["task"]["data"]["positive_label"] = positive_label
    # The same files and encoder may give another fingerprint of the tokens in another version. To
    # the bit, figures and predictions tell whether the tokens are the same.
    changed = [name for name in old.inputs if old.inputs[name] != new.inputs.get(name)]
    if changed == ["task_data"] and is_reproducible(old):
        today.inputs = new.inputs
        changed = []
    if changed == ["task_data"] or identity_of(today.config) != identity_of(new.config):
        raise ValueError(
            f"{old.folder} was not compared, because its command has other settings today:\n"
            f"{changes(today, new)}"
        )
    if old.fingerprint == fingerprint_of(old.config, old.inputs, old.results_version):
        today.fingerprint = fingerprint_of(today.config, today.inputs, today.results_version)
    return today


def is_reproducible(record: Record) -> bool:
    """Whether this machine should give the very same bits."""
    # Kernels, libraries and the layout of threads decide the last bits; so do atomics on a GPU.
    if record.environment != host_facts()["environment"] or record.facts.get("earlier_layouts"):
        return False
    return not can_drift(record)


def can_drift(record: Record) -> bool:
    """Whether two trainings of this run differ on one machine, by more with every step."""
    trainer = record.config["trainer"]
    return trainer["accelerator"] != "cpu" and not trainer["deterministic"]


def run_differences(old: Record, new: Record) -> Iterator[str]:
    """Say what tells two whole runs apart that should be one."""
    if old.fingerprint != new.fingerprint:
        yield f"is of another configuration:\n{changes(old, new)}"
    if old.facts.get("batches_seen") != new.facts.get("batches_seen"):
        yield "read other batches"
    # Elsewhere bits differ, and the differences grow: the headline score alone can be compared.
    if not is_reproducible(old):
        old_score = _headline(old)
        new_score = _headline(new)
        if not abs(old_score - new_score) <= RETRAINED_TOLERANCE * abs(old_score):
            yield f"has {old.metric} {new_score:.6g}, where it was {old_score:.6g}"
        return
    yield from figure_differences(old.folder, new.folder, ALL_STEPS, tolerance=0.0)
    names = set()
    for pattern in COMPARED_FILES:
        names |= {path.relative_to(old.folder) for path in old.folder.glob(pattern)}
    for name in sorted(names):
        new_file = new.folder / name
        if not new_file.is_file() or new_file.read_bytes() != (old.folder / name).read_bytes():
            yield f"left another {name}"


def _headline(run: Record) -> float:
    """Its score; nan where it has none, which is no other one's."""
    return math.nan if run.score is None else run.score


def figure_differences(old: Path, new: Path, steps: range, tolerance: float) -> list[str]:
    """Say how many logged figures of a stretch differ by more than a fraction; empty for none."""
    old_figures = _figures(old, steps)
    new_figures = _figures(new, steps)
    keys = old_figures | new_figures
    different = []
    for key in keys:
        # A figure of one run alone is shown as nan in the other.
        old_value = old_figures.get(key, math.nan)
        new_value = new_figures.get(key, math.nan)
        is_logged_twice = key in old_figures and key in new_figures
        if not is_logged_twice or not _is_near(old_value, new_value, tolerance):
            different.append((key, old_value, new_value))
    if not different:
        return []
    # The first one tells most: all later ones may follow from it.
    (step, name), old_value, new_value = different[0]
    message = (
        f"{len(different)} of {len(keys)} figures differ, first {name} of step {step}:"
        f" {old_value:.6g}, now {new_value:.6g}"
    )
    return [message]


def _is_near(old_value: float, new_value: float, tolerance: float) -> bool:
    """Whether two figures differ by at most a fraction; what is no number has to be so in both."""
    if not math.isfinite(old_value) or not math.isfinite(new_value):
        return str(old_value) == str(new_value)
    return abs(old_value - new_value) <= tolerance * abs(old_value)


def _figures(folder: Path, steps: range) -> dict[tuple[int, str], float]:
    return {(row.step, row.key): row.value for row in _logged_rows(folder, steps)}


def _logged_rows(folder: Path, steps: range) -> list[MetricRow]:
    """What a run logged in a stretch, but for what the clock decides."""
    rows = read_rows(folder / "metrics.csv")
    return [row for row in rows if row.step in steps and row.key not in TIMED]


def is_same_state(first: PlainMapping, second: PlainMapping) -> bool:
    """Whether weights and optimizer states of two checkpoints are the same to the bit."""
    states = []
    for checkpoint in (first, second):
        names = ("state_dict", "optimizer_states")
        states.append(flatten({name: checkpoint.get(name, {}) for name in names}))
    if states[0].keys() != states[1].keys():
        return False
    # Only tensors have `equal`; step counts and the like follow from the batches.
    for key, value in states[0].items():
        if hasattr(value, "equal") and not value.equal(states[1][key]):
            return False
    return True
