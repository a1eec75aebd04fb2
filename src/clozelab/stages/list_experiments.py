"""`clozelab list`: the experiments with the runs that are done of each, or what has a name here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.text import Text

from clozelab.files.public import EXTRA, PUBLIC_ENCODERS
from clozelab.results.experiment import list_experiments, load_experiment, own_experiments
from clozelab.runs.find import find
from clozelab.runs.progress import read_launches
from clozelab.terminal import ParsedArgs, make_console, path_of, say, verb
from clozelab.text.did_you_mean import check_choice
from clozelab.text.paths import CONF_DIR, EXPERIMENTS_DIR

HELP = """clozelab list [runs_dir=FOLDER]
clozelab list architectures
clozelab list corpora
clozelab list encoders

The experiments that come with the project, and your own: folders with a
paper.yaml, and experiments of one file, where you stand or in experiments/
there. For each scale that has runs: how many are done. Or the architectures
that can be trained: what each is, and the command. Or the corpora that have a
recipe: licence, size, and how to get them. Or the public encoders that have a
name here, as in encoder=minilm."""
INDENT = "  "


@verb("list", HELP, names=(0, 1), keys=("runs_dir",))
def main(args: ParsedArgs) -> int:
    """Print every experiment's name and title, and a line below for every scale with runs."""
    if "runs_dir" in args.values and not Path(args.values["runs_dir"]).is_dir():
        raise ValueError(f"runs_dir={args.values['runs_dir']}: there is no such folder")
    for name in args.names:
        check_choice("list", name, (*GROUPS, "encoders"))
        if name == "encoders":
            print_encoders()
            return 0
        print_group(*GROUPS[name])
        return 0
    runs_dir = Path(path_of("runs_dir", args.values))
    paths = [EXPERIMENTS_DIR / name for name in list_experiments()]
    for path in [*paths, *own_experiments()]:
        name = path.name
        if path.parent != EXPERIMENTS_DIR:
            name = f"{path} (your own)"
        print_entry(name, describe_experiment(path.resolve(), runs_dir))
    return 0


def print_group(group: str, describe: Callable[[Path], list[Text]]) -> None:
    """Print the members of a group of conf that have a description."""
    for path in sorted((CONF_DIR / group).glob("*.yaml")):
        texts = describe(path)
        if texts:
            print_entry(path.stem, texts)


def print_encoders() -> None:
    """Print the public encoders, each with the command that installs it or that uses it."""
    for name, encoder in PUBLIC_ENCODERS.items():
        command = f"clozelab predict {name} do=embed text=..."
        if encoder.find() is None:
            command = f"pip install 'clozelab[{EXTRA}]'"
        print_entry(name, [Text(encoder.title), Text(command, style="cyan")])


def print_entry(name: str, texts: Iterable[Text]) -> None:
    """A name, and below it texts as wide as the console."""
    console = make_console()
    say(name, "bold")
    for text in texts:
        for line in text.wrap(console, console.width - len(INDENT)):
            line.rstrip()  # rich's own Padding fills every line up to the console's width
            console.print(Text.assemble(INDENT, line), soft_wrap=True)


def describe_architecture(path: Path) -> list[Text]:
    """The comment of a file of conf/architecture, and the recipes that choose it."""
    commands = []
    for recipe in sorted((CONF_DIR / "recipe").glob("*.yaml")):
        if f"/architecture: {path.stem}\n" in recipe.read_text(encoding="utf-8"):
            commands.append(f"recipe={recipe.stem}")
    command = " or ".join(commands) or f"architecture={path.stem}"
    comment = path.read_text(encoding="utf-8").splitlines()[1].removeprefix("# ")
    return [Text(comment), Text(f"clozelab pretrain {command}", style="cyan")]


def describe_corpus(path: Path) -> list[Text]:
    """What a recipe of conf/corpus says of its corpus; empty for a corpus that has no recipe."""
    recipe = DictConfig(OmegaConf.load(path))
    recipe.data_dir = "DATA_DIR"
    if not recipe.get("how_to_get"):
        return []
    about = [f"{key}: {value}" for key, value in recipe.get("about", {}).items()]
    return [*map(Text, about), Text(recipe.how_to_get, style="cyan")]


# what can be listed: its folder of conf, and what describes a file of it
GROUPS = {
    "architectures": ("architecture", describe_architecture),
    "corpora": ("corpus", describe_corpus),
}


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
