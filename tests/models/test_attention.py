"""Every kernel equals one attention a sequence, forward and backward."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.nn import functional as F

from clozelab.models import attention as module
from clozelab.models.attention import (
    CAUSAL,
    FULL,
    AttentionInputs,
    Mask,
    Rotation,
    attention,
    attention_of,
    dense_rows,
    has_fast_path,
    reference_attention,
)
from clozelab.models.layout import Layout

LENGTHS = [5, 9, 1, 9, 3, 2, 7, 4, 8, 6, 9]
MASKS = [FULL, CAUSAL, Mask(window=2), Mask(is_causal=True, window=3)]


def _layouts():
    yield "ragged", Layout.ragged(LENGTHS)
    yield "padded rectangle", Layout.rectangle(LENGTHS, 10)
    yield "full rectangle", Layout.rectangle([6] * 4, 6)
    yield "equal ragged", Layout.ragged([6] * 4)
    yield "one sequence", Layout.ragged([5])


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(
    ("name", "layout"), list(_layouts()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_equals_the_reference(name, layout, mask, real_rows):
    torch.manual_seed(0)
    leaves = [torch.randn(layout.num_slots, 3, 5, requires_grad=True) for _ in range(3)]
    copies = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    rows = real_rows(layout)
    out = attention(*leaves, AttentionInputs(layout, mask), dropout_prob=0.0, training=True)
    expected = reference_attention(*copies, layout, mask=mask)
    assert out.shape == expected.shape and out.isfinite().all()
    torch.testing.assert_close(out[rows], expected[rows], atol=1e-6, rtol=0)
    weights = torch.randn(len(rows), 3, 5)
    (out[rows] * weights).sum().backward()
    (expected[rows] * weights).sum().backward()
    for leaf, copy in zip(leaves, copies, strict=True):
        torch.testing.assert_close(leaf.grad, copy.grad, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "layout", [Layout.ragged(LENGTHS), Layout.rectangle(LENGTHS, 10)], ids=["ragged", "rectangle"]
)
def test_dropout_is_in_force_in_training_only(layout, real_rows):
    q, k, v = (torch.randn(layout.num_slots, 2, 4) for _ in range(3))
    rows = real_rows(layout)

    def run(prob: float, training: bool):
        torch.manual_seed(1)
        return attention(
            q, k, v, AttentionInputs(layout, FULL), dropout_prob=prob, training=training
        )[rows]

    clean = run(0.0, training=True)
    assert torch.equal(run(0.5, training=False), clean)
    assert not torch.allclose(run(0.5, training=True), clean)
    assert torch.equal(run(0.5, training=True), run(0.5, training=True))


def test_kernels_of_other_devices_equal_the_reference(real_rows, monkeypatch):
    """The accelerators' branch on the CPU: torch's kernel with masks, groups of another size."""
    monkeypatch.setattr(module, "_default_kernel", lambda device: "sdpa")
    monkeypatch.setattr(module, "ACCELERATOR_GROUP_SIZE", 4)
    for layout in (
        Layout.ragged(LENGTHS),
        Layout.rectangle(LENGTHS, 10),
        Layout.rectangle([6] * 4, 6),
    ):
        q, k, v = (torch.randn(layout.num_slots, 2, 4) for _ in range(3))
        rows = real_rows(layout)
        for mask in MASKS:
            out = attention(q, k, v, AttentionInputs(layout, mask), dropout_prob=0.0, training=True)
            expected = reference_attention(q, k, v, layout, mask=mask)
            torch.testing.assert_close(out[rows], expected[rows], atol=1e-6, rtol=0)


def test_a_slot_that_may_see_nothing_sees_itself():
    visibility = torch.ones(1, 4, 4, dtype=torch.bool)
    visibility[0, 2] = False
    layout = Layout.rectangle([4], 4, visibility=visibility)
    q, k, v = (torch.randn(4, 2, 4) for _ in range(3))
    out = attention(q, k, v, AttentionInputs(layout, FULL), dropout_prob=0.0, training=True)
    torch.testing.assert_close(out[2], v[2])
    assert not torch.allclose(out[1], v[1])


def test_the_variable_length_kernel_is_only_for_runs_without_dropout(monkeypatch):
    """Dropout in force never reaches a kernel that lacks it."""
    monkeypatch.setattr(module, "has_varlen_kernel", lambda q, mask: True)
    monkeypatch.setattr(module, "_varlen", lambda q, k, v, layout, mask: q)
    layout = Layout.ragged(LENGTHS)
    q, k, v = (torch.randn(layout.num_slots, 2, 4) for _ in range(3))
    for prob, training, uses_it in ((0.0, True, True), (0.1, False, True), (0.1, True, False)):
        out = attention(
            q, k, v, AttentionInputs(layout, FULL), dropout_prob=prob, training=training
        )
        assert (out is q) is uses_it


def test_variable_length_kernel_is_called_as_its_torch_spells_it(monkeypatch):
    calls = []

    def fake(q, k, v, cu_q, cu_k, max_q, max_k, **options):
        calls.append((cu_q.tolist(), max_q, options))
        return q

    q = torch.randn(6, 2, 4)
    for parameters, causal in (
        (frozenset({"is_causal"}), {"is_causal": True}),
        (frozenset({"window_size"}), {"window_size": (-1, 0)}),
    ):
        monkeypatch.setattr(
            module, "_load_varlen", lambda parameters=parameters: (fake, parameters)
        )
        module._varlen(q, q, q, Layout.ragged([2, 4]), CAUSAL)
        assert calls.pop() == ([0, 2, 6], 4, causal)
        module._varlen(q, q, q, Layout.ragged([2, 4]), FULL)
        assert calls.pop()[2].get("window_size") is None


@pytest.mark.parametrize(
    ("head_dim", "major", "dtype", "device", "fits"),
    [
        (64, 9, torch.bfloat16, "cuda", True),
        (8, 8, torch.float16, "cuda", True),
        (256, 8, torch.bfloat16, "cuda", True),
        (26, 9, torch.bfloat16, "cuda", False),  # TinyBERT's 312 / 12
        (264, 9, torch.bfloat16, "cuda", False),
        (64, 7, torch.bfloat16, "cuda", False),
        (64, 9, torch.float32, "cuda", False),
        (64, 9, torch.bfloat16, "cpu", False),
    ],
)
def test_the_variable_length_kernel_is_only_for_what_it_takes(
    head_dim, major, dtype, device, fits, monkeypatch
):
    """On a pretended GPU: flash attention raises for other head sizes and older chips."""
    monkeypatch.setattr(module, "_load_varlen", lambda: (None, frozenset()))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=major)
    )
    q = SimpleNamespace(device=torch.device(device), dtype=dtype, shape=(6, 2, head_dim))
    assert module.has_varlen_kernel(q, FULL) is fits


def test_the_variable_length_kernel_has_a_known_spelling():
    """Whatever torch is installed: the parameters the wrapper relies on exist."""
    loaded = module._load_varlen()
    if loaded is None:
        pytest.skip("this torch has no variable-length attention")
    assert loaded[1] & {"is_causal", "window_size"}


def check_equal(out: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare two outputs, and give both the same gradient."""
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)
    weights = torch.randn(out.shape)
    (out * weights).sum().backward()
    (expected * weights).sum().backward()


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(
    "layout", [Layout.rectangle(LENGTHS, 10), Layout.rectangle([6] * 4, 6)], ids=["padded", "full"]
)
def test_the_cpus_own_attention_equals_the_reference(layout, mask, real_rows):
    """Query, key and value in one tensor, and a backward written by hand."""
    torch.manual_seed(0)
    qkv = torch.randn(layout.num_slots, 3, 3, 5, requires_grad=True)
    copy = qkv.detach().clone().requires_grad_()
    where = dense_rows(layout, num_heads=3, dtype=qkv.dtype, device=qkv.device, mask=mask)
    assert where is not None and has_fast_path(qkv, 0.0)
    rows = real_rows(layout)
    out = attention_of(qkv, AttentionInputs(where, mask, None), dropout_prob=0.0, training=True)
    expected = reference_attention(*copy.unbind(1), layout, mask=mask)
    check_equal(out[rows], expected[rows])
    torch.testing.assert_close(qkv.grad, copy.grad, atol=1e-5, rtol=0)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(
    "layout", [Layout.rectangle(LENGTHS, 10), Layout.rectangle([6] * 4, 6)], ids=["padded", "full"]
)
def test_the_flash_kernel_of_wide_rows_equals_the_reference(layout, mask, real_rows, monkeypatch):
    """In fp32 without dropout, forward and backward; its least width is lowered to that of here."""
    monkeypatch.setitem(module.FLASH_LEAST_WIDTH_IN_TRAINING, torch.float32, 6)
    kernel = mock.Mock(wraps=F.scaled_dot_product_attention)
    monkeypatch.setattr(module.F, "scaled_dot_product_attention", kernel)
    qkv = torch.randn(layout.num_slots, 3, 3, 5, requires_grad=True)
    copy = qkv.detach().clone().requires_grad_()
    where = dense_rows(layout, num_heads=3, dtype=qkv.dtype, device=qkv.device, mask=mask)
    rows = real_rows(layout)
    out = attention_of(qkv, AttentionInputs(where, mask), dropout_prob=0.1, training=False)
    assert kernel.call_count == 1
    expected = reference_attention(*copy.unbind(1), layout, mask=mask)
    check_equal(out[rows], expected[rows])
    torch.testing.assert_close(qkv.grad, copy.grad, atol=1e-5, rtol=0)

    # Not with dropout, and in bf16 not in training, but without gradients.
    kernel.reset_mock()
    attention_of(qkv, AttentionInputs(where, mask), dropout_prob=0.1, training=True)
    half = qkv.detach().bfloat16()
    where = dense_rows(layout, num_heads=3, dtype=half.dtype, device=half.device, mask=mask)
    attention_of(half, AttentionInputs(where, mask), dropout_prob=0.1, training=False)
    assert not kernel.called
    with torch.inference_mode():
        out = attention_of(half, AttentionInputs(where, mask), dropout_prob=0.1, training=False)
    assert kernel.call_count == 1
    # bf16 has eight digits in base two.
    torch.testing.assert_close(out[rows].float(), expected[rows], atol=0.02, rtol=0.02)


def test_the_flash_kernel_takes_narrower_rows_where_nothing_is_trained(monkeypatch):
    kernel = mock.Mock(wraps=F.scaled_dot_product_attention)
    monkeypatch.setattr(module.F, "scaled_dot_product_attention", kernel)
    layout = Layout.rectangle([128, 100], 128)
    qkv = torch.randn(layout.num_slots, 3, 2, 4)
    where = dense_rows(layout, num_heads=2, dtype=qkv.dtype, device=qkv.device, mask=FULL)
    inputs = AttentionInputs(where, FULL)
    in_training = attention_of(qkv, inputs, dropout_prob=0.0, training=True)
    assert not kernel.called
    with torch.inference_mode():
        out = attention_of(qkv, inputs, dropout_prob=0.0, training=False)
    assert kernel.called
    torch.testing.assert_close(out, in_training, atol=1e-6, rtol=0)


@pytest.mark.parametrize("width", [1, 10])
def test_the_cpus_own_attention_turns_query_and_key(width):
    """As the rotation itself does, each row at positions of its own; what came in stays."""
    torch.manual_seed(0)
    layout = Layout.rectangle([1] if width == 1 else [10, 7, 3], width)
    qkv = torch.randn(layout.num_slots, 3, 1 if width == 1 else 3, 6, requires_grad=True)
    copy = qkv.detach().clone().requires_grad_()
    angles = torch.rand(layout.num_slots, 1, 3) * 6.0
    rotation = Rotation(angles.cos(), angles.sin())
    mask = Mask(window=4)
    rows = dense_rows(layout, num_heads=qkv.shape[2], dtype=qkv.dtype, device=qkv.device, mask=mask)
    assert rows is not None and has_fast_path(qkv, 0.0)
    inputs = AttentionInputs(rows, mask, rotation)
    out = attention_of(qkv, inputs, dropout_prob=0.0, training=True)
    q, k, v = copy.unbind(1)
    plain = AttentionInputs(rows, mask)
    expected = attention(rotation(q), rotation(k), v, plain, dropout_prob=0.0, training=True)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)
    weights = torch.randn(out.shape)
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(qkv.grad, copy.grad, atol=2e-6, rtol=2e-6)
    assert torch.equal(qkv, copy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_cpus_own_attention_drops_as_the_plain_operations_do(dtype, monkeypatch):
    """The same seed, the same mask: forward and backward equal those of autograd."""
    layout = Layout.rectangle([7, 4], 8)
    results = []
    for is_fast in (True, False):
        torch.manual_seed(0)
        qkv = torch.randn(layout.num_slots, 3, 2, 4).to(dtype).requires_grad_()
        where = dense_rows(layout, num_heads=2, dtype=dtype, device=qkv.device, mask=FULL)
        monkeypatch.setattr(module, "has_fast_path", lambda *_, is_fast=is_fast: is_fast)
        torch.manual_seed(1)
        out = attention_of(qkv, AttentionInputs(where, FULL, None), dropout_prob=0.4, training=True)
        out.float().square().sum().backward()
        results.append((out.detach(), qkv.grad))
    tolerance = (
        {"atol": 1e-5, "rtol": 1e-5} if dtype is torch.float32 else {"atol": 0.06, "rtol": 0.06}
    )
    for fast, plain in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, **tolerance)
