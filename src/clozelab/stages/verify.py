"""`clozelab verify`: is a run, or a pack of runs, what it says?"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from clozelab.stages.archive import open_archive
from clozelab.stages.archive_checks import (
    CheckResult,
    check_encoders,
    check_one_run,
    check_records,
    check_scores,
    check_table,
)
from clozelab.stages.compare import open_run
from clozelab.stages.rerun import refuse_other_version, rerun_from_beginning, rerun_from_checkpoint
from clozelab.terminal import Words, make_console, path_of, say, verb

HELP = """clozelab verify RUN
clozelab verify FILE [retrain=false] [seed=1] [data_dir=FOLDER]
        [cache_dir=FOLDER]

Trains a stretch of a run again: from its earlier checkpoint (from the
beginning, where there is one alone) to its last one, in a temporary folder;
nothing of the run is touched. Compares the digest of all batches, every logged
figure, weights and optimizer state. An evaluation is measured again, and a
finished fine-tuning, which keeps no checkpoint, is trained again from its
beginning: their figures and predictions are compared. Exit status 0: the same
run; 1: it is not, or it cannot be made again.

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


@verb("verify", HELP, names=(1, 1), keys=("retrain", "seed", "data_dir", "cache_dir"))
def main(args: Words) -> int:
    """Print the verdict; returns the exit status."""
    console = make_console()
    path = Path(args.names[0])
    if path.is_file():
        return verify_archive(path, parse_archive_options(args.values), console)
    if args.values:
        raise ValueError(f"verify RUN takes no {next(iter(args.values))}=; it is for a pack")
    return verify_run(args.names[0], console)


def verify_run(folder: str, console: Console) -> int:
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
        say(console, f"{record.folder} {verdict} ({comparison.description})", style="bold red")
        return 1
    say(console, f"{record.folder} is the same run ({comparison.description})", style="green")
    return 0


@dataclass(frozen=True)
class ArchiveOptions:
    """How a pack is to be verified."""

    data_dir: str
    retrains: bool
    seed: int
    local_paths: dict[str, str]  # the overrides of a training on this machine


def parse_archive_options(values: Mapping[str, str]) -> ArchiveOptions:
    """Read the keys of the command line; ValueError for an impossible value."""
    retrain = values.get("retrain", "true")
    seed = values.get("seed", "1")
    if retrain not in ("true", "false") or not seed.isdecimal():
        raise ValueError("retrain= is true or false, and seed= a number")
    data_dir = str(Path(path_of("data_dir", values)).absolute())
    local_paths = {"data_dir": data_dir}
    if "cache_dir" in values:
        local_paths["cache_dir"] = values["cache_dir"]
    return ArchiveOptions(data_dir, retrain == "true", int(seed), local_paths)


def verify_archive(path: Path, options: ArchiveOptions, console: Console) -> int:
    """Check a pack, and print what is wrong, what was checked and what could not be.

    Returns:
        The exit status.
    """
    with tempfile.TemporaryDirectory(prefix="clozelab-verify-") as folder:
        archive = open_archive(path, Path(folder) / "pack")
        checks: list[Callable[[], CheckResult]] = [
            partial(check_records, archive),
            partial(check_encoders, archive),
            partial(check_scores, archive, options.data_dir),
            partial(check_table, archive),
        ]
        if options.retrains:
            checks.append(
                partial(check_one_run, archive, Path(folder), options.seed, options.local_paths)
            )
        checksums = CheckResult(
            f"{len(archive.manifest.files)} checksums",
            [
                f"{name}: its sha256 is not the one in the manifest"
                for name in archive.changed_files
            ],
        )
        results = [checksums, *map(_run_check, checks)]
    # The folder is gone by now: its name would only lengthen the sentences.
    wrong: list[str] = []
    for result in results:
        wrong += (line.replace(f"{folder}/pack/", "") for line in result.wrong)
    print_results(results, wrong, console)
    if wrong:
        say(console, f"{path} is not what it says: {len(wrong)} findings", style="bold red")
        return 1
    say(console, f"{path} is what it says, as far as it was checked", style="green")
    return 0


def _run_check(check: Callable[[], CheckResult]) -> CheckResult:
    """Run a check; what it cannot read is a finding, for the file may be forged."""
    try:
        return check()
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        return CheckResult("", [f"something cannot be read ({type(error).__name__}: {error})"])


def print_results(results: Sequence[CheckResult], wrong: Sequence[str], console: Console) -> None:
    """Print the findings, at most MAX_SHOWN of them, and what was checked and what was not."""
    for line in wrong[:MAX_SHOWN]:
        say(console, f"wrong: {line}", style="bold red")
    if len(wrong) > MAX_SHOWN:
        say(console, f"wrong: and {len(wrong) - MAX_SHOWN} more", style="bold red")
    checked = [result.checked for result in results if result.checked]
    say(console, f"checked: {', '.join(checked)}")
    # What many runs have in common is said once.
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.not_checked)
    for line, count in counts.items():
        times = ""
        if count > 1:
            times = f" ({count} times)"
        say(console, f"not checked: {line}{times}", style="yellow")
