"""A Longformer or a BigBird from the weights of a BERT or a RoBERTa (Beltagy et al. 2020, 5).

All weights are the short encoder's. Positions behind its last one start as copies of those before
(decisions/0004), and so do the matrices of global tokens of the others. On a text that a window or
the blocks cover, its states are the short encoder's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from clozelab.models.config import DEFAULT_MODULES, EncoderConfig, ModuleSpec
from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder, read_config, read_provenance
from clozelab.models.registry import family_of

SHORT = ("bert", "roberta")


def longer_config(
    folder: Path, model_type: str, attention: ModuleSpec, max_position_embeddings: int
) -> EncoderConfig:
    """The shape of the long encoder that begins with a folder's weights.

    It has the folder's own number of positions, or `max_position_embeddings` where these are more.
    ValueError for a folder of other parts.
    """
    config = read_config(folder)
    parts = {name: getattr(config, name).target for name in ("positions", "attention")}
    is_usual = all(DEFAULT_MODULES[name].target == part for name, part in parts.items())
    if config.model_type not in SHORT or not is_usual:
        names = " and ".join(part.rpartition(".")[2] for part in parts.values())
        raise ValueError(
            f"architecture.model_type={model_type} begins with a BERT or a RoBERTa of learned"
            f" positions and full attention, and encoder={folder} is of type {config.model_type},"
            f" with {names}: leave the architecture out to train that on as it is"
        )
    positions = family_of(model_type).parts.get("positions", DEFAULT_MODULES["positions"])
    return replace(
        config,
        model_type=model_type,
        attention=attention,
        positions=positions,
        max_position_embeddings=max(config.max_position_embeddings, max_position_embeddings),
    )


@torch.no_grad()
def load_encoder_as(config: EncoderConfig, folder: Path, seed: int) -> Encoder:
    """A folder's encoder in its own shape, or in that of `longer_config`.

    `seed`: of a pooler that it lacks.
    """
    short = load_encoder(folder, seed=seed)
    if short.config == config:
        return short
    encoder = Encoder(config)
    given = short.embeddings.position_embeddings
    table = encoder.embeddings.position_embeddings
    state = short.state_dict()
    # The families differ in how many rows stand before the first position.
    positions = state.pop("embeddings.position_embeddings.weight")[given.offset :]
    encoder.load_state_dict(state, strict=False)
    table.weight[table.offset : table.offset + len(positions)] = positions
    # A folder of ours says how long the texts were that it was trained on.
    provenance = read_provenance(folder)
    trained = min(len(positions), max(provenance.get("trained_seq_lengths", [len(positions)])))
    if trained < config.max_position_embeddings:
        encoder.embeddings.tile_positions(trained, config.max_position_embeddings)
    encoder.share_projections()
    encoder.has_trained_pooler = short.has_trained_pooler
    return encoder
