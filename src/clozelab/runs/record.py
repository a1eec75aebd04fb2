"""Which files a run reads, and whether they are still as they were: by size and time, without opening one.

Used only to skip a complete run, so every doubt is a reason to let the run look for itself.

The record of a run, run.json: what it says, how it is read and written, and whether it is of a configuration.
"""

from __future__ import annotations

import glob
import json
import os
import platform
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from clozelab.corpus.files import matching_files
from clozelab.runs.fingerprint import RESULTS_VERSIONS, canonical, digest, flatten, redacted
from clozelab.training.host import host_facts

MAX_WATCHED_FILES = 500
UNWATCHED = "(not all files can be watched)"
"""Stands in for the files where they are too many or not to be found: then only the run itself can say more."""


def watched_files(config: DictConfig) -> dict[str, list[int]]:
    """Size and time of every file that the configuration names: {path: [bytes, nanoseconds]}.

    A corpus' sources are what reading the corpus takes them for. Every other text may name a file, a folder or a glob,
    below data_dir or from where the command was started.
    """
    plain = canonical(config, hides=False)
    data_dir = str(config.get("data_dir") or "")
    sources = _take_sources(plain)
    found: dict[str, list[int]] = {}
    try:
        for path in (*_paths(sources, _texts(plain), data_dir), *_encoder(config)):
            status = path.stat()
            found[str(path)] = [status.st_size, status.st_mtime_ns]
            if len(found) > MAX_WATCHED_FILES:
                return {UNWATCHED: [-1, -1]}
    except (OSError, RuntimeError, ValueError):  # no such source, nobody's "~", no pattern, a file that just went
        return {UNWATCHED: [-1, -1]}
    return dict(sorted(found.items()))


def are_untouched(watched: Mapping[str, list[int]], state: Mapping[str, Any]) -> bool:
    """Whether the files are surely those that a run's record names, as they were then."""
    return UNWATCHED not in watched and state.get("watched") == watched


def _take_sources(plain: dict[str, Any]) -> list[str]:
    """The paths of the corpus' sources, out of the configuration."""
    corpus = plain.get("corpus")
    sources = corpus.pop("sources", None) if isinstance(corpus, dict) else None
    return [str(source["path"]) for source in sources or []]


def _texts(plain: dict[str, Any]) -> Iterator[str]:
    """Every other text that may name an input, also one from the environment."""
    parts = {key: value for key, value in plain.items() if key != "optimizer"}
    yield from (value for value in flatten(parts).values() if isinstance(value, str) and value)


def _encoder(config: DictConfig) -> Iterator[Path]:
    """Files of the encoder's folder, which may be called by a plain word."""
    if folder := config.get("encoder"):
        yield from _files_of(str(Path(str(folder)).expanduser()))


def _paths(sources: list[str], texts: Iterator[str], data_dir: str) -> Iterator[Path]:
    """Raises ValueError for a source of no file."""
    for source in sources:
        files, _ = matching_files(source, data_dir)
        if not files:
            raise ValueError(f"{source}: no such files")
        yield from files.values()
    for text in texts:
        for base in [""] if text.startswith("/") else ["", data_dir]:
            name = str(Path(base, os.path.expanduser(text)))  # noqa: PTH111 - pathlib's raises for nobody's "~"
            if os.path.isfile(name):  # noqa: PTH113 - pathlib's raises for a text too long for a name
                yield Path(name)
            elif "/" in text or "." in text:  # a plain word is no folder that somebody means
                yield from _files_of(name)


def _files_of(name: str) -> Iterator[Path]:
    """Files that a folder holds or a glob finds."""
    # pathlib has no glob that starts at an absolute pattern
    for place in map(Path, glob.glob(name) if glob.has_magic(name) else [name]):  # noqa: PTH207
        if place.is_file():
            yield place
        elif place.is_dir():
            yield from (child for child in place.rglob("*") if child.is_file())


RUN_FILE = "run.json"
CONFIG_FILE = "config.yaml"
LOG_FILE = "log.txt"


class JobName(NamedTuple):
    """What a run is found by: arm or row, task ("" in pre-training), seeds ("1", or pre-training/fine-tuning "1/2")."""

    name: str
    task: str
    seeds: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> JobName:
        """By a resolved configuration; KeyError for one that is no run's."""
        if "row" in config:
            return cls(str(config["row"]), str(config["task"]["name"]), f"{config['pretrain_seed']}/{config['seed']}")
        return cls(str(config["arm"]), "", str(config["seed"]))


def read_state(run_dir: Path) -> dict[str, Any] | None:
    """run.json of a folder; None where there is none.

    Raises:
        ValueError: the file is there and is not a run's.
    """
    try:
        state = json.loads((run_dir / RUN_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{run_dir / RUN_FILE} is damaged ({error}); remove the folder to run again") from error
    if not isinstance(state, dict) or not {"status", "fingerprint", "stage", "config_resolved"} <= state.keys():
        raise ValueError(f"{run_dir / RUN_FILE} is not the record of a run; give run_dir another name")
    return state


def is_settled(run_dir: str | Path, *, stage: str, config: DictConfig) -> bool:
    """Whether the folder surely holds this very run, complete: same configuration, and no input file has been touched.

    Cheap and careful: False only means that the run itself has to look.
    """
    try:
        state = read_state(Path(run_dir))
        if state is None or state["status"] != "complete" or not is_record_of(state, stage=stage, config=config):
            return False
        return are_untouched(watched_files(config), state)
    except ValueError:
        return False


def is_record_of(state: Mapping[str, Any], *, stage: str, config: DictConfig) -> bool:
    """Whether a record is of this very configuration, whatever files it read.

    Raises:
        ValueError: a mandatory value of the configuration is missing.
    """
    if state["stage"] != stage or state.get("results_version") != RESULTS_VERSIONS[stage]:
        return False
    return bool(state["config_resolved"] == json.loads(json.dumps(canonical(config))))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file in one rename, so that a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def shown_config(config: DictConfig) -> str:
    """The configuration as composed, unresolved, without literal secrets."""
    return OmegaConf.to_yaml(OmegaConf.create(redacted(OmegaConf.to_container(config, resolve=False))))


def now() -> str:
    """The time as records have it: ISO 8601, UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def fresh_state(stage: str, config: DictConfig, inputs: dict[str, str]) -> dict[str, Any]:
    """The record of a run that begins now; `inputs`: name -> fingerprint of everything it reads.

    Raises:
        ValueError: a mandatory value of the configuration is missing.
    """
    resolved, version = canonical(config), RESULTS_VERSIONS[stage]
    return {
        "status": "running",
        "stage": stage,
        "fingerprint": digest({"config": resolved, "inputs": inputs, "results_version": version}),
        "results_version": version,
        "inputs": inputs,
        "started": now(),
        "finished": None,
        "seconds": 0.0,
        "error": None,
        "facts": {},
        "process": {"pid": os.getpid(), "host": platform.node()},
        **host_facts(),
        "watched": watched_files(config),
        "config_resolved": resolved,
    }


def earlier_sessions(old: Mapping[str, Any], fresh: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a resumed run has been trained by before: each different commit, set of versions and machine, once."""
    last = {key: old[key] for key in ("git", "versions", "host") if key in old}
    found: list[dict[str, Any]] = []
    for one in (*old.get("earlier_sessions", ()), last):
        if one not in found and one != {key: fresh.get(key) for key in one}:
            found.append(one)
    return found


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What makes the fingerprints of two records differ, a line for each key."""
    lines = []
    for part, label in (("config_resolved", ""), ("inputs", "input "), ("results_version", "results_version")):
        before, after = flatten(old.get(part), label), flatten(new.get(part), label)
        for key in sorted(before.keys() | after.keys()):
            if before.get(key, "(none)") != after.get(key, "(none)"):
                lines.append(f"  {key}: there {before.get(key, '(none)')!r}, now {after.get(key, '(none)')!r}")
    return "\n".join(lines) or "  (the recorded fingerprint does not fit its own record)"
