"""XLNet equals transformers' classes at 1e-5, by one stream and by two, from its texts on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.numerics import members
from tests.numerics.members import case_of
from tests.objectives.conftest import ids, shards  # noqa: F401  (fixtures)
from torch import Tensor

from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.instances import SegmentPairs
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, Tokenizer, WordPieceTokenizer
from clozelab.models.encoder import Encoder
from clozelab.models.registry import family_of
from clozelab.modules.model import read_model
from clozelab.objectives.objective import Objective, build_models, to_torch
from clozelab.objectives.permuted import PermutedLanguageModel

transformers = pytest.importorskip("transformers")

CASE = case_of("xlnet")
SIZES = CASE.settings


@pytest.mark.parametrize("side", ["left", "right"])
def test_every_layer_on_either_side_of_padding(side: str, tmp_path: Path) -> None:
    pair = members.build_pair(CASE, "Model", tmp_path)
    encoder = pair.encoder.requires_grad_(False)
    batch = members.make_batch(CASE, side=side)
    theirs = pair.theirs(**batch.theirs, output_hidden_states=True)
    ours = encoder(**batch.ours, output_hidden_states=True)
    members.assert_states_equal(ours, theirs, batch)
    # Where [CLS] stands, and in which segment, makes a difference; so does each kind of score.
    expected = ours.sequence_output
    positions: Any = encoder.embeddings.position_embeddings
    changes: list[Callable[[], Any]] = [
        lambda: setattr(positions, "is_causal", True),
        lambda: batch.ours["token_type_ids"].zero_(),
        lambda: positions.table.copy_(positions.table.flip(0)),
    ]
    for name in ("r_w_bias", "r_r_bias", "r_s_bias"):
        bias: Any = getattr(encoder.layer[0].attention, name)
        changes.append(lambda bias=bias: bias.data.zero_())
    for change in changes:
        change()
        wrong = encoder(**batch.ours).sequence_output
        assert (wrong - expected).abs().max() > 20 * members.TOLERANCE
        expected = wrong


def test_what_is_no_xlnet_is_refused_or_has_a_type_of_its_own() -> None:
    family = family_of("xlnet")
    with pytest.raises(ValueError, match="XLNetForQuestionAnswering; supported: XLNetForMult"):
        family.kinds("XLNetForQuestionAnswering")
    config = family.from_hf_config(SIZES)
    for change in ({"num_directions": 2}, {"model_type": "bert"}):
        with pytest.raises(ValueError, match="SegmentedDistances, SegmentedPostNorm and Full"):
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
) -> None:
    """Queries start from `mask_emb`, and see neither themselves nor what follows in the order."""
    monkeypatch.setattr("clozelab.models.attention._default_kernel", lambda _: kernel)
    pair = members.build_pair(CASE, "LMHeadModel", tmp_path)
    model, encoder, heads = pair.theirs, pair.encoder, pair.heads
    token = PermutedLanguageModel(**MASKING, sees_every_position=False)
    objective = Objective(input=SegmentPairs(0.5, "corpus"), token=token, pair=None)
    instances = objective.input.bind(shards, ids, WIDTH)
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
    members.assert_equal(logits, theirs.logits[is_asked], "logits")
    loss = term.loss_sum / term.count
    members.assert_equal(loss, theirs.loss, "loss")
    loss.backward()
    theirs.loss.backward()
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
        assert distance.abs().max() > 100 * members.TOLERANCE
    assert model.transformer.mask_emb.grad.abs().min() > 0
    pair.assert_gradients_equal(tmp_path)


# Texts

TYPES_NEEDED = r"tokenizer\.json: a template that ends with \[CLS\] needs token types 0, 1 and 2"


@pytest.fixture
def tokenizer() -> Tokenizer:
    words = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(members.VOCAB - 5)]
    plain = WordPieceTokenizer([*SPECIAL_TOKENS, *words], lowercase=True)
    assert not plain.cls_is_last
    return plain.ending_with_cls()


@pytest.fixture
def folder(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """A language model with the files of that tokenizer."""
    members.build_theirs(CASE, "LMHeadModel", tmp_path / "xlnet")
    return put_files(tmp_path / "xlnet", tokenizer)


def put_files(folder: Path, tokenizer: Tokenizer) -> Path:
    for name, content in tokenizer.files().items():
        (folder / name).write_bytes(content)
    return folder


def unigram_files(folder: Path, **options: Any) -> None:
    """What transformers writes of an XLNet's own tokenizer."""
    pieces = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    pieces += ["▁", *(f"▁w{chr(97 + i)}" for i in range(26)), *(chr(97 + i) for i in range(26))]
    pieces += [f"[{i}]" for i in range(members.VOCAB - len(pieces))]
    vocabulary = [(piece, -1.0 - 0.01 * number) for number, piece in enumerate(pieces)]
    transformers.XLNetTokenizer(vocab=vocabulary, **options).save_pretrained(folder)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_a_classifier_reads_texts_as_transformers_does(
    kind: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """One text and two, alone and padded; a folder that we have written says the same again."""
    import clozelab

    pad = 0 if kind == "wordpiece" else 5
    case = CASE.having(pad_token_id=pad)
    model = members.build_theirs(case, "ForSequenceClassification", tmp_path / "theirs")
    if kind == "unigram":
        names = ["input_ids", "token_type_ids", "attention_mask"]
        unigram_files(tmp_path / "theirs", model_input_names=names)
    else:
        put_files(tmp_path / "theirs", tokenizer)
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
    tmp_path: Path, caplog: pytest.LogCaptureFixture
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
    with pytest.raises(ValueError, match=TYPES_NEEDED):
        tokenizer.with_token_types("one")


def test_what_a_folder_cannot_do_is_refused(folder: Path, tmp_path: Path, capsys: Any) -> None:
    import clozelab

    predictor = clozelab.load(str(folder), device="cpu")
    assert predictor.embed(["waa wab"]).shape == (1, 32)
    for act in (predictor.fill_mask, predictor.score):
        with pytest.raises(ValueError, match="an XLNet predicts tokens from queries, not from ma"):
            act(["waa [MASK]"])
    refused = {
        "format=onnx": "xlnet: scores of distances (DeBERTa, XLNet) are not exported to ONNX",
        "format=sentence_transformers pooling=cls": "an XLNet's text ends with [CLS]; choose mean",
    }
    for words, reason in refused.items():
        assert clozelab_export(folder, tmp_path / "no", *words.split()) == 1
        assert reason in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("file", "before", "after", "reason"),
    [
        ("tokenizer_config.json", b'"token_type_ids",', b"", TYPES_NEEDED),
        (
            "tokenizer.json",
            b'"type_id": 2',
            b'"type_id": 0',
            r"its template makes '\[UNK\] \[SEP\]",
        ),
    ],
)
def test_texts_without_types_are_refused(
    folder: Path, file: str, before: bytes, after: bytes, reason: str
) -> None:
    content = (folder / file).read_bytes()
    assert before in content
    (folder / file).write_bytes(content.replace(before, after))
    with pytest.raises(ValueError, match=reason):
        read_model(folder)


def test_texts_that_begin_with_cls_are_refused(tokenizer: Tokenizer, folder: Path) -> None:
    put_files(folder, WordPieceTokenizer(tokenizer.vocabulary, lowercase=True))
    with pytest.raises(ValueError, match=r"does not put \[CLS\] where XLNet reads it"):
        read_model(folder)
