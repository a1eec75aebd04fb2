"""Tagging data as the outputs of a frozen encoder: computed once, kept on disk, read by every run.

One pass over the rows of a split writes all layers' outputs for the scored words to memory-mapped files, one a layer:
fp32, in the order of the words, below a name made of the text, the tokenizer, the window and the encoder's weights.
Other choices of layers, other seeds and other processes find them there; a process that comes while they are being
written waits. With document context a word's neighbours are encoded around it and not kept.

Letters: L layers of the encoder, C chosen layers, W words of the split, U words of a batch, H hidden size.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from clozelab.data.readers.cache import Facts, cached_folder, content_key, one_at_a_time
from clozelab.data.readers.rows import Ints, Rows, ragged_positions
from clozelab.data.readers.tagged import TaggedRows, TaggedSplit
from clozelab.datamodules.bucketing import token_budget_batches
from clozelab.datamodules.conll import ConllDataModule
from clozelab.datamodules.finetuning import EncoderSource, make_batch
from clozelab.models.encoder import Encoder
from clozelab.models.features import feature_layers

log = logging.getLogger(__name__)

FORMAT_VERSION = 2
"""Raised when this code makes other features of the same rows: older cache folders are then not found."""


@dataclass(frozen=True)
class FeatureRows:
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


class FeatureDataModule(ConllDataModule):
    """Words with tags, each as chosen layers of a frozen encoder.

    Args:
        features: one of models/features.py; decides what is read, not what is stored.
        the others: as ConllDataModule's.
    """

    def __init__(self, *, features: str, **tagging: Any) -> None:
        super().__init__(**tagging)
        self.features = features
        self.feature_facts: dict[str, Facts] = {}

    @property
    def source(self) -> EncoderSource:
        assert self.inputs.encoder is not None, "the stage gives the encoder"
        return self.inputs.encoder

    def setup(self, stage: str | None = None) -> None:
        """Read and tokenise both splits and compute their features, where that was not done before."""
        if not hasattr(self, "train"):
            super().setup(stage)
            encoders: list[Encoder] = []
            self.train_rows = self._features("train", self.train, encoders)
            self.validation_rows = self._features("validation", self.validation, encoders)

    def read_test(self, path: Path) -> tuple[Rows, TaggedSplit]:
        split = super().read_test(path)[1]
        return self._features(path.stem, split, []), split

    @property
    def facts(self) -> dict[str, Any]:
        return super().facts | {"features": self.features, "feature_cache": self.feature_facts}

    def _features(self, name: str, split: TaggedSplit, encoders: list[Encoder]) -> FeatureRows:
        """`encoders` keeps the loaded encoder from one split to the next; empty where none was needed."""
        key = content_key({"version": FORMAT_VERSION, "rows": split.key, "encoder": self.source.fingerprint})
        folder = self.inputs.cache_dir / "features" / f"{self.inputs.name}-{key}"

        def write(target: Path) -> Facts:
            if not encoders:
                encoders.append(self.source.load())
            return write_features(target, split.rows, encoders[0], self.source.device, self.evaluation_tokens)

        with one_at_a_time(folder.parent):
            facts = cached_folder(folder, write)
        self.feature_facts[name] = facts
        chosen = feature_layers(self.features, facts["num_hidden_layers"])
        layers = [np.load(folder / f"layer_{number:02d}.npy", mmap_mode="r") for number in chosen]
        return FeatureRows(layers, split.sentence_offsets, split.labels)


@torch.inference_mode()
def write_features(
    folder: Path, rows: TaggedRows, encoder: Encoder, device: torch.device, max_tokens: int
) -> dict[str, Any]:
    """One pass of `encoder` over `rows`: layer_00.npy ... layer_LL.npy, fp32 [W, H] each, in batches of `max_tokens`.

    fp32 on every device, without dropout: the features are the encoder's, whatever precision training has.
    """
    config = encoder.config
    encoder = encoder.to(device).eval()
    shape = (len(rows.labels), config.hidden_size)
    files = [
        open_memmap(folder / f"layer_{number:02d}.npy", mode="w+", dtype=np.float32, shape=shape)
        for number in range(config.num_hidden_layers + 1)
    ]
    batches = token_budget_batches(rows.lengths, max_tokens)
    began = time.perf_counter()
    log.info("computing features of %d words in %d rows, %d batches", shape[0], len(rows), len(batches))
    with torch.autocast(device.type, enabled=False):
        for index in batches:
            batch = make_batch(rows, index, {})
            ids = (batch[name].to(device) for name in ("input_ids", "token_type_ids", "position_ids"))
            hidden_states = encoder(*ids, batch["layout"].to(device), output_hidden_states=True).hidden_states
            words, word_rows = batch["word_index"].numpy(), batch["word_rows"].to(device)
            for file, hidden in zip(files, hidden_states, strict=True):
                file[words] = hidden.index_select(0, word_rows).float().cpu().numpy()
    for file in files:
        file.flush()
    return {
        "num_hidden_layers": config.num_hidden_layers,
        "words": shape[0],
        "encoded_tokens": int(rows.lengths.sum()),
        "encoder_calls": len(batches),
        "seconds": round(time.perf_counter() - began, 3),
    }
