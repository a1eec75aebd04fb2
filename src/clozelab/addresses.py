"""Which classes and functions a configuration may name, checked before any of them is called.

Hydra calls whatever a `_target_` names, and its own block list misses much that runs code. So
conf/targets.yaml lists the exact addresses that each place of a configuration may have. The loader
(launch/sweep.py) sends every composed configuration through `validate_config_security`, its `hydra`
node included. `build` checks a node again before Hydra makes its object. What the files of an
experiment may contain is in launch/experiments.py. Only the user allows more: whole packages, with
`allow_targets=[PACKAGE]` on the command line, or by an environment variable.

A *place* is the dotted key of a node, such as `optimizer` or `task.unit`.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import yaml  # type: ignore[import-untyped]

from claims.text.did_you_mean import hint
from clozelab.schema import IDENTITY, meanings
from clozelab.text.did_you_mean import key_of
from clozelab.text.paths import CONF_DIR
from clozelab.text.plain import PlainMapping, ReadOnlyJson

WITHOUT_PLACE = re.compile(
    r"^(scale\.pretrain\.)?phases\.\d+\.|(?<=^logger)\.\w+$|(?<=^callbacks)\.\w+"
    r"|(?<=^corpus\.steps)\.\d+"
)
"""What is cut from a key to get its place: the phase before it, and the name of one of several
trackers or callbacks behind it, or the number of a corpus's step.
"""
MISSING = object()
PHASES = ("phases.", "scale.pretrain.phases.")
# Matches a path that leaves the folder that it begins in: "/etc", "~me/x" and "a/../b", but not
# "a/b..c".
UPWARDS = re.compile(r"^(/|~[\w.-]*(/|$))|(^|/)\.\.(/|$)")
PERMISSION = "allow_targets="
PERMITTED = "CLOZELAB_ALLOW_TARGETS"
"""Environment variable: the packages that the user allows, separated by commas."""
# Keys whose value is called: Hydra's own and, in the configuration of logging, Python's.
NAMING = ("_target_", "()", "class")
NAMING_EVERYWHERE = frozenset({"_target_", "()"})
HYDRA_KEYS = frozenset({"_target_", "_partial_", "_recursive_", "_convert_"})
OF_TASK_DATA = frozenset({"inputs", "plan", "unit", "target"})
OF_TASK_MODULE = frozenset(
    {
        "encoder",
        "unit",
        "target",
        "head",
        "validation",
        "metric",
        "given_heads",
        "keep_best_weights",
        "log_interval_steps",
        "optimizer_factory",
        "schedule_factory",
        "total_steps",
        "gradient_clip_norm",
        "seed",
    }
)
OF_ENCODER_PART = frozenset({"config"})
OF_TRACKER = frozenset({"job"})
TASKS = ("task", "measure.task")
"""Places of a task. Its unit and target take their arguments from its settings."""
PARTS_OF_TASK = ("unit", "target")
SETTINGS_OF_TASK = {
    "data": ("clozelab.datamodules.finetuning.FinetuningDataModule", OF_TASK_DATA),
    "module": ("clozelab.modules.finetuning.FineTuning", OF_TASK_MODULE),
}
"""Key of a task's settings -> the class that takes them beside unit and target, and the arguments
that a stage passes to it itself.
"""
GIVEN_TO_MEASURES = {
    "measure.data": frozenset({"inputs", "is_causal"}),
    "measure.module": frozenset({"encoder", "heads", "data", "metric"}),
}
GIVEN_TO_ENCODER_PARTS = {
    "architecture.positions": OF_ENCODER_PART,
    "architecture.block": OF_ENCODER_PART | {"layer_index"},
    "architecture.attention": OF_ENCODER_PART,
    "architecture.pooler": OF_ENCODER_PART,
    "architecture.norm": OF_ENCODER_PART | {"size"},
}
GIVEN_TO_OTHERS = {
    "optimizer": frozenset({"named_parameters"}),
    "schedule": frozenset({"optimizer", "total_steps"}),
    "corpus.generator": frozenset({"output_dir"}),
    "corpus.steps": frozenset({"data_dir"}),
    "logger.tensorboard": OF_TRACKER,
    "logger.wandb": OF_TRACKER,
}
GIVEN_BY_STAGE: Mapping[str, frozenset[str]] = (
    GIVEN_TO_MEASURES | GIVEN_TO_ENCODER_PARTS | GIVEN_TO_OTHERS
)
"""Place -> arguments that a stage passes itself.

A value of the configuration would be overwritten without a message, so it is refused.
"""


@cache
def allowed() -> Mapping[str, list[str]]:
    """Return place -> the addresses that its `_target_` may have."""
    return yaml.safe_load((CONF_DIR / "targets.yaml").read_text())


def parse_allow_targets(argv: Iterable[str]) -> list[str]:
    """Take `allow_targets=[...]` off a command line, and return the other arguments.

    The packages are then allowed in this process and in all that it starts.
    """
    remaining = []
    for argument in argv:
        if argument.startswith(PERMISSION):
            # "[mine, 'theirs']" -> "mine,theirs"; the processes of a sweep inherit the variable.
            packages = argument.removeprefix(PERMISSION)
            os.environ[PERMITTED] = re.sub(r"[\[\]'\"\s]", "", packages)
        else:
            remaining.append(argument)
    return remaining


def with_permission(argv: Sequence[str]) -> list[str]:
    """Return a command line with `allow_targets=`, where the user has allowed some packages."""
    packages = os.environ.get(PERMITTED)
    if not packages:
        return list(argv)
    return [*argv, f"{PERMISSION}[{packages}]"]


def permission_for(config: PlainMapping) -> list[str]:
    """Return the `allow_targets=` that a recorded configuration needs, as the words of it."""
    ours = set()
    for address in chain.from_iterable(allowed().values()):
        ours.add(address.partition(".")[0])
    packages = dict[str, None]()
    for _, node in _nodes(config, ""):
        package, dot, _ = str(node.get("_target_")).partition(".")
        if dot and package not in ours:
            packages[package] = None
    if not packages:
        return []
    return [f"{PERMISSION}[{','.join(packages)}]"]


def is_permitted(target: object) -> bool:
    """Whether an address lies in a package that the user has allowed."""
    if not isinstance(target, str):
        return False
    packages = os.environ.get(PERMITTED, "").split(",")
    # With the dot, "mine" allows mine.data and not mineral.data.
    prefixes = [f"{package.strip()}." for package in packages if package]
    return target.startswith(tuple(prefixes))


def validate_config_security(plain: PlainMapping) -> None:
    """Check the plain values of a composed configuration, Hydra's own node included.

    ValueError for an address that is not allowed at its place, and for a path that leads out of the
    folders of the runs.
    """
    check_targets(plain, signatures=False)
    hydra: Any = plain["hydra"]
    if hydra["output_subdir"]:
        raise ValueError(
            "hydra.output_subdir: leave it out; a run's folder has config.yaml, which holds no"
            " secret"
        )
    _check_names(plain)
    _check_run_dir(plain)


def _check_names(plain: PlainMapping) -> None:
    """ValueError for a name that becomes part of a folder's path, and would lead out of it."""
    identity_keys = [key for key, meaning in meanings().items() if meaning == IDENTITY]
    for key in ("corpus.name", *identity_keys):
        # The value of a dotted key; None where this configuration does not have the key.
        name: object = plain
        for key_part in key.split("."):
            name = name.get(key_part) if isinstance(name, dict) else None
        if UPWARDS.search(str(name)) or not str(name).isprintable():
            raise ValueError(
                f"{key} is {name!r}: it names a folder of ours, below runs_dir; leave '..', '/',"
                " '~', line ends out"
            )


def _check_run_dir(plain: PlainMapping) -> None:
    """ValueError for a run_dir that is not below runs_dir, unless it is on the command line."""
    hydra: Any = plain["hydra"]
    if "run_dir" in map(key_of, hydra["overrides"]["task"]):
        return
    run_dir = str(plain.get("run_dir") or "${runs_dir}/")
    runs_dir = f"{str(plain['runs_dir']).rstrip('/')}/"
    is_below = run_dir.startswith((runs_dir, "${runs_dir}/"))
    if not is_below or UPWARDS.search(run_dir.removeprefix(runs_dir)):
        raise ValueError(
            f"run_dir: {run_dir!r} is not below runs_dir={runs_dir}; if you mean it, say"
            " run_dir=... yourself"
        )


def check_targets(config: PlainMapping, *, signatures: bool = True) -> None:
    """ValueError for an address that is not allowed at its place, or a key that nothing takes.

    Args:
        config: plain and resolved values; a part of a configuration is given as {place: node}.
        signatures: also check the keys, for which the targets are imported.
    """
    for key_path, node in _nodes(config, ""):
        # `phases.0.objective.token` may name what `objective.token` may.
        known_targets = allowed().get(WITHOUT_PLACE.sub("", key_path), [])
        for key in NAMING:
            if key in node:
                _check_target(key_path, node[key], known_targets)
        if "_args_" in node:
            raise ValueError(
                f"{key_path}._args_: positional arguments are not allowed; give every argument its"
                " name"
            )
        if signatures:
            _check_keys(key_path, node)
    if signatures:
        _check_tasks(config)


def _node_at(config: PlainMapping, place: str) -> PlainMapping | None:
    """The node of a dotted key; None where there is none."""
    node: Any = config
    for key in place.split("."):
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def _check_target(place: str, target: object, known_targets: Sequence[str]) -> None:
    # A package of the user's is allowed only at a place that has addresses of ours.
    if target in known_targets or (known_targets and is_permitted(target)):
        return
    if not known_targets:
        reason = "nothing is made here (see conf/targets.yaml)"
    elif place in ("hydra.launcher", "hydra.sweeper") and str(target).startswith("hydra."):
        group = place.replace(".", "/")
        names = sorted(path.stem for path in (CONF_DIR / group).glob("*.yaml"))
        reason = f"this is Hydra's own: leave {group}= out, or choose {', '.join(names)}"
    else:
        # An interpolation, such as ${oc.env:X}, is of no package.
        package = str(target).partition(".")[0]
        if not package.isidentifier():
            package = "PACKAGE"
        reason = (
            f"{hint(str(target), known_targets)} (see conf/targets.yaml; {PERMISSION}[{package}] on"
            " your command line allows a package of yours)"
        )
    raise ValueError(f"{place}._target_: {target!r} is not allowed; {reason}")


def build(place: str, node: object) -> Any:
    """Return the object that a node describes, or the node with the objects of the nodes below it.

    ValueError as of `check_targets`, before anything is made.
    """
    from hydra.utils import instantiate  # lazy: who reads a table of addresses does not need Hydra

    check_targets({place: node})
    if "${" in repr(node):
        raise ValueError(
            f"{place}: {node} holds an interpolation once all are resolved; Hydra would resolve it"
            " unseen"
        )
    return instantiate(node, _convert_="all")


def _nodes(value: object, place: str) -> Iterator[tuple[str, PlainMapping]]:
    """Yield each node at or below a value that names something to call, with its dotted key."""
    if isinstance(value, Mapping):
        # Elsewhere than in Hydra's logging, `class` is a key like any other.
        is_logging_class = "class" in value and place.startswith("hydra.")
        if is_logging_class or not NAMING_EVERYWHERE.isdisjoint(value):
            yield place, value
        for key, child in value.items():
            yield from _nodes(child, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from _nodes(child, f"{place}.{index}")


def _check_keys(place: str, node: PlainMapping) -> None:
    """ValueError for a key that the node's target does not take, and for a missing argument."""
    target = str(node["_target_"])
    function = locate(target)
    parameters = parameters_of(function)
    set_by_stage = GIVEN_BY_STAGE.get(place, frozenset())
    free = [name for name in parameters if name not in set_by_stage]
    is_open = not inspect.isclass(function) and inspect.getfullargspec(function).varkw is not None
    for key in node:
        if key in HYDRA_KEYS or key in free or (is_open and key not in parameters):
            continue
        reason = f"{target} takes no such argument"
        if key in parameters:
            reason = "the stage sets this itself"
        raise ValueError(f"{place}.{key}: {reason}; {hint(str(key), free)}")
    # A phase has only what it changes of the run's own node. A function may get further arguments
    # when it is called, and a task's parts get theirs from its settings.
    is_part_of_task = place.rpartition(".")[0] in TASKS
    is_whole = inspect.isclass(function) and not place.startswith(PHASES) and not is_part_of_task
    for name in free:
        parameter = parameters[name]
        is_needed = is_whole and parameter.default is inspect.Parameter.empty
        _check_argument(f"{place}.{name}", node.get(name, MISSING), parameter, is_needed)


def _check_tasks(config: PlainMapping) -> None:
    """ValueError for a wrong setting of a configuration's task."""
    for task_key in TASKS:
        task = _node_at(config, task_key)
        if task is None or "unit" not in task:
            continue
        of_parts: dict[str, inspect.Parameter] = {}
        for part_name in PARTS_OF_TASK:
            part_node = task.get(part_name)
            if not isinstance(part_node, Mapping) or "_target_" not in part_node:
                raise ValueError(
                    f"{task_key}.{part_name} is missing: begin the task with a format that has one"
                    " (conf/task/format/), or give its _target_"
                )
            of_parts |= parameters_of(locate(part_node["_target_"]))
        for settings in SETTINGS_OF_TASK:
            _check_settings(task_key, settings, task, of_parts)
        _check_needed(task_key, task, of_parts)


def _check_settings(
    place: str, settings: str, task: ReadOnlyJson, of_parts: Mapping[str, inspect.Parameter]
) -> None:
    """ValueError for a key of a task's `settings` (data, module) that nothing takes."""
    owner, set_by_stage = SETTINGS_OF_TASK[settings]
    parameters = {**parameters_of(locate(owner)), **of_parts}
    free = {name: value for name, value in parameters.items() if name not in set_by_stage}
    for key, value in task[settings].items():
        if key not in free:
            reason = "no part of this task takes such an argument"
            if key in set_by_stage:
                reason = "the stage sets this itself"
            raise ValueError(f"{place}.{settings}.{key}: {reason}; {hint(str(key), free)}")
        _check_argument(f"{place}.{settings}.{key}", value, free[key], is_needed=False)


def _check_needed(
    place: str, task: ReadOnlyJson, of_parts: Mapping[str, inspect.Parameter]
) -> None:
    """ValueError for a missing argument of a task; those of unit and target belong to the data."""
    given = set[str]()
    for node in (*PARTS_OF_TASK, *SETTINGS_OF_TASK):
        given |= set(task[node])
    for settings, (owner, set_by_stage) in SETTINGS_OF_TASK.items():
        needed = parameters_of(locate(owner))
        if settings == "data":
            needed = {**needed, **of_parts}
        for name, parameter in needed.items():
            is_needed = parameter.default is inspect.Parameter.empty
            if is_needed and name not in given and name not in set_by_stage:
                raise ValueError(f"{place}.{settings}.{name} is missing, and nothing stands for it")


def build_parts(task: ReadOnlyJson) -> tuple[Any, Any]:
    """Return a task's unit and target, made with the arguments that its settings have for them."""
    unit, target = [_build_part(f"task.{name}", task[name], task) for name in PARTS_OF_TASK]
    return unit, target


def _build_part(place: str, part: ReadOnlyJson, task: ReadOnlyJson) -> Any:
    """A task's unit or target, which stands at `place`; its own arguments win over the settings."""
    node = dict(part)
    # Its address is checked before the module is imported for its parameters.
    _check_target(place, node["_target_"], allowed()[place])
    # A setting of the task's `data` or `module` may be an argument of its unit or target.
    for name in parameters_of(locate(node["_target_"])):
        for settings in SETTINGS_OF_TASK:
            if name in task[settings]:
                node.setdefault(name, task[settings][name])
    return build(place, node)


def _check_argument(key: str, value: object, parameter: inspect.Parameter, is_needed: bool) -> None:
    """ValueError for a needed argument that is missing, and for text in place of a number (15%)."""
    if value is MISSING and is_needed:
        raise ValueError(f"{key} is missing, and nothing stands for it")
    annotation = str(parameter.annotation).removesuffix(" | None")
    is_text = isinstance(value, str) and "${" not in value  # else `build` says what is wrong
    if is_text and annotation in ("int", "float"):
        raise ValueError(f"{key} is the text {value!r}: give a number")


def parameters_of(target: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function or class, by name.

    Parameters of base classes are included for as long as each constructor takes `**kwargs`.
    """
    functions = [target]
    # The constructors, in the order in which they call each other.
    if inspect.isclass(target):
        classes = target.__mro__[:-1]  # without object
        functions = [vars(base)["__init__"] for base in classes if "__init__" in vars(base)]
    by_name: dict[str, inspect.Parameter] = {}
    # **kwargs pass the remaining arguments to the next constructor; without them the search ends.
    for function in functions:
        passes_on = False
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                passes_on = True
            elif parameter.name != "self":
                by_name.setdefault(parameter.name, parameter)
        if not passes_on:
            break
    return by_name


def locate(target: str) -> Any:
    """Return the class or function that a checked address names.

    ValueError where its module, or the name in it, is not there.
    """
    module_name, _, name = target.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # What the module itself imports and does not find is an error of that code.
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"{target}: there is no module {error.name} (the current folder is not searched:"
            " install your package, or name the folder that holds it in PYTHONPATH)"
        ) from error
    if not hasattr(module, name):
        own_names = []
        for known, value in vars(module).items():
            if getattr(value, "__module__", None) == module_name:
                own_names.append(known)
        raise ValueError(f"{target}: {module_name} has no {name}; {hint(name, own_names)}")
    return getattr(module, name)
