"""What a run is known by: its resolved configuration, without what cannot change a result.

A run's fingerprint (store.new_record) is a hash of `identity_of` its configuration, its inputs and
the results version of its stage. Values from the environment (`${oc.env:NAME}`) and what looks like
a secret are in it as hashes (text/redaction.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from clozelab.schema import CONDITIONAL_KEYS, LAYOUT, NEUTRAL, is_as_before, meaning_of
from clozelab.text.plain import NESTED, PlainDict, PlainMapping, flatten

RESULTS_VERSIONS = {"pretrain": 6, "finetune": 5, "evaluate": 4}
"""The results version of each stage.

A change of code that changes a stage's results raises it: then no older run is taken for the same,
and no comparison mixes both (docs/decisions/0019). Older runs and packs are still read.
"""
FURTHER_VERSIONS = {
    "fresh_weights": 1,
    "task.data.train_columns": 1,
    "task.data.negative_columns": 1,
    "measure.task.module.threshold": 1,
}
"""Key -> how often results have changed of the configurations that have this key, and of no others.

It is added to the stage's version, and is left out again where runs are compared: rows with and
without the key are made by the same code. `train_columns` is a key of contrastive tasks. With
`negative_columns` rows that were held out could be trained on. An evaluation once took a model's
own threshold in spite of a given one. `fresh_weights` once kept a token type that nothing trained.
"""
PARTS_WITH_WEIGHTS = ("corpus", "phases")
WEIGHT_KEYS = re.compile(r"corpus\.sources\.\d+\.weight|phases\.\d+\.source_weights\..+")

SEED_KEYS = ("seed", "pretrain_seed")

# Unit and target of a task, below clozelab.tasks -> the data module and the training module in
# records that were written before tasks had units and targets, below clozelab. Both tables have the
# same keys, and no new one belongs here.
DATA_BEFORE_UNITS: Mapping[str, str] = {
    "texts.TextUnit classes.class_or_number": "datamodules.labelled.LabelledDataModule",
    "texts.VectorUnit similarity.similarity": "datamodules.labelled.LabelledDataModule",
    "texts.VectorUnit contrast.ContrastTarget": "datamodules.contrastive.ContrastiveDataModule",
    "choices.ChoiceUnit right_choice.ChoiceTarget": "datamodules.choices.ChoiceDataModule",
    "passages.PassageUnit spans.SpanTarget": "datamodules.squad.SquadDataModule",
    "words.WordUnit tags.TagTarget": "datamodules.tags.TagDataModule",
    "features.FeatureUnit tags.TagTarget": "datamodules.features.FeatureDataModule",
}
MODULES_BEFORE_UNITS: Mapping[str, str] = {
    "texts.TextUnit classes.class_or_number": "modules.classification.SequenceClassification",
    "texts.VectorUnit similarity.similarity": "modules.embeddings.SiameseEncoder",
    "texts.VectorUnit contrast.ContrastTarget": "modules.embeddings.ContrastiveEncoder",
    "choices.ChoiceUnit right_choice.ChoiceTarget": "modules.classification.MultipleChoice",
    "passages.PassageUnit spans.SpanTarget": "modules.spans.SpanExtraction",
    "words.WordUnit tags.TagTarget": "modules.tags.TokenClassification",
    "features.FeatureUnit tags.TagTarget": "modules.tags.FeatureBased",
}
TASK_KEYS = ("task", "measure.task")
"""Where a configuration has a task: that of a fine-tuning, and that of a measure."""


def as_before_units(leaves: PlainMapping) -> PlainDict:
    """Return the leaves of a configuration as they were before tasks had units and targets.

    Runs of both times are then the same. Other leaves, and pairs of a unit and a target that are
    newer, stay as they are.
    """
    before = dict(leaves)
    for task_key in TASK_KEYS:
        addresses = _addresses_before(leaves, task_key)
        if not addresses:
            continue
        for key in _unit_and_target_keys(task_key):
            del before[key]
        for key, address in addresses.items():
            before[f"{key}._target_"] = address
            before[f"{key}._partial_"] = True
    return before


def delta_as_before_units(delta: PlainMapping, config: PlainMapping) -> PlainDict:
    """Return what an arm or a row changes as it was written before tasks had units and targets."""
    before = dict(delta)
    for task_key in TASK_KEYS:
        changed = [key for key in _unit_and_target_keys(task_key) if key in delta]
        if not changed:
            continue
        addresses = _addresses_before(flatten(dict(config)), task_key)
        if addresses:
            for key in changed:
                del before[key]
            before |= {f"{key}._target_": address for key, address in addresses.items()}
    return before


def _unit_and_target_keys(task_key: str) -> list[str]:
    """The leaves that name a task's unit and target."""
    return [f"{task_key}.{name}._target_" for name in ("unit", "target")]


def _addresses_before(leaves: PlainMapping, task_key: str) -> dict[str, str]:
    """Keys of a task's data and module -> their addresses before; empty for a newer pair."""
    names = []
    for key in _unit_and_target_keys(task_key):
        names.append(str(leaves.get(key)).removeprefix("clozelab.tasks."))
    pair = " ".join(names)
    if pair not in DATA_BEFORE_UNITS:
        return {}
    return {
        f"{task_key}.data": f"clozelab.{DATA_BEFORE_UNITS[pair]}",
        f"{task_key}.module": f"clozelab.{MODULES_BEFORE_UNITS[pair]}",
    }


def results_version_of(stage: str, config: PlainMapping) -> int:
    """Return the version of what this code makes of a recorded configuration; 0 of no stage."""
    return RESULTS_VERSIONS.get(stage, 0) + further_versions(config)


def further_versions(config: PlainMapping) -> int:
    """Return what a configuration's own keys add to the version of its stage."""
    further = [number for key, number in FURTHER_VERSIONS.items() if _is_set(config, key)]
    return sum(further) + _changes_of_weights(config)


def _changes_of_weights(config: PlainMapping) -> int:
    """How often the results of pairs from weighted sources have changed.

    Once a pair was taken to have as many tokens as a source has for each of its pairs. Before that,
    weights did not decide where the random next segments of a whole corpus come from.
    """
    parts = flatten({part: config.get(part) for part in PARTS_WITH_WEIGHTS})
    given = [key for key, value in parts.items() if value is not None]
    if not any(map(WEIGHT_KEYS.fullmatch, given)):
        return 0
    leaves = flatten(dict(config))
    has_pairs = str(leaves.get("objective.input._target_")).endswith("Pairs")
    is_of_corpus = leaves.get("objective.input.negative_scope") == "corpus"
    return has_pairs + is_of_corpus


def identity_of(config: PlainMapping) -> PlainDict:
    """Return what a run is known by: dotted key -> value, of its recorded configuration.

    How the work is laid out on a machine is left out. So is a key with the value that it had before
    it existed (schema.Added): older records lack it, and are of the same run.
    """
    identity = {}
    for key, value in as_before_units(flatten(dict(config))).items():
        if meaning_of(key) != LAYOUT and not is_as_before(key, value):
            identity[key] = value
    return identity


def counting_leaves(values: PlainMapping) -> PlainDict:
    """Return dotted key -> value of what can change a result, of a resolved configuration."""
    return as_before_units(flatten(counting_values(values)))


def counting_values(values: PlainMapping) -> PlainDict:
    """Return what can change a result of a resolved configuration, nested as a record has it."""
    # A key that only means something beside another one is idle where that one is not set.
    idle = set()
    for key, options in CONDITIONAL_KEYS.items():
        if not any(_is_set(values, option) for option in options.split()):
            idle.add(key)
    return dict(_counting_value(values, "", idle))


def _counting_value(value: object, prefix: str, idle: Collection[str]) -> Any:
    """A value, with what counts of the keys below it; `prefix` begins these: "", "optimizer."."""
    if isinstance(value, list):
        kept_items = []
        for number, child in enumerate(value):
            kept_items.append(_counting_value(child, f"{prefix}{number}.", idle))
        return kept_items
    if not isinstance(value, Mapping):
        return value
    kept = {}
    for name, child in value.items():
        key = f"{prefix}{name}"
        if key in idle or meaning_of(key) == NEUTRAL:
            continue
        # Most are leaves: they need no call of their own.
        kept[name] = _counting_value(child, f"{key}.", idle) if isinstance(child, NESTED) else child
    return kept


def _is_set(config: PlainMapping, key: str) -> bool:
    """Whether a dotted key has a value, or a node that is not empty."""
    node: object = config
    for name in key.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return False
        node = node[name]
    return bool(flatten(node) if isinstance(node, NESTED) else node)
