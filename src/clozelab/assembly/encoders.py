"""The encoder that a pre-training trains: its shape, its objectives and its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clozelab.addresses import build
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import PreparedCorpus
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.launch.overrides import LONGER
from clozelab.models import folders
from clozelab.models.config import EncoderConfig, ModuleSpec
from clozelab.models.longer import longer_config
from clozelab.models.registry import family_of
from clozelab.modules.model import max_positions, open_tokenizer
from clozelab.objectives.objective import Objective
from clozelab.schema import PretrainConfig
from clozelab.text.plain import PlainDict


def build_objectives(nodes: Sequence[PlainDict]) -> list[Objective]:
    """Build each phase's objective of `phase_objectives`; equal ones are one."""
    built = [Objective(**build("objective", node)) for node in nodes]
    # `index` finds the first of several equal nodes.
    return [built[nodes.index(node)] for node in nodes]


def encoder_config(cfg: PretrainConfig, ids: SpecialIds, objective: Objective) -> EncoderConfig:
    """The shape of a fresh encoder, from a run's configuration."""
    return EncoderConfig(
        **vars(cfg.model),
        **vars(cfg.architecture),
        vocab_size=ids.vocab_size,
        pad_token_id=ids.pad,
        is_causal=objective.is_causal,
        predicts_next=objective.predicts_next,
    )


def given_config(cfg: PretrainConfig) -> EncoderConfig:
    """The shape of an encoder that begins with given weights: the folder's, or a longer one's.

    ValueError where `architecture` asks for one that cannot begin with these.
    """
    assert cfg.encoder is not None
    folder = Path(cfg.encoder)
    config = folders.read_config(folder)
    model_type = cfg.architecture.model_type
    # A configuration in which nobody has chosen an architecture says bert.
    if model_type in (config.model_type, "bert"):
        return config
    if model_type not in LONGER:
        raise ValueError(
            f"architecture.model_type={model_type}, perhaps by recipe=, and encoder={folder} is of"
            f" type {config.model_type} and stays so: leave the architecture out, and choose the"
            " recipe's objective, input and tokenizer by themselves"
        )
    attention = ModuleSpec.from_node(cfg.architecture.attention, "architecture.attention")
    return longer_config(folder, model_type, attention, cfg.model.max_position_embeddings)


def given_lengths(cfg: PretrainConfig, objectives: Sequence[Objective] = ()) -> set[int]:
    """Lengths of the sequences that the weights a run begins with were trained on.

    Those are a given encoder's or, of a student among the objectives, its teacher's; none where
    that is to be trained first.
    """
    tokens = [objective.token for objective in objectives]
    starts = [token.inputs()["teacher"] for token in tokens if getattr(token, "teacher_layers", 0)]
    folder = next(iter(starts), cfg.encoder)
    if folder is None or cfg.fresh_weights or not Path(folder).exists():
        return set()
    given = folders.read_provenance(folder)
    # Somebody else's may have been trained on any of its positions, but not on texts that its files
    # cut: it reads no longer ones once it is trained further.
    longest = max_positions(Path(folder))
    return {min(length, longest) for length in given.get("trained_seq_lengths", (longest,))}


def encoder_tokenizer(
    cfg: PretrainConfig, corpus: PreparedCorpus, objectives: Sequence[Objective]
) -> Tokenizer:
    """The tokenizer that the encoder's folder gets.

    It has no token type 1 where neither this run nor that of a given encoder has trained it: then
    fine-tuning gives both texts of a pair the trained one, here and in transformers. Fresh weights
    of a given shape were trained by this run alone. An XLNet's types tell [CLS] from the text as
    well, and its tokenizer puts that at the end.
    """
    model_type = cfg.architecture.model_type
    if cfg.encoder is not None:
        model_type = folders.read_config(cfg.encoder).model_type
    family = family_of(model_type)
    if family.cls_is_last:
        return corpus.tokenizer.ending_with_cls()
    family.require_template(corpus.tokenizer.cls_is_last, cfg.corpus.name)
    if any(objective.input.num_segments > 1 for objective in objectives):
        return corpus.tokenizer
    given = None if cfg.fresh_weights else cfg.encoder
    if given is not None and open_tokenizer(Path(given)).has_token_types:
        return corpus.tokenizer
    return corpus.tokenizer.with_token_types("one")
