"""Google's checkpoints: a writer of the format of our own, and what the reader makes of its files,
whole and damaged.

The writer stands on the formats' own descriptions alone: its checksum goes bit by bit, its blocks
are small, and two shards are written.
"""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import torch

from clozelab.corpus.tokenizers import SPECIAL_TOKENS
from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder, read_tensors, to_hf_tensors
from clozelab.models.registry import family_for
from clozelab.models.tensorbundle import crc32c, hugging_face_name, read_bundle
from clozelab.modules.model import read_model


def slow_crc32c(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def masked(checksum: int) -> bytes:
    return struct.pack("<I", (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def write_bundle(
    prefix, arrays: dict[str, np.ndarray], num_shards: int = 2, restart_interval: int = 4
) -> None:
    """prefix.index and prefix.data-...: tensors go to the shards in turn."""
    shards = [bytearray() for _ in range(num_shards)]
    entries = [(b"", field(1, num_shards) + field(2, 0) + field(3, field(1, 1)))]
    for number, (name, array) in enumerate(sorted(arrays.items())):
        content = array.tobytes()
        shard = number % num_shards
        kind = {"float32": 1, "int64": 9}[array.dtype.name]
        shape = b"".join(field(2, field(1, size)) for size in array.shape)
        entry = field(1, kind) + field(2, shape) + field(3, shard) + field(4, len(shards[shard]))
        entry += field(5, len(content)) + varint(6 << 3 | 5) + masked(slow_crc32c(content))
        entries.append((name.encode(), entry))
        shards[shard] += content
    for number, shard in enumerate(shards):
        prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{num_shards:05d}").write_bytes(
            bytes(shard)
        )
    table = bytearray()
    handles = []
    for start in range(0, len(entries), 10):
        some = entries[start : start + 10]
        handles.append((some[-1][0], append_block(table, some, restart_interval)))
    meta = append_block(table, [], 1)
    index = append_block(table, handles, 1)
    footer = (meta + index).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    prefix.with_name(f"{prefix.name}.index").write_bytes(bytes(table) + footer)


def append_block(
    table: bytearray, entries: list[tuple[bytes, bytes]], restart_interval: int
) -> bytes:
    """Adds a block with its trailer; returns its handle."""
    block = bytearray()
    restarts = [0]
    last = b""
    for number, (key, value) in enumerate(entries):
        shared = 0
        if number % restart_interval:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        elif number:
            restarts.append(len(block))
        block += (
            varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        )
        last = key
    block += b"".join(struct.pack("<I", at) for at in restarts) + struct.pack("<I", len(restarts))
    handle = varint(len(table)) + varint(len(block))
    table += block + b"\0" + masked(slow_crc32c(bytes(block) + b"\0"))
    return handle


def google_names(tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Our tensors as Google's variables, with what its optimizer keeps of each."""
    heads = {"cls.predictions.bias": "cls/predictions/output_bias"}
    heads |= {
        f"cls.seq_relationship.{ours}": f"cls/seq_relationship/output_{theirs}"
        for ours, theirs in (("weight", "weights"), ("bias", "bias"))
    }
    found: dict[str, np.ndarray] = {"global_step": np.array(7, dtype=np.int64)}
    for name, value in tensors.items():
        array = value.numpy()
        if name in heads:
            google = heads[name]
        elif "_embeddings" in name:
            google = name.removesuffix(".weight").replace(".", "/")
        else:
            path = name.replace(".layer.", ".layer_").replace(".", "/")
            if "LayerNorm" in path:
                google = path.replace("LayerNorm/weight", "LayerNorm/gamma").replace(
                    "LayerNorm/bias", "LayerNorm/beta"
                )
            else:
                google = path.replace("/weight", "/kernel")
                array = np.ascontiguousarray(array.T) if google.endswith("/kernel") else array
        found |= {google: array, f"{google}/adam_m": array * 0, f"{google}/adam_v": array * 0}
    return found


@pytest.fixture(scope="module")
def google(tmp_path_factory, tiny_config):
    """A folder as Google gives it, and the encoder and heads that are in it."""
    folder = tmp_path_factory.mktemp("google") / "uncased"
    folder.mkdir()
    vocabulary = [*SPECIAL_TOKENS, *(f"word{i}" for i in range(20))]
    encoder = Encoder(tiny_config(vocab_size=25, num_attention_heads=2))
    family = family_for(encoder.config)
    heads = {kind: family.head(kind, encoder) for kind in ("lm", "nsp")}
    for module in (encoder, *heads.values()):
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter)
    write_bundle(folder / "bert_model.ckpt", google_names(to_hf_tensors(encoder, heads)))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in vocabulary))
    config = family.to_hf_config(encoder.config)
    asked = "hidden_size num_hidden_layers num_attention_heads intermediate_size vocab_size"
    asked += " hidden_act max_position_embeddings type_vocab_size initializer_range"
    values = {key: config[key] for key in asked.split()}
    (folder / "bert_config.json").write_text(json.dumps(values))
    return folder, encoder, heads


def test_a_folder_of_google_is_a_model(google):
    """Kernels turned round, LayerNorms renamed, two shards, no variable of the optimizer."""
    folder, encoder, heads = google
    stored = read_tensors(folder)
    expected = to_hf_tensors(encoder, heads)
    assert stored.keys() == expected.keys()
    assert all(torch.equal(stored[name], expected[name]) for name in expected)
    model = read_model(folder)
    assert model.architecture == "BertForPreTraining"
    assert not model.untrained
    assert model.tokenizer.lowercase
    assert torch.equal(model.heads["nsp"].weight, heads["nsp"].weight)
    mine = encoder.state_dict()
    read = load_encoder(folder).state_dict()
    assert all(torch.equal(read[name], mine[name]) for name in mine)


def test_heads_of_google_have_names_of_their_own():
    assert hugging_face_name("output_weights") == "classifier.weight"
    assert hugging_face_name("cls/squad/output_bias") == "qa_outputs.bias"
    assert (
        hugging_face_name("bert/encoder/layer_11/output/LayerNorm/gamma")
        == "bert.encoder.layer.11.output.LayerNorm.weight"
    )


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 1023, 1024, 1025, 3000])
def test_the_checksum_is_that_of_the_definition(size):
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert crc32c(data) == slow_crc32c(data.tobytes())
    # RFC 3720, B.4's polynomial
    assert crc32c(np.frombuffer(b"123456789", dtype=np.uint8)) == 0xE3069283


@pytest.mark.parametrize("place", ["data", "index"])
def test_a_flipped_byte_is_refused(google, tmp_path, place):
    """In every tenth of the file, but for the footer's padding, which no checksum covers."""
    folder, _, _ = google
    content = {path.name: path.read_bytes() for path in folder.glob("bert_model*")}
    for name, whole in content.items():
        (tmp_path / name).write_bytes(whole)
    name = next(name for name in content if place in name)
    for tenth in range(10):
        damaged = bytearray(content[name])
        damaged[(len(damaged) - 60) * tenth // 10] ^= 4
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(ValueError, match="checksum of"):
            list(read_bundle(tmp_path / "bert_model.ckpt.index", lambda name: True))


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("bert_model.ckpt.index", 100, "cut short, or no index"),
        ("bert_model.ckpt.index", 0, "cut short, or no index"),
        ("bert_model.ckpt.data-00001-of-00002", 200, "2 is wrong: the file is damaged"),
        ("bert_model.ckpt.data-00001-of-00002", None, "data-00001-of-00002 is missing"),
    ],
)
def test_a_file_that_is_cut_or_gone_is_named(google, tmp_path, name, size, reason):
    for path in google[0].glob("bert_model*"):
        content = path.read_bytes()
        if path.name != name:
            (tmp_path / path.name).write_bytes(content)
        elif size is not None:
            (tmp_path / path.name).write_bytes(content[:size])
    with pytest.raises(ValueError, match=reason):
        read_tensors(tmp_path)


def test_another_model_of_tensorflow_is_refused(tmp_path):
    arrays = {"dense/kernel": np.zeros((2, 3), dtype=np.float32)}
    write_bundle(tmp_path / "model.ckpt", arrays)
    with pytest.raises(ValueError, match="holds no variables of BERT"):
        read_tensors(tmp_path)
