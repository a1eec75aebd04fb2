"""The table of the family's members, and one harness that sets each beside transformers' classes.

A case is a member, changes of its configuration and the lengths of its texts. `Pair` is a model of
transformers with random weights everywhere, saved in a folder, and our encoder and heads of that
folder. `Batch` is the same texts as their padded batch and as our stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, Tokenizer, WordPieceTokenizer
from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder, load_head, to_hf_tensors
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for, family_of
from clozelab.models.trained import train_what_is_read

TOLERANCE = 1e-5
VOCAB = 64
SEPARATOR = 3
FIRST_WORD = len(SPECIAL_TOKENS)
# One, two, odd, and a window's radius, a window, and one more of each.
LENGTHS = (1, 2, 7, 4, 5, 8, 9, 29, 3)
POOLED = {"nsp", "sop", "classification", "choices"}
"""Heads on a text, the others are on tokens."""

TASKS: dict[str, tuple[str, ...]] = {
    "ForSequenceClassification": ("classification",),
    "ForTokenClassification": ("tags",),
    "ForQuestionAnswering": ("spans",),
}
WITH_CHOICES = {**TASKS, "ForMultipleChoice": ("choices",)}
MASKED = {"ForMaskedLM": ("lm",)}
# In BERT's spelling; a member may have another.
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_labels": 3,
    "attn_implementation": "eager",
}
SHAPES: dict[str, dict[str, Any]] = {
    "head dim 5": {"hidden_size": 20, "num_attention_heads": 4, "intermediate_size": 33},
    "one head, relu": {
        "hidden_size": 48,
        "num_attention_heads": 1,
        "hidden_act": "relu",
        "layer_norm_eps": 1e-5,
    },
    "tanh gelu": {"hidden_act": "gelu_new"},
}


@dataclass(frozen=True)
class Member:
    """A member of the family, and what sets its class apart from BERT's."""

    model_type: str
    heads: Mapping[str, tuple[str, ...]]
    """Suffix of a class of transformers -> our heads."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    spelling: Mapping[str, str | None] = field(default_factory=dict)
    """BERT's name of a setting -> the member's, None where it has no such setting."""
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pooling: str = "pooler"
    """What AutoModel's text is: the "pooler"'s output, the "first" token, or "none"."""
    is_ever_causal: bool = False
    """Whether transformers' class has a causal mask."""
    lengths: Sequence[int] = LENGTHS
    blocks: Sequence[Sequence[int]] = ()
    """Lengths that its class reads in blocks, for which all texts of a batch are of one length."""

    @property
    def title(self) -> str:
        return family_of(self.model_type).class_name

    @property
    def is_typed(self) -> bool:
        return "type_vocab_size" in family_of(self.model_type).keys


OFFSET = {"pad_token_id": 1, "max_position_embeddings": 66}
DEBERTA = {
    "relative_attention": True,
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "type_vocab_size": 0,
    "pooler_hidden_act": "tanh",
}
MODERN = {"num_hidden_layers": 5, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MODERN |= {"local_attention": 8, "cls_token_id": 1, "sep_token_id": 2}
ELECTRA_HEADS = {"ForPreTraining": ("rtd",), **MASKED, **WITH_CHOICES}
BERT_HEADS = {"ForPreTraining": ("lm", "nsp"), **MASKED, **WITH_CHOICES}
DISTILBERT_SPELLING: dict[str, str | None] = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "type_vocab_size": None,
    "layer_norm_eps": None,
}
MODERN_SPELLING: dict[str, str | None] = {
    "hidden_act": "hidden_activation",
    "layer_norm_eps": "norm_eps",
    "hidden_dropout_prob": None,
    "attention_probs_dropout_prob": None,
}
XLNET_SPELLING: dict[str, str | None] = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "d_inner",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": None,
    "max_position_embeddings": None,
    "attn_implementation": None,
}
MEMBERS = {
    "bert": Member(
        "bert",
        BERT_HEADS,
        variants={
            **SHAPES,
            "three types": {"type_vocab_size": 3},
            "causal": {"is_decoder": True, "use_cache": False},
            "causal, head dim 5": {"is_decoder": True, "use_cache": False, **SHAPES["head dim 5"]},
        },
        is_ever_causal=True,
    ),
    "roberta": Member(
        "roberta",
        {**MASKED, **WITH_CHOICES},
        {"type_vocab_size": 1, **OFFSET},
        variants=SHAPES,
        is_ever_causal=True,
    ),
    "albert": Member(
        "albert",
        {"ForPreTraining": ("lm", "sop"), **MASKED, **WITH_CHOICES},
        {"embedding_size": 12, "num_hidden_groups": 2},
        variants=SHAPES,
    ),
    "electra": Member(
        "electra",
        ELECTRA_HEADS,
        {"embedding_size": 12},
        variants=SHAPES,
        pooling="first",
        is_ever_causal=True,
    ),
    "mpnet": Member("mpnet", {**MASKED, **WITH_CHOICES}, OFFSET, variants=SHAPES),
    "ernie": Member(
        "ernie",
        BERT_HEADS,
        {"use_task_id": True, "task_type_vocab_size": 3},
        variants={**SHAPES, "no tasks": {"use_task_id": False}},
        is_ever_causal=True,
    ),
    "distilbert": Member(
        "distilbert",
        {**MASKED, **WITH_CHOICES},
        {"type_vocab_size": 0, "layer_norm_eps": 1e-12},
        DISTILBERT_SPELLING,
        variants=SHAPES,
        pooling="first",
    ),
    "deberta-v2": Member(
        "deberta-v2",
        {**MASKED, **WITH_CHOICES},
        DEBERTA,
        variants={
            **SHAPES,
            "convolution": {"conv_kernel_size": 3, "conv_act": "gelu"},
            "wide convolution, positions, types": {
                "conv_kernel_size": 5,
                "position_biased_input": True,
                "type_vocab_size": 2,
            },
            "c2p": {"pos_att_type": ["c2p"]},
            "p2c": {"pos_att_type": ["p2c"]},
            "no buckets": {
                "position_buckets": -1,
                "max_relative_positions": 5,
                "norm_rel_ebd": "none",
            },
            "odd buckets": {"position_buckets": 7, "max_relative_positions": 20},
        },
        pooling="none",  # whose pooler is its heads'
        lengths=(9, 17, 1, 2, 48),  # far beyond the last bucket
    ),
    "modernbert": Member(
        "modernbert",
        {**MASKED, **WITH_CHOICES},
        MODERN,
        MODERN_SPELLING,
        variants={
            "mean": {"classifier_pooling": "mean"},
            "biases": {
                "norm_bias": True,
                "attention_bias": True,
                "mlp_bias": True,
                "classifier_bias": True,
            },
            "other pattern": {"global_attn_every_n_layers": 2, "hidden_act": "gelu_new"},
        },
        pooling="none",
    ),
    "ultrabert": Member(
        "ultrabert",
        {**MASKED, **TASKS},
        {"num_hidden_layers": 6, "sliding_window": 4},
        {"hidden_dropout_prob": None, "attention_probs_dropout_prob": None},
        variants={"mean": {"classifier_pooling": "mean"}},
        pooling="none",
    ),
    "xlnet": Member(
        "xlnet",
        {
            "LMHeadModel": ("lm",),
            "ForSequenceClassification": ("classification",),
            "ForTokenClassification": ("tags",),
            "ForQuestionAnsweringSimple": ("spans",),
            "ForMultipleChoice": ("choices",),
        },
        {"summary_last_dropout": 0.0, "pad_token_id": 0},
        XLNET_SPELLING,
        pooling="none",
    ),
    "longformer": Member(
        "longformer",
        {**MASKED, **WITH_CHOICES},
        {
            "attention_window": 8,
            "pad_token_id": 0,
            "type_vocab_size": 1,
            "sep_token_id": SEPARATOR,
            "max_position_embeddings": 90,
            "attn_implementation": None,
        },
        variants={"a window a layer": {"attention_window": [4, 8, 16, 32]}},
        # A window, several, and others between; each with a question or a choice.
        lengths=(29, 10, 7, 25, 8, 9, 16),
    ),
    "big_bird": Member(
        "big_bird",
        {**MASKED, **WITH_CHOICES},
        {
            # More than 27 tokens are read in blocks (21 with one random block).
            "block_size": 3,
            "num_random_blocks": 2,
            "max_position_embeddings": 90,
            "sep_token_id": SEPARATOR,
        },
        variants={"one random block": {"num_random_blocks": 1}},
        lengths=(16, 5, 20, 9),
        blocks=((27, 27), (28, 28), (29,), (45, 45), (80, 80)),
    ),
}


@dataclass(frozen=True)
class Case:
    """A member with changes of its configuration, and the lengths of the texts it reads."""

    member: Member
    changes: Mapping[str, Any]
    lengths: Sequence[int]

    @property
    def settings(self) -> dict[str, Any]:
        """In the spelling of the member's class."""
        values: dict[str, Any] = {}
        for key, value in {**SIZES, **self.member.settings, **self.changes}.items():
            spelling = self.member.spelling.get(key, key)
            if spelling is not None and value is not None:
                values[spelling] = value
        return values

    @property
    def is_causal(self) -> bool:
        return bool(self.changes.get("is_decoder"))

    @property
    def type_count(self) -> int:
        """Token types of a batch."""
        settings = {"type_vocab_size": 2, **self.member.settings, **self.changes}
        return settings["type_vocab_size"] if self.member.is_typed else 0

    @property
    def pad_id(self) -> int:
        return self.member.settings.get("pad_token_id", 0)

    @property
    def is_in_blocks(self) -> bool:
        return tuple(self.lengths) in {tuple(lengths) for lengths in self.member.blocks}

    def having(self, **changes: Any) -> Case:
        return replace(self, changes={**self.changes, **changes})


def case_of(name: str, variant: str = "", lengths: Sequence[int] = ()) -> Case:
    member = MEMBERS[name]
    changes = member.variants[variant] if variant else {}
    return Case(member, changes, lengths or member.lengths)


def every_case() -> dict[str, Case]:
    """Each member as it is, with each change, and with lengths that it reads in blocks."""
    cases = {}
    for name, member in MEMBERS.items():
        cases[name] = case_of(name)
        for variant in member.variants:
            cases[f"{name}, {variant}"] = case_of(name, variant)
        for lengths in member.blocks:
            cases[f"{name}, {lengths[0]} tokens"] = case_of(name, lengths=lengths)
            for variant in member.variants:
                case = case_of(name, variant, lengths)
                cases[f"{name}, {variant}, {lengths[0]} tokens"] = case
    cases["bert, equal lengths"] = case_of("bert", lengths=[12] * 4)
    cases["bert, one text"] = case_of("bert", lengths=[7])
    cases["bert, causal, equal lengths"] = case_of("bert", "causal", [12] * 4)
    cases["bert, causal, one text"] = case_of("bert", "causal", [7])
    cases["deberta-v2, one token"] = case_of("deberta-v2", lengths=[1, 1])
    cases["deberta-v2, two tokens"] = case_of("deberta-v2", lengths=[2, 2, 3])
    # Beyond the last bucket of distances, which is for 128 and more.
    far = case_of("mpnet", "tanh gelu", [1, 2, 7, 150, 33])
    cases["mpnet, far"] = far.having(max_position_embeddings=202)
    return cases


CASES = every_case()
# Whose class gives the loss of masked tokens; two streams are a file of their own.
WITH_LOSS = {
    name: case_of(name) for name, member in MEMBERS.items() if "ForMaskedLM" in member.heads
}


@dataclass
class Batch:
    """The same texts for both sides."""

    theirs: dict[str, Tensor]
    """Padded, [B, S] each."""
    is_real: Tensor
    """bool [B, S]: where their batch holds tokens."""
    ours: dict[str, Any]
    rows: Tensor
    """Of our stream, those that hold tokens."""
    cls_is_last: bool = False

    def real(self, values: Tensor) -> Tensor:
        """Rows of their [B, S, ...] that hold tokens, in our order."""
        values = values[:, : self.is_real.shape[1]]  # blocks are padded further
        if not self.cls_is_last:
            return values[self.is_real]
        pairs = zip(values, self.is_real, strict=True)
        return torch.cat([row[is_real].roll(1, 0) for row, is_real in pairs])


def texts_of(case: Case, with_padding_ids: bool = False) -> list[tuple[Tensor, Tensor]]:
    """Ids and types [S] of each text; each is a pair, with separators as of a question."""
    generator = torch.Generator().manual_seed(1)
    texts = []
    for length in case.lengths:
        ids = torch.randint(FIRST_WORD, VOCAB, (length,), generator=generator)
        if with_padding_ids:
            ids[1::3] = case.pad_id
        if length > 6:
            ids[[length // 2 - 1, length // 2]] = SEPARATOR
        ids[-1] = SEPARATOR
        types = (torch.arange(length) > length // 2).long()
        texts.append((ids, types * int(case.type_count != 1)))
    return texts


def make_batch(case: Case, kind: str = "ragged", side: str = "", **options: Any) -> Batch:
    """`kind` is our layout, "ragged" or "rectangle"; `side` is where they pad.

    An XLNet pads on the left: it pools the last slot.
    """
    texts = texts_of(case, **options)
    lengths = list(case.lengths)
    width = max(lengths)
    is_xlnet = case.member.model_type == "xlnet"
    is_left = side == "left" or (is_xlnet and not side)
    shape = (len(texts), width)
    straight = {"input_ids": torch.full(shape, case.pad_id)}
    straight["token_type_ids"] = torch.zeros(shape, dtype=torch.int64)
    straight["position_ids"] = torch.arange(width).expand(shape)
    theirs = {"input_ids": straight["input_ids"].clone()}
    theirs["token_type_ids"] = torch.full(shape, 3 if is_xlnet else 0)
    theirs["attention_mask"] = torch.zeros(shape, dtype=torch.int64)
    for number, (ids, types) in enumerate(texts):
        length = len(ids)
        straight["input_ids"][number, :length] = ids
        straight["token_type_ids"][number, :length] = types
        start = width - length if is_left else 0
        place = (number, slice(start, start + length))
        # XLNet's [CLS] stands at the end, in a segment of its own.
        theirs["input_ids"][place] = ids.roll(-1) if is_xlnet else ids
        own = torch.cat([types[1:], torch.tensor([2])]) if is_xlnet else types
        theirs["token_type_ids"][place] = own
        theirs["attention_mask"][place] = 1
    is_real = theirs["attention_mask"].bool()
    if not case.type_count and not is_xlnet:
        del theirs["token_type_ids"]
    begins = torch.arange(width) < torch.tensor(lengths)[:, None]
    ours: dict[str, Any] = {}
    if kind == "ragged":
        ours |= {name: values[begins] for name, values in straight.items()}
        rows = torch.arange(sum(lengths))
        ours["layout"] = Layout.ragged(lengths)
    else:
        ours |= {name: values.flatten() for name, values in straight.items()}
        rows = begins.flatten().nonzero().squeeze(1)
        ours["layout"] = Layout.rectangle(lengths, width)
    return Batch(theirs, is_real, ours, rows, is_xlnet)


def randomise(model: nn.Module) -> None:
    """Moves every parameter, biases and norms too, so that no identity hides a mistake."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.15)


def tokenizer_of(case: Case) -> Tokenizer:
    """Of whole words, with the padding and the separator where the configuration has them."""
    special = list(SPECIAL_TOKENS[1:])
    special.insert(case.pad_id, SPECIAL_TOKENS[0])
    # No number in a word of one letter: so each is one token.
    words = [f"Word{number}" for number in range(VOCAB - len(special))]
    tokenizer = WordPieceTokenizer([*special, *words], lowercase=False)
    return tokenizer.ending_with_cls() if case.member.model_type == "xlnet" else tokenizer


@dataclass
class Pair:
    """Their model, and our encoder and heads with the same weights."""

    case: Case
    theirs: Any
    encoder: Encoder
    heads: dict[str, nn.Module]

    @property
    def suffix(self) -> str:
        return type(self.theirs).__name__.removeprefix(self.case.member.title)

    def assert_gradients_equal(self, folder: Path) -> None:
        """Every tensor of their file has our gradient. The models are used up by it.

        Both are written as weights are, since names differ between their file and their class.
        """
        become_gradients(self.theirs)
        self.theirs.save_pretrained(folder / "gradients")
        expected = safetensors.torch.load_file(folder / "gradients" / "model.safetensors")
        become_gradients(nn.ModuleList([self.encoder, *self.heads.values()]))
        gradients = to_hf_tensors(self.encoder, self.heads)
        family = family_for(self.encoder.config)
        prefix = "" if hasattr(self.theirs, family.prefix.rstrip(".")) else family.prefix
        assert any(value.abs().max() > 100 * TOLERANCE for value in expected.values())
        for name, value in expected.items():
            mine = gradients[name] if name in gradients else gradients[prefix + name]
            assert_equal(mine, value, f"gradient of {name}")


def become_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        gradient = parameter.grad
        parameter.data = torch.zeros_like(parameter) if gradient is None else gradient


def their_config(case: Case, suffix: str = "Model") -> Any:
    import transformers

    has_two = suffix == "ForPreTraining" or suffix.startswith("ForQuestionAnswering")
    settings = case.settings | ({"num_labels": 2} if has_two else {})
    return getattr(transformers, f"{case.member.title}Config")(**settings)


def build_theirs(case: Case, suffix: str, folder: Path) -> Any:
    """Random everywhere, the same at each run, and saved."""
    import transformers

    torch.manual_seed(0)  # of what the class draws for itself
    model = getattr(transformers, case.member.title + suffix)(their_config(case, suffix)).eval()
    randomise(model)
    model.save_pretrained(folder)
    return model


def read_heads(encoder: Encoder, folder: Path, kinds: Sequence[str]) -> dict[str, nn.Module]:
    """The folder's heads of these kinds."""
    family = family_for(encoder.config)
    heads = {}
    for kind in kinds:
        heads[kind] = family.head(kind, encoder, num_labels=3).eval()
        load_head(folder, kind, heads[kind])
    # As the training modules do once the heads stand: global tokens are known by then.
    train_what_is_read(encoder, reads_pooler=True)
    return heads


def build_pair(case: Case, suffix: str, folder: Path) -> Pair:
    """Their model is saved in `folder`/theirs, and ours is of it."""
    theirs = build_theirs(case, suffix, folder / "theirs")
    encoder = load_encoder(folder / "theirs").eval()
    heads = read_heads(encoder, folder / "theirs", case.member.heads.get(suffix, ()))
    return Pair(case, theirs, encoder, heads)


def head_output(encoder: Encoder, kind: str, head: Any, states: Tensor, batch: Batch) -> Tensor:
    if kind in POOLED:
        return head(encoder.pool(states, batch.ours["layout"], head))
    return head(states[batch.rows])


def our_outputs(pair: Pair, batch: Batch) -> list[Tensor]:
    """Each head's, of texts or of real tokens; without heads the states."""
    states = pair.encoder(**batch.ours).sequence_output
    outputs = []
    for kind, head in pair.heads.items():
        outputs.append(head_output(pair.encoder, kind, head, states, batch))
    return outputs or [states[batch.rows]]


def their_outputs(pair: Pair, batch: Batch) -> list[Tensor]:
    suffix = pair.suffix
    if suffix == "ForMultipleChoice":
        choices = {name: value[None] for name, value in batch.theirs.items()}
        return [pair.theirs(**choices).logits.T]
    output = pair.theirs(**batch.theirs)
    if suffix == "Model":
        return [batch.real(output[0])]
    if suffix.startswith("ForQuestionAnswering"):
        ends = [batch.real(output.start_logits), batch.real(output.end_logits)]
        return [torch.stack(ends, dim=-1)]
    if "prediction_logits" in output:
        pooled = output["sop_logits" if "sop_logits" in output else "seq_relationship_logits"]
        return [batch.real(output.prediction_logits), pooled]
    if suffix == "ForSequenceClassification":
        return [output.logits]
    return [batch.real(output.logits)]


def both_outputs(pair: Pair, batch: Batch) -> list[tuple[str, Tensor, Tensor]]:
    """(head, ours, theirs) for each head."""
    ours = our_outputs(pair, batch)
    theirs = their_outputs(pair, batch)
    assert len(theirs) == len(pair.heads or [0])
    if (pair.case.member.model_type, pair.suffix) == ("big_bird", "ForQuestionAnswering"):
        # Theirs rules the question out, up to its separator; [CLS] stays.
        is_possible = theirs[0][:, 0] > -1e5
        assert 0 < int((~is_possible).sum()) <= len(is_possible) // 2
        ours, theirs = [ours[0][is_possible]], [theirs[0][is_possible]]
    return list(zip(pair.heads or ["states"], ours, theirs, strict=True))


def pooled_outputs(pair: Pair, ours: Tensor, output: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """What AutoModel makes of a text, and what we do of our states."""
    layout = batch.ours["layout"]
    if pair.case.member.pooling == "none":
        return ours[batch.rows], batch.real(output.last_hidden_state)
    mine = pair.encoder.pool(ours, layout)
    if pair.case.member.pooling == "first":
        return mine, output.last_hidden_state[:, 0]
    if pair.case.is_causal:  # theirs pools the first token, which has seen itself alone
        ends = batch.is_real.sum(1) - 1
        last = output.last_hidden_state[torch.arange(len(ends)), ends]
        return mine, pair.theirs.pooler(last[:, None])
    return mine, output.pooler_output


def assert_equal(ours: Tensor, expected: Tensor, name: str) -> None:
    assert ours.shape == expected.shape, f"{name}: {ours.shape} and {expected.shape}"
    distance = float((ours - expected).detach().abs().max())
    assert distance <= TOLERANCE, f"{name}: {distance:.2e}"


def assert_states_equal(ours: Any, theirs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """All hidden states; gives a sum of each side's, of which to take gradients."""
    assert len(ours.hidden_states) == len(theirs.hidden_states)
    losses = [torch.zeros(()), torch.zeros(())]
    pairs = zip(ours.hidden_states, theirs.hidden_states, strict=True)
    for number, (mine, other) in enumerate(pairs):
        mine, other = mine[batch.rows], batch.real(other)
        assert_equal(mine, other, f"hidden state {number}")
        weight = torch.randn(mine.shape, generator=torch.Generator().manual_seed(number))
        losses[0] = losses[0] + (mine * weight).mean()
        losses[1] = losses[1] + (other * weight).mean()
    return losses[0], losses[1]


def assert_loads_whole(model: Any, info: Mapping[str, Any], expected: Any) -> None:
    """transformers found each tensor of ours and no other, and their values are `expected`'s."""
    assert type(model) is type(expected)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    state = model.state_dict()
    assert state.keys() == expected.state_dict().keys()
    for name, value in expected.state_dict().items():
        assert torch.equal(state[name], value), name
