"""Whole models: what is read beside transformers' own classes, and what is refused."""

from __future__ import annotations

import json
import logging
import string

import pytest
import torch
from huggingface_hub import RepoFile
from huggingface_hub.errors import OfflineModeIsEnabled
from tests.composing import composed

import clozelab
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, MpnetTokenizer, WordPieceTokenizer
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder
from clozelab.models.folders import read_config_dict
from clozelab.models.heads import BiLSTM, FeatureMix
from clozelab.models.layout import Layout
from clozelab.models.locate import find_model
from clozelab.models.registry import family_for
from clozelab.modules.model import (
    log_max_positions,
    max_positions,
    open_tokenizer,
    read_model,
    renamed_labels,
    write_model,
)

TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *string.ascii_letters], lowercase=False)
SIZE = TOKENIZER.vocab_size


@pytest.fixture
def write(tmp_path, tiny_config):
    """write(kinds, **options, config={changes of config.json}) -> (folder, encoder, heads)."""

    def make(
        *kinds, num_labels=3, between=None, input_size=None, config=None, is_causal=False, **options
    ):
        encoder = Encoder(tiny_config(vocab_size=TOKENIZER.vocab_size, is_causal=is_causal)).eval()
        family = family_for(encoder.config)
        heads = {
            kind: family.head(kind, encoder, num_labels=num_labels, input_size=input_size)
            for kind in kinds
        }
        write_model(tmp_path / "m", encoder, heads | (between or {}), TOKENIZER, **options)
        if config:
            (tmp_path / "m" / "checksums.json").unlink()
            values = {**read_config_dict(tmp_path / "m"), **config}
            kept = {key: value for key, value in values.items() if value is not None}
            (tmp_path / "m" / "config.json").write_text(json.dumps(kept))
        return tmp_path / "m", encoder, heads

    return make


def test_labels_task_and_length_come_back(write):
    labels = ("no", "perhaps", "yes")
    made = {"trained_seq_lengths": [16, 48], "task": "rte"}
    folder, _, heads = write(
        "classification", labels=labels, max_length=48, extra_config={"clozelab": made}
    )
    model = read_model(folder)
    assert model.task == "classification"
    assert model.labels == labels
    assert model.max_length == 48
    assert model.untrained == ()
    assert model.config["clozelab"]["task"] == "rte" and not model.encoder.training
    assert torch.equal(model.heads["classification"].weight, heads["classification"].weight)
    assert model.tokenizer.fingerprint == TOKENIZER.fingerprint
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == 48


@pytest.mark.parametrize("tokenizer_class", [WordPieceTokenizer, MpnetTokenizer])
def test_transformers_reads_words_of_any_length_with_the_same_ids(
    tmp_path, tiny_config, tokenizer_class
):
    """BertTokenizer of transformers takes a word of 101 letters for unknown, BERT's code 201."""
    transformers = pytest.importorskip("transformers")
    vocabulary = [*tokenizer_class.default_tokens, "a", "##a"]
    tokenizer = tokenizer_class(vocabulary, lowercase=True)
    encoder = Encoder(tiny_config(vocab_size=tokenizer.vocab_size))
    write_model(tmp_path / "m", encoder, {}, tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    for length in (100, 101, 200, 201):
        text = f"{'a' * length} a"
        (ids,) = tokenizer.encode_batch([text])
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids.tolist()
    pair = theirs("a", "a a")
    assert ("token_type_ids" in pair) == tokenizer.has_token_types
    ours = read_model(tmp_path / "m").tokenizer
    assert ours.fingerprint == tokenizer.fingerprint
    assert ours.has_token_types == tokenizer.has_token_types


@pytest.mark.parametrize("architecture", ["distilbert", "longformer"])
def test_other_libraries_give_no_second_token_type_to_an_encoder_without_one(
    tmp_path, architecture
):
    """A Longformer here has an embedding of one type. A DistilBERT takes no types: given some,
    transformers 4 ends with a TypeError.
    """
    transformers = pytest.importorskip("transformers")
    cfg = composed("pretrain", [f"architecture={architecture}", "model=tiny"]).config
    ids = {"vocab_size": SIZE, "pad_token_id": TOKENIZER.pad_id}
    encoder = Encoder(EncoderConfig(**vars(cfg.model) | ids, **vars(cfg.architecture))).eval()
    assert TOKENIZER.has_token_types
    write_model(tmp_path / "m", encoder, {}, TOKENIZER)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")("a b", "c")
    assert sorted(theirs) == ["attention_mask", "input_ids"]
    batch = {name: torch.tensor([values]) for name, values in theirs.items()}
    model = transformers.AutoModel.from_pretrained(tmp_path / "m").eval()
    with torch.no_grad():
        expected = model(**batch).last_hidden_state[0]
    (states,) = clozelab.load(tmp_path / "m", precision="32-true").hidden_states([("a b", "c")])
    torch.testing.assert_close(torch.from_numpy(states[-1]), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("kind", "length"), [("classification", 16), ("spans", 16), ("tags", 48)])
def test_other_libraries_cut_a_text_as_its_fine_tuning_did(write, kind, length):
    """A tagger answers every word, so none may be cut off."""
    made = {"clozelab": {"trained_seq_lengths": [48], "max_seq_length": 16}}
    folder, _, _ = write(kind, max_length=48, extra_config=made)
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == length
    model = read_model(folder)
    assert (model.max_length, model.window_length) == (48, 16), "the encoder has its own length"


def test_names_are_those_of_label2id_where_there_are_no_others(write):
    own = {"label2id": {"b": 1, "c": 2, "a": 0}, "id2label": None}
    assert read_model(write("classification", config=own)[0]).labels == ("a", "b", "c")
    # What a library leaves there by itself names nothing that id2label does.
    left = {
        "id2label": {"0": "a", "1": "b", "2": "c"},
        "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
    }
    assert read_model(write("classification", config=left)[0]).labels == ("a", "b", "c")
    assert read_model(write("classification", config={"id2label": None})[0]).labels == (
        "LABEL_0",
        "LABEL_1",
        "LABEL_2",
    )


def test_labels_get_other_names():
    assert renamed_labels(["NO", "YES"], {"NO": "0"}, "m") == ["0", "YES"]
    with pytest.raises(ValueError, match="label_names: m has no label 'NOO'; did you mean 'NO'"):
        renamed_labels(["NO", "YES"], {"NOO": "0"}, "m")
    with pytest.raises(ValueError, match="two labels of m would be called 'YES'"):
        renamed_labels(["NO", "YES"], {"NO": "YES"}, "m")


def test_labels_that_do_not_exclude_each_other_come_back(write):
    folder, _, _ = write("classification", labels="abc", problem_type="multi_label_classification")
    assert read_model(folder).task == "multi_label"
    assert read_config_dict(folder)["problem_type"] == "multi_label_classification"


def test_a_regression_says_so(write):
    folder, _, _ = write("classification", num_labels=1, problem_type="regression")
    model = read_model(folder)
    assert (model.task, model.labels) == ("regression", ("LABEL_0",))
    assert model.config["problem_type"] == "regression"


def test_a_head_without_weights_is_untrained_and_not_made_up(write):
    folder, _, _ = write(config={"architectures": ["BertForQuestionAnswering"]}, with_pooler=True)
    model = read_model(folder)
    assert (model.task, model.untrained, dict(model.heads)) == ("spans", ("spans",), {})
    folder, _, _ = write("lm", with_pooler=False)
    assert read_model(folder).untrained == ("pooler",), (
        "as transformers' BertForMaskedLM, which has none"
    )


def test_a_bilstm_and_a_mix_of_layers_come_back(write):
    """No library knows their model_type; here their sizes are those of their tensors."""
    mix = FeatureMix("weighted_sum_all", 2, 24)
    lstm = BiLSTM(24, 10, 2, 0.1)
    torch.nn.init.normal_(mix.layer_weights)
    between = {"bilstm": lstm, "feature_mix": mix}
    made = {"features": "weighted_sum_all"}
    folder, _, heads = write(
        "tags", between=between, input_size=20, labels="abc", extra_config={"clozelab": made}
    )
    assert read_config_dict(folder)["model_type"] == "clozelab_bert"
    model = read_model(folder)
    x = torch.randn(7, 2, 24)
    layout = Layout.ragged([3, 4])
    with torch.no_grad():
        expected = heads["tags"].eval()(lstm.eval()(mix(x), layout))
        found = model.heads["tags"](model.heads["bilstm"](model.heads["feature_mix"](x), layout))
    assert torch.equal(found, expected) and model.architecture == "BertForTokenClassification"


def test_the_longest_row_is_said_where_that_is_asked_for(write, caplog):
    caplog.set_level(logging.INFO)
    assert max_positions(write()[0]) == 64
    folder = write(config={"clozelab": {"trained_seq_lengths": [16, 32]}})[0]
    assert max_positions(folder) == 32
    assert not caplog.messages
    log_max_positions(folder)
    (message,) = caplog.messages
    assert "sequences of up to 32 tokens (of 64 positions)" in message


def test_a_causal_encoder_with_a_pooled_head_is_of_a_type_that_others_do_not_know(write):
    folder, _, _ = write("classification", is_causal=True)
    assert read_config_dict(folder)["architectures"] == ["ClozelabBertForSequenceClassification"]
    assert read_model(folder).encoder.config.is_causal


def test_a_model_is_found_in_a_run_and_on_the_hub_at_a_commit_alone(tmp_path, write, monkeypatch):
    folder, _, _ = write("lm")
    (tmp_path / "run").mkdir()
    folder.rename(tmp_path / "run" / "encoder")
    assert find_model(str(tmp_path / "run")) == tmp_path / "run" / "encoder"
    weights = tmp_path / "run" / "encoder" / "model.safetensors"
    assert find_model(str(weights)) == weights
    assert read_model(weights).architecture == "BertForMaskedLM"
    asked = []

    def fetch(name, revision, allow_patterns):
        asked.append((name, revision, allow_patterns[-1]))
        assert "*.model" in allow_patterns, (
            "a tokenizer of sentencepiece, to say what to make of it"
        )
        if "1" in revision:
            raise OSError("no network\nat all")
        return str(tmp_path / "run")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    with pytest.raises(ValueError, match="needs hub=true and NAME@COMMIT"):
        find_model("me/mine@" + "0" * 40)
    with pytest.raises(ValueError, match="me/mine@main: say which commit"):
        find_model("me/mine@main", from_hub=True)
    assert not asked
    with pytest.raises(ValueError, match=r"is not to be had from the hub: OSError: no network$"):
        find_model("me/mine@" + "1" * 40, from_hub=True)
    asked.clear()
    assert find_model("me/mine@" + "0" * 40, from_hub=True) == tmp_path / "run"
    assert [patterns for _, _, patterns in asked] == [
        "*.safetensors",
        "pytorch_model*.bin",
    ], "a pickle only where need be"


def test_a_part_of_a_model_is_named_where_the_hub_is_not_reached(tmp_path, monkeypatch, caplog):
    """What another program has fetched may lack what says how a vector is made."""
    names = ("config.json", "model.safetensors")
    commit = "0" * 40
    copy = tmp_path / "models--me--mine" / "snapshots" / commit
    copy.mkdir(parents=True)
    for name in names:
        (copy / name).touch()

    def no_network(*_, **__):
        raise OfflineModeIsEnabled

    def list_files(*_, **__):
        return [RepoFile(path=name, size=0, oid="1" * 40) for name in names]

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_tree", no_network)
    assert find_model(f"me/mine@{commit}", from_hub=True) == copy
    (record,) = caplog.records
    assert "0 is read from the local copy alone, since" in record.getMessage()
    assert "It has no modules.json" in record.getMessage()
    caplog.clear()
    (copy / "modules.json").touch()
    find_model(f"me/mine@{commit}", from_hub=True)
    (copy / "modules.json").unlink()
    # The library keeps the list of the hub's files; each file by itself is of the local copy.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for answer in (list_files, no_network):
        monkeypatch.setattr("huggingface_hub.HfApi.list_repo_tree", answer)
        assert find_model(f"me/mine@{commit}", from_hub=True) == copy
    assert not caplog.records


def test_a_large_vocabulary_may_be_padded_to_a_multiple_of_a_thousand(tmp_path, tiny_config):
    """mDeBERTa has 251,000 embeddings for 250,102 entries."""
    words = [f"w{number}" for number in range(39_000)]
    tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, *words], lowercase=False)
    for rows, is_read in ((39_200, True), (39_300, False)):
        encoder = Encoder(tiny_config(vocab_size=rows))
        write_model(tmp_path / f"{rows}", encoder, {}, tokenizer)
        if is_read:
            assert open_tokenizer(tmp_path / f"{rows}").vocab_size == 39_005
        else:
            with pytest.raises(ValueError, match=r"embeddings for 39300 ids .* do not belong"):
                open_tokenizer(tmp_path / f"{rows}")


FOUR = {"0": "a", "1": "b", "2": "c", "3": "d"}
CONTRADICTORY = {
    "id2label": {"0": "no", "1": "yes", "2": "so"},
    "label2id": {"no": 1, "yes": 0, "so": 2},
}


@pytest.mark.parametrize(
    ("kinds", "config", "reason"),
    [
        ([], {"architectures": ["BertForFrobnication"]}, "is BertForFrobnication; supported: B"),
        (["classification"], {"architectures": None}, "names no architecture"),
        (["classification"], {"id2label": {"0": "a"}}, r"names 1 labels \(id2label\), but the"),
        (["tags"], {"id2label": {"0": "a", "2": "b", "3": "c"}}, r"output 1 \(it names 0, 2, 3\)"),
        (["tags"], {"id2label": FOUR}, "names 4 labels"),
        (["classification"], {"id2label": {"0": "a", "1": "b", "2": "a"}}, "two classes 'a'"),
        (["classification"], CONTRADICTORY, "'no' is output 0 in id2label and 1 in label2id"),
        (["classification"], {"problem_type": "regression"}, "a regression of 3 numbers; one is"),
        ([], {"hidden_size": "wide"}, r"config\.json: "),
        # One embedding too few, and more than padding.
        ([], {"vocab_size": SIZE - 1}, rf"for {SIZE - 1} ids .* hold {SIZE}: they do not belong"),
        ([], {"vocab_size": SIZE + 128}, rf"for {SIZE + 128} ids .* hold {SIZE}: they do not bel"),
        ([], {"clozelab": {"tokenizer_fingerprint": "0" * 64}}, "not those the encoder was train"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(write, kinds, config, reason):
    folder = write(*kinds, config=config)[0]
    with pytest.raises(ValueError, match=reason):
        read_model(folder)
