"""The code that made a run is in its record, and is asked about before the run is used again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.composing import Given
from tests.runs import claimed
from tests.runs.claimed import INPUTS, claim, train
from tests.runs.records import record_of
from tests.screens import shows

from clozelab.launch.jobs import job_status
from clozelab.planning import reproduction
from clozelab.runs import code as code_module
from clozelab.runs.code import code_hash, code_of, hash_and_imports, sources_of_results
from clozelab.runs.reuse import find_equal_run, is_done
from clozelab.runs.store import share_equal_run
from clozelab.stages import reproduce

PACKAGE = Path(code_module.__file__).resolve().parents[1]
TARGETS: dict[str, Any] = {
    "objective": {
        "token": {"_target_": "clozelab.objectives.mlm.MaskedLanguageModel"},
        "pair": None,
    },
    "architecture": {"block": {"_target_": "clozelab.models.encoder.PostNorm"}},
    "optimizer": {"_target_": "clozelab.optim.adamw.build_adamw"},
    "task": {"target": {"_target_": "clozelab.tasks.classes.class_or_number"}},
}
PRETRAINING = {key: value for key, value in TARGETS.items() if key != "task"}
FINETUNING = {key: value for key, value in TARGETS.items() if key != "objective"}
COMMENTS: dict[str, Callable[[str], str]] = {
    "a comment": lambda text: "# something new\n" + text,
    "a docstring": lambda text: text.replace('"""', '"""Said otherwise. ', 1),
    "Windows' line endings": lambda text: text.replace("\n", "\r\n"),
    "empty lines": lambda text: text.replace("\n\n\n", "\n\n\n\n\n"),
}


LOADED = """
import importlib, sys
from clozelab.training.host import import_torchmetrics_quickly
import_torchmetrics_quickly()
for name in ("modules.pretraining", "datamodules.corpus", "objectives.mlm", "optim.adamw"):
    importlib.import_module(f"clozelab.{name}")
import clozelab.training.trainer
print(*sorted(name for name in sys.modules if name.startswith("clozelab.")))
"""


@pytest.fixture
def edit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[bool, bool]]:
    """edit(module, change) -> whether the code of a pre-training, and a fine-tuning, is another."""

    def run(
        module: str, change: Callable[[str], str] = lambda text: text + "\nNEW = 1\n"
    ) -> tuple[bool, bool]:
        before = code_hash("pretrain", PRETRAINING), code_hash("finetune", FINETUNING)
        text = (PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        new = change(text)
        assert new != text
        known = dict(sources_of_results())
        if module in known:
            known[module] = new.encode()
        with monkeypatch.context() as patch:
            patch.setattr(code_module, "sources_of_results", lambda: known)
            after = code_hash("pretrain", PRETRAINING), code_hash("finetune", FINETUNING)
        return before[0] != after[0], before[1] != after[1]

    return run


@pytest.mark.parametrize(
    ("module", "of_pretraining", "of_finetuning"),
    [
        ("objectives.mlm", True, False),
        ("objectives.rtd", False, False),  # no target of either
        ("modules.pretraining", True, False),
        ("tasks.classes", False, True),
        ("corpus.random", True, True),
        ("models.layers", True, True),
        ("assembly.factory", True, True),
        ("assembly.finetuning", False, True),
        ("stages.pretrain", True, False),
        ("training.tracking", False, False),
        ("runs.store", False, False),
        ("launch.launcher", False, False),
    ],
)
def test_what_a_run_imports_when_it_trains_counts(
    edit: Callable[..., tuple[bool, bool]], module: str, of_pretraining: bool, of_finetuning: bool
) -> None:
    assert edit(module) == (of_pretraining, of_finetuning)


@pytest.mark.parametrize("what", COMMENTS)
def test_what_only_reads_otherwise_does_not_count(
    edit: Callable[..., tuple[bool, bool]], what: str
) -> None:
    assert edit("objectives.mlm", COMMENTS[what]) == (False, False)
    assert edit("objectives.mlm") == (True, False)  # the control


def test_every_module_that_the_trainings_classes_load_counts() -> None:
    """By what Python itself has loaded, in a process of its own."""
    command = [sys.executable, "-c", LOADED]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    loaded = {name.removeprefix("clozelab.") for name in said.split()} & sources_of_results().keys()
    assert {"models.encoder", "corpus.instances", "objectives.objective"} < loaded
    packages = {"corpus", "models", "modules", "objectives", "optim", "training", "datamodules"}
    unseen = loaded - packages - code_of("pretrain", PRETRAINING).keys()
    assert not [name for name in unseen if not name.endswith("__init__")]


def test_an_installed_copy_is_the_same_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = code_hash("pretrain", PRETRAINING)
    copy = shutil.copytree(PACKAGE, tmp_path / "site-packages" / "clozelab")
    monkeypatch.setattr(code_module, "__file__", str(copy / "runs" / "code.py"))
    monkeypatch.setattr(code_module, "sources_of_results", sources_of_results.__wrapped__)
    assert code_hash("pretrain", PRETRAINING) == here
    mlm = copy / "objectives" / "mlm.py"
    mlm.write_text(mlm.read_text() + "\nNEW = 1\n")
    assert code_hash("pretrain", PRETRAINING) != here


# Runs of other code


def configuration(runs: Path, experiment: str = "first", **changes: Any) -> Given:
    return claimed.configuration(runs, experiment, **PRETRAINING, **changes)


@pytest.fixture
def other_mlm(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and objectives/mlm.py says something else from now on."""

    def change() -> None:
        known = sources_of_results()
        changed = known | {"objectives.mlm": known["objectives.mlm"] + b"\nNEW = 1\n"}
        monkeypatch.setattr(code_module, "sources_of_results", lambda: changed)

    return change


def test_a_record_says_by_which_code_and_in_which_environment_it_was_made(tmp_path: Path) -> None:
    train(configuration(tmp_path))
    record = record_of(configuration(tmp_path).run_dir)
    assert record.code == code_hash("pretrain", record.config) and len(record.code) == 64
    assert record.home == "first/tiny/pretrain/mlm/seed-1"
    assert record.environment["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert {"torch", "numpy", "tokenizers", "kernels"} < record.environment.keys()
    assert "transformers" not in record.environment


def test_a_complete_run_of_other_code_is_said_once_and_taken(
    tmp_path: Path, other_mlm: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    config = configuration(tmp_path)
    train(config)
    caplog.clear()
    with claim(config) as run:
        assert run.is_complete and not caplog.messages  # the control
    made = record_of(config.run_dir).code
    other_mlm()
    assert is_done(config.run_dir, stage="pretrain", config=config)
    with claim(config) as run:
        assert run.is_complete
    (said,) = caplog.messages
    now = code_hash("pretrain", run.content.config)
    assert config.run_dir in said and made[:10] in said and now[:10] in said
    shows(said, "it is taken as it is (reuse=never trains anew)")
    assert record_of(config.run_dir).code == made


def test_a_begun_run_goes_on_and_keeps_the_code_of_its_first_session(
    tmp_path: Path, other_mlm: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    config = configuration(tmp_path)
    with pytest.raises(KeyboardInterrupt), claim(config) as run:
        (run.dir / "checkpoints").mkdir()
        (run.dir / "checkpoints/last.ckpt").touch()
        raise KeyboardInterrupt
    first = record_of(config.run_dir).code
    other_mlm()
    train(config)
    shows(caplog.text, "it is taken as it is (reuse=never trains anew)")  # once
    record = record_of(config.run_dir)
    assert record.code != first
    (earlier,) = record.earlier_sessions
    assert earlier["code"] == first
    mlm_hash, _ = hash_and_imports(sources_of_results()["objectives.mlm"])
    assert earlier["modules"]["objectives.mlm"] == mlm_hash[:8]
    assert record.modules["objectives.mlm"] != earlier["modules"]["objectives.mlm"]
    # It stays a run that other code has begun, also once today's has finished it.
    assert find_equal_run(configuration(tmp_path, "second"), INPUTS) is None


def test_a_run_that_begins_anew_is_of_the_code_that_trains_it(
    tmp_path: Path, other_mlm: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """A first start that failed at once, then the mended code: nothing of the first is left."""
    config = configuration(tmp_path)
    with pytest.raises(KeyboardInterrupt), claim(config):
        raise KeyboardInterrupt
    other_mlm()
    train(config)
    with claim(config) as run:
        assert run.is_complete
    assert "made by other code" not in caplog.text
    record = record_of(config.run_dir)
    assert (record.sessions, record.earlier_sessions) == (2, [])


def test_another_experiment_does_not_share_it(
    tmp_path: Path, other_mlm: Callable[[], None]
) -> None:
    train(configuration(tmp_path))
    other = configuration(tmp_path, "second")
    assert find_equal_run(other, INPUTS)  # the control
    other_mlm()
    assert job_status(other, other.run_dir) == ("new", "")
    share_equal_run(other, INPUTS)
    assert not Path(other.run_dir).exists()


def test_a_run_that_is_to_go_is_trained_anew(
    tmp_path: Path, other_mlm: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    train(configuration(tmp_path))
    other_mlm()
    again = configuration(tmp_path, reuse="never")
    assert not is_done(again.run_dir, stage="pretrain", config=again)
    with claim(again) as run:
        assert not run.is_complete
        run.complete()
    assert "other code" not in caplog.text


def test_a_reproduction_that_finds_everything_complete_says_it_too(
    tmp_path: Path, other_mlm: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    train(configuration(tmp_path))
    root = (tmp_path / "first" / "tiny", "")
    step = SimpleNamespace(is_sweep=False, root=root, overrides=(), config_name="")
    experiment = SimpleNamespace(folder=Path("first"))
    monkeypatch.setattr(reproduce, "open_experiment", lambda _: experiment)
    monkeypatch.setattr(reproduce, "make_steps", lambda *_: [step])
    monkeypatch.setattr(reproduction, "load_experiment", Path)
    monkeypatch.setattr(reproduction, "all_complete", lambda _: True)
    monkeypatch.setattr(reproduction, "judge", lambda *_: None)
    assert reproduce.main(["first"]) == 0
    assert "made by other code" not in caplog.text  # the control
    other_mlm()
    assert reproduce.main(["first"]) == 0 and caplog.text.count("made by other code") == 1
