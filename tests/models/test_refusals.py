"""What this room refuses, and the sentence that says so: a row a case."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.calling import call_with_fixtures
from tests.models import test_folders, test_parts, test_tensorbundle

from clozelab.models.encoder import Encoder
from clozelab.models.folders import (
    load_encoder,
    load_head,
    read_config,
    read_tensors,
    refuse_untied,
)
from clozelab.models.heads import SequenceClassificationHead, feature_layers
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for, family_of

folder = test_folders.folder
google = test_tensorbundle.google


def _quantise(tensors):
    tensors[test_folders.QUERY] = tensors[test_folders.QUERY].to(torch.int8)


def _with_number(number):
    def change(tensors):
        tensors[test_folders.QUERY].view(-1)[3] = number

    return change


def _double_prefix(tensors):
    for name in [name for name in tensors if name.startswith("bert.")]:
        tensors[f"bert.{name}"] = tensors.pop(name)


def missing_tensor_is_named(folder: Any, name: Any) -> None:
    path, _, _ = folder
    test_folders._rewrite(path, lambda tensors: tensors.pop(name))
    load_encoder(path)


def an_unexpected_tensor(folder: Any) -> None:
    path, _, _ = folder
    test_folders._rewrite(
        path,
        lambda tensors: tensors.update({"bert.encoder.layer.2.output.dense.bias": torch.zeros(24)}),
    )
    load_encoder(path)


def a_misshapen_tensor(folder: Any) -> None:
    path, _, _ = folder
    name = "bert.encoder.layer.0.attention.self.query.weight"
    test_folders._rewrite(path, lambda tensors: tensors.update({name: torch.zeros(24, 8)}))
    load_encoder(path)


def a_missing_head(folder: Any) -> None:
    path, encoder, _ = folder
    load_head(path, "spans", SequenceClassificationHead(encoder.config, num_labels=2))


def a_misshapen_head(folder: Any) -> None:
    path, encoder, _ = folder
    load_head(path, "classification", SequenceClassificationHead(encoder.config, num_labels=2))


def one_flipped_byte_is_found(folder: Any, name: Any) -> None:
    path, _, _ = folder
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (path / name).write_bytes(content)
    load_encoder(path)


def a_folder_without_weights(folder: Any) -> None:
    path, _, _ = folder
    (path / "checksums.json").unlink()
    (path / "model.safetensors").unlink()
    load_encoder(path)


def a_configuration_that_is_no_json(folder: Any) -> None:
    path, _, _ = folder
    (path / "checksums.json").unlink()
    (path / "config.json").write_text("{")
    load_encoder(path)


def a_model_of_another_family(folder: Any) -> None:
    path, _, _ = folder
    (path / "checksums.json").unlink()
    (path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    load_encoder(path)


def a_listed_file_that_is_gone(folder: Any) -> None:
    path, _, _ = folder
    (path / "vocab.txt").unlink()
    load_encoder(path)


def a_folder_that_is_gone(folder: Any) -> None:
    path, _, _ = folder
    shutil.rmtree(path)
    read_config(path)


def an_untied_vocabulary_projection_stays_apart_and_a_tied_one_is_shared(
    tmp_path: Any, tiny_config: Any
) -> None:
    encoder = Encoder(tiny_config())
    head = family_for(encoder.config).head("lm", encoder)
    test_folders._save(tmp_path / "e", encoder, lm=head)
    (tmp_path / "e" / "checksums.json").unlink()
    path = tmp_path / "e" / "model.safetensors"
    name = "cls.predictions.decoder.weight"
    tensors = safetensors.torch.load_file(path)
    words = encoder.embeddings.word_embeddings.weight
    apart = words.detach() + 1e-3
    bias = {
        f"cls.predictions.{part}bias": torch.full((97,), number)
        for number, part in ((1.0, ""), (2.0, "decoder."))
    }
    safetensors.torch.save_file(tensors | bias | {name: apart}, path)
    refuse_untied(tmp_path / "e")


def a_foreign_configuration_is_refused_in_one_sentence(
    tmp_path: Any, tiny_config: Any, model_type: Any, changes: Any
) -> None:
    values = {
        **family_for(tiny_config()).to_hf_config(tiny_config()),
        "model_type": model_type,
        **changes,
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    read_config(tmp_path)


def a_missing_tensor_names_family_and_tensor(tmp_path: Any, tiny_config: Any) -> None:
    config = tiny_config(
        model_type="albert", num_hidden_groups=1, embedding_size=8, projects_embeddings=True
    )
    test_folders._save(tmp_path / "e", Encoder(config))
    test_folders._rewrite(
        tmp_path / "e",
        lambda tensors: tensors.pop("albert.encoder.embedding_hidden_mapping_in.weight"),
    )
    load_encoder(tmp_path / "e")


def a_pickle_with_code_is_refused_and_runs_nothing(folder: Any, tmp_path: Any) -> None:
    path, _, _ = folder
    torch.save(
        {"bert.embeddings.word_embeddings.weight": test_folders.Evil(tmp_path / "canary")},
        path / "pytorch_model.bin",
    )
    for name in ("model.safetensors", "checksums.json"):
        (path / name).unlink()
    load_encoder(path)


def weights_that_no_model_can_have_are_refused(folder: Any, change: Any) -> None:
    path, _, _ = folder
    test_folders._rewrite(path, change)
    load_encoder(path)


def an_index_without_files_is_named(folder: Any) -> None:
    path, _, _ = folder
    for name in ("model.safetensors", "checksums.json"):
        (path / name).unlink()
    (path / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    load_encoder(path)


def a_file_that_is_cut_or_gone_is_named(google: Any, tmp_path: Any, name: Any, size: Any) -> None:
    folder, _, _ = google
    for path in folder.glob("bert_model*"):
        if path.name != name or size is not None:
            (tmp_path / path.name).write_bytes(
                path.read_bytes()[: size if path.name == name else None]
            )
    read_tensors(tmp_path)


def another_model_of_tensorflow_is_refused(tmp_path: Any) -> None:
    test_tensorbundle.write_bundle(
        tmp_path / "model.ckpt", {"dense/kernel": np.zeros((2, 3), dtype=np.float32)}
    )
    read_tensors(tmp_path)


REFUSALS: list[tuple[str, Callable[..., Any], type[Exception], str]] = [
    (
        "impossible values are refused: num_attention_heads",
        lambda tiny_config: tiny_config(hidden_size=25),
        ValueError,
        "num_attention_heads",
    ),
    (
        "impossible values are refused: hidden_act",
        lambda tiny_config: tiny_config(hidden_act="swish"),
        ValueError,
        "hidden_act",
    ),
    (
        "impossible values are refused: position_embedding_init",
        lambda tiny_config: tiny_config(position_embedding_init="rotary"),
        ValueError,
        "position_embedding_init",
    ),
    (
        "impossible values are refused: hidden_dropout_prob",
        lambda tiny_config: tiny_config(hidden_dropout_prob=1.0),
        ValueError,
        "hidden_dropout_prob",
    ),
    (
        "impossible values are refused: num_hidden_layers",
        lambda tiny_config: tiny_config(num_hidden_layers=0),
        ValueError,
        "num_hidden_layers",
    ),
    (
        "impossible values are refused: num_hidden_layers is 1.0 it must",
        lambda tiny_config: tiny_config(num_hidden_layers=1.0),
        ValueError,
        "num_hidden_layers is 1.0; it must be a whole number",
    ),
    (
        "impossible values are refused: vocab_size is 16 it must",
        lambda tiny_config: tiny_config(vocab_size="16"),
        ValueError,
        "vocab_size is '16'; it must be a whole number",
    ),
    (
        "impossible values are refused: num_attention_heads is true",
        lambda tiny_config: tiny_config(num_attention_heads=True),
        ValueError,
        "num_attention_heads is True",
    ),
    (
        "impossible values are refused: layer_norm_eps is 1e-12 it must",
        lambda tiny_config: tiny_config(layer_norm_eps="1e-12"),
        ValueError,
        "layer_norm_eps is '1e-12'; it must be a number",
    ),
    (
        "impossible values are refused: initializer_range",
        lambda tiny_config: tiny_config(initializer_range=0.0),
        ValueError,
        "initializer_range",
    ),
    (
        "foreign configs are refused: position_embedding_type",
        lambda tiny_config: family_of("bert").from_hf_config(
            {
                **family_of("bert").to_hf_config(tiny_config()),
                "position_embedding_type": "relative_key",
            }
        ),
        ValueError,
        "position_embedding_type",
    ),
    (
        "foreign configs are refused: cross-attention",
        lambda tiny_config: family_of("bert").from_hf_config(
            {**family_of("bert").to_hf_config(tiny_config()), "add_cross_attention": True}
        ),
        ValueError,
        "add_cross_attention is True, and only False",
    ),
    (
        "foreign configs are refused: vocab_size",
        lambda tiny_config: family_of("bert").from_hf_config(
            {**family_of("bert").to_hf_config(tiny_config()), "vocab_size": None}
        ),
        ValueError,
        "vocab_size",
    ),
    (
        "missing tensor is named: bert.encoder.layer.1.attention.self.value.bias",
        lambda folder: missing_tensor_is_named(
            folder, "bert.encoder.layer.1.attention.self.value.bias"
        ),
        ValueError,
        r"encoder\.layer\.1\.attention\.self\.value\.bias",
    ),
    (
        "missing tensor is named: bert.embeddings.layernorm.weight",
        lambda folder: missing_tensor_is_named(folder, "bert.embeddings.LayerNorm.weight"),
        ValueError,
        r"embeddings\.LayerNorm\.weight",
    ),
    (
        "missing tensor is named: bert.pooler.dense.bias",
        lambda folder: missing_tensor_is_named(folder, "bert.pooler.dense.bias"),
        ValueError,
        r"pooler\.dense\.bias",
    ),
    (
        "an unexpected tensor",
        an_unexpected_tensor,
        ValueError,
        r"layer\.2\.output\.dense\.bias",
    ),
    (
        "a misshapen tensor",
        a_misshapen_tensor,
        ValueError,
        r"self.query.weight has shape \[24, 8\]",
    ),
    (
        "a missing head",
        a_missing_head,
        ValueError,
        r"qa_outputs\.weight",
    ),
    (
        "a misshapen head",
        a_misshapen_head,
        ValueError,
        r"classifier\.weight has shape",
    ),
    (
        "one flipped byte is found: model.safetensors",
        lambda folder: one_flipped_byte_is_found(folder, "model.safetensors"),
        ValueError,
        "model.safetensors",
    ),
    (
        "one flipped byte is found: config.json",
        lambda folder: one_flipped_byte_is_found(folder, "config.json"),
        ValueError,
        "config.json",
    ),
    (
        "one flipped byte is found: vocab.txt",
        lambda folder: one_flipped_byte_is_found(folder, "vocab.txt"),
        ValueError,
        "vocab.txt",
    ),
    (
        "missing pieces are explained: does not exist",
        lambda tmp_path: load_encoder(tmp_path / "nowhere"),
        ValueError,
        "does not exist",
    ),
    (
        "a folder without weights",
        a_folder_without_weights,
        ValueError,
        r"holds no weights: expected model\.safetensors",
    ),
    (
        "a configuration that is no json",
        a_configuration_that_is_no_json,
        ValueError,
        "not valid JSON",
    ),
    (
        "a model of another family",
        a_model_of_another_family,
        ValueError,
        "gpt2",
    ),
    (
        "a listed file that is gone",
        a_listed_file_that_is_gone,
        ValueError,
        r"vocab\.txt is missing",
    ),
    (
        "a folder that is gone",
        a_folder_that_is_gone,
        ValueError,
        "does not exist",
    ),
    (
        "an untied vocabulary projection stays apart and a tied one is shared",
        an_untied_vocabulary_projection_stays_apart_and_a_tied_one_is_shared,
        ValueError,
        r"cls\.predictions\.decoder\.weight is not the word embeddings.*Bert",
    ),
    (
        "a foreign configuration is refused in one sentence: inner_group_num is 2",
        lambda tmp_path, tiny_config: a_foreign_configuration_is_refused_in_one_sentence(
            tmp_path, tiny_config, "albert", {"inner_group_num": 2}
        ),
        ValueError,
        "inner_group_num is 2",
    ),
    (
        "a foreign configuration is refused in one sentence: position_embedding_type",
        lambda tmp_path, tiny_config: a_foreign_configuration_is_refused_in_one_sentence(
            tmp_path, tiny_config, "electra", {"position_embedding_type": "relative_key"}
        ),
        ValueError,
        "position_embedding_type",
    ),
    (
        "a foreign configuration is refused in one sentence: lacks vocab_size: not a complete",
        lambda tmp_path, tiny_config: a_foreign_configuration_is_refused_in_one_sentence(
            tmp_path, tiny_config, "roberta", {"vocab_size": None}
        ),
        ValueError,
        "lacks vocab_size: not a complete ROBERTA",
    ),
    (
        "a foreign configuration is refused in one sentence: model_type is gpt2 known families",
        lambda tmp_path, tiny_config: a_foreign_configuration_is_refused_in_one_sentence(
            tmp_path, tiny_config, "gpt2", {}
        ),
        ValueError,
        "model_type is 'gpt2'; known families: albert, bert, ",
    ),
    (
        "a missing tensor names family and tensor",
        a_missing_tensor_names_family_and_tensor,
        ValueError,
        r"embedding_hidden_mapping_in\.weight of this Albert model is missing",
    ),
    (
        "a pickle with code is refused and runs nothing",
        a_pickle_with_code_is_refused_and_runs_nothing,
        ValueError,
        r"pytorch_model\.bin cannot be read: .*nothing of it has run",
    ),
    (
        "weights: query.weight holds int8",
        lambda folder: weights_that_no_model_can_have_are_refused(folder, _quantise),
        ValueError,
        "query.weight holds int8",
    ),
    (
        "weights: query.weight holds numbers that are",
        lambda folder: weights_that_no_model_can_have_are_refused(
            folder, _with_number(float("nan"))
        ),
        ValueError,
        "query.weight holds numbers that are not finite",
    ),
    (
        "weights: query.weight holds numbers that are 2",
        lambda folder: weights_that_no_model_can_have_are_refused(
            folder, _with_number(float("-inf"))
        ),
        ValueError,
        "query.weight holds numbers that are not finite",
    ),
    (
        "weights: begin with bert.bert., so one",
        lambda folder: weights_that_no_model_can_have_are_refused(folder, _double_prefix),
        ValueError,
        "begin with bert.bert., so one Bert model",
    ),
    (
        "an index without files is named",
        an_index_without_files_is_named,
        ValueError,
        r"index\.json lists no files",
    ),
    (
        "impossible lengths are refused: at least one",
        lambda: Layout.ragged([3, 0]),
        ValueError,
        "at least one",
    ),
    (
        "impossible lengths are refused: at least one sequence",
        lambda: Layout.ragged([]),
        ValueError,
        "at least one sequence",
    ),
    (
        "impossible lengths are refused: does not fit",
        lambda: Layout.rectangle([9], row_slots=8),
        ValueError,
        "does not fit",
    ),
    (
        "impossible configurations: architecture .positions below clozelab .models",
        lambda tiny_config: tiny_config(positions={"_target_": "os.system"}),
        ValueError,
        r"architecture\.positions.*below clozelab\.models",
    ),
    (
        "impossible configurations: architecture .block below clozelab .models",
        lambda tiny_config: tiny_config(block={}),
        ValueError,
        r"architecture\.block.*below clozelab\.models",
    ),
    (
        "impossible configurations: num_hidden_groups is 3",
        lambda tiny_config: tiny_config(num_hidden_groups=3),
        ValueError,
        "num_hidden_groups is 3",
    ),
    (
        "impossible parts: there is no part",
        lambda tiny_config: Encoder(
            tiny_config(positions={"_target_": "clozelab.models.embeddings.Absolute"})
        ),
        ValueError,
        "there is no part",
    ),
    (
        "impossible parts: window 0 must be at",
        lambda tiny_config: Encoder(
            tiny_config(attention={"_target_": f"{test_parts.A}.LocalAttention", "window": 0})
        ),
        ValueError,
        "window 0 must be at least 1",
    ),
    (
        "impossible parts: heads have 5",
        lambda tiny_config: Encoder(
            tiny_config(positions={"_target_": f"{test_parts.E}.RotaryPositions"}, hidden_size=15)
        ),
        ValueError,
        "heads have 5",
    ),
    (
        "an unknown family lists the known",
        lambda: family_of("gpt2"),
        ValueError,
        "known families: albert, bert, ",
    ),
    (
        "a file that is cut or gone is named: cut short, or no index",
        lambda google, tmp_path: a_file_that_is_cut_or_gone_is_named(
            google, tmp_path, "bert_model.ckpt.index", 100
        ),
        ValueError,
        "cut short, or no index",
    ),
    (
        "a file that is cut or gone is named: cut short, or no index 2",
        lambda google, tmp_path: a_file_that_is_cut_or_gone_is_named(
            google, tmp_path, "bert_model.ckpt.index", 0
        ),
        ValueError,
        "cut short, or no index",
    ),
    (
        "a file that is cut or gone is named: data-00001-of-00002 is wrong: the file",
        lambda google, tmp_path: a_file_that_is_cut_or_gone_is_named(
            google, tmp_path, "bert_model.ckpt.data-00001-of-00002", 200
        ),
        ValueError,
        "data-00001-of-00002 is wrong: the file is damaged",
    ),
    (
        "a file that is cut or gone is named: data-00001-of-00002 is missing",
        lambda google, tmp_path: a_file_that_is_cut_or_gone_is_named(
            google, tmp_path, "bert_model.ckpt.data-00001-of-00002", None
        ),
        ValueError,
        "data-00001-of-00002 is missing",
    ),
    (
        "another model of tensorflow is refused",
        another_model_of_tensorflow_is_refused,
        ValueError,
        "holds no variables of BERT",
    ),
    (
        "four layers of three",
        lambda: feature_layers("concat_last_four", 3),
        ValueError,
        "features=concat_last_four needs more layers than this encoder's 3",
    ),
    (
        "the second to last layer of one",
        lambda: feature_layers("second_to_last", 1),
        ValueError,
        "features=second_to_last needs more layers than this encoder's 1",
    ),
    (
        "unknown features",
        lambda: feature_layers("all", 12),
        ValueError,
        "features='all' is unknown; known: embeddings",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "sentence"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_refusal(
    request: pytest.FixtureRequest,
    call: Callable[..., Any],
    error: type[Exception],
    sentence: str,
) -> None:
    with pytest.raises(error, match=sentence):
        call_with_fixtures(call, request)
