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

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48  # bytes
# Numbers of TensorFlow's types.proto; others are no weights.
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
_POLYNOMIAL = 0x82F63B78  # of CRC-32C, bits reversed
_LANE = 1024  # bytes
# Fields of an entry, from tensor_bundle.proto.
_DTYPE = 1
_SHAPE = 2
_SHARD = 3
_OFFSET = 4
_SIZE = 5
_CHECKSUM = 6
_SLICES = 7
# Names of heads, which no rule gives; the first two are those of Google's run_classifier.py.
_NAMES = {
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
    """The weights of a checkpoint under BERT's names in Hugging Face.

    ValueError names what is damaged.
    """
    tensors = {}
    for name, array in read_bundle(index, _is_weight):
        values = torch.from_numpy(array)
        if name.endswith("/kernel"):  # [inputs, outputs] there
            values = values.T.contiguous()
        tensors[hugging_face_name(name)] = values
    if not any(name.startswith("bert.") for name in tensors):
        raise ValueError(
            f"{index} holds no variables of BERT (bert/...), the only model that is read from"
            " TensorFlow"
        )
    return tensors


def _is_weight(name: str) -> bool:
    """Whether a variable is a weight of BERT, and not its optimizer's."""
    if re.search(r"/(adam|lamb)_\w+$", name):
        return False
    return name in _NAMES or name.startswith(("bert/", "cls/"))


def hugging_face_name(name: str) -> str:
    """bert/encoder/layer_0/output/dense/kernel -> bert.encoder.layer.0.output.dense.weight."""
    if name in _NAMES:
        return _NAMES[name]
    *path, last = re.sub(r"/layer_(\d+)/", r"/layer/\1/", name).split("/")
    if last.endswith("_embeddings"):
        return ".".join([*path, last, "weight"])
    return ".".join([*path, _ENDS.get(last, last)])


def read_bundle(
    index: Path, is_wanted: Callable[[str], object]
) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors whose names are wanted, each checked before it is given.

    ValueError names what is damaged.
    """
    try:
        entries = list(_entries(index.read_bytes()))
        _, header_bytes = entries.pop(0)
        header = _message(header_bytes)
        if header.get(2, [0])[0]:
            raise ValueError("its numbers are big-endian")
        shards = header.get(1, [0])[0]
        for key, value in entries:
            name = key.decode()
            if is_wanted(name):
                yield name, _tensor(index, shards, name, _message(value))
    except (IndexError, KeyError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise ValueError(
            f"{index} is damaged or no TensorFlow checkpoint ({type(error).__name__})"
        ) from None
    except ValueError as error:
        raise ValueError(f"{index}: {error}") from None


def _tensor(index: Path, shards: int, name: str, entry: dict[int, list[Any]]) -> np.ndarray:
    """One tensor, from the shard, the place and the shape that its entry says."""
    number = entry.get(_SHARD, [0])[0]
    offset = entry.get(_OFFSET, [0])[0]
    size = entry.get(_SIZE, [0])[0]
    type_number = entry[_DTYPE][0]
    if _SLICES in entry or type_number not in _TYPES:
        raise ValueError(
            f"{name} is stored in slices or in type {type_number}, which is not read here"
        )
    dtype = np.dtype(_TYPES[type_number])
    shape = []
    if _SHAPE in entry:
        for dimension in _message(entry[_SHAPE][0]).get(2, []):
            shape.append(_message(dimension).get(1, [0])[0])
    path = index.with_name(f"{index.stem}.data-{number:05d}-of-{shards:05d}")
    if not path.is_file():
        raise ValueError(f"{path.name} is missing beside it; copy the checkpoint again")
    with path.open("rb") as file:
        file.seek(offset)
        content = file.read(size)
    array = np.frombuffer(bytearray(content), dtype=np.uint8)
    is_whole = len(content) == size
    if not is_whole or _masked(crc32c(array)) != struct.unpack("<I", entry[_CHECKSUM][0])[0]:
        raise ValueError(
            f"the checksum of {name} in {path.name} is wrong: the file is damaged; copy it again"
        )
    if size != dtype.itemsize * int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{name} has {size} bytes, which is not its shape {shape}")
    return array.view(dtype).reshape(shape)


# The table


def _entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All keys and values of a table, in order."""
    if len(content) < _FOOTER or struct.unpack("<Q", content[-8:])[0] != _MAGIC:
        raise ValueError("it is cut short, or no index of a TensorFlow checkpoint")
    _, position = _handle(content, len(content) - _FOOTER)  # of the meta index, which is empty
    index, _ = _handle(content, position)
    for _, handle in _block(content, *index):
        block, _ = _handle(handle, 0)
        yield from _block(content, *block)


def _handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Offset and size of a block, and where the next thing begins."""
    offset, position = _varint(data, position)
    size, position = _varint(data, position)
    return (offset, size), position


def _block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of one block; behind it stand a byte of compression and a checksum."""
    end = offset + size
    block = content[offset:end]
    compression, checksum = struct.unpack("<BI", content[end : end + 5])
    if _masked(crc32c(np.frombuffer(content[offset : end + 1], dtype=np.uint8))) != checksum:
        raise ValueError("the checksum of a block is wrong: the file is damaged; copy it again")
    if compression:
        raise ValueError("its blocks are compressed, which TensorFlow's own are not")
    restarts = struct.unpack("<I", block[-4:])[0]
    key = b""
    position = 0
    while position < len(block) - 4 * (restarts + 1):
        # A key is the beginning of the one before, and something new.
        shared, position = _varint(block, position)
        unshared, position = _varint(block, position)
        length, position = _varint(block, position)
        key = key[:shared] + block[position : position + unshared]
        yield key, block[position + unshared : position + unshared + length]
        position += unshared + length


# Protocol buffers


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number of seven bits a byte, low ones first, and where the next thing begins."""
    value = 0
    shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            return value, position


def _message(data: bytes) -> dict[int, list[Any]]:
    """Field number -> its values: numbers, or bytes where they have a length or a fixed size."""
    fields: dict[int, list[object]] = {}
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        wire_type = tag & 7
        value: object
        if wire_type == 0:
            value, position = _varint(data, position)
        else:
            if wire_type == 2:
                size, position = _varint(data, position)
            else:
                size = {1: 8, 5: 4}[wire_type]
            value = data[position : position + size]
            position += size
        fields.setdefault(tag >> 3, []).append(value)
    return fields


# CRC-32C


def crc32c(data: np.ndarray) -> int:
    """CRC-32C of uint8 [n].

    Lanes of equal length go through the table side by side, and are joined in pairs. The checksum
    is linear: zeros in front of a state of 0 change nothing, and what two lanes give together
    follows from theirs. The usual start, all ones, is a state of its own that goes through n zeros.
    """
    lanes = 1 << (max(len(data) - 1, 0) // _LANE).bit_length()
    padded = np.zeros(lanes * _LANE, dtype=np.uint8)
    padded[len(padded) - len(data) :] = data
    # [lanes, bytes] -> the next two bytes of all lanes at a time
    pairs = np.ascontiguousarray(padded.view("<u2").reshape(lanes, -1).T)
    table = _table(16)
    states = np.zeros(lanes, dtype=np.uint32)
    for pair in pairs:
        states = table[(states ^ pair) & 0xFFFF] ^ (states >> 16)
    # The left one of two lanes goes through as many zeros as the right one has bytes.
    shift = _shift(_LANE)
    while len(states) > 1:
        states = _apply(shift, states[0::2]) ^ states[1::2]
        shift = _apply(shift, shift)
    start = np.array([0xFFFFFFFF], dtype=np.uint32)
    for bit in range(len(data).bit_length()):
        if len(data) >> bit & 1:
            start = _apply(_shift(1 << bit), start)
    return int(states[0] ^ start[0]) ^ 0xFFFFFFFF


def _masked(checksum: int) -> int:
    """A checksum as LevelDB writes it."""
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
    """What becomes of each bit of a state when `count` zero bytes follow: uint32 [32].

    `count` is a power of two.
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
