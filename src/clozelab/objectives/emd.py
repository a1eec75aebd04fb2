"""Masked language model whose head reads absolute positions (He et al. 2021, DeBERTa v2)."""

from __future__ import annotations

from dataclasses import replace

from clozelab.models.config import EncoderConfig
from clozelab.models.cost import frozen_flops_of_parts, training_flops_per_token
from clozelab.models.disentangled import EnhancedMaskDecoder
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.objective import EncoderWithHeads


class EnhancedMaskedLanguageModel(MaskedLanguageModel):
    """The same masks; the head is the enhanced mask decoder."""

    def build(self, models: dict[str, EncoderWithHeads]) -> None:
        model = models["encoder"]
        # Objectives that take turns share it: a head that is there stays.
        model.add_head("lm", EnhancedMaskDecoder(model.encoder))

    def flops_per_token(
        self, config: EncoderConfig, seq_length: int, predicted_fraction: float
    ) -> float:
        """The last layer runs further times; without a loss on pairs its first run has no gradient.

        Each run is counted as a layer, though all have the weights of the last one.
        """
        passes = EnhancedMaskDecoder.passes
        deeper = replace(config, num_hidden_layers=config.num_hidden_layers + passes)
        flops = training_flops_per_token(deeper, seq_length, predicted_fraction)
        return flops - self.pair_flops_per_token(config, seq_length)

    def frozen_flops_per_token(
        self,
        config: EncoderConfig,
        seq_length: int,
        predicted_fraction: float,  # noqa: ARG002
        frozen: frozenset[str],
        has_pair: bool = False,
    ) -> float:
        """Each further run leaves out what the last layer's weights do.

        The positions that the first query begins with are trained, so gradients pass all of them.
        """
        *below, last = frozen_flops_of_parts(config, seq_length, frozen)
        first_run = sum(last) if has_pair else 0.0
        return sum(map(sum, below)) + first_run + EnhancedMaskDecoder.passes * last[0]

    def pair_flops_per_token(self, config: EncoderConfig, seq_length: int) -> float:
        """The backward pass through the last layer's first run: two of its three parts."""
        deeper = replace(config, num_hidden_layers=config.num_hidden_layers + 1)
        with_one_more = training_flops_per_token(deeper, seq_length, 0.0)
        return (with_one_more - training_flops_per_token(config, seq_length, 0.0)) * 2.0 / 3.0
