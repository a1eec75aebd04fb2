"""`clozelab pack`: the runs of an experiment, or of a folder, in one small file that travels."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich import filesize

from claims.tables.layout import SCORES_FILE
from clozelab.launch.sweep import runs_root
from clozelab.report.packed_results import write_results_table
from clozelab.results.experiment import find_experiment
from clozelab.runs.archive import (
    PREDICTION_PATTERNS,
    WEIGHTS,
    describe_machines,
    write_archive,
)
from clozelab.runs.find import is_folder_of_runs
from clozelab.runs.packing import Selection, files_to_pack, hide_folders, make_manifest, select_runs
from clozelab.terminal import SWITCH, ParsedArgs, say, verb

HELP = """clozelab pack EXPERIMENT out=FILE [scale=NAME] [runs_dir=FOLDER]
        [encoders=true] [predictions=false] [name=value ...]
clozelab pack FOLDER out=FILE [encoders=true] [predictions=false]
        [name=value ...]

Packs records, scores, predictions, curves, configurations, vocabularies and
the launch's notes of an experiment's runs, or of all runs below a FOLDER, into
one zip; with encoders=true their weights, too. With predictions=false it leaves
out the answers to single examples: such a pack is small, and gives the same
report. The same runs make the same bytes. Runs that are going on are left out,
and so are damaged ones; failed ones come along.

  stage= name= task= seeds=   only these runs (name: arm or row; seeds: 1, or
                              pre-training/fine-tuning 1/2)

`clozelab pool` puts packs together."""
FILTERS = ("stage", "name", "task", "seeds")


@verb(
    "pack",
    HELP,
    names=(1, 1),
    keys=("out", *FILTERS),
    choices={"encoders": SWITCH, "predictions": SWITCH},
    takes_overrides=True,
)
def main(args: ParsedArgs) -> int:
    """Write the pack and say what it holds; returns the exit status."""
    if "out" not in args.values:
        raise ValueError("pack needs out=FILE, the file to write")
    left_out = []
    if args.values.get("encoders") != "true":
        left_out.append(WEIGHTS)
    if args.values.get("predictions") == "false":
        left_out += PREDICTION_PATTERNS
    out = Path(args.values["out"])
    filters = {key: args.values[key] for key in FILTERS if key in args.values}
    selection = select_runs(*find_root(args), filters)
    files = files_to_pack(selection, left_out)
    manifest = make_manifest(selection)
    with tempfile.TemporaryDirectory(prefix="clozelab-pack-") as folder:
        files[SCORES_FILE] = write_results_table(
            manifest, selection.records, selection.experiment, Path(folder)
        )
        files |= hide_folders(selection, files, Path(folder))
        write_archive(out, manifest, files)
    print_summary(out, selection)
    return 0


def find_root(args: ParsedArgs) -> tuple[Path, Path | None, str]:
    """The folder of the runs, their experiment or None, and its scale, by a command line."""
    name = args.names[0]
    if not is_folder_of_runs(name):
        experiment = find_experiment(name)
        root, scale = runs_root(experiment, args.overrides)
        return root.absolute(), experiment, scale
    if args.overrides:
        raise ValueError(f"{args.overrides[0]}: pack has no such key for a folder of runs")
    return Path(name).absolute(), None, ""


def print_summary(out: Path, selection: Selection) -> None:
    """Say how many runs of which machines were packed, and what was left out."""
    sentences = [f"{len(selection.records)} runs, {filesize.decimal(out.stat().st_size)}"]
    machines = describe_machines(selection.records)
    if machines:
        sentences.append(machines)
    if selection.num_left_out:
        counts = (f"{count} {status}" for status, count in selection.num_left_out.items())
        sentences.append(f"left out: {', '.join(counts)}")
    say(f"{out}: {'; '.join(sentences)}")
