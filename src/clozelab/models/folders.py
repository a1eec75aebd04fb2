"""Encoder folders: reading and writing weights in the Hugging Face layout, under the names of their family.

`config.json`, `model.safetensors`, tokenizer files, and `checksums.json` (sha256 of every file: a flipped byte loads
silently otherwise). Written to a temporary folder and renamed, so a folder is whole or absent. Read: folders of ours
and of others, with or without the family's prefix, with the old gamma/beta names, safetensors or pytorch_model.bin.
Every encoder tensor must be there; only the pooler may be missing, and is then fresh, with a log line. Query, key and
value are one matrix here and three tensors in the file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from clozelab.models.config import EncoderConfig, family_of
from clozelab.models.encoder import Encoder
from clozelab.models.families.bert import OWN_TYPE, Family

CONFIG_FILE, WEIGHTS_FILE, CHECKSUMS_FILE = "config.json", "model.safetensors", "checksums.json"
PICKLED_WEIGHTS_FILE = "pytorch_model.bin"
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
        heads: by kind (families/bert.py), e.g. {"lm": head, "classification": head}; another name is kept as it is.
        tokenizer_files: name -> content.
        extra_config: further keys of config.json, e.g. label names.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    config = {**encoder.config.family.to_hf(encoder.config, heads), **extra_config}
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
    """Reads the encoder of a folder; ValueError names the file or tensor at fault.

    Args:
        initialisation: "pretrained", or "random": the same shape with fresh weights.
        seed: of fresh weights (all of them, or a missing pooler).
    """
    folder = Path(folder)
    encoder = Encoder(read_config(folder), generator=torch.Generator().manual_seed(seed))
    if initialisation == "random":
        return encoder
    if initialisation != "pretrained":
        raise ValueError(f"initialisation is {initialisation!r}; choose pretrained or random")
    family, expected = encoder.config.family, _named(encoder)
    stored = read_tensors(folder)
    if any(name.startswith(family.prefix) for name in stored):
        own = {name.removeprefix(family.prefix): stored[name] for name in stored if name.startswith(family.prefix)}
    else:
        own = {name: value for name, value in stored.items() if not family.is_head(name)}
    if not own:
        raise ValueError(f"{folder} holds no tensors of a {family.class_name} encoder")
    tensors = {name: value for name, value in own.items() if name not in _HARMLESS}
    poolers = [family.encoder_name(f"pooler.{name}") for name in encoder.pooler.state_dict()]
    if poolers and not any(name in tensors for name in poolers):
        _LOG.warning("%s has no pooler: it starts from fresh weights (seed %d)", folder, seed)
        tensors.update({name: expected[name] for name in poolers})
    _fill(expected, tensors, family, folder)
    return encoder


def load_head(folder: Path | str, kind: str, module: nn.Module) -> None:
    """Fills `module` with the folder's head of this kind; ValueError for a missing, misshapen or untied tensor."""
    folder = Path(folder)
    family, stored = read_config(folder).family, read_tensors(folder)
    own = {family.head_name(kind, name): value for name, value in _head_state(module).items()}
    if kind == "lm":
        refuse_untied(folder, stored)
        bias = family.head_name("lm", "bias")  # some files have it at the decoder alone
        stored = {name.replace(f"{family.decoder}.bias", bias): value for name, value in stored.items()} | stored
    _fill(own, {name: stored[name] for name in own if name in stored}, family, folder)


def refuse_untied(folder: Path | str, stored: Mapping[str, Tensor] | None = None) -> None:
    """ValueError where a folder's vocabulary projection is not its word embeddings: heads here share them."""
    family, stored = read_config(folder).family, stored or read_tensors(folder)
    decoder, words = f"{family.decoder}.weight", "embeddings.word_embeddings.weight"
    projection, tied = stored.get(decoder), stored.get(family.prefix + words, stored.get(words))
    if projection is not None and (tied is None or not torch.equal(projection, tied)):
        raise ValueError(
            f"{folder}: {decoder} is not the word embeddings: this {family.class_name}'s vocabulary projection was "
            "trained apart (tie_word_embeddings false), and heads here share the embeddings; save the encoder alone "
            "(transformers.AutoModel.from_pretrained(FOLDER).save_pretrained(OTHER), and copy the tokenizer's files)"
        )


def read_config(folder: Path | str) -> EncoderConfig:
    """The configuration of an encoder folder; ValueError when the folder or its config.json is not usable."""
    values = read_config_dict(folder)
    try:
        family = family_of(str(values.get("model_type", "bert")).removeprefix(OWN_TYPE))
        return family.from_hf(values)
    except ValueError as error:
        raise ValueError(f"{Path(folder) / CONFIG_FILE}: {error}") from None


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
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return values


def read_tensors(folder: Path | str) -> dict[str, Tensor]:
    """Every tensor of a folder under today's names, on the CPU; checksums are verified where they are kept."""
    folder = Path(folder)
    verify_checksums(folder)
    path = next((folder / name for name in (WEIGHTS_FILE, PICKLED_WEIGHTS_FILE) if (folder / name).is_file()), None)
    if path is None:
        raise ValueError(f"{folder} holds neither {WEIGHTS_FILE} nor {PICKLED_WEIGHTS_FILE} (sharded: merge it first)")
    try:
        if path.name == WEIGHTS_FILE:
            tensors = safetensors.torch.load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # each format fails in its own way: cut short, bad header, forbidden pickle
        raise ValueError(f"{path} cannot be read, it is damaged or not a weights file: {error}") from error
    modern = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # TensorFlow's
    return {re.sub(r"LayerNorm\.(gamma|beta)$", lambda old: modern[old[0]], name): tensors[name] for name in tensors}


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
    """All tensors under their family's names, contiguous, on the CPU."""
    family = encoder.config.family
    tensors = {family.prefix + name: value for name, value in _named(encoder).items()}
    for kind, head in heads.items():
        tensors.update({family.head_name(kind, name): value for name, value in _head_state(head).items()})
    return {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}


def _head_state(module: nn.Module) -> dict[str, Tensor]:
    tied = getattr(module, "tied_parameters", ())
    return {name: value for name, value in module.state_dict().items() if name not in tied}


def _named(encoder: Encoder) -> dict[str, Tensor]:
    """The encoder's own parameters under its family's names, without prefix; views where one matrix is three there."""
    family, tensors = encoder.config.family, {}
    for name, value in encoder.state_dict().items():
        if ".attention.qkv." not in name:
            tensors[family.encoder_name(name)] = value
            continue
        for part, chunk in zip(("query", "key", "value"), value.chunk(3), strict=True):
            tensors[family.encoder_name(name.replace(".qkv.", f".{part}."))] = chunk
    return tensors


@torch.no_grad()
def _fill(own: Mapping[str, Tensor], stored: Mapping[str, Tensor], family: Family, folder: Path) -> None:
    """Copy a file's tensors into a module's own, or views of them; ValueError where they are not the same ones."""
    model = family.class_name
    missing = [name for name in own if name not in stored]
    unexpected = [name for name in stored if name not in own]
    for names, wrong in (
        (missing, f"of this {model} model is missing"),
        (unexpected, f"is not part of the {model} model that {CONFIG_FILE} describes"),
    ):
        if names:
            which = names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"
            raise ValueError(f"{folder}: tensor {which} {wrong}")
    for name, value in own.items():
        if (shape := stored[name].shape) != value.shape:
            said = f"the configuration says {list(value.shape)}"
            raise ValueError(f"{folder}: tensor {name} has shape {list(shape)}, {said}")
    for name, value in own.items():
        value.copy_(stored[name])


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
