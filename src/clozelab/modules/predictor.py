"""What a finished model says of texts: it fills masks, classifies, answers, tags, embeds and scores.

One text gives one result, a list gives a list in its order. A pair is a tuple of two texts. All texts are encoded and
checked before the first is read; then they go through the encoder in streams of similar lengths, without padding.
The encoder runs in bf16 where the processor multiplies that, heads and probabilities in fp32.

Letters: N texts, T tokens of a batch, P places that are asked for, H hidden size, V vocabulary, L layers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split
from torch import Tensor, nn

from clozelab.corpus.encoding import SURROGATES
from clozelab.datamodules import examples, scoring, squad, tags
from clozelab.datamodules.examples import Ints, TokenSequences
from clozelab.datamodules.finetuning import make_batch
from clozelab.models.heads import feature_layers
from clozelab.models.kernels.linear_cross_entropy import CHUNK_LOGITS
from clozelab.models.layout import Layout
from clozelab.modules import answers
from clozelab.modules.classification import sequence_states
from clozelab.modules.finetuning import Batch, Part, in_order
from clozelab.modules.measures import log_probs
from clozelab.modules.model import Model, find_model, read_model, trained_pooling
from clozelab.modules.spans import NBestSettings, predict_answers, token_logits
from clozelab.training.runtime import MAX_FP32_ERROR, choose_precision, onednn_fp32, onednn_fp32_error

Text = str | tuple[str, str]
BATCH_TOKENS = 4096
TEXTS_PER_SCORING = 256  # a masked model reads a text once for each of its tokens
WORDS = Split(
    Regex(r"[\w\p{N}]+(?:(?:[-'’.]|\p{Cf}+)[\w\p{N}]+)*|[^\w\p{N}\s\p{Cf}\p{Cc}][\p{M}\p{Cf}]*"), "removed", invert=True
)
"""Here a mark (an accent apart from its letter, a vowel of Hindi) is a part of its word, which Python's \\w denies."""
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

    `progress` is put around the batches: rich.progress.track shows a bar.
    """

    def __init__(self, model: Model, *, device: str = "auto", precision: str = "auto") -> None:
        has_gpu = torch.cuda.is_available()
        name = ("cuda" if has_gpu else "cpu") if device == "auto" else device
        if name.partition(":")[0] not in ("cpu", *(["cuda"] if has_gpu else [])):
            raise ValueError(f"device={device}: choose auto, cpu or cuda; there is {'a' if has_gpu else 'no'} GPU here")
        if precision not in PRECISIONS:
            raise ValueError(f"precision={precision}: choose one of {', '.join(PRECISIONS)}")
        self.model, self.device = model, torch.device(name)
        self.tokenizer, self.labels = model.tokenizer, tuple(model.labels)
        self.encoder, self.heads = model.encoder.to(self.device).eval(), model.heads.to(self.device).eval()
        self.precision = choose_precision(precision, "cpu" if self.device.type == "cpu" else "gpu")
        self.progress: Callable[[Sequence[Ints]], Iterable[Ints]] = iter
        is_fp32 = self.device.type == "cpu" and self.precision == "32-true"
        error = onednn_fp32_error() if is_fp32 else None
        self._products: Any = onednn_fp32 if error is not None and error <= MAX_FP32_ERROR else nullcontext

    # What it does

    def fill_mask(self, texts: str | Sequence[str], top_k: int = 5) -> Any:
        """`Filled`: for each mask (the tokenizer's own mask token in the text) the `top_k` most probable tokens."""
        head, mask, given = self._head("lm", "fill a mask"), self.tokenizer.mask_token, _single(texts)
        _check_top_k(top_k)
        for number, text in enumerate(given, 1):
            if not self.tokenizer.has_mask(text):
                raise ValueError(f"text {number} has no {mask}: write it where a token is to be filled in")
        sequences = self.sequences_of(given)
        rows = np.split(sequences.input_ids, sequences.offsets[1:-1])
        places = [np.flatnonzero(ids == self.tokenizer.mask_id) for ids in rows]
        is_causal, counts = self.encoder.config.is_causal, [len(own) for own in places]
        if is_causal and any(own[0] != len(ids) - 2 for own, ids in zip(places, rows, strict=True)):
            raise ValueError(
                f"{self.model.folder} reads from left to right: it fills one mask, at a text's end, and cannot look at "
                "what stands to its right; `score` gives a whole text's probability"
            )
        positions, owners = np.concatenate(places) - is_causal, np.repeat(np.arange(len(given)), counts)
        ends, nothing = examples.offsets_of(counts), np.zeros_like(positions)
        asked = scoring.Questions(sequences, ends, positions, nothing, owners)

        def best(hidden: Tensor, batch: Batch) -> Part:
            states, found = hidden.index_select(0, batch["prediction_positions"]), []
            for some in states.split(max(1, CHUNK_LOGITS // len(head.bias))):
                shares = self._fp32(head, some)[:, : self.tokenizer.vocab_size].double().softmax(1)
                top = shares.topk(min(top_k, self.tokenizer.vocab_size))
                found.append(torch.stack([top.values, top.indices.double()], dim=2))  # [P, k, 2]
            return batch["prediction_index"], torch.cat(found)

        def token(share: float, index: float) -> answers.Token:
            return answers.Token(self.tokenizer.shown(int(index)), int(index), float(share))

        tokens = [tuple(token(*pair) for pair in one) for one in in_order(self._run(asked, best), len(positions))]
        parts = zip(given, ends, ends[1:], strict=False)
        return _like(texts, [answers.Filled(text, tuple(tokens[a:b])) for text, a, b in parts])

    def classify(self, texts: Text | Sequence[Text], stride: int | None = None) -> Any:
        """`Classified`, or `Number` of a regression. With `stride` a longer text is read in windows so many tokens
        apart, and the mean of their logits counts."""
        logits = self._sequence_logits("classification", "classify", _many(texts), stride)
        if self.model.task == "regression":
            return _like(texts, [answers.Number(float(one[0])) for one in logits])
        return _like(texts, _classified(logits, self.labels))

    def next_sentence(self, pairs: tuple[str, str] | Sequence[tuple[str, str]]) -> Any:
        """`Classified` as "next" or "other": whether the second text follows the first."""
        many = _many(pairs)
        if any(not isinstance(one, tuple) for one in many):
            raise ValueError("next_sentence takes pairs: (FIRST, SECOND), or a list of them")
        logits = self._sequence_logits("nsp", "say whether a sentence follows", many, None)
        return _like(pairs, _classified(logits, ("next", "other")))

    def embed(
        self, texts: Text | Sequence[Text], pooling: str | None = None, layer: int | None = None,
        stride: int | None = None,
    ) -> NDArray[np.float32]:  # fmt: skip
        """float32 [N, H]; [H] for one text. The mean over all tokens, the first token's state (`cls`; of a causal
        encoder the last one's), or the mean of the last four layers side by side (`last4`, [N, 4 H]). None: what the
        model's embeddings were trained with, else the mean.

        `layer`: 0 is what goes into the first layer, -1 the last one's output. `stride`: see `classify`.
        """
        depth, pooling = self.encoder.config.num_hidden_layers, pooling or trained_pooling(self.model.folder)
        if pooling not in POOLINGS or (pooling == "last4" and (layer is not None or depth < 4)):
            said = f"choose one of {', '.join(POOLINGS)}; last4 needs 4 layers and no layer="
            raise ValueError(f"pooling={pooling!r}: {said}")
        if layer is not None and not -depth - 1 <= layer <= depth:
            raise ValueError(f"layer={layer}: this encoder has layers 0 to {depth}, or -1 for the last")
        sequences, starts = self._encode(_many(texts), stride)

        def pooled(hidden: Tensor, batch: Batch) -> Part:
            if pooling == "last4":
                hidden = torch.cat([*batch["hidden_states"][-4:-1], hidden], dim=1)
            elif layer not in (None, -1, depth):
                hidden = batch["hidden_states"][layer]
            return batch["example_index"], self.encoder.sentence_states(hidden, batch["layout"], pooling)

        parts = self._run(sequences, pooled, hidden_states=pooling == "last4" or layer not in (None, -1, depth))
        found = _mean_of_windows(in_order(parts, len(sequences)), starts)
        return found[0] if isinstance(texts, str | tuple) else found

    def score(self, texts: str | Sequence[str]) -> Any:
        """`Scored`: by the chain rule where the encoder is causal, else the pseudo-log-likelihood (Salazar 2020)."""
        head, many, found = self._head("lm", "score a text"), _single(texts), []
        is_causal = self.encoder.config.is_causal
        sequences, _ = self._encode(many, None)
        for first in range(0, len(many), TEXTS_PER_SCORING):
            some = sequences.gather(index := np.arange(first, min(first + TEXTS_PER_SCORING, len(many))))
            flat, lengths = some["input_ids"].astype(np.int32), some["lengths"]
            part = TokenSequences(flat, examples.offsets_of(lengths), lengths)
            text, position = scoring.inner_tokens(part)
            each = np.arange(len(text)), position  # a masked model reads a text once for each token, with that hidden
            which = (np.arange(len(part)), (text, position), None) if is_causal else (text, each, each)
            asked = scoring.ask(part, *which, mask_id=self.tokenizer.mask_id, is_causal=is_causal)

            def of_labels(hidden: Tensor, batch: Batch) -> Part:
                states = hidden.index_select(0, batch["prediction_positions"])
                return batch["prediction_index"], log_probs(head, states, batch["prediction_labels"])[:, 0]

            values = in_order(self._run(asked, of_labels), len(asked.ids)).astype(np.float64)
            ends = np.cumsum(np.bincount(asked.text, minlength=len(index)))[:-1]
            for said, ids in zip(np.split(values, ends), np.split(asked.ids, ends), strict=True):
                tokens = tuple(self.tokenizer.vocabulary[i] for i in ids)
                found.append(answers.Scored(float(said.sum()), tokens, tuple(map(float, said))))
        return _like(texts, found)

    def hidden_states(self, texts: Text | Sequence[Text]) -> Any:
        """float32 [L + 1, tokens, H] of each text: what goes into the first layer, and what comes out of each."""
        sequences, _ = self._encode(_many(texts), None)
        found: dict[int, Any] = {}

        def keep(hidden: Tensor, batch: Batch) -> Part:
            states = torch.stack([*batch["hidden_states"][:-1], hidden]).float().cpu()
            parts = (one.numpy().copy() for one in states.split(batch["layout"].lengths_list, dim=1))
            found.update(zip(batch["example_index"].tolist(), parts, strict=True))
            return batch["example_index"], batch["example_index"]

        self._run(sequences, keep, hidden_states=True)
        return _like(texts, [found[number] for number in range(len(found))])

    def attention(self, texts: Text | Sequence[Text]) -> Any:
        """float32 [L, heads, tokens, tokens] of each text: what share of its look each token (the third axis) gives to
        each other one. A text of a masked model may have masks."""
        from clozelab.modules.explaining import noted_attention

        sequences = self.sequences_of(_many(texts))
        found, layers = {}, list[Tensor]()

        def keep(hidden: Tensor, batch: Batch) -> Part:  # noqa: ARG001
            found[int(batch["example_index"])] = torch.stack(layers).cpu().numpy()
            layers.clear()
            return batch["example_index"], batch["example_index"]

        with noted_attention(self.encoder, layers.append):
            self._run(sequences, keep, max_tokens=1)
        return _like(texts, [found[number] for number in range(len(found))])

    def answer(
        self, question: str, passages: str | Sequence[str], *, top_k: int = 1, null_answer: bool | None = None
    ) -> answers.Answer:
        """The best answer to a question in one or many passages of any length; see `answer_all`."""
        given = [passages] if isinstance(passages, str) else list(passages)
        return self.answer_all([(question, given)], top_k=top_k, null_answer=null_answer)[0]

    def answer_all(
        self, questions: Sequence[tuple[str, Sequence[str]]], *, top_k: int = 1, null_answer: bool | None = None
    ) -> list[answers.Answer]:
        """Answers to many questions, each with its passages, by the rules of SQuAD's released code (modules/spans.py).

        `null_answer`: whether "no answer" may be the best; None: where the model was trained with such questions. It is
        where the null odds are above the threshold that was best in training. `top_k`: answers in all.
        """
        head, made = self._head("spans", "answer a question"), self.model.config.get("clozelab", {})
        _check_top_k(top_k)
        rules, limit = made.get("answers", {}), self.model.max_length
        may_be_null = rules.get("with_unanswerable", False) if null_answer is None else null_answer
        settings = NBestSettings(max(rules.get("n_best_size", 20), top_k), rules.get("max_answer_length", 30), True)
        sizes = min(made.get("max_seq_length", limit), limit), made.get("doc_stride", 128)
        windows = squad.WindowSettings.fitted(*sizes, made.get("max_query_length", 64))
        self._check(self.tokenizer.encode_batch([text for text, _ in questions]), "question")
        if without := next((n for n, (_, texts) in enumerate(questions, 1) if not any(map(str.strip, texts))), None):
            raise ValueError(f"question {without} has no passage with text to look for an answer in")
        passages = [(number, k, text) for number, (_, texts) in enumerate(questions) for k, text in enumerate(texts)]
        asked = [squad.SquadQuestion(str(i), questions[n][0], i, (), -1) for i, (n, _, _) in enumerate(passages)]
        given = squad.SquadExamples([text for *_, text in passages], asked)
        features, counts = squad.build_features(given, self.tokenizer, windows)
        if counts["questions_cut"]:
            log.warning("questions of more than %d tokens are cut to them, as in training", windows.max_query_length)

        def of_tokens(hidden: Tensor, batch: Batch) -> Part:
            return batch["example_index"], self._fp32(head, hidden)

        parts = self._run(features.sequences, of_tokens, reads_bilstm=True)
        said = predict_answers(features, given, *token_logits(features, parts), settings)
        found: list[list[tuple[float, answers.Answer]]] = [[] for _ in questions]
        nulls: list[float] = [np.inf] * len(questions)
        for i, (number, k, _) in enumerate(passages):
            for one, place in zip(said.nbest[str(i)], said.places[str(i)], strict=True):
                total = one["start_logit"] + one["end_logit"]
                if place is not None:
                    found[number].append((total, answers.Answer(one["text"], 0.0, k, *place)))
                elif one["text"] == "":
                    nulls[number] = min(nulls[number], total)
        threshold = (rules.get("threshold") or 0.0) if may_be_null else None
        return [answers.best_answer(*one, top_k, threshold) for one in zip(found, nulls, strict=True)]

    def tag(self, texts: str | Sequence[str] | Sequence[Sequence[str]]) -> Any:
        """`Tagged`: a tag for every word, and the entities that B- and I- tags make. A text that is a list of words is
        taken as it is; of any other, words are runs of letters and digits, and single marks. Any length."""
        head, many = self._head("tags", "tag words"), _many(texts)
        whole = [text if isinstance(text, str) else " ".join(text) for text in many]
        spans = [_word_spans(text) for text in many]
        words = [[text[a:b] for a, b in places] for text, places in zip(whole, spans, strict=True)]
        self._check([self.tokenizer.encode_words(one)[0] for one in words], "text")
        every = [*range(len(words))]
        sentences = tags.TaggedSentences(words, documents=every, lines=every)
        arrays, _ = tags.build_sequences(sentences, every, self.tokenizer, self.model.max_length, False)
        offsets, total = arrays["offsets"], sum(map(len, words))
        tokens = TokenSequences(arrays["input_ids"], offsets, np.diff(offsets).astype(np.int32))
        own = arrays["word_offsets"], arrays["word_positions"], np.zeros(total, dtype=np.int64)
        mix: Any = dict(self.heads.items()).get("feature_mix")
        kind = self.model.config.get("clozelab", {}).get("features")
        layers = feature_layers(kind, self.encoder.config.num_hidden_layers) if mix is not None else []

        def of_words(hidden: Tensor, batch: Batch) -> Part:
            states = torch.stack([batch["hidden_states"][one] for one in layers], dim=1) if layers else hidden
            states = states.index_select(0, batch["word_slots"])
            if layers:
                numbers = np.diff(arrays["word_offsets"])[batch["example_index"].cpu().numpy()]
                states = self.heads["bilstm"](mix(states.float()), Layout.ragged(numbers).to(self.device))
            top = self._fp32(head, states).softmax(1).max(1)
            return batch["word_index"], torch.stack([top.values.double(), top.indices.double()], dim=1)

        sequences, has_mix = tags.TaggedSequences(tokens, *own), bool(layers)
        found = in_order(self._run(sequences, of_words, reads_bilstm=not has_mix, hidden_states=has_mix), total)
        ends = np.cumsum([len(one) for one in words])[:-1]
        results = []
        for text, places, values in zip(whole, spans, np.split(found, ends), strict=True):
            said = zip(places, values, strict=True)
            tagged = tuple(answers.Span(text[a:b], a, b, self.labels[int(tag)], float(p)) for (a, b), (p, tag) in said)
            results.append(answers.Tagged(text, tagged, answers.entities_of(text, tagged)))
        return _like(texts, results)

    # How it does it

    def sequences_of(self, texts: Sequence[Text]) -> TokenSequences:
        """Of texts in which masks are masks, where the model fills them."""
        tokenizer = self.tokenizer
        if "lm" not in self.heads or not any(isinstance(text, str) and tokenizer.has_mask(text) for text in texts):
            return self._encode(texts, None)[0]
        return self._assemble(tokenizer.encode_masked(_single(texts)))

    def _head(self, kind: str, act: str) -> Any:
        if kind in self.heads:
            return self.heads[kind]
        has = ", ".join(name for name in self.heads if name not in ("bilstm", "feature_mix")) or "none"
        raise ValueError(
            f"{self.model.folder} cannot {act}: its {kind} head was never trained (trained heads: {has}); train one: "
            f"{COMMANDS[kind].replace('FOLDER', str(self.model.folder))}"
        )

    def _fp32(self, head: nn.Module, hidden: Tensor) -> Tensor:
        with torch.autocast(self.device.type, enabled=False):
            return head(hidden.float())

    @torch.inference_mode()
    def _run(
        self, sequences: examples.Sequences, read: Callable[[Tensor, Batch], Part], *, hidden_states: bool = False,
        reads_bilstm: bool = False, max_tokens: int = BATCH_TOKENS,
    ) -> list[Part]:  # fmt: skip
        """What `read` says of every batch's states [T, H] (those of all layers are in the batch), on the host."""
        parts, low = [], self.precision.startswith("bf16")
        bilstm = self.heads["bilstm"] if reads_bilstm and "bilstm" in self.heads else None
        for index in self.progress(examples.token_budget_batches(sequences.lengths, max_tokens)):
            batch = {key: value.to(self.device) for key, value in make_batch(sequences, index, {}).items()}
            ids, layout = (batch["input_ids"], batch["token_type_ids"], batch["position_ids"]), batch["layout"]
            with torch.autocast(self.device.type, torch.bfloat16, enabled=low), self._products():
                states, batch["hidden_states"] = self.encoder(*ids, layout, output_hidden_states=hidden_states)
                numbers, values = read(states if bilstm is None else bilstm(states, layout), batch)
            if not torch.isfinite(values).all():
                raise ValueError(f"{self.model.folder} gives no finite numbers: its weights are damaged or diverged")
            parts.append((numbers.cpu(), values.cpu()))
        return parts

    def _sequence_logits(self, kind: str, act: str, texts: Sequence[Text], stride: int | None) -> NDArray[np.float32]:
        head, has_bilstm = self._head(kind, act), "bilstm" in self.heads
        sequences, starts = self._encode(texts, stride)

        def logits(hidden: Tensor, batch: Batch) -> Part:
            states = sequence_states(self.encoder, head, hidden, batch["layout"], has_bilstm)
            return batch["example_index"], self._fp32(head, states)

        return _mean_of_windows(in_order(self._run(sequences, logits, reads_bilstm=True), len(sequences)), starts)

    def _encode(self, texts: Sequence[Text], stride: int | None) -> tuple[TokenSequences, Ints]:
        """Sequences, and where each text's begin [N + 1]; ValueError for what cannot be read."""
        sizes = {len(text) if isinstance(text, tuple) else 1 for text in texts}
        if len(sizes) > 1 or sizes - {1, 2}:
            raise ValueError("some texts are pairs and some are not (a tuple has two): give one kind at a time")
        sides: list[Any] = [*zip(*texts, strict=True)] if isinstance(texts[0], tuple) else [texts]
        encoded = [self.tokenizer.encode_batch(side) for side in sides]
        for side in encoded:
            self._check(side, "text")
        if stride is None or len(sides) > 1:
            return self._assemble(*encoded), np.arange(len(texts) + 1)
        room = self.model.max_length - 2
        if not 1 <= stride <= room:
            raise ValueError(f"stride={stride}: give 1 to {room} tokens, which is what this model reads at once")
        ranges = [examples.window_ranges(len(ids), room, stride) for ids in encoded[0]]
        pieces = [ids[a : a + n] for ids, places in zip(encoded[0], ranges, strict=True) for a, n in places]
        return self._assemble(pieces), examples.offsets_of([len(places) for places in ranges])

    def _assemble(self, *sides: Any) -> TokenSequences:
        sequences = examples.assemble(self.tokenizer, *sides)
        if (longest := int(sequences.lengths.max())) > self.model.max_length:
            raise ValueError(
                f"text {int(sequences.lengths.argmax()) + 1} has {longest} tokens and this model reads "
                f"{self.model.max_length} at once: shorten it, or, to classify or embed single texts, say stride=N to "
                "read it in windows N tokens apart"
            )
        return sequences

    def _check(self, encoded: Sequence[NDArray[np.int32]], name: str) -> None:
        """ValueError for a text without tokens, or of unknown ones alone."""
        for number, ids in enumerate(encoded, 1):
            if not len(ids):
                raise ValueError(f"{name} {number} is empty: there is nothing to read")
            if (ids == self.tokenizer.unk_id).all():
                raise ValueError(
                    f"{name} {number}: every token is {self.tokenizer.special_tokens[1]}, so the model sees nothing of "
                    "it; is it in the language and case of the model's vocabulary?"
                )


def load(place: str | Path, *, device: str = "auto", precision: str = "auto", hub: bool = False) -> Predictor:
    """The model of a run (a fine-tuned one, or a pre-training's encoder with its heads), of a folder or of a file.

    With `hub` a NAME@COMMIT of the Hugging Face hub is taken as well; it is never asked otherwise.
    """
    return Predictor(read_model(find_model(str(place), from_hub=hub)), device=device, precision=precision)


def _many(texts: Any) -> list[Any]:
    many = [texts] if isinstance(texts, str | tuple) else list(texts)
    if not many:
        raise ValueError("there is no text to read: the list is empty")
    return many


def _single(texts: Any) -> list[str]:
    if any(isinstance(one, tuple) for one in _many(texts)):
        raise ValueError("this takes single texts, and a tuple is a pair")
    return _many(texts)


def _check_top_k(top_k: int) -> None:
    if top_k < 1:
        raise ValueError(f"top_k={top_k}: give at least 1")


def _like(texts: Any, results: list[Any]) -> Any:
    """One result for one text."""
    return results[0] if isinstance(texts, str | tuple) else results


def _classified(logits: NDArray[np.float32], labels: Sequence[str]) -> list[answers.Classified]:
    shares = [dict(zip(labels, one, strict=True)) for one in torch.from_numpy(logits).float().softmax(-1).tolist()]
    return [answers.Classified(best := max(one, key=one.__getitem__), one[best], one) for one in shares]


def _mean_of_windows(values: NDArray[Any], starts: Ints) -> NDArray[Any]:
    """[windows, ...] -> [N, ...]."""
    if len(starts) == len(values) + 1:
        return values
    return np.add.reduceat(values, starts[:-1], axis=0) / np.diff(starts)[:, None].astype(values.dtype)


def _word_spans(text: str | Sequence[str]) -> list[tuple[int, int]]:
    if isinstance(text, str):
        return [place for _, place in WORDS.pre_tokenize_str(SURROGATES.sub("\ufffd", text))]
    starts = np.cumsum([0, *(len(word) + 1 for word in text)]).tolist()
    return [(start, start + len(word)) for start, word in zip(starts, text, strict=False)]
