"""Model folders: weights in the Hugging Face layout, under the names of their family.

`config.json`, `model.safetensors`, tokenizer files, and `checksums.json` (sha256 of every file: a
flipped byte loads silently otherwise). Written to a temporary folder and renamed, so a folder is
whole or absent. Read: folders of ours and of others, with or without the family's prefix, with the
old gamma/beta names, behind a wrapper's prefix such as `module.`; safetensors or pytorch_model.bin,
in one file or in shards; a folder of Google's BERT (models/tensorbundle.py). Every encoder tensor
must be there; only the pooler may be missing, and is then fresh, with a log line. Query, key and
value are one matrix here and three tensors in the file. A vocabulary projection that the file has
apart from the word embeddings stays apart.
"""

from __future__ import annotations

import json
import logging
import math
import os
import pickle
import re
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from clozelab.files.digests import file_sha256
from clozelab.models import tensorbundle
from clozelab.models.beside import other_weights, refuse_extra_model_files, warn_of_other_weights
from clozelab.models.config import EncoderConfig
from clozelab.models.config_keys import ConfigJson, Provenance, warn_of_unknown
from clozelab.models.encoder import Encoder
from clozelab.models.families.bert import CUSTOM_MODEL_TYPE_PREFIX, Family
from clozelab.models.leftovers import HARMLESS, TASK_KINDS, foreign_tensors, named_few
from clozelab.models.locate import CONFIG_FILE, config_path
from clozelab.models.registry import family_for, family_of
from clozelab.models.trained import effective_state
from clozelab.text.plain import PlainMapping, read_json

WEIGHTS_FILE = "model.safetensors"
CHECKSUMS_FILE = "checksums.json"
PICKLED_WEIGHTS_FILE = "pytorch_model.bin"
# What holds a folder's weights; the first that is there.
WEIGHTS = (
    WEIGHTS_FILE,
    f"{WEIGHTS_FILE}.index.json",
    PICKLED_WEIGHTS_FILE,
    f"{PICKLED_WEIGHTS_FILE}.index.json",
)
# Every encoder has it, so what stands before it is a wrapper's prefix.
_LANDMARK = "embeddings.word_embeddings.weight"
# What encoders are called in their classes: such a prefix is no wrapper's.
_OTHER_MODELS = frozenset(
    (
        "bert",
        "roberta",
        "albert",
        "electra",
        "distilbert",
        "deberta",
        "mpnet",
        "ernie",
        "longformer",
    ),
)
# How classes end whose heads read the pooler.
_POOLED_CLASSES = (
    "ForSequenceClassification",
    "ForMultipleChoice",
    "ForNextSentencePrediction",
    "ForPreTraining",
)
_WEIGHT_TYPES = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
# TensorFlow's names of a LayerNorm's parameters.
_MODERN_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
# Where checkpoints of training programs keep the tensors.
_NESTED = ("state_dict", "model_state_dict", "model")
_LOG = logging.getLogger(__name__)


def save_encoder_folder(
    folder: Path | str,
    encoder: Encoder,
    *,
    heads: Mapping[str, nn.Module],
    tokenizer_files: Mapping[str, str | bytes],
    extra_config: PlainMapping,
    with_pooler: bool = True,
    dtype: str = "float32",
) -> None:
    """Writes a whole folder, replacing one that is there; its files are 0644 less the umask.

    Args:
        heads: by kind (families/bert.py); another name is kept as it is.
        tokenizer_files: name -> content.
        extra_config: further keys of config.json, e.g. label names.
        with_pooler: False leaves out one not trained.
        dtype: of the weights in the file; float16 halves it. ValueError where it has not the
            numbers.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    family = family_for(encoder.config)
    # A head that no class of transformers has is not named in the architecture.
    kinds = [kind for kind, head in heads.items() if getattr(head, "is_stock", True)]
    config = {**family.to_hf_config(encoder.config, kinds), **extra_config}
    config["tie_word_embeddings"] = "lm" not in heads or bool(heads["lm"].tied_parameters)
    if family.pooler_is_apart:
        with_pooler = with_pooler and family.reads_pooler(heads)
    tensors = family.to_file(to_hf_tensors(encoder, heads, with_pooler))
    for name, value in tensors.items():
        tensors[name] = value.to(getattr(torch, dtype))
        # Nothing above 65,504 is a float16.
        if dtype == "float16" and not bool(torch.isfinite(tensors[name]).all()):
            raise ValueError(f"{folder}: {name} holds numbers that float16 has not: take bfloat16")
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write_json(temporary / CONFIG_FILE, config, sort_keys=True)
        safetensors.torch.save_file(tensors, temporary / WEIGHTS_FILE, metadata={"format": "pt"})
        for name, content in tokenizer_files.items():
            (temporary / name).parent.mkdir(exist_ok=True)
            if isinstance(content, str):
                content = content.encode()
            (temporary / name).write_bytes(content)
        # Last: the checksums are of every file above.
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        checksums = {path.relative_to(temporary).as_posix(): file_sha256(path) for path in files}
        _write_json(temporary / CHECKSUMS_FILE, checksums)
        _publish(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_json(path: Path, values: PlainMapping, sort_keys: bool = False) -> None:
    text = json.dumps(values, indent=2, sort_keys=sort_keys)
    path.write_text(text + "\n", encoding="utf-8")


def load_encoder(
    folder: Path | str,
    *,
    initialisation: str = "pretrained",
    seed: int = 0,
    stored: Mapping[str, Tensor] | None = None,
    warns_of_fresh: bool = True,
) -> Encoder:
    """Reads the encoder of a folder; ValueError names the file or tensor at fault.

    Args:
        initialisation: "random": the same shape with fresh weights.
        seed: of fresh weights, also of a missing pooler.
        stored: what read_tensors has read already.
        warns_of_fresh: warn of a missing pooler, and of tensors that no head here has; not where
            nothing is trained on the encoder.
    """
    folder = Path(folder)
    generator = torch.Generator().manual_seed(seed)
    if initialisation == "random":
        return Encoder(read_config(folder), generator)
    # All of it comes from the file: drawing it first takes seconds of BERT-Base.
    encoder = Encoder(read_config(folder), is_drawn=False)
    family = family_for(encoder.config)
    if stored is None:
        stored = read_tensors(folder)
    tensors = encoder_tensors(stored, family)
    if not tensors:
        raise ValueError(f"{folder} holds no tensors of a {family.class_name} encoder")
    for name in HARMLESS:
        tensors.pop(family.prefix + name, None)
    state = _state(encoder, {})
    fresh = {name: value for name, value in state.items() if name.startswith("encoder.pooler.")}
    poolers = family.to_hf(fresh)
    is_in_file = bool(poolers.keys() & tensors.keys())
    if poolers and not is_in_file:
        # Its draws come behind all others.
        drawn = Encoder(encoder.config, generator)
        encoder.pooler.load_state_dict(drawn.pooler.state_dict())
        poolers = family.to_hf(fresh)
        if warns_of_fresh:
            _LOG.warning("%s has no pooler: it starts from fresh weights (seed %d)", folder, seed)
        tensors |= poolers
    _fill(state, tensors, family, folder)
    encoder.has_trained_pooler = is_in_file and not has_untrained_pooler(read_config_dict(folder))
    foreign = foreign_tensors(family, stored)
    if warns_of_fresh and foreign:
        _LOG.warning("%s: no head here has the tensor %s: left out", folder, named_few(foreign))
    return encoder


def has_untrained_pooler(values: ConfigJson) -> bool:
    """Whether a config.json of ours says that no loss has read the pooler in the folder."""
    # Another library keeps what we say there, and may have trained a head on the pooler since.
    for architecture in values.get("architectures") or ():
        if str(architecture).endswith(_POOLED_CLASSES):
            return False
    provenance = values.get("clozelab", {})
    if "untrained" in provenance:
        return "pooler" in provenance["untrained"]
    # Older folders say what they were pre-trained for.
    objective = provenance.get("objective", {"pair": ""})
    is_single = all(phase.get("objective") is None for phase in provenance.get("phases", ()))
    return is_single and objective.get("pair", "") is None


def encoder_tensors(stored: Mapping[str, Tensor], family: Family) -> dict[str, Tensor]:
    """The encoder's tensors of a file, with the family's prefix."""
    # A file of an encoder alone has bare names; beside heads, the encoder's have its prefix.
    has_prefix = any(name.startswith(family.prefix) for name in stored)
    tensors = {}
    for name, value in stored.items():
        file_name = family.with_prefix(name)
        is_encoders = name == file_name
        if not has_prefix:
            is_encoders = not family.is_head(name)
        if is_encoders:
            tensors[file_name] = value
    return tensors


def load_head(
    folder: Path | str, kind: str, module: nn.Module, stored: Mapping[str, Tensor] | None = None
) -> None:
    """Fills `module` with the folder's head of this kind.

    ValueError for a missing or misshapen tensor, and for a task's head with tensors that ours has
    not.
    """
    folder = Path(folder)
    family = family_for(read_config(folder))
    if stored is None:
        stored = read_tensors(folder)
    if kind in TASK_KINDS:
        refuse_foreign(foreign_tensors(family, stored), folder)
    if kind == "lm":
        projection = _untied_projection(family, stored)
        if projection is not None:
            module.word_embedding_weight = nn.Parameter(projection.clone())
            module.tied_parameters = ()  # type: ignore[assignment]
        # The bias may stand with the projection instead of beside it.
        bias = family.head_name("lm", "bias")
        decoder_bias = f"{family.decoder}.bias"
        if decoder_bias in stored and (projection is not None or bias not in stored):
            stored = {**stored, bias: stored[decoder_bias]}
    state = _head_state(kind, module, module.state_dict())
    tensors = {name: stored[name] for name in family.to_hf(state) if name in stored}
    _fill(state, tensors, family, folder)


def refuse_foreign(names: Collection[str], folder: Path | str) -> None:
    """ValueError where a file has tensors (`names`) that may be a part of its task's head."""
    if names:
        raise ValueError(
            f"{folder}: no head here has the tensor {named_few(names)}, so answers without it would"
            " be others than the model's; its encoder can be used (do=embed, finetune, export with"
            " head=false)"
        )


def has_head(family: Family, kind: str, module: nn.Module, stored: Collection[str]) -> bool:
    """Whether a file has any tensor of this head."""
    return any(family.head_name(kind, name) in stored for name in module.state_dict())


def _untied_projection(family: Family, stored: Mapping[str, Tensor]) -> Tensor | None:
    """A file's vocabulary projection where it is not its word embeddings."""
    projection = stored.get(f"{family.decoder}.weight")
    # A file may hold the tied matrix twice, as PyTorch saves it: equal values mean tied.
    landmark = family.encoder_name(_LANDMARK)
    embeddings = stored.get(family.prefix + landmark, stored.get(landmark))
    if projection is None:
        return None
    if embeddings is not None and torch.equal(projection, embeddings):
        return None
    return projection


def refuse_untied(folder: Path | str) -> None:
    """ValueError where a folder's vocabulary projection is not its word embeddings.

    Pre-training has them share, unless the family never does.
    """
    family = family_for(read_config(folder))
    if family.ties_vocabulary and _untied_projection(family, read_tensors(folder)) is not None:
        raise ValueError(
            f"{folder}: {family.decoder}.weight is not the word embeddings: this"
            f" {family.class_name}'s vocabulary projection was trained apart (tie_word_embeddings"
            " false), and pre-training goes on with shared ones only; save the encoder alone"
            " (transformers.AutoModel.from_pretrained(FOLDER).save_pretrained(OTHER), and copy the"
            " tokenizer's files)"
        )


def read_config(folder: Path | str) -> EncoderConfig:
    """The configuration of an encoder folder.

    ValueError when the folder or its config.json is not usable.
    """
    values = read_config_dict(folder)
    model_type = str(values.get("model_type", "bert"))
    try:
        family = family_of(model_type.removeprefix(CUSTOM_MODEL_TYPE_PREFIX))
        warn_of_unknown(config_path(folder), family.unknown_keys(values))
        return family.from_hf_config(values)
    except (ValueError, TypeError) as error:  # TypeError: a number that is text
        raise ValueError(f"{config_path(folder)}: {error}") from None


def read_config_dict(folder: Path | str) -> ConfigJson:
    """Everything in config.json, label names and run fingerprint included."""
    path = config_path(folder)
    refuse_extra_model_files(path.parent)
    if not path.is_file():
        raise ValueError(
            f"{path} does not exist: an encoder is a folder with {CONFIG_FILE} and {WEIGHTS_FILE},"
            " such as a pre-training run's encoder/"
        )
    try:
        config: ConfigJson = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return config


def read_provenance(folder: Path | str) -> Provenance:
    """What a training here has left in config.json; empty for a folder from elsewhere."""
    return read_config_dict(folder).get("clozelab", {})


def read_tensors(path: Path | str) -> dict[str, Tensor]:
    """Every tensor of a folder, or of one file of weights, under today's names, on the CPU.

    Checksums are verified where they are kept. ValueError names the file that is damaged, or
    missing.
    """
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    # Damage is found before a tensor is read.
    verify_checksums(folder)
    file = path if path.is_file() else _weights_file(folder)
    if file.suffix == ".index":
        return tensorbundle.read_bert(file)
    if file.name == WEIGHTS_FILE:
        warn_of_other_weights(file, folder / PICKLED_WEIGHTS_FILE)
    # An index lists its shards; any other file is the only one.
    shards = _shards(file) if file.suffix == ".json" else [file]
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        for name, value in _read_file(shard).items():
            modern = re.sub(r"LayerNorm\.(gamma|beta)$", lambda old: _MODERN_NAMES[old[0]], name)
            tensors[modern] = value
    config = read_config(folder)
    family = family_for(config)
    return family.from_file(_without_wrapper(tensors, family, file), config)


def _weights_file(folder: Path) -> Path:
    """The file that holds a folder's weights, or lists those that do."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    bundles = sorted(folder.glob("*.index"))  # Google's
    if not bundles:
        raise ValueError(
            f"{folder} holds no weights: expected {', '.join(WEIGHTS)}, or a TensorFlow"
            f" checkpoint's .index{other_weights(folder)}"
        )
    if len(bundles) > 1:
        raise ValueError(
            f"{folder} holds {len(bundles)} checkpoints; name one of {', '.join(map(str, bundles))}"
        )
    return bundles[0]


def _without_wrapper(tensors: dict[str, Tensor], family: Family, file: Path) -> dict[str, Tensor]:
    """The tensors without what a wrapper put before their names.

    That is DataParallel's `module.`, torch.compile's `_orig_mod.`, a class of somebody's own.
    ValueError where the file holds several models.
    """
    # What stands before the landmark and the family's own prefix is the wrapper's.
    landmark = family.encoder_name(_LANDMARK)
    prefixes = set()
    for name in tensors:
        if not name.endswith(landmark):
            continue
        before = name.removesuffix(landmark)
        own_prefix = family.prefix if before.endswith(family.prefix) else family.class_prefix
        prefixes.add(before.removesuffix(own_prefix))
    if len(prefixes) > 1:
        first_two = " and ".join(repr(prefix) for prefix in sorted(prefixes)[:2])
        raise ValueError(
            f"{file} holds {len(prefixes)} models, their names begin with {first_two}; save the one"
            " you want"
        )
    prefix = next(iter(prefixes), "")
    if not prefix:
        return tensors
    if prefix.endswith(family.prefix):
        raise ValueError(
            f"{file}: names begin with {prefix}{family.prefix}, so one {family.class_name} model"
            f" was saved inside another's name; save it without the second {family.prefix}"
        )
    last = prefix.rstrip(".").rpartition(".")[2]
    if last in _OTHER_MODELS:
        raise ValueError(
            f"{file}: names begin with {last}. and {CONFIG_FILE} describes a {family.class_name}"
            f" model ({family.prefix}): they do not belong together"
        )
    if any(".lora_" in name for name in tensors):
        raise ValueError(
            f"{file}: names begin with {prefix} and some hold lora_, so an adapter was not merged:"
            " save model.merge_and_unload()"
        )
    unwrapped = {name.removeprefix(prefix): value for name, value in tensors.items()}
    if len(unwrapped) < len(tensors):
        raise ValueError(
            f"{file}: names begin with {prefix} and stand there without it, too; save one model"
            " alone"
        )
    _LOG.info("%s: names begin with %s, which is left out", file, prefix)
    return unwrapped


def _shards(index: Path) -> list[Path]:
    """The files that an index lists, all of them in its own folder."""
    try:
        # Only the names count: an index must not lead out of its folder.
        names = sorted(set(read_json(index)["weight_map"].values()))
        paths = [index.parent / Path(name).name for name in names]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{index} is damaged: it lists no files (weight_map)") from None
    if not paths:
        raise ValueError(
            f"{index} lists no files: its weight_map is empty; copy the whole folder again"
        )
    for path in paths:
        if not path.is_file():
            raise ValueError(
                f"{path} is missing: {index.name} lists it; copy the whole folder again"
            )
    return paths


def _read_file(path: Path) -> dict[str, Tensor]:
    """One file of weights. A pickle is read without running what it holds."""
    _refuse_forbidden(path)
    try:
        if path.suffix in (".bin", ".pt", ".pth"):
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        else:
            tensors = safetensors.torch.load_file(path)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{path} cannot be read: it is damaged, or holds more than tensors, which may run code"
            " (nothing of it has run); take a model.safetensors of this model"
        ) from None
    except Exception as error:  # each format fails in its own way: cut short, bad header
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{path} cannot be read, it is damaged or not a weights file: {reason}"
        ) from error
    if isinstance(tensors, dict):
        for key in _NESTED:
            if isinstance(tensors.get(key), dict):
                tensors = tensors[key]
                break
    if not isinstance(tensors, dict) or not all(
        isinstance(value, Tensor) for value in tensors.values()
    ):
        raise ValueError(
            f"{path} is not a weights file: it holds something else than tensors by their names"
        )
    return tensors


def _refuse_forbidden(path: Path) -> None:
    """ValueError for a file that one may not read, which a library calls missing or damaged."""
    try:
        path.open("rb").close()
    except PermissionError:
        raise ValueError(
            f"{path} cannot be read: you have no permission for it; chmod u+r gives it"
        ) from None


def verify_checksums(folder: Path | str, *, needs_weights: bool = True) -> None:
    """ValueError naming the first file that differs from checksums.json.

    There is nothing to do where that is absent. Weights that nobody needs may be missing.
    """
    folder = Path(folder)
    if not (folder / CHECKSUMS_FILE).is_file():
        return
    try:
        checksums = dict(read_json(folder / CHECKSUMS_FILE))
    except (ValueError, TypeError):
        raise ValueError(
            f"{folder / CHECKSUMS_FILE} is damaged: copy the whole folder again"
        ) from None
    for name, expected in checksums.items():
        path = folder / name
        if name == WEIGHTS_FILE and not path.is_file() and not needs_weights:
            continue
        if not path.is_file():
            raise ValueError(
                f"{path} is missing: {CHECKSUMS_FILE} lists it; copy the whole folder again"
            )
        if file_sha256(path) != expected:
            raise ValueError(
                f"{path} is damaged: its sha256 is not the one in {CHECKSUMS_FILE}; copy it again"
            )


def to_hf_tensors(
    encoder: Encoder, heads: Mapping[str, nn.Module], with_pooler: bool = True
) -> dict[str, Tensor]:
    """All tensors under their family's names, contiguous, on the CPU."""
    state = _state(encoder, heads)
    if not with_pooler:
        state = {name: x for name, x in state.items() if not name.startswith("encoder.pooler.")}
    family = family_for(encoder.config)
    tensors = family.to_hf(state)
    # A vocabulary projection apart from the word embeddings has the bias beside it, too.
    if f"{family.decoder}.weight" in tensors and "lm.bias" in state:
        tensors[f"{family.decoder}.bias"] = state["lm.bias"]
    return {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}


def _state(encoder: Encoder, heads: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """The tensors of a whole model: `encoder.NAME`, and `KIND.NAME` of each head."""
    state = {f"encoder.{name}": value for name, value in effective_state(encoder).items()}
    # A sum is written as what it is, so that a folder needs no other one.
    state["encoder.embeddings.word_embeddings.weight"] = encoder.embeddings.word_embeddings.table()
    for kind, head in heads.items():
        state |= _head_state(kind, head, effective_state(head))
    return state


def _head_state(kind: str, head: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of a head's tensors its own ones, as `KIND.NAME`."""
    tied = getattr(head, "tied_parameters", ())
    return {f"{kind}.{name}": value for name, value in state.items() if name not in tied}


@torch.no_grad()
def _fill(
    state: Mapping[str, Tensor], stored: Mapping[str, Tensor], family: Family, folder: Path
) -> None:
    """Copies a file's tensors into a module's own.

    ValueError where they are not the same ones.
    """
    expected = family.to_hf(state)
    model = family.class_name
    missing = [name for name in expected if name not in stored]
    if missing:
        problem = f"of this {model} model is missing"
        if not family.ties_vocabulary and missing == [f"{family.decoder}.weight"]:
            problem += "; tied to the word embeddings (tie_word_embeddings) it cannot be read here"
        raise ValueError(f"{folder}: tensor {_few_of(missing, family)} {problem}")
    unexpected = [name for name in stored if name not in expected]
    if unexpected:
        problem = f"is not part of the {model} model that {CONFIG_FILE} describes"
        raise ValueError(f"{folder}: tensor {_few_of(unexpected, family)} {problem}")
    tensors = {}
    for name, value in expected.items():
        bare_name = name.removeprefix(family.prefix)
        shape = stored[name].shape
        if shape != value.shape:
            raise ValueError(
                f"{folder}: tensor {bare_name} has shape {list(shape)}, the configuration says"
                f" {list(value.shape)}"
            )
        _refuse_other_numbers(bare_name, stored[name], folder)
        tensors[name] = stored[name].to(value.dtype)
        _refuse_not_finite(bare_name, tensors[name], folder)
    for name, value in family.from_hf(tensors, state).items():
        state[name].copy_(value)


def _few_of(names: Sequence[str], family: Family) -> str:
    """Some of these tensors, as a sentence names them."""
    return named_few([name.removeprefix(family.prefix) for name in names])


def _refuse_other_numbers(name: str, tensor: Tensor, folder: Path) -> None:
    """ValueError for quantised weights.

    Without their scales, which stand elsewhere, they mean nothing.
    """
    if tensor.dtype not in _WEIGHT_TYPES:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise ValueError(
            f"{folder}: tensor {name} holds {kind}, as quantised weights do; save the model in"
            " float32, float16 or bfloat16"
        )


def _refuse_not_finite(name: str, tensor: Tensor, folder: Path) -> None:
    """ValueError for a NaN or an infinity.

    A finite sum, which is cheap, proves that there is none.
    """
    if math.isfinite(float(tensor.sum())) or bool(torch.isfinite(tensor).all()):
        return
    raise ValueError(
        f"{folder}: tensor {name} holds numbers that are not finite (NaN or infinite): its training"
        " diverged, or the file is damaged"
    )


def _publish(temporary: Path, folder: Path) -> None:
    """Renames a finished folder into place.

    One that was there is moved aside first and removed last.
    """
    # On the disk before the rename: a power cut leaves the old folder or the new one.
    for path in filter(Path.is_file, temporary.rglob("*")):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    # The umask can only be read by setting it.
    mask = os.umask(0)
    os.umask(mask)
    for path in temporary.rglob("*"):
        mode = 0o755 if path.is_dir() else 0o644
        path.chmod(mode & ~mask)
    temporary.chmod(0o755 & ~mask)
    # A folder cannot be renamed onto one that holds files.
    old = temporary.with_name(temporary.name + ".old")
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
