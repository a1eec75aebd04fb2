"""XLNet equals transformers' classes at 1e-5, by one stream and by two: states, outputs, losses,
gradients; and its texts are those of its tokenizers, whose [CLS] stands at the end.

All parameters are random with a deviation of 0.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.objectives.conftest import ids, shards  # noqa: F401  (fixtures)
from tests.screens import Screens
from torch import Tensor, nn

from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.instances import SegmentPairs
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, Tokenizer, WordPieceTokenizer
from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder, load_head, read_config, save_encoder_folder
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for, family_of
from clozelab.modules.model import read_model
from clozelab.objectives.objective import Objective, build_models, to_torch
from clozelab.objectives.permuted import PermutedLanguageModel

transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
VOCAB = 64
LENGTHS = [1, 2, 7, 4, 5, 9, 29, 3]
CLASSES = {
    "LMHeadModel": "lm",
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tags",
    "ForQuestionAnsweringSimple": "spans",
    "ForMultipleChoice": "choices",
}
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "n_head": 2,
    "n_layer": 4,
    "d_inner": 24,
    "dropout": 0.0,
    "summary_last_dropout": 0.0,
    "pad_token_id": 0,
    "num_labels": 3,
}


def xlnet(suffix: str, folder: Path, **changes: Any) -> Any:
    if suffix == "ForQuestionAnsweringSimple":
        changes |= {"num_labels": 2}
    config = transformers.XLNetConfig(**SIZES | changes)
    model = getattr(transformers, f"XLNet{suffix}")(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    model.save_pretrained(folder)
    return model


def texts(has_pairs: bool) -> list[tuple[Tensor, Tensor]]:
    """Ids and types of each text in our order, which [CLS] begins."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for length in LENGTHS:
        types = (torch.arange(length) > length // 2).long() * int(has_pairs)
        rows.append((torch.randint(1, VOCAB, (length,), generator=generator), types))
    return rows


def our_batch(has_pairs: bool, kind: str) -> tuple[dict[str, Any], Tensor]:
    """A stream, and its rows that hold tokens."""
    rows = texts(has_pairs)
    width = max(LENGTHS) if kind == "rectangle" else 0
    padded = []
    for row in rows:
        slots = max(width, len(row[0]))
        empty = (0, slots - len(row[0]))
        padded.append([nn.functional.pad(values, empty) for values in row] + [torch.arange(slots)])
    names = ("input_ids", "token_type_ids", "position_ids")
    stream = {
        name: torch.cat(parts) for name, parts in zip(names, zip(*padded, strict=True), strict=True)
    }
    if kind == "ragged":
        return {**stream, "layout": Layout.ragged(LENGTHS)}, torch.arange(sum(LENGTHS))
    is_real = torch.arange(width) < torch.tensor(LENGTHS)[:, None]
    layout = Layout.rectangle(LENGTHS, width)
    return {**stream, "layout": layout}, is_real.flatten().nonzero()[:, 0]


def their_batch(has_pairs: bool, side: str) -> dict[str, Tensor]:
    """[CLS] stands at the end with type 2, padding on one side with type 3."""
    width = max(LENGTHS)
    batch = {name: torch.zeros(len(LENGTHS), width, dtype=torch.int64) for name in ("a", "b", "c")}
    input_ids, types, mask = batch.values()
    types += 3
    for number, (ids_of_text, types_of_text) in enumerate(texts(has_pairs)):
        length = len(ids_of_text)
        start = width - length if side == "left" else 0
        place = (number, slice(start, start + length))
        input_ids[place] = ids_of_text.roll(-1)
        types[place] = torch.cat([types_of_text[1:], torch.tensor([2])])
        mask[place] = 1
    return {"input_ids": input_ids, "token_type_ids": types, "attention_mask": mask}


def in_our_order(theirs: Tensor, mask: Tensor) -> Tensor:
    """Rows [B, S, ...] of real tokens, each text's last one first."""
    rows = [row[is_real].roll(1, 0) for row, is_real in zip(theirs, mask.bool(), strict=True)]
    return torch.cat(rows)


def assert_equal(ours: Tensor, expected: Tensor, name: str) -> None:
    assert ours.shape == expected.shape, name
    distance = float((ours - expected).detach().abs().max())
    assert distance <= TOLERANCE, f"{name}: {distance:.2e}"


def assert_gradients_equal(model: Any, gradients: dict[str, Tensor], is_base: bool = False) -> None:
    for name, parameter in model.named_parameters():
        stored = f"transformer.{name}" if is_base else name
        expected = parameter.grad
        if expected is None:
            expected = torch.zeros_like(parameter)
        assert_equal(gradients[stored], expected, f"gradient of {name}")


def read_back(folder: Path, suffix: str) -> tuple[Encoder, dict[str, nn.Module]]:
    encoder = load_encoder(folder).eval()
    heads = {}
    if suffix != "Model":
        kind = CLASSES[suffix]
        heads[kind] = family_for(encoder.config).head(kind, encoder, num_labels=3).eval()
        load_head(folder, kind, heads[kind])
    return encoder, heads


def outputs(encoder: Encoder, heads: Any, batch: dict[str, Any], rows: Tensor) -> Tensor:
    states = encoder(**batch).sequence_output
    for kind, head in heads.items():
        if kind in ("classification", "choices"):
            return head(encoder.pool(states, batch["layout"], head))
        return head(states)[rows]
    return states[rows]


def their_outputs(model: Any, batch: dict[str, Tensor]) -> Tensor:
    name = type(model).__name__
    if name == "XLNetForMultipleChoice":
        return model(**{key: value[None] for key, value in batch.items()}).logits.T
    result = model(**batch)
    if name == "XLNetForSequenceClassification":
        return result.logits
    values = result[0]
    if name == "XLNetForQuestionAnsweringSimple":
        values = torch.stack([result.start_logits, result.end_logits], dim=-1)
    return in_our_order(values, batch["attention_mask"])


@pytest.mark.parametrize("kind", ["ragged", "rectangle"])
@pytest.mark.parametrize("has_pairs", [True, False])
@pytest.mark.parametrize("suffix", ["Model", *CLASSES])
def test_there_and_back(
    suffix: str, has_pairs: bool, kind: str, tmp_path: Path, hf_gradients: Any
) -> None:
    """Outputs and gradients; and what we write loads in its class with no other tensor."""
    model = xlnet(suffix, tmp_path / "theirs")
    encoder, heads = read_back(tmp_path / "theirs", suffix)
    batch, rows = our_batch(has_pairs, kind)
    ours = outputs(encoder, heads, batch, rows)
    theirs = their_outputs(model, their_batch(has_pairs, "left"))
    assert_equal(ours, theirs, suffix)
    ours.square().mean().backward()
    theirs.square().mean().backward()
    assert_gradients_equal(model, hf_gradients(encoder, heads), suffix == "Model")
    extra = {"num_labels": model.config.num_labels}
    save_encoder_folder(
        tmp_path / "ours", encoder, heads=heads, tokenizer_files={}, extra_config=extra
    )
    loaded, info = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.config.architectures == [type(model).__name__]
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert read_config(tmp_path / "ours") == encoder.config
    assert family_for(encoder.config).kinds(type(model).__name__) == set(heads)


@pytest.mark.parametrize("side", ["left", "right"])
def test_every_layer_on_either_side_of_padding(side: str, tmp_path: Path) -> None:
    model = xlnet("Model", tmp_path)
    batch, rows = our_batch(True, "ragged")
    padded = their_batch(True, side)
    theirs = model(**padded, output_hidden_states=True)
    encoder = load_encoder(tmp_path).eval()
    ours = encoder(**batch, output_hidden_states=True)
    assert len(ours.hidden_states) == 5
    for number, (mine, other) in enumerate(
        zip(ours.hidden_states, theirs.hidden_states, strict=True)
    ):
        expected = in_our_order(other, padded["attention_mask"])
        assert_equal(mine[rows], expected, f"hidden state {number}")
    # Where [CLS] stands, and in which segment, makes a difference; so does each kind of score.
    expected = ours.sequence_output
    positions: Any = encoder.embeddings.position_embeddings
    changes: list[Callable[[], Any]] = [
        lambda: setattr(positions, "tells_length", False),
        lambda: batch["token_type_ids"].zero_(),
        lambda: positions.table.copy_(positions.table.flip(0)),
    ]
    for name in ("r_w_bias", "r_r_bias", "r_s_bias"):
        bias: Any = getattr(encoder.layer[0].attention, name)
        changes.append(lambda bias=bias: bias.data.zero_())
    for change in changes:
        change()
        wrong = encoder(**batch).sequence_output
        assert (wrong - expected).abs().max() > 20 * TOLERANCE
        expected = wrong


def test_what_cannot_be_read(tmp_path: Path, screen: Screens) -> None:
    family = family_of("xlnet")
    with screen.refuses(ValueError):
        family.kinds("XLNetForQuestionAnswering")
    values = transformers.XLNetConfig(**SIZES).to_dict()
    assert family.from_hf_config(values).max_position_embeddings == 512
    for change in (
        {"attn_type": "uni"},
        {"bi_data": True},
        {"clamp_len": 8},
        {"summary_type": "first"},
        {"d_head": 8},
    ):
        with screen.refuses(ValueError):
            family.from_hf_config(values | change)
    config = family.from_hf_config(values)
    for change in ({"num_directions": 2}, {"model_type": "bert"}):
        with screen.refuses(ValueError):
            Encoder(replace(config, **change))
    # What theirs would compute otherwise has a type of ours, and is read back.
    assert family.to_hf_config(config)["model_type"] == "xlnet"
    for change in (
        {"is_causal": True},
        {"attention_probs_dropout_prob": 0.1},
        {"embedding_size": 8},
        {"use_bias": False},
    ):
        other = replace(config, **change)
        written = family.to_hf_config(other)
        assert written["model_type"] == "clozelab_xlnet"
        assert family.from_hf_config(written) == other


MASKING = {
    "predict_prob": 0.25,
    "mask_fraction": 0.8,
    "random_fraction": 0.1,
    "same_fraction": 0.1,
    "weight": 1.0,
}
WIDTH = 40


def their_streams(packed: Any, batch: Any) -> dict[str, Tensor]:
    """The two streams of transformers, of one of ours: what may not be seen, and what is asked."""
    count = packed.num_instances
    width = packed.width
    order = torch.zeros(count, width, dtype=torch.int64)  # our slot at each place of theirs
    is_real = torch.zeros(count, width, dtype=torch.int64)
    for number, length in enumerate(packed.lengths):
        order[number, :length] = torch.arange(length).roll(-1)
        is_real[number, :length] = 1
    place = order.argsort(1)
    queries = batch["prediction_positions"]
    owner = queries // batch["layout"].row_slots
    most = int(owner.bincount().max())
    visible = batch["layout"].visibility
    slots = batch["position_ids"][queries]
    perm_mask = torch.zeros(count, width, width)
    target_mapping = torch.zeros(count, most, width)
    labels = torch.full((count, most), -100)
    for number, length in enumerate(packed.lengths):
        own = order[number, :length]
        seen = visible[number][own][:, own]
        # A token that is predicted sees what its query does; itself it sees anyway.
        mine = owner == number
        for index, (query, slot) in enumerate(zip(queries[mine], slots[mine], strict=True)):
            row = visible[number][query % visible.shape[1]][own]
            target = int((own == slot).nonzero())
            seen[target] = row
            target_mapping[number, index, target] = 1.0
            labels[number, index] = batch["prediction_labels"][mine][index]
        perm_mask[number, :length, :length] = (~seen).float()
    in_rows = [
        torch.from_numpy(values.reshape(count, width)).long()
        for values in (packed.input_ids, packed.token_type_ids)
    ]
    input_ids, types = (values.gather(1, order) for values in in_rows)
    types[torch.arange(count), torch.tensor(packed.lengths) - 1] = 2
    assert place.shape == order.shape
    return {
        "input_ids": input_ids,
        "token_type_ids": types,
        "attention_mask": is_real.float(),
        "perm_mask": perm_mask,
        "target_mapping": target_mapping,
        "labels": labels,
    }


@pytest.mark.parametrize("kernel", ["bmm", "sdpa"])
def test_two_streams(
    kernel: str,
    shards: Any,  # noqa: F811
    ids: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: Any,
    hf_gradients: Any,
) -> None:
    """Queries start from `mask_emb`, whatever stands there, and see neither themselves nor what
    follows in the order.
    """
    monkeypatch.setattr("clozelab.models.attention._usual_kernel", lambda _: kernel)
    model = xlnet("LMHeadModel", tmp_path)
    encoder, heads = read_back(tmp_path, "LMHeadModel")
    token = PermutedLanguageModel(**MASKING, sees_every_position=False)
    objective = Objective(input=SegmentPairs(0.5, "corpus"), token=token, pair=None)
    instances = objective.bind(shards, ids, WIDTH)
    index = np.arange(8)
    packed = instances.pack(1, 0, index)
    assert min(packed.lengths) < WIDTH == max(packed.lengths)
    batch = to_torch(objective.arrays(instances, 1, 0, index))
    models = build_models(encoder, [objective])
    models["encoder"].heads["lm"] = heads["lm"]
    theirs = model(**their_streams(packed, batch))
    (term,) = objective.terms(models, batch)
    states = models["encoder"].states(batch["input_ids"], batch).sequence_output
    is_asked = their_streams(packed, batch)["labels"] >= 0
    logits = heads["lm"](states[batch["prediction_positions"]])
    assert_equal(logits, theirs.logits[is_asked], "logits")
    loss = term.loss_sum / term.count
    assert_equal(loss, theirs.loss, "loss")
    loss.backward()
    theirs.loss.backward()
    gradients = hf_gradients(encoder, heads)
    assert gradients["transformer.mask_emb"].abs().min() > 0
    assert_gradients_equal(model, gradients)
    # Queries that start from their words, or that see the next token of the order, are others.
    visible = batch["layout"].visibility
    row_slots = batch["layout"].row_slots
    queries = batch["prediction_positions"]
    for is_started in (False, True):
        wrong = visible.clone()
        if is_started:
            text = batch["position_ids"][queries]
            wrong[queries // row_slots, queries % row_slots, text] = True
        else:
            wrong[queries // row_slots, queries % row_slots, queries % row_slots] = True
        layout = replace(batch["layout"], visibility=wrong, _cache={})
        states = encoder.read({**batch, "layout": layout}).sequence_output
        distance = heads["lm"](states[queries]) - logits
        assert distance.abs().max() > 100 * TOLERANCE


# Texts


@pytest.fixture
def tokenizer() -> Tokenizer:
    words = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(VOCAB - 5)]
    plain = WordPieceTokenizer([*SPECIAL_TOKENS, *words], lowercase=True)
    assert not plain.cls_is_last
    return plain.ending_with_cls()


def unigram_files(folder: Path, **options: Any) -> None:
    """What transformers writes of an XLNet's own tokenizer."""
    pieces = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    pieces += ["▁", *(f"▁w{chr(97 + i)}" for i in range(26)), *(chr(97 + i) for i in range(26))]
    pieces += [f"[{i}]" for i in range(VOCAB - len(pieces))]
    vocabulary = [(piece, -1.0 - 0.01 * number) for number, piece in enumerate(pieces)]
    transformers.XLNetTokenizer(vocab=vocabulary, **options).save_pretrained(folder)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_a_classifier_reads_texts_as_transformers_does(
    kind: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """One text and two, alone and padded: by AutoTokenizer and its class, and by `clozelab.load`;
    a folder that we have written says the same again.
    """
    import clozelab

    pad = 0 if kind == "wordpiece" else 5
    model = xlnet("ForSequenceClassification", tmp_path / "theirs", pad_token_id=pad)
    if kind == "unigram":
        names = ["input_ids", "token_type_ids", "attention_mask"]
        unigram_files(tmp_path / "theirs", model_input_names=names)
    else:
        for name, content in tokenizer.files().items():
            (tmp_path / "theirs" / name).write_bytes(content)
    examples = [("waa wab wac", "wad wae"), ("wba", "wbb wbc wbd wbe wbf"), ("wab", "wbz")]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    read = read_tokenizer(tmp_path / "theirs")
    assert read.cls_is_last and read.ending_with_cls() is read
    import_folder = tmp_path / "theirs"
    for _ in range(2):
        predictor = clozelab.load(str(import_folder), device="cpu", precision="32-true")
        for texts_of_kind in (examples, [first for first, _ in examples]):
            if texts_of_kind is examples:
                encoded = theirs([a for a, _ in examples], [b for _, b in examples], padding=True)
            else:
                encoded = theirs(texts_of_kind, padding=True)
            assert [row[-1] for row in encoded["token_type_ids"]] == [2, 2, 2]
            batch = {name: torch.tensor(values) for name, values in encoded.items()}
            with torch.no_grad():
                expected = model(**batch).logits.softmax(1)
            answers = predictor.classify(texts_of_kind)
            for answer, row in zip(answers, expected, strict=True):
                actual = [answer.probabilities[f"LABEL_{index}"] for index in range(3)]
                assert actual == pytest.approx(row.tolist(), abs=1e-5)
        assert clozelab_export(import_folder, tmp_path / "ours") == 0
        import_folder = tmp_path / "ours"
        theirs = transformers.AutoTokenizer.from_pretrained(import_folder)
        model = type(model).from_pretrained(import_folder).eval()


def clozelab_export(source: Path, target: Path, *words: str) -> int | None:
    from clozelab.cli import main

    if target.exists():
        return 0
    return main(["export", str(source), f"to={target}", *words])


def test_types_that_transformers_leaves_out_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, screen: Screens
) -> None:
    """The template says them. Without a word of the configuration the roles are the usual ones."""
    unigram_files(tmp_path)
    tokenizer = read_tokenizer(tmp_path)
    assert "transformers 5 leaves them out" in caplog.text
    for _ in range(2):
        assert tokenizer.special_tokens == ("<pad>", "<unk>", "<cls>", "<sep>", "<mask>")
        assert [tokenizer.vocabulary[i] for i in (tokenizer.cls_id, tokenizer.sep_id)] == [
            "<cls>",
            "<sep>",
        ]
        (tmp_path / "tokenizer_config.json").unlink(missing_ok=True)
        tokenizer = read_tokenizer(tmp_path)
    with screen.refuses(ValueError):
        tokenizer.with_token_types("one")


def test_what_a_folder_cannot_do_is_said(
    tokenizer: Tokenizer, tmp_path: Path, capsys: Any, screen: Screens
) -> None:
    import clozelab

    xlnet("LMHeadModel", tmp_path / "xlnet")
    files = tokenizer.files()
    for name, content in files.items():
        (tmp_path / "xlnet" / name).write_bytes(content)
    predictor = clozelab.load(str(tmp_path / "xlnet"), device="cpu")
    assert predictor.embed(["waa wab"]).shape == (1, 32)
    for act in (predictor.fill_mask, predictor.score):
        with screen.refuses(ValueError):
            act(["waa [MASK]"])
    for words in ("format=onnx", "format=sentence_transformers pooling=cls"):
        assert clozelab_export(tmp_path / "xlnet", tmp_path / "no", *words.split()) == 1
        screen(capsys.readouterr().err.splitlines()[-1])
    # Texts that begin with [CLS], or have no types.
    config = files["tokenizer_config.json"].replace(b'"token_type_ids",', b"")
    (tmp_path / "xlnet" / "tokenizer_config.json").write_bytes(config)
    with screen.refuses(ValueError):
        read_model(tmp_path / "xlnet")
    (tmp_path / "xlnet" / "tokenizer_config.json").write_bytes(files["tokenizer_config.json"])
    rules = files["tokenizer.json"].replace(b'"type_id": 2', b'"type_id": 0')
    (tmp_path / "xlnet" / "tokenizer.json").write_bytes(rules)
    with screen.refuses(ValueError):
        read_model(tmp_path / "xlnet")
    for name, content in WordPieceTokenizer(tokenizer.vocabulary, lowercase=True).files().items():
        (tmp_path / "xlnet" / name).write_bytes(content)
    with screen.refuses(ValueError):
        read_model(tmp_path / "xlnet")
