"""What an arm trains on: its schedule, its masks and its pairs.

Bounds are binomial at 4.5 standard deviations: a sound recipe is outside once in 150,000 checks.

Letters: T slots in the stream, B instances, P predictions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from claims.text.phrases import format_count
from clozelab.checks.corpus import NGRAM, NgramIndex, ngram_hashes
from clozelab.checks.subject import (
    ERROR,
    PROBE_SEED,
    WARNING,
    Case,
    Finding,
    deviation,
    first_finding,
    share,
)
from clozelab.checks.visibility import of_spec
from clozelab.corpus.instances import source_rule
from clozelab.corpus.packing import I64, Masking, PackedInstances, begin_words
from clozelab.planning.arms import Arm

MAX_WARMUP_FRACTION = 0.3
NUM_SAMPLED = 2048
LENGTH_BINS = 8
# more random next segments that could not be found tie the label to the document
MAX_FALLBACK_FRACTION = 0.05
# pairs that must be found in the text before something is said about where they come from
MIN_LOCATED = 30


def check_schedule(arm: Arm) -> Iterator[Finding]:
    """Warm-up, and the plateau of masked models."""
    fraction = arm.settings.schedule.get("warmup_fraction", 0.0)
    needed = arm.tokens_to_plateau
    figure = f"{arm.steps:,} steps, {format_count(arm.tokens)} tokens, warmup_fraction {fraction:g}"
    plateau = (
        "the budget may end before the masked model leaves its plateau"
        f" (about {format_count(needed)} tokens)"
    )
    yield first_finding(
        "schedule",
        arm.name,
        "warm-up and budget are usual",
        figure,
        Case(
            fraction > MAX_WARMUP_FRACTION,
            WARNING,
            "the warm-up takes much of the training",
            "0.01 to 0.1 is usual",
        ),
        Case(
            needed > arm.tokens,
            WARNING,
            plateau,
            "a rule of thumb: more steps, or a phase of 32 or 64 tokens first",
        ),
    )


def sample_instances(arm: Arm) -> PackedInstances:
    """Some instances of the phase with the most, before the objective acts.

    They are NUM_SAMPLED at most, spread over the corpus.
    """
    instances_of_phases = [phase["steps"] * phase["global_batch_size"] for phase in arm.phases]
    largest = int(np.argmax(instances_of_phases))
    seq_length = arm.phases[largest]["seq_length"]
    weights = arm.weights_of_phases[largest]
    instances, epoch, index = arm.corpus.first_read(
        arm.objective, seq_length, weights, PROBE_SEED, NUM_SAMPLED
    )
    return instances.pack(PROBE_SEED, epoch, index)


@dataclass(frozen=True)
class Predictions:
    """What an objective predicts in some instances; all [P].

    Of several losses they are those of the first.
    """

    positions: I64  # slots of the packed text at which the tokens stand
    labels: I64
    input_ids: I64  # what stands there instead

    @classmethod
    def from_arm(cls, arm: Arm, packed: PackedInstances) -> Predictions:
        arrays = arm.objective.arrays_of(packed)
        # The objective says which slot each prediction is about; its own slot may be another.
        spec = arm.objective.token.visibility(packed, arrays)[0]
        labels = of_spec(spec, arrays["prediction_labels"])
        # In a drawn order the text stays as it is, and a slot behind it predicts.
        is_below_baseline = arm.objective.token.predictions_help
        slots = spec.positions if is_below_baseline else spec.about
        return cls(spec.about, labels, arrays["input_ids"][slots])


def check_masks(arm: Arm) -> Iterator[Finding]:
    """Share of predicted tokens, what stands in their place, special tokens.

    And whether masks change from epoch to epoch.
    """
    token = arm.objective.token
    packed = sample_instances(arm)
    if not isinstance(token, Masking) or token.is_causal:
        yield _check_predicted_share(arm, packed)
        return
    predictions = Predictions.from_arm(arm, packed)
    # Counts first: how many tokens are predicted, of those that may be.
    candidates = _num_candidates(token, packed)
    number = len(predictions.positions)
    figure = share(number, candidates)
    wrong = []
    left = 0
    if token.hides_words:
        # The same beginnings as the masks: units join words.
        if token.unit_texts:
            begins = token.begins(packed)
        else:
            begins = begin_words(packed, packed.ids.continues)
        # Beginnings 1 1 0 0 1 of slots make words 1 2 2 2 3.
        word = np.cumsum(begins, dtype=np.int64)
        wrong += _partly_masked_words(word, packed.special, predictions.positions)
        left = _left_by_words(word, packed, predictions.positions)
    wrong += _wrong_number(token, packed, number, left)
    num_special = int(packed.special[predictions.positions].sum())
    if num_special:
        wrong.append(f"{num_special} special tokens are predicted")
    if number:
        shares = _replacement_shares(predictions, arm.corpus.ids.mask)
        wrong += _wrong_replacements(token, shares, number)
        # With dupe_factor=1 masks are static on purpose: every epoch has those of the first.
        later = replace(packed, draws=replace(packed.draws, epoch=1))
        again = Predictions.from_arm(arm, later)
        if arm.objective.dupe_factor != 1 and np.array_equal(
            again.positions, predictions.positions
        ):
            wrong.append("epoch 1 masks what epoch 0 masked")
        percentages = "/".join(f"{100 * part:.0f}" for part in shares.values())
        figure += f"; {percentages} masked/random/unchanged"
    remedy = (
        "the objective's settings are not what is done: look at objective.token, and where the"
        " objective is your own at its method `number` (corpus/packing.py)"
    )
    case = Case(bool(wrong), ERROR, "; ".join(wrong), remedy)
    yield first_finding("masks", arm.name, "masks are those of the recipe", figure, case)


def _num_candidates(token: Masking, packed: PackedInstances) -> int:
    """Tokens that may be hidden."""
    return int((~packed.special & np.repeat(token.masks(packed), packed.width)).sum())


def _check_predicted_share(arm: Arm, packed: PackedInstances) -> Finding:
    """Of an objective that masks nothing."""
    token = arm.objective.token
    arrays = token.arrays(packed)
    number = len(arrays["prediction_positions"])
    candidates = int((packed.lengths - 1).sum())  # the first token has nothing before it
    expected = token.predicted_share(packed.width) * candidates
    case = Case(
        abs(number - expected) > 0.02 * candidates,
        ERROR,
        "another share of tokens is predicted than the objective's",
        "look at its arrays()",
    )
    return first_finding(
        "masks", arm.name, f"{token.name} predicts", share(number, candidates), case
    )


def _wrong_number(token: Masking, packed: PackedInstances, number: int, left: int) -> list[str]:
    """Whether another number of tokens is predicted than the settings say, or than `left` less."""
    candidates = _num_candidates(token, packed)
    is_masked = token.masks(packed)
    counted = candidates
    if token.count_specials:
        counted = packed.lengths[is_masked].sum()
    # The limit holds for each instance by its width, whether or not its text is as long.
    most = int(token.max_predictions_fraction * packed.width) * int(is_masked.sum())
    expected = min(token.predict_prob * counted, most)
    # Each instance rounds to whole tokens, so the number may be off by half a token each.
    tolerance = 0.5 * packed.num_instances + 0.002 * candidates
    if expected - tolerance - left <= number <= expected + tolerance:
        return []
    return [f"{share(number, candidates)} tokens are predicted, the settings say {expected:,.0f}"]


def _left_by_words(word: np.ndarray, packed: PackedInstances, positions: I64) -> int:
    """How many predictions whole words may leave out: too few for any other word of an instance.

    `word` and `positions` as in `_partly_masked_words`. A byte is rarely a word by itself.
    """
    sizes = np.bincount(word[~packed.special], minlength=int(word.max()) + 1)
    is_taken = np.zeros(len(sizes), dtype=bool)
    is_taken[word[positions]] = True
    # Of each slot the size of its word; no word is as long as an instance.
    is_other = ~packed.special & ~is_taken[word]
    size_of_slot = np.where(is_other, sizes[word], packed.width).reshape(-1, packed.width)
    smallest = size_of_slot.min(axis=1)
    return int((smallest - 1)[smallest < packed.width].sum())


def _partly_masked_words(word: np.ndarray, special: np.ndarray, positions: I64) -> list[str]:
    """Whether words are predicted in part.

    Args:
        word: [T] number of the word that each slot belongs to.
        special: bool [T].
        positions: [P] slots that are predicted.
    """
    # A word is torn where some of its tokens are predicted, and not all of them.
    sizes = np.bincount(word[~special])
    hits = np.bincount(word[positions], minlength=int(word.max()) + 1)
    num_torn = int(((hits > 0) & (hits < sizes)).sum())
    if not num_torn:
        return []
    return [f"{num_torn} words are predicted in part"]


def _replacement_shares(predictions: Predictions, mask_id: int) -> dict[str, float]:
    """What stands in the place of predicted tokens -> its share."""
    is_mask = predictions.input_ids == mask_id
    is_same = predictions.input_ids == predictions.labels
    return {
        "[MASK]": is_mask.mean(),
        "random": (~is_mask & ~is_same).mean(),
        "unchanged": is_same.mean(),
    }


def _wrong_replacements(token: Masking, shares: Mapping[str, float], number: int) -> list[str]:
    """Shares of `number` predictions that are not those of the recipe."""
    recipe = {
        "[MASK]": token.mask_fraction,
        "random": token.random_fraction,
        "unchanged": token.same_fraction,
    }
    wrong = []
    for name, fraction in recipe.items():
        # a random token can be the original one or [MASK]: a little more than chance.
        if abs(shares[name] - fraction) > deviation(fraction, number) + 0.005:
            wrong.append(
                f"{shares[name]:.1%} of the predicted tokens are {name}, the recipe has"
                f" {fraction:.0%}"
            )
    return wrong


class PairSample(NamedTuple):
    """Segment pairs with the n-grams that locate them in the corpus; all arrays [B].

    Attributes:
        packed: the instances.
        label: 1 = B is random.
        a_length, b_length: tokens of the segments.
        a_hash: the n-gram that A ends with; 0 where a segment is too short for one.
        b_hash: the n-gram that B begins with.
    """

    packed: PackedInstances
    label: I64
    a_length: I64
    b_length: I64
    a_hash: np.ndarray
    b_hash: np.ndarray


def sample_pairs(arm: Arm) -> PairSample | None:
    """Pairs of an arm; None for one without pairs."""
    if arm.objective.pair is None:
        return None
    packed, label = arm.objective.pair.arrange(sample_instances(arm))
    ids = packed.input_ids.reshape(packed.num_instances, packed.width)  # [B, S]
    a_length = packed.a_length
    b_length = packed.b_length
    assert a_length is not None and b_length is not None

    # [CLS] A [SEP] B [SEP]: A ends before slot 1 + a_length, B begins behind its separators.
    # A segment shorter than an n-gram cannot be located.
    usable = (a_length >= NGRAM) & (b_length >= NGRAM)
    hashes = np.zeros((2, len(ids)), dtype=np.uint64)
    if usable.any():
        number = np.flatnonzero(usable)[:, None]  # [U, 1]
        a_end = a_length[usable][:, None] + 1
        b_begin = a_end + arm.corpus.ids.pair_separators
        for segment, begin in enumerate((a_end - NGRAM, b_begin)):
            hashes[segment, usable] = ngram_hashes(ids[number, begin + np.arange(NGRAM)])[:, 0]
    return PairSample(packed, label, a_length, b_length, *hashes)


class LocatedPairs(NamedTuple):
    """What the corpus says of pairs whose segments it has once."""

    located: int  # pairs of which both segments were found
    torn: int  # labelled "is next", and do not follow
    strange: int  # labelled random, and follow or are of the wrong document


def locate_pairs(arm: Arm, sample: PairSample, index: NgramIndex) -> LocatedPairs:
    """Look in the corpus where both segments of each pair stand."""
    # A's last n-gram and B's first one: where B follows, they stand NGRAM tokens apart.
    a_position = index.only_position(sample.a_hash)
    b_position = index.only_position(sample.b_hash)
    is_located = (a_position >= 0) & (b_position >= 0)
    # An n-gram that is nowhere, or in several places, has the position -1.
    num_located = int(is_located.sum())

    # Tokens at which documents begin, and the document of each segment.
    shards = arm.corpus.train
    begins = np.asarray(shards.sentence_offsets)[np.asarray(shards.document_offsets)]
    a_document = np.searchsorted(begins, a_position, side="right")
    b_document = np.searchsorted(begins, b_position, side="right")
    is_same_document = a_document == b_document

    follows = b_position == a_position + NGRAM
    if _is_released(arm):
        # which has cut tokens at the boundary
        follows |= is_same_document & (b_position > a_position)
    assert arm.objective.pair is not None
    # A random B is strange where it could be the right one: of the same document for NSP; for a
    # swap, of another document, or in its old order.
    if arm.objective.pair.is_of_other_document:
        is_strange = is_same_document
    else:
        is_strange = ~is_same_document | follows
    if num_located < MIN_LOCATED:
        return LocatedPairs(num_located, 0, 0)
    is_random = sample.label == 1
    return LocatedPairs(
        num_located,
        torn=int((is_located & ~is_random & ~follows).sum()),
        strange=int((is_located & is_random & is_strange).sum()),
    )


def _is_released(arm: Arm) -> bool:
    """Whether pairs are cut as the released code cuts them."""
    return bool(getattr(arm.objective.input, "cuts", "") == "released")


def check_pairs(
    arm: Arm, sample: PairSample | None = None, index: NgramIndex | None = None
) -> Iterator[Finding]:
    """Share of random pairs, what lengths and sources alone tell, where segments come from.

    The last is known of segments that the corpus has once.
    """
    pair = arm.objective.pair
    if sample is None:
        sample = sample_pairs(arm)
    if pair is None or sample is None:
        return
    number = len(sample.label)
    num_random = sample.label.sum()
    rate = float(sample.label.mean())
    accuracy, chance = length_rule(sample)
    figure = (
        f"{share(num_random, number)} random; lengths alone guess {accuracy:.1%} (chance"
        f" {chance:.1%})"
    )
    source_accuracy = chance
    if sample.packed.one_source is not None:
        source_accuracy = source_rule(sample.label, sample.packed.one_source)
        figure += f"; their sources alone tell {source_accuracy:.1%}"
    num_torn = 0
    num_strange = 0
    if index is not None:
        num_located, num_torn, num_strange = locate_pairs(arm, sample, index)
        figure += f"; {share(num_located, number)} located in the text"

    # An objective without that key swaps half of its pairs.
    random_prob = float(getattr(arm.objective.input, "random_next_prob", 0.5))
    is_released = _is_released(arm)
    is_off = abs(rate - random_prob) > (
        deviation(random_prob, number) + MAX_FALLBACK_FRACTION * random_prob
    )
    if is_released and rate >= random_prob:
        is_off = False  # its lone sentences have random Bs besides
    # Where a random B is shorter on average, the label can be guessed without reading.
    length_level = ERROR
    if is_released:
        length_level = WARNING  # the released code's do: objective.input.cuts=ours has none of it
    strange = "swapped pairs are not swapped"
    if pair.is_of_other_document:
        strange = "random pairs are of one document"
    num_fallbacks = sample.packed.num_fallbacks
    has_many_fallbacks = num_fallbacks > MAX_FALLBACK_FRACTION * (num_random + num_fallbacks)
    remedy = (
        "the pair loss would learn nothing of the text: look at objective.input and"
        " corpus/instances.py"
    )
    cases = [
        Case(
            is_off,
            ERROR,
            f"{rate:.1%} of the pairs are random, random_next_prob is {random_prob:g}",
            remedy,
        ),
        Case(
            num_torn > 0,
            ERROR,
            f"{num_torn} pairs labelled 'is next' do not follow in the text",
            remedy,
        ),
    ]
    cases.append(Case(num_strange > 0, ERROR, f"{num_strange} {strange}", remedy))
    cases += [
        Case(
            accuracy > chance + deviation(0.5, number // 2),
            length_level,
            "lengths of segments betray a random B",
            remedy,
        ),
        Case(
            source_accuracy > chance + deviation(0.5, number),
            WARNING,
            "asking whether both segments are of one source is right for"
            f" {source_accuracy:.1%} of the pairs",
            "learnt means above that; objective.input.negative_scope=source draws a random B from"
            " A's own source",
        ),
    ]
    without_other_document = Case(
        bool(has_many_fallbacks),
        WARNING,
        f"{num_fallbacks} random next segments were not found in another document",
        "add documents, or cut very long ones",
    )
    cases.append(without_other_document)
    good = "pairs are what their labels say, lengths tell nothing"
    yield first_finding("pairs", arm.name, good, figure, *cases)


def length_rule(sample: PairSample) -> tuple[float, float]:
    """How well lengths alone guess the label, learnt and tried on two halves.

    Returns the accuracy of the best guess, and of the most frequent label.
    """
    # A table by both lengths and whether the instance is padded; each pair falls into one cell.
    # The first half of the pairs votes in its cells, the second half is guessed by these votes.
    cell = _quantile_bins(sample.a_length) * LENGTH_BINS + _quantile_bins(sample.b_length)
    cell = cell * 2 + (sample.packed.lengths < sample.packed.width)
    half = len(cell) // 2
    votes = np.bincount(
        cell[:half], weights=2 * sample.label[:half] - 1, minlength=2 * LENGTH_BINS**2
    )
    truth = sample.label[half:]
    guess = votes[cell[half:]] > 0
    return float((guess == truth).mean()), float(max(truth.mean(), 1 - truth.mean()))


def _quantile_bins(values: I64) -> I64:
    """Number of the quantile that each value falls into, 0..LENGTH_BINS - 1."""
    bounds = np.quantile(values, np.arange(1, LENGTH_BINS) / LENGTH_BINS)
    return np.searchsorted(bounds, values, side="right")
