"""Tests of clozelab.models.folders: round trips, and every way a folder can be wrong."""

from __future__ import annotations

import json
import logging
import os
import shutil

import pytest
import safetensors.torch
import torch

from clozelab.models.encoder import Encoder
from clozelab.models.folders import (
    load_encoder,
    load_head,
    read_config,
    read_config_dict,
    read_tensors,
    refuse_untied,
    save_encoder_folder,
)
from clozelab.models.heads import MaskedLMHead, SequenceClassificationHead
from clozelab.models.registry import family_for, family_of


@pytest.fixture
def folder(tmp_path, tiny_config):
    """An encoder folder with a masked-LM head and a classifier."""
    encoder = Encoder(tiny_config(is_causal=True))
    heads = {
        "lm": MaskedLMHead(encoder.config, encoder.embeddings.word_embeddings.weight),
        "classification": SequenceClassificationHead(encoder.config, num_labels=3),
    }
    save_encoder_folder(
        tmp_path / "runs" / "encoder",
        encoder,
        heads=heads,
        tokenizer_files={"vocab.txt": "[PAD]\n", "tokenizer.json": b"{}"},
        extra_config={"id2label": {"0": "no"}},
    )
    return tmp_path / "runs" / "encoder", encoder, heads


def _equal(one: torch.nn.Module, two: torch.nn.Module) -> bool:
    return all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    )


def _rewrite(path, change) -> None:
    """Changes the tensors of a folder and forgets its checksums."""
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    change(tensors)
    safetensors.torch.save_file(tensors, path / "model.safetensors")
    (path / "checksums.json").unlink()


def test_round_trip(folder):
    path, encoder, heads = folder
    assert read_config(path) == encoder.config
    assert _equal(load_encoder(path), encoder)
    fresh = SequenceClassificationHead(encoder.config, num_labels=3)
    load_head(path, "classification", fresh)
    assert _equal(fresh, heads["classification"])
    loaded = load_encoder(path)
    head = MaskedLMHead(loaded.config, loaded.embeddings.word_embeddings.weight)
    load_head(path, "lm", head)
    assert _equal(head, heads["lm"])
    assert head.word_embedding_weight is loaded.embeddings.word_embeddings.weight


def test_what_is_written(folder):
    path, _, _ = folder
    assert {file.name for file in path.iterdir()} == {
        "config.json",
        "model.safetensors",
        "vocab.txt",
        "tokenizer.json",
        "checksums.json",
    }
    assert [file.name for file in path.parent.iterdir()] == ["encoder"], "no temporary folder stays"
    assert read_config_dict(path)["id2label"] == {"0": "no"}
    names = set(safetensors.torch.load_file(path / "model.safetensors"))
    assert "bert.encoder.layer.1.attention.self.key.weight" in names
    assert not any("qkv" in name or "word_embedding_weight" in name for name in names)


def test_saving_again_replaces_the_folder(folder, tiny_config):
    path, _, _ = folder
    other = Encoder(tiny_config())
    save_encoder_folder(path, other, heads={}, tokenizer_files={}, extra_config={})
    assert _equal(load_encoder(path), other)
    assert [file.name for file in path.parent.iterdir()] == ["encoder"]
    assert not (path / "vocab.txt").exists()


def test_random_initialisation(folder):
    path, encoder, _ = folder
    one, two = (load_encoder(path, initialisation="random", seed=4) for _ in range(2))
    assert _equal(one, two) and not _equal(one, encoder) and one.config == encoder.config


def test_without_prefix_with_old_names_and_extra_buffer(folder):
    path, encoder, _ = folder

    def change(tensors):
        for name in list(tensors):
            value = tensors.pop(name)
            if name.startswith("bert."):
                old = name.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma")
                tensors[old.replace("LayerNorm.bias", "LayerNorm.beta")] = value
        tensors["embeddings.position_ids"] = torch.arange(64)[None]

    _rewrite(path, change)
    assert _equal(load_encoder(path), encoder)


def test_missing_pooler_starts_fresh_with_a_warning(folder, caplog):
    path, encoder, _ = folder
    _rewrite(
        path,
        lambda tensors: [tensors.pop(f"bert.pooler.dense.{name}") for name in ("weight", "bias")],
    )
    with caplog.at_level(logging.WARNING):
        loaded = load_encoder(path, seed=3)
    assert "has no pooler: it starts from fresh weights (seed 3)" in caplog.text
    caplog.clear()
    load_encoder(path, seed=3, warns_of_fresh=False)  # of a model that is only used
    assert not caplog.records
    assert not torch.equal(loaded.pooler.dense.weight, encoder.pooler.dense.weight)
    assert torch.equal(loaded.pooler.dense.weight, load_encoder(path, seed=3).pooler.dense.weight)
    drawn = Encoder(encoder.config, torch.Generator().manual_seed(3))
    assert _equal(loaded.pooler, drawn.pooler)
    assert torch.equal(loaded.layer[1].attention.qkv.weight, encoder.layer[1].attention.qkv.weight)


def test_a_loaded_encoder_is_drawn_no_weights(folder, monkeypatch):
    """Not even where memory that nobody has filled would show."""
    path, encoder, _ = folder
    monkeypatch.setattr("clozelab.models.encoder.initialise_", None)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    try:
        unset = Encoder(encoder.config, is_drawn=False)
        loaded = load_encoder(path)
    finally:
        torch.use_deterministic_algorithms(False)
    assert unset.embeddings.word_embeddings.weight.isnan().all()
    assert _equal(loaded, encoder)


def test_cut_off_weights_without_checksums(folder):
    path, _, _ = folder
    (path / "checksums.json").unlink()
    content = (path / "model.safetensors").read_bytes()
    for size in (0, 5, len(content) // 2):
        (path / "model.safetensors").write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"model\.safetensors"):
            load_encoder(path)


def _save(path, encoder, **heads):
    save_encoder_folder(path, encoder, heads=heads, tokenizer_files={}, extra_config={})


def test_an_untied_vocabulary_projection_stays_apart_and_a_tied_one_is_shared(
    tmp_path, tiny_config
):
    encoder = Encoder(tiny_config())
    head = family_for(encoder.config).head("lm", encoder)
    _save(tmp_path / "e", encoder, lm=head)
    (tmp_path / "e" / "checksums.json").unlink()
    path = tmp_path / "e" / "model.safetensors"
    name = "cls.predictions.decoder.weight"
    tensors = safetensors.torch.load_file(path)
    words = encoder.embeddings.word_embeddings.weight
    assert name not in tensors and read_config_dict(tmp_path / "e")["tie_word_embeddings"]
    fresh = MaskedLMHead(encoder.config, words)
    safetensors.torch.save_file(tensors | {name: words.detach().clone()}, path)
    load_head(tmp_path / "e", "lm", fresh)
    assert _equal(fresh, head) and fresh.word_embedding_weight is words
    refuse_untied(tmp_path / "e")
    apart = words.detach() + 1e-3
    bias = {
        f"cls.predictions.{part}bias": torch.full((97,), number)
        for number, part in ((1.0, ""), (2.0, "decoder."))
    }
    safetensors.torch.save_file(tensors | bias | {name: apart}, path)
    load_head(tmp_path / "e", "lm", fresh)
    assert torch.equal(fresh.word_embedding_weight, apart) and fresh.bias[0] == 2.0
    reason = r"cls\.predictions\.decoder\.weight is not the word embeddings.*Bert"
    with pytest.raises(ValueError, match=reason):
        refuse_untied(tmp_path / "e")
    _save(tmp_path / "again", encoder, lm=fresh)
    written = safetensors.torch.load_file(tmp_path / "again" / "model.safetensors")
    assert torch.equal(written[name], apart)
    assert not read_config_dict(tmp_path / "again")["tie_word_embeddings"]


@pytest.mark.parametrize("model_type", ["ultrabert", "neobert"])
def test_a_family_whose_projection_is_always_apart_is_trained_further(
    tmp_path, tiny_config, model_type
):
    family = family_of(model_type)
    encoder = Encoder(tiny_config(model_type=model_type, **family.parts))
    head = family.head("lm", encoder)
    _save(tmp_path / "e", encoder, lm=head)
    refuse_untied(tmp_path / "e")
    fresh = family.head("lm", encoder)
    load_head(tmp_path / "e", "lm", fresh)
    assert _equal(fresh, head)


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards_are_read_and_a_missing_one_is_named(folder, kind):
    path, encoder, _ = folder
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    for name in ("model.safetensors", "checksums.json"):
        (path / name).unlink()
    stem, save = (
        ("model", safetensors.torch.save_file)
        if kind == "safetensors"
        else ("pytorch_model", torch.save)
    )
    names = sorted(tensors)
    shards = [f"{stem}-0000{i}-of-00002.{kind}" for i in (1, 2)]
    for number, shard in enumerate(shards):
        save({name: tensors[name] for name in names[number::2]}, path / shard)
    index = path / f"{stem}.{kind}.index.json"
    index.write_text(
        json.dumps({"weight_map": {name: shards[i % 2] for i, name in enumerate(names)}})
    )
    assert _equal(load_encoder(path), encoder)
    assert read_tensors(path / shards[0]).keys() == set(names[::2]), "one file alone"
    (path / shards[1]).unlink()
    with pytest.raises(ValueError, match=rf"{shards[1]} is missing: {index.name} lists it"):
        load_encoder(path)
    index.write_text("[]")
    with pytest.raises(ValueError, match="is damaged: it lists no files"):
        load_encoder(path)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (type(self.path).touch, (self.path,))


def test_a_pickle_with_code_is_refused_and_runs_nothing(folder, tmp_path):
    path, _, _ = folder
    torch.save(
        {"bert.embeddings.word_embeddings.weight": Evil(tmp_path / "canary")},
        path / "pytorch_model.bin",
    )
    for name in ("model.safetensors", "checksums.json"):
        (path / name).unlink()
    with pytest.raises(ValueError, match=r"pytorch_model\.bin cannot be .*nothing of it has run"):
        load_encoder(path)
    assert not (tmp_path / "canary").exists()


def test_files_have_the_usual_rights(folder):
    """The temporary folder that they come from is its owner's alone."""
    mask = os.umask(0)
    os.umask(mask)
    path, _, _ = folder
    assert {oct(file.stat().st_mode & 0o777) for file in path.iterdir()} == {oct(0o644 & ~mask)}
    assert oct(path.stat().st_mode & 0o777) == oct(0o755 & ~mask)


INDEX = "model.safetensors.index.json"
QUERY = "bert.encoder.layer.0.attention.self.query.weight"


def test_large_numbers_are_finite(folder):
    """Their sum is not."""
    path, _, _ = folder
    _rewrite(path, lambda tensors: tensors[QUERY].fill_(3e38))
    assert load_encoder(path).layer[0].attention.qkv.weight.max() > 1e38


LAYER = "bert.encoder.layer."


def _without(name):
    return lambda tensors: tensors.pop(name)


def _with(name, value):
    return lambda tensors: tensors.update({name: value})


def _fill(number):
    def change(tensors):
        tensors[QUERY].view(-1)[3] = number

    return change


def _double_prefix(tensors):
    for name in [name for name in tensors if name.startswith("bert.")]:
        tensors[f"bert.{name}"] = tensors.pop(name)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_without(f"{LAYER}1.attention.self.value.bias"), "layer.1.attention.self.value.bias"),
        (_without("bert.embeddings.LayerNorm.weight"), "embeddings.LayerNorm.weight"),
        (_without("bert.pooler.dense.bias"), "pooler.dense.bias"),
        (_with(f"{LAYER}2.output.dense.bias", torch.zeros(24)), "layer.2.output.dense.bias"),
        (_with(QUERY, torch.zeros(24, 8)), r"self.query.weight has shape \[24, 8\]"),
        (_with(QUERY, torch.zeros(24, 24, dtype=torch.int8)), "query.weight holds int8"),
        (_fill(float("nan")), "query.weight holds numbers that are not finite"),
        (_fill(float("-inf")), "query.weight holds numbers that are not finite"),
        (_double_prefix, "begin with bert.bert., so one Bert model"),
    ],
)
def test_tensors_that_no_model_has_are_refused_by_name(folder, change, reason):
    path, _, _ = folder
    _rewrite(path, change)
    with pytest.raises(ValueError, match=reason):
        load_encoder(path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vocab.txt"])
def test_one_flipped_byte_is_found(folder, name):
    path, _, _ = folder
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        load_encoder(path)


@pytest.mark.parametrize(
    ("gone", "written", "reason"),
    [
        (["model.safetensors"], {}, r"holds no weights: expected model\.safetensors"),
        ([], {"config.json": "{"}, "not valid JSON"),
        ([], {"config.json": '{"model_type": "gpt2"}'}, "'gpt2'; known families: albert, bert, "),
        (["model.safetensors"], {INDEX: '{"weight_map": {}}'}, r"index\.json lists no files"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(folder, gone, written, reason):
    path, _, _ = folder
    for name in ("checksums.json", *gone):
        (path / name).unlink()
    for name, content in written.items():
        (path / name).write_text(content)
    with pytest.raises(ValueError, match=reason):
        load_encoder(path)


def test_a_listed_file_or_a_folder_that_is_gone(folder):
    path, _, _ = folder
    (path / "vocab.txt").unlink()
    with pytest.raises(ValueError, match=r"vocab\.txt is missing"):
        load_encoder(path)
    shutil.rmtree(path)
    for read in (read_config, load_encoder):
        with pytest.raises(ValueError, match="does not exist"):
            read(path)


@pytest.mark.parametrize(
    ("kind", "labels", "reason"),
    [
        ("spans", 2, r"qa_outputs\.weight"),
        ("classification", 2, r"classifier\.weight has shape"),
    ],
)
def test_a_head_that_is_missing_or_of_another_shape(folder, kind, labels, reason):
    path, encoder, _ = folder
    with pytest.raises(ValueError, match=reason):
        load_head(path, kind, SequenceClassificationHead(encoder.config, num_labels=labels))


def test_a_missing_tensor_names_its_family(tmp_path, tiny_config):
    config = tiny_config(
        model_type="albert", num_hidden_groups=1, embedding_size=8, projects_embeddings=True
    )
    _save(tmp_path / "e", Encoder(config))
    _rewrite(tmp_path / "e", _without("albert.encoder.embedding_hidden_mapping_in.weight"))
    with pytest.raises(ValueError, match=r"mapping_in\.weight of this Albert model is missing"):
        load_encoder(tmp_path / "e")
