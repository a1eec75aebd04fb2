"""A class as a word at a mask: prompts of a masked language model, zero-shot or trained.

A template puts a mask beside the text, and a word stands for each class. The outputs of a text are
the logits that the pre-training's head gives these words at the mask: as they are (zero-shot), or
trained with their cross-entropy (Schick and Schütze 2021; Gao, Fisch and Chen 2021).

    template    {text} It was [MASK].
    words       positive: great, negative: terrible
    sequence    [CLS] a fine film It was [MASK] . [SEP]
    asked                                ^ great or terrible?

Unusual: the template's parts and the texts become tokens apart from each other, as Gao et al. have
it, so that a long text is cut and the template never is.

Letters: N examples, B of a batch, H hidden size, K classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.models.encoder import Encoder
from clozelab.readers.cells import cell_text
from clozelab.tasks.batches import Batch
from clozelab.tasks.cache import Arrays, Facts
from clozelab.tasks.classes import ClassTarget
from clozelab.tasks.sequences import Int32s, TokenSequences, assemble, longest_first
from clozelab.tasks.tables import TextExamples
from clozelab.tasks.texts import TextSplit, TextUnit
from clozelab.tasks.unit import BatchContext, SplitSource, TaskModel
from clozelab.text.plain import JsonObject, PlainDict

MASK = "[MASK]"  # in a template, whatever the tokenizer calls it
TEXTS = {1: ("{text}",), 2: ("{first}", "{second}")}  # texts of an example -> their names there
PARTS = re.compile(r"(\{\w*\}|\[MASK\])")


class Template:
    """A template's parts, in order: literal text, the names of texts, and one mask.

    A blank before a text or a mask belongs to that: byte-level BPE writes it into the token.
    """

    def __init__(self, template: str) -> None:
        self.written = template
        self.parts: list[str] = []
        self.has_blank_before: dict[str, bool] = {}
        literal = ""
        for piece in PARTS.split(template):
            if PARTS.fullmatch(piece):
                self.has_blank_before[piece] = literal.endswith(" ")
                self.parts.append(piece)
            elif piece.strip():
                self.parts.append(piece.rstrip())
            literal = piece

    def spelt(self, name: str, text: str) -> str:
        """A text, or a word for the mask, as it stands in the template."""
        return f"{' ' * self.has_blank_before[name]}{text.strip()}"


@dataclass(frozen=True)
class PromptSequences(TokenSequences):
    """Sequences with a mask in each."""

    mask_positions: Int32s = field(kw_only=True)  # [N]

    def gather(self, index: np.ndarray) -> dict[str, np.ndarray]:
        """The batch's arrays, and `prediction_positions` [B]: the slots of the masks."""
        arrays = super().gather(index)
        starts = np.cumsum(arrays["lengths"]) - arrays["lengths"]
        return arrays | {"prediction_positions": starts + self.mask_positions[index]}


class PromptUnit(TextUnit):
    """Texts or pairs in a template with a mask.

    Args: as conf/task/format/prompt.yaml says of each.
    """

    kind = "PromptUnit"

    def __init__(self, *, template: str, **texts: Any) -> None:
        super().__init__(**texts)
        self.template = Template(template)
        self.texts = TEXTS[len(self.layout.text_columns)]
        names = [MASK, *self.texts]
        if sorted(filter(PARTS.fullmatch, self.template.parts)) != names:
            raise ValueError(
                f"task.data.template={template!r} of {len(self.texts)} text column(s): write"
                f" {' and '.join(names)} in it, each once"
            )
        self.template_texts = [part for part in self.template.parts if not PARTS.fullmatch(part)]
        if self.window_stride is not None:
            raise ValueError("a prompt has one mask for a text: take long_documents=truncate")

    def check_head(self, head: str) -> None:
        if head != "linear":
            raise ValueError(
                f"head={head}: a prompt is answered by the pre-training head; take head=linear"
            )

    def tokenization(self) -> PlainDict:
        return super().tokenization() | {"template": self.template.written}

    def config_to_save(self) -> PlainDict:
        return super().config_to_save() | {"template": self.template.written}

    # Sequences

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        self._fixed(tokenizer)

    def _fixed(self, tokenizer: Tokenizer) -> tuple[dict[str, Int32s], int]:
        """The tokens of the template's own parts, and how many are left for the texts.

        ValueError where that is none.
        """
        fixed = {MASK: np.array([tokenizer.mask_id], dtype=np.int32)}
        for literal in set(self.template.parts).difference([MASK, *self.texts]):
            (fixed[literal],) = tokenizer.encode_batch([literal])
        literals = [part for part in self.template.parts if part in fixed]
        room = self.max_seq_length - 2 - sum(len(fixed[part]) for part in literals)
        if room < len(self.texts):
            raise ValueError(
                f"task.data.template={self.template.written!r} fills the"
                f" max_seq_length={self.max_seq_length} tokens of a sequence, and a text would have"
                " no place: shorten it, or take longer sequences"
            )
        return fixed, room

    def encode(self, examples: TextExamples, tokenizer: Tokenizer) -> tuple[Arrays, JsonObject]:
        pieces_in_order = self.template.parts
        fixed, room = self._fixed(tokenizer)
        columns = []
        for name, texts in zip(self.texts, zip(*examples.texts, strict=True), strict=True):
            spelt = [self.template.spelt(name, text) for text in texts]
            columns.append(tokenizer.encode_batch(spelt))
        prompts = []
        mask_positions = []
        cut = []
        for row in zip(*columns, strict=True):
            lengths = [len(ids) for ids in row]
            # A single text is a pair whose second one is empty.
            kept = longest_first(lengths[0], sum(lengths[1:]), room)
            pieces = dict(fixed)
            for name, ids, length in zip(self.texts, row, kept, strict=False):
                pieces[name] = ids[:length]
            prompt = [pieces[part] for part in pieces_in_order]
            prompts.append(np.concatenate(prompt))
            # behind [CLS] and the parts before it
            mask_positions.append(1 + sum(map(len, prompt[: pieces_in_order.index(MASK)])))
            cut.append(sum(lengths) - sum(kept))
        sequences = assemble(tokenizer, prompts, None, cut)
        arrays = {"mask_positions": np.array(mask_positions, dtype=np.int32)}
        counts = sequences.cut_counts() | {"empty_texts": examples.num_empty}
        return arrays | sequences.arrays(), counts

    def split(self, arrays: Arrays, facts: Facts, source: SplitSource) -> TextSplit:
        split = super().split(arrays, facts, source)
        return replace(split, sequences=_with_masks(split.sequences, arrays["mask_positions"]))

    def batched(
        self, splits: Sequence[Any], role: str, batch_context: BatchContext
    ) -> PromptSequences:
        masks = [split.sequences.mask_positions for split in splits]
        return _with_masks(super().batched(splits, role, batch_context), np.concatenate(masks))

    # The model

    def parts(self, encoder: Encoder) -> dict[str, nn.Module]:
        """None; ValueError for an encoder that reads no text behind the mask, where one is."""
        behind = self.template.parts[self.template.parts.index(MASK) :]
        unread = set(behind) & set(self.texts)
        if encoder.config.is_causal and unread:
            raise ValueError(
                f"task.data.template={self.template.written!r}: this encoder reads from left to"
                f" right, and {unread.pop()} stands behind the mask: write it before"
            )
        return {}

    def states(self, model: TaskModel, batch: Batch) -> Tensor:
        """[B, ...]: what the head predicts each mask from."""
        head: Any = model.output_head
        # Some encoders predict a token from the state before it.
        positions = batch["prediction_positions"] - model.encoder.config.prediction_shift
        output = model.encoder.read(batch, head.reads_hidden_states, positions)
        states: Tensor = head.states(
            model.encoder, output, batch | {"prediction_positions": positions}
        )
        return states


def _with_masks(sequences: Any, mask_positions: Int32s) -> PromptSequences:
    """Token sequences, and where in each the mask stands [N]."""
    return PromptSequences(
        sequences.input_ids,
        sequences.offsets,
        sequences.second_starts,
        mask_positions=mask_positions,
    )


class PromptTarget(ClassTarget):
    """One of some classes, by the logits of their words at the mask.

    Args:
        template: the unit's.
        words: class -> its word, one token of the encoder's vocabulary.
        numeric_labels, number_range: of tasks that predict a number, which has no word.
        classes: as ClassTarget's.
    """

    units = ("PromptUnit",)
    head_kinds = ("lm",)
    head_name = "lm"

    def __init__(
        self,
        *,
        template: str,
        words: Mapping[object, str],
        numeric_labels: bool = False,
        number_range: Sequence[float] | None = None,
        labels: Sequence[object] | None = None,
        **classes: Any,
    ) -> None:
        if numeric_labels or number_range:
            raise ValueError("task.data.words names classes, and this task predicts a number")
        self.template = Template(template)
        self.words = {cell_text(name): word for name, word in words.items()}
        for name, word in self.words.items():
            if not isinstance(word, str):  # YAML reads yes and no as true and false
                raise ValueError(
                    f"task.data.words: the word of the class {name!r} is {word!r}, no text: write"
                    " it in quotation marks"
                )
        super().__init__(labels=list(self.words) if labels is None else labels, **classes)
        if set(self.words) != set(self.classes):
            raise ValueError(
                f"task.data.words has a word for {', '.join(self.words)}, and the classes are"
                f" {', '.join(self.classes)}: give each class one word"
            )
        self.word_ids: list[int] = []  # [K], once `fitted`

    @property
    def output_names(self) -> Sequence[str]:
        """None: a trained folder is a language model, whose outputs are the vocabulary."""
        return ()

    def config_to_save(self) -> JsonObject:
        return super().config_to_save() | {"words": self.words}

    def of_model(self, classes: Sequence[str]) -> Self:
        """Its words name the classes, whatever else a folder calls its outputs."""
        return self

    def fitted(self, tokenizer: Tokenizer) -> Self:
        fitted = super().fitted(tokenizer)
        word_ids: list[int] = []
        for name in self.classes:
            word = self.words[name]
            (tokens,) = tokenizer.encode_batch([self.template.spelt(MASK, word)])
            if len(tokens) != 1 or tokens[0] == tokenizer.unk_id:
                shown = " ".join(tokenizer.vocabulary[number] for number in tokens)
                raise ValueError(
                    f"task.data.words: {word!r} of the class {name!r} is {shown or 'nothing'} in"
                    " this encoder's vocabulary, and a mask is one token: take another word"
                )
            word_ids.append(int(tokens[0]))
        fitted.word_ids = word_ids
        if len(set(word_ids)) < len(word_ids):
            raise ValueError(
                f"task.data.words: two of {', '.join(self.words.values())} are one token of this"
                " encoder's vocabulary: give each class a word of its own"
            )
        return fitted

    def logits(self, head: nn.Module, states: Tensor, batch: Batch, *, training: bool) -> Tensor:
        """[B, K] in fp32: the head's logits of the words alone."""
        lm_head: Any = head
        words = torch.tensor(self.word_ids, device=states.device)
        with torch.autocast(states.device.type, enabled=False):
            vectors = lm_head.vector(states.float())
            return F.linear(vectors, lm_head.word_embedding_weight[words], lm_head.bias[words])
