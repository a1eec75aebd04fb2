"""Three fine-tuned models scored as one, against transformers and averages made here."""

from __future__ import annotations

import json
import math
import shutil
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.runs.records import edit, predictions, read_json, record_of

from clozelab.assembly.together import mean_of, mean_threshold, model_folders
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.modules.finetuning import NO_HEAD
from clozelab.results.adhoc import infer_table
from clozelab.runs.find import find
from clozelab.tasks.several_classes import SeveralClassesTarget

WORDS = ["good", "fine", "bad", "dull", "the", "film", "is", "not"]
TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *string.ascii_lowercase, *WORDS], lowercase=True)
SEEDS = (1, 2, 3)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, save_encoder: Callable[..., None]) -> Path:
    """An encoder, and sentences whose label is mostly of the first word."""
    root = tmp_path_factory.mktemp("together")
    rng = np.random.default_rng(0)
    for name, count in (("train", 96), ("dev", 40)):
        rows = []
        for _ in range(count):
            words = rng.choice(WORDS, 5)
            label = words[0] in WORDS[:4] if rng.random() < 0.8 else rng.random() < 0.5
            rows.append(f"{' '.join(words)}\t{int(label)}")
        path = root / "data/glue/SST-2" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    save_encoder(root / "encoder", TOKENIZER, max_position_embeddings=32, initializer_range=0.3)
    return root


@pytest.fixture
def trained(finetune: Callable[..., Path], tmp_path: Path) -> Path:
    """The folder of three models of one row, `seed-1/model` and so on."""
    for seed in SEEDS:
        finetune("task=sst2", "epochs=4", f"seed={seed}", name=f"models/seed-{seed}")
    return tmp_path / "models"


@pytest.fixture
def run_together(evaluate: Callable[..., Path]) -> Callable[..., Path]:
    """run_together(name, *overrides): models scored as one on the validation file."""
    file = "measure.task.data.validation_file=glue/SST-2/dev.tsv"
    return lambda name, *words: evaluate("measure=labelled", file, *words, name=name)


def probabilities(folder: Path, state: dict[str, torch.Tensor], rows: list[str]) -> torch.Tensor:
    """[N, 2] of transformers' own model with these weights."""
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    missing, _ = model.load_state_dict(state, strict=False)
    assert not missing
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = [model(**tokenizer(row, return_tensors="pt")).logits for row in rows]
    return torch.cat(logits).softmax(1)


def test_weights_and_predictions_of_three(
    world: Path, trained: Path, run_together: Any, tmp_path: Path
) -> None:
    folders = [trained / f"seed-{seed}/model" for seed in SEEDS]
    states = [load_file(folder / "model.safetensors") for folder in folders]
    lines = (world / "data/glue/SST-2/dev.tsv").read_text().splitlines()[1:]
    rows = [line.split("\t")[0] for line in lines]
    mean_state = {}
    for key in states[0]:
        mean_state[key] = sum(state[key] for state in states) / 3
    each = [probabilities(folders[0], state, rows) for state in states]
    expected = {
        "weights": probabilities(folders[0], mean_state, rows),  # type: ignore[arg-type]
        "predictions": torch.stack(each).mean(0),
    }
    # Otherwise nothing below could tell the two, and one model, apart.
    assert not torch.allclose(expected["weights"], expected["predictions"], atol=1e-3)
    assert not torch.allclose(expected["predictions"], each[0], atol=1e-2)
    for how, values in expected.items():
        words = (f"models={trained}/seed-*/model", f"combine={how}", f"row={how}")
        run = run_together(f"scored/{how}", *words)
        logits = torch.tensor([answer["logits"] for answer in predictions(run)])
        torch.testing.assert_close(logits.softmax(1), values, atol=1e-5, rtol=1e-5)
        record = record_of(run)
        assert (record.facts["combine"], record.facts["num_models"]) == (how, 3)
        labels = [int(line.split("\t")[1]) for line in lines]
        hits = [int(row.argmax()) == label for row, label in zip(values, labels, strict=True)]
        accuracy = record.scores["validation/accuracy"].value
        assert accuracy == pytest.approx(100 * np.mean(hits))
    # Rows of a table, each of one value, which says how many models are behind it.
    table = infer_table(find(tmp_path / "scored"))
    for row in table.rows:
        cell = table.cells[row, table.columns[0].key]
        assert cell.notes == ("each score is of 3 models together",)
        assert len(cell.scores) == 1
        assert cell.estimate is not None
        assert (cell.estimate.count, cell.estimate.low) == (1, None)


def test_what_does_not_go_together_is_refused(
    finetune: Any, run_together: Any, tmp_path: Path
) -> None:
    one = finetune("task=sst2", "epochs=1", name="one") / "model"
    with pytest.raises(ValueError, match=r"give both, or neither"):
        run_together("refused", f"models=[{one}]")
    with pytest.raises(ValueError, match="is one folder: name two or more"):
        run_together("refused", f"models={one}", "combine=weights")
    with pytest.raises(ValueError, match="no encoder here"):
        model_folders([str(one), str(tmp_path / "none-*")])
    other = Path(shutil.copytree(one, tmp_path / "other"))
    facts = read_json(one, "config.json")["clozelab"]
    edit(other / "config.json", clozelab=facts | {"task": "mrpc"})
    with pytest.raises(ValueError, match="are of other shapes, tasks or classes"):
        model_folders([str(one), str(other)])
    # Whatever fold is scored, one of the two was trained on it.
    edit(other / "config.json", clozelab=facts | {"validation_fold": 1})
    (other / "checksums.json").unlink()
    words = [f"models=[{one},{other}]", "combine=predictions"]
    folds = ["train_file=glue/SST-2/train.tsv", "validation_file=null", "validation_folds=2"]
    with pytest.raises(ValueError, match=r"name a file that was in none, measure\.task\.data\.val"):
        run_together("refused", *words, *(f"measure.task.data.{setting}" for setting in folds))
    assert not (tmp_path / "refused").exists()
    run_together("refused", *words)


def test_several_thresholds_are_one(tmp_path: Path) -> None:
    """Each model of several labels a text, or of SQuAD 2.0, has chosen its own."""
    folders = []
    for number, threshold in enumerate((0.3, 0.7, None)):
        config = transformers.BertConfig().to_dict()
        config["clozelab"] = {"task": "mine", "answers": {"threshold": threshold}}
        folders.append(tmp_path / str(number))
        folders[-1].mkdir()
        (folders[-1] / "config.json").write_text(json.dumps(config))
    both = model_folders([str(folder) for folder in folders[:2]])
    target = SeveralClassesTarget(labels=["a", "b"])
    of_record = target.restore_config(mean_threshold(both))["label_threshold"]
    assert of_record == {"value": 0.5, "source": "the mean of 2 models' own"}
    assert target.threshold == 0.5
    own = SeveralClassesTarget(labels=["a", "b"]).restore_config(mean_threshold(both[:1]))
    assert own["label_threshold"] == {
        "value": 0.3,
        "source": "the model's own, from its fine-tuning",
    }
    with pytest.raises(ValueError, match="are of other shapes"):
        model_folders([str(folder) for folder in folders])


def test_means_of_other_outputs() -> None:
    outputs = torch.tensor([[[0.5, -2.0]], [[1.5, 4.0]]])
    several: Any = SeveralClassesTarget(labels=["a", "b"])
    expected = (outputs[0].sigmoid() + outputs[1].sigmoid()) / 2
    torch.testing.assert_close(mean_of(several, NO_HEAD, outputs).sigmoid(), expected)
    # In fp32 the probabilities of these are 1 and 0.
    sure = mean_of(several, NO_HEAD, torch.tensor([[[30.0, -120.0]], [[40.0, -130.0]]]))
    expected = torch.tensor([[30.0, -120.0]]) + math.log(2) * torch.tensor([[1.0, -1.0]])
    torch.testing.assert_close(sure, expected)
