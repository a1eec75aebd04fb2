"""What `reproduce` was last asked to do with an experiment at a scale, kept beside its runs.

`clozelab status` counts those jobs and says that command. What looks like a secret is not written down.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from clozelab.config import EXPERIMENTS_DIR
from clozelab.ledger.redaction import redacted_words
from clozelab.ledger.run_record import write_json
from clozelab.ledger.words import default_path, key_of

LAUNCH_FILE = Path("launcher") / "reproduce.json"
"""Below the folder of an experiment's runs at one scale."""
PATH_KEYS = ("cache_dir", "data_dir", "encoder", "runs_dir")
"""Where a path counts from the directory that the command is started from."""
STARTED_FROM = ("data_dir", "runs_dir")
"""Of these, what has a place of its own there where nothing is said."""


@dataclass(frozen=True)
class Launch:
    """One `clozelab reproduce`.

    Attributes:
        experiment: its folder.
        words: overrides and options, paths absolute.
        sweeps: verb -> overrides of its sweep; a verb that is not here was not to be run.
    """

    experiment: str
    words: list[str]
    sweeps: dict[str, list[str]]


def remember_launch(
    root: Path, experiment: Path, words: Sequence[str], sweeps: Mapping[str, Sequence[str]], here: Path | None = None
) -> None:
    """Keep a launch in the experiment's folder `root`; the latest one counts. `here`: where it is started."""
    here = here or Path.cwd()
    said = {key for word in words for key in [key_of(word)] if "=" in word}
    places = [f"{key}={default_path(key)}" for key in STARTED_FROM if key not in said]
    complete = [absolute(word, here) for word in (*places, *words)]
    plain = {verb: redacted_words(overrides) for verb, overrides in sweeps.items()}
    path = root / LAUNCH_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(Launch(str(experiment), redacted_words(complete), plain)))


def read_launch(root: Path) -> Launch | None:
    """The last launch; None where there is no record of one, or none that can be read."""
    try:
        saved = json.loads((root / LAUNCH_FILE).read_text(encoding="utf-8"))
        sweeps = {str(verb): [str(word) for word in words] for verb, words in saved["sweeps"].items()}
        return Launch(str(saved["experiment"]), [str(word) for word in saved["words"]], sweeps)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def command(launch: Launch, runs_dir: Path) -> str:
    """The command line of a launch; `runs_dir` is where its runs lie now, and usual places are left out."""
    folder = Path(launch.experiment)
    name = folder.name if folder.parent == EXPERIMENTS_DIR.resolve() else str(folder)
    words = [word for word in launch.words if key_of(word) != "runs_dir"]
    places = {f"{key}={Path(default_path(key)).absolute()}" for key in STARTED_FROM}
    shown = [word for word in (*words, f"runs_dir={runs_dir.absolute()}") if word not in places]
    return shlex.join(["clozelab", "reproduce", name, *shown])


def absolute(word: str, here: Path) -> str:
    """An override with its path from the root, where it is one plain path."""
    start, sign, value = word.partition("=")
    is_plain = value and not set(value) & set("${}()[],'\"")
    if not sign or not is_plain or key_of(word).rpartition(".")[2] not in PATH_KEYS or value == "null":
        return word
    return f"{start}={os.path.normpath(here / value)}"
