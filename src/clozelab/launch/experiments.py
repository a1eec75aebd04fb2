"""What an experiment's folder is to Hydra: its YAML files, and what paper.yaml holds inline.

    arms: {rate15: {objective.token.predict_prob: 0.15}, rate30: {objective.token.predict_prob:
    0.3}}
    columns: [mnli]

becomes arm/rate15.yaml, arm/rate30.yaml, row/rate15.yaml, row/rate30.yaml, row/random.yaml,
sweep_pretrain.yaml and sweep_finetune.yaml. A sweep may also be a file of the folder, which comes
first; an arm or a row may not. So `--config-dir FOLDER --config-name sweep_pretrain -m` is an
ordinary multirun. A folder may also be one file, `ablation.yaml`, of any name.

A delta is spelt as on the command line: a dotted key with its value, a group of files with its
choice ("objective", "objective/input"), and `+` before a group that is not in the defaults yet
("+task/format@task").

An experiment may come from anybody. What its files must not say (`check_file`), the command line
may.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import yaml  # type: ignore[import-untyped]
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from claims.text.safe_yaml import UniqueKeys, own_text
from clozelab import hydra_compat
from clozelab.addresses import UPWARDS
from clozelab.config import RESOLVERS, to_plain
from clozelab.text.paths import CONF_DIR, CONFIG_DIR_OPTIONS
from clozelab.text.plain import PlainDict, PlainMapping, flatten, hydra_text

PAPER = "paper.yaml"
SWEEPS = {"pretrain": "sweep_pretrain", "finetune": "sweep_finetune", "evaluate": "sweep_evaluate"}
KINDS = {"pretrain": "arm", "finetune": "row", "evaluate": "row"}
MEASURED = "measured"
# The group that a sweep runs through. An evaluation's `measured` is the encoder of a row
# (OF_ENCODER), not its fine-tuning.
GROUPS = {"pretrain": "arm", "finetune": "row", "evaluate": MEASURED}
OF_ENCODER = (
    "encoder",
    "encoder_arm",
    "encoder_fraction",
    "initialisation",
    "pooling",
    "combine",
    "models",
)
NAMES_OF_RUNS = ("experiment", "arm", "row")
"""What no line of an arm or a row may say: the folders of its runs are called by these."""
SEEDS = {
    "pretrain": {"seed": "${scale.pretrain.seeds}"},
    "finetune": {"pretrain_seed": "${scale.pretrain.seeds}", "seed": "${scale.finetune.seeds}"},
    "evaluate": {"pretrain_seed": "${scale.pretrain.seeds}"},
}


class PaperRow(TypedDict, total=False):
    """A row of a table: an encoder, and what is said of its fine-tunings."""

    row: str
    arm: str
    set: PlainDict


class Paper(TypedDict, total=False):
    """What is read of a paper.yaml to make its sweeps."""

    arms: dict[str, PlainDict]
    rows: list[PaperRow]
    columns: list[str | PlainDict]
    sweeps: dict[str, PlainDict]


def inline_configs(experiment: Path) -> dict[str, PlainDict]:
    """What files an experiment's paper.yaml, or its one file, stands for.

    Name ("arm/rate30", "sweep_pretrain") -> what is said of an arm or a row, as it is spelt there,
    or what the file of a sweep would say. Another folder of YAML files has nothing inline.
    """
    paper = _read_paper(experiment)
    if paper is None:
        return {}
    columns = _swept_columns(paper, experiment)
    deltas = _deltas(paper, has_measures=bool(columns["evaluate"]["measure"]))

    configs = {}
    for group, choices in deltas.items():
        # What a row's encoder is measured for is filed under the row, too.
        name_key = "arm" if group == "arm" else "row"
        for name, delta in choices.items():
            _require_text(name, f"{experiment}: the {name_key}")
            _refuse_names_of_runs(delta, f"{experiment}: the {name_key} {name}")
            configs[f"{group}/{name}"] = {name_key: name} | delta
    for stage, group in GROUPS.items():
        names = list(deltas[group])
        if group == MEASURED:
            # What is measured may be inline, a file, or both: then the file counts.
            files = sorted((experiment / MEASURED).glob("*.yaml"))
            names = list(dict.fromkeys([*names, *(path.stem for path in files)]))
        if names and all(columns[stage].values()):
            configs[SWEEPS[stage]] = _sweep(stage, experiment, names, paper, columns[stage])
    return configs


def _refuse_names_of_runs(delta: PlainMapping, subject: str) -> None:
    """ValueError for an arm or a row that says how its runs are called."""
    for key in NAMES_OF_RUNS:
        if key in delta:
            raise ValueError(
                f"{subject} sets {key}, which its runs are found by: leave that line out"
            )


def _require_text(name: object, subject: str) -> None:
    """ValueError for a name that YAML reads as something else, such as 0.15 or null."""
    if not isinstance(name, str):
        raise ValueError(f"{subject} {name} is no text: put it in quotes")


def _read_paper(experiment: Path) -> Paper | None:
    """What an experiment's file says; None where there is none, or no mapping in it."""
    file = experiment
    if not experiment.is_file():
        file = experiment / PAPER
    if not file.is_file():
        return None
    status = file.stat()
    paper: Paper = _parsed(file, (status.st_ino, status.st_ctime_ns))
    if isinstance(paper, dict):
        return paper
    return None


@cache
def _parsed(file: Path, version: tuple[int, int]) -> Any:  # noqa: ARG001
    """What a version of a file says, which nobody changes."""
    return yaml.load(own_text(file, file.parent), UniqueKeys)


def _deltas(paper: Paper, *, has_measures: bool) -> dict[str, dict[str, PlainDict]]:
    """Group -> choice -> what is said of it inline."""
    rows = _rows(paper)
    measured = {}
    if has_measures:
        for name, row in rows.items():
            measured[name] = {key: row[key] for key in OF_ENCODER if key in row}
    # What combines other rows' models trains nothing.
    tuned = {name: row for name, row in rows.items() if "combine" not in row}
    return {"arm": paper.get("arms") or {}, "row": tuned, MEASURED: measured}


def _rows(paper: Paper) -> dict[str, PlainDict]:
    """Return row -> its delta, which begins with the encoder of its arm.

    A floor has the shape of the first arm, and fresh weights.
    """
    rows = paper.get("rows") or []
    arms = paper.get("arms") or {}
    if arms and not rows:
        rows = [{"row": arm, "arm": arm} for arm in arms]
        rows.append({"row": "random"})
    # A row without an arm is a floor: the first arm's encoder, before anything was learnt.
    trained = [row["arm"] for row in rows if row.get("arm")]
    deltas = {}
    for row in rows:
        delta: PlainDict = {}
        if row.get("arm"):
            delta = {"encoder_arm": row["arm"], "initialisation": "pretrained"}
        elif trained:
            delta = {"encoder_arm": trained[0], "initialisation": "random"}
        elif not row.get("fixed_encoder"):
            continue
        deltas[row["row"]] = delta | (row.get("set") or {})
    return deltas


def _swept_columns(paper: Paper, experiment: Path) -> dict[str, dict[str, str]]:
    """Stage -> key -> the columns that its sweep runs through; empty where there are none.

    Each task and measure is the one that it says, or stands in for it, at the scale:
    `${oc.select:scale.finetune.benchmarks.mnli,mnli}`. `listed` leaves out those that it lacks.
    Nothing stands in for a task that has a file in the experiment's folder.
    """
    columns: list[PlainDict] = []
    for column in paper.get("columns") or ():
        if isinstance(column, str):
            column = {"task": column}
        if column.get("task"):
            columns.append(column)
    tasks = [str(column["task"]) for column in columns if column.get("from") != "evaluate"]
    measures = [str(column["task"]) for column in columns if column.get("from") == "evaluate"]
    own_tasks = {path.stem for path in experiment.glob("task/*.yaml")}
    measure = _selected("measures", measures)
    if measure:
        measure = f"${{listed:{measure}}}"
    return {
        "pretrain": {},
        "finetune": {"task": _selected("finetune.benchmarks", tasks, own_tasks)},
        "evaluate": {"measure": measure},
    }


def _selected(scale_key: str, names: Sequence[str], own: Collection[str] = ()) -> str:
    """Each name once, or what the scale has in its place, but for one's `own`."""
    selected = []
    for name in dict.fromkeys(names):
        if name in own:
            # A file of one's own may be called as it likes, such as 2024 or täglich.
            selected.append(hydra_text(name))
        else:
            selected.append(f"${{oc.select:scale.{scale_key}.{name},{name}}}")
    return ",".join(selected)


def _sweep(
    stage: str,
    experiment: Path,
    names: Sequence[str],
    paper: Paper,
    columns: dict[str, str],
) -> PlainDict:
    """Return the primary configuration of a stage.

    It sweeps every arm or row x `columns` x seeds, and whatever `sweeps` in the paper says.
    """
    group = GROUPS[stage]
    changes = (paper.get("sweeps") or {}).get(stage) or {}
    swept: PlainDict = {group: ",".join(map(hydra_text, names)), **columns, **SEEDS[stage]}
    settings: PlainDict = {"experiment": experiment.name}
    if experiment.is_file():
        settings["experiment"] = experiment.stem
    if stage == "pretrain":
        settings["share_runs"] = True
    # `seed: 1,2` runs through values, and so does whatever the sweep runs through anyway.
    for key, value in changes.items():
        if key in swept or (isinstance(value, str) and "," in value):
            swept[key] = value
        else:
            settings[key] = value
    # The choice of a first arm or row comes before overrides, which may name groups inside of it.
    config = to_plain(_config(settings, experiment), resolve=False)
    first, *overrides = config.pop("defaults")
    return {
        "defaults": [stage, first, {group: names[0]}, *overrides],
        **config,
        "hydra": {"mode": "MULTIRUN", "sweeper": {"params": swept}},
    }


def _config(delta: PlainMapping, experiment: Path) -> DictConfig:
    """A delta as a file would say it: choices in its defaults list, all else nested.

    {"objective": "ltr", "model.hidden_size": 64} becomes {"defaults": ["_self_", {"override
    /objective": "ltr"}], "model": {"hidden_size": 64}}.
    """
    before: list[object] = []
    after: list[object] = []
    settings: list[tuple[str, object]] = []
    for key, value in delta.items():
        name = key.lstrip("+")
        group, _, package = name.partition("@")
        is_group = (CONF_DIR / name).is_dir() or (experiment / name).is_dir()
        if "/" not in key and not (isinstance(value, str) and is_group):
            settings.append((name, value))
        elif not key.startswith("+"):
            after.append({f"override /{key}": value})
        elif package:
            # "task/format@task: features" is the file task/format/features laid over the task
            before.append(f"/{group}/{value}@{package}")
        else:
            before.append({f"/{group}": value})
    config = OmegaConf.create({"defaults": [*before, "_self_", *after]})
    for name, value in settings:
        OmegaConf.update(config, name, value, merge=False)
    return config


FREE_CALLS = {resolver.__name__ for resolver in RESOLVERS} | {"hydra", "oc.select"}
# a resolver's name in `${name:...}`, also before others are resolved
CALL = re.compile(r"\$\{\s*([^:{}$]*)[:$]")
# Folders and permissions; all of `hydra` but its mode and its sweeper; keys that are paths.
KEYS_OF_THE_USER = re.compile(
    r"(^|\.)[+~]*(data_dir|cache_dir|runs_dir|allow_targets(\.\d+)?)$"
    r"|^hydra($|\.(?!mode$|sweeper\.))"
    r"|\.\./|/\.\.|(^|\.)[/~]"
)
SWEPT_KEY = re.compile(r"hydra\.sweeper\.params\.[+~]*(?!run_dir$|.*\bhydra\b)[\w./@-]+")
"""Key of a sweep, which becomes a word of a command line: `run_dir=x,y` or `+rates@hydra.callbacks`
would be more.
"""
DOWNLOAD_KEY = re.compile(r"(^|\.)[+~]*hub$")
# an escaped one, or one without a brace
LONE_DOLLAR = re.compile(r"\\\$|\$(?!{)")
ONLY_DATA = "an experiment is data: leave that out, or say it on the command line"
# Texts with interpolations in files of experiments; `check_values` looks at what became of them.
INTERPOLATED: set[str] = set()


def check_file(source: str, config_path: str, result: ConfigResult) -> None:
    """ValueError where a file of an experiment says what only the user may say."""
    plain = to_plain(result.config, resolve=False)
    defaults: list[object] = []
    if isinstance(plain, dict):
        defaults = plain.pop("defaults", None) or []
    _refuse_itself(source, config_path, defaults)
    if "/" not in config_path and (CONF_DIR / config_path).with_suffix(".yaml").is_file():
        raise ValueError(f"{source}: clozelab's own {config_path} is replaced by no experiment's")
    # Whether it lies below Hydra's own keys, or lays others over them.
    laid = [config_path, f"@{result.header.get('package')}", *map(str, defaults)]
    if any(re.search(r"\bhydra\b", entry) for entry in laid):
        raise ValueError(f"{source}: it lays something over Hydra's own keys; {ONLY_DATA}")
    for key, value in flatten(plain).items():
        fault = _key_problem(key, value)
        if fault is None and isinstance(value, str):
            fault = _text_problem(key, value)
        if fault is not None:
            raise ValueError(f"{source}: {fault}; {ONLY_DATA}")


def _refuse_itself(source: str, config_path: str, defaults: Sequence[object]) -> None:
    """ValueError where a file is to stand on clozelab's of the same name, which it replaces."""
    name = config_path.rpartition("/")[2]
    for entry in defaults:
        bases = [str(entry).partition("@")[0]]
        if isinstance(entry, Mapping):  # {/task@_here_: mrpc} is /task/mrpc
            groups = {str(group).partition("@")[0]: choice for group, choice in entry.items()}
            bases = [f"{group}/{choice}" for group, choice in groups.items()]
        if not {name, f"/{config_path}"}.isdisjoint(bases):
            raise ValueError(
                f"{source}: its defaults name {bases[0]}, which is this file itself: give it a name"
                f" of its own, to stand on clozelab's {config_path}"
            )


def _key_problem(key: str, value: object) -> str | None:
    """What is wrong with setting a key."""
    is_refused = KEYS_OF_THE_USER.search(key) is not None
    if value not in (None, False):
        # A sweep's key becomes a word of a command line; a `hub` is downloaded.
        is_odd_sweep = key.startswith("hydra.sweeper.params") and not SWEPT_KEY.fullmatch(key)
        is_refused = is_refused or is_odd_sweep or DOWNLOAD_KEY.search(key) is not None
    if is_refused:
        return f"{key} is not its to set"
    return None


def _text_problem(key: str, text: str) -> str | None:
    """What is wrong with a text: it calls what is not free, or leads out of the folder.

    Texts with interpolations are noted in INTERPOLATED.
    """
    calls = [name for name in CALL.findall(text) if name not in FREE_CALLS]
    if "_target_" in text:
        calls.append("_target_")
    if calls:
        return f"{key} calls {calls[0]!r} in {text!r}"
    if LONE_DOLLAR.search(text):  # which an interpolation could be put together from
        return f"{key} has a lone $ in {text!r}"
    if "${" in text:
        INTERPOLATED.add(text)
    elif _leaves_folder(key, text):
        return f"{key} names {text!r}, which leads out of its folder"
    return None


def _leaves_folder(key: str, text: str) -> bool:
    values = [text]
    if key.startswith("hydra.sweeper."):  # several values in one text
        values = re.split(r"[\s,()\[\]{}'\":=]", text)
    return any(UPWARDS.search(value) for value in values)


def check_values(config: PlainMapping, texts: Iterable[tuple[str, str, str]]) -> None:
    """Refuse texts of an experiment that lead out of its folder once they are resolved.

    ValueError for them, and for one that could be resolved again. What lies below the user's own
    places may be named, and so may the value of another key, which is looked at there.

    Args:
        config: the configuration that they are in.
        texts: (key, text, resolved text) of every text in INTERPOLATED.
    """
    roots = []
    for name in ("runs_dir", "data_dir", "cache_dir"):
        folder = str(config.get(name)).rstrip("/")
        roots.append(f"{folder}/")
    for key, text, value in texts:
        below = value
        for root in roots:
            if value.startswith(root):
                below = value.removeprefix(root)
                break
        # `${data_dir}` alone repeats another key's value, which is looked at there.
        is_another_key = re.fullmatch(r"\$\{[\w.]+\}", text) and not key.startswith(
            "hydra.sweeper."
        )
        if "${" in value or (_leaves_folder(key, below) and not is_another_key):
            raise ValueError(
                f"{key} names {value!r} ({text}), which leads out of its folder; {ONLY_DATA}"
            )


class ExperimentSource(hydra_compat.VersionedSource):
    """Hydra's source of YAML files, which also knows what paper.yaml holds inline."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        self.inline = inline_configs(Path(self.path))
        self.inline_groups = {name.rpartition("/")[0] for name in self.inline if "/" in name}
        # the user's own search path
        self.is_trusted = Path(self.path) == CONF_DIR or provider.startswith("hydra.")

    def available(self) -> bool:
        return bool(self.inline) or super().available()

    def is_group(self, config_path: str) -> bool:
        if super().is_group(config_path):
            return True
        return config_path in self.inline_groups

    def is_config(self, config_path: str) -> bool:
        return self._is_file(config_path) or config_path in self.inline

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        names = set()
        if super().is_group(config_path):
            names.update(super().list(config_path, results_filter))
        if results_filter != ObjectType.GROUP:
            for inline in self.inline:
                group, _, name = inline.rpartition("/")
                if group == config_path:
                    names.add(name)
        return sorted(names)

    def load_config(self, config_path: str) -> ConfigResult:
        if UPWARDS.search(config_path):
            raise ValueError(
                f"{config_path} is no choice: a choice is a file's name, below the folder of its"
                " group"
            )
        is_file = self._is_file(config_path)
        if is_file and not self.is_trusted:
            own_text(self._file(config_path), Path(self.path))
        if is_file or config_path not in self.inline:
            result = super().load_config(config_path)
        else:
            result = self._inline(config_path)
        if not self.is_trusted:
            check_file(f"{self.path}/{config_path}", config_path, result)
        return result

    def version(self, config_path: str) -> tuple[object, ...]:
        file = self._file(config_path)
        with suppress(OSError):
            status = file.stat()
            if stat.S_ISREG(status.st_mode):
                return (self.provider, file, status.st_ino, status.st_ctime_ns)
        return (self.path, str(self.inline.get(config_path)))

    def _is_file(self, config_path: str) -> bool:
        """As Hydra's `is_config` says, which resolves every link first; only `..` needs that."""
        if ".." in config_path:
            return super().is_config(config_path)
        return self._file(config_path).is_file()

    def _file(self, config_path: str) -> Path:
        return Path(self.path) / self._normalize_file_name(config_path)

    def _inline(self, config_path: str) -> ConfigResult:
        said = self.inline[config_path]
        if "/" in config_path:
            package = "_global_"
            config = _config(said, Path(self.path))
        else:
            package = None
            config = OmegaConf.create(said)
        return ConfigResult(self.provider, f"file://{self.path}", config, {"package": package})


def sweeps_in(experiment: Path) -> dict[str, str]:
    """Stage -> the primary configuration of its sweep, of those that a folder or a file has."""
    source = ExperimentSource("experiment", str(experiment))
    return {stage: name for stage, name in SWEEPS.items() if source.is_config(name)}


class ExperimentSearchPath(SearchPathPlugin):
    """Lets `--config-dir` be a file, which Hydra refuses, and come before conf/."""

    address = ""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.address:
            main = SearchPathQuery(provider="main")
            search_path.prepend("command-line", self.address, anchor=main)


def take_experiment(arguments: list[str]) -> list[str]:
    """A command line without `--config-dir PLACE`, which `ExperimentSearchPath` then has.

    ValueError for two places, since a record names one, and for none behind the option.
    """
    ExperimentSearchPath.address = ""
    paths = []
    other_arguments = []
    remaining = iter(arguments)
    for argument in remaining:
        option, equals, value = argument.partition("=")
        if option not in CONFIG_DIR_OPTIONS:
            other_arguments.append(argument)
        else:
            # `--config-dir=FILE` is one word, `--config-dir FILE` two.
            paths.append(value if equals else next(remaining, ""))
    if "" in paths:
        raise ValueError("--config-dir names no place: say --config-dir FOLDER, or leave it out")
    if len(paths) > 1:
        raise ValueError(
            f"--config-dir is said for {' and '.join(paths)}, and is of one place: put the files"
            " of both into one folder"
        )
    for path in paths:
        if not Path(path).exists():
            return ["--config-dir", path, *other_arguments]  # Hydra says that it is not there
        ExperimentSearchPath.address = f"file://{Path(path).resolve()}"
    return other_arguments


def register() -> None:
    """Let Hydra read folders of files in this way; harmless when called again."""
    Plugins.instance().register(ExperimentSearchPath)
    hydra_compat.SourcesRegistry.instance().types["file"] = ExperimentSource
