"""Change every key of a family's config.json, one at a time, and compare with transformers.

`python benchmarks/config_keys.py` prints, for each family, how many changes give the states and
logits of transformers (1e-5) and how many are refused, then the keys of either kind. It exits with
1 where a change gives other numbers. Models are tiny, and all parameters random with a deviation of
0.2. The keys are those of the configuration class of the installed transformers, and old ones that
published files have. NeoBERT has no class there; its keys are compared in tests/numerics.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from clozelab.models.config_keys import HARMLESS
from clozelab.models.folders import (
    has_head,
    load_encoder,
    load_head,
    read_config,
    read_config_dict,
    read_tensors,
)
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for

TOLERANCE = 1e-5
MISSING = "(missing)"
VOCAB = 61
# The long one first: a BigBird of transformers sees everything once it has read a short one.
LENGTHS = (24, 9, 3)
SEPARATOR = 2
BERT_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
# Of transformers 5: ids above the vocabulary are refused.
SPECIAL_IDS = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
DISENTANGLED = {
    "relative_attention": True,
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
}


@dataclass(frozen=True)
class Subject:
    """A family: its model_type, a tiny configuration, and classes that hold all of its parts."""

    model_type: str
    settings: Mapping[str, Any]
    classes: tuple[str, ...] = (
        "ForMaskedLM",
        "ForSequenceClassification",
        "ForMultipleChoice",
    )


SUBJECTS: dict[str, Subject] = {
    "BERT": Subject("bert", BERT_SIZES),
    "RoBERTa": Subject("roberta", {**BERT_SIZES, "pad_token_id": 1, "type_vocab_size": 1}),
    "ALBERT": Subject("albert", {**BERT_SIZES, "embedding_size": 12}),
    "ELECTRA": Subject("electra", {**BERT_SIZES, "embedding_size": 12}),
    "DistilBERT": Subject(
        "distilbert",
        {
            "vocab_size": VOCAB,
            "dim": 16,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 24,
            "max_position_embeddings": 40,
        },
    ),
    "DeBERTa v2": Subject(
        "deberta-v2",
        {**BERT_SIZES, **DISENTANGLED, "conv_kernel_size": 3, "conv_act": "gelu"},
        ("ForMaskedLM", "ForSequenceClassification"),
    ),
    "DeBERTa v3": Subject(
        "deberta-v2",
        {**BERT_SIZES, **DISENTANGLED},
        ("ForMaskedLM", "ForSequenceClassification"),
    ),
    "ModernBERT": Subject(
        "modernbert",
        {**BERT_SIZES, **SPECIAL_IDS, "num_hidden_layers": 4, "local_attention": 8},
    ),
    "MPNet": Subject("mpnet", {**BERT_SIZES, "pad_token_id": 1}),
    "ERNIE": Subject("ernie", BERT_SIZES),
    "UltraBERT": Subject(
        "ultrabert",
        {**BERT_SIZES, "num_hidden_layers": 3, "sliding_window": 4, "num_key_value_heads": 2},
        ("ForMaskedLM", "ForSequenceClassification"),
    ),
    "XLNet": Subject(
        "xlnet",
        {
            "vocab_size": VOCAB,
            "d_model": 16,
            "n_head": 2,
            "n_layer": 2,
            "d_inner": 24,
            "pad_token_id": 0,
        },
        ("LMHeadModel", "ForSequenceClassification", "ForMultipleChoice"),
    ),
    "Longformer": Subject(
        "longformer",
        {
            **BERT_SIZES,
            "pad_token_id": 1,
            "type_vocab_size": 1,
            "attention_window": 8,
            "sep_token_id": SEPARATOR,
        },
        ("ForMaskedLM", "ForSequenceClassification"),
    ),
    "BigBird": Subject(
        "big_bird",
        {
            **BERT_SIZES,
            "block_size": 2,
            "num_random_blocks": 1,
            "sep_token_id": SEPARATOR,
            "hidden_act": "gelu",
        },
    ),
}
ROPE = {
    kind: {"rope_type": "default", "rope_theta": theta}
    for kind, theta in (("full_attention", 500.0), ("sliding_attention", 50.0))
}
SCALED = {kind: {**rope, "rope_type": "linear", "factor": 2.0} for kind, rope in ROPE.items()}
PARTIAL = {kind: {**rope, "partial_rotary_factor": 0.5} for kind, rope in ROPE.items()}
# Other values of a key; of a key that is not here: True for False, one more, a half more.
CHANGES: dict[str, tuple[Any, ...]] = {
    "hidden_size": (24,),
    "dim": (24,),
    "d_model": (24,),
    "d_head": (4,),
    "head_dim": (4,),
    "num_attention_heads": (4,),
    "n_heads": (4,),
    "n_head": (4,),
    "num_key_value_heads": (1,),
    "vocab_size": (VOCAB + 3,),
    "hidden_act": ("relu", "gelu_new", "silu", "tanh", "quick_gelu"),
    "hidden_activation": ("relu", "silu", "tanh"),
    "activation": ("relu", "tanh"),
    "ff_activation": ("relu", "tanh"),
    "conv_act": ("relu", "tanh"),
    "pooler_hidden_act": ("relu", "tanh"),
    "classifier_activation": ("relu",),
    "summary_type": ("mean", "last", "first", "cls_index"),
    "summary_activation": ("relu", "tanh", "gelu", None),
    "classifier_pooling": ("mean",),
    "attn_type": ("uni",),
    "clamp_len": (4,),
    "max_relative_positions": (4,),
    "position_buckets": (4, -1),
    "pos_att_type": (["c2p"], ["p2c"], []),
    "norm_rel_ebd": ("none",),
    "pooler_hidden_size": (24,),
    "conv_kernel_size": (0, 5),
    "layer_norm_eps": (1e-2,),
    "norm_eps": (1e-2,),
    "rms_norm_eps": (1e-2,),
    "type_vocab_size": (3,),
    "num_hidden_groups": (2,),
    "inner_group_num": (2,),
    "local_attention": (4,),
    "attention_window": (4, [4, 8]),
    "sliding_window": (2,),
    "layer_types": (["full_attention"] * 4, ["sliding_attention"] * 3 + ["full_attention"]),
    "rope_parameters": (ROPE, SCALED, PARTIAL),
    "attention_type": ("original_full",),
    "relative_attention_num_buckets": (16, 64),
    "dtype": ("float16",),
    "id2label": ({"0": "no", "1": "yes", "2": "perhaps"},),
    "label2id": ({"no": 0, "yes": 1},),
    "problem_type": ("regression", "multi_label_classification"),
    "chunk_size_feed_forward": (1,),
    "classifier_dropout": (0.3,),
    "mem_len": (4,),
    "reuse_len": (4,),
    "pad_token_id": (3,),
    "sep_token_id": (5,),
    "bos_token_id": (5,),
    "eos_token_id": (5,),
    "cls_token_id": (5,),
    "_name_or_path": ("elsewhere",),
    "transformers_version": ("3.0.0",),
}
# Keys with one of these in their names matter to a head; others are the encoder's alone.
PARTS_OF_HEADS_KEYS = ("act", "summary", "classif", "pool", "label", "problem", "is_decoder")
# Of these a classifier alone reads the labels, and every head has the encoder's activation.
KEYS_OF_LABELS = ("label", "problem")
ENCODER_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation", "ff_activation", "conv_act")
# Their value is of the class that saves the folder.
OF_THE_CLASS = frozenset({"model_type", "architectures"})
# Read by a class without being a field of its configuration, or by classes of old.
MORE_KEYS: dict[str, dict[str, tuple[Any, ...]]] = {
    "deberta-v2": {
        "share_att_key": (False,),
        "position_buckets": CHANGES["position_buckets"],
        "norm_rel_ebd": CHANGES["norm_rel_ebd"],
        "conv_kernel_size": CHANGES["conv_kernel_size"],
        "conv_act": CHANGES["conv_act"],
        "conv_groups": (2,),
        "embedding_size": (12,),
        "attention_head_size": (4,),
        "cls_dropout": (0.3,),
    },
    "electra": {"summary_proj_to_labels": (True,), "summary_first_dropout": (0.3,)},
    "xlnet": {
        "summary_proj_to_labels": (True,),
        "summary_first_dropout": (0.3,),
        "untie_r": (False,),
    },
    "modernbert": {
        "global_attn_every_n_layers": (2,),
        "head_dim": (4,),
        "sliding_window": (2,),
    },
    "ultrabert": {
        "layer_types": (["full_attention"] * 3, ["sliding_attention"] * 3),
        "num_attention_heads": (1,),
    },
    "albert": {"classifier_dropout": (0.3,)},
}
EVERYWHERE: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("relative_key", "relative_key_query"),
    "gradient_checkpointing": (True,),
    "torchscript": (True,),
    "pruned_heads": ({"0": [1]},),
    "is_decoder": (True,),
    "add_cross_attention": (True,),
    "tie_word_embeddings": (True, False),
    "per_layer_config": ({"1": {"intermediate_size": 12}},),
    "tie_last_hidden_states": (True, False),
    "quantization_config": ({"quant_method": "bitsandbytes", "load_in_8bit": True},),
    "a_key_of_somebody": (1,),
}


@dataclass(frozen=True)
class Outcome:
    """What came of one change.

    `end`: equal, refused, different, or impossible: transformers cannot load it, and it is read
    here. Without `every_class` some are "read": the configuration is another, and its numbers are
    compared in other families.
    """

    family: str
    key: str
    value: Any
    end: str
    sentence: str = ""


def changes(subject: Subject) -> Iterator[tuple[str, Any]]:
    """Every key with every other value that is tried."""
    config = transformers.CONFIG_MAPPING[subject.model_type](**subject.settings)
    listed = {**EVERYWHERE, **MORE_KEYS.get(subject.model_type, {})}
    for key, value in config.to_dict().items():
        if key not in OF_THE_CLASS:
            listed.setdefault(key, CHANGES.get(key, other_values(value)))
    for key, values in listed.items():
        for value in values:
            if value != getattr(config, key, MISSING):
                yield key, value
    # A file may leave a key out, and mean the class's value.
    for key in subject.settings:
        yield key, MISSING


def other_values(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1,)
    if isinstance(value, float):
        return (value * 1.5 + 0.1,)
    return ()


def randomise(model: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = float("norm" in name.lower() and name.endswith("weight"))
            noise = torch.randn(parameter.shape, generator=generator) * 0.2
            parameter.copy_(centre + noise)


def texts() -> list[Tensor]:
    """Numbers of tokens of each text [S]; none is of padding, a separator or a changed key."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(7, VOCAB, (length,), generator=generator) for length in LENGTHS]


@torch.no_grad()
def their_outputs(model: Any, class_name: str) -> Tensor:
    """States of all tokens, or logits: each text alone, as BigBird's blocks are of the batch."""
    is_last = model.config.model_type == "xlnet"
    outputs = []
    for text in texts():
        batch = {"input_ids": text[None]}
        if is_last:
            # [CLS] is the last token, and has a segment of its own.
            batch["input_ids"] = text.roll(-1)[None]
            batch["token_type_ids"] = torch.zeros_like(text)[None]
            batch["token_type_ids"][:, -1] = 2
        if class_name.endswith("ForMultipleChoice"):
            batch = {name: value[None] for name, value in batch.items()}
        output = model(**batch)
        if class_name.endswith(("ForMultipleChoice", "ForSequenceClassification")):
            outputs.append(output["logits"] if isinstance(output, dict) else output[0])
        else:
            outputs.append(output[0][0].roll(int(is_last), 0))
    return torch.cat(outputs)


@torch.no_grad()
def our_outputs(folder: Path, class_name: str) -> Tensor:
    """The same of the folder as it is read here."""
    stored = read_tensors(folder)
    encoder = load_encoder(folder, stored=stored).eval()
    if encoder.config.is_causal:
        # As read_model does: their classes pool the first token in any case.
        encoder.config = replace(encoder.config, pools_first_token=True)
    family = family_for(encoder.config)
    tokens = torch.cat(texts())
    batch = {
        "input_ids": tokens,
        "token_type_ids": torch.zeros_like(tokens),
        "position_ids": torch.cat([torch.arange(length) for length in LENGTHS]),
    }
    kind = next(iter(family.kinds(class_name)), None)
    head: Any = None
    if kind is not None:
        num_labels = len(read_config_dict(folder).get("id2label") or "01")
        head = family.head(kind, encoder, num_labels=num_labels, stored=stored).eval()
        assert has_head(family, kind, head, stored)
        load_head(folder, kind, head, stored)
    layout = Layout.ragged(list(LENGTHS))
    states = encoder(**batch, layout=layout).sequence_output
    if kind in ("classification", "choices"):
        return head(encoder.pool(states, layout, head))
    return states if head is None else head(states)


def try_change(name: str, key: str, value: Any, place: Path, every_class: bool) -> Outcome:
    """The classes of a family that the key could matter to, or all, with this one change."""
    subject = SUBJECTS[name]
    sentence = refusal_of_config(subject, key, value, place / "config")
    if sentence:
        return Outcome(name, key, value, "refused", sentence)
    if not every_class and not is_compared_in(name, key, value):
        config_class = transformers.CONFIG_MAPPING[subject.model_type]
        config_class(**subject.settings).save_pretrained(place / "unchanged")
        if read_config(place / "config") != read_config(place / "unchanged"):
            return Outcome(name, key, value, "read")
    classes = subject.classes if every_class else classes_to_try(subject, key, value)
    title = transformers.CONFIG_MAPPING[subject.model_type].__name__.removesuffix("Config")
    end = "impossible"
    for suffix in classes:
        folder = place / suffix
        expected = expected_outputs(title + suffix, subject.settings, key, value, folder)
        try:
            outputs = our_outputs(folder, title + suffix)
        except ValueError as error:
            return Outcome(name, key, value, "refused", str(error).replace(f"{folder}/", ""))
        if expected is None:
            continue
        distance = float("inf")
        if outputs.shape == expected.shape:
            distance = float((outputs - expected).abs().max())
        if not distance <= TOLERANCE:
            return Outcome(name, key, value, "different", f"{suffix}: by {distance:.2g}")
        end = "equal"
    return Outcome(name, key, value, end)


def classes_to_try(subject: Subject, key: str, value: Any) -> tuple[str, ...]:
    """The classes that a change could matter to, each way once."""
    if any(part in key for part in KEYS_OF_LABELS):
        return ("ForSequenceClassification",)
    if is_of_heads(key) and not is_further_activation(key, value):
        return subject.classes
    return subject.classes[:1]


def is_further_activation(key: str, value: Any) -> bool:
    """Whether the encoder's activation is another than the first that is tried with all heads."""
    return key in ENCODER_ACTIVATIONS and value != CHANGES[key][0]


@cache
def families_of_keys() -> dict[str, list[str]]:
    """Key -> the families that it is changed in."""
    families: dict[str, list[str]] = defaultdict(list)
    for name, subject in SUBJECTS.items():
        for key in dict.fromkeys(key for key, _ in changes(subject)):
            families[key].append(name)
    return families


def is_compared_in(name: str, key: str, value: Any) -> bool:
    """Whether a family is the first, eighth, ... that has a key: there its numbers are compared."""
    if is_of_heads(key) and not is_further_activation(key, value):
        return True
    return families_of_keys()[key].index(name) % 7 == 0


def refusal_of_config(subject: Subject, key: str, value: Any, folder: Path) -> str:
    """What our reader says of the configuration alone; nothing where it takes it."""
    config_class = transformers.CONFIG_MAPPING[subject.model_type]
    try:
        config = config_class(**changed_settings(subject.settings, key, value))
    except Exception:
        config = config_class(**subject.settings)
    config.save_pretrained(folder)
    configure(folder, key, value)
    try:
        read_config(folder)
    except ValueError as error:
        return str(error).replace(f"{folder}/", "")
    return ""


def changed_settings(settings: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """What a class of transformers is built of for a change."""
    changed = dict(settings)
    if value is MISSING:
        changed.pop(key, None)
    elif key != "quantization_config":
        changed[key] = value
    return changed


def expected_outputs(
    class_name: str, settings: Mapping[str, Any], key: str, value: Any, folder: Path
) -> Tensor | None:
    """What transformers computes of a folder with the change, which stays; None: it cannot."""
    try:
        model_class = saved_model(class_name, changed_settings(settings, key, value), folder)
    except Exception:
        model_class = saved_model(class_name, settings, folder)
    configure(folder, key, value)
    try:
        model = model_class.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
        return their_outputs(model.eval(), class_name)
    except Exception:
        return None


def saved_model(class_name: str, settings: Mapping[str, Any], folder: Path) -> Any:
    """Saves a random model, and returns its class."""
    model_class = getattr(transformers, class_name)
    config = model_class.config_class(**settings)
    model = model_class(config)
    randomise(model)
    model.tie_weights()
    model.save_pretrained(folder)
    return model_class


def configure(folder: Path, key: str, value: Any) -> None:
    """The key in config.json, where a class leaves it out, or not in it."""
    path = folder / "config.json"
    values = json.loads(path.read_text())
    values[key] = value
    if value is MISSING:
        del values[key]
    path.write_text(json.dumps(values))


def is_read_nowhere(key: str) -> bool:
    """Ids of tokens and ties of vocabularies are none: positions and heads depend on some."""
    matters = key.endswith("token_id") or key.startswith("tie")
    return key in HARMLESS and not matters and not is_of_heads(key)


def is_of_heads(key: str) -> bool:
    return any(part in key for part in PARTS_OF_HEADS_KEYS)


def outcomes(name: str, every_class: bool = True) -> list[Outcome]:
    """Of every change of one family; by default all its classes are built with each change.

    Without `every_class`, keys that no family reads (of calls, texts and bookkeeping) are changed
    in BERT alone.
    """
    results = []
    with tempfile.TemporaryDirectory() as place:
        for number, (key, value) in enumerate(changes(SUBJECTS[name])):
            if not every_class and name != "BERT" and is_read_nowhere(key):
                continue
            results.append(try_change(name, key, value, Path(place) / str(number), every_class))
    return results


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    transformers.logging.set_verbosity(logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def table(results: list[Outcome]) -> str:
    """Markdown: the number of each outcome by family, and the keys that are refused.

    A size that is missing is refused everywhere, and is counted but not named.
    """
    by_family: dict[str, list[Outcome]] = defaultdict(list)
    refused: dict[str, dict[str, None]] = defaultdict(dict)
    for outcome in results:
        by_family[outcome.family].append(outcome)
        if outcome.end == "refused" and outcome.value is not MISSING:
            refused[outcome.family][f"`{outcome.key}`"] = None
    everywhere = set.intersection(*(set(keys) for keys in refused.values()))
    lines = [f"Refused in every family: {', '.join(sorted(everywhere))}.", ""]
    lines += ["| family | equal | refused | read here alone | further keys with refused values |"]
    lines += ["|---|--:|--:|--:|---|"]
    for family, own in by_family.items():
        counts = []
        for end in ("equal", "refused", "impossible"):
            counts.append(str(sum(outcome.end == end for outcome in own)))
        keys = [key for key in refused[family] if key not in everywhere]
        lines.append(f"| {family} | {' | '.join(counts)} | {', '.join(keys)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="FAMILY", default=list(SUBJECTS))
    parser.add_argument("--verbose", action="store_true", help="print each change, too")
    options = parser.parse_args()
    results = []
    with quiet():
        for name in options.only:
            results += outcomes(name)
    for outcome in results:
        if options.verbose or outcome.end == "different":
            value = repr(outcome.value)[:30]
            print(f"{outcome.family:<11} {outcome.key}={value}: {outcome.end} {outcome.sentence}")
    print(table(results))
    return int(any(outcome.end == "different" for outcome in results))


if __name__ == "__main__":
    sys.exit(main())
