"""What an experiment's folder is to Hydra: its YAML files, and what paper.yaml holds inline.

    arms: {rate15: {objective.token.predict_prob: 0.15}, rate30: {objective.token.predict_prob:
    0.3}}
    columns: [mnli]

is as good as the files arm/rate15.yaml, arm/rate30.yaml, row/rate15.yaml, row/rate30.yaml,
row/random.yaml, sweep_pretrain.yaml and sweep_finetune.yaml; a file of that name comes first. So
`--config-dir FOLDER --config-name sweep_pretrain -m` is an ordinary multirun. A folder may also be
one file, `ablation.yaml`, of any name.

A delta is spelt as on the command line: a dotted key with its value, a group of files with its
choice ("objective", "objective/input"), and `+` before a group that is not in the defaults yet
("+task/format@task").

An experiment may come from anybody. What its files must not say (`check_file`), the command line
may.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from clozelab.config import RESOLVERS
from clozelab.runs.identity import flatten
from clozelab.targets import UPWARDS
from clozelab.text.paths import CONF_DIR
from clozelab.text.safe_yaml import UniqueKeys, own_text

PAPER = "paper.yaml"
SWEEPS = {"pretrain": "sweep_pretrain", "finetune": "sweep_finetune", "evaluate": "sweep_evaluate"}
KINDS = {"pretrain": "arm", "finetune": "row", "evaluate": "row"}
MEASURED = "measured"
# of a sweep; `measured` is a row's encoder, not its fine-tuning (OF_ENCODER)
GROUPS = KINDS | {"evaluate": MEASURED}
OF_ENCODER = ("encoder_arm", "encoder_fraction", "initialisation", "pooling")
SEEDS = {
    "pretrain": {"seed": "${scale.pretrain.seeds}"},
    "finetune": {"pretrain_seed": "${scale.pretrain.seeds}", "seed": "${scale.finetune.seeds}"},
    "evaluate": {"pretrain_seed": "${scale.pretrain.seeds}"},
}


class _Loader(UniqueKeys):
    """Reads numbers as Hydra does: 1e-3 is one."""


EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789"))


def inline_configs(place: Path) -> dict[str, dict[str, Any]]:
    """Name ("arm/rate30", "sweep_pretrain") -> what the file of that name would say, read from an
    experiment's paper.yaml or its one file; any other folder of YAML files has nothing inline."""
    file = place if place.is_file() else place / PAPER
    if not file.is_file():
        return {}
    said = yaml.load(own_text(file, file.parent), _Loader)
    if not isinstance(said, dict):
        return {}
    arms = said.get("arms") or {}
    names = {
        kind: [path.stem for path in sorted((place / kind).glob("*.yaml"))]
        for kind in GROUPS.values()
    }
    rows = _rows(said, [*arms, *names["arm"]])
    of_encoder = {
        name: {key: row[key] for key in OF_ENCODER if key in row} for name, row in rows.items()
    }
    # Each task and measure as the one that is it, or stands in for it, at the scale; without those
    # that it lacks.
    tasks, measures = (
        ",".join(
            f"${{oc.select:scale.{place}.{one},{one}}}"
            for one in _named(said, is_measured=place == "measures")
        )
        for place in ("finetune.benchmarks", "measures")
    )
    measures = measures and f"${{listed:{measures}}}"
    deltas = {"arm": arms, "row": rows, MEASURED: of_encoder if measures else {}}
    configs = {
        f"{kind}/{name}": _config({"arm" if kind == "arm" else "row": name} | delta, place)
        for kind, found in deltas.items()
        for name, delta in found.items()
    }
    columns: dict[str, Any] = {
        "pretrain": {},
        "finetune": {"task": tasks},
        "evaluate": {"measure": measures},
    }
    for stage, kind in GROUPS.items():
        swept = [*deltas[kind], *(name for name in names[kind] if name not in deltas[kind])]
        if swept and all(columns[stage].values()):
            configs[SWEEPS[stage]] = _sweep(stage, place, swept, said, **columns[stage])
    return configs


def _rows(said: Mapping[str, Any], arms: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Row -> its delta: its arm's encoder; a floor has the shape of the first arm, and fresh
    weights.
    """
    usual = [*({"row": arm, "arm": arm} for arm in arms), {"row": "random"}]
    rows: Any = said.get("rows") or (usual if said.get("arms") else [])
    shape = next((row["arm"] for row in rows if row.get("arm")), None)
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if encoder := row.get("arm") or shape:
            weights = "pretrained" if row.get("arm") else "random"
            found[row["row"]] = {
                "encoder_arm": encoder,
                "initialisation": weights,
                **(row.get("set") or {}),
            }
    return found


def _sweep(
    stage: str, place: Path, names: list[str], said: Mapping[str, Any], **columns: str
) -> dict[str, Any]:
    """The primary configuration of a stage: every arm or row x `columns` x seeds, and whatever
    `sweeps` says.
    """
    kind, own = GROUPS[stage], (said.get("sweeps") or {}).get(stage) or {}
    swept = {kind: ",".join(names)} | columns | SEEDS[stage]
    swept |= {key: value for key, value in own.items() if key in swept or "," in str(value)}
    settings: dict[str, Any] = {"experiment": place.stem if place.is_file() else place.name}
    settings |= {"share_runs": True} if stage == "pretrain" else {}
    settings |= {key: value for key, value in own.items() if key not in swept}
    config = _config(settings, place)
    first, *overrides = config.pop("defaults")
    defaults = [stage, first, {kind: names[0]}, *overrides]
    return {
        "defaults": defaults,
        **config,
        "hydra": {"mode": "MULTIRUN", "sweeper": {"params": swept}},
    }


def _named(said: Mapping[str, Any], *, is_measured: bool) -> list[str]:
    """The tasks of the columns, or their measures, each once."""
    columns = [{"task": one} if isinstance(one, str) else one for one in said.get("columns") or ()]
    mine = [one for one in columns if (one.get("from") == "evaluate") == is_measured]
    return [*dict.fromkeys(str(one["task"]) for one in mine if one.get("task"))]


def _config(delta: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """A delta as a file would say it: choices in its defaults list, all else nested."""
    before: list[Any] = []
    after: list[Any] = []
    body = OmegaConf.create()
    for key, value in delta.items():
        group = key.lstrip("+")
        chooses = isinstance(value, str) and any(
            (folder / group).is_dir() for folder in (CONF_DIR, place)
        )
        if "/" not in group and not chooses:
            OmegaConf.update(body, group, value, merge=False)
        elif key.startswith(
            "+"
        ):  # "task/format@task: features" is the file task/format/features laid over the task
            name, _, package = group.partition("@")
            before.append(f"/{name}/{value}@{package}" if package else {f"/{name}": value})
        else:
            after.append({f"override /{group}": value})
    plain: Any = OmegaConf.to_container(body)
    return {"defaults": [*before, "_self_", *after], **plain}


PARSED: dict[tuple[Any, ...], bytes] = {}


FREE_CALLS = {*(one.__name__ for one in RESOLVERS), "hydra", "oc.select"}
# a resolver's name in `${name:...}`, also before others are resolved
CALL = re.compile(r"\$\{\s*([^:{}$]*)[:$]")
KEYS_OF_THE_USER = re.compile(
    r"(^|\.)[+~]*(data_dir|cache_dir|runs_dir|allow_targets(\.\d+)?)$|^hydra($|\.(?!mode$|sweeper\.))|\.\./|/\.\.|(^|\.)[/~]"
)
SWEPT_KEY = re.compile(r"hydra\.sweeper\.params\.[+~]*(?!run_dir$|.*\bhydra\b)[\w./@-]+")
"""Key of a sweep, which becomes a word of a command line: `run_dir=x,y` or `+rates@hydra.callbacks`
would be more.
"""
ONLY_DATA = "an experiment is data: leave that out, or say it on the command line"
# texts with interpolations of such files; `check_values` looks at what became of them
DOUBTED: set[str] = set()


def check_file(place: str, config_path: str, found: ConfigResult) -> None:
    """ValueError where a file of an experiment says what only the user may say."""
    if odd := next(_not_data(config_path, found), None):
        raise ValueError(f"{place}: {odd}; {ONLY_DATA}")


def _not_data(config_path: str, found: ConfigResult) -> Iterator[str]:
    plain: Any = OmegaConf.to_container(found.config, resolve=False)
    defaults = [
        str(one) for one in (plain.pop("defaults", None) if isinstance(plain, dict) else None) or ()
    ]
    defaults = [
        one for one in defaults if not re.fullmatch(r"\{'override /?hydra/sweeper': '\w+'\}", one)
    ]
    laid = [config_path, f"@{found.header.get('package')}", *defaults]
    if any(re.search(r"\bhydra\b", one) for one in laid):
        yield "it lays something over Hydra's own keys"
    for key, value in flatten(plain).items():
        is_swept = key.startswith("hydra.sweeper.params") and not SWEPT_KEY.fullmatch(key)
        is_download = re.search(r"(^|\.)[+~]*hub$", key) is not None
        if KEYS_OF_THE_USER.search(key) or (
            value not in (None, False) and (is_swept or is_download)
        ):
            yield f"{key} is not its to set"
        if not isinstance(value, str):
            continue
        calls = [name for name in CALL.findall(value) if name not in FREE_CALLS]
        yield from (
            f"{key} calls {name!r} in {value!r}" for name in calls + re.findall("_target_", value)
        )
        if re.search(r"\\\$|\$(?!{)", value):  # which an interpolation could be put together from
            yield f"{key} has a lone $ in {value!r}"
        if "${" in value:
            DOUBTED.add(value)
        elif _leads_out(key, value):
            yield f"{key} names {value!r}, which leads out of its folder"


def _leads_out(key: str, text: str) -> bool:
    parts = re.split(r"[\s,()\[\]{}'\":=]", text) if key.startswith("hydra.sweeper.") else [text]
    return any(map(UPWARDS.search, parts))


def check_values(config: DictConfig) -> None:
    """ValueError where a text of an experiment leads out of its folder once it is resolved, or
    could be resolved again.

    What lies below the user's own places may be named, and so may the value of another key, which
    is looked at there.
    """
    roots = tuple(
        f"{str(config.get(name)).rstrip('/')}/" for name in ("runs_dir", "data_dir", "cache_dir")
    )
    for key, text, value in _doubted(config, ""):
        below = next((value.removeprefix(root) for root in roots if value.startswith(root)), value)
        is_other = re.fullmatch(r"\$\{[\w.]+\}", text) and not key.startswith("hydra.sweeper.")
        if "${" in value or (_leads_out(key, below) and not is_other):
            said = f"{key} names {value!r} ({text}), which leads out of its folder"
            raise ValueError(f"{said}; {ONLY_DATA}")


def _doubted(node: DictConfig | ListConfig, where: str) -> Iterator[tuple[str, str, str]]:
    """Key, text and resolved text wherever the text is an experiment's; not those that mean nothing
    yet.
    """
    names: Iterable[Any] = node if isinstance(node, DictConfig) else range(len(node))
    for name in names:
        child, key = node._get_node(name), f"{where}.{name}" if where else str(name)
        said = child._value() if isinstance(child, Node) else None
        if isinstance(said, str):
            with suppress(OmegaConfBaseException, ValueError, TypeError):
                if said in DOUBTED and isinstance(value := node[name], str):
                    yield key, said, value
        elif isinstance(child, DictConfig | ListConfig) and not (
            child._is_none() or child._is_missing()
        ):
            yield from _doubted(child, key)


class ExperimentSource(FileConfigSource):
    """Hydra's source of YAML files, which also knows what an experiment's paper.yaml holds
    inline.
    """

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        self.inline = inline_configs(Path(self.path))
        # the user's own search path
        self.is_trusted = Path(self.path) == CONF_DIR or provider.startswith("hydra.")

    def available(self) -> bool:
        return bool(self.inline) or super().available()

    def is_group(self, config_path: str) -> bool:
        return super().is_group(config_path) or any(
            name.startswith(f"{config_path}/") for name in self.inline
        )

    def is_config(self, config_path: str) -> bool:
        return super().is_config(config_path) or config_path in self.inline

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        files = super().list(config_path, results_filter) if super().is_group(config_path) else []
        inline = (
            [name.rpartition("/") for name in self.inline]
            if results_filter != ObjectType.GROUP
            else []
        )
        return sorted({*files, *(name for group, _, name in inline if group == config_path)})

    def load_config(self, config_path: str) -> ConfigResult:
        if UPWARDS.search(config_path):
            raise ValueError(
                f"{config_path} is no choice: a choice is a file's name, below the folder of its"
                " group"
            )
        if super().is_config(config_path) or config_path not in self.inline:
            found = self._read(config_path)
        else:
            package = "_global_" if "/" in config_path else None
            config = OmegaConf.create(self.inline[config_path])
            found = ConfigResult(self.provider, f"file://{self.path}", config, {"package": package})
        if not self.is_trusted:
            check_file(f"{self.path}/{config_path}", config_path, found)
        return found

    def _read(self, config_path: str) -> ConfigResult:
        """A file, parsed once as long as nobody writes it: YAML takes a third of the time to
        compose.
        """
        file = Path(self.path) / self._normalize_file_name(config_path)
        if not file.is_file():
            return super().load_config(config_path)  # which says what is missing
        key = (self.provider, file, file.stat().st_ino, file.stat().st_ctime_ns)
        if key not in PARSED:
            if not self.is_trusted:
                own_text(file, Path(self.path))
            PARSED[key] = pickle.dumps(super().load_config(config_path), pickle.HIGHEST_PROTOCOL)
        found: ConfigResult = pickle.loads(PARSED[key])
        return found


def sweeps_in(place: Path) -> dict[str, str]:
    """Stage -> the primary configuration of its sweep, of those that a folder or a file has."""
    source = ExperimentSource("experiment", str(place))
    return {stage: name for stage, name in SWEEPS.items() if source.is_config(name)}


class OneFile(SearchPathPlugin):
    """Lets `--config-dir` be a file, which Hydra itself refuses."""

    place = ""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.place:
            search_path.append("command-line", f"file://{self.place}")


def take_one_file(words: list[str]) -> list[str]:
    """A command line without `--config-dir FILE`, which `OneFile` then has."""
    OneFile.place = ""
    for index, word in enumerate(words):
        option, sign, value = word.partition("=")
        if option not in ("--config-dir", "-cd"):
            continue
        taken = words[index : index + 1 if sign else index + 2]
        place = Path(value or taken[-1])
        if place.is_file():
            OneFile.place = str(place.resolve())
            return [*words[:index], *words[index + len(taken) :]]
    return words


def register() -> None:
    """Let Hydra read folders of files in this way; harmless when called again."""
    Plugins.instance().register(OneFile)
    SourcesRegistry.instance().types["file"] = ExperimentSource
