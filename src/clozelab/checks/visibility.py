"""What the predictions of an arm see.

That is tried out: change the text somewhere and look which outputs change. The arm's own objective
runs on a few instances through fresh models of its shape (small ones of that kind where it is
large), in fp32 on the CPU, without dropout, with large weights: every dependence is far above
rounding. `Objective.visibility` says what may be.

Letters: T slots in the stream, B instances, P predictions, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from clozelab.checks.subject import (
    ERROR,
    PROBE_SEED,
    Case,
    Finding,
    deviation,
    first_finding,
    share,
)
from clozelab.corpus.packing import I64, PackedInstances
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

NUM_PROBED = 32  # instances that are changed
MAX_PROBED_SLOTS = 128  # of each of them
MAX_PARAMETERS = 20_000_000  # a larger encoder is tried in a small shape of the same kind
PROBE_INITIALIZER_RANGE = 0.1
TOLERANCE = 1e-5  # of the largest output; rounding in fp32 stays below 2e-6
PICKS = 8  # predictions of each instance whose own label is changed


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
    labels = of_spec(spec, probe.arrays()["prediction_labels"])  # [P]
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


def of_spec(spec: VisibilitySpec, values: Values) -> Values:
    """Of values for all predictions of a batch those that the spec speaks of."""
    return values if spec.numbers is None else values[spec.numbers]


def _count_seen_labels(probe: ArmProbe, spec: VisibilitySpec) -> tuple[int, int]:
    """How many predictions change with their own label, and how many were tried."""
    text = probe.packed.input_ids
    base = of_spec(spec, probe.predictions(spec.model, probe.arrays()))
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
        predictions = of_spec(spec, probe.predictions(spec.model, altered))
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
