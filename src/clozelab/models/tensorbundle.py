"""Google's BERT checkpoints, without TensorFlow: the TensorBundle format, and BERT's names in it.

A checkpoint is NAME.index and NAME.data-00000-of-0000N. The index is a table as LevelDB's: blocks
of sorted entries whose keys share beginnings, an index of the blocks, and a footer. Its values are
two small protocol buffers: the header under the empty key, and for each tensor its type, shape,
shard, place and checksum. Every checksum is compared (CRC-32C, "masked" as LevelDB does). The
layouts are those of leveldb's doc/table_format.md and TensorFlow's tensor_bundle.proto. Variables
of the optimizer (adam_m, adam_v, global_step) are left out.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MAGIC, _FOOTER = 0xDB4775248B80FB57, 48  # bytes
# of TensorFlow's types.proto; others are no weights
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
_POLYNOMIAL, _LANE = 0x82F63B78, 1024
_NAMES = {  # of heads, which no rule gives; the first two are those of Google's run_classifier.py
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "cls/predictions/output_weights": "cls.predictions.decoder.weight",
}
_ENDS = {
    "kernel": "weight",
    "gamma": "weight",
    "beta": "bias",
    "output_weights": "weight",
    "output_bias": "bias",
}


def read_bert(index: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint under BERT's names in Hugging Face; ValueError names what is
    damaged.
    """

    def is_weight(name: str) -> bool:  # and not its optimizer's
        return (name in _NAMES or name.startswith(("bert/", "cls/"))) and not re.search(
            r"/(adam|lamb)_\w+$", name
        )

    found = {}
    for name, array in read_bundle(index, is_weight):
        values = torch.from_numpy(array)
        found[hugging_face_name(name)] = (
            values.T.contiguous() if name.endswith("/kernel") else values
        )
    if not any(name.startswith("bert.") for name in found):
        raise ValueError(
            f"{index} holds no variables of BERT (bert/...), the only model that is read from"
            " TensorFlow"
        )
    return found


def hugging_face_name(name: str) -> str:
    """bert/encoder/layer_0/output/dense/kernel -> bert.encoder.layer.0.output.dense.weight."""
    if name in _NAMES:
        return _NAMES[name]
    *path, last = re.sub(r"/layer_(\d+)/", r"/layer/\1/", name).split("/")
    return ".".join(
        [*path, last, "weight"] if last.endswith("_embeddings") else [*path, _ENDS.get(last, last)]
    )


def read_bundle(index: Path, wanted: Callable[[str], object]) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors whose names are `wanted`, each checked before it is given; ValueError names what
    is damaged.
    """
    try:
        entries = list(_entries(index.read_bytes()))
        header = _message(entries.pop(0)[1])
        if header.get(2, [0])[0]:
            raise ValueError("its numbers are big-endian")
        shards = header.get(1, [0])[0]
        for key, value in entries:
            name = key.decode()
            if wanted(name):
                yield name, _tensor(index, shards, name, _message(value))
    except (IndexError, KeyError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise ValueError(
            f"{index} is damaged or no TensorFlow checkpoint ({type(error).__name__})"
        ) from None
    except ValueError as error:
        raise ValueError(f"{index}: {error}") from None


def _tensor(index: Path, shards: int, name: str, entry: dict[int, list[Any]]) -> np.ndarray:
    number, offset, size = (entry.get(field, [0])[0] for field in (3, 4, 5))
    if 7 in entry or entry[1][0] not in _TYPES:
        raise ValueError(
            f"{name} is stored in slices or in type {entry[1][0]}, which is not read here"
        )
    shape = (
        [_message(one).get(1, [0])[0] for one in _message(entry[2][0]).get(2, [])]
        if 2 in entry
        else []
    )
    path = index.with_name(f"{index.stem}.data-{number:05d}-of-{shards:05d}")
    if not path.is_file():
        raise ValueError(f"{path.name} is missing beside it; copy the checkpoint again")
    with path.open("rb") as file:
        file.seek(offset)
        content = file.read(size)
    array = np.frombuffer(bytearray(content), dtype=np.uint8)
    if len(content) != size or _masked(crc32c(array)) != struct.unpack("<I", entry[6][0])[0]:
        raise ValueError(
            f"the checksum of {name} in {path.name} is wrong: the file is damaged; copy it again"
        )
    if size != np.dtype(_TYPES[entry[1][0]]).itemsize * int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{name} has {size} bytes, which is not its shape {shape}")
    return array.view(_TYPES[entry[1][0]]).reshape(shape)


# The table


def _entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All keys and values of a table, in order."""
    if len(content) < _FOOTER or struct.unpack("<Q", content[-8:])[0] != _MAGIC:
        raise ValueError("it is cut short, or no index of a TensorFlow checkpoint")
    _, at = _handle(content, len(content) - _FOOTER)  # of the meta index, which is empty
    for _, handle in _block(content, *_handle(content, at)[0]):
        yield from _block(content, *_handle(handle, 0)[0])


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Offset and size of a block, and where the next thing begins."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    block, end = content[offset : offset + size], offset + size
    kind, checksum = struct.unpack("<BI", content[end : end + 5])
    if _masked(crc32c(np.frombuffer(content[offset : end + 1], dtype=np.uint8))) != checksum:
        raise ValueError("the checksum of a block is wrong: the file is damaged; copy it again")
    if kind:
        raise ValueError("its blocks are compressed, which TensorFlow's own are not")
    restarts = struct.unpack("<I", block[-4:])[0]
    key, at = b"", 0
    while at < len(block) - 4 * (restarts + 1):
        shared, at = _varint(block, at)
        unshared, at = _varint(block, at)
        length, at = _varint(block, at)
        key = key[:shared] + block[at : at + unshared]
        yield key, block[at + unshared : at + unshared + length]
        at += unshared + length


# Protocol buffers


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, low ones first, and where the next thing begins."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 128:
            return value, at


def _message(data: bytes) -> dict[int, list[Any]]:
    """Field number -> its values: numbers, or bytes where they have a length or a fixed size."""
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value: Any
        if tag & 7 == 0:
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if tag & 7 == 2 else ({1: 8, 5: 4}[tag & 7], at)
            value, at = data[at : at + size], at + size
        fields.setdefault(tag >> 3, []).append(value)
    return fields


# CRC-32C


def crc32c(data: np.ndarray) -> int:
    """Of uint8 [n]. Lanes of equal length go through the table side by side, and are joined in
    pairs.

    It is linear: zeros in front of a state of 0 change nothing, and what two lanes give together
    follows from theirs. The usual start, all ones, is a state of its own that goes through n
    zeros."""
    lanes = 1 << (max(len(data) - 1, 0) // _LANE).bit_length()
    padded = np.zeros(lanes * _LANE, dtype=np.uint8)
    padded[len(padded) - len(data) :] = data
    states, table = np.zeros(lanes, dtype=np.uint32), _table(16)
    for pair in np.ascontiguousarray(padded.view("<u2").reshape(lanes, -1).T):
        states = table[(states ^ pair) & 0xFFFF] ^ (states >> 16)
    shift = _shift(_LANE)
    while len(states) > 1:
        states, shift = _apply(shift, states[0::2]) ^ states[1::2], _apply(shift, shift)
    start = np.array([0xFFFFFFFF], dtype=np.uint32)
    for bit in range(len(data).bit_length()):
        start = _apply(_shift(1 << bit), start) if len(data) >> bit & 1 else start
    return int(states[0] ^ start[0]) ^ 0xFFFFFFFF


def _masked(checksum: int) -> int:
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _table(bits: int) -> np.ndarray:
    """What `bits` bits at the low end become when they are shifted out."""
    values: np.ndarray = np.arange(1 << bits, dtype=np.uint32)
    for _ in range(bits):
        values = (values >> 1) ^ ((values & 1) * np.uint32(_POLYNOMIAL))
    return values


@cache
def _shift(count: int) -> np.ndarray:
    """What becomes of each bit of a state when `count` zero bytes, a power of two, follow: uint32
    [32].
    """
    if count > 1:
        return _apply(_shift(count // 2), _shift(count // 2))
    units = np.uint32(1) << np.arange(32, dtype=np.uint32)
    return _table(8)[units & 255] ^ (units >> 8)


def _apply(columns: np.ndarray, states: np.ndarray) -> np.ndarray:
    """The linear map of 32 columns on each state."""
    result = np.zeros_like(states)
    for bit, column in enumerate(columns):
        result ^= ((states >> np.uint32(bit)) & np.uint32(1)) * column
    return result
