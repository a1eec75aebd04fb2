"""Files beside a model's weights: an adapter, rules of a quantisation, other weights."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from clozelab.models.encoder import Encoder
from clozelab.models.folders import (
    load_encoder,
    read_config,
    read_tensors,
    save_encoder_folder,
)
from clozelab.models.locate import find_model


@pytest.fixture
def folder(tmp_path: Path, tiny_config: Callable[..., Any]) -> Path:
    torch.manual_seed(0)
    encoder = Encoder(tiny_config())
    save_encoder_folder(tmp_path / "m", encoder, heads={}, tokenizer_files={}, extra_config={})
    return tmp_path / "m"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("adapter_config.json", r"m/adapter_config.json: an adapter .*merge_and_unload"),
        ("adapter_model.safetensors", "adapters are not read: merge it"),
        ("adapter_model.bin", "move its files away to take the model without it"),
        ("quantize_config.json", "quantize_config.json: the model is quantised"),
        ("quant_config.json", "float32, float16 or bfloat16"),
    ],
)
def test_what_makes_another_model_is_refused(folder: Path, name: str, message: str) -> None:
    read_config(folder)
    (folder / name).write_text("{}")
    for read in (read_config, read_tensors, load_encoder):
        with pytest.raises(ValueError, match=message):
            read(folder)
    (folder / name).unlink()
    # What is of no account.
    for harmless in ("generation_config.json", "preprocessor_config.json", "tf_model.h5"):
        (folder / harmless).write_text("{}")
    load_encoder(folder)


def test_a_folder_of_other_files_alone_says_what_it_has(folder: Path) -> None:
    (folder / "checksums.json").unlink()
    (folder / "model.safetensors").rename(folder / "model.onnx")
    with pytest.raises(ValueError, match=r"holds no weights: .*\(model.onnx cannot be read here"):
        read_tensors(folder)
    (folder / "config.json").rename(folder / "adapter_config.json")
    with pytest.raises(ValueError, match="holds an adapter alone: clozelab export"):
        find_model(str(folder))
    (folder / "adapter_config.json").rename(folder / "modules.json")
    with pytest.raises(ValueError, match="names no encoder in the folder itself"):
        find_model(str(folder))


def warnings_of(folder: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        read_tensors(folder)
    return [record.getMessage() for record in caplog.records]


def test_a_pickle_that_holds_other_weights_is_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    pickled = folder / "pytorch_model.bin"
    name = "bert.encoder.layer.0.output.dense.bias"
    if name not in tensors:
        name = name.removeprefix("bert.")
    # The same, rounded, with a buffer of older versions.
    rounded = {key: value.half() for key, value in tensors.items()}
    torch.save({**rounded, "bert.embeddings.position_ids": torch.arange(4)}, pickled)
    assert warnings_of(folder, caplog) == []
    for changed, said in (
        ({**tensors, name: tensors[name] + 0.5}, name),
        ({**tensors, name: tensors[name][:-1]}, name),
        ({"model.other": torch.ones(1)}, "no name is the same"),
    ):
        torch.save(changed, pickled)
        (message,) = warnings_of(folder, caplog)
        assert "pytorch_model.bin beside it holds other weights" in message and said in message
    # One that cannot be read, or only as a whole, is not used.
    pickled.write_bytes(b"nothing")
    assert warnings_of(folder, caplog) == []
    torch.save(changed, pickled, _use_new_zipfile_serialization=False)
    assert warnings_of(folder, caplog) == []
    shutil.rmtree(folder)
