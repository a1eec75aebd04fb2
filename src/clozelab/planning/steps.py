"""What reproducing an experiment consists of: its steps, and which of the user's overrides goes to which step.

`prepare.x=`, `pretrain.x=` and `finetune.x=` go to that stage alone; any other override goes to every stage that has
such a key, and one that no stage has is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ValueType

from clozelab.datamodules.files import require_file
from clozelab.launch.experiments import SWEEPS as SWEEPS
from clozelab.launch.experiments import ExperimentSource, sweeps_in
from clozelab.launch.jobs import GIVEN_ROW
from clozelab.launch.sweep import CONFIGURATION_ERRORS, Sweep, compose, explain, hydra_config, known_keys

STAGES = ("prepare", *SWEEPS)
ENUMERABLE = (ValueType.CHOICE_SWEEP, ValueType.SIMPLE_CHOICE_SWEEP, ValueType.RANGE_SWEEP)
"""Lists of values that are known without a sweeper; glob() and interval() are not."""


@dataclass(frozen=True)
class Step:
    """One command of a reproduction."""

    verb: str
    config_name: str
    folder: Path | None
    """Where a sweep's configuration is, beside conf/: the experiment's folder."""
    overrides: tuple[str, ...]

    @property
    def is_sweep(self) -> bool:
        return self.verb in SWEEPS

    def words(self) -> list[str]:
        """Command line after `clozelab`."""
        if not self.is_sweep:
            return [self.verb, *self.overrides]
        where = ["--config-dir", str(self.folder)] if self.folder else []
        return [self.verb, *where, "--config-name", self.config_name, "-m", *self.overrides]

    @cached_property
    def sweep(self) -> Sweep:
        """Its jobs, opened once: each kind is composed once. ValueError or an error of Hydra's for a wrong override."""
        return Sweep(self.config_name, self.overrides, folder=self.folder)


def make_steps(folder: Path, words: Sequence[str]) -> list[Step]:
    """The steps of an experiment with the user's overrides.

    Raises:
        ValueError: an override that no stage takes, or an experiment without a sweep.
    """
    sweep_names(folder)
    names = sweeps_in(folder)
    if any(word.startswith(("encoder=", "finetune.encoder=")) for word in words):
        names, words = _without_pretraining(folder, names, words)
    shared = split_overrides(folder, names, words)
    steps = [Step(verb, name, folder, tuple(shared[verb])) for verb, name in names.items()]
    if "pretrain" in names:
        # The corpus that the sweep trains on, whether the scale, the experiment or the user chose it.
        corpus = choice(folder, names["pretrain"], shared["pretrain"], "corpus")
        steps.insert(0, Step("prepare", "prepare", None, (f"corpus={corpus}", *shared["prepare"])))
    return steps


def _without_pretraining(folder: Path, names: dict[str, str], words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """What is left of an experiment when the user brings the encoder: fine-tuning, in a row of its own.

    Raises:
        ValueError: the experiment compares its own arms and has no row for a given encoder.
    """
    if not ExperimentSource("experiment", str(folder)).is_config(f"row/{GIVEN_ROW}"):
        raise ValueError(
            f"{folder.name} compares encoders that it pre-trains itself; it has no row/{GIVEN_ROW}.yaml for encoder="
        )
    keys = [word.removeprefix("finetune.").partition("=")[0] for word in words]
    row = [] if "row" in keys else [f"row={GIVEN_ROW}"]
    # The row decides what later overrides start from.
    return {verb: name for verb, name in names.items() if verb == "finetune"}, [*row, *words]


def split_overrides(folder: Path, names: dict[str, str], words: Sequence[str]) -> dict[str, list[str]]:
    """Stage -> its overrides."""
    shared: dict[str, list[str]] = {stage: [] for stage in STAGES}
    for word in words:
        stage, bare = _addressed(word)
        if stage is not None:
            if (error := _refusal(stage, names, folder, bare, shared[stage])) is not None:
                raise ValueError(f"{word}: {_explained(error, stage, names, folder)}")
            shared[stage].append(bare)
            continue
        errors: list[Exception] = []
        for stage in STAGES:
            error = _refusal(stage, names, folder, word, shared[stage])
            if error is None:
                shared[stage].append(word)
            else:
                errors.append(error)
        if len(errors) == len(STAGES):
            # The sweeps have all keys that prepare has, and more: their refusal says most.
            raise ValueError(f"no stage takes {word!r}: {_explained(errors[-1], next(reversed(names)), names, folder)}")
    return shared


def _explained(error: Exception, stage: str, names: dict[str, str], folder: Path) -> str:
    return explain(error, stage, config_name=names.get(stage), folder=folder if stage in names else None)


def _addressed(word: str) -> tuple[str | None, str]:
    """("pretrain", "seed=1") for "pretrain.seed=1"; (None, word) for an override of no stage in particular."""
    sign = word[: len(word) - len(word.lstrip("+~"))]
    stage, dot, rest = word[len(sign) :].partition(".")
    return (stage, sign + rest) if dot and stage in STAGES and "=" not in stage else (None, word)


def _refusal(stage: str, names: dict[str, str], folder: Path, word: str, before: Sequence[str]) -> Exception | None:
    """Why a stage does not take an override after the ones before it; None where it does."""
    if stage not in names and (stage in SWEEPS or "pretrain" not in names):
        return ValueError(f"there is nothing to {stage} here")
    name, where = (names[stage], folder) if stage in names else (stage, None)
    try:
        parsed = OverridesParser.create().parse_override(word)
        if stage == "prepare" and parsed.is_sweep_override():
            return ValueError("prepare runs once; it takes no list of values")
        if parsed.is_sweep_override() and parsed.value_type not in ENUMERABLE:
            key = parsed.get_key_element()
            return None if key in known_keys(name, where) else ValueError(f"{stage} has no key {key!r}")
        # A master configuration leaves lists of values out: try the first of each.
        compose(name, [_first(one) for one in (*before, word)], folder=where, sweep=stage in SWEEPS)
    except CONFIGURATION_ERRORS as error:
        return error
    return None


def _first(word: str) -> str:
    """An override with the first of its values where it is a list of them."""
    parsed = OverridesParser.create().parse_override(word)
    if parsed.value_type not in ENUMERABLE:
        return word
    return f"{parsed.get_key_element()}={next(iter(parsed.sweep_string_iterator()))}"


def choice(folder: Path, config_name: str, overrides: Sequence[str], group: str) -> str:
    """Which member of a group a sweep uses."""
    composed = compose(config_name, overrides, folder=folder, sweep=True)
    return str(composed.hydra.runtime.choices[group])


def sweep_names(folder: Path) -> list[str]:
    """The experiment's sweep configurations. Raises ValueError where there is none."""
    names = [*sweeps_in(folder).values()]
    if not names:
        raise ValueError(
            f"{folder} has no sweep: give it arms in paper.yaml, or sweep_pretrain.yaml and sweep_finetune.yaml"
        )
    return names


def runs_root(folder: Path | None, overrides: Sequence[str], config_name: str) -> tuple[Path, str]:
    """(folder of an experiment's runs at its scale, the scale's name), by one of its sweeps.

    Raises:
        ValueError: an override is wrong.
    """
    composed = compose(config_name, list(overrides), folder=folder, sweep=True)
    with hydra_config(composed):
        assert HydraConfig.initialized()
        root = Path(str(composed.runs_dir)) / str(composed.experiment) / str(composed.scale.name)
        return root, str(composed.scale.name)


def require_task_files(step: Step) -> None:
    """Look for the files of every task of a fine-tuning sweep, so that a night of pre-training does not end without.

    Raises:
        ValueError: names the first missing file, how to get it, and how to leave the task out.
    """
    sweep = step.sweep
    by_task = sweep.groups(lambda key: key == "task")
    for jobs in by_task.values():
        config = sweep.settings(jobs[0])
        task = config["task"]
        if config["hub"]:
            continue
        for file in _files_of(task["data"], with_test=bool(config["predict_test"])):
            try:
                require_file(config["data_dir"], file, task["data"].get("how_to_get", "not said"))
            except ValueError as error:
                names = [word.partition("=")[2] for words in by_task for word in words]
                others = ",".join(name for name in names if name != task["name"])
                raise ValueError(f"task {task['name']}: {error}\n  to go without it: finetune.task={others}") from None


def _files_of(data: Mapping[str, Any], *, with_test: bool) -> list[str]:
    """Every file that a task's data settings name."""
    named = [value for key, value in data.items() if key.endswith("_file")]
    extra = [*(data.get("train_extra") or ()), *(data.get("extra_validation_files") or {}).values()]
    return [*named, *extra, *((data.get("test_files") or {}).values() if with_test else ())]
