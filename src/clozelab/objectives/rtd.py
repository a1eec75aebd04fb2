"""Replaced-token detection (Clark et al. 2020, ELECTRA): which words are a narrow generator's?

Two losses in one forward: the generator's masked-LM loss, and for every real token a yes or no of
the encoder, which reads the text with the generator's words in it. The draw of those words is part
of the forward, and seeded with it like dropout; no gradient passes through it. Generator and
encoder share their embeddings; or (He et al. 2023, DeBERTa v3) the encoder's word embeddings are
the generator's, behind a stopped gradient, plus a table of its own that begins at zero. So the
gradient of its loss does not reach the generator's embeddings. Both losses are of one step; the
paper's takes one step after the other.

Letters: T slots in the stream, P predicted positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clozelab.corpus.packing import PackedInstances
from clozelab.metrics.metric import Metric
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import training_flops_per_token
from clozelab.models.embeddings import Embeddings
from clozelab.models.encoder import Encoder, EncoderOutput
from clozelab.models.families.electra import generator_config
from clozelab.models.layers import DeltaEmbedding
from clozelab.models.trained import train_what_is_read
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.objective import (
    Arrays,
    AuxiliaryModel,
    EncoderWithHeads,
    LossTerm,
    Models,
    TorchBatch,
    VisibilitySpec,
    real_tokens,
)

SAMPLED_LOGITS = 1 << 24  # held at a time where words are drawn


class ReplacedTokenDetection(MaskedLanguageModel):
    """The terms are "mlm", the generator's, and "rtd", the encoder's.

    Args: see conf/objective/token/rtd.yaml.
    """

    trains_beside = ("generator",)
    predicts_tokens = False

    def __init__(
        self,
        *,
        generator_width: str | float,
        generator_weight: float,
        generator_depth: str | float = 1,
        embedding_sharing: str = "all",
        **masking: Any,
    ) -> None:
        super().__init__(**masking)
        if embedding_sharing not in ("all", "gdes"):
            raise ValueError(
                f"objective.token.embedding_sharing is {embedding_sharing!r}; choose all or gdes"
            )
        self.generator_width = generator_width
        self.generator_depth = generator_depth
        self.embedding_sharing = embedding_sharing
        self.generator_weight = generator_weight

    @property
    def weights(self) -> dict[str, float]:
        return {self.name: self.generator_weight, "rtd": self.weight}

    @property
    def metrics(self) -> tuple[Metric, ...]:
        trivial = (Metric.share("rtd_replaced"), Metric.share("rtd_trivial_accuracy"))
        return (*super().metrics, *trivial)

    def visibility(self, packed: PackedInstances, arrays: Arrays) -> list[VisibilitySpec]:
        """Neither model may see the text's own word where the generator writes.

        Not even whether it is another.
        """
        (generator,) = super().visibility(packed, arrays)
        encoder = dataclasses.replace(generator, term="rtd", model="encoder")
        return [dataclasses.replace(generator, model="generator"), encoder]

    def build(self, models: dict[str, EncoderWithHeads]) -> None:
        discriminator = models["encoder"]
        discriminator.add_head("rtd")
        config = self.generator_config(discriminator.encoder.config)
        embeddings = discriminator.encoder.embeddings
        if "generator" not in models:
            if self.embedding_sharing == "gdes":
                generator = Encoder(config)
                separate_gradients(generator.embeddings, embeddings)
            else:
                _refuse_other_widths(config, discriminator.encoder)
                generator = Encoder(config, embeddings=embeddings)
            train_what_is_read(generator, reads_pooler=False)
            models["generator"] = AuxiliaryModel(generator, trained=True)
            models["generator"].add_head("lm")
        are_apart = isinstance(embeddings.word_embeddings, DeltaEmbedding)
        is_as_wanted = are_apart == (self.embedding_sharing == "gdes")
        if models["generator"].encoder.config != config or not is_as_wanted:
            raise ValueError(
                "phases train two kinds of generator, and a run has one: give all phases the same"
                " objective.token.generator_width, generator_depth and embedding_sharing"
            )

    def generator_config(self, config: EncoderConfig) -> EncoderConfig:
        return generator_config(config, self.generator_width, self.generator_depth)

    def flops_per_token(
        self, config: EncoderConfig, seq_length: int, predicted_fraction: float
    ) -> float:
        """The generator with its vocabulary projection, and the encoder.

        The projection runs forward once more, for the draw.
        """
        narrow = self.generator_config(config)
        generator = training_flops_per_token(narrow, seq_length, predicted_fraction)
        projection = generator - training_flops_per_token(narrow, seq_length, 0.0)
        encoder = training_flops_per_token(config, seq_length, 0.0, heads=("rtd",))
        return generator + projection / 3 + encoder

    def counts(self, batch: TorchBatch) -> dict[str, int]:
        return super().counts(batch) | {"rtd": batch["layout"].num_tokens}

    def terms(self, models: Models, batch: TorchBatch) -> tuple[EncoderOutput, list[LossTerm]]:
        hidden = self.generate(models, batch)
        input_ids, is_replaced = self.replace(models["generator"], hidden, batch)
        output = models["encoder"].states(input_ids, batch)
        logits = models["encoder"].heads["rtd"](output.sequence_output).float()  # [T]
        # Padding slots have no loss, and are counted nowhere.
        is_real = real_tokens(batch)
        loss = F.binary_cross_entropy_with_logits(logits, is_replaced.float(), reduction="none")
        correct = (((logits > 0) == is_replaced) & is_real).sum()
        num_replaced = is_replaced.sum()
        count = batch["layout"].num_tokens
        term = LossTerm("rtd", loss.masked_fill(~is_real, 0.0).sum(), count, correct)
        # What an encoder that always says "not replaced" would get.
        term.figures["rtd_replaced"] = (num_replaced, count)
        term.figures["rtd_trivial_accuracy"] = (count - num_replaced, count)
        return output, [self.prediction_term(models["generator"], hidden, batch), term]

    def predictions(self, models: Models, batch: TorchBatch) -> dict[str, Tensor]:
        position = batch["prediction_positions"]
        hidden = self.generate(models, batch)
        input_ids, _ = self.replace(models["generator"], hidden, batch)
        output = models["encoder"].states(input_ids, batch)
        encoder_states = output.sequence_output.index_select(0, position)
        return {
            "generator": models["generator"].heads["lm"](hidden),
            "encoder": models["encoder"].heads["rtd"](encoder_states)[:, None],
        }

    def generate(self, models: Models, batch: TorchBatch) -> Tensor:
        """The generator's states at the predicted positions, [P, H]."""
        generator = models["generator"]
        positions = batch["prediction_positions"]
        output = generator.states(batch["input_ids"], batch, positions)
        return generator.predicted_states(output, batch)

    def replace(
        self, generator: EncoderWithHeads, hidden: Tensor, batch: TorchBatch
    ) -> tuple[Tensor, Tensor]:
        """The text with the generator's words in it, int64 [T]; and where they differ, bool [T].

        `hidden` [P, H]: the generator's states at the predicted positions.
        """
        position = batch["prediction_positions"]
        labels = batch["prediction_labels"]
        input_ids = batch["input_ids"]
        is_padding = labels < 0  # of the number of predictions: slot 0, which keeps what it has
        kept = input_ids.index_select(0, position)
        text = input_ids.index_copy(0, position, torch.where(is_padding, kept, labels))
        words = torch.where(is_padding, kept, self.draw(generator, hidden))
        # A generator that hits the text's own word has replaced nothing.
        replaced = text.index_copy(0, position, words)
        return replaced, replaced != text

    @torch.no_grad()
    def draw(self, generator: EncoderWithHeads, hidden: Tensor) -> Tensor:
        """A word for each state [P, H], by the generator's probabilities; int64 [P].

        By one random number a state: the first word up to which the probabilities add up to more. A
        multinomial of torch's draws one for each word, which took four fifths of a step on a CPU.
        """
        head = generator.heads["lm"]
        vocab_size = generator.encoder.config.vocab_size
        draws = []
        for states in hidden.split(max(1, SAMPLED_LOGITS // vocab_size)):
            logits = head(states).float()  # [p, V]
            weights = logits.sub_(logits.amax(-1, keepdim=True)).exp_()
            cumulative = weights.cumsum(-1)
            # In fp32 whatever the default is: bf16 has a few hundred numbers, and so few words.
            number = torch.rand(len(states), 1, dtype=torch.float32, device=states.device)
            threshold = number * cumulative[:, -1:]
            # Weights 1 2 1 add up to 1 3 4; a random 2.5 falls into the second word.
            draws.append(torch.searchsorted(cumulative, threshold, right=True).squeeze(1))
        return torch.cat(draws).clamp_(max=vocab_size - 1)


@torch.no_grad()
def separate_gradients(generator: Embeddings, encoder: Embeddings) -> None:
    """The encoder's word embeddings become the generator's and a difference, at first zero.

    What the encoder had goes to the generator: given weights are begun from.
    """
    # sum = generator's, without gradient, + difference: the encoder's loss trains the difference,
    # the generator's loss what both begin from.
    generator.word_embeddings.weight.copy_(encoder.word_embeddings.weight)
    encoder.word_embeddings = DeltaEmbedding(generator.word_embeddings)


def _refuse_other_widths(generator: EncoderConfig, encoder: Encoder) -> None:
    """ValueError where shared positions would be of two widths, or of two numbers of heads."""
    has_layers_shape: object = encoder.embeddings.position_embeddings.has_layers_shape
    if has_layers_shape and generator.hidden_size != encoder.config.hidden_size:
        raise ValueError(
            "objective.token.embedding_sharing=all shares the table of distances, which has the"
            " layers' width and heads: choose gdes, or generator_width 1"
        )
