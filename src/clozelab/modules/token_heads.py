"""What heads on tokens say of texts: masks, log-probabilities, answers in passages, tags of words.

Letters: T tokens of a batch, P predicted positions, W words, N texts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split
from torch import Tensor, nn

from clozelab.datamodules import scoring
from clozelab.metrics.entities import OUTSIDE, are_plain
from clozelab.models.encoder import EncoderOutput
from clozelab.models.heads import feature_layers
from clozelab.modules import answers
from clozelab.modules.measures import log_probs
from clozelab.modules.model import Model
from clozelab.modules.runner import BATCH_TOKENS, ModelRunner
from clozelab.readers.conll import TaggedSentences
from clozelab.readers.lines import SURROGATES
from clozelab.readers.squad import SquadExamples, SquadQuestion
from clozelab.tasks.batches import Batch, BatchValues, apply_head_fp32, in_order, make_batch
from clozelab.tasks.features import FeatureSequences
from clozelab.tasks.passages import WindowSettings, build_features, token_logits
from clozelab.tasks.sequences import Ints, TokenSequences, token_budget_batches
from clozelab.tasks.spans import NBestSettings, predict_answers
from clozelab.tasks.words import TaggedSequences, build_sequences

log = logging.getLogger(__name__)
# A mark (an accent apart from its letter, a vowel of Hindi) is a part of its word here, which
# Python's \w denies.
WORDS = Split(
    Regex(r"[\w\p{N}]+(?:(?:[-'’.]|\p{Cf}+)[\w\p{N}]+)*|[^\w\p{N}\s\p{Cf}\p{Cc}][\p{M}\p{Cf}]*"),
    "removed",
    invert=True,
)


@dataclass(frozen=True)
class Words:
    """A text and the characters (start, end) of each of its words."""

    text: str
    spans: list[tuple[int, int]]

    def strings(self) -> list[str]:
        return [self.text[start:end] for start, end in self.spans]


def mask_questions(runner: ModelRunner, sequences: TokenSequences) -> scoring.Questions:
    """One question for each mask of the sequences: which token is it?"""
    masks = np.flatnonzero(sequences.input_ids == runner.tokenizer.mask_id)
    text = np.searchsorted(sequences.offsets, masks, side="right") - 1
    # What some encoders say of a token stands at the token before it.
    positions = masks - sequences.offsets[text] - runner.encoder.config.prediction_shift
    return scoring.Questions(
        sequences=sequences,
        offsets=np.searchsorted(masks, sequences.offsets),
        positions=positions,
        ids=np.zeros_like(positions),  # the answers are not known
        text=text,
    )


def score_sequences(
    runner: ModelRunner, head: Any, sequences: TokenSequences, index: Ints
) -> list[answers.Scored]:
    """The scores of the sequences at `index`."""
    num_tokens = sequences.lengths[index] - 2  # between [CLS] and [SEP]
    text, position = scoring.token_ranges(np.ones_like(num_tokens), num_tokens)
    asked_tokens: scoring.Tokens
    hidden_tokens: scoring.Tokens | None
    if runner.encoder.config.is_causal:
        # One reading of a text tells all of its tokens.
        readings = index
        asked_tokens = (text, position)
        hidden_tokens = None
    else:
        # A masked model reads a text once for each token, with that token hidden.
        readings = index[text]
        asked_tokens = (np.arange(len(text)), position)
        hidden_tokens = asked_tokens
    questions = scoring.build_questions(
        sequences,
        readings,
        asked_tokens,
        hidden_tokens,
        mask_id=runner.tokenizer.mask_id,
        shift=runner.encoder.config.prediction_shift,
    )

    def label_log_probs(hidden: Tensor, batch: Batch) -> BatchValues:
        output = EncoderOutput(hidden, batch["hidden_states"])
        states = head.states(runner.encoder, output, batch)
        values = log_probs(head, states, batch["prediction_labels"])
        return batch["prediction_index"], values[:, 0]

    outputs = runner.run(questions, label_log_probs, hidden_states=bool(head.reads_hidden_states))
    values = in_order(outputs, len(questions.ids)).astype(np.float64)
    # [tokens of all texts] -> an array for each text
    ends = np.cumsum(num_tokens)[:-1]
    scored = []
    for token_values, token_ids in zip(
        np.split(values, ends), np.split(questions.ids, ends), strict=True
    ):
        tokens = tuple(runner.tokenizer.vocabulary[i] for i in token_ids)
        total = float(token_values.sum())
        scored.append(answers.Scored(total, tokens, tuple(map(float, token_values))))
    return scored


def window_settings(model: Model) -> WindowSettings:
    """Windows over a question and its passage: those of the model's fine-tuning."""
    trained = model.provenance
    return WindowSettings.fitted(
        max_seq_length=model.window_length,
        doc_stride=trained.get("doc_stride", 128),
        max_query_length=trained.get("max_query_length", 64),
    )


def span_candidates(
    runner: ModelRunner,
    head: nn.Module,
    questions: Sequence[tuple[str, Sequence[str]]],
    windows: WindowSettings,
    settings: NBestSettings,
) -> list[tuple[list[tuple[float, answers.Answer]], float]]:
    """Of each question the candidates from all of its passages, by their sums of two logits.

    Beside them the least sum that "no answer" has in a passage.
    """
    # Each passage is asked its question as SQuAD has them: one question, one passage.
    pairs: list[SquadQuestion] = []
    passages = []
    for question, texts in questions:
        for text in texts:
            pairs.append(SquadQuestion(str(len(pairs)), question, len(pairs), (), -1))
            passages.append(text)
    asked_pairs = SquadExamples(passages, pairs)
    features, counts = build_features(asked_pairs, runner.tokenizer, windows)
    if counts["questions_cut"]:
        log.warning(
            "questions of more than %d tokens are cut to them, as in training",
            windows.max_query_length,
        )

    def span_logits(hidden: Tensor, batch: Batch) -> BatchValues:
        return batch["example_index"], apply_head_fp32(head, hidden)

    outputs = runner.run(features.sequences, span_logits, reads_bilstm=True)
    start_logits, end_logits = token_logits(features, outputs)
    predicted = predict_answers(features, asked_pairs, start_logits, end_logits, settings)
    # The passages' candidates, with their logits, compete for the question.
    candidates = []
    passage_answers = iter(predicted.nbest.values())
    for _, texts in questions:
        scored = []
        null_logit = math.inf
        for number in range(len(texts)):
            for candidate in next(passage_answers):
                if candidate.characters is not None:
                    answer = answers.Answer(candidate.text, 0.0, number, *candidate.characters)
                    scored.append((candidate.logit, answer))
                elif candidate.text == "":
                    null_logit = min(null_logit, candidate.logit)
        candidates.append((scored, null_logit))
    return candidates


def best_answer(
    candidates: Sequence[tuple[float, answers.Answer]],
    null_logit: float,
    top_k: int,
    threshold: float | None,
) -> answers.Answer:
    """The best of a question's candidates, and the next `top_k` - 1 as its `others`.

    Each has its sum of a start and an end logit; `null_logit` is that of "no answer". With a
    threshold "no answer" is one of them: the best where its logit is above the best span's by more
    than that.
    """
    ordered = sorted(candidates, key=lambda scored: -scored[0])
    if threshold is not None or not ordered:
        rank = 0
        if ordered and null_logit - ordered[0][0] <= (threshold or 0.0):
            # Below the best of them, and above all that are less probable.
            rank = 1 + sum(logit >= null_logit for logit, _ in ordered[1:])
        ordered.insert(rank, (null_logit, answers.Answer("", 0.0, None, None, None)))
    ranked = []
    probabilities = softmax([logit for logit, _ in ordered])
    for (_, answer), probability in zip(ordered, probabilities, strict=True):
        ranked.append(replace(answer, probability=float(probability)))
    return replace(ranked[0], others=tuple(ranked[1:top_k]))


def tag_texts(
    runner: ModelRunner, head: nn.Module, texts: Sequence[Words], labels: Sequence[str]
) -> list[answers.Tagged]:
    """The words of each text with their tags, and its entities."""
    words_of_texts = [text.strings() for text in texts]
    predictions = _predict_tags(runner, head, words_of_texts)
    marks_entities = _mark_entities(labels)
    # [W, 2] -> the rows of each text
    ends = np.cumsum([len(text_words) for text_words in words_of_texts])[:-1]
    tagged = []
    for text, rows in zip(texts, np.split(predictions, ends), strict=True):
        spans = []
        for (start, end), (probability, tag) in zip(text.spans, rows, strict=True):
            word = text.text[start:end]
            label = labels[int(tag)]
            spans.append(answers.Span(word, start, end, label, float(probability)))
        entities: tuple[answers.Span, ...] = ()
        if marks_entities:
            entities = answers.entities_of(text.text, spans)
        tagged.append(answers.Tagged(text.text, tuple(spans), entities))
    return tagged


def _mark_entities(labels: Sequence[str]) -> bool:
    """Whether a tagger's labels mark entities; parts of speech do not.

    Warns of those that may be meant so.
    """
    try:
        are_plain(labels)
    except ValueError as problem:
        if OUTSIDE in labels:
            log.warning("words are tagged, and no entities are made of them: %s", problem)
        return False
    return True


def _predict_tags(
    runner: ModelRunner, head: nn.Module, words: list[list[str]]
) -> NDArray[np.float64]:
    """[W, 2]: of each word of all texts the probability and the number of its best tag."""
    # Each text is a sentence, and a document, of its own: nothing stands around it.
    numbers = list(range(len(words)))
    sentences = TaggedSentences(words, documents=numbers, lines=numbers)
    # A longer text stands in several rows, as long as those of the fine-tuning.
    arrays, _ = build_sequences(
        sentences, numbers, runner.tokenizer, runner.model.window_length, False
    )
    num_words = sum(map(len, words))
    sequences = TaggedSequences(
        sequences=TokenSequences.from_arrays(arrays),
        word_offsets=arrays["word_offsets"],
        word_positions=arrays["word_positions"],
        labels=np.zeros(num_words, dtype=np.int64),
    )
    mix = dict(runner.heads.items()).get("feature_mix")
    if mix is None:

        def read_tags(hidden: Tensor, batch: Batch) -> BatchValues:
            words = hidden.index_select(0, batch["word_slots"])
            return batch["word_index"], _best_tags(head, words)

        return in_order(runner.run(sequences, read_tags, reads_bilstm=True), num_words)
    # A feature-based tagger (table 7) reads some layers of each word.
    features = runner.model.provenance["features"]
    layers = feature_layers(features, runner.encoder.config.num_hidden_layers)

    def read_features(hidden: Tensor, batch: Batch) -> BatchValues:  # noqa: ARG001
        states = torch.stack([batch["hidden_states"][layer] for layer in layers], dim=1)
        return batch["word_index"], mix(states.index_select(0, batch["word_slots"]).float())

    values = in_order(runner.run(sequences, read_features, hidden_states=True), num_words)
    texts = FeatureSequences([values], arrays["sentence_offsets"], sequences.labels)
    return in_order(_read_texts(runner, head, texts), num_words)


@torch.inference_mode()
def _read_texts(runner: ModelRunner, head: nn.Module, texts: FeatureSequences) -> list[BatchValues]:
    """The words' tags by a BiLSTM, which reads a text whole, in however many rows it stands."""
    outputs = []
    for index in token_budget_batches(texts.lengths, BATCH_TOKENS):
        batch = make_batch(texts, index, {})
        features = batch["features"].flatten(1).to(runner.device)
        states = runner.heads["bilstm"](features, batch["layout"].to(runner.device))
        outputs.append((batch["word_index"], _best_tags(head, states).cpu()))
    return outputs


def _best_tags(head: nn.Module, states: Tensor) -> Tensor:
    """[W, H] -> [W, 2]: of each word the probability and the number of its best tag."""
    return torch.stack(apply_head_fp32(head, states).softmax(1).max(1), dim=1)


def word_spans(text: str | Sequence[str]) -> list[tuple[int, int]]:
    """The characters (start, end) of each word; of a list of words, where one space joins them."""
    if isinstance(text, str):
        return [span for _, span in WORDS.pre_tokenize_str(SURROGATES.sub("\ufffd", text))]
    spans = []
    start = 0
    for word in text:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return spans
