"""What an arm trains on: its schedule, its masks, its pairs, and what its predictions see.

Bounds are binomial at 4.5 standard deviations: a sound recipe is outside once in 150,000 checks.

What a prediction can see is tried out: change the text somewhere and look which outputs change. The
arm's own objective runs on a few instances through fresh models of its shape (small ones of that
kind where it is large), in fp32 on the CPU, without dropout, with large weights: every dependence
is far above rounding. `Objective.visibility` says what may be.

Letters: T slots in the stream, B instances, P predictions, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

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
from clozelab.corpus.instances import source_rule
from clozelab.corpus.packing import I64, Masking, PackedInstances, begin_words
from clozelab.corpus.random import instance_indices
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import parameter_count
from clozelab.models.encoder import Encoder
from clozelab.models.layout import Layout
from clozelab.objectives.objective import (
    Arrays,
    EncoderWithHeads,
    VisibilitySpec,
    build_models,
    sees_all,
    sees_past,
    to_torch,
)
from clozelab.planning.arms import Arm

MAX_WARMUP_FRACTION = 0.3
NUM_SAMPLED = 2048
LENGTH_BINS = 8
# more random next segments that could not be found tie the label to the document
MAX_FALLBACK_FRACTION = 0.05
# pairs that must be found in the text before something is said about where they come from
MIN_LOCATED = 30
NUM_PROBED = 32  # instances that are changed
MAX_PROBED_SLOTS = 128  # of each of them
MAX_PARAMETERS = 20_000_000  # a larger encoder is tried in a small shape of the same kind
PROBE_INITIALIZER_RANGE = 0.1
TOLERANCE = 1e-5  # of the largest output; rounding in fp32 stays below 2e-6
PICKS = 8  # predictions of each instance whose own label is changed


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
    phase = max(arm.phases, key=lambda phase: phase["steps"] * phase["global_batch_size"])
    instances = arm.corpus.instances(arm.objective, phase["seq_length"])
    places = np.arange(min(NUM_SAMPLED, len(instances)))
    _, numbers = instance_indices(PROBE_SEED, len(instances), places)
    return instances.pack(PROBE_SEED, 0, numbers)


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
        labels = _of_spec(spec, arrays["prediction_labels"])
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
    wrong = _wrong_number(token, packed, number)
    if token.hides_words:
        # The same beginnings as the masks: units join words.
        if token.unit_texts:
            begins = token.begins(packed)
        else:
            begins = begin_words(packed, packed.ids.continues)
        # Beginnings 1 1 0 0 1 of slots make words 1 2 2 2 3.
        word = np.cumsum(begins, dtype=np.int64)
        wrong += _partly_masked_words(word, packed.special, predictions.positions)
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
        "the objective's settings are not what is done: look at corpus/packing.py and"
        " objective.token"
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


def _wrong_number(token: Masking, packed: PackedInstances, number: int) -> list[str]:
    """Whether another number of tokens is predicted than the settings say."""
    candidates = _num_candidates(token, packed)
    is_masked = token.masks(packed)
    counted = candidates
    if token.count_specials:
        counted = packed.lengths[is_masked].sum()
    # The limit holds for each instance by its width, whether or not its text is as long.
    most = int(token.max_predictions_fraction * packed.width) * int(is_masked.sum())
    expected = min(token.predict_prob * counted, most)
    # Each instance rounds to whole tokens, so the number may be off by half a token each.
    if abs(number - expected) <= 0.5 * packed.num_instances + 0.002 * candidates:
        return []
    return [f"{share(number, candidates)} tokens are predicted, the settings say {expected:,.0f}"]


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


@dataclass
class ArmProbe:
    """An arm's models with instances to try them on."""

    arm: Arm
    models: dict[str, EncoderWithHeads]
    packed: PackedInstances

    @classmethod
    def from_arm(cls, arm: Arm) -> ArmProbe:
        """A few instances of the arm's shortest phase, and models of its shape or a small one.

        They are always the same.
        """
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed takes milliseconds for accelerators, which no probe is on.
            torch.default_generator.manual_seed(PROBE_SEED)
            models = build_models(Encoder(_probe_config(arm.config)), [arm.objective])
        for model in models.values():
            model.eval()
        # Short instances: a forward of the CPU is tried many times.
        shortest = min(phase["seq_length"] for phase in arm.phases)
        instances = arm.corpus.instances(arm.objective, min(MAX_PROBED_SLOTS, shortest))
        packed = instances.pack(PROBE_SEED, 0, np.arange(min(NUM_PROBED, len(instances))))
        arranged, _ = arm.objective.arrange(packed)
        return cls(arm, models, arranged)

    def arrays(self, input_ids: I64 | None = None) -> Arrays:
        """What the objective makes of the instances, or of the same with another text."""
        packed = self.packed
        if input_ids is not None:
            packed = replace(packed, input_ids=input_ids)
        return self.arm.objective.arrays_of(packed)

    @torch.no_grad()
    def states(self, model: str, stream: Arrays, layout: Layout | None = None) -> Tensor:
        """Hidden states [T, H] of one of the models on the ids of `stream`."""
        if layout is None:
            batch = to_torch(stream)
        else:
            batch = {name: torch.from_numpy(values) for name, values in stream.items()}
            batch["layout"] = layout
        return self.models[model].states(batch["input_ids"], batch).sequence_output

    @torch.no_grad()
    def predictions(self, model: str, arrays: Arrays) -> Tensor:
        """[P, ...]; draws inside the forward are the same every time."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(PROBE_SEED)
            return self.arm.objective.token.predictions(self.models, to_torch(arrays))[model]

    def other_ids(self, input_ids: I64, where: I64, round_number: int = 0) -> I64:
        """A copy with another random token at each of the slots `where`.

        A piece of a word stays a piece of a word.
        """
        vocab_size = self.arm.config.vocab_size
        is_piece = self.arm.corpus.ids.continues  # bool [V]
        if is_piece is None:
            is_piece = np.zeros(vocab_size, dtype=bool)
        rng = np.random.default_rng([PROBE_SEED, round_number])
        changed_ids = input_ids.copy()
        for is_of_pieces in (False, True):
            # Walk a random way around the ring of like tokens, never the whole way.
            ring = np.flatnonzero(is_piece == is_of_pieces)
            slots = where[is_piece[input_ids[where]] == is_of_pieces]
            step = rng.integers(1, max(2, len(ring)), len(slots))
            place = np.searchsorted(ring, input_ids[slots]) + step
            changed_ids[slots] = ring[place % max(1, len(ring))]
        return changed_ids


def _probe_config(config: EncoderConfig) -> EncoderConfig:
    """With large weights, and small where the encoder is large."""
    config = replace(config, initializer_range=PROBE_INITIALIZER_RANGE)
    if parameter_count(config) <= MAX_PARAMETERS:
        return config
    return replace(
        config,
        hidden_size=64,
        num_attention_heads=2,
        intermediate_size=128,
        num_hidden_layers=min(config.num_hidden_layers, 2),
        embedding_size=min(config.embedding_size, 64),
        num_hidden_groups=min(config.num_hidden_groups, 2, config.num_hidden_layers),
    )


def check_visibility(arm: Arm) -> Iterator[Finding]:
    """Left and right context, the predicted token itself, and the neighbours in the stream.

    All of every model.
    """
    threads = torch.get_num_threads()
    # Products this small only make threads wait for each other, longest on a busy machine.
    torch.set_num_threads(1)
    try:
        probe = ArmProbe.from_arm(arm)
        for spec in arm.objective.visibility(probe.packed):
            yield check_context(probe, spec, f"{arm.name}, {spec.term}")
            yield check_own_label(probe, spec, f"{arm.name}, {spec.term}")
        yield check_neighbours(probe)
    finally:
        torch.set_num_threads(threads)


def check_context(probe: ArmProbe, spec: VisibilitySpec, name: str) -> Finding:
    """Change everything right of an instance's middle, then everything left of it."""
    arrays = probe.arrays()
    width = arrays["width"]
    # The middle of each instance divides its slots; padding belongs to neither side.
    position_ids = arrays["position_ids"]
    slots = np.arange(len(position_ids)) % width
    is_real = slots < np.repeat(arrays["lengths"], width)  # bool [T]
    is_left = position_ids <= np.repeat(probe.packed.lengths // 2, width)
    left = is_real & is_left
    right = is_real & ~is_left
    # Rows may be longer than their text, which alone is changed: behind it a permuted objective has
    # masks and queries, with the positions of the tokens that they stand for.
    is_text = is_real & (slots == position_ids)

    def states(stream: Arrays) -> Tensor:
        """[T, H], of two directions one."""
        both = probe.states(spec.model, stream)
        return both if spec.direction is None else both.chunk(2, dim=-1)[spec.direction]

    # What the unchanged text gives; every later forward is compared with it.
    base = states(arrays)

    def is_changed(touched: np.ndarray) -> np.ndarray:
        """bool [T]: the states that change with the text of some slots."""
        touched = touched & is_text
        other = probe.other_ids(arrays["input_ids"], np.flatnonzero(touched))
        return changed(base, states(arrays | {"input_ids": other}))

    def may_change(touched: np.ndarray, reach: float = np.inf) -> np.ndarray:
        """bool [T]: the slots that see one of the touched slots of their instance, within reach."""
        stream = np.arange(len(slots)).reshape(-1, width)
        readers = stream[:, :, None]
        read = stream[:, None, :]
        sees = spec.sees(readers, read) & (np.abs(readers - read) <= reach)  # [B, S, S]
        is_touched = (touched & is_text).reshape(-1, 1, width)
        return (sees & is_touched).any(axis=2).reshape(-1)

    # What stands beyond all windows may be seen, and need not.
    masks = probe.models[spec.model].encoder.masks
    windows = [mask.window for mask in masks if mask.window is not None]
    reach = np.inf
    if len(windows) == len(masks):
        reach = max(windows)
    has_leak = False
    shares = []  # of the positions that see what follows, and of those that see what precedes
    is_blind = []  # whether some of them do not see what they have to
    for touched, readers in ((right, left), (left, right)):
        sees = is_changed(touched)[readers]
        has_leak |= bool((sees & ~may_change(touched)[readers]).any())
        is_blind.append(bool((may_change(touched, reach)[readers] & ~sees).any()))
        shares.append(share(sees.sum(), len(sees)))
    good = "sees both sides"
    leak = "sees what its objective hides from it"
    if spec.sees is sees_past:
        good = "sees the past only"
        leak = "predicts left to right and sees the future"
    elif spec.sees is not sees_all:
        # A rule of its own: one predicted token of each instance tells more than a half.
        good = "sees what it may"
        one_slot = np.zeros(len(slots), dtype=bool)
        one_slot[_one_instance_of_each(spec, probe.packed.width, width)] = True
        has_leak |= bool((is_changed(one_slot) & ~may_change(one_slot) & is_real).any())
    figure = f"{' and '.join(shares)} positions see what follows, and what precedes them"
    cases = [
        Case(
            has_leak,
            ERROR,
            leak,
            "the causal mask is not applied: the arm would copy its labels. Look at is_causal and"
            " attention",
        )
    ]
    cases += [
        Case(
            is_blind[0],
            ERROR,
            "does not see what follows a position",
            "a masked model reads both sides: is the encoder causal (config.is_causal) under this"
            " objective?",
        ),
        Case(
            is_blind[1],
            ERROR,
            "does not see what precedes a position",
            "attention reaches nothing: look at the attention kernel and its mask",
        ),
    ]
    return first_finding("future", name, good, figure, *cases)


def _one_instance_of_each(spec: VisibilitySpec, text_width: int, width: int) -> I64:
    """Of each instance the slot of one predicted token, in rows of `width` slots."""
    # `about` numbers slots of the packed text, whose rows may be shorter than the stream's.
    instance, slot = np.divmod(spec.about, text_width)
    _, first, number = np.unique(instance, return_index=True, return_counts=True)
    middle = first + number // 2
    return instance[middle] * width + slot[middle]


def check_own_label(probe: ArmProbe, spec: VisibilitySpec, name: str) -> Finding:
    """Change a predicted token in the text.

    Its prediction may change only where the objective leaves it visible.
    """
    text = probe.packed.input_ids
    labels = _of_spec(spec, probe.arrays()["prediction_labels"])  # [P]
    # `about` is the slot that each prediction speaks of: there stands its label.
    has_labels_of_text = len(labels) > 0 and np.array_equal(
        text[np.minimum(spec.about, len(text) - 1)], labels
    )
    if not has_labels_of_text:
        predicted = "no token"
        if len(labels):
            predicted = "other tokens than the text has"
        remedy = (
            "look at the objective's arrays() and visibility(): a label is the text's token at its"
            " slot `about`"
        )
        return Finding(
            "own label", ERROR, f"{name}: predicts {predicted}", share(0, len(labels)), remedy
        )
    num_seen, num_tried = _count_seen_labels(probe, spec)
    figure = (
        f"{share(num_seen, num_tried)} predictions see their own label; the recipe leaves"
        f" {100 * spec.own_share:.0f} %"
    )
    case = Case(
        num_seen / num_tried > spec.own_share + deviation(spec.own_share, num_tried),
        ERROR,
        "sees what it predicts",
        "the label can be copied, so nothing is learnt: look at masking (or, left to right, the"
        " causal mask)",
    )
    return first_finding("own label", name, "does not see what it predicts", figure, case)


Values = TypeVar("Values", I64, Tensor)


def _of_spec(spec: VisibilitySpec, values: Values) -> Values:
    """Of values for all predictions of a batch those that the spec speaks of."""
    return values if spec.numbers is None else values[spec.numbers]


def _count_seen_labels(probe: ArmProbe, spec: VisibilitySpec) -> tuple[int, int]:
    """How many predictions change with their own label, and how many were tried."""
    text = probe.packed.input_ids
    base = _of_spec(spec, probe.predictions(spec.model, probe.arrays()))
    # Predictions stand in the order of their instances: of each instance the first, and how many.
    _, first, count = np.unique(
        spec.about // probe.packed.width, return_index=True, return_counts=True
    )
    num_seen = 0
    num_tried = 0
    for number in range(PICKS):
        # One prediction of each instance that has one left, none twice, spread over it.
        place = np.where(count > PICKS, number * count // PICKS, number)
        picks = (first + place)[place < count]
        if not len(picks):
            break
        # The objective acts on the changed text as it did on the first one: its draws are the same.
        altered = probe.arrays(probe.other_ids(text, spec.about[picks], number))
        predictions = _of_spec(spec, probe.predictions(spec.model, altered))
        num_seen += int(changed(base[picks], predictions[picks]).sum())
        num_tried += len(picks)
    return num_seen, num_tried


@dataclass(frozen=True)
class Form:
    """Some sequences in one layout of the stream."""

    stream: Arrays
    layout: Layout
    is_real: np.ndarray  # bool [T]: no padding
    owner: np.ndarray  # [T]: number of the sequence


def _forms(packed: PackedInstances) -> dict[str, Form]:
    """The instances with and without their padding, some of them shortened."""
    # Every instance loses 0 to 3 eighths of its text, so that there is padding to look at.
    cut = np.arange(packed.num_instances) % 4 * (packed.lengths // 8)
    lengths = np.maximum(2, packed.lengths - cut)
    is_real = packed.position_ids < np.repeat(lengths, packed.width)
    owner = np.repeat(np.arange(packed.num_instances), packed.width)
    padded = {
        "input_ids": packed.input_ids,
        "token_type_ids": packed.token_type_ids,
        "position_ids": packed.position_ids,
    }
    dense = {key: value[is_real] for key, value in padded.items()}
    all_real = np.ones(int(is_real.sum()), bool)
    return {
        "padded instances": Form(padded, Layout.rectangle(lengths, packed.width), is_real, owner),
        "packed sequences": Form(dense, Layout.ragged(lengths), all_real, owner[is_real]),
    }


def check_neighbours(probe: ArmProbe) -> Finding:
    """Change every second sequence of the stream, or all padding, and look at the others.

    In both layouts.
    """
    forms = _forms(probe.packed)
    # A frozen teacher may be large, and its kernels are those of the others.
    trained = [name for name, model in probe.models.items() if model.is_trained]
    leaks = {}
    for name, form in forms.items():
        leaks[name] = sum(_count_leaks(probe, model, form) for model in trained)
    leaky = ", ".join(name for name, number in leaks.items() if number)
    figure = (
        f"{sum(leaks.values())} slots of other sequences changed, of"
        f" {probe.packed.num_instances} {' and '.join(leaks)}"
    )
    case = Case(
        bool(leaky),
        ERROR,
        f"sequences that share a batch see each other ({leaky})",
        "attention ignores the layout: look at the kernel this machine takes (models/attention.py)",
    )
    good = "neighbours in a batch and padding are not seen"
    return first_finding("neighbours", probe.arm.name, good, figure, case)


def _count_leaks(probe: ArmProbe, model: str, form: Form) -> int:
    """How many slots change with the text of other sequences, or of padding."""
    base = probe.states(model, form.stream, form.layout)
    num_leaks = 0
    # Every second sequence, then all padding.
    for touched in (form.owner % 2 == 1, ~form.is_real):
        if not touched.any():
            continue
        other = probe.other_ids(form.stream["input_ids"], np.flatnonzero(touched))
        states = probe.states(model, form.stream | {"input_ids": other}, form.layout)
        num_leaks += int(changed(base, states)[form.is_real & ~touched].sum())
    return num_leaks


def changed(before: Tensor, after: Tensor) -> np.ndarray:
    """bool [T or P]: whose values differ by more than rounding."""
    # Relative to the largest output, since the weights of a probe are large.
    scale = float(before.abs().max())
    return ((before - after).abs().flatten(1).amax(dim=1) > TOLERANCE * scale).numpy()
