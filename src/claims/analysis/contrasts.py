"""Contrasts: sums of weighted cells that a test compares with zero, or with the ends of a margin.

The difference of two rows is one, and so is a difference of differences, or the gap of two
learning curves at a place between their points.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from statistics import fmean
from typing import NamedTuple

from claims.analysis.comparability import Exclusion, Pair, find_incomparability, provenance
from claims.analysis.grouping import group_by
from claims.analysis.schema import PERCENT, ZERO, Row, SequentialDesign, negated
from claims.analysis.scores import Cell, DataColumn, ScoredRun, ScoreTable
from claims.analysis.statistics import (
    FINETUNING_SEEDS,
    PRETRAINING_SEEDS,
    Estimate,
    Scores,
    Seeds,
    estimate_contrast,
    sequential_p,
)
from claims.text.phrases import join_list

CEILING = 100.0  # no score in percent is higher
# how the names of scores on held-out text begin
HELD_OUT = "validation/"
# figures of pre-training whose size depends on which tokens an objective predicts
LOSS_FIGURES = ("validation/loss", "validation/perplexity", "validation/accuracy")


class ContrastTerm(NamedTuple):
    """A cell and its weight in a contrast."""

    weight: float
    row: str
    column: DataColumn


@dataclass(frozen=True)
class ContrastKey:
    """What a test is about: two contrasts with one key test the same hypothesis.

    A contrast and its negation, with the rows exchanged, have one key.
    """

    # (weight, row, key of the data set)
    terms: tuple[tuple[float, str, str], ...]
    # the values that it is compared with
    boundaries: tuple[float, ...]

    @classmethod
    def from_terms(
        cls, terms: Iterable[tuple[float, str, str]], boundaries: tuple[float, ...]
    ) -> ContrastKey:
        # a - b and b - a are one test: the smaller way to write it is the key.
        plain = sorted(terms)
        opposite = sorted((-weight, row, key) for weight, row, key in plain)
        if opposite < plain:
            return cls(tuple(opposite), negated(boundaries))
        return cls(tuple(plain), boundaries)

    def for_history(self) -> str:
        """The text under which the analysis log knows the hypothesis.

        The weights between two checkpoints (+0.3 of one, +0.7 of the next) are other ones with
        every added seed, so there only their sign counts: +0.5 each. A margin does not count:
        whoever has seen a difference knows which margins hold it.
        """
        terms = []
        for weight, row, key in self.terms:
            sign_only = math.copysign(0.5, weight) if weight % 1 else weight
            terms.append((sign_only, row, key))
        key_without_weights = ContrastKey.from_terms(terms, ZERO)
        return " ".join(
            f"{weight:+g} {row} on {key}" for weight, row, key in key_without_weights.terms
        )


def format_seeds(seeds: Iterable[Seeds]) -> str:
    """`1 2 3/1 2`: pre-training and fine-tuning seeds, as the analysis log has them."""
    pairs = list(seeds)
    pretraining = sorted({seed for seed, _ in pairs})
    finetuning = sorted({seed for _, seed in pairs})
    sides = []
    for side in (pretraining, finetuning):
        sides.append(" ".join(map(str, side)))
    return "/".join(filter(None, sides))


@dataclass(frozen=True)
class Exclusions:
    """The reasons for which a contrast is not tested."""

    incomparability: Exclusion | None = None
    missing: Exclusion | None = None
    # which seeds of its cells are one and the same run, in words
    duplicates: str = ""
    # a cell of it has no run that read its input
    every_run_collapsed: bool = False

    @property
    def is_comparable(self) -> bool:
        return self.incomparability is None and self.missing is None


@dataclass(frozen=True)
class Context:
    """What a reader must know beside a contrast, in words.

    All of it is tested; one with a row below its floor decides nothing, though.
    """

    # to how many tokens its cells' texts were cut, where that is not the same for all
    text_lengths: str = ""
    # what its runs were made with, where that differs and bars nothing
    provenance: str = ""
    # rows below their floor, unless the contrast is the difference from that floor
    below_baseline: str = ""
    # rows that are one given encoder, and what to do where that leaves too few pairs of seeds
    encoders: tuple[str, ...] = ()
    # cells that lack runs, or have collapsed ones
    cells: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contrast:
    """One difference that a verdict rests on, in the column's unit."""

    # which one it is, where a claim has several
    label: str
    # two by two: a cell, and the one that it is compared with
    terms: tuple[ContrastTerm, ...]
    # None where no seed is common to all cells
    difference: Estimate | None
    # the values that it is tested against, in ascending order: the one nearest to the mean counts
    boundaries: tuple[float, ...] = ZERO
    exclusions: Exclusions = Exclusions()
    context: Context = Context()
    # some run behind it gave one answer to everything
    has_collapsed: bool = False
    # the difference over the runs that did not, where some did
    without_collapsed: Estimate | None = None
    # each of its rows is one given encoder: fine-tunings are the replications
    has_fixed_encoders: bool = False
    # that all of its cells have: "1 2 3/1 2"
    seeds: str = ""
    design: SequentialDesign | None = None
    # it at each interim analysis of the design, the last one being over all of the design's seeds
    interim: tuple[Contrast, ...] = ()

    @cached_property
    def key(self) -> ContrastKey:
        terms = []
        for term in self.terms:
            terms.append((term.weight, term.row, term.column.key))
        return ContrastKey.from_terms(terms, self.boundaries)

    @cached_property
    def is_tested(self) -> bool:
        """Whether there is an interval over replications that may decide something."""
        exclusions = self.exclusions
        if self.difference is None or not exclusions.is_comparable:
            return False
        if exclusions.every_run_collapsed or exclusions.duplicates:
            return False
        return self.has_replications(self.difference) and not self.difference.has_no_spread

    @property
    def has_no_spread(self) -> bool:
        return self.difference is not None and self.difference.has_no_spread

    def has_replications(self, estimate: Estimate) -> bool:
        """Whether an interval is over what a verdict may rest on.

        That is pre-training seeds; between given encoders, one a row, it is fine-tuning seeds.
        """
        if self.has_fixed_encoders:
            return estimate.basis == FINETUNING_SEEDS
        return estimate.basis == PRETRAINING_SEEDS

    @cached_property
    def p_value(self) -> float | None:
        """Two-sided, of one analysis of all seeds; None where nothing is tested.

        Where some runs collapsed it is the larger one, with or without them: none of them may
        decide a claim.
        """
        if self.difference is None or not self.is_tested:
            return None
        if self.depends_on_collapsed_runs:
            return 1.0
        p_values = []
        for estimate in self._with_and_without_collapsed():
            p_value = estimate.p_value(nearest_boundary(estimate.mean, self.boundaries))
            if p_value is not None:
                p_values.append(p_value)
        return max(p_values, default=None)

    @cached_property
    def sequentially_adjusted_p(self) -> float | None:
        """What a verdict rests on: the plain p, or under a sequential design that of all analyses.

        It is None before the design's first analysis. An analysis at which the mean lay on the
        other side of what is tested says nothing for where it lies now.
        """
        if self.design is None or self.p_value is None:
            return self.p_value
        if not self.interim:
            return None
        is_low = self._is_on_low_side(self.decided_on)
        p_values = []
        for analysis in self.interim:
            is_other_side = self._is_on_low_side(analysis.difference) != is_low
            if analysis.p_value is None or is_other_side:
                p_values.append(1.0)
            else:
                p_values.append(analysis.p_value)
        return sequential_p(p_values, self.design.first, self.design.most)

    @property
    def decided_on(self) -> Estimate | None:
        """The difference whose side a verdict names: under a design that of the last analysis."""
        return self.interim[-1].difference if self.interim else self.difference

    @property
    def standardized_effects(self) -> list[float]:
        """How far the mean lies from what a test has to exclude, in standard deviations.

        Within a margin these are both ends. With collapsed runs it is the nearer of the means with
        and without them.
        """
        candidates = []
        for estimate in self._with_and_without_collapsed():
            boundaries = [nearest_boundary(estimate.mean, self.boundaries)]
            # Between two boundaries the test has to exclude both.
            if self._is_on_low_side(estimate):
                boundaries = list(self.boundaries)
            gaps = [abs(estimate.mean - boundary) for boundary in boundaries]
            candidates.append([_in_standard_deviations(gap, estimate.sd) for gap in gaps])
        return min(candidates, key=min, default=[])

    @property
    def depends_on_collapsed_runs(self) -> bool:
        """Whether the runs that did not collapse say something else, or too little."""
        if self.difference is None or not self.has_collapsed:
            return False
        others = self.without_collapsed
        if others is None or not self.has_replications(others) or others.has_no_spread:
            return True
        return self._is_on_low_side(self.difference) != self._is_on_low_side(others)

    def _with_and_without_collapsed(self) -> list[Estimate]:
        estimates = (self.difference, self.without_collapsed)
        return [estimate for estimate in estimates if estimate is not None]

    def _is_on_low_side(self, estimate: Estimate | None) -> bool:
        """Whether a mean lies below the one boundary, or between both."""
        mean = estimate.mean if estimate else math.nan
        low = self.boundaries[0]
        high = self.boundaries[-1]
        if low == high:
            return mean < low
        return low < mean < high


def nearest_boundary(mean: float, boundaries: Sequence[float]) -> float:
    """The value that a test compares a mean with: of several the nearest one."""
    return min(boundaries, key=lambda boundary: abs(mean - boundary))


def _in_standard_deviations(gap: float, sd: float | None) -> float:
    if sd:
        return gap / sd
    return math.inf if gap > 1e-9 else 0.0


@dataclass(frozen=True)
class LearningCurve:
    """One arm along its pre-training, on a data set."""

    name: str
    # "tokens", "flops", "seconds"; empty for shares of the steps
    unit: str
    # (amount, row), in order
    points: tuple[tuple[float, str], ...]

    @property
    def start(self) -> float:
        return self.points[0][0]

    @property
    def end(self) -> float:
        return self.points[-1][0]

    def rows_around(self, amount: float) -> list[tuple[float, str]]:
        """(weight, row) of the rows around an amount.

        Between them scores are straight lines over the logarithm of the amount.
        """
        amounts = [known for known, _ in self.points]
        index = bisect_right(amounts, amount) - 1
        left, row = self.points[index]
        is_last = index + 1 == len(self.points)
        if left == amount or is_last:
            return [(1.0, row)]
        right, next_row = self.points[index + 1]
        share = math.log(amount / left) / math.log(right / left)
        return [(1.0 - share, row), (share, next_row)]


# -- making contrasts of a table -----------------------------------------------------------------


def contrast_rows(
    table: ScoreTable,
    first: str,
    second: str,
    column: DataColumn,
    *,
    label: str = "",
    boundaries: tuple[float, ...] = ZERO,
) -> Contrast:
    """The difference of two rows on one data set, whether or not a claim is about it."""
    terms = (ContrastTerm(1.0, first, column), ContrastTerm(-1.0, second, column))
    return make_contrast(table, terms, label=label, boundaries=boundaries)


def make_contrast(
    table: ScoreTable,
    terms: tuple[ContrastTerm, ...],
    *,
    label: str = "",
    boundaries: tuple[float, ...] = ZERO,
) -> Contrast:
    """A contrast with all that is known of its cells."""
    cells = []
    for term in terms:
        cells.append(table.cells[term.row, term.column.key])
    has_fixed_encoders = all(table.row(term.row).fixed_encoder for term in terms)
    paired = _paired_cells(terms, cells, has_fixed_encoders)
    has_collapsed = any(cell.num_collapsed for cell in cells)
    difference, without_collapsed = _estimates(terms, paired, has_fixed_encoders)
    other_classes = _other_classes(terms, cells)
    exclusions = Exclusions(
        incomparability=other_classes or _incomparability(table, terms, cells),
        missing=_missing(table, terms, paired, difference),
        duplicates=_duplicates(table, terms, paired),
        every_run_collapsed=any(cell.is_collapsed for cell in cells),
    )
    context = Context(
        text_lengths=_text_lengths(cells),
        provenance=_provenance(table, terms),
        below_baseline=_rows_below_baseline(table, terms),
        encoders=_fixed_encoders(table, terms, paired),
        cells=_cell_cautions(table, terms),
    )
    # F1 of one class less F1 of another is no difference of two rows.
    if other_classes:
        difference = None
        without_collapsed = None
    contrast = Contrast(
        label=label,
        terms=terms,
        difference=difference,
        boundaries=boundaries,
        exclusions=exclusions,
        context=context,
        has_collapsed=has_collapsed,
        without_collapsed=without_collapsed if has_collapsed else None,
        has_fixed_encoders=has_fixed_encoders,
        seeds=format_seeds(_common_seeds(paired)),
    )
    design = table.spec.stopping
    if design is None:
        return contrast
    return replace(contrast, design=design, interim=_interim(contrast, design, paired))


def _finetune_seeds(cell: Cell) -> frozenset[int]:
    return frozenset(finetune_seed for _, finetune_seed in cell.scores)


def _paired_cells(
    terms: Sequence[ContrastTerm], cells: Sequence[Cell], has_fixed_encoders: bool
) -> list[Cell]:
    """The cells as a difference pairs them by seed.

    Cells of several data sets may have unlike seeds: a measure has one number a pre-training seed,
    a task may have several, and pairs would leave out all but one. Such cells are averaged over
    those fine-tuning seeds that each data set's cells have in common.
    """
    finetune_seeds = {_finetune_seeds(cell) for cell in cells if cell.scores}
    is_one_dataset = all(term.column == terms[0].column for term in terms)
    if len(finetune_seeds) < 2 or is_one_dataset:
        return list(cells)
    # Between given encoders a pair is one fine-tuning seed.
    if has_fixed_encoders and len(_common_seeds(cells)) > 1:
        return list(cells)

    averaged = []
    by_dataset = group_by(zip(terms, cells, strict=True), lambda pair: pair[0].column.key)
    for term, cell in zip(terms, cells, strict=True):
        other_scores = [other for _, other in by_dataset[term.column.key]]
        scores = _pretraining_means(cell.scores, [other.scores for other in other_scores])
        healthy = _pretraining_means(cell.healthy, [other.healthy for other in other_scores])
        averaged.append(replace(cell, scores=scores, healthy=healthy))
    return averaged


def _pretraining_means(scores: Scores, other_scores: Sequence[Scores]) -> dict[Seeds, float]:
    """(pre-training seed, 0) -> mean over the fine-tuning seeds that all cells with scores have."""
    common = set(scores)
    for others in other_scores:
        if others:
            common &= others.keys()
    means = {}
    for pretrain_seed, group in group_by(sorted(common), lambda seeds: seeds[0]).items():
        means[pretrain_seed, 0] = fmean(scores[seeds] for seeds in group)
    return means


def _estimates(
    terms: Sequence[ContrastTerm], cells: Sequence[Cell], has_fixed_encoders: bool
) -> tuple[Estimate | None, Estimate | None]:
    """(the difference, the same without collapsed runs)."""
    with_all = _difference(terms, [cell.scores for cell in cells], has_fixed_encoders)
    healthy = [cell.healthy for cell in cells]
    return with_all, _difference(terms, healthy, has_fixed_encoders)


def _difference(
    terms: Sequence[ContrastTerm], scores: Sequence[Scores], has_fixed_encoders: bool
) -> Estimate | None:
    weights = [term.weight for term in terms]
    weighted = list(zip(weights, scores, strict=True))
    difference = estimate_contrast(weighted, of_one_encoder=has_fixed_encoders)
    if difference is None or not difference.has_no_spread:
        return difference
    resolution = _resolution_at_ceiling(terms, scores)
    return difference.at_ceiling(resolution) if resolution else difference


def _resolution_at_ceiling(terms: Sequence[ContrastTerm], scores: Sequence[Scores]) -> float | None:
    """The difference if each cell's score fell by one answer, in points; None below the ceiling.

    Two cells of 800 examples: 2 x 100 / 800 = 0.25 points.
    """
    resolution = 0.0
    for term, cell_scores in zip(terms, scores, strict=True):
        answer = _weight_per_answer(term.column)
        if not answer or any(score < CEILING for score in cell_scores.values()):
            return None
        resolution += abs(term.weight) * answer
    return resolution


def _weight_per_answer(column: DataColumn) -> float | None:
    """By how many points a score below its ceiling is lower, at most, for one wrong answer.

    None where that is not known. Of 400 entities it is 2 x 100 / 400 = 0.5 points: one wrong tag
    makes an entity of another type (one is lost and one is wrong: 1 / 400), or cuts one in three
    (one is lost and three are wrong: 2 / 400).
    """
    if column.unit != PERCENT:
        return None
    if column.metric.endswith("accuracy") and column.num_examples:
        return CEILING / column.num_examples
    if column.metric.endswith("/f1") and column.num_entities:
        return 2.0 * CEILING / column.num_entities
    return None


def _common_seeds(cells: Sequence[Cell]) -> set[Seeds]:
    return set.intersection(*(set(cell.scores) for cell in cells))


def _incomparability(
    table: ScoreTable, terms: Sequence[ContrastTerm], cells: Sequence[Cell]
) -> Exclusion | None:
    """Another split, metric, protocol, or other tokens; None where the cells may be compared."""
    reason = _other_scores([term.column for term in terms])
    if reason is None:
        reason = _other_targets(table, terms)
    if reason is None:
        reason = _other_tokens(terms, cells)
    if reason is None:
        reason = _other_text(terms, cells)
    if reason is not None:
        return reason
    for pair in _evidence(table, terms):
        reason = find_incomparability(pair)
        if reason is not None:
            return reason
    for term, cell in zip(terms, cells, strict=True):
        # A given encoder is measured with heads of another arm, which are of several seeds.
        if term.column.is_measured:
            continue
        reason = _several_encoders(table.row(term.row), cell)
        if reason is not None:
            return reason
    contexts = {run.is_causal for run in _contributing_runs(cells)} - {None}
    if len(contexts) > 1:
        return Exclusion("other context", "one is asked from the left, one from both sides")
    return None


def _parts_of(term: ContrastTerm, cell: Cell) -> list[tuple[DataColumn, Cell]]:
    """The cells that a mean is of, on several data sets; of any other cell itself."""
    parts = list(chain.from_iterable(cell.groups))
    return parts if parts else [(term.column, cell)]


def _other_classes(terms: Sequence[ContrastTerm], cells: Sequence[Cell]) -> Exclusion | None:
    """Scores on one data set, each of one class, that are of several classes."""
    classes_by_column: dict[str, set[str]] = {}
    for term, cell in zip(terms, cells, strict=True):
        for column, part in _parts_of(term, cell):
            classes_by_column.setdefault(column.key, set()).update(part.classes)
    for classes in classes_by_column.values():
        if len(classes) > 1:
            named = " against ".join(name or "no named class" for name in sorted(classes))
            return Exclusion("other class", f"another class: F1 of {named}")
    return None


def _several_encoders(row: Row, cell: Cell) -> Exclusion | None:
    """A row that says it has one given encoder, and whose runs began with others, too."""
    count = len({run.encoder for run in _contributing_runs([cell])})
    if not row.fixed_encoder or count <= 1:
        return None
    return Exclusion(
        "several encoders",
        f"{row.label} says fixed_encoder, and its runs began with {count} encoders",
    )


def _other_scores(columns: Sequence[DataColumn]) -> Exclusion | None:
    """Cells of two splits, or of another score than the claim is about."""
    splits = dict.fromkeys(column.metric.partition("/")[0] for column in columns if column.metric)
    if len(splits) > 1:
        return Exclusion(
            "other split", f"another split: cells of {' against cells of '.join(splits)}"
        )
    for column in columns:
        claimed = column.column.metric if column.column else ""
        if claimed and column.tasks and column.metric != claimed:
            text = f"another metric: {column.metric}, where the claim is about {claimed}"
            return Exclusion("other metric", text)
    units = dict.fromkeys(column.unit for column in columns)
    if len(units) > 1:
        text = f"another unit: {' and '.join(units)} cannot be subtracted"
        return Exclusion("other unit", text)
    return None


def _other_targets(table: ScoreTable, terms: Sequence[ContrastTerm]) -> Exclusion | None:
    """Losses of objectives that predict other tokens, or score them otherwise."""
    targets = set()
    for term in terms:
        if term.column.is_pretraining and term.column.metric.startswith(LOSS_FIGURES):
            targets |= table.prediction_targets(term.row)
    if len(targets) < 2:
        return None
    return Exclusion(
        "other targets",
        "their objectives predict other tokens or score them otherwise, so losses do not compare:"
        " measure=held_out_text asks alike",
    )


def _other_tokens(terms: Sequence[ContrastTerm], cells: Sequence[Cell]) -> Exclusion | None:
    """Scores that are means over the tokens of several tokenizers.

    A byte is easier to predict than a word: 1.2 nats against 3.0 may be the better word model.
    """
    tokenizers = set()
    for term, cell in zip(terms, cells, strict=True):
        if term.column.metric.startswith(LOSS_FIGURES):
            tokenizers |= {run.tokenizer for run in _contributing_runs([cell])}
    if len(tokenizers - {None}) < 2:
        return None
    return Exclusion(
        "other tokens",
        "their tokenizers cut text into other tokens, so scores of a token do not compare:"
        " measure=held_out_text has bits_per_character",
    )


def _other_text(terms: Sequence[ContrastTerm], cells: Sequence[Cell]) -> Exclusion | None:
    """Figures of pre-training on several held-out texts; one text may be cut into other tokens."""
    held_out = []
    for term, cell in zip(terms, cells, strict=True):
        if term.column.is_pretraining and term.column.metric.startswith(HELD_OUT):
            held_out.append(cell)
    runs = _contributing_runs(held_out)
    texts = {run.text for run in runs}
    is_one_text = len(texts) == 1 and None not in texts
    if is_one_text or len({run.corpus for run in runs}) < 2:
        return None
    return Exclusion(
        "other text",
        "each arm was scored on held-out text of its own corpus, so these scores do not compare:"
        " measure=held_out_text with measure.data.sources reads one text",
    )


def _evidence(table: ScoreTable, terms: Sequence[ContrastTerm]) -> Iterator[Pair]:
    """What is known of every two terms whose cells stand against each other."""
    for first, second in zip(terms[::2], terms[1::2], strict=True):
        pair = table.evidence(first.row, second.row, first.column.tasks)
        if pair:
            yield pair


def _contributing_runs(cells: Iterable[Cell]) -> list[ScoredRun]:
    runs: list[ScoredRun] = []
    for cell in cells:
        for part in cell.parts:
            runs += part.runs.values()
    return runs


def _missing(
    table: ScoreTable,
    terms: Sequence[ContrastTerm],
    cells: Sequence[Cell],
    difference: Estimate | None,
) -> Exclusion | None:
    labels: dict[str, None] = {}
    for term, cell in zip(terms, cells, strict=True):
        if cell.scores:
            continue
        label = table.label(term.row)
        labels[label] = None
        if cell.num_unscored:
            return exclude_missing_metric(cell.num_unscored, term.column.metric, f" of {label}")
    if labels:
        return Exclusion("no run", f"no complete run of {' and '.join(labels)}")
    if difference is None:
        return Exclusion("no common seed", "the rows have no seed in common")
    return None


def exclude_missing_metric(count: int, metric: str, of_row: str = "") -> Exclusion:
    text = f"another metric: {count} complete run(s){of_row} have no {metric}"
    return Exclusion("no such score", text)


def _duplicates(table: ScoreTable, terms: Sequence[ContrastTerm], cells: Sequence[Cell]) -> str:
    """Which pre-training seeds of a row began from one and the same encoder; empty for none."""
    texts: dict[str, None] = {}
    for term, cell in zip(terms, cells, strict=True):
        # Of one given encoder nobody expects another thing.
        if table.row(term.row).fixed_encoder:
            continue
        for part in cell.parts:
            shared = shared_encoder(part.runs.values())
            if shared:
                texts[f"{table.label(term.row)}: {shared}"] = None
    return "; ".join(texts)


def shared_encoder(runs: Iterable[ScoredRun]) -> str:
    """Which pre-training seeds of one row on one task share an encoder; empty where none do."""
    usable = [run for run in runs if run.encoder and not run.is_collapsed]
    for group in group_by(usable, lambda run: run.encoder).values():
        seeds = sorted({run.seeds[0] for run in group})
        if len(seeds) > 1:
            return f"pre-training seeds {join_list(map(str, seeds))} are one and the same encoder"
    return ""


def _text_lengths(cells: Sequence[Cell]) -> str:
    """To how many tokens each cell's texts were cut, where all say so and not all say the same.

    Rows are cut to what their encoder was trained on: one from the middle of a run may have seen
    short rows only.
    """
    lengths: dict[str, None] = {}
    for cell in cells:
        known = {run.max_seq_length for run in _contributing_runs([cell]) if run.max_seq_length}
        lengths["/".join(map(str, sorted(known)))] = None
    if len(lengths) < 2 or not all(lengths):
        return ""
    return f"texts cut to {' against '.join(lengths)} tokens"


def _provenance(table: ScoreTable, terms: Sequence[ContrastTerm]) -> str:
    texts = map(provenance, _evidence(table, terms))
    return next(filter(None, texts), "")


def _rows_below_baseline(table: ScoreTable, terms: Sequence[ContrastTerm]) -> str:
    rows = {term.row for term in terms}
    texts: dict[str, None] = {}
    for term in terms:
        if table.row(term.row).floor not in rows:
            texts[table.below_baseline(term.row, term.column)] = None
    return "; ".join(filter(None, texts))


def _cell_cautions(table: ScoreTable, terms: Sequence[ContrastTerm]) -> tuple[str, ...]:
    cautions = []
    for row, key in dict.fromkeys((term.row, term.column.key) for term in terms):
        cell = table.cells[row, key]
        label = table.label(row)
        if cell.missing:
            cautions.append(f"{len(cell.missing)} run(s) of {label} missing")
        if cell.num_collapsed:
            cautions.append(f"{cell.num_collapsed} collapsed run(s) of {label}")
        if cell.is_collapsed:
            cautions.append(f"every run of {label} collapsed: it has measured nothing")
    return tuple(cautions)


def _num_pretrain_seeds(seeds: Iterable[Seeds]) -> int:
    return len({pretrain_seed for pretrain_seed, _ in seeds})


def _fixed_encoders(
    table: ScoreTable, terms: Sequence[ContrastTerm], cells: Sequence[Cell]
) -> tuple[str, ...]:
    """Which rows are one given encoder, and which seeds it lacks to be paired with another row."""
    fixed: dict[str, None] = {}
    count_noun: dict[str, None] = {}
    for term, cell in zip(terms, cells, strict=True):
        label = table.label(term.row)
        if table.row(term.row).fixed_encoder:
            fixed[label] = None
        elif _num_pretrain_seeds(cell.scores) > 1:
            count_noun[label] = None
    texts = [f"{label} is one encoder: its seeds are of fine-tuning alone" for label in fixed]
    if _num_pretrain_seeds(_common_seeds(cells)) < 2:
        for label, other in product(fixed, count_noun):
            texts.append(f"give {label} the pretrain_seed= of {other}, so that they are pairs")
    return tuple(texts)


def _interim(
    contrast: Contrast, design: SequentialDesign, cells: Sequence[Cell]
) -> tuple[Contrast, ...]:
    """The contrast over the first seeds, as of each analysis; seeds come in their order."""

    # Of an arm's encoders all fine-tunings of one pre-training are one; of given ones each is.
    def replication_of(seeds: Seeds) -> Seeds:
        return seeds if contrast.has_fixed_encoders else (seeds[0], 0)

    replications = sorted(set(map(replication_of, _common_seeds(cells))))
    analyses = []
    for count in range(design.first, min(len(replications), design.most) + 1):
        first = replications[:count]
        of_seeds = []
        for cell in cells:
            kept = [seeds for seeds in cell.scores if replication_of(seeds) in first]
            of_seeds.append(_of_seeds(cell, kept))
        difference, without_collapsed = _estimates(
            contrast.terms, of_seeds, contrast.has_fixed_encoders
        )
        if not contrast.has_collapsed:
            without_collapsed = None
        analyses.append(
            replace(contrast, difference=difference, without_collapsed=without_collapsed)
        )
    return tuple(analyses)


def _of_seeds(cell: Cell, kept: Sequence[Seeds]) -> Cell:
    """A cell with the scores of some of its seeds alone."""
    scores = {seeds: cell.scores[seeds] for seeds in kept}
    healthy = {seeds: cell.healthy[seeds] for seeds in kept if seeds in cell.healthy}
    return replace(cell, scores=scores, healthy=healthy)
