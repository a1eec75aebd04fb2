"""The gate: what a configuration may name, whoever wrote its files, checked before anything is made
of it.

Hydra calls whatever a `_target_` names, and its own block list misses much that runs code. So
conf/targets.yaml lists the exact addresses of every place. The loader (launch/sweep.py) sends all
that it composes through `gate`, the `hydra` node included, and what is made is made by `build`,
which looks once more. What the files of an experiment may say at all is in launch/experiments.py.
Only the user allows more: whole packages, by the word `allow_targets=[PACKAGE]` or in the
environment.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from clozelab.schema import IDENTITY, meanings
from clozelab.text.did_you_mean import hint, key_of
from clozelab.text.paths import CONF_DIR

WITHOUT_PLACE = re.compile(
    r"^(scale\.pretrain\.)?phases\.\d+\.|(?<=^logger)\.\w+$|(?<=^callbacks)\.\w+"
)
"""What stands around a place's name: a phase that says it, or one of several trackers or
callbacks.
"""
UPWARDS = re.compile(r"^(/|~[\w.-]*(/|$))|(^|/)\.\.(/|$)")
"""Of a path that does not stay in the folder that it begins in."""
PERMISSION, PERMITTED = "allow_targets=", "CLOZELAB_ALLOW_TARGETS"
# keys whose value is called: Hydra's, and in Hydra's logging Python's
NAMING = ("_target_", "()", "class")
HYDRA_KEYS = frozenset({"_target_", "_partial_", "_recursive_", "_convert_"})
OF_TASK_MODULE = frozenset(
    (
        "encoder",
        "head",
        "validation",
        "metric",
        "keep_best_weights",
        "log_interval_steps",
        "optimizer_factory",
    )
) | {"schedule_factory", "total_steps", "gradient_clip_norm", "seed"}
GIVEN_BY_STAGE: Mapping[str, frozenset[str]] = {
    "optimizer": frozenset({"named_parameters"}),
    "schedule": frozenset({"optimizer", "total_steps"}),
    **dict.fromkeys(("task.data", "measure.task.data"), frozenset({"inputs", "plan"})),
    **dict.fromkeys(("task.module", "measure.task.module"), OF_TASK_MODULE),
    "measure.data": frozenset({"inputs", "is_causal"}),
    "measure.module": frozenset({"encoder", "heads", "data", "metric"}),
    "corpus.generator": frozenset({"output_dir"}),
    **{
        f"architecture.{part}": frozenset({"config"})
        for part in ("positions", "block", "attention", "pooler")
    },
    **dict.fromkeys(("logger.tensorboard", "logger.wandb"), frozenset({"job"})),
}
"""Arguments that a stage passes itself: a value of the configuration would lose against it without
a word.
"""


@cache
def allowed() -> Mapping[str, list[str]]:
    """Place of a `_target_` -> the addresses that may stand there."""
    found: Any = OmegaConf.to_container(OmegaConf.load(CONF_DIR / "targets.yaml"))
    return found


def take_permission(words: Iterable[str]) -> list[str]:
    """A command line without `allow_targets=[...]`, which this process and all that it starts then
    know.
    """
    said = list(words)
    for word in (one for one in said if one.startswith(PERMISSION)):
        os.environ[PERMITTED] = re.sub(r"[\[\]'\"\s]", "", word.removeprefix(PERMISSION))
    return [one for one in said if not one.startswith(PERMISSION)]


def is_permitted(target: Any) -> bool:
    """Whether an address lies in a package that the user has named."""
    packages = filter(None, os.environ.get(PERMITTED, "").split(","))
    return isinstance(target, str) and target.startswith(
        tuple(f"{package.strip()}." for package in packages)
    )


def gate(config: DictConfig) -> None:
    """ValueError for a composed configuration (with its `hydra` node) that calls or writes what it
    must not.
    """
    plain = resolved(config)
    check_targets(plain, signatures=False)
    if plain["hydra"]["output_subdir"]:
        raise ValueError(
            "hydra.output_subdir: leave it out; a run's folder has config.yaml, which holds no"
            " secret"
        )
    for where in (
        "corpus.name",
        *(key for key, meaning in meanings().items() if meaning == IDENTITY),
    ):
        name: Any = plain
        for key in where.split("."):
            name = name.get(key) if isinstance(name, dict) else None
        if UPWARDS.search(str(name)) or not str(name).isprintable():
            raise ValueError(
                f"{where} is {name!r}: it names a folder of ours, below runs_dir; leave '..', '/',"
                " '~', line ends out"
            )
    run_dir, root = (
        str(plain.get("run_dir") or "${runs_dir}/"),
        f"{str(plain['runs_dir']).rstrip('/')}/",
    )
    is_said = "run_dir" in map(key_of, plain["hydra"]["overrides"]["task"])
    if not is_said and (
        not run_dir.startswith((root, "${runs_dir}/")) or UPWARDS.search(run_dir.removeprefix(root))
    ):
        raise ValueError(
            f"run_dir: {run_dir!r} is not below runs_dir={root}; if you mean it, say run_dir=..."
            " yourself"
        )


def resolved(config: DictConfig) -> dict[str, Any]:
    """Plain values; a part in which something means nothing yet, or a value is missing, is as it is
    written.
    """
    plain: Any = OmegaConf.to_container(config, resolve=False)
    for key in plain:
        with suppress(OmegaConfBaseException, ValueError, TypeError):
            value = config[key]
            plain[key] = (
                OmegaConf.to_container(value, resolve=True)
                if isinstance(value, Container)
                else value
            )
    return plain


def check_targets(config: DictConfig | Mapping[str, Any], *, signatures: bool = True) -> None:
    """ValueError for a `_target_` that is none of its place's, and for a key that its target does
    not take.

    `config` may be a part, under its dotted name. Without `signatures` nothing is imported, and no
    key looked at.
    """
    for where, node in _nodes(resolved(config) if isinstance(config, DictConfig) else config, ""):
        known = allowed().get(WITHOUT_PLACE.sub("", where), [])
        for target in (node[key] for key in NAMING if key in node and node[key] not in known):
            if known and is_permitted(target):
                continue
            why = hint(str(target), known) if known else "nothing is made here"
            package = str(target).partition(".")[0]
            how = (
                f"; {PERMISSION}[{package}] on your command line allows a package of yours"
                * bool(known)
            )
            raise ValueError(
                f"{where}._target_: {target!r} is not allowed; {why} (see conf/targets.yaml{how})"
            )
        if "_args_" in node:
            raise ValueError(
                f"{where}._args_: positional arguments are not allowed; give every argument its"
                " name"
            )
        if signatures:
            _check_keys(where, node)


def build(place: str, node: Any) -> Any:
    """What the node of a place, or the nodes below it, name: made by Hydra, once their addresses
    are looked at.
    """
    from hydra.utils import instantiate  # lazy: who reads a table of addresses does not need Hydra

    plain = OmegaConf.to_container(node, resolve=True) if isinstance(node, Container) else node
    check_targets({place: plain})
    if "${" in repr(plain):
        raise ValueError(
            f"{place}: {plain} holds an interpolation once all are resolved; Hydra would resolve it"
            " unseen"
        )
    return instantiate(plain, _convert_="all")


def _nodes(value: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(value, Mapping):
        if value.keys() & NAMING[:2] or ("class" in value and where.startswith("hydra.")):
            yield where, value
        for key, child in value.items():
            yield from _nodes(child, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from _nodes(child, f"{where}.{index}")


def _check_keys(where: str, node: Mapping[str, Any]) -> None:
    """Keys are the target's named parameters, and of its bases where it passes `**rest` on to
    them.
    """
    target = node["_target_"]
    found = locate(target)
    named = parameters_of(found)
    taken = {*GIVEN_BY_STAGE.get(where, ()), *getattr(found, "set_by_class", ())}
    free = [name for name in named if name not in taken]
    for key in node:
        if key not in HYDRA_KEYS and key not in free:
            reason = f"{target} takes no such argument"
            if key in named:
                reason = (
                    f"the {'stage' if key in GIVEN_BY_STAGE.get(where, ()) else 'module'} sets this"
                    " itself"
                )
            raise ValueError(f"{where}.{key}: {reason}; {hint(str(key), free)}")


def parameters_of(target: Any) -> list[str]:
    """Names that a function or class takes, along the bases for as long as they pass on what is
    left over.
    """
    functions = [target]
    if inspect.isclass(target):
        functions = [
            vars(base)["__init__"] for base in target.__mro__[:-1] if "__init__" in vars(base)
        ]
    names: list[str] = []
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
        rest = [one for one in parameters if one.kind is inspect.Parameter.VAR_KEYWORD]
        names += [one.name for one in parameters if one not in rest and one.name != "self"]
        if not rest:
            break
    return list(dict.fromkeys(names))


def locate(target: str) -> Any:
    """The class or function that a checked address names."""
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)
