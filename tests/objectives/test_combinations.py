"""Objectives with members of the family that no file of their own tries together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.objectives.test_distillation import SETTINGS
from tests.objectives.test_hybrid import MASKING, hybrid
from tests.objectives.test_ltr_rtl import OBJECTIVE as LTR_RTL
from tests.screens import refuses
from torch import Tensor

from clozelab.assembly.pretraining_module import _load_heads
from clozelab.corpus.instances import FullSentences, SegmentPairs
from clozelab.models import encoder as encoder_module
from clozelab.models import folders
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder, EncoderOutput
from clozelab.models.heads import MaskedLMHead
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for, family_of
from clozelab.modules.explaining import _outputs
from clozelab.objectives.distillation import Distillation
from clozelab.objectives.emd import EnhancedMaskedLanguageModel
from clozelab.objectives.hybrid import Hybrid
from clozelab.objectives.ltr import LeftToRight
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.nsp import NextSentencePrediction
from clozelab.objectives.objective import (
    EncoderWithHeads,
    LossTerm,
    Models,
    Objective,
    PairObjective,
    TokenObjective,
    TorchBatch,
    build_models,
    pad_predictions,
    to_torch,
)
from clozelab.objectives.permuted import PermutedLanguageModel
from clozelab.objectives.rtd import ReplacedTokenDetection
from clozelab.objectives.spans import SpanBoundary
from clozelab.tasks.sequences import TokenSequences

MLM = MaskedLanguageModel(**MASKING, weight=1.0)
EMD = EnhancedMaskedLanguageModel(**MASKING, weight=1.0)
PERMUTED = PermutedLanguageModel(**MASKING, weight=1.0, sees_every_position=True)
SPANS = SpanBoundary(**MASKING, weight=1.0, boundary_weight=1.0)
GENERATOR = {"generator_width": "1/2", "generator_weight": 1.0, "weight": 50.0}
RTD = ReplacedTokenDetection(**MASKING, **GENERATOR)
GDES = ReplacedTokenDetection(**MASKING, **GENERATOR, embedding_sharing="gdes")
TOKENS: dict[str, TokenObjective] = {
    "mlm": MLM,
    "ltr": LeftToRight(weight=1.0),
    "emd": EMD,
    "permuted": PERMUTED,
    "hybrid": hybrid(0.25),
    "spans": SPANS,
    "rtd": RTD,
    "gdes": GDES,
}

DISTANCES = {
    "_target_": "clozelab.models.disentangled.DisentangledPositions",
    "position_buckets": 8,
}
CONVOLUTION = {"_target_": "clozelab.models.disentangled.ConvolvedPostNorm"}
WINDOW = {"_target_": "clozelab.models.attention.LocalAttention", "window": 8, "global_every": 2}
LONG = {"_target_": "clozelab.models.attention.LongAttention", "window": 8}
BLOCKS = {
    "_target_": "clozelab.models.attention.BlockAttention",
    "block_size": 2,
    "num_random_blocks": 1,
}
MEMBERS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "albert": {"num_hidden_groups": 1, "embedding_size": 8, "projects_embeddings": True},
    "electra": {},
    "distilbert": {},
    "deberta-v2": {"positions": DISTANCES, "type_vocab_size": 0},
    "modernbert": {"attention": WINDOW},
    "neobert": {},
    "ultrabert": {"attention": WINDOW},
    "mpnet": {},
    "ernie": {},
    "xlnet": {},
    "longformer": {"attention": LONG},
    "big_bird": {"attention": BLOCKS},
}
# What cannot be.
NO_POST_NORM = "the enhanced mask decoder needs architecture.block PostNorm"
WINDOWS = "puts predictions behind the text, and windows are of slots"
SHARED_DISTANCES = "embedding_sharing=all shares the table of distances"
REFUSED = {
    ("emd", "modernbert"): NO_POST_NORM,
    ("emd", "neobert"): NO_POST_NORM,
    ("emd", "ultrabert"): NO_POST_NORM,
    ("emd", "xlnet"): NO_POST_NORM,
    ("permuted", "longformer"): WINDOWS,
    ("permuted", "big_bird"): WINDOWS,
    ("permuted", "modernbert"): WINDOWS,
    ("permuted", "ultrabert"): WINDOWS,
    ("permuted", "deberta-v2"): "distances of DisentangledPositions are of slots",
    ("rtd", "deberta-v2"): SHARED_DISTANCES,
    ("rtd", "mpnet"): SHARED_DISTANCES,
    ("rtd", "xlnet"): SHARED_DISTANCES,
    ("hybrid", "xlnet"): "objective mlm hides what follows, and these architecture.positions",
}


def objective_of(token: TokenObjective) -> Objective:
    return Objective(input=FullSentences(), token=token, pair=None)


@pytest.fixture
def make_member(tiny_config: Callable[..., EncoderConfig]) -> Callable[..., Encoder]:
    """make_member(name, token) -> a tiny encoder of the family, as the objective has it read."""

    def make(name: str, token: TokenObjective = MLM, **changes: Any) -> Encoder:
        torch.manual_seed(0)
        sizes = {"vocab_size": 60, "hidden_size": 16, "num_attention_heads": 2}
        reading = {"is_causal": token.is_causal, "predicts_next": token.predicts_next}
        parts = dict(family_of(name).parts) | MEMBERS[name] | {"pad_token_id": 0}
        config = tiny_config(model_type=name, **parts | sizes | reading | changes)
        return Encoder(config)

    return make


def ragged() -> dict[str, Any]:
    """Two sequences of 9 and 6 tokens, and four predictions."""
    places = torch.cat([torch.arange(9), torch.arange(6)])
    return {
        "input_ids": (places * 7 + 5) % 60,
        "token_type_ids": torch.zeros_like(places),
        "position_ids": places,
        "layout": Layout.ragged([9, 6]),
        "prediction_positions": torch.tensor([2, 4, 10, 13]),
    }


@torch.no_grad()
def outputs(encoder: Encoder, heads: Any) -> dict[str, Tensor]:
    batch = ragged()
    output = encoder.read(batch, True)
    results = {"states": output.sequence_output}
    if "lm" in heads:
        states = heads["lm"].states(encoder, output, batch)
        results["lm"] = heads["lm"](states)
    if "rtd" in heads:
        results["rtd"] = heads["rtd"](output.sequence_output)
    return results


# Their positions, attention or layers are of their own; the others have BERT's.
OF_OWN_PARTS = ("bert", "albert", "deberta-v2", "modernbert", "mpnet", "xlnet", "longformer")
STEPS = []
for token_name in TOKENS:
    for member_name in MEMBERS:
        is_fast = member_name in OF_OWN_PARTS or token_name in ("mlm", "rtd")
        marks = [] if is_fast else [pytest.mark.slow]
        STEPS.append(pytest.param(token_name, member_name, marks=marks))


@pytest.mark.parametrize(("name", "member"), STEPS)
def test_a_step_and_a_folder(
    shards: Any,
    ids: Any,
    make_member: Any,
    tmp_path: Path,
    name: str,
    member: str,
) -> None:
    """All that is trained has a finite gradient, and a folder gives the same numbers again."""
    token = TOKENS[name]
    objective = objective_of(token)
    if (name, member) in REFUSED:
        with refuses(REFUSED[name, member]):
            build_models(make_member(member, token), [objective])
        return
    encoder = make_member(member, token)
    models = build_models(encoder, [objective])
    instances = objective.input.bind(shards, ids, 32)
    arrays = objective.arrays(instances, 1, 0, np.arange(8), np.arange(8))
    terms = objective.terms(models, to_torch(arrays))
    sum(objective.weights[term.name] * term.loss_sum / term.count for term in terms).backward()
    for model in models.values():
        for parameter_name, parameter in model.named_parameters():
            # Nothing reads a pooler here, and nothing is global.
            if ".pooler." in parameter_name or not parameter.requires_grad:
                continue
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.isfinite().all() and parameter.grad.any(), parameter_name
    for model_name, model in models.items():
        model.eval()
        folder = tmp_path / model_name
        folders.save_encoder_folder(
            folder, model.encoder, heads=model.heads, tokenizer_files={}, extra_config={}
        )
        stored = folders.read_tensors(folder)
        again = folders.load_encoder(folder, stored=stored).eval()
        heads = {}
        for kind in model.heads:
            head = family_for(again.config).head(kind, again, stored=stored).eval()
            folders.load_head(folder, kind, head, stored)
            heads[kind] = head
        expected = outputs(model.encoder, model.heads)
        for part, values in outputs(again, heads).items():
            torch.testing.assert_close(values, expected[part], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", [*TOKENS, "distillation"])
def test_padded_predictions_count_nowhere(
    shards: Any, ids: Any, make_member: Any, tmp_path: Path, name: str
) -> None:
    """A multiple for accelerators: the same terms and the same gradients, and the same draws."""
    save(tmp_path, make_member("bert"), MLM)
    token = TOKENS.get(name, distillation_of(tmp_path))
    objective = objective_of(token)
    instances = objective.input.bind(shards, ids, 32)
    arrays = objective.arrays(instances, 1, 0, np.arange(8), np.arange(8))
    real = len(arrays["prediction_labels"])
    results = []
    for batch in (to_torch(arrays), to_torch(pad_predictions(arrays, 64))):
        models = build_models(make_member("bert", token), [objective])
        torch.manual_seed(5)
        terms = objective.terms(models, batch)
        sum(term.loss_sum for term in terms).backward()
        facts = [(term.name, term.count, term.num_correct) for term in terms]
        weights = list(torch.nn.ModuleDict(models).parameters())
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        sums = [term.loss_sum.detach() for term in terms]
        results.append((objective.counts(batch), facts, [*sums, *gradients]))
    assert len(batch["prediction_labels"]) % 64 == 0 and len(batch["prediction_labels"]) > real
    assert results[0][:2] == results[1][:2]
    for plain, padded in zip(results[0][2], results[1][2], strict=True):
        torch.testing.assert_close(padded, plain, atol=1e-4, rtol=1e-5)


READS_ALL = {"ltr", "emd", "distillation"}
"""A loss on every token, and a head or a teacher that reads all states."""


@pytest.mark.parametrize("name", [*TOKENS, "distillation", "nsp"])
def test_losses_are_those_of_a_whole_reading(
    shards: Any,
    ids: Any,
    make_member: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """The last layer goes on for the slots that an objective says it reads, or for all."""
    save(tmp_path, make_member("bert"), MLM)
    objective = objective_of({"distillation": distillation_of(tmp_path)}.get(name, MLM))
    if name in TOKENS:
        objective = objective_of(TOKENS[name])
    if name == "nsp":
        pair = NextSentencePrediction(weight=1.0)
        objective = Objective(input=SegmentPairs(0.5, "corpus"), token=MLM, pair=pair)
    instances = objective.input.bind(shards, ids, 32)
    batch = to_torch(objective.arrays(instances, 1, 0, np.arange(8), np.arange(8)))
    readings = []
    some_slots = encoder_module._some_slots

    def note(*arguments: Any) -> Any:
        readings.append(some_slots(*arguments))
        return readings[-1]

    monkeypatch.setattr(encoder_module, "_some_slots", note)
    results = []
    for is_whole in (False, True):
        if is_whole:
            monkeypatch.setattr(Encoder, "can_read_some_slots", False)
        models = build_models(make_member("bert", objective.token), [objective])
        torch.manual_seed(5)
        terms = objective.terms(models, batch)
        sum(term.loss_sum for term in terms).backward()
        weights = list(torch.nn.ModuleDict(models).parameters())
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        results.append([*(term.loss_sum.detach() for term in terms), *gradients])
        assert any(readings) != (is_whole or name in READS_ALL)
        readings.clear()
    for some, whole in zip(*results, strict=True):
        torch.testing.assert_close(some, whole, atol=1e-4, rtol=1e-5)


class MeanStates(MaskedLanguageModel):
    """Of one's own: a second loss, on the states of all tokens, and a share that hides a NaN."""

    @property
    def weights(self) -> dict[str, float]:
        return super().weights | {"mean": 1.0}

    def terms(self, models: Models, batch: TorchBatch) -> tuple[EncoderOutput, list[LossTerm]]:
        output, terms = super().terms(models, batch)
        return output, [*terms, mean_term("mean", output)]


class MeanStatesOfParts(Hybrid):
    def terms(self, models: Models, batch: TorchBatch) -> tuple[EncoderOutput, list[LossTerm]]:
        output, terms = super().terms(models, batch)
        return output, [*terms, mean_term("mean", output)]


class NeighbourPart(Hybrid):
    """Reads the slot before each of its own."""

    def part_states(
        self, name: str, model: EncoderWithHeads, output: EncoderOutput, batch: TorchBatch
    ) -> Tensor:
        earlier = (batch["prediction_positions"] - 1).clamp(min=0)
        return super().part_states(name, model, output, batch | {"prediction_positions": earlier})


class MeanPair(NextSentencePrediction):
    def term(self, model: EncoderWithHeads, output: EncoderOutput, batch: TorchBatch) -> LossTerm:
        return mean_term(self.name, output)


class NeighbourHead(MaskedLMHead):
    def states(self, encoder: Encoder, output: EncoderOutput, batch: Mapping[str, Any]) -> Tensor:
        earlier = (batch["prediction_positions"] - 1).clamp(min=0)
        return super().states(encoder, output, {"prediction_positions": earlier})


class NeighbourModel(MaskedLanguageModel):
    def build(self, models: dict[str, EncoderWithHeads]) -> None:
        encoder = models["encoder"].encoder
        weight: Any = encoder.embeddings.word_embeddings.weight
        models["encoder"].add_head("lm", NeighbourHead(encoder.config, weight))


def mean_term(name: str, output: EncoderOutput) -> LossTerm:
    states = output.sequence_output
    is_positive = states.sum(-1) > 0
    return LossTerm(name, states.square().mean(-1).sum(), len(states), is_positive.sum())


OWN: dict[str, tuple[TokenObjective, PairObjective | None]] = {
    "terms": (MeanStates(**MASKING, weight=1.0), None),
    "terms of parts": (
        MeanStatesOfParts(**MASKING, weight=1.0, causal_fraction=0.25, shift=1),
        None,
    ),
    "part states": (NeighbourPart(**MASKING, weight=1.0, causal_fraction=0.25, shift=1), None),
    "pair": (MLM, MeanPair(weight=1.0)),
    "head": (NeighbourModel(**MASKING, weight=1.0), None),
}


@pytest.mark.parametrize("name", OWN)
def test_what_ones_own_code_reads_is_there(
    shards: Any, ids: Any, make_member: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Code that was written before slots were listed, and lists none, reads all of them."""
    token, pair = OWN[name]
    text = FullSentences() if pair is None else SegmentPairs(0.5, "corpus")
    objective = Objective(input=text, token=token, pair=pair)
    instances = objective.input.bind(shards, ids, 32)
    batch = to_torch(objective.arrays(instances, 1, 0, np.arange(8), np.arange(8)))
    results = []
    for is_whole in (False, True):
        if is_whole:
            monkeypatch.setattr(Encoder, "can_read_some_slots", False)
        models = build_models(make_member("bert", token), [objective])
        torch.manual_seed(5)
        results.append(objective.terms(models, batch))
    for some, whole in zip(*results, strict=True):
        torch.testing.assert_close(some.loss_sum, whole.loss_sum, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(some.num_correct, whole.num_correct)


@pytest.mark.parametrize("member", MEMBERS)
def test_next_sentences_of_every_member(
    shards: Any, ids: Any, make_member: Any, member: str
) -> None:
    """With and without a pooler."""
    pair = NextSentencePrediction(weight=1.0)
    objective = Objective(input=SegmentPairs(0.5, "corpus"), token=MLM, pair=pair)
    models = build_models(make_member(member), [objective])
    arrays = objective.arrays(objective.input.bind(shards, ids, 32), 1, 0, np.arange(8))
    _, term = objective.terms(models, to_torch(arrays))
    term.loss_sum.backward()
    assert term.loss_sum.isfinite()
    for parameter in models["encoder"].encoder.layer.parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all()


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (TOKENS["ltr"], "objective ltr hides tokens that a convolution would show"),
        (PERMUTED, "objective permuted hides tokens that a convolution would show"),
        (hybrid(0.25), "objective mlm hides tokens that a convolution would show"),
        (hybrid(1.0), "objective ltr hides tokens that a convolution would show"),
    ],
    ids=["ltr", "permuted", "hybrid", "hybrid without masks"],
)
def test_a_convolution_shows_what_is_hidden(
    make_member: Any, token: TokenObjective, reason: str
) -> None:
    positions = {"_target_": "clozelab.models.embeddings.LearnedPositions"}
    encoder = make_member("deberta-v2", token, block=CONVOLUTION, positions=positions)
    with refuses(reason):
        build_models(encoder, [objective_of(token)])
    # Masked tokens are hidden by their masks.
    build_models(encoder, [objective_of(hybrid(0.0))])


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ((MLM, EMD), "phases predict by two kinds of lm heads, and an encoder has"),
        ((EMD, MLM), "phases predict by two kinds of lm heads, and an encoder has"),
    ],
    ids=["mlm, emd", "emd, mlm"],
)
def test_two_kinds_of_heads_in_turn(make_member: Any, tokens: Any, reason: str) -> None:
    objectives = [objective_of(token) for token in tokens]
    with refuses(reason):
        build_models(make_member("bert"), objectives)
    build_models(make_member("bert"), [objectives[0], objective_of(tokens[0])])


TEACHERS = {
    "emd": (EMD, {}, "its lm head is an enhanced mask decoder"),
    "hybrid": (hybrid(0.25), {}, "its states predict the token behind them (objective=hybrid)"),
    "ltr_rtl": (LTR_RTL.token, {"num_directions": 2}, "it reads in two directions, and none"),
    "ltr": (TOKENS["ltr"], {}, "it reads from left to right; the student sees both sides"),
}


def distillation_of(folder: Path) -> Distillation:
    return Distillation(**SETTINGS | {"teacher": folder, "teacher_layers": "even"})


def save(folder: Path, encoder: Encoder, token: TokenObjective) -> None:
    heads = build_models(encoder, [objective_of(token)])["encoder"].heads
    folders.save_encoder_folder(folder, encoder, heads=heads, tokenizer_files={}, extra_config={})


@pytest.mark.parametrize(("token", "changes", "reason"), TEACHERS.values(), ids=TEACHERS)
def test_teachers_that_say_something_else(
    make_member: Any, tmp_path: Path, token: TokenObjective, changes: Any, reason: str
) -> None:
    """Their probabilities are of another token, or of other states."""
    save(tmp_path, make_member("bert", token, **changes), token)
    with refuses(reason):
        distillation_of(tmp_path).check(make_member("bert").config, 32)


@pytest.mark.parametrize("member", ["neobert", "ultrabert", "modernbert", "bert"])
def test_a_student_starts_with_its_teachers_projection(
    make_member: Any, tmp_path: Path, member: str
) -> None:
    """With as many layers it predicts as its teacher does, by a projection of its own, too."""
    save(tmp_path, make_member(member), MLM)
    student = make_member(member)
    for parameter in student.parameters():
        torch.nn.init.normal_(parameter)
    token = distillation_of(tmp_path)
    token.check(student.config, 32)
    models = build_models(student, [objective_of(token)])
    token.start(models)
    expected = outputs(models["teacher"].encoder.eval(), models["teacher"].heads)
    actual = outputs(student.eval(), models["encoder"].heads)
    torch.testing.assert_close(actual["lm"], expected["lm"], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        ("modernbert", "architecture.num_directions is 2, and heads of modernbert read"),
        ("neobert", "architecture.num_directions is 2, and heads of neobert read"),
        ("ultrabert", "architecture.num_directions is 2, and heads of ultrabert read"),
    ],
)
def test_heads_of_one_direction(make_member: Any, member: str, reason: str) -> None:
    encoder = make_member(member, LTR_RTL.token, num_directions=2)
    with refuses(reason):
        build_models(encoder, [LTR_RTL])


@pytest.mark.parametrize("token", [MLM, EMD], ids=["mlm", "emd"])
def test_what_is_explained_is_what_is_predicted(make_member: Any, token: TokenObjective) -> None:
    """Also of a head that reads more than the last states."""
    encoder = make_member("bert", token).eval()
    head = build_models(encoder, [objective_of(token)])["encoder"].eval().heads["lm"]
    mask = 4
    ids = np.array([2, 9, 11, mask, 17, 3], dtype=np.int32)
    offsets = np.array([0, len(ids)])
    predictor: Any = SimpleNamespace(
        encoder=encoder,
        heads={"lm": head},
        device=torch.device("cpu"),
        tokenizer=SimpleNamespace(mask_id=mask),
        sequences_of=lambda texts: TokenSequences(ids, offsets, np.array([len(ids)])),
    )
    explained, _ = _outputs(predictor, "fill", "")
    batch = {
        "input_ids": torch.from_numpy(ids).long(),
        "token_type_ids": torch.zeros(len(ids), dtype=torch.int64),
        "position_ids": torch.arange(len(ids)),
        "layout": Layout.ragged([len(ids)]),
        "prediction_positions": torch.tensor([3]),
    }
    with torch.no_grad():
        states = head.states(encoder, encoder.read(batch, True), batch)
        embedded = encoder.embeddings.word_embeddings(batch["input_ids"])
        actual = explained(torch.stack([embedded, embedded]))
        expected = head(states).expand(2, -1)
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("activation", "fresh"), [("gelu", []), ("relu", ["lm"])])
def test_a_head_of_another_activation_is_left_out(
    tiny_config: Any, tmp_path: Path, activation: str, fresh: list[str]
) -> None:
    """A Longformer's has GELU, whatever the BERT's has that it begins with."""
    config = tiny_config(hidden_act=activation)
    save(tmp_path / "encoder", Encoder(config), MLM)
    config = replace(config, model_type="longformer")
    model = build_models(Encoder(config), [objective_of(MLM)])["encoder"]
    assert _load_heads(model, tmp_path / "encoder", "encoder") == fresh


@pytest.mark.parametrize(("token", "is_told"), [(EMD, True), (MLM, False)])
def test_positions_that_a_plain_head_leaves_out_are_told(
    make_member: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    token: TokenObjective,
    is_told: bool,
) -> None:
    """A masked model goes on from a folder of mlm_emd; from one of its own it loses nothing."""
    save(tmp_path / "encoder", make_member("bert"), token)
    model = build_models(make_member("bert"), [objective_of(MLM)])["encoder"]
    _load_heads(model, tmp_path / "encoder", "encoder")
    levels = [record.levelname for record in caplog.records]
    assert ("WARNING" in levels) == is_told
