"""What sentence-transformers keeps beside an encoder: how a text's vector is made of its states.

modules.json lists what states pass: Transformer, Pooling, perhaps Normalize. Versions 2 to 6 of the
library spell the pooling and the longest text each in one of two ways, and both are read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from clozelab.corpus.tokenizer_files import CONFIG_FILE as TOKENIZER_CONFIG_FILE
from clozelab.corpus.tokenizer_files import json_or_empty
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import SENTENCE_POOLINGS
from clozelab.models.registry import family_for
from clozelab.text.plain import ReadOnlyJson

MODULES_FILE = "modules.json"
TRANSFORMER_FILE = "sentence_bert_config.json"
LIBRARY_FILE = "config_sentence_transformers.json"
PACKAGE = "sentence_transformers.models"  # all versions know these addresses
# Keys of older versions, one of which is true.
OLDER_KEYS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


@dataclass(frozen=True)
class SentenceVectors:
    """How a text's vector is made: one of SENTENCE_POOLINGS, and whether its length is made 1."""

    pooling: str = "mean"
    normalized: bool = False


def read_sentence_vectors(folder: Path) -> SentenceVectors | None:
    """How sentence-transformers makes vectors of this folder; None for one that is not its own.

    ValueError for what is not computed here: a further module, another pooling, a prompt.
    """
    if not (folder / MODULES_FILE).is_file():
        return None
    # Module -> its folder, such as Pooling -> 1_Pooling.
    paths = {}
    for module in json.loads((folder / MODULES_FILE).read_bytes()):
        paths[module["type"].rpartition(".")[2]] = module["path"]
    for name in paths:
        if name not in ("Transformer", "Pooling", "Normalize"):
            raise ValueError(
                f"{folder / MODULES_FILE}: its vectors pass a {name} module, which is not computed"
                " here; say pooling= to take the encoder's own"
            )
    prompt = json_or_empty(folder / LIBRARY_FILE).get("default_prompt_name")
    lowers = json_or_empty(folder / TRANSFORMER_FILE).get("do_lower_case")
    for key, value in (("default_prompt_name", prompt), ("do_lower_case", lowers)):
        if value:
            raise ValueError(
                f"{folder}: sentence-transformers changes each text before it is read ({key}"
                f" {value}), and clozelab does not; change your texts so, and set it to null"
            )
    pooling = _pooling(folder / paths["Pooling"] / "config.json")
    return SentenceVectors(pooling, "Normalize" in paths)


def _pooling(path: Path) -> str:
    """The one pooling that a file names: as pooling_mode, or by a key of its own that is true."""
    config = json_or_empty(path)
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


def files_beside(folder: Path) -> dict[str, bytes]:
    """Files of sentence-transformers beside an encoder, by their names; none in other folders.

    ValueError for a module that is not inside of the folder.
    """
    if not (folder / MODULES_FILE).is_file():
        return {}
    paths = [folder / name for name in (MODULES_FILE, TRANSFORMER_FILE, LIBRARY_FILE)]
    for module in json.loads((folder / MODULES_FILE).read_bytes()):
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
    length = json_or_empty(folder / TRANSFORMER_FILE).get("max_seq_length")
    return length or json_or_empty(folder / TOKENIZER_CONFIG_FILE).get("model_max_length")


def sentence_files(
    pooling: str, config: EncoderConfig, max_length: int, normalized: bool = False
) -> dict[str, str]:
    """The library's files for an encoder's folder, by their names; none where it would be wrong."""
    # The library reads the first token: that of a causal encoder sees only itself.
    if pooling == "cls" and (config.is_causal or family_for(config).cls_is_last):
        return {}
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    if normalized:
        paths["Normalize"] = "2_Normalize"
    modules = []
    for number, (name, path) in enumerate(paths.items()):
        address = f"{PACKAGE}.{name}"
        modules.append({"idx": number, "name": str(number), "path": path, "type": address})
    modes = {key: pooling == mode for key, mode in OLDER_KEYS.items()}
    contents: ReadOnlyJson = {
        MODULES_FILE: modules,
        "1_Pooling/config.json": {"word_embedding_dimension": config.output_size, **modes},
        LIBRARY_FILE: {},
        TRANSFORMER_FILE: {"max_seq_length": max_length, "do_lower_case": False},
    }
    return {name: json.dumps(content, indent=2) + "\n" for name, content in contents.items()}
