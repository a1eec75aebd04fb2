"""Answers a finished model gives for texts: it fills masks, classifies, answers, tags and embeds.

One text gives one result, a list gives a list in its order, a table comes back with columns beside
its own (datamodules/texts.py says what else is read). All texts are encoded and checked before the
first is read; then they go through the encoder in streams of similar lengths, without padding. The
encoder runs in bf16 where the processor multiplies that, heads and probabilities in fp32.

A text that the model cannot read (empty, too long, of unknown tokens alone) takes no other one
along: `Unanswered` stands in its place with the reason, and a warning counts them. `errors="raise"`
makes it a ValueError, as it is of one text given by itself. An empty text has a vector, that of the
special tokens.

Letters: N texts, T tokens of a batch, P predicted positions, W words, H hidden size, V vocabulary,
L layers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split
from torch import Tensor, nn

from clozelab.corpus.lines import SURROGATES
from clozelab.datamodules import examples, scoring, squad, tags
from clozelab.datamodules.encoded import Encoded, encode_texts, unread_reason
from clozelab.datamodules.examples import Ints, TokenSequences
from clozelab.datamodules.finetuning import make_batch
from clozelab.datamodules.texts import (
    Texts,
    Unreadable,
    UnreadableText,
    read_item,
    read_passages,
    read_texts,
    with_columns,
)
from clozelab.models.heads import feature_layers
from clozelab.models.kernels.linear_cross_entropy import CHUNK_LOGITS
from clozelab.models.layout import Layout
from clozelab.modules import answers
from clozelab.modules.classification import sequence_states
from clozelab.modules.finetuning import Batch, BatchValues, in_order
from clozelab.modules.measures import log_probs
from clozelab.modules.model import Model, find_model, read_model, renamed_labels, trained_pooling
from clozelab.modules.spans import NBestSettings, predict_answers, token_logits
from clozelab.training.runtime import (
    MAX_FP32_ERROR,
    choose_precision,
    onednn_fp32,
    onednn_fp32_error,
)

# What becomes of a text that cannot be read: an answer that says so, or a ValueError.
ERRORS = ("mark", "raise")
# Of a label's own probability, where labels do not exclude each other.
THRESHOLD = 0.5
BATCH_TOKENS = 4096
# A masked model reads a text once for each of its tokens.
TEXTS_PER_SCORING = 256
# A mark (an accent apart from its letter, a vowel of Hindi) is a part of its word here, which
# Python's \w denies.
WORDS = Split(
    Regex(r"[\w\p{N}]+(?:(?:[-'’.]|\p{Cf}+)[\w\p{N}]+)*|[^\w\p{N}\s\p{Cf}\p{Cc}][\p{M}\p{Cf}]*"),
    "removed",
    invert=True,
)
POOLINGS = ("cls", "mean", "last4")
PRECISIONS = ("auto", "bf16-mixed", "32-true")
# Kind of head -> what trains one.
COMMANDS = {
    "lm": "clozelab pretrain objective=mlm encoder=FOLDER",
    "nsp": "clozelab pretrain objective=mlm_nsp encoder=FOLDER",
    "classification": "clozelab finetune encoder=FOLDER row=NAME task=sst2",
    "tags": "clozelab finetune encoder=FOLDER row=NAME task=ner_conll2003",
    "spans": "clozelab finetune encoder=FOLDER row=NAME task=squad_v1",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Passage:
    """A passage of a question: both by their numbers, and the text."""

    question: int
    number: int
    text: str


@dataclass(frozen=True)
class _Words:
    """A text and the characters (start, end) of each of its words."""

    text: str
    spans: list[tuple[int, int]]

    def strings(self) -> list[str]:
        return [self.text[start:end] for start, end in self.spans]


class Predictor:
    """A model (modules/model.py) that answers.

    Args:
        device: cpu, cuda or auto (a GPU where there is one).
        precision: of the encoder: auto, bf16-mixed or 32-true.
        label_names: the model's names of its labels -> what answers call them.

    `progress` is put around the batches: rich.progress.track shows a bar. `warns`: whether texts
    that were not answered are counted in a warning."""

    def __init__(
        self,
        model: Model,
        *,
        device: str = "auto",
        precision: str = "auto",
        label_names: Mapping[str, str] | None = None,
    ) -> None:
        self.device = _resolve_device(device)
        if precision not in PRECISIONS:
            raise ValueError(f"precision={precision}: choose one of {', '.join(PRECISIONS)}")
        self.model = model
        self.tokenizer = model.tokenizer
        self.labels = tuple(renamed_labels(model.labels, label_names or {}, model.folder))
        self.warns = True
        self.encoder = model.encoder.to(self.device).eval()
        self.heads = model.heads.to(self.device).eval()
        is_cpu = self.device.type == "cpu"
        self.precision = choose_precision(precision, "cpu" if is_cpu else "gpu")
        self.progress: Callable[[Sequence[Ints]], Iterable[Ints]] = iter
        # oneDNN multiplies fp32 faster; some of its builds do it in a lower precision.
        self._fp32_library: Any = nullcontext
        if is_cpu and self.precision == "32-true":
            error = onednn_fp32_error()
            if error is not None and error <= MAX_FP32_ERROR:
                self._fp32_library = onednn_fp32

    # What a user calls. Everywhere `columns` names columns of a table, and `errors` is one of
    # ERRORS.

    def fill_mask(
        self,
        texts: Any,
        top_k: int = 5,
        *,
        columns: str | Sequence[str] | None = None,
        errors: str = "mark",
    ) -> Any:
        """The `top_k` most probable tokens of each mask, as `Filled`.

        A mask is the tokenizer's own mask token in the text.
        """
        head = self._head("lm", "fill a mask")
        given = read_texts(texts, "fill", columns)
        _check_top_k(top_k)
        encoded = self._encode(self._with_masks(given), errors, has_masks=True)
        questions = self._mask_questions(encoded.sequences)
        vocab_size = self.tokenizer.vocab_size
        # So few states at once that their logits fit into memory.
        states_at_once = max(1, CHUNK_LOGITS // len(head.bias))

        def top_tokens(hidden: Tensor, batch: Batch) -> BatchValues:
            states = hidden.index_select(0, batch["prediction_positions"])
            chunks = []
            for chunk in states.split(states_at_once):
                probabilities = self._fp32(head, chunk)[:, :vocab_size].double().softmax(1)
                top = probabilities.topk(min(top_k, vocab_size))
                chunks.append(torch.stack([top.values, top.indices.double()], dim=2))  # [P, k, 2]
            return batch["prediction_index"], torch.cat(chunks)

        values = _in_order(self._run(questions, top_tokens), len(questions.positions))
        # [P, k, 2] -> the tokens of each mask
        masks = []
        for best_tokens in values:
            masks.append(tuple(self._token(share, index) for share, index in best_tokens))
        readable = []
        for text, reason in zip(given.items, encoded.reasons, strict=True):
            if reason is None:
                readable.append(text)
        # The masks of text n are numbers offsets[n] to offsets[n + 1].
        filled = []
        for text, (start, end) in zip(readable, pairwise(questions.offsets), strict=True):
            filled.append(answers.Filled(text, tuple(masks[start:end])))
        return self._returned(given, encoded.reasons, filled)

    def classify(
        self,
        texts: Any,
        stride: int | None = None,
        *,
        columns: str | Sequence[str] | None = None,
        errors: str = "mark",
    ) -> Any:
        """The most probable label of each text, as `Classified`.

        `Labelled` where labels do not exclude each other, `Number` of a regression. With `stride`
        a longer text is read in windows so many tokens apart, and the mean of their logits counts.
        """
        head = self._head("classification", "classify")
        given = read_texts(texts, "classify", columns)
        self.require_kind(given.items)
        encoded = self._encode(given, errors, stride=stride)
        logits = self._sequence_logits(head, encoded)
        results: list[Any]
        if self.model.task == "regression":
            results = [answers.Number(float(values[0])) for values in logits]
        elif self.model.task == "multi_label":
            results = _labelled(logits, self.labels)
        else:
            results = _classified(logits, self.labels)
        return self._returned(given, encoded.reasons, results)

    def next_sentence(
        self,
        pairs: Any,
        *,
        columns: str | Sequence[str] | None = None,
        errors: str = "mark",
    ) -> Any:
        """`Classified` as "next" or "other": whether the second text follows the first."""
        given = read_texts(pairs, "next", columns)
        if any(isinstance(text, str) for text in given.items):
            raise ValueError("next_sentence takes pairs: (FIRST, SECOND), or a list of them")
        head = self._head("nsp", "say whether a sentence follows")
        encoded = self._encode(given, errors)
        logits = self._sequence_logits(head, encoded)
        return self._returned(given, encoded.reasons, _classified(logits, ("next", "other")))

    def embed(
        self,
        texts: Any,
        pooling: str | None = None,
        layer: int | None = None,
        stride: int | None = None,
        *,
        columns: str | Sequence[str] | None = None,
        errors: str = "mark",
    ) -> Any:
        """float32 [N, H]; [H] for one text. A text that cannot be read is a row of NaN.

        Args:
            pooling: `mean` over all tokens; `cls`, the first token's state (of a causal encoder
                the last one's); `last4`, the mean of the last four layers side by side [N, 4 H].
                None: what the model's embeddings were trained with, else the mean.
            layer: 0 is what goes into the first layer, -1 the last one's output.
            stride: see `classify`.
        """
        given = read_texts(texts, "embed", columns)
        vectors = self.embed_each(given, pooling, layer, stride, errors=errors)
        if given.is_single:
            return vectors[0]
        if given.table is not None:
            return with_columns(given.table, answers.columns_of(vectors))
        # NaN stands for what could not be read, as wide as the others (four layers with `last4`).
        width = self.encoder.config.hidden_size
        for vector in vectors:
            if not isinstance(vector, answers.Unanswered):
                width = len(vector)
        rows = []
        for vector in vectors:
            if isinstance(vector, answers.Unanswered):
                vector = np.full(width, np.nan, dtype=np.float32)
            rows.append(vector)
        return np.stack(rows)

    def embed_each(
        self,
        texts: Any,
        pooling: str | None = None,
        layer: int | None = None,
        stride: int | None = None,
        *,
        errors: str = "mark",
    ) -> list[Any]:
        """As `embed`, in a list: float32 [H] of each text, or `Unanswered` with the reason."""
        if pooling is None:
            pooling = trained_pooling(self.model.folder)
        self._check_pooling(pooling, layer)
        if isinstance(texts, Texts):
            given = texts
        else:
            given = read_texts(texts, "embed")
        encoded = self._encode(given, errors, stride=stride, reads_empty=True)
        # The last layer's states come from the encoder anyway.
        is_inner_layer = layer not in (None, -1, self.encoder.config.num_hidden_layers)

        def pool(hidden: Tensor, batch: Batch) -> BatchValues:
            if pooling == "last4":
                # The last layer's output of `hidden_states` has not passed the final norm.
                hidden = torch.cat([*batch["hidden_states"][-4:-1], hidden], dim=1)
            elif is_inner_layer:
                hidden = batch["hidden_states"][layer]
            vectors = self.encoder.sentence_states(hidden, batch["layout"], pooling)
            return batch["example_index"], vectors

        needs_layers = pooling == "last4" or is_inner_layer
        outputs = self._run(encoded.sequences, pool, hidden_states=needs_layers)
        windows = _in_order(outputs, len(encoded.sequences))
        values = _mean_of_windows(windows, encoded.window_offsets)
        return self._merged(encoded.reasons, list(values))

    def score(
        self,
        texts: Any,
        *,
        columns: str | Sequence[str] | None = None,
        errors: str = "mark",
    ) -> Any:
        """The log-probability of each text and of its tokens, as `Scored`.

        By the chain rule where the encoder is causal, else the pseudo-log-likelihood (Salazar
        2020).
        """
        head = self._head("lm", "score a text")
        given = read_texts(texts, "score", columns)
        encoded = self._encode(given, errors)
        results: list[Any] = []
        for first in range(0, len(encoded.sequences), TEXTS_PER_SCORING):
            last = min(first + TEXTS_PER_SCORING, len(encoded.sequences))
            results += self._scored(head, encoded.sequences, np.arange(first, last))
        return self._returned(given, encoded.reasons, results)

    def hidden_states(
        self,
        texts: Any,
        *,
        columns: str | Sequence[str] | None = None,
        errors: str = "mark",
    ) -> Any:
        """float32 [L + 1, tokens, H] of each text: the embeddings, and the output of each layer."""
        given = read_texts(texts, "states", columns)
        encoded = self._encode(given, errors, reads_empty=True)
        states_of: dict[int, Any] = {}  # number of a text -> its states

        def keep(hidden: Tensor, batch: Batch) -> BatchValues:
            states = torch.stack([*batch["hidden_states"][:-1], hidden]).float().cpu()
            self._refuse_not_finite(states)
            texts_states = states.split(batch["layout"].lengths_list, dim=1)
            for number, own in zip(batch["example_index"].tolist(), texts_states, strict=True):
                states_of[number] = own.numpy().copy()
            return batch["example_index"], batch["example_index"]

        self._run(encoded.sequences, keep, hidden_states=True)
        results = [states_of[number] for number in range(len(states_of))]
        return self._returned(given, encoded.reasons, results)

    def attention(
        self,
        texts: Any,
        *,
        columns: str | Sequence[str] | None = None,
        errors: str = "mark",
    ) -> Any:
        """float32 [L, heads, tokens, tokens] of each text: attention probabilities.

        The third axis is the token that looks, the fourth what it looks at. A text of a masked
        model may have masks.
        """
        from clozelab.modules.explaining import noted_attention

        given = read_texts(texts, "attention", columns)
        has_masks = self._may_have_masks(given.items)
        encoded = self._encode(given, errors, reads_empty=True, has_masks=has_masks)
        attention_of: dict[int, Any] = {}  # number of a text -> its probabilities
        layers: list[Tensor] = []  # of the text that is being read

        def keep(hidden: Tensor, batch: Batch) -> BatchValues:  # noqa: ARG001
            probabilities = torch.stack(layers).cpu()
            self._refuse_not_finite(probabilities)
            attention_of[int(batch["example_index"])] = probabilities.numpy()
            layers.clear()
            return batch["example_index"], batch["example_index"]

        with noted_attention(self.encoder, layers.append):
            self._run(encoded.sequences, keep, max_tokens=1)
        results = [attention_of[number] for number in range(len(attention_of))]
        return self._returned(given, encoded.reasons, results)

    def answer(
        self,
        question: str,
        passages: str | Sequence[str],
        *,
        top_k: int = 1,
        null_answer: bool | None = None,
    ) -> answers.Answer:
        """The best answer to a question in one or many passages of any length; see `answer_all`."""
        if not isinstance(question, str):
            raise ValueError(
                f"the question is {question!r}: one string was expected; answer_all takes many"
                " questions"
            )
        questions = [(question, read_passages(passages, "answer"))]
        return self.answer_all(questions, top_k=top_k, null_answer=null_answer, errors="raise")[0]

    def answer_all(
        self,
        questions: Any,
        *,
        top_k: int = 1,
        null_answer: bool | None = None,
        columns: str | Sequence[str] | None = None,
        errors: str = "mark",
    ) -> Any:
        """Answers to many questions by the rules of SQuAD's released code (modules/spans.py).

        Args:
            questions: (question, passage or passages) of each, or a table with a column of
                questions and one of passages.
            top_k: answers in all.
            null_answer: whether "no answer" may be the best; None: where the model was trained with
                such questions. It is the best where the null odds are above the threshold that was
                best in training.
        """
        head = self._head("spans", "answer a question")
        rules = self.model.config.get("clozelab", {}).get("answers", {})
        given = read_texts(questions, "answer", columns)
        _check_top_k(top_k)
        if null_answer is None:
            null_answer = rules.get("with_unanswerable", False)
        settings = NBestSettings(
            n_best_size=max(rules.get("n_best_size", 20), top_k),
            max_answer_length=rules.get("max_answer_length", 30),
            with_unanswerable=True,
        )
        windows = self._window_settings()
        reasons = self._unasked(given.items)
        _refuse(reasons, given, errors, "question")
        readable = []
        for item, reason in zip(given.items, reasons, strict=True):
            if reason is None:
                readable.append(item)
        candidates: list[answers.Candidates] = []
        if readable:
            candidates = self._candidates(head, readable, windows, settings)
        threshold = None
        if null_answer:
            threshold = rules.get("threshold") or 0.0
        results = [answers.best_answer(each, top_k, threshold) for each in candidates]
        return self._returned(given, reasons, results)

    def tag(
        self,
        texts: Any,
        *,
        columns: str | Sequence[str] | None = None,
        errors: str = "mark",
    ) -> Any:
        """A tag for every word, and the entities that B- and I- tags make, as `Tagged`.

        A text that is a list of words is taken as it is. Of any other, words are runs of letters
        and digits, and single marks. Texts may have any length.
        """
        head = self._head("tags", "tag words")
        given = read_texts(texts, "tag", columns)
        reasons: list[str | None] = []
        readable: list[_Words] = []
        for item in given.items:
            if isinstance(item, Unreadable):
                reasons.append(item.reason)
                continue
            text = item if isinstance(item, str) else " ".join(item)
            words = _Words(text, _word_spans(item))
            ids = self.tokenizer.encode_words(words.strings())[0]
            reason = unread_reason(ids, self.tokenizer)
            reasons.append(reason)
            if reason is None:
                readable.append(words)
        _refuse(reasons, given, errors)
        results: list[answers.Tagged] = []
        if readable:
            results = self._tagged(head, readable)
        return self._returned(given, reasons, results)

    # Between texts and sequences

    def sequences_of(self, texts: Sequence[Any]) -> TokenSequences:
        """Sequences of texts, whose masks are masks where the model fills them.

        ValueError for what cannot be read.
        """
        given = Texts(
            [read_item(text, number, "attention") for number, text in enumerate(texts, 1)],
        )
        return self._encode(given, "raise", has_masks=self._may_have_masks(given.items)).sequences

    def require_kind(self, items: Sequence[Any]) -> None:
        """ValueError for single texts given to a classifier of pairs, and the other way round."""
        expected = self.model.texts_per_example
        for number, item in enumerate(items, 1):
            if isinstance(item, Unreadable) or expected is None:
                continue
            if expected == 2 and isinstance(item, str):
                raise ValueError(
                    f"{self.model.folder} was trained on pairs, and text {number} is one text: give"
                    " its second text, too (a tuple of two; pair=TEXT on the command line)"
                )
            if expected == 1 and not isinstance(item, str):
                raise ValueError(
                    f"{self.model.folder} was trained on single texts, and text {number} is a pair:"
                    " give one text"
                )

    def _may_have_masks(self, items: Sequence[Any]) -> bool:
        if "lm" not in self.heads:
            return False
        return any(isinstance(item, str) and self.tokenizer.has_mask(item) for item in items)

    def _with_masks(self, given: Texts) -> Texts:
        """The same texts; unreadable are those without a mask that the encoder can fill."""
        tokenizer = self.tokenizer
        items: list[Any] = []
        for item in given.items:
            if not isinstance(item, str):
                items.append(item)
            elif not tokenizer.has_mask(item):
                items.append(
                    Unreadable(
                        f"has no {tokenizer.mask_token}: write it where a token is to be filled in",
                    ),
                )
            elif self.encoder.config.is_causal and not self._ends_with_its_mask(item):
                reason = (
                    f"has a mask before its end, and {self.model.folder} reads from left to right:"
                    " it fills one mask, at a text's end, and cannot look at what stands to its"
                    " right; `score` gives a whole text's probability"
                )
                items.append(Unreadable(reason))
            else:
                items.append(item)
        return Texts(items, given.is_single, given.table)

    def _encode(self, given: Texts, errors: str, **options: Any) -> Encoded:
        """Sequences of the readable texts; ValueError for others, where they are errors.

        `options` are those of `encode_texts`.
        """
        if options.get("stride") is not None:
            options["stride"] = _whole_number("stride", options["stride"])
        encoded = encode_texts(given.items, self.tokenizer, self.model.max_length, **options)
        _refuse(encoded.reasons, given, errors)
        return encoded

    def _returned(self, given: Texts, reasons: Sequence[str | None], results: Sequence[Any]) -> Any:
        """Results in the form that the texts came in; `results` are those of the readable ones."""
        merged = self._merged(reasons, results)
        if given.is_single:
            return merged[0]
        if given.table is None:
            return merged
        return with_columns(given.table, answers.columns_of(merged))

    def _merged(self, reasons: Sequence[str | None], results: Sequence[Any]) -> list[Any]:
        """A result for each text, `Unanswered` for those with a reason; a warning counts these."""
        remaining = iter(results)
        merged: list[Any] = []
        problems = []
        for number, reason in enumerate(reasons, 1):
            if reason is None:
                merged.append(next(remaining))
            else:
                merged.append(answers.Unanswered(reason))
                problems.append((f"text {number}", reason))
        if problems and self.warns:
            log.warning(answers.summary_of(problems, len(reasons)))
        return merged

    def _ends_with_its_mask(self, text: str) -> bool:
        """Whether a text has one mask, and nothing behind it."""
        (ids,) = self.tokenizer.encode_masked([text])
        return np.flatnonzero(ids == self.tokenizer.mask_id).tolist() == [len(ids) - 1]

    def _token(self, probability: float, index: float) -> answers.Token:
        return answers.Token(self.tokenizer.shown(int(index)), int(index), float(probability))

    def _mask_questions(self, sequences: TokenSequences) -> scoring.Questions:
        """One question for each mask of the sequences: which token is it?"""
        by_sequence = []
        for ids in _split(sequences):
            by_sequence.append(np.flatnonzero(ids == self.tokenizer.mask_id))
        counts = [len(positions) for positions in by_sequence]
        positions = np.concatenate([np.zeros(0, dtype=np.int64), *by_sequence])
        # What a causal encoder says of a token stands at the token before it.
        positions -= self.encoder.config.is_causal
        return scoring.Questions(
            sequences=sequences,
            offsets=examples.offsets_of(counts),
            positions=positions,
            ids=np.zeros_like(positions),  # the answers are not known
            text=np.repeat(np.arange(len(counts)), counts),
        )

    def _scored(self, head: Any, sequences: TokenSequences, index: Ints) -> list[answers.Scored]:
        """The scores of the sequences at `index`."""
        is_causal = self.encoder.config.is_causal
        arrays = sequences.gather(index)
        lengths = arrays["lengths"]
        ids = arrays["input_ids"].astype(np.int32)
        texts = TokenSequences(ids, examples.offsets_of(lengths), lengths)
        text, position = scoring.inner_tokens(texts)
        asked_tokens: scoring.Tokens
        hidden_tokens: scoring.Tokens | None
        if is_causal:
            # One reading of a text tells all of its tokens.
            readings = np.arange(len(texts))
            asked_tokens = (text, position)
            hidden_tokens = None
        else:
            # A masked model reads a text once for each token, with that token hidden.
            readings = text
            asked_tokens = (np.arange(len(text)), position)
            hidden_tokens = asked_tokens
        questions = scoring.ask(
            texts,
            readings,
            asked_tokens,
            hidden_tokens,
            mask_id=self.tokenizer.mask_id,
            is_causal=is_causal,
        )

        def label_log_probs(hidden: Tensor, batch: Batch) -> BatchValues:
            states = hidden.index_select(0, batch["prediction_positions"])
            values = log_probs(head, states, batch["prediction_labels"])
            return batch["prediction_index"], values[:, 0]

        outputs = self._run(questions, label_log_probs)
        values = _in_order(outputs, len(questions.ids)).astype(np.float64)
        # [tokens of all texts] -> an array for each text
        ends = np.cumsum(np.bincount(questions.text, minlength=len(index)))[:-1]
        scored = []
        for token_values, token_ids in zip(
            np.split(values, ends), np.split(questions.ids, ends), strict=True
        ):
            tokens = tuple(self.tokenizer.vocabulary[i] for i in token_ids)
            total = float(token_values.sum())
            scored.append(answers.Scored(total, tokens, tuple(map(float, token_values))))
        return scored

    def _window_settings(self) -> squad.WindowSettings:
        """Windows over a question and its passage: those of the model's fine-tuning."""
        trained = self.model.config.get("clozelab", {})
        limit = self.model.max_length
        return squad.WindowSettings.fitted(
            max_seq_length=min(trained.get("max_seq_length", limit), limit),
            doc_stride=trained.get("doc_stride", 128),
            max_query_length=trained.get("max_query_length", 64),
        )

    def _unasked(self, questions: Sequence[Any]) -> list[str | None]:
        """Why a question cannot be answered; None where it can."""
        reasons: list[str | None] = []
        for item in questions:
            if isinstance(item, Unreadable):
                reasons.append(item.reason)
                continue
            question, passages = item
            (ids,) = self.tokenizer.encode_batch([question])
            reason = unread_reason(ids, self.tokenizer)
            if reason is None and not any(map(str.strip, passages)):
                reason = "has no passage with text to look for an answer in"
            reasons.append(reason)
        return reasons

    def _candidates(
        self,
        head: Any,
        questions: Sequence[tuple[str, Sequence[str]]],
        windows: squad.WindowSettings,
        settings: NBestSettings,
    ) -> list[answers.Candidates]:
        """The candidates of each question, from all of its passages."""
        # Each passage is asked its question as SQuAD has them: one question, one passage.
        passages: list[_Passage] = []
        for question, (_, texts) in enumerate(questions):
            for number, text in enumerate(texts):
                passages.append(_Passage(question, number, text))
        pairs = []
        for index, passage in enumerate(passages):
            question_text = questions[passage.question][0]
            pairs.append(squad.SquadQuestion(str(index), question_text, index, (), -1))
        asked_pairs = squad.SquadExamples([passage.text for passage in passages], pairs)
        features, counts = squad.build_features(asked_pairs, self.tokenizer, windows)
        if counts["questions_cut"]:
            log.warning(
                "questions of more than %d tokens are cut to them, as in training",
                windows.max_query_length,
            )

        def span_logits(hidden: Tensor, batch: Batch) -> BatchValues:
            return batch["example_index"], self._fp32(head, hidden)

        outputs = self._run(features.sequences, span_logits, reads_bilstm=True)
        start_logits, end_logits = token_logits(features, outputs)
        predicted = predict_answers(features, asked_pairs, start_logits, end_logits, settings)
        # The passages' candidates, with their logits, compete for the question.
        candidates = [answers.Candidates() for _ in questions]
        for index, passage in enumerate(passages):
            nbest = zip(predicted.nbest[str(index)], predicted.places[str(index)], strict=True)
            for candidate, span in nbest:
                logit = candidate["start_logit"] + candidate["end_logit"]
                if span is not None:
                    answer = answers.Answer(candidate["text"], 0.0, passage.number, *span)
                    candidates[passage.question].scored.append((logit, answer))
                elif candidate["text"] == "":
                    candidates[passage.question].add_null(logit)
        return candidates

    def _tagged(self, head: Any, texts: Sequence[_Words]) -> list[answers.Tagged]:
        """The words of each text with their tags, and its entities."""
        words = [text.strings() for text in texts]
        predictions = self._predict_tags(head, words)
        # [W, 2] -> the rows of each text
        ends = np.cumsum([len(text_words) for text_words in words])[:-1]
        tagged = []
        for text, rows in zip(texts, np.split(predictions, ends), strict=True):
            spans = []
            for (start, end), (probability, tag) in zip(text.spans, rows, strict=True):
                word = text.text[start:end]
                label = self.labels[int(tag)]
                spans.append(answers.Span(word, start, end, label, float(probability)))
            entities = answers.entities_of(text.text, spans)
            tagged.append(answers.Tagged(text.text, tuple(spans), entities))
        return tagged

    def _predict_tags(self, head: Any, words: list[list[str]]) -> NDArray[np.float64]:
        """[W, 2]: of each word of all texts the probability and the number of its best tag."""
        # Each text is a sentence, and a document, of its own: nothing stands around it.
        numbers = list(range(len(words)))
        sentences = tags.TaggedSentences(words, documents=numbers, lines=numbers)
        arrays, _ = tags.build_sequences(
            sentences, numbers, self.tokenizer, self.model.max_length, False
        )
        offsets = arrays["offsets"]
        tokens = TokenSequences(arrays["input_ids"], offsets, np.diff(offsets).astype(np.int32))
        num_words = sum(map(len, words))
        sequences = tags.TaggedSequences(
            sequences=tokens,
            word_offsets=arrays["word_offsets"],
            word_positions=arrays["word_positions"],
            labels=np.zeros(num_words, dtype=np.int64),
        )
        # A feature-based tagger (table 7) reads some layers of each word, a usual one the last
        # layer.
        mix: Any = dict(self.heads.items()).get("feature_mix")
        features = self.model.config.get("clozelab", {}).get("features")
        layers: list[int] = []
        if mix is not None:
            layers = feature_layers(features, self.encoder.config.num_hidden_layers)
        words_per_text = np.diff(arrays["word_offsets"])

        def best_tags(hidden: Tensor, batch: Batch) -> BatchValues:
            if layers:
                hidden = torch.stack([batch["hidden_states"][layer] for layer in layers], dim=1)
            states = hidden.index_select(0, batch["word_slots"])
            if layers:
                lengths = words_per_text[batch["example_index"].cpu().numpy()]
                layout = Layout.ragged(lengths).to(self.device)
                states = self.heads["bilstm"](mix(states.float()), layout)
            top = self._fp32(head, states).softmax(1).max(1)
            pairs = torch.stack([top.values.double(), top.indices.double()], dim=1)
            return batch["word_index"], pairs

        has_mix = bool(layers)
        outputs = self._run(sequences, best_tags, reads_bilstm=not has_mix, hidden_states=has_mix)
        return _in_order(outputs, num_words)

    def _head(self, kind: str, verb: str) -> Any:
        """The head of a kind; ValueError where it was never trained."""
        if kind in self.heads:
            return self.heads[kind]
        trained = [name for name in self.heads if name not in ("bilstm", "feature_mix")]
        raise ValueError(
            f"{self.model.folder} cannot {verb}: its {kind} head was never trained (trained heads:"
            f" {', '.join(trained) or 'none'}); train one:"
            f" {COMMANDS[kind].replace('FOLDER', str(self.model.folder))}"
        )

    def _fp32(self, head: nn.Module, hidden: Tensor) -> Tensor:
        with torch.autocast(self.device.type, enabled=False):
            return head(hidden.float())

    @torch.inference_mode()
    def _run(
        self,
        sequences: examples.Sequences,
        read: Callable[[Tensor, Batch], BatchValues],
        *,
        hidden_states: bool = False,
        reads_bilstm: bool = False,
        max_tokens: int = BATCH_TOKENS,
    ) -> list[BatchValues]:
        """Calls `read` with every batch's states [T, H], and returns its values on the host.

        `hidden_states`: those of all layers are in the batch.
        """
        is_bf16 = self.precision.startswith("bf16")
        bilstm = None
        if reads_bilstm and "bilstm" in self.heads:
            bilstm = self.heads["bilstm"]
        outputs = []
        for index in self.progress(examples.token_budget_batches(sequences.lengths, max_tokens)):
            batch = make_batch(sequences, index, {})
            # A layout moves as tensors do.
            batch = {key: value.to(self.device) for key, value in batch.items()}
            with (
                torch.autocast(self.device.type, torch.bfloat16, enabled=is_bf16),
                self._fp32_library(),
            ):
                states, batch["hidden_states"] = self.encoder(
                    batch["input_ids"],
                    batch["token_type_ids"],
                    batch["position_ids"],
                    batch["layout"],
                    output_hidden_states=hidden_states,
                )
                if bilstm is not None:
                    states = bilstm(states, batch["layout"])
                numbers, values = read(states, batch)
            self._refuse_not_finite(values)
            outputs.append((numbers.cpu(), values.cpu()))
        return outputs

    def _refuse_not_finite(self, values: Tensor) -> None:
        if not torch.isfinite(values).all():
            raise ValueError(
                f"{self.model.folder} gives no finite numbers: its weights are damaged or diverged"
            )

    def _sequence_logits(self, head: Any, encoded: Encoded) -> NDArray[np.float32]:
        """[readable texts, outputs of the head]: of a text in windows the mean of their logits."""
        sequences = encoded.sequences
        has_bilstm = "bilstm" in self.heads

        def logits(hidden: Tensor, batch: Batch) -> BatchValues:
            states = sequence_states(self.encoder, head, hidden, batch["layout"], has_bilstm)
            return batch["example_index"], self._fp32(head, states)

        values = _in_order(self._run(sequences, logits, reads_bilstm=True), len(sequences))
        return _mean_of_windows(values, encoded.window_offsets)

    def _check_pooling(self, pooling: str, layer: int | None) -> None:
        """ValueError for a pooling or a layer that this encoder does not have."""
        depth = self.encoder.config.num_hidden_layers
        if pooling not in POOLINGS or (pooling == "last4" and (layer is not None or depth < 4)):
            choices = f"choose one of {', '.join(POOLINGS)}; last4 needs 4 layers and no layer="
            raise ValueError(f"pooling={pooling!r}: {choices}")
        if layer is not None and not -depth - 1 <= _whole_number("layer", layer) <= depth:
            raise ValueError(
                f"layer={layer}: this encoder has layers 0 to {depth}, or -1 for the last"
            )


def load(
    place: str | Path,
    *,
    device: str = "auto",
    precision: str = "auto",
    hub: bool = False,
    label_names: Mapping[str, str] | None = None,
) -> Predictor:
    """The model of a run, of a folder or of a file, ready to answer.

    A run is a fine-tuned model, or a pre-training's encoder with its heads. With `hub` a
    NAME@COMMIT of the Hugging Face hub is taken as well; it is never asked otherwise.
    `label_names`: the model's names of its labels -> what answers call them.
    """
    model = read_model(find_model(str(place), from_hub=hub))
    return Predictor(model, device=device, precision=precision, label_names=label_names)


def _resolve_device(device: str | torch.device) -> torch.device:
    """The device that `auto` or a name means; ValueError for one that is not here."""
    has_gpu = torch.cuda.is_available()
    name = str(device)
    if device == "auto":
        name = "cuda" if has_gpu else "cpu"
    device_type = name.partition(":")[0]
    if device_type != "cpu" and not (device_type == "cuda" and has_gpu):
        raise ValueError(
            f"device={device}: choose auto, cpu or cuda; there is {'a' if has_gpu else 'no'}"
            " GPU here"
        )
    return torch.device(name)


def _refuse(reasons: Sequence[str | None], given: Texts, errors: str, noun: str = "text") -> None:
    """ValueError for the first unreadable text, where that is an error or it is the only text."""
    if errors not in ERRORS:
        raise ValueError(f"errors={errors}: choose one of {', '.join(ERRORS)}")
    if errors != "raise" and not given.is_single:
        return
    for number, reason in enumerate(reasons, 1):
        if reason is not None:
            raise UnreadableText(number, reason, noun)


def _whole_number(name: str, value: Any) -> int:
    """A setting that counts something, as int.

    ValueError for text, a fraction, a truth value.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name}={value!r}: give a whole number")
    return int(value)


def _check_top_k(top_k: int) -> None:
    if _whole_number("top_k", top_k) < 1:
        raise ValueError(f"top_k={top_k}: give at least 1")


def _split(sequences: TokenSequences) -> list[NDArray[np.int32]]:
    """The ids of each sequence."""
    return [sequences.input_ids[start:end] for start, end in pairwise(sequences.offsets)]


def _in_order(outputs: Sequence[BatchValues], number: int) -> NDArray[Any]:
    """As `in_order`, also of no text at all."""
    if number:
        return in_order(outputs, number)
    return np.zeros(0, dtype=np.float32)


def _classified(logits: NDArray[np.float32], labels: Sequence[str]) -> list[answers.Classified]:
    """The most probable label of each row of logits."""
    results = []
    for probabilities in torch.from_numpy(logits).float().softmax(-1).tolist():
        by_label = dict(zip(labels, probabilities, strict=True))
        best = max(by_label, key=by_label.__getitem__)
        results.append(answers.Classified(best, by_label[best], by_label))
    return results


def _labelled(logits: NDArray[np.float32], labels: Sequence[str]) -> list[answers.Labelled]:
    """The labels of each row of logits that are more probable than THRESHOLD."""
    results = []
    for probabilities in torch.from_numpy(logits).float().sigmoid().tolist():
        by_label = dict(zip(labels, probabilities, strict=True))
        probable = tuple(label for label, share in by_label.items() if share > THRESHOLD)
        results.append(answers.Labelled(probable, by_label))
    return results


def _mean_of_windows(values: NDArray[Any], offsets: Ints) -> NDArray[Any]:
    """[windows, ...] -> [N, ...]; the windows of text n begin at offsets[n]."""
    if len(offsets) == len(values) + 1:
        return values  # one window a text
    sums = np.add.reduceat(values, offsets[:-1], axis=0)
    return sums / np.diff(offsets)[:, None].astype(values.dtype)


def _word_spans(text: str | Sequence[str]) -> list[tuple[int, int]]:
    """The characters (start, end) of each word; of a list of words, where one space joins them."""
    if isinstance(text, str):
        return [span for _, span in WORDS.pre_tokenize_str(SURROGATES.sub("\ufffd", text))]
    spans = []
    start = 0
    for word in text:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return spans
