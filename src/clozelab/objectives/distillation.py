"""Distillation: a small encoder learns from a frozen one that reads the same masked text.

Sanh et al. 2019 (DistilBERT) add three losses: the teacher's probabilities at the predicted tokens,
softened by a temperature; the masked-LM loss; one minus the cosine of the last states. The student
may start from some of the teacher's layers. Jiao et al. 2020 (TinyBERT) add the distance of hidden
states, through a learned matrix, and of attention scores before the softmax; both are off here
until they name layers.

Layers count from 1; hidden state 0 is what goes into layer 1.

Letters: T slots in the stream, B instances, S slots of one, P predicted positions, V vocabulary,
H hidden size, N heads, D head dimension.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from clozelab.metrics.metric import NO_UNIT, Metric
from clozelab.models import folders
from clozelab.models.config import DEFAULT_MODULES, EncoderConfig
from clozelab.models.cost import training_flops_per_token
from clozelab.models.encoder import Encoder, EncoderOutput
from clozelab.models.layers import Linear, initialise_
from clozelab.models.locate import config_path
from clozelab.models.registry import family_for
from clozelab.models.trained import freeze
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.objective import (
    AuxiliaryModel,
    EncoderWithHeads,
    LossTerm,
    Models,
    TorchBatch,
    real_tokens,
)

log = logging.getLogger(__name__)
LayerPairs: TypeAlias = Sequence[Sequence[int]]
"""(layer of the student, layer of the teacher) of each loss between two layers."""
TeacherLayers: TypeAlias = Sequence[int] | str | None
"""The teacher's layers that the student starts from: their numbers, EVEN, or none."""
# For teacher_layers: the student's layers are spread over the teacher's, up to its last one.
EVEN = "even"
# What a student shares with a teacher whose layers it starts from.
EQUAL_FIELDS = (
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "embedding_size",
    "max_position_embeddings",
    "hidden_act",
    "positions",
    "block",
    "norm",
    "projects_embeddings",
    "use_bias",
)
# Whose scores are the products of query and key, and nothing more.
PLAIN_PARTS = ("positions", "block", "attention")


class Distillation(MaskedLanguageModel):
    """The terms are "mlm", "soft", "cosine", "hidden" and "scores"; the last four where they weigh.

    Args: see conf/objective/token/distillation.yaml. ValueError without a teacher, for a
    temperature that is not above 0, and where nothing is learnt from the teacher.
    """

    def __init__(
        self,
        *,
        teacher: str | Path | None,
        teacher_layers: TeacherLayers,
        temperature: float,
        soft_weight: float,
        cosine_weight: float,
        hidden_layers: LayerPairs,
        hidden_weight: float,
        score_layers: LayerPairs,
        score_weight: float,
        **masking: Any,
    ) -> None:
        super().__init__(**masking)
        if teacher is None:
            raise ValueError(
                "objective.token.teacher is not set: give the folder of an encoder with an lm head,"
                " such as a pre-training run's encoder/"
            )
        self.teacher = Path(teacher)
        self.teacher_layers = teacher_layers
        self.temperature = temperature
        self.hidden_layers = [tuple(pair) for pair in hidden_layers]
        self.score_layers = [tuple(pair) for pair in score_layers]
        self.teacher_weights = {"soft": soft_weight, "cosine": cosine_weight}
        if self.hidden_layers:
            self.teacher_weights["hidden"] = hidden_weight
        if self.score_layers:
            self.teacher_weights["scores"] = score_weight
        if temperature <= 0.0:
            raise ValueError(f"objective.token.temperature is {temperature}; it must be above 0")
        if isinstance(teacher_layers, str) and teacher_layers != EVEN:
            raise ValueError(
                f"objective.token.teacher_layers is {teacher_layers!r}; give a list of layers, or"
                f" {EVEN}"
            )
        if not self.teacher_layers and not self.needs_teacher:
            raise ValueError(
                "objective=distillation learns nothing from its teacher: give soft_weight,"
                " cosine_weight or teacher_layers, or take objective=mlm"
            )

    @property
    def weights(self) -> dict[str, float]:
        used = {name: weight for name, weight in self.teacher_weights.items() if weight}
        return super().weights | used

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Of the teacher's terms `soft` alone is in nats: the others are distances of states."""
        distances = []
        for name in ("cosine", "hidden", "scores"):
            distances.append(Metric(f"{name}_loss", NO_UNIT, higher_is_better=False))
        named = {metric.name: metric for metric in (*super().metrics, *distances)}
        return tuple(named.values())

    @property
    def needs_teacher(self) -> bool:
        """Whether the teacher reads along, and is not only what the student starts from."""
        return any(self.teacher_weights.values())

    @cached_property
    def teacher_config(self) -> EncoderConfig | None:
        """The teacher's shape; None where it has not been trained yet."""
        if not config_path(self.teacher).is_file():
            return None
        return folders.read_config(self.teacher)

    def inputs(self) -> dict[str, Path]:
        return {"teacher": self.teacher}

    def layers_to_start_from(self, student: EncoderConfig, teacher: EncoderConfig) -> list[int]:
        """The teacher's layer for each of the student's, from 1: every second of four are 2, 4."""
        if self.teacher_layers != EVEN:
            return [int(number) for number in self.teacher_layers or ()]
        depth = student.num_hidden_layers
        # 12 to 6: 2, 4, 6, 8, 10, 12. 12 to 5: 2, 4, 7, 9, 12.
        return [number * teacher.num_hidden_layers // depth for number in range(1, depth + 1)]

    # What does not fit

    def check(self, student: EncoderConfig, longest: int) -> None:
        """ValueError where the teacher has not what is asked of it; reads its files."""
        teacher = folders.read_config(self.teacher)
        family = family_for(teacher)
        with torch.device("meta"):
            head = family.head("lm", Encoder(teacher))
        stored = folders.read_tensors(self.teacher)
        family.require_masks(folders.read_config_dict(self.teacher))
        for name, weight in self.teacher_weights.items():
            if weight < 0.0:
                key = f"objective.token.{name.removesuffix('s')}_weight"
                raise ValueError(f"{key} is {weight}: give 0 or more")
        self._require(
            folders.has_head(family, "lm", head, stored),
            "the folder holds no lm head; pre-train it with a masked-LM objective",
        )
        self._require(
            family.head_name("lm", "position_embeddings.weight") not in stored,
            "its lm head is an enhanced mask decoder, which is not read here; take a teacher of"
            " another objective",
        )
        self._require(
            teacher.num_directions == 1,
            "it reads in two directions, and none of them sees both sides of a masked token; take a"
            " teacher of objective=mlm",
        )
        self._require(
            not teacher.predicts_next,
            "its states predict the token behind them (objective=hybrid), and the student's their"
            " own; take a teacher of objective=mlm",
        )
        self._require(
            not teacher.is_causal,
            "it reads from left to right; the student sees both sides of a masked token: take a"
            " teacher of objective=mlm",
        )
        self._require(
            teacher.max_position_embeddings >= longest,
            f"it has {teacher.max_position_embeddings} positions, and instances have {longest}:"
            " take shorter phases, or another teacher",
        )
        provenance = folders.read_provenance(self.teacher)
        trained = max(provenance.get("trained_seq_lengths", [longest]))
        if trained < longest:
            log.warning(
                "teacher=%s: it was trained on texts of up to %d tokens, and instances have %d:"
                " what it says behind is of positions that nothing has trained",
                self.teacher,
                trained,
                longest,
            )
        self._require(
            not self.teacher_weights["cosine"] or teacher.hidden_size == student.hidden_size,
            f"the cosine compares states of one width: its hidden_size is {teacher.hidden_size},"
            f" the student's {student.hidden_size}; set objective.token.cosine_weight=0",
        )
        if self.teacher_layers:
            self._check_start(student, teacher)
        for pair in self.hidden_layers:
            self._check_pair("hidden_layers", pair, student, teacher, first=0)
        for pair in self.score_layers:
            self._check_pair("score_layers", pair, student, teacher, first=1)
        if self.score_layers:
            self._check_scores(student, teacher)

    def _check_start(self, student: EncoderConfig, teacher: EncoderConfig) -> None:
        """ValueError where the student cannot start from the chosen layers."""
        layers = self.layers_to_start_from(student, teacher)
        self._require(
            len(layers) == student.num_hidden_layers == student.num_hidden_groups,
            f"teacher_layers names {len(layers)} layers, and the student has"
            f" {student.num_hidden_layers} with {student.num_hidden_groups} sets of weights: name"
            " one layer for each",
        )
        self._require(
            min(layers) >= 1 and max(layers) <= teacher.num_hidden_layers,
            f"teacher_layers is {layers}; its layers are 1 to {teacher.num_hidden_layers}",
        )
        names = list(EQUAL_FIELDS)
        # A student without token types leaves the teacher's out.
        if student.type_vocab_size:
            names.append("type_vocab_size")
        for name in names:
            expected = getattr(teacher, name)
            actual = getattr(student, name)
            self._require(
                actual == expected,
                f"to start from its layers the student needs its {name}, {expected}, and has"
                f" {actual}",
            )

    def _check_pair(
        self,
        key: str,
        pair: tuple[int, ...],
        student: EncoderConfig,
        teacher: EncoderConfig,
        first: int,
    ) -> None:
        """ValueError for a pair that is not [student's layer, teacher's layer]."""
        depths = (student.num_hidden_layers, teacher.num_hidden_layers)
        is_pair = len(pair) == 2 and all(
            first <= number <= depth for number, depth in zip(pair, depths, strict=True)
        )
        self._require(
            is_pair,
            f"objective.token.{key} has {list(pair)}; give [student's, teacher's], from {first} to"
            f" {depths[0]} and {depths[1]}",
        )

    def _check_scores(self, student: EncoderConfig, teacher: EncoderConfig) -> None:
        """ValueError where the attention scores of the two cannot be compared."""
        heads = teacher.num_attention_heads
        self._require(
            heads == student.num_attention_heads,
            f"attention scores are compared head by head: it has {heads} heads, the student"
            f" {student.num_attention_heads}",
        )
        for config in (student, teacher):
            for name in PLAIN_PARTS:
                target = getattr(config, name).target
                self._require(
                    target == DEFAULT_MODULES[name].target,
                    f"attention scores of {target} are not compared: leave score_layers empty",
                )

    def _require(self, holds: bool, reason: str) -> None:
        if not holds:
            raise ValueError(f"teacher={self.teacher}: {reason}")

    # Models

    def build(self, models: dict[str, EncoderWithHeads]) -> None:
        """Puts a teacher with fresh weights beside the student; `start` gives it its own."""
        super().build(models)
        student = models["encoder"]
        config = self.teacher_config or student.encoder.config
        if "teacher" not in models:
            # Nothing reads a pooler.
            teacher = Encoder(replace(config, pooler=None, is_causal=False))
            models["teacher"] = AuxiliaryModel(teacher, trained=False)
            models["teacher"].add_head("lm")
        if self.hidden_layers or self.score_layers:
            student.keeps_hidden_states = True
            models["teacher"].keeps_hidden_states = True
        if self.hidden_layers and "hidden" not in student.aids:
            own = student.encoder.config
            student.aids["hidden"] = Linear(own.hidden_size, config.hidden_size, bias=False)
            initialise_(student.aids["hidden"], own.initializer_range, None)

    def start(self, models: Models) -> None:
        """Reads the teacher's weights, and copies the layers that the student starts from."""
        num_ids = folders.read_config(self.teacher).vocab_size
        own_num_ids = models["encoder"].encoder.config.vocab_size
        self._require(
            num_ids == own_num_ids,
            f"it has embeddings for {num_ids} ids, and the student for {own_num_ids}: they predict"
            " other words",
        )
        teacher = models["teacher"]
        stored = folders.read_tensors(self.teacher)
        encoder = folders.load_encoder(self.teacher, stored=stored, warns_of_fresh=False)
        names = teacher.encoder.state_dict().keys()
        state = {name: value for name, value in encoder.state_dict().items() if name in names}
        teacher.encoder.load_state_dict(state)
        folders.load_head(self.teacher, "lm", teacher.heads["lm"], stored)
        # A projection apart from the word embeddings is a new parameter, which would be trained.
        freeze(teacher.parameters())
        if self.teacher_layers:
            self._copy_layers(models["encoder"], teacher)

    def _copy_layers(self, student: EncoderWithHeads, teacher: EncoderWithHeads) -> None:
        """Embeddings, the chosen layers and the lm head become the teacher's."""
        embeddings = student.encoder.embeddings
        names = embeddings.state_dict().keys()
        source = teacher.encoder.embeddings.state_dict()
        embeddings.load_state_dict({name: source[name] for name in names})
        if student.encoder.embeddings_project is not None:
            matrix: Any = teacher.encoder.embeddings_project
            student.encoder.embeddings_project.load_state_dict(matrix.state_dict())
        numbers = self.layers_to_start_from(student.encoder.config, teacher.encoder.config)
        layers = teacher.encoder.layers()
        for layer, number in zip(student.encoder.layers(), numbers, strict=True):
            # A Longformer's matrices of global tokens are its others, and not the teacher's.
            state = layers[number - 1].state_dict()
            own = {name: state[name] for name, _ in layer.named_parameters()}
            layer.load_state_dict(own, strict=False)
        student.encoder.final_norm.load_state_dict(teacher.encoder.final_norm.state_dict())
        # The vocabulary projection is the student's word embeddings, but in some families.
        head = teacher.heads["lm"].state_dict()
        tied: Any = student.heads["lm"].tied_parameters
        for name in tied:
            del head[name]
        student.heads["lm"].load_state_dict(head, strict=False)

    def flops_per_token(
        self, config: EncoderConfig, seq_length: int, predicted_fraction: float
    ) -> float:
        """The student's step, and the teacher's forward.

        The student projects on the vocabulary once for each of two losses. A teacher that is not
        there yet counts as one of the student's shape.
        """
        student = training_flops_per_token(config, seq_length, predicted_fraction)
        if not self.needs_teacher:
            return student
        teacher_config = self.teacher_config or config
        predicted_by_teacher = 0.0
        if self.teacher_weights["soft"]:
            # The difference is the vocabulary projection alone.
            student += student - training_flops_per_token(config, seq_length, 0.0)
            predicted_by_teacher = predicted_fraction
        teacher = training_flops_per_token(teacher_config, seq_length, predicted_by_teacher) / 3.0
        # Forward once and backward twice; of the teacher forward alone.
        hidden = 6.0 * config.hidden_size * teacher_config.hidden_size
        scores = 0.0
        for width, passes in ((config.hidden_size, 3.0), (teacher_config.hidden_size, 1.0)):
            # Query and key again, and their products.
            scores += passes * (4.0 * width * width + 2.0 * seq_length * width)
        maps = len(self.hidden_layers) * hidden + len(self.score_layers) * scores
        return student + teacher + maps

    # Losses

    def counts(self, batch: TorchBatch) -> dict[str, int]:
        counts = super().counts(batch)
        counts["soft"] = counts[self.name]
        lengths = batch["layout"].lengths_list
        counts["cosine"] = sum(lengths)
        counts["hidden"] = sum(lengths)
        counts["scores"] = sum(length * length for length in lengths)
        return counts

    def terms(self, models: Models, batch: TorchBatch) -> tuple[EncoderOutput, list[LossTerm]]:
        output, terms = super().terms(models, batch)
        if not self.needs_teacher:
            return output, terms
        # Dropout is off in it: what it says of a text does not change from step to step.
        with torch.no_grad():
            expected = models["teacher"].states(batch["input_ids"], batch)
        losses = {
            "soft": self.soft_loss,
            "cosine": self.cosine_loss,
            "hidden": self.hidden_loss,
            "scores": self.score_loss,
        }
        counts = self.counts(batch)
        for name in self.weights:
            if name != self.name:
                loss = losses[name](models, batch, output, expected)
                terms.append(LossTerm(name, loss, counts[name], None))
        return output, terms

    def soft_loss(
        self, models: Models, batch: TorchBatch, output: EncoderOutput, expected: EncoderOutput
    ) -> Tensor:
        """Cross-entropy with the teacher's probabilities, less their entropy: 0 for equal ones.

        The entropy has no gradient. Hinton et al. 2015: times the temperature's square, which keeps
        the gradient's size.
        """
        student = models["encoder"]
        logits = student.heads["lm"](student.predicted_states(output, batch))  # [P, V]
        with torch.no_grad():
            teacher = models["teacher"]
            states = teacher.predicted_states(expected, batch)
            target = (teacher.heads["lm"](states).float() / self.temperature).log_softmax(-1)
        # At 2.0 the teacher's 90, 9 and 1 % become 70, 22 and 7 %: its second guesses count.
        log_probs = (logits.float() / self.temperature).log_softmax(-1)
        divergence = F.kl_div(log_probs, target, reduction="none", log_target=True).sum(-1)
        # Positions that only fill up their number have no label.
        divergence = divergence.masked_fill(batch["prediction_labels"] < 0, 0.0)
        return divergence.sum() * self.temperature**2

    def cosine_loss(
        self,
        models: Models,  # noqa: ARG002
        batch: TorchBatch,
        output: EncoderOutput,
        expected: EncoderOutput,
    ) -> Tensor:
        """One minus the cosine of the last states, summed over real tokens."""
        states = output.sequence_output.float()
        cosine = F.cosine_similarity(states, expected.sequence_output.float(), dim=-1)
        return (1.0 - cosine).masked_fill(~real_tokens(batch), 0.0).sum()

    def hidden_loss(
        self, models: Models, batch: TorchBatch, output: EncoderOutput, expected: EncoderOutput
    ) -> Tensor:
        """Mean square over the teacher's width, summed over real tokens and pairs of states."""
        is_padding = ~real_tokens(batch)
        total = torch.zeros((), device=is_padding.device)
        for student_layer, teacher_layer in self.hidden_layers:
            # One matrix for all pairs takes the student's width to the teacher's.
            mapped = models["encoder"].aids["hidden"](output.hidden_states[student_layer])
            target = expected.hidden_states[teacher_layer].float()
            square = (mapped.float() - target).square().mean(-1)
            total = total + square.masked_fill(is_padding, 0.0).sum()
        return total

    def score_loss(
        self, models: Models, batch: TorchBatch, output: EncoderOutput, expected: EncoderOutput
    ) -> Tensor:
        """Mean square over heads, summed over pairs of real tokens and pairs of layers."""
        layout = batch["layout"]
        is_real = real_tokens(batch).view(layout.batch_size, -1)  # [B, S]
        is_hidden = ~(is_real[:, :, None] & is_real[:, None, :])  # [B, S, S]
        total = torch.zeros((), device=is_real.device)
        for student_layer, teacher_layer in self.score_layers:
            scores = attention_scores(
                models["encoder"].encoder, student_layer, output, layout.batch_size
            )
            with torch.no_grad():
                target = attention_scores(
                    models["teacher"].encoder, teacher_layer, expected, layout.batch_size
                )
            square = (scores - target).square().mean(1)
            total = total + square.masked_fill(is_hidden, 0.0).sum()
        return total


def attention_scores(
    encoder: Encoder, number: int, output: EncoderOutput, batch_size: int
) -> Tensor:
    """Layer `number`'s scores before the softmax, fp32 [B, N, S, S]; the layer is a PostNorm.

    They are computed beside the kernel, which does not give them.
    """
    layer: Any = encoder.layers()[number - 1]
    attention = layer.attention
    hidden = output.hidden_states[number - 1]  # [T, H]
    # Of the matrix for query, key and value the first two thirds.
    rows = 2 * hidden.shape[1]
    bias = attention.qkv.bias
    if bias is not None:
        bias = bias[:rows]
    both = F.linear(hidden, attention.qkv.weight[:rows], bias)
    shape = (batch_size, -1, 2, attention.num_heads, attention.head_dim)
    q, k = both.float().view(shape).permute(2, 0, 3, 1, 4)  # [B, N, S, D]
    return q @ k.transpose(-1, -2) * attention.head_dim**-0.5
