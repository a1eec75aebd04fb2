"""Heads with the weights of a folder, as measures and prompts want them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from clozelab.models import folders
from clozelab.models.encoder import Encoder
from clozelab.models.families.bert import reads_pooler
from clozelab.models.locate import config_path
from clozelab.models.registry import family_for
from clozelab.modules.model import named_labels
from clozelab.modules.model_tasks import task_of
from clozelab.modules.sentence_folders import passes_sigmoid
from clozelab.tasks.target import Target

# Where heads come from, but for those of tasks.
MAKERS = {"lm": "pre-training"}


def fresh_heads(
    kinds: Iterable[str], encoder: Encoder, folder: Path, seed: int
) -> dict[str, nn.Module]:
    """Heads of these kinds as the folder's file has them, with weights drawn by the seed."""
    heads: dict[str, nn.Module] = {}
    generator = torch.Generator().manual_seed(seed)
    for kind in kinds:
        stored = folders.read_tensors(folder)
        family = family_for(encoder.config)
        heads[kind] = family.head(kind, encoder, generator=generator, stored=stored)
    return heads


def pretraining_heads(
    target: Target, encoder: Encoder, folder: Path, seed: int
) -> dict[str, nn.Module]:
    """The same of the heads of pre-training that a target predicts by."""
    kinds = [kind for kind in target.head_kinds if kind in MAKERS]
    return fresh_heads(kinds, encoder, folder, seed)


def load_heads(
    heads: Mapping[str, nn.Module], folder: Path, name: str, *, has_fresh_pooler: bool
) -> None:
    """Give heads the weights of a folder, for a measure or a task of this name.

    ValueError where the folder has none for one of them, or for the pooler that it reads.
    """
    stored = folders.read_tensors(folder)
    family = family_for(folders.read_config(folder))
    if "lm" in heads and not folders.has_head(family, "lm", heads["lm"], stored):
        raise no_word_head(folder, name)
    config = folders.read_config_dict(folder)
    names = named_labels(config, config_path(folder))
    for head_name, head in heads.items():
        if passes_sigmoid(folder, task_of(head_name, config, names)):
            head.output_activation = nn.Sigmoid()
        if head_name == "bilstm":
            _require_all_layers(head, stored, folder)
        try:
            folders.load_head(folder, head_name, head, stored)
            if head_name == "lm":
                family.require_masks(config)
        except ValueError as problem:
            maker = MAKERS.get(head_name, "fine-tuning that kept its model, on a task of this kind")
            remedy = f"{name} scores a model's predictions: give it a folder of a {maker}"
            raise ValueError(f"{problem}; {remedy}") from problem
        is_on_pooler = reads_pooler(head_name, head, has_bilstm="bilstm" in heads)
        if has_fresh_pooler and is_on_pooler:
            raise ValueError(
                f"{folder} has no trained pooler, which its {head_name} head reads, so {name} would"
                " score chance: put back the pooler's weights, or fine-tune the folder"
            )


def has_word_head(folder: Path) -> bool:
    """Whether a folder has the head that predicts words, by its family's names of tensors."""
    config = folders.read_config(folder)
    family = family_for(config)
    stored = folders.read_tensors(folder)
    with torch.device("meta"):
        head = family.head("lm", Encoder(config), stored=stored)
    return folders.has_head(family, "lm", head, stored)


def no_word_head(folder: Path, name: str) -> ValueError:
    """The refusal of a folder without the head of words that a measure or a task needs."""
    return ValueError(
        f"{folder} has no trained lm head, which {name} needs: train one first (clozelab pretrain"
        f" objective=mlm encoder={folder})"
    )


def _require_all_layers(lstm: nn.Module, stored: Mapping[str, Tensor], folder: Path) -> None:
    """ValueError where a folder has more layers of a BiLSTM than the measure's task."""
    num_stored = sum(name.startswith("bilstm.") for name in stored)
    if num_stored > len(lstm.state_dict()):
        raise ValueError(
            f"{folder} has a BiLSTM of more layers than measure.task.module.bilstm_num_layers"
            " has: give their number"
        )
