"""What an arm trains on: its schedule, what is masked, whether pairs are what their labels say,
what predictions see.

Bounds are binomial at 4.5 standard deviations: a sound recipe is outside once in 150,000 checks.

What a prediction can see is tried out: change the text somewhere and look which outputs change. The
arm's own objective runs on a few instances through fresh models of its shape (small ones of that
kind where it is large), in fp32 on the CPU, without dropout, with large weights: every dependence
is far above rounding. `Objective.visibility` says what may be.

Letters: T slots in the stream, B instances, P predictions, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clozelab.checks.corpus import NGRAM, NgramIndex, ngram_hashes
from clozelab.checks.subject import (
    ERROR,
    OK,
    PROBE_SEED,
    WARNING,
    Finding,
    deviation,
    finding,
    share,
)
from clozelab.corpus.instances import source_rule
from clozelab.corpus.packing import I64, Masking, PackedInstances, begin_words
from clozelab.corpus.random import instance_indices
from clozelab.models.cost import parameter_count
from clozelab.models.encoder import Encoder
from clozelab.models.layout import Layout
from clozelab.objectives.objective import (
    Arrays,
    EncoderWithHeads,
    VisibilitySpec,
    build_models,
    to_torch,
)
from clozelab.planning.jobs import Arm
from clozelab.text.formatting import rough

MAX_WARMUP_FRACTION = 0.3
NUM_SAMPLED = 2048
LENGTH_BINS = 8
# more random next segments that could not be found tie the label to the document
MAX_FALLBACK_FRACTION = 0.05
# pairs that must be found in the text before something is said about where they come from
MIN_LOCATED = 30
NUM_PROBED, MAX_PROBED_SLOTS = 32, 128  # instances that are changed, and their slots
MAX_PARAMETERS = 20_000_000  # a larger encoder is tried in a small shape of the same kind
PROBE_INITIALIZER_RANGE = 0.1
TOLERANCE = 1e-5  # of the largest output; rounding in fp32 stays below 2e-6
PICKS = 8  # predictions of each instance whose own label is changed


def check_schedule(arm: Arm) -> Iterator[Finding]:
    """Warm-up, and the plateau of masked models."""
    fraction, needed = (
        arm.settings.get("schedule", {}).get("warmup_fraction", 0.0),
        arm.tokens_to_plateau,
    )
    figure = f"{arm.steps:,} steps, {rough(arm.tokens)} tokens, warmup_fraction {fraction:g}"
    plateau = (
        "the budget may end before the masked model leaves its plateau"
        f" (about {rough(needed)} tokens)"
    )
    yield finding(
        "schedule",
        arm.name,
        "warm-up and budget are usual",
        figure,
        (
            fraction > MAX_WARMUP_FRACTION,
            WARNING,
            "the warm-up takes much of the training",
            "0.01 to 0.1 is usual",
        ),
        (
            needed > arm.tokens,
            WARNING,
            plateau,
            "a rule of thumb: more steps, or a phase of 32 or 64 tokens first",
        ),
    )
    if arm.corpus.ids.has_token_types and all(one.input.num_segments == 1 for one in arm.of_phases):
        what = (
            f"{arm.name}: instances have no second segment, so fine-tuning gives both texts of a"
            " pair token type 0"
        )
        yield Finding(
            "token types",
            OK,
            what,
            "token type 1 is never trained",
            "finetune token_types=two uses it",
        )


def sampled(arm: Arm) -> PackedInstances:
    """Up to NUM_SAMPLED instances of the phase with the most, spread over the corpus, before the
    objective acts.
    """
    length = max(arm.phases, key=lambda phase: phase["steps"] * phase["global_batch_size"])[
        "seq_length"
    ]
    instances = arm.corpus.instances(arm.objective, length)
    wanted = np.arange(min(NUM_SAMPLED, len(instances)))
    return instances.pack(PROBE_SEED, 0, instance_indices(PROBE_SEED, len(instances), wanted)[1])


def check_masks(arm: Arm) -> Iterator[Finding]:
    """Share of predicted tokens, what stands in their place, special tokens, and whether masks
    change.
    """
    token, packed, ids = arm.objective.token, sampled(arm), arm.corpus.ids
    found = token.arrays(packed, ids, PROBE_SEED, 0)
    where, labels, seen = (
        found["prediction_positions"],
        found["prediction_labels"],
        found["input_ids"],
    )
    if not isinstance(token, Masking):
        candidates = int((packed.lengths - 1).sum())
        is_off = (
            abs(len(where) - token.predicted_share(packed.width) * candidates) > 0.02 * candidates
        )
        other = (
            is_off,
            ERROR,
            "another share of tokens is predicted than the objective says",
            "look at its arrays()",
        )
        yield finding(
            "masks", arm.name, f"{token.name} predicts", share(len(where), candidates), other
        )
        return
    candidates, wrong = int((~packed.special).sum()), []
    most = int(token.max_predictions_fraction * packed.width) * packed.num_instances
    wanted = min(
        token.predict_prob * (packed.lengths.sum() if token.count_specials else candidates), most
    )
    # Each instance rounds to whole tokens, so the number may be off by half a token each.
    if abs(len(where) - wanted) > 0.5 * packed.num_instances + 0.002 * candidates:
        wrong.append(
            f"{share(len(where), candidates)} tokens are predicted, the settings say {wanted:,.0f}"
        )
    if token.whole_words:
        word = np.cumsum(begin_words(packed, ids.continues))
        sizes, hits = (
            np.bincount(word[~packed.special]),
            np.bincount(word[where], minlength=int(word.max()) + 1),
        )
        if torn := int(((hits > 0) & (hits < sizes)).sum()):
            wrong.append(f"{torn} words are predicted in part")
    if packed.special[where].any():
        wrong.append(f"{int(packed.special[where].sum())} special tokens are predicted")
    figure = share(len(where), candidates)
    if len(where):
        is_mask, is_same = seen[where] == ids.mask, seen[where] == labels
        shares = {
            "[MASK]": is_mask.mean(),
            "random": (~is_mask & ~is_same).mean(),
            "unchanged": is_same.mean(),
        }
        recipe = (token.mask_fraction, token.random_fraction, token.same_fraction)
        for (name, observed), fraction in zip(shares.items(), recipe, strict=True):
            # a random token can be the original one or [MASK]: a little more than chance.
            if abs(observed - fraction) > deviation(fraction, len(where)) + 0.005:
                wrong.append(
                    f"{observed:.1%} of the predicted tokens are {name}, the recipe says"
                    f" {fraction:.0%}"
                )
        again = token.arrays(packed, ids, PROBE_SEED, 1)["prediction_positions"]
        if arm.objective.dupe_factor != 1 and np.array_equal(again, where):
            wrong.append("epoch 1 masks what epoch 0 masked")
        figure += (
            "; "
            + "/".join(f"{100 * one:.0f}" for one in shares.values())
            + " masked/random/unchanged"
        )
    remedy = (
        "the objective's settings are not what is done: look at corpus/packing.py and"
        " objective.token"
    )
    case = (bool(wrong), ERROR, "; ".join(wrong), remedy)
    yield finding("masks", arm.name, "masks are as the recipe says", figure, case)


@dataclass(frozen=True)
class PairSample:
    """Segment pairs with the n-grams that locate them in the corpus; all [B]."""

    label: I64  # 1 = B is random
    a_length: I64
    b_length: I64
    is_short: np.ndarray  # padded at its end
    one_source: np.ndarray | None  # both segments are of one; None: they always are
    num_fallbacks: int
    a_hash: np.ndarray  # the n-gram that A ends with; 0 where a segment is too short for one
    b_hash: np.ndarray  # the n-gram that B begins with


def sample_pairs(arm: Arm) -> PairSample | None:
    if arm.objective.pair is None:
        return None
    packed, label = arm.objective.pair.arrange(sampled(arm), PROBE_SEED, 0)
    ids = packed.input_ids.reshape(packed.num_instances, packed.width)
    a_length, b_length = packed.a_length, packed.b_length
    assert a_length is not None and b_length is not None
    usable = (a_length >= NGRAM) & (b_length >= NGRAM)
    a_hash, b_hash = np.zeros(len(ids), dtype=np.uint64), np.zeros(len(ids), dtype=np.uint64)
    if len(number := np.flatnonzero(usable)[:, None]):
        a_end, slot = a_length[usable][:, None] + 1, np.arange(NGRAM)
        a_hash[usable] = ngram_hashes(ids[number, a_end - NGRAM + slot])[:, 0]
        b_hash[usable] = ngram_hashes(ids[number, a_end + arm.corpus.ids.pair_separators + slot])[
            :, 0
        ]
    is_short = packed.lengths < packed.width
    return PairSample(
        label, a_length, b_length, is_short, packed.one_source, packed.num_fallbacks, a_hash, b_hash
    )


def check_pairs(
    arm: Arm, sample: PairSample | None = None, index: NgramIndex | None = None
) -> Iterator[Finding]:
    """Share of random pairs, what lengths alone tell, and where segments that the corpus has once
    really come from.
    """
    pair, sample = arm.objective.pair, sample or sample_pairs(arm)
    if pair is None or sample is None:
        return
    label, number = sample.label, len(sample.label)
    # half of the pairs are swapped
    wanted = float(getattr(arm.objective.input, "random_next_prob", 0.5))
    is_released = getattr(arm.objective.input, "cuts", "") == "released"
    rate, (accuracy, chance) = float(label.mean()), length_rule(sample)
    figure = (
        f"{share(label.sum(), number)} random; lengths alone guess {accuracy:.1%} (chance"
        f" {chance:.1%})"
    )
    by_source = chance if sample.one_source is None else source_rule(label, sample.one_source)
    if sample.one_source is not None:
        figure += f"; their sources alone tell {by_source:.1%}"
    torn = strange = 0
    if index is not None:
        a_at, b_at = index.only_position(sample.a_hash), index.only_position(sample.b_hash)
        located, follows, is_random = (a_at >= 0) & (b_at >= 0), b_at == a_at + NGRAM, label == 1
        shards = arm.corpus.train
        starts = np.asarray(shards.sentence_offsets)[np.asarray(shards.document_offsets)]
        same_document = np.searchsorted(starts, a_at, side="right") == np.searchsorted(
            starts, b_at, side="right"
        )
        # which has cut tokens at the boundary
        follows |= is_released & same_document & (b_at > a_at)
        is_strange = same_document if pair.is_of_other_document else ~same_document | follows
        if located.sum() >= MIN_LOCATED:
            torn, strange = (
                int((located & wrong).sum())
                for wrong in (~is_random & ~follows, is_random & is_strange)
            )
        figure += f"; {share(located.sum(), number)} located in the text"
    remedy = (
        "the pair loss would learn nothing of the text: look at objective.input and"
        " corpus/instances.py"
    )
    is_off = abs(rate - wanted) > deviation(wanted, number) + MAX_FALLBACK_FRACTION * wanted
    is_off &= rate < wanted or not is_released  # whose lone sentences have random Bs besides
    many_fallbacks = sample.num_fallbacks > MAX_FALLBACK_FRACTION * (
        label.sum() + sample.num_fallbacks
    )
    lost = f"{sample.num_fallbacks} random next segments were not found in another document"
    told = (
        f"asking whether both segments are of one source is right for {by_source:.1%} of the pairs"
    )
    own = (
        "learnt means above that; objective.input.negative_scope=source draws a random B from A's"
        " own source"
    )
    # the released code's do: objective.input.cuts=ours has none of it
    betrays = WARNING if is_released else ERROR
    other = (
        "random pairs are of one document"
        if pair.is_of_other_document
        else "swapped pairs are not swapped"
    )
    yield finding(
        "pairs",
        arm.name,
        "pairs are what their labels say, lengths tell nothing",
        figure,
        (
            is_off,
            ERROR,
            f"{rate:.1%} of the pairs are random, random_next_prob is {wanted:g}",
            remedy,
        ),
        (torn > 0, ERROR, f"{torn} pairs labelled 'is next' do not follow in the text", remedy),
        (strange > 0, ERROR, f"{strange} {other}", remedy),
        (
            accuracy > chance + deviation(0.5, number // 2),
            betrays,
            "lengths of segments betray a random B",
            remedy,
        ),
        (by_source > chance + deviation(0.5, number), WARNING, told, own),
        (bool(many_fallbacks), WARNING, lost, "add documents, or cut very long ones"),
    )


def length_rule(sample: PairSample) -> tuple[float, float]:
    """(accuracy of the best guess from the lengths, of the most frequent label), learnt and tried
    on two halves.
    """

    def bins(values: I64) -> I64:
        """Number of the quantile that each value falls into, 0..LENGTH_BINS - 1."""
        return np.searchsorted(
            np.quantile(values, np.arange(1, LENGTH_BINS) / LENGTH_BINS), values, side="right"
        )

    cell = (
        bins(sample.a_length) * LENGTH_BINS + bins(sample.b_length)
    ) * 2 + sample.is_short.astype(np.int64)
    half = len(cell) // 2
    votes = np.bincount(
        cell[:half], weights=2 * sample.label[:half] - 1, minlength=2 * LENGTH_BINS**2
    )
    truth = sample.label[half:]
    guess = votes[cell[half:]] > 0
    return float((guess == truth).mean()), float(max(truth.mean(), 1 - truth.mean()))


@dataclass
class Probe:
    """An arm's models with instances to try them on."""

    arm: Arm
    models: dict[str, EncoderWithHeads]
    packed: PackedInstances

    @classmethod
    def of(cls, arm: Arm) -> Probe:
        """A few instances of the arm's shortest phase, and models of its shape or a small one;
        always the same.
        """
        config = replace(arm.config, initializer_range=PROBE_INITIALIZER_RANGE)
        if parameter_count(config) > MAX_PARAMETERS:
            most = {
                "num_hidden_layers": 2,
                "embedding_size": 64,
                "num_hidden_groups": min(2, config.num_hidden_layers),
            }
            small: dict[str, Any] = {
                key: min(getattr(config, key), limit) for key, limit in most.items()
            }
            config = replace(
                config, hidden_size=64, num_attention_heads=2, intermediate_size=128, **small
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(PROBE_SEED)
            models = build_models(Encoder(config), [arm.objective])
        for model in models.values():
            model.eval()
        length = min(MAX_PROBED_SLOTS, min(phase["seq_length"] for phase in arm.phases))
        instances = arm.corpus.instances(arm.objective, length)
        packed = instances.pack(PROBE_SEED, 0, np.arange(min(NUM_PROBED, len(instances))))
        return cls(arm, models, arm.objective.arrange(packed, PROBE_SEED, 0)[0])

    def arrays(self, input_ids: I64 | None = None) -> Arrays:
        """What the objective makes of the instances, or of the same with another text."""
        packed = self.packed if input_ids is None else replace(self.packed, input_ids=input_ids)
        return self.arm.objective.arrays_of(packed, self.arm.corpus.ids, PROBE_SEED, 0)

    @torch.no_grad()
    def states(self, model: str, stream: Arrays, layout: Layout | None = None) -> Tensor:
        """Hidden states [T, H] of one of the models on the ids of `stream`."""
        ids = [
            torch.from_numpy(stream[key]) for key in ("input_ids", "token_type_ids", "position_ids")
        ]
        return (
            self.models[model].encoder(*ids, layout or to_torch(stream)["layout"]).sequence_output
        )

    @torch.no_grad()
    def predictions(self, model: str, arrays: Arrays) -> Tensor:
        """[P, ...]; draws inside the forward are the same every time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(PROBE_SEED)
            return self.arm.objective.token.predictions(self.models, to_torch(arrays))[model]

    def other_ids(self, input_ids: I64, where: I64, round_number: int = 0) -> I64:
        """A copy with another random token at each of the slots `where`: a piece of a word, where
        there was one.
        """
        rng, vocab_size = (
            np.random.default_rng([PROBE_SEED, round_number]),
            self.arm.config.vocab_size,
        )
        changed, continues = input_ids.copy(), self.arm.corpus.ids.continues
        kinds = np.zeros(vocab_size, dtype=bool) if continues is None else continues
        for kind in (False, True):
            members, own = np.flatnonzero(kinds == kind), where[kinds[input_ids[where]] == kind]
            step = rng.integers(1, max(2, len(members)), len(own))
            changed[own] = members[
                (np.searchsorted(members, input_ids[own]) + step) % max(1, len(members))
            ]
        return changed


def check_visibility(arm: Arm) -> Iterator[Finding]:
    """Left and right context, the predicted token itself, and the neighbours in the stream, of
    every model.
    """
    threads = torch.get_num_threads()
    # Products this small only make threads wait for each other, longest on a busy machine.
    torch.set_num_threads(1)
    try:
        probe = Probe.of(arm)
        for sight in arm.objective.visibility(probe.packed, arm.corpus.ids, PROBE_SEED, 0):
            yield check_context(probe, sight, f"{arm.name}, {sight.term}")
            yield check_own_label(probe, sight, f"{arm.name}, {sight.term}")
        yield check_neighbours(probe)
    finally:
        torch.set_num_threads(threads)


def check_context(probe: Probe, sight: VisibilitySpec, name: str) -> Finding:
    """Change everything right of an instance's middle, then everything left of it."""
    packed, arrays = probe.packed, probe.arrays()
    is_left = packed.position_ids <= np.repeat(packed.lengths // 2, packed.width)
    left, right = packed.is_real & is_left, packed.is_real & ~is_left
    base = probe.states(sight.model, arrays)

    def reached(touched: np.ndarray, looked_at: np.ndarray) -> np.ndarray:
        other = arrays | {
            "input_ids": probe.other_ids(arrays["input_ids"], np.flatnonzero(touched))
        }
        return changed(base, probe.states(sight.model, other))[looked_at]

    sees_right, sees_left, past_only = reached(right, left), reached(left, right), sight.past_only
    figure = " and ".join(share(one.sum(), len(one)) for one in (sees_right, sees_left))
    no_mask = (
        "the causal mask is not applied: the arm would copy its labels. Look at is_causal and"
        " attention"
    )
    causal = (
        "a masked model reads both sides: is the encoder causal (config.is_causal) under this"
        " objective?"
    )
    nothing = "attention reaches nothing: look at the attention kernel and its mask"
    return finding(
        "future",
        name,
        "sees the past only" if past_only else "sees both sides",
        f"{figure} positions see what follows, and what precedes them",
        (
            past_only and bool(sees_right.any()),
            ERROR,
            "predicts left to right and sees the future",
            no_mask,
        ),
        (
            not past_only and not sees_right.all(),
            ERROR,
            "does not see what follows a position",
            causal,
        ),
        (not sees_left.all(), ERROR, "does not see what precedes a position", nothing),
    )


def check_own_label(probe: Probe, sight: VisibilitySpec, name: str) -> Finding:
    """Change a predicted token in the text: its prediction may change only where the objective
    leaves it visible.
    """
    text, arrays = probe.packed.input_ids, probe.arrays()
    labels = arrays["prediction_labels"]
    if not len(labels) or not np.array_equal(text[np.minimum(sight.about, len(text) - 1)], labels):
        what = f"{name}: predicts {'other tokens than the text has' if len(labels) else 'no token'}"
        remedy = (
            "look at the objective's arrays() and visibility(): a label is the text's token at its"
            " slot `about`"
        )
        return Finding("own label", ERROR, what, share(0, len(labels)), remedy)
    base, seen, tried = probe.predictions(sight.model, arrays), 0, 0
    _, first, count = np.unique(
        sight.about // probe.packed.width, return_index=True, return_counts=True
    )
    for number in range(PICKS):
        # One prediction of each instance that has one left, none twice, spread over it.
        place = np.where(count > PICKS, number * count // PICKS, number)
        if not len(picks := (first + place)[place < count]):
            break
        altered = probe.arrays(probe.other_ids(text, sight.about[picks], number))
        seen += int(changed(base[picks], probe.predictions(sight.model, altered)[picks]).sum())
        tried += len(picks)
    figure = (
        share(seen, tried)
        + f" predictions see their own label; the recipe leaves {100 * sight.own_share:.0f} %"
    )
    is_seen = seen / tried > sight.own_share + deviation(sight.own_share, tried)
    remedy = (
        "the label can be copied, so nothing is learnt: look at masking (or, left to right, the"
        " causal mask)"
    )
    case = (is_seen, ERROR, "sees what it predicts", remedy)
    return finding("own label", name, "does not see what it predicts", figure, case)


def check_neighbours(probe: Probe) -> Finding:
    """Change every second sequence of the stream, or all padding, and look at the others; in both
    layouts.
    """
    packed = probe.packed
    lengths = np.maximum(
        2, packed.lengths - np.arange(packed.num_instances) % 4 * (packed.lengths // 8)
    )
    real = packed.position_ids < np.repeat(lengths, packed.width)
    instance = np.repeat(np.arange(packed.num_instances), packed.width)
    whole = {key: getattr(packed, key) for key in ("input_ids", "token_type_ids", "position_ids")}
    close = {key: value[real] for key, value in whole.items()}
    forms = {
        "padded instances": (whole, Layout.rectangle(lengths, packed.width), real, instance),
        "packed sequences": (
            close,
            Layout.ragged(lengths),
            np.ones(int(real.sum()), bool),
            instance[real],
        ),
    }
    leaks = dict.fromkeys(forms, 0)
    for (form, (stream, layout, is_real, owner)), model in product(forms.items(), probe.models):
        base = probe.states(model, stream, layout)
        for touched in (owner % 2 == 1, ~is_real):
            if len(where := np.flatnonzero(touched)):
                other = stream | {"input_ids": probe.other_ids(stream["input_ids"], where)}
                leaks[form] += int(
                    changed(base, probe.states(model, other, layout))[is_real & ~touched].sum()
                )
    leaky = ", ".join(form for form, number in leaks.items() if number)
    remedy = (
        "attention ignores the layout: look at the kernel this machine takes (models/attention.py)"
    )
    figure = (
        f"{sum(leaks.values())} slots of other sequences changed, of {packed.num_instances}"
        f" {' and '.join(leaks)}"
    )
    case = (bool(leaky), ERROR, f"sequences that share a batch see each other ({leaky})", remedy)
    return finding(
        "neighbours", probe.arm.name, "neighbours in a batch and padding are not seen", figure, case
    )


def changed(before: Tensor, after: Tensor) -> np.ndarray:
    """bool [T or P]: whose values differ by more than rounding."""
    scale = float(before.abs().max())
    return ((before - after).abs().flatten(1).amax(dim=1) > TOLERANCE * scale).numpy()
