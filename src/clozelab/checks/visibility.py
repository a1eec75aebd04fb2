"""What a prediction can see, tried out: change the text somewhere and look which outputs change.

Runs the arm's own objective on instances of its own corpus through freshly initialised models of its shape (small ones
of the same kind where that is large), in fp32 on the CPU, without dropout. Weights are drawn larger than in training,
so that every dependence is far above rounding. What may be seen, the objective says (`Objective.allowed`).

Letters: T slots in the stream, B instances, S slots each, P predictions, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from clozelab.checks.subject import ERROR, OK, PROBE_SEED, Finding, deviation, share
from clozelab.corpus.packing import I64, PackedInstances
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import parameter_count
from clozelab.models.encoder import Encoder
from clozelab.models.layout import Layout
from clozelab.objectives.objective import Arrays, EncoderWithHeads, Sight, build_models, to_torch

if TYPE_CHECKING:
    from clozelab.planning.jobs import Arm

NUM_INSTANCES = 32
MAX_SLOTS = 128
"""Longer ones would show nothing more and take longer."""
MAX_PARAMETERS = 20_000_000
"""A larger encoder is tried in a small shape of the same kind."""
PROBE_INITIALIZER_RANGE = 0.1
TOLERANCE = 1e-5
"""Of the largest output; rounding in fp32 stays below 2e-6."""
PICKS = 8
"""Predictions of each instance whose own label is changed."""


@dataclass
class Probe:
    """An arm's models with instances to try them on."""

    arm: Arm
    models: dict[str, EncoderWithHeads]
    packed: PackedInstances

    @classmethod
    def of(cls, arm: Arm) -> Probe:
        """Made by the arm's own objective; the same every time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(PROBE_SEED)
            models = build_models(Encoder(probe_config(arm.config)), [arm.objective])
        for model in models.values():
            model.eval()
        return cls(arm, models, probe_instances(arm))

    def arrays(self, input_ids: I64 | None = None) -> Arrays:
        """What the objective makes of the instances, or of the same with another text."""
        packed = self.packed if input_ids is None else replace(self.packed, input_ids=input_ids)
        return self.arm.objective.arrays_of(packed, self.arm.corpus.ids, PROBE_SEED, 0)

    def sights(self) -> list[Sight]:
        return self.arm.objective.allowed(self.packed, self.arm.corpus.ids, PROBE_SEED, 0)

    @torch.no_grad()
    def states(self, model: str, stream: Arrays, layout: Layout | None = None) -> Tensor:
        """Hidden states [T, H] of one of the models on the ids of `stream`."""
        ids = [torch.from_numpy(stream[key]) for key in ("input_ids", "token_type_ids", "position_ids")]
        return self.models[model].encoder(*ids, layout or to_torch(stream)["layout"]).sequence_output

    @torch.no_grad()
    def predictions(self, model: str, arrays: Arrays) -> Tensor:
        """[P, ...]; draws inside the forward are the same every time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(PROBE_SEED)
            return self.arm.objective.token.predictions(self.models, to_torch(arrays))[model]

    def other_ids(self, input_ids: I64, where: I64, round_number: int = 0) -> I64:
        """A copy with another random token at each of the slots `where`."""
        rng = np.random.default_rng([PROBE_SEED, round_number])
        vocab_size = self.arm.config.vocab_size
        changed = input_ids.copy()
        changed[where] = (changed[where] + rng.integers(1, vocab_size, len(where))) % vocab_size
        return changed


def probe_config(config: EncoderConfig) -> EncoderConfig:
    """The arm's own shape, or a small one; always with weights that show every dependence."""
    config = replace(config, initializer_range=PROBE_INITIALIZER_RANGE)
    if parameter_count(config) <= MAX_PARAMETERS:
        return config
    layers = min(2, config.num_hidden_layers)
    return replace(
        config,
        hidden_size=64,
        num_attention_heads=2,
        num_hidden_layers=layers,
        intermediate_size=128,
        embedding_size=min(config.embedding_size, 64),
        num_hidden_groups=min(config.num_hidden_groups, layers),
    )


def probe_instances(arm: Arm) -> PackedInstances:
    """A few instances of the arm's shortest phase, as they are read."""
    length = min(MAX_SLOTS, min(phase["seq_length"] for phase in arm.phases))
    instances = arm.corpus.instances(arm.objective, length)
    packed = instances.pack(PROBE_SEED, 0, np.arange(min(NUM_INSTANCES, len(instances))))
    return arm.objective.arrange(packed, PROBE_SEED, 0)[0]


def check_visibility(arm: Arm) -> Iterator[Finding]:
    """Left and right context, the predicted token itself, and the neighbours in the stream, of every model."""
    threads = torch.get_num_threads()
    # Products this small only make threads wait for each other, longest on a busy machine.
    torch.set_num_threads(1)
    try:
        probe = Probe.of(arm)
        for sight in probe.sights():
            name = f"{arm.name}: {sight.term}"
            yield from check_context(probe, sight, name)
            yield from check_own_label(probe, sight, name)
        yield from check_neighbours(probe)
    finally:
        torch.set_num_threads(threads)


def check_context(probe: Probe, sight: Sight, name: str) -> Iterator[Finding]:
    """Change everything right of an instance's middle, then everything left of it."""
    packed, arrays = probe.packed, probe.arrays()
    is_left = packed.position_ids <= np.repeat(packed.lengths // 2, packed.width)
    left, right = packed.is_real & is_left, packed.is_real & ~is_left
    base = probe.states(sight.model, arrays)

    def reached(touched: np.ndarray, looked_at: np.ndarray) -> np.ndarray:
        other = arrays | {"input_ids": probe.other_ids(arrays["input_ids"], np.flatnonzero(touched))}
        return changed(base, probe.states(sight.model, other))[looked_at]

    sees_right, sees_left = reached(right, left), reached(left, right)
    figure = share(sees_right.sum(), len(sees_right)) + " positions see what follows them"
    if sight.past_only and sees_right.any():
        remedy = "the causal mask is not applied: the arm would copy its labels. Look at is_causal and attention"
        yield Finding("future", ERROR, f"{name} predicts left to right and sees the future", figure, remedy)
    elif not sight.past_only and not sees_right.all():
        remedy = "a masked model reads both sides: is the encoder causal (config.is_causal) under this objective?"
        yield Finding("future", ERROR, f"{name} does not see what follows a position", figure, remedy)
    elif not sees_left.all():
        remedy = "attention reaches nothing: look at the attention kernel and its mask"
        seen = share(sees_left.sum(), len(sees_left)) + " positions see what precedes them"
        yield Finding("future", ERROR, f"{name} does not see what precedes a position", seen, remedy)
    else:
        side = "sees the past only" if sight.past_only else "sees both sides"
        yield Finding("future", OK, f"{name} {side}", figure)


def check_own_label(probe: Probe, sight: Sight, name: str) -> Iterator[Finding]:
    """Change a predicted token in the text: its prediction may change only where the objective leaves it visible."""
    text, arrays = probe.packed.input_ids, probe.arrays()
    labels = arrays["prediction_labels"]
    if not len(labels) or not np.array_equal(text[np.minimum(sight.about, len(text) - 1)], labels):
        what = f"{name} predicts {'other tokens than the text has' if len(labels) else 'no token'}"
        remedy = "look at the objective's arrays() and allowed(): a label is the text's token at its slot `about`"
        yield Finding("own label", ERROR, what, share(0, len(labels)), remedy)
        return
    base, seen, tried = probe.predictions(sight.model, arrays), 0, 0
    for number in range(PICKS):
        picks = _one_an_instance(sight.about // probe.packed.width, number)
        if not len(picks):
            break
        altered = probe.arrays(probe.other_ids(text, sight.about[picks], number))
        new = probe.predictions(sight.model, altered)
        seen += int(changed(base[picks], new[picks]).sum())
        tried += len(picks)
    figure = share(seen, tried) + f" predictions see their own label; the recipe leaves {100 * sight.own_share:.0f} %"
    if seen / tried > sight.own_share + deviation(sight.own_share, tried):
        remedy = "the label can be copied, so nothing is learnt: look at masking (or, left to right, the causal mask)"
        yield Finding("own label", ERROR, f"{name} sees what it predicts", figure, remedy)
    else:
        yield Finding("own label", OK, f"{name} does not see what it predicts", figure)


def check_neighbours(probe: Probe) -> Iterator[Finding]:
    """Change one sequence of the stream and look at the others; both layouts, and the padding of a rectangle."""
    packed, name = probe.packed, probe.arm.name
    lengths = np.maximum(2, packed.lengths - np.arange(packed.num_instances) % 4 * (packed.lengths // 8))
    real = packed.position_ids < np.repeat(lengths, packed.width)
    instance = np.repeat(np.arange(packed.num_instances), packed.width)
    whole = {key: getattr(packed, key) for key in ("input_ids", "token_type_ids", "position_ids")}
    close = {key: value[real] for key, value in whole.items()}
    leaks = {"padded instances": 0, "packed sequences": 0}
    for model in probe.models:
        rectangle, ragged = Layout.rectangle(lengths, packed.width), Layout.ragged(lengths)
        leaks["padded instances"] += _leak(probe, model, whole, rectangle, real, instance)
        leaks["packed sequences"] += _leak(
            probe, model, close, ragged, np.ones(len(instance[real]), bool), instance[real]
        )
    leaky = [name for name, number in leaks.items() if number]
    if leaky:
        what = f"{name}: sequences that share a batch see each other ({', '.join(leaky)})"
        remedy = "attention ignores the layout: look at the kernel this machine takes (models/attention.py)"
        yield Finding("neighbours", ERROR, what, f"{sum(leaks.values())} slots of other sequences changed", remedy)
    else:
        what = f"{name}: neighbours in a batch do not see each other, nor padding"
        yield Finding("neighbours", OK, what, f"{packed.num_instances} sequences, {' and '.join(leaks)}")


def _leak(probe: Probe, model: str, stream: Arrays, layout: Layout, real: np.ndarray, instance: np.ndarray) -> int:
    """Real slots of other sequences that change with every second sequence, or with any padding."""
    base, found = probe.states(model, stream, layout), 0
    for touched in (instance % 2 == 1, ~real):
        where = np.flatnonzero(touched)
        if len(where):
            other = stream | {"input_ids": probe.other_ids(stream["input_ids"], where)}
            found += int(changed(base, probe.states(model, other, layout))[real & ~touched].sum())
    return found


def changed(before: Tensor, after: Tensor) -> np.ndarray:
    """bool [T or P]: whose values differ by more than rounding."""
    scale = float(before.abs().max())
    return ((before - after).abs().flatten(1).amax(dim=1) > TOLERANCE * scale).numpy()


def _one_an_instance(instance_of_prediction: I64, number: int) -> I64:
    """Pick `number` of PICKS: one prediction of each instance that has one left, none twice, spread over it."""
    _, first, count = np.unique(instance_of_prediction, return_index=True, return_counts=True)
    place = np.where(count > PICKS, number * count // PICKS, number)
    return (first + place)[place < count]
