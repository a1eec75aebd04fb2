"""An encoder under another vocabulary: its embeddings row by row, all other weights as they are.

A row of the new matrix is the old row of the same entry. A new entry gets the mean of the rows of
its old pieces (as in Gee et al. 2022), or of all rows where it has none (as in Hewitt 2021). Where
the vocabulary is predicted by a matrix of its own, that gets the same, and so does the bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.models.embeddings import LearnedPositions
from clozelab.models.heads import VocabularyHead
from clozelab.models.locate import count_weights
from clozelab.modules.model import Model, write_model
from clozelab.modules.model_tasks import meaning_of
from clozelab.modules.sentence_folders import activation_keys, sidecar_files


def mean_rows(table: Tensor, pieces: Sequence[list[int]], num_entries: int) -> Tensor:
    """[V, ...] -> [len(pieces), ...]: means of the rows at `pieces`; without any, of all entries.

    A mean of one row is that row, to the bit. Rows from `num_entries` on are padding.
    """
    exact = table.detach().double()
    mean_of_all = exact[:num_entries].mean(0)
    rows = []
    for ids in pieces:
        rows.append(exact[ids].mean(0) if ids else mean_of_all)
    return torch.stack(rows).to(table.dtype)


def with_vocabulary(model: Model, tokenizer: Tokenizer, pieces: Sequence[list[int]]) -> Model:
    """The model with another tokenizer; the modules of the given one are changed.

    `pieces`: of each new row the old ids that it is the mean of.
    """
    encoder = model.encoder
    # Each table once, so that what is tied stays tied.
    tables = [encoder.embeddings.word_embeddings.weight]
    for head in model.heads.modules():
        if isinstance(head, VocabularyHead):
            tables += [head.word_embedding_weight, head.bias]
    for table in {id(table): table for table in tables}.values():
        table.data = mean_rows(table, pieces, model.tokenizer.vocab_size)
    # Positions begin behind the padding's id, in some families.
    positions = encoder.embeddings.position_embeddings
    first = tokenizer.pad_id + 1
    if isinstance(positions, LearnedPositions) and positions.offset not in (0, first):
        unused = positions.weight[:1].expand(first, -1)
        positions.weight.data = torch.cat([unused, positions.weight[positions.offset :]])
        positions.offset = first
    encoder.config = replace(encoder.config, vocab_size=len(pieces), pad_token_id=tokenizer.pad_id)
    provenance = model.provenance.copy()
    provenance["tokenizer_fingerprint"] = tokenizer.fingerprint
    provenance["base_weights"] = count_weights(model.folder, model.config)
    return replace(model, tokenizer=tokenizer, config={**model.config, "clozelab": provenance})


def write(to: Path, model: Model, tokenizer: Tokenizer, pieces: Sequence[list[int]]) -> None:
    """Write a model's folder with another tokenizer; `pieces` are rows of the old matrix."""
    model = with_vocabulary(model, tokenizer, pieces)
    has_pooler = "pooler" not in model.untrained
    config_to_save = {"clozelab": model.config["clozelab"], **activation_keys(model.folder)}
    problem_type = meaning_of(model.task).problem_type
    files = sidecar_files(model.folder)
    write_model(
        to,
        model.encoder,
        dict(model.heads),
        tokenizer,
        labels=model.labels,
        problem_type=problem_type,
        max_length=model.max_length,
        with_pooler=has_pooler,
        extra_config=config_to_save,
        extra_files=files,
    )
