"""What a paper claims about its table, as paper.yaml says it: four kinds, told apart by their keys.

- order: `compare: [row, row, column]`, `direction: lower|higher`: the first row against the second, or against each of
  several (`compare: [row, [row, row], column]`): better than the best of them is better than each;
- monotone: `rows: [...]`, `column: C`, `direction: increasing|decreasing`: every row against the one before it;
- spread: `rows: [...]`, `column: C`, `direction: within`, `points: 1.0`: no two rows differ by more than that;
- difference of differences: `compare: [a, b, C1]`, `against: [a, b, C2]`, `direction`: the first difference against
  the second one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from clozelab.suggestions import hint

ALL_COLUMNS = "all"
ORDER, MONOTONE, SPREAD, CONTRAST = "order", "monotone", "spread", "difference of differences"
DIRECTIONS = {
    ORDER: ("lower", "higher"),
    MONOTONE: ("increasing", "decreasing"),
    SPREAD: ("within",),
    CONTRAST: ("lower", "higher"),
}
FALLING, RISING = ("lower", "decreasing"), ("higher", "increasing")
SHAPE = "[row, row, column]"
SHAPE_OF_ORDER = f"{SHAPE} or [row, [row, row], column]"


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper that runs can support or contradict.

    Attributes:
        rows: that it is about, in the claimed order.
        column: a column's name, or ALL_COLUMNS.
        direction: one of DIRECTIONS of its kind; of the number, not of what is good: a perplexity decreases.
        paper_delta: the paper's difference, in the column's unit; None where it has no single one.
        against: row, row and column of the difference that a CONTRAST subtracts.
        points: of a SPREAD: by how much rows may differ.
    """

    id: str
    text: str
    kind: str
    rows: tuple[str, ...]
    column: str
    direction: str
    paper_delta: float | None
    against: tuple[str, str, str] | None = None
    points: float = 0.0

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(row, row) of the differences that the claim is about, first - second."""
        if self.kind == MONOTONE:
            return [(later, earlier) for earlier, later in pairwise(self.rows)]
        return (
            list(combinations(self.rows, 2)) if self.kind == SPREAD else [(self.rows[0], row) for row in self.rows[1:]]
        )

    @property
    def is_lower(self) -> bool:
        """Whether the claimed sign of a difference is negative; says nothing of a SPREAD."""
        return self.direction in FALLING

    def in_words(self) -> str:
        """The claimed direction, where no size can be compared."""
        words = {"increasing": "rising", "decreasing": "falling", "within": f"within {self.points:g}"}
        return words.get(self.direction, self.direction)


def checked(entry: Any, keys: Iterable[str], where: str, optional: Iterable[str] = ()) -> dict[str, Any]:
    """The entry as a dictionary.

    Raises:
        ValueError: it has other keys than `keys`, of which `optional` are allowed beside.
    """
    needed = set(keys)
    if not isinstance(entry, Mapping) or set(entry) - set(optional) != needed:
        found = sorted(map(str, entry)) if isinstance(entry, Mapping) else repr(entry)
        raise ValueError(f"{where}: needs exactly the keys {sorted(needed)}, has {found}")
    return {str(key): value for key, value in entry.items()}


def load_claim(entry: Any, rows: Iterable[str], units: Mapping[str, str], where: str) -> Claim:
    """Read and check one entry of `claims`.

    Args:
        entry: as in the file.
        rows: names of the table's rows.
        units: column -> unit of its numbers.
        where: file and entry, for the message.

    Raises:
        ValueError: names the entry and what is wrong with it.
    """
    known = sorted(rows), list(units)
    if isinstance(entry, Mapping) and "rows" in entry:
        return _about_rows(entry, *known, where)
    is_contrast = isinstance(entry, Mapping) and "against" in entry
    kind = CONTRAST if is_contrast else ORDER
    keys = ("id", "text", "paper_delta", "compare", "direction", *(("against",) if is_contrast else ()))
    one = checked(entry, keys, where)
    common = _common(one, kind, where)
    if not is_contrast:
        row, others, column = _order(one["compare"], *known, where)
        return _of_one_size(Claim(kind=kind, rows=(row, *others), column=column, **common), where)
    first, second, column = _compared(one["compare"], *known, where, "compare")
    against = _compared(one["against"], *known, where, "against")
    if units[column] != units[against[2]]:
        raise ValueError(
            f"{where}: compare is in {units[column]} ({column}) and against in {units[against[2]]} ({against[2]}); "
            "one cannot be subtracted from the other"
        )
    if against == (first, second, column):
        raise ValueError(f"{where}: against is the same difference as compare")
    return Claim(kind=kind, rows=(first, second), column=column, against=against, **common)


def _about_rows(entry: Mapping[Any, Any], rows: list[str], columns: list[str], where: str) -> Claim:
    kind = SPREAD if entry.get("direction") in DIRECTIONS[SPREAD] else MONOTONE
    keys = ("id", "text", "paper_delta", "rows", "column", "direction", *(("points",) if kind == SPREAD else ()))
    one = checked(entry, keys, where)
    names = one["rows"] if isinstance(one["rows"], list) else []
    if len(names) < 2 or len(set(map(str, names))) < len(names):
        raise ValueError(f"{where}: rows needs two or more different rows, has {one['rows']!r}")
    for name in names:
        _known(name, rows, where, "rows", "rows")
    _known(one["column"], [*columns, ALL_COLUMNS], where, "column", "columns")
    points = one.get("points", 0.0)
    if kind == SPREAD and (not _is_number(points) or points <= 0):
        raise ValueError(f"{where}: points is {points!r}; it is a number above 0, in the column's unit")
    common = _common(one, kind, where)
    rows_named, column = tuple(map(str, names)), str(one["column"])
    return _of_one_size(Claim(kind=kind, rows=rows_named, column=column, points=float(points), **common), where)


def _of_one_size(claim: Claim, where: str) -> Claim:
    """The claim itself; the paper's number can stand beside one difference only."""
    if claim.paper_delta is not None and (len(claim.rows) > 2 or claim.column == ALL_COLUMNS):
        raise ValueError(f"{where}: paper_delta is {claim.paper_delta}; of several differences it is null")
    return claim


def _common(one: Mapping[str, Any], kind: str, where: str) -> dict[str, Any]:
    allowed = DIRECTIONS[kind] if kind != MONOTONE else (*DIRECTIONS[MONOTONE], *DIRECTIONS[SPREAD])
    if one["direction"] not in allowed:
        raise ValueError(f"{where}: direction is {one['direction']!r}; it is one of {', '.join(allowed)}")
    delta = one["paper_delta"]
    if delta is not None and not _is_number(delta):
        raise ValueError(f"{where}: paper_delta is {delta!r}; it is a number in the column's unit, or null")
    if delta and one["direction"] in (FALLING if delta > 0 else RISING):
        raise ValueError(
            f"{where}: paper_delta is {delta}, and direction is {one['direction']}: the paper's own number would "
            "contradict its claim; one of the two is wrong"
        )
    return {"id": str(one["id"]), "text": str(one["text"]), "direction": one["direction"], "paper_delta": delta}


def _order(value: Any, rows: list[str], columns: list[str], where: str) -> tuple[str, list[str], str]:
    """(the row, those that it is compared with, the column)."""
    others = value[1] if isinstance(value, list) and len(value) == 3 else None
    if not isinstance(others, list):
        first, second, column = _compared(value, rows, [*columns, ALL_COLUMNS], where, "compare", SHAPE_OF_ORDER)
        return first, [second], column
    if len(others) < 2 or len(set(map(str, others))) < len(others):
        raise ValueError(f"{where}: compare is {SHAPE_OF_ORDER}, with different rows in the list, not {value!r}")
    for other in others:
        _compared([value[0], other, value[2]], rows, [*columns, ALL_COLUMNS], where, "compare", SHAPE_OF_ORDER)
    return str(value[0]), list(map(str, others)), str(value[2])


def _compared(
    value: Any, rows: list[str], columns: list[str], where: str, key: str, shape: str = SHAPE
) -> tuple[str, str, str]:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError(f"{where}: {key} is {shape}, not {value!r}; rows are {rows}, columns {columns}")
    for name in value[:2]:
        _known(name, rows, where, f"{key} is {shape}", "rows")
    _known(value[2], columns, where, f"{key} is {shape}", "columns")
    if value[0] == value[1]:
        raise ValueError(f"{where}: {key} compares {value[0]!r} with itself")
    return str(value[0]), str(value[1]), str(value[2])


def _known(name: Any, known: list[str], where: str, key: str, what: str) -> None:
    if name not in known:
        raise ValueError(f"{where}: {key}: {name!r} is none of the {what}; {hint(str(name), known)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
