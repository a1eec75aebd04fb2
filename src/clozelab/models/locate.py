"""Where a model's folder is, by what somebody calls it.

No torch is imported here: a wrong name is told before that takes seconds.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from zipfile import ZipFile, is_zipfile

from clozelab.files.public import HUB_NAME, encoder_folder
from clozelab.text.plain import PlainMapping

log = logging.getLogger(__name__)
CONFIG_FILE = "config.json"
ADAPTER = "adapter_config.json"
MODULES_FILE = "modules.json"  # of sentence-transformers
GOOGLE_CONFIG_FILE = "bert_config.json"
# PyTorch's two formats, in one file or several, and TensorFlow's.
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin", "*.data-*-of-*")


def find_model(name: str, *, from_hub: bool = False) -> Path:
    """The folder, or file, of a model: in Hugging Face's layout or Google's, or of a run.

    Of a run's folder it is `model` or `encoder`. A public name (files/public.py) stands for the
    folder of its package. `from_hub`: where there is no such folder,
    NAME@COMMIT is fetched from the Hugging Face hub, or its local copy.
    """
    path = Path(encoder_folder(name)).expanduser()
    if path.is_file():
        return path
    for folder in (path, path / "model", path / "encoder"):
        if config_path(folder).is_file():
            return folder
    if from_hub and not path.is_dir():
        return _fetch_from_hub(name)
    advice = ""
    if is_adapter(path):
        advice = (
            "; it holds an adapter alone: clozelab export FOLDER base=ENCODER to=MERGED merges it,"
            " and adaptation=lora adaptation.adapter=FOLDER trains it further"
        )
    elif (path / MODULES_FILE).is_file():
        advice = "; modules.json there names no encoder in the folder itself, which alone is read"
    elif not path.is_dir():
        advice = "; a name on the Hugging Face hub needs hub=true and NAME@COMMIT"
    raise ValueError(
        f"{name}: no model here, expected {CONFIG_FILE} in it, or in its model/ (a"
        f" fine-tuning run) or encoder/ (a pre-training run){advice}"
    )


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter of peft's, and no model."""
    return (folder / ADAPTER).is_file() and not config_path(folder).is_file()


def _fetch_from_hub(name: str) -> Path:
    """The local copy of NAME@COMMIT, fetched where there is none.

    ValueError where it is not to be had.
    """
    named = HUB_NAME.fullmatch(name)
    if named is None:
        raise ValueError(
            f"{name}: say which commit, {name.partition('@')[0]}@COMMIT (40 hex digits), since a"
            " branch may move"
        )
    repository, revision = named.groups()
    import huggingface_hub

    try:
        download = partial(huggingface_hub.snapshot_download, repository, revision=revision)
        # A sentencepiece model is not read, but told of where it is a folder's only tokenizer.
        files = ["*.json", "*.txt", "*.model"]
        folder = Path(download(allow_patterns=[*files, "*.safetensors"]))
        if not any(folder.glob("*.safetensors")):
            folder = Path(download(allow_patterns=[*files, "pytorch_model*.bin"]))
    except Exception as problem:  # a foreign library's, of many kinds: no network, no such name
        first = str(problem).partition("\n")[0]
        raise ValueError(
            f"{name} is not to be had from the hub: {type(problem).__name__}: {first}"
        ) from problem
    # The library keeps the hub's list of files, and refuses a copy that lacks some of it. Without
    # network or with HF_HUB_OFFLINE there may be no list, and a part that another program fetched.
    has_list = (folder.parents[1] / "trees" / f"{revision}.json").is_file()
    if not has_list and not (folder / MODULES_FILE).is_file():
        log.warning(
            "%s is read from the local copy alone, since the hub was not reached. It has no %s: if"
            " the hub has one, it makes other vectors of texts; fetch the model once with a network"
            " and without HF_HUB_OFFLINE",
            name,
            MODULES_FILE,
        )
    return folder


def config_path(folder: Path | str) -> Path:
    """Where a folder's configuration is: config.json, or Google's bert_config.json."""
    path = Path(folder) / CONFIG_FILE
    google = Path(folder) / GOOGLE_CONFIG_FILE
    if google.is_file() and not path.is_file():
        return google
    return path


# in the names of a file's tensors: heads that predict words; the last ones are DistilBERT's,
# XLNet's and UltraBERT's
WORD_HEAD_PARTS = (
    "predictions.",
    "lm_head",
    "decoder",
    "vocab_projector",
    "lm_loss",
    "head.linear1.",
)
# ELECTRA's and DeBERTa-v3's heads that tell replaced tokens
DISCRIMINATOR_PARTS = ("discriminator_predictions", "mask_predictions")


def _tensor_names(folder: Path) -> Iterable[str] | None:
    """The names of a folder's weights, without loading them; None where they cannot be told.

    Those of pytorch_model.bin come with the other words of its pickle, which is not run.
    """
    file = folder / "model.safetensors"
    if file.is_file():
        with file.open("rb") as content:
            size = int.from_bytes(content.read(8), "little")
            return json.loads(content.read(size))
    pickled = folder / "pytorch_model.bin"
    if not is_zipfile(pickled):
        return None
    with ZipFile(pickled) as archive:
        tables = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        text = b"".join(map(archive.read, tables)).decode("latin-1")
    return re.findall(r"[\w.]+", text)


def may_have_head(folder: Path) -> bool:
    """Whether an encoder's file has, or may have, a head that predicts words."""
    names = _tensor_names(folder)
    if names is None:
        return True
    for name in names:
        is_of_words = any(part in name for part in WORD_HEAD_PARTS)
        if is_of_words and not any(part in name for part in DISCRIMINATOR_PARTS):
            return True
    return False


def count_weights(folder: Path, config: PlainMapping) -> float:
    """About how many weights a model's folder with this config.json has, by its files' sizes.

    Words that its vocabulary was lengthened by do not count: for a budget the model is that before.
    """
    provenance = config.get("clozelab")
    if isinstance(provenance, dict) and "base_weights" in provenance:
        return float(provenance["base_weights"])
    stored_as = str(config.get("dtype", config.get("torch_dtype")))
    weight_bytes = 2 if stored_as.endswith("float16") else 4
    # A folder may hold the same weights in several formats.
    sizes = [0]
    for pattern in WEIGHT_FILES:
        sizes.append(sum(file.stat().st_size for file in folder.glob(pattern)))
    return max(sizes) / weight_bytes
