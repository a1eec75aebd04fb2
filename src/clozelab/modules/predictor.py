"""Answers a finished model gives for texts: it fills masks, classifies, answers, tags and embeds.

One text gives one result, a list gives a list in its order, a table comes back with columns beside
its own (datamodules/texts.py says what else is read). All texts are encoded and checked before the
first is read; then they go through the encoder in streams of similar lengths, without padding
(modules/runner.py).

A text that the model cannot read (empty, too long, of unknown tokens alone) takes no other one
along: `Unanswered` stands in its place with the reason, and a warning counts them. `errors="raise"`
makes it a ValueError, as it is of one text given by itself. An empty text has a vector, that of the
special tokens.

Letters: N texts, T tokens of a batch, P predicted positions, H hidden size, V vocabulary, L layers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from numbers import Integral
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from claims.text.phrases import count_noun
from clozelab.datamodules.columns import trained_columns
from clozelab.datamodules.encoded import Encoded, encode_texts, unread_reason
from clozelab.datamodules.texts import (
    ERRORS,
    Columns,
    Texts,
    Unreadable,
    UnreadableText,
    read_item,
    read_passages,
    read_texts,
    with_columns,
)
from clozelab.models.attention_maps import capture_attention
from clozelab.models.encoder import EncoderOutput
from clozelab.models.kernels.linear_cross_entropy import CHUNK_LOGITS
from clozelab.models.locate import MODULES_FILE, find_model
from clozelab.modules import answers
from clozelab.modules.model import Model, read_model, renamed_labels, sentence_vectors
from clozelab.modules.runner import ModelRunner
from clozelab.modules.token_heads import (
    Words,
    best_answer,
    mask_questions,
    number_words,
    score_sequences,
    span_candidates,
    tag_texts,
    window_settings,
    word_spans,
)
from clozelab.tasks.batches import Batch, BatchValues, apply_head_fp32, in_order
from clozelab.tasks.ordinal import rank_probabilities, reached_ranks
from clozelab.tasks.sequences import TokenSequences, pool_windows
from clozelab.tasks.spans import NBestSettings

# Of a label's own probability, where labels do not exclude each other and the model has none.
THRESHOLD = 0.5
# A masked model reads a text once for each of its tokens.
TEXTS_PER_SCORING = 256
POOLINGS = ("cls", "mean", "last4")
log = logging.getLogger(__name__)
Answers: TypeAlias = Any
"""The answer to one text, a list of them, or a table with columns of them: as texts were given."""


class Predictor(ModelRunner):
    """A model (modules/model.py) that answers.

    Args:
        device: cpu, cuda or auto (a GPU where there is one).
        precision: of the encoder: auto, bf16-mixed or 32-true.
        label_names: the model's names of its labels -> what answers call them.

    `progress` is put around the batches: rich.progress.track shows a bar. `warns`: whether texts
    that were not answered, or were cut (`num_cut`), are counted in a warning after each call.
    `was_cut`: of the last call's texts, which were.
    """

    def __init__(
        self,
        model: Model,
        *,
        device: str = "auto",
        precision: str = "auto",
        label_names: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(model, device=device, precision=precision)
        self.labels = tuple(renamed_labels(model.class_names, label_names or {}, model.folder))
        # an output of ordered classes is no class by itself
        self.output_names = model.labels if model.task == "ordinal" else self.labels
        self.trained_columns = trained_columns(model.folder.parent)
        self.warns = True
        self.num_cut = 0
        self.was_cut: Sequence[bool] = ()
        trained = model.provenance
        # Folders of before do not say whether there were documents.
        had_documents = trained.get("has_documents", True)
        self.lacks_context = trained.get("document_context", False) and had_documents

    # What a user calls. Everywhere `columns` names columns of a table, and `errors` is one of
    # ERRORS.

    def fill_mask(
        self,
        texts: object,
        top_k: int = 5,
        *,
        columns: Columns = None,
        errors: str = "mark",
    ) -> Answers:
        """The `top_k` most probable tokens of each mask, as `Filled`.

        A mask is the tokenizer's own mask token in the text.
        """
        # A model without the head is refused before a text is looked at; all acts do so.
        head = self.head("lm", "fill a mask")
        given = self._read(texts, "fill", columns)
        _check_top_k(top_k)
        encoded = self._encode(self._with_masks(given), errors, has_masks=True)
        questions = mask_questions(self, encoded.sequences)
        vocab_size = self.tokenizer.vocab_size
        # So few states at once that their logits fit into memory.
        states_at_once = max(1, CHUNK_LOGITS // len(head.bias))

        def top_tokens(hidden: Tensor, batch: Batch) -> BatchValues:
            output = EncoderOutput(hidden, batch["hidden_states"])
            states = head.states(self.encoder, output, batch)
            chunks = []
            for chunk in states.split(states_at_once):
                probabilities = apply_head_fp32(head, chunk)[:, :vocab_size].double().softmax(1)
                # [P, k, 2]
                chunks.append(torch.stack(probabilities.topk(min(top_k, vocab_size)), dim=2))
            return batch["prediction_index"], torch.cat(chunks)

        outputs = self.run(
            questions,
            top_tokens,
            hidden_states=head.reads_hidden_states,
            read_slots=itemgetter("prediction_positions"),
        )
        values = in_order(outputs, len(questions.positions))
        # [P, k, 2] -> the tokens of each mask
        masks = []
        for best_tokens in values:
            masks.append(tuple(self._token(share, index) for share, index in best_tokens))
        # The masks of text n are numbers offsets[n] to offsets[n + 1].
        filled = []
        texts = _readable(given, encoded.reasons)
        for text, (start, end) in zip(texts, pairwise(questions.offsets), strict=True):
            filled.append(answers.Filled(text, tuple(masks[start:end])))
        return self._returned(given, encoded.reasons, filled)

    def classify(
        self,
        texts: object,
        stride: int | None = None,
        *,
        columns: Columns = None,
        errors: str = "mark",
    ) -> Answers:
        """The most probable label of each text, as `Classified`.

        `Labelled` where labels do not exclude each other, `Number` of a regression. A text longer
        than those of the fine-tuning is read as there: cut, or in windows. With `stride` it is read
        in windows so many tokens apart, whose logits are pooled as in training (else by their
        mean).
        """
        head = self.head("classification", "classify")
        given = self._read(texts, "classify", columns)
        self.require_kind(given.items)
        encoded = self._encode(given, errors, stride=stride, as_trained=True)
        logits = self.sequence_logits(head, encoded)
        results: Sequence[object]
        if self.model.task == "regression":
            results = [answers.Number(float(values[0])) for values in logits]
        elif self.model.task == "multi_label":
            threshold = self.model.answer_rules.get("threshold", THRESHOLD)
            results = _labelled(logits, self.labels, threshold)
        elif self.model.task == "ordinal":
            results = _ranked(logits, self.labels)
        else:
            results = _classified(logits, self.labels)
        return self._returned(given, encoded.reasons, results)

    def next_sentence(
        self,
        pairs: object,
        *,
        columns: Columns = None,
        errors: str = "mark",
    ) -> Answers:
        """`Classified` as "next" or "other": whether the second text follows the first."""
        given = self._read(pairs, "next", columns)
        if any(isinstance(text, str) for text in given.items):
            raise ValueError("next_sentence takes pairs: (FIRST, SECOND), or a list of them")
        head = self.head("nsp", "say whether a sentence follows")
        encoded = self._encode(given, errors)
        logits = self.sequence_logits(head, encoded)
        return self._returned(given, encoded.reasons, _classified(logits, ("next", "other")))

    def embed(
        self,
        texts: object,
        pooling: str | None = None,
        layer: int | None = None,
        stride: int | None = None,
        *,
        prompt: str | None = None,
        size: int | None = None,
        columns: Columns = None,
        errors: str = "mark",
    ) -> Answers:
        """float32 [N, H]; [H] for one text. A text that cannot be read is a row of NaN.

        Args:
            pooling: `mean` over all tokens; `cls`, the first token's state (of a causal encoder
                the last one's); `last4`, the mean of the last four layers side by side [N, 4 H].
                None: as the model's embeddings were trained (a folder of sentence-transformers
                may also say that their length is 1, and how many columns are kept), else the mean.
            layer: 0 is what goes into the first layer, -1 the last one's output.
            stride: see `classify`.
            prompt: name of the model's prompt that is written before each text: query, document.
            size: how many leading numbers of a vector are kept (`sizes` of a retrieval task).
        """
        given = self._read(texts, "embed", columns)
        vectors = self.embed_each(
            given, pooling, layer, stride, prompt=prompt, size=size, errors=errors
        )
        if given.is_single:
            return vectors[0]
        if given.table is not None:
            return with_columns(given.table, answers.columns_of(vectors))
        # NaN stands for what could not be read, as wide as the others (four layers with `last4`).
        width = self.encoder.config.output_size
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
        texts: object,
        pooling: str | None = None,
        layer: int | None = None,
        stride: int | None = None,
        *,
        prompt: str | None = None,
        size: int | None = None,
        errors: str = "mark",
    ) -> list[Any]:
        """As `embed`, in a list: float32 [H] of each text, or `Unanswered` with the reason."""
        recipe = sentence_vectors(self.model.folder, pooling)
        pooling = recipe.pooling
        self._check_pooling(pooling, layer)
        width = self.encoder.config.output_size
        if size is not None and not 1 <= _whole_number("size", size) <= width:
            raise ValueError(f"size={size}: a vector has {width} numbers, so give 1 to {width}")
        if isinstance(texts, Texts):
            given = texts
        else:
            given = read_texts(texts, "embed")
        self._require_single(given.items)
        if prompt is None:
            recipe.warn_of_prompts(self.model.folder)
        else:
            before = recipe.prompt(prompt)
            given = replace(given, items=[_behind(before, item) for item in given.items])
        # An embedding is scored with its training's length, so a long text is cut there, too.
        as_trained = "pooling" in self.model.provenance
        encoded = self._encode(
            given, errors, stride=stride, as_trained=as_trained, reads_empty=True
        )

        def pool(hidden: Tensor, batch: Batch) -> BatchValues:
            if pooling == "last4":
                hidden = torch.cat(batch["hidden_states"][-4:], dim=1)
            elif layer is not None:
                hidden = batch["hidden_states"][layer]
            vectors = self.encoder.sentence_states(hidden, batch["layout"], pooling)
            return batch["example_index"], vectors

        def pooled_slots(batch: Batch) -> Tensor | None:
            return self.encoder.sentence_slots(batch["layout"], pooling)

        # The states of all layers take memory, and nothing else reads them.
        needs_layers = pooling == "last4" or layer is not None
        with self.without_global_tokens():
            outputs = self.run(
                encoded.sequences, pool, hidden_states=needs_layers, read_slots=pooled_slots
            )
        # Without stride each text is one window.
        windows = in_order(outputs, len(encoded.sequences))
        values = pool_windows(windows, encoded.window_offsets)
        if recipe.normalized:
            # Values of no text at all have no width, and one dimension.
            values = F.normalize(torch.from_numpy(values), dim=-1).numpy()
        return self._merged(encoded.reasons, [vector[: size or recipe.size] for vector in values])

    def score(
        self,
        texts: object,
        *,
        columns: Columns = None,
        errors: str = "mark",
    ) -> Answers:
        """The log-probability of each text and of its tokens, as `Scored`.

        By the chain rule where the encoder is causal, else the pseudo-log-likelihood (Salazar
        2020).
        """
        head = self.head("lm", "score a text")
        given = self._read(texts, "score", columns)
        encoded = self._encode(given, errors)
        results: list[object] = []
        for first in range(0, len(encoded.sequences), TEXTS_PER_SCORING):
            last = min(first + TEXTS_PER_SCORING, len(encoded.sequences))
            results += score_sequences(self, head, encoded.sequences, np.arange(first, last))
        return self._returned(given, encoded.reasons, results)

    def hidden_states(
        self,
        texts: object,
        *,
        columns: Columns = None,
        errors: str = "mark",
    ) -> Answers:
        """float32 [L + 1, tokens, H] of each text: the embeddings, and the output of each layer."""
        given = self._read(texts, "states", columns)
        encoded = self._encode(given, errors, reads_empty=True)

        def by_text(hidden: Tensor, batch: Batch) -> Sequence[Tensor]:  # noqa: ARG001
            # [L + 1, T, H] of the whole stream -> one array for each text.
            states = torch.stack(batch["hidden_states"]).float()
            return states.split(batch["layout"].lengths_list, dim=1)

        with self.without_global_tokens():
            results = self._collect(encoded.sequences, by_text, hidden_states=True)
        return self._returned(given, encoded.reasons, results)

    def _collect(
        self,
        sequences: TokenSequences,
        by_text: Callable[[Tensor, Batch], Sequence[Tensor]],
        **options: Any,
    ) -> list[NDArray[np.float32]]:
        """What `by_text` gives for each text of a batch, in the order of all texts."""
        arrays: dict[int, NDArray[np.float32]] = {}

        def keep(hidden: Tensor, batch: Batch) -> BatchValues:
            numbers = batch["example_index"]
            # A copy: a view would keep the states of the whole batch in memory.
            for number, values in zip(numbers.tolist(), by_text(hidden, batch), strict=True):
                self.refuse_not_finite(values)
                arrays[number] = values.cpu().numpy().copy()
            return numbers, numbers

        self.run(sequences, keep, **options)
        return [arrays[number] for number in range(len(arrays))]

    def attention(
        self,
        texts: object,
        *,
        as_trained: bool = False,
        columns: Columns = None,
        errors: str = "mark",
    ) -> Answers:
        """float32 [L, heads, tokens, tokens] of each text: attention probabilities.

        The third axis is the token that looks, the fourth what it looks at. A text of a masked
        model may have masks. `as_trained` cuts a long text as `classify` does.
        """
        if self.encoder.config.num_directions == 2:
            raise ValueError(
                f"{self.model.folder} reads in two directions: its layers' attention is no one"
                " table; take an encoder of one direction"
            )
        if self.encoder.choose_global is not None:
            raise ValueError(
                f"{self.model.folder} has tokens that see everything by matrices of their own: its"
                " layers' attention is no one table; take the encoder before fine-tuning"
            )
        given = self._read(texts, "attention", columns)
        has_masks = self._may_have_masks(given.items)
        encoded = self._encode(
            given, errors, as_trained=as_trained, reads_empty=True, has_masks=has_masks
        )
        layers: list[Tensor] = []  # of the one text that is being read

        def by_text(hidden: Tensor, batch: Batch) -> Sequence[Tensor]:  # noqa: ARG001
            # One text a batch (max_tokens=1), so every entry is a layer of this text.
            probabilities = torch.stack(layers)
            layers.clear()
            return [probabilities]

        with capture_attention(self.encoder, layers.append):
            results = self._collect(encoded.sequences, by_text, max_tokens=1)
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
        questions: object,
        *,
        top_k: int = 1,
        null_answer: bool | None = None,
        columns: Columns = None,
        errors: str = "mark",
    ) -> Answers:
        """Answers to many questions by the rules of SQuAD's released code (tasks/spans.py).

        Args:
            questions: (question, passage or passages) of each, or a table with a column of
                questions and one of passages.
            top_k: answers in all.
            null_answer: whether "no answer" may be the best; None: where the model was trained with
                such questions. It is the best where the null odds are above the threshold that was
                best in training.
        """
        head = self.head("spans", "answer a question")
        rules = self.model.answer_rules
        given = self._read(questions, "answer", columns)
        _check_top_k(top_k)
        # What the caller leaves open is as in training, which the folder says.
        if null_answer is None:
            null_answer = rules.get("with_unanswerable", False)
        settings = NBestSettings(
            n_best_size=max(rules.get("n_best_size", 20), top_k),
            max_answer_length=rules.get("max_answer_length", 30),
            with_unanswerable=True,
        )
        windows = window_settings(self.model)
        reasons = self._without_question(given.items)
        _refuse(reasons, given, errors, "question")
        readable = _readable(given, reasons)
        threshold = None
        if null_answer:
            threshold = rules.get("threshold") or 0.0
        results = []
        if readable:
            for candidates, null_logit in span_candidates(self, head, readable, windows, settings):
                results.append(best_answer(candidates, null_logit, top_k, threshold))
        return self._returned(given, reasons, results)

    def tag(
        self,
        texts: object,
        *,
        columns: Columns = None,
        errors: str = "mark",
    ) -> Answers:
        """A tag for every word, and the entities that B- and I- tags make, as `Tagged`.

        A model that predicts a number for each word gives `NumberedWords`.
        A text that is a list of words is taken as it is. Of any other, words are runs of letters
        and digits, characters of Chinese, and single marks. Texts may have any length. Each is read
        by itself; a warning says once where the model was trained with context.
        """
        head = self.head("tags", "tag words")
        given = self._read(texts, "tag", columns)
        reasons: list[str | None] = []
        readable: list[Words] = []
        for item in given.items:
            if isinstance(item, Unreadable):
                reasons.append(item.reason)
                continue
            # A list of words is joined, so that answers can name places in one text.
            text = item if isinstance(item, str) else " ".join(item)
            sentence_words = Words(text, word_spans(item))
            ids = self.tokenizer.encode_words(sentence_words.strings())[0]
            reason = unread_reason(ids, self.tokenizer)
            reasons.append(reason)
            if reason is None:
                readable.append(sentence_words)
        _refuse(reasons, given, errors)
        self._warn_of_context()
        results: Sequence[answers.Result] = []
        if readable and self.model.task == "word_regression":
            results = number_words(self, head, readable)
        elif readable:
            results = tag_texts(self, head, readable, self.labels)
        return self._returned(given, reasons, results)

    # Between texts and sequences

    def sequences_of(self, texts: Sequence[object]) -> TokenSequences:
        """Sequences of texts, whose masks are masks where the model fills them.

        ValueError for what cannot be read.
        """
        given = Texts(
            [read_item(text, number, "attention") for number, text in enumerate(texts, 1)],
        )
        has_masks = self._may_have_masks(given.items)
        is_classifier = "classification" in self.heads
        encoded = self._encode(given, "raise", has_masks=has_masks, as_trained=is_classifier)
        if len(encoded.sequences) > len(given.items):
            raise ValueError(
                f"{self.model.folder} reads a text above {self.model.window_length} tokens in"
                " windows, and one is needed here: shorten the text"
            )
        return encoded.sequences

    def require_kind(self, items: Sequence[object]) -> None:
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

    def _require_single(self, items: Sequence[object]) -> None:
        """ValueError for pairs given to a model whose vectors were trained on single texts."""
        folder = self.model.folder
        is_foreign = self.model.task is None and (folder / MODULES_FILE).is_file()
        if self.model.task != "embedding" and not is_foreign:
            return
        pairs = [number for number, item in enumerate(items, 1) if isinstance(item, tuple)]
        if pairs:
            raise ValueError(
                f"{folder} embeds single texts, and text {pairs[0]} is a pair: name the one"
                " column to read (text=COLUMN; columns= in Python), or give one text"
            )

    def _may_have_masks(self, items: Sequence[object]) -> bool:
        if "lm" not in self.heads:
            return False
        return any(isinstance(item, str) and self.tokenizer.has_mask(item) for item in items)

    def _with_masks(self, given: Texts) -> Texts:
        """The same texts; unreadable are those without a mask that the encoder can fill."""
        tokenizer = self.tokenizer
        items: list[object] = []
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

    def _read(self, texts: object, act: str, columns: Columns) -> Texts:
        """What a caller gives; of a table that names no columns those that it was trained on."""
        return read_texts(texts, act, columns, self.trained_columns)

    def _encode(
        self,
        given: Texts,
        errors: str,
        *,
        stride: int | None = None,
        as_trained: bool = False,
        **options: Any,
    ) -> Encoded:
        """Sequences of the readable texts; ValueError for others, where they are errors.

        `as_trained` reads a long text as the model's fine-tuning did, where its folder says how.
        `options` are those of `encode_texts`.
        """
        provenance = self.model.provenance
        is_cut = as_trained and "max_seq_length" in provenance
        if as_trained and stride is None:
            stride = provenance.get("window_stride")
        max_length = self.model.max_length
        if stride is not None:
            stride = _whole_number("stride", stride)
        if is_cut or stride is not None:
            max_length = self.model.window_length
        encoded = encode_texts(
            given.items, self.tokenizer, max_length, stride=stride, is_cut=is_cut, **options
        )
        _refuse(encoded.reasons, given, errors)
        self.was_cut = encoded.was_cut
        self.num_cut += sum(encoded.was_cut)
        if self.warns:
            self.warn_of_cut()
        return encoded

    def warn_of_cut(self) -> None:
        """Count, in a warning, the texts that were cut since the last one."""
        if self.num_cut:
            log.warning(
                "%s cut at the %d tokens of the fine-tuning, as texts were there"
                " (stride=N reads a single text in windows)",
                count_noun(self.num_cut, "text"),
                self.model.window_length,
            )
        self.num_cut = 0

    def _warn_of_context(self) -> None:
        """Say once that neighbours of a sentence, which the training had, are not read here."""
        if self.lacks_context:
            log.warning(
                "%s was trained on sentences with their neighbours in the document, and reads each"
                " text by itself here; test=FILE and evaluate read the neighbours, too",
                self.model.folder,
            )
        self.lacks_context = False

    def _returned(
        self, given: Texts, reasons: Sequence[str | None], results: Sequence[object]
    ) -> Answers:
        """Results in the form that the texts came in; `results` are those of the readable ones."""
        merged = self._merged(reasons, results)
        if given.is_single:
            return merged[0]
        if given.table is None:
            return merged
        return with_columns(given.table, answers.columns_of(merged))

    def _merged(self, reasons: Sequence[str | None], results: Sequence[object]) -> list[Any]:
        """A result for each text, `Unanswered` for those with a reason; a warning counts these."""
        # Results are those of the readable texts alone, in their order.
        remaining = iter(results)
        merged: list[object] = []
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

    def _without_question(self, questions: Sequence[Any]) -> list[str | None]:
        """Why a question cannot be answered; None where it can."""
        reasons: list[str | None] = []
        for item in questions:
            if isinstance(item, Unreadable):
                reasons.append(item.reason)
                continue
            question, passages = item
            (ids,) = self.tokenizer.encode_batch([question])
            reason = unread_reason(ids, self.tokenizer)
            if reason is None:
                # Characters alone are no text: some tokenizers drop what has no width.
                encoded = self.tokenizer.encode_with_offsets(list(filter(str.strip, passages)))
                if not any(len(token_ids) for token_ids, _ in encoded):
                    reason = "has no passage with text to look for an answer in"
            reasons.append(reason)
        return reasons

    def _check_pooling(self, pooling: str, layer: int | None) -> None:
        """ValueError for a pooling or a layer that this encoder does not have."""
        # Layers count from 0, the embeddings, to `depth`; from the end as Python counts.
        depth = self.encoder.config.num_hidden_layers
        if pooling not in POOLINGS or (pooling == "last4" and (layer is not None or depth < 4)):
            choices = f"choose one of {', '.join(POOLINGS)}; last4 needs 4 layers and no layer="
            raise ValueError(f"pooling={pooling!r}: {choices}")
        if layer is not None and not -depth - 1 <= _whole_number("layer", layer) <= depth:
            raise ValueError(
                f"layer={layer}: this encoder has layers 0 to {depth}, or -1 for the last"
            )


def load(
    place: str | os.PathLike[str],
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
    model = read_model(find_model(os.fspath(place), from_hub=hub))
    return Predictor(model, device=device, precision=precision, label_names=label_names)


def _refuse(reasons: Sequence[str | None], given: Texts, errors: str, noun: str = "text") -> None:
    """ValueError for the first unreadable text, where that is an error or it is the only text."""
    if errors not in ERRORS:
        raise ValueError(f"errors={errors}: choose one of {', '.join(ERRORS)}")
    if errors != "raise" and not given.is_single:
        return
    for number, reason in enumerate(reasons, 1):
        if reason is not None:
            raise UnreadableText(number, reason, noun)


def _behind(prompt: str, item: Any) -> Any:
    """A text behind a prompt; of a pair the first text, and what cannot be read as it is."""
    if isinstance(item, str):
        return prompt + item
    if isinstance(item, tuple):
        return (prompt + item[0], *item[1:])
    return item


def _readable(given: Texts, reasons: Sequence[str | None]) -> list[Any]:
    """The texts that have no reason against them."""
    pairs = zip(given.items, reasons, strict=True)
    return [item for item, reason in pairs if reason is None]


def _whole_number(name: str, value: object) -> int:
    """A setting that counts something, as int.

    ValueError for text, a fraction, a truth value.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name}={value!r}: give a whole number")
    return int(value)


def _check_top_k(top_k: int) -> None:
    if _whole_number("top_k", top_k) < 1:
        raise ValueError(f"top_k={top_k}: give at least 1")


def _classified(logits: NDArray[np.float32], labels: Sequence[str]) -> list[answers.Classified]:
    """The most probable label of each row of logits."""
    results = []
    for probabilities in torch.from_numpy(logits).float().softmax(-1).tolist():
        by_label = dict(zip(labels, probabilities, strict=True))
        best = max(by_label, key=by_label.__getitem__)
        results.append(answers.Classified(best, by_label[best], by_label))
    return results


def _ranked(logits: NDArray[np.float32], ranks: Sequence[str]) -> list[answers.Classified]:
    """The class that each row of logits reaches, of ordered ones."""
    results: list[answers.Classified] = []
    # without a text, nobody knows how many outputs there are
    if not len(logits):
        return results
    probabilities = rank_probabilities(logits)
    for row, rank in zip(probabilities.tolist(), reached_ranks(logits), strict=True):
        by_name = dict(zip(ranks, row, strict=True))
        results.append(answers.Classified(ranks[rank], row[rank], by_name))
    return results


def _labelled(
    logits: NDArray[np.float32], labels: Sequence[str], threshold: float
) -> list[answers.Labelled]:
    """The labels of each row of logits that are more probable than the threshold."""
    results = []
    for probabilities in torch.from_numpy(logits).float().sigmoid().tolist():
        by_label = dict(zip(labels, probabilities, strict=True))
        probable = tuple(label for label, share in by_label.items() if share > threshold)
        results.append(answers.Labelled(probable, by_label))
    return results
