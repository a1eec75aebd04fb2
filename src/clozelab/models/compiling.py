"""torch.compile for an encoder, in place: parameter names stay, and a checkpoint does not know of it.

Unusual: embeddings and layers are compiled one by one, not the encoder as a whole. All layers share one compiled
function, so a model of 24 layers compiles in the time of one; and what a layer is given (models/attention.py,
DenseRows) is plain values, so that it is compiled again only for another shape. Imports of torch's compiler (a second)
happen here, when first wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from clozelab.models import attention
from clozelab.models.encoder import Encoder

MAX_SHAPES = 64
"""Shapes that are compiled before torch gives up and runs the rest uncompiled: phases x (with, without padding) x
(last micro-batch, others)."""


def compile_encoder(encoder: Encoder, *, dynamic: bool, **options: Any) -> None:
    """Compile `encoder` where it stands.

    Args:
        encoder: any; its state_dict stays as it is.
        dynamic: False: one compilation a shape, for batches of few shapes; True: one for all, for ragged batches.
        options: of torch.compile (backend, mode).
    """
    import torch._dynamo  # a second of start-up that only compiled runs pay

    config: Any = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # before torch 2.7
    setattr(config, name, max(getattr(config, name), MAX_SHAPES))
    # Host-side grouping of ragged batches: nothing in it to compile, and every batch is another one.
    if not getattr(attention._grouped, "_torchdynamo_disable", False):
        attention._grouped = torch.compiler.disable(attention._grouped)
    for part in (encoder.embeddings, *encoder.layer):
        part.compile(dynamic=dynamic, **options)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Inside, compiled modules run as written: for a few evaluations a compilation of their own costs more."""
    # Asked for by its submodule's presence: importing it would cost what an uncompiled run saves.
    import sys

    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
