"""Statistics of the instances that an arm trains on: what is masked, and whether pairs are what their labels say.

Bounds are binomial at 4.5 standard deviations: a sound recipe is outside once in 150,000 checks.

Letters: B instances, T slots, P predictions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from clozelab.checks.ngrams import NGRAM, NgramIndex, ngram_hashes
from clozelab.checks.subject import ERROR, OK, PROBE_SEED, WARNING, Finding, deviation, share
from clozelab.corpus.packing import I64, PackedInstances
from clozelab.corpus.random import instance_indices

if TYPE_CHECKING:
    from clozelab.planning.jobs import Arm

NUM_INSTANCES = 2048
LENGTH_BINS = 8
MAX_FALLBACK_FRACTION = 0.05
"""More random next segments that could not be found tie the label to the document."""
MIN_LOCATED = 30
"""Pairs that must be found in the text before something is said about where they come from."""


def sampled(arm: Arm, count: int) -> PackedInstances:
    """The text of up to `count` instances, spread over the corpus, in epoch 0, before the objective has touched it.

    Of the phase with the most instances.
    """
    length = max(arm.phases, key=lambda phase: phase["steps"] * phase["global_batch_size"])["seq_length"]
    instances = arm.corpus.instances(arm.objective, length)
    index = instance_indices(PROBE_SEED, len(instances), np.arange(min(count, len(instances))))[1]
    return instances.pack(PROBE_SEED, 0, index)


def check_masks(arm: Arm) -> Iterator[Finding]:
    """Share of predicted tokens, what stands in their place, special tokens, and whether masks change."""
    token, packed = arm.objective.token, sampled(arm, NUM_INSTANCES)
    ids = arm.corpus.ids
    found = token.arrays(packed, ids, PROBE_SEED, 0)
    where, labels, seen = found["prediction_positions"], found["prediction_labels"], found["input_ids"]
    masking = getattr(token, "masking", None)
    if masking is None:
        candidates = int((packed.lengths - 1).sum())
        level = OK if abs(len(where) - token.predicted_fraction * candidates) <= 0.02 * candidates else ERROR
        remedy = "look at the objective's arrays()" if level == ERROR else ""
        yield Finding("masks", level, f"{arm.name}: {token.name} predicts", share(len(where), candidates), remedy)
        return
    candidates = int((~packed.special).sum())
    wrong = [*_wrong_share(len(where), candidates, packed, masking.predict_prob)]
    if packed.special[where].any():
        wrong.append(f"{int(packed.special[where].sum())} special tokens are predicted")
    if len(where):
        is_mask, is_same = seen[where] == ids.mask, seen[where] == labels
        wrong += _wrong_action("[MASK]", is_mask, masking.mask_fraction)
        wrong += _wrong_action("unchanged", is_same, masking.same_fraction)
        wrong += _wrong_action("random", ~is_mask & ~is_same, masking.random_fraction)
        again = token.arrays(packed, ids, PROBE_SEED, 1)["prediction_positions"]
        if arm.objective.dupe_factor != 1 and np.array_equal(again, where):
            wrong.append("epoch 1 masks what epoch 0 masked")
        figure = f"{share(len(where), candidates)}; {100 * is_mask.mean():.0f}/{100 * (~is_mask & ~is_same).mean():.0f}"
        figure += f"/{100 * is_same.mean():.0f} masked/random/unchanged"
    else:
        figure = share(0, candidates)
    what = f"{arm.name}: " + ("; ".join(wrong) or "masks are as the recipe says")
    remedy = (
        "the objective's settings are not what is done: look at corpus/packing.py and objective.token" if wrong else ""
    )
    yield Finding("masks", ERROR if wrong else OK, what, figure, remedy)


def _wrong_share(predicted: int, candidates: int, packed: PackedInstances, predict_prob: float) -> Iterator[str]:
    """Each instance rounds to whole tokens, so the share may be off by half a token each."""
    rounding = 0.5 * packed.num_instances / max(1, candidates)
    if abs(predicted / max(1, candidates) - predict_prob) > rounding + 0.002:
        yield f"{share(predicted, candidates)} tokens are predicted, predict_prob is {predict_prob:g}"


def _wrong_action(name: str, chosen: np.ndarray, fraction: float) -> list[str]:
    observed, number = float(chosen.mean()), len(chosen)
    # A random token can be the original one or [MASK]: a little more than chance.
    if abs(observed - fraction) <= deviation(fraction, number) + 0.005:
        return []
    return [f"{100 * observed:.1f} % of the predicted tokens are {name}, the recipe says {100 * fraction:.0f} %"]


@dataclass(frozen=True)
class PairSample:
    """Segment pairs with the n-grams that locate them in the corpus; all [B]."""

    label: I64
    """1 = B is random."""
    a_length: I64
    b_length: I64
    is_short: np.ndarray
    """Padded at its end."""
    num_fallbacks: int
    a_hash: np.ndarray
    """The n-gram that A ends with; 0 where a segment is too short for one."""
    b_hash: np.ndarray
    """The n-gram that B begins with."""

    @property
    def hashes(self) -> np.ndarray:
        """What to look up in the corpus."""
        return np.concatenate([self.a_hash, self.b_hash])


def sample_pairs(arm: Arm) -> PairSample | None:
    """None for an arm without a pair objective."""
    if arm.objective.pair is None:
        return None
    packed, found = arm.objective.pair.arrange(sampled(arm, NUM_INSTANCES), PROBE_SEED, 0)
    ids = packed.input_ids.reshape(packed.num_instances, packed.width)
    a_length, b_length = packed.a_length, packed.b_length
    assert a_length is not None and b_length is not None
    usable = (a_length >= NGRAM) & (b_length >= NGRAM)
    a_hash, b_hash = np.zeros(len(ids), dtype=np.uint64), np.zeros(len(ids), dtype=np.uint64)
    number = np.flatnonzero(usable)[:, None]
    slot = np.arange(NGRAM)
    if len(number):
        a_end = a_length[usable][:, None] + 1
        a_hash[usable] = ngram_hashes(ids[number, a_end - NGRAM + slot])[:, 0]
        b_begin = a_end + arm.corpus.ids.pair_separators
        b_hash[usable] = ngram_hashes(ids[number, b_begin + slot])[:, 0]
    is_short = packed.lengths < packed.width
    return PairSample(found, a_length, b_length, is_short, packed.num_fallbacks, a_hash, b_hash)


def check_pairs(arm: Arm, sample: PairSample, index: NgramIndex | None) -> Iterator[Finding]:
    """Share of random pairs, what lengths alone tell, and where both segments really come from."""
    label, number = sample.label, len(sample.label)
    wanted = float(getattr(arm.objective.input, "random_next_prob", 0.5))  # half of the pairs are swapped
    rate = float(label.mean())
    figure = f"{share(label.sum(), number)} random; "
    accuracy, chance = length_rule(sample)
    figure += f"lengths alone guess {100 * accuracy:.1f} % (chance {100 * chance:.1f} %)"
    remedy = "the pair loss would learn nothing of the text: look at objective.input and corpus/instances.py"
    if abs(rate - wanted) > deviation(wanted, number) + MAX_FALLBACK_FRACTION * wanted:
        what = f"{arm.name}: {100 * rate:.1f} % of the pairs are random, random_next_prob is {wanted:g}"
        yield Finding("pairs", ERROR, what, figure, remedy)
    elif accuracy > chance + deviation(0.5, number // 2):
        what = f"{arm.name}: the lengths of the segments betray whether B is random"
        yield Finding("pairs", ERROR, what, figure, remedy)
    elif sample.num_fallbacks > MAX_FALLBACK_FRACTION * (label.sum() + sample.num_fallbacks):
        what = f"{arm.name}: {sample.num_fallbacks} random next segments were not found in another document"
        yield Finding("pairs", WARNING, what, figure, "add documents, or cut very long ones")
    else:
        yield from _check_origin(arm, sample, index, figure, remedy)


def _check_origin(
    arm: Arm, sample: PairSample, index: NgramIndex | None, figure: str, remedy: str
) -> Iterator[Finding]:
    """Looks both segments up in the corpus; only those that stand there once can be located."""
    if index is None:
        yield Finding("pairs", OK, f"{arm.name}: pairs are balanced and lengths say nothing", figure)
        return
    a_at, b_at = index.only_position(sample.a_hash), index.only_position(sample.b_hash)
    located = (a_at >= 0) & (b_at >= 0)
    pair = arm.objective.pair
    assert pair is not None
    is_random = sample.label == 1
    follows = b_at == a_at + NGRAM
    shards = arm.corpus.train
    starts = np.asarray(shards.sentence_offsets)[np.asarray(shards.document_offsets)]
    same_document = np.searchsorted(starts, a_at, side="right") == np.searchsorted(starts, b_at, side="right")
    strange = same_document if pair.is_of_other_document else ~same_document | follows
    torn, near = int((located & ~is_random & ~follows).sum()), int((located & is_random & strange).sum())
    figure += f"; {share(located.sum(), len(located))} located in the text"
    if located.sum() >= MIN_LOCATED and torn:
        yield Finding(
            "pairs", ERROR, f"{arm.name}: {torn} pairs labelled 'is next' do not follow in the text", figure, remedy
        )
    elif located.sum() >= MIN_LOCATED and near:
        of_same = "random next segments come from the same document"
        what = f"{arm.name}: {near} {of_same if pair.is_of_other_document else 'swapped pairs are not swapped'}"
        yield Finding("pairs", ERROR, what, figure, remedy)
    else:
        yield Finding("pairs", OK, f"{arm.name}: pairs are what their labels say, lengths tell nothing", figure)


def length_rule(sample: PairSample) -> tuple[float, float]:
    """(accuracy of the best guess from the lengths, of the most frequent label), learnt and tried on two halves."""
    short = sample.is_short.astype(np.int64)
    cell = (_bins(sample.a_length) * LENGTH_BINS + _bins(sample.b_length)) * 2 + short
    half = len(cell) // 2
    votes = np.bincount(cell[:half], weights=2 * sample.label[:half] - 1, minlength=2 * LENGTH_BINS**2)
    truth = sample.label[half:]
    guess = votes[cell[half:]] > 0
    return float((guess == truth).mean()), float(max(truth.mean(), 1 - truth.mean()))


def _bins(values: I64) -> I64:
    """Number of the quantile that each value falls into, 0..LENGTH_BINS - 1."""
    edges = np.quantile(values, np.arange(1, LENGTH_BINS) / LENGTH_BINS)
    return np.searchsorted(edges, values, side="right")
