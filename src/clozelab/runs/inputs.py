"""What a run reads: the encoder that it starts from, and every file that its configuration names.

An encoder is known by its checksums. Files are only watched: by their sizes and times one sees
quickly whether a complete run's inputs are surely untouched.
"""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from clozelab.config import MISSING_VALUE, Composed
from clozelab.corpus.paths import matching_files, path_list
from clozelab.files.digests import digest, file_sha256
from clozelab.files.public import HUB_NAME, public_name
from clozelab.runs.identity import counting_leaves
from clozelab.text.plain import ReadOnlyJson, flatten, read_json

MOST_NAMED = 4
MAX_WATCHED_FILES = 500
UNWATCHED = "(not all files can be watched)"
"""Stands for files too many, not to be found or just changed: only the run can say more."""
# a.path, corpus.steps.1.decontaminate.files.0, task.data.extra_validation_files.mine
FOLDER_KEYS = re.compile(
    r"corpus\.steps\..+|.*(\.(path|folder|files|adapter)|_file|_files\.\w+|_extra)(\.\d+)?"
)
"""Keys whose plain word may be a folder; a step of one's own may call them as it likes."""
GIVEN_MODELS = re.compile(r"encoder|models(\.\d+)?|(phases\.\d+\.)?objective\..+")
"""Keys that name folders of weights, which a record knows by their checksums.

An objective may call its teacher as it likes.
"""


def require_encoder(folder: str | Path | None, key: str = "encoder") -> Path:
    """Return `folder`; ValueError where it holds no encoder, with the key that it is given by."""
    if folder is not None:
        for name in ("config.json", "bert_config.json"):
            if (Path(folder) / name).is_file():
                return Path(folder)
        for name in ("encoder", "model"):
            inner = Path(folder) / name
            if (inner / "config.json").is_file():
                raise ValueError(f"{folder} is a run's folder: say {key}={inner}")
        if HUB_NAME.fullmatch(str(folder)):
            raise ValueError(
                f"{folder} is no folder here; clozelab export {folder} hub=true to=FOLDER makes one"
                f" of the hub's model, then say {key}=FOLDER"
            )
    raise ValueError(
        f"{folder or f'{key} is not set'}: no encoder here (config.json is missing);"
        f" pre-train it first, or give {key}=FOLDER in the Hugging Face"
        f" layout{_encoders_near(Path(folder or ''))}"
    )


def _encoders_near(folder: Path) -> str:
    """Name the encoders of the same runs_dir, at any scale; "" where there are none.

    Runs lie in RUNS_DIR/EXPERIMENT/SCALE/pretrain/ARM/seed-N.
    """
    for parent in folder.parents:
        if parent.name == "pretrain" and len(parent.parents) > 2:
            runs_dir = parent.parents[2]
            break
    else:
        return ""
    configs = sorted(runs_dir.glob("*/*/*/*/*/encoder/config.json"))
    encoders = [str(config.parent) for config in configs]
    if not encoders:
        return ""
    text = f"; there are {', '.join(encoders[:MOST_NAMED])}"
    if len(encoders) > MOST_NAMED:
        text += f" and {len(encoders) - MOST_NAMED} more"
    return text


def encoder_fingerprint(folder: str | Path) -> str:
    """Return what an encoder folder holds, as a hash.

    It is of the folder's list of checksums, or of the files of a folder from elsewhere.
    """
    folder = require_encoder(folder)
    checksums = folder / "checksums.json"
    if checksums.is_file():
        paths = [checksums]
    else:
        paths = []
        for place in (folder, *_module_folders(folder)):
            paths += [path for path in place.glob("*") if path.is_file()]
    return digest({path.relative_to(folder).as_posix(): file_sha256(path) for path in paths})


def _module_folders(folder: Path) -> list[Path]:
    """Those of sentence-transformers below an encoder's, such as 1_Pooling; not all are there."""
    modules = folder / "modules.json"
    if not modules.is_file():
        return []
    try:
        return [folder / str(module["path"]).lstrip("/") for module in read_json(modules)]
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{modules} is damaged: it lists no modules with a path each") from None


def watched_files(config: Composed, *, since_composed: bool = False) -> dict[str, tuple[int, ...]]:
    """Return every file that the configuration names -> what tells whether it was touched.

    That is its size, its inode, and the times (ns) of its content and of any change; the last one
    cannot be set. With `since_composed` it is UNWATCHED where a file changed since then: a run may
    have read what it was before. A corpus that is generated meanwhile does not change again.
    """
    latest = math.inf
    if since_composed and not config.get("corpus.generator"):
        latest = config.composed_ns
    watched = {}
    try:
        for path in _named_files(config):
            if public_name(path) is not None:  # it is compared with what was published
                continue
            status = path.stat()
            watched[str(path)] = (
                status.st_size,
                status.st_ino,
                status.st_mtime_ns,
                status.st_ctime_ns,
            )
            if status.st_ctime_ns > latest or len(watched) > MAX_WATCHED_FILES:
                return {UNWATCHED: (-1,)}
    except (OSError, RuntimeError, ValueError):
        # no such source, nobody's "~", no pattern, a file that just went
        return {UNWATCHED: (-1,)}
    return dict(sorted(watched.items()))


def are_untouched(config: Composed, before: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the configuration's files are surely those of a run's record, as they were then."""
    watched = watched_files(config)
    return UNWATCHED not in watched and before == watched


def _named_files(config: Composed) -> Iterator[Path]:
    """Yield the files that the configuration names, perhaps twice.

    Each text of it may name a file, a folder or a glob, below data_dir or where the command began.
    """
    leaves = counting_leaves(config.values)
    if MISSING_VALUE in leaves.values():
        raise ValueError("a value is missing")
    data_dir = str(config.get("data_dir") or "")

    # a corpus has its own rule for what its sources name
    corpus = config.get("corpus") or {}
    for source in corpus.get("sources") or ():
        yield from _files_of_source(source, data_dir)

    # An encoder's folder may be called by a plain word, as may a teacher's and those of `models`.
    for key, value in flatten(dict(config.values)).items():
        if isinstance(value, str) and value and GIVEN_MODELS.fullmatch(key):
            folder = Path(str(value)).expanduser()
            yield from _files_at(str(folder))
            # More pre-training goes on with it as well.
            yield from _files_at(str(folder.resolve().with_name("generator")))

    # any other text
    for key, value in leaves.items():
        is_looked_at = key.startswith(("corpus.sources.", "optimizer."))
        if isinstance(value, str) and value and not is_looked_at:
            yield from _files_named_by(key, value, data_dir)


def _files_of_source(source: ReadOnlyJson, data_dir: str) -> Iterator[Path]:
    """Yield the files of a corpus's source; a data set's commit is in the configuration itself.

    ValueError where there are none, or where a URL names them: those cannot be watched.
    """
    if source.get("dataset"):
        return
    for path in path_list(source["path"]):
        files, _ = matching_files(path, data_dir)
        if not files:
            raise ValueError(f"{path}: no such files")
        yield from files.values()


def _files_named_by(key: str, text: str, data_dir: str) -> Iterator[Path]:
    """Yield the files that one text of the configuration names, if any."""
    # elsewhere a plain word is no folder
    may_be_folder = "/" in text or "." in text or FOLDER_KEYS.fullmatch(key) is not None
    for base in ("",) if text.startswith("/") else ("", data_dir):
        # pathlib's raises for nobody's "~"
        name = str(Path(base, os.path.expanduser(text)))  # noqa: PTH111
        # pathlib's raises for a text too long for a name
        if os.path.isfile(name):  # noqa: PTH113
            yield Path(name)
        elif may_be_folder:
            yield from _files_at(name)


def _files_at(name: str) -> Iterator[Path]:
    """Yield the file, the files of the folder, or those of all that a glob fits."""
    # pathlib has no glob that starts at an absolute pattern
    names = glob.glob(name) if glob.has_magic(name) else [name]  # noqa: PTH207
    for path in map(Path, names):
        candidates = [path]
        if path.is_dir():
            candidates += path.rglob("*")
        yield from filter(Path.is_file, candidates)
