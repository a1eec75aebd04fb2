"""Odd encoders for `finetune`, `pretrain` and `report`: who has pre-trained them, and what shape
they have.

Shapes and sizes are those that transformers tells of the same folder. Learning rates are the task's
(3e-5) by the square of 768 over the width, 1e-3 at most, the scale's, or the end of the family's
range; intervals are scipy's.
"""

from __future__ import annotations

import itertools
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import scipy.stats
import torch
import transformers
from tests.fuzz.lab import EITHER, READ, REFUSED, Cases, check, equal, heard
from tests.fuzz.labels import TRAIN, VALIDATION, jsonl, labelled_words
from tests.fuzz.making import SIZES, VOCABULARY, WORDS, plain_encoder, wordpiece

import clozelab

CASES = Cases("given encoders")

# learning rate, epochs, batch size of sst2; its rate is 3e-5 at a width of 768
TASK = (min(1e-3, 3e-5 * (768 / SIZES["hidden_size"]) ** 2), 3, 32)
OWN = (1e-3, 3, 16)  # of scale=own
QUIET = {"precision": "32-true", "progress_bar": False}


# Runs


def tune(place: Path, encoder: Path, *words: str, name: str = "run", **settings: Any) -> Any:
    """The record of a fine-tuning at scale=own on 32 short texts."""
    data = place / "data"
    data.mkdir(exist_ok=True)
    (data / "train.jsonl").write_text(jsonl(TRAIN))
    (data / "validation.jsonl").write_text(jsonl(VALIDATION))
    return clozelab.finetune(
        *labelled_words("train.jsonl", "validation.jsonl"),
        *words,
        scale="own",
        data_dir=data,
        cache_dir=place / "cache",
        run_dir=place / "runs" / name,
        encoder=encoder,
        trainer=QUIET,
        **({"row": "odd"} | settings),
    )


def has_recipe(record: Any, recipe: Sequence[float]) -> None:
    keys = ("learning_rate", "epochs", "global_batch_size")
    equal(tuple(record.config[key] for key in keys), tuple(recipe), "recipe")


def has_shape(record: Any, folder: Path) -> None:
    """Layers, width and parameters are those of transformers."""
    config = transformers.AutoConfig.from_pretrained(folder)
    encoder = record.facts["encoder"]
    equal(encoder["num_hidden_layers"], config.num_hidden_layers, "layers")
    equal(encoder["hidden_size"], config.hidden_size, "width")
    equal(encoder["num_attention_heads"], config.num_attention_heads, "heads")


def run_of(scale: str, **facts: Any) -> str:
    """The record of a pre-training."""
    return json.dumps({"stage": "pretrain", "scale": scale, "facts": facts})


# Who has pre-trained it


@CASES.add("finetune", READ)
def deeper_than_the_scale(place: Path) -> None:
    """Five layers of 24, at a scale of two layers of 128"""
    sizes = {"num_hidden_layers": 5, "hidden_size": 24, "num_attention_heads": 3}
    encoder = plain_encoder(place / "given", **sizes)
    record = tune(place, encoder)
    has_recipe(record, TASK)
    has_shape(record, encoder)
    model = transformers.AutoModel.from_pretrained(encoder)
    equal(record.facts["encoder"]["parameters"], model.num_parameters(), "parameters")
    check(heard("is a given encoder"), "the log does not say why the recipe is another")
    check(heard("learning rate 0.001"), "the log does not say the learning rate")


@CASES.rows("finetune")
def origin_case(place: Path, folder: str, recipe: Sequence[float], record: str, words: str) -> None:
    """An encoder in `folder` of the case's place, with a record beside it."""
    encoder = place / folder
    encoder.parent.mkdir(parents=True)
    plain_encoder(encoder)
    (encoder.parent / "run.json").write_text(record)
    tuned = tune(place, encoder)
    has_recipe(tuned, recipe)
    has_shape(tuned, encoder)
    check(not words or heard(words), f"nothing says {words!r}")


GIVEN = "is a given encoder"
BESIDE: dict[str, tuple[str, Sequence[float], str, str]] = {
    "The run beside it is of this scale": ("mine/encoder", OWN, run_of("own"), ""),
    "The run beside it is of another scale": (
        "mine/encoder",
        TASK,
        run_of("laptop"),
        "was pre-trained at scale=laptop",
    ),
    "A run of this scale has trained it further from given weights": (
        "mine/encoder",
        TASK,
        run_of("own", encoder={"scale": ""}),
        GIVEN,
    ),
    "A public encoder that lies in the folder of a run of this scale": (
        "mine/public",
        TASK,
        run_of("own"),
        GIVEN,
    ),
    "The run beside it has a record of half a line": (
        "mine/encoder",
        TASK,
        '{"stage": "pre',
        GIVEN,
    ),
}
for _oddity, _beside in BESIDE.items():
    origin_case(_oddity, READ, *_beside)


@CASES.add("finetune", READ)
def link_to_an_encoder(place: Path) -> None:
    """A link to the encoder of a run of this scale"""
    (place / "mine").mkdir()
    encoder = plain_encoder(place / "mine" / "encoder")
    (encoder.parent / "run.json").write_text(run_of("own"))
    (place / "link").symlink_to(encoder)
    has_recipe(tune(place, place / "link"), OWN)


@CASES.add("finetune", READ)
def recipe_is_said(place: Path) -> None:
    """All of the recipe is said beside a given encoder"""
    record = tune(
        place, plain_encoder(place / "given"), learning_rate=2e-3, epochs=1, global_batch_size=16
    )
    has_recipe(record, (2e-3, 1, 16))
    check(not heard("steps are few"), "two steps at a high learning rate are called few")


# Families and heads


@CASES.rows("finetune")
def family_case(
    place: Path, learning_rate: float, class_name: str, sizes: Mapping[str, Any]
) -> None:
    torch.manual_seed(2)
    made = getattr(transformers, class_name)
    config = made.config_class(vocab_size=len(VOCABULARY), **sizes)
    made(config).save_pretrained(place / "given")
    wordpiece().save_pretrained(place / "given")
    record = tune(place, place / "given")
    has_recipe(record, (learning_rate, *TASK[1:]))
    has_shape(record, place / "given")


narrow = SIZES | {"embedding_size": 8}
oddity = "An ELECTRA whose embeddings are narrower than its layers"
family_case(oddity, READ, 3e-4, "ElectraForPreTraining", narrow)
DISTILBERT = {"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 32}
DISTILBERT["max_position_embeddings"] = 64
oddity = "A DistilBERT, whose config.json calls layers and width n_layers and dim"
family_case(oddity, READ, TASK[0], "DistilBertForMaskedLM", DISTILBERT)


@CASES.add("predict", REFUSED, "lm head was never trained")
def no_masked_head(place: Path) -> None:
    """An encoder without a masked-LM head, asked for a mask"""
    folder = plain_encoder(place / "given", head="Model")
    has_recipe(tune(place, folder), TASK)
    clozelab.load(folder).fill_mask(["the [MASK] sat on the mat ."])


@CASES.add("finetune", READ)
def no_model_type(place: Path) -> None:
    """config.json without model_type, as the first releases of BERT have it"""
    folder = plain_encoder(place / "given")
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"]
    del config["architectures"]
    (folder / "config.json").write_text(json.dumps(config))
    record = tune(place, folder)
    has_recipe(record, TASK)
    equal(record.facts["encoder"]["hidden_size"], SIZES["hidden_size"], "width")


@CASES.add("pretrain", READ)
def further_without_a_head(place: Path) -> None:
    """Trained further from an encoder of three layers without a masked-LM head"""
    folder = plain_encoder(place / "given", head="Model", num_hidden_layers=3)
    sentences = [f"the {word} sat on the mat ." for word in WORDS[:15]]
    documents = ["\n".join(sentences[first:] + sentences[:first]) for first in range(15)]
    (place / "text.txt").write_text("\n\n".join(documents))
    phase = "{seq_length: 16, steps: 2, global_batch_size: 8, micro_batch_size: 8}"
    record = clozelab.pretrain(
        "objective=mlm",
        "objective/input=full_sentences",
        f"corpus.sources.0.path={place / 'text.txt'}",
        f"tokenizer.vocab_file={folder / 'tokenizer.json'}",
        f"scale.pretrain.phases=[{phase}]",
        scale="own",
        encoder=folder,
        data_dir=place,
        cache_dir=place / "cache",
        run_dir=place / "runs" / "further" / "seed-1",
        validation={"seq_length": 16, "instances": 8},
        trainer=QUIET,
    )
    has_shape(record, folder)
    equal(record.encoder_shape["num_hidden_layers"], 3, "layers on the page")
    equal(record.config["optimizer"]["learning_rate"], 1e-4, "learning rate")
    equal(record.config["optimizer"]["matrix_learning_rate"], None, "learning rate of Muon")
    check(heard("had no trained lm head"), "nothing says that the head is new")
    check(not heard("learnt nothing"), "the encoder is said to have learnt nothing")


# Tables of given encoders


def tables(place: Path) -> Any:
    """The page of all runs in a place."""
    drawing = logging.getLogger("matplotlib").level
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    report = clozelab.make_report(place / "runs")
    logging.getLogger("matplotlib").setLevel(drawing)
    return report.page


@CASES.add("report", READ)
def two_learning_rates_by_hand(place: Path) -> None:
    """Two learning rates of one row, in folders of their own names"""
    folder = plain_encoder(place / "given")
    for rate in (1e-3, 2e-3):
        for seed in (1, 2):
            tune(place, folder, name=f"{rate}-{seed}", learning_rate=rate, seed=seed)
    (group,) = tables(place).table.groups
    labels = [row.label for row in group.rows]
    equal(labels, ["learning_rate=0.001", "learning_rate=0.002"], "rows")


@CASES.add("report", READ)
def two_given_encoders(place: Path) -> None:
    """Two given encoders, three fine-tuning seeds each, without an experiment"""
    scores: dict[str, list[float]] = {}
    folders = {
        "a": plain_encoder(place / "a"),
        "b": plain_encoder(place / "b", num_hidden_layers=2),
    }
    for row, folder in folders.items():
        for seed in (1, 2, 3):
            record = tune(
                place, folder, name=f"{row}-{seed}", row=row, seed=seed, learning_rate=5e-3
            )
            scores.setdefault(row, []).append(record.score)
    page = tables(place)
    (difference,) = page.judged.differences
    expected = scipy.stats.ttest_rel(scores["b"], scores["a"])
    shown = f"p = {expected.pvalue:.3f}"
    equal(difference.p, shown if expected.pvalue == expected.pvalue else "", "p")
    check("b is one encoder" in difference.note, "the page does not say that b is one encoder")
    check("1 layer of 16" in page.overview.setup, "the page lacks the shape of a")
    check("2 layers of 16" in page.overview.setup, "the page lacks the shape of b")


@CASES.add("report", EITHER)
def two_encoders_by_one_name(place: Path) -> None:
    """Two encoders under the name of one row, with different seeds"""
    for seed in (1, 2):
        folder = plain_encoder(place / str(seed), num_hidden_layers=seed)
        tune(place, folder, name=f"seed-{seed}", seed=seed)
    tune(place, plain_encoder(place / "c"), name="other", row="other", learning_rate=1e-3)
    lines = itertools.chain.from_iterable(tables(place).problems.values())
    check(any("different encoders" in line for line in lines), "the page does not say so")


@CASES.add("finetune", READ)
def moved_encoder(place: Path) -> None:
    """An encoder of this scale that was copied out of its run"""
    (place / "mine").mkdir()
    encoder = plain_encoder(place / "mine" / "encoder")
    (encoder.parent / "run.json").write_text(run_of("own"))
    shutil.copytree(encoder, place / "copy")
    has_recipe(tune(place, place / "copy"), TASK)
    check(heard("is a given encoder"), "the log does not say that the recipe is another")
