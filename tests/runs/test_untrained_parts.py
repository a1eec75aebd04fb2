"""A part that no loss has read is named: in the folder's configuration, and by read_model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.runs.records import edit, read_json
from tests.runs.test_pretrain_run import run_here

import clozelab
from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder, read_config
from clozelab.modules.model import read_model
from clozelab.stages.export import main as export

transformers = pytest.importorskip("transformers")
SHORT = {"phases": "[{seq_length: 16, steps: 2, global_batch_size: 8, micro_batch_size: 8}]"}
POOLER = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}


@pytest.fixture(scope="module")
def run_of(workplace: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """run_of(objective, **changes) -> the run's folder; each is made once."""
    folders: dict[str, Path] = {}

    def make(name: str, **changes: object) -> Path:
        key = f"{name} {changes}"
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("run") / "run"
            run_here(workplace, folders[key], objective=name, **SHORT, **changes)
        return folders[key]

    return make


def marked(folder: Path) -> object:
    return read_json(folder, "config.json")["clozelab"].get("untrained")


OTHERS = {"mpnet": {"architecture": "mpnet"}, "ltr_rtl": {"architecture": "two_directions"}}
SLOW = ("ltr", "permuted", "mpnet", "spans")


@pytest.mark.parametrize(
    "objective",
    ["mlm", "ltr_rtl", *(pytest.param(one, marks=pytest.mark.slow) for one in SLOW)],
)
def test_a_pooler_that_no_loss_reads_is_named(run_of: Any, objective: str) -> None:
    folder = run_of(objective, **OTHERS.get(objective, {})) / "encoder"
    assert marked(folder) == ["pooler"] and read_model(folder).untrained == ("pooler",)


@pytest.mark.parametrize(
    ("objective", "given", "untrained"),
    [
        ("mlm_nsp", None, None),
        ("mlm_sop", None, None),
        # Of a given encoder, a pooler that was trained before is no noise.
        ("mlm", "mlm", ["pooler"]),
        ("mlm", "mlm_nsp", []),
        ("mlm_nsp", "mlm", None),
    ],
)
def test_a_pooler_that_a_pair_objective_trains_is_not(
    run_of: Any, objective: str, given: str | None, untrained: list[str] | None
) -> None:
    changes = {} if given is None else {"encoder": run_of(given) / "encoder"}
    folder = run_of(objective, **changes) / "encoder"
    assert marked(folder) == untrained and read_model(folder).untrained == tuple(untrained or ())


def test_both_models_of_replaced_tokens_are_marked(run_of: Any) -> None:
    run = run_of("rtd", **{"model.num_attention_heads": 4})
    for name in ("encoder", "generator"):
        assert marked(run / name) == ["pooler"]
        assert "pooler" in read_model(run / name).untrained


def test_its_bytes_stay_for_a_fine_tuning(run_of: Any) -> None:
    """They are the draws of the seed that pre-training began from, as ever."""
    folder = run_of("mlm") / "encoder"
    stored = load_file(folder / "model.safetensors")
    assert stored.keys() >= POOLER
    torch.manual_seed(0)
    encoder = load_encoder(folder, seed=123)
    assert torch.equal(encoder.pooler.dense.weight, stored["bert.pooler.dense.weight"])
    other = Encoder(read_config(folder), torch.Generator().manual_seed(123))
    assert not torch.equal(encoder.pooler.dense.weight, other.pooler.dense.weight)


def test_an_export_leaves_it_out_and_says_so(run_of: Any, tmp_path: Path) -> None:
    assert export([str(run_of("mlm")), f"to={tmp_path / 'm'}", "head=false"]) == 0
    assert not POOLER & load_file(tmp_path / "m" / "model.safetensors").keys()
    assert "pooler was never trained" in (tmp_path / "m" / "README.md").read_text()
    assert export([str(run_of("mlm_nsp")), f"to={tmp_path / 'nsp'}"]) == 0
    assert load_file(tmp_path / "nsp" / "model.safetensors").keys() >= POOLER
    assert "never trained" not in (tmp_path / "nsp" / "README.md").read_text()


def test_an_older_folder_says_it_by_its_objective(run_of: Any, tmp_path: Path) -> None:
    for name, expected in (("mlm", ("pooler",)), ("mlm_nsp", ())):
        folder = Path(shutil.copytree(run_of(name) / "encoder", tmp_path / name))
        facts = read_json(folder, "config.json")["clozelab"]
        facts.pop("untrained", None)
        edit(folder / "config.json", clozelab=facts)
        (folder / "checksums.json").unlink()
        assert read_model(folder).untrained == expected


@pytest.mark.parametrize("has_mark", [True, False], ids=["marked", "older"])
def test_a_head_that_transformers_has_trained_on_it_is_read(
    run_of: Any, tmp_path: Path, has_mark: bool
) -> None:
    """It keeps what our config.json says, and its head reads the pooler."""
    path = run_of("mlm") / "encoder"
    model = transformers.BertForSequenceClassification.from_pretrained(path, num_labels=3).eval()
    model.save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    tokenizer.save_pretrained(tmp_path)
    facts = read_json(tmp_path, "config.json")["clozelab"]
    assert facts.pop("untrained") == ["pooler"]
    if not has_mark:
        edit(tmp_path / "config.json", clozelab=facts)
    found = read_model(tmp_path)
    assert found.untrained == () and "classification" in found.heads
    predictor = clozelab.load(tmp_path, precision="32-true", device="cpu")
    text = " ".join([word for word in predictor.tokenizer.vocabulary if word.isalpha()][:3])
    with torch.no_grad():
        logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
    shares = list(predictor.classify(text).probabilities.values())
    assert torch.allclose(torch.tensor(shares), logits.softmax(-1), atol=1e-5)
