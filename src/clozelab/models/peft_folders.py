"""Folders of peft's low-rank adapters: adapter_config.json and adapter_model.safetensors.

Names of tensors are those of a family's own files behind `base_model.model.`. A part that peft has
trained whole, such as a classifier, is in the same file under its plain name (`modules_to_save`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

import safetensors.torch
from torch import Tensor

from clozelab.models.locate import ADAPTER
from clozelab.text.plain import PlainDict, PlainMapping, ReadOnlyJson, read_json

WEIGHTS = "adapter_model.safetensors"
FILES = (ADAPTER, WEIGHTS)
ABOUT = "clozelab.json"  # what a run here knows of its adapter, and peft has no place for
PREFIX = "base_model.model."
UPDATE = re.compile(r"(.+)\.lora_([AB])\.weight")
# What changes what an adapter computes, and the values that are read.
PLAIN_VALUES: Mapping[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),
}
# The same, of options that are off where they say nothing.
OFF = (
    "fan_in_fan_out",
    "alpha_pattern",
    "rank_pattern",
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "velora_config",
    "monteclora_config",
)
# Kind of head -> peft's word for its task, and how the class of such a head ends.
TASK_TYPES = {
    "classification": ("SEQ_CLS", "ForSequenceClassification"),
    "tags": ("TOKEN_CLS", "ForTokenClassification"),
    "spans": ("QUESTION_ANS", "ForQuestionAnswering"),
}


class FileUpdate(NamedTuple):
    """A matrix gets `scaling` times `up` [outputs, rank] by `down` [rank, inputs] added."""

    down: Tensor
    up: Tensor
    scaling: float


@dataclass(frozen=True)
class Adapter:
    """What a folder of peft's holds."""

    config: ReadOnlyJson
    updates: dict[str, FileUpdate]  # a file's name of a matrix, without `.weight`
    whole: dict[str, Tensor]  # what was trained whole, by a file's names

    @property
    def class_suffix(self) -> str:
        """How the class of transformers ends that holds the adapter's head; Model: no head."""
        return dict(TASK_TYPES.values()).get(str(self.config.get("task_type")), "Model")


def require_files(folder: Path) -> None:
    """ValueError for a folder that is no adapter of peft's."""
    for file in FILES:
        if not (folder / file).is_file():
            raise ValueError(f"{folder / file} does not exist: an adapter of peft's has it")


def read_adapter(folder: Path) -> Adapter:
    """What a folder of peft's holds; ValueError for an adapter of another kind than LoRA's."""
    require_files(folder)
    try:
        config: Any = read_json(folder / ADAPTER)
        tensors = safetensors.torch.load_file(folder / WEIGHTS)
    except (ValueError, safetensors.SafetensorError) as error:
        raise ValueError(f"{folder}: its files cannot be read: {error}") from None
    _check_options(config, folder / ADAPTER)
    halves: dict[str, dict[str, Tensor]] = {}
    whole = {}
    for name, tensor in tensors.items():
        match = UPDATE.fullmatch(name.removeprefix(PREFIX))
        if match is None and (".lora_" in name or ".base_layer." in name):
            raise ValueError(f"{folder / WEIGHTS}: {name} is no update of a matrix: not read here")
        if match is None:
            whole[name.removeprefix(PREFIX)] = tensor.float()
        else:
            halves.setdefault(match[1], {})[match[2]] = tensor.float()
    return Adapter(config, _updates(folder, config, halves), whole)


class AdapterNotes(TypedDict, total=False):
    """What a run here leaves beside peft's files."""

    base_fingerprint: str
    # Of the run's own model folder: its class, labels and how outputs become answers.
    config: PlainDict
    token_types: str  # of a pair: one or two


def read_about(folder: Path) -> AdapterNotes:
    """What a run here has left in an adapter's folder; empty in one from elsewhere."""
    if not (folder / ABOUT).is_file():
        return {}
    return cast(AdapterNotes, read_json(folder / ABOUT))


def _check_options(config: PlainMapping, file: Path) -> None:
    """ValueError for an option that changes what an adapter computes, and is not read here."""
    for key, values in PLAIN_VALUES.items():
        if config.get(key, values[0]) not in values:
            raise ValueError(f"{file}: {key} is {config[key]!r}: not read here")
    for key in OFF:
        if config.get(key):
            raise ValueError(f"{file}: {key} is set: such an adapter is not read here")


def _updates(
    folder: Path, config: ReadOnlyJson, halves: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, FileUpdate]:
    """Of each matrix, by its halves A and B."""
    updates = {}
    for name, of_matrix in halves.items():
        if set(of_matrix) != {"A", "B"}:
            raise ValueError(f"{folder / WEIGHTS}: {name} has one half of its update alone")
        rank = len(of_matrix["A"])
        divisor = math.sqrt(rank) if config.get("use_rslora") else rank
        scaling = config["lora_alpha"] / divisor
        updates[name] = FileUpdate(of_matrix["A"], of_matrix["B"], scaling)
    return updates


def adapter_files(
    updates: Mapping[str, FileUpdate], whole: Mapping[str, Tensor], base: str, task: str
) -> dict[str, bytes]:
    """The files of such a folder: name -> content. The updates have one rank and scaling.

    `base`: what the adapter stands on. `task`: the kind of the head among `whole`.
    """
    first = next(iter(updates.values()))
    rank = len(first.down)
    tensors = {}
    for name, value in whole.items():
        tensors[PREFIX + name] = value.detach().cpu().contiguous()
    for name, update in updates.items():
        tensors[f"{PREFIX}{name}.lora_A.weight"] = update.down
        tensors[f"{PREFIX}{name}.lora_B.weight"] = update.up
    # peft wraps a head as a whole, by the beginning of its name; a pooler stands in the encoder.
    modules = set()
    for name in whole:
        modules.add("pooler" if ".pooler." in name else name.partition(".")[0])
    config: PlainDict = {
        "peft_type": "LORA",
        "task_type": TASK_TYPES[task][0] if whole else "FEATURE_EXTRACTION",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": first.scaling * rank,
        "target_modules": sorted(updates),
        "modules_to_save": sorted(modules) or None,
        "inference_mode": True,
    }
    return {
        ADAPTER: (json.dumps(config, indent=2) + "\n").encode(),
        WEIGHTS: safetensors.torch.save(tensors, metadata={"format": "pt"}),
    }
