"""Data sets of the Hugging Face hub: one split, at a pinned commit, through the datasets library.

Nobody gets here who has not said hub=true.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clozelab.readers.remote import named_errors

if TYPE_CHECKING:
    from datasets import DatasetBuilder


def require_commit(revision: str | None, name: str, key: str) -> None:
    """ValueError for anything but a commit: a branch or a tag may move, and with it the data.

    `key` is the setting that names the commit of the data set `name`.
    """
    if revision is None or not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise ValueError(
            f"{key}={revision!r} is no commit of {name}: give one (40 hex digits; its page on the"
            " hub lists them), since a branch or a tag may move"
        )


def open_builder(name: str, config: str | None, revision: str) -> DatasetBuilder:
    """The datasets library's builder of a data set at a commit.

    Without a network it is that of the library's own cache. ValueError where the data set cannot be
    reached, and where the cache holds another commit: the library would take that one.
    """
    import datasets  # takes a second: only who asks for the hub pays

    with named_errors(f"{name} at revision {revision}"):
        builder = datasets.load_dataset_builder(name, config, revision=revision)
        if builder.hash != revision:
            raise OSError(f"the hub was not reached, and the cache holds commit {builder.hash}")
    return builder
