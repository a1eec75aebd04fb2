"""Tagged words as a frozen encoder's outputs: computed once, kept on disk, read by every run.

One pass over a split's sequences writes all layers' outputs for the scored words to memory-mapped
files, one a layer: fp32, in the order of the words, below a name made of the text, the tokenizer,
the window and the encoder's weights. With document context a word's neighbours are encoded around
it and not kept.

Letters: C chosen layers, S sentences and W words of the split, U words of a batch, H hidden size.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from torch import Tensor, nn

from clozelab.models.encoder import Encoder
from clozelab.models.heads import FEATURES, FeatureMix, feature_layers
from clozelab.models.trained import freeze
from clozelab.tasks.batches import Batch, make_batch
from clozelab.tasks.cache import Facts, cached_folder, content_key
from clozelab.tasks.sequences import Ints, Sequences, ragged_positions, token_budget_batches
from clozelab.tasks.unit import BatchContext
from clozelab.tasks.words import TaggedSequences, WordSplit, WordUnit, count_targets
from clozelab.text.did_you_mean import check_choice
from clozelab.text.plain import PlainDict

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FeatureSequences(Sequences):
    """Sentences as vectors of their words."""

    layers: Sequence[NDArray[np.float32]]  # C arrays [W, H], usually memory maps
    sentence_offsets: Ints  # [S + 1] into the words
    labels: np.ndarray  # [W]

    @property
    def lengths(self) -> Ints:
        return np.diff(self.sentence_offsets)

    @property
    def num_targets(self) -> Ints:
        return count_targets(self.labels, self.sentence_offsets)

    def gather(self, index: Ints) -> dict[str, np.ndarray]:
        """`features` [U, C, H], and `labels` and `word_index` (place in the split) [U]."""
        lengths = self.lengths[index]
        _, word_index = ragged_positions(self.sentence_offsets[index], lengths)
        features = np.stack([layer[word_index] for layer in self.layers], axis=1)
        return {
            "features": features,
            "labels": self.labels[word_index],
            "word_index": word_index,
            "lengths": lengths,
        }


class FeatureUnit(WordUnit):
    """Words, each as some layers of a frozen encoder (table 7): a BiLSTM reads a sentence of them.

    Unusual: the encoder is there for its shape and for saving the model; training and evaluation
    never call it.

    Args:
        features: which layers, of models/heads.py.
    """

    kind = "FeatureUnit"

    def __init__(self, *, features: str, **words: Any) -> None:
        super().__init__(**words)
        check_choice("features", features, FEATURES)
        self.features = features

    def check_head(self, head: str) -> None:
        if head != "bilstm":
            raise ValueError(
                f"head={head}: feature-based tagging stands on a BiLSTM, as in table 7; set"
                " head=bilstm"
            )

    def model_config_to_save(self) -> PlainDict:
        return {"features": self.features}

    def batched(
        self, splits: Sequence[WordSplit], role: str, batch_context: BatchContext
    ) -> FeatureSequences:
        (split,) = splits
        source = batch_context.encoder
        assert source is not None, "the stage gives the encoder"
        # a split's key is of the code, too
        key = content_key({"sequences": split.key, "encoder": source.fingerprint})
        folder = batch_context.cache_dir / "features" / f"{batch_context.name}-{key}"

        def write(target: Path) -> Facts:
            return write_features(
                target,
                split.sequences,
                source.load(),
                source.device,
                batch_context.evaluation_tokens,
            )

        facts = cached_folder(folder, write)
        numbers = feature_layers(self.features, facts["num_hidden_layers"])
        layers = []
        for number in numbers:
            layers.append(np.load(_layer_path(folder, number), mmap_mode="r"))
        return FeatureSequences(layers, split.sentence_offsets, split.labels)

    def parts(self, encoder: Encoder) -> dict[str, nn.Module]:
        config = encoder.config
        freeze(encoder.parameters())
        mix = FeatureMix(self.features, config.num_hidden_layers, config.output_size)
        return {"feature_mix": mix}

    def input_size(self, parts: Mapping[str, nn.Module]) -> int | None:
        return int(parts["feature_mix"].output_size)  # type: ignore[arg-type]

    def states(self, model: Any, batch: Batch) -> Tensor:
        """[U, H], from `features` [U, C, H]."""
        assert model.bilstm is not None
        return model.bilstm(model.feature_mix(batch["features"]), batch["layout"])


def _layer_path(folder: Path, number: int) -> Path:
    return folder / f"layer_{number:02d}.npy"


@torch.inference_mode()
def write_features(
    folder: Path,
    sequences: TaggedSequences,
    encoder: Encoder,
    device: torch.device,
    max_tokens: int,
) -> Facts:
    """One pass of `encoder`: layer_00.npy ... layer_LL.npy, [W, H] each.

    They are fp32 whatever precision training has.
    """
    # Without dropout: a feature is the same for every run that reads it.
    encoder = encoder.to(device).eval()
    num_layers = encoder.config.num_hidden_layers
    num_words = len(sequences.labels)
    # One file a layer; 00 is what the embeddings give.
    shape = (num_words, encoder.config.output_size)
    files = []
    for number in range(num_layers + 1):
        path = _layer_path(folder, number)
        files.append(open_memmap(path, mode="w+", dtype=np.float32, shape=shape))
    batches = token_budget_batches(sequences.lengths, max_tokens)
    log.info(
        "computing features of %d words in %d sequences, %d batches",
        num_words,
        len(sequences),
        len(batches),
    )
    with torch.autocast(device.type, enabled=False):
        for index in batches:
            batch = make_batch(sequences, index, {})
            word_index = batch["word_index"].numpy()
            batch = {key: value.to(device) for key, value in batch.items()}
            output = encoder.read(batch, output_hidden_states=True)
            # The states of the words' first sub-tokens, to the words' places in the split.
            for file, hidden in zip(files, output.hidden_states, strict=True):
                file[word_index] = hidden.index_select(0, batch["word_slots"]).float().cpu().numpy()
    # what the memory maps hold goes to the disk, before the folder gets its name
    for file in files:
        file.flush()
    return {"num_hidden_layers": num_layers}
