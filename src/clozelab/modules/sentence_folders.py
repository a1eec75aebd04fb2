"""What sentence-transformers keeps beside a model: how a text's vector is made of its states.

modules.json lists what states pass: Transformer, Pooling, perhaps Normalize. Versions 2 to 6 of the
library spell the pooling and the longest text each in one of two ways, and both are read. Every
other module, and every setting that would change a vector, is refused by its name.

A cross-encoder's number may pass a sigmoid (`passes_sigmoid`), which its folder names in one of
three places.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.tokenizer_files import CONFIG_FILE as TOKENIZER_CONFIG_FILE
from clozelab.corpus.tokenizer_files import json_or_empty
from clozelab.models.config import EncoderConfig
from clozelab.models.config_keys import contradicts, warn_of_unknown
from clozelab.models.encoder import SENTENCE_POOLINGS
from clozelab.models.folders import read_config, read_config_dict, read_provenance
from clozelab.models.locate import MODULES_FILE
from clozelab.models.registry import family_for
from clozelab.text.plain import PlainDict, PlainMapping

log = logging.getLogger(__name__)
TRANSFORMER_FILE = "sentence_bert_config.json"
LIBRARY_FILE = "config_sentence_transformers.json"
PACKAGE = "sentence_transformers.models"  # all versions know these addresses
# Keys of older versions, one of which is true.
OLDER_KEYS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
# What follows the first two modules; dropout is of training alone.
LAST_MODULES = ("Normalize", "Dropout")
# Settings of the Transformer -> the value that is read; all that is false says the same.
TRANSFORMER_SETTINGS: PlainMapping = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "processing_kwargs": None,
    "query_length": None,
    "document_length": None,
    "query_expansion": None,
    "tokenizer_name_or_path": None,
    "model_args": None,
    "tokenizer_args": None,
    "config_args": None,
}
TEXT_STATES = {"method": "forward", "method_output_name": "last_hidden_state"}
KNOWN_TRANSFORMER_KEYS = {
    *TRANSFORMER_SETTINGS,
    "do_lower_case",
    "max_seq_length",
    "modality_config",
    "unpad_inputs",
}
KNOWN_LIBRARY_KEYS = {
    "__version__",
    "activation_fn",
    "default_prompt_name",
    "keep_in_fp32_modules",
    "model_type",
    "prompts",
    "similarity_fn_name",
    "truncate_dim",
}
KNOWN_POOLING_KEYS = {"embedding_dimension", "include_prompt", "word_embedding_dimension"}
PROMPTS = ("query", "document")
# Names of a document's prompt, as encode_document of sentence-transformers looks for it.
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
# Places of config.json that name a cross-encoder's activation.
ACTIVATION_KEYS = ("sentence_transformers", "sbert_ce_default_activation_function")
SIGMOID = "torch.nn.modules.activation.Sigmoid"


@dataclass(frozen=True)
class SentenceVectors:
    """How a text's vector is made: one of SENTENCE_POOLINGS, and whether its length is made 1.

    Of what comes of that, the first `size` columns are kept; None: all. `prompts`: name -> what may
    be written before a text.
    """

    pooling: str = "mean"
    normalized: bool = False
    size: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)

    def prompt(self, name: str) -> str:
        """What is written before a text: nothing of a query or document without a prompt.

        ValueError for another name that is not among the prompts.
        """
        names = DOCUMENT_PROMPTS if name == "document" else (name,)
        for known in names:
            if known in self.prompts:
                return self.prompts[known]
        if name not in PROMPTS:
            raise ValueError(
                f"prompt={name}: the model's folder has"
                f" {', '.join(self.prompts) or 'no prompts'}; query and document are always known"
            )
        return ""

    def warn_of_prompts(self, folder: Path) -> None:
        """Warn where texts are read as they are, and were read behind prompts in training."""
        if self.prompts:
            log.warning(
                "%s has prompts (%s), which are not put before a text unless one is named: say"
                " prompt=NAME, or write it before your texts",
                folder / LIBRARY_FILE,
                ", ".join(self.prompts),
            )


def read_sentence_vectors(folder: Path) -> SentenceVectors | None:
    """How sentence-transformers makes vectors of this folder; None for one that is not its own.

    ValueError for what is not computed here: a further module, another pooling, a prompt.
    """
    if not (folder / MODULES_FILE).is_file():
        return None
    modules = _modules(folder)
    names = [module["type"].rpartition(".")[2] for module in modules]
    _refuse_other_modules(folder, modules, names)
    _refuse_other_settings(folder)
    pooling_file = folder / modules[1]["path"] / "config.json"
    pooling = _pooling(pooling_file)
    config = read_config(folder)
    # The library reads the first token: that of a causal encoder sees only itself.
    if pooling == "cls" and not _reads_first_token(config):
        raise ValueError(
            f"{folder / MODULES_FILE}: sentence-transformers takes the first token for [CLS], which"
            " is not what this encoder is read by; say pooling= to take the encoder's own"
        )
    prompts = read_prompts(folder)
    includes_prompt = json_or_empty(pooling_file).get("include_prompt", True)
    if prompts and not includes_prompt:
        raise ValueError(
            f"{pooling_file}: include_prompt is false, so its vectors leave a prompt's tokens out,"
            f" which is not computed here; say pooling={pooling} to count them"
        )
    is_normalized = "Normalize" in names
    size = _kept_columns(folder, is_normalized)
    return SentenceVectors(pooling, is_normalized, size, prompts)


def read_prompts(folder: Path) -> dict[str, str]:
    """Name -> what may be written before a text, as sentence-transformers' files say."""
    prompts = _library_settings(folder).get("prompts") or {}
    return {name: str(prompt) for name, prompt in prompts.items() if prompt}


def similarity_of(folder: Path) -> str | None:
    """By what sentence-transformers compares a folder's vectors; None where it does not say.

    An encoder that was trained further keeps what the given one said. A fine-tuning of vectors,
    whose pooling is its own, has learnt the cosine.
    """
    similarity: str | None = _library_settings(folder).get("similarity_fn_name")
    provenance = read_provenance(folder)
    if similarity is None and "pooling" not in provenance:
        similarity = provenance.get("given_vectors", {}).get("similarity")
    return similarity


class ModuleEntry(TypedDict):
    """An entry of modules.json."""

    type: str
    path: str


class LibrarySettings(TypedDict, total=False):
    """What is read of the file of the whole model."""

    activation_fn: str
    model_type: str
    prompts: dict[str, object]
    similarity_fn_name: str | None
    truncate_dim: int | None


def _modules(folder: Path) -> list[ModuleEntry]:
    """The entries of modules.json; ValueError where they are none."""
    path = folder / MODULES_FILE
    try:
        modules = list(json.loads(path.read_bytes()))
        for module in modules:
            if not isinstance(module["type"] + module["path"], str):
                raise TypeError
        if not modules:
            raise ValueError
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"{path} is no list of modules, each with its type and path: copy the folder again"
        ) from None
    return modules


def _refuse_other_modules(
    folder: Path, modules: Sequence[ModuleEntry], names: Sequence[str]
) -> None:
    """ValueError unless states pass Transformer, Pooling, and nothing that is not here."""
    path = folder / MODULES_FILE
    advice = "say pooling= to take the encoder's own"
    for module, name in zip(modules, names, strict=True):
        is_known = name in ("Transformer", "Pooling", *LAST_MODULES)
        if not is_known or not module["type"].startswith("sentence_transformers."):
            raise ValueError(
                f"{path}: its vectors pass a {name} module ({module['type']}), which is not"
                f" computed here; {advice}"
            )
    if "Pooling" not in names:
        raise ValueError(
            f"{path} names no Pooling, so the pooling of a text is unknown:"
            " say pooling=mean or pooling=cls"
        )
    if names[:2] != ["Transformer", "Pooling"] or not set(names[2:]) <= set(LAST_MODULES):
        raise ValueError(
            f"{path}: its modules are {', '.join(names)}, and only Transformer, Pooling and"
            f" Normalize in this order are computed here; {advice}"
        )
    if modules[0]["path"]:
        raise ValueError(
            f"{path}: its encoder is in {modules[0]['path']}, and here it is in the folder itself:"
            " save it anew, SentenceTransformer(FOLDER).save_pretrained(OTHER)"
        )
    for module, name in zip(modules, names, strict=True):
        settings = json_or_empty(folder / module["path"] / "config.json")
        ends = {settings.get("module_input_name"), settings.get("module_output_name")}
        if name == "Normalize" and module["path"] and not ends <= {None, "sentence_embedding"}:
            raise ValueError(f"{path}: its Normalize is not of the vector ({settings}); {advice}")


def _refuse_other_settings(folder: Path) -> None:
    """ValueError for a setting beside the modules that changes a text, or its states."""
    settings = _transformer_settings(folder)
    _warn_of_unknown(folder / TRANSFORMER_FILE, settings, KNOWN_TRANSFORMER_KEYS)
    _refuse_changed_texts(folder, settings)
    for key, value in TRANSFORMER_SETTINGS.items():
        given = settings.get(key, value)
        if contradicts(given, value):
            raise ValueError(
                f"{folder / TRANSFORMER_FILE}: {key} is {given!r}, and only {value!r} is computed"
                " here; say pooling= to take the encoder's own"
            )
    modalities: Any = settings.get("modality_config") or {}
    states = modalities.get("text", TEXT_STATES)
    if states != TEXT_STATES:
        raise ValueError(
            f"{folder / TRANSFORMER_FILE}: modality_config takes {states} of a text, and only"
            f" {TEXT_STATES} is computed here; say pooling= to take the encoder's own"
        )


def _warn_of_unknown(path: Path, keys: Iterable[str], known: set[str]) -> None:
    warn_of_unknown(path, tuple(sorted({*keys} - known)))


def _whole_number(path: Path, settings: PlainMapping, key: str) -> int | None:
    """A setting of a file; ValueError for one that is no whole number above 0."""
    number = settings.get(key)
    if number is not None and (type(number) is not int or number < 1):
        raise ValueError(f"{path}: {key} is {number!r}; it is a whole number above 0, or null")
    return number


def _refuse_changed_texts(folder: Path, settings: PlainMapping) -> None:
    """ValueError where the library changes each text."""
    library = _library_settings(folder)
    lower_cases = settings.get("do_lower_case")
    # A tokenizer that lower-cases anyway makes the same pieces of both texts.
    if lower_cases and read_tokenizer(folder).lowercase:
        lower_cases = False
    changes = {
        "default_prompt_name": library.get("default_prompt_name"),
        "do_lower_case": lower_cases,
    }
    for key, value in changes.items():
        if value:
            raise ValueError(
                f"{folder}: sentence-transformers changes each text before it is read ({key}"
                f" {value}), and clozelab does not; change your texts so, and set it to null"
            )


def _library_settings(folder: Path) -> LibrarySettings:
    """Those of the whole model, which the library does not read without a list of modules."""
    if not (folder / MODULES_FILE).is_file():
        return {}
    return json_or_empty(folder / LIBRARY_FILE)


def _transformer_settings(folder: Path) -> PlainDict:
    """Those of the Transformer, whose file old versions named by the encoder's family."""
    for path in (folder / TRANSFORMER_FILE, *sorted(folder.glob("sentence_*_config.json"))):
        if path.is_file():
            return json_or_empty(path)
    return {}


def _kept_columns(folder: Path, is_normalized: bool) -> int | None:
    """How many columns of a vector the library keeps; a warning where it compares by no cosine."""
    path = folder / LIBRARY_FILE
    library = _library_settings(folder)
    _warn_of_unknown(path, library, KNOWN_LIBRARY_KEYS)
    similarity = similarity_of(folder) or "cosine"
    if similarity != "cosine" and not (similarity == "dot" and is_normalized):
        log.warning(
            "%s compares vectors by %s (similarity_fn_name); search and measures here take the"
            " cosine",
            path,
            similarity,
        )
    return _whole_number(path, library, "truncate_dim")


def _pooling(path: Path) -> str:
    """The one pooling that a file names: as pooling_mode, or by a key of its own that is true."""
    config = json_or_empty(path)
    unknown = [key for key in config if not key.startswith("pooling_mode")]
    _warn_of_unknown(path, unknown, KNOWN_POOLING_KEYS)
    modes = config.pop("pooling_mode", None) or [
        OLDER_KEYS.get(key, key) for key in config if key.startswith("pooling_") and config[key]
    ]
    for pooling in SENTENCE_POOLINGS:
        if modes in (pooling, [pooling]):
            return pooling
    raise ValueError(
        f"{path}: its pooling is {modes}, and here it is one of {', '.join(SENTENCE_POOLINGS)}; say"
        " pooling= to take another"
    )


def _reads_first_token(config: EncoderConfig) -> bool:
    """Whether the first token of a text is what `cls` means."""
    return not config.is_causal and not family_for(config).cls_is_last


def activation_keys(folder: Path) -> PlainDict:
    """What config.json says of a cross-encoder's activation, for another folder of the model."""
    name = _activation(folder)
    if name is None:
        return {}
    return {ACTIVATION_KEYS[0]: {"activation_fn": name}}


def activation_of_number(folder: Path) -> str | None:
    """The class that one number of a model passes; None where its folder speaks of none."""
    name = _activation(folder)
    is_cross_encoder = _library_settings(folder).get("model_type") == "CrossEncoder"
    if name is None and is_cross_encoder:
        return SIGMOID  # what CrossEncoder takes, unless another one is named
    return name


def _activation(folder: Path) -> str | None:
    """The class that the outputs of a cross-encoder pass, where its folder names one."""
    config: Any = read_config_dict(folder)
    library_entry = config.get(ACTIVATION_KEYS[0]) or {}
    candidates = (
        _library_settings(folder).get("activation_fn"),
        library_entry.get("activation_fn"),
        config.get(ACTIVATION_KEYS[1]),
    )
    return next(filter(None, candidates), None)


def passes_sigmoid(folder: Path, task: str | None) -> bool:
    """Whether a classifier's one number passes a sigmoid, as CrossEncoder.predict has it.

    `task` as Model.task has it. ValueError for another activation, or one that gives another
    answer than the classes' softmax.
    """
    if task not in ("classification", "multi_label", "regression"):
        return False
    name = _activation(folder)
    if task == "regression":
        name = activation_of_number(folder)
    if name is None:
        return False
    _refuse_changed_texts(folder, {})
    activation = name.rpartition(".")[2]
    # A classification is answered by the softmax of its numbers, whichever of both is named.
    allowed = ("Identity", "Softmax") if task == "classification" else ("Identity", "Sigmoid")
    if activation not in allowed:
        advice = "take another model"
        if activation == "Sigmoid":
            advice = "labels that do not exclude each other need problem_type in config.json"
        raise ValueError(
            f"{folder}: its outputs pass {name} (activation_fn), and only {' or '.join(allowed)} is"
            f" computed here for its task, {task}; {advice}"
        )
    return activation == "Sigmoid" and task == "regression"


def sidecar_files(folder: Path) -> dict[str, bytes]:
    """Files of sentence-transformers beside an encoder, by their names; none in other folders.

    ValueError for a module that is not inside of the folder.
    """
    if not (folder / MODULES_FILE).is_file():
        return {}
    paths = [folder / name for name in (MODULES_FILE, TRANSFORMER_FILE, LIBRARY_FILE)]
    paths += folder.glob("sentence_*_config.json")
    for module in _modules(folder):
        # The encoder's own files may be in the folder itself.
        if not module["path"]:
            continue
        module_folder = folder / module["path"]
        if folder.resolve() not in module_folder.resolve().parents:
            raise ValueError(
                f"{folder / MODULES_FILE} names {module['path']}, which leads out of it"
            )
        paths += module_folder.rglob("*")
    files = [path for path in paths if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def longest_text(folder: Path) -> int | None:
    """Tokens after which sentence-transformers cuts a text; None where it does not say."""
    if not (folder / MODULES_FILE).is_file():
        return None
    settings = _transformer_settings(folder)
    length = _whole_number(folder / TRANSFORMER_FILE, settings, "max_seq_length")
    if length is None:
        length = json_or_empty(folder / TOKENIZER_CONFIG_FILE).get("model_max_length")
    return length


def sentence_files(
    vectors: SentenceVectors,
    config: EncoderConfig,
    max_length: int,
    similarity: str | None = None,
) -> dict[str, str]:
    """The library's files for an encoder's folder, by their names; none where it would be wrong.

    `similarity`: by what vectors are compared; None: the library's own choice, the cosine.
    """
    if vectors.pooling == "cls" and not _reads_first_token(config):
        return {}
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    if vectors.normalized:
        paths["Normalize"] = "2_Normalize"
    modules = []
    for number, (name, path) in enumerate(paths.items()):
        address = f"{PACKAGE}.{name}"
        modules.append({"idx": number, "name": str(number), "path": path, "type": address})
    modes = {key: vectors.pooling == mode for key, mode in OLDER_KEYS.items()}
    library: PlainDict = {}
    if vectors.size:
        library["truncate_dim"] = vectors.size
    if any(vectors.prompts.values()):
        library["prompts"] = dict(vectors.prompts)
    if similarity is not None:
        library["similarity_fn_name"] = similarity
    contents: PlainMapping = {
        MODULES_FILE: modules,
        "1_Pooling/config.json": {"word_embedding_dimension": config.output_size, **modes},
        LIBRARY_FILE: library,
        TRANSFORMER_FILE: {"max_seq_length": max_length, "do_lower_case": False},
    }
    return {name: json.dumps(content, indent=2) + "\n" for name, content in contents.items()}
