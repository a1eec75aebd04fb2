"""What a file of weights holds beside an encoder and its heads.

Buffers, losses and the heads of other tasks are left out, and a log line names them. Anything else
may be a part of the head that we do not have, such as the transitions of a CRF, or a second head
that a program has trained beside the first: then the head is not read.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping

from torch import Tensor, nn

from clozelab.models.families.bert import COMMON_HEADS, Family

# Buffers that hold nothing of a model: numbers of positions, zeros, and the count of an average of
# weights.
HARMLESS = ("embeddings.position_ids", "embeddings.token_type_ids", "n_averaged")
# Weights of classes in a loss.
LOSSES = ("loss.", "loss_fct.", "loss_fn.", "criterion.")
# DeBERTa's heads of pre-training, as they are published.
PUBLISHED_HEADS = ("lm_predictions.", "mask_predictions.")
# Ours, which no answer reads: bilstm and feature_mix are read elsewhere.
OURS = ("bilstm.", "feature_mix.", "siamese.", "span_boundary.")
TASK_KINDS = ("classification", "tags", "choices", "spans")
# Kinds of heads whose tensors' names say which they are; `classifier` may be of several kinds.
NAMED_KINDS = ("lm", "nsp", "sop", "rtd", "spans")
# Parts of heads.
MODULES = (
    "",
    "dense.",
    "out_proj.",
    *(f"transform.{part}." for part in ("dense", "LayerNorm", 0, 2)),
)


def named_few(names: Iterable[str]) -> str:
    """The first of some tensors' names, and how many more there are."""
    first, *others = names
    if others:
        return f"{first} (and {len(others)} more)"
    return first


def tensors_outside_encoder(family: Family, stored: Collection[str]) -> list[str]:
    """The names of a file's tensors that are not the encoder's, nor harmless."""
    apart = ("pooler.",) if family.pooler_is_apart else ()
    has_prefix = any(name.startswith(family.prefix) for name in stored)
    names = []
    for name in stored:
        is_encoders = name.startswith((family.prefix, *apart))
        if not has_prefix:
            is_encoders = not family.is_head(name)
        if not is_encoders and not name.endswith(HARMLESS):
            names.append(name)
    return names


def foreign_tensors(family: Family, stored: Collection[str]) -> list[str]:
    """The names of a file's tensors that no part here has, whatever the file's heads are."""
    expected = {f"{family.decoder}.weight", f"{family.decoder}.bias"}
    for kind, module, leaf in itertools.product(COMMON_HEADS, MODULES, ("weight", "bias")):
        expected.add(family.head_name(kind, module + leaf))
    named = [family.head_name(kind, "") for kind in NAMED_KINDS]
    beginnings = (*named, *LOSSES, *PUBLISHED_HEADS, *OURS)
    names = []
    for name in tensors_outside_encoder(family, stored):
        if name not in expected and not name.startswith(beginnings):
            names.append(name)
    return names


def unread_tensors(family: Family, stored: Mapping[str, Tensor], heads: nn.ModuleDict) -> list[str]:
    """The names of a file's tensors that belong to none of these heads, nor to the encoder."""
    read = {f"{family.decoder}.weight", f"{family.decoder}.bias"} if "lm" in heads else set()
    for kind, head in heads.items():
        read |= {family.head_name(kind, name) for name in head.state_dict()}
    names = []
    for name in tensors_outside_encoder(family, stored):
        if name not in read and not name.startswith(OURS):
            names.append(name)
    return names
