"""Distillation against transformers' DistilBERT and BERT in a plain loop over single texts."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.objectives.test_hybrid import MASKING
from tests.screens import refuses
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from clozelab.assembly.pretraining import check_start
from clozelab.corpus.instances import SegmentPairs
from clozelab.models.config import ModuleSpec
from clozelab.models.encoder import Encoder
from clozelab.models.folders import save_encoder_folder, to_hf_tensors
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for
from clozelab.modules.pretraining import PretrainingModel
from clozelab.objectives.distillation import Distillation
from clozelab.objectives.objective import Objective, to_torch

SLOTS = 32
WIDTH = 16
ALL_LOSSES = {
    "hidden_layers": [[0, 0], [1, 2], [2, 4]],
    "hidden_weight": 0.5,
    "score_layers": [[1, 2], [2, 4]],
    "score_weight": 3.0,
}
SETTINGS: dict[str, Any] = {
    "teacher_layers": None,
    "temperature": 2.0,
    "soft_weight": 5.0,
    "cosine_weight": 1.0,
    "hidden_layers": [],
    "hidden_weight": 1.0,
    "score_layers": [],
    "score_weight": 1.0,
    "weight": 2.0,
    **MASKING,
}


def random_(parameters: Any) -> None:
    for parameter in parameters:
        torch.nn.init.normal_(parameter, std=0.2)


@pytest.fixture
def teacher_config(tiny_config: Callable[..., Any], ids: Any) -> Any:
    """Four layers that would drop much if they were not in eval mode."""
    return tiny_config(
        vocab_size=ids.vocab_size,
        hidden_size=WIDTH,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=24,
        hidden_dropout_prob=0.3,
        attention_probs_dropout_prob=0.3,
    )


@pytest.fixture
def teacher(teacher_config: Any, tmp_path: Path) -> Path:
    return save(tmp_path / "teacher", teacher_config)


def save(folder: Path, config: Any, kinds: tuple[str, ...] = ("lm",)) -> Path:
    torch.manual_seed(3)
    encoder = Encoder(config)
    heads = {kind: family_for(config).head(kind, encoder) for kind in kinds}
    random_(torch.nn.ModuleList([encoder, *heads.values()]).parameters())
    save_encoder_folder(folder, encoder, heads=heads, tokenizer_files={}, extra_config={})
    return folder


@pytest.fixture
def student_config(teacher_config: Any) -> Any:
    return replace(
        teacher_config,
        num_hidden_layers=2,
        num_hidden_groups=2,
        type_vocab_size=0,
        pooler=None,
        model_type="distilbert",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def objective_of(folder: Path, **changes: Any) -> Objective:
    token = Distillation(**SETTINGS | {"teacher": folder} | changes)
    return Objective(input=SegmentPairs(0.5, "corpus"), token=token, pair=None)


class Setup(NamedTuple):
    objective: Objective
    models: Any
    batch: Any


@pytest.fixture
def setup(teacher: Path, student_config: Any, shards: Any, ids: Any) -> Callable[..., Setup]:
    """setup(**changes of the settings): models as a training has them, and a batch in numpy."""

    def make(**changes: Any) -> Setup:
        objective = objective_of(teacher, **changes)
        torch.manual_seed(0)
        encoder = Encoder(student_config)
        random_(encoder.parameters())
        model = PretrainingModel(encoder, [objective]).train()
        instances = objective.input.bind(shards, ids, SLOTS)
        batch = objective.arrays(instances, 1, 0, np.arange(6, 13))
        assert min(batch["lengths"]) < SLOTS, "padding must count nowhere"
        return Setup(objective, model.named_models, batch)

    return make


def theirs(model: Any, name: str, folder: Path) -> Any:
    """transformers' masked-LM class with the same weights."""
    transformers = pytest.importorskip("transformers")
    heads = dict(model.heads.items())
    save_encoder_folder(folder, model.encoder, heads=heads, tokenizer_files={}, extra_config={})
    return getattr(transformers, name).from_pretrained(folder, attn_implementation="eager").eval()


def their_scores(projections: tuple[Any, Any], hidden: Tensor) -> Tensor:
    """[N, S, S] of one text; two heads of eight numbers."""
    query, key = (part(hidden).view(-1, 2, 8) for part in projections)
    return torch.einsum("qnd,knd->nqk", query, key) / 8**0.5


def reference(setup: Setup, tmp_path: Path) -> tuple[Any, Tensor, dict[str, Tensor]]:
    """Their student, the copied matrix, and each loss as a mean: text by text, without padding."""
    student = theirs(setup.models["encoder"], "DistilBertForMaskedLM", tmp_path / "student")
    teacher = theirs(setup.models["teacher"], "BertForMaskedLM", tmp_path / "again")
    matrix = setup.models["encoder"].aids["hidden"].weight.detach().clone().requires_grad_()
    batch = setup.batch
    sums = {name: torch.zeros(()) for name in ("mlm", "soft", "cosine", "hidden", "scores")}
    pairs = 0
    for row, length in enumerate(batch["lengths"].tolist()):
        text = slice(row * SLOTS, row * SLOTS + length)
        ids = torch.from_numpy(batch["input_ids"][text].astype(np.int64))[None]
        types = torch.from_numpy(batch["token_type_ids"][text].astype(np.int64))[None]
        own = student(input_ids=ids, output_hidden_states=True)
        with torch.no_grad():
            other = teacher(input_ids=ids, token_type_ids=types, output_hidden_states=True)
        for position, label in zip(
            batch["prediction_positions"], batch["prediction_labels"], strict=True
        ):
            if position // SLOTS != row:
                continue
            logits = own.logits[0, position % SLOTS]
            target = other.logits[0, position % SLOTS]
            sums["mlm"] = sums["mlm"] - logits.log_softmax(-1)[label]
            p = (target / 2).softmax(-1)
            entropy = -(p * p.log()).sum()
            cross_entropy = -(p * (logits / 2).log_softmax(-1)).sum()
            sums["soft"] = sums["soft"] + 4 * (cross_entropy - entropy)
        a, b = own.hidden_states[-1][0], other.hidden_states[-1][0]
        cosine = (a * b).sum(-1) / a.norm(dim=-1) / b.norm(dim=-1)
        sums["cosine"] = sums["cosine"] + (1 - cosine).sum()
        for mine, his in ALL_LOSSES["hidden_layers"]:
            mapped = own.hidden_states[mine][0] @ matrix.T
            square = (mapped - other.hidden_states[his][0]).square()
            sums["hidden"] = sums["hidden"] + square.mean(-1).sum()
        for mine, his in ALL_LOSSES["score_layers"]:
            layer = student.distilbert.transformer.layer[mine - 1].attention
            scores = their_scores((layer.q_lin, layer.k_lin), own.hidden_states[mine - 1][0])
            attention = teacher.bert.encoder.layer[his - 1].attention.self
            target = their_scores((attention.query, attention.key), other.hidden_states[his - 1][0])
            sums["scores"] = sums["scores"] + (scores - target.detach()).square().mean(0).sum()
        pairs += length * length
    predictions = len(batch["prediction_labels"])
    tokens = int(batch["lengths"].sum())
    counts = {"mlm": predictions, "soft": predictions, "cosine": tokens, "hidden": tokens}
    counts["scores"] = pairs
    return student, matrix, {name: total / counts[name] for name, total in sums.items()}


def test_losses_and_gradients_are_those_of_a_plain_loop(setup, tmp_path):
    ours = setup(**ALL_LOSSES)
    student, matrix, expected = reference(ours, tmp_path)
    terms = ours.objective.terms(ours.models, to_torch(ours.batch))
    weights = ours.objective.weights
    assert weights == {"mlm": 2.0, "soft": 5.0, "cosine": 1.0, "hidden": 0.5, "scores": 3.0}
    assert [term.name for term in terms] == list(weights)
    counts = ours.objective.counts(to_torch(ours.batch))
    loss = torch.zeros(())
    their_loss = torch.zeros(())
    for term in terms:
        assert term.count == counts[term.name]
        mean = term.loss_sum / term.count
        torch.testing.assert_close(mean, expected[term.name], atol=1e-5, rtol=0)
        loss = loss + weights[term.name] * mean
        their_loss = their_loss + weights[term.name] * expected[term.name]
    loss.backward()
    their_loss.backward()
    aid = ours.models["encoder"].aids["hidden"].weight
    torch.testing.assert_close(aid.grad, matrix.grad, atol=1e-5, rtol=0)
    gradients = gradients_of(ours.models["encoder"])
    for name, parameter in student.named_parameters():
        if name == "distilbert.embeddings.word_embeddings.weight":
            # Theirs gives the padding id's embedding no gradient but the projection's.
            gradients[name][0] = parameter.grad[0]
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-5, rtol=1e-4, msg=name)
    assert all(parameter.grad is None for parameter in ours.models["teacher"].parameters())


def gradients_of(model: Any) -> dict[str, Tensor]:
    """Under Hugging Face's names."""
    both = copy.deepcopy(model)
    for mine, original in zip(both.parameters(), model.parameters(), strict=True):
        mine.data = original.grad.clone()
    return to_hf_tensors(both.encoder, dict(both.heads.items()))


def test_the_teacher_drops_nothing_and_stays(setup):
    """Its probabilities of 0.3 would show; what is not asked of it is not computed."""
    ours = setup()
    assert ours.models["encoder"].training and not ours.models["teacher"].training
    assert not any(weight.requires_grad for weight in ours.models["teacher"].parameters())
    batch = to_torch(ours.batch)
    first, second = (ours.objective.terms(ours.models, batch)[1].loss_sum for _ in range(2))
    assert torch.equal(first, second)
    silent = setup(soft_weight=0.0, cosine_weight=0.0, teacher_layers="even")
    silent.models["teacher"].encoder.forward = None  # nobody calls it
    terms = silent.objective.terms(silent.models, batch)
    assert [term.name for term in terms] == list(silent.objective.weights) == ["mlm"]


@pytest.mark.parametrize(("layers", "chosen"), [("even", [2, 4]), ([1, 3], [1, 3])])
def test_a_start_from_chosen_layers(setup, teacher, layers, chosen):
    """The student's states are those of the teacher with the other layers taken out."""
    ours = setup(teacher_layers=layers)
    student = ours.models["encoder"]
    short = copy.deepcopy(ours.models["teacher"])
    short.encoder.layer = torch.nn.ModuleList(short.encoder.layer[n - 1] for n in chosen)
    short.encoder.config = replace(short.encoder.config, num_hidden_layers=2, num_hidden_groups=2)
    short.encoder.masks = short.encoder.masks[:2]
    # A student without token types leaves the teacher's out.
    short.encoder.embeddings.token_type_embeddings.weight.zero_()
    batch = to_torch(ours.batch)
    states = student.eval().states(batch["input_ids"], batch).sequence_output
    expected = short.states(batch["input_ids"], batch).sequence_output
    torch.testing.assert_close(states, expected, atol=1e-6, rtol=0)
    logits = student.heads["lm"](states)
    torch.testing.assert_close(logits, short.heads["lm"](expected), atol=1e-5, rtol=0)
    # It is a copy: a step of the student leaves the teacher as it was.
    for parameter in student.parameters():
        parameter.data.add_(1.0)
    again = short.states(batch["input_ids"], batch).sequence_output
    torch.testing.assert_close(again, expected, atol=0, rtol=0)


def test_a_longformer_starts_from_the_matrices_that_tokens_ask_by(teacher_config, tmp_path):
    """A trained teacher's global tokens have others; a RoBERTa's have none."""
    attention = ModuleSpec("clozelab.models.attention.LongAttention", (("window", 4),))
    common = {"model_type": "longformer", "type_vocab_size": 1, "pooler": None}
    longformer = replace(teacher_config, attention=attention, **common)
    for name, config in (
        ("longformer", longformer),
        ("roberta", replace(teacher_config, **common | {"model_type": "roberta"})),
    ):
        objective = objective_of(save(tmp_path / name, config), teacher_layers=[1, 3])
        short = replace(longformer, num_hidden_layers=2, num_hidden_groups=2)
        student = Encoder(short)
        student.share_projections()
        models = PretrainingModel(student, [objective]).named_models
        teachers = models["teacher"].encoder.layers()
        for layer, number in zip(student.layers(), (1, 3), strict=True):
            expected = teachers[number - 1].attention.qkv.weight
            assert torch.equal(layer.attention.qkv.weight, expected)
            assert layer.attention.qkv_global is layer.attention.qkv


@pytest.mark.usefixtures("counted_attention")
def test_both_models_are_counted(setup, student_config, teacher_config):
    """Against torch's counter: two projections and the maps of the student, the teacher forward."""
    ours = setup(**ALL_LOSSES)
    stream = torch.zeros(SLOTS, dtype=torch.int64)
    batch = {
        "input_ids": stream,
        "token_type_ids": stream,
        "position_ids": torch.arange(SLOTS),
        "layout": Layout.rectangle([SLOTS], SLOTS),
        "prediction_positions": torch.arange(5),
        "prediction_labels": torch.ones(5, dtype=torch.int64),
    }
    flops = {}
    for name in ("encoder", "teacher"):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model = ours.models[name].eval()
            states = model.states(stream, batch).sequence_output
            model.heads["lm"](states[:5])
        flops[name] = counter.get_total_flops()
    head = 5 * 2 * (WIDTH * WIDTH + WIDTH * student_config.vocab_size)
    maps = 3 * 2 * WIDTH * WIDTH * SLOTS
    scores = 2 * (WIDTH * 2 * WIDTH + SLOTS * WIDTH) * SLOTS
    expected = 3 * (flops["encoder"] + head) + flops["teacher"] + 3 * maps + 2 * 4 * scores
    token = ours.objective.token
    assert token.flops_per_token(student_config, SLOTS, 5 / SLOTS) * SLOTS == pytest.approx(
        expected
    )
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        ours.objective.terms(ours.models, batch)
    # The same of a forward as it runs: the student's products once instead of three times.
    forward = flops["encoder"] + head + flops["teacher"] + maps + 2 * 2 * scores
    assert counter.get_total_flops() == pytest.approx(forward)


def test_a_teacher_that_is_not_there_yet_counts_as_the_student(tmp_path, student_config):
    token = objective_of(tmp_path / "nowhere").token
    nothing = {"soft_weight": 0.0, "cosine_weight": 0.0, "teacher_layers": "even"}
    alone = objective_of(tmp_path / "nowhere", **nothing).token
    once = alone.flops_per_token(student_config, SLOTS, 0.0)
    assert token.flops_per_token(student_config, SLOTS, 0.0) == pytest.approx(once * 4 / 3)
    with refuses("does not exist: an encoder is a folder with config.json and"):
        PretrainingModel(Encoder(student_config), [objective_of(tmp_path / "nowhere")])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"teacher": None}, "objective.token.teacher is not set: give the folder of an"),
        ({"temperature": 0.0}, "objective.token.temperature is 0.0; it must be above 0"),
        ({"soft_weight": 0.0, "cosine_weight": 0.0}, "learns nothing from its teacher: give"),
        ({"teacher_layers": "odd"}, "objective.token.teacher_layers is 'odd'; give a list of"),
        ({"soft_weight": -1.0}, "objective.token.soft_weight is -1.0: give 0 or more"),
        ({"hidden_layers": [[1, 2]], "hidden_weight": -0.5}, "token.hidden_weight is -0.5: give 0"),
        ({"score_layers": [[1, 2]], "score_weight": -0.5}, "token.score_weight is -0.5: give 0"),
        ({"teacher_layers": [4]}, "teacher_layers names 1 layers, and the student has 2 with 2"),
        ({"teacher_layers": [0, 2]}, "teacher_layers is [0, 2]; its layers are 1 to 4"),
        ({"teacher_layers": [2, 5]}, "teacher_layers is [2, 5]; its layers are 1 to 4"),
        ({"hidden_layers": [[1, 5]]}, "objective.token.hidden_layers has [1, 5]; give [student's"),
        ({"hidden_layers": [[1]]}, "objective.token.hidden_layers has [1]; give [student's"),
        ({"score_layers": [[0, 1]]}, "objective.token.score_layers has [0, 1]; give [student's"),
    ],
    ids=str,
)
def test_settings_that_are_refused(teacher, student_config, settings, reason: str):
    with refuses(reason):
        objective_of(teacher, **settings).token.check(student_config, SLOTS)


def test_a_student_starts_once(teacher, student_config):
    """Each phase would put its own layers in the place of the others."""
    fresh: Any = SimpleNamespace(encoder=None)
    phases = []
    for layers in ("even", [2, 4], None):
        phases.append(objective_of(teacher, teacher_layers=layers))
    check_start(fresh, student_config, phases)
    with refuses("layers [1, 3] and [2, 4], and it starts once: give all of them the same"):
        other = objective_of(teacher, teacher_layers=[1, 3])
        check_start(fresh, student_config, [*phases, other])
    given: Any = SimpleNamespace(encoder="folder")
    with refuses("encoder= and objective.token.teacher_layers both say what"):
        check_start(given, student_config, phases)


@pytest.mark.parametrize(
    ("changes", "settings", "reason"),
    [
        ({"max_position_embeddings": 16}, {}, "it has 16 positions, and instances have 32: take"),
        ({"hidden_size": 8}, {}, "the cosine compares states of one width: its hidden_size is 8"),
        ({"intermediate_size": 8}, {"teacher_layers": "even"}, "the student needs its"),
        ({"num_attention_heads": 4}, {"score_layers": [[1, 1]]}, "head by head: it has 4 heads"),
    ],
    ids=str,
)
def test_teachers_that_are_refused(
    teacher_config, student_config, tmp_path, changes, settings, reason: str
):
    if "hidden_size" in changes:
        changes = changes | {"embedding_size": 8}
    folder = save(tmp_path / "other", replace(teacher_config, **changes))
    with refuses(reason):
        objective_of(folder, **settings).token.check(student_config, SLOTS)


@pytest.mark.parametrize(("longest", "is_told"), [(SLOTS, False), (SLOTS + 1, True)])
def test_a_teacher_that_has_read_shorter_texts_is_told(
    teacher, student_config, longest: int, is_told: bool, caplog
):
    """It has positions for longer ones, which nothing has trained."""
    config = json.loads((teacher / "config.json").read_text())
    config["clozelab"] = {"trained_seq_lengths": [16, SLOTS]}
    (teacher / "config.json").write_text(json.dumps(config))
    (teacher / "checksums.json").unlink()
    objective_of(teacher).token.check(student_config, longest)
    told = "it was trained on texts of up to 32 tokens, and instances have 33"
    assert (told in caplog.text) == is_told


def test_a_teacher_without_what_is_asked(teacher, teacher_config, student_config, tmp_path):
    token = objective_of(save(tmp_path / "bare", teacher_config, kinds=())).token
    with refuses("the folder holds no lm head; pre-train it with a masked-LM"):
        token.check(student_config, SLOTS)
    rotary = {"_target_": "clozelab.models.embeddings.RotaryPositions"}
    token = objective_of(teacher, score_layers=[[1, 1]]).token
    with refuses("attention scores of clozelab.models.embeddings.RotaryPositions"):
        token.check(replace(student_config, positions=rotary), SLOTS)
    larger = Encoder(replace(student_config, vocab_size=70))
    with refuses("it has embeddings for 60 ids, and the student for 70: they"):
        PretrainingModel(larger, [objective_of(teacher)])
    objective_of(teacher, teacher_layers="even", **ALL_LOSSES).token.check(student_config, SLOTS)
