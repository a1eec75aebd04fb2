"""What a table is about: columns, rows, claims and sequential design, as paper.yaml has them.

Each is a model that refuses what it cannot mean. docs/claims.md shows every key. Which kind
of claim an entry is follows from `direction`, `points` and `against`:

    {compare: [bert, gpt, QNLI], direction: higher}             OrderClaim
    {rows: [tiny, small, base], column: QNLI, direction: increasing}      TrendClaim
    {rows: [a, b, c], column: QNLI, direction: within, points: 1.0}       EquivalenceClaim
    {compare: [tiny, base, QNLI], direction: not_lower, points: 1.0}      NoninferiorityClaim
    {compare: [further, given, QNLI], direction: higher, points: 1.0}     SuperiorityClaim
    {compare: [mlm, ltr, QNLI], direction: crosses}             CrossingClaim
    {compare: [a, b, QNLI], against: [a, b, MRPC], direction: higher}     ContrastClaim
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from itertools import chain, combinations, pairwise
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Strict,
    Tag,
    model_validator,
)

OUR_SPLIT: Literal["dev"] = "dev"
PERCENT = "percent"
# the two kinds of seeds, as a plan calls them
PRETRAINING_SEED = "pre-training seed"
FINETUNING_SEED = "fine-tuning seed"
ALL_COLUMNS = "all"
FALLING = ("lower", "decreasing")
RISING = ("higher", "increasing")
# of two rows, or of one row and each of several others
COMPARING = ("lower", "higher", "not_lower", "not_higher", "crosses")
ORDERING = ("increasing", "decreasing", "within")

# what a difference is compared with where no margin is claimed
ZERO = (0.0,)


class Scale(NamedTuple):
    """What scores are in, and whether a higher one is better.

    The direction is None where nobody knows it, or the number is no achievement.
    """

    unit: str
    higher_is_better: bool | None


IN_PERCENT = Scale(PERCENT, higher_is_better=True)
RowPair = tuple[str, str]
Number = Annotated[float, Strict()]
OneLine = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]


def negated(boundaries: tuple[float, ...]) -> tuple[float, ...]:
    """The boundaries of the negative difference, in ascending order."""
    return tuple(-value for value in reversed(boundaries))


class Entry(BaseModel):
    """A mapping of paper.yaml: it has the keys of its model and no others.

    The text below a key says what it is, also to whoever writes something else.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, use_attribute_docstrings=True
    )


# -- columns and rows ----------------------------------------------------------------------------


class Part(NamedTuple):
    """A column that goes into a mean, by its own metric or by another score of the same runs."""

    column: str
    metric: str = ""


def _read_part(entry: object) -> Part:
    """`A` is column A; `{A: validation/accuracy}` is another score of it."""
    if isinstance(entry, dict) and len(entry) == 1:
        column, metric = next(iter(entry.items()))
        return Part(str(column), str(metric))
    return Part(str(entry))


def _read_parts(entries: object) -> tuple[tuple[Part, ...], ...]:
    """[A, [B, {B: validation/accuracy}]]: the mean of A and of the mean of two scores of B."""
    groups = []
    for entry in entries if isinstance(entries, list) else []:
        group = entry if isinstance(entry, list) else [entry]
        groups.append(tuple(_read_part(part) for part in group))

    parts = list(chain.from_iterable(groups))
    is_repeated = len(set(parts)) < len(parts)
    if len(groups) < 2 or not all(groups) or is_repeated:
        raise ValueError(f"it is a list of two or more different columns, not {entries!r}")
    return tuple(groups)


Parts = Annotated[tuple[tuple[Part, ...], ...], BeforeValidator(_read_parts)]


class Column(Entry):
    """A column of the table.

    It holds a task's score, a fact of the pre-training (`from: pretrain`) or a mean of columns.
    With `from: evaluate`, `task` is a measure (a choice of conf/measure), which no paper has a
    number of.
    """

    name: str
    """what stands over the column"""
    task: str = ""
    """the task, or the measure with from: evaluate, whose score it is"""
    metric: str = ""
    """a key of scores.json; without it, the task's own main score"""
    stand_ins: tuple[str, ...] = ()
    """a list of tasks that may replace it ([] for none)"""
    benchmarks: tuple[str, ...] = ()
    """a list of names that stand_in_for of a task may have"""
    split: Literal["dev", "test"] = OUR_SPLIT
    """dev or test: of the paper's numbers"""
    source: Literal["pretrain", "evaluate", ""] = Field(default="", alias="from")
    """pretrain, evaluate, or left out for a task"""
    parts: Parts = Field(default=(), alias="mean_of")
    """a list of two or more different columns"""
    unit: str = ""
    """the unit of its scores, such as points; without it, the one that its runs record"""
    higher_is_better: Annotated[bool, Strict()] | None = None
    """true or false, beside unit"""

    @model_validator(mode="after")
    def _check_one_kind(self) -> Self:
        sources = [bool(self.task), self.is_pretraining, bool(self.parts)]
        if sources.count(True) != 1 or (self.source and self.parts):
            raise ValueError(
                "a column has one of task, from: pretrain and mean_of; with from: evaluate, task is"
                " a measure"
            )
        belongs_to_task = self.stand_ins or self.benchmarks or (self.parts and self.metric)
        if not self.task and belongs_to_task:
            raise ValueError(
                "stand_ins, benchmarks and a metric belong to a task's column, not to a mean"
            )
        if self.source and not self.metric:
            raise ValueError(f"a column from {self.source} has a metric, such as validation/loss")
        if bool(self.unit) != (self.higher_is_better is not None):
            raise ValueError("unit and higher_is_better belong together: say both, or neither")
        if self.unit and self.parts:
            raise ValueError("a mean is of percent: unit belongs to its columns")
        return self

    @property
    def is_pretraining(self) -> bool:
        """Whether its cells are facts of the pre-training runs, one a pre-training seed."""
        return self.source == "pretrain"

    @property
    def is_measured(self) -> bool:
        """Whether its cells are scores of evaluations: ours alone, no paper has such a column."""
        return self.source == "evaluate"

    @property
    def scale(self) -> Scale | None:
        """The declared unit and direction; None where its runs decide."""
        return Scale(self.unit, self.higher_is_better) if self.unit else None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that paper.yaml lists: the paper's own, then its stand-ins in their order."""
        return (self.task, *self.stand_ins)

    def accepts(self, task: str, stand_in_for: str | None) -> bool:
        """Whether a run of this task belongs to this column, itself or as a stand-in."""
        if not self.task:
            return False
        return task in self.tasks or stand_in_for in (self.name, self.task, *self.benchmarks)


class Row(Entry):
    """A row: the paper's cells, the arm whose encoder it takes, what else sets its runs apart."""

    name: str = Field(alias="row")
    """the row's name, as its run folders have it"""
    label: OneLine = ""
    """what stands before the row; without it, its name"""
    arm: str | None = None
    """the pre-training arm whose encoder it takes; null for a floor"""
    cells: tuple[Number | None, ...] = ()
    """a list with a number, or null, for each column"""
    floor: str | None = None
    """the row of the same head without pre-training"""
    fixed_encoder: bool = False
    """true: all its seeds fine-tune one given encoder, and claims are about that one"""
    delta: dict[str, Any] = Field(default={}, alias="set")
    """a mapping of settings, such as {epochs: 3}"""

    @property
    def has_encoder(self) -> bool:
        """Whether its encoder was trained: by its arm, or elsewhere."""
        return self.arm is not None or self.fixed_encoder

    @model_validator(mode="after")
    def _is_given(self) -> Self:
        if self.fixed_encoder and self.arm is not None:
            raise ValueError("fixed_encoder is of a row whose encoder is given: leave its arm out")
        return self


# -- claims ----------------------------------------------------------------------------------------


class BaseClaim(Entry):
    """One sentence that runs support or contradict.

    `direction` is of the number: a perplexity that gets better is lower, or decreasing.
    """

    directions: ClassVar[tuple[str, ...]] = ()
    """those that its `direction` may be"""
    has_margin: ClassVar[bool] = False
    """whether it takes `points`"""
    expects_equality: ClassVar[bool] = False
    """whether a plan counts power for rows without any true difference"""
    limits_a_loss: ClassVar[bool] = False
    """whether it says that something costs little"""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """TypeError for a kind of claim with a margin that would be tested against zero."""
        if not cls.has_margin:
            return
        for name in ("boundaries", "is_supported_by"):
            if getattr(cls, name) is getattr(BaseClaim, name):
                raise TypeError(f"{cls.__name__} has a margin, and no `{name}` made of it")

    text: OneLine
    """the claim as a sentence"""
    direction: Literal[
        "lower",
        "higher",
        "not_lower",
        "not_higher",
        "increasing",
        "decreasing",
        "within",
        "crosses",
    ]
    """lower, higher, not_lower, not_higher, crosses; with rows: increasing, decreasing, within"""
    rows: tuple[str, ...]
    """a list of two or more different rows, in the claimed order"""
    column: str
    """a column's name, or all"""
    id: str = ""
    """a name of its own"""
    paper_delta: Number | None = None
    """a number in the column's unit, or null"""
    against: tuple[str, str, str] | None = None
    """[row, row, column]"""
    points: Number = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """a number above 0, in the column's unit"""
    measured_in: Literal["tokens", "flops", "seconds"] | None = None
    """tokens, flops or seconds of pre-training, with direction: crosses"""
    primary: Literal[False, True, "together"] = False
    """true where it is tested before the others, in the file's order; together where in none"""

    @model_validator(mode="before")
    @classmethod
    def _from_compare(cls, entry: object) -> object:
        """`compare: [row, row, column]` and `[row, [row, row], column]` are rows and a column."""
        if not isinstance(entry, dict):
            return entry
        direction = entry.get("direction")
        if "compare" not in entry:
            if direction in COMPARING:
                raise ValueError(
                    f"direction is {direction!r}; with rows it is increasing, decreasing or within"
                )
            return entry
        if direction in ORDERING:
            raise ValueError(
                f"direction is {direction!r}; with compare it is one of {', '.join(COMPARING)}"
            )
        compare = entry["compare"]
        if not isinstance(compare, list) or len(compare) != 3:
            raise ValueError(
                f"compare is [row, row, column] or [row, [row, row], column], not {compare!r}"
            )
        first, other_rows, column = compare
        if not isinstance(other_rows, list):
            other_rows = [other_rows]
        without_compare = {key: value for key, value in entry.items() if key != "compare"}
        return without_compare | {"rows": [first, *other_rows], "column": column}

    @model_validator(mode="after")
    def _check_direction(self) -> Self:
        if self.direction not in self.directions:
            raise ValueError(f"no kind of claim with these keys has direction: {self.direction}")
        return self

    @model_validator(mode="after")
    def _check_rows_and_margin(self) -> Self:
        if len(self.rows) < 2 or len(set(self.rows)) < len(self.rows):
            raise ValueError(
                f"a claim needs two or more different rows, not {', '.join(self.rows) or 'none'}"
            )
        # Keys that belong to another kind say so, instead of "has no such key".
        if self.has_margin != (self.points > 0):
            raise ValueError(
                "points, a number above 0, belongs to direction: within, not_lower or not_higher,"
                " and to higher and lower without against"
            )
        is_pair = len(self.rows) == 2 and self.column != ALL_COLUMNS
        is_crossing = isinstance(self, CrossingClaim)
        has_extra = bool(self.against) or self.paper_delta is not None
        if is_crossing and (has_extra or not is_pair):
            raise ValueError(
                "crosses takes a compare of two rows on one column, and neither against nor"
                " paper_delta"
            )
        if self.measured_in and not is_crossing:
            raise ValueError("measured_in belongs to direction: crosses and to no other")
        self._check_against(is_pair=is_pair)
        self._check_paper_delta()
        return self

    def _check_against(self, *, is_pair: bool) -> None:
        if self.against is None:
            return
        first, second, _ = self.against
        if not (is_pair and self.direction in ("lower", "higher")):
            raise ValueError("against takes a compare of two rows on one column, higher or lower")
        if first == second:
            raise ValueError(f"against compares {first!r} with itself")
        if self.against == (*self.rows, self.column):
            raise ValueError("against is the same difference as compare")

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

    @property
    def pairs(self) -> list[RowPair]:
        """The differences that the claim is about, each first - second."""
        first, *others = self.rows
        return [(first, other) for other in others]

    @property
    def boundaries(self) -> tuple[float, ...]:
        """The values that a test compares each difference with, in ascending order."""
        return ZERO

    def is_supported_by(self, mean: float) -> bool:
        """Whether a mean difference lies on the claimed side."""
        if self.direction in FALLING:
            return mean < 0.0
        return mean > 0.0

    def hypotheses(self, column: str) -> list[Hashable]:
        """A key for each difference on a column: two claims with one key test the same thing."""
        keys: list[Hashable] = []
        for first, second in self.pairs:
            # That a - b is -1 and that b - a is 1 is one hypothesis.
            boundaries = self.boundaries if first < second else negated(self.boundaries)
            keys.append((frozenset((first, second)), column, boundaries, self.against))
        return keys

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

    directions = ("lower", "higher")


class TrendClaim(BaseClaim):
    """Each row is higher (or lower) than the row before it."""

    directions = ("increasing", "decreasing")

    @property
    def pairs(self) -> list[RowPair]:
        return [(later, earlier) for earlier, later in pairwise(self.rows)]


class EquivalenceClaim(BaseClaim):
    """No two rows differ by `points` or more.

    It holds where the 95 % interval lies inside the margin: two one-sided tests at 2.5 %. Textbooks
    take 90 % and 5 %; a claim may be contradicted here, too, so both sides count.
    """

    directions = ("within",)
    has_margin = True
    expects_equality = True

    @property
    def pairs(self) -> list[RowPair]:
        return list(combinations(self.rows, 2))

    @property
    def boundaries(self) -> tuple[float, ...]:
        return (-self.points, self.points)

    def is_supported_by(self, mean: float) -> bool:
        return abs(mean) < self.points


class NoninferiorityClaim(BaseClaim):
    """The first row is not lower (or not higher) than another by `points` or more.

    It holds where the whole 95 % interval lies on the claimed side of the margin: a one-sided test
    at 2.5 %. It is contradicted where the whole interval lies beyond the margin.
    """

    directions = ("not_lower", "not_higher")
    has_margin = True
    expects_equality = True
    limits_a_loss = True

    @property
    def boundaries(self) -> tuple[float, ...]:
        return (-self.points,) if self.direction == "not_lower" else (self.points,)

    def is_supported_by(self, mean: float) -> bool:
        (margin,) = self.boundaries
        return mean > margin if self.direction == "not_lower" else mean < margin


class SuperiorityClaim(NoninferiorityClaim):
    """The first row is higher (or lower) than another by `points` at least.

    Tested as a noninferiority claim, at the other side of zero.
    """

    directions = ("lower", "higher")
    expects_equality = False
    limits_a_loss = False

    @property
    def boundaries(self) -> tuple[float, ...]:
        return (self.points,) if self.direction == "higher" else (-self.points,)

    def is_supported_by(self, mean: float) -> bool:
        (margin,) = self.boundaries
        return mean > margin if self.direction == "higher" else mean < margin


class CrossingClaim(BaseClaim):
    """The first row's line is behind the second's at the beginning, and ahead at the end."""

    directions = ("crosses",)

    def hypotheses(self, column: str) -> list[Hashable]:
        at_start = frozenset(("at the first common point", *self.rows))
        return [*super().hypotheses(column), (at_start, column, self.boundaries, self.against)]


class ContrastClaim(BaseClaim):
    """A difference of differences: `compare` less `against`."""

    directions = ("lower", "higher")

    @property
    def weighted_cells(self) -> list[tuple[float, str, str]]:
        assert self.against is not None
        first, second, column = self.against
        return [*super().weighted_cells, (-1.0, first, column), (1.0, second, column)]


# directions that only one kind of claim has
CLASS_OF_DIRECTION: dict[str, type[BaseClaim]] = {}
for _kind in (EquivalenceClaim, NoninferiorityClaim, CrossingClaim, TrendClaim):
    CLASS_OF_DIRECTION |= dict.fromkeys(_kind.directions, _kind)


def _claim_class(entry: object) -> str:
    """The name of the class that an entry of paper.yaml is one of."""
    if isinstance(entry, BaseClaim):
        return type(entry).__name__
    fields = entry if isinstance(entry, dict) else {}
    otherwise: type[BaseClaim] = OrderClaim
    if fields.get("against"):
        otherwise = ContrastClaim
    elif fields.get("points"):
        otherwise = SuperiorityClaim
    return CLASS_OF_DIRECTION.get(str(fields.get("direction")), otherwise).__name__


_MarginClaim = (
    Annotated[EquivalenceClaim, Tag("EquivalenceClaim")]
    | Annotated[NoninferiorityClaim, Tag("NoninferiorityClaim")]
    | Annotated[SuperiorityClaim, Tag("SuperiorityClaim")]
)
Claim = Annotated[
    Annotated[OrderClaim, Tag("OrderClaim")]
    | Annotated[TrendClaim, Tag("TrendClaim")]
    | _MarginClaim
    | Annotated[CrossingClaim, Tag("CrossingClaim")]
    | Annotated[ContrastClaim, Tag("ContrastClaim")],
    Discriminator(_claim_class),
]


# -- the whole -------------------------------------------------------------------------------------


class SequentialDesign(Entry):
    """When seeds are enough, fixed before the first analysis (`stopping:` in paper.yaml).

    There is an interim analysis after each of the seeds from `first` to `most`. Tests allow for
    all of them: whoever stops at one has no more false verdicts.
    """

    first: Annotated[int, Strict()] = Field(ge=2)
    """pre-training seeds of the first interim analysis, 2 or more"""
    most: Annotated[int, Strict()] = Field(le=50)
    """seeds of the last interim analysis, at most 50"""

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.most < self.first:
            raise ValueError(
                f"the last interim analysis is at {self.most} seeds, before the first"
                f" at {self.first}"
            )
        return self


def refuse_ambiguous_all(names: Collection[str], claims: Iterable[BaseClaim]) -> None:
    """ValueError where a claim is on `all`, and one of the columns is called so, too."""
    for claim in claims:
        if claim.column == ALL_COLUMNS and ALL_COLUMNS in names:
            raise ValueError(
                f"claims: {claim.text!r} is on {ALL_COLUMNS!r}, which means every column, and one"
                " of them is called so: give that one another name"
            )


class TableSpec(Entry):
    """Columns, rows and claims of a table: what a judgement needs to know of an experiment."""

    split: Literal["dev", "test"] = OUR_SPLIT
    """dev or test: of the paper's numbers"""
    columns: tuple[Column, ...]
    """a list of columns"""
    rows: tuple[Row, ...] = ()
    """a list of rows; without it, one for each arm and a floor"""
    claims: tuple[Claim, ...] = ()
    """a list of claims ([] for none)"""
    source: str = ""
    """where the paper's numbers are from; nothing where there is no paper"""
    stopping: SequentialDesign | None = None
    """a mapping such as {first: 3, most: 8}"""
    averaging: Literal["mean", "median", "best", ""] = ""
    """one of mean, median, best"""

    @model_validator(mode="after")
    def _check_unique_names(self) -> Self:
        names = [f"columns: name {column.name!r}" for column in self.columns]
        names += [f"rows: row {row.name!r}" for row in self.rows]
        names += [f"claims: id {claim.id!r}" for claim in self.claims if claim.id]
        names += [f"claims: text {claim.text!r}" for claim in self.claims]
        repeated = [name for name in names if names.count(name) > 1]
        if repeated:
            raise ValueError(f"{repeated[0]} is there twice; give each its own")
        refuse_ambiguous_all([column.name for column in self.columns], self.claims)
        if len({claim.primary for claim in self.claims} - {False}) > 1:
            raise ValueError("claims: primary is true for some and together for others; choose one")
        return self

    @property
    def all_columns(self) -> list[Column]:
        """What a claim on all columns is about: the paper's tasks, without our own measures."""
        return [column for column in self.columns if column.task and not column.is_measured]

    @property
    def has_numbers(self) -> bool:
        cells = chain.from_iterable(row.cells for row in self.rows)
        return any(cell is not None for cell in cells)

    @property
    def has_paper(self) -> bool:
        return bool(self.source) or self.has_numbers

    @property
    def has_fixed_encoders(self) -> bool:
        """Whether each row is one given encoder."""
        return all(row.fixed_encoder for row in self.rows)

    @property
    def replication(self) -> str:
        """The seed that claims are tested over: of given encoders alone, that of fine-tuning."""
        compared = set(chain.from_iterable(claim.all_rows for claim in self.claims))
        if compared and all(self.row(name).fixed_encoder for name in compared):
            return FINETUNING_SEED
        return PRETRAINING_SEED

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def label(self, name: str) -> str:
        """What stands before a row; its name where it is none of the rows."""
        return next((row.label for row in self.rows if row.name == name), name)

    def printed(self, row: str, column: str) -> float | None:
        """The paper's number of a cell; None where it has none."""
        names = [known.name for known in self.columns]
        return self.row(row).cells[names.index(column)]

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)
