"""Claims in a file of their own, and whether a table of scores has what they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel, ValidationError, model_validator

from claims.analysis.schema import ALL_COLUMNS, BaseClaim, Column, Row, SequentialDesign, TableSpec
from claims.tables.layout import DEFAULT_LAYOUT, ScoreLayout
from claims.text.did_you_mean import hint
from claims.text.safe_yaml import UniqueKeys, composed, own_text

if TYPE_CHECKING:
    from claims.analysis.scores import ScoreTable  # which brings scipy

SECTIONS: dict[str, type[BaseModel]] = {
    "columns": Column,
    "rows": Row,
    "claims": BaseClaim,
    "stopping": SequentialDesign,
    "scores": ScoreLayout,
}
"""What stands below a key of such a file."""
LISTS = ("columns", "rows", "claims")
"""The keys that hold a list: an entry's number comes before its own key."""
UNQUOTED = {("string_type", kind): "a text: put it in quotes" for kind in (bool, int, float)}
"""(error, type) of a text that YAML reads as another value -> what it should be."""


OWN_KEYS = ("claims", "columns", "compare", "scores", "stopping", "title")
"""What a file of claims is read for."""
OF_EXPERIMENTS = (
    *("arms", "asks", "averaging", "differ_in", "given", "inputs", "longer_vocabularies"),
    *("matched_by", "matched_by_reason", "retained_of", "rows", "scale", "seeds", "source"),
    *("split", "sweeps"),
)
"""Keys of a paper.yaml that are left alone here."""
OF_SCALES = ("unit", "higher_is_better")
"""The keys of a column that are read here."""
OF_COLUMNS = (
    *("benchmarks", "from", "mean_of", "metric", "name", "needs", "split", "stand_ins", "task"),
    *OF_SCALES,
)
"""All that a column of a paper.yaml may have."""


Compared = Literal["first", "all"]
"""What is compared without claims: all rows with the first one, or all pairs."""


class ClaimFile(TableSpec):
    """Claims about a file of scores."""

    title: str = ""
    """what stands over the page"""
    compare: Compared | None = None
    """first, for all rows against the first one, or all, for all pairs; without claims"""
    scores: ScoreLayout = DEFAULT_LAYOUT
    """a mapping that names the columns of the file of scores"""

    @model_validator(mode="after")
    def _check_one_kind_of_question(self) -> Self:
        if self.claims and self.compare:
            raise ValueError("compare is for a file without claims: leave one of the two out")
        return self


def read_claim_file(path: Path) -> ClaimFile:
    """The claims of a YAML file, or what it compares. ValueError: what it cannot mean."""
    file = read_claims(path)
    if not file.claims and not file.compare:
        raise ValueError(
            f"{path}: no claims; `claims:` is a list, as in docs/claims.md, and `compare: all`"
            " compares all pairs"
        )
    return file


def read_claims(path: Path) -> ClaimFile:
    """A file that has `claims:` as paper.yaml, or is their list.

    Of its columns those are read that give a unit and a direction; other keys of a paper.yaml are
    left alone. ValueError: the file, the key, what is wrong, or a key that neither has.
    """
    file = load_yaml(path, composed)
    if isinstance(file, list):
        file = {"claims": file}
    if not isinstance(file, dict):
        raise ValueError(f"{path}: not a mapping with `claims:`, nor a list of claims")
    try:
        _check_keys("", file, (*OWN_KEYS, *OF_EXPERIMENTS), OWN_KEYS)
        scales = _scales(file.get("columns") or [])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    given = {key: file[key] for key in OWN_KEYS if key in file}
    given["claims"] = without_needs(given.get("claims", []))
    entries = given | {"columns": scales}
    try:
        return ClaimFile.model_validate(entries)
    except ValidationError as error:
        raise ValueError(f"{path}: {validation_message(error, ClaimFile)}") from None


def _check_keys(
    place: str, entry: Mapping[object, object], known: Sequence[str], read: Sequence[str]
) -> None:
    """ValueError for a key that is not known: the nearest of those that are read here."""
    for key in entry:
        if key not in known:
            raise ValueError(f"{place}has no key {key!r}; {hint(str(key), read)}")


def _scales(columns: object) -> object:
    """The columns that give a unit and a direction. What is no list is left to be refused.

    ValueError: a key that no column has.
    """
    if not isinstance(columns, list):
        return columns
    scales = []
    for index, entry in enumerate(columns):
        if not isinstance(entry, dict):
            continue
        _check_keys(f"columns.{index}: ", entry, OF_COLUMNS, ("name", *OF_SCALES))
        scale = {key: entry[key] for key in OF_SCALES if key in entry}
        if scale:
            name = str(entry.get("name", entry.get("task")))
            scales.append({"name": name, "task": name} | scale)
    return scales


def without_needs(entries: object) -> object:
    """Entries of a form without the inputs that they depend on, by which it is filled in."""
    if isinstance(entries, dict):
        return {key: value for key, value in entries.items() if key != "needs"}
    if isinstance(entries, list):
        return [without_needs(entry) for entry in entries]
    return entries


def load_yaml(path: Path, form: Callable[[str], str] = str) -> object:
    """What a YAML file says, its text in a Unicode form; an empty mapping where it is empty.

    ValueError: it is no YAML.
    """
    try:
        return yaml.load(form(own_text(path, path.parent)), UniqueKeys) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error


def validation_message(
    error: ValidationError,
    whole: type[BaseModel],
    sections: Mapping[str, type[BaseModel]] = SECTIONS,
) -> str:
    """The first refusal in one sentence: the place in the file, what is wrong, what to write.

    Args:
        whole: the model of the file.
        sections: what stands below its keys.
    """
    # A slip also leaves its key out: of both refusals the slip is named.
    first = min(error.errors(), key=lambda entry: entry["type"] != "extra_forbidden")
    steps = list(first["loc"])
    if steps[:1] == ["claims"] and len(steps) > 2:
        # The union of claims adds which of its kinds was tried: claims.0.order.rows.
        del steps[2]
    key_path = [str(step) for step in steps if step != ""]
    if first["type"] == "value_error":
        return ": ".join(filter(None, (".".join(key_path), str(first["ctx"]["error"]))))

    # The refusal quotes what stands below the key in its model.
    model, depth = _model_at(key_path, whole, sections)
    key = key_path[depth]
    where = f"{'.'.join(key_path[:depth])}: " if depth else ""
    meanings = {
        field.alias or name: field.description
        for name, field in model.model_fields.items()
        if field.description
    }
    if first["type"] == "extra_forbidden":
        keys = [*meanings, "compare"] if model is BaseClaim else list(meanings)
        return f"{where}has no key {key!r}; {hint(key, keys)}"
    if first["type"] == "missing" and len(key_path) == depth + 1:
        return f"{where}lacks {key}, {meanings[key]}"
    meaning = meanings.get(key, "a mapping of keys and values")
    meaning = UNQUOTED.get((first["type"], type(first["input"])), meaning)
    return f"{'.'.join(key_path)} is {first['input']!r}; it is {meaning}"


def _model_at(
    place: list[str], whole: type[BaseModel], sections: Mapping[str, type[BaseModel]]
) -> tuple[type[BaseModel], int]:
    """The model whose key a refusal names, and how many steps of its place come before that key.

    `columns.2.metrics` is the key `metrics` of a Column, two steps down; `stopping.first` is one.
    """
    depth = 2 if place[0] in LISTS else 1
    if place[0] not in sections or len(place) <= depth:
        return whole, 0
    return sections[place[0]], depth


def check_names(table: ScoreTable, spec: TableSpec, score_path: Path, claim_path: Path) -> None:
    """Every arm, task and declared column has scores. ValueError: one that has none."""
    columns = [column.name for column in table.spec.columns]

    def check(name: str, known: Sequence[str], kind: str, key: str) -> None:
        if name not in known:
            raise ValueError(
                f"{claim_path}: {key}: {name!r} is no {kind} of {score_path}; {hint(name, known)}"
            )

    for index, claim in enumerate(spec.claims):
        for arm in claim.all_rows:
            check(arm, table.rows, "arm", f"claims.{index}")
        claimed = [claim.column]
        # [row, row, column]: its rows are in `all_rows` already.
        if claim.against:
            claimed.append(claim.against[2])
        for column in claimed:
            check(column, [*columns, ALL_COLUMNS], "task", f"claims.{index}")
    for declared in spec.columns:
        check(declared.name, columns, "task", "columns")
