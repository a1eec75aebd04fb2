"""Longformer and BigBird equal transformers' classes: fp32, eager, 1e-5 at every layer and head,
and back. Whole rows and chunks are compared with each other, too.

All parameters are random with a deviation of 0.2, so that no identity hides a mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.models import attention, windows
from clozelab.models.attention_maps import noted_attention
from clozelab.models.config import EncoderConfig, ModuleSpec
from clozelab.models.encoder import Encoder
from clozelab.models.families import longformer
from clozelab.models.folders import load_encoder, load_head
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for, family_of
from clozelab.modules.model import read_model, write_model

transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
VOCAB = 64
SEPARATOR = 3
WINDOW = 8
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 90,
    "sep_token_id": SEPARATOR,
    "num_labels": 3,
}
OWN: dict[str, dict[str, Any]] = {
    "Longformer": {"attention_window": WINDOW, "pad_token_id": 0, "type_vocab_size": 1},
    # More than 27 tokens are read in blocks.
    "BigBird": {"block_size": 3, "num_random_blocks": 2, "attn_implementation": "eager"},
}
# One, less than a window, a window and one more, three and five, and others between.
LENGTHS = [1, 2, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW + 5, 16, 28]
# Texts with a question, or a choice: three separators.
PAIR_LENGTHS = [29, 10, 7, 25]
CLASSES = {
    "ForMaskedLM": "lm",
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tags",
    "ForQuestionAnswering": "spans",
    "ForMultipleChoice": "choices",
}
TOKENIZER = WordPieceTokenizer(
    [*SPECIAL_TOKENS, *(f"word{number}" for number in range(VOCAB - 5))], lowercase=True
)
BOTH_LAYOUTS = pytest.mark.parametrize("kind", ["ragged", "rectangle"])
BOTH_FORMS = pytest.mark.parametrize("form", ["whole", "chunks"])


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """take("chunks") or take("whole"): how windows are computed."""

    def choose(form: str) -> None:
        monkeypatch.setattr(attention, "CHUNKS_LEAST_WIDTH", 0)
        monkeypatch.setattr(attention, "CHUNKS_FROM", 0 if form == "chunks" else 10**9)

    return choose


@pytest.fixture
def theirs(tmp_path: Path) -> Callable[..., Any]:
    """theirs(family, class suffix, **configuration): random everywhere, saved in "theirs"."""

    def make(title: str, suffix: str = "Model", **changes: Any) -> Any:
        if suffix == "ForQuestionAnswering":
            changes |= {"num_labels": 2}
        config = getattr(transformers, f"{title}Config")(**SIZES | OWN[title] | changes)
        model = getattr(transformers, title + suffix)(config).eval()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
        model.save_pretrained(tmp_path / "theirs")
        return model

    return make


class Batch(NamedTuple):
    theirs: dict[str, Tensor]  # [B, S] each
    is_real: Tensor  # bool [B, S]
    ours: dict[str, Any]
    rows: Tensor  # of our stream, those that hold tokens


def make_batch(
    kind: str, lengths: list[int], pads_left: bool = False, pairs: bool = False
) -> Batch:
    generator = torch.Generator().manual_seed(1)
    width = max(lengths)
    is_real = torch.arange(width) < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, VOCAB, is_real.shape, generator=generator)
    for row, length in zip(ids, lengths, strict=True):
        row[length - 1] = SEPARATOR
        if pairs:
            row[[length // 2 - 1, length // 2]] = SEPARATOR
    ids = torch.where(is_real, ids, 0)
    positions = torch.arange(width).expand_as(ids)
    padded = {"input_ids": ids, "token_type_ids": torch.zeros_like(ids), "position_ids": positions}
    if kind == "ragged":
        stream = {name: value[is_real] for name, value in padded.items()}
        layout, rows = Layout.ragged(lengths), torch.arange(sum(lengths))
    else:
        stream = {name: value.flatten() for name, value in padded.items()}
        layout = Layout.rectangle(lengths, width)
        rows = is_real.flatten().nonzero().squeeze(1)
    other = {"input_ids": ids, "attention_mask": is_real.long(), "token_type_ids": ids * 0}
    if pads_left:
        shifts = [width - length for length in lengths]
        for name, value in other.items():
            moved = [row.roll(shift) for row, shift in zip(value, shifts, strict=True)]
            other[name] = torch.stack(moved)
        is_real = other["attention_mask"].bool()
    return Batch(other, is_real, stream | {"layout": layout}, rows)


def assert_equal(ours: Tensor, expected: Tensor, name: str) -> None:
    assert ours.shape == expected.shape, name
    distance = float((ours - expected).detach().abs().max())
    assert distance <= TOLERANCE, f"{name}: {distance:.2e}"


def assert_gradients_equal(model: nn.Module, gradients: dict[str, Tensor], prefix: str) -> None:
    for name, parameter in model.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert_equal(gradients[prefix + name], expected, f"gradient of {name}")


def assert_states_equal(ours: Any, expected: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """All of them; and a sum of each side's, of which to take gradients."""
    assert len(ours.hidden_states) == len(expected.hidden_states) == 5
    losses = [torch.zeros(()), torch.zeros(())]
    pairs = zip(ours.hidden_states, expected.hidden_states, strict=True)
    for number, (mine, other) in enumerate(pairs):
        assert_equal(mine[batch.rows], other[batch.is_real], f"hidden state {number}")
        weight = torch.randn(len(batch.rows), 32, generator=torch.Generator().manual_seed(number))
        losses[0] = losses[0] + (mine[batch.rows] * weight).mean()
        losses[1] = losses[1] + (other[batch.is_real] * weight).mean()
    return losses[0], losses[1]


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
@pytest.mark.parametrize("choice", ["none", "first", "some"])
@pytest.mark.parametrize("windows_of", [WINDOW, [4, 8, 16, 32]])
def test_longformers_layers_and_their_gradients(
    kind, form, choice, windows_of, theirs, take, tmp_path, hf_gradients
):
    take(form)
    model = theirs("Longformer", attention_window=windows_of)
    encoder = load_encoder(tmp_path / "theirs").eval().requires_grad_()
    batch = make_batch(kind, LENGTHS)
    is_global = global_tokens(batch, choice)
    expected = model(
        **batch.theirs, global_attention_mask=is_global.long(), output_hidden_states=True
    )
    batch.ours["layout"].global_slots = slots_of(is_global & batch.is_real)
    output = encoder(**batch.ours, output_hidden_states=True)
    losses = assert_states_equal(output, expected, batch)
    pooled = encoder.pool(output.sequence_output, batch.ours["layout"])
    assert_equal(pooled, expected.pooler_output, "pooled output")
    (losses[0] + pooled.square().mean()).backward()
    (losses[1] + expected.pooler_output.square().mean()).backward()
    assert_gradients_equal(model, hf_gradients(encoder, {}), "longformer.")


@pytest.mark.parametrize("choice", ["none", "some"])
def test_longformers_left_padding_changes_nothing(choice, theirs, tmp_path):
    model = theirs("Longformer")
    encoder = load_encoder(tmp_path / "theirs").eval()
    batch = make_batch("rectangle", LENGTHS, pads_left=True)
    straight = make_batch("rectangle", LENGTHS)
    is_global = global_tokens(straight, choice)
    shifts = [29 - length for length in LENGTHS]
    moved = [row.roll(shift) for row, shift in zip(is_global, shifts, strict=True)]
    expected = model(**batch.theirs, global_attention_mask=torch.stack(moved).long())[0]
    batch.ours["layout"].global_slots = slots_of(is_global & straight.is_real)
    ours = encoder(**batch.ours).sequence_output[batch.rows]
    assert_equal(ours, expected[batch.is_real], "states")


def our_outputs(encoder: Encoder, kind: str, head: nn.Module, batch: Batch) -> Tensor:
    states = encoder(**batch.ours).sequence_output
    if kind in ("classification", "choices"):
        return head(encoder.pool(states, batch.ours["layout"], head))
    return head(states[batch.rows])


def their_outputs(model: Any, kind: str, batch: Batch) -> Tensor:
    arguments = batch.theirs
    if kind == "choices":
        arguments = {name: value[None] for name, value in arguments.items()}
    output = model(**arguments)
    if kind == "choices":
        return output.logits.T
    if kind == "spans":
        logits = [output.start_logits, output.end_logits]
        return torch.stack([ends[batch.is_real] for ends in logits], dim=-1)
    return output.logits if kind == "classification" else output.logits[batch.is_real]


@BOTH_LAYOUTS
@BOTH_FORMS
@pytest.mark.parametrize("suffix", list(CLASSES))
def test_longformers_heads_and_their_gradients(
    kind, form, suffix, theirs, take, tmp_path, hf_gradients
):
    """Which tokens are global is each class's own choice, and ours."""
    take(form)
    model = theirs("Longformer", suffix)
    encoder = load_encoder(tmp_path / "theirs").eval()
    name = CLASSES[suffix]
    head = family_for(encoder.config).head(name, encoder, num_labels=3).eval()
    load_head(tmp_path / "theirs", name, head)
    batch = make_batch(kind, PAIR_LENGTHS, pairs=True)
    mine = our_outputs(encoder, name, head, batch)
    other = their_outputs(model, name, batch)
    assert_equal(mine, other, suffix)
    mine.square().mean().backward()
    other.square().mean().backward()
    gradients = hf_gradients(encoder, {name: head})
    gradients["lm_head.decoder.bias"] = gradients.get("lm_head.bias")
    assert_gradients_equal(model, gradients, "")
    with torch.no_grad():
        choose, encoder.choose_global = encoder.choose_global, None
        change = (our_outputs(encoder, name, head, batch) - mine).abs().max()
        assert (change > 1e-3) == (choose is not None)


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


@pytest.mark.parametrize("title", list(OWN))
@pytest.mark.parametrize("length", [1, WINDOW - 1, WINDOW, WINDOW + 1, 28, 3 * WINDOW + 5])
def test_the_masked_loss(title, length, theirs, tmp_path):
    model = theirs(title, "ForMaskedLM")
    encoder = load_encoder(tmp_path / "theirs").eval()
    head: Any = family_for(encoder.config).head("lm", encoder).eval()
    load_head(tmp_path / "theirs", "lm", head)
    ids = torch.arange(length) % 50 + 5
    labels = torch.where(torch.arange(length) % 3 == 0, ids + 1, -100)
    expected = model(input_ids=ids[None], labels=labels[None]).loss
    batch = {"input_ids": ids, "token_type_ids": ids * 0, "position_ids": torch.arange(length)}
    states = encoder(**batch, layout=Layout.ragged([length])).sequence_output
    is_predicted = labels >= 0
    loss = head.loss(states[is_predicted], labels[is_predicted]).loss_sum / is_predicted.sum()
    assert_equal(loss, expected, "loss")
    assert_equal(loss, F.cross_entropy(head(states), labels), "loss beside the plain one")


@pytest.mark.parametrize("length", [1, 2, 9, 26, 27, 28, 29, 45, 80])
@pytest.mark.parametrize("num_random", [1, 2])
def test_bigbirds_layers_and_their_gradients(length, num_random, theirs, tmp_path, hf_gradients):
    """Whole up to 27 tokens (21 with one random block), then in blocks; odd lengths, too."""
    model = theirs("BigBird", num_random_blocks=num_random)
    encoder = load_encoder(tmp_path / "theirs").eval()
    batch = make_batch("rectangle", [length, length])
    expected = model(**batch.theirs, output_hidden_states=True)
    output = encoder(**batch.ours, output_hidden_states=True)
    states = [state[:, :length] for state in expected.hidden_states]  # theirs are padded
    losses = assert_states_equal(output, expected | {"hidden_states": states}, batch)
    pooled = encoder.pool(output.sequence_output, batch.ours["layout"])
    assert_equal(pooled, expected.pooler_output, "pooled output")
    (losses[0] + pooled.square().mean()).backward()
    (losses[1] + expected.pooler_output.square().mean()).backward()
    assert_gradients_equal(model, hf_gradients(encoder, {}), "bert.")


@BOTH_LAYOUTS
def test_bigbird_reads_a_text_alike_whatever_stands_beside_it(kind, theirs, tmp_path):
    """Short and long ones in a batch; and long after short, where theirs goes on seeing all."""
    theirs("BigBird")
    encoder = load_encoder(tmp_path / "theirs").eval()
    lengths = [5, 80, 30, 27, 79, 28]
    batch = make_batch(kind, lengths)
    together = encoder(**batch.ours).sequence_output[batch.rows].split(lengths)
    for number, length in enumerate(lengths):
        path = tmp_path / "theirs"
        model = transformers.BigBirdModel.from_pretrained(path, attn_implementation="eager").eval()
        ids = batch.theirs["input_ids"][number, :length]
        assert_equal(together[number], model(ids[None])[0][0], f"text {number}")
        if length > 27:
            model(ids[None, :5])
            stuck = model(ids[None])[0][0]
            assert (stuck - together[number]).abs().max() > 1e-4


@pytest.mark.parametrize("suffix", list(CLASSES))
@pytest.mark.parametrize("length", [20, 41])
def test_bigbirds_heads_and_their_gradients(suffix, length, theirs, tmp_path, hf_gradients):
    model = theirs("BigBird", suffix)
    encoder = load_encoder(tmp_path / "theirs").eval()
    name = CLASSES[suffix]
    head = family_for(encoder.config).head(name, encoder, num_labels=3).eval()
    load_head(tmp_path / "theirs", name, head)
    batch = make_batch("ragged", [length] * 3, pairs=True)
    mine = our_outputs(encoder, name, head, batch)
    other = their_outputs(model, name, batch)
    if name == "spans":
        # Theirs rules the question out, up to its separator; [CLS] stays.
        is_out = torch.arange(length) < length // 2
        is_out[0] = False
        mine, other = mine[~is_out.repeat(3)], other[~is_out.repeat(3)]
    assert_equal(mine, other, suffix)
    mine.square().mean().backward()
    other.square().mean().backward()
    gradients = hf_gradients(encoder, {name: head})
    gradients["cls.predictions.decoder.bias"] = gradients.get("cls.predictions.bias")
    assert_gradients_equal(model, gradients, "")


@pytest.mark.parametrize("length", [28, 45])
def test_training_is_as_evaluation(length, theirs, tmp_path):
    """Theirs draws blocks where it trains, and reads others where it does not."""
    theirs("BigBird", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    encoder = load_encoder(tmp_path / "theirs")
    batch = make_batch("rectangle", [length])
    state = np.random.get_state()[1].copy()
    states = [encoder.train(mode)(**batch.ours).sequence_output for mode in (True, False)]
    assert torch.equal(states[0], states[1])
    assert (np.random.get_state()[1] == state).all()


def changed_by(encoder: Encoder, batch: Batch, **parts: Any) -> float:
    """How far the states go where a part is another one, with the same weights."""
    other = Encoder(replace(encoder.config, **parts)).eval()
    other.load_state_dict(encoder.state_dict())
    with torch.no_grad():
        states = [one(**batch.ours).sequence_output[batch.rows] for one in (encoder, other)]
    return float((states[0] - states[1]).abs().max())


@pytest.mark.parametrize(
    ("title", "changes"),
    [
        ("Longformer", [{"window": 3}, {"window": 5}, {"window": [4, 4, 4, 5]}]),
        ("BigBird", [{"block_size": 4}, {"num_random_blocks": 1}, {"num_random_blocks": 3}]),
    ],
)
def test_what_is_a_little_off_is_seen(title, changes, theirs, tmp_path):
    theirs(title)
    encoder = load_encoder(tmp_path / "theirs").eval()
    batch = make_batch("ragged", [80, 45])
    node = encoder.config.attention.node()
    for change in changes:
        assert changed_by(encoder, batch, attention=ModuleSpec.of(node | change, "")) > 1e-4
    assert changed_by(encoder, batch) == 0.0


@BOTH_FORMS
def test_a_window_with_nothing_in_it_gives_no_nan(form, theirs, take, tmp_path):
    take(form)
    theirs("Longformer", attention_window=2)
    encoder = load_encoder(tmp_path / "theirs").train().requires_grad_()
    batch = make_batch("rectangle", [1, 29, 5])
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
    sizes = {"vocab_size": VOCAB, "num_hidden_layers": 4, "is_causal": is_causal}
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
            batch = make_batch(kind, [31, 7, 1, 30])
            states.append(encoder(**batch.ours).sequence_output[batch.rows])
        encoder.zero_grad()
        (states[0].square().sum() + states[1].sin().sum()).backward()
        gradients = [x.grad.clone() for x in encoder.parameters() if x.grad is not None]
        results.append([*states, *gradients])
    assert bool(kernels) == (form == "chunks" and not is_causal)
    for number, pair in enumerate(zip(*results, strict=True)):
        assert_equal(pair[1] / 10, pair[0] / 10, f"value {number}")


@BOTH_FORMS
def test_attention_maps_are_theirs(form, theirs, take, tmp_path):
    take(form)
    model = theirs("Longformer")
    encoder = load_encoder(tmp_path / "theirs").eval()
    batch = make_batch("ragged", [29])
    maps: list[Tensor] = []
    with torch.no_grad(), noted_attention(encoder, maps.append):
        encoder(**batch.ours)
    with torch.no_grad():
        expected = model(**batch.theirs, output_attentions=True).attentions
    for mine, near in zip(maps, expected, strict=True):
        whole = torch.zeros(2, 29, 29 + WINDOW)
        for query in range(29):
            whole[:, query, query : query + WINDOW + 1] = near[0, :, query]
        assert_equal(mine, whole[:, :, WINDOW // 2 :][:, :, :29], "map")


@pytest.mark.parametrize("suffix", ["Model", *CLASSES])
@pytest.mark.parametrize("title", list(OWN))
def test_there_and_back(title, suffix, theirs, tmp_path):
    """What we write of a model that we have read has its tensors alone, and loads in its class."""
    changes = {"attention_window": [8, 4, 8, 16]} if title == "Longformer" else {}
    model = theirs(title, suffix, **changes)
    for file, content in TOKENIZER.files().items():
        (tmp_path / "theirs" / file).write_bytes(content)
    read = read_model(tmp_path / "theirs")
    kind = CLASSES.get(suffix)
    assert list(read.heads) == ([kind] if kind else []) and set(read.untrained) <= {"pooler"}
    assert read.architecture == title + suffix
    family = family_for(read.encoder.config)
    write_model(
        tmp_path / "ours",
        read.encoder,
        read.heads,
        read.tokenizer,
        labels=read.labels,
        with_pooler=family.reads_pooler(list(read.heads)),
    )
    automatic = getattr(transformers, "AutoModel" + suffix.removeprefix("Model"))
    loaded, info = automatic.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert type(loaded) is type(model)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    state = loaded.state_dict()
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    batch = make_batch("ragged", [29, 29], pairs=True)
    loaded.eval()
    with torch.no_grad():
        if kind:
            pair = [their_outputs(one, kind, batch) for one in (loaded, model)]
        else:
            pair = [one(**batch.theirs)[0] for one in (loaded, model)]
    assert_equal(pair[0], pair[1], suffix)
    again = read_model(tmp_path / "ours")
    assert again.encoder.config == read.encoder.config
    for name, value in read.encoder.state_dict().items():
        assert torch.equal(again.encoder.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("longformer", {"attention_window": 7}, "an even number above 0"),
        ("longformer", {"attention_window": [8, 0, 8, 8]}, "an even number above 0"),
        ("longformer", {"attention_window": [8, 4]}, "or one for each of 4 layers"),
        ("big_bird", {"use_bias": False}, "use_bias is False, and only True"),
        ("big_bird", {"rescale_embeddings": True}, "rescale_embeddings is True, and only False"),
        ("big_bird", {"block_size": 0}, "block_size 0 must be at least 1"),
    ],
)
def test_what_cannot_be_read_is_refused(name, change, reason):
    title = {"longformer": "Longformer", "big_bird": "BigBird"}[name]
    values = SIZES | {"type_vocab_size": 1} | OWN[title] | change
    with pytest.raises(ValueError, match=reason):
        Encoder(family_of(name).from_hf_config(values))


@pytest.mark.parametrize("name", ["longformer", "big_bird"])
@pytest.mark.parametrize("attention_part", ["own", "full"])
def test_a_causal_one_is_not_theirs(name, attention_part):
    """Their classes have no such mask. Full attention is BigBird's other type."""
    title = {"longformer": "Longformer", "big_bird": "BigBird"}[name]
    config = family_of(name).from_hf_config(SIZES | {"type_vocab_size": 1} | OWN[title])
    if attention_part == "full":
        full = ModuleSpec("clozelab.models.attention.FullAttention")
        config = replace(config, attention=full)
    for is_causal in (False, True):
        written = family_of(name).to_hf_config(replace(config, is_causal=is_causal))
        is_ours = is_causal or (name, attention_part) == ("longformer", "full")
        assert written["model_type"].startswith("clozelab_") == is_ours
        again = family_of(name).from_hf_config(written)
        assert again == replace(config, is_causal=is_causal)


def test_both_matrices_begin_alike_where_one_has_been_trained(theirs, tmp_path):
    theirs("Longformer")
    encoder = load_encoder(tmp_path / "theirs")
    encoder.share_projections()
    names = [name for name, _ in encoder.named_parameters()]
    assert not any("qkv_global" in name for name in names)
    for layer in encoder.layer:
        own: Any = layer.attention
        assert own.qkv_global.weight is own.qkv.weight
