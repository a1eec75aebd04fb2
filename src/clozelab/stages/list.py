"""`clozelab list`: the experiments, or what else has a name here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.text import Text

from claims.text.terminal import make_console
from clozelab.files.public import EXTRA, PUBLIC_ENCODERS
from clozelab.results.experiment import list_experiments, load_experiment, own_experiments
from clozelab.terminal import ParsedArgs, say, verb
from clozelab.text.did_you_mean import check_choice
from clozelab.text.paths import CONF_DIR, EXPERIMENTS_DIR

HELP = """clozelab list
clozelab list architectures
clozelab list corpora
clozelab list encoders

The experiments that come with the project, and your own: folders with a
paper.yaml, and experiments of one file, where you stand or in experiments/
there. Or the architectures that can be trained: what each is, and the command.
Or the corpora that have a recipe: licence, size, and how to get them. Or the
public encoders that have a name here, as in encoder=minilm."""
INDENT = "  "


@verb("list", HELP, names=(0, 1))
def main(args: ParsedArgs) -> int:
    """Print every experiment's name and title, or the members of another list."""
    for name in args.names:
        check_choice("list", name, (*GROUPS, "encoders"))
        if name == "encoders":
            print_encoders()
            return 0
        print_group(*GROUPS[name])
        return 0
    paths = [EXPERIMENTS_DIR / name for name in list_experiments()]
    for path in [*paths, *own_experiments()]:
        name = path.name
        if path.parent != EXPERIMENTS_DIR:
            name = f"{path} (your own)"
        print_entry(name, [describe_experiment(path.resolve())])
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


def describe_experiment(path: Path) -> Text:
    """An experiment's title, or what is wrong with its file."""
    try:
        return Text(load_experiment(path).title)
    except ValueError as error:  # one's own, half written
        return Text(str(error), style="yellow")
