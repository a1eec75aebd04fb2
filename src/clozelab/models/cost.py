"""What a model costs: parameters, and the floating-point operations of a training step.

Both are read off the modules that run, on the meta device, where nothing has memory: so shared
layers count once as parameters and every time as work, and a window, a gate or a second encoder is
counted without a line here.

Matrix products only, forward once and backward twice. A causal mask is not discounted, though half
of its scores are thrown away. Heads on one state a sequence (next sentence, classification) are
below a thousandth, and left out.

Unusual: torch.utils.flop_counter gives the same figures (tests/models/test_cost.py), but runs
torch's meta kernels, which are Python: importing them takes seconds. Here only shapes walk through
the modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clozelab.models.config import EncoderConfig
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for

if TYPE_CHECKING:
    from clozelab.models.encoder import Encoder

# Kinds of heads that read every token; `lm` reads the predicted positions.
EVERY_TOKEN = frozenset({"rtd"})


def training_flops_per_token(
    config: EncoderConfig,
    seq_length: int,
    predicted_fraction: float,
    heads: tuple[str, ...] = ("lm",),
) -> float:
    """Of one training step of an encoder, without padding.

    `lm` and `sbo` read `predicted_fraction` of the tokens. A second encoder (a generator, a
    teacher) is counted by a call of its own.
    """
    shares = dict.fromkeys(("lm", "sbo"), predicted_fraction) | dict.fromkeys(EVERY_TOKEN, 1.0)
    head_flops = sum(shares[kind] * _head_flops(config, kind) for kind in heads if kind in shares)
    return 3.0 * (_encoder_flops(config, seq_length) + head_flops)


@lru_cache(maxsize=256)
def parameter_count(config: EncoderConfig) -> int:
    """Parameters of the encoder with pooler, without any head, as published sizes are given."""
    return sum(parameter.numel() for parameter in _on_meta(config).parameters())


def trained_parameters(models: Mapping[str, nn.Module]) -> int:
    """Of everything that is trained, encoders and heads; what is shared or tied is counted once."""
    sizes = {}
    for model in models.values():
        if not getattr(model, "is_trained", True):
            continue
        for parameter in model.parameters():
            sizes[id(parameter)] = parameter.numel()
    return sum(sizes.values())


@lru_cache(maxsize=32)
def _on_meta(config: EncoderConfig) -> Encoder:
    from clozelab.models.encoder import Encoder  # here: who only names a cost builds nothing

    with torch.device("meta"):
        return Encoder(config).eval()


@lru_cache(maxsize=4096)
def _encoder_flops(config: EncoderConfig, seq_length: int) -> float:
    """Of the forward pass, per token of a sequence of this length."""
    ids = torch.empty(seq_length, dtype=torch.int64, device="meta")
    with torch.no_grad(), Products() as products:
        _on_meta(config)(ids, ids, ids, Layout.rectangle([seq_length], seq_length))
    return products.flops / seq_length


@lru_cache(maxsize=256)
def _head_flops(config: EncoderConfig, kind: str) -> float:
    """Of the forward pass, per position that the head reads."""
    with torch.device("meta"):
        head = family_for(config).head(kind, _on_meta(config)).eval()
        state = torch.empty(1, getattr(head, "input_size", config.hidden_size))
    with torch.no_grad(), Products() as products:
        head(state)
    return products.flops


def _matmul(left: Tensor, right: Tensor) -> tuple[int, Tensor]:
    return 2 * left.numel() * right.shape[-1], left.new_empty(*left.shape[:-1], right.shape[-1])


def _linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,  # noqa: ARG001
) -> tuple[int, Tensor]:
    return _matmul(x, weight.t())


COUNTED: Mapping[str, Callable[..., tuple[int, Tensor]]] = {
    "linear": _linear,
    "matmul": _matmul,
    "__matmul__": _matmul,
    "bmm": _matmul,
    "mm": _matmul,
}
UNCOUNTED = frozenset(
    {"einsum", "addmm", "baddbmm", "tensordot", "bilinear", "scaled_dot_product_attention", "lstm"}
)
# Their result has the shape of the largest of what they are given.
ELEMENTWISE = frozenset(
    {
        "add",
        "__add__",
        "__radd__",
        "sub",
        "__sub__",
        "mul",
        "__mul__",
        "__rmul__",
        "div",
        "__truediv__",
        "layer_norm",
        "rms_norm",
        "gelu",
        "relu",
        "tanh",
        "sigmoid",
        "silu",
        "softmax",
        "dropout",
        "to",
        "float",
    }
)


class Products(TorchFunctionMode):
    """Counts matrix products of modules on the meta device, where only shapes walk through.

    An unknown name runs on torch's own kernel: right, only slow. So do tensors of another device:
    they have numbers, which a module may remember. ValueError for a product not counted.
    """

    flops: int = 0

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        name = func.__name__
        kwargs = kwargs or {}
        if name in UNCOUNTED:
            raise ValueError(
                f"models/cost.py does not count {name}: add it to COUNTED, or use a product that is"
                " there"
            )
        values = (*args, *kwargs.values())
        tensors = [value for value in values if isinstance(value, Tensor)]
        if not any(tensor.is_meta for tensor in tensors):
            return func(*args, **kwargs)
        if name in COUNTED:
            flops, out = COUNTED[name](*args, **kwargs)
            self.flops += flops
            return out
        if name in ELEMENTWISE:
            return max(tensors, key=lambda tensor: math.prod(tensor.shape))
        if name == "embedding":
            return args[1].new_empty(*args[0].shape, args[1].shape[1])
        if name == "index_select":
            x, dim, indices = args
            return x.new_empty(*x.shape[:dim], len(indices), *x.shape[dim + 1 :])
        return func(*args, **kwargs)
