"""A model's folder for other programs: transformers, ONNX or sentence-transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from clozelab.models.config_keys import OF_ONE_TASK
from clozelab.models.families.bert import Family
from clozelab.models.folders import (
    WEIGHTS_FILE,
    encoder_tensors,
    read_config,
    read_config_dict,
    read_tensors,
    refuse_foreign,
)
from clozelab.models.leftovers import tensors_outside_encoder
from clozelab.models.locate import CONFIG_FILE, MODULES_FILE
from clozelab.models.peft_folders import Adapter, read_about, read_adapter
from clozelab.models.registry import family_for
from clozelab.modules.model import (
    Model,
    has_pooler,
    open_tokenizer,
    sentence_vectors,
    write_model,
)
from clozelab.modules.model_tasks import meaning_of
from clozelab.modules.onnx import to_onnx
from clozelab.modules.sentence_folders import (
    ACTIVATION_KEYS,
    activation_keys,
    sentence_files,
    sidecar_files,
    similarity_of,
)
from clozelab.text.plain import PlainDict

# Keys of config.json that are of a head, and those of a fine-tuning below `clozelab`.
OF_HEAD = (
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "finetuning_task",
    *ACTIVATION_KEYS,
)
OF_FINE_TUNING = ("task", "head", "max_seq_length", "doc_stride", "max_query_length", *OF_ONE_TASK)


def model_to_export(model: Model, *, has_head: bool, form: str) -> Model:
    """The model with its head, or its encoder alone.

    ValueError for a head without weights, and for adapters in a `form` that cannot have them.
    """
    if model.encoder.config.feed_forward_adapter and form != "onnx":
        raise ValueError(
            f"{model.folder} has adapters (adaptation=adapters), which no class of {form} has and"
            " no weight can take up: our verbs read the folder, and format=onnx holds them"
        )
    if has_head:
        require_trained_heads(model)
        if form == "transformers":
            _require_same_pairs(model)
        return model
    config = model.encoder.config
    if form == "sentence_transformers" and not family_for(config).is_in_transformers(config, ()):
        raise ValueError(
            f"{model.folder}: transformers has no class for its encoder, so sentence-transformers"
            " cannot load it: take format=transformers, which our verbs read"
        )
    return without_heads(model)


def _require_same_pairs(model: Model) -> None:
    """ValueError where the class of transformers would read two texts otherwise, or not at all."""
    family = family_for(model.encoder.config)
    makes_types = family.makes_token_types(model.architecture)
    if makes_types and not model.tokenizer.has_token_types:
        raise ValueError(
            f"{model.folder} was trained with token type 0 for both texts, and"
            f" {model.architecture} of transformers gives the second one type 1: fine-tune it"
            " with token_types=two, or say head=false"
        )
    needed_separators = family.pair_separators
    separators = model.tokenizer.pair_separators
    finds_question = bool(family.separated_kinds & model.heads.keys())
    if finds_question and needed_separators not in (None, separators):
        raise ValueError(
            f"{model.folder}: {model.architecture} of transformers wants {needed_separators}"
            f" separators between a question and its text, and the tokenizer puts {separators}:"
            " prepare the corpus with tokenizer=byte_bpe or wordpiece_roberta, or say head=false"
        )


def write(
    to: Path,
    model: Model,
    card: str,
    *,
    form: str,
    pooling: str,
    has_head: bool,
    dtype: str,
) -> None:
    """Write the folder of a `model_to_export`; its `card` is README.md."""
    provenance = model.provenance
    extra_config: PlainDict = {"clozelab": provenance, **activation_keys(model.folder)}
    if has_head and "task" in provenance:
        extra_config["finetuning_task"] = provenance["task"]
    # Name in the folder -> content, of what is no weight, configuration or tokenizer.
    files: dict[str, str | bytes] = {"README.md": card}
    if form == "onnx":
        files["onnx/model.onnx"] = to_onnx(model)
    if form == "sentence_transformers":
        files |= sentence_transformers_files(model, pooling)
    else:
        files |= sidecar_files(model.folder)
        # A merged adapter says by its configuration alone how a text's vector is made.
        if "pooling" in provenance and MODULES_FILE not in files:
            vectors = sentence_vectors(model.folder)
            files |= sentence_files(vectors, model.encoder.config, model.embedded_length)
    heads = dict(model.heads)
    problem_type = meaning_of(model.task).problem_type
    with_pooler = has_pooler(model)
    write_model(
        to,
        model.encoder,
        heads,
        model.tokenizer,
        labels=model.labels,
        problem_type=problem_type,
        max_length=model.max_length,
        with_pooler=with_pooler,
        extra_config=extra_config,
        extra_files=files,
        dtype=dtype,
    )


def write_merged(adapter_folder: Path, base: Path, to: Path, *, has_head: bool = True) -> Path:
    """Write a model and an adapter of peft's for it as one model; returns the folder `to`.

    A head that the adapter has trained whole takes the place of the model's heads and of all that
    they say, and any other part that of the model's own.
    ValueError where the two do not belong together, or (`has_head`) neither has the head's pooler.
    """
    adapter = read_adapter(adapter_folder)
    config: Any = read_config_dict(base)
    family = family_for(read_config(base))
    stored = read_tensors(base)
    tensors = encoder_tensors(stored, family)
    heads = tensors_outside_encoder(family, adapter.whole)
    about = read_about(adapter_folder)
    config_of_run = about.get("config", {})
    files: dict[str, bytes] = {}
    if heads or config_of_run:
        config["architectures"] = [family.class_name + adapter.class_suffix]
        forget_task(config)
        config |= config_of_run
    else:
        for name in tensors_outside_encoder(family, stored):
            tensors[name] = stored[name]
        files = sidecar_files(base)
    if merge_into(tensors, adapter, family, f"{adapter_folder}: {base}"):
        config.get("clozelab", {}).pop("untrained", None)
    reads_pooler = False
    if has_head and heads:
        reads_pooler = family.reads_pooler(family.kinds(config["architectures"][0]))
    if reads_pooler and not any("pooler." in name for name in tensors):
        raise ValueError(
            f"{adapter_folder}: its head reads a pooler, and neither it nor {base} has one: give"
            " the base that it was trained on, or say head=false"
        )
    for name in heads:
        tensors[name] = adapter.whole[name]
    (to / CONFIG_FILE).write_text(json.dumps(config, indent=2), encoding="utf-8")
    safetensors.torch.save_file(tensors, to / WEIGHTS_FILE, metadata={"format": "pt"})
    files |= open_tokenizer(base, about.get("token_types", "auto")).files()
    for name, content in files.items():
        (to / name).parent.mkdir(exist_ok=True)
        (to / name).write_bytes(content)
    return to


def merge_into(tensors: dict[str, Tensor], adapter: Adapter, family: Family, place: str) -> bool:
    """Merge an adapter into an encoder's tensors; returns whether it has a pooler of its own.

    ValueError for a matrix or another part that the encoder has not; a pooler may be new.
    """
    updates = {}
    for name, update in adapter.updates.items():
        updates[f"{family.with_prefix(name)}.weight"] = update
    whole = encoder_tensors(adapter.whole, family)
    of_pooler = [name for name in whole if "pooler." in name]
    needed = [*updates, *(name for name in whole if name not in of_pooler)]
    for name in needed:
        if name not in tensors:
            raise ValueError(f"{place} has no tensor {name}")
    for name, update in updates.items():
        tensors[name] = tensors[name].float() + update.scaling * (update.up @ update.down)
    tensors |= whole
    return bool(of_pooler)


def forget_task(config: PlainDict) -> None:
    """Remove what a config.json says of its model's own fine-tuning."""
    for key in OF_HEAD:
        config.pop(key, None)
    provenance = config.get("clozelab")
    if isinstance(provenance, dict):
        for key in OF_FINE_TUNING:
            provenance.pop(key, None)


def require_trained_heads(model: Model) -> None:
    """ValueError for a head that has no weights, or is not ours; a pooler may lack them."""
    if model.task:
        refuse_foreign(model.foreign, model.folder)
    for kind in model.untrained:
        if kind != "pooler":
            raise ValueError(
                f"{model.folder} has no weights for its {kind} head, so a program would make them"
                " up: train it (clozelab finetune), or say head=false"
            )


def without_heads(model: Model) -> Model:
    """The encoder alone, as a model of its own architecture."""
    config = model.encoder.config
    # Not every model has trained a pooler: a masked one without a pair objective has not.
    untrained: tuple[str, ...] = ("pooler",)
    if has_pooler(model):
        untrained = ()
    return replace(
        model,
        heads=nn.ModuleDict(),
        task=None,
        labels=(),
        architecture=family_for(config).architecture((), config.is_causal),
        untrained=untrained,
    )


def sentence_transformers_files(model: Model, pooling: str) -> dict[str, str]:
    """What that library reads beside the encoder; `auto` is as the model's vectors are made."""
    vectors = sentence_vectors(model.folder, None if pooling == "auto" else pooling)
    similarity = similarity_of(model.folder)
    files = sentence_files(vectors, model.encoder.config, model.embedded_length, similarity)
    if not files:
        raise ValueError(
            "pooling=cls: sentence-transformers reads the first token: a causal encoder's sees only"
            " itself, and an XLNet's text ends with [CLS]; choose mean"
        )
    return files
