"""`clozelab verify`: is a run, or a pack of runs, what it says?

A run goes on again by its own command from its earlier checkpoint: what is tested is what a resumed
run does, restore, data, masks, dropout and kernels. A pack may be forged, and its manifest with it:
so what is in it is held against what else is in it. The words of a record are run only if an
experiment's file might say them.
"""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf

from clozelab.corpus.files import digest, file_sha256
from clozelab.launch.experiments import check_file
from clozelab.metrics.glue import CORRELATIONS
from clozelab.results.experiment import read_yaml
from clozelab.runs.identity import RESULTS_VERSIONS, flatten, identity_of
from clozelab.runs.inputs import encoder_fingerprint
from clozelab.runs.record import CONFIG_FILE, Record, Score, changes, read_record, write_record
from clozelab.runs.redaction import HIDDEN
from clozelab.stages.compare import open_run
from clozelab.stages.travel import RESULTS, Parcel, open_parcel, results_of
from clozelab.terminal import Words, make_console, path_of, say, verb
from clozelab.text.did_you_mean import key_of
from clozelab.text.formatting import duration, listed
from clozelab.training.host import host_facts
from clozelab.training.measuring import read_rows
from clozelab.training.stopping import TERMINATED, die_with_parent

HELP = """clozelab verify RUN
clozelab verify FILE [retrain=false] [seed=1] [data_dir=FOLDER] [cache_dir=FOLDER]

Trains a stretch of a run again: from its earlier checkpoint (from the beginning, where there is one alone) to its last
one, in a temporary folder; nothing of the run is touched. Compares the digest of all batches, every logged figure,
weights and optimizer state. An evaluation is measured again, and a finished fine-tuning, which keeps no checkpoint, is
trained again from its beginning: their figures and predictions are compared. Exit status 0: the same run; 1: it is not,
or it cannot be made again.

To the bit on a CPU, or with trainer.deterministic=true, where machine and torch are those of the run. Otherwise the
digest, and figures within 1 %.

Of a pack (FILE): every checksum; each configuration against its fingerprint, its file and its command; each encoder
that was fine-tuned; every score against the predictions, by the official scorers; the table. Then one run is trained
again from its beginning and compared: to the bit, or, on another kind of machine, its batches and its headline score
within 5 %. Says what was found, what was checked, and what could not be.

  retrain=false     trains nothing
  seed=1            which run is drawn
  data_dir=FOLDER   where the tasks' files and the corpus lie: SQuAD's right answers are in no pack"""
TIMED = ("train/tokens_per_second", "train/mfu")
TOLERANCE = 0.01  # of figures, where bits cannot be expected to be the same
OWN_KEYS = (
    "run_dir",
    "logger",
    "stop_after_step",
    "share_runs",
    "trainer.threads",
    "allow_targets",
)
SHOWN_CHARACTERS = 600  # of the end of what a failed process said


@verb("verify", HELP, names=(1, 1), keys=("retrain", "seed", "data_dir", "cache_dir"))
def main(said: Words) -> int:
    """Print one sentence; returns the exit status."""
    if Path(said.names[0]).is_file():
        return verify_pack(Path(said.names[0]), said.values)
    if said.values:
        raise ValueError(f"verify RUN takes no {next(iter(said.values))}=; it is for a pack")
    record, console = open_run(said.names[0]), make_console()
    refuse_other_version(record)
    is_kept = (record.folder / "checkpoints").is_dir()
    is_whole = record.stage == "evaluate" or (record.stage == "finetune" and not is_kept)
    if is_whole:
        again = make_again
    else:
        again = train_again
    with tempfile.TemporaryDirectory(prefix="clozelab-verify-") as place:
        stretch, found = again(record, Path(place))
    verdict = f"is not the same run: {'; '.join(found)}" if found else "is the same run"
    say(console, f"{record.folder} {verdict} ({stretch})", style="bold red" if found else "green")
    return int(bool(found))


def refuse_other_version(record: Record) -> None:
    """ValueError for a run whose results are of another version than those that this code makes."""
    version = RESULTS_VERSIONS[record.stage]
    if record.results_version == version:
        return
    commit = "unknown"
    if record.git:
        commit = record.git.commit
    raise ValueError(
        f"{record.folder} has results version {record.results_version} of {record.stage}, and this"
        f" code makes version {version}: verify it with the code that made it (commit {commit})"
    )


def make_again(record: Record, place: Path) -> tuple[str, list[str]]:
    """The same for a complete run that has no checkpoint to go on from: all of it, from its
    beginning."""
    if not record.is_complete:
        raise ValueError(
            f"{record.folder} is {record.status}, not complete: there is nothing to compare",
        )
    if not record.config_name:
        raise ValueError(f"{record.folder} was not made by a command line")
    say(make_console(), f"making {record.folder} again; it took {duration(record.seconds)}")
    done = run_again(record, place / "run")
    ours = read_record(place / "run")
    if done.returncode or ours is None or not ours.is_complete:
        raise ValueError(
            f"{record.folder} cannot be made again: {done.stderr.strip()[-SHOWN_CHARACTERS:]}",
        )
    what = "trained again from its beginning"
    if record.stage == "evaluate":
        what = "measured again"
    return f"{what} and compared {_how_exactly(record)}", [*_other_run(record, ours)]


def run_again(record: Record, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """A run's own command once more, with another run folder and `more` words."""
    if record.started_in and not Path(record.started_in).is_dir():
        gone = f"was started in {record.started_in}, which is gone"
        raise ValueError(f"{record.folder} {gone}: its command needs that folder")
    own = [word for word in record.words if key_of(word) not in OWN_KEYS]
    words = [word for word in own if not word.startswith("logger.")]
    words += ["logger=none", f"run_dir={folder}", *more]
    if "threads" in record.facts:
        words.append(f"trainer.threads={record.facts['threads']}")
    options: Any = {
        "cwd": record.started_in or None,
        "stdin": subprocess.DEVNULL,
        "capture_output": True,
        "text": True,
    }
    command = [sys.executable, "-m", "clozelab", *words]
    return subprocess.run(command, errors="replace", preexec_fn=die_with_parent, **options)


def train_again(record: Record, place: Path) -> tuple[str, list[str]]:
    """Which stretch of a run was trained again in `place`, and how compared; what differs."""
    # torch: a mistake need not wait for it
    from clozelab.training.checkpoints import LAST, PREVIOUS, load_file

    theirs, ours = record.folder / "checkpoints", place / "run" / "checkpoints"
    if record.shared or not record.config_name or not (theirs / LAST).is_file():
        why = (
            f"shares {record.shared.run}: verify that"
            if record.shared
            else f"has no {theirs / LAST}"
        )
        raise ValueError(
            f"{record.folder} {why if record.config_name else 'was not made by a command line'}"
        )
    ours.mkdir(parents=True)
    last, first = load_file(theirs / LAST), 0
    if (theirs / PREVIOUS).is_file():
        first = load_file(Path(shutil.copyfile(theirs / PREVIOUS, ours / LAST)))["global_step"]
    write_record(record.model_copy(update={"folder": ours.parent, "status": "interrupted"}))
    more = [f"stop_after_step={last['global_step']}"]
    if record.stage == "pretrain":
        more.append("share_runs=false")
    done = run_again(record, ours.parent, *more)
    if done.returncode not in (0, TERMINATED) or not (ours / LAST).is_file():
        raise ValueError(
            f"{record.folder} cannot be trained again: {done.stderr.strip()[-SHOWN_CHARACTERS:]}"
        )
    again, steps, is_exact = (
        load_file(ours / LAST),
        range(first + 1, last["global_step"] + 1),
        is_reproducible(record),
    )
    found = [] if again["batches_seen"] == last["batches_seen"] else ["other batches were read"]
    found += figures_that_differ(record.folder, ours.parent, steps, 0.0 if is_exact else TOLERANCE)
    if is_exact and not is_same_state(again, last):
        found.append("weights or optimizer state differ")
    count = sum(
        row.step in steps and row.key not in TIMED
        for row in read_rows(record.folder / "metrics.csv")
    )
    how = (
        "to the bit"
        if is_exact
        else f"by all batches, and by {count} figures within {TOLERANCE:.0%}"
    )
    return f"steps {steps[0]} to {steps[-1]} trained again and compared {how}", found


def is_reproducible(record: Record) -> bool:
    """Whether this machine should give the very same bits."""
    trainer = record.config["trainer"]
    is_same = record.environment == host_facts()["environment"] and not record.facts.get(
        "earlier_layouts"
    )
    return is_same and (trainer["accelerator"] == "cpu" or trainer["deterministic"])


def figures_that_differ(theirs: Path, ours: Path, steps: range, tolerance: float) -> list[str]:
    """In words, of the logged figures of a stretch."""
    files = [read_rows(folder / "metrics.csv") for folder in (theirs, ours)]
    there, here = (
        {(row.step, row.key): row.value for row in file if row.step in steps} for file in files
    )
    pairs = {
        key: (there.get(key, math.nan), here.get(key, math.nan))
        for key in there | here
        if key[1] not in TIMED
    }
    wrong = [key for key, (one, two) in pairs.items() if not abs(one - two) <= tolerance * abs(one)]
    if not wrong:
        return []
    (step, key), (before, now) = wrong[0], pairs[wrong[0]]
    return [
        (
            f"{len(wrong)} of {len(pairs)} figures differ, first {key} of step {step}: {before:.6g},"
            f" now {now:.6g}"
        )
    ]


def is_same_state(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether weights and optimizer states of two checkpoints are the same to the bit."""
    parts = ("state_dict", "optimizer_states")
    flat, there = (
        flatten({key: content.get(key, {}) for key in parts}) for content in (one, other)
    )
    tensors = {key: value for key, value in flat.items() if hasattr(value, "equal")}
    return flat.keys() == there.keys() and all(
        value.equal(there[key]) for key, value in tensors.items()
    )


Found = tuple[str, list[str], list[str]]
"""Of one kind of check: how much was looked at, what is wrong, what could not be looked at."""
RETRAINED_TOLERANCE = 0.05  # of a headline score, on another kind of machine
# equal to the byte, if all is
MADE_FILES = ("encoder*/**/checksums.json", "predictions*.json*", "null_odds.json")
ROUNDED = 1e-4  # of correlations: predicted numbers are kept with five decimals
PLAIN_WORD = re.compile(r"\+{0,2}(?!hydra)[\w./]+=[^$]*")
PLACES = (
    *OWN_KEYS,
    "runs_dir",
    "data_dir",
    "cache_dir",
    "encoder",
    "reuse",
    "trainer.progress_bar",
)
SHOWN = 20


def verify_pack(path: Path, values: Mapping[str, str]) -> int:
    """Say what is wrong with a pack, what was checked, and what could not be; returns the exit
    status.
    """
    console, data_dir = make_console(), str(Path(path_of("data_dir", values)).absolute())
    if (
        values.get("retrain", "true") not in ("true", "false")
        or not values.get("seed", "1").isdecimal()
    ):
        raise ValueError("retrain= is true or false, and seed= a number")
    with tempfile.TemporaryDirectory(prefix="clozelab-verify-") as place:
        parcel, damaged = open_parcel(path, Path(place) / "pack")
        checksums = [f"{name}: its sha256 is not the one in the manifest" for name in damaged]
        found: list[Found] = [(f"{len(parcel.manifest.files)} checksums", checksums, [])]
        scores = partial(check_scores, data_dir=data_dir)
        checks: list[Callable[[Parcel], Found]] = [
            check_records,
            check_encoders,
            scores,
            check_table,
        ]
        if values.get("retrain") != "false":
            own = {"data_dir": data_dir} | {
                key: values[key] for key in ("cache_dir",) if key in values
            }
            checks.append(
                partial(
                    train_one_again, place=Path(place), seed=int(values.get("seed", "1")), own=own
                )
            )
        for check in checks:
            try:
                found.append(check(parcel))
            except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
                found.append(
                    ("", [f"something cannot be read ({type(error).__name__}: {error})"], [])
                )
    wrong = [line.replace(f"{place}/pack/", "") for _, lines, _ in found for line in lines]
    for line in [
        *wrong[:SHOWN],
        *([f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []),
    ]:
        say(console, f"wrong: {line}", style="bold red")
    say(console, f"checked: {', '.join(filter(None, (what for what, _, _ in found)))}")
    for line, count in Counter(line for _, _, lines in found for line in lines).items():
        say(
            console,
            f"not checked: {line}{f' ({count} times)' if count > 1 else ''}",
            style="yellow",
        )
    verdict = (
        f"is not what it says: {len(wrong)} findings"
        if wrong
        else "is what it says, as far as it was checked"
    )
    say(console, f"{path} {verdict}", style="bold red" if wrong else "green")
    return int(bool(wrong))


def check_records(parcel: Parcel) -> Found:
    """The records that the manifest lists; each configuration against its fingerprint, its file and
    its command.
    """
    there = {one.place: one for one in parcel.records if one.fingerprint}
    wrong = [
        f"{place}: its record cannot be read, or is not that of the manifest"
        for place, one in parcel.manifest.runs.items()
        if place not in there
        or (there[place].fingerprint, there[place].code) != (one.fingerprint, one.code)
    ]
    for place, one in there.items():
        said = {
            "config": identity_of(one.config),
            "inputs": one.inputs,
            "results_version": one.results_version,
        }
        if digest(said) != one.fingerprint:
            wrong.append(f"{place}: its configuration or inputs are not those of its fingerprint")
        wrong += [f"{place}: {line}" for line in _apart(one)]
        wrong += (
            []
            if (one.folder / CONFIG_FILE).is_file()
            else [f"{place} has no {CONFIG_FILE}, as every run has"]
        )
    return f"{len(there)} configurations", wrong, []


def _apart(record: Record) -> Iterator[str]:
    """What config.yaml or the command line says otherwise than the record; what they leave open
    says nothing.
    """
    values = {
        key: value for key, value in flatten(record.config).items() if "(sha256" not in str(value)
    }
    sources = {"its command": {key_of(word): word.partition("=")[2] for word in record.overrides}}
    if (file := record.folder / CONFIG_FILE).is_file():
        sources[CONFIG_FILE] = flatten(read_yaml(file))
    for where, said in sources.items():
        for key in said.keys() & values.keys():
            pair = str(values[key]), str(said[key]).strip("'\"")
            if "${" not in pair[1] and HIDDEN not in pair[1] and len(set(map(_plain, pair))) > 1:
                yield f"{key} is {values[key]!r}, and {where} says {said[key]!r}"


def _plain(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return {"null": "none"}.get(text.lower(), text.lower())


def check_encoders(parcel: Parcel) -> Found:
    """Each encoder's small files against its checksums and its run; each other run against the
    encoder it names.
    """
    wrong, given, known = list[str](), list[str](), dict[tuple[str, str, int], set[str]]()
    for one in (one for one in parcel.records if one.stage == "pretrain"):
        for folder in sorted({path.parent for path in one.folder.glob("encoder*/**/*.*")}):
            file, where = folder / "checksums.json", f"{one.place}/{folder.name}"
            if not file.is_file():
                wrong.append(f"{where} has no {file.name}, as every encoder has")
                continue
            known.setdefault((one.experiment, one.name, one.seed), set()).add(
                encoder_fingerprint(folder)
            )
            sums = {
                folder / name: sha
                for name, sha in json.loads(file.read_text(encoding="utf-8")).items()
            }
            wrong += [
                f"{where}: {path.name} is not that of {file.name}"
                for path, sha in sums.items()
                if path.is_file() and file_sha256(path) != sha
            ]
            made = json.loads((folder / "config.json").read_text(encoding="utf-8")).get(
                "clozelab", {}
            )
            of = one.shared.fingerprint if one.shared else one.fingerprint
            wrong += (
                [f"{where}: it is of another run"] if made.get("run_fingerprint", of) != of else []
            )
    for one in (
        one for one in parcel.records if not (one.config.get("measure") or {}).get("encoder")
    ):
        encoders = known.get(
            (one.experiment, str(one.config.get("encoder_arm")), one.pretrain_seed)
        )
        if encoders and "encoder" in map(key_of, one.overrides):
            given.append("an encoder that a command named by its folder")
        elif encoders and one.inputs.get("encoder") not in encoders:
            wrong.append(
                f"{one.place} began with another encoder than {one.config['encoder_arm']}'s in the"
                " pack"
            )
    return f"{sum(map(len, known.values()))} encoders' small files", wrong, given


def check_scores(parcel: Parcel, data_dir: str) -> Found:
    """Every score of a record against scores.json or metrics.csv, and against what the predictions
    give; its floors.
    """
    from clozelab.results.answers import rescored  # scipy

    wrong, missing, unasked, count = list[str](), list[str](), set[str](), 0
    for one in (one for one in parcel.records if one.is_complete):
        if one.stage == "pretrain":
            rows = [*read_rows(one.folder / "metrics.csv")]
            sides = {"its facts": one.facts, "metrics.csv": {row.key: row.value for row in rows}}
            ends = [
                {"steps": row.step, "tokens": row.tokens, "training_seconds": row.seconds}
                for row in rows[-1:]
            ]
            for key, value in ChainMap(sides["metrics.csv"], *ends).items():
                # metrics.csv has milliseconds
                if not abs(one.facts.get(key, value) - value) <= 1e-3:
                    wrong.append(
                        f"{one.place}: {key} is {one.facts[key]:.10g}, and metrics.csv ends with"
                        f" {value:.10g}"
                    )
        else:
            saved = json.loads((one.folder / "scores.json").read_text(encoding="utf-8"))
            sides = {"scores.json": saved["scores"]}
            wrong += [f"{one.place}: {line}" for line in _said_otherwise(one, saved)]
            try:
                sides["its predictions"] = rescored(one, data_dir)
                count += len(sides["its predictions"])
                left = one.values.keys() - sides["its predictions"].keys()
                unasked |= {re.sub(r"\d+$", "*", key.partition("/")[2]) for key in left}
            except ValueError as error:
                # its lines are no examples
                if one.stage == "evaluate" and isinstance(error.__cause__, KeyError):
                    unasked.add(f"all figures of {one.task}")
                else:
                    missing.append(
                        f"scores on {one.task}: {str(error).replace(f'{parcel.folder}/', '')}"
                    )
        for where, key in product(sides, one.values):
            value, given = (
                one.values[key],
                one.scores[key].factor * float(sides[where].get(key, math.nan)),
            )
            slack = (
                ROUNDED * one.scores[key].factor
                if key.endswith(CORRELATIONS)
                else 1e-9 * max(1.0, abs(value))
            )
            # no official scorer gives every figure
            is_given = where != "its predictions" or key in sides[where]
            if is_given and not abs(given - value) <= slack:
                wrong.append(f"{one.place}: {key} is {value:.6g}, and {where} gives {given:.6g}")
    missing += [f"{listed(sorted(unasked))}: no predictions give them"] if unasked else []
    return f"{count} scores against predictions", wrong, missing


def _said_otherwise(record: Record, saved: Mapping[str, Any]) -> Iterator[str]:
    """What else a record says of its scores than scores.json: their metric, their floors, what they
    are worth.
    """
    bare = {key: Score(unit=one.unit, factor=one.factor) for key, one in record.scores.items()}
    (again := record.model_copy(update={"scores": bare})).take(saved)
    pairs: dict[str, tuple[Any, Any]] = {"metric": (record.metric, saved.get("metric"))}
    pairs |= {
        key: (record.facts.get(key) or False, saved.get(key) or False)
        for key in ("collapsed", "synthetic")
    }
    for key, one in record.scores.items():
        theirs, unit = again.scores[key], Score.of(key, are_shares=one.factor != 1.0)
        pairs[f"the unit of {key}"] = (one.unit, one.factor), (unit.unit, unit.factor)
        pairs[f"the floors of {key}"] = (
            (one.majority, one.baselines),
            (theirs.majority, theirs.baselines),
        )
    for what, (mine, given) in pairs.items():
        if mine != given:
            yield f"{what} is {mine!r}, and scores.json gives {given!r}"


def check_table(parcel: Parcel) -> Found:
    """results.csv, made again from the records."""
    (parcel.folder / "again").mkdir()
    again = results_of(parcel.manifest, parcel.records, parcel.experiment, parcel.folder / "again")
    lines, theirs = (
        path.read_text(encoding="utf-8").splitlines() for path in (again, parcel.folder / RESULTS)
    )
    apart = next(
        (one for one in zip_longest(lines, theirs, fillvalue="") if one[0] != one[1]), None
    )
    wrong = [f"{RESULTS} says {apart[1]!r}, and the records say {apart[0]!r}"] if apart else []
    return f"{len(lines) - 1} lines of {RESULTS}", wrong, []


def train_one_again(parcel: Parcel, place: Path, seed: int, own: Mapping[str, str]) -> Found:
    """Train a run that chance chooses from its beginning, and compare; `own`: this machine's
    places.
    """
    heavy = {
        encoder_fingerprint(path.parent): path.parent
        for path in sorted(parcel.folder.rglob("model.safetensors"))
    }
    able = [one for one in parcel.records if _can_be_trained_again(one, parcel, heavy)]
    if not able:
        old = any(
            one.results_version != RESULTS_VERSIONS[one.stage]
            for one in parcel.records
            if one.fingerprint
        )
        why = ""
        if old:
            why = ", of the results version that this code makes"
        return "", [], [f"training: no pre-training run of its own, and no encoder{why}"]
    record = random.Random(seed).choice(able)
    words = [
        word
        for word in record.overrides
        if key_of(word) not in PLACES and not word.startswith("logger")
    ]
    here = {
        **own,
        "runs_dir": place,
        "run_dir": place / "again",
        "logger": "none",
        "trainer.progress_bar": "false",
    }
    here |= (
        {"share_runs": "false"}
        if record.stage == "pretrain"
        else {"encoder": heavy[record.inputs["encoder"]]}
    )
    here |= {"trainer.threads": record.facts["threads"]} if "threads" in record.facts else {}
    try:
        if odd := [word for word in words if not PLAIN_WORD.fullmatch(word)]:
            raise ValueError(f"its command says {odd[0]!r}, which nobody else may")
        if not re.fullmatch(r"\w+", record.config_name):
            raise ValueError("its command line is not known")
        said = OmegaConf.create({key_of(word): word.partition("=")[2] for word in words})
        check_file("its command", "", ConfigResult("pack", "", said, {}))
        say(make_console(), f"training {record.place} again; it took {duration(record.seconds)}")
        command = [
            sys.executable,
            "-m",
            "clozelab",
            record.stage,
            "--config-name",
            record.config_name,
        ]
        command += ["--config-dir", str(parcel.experiment)] if record.config_dir else []
        command += [*words, *(f"{key}={value}" for key, value in here.items()), "hydra.mode=RUN"]
        options: Any = {
            "cwd": place,
            "stdin": subprocess.DEVNULL,
            "capture_output": True,
            "text": True,
        }
        done = subprocess.run(command, errors="replace", preexec_fn=die_with_parent, **options)
        ours = read_record(place / "again")
        if done.returncode or ours is None or not ours.is_complete:
            raise ValueError(done.stderr.strip()[-SHOWN_CHARACTERS:])
    except ValueError as error:
        return "", [], [f"training {record.place} again: {error}"]
    how = _how_exactly(record)
    wrong = [f"{record.place}, trained again, {line}" for line in _other_run(record, ours)]
    return f"{record.place} trained again and compared {how}", wrong, []


def _can_be_trained_again(one: Record, parcel: Parcel, encoders: Mapping[str, Path]) -> bool:
    """Whether this code makes such a run, and the pack has what it takes; `encoders`: those with
    weights."""
    if not one.is_complete or one.shared or one.results_version != RESULTS_VERSIONS[one.stage]:
        return False
    # A shared run's experiment is in no pack: nothing says its arm.
    if one.config_dir and one.experiment != Path(parcel.manifest.experiment).stem:
        return False
    return one.stage == "pretrain" or one.inputs.get("encoder") in encoders


def _how_exactly(record: Record) -> str:
    if is_reproducible(record):
        return "to the bit"
    return f"within {RETRAINED_TOLERANCE:.0%}, for another kind of machine"


def _other_run(theirs: Record, ours: Record) -> Iterator[str]:
    """What tells two runs apart that should be one."""
    if theirs.fingerprint != ours.fingerprint:
        yield f"is of another configuration:\n{changes(theirs, ours)}"
    if theirs.facts.get("batches_seen") != ours.facts.get("batches_seen"):
        yield "read other batches"
    if not is_reproducible(theirs):
        before, now = theirs.score or math.nan, ours.score or math.nan
        if not abs(before - now) <= RETRAINED_TOLERANCE * abs(before):
            yield f"has {theirs.metric} {now:.6g}, where it was {before:.6g}"
        return
    yield from figures_that_differ(theirs.folder, ours.folder, range(10**9), 0.0)
    for path in sorted(path for pattern in MADE_FILES for path in theirs.folder.glob(pattern)):
        mine = ours.folder / path.relative_to(theirs.folder)
        if not mine.is_file() or mine.read_bytes() != path.read_bytes():
            yield f"left another {path.relative_to(theirs.folder)}"
