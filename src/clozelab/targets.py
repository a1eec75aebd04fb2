"""Every `_target_` of a configuration, checked before anything is instantiated.

Hydra calls whatever a `_target_` names, and its own block list misses enough loaders that run code from a file. So only
addresses below our own packages are allowed, and the other keys of the node must be parameters of what it names.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from clozelab.suggestions import hint, nearest

ROOMS = ("corpus", "datamodules", "models", "modules", "objectives", "optim", "training")
ALLOWED_PACKAGES = (*(f"clozelab.{room}." for room in ROOMS), "microworld.")
HYDRA_KEYS = frozenset({"_target_", "_partial_", "_recursive_", "_convert_"})
GIVEN_BY_STAGE: Mapping[str, frozenset[str]] = {
    "optimizer": frozenset({"named_parameters"}),
    "schedule": frozenset({"optimizer", "total_steps"}),
    "task.data": frozenset({"inputs", "plan"}),
    "task.module": frozenset(("encoder", "head", "validation", "metric", "keep_best_weights", "log_interval_steps"))
    | {"optimizer_factory", "schedule_factory", "total_steps", "gradient_clip_norm", "seed"},
    "corpus.generator": frozenset({"output_dir"}),
    **{f"architecture.{part}": frozenset({"config"}) for part in ("positions", "block", "attention", "pooler")},
    **dict.fromkeys(("logger", "logger.tensorboard", "logger.wandb"), frozenset({"job"})),
}
"""Arguments that a stage passes itself: a value of the configuration would lose against it without a word."""


def check_targets(config: DictConfig | Mapping[str, Any], *, signatures: bool = True) -> None:
    """Refuse a `_target_` outside our packages and a key that its target does not take.

    Args:
        config: the whole composed configuration, or any part of it.
        signatures: also import each target and compare keys (imports torch); False checks the addresses only.

    Raises:
        ValueError: names the node, what is wrong with it and the nearest right spelling.
    """
    plain = OmegaConf.to_container(config, resolve=False) if isinstance(config, DictConfig) else config
    for where, node in _nodes(plain, ""):
        target = node["_target_"]
        if not isinstance(target, str) or not target.startswith(ALLOWED_PACKAGES) or "${" in target:
            packages = ", ".join(package.rstrip(".") for package in ALLOWED_PACKAGES)
            raise ValueError(f"{where}._target_: {target!r} is not allowed; a target lies in one of {packages}")
        if any(part.startswith("_") for part in target.split(".")):
            raise ValueError(f"{where}._target_: {target!r} names something private; name a public class or function")
        if "_args_" in node:
            raise ValueError(f"{where}._args_: positional arguments are not allowed; give every argument its name")
        if signatures:
            _check_keys(where, node)


def _nodes(value: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(value, Mapping):
        if "_target_" in value:
            yield where, value
        for key, child in value.items():
            yield from _nodes(child, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from _nodes(child, f"{where}.{index}")


def _check_keys(where: str, node: Mapping[str, Any]) -> None:
    """Keys are the target's named parameters, and of its bases where it passes `**rest` on to them."""
    target = node["_target_"]
    found = locate(target, where)
    named = parameters_of(found)
    taken = {*GIVEN_BY_STAGE.get(where, ()), *getattr(found, "set_by_class", ())}
    free = [name for name in named if name not in taken]
    for key in node:
        if key not in HYDRA_KEYS and key not in free:
            reason = f"{target} takes no such argument"
            if key in named:
                reason = f"the {'stage' if key in GIVEN_BY_STAGE.get(where, ()) else 'module'} sets this itself"
            raise ValueError(f"{where}.{key}: {reason}; {hint(str(key), free)}")


def parameters_of(target: Any) -> list[str]:
    """Names that a function or class takes, along the bases for as long as they pass on what is left over."""
    functions = [target]
    if inspect.isclass(target):
        functions = [vars(base)["__init__"] for base in target.__mro__[:-1] if "__init__" in vars(base)]
    names: list[str] = []
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
        rest = [one for one in parameters if one.kind is inspect.Parameter.VAR_KEYWORD]
        names += [one.name for one in parameters if one not in rest and one.name != "self"]
        if not rest:
            break
    return list(dict.fromkeys(names))


def locate(target: str, where: str) -> Any:
    """The class or function (or a class's method) that a checked address names."""
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:cut])
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
                continue  # the rest is an attribute, or there is no such module: say so below
            missing = f"{where}._target_: {target} needs the package {error.name!r}, which is missing"
            raise ValueError(missing) from error
        for name in parts[cut:]:
            if not hasattr(found, name):
                near = nearest(name, [item for item in dir(found) if not item.startswith("_")])
                meant = f"; did you mean {near!r}?" if near else ""
                raise ValueError(f"{where}._target_: there is no {target!r}{meant}")
            found = getattr(found, name)
        # `clozelab.models.folders.torch.load` must not be a way round the allow-list: what is called is defined by us.
        if not callable(found) or not str(getattr(found, "__module__", "")).startswith(ALLOWED_PACKAGES):
            raise ValueError(f"{where}._target_: {target!r} is not a class or function of this project")
        return found
    raise ValueError(f"{where}._target_: there is no {target!r}")
