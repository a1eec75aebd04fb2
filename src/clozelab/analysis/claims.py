"""The five kinds of claims that paper.yaml may make about rows of a table.

    {compare: [bert, gpt, QNLI], direction: higher}             OrderClaim
    {rows: [tiny, small, base], column: QNLI, direction: increasing}      TrendClaim
    {rows: [a, b, c], column: QNLI, direction: within, points: 1.0}       EquivalenceClaim
    {compare: [mlm, ltr, QNLI], direction: crosses}             CrossingClaim
    {compare: [a, b, QNLI], against: [a, b, MRPC], direction: higher}     ContrastClaim

Every kind has the keys of `BaseClaim`; which kind an entry is follows from `direction` and
`against`. docs/claims.md shows each with its test.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from itertools import combinations, pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Strict,
    Tag,
    TypeAdapter,
    model_validator,
)

ALL_COLUMNS = "all"
FALLING = ("lower", "decreasing")
RISING = ("higher", "increasing")

Number = Annotated[float, Strict()]
RowPair = tuple[str, str]


class BaseClaim(BaseModel):
    """One sentence that runs support or contradict.

    `direction` is of the number: a perplexity that gets better is lower, or decreasing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    # what the sentences of a page and the discriminator of the union call this kind
    kind: ClassVar[str]

    text: str = Field(description="the claim as a sentence")
    direction: Literal["lower", "higher", "increasing", "decreasing", "within", "crosses"] = Field(
        description=(
            "lower, higher or crosses with compare; increasing, decreasing or within with rows"
        )
    )
    rows: tuple[str, ...] = Field(
        description="a list of two or more different rows, in the claimed order"
    )
    column: str = Field(description="a column's name, or all")
    id: str = Field(default="", description="a name of its own")
    paper_delta: Number | None = Field(
        default=None, description="a number in the column's unit, or null"
    )
    against: tuple[str, str, str] | None = Field(default=None, description="[row, row, column]")
    points: Number = Field(
        default=0.0, ge=0.0, description="a number above 0, in the column's unit"
    )
    measured_in: Literal["tokens", "flops", "seconds"] | None = Field(
        default=None,
        description="tokens, flops or seconds of pre-training, with direction: crosses",
    )
    primary: Annotated[bool, Strict()] = Field(
        default=False, description="true where it is tested before the others"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_compare(cls, entry: Any) -> Any:
        """`compare: [row, row, column]` and `[row, [row, row], column]` are rows and a column."""
        if not isinstance(entry, dict):
            return entry
        direction = entry.get("direction")
        if "compare" not in entry:
            if direction in ("lower", "higher", "crosses"):
                raise ValueError(
                    f"direction is {direction!r}; with rows it is increasing, decreasing or within"
                )
            return entry
        if direction in ("increasing", "decreasing", "within"):
            raise ValueError(
                f"direction is {direction!r}; with compare it is lower, higher or crosses"
            )
        compare = entry["compare"]
        if not isinstance(compare, list) or len(compare) != 3:
            raise ValueError(
                f"compare is [row, row, column] or [row, [row, row], column], not {compare!r}"
            )
        first, others, column = compare
        if not isinstance(others, list):
            others = [others]
        without_compare = {key: value for key, value in entry.items() if key != "compare"}
        return without_compare | {"rows": [first, *others], "column": column}

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        if len(self.rows) < 2 or len(set(self.rows)) < len(self.rows):
            raise ValueError(
                f"a claim needs two or more different rows, not {', '.join(self.rows) or 'none'}"
            )
        # Keys that belong to another kind say so, instead of "has no such key".
        if isinstance(self, EquivalenceClaim) != (self.points > 0):
            raise ValueError(
                "points, a number above 0, belongs to direction: within and to no other"
            )
        self._check_kind()
        if self.measured_in and not isinstance(self, CrossingClaim):
            raise ValueError("measured_in belongs to direction: crosses and to no other")
        if self.against and not self._is_one_difference(self.direction in ("lower", "higher")):
            raise ValueError("against takes a compare of two rows on one column, higher or lower")
        if self.against == (*self.rows, self.column):
            raise ValueError("against is the same difference as compare")
        self._check_paper_delta()
        return self

    def _check_kind(self) -> None:
        """What only this kind refuses."""

    def _check_paper_delta(self) -> None:
        delta = self.paper_delta
        if delta is None:
            return
        if len(self.rows) > 2 or self.column == ALL_COLUMNS:
            raise ValueError(f"paper_delta is {delta:g}; of several differences it is null")
        opposite = FALLING if delta > 0 else RISING
        if delta and self.direction in opposite:
            raise ValueError(
                f"paper_delta is {delta:g} and direction is {self.direction}: one of the two is"
                " wrong"
            )

    def _is_one_difference(self, is_direction_right: bool) -> bool:
        return len(self.rows) == 2 and self.column != ALL_COLUMNS and is_direction_right

    @property
    @abstractmethod
    def pairs(self) -> list[RowPair]:
        """The differences that the claim is about, each first - second."""

    @property
    def margin(self) -> float:
        """The equivalence margin that its differences are tested against; 0: against zero."""
        return 0.0

    def is_supported_by(self, mean: float) -> bool:
        """Whether a mean difference lies on the claimed side."""
        if self.direction in FALLING:
            return mean < 0.0
        return mean > 0.0

    def hypotheses(self, column: str) -> list[Hashable]:
        """A key for each difference on a column: two claims with one key test the same thing."""
        return [(frozenset(pair), column, self.points, self.against) for pair in self.pairs]

    @property
    def weighted_cells(self) -> list[tuple[float, str, str]]:
        """(weight, row, column) that the first difference is the sum of."""
        first, second = self.pairs[0]
        return [(1.0, first, self.column), (-1.0, second, self.column)]

    @property
    def all_rows(self) -> tuple[str, ...]:
        """Every row that the claim names."""
        if self.against is None:
            return self.rows
        return (*self.rows, *self.against[:2])


class OrderClaim(BaseClaim):
    """The first row is higher (or lower) than each of the others."""

    kind: ClassVar[str] = "order"

    @property
    def pairs(self) -> list[RowPair]:
        first, *others = self.rows
        return [(first, other) for other in others]


class TrendClaim(BaseClaim):
    """Each row is higher (or lower) than the row before it."""

    kind: ClassVar[str] = "trend"

    @property
    def pairs(self) -> list[RowPair]:
        return [(later, earlier) for earlier, later in pairwise(self.rows)]


class EquivalenceClaim(BaseClaim):
    """No two rows differ by `points` or more.

    It holds where the 95 % interval lies inside the margin: two one-sided tests at 2.5 %. Textbooks
    take 90 % and 5 %; a claim may be contradicted here, too, so both sides count.
    """

    kind: ClassVar[str] = "equivalence"

    @property
    def pairs(self) -> list[RowPair]:
        return list(combinations(self.rows, 2))

    @property
    def margin(self) -> float:
        return self.points

    def is_supported_by(self, mean: float) -> bool:
        return abs(mean) < self.points


class CrossingClaim(BaseClaim):
    """The first row's line is behind the second's at the beginning, and ahead at the end."""

    kind: ClassVar[str] = "crosses"

    def _check_kind(self) -> None:
        has_extra = bool(self.against) or self.paper_delta is not None
        if not self._is_one_difference(not has_extra):
            raise ValueError(
                "crosses takes a compare of two rows on one column, and neither against nor"
                " paper_delta"
            )

    @property
    def pairs(self) -> list[RowPair]:
        first, second = self.rows
        return [(first, second)]

    def hypotheses(self, column: str) -> list[Hashable]:
        at_start = frozenset(("at the first common point", *self.rows))
        return [
            *super().hypotheses(column),
            (at_start, column, self.points, self.against),
        ]


class ContrastClaim(BaseClaim):
    """A difference of differences: `compare` less `against`."""

    kind: ClassVar[str] = "difference of differences"

    @property
    def pairs(self) -> list[RowPair]:
        first, *others = self.rows
        return [(first, other) for other in others]

    @property
    def weighted_cells(self) -> list[tuple[float, str, str]]:
        assert self.against is not None
        first, second, column = self.against
        return [*super().weighted_cells, (-1.0, first, column), (1.0, second, column)]


def _kind_of(entry: Any) -> str:
    """Which of the five an entry of paper.yaml is."""
    if isinstance(entry, BaseClaim):
        return entry.kind
    if not isinstance(entry, dict):
        return OrderClaim.kind
    direction = entry.get("direction")
    if direction == "within":
        return EquivalenceClaim.kind
    if direction == "crosses":
        return CrossingClaim.kind
    if entry.get("against"):
        return ContrastClaim.kind
    if direction in ("increasing", "decreasing"):
        return TrendClaim.kind
    return OrderClaim.kind


Claim = Annotated[
    Annotated[OrderClaim, Tag(OrderClaim.kind)]
    | Annotated[TrendClaim, Tag(TrendClaim.kind)]
    | Annotated[EquivalenceClaim, Tag(EquivalenceClaim.kind)]
    | Annotated[CrossingClaim, Tag(CrossingClaim.kind)]
    | Annotated[ContrastClaim, Tag(ContrastClaim.kind)],
    Discriminator(_kind_of),
]
_ADAPTER: TypeAdapter[BaseClaim] = TypeAdapter(Claim)


def read_claim(entry: Any) -> BaseClaim:
    """One entry of `claims:`. ValidationError: what it cannot mean."""
    return _ADAPTER.validate_python(entry)
