"""`clozelab verify`: is it the same run, trained again? Does a pack match its manifest?"""

from __future__ import annotations

import tempfile
from pathlib import Path

from claims.text.phrases import count_noun
from clozelab.results.rerun import refuse_other_version, rerun_from_beginning, rerun_from_checkpoint
from clozelab.runs.archive import open_archive
from clozelab.runs.find import open_run
from clozelab.terminal import ParsedArgs, say, verb

HELP = """clozelab verify RUN
clozelab verify FILE

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

Of a pack (FILE): compares every file with its checksum. Exit status 1:
something differs, and its name is printed."""
MAX_SHOWN = 20  # findings


@verb("verify", HELP, names=(1, 1))
def main(args: ParsedArgs) -> int:
    """Print the verdict; returns the exit status."""
    path = Path(args.names[0])
    if path.is_file():
        return verify_archive(path)
    if not path.exists():
        raise ValueError(f"{path} does not exist; give the folder of a run, or a pack")
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


def verify_archive(path: Path) -> int:
    """Compare a pack's files with its manifest; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="clozelab-verify-") as folder:
        archive = open_archive(path, Path(folder))
        wrong = [f"{name} does not match the manifest" for name in archive.changed]
        num_files = len(archive.manifest.files)
    for line in wrong[:MAX_SHOWN]:
        say(f"wrong: {line}", style="bold red")
    say(f"checked: {num_files} checksums")
    if wrong:
        say(f"{path} is not intact: {count_noun(len(wrong), 'finding')}", style="bold red")
        return 1
    say(f"{path} is intact", style="green")
    return 0
