"""A built wheel brings conf/ and experiments/ along and works from any folder, without the
checkout.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel, as pip would lay it into site-packages."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    command += ["--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    (wheel,) = folder.glob("clozelab-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


EACH = (
    "import sys; from clozelab.cli import main; sys.exit(max(main(words.split()) for words in"
    " sys.argv[1:]))"
)


def python(site: Path, cwd: Path, *words: str) -> str:
    """What a Python that imports from the wheel prints, started in `cwd`."""
    # The wheel's folder goes before an editable install's path; the next test makes sure of it.
    environment = os.environ | {"PYTHONPATH": str(site), "HOME": str(cwd)}
    result = subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def run(site: Path, cwd: Path, *commands: str) -> str:
    """What `clozelab WORDS` of the wheel prints, one command after another in one process."""
    if len(commands) == 1:
        return python(site, cwd, "-m", "clozelab", *commands[0].split())
    return python(site, cwd, "-c", EACH, *commands)


def test_the_wheel_is_what_runs(site: Path, tmp_path: Path) -> None:
    code = "import clozelab.text.paths as c; print(c.CONF_DIR, c.EXPERIMENTS_DIR)"
    folders = [str(site / "clozelab" / name) for name in ("conf", "experiments")]
    assert python(site, tmp_path, "-c", code).split() == folders


def test_every_stage_composes(site: Path, tmp_path: Path) -> None:
    verbs = ("prepare", "pretrain", "finetune")
    assert (
        run(site, tmp_path, *(f"{verb} --cfg job" for verb in verbs)).count("data_dir: data\n") == 3
    )
    for verb in verbs:  # Hydra ends a process that it has helped
        assert "Keys that people set" in run(site, tmp_path, f"{verb} --help")


def test_its_experiments_are_listed(site: Path, tmp_path: Path) -> None:
    assert "table5" in run(site, tmp_path, "list")
    text = run(site, tmp_path, *(f"{verb} --help" for verb in ("reproduce", "report", "list")))
    assert all(f"clozelab {verb}" in text for verb in ("reproduce", "report", "list"))
