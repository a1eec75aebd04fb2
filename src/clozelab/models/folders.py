"""Encoder folders: reading and writing weights in the Hugging Face layout.

`config.json`, `model.safetensors`, tokenizer files, and `checksums.json` (sha256 of every file: a flipped byte loads
silently otherwise). Written to a temporary folder and renamed, so a folder is whole or absent. Read: folders of ours
and of others, with or without the `bert.` prefix, with the old gamma/beta names, safetensors or pytorch_model.bin.
Every encoder tensor must be there under a known name and with the right shape; only the pooler may be missing, and is
then fresh, with a log line.

Unusual: query, key and value are one matrix here and three tensors in the file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder

CONFIG_FILE, WEIGHTS_FILE, CHECKSUMS_FILE = "config.json", "model.safetensors", "checksums.json"
PICKLED_WEIGHTS_FILE = "pytorch_model.bin"
_QKV = ("query", "key", "value")
_HEAD_PREFIXES = ("cls.", "classifier.", "qa_outputs.", "bilstm.")
_HARMLESS = ("embeddings.position_ids", "embeddings.token_type_ids")
_LOG = logging.getLogger(__name__)


def save_encoder_folder(
    folder: Path | str,
    encoder: Encoder,
    *,
    heads: Mapping[str, nn.Module],
    tokenizer_files: Mapping[str, str | bytes],
    extra_config: Mapping[str, Any],
) -> None:
    """Writes a whole encoder folder, replacing one that is there.

    Args:
        folder: where; its parent is made.
        encoder: what.
        heads: by prefix of their tensor names, e.g. {"cls.predictions": head, "classifier": head}.
        tokenizer_files: name -> content.
        extra_config: further keys of config.json, e.g. label names.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    config = {"architectures": [_architecture(heads)], **encoder.config.to_hf_dict(), **extra_config}
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        (temporary / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        safetensors.torch.save_file(to_hf_tensors(encoder, heads), temporary / WEIGHTS_FILE, metadata={"format": "pt"})
        for name, content in tokenizer_files.items():
            (temporary / name).write_bytes(content.encode() if isinstance(content, str) else content)
        checksums = {path.name: _sha256(path) for path in sorted(temporary.iterdir())}
        (temporary / CHECKSUMS_FILE).write_text(json.dumps(checksums, indent=2) + "\n", encoding="utf-8")
        _publish(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_encoder(folder: Path | str, *, initialisation: str = "pretrained", seed: int = 0) -> Encoder:
    """Reads the encoder of a folder.

    Args:
        folder: in the Hugging Face layout.
        initialisation: "pretrained", or "random": the same shape with fresh weights.
        seed: of fresh weights (all of them, or a missing pooler).

    Raises ValueError naming the file or tensor at fault.
    """
    folder = Path(folder)
    encoder = Encoder(read_config(folder), generator=torch.Generator().manual_seed(seed))
    if initialisation == "random":
        return encoder
    if initialisation != "pretrained":
        raise ValueError(f"initialisation is {initialisation!r}; choose pretrained or random")
    tensors = _encoder_tensors(read_tensors(folder), folder)
    if not any(name.startswith("pooler.") for name in tensors):
        _LOG.warning("%s has no pooler: it starts from fresh weights (seed %d)", folder, seed)
        tensors.update({name: value for name, value in _split_qkv(encoder).items() if name.startswith("pooler.")})
    expected = {name: value.shape for name, value in _split_qkv(encoder).items()}
    _check_tensors(tensors, expected, folder)
    encoder.load_state_dict(_fuse_qkv(tensors))
    return encoder


def load_head(folder: Path | str, prefix: str, module: nn.Module) -> None:
    """Fills `module` with the folder's tensors below `prefix`; ValueError names a missing or misshapen tensor."""
    folder = Path(folder)
    own = _head_state(module)
    stored = read_tensors(folder)
    found = {name: stored[f"{prefix}.{name}"] for name in own if f"{prefix}.{name}" in stored}
    named = {f"{prefix}.{name}": value for name, value in found.items()}
    _check_tensors(named, {f"{prefix}.{name}": value.shape for name, value in own.items()}, folder)
    module.load_state_dict(found, strict=False)


def read_config(folder: Path | str) -> EncoderConfig:
    """The configuration of an encoder folder; ValueError when the folder or its config.json is not usable."""
    try:
        return EncoderConfig.from_hf_dict(read_config_dict(folder))
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None


def read_config_dict(folder: Path | str) -> dict[str, Any]:
    """Everything in config.json, label names and run fingerprint included."""
    path = Path(folder) / CONFIG_FILE
    if not path.is_file():
        raise ValueError(
            f"{path} does not exist: an encoder is a folder with {CONFIG_FILE} and {WEIGHTS_FILE}, "
            "such as a pre-training run's encoder/"
        )
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return values


def read_tensors(folder: Path | str) -> dict[str, Tensor]:
    """Every tensor of a folder under today's names, on the CPU; checksums are verified where they are kept."""
    folder = Path(folder)
    verify_checksums(folder)
    path = folder / WEIGHTS_FILE
    try:
        if path.is_file():
            tensors = safetensors.torch.load_file(path)
        elif (path := folder / PICKLED_WEIGHTS_FILE).is_file():
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        else:
            raise ValueError(
                f"{folder} holds neither {WEIGHTS_FILE} nor {PICKLED_WEIGHTS_FILE} (sharded: merge it first)"
            )
    except ValueError:
        raise
    except Exception as error:  # each format fails in its own way: cut short, bad header, forbidden pickle
        raise ValueError(f"{path} cannot be read, it is damaged or not a weights file: {error}") from error
    return {_modern_name(name): value for name, value in tensors.items()}


def verify_checksums(folder: Path | str) -> None:
    """ValueError naming the first file that differs from checksums.json; nothing to do where that is absent."""
    folder = Path(folder)
    if not (folder / CHECKSUMS_FILE).is_file():
        return
    checksums = json.loads((folder / CHECKSUMS_FILE).read_text(encoding="utf-8"))
    for name, expected in checksums.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path} is missing: {CHECKSUMS_FILE} lists it; copy the whole folder again")
        if _sha256(path) != expected:
            raise ValueError(f"{path} is damaged: its sha256 is not the one in {CHECKSUMS_FILE}; copy it again")


def to_hf_tensors(encoder: Encoder, heads: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """All tensors under Hugging Face's names, contiguous, on the CPU."""
    tensors = {f"bert.{name}": value for name, value in _split_qkv(encoder).items()}
    for prefix, head in heads.items():
        tensors.update({f"{prefix}.{name}": value for name, value in _head_state(head).items()})
    return {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}


def _head_state(module: nn.Module) -> dict[str, Tensor]:
    tied = getattr(module, "tied_parameters", ())
    return {name: value for name, value in module.state_dict().items() if name not in tied}


def _split_qkv(encoder: Encoder) -> dict[str, Tensor]:
    """Our state under Hugging Face's names, without the `bert.` prefix."""
    tensors = {}
    for name, value in encoder.state_dict().items():
        name = f"encoder.{name}" if name.startswith("layer.") else name
        if ".attention.qkv." in name:
            for part, chunk in zip(_QKV, value.chunk(3), strict=True):
                tensors[name.replace("attention.qkv", f"attention.self.{part}")] = chunk
        else:
            tensors[name] = value
    return tensors


def _fuse_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `_split_qkv`."""
    state: dict[str, Tensor] = {}
    for name, value in tensors.items():
        name = name.removeprefix("encoder.")
        if ".attention.self.query." in name:
            parts = [tensors[f"encoder.{name}".replace(".query.", f".{part}.")] for part in _QKV]
            state[name.replace("attention.self.query", "attention.qkv")] = torch.cat(parts)
        elif ".attention.self." not in name:
            state[name] = value
    return state


def _encoder_tensors(tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Encoder tensors without prefix; heads are left out, anything else stays and is reported as unexpected."""
    if any(name.startswith("bert.") for name in tensors):
        selected = {name.removeprefix("bert."): value for name, value in tensors.items() if name.startswith("bert.")}
    else:
        selected = {name: value for name, value in tensors.items() if not name.startswith(_HEAD_PREFIXES)}
    if not selected:
        raise ValueError(f"{folder} holds no tensors of a BERT encoder")
    return {name: value for name, value in selected.items() if name not in _HARMLESS}


def _check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, torch.Size], folder: Path) -> None:
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise ValueError(f"{folder}: tensor {_first_of(missing)} is missing")
    unexpected = [name for name in tensors if name not in expected]
    if unexpected:
        raise ValueError(
            f"{folder}: tensor {_first_of(unexpected)} is not part of the model that {CONFIG_FILE} describes"
        )
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise ValueError(
                f"{folder}: tensor {name} has shape {list(tensors[name].shape)}, the configuration says {list(shape)}"
            )


def _first_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"


def _modern_name(name: str) -> str:
    """TensorFlow's LayerNorm.gamma/beta -> weight/bias."""
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name))


def _architecture(heads: Iterable[str]) -> str:
    """The transformers class that reads the whole folder."""
    names = set(heads)
    for prefix, architecture in (
        ("classifier", "BertForSequenceClassification"),
        ("qa_outputs", "BertForQuestionAnswering"),
        ("cls.seq_relationship", "BertForPreTraining"),
        ("cls.predictions", "BertForPreTraining"),
    ):
        if prefix in names:
            return architecture
    return "BertModel"


def _publish(temporary: Path, folder: Path) -> None:
    """Renames a finished folder into place; one that was there is moved aside first and removed last."""
    for path in temporary.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    temporary.chmod(0o755)
    old = temporary.with_name(temporary.name + ".old")
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
