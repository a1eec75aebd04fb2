"""What a finished model says of texts: it fills masks, classifies, answers, tags, embeds and
scores.

One text gives one result, a list gives a list in its order, a table comes back with columns beside
its own (datamodules/texts.py says what else is read). All texts are encoded and checked before the
first is read; then they go through the encoder in streams of similar lengths, without padding. The
encoder runs in bf16 where the processor multiplies that, heads and probabilities in fp32.

A text that the model cannot read (empty, too long, of unknown tokens alone) takes no other one
along: `Unanswered` stands in its place with the reason, and a warning counts them. `errors="raise"`
makes it a ValueError, as it is of one text given by itself. An empty text has a vector, that of the
special tokens.

Letters: N texts, T tokens of a batch, P places that are asked for, H hidden size, V vocabulary, L
layers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
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
from clozelab.modules.finetuning import Batch, Part, in_order
from clozelab.modules.measures import log_probs
from clozelab.modules.model import Model, find_model, read_model, renamed_labels, trained_pooling
from clozelab.modules.spans import NBestSettings, predict_answers, token_logits
from clozelab.training.runtime import (
    MAX_FP32_ERROR,
    choose_precision,
    onednn_fp32,
    onednn_fp32_error,
)

# what a text that cannot be read is: an answer that says so, or a ValueError
ERRORS = ("mark", "raise")
THRESHOLD = 0.5  # of a label's own probability, where labels do not exclude each other
BATCH_TOKENS = 4096
TEXTS_PER_SCORING = 256  # a masked model reads a text once for each of its tokens
WORDS = Split(
    Regex(r"[\w\p{N}]+(?:(?:[-'’.]|\p{Cf}+)[\w\p{N}]+)*|[^\w\p{N}\s\p{Cf}\p{Cc}][\p{M}\p{Cf}]*"),
    "removed",
    invert=True,
)
"""Here a mark (an accent apart from its letter, a vowel of Hindi) is a part of its word, which
Python's \\w denies.
"""
POOLINGS, PRECISIONS = ("cls", "mean", "last4"), ("auto", "bf16-mixed", "32-true")
COMMANDS = {
    "lm": "clozelab pretrain objective=mlm encoder=FOLDER",
    "nsp": "clozelab pretrain objective=mlm_nsp encoder=FOLDER",
    "classification": "clozelab finetune encoder=FOLDER row=NAME task=sst2",
    "tags": "clozelab finetune encoder=FOLDER row=NAME task=ner_conll2003",
    "spans": "clozelab finetune encoder=FOLDER row=NAME task=squad_v1",
}
"""Kind of head -> what trains one."""
log = logging.getLogger(__name__)


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
        has_gpu = torch.cuda.is_available()
        # torch.device is one, too
        name = ("cuda" if has_gpu else "cpu") if device == "auto" else str(device)
        if name.partition(":")[0] not in ("cpu", *(["cuda"] if has_gpu else [])):
            raise ValueError(
                f"device={device}: choose auto, cpu or cuda; there is {'a' if has_gpu else 'no'}"
                " GPU here"
            )
        if precision not in PRECISIONS:
            raise ValueError(f"precision={precision}: choose one of {', '.join(PRECISIONS)}")
        self.model, self.device = model, torch.device(name)
        self.tokenizer = model.tokenizer
        self.labels = tuple(renamed_labels(model.labels, label_names or {}, model.folder))
        self.warns = True
        self.encoder, self.heads = (
            model.encoder.to(self.device).eval(),
            model.heads.to(self.device).eval(),
        )
        self.precision = choose_precision(precision, "cpu" if self.device.type == "cpu" else "gpu")
        self.progress: Callable[[Sequence[Ints]], Iterable[Ints]] = iter
        is_fp32 = self.device.type == "cpu" and self.precision == "32-true"
        error = onednn_fp32_error() if is_fp32 else None
        self._products: Any = (
            onednn_fp32 if error is not None and error <= MAX_FP32_ERROR else nullcontext
        )

    # What it does. Everywhere `columns` names columns of a table, and `errors` is one of ERRORS.

    def fill_mask(
        self,
        texts: Any,
        top_k: int = 5,
        *,
        columns: str | Sequence[str] | None = None,
        errors: str = "mark",
    ) -> Any:
        """`Filled`: for each mask (the tokenizer's own mask token in the text) the `top_k` most
        probable tokens.
        """
        head, given = self._head("lm", "fill a mask"), read_texts(texts, "fill", columns)
        _check_top_k(top_k)
        encoded = self._encode(self._with_masks(given), errors, has_masks=True)
        sequences, vocab_size = encoded.sequences, self.tokenizer.vocab_size
        places = [np.flatnonzero(ids == self.tokenizer.mask_id) for ids in _split(sequences)]
        counts = [len(own) for own in places]
        # What a causal encoder says of a token stands at the token before it.
        positions = (
            np.concatenate([np.zeros(0, dtype=np.int64), *places]) - self.encoder.config.is_causal
        )
        owners = np.repeat(np.arange(len(counts)), counts)
        ends = examples.offsets_of(counts)
        nothing = positions * 0
        asked = scoring.Questions(sequences, ends, positions, nothing, owners)

        def best(hidden: Tensor, batch: Batch) -> Part:
            states, found = hidden.index_select(0, batch["prediction_positions"]), []
            for some in states.split(max(1, CHUNK_LOGITS // len(head.bias))):
                shares = self._fp32(head, some)[:, :vocab_size].double().softmax(1)
                top = shares.topk(min(top_k, vocab_size))
                found.append(torch.stack([top.values, top.indices.double()], dim=2))  # [P, k, 2]
            return batch["prediction_index"], torch.cat(found)

        values = _in_order(self._run(asked, best), len(positions))
        masks = []
        for best_tokens in values:
            masks.append(tuple(self._token(share, index) for share, index in best_tokens))
        items = [
            text
            for text, reason in zip(given.items, encoded.reasons, strict=True)
            if reason is None
        ]
        filled = [
            answers.Filled(text, tuple(masks[start:end]))
            for text, start, end in zip(items, ends, ends[1:], strict=False)
        ]
        return self._returned(given, encoded.reasons, filled)

    def classify(
        self,
        texts: Any,
        stride: int | None = None,
        *,
        columns: str | Sequence[str] | None = None,
        errors: str = "mark",
    ) -> Any:
        """`Classified`; `Labelled` where labels do not exclude each other, `Number` of a
        regression. With `stride` a longer text is read in windows so many tokens apart, and the
        mean of their logits counts."""
        head = self._head("classification", "classify")
        given = read_texts(texts, "classify", columns)
        self.require_kind(given.items)
        encoded = self._encode(given, errors, stride=stride)
        logits = self._sequence_logits(head, encoded)
        found: list[Any]
        if self.model.task == "regression":
            found = [answers.Number(float(values[0])) for values in logits]
        elif self.model.task == "multi_label":
            found = _labelled(logits, self.labels)
        else:
            found = _classified(logits, self.labels)
        return self._returned(given, encoded.reasons, found)

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
        """float32 [N, H]; [H] for one text. The mean over all tokens, the first token's state
        (`cls`; of a causal encoder the last one's), or the mean of the last four layers side by
        side (`last4`, [N, 4 H]). None: what the model's embeddings were trained with, else the
        mean. A text that cannot be read is a row of NaN.

        `layer`: 0 is what goes into the first layer, -1 the last one's output. `stride`: see
        `classify`.
        """
        given = read_texts(texts, "embed", columns)
        found = self.embed_each(given, pooling, layer, stride, errors=errors)
        if given.is_single:
            return found[0]
        if given.table is not None:
            return with_columns(given.table, answers.columns_of(found))
        known = next((one for one in found if not isinstance(one, answers.Unanswered)), None)
        if known is None:
            width = self.encoder.config.hidden_size
        else:
            width = len(known)
        nothing = np.full(width, np.nan, dtype=np.float32)
        return np.stack([nothing if isinstance(one, answers.Unanswered) else one for one in found])

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
        depth = self.encoder.config.num_hidden_layers
        if pooling is None:
            pooling = trained_pooling(self.model.folder)
        if pooling not in POOLINGS or (pooling == "last4" and (layer is not None or depth < 4)):
            known = f"choose one of {', '.join(POOLINGS)}; last4 needs 4 layers and no layer="
            raise ValueError(f"pooling={pooling!r}: {known}")
        if layer is not None and not -depth - 1 <= _whole_number("layer", layer) <= depth:
            raise ValueError(
                f"layer={layer}: this encoder has layers 0 to {depth}, or -1 for the last"
            )
        if isinstance(texts, Texts):
            given = texts
        else:
            given = read_texts(texts, "embed")
        encoded = self._encode(given, errors, stride=stride, reads_empty=True)
        is_inner_layer = layer not in (None, -1, depth)

        def pooled(hidden: Tensor, batch: Batch) -> Part:
            if pooling == "last4":
                hidden = torch.cat([*batch["hidden_states"][-4:-1], hidden], dim=1)
            elif is_inner_layer:
                hidden = batch["hidden_states"][layer]
            return batch["example_index"], self.encoder.sentence_states(
                hidden, batch["layout"], pooling
            )

        parts = self._run(
            encoded.sequences,
            pooled,
            hidden_states=pooling == "last4" or is_inner_layer,
        )
        values = _mean_of_windows(_in_order(parts, len(encoded.sequences)), encoded.window_offsets)
        return self._merged(encoded.reasons, list(values))

    def score(
        self,
        texts: Any,
        *,
        columns: str | Sequence[str] | None = None,
        errors: str = "mark",
    ) -> Any:
        """`Scored`: by the chain rule where the encoder is causal, else the pseudo-log-likelihood
        (Salazar 2020).
        """
        head, given = self._head("lm", "score a text"), read_texts(texts, "score", columns)
        encoded = self._encode(given, errors)
        found: list[Any] = []
        for first in range(0, len(encoded.sequences), TEXTS_PER_SCORING):
            last = min(first + TEXTS_PER_SCORING, len(encoded.sequences))
            found += self._scored(head, encoded.sequences, np.arange(first, last))
        return self._returned(given, encoded.reasons, found)

    def hidden_states(
        self,
        texts: Any,
        *,
        columns: str | Sequence[str] | None = None,
        errors: str = "mark",
    ) -> Any:
        """float32 [L + 1, tokens, H] of each text: what goes into the first layer, and what comes
        out of each.
        """
        given = read_texts(texts, "states", columns)
        encoded = self._encode(given, errors, reads_empty=True)
        found: dict[int, Any] = {}

        def keep(hidden: Tensor, batch: Batch) -> Part:
            states = torch.stack([*batch["hidden_states"][:-1], hidden]).float().cpu()
            self._refuse_not_finite(states)
            parts = (
                one.numpy().copy() for one in states.split(batch["layout"].lengths_list, dim=1)
            )
            found.update(zip(batch["example_index"].tolist(), parts, strict=True))
            return batch["example_index"], batch["example_index"]

        self._run(encoded.sequences, keep, hidden_states=True)
        return self._returned(
            given,
            encoded.reasons,
            [found[number] for number in range(len(found))],
        )

    def attention(
        self,
        texts: Any,
        *,
        columns: str | Sequence[str] | None = None,
        errors: str = "mark",
    ) -> Any:
        """float32 [L, heads, tokens, tokens] of each text: what share of its look each token (the
        third axis) gives to each other one. A text of a masked model may have masks."""
        from clozelab.modules.explaining import noted_attention

        given = read_texts(texts, "attention", columns)
        encoded = self._encode(
            given,
            errors,
            reads_empty=True,
            has_masks=self._may_have_masks(given.items),
        )
        found, layers = {}, list[Tensor]()

        def keep(hidden: Tensor, batch: Batch) -> Part:  # noqa: ARG001
            shares = torch.stack(layers).cpu()
            self._refuse_not_finite(shares)
            found[int(batch["example_index"])] = shares.numpy()
            layers.clear()
            return batch["example_index"], batch["example_index"]

        with noted_attention(self.encoder, layers.append):
            self._run(encoded.sequences, keep, max_tokens=1)
        return self._returned(
            given,
            encoded.reasons,
            [found[number] for number in range(len(found))],
        )

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
        asked = [(question, read_passages(passages, "answer"))]
        return self.answer_all(asked, top_k=top_k, null_answer=null_answer, errors="raise")[0]

    def answer_all(
        self,
        questions: Any,
        *,
        top_k: int = 1,
        null_answer: bool | None = None,
        columns: str | Sequence[str] | None = None,
        errors: str = "mark",
    ) -> Any:
        """Answers to many questions, each with its passages, by the rules of SQuAD's released code
        (modules/spans.py).

        `questions`: (question, passage or passages) of each, or a table with a column of questions
        and one of passages. `null_answer`: whether "no answer" may be the best; None: where the
        model was trained with such questions. It is where the null odds are above the threshold
        that was best in training. `top_k`: answers in all."""
        head, made = self._head("spans", "answer a question"), self.model.config.get("clozelab", {})
        given = read_texts(questions, "answer", columns)
        _check_top_k(top_k)
        rules, limit = made.get("answers", {}), self.model.max_length
        may_be_null = rules.get("with_unanswerable", False) if null_answer is None else null_answer
        settings = NBestSettings(
            max(rules.get("n_best_size", 20), top_k), rules.get("max_answer_length", 30), True
        )
        sizes = min(made.get("max_seq_length", limit), limit), made.get("doc_stride", 128)
        windows = squad.WindowSettings.fitted(*sizes, made.get("max_query_length", 64))
        reasons = self._unasked(given.items)
        _refuse(reasons, given, errors, "question")
        threshold = None
        if may_be_null:
            threshold = rules.get("threshold") or 0.0
        asked = [item for item, reason in zip(given.items, reasons, strict=True) if reason is None]
        candidates = []
        if asked:
            candidates = self._candidates(head, asked, windows, settings)
        found = [answers.best_answer(own, null, top_k, threshold) for own, null in candidates]
        return self._returned(given, reasons, found)

    def tag(
        self,
        texts: Any,
        *,
        columns: str | Sequence[str] | None = None,
        errors: str = "mark",
    ) -> Any:
        """`Tagged`: a tag for every word, and the entities that B- and I- tags make. A text that is
        a list of words is taken as it is; of any other, words are runs of letters and digits, and
        single marks. Any length."""
        head, given = self._head("tags", "tag words"), read_texts(texts, "tag", columns)
        reasons: list[str | None] = []
        readable: list[tuple[str, list[tuple[int, int]]]] = []
        for item in given.items:
            if isinstance(item, Unreadable):
                reasons.append(item.reason)
                continue
            text, places = item if isinstance(item, str) else " ".join(item), _word_spans(item)
            ids = self.tokenizer.encode_words([text[start:end] for start, end in places])[0]
            reasons.append(unread_reason(ids, self.tokenizer))
            if reasons[-1] is None:
                readable.append((text, places))
        _refuse(reasons, given, errors)
        return self._returned(given, reasons, self._tagged(head, readable) if readable else [])

    # How it does it

    def sequences_of(self, texts: Sequence[Any]) -> TokenSequences:
        """Of texts in which masks are masks, where the model fills them; ValueError for what cannot
        be read."""
        given = Texts(
            [read_item(text, number, "attention") for number, text in enumerate(texts, 1)],
        )
        return self._encode(given, "raise", has_masks=self._may_have_masks(given.items)).sequences

    def require_kind(self, items: Sequence[Any]) -> None:
        """ValueError for single texts where the classifier was trained on pairs, and the other way
        round."""
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
        has_mask = self.tokenizer.has_mask
        return "lm" in self.heads and any(
            isinstance(item, str) and has_mask(item) for item in items
        )

    def _with_masks(self, given: Texts) -> Texts:
        """The same, with those unreadable that have no mask, or one where the encoder does not
        look."""
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

    def _encode(self, given: Texts, errors: str, **how: Any) -> Encoded:
        """Sequences of the readable texts (`how`: see `encode_texts`); ValueError for others, where
        they are errors.
        """
        if how.get("stride") is not None:
            how["stride"] = _whole_number("stride", how["stride"])
        encoded = encode_texts(given.items, self.tokenizer, self.model.max_length, **how)
        _refuse(encoded.reasons, given, errors)
        return encoded

    def _returned(self, given: Texts, reasons: Sequence[str | None], found: Sequence[Any]) -> Any:
        """Results in the form that the texts came in; `found` are those of the readable ones."""
        results = self._merged(reasons, found)
        if given.is_single:
            return results[0]
        if given.table is None:
            return results
        return with_columns(given.table, answers.columns_of(results))

    def _merged(self, reasons: Sequence[str | None], found: Sequence[Any]) -> list[Any]:
        """A result for each text, `Unanswered` for those with a reason; a warning counts these."""
        left = iter(found)
        results = [
            next(left) if reason is None else answers.Unanswered(reason) for reason in reasons
        ]
        problems = [
            (f"text {number}", reason)
            for number, reason in enumerate(reasons, 1)
            if reason is not None
        ]
        if problems and self.warns:
            log.warning(answers.summary_of(problems, len(reasons)))
        return results

    def _ends_with_its_mask(self, text: str) -> bool:
        """Whether a text has one mask, and nothing behind it."""
        (ids,) = self.tokenizer.encode_masked([text])
        return np.flatnonzero(ids == self.tokenizer.mask_id).tolist() == [len(ids) - 1]

    def _token(self, probability: float, index: float) -> answers.Token:
        return answers.Token(self.tokenizer.shown(int(index)), int(index), float(probability))

    def _scored(self, head: Any, sequences: TokenSequences, index: Ints) -> list[answers.Scored]:
        """Of the sequences at `index`."""
        is_causal = self.encoder.config.is_causal
        some = sequences.gather(index)
        flat, lengths = some["input_ids"].astype(np.int32), some["lengths"]
        part = TokenSequences(flat, examples.offsets_of(lengths), lengths)
        text, position = scoring.inner_tokens(part)
        # a masked model reads a text once for each token, with that hidden
        each = (np.arange(len(text)), position)
        which: tuple[Any, Any, Any]
        if is_causal:
            which = (np.arange(len(part)), (text, position), None)
        else:
            which = (text, each, each)
        asked = scoring.ask(part, *which, mask_id=self.tokenizer.mask_id, is_causal=is_causal)

        def of_labels(hidden: Tensor, batch: Batch) -> Part:
            states = hidden.index_select(0, batch["prediction_positions"])
            return (
                batch["prediction_index"],
                log_probs(head, states, batch["prediction_labels"])[:, 0],
            )

        values = _in_order(self._run(asked, of_labels), len(asked.ids)).astype(np.float64)
        ends = np.cumsum(np.bincount(asked.text, minlength=len(index)))[:-1]
        found = []
        for own, ids in zip(np.split(values, ends), np.split(asked.ids, ends), strict=True):
            tokens = tuple(self.tokenizer.vocabulary[i] for i in ids)
            found.append(answers.Scored(float(own.sum()), tokens, tuple(map(float, own))))
        return found

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
    ) -> list[tuple[list[tuple[float, answers.Answer]], float]]:
        """Of each question its candidates (sum of logits, answer), and what "no answer" has at
        least."""
        passages: list[tuple[int, int, str]] = []  # (question, passage of it, text)
        for number, (_, texts) in enumerate(questions):
            passages += [(number, place, text) for place, text in enumerate(texts)]
        asked = [
            squad.SquadQuestion(str(i), questions[n][0], i, (), -1)
            for i, (n, _, _) in enumerate(passages)
        ]
        given = squad.SquadExamples([text for *_, text in passages], asked)
        features, counts = squad.build_features(given, self.tokenizer, windows)
        if counts["questions_cut"]:
            log.warning(
                "questions of more than %d tokens are cut to them, as in training",
                windows.max_query_length,
            )

        def of_tokens(hidden: Tensor, batch: Batch) -> Part:
            return batch["example_index"], self._fp32(head, hidden)

        parts = self._run(features.sequences, of_tokens, reads_bilstm=True)
        predicted = predict_answers(features, given, *token_logits(features, parts), settings)
        found: list[list[tuple[float, answers.Answer]]] = [[] for _ in questions]
        nulls: list[float] = [np.inf] * len(questions)
        for i, (number, passage, _) in enumerate(passages):
            for candidate, place in zip(
                predicted.nbest[str(i)],
                predicted.places[str(i)],
                strict=True,
            ):
                total = candidate["start_logit"] + candidate["end_logit"]
                if place is not None:
                    found[number].append(
                        (total, answers.Answer(candidate["text"], 0.0, passage, *place)),
                    )
                elif candidate["text"] == "":
                    nulls[number] = min(nulls[number], total)
        return list(zip(found, nulls, strict=True))

    def _tagged(
        self,
        head: Any,
        texts: Sequence[tuple[str, list[tuple[int, int]]]],
    ) -> list[answers.Tagged]:
        """Of texts with the places of their words."""
        words = []
        for text, places in texts:
            words.append([text[start:end] for start, end in places])
        every = [*range(len(words))]
        sentences = tags.TaggedSentences(words, documents=every, lines=every)
        arrays, _ = tags.build_sequences(
            sentences, every, self.tokenizer, self.model.max_length, False
        )
        offsets, total = arrays["offsets"], sum(map(len, words))
        tokens = TokenSequences(arrays["input_ids"], offsets, np.diff(offsets).astype(np.int32))
        own = arrays["word_offsets"], arrays["word_positions"], np.zeros(total, dtype=np.int64)
        mix: Any = dict(self.heads.items()).get("feature_mix")
        kind = self.model.config.get("clozelab", {}).get("features")
        layers = (
            feature_layers(kind, self.encoder.config.num_hidden_layers) if mix is not None else []
        )

        def of_words(hidden: Tensor, batch: Batch) -> Part:
            states = (
                torch.stack([batch["hidden_states"][one] for one in layers], dim=1)
                if layers
                else hidden
            )
            states = states.index_select(0, batch["word_slots"])
            if layers:
                numbers = np.diff(arrays["word_offsets"])[batch["example_index"].cpu().numpy()]
                states = self.heads["bilstm"](
                    mix(states.float()), Layout.ragged(numbers).to(self.device)
                )
            top = self._fp32(head, states).softmax(1).max(1)
            return batch["word_index"], torch.stack(
                [top.values.double(), top.indices.double()], dim=1
            )

        sequences, has_mix = tags.TaggedSequences(tokens, *own), bool(layers)
        values = _in_order(
            self._run(sequences, of_words, reads_bilstm=not has_mix, hidden_states=has_mix),
            total,
        )
        ends = np.cumsum([len(one) for one in words])[:-1]
        results = []
        for (text, places), predicted in zip(texts, np.split(values, ends), strict=True):
            spans = []
            for (start, end), (probability, tag) in zip(places, predicted, strict=True):
                spans.append(
                    answers.Span(
                        text[start:end],
                        start,
                        end,
                        self.labels[int(tag)],
                        float(probability),
                    ),
                )
            results.append(answers.Tagged(text, tuple(spans), answers.entities_of(text, spans)))
        return results

    def _head(self, kind: str, act: str) -> Any:
        if kind in self.heads:
            return self.heads[kind]
        has = (
            ", ".join(name for name in self.heads if name not in ("bilstm", "feature_mix"))
            or "none"
        )
        raise ValueError(
            f"{self.model.folder} cannot {act}: its {kind} head was never trained (trained heads:"
            f" {has}); train one: {COMMANDS[kind].replace('FOLDER', str(self.model.folder))}"
        )

    def _fp32(self, head: nn.Module, hidden: Tensor) -> Tensor:
        with torch.autocast(self.device.type, enabled=False):
            return head(hidden.float())

    @torch.inference_mode()
    def _run(
        self,
        sequences: examples.Sequences,
        read: Callable[[Tensor, Batch], Part],
        *,
        hidden_states: bool = False,
        reads_bilstm: bool = False,
        max_tokens: int = BATCH_TOKENS,
    ) -> list[Part]:
        """What `read` says of every batch's states [T, H] (those of all layers are in the batch),
        on the host.
        """
        parts, low = [], self.precision.startswith("bf16")
        bilstm = self.heads["bilstm"] if reads_bilstm and "bilstm" in self.heads else None
        for index in self.progress(examples.token_budget_batches(sequences.lengths, max_tokens)):
            batch = {
                key: value.to(self.device)
                for key, value in make_batch(sequences, index, {}).items()
            }
            ids, layout = (
                (batch["input_ids"], batch["token_type_ids"], batch["position_ids"]),
                batch["layout"],
            )
            with torch.autocast(self.device.type, torch.bfloat16, enabled=low), self._products():
                states, batch["hidden_states"] = self.encoder(
                    *ids, layout, output_hidden_states=hidden_states
                )
                numbers, values = read(states if bilstm is None else bilstm(states, layout), batch)
            self._refuse_not_finite(values)
            parts.append((numbers.cpu(), values.cpu()))
        return parts

    def _refuse_not_finite(self, values: Tensor) -> None:
        if not torch.isfinite(values).all():
            raise ValueError(
                f"{self.model.folder} gives no finite numbers: its weights are damaged or diverged"
            )

    def _sequence_logits(self, head: Any, encoded: Encoded) -> NDArray[np.float32]:
        """[readable texts, outputs of the head]: of a text in windows the mean of their logits."""
        sequences, has_bilstm = encoded.sequences, "bilstm" in self.heads

        def logits(hidden: Tensor, batch: Batch) -> Part:
            states = sequence_states(self.encoder, head, hidden, batch["layout"], has_bilstm)
            return batch["example_index"], self._fp32(head, states)

        values = _in_order(self._run(sequences, logits, reads_bilstm=True), len(sequences))
        return _mean_of_windows(values, encoded.window_offsets)


def load(
    place: str | Path,
    *,
    device: str = "auto",
    precision: str = "auto",
    hub: bool = False,
    label_names: Mapping[str, str] | None = None,
) -> Predictor:
    """The model of a run (a fine-tuned one, or a pre-training's encoder with its heads), of a
    folder or of a file.

    With `hub` a NAME@COMMIT of the Hugging Face hub is taken as well; it is never asked otherwise.
    `label_names`: the model's names of its labels -> what answers call them."""
    model = read_model(find_model(str(place), from_hub=hub))
    return Predictor(model, device=device, precision=precision, label_names=label_names)


def _refuse(reasons: Sequence[str | None], given: Texts, errors: str, noun: str = "text") -> None:
    """ValueError for the first text that cannot be read, where that is an error or it is the only
    one."""
    if errors not in ERRORS:
        raise ValueError(f"errors={errors}: choose one of {', '.join(ERRORS)}")
    if errors != "raise" and not given.is_single:
        return
    for number, reason in enumerate(reasons, 1):
        if reason is not None:
            raise UnreadableText(number, reason, noun)


def _whole_number(name: str, value: Any) -> int:
    """A setting that counts something, whatever kind of integer it is; ValueError for text, a
    fraction, a truth.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name}={value!r}: give a whole number")
    return int(value)


def _check_top_k(top_k: int) -> None:
    if _whole_number("top_k", top_k) < 1:
        raise ValueError(f"top_k={top_k}: give at least 1")


def _split(sequences: TokenSequences) -> list[NDArray[np.int32]]:
    """The ids of each sequence."""
    ids, offsets = sequences.input_ids, sequences.offsets
    return [ids[start:end] for start, end in pairwise(offsets)]


def _in_order(parts: Sequence[Part], number: int) -> NDArray[Any]:
    """As `in_order`, also of no text at all."""
    if number:
        return in_order(parts, number)
    return np.zeros(0, dtype=np.float32)


def _classified(logits: NDArray[np.float32], labels: Sequence[str]) -> list[answers.Classified]:
    found = []
    for shares in torch.from_numpy(logits).float().softmax(-1).tolist():
        by_label = dict(zip(labels, shares, strict=True))
        best = max(by_label, key=by_label.__getitem__)
        found.append(answers.Classified(best, by_label[best], by_label))
    return found


def _labelled(logits: NDArray[np.float32], labels: Sequence[str]) -> list[answers.Labelled]:
    found = []
    for shares in torch.from_numpy(logits).float().sigmoid().tolist():
        by_label = dict(zip(labels, shares, strict=True))
        chosen = tuple(label for label, share in by_label.items() if share > THRESHOLD)
        found.append(answers.Labelled(chosen, by_label))
    return found


def _mean_of_windows(values: NDArray[Any], offsets: Ints) -> NDArray[Any]:
    """[windows, ...] -> [N, ...]."""
    if len(offsets) == len(values) + 1:
        return values
    return np.add.reduceat(values, offsets[:-1], axis=0) / np.diff(offsets)[:, None].astype(
        values.dtype,
    )


def _word_spans(text: str | Sequence[str]) -> list[tuple[int, int]]:
    if isinstance(text, str):
        return [place for _, place in WORDS.pre_tokenize_str(SURROGATES.sub("\ufffd", text))]
    starts = np.cumsum([0, *(len(word) + 1 for word in text)]).tolist()
    return [(start, start + len(word)) for start, word in zip(starts, text, strict=False)]
