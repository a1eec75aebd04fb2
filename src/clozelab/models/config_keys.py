"""Which keys of a config.json may stay unread. It is one rule for all families.

Every key is of one of these kinds:

- The family reads it (families/).
- It is harmless: no number of a trained model depends on it (HARMLESS, a family's `harmless`).
- It belongs to a feature that is not here, and has the value that stands for its absence (ABSENT, a
  family's `fixed`). Another value is refused by the key's name.
- It is unknown, to us and to the classes of transformers. It is named in a warning, once a process.
  Many folders hold private notes, such as arguments of a training, so it is not refused; code of
  the folder's own may read it, so it is not passed over in silence. A null says nothing.

Dropout is of training alone. A head that is fine-tuned here has the encoder's, whatever
`classifier_dropout` and its like say. Numbers are fp32 here, whatever `dtype` says.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from clozelab.text.plain import PlainDict, PlainMapping


class ObjectiveSettings(TypedDict, total=False):
    """What an encoder was pre-trained for."""

    token: PlainDict
    pair: object


class TrainedPhase(TypedDict, total=False):
    """A phase of a pre-training."""

    steps: int
    objective: object  # where it has one of its own


class AnswerRules(TypedDict, total=False):
    """What a fine-tuning leaves of how outputs become answers."""

    ranks: list[str]
    threshold: float
    threshold_source: str  # of several models together
    with_unanswerable: bool
    max_answer_length: int
    n_best_size: int


class GivenVectors(TypedDict, total=False):
    """How the encoder that a pre-training began with made a text's vector."""

    pooling: str
    normalized: bool
    prompts: dict[str, str]
    similarity: str  # where it was another than the cosine


class Provenance(TypedDict, total=False):
    """What a training here leaves in a config.json, under `clozelab`."""

    answers: AnswerRules
    base_weights: float  # before the vocabulary was lengthened
    corpus_fingerprint: str
    doc_stride: int
    document_context: bool
    features: str
    given_vectors: GivenVectors
    has_documents: bool  # in the training file: without any there was no context
    head: str
    held_out: dict[str, float]
    max_query_length: int
    max_seq_length: int
    objective: ObjectiveSettings
    phases: list[TrainedPhase]
    pooling: str
    positive_label: str
    prompts: dict[str, str]
    task: str
    texts_per_example: int
    tokenizer_fingerprint: str
    trained_seq_lengths: list[int]
    untrained: list[str]
    step: int
    validation_fold: int
    window_pooling: str
    window_stride: int | None


class ConfigJson(TypedDict, total=False):
    """The keys of a config.json that are read by their names here; a file may have any others."""

    architectures: list[str]
    clozelab: Provenance
    clozelab_encoder: PlainDict
    id2label: dict[str, str]
    label2id: dict[str, int]
    model_type: str
    num_labels: int
    problem_type: str
    # sizes
    d_model: int
    hidden_size: int
    intermediate_size: int
    max_position_embeddings: int
    n_head: int
    num_attention_heads: int
    num_hidden_layers: int
    task_type_vocab_size: int
    # parts
    attention_bias: bool
    attention_type: str
    attention_window: int | list[int]
    attention_windows: list[int]
    cls_dropout: float | None
    conv_act: str
    conv_kernel_size: int
    dropout: float
    global_attn_every_n_layers: int
    global_rope_theta: float
    is_decoder: bool
    layer_types: list[str]
    local_attention: int
    local_rope_theta: float | None
    mlp_bias: bool
    norm_bias: bool
    pooler_dropout: float
    pooler_hidden_act: str
    pos_att_type: str | list[str]
    position_embedding_type: str
    rope_parameters: Mapping[str, PlainMapping]
    rope_theta: float | list[float]
    sliding_window: int
    use_task_id: bool


# what a folder remembers of its own fine-tuning alone: another on top of it has not these
OF_ONE_TASK = (
    "answers",
    "positive_label",
    "pooling",
    "texts_per_example",
    "template",
    "words",
    "features",
    "document_context",
    "has_documents",
    "long_documents",
    "window_stride",
    "window_pooling",
    "prompts",
    "validation_fold",
    "held_out",
)
_LOG = logging.getLogger(__name__)
# Of a value that a sentence shows.
_SHOWN_CHARACTERS = 60
_BOOKKEEPING = """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
    _experts_implementation_internal _name_or_path architectures attn_implementation
    experts_implementation finetuning_task language model_type name name_or_path prefix
    task_specific_params tokenizer_class transformers_version
"""
# Of sentence-transformers; modules/sentence_folders.py reads them.
_LIBRARIES = "sentence_transformers sbert_ce_default_activation_function"
# modules/model.py reads them, with the head that they describe.
_LABELS = "_num_labels id2label label2id num_labels problem_type"
# How a call computes the same numbers, and what it returns beside them.
_CALLS = """
    chunk_size_feed_forward dtype gradient_checkpointing output_attentions output_hidden_states
    output_past return_dict tf_legacy_loss torch_dtype torchscript use_bfloat16 use_cache
    use_return_dict xla_device
"""
# The tokenizer's files name the tokens, and the tensors say whether the vocabulary is tied.
_SAID_ELSEWHERE = """
    bos_token_id cls_token_id decoder_start_token_id eos_token_id eos_token_ids mask_token_id
    pad_token_id sep_token_id tie_weights_ tie_word_embeddings unk_token_id
"""
_DROPOUT = """
    classifier_dropout classifier_dropout_prob embedding_dropout qa_dropout seq_classif_dropout
    summary_first_dropout summary_last_dropout
"""
# Sizes that Google's files of several languages have for a pooler that no class has.
_GOOGLE = "pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head"
# transformers takes them out of a configuration: they are of texts that a decoder writes.
_GENERATION = """
    assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens
    diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    encoder_repetition_penalty epsilon_cutoff eta_cutoff exponential_decay_length_penalty
    forced_bos_token_id forced_eos_token_id length_penalty max_length min_length
    no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups
    num_beams num_return_sequences output_scores remove_invalid_values repetition_penalty
    return_dict_in_generate suppress_tokens target_lookbehind temperature top_k top_p typical_p
"""
# What clozelab writes beside the encoder's own keys (families/bert.py).
_OURS = "clozelab clozelab_encoder"
HARMLESS = frozenset(
    " ".join(
        (
            _BOOKKEEPING,
            _LIBRARIES,
            _LABELS,
            _CALLS,
            _SAID_ELSEWHERE,
            _DROPOUT,
            _GOOGLE,
            _GENERATION,
            _OURS,
        )
    ).split()
)
# Features of any class that are not here -> the value without them; all that is false says so, too.
ABSENT: PlainMapping = {
    "adapters": None,
    "add_cross_attention": False,
    "auto_map": None,
    "cross_attention_hidden_size": None,
    "directionality": "bidi",
    "is_encoder_decoder": False,
    "per_layer_config": None,
    "pooler_type": "first_token_transform",
    "position_embedding_type": "absolute",
    "pruned_heads": None,
    "quantization_config": None,
    "tie_encoder_decoder": False,
    "tie_last_hidden_states": None,
}
# What one can do, where it is not the same for all keys.
_WAYS: Mapping[str, str] = {
    "adapters": "merge its adapters into the weights first (merge_adapter of the library adapters)",
    "auto_map": (
        "code of a folder's own is not run here, so remove the key only where the architecture's"
        " class in transformers computes the same"
    ),
    "quantization_config": (
        "save the model with weights in float32 first (model.dequantize() of transformers)"
    ),
}


def contradicts(given: Any, value: Any) -> bool:
    """Whether a setting has another value than the one we have; all that is false is one value."""
    return given != value and bool(given or value)


def require_values(values: PlainMapping, expected: PlainMapping) -> None:
    """ValueError names a key of config.json that has another value than the one we have.

    A key that is not there is as expected. Where a feature's absence is expected, anything false
    is.
    """
    for key, value in expected.items():
        given = values.get(key, value)
        if not contradicts(given, value):
            continue
        if value is None:
            problem = "which cannot be read here"
            advice = "remove the key if no weight was trained with it, or take another model"
        else:
            problem = f"and only {value!r} can be read"
            advice = "write that if no weight was trained otherwise, or take another model"
        raise ValueError(f"{key} is {_shown(given)}, {problem}: {_WAYS.get(key, advice)}")


def require_one_spelling(values: PlainMapping, spellings: Mapping[str, str]) -> None:
    """ValueError where BERT's name of a size contradicts the family's own; `spellings`: both."""
    for name, own_name in spellings.items():
        given = values.get(name)
        if given is not None and given != values.get(own_name, given):
            raise ValueError(
                f"{name} is {given!r} and {own_name} is {values[own_name]!r}, but they are one"
                " number: remove the wrong one"
            )


def unknown_keys(values: PlainMapping, known: frozenset[str]) -> tuple[str, ...]:
    """Keys that say something, and that nobody knows; `known`: those of the family."""
    names = []
    for key, value in values.items():
        if value is not None and key not in known and key not in HARMLESS:
            names.append(key)
    return tuple(sorted(names))


@functools.cache
def warn_of_unknown(path: Path, names: tuple[str, ...]) -> None:
    """One line for each file and process."""
    if names:
        _LOG.warning(
            "%s: nothing here reads %s; if code of your own does, its answers may differ from those"
            " here",
            path,
            ", ".join(names),
        )


def _shown(value: Any) -> str:
    text = repr(value)
    if len(text) > _SHOWN_CHARACTERS:
        return text[:_SHOWN_CHARACTERS] + "..."
    return text
