"""What a further objective adds, each written here: a frozen teacher, a head that sees more."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.modules.conftest import SETTINGS
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.corpus.instances import SegmentPairs
from clozelab.models.cost import trained_parameters
from clozelab.models.folders import load_encoder, load_head, save_encoder_folder
from clozelab.models.heads import MaskedLMHead
from clozelab.models.registry import family_for
from clozelab.modules.base import build_with_hparams
from clozelab.modules.pretraining import PretrainingModule
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.objective import (
    AuxiliaryModel,
    LossTerm,
    Objective,
    build_models,
    to_torch,
)

MASKING = {
    "predict_prob": 0.15,
    "mask_fraction": 0.8,
    "random_fraction": 0.1,
    "same_fraction": 0.1,
    "weight": 1.0,
}


class Distillation(MaskedLanguageModel):
    """The masked language model's loss, and the distance to a frozen teacher's predictions."""

    def __init__(self, *, teacher: Path, **masking: Any) -> None:
        super().__init__(**masking)
        self.teacher = teacher

    @property
    def weights(self) -> dict[str, float]:
        return super().weights | {"teacher": 1.0}

    def inputs(self) -> dict[str, Path]:
        return {"teacher": self.teacher}

    def build(self, models: dict[str, Any]) -> None:
        super().build(models)
        encoder = load_encoder(self.teacher)
        teacher = AuxiliaryModel(encoder, trained=False)
        teacher.add_head("lm")
        load_head(self.teacher, "lm", teacher.heads["lm"])
        models["teacher"] = teacher

    def counts(self, batch: Any) -> dict[str, int]:
        counts = super().counts(batch)
        return counts | {"teacher": counts[self.name]}

    def terms(self, models: Any, batch: Any) -> Any:
        output, terms = super().terms(models, batch)
        with torch.no_grad():
            expected = self.predictions({"encoder": models["teacher"]}, batch)["encoder"]
        states = models["encoder"].predicted_states(output, batch)
        logits = models["encoder"].heads["lm"](states)
        distance = F.kl_div(logits.log_softmax(-1), expected.softmax(-1), reduction="sum")
        term = LossTerm("teacher", distance, len(logits), torch.zeros(()))
        return output, [*terms, term]


class BoundaryHead(MaskedLMHead):
    """Predicts a token from the layer below at the two slots beside it."""

    reads_hidden_states: ClassVar[bool] = True

    def states(self, encoder: Any, output: Any, batch: Any) -> Tensor:
        below = output.hidden_states[-2]
        left = below.index_select(0, batch["prediction_positions"] - 1)
        right = below.index_select(0, batch["prediction_positions"] + 1)
        return left + right


class FromBoundaries(MaskedLanguageModel):
    def build(self, models: dict[str, Any]) -> None:
        encoder = models["encoder"].encoder
        weight = encoder.embeddings.word_embeddings.weight
        models["encoder"].add_head("lm", BoundaryHead(encoder.config, weight))


def objective_of(token: MaskedLanguageModel) -> Objective:
    return Objective(input=SegmentPairs(0.5, "corpus"), token=token, pair=None)


def batch_of(objective: Objective, shards: Any, ids: Any) -> dict[str, Any]:
    instances = objective.bind(shards, ids, 32)
    return to_torch(objective.arrays(instances, 1, 0, np.arange(5)))


@pytest.fixture
def distillation(make_encoder: Any, tmp_path: Path) -> Objective:
    encoder = make_encoder(False)
    head = family_for(encoder.config).head("lm", encoder)
    folder = tmp_path / "teacher"
    save_encoder_folder(folder, encoder, heads={"lm": head}, tokenizer_files={}, extra_config={})
    return objective_of(Distillation(teacher=folder, **MASKING))


def module_of(encoder: Any, objective: Objective) -> PretrainingModule:
    names = ("optimizer_factory", "schedule_factory", "total_steps", "gradient_clip_norm", "seed")
    return build_with_hparams(
        PretrainingModule,
        encoder=encoder,
        objectives=[objective],
        log_interval_steps=1,
        matmul_ceiling=0.0,
        **{name: SETTINGS[name] for name in names},
    )


def test_a_frozen_teacher(distillation, make_encoder, tiny_config, shards, ids) -> None:
    torch.manual_seed(1)
    student = make_encoder(False)
    nn.init.normal_(student.layer[0].output.dense.weight)
    alone = trained_parameters(build_models(student, [objective_of(distillation.token)]))
    module = module_of(student, distillation)
    teacher = module.model.named_models["teacher"]
    module.train()
    # In eval mode, and part of nothing that is trained, saved or counted.
    assert not any(part.training for part in teacher.modules())
    assert not any(weight.requires_grad for weight in teacher.parameters())
    assert not any("teacher" in name for name in module.state_dict())
    ids_of_trained = {id(weight) for weight in module.parameters()}
    assert not ids_of_trained & {id(weight) for weight in teacher.parameters()}
    assert alone == trained_parameters({"encoder": module.model.named_models["encoder"]})
    assert module.model.encoders == [student]
    module.double()
    assert {weight.dtype for weight in teacher.parameters()} == {torch.float64}
    module.float()
    # Its loss teaches the student, and its own weights stay.
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    terms = module.model(batch_of(distillation, shards, ids))
    assert [term.name for term in terms] == list(distillation.weights)
    terms[1].loss_sum.backward()
    assert float(terms[1].loss_sum) > 0
    optimizer = module.configure_optimizers()["optimizer"]
    optimizer.step()
    for name, value in teacher.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_teacher_has_no_folder_and_is_an_input(
    distillation, make_encoder, tmp_path, tokenizer_files
) -> None:
    module = module_of(make_encoder(False), distillation)
    provenance = {"trained_seq_lengths": [32]}
    module.save_encoder(tmp_path / "run" / "encoder", tokenizer_files, provenance)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["encoder"]
    assert distillation.token.inputs() == {"teacher": tmp_path / "teacher"}


@pytest.fixture
def tokenizer_files() -> dict[str, bytes]:
    return {"tokenizer_config.json": b"{}"}


def test_a_head_that_reads_layers_and_neighbours(make_encoder, shards, ids) -> None:
    encoder = make_encoder(False)
    objective = objective_of(FromBoundaries(**MASKING))
    models = build_models(encoder, [objective])
    batch = batch_of(objective, shards, ids)
    (term,) = objective.terms(models, batch)
    output = encoder(
        *(batch[name] for name in ("input_ids", "token_type_ids", "position_ids", "layout")),
        output_hidden_states=True,
    )
    positions = batch["prediction_positions"]
    below = output.hidden_states[-2]
    head: Any = models["encoder"].heads["lm"]
    logits = head(below[positions - 1] + below[positions + 1])
    loss = F.cross_entropy(logits, batch["prediction_labels"], reduction="sum")
    torch.testing.assert_close(term.loss_sum, loss)
    torch.testing.assert_close(objective.token.predictions(models, batch)["encoder"], logits)
    # A usual head keeps no layers.
    usual = build_models(make_encoder(False), [objective_of(MaskedLanguageModel(**MASKING))])
    assert usual["encoder"].states(batch["input_ids"], batch).hidden_states == ()
