"""What a run is known by: its resolved configuration, without what cannot change a result.

A run's fingerprint (store.new_record) is a hash of `identity_of` its configuration, its inputs and
the results version of its stage. Values from the environment (`${oc.env:NAME}`) and what looks like
a secret are in it as hashes (text/redaction.py).
"""

from __future__ import annotations

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
    for key, value in flatten(dict(config)).items():
        if meaning_of(key) != LAYOUT and not is_as_before(key, value):
            identity[key] = value
    return identity


def counting_leaves(values: PlainMapping) -> PlainDict:
    """Return dotted key -> value of what can change a result, of a resolved configuration."""
    leaves = flatten(dict(values))
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
