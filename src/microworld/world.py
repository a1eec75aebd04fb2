"""The whole world: written to disk as a corpus, every task in its official format and
`generated.json`.

Everything is a pure function of the settings, so the bytes are the same on every machine. The text
is synthetic; it tests machinery and mechanisms and says nothing about English.
"""

from __future__ import annotations

import hashlib
import json
import random
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from clozelab.corpus.generated import MANIFEST
from microworld import formats
from microworld.decisions import HIDDEN_FRACTION, WINDOW, Choices, known_entropy, unigram_entropy
from microworld.stories import tell_document

WORLD_VERSION = 2
"""Raise when the same settings give other bytes."""
CORPUS = "corpus/microworld.txt"
FACTS_VERSION = 3
"""Raise when the manifest or the baselines say something else of the same world: then they alone
are written anew.
"""


def write_world(
    output_dir: str | Path,
    world_seed: int,
    num_documents: int,
    train_examples: int,
    validation_examples: int,
    entropy_documents: int,
    shuffle_sentences: bool = False,
    shuffle_labels: bool = False,
    only_look: bool = False,
) -> Path | None:
    """Writes the world below `output_dir` and returns it; does nothing where the same world already
    lies there.

    `only_look`: writes nothing at all; None where the world does not lie there, or not whole.
    `train_examples` and `validation_examples` are per task (test files have as many as validation).
    `entropy_documents`: how many documents the known entropy is measured on. Controls:
    `shuffle_sentences` puts every sentence of the corpus in a random document; `shuffle_labels`
    permutes the training labels of every task. ValueError where a setting is impossible, or where
    the folder holds another world or files this would overwrite; then nothing is written.
    """
    settings: dict[str, Any] = {
        "world_version": WORLD_VERSION,
        "world_seed": world_seed,
        "num_documents": num_documents,
        "train_examples": train_examples,
        "validation_examples": validation_examples,
        "entropy_documents": entropy_documents,
        "shuffle_sentences": shuffle_sentences,
        "shuffle_labels": shuffle_labels,
    }
    _check_settings(settings)
    folder = Path(output_dir)
    if is_written(folder, settings):
        return folder
    if only_look:
        return None
    files = _all_files(settings)
    refuse_foreign_files(folder, files)
    write_files(folder, files, _manifest(settings, files))
    return folder


def is_written(folder: Path, settings: dict[str, Any], facts_version: int = FACTS_VERSION) -> bool:
    """Whether this very world lies complete in `folder`, with all that is known of it.

    ValueError where it is another one or was changed since.
    """
    path = folder / MANIFEST
    if not path.exists():
        return False
    manifest = json.loads(path.read_text(encoding="utf-8"))
    before = manifest.get("settings", {})
    if before != settings:
        pairs = ", ".join(
            f"{key} {before.get(key)} -> {new}"
            for key, new in settings.items()
            if before.get(key) != new
        )
        raise ValueError(
            f"{folder} holds another generated world ({pairs}): choose another data_dir or delete"
            " this one"
        )
    missing = manifest.get("facts_version") != facts_version
    for name, checksum in manifest["sha256"].items():
        if not (folder / name).exists():
            missing = True
        elif hashlib.sha256((folder / name).read_bytes()).hexdigest() != checksum:
            raise ValueError(
                f"{folder / name} was changed since this world was written: delete it to have it"
                " written again"
            )
    return not missing


def _check_settings(settings: dict[str, Any]) -> None:
    for name in ("num_documents", "train_examples", "validation_examples"):
        if settings[name] < 1:
            raise ValueError(f"microworld: {name} must be at least 1, not {settings[name]}")
    if settings["entropy_documents"] < 0:
        raise ValueError(
            "microworld: entropy_documents must not be negative, not"
            f" {settings['entropy_documents']}"
        )


def corpus_documents(world_seed: int, num_documents: int) -> Iterator[list[str]]:
    for index in range(num_documents):
        yield [sentence.text for sentence in tell_document(Choices(f"{world_seed}/corpus/{index}"))]


def _shuffled_sentences(documents: list[list[str]], world_seed: int) -> list[list[str]]:
    """The same sentences and document lengths, every sentence in a random place."""
    random_01 = random.Random(f"{world_seed}/shuffled sentences").random
    sentences = [*chain.from_iterable(documents)]
    # Fisher and Yates' shuffle, from the last sentence to the second.
    for last in range(len(sentences) - 1, 0, -1):
        index = int(random_01() * (last + 1))
        sentences[last], sentences[index] = sentences[index], sentences[last]
    start = 0
    result = []
    for document in documents:
        result.append(sentences[start : start + len(document)])
        start += len(document)
    return result


def _all_files(settings: dict[str, Any]) -> dict[str, str]:
    from microworld.baselines import baseline_files  # scipy: only who writes a world waits for it

    seed = settings["world_seed"]
    documents = list(corpus_documents(seed, settings["num_documents"]))
    if settings["shuffle_sentences"]:
        documents = _shuffled_sentences(documents, seed)
    files = {CORPUS: "\n\n".join("\n".join(document) for document in documents) + "\n"}
    sizes = {
        "train": settings["train_examples"],
        "validation": settings["validation_examples"],
        "test": settings["validation_examples"],
    }
    for write in (formats.glue_files, formats.squad_files, formats.swag_files, formats.ner_files):
        files |= write(str(seed), sizes, settings["shuffle_labels"])
    return files | baseline_files(files)


def _manifest(settings: dict[str, Any], files: dict[str, str]) -> dict[str, Any]:
    lines = [line for line in files[CORPUS].splitlines() if line]
    entropy = {"unigram_entropy": unigram_entropy(lines)}
    bounds: list[dict[str, Any]] = []
    if settings["entropy_documents"]:
        held_out = f"{settings['world_seed']}/held out"
        entropy |= known_entropy(tell_document, held_out, settings["entropy_documents"])
        # of shuffled text nothing is known
        if not settings["shuffle_sentences"]:
            bounds = known_loss(entropy)
    counts = {
        "documents": settings["num_documents"],
        "sentences": len(lines),
        "words": sum(len(line.split()) for line in lines),
    }
    return {
        "about": "Synthetic: text and tasks made by microworld. No real person, place or event.",
        "generator": "microworld",
        "settings": settings,
        "facts_version": FACTS_VERSION,
        "counts": counts,
        "entropy_nats_per_word": entropy,
        "known_loss": bounds,
        "sha256": checksums(files),
    }


def checksums(files: dict[str, str]) -> dict[str, str]:
    """File -> SHA-256 of its bytes, in the order of the names."""
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(files.items())}


def known_loss(entropy: dict[str, float]) -> list[dict[str, Any]]:
    """The bounds that a reader of `generated.json` may use, the tightest first
    (clozelab/corpus/generated.py).
    """
    window = _bound(entropy, "masked_window", f"the unmasked words of {WINDOW} on end")
    document = _bound(entropy, "masked_document", "all unmasked words of its document")
    one_word = _bound(entropy, "masked_one", "all of its document but that word")
    return [
        _bound(entropy, "left_to_right", "its document from the beginning"),
        window | {"hidden_fraction": HIDDEN_FRACTION, "max_seq_length": WINDOW + 2},
        document | {"hidden_fraction": HIDDEN_FRACTION},
        one_word | {"hidden_fraction": 0.0},
    ]


def _bound(entropy: dict[str, float], name: str, view: str) -> dict[str, Any]:
    return {
        "reader": "left_to_right" if name == "left_to_right" else "masked",
        "view": view,
        "nats_per_word": entropy[f"{name}_loss"],
        "standard_error": entropy[f"{name}_standard_error"],
    }


def refuse_foreign_files(folder: Path, files: dict[str, str]) -> None:
    if (folder / MANIFEST).exists():
        return
    existing = [name for name in files if (folder / name).exists()]
    if existing:
        raise ValueError(
            f"{folder / existing[0]} ({len(existing)} such files) exists and was not written by a"
            " generator: choose an empty data_dir, or say corpus=text for text of your own"
        )


def write_files(folder: Path, files: dict[str, str], manifest: dict[str, Any]) -> None:
    """Complete in a temporary folder, then renamed. The manifest comes first: a run that is killed
    between two renames leaves a world whose missing files the next run writes. A file that is there
    already keeps its time."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".microworld-") as temporary:
        ordered = {MANIFEST: json.dumps(manifest, indent=1) + "\n"} | files
        ordered = {name: text for name, text in ordered.items() if not _holds(folder / name, text)}
        for name, text in ordered.items():
            path = Path(temporary) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        for name in ordered:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(temporary) / name).replace(folder / name)


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()
