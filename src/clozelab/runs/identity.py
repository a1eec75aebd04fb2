"""What a run is known by: its resolved configuration, without what cannot change a result.

A run's fingerprint (store.new_record) is a hash of `identity_of` its configuration, its inputs and
the results version of its stage. Values from the environment (`${oc.env:NAME}`) and what looks like
a secret are in it as hashes (text/redaction.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from clozelab.schema import CONDITIONAL_KEYS, LAYOUT, NEUTRAL, is_as_before, meaning_of
from clozelab.text.plain import PlainDict, PlainMapping, flatten

RESULTS_VERSIONS = {"pretrain": 6, "finetune": 5, "evaluate": 4}
"""Of each stage; raised when a change of code changes its results: then no older run is taken for
the same, and no comparison mixes both (docs/decisions/0019). Older runs and packs are still
read."""
FURTHER_VERSIONS = {"task.data.train_columns": 1}
"""Key -> how often the results have changed of configurations with it alone (here: contrastive
tasks). Added to the stage's version."""

SEED_KEYS = ("seed", "pretrain_seed")

OF_LABELS = "clozelab.datamodules.labelled.LabelledDataModule"
ADDRESSES_BEFORE: Mapping[tuple[str, str], tuple[str, str]] = {
    ("texts.TextUnit", "classes.class_or_number"): (
        OF_LABELS,
        "clozelab.modules.classification.SequenceClassification",
    ),
    ("texts.VectorUnit", "similarity.similarity"): (
        OF_LABELS,
        "clozelab.modules.embeddings.SiameseEncoder",
    ),
    ("texts.VectorUnit", "contrast.ContrastTarget"): (
        "clozelab.datamodules.contrastive.ContrastiveDataModule",
        "clozelab.modules.embeddings.ContrastiveEncoder",
    ),
    ("choices.ChoiceUnit", "right_choice.ChoiceTarget"): (
        "clozelab.datamodules.choices.ChoiceDataModule",
        "clozelab.modules.classification.MultipleChoice",
    ),
    ("passages.PassageUnit", "spans.SpanTarget"): (
        "clozelab.datamodules.squad.SquadDataModule",
        "clozelab.modules.spans.SpanExtraction",
    ),
    ("words.WordUnit", "tags.TagTarget"): (
        "clozelab.datamodules.tags.TagDataModule",
        "clozelab.modules.tags.TokenClassification",
    ),
    ("features.FeatureUnit", "tags.TagTarget"): (
        "clozelab.datamodules.features.FeatureDataModule",
        "clozelab.modules.tags.FeatureBased",
    ),
}
"""Unit and target of a task, below clozelab.tasks -> the addresses of its data and module in
records that were written before tasks had units and targets. No new pair belongs here."""


def as_before_units(leaves: PlainMapping) -> PlainDict:
    """Return the leaves of a configuration as they were before tasks had units and targets.

    Runs of both times are then the same. Other leaves, and pairs of parts that are newer, stay as
    they are.
    """
    before = dict(leaves)
    for place in ("task", "measure.task"):
        addresses = _addresses_before(leaves, place)
        if not addresses:
            continue
        for part in _parts_of(place):
            del before[part]
        for key, address in addresses.items():
            before[f"{key}._target_"] = address
            before[f"{key}._partial_"] = True
    return before


def delta_as_before_units(delta: PlainMapping, config: PlainMapping) -> PlainDict:
    """Return what an arm or a row changes as it was written before tasks had units and targets."""
    before = dict(delta)
    leaves = flatten(dict(config))
    for place in ("task", "measure.task"):
        changed = [part for part in _parts_of(place) if part in delta]
        addresses = _addresses_before(leaves, place)
        if changed and addresses:
            for part in changed:
                del before[part]
            before |= {f"{key}._target_": address for key, address in addresses.items()}
    return before


def _parts_of(place: str) -> list[str]:
    """The keys of a task's unit and target."""
    return [f"{place}.{part}._target_" for part in ("unit", "target")]


def _addresses_before(leaves: PlainMapping, place: str) -> dict[str, str]:
    """Key of a task's data and module -> its address before; none of newer parts."""
    unit, target = _parts_of(place)
    names = [str(leaves.get(part)).removeprefix("clozelab.tasks.") for part in (unit, target)]
    addresses = ADDRESSES_BEFORE.get((names[0], names[1]))
    if addresses is None:
        return {}
    return dict(zip((f"{place}.data", f"{place}.module"), addresses, strict=True))


def results_version_of(stage: str, config: PlainMapping) -> int:
    """Return the version of what this code makes of a recorded configuration; 0 of no stage."""
    leaves = flatten(dict(config))
    further = [number for key, number in FURTHER_VERSIONS.items() if _is_set(leaves, key)]
    return RESULTS_VERSIONS.get(stage, 0) + sum(further)


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
    leaves = as_before_units(flatten(dict(values)))
    idle = {key for key, option in CONDITIONAL_KEYS.items() if not _is_set(leaves, option)}
    counting = {}
    for key, value in leaves.items():
        # The key itself and the nodes that it stands in: "a", "a.b", "a.b.c".
        nodes = list(accumulate(key.split("."), "{}.{}".format))
        if idle.isdisjoint(nodes) and all(meaning_of(node) != NEUTRAL for node in nodes):
            counting[key] = value
    return counting


def _is_set(leaves: PlainMapping, key: str) -> bool:
    """Whether a key has a value, or a node that is not empty."""
    return bool(leaves.get(key)) or any(name.startswith(f"{key}.") for name in leaves)
