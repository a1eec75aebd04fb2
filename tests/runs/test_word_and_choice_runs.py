"""Stage finetune on multiple choice, tagging and feature-based tagging: from YAML to run folder."""

from __future__ import annotations

import shutil
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runs.records import edit, predictions
from tests.runs.records import read_json as read

import clozelab
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.modules.model import read_model

TOKENIZER = WordPieceTokenizer(
    [*SPECIAL_TOKENS, *string.ascii_lowercase, "mr", "saw", "near"], lowercase=True
)
SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, save_encoder: Callable[..., None]) -> Path:
    """Right endings say "mr", names stand behind "mr"; and an encoder of four layers."""
    root = tmp_path_factory.mktemp("world")
    for folder in ("swag", "ner/conll2003"):
        (root / "data" / folder).mkdir(parents=True)
    for swag, conll, count in (("train", "train", 64), ("val", "dev", 16)):
        lines = [[f"{i},v,1,s,saw a,near,gold", *["b c"] * 4, str(i % 4)] for i in range(count)]
        for i, line in enumerate(lines):
            line[1 + i % 4] = "mr b"
        (root / f"data/swag/{swag}.csv").write_text(SWAG + "\n".join(map(",".join, lines)) + "\n")
        names = [
            f"{x} X X O\nsaw X X O\nmr X X O\n{x} X X I-PER\n\n" for x in "abcd" * (count // 4)
        ]
        documents = [
            "-DOCSTART- -X- -X- O\n\n" + "".join(names[i : i + 4]) for i in range(0, count, 4)
        ]
        (root / f"data/ner/conll2003/{conll}.txt").write_text("".join(documents))
    save_encoder(root / "encoder", TOKENIZER, num_hidden_layers=4, max_position_embeddings=24)
    return root


@pytest.fixture
def finetune(finetune: Callable[..., Path]) -> Callable[..., Path]:
    """As of all runs, with one evaluation an epoch."""
    return lambda *words, **name: finetune("epochs=6", "evaluations_per_epoch=1", *words, **name)


def test_multiple_choice(finetune: Any, world: Path) -> None:
    (world / "data/swag/test.csv").write_text(
        "video-id,sent1,sent2,ending0,ending1,ending2,ending3\n"
        + "v,saw a,near,b c,b c,mr b,b c\n" * 3
    )
    folder = finetune("task=swag", "predict_test=true")
    header, *lines = (folder / "test_predictions/SWAG.csv").read_text().splitlines()
    assert header == "index,label,ending0,ending1,ending2,ending3"
    assert [line.split(",")[:2] for line in lines] == [[str(i), "2"] for i in range(3)]
    scores = read(folder, "scores.json")
    assert scores["scores"]["validation/accuracy"] > 0.9
    assert scores["majority_baseline"] == 0.25
    assert (scores["collapsed"], scores["num_examples"]) == (False, 16)
    transformers = pytest.importorskip("transformers")
    assert read(folder / "model", "config.json")["architectures"] == ["BertForMultipleChoice"]
    model = transformers.AutoModelForMultipleChoice.from_pretrained(folder / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    encoded = tokenizer(["saw a"] * 4, ["near mr b", *["near b c"] * 3], return_tensors="pt")
    with torch.no_grad():
        logits = model(**{key: value[None] for key, value in encoded.items()}).logits[0]
    assert logits.tolist() == pytest.approx(predictions(folder)[0]["logits"], abs=1e-4)


def test_tagging_with_document_context(finetune: Any, world: Path) -> None:
    (world / "data/ner/conll2003/test.txt").write_text(
        "b X X O\nsaw X X O\nmr X X O\nb X X B-NEW\n\nsaw X X O\n"
    )
    folder = finetune("task=ner_conll2003", "predict_test=true")
    lines = (folder / "test_predictions/test.conll").read_text().splitlines()
    first = ["b X X O O", "saw X X O O", "mr X X O O", "b X X B-NEW B-PER"]
    assert lines == [*first, "", "saw X X O O"]
    scores, state = read(folder, "scores.json"), read(folder, "run.json")
    assert scores["scores"]["validation/f1"] > 0.9
    assert scores["num_examples"] == 16
    counts = state["facts"]["data"]["train_counts"]
    assert (counts["tag_scheme"], counts["has_documents"]) == ("IOB1", True)
    assert counts["context_tokens"] == 64 * 12  # three neighbours of four words in every document
    rows = predictions(folder)
    assert rows[1]["words"] == ["b", "saw", "mr", "b"]
    assert rows[1]["label"] == ["O", "O", "O", "B-PER"]
    config = read(folder / "model", "config.json")
    assert config["architectures"] == ["BertForTokenClassification"]
    assert config["clozelab"]["document_context"] is config["clozelab"]["has_documents"] is True
    assert config["id2label"]["1"] == "B-PER"


def test_a_tagger_of_other_tags_than_entities_is_scored_again(
    finetune: Any, evaluate: Any, world: Path
) -> None:
    """Tags without O, B- and I- are classes of their own."""
    (world / "data/pos").mkdir()
    for name in ("train", "dev"):
        sentences = [f"{x} NOUN\nsaw VERB\nmr NOUN\n{x} NOUN\n\n" for x in "abcd" * 4]
        (world / f"data/pos/{name}.txt").write_text("".join(sentences))
    settings = ["file_format=columns", "word_column=0", "tag_column=-1"]
    settings += ["train_file=pos/train.txt", "validation_file=pos/dev.txt"]
    folder = finetune("task=pos_ewt", *(f"task.data.{setting}" for setting in settings))
    words = ["measure=labelled_pos_ewt", "row=scored", f"encoder={folder / 'model'}"]
    scored = evaluate(*words, *(f"measure.task.data.{setting}" for setting in settings))
    name = "predictions.jsonl"
    assert (scored / name).read_bytes() == (folder / name).read_bytes()


def test_feature_based(finetune: Any, world: Path) -> None:
    """Two choices of layers and two seeds share one cache; the scores are the tagger's own."""
    common = ["task=ner_features_conll2003", "task.module.bilstm_hidden_size=16", "epochs=4"]
    for features, seed in (("concat_last_four", 1), ("weighted_sum_all", 2)):
        folder = finetune(*common, f"task.data.features={features}", f"seed={seed}", name=features)
        assert read(folder, "scores.json")["scores"]["validation/f1"] > 0.9
        assert len(list((world / "cache/features").iterdir())) == 2  # one a split, for both
    finetune(*common, "initialisation=random", "epochs=0.2", name="random")
    assert len(list((world / "cache/features").iterdir())) == 4  # other weights, other features
    test = "+task.data.test_files={dev: ner/conll2003/dev.txt}"
    words = ["task.data.features=concat_last_four", "predict_test=true"]
    tested = finetune(*common, *words, "~task.data.test_files.test", test, name="tested")
    text = (tested / "test_predictions/dev.conll").read_text()
    columns = [line.split(" ") for line in text.splitlines() if line]
    found = [(fields[0], fields[-1]) for fields in columns if fields[0] != "-DOCSTART-"]
    pairs = []
    for row in predictions(tested):
        pairs += zip(row["words"], row["prediction"], strict=True)
    assert found == pairs
    # Fine-tuned on, the encoder's last layer is read: the folder forgets which features were.
    words = ["task=ner_conll2003", "head=bilstm", "task.module.bilstm_hidden_size=16"]
    further = finetune(*words, f"encoder={tested / 'model'}", name="further")
    row = predictions(further)[0]
    (answer,) = clozelab.load(further, precision="32-true").tag([row["words"]])
    assert [word.label for word in answer.words] == row["prediction"]
    with pytest.raises(ValueError, match="set head=bilstm"):
        finetune("task=ner_features_conll2003", "head=linear", name="linear")
    with pytest.raises(ValueError, match="is not a score of this task; it has validation/f1, "):
        finetune(*common, "task.metric=validation/matthews", name="linear")
    assert not (folder.parent / "linear").exists()


def test_a_pooler_that_no_loss_has_read_stays_named_until_a_head_reads_it(
    finetune: Any, world: Path, tmp_path: Path
) -> None:
    """The mark changes no number: a fine-tuning begins from the same bytes."""
    marked = tmp_path / "encoder"
    shutil.copytree(world / "encoder", marked)
    (marked / "checksums.json").unlink()
    facts = read(marked, "config.json")["clozelab"] | {"untrained": ["pooler"]}
    edit(marked / "config.json", clozelab=facts)
    assert read_model(marked).untrained == ("pooler",)
    runs = {}
    for task in ("swag", "ner_conll2003"):
        for name, encoder in (("plain", world / "encoder"), ("marked", marked)):
            words = (f"task={task}", f"encoder={encoder}", "epochs=1")
            runs[task, name] = finetune(*words, name=f"{task}-{name}")
        scores = [read(runs[task, name], "scores.json")["scores"] for name in ("plain", "marked")]
        assert scores[0] == scores[1]
    choices, tagger = (runs[task, "marked"] / "model" for task in ("swag", "ner_conll2003"))
    assert read_model(choices).untrained == () and "choices" in read_model(choices).heads
    assert "untrained" not in read(choices, "config.json")["clozelab"]
    assert read_model(tagger).untrained == ("pooler",)
    # Of a pooler that came from elsewhere nobody knows anything bad.
    assert read_model(runs["ner_conll2003", "plain"] / "model").untrained == ()
