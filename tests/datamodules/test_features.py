"""Features of a frozen encoder: equal to a live pass, computed once whatever is asked, whole on disk or not there."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.datamodules.finetuning import EncoderSource, TaskInputs, TrainingPlan
from clozelab.datamodules.tags import FeatureDataModule
from clozelab.models.encoder import Encoder
from clozelab.models.features import FEATURES, feature_layers
from clozelab.models.layout import Layout

TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *string.ascii_lowercase, "##b"], lowercase=True)
TRAIN = "-DOCSTART- O\n\na I-PER\nbb I-PER\nc B-PER\n\nd O\n\na I-LOC\n\n-DOCSTART- O\n\nab O\nc O\n"


class CountedEncoder(Encoder):
    calls = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        CountedEncoder.calls += 1
        return super().forward(*args, **kwargs)


@pytest.fixture
def make(tmp_path: Path, tiny_config: Callable[..., Any]) -> Callable[..., FeatureDataModule]:
    """make(features, fingerprint, seed) with a fresh count of encoder calls."""
    CountedEncoder.calls = 0
    config = tiny_config(
        vocab_size=TOKENIZER.vocab_size,
        num_hidden_layers=5,
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=0.5,
        attention_probs_dropout_prob=0.5,
        initializer_range=0.3,
    )

    def encoder() -> Encoder:
        torch.manual_seed(0)
        return CountedEncoder(config)

    for name in ("train", "dev"):
        (tmp_path / f"{name}.txt").write_text(TRAIN if name == "train" else TRAIN.replace("d O", "d O\ne O"))

    def build(features: str = "last", fingerprint: str = "weights", seed: int = 1) -> FeatureDataModule:
        source = EncoderSource(fingerprint, encoder, torch.device("cpu"))
        inputs = TaskInputs("toy", tmp_path, tmp_path / "cache", TOKENIZER, 16, source)
        data = FeatureDataModule(
            inputs=inputs,
            plan=TrainingPlan(2, 1.0, 1, None, seed, 0),
            features=features,
            train_file="train.txt",
            validation_file="dev.txt",
            test_files={"test": "dev.txt"},
            file_format="columns",
            word_column=0,
            tag_column=-1,
            entity_tags=True,
            document_context=True,
            how_to_get="make it",
            max_seq_length=16,
            evaluation_tokens=32,
        )
        data.setup()
        return data

    return build


@torch.no_grad()
def live_features(data: FeatureDataModule, sentence: int, layers: list[int]) -> np.ndarray:
    """[words, layers, H] of one sentence, its row encoded alone."""
    model, rows = data.source.load().eval(), data.train.rows
    arrays = rows.gather(np.array([sentence]))
    ids = (torch.from_numpy(arrays[name]) for name in ("input_ids", "token_type_ids", "position_ids"))
    states = model(*ids, Layout.ragged(arrays["lengths"]), output_hidden_states=True).hidden_states
    return np.stack([states[layer].numpy()[arrays["word_rows"]] for layer in layers], axis=1)


@pytest.mark.parametrize("features", FEATURES)
def test_cache_equals_live_features(make: Callable[..., FeatureDataModule], features: str) -> None:
    data = make(features)
    layers = feature_layers(features, 5)
    for sentence in range(len(data.train_rows)):
        cached = data.train_rows.gather(np.array([sentence]))
        live = live_features(data, sentence, layers)
        assert cached["features"].shape == live.shape
        # To 1e-6 of the largest feature: a sentence alone and one of a batch take other matrix kernels.
        np.testing.assert_allclose(cached["features"], live, rtol=0, atol=1e-6 * np.abs(live).max())
        assert cached["lengths"].tolist() == [len(live)]


def test_the_encoder_runs_once_for_all_choices_and_seeds(make: Callable[..., FeatureDataModule]) -> None:
    first = make(FEATURES[0])
    calls = CountedEncoder.calls
    assert calls == sum(fact["encoder_calls"] for fact in first.feature_facts.values()) > 0
    assert sum(fact["encoded_tokens"] for fact in first.feature_facts.values()) == sum(
        int(split.rows.lengths.sum()) for split in (first.train, first.validation)
    )
    for features in FEATURES:
        for seed in (1, 2):
            make(features, seed=seed)
    assert CountedEncoder.calls == calls
    make(fingerprint="other weights")
    assert CountedEncoder.calls == 2 * calls


def test_test_file_is_encoded_too(make: Callable[..., FeatureDataModule]) -> None:
    data = make()
    calls = CountedEncoder.calls
    test = data.load_test()["test"]
    assert CountedEncoder.calls > calls and "dev" in data.feature_facts
    assert len(test.rows) == len(test.split) == len(data.validation)
    expected = data.validation_rows.gather(np.arange(4))["features"]
    np.testing.assert_array_equal(test.rows.gather(np.arange(4))["features"], expected)


def test_batches_bring_sentences(make: Callable[..., FeatureDataModule]) -> None:
    data = make("concat_last_four")
    seen = []
    for batch in data.val_dataloader():
        assert batch["features"].shape == (batch["layout"].num_tokens, 4, 16)
        assert batch["features"].dtype == torch.float32
        assert (data.validation.labels[batch["word_index"]] == batch["labels"].numpy()).all()
        seen += batch["word_index"].tolist()
    assert sorted(seen) == list(range(len(data.validation.words)))
    assert isinstance(data.train_rows.layers[0], np.memmap)


def test_damaged_features_are_computed_anew(make: Callable[..., FeatureDataModule], tmp_path: Path) -> None:
    expected = make().train_rows.gather(np.arange(4))["features"]
    calls = CountedEncoder.calls
    files = sorted((tmp_path / "cache/features").glob("*/layer_05.npy"))
    assert len(files) == 2
    for path in files:
        content = bytearray(path.read_bytes())
        content[-2] ^= 1
        path.write_bytes(content)
    again = make().train_rows.gather(np.arange(4))["features"]
    assert CountedEncoder.calls == 2 * calls
    np.testing.assert_array_equal(again, expected)


def test_a_broken_pass_leaves_nothing(
    make: Callable[..., FeatureDataModule], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(CountedEncoder, "forward", fails)
        with pytest.raises(RuntimeError, match="out of memory"):
            make()
    assert list((tmp_path / "cache/features").iterdir()) == []
    make()
