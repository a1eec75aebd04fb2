"""The code that makes a run, as hashes of its modules."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from clozelab.addresses import is_permitted
from clozelab.files.digests import digest, file_sha256
from clozelab.text.plain import PlainMapping, flatten

ROOMS = (
    "assembly",
    "corpus",
    "datamodules",
    "files",
    "metrics",
    "models",
    "modules",
    "objectives",
    "optim",
    "readers",
    "stages",
    "tasks",
    "training",
)
"""Folders whose code decides results; those that plan, launch, record and judge do not."""
WATCHERS = (
    "host.py",
    "measuring.py",
    "tracking.py",
    "background.py",
    "catching_up.py",
    "mlflow_tracker.py",
    "jobs.py",
    "atomic.py",
    "locks.py",
)
"""Files of these rooms that watch a training or put its files in place, and change no result."""


def code_hash(stage: str, config: PlainMapping) -> str:
    """Return one hash of all the code that makes a run."""
    return digest(code_of(stage, config))


def code_of(stage: str, config: PlainMapping) -> dict[str, str]:
    """Return the code that makes a run: module -> hash.

    That is its stage, its model's family, the `_target_`s of its configuration, and what all these
    import. Comments, docstrings and line endings count for nothing.
    """
    leaves = flatten(dict(config))
    family = str(leaves.get("architecture.model_type")).replace("-", "_")
    names = [f"stages.{stage}", f"models.families.{family}"]
    names += [str(value) for key, value in leaves.items() if key.endswith("_target_")]
    return code_version(names)


def code_version(names: Iterable[str]) -> dict[str, str]:
    """Return the code behind some addresses and all that it imports: module -> hash.

    Of a package that the user has allowed every file counts, as any may be imported.
    """
    sources = sources_of_results()
    # names of modules, or of what they hold, whose code is still to be looked up
    pending = list(names)
    hashes = dict[str, str]()
    own_packages = set[str]()
    while pending:
        name = pending.pop()
        package = name.partition(".")[0]
        if is_permitted(name) and package not in own_packages:
            own_packages.add(package)
            hashes |= own_code(package)
            pending += own_imports(package)
        module = _module_of(name, sources)
        if not module or module in hashes:
            continue
        module_hash, imports = hash_and_imports(sources[module])
        hashes[module] = module_hash
        pending += imports
    return hashes


@cache
def own_code(package: str) -> dict[str, str]:
    """Return file -> checksum of a package, or of a single module, of somebody else's.

    The files are read once, as ours are.
    """
    return {name: file_sha256(path) for name, path in _own_files(package).items()}


@cache
def own_imports(package: str) -> list[str]:
    """Return the addresses that the files of such a package import.

    A file that Python cannot parse imports nothing.
    """
    imports = []
    for path in _own_files(package).values():
        with suppress(SyntaxError, ValueError):
            imports += _imports_in(ast.parse(path.read_bytes()))
    return imports


def _own_files(package: str) -> dict[str, Path]:
    """Return name -> file of a package, or of a single module."""
    spec = find_spec(package)
    if spec is None:
        return {}
    if spec.submodule_search_locations is None:
        return {package: Path(str(spec.origin))}
    files = {}
    for folder in spec.submodule_search_locations:
        for path in Path(folder).rglob("*.py"):
            files[f"{package}/{path.relative_to(folder).as_posix()}"] = path
    return dict(sorted(files.items()))


def _module_of(address: str, sources: PlainMapping) -> str:
    """Return the module that an address lies in, "" where it is none of `sources`."""
    name = address.removeprefix("clozelab.")
    while name and name not in sources:
        name = name.rpartition(".")[0]
    return name


@cache
def sources_of_results() -> dict[str, bytes]:
    """Return module -> its file, of all modules of ROOMS.

    The files are read once: later edits are not this process's.
    """
    package = Path(__file__).resolve().parents[1]
    sources = {}
    for room in ROOMS:
        for path in (package / room).rglob("*.py"):
            if path.name not in WATCHERS:
                name = ".".join(path.relative_to(package).with_suffix("").parts)
                sources[name] = path.read_bytes()
    return sources


@cache
def hash_and_imports(source: bytes) -> tuple[str, list[str]]:
    """Return the hash of a module's code, and the addresses that it imports.

    It is parsed, so comments, line ends and quotes make no difference. A process parses it once.
    """
    tree = ast.parse(source)
    code_words = list[str]()
    _append_words(tree, code_words)
    return hashlib.sha256("\n".join(code_words).encode()).hexdigest(), _imports_in(tree)


def _imports_in(tree: ast.AST) -> list[str]:
    """Return the addresses that a file imports: `a.b.c` of `from a.b import c`, `a.b.` of a module.

    Those of its own package, with a dot before them, may be incomplete.
    """
    imports = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imports += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            # With the dot it is an address in that module.
            imports += [f"{alias.name}." for alias in node.names]
    return imports


def _append_words(node: object, words: list[str]) -> None:
    """Append what a part of a syntax tree says, in order, without docstrings.

    Unset fields are left out: versions of Python differ in how many of them there are.
    """
    if isinstance(node, ast.AST):
        words.append(type(node).__name__)
        for name, value in ast.iter_fields(node):
            if value is not None and value != []:
                words.append(name)
                _append_words(value, words)
    elif isinstance(node, list):
        for child in node:
            is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if not is_docstring:
                _append_words(child, words)
    else:
        words.append(repr(node))
