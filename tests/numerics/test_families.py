"""Each member of the family equals transformers' classes with the same weights: fp32, CPU, 1e-5 at
every layer, head, loss and gradient, and back.

members.py has the table and the harness; the other files have what a member alone has.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.numerics import members
from tests.numerics.members import CASES, MEMBERS, POOLED, TOLERANCE, Case, Pair, case_of
from torch import nn
from torch.nn import functional as F

from clozelab.models.config import EncoderConfig, ModuleSpec
from clozelab.models.encoder import Encoder
from clozelab.models.families.electra import generator_config
from clozelab.models.folders import load_encoder, read_config_dict, save_encoder_folder
from clozelab.models.heads import BiLSTM
from clozelab.models.registry import family_for, family_of
from clozelab.modules.model import read_model, write_model

transformers = pytest.importorskip("transformers")

# Members that have BERT's attention and norms; their other shapes are slow.
LIKE_BERT = ("roberta", "electra", "ernie", "distilbert")
# More than 27 tokens are read in blocks (21 with one random block).
BLOCKS_AT_ONCE = ("big_bird, 27 tokens", "big_bird, 28 tokens", "big_bird, 80 tokens")
BLOCKS_AT_ONCE += ("big_bird, one random block, 29 tokens",)


def is_slow(name: str) -> bool:
    """Whether a case goes the ways of other cases of its member, or of BERT."""
    member, _, change = name.partition(", ")
    is_shape = member in LIKE_BERT and change in members.SHAPES
    return is_shape or (CASES[name].is_in_blocks and name not in BLOCKS_AT_ONCE)


def slow_if(condition: bool) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if condition else []


EVERY_CASE = pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name, marks=slow_if(is_slow(name))) for name, case in CASES.items()],
)
EVERY_MEMBER = pytest.mark.parametrize("name", list(MEMBERS))
# One of each kind of attention; the others' layers are read by the same code.
OF_EVERY_KIND = ("bert", "albert", "deberta-v2", "modernbert", "xlnet")
ONE_OF_A_KIND = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=slow_if(name not in OF_EVERY_KIND)) for name in MEMBERS]
)
LAYOUTS = ("ragged", "rectangle")


@EVERY_CASE
def test_every_layer_and_its_gradient(case: Case, tmp_path: Path) -> None:
    """Gradients of both layouts are added: of either one a wrong one would be seen."""
    pair = members.build_pair(case, "Model", tmp_path)
    pair.encoder.requires_grad_()
    for kind in LAYOUTS:
        batch = members.make_batch(case, kind)
        theirs = pair.theirs(**batch.theirs, output_hidden_states=True)
        ours = pair.encoder(**batch.ours, output_hidden_states=True)
        assert len(ours.hidden_states) == pair.encoder.config.num_hidden_layers + 1
        losses = members.assert_states_equal(ours, theirs, batch)
        pooled = members.pooled_outputs(pair, ours.sequence_output, theirs, batch)
        members.assert_equal(*pooled, f"pooled output, {kind}")
        for loss, values in zip(losses, pooled, strict=True):
            (loss + values.square().mean()).backward()
    pair.assert_gradients_equal(tmp_path)


# Shapes of layers are above; these are compared where a head could be another one.
HAS_OWN_HEADS = ("modernbert", "ultrabert")
OF_HEADS: dict[str, Case] = {}
for case_name, case in CASES.items():
    is_own = not case.changes or case.is_causal or case.member.model_type in HAS_OWN_HEADS
    if is_own and (case.lengths == case.member.lengths or case_name == "big_bird, 45 tokens"):
        OF_HEADS[case_name] = case
# One of each way to name a decoder that is not tied; the others are slow.
UNTIED = ("bert", "distilbert", "modernbert")
# With every head; another member with its language model, its classifier and one other head, each
# another one: tags, spans and choices are the same code in all. The others are slow.
WITH_EVERY_FILE = ("bert", "modernbert", "xlnet")
EVERY_HEAD = []
EVERY_FILE = []
for number, (case_name, case) in enumerate(OF_HEADS.items()):
    tasks = sorted({*case.member.heads} - {*members.MASKED, "LMHeadModel", "ForPreTraining"})
    others = {*tasks} - {tasks[number % len(tasks)]}
    for suffix, kinds in {"Model": (), **case.member.heads}.items():
        # Under a causal mask theirs pools a token that has seen itself alone.
        is_fast = case_name in WITH_EVERY_FILE or suffix not in others
        marks = slow_if(not is_fast)
        if kinds and not (case.is_causal and POOLED & set(kinds)):
            is_pooling = suffix == "ForSequenceClassification"  # each member's own
            param = pytest.param(
                case, suffix, id=f"{case_name}-{suffix}", marks=slow_if(not (is_fast or is_pooling))
            )
            EVERY_HEAD.append(param)
        if not case.is_in_blocks and not case.is_causal:
            EVERY_FILE.append(pytest.param(case, suffix, id=f"{case_name}-{suffix}", marks=marks))
            if "lm" in kinds and case.member.pooling != "none":
                untied = case.having(tie_word_embeddings=False)
                name = f"{case_name}-{suffix}-untied"
                marks = slow_if(case_name not in UNTIED)
                EVERY_FILE.append(pytest.param(untied, suffix, id=name, marks=marks))
next_sentence = "ForNextSentencePrediction"
EVERY_FILE.append(pytest.param(case_of("bert"), next_sentence, id=f"bert-{next_sentence}"))


@pytest.mark.parametrize(("case", "suffix"), EVERY_HEAD)
def test_every_head_and_its_gradient(case: Case, suffix: str, tmp_path: Path) -> None:
    pair = members.build_pair(case, suffix, tmp_path)
    losses = [torch.zeros(()), torch.zeros(())]
    for kind in LAYOUTS:
        for head, mine, other in members.both_outputs(pair, members.make_batch(case, kind)):
            members.assert_equal(mine, other, f"{head}, {kind}")
            losses[0] = losses[0] + mine.square().mean()
            losses[1] = losses[1] + other.square().mean()
    for loss in losses:
        loss.backward()
    pair.assert_gradients_equal(tmp_path)


@pytest.mark.parametrize("case", members.WITH_LOSS.values(), ids=members.WITH_LOSS)
def test_the_masked_loss(case: Case, tmp_path: Path) -> None:
    """Of each text's first token and every third one; of each member's first shape."""
    pair = members.build_pair(case, "ForMaskedLM", tmp_path)
    batch = members.make_batch(case)
    ids = batch.theirs["input_ids"]
    is_asked = batch.is_real & (torch.arange(ids.shape[1]) % 3 == 0)
    targets = ids.roll(1, 0)
    expected = pair.theirs(**batch.theirs, labels=targets.masked_fill(~is_asked, -100)).loss
    states = pair.encoder(**batch.ours).sequence_output[batch.rows][is_asked[batch.is_real]]
    head: Any = pair.heads["lm"]
    loss = head.loss(states, targets[is_asked]).loss_sum / is_asked.sum()
    members.assert_equal(loss, expected, "loss")
    members.assert_equal(loss, F.cross_entropy(head(states), targets[is_asked]), "plain loss")


def test_layers_share_groups_as_albert_rounds(tmp_path: Path) -> None:
    """Of 18 layers in 14 groups the tenth has group 6: 9 / (18 / 14) is a little below 7."""
    case = case_of("albert", lengths=[5, 3]).having(num_hidden_layers=18, num_hidden_groups=14)
    pair = members.build_pair(case, "Model", tmp_path)
    for output in members.both_outputs(pair, members.make_batch(case)):
        members.assert_equal(output[1], output[2], "states")


@pytest.mark.parametrize("name", ["bert", "deberta-v2", "distilbert", "modernbert", "xlnet"])
def test_the_padding_id_inside_a_text_is_a_word(name: str, tmp_path: Path) -> None:
    pair = members.build_pair(case_of(name), "Model", tmp_path)
    batch = members.make_batch(pair.case, with_padding_ids=True)
    for output in members.both_outputs(pair, batch):
        members.assert_equal(output[1], output[2], name)


@pytest.mark.parametrize(("case", "suffix"), EVERY_FILE)
def test_there_and_back(case: Case, suffix: str, tmp_path: Path) -> None:
    """What we write of a model that was read has its tensors alone, and loads in its class."""
    pair = members.build_pair(case, suffix, tmp_path)
    for file, content in members.tokenizer_of(case).files().items():
        (tmp_path / "theirs" / file).write_bytes(content)
    read = read_model(tmp_path / "theirs")
    kinds = {"nsp"} if suffix == "ForNextSentencePrediction" else set(pair.heads)
    family = family_for(read.encoder.config)
    assert set(read.heads) == kinds and set(read.untrained) <= {"pooler"}
    assert read.architecture == case.member.title + suffix
    assert family.kinds(read.architecture) == kinds
    has_labels = suffix in ("ForSequenceClassification", "ForTokenClassification")
    assert read.labels == (("LABEL_0", "LABEL_1", "LABEL_2") if has_labels else ())
    write_model(
        tmp_path / "ours",
        read.encoder,
        read.heads,
        read.tokenizer,
        labels=read.labels,
        max_length=39,
        with_pooler=family.reads_pooler(list(kinds)),
    )
    loaded, info = type(pair.theirs).from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert loaded.config.architectures == [read.architecture]
    expected = pair.theirs
    if case.changes.get("tie_word_embeddings") is False:
        # They add the decoder's bias, which is another name of the head's.
        unread = family.head_name("lm", "bias")
        is_decoder = unread == f"{family.decoder}.bias"
        state = loaded.state_dict()
        if not is_decoder and unread in state:
            expected.state_dict()[unread].copy_(state[unread])
    members.assert_loads_whole(loaded, info, expected)
    again = read_model(tmp_path / "ours")
    assert again.encoder.config == read.encoder.config
    for before, after in zip(
        read.encoder.state_dict().items(), again.encoder.state_dict().items(), strict=True
    ):
        assert before[0] == after[0] and torch.equal(before[1], after[1]), before[0]
    about = [(one.architecture, one.labels, one.task) for one in (read, again)]
    assert about[0] == about[1]
    if kinds == set(pair.heads):
        batch = members.make_batch(case)
        both = Pair(case, loaded.eval(), again.encoder, dict(again.heads))
        with torch.no_grad():
            outputs = members.both_outputs(both, batch)
        for head, mine, other in outputs:
            members.assert_equal(mine, other, head)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer.model_max_length == 39 and tokenizer.vocab_size == members.VOCAB


@EVERY_MEMBER
def test_automodel_finds_every_tensor_and_no_other(name: str, tmp_path: Path) -> None:
    pair = members.build_pair(case_of(name), "Model", tmp_path)
    encoder = pair.encoder
    save_encoder_folder(tmp_path / "ours", encoder, heads={}, tokenizer_files={}, extra_config={})
    automatic = transformers.AutoModel
    loaded, info = automatic.from_pretrained(tmp_path / "ours", output_loading_info=True)
    members.assert_loads_whole(loaded, info, pair.theirs)
    parameters = dict(encoder.named_parameters())
    if family_of(name).pooler_is_apart:
        parameters = {key: x for key, x in parameters.items() if not key.startswith("pooler.")}
    assert sum(x.numel() for x in parameters.values()) == loaded.num_parameters()


@ONE_OF_A_KIND
def test_a_permuted_layer_is_seen(name: str, tmp_path: Path) -> None:
    """The comparison notices: the first two layers (ALBERT's groups) change places in the file."""
    case = case_of(name)
    if name == "modernbert":  # whose first layer has no norm
        case = dataclasses.replace(case, changes={"num_hidden_layers": 4})
    pair = members.build_pair(case, "Model", tmp_path)
    family = family_for(pair.encoder.config)
    path = tmp_path / "theirs" / "model.safetensors"
    prefixes = [family.layer_prefix.format(number + int(name == "modernbert")) for number in (0, 1)]
    tensors = safetensors.torch.load_file(path)
    swapped = {}
    for key, value in tensors.items():
        moved = key.replace(prefixes[0], "*").replace(prefixes[1], prefixes[0])
        swapped[moved.replace("*", prefixes[1])] = value
    assert list(swapped) != list(tensors)
    safetensors.torch.save_file(swapped, path)
    batch = members.make_batch(case)
    wrong = load_encoder(tmp_path / "theirs")(**batch.ours).sequence_output[batch.rows]
    expected = members.their_outputs(pair, batch)[0]
    assert (wrong - expected).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize(
    ("name", "slot", "changes"),
    [
        ("longformer", "attention", [{"window": 3}, {"window": 5}, {"window": [4, 4, 4, 5]}]),
        (
            "big_bird",
            "attention",
            [{"block_size": 4}, {"num_random_blocks": 1}, {"num_random_blocks": 3}],
        ),
        (
            "modernbert",
            "attention",
            [{"window": 3}, {"window": 5}, {"global_every": 2}, {"first_global": 1}],
        ),
        (
            "modernbert",
            "positions",
            [{"base": 150_000.0}, {"window_base": 11_000.0}, {"window_base": None}],
        ),
    ],
)
def test_what_is_a_little_off_is_seen(
    name: str, slot: str, changes: list[dict[str, Any]], tmp_path: Path
) -> None:
    """With the same weights, and another window, block or base."""
    case = case_of(name, lengths=[60, 45])
    encoder = members.build_pair(case, "Model", tmp_path).encoder
    batch = members.make_batch(case)
    node = getattr(encoder.config, slot).node()
    expected = encoder(**batch.ours).sequence_output
    for change in ({}, *changes):
        part = ModuleSpec.from_node(node | change, "")
        other = Encoder(dataclasses.replace(encoder.config, **{slot: part})).eval()
        other.load_state_dict(encoder.state_dict())
        distance = (other(**batch.ours).sequence_output - expected).abs().max()
        assert distance > 1e-4 if change else distance == 0.0, change


def test_a_missing_position_offset_is_seen(tmp_path: Path) -> None:
    pair = members.build_pair(case_of("roberta"), "Model", tmp_path)
    batch = members.make_batch(pair.case)
    plain: EncoderConfig = dataclasses.replace(
        pair.encoder.config,
        positions=ModuleSpec("clozelab.models.embeddings.LearnedPositions"),
        max_position_embeddings=66,
    )
    wrong = Encoder(plain)
    wrong.load_state_dict(pair.encoder.state_dict())
    out = wrong(**batch.ours).sequence_output[batch.rows]
    assert (out - members.their_outputs(pair, batch)[0]).abs().max() > 100 * TOLERANCE


def test_distances_beyond_the_buckets(tmp_path: Path) -> None:
    """MPNet's bias uses each bucket, and is another one with the direction turned round."""
    pair = members.build_pair(CASES["mpnet, far"], "Model", tmp_path)
    batch = members.make_batch(pair.case)
    states = pair.encoder(**batch.ours).sequence_output[batch.rows]
    states.square().mean().backward()
    scheme: Any = pair.encoder.embeddings.position_embeddings
    is_used = scheme.relative_attention_bias.weight.grad.abs().amin(1) > 0
    assert int(is_used.sum()) == 31  # no key is both ahead and at distance 0
    scheme.buckets = scheme.buckets.flip(0)
    wrong = pair.encoder(**batch.ours).sequence_output[batch.rows]
    assert (wrong - states).abs().max() > 100 * TOLERANCE


def test_a_generator_with_its_discriminators_embeddings(tmp_path: Path) -> None:
    """Two encoders share one Embeddings; each folder is whole."""
    pair = members.build_pair(case_of("electra"), "ForPreTraining", tmp_path)
    shared = pair.encoder.embeddings
    config = generator_config(pair.encoder.config, "1/2")
    generator = Encoder(config, embeddings=shared).eval()
    assert generator.config.hidden_size == 16 and generator.config.embedding_size == 12
    assert generator.embeddings.word_embeddings.weight is shared.word_embeddings.weight
    head = family_for(generator.config).head("lm", generator)
    save_encoder_folder(
        tmp_path / "g", generator, heads={"lm": head}, tokenizer_files={}, extra_config={}
    )
    automatic = transformers.ElectraForMaskedLM
    model, info = automatic.from_pretrained(tmp_path / "g", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    both = Pair(pair.case, model.eval(), generator, {"lm": head})
    for kind, mine, other in members.both_outputs(both, members.make_batch(pair.case)):
        members.assert_equal(mine, other, kind)


# Folders of heads that are not causal are written and read in `test_there_and_back`. Where a class
# is never causal, one head shows that all are refused.
EVERY_FOLDER: list[tuple[str, tuple[str, ...], bool]] = []
for name, member in MEMBERS.items():
    EVERY_FOLDER += [(name, (), False), (name, (), True)]
    causal = list(dict.fromkeys(member.heads.values()))
    if not member.is_ever_causal:
        causal = causal[-1:]
    EVERY_FOLDER += [(name, kinds, True) for kinds in causal]


def our_folder(name: str, kinds: tuple[str, ...], is_causal: bool, folder: Path) -> Pair:
    """Our encoder and heads, with random weights everywhere, saved; theirs is nothing yet."""
    case = case_of(name)
    family = family_of(name)
    values = members.their_config(case).to_dict()
    config = dataclasses.replace(family.from_hf_config(values), is_causal=is_causal)
    encoder = Encoder(config).eval().requires_grad_(False)
    heads = {kind: family.head(kind, encoder, num_labels=3).eval() for kind in kinds}
    members.randomise(nn.ModuleList([encoder, *heads.values()]))
    extra = {"num_labels": 3 if {"classification", "tags"} & set(kinds) else 2}
    if "sep_token_id" in case.settings:
        extra["sep_token_id"] = members.SEPARATOR
    save_encoder_folder(folder, encoder, heads=heads, tokenizer_files={}, extra_config=extra)
    return Pair(case, None, encoder, heads)


@pytest.mark.parametrize(("name", "kinds", "is_causal"), EVERY_FOLDER)
def test_elsewhere_a_folder_says_the_same_or_is_refused(
    name: str, kinds: tuple[str, ...], is_causal: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    """Theirs pools the first token, which has seen nothing under a causal mask."""
    folder = tmp_path / "ours"
    pair = our_folder(name, kinds, is_causal, folder)
    (architecture,) = read_config_dict(folder)["architectures"]
    batch = members.make_batch(pair.case)
    own = members.our_outputs(pair, batch)
    if is_causal and (not pair.case.member.is_ever_causal or POOLED & set(kinds)):
        with pytest.raises(ValueError, match=f"clozelab_{name}"):
            transformers.AutoModel.from_pretrained(folder)
        assert architecture.startswith(f"Clozelab{pair.case.member.title}")
        assert not hasattr(transformers, architecture)
        # Loading it by a class of theirs all the same gives a warning.
        warnings: list[str] = []
        logger = transformers.configuration_utils.logger
        monkeypatch.setattr(logger, "warning", lambda text, *_: warnings.append(text))
        getattr(transformers, f"{pair.case.member.title}Model").from_pretrained(folder)
        assert any(f"model of type `clozelab_{name}`" in text for text in warnings)
    else:
        assert transformers.AutoConfig.from_pretrained(folder).architectures == [architecture]
        theirs, info = getattr(transformers, architecture).from_pretrained(
            folder, output_loading_info=True, attn_implementation="eager"
        )
        assert not info["missing_keys"] and not info["mismatched_keys"]
        pair.theirs = theirs.eval()
        for kind, mine, other in members.both_outputs(pair, batch):
            members.assert_equal(mine, other, kind)
    again = load_encoder(folder).eval()
    read = Pair(pair.case, None, again, members.read_heads(again, folder, kinds))
    for mine, before in zip(members.our_outputs(read, batch), own, strict=True):
        assert torch.equal(mine, before)


def test_a_causal_mask_and_the_last_token_make_a_difference(tmp_path: Path) -> None:
    """The comparison above could not pass with the other mask, nor with the other token."""
    pair = our_folder("bert", ("classification",), True, tmp_path)
    batch = members.make_batch(pair.case)
    other = Encoder(dataclasses.replace(pair.encoder.config, is_causal=False)).eval()
    other.load_state_dict(pair.encoder.state_dict())
    states = [encoder(**batch.ours).sequence_output for encoder in (pair.encoder, other)]
    assert (states[0] - states[1]).abs().max() > 1e-2
    layout = batch.ours["layout"]
    pooled = [encoder.pool(states[0], layout) for encoder in (pair.encoder, other)]
    head = pair.heads["classification"]
    assert (head(pooled[0]) - head(pooled[1])).abs().max() > 1e-2


def test_a_bilstm_that_theirs_would_leave_out_is_refused(tmp_path: Path) -> None:
    """The output layer behind it fits their class, which has no BiLSTM."""
    encoder = our_folder("bert", (), False, tmp_path / "ours").encoder
    head = family_for(encoder.config).head("tags", encoder, num_labels=2, input_size=32)
    heads = {"tags": head, "bilstm": BiLSTM(32, 16, 1, 0.0)}
    for name, kept in (("with", heads), ("without", {"tags": head})):
        save_encoder_folder(
            tmp_path / name, encoder, heads=kept, tokenizer_files={}, extra_config={}
        )
    transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "without")
    with pytest.raises(ValueError, match="clozelab_bert"):
        transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "with")
    assert load_encoder(tmp_path / "with").config == encoder.config
