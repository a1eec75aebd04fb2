"""What reproducing an experiment consists of: its steps, and which of the user's overrides goes to which step.

`prepare.x=`, `pretrain.x=` and `finetune.x=` go to that stage alone; any other override goes to every stage that has
such a key, and one that no stage has is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ValueType

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

    @property
    def root(self) -> tuple[Path, str]:
        """(folder of the runs at the scale, the scale's name)."""
        return runs_root(self.folder, self.overrides, self.config_name)


def make_steps(folder: Path, words: Sequence[str]) -> list[Step]:
    """The steps of an experiment with the user's overrides.

    ValueError: an override that no stage takes, no sweep, or a given encoder that there is no row for.
    """
    names, words = sweeps_of(folder), list(words)
    keys = [word.removeprefix("finetune.").partition("=")[0] for word in words]
    if "encoder" in keys:
        if not ExperimentSource("experiment", str(folder)).is_config(f"row/{GIVEN_ROW}"):
            raise ValueError(
                f"{folder.name} compares encoders that it pre-trains itself; it has no row/{GIVEN_ROW}.yaml for "
                "encoder="
            )
        names = {verb: name for verb, name in names.items() if verb == "finetune"}
        # The row decides what later overrides start from.
        words = words if "row" in keys else [f"row={GIVEN_ROW}", *words]
    shared = split_overrides(folder, names, words)
    steps = [Step(verb, name, folder, tuple(shared[verb])) for verb, name in names.items()]
    if "pretrain" in names:
        # The corpus that the sweep trains on, whether the scale, the experiment or the user chose it.
        chosen = compose(names["pretrain"], shared["pretrain"], folder=folder, sweep=True).hydra.runtime.choices
        steps.insert(0, Step("prepare", "prepare", None, (f"corpus={chosen.corpus}", *shared["prepare"])))
    return steps


def split_overrides(folder: Path, names: dict[str, str], words: Sequence[str]) -> dict[str, list[str]]:
    """Stage -> its overrides."""
    shared: dict[str, list[str]] = {stage: [] for stage in STAGES}
    for word in words:
        bare = word.lstrip("+~")
        stage, dot, rest = bare.partition(".")
        is_addressed = bool(dot) and stage in STAGES
        said = word[: len(word) - len(bare)] + rest if is_addressed else word
        refused: dict[str, Exception] = {}
        asked = (stage,) if is_addressed else STAGES
        for one in asked:
            if (error := _refusal(one, names, folder, said, shared[one])) is None:
                shared[one].append(said)
            else:
                refused[one] = error
        if len(refused) == len(asked):
            # The sweeps have all keys that prepare has, and more: the last one's refusal says most.
            last = stage if is_addressed else next(reversed(names))
            why = explain(refused[last], last, config_name=names.get(last), folder=folder if last in names else None)
            raise ValueError(f"{word}: {why}" if is_addressed else f"no stage takes {word!r}: {why}")
    return shared


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


def sweeps_of(folder: Path) -> dict[str, str]:
    """Stage -> the experiment's sweep configuration. Raises ValueError where there is none."""
    if names := sweeps_in(folder):
        return names
    raise ValueError(
        f"{folder} has no sweep: give it arms in paper.yaml, or sweep_pretrain.yaml and sweep_finetune.yaml"
    )


def runs_root(folder: Path | None, overrides: Sequence[str], config_name: str | None = None) -> tuple[Path, str]:
    """(folder of an experiment's runs at its scale, the scale's name), by one of its sweeps; else by its first.

    ValueError: an override is wrong.
    """
    name = config_name or next(iter(sweeps_of(folder or Path()).values()))
    composed = compose(name, list(overrides), folder=folder, sweep=True)
    with hydra_config(composed):
        scale = str(composed.scale.name)
        return Path(str(composed.runs_dir)) / str(composed.experiment) / scale, scale
