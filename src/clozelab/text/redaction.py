"""Secrets, as records, logs and trackers show them: hidden, or as a hash.

What looks like a key or a password is hidden in run.json, config.yaml and what a tracker is told.
Patterns cannot know every secret: keep secrets in the environment.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence

from clozelab.text.plain import Json

HIDDEN = "***"  # also inside an interpolation a value that can be read back
SECRET_KEY = re.compile(
    r"(?i)(^|[_-])"
    r"((api|access|private|secret)_?key|secret|passw(or)?d|passphrase|credentials?|token|bearer)$"
)
"""Last part of a dotted key whose value is a secret, if it is a text."""
NAMED_KEY = re.compile(r"(?<![\w/])(sk|pk|rk)[-_][A-Za-z0-9_-]{16,}")
"""A key that says so itself; a folder may be called so, so it is not looked for in a path."""
KEYS_BY_SHAPE = (
    # Hugging Face
    re.compile(r"\bhf_[A-Za-z0-9]{20,}"),
    # GitHub, GitLab
    re.compile(r"\b(gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,})"),
    # Amazon, Google
    re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{35}"),
    # Slack
    re.compile(r"\bxox[a-z]-[A-Za-z0-9-]{10,}"),
    re.compile(r"\bwandb_v\d+_\w{16,}"),
    # a JSON web token
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
)
SECRETS_BY_PLACE = (
    # user:password@host, also where pathlib took a slash
    re.compile(r"((?<=://)|(?<=\w:/))[^/\s@${}]+(?=@)"),
    # what an address or a command line gives a secret's name to
    re.compile(
        r"(?i)((?<=[_i]key=)|(?<=[_.]token=)|(?<=secret=)|(?<=password=)|(?<=credentials=))"
        r"[^\s'\",;\]}]*[^\s'\",;\]}:]"
    ),
)
SECRET_VALUES = KEYS_BY_SHAPE + SECRETS_BY_PLACE
RANDOM_WORD = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])[A-Za-z0-9]{32,}(?![A-Za-z0-9])")
"""As W&B's keys are; also a checksum, so not below a key that says so, nor in a path."""
CHECKSUM_KEY = re.compile(
    r"(?i)(revision|commit|sha\d*(sum)?|md5?|etag|version|checksum|digest|fingerprint|hash)s?$"
)
MATCHES_NOTHING = "(?!)"
SHORTEST_SECRET = 8
"""Characters of an environment variable's value: a shorter one may stand in any text."""


def redacted(value: object, key: str = "") -> Json:
    """Return plain values with HIDDEN for what looks like a secret; interpolations stay.

    Args:
        value: of any depth: mappings, lists and values.
        key: the dotted key that it stands below.
    """
    if isinstance(value, dict):
        return {name: redacted(child, str(name)) for name, child in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(child, key) for child in value]
    if not isinstance(value, str) or value in ("", "???"):
        return value
    return _redacted_text(value, key)


def _redacted_text(text: str, key: str) -> str:
    name = key.rstrip(".0123456789").rpartition(".")[2]
    is_interpolation = text.startswith("${") and text.endswith("}") and text.count("${") == 1
    if SECRET_KEY.search(name) and not is_interpolation:
        return HIDDEN
    for pattern in SECRET_VALUES:
        text = pattern.sub(HIDDEN, text)
    if "/" in text:  # a path
        return text
    text = NAMED_KEY.sub(HIDDEN, text)
    if CHECKSUM_KEY.search(name):
        return text
    return RANDOM_WORD.sub(HIDDEN, text)


def redact_argv(argv: Sequence[str]) -> list[str]:
    """Return a command line without secrets.

    What is behind `key=` is judged by its key; group choices (`objective/token=mlm`) are not.
    """
    redacted_argv = []
    for argument in argv:
        key, equals, value = argument.partition("=")
        if not equals:
            redacted_argv.append(redacted(argument))
            continue
        name = "" if "/" in key else key.lstrip("+~-")
        redacted_argv.append(f"{redacted(key)}={redacted(value, name)}")
    return redacted_argv


def scrubbed(text: str) -> str:
    """Return a message without secrets.

    Those are what looks like one, and what the environment holds under a secret's name.
    """
    secret_values = []
    for name, value in os.environ.items():
        if len(value) >= SHORTEST_SECRET and SECRET_KEY.search(name):
            secret_values.append(re.escape(value))
    from_environment = re.compile("|".join(secret_values) or MATCHES_NOTHING)
    for pattern in (from_environment, *SECRET_VALUES, NAMED_KEY):
        text = pattern.sub(HIDDEN, text)
    return text


DIGEST = re.compile(r" \(sha256 [0-9a-f]{12}\)$")
"""What `digested` puts behind a value."""


def digested(value: object) -> str:
    """Return what stands for a secret where another secret has to be another run."""
    return f"(sha256 {hashlib.sha256(str(value).encode()).hexdigest()[:12]})"
