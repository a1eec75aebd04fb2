"""What Longformer and BigBird alone have: global tokens, blocks, and windows in chunks.

test_families.py has their layers and heads. Whole rows and chunks are compared with each other,
too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.numerics import members
from tests.numerics.members import Batch, assert_equal, case_of
from torch import Tensor

from clozelab.models import attention, windows
from clozelab.models.attention_maps import capture_attention
from clozelab.models.config import EncoderConfig, ModuleSpec
from clozelab.models.encoder import Encoder
from clozelab.models.families import longformer
from clozelab.models.layout import Layout
from clozelab.models.registry import family_of

transformers = pytest.importorskip("transformers")

WINDOW = 8
# One, less than a window, a window and one more, three and five, and others between.
LENGTHS = [1, 2, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW + 5, 16, 28]
LONGFORMER = case_of("longformer", lengths=LENGTHS)
BOTH_LAYOUTS = pytest.mark.parametrize("kind", ["ragged", "rectangle"])
BOTH_FORMS = pytest.mark.parametrize("form", ["whole", "chunks"])
BOTH = pytest.mark.parametrize("name", ["longformer", "big_bird"])


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """take("chunks") or take("whole"): how windows are computed."""

    def choose(form: str) -> None:
        monkeypatch.setattr(attention, "CHUNKS_LEAST_WIDTH", 0)
        monkeypatch.setattr(attention, "CHUNKS_FROM", 0 if form == "chunks" else 10**9)

    return choose


def global_tokens(batch: Batch, choice: str) -> Tensor:
    """bool [B, S], also on padding."""
    is_global = torch.zeros_like(batch.is_real)
    if choice == "first":
        is_global[:, 0] = True
    elif choice == "some":
        # Both sides of a chunk's border, and another number in each row; some of them padding.
        is_global[:, [3, 4]] = True
        is_global |= torch.rand(is_global.shape, generator=torch.Generator().manual_seed(2)) < 0.1
        is_global[5] = False
        assert (is_global & ~batch.is_real).any() and len(set(is_global.sum(1).tolist())) > 3
    return is_global


def slots_of(is_global: Tensor) -> list[list[int]]:
    return [row.nonzero()[:, 0].tolist() for row in is_global]


@BOTH_LAYOUTS
@BOTH_FORMS
@pytest.mark.parametrize(
    ("choice", "windows_of"),
    [
        ("none", WINDOW),
        ("first", WINDOW),
        ("some", [4, 8, 16, 32]),
        pytest.param("some", WINDOW, marks=pytest.mark.slow),
        pytest.param("none", [4, 8, 16, 32], marks=pytest.mark.slow),
        pytest.param("first", [4, 8, 16, 32], marks=pytest.mark.slow),
    ],
)
def test_longformers_layers_and_their_gradients(
    kind: str, form: str, choice: str, windows_of: Any, take: Any, tmp_path: Path
) -> None:
    take(form)
    pair = members.build_pair(LONGFORMER.having(attention_window=windows_of), "Model", tmp_path)
    pair.encoder.requires_grad_()
    batch = members.make_batch(LONGFORMER, kind)
    is_global = global_tokens(batch, choice)
    theirs = pair.theirs(
        **batch.theirs, global_attention_mask=is_global.long(), output_hidden_states=True
    )
    batch.ours["layout"].global_slots = slots_of(is_global & batch.is_real)
    ours = pair.encoder(**batch.ours, output_hidden_states=True)
    losses = members.assert_states_equal(ours, theirs, batch)
    pooled = members.pooled_outputs(pair, ours.sequence_output, theirs, batch)
    assert_equal(*pooled, "pooled output")
    for loss, values in zip(losses, pooled, strict=True):
        (loss + values.square().mean()).backward()
    pair.assert_gradients_equal(tmp_path)


@pytest.mark.parametrize("suffix", list(LONGFORMER.member.heads))
def test_which_tokens_are_global_makes_a_difference_to_a_head(suffix: str, tmp_path: Path) -> None:
    """By chunks, too: test_families.py has whole rows."""
    case = case_of("longformer")
    pair = members.build_pair(case, suffix, tmp_path)
    batch = members.make_batch(case)
    before = members.our_outputs(pair, batch)[0]
    choose, pair.encoder.choose_global = pair.encoder.choose_global, None
    change = (members.our_outputs(pair, batch)[0] - before).abs().max()
    assert (change > 1e-3) == (choose is not None)


@pytest.mark.parametrize("suffix", list(LONGFORMER.member.heads))
def test_longformers_heads_by_chunks(suffix: str, take: Any, tmp_path: Path) -> None:
    take("chunks")
    case = case_of("longformer")
    pair = members.build_pair(case, suffix, tmp_path)
    for kind in ("ragged", "rectangle"):
        for head, mine, other in members.both_outputs(pair, members.make_batch(case, kind)):
            assert_equal(mine, other, f"{head}, {kind}")


def test_which_tokens_are_global():
    """Of a text and a pair, with one separator in the middle or two."""
    ids = torch.tensor([2, 9, 3, 2, 8, 3, 3, 7, 3])
    expected = {"spans": [[], [0, 1]], "choices": [[], [4, 5]], "classification": [[0], [0]]}
    for kind, slots in expected.items():
        assert longformer.global_slots(kind, ids, Layout.ragged([3, 6])) == slots
        padded = torch.cat([ids[:3], torch.zeros(3, dtype=torch.int64), ids[3:]])
        assert longformer.global_slots(kind, padded, Layout.rectangle([3, 6], 6)) == slots
    single = torch.tensor([2, 8, 3, 7, 6, 3])
    assert longformer.global_slots("choices", single, Layout.ragged([6])) == [[3, 4, 5]]


@BOTH_LAYOUTS
def test_bigbird_reads_a_text_alike_whatever_stands_beside_it(kind: str, tmp_path: Path) -> None:
    """Short and long ones in a batch; and long after short, where theirs goes on seeing all."""
    lengths = [5, 80, 30, 27, 79, 28]
    case = case_of("big_bird", lengths=lengths)
    encoder = members.build_pair(case, "Model", tmp_path).encoder
    batch = members.make_batch(case, kind)
    together = encoder(**batch.ours).sequence_output[batch.rows].split(lengths)
    for number, length in enumerate(lengths):
        path = tmp_path / "theirs"
        model = transformers.BigBirdModel.from_pretrained(path, attn_implementation="eager").eval()
        text = {name: values[None, number, :length] for name, values in batch.theirs.items()}
        assert_equal(together[number], model(**text)[0][0], f"text {number}")
        if length > 27:
            model(text["input_ids"][:, :5])
            stuck = model(**text)[0][0]
            assert (stuck - together[number]).abs().max() > 1e-4


@pytest.mark.parametrize("length", [28, 45])
def test_training_is_as_evaluation(length: int, tmp_path: Path) -> None:
    """Theirs draws blocks where it trains, and reads others where it does not."""
    case = case_of("big_bird", lengths=[length])
    encoder = members.build_pair(case, "Model", tmp_path).encoder
    batch = members.make_batch(case, "rectangle")
    state = np.random.get_state()[1].copy()
    states = [encoder.train(mode)(**batch.ours).sequence_output for mode in (True, False)]
    assert torch.equal(states[0], states[1])
    assert (np.random.get_state()[1] == state).all()


@BOTH_FORMS
def test_a_window_with_nothing_in_it_gives_no_nan(form: str, take: Any, tmp_path: Path) -> None:
    take(form)
    case = case_of("longformer", lengths=[1, 29, 5]).having(attention_window=2)
    encoder = members.build_pair(case, "Model", tmp_path).encoder.train().requires_grad_()
    batch = members.make_batch(case, "rectangle")
    batch.ours["layout"].global_slots = [[0], [0, 4], [2]]
    states = encoder(**batch.ours).sequence_output
    states[batch.rows].square().mean().backward()
    assert states.isfinite().all()
    for name, parameter in encoder.named_parameters():
        if "pooler" not in name:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@BOTH_FORMS
@pytest.mark.parametrize("member", ["modernbert", "longformer"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_chunks_are_the_whole(form, member, is_causal, take, tiny_config, monkeypatch):
    """Of several documents in a stream, also where they are read from left to right."""
    local = {"_target_": "clozelab.models.attention.LocalAttention", "window": 3}
    long = {"_target_": "clozelab.models.attention.LongAttention", "window": 3}
    parts = dict(family_of(member).parts)
    parts["attention"] = local | {"global_every": 3} if member == "modernbert" else long
    torch.manual_seed(0)
    case = case_of("longformer", lengths=[31, 7, 1, 30])
    sizes = {"vocab_size": members.VOCAB, "num_hidden_layers": 4, "is_causal": is_causal}
    config: EncoderConfig = tiny_config(model_type=member, **parts | sizes | {"pad_token_id": 0})
    encoder = Encoder(config).eval()
    kernels = []
    real = windows.Chunks.attend
    monkeypatch.setattr(windows.Chunks, "attend", lambda *given: kernels.append(1) or real(*given))
    results = []
    for choice in ("whole", form):
        take(choice)
        states = []
        for kind in ("ragged", "rectangle"):
            batch = members.make_batch(case, kind)
            states.append(encoder(**batch.ours).sequence_output[batch.rows])
        encoder.zero_grad()
        (states[0].square().sum() + states[1].sin().sum()).backward()
        gradients = [x.grad.clone() for x in encoder.parameters() if x.grad is not None]
        results.append([*states, *gradients])
    assert bool(kernels) == (form == "chunks" and not is_causal)
    for number, pair in enumerate(zip(*results, strict=True)):
        assert_equal(pair[1] / 10, pair[0] / 10, f"value {number}")


@BOTH_FORMS
def test_attention_maps_are_theirs(form: str, take: Any, tmp_path: Path) -> None:
    take(form)
    case = case_of("longformer", lengths=[29])
    pair = members.build_pair(case, "Model", tmp_path)
    batch = members.make_batch(case)
    maps: list[Tensor] = []
    with torch.no_grad(), capture_attention(pair.encoder, maps.append):
        pair.encoder(**batch.ours)
    with torch.no_grad():
        expected = pair.theirs(**batch.theirs, output_attentions=True).attentions
    for mine, near in zip(maps, expected, strict=True):
        whole = torch.zeros(2, 29, 29 + WINDOW)
        for query in range(29):
            whole[:, query, query : query + WINDOW + 1] = near[0, :, query]
        assert_equal(mine, whole[:, :, WINDOW // 2 :][:, :, :29], "map")


@BOTH
@pytest.mark.parametrize("attention_part", ["own", "full"])
def test_a_causal_one_is_not_theirs(name: str, attention_part: str) -> None:
    """Their classes have no such mask. Full attention is BigBird's other type."""
    config = family_of(name).from_hf_config(case_of(name).settings)
    if attention_part == "full":
        full = ModuleSpec("clozelab.models.attention.FullAttention")
        config = replace(config, attention=full)
    for is_causal in (False, True):
        written = family_of(name).to_hf_config(replace(config, is_causal=is_causal))
        is_ours = is_causal or (name, attention_part) == ("longformer", "full")
        assert written["model_type"].startswith("clozelab_") == is_ours
        again = family_of(name).from_hf_config(written)
        assert again == replace(config, is_causal=is_causal)


def test_both_matrices_begin_alike_where_one_has_been_trained(tmp_path: Path) -> None:
    encoder = members.build_pair(LONGFORMER, "Model", tmp_path).encoder
    encoder.share_projections()
    names = [name for name, _ in encoder.named_parameters()]
    assert not any("qkv_global" in name for name in names)
    for layer in encoder.layer:
        own: Any = layer.attention
        assert own.qkv_global.weight is own.qkv.weight


def test_a_list_of_windows_over_and_over_is_one_a_layer_in_a_file() -> None:
    family = family_of("longformer")
    config = family.from_hf_config(members.their_config(LONGFORMER).to_dict())
    node = {**config.attention.node(), "window": [3, 5]}
    config = replace(config, attention=ModuleSpec.from_node(node, "attention"))
    values: Any = family.to_hf_config(config, {"lm"})
    assert values["attention_window"] == [6, 10, 6, 10]
    assert values["model_type"] == "longformer"
    assert Encoder(family.from_hf_config(values)).masks == Encoder(config).masks
