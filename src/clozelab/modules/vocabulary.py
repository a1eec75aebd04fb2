"""An encoder under another vocabulary: its embeddings row by row, all other weights as they are.

A row of the new matrix is the mean of old rows: that of the same entry, those of the pieces into
which the old tokenizer cut it (as Hewitt 2021 and others begin new words), or of all. Where the
vocabulary is predicted by a matrix of its own, that gets the same, and so does the bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.models.embeddings import LearnedPositions
from clozelab.models.heads import VocabularyHead
from clozelab.modules.model import Model


def mean_rows(table: Tensor, pieces: Sequence[Sequence[int]], num_entries: int) -> Tensor:
    """[V, ...] -> [len(pieces), ...]: means of the rows at `pieces`; without any, of all entries.

    A mean of one row is that row, to the bit. Rows from `num_entries` on are padding.
    """
    rows = table.detach().double().reshape(len(table), -1)
    counts = torch.tensor([len(ids) for ids in pieces])
    flat = torch.tensor([index for ids in pieces for index in ids], dtype=torch.int64)
    means = F.embedding_bag(flat, rows, counts.cumsum(0) - counts, mode="mean")
    means[counts == 0] = rows[:num_entries].mean(0)
    return means.to(table.dtype).view(len(pieces), *table.shape[1:])


def with_vocabulary(model: Model, tokenizer: Tokenizer, pieces: Sequence[Sequence[int]]) -> Model:
    """The model with another tokenizer; the modules of the given one are changed.

    `pieces`: of each new row the old ids that it is the mean of.
    """
    encoder = model.encoder
    num_entries = model.tokenizer.vocab_size

    def renewed(parameter: Tensor) -> nn.Parameter:
        return nn.Parameter(mean_rows(parameter, pieces, num_entries))

    words = encoder.embeddings.word_embeddings
    shared = words.weight
    words.weight = renewed(shared)
    words.num_embeddings = len(pieces)
    for head in model.heads.modules():
        if not isinstance(head, VocabularyHead):
            continue
        if head.word_embedding_weight is shared:
            head.word_embedding_weight = words.weight
        else:
            head.word_embedding_weight = renewed(head.word_embedding_weight)
        if isinstance(head.bias, nn.Parameter):
            head.bias = renewed(head.bias)
        else:
            head.bias = mean_rows(head.bias, pieces, num_entries)
    _move_positions(encoder.embeddings.position_embeddings, tokenizer.pad_id)
    encoder.config = replace(
        encoder.config, vocab_size=len(pieces), pad_token_id=tokenizer.pad_id
    )
    provenance = {
        **model.config.get("clozelab", {}),
        "tokenizer_fingerprint": tokenizer.fingerprint,
    }
    config = {**model.config, "clozelab": provenance}
    return replace(model, tokenizer=tokenizer, config=config)


def _move_positions(table: nn.Module, pad_id: int) -> None:
    """Let the first position be pad_id + 1, where positions begin behind the padding's id."""
    if not isinstance(table, LearnedPositions) or table.offset in (0, pad_id + 1):
        return
    unused = table.weight[:1].expand(pad_id + 1, -1)
    moved = torch.cat([unused, table.weight[table.offset :]])
    table.weight = nn.Parameter(moved.detach().clone())
    table.num_embeddings = len(moved)
    table.offset = pad_id + 1
