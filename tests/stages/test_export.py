"""`clozelab export`: what other programs make of the folders, what the card says, and what is
refused.
"""

from __future__ import annotations

import json
import shutil
import string
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml
from tests.screens import shows

import clozelab
from clozelab.cli import main
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.files.origin import GIVEN
from clozelab.models.adaptation import LoRA, adapt, save_adapter
from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for, family_of
from clozelab.modules.model import read_model, write_model
from clozelab.report.model_card import _scores, without_path
from clozelab.runs.record import read_record

TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *string.ascii_letters], lowercase=False)
# Where positions begin behind the padding, its id counts.
PADS_WITH_ONE = WordPieceTokenizer(
    [*SPECIAL_TOKENS[1::-1], *SPECIAL_TOKENS[2:], *string.ascii_letters], lowercase=False
)
LABELS = ("no", "perhaps", "yes")
MADE = {"task": "mnli"}


def write_folder(
    folder: Path, tiny_config, *kinds: str, length: int = 20, made: Mapping = MADE, **changes
) -> Path:
    """A model with random weights everywhere and heads of these kinds.

    `made` is what its training has left in config.json.
    """
    tokenizer = PADS_WITH_ONE if changes.get("pad_token_id") == 1 else TOKENIZER
    encoder = Encoder(tiny_config(vocab_size=tokenizer.vocab_size, **changes))
    family = family_for(encoder.config)
    heads = {kind: family.head(kind, encoder, num_labels=3) for kind in kinds}
    for module in (encoder, *heads.values()):
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    labels = LABELS if {"classification", "tags"} & set(kinds) else ()
    extra = {"clozelab": {"trained_seq_lengths": [length], **made}}
    write_model(
        folder, encoder, heads, tokenizer, labels=labels, max_length=length, extra_config=extra
    )
    return folder


def fine_tuned(root: Path, tiny_config) -> Path:
    """A fine-tuning with its model."""
    run = root / "finetune" / "mlm" / "pretrain-seed-1" / "mnli" / "seed-1"
    write_folder(run / "model", tiny_config, "classification")
    return run


def test_a_run_becomes_a_model_of_transformers_with_a_card(
    tmp_path, tiny_config, make_runs, capsys
):
    transformers = pytest.importorskip("transformers")
    root = make_runs({("mlm", "mnli"): 80.0}, pretrain_seeds=(1, 2), finetune_seeds=(1,))
    run = fine_tuned(root, tiny_config)
    out = tmp_path / "out" / "my-model"
    assert main(["export", str(run), f"to={out}"]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    loaded, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        out, output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert [loaded.config.id2label[i] for i in range(3)] == list(LABELS)
    assert loaded.config.finetuning_task == "mnli"
    assert transformers.AutoTokenizer.from_pretrained(out).model_max_length == 20
    predictions = transformers.pipeline("text-classification", model=str(out))("a b c", top_k=None)
    model = read_model(out)
    ids = torch.tensor([2, *model.tokenizer.encode_flat(["a b c"])[0], 3])
    layout, positions = Layout.ragged([len(ids)]), torch.arange(len(ids))
    with torch.no_grad():
        states = model.encoder(ids, torch.zeros_like(ids), positions, layout).sequence_output
        probs = model.heads["classification"](model.encoder.pool(states, layout)).softmax(-1)[0]
    assert {one["label"]: one["score"] for one in predictions} == pytest.approx(
        dict(zip(LABELS, probs.tolist(), strict=True)), abs=1e-5
    )
    card = (out / "README.md").read_text()
    shows(card, "accuracy | 79.70 % | 79.90 (77.36 to 82.44), 2 pre-training seeds")
    shows(
        card, "- Longest sequence: 20 tokens", "- Weights: float32", "- 0.10 hours on A processor"
    )


def test_a_head_without_weights_is_not_made_up(tmp_path, tiny_config, capsys):
    folder = write_folder(tmp_path / "m", tiny_config)
    (folder / "checksums.json").unlink()
    config = json.loads((folder / "config.json").read_text()) | {
        "architectures": ["BertForQuestionAnswering"]
    }
    (folder / "config.json").write_text(json.dumps(config))
    assert main(["export", str(folder), f"to={tmp_path / 'out'}"]) == 1
    shows(capsys.readouterr().err, "has no weights for its spans head, so a program would make")
    assert not (tmp_path / "out").exists()
    assert main(["export", str(folder), f"to={tmp_path / 'out'}", "head=false"]) == 0
    written = read_model(tmp_path / "out")
    assert (written.architecture, written.task, written.untrained) == ("BertModel", None, ())


def test_a_card_says_where_on_the_hub_a_model_came_from(tmp_path, tiny_config, monkeypatch):
    folder = write_folder(tmp_path / "m", tiny_config, "lm")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(folder))
    name = "me/mine@" + "0" * 40
    assert main(["export", name, "hub=true", f"to={tmp_path / 'out'}"]) == 0
    shows((tmp_path / "out" / "README.md").read_text(), f"- From the Hugging Face hub: {name}")
    assert main(["export", str(folder), f"to={tmp_path / 'other'}"]) == 0
    assert "hub" not in (tmp_path / "other" / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["nowhere", "to=out"], "a name on the Hugging Face hub needs hub=true"),
        (["bert-base-uncased", "to=out", "hub=true"], "say which commit"),
        (["m", "to=out", "format=gguf"], "format=gguf: choose one of transformers, onnx,"),
        (["m", "to=out", "head=no"], "head=no: choose one of true, false"),
        (["m"], "say where the model goes"),
        (["m", "to=full"], "full is there; remove it"),
        (["m", "checkpoint=true", "to=full"], "full is there; remove it"),
        (["m", "to=m/config.json"], "config.json is there; remove it"),
        (["m", "to=edited"], "edited is there; remove it"),
        (["causal", "to=out", "format=sentence_transformers", "pooling=cls"], "sees only itself"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, tiny_config, monkeypatch, capsys, words, word):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "m", tiny_config, "lm")
    write_folder(tmp_path / "causal", tiny_config, "lm", is_causal=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    (write_folder(tmp_path / "edited", tiny_config) / "README.md").touch()
    assert main(["export", *words]) == 1
    assert word in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ({}, "- Fine-tuned on sequences of up to 12 tokens; longer texts were cut"),
        (
            {"window_stride": 5, "window_pooling": "max"},
            (
                "- Fine-tuned on sequences of up to 12 tokens; longer texts were read in windows"
                " 5 tokens apart (max of each output); other libraries read the first alone"
            ),
        ),
    ],
)
def test_a_card_says_how_long_texts_were_read(tmp_path, tiny_config, made, line):
    made = {"max_seq_length": 12, **made}
    folder = write_folder(tmp_path / "m", tiny_config, "classification", made=made)
    assert main(["export", str(folder), f"to={tmp_path / 'out'}"]) == 0
    assert line in (tmp_path / "out" / "README.md").read_text().splitlines()


@pytest.mark.parametrize(
    ("kind", "line", "pipeline"),
    [
        ("tags", "- Predicts a number for each word: the one logit of its first token", None),
        ("classification", "- Predicts a number: its one logit", "text-classification"),
    ],
)
def test_a_card_says_where_a_number_stands(tmp_path, tiny_config, kind, line, pipeline):
    """transformers' pipeline of tags has the answer LABEL_0, 1.0, to every word."""
    encoder = Encoder(tiny_config(vocab_size=TOKENIZER.vocab_size))
    head = family_for(encoder.config).head(kind, encoder, num_labels=1)
    write_model(tmp_path / "m", encoder, {kind: head}, TOKENIZER, problem_type="regression")
    assert main(["export", str(tmp_path / "m"), f"to={tmp_path / 'out'}"]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert line in card.splitlines() and "LABEL_0" not in card
    assert yaml.safe_load(card.split("---\n")[1]).get("pipeline_tag") == pipeline


@pytest.mark.parametrize("config", [{}, {"id2label": dict(enumerate(LABELS))}])
def test_a_merged_classifier_from_elsewhere_has_no_names(tmp_path, tiny_config, caplog, config):
    """peft records neither them nor that several of them may be right."""
    base = write_folder(tmp_path / "base", tiny_config, "lm")
    encoder = load_encoder(base)
    adapt(encoder, LoRA(targets=["query"]), None, has_fresh_pooler=True)
    heads = {
        "classification": family_for(encoder.config).head("classification", encoder, num_labels=3)
    }
    save_adapter(tmp_path / "adapter", encoder, heads, str(base), config=config)
    assert main(["export", str(tmp_path / "adapter"), f"to={tmp_path / 'out'}"]) == 0
    warning = "does not record the names of its classes, nor whether several may be right"
    assert (warning in caplog.text) == (not config)


def test_a_merged_classifier_without_a_pooler_is_not_made_up(tmp_path, tiny_config, capsys):
    """Neither the masked base nor the adapter has one; transformers drew it at random."""
    base = write_folder(tmp_path / "base", tiny_config, "lm")
    out = tmp_path / "out"
    assert main(["export", str(base), f"to={tmp_path / 'bare'}"]) == 0
    encoder = load_encoder(base)
    adapt(encoder, LoRA(targets=["query"]), None, has_fresh_pooler=False)
    heads = {
        "classification": family_for(encoder.config).head("classification", encoder, num_labels=3)
    }
    save_adapter(tmp_path / "adapter", encoder, heads, str(tmp_path / "bare"), config={})
    words = ["export", str(tmp_path / "adapter"), f"to={out}"]
    assert main(words) == 1
    shows(capsys.readouterr().err, f"neither it nor {tmp_path / 'bare'} has one")
    assert not out.exists()
    assert main([*words, "head=false"]) == 0


def test_the_encoder_of_a_masked_model_has_no_pooler_made_up(tmp_path, tiny_config):
    folder = write_folder(tmp_path / "m", tiny_config, "lm")
    assert main(["export", str(folder), f"to={tmp_path / 'out'}", "head=false"]) == 0
    assert read_model(tmp_path / "out").untrained == ("pooler",), (
        "nothing has trained the one in the folder"
    )
    facts = (tmp_path / "out" / "README.md").read_text().split("---\n")[1]
    assert yaml.safe_load(facts)["pipeline_tag"] == "feature-extraction"


@pytest.mark.parametrize(
    ("kinds", "changes", "words", "library"),
    [
        ([], {"model_type": "neobert", **family_of("neobert").parts}, [], "clozelab"),
        (["classification"], {"is_causal": True}, [], "clozelab"),
        (["classification"], {"is_causal": True}, ["head=false"], "transformers"),
        ([], {"num_directions": 2, "is_causal": True}, [], "clozelab"),
    ],
)
def test_a_card_and_a_refusal_say_what_transformers_has_no_class_for(
    tmp_path, tiny_config, capsys, kinds, changes, words, library
):
    folder = write_folder(tmp_path / "m", tiny_config, *kinds, **changes)
    assert main(["export", str(folder), f"to={tmp_path / 'out'}", *words]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1])["library_name"] == library
    assert ("`transformers` has no class for it" in card) == (library == "clozelab")
    if not kinds:
        out = tmp_path / "vectors"
        assert main(["export", str(folder), f"to={out}", "format=sentence_transformers"]) == 1
        shows(capsys.readouterr().err, "so sentence-transformers cannot load it")
        assert not out.exists()


def test_a_weight_that_float16_has_not_is_refused(tmp_path, tiny_config):
    encoder = Encoder(tiny_config(vocab_size=TOKENIZER.vocab_size))
    torch.nn.init.constant_(next(encoder.parameters()), 70_000.0)
    with pytest.raises(ValueError, match="holds numbers that float16 has not"):
        write_model(tmp_path / "half", encoder, {}, TOKENIZER, dtype="float16")
    assert not (tmp_path / "half").exists()
    write_model(tmp_path / "half", encoder, {}, TOKENIZER, dtype="bfloat16")


def test_a_card_names_no_place_of_this_machine():
    shown = {
        "/home/me/x": "FOLDER",
        "encoder=/home/me/bert": "encoder=ENCODER",
        "objective/input=full_sentences": "objective/input=full_sentences",
        "+a.data_dir='~/my data'": "+a.data_dir=DATA_DIR",
        "runs_dir=runs/x": "runs_dir=runs/x",
        "hydra.searchpath=[file:///home/me]": "hydra.searchpath=SEARCHPATH",
        "seed=1": "seed=1",
    }
    assert {word: without_path(word) for word in shown} == shown


def part(name: str, **settings):
    return {"_target_": f"clozelab.models.{name}", **settings}


LEARNED = part("embeddings.LearnedPositions", after_padding=True)
BUCKETED = part("embeddings.BucketedPositions", after_padding=True)
OF_ROBERTA = {"model_type": "roberta", "type_vocab_size": 1, "pad_token_id": 1}
OF_MPNET = {"model_type": "mpnet", "type_vocab_size": 0, "pad_token_id": 1}
OF_ALBERT = {"model_type": "albert", "embedding_size": 8, "num_hidden_groups": 1}
LONG = {"model_type": "longformer", "attention": part("attention.LongAttention", window=[2, 3])}
WINDOWS = {
    "is_causal": True,
    "positions": part("embeddings.RotaryPositions"),
    "attention": part("attention.LocalAttention", window=2),
}
SHAPES = {
    "bert": (("lm", "nsp", "spans"), {"num_attention_heads": 2}),
    "causal bert, in windows, with rotary positions": (("tags",), WINDOWS),
    "roberta": (("classification",), OF_ROBERTA | {"positions": LEARNED}),
    "albert": (("lm", "sop", "choices"), OF_ALBERT | {"projects_embeddings": True}),
    "electra": (("rtd", "classification"), {"model_type": "electra", "pooler": None}),
    "mpnet": (("lm",), OF_MPNET | {"positions": BUCKETED}),
    "longformer": (("lm",), LONG),
}
QUICK = ("bert",)


@pytest.mark.parametrize(
    "shape", [pytest.param(one, marks=[] if one in QUICK else [pytest.mark.slow]) for one in SHAPES]
)
def test_onnx_gives_the_outputs_of_the_model(tmp_path, tiny_config, shape):
    """On a batch of another size and length than the three that the export itself looks at."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from clozelab.modules.onnx import random_rows, stream_outputs

    kinds, changes = SHAPES[shape]
    folder, out = write_folder(tmp_path / "m", tiny_config, *kinds, **changes), tmp_path / "out"
    assert main(["export", str(folder), f"to={out}", "format=onnx"]) == 0
    model, content = read_model(folder), (out / "onnx" / "model.onnx").read_bytes()
    lengths = [11, 2, 17, 17, 6, 1]
    batch = random_rows(model, lengths, seed=9)
    session = onnxruntime.InferenceSession(content)
    outputs = session.run(None, {name: value.numpy() for name, value in batch.items()})
    names = [one.name for one in session.get_outputs()]
    is_token = batch["attention_mask"].bool().numpy()
    with torch.no_grad():
        expected = stream_outputs(model, batch, lengths)
    for name, output in zip(names, outputs, strict=True):
        output = output[is_token] if len(expected[name]) == sum(lengths) else output
        assert np.abs(expected[name].numpy() - output).max() <= 1e-4, name
    assert len(names) == 1 + len(kinds) + ("spans" in kinds) + (shape in ("bert", "albert")), names


@pytest.mark.parametrize(
    ("name", "kind"),
    [("longformer", "classification"), ("longformer", "spans"), ("big_bird", "lm")],
)
def test_what_depends_on_a_text_is_no_onnx(tmp_path, tiny_config, capsys, name, kind):
    parts = family_of(name).parts
    folder = write_folder(tmp_path / "m", tiny_config, kind, model_type=name, **parts)
    assert main(["export", str(folder), f"to={tmp_path / 'out'}", "format=onnx"]) == 1
    assert "is not exported to ONNX; take format=transformers" in capsys.readouterr().err


# Damage


def test_a_bigbird_that_answers_reads_the_types_that_its_class_makes(tmp_path, tiny_config, capsys):
    """Where its tokenizer gives none, the second text has type 1 in transformers alone."""
    transformers = pytest.importorskip("transformers")
    changes = {"model_type": "big_bird", **family_of("big_bird").parts}
    folder = write_folder(tmp_path / "m", tiny_config, "spans", **changes)
    (folder / "checksums.json").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    words = ["export", str(folder), f"to={tmp_path / 'out'}"]
    assert main(words) == 1  # fine-tuned here, as `task` says
    shows(capsys.readouterr().err, "gives the second one type 1: fine-tune it with token_types=two")
    config(clozelab={})(folder)
    assert main(words) == 0
    inputs = transformers.AutoTokenizer.from_pretrained(folder)("a b", "c d e", return_tensors="pt")
    theirs = transformers.BigBirdForQuestionAnswering.from_pretrained(folder).eval()
    expected = theirs(**inputs, output_hidden_states=True).hidden_states[-1][0]
    (states,) = clozelab.load(folder, precision="32-true").hidden_states([("a b", "c d e")])
    np.testing.assert_allclose(states[-1], expected.detach(), atol=1e-5)


@pytest.mark.parametrize("kind", ["choices", "spans"])
def test_a_longformer_is_refused_whose_class_would_find_no_question(
    tmp_path, tiny_config, capsys, kind
):
    """By BERT's template one separator stands between two texts, by RoBERTa's two."""
    transformers = pytest.importorskip("transformers")
    changes = {"model_type": "longformer", **family_of("longformer").parts}
    folder = write_folder(tmp_path / "m", tiny_config, kind, **changes)
    assert main(["export", str(folder), f"to={tmp_path / 'out'}"]) == 1
    shows(capsys.readouterr().err, "wants 2 separators between a question and its text")
    words = ["export", str(folder), f"to={tmp_path / 'out'}", "head=false"]
    assert main(words) == 0
    if kind == "choices":
        return
    inputs = transformers.AutoTokenizer.from_pretrained(folder)("a b", "c d e", return_tensors="pt")
    theirs = transformers.LongformerForQuestionAnswering.from_pretrained(folder)
    with pytest.raises(AssertionError, match="exactly three separator tokens"):
        theirs(**inputs)


def test_a_bigbird_that_answers_without_types_is_loaded_here_alone(tmp_path, tiny_config):
    """Of a run's folder, which nobody has exported, transformers says that it has no class."""
    transformers = pytest.importorskip("transformers")
    changes = {"model_type": "big_bird", **family_of("big_bird").parts}
    folder = write_folder(tmp_path / "m", tiny_config, "spans", **changes)
    model = clozelab.load(folder).model
    assert transformers.AutoConfig.from_pretrained(folder).model_type == "big_bird"
    write_model(folder, model.encoder, model.heads, model.tokenizer.with_token_types("one"))
    with pytest.raises(ValueError, match="clozelab_big_bird"):
        transformers.AutoConfig.from_pretrained(folder)
    again = clozelab.load(folder).model
    assert again.architecture == "BigBirdForQuestionAnswering" and "spans" in again.heads


def edit(name: str, change):
    """Makes a damage: what `change` makes of a file's bytes (None: the file goes)."""

    def damage(folder: Path) -> None:
        after = change((folder / name).read_bytes())
        (folder / name).unlink()
        if after is not None:
            (folder / name).write_bytes(after)

    return damage


def config(**changes):
    return edit("config.json", lambda content: json.dumps(json.loads(content) | changes).encode())


def tensors(change):
    def damage(folder: Path) -> None:
        held = safetensors.torch.load_file(folder / "model.safetensors")
        change(held)
        safetensors.torch.save_file(held, folder / "model.safetensors")

    return damage


def pickled(content: bytes):
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(content)

    return damage


WEIGHTS = "model.safetensors"
WORDS_TENSOR = "bert.embeddings.word_embeddings.weight"
CANARY = b"cposix\nsystem\n(S'touch canary'\ntR."
DAMAGES = {
    "weights cut": (edit(WEIGHTS, lambda x: x[: len(x) // 2]), WEIGHTS),
    "weights empty": (edit(WEIGHTS, lambda x: b""), WEIGHTS),
    "weights gone": (edit(WEIGHTS, lambda x: None), "holds no weights"),
    "weights' header too long": (
        edit(WEIGHTS, lambda x: struct.pack("<Q", 1 << 60) + x[8:]),
        "model.saf",
    ),
    "weights' header no JSON": (edit(WEIGHTS, lambda x: x[:8] + b"}" + x[9:]), WEIGHTS),
    "weights are text": (edit(WEIGHTS, lambda x: b"<html>404</html>"), WEIGHTS),
    "a tensor gone": (
        tensors(lambda x: x.pop(WORDS_TENSOR)),
        "word_embeddings.weight of this Bert model is missing",
    ),
    "a tensor too many": (
        tensors(lambda x: x.update({"bert.more": torch.ones(1)})),
        "more is not part of the Bert",
    ),
    "a tensor of another shape": (
        tensors(lambda x: x.update({WORDS_TENSOR: torch.ones(57, 8)})),
        "has shape [57, 8], the configuration says [57, 24]",
    ),
    "more positions than the file has": (
        config(max_position_embeddings=512),
        "position_embeddings.weight has shape [64, 24], the configuration says [512, 24]",
    ),
    "a pickle with code": (pickled(CANARY), "nothing of it has run"),
    "a pickle cut": (pickled(b"PK\x03\x04 and no more"), "pytorch_model.bin"),
    "no pickle": (pickled(b"\x80\x04N."), "pytorch_model.bin"),
    "configuration gone": (edit("config.json", lambda x: None), "no model here"),
    "configuration cut": (edit("config.json", lambda x: x[:50]), "is not valid JSON"),
    "configuration is a list": (
        edit("config.json", lambda x: b"[1]"),
        "does not hold a JSON object",
    ),
    "another model": (
        config(model_type="gpt2", architectures=["GPT2LMHeadModel"]),
        "'gpt2'; known families: albert",
    ),
    "another class": (
        config(architectures=["BertForFrobnication"]),
        "supported: BertForMaskedLM, ",
    ),
    "a size that is text": (config(hidden_size="wide"), "config.json"),
    "heads that do not divide": (
        config(num_attention_heads=5),
        "num_attention_heads 5 must divide it",
    ),
    "another vocabulary": (config(vocab_size=30522), "embeddings for 30522 ids"),
    "labels that are no numbers": (config(id2label={"a": "b"}), "id2label"),
    "vocabulary cut": (edit("vocab.txt", lambda x: x[:20]), "vocab"),
    "vocabulary of bytes": (edit("vocab.txt", lambda x: b"\xff\xfe" + x), "is not UTF-8"),
    "tokenizer cut": (edit("tokenizer.json", lambda x: x[:99]), "tokenizer.json is not valid JSON"),
    "tokenizer of nothing": (
        edit("tokenizer.json", lambda x: b"{}"),
        "it has no model with a vocabulary",
    ),
    "tokenizer's rules cut": (edit("tokenizer_config.json", lambda x: x[:9]), "is not valid JSON"),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory, tiny_config):
    folder = write_folder(tmp_path_factory.mktemp("sound") / "m", tiny_config, "classification")
    # as a folder from elsewhere: our own checksums would find all of it first
    (folder / "checksums.json").unlink()
    return folder


@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_is_one_clear_sentence(sound, tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    damage, word = DAMAGES[name]
    shutil.copytree(sound, tmp_path / "m")
    damage(tmp_path / "m")
    assert main(["export", "m", "to=out"]) == 1
    message = capsys.readouterr().err
    assert word in message and len(message.splitlines()) == 2, message
    assert [path.name for path in tmp_path.iterdir()] == ["m"], "nothing is written, and no canary"


def test_a_card_counts_fine_tunings_of_one_given_encoder_as_such(make_runs):
    """Their pre-training seeds are names alone, and runs of other settings are no replicates."""
    seeds = (1, 2, 3, 4)
    root = make_runs({("mlm", "mnli"): 80.0}, pretrain_seeds=seeds, finetune_seeds=(1,))
    paths = [root / f"finetune/mlm/pretrain-seed-{seed}/mnli/seed-1/run.json" for seed in seeds]
    for path, epochs in zip(paths, (3, 3, 3, 2), strict=True):
        state = json.loads(path.read_text())
        state["config"] |= {"initialisation": "pretrained", "epochs": epochs}
        state["inputs"]["encoder"] = "e" * 64
        state["facts"]["encoder"] = {"scale": GIVEN}
        path.write_text(json.dumps(state))
    (score,) = _scores(read_record(paths[0].parent))
    assert score["seeds"].endswith("3 fine-tuning seeds only")


@pytest.mark.parametrize("num_evaluations", [1, 2])
def test_a_card_says_where_a_checkpoint_was_chosen(
    tmp_path, tiny_config, make_runs, num_evaluations
):
    root = make_runs({("mlm", "mnli"): 80.0}, pretrain_seeds=(1,), finetune_seeds=(1,))
    run = fine_tuned(root, tiny_config)
    state = json.loads((run / "run.json").read_text())
    state["facts"]["num_evaluations"] = num_evaluations
    (run / "run.json").write_text(json.dumps(state))
    assert main(["export", str(run), f"to={tmp_path / 'out'}"]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert ("chosen on the very split" in card) == (num_evaluations > 1)
