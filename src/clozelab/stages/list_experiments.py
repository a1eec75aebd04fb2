"""`clozelab list`: the experiments that there are, and how many of their runs are done."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from clozelab.results.experiment import list_experiments, load_experiment, own_experiments
from clozelab.runs.find import find
from clozelab.runs.progress import read_launches
from clozelab.terminal import ParsedArgs, make_console, path_of, verb
from clozelab.text.paths import EXPERIMENTS_DIR

HELP = """clozelab list [runs_dir=FOLDER]

The experiments that come with the project, and your own: folders with a
paper.yaml, and experiments of one file, where you stand or in experiments/
there. For each scale that has runs: how many are done."""
INDENT = "  "


@verb("list", HELP, names=(0, 0), keys=("runs_dir",))
def main(args: ParsedArgs) -> int:
    """Print every experiment's name and title, and a line below for every scale with runs."""
    if "runs_dir" in args.values and not Path(args.values["runs_dir"]).is_dir():
        raise ValueError(f"runs_dir={args.values['runs_dir']}: there is no such folder")
    console = make_console()
    runs_dir = Path(path_of("runs_dir", args.values))
    paths = [EXPERIMENTS_DIR / name for name in list_experiments()]
    for path in [*paths, *own_experiments()]:
        name = path.name
        if path.parent != EXPERIMENTS_DIR:
            name = f"{path} (your own)"
        console.print(Text(name, style="bold"), soft_wrap=True)
        for text in describe_experiment(path.resolve(), runs_dir):
            for line in text.wrap(console, console.width - len(INDENT)):
                line.rstrip()  # rich's own Padding fills every line up to the console's width
                console.print(Text.assemble(INDENT, line), soft_wrap=True)
    return 0


def describe_experiment(path: Path, runs_dir: Path) -> list[Text]:
    """An experiment's title and its scales that have runs, or what is wrong with its file."""
    try:
        experiment = load_experiment(path)
    except ValueError as error:  # one's own, half written
        return [Text(str(error), style="yellow")]
    # Runs lie in RUNS_DIR/EXPERIMENT/SCALE.
    texts = [Text(experiment.title)]
    for scale in sorted((runs_dir / experiment.name).glob("*")):
        runs = find(scale).runs
        if not runs:
            continue
        num_done = sum(run.is_complete for run in runs)
        num_jobs = sum(len(launch.jobs or ()) for launch in read_launches(scale).values())
        progress = f": {num_done} of {num_jobs or len(runs)} runs"
        if 0 < num_jobs < len(runs):
            # A later launch was of some alone: nothing says how many there are to be.
            progress = f": {num_done} runs"
        texts.append(Text.assemble((scale.name, "cyan"), progress))
    return texts
