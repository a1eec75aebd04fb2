"""What reproducing an experiment consists of: its steps, and which of the user's overrides goes to
which step.

`prepare.x=`, `pretrain.x=`, `finetune.x=` and `evaluate.x=` go to that stage alone; any other
override goes to every stage that has such a key, and one that no stage has is refused. Evaluations
take encoders: `row=a,b` are those of these rows, and `seed=`, which is of trainings, is not for
them. `seeds=4,5` are the pre-training seeds of every stage.
`finetune=none` and `evaluate=none` leave a stage out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ValueType
from omegaconf import DictConfig, OmegaConf

from clozelab.launch.experiments import MEASURED, SEEDS, ExperimentSource, sweeps_in
from clozelab.launch.experiments import SWEEPS as SWEEPS
from clozelab.launch.mistakes import CONFIGURATION_ERRORS, explain, known_keys
from clozelab.launch.overrides import GIVEN_ROW
from clozelab.launch.sweep import Sweep, compose, hydra_config
from clozelab.text.did_you_mean import key_of

STAGES = ("prepare", *SWEEPS)
LEAVE_OUT = {"finetune=none", "evaluate=none"}
ENUMERABLE = (ValueType.CHOICE_SWEEP, ValueType.SIMPLE_CHOICE_SWEEP, ValueType.RANGE_SWEEP)
"""Lists of values that are known without a sweeper; glob() and interval() are not."""
PLAIN = re.compile(r"[\w.]+=")  # an override that can only change what is there


@dataclass(frozen=True)
class Step:
    """One command of a reproduction."""

    verb: str
    config_name: str
    folder: Path | None  # where a sweep's configuration is, beside conf/: the experiment's folder
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
        """Its jobs, opened once: each kind is composed once. ValueError or an error of Hydra's for
        a wrong override.
        """
        return Sweep(self.config_name, self.overrides, folder=self.folder)

    @property
    def root(self) -> tuple[Path, str]:
        """(folder of the runs at the scale, the scale's name)."""
        return root_of(self.sweep.master)


def make_steps(folder: Path, words: Sequence[str]) -> list[Step]:
    """The steps of an experiment with the user's overrides; ValueError for one that no stage
    takes.
    """
    names = {
        stage: name
        for stage, name in sweeps_of(folder).items()
        if f"{stage}=none" not in {*words} & LEAVE_OUT
    }
    words = [word for word in words if word not in LEAVE_OUT]
    keys = [word.removeprefix("finetune.").partition("=")[0] for word in words]
    if "encoder" in keys:
        if not ExperimentSource("experiment", str(folder)).is_config(f"row/{GIVEN_ROW}"):
            raise ValueError(
                f"{folder.name} pre-trains its encoders; it has no row/{GIVEN_ROW}.yaml for"
                " encoder="
            )
        names = {verb: name for verb, name in names.items() if verb == "finetune"}
        # The row decides what later overrides start from.
        words = words if "row" in keys else [f"row={GIVEN_ROW}", *words]
    if not names:
        raise ValueError(f"{folder.name}: nothing is left to run without its fine-tuning")
    given = (word for word in words if key_of(word) == "seeds")
    if wrong := next(
        (word for word in given if not re.fullmatch(r"seeds=(\d+(,\d+)*|range\(.*\))", word)), ""
    ):
        raise ValueError(f"{wrong}: give whole numbers, such as seeds=1,2,3")
    keys_of_seeds = [f"{stage}.{next(iter(SEEDS[stage]))}=" for stage in names]
    words = [
        one
        for word in words
        for one in (
            [key + word.partition("=")[2] for key in keys_of_seeds]
            if key_of(word) == "seeds"
            else [word]
        )
    ]
    shared = split_overrides(folder, names, words)
    steps = [Step(verb, name, folder, tuple(shared[verb])) for verb, name in names.items()]
    if "pretrain" in names:
        # The corpus that the sweep trains on, whether the scale, the experiment or the user chose
        # it.
        chosen = steps[0].sweep.master.hydra.runtime.choices
        steps.insert(
            0, Step("prepare", "prepare", None, (f"corpus={chosen.corpus}", *shared["prepare"]))
        )
    return steps


def split_overrides(
    folder: Path, names: dict[str, str], words: Sequence[str]
) -> dict[str, list[str]]:
    """Stage -> its overrides."""
    rows = {
        word: f"evaluate.{MEASURED}={word.partition('=')[2]}"
        for word in words
        if key_of(word) == "row"
    }
    is_of_measures = "finetune" not in names and "evaluate" in names
    meant = [_addressed(rows.get(word, word) if is_of_measures else word) for word in words]
    shared: dict[str, list[str]] = {}
    for stage in STAGES:
        theirs = [said for asked, said in meant if stage in asked]
        if stage == "evaluate" and not is_of_measures:
            theirs += [word.partition(".")[2] for word in rows.values()]
        shared[stage] = _taken(stage, names, folder, theirs) if theirs else []
    for word, (asked, said) in zip(words, meant, strict=True):
        if not any(said in shared[one] for one in asked):
            # The sweeps have all keys that prepare has, and more: the last one's refusal says most.
            last = (
                asked[0]
                if len(asked) == 1
                else sorted(names, key=lambda name: name != "evaluate")[-1]
            )
            where = folder if last in names else None
            refused = _composed(last, names, folder, [*shared[last], said])
            assert isinstance(refused, Exception)
            why = explain(refused, last, config_name=names.get(last), folder=where)
            raise ValueError(
                f"{word}: {why}" if len(asked) == 1 else f"no stage takes {word!r}: {why}"
            )
    return shared


def _taken(stage: str, names: dict[str, str], folder: Path, words: Sequence[str]) -> list[str]:
    """Those of some overrides that a stage takes.

    To compose takes half a second, so they are not tried one by one: mostly a stage takes them all.
    Else those whose key is there are tried together, and a plain key that is not there after them
    is no key of the stage."""
    if isinstance(_composed(stage, names, folder, words), DictConfig):
        return list(words)
    usual = _composed(stage, names, folder, [])
    if isinstance(usual, Exception):
        return []
    known = [word for word in words if _has(usual, key_of(word)) or key_of(word) == MEASURED]
    whole = _composed(stage, names, folder, known)
    if isinstance(whole, DictConfig):
        words = [
            word
            for word in words
            if word in known or not PLAIN.match(word) or _has(whole, key_of(word))
        ]
        if words == known:
            return known
    taken: list[str] = []
    for word in words:
        if isinstance(_composed(stage, names, folder, [*taken, word]), DictConfig):
            taken.append(word)
    return taken


def chooses_seeds(word: str) -> bool:
    """Whether an override is about the seeds of pre-training."""
    stage, _, key = key_of(word).rpartition(".")
    return (
        key in ("seed", "pretrain_seed", "seeds") and "finetune" not in stage
    ) or key == "pretrain_seed"


def _has(config: DictConfig, key: str) -> bool:
    """Whether a dotted key, or a group of conf/, is there; what a reference stands for counts as
    there.
    """
    node = OmegaConf.to_container(config, resolve=False)
    for part in key.partition("@")[0].replace("/", ".").split("."):
        if isinstance(node, list):
            node = dict(zip(map(str, range(len(node))), node, strict=True))
        if not isinstance(node, dict):
            return isinstance(node, str) and "${" in node
        if part not in node:
            return False
        node = node[part]
    return True


def _addressed(word: str) -> tuple[tuple[str, ...], str]:
    """(the stages that an override is for, what it says to them): `finetune.task=mrpc` is
    `task=mrpc` for one.
    """
    bare = word.lstrip("+~")
    stage, dot, rest = bare.partition(".")
    if dot and stage in STAGES:
        return (stage,), word[: len(word) - len(bare)] + rest
    return (
        tuple(one for one in STAGES if one != "evaluate" or key_of(word) not in ("row", "seed")),
        word,
    )


def _composed(
    stage: str, names: dict[str, str], folder: Path, words: Sequence[str]
) -> DictConfig | Exception:
    """A stage's configuration with some overrides, or why it does not take the last of them, or one
    of all.
    """
    if stage not in names and (stage in SWEEPS or "pretrain" not in names):
        return ValueError(f"there is nothing to {stage} here")
    name, where = (names[stage], folder) if stage in names else (stage, None)
    try:
        for parsed in OverridesParser.create().parse_overrides(list(words)):
            if stage == "prepare" and parsed.is_sweep_override():
                return ValueError("prepare runs once; it takes no list of values")
            if parsed.is_sweep_override() and parsed.value_type not in ENUMERABLE:
                key = parsed.get_key_element()
                if key not in known_keys(name, where):
                    return ValueError(f"{stage} has no key {key!r}")
        # A master configuration leaves lists of values out: try the first of each.
        return compose(name, [_first(word) for word in words], folder=where, sweep=stage in SWEEPS)
    except CONFIGURATION_ERRORS as error:
        return error


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
        f"{folder} has no sweep: give arms in paper.yaml, or sweep_pretrain.yaml and"
        " sweep_finetune.yaml"
    )


def runs_root(
    folder: Path | None, overrides: Sequence[str], config_name: str | None = None
) -> tuple[Path, str]:
    """(folder of an experiment's runs at its scale, the scale's name), by one of its sweeps; else
    by its first.
    """
    name = config_name or next(iter(sweeps_of(folder or Path()).values()))
    return root_of(compose(name, list(overrides), folder=folder, sweep=True))


def root_of(master: DictConfig) -> tuple[Path, str]:
    """(folder of the runs at the scale, the scale's name) of a sweep's master configuration."""
    with hydra_config(master):
        scale = str(master.scale.name)
        return Path(str(master.runs_dir)) / str(master.experiment) / scale, scale
