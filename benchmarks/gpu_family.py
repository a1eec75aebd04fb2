"""Whether every member of the family is right on this device; two parts of benchmarks/gpu.py.

`family` takes each pair of an architecture and an objective, with fresh weights and without
dropout, on one small batch of padded rows. A pair has these checks:

- fp32: each loss and the whole gradient are those of the CPU in fp32, without TF32;
- ragged: so is a loss of sentences (SimCSE's) on a stream without padding, for the encoder alone;
- bf16: losses differ by 2 % at most from those in fp32, and gradients are finite;
- AdamW, Muon: five steps in bf16 lower the loss on the batch;
- maps: attention maps under bf16 autocast are about those in fp32 (attention_maps.py).

Then rows of 4,096 tokens: attention in windows and blocks beside plain masked attention.
`family_compiled` compiles each pair as `pretrain trainer=gpu` does.

A check that fails is named in its line, and hides no other. But an error of the device itself, as
an illegal access, makes all CUDA calls behind it fail: there only the first one counts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.models.attention_maps import capture_attention
from clozelab.models.encoder import Encoder, compile_encoder
from clozelab.models.layout import Layout
from encoders import clozelab_optimizer, finish_step, random_shards
from families import FULL_ROWS, MEMBERS, make_member
from gpu_kernels import largest_error
from gpu_long import check_long_rows
from gpu_plan import Line, Plan, moved, require, require_all, table

PAIRS: Mapping[str, tuple[str, ...]] = {
    **MEMBERS,
    "BERT, next sentence": ("recipe=bert",),
    "ALBERT, sentence order": ("recipe=albert",),
    "BERT, left to right": ("recipe=bert", "objective=ltr", FULL_ROWS),
    "Two directions": ("architecture=two_directions", "objective=ltr_rtl", FULL_ROWS),
    "SpanBERT": ("recipe=bert", "objective=spans"),
    "Longformer, global": ("recipe=longformer",),
}
"""Those of benchmarks/families.py, and what it does not time."""
WITH_TWO_SEGMENTS = ("BERT, next sentence", "ALBERT, sentence order")
NARROW: Mapping[str, tuple[str, ...]] = {
    "recipe=longformer": ("architecture.attention.window=8",),
    "recipe=modernbert": ("architecture.attention.window=8",),
    "recipe=ultrabert": ("architecture.attention.window=8",),
    "recipe=bigbird": (
        "architecture.attention.block_size=3",
        "architecture.attention.num_random_blocks=1",
    ),
    "recipe=deberta_v3": ("objective.token.generator_depth=1/3",),
    "objective=hybrid": ("objective.token.causal_fraction=0.25",),
}
"""What three layers and short rows ask for, which should be longer than a window."""
VOCABULARY = 1024
TOLERANCE = 1e-4
"""Of a loss and the whole gradient, relative."""
TENSOR_TOLERANCE = 1e-2
"""Of each tensor of the gradient, relative to itself and a thousandth of the whole."""
BF16_TOLERANCE = 0.02
"""Of a loss, relative."""
MAPS_TOLERANCE = 0.05
"""Of an attention probability in bf16."""
CELLS: tuple[str, ...] = (
    *("loss error", "gradient error", "worst tensor", "ragged error", "ragged loss error, bf16"),
    *("bf16 loss", "bf16 gradient error", "AdamW", "Muon", "maps error"),
)
STEPS = 5
MUON_RATE = 0.02
"""Of the matrices, as conf/optimizer/muon.yaml."""
LEAST_SECONDS = 20
"""Left, for one more pair to begin."""
HOST = torch.device("cpu")
HOST_RAND = torch.rand


# A pair


def small_words(plan: Plan, name: str) -> tuple[list[str], dict[str, Any]]:
    """The words of a pair, and the rest of what `make_member` takes."""
    width, rows, length = (64, 8, 32) if plan.smoke else (128, 16, 64)
    always = ["model=tiny", "model.num_hidden_layers=3", f"model.hidden_size={width}"]
    # Scores are of the size of 1, so that attention matters to the gradient.
    always += [f"model.intermediate_size={2 * width}", "model.initializer_range=0.1"]
    always += ["model.hidden_dropout_prob=0.0", "model.attention_probs_dropout_prob=0.0"]
    words = list(PAIRS[name])
    if name not in WITH_TWO_SEGMENTS and FULL_ROWS not in words:
        always.append(FULL_ROWS)
    for word in PAIRS[name]:
        words += NARROW.get(word, ())
    options = {"rows": rows, "always": always, "shards": small_text(), "seq_length": length}
    return words, options


def small_text() -> Any:
    """Documents of random words, in sentences of many lengths: rows have padding."""
    import numpy as np

    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 9, 80)
    lengths = rng.integers(3, 20, sizes.sum())
    return random_shards(rng, sizes, lengths, VOCABULARY, first_word=200)


class DrawnWords:
    """A generator's words (ELECTRA): the first run draws them, later runs read the same text.

    Each later run draws, too, by the same random numbers: `agreement` is the share of equal words.
    """

    def __init__(self, token: Any) -> None:
        self.own = token.draw
        self.first: Tensor | None = None
        self.agreement = 1.0
        token.draw = self.draw

    def draw(self, generator: Any, hidden: Tensor) -> Tensor:
        with mock.patch.object(torch, "rand", rand_of_host):
            words = self.own(generator, hidden)
        if self.first is None:
            self.first = words.cpu()
        self.agreement = float((words.cpu() == self.first).float().mean())
        return self.first.to(words.device)


def rand_of_host(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """torch.rand, with the same numbers on each device."""
    generator = torch.Generator().manual_seed(0)
    return HOST_RAND(*shape, generator=generator, dtype=dtype).to(device)


class Losses(NamedTuple):
    """What a run gives, on the host."""

    terms: dict[str, float]
    gradient: dict[str, Tensor]

    @property
    def total(self) -> float:
        return sum(self.terms.values())


class Pair:
    """A pair with fresh weights, and its batch, on the host and on the device."""

    def __init__(self, plan: Plan, name: str) -> None:
        words, options = small_words(plan, name)
        member = make_member(words, **options)
        self.plan = plan
        self.objective = member.objective
        self.batch = member.batch
        self.host = member.model
        if name == "Longformer, global":
            layout = self.batch["layout"]
            layout.global_slots = [[0, length // 2] for length in layout.lengths_list]
        require(not self.batch["layout"].full, "the batch has no padding")
        self.drawn = None
        if hasattr(self.objective.token, "draw"):
            self.drawn = DrawnWords(self.objective.token)
        self.wanted = self.run(self.host)
        lengths = sorted(self.batch["layout"].lengths_list, key=lambda length: length * 7 % 11)
        is_global = self.batch["layout"].global_slots is not None
        self.stream = ragged_stream([3, *lengths, 1], is_global)
        self.wanted_of_stream = self.run_stream(self.host.encoder)

    def on_device(self) -> Any:
        """A copy of the model there; objectives stay one, with the words that are drawn."""
        model = copy.deepcopy(self.host)
        model.objectives = self.host.objectives
        return model.to(self.plan.device)

    def loss_terms(self, model: Any) -> dict[str, Tensor]:
        """Term -> its weighted mean."""
        device = next(model.parameters()).device
        terms = {}
        for term in model(moved(self.batch, device)):
            terms[term.name] = self.objective.weights[term.name] * term.loss_sum / term.count
        return terms

    def run(self, model: Any, is_bf16: bool = False) -> Losses:
        with self.plan.autocast(is_bf16):
            terms = self.loss_terms(model)
        return losses_of(model, terms)

    def run_stream(self, encoder: Encoder, is_bf16: bool = False) -> Losses:
        """A contrastive loss of the sentences of a stream without padding."""
        with self.plan.autocast(is_bf16):
            loss = contrastive_loss(encoder, self.stream)
        return losses_of(encoder, {"sentences": loss})


def losses_of(model: nn.Module, terms: Mapping[str, Tensor]) -> Losses:
    values = {name: float(value.detach()) for name, value in terms.items()}
    return Losses(values, gradient_of(model, terms))


def gradient_of(model: nn.Module, terms: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Name of a parameter -> its gradient by the sum of all terms, on the host in fp32."""
    model.zero_grad(set_to_none=True)
    torch.stack(list(terms.values())).sum().backward()
    gradient = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradient[name] = parameter.grad.detach().to(HOST, torch.float32)
    model.zero_grad(set_to_none=True)
    return gradient


class Errors(NamedTuple):
    """Relative differences of two runs."""

    loss: float  # the largest of a term
    gradient: float  # of the whole one
    tensor: float  # the largest of one tensor; see TENSOR_TOLERANCE


def compare(result: Losses, wanted: Losses) -> Errors:
    """AssertionError where other parameters have a gradient, or a number is not finite."""
    other = set(result.gradient) ^ set(wanted.gradient)
    if other or result.terms.keys() != wanted.terms.keys():
        raise AssertionError(f"other terms, or gradients of {sorted(other)[:3]} on one side alone")
    losses = []
    for name, value in wanted.terms.items():
        losses.append(abs(result.terms[name] - value) / max(abs(value), 1e-3))
    whole = norm(wanted.gradient.values())
    differences = []
    tensors = []
    for name, expected in wanted.gradient.items():
        differences.append(result.gradient[name] - expected)
        own = norm([expected]) + 1e-3 * whole
        tensors.append(norm(differences[-1:]) / own)
    errors = Errors(max(losses), norm(differences) / whole, max(tensors))
    # The largest of several numbers may pass over one that is none.
    if not all(map(math.isfinite, [*losses, *tensors, whole])):
        raise AssertionError("a loss or a gradient is not finite")
    return errors


def norm(tensors: Iterable[Tensor]) -> float:
    """Of all numbers of all tensors."""
    squares = [float(tensor.double().square().sum()) for tensor in tensors]
    return math.sqrt(sum(squares))


# The checks of a pair


def check_family(plan: Plan) -> None:
    use_exact_fp32()
    titles = ["fp32 loss, CPU", *CELLS]
    table(plan, "pair", *titles, "seconds", "verdict")
    lines = []
    for name in PAIRS:
        line = Line(name)
        pair = line.attempt("build", partial(Pair, plan, name))
        cells = []
        if pair is not None:
            with plan.kernels():
                cells = [f"{pair.wanted.total:.4f}", *check_pair(line, pair)]
        line.write(plan, cells, len(titles))
        lines.append(line)
        if name == "BERT" and pair is not None:
            control = Line("BERT, one weight changed on purpose")
            cells = control.check("fp32", 1, partial(check_control, pair))
            control.write(plan, cells, len(titles))
            lines.append(control)
    plan.say("")
    with plan.kernels():
        lines += check_long_rows(plan)
    require_all(lines)


def use_exact_fp32() -> None:
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def check_pair(line: Line, pair: Pair) -> list[str]:
    """The cells of all checks."""
    return [
        *line.check("fp32", 3, partial(check_fp32, pair)),
        *line.check("ragged", 2, partial(check_ragged, pair)),
        *line.check("bf16", 2, partial(check_bf16, pair)),
        *line.check("AdamW", 1, partial(check_steps, pair, None)),
        *line.check("Muon", 1, partial(check_steps, pair, MUON_RATE)),
        *line.check("maps", 1, partial(check_maps, pair)),
    ]


def check_fp32(pair: Pair) -> list[str]:
    errors = compare(pair.run(pair.on_device()), pair.wanted)
    require_equal(errors)
    agreement = 1.0 if pair.drawn is None else pair.drawn.agreement
    require(agreement >= 0.95, f"{agreement:.0%} of the generator's words are the CPU's")
    return [f"{error:.0e}" for error in errors]


def require_equal(errors: Errors) -> None:
    require(errors.loss <= TOLERANCE, f"loss differs by {errors.loss:.1e}")
    require(errors.gradient <= TOLERANCE, f"gradient differs by {errors.gradient:.1e}")
    require(errors.tensor <= TENSOR_TOLERANCE, f"a tensor differs by {errors.tensor:.1e}")


def check_control(pair: Pair) -> list[str]:
    """A model with another weight must not pass for the same."""
    model = pair.on_device()
    with torch.no_grad():
        model.encoder.blocks[0].attention.qkv.weight[0, 0] += 0.1
    errors = compare(pair.run(model), pair.wanted)
    try:
        require_equal(errors)
    except AssertionError as error:
        return [f"noticed: {error}"]
    raise AssertionError(f"another weight passes, with a difference of {errors.gradient:.1e}")


def check_ragged(pair: Pair) -> list[str]:
    encoder = pair.on_device().encoder
    errors = compare(pair.run_stream(encoder), pair.wanted_of_stream)
    require_equal(errors)
    in_bf16 = compare(pair.run_stream(encoder, is_bf16=True), pair.wanted_of_stream)
    require(in_bf16.loss <= BF16_TOLERANCE, f"loss in bf16 differs by {in_bf16.loss:.1%}")
    return [f"{errors.gradient:.0e}", f"{in_bf16.loss:.0e}"]


def ragged_stream(lengths: Sequence[int], is_global: bool = False) -> dict[str, Any]:
    """Random words of sequences of these lengths, one behind the other."""
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(200, VOCABULARY, (sum(lengths),), generator=generator)
    layout = Layout.ragged(lengths)
    if is_global:
        layout.global_slots = [[0]] * len(lengths)
    return {
        "input_ids": input_ids,
        "token_type_ids": torch.zeros_like(input_ids),
        "position_ids": torch.cat([torch.arange(length) for length in lengths]),
        "layout": layout,
    }


def contrastive_loss(encoder: Encoder, stream: Mapping[str, Any]) -> Tensor:
    """Each sentence should be like the next one of the batch, and no other."""
    batch = moved(dict(stream), next(encoder.parameters()).device)
    hidden = encoder.read(batch).sequence_output
    states = encoder.sentence_states(hidden, batch["layout"], "mean")
    vectors = F.normalize(states, dim=1)
    own = torch.arange(len(vectors), device=vectors.device).roll(1)
    return F.cross_entropy(vectors @ vectors.T / 0.1, own)


def check_bf16(pair: Pair) -> list[str]:
    result = pair.run(pair.on_device(), is_bf16=True)
    errors = compare(result, pair.wanted)
    require(errors.loss <= BF16_TOLERANCE, f"loss differs by {errors.loss:.1%}")
    return [f"{result.total:.4f}", f"{errors.gradient:.0e}"]


def check_steps(pair: Pair, matrix_rate: float | None) -> list[str]:
    """Loss before and behind five steps, by AdamW, or by Muon at a rate of the matrices."""
    model = pair.on_device()
    optimizer = clozelab_optimizer(model.named_parameters(), 1e-3, matrix_rate)

    def total() -> Tensor:
        with pair.plan.autocast():
            return torch.stack(list(pair.loss_terms(model).values())).sum()

    losses = [float(finish_step(total(), model, optimizer)) for _ in range(STEPS)]
    losses.append(float(total().detach()))
    text = f"{losses[0]:.3f} to {losses[-1]:.3f}"
    require(losses[-1] < losses[0], f"the loss went from {text}")
    return [text]


def check_maps(pair: Pair) -> list[str]:
    """Attention maps of one text; the largest difference between bf16 and fp32."""
    encoder: Encoder = pair.on_device().encoder
    if encoder.config.num_directions == 2:
        return ["none"]
    stream = moved(ragged_stream([23]), pair.plan.device)
    maps: list[list[Tensor]] = []
    for is_bf16 in (False, True):
        layers: list[Tensor] = []
        noted = capture_attention(encoder, layers.append)
        with torch.no_grad(), pair.plan.autocast(is_bf16), noted:
            encoder.read(stream)
        maps.append(layers)
    error = largest_error(maps[1], maps[0])
    require(error <= MAPS_TOLERANCE, f"a probability differs by {error:.2f}")
    sums = torch.stack(maps[1]).sum(-1)
    require(bool((sums - 1).abs().max() < 1e-3), "probabilities do not add up to 1")
    return [f"{error:.0e}"]


# Compiled


def check_compiled(plan: Plan) -> None:
    """Compiled and not, beside what bf16 costs; pairs are left out when time is short."""
    use_exact_fp32()
    titles = ["bf16 loss, compiled", "compiled difference", "error", "the uncompiled one's"]
    table(plan, "pair", *titles, "seconds", "verdict")
    lines = []
    left_out = []
    for name in PAIRS:
        if plan.seconds_left() < LEAST_SECONDS:
            left_out.append(name)
            continue
        line = Line(name)
        cells = line.check("compiled", len(titles), partial(_compiled_cells, plan, name))
        line.write(plan, cells, len(titles))
        lines.append(line)
        plan.free()
    if left_out:
        plan.say("", f"Left out, no time: {'; '.join(left_out)}.")
    require_all(lines)


def _compiled_cells(plan: Plan, name: str) -> list[str]:
    """Loss, difference of the two gradients, and their own errors against fp32."""
    pair = Pair(plan, name)
    model = pair.on_device()
    with plan.kernels():
        plain = pair.run(model, is_bf16=True)
        # As stages/pretrain.py does.
        for encoder in model.encoders:
            compile_encoder(encoder, dynamic=False, **plan.compile_options)
        result = pair.run(model, is_bf16=True)
    difference = compare(result, plain)
    error = compare(result, pair.wanted).gradient
    usual = compare(plain, pair.wanted).gradient
    require(difference.loss <= BF16_TOLERANCE, f"loss differs by {difference.loss:.1%}")
    require(error <= 2 * usual + 1e-2, f"gradient errs by {error:.1e}, uncompiled by {usual:.1e}")
    return [f"{result.total:.4f}", f"{difference.gradient:.0e}", f"{error:.0e}", f"{usual:.0e}"]
