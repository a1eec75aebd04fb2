"""Equal to a plain projection and cross-entropy."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from clozelab.models.kernels import linear_cross_entropy as module
from clozelab.models.kernels.linear_cross_entropy import linear_cross_entropy


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Several chunks and blocks, uneven at the end, also for small inputs."""
    monkeypatch.setattr(module, "CHUNK_LOGITS", 101 * 7)
    monkeypatch.setattr(module, "MIN_CHUNK_ROWS", 1)
    monkeypatch.setattr(module, "CACHED_LOGITS", 101 * 3)


def _inputs(rows: int, vocab: int = 101, size: int = 12):
    torch.manual_seed(rows)
    leaves = torch.randn(rows, size), torch.randn(vocab, size) * 0.5, torch.randn(vocab) * 0.1
    return [leaf.requires_grad_() for leaf in leaves], torch.randint(0, vocab, (rows,))


def _plain(hidden, weight, bias, labels):
    logits = F.linear(hidden, weight, bias).float()
    correct = ((logits.argmax(-1) == labels) & (labels >= 0)).sum()
    return F.cross_entropy(logits, labels, reduction="sum", ignore_index=-100), correct


@pytest.mark.parametrize("rows", [1, 7, 23])
@pytest.mark.parametrize("ignored", [0, 1])
@pytest.mark.parametrize("on_cpu", [True, False], ids=["cpu", "as on another device"])
def test_equals_plain_cross_entropy(rows, ignored, on_cpu, monkeypatch):
    monkeypatch.setattr(module, "_on_cpu", lambda x: on_cpu)
    leaves, labels = _inputs(rows)
    labels[:ignored] = -100
    result = linear_cross_entropy(*leaves, labels)
    (result.loss_sum * 0.37).backward()
    grads = [leaf.grad.clone() for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    loss, correct = _plain(*leaves, labels)
    (loss * 0.37).backward()
    torch.testing.assert_close(result.loss_sum, loss, rtol=1e-6, atol=1e-6)
    assert result.num_correct == correct and result.count == rows - ignored
    for leaf, grad in zip(leaves, grads, strict=True):
        torch.testing.assert_close(grad, leaf.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("vocab", [96, 97, 101])
def test_rows_of_whole_cache_lines_change_nothing(vocab, monkeypatch):
    """Entries of probability 0 fill them up: the same loss, accuracy and gradients."""
    results = []
    for capability in ("another", "AVX2"):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda c=capability: c)
        leaves, labels = _inputs(40, vocab)
        labels[3] = -100
        result = linear_cross_entropy(*leaves, labels)
        result.loss_sum.backward()
        gradients = [leaf.grad for leaf in leaves]
        results.append([result.loss_sum, result.num_correct, *gradients])
    for plain, filled in zip(*results, strict=True):
        torch.testing.assert_close(filled, plain, rtol=1e-6, atol=1e-7)


def test_which_weights_are_filled_up(monkeypatch):
    (_, weight, bias), _ = _inputs(1)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
    assert module._in_whole_lines(weight, bias)[0] is weight
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    half = weight.bfloat16()
    assert module._in_whole_lines(half, bias)[0] is half
    assert module._in_whole_lines(weight[:96], bias[:96])[0].shape == (96, 12)
    filled_weight, filled_bias = module._in_whole_lines(weight, bias)
    assert filled_weight.shape == (112, 12) and not filled_weight[101:].any()
    assert torch.equal(filled_weight[:101], weight) and torch.equal(filled_bias[:101], bias)
    assert (filled_bias[101:] == -torch.inf).all()


def test_few_rows_copy_no_weights(monkeypatch):
    asked = []

    def note(weight, bias):
        asked.append(len(weight))
        return weight, bias

    monkeypatch.setattr(module, "_in_whole_lines", note)
    monkeypatch.setattr(module, "MIN_CHUNK_ROWS", 8)
    for rows in (7, 8):
        leaves, labels = _inputs(rows)
        linear_cross_entropy(*leaves, labels)
    assert asked == [101]


def test_autocast_is_as_close_to_fp32_as_plain_autocast():
    leaves, labels = _inputs(64)
    exact, _ = _plain(*leaves, labels)
    exact_grads = torch.autograd.grad(exact, leaves)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = linear_cross_entropy(*leaves, labels).loss_sum
        plain = _plain(*leaves, labels)[0]
    assert ours.dtype == torch.float32
    assert abs(ours - exact) < 2 * abs(plain - exact) + 0.05
    for mine, theirs, want in zip(
        torch.autograd.grad(ours, leaves),
        torch.autograd.grad(plain, leaves),
        exact_grads,
        strict=True,
    ):
        assert mine.dtype == torch.float32
        assert (mine - want).norm() < 1.5 * (theirs - want).norm() + 1e-3 * want.norm()


@pytest.mark.parametrize("on_cpu", [True, False], ids=["cpu", "as on another device"])
def test_ties_count_as_argmax_does(on_cpu, monkeypatch):
    monkeypatch.setattr(module, "_on_cpu", lambda x: on_cpu)
    hidden = torch.zeros(40, 4)
    weight = torch.zeros(9, 4)
    bias = torch.zeros(9)
    labels = torch.arange(40) % 9
    assert linear_cross_entropy(hidden, weight, bias, labels).num_correct == (labels == 0).sum()
    bias[3] = 1.0
    bias[5] = 1.0
    assert linear_cross_entropy(hidden, weight, bias, labels).num_correct == (labels == 3).sum()


def test_no_positions():
    leaves, labels = _inputs(0)
    result = linear_cross_entropy(*leaves, labels)
    result.loss_sum.backward()
    assert result.loss_sum == 0 and result.num_correct == 0 and result.count == 0
    assert all(leaf.grad is not None and (leaf.grad == 0).all() for leaf in leaves)


def test_no_gradient_work_where_nobody_asks(monkeypatch):
    leaves, labels = _inputs(9)
    monkeypatch.setattr(
        module, "_multiply_out", lambda logits, hidden, weight, sums, rows: calls.append(sums)
    )
    calls: list = []
    with torch.no_grad():
        linear_cross_entropy(*leaves, labels)
    assert not any(any(sums.needed) for sums in calls)
    frozen = [leaf.detach() for leaf in leaves]
    assert not linear_cross_entropy(*frozen, labels).loss_sum.requires_grad


def test_frozen_inputs_get_none():
    (hidden, weight, bias), labels = _inputs(9)
    linear_cross_entropy(hidden.detach(), weight, bias, labels).loss_sum.backward()
    assert hidden.grad is None and weight.grad is not None
    linear_cross_entropy(hidden, weight.detach(), bias.detach(), labels).loss_sum.backward()
    assert hidden.grad is not None


def test_backward_runs_once_and_says_so():
    leaves, labels = _inputs(9)
    loss = linear_cross_entropy(*leaves, labels).loss_sum
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="handed out once"):
        loss.backward()


def test_gradients_accumulate_over_calls():
    """As micro-batches do: a call adds to what is there, and disturbs nothing handed out."""
    leaves, labels = _inputs(9)
    linear_cross_entropy(*leaves, labels).loss_sum.backward()
    once = [leaf.grad.clone() for leaf in leaves]
    (linear_cross_entropy(*leaves, labels).loss_sum * 2).backward()
    for leaf, grad in zip(leaves, once, strict=True):
        torch.testing.assert_close(leaf.grad, 3 * grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gap", [20.0, 60.0, 80.0, 90.0, 110.0, 400.0, 1e4])
@pytest.mark.parametrize("on_cpu", [True, False], ids=["cpu", "as on another device"])
def test_hopeless_labels_have_their_whole_loss(gap, on_cpu, dtype, monkeypatch):
    """Beyond 87 nats an fp32 probability is none: the loss and its gradients are torch's
    cross_entropy's all the same.

    It was 85 nats at most. One row is likely, one has no label, and the others are as wrong as
    `gap` says.
    """
    monkeypatch.setattr(module, "_on_cpu", lambda x: on_cpu)
    torch.manual_seed(1)
    weight = torch.cat([torch.eye(6), torch.full((1, 6), 0.25)]).to(dtype)
    hidden = (torch.eye(6) * gap + torch.randn(6, 6).round(decimals=1)).to(dtype)
    labels = torch.tensor([1, 6, 0, 3, -100, 2])
    leaves = [
        leaf.clone().requires_grad_() for leaf in (hidden, weight, torch.zeros(7, dtype=dtype))
    ]
    ours = linear_cross_entropy(*leaves, labels)
    grads = torch.autograd.grad(ours.loss_sum, leaves)
    loss, correct = _plain(*leaves, labels)
    assert loss > 2 * gap and ours.num_correct == correct == 1
    torch.testing.assert_close(ours.loss_sum, loss, rtol=1e-6, atol=1e-5)
    for mine, theirs in zip(grads, torch.autograd.grad(loss, leaves), strict=True):
        torch.testing.assert_close(
            mine, theirs, rtol=1e-5 if dtype == torch.float32 else 2e-2, atol=1e-5
        )


def test_a_loss_that_is_no_number_stays_none():
    hidden = torch.tensor([[torch.inf]])
    weight = torch.tensor([[1.0], [-1.0]])
    assert linear_cross_entropy(hidden, weight, torch.zeros(2), torch.tensor([1])).loss_sum.isnan()


def _half_gradients(leaves, labels):
    for leaf in leaves:
        leaf.grad = None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = linear_cross_entropy(*leaves, labels)
    result.loss_sum.backward()
    return [result.loss_sum.detach(), *(leaf.grad for leaf in leaves)]


def _half_oracle(leaves, labels):
    """Loss and gradients of products in bf16, each written out; the softmax in fp32."""
    hidden, weight, bias = (leaf.detach().bfloat16().float() for leaf in leaves)
    logits = (hidden @ weight.t() + bias).bfloat16().float()
    has_label = labels >= 0
    log_probs = logits.log_softmax(dim=1)
    picked = log_probs.gather(1, labels.clamp_min(0)[:, None])[:, 0]
    target = F.one_hot(labels.clamp_min(0), logits.shape[1])
    grad_logits = ((log_probs.exp() - target) * has_label[:, None]).bfloat16().float()
    loss = -(picked * has_label).sum()
    return [loss, grad_logits @ weight, grad_logits.t() @ hidden, grad_logits.sum(0)]


@pytest.mark.parametrize("chunk_rows", [5, 64], ids=["many chunks", "one chunk"])
@pytest.mark.parametrize("ignored", [0, 3])
def test_half_precision_equals_products_written_out(chunk_rows, ignored, monkeypatch):
    """One product is the gradient of weights and bias; each is rounded to bf16 once a chunk."""
    monkeypatch.setattr(module, "BF16_CHUNK_LOGITS", 101 * chunk_rows)
    leaves, labels = _inputs(23)
    labels[:ignored] = -100
    wanted = _half_oracle(leaves, labels)
    for ours, theirs in zip(_half_gradients(leaves, labels), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
        assert (ours - theirs).norm() < 4e-3 * theirs.norm()


@pytest.mark.parametrize("frozen", [0, 1, 2], ids=["hidden", "weight", "bias"])
def test_half_precision_with_a_frozen_input(frozen):
    leaves, labels = _inputs(23)
    wanted = _half_oracle(leaves, labels)[1:]
    leaves[frozen] = leaves[frozen].detach()
    gradients = _half_gradients(leaves, labels)[1:]
    assert gradients[frozen] is None
    for number, (ours, theirs) in enumerate(zip(gradients, wanted, strict=True)):
        if number != frozen:
            assert (ours - theirs).norm() < 4e-3 * theirs.norm()


def test_autograd_may_add_to_the_gradient_of_the_weights():
    """It does so in place only where nothing else reads that memory."""
    leaves, labels = _inputs(23)
    loss = linear_cross_entropy(*leaves, labels).loss_sum
    gradient = loss.grad_fn.gradients[1]
    assert not gradient._is_view() and gradient.shape == leaves[1].shape
