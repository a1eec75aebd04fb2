"""What this room refuses, and the sentence that says so: a row a case."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from tests.calling import call_with_fixtures
from tests.modules import (
    test_embeddings,
    test_encoder_folder,
    test_feature_based,
    test_finetuning,
    test_model,
    test_predictor,
    test_pretraining,
    test_token_classification,
)
from tests.parts import PAIRS, feature_tagging, tagging

import clozelab
from clozelab.models.locate import find_model
from clozelab.modules.model import open_tokenizer, read_model, renamed_labels
from clozelab.tasks.texts import TextVectors
from clozelab.training.guards import DivergedError

make_embeddings = test_embeddings.make
split = test_feature_based.split
module = test_finetuning.module
write = test_model.write
model = test_predictor.model
lm = test_predictor.lm
knows_soon = test_pretraining.knows_soon
split_token_classification = test_token_classification.split


def loss_that_is_no_number_ends_the_run(module: test_finetuning.Constant, bad: float) -> None:
    module.value = bad
    module.training_step(test_finetuning.batch(8, 8), 0)
    module.on_train_batch_end(None, test_finetuning.batch(8, 8), 0)


def a_model_of_the_hub_that_was_not_asked_for() -> None:
    find_model("me/mine@" + "0" * 40)


def a_model_of_the_hub_without_a_commit() -> None:
    find_model("me/mine@main", from_hub=True)


def a_model_of_the_hub_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(name: str, revision: str, allow_patterns: list[str]) -> None:
        raise OSError("no network\nat all")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    find_model("me/mine@" + "1" * 40, from_hub=True)


def a_long_text_is_read_in_windows(model: Any) -> None:
    ours, _ = model("classification", labels=("no", "yes"))
    # 120 tokens; the model reads 62 beside its special tokens
    text = " ".join(["cat", "dog", "red", "hill"] * 30)
    ours.classify(["cat", text], errors="raise")


def an_odd_text_takes_no_other_along(model: Any) -> None:
    ours, _ = model("classification", labels=("no", "yes"))
    found = ours.classify(test_predictor.ODD)
    _ = found[1].label


def an_empty_question(model: Any) -> None:
    ours, _ = model("spans", labels=())
    ours.answer_all([("who", "ann ran"), ("", "ann ran")], errors="raise")


def many_questions_to_answer(model: Any) -> None:
    ours, _ = model("spans", labels=())
    ours.answer(["who"], "ann ran")


def one_text_for_a_model_of_pairs(model: Any) -> None:
    ours, _ = model(
        "classification", labels=("no", "yes"), extra_config={"clozelab": {"texts_per_example": 2}}
    )
    ours.classify(["cat", "dog"])


def a_pair_for_a_model_of_texts(model: Any) -> None:
    single, _ = model(
        "classification", labels=("no", "yes"), extra_config={"clozelab": {"texts_per_example": 1}}
    )
    single.classify(("cat", "dog"))


def a_head_on_a_pooler_without_weights_is_not_used(model: Any) -> None:
    ours, _folder = model("classification", labels=("no", "yes"), with_pooler=False)
    ours.classify("cat")


def a_head_that_is_no_number(model: Any) -> None:
    ours, _ = model("classification", labels=("no", "yes"))
    ours.heads["classification"].bias.data[0] = torch.nan
    ours.classify(test_predictor.TEXTS)


def an_encoder_that_is_no_number(model: Any, act: str) -> None:
    ours, _ = model("classification", labels=("no", "yes"))
    ours.heads["classification"].bias.data[0] = torch.nan
    ours.encoder.embeddings.word_embeddings.weight.data[:] = torch.nan
    getattr(ours, act)(test_predictor.TEXTS)


def a_question_that_is_cut_is_said(model: Any) -> None:
    ours, _ = model("spans", labels=())
    ours.answer("who", "the cat sat", top_k=0)


def a_run_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text("{}")
    clozelab.load(tmp_path / "run")


def a_name_that_is_no_folder(model: Any, tmp_path: Path) -> None:
    _, folder = model("lm")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text("{}")
    (tmp_path / "run/model").symlink_to(folder)
    clozelab.load("nobody/nothing")


def loss_that_is_not_a_number_ends_the_run_by_name(tmp_path: Path) -> None:
    class Poison(Callback):
        def on_train_batch_start(self, trainer: Trainer, module: Any, *_: Any) -> None:
            if trainer.global_step == 2:
                with torch.no_grad():
                    module.model.encoder.embed.weight.fill_(float("nan"))

    test_pretraining.ToyRun(tmp_path).fit(Poison())


def moments_that_are_no_numbers_are_not_saved(tmp_path: Path) -> None:
    class PoisonMoments(Callback):
        def on_train_batch_end(self, trainer: Trainer, module: Any, *_: Any) -> None:
            if trainer.global_step == 4:
                next(iter(trainer.optimizers[0].state.values()))["exp_avg_sq"][0] = float("inf")

    test_pretraining.ToyRun(tmp_path, interval=2).fit(PoisonMoments())


def a_spike_stops_the_run_and_is_not_saved(tmp_path: Path, knows_soon: None) -> None:
    run = test_pretraining.ToyRun(tmp_path / "stop", spike="stop", interval=5)
    run.fit(test_pretraining.Spike(6))


REFUSALS: list[tuple[str, Callable[..., Any], type[Exception], str]] = [
    (
        "what would be another number is refused: labels run from 0 to",
        lambda make_embeddings: make_embeddings(False, number_range=[0, 1]),
        ValueError,
        r"labels run from 0 to 5, .* say task.module.number_range=\[0,5\]",
    ),
    (
        "what would be another number is refused: head=bilstm: sentence embeddings are the",
        lambda make_embeddings: make_embeddings(True, head="bilstm"),
        ValueError,
        "head=bilstm: sentence embeddings are the encoder's own",
    ),
    (
        "what would be another number is refused: pooling=max is unknown",
        lambda: TextVectors(pooling="max", **PAIRS),
        ValueError,
        "pooling='max' is unknown; known: auto, mean, cls",
    ),
    (
        "vocabulary of another size: an embedding short",
        lambda tmp_path: open_tokenizer(
            test_encoder_folder.write(tmp_path, test_encoder_folder.TOKENIZER.vocab_size - 1)
        ),
        ValueError,
        r"embeddings for 30 ids .* hold 31: they do not belong together",
    ),
    (
        "vocabulary of another size: more than padding",
        lambda tmp_path: open_tokenizer(
            test_encoder_folder.write(tmp_path, test_encoder_folder.TOKENIZER.vocab_size + 128)
        ),
        ValueError,
        r"embeddings for 159 ids .* hold 31: they do not belong together",
    ),
    (
        "vocabulary of another size: another model",
        lambda tmp_path: open_tokenizer(test_encoder_folder.write(tmp_path, 30522)),
        ValueError,
        r"embeddings for 30522 ids .* hold 31: they do not belong together",
    ),
    (
        "other vocabulary of the same size",
        lambda tmp_path: open_tokenizer(
            test_encoder_folder.write(tmp_path, tokenizer_fingerprint="0" * 64)
        ),
        ValueError,
        "not those the encoder was trained with",
    ),
    (
        "a linear head is refused",
        lambda split, tiny_module: tiny_module(
            feature_tagging,
            names=["A", "B", "C"],
            features="last",
            validation=split,
            metric="validation/accuracy",
        ),
        ValueError,
        "set head=bilstm",
    ),
    (
        "loss that is no number ends the run: step 1: the loss is",
        lambda module: loss_that_is_no_number_ends_the_run(module, math.nan),
        DivergedError,
        r"step 1: the loss is (nan|inf) at learning rate 0\.1",
    ),
    (
        "loss that is no number ends the run: step 1: the loss is 2",
        lambda module: loss_that_is_no_number_ends_the_run(module, math.inf),
        DivergedError,
        r"step 1: the loss is (nan|inf) at learning rate 0\.1",
    ),
    (
        "labels get other names: label_names: m has no label",
        lambda: renamed_labels(["NO", "YES"], {"NOO": "0"}, "m"),
        ValueError,
        "label_names: m has no label 'NOO'; did you mean 'NO'",
    ),
    (
        "labels get other names: two labels of m would",
        lambda: renamed_labels(["NO", "YES"], {"NO": "YES"}, "m"),
        ValueError,
        "two labels of m would be called 'YES'",
    ),
    (
        "a folder: an unknown architecture",
        lambda write: read_model(write(config={"architectures": ["BertForFrobnication"]})[0]),
        ValueError,
        "architecture is BertForFrobnication; supported: BertForMas",
    ),
    (
        "a folder: names no architecture",
        lambda write: read_model(write("classification", config={"architectures": None})[0]),
        ValueError,
        "names no architecture",
    ),
    (
        "a folder: names 1 labels id2label",
        lambda write: read_model(write("classification", config={"id2label": {"0": "a"}})[0]),
        ValueError,
        r"names 1 labels \(id2label\), but the head has 3 outputs",
    ),
    (
        "a folder: no name for output 1",
        lambda write: read_model(
            write("tags", config={"id2label": {"0": "a", "2": "b", "3": "c"}})[0]
        ),
        ValueError,
        r"no name for output 1 \(it names 0, 2, 3\)",
    ),
    (
        "a folder: names 4 labels",
        lambda write: read_model(
            write("tags", config={"id2label": {"0": "a", "1": "b", "2": "c", "3": "d"}})[0]
        ),
        ValueError,
        "names 4 labels",
    ),
    (
        "a folder: id2label calls two classes a",
        lambda write: read_model(
            write("classification", config={"id2label": {"0": "a", "1": "b", "2": "a"}})[0]
        ),
        ValueError,
        "id2label calls two classes 'a'",
    ),
    (
        "a folder: contradicts itself: no is output",
        lambda write: read_model(
            write(
                "classification",
                config={
                    "id2label": {"0": "no", "1": "yes", "2": "so"},
                    "label2id": {"no": 1, "yes": 0, "so": 2},
                },
            )[0]
        ),
        ValueError,
        "contradicts itself: 'no' is output 0 in id2label and 1 in label2id",
    ),
    (
        "a folder: a regression of 3 numbers",
        lambda write: read_model(write("classification", config={"problem_type": "regression"})[0]),
        ValueError,
        "a regression of 3 numbers; one is supported",
    ),
    (
        "a folder: config .json",
        lambda write: read_model(write(config={"hidden_size": "wide"})[0]),
        ValueError,
        r"config\.json: ",
    ),
    (
        "a model of the hub that was not asked for",
        a_model_of_the_hub_that_was_not_asked_for,
        ValueError,
        "needs hub=true and NAME@COMMIT",
    ),
    (
        "a model of the hub without a commit",
        a_model_of_the_hub_without_a_commit,
        ValueError,
        "me/mine@main: say which commit",
    ),
    (
        "a model of the hub without a network",
        a_model_of_the_hub_without_a_network,
        ValueError,
        r"is not to be had from the hub: OSError: no network$",
    ),
    (
        "a long text is read in windows",
        a_long_text_is_read_in_windows,
        ValueError,
        "text 2 has 122 tokens and this model reads 64 at once: shorten it",
    ),
    (
        "an act: text 1 has no mask",
        lambda lm: lm.fill_mask("the cat"),
        ValueError,
        r"text 1 has no \[MASK\]",
    ),
    (
        "an act: text 1 has 82 tokens",
        lambda lm: lm.fill_mask("[MASK] cat " * 40),
        ValueError,
        "text 1 has 82 tokens and this model reads 64",
    ),
    (
        "an act: text 2 is empty",
        lambda lm: lm.score(["cat", " "], errors="raise"),
        ValueError,
        "text 2 is empty",
    ),
    (
        "an act: text 1 is empty",
        lambda lm: lm.score(""),
        ValueError,
        "text 1 is empty",
    ),
    (
        "an act: text 2 has no token",
        lambda lm: lm.embed(["cat", "жук жук"], errors="raise"),
        ValueError,
        r"text 2 has no token but \[UNK\]",
    ),
    (
        "an act: errors=ignore: choose one of mark",
        lambda lm: lm.embed(["cat"], errors="ignore"),
        ValueError,
        "errors=ignore: choose one of mark, raise",
    ),
    (
        "an act: text 2 has no mask",
        lambda lm: lm.fill_mask(["a [MASK]", "cat"], errors="raise"),
        ValueError,
        r"text 2 has no \[MASK\]",
    ),
    (
        "an act: the list is empty",
        lambda lm: lm.embed([]),
        ValueError,
        "the list is empty",
    ),
    (
        "an act: some texts are pairs and",
        lambda lm: lm.embed(["cat", ("cat", "dog")]),
        ValueError,
        "some texts are pairs and some are not",
    ),
    (
        "an act: choose one of cls, mean",
        lambda lm: lm.embed("cat", pooling="max"),
        ValueError,
        "choose one of cls, mean, last4",
    ),
    (
        "an act: this encoder has layers 0",
        lambda lm: lm.embed("cat", layer=9),
        ValueError,
        "this encoder has layers 0 to 4",
    ),
    (
        "an act: stride=0: give 1 to 62",
        lambda lm: lm.embed("cat", stride=0),
        ValueError,
        "stride=0: give 1 to 62 tokens",
    ),
    (
        "an act: its classification head was never",
        lambda lm: lm.classify("cat"),
        ValueError,
        r"its classification head was never trained .*: clozelab finetune encoder=\S+m ",
    ),
    (
        "an act: cannot answer a question: task=squad_v1",
        lambda lm: lm.answer("who", "cat"),
        ValueError,
        r"cannot answer a question: .* task=squad_v1",
    ),
    (
        "an act: its tags head was never",
        lambda lm: lm.tag("cat"),
        ValueError,
        r"its tags head was never trained \(trained heads: lm\)",
    ),
    (
        "an act: objective=mlm_nsp",
        lambda lm: lm.next_sentence(("a", "b")),
        ValueError,
        "objective=mlm_nsp",
    ),
    (
        "an act: top_k=-1: give at least 1",
        lambda lm: lm.fill_mask("a [MASK]", top_k=-1),
        ValueError,
        "top_k=-1: give at least 1",
    ),
    (
        "an act: takes single texts",
        lambda lm: lm.fill_mask(("[MASK]", "cat")),
        ValueError,
        "takes single texts",
    ),
    (
        "an act: takes single texts 2",
        lambda lm: lm.score(("the cat", "sat")),
        ValueError,
        "takes single texts",
    ),
    (
        "an act: text 1 is a sequence",
        lambda lm: lm.embed(("the", "cat", "sat")),
        ValueError,
        "text 1 is a sequence of 3: a pair",
    ),
    (
        "an act: text 2 is none: a",
        lambda lm: lm.score(["cat", None]),
        ValueError,
        "text 2 is None: a string was expected",
    ),
    (
        "an act: device=gpu: choose auto, cpu or",
        lambda lm: clozelab.load(lm.model.folder, device="gpu"),
        ValueError,
        "device=gpu: choose auto, cpu or cuda",
    ),
    (
        "an act: precision=16-mixed: choose one of auto",
        lambda lm: clozelab.load(lm.model.folder, precision="16-mixed"),
        ValueError,
        "precision=16-mixed: choose one of auto",
    ),
    (
        "an odd text takes no other along",
        an_odd_text_takes_no_other_along,
        AttributeError,
        "there is no label: this text was not answered, because it is empty",
    ),
    (
        "an empty question",
        an_empty_question,
        ValueError,
        "question 2 is empty",
    ),
    (
        "many questions to answer",
        many_questions_to_answer,
        ValueError,
        "answer_all takes many questions",
    ),
    (
        "one text for a model of pairs",
        one_text_for_a_model_of_pairs,
        ValueError,
        "was trained on pairs, and text 1 is one text: give its second text",
    ),
    (
        "a pair for a model of texts",
        a_pair_for_a_model_of_texts,
        ValueError,
        "was trained on single texts, and text 1 is a pair",
    ),
    (
        "a head on a pooler without weights is not used",
        a_head_on_a_pooler_without_weights_is_not_used,
        ValueError,
        "its classification head was never trained",
    ),
    (
        "a head that is no number",
        a_head_that_is_no_number,
        ValueError,
        "gives no finite numbers",
    ),
    (
        "weights that are no numbers give no answer: gives no finite numbers 2",
        lambda model: an_encoder_that_is_no_number(model, "hidden_states"),
        ValueError,
        "gives no finite numbers",
    ),
    (
        "weights that are no numbers give no answer: gives no finite numbers 3",
        lambda model: an_encoder_that_is_no_number(model, "attention"),
        ValueError,
        "gives no finite numbers",
    ),
    (
        "a question that is cut is said",
        a_question_that_is_cut_is_said,
        ValueError,
        "top_k=0",
    ),
    (
        "a left to right encoder does not fill from the right",
        lambda model: model("lm", is_causal=True)[0].fill_mask("the [MASK] sat"),
        ValueError,
        "reads from left to right: it fills one mask, at a text's end",
    ),
    (
        "a run without a model",
        a_run_without_a_model,
        ValueError,
        r"no model here, expected config.json in it, or in its model/",
    ),
    (
        "a name that is no folder",
        a_name_that_is_no_folder,
        ValueError,
        r"nobody/nothing: no model here.* hub needs hub=true and NAME@COMMIT",
    ),
    (
        "loss that is not a number ends the run by name",
        loss_that_is_not_a_number_ends_the_run_by_name,
        DivergedError,
        r"step 3: the loss is nan .* learning rate 0\.00875",
    ),
    (
        "moments that are no numbers are not saved",
        moments_that_are_no_numbers_are_not_saved,
        DivergedError,
        "step 4: weights or optimizer state",
    ),
    (
        "a spike stops the run and is not saved",
        a_spike_stops_the_run_and_is_not_saved,
        DivergedError,
        r"step 6: gradient norm .*spike=skip leaves such updates out",
    ),
    (
        "collapse and parts of speech",
        lambda split_token_classification, tiny_module: tiny_module(
            tagging,
            names=test_token_classification.NAMES,
            validation=split_token_classification,
            metric="validation/loss",
        ),
        ValueError,
        "is not a score of this task; it has validation/f1",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "sentence"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_refusal(
    request: pytest.FixtureRequest,
    call: Callable[..., Any],
    error: type[Exception],
    sentence: str,
) -> None:
    with pytest.raises(error, match=sentence):
        call_with_fixtures(call, request)
