"""What a prediction can see, tried out: change the text somewhere and look which outputs change.

Runs the arm's own objective on rows of its own corpus through a freshly initialised encoder of its shape (a small one
of the same kind where that is large), in fp32 on the CPU, without dropout. Weights are drawn larger than in training,
so that every dependence is far above rounding.

Letters: T slots in the stream, B rows, S slots a row, P predictions, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from clozelab.checks.subject import ERROR, OK, PROBE_SEED, Arm, Finding, deviation, share
from clozelab.corpus.packing import I64, PackedRows
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import parameter_count
from clozelab.models.encoder import Encoder
from clozelab.models.layout import Layout
from clozelab.objectives.objective import Objective

NUM_ROWS = 32
MAX_SLOTS = 128
"""Longer rows would show nothing more and take longer."""
MAX_PARAMETERS = 20_000_000
"""A larger encoder is tried in a small shape of the same kind."""
PROBE_INITIALIZER_RANGE = 0.1
TOLERANCE = 1e-5
"""Of the largest output; rounding in fp32 stays below 2e-6."""
PICKS = 8
"""Predictions of each row whose own label is changed."""


@dataclass
class Probe:
    """An arm's encoder and prediction head with rows to try them on."""

    arm: Arm
    encoder: Encoder
    head: nn.Module
    rows: PackedRows

    @classmethod
    def of(cls, arm: Arm) -> Probe:
        """Made by the arm's own objective; the same every time."""
        config = probe_config(arm.config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(PROBE_SEED)
            encoder = Encoder(config).eval()
            head = arm.objective.token.build_head(config, encoder).eval()
        return cls(arm, encoder, head, probe_rows(arm))

    @torch.no_grad()
    def states(self, input_ids: I64, layout: Layout | None = None, rows: PackedRows | None = None) -> Tensor:
        """Hidden states [T, H] of `rows` (the probe's own) with other ids."""
        rows = rows or self.rows
        layout = layout or _layout(rows)
        ids = [torch.from_numpy(array) for array in (input_ids, rows.token_type_ids, rows.position_ids)]
        return self.encoder(*ids, layout).sequence_output

    @torch.no_grad()
    def logits(self, input_ids: I64, prediction_rows: I64) -> Tensor:
        """[P, V]."""
        return self.head(self.states(input_ids).index_select(0, torch.from_numpy(prediction_rows)))

    def other_ids(self, input_ids: I64, where: I64, round_number: int = 0) -> I64:
        """A copy with another random token at each of the slots `where`."""
        rng = np.random.default_rng([PROBE_SEED, round_number])
        vocab_size = self.encoder.config.vocab_size
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


def probe_rows(arm: Arm) -> PackedRows:
    """A few rows of the arm's shortest phase."""
    length = min(MAX_SLOTS, min(phase["seq_length"] for phase in arm.phases))
    instances = arm.corpus.instances(arm.objective, length)
    return instances.rows(PROBE_SEED, 0, np.arange(min(NUM_ROWS, len(instances))))


def check_visibility(arm: Arm) -> Iterator[Finding]:
    """Left and right context, the predicted token itself, and the neighbours in the stream."""
    threads = torch.get_num_threads()
    # Products this small only make threads wait for each other, longest on a busy machine.
    torch.set_num_threads(1)
    try:
        probe = Probe.of(arm)
        yield from check_context(probe)
        yield from check_own_label(probe)
        yield from check_neighbours(probe)
    finally:
        torch.set_num_threads(threads)


def check_context(probe: Probe) -> Iterator[Finding]:
    """Change everything right of a row's middle, then everything left of it."""
    arm, rows = probe.arm, probe.rows
    middle = np.repeat(rows.lengths // 2, rows.slots)
    real = rows.position_ids < np.repeat(rows.lengths, rows.slots)
    left, right = real & (rows.position_ids <= middle), real & (rows.position_ids > middle)
    ids = arm.objective.token.instance(rows, arm.corpus.ids, PROBE_SEED, 0)["input_ids"]
    base = probe.states(ids)
    sees_right = changed(base, probe.states(probe.other_ids(ids, np.flatnonzero(right))))[left]
    sees_left = changed(base, probe.states(probe.other_ids(ids, np.flatnonzero(left))))[right]
    figure = share(sees_right.sum(), len(sees_right)) + " positions see what follows them"
    name = f"{arm.name}: {arm.objective.token.name}"
    if arm.objective.is_causal and sees_right.any():
        remedy = "the causal mask is not applied: the arm would copy its labels. Look at is_causal and attention"
        yield Finding("future", ERROR, f"{name} predicts left to right and sees the future", figure, remedy)
    elif not arm.objective.is_causal and not sees_right.all():
        remedy = "a masked model reads both sides: is the encoder causal (config.is_causal) under this objective?"
        yield Finding("future", ERROR, f"{name} does not see what follows a position", figure, remedy)
    elif not sees_left.all():
        remedy = "attention reaches nothing: look at the attention kernel and its mask"
        seen = share(sees_left.sum(), len(sees_left)) + " positions see what precedes them"
        yield Finding("future", ERROR, f"{name} does not see what precedes a position", seen, remedy)
    else:
        side = "sees the past only" if arm.objective.is_causal else "sees both sides"
        yield Finding("future", OK, f"{name} {side}", figure)


def check_own_label(probe: Probe) -> Iterator[Finding]:
    """Change a predicted token in the text: its prediction may change only where the recipe leaves it visible."""
    arm, rows = probe.arm, probe.rows
    token, ids = arm.objective.token, arm.corpus.ids
    base = token.instance(rows, ids, PROBE_SEED, 0)
    where, labels = base["prediction_rows"], base["prediction_labels"]
    offset = next((n for n in (0, 1) if len(where) and np.array_equal(_at(rows.input_ids, where + n), labels)), None)
    if offset is None:
        what = f"{arm.name}: {token.name} predicts {'no token' if not len(where) else 'other tokens than the text has'}"
        remedy = "look at the objective's instance(): labels are the text's tokens at, or one after, prediction_rows"
        yield Finding("own label", ERROR, what, share(0, len(where)), remedy)
        return
    logits, seen, tried = probe.logits(base["input_ids"], where), 0, 0
    for number in range(PICKS):
        picks = _one_a_row(rows.row_of_slot[where], number)
        if not len(picks):
            break
        text = probe.other_ids(rows.input_ids, where[picks] + offset, number)
        altered = token.instance(replace(rows, input_ids=text), ids, PROBE_SEED, 0)
        new = probe.logits(altered["input_ids"], where[picks])
        seen += int(changed(logits[picks], new).sum())
        tried += len(picks)
    allowed = visible_share(arm.objective)
    figure = share(seen, tried) + f" predictions see their own label; the recipe leaves {100 * allowed:.0f} %"
    if seen / tried > allowed + deviation(allowed, tried):
        remedy = "the label can be copied, so nothing is learnt: look at masking (or, left to right, the causal mask)"
        yield Finding("own label", ERROR, f"{arm.name}: {token.name} sees what it predicts", figure, remedy)
    else:
        yield Finding("own label", OK, f"{arm.name}: {token.name} does not see what it predicts", figure)


def check_neighbours(probe: Probe) -> Iterator[Finding]:
    """Change one sequence of the stream and look at the others; both layouts, and the padding of a rectangle."""
    rows = probe.rows
    lengths = np.maximum(2, rows.lengths - np.arange(rows.num_rows) % 4 * (rows.lengths // 8))
    real = rows.position_ids < np.repeat(lengths, rows.slots)
    leaks = {}
    if rows.row_slots is not None:
        rectangle = Layout.rectangle(lengths, rows.row_slots)
        leaks["padded rows"] = _leak(probe, rows, rectangle, real)
    packed = replace(
        rows, input_ids=rows.input_ids[real], token_type_ids=rows.token_type_ids[real],
        position_ids=rows.position_ids[real], lengths=lengths, row_slots=None, special=rows.special[real],
    )  # fmt: skip
    leaks["packed sequences"] = _leak(probe, packed, Layout.ragged(lengths), np.ones(int(real.sum()), dtype=bool))
    leaky = [name for name, number in leaks.items() if number]
    name = probe.arm.name
    if leaky:
        what = f"{name}: sequences that share a batch see each other ({', '.join(leaky)})"
        remedy = "attention ignores the layout: look at the kernel this machine takes (models/attention.py)"
        yield Finding("neighbours", ERROR, what, f"{sum(leaks.values())} slots of other sequences changed", remedy)
    else:
        what = f"{name}: neighbours in a batch do not see each other, nor padding"
        yield Finding("neighbours", OK, what, f"{rows.num_rows} sequences, {' and '.join(leaks)}")


def _leak(probe: Probe, rows: PackedRows, layout: Layout, real: np.ndarray) -> int:
    """Real slots of other sequences that change with every second sequence, or with any padding."""
    is_odd = rows.row_of_slot % 2 == 1
    base = probe.states(rows.input_ids, layout, rows)
    found = 0
    for touched in (is_odd, ~real):
        where = np.flatnonzero(touched)
        if len(where):
            new = probe.states(probe.other_ids(rows.input_ids, where), layout, rows)
            found += int(changed(base, new)[real & ~touched].sum())
    return found


def visible_share(objective: Objective) -> float:
    """Share of its labels that a token objective leaves visible on purpose."""
    masking = getattr(objective.token, "masking", None)
    return float(masking.same_fraction) if masking is not None else 0.0


def changed(before: Tensor, after: Tensor) -> np.ndarray:
    """bool [rows]: whose values differ by more than rounding."""
    scale = float(before.abs().max())
    return ((before - after).abs().amax(dim=1) > TOLERANCE * scale).numpy()


def _layout(rows: PackedRows) -> Layout:
    if rows.row_slots is None:
        return Layout.ragged(rows.lengths)
    return Layout.rectangle(rows.lengths, rows.row_slots)


def _at(values: I64, index: I64) -> I64:
    return values[np.minimum(index, len(values) - 1)]


def _one_a_row(row_of_prediction: I64, number: int) -> I64:
    """Pick `number` of PICKS: one prediction of each row that has one left, none twice, spread over the row."""
    _, first, count = np.unique(row_of_prediction, return_index=True, return_counts=True)
    place = np.where(count > PICKS, number * count // PICKS, number)
    return (first + place)[place < count]
