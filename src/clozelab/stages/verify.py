"""`clozelab verify`: is a run, or a pack of runs, what it says?

A pack may be forged, and its manifest with it. So what is in it is held against what else is in it.
The words of a record are run only if an experiment's file might say them.
"""

from __future__ import annotations

import math
import random
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf

from clozelab.analysis.phrases import listed
from clozelab.files.digests import file_sha256
from clozelab.launch.experiments import check_file
from clozelab.metrics.glue import CORRELATIONS
from clozelab.report.packed_results import write_results_table
from clozelab.results.answers import rescored
from clozelab.results.experiment import read_yaml
from clozelab.results.rerun import (
    REPLACED_KEYS,
    refuse_other_version,
    rerun_from_beginning,
    rerun_from_checkpoint,
)
from clozelab.runs.archive import RESULTS, RunArchive, open_archive
from clozelab.runs.find import open_run
from clozelab.runs.identity import RESULTS_VERSIONS
from clozelab.runs.inputs import encoder_fingerprint
from clozelab.runs.record import CONFIG_FILE, Record, Score
from clozelab.runs.store import fingerprint_of
from clozelab.terminal import SWITCH, ParsedArgs, path_of, say, verb
from clozelab.text.did_you_mean import key_of, values_of
from clozelab.text.formatting import several
from clozelab.text.plain import JsonObject, flatten, read_json
from clozelab.text.redaction import HIDDEN
from clozelab.training.measuring import read_rows

HELP = """clozelab verify RUN
clozelab verify FILE [retrain=false] [seed=1] [data_dir=FOLDER]
        [cache_dir=FOLDER]

Trains a stretch of a run again: from its earlier checkpoint (from the
beginning, where there is one alone) to its last one, in a temporary folder;
nothing of the run is touched. Compares the digest of all batches, every logged
figure, weights and optimizer state. An evaluation is measured again, and a
finished fine-tuning, which keeps no checkpoint, is trained again from its
beginning: their figures and predictions are compared. Learning rate, epochs,
batch size and optimizer are those of the record. Exit status 0: the same run;
1: it is not, or it cannot be made again.

To the bit on a CPU, or with trainer.deterministic=true, where machine and torch
are those of the run. Otherwise the digest, and figures within 1 %; those of a
GPU without trainer.deterministic=true can drift further by themselves.

Of a pack (FILE): every checksum; each configuration against its fingerprint,
its file and its command; each encoder that was fine-tuned; every score against
the predictions, by the official scorers; the table. Then one run is trained
again from its beginning and compared: to the bit, or, on another kind of
machine, its batches and its headline score within 5 %. Says what was found,
what was checked, and what could not be.

  retrain=false     trains nothing
  seed=1            which run is drawn
  data_dir=FOLDER   where the tasks' files and the corpus lie: SQuAD's right
                    answers are in no pack"""
MAX_SHOWN = 20  # findings
CHECKSUMS_FILE = "checksums.json"  # of an encoder's folder
ROUNDED = 1e-4  # of correlations: predicted numbers are kept with five decimals
ROUNDED_SECONDS = 1e-3  # metrics.csv has milliseconds
# Of results.csv: packs that were made before these columns existed lack them.
ADDED_COLUMNS = frozenset({"positive_label"})
# What a record's command may say: a key and a value, nothing of Hydra's, no interpolation.
SAFE_OVERRIDE = re.compile(r"\+{0,2}(?!hydra)[\w./]+=[^$]*")
# Keys that say where things are on a machine, or how its runs are shown.
LOCAL_KEYS = (
    *REPLACED_KEYS,
    "runs_dir",
    "data_dir",
    "cache_dir",
    "encoder",
    "reuse",
    "trainer.progress_bar",
)


@verb(
    "verify",
    HELP,
    names=(1, 1),
    keys=("seed", "data_dir", "cache_dir"),
    choices={"retrain": SWITCH},
)
def main(args: ParsedArgs) -> int:
    """Print the verdict; returns the exit status."""
    path = Path(args.names[0])
    if path.is_file():
        return verify_archive(path, args.values)
    if not path.exists():
        raise ValueError(f"{path} does not exist; give the folder of a run, or a pack")
    if args.values:
        raise ValueError(f"verify RUN takes no {next(iter(args.values))}=; it is for a pack")
    return verify_run(args.names[0])


def verify_run(folder: str) -> int:
    """Make a run, or its last stretch, again, and print one sentence; returns the exit status."""
    record = open_run(folder)
    refuse_other_version(record)
    # An evaluation has no checkpoints, and a finished fine-tuning deletes its own.
    rerun = rerun_from_checkpoint
    has_checkpoints = (record.folder / "checkpoints").is_dir()
    if record.stage == "evaluate" or (record.stage == "finetune" and not has_checkpoints):
        rerun = rerun_from_beginning
    with tempfile.TemporaryDirectory(prefix="clozelab-verify-") as new_folder:
        comparison = rerun(record, Path(new_folder))
    if comparison.differences:
        verdict = f"is not the same run: {'; '.join(comparison.differences)}"
        say(f"{record.folder} {verdict} ({comparison.description})", style="bold red")
        return 1
    say(f"{record.folder} is the same run ({comparison.description})", style="green")
    return 0


def verify_archive(path: Path, values: Mapping[str, str]) -> int:
    """Check a pack, and print what is wrong, what was checked and what could not be.

    Returns:
        The exit status.
    """
    seed = values.get("seed", "1")
    if not seed.isdecimal():
        raise ValueError(f"seed={seed}: give a whole number")
    data_dir = str(Path(path_of("data_dir", values)).absolute())
    # The overrides of a training on this machine.
    local_paths = {"data_dir": data_dir}
    if "cache_dir" in values:
        local_paths["cache_dir"] = values["cache_dir"]
    with tempfile.TemporaryDirectory(prefix="clozelab-verify-") as folder:
        archive = open_archive(path, Path(folder) / "pack")
        changed = [f"{name} is not what its manifest says" for name in archive.changed]
        results = [
            CheckResult(f"{len(archive.manifest.files)} checksums", changed),
            _run_check(check_records, archive),
            _run_check(check_encoders, archive),
            _run_check(check_scores, archive, data_dir),
            _run_check(check_table, archive),
        ]
        if values.get("retrain") != "false":
            results.append(_run_check(check_one_run, archive, Path(folder), int(seed), local_paths))
    # The folder is gone by now: its name would only lengthen the sentences.
    wrong: list[str] = []
    not_checked: Counter[str] = Counter()  # what many runs have in common is said once
    for result in results:
        wrong += (line.replace(f"{folder}/pack/", "") for line in result.wrong)
        not_checked.update(line.replace(f"{folder}/pack/", "") for line in result.not_checked)
    for line in wrong[:MAX_SHOWN]:
        say(f"wrong: {line}", style="bold red")
    say(f"checked: {', '.join(result.checked for result in results if result.checked)}")
    for line, count in not_checked.items():
        say(f"not checked: {line} ({several(count, 'time')})", style="yellow")
    if wrong:
        say(f"{path} is not what it says: {len(wrong)} findings", style="bold red")
        return 1
    say(f"{path} is what it says, as far as it was checked", style="green")
    return 0


def _run_check(check: Callable[..., CheckResult], *arguments: object) -> CheckResult:
    """Run a check; what it cannot read is a finding, for the file may be forged."""
    try:
        return check(*arguments)
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        return CheckResult("", [f"something cannot be read ({type(error).__name__}: {error})"])


# What is in a pack


@dataclass(frozen=True)
class CheckResult:
    """What one check of an archive has come to."""

    checked: str  # how much was looked at, in words; empty for nothing
    wrong: list[str]
    not_checked: list[str] = field(default_factory=list)  # what could not be looked at


# Records


def check_records(archive: RunArchive) -> CheckResult:
    """Hold each configuration against its fingerprint, its file and its command."""
    wrong = []
    for record in archive.records:
        run_name = record.place
        fingerprint = fingerprint_of(record.config, record.inputs, record.results_version)
        if fingerprint != record.fingerprint:
            wrong.append(
                f"{run_name}: its configuration or inputs are not those of its fingerprint"
            )
        wrong += (f"{run_name}: {mismatch}" for mismatch in config_mismatches(record))
        if not (record.folder / CONFIG_FILE).is_file():
            wrong.append(f"{run_name} has no {CONFIG_FILE}, as every run has")
    return CheckResult(f"{len(archive.records)} configurations", wrong)


def config_mismatches(record: Record) -> Iterator[str]:
    """Say where config.yaml or the command line differ from the record's configuration.

    A key that they leave open is no difference.
    """
    sources: dict[str, JsonObject] = {"its command": dict(values_of(record.overrides))}
    file = record.folder / CONFIG_FILE
    if file.is_file():
        sources[CONFIG_FILE] = flatten(read_yaml(file))
    recorded = flatten(record.config)
    for source, values in sources.items():
        for key, value in values.items():
            # A value from the environment, or one that looks like a secret, is recorded as a hash.
            if key not in recorded or "(sha256" in str(recorded[key]):
                continue
            text = str(value).strip("'\"")
            is_open = "${" in text or HIDDEN in text
            if not is_open and _comparable(text) != _comparable(str(recorded[key])):
                yield f"{key} is {recorded[key]!r}, and {source} says {value!r}"


def _comparable(text: str) -> float | str:
    """A value, alike for YAML's and Python's ways to write it: 1 and 1.0, null and None."""
    lowered = text.lower()
    try:
        return float(lowered)
    except ValueError:
        return "none" if lowered == "null" else lowered


# Encoders


def check_encoders(archive: RunArchive) -> CheckResult:
    """Check each encoder's small files, and that each other run began with the encoder it names."""
    wrong: list[str] = []
    not_checked = []
    # (experiment, arm, seed) -> fingerprints of the encoders that a pre-training kept
    fingerprints: dict[tuple[str, str, int], set[str]] = {}
    for record, folder in _kept_encoders(archive):
        if (folder / CHECKSUMS_FILE).is_file():
            run_key = (record.experiment, record.name, record.seed)
            fingerprints.setdefault(run_key, set()).add(encoder_fingerprint(folder))
        wrong += encoder_mismatches(record, folder)

    for record in archive.records:
        arm = str(record.config.get("encoder_arm"))
        expected = fingerprints.get((record.experiment, arm, record.pretrain_seed))
        has_own_encoder = (record.config.get("measure") or {}).get("encoder")
        if not expected or has_own_encoder:
            continue
        if "encoder" in map(key_of, record.overrides):
            not_checked.append("an encoder that a command named by its folder")
        elif record.inputs.get("encoder") not in expected:
            wrong.append(f"{record.place} began with another encoder than {arm}'s in the pack")
    num_encoders = sum(map(len, fingerprints.values()))
    return CheckResult(f"{num_encoders} encoders' small files", wrong, not_checked)


def _kept_encoders(archive: RunArchive) -> Iterator[tuple[Record, Path]]:
    """Every pre-training with each folder of an encoder that it kept."""
    for record in archive.records:
        if record.stage == "pretrain":
            folders = {path.parent for path in record.folder.glob("encoder*/**/*.*")}
            for folder in sorted(folders):
                yield record, folder


def encoder_mismatches(record: Record, folder: Path) -> Iterator[str]:
    """Say which files of an encoder are not those of its checksums, and whose run it is of."""
    encoder_name = f"{record.place}/{folder.name}"
    if not (folder / CHECKSUMS_FILE).is_file():
        yield f"{encoder_name} has no {CHECKSUMS_FILE}, as every encoder has"
        return
    for name, checksum in read_json(folder / CHECKSUMS_FILE).items():
        path = folder / name
        if path.is_file() and file_sha256(path) != checksum:
            yield f"{encoder_name}: {path.name} is not that of {CHECKSUMS_FILE}"
    fingerprint = record.fingerprint
    if record.shared:
        fingerprint = record.shared.fingerprint
    about = read_json(folder / "config.json").get("clozelab", {})
    if about.get("run_fingerprint", fingerprint) != fingerprint:
        yield f"{encoder_name}: it is of another run"


# Scores


def check_scores(archive: RunArchive, data_dir: str) -> CheckResult:
    """Hold every score of a record against its files, and against what its predictions give.

    The files are metrics.csv of a pre-training, scores.json of other runs.
    """
    wrong: list[str] = []
    not_checked = []
    num_rescored = 0
    for record in archive.records:
        if not record.is_complete:
            continue
        if record.stage == "pretrain":
            mismatches = list(pretraining_mismatches(record))
        else:
            scores, without_scores = rescore(record, data_dir)
            num_rescored += len(scores)
            not_checked += without_scores
            mismatches = list(scores_file_mismatches(record))
            # No official scorer gives every figure.
            mismatches += score_mismatches(record, "its predictions", scores, scores.keys())
        wrong += (f"{record.place}: {mismatch}" for mismatch in mismatches)
    return CheckResult(f"{num_rescored} scores against predictions", wrong, not_checked)


def rescore(record: Record, data_dir: str) -> tuple[dict[str, float], list[str]]:
    """The scores that a run's predictions give, and a sentence on those that they do not.

    `data_dir` has the tasks' right answers, where they are needed.
    """
    try:
        scores = rescored(record, data_dir)
    except ValueError as error:
        # The lines of a measure may be no examples.
        if record.stage == "evaluate" and isinstance(error.__cause__, KeyError):
            return {}, [f"all figures of {record.task}: no predictions give them"]
        return {}, [f"scores on {record.task}: {error}"]
    # Those of numbered layers and the like as one, without "validation".
    figures = set()
    for key in record.values.keys() - scores.keys():
        figures.add(re.sub(r"\d+$", "*", key.partition("/")[2]))
    if not figures:
        return scores, []
    return scores, [f"{listed(sorted(figures))}: no predictions give them"]


def pretraining_mismatches(record: Record) -> Iterator[str]:
    """Say which facts and scores of a pre-training are not those that end its metrics.csv."""
    rows = list(read_rows(record.folder / "metrics.csv"))
    logged = {row.key: row.value for row in rows}  # a later row wins
    final = {}
    if rows:
        final = {
            "steps": rows[-1].step,
            "tokens": rows[-1].tokens,
            "training_seconds": rows[-1].seconds,
        }
    for key, value in (final | logged).items():
        if not abs(record.facts.get(key, value) - value) <= ROUNDED_SECONDS:
            yield f"{key} is {record.facts[key]:.10g}, and metrics.csv ends with {value:.10g}"
    yield from score_mismatches(record, "its facts", record.facts, record.values)
    yield from score_mismatches(record, "metrics.csv", logged, record.values)


def scores_file_mismatches(record: Record) -> Iterator[str]:
    """Say where a record tells its scores otherwise than scores.json, also their units and floors.

    Units are told by a figure's name.
    """
    saved = read_json(record.folder / "scores.json")
    facts: JsonObject = {"metric": record.metric}
    for key in ("collapsed", "synthetic"):
        facts[key] = record.facts.get(key) or False
    for key, value in facts.items():
        if value != (saved.get(key) or False):
            yield f"{key} is {value!r}, and scores.json gives {saved.get(key)!r}"
    # The record as it would be, had it read this scores.json.
    reread = record.model_copy(deep=True)
    for key, score in record.scores.items():
        reread.scores[key] = Score.of(
            key, are_shares=score.factor != 1.0, positive_label=saved.get("positive_label")
        )
    reread.take(saved)
    for key, score in record.scores.items():
        recorded = score.model_dump(exclude={"value"})
        given = reread.scores[key].model_dump(exclude={"value"})
        if recorded != given:
            yield f"{key} is in {recorded}, and scores.json gives {given}"
    yield from score_mismatches(record, "scores.json", saved["scores"], record.values)


def score_mismatches(
    record: Record, source: str, given: Mapping[str, float], keys: Collection[str]
) -> Iterator[str]:
    """Say which scores of a record, of those in `keys`, are not those of a source."""
    for key, value in record.values.items():
        if key not in keys:
            continue
        factor = record.scores[key].factor  # 100 for a share that is shown in percent
        given_value = factor * float(given.get(key, math.nan))
        # Both are of the same float, but for its way through text and a change of unit.
        tolerance = 1e-9 * max(1.0, abs(value))
        if key.endswith(CORRELATIONS):
            tolerance = ROUNDED * factor
        # So written, because a score that is missing is nan, and nan is never within.
        if not abs(given_value - value) <= tolerance:
            yield f"{key} is {value:.6g}, and {source} gives {given_value:.6g}"


# The table


def check_table(archive: RunArchive) -> CheckResult:
    """Make results.csv again from the records, and compare; an older one lacks added columns."""
    folder = archive.folder / "again"
    folder.mkdir()
    old_lines = (archive.folder / RESULTS).read_text(encoding="utf-8").splitlines()
    header = "".join(old_lines[:1]).split(",")
    new_file = write_results_table(
        archive.manifest,
        archive.records,
        archive.experiment,
        folder,
        left_out=ADDED_COLUMNS.difference(header),
    )
    new_lines = new_file.read_text(encoding="utf-8").splitlines()
    wrong = []
    for new_line, old_line in zip_longest(new_lines, old_lines, fillvalue=""):
        if new_line != old_line:
            wrong.append(f"{RESULTS} says {old_line!r}, and the records say {new_line!r}")
            break
    return CheckResult(f"{len(new_lines) - 1} lines of {RESULTS}", wrong)


# A run


def check_one_run(
    archive: RunArchive, folder: Path, seed: int, local_paths: Mapping[str, str]
) -> CheckResult:
    """Train a run that chance chooses from its beginning in `folder`, and compare.

    Args:
        local_paths: the overrides that say where data and cache are on this machine.
    """
    # Copies of one encoder have one fingerprint.
    encoders = {}
    for path in sorted(archive.folder.rglob("model.safetensors")):
        encoders[encoder_fingerprint(path.parent)] = path.parent
    candidates = [
        record for record in archive.records if _is_trainable(record, archive, encoders.keys())
    ]
    if not candidates:
        return CheckResult("", [], ["training: no run of it can be trained again by this code"])
    # The same seed draws the same run again.
    record = random.Random(seed).choice(candidates)
    further = dict(local_paths)
    if record.stage == "pretrain":
        further["share_runs"] = "false"
    else:
        further["encoder"] = str(encoders[record.inputs["encoder"]])
    further |= {"runs_dir": str(folder), "trainer.progress_bar": "false", "hydra.mode": "RUN"}
    try:
        command = _safe_command(record, archive, folder)
        comparison = rerun_from_beginning(command, folder, further)
    except ValueError as error:
        return CheckResult("", [], [f"training {record.place} again: {error}"])
    wrong = [
        f"{record.place}, trained again, {difference}" for difference in comparison.differences
    ]
    return CheckResult(f"{record.place} {comparison.description}", wrong)


def _is_trainable(record: Record, archive: RunArchive, encoders: Collection[str]) -> bool:
    """Whether this code makes such a run, and the pack has what it takes.

    `encoders` are the fingerprints of those that came with their weights.
    """
    is_current = record.is_complete and record.results_version == RESULTS_VERSIONS[record.stage]
    if not is_current or record.shared:
        return False
    # A shared run's experiment is in no pack: nothing says its arm.
    if record.config_dir and record.experiment != Path(archive.manifest.experiment).stem:
        return False
    return record.stage == "pretrain" or record.inputs.get("encoder") in encoders


def _safe_command(record: Record, archive: RunArchive, folder: Path) -> Record:
    """The record with a command line that may be run here, in `folder`.

    Raises:
        ValueError: it says what no experiment's file might say: it would be run as this user.
    """
    # The run's own overrides, but for those that say where its maker kept things.
    overrides = []
    for word in record.overrides:
        if key_of(word) in LOCAL_KEYS or word.startswith("logger"):
            continue
        if not SAFE_OVERRIDE.fullmatch(word):
            raise ValueError(f"its command says {word!r}, which nobody else may")
        overrides.append(word)
    if not re.fullmatch(r"\w+", record.config_name):
        raise ValueError("its command line is not known")
    config = OmegaConf.create(values_of(overrides))
    check_file("its command", "", ConfigResult("pack", "", config, {}))
    config_dir = ""
    if record.config_dir:
        config_dir = str(archive.experiment)
    changes = {"overrides": overrides, "config_dir": config_dir, "started_in": str(folder)}
    return record.model_copy(update=changes)
