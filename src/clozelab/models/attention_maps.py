"""Where an encoder's attention looks, noted while it runs.

Letters: S tokens of the text, N heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from clozelab.models.attention import DenseRows, masked_pairs
from clozelab.models.encoder import Encoder, SelfAttention


@contextmanager
def capture_attention(encoder: Encoder, note: Callable[[Tensor], None]) -> Iterator[None]:
    """Calls `note` with each layer's attention probabilities, fp32 [N, S, S].

    They are computed beside the kernel, which does not give them. Batches must hold one sequence
    each.
    """

    def compute(module: Any, arguments: tuple[Any, ...]) -> None:
        hidden, _, inputs = arguments[:3]
        inputs = inputs.of_layer(module)
        qkv = module.qkv(hidden).view(-1, 3, module.num_heads, module.head_dim)
        q, k, _ = qkv.float().unbind(1)  # [S, N, head size]
        if inputs.rotation is not None:
            q = inputs.rotation(q)
            k = inputs.rotation(k)
        with torch.autocast(q.device.type, enabled=False):
            scores = torch.einsum("qnd,knd->nqk", q, k) * module.head_dim**-0.5
            if inputs.score_bias is not None:
                scores = scores * inputs.score_bias.scale
                q, k = (x.transpose(0, 1)[None] for x in (q, k))  # [1, N, S, head size]
                positions = inputs.score_bias.position_ids[None, : q.shape[2]]
                scores = scores + inputs.score_bias.compute(q, k, positions)[0]
        rows = inputs.layout
        if isinstance(rows, DenseRows) and rows.bias is not None:
            # Of one sequence, whose positions may have added to it: [N or 1, S, S].
            scores = scores + rows.bias.flatten(0, -3).float()
        unseen = masked_pairs(len(scores[0]), inputs.mask, scores.device)
        note(scores.masked_fill(unseen, -torch.inf).softmax(-1))

    layers = [module for module in encoder.modules() if isinstance(module, SelfAttention)]
    handles = [layer.register_forward_pre_hook(compute) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
