"""What a run is made of, as a hash: the resolved configuration without what cannot change a result,
and its inputs.

Values from the environment (`${oc.env:NAME}`) and literals that look like keys and passwords are
hashed or hidden in run.json, config.yaml and what a tracker is told. Patterns cannot know every
secret: keep secrets in the environment.
"""

from __future__ import annotations

import ast
import glob
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from omegaconf.resolvers import oc

from clozelab.corpus.files import digest, file_sha256, matching_files
from clozelab.schema import IDENTITY, LAYOUT, NEUTRAL, meaning_of, meanings

HIDDEN = "***"  # also inside an interpolation a value that can be read back
SECRET_KEY = re.compile(  # last part of a dotted key whose value is a secret, if it is a text
    r"(?i)(^|[_-])((api|access|private|secret)_?key|secret|passw(or)?d|passphrase|credentials?|token|bearer)$"
)
# so may a folder be called: not in a path
NAMED_KEY = re.compile(r"(?<![\w/])(sk|pk|rk)[-_][A-Za-z0-9_-]{16,}")
SECRET_VALUES = (
    re.compile(r"\bhf_[A-Za-z0-9]{20,}"),
    re.compile(r"\b(gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,})"),
    re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{35}"),
    re.compile(r"\bxox[a-z]-[A-Za-z0-9-]{10,}"),
    re.compile(r"\bwandb_v\d+_\w{16,}"),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    # user:password@host, also where pathlib took a slash
    re.compile(r"((?<=://)|(?<=\w:/))[^/\s@${}]+(?=@)"),
    re.compile(
        r"(?i)((?<=[_i]key=)|(?<=[_.]token=)|(?<=secret=)|(?<=password=)|(?<=credentials=))[^\s'\",;\]}]*[^\s'\",;\]}:]"
    ),
)
RANDOM_WORD = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])[A-Za-z0-9]{32,}(?![A-Za-z0-9])")
"""As W&B's keys are; also a checksum, so not below a key that says so, nor in a path."""
CHECKSUM_KEY = re.compile(
    r"(?i)(revision|commit|sha\d*(sum)?|md5?|etag|version|checksum|digest|fingerprint|hash)s?$"
)


def redacted(value: Any, key: str = "") -> Any:
    """Plain values with HIDDEN for what looks like a secret below a dotted key; interpolations
    (`${...}`) stay.
    """
    if isinstance(value, dict):
        return {name: redacted(one, str(name)) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(one, key) for one in value]
    if not isinstance(value, str) or value in ("", "???"):
        return value
    last = key.rstrip(".0123456789").rpartition(".")[2]
    is_reference = value.startswith("${") and value.endswith("}") and value.count("${") == 1
    if SECRET_KEY.search(last) and not is_reference:
        return HIDDEN
    for pattern in SECRET_VALUES:
        value = pattern.sub(HIDDEN, value)
    if "/" in value:
        return value
    value = NAMED_KEY.sub(HIDDEN, value)
    return value if CHECKSUM_KEY.search(last) else RANDOM_WORD.sub(HIDDEN, value)


def redacted_words(words: Sequence[str]) -> list[str]:
    """A command line; what is behind `key=` is judged by its key, group choices
    (`objective/token=mlm`) aside.
    """
    shown = []
    for word in words:
        key, sign, value = word.partition("=")
        name = "" if "/" in key else key.lstrip("+~-")
        shown.append(f"{redacted(key)}{sign}{redacted(value, name)}" if sign else redacted(word))
    return shown


def scrubbed(text: str) -> str:
    """A message without what looks like a secret, and without what the environment holds under a
    secret's name.
    """
    held = [
        value for name, value in os.environ.items() if len(value) >= 8 and SECRET_KEY.search(name)
    ]
    for secret in (re.compile("|".join(map(re.escape, held)) or "(?!)"), *SECRET_VALUES, NAMED_KEY):
        text = secret.sub(HIDDEN, text)
    return text


DIGEST = re.compile(r" \(sha256 [0-9a-f]{12}\)$")


def digested(value: Any) -> str:
    """What stands for a secret where another secret has to be another run."""
    return f"(sha256 {hashlib.sha256(str(value).encode()).hexdigest()[:12]})"


RESULTS_VERSIONS = {"pretrain": 6, "finetune": 5, "evaluate": 4}
"""Of each stage; raised when a change of code changes its results: then no older run is taken for
the same, and no comparison mixes both (docs/decisions/0019). Older runs and packs are still
read."""

SEED_KEYS = ("seed", "pretrain_seed")
# What cannot change a result while the option behind it is off.
CONDITIONAL_KEYS = {key: meaning.option for key, meaning in meanings().items() if meaning.option}


def canonical(config: DictConfig, *, hides: bool = True) -> dict[str, Any]:
    """The configuration as plain values, resolved, without what changes nothing; ValueError where a
    value is missing. With `hides`, what comes from the environment and what looks like a secret is
    a hash."""
    off = frozenset(
        key for key, option in CONDITIONAL_KEYS.items() if not OmegaConf.select(config, option)
    )

    def mapping(node: DictConfig, where: str) -> dict[str, Any]:
        plain = {}
        for key in node:
            path = f"{where}.{key!s}" if where else str(key)
            if path not in off and meaning_of(path) != NEUTRAL:
                plain[str(key)] = value_of(node, key, path)
        return plain

    def value_of(node: DictConfig | ListConfig, key: Any, where: str) -> Any:
        raw = node._get_node(key)
        is_interpolation = raw is not None and OmegaConf.is_interpolation(node, key)
        text: str = raw._value() if is_interpolation else ""  # type: ignore[union-attr]
        try:
            value = node[key]
        except MissingMandatoryValue as error:
            raise ValueError(no_value(where)) from error
        if meaning_of(where) == IDENTITY and "oc.env" not in text:
            return value
        if hides and text and _is_from_environment(node, key, text, value):
            return f"{text} {digested(value)}"
        if isinstance(value, DictConfig):
            return mapping(value, where)
        if isinstance(value, ListConfig):
            return [value_of(value, index, f"{where}.{index}") for index in range(len(value))]
        shown = redacted(value, where) if hides else value
        return value if shown == value else f"{shown} {digested(value)}"

    return mapping(config, "")


def _is_from_environment(node: DictConfig | ListConfig, key: Any, text: str, value: Any) -> bool:
    """Whether an interpolated value would be another one in another environment."""
    if "oc.env" in text:
        return True
    if isinstance(value, DictConfig | ListConfig) and ":" not in text:
        return False  # another part of the configuration: its own values will be asked
    # In another one, which has only names: also through other keys and inside longer values.
    OmegaConf.register_new_resolver("oc.env", lambda name, *_default: f"(env {name})", replace=True)
    try:
        return bool(node[key] != value)
    except (OmegaConfBaseException, TypeError, ValueError):
        return True  # its type, or a resolver, cannot do with "(env NAME)"
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def no_value(key: str) -> str:
    """What to say of a key that has to be given and is not."""
    return f"{key} has no value; give one: {key}=..."


MOST_NAMED = 4


def require_encoder(folder: str | Path | None) -> Path:
    """`folder`; ValueError where it holds no encoder."""
    if folder is not None and any(
        (Path(folder) / name).is_file() for name in ("config.json", "bert_config.json")
    ):
        return Path(folder)
    if folder is not None and (Path(folder) / "encoder" / "config.json").is_file():
        raise ValueError(f"{folder} is a run's folder; its encoder is {Path(folder) / 'encoder'}")
    missing = f"{folder or 'encoder is not set'}: no encoder here (config.json is missing)"
    given = f"give encoder=FOLDER in the Hugging Face layout{_encoders_near(Path(folder or ''))}"
    raise ValueError(f"{missing}; pre-train it first, or {given}")


def _encoders_near(folder: Path) -> str:
    """Those of the same runs_dir, at any scale, in words."""
    place = next(
        (one for one in folder.parents if one.name == "pretrain" and len(one.parents) > 2), None
    )
    found = (
        [str(one.parent) for one in sorted(place.parents[2].glob("*/*/*/*/*/encoder/config.json"))]
        if place
        else []
    )
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return f"; there are {', '.join(found[:MOST_NAMED])}{more}" if found else ""


def encoder_fingerprint(folder: str | Path) -> str:
    """What an encoder folder holds, as a hash: its list of checksums, or, for a folder from
    elsewhere, its files.
    """
    listed = (folder := require_encoder(folder)) / "checksums.json"
    paths = [listed] if listed.is_file() else [path for path in folder.iterdir() if path.is_file()]
    return digest({path.name: file_sha256(path) for path in paths})


ROOMS = (
    "corpus",
    "datamodules",
    "metrics",
    "models",
    "modules",
    "objectives",
    "optim",
    "stages",
    "training",
)
WATCHERS = (
    "host.py",
    "measuring.py",
    "tracking.py",
    "background.py",
    "mlflow_tracker.py",
)  # they watch a training, and change nothing in it


def code_hash(stage: str, config: Mapping[str, Any]) -> str:
    return digest(code_of(stage, config))


def code_of(stage: str, config: Mapping[str, Any]) -> dict[str, str]:
    """The code that makes a run, module by module: its stage, the `_target_`s of its configuration,
    what these import.

    Comments, docstrings and line endings count for nothing; nor do the rooms that plan, launch,
    record and judge."""
    said = flatten(dict(config))
    left = [f"stages.{stage}", f"models.families.{said.get('architecture.model_type')}"]
    return code_behind(
        [*left, *(str(one) for key, one in said.items() if key.endswith("_target_"))], stage
    )


def code_behind(left: list[str], stage: str = "") -> dict[str, str]:
    """Of what is named, and of all that it imports."""
    code, found = code_of_results(), dict[str, str]()
    while left:
        name = left.pop().removeprefix("clozelab.")
        while name and name not in code:
            name = name.rpartition(".")[0]  # from what a module holds to the module
        if name and name not in found:
            found[name], imported = code[name]
            # not for both
            left += imported if name == f"stages.{stage}" or not name.startswith("stages.") else ()
    return found


@cache
def code_of_results() -> dict[str, tuple[str, list[str]]]:
    """Module -> a hash of what it says, and all that it imports; read once: later edits are not
    this process's.
    """
    package = Path(__file__).resolve().parents[1]
    files = (
        path
        for room in ROOMS
        for path in (package / room).rglob("*.py")
        if path.name not in WATCHERS
    )
    return {
        ".".join(path.relative_to(package).with_suffix("").parts): _said_and_imported(path)
        for path in files
    }


def _said_and_imported(path: Path) -> tuple[str, list[str]]:
    words, imported = list[str](), list[str]()

    def say(node: Any) -> None:
        if isinstance(node, ast.ImportFrom):
            imported.extend(f"{node.module}.{one.name}" for one in node.names)
        if isinstance(node, ast.AST):
            words.append(type(node).__name__)
            for name, value in ast.iter_fields(node):
                # which versions of Python have more or less of
                if value is not None and value != []:
                    words.append(name)
                    say(value)
        elif isinstance(node, list):
            for one in node:
                # a docstring
                if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)):
                    say(one)
        else:
            words.append(repr(node))

    say(ast.parse(path.read_bytes()))
    return hashlib.sha256("\n".join(words).encode()).hexdigest(), imported


def flatten(value: Any, where: str = "") -> dict[str, Any]:
    """Nested mappings and lists as one mapping of dotted keys; empty ones have none."""
    if not isinstance(value, dict | list):
        return {where: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    paths = [(f"{where}.{key}" if where else str(key), one) for key, one in items]
    return {key: leaf for path, one in paths for key, leaf in flatten(one, path).items()}


def grouped(
    runs: Iterable[Any], key: Callable[[Any], Any] = attrgetter("name")
) -> dict[Any, list[Any]]:
    """Arm or row, or what `key` makes of a run (or anything), -> its runs, in their order."""
    found: dict[Any, list[Any]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found


def identity_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is known by, of its recorded configuration: all but how the work is laid out on a
    machine.
    """
    return {key: value for key, value in flatten(dict(config)).items() if meaning_of(key) != LAYOUT}


MAX_WATCHED_FILES = 500
FOLDER_KEYS = (".path", ".files", "vocab_file")  # keys whose plain word is a folder
# for files too many or not to be found: only the run can say more
UNWATCHED = "(not all files can be watched)"


def watched_files(config: DictConfig) -> dict[str, tuple[int, ...]]:
    """Of every file that the configuration names: bytes, inode, times of its content and (not to be
    set) any change.
    """
    found: dict[str, tuple[int, ...]] = {}
    try:
        for path in _named_files(config):
            status = path.stat()
            found[str(path)] = (
                status.st_size,
                status.st_ino,
                status.st_mtime_ns,
                status.st_ctime_ns,
            )
            if len(found) > MAX_WATCHED_FILES:
                return {UNWATCHED: (-1,)}
    except (
        OSError,
        RuntimeError,
        ValueError,
    ):  # no such source, nobody's "~", no pattern, a file that just went
        return {UNWATCHED: (-1,)}
    return dict(sorted(found.items()))


def are_untouched(config: DictConfig, before: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the configuration's files are surely those that a run's record names, as they were
    then.
    """
    return UNWATCHED not in (watched := watched_files(config)) and before == watched


def _named_files(config: DictConfig) -> Iterator[Path]:
    """Any text of the configuration may name a file, a folder or a glob, below data_dir or where
    the command began.
    """

    def files_of(name: str) -> Iterator[Path]:
        # pathlib has no glob that starts at an absolute pattern
        for place in map(Path, glob.glob(name) if glob.has_magic(name) else [name]):  # noqa: PTH207
            yield from filter(
                Path.is_file, [place, *place.rglob("*")] if place.is_dir() else [place]
            )

    plain, data_dir = canonical(config, hides=False), str(config.get("data_dir") or "")
    plain.pop("optimizer", None)
    corpus = plain.get("corpus")
    for source in (corpus.pop("sources", None) if isinstance(corpus, dict) else None) or []:
        files, _ = matching_files(str(source["path"]), data_dir)
        if not files:
            raise ValueError(f"{source['path']}: no such files")
        yield from files.values()
    if folder := config.get("encoder"):  # which may be called by a plain word
        yield from files_of(str(Path(str(folder)).expanduser()))
    for key, text in (
        (key, value) for key, value in flatten(plain).items() if isinstance(value, str) and value
    ):
        for base in [""] if text.startswith("/") else ["", data_dir]:
            # pathlib's raises for nobody's "~"
            name = str(Path(base, os.path.expanduser(text)))  # noqa: PTH111
            # pathlib's raises for a text too long for a name
            if os.path.isfile(name):  # noqa: PTH113
                yield Path(name)
            elif (
                "/" in text or "." in text or key.endswith(FOLDER_KEYS)
            ):  # elsewhere a plain word is no folder
                yield from files_of(name)
