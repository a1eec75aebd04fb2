"""A whole model: encoder, heads, tokenizer and what they are for, read from a folder and written to
one.

The layout is Hugging Face's. A folder of ours may hold what that has no class for: a BiLSTM between
encoder and output layer, a mix of the encoder's layers, a causal encoder; its model_type is then
one that other libraries do not know, and it is read here. A head that the configuration names and
the file lacks is listed as `untrained` and not made up.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from clozelab.corpus.tokenizers import Tokenizer, read_tokenizer
from clozelab.models import folders
from clozelab.models.encoder import Encoder
from clozelab.models.families.bert import COMMON_HEADS, OWN_TYPE, POOLED_KINDS, Family
from clozelab.models.heads import BiLSTM, FeatureMix
from clozelab.text.did_you_mean import hint

log = logging.getLogger(__name__)
# some folders pad the embedding matrix to a multiple of up to 128 beyond the vocabulary
MAX_PADDED_ENTRIES = 127
TASK_KINDS = ("classification", "tags", "choices", "spans")
NAMED_KINDS = ("lm", "nsp", "sop", "rtd", "spans")  # whose tensors' names say which they are
MULTI_LABEL = "multi_label_classification"


@dataclass(frozen=True)
class Model:
    """What a folder holds, on the CPU and in eval mode."""

    folder: Path
    encoder: Encoder
    heads: nn.ModuleDict
    """By kind (models/families/bert.py): those with weights in the folder; "bilstm" and
    "feature_mix" among them.
    """
    untrained: tuple[str, ...]
    """Kinds of heads, and "pooler", that the architecture has and the folder has no weights for; a
    head that reads a pooler without weights is one of them."""
    tokenizer: Tokenizer
    config: Mapping[str, Any]  # config.json as it is
    architecture: str
    task: str | None
    """classification, multi_label, regression, tags, choices, spans or embedding; None: not
    fine-tuned."""
    labels: tuple[str, ...]  # of classification and tags, by the order of the outputs
    # of a sequence with its special tokens: the longest that was trained, as far as it is recorded
    max_length: int

    @property
    def texts_per_example(self) -> int | None:
        """Of classification: 1 where single texts were trained on, 2 where pairs; None where that
        is not recorded."""
        recorded = self.config.get("clozelab", {}).get("texts_per_example")
        if recorded is None:
            return None
        return int(recorded)


def find_model(name: str, *, from_hub: bool = False) -> Path:
    """The folder, or file, of a model: one in the Hugging Face layout or Google's, a run's `model`
    or `encoder`.

    `from_hub`: where there is no such folder, NAME@COMMIT is fetched from the Hugging Face hub, or
    its local copy.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if found := [
        place
        for place in [path, path / "model", path / "encoder"]
        if folders.config_path(place).is_file()
    ]:
        return found[0]
    if path.is_dir() or not from_hub:
        told = (
            ""
            if path.is_dir()
            else "; a name on the Hugging Face hub needs hub=true and NAME@COMMIT"
        )
        raise ValueError(
            f"{name}: no model here, expected {folders.CONFIG_FILE} in it, or in its model/ (a"
            f" fine-tuning run) or encoder/ (a pre-training run){told}"
        )
    repository, _, revision = name.partition("@")
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise ValueError(
            f"{name}: say which commit, {repository}@COMMIT (40 hex digits), since a branch may"
            " move"
        )
    import huggingface_hub

    try:
        get: Any = partial(huggingface_hub.snapshot_download, repository, revision=revision)
        folder = Path(get(allow_patterns=["*.json", "*.txt", "*.safetensors"]))
        if not any(folder.glob("*.safetensors")):
            folder = Path(get(allow_patterns=["*.json", "*.txt", "pytorch_model*.bin"]))
    except Exception as problem:  # a foreign library's, of many kinds: no network, no such name
        first = str(problem).partition("\n")[0]
        raise ValueError(
            f"{name} is not to be had from the hub: {type(problem).__name__}: {first}"
        ) from problem
    return folder


def read_model(path: Path | str, token_types: str = "auto") -> Model:
    """Reads a folder, or the folder of one file of weights; ValueError says what is wrong, and
    where.

    `token_types`: see `open_tokenizer`.
    """
    path = Path(path)
    folder = path.parent if path.is_file() else path
    config, family = folders.read_config_dict(folder), folders.read_config(folder).family
    tokenizer = open_tokenizer(folder, token_types)
    stored = folders.read_tensors(path)
    kinds = _kinds(folder, config, family, stored)
    encoder = folders.load_encoder(folder, stored=stored)
    is_theirs = not str(config.get("model_type", "")).startswith(OWN_TYPE)
    if is_theirs and encoder.config.is_causal and POOLED_KINDS & set(kinds):
        # is_decoder does not move where transformers' classes pool, and their head was trained so.
        encoder.config = replace(encoder.config, pools_first_token=True)
    task = next((kind for kind in TASK_KINDS if kind in kinds), None)
    labels = _labels(folder, config, family, task, stored)
    between, untrained = _between(stored, encoder, config), []
    heads, lstm = nn.ModuleDict(between), between.get("bilstm")
    pooler = family.encoder_name("pooler.dense.weight")
    if encoder.config.pooler and not {pooler, family.prefix + pooler} & stored.keys():
        untrained.append("pooler")
    input_size = 2 * lstm.layers[-1]["forward_direction"].hidden_size if lstm else None
    for kind in kinds:
        size = input_size if kind in TASK_KINDS else None
        head = family.head(kind, encoder, num_labels=max(1, len(labels)), input_size=size)
        pools = (
            kind in POOLED_KINDS and lstm is None and not getattr(head, "reads_token_states", False)
        )
        if folders.has_head(family, kind, head, stored) and not (pools and "pooler" in untrained):
            folders.load_head(folder, kind, head, stored)
            heads[kind] = head
        else:
            untrained.append(kind)
    task = task or ("embedding" if "pooling" in config.get("clozelab", {}) else None)
    if task == "classification":
        task = _kind_of_classification(config, labels)
    return Model(
        folder=folder,
        encoder=encoder.eval(),
        heads=heads.eval(),
        untrained=tuple(untrained),
        tokenizer=tokenizer,
        config=config,
        architecture=family.architecture(kinds, encoder.config.is_causal),
        task=task,
        labels=labels,
        max_length=max_positions(folder),
    )


def has_pooler(model: Model) -> bool:
    """Whether the class that holds the model's heads has a pooler, and this one's is trained."""
    return (
        model.encoder.config.family.reads_pooler(list(model.heads))
        and "pooler" not in model.untrained
    )


def trained_pooling(folder: Path) -> str:
    """What a text's vector is: as sentence-transformers takes it, where the folder says; as
    trained; else the mean.
    """
    said = folder / "1_Pooling" / folders.CONFIG_FILE
    modes = json.loads(said.read_bytes()) if said.is_file() else {}
    names = {"cls": "cls_token", "mean": "mean_tokens"}
    known = [kind for kind, name in names.items() if modes.get(f"pooling_mode_{name}")]
    return str(
        (known or [folders.read_config_dict(folder).get("clozelab", {}).get("pooling", "mean")])[0]
    )


def write_model(
    folder: Path | str,
    encoder: Encoder,
    heads: Mapping[str, nn.Module],
    tokenizer: Tokenizer,
    *,
    labels: Sequence[str] = (),
    is_regression: bool = False,
    is_multi_label: bool = False,
    max_length: int | None = None,
    with_pooler: bool = True,
    extra_config: Mapping[str, Any] | None = None,
    extra_files: Mapping[str, str | bytes] | None = None,
) -> None:
    """Writes a whole folder, replacing one that is there; its class follows from the kinds of
    `heads`.

    Args:
        labels: of classification and tags, by the order of the outputs.
        is_multi_label: the labels do not exclude each other.
        max_length: the longest sequence that it was trained on, for the tokenizer; None: 512 at
        most.
        with_pooler: False leaves out one that no head of these reads, or that is not trained.
        extra_config, extra_files: further keys of config.json, and further files.
    """
    extra: dict[str, Any] = {"problem_type": "regression"} if is_regression else {}
    if is_multi_label:
        extra["problem_type"] = MULTI_LABEL
    if names := ["LABEL_0"] if is_regression else labels:
        extra |= {
            "id2label": dict(enumerate(names)),
            "label2id": {name: i for i, name in enumerate(names)},
        }
    longest = max_length or min(512, encoder.config.max_position_embeddings)
    files = with_max_length({**tokenizer.files(), **(extra_files or {})}, longest)
    more = extra | dict(extra_config or {})
    folders.save_encoder_folder(
        folder,
        encoder,
        heads=heads,
        tokenizer_files=files,
        extra_config=more,
        with_pooler=with_pooler,
    )


def with_max_length(files: Mapping[str, Any], length: int) -> dict[str, Any]:
    """A tokenizer's files, saying the longest sequence that is good for the encoder."""
    rules = json.loads(files["tokenizer_config.json"]) | {"model_max_length": length}
    return {**files, "tokenizer_config.json": json.dumps(rules, indent=2) + "\n"}


def _kinds(
    folder: Path, config: Mapping[str, Any], family: Family, stored: Mapping[str, Tensor]
) -> list[str]:
    """The heads that the folder's configuration names, and those that its tensors' names say."""
    known = {kind: family.head_name(kind, "") for kind in NAMED_KINDS}
    found = {
        kind
        for kind, beginning in known.items()
        if any(name.startswith(beginning) for name in stored)
    }
    if architectures := config.get("architectures"):
        try:
            found |= family.kinds(str(architectures[0]))
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from None
    elif "classifier.weight" in stored:
        if folders.config_path(folder).name != folders.GOOGLE_CONFIG_FILE:
            raise ValueError(
                f"{folders.config_path(folder)} names no architecture, and a classifier may be of"
                " many: add one, "
                f'for example "architectures": ["{family.class_name}ForSequenceClassification"]'
            )
        found.add("classification")  # that of Google's run_classifier.py
    return [kind for kind in COMMON_HEADS if kind in found]


def _labels(
    folder: Path,
    config: Mapping[str, Any],
    family: Family,
    task: str | None,
    stored: Mapping[str, Tensor],
) -> tuple[str, ...]:
    """Names of the classes; ValueError where they are not as many as the head has."""
    if task not in ("classification", "tags"):
        return ()
    tensors = (stored.get(family.head_name(task, name)) for name in ("weight", "out_proj.weight"))
    number = next((len(tensor) for tensor in tensors if tensor is not None), None)
    place = folders.config_path(folder)
    if config.get("problem_type") == "regression" and (number or 1) > 1:
        raise ValueError(f"{place}: a regression of {number} numbers; one is supported")
    named = named_labels(config, place)
    if not named:
        return tuple(
            f"LABEL_{index}" for index in range(number or int(config.get("num_labels", 2)))
        )
    if number not in (None, len(named)):
        raise ValueError(
            f"{place} names {len(named)} labels (id2label), but the head has {number} outputs: "
            "they do not belong together"
        )
    if task == "classification":
        _refuse_twins(named, place)
    return tuple(named)


def _refuse_twins(labels: Sequence[str], place: Path) -> None:
    """ValueError for two classes of one name, whose probabilities nobody could tell apart."""
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(
                f"{place}: id2label calls two classes {label!r}; give each a name of its own",
            )


def named_labels(config: Mapping[str, Any], place: Path | str) -> list[str]:
    """The names that a config.json gives the outputs, in their order: by id2label, else by
    label2id; empty for none.

    ValueError where they are no names by numbers, where an output in between has none, and where
    the two say different numbers of a name."""
    id2label, label2id = config.get("id2label") or {}, config.get("label2id") or {}
    try:
        numbers = {str(name): int(number) for name, number in label2id.items()}
        names = {int(number): str(name) for number, name in id2label.items()}
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"{place}: id2label is {id2label}, not names by their numbers") from None
    if not names:
        names = {number: name for name, number in numbers.items()}
    _refuse_contradiction(names, numbers, place)
    for number in range(len(names)):
        if number not in names:
            known = ", ".join(map(str, sorted(names)))
            raise ValueError(
                f"{place}: id2label has no name for output {number} (it names {known}); add it",
            )
    return [names[number] for number in range(len(names))]


def _refuse_contradiction(
    names: Mapping[int, str],
    numbers: Mapping[str, int],
    place: Path | str,
) -> None:
    """ValueError where id2label and label2id say different numbers of a name.

    Names of label2id alone are what a library leaves there by itself (LABEL_0): they contradict
    nothing."""
    labels = list(names.values())
    for number, name in sorted(names.items()):
        if numbers.get(name, number) != number and labels.count(name) == 1:
            raise ValueError(
                f"{place} contradicts itself: {name!r} is output {number} in id2label and"
                f" {numbers[name]} in label2id; correct the wrong one"
            )


def renamed_labels(labels: Sequence[str], names: Any, place: Path | str) -> list[str]:
    """A model's labels, some under other names (label -> name).

    ValueError for what is no such mapping, for a label that the model lacks, and for two labels of
    one name."""
    if not isinstance(names, Mapping):
        raise ValueError(
            f"label_names={names}: write {{MODEL_NAME: NAME, ...}}, a name of each label to be"
            " renamed"
        )
    if not names:
        return list(labels)
    chosen = {str(label): str(name) for label, name in names.items()}
    for label in chosen:
        if label not in labels:
            raise ValueError(f"label_names: {place} has no label {label!r}; {hint(label, labels)}")
    renamed = [chosen.get(label, label) for label in labels]
    for label in renamed:
        if renamed.count(label) > 1:
            raise ValueError(f"label_names: two labels of {place} would be called {label!r}")
    return renamed


def _kind_of_classification(config: Mapping[str, Any], labels: Sequence[str]) -> str:
    """classification, multi_label (each label has a probability of its own) or regression."""
    if config.get("problem_type") == MULTI_LABEL:
        return "multi_label"
    if config.get("problem_type") == "regression" or len(labels) == 1:
        return "regression"
    return "classification"


def _between(
    stored: Mapping[str, Tensor], encoder: Encoder, config: Mapping[str, Any]
) -> dict[str, Any]:
    """What stands between encoder and output layer, in the sizes of its tensors."""
    found: dict[str, Any] = {}
    own = {
        name.removeprefix("bilstm."): value
        for name, value in stored.items()
        if name.startswith("bilstm.")
    }
    if own:
        first, layers = (
            own["layers.0.forward_direction.weight_ih_l0"],
            {name.split(".")[1] for name in own},
        )
        found["bilstm"] = BiLSTM(first.shape[1], first.shape[0] // 4, len(layers), 0.0)
        found["bilstm"].load_state_dict(own)
    if features := config.get("clozelab", {}).get("features"):
        found["feature_mix"] = FeatureMix(
            features, encoder.config.num_hidden_layers, encoder.config.hidden_size
        )
        beginning = "feature_mix."
        mix = {
            name.removeprefix(beginning): x
            for name, x in stored.items()
            if name.startswith(beginning)
        }
        found["feature_mix"].load_state_dict(mix)
    return found


def open_tokenizer(folder: Path, token_types: str = "auto") -> Tokenizer:
    """The folder's tokenizer, of as many token types as asked for.

    ValueError when it is not the one that the encoder was made with.
    """
    tokenizer = read_tokenizer(folder).with_token_types(token_types)
    if tokenizer.can_have_token_types and not tokenizer.has_token_types:
        log.info(
            "%s: both texts of a pair have token type 0 (never trained with a second one, or"
            " token_types=one)",
            folder,
        )
    rows, entries = folders.read_config(folder).vocab_size, tokenizer.vocab_size
    made_with = folders.read_config_dict(folder).get("clozelab", {}).get("tokenizer_fingerprint")
    if entries > rows or rows - entries > MAX_PADDED_ENTRIES:
        raise ValueError(
            f"{folder}: the encoder has embeddings for {rows} ids and its tokenizer files hold"
            f" {entries}{_without_embeddings(tokenizer, rows)}: they do not belong together; put"
            " back the tokenizer files it was trained with"
        )
    known = {tokenizer.fingerprint, tokenizer.released}
    if made_with is not None and made_with not in known:
        raise ValueError(
            f"{folder}: the tokenizer files are not those the encoder was trained with (their"
            f" fingerprint is {tokenizer.fingerprint[:12]}, config.json says {made_with[:12]}); put"
            " the right ones back"
        )
    if entries < rows:
        log.info(
            "%s: %d embeddings behind the vocabulary of %d are padding",
            folder,
            rows - entries,
            entries,
        )
    # fresh weights never read the weights file, which checks them otherwise
    folders.verify_checksums(folder)
    return tokenizer


def _without_embeddings(tokenizer: Tokenizer, rows: int) -> str:
    """The added tokens that the embeddings were not resized for, in words."""
    beyond = tokenizer.vocabulary[rows:]
    if not beyond or not set(beyond) <= set(tokenizer.added_tokens):
        return ""
    shown = ", ".join(beyond[:3]) + (", ..." if len(beyond) > 3 else "")
    return (
        f" (of the added tokens, {shown} have none:"
        f" model.resize_token_embeddings({tokenizer.vocab_size}) makes them)"
    )


def max_positions(folder: Path) -> int:
    """The longest sequence that the encoder was trained on or, where that is not recorded, has
    positions for.
    """
    positions = folders.read_config(folder).max_position_embeddings
    trained = max(
        folders.read_config_dict(folder).get("clozelab", {}).get("trained_seq_lengths", [positions])
    )
    if trained < positions:
        said = "%s: trained on sequences of up to %d tokens (of %d positions), longer ones are cut"
        log.info(said, folder, trained, positions)
    return min(positions, trained)
