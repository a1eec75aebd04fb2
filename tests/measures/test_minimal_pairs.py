"""Minimal pairs: the packed scores equal a plain loop over transformers' models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer

from clozelab.corpus.tokenizers import WordPieceTokenizer
from clozelab.datamodules.labelled import TaskInputs
from clozelab.datamodules.scoring import MinimalPairs
from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder, load_head
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for
from clozelab.modules.measures import TokenScoring
from clozelab.tasks.sequences import subset

LAYOUT = {
    "columns": {"good": "sentence_good", "bad": "sentence_bad", "group": "UID", "field": "field"}
}
PAIRS = [
    ("the cat sat on the mat .", "the cat sat on the matx .", "spelling", "morphology"),
    ("who is the dog ?", "is who the dog ?", "order", "syntax"),
    ("the red dog ran", "ran dog red the", "order", "syntax"),
    ("a cat", "a cats", "spelling", "morphology"),
]


def write_pairs(path: Path, pairs: list[tuple[str, ...]] = PAIRS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = ("sentence_good", "sentence_bad", "UID", "field")
    path.write_text(
        "".join(json.dumps(dict(zip(names, pair, strict=True))) + "\n" for pair in pairs)
    )


def pairs_of(
    tokenizer: Any,
    folder: Path,
    *,
    is_causal: bool,
    predicts_next: bool = False,
    **changes: Any,
) -> MinimalPairs:
    inputs = TaskInputs(
        "pairs", folder, folder / "cache", tokenizer, 64, predicts_next=predicts_next
    )
    how = {
        "files": "*.jsonl",
        **LAYOUT,
        "masking": "word",
        "max_pairs": None,
        "how_to_get": "make it",
    }
    sizes = {"evaluation_tokens": 512, "max_seq_length": 64}
    data = MinimalPairs(inputs=inputs, is_causal=is_causal, **(how | sizes | changes))
    data.setup()
    return data


def measured(
    encoder: Encoder, head: Any, data: MinimalPairs, precision: str = "32-true", **settings: Any
) -> TokenScoring:
    module = TokenScoring(
        encoder=encoder, heads={"lm": head}, data=data, metric="validation/accuracy", **settings
    )
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    trainer = Trainer(accelerator="cpu", precision=precision, **quiet)
    trainer.validate(module, verbose=False)
    return module


def naive_scores(
    model: Any, hf_tokenizer: Any, text: str, masking: str, temperature: float = 1.0
) -> float:
    """As people write it: a forward of transformers for each token, or one for a causal model."""
    encoding = hf_tokenizer(text, return_tensors="pt")
    ids, words = encoding["input_ids"], encoding.word_ids()
    with torch.no_grad():
        if model.config.is_decoder:
            logits = (model(**encoding).logits / temperature).log_softmax(-1)[0]
            return sum(float(logits[i - 1, ids[0, i]]) for i in range(1, ids.shape[1] - 1))
        total = 0.0
        for i in range(1, ids.shape[1] - 1):
            later = [j for j in range(i, ids.shape[1] - 1) if words[j] == words[i]]
            shown = ids.clone()
            shown[0, later if masking == "word" else [i]] = hf_tokenizer.mask_token_id
            logits = model(**(dict(encoding) | {"input_ids": shown})).logits
            total += float((logits[0, i] / temperature).log_softmax(-1)[ids[0, i]])
    return total


@pytest.fixture
def saved(tmp_path: Path, save_encoder: Callable[..., Path]) -> Callable[..., Path]:
    return lambda is_causal, *words, **changes: save_encoder(
        tmp_path / "encoder", is_causal, *words, **changes
    )


def loaded(folder: Path) -> tuple[Encoder, Any]:
    encoder = load_encoder(folder)
    head = family_for(encoder.config).head("lm", encoder)
    load_head(folder, "lm", head)
    return encoder, head


def theirs(folder: Path, is_causal: bool) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    kind = transformers.AutoModelForCausalLM if is_causal else transformers.AutoModelForMaskedLM
    return kind.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize(
    ("is_causal", "masking"), [(False, "token"), (False, "word"), (True, "word")]
)
def test_scores_are_those_of_a_plain_loop(
    saved: Any,
    tokenizer: WordPieceTokenizer,
    tmp_path: Path,
    is_causal: bool,
    masking: str,
    temperature: float,
) -> None:
    write_pairs(tmp_path / "pairs.jsonl")
    data = pairs_of(tokenizer, tmp_path, is_causal=is_causal, masking=masking)
    folder = saved(is_causal)
    found = measured(*loaded(folder), data, temperature=temperature).require_best().predictions
    model, hf_tokenizer = theirs(folder, is_causal)
    for record, (good, bad, *_) in zip(found, PAIRS, strict=True):
        for said, text in ((record["good"], good), (record["bad"], bad)):
            expected = naive_scores(model, hf_tokenizer, text, masking, temperature)
            assert abs(said - expected) < 1e-4, text
            if temperature != 1.0:
                plain = naive_scores(model, hf_tokenizer, text, masking)
                assert abs(expected - plain) > 1e-2, "the control: it changes the score"


def test_a_temperature_is_above_zero(
    saved: Any, tokenizer: WordPieceTokenizer, tmp_path: Path
) -> None:
    write_pairs(tmp_path / "pairs.jsonl")
    data = pairs_of(tokenizer, tmp_path, is_causal=False)
    with pytest.raises(ValueError, match="temperature=0: give a number above 0"):
        measured(*loaded(saved(False)), data, temperature=0)


def test_a_state_that_predicts_the_next_token_is_asked_there(
    saved: Any, tokenizer: WordPieceTokenizer, tmp_path: Path
) -> None:
    """Masks hide as for a masked model, and the state before a token answers."""
    write_pairs(tmp_path / "pairs.jsonl")
    plain = pairs_of(tokenizer, tmp_path, is_causal=False)
    shifted = pairs_of(tokenizer, tmp_path, is_causal=False, predicts_next=True)
    assert shifted.fingerprint != plain.fingerprint
    assert np.array_equal(plain.questions.positions - 1, shifted.questions.positions)
    everything = np.arange(len(plain.questions))
    one, other = (data.questions.gather(everything) for data in (plain, shifted))
    for name in ("input_ids", "prediction_labels"):
        assert np.array_equal(one[name], other[name])
    encoder, head = loaded(saved(False))
    records = measured(encoder, head, shifted).require_best().predictions
    for record, (good, *_) in zip(records, PAIRS, strict=True):
        ids = tokenizer.encode_batch([good])[0]
        text = torch.tensor([tokenizer.cls_id, *ids, tokenizer.sep_id])
        word = [0, *tokenizer.word_numbers([good])[0].tolist(), -1]
        total = 0.0
        for place in range(1, len(text) - 1):
            hidden = text.clone()
            for later in range(place, len(text)):
                if word[later] == word[place]:
                    hidden[later] = tokenizer.mask_id
            slots = torch.arange(len(text))
            layout = Layout.ragged([len(text)])
            states = encoder(hidden, torch.zeros_like(slots), slots, layout).sequence_output
            total += float(head(states[place - 1]).log_softmax(-1)[text[place]])
        assert abs(record["good"] - total) < 1e-4


def test_later_pieces_of_a_word_are_hidden(tokenizer: WordPieceTokenizer, tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.jsonl", [("the matx .", "a cat", "g", "f")])
    data = pairs_of(tokenizer, tmp_path, is_causal=False)  # the mat ##x . are tokens 1 to 4
    ids = [data.questions.gather(np.array([i]))["input_ids"] for i in range(4)]
    places = [np.flatnonzero(one == tokenizer.mask_id).tolist() for one in ids]
    assert (places[0], places[1][0], places[1][-1] < 4, places[3]) == (
        [1],
        2,
        True,
        [len(ids[0]) - 2],
    )
    batch = data.questions.gather(np.array([1]))
    assert batch["prediction_positions"].tolist() == [2]
    assert batch["prediction_labels"].tolist() == [int(ids[0][2])]


def test_a_constant_scorer_has_exactly_half(tokenizer: WordPieceTokenizer, tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.jsonl", PAIRS * 7)
    data = pairs_of(tokenizer, tmp_path, is_causal=True)
    asked = len(data.questions.ids)
    scores, records = data.score(np.zeros(asked), np.zeros(asked))
    assert set(scores.values()) == {0.5} and len(records) == 28
    assert list(scores) == [
        *("accuracy", "accuracy/order", "accuracy/spelling", "accuracy_of_field/morphology"),
        *("accuracy_of_field/syntax", "accuracy_of_others", "accuracy_of_permutations"),
    ]


def test_sentences_of_the_same_tokens_tie(tokenizer: WordPieceTokenizer, tmp_path: Path) -> None:
    """However their sums are rounded; one damaged row of a hundred is counted."""
    pairs = [
        ("Who ran ?", "who ran ?", "case", "f"),
        ("the cat sat", "the dog sat", "noun", "f"),
    ] * 60
    write_pairs(tmp_path / "pairs.jsonl", pairs)
    with (tmp_path / "pairs.jsonl").open("a") as file:
        file.write('{"sentence_good": "the cat"}\n')
    data = pairs_of(tokenizer, tmp_path, is_causal=True)
    asked = np.random.default_rng(0).normal(size=len(data.questions.ids))
    scores, records = data.score(asked, asked)
    assert scores["accuracy/case"] == 0.5 != scores["accuracy/noun"]
    assert {one["won"] for one in records[::2]} == {0.5}
    assert {one["won"] for one in records[1::2]} == {0.0, 1.0}
    assert data.facts["bad_rows"] == 1


def test_scores_are_in_fp32_whatever_the_forward_is(
    saved: Any, tokenizer: WordPieceTokenizer, tmp_path: Path
) -> None:
    write_pairs(tmp_path / "pairs.jsonl")
    data = pairs_of(tokenizer, tmp_path, is_causal=False)
    found = measured(*loaded(saved(False)), data, precision="bf16-mixed").require_best().predictions
    sums = np.array([[one["good"], one["bad"]] for one in found], dtype=np.float32)
    rounded = torch.from_numpy(sums).bfloat16().float().numpy()
    assert (sums != rounded).all()  # bf16 has 8 bits: none of these sums is one of its numbers


def chosen(data: MinimalPairs, path: Path) -> list[tuple[str, ...]]:
    found = data.layout.read(path)
    return found.select(subset(len(found), data.max_pairs)).texts


def test_pairs_without_groups_are_one_group_a_file(tmp_path: Path, tokenizer: Any) -> None:
    rows = [f"{good}\t{bad}\n" for good, bad, *_ in PAIRS]
    (tmp_path / "mine.tsv").write_text("".join(["good\tbad\n", *rows]))
    columns: dict[str, str | None] = {"good": "good", "bad": "bad", "group": None, "field": None}
    reason = r"has no column 'sentence_good'.*; measure.data.columns names the columns to read"
    with pytest.raises(ValueError, match=reason):
        pairs_of(tokenizer, tmp_path, is_causal=False, files="mine.tsv")
    data = pairs_of(tokenizer, tmp_path, is_causal=False, files="mine.tsv", columns=columns)
    assert list(data.pairs.group) == ["mine"] * len(PAIRS)
    # Files of one name in two folders are two groups, each of equal weight.
    for number, folder in enumerate(("a", "b"), 1):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "more.tsv").write_text("".join(["good\tbad\n", *rows[:number]]))
    for files in ("*/*.tsv", str(tmp_path / "[ab]" / "*.tsv")):
        data = pairs_of(tokenizer, tmp_path, is_causal=False, files=files, columns=columns)
        assert list(data.pairs.group) == ["a_more.tsv", "b_more.tsv", "b_more.tsv"]
        assert data.content[-2:] == data.group_names


@pytest.mark.parametrize(
    ("pairs", "changes", "reason"),
    [
        ([("a cat", "", "a", "b")], {}, "a sentence without a word"),
        ([("дом", "кот", "a", "b")], {}, "100.0% of the tokens of measure pairs are"),
        ([*PAIRS, ("a cat", "a dog", "order", "b")], {}, "the pairs of order are of two fields"),
        (PAIRS, {"max_pairs": -3}, "measure.data.max_pairs=-3: give a whole number above 0"),
        (PAIRS, {"max_pairs": 1.5}, "measure.data.max_pairs=1.5: give a whole number above 0"),
        (PAIRS, {"max_seq_length": 6}, "sentences are longer than the 6 tokens that this encoder"),
    ],
)
def test_pairs_that_cannot_be_asked_are_refused(
    tokenizer: WordPieceTokenizer, tmp_path: Path, pairs: Any, changes: Any, reason: str
) -> None:
    write_pairs(tmp_path / "pairs.jsonl", pairs)
    with pytest.raises(ValueError, match=reason):
        pairs_of(tokenizer, tmp_path, is_causal=False, **changes)
