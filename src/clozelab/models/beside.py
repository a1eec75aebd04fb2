"""Files beside a model's weights: those that would change its answers are refused, or named.

Others are of no account: generation_config.json, preprocessor_config.json, what an optimizer kept,
and the weights of other programs (TensorFlow, Flax, ONNX) beside ours, which nobody compares.
"""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

_LOG = logging.getLogger(__name__)
_ADAPTER = (
    "an adapter lies in the folder, and adapters are not read: merge it"
    " (PeftModel.from_pretrained(MODEL, FOLDER).merge_and_unload().save_pretrained(OTHER) of peft),"
    " or move its files away to take the model without it"
)
_QUANTISED = (
    "the model is quantised, and its weights mean nothing without the rules of that: take it in"
    " float32, float16 or bfloat16"
)
# File -> why a folder with it is refused.
_REFUSED_FILES = {
    "adapter_config.json": _ADAPTER,
    "adapter_model.safetensors": _ADAPTER,
    "adapter_model.bin": _ADAPTER,
    # Of GPTQ and AWQ.
    "quantize_config.json": _QUANTISED,
    "quant_config.json": _QUANTISED,
    "quantization_config.json": _QUANTISED,
}
_OTHER_WEIGHTS = ("*.h5", "*.msgpack", "*.onnx", "onnx/*.onnx", "*.gguf", "*.ot", "*.tflite")
# A tensor as small is compared: biases, norms and most heads of tasks.
_COMPARED_NUMBERS = 100_000


def refuse_extra_model_files(folder: Path) -> None:
    """ValueError for a file that makes another model of the folder's weights."""
    for name, reason in _REFUSED_FILES.items():
        if (folder / name).is_file():
            raise ValueError(f"{folder / name}: {reason}")


def other_weights(folder: Path) -> str:
    """What a sentence says of weights that only other programs read; empty where there are none."""
    names = []
    for pattern in _OTHER_WEIGHTS:
        names += [path.relative_to(folder).as_posix() for path in sorted(folder.glob(pattern))]
    if not names:
        return ""
    return (
        f" ({', '.join(names)} cannot be read here: load it with its own library, and save"
        " model.safetensors)"
    )


def warn_of_other_weights(file: Path, pickled: Path) -> None:
    """A warning where a pickle beside `file` (safetensors) holds other weights.

    Both are mapped, and of large tensors the shapes alone are compared: neither is read whole.
    """
    # An older pickle could only be read whole.
    if not pickled.is_file() or not zipfile.is_zipfile(pickled):
        return
    try:
        tensors = torch.load(pickled, map_location="cpu", weights_only=True, mmap=True)
        name = _first_difference(file, tensors)
    except (OSError, RuntimeError, ValueError, SafetensorError, AttributeError):
        # It is not used, and whatever is wrong with `file` is said where that is read.
        return
    if name is not None:
        _LOG.warning(
            "%s is read; %s beside it holds other weights (%s): remove the one that is not meant",
            file,
            pickled.name,
            name,
        )


def _first_difference(file: Path, tensors: dict[str, Tensor]) -> str | None:
    """The name of a tensor that two files hold alike by name and not by shape or value."""
    with safe_open(file, framework="pt") as stored:
        names = [name for name in stored.keys() if name in tensors]  # noqa: SIM118
        if not names:
            return "no name is the same"
        for name in names:
            if _differs(stored, name, tensors[name]):
                return name
    return None


def _differs(stored: Any, name: str, pickled: Tensor) -> bool:
    """Whether a tensor of an open file of safetensors has another shape or value."""
    if stored.get_slice(name).get_shape() != list(pickled.shape):
        return True
    if pickled.numel() > _COMPARED_NUMBERS:
        return False
    # One of them may be rounded.
    return not torch.allclose(stored.get_tensor(name).float(), pickled.float(), 1e-2, 1e-3)
