"""How a file of an experiment is read, which anybody may have written."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

# values and levels of nesting that no experiment needs
MOST_VALUES = 100_000
MOST_LEVELS = 50

# libyaml's loader, where it is built, is much faster
SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class UniqueKeys(SAFE_LOADER):
    """A YAML loader that reads as Hydra does.

    It refuses a key that a mapping has twice: PyYAML alone would lose the first one's value without
    a word. And 1e-3 is a number.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, object]:
        keys = set[str]()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            if key_node.value in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} is there twice", node.start_mark
                )
            keys.add(key_node.value)
        return super().construct_mapping(node, deep)


EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$")
UniqueKeys.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789"))


def utf8_text(file: Path) -> str:
    """Return the text of a file. ValueError: it is in another encoding than UTF-8."""
    try:
        # utf-8-sig: Excel puts a byte order mark before a CSV.
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 ({error}); save it again as UTF-8") from None


def composed(text: str) -> str:
    """Return a text in the Unicode form NFC: é is one character, however it was written."""
    return unicodedata.normalize("NFC", text)


def own_text(file: Path, folder: Path) -> str:
    """Return the text of a file of an experiment's folder.

    ValueError for a link out of the folder, and for YAML whose anchors make it huge.
    """
    if not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{file} is a link that leads out of {folder}; put the file itself there")
    text = utf8_text(file)
    if file.suffix == ".yaml":
        _check_size(file, text)
    return text


def _check_size(file: Path, text: str) -> None:
    """ValueError for YAML of more than MOST_VALUES values, with its anchors written out.

    An alias (`*name`) counts as often as its anchor (`&name`) has values, so that "a billion
    laughs" is refused before anything is built.
    """
    num_values = 0
    # anchor and count of values at the beginning of every mapping or list that is still open
    open_collections = list[tuple[str | None, int]]()
    anchored_values = dict[str | None, int]()
    for event in yaml.parse(text, SAFE_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            open_collections.append((event.anchor, num_values))
            anchored_values[event.anchor] = MOST_VALUES  # an alias inside of it would have no end
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values_before = open_collections.pop()
            anchored_values[anchor] = num_values - values_before
        if isinstance(event, yaml.AliasEvent):
            num_values += anchored_values.get(event.anchor, 1)
        else:
            num_values += 1
        if num_values > MOST_VALUES or len(open_collections) > MOST_LEVELS:
            raise ValueError(
                f"{file} holds more than {MOST_VALUES} values, or {MOST_LEVELS} levels, with its"
                " anchors written out; no experiment is as large"
            )
