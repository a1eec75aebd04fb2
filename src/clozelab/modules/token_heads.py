"""What heads on tokens say of texts: masks, log-probabilities, answers in passages, tags of words.

Letters: T tokens of a batch, P predicted positions, W words, N texts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split
from torch import Tensor, nn

from clozelab.metrics.entities import OUTSIDE, are_plain
from clozelab.models.encoder import EncoderOutput
from clozelab.models.heads import feature_layers
from clozelab.modules import answers
from clozelab.modules.log_probs import log_probs
from clozelab.modules.model import Model
from clozelab.modules.runner import BATCH_TOKENS, ModelRunner
from clozelab.readers.conll import TaggedSentences
from clozelab.readers.lines import SURROGATES
from clozelab.readers.squad import SquadExamples, SquadQuestion
from clozelab.tasks.batches import Batch, BatchValues, apply_head_fp32, in_order, make_batch
from clozelab.tasks.cache import Arrays
from clozelab.tasks.features import FeatureSequences
from clozelab.tasks.passages import WindowSettings, build_features, token_logits
from clozelab.tasks.questions import Questions, Tokens, build_questions, token_ranges
from clozelab.tasks.sequences import Ints, TokenSequences, token_budget_batches
from clozelab.tasks.spans import NBestSettings, predict_answers
from clozelab.tasks.words import TaggedSequences, build_sequences

log = logging.getLogger(__name__)
PredictWords = Callable[[nn.Module, Tensor], Tensor]
"""(an output layer, states [W, H]) -> [W, n]: what is predicted of each word."""
# A mark (an accent apart from its letter, a vowel of Hindi) is a part of its word here, which
# Python's \w denies. Chinese has no blanks between words: its taggers read characters.
LETTERS = r"[[\w\p{N}]&&[^\p{Han}]]"
WORDS = Split(
    Regex(
        rf"\p{{Han}}\p{{M}}*|{LETTERS}+(?:(?:[-'’.]|\p{{Cf}}+){LETTERS}+)*"
        r"|[^\w\p{N}\s\p{Cf}\p{Cc}][\p{M}\p{Cf}]*"
    ),
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


def mask_questions(runner: ModelRunner, sequences: TokenSequences) -> Questions:
    """One question for each mask of the sequences: which token is it?"""
    masks = np.flatnonzero(sequences.input_ids == runner.tokenizer.mask_id)
    text = np.searchsorted(sequences.offsets, masks, side="right") - 1
    # What some encoders say of a token stands at the token before it.
    positions = masks - sequences.offsets[text] - runner.encoder.config.prediction_shift
    return Questions(
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
    text, position = token_ranges(np.ones_like(num_tokens), num_tokens)
    asked_tokens: Tokens
    hidden_tokens: Tokens | None
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
    questions = build_questions(
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

    outputs = runner.run(
        questions,
        label_log_probs,
        hidden_states=bool(head.reads_hidden_states),
        read_slots=itemgetter("prediction_positions"),
    )
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
    predictions = _predict_words(runner, head, texts, _best_tags)
    marks_entities = _mark_entities(labels)
    tagged = []
    for text, rows in zip(texts, predictions, strict=True):
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


def number_words(
    runner: ModelRunner, head: nn.Module, texts: Sequence[Words]
) -> list[answers.NumberedWords]:
    """The words of each text with the numbers that a regression predicts."""
    numbered = []
    predictions = _predict_words(runner, head, texts, apply_head_fp32)
    for text, rows in zip(texts, predictions, strict=True):
        numbered_words = []
        for (start, end), number in zip(text.spans, rows[:, 0], strict=True):
            word = text.text[start:end]
            numbered_words.append(answers.WordNumber(word, start, end, float(number)))
        numbered.append(answers.NumberedWords(text.text, tuple(numbered_words)))
    return numbered


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


def _predict_words(
    runner: ModelRunner, head: nn.Module, texts: Sequence[Words], predict: PredictWords
) -> list[np.ndarray]:
    """What `predict` makes of each text's words, [words, n] of each text."""
    sentences = [text.strings() for text in texts]
    # Each text is a sentence, and a document, of its own: nothing stands around it.
    document_ids = list(range(len(sentences)))
    examples = TaggedSentences(sentences, documents=document_ids, lines=document_ids)
    # A longer text stands in several rows, as long as those of the fine-tuning.
    arrays, _ = build_sequences(
        examples,
        document_ids,
        runner.tokenizer,
        runner.model.window_length,
        document_context=False,
    )
    sequences = TaggedSequences(
        sequences=TokenSequences.from_arrays(arrays),
        word_offsets=arrays["word_offsets"],
        word_positions=arrays["word_positions"],
        labels=np.zeros(sum(map(len, sentences)), dtype=np.int64),  # there are none
    )
    read = _read_fine_tuned
    if "feature_mix" in runner.heads:
        read = _read_features
    outputs = in_order(read(runner, head, sequences, arrays, predict), len(sequences.labels))
    # [W, n] -> the rows of each text
    ends = np.cumsum([len(sentence) for sentence in sentences])[:-1]
    return np.split(outputs, ends)


def _read_fine_tuned(
    runner: ModelRunner,
    head: nn.Module,
    sequences: TaggedSequences,
    arrays: Arrays,  # noqa: ARG001
    predict: PredictWords,
) -> list[BatchValues]:
    """[W, n] of a fine-tuned encoder."""

    def by_word(hidden: Tensor, batch: Batch) -> BatchValues:
        words = hidden.index_select(0, batch["word_slots"])
        return batch["word_index"], predict(head, words)

    return runner.run(sequences, by_word, reads_bilstm=True)


@torch.inference_mode()
def _read_features(
    runner: ModelRunner,
    head: nn.Module,
    sequences: TaggedSequences,
    arrays: Arrays,
    predict: PredictWords,
) -> list[BatchValues]:
    """[W, n] of a feature-based model (table 7), which reads some layers of each word."""
    features = runner.model.provenance["features"]
    layers = feature_layers(features, runner.encoder.config.num_hidden_layers)
    mix = runner.heads["feature_mix"]

    def by_word(hidden: Tensor, batch: Batch) -> BatchValues:  # noqa: ARG001
        states = torch.stack([batch["hidden_states"][layer] for layer in layers], dim=1)
        return batch["word_index"], mix(states.index_select(0, batch["word_slots"]).float())

    num_words = len(sequences.labels)
    values = in_order(runner.run(sequences, by_word, hidden_states=True), num_words)
    # The BiLSTM reads a text whole, in however many rows it stands.
    texts = FeatureSequences([values], arrays["sentence_offsets"], sequences.labels)
    outputs = []
    for index in token_budget_batches(texts.lengths, BATCH_TOKENS):
        batch = make_batch(texts, index, {})
        stacked = batch["features"].flatten(1).to(runner.device)
        states = runner.heads["bilstm"](stacked, batch["layout"].to(runner.device))
        outputs.append((batch["word_index"], predict(head, states).cpu()))
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
