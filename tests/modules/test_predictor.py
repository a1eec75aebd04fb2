"""What a model says of texts equals transformers' on the same folder, or is refused."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from tests.screens import refuses, shows

import clozelab
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.models.encoder import Encoder
from clozelab.models.heads import BiLSTM, FeatureMix
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for
from clozelab.modules.answers import Unanswered
from clozelab.modules.model import write_model
from clozelab.modules.sentence_folders import SentenceVectors, sentence_files

WORDS = ["red", "green", "blue", "cat", "dog", "sat", "ran", "on", "mat", "hill"]
WORDS += ["who", "the", "ann", "lee", "oslo"]
PIECES = [f"##{letter}" for letter in string.ascii_lowercase]
VOCABULARY = [*SPECIAL_TOKENS, *WORDS, *string.ascii_lowercase, ".", "'", "?", *PIECES]
TOKENIZER = WordPieceTokenizer(VOCABULARY, lowercase=True)
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TEXTS = [
    "The cat sat on the mat.",
    "dog",
    "Ann Lee ran; the blue dogs ran on the hill in Oslo",
    "who sat?",
]
PAIRS = [
    ("the cat sat", "on a red mat."),
    ("who", "the dog ran on the hill, green"),
    ("ann sat", "oslo"),
]
TOLERANCE = 1e-5


@pytest.fixture(scope="session")
def model(
    tiny_config: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """model(*kinds, ...) -> (what load gives in fp32, its folder): random weights, 4 layers."""

    def make(
        *kinds: str,
        labels: tuple[str, ...] = LABELS,
        is_causal: bool = False,
        has_bilstm: bool = False,
        features: str | None = None,
        **more: Any,
    ):
        torch.manual_seed(1)
        config = tiny_config(
            vocab_size=TOKENIZER.vocab_size, num_hidden_layers=4, is_causal=is_causal
        )
        encoder = Encoder(config)
        between = {"bilstm": BiLSTM(24, 7, 1, 0.0)} if has_bilstm else {}
        if features:
            between["feature_mix"] = FeatureMix(features, 4, 24)
        size = 14 if has_bilstm else None
        family = family_for(config)
        heads = {
            kind: family.head(kind, encoder, num_labels=len(labels), input_size=size)
            for kind in kinds
        }
        for head in heads.values():
            if hasattr(head, "bias"):
                torch.nn.init.normal_(head.bias)
        folder = tmp_path_factory.mktemp("model") / "m"
        write_model(folder, encoder, heads | between, TOKENIZER, labels=labels, **more)
        return clozelab.load(folder, device="cpu", precision="32-true"), folder

    return make


@pytest.fixture(scope="session")
def lm(model: Callable[..., Any]) -> Any:
    return model("lm")[0]


def theirs(folder: Path, kind: str) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    found = getattr(transformers, f"AutoModel{kind}").from_pretrained(folder).eval()
    return found, transformers.AutoTokenizer.from_pretrained(folder)


def close(ours: Any, other: Any) -> bool:
    return bool(
        np.abs(np.asarray(ours, dtype=np.float64) - np.asarray(other, dtype=np.float64)).max()
        <= TOLERANCE
    )


@torch.inference_mode()
def test_masks_are_filled_as_by_transformers(model: Any) -> None:
    ours, folder = model("lm", "nsp")
    texts = ["the [MASK] sat on the [MASK].", "[MASK]", "ann[MASK] ran"]
    reference, tokenizer = theirs(folder, "ForMaskedLM")
    results = ours.fill_mask(texts, top_k=3)
    for text, filled in zip(texts, results, strict=True):
        ids = tokenizer(text, return_tensors="pt")
        is_mask = ids["input_ids"][0] == tokenizer.mask_token_id
        top = reference(**ids).logits[0][is_mask].softmax(1).topk(3)  # [masks, 3]
        assert filled.text == text
        assert filled.masks[0][0].token == tokenizer.decode(top.indices[0, :1])
        for mask, values, indices in zip(filled.masks, top.values, top.indices, strict=True):
            assert [token.id for token in mask] == indices.tolist()
            assert close([token.probability for token in mask], values)
    # A text by itself gets the answer that it has in a list, also as plain values.
    single = ours.fill_mask(texts[0], top_k=3)
    for mask, plain in zip(single.masks, results[0].to_dict()["masks"], strict=True):
        assert [token.id for token in mask] == [token["id"] for token in plain]


@torch.inference_mode()
def test_the_next_sentence_is_told_as_by_transformers(model: Any) -> None:
    ours, folder = model("lm", "nsp")
    pairs, tokenizer = theirs(folder, "ForNextSentencePrediction")
    for (first, second), answer in zip(PAIRS, ours.next_sentence(PAIRS), strict=True):
        probability = pairs(**tokenizer(first, second, return_tensors="pt")).logits.softmax(1)[0, 0]
        assert close(answer.probabilities["next"], probability)
        assert answer.label == ("next" if probability > 0.5 else "other")


@torch.inference_mode()
def test_classes_are_transformers_for_texts_and_pairs(model: Any) -> None:
    ours, folder = model("classification", labels=("no", "yes", "perhaps"))
    reference, tokenizer = theirs(folder, "ForSequenceClassification")
    for texts in (TEXTS, PAIRS):
        results = ours.classify(texts)
        for text, result in zip(texts, results, strict=True):
            both = text if isinstance(text, tuple) else (text,)
            logits = reference(**tokenizer(*both, return_tensors="pt")).logits
            assert close(list(result.probabilities.values()), logits.softmax(1)[0])
            assert result.label == reference.config.id2label[int(logits.argmax())]
        assert results[0].probability == max(results[0].probabilities.values())
    regression, folder = model("classification", labels=("LABEL_0",), problem_type="regression")
    reference, tokenizer = theirs(folder, "ForSequenceClassification")
    assert close(
        regression.classify(TEXTS[0]).value,
        reference(**tokenizer(TEXTS[0], return_tensors="pt")).logits[0, 0],
    )


def test_a_long_text_is_read_in_windows(model: Any) -> None:
    ours, _ = model("classification", labels=("no", "yes"))
    # 120 tokens; the model reads 62 beside its special tokens
    text = " ".join(["cat", "dog", "red", "hill"] * 30)
    with pytest.raises(ValueError, match="text 2 has 122 tokens and this model reads 64 at once"):
        ours.classify(["cat", text], errors="raise")
    pieces = [" ".join(text.split()[start : start + 62]) for start in (0, 31, 62)]
    logits = np.log([[*one.probabilities.values()] for one in ours.classify(pieces)])
    windows = ours.classify(["cat", text], stride=31)
    # The mean of log-probabilities differs from that of logits by a constant, which the softmax
    # takes out again.
    assert close([*windows[1].probabilities.values()], torch.from_numpy(logits.mean(0)).softmax(0))
    assert close(windows[0].probability, ours.classify("cat").probability)
    assert close(ours.embed(text, stride=31), ours.embed(pieces).mean(0))


@torch.inference_mode()
def test_windows_are_those_of_training(model: Any) -> None:
    trained = {"clozelab": {"window_pooling": "max", "max_seq_length": 34}}
    ours, folder = model("classification", labels=("no", "yes"), extra_config=trained)
    reference, tokenizer = theirs(folder, "ForSequenceClassification")
    words = ["cat", "dog", "red", "hill"] * 30
    pieces = [" ".join(words[start : start + 32]) for start in range(0, 103, 15)]
    logits = reference(**tokenizer(pieces, return_tensors="pt", padding=True)).logits
    (answer,) = ours.classify([" ".join(words)], stride=15)
    assert close([*answer.probabilities.values()], logits.amax(0).softmax(0))
    assert not close(logits.amax(0).softmax(0), logits.mean(0).softmax(0))


@torch.inference_mode()
def test_tags_entities_and_their_places(model: Any) -> None:
    ours, folder = model("tags")
    reference, tokenizer = theirs(folder, "ForTokenClassification")
    for tagged in ours.tag(TEXTS):
        words = [word.text for word in tagged.words]
        ids = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        firsts = [ids.word_ids().index(number) for number in range(len(words))]
        shares = reference(**ids).logits[0, firsts].softmax(1)
        assert [word.label for word in tagged.words] == [LABELS[i] for i in shares.argmax(1)]
        assert close([word.probability for word in tagged.words], shares.amax(1))
        assert all(tagged.text[word.start : word.end] == word.text for word in tagged.words)
        for entity in tagged.entities:
            assert tagged.text[entity.start : entity.end] == entity.text
            assert entity.words[0] in entity.text
    assert ours.tag([["Ann", "Lee-o'x", "ran"]])[0].words[1].text == "Lee-o'x"
    assert [word.text for word in ours.tag("Ann, don't!").words] == ["Ann", ",", "don't", "!"]
    long = " ".join(["Ann", "ran"] * 100)
    assert len(ours.tag(long).words) == 200


@pytest.mark.parametrize("features", [None, "weighted_sum_all"])
@torch.inference_mode()
def test_a_long_text_is_tagged_in_rows_of_the_training(model: Any, features: str | None) -> None:
    """A BiLSTM on features has learnt from whole sentences, in however many rows they stood."""
    trained = {"clozelab": {"max_seq_length": 12, "features": features}}
    ours, _ = model("tags", has_bilstm=True, features=features, extra_config=trained)
    words = ["ann", "ran", "on", "the", "hill", "who"] * 4
    rows = [words[:10], words[10:20], words[20:]]
    states = [torch.from_numpy(ours.hidden_states(" ".join(row)))[1:, 1:-1] for row in rows]
    if features:
        mixed = ours.heads["feature_mix"](torch.cat(states, dim=1).transpose(0, 1))
        read = ours.heads["bilstm"](mixed, Layout.ragged([len(words)]))
    else:
        # Each row by itself, between its [CLS] and [SEP].
        whole = [torch.from_numpy(ours.hidden_states(" ".join(row))[-1]) for row in rows]
        each = [ours.heads["bilstm"](row, Layout.ragged([len(row)]))[1:-1] for row in whole]
        read = torch.cat(each)
    shares = ours.heads["tags"](read).softmax(1)
    for given in (words, " ".join(words)):
        tagged = ours.tag([given, ["dog"]])[0]
        assert close([word.probability for word in tagged.words], shares.amax(1))


@pytest.mark.parametrize(
    ("trained", "is_warned_of"),
    [
        ({"document_context": True}, True),
        ({"document_context": True, "has_documents": True}, True),
        ({"document_context": True, "has_documents": False}, False),
        ({"document_context": False, "has_documents": True}, False),
        ({}, False),
    ],
)
def test_a_tagger_says_once_that_it_reads_without_context(
    model: Any, caplog: pytest.LogCaptureFixture, trained: dict[str, bool], *, is_warned_of: bool
) -> None:
    ours, folder = model("tags", extra_config={"clozelab": trained})
    ours.tag("Ann ran")
    ours.tag(["Ann ran", "the dog"])
    warning = (
        f"{folder} was trained on sentences with their neighbours in the document, and reads each"
        " text by itself here; test=FILE and evaluate read the neighbours, too"
    )
    assert caplog.messages.count(warning) == int(is_warned_of)
    assert len(caplog.messages) == int(is_warned_of)


def test_features_are_read_in_fp32_as_they_were_stored(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tagger by features has learnt from an fp32 encoder's, whatever the CPU multiplies."""
    monkeypatch.setattr("clozelab.training.runtime.multiplies_bf16", lambda _: True)
    _, folder = model("tags")
    assert clozelab.load(folder, device="cpu").precision == "bf16-mixed"
    made = {"clozelab": {"features": "last"}}
    _, folder = model("tags", has_bilstm=True, features="last", extra_config=made)
    assert clozelab.load(folder, device="cpu").precision == "32-true"


def test_entities_are_merged_from_their_tags() -> None:
    from clozelab.modules.answers import Span, entities_of

    text = "Ann Lee saw Oslo"
    tags = ["B-PER", "I-PER", "O", "I-LOC"]
    places = [(0, 3), (4, 7), (8, 11), (12, 16)]
    words = [
        Span(text[a:b], a, b, tag, p)
        for (a, b), tag, p in zip(places, tags, (0.5, 1.0, 1.0, 0.9), strict=True)
    ]
    found = [(one.text, one.label, one.words, one.probability) for one in entities_of(text, words)]
    assert found == [("Ann Lee", "PER", ("Ann", "Lee"), 0.75), ("Oslo", "LOC", ("Oslo",), 0.9)]
    # types without prefixes: neighbours of one type are one entity
    plain = [replace(word, label=word.label[-3:]) for word in words]
    spans = [(one.text, one.label) for one in entities_of(text, plain)]
    assert spans == [("Ann Lee", "PER"), ("Oslo", "LOC")]


@torch.inference_mode()
def test_an_answer_is_the_best_span_of_all_passages(model: Any) -> None:
    """Against every span of every window, one window at a time, scored by transformers."""
    rules = {
        "n_best_size": 20,
        "max_answer_length": 4,
        "with_unanswerable": True,
        "threshold": -1e9,
    }
    ours, folder = model("spans", labels=(), extra_config={"clozelab": {"answers": rules}})
    reference, tokenizer = theirs(folder, "ForQuestionAnswering")
    question = "who sat?"
    passages = ["The cat  sat on the red mat.", "ann ran", "Green dogs ran."]
    spans = []
    nulls = []
    for number, passage in enumerate(passages):
        ids = tokenizer(question, passage, return_tensors="pt", return_offsets_mapping=True)
        places = ids.pop("offset_mapping")[0].tolist()
        output = reference(**ids)
        starts = output.start_logits[0]
        ends = output.end_logits[0]
        nulls.append(float(starts[0] + ends[0]))
        inside = [i for i, kind in enumerate(ids.sequence_ids()) if kind == 1]
        for i in inside:
            for j in [j for j in inside if i <= j < i + 4]:
                spans.append((float(starts[i] + ends[j]), number, places[i][0], places[j][1]))
    best = sorted(spans, reverse=True)[:3]
    found = ours.answer(question, passages, top_k=3, null_answer=False)
    said = [found, *found.others]
    assert [(one.passage, one.start, one.end) for one in said] == [one[1:] for one in best]
    assert all(passages[one.passage][one.start : one.end] == one.text for one in said)
    assert close(
        np.diff(np.log([one.probability for one in said])), np.diff([one[0] for one in best])
    )
    # trained with such questions, at a threshold that all are above
    none = ours.answer(question, passages, top_k=2)
    assert (none.text, none.start, none.passage) == ("", None, None)
    assert none.others[0].text == found.text
    assert close(np.log(none.probability / none.others[0].probability), min(nulls) - best[0][0])
    long = " ".join(["red hill"] * 60 + ["Ann Lee"] + ["blue mat"] * 60)
    answer = ours.answer("who", long, null_answer=False)
    assert long[answer.start : answer.end] == answer.text
    again = ours.answer_all([("who", [long]), (question, passages)], null_answer=False, top_k=3)[1]
    assert (again.text, again.start) == (found.text, found.start)
    assert close(again.probability, found.probability)


@torch.inference_mode()
def test_embeddings_are_means_of_the_right_states(model: Any) -> None:
    ours, folder = model()
    reference, tokenizer = theirs(folder, "")
    states = [
        torch.stack(
            reference(
                **tokenizer(text, return_tensors="pt"), output_hidden_states=True
            ).hidden_states
        )[:, 0]
        for text in TEXTS
    ]
    assert close(ours.embed(TEXTS), torch.stack([one[-1].mean(0) for one in states]))
    assert close(ours.embed(TEXTS, "cls"), torch.stack([one[-1, 0] for one in states]))
    assert close(ours.embed(TEXTS, layer=2), torch.stack([one[2].mean(0) for one in states]))
    assert close(
        ours.embed(TEXTS, "last4"),
        torch.stack([torch.cat([*one[-4:]], dim=-1).mean(0) for one in states]),
    )
    assert ours.embed(TEXTS[0]).shape == (24,) and ours.embed(TEXTS[0]).dtype == np.float32
    assert all(close(a, b) for a, b in zip(ours.hidden_states(TEXTS), states, strict=True))


@torch.inference_mode()
def test_scores_are_the_chain_rule_and_the_pseudo_log_likelihood(model: Any) -> None:
    ours, folder = model("lm")
    reference, tokenizer = theirs(folder, "ForMaskedLM")
    for text, scored in zip(TEXTS, ours.score(TEXTS), strict=True):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        expected = []
        for place in range(1, ids.shape[1] - 1):
            hidden = ids.clone()
            hidden[0, place] = tokenizer.mask_token_id
            expected.append(reference(hidden).logits[0, place].log_softmax(0)[ids[0, place]])
        assert close(scored.log_probabilities, expected)
        assert close(scored.log_probability, sum(expected))
        assert list(scored.tokens) == tokenizer.convert_ids_to_tokens(ids[0, 1:-1])
    causal, folder = model("lm", is_causal=True)
    reference, tokenizer = theirs(folder, "ForCausalLM")
    ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    expected = reference(ids).logits[0, :-1].log_softmax(1).gather(1, ids[0, 1:, None])[:-1, 0]
    assert close(causal.score(TEXTS[0]).log_probabilities, expected)
    filled = causal.fill_mask("the cat [MASK]", top_k=2).masks[0]
    ids = tokenizer("the cat", return_tensors="pt")["input_ids"][:, :-1]
    assert [token.id for token in filled] == reference(ids).logits[0, -1].topk(2).indices.tolist()


def test_a_bilstm_stands_between_encoder_and_head(model: Any) -> None:
    """Nobody else has it: the same states through the same modules, one text at a time."""
    ours, _ = model("classification", labels=("no", "yes"), has_bilstm=True)
    with torch.inference_mode():
        for text, said in zip(TEXTS, ours.classify(TEXTS), strict=True):
            states = torch.from_numpy(ours.hidden_states(text)[-1])
            forward, backward = ours.heads["bilstm"](states, Layout.ragged([len(states)])).chunk(
                2, dim=-1
            )
            logits = ours.heads["classification"](torch.cat([forward[-1], backward[0]]))
            assert close([*said.probabilities.values()], logits.softmax(0))


@torch.inference_mode()
def test_labels_that_do_not_exclude_each_other_are_those_of_transformers_pipeline(
    model: Any,
) -> None:
    transformers = pytest.importorskip("transformers")
    labels = ("anger", "fear", "joy")
    ours, folder = model("classification", labels=labels, problem_type="multi_label_classification")
    pipeline = transformers.pipeline(
        "text-classification", model=str(folder), top_k=None, device="cpu"
    )
    for found, theirs in zip(ours.classify(TEXTS), pipeline(TEXTS), strict=True):
        expected = {one["label"]: one["score"] for one in theirs}
        assert close(
            [found.probabilities[label] for label in labels], [expected[label] for label in labels]
        )
        assert found.labels == tuple(label for label in labels if expected[label] > 0.5)
    renamed = clozelab.load(folder, device="cpu", precision="32-true", label_names={"joy": "JOY"})
    assert [*renamed.classify("cat").probabilities] == ["anger", "fear", "JOY"]


ODD = ["the cat sat", "", "жук", "cat dog " * 40, "dog"]
"""Only the first and the last can be read: the others are empty, unknown and too long."""


def says_why(answers: list[Any], *reasons: str) -> None:
    """Each is no answer, for this reason."""
    for answer, reason in zip(answers, reasons, strict=True):
        assert isinstance(answer, Unanswered)
        shows(answer.error, reason)


def test_an_odd_text_takes_no_other_along(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    ours, _ = model("classification", labels=("no", "yes"))
    found = ours.classify(ODD)
    assert "3 of 5 texts were not answered: text 2 is empty" in caplog.text
    assert [found[0], found[4]] == ours.classify([ODD[0], ODD[4]])
    says_why(found[1:4], "is empty", "no token but [UNK]", "has 82 tokens")
    with pytest.raises(AttributeError, match="this text was not answered, because it is empty"):
        _ = found[1].label
    assert len(ours.classify(ODD, stride=31)) == 5
    assert not isinstance(ours.classify(ODD, stride=31)[3], Unanswered)
    assert all(isinstance(answer, Unanswered) for answer in ours.classify(["", " "]))
    pairs = ours.classify([("cat", "dog"), ("cat", "")])
    assert pairs[0] == ours.classify(("cat", "dog"))
    says_why(pairs[1:], "its second text is empty")


@torch.inference_mode()
def test_an_empty_text_has_the_vector_of_its_special_tokens(model: Any) -> None:
    ours, folder = model()
    reference, tokenizer = theirs(folder, "")
    vectors = ours.embed(ODD)
    assert vectors.shape == (5, 24) and vectors.dtype == np.float32
    assert close(
        vectors[1], reference(**tokenizer("", return_tensors="pt")).last_hidden_state[0].mean(0)
    )
    assert np.isnan(vectors[2:4]).all() and np.isfinite(vectors[[0, 1, 4]]).all()
    assert close(vectors[[0, 4]], ours.embed([ODD[0], ODD[4]]))
    # Products of other heights round otherwise on some processors.
    assert close(ours.embed(ODD, stride=31)[1], vectors[1]), "of windows, too"
    assert np.isnan(ours.embed(["жук"], "last4")).all()
    assert ours.hidden_states([""])[0].shape == (5, 2, 24)


def test_every_act_marks_what_it_cannot_read(
    model: Any, lm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    filled = lm.fill_mask(["a [MASK]", "cat", "[MASK] cat " * 40])
    assert filled[0].text == "a [MASK]"
    says_why(filled[1:], "has no [MASK]", "has 82 tokens")
    scored = lm.score(ODD)
    assert close(scored[4].log_probability, lm.score("dog").log_probability)
    says_why(scored[1:4], "is empty", "no token but [UNK]", "has 82 tokens")
    ours, _ = model("tags")
    tagged = ours.tag(["Ann ran", "", "жук", "cat dog " * 40])
    assert [word.label for word in tagged[0].words] == [
        word.label for word in ours.tag("Ann ran").words
    ]
    says_why(tagged[1:3], "is empty", "no token but [UNK]")
    assert len(tagged[3].words) == 80, "of any length"
    ours, _ = model("spans", labels=())
    answered = ours.answer_all([("who", "ann ran"), ("", "ann ran"), ("who", ["", " "])])
    assert answered[0].text == ours.answer("who", ["ann ran"]).text
    says_why(answered[1:], "is empty", "no passage with text")
    # no neighbour has a window either
    says_why(ours.answer_all([("who", "\u200b")]), "no passage with text")
    ours.answer("who " * 40, "the cat sat")
    assert "questions of more than 29 tokens are cut" in caplog.text


def test_a_table_goes_in_and_comes_out(model: Any) -> None:
    ours, _ = model("classification", labels=("no", "yes"))
    frame = pandas.DataFrame({"n": [1, 2, 3], "review": ["the cat", None, "dog"]}, index=[7, 8, 9])
    found = ours.classify(frame, columns="review")
    pandas.testing.assert_frame_equal(found[["n", "review"]], frame)
    cat = ours.classify("the cat")
    assert found.prediction[7] == cat.label
    assert close(found.probability_yes[7], cat.probabilities["yes"])
    shows(found.error[8], "has no 'review': the cell is empty")
    assert found.isna().error[7]
    vectors = ours.embed(frame, columns="review")
    assert close(vectors.embedding[9], ours.embed("dog")) and vectors.embedding[8] is None


def test_a_table_keeps_the_passages_beside_their_answers(model: Any) -> None:
    asked = pandas.DataFrame({"question": ["who sat?"], "passage": ["the cat sat"]})
    found = model("spans", labels=())[0].answer_all(asked)
    pandas.testing.assert_frame_equal(found[[*asked.columns]], asked)
    assert found.passage_number[0] == 0


def test_a_model_of_pairs_wants_pairs(model: Any) -> None:
    ours, _ = model(
        "classification", labels=("no", "yes"), extra_config={"clozelab": {"texts_per_example": 2}}
    )
    assert ours.classify([("cat", "dog")])[0].label in ("no", "yes")
    with pytest.raises(ValueError, match="was trained on pairs, and text 1 is one text"):
        ours.classify(["cat", "dog"])
    of_texts = {"clozelab": {"texts_per_example": 1}}
    single, _ = model("classification", labels=("no", "yes"), extra_config=of_texts)
    with pytest.raises(ValueError, match="was trained on single texts, and text 1 is a pair"):
        single.classify(("cat", "dog"))


def test_marks_belong_to_their_words() -> None:
    from clozelab.modules.token_heads import word_spans

    text = "Cafe\u0301s, हिन्दी m² \U0001f469\u200d\U0001f469 می\u200cخواهم\ufeff \x07don't \ud800"
    words = [text[a:b] for a, b in word_spans(text)]
    expected = ["Cafe\u0301s", ",", "हिन्दी", "m²", "\U0001f469\u200d", "\U0001f469"]
    assert words == [*expected, "می\u200cخواهم", "don't", "\ud800"]


def test_chinese_characters_are_words() -> None:
    """Text of them has no blanks, and a clause would get one tag."""
    from clozelab.modules.token_heads import word_spans

    text = "我去过北京,GPT-4 3月。東京タワー 김치"
    words = [text[a:b] for a, b in word_spans(text)]
    after = ["GPT-4", "3", "月", "。", "東", "京", "タワー", "김치"]
    assert words == [*"我去过北京,", *after]


@pytest.mark.parametrize("value", ["3", 1.5, True])
def test_settings_that_are_no_whole_numbers(model: Any, value: Any) -> None:
    ours, _ = model("classification", labels=("no", "yes"))
    for name, act in (("stride", ours.classify), ("stride", ours.embed), ("layer", ours.embed)):
        with pytest.raises(ValueError, match=f"{name}=.*give a whole number"):
            act("cat", **{name: value})
    assert ours.embed("cat", layer=np.int64(1)).shape == (24,)


def test_where_a_model_lies(model: Any, tmp_path: Path) -> None:
    _, folder = model("lm")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text("{}")
    with pytest.raises(ValueError, match=r"no model here, expected config\.json in it, or in its"):
        clozelab.load(tmp_path / "run")
    (tmp_path / "run/model").symlink_to(folder)
    assert clozelab.load(tmp_path / "run").model.folder == tmp_path / "run/model"
    with pytest.raises(ValueError, match=r"nobody/nothing: no model here.* hub needs hub=true"):
        clozelab.load("nobody/nothing")


def refused_texts(act: str, texts: Any, reason: str, **options: Any) -> Any:
    return pytest.param(act, (texts,), options, reason, id=f"{act}: {reason}")


@pytest.mark.parametrize(
    ("act", "arguments", "options", "reason"),
    [
        refused_texts("fill_mask", "the cat", "text 1 has no [MASK]"),
        refused_texts("fill_mask", "[MASK] cat " * 40, "text 1 has 82 tokens and this model reads"),
        refused_texts("fill_mask", ["a [MASK]", "cat"], "text 2 has no [MASK]", errors="raise"),
        refused_texts("fill_mask", "a [MASK]", "top_k=-1: give at least 1", top_k=-1),
        refused_texts("fill_mask", ("[MASK]", "cat"), "takes single texts"),
        refused_texts("score", ["cat", " "], "text 2 is empty", errors="raise"),
        refused_texts("score", "", "text 1 is empty"),
        refused_texts("score", ("the cat", "sat"), "takes single texts"),
        refused_texts("score", ["cat", None], "text 2 is None: a string was expected"),
        refused_texts("embed", ["cat", "жук жук"], "text 2 has no token but [UNK]", errors="raise"),
        refused_texts("embed", ["cat"], "errors=ignore: choose one of mark", errors="ignore"),
        refused_texts("embed", [], "the list is empty"),
        refused_texts("embed", ["cat", ("cat", "dog")], "some texts are pairs and some are not"),
        refused_texts("embed", "cat", "choose one of cls, mean, last4", pooling="max"),
        refused_texts("embed", "cat", "this encoder has layers 0 to 4", layer=9),
        refused_texts("embed", "cat", "stride=0: give 1 to 62 tokens", stride=0),
        refused_texts("embed", ("the", "cat", "sat"), "text 1 is a sequence of 3: a pair"),
        refused_texts("classify", "cat", "its classification head was never trained"),
        refused_texts("tag", "cat", "its tags head was never trained (trained heads: lm)"),
        refused_texts("next_sentence", ("a", "b"), "objective=mlm_nsp"),
        pytest.param("answer", ("who", "cat"), {}, "task=squad_v1", id="answer"),
    ],
)
def test_what_a_masked_model_does_not_answer(
    lm: Any, act: str, arguments: Any, options: dict[str, Any], reason: str
) -> None:
    with refuses(reason):
        getattr(lm, act)(*arguments, **options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"device": "gpu"}, "device=gpu: choose auto, cpu or cuda"),
        ({"precision": "16-mixed"}, "precision=16-mixed: choose one of auto"),
    ],
)
def test_where_a_model_cannot_be_loaded(lm: Any, options: dict[str, str], reason: str) -> None:
    with refuses(reason):
        clozelab.load(lm.model.folder, **options)


def test_questions_that_are_refused(model: Any) -> None:
    ours, _ = model("spans", labels=())
    with refuses("question 2 is empty"):
        ours.answer_all([("who", "ann ran"), ("", "ann ran")], errors="raise")
    with refuses("answer_all takes many questions"):
        ours.answer(["who"], "ann ran")
    with refuses("top_k=0"):
        ours.answer("who", "the cat sat", top_k=0)


@pytest.mark.parametrize("act", ["classify", "hidden_states", "attention"])
def test_weights_that_are_no_numbers_give_no_answer(model: Any, act: str) -> None:
    ours, _ = model("classification", labels=("no", "yes"))
    ours.heads["classification"].bias.data[0] = torch.nan
    if act != "classify":
        ours.encoder.embeddings.word_embeddings.weight.data[:] = torch.nan
    with refuses("gives no finite numbers"):
        getattr(ours, act)(TEXTS)


def test_a_left_to_right_encoder_does_not_fill_from_the_right(model: Any) -> None:
    with refuses("reads from left to right: it fills one mask, at a text's end"):
        model("lm", is_causal=True)[0].fill_mask("the [MASK] sat")


def test_a_long_text_is_classified_as_in_the_fine_tuning(
    model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut at its length, or in its windows: as `predict test=` and `evaluate` read it."""
    long, pair = "the cat sat on the mat hill dog red", ("the cat sat on the mat", "ann ran")
    kept = ["the cat sat on the mat", "dog"]
    provenance: dict[str, Any] = {"max_seq_length": 8}
    whole = model("classification")[0]
    cut = model("classification", extra_config={"clozelab": provenance})[0]
    expected = [answer.probability for answer in whole.classify(kept)]
    assert close([answer.probability for answer in cut.classify([long, "dog"])], expected)
    assert "1 text cut at the 8 tokens of the fine-tuning" in caplog.text
    assert not close(whole.classify(long).probability, expected[0])
    # of a pair the longer text is cut
    caplog.clear()
    expected = [whole.classify(("the cat sat", "ann ran")).probability]
    assert close(cut.classify(pair).probability, expected)
    # in windows nothing is lost, and other acts read what the encoder can
    caplog.clear()
    provenance |= {"window_stride": 3, "window_pooling": "max"}
    windowed = model("classification", extra_config={"clozelab": provenance})[0]
    expected = [windowed.classify(long, stride=3).probability]
    assert close(windowed.classify(long).probability, expected)
    assert close(cut.embed(long), whole.embed(long))
    assert not caplog.text


def test_a_long_text_is_embedded_as_in_the_fine_tuning(
    model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Sentence-transformers' file says the same, and not what the encoder could read."""
    provenance = {"max_seq_length": 8, "pooling": "mean"}
    config = model()[0].encoder.config
    files = sentence_files(SentenceVectors("mean"), config, 8)
    embedder = model(extra_config={"clozelab": provenance}, extra_files=files)[0]
    long = "the cat sat on the mat hill dog red"
    assert close(embedder.embed(long), embedder.embed("the cat sat on the mat"))
    assert "1 text cut at the 8 tokens of the fine-tuning" in caplog.text
    assert embedder.model.embedded_length == 8 < embedder.model.max_length


ORDERED = {"clozelab": {"answers": {"ranks": ["low", "middle", "high"]}}}


@pytest.mark.parametrize("problem_type", [None, "multi_label_classification"])
def test_outputs_that_were_trained_anew_have_no_order(model: Any, problem_type: Any) -> None:
    """As by another library, which leaves what it does not know in config.json."""
    settings = {"labels": ("ham", "spam"), "problem_type": problem_type, "extra_config": ORDERED}
    ours = model("classification", **settings)[0]
    assert ours.model.task == ("multi_label" if problem_type else "classification")
    assert list(ours.classify("the cat sat").probabilities) == ["ham", "spam"]


@pytest.mark.parametrize("task", ["classes", "multi_label", "ordinal", "regression"])
def test_texts_that_cannot_be_read_are_unanswered_alone(model: Any, task: str) -> None:
    settings: dict[str, Any] = {"labels": ("no", "yes")}
    if task == "regression":
        settings = {"labels": ("score",), "problem_type": "regression"}
    elif task != "classes":
        settings["problem_type"] = "multi_label_classification"
    if task == "ordinal":
        settings |= {"labels": ("above low", "above middle"), "extra_config": ORDERED}
    ours = model("classification", **settings)[0]
    assert ours.model.task == {"classes": "classification"}.get(task, task)
    (answer,) = ours.classify([""])
    assert isinstance(answer, Unanswered)


def test_a_model_of_single_texts_embeds_no_pairs(model: Any) -> None:
    """Neither of the columns that both towers were trained on, nor of a table's usual names."""
    embedder = model(extra_config={"clozelab": {"pooling": "mean"}})[0]
    table = pandas.DataFrame({"sentence1": ["the cat sat"], "sentence2": ["a dog"]})
    for pairs in (table, [("the cat sat", "a dog")]):
        with refuses("embeds single texts, and text 1 is a pair: name the one column"):
            embedder.embed(pairs)
    assert len(embedder.embed(table, columns="sentence1")) == 1
    assert len(model("classification")[0].embed(table)) == 1
