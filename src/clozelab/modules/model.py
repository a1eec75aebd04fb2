"""A whole model: encoder, heads, tokenizer and what they are for, in a folder.

The layout is Hugging Face's. A folder of ours may hold what that has no class for: a BiLSTM between
encoder and output layer, a mix of the encoder's layers, a causal encoder; its model_type is then
one that other libraries do not know, and it is read here. A head that the configuration names and
the file lacks is listed as `untrained` and not made up.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from claims.text.did_you_mean import hint
from clozelab.corpus.encoding import TYPED_INPUTS
from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.tokenizer_classes import GENERIC_FAST, WORDPIECE_CLASSES
from clozelab.corpus.tokenizer_files import CONFIG_FILE as TOKENIZER_CONFIG_FILE
from clozelab.corpus.tokenizer_files import json_or_empty
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.models import folders
from clozelab.models.config import EncoderConfig
from clozelab.models.config_keys import AnswerRules, ConfigJson, GivenVectors, Provenance
from clozelab.models.encoder import Encoder
from clozelab.models.families.bert import (
    COMMON_HEADS,
    CUSTOM_CLASS_PREFIX,
    CUSTOM_MODEL_TYPE_PREFIX,
    POOLED_KINDS,
    Family,
    reads_pooler,
)
from clozelab.models.heads import BiLSTM, FeatureMix
from clozelab.models.leftovers import (
    NAMED_KINDS,
    TASK_KINDS,
    foreign_tensors,
    named_few,
    unread_tensors,
)
from clozelab.models.locate import GOOGLE_CONFIG_FILE, config_path
from clozelab.models.registry import family_for
from clozelab.modules.model_tasks import REGRESSION, classes_of, task_of
from clozelab.modules.sentence_folders import (
    PROMPTS,
    SentenceVectors,
    longest_text,
    passes_sigmoid,
    read_prompts,
    read_sentence_vectors,
    similarity_of,
)
from clozelab.text.plain import PlainDict, PlainMapping, ReadOnlyJson

log = logging.getLogger(__name__)
# Some folders pad the embedding matrix beyond the vocabulary: to a multiple of up to 128, and a
# large one to a multiple of 1,000 (mDeBERTa's 251,000).
MAX_PADDED_ENTRIES = 127
MAX_PADDED_SHARE = 0.005


@dataclass(frozen=True)
class Model:
    """What a folder holds, on the CPU and in eval mode."""

    folder: Path
    encoder: Encoder
    # By kind (models/families/bert.py): those with weights in the folder; "bilstm" and
    # "feature_mix" among them.
    heads: nn.ModuleDict
    # Kinds of heads, and "pooler", that the architecture has and the folder has no weights for, or
    # none that were trained; a head that reads a pooler without weights is one of them.
    untrained: tuple[str, ...]
    tokenizer: Tokenizer
    config: ConfigJson  # config.json as it is
    architecture: str
    task: str | None  # of model_tasks.py; None: not fine-tuned
    labels: tuple[str, ...]  # of classification and tags: names of the outputs, in their order
    max_length: int  # tokens of the longest sequence that was trained, as far as it is recorded
    # Names of the file's tensors that no head here has; the head of a task is then not read.
    foreign: tuple[str, ...]

    @property
    def provenance(self) -> Provenance:
        """What a training here has left in config.json; empty for a folder from elsewhere."""
        return self.config.get("clozelab", {})

    @property
    def answer_rules(self) -> AnswerRules:
        """What a fine-tuning here has left of how outputs become answers."""
        return self.provenance.get("answers", {})

    @property
    def class_names(self) -> tuple[str, ...]:
        """What it predicts one or several of: its labels, or the classes whose order it learnt."""
        return tuple(classes_of(self.config, self.labels))

    @property
    def texts_per_example(self) -> int | None:
        """Of a classifier: 1 if it was trained on single texts, 2 if on pairs, None if unknown."""
        return self.provenance.get("texts_per_example")

    @property
    def window_length(self) -> int:
        """Tokens of the longest row that it was fine-tuned on; without a record as `max_length`."""
        return min(self.provenance.get("max_seq_length", self.max_length), self.max_length)

    @property
    def embedded_length(self) -> int:
        """Tokens of the longest text to embed: those of a training of embeddings, if it is one."""
        return self.window_length if "pooling" in self.provenance else self.max_length


def read_model(path: Path | str) -> Model:
    """Reads a folder, or the folder of one file of weights.

    ValueError says what is wrong, and where.
    """
    path = Path(path)
    folder = path.parent if path.is_file() else path
    config = folders.read_config_dict(folder)
    family = family_for(folders.read_config(folder))
    tokenizer = open_tokenizer(folder)
    stored = folders.read_tensors(path)
    kinds = _kinds(folder, config, family, stored)
    encoder = folders.load_encoder(folder, stored=stored, warns_of_fresh=False)
    read_as_class(encoder, folder, kinds, tokenizer.sep_id)
    task_kind = next((kind for kind in TASK_KINDS if kind in kinds), None)
    labels = _labels(folder, config, family, task_kind, stored)
    heads, untrained = _read_heads(folder, config, encoder, kinds, len(labels), stored)
    foreign = foreign_tensors(family, stored)
    unread = foreign or unread_tensors(family, stored, heads)
    if unread:
        log.warning("%s: tensor %s is read by nothing here: left out", folder, named_few(unread))
    architecture = family.architecture(kinds, encoder.config.is_causal)
    task = task_of(task_kind, config, labels)
    if passes_sigmoid(folder, task) and "classification" in heads:
        heads["classification"].output_activation = nn.Sigmoid()
    encoder.eval()
    heads.eval()
    log_max_positions(folder)
    return Model(
        folder=folder,
        encoder=encoder,
        heads=heads,
        untrained=tuple(untrained),
        tokenizer=tokenizer,
        config=config,
        architecture=architecture,
        task=task,
        labels=labels,
        max_length=max_positions(folder),
        foreign=tuple(foreign),
    )


def read_as_class(encoder: Encoder, folder: Path, kinds: Sequence[str] | None, sep_id: int) -> None:
    """Let an encoder pool as the folder's class in transformers, which `kinds` of heads say.

    None: those of the folder. ValueError where that class would find questions by another separator
    than `sep_id`.
    """
    config = folders.read_config_dict(folder)
    family = family_for(encoder.config)
    if kinds is None:
        kinds = _kinds(folder, config, family, folders.read_tensors(folder))
    family.require_separator(config, kinds, sep_id, folder)
    # A folder of other libraries', or of ours that they can read.
    is_foreign = not str(config.get("model_type", "")).startswith(CUSTOM_MODEL_TYPE_PREFIX)
    if is_foreign and encoder.config.is_causal and POOLED_KINDS & set(kinds):
        # is_decoder does not move where transformers' classes pool, and their head was trained so.
        encoder.config = replace(encoder.config, pools_first_token=True)


def _read_heads(
    folder: Path,
    config: ConfigJson,
    encoder: Encoder,
    kinds: Sequence[str],
    num_labels: int,
    stored: Mapping[str, Tensor],
) -> tuple[nn.ModuleDict, list[str]]:
    """The heads that have weights, and the kinds (or "pooler") of those that have none."""
    family = family_for(encoder.config)
    between = _between(stored, encoder, config)
    heads = nn.ModuleDict(between)
    untrained = []
    if encoder.has_fresh_pooler:
        untrained.append("pooler")
    # Heads of which a part may be missing here.
    unreadable = TASK_KINDS if foreign_tensors(family, stored) else ()
    # A BiLSTM stands below the heads of tasks, and makes their inputs wider.
    lstm: Any = between.get("bilstm")
    input_size = None
    if lstm is not None:
        input_size = 2 * lstm.layers[-1]["forward_direction"].hidden_size
    for head_kind in kinds:
        size = input_size if head_kind in TASK_KINDS else None
        head = family.head(
            head_kind, encoder, num_labels=max(1, num_labels), input_size=size, stored=stored
        )
        is_on_pooler = reads_pooler(head_kind, head, has_bilstm=lstm is not None)
        lacks_pooler = is_on_pooler and "pooler" in untrained
        if head_kind in unreadable or lacks_pooler:
            untrained.append(head_kind)
        elif folders.has_head(family, head_kind, head, stored):
            folders.load_head(folder, head_kind, head, stored)
            heads[head_kind] = head
        else:
            untrained.append(head_kind)
    return heads, untrained


def has_pooler(model: Model) -> bool:
    """Whether the class that holds the model's heads has a pooler, and this one's is trained."""
    reads_pooler = family_for(model.encoder.config).reads_pooler(list(model.heads))
    return reads_pooler and "pooler" not in model.untrained


def sentence_vectors(folder: Path, pooling: str | None = None) -> SentenceVectors:
    """How a text's vector is made: as sentence-transformers' files say, as trained, else a mean.

    With a named `pooling` of whole vectors, whatever else the files say; prompts are the folder's.
    """
    provenance = folders.read_provenance(folder)
    # What is fine-tuned has its own; what is trained further keeps those of the given encoder.
    of_given: dict[str, Any] = {**provenance.get("given_vectors", {})}
    of_given.pop("similarity", None)  # which makes no other vector
    given = SentenceVectors(**of_given)
    prompts = read_prompts(folder) or provenance.get("prompts", given.prompts)
    if pooling is not None:
        return SentenceVectors(pooling, prompts=prompts)
    vectors = read_sentence_vectors(folder)
    if vectors is not None:
        return vectors
    if "pooling" not in provenance:
        return replace(given, prompts=prompts)
    return SentenceVectors(provenance["pooling"], prompts=prompts)


def given_vectors(folder: Path) -> GivenVectors | None:
    """How a folder makes a text's vector, for an encoder that is trained further; None: as any."""
    if not folder.exists():
        return None
    try:
        vectors = sentence_vectors(folder)
    except ValueError:  # vectors that are not computed here: nobody will ask for them
        return None
    similarity = similarity_of(folder)
    is_of_cosine = similarity in (None, "cosine")
    if is_of_cosine and vectors == SentenceVectors():
        return None
    given: GivenVectors = {
        "pooling": vectors.pooling,
        "normalized": vectors.normalized,
        "prompts": dict(vectors.prompts),
    }
    if similarity is not None and not is_of_cosine:
        given["similarity"] = similarity
    return given


def with_pooling(settings: PlainMapping, folder: Path) -> ReadOnlyJson:
    """A module's settings, in which the pooling `auto` is that of the folder's vectors.

    So are the `prompts` null. ValueError for vectors of which some columns alone are kept.
    """
    reads_prompts = "prompts" in settings
    if reads_prompts and settings["prompts"] is None:
        prompts = sentence_vectors(folder, "mean")
        settings = {**settings, "prompts": {name: prompts.prompt(name) for name in PROMPTS}}
    if settings.get("pooling") != "auto":
        return settings
    vectors = sentence_vectors(folder)
    if not reads_prompts:
        vectors.warn_of_prompts(folder)
    if vectors.size is not None:
        raise ValueError(
            f"{folder}: only the first {vectors.size} columns of a vector are kept (truncate_dim),"
            " which predict and search do, and no training or measure: say pooling="
            f"{vectors.pooling} to take whole vectors"
        )
    return {**settings, "pooling": vectors.pooling}


def write_model(
    folder: Path | str,
    encoder: Encoder,
    heads: Mapping[str, nn.Module],
    tokenizer: Tokenizer,
    *,
    labels: Sequence[str] = (),
    problem_type: str | None = None,
    max_length: int | None = None,
    with_pooler: bool = True,
    extra_config: PlainMapping | None = None,
    extra_files: Mapping[str, str | bytes] | None = None,
    dtype: str = "float32",
) -> None:
    """Writes a whole folder, replacing one that is there.

    Its class follows from the kinds of `heads`.

    Args:
        labels: of classification and tags, by the order of the outputs.
        problem_type: transformers' word for a regression, or for labels that do not exclude each
            other.
        max_length: the longest sequence that the encoder was trained on, for the tokenizer; None:
            512 at most.
        with_pooler: False leaves out one that no head of these reads, or that is not trained.
        extra_config, extra_files: further keys of config.json, and further files.
        dtype: of the weights in the file.
    """
    # transformers' Longformer and BigBird tell a question from a text by it.
    config: PlainDict = {"sep_token_id": tokenizer.sep_id}
    names = labels
    if problem_type is not None:
        config["problem_type"] = problem_type
    # transformers tells a regression by its one label.
    if problem_type == REGRESSION:
        names = ["LABEL_0"]
    if names:
        config["id2label"] = dict(enumerate(names))
        config["label2id"] = {name: number for number, name in enumerate(names)}
    longest = max_length or min(512, encoder.config.max_position_embeddings)
    # These heads were trained on texts that were cut; a tagger answers each word of longer ones.
    if {"classification", "choices", "spans"} & heads.keys():
        provenance: Any = dict(extra_config or {}).get("clozelab", {})
        longest = min(longest, provenance.get("max_seq_length", longest))
    # Some classes of transformers take no types, and others have no embedding of a second one. An
    # XLNet's say which token is [CLS].
    if encoder.config.type_vocab_size < 2 and not tokenizer.cls_is_last:
        tokenizer = tokenizer.with_token_types("one")
    family = family_for(encoder.config)
    architecture = family.architecture(list(heads), encoder.config.is_causal)
    # transformers would load it, and answer otherwise.
    if family.makes_token_types(architecture) and not tokenizer.has_token_types:
        config["model_type"] = CUSTOM_MODEL_TYPE_PREFIX + family.model_type
        config["architectures"] = [CUSTOM_CLASS_PREFIX + architecture]
    files = with_max_length({**tokenizer.files(), **(extra_files or {})}, longest)
    folders.save_encoder_folder(
        folder,
        encoder,
        heads=heads,
        tokenizer_files=files,
        extra_config=config | dict(extra_config or {}),
        with_pooler=with_pooler,
        dtype=dtype,
    )


def with_max_length(files: Mapping[str, str | bytes], length: int) -> dict[str, str | bytes]:
    """A tokenizer's files for an encoder's folder; it says the longest good sequence.

    WordPiece gets the class that takes tokenizer.json as it is: of transformers 5 the others take a
    word of more than 100 letters for unknown, BERT's released code one of more than 200.
    """
    rules = json.loads(files[TOKENIZER_CONFIG_FILE]) | {"model_max_length": length}
    if rules["tokenizer_class"] in WORDPIECE_CLASSES:
        rules["tokenizer_class"] = GENERIC_FAST
        # The class before had these by itself.
        rules.setdefault("model_input_names", list(TYPED_INPUTS))
    return {**files, TOKENIZER_CONFIG_FILE: json.dumps(rules, indent=2) + "\n"}


def _kinds(
    folder: Path, config: ConfigJson, family: Family, stored: Mapping[str, Tensor]
) -> list[str]:
    """The heads that the folder's configuration names, and those that its tensors' names say."""
    # Some heads' tensors say what they are; `classifier` may be of several kinds.
    kinds = set()
    for head_kind in NAMED_KINDS:
        prefix = family.head_name(head_kind, "")
        if any(name.startswith(prefix) for name in stored):
            kinds.add(head_kind)
    architectures = config.get("architectures")
    if architectures:
        try:
            kinds |= family.kinds(str(architectures[0]))
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from None
    elif "classifier.weight" in stored:
        path = config_path(folder)
        if path.name != GOOGLE_CONFIG_FILE:
            raise ValueError(
                f"{path} names no architecture, and a classifier may be of many: add one, "
                f'for example "architectures": ["{family.class_name}ForSequenceClassification"]'
            )
        kinds.add("classification")  # that of Google's run_classifier.py
    return [head_kind for head_kind in COMMON_HEADS if head_kind in kinds]


def _labels(
    folder: Path,
    config: ConfigJson,
    family: Family,
    task: str | None,
    stored: Mapping[str, Tensor],
) -> tuple[str, ...]:
    """Names of the classes; ValueError where they are not as many as the head has."""
    if task not in ("classification", "tags"):
        return ()
    out_proj = stored.get(family.head_name(task, "out_proj.weight"))
    weight = stored.get(family.head_name(task, "weight"), out_proj)
    num_outputs = None
    if weight is not None:
        num_outputs = len(weight)
    path = config_path(folder)
    if config.get("problem_type") == REGRESSION and (num_outputs or 1) > 1:
        raise ValueError(f"{path}: a regression of {num_outputs} numbers; one is supported")
    labels = named_labels(config, path)
    if not labels:
        num_labels = num_outputs or int(config.get("num_labels", 2))
        return tuple(f"LABEL_{index}" for index in range(num_labels))
    if num_outputs not in (None, len(labels)):
        raise ValueError(
            f"{path} names {len(labels)} labels (id2label), but the head has {num_outputs} outputs:"
            " they do not belong together"
        )
    for label in labels:
        # Of classes nobody could tell the probabilities apart.
        if task == "classification" and labels.count(label) > 1:
            raise ValueError(
                f"{path}: id2label calls two classes {label!r}; give each a name of its own",
            )
    return tuple(labels)


def named_labels(config: ConfigJson, path: Path | str) -> list[str]:
    """The names that a config.json gives the outputs, in their order; empty for none.

    They come from id2label, else from label2id. ValueError where they are no names by numbers,
    where an output in between has none, and where the two say different numbers of a name.
    """
    id2label = config.get("id2label") or {}
    label2id = config.get("label2id") or {}
    try:
        numbers = {str(name): int(number) for name, number in label2id.items()}
        names = {int(number): str(name) for number, name in id2label.items()}
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"{path}: id2label is {id2label}, not names by their numbers") from None
    if not names:
        names = {number: name for name, number in numbers.items()}
    _refuse_contradiction(names, numbers, path)
    for number in range(len(names)):
        if number not in names:
            numbered = ", ".join(map(str, sorted(names)))
            raise ValueError(
                f"{path}: id2label has no name for output {number} (it names {numbered}); add it",
            )
    return [names[number] for number in range(len(names))]


def _refuse_contradiction(
    names: Mapping[int, str],
    numbers: Mapping[str, int],
    path: Path | str,
) -> None:
    """ValueError where id2label and label2id say different numbers of a name.

    Names of label2id alone are what a library leaves there by itself (LABEL_0): they contradict
    nothing.
    """
    labels = list(names.values())
    for number, name in sorted(names.items()):
        if numbers.get(name, number) != number and labels.count(name) == 1:
            raise ValueError(
                f"{path} contradicts itself: {name!r} is output {number} in id2label and"
                f" {numbers[name]} in label2id; correct the wrong one"
            )


def renamed_labels(labels: Sequence[str], names: object, path: Path | str) -> list[str]:
    """A model's labels, some under other names (label -> name).

    ValueError for what is no such mapping, for a label that the model lacks, and for two labels of
    one name.
    """
    if not isinstance(names, Mapping):
        raise ValueError(
            f"label_names={names}: write {{MODEL_NAME: NAME, ...}}, a name of each label to be"
            " renamed"
        )
    if not names:
        return list(labels)
    new_names = {str(label): str(name) for label, name in names.items()}
    for label in new_names:
        if label not in labels:
            raise ValueError(f"label_names: {path} has no label {label!r}; {hint(label, labels)}")
    renamed = [new_names.get(label, label) for label in labels]
    for label in renamed:
        if renamed.count(label) > 1:
            raise ValueError(f"label_names: two labels of {path} would be called {label!r}")
    return renamed


def _between(
    stored: Mapping[str, Tensor], encoder: Encoder, config: ConfigJson
) -> dict[str, nn.Module]:
    """What stands between encoder and output layer, in the sizes of its tensors."""
    between: dict[str, nn.Module] = {}
    # For example bilstm.layers.0.forward_direction.weight_ih_l0.
    tensors = _without_prefix(stored, "bilstm.")
    if tensors:
        # An LSTM's four gates lie below each other: [4 * hidden, inputs].
        gates, input_size = tensors["layers.0.forward_direction.weight_ih_l0"].shape
        num_layers = len({name.split(".")[1] for name in tensors})
        between["bilstm"] = BiLSTM(input_size, gates // 4, num_layers, 0.0)
        between["bilstm"].load_state_dict(tensors)
    features = config.get("clozelab", {}).get("features")
    if features:
        between["feature_mix"] = FeatureMix(
            features, encoder.config.num_hidden_layers, encoder.config.output_size
        )
        between["feature_mix"].load_state_dict(_without_prefix(stored, "feature_mix."))
    return between


def _without_prefix(stored: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors below a prefix, by the rest of their names."""
    tensors = {}
    for name, tensor in stored.items():
        if name.startswith(prefix):
            tensors[name.removeprefix(prefix)] = tensor
    return tensors


def open_tokenizer(folder: Path, token_types: str = "auto") -> Tokenizer:
    """The folder's tokenizer, of as many token types as asked for.

    ValueError when it is not the one that the encoder was made with.
    """
    values = folders.read_config_dict(folder)
    config = folders.read_config(folder)
    family = family_for(config)
    # A fine-tuning here has trained on the types that its tokenizer's files say.
    is_foreign = "task" not in values.get("clozelab", {})
    for architecture in values.get("architectures") or ():
        if token_types == "auto" and is_foreign and family.makes_token_types(str(architecture)):
            token_types = "two"
    tokenizer = read_tokenizer(folder).with_token_types(token_types)
    if tokenizer.can_have_token_types and not tokenizer.has_token_types:
        log.info(
            "%s: both texts of a pair have token type 0 (never trained with a second one, or"
            " token_types=one)",
            folder,
        )
    family.require_template(tokenizer.cls_is_last, folder)
    _require_padding(folder, config, tokenizer)
    rows = config.vocab_size
    entries = tokenizer.vocab_size
    if not 0 <= rows - entries <= max(MAX_PADDED_ENTRIES, MAX_PADDED_SHARE * rows):
        raise ValueError(
            f"{folder}: the encoder has embeddings for {rows} ids and its tokenizer files hold"
            f" {entries}{_without_embeddings(tokenizer, rows)}: they do not belong together; put"
            " back the tokenizer files it was trained with"
        )
    trained_with = folders.read_provenance(folder).get("tokenizer_fingerprint")
    if trained_with not in (None, tokenizer.fingerprint, tokenizer.released):
        raise ValueError(
            f"{folder}: the tokenizer files are not those the encoder was trained with (their"
            f" fingerprint is {tokenizer.fingerprint[:12]}, config.json says {trained_with[:12]});"
            " put the right ones back"
        )
    if entries < rows:
        log.info(
            "%s: %d embeddings behind the vocabulary of %d are padding",
            folder,
            rows - entries,
            entries,
        )
    # Fresh weights never read the weights file, which checks them otherwise.
    folders.verify_checksums(folder, needs_weights=False)
    return tokenizer


def _require_padding(folder: Path, config: EncoderConfig, tokenizer: Tokenizer) -> None:
    """ValueError where positions are counted behind another token than the tokenizer's padding.

    transformers counts a token with config.json's pad_token_id as padding, wherever it stands in a
    text.
    """
    if not dict(config.positions.options).get("after_padding"):
        return
    padding = tokenizer.special_tokens[0]
    if padding and tokenizer.pad_id == config.pad_token_id:
        return
    raise ValueError(
        f"{folder}: positions begin behind the padding, which is the id {config.pad_token_id} for"
        f" this {config.model_type} and {padding or 'no token'} for its tokenizer: put right"
        " pad_token_id in config.json (an MPNet's is always 1), or pad_token in"
        " tokenizer_config.json"
    )


def _without_embeddings(tokenizer: Tokenizer, rows: int) -> str:
    """The added tokens that the embeddings were not resized for, in words."""
    beyond = tokenizer.vocabulary[rows:]
    if not beyond or not set(beyond) <= set(tokenizer.added_tokens):
        return ""
    tokens = ", ".join(beyond[:3])
    if len(beyond) > 3:
        tokens += ", ..."
    return (
        f" (of the added tokens, {tokens} have none:"
        f" model.resize_token_embeddings({tokenizer.vocab_size}) makes them)"
    )


def max_positions(folder: Path) -> int:
    """Tokens of the longest sequence that the encoder was trained on.

    Where that is not recorded, those it has positions for; or sentence-transformers' limit.
    """
    positions = folders.read_config(folder).max_position_embeddings
    recorded = folders.read_provenance(folder)
    trained = max(recorded.get("trained_seq_lengths", [positions]))
    limit = longest_text(folder)
    # A fine-tuning here has written its own length there, and the encoder's for the tokenizer.
    if limit is not None and "max_seq_length" in recorded:
        limit = json_or_empty(folder / TOKENIZER_CONFIG_FILE).get("model_max_length")
    trained = min(trained, limit or trained)
    return min(positions, trained)


def log_max_positions(folder: Path) -> None:
    """Say where an encoder has positions that it was not trained on."""
    positions = folders.read_config(folder).max_position_embeddings
    longest = max_positions(folder)
    if longest < positions:
        log.info(
            "%s: trained on sequences of up to %d tokens (of %d positions), longer ones are cut",
            folder,
            longest,
            positions,
        )
