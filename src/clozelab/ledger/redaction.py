"""What must not be written down: values from the environment, and literals that look like keys and passwords.

The one place for run.json, config.yaml and what a tracker is told. Patterns cannot know every secret: they are the net
below the rule to keep secrets in the environment (`${oc.env:NAME}`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from omegaconf import OmegaConf
from omegaconf.resolvers import oc

HIDDEN = "***"
"""Also inside an interpolation a value that can be read back."""
SECRET_KEY = re.compile(
    r"(^|[_-])(api_?key|access_?key|private_?key|secret|secret_?key|passw(or)?d|passphrase|credentials?|token|bearer)$",
    re.IGNORECASE,
)
"""Last part of a dotted key whose value is a secret, if it is a text; a part of the configuration, such as
objective.token, is not one."""
NAMED_KEY = re.compile(r"\b(sk|pk|rk)[-_][A-Za-z0-9_-]{16,}")
"""Also how a folder may be called, so not in a path."""
SECRET_VALUES = (
    re.compile(r"\bhf_[A-Za-z0-9]{20,}"),
    re.compile(r"\b(gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,})"),
    re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{35}"),
    re.compile(r"\bxox[a-z]-[A-Za-z0-9-]{10,}"),
    re.compile(r"\bwandb_v\d+_\w{16,}"),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    re.compile(r"(?<=://)[^/\s:@${}]*:[^/\s@${}]+(?=@)"),  # user:password@host
)
RANDOM_WORD = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])[A-Za-z0-9]{32,}(?![A-Za-z0-9])")
"""As W&B's keys are; also a checksum, so not below a key that says so, nor in a path."""
CHECKSUM_KEY = re.compile(
    r"(revision|commit|sha\d*(sum)?|md5?|etag|version|checksum|digest|fingerprint|hash)s?$", re.IGNORECASE
)


def redacted(value: Any, key: str = "") -> Any:
    """Plain values with HIDDEN for what looks like a secret; `key` is the dotted key they stand below.

    Interpolations (`${...}`) stay: they only say where a value is.
    """
    if isinstance(value, dict):
        return {name: redacted(one, str(name)) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(one, key) for one in value]
    if not isinstance(value, str) or value in ("", "???"):
        return value
    last = key.rstrip(".0123456789").rpartition(".")[2]
    if SECRET_KEY.search(last) and not _is_reference(value):
        return HIDDEN
    for pattern in SECRET_VALUES:
        value = pattern.sub(HIDDEN, value)
    if "/" in value:
        return value
    value = NAMED_KEY.sub(HIDDEN, value)
    return value if CHECKSUM_KEY.search(last) else RANDOM_WORD.sub(HIDDEN, value)


def redacted_words(words: Sequence[str]) -> list[str]:
    """A command line; what is behind `key=` is judged by its key, group choices (`objective/token=mlm`) aside."""
    shown = []
    for word in words:
        key, sign, value = word.partition("=")
        name = "" if "/" in key else key.lstrip("+~-")
        shown.append(f"{redacted(key)}{sign}{redacted(value, name)}" if sign else redacted(word))
    return shown


def digested(value: Any) -> str:
    """What stands for a secret where another secret has to be another run."""
    return f"(sha256 {hashlib.sha256(str(value).encode()).hexdigest()[:12]})"


@contextmanager
def hidden_environment() -> Iterator[None]:
    """Meanwhile `${oc.env:NAME}` resolves to `(env NAME)`, also through other keys and inside longer values."""
    OmegaConf.register_new_resolver("oc.env", lambda key, *_default: f"(env {key})", replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def _is_reference(value: str) -> bool:
    return value.startswith("${") and value.endswith("}") and value.count("${") == 1
