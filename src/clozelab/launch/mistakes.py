"""What is wrong where a configuration does not compose, in a sentence that helps.

Hydra's own messages list what the user has not asked for, and name no nearest key.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any

from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from claims.text.did_you_mean import nearest
from clozelab.config import Composed, missing_value_message
from clozelab.launch.own_task import SHORT_KEYS
from clozelab.launch.sweep import compose
from clozelab.schema import SCHEMAS, PhaseConfig
from clozelab.text.did_you_mean import key_of
from clozelab.text.paths import CONF_DIR

CONFIGURATION_ERRORS: tuple[type[Exception], ...] = (
    HydraException,
    OmegaConfBaseException,
    YAMLError,
)
NOT_COMPOSED: tuple[type[Exception], ...] = (*CONFIGURATION_ERRORS, ValueError)
# Beginnings of Hydra's messages, with what they are about.
WRONG_CHOICE = re.compile(
    r"Could not find '(?P<group>.+)/(?P<name>[^/']+)'\s+"
    r"Available options in '[^']+':\n(?P<choices>(?:[ \t]+\S+\n?)+)"
)
WRONG_IN_FILE = re.compile(
    r"In '(?P<file>[^']+)': \w+ raised while composing config:\s*"
    r"Key '[^']+' .*\s+full_key: (?P<key>\S+)"
)
ENTRY_IN_FILE = re.compile(
    r"In '(?P<file>[^']+)': ConfigTypeError raised while composing config:\s*"
    r"Cannot merge DictConfig with ListConfig"
)
RESOLVING = re.compile(r"^\w+ raised while resolving interpolation: ")
NO_NODE = re.compile(r"Interpolation key '(?P<key>(?P<node>\w+)[^']*)' not found")
WRONG_OVERRIDE = re.compile(r"Could not override '(?P<key>[^']+)'")
TO_CHOOSE = re.compile(r"To append to your default list use (?P<word>\+.+)")
SEVERAL_VALUES = re.compile(r"Ambiguous value for argument '(?P<word>.*)'\n")
# "corpus.sources.1.path=x" of a list with one entry
NO_ENTRY = re.compile(r"\+*(?P<list>[^=]+?)\.(?P<index>\d+)[.=]")
# "measure.data.sources.0.path=x" of a list that is null
NO_LIST = re.compile(r"Key '(?P<index>\d+)' .*\s+full_key: (?P<list>\S+)\.\d+\s+object_type=dict$")
TEXT_OF_EVALUATE = "measure=held_out_text text=FILE"
PHASES = "phases=[{seq_length:64,steps:1000,global_batch_size:32,micro_batch_size:32}]"
LENGTH = f"steps and batches are those of its phases: {PHASES}, or steps_factor=0.5"
WARMUP = "the warm-up is a share of the steps: schedule.warmup_fraction=0.05"
MASKED = "the masking rate is objective.token.predict_prob=0.15"
# What other programs call it, and where a pre-training has it.
NAMES_ELSEWHERE = {
    "steps": LENGTH,
    "max_steps": LENGTH,
    "epochs": LENGTH,
    "max_epochs": LENGTH,
    "num_epochs": LENGTH,
    "batch_size": LENGTH,
    "global_batch_size": LENGTH,
    "seq_length": LENGTH,
    "max_seq_length": LENGTH,
    "warmup": WARMUP,
    "warmup_steps": WARMUP,
    "mask_prob": MASKED,
    "mlm_probability": MASKED,
    "lr": "the learning rate is optimizer.learning_rate=1e-3",
}
NAMES_IN_FINETUNING = {
    "lr": "the learning rate is learning_rate=2e-5",
    "model": "what is fine-tuned is encoder=FOLDER, or encoder=minilm",
}
# A scale's settings for another stage change nothing in this one.
OF_OTHER_STAGES = {"pretrain": "scale.finetune.", "finetune": "scale.pretrain."}
OF_A_SCALE = "scale_"  # before its name: the corpus that a run of it reads by default
JOB_NUMBER = "hydra.job.num"  # which Hydra's own launchers set
LAUNCHER = "hydra.launcher."  # before each setting of a sweep's launcher
NOT_IN_A_PHASE = re.compile(r"Key '(?P<key>[^']+)' not in 'PhaseConfig'")
READ_ONLY = "Cannot change read-only config container"  # of phases that were made with a factor
OF_NO_ENTRY = ("is not a subclass of", "list index out of range")  # how OmegaConf refuses it


def explain(
    error: BaseException, verb: str, *, config_name: str | None = None, folder: Path | None = None
) -> str:
    """Return the message of an error from composing a verb's configuration.

    An unknown key comes with the nearest one.

    Args:
        config_name: of the primary configuration, where it is not the verb's own.
        folder: of the experiment that it is in.
    """
    text = str(error).strip()
    cause = error.__cause__
    stage = "pretrain"  # whose configuration the verbs without one ask
    if verb in SCHEMAS:
        stage = verb
    if isinstance(error, OverrideParseException):
        return _explain_word(error.override, verb)
    count_noun = SEVERAL_VALUES.match(text)
    if count_noun:
        word = count_noun["word"]
        return f"{word}: for a sweep add -m; {_as_text(word)}"
    choice = WRONG_CHOICE.search(text)
    if choice:
        return _explain_choice(choice["group"], choice["name"], choice["choices"].split(), folder)
    in_file = WRONG_IN_FILE.match(text)
    if in_file:
        return _explain_key_in_file(in_file["file"], in_file["key"], stage, folder)
    entry_in_file = ENTRY_IN_FILE.match(text)
    if entry_in_file:
        return (
            f"{entry_in_file['file']}: it changes one entry of a list, as phases.0.steps would; a"
            " file, an arm and a row give a list as a whole: phases: [{...}]. For fewer or more"
            " steps there is steps_factor"
        )
    override = WRONG_OVERRIDE.match(text)
    if override:
        key = override["key"]
        reason = str(cause or "").strip() or text
        known = _keys_of_choices(error, key, config_name or stage, folder)
        return _explain_override(key, reason, stage, known)
    # A value that does not fit: Hydra names the override, OmegaConf the reason.
    if isinstance(error, HydraException) and isinstance(cause, OmegaConfBaseException):
        return _explain_value(text, str(cause).strip())
    if isinstance(error, MissingMandatoryValue):
        # phases[0].steps -> phases.0.steps
        return missing_value_message(re.sub(r"\[(\d+)\]", r".\1", str(error.full_key)))
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        return _explain_resolving(str(error.full_key), text, stage)
    return text


def _explain_resolving(full_key: str, text: str, stage: str) -> str:
    """A value cannot be made of others, perhaps of a node that this stage has not."""
    if JOB_NUMBER in text:
        return (
            f"{JOB_NUMBER} has no value: jobs have no number here; run_dir= names each one's"
            " folder, by a key that differs, as ${seed}"
        )
    # What a sweep runs through is an ordinary key to whoever wrote it.
    key = full_key.removeprefix("hydra.sweeper.params.")
    reason = f"{key}: {RESOLVING.sub('', _first_line(text))}"
    interpolation = NO_NODE.search(text)
    if interpolation is None:
        return reason
    stages = []
    for name, schema in SCHEMAS.items():
        if interpolation["node"] in {field.name for field in fields(schema)}:
            stages.append(name)
    if not stages or stage in stages:
        return reason
    group = key.partition(".")[0]
    return (
        f"{key} takes {interpolation['key']}, which {stage} has not: choose another {group}="
        f" (this one is for {', '.join(stages)})"
    )


def _explain_word(word: str, verb: str) -> str:
    """Hydra cannot read a word of the command line."""
    key, equals, _ = word.partition("=")
    if word.startswith("-") and equals:
        return f"{verb} has no option {word}; a key has no dashes: {word.lstrip('-')}"
    if not equals:
        return f"{verb} takes arguments like seed=2, name=value without blanks; {word!r} is none"
    return f"{word}: the value of {key} cannot be read; {_as_text(word)}"


def _explain_value(text: str, reason: str) -> str:
    """A value does not fit its key, or is of an entry that a list has not."""
    word = text.removeprefix("Error merging override ")
    if word == text:
        return f"{text}\n{reason}"
    entry = NO_ENTRY.match(word)
    if entry and any(words in reason for words in OF_NO_ENTRY):
        return _no_entry(word, entry)
    return f"{word}: {_explain_reason(reason)}"


def _explain_reason(reason: str) -> str:
    """Why OmegaConf refuses a value; of a phase with what helps."""
    in_phase = NOT_IN_A_PHASE.match(reason)
    if in_phase:
        return f"a phase has no {in_phase['key']!r}; it has {_keys_of_a_phase()}"
    if reason.startswith(READ_ONLY):
        return (
            "steps_factor= makes these phases; leave it out, or change what it multiplies:"
            " scale.pretrain.phases.0.steps="
        )
    return _first_line(reason)


def _no_entry(word: str, entry: re.Match[str]) -> str:
    """A list is shorter than an override takes it to be."""
    name = entry["list"]
    return f"{word}: {name} has no entry {entry['index']} yet; write all: '{name}=[{{...}}]'"


def _as_text(word: str) -> str:
    """How a shell is told that a value is a text, whatever is in it."""
    key, _, value = word.partition("=")
    escaped = value.replace("'", "\\'")
    quoted = f"\"{key}='{escaped}'\""
    if set(value) & set('"$`!\\'):  # which mean something inside of double quotes
        quoted = shlex.quote(f"{key}='{escaped}'")
    return f"if it is a text, put it in quotes: {quoted}"


def _first_line(text: str) -> str:
    return text.splitlines()[0]


def _explain_choice(group: str, name: str, choices: Sequence[str], folder: Path | None) -> str:
    """A group has no such choice."""
    if group in ("hydra/launcher", "hydra/sweeper"):
        # conf/targets.yaml refuses Hydra's own.
        choices = [choice for choice in choices if choice != "basic"]
    cutoff = 0.6
    if len(name) < 6:  # one wrong letter is a large part of a short name
        cutoff = 0.5
    near = nearest(name, choices, cutoff=cutoff)
    hint = ""
    if near:
        hint = f"; did you mean {near!r}?"
    if group == "corpus" and name.startswith(OF_A_SCALE):
        # A scale of the user's has no corpus of that name, which is the default; or it is a slip.
        scale = name.removeprefix(OF_A_SCALE)
        remedy = f"scale={scale} brings no text; say text=FOLDER, or corpus=NAME"
        near = nearest(name, choices, cutoff=0.85)  # all that begin so are alike
        hint = f": {remedy}"
        if near:
            hint = f"; did you mean {near!r}? Else {remedy}"
    advice = ""
    if group.startswith("hydra/"):
        # An experiment's folder is data, and lays nothing over Hydra's own keys.
        advice = f"; one of your own: {CONF_DIR / group / name}.yaml"
    elif not folder:
        advice = f"; one of your own: FOLDER/{group}/{name}.yaml and --config-dir FOLDER"
    return f"there is no {group} {name!r}{hint} (there are {', '.join(choices)}{advice})"


def _explain_key_in_file(name: str, key: str, stage: str, folder: Path | None) -> str:
    """A file of the configuration has a key that there is not."""
    file: Path | str = name
    for parent in (folder, CONF_DIR):
        if parent is not None and (parent / f"{name}.yaml").is_file():
            file = parent / f"{name}.yaml"
            break
    known = known_keys(stage, None, hydra_value=key.startswith("hydra."))
    return f"{file}: {_no_key(stage, key, known)}"


def _explain_override(key: str, reason: str, stage: str, known: Sequence[str]) -> str:
    """An override has a key that there is not, or a value that does not fit there."""
    entry = NO_LIST.match(reason)
    if entry and entry["list"] == key:
        return (
            f"{key}: in {{...}} {entry['index']} is a number, and here the keys are texts; change"
            f" one by one: {key}.{entry['index']}=VALUE"
        )
    if entry:
        return _no_entry(key, entry)
    if key not in known and stage == "evaluate" and key.startswith("corpus."):
        return f"{key}: evaluate has no corpus; a text of your own is {TEXT_OF_EVALUATE}"
    if key not in known:
        return _no_key(stage, key, known)
    # The key is right, something in its value is not.
    if stage == "evaluate" and key == "row":
        return "row: this sweep takes rows as measured=NAME"
    choosing = TO_CHOOSE.search(reason)
    if choosing:
        return (
            f"{key} is also a folder of configurations here; to choose one of its files, say"
            f" {choosing['word']}"
        )
    return f"{key}: {_explain_reason(reason)}"


def _no_key(stage: str, key: str, keys: Sequence[str]) -> str:
    """There is no such key: the nearest, or those beside it."""
    package = "job"
    if key.startswith("hydra."):
        package = "hydra"
    advice = f"see `clozelab {stage} --cfg {package}`"
    remedy = _own_name(stage, key)
    if remedy:
        return f"{stage} has no key {key!r}; {remedy} ({advice})"
    of_others = OF_OTHER_STAGES.get(stage)
    if of_others and not key.startswith(of_others):
        keys = [name for name in keys if not name.startswith(of_others)]
    launchers: dict[str, list[str]] = {}
    if key.startswith(LAUNCHER):
        launchers = _settings_of_launchers()
    having = [f"hydra/launcher={name}" for name, own in launchers.items() if key in own]
    if having:
        return f"{stage} has no key {key!r} without {' or '.join(having)}"
    # A short key that got here stands where it cannot stand for another.
    short_keys = [name for name in SHORT_KEYS.get(stage, ()) if name != key]
    not_configured = [*short_keys, *chain.from_iterable(launchers.values())]
    near = nearest_key(key, [*not_configured, *keys])
    if near:
        return f"{stage} has no key {key!r}; did you mean {near!r}? ({advice})"
    # Nothing is spelt alike: name all keys beside it, if it is inside of something.
    parent = key.rpartition(".")[0]
    siblings = _keys_inside(parent, keys)
    if siblings:
        return f"{stage} has no key {key!r}; {parent} has {', '.join(siblings)} ({advice})"
    return f"{stage} has no key {key!r}; {advice}"


def _keys_inside(parent: str, keys: Sequence[str]) -> list[str]:
    """The last parts of the dotted keys that stand directly in another one; none in ""."""
    inside = []
    for name in keys:
        above, _, last = name.rpartition(".")
        if parent and above == parent:
            inside.append(last)
    return inside


def _settings_of_launchers() -> dict[str, list[str]]:
    """Name of each launcher -> the dotted names of its own settings."""
    settings = {}
    for path in sorted((CONF_DIR / "hydra" / "launcher").glob("*.yaml")):
        own = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        settings[path.stem] = list(_dotted_names(own, LAUNCHER))
    return settings


def _own_name(stage: str, key: str) -> str:
    """Say what a stage calls it; "" for a key that others do not know either."""
    if stage == "pretrain":
        return _place_in_pretraining(key)
    if stage == "finetune":
        return NAMES_IN_FINETUNING.get(key, "")
    return ""


def _place_in_pretraining(key: str) -> str:
    """Say where a pre-training has what others call so; "" for any other key."""
    if key.startswith("phases."):
        return f"a phase has {_keys_of_a_phase()}"
    return NAMES_ELSEWHERE.get(key, "")


def _keys_of_a_phase() -> str:
    return ", ".join(field.name for field in fields(PhaseConfig))


def known_keys(config_name: str, folder: Path | None, *, hydra_value: bool = False) -> list[str]:
    """Return the dotted names of all keys of a configuration, or of Hydra's own beside it.

    The list is empty where it does not compose.
    """
    try:
        composed = compose(config_name, folder=folder)
    except CONFIGURATION_ERRORS:
        return []
    keys = composed.unresolved_hydra if hydra_value else composed.unresolved
    return list(_dotted_names(keys, ""))


def _keys_of_choices(
    error: BaseException, key: str, config_name: str, folder: Path | None
) -> list[str]:
    """The keys that are known beside a wrong one: of what the command has chosen, where it can be.

    `optimizer=sgd` has others than the optimizer that is there without it.
    """
    default_keys = known_keys(config_name, folder, hydra_value=key.startswith("hydra."))
    loader: Any = getattr(error, "loader", None)  # of hydra_compat.CheckingLoader
    if loader is None or key.startswith("hydra."):
        return default_keys
    choices = []
    for word in getattr(error, "overrides", ()):
        if key_of(word) == "hydra.searchpath" or loader.get_group_options(key_of(word)):
            choices.append(word)
    try:
        node = loader.load_configuration(config_name, choices, run_mode=RunMode.RUN)
    except NOT_COMPOSED:  # several choices, say, or a wrong one
        return default_keys
    return list(_dotted_names(Composed.from_node(node).unresolved, ""))


def _dotted_names(value: object, prefix: str) -> Iterator[str]:
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return
    for key, child in value.items():
        yield f"{prefix}{key}"
        yield from _dotted_names(child, f"{prefix}{key}.")


def nearest_key(key: str, known: Sequence[str]) -> str | None:
    """Return the key that was probably meant, or None.

    That is one beside it that is spelt alike, else any that ends in it, else any that is alike. Of
    a key without a place, one that ends in it comes first.
    """
    parent, _, last = key.rpartition(".")
    siblings = {}
    for name in known:
        above, _, last_of_name = name.rpartition(".")
        if above == parent:
            siblings[last_of_name] = name
    spelt_alike = [name for name in known if name.rpartition(".")[2] == last]
    # A key with a place is misspelt there; one without may lack it.
    near = nearest(last, siblings)
    if near and (parent or not spelt_alike):
        return siblings[near]
    if spelt_alike:  # the nearest to the top, of a task its own file's
        return min(spelt_alike, key=lambda name: (name.count("."), ".hub." in name))
    # By whole names, its neighbours and what it stands below would always win.
    elsewhere = [
        name
        for name in known
        if name.rpartition(".")[0] != parent and not key.startswith(f"{name}.")
    ]
    return nearest(key, elsewhere, cutoff=0.75)
