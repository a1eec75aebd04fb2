"""What reproducing an experiment consists of: its steps, and the overrides that go to each.

`prepare.x=`, `pretrain.x=`, `finetune.x=` and `evaluate.x=` go to that stage alone; any other
override goes to every stage that has such a key, and one that no stage has is refused. Evaluations
take encoders: `row=a,b` are those of these rows, and `seed=`, which is of trainings, is not for
them. `seeds=4,5` are the pre-training seeds of every stage.
`finetune=none` and `evaluate=none` leave a stage out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ValueType

from clozelab.config import Composed
from clozelab.launch.experiments import MEASURED, SEEDS, SWEEPS, ExperimentSource
from clozelab.launch.mistakes import CONFIGURATION_ERRORS, explain, known_keys
from clozelab.launch.overrides import GIVEN_ROW
from clozelab.launch.own_text import OWN_TEXT
from clozelab.launch.sweep import Sweep, compose, root_of, runs_root, sweeps_of
from clozelab.results.experiment import Experiment, open_experiment, read_yaml
from clozelab.runs.find import Runs, find, of_other_scales
from clozelab.schema import SourceConfig
from clozelab.terminal import ParsedArgs
from clozelab.text.did_you_mean import key_of
from clozelab.text.plain import PlainDict, PlainMapping, hydra_literal

STAGES = ("prepare", *SWEEPS)
OF_CORPUS = ("prepare", "pretrain")  # the stages that have one
LEAVE_OUT = {"finetune=none", "evaluate=none"}
ENUMERABLE = (ValueType.CHOICE_SWEEP, ValueType.SIMPLE_CHOICE_SWEEP, ValueType.RANGE_SWEEP)
"""Lists of values that are known without a sweeper; glob() and interval() are not."""
LISTED_ARMS = re.compile(r"arm=[\w.,-]+")
SEEDS_OVERRIDE = re.compile(r"seeds=(\d+(,\d+)*|range\(.*\))")


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
        words = [self.verb]
        if self.folder:
            words += ["--config-dir", str(self.folder)]
        return [*words, "--config-name", self.config_name, "-m", *self.overrides]

    @cached_property
    def sweep(self) -> Sweep:
        """Its jobs, opened once: each kind is composed once.

        ValueError or an error of Hydra's for a wrong override.
        """
        return Sweep(self.config_name, self.overrides, folder=self.folder)

    @property
    def root(self) -> tuple[Path, str]:
        """(folder of the runs at the scale, the scale's name)."""
        return root_of(self.sweep.master)


def step_of(args: ParsedArgs) -> Step:
    """The step that is one stage's sweep, or a single run, as a command line names it."""
    (verb,) = args.names
    folder = None
    if "config-dir" in args.options:
        folder = Path(args.options["config-dir"])
    return Step(verb, args.options.get("config-name", verb), folder, tuple(args.overrides))


def make_steps(
    folder: Path, arguments: Sequence[str], running: Collection[str] = SWEEPS
) -> list[Step]:
    """The steps of an experiment with the user's overrides: the corpus, and stages that run.

    ValueError for an override that no stage takes.
    """
    names = {}
    for stage, name in sweeps_of(folder).items():
        if f"{stage}=none" not in LEAVE_OUT.intersection(arguments):
            names[stage] = name
    arguments = [argument for argument in arguments if argument not in LEAVE_OUT]
    keys = [word.removeprefix("finetune.").partition("=")[0] for word in arguments]
    if "encoder" in keys:
        if not ExperimentSource("experiment", str(folder)).is_config(f"row/{GIVEN_ROW}"):
            raise ValueError(
                f"{folder.name} pre-trains its encoders; it has no row {GIVEN_ROW} for encoder="
            )
        names = {verb: name for verb, name in names.items() if verb == "finetune"}
        if "row" not in keys:
            # The row decides what later overrides start from.
            arguments = [f"row={GIVEN_ROW}", *arguments]
    if not names:
        raise ValueError(f"{folder.name}: nothing is left to run without its fine-tuning")

    return _with_overrides(folder, names, arguments, running)


def _with_overrides(
    folder: Path, names: Mapping[str, str], arguments: Sequence[str], running: Collection[str]
) -> list[Step]:
    """The corpus, and the sweeps of these names that run, each with the overrides for it."""
    stages = {verb: Step(verb, name, folder, ()) for verb, name in names.items()}
    if "pretrain" in stages:
        stages = {"prepare": Step("prepare", "prepare", None, ())} | stages
    stages = split_overrides(stages, _with_seeds_of_stages(arguments, names))
    # A round of fine-tunings alone measures nothing.
    if "pretrain" in stages and "evaluate" in stages and "evaluate" in running:
        arms = _borrowed_arms(folder, stages["evaluate"].overrides)
        words = tuple(_with_arms(word, arms) for word in stages["pretrain"].overrides)
        if words != stages["pretrain"].overrides:
            stages["pretrain"] = replace(stages["pretrain"], overrides=words)
    steps = list(stages.values())
    if "prepare" in stages:
        # The corpus that the sweep trains on, whether the scale, the experiment or the user chose
        # it.
        prepare, pretrain, *_ = steps
        chosen = _corpus_of_sweep(pretrain.sweep.master, prepare.overrides)
        steps[0] = replace(prepare, overrides=(*chosen, *prepare.overrides))
    return [step for step in steps if step.verb in running or not step.is_sweep]


def _borrowed_arms(folder: Path, words: Iterable[str]) -> list[str]:
    """Arms whose heads measure the encoders of rows that have no arm (MEASURED/*.yaml)."""
    rows = {key_of(word): word.partition("=")[2].split(",") for word in words}.get(MEASURED)
    files = sorted(folder.glob(f"{MEASURED}/*.yaml"))
    asked = [read_yaml(file) for file in files if rows is None or file.stem in rows]
    return [row["encoder_arm"] for row in asked if row.get("encoder_arm")]


def _with_arms(word: str, arms: Sequence[str]) -> str:
    """`arm=a` with the arms that measures need besides; any other override as it is."""
    if not LISTED_ARMS.fullmatch(word):
        return word
    listed = word.removeprefix("arm=").split(",")
    return f"arm={','.join(dict.fromkeys([*listed, *arms]))}"


def _corpus_of_sweep(sweep: Composed, words: Sequence[str]) -> list[str]:
    """The corpus and the tokenizer of a sweep's first arm, as overrides for prepare.

    `words` are the user's for prepare, which stay as they are. Without the others a corpus would be
    prepared that no arm reads.
    """
    choices = sweep.hydra_value("runtime.choices")
    overrides = [f"corpus={choices['corpus']}"]
    prepared = compose("prepare", [*overrides, *words])
    if prepared.hydra_value("runtime.choices")["tokenizer"] != choices["tokenizer"]:
        overrides.append(f"tokenizer={choices['tokenizer']}")
        prepared = compose("prepare", [*overrides, *words])

    given_keys = set(map(key_of, words))
    for group in ("corpus", "tokenizer"):
        of_sweep = sweep.get(group)
        for name, value in prepared.get(group).items():
            key = f"{group}.{name}"
            if of_sweep[name] != value and key not in given_keys:
                settings = of_sweep[name]
                if key == "corpus.sources":
                    settings = list(map(_without_defaults, settings))
                overrides.append(f"{key}={hydra_literal(settings)}")
    return overrides


def _without_defaults(source: PlainMapping) -> PlainDict:
    """The settings of a corpus's source that are not those of every source."""
    usual = asdict(SourceConfig())
    return {key: value for key, value in source.items() if value != usual[key]}


def _with_seeds_of_stages(words: Sequence[str], stages: Iterable[str]) -> list[str]:
    """`seeds=1,2` as `pretrain.seed=1,2`, `finetune.pretrain_seed=1,2` and so on.

    ValueError: it gives no whole numbers.
    """
    spelled_out = []
    for word in words:
        if key_of(word) != "seeds":
            spelled_out.append(word)
            continue
        if not SEEDS_OVERRIDE.fullmatch(word):
            raise ValueError(f"{word}: give whole numbers, such as seeds=1,2,3")
        for stage in stages:
            key = next(iter(SEEDS[stage]))
            spelled_out.append(f"{stage}.{key}={word.partition('=')[2]}")
    return spelled_out


def split_overrides(stages: Mapping[str, Step], words: Sequence[str]) -> dict[str, Step]:
    """Stage -> its step with its overrides, of the user's.

    ValueError for one that no stage takes.
    """
    addressed = [_addressed(word, stages) for word in words]
    accepting = {}
    for stage, step in stages.items():
        for_stage = [by_stage[stage] for by_stage in addressed if stage in by_stage]
        accepting[stage] = _accepting(step, for_stage)
    overrides = {stage: step.overrides for stage, step in accepting.items()}
    for word, by_stage in zip(words, addressed, strict=True):
        if not any(override in overrides.get(stage, ()) for stage, override in by_stage.items()):
            raise ValueError(_refusal(word, by_stage, accepting))
    return accepting


def _addressed(word: str, stages: Mapping[str, Step]) -> dict[str, str]:
    """What an override says to each stage that it is for.

    `finetune.task=mrpc` is `task=mrpc` for one.
    """
    bare = word.lstrip("+~")
    sign = word[: len(word) - len(bare)]
    stage, dot, override = bare.partition(".")
    if dot and stage in STAGES:
        return {stage: sign + override}
    by_stage = dict.fromkeys(STAGES, word)
    if word.startswith(OWN_TEXT):  # evaluations measure on what the encoders' corpus holds out
        return dict.fromkeys(OF_CORPUS, word)
    if key_of(word) in ("row", "seed"):
        del by_stage["evaluate"]
    if key_of(word) == "row" and "evaluate" in stages:
        # Evaluations have no rows of their own: `row=a,b` names the encoders that they measure.
        if "finetune" not in stages:
            by_stage = {}
        by_stage["evaluate"] = f"{MEASURED}={word.partition('=')[2]}"
    return by_stage


def _refusal(word: str, by_stage: Mapping[str, str], stages: Mapping[str, Step]) -> str:
    """Why no stage takes an override.

    Args:
        word: the override as the user gave it.
        by_stage: what it says to the stages that it is for.
        stages: those of the experiment, with the overrides that they take.
    """
    subject = word
    stage = next(iter(by_stage))
    if len(by_stage) > 1:
        subject = f"no stage takes {word!r}"
        # The sweeps have all keys that prepare has, and more: the last one's refusal says most,
        # of those that have what stands on top of the key.
        *_, stage = sorted(stages, key=lambda name: name != "evaluate")
        top = key_of(word).partition(".")[0]
        if word.startswith(OWN_TEXT):
            top = "corpus"
        for name, step in {"pretrain": Step("pretrain", "pretrain", None, ()), **stages}.items():
            if top in known_keys(step.config_name, step.folder):
                stage = name
    if stage not in stages:
        return (
            f"{subject}: this command has no step '{stage}' but {', '.join(stages)}; with encoder="
            " nothing is prepared and pre-trained"
        )
    step = stages[stage]
    error = _problem(_with(step, [*step.overrides, by_stage.get(stage, word)]))
    assert error is not None
    reason = explain(error, stage, config_name=step.config_name, folder=step.folder)
    return f"{subject}: {reason}"


def _with(step: Step, words: Iterable[str]) -> Step:
    """The step with these overrides."""
    return replace(step, overrides=tuple(words))


def _accepting(step: Step, words: Sequence[str]) -> Step:
    """The step with those of some overrides that its stage takes: mostly all of them."""
    with_all = _with(step, words)
    if _problem(with_all) is None:
        return with_all
    accepted: list[str] = []
    # Twice, for the key of a choice that only comes behind it.
    for word in [*words, *words]:
        if word not in accepted and _problem(_with(step, [*accepted, word])) is None:
            accepted.append(word)
    return _with(step, [word for word in words if word in accepted])


def chooses_seeds(word: str) -> bool:
    """Whether an override is about the seeds of pre-training."""
    stage, _, key = key_of(word).rpartition(".")
    if key in ("seed", "seeds"):
        return "finetune" not in stage
    return key == "pretrain_seed"


def _problem(step: Step) -> Exception | None:
    """Why a stage does not take the step's overrides; None where it does."""
    overrides = list(step.overrides)
    try:
        for parsed in OverridesParser.create().parse_overrides(overrides):
            if parsed.is_sweep_override():
                if not step.is_sweep:
                    return ValueError("prepare runs once; it takes no list of values")
                # A glob is not composed below, so that its key is looked up here.
                key = parsed.get_key_element()
                is_tried = parsed.value_type in ENUMERABLE
                if not is_tried and key not in known_keys(step.config_name, step.folder):
                    return ValueError(f"{step.verb} has no key {key!r}")
        # A master configuration leaves lists of values out: try the first of each.
        first_values = list(map(_first, overrides))
        if step.is_sweep and first_values == overrides:
            _ = step.sweep  # composes the same, and is opened for whoever needs it next
        else:
            compose(step.config_name, first_values, folder=step.folder, sweep=step.is_sweep)
    except CONFIGURATION_ERRORS as error:
        return error
    return None


def _first(word: str) -> str:
    """An override with the first of its values where it is a list of them."""
    parsed = OverridesParser.create().parse_override(word)
    if parsed.value_type not in ENUMERABLE:
        return word
    return f"{parsed.get_key_element()}={next(iter(parsed.sweep_string_iterator()))}"


def open_results(name: str, overrides: Sequence[str]) -> tuple[Experiment, Runs]:
    """An experiment, and its runs at a scale. ValueError: there is no run."""
    experiment = open_experiment(name)
    root, scale = runs_root(experiment.folder, overrides)
    runs = find(root)
    if not runs.runs:
        raise ValueError(
            f"no run below {root}{of_other_scales(root)};"
            f" `clozelab reproduce {name} scale={scale}` makes them"
        )
    return experiment, runs
