"""Classes as words at a mask: transformers' logits, templates, samples, a trained prompt."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.composing import composed, run_stage
from tests.screens import refuses

from clozelab.assembly import evaluation
from clozelab.runs.find import find
from clozelab.tasks.batches import make_batch
from clozelab.tasks.prompts import PromptTarget, PromptUnit, Template
from clozelab.tasks.sequences import balanced_subset

TEXTS = {"1": ["the cat sat", "a red cat ran"], "0": ["the dog sat", "a big dog ran"]}
TEMPLATE = "{text}, it is [MASK]."
SINGLE = {"template": TEMPLATE, "words": {"0": "blue", "1": "red"}}
PAIR = {
    "text_columns": ["text", "other"],
    "template": "was {second}? [MASK], {first}!",
    "words": {"0": "blue", "1": "red"},
}


def write(folder: Path, number: int = 12) -> None:
    """Texts with a cat are of class 1, those with a dog are not."""
    for name, count in (("train", number), ("dev", 8)):
        rows = []
        for i in range(count):
            label = "10"[i % 2]
            row = {"text": TEXTS[label][i // 2 % 2], "other": "a hill", "label": label}
            rows.append(json.dumps(row))
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")


def words_of(prefix: str, settings: dict[str, Any]) -> list[str]:
    data = {"text_columns": ["text"], "label_column": "label", "test_files": {}}
    data |= {"train_file": "train.jsonl", "validation_file": "dev.jsonl", "max_seq_length": 24}
    given = []
    for key, value in (data | settings).items():
        if isinstance(value, dict):
            given += [f"{prefix}.data.{key}.{name}={word}" for name, word in value.items()]
        else:
            given.append(f"{prefix}.data.{key}={json.dumps(value)}")
    return given


def zero_shot(folder: Path, settings: dict[str, Any], *words: str) -> evaluation.EvaluationJob:
    paths = {"data_dir": folder, "cache_dir": folder / "cache", "encoder": folder / "encoder"}
    given = [f"{key}={value}" for key, value in paths.items()]
    given += ["measure=zero_shot", "trainer.precision=32-true", *words]
    config = composed("evaluate", [*given, *words_of("measure.task", settings)]).config
    return evaluation.prepare(config)


@pytest.mark.parametrize("settings", [SINGLE, PAIR], ids=["text", "pair"])
def test_logits_are_transformers_at_the_mask(
    tmp_path: Path, save_encoder: Callable[..., Path], settings: dict[str, Any]
) -> None:
    transformers = pytest.importorskip("transformers")
    save_encoder(tmp_path / "encoder", initializer_range=0.3)
    write(tmp_path)
    job = zero_shot(tmp_path, settings)
    assert not isinstance(job.data, evaluation.MeasureDataModule)
    batch = make_batch(job.data.validation_sequences, np.arange(8), {})
    with torch.no_grad():
        found = job.module.eval().logits(batch)

    model = transformers.BertForMaskedLM.from_pretrained(tmp_path / "encoder").eval()
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "encoder")
    word_ids = theirs.convert_tokens_to_ids(["blue", "red"])
    rows = [json.loads(line) for line in (tmp_path / "dev.jsonl").read_text().splitlines()]
    for row, logits in zip(rows, found, strict=True):
        text = settings["template"].format(text=row["text"], first=row["text"], second=row["other"])
        inputs = theirs(text, return_tensors="pt")
        with torch.no_grad():
            expected = model(**inputs).logits[inputs["input_ids"] == theirs.mask_token_id][0]
        torch.testing.assert_close(logits, expected[word_ids], rtol=0, atol=1e-5)
        # negative control: at another place, and of another word, it is something else
        assert (logits - model(**inputs).logits[0, 1, word_ids]).abs().max() > 1e-2
    assert len({tuple(row) for row in found.round(decimals=4).tolist()}) > 1


def test_the_score_of_a_run(
    tmp_path: Path, save_encoder: Callable[..., Path], evaluate: Callable[..., Path]
) -> None:
    save_encoder(tmp_path / "encoder", initializer_range=0.3)
    write(tmp_path)
    folder = evaluate("measure=zero_shot", *words_of("measure.task", SINGLE))
    lines = (folder / "predictions.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    (record,) = find(folder).evaluate
    right = [row["prediction"] == row["label"] for row in rows]
    assert record.values["validation/accuracy"] == pytest.approx(100 * np.mean(right))
    assert record.scores["validation/accuracy"].majority == 50.0


def prompts(tokenizer: Any, length: int, texts: list[tuple[str, ...]], **settings: Any) -> Any:
    from clozelab.tasks.tables import TextExamples

    columns = ["text", "other"][: len(texts[0])]
    unit = PromptUnit(text_columns=columns, label_column="label", **settings)
    examples = TextExamples(texts=list(texts))
    arrays, counts = unit.fitted(length, "toy").encode(examples, tokenizer)
    shown = []
    for ids in np.split(arrays["input_ids"], arrays["offsets"][1:-1]):
        shown.append(" ".join(tokenizer.vocabulary[number] for number in ids))
    return shown, arrays["mask_positions"].tolist(), counts


def test_texts_are_cut_and_the_template_is_not(tokenizer: Any) -> None:
    texts = [("the cat sat",), ("the cat sat the cat sat the cat sat",)]
    shown, places, counts = prompts(tokenizer, 12, texts, template="on {text} on [MASK].")
    assert shown == [
        "[CLS] on the cat sat on [MASK] . [SEP]",
        "[CLS] on the cat sat the cat sat on [MASK] . [SEP]",
    ]
    for prompt, place in zip(shown, places, strict=True):
        assert prompt.split()[place] == "[MASK]"
    assert counts["truncated_sequences"] == 1
    # of a pair the longer text is cut, though the template has it first
    shown, _, _ = prompts(
        tokenizer, 8, [("cat", "dog dog dog dog dog dog")], template="{second} [MASK] {first}"
    )
    assert shown == ["[CLS] dog dog dog dog [MASK] cat [SEP]"]
    with pytest.raises(ValueError, match="a text would have no place: shorten it"):
        prompts(tokenizer, 6, texts, template="the cat {text} on [MASK].")


def test_a_blank_belongs_to_what_stands_behind_it() -> None:
    """Byte-level BPE has it in the token: the word of "It was [MASK]" is Ġgreat."""
    template = Template("{text} It was [MASK].")
    assert template.parts == ["{text}", " It was", "[MASK]", "."]
    assert template.spelt("[MASK]", "great") == " great" and template.spelt("{text}", "a ") == "a"
    assert Template("({text})[MASK]").spelt("[MASK]", "great") == "great"


@pytest.mark.parametrize(
    "template", ["{text} is good", "{text} [MASK] [MASK]", "[MASK]", "{first} [MASK]", "{x} [MASK]"]
)
def test_other_templates_are_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"write \[MASK\] and {text} in it, each once"):
        PromptUnit(template=template, text_columns=["text"], label_column="label")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"good": "splendid", "bad": "blue"}, "and a mask is one token: take another word"),
        ({"good": "red", "bad": "red"}, "are one token of this encoder's vocabulary"),
        ({"good": "red"}, "give each class one word"),
        ({"good": True, "bad": "blue"}, "is True, no text: write it in quotation marks"),
    ],
)
def test_words_that_a_mask_cannot_be(tokenizer: Any, words: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        PromptTarget(template=TEMPLATE, words=words, labels=["good", "bad"]).fitted(tokenizer)


def test_an_encoder_that_reads_from_left_to_right(
    tmp_path: Path, save_encoder: Callable[..., Path]
) -> None:
    """It answers at the mask from what stands before it, and never reads the mask itself."""
    save_encoder(tmp_path / "encoder", is_causal=True, initializer_range=0.3)
    write(tmp_path)
    with refuses("{first} stands behind the mask: write it before"):
        zero_shot(tmp_path, PAIR)
    job = zero_shot(tmp_path, SINGLE)
    batch = make_batch(job.data.validation_sequences, np.arange(8), {})
    other = {**batch, "input_ids": batch["input_ids"].clone()}
    other["input_ids"][batch["prediction_positions"]] = 5
    with torch.no_grad():
        torch.testing.assert_close(job.module.logits(batch), job.module.logits(other))


def test_a_few_examples_of_each_class() -> None:
    classes = np.array([0] * 50 + [1] * 9 + [2] * 3)
    draws = [balanced_subset(62, 12, seed, classes) for seed in range(3)]
    for chosen in draws:
        assert Counter(classes[chosen].tolist()).most_common() in (
            [(0, 5), (1, 4), (2, 3)],
            [(1, 5), (0, 4), (2, 3)],
        )
    assert draws[0] != draws[1] and draws[0] == balanced_subset(62, 12, 0, classes)
    # a smaller sample is a part of a larger one
    assert set(balanced_subset(62, 6, 0, classes)) < set(draws[0])
    assert len(balanced_subset(62, None, 0, None)) == 62
    assert len(balanced_subset(62, 5, 0, None)) == 5


def test_a_prompt_learns_from_a_few_examples(
    tmp_path: Path, save_encoder: Callable[..., Path], evaluate: Callable[..., Path]
) -> None:
    """Once validated, kept as a masked language model, and scored by the measure as by its run."""
    from clozelab.stages.finetune import main

    save_encoder(tmp_path / "encoder")
    write(tmp_path, 40)
    settings = {"data_dir": tmp_path, "cache_dir": tmp_path / "cache", "row": "mine"}
    settings |= {"encoder": tmp_path / "encoder", "run_dir": tmp_path / "trained"}
    settings |= {"max_train_examples": 8, "sample_by_seed": "true", "evaluations_per_epoch": 0}
    settings |= {"learning_rate": 5e-3, "epochs": 12, "global_batch_size": 4, "seed": 3}
    settings |= {"trainer.precision": "32-true", "trainer.progress_bar": "false"}
    given = [f"{key}={value}" for key, value in settings.items()]
    given += ["allow_validation_in_training=true", "task=sst2_prompt"]
    run_stage(main, composed("finetune", [*given, *words_of("task", SINGLE)]))
    scores = json.loads((tmp_path / "trained/scores.json").read_text())
    assert scores["scores"]["validation/accuracy"] == 1.0 and len(scores["evaluations"]) == 1
    (record,) = find(tmp_path / "trained").finetune
    assert record.facts["data"]["train_examples"] == 8
    config = json.loads((tmp_path / "trained/model/config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"] and "id2label" not in config

    paths = ["measure=zero_shot", f"encoder={tmp_path}/trained/model"]
    folder = evaluate(*paths, *words_of("measure.task", SINGLE))
    found, trained = [
        (run / "predictions.jsonl").read_text() for run in (folder, tmp_path / "trained")
    ]
    assert found == trained
    # a trained prompt is not asked by another one
    with refuses("fine-tuned to read texts otherwise"):
        zero_shot(
            tmp_path, SINGLE | {"template": "{text} [MASK]"}, f"encoder={tmp_path}/trained/model"
        )
