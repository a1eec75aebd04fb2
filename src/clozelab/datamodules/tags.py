"""Tagging data in CoNLL columns or conllu (entities, chunks, parts of speech), as tokens or as features.

Features are a frozen encoder's outputs: computed once, kept on disk, read by every run. One pass over a split's
sequences writes all layers' outputs for the scored words to memory-mapped files, one a layer: fp32, in the order of the
words, below a name made of the text, the tokenizer, the window and the encoder's weights.
Other choices of layers, other seeds and other processes find them there; a process that comes while they are being
written waits. With document context a word's neighbours are encoded around it and not kept.

Letters: L layers of the encoder, C chosen layers, W words of the split, U words of a batch, H hidden size.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from clozelab.corpus.files import file_sha256
from clozelab.datamodules.baselines import of_tags
from clozelab.datamodules.cache import Arrays, Facts, cached_folder, content_key, one_at_a_time
from clozelab.datamodules.examples import (
    Ints,
    Preview,
    Sequences,
    TaskPreview,
    TokenSequences,
    ragged_positions,
    subset,
)
from clozelab.datamodules.files import Scores
from clozelab.datamodules.finetuning import EncoderSource, FinetuningDataModule, make_batch
from clozelab.datamodules.loading import token_budget_batches
from clozelab.datamodules.tagged import (
    ColumnFormat,
    TaggedSentences,
    TaggedSequences,
    TaggedSplit,
    build_sequences,
    read_conll,
)
from clozelab.metrics.entities import OUTSIDE, scheme_of, split_tag, to_iob2
from clozelab.models.encoder import Encoder
from clozelab.models.features import feature_layers

log = logging.getLogger(__name__)


class TagDataModule(FinetuningDataModule):
    """Words with tags.

    Args:
        file_format: columns | conllu.
        word_column, tag_column: counted from 0, negative from the end.
        entity_tags: tags are those of entities, in any scheme (converted to IOB2); False: every tag is a class.
        document_context: neighbouring sentences of the document fill each sequence up to `max_seq_length`.
        the others: as FinetuningDataModule's; `.zst` files are read as they are, `max_train_examples` counts sentences.
    """

    validation: TaggedSplit

    def __init__(
        self,
        *,
        file_format: str,
        word_column: int,
        tag_column: int,
        entity_tags: bool,
        document_context: bool,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.layout = ColumnFormat(file_format, word_column, tag_column)
        self.entity_tags, self.document_context = entity_tags, document_context

    @property
    def sources(self) -> dict[str, Any]:
        return {"files": [file_sha256(path) for path in (self.train_path, self.validation_path)], **self._reading}

    @property
    def _reading(self) -> dict[str, Any]:
        rules = {"entity_tags": self.entity_tags, "document_context": self.document_context}
        return {"layout": asdict(self.layout), **rules}

    def read_splits(self) -> Iterable[tuple[str, Path, TaggedSplit]]:
        self.train = self._load(self.train_path, None, self.plan.max_train_examples)
        self.validation = self._load(self.validation_path, self.train.label_names, None)
        self.train_sequences, self.train_targets = self.train.sequences, {}
        self.validation_sequences = self.validation.sequences
        if self.entity_tags and self.inputs.tokenizer.lowercase:
            log.warning("the encoder's vocabulary is lower-cased: entities lose the letter case that tells them apart")
        if self.document_context and not self.train.counts["has_documents"]:
            log.warning("%s marks no documents: every sentence is encoded without neighbours", self.train_path)
        return [("training", self.train_path, self.train), ("validation", self.validation_path, self.validation)]

    def compute_baselines(self) -> Scores:
        train, asked = (self._read(path) for path in (self.train_path, self.validation_path))
        chosen = [train[i] for i in subset(len(train), self.plan.max_train_examples)]
        return of_tags(chosen, asked, entity_tags=self.entity_tags)

    def _read(self, path: Path) -> list[tuple[list[str], list[str]]]:
        """(words, tags) of each sentence, entities in IOB2."""
        found = read_conll(path, self.layout, require_tags=True)
        return list(zip(found.words, self._tags(path, found)[0], strict=True))

    def preview(self) -> TaskPreview:
        train, validation = (self._preview(path) for path in (self.train_path, self.validation_path))
        return TaskPreview(train, validation, sorted(set(train.labels or ())))

    def _preview(self, path: Path) -> Preview:
        """Labels are the tags of all words; of entity tags their types, whatever scheme each file is in."""
        found = read_conll(path, self.layout, require_tags=True)
        tags = [tag for sentence in found.tags or () for tag in sentence]
        labels = [split_tag(tag)[1] or OUTSIDE for tag in tags] if self.entity_tags else tags
        return Preview({"sentence": [" ".join(words) for words in found.words]}, labels, len(found), dict(found.counts))

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "train_examples": len(self.train),
            "train_words": len(self.train.words),
            "train_counts": self.train.counts,
            "validation_examples": len(self.validation),
            "validation_words": len(self.validation.words),
            "validation_counts": self.validation.counts,
            "label_names": self.train.label_names,
            "max_seq_length": self.max_seq_length,
        }

    def read_test(self, path: Path) -> tuple[Sequences, TaggedSplit]:
        split = self._load(path, self.train.label_names, None, require_tags=False)
        self.refuse_damaged(path, split.num_bad_rows, "sentences")
        return split.sequences, split

    def _load(
        self, path: Path, label_names: list[str] | None, max_examples: int | None, require_tags: bool = True
    ) -> TaggedSplit:
        """One split. `label_names` None: those of the file.

        `require_tags` False is for prediction: tags are not read, and every word has the first label.
        """

        def build() -> tuple[Arrays, Facts]:
            sentences = read_conll(path, self.layout, require_tags=require_tags)
            if not require_tags and label_names is not None:
                sentences.tags = [[label_names[0]] * len(words) for words in sentences.words]
            return self._tokenise(path, sentences, label_names, max_examples)

        settings = {"labels": label_names, "max_examples": max_examples, "require_tags": require_tags}
        arrays, facts, key = self.cached(path, self._reading | settings, build)
        sequences = TokenSequences(arrays["input_ids"], arrays["offsets"], np.diff(arrays["offsets"]).astype(np.int32))
        return TaggedSplit(
            sequences=TaggedSequences(sequences, arrays["word_offsets"], arrays["word_positions"], arrays["labels"]),
            sentence_offsets=arrays["sentence_offsets"],
            words=arrays["words"].tobytes().decode().split("\n"),
            ids=arrays["ids"],
            label_names=facts["label_names"],
            entity_tags=self.entity_tags,
            counts=facts["counts"],
            key=key,
            path=path,
            layout=self.layout,
        )

    def _tokenise(
        self, path: Path, sentences: TaggedSentences, label_names: list[str] | None, max_examples: int | None
    ) -> tuple[Arrays, Facts]:
        tags, scheme = self._tags(path, sentences)
        names = label_names if label_names is not None else self._label_names(tags)
        index = {name: number for number, name in enumerate(names)}
        chosen = subset(len(sentences), max_examples)
        arrays, counts = build_sequences(
            sentences,
            chosen,
            self.inputs.tokenizer,
            max_seq_length=self.max_seq_length,
            document_context=self.document_context,
        )
        labels = [_label_indices(f"{path}:{sentences.lines[i]}", tags[i], index) for i in chosen]
        words = "\n".join(word for i in chosen for word in sentences.words[i])
        arrays["labels"] = np.array([label for sentence in labels for label in sentence], dtype=np.int64)
        arrays["words"] = np.frombuffer(words.encode(), dtype=np.uint8)
        counts.update(sentences.counts)
        known = {"available": len(sentences), "has_documents": sentences.has_documents, "tag_scheme": scheme}
        return arrays, {"label_names": names, "counts": known | {key: int(n) for key, n in counts.items() if n}}

    def _tags(self, path: Path, sentences: TaggedSentences) -> tuple[list[list[str]], str | None]:
        """Tags in IOB2 and the scheme they were written in; as they are where they are no entities."""
        assert sentences.tags is not None  # required by the reader
        if not self.entity_tags:
            return sentences.tags, None
        try:
            scheme = scheme_of(sentences.tags)
        except ValueError as problem:
            raise ValueError(f"{path}: {problem}; is tag_column={self.layout.tag_column} the right one?") from problem
        return [to_iob2(tags) for tags in sentences.tags], scheme

    def _label_names(self, tags: Sequence[Sequence[str]]) -> list[str]:
        """Sorted; of entities O, then B and I of every type, though the file may lack one of them."""
        names = {tag for sentence in tags for tag in sentence}
        if not self.entity_tags:
            return sorted(names)
        types = sorted({split_tag(tag)[1] for tag in names} - {""})
        return [OUTSIDE, *(f"{prefix}-{name}" for name in types for prefix in "BI")]


def _label_indices(where: str, tags: Sequence[str], index: dict[str, int]) -> list[int]:
    unknown = [tag for tag in tags if tag not in index]
    if unknown:
        raise ValueError(f"{where}: tag {unknown[0]!r} does not occur in the training file; its tags are {list(index)}")
    return [index[tag] for tag in tags]


FEATURES_VERSION = 3
"""Raised when this code makes other features of the same sequences: older cache folders are then not found."""


@dataclass(frozen=True)
class FeatureSequences:
    """Sentences as vectors of their words."""

    layers: Sequence[NDArray[np.float32]]
    """C arrays [W, H], usually memory maps."""
    sentence_offsets: Ints
    """[S + 1] into the words."""
    labels: Ints
    """[W]."""

    def __len__(self) -> int:
        return len(self.sentence_offsets) - 1

    @property
    def lengths(self) -> Ints:
        return np.diff(self.sentence_offsets)

    @property
    def num_targets(self) -> Ints:
        return self.lengths

    def gather(self, index: Ints) -> dict[str, NDArray[Any]]:
        """`features` [U, C, H], and `labels` and `word_index` (place in the split) [U]."""
        lengths = self.lengths[index]
        words = ragged_positions(self.sentence_offsets[index], lengths)[1]
        return {
            "features": np.stack([layer[words] for layer in self.layers], axis=1),
            "labels": self.labels[words],
            "word_index": words,
            "lengths": lengths,
        }


class FeatureDataModule(TagDataModule):
    """Words with tags, each as chosen layers of a frozen encoder.

    Args:
        features: one of models/features.py; decides what is read, not what is stored.
        the others: as TagDataModule's.
    """

    def __init__(self, *, features: str, **tagging: Any) -> None:
        super().__init__(**tagging)
        self.features = features
        self.feature_facts: dict[str, Facts] = {}

    @property
    def source(self) -> EncoderSource:
        assert self.inputs.encoder is not None, "the stage gives the encoder"
        return self.inputs.encoder

    def read_splits(self) -> Iterable[tuple[str, Path, TaggedSplit]]:
        """As TagDataModule's, and computes their features where that was not done before."""
        read = super().read_splits()
        encoders: list[Encoder] = []
        self.train_sequences = self._features("train", self.train, encoders)
        self.validation_sequences = self._features("validation", self.validation, encoders)
        return read

    def read_test(self, path: Path) -> tuple[Sequences, TaggedSplit]:
        split = super().read_test(path)[1]
        return self._features(path.stem, split, []), split

    @property
    def facts(self) -> dict[str, Any]:
        return super().facts | {"features": self.features, "feature_cache": self.feature_facts}

    def _features(self, name: str, split: TaggedSplit, encoders: list[Encoder]) -> FeatureSequences:
        """`encoders` keeps the loaded encoder from one split to the next; empty where none was needed."""
        key = content_key({"version": FEATURES_VERSION, "sequences": split.key, "encoder": self.source.fingerprint})
        folder = self.inputs.cache_dir / "features" / f"{self.inputs.name}-{key}"

        def write(target: Path) -> Facts:
            if not encoders:
                encoders.append(self.source.load())
            return write_features(target, split.sequences, encoders[0], self.source.device, self.evaluation_tokens)

        with one_at_a_time(folder.parent):
            facts = cached_folder(folder, write)
        self.feature_facts[name] = facts
        chosen = feature_layers(self.features, facts["num_hidden_layers"])
        layers = [np.load(folder / f"layer_{number:02d}.npy", mmap_mode="r") for number in chosen]
        return FeatureSequences(layers, split.sentence_offsets, split.labels)


@torch.inference_mode()
def write_features(
    folder: Path, sequences: TaggedSequences, encoder: Encoder, device: torch.device, max_tokens: int
) -> dict[str, Any]:
    """One pass of `encoder`: layer_00.npy ... layer_LL.npy, fp32 [W, H] each, in batches of `max_tokens`.

    fp32 on every device, without dropout: the features are the encoder's, whatever precision training has.
    """
    config = encoder.config
    encoder = encoder.to(device).eval()
    shape = (len(sequences.labels), config.hidden_size)
    files = [
        open_memmap(folder / f"layer_{number:02d}.npy", mode="w+", dtype=np.float32, shape=shape)
        for number in range(config.num_hidden_layers + 1)
    ]
    batches = token_budget_batches(sequences.lengths, max_tokens)
    began = time.perf_counter()
    log.info("computing features of %d words in %d sequences, %d batches", shape[0], len(sequences), len(batches))
    with torch.autocast(device.type, enabled=False):
        for index in batches:
            batch = make_batch(sequences, index, {})
            ids = (batch[name].to(device) for name in ("input_ids", "token_type_ids", "position_ids"))
            hidden_states = encoder(*ids, batch["layout"].to(device), output_hidden_states=True).hidden_states
            words, word_slots = batch["word_index"].numpy(), batch["word_slots"].to(device)
            for file, hidden in zip(files, hidden_states, strict=True):
                file[words] = hidden.index_select(0, word_slots).float().cpu().numpy()
    for file in files:
        file.flush()
    return {
        "num_hidden_layers": config.num_hidden_layers,
        "words": shape[0],
        "encoded_tokens": int(sequences.lengths.sum()),
        "encoder_calls": len(batches),
        "seconds": round(time.perf_counter() - began, 3),
    }
