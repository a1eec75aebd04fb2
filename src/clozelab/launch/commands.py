"""The command that makes a run again, proved by composing it: what it would run is what the folder's record says.

What `reproduce` was last asked to do with an experiment at a scale, kept beside its runs.

`clozelab status` counts those jobs and says that command. What looks like a secret is not written down.

The `reproduce` commands that make a report's runs, proved by composing what they would run.

A command names what its runs have otherwise than the sweeps: arms, rows, tasks and seeds, and settings. Every setting
that any run has is composed once. A row with an encoder from elsewhere has a command of its own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from clozelab.config import EXPERIMENTS_DIR
from clozelab.launch.overrides import ARM
from clozelab.launch.plan import SWEEPS
from clozelab.launch.sweep import JobComposer, Sweep, compose, hydra_config, without_hydra
from clozelab.runs.find import AnyRun, Collected, FinetuneRun
from clozelab.runs.fingerprint import SEED_KEYS, canonical, flatten, redacted_words
from clozelab.runs.record import CONFIG_FILE, write_json
from clozelab.terminal import default_path, key_of

KEYS = {"pretrain": ("arm", "seed"), "finetune": ("row", "task", "pretrain_seed", "seed")}
"""What an experiment's sweeps choose a job by."""


def remake(experiment: Path, state: Mapping[str, Any], run_dir: Path, runs_dir: str, scale: str) -> tuple[str, str]:
    """(command line, what it lacks) of a run of an experiment; the second is empty where the command is proved.

    Args:
        experiment: its folder.
        state: the run's record.
        run_dir: its folder.
        runs_dir: what the command is to say.
        scale: its name.
    """
    stage = str(state["stage"])
    config = state["config_resolved"]
    chosen = {key: config.get(key) for key in KEYS[stage]}
    if stage == "finetune":
        chosen["task"] = config["task"]["name"]
    words = [f"scale={scale}", *(f"{key}={value}" for key, value in chosen.items())]
    extra, lacking = _differing_overrides(experiment, SWEEPS[stage], words, config)
    paths = places(run_dir, runs_dir)
    line = ["clozelab", stage, "--config-dir", _shown(experiment), "--config-name", SWEEPS[stage]]
    return shlex.join([*line, *words, *extra, *paths, "hydra.mode=RUN"]), lacking


def places(run_dir: Path, runs_dir: str) -> list[str]:
    """Where data and runs lie, as overrides; nothing of a place that is the usual one, seen from here."""
    found = {"data_dir": said_in_config(run_dir, "data_dir"), "runs_dir": runs_dir}
    usual = {key: (default_path(key), str(Path(default_path(key)).absolute())) for key in found}
    return [f"{key}={place}" for key, place in found.items() if place and place not in usual[key]]


def _differing_overrides(
    experiment: Path, name: str, words: list[str], recorded: Mapping[str, Any]
) -> tuple[list[str], str]:
    """(further overrides that make the composed configuration the recorded one, what even they do not)."""
    try:
        found = differing(compose(name, words, folder=experiment), recorded)
        extra = [f"{key}={as_word(value)}" for key, value in found.items()]
        if not found:
            return [], ""
        again = [*words, *extra]
        if not differing(compose(name, again, folder=experiment), recorded):
            return extra, ""
        lacking = f"not enough to make this run: the sweep now says otherwise for {', '.join(found)}"
        return [], f"{lacking}; the run's own settings are in {CONFIG_FILE}"
    except (ValueError, OmegaConfBaseException, OSError) as error:
        return [], f"cannot be composed now: {' '.join(str(error).split())}"
    except Exception as error:  # Hydra's errors are of many kinds, and all mean that
        return [], f"cannot be composed now: {type(error).__name__}: {' '.join(str(error).split())}"


def differing(composed: DictConfig, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted key -> recorded value of what a composed configuration (with its `hydra` node) has otherwise.

    A list of another length is one value: an override of its parts can neither lengthen nor shorten it.
    """
    with hydra_config(composed):
        now = flatten(json.loads(json.dumps(canonical(without_hydra(composed)))))
    then = flatten(dict(recorded))
    keys = [key for key in [*then, *(set(now) - set(then))] if now.get(key, ...) != then.get(key, ...)]
    other = {place: whole for key in keys if (key in now) != (key in then) for place, whole in _list_of(key, recorded)}
    apart = {key: then.get(key) for key in keys if not key.startswith(tuple(f"{place}." for place in other))}
    return other | apart


def _list_of(key: str, recorded: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(dotted key, value) of the recorded list that a key is inside of; nothing where it is in none."""
    found: Any = recorded
    parts = key.split(".")
    for i, part in enumerate(parts):
        if isinstance(found, list):
            return [(".".join(parts[:i]), found)]
        if not isinstance(found, Mapping) or part not in found:
            return []
        found = found[part]
    return []


def as_word(value: Any) -> str:
    """A recorded value as the command line has it."""
    if isinstance(value, list):
        return f"[{','.join(map(as_word, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{as_word(part)}' for key, part in value.items())}}}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def is_shared(word: str) -> bool:
    """Whether an override is for every stage of a reproduction, `prepare` among them."""
    return word.startswith(("corpus.", "scale."))


def said_in_config(run_dir: Path, key: str) -> str:
    """A path as it was said to the run; empty where its configuration cannot be read or does not have it."""
    try:
        return str(OmegaConf.to_container(OmegaConf.load(run_dir / CONFIG_FILE))[key] or "")  # type: ignore[call-overload,index]
    except (OSError, OmegaConfBaseException, KeyError, TypeError, ValueError):
        return ""


def _shown(folder: Path) -> str:
    """Relative to where we are, if it lies below."""
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)


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


MAX_OVERRIDES = 24
"""More make no command that anyone would want to read."""
SHOWN = 5
ENCODER_LINE = re.compile(r"^encoder: (?!null$)(.+)$", re.MULTILINE)
Settings = dict[str, Any]
"""Dotted key -> value, as a run's record has it."""


@dataclass(frozen=True)
class Again:
    """A command line, and what even it does not say; the second is empty where the command is proved."""

    line: str
    lacking: str = ""


def reproduce_again(experiment: Path, collected: Collected, scale: str, *, to_go_on: bool = False) -> list[Again]:
    """The commands behind all runs, whatever became of them.

    Args:
        experiment: its folder.
        collected: its runs at one scale.
        scale: the scale's name.
        to_go_on: of a sweep under way, what it was to be rather than the runs there are so far: an arm, row, task or
            seed without a run is not left out.
    """
    pretrain, tuned = collected.pretrain, collected.finetune
    given: dict[tuple[str, str], list[FinetuneRun]] = {}
    for run in tuned:
        if _is_given(run):
            given.setdefault((run.row, said_in_config(run.dir, "encoder")), []).append(run)
    own = [run for run in tuned if not _is_given(run)]
    own_runs: dict[str, Sequence[AnyRun]] = {"pretrain": pretrain, "finetune": own}
    commands = [_own(experiment, collected, scale, own_runs, to_go_on)] if pretrain or own or not given else []
    return commands + [_with_encoder(experiment, collected, scale, *key, mine) for key, mine in given.items()]


def _is_given(run: FinetuneRun) -> bool:
    """Whether its encoder is from elsewhere; a row may keep its arm's name all the same."""
    config = run.state["config_resolved"]
    if "encoder_arm" in config and config["encoder_arm"] is None:
        return True
    try:
        said = ENCODER_LINE.search((run.dir / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return said is not None and ARM not in said[1]


def _own(
    experiment: Path, collected: Collected, scale: str, stages: Mapping[str, Sequence[AnyRun]], to_go_on: bool
) -> Again:
    words, lacking = [], []
    for stage, runs in stages.items():
        if runs:
            found, lacks = _overrides(experiment, stage, [f"scale={scale}"], runs, to_go_on)
            # A corpus is prepared and a scale is shared by all stages; any other setting is its stage's.
            words += [word if is_shared(word) else f"{stage}.{word}" for word in found]
            lacking += [f"{stage}: {lacks}"] if lacks else []
    seeds = [word for word in words if word.startswith("pretrain.seed=")]
    tunes = (experiment / f"{SWEEPS['finetune']}.yaml").is_file() and (to_go_on or not stages["finetune"])
    if seeds and tunes:  # what fine-tuning would look for
        words = [word for word in words if not word.startswith("finetune.pretrain_seed=")]
        words += [seeds[0].replace("pretrain.seed", "finetune.pretrain_seed")]
    return _command(experiment, collected, scale, words, [run for runs in stages.values() for run in runs], lacking)


def _with_encoder(
    experiment: Path, collected: Collected, scale: str, row: str, encoder: str, runs: list[FinetuneRun]
) -> Again:
    words, lacks = _overrides(experiment, "finetune", [f"scale={scale}", f"row={row}"], runs)
    unknown = [] if encoder else [f"which encoder row {row} began from"]
    lacking = [*unknown, *([f"finetune: {lacks}"] if lacks else [])]
    choice = [f"row={row}", f"encoder={encoder or 'FOLDER'}"]
    return _command(experiment, collected, scale, [*choice, *(f"finetune.{word}" for word in words)], runs, lacking)


def _command(
    experiment: Path, collected: Collected, scale: str, words: list[str], runs: Sequence[AnyRun], lacking: list[str]
) -> Again:
    root = str(collected.root.parent.parent)
    where = places(runs[0].dir, root) if runs else []
    line = ["clozelab", "reproduce", experiment.name, f"scale={scale}", *dict.fromkeys(words), *where]
    return Again(shlex.join(line), "; ".join(lacking))


def _overrides(
    experiment: Path, stage: str, words: list[str], runs: Sequence[AnyRun], to_go_on: bool = False
) -> tuple[list[str], str]:
    """(overrides that make a stage's sweep these runs, what even they do not)."""
    settings = {run.dir: flatten(dict(run.state["config_resolved"])) for run in runs}
    try:
        sweep = Sweep(SWEEPS[stage], words, folder=experiment)
        jobs = [dict(map(_pair, job)) for job in sweep.jobs]
        swept = [key for key in jobs[0] if key not in dict(map(_pair, words))]
        if "learning_rate" not in swept and _several_rates(runs):
            swept.append("learning_rate")
        lists = _lists(swept, jobs, settings.values(), to_go_on)
        extra, lacking = _extra(sweep.composer, words, swept, _telling(runs, settings), settings)
        return [*lists, *extra], lacking
    except Exception as error:  # Hydra's errors are of many kinds, and all mean that
        return [], f"cannot be composed now: {' '.join(str(error).split())}"


def _pair(word: str) -> tuple[str, str]:
    return key_of(word), word.partition("=")[2]


def _several_rates(runs: Sequence[AnyRun]) -> bool:
    """Whether some runs have all in common but the learning rate, which is then a list on the command line."""
    names = [(run.row, run.task, run.pretrain_seed, run.seed) for run in runs if isinstance(run, FinetuneRun)]
    return len(set(names)) < len(names)


def _lists(
    swept: Sequence[str], jobs: Sequence[Mapping[str, str]], settings: Iterable[Settings], to_go_on: bool
) -> list[str]:
    """`key=a,b` for what the runs have other values of than the sweep (to go on: values beyond it), in its order."""
    found, known = [], list(settings)
    for key in swept:
        usual = {_plain(job[key]): job[key] for job in jobs if key in job}
        ours = {_plain(value): as_word(value) for one in known if (value := _of_job(one, key)) is not None}
        if ours.keys() - usual.keys() or (ours and not to_go_on and ours.keys() != usual.keys()):
            more = sorted(ours.keys() - usual.keys(), key=lambda value: (isinstance(value, str), value))
            found.append(f"{key}={','.join(ours[one] for one in [*(one for one in usual if one in ours), *more])}")
    return found


def _plain(value: Any) -> float | str:
    """A value as a key: 5.0e-5 and 5e-05 are one."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def _of_job(settings: Settings, key: str) -> Any:
    """A run's value of what a sweep chooses a job by; a task is chosen by its name."""
    return settings.get(key, settings.get(f"{key}.name"))


def _telling(runs: Sequence[AnyRun], settings: Mapping[Path, Settings]) -> list[AnyRun]:
    """A few runs that have every value of every setting among them, seeds aside: each the one with most to add."""
    left = {
        run.dir: {(key, repr(value)) for key, value in settings[run.dir].items() if key not in SEED_KEYS}
        for run in runs
    }
    chosen = []
    while any(left.values()):
        best = max(runs, key=lambda run: len(left[run.dir]))
        chosen.append(best)
        seen = set(left[best.dir])
        left = {folder: pairs - seen for folder, pairs in left.items()}
    return chosen


def _first(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(keys[:SHOWN]) + more


def _extra(
    composer: JobComposer, words: list[str], swept: Sequence[str], runs: Sequence[AnyRun], settings: Mapping[Path, Any]
) -> tuple[list[str], str]:
    """(settings to give so that the sweep's jobs are these runs, what they do not make equal).

    The upper keys first: what is interpolated from them then needs no word of its own.
    """
    extra: dict[str, str] = {}
    unclear: dict[str, None] = {}
    while True:
        wanted: dict[str, set[str]] = {}
        for run in runs:
            job = [f"{key}={as_word(value)}" for key in swept if (value := _of_job(settings[run.dir], key)) is not None]
            composed = composer.compose([*words, *job, *(f"{key}={value}" for key, value in extra.items())])
            found = differing(composed, run.state["config_resolved"])
            if absent := [key for key, value in found.items() if value is None and key not in settings[run.dir]]:
                return [], f"the sweep now has what its runs do not say: {_first(absent)}"
            for key in found.keys() - unclear.keys():
                wanted.setdefault(key, set()).add(as_word(found[key]))
        if not wanted:
            break
        top = min(key.count(".") for key in wanted)
        now = {key: values for key, values in sorted(wanted.items()) if key.count(".") == top}
        # A word that some runs need and others do not fit is none for a command.
        unclear |= {key: None for key, values in now.items() if len(values) > 1 or key in extra}
        extra = {key: value for key, value in extra.items() if key not in unclear}
        extra |= {key: values.pop() for key, values in now.items() if key not in unclear}
        if len(extra) > MAX_OVERRIDES:
            return [], f"its runs have other settings than the sweep, too many for a command: {_first([*extra])}"
    lacking = f"its runs differ from the sweep, and not all in one way, in {_first([*unclear])}" if unclear else ""
    return [f"{key}={value}" for key, value in extra.items()], lacking
