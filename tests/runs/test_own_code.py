"""A record knows the code of a person's own package as it knows this one's."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.composing import given

from clozelab.addresses import PERMITTED
from clozelab.planning.plan_screen import _print_command
from clozelab.runs.code import code_of, own_code
from clozelab.runs.progress import read_launches, write_launch
from clozelab.runs.record import read_record
from clozelab.runs.reuse import other_code
from clozelab.runs.store import Run

OURS = "clozelab.objectives.mlm.MaskedLanguageModel"


def test_an_edit_of_ones_own_code_is_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "ownparts"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "heads.py").write_text("def make(): ...\n")
    (tmp_path / "ownfile.py").write_text("def make(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    targets = {"a": {"_target_": "ownparts.heads.make"}, "b": {"_target_": "ownfile.make"}}
    config = given("pretrain", {"arm": "mlm", "seed": 1, **targets})
    plain = code_of("pretrain", config.recorded)
    assert not any(name.startswith("own") for name in plain), "nobody has allowed it"

    monkeypatch.setenv(PERMITTED, "ownparts,ownfile")
    own = code_of("pretrain", config.recorded)
    assert own.keys() - plain.keys() == {"ownparts/__init__.py", "ownparts/heads.py", "ownfile"}
    with Run.claim(tmp_path / "run", stage="pretrain", config=config) as run:
        run.complete()
    record = read_record(tmp_path / "run")
    assert other_code(record) == ""
    # Any file of it may be imported.
    (package / "helpers.py").write_text("SIZE = 3\n")
    own_code.cache_clear()  # as of the next process
    assert "was made by other code" in other_code(record)
    (package / "helpers.py").unlink()
    (tmp_path / "ownfile.py").write_text("def make(): return 1\n")
    own_code.cache_clear()
    assert "was made by other code" in other_code(record)


def test_what_ones_own_code_imports_is_code_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "ownlosses"
    package.mkdir()
    (package / "focal.py").write_text(
        "import numpy\nimport clozelab.objectives.spans as spans\n"
        "from clozelab.objectives.mlm import MaskedLanguageModel\nfrom ownhelp import gamma\n"
    )
    (package / "template.py").write_text("{{ this is no Python }}\n")
    (tmp_path / "ownhelp.py").write_text("gamma = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = {"objective": {"token": {"_target_": "ownlosses.focal.Focal"}}}
    monkeypatch.setenv(PERMITTED, "ownlosses")
    code = code_of("pretrain", config)
    assert {"ownlosses/template.py", "objectives.mlm", "objectives.spans"} <= code.keys()
    assert "ownhelp" not in code, "nobody has allowed it"

    monkeypatch.setenv(PERMITTED, "ownlosses,ownhelp")
    assert "ownhelp" in code_of("pretrain", config)


def test_commands_that_go_on_allow_the_packages_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`allow_targets=` is taken off a command line before any other part sees it."""
    package = "ownsweep"
    (tmp_path / f"{package}.py").write_text("def make(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(PERMITTED, package)
    nodes = {"a": {"_target_": f"{package}.make"}, "b": {"_target_": OURS}, "c": {"_target_": None}}
    config = given("pretrain", {"arm": "mlm", "seed": 1, **nodes})
    with Run.claim(tmp_path / "run", stage="pretrain", config=config) as run:
        run.complete()
    record = read_record(tmp_path / "run")
    assert record is not None and f"allow_targets=[{package}]" in record.argv

    names = {"pretrain": [record.job_name]}
    write_launch(tmp_path, ["pretrain", "-m", "seed=1,2"], names)
    command = read_launches(tmp_path)["pretrain"].command(tmp_path)
    assert command.endswith(f"clozelab pretrain -m seed=1,2 'allow_targets=[{package}]'")

    monkeypatch.delenv(PERMITTED)
    write_launch(tmp_path, ["pretrain", "-m", "seed=1,2"], names)
    assert "allow_targets" not in read_launches(tmp_path)["pretrain"].command(tmp_path)


def test_the_command_of_a_plan_allows_the_packages_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PERMITTED, "ownsweep")
    _print_command(["optimizer=mine"], "steps_factor=2")
    command = "clozelab pretrain optimizer=mine steps_factor=2 'allow_targets=[ownsweep]'"
    assert capsys.readouterr().out == f"run: {command}\n"
