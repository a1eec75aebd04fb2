"""The module that pre-trains an encoder with its heads, of fresh or given weights."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from clozelab.assembly import factory
from clozelab.assembly.encoders import encoder_config, given_config, given_lengths
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import PreparedCorpus, TokenShards, unigram_log_probabilities
from clozelab.models import folders
from clozelab.models.encoder import Encoder
from clozelab.models.heads import MaskedLMHead, PredictionTransform
from clozelab.models.layers import DeltaEmbedding
from clozelab.models.locate import CONFIG_FILE
from clozelab.models.longer import load_encoder_as
from clozelab.models.registry import family_for
from clozelab.modules.base import build_with_hparams
from clozelab.modules.pretraining import PretrainingModel, PretrainingModule
from clozelab.objectives.objective import EncoderWithHeads, Objective
from clozelab.schema import PretrainConfig
from clozelab.training.callbacks import PositionGrowth, growth_steps
from clozelab.training.checkpoints import seed_initialisation
from clozelab.training.runtime import matmul_ceiling
from clozelab.training.trainer import Hardware

log = logging.getLogger(__name__)


def build_module(
    cfg: PretrainConfig,
    hardware: Hardware,
    corpus: PreparedCorpus,
    objectives: Sequence[Objective],
    total_steps: int,
) -> PretrainingModule:
    """Build the module that trains an encoder with its heads.

    The encoder is a fresh one of the configured shape and the corpus's vocabulary, or a given one.
    """
    # Fresh weights, also those of the heads, are a function of the seed alone.
    seed_initialisation(cfg.seed)
    if cfg.encoder is None:
        encoder = Encoder(
            encoder_config(cfg, SpecialIds.from_tokenizer(corpus.tokenizer), objectives[-1])
        )
        encoder.share_projections()
    elif cfg.fresh_weights:
        encoder = Encoder(given_config(cfg))
        encoder.share_projections()
    else:
        encoder = load_encoder_as(given_config(cfg), Path(cfg.encoder), cfg.seed)
        encoder.share_projections(only_equal=True)
    optimization = factory.optimization(cfg, total_steps, cfg.seed)
    ceiling = matmul_ceiling(hardware.precision, hardware.device)
    module: PretrainingModule = build_with_hparams(
        PretrainingModule,
        factory.adaptation(vars(cfg), encoder),
        encoder=encoder,
        objectives=objectives,
        **optimization,
        matmul_ceiling=ceiling,
        spike=cfg.spike,
    )
    for trained in module.model.encoders:
        trained.gradient_checkpointing = cfg.trainer.gradient_checkpointing
    growth = {}
    if cfg.position_growth == "tile":
        lengths = given_lengths(cfg, objectives)
        growth = growth_steps([vars(phase) for phase in cfg.phases], max(lengths, default=0))
    # The module brings this callback itself, for a Trainer of somebody's own needs it too.
    callbacks = [PositionGrowth(growth)]
    module.configure_callbacks = partial(list, callbacks)  # type: ignore[method-assign]
    if cfg.encoder is not None and not cfg.fresh_weights:
        module.fresh_heads = _load_given_heads(module.model, Path(cfg.encoder))
        for name in module.fresh_heads:
            begin_with_frequencies(module.model.named_models["encoder"].heads[name], corpus.train)
    return module


def begin_with_frequencies(head: nn.Module, text: TokenShards) -> None:
    """Let a fresh masked LM head begin with the frequencies of a text's tokens, and with copying.

    The frequencies are its bias [V]. A dense layer that is the identity leaves a token near its own
    embedding, so the tokens that masking leaves in place are learnt in a few steps. With the usual
    fresh weights, a short training does little but learn both, and moves the encoder meanwhile.
    Heads without a norm or a bias stay as they are.
    """
    if not isinstance(head, MaskedLMHead) or not isinstance(head.bias, nn.Parameter):
        return
    if not isinstance(head.transform, PredictionTransform):
        return
    log_probabilities = torch.from_numpy(unigram_log_probabilities(text))
    with torch.no_grad():
        head.bias[: text.vocab_size] = log_probabilities.to(head.bias.dtype)
        weight = head.transform.dense.weight
        # Embeddings of another size than the states are no copies of them.
        if weight.shape[0] == weight.shape[1]:
            nn.init.eye_(weight)


def _load_given_heads(model: PretrainingModel, folder: Path) -> list[str]:
    """Load the heads that a given encoder's folder has; return those of the encoder that it lacks.

    A further model (generator) and its heads come from the folder of its name beside it.
    """
    fresh_heads: list[str] = []
    embedding = model.encoder.embeddings.word_embeddings
    table = embedding.table().detach().clone()
    for name, with_heads in model.named_models.items():
        if name == "encoder":
            fresh_heads = _load_heads(with_heads, folder, name)
            continue
        if not with_heads.is_trained:
            continue
        beside = folder.resolve().with_name(name)
        if (beside / CONFIG_FILE).is_file():
            with_heads.encoder.load_state_dict(folders.load_encoder(beside).state_dict())
        _load_heads(with_heads, beside, name)
    # The generator that it is a difference to may have become another.
    if isinstance(embedding, DeltaEmbedding):
        embedding.set_table(table)
    return fresh_heads


def _load_heads(model: EncoderWithHeads, folder: Path, model_name: str) -> list[str]:
    """Load a model's heads from its folder; return those that start from fresh weights."""
    # A further model's folder may be missing: an encoder alone is a valid beginning.
    stored: Collection[str] = ()
    given = model.encoder.config
    activation = family_for(given).lm_activation(given)
    if (folder / CONFIG_FILE).is_file():
        stored = folders.read_tensors(folder)
        # A Longformer may begin with a BERT's, which have that one's names.
        given = folders.read_config(folder)
    family = family_for(given)
    if family.lm_activation(given) != activation:
        # Its dense layer was trained before another function; other heads stay.
        beginning = family.head_name("lm", "")
        without_lm = [name for name in stored if not name.startswith(beginning)]
        if len(without_lm) < len(stored):
            log.warning(
                "%s predicts tokens behind %s, and a %s does so behind %s: its lm head is left out",
                folder,
                family.lm_activation(given),
                model.encoder.config.model_type,
                activation,
            )
        stored = without_lm
    if family.has_position_queries(stored) and "lm" in model.heads and model.heads["lm"].is_stock:
        log.warning(
            "%s predicts tokens by absolute positions (mlm_emd), and this objective does not:"
            " they are left out",
            folder,
        )
    fresh_heads = []
    for head_name, head in model.heads.items():
        if folders.has_head(family, head_name, head, stored):
            folders.load_head(folder, head_name, head)
            continue
        log.info(
            "%s has no %s head of the %s: it starts from fresh weights",
            folder,
            head_name,
            model_name,
        )
        fresh_heads.append(head_name)
    return fresh_heads
