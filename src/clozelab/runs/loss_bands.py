"""Whether a pre-training's held-out loss is usual: the losses of published runs of its kind.

conf/loss_bands.json has them, a band a kind; benchmarks/loss_bands.py makes it from packs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from claims.analysis.comparability import is_within
from clozelab.runs.identity import identity_of
from clozelab.runs.record import Record
from clozelab.text.paths import CONF_DIR
from clozelab.text.plain import JsonObject, read_json
from clozelab.training.measuring import read_rows

# Settings without a part in the loss, and those that `settings_of` writes in another form.
LEFT_OUT = (
    *("experiment", "arm", "seed", "trainer", "encoder_dtype", "tokenizer.vocab_file"),
    *("corpus.sources.*.[!w]*", "corpus.generator", "corpus.validation_fraction"),
    *("validation.interval_steps", "validation.instances", "phases.*.steps"),
)
# Losses of runs that differ in one of these are of other tokens.
PREDICTED = ("corpus", "tokenizer", "predicted tokens", "validation.seq_length")
PLANNED_TOKENS = "planned tokens"
SAME_LENGTH = 1.25  # planned tokens of runs that are trained for as long differ by no larger factor


@dataclass(frozen=True)
class Cause:
    """What may move a loss out of its band.

    Attributes:
        check: what tells it from other causes.
        keys: patterns of the settings that show it where they differ.
        nats: of a training loss below the held-out one, which show it, too.
    """

    check: str
    keys: list[str]
    nats: float = math.inf


@cache
def causes() -> dict[str, Cause]:
    """Return every cause by its name."""
    import yaml  # type: ignore[import-untyped]

    entries = yaml.safe_load((CONF_DIR / "loss_causes.yaml").read_bytes())
    return {name: Cause(**entry) for name, entry in entries.items()}


def settings_of(run: Record) -> JsonObject:
    """Return the settings that may move a run's held-out loss: dotted key, or words, -> value."""
    settings = {}
    for key, value in identity_of(run.config).items():
        if not _is_left_out(key):
            settings[key] = value
    planned_tokens = 0
    for phase in run.config.get("phases") or []:
        planned_tokens += phase["steps"] * phase["global_batch_size"] * phase["seq_length"]
    return settings | {
        "corpus": run.inputs.get("corpus"),
        "encoder": run.inputs.get("encoder"),
        "predicted tokens": run.predicts,
        PLANNED_TOKENS: planned_tokens,
    }


@cache
def _is_left_out(key: str) -> bool:
    return is_within(key, LEFT_OUT)


@dataclass(frozen=True)
class Band:
    """The held-out losses of some seeds that differ in nothing else.

    Attributes:
        name: its kind in words.
        results: the folders of docs/results with its runs.
        settings: of its runs, as `settings_of` has them.
        unigram_loss: nats, of the training text's frequencies alone.
        flops_per_token: of training.
        tokens: at which losses are known.
        losses: nats a predicted token: at each of these, of each seed.
    """

    name: str
    results: list[str]
    settings: JsonObject
    unigram_loss: float
    flops_per_token: float
    tokens: list[float]
    losses: list[list[float]]

    def at(self, tokens: float) -> list[float]:
        """Each seed's loss, between two evaluations along log(tokens); none outside of them."""
        # Runs of equal steps differ a little in their tokens, since rows are not equally full.
        if not 0.99 * self.tokens[0] <= tokens <= 1.01 * self.tokens[-1]:
            return []
        seeds = np.array(self.losses).T
        return [float(np.interp(math.log(tokens), np.log(self.tokens), seed)) for seed in seeds]


@cache
def load_bands() -> list[Band]:
    """Return every band that came along."""
    contents = read_json(CONF_DIR / "loss_bands.json")
    bands = []
    for entry in contents["bands"]:
        settings = contents["settings"] | entry.pop("settings")
        bands.append(Band(**entry, settings=settings))
    return bands


def expected_range(seeds: Sequence[float]) -> tuple[float, float]:
    """Where another seed's loss is expected: the 95 % prediction interval of Student's t."""
    from claims.analysis.statistics import CONFIDENCE, t_quantile  # scipy takes a second

    count = len(seeds)
    reach = t_quantile(count, CONFIDENCE) * stdev(seeds) * math.sqrt(1 + 1 / count)
    return fmean(seeds) - reach, fmean(seeds) + reach


class LossReading(NamedTuple):
    """A run's loss, those of a band's seeds at as many tokens, and where another is expected."""

    tokens: float
    loss: float
    seeds: Sequence[float]
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.low <= self.loss <= self.high:
            return "inside"
        return "below" if self.loss < self.low else "above"


@dataclass(frozen=True)
class Match:
    """A run beside a band, and the settings in which they differ."""

    run: Record
    band: Band
    differing: Mapping[str, tuple[object, object]]

    @property
    def distance(self) -> tuple[float, ...]:
        """Whether the text differs, how many settings of the kind do, and how many of all.

        Of equally near bands the longest comes first: it has most to say.
        """
        is_of_other_text = "corpus" in self.differing
        of_kind = [key for key in self.differing if not _is_of_training(key)]
        return is_of_other_text, len(of_kind), len(self.differing), -self.band.tokens[-1]

    @property
    def is_comparable(self) -> bool:
        """Whether both losses are of the same tokens of the same text."""
        return not any(is_within(key, PREDICTED) for key in self.differing)

    @property
    def is_outside(self) -> bool:
        """Whether the last evaluation is outside of the band."""
        return self.readings[-1].verdict != "inside"

    @cached_property
    def own_seed(self) -> int | None:
        """Which of the band's seeds the run itself is: the one with its losses, to the digit."""
        losses = {round(loss, 4) for _, loss in self.run.curves.get("validation/loss", [])}
        for number, seed in enumerate(zip(*self.band.losses, strict=True)):
            if losses.issuperset(seed):
                return number
        return None

    @cached_property
    def readings(self) -> list[LossReading]:
        """The run's evaluations at tokens that the band knows, beside its other seeds."""
        readings = []
        for tokens, loss in self.run.curves.get("validation/loss", []):
            seeds = self.band.at(tokens)
            if seeds and self.own_seed is not None:
                del seeds[self.own_seed]
            if seeds:
                readings.append(LossReading(tokens, loss, seeds, *expected_range(seeds)))
        return readings


@cache
def _is_of_training(key: str) -> bool:
    """Whether runs that differ in a setting are still of one kind."""
    return any(is_within(key, cause.keys) for name, cause in causes().items() if name != "masks")


def nearest(run: Record, bands: Iterable[Band]) -> list[Match]:
    """A pre-training beside each of some bands, the nearest first."""
    own = settings_of(run)
    matches = [Match(run, band, differences(own, band.settings)) for band in bands]
    return sorted(matches, key=lambda match: match.distance)


def differences(own: JsonObject, theirs: JsonObject) -> dict[str, tuple[object, object]]:
    """Setting -> both values, where they are not the same."""
    lengths = own[PLANNED_TOKENS], theirs[PLANNED_TOKENS]
    is_as_long = max(lengths) <= SAME_LENGTH * min(lengths)
    differing = {}
    for key in theirs | own:
        pair = own.get(key), theirs.get(key)
        if pair[0] != pair[1] and not (is_as_long and key == PLANNED_TOKENS):
            differing[key] = pair
    return differing


def match_of(run: Record) -> Match | None:
    """A pre-training beside the band of its kind; None where there is none at its tokens."""
    # Most runs are on a text of their own: of those no file is read.
    corpus = run.inputs.get("corpus", "")
    of_text = [band for band in load_bands() if band.settings["corpus"] == corpus]
    if not of_text or "validation/loss" not in run.curves:
        return None
    for match in nearest(run, of_text):
        if all(map(_is_of_training, match.differing)) and match.readings:
            return match
    return None


def memorised_nats(run: Record) -> float:
    """Return the last held-out loss minus the last training loss; NaN where one is missing."""
    last = {row.key: row.value for row in read_rows(run.folder / "metrics.csv")}
    # The loss of the tokens alone, as the held-out one is; train/loss has next sentences, too.
    train_loss = last.get("train/mlm_loss", last.get("train/loss", math.nan))
    return last.get("validation/loss", math.nan) - train_loss
