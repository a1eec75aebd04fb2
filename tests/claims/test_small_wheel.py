"""The package `claims` by itself: no torch, nothing of clozelab, in a wheel of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import claims

ROOT = Path(__file__).resolve().parents[2]
SCORES = "arm,seed,task,score\na,1,t,81\na,2,t,82\na,3,t,83\nb,1,t,71\nb,2,t,73\nb,3,t,72\n"
CLAIMS = "- {text: a is ahead, compare: [a, b, t], direction: higher}\n"
IMPORT_ALL = """
import pkgutil, sys, claims
for module in pkgutil.walk_packages(claims.__path__, "claims."):
    __import__(module.name)
heavy = {"torch", "lightning", "hydra", "omegaconf", "pandas", "pyarrow", "clozelab"}
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
"""
JUDGE = """
import sys
class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("torch", "clozelab", "microworld", "hydra", "pandas"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from claims.cli import main
import claims
print(claims.__file__)
sys.exit(main(["judge", "scores.csv", "claims.yaml", "--out", "report"]))
"""


def run(code: str, folder: Path, path: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(path)}
    command = [sys.executable, "-c", code]
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_all_of_it_is_imported_without_torch_and_clozelab(tmp_path: Path) -> None:
    run(IMPORT_ALL, tmp_path, Path(claims.__file__).parents[1])


@pytest.mark.slow
def test_its_wheel_judges_where_nothing_else_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    command += ["--outdir", str(tmp_path), str(ROOT / "packaging" / "claims")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("clozelab_claims-*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        assert not [name for name in archive.namelist() if name.startswith("clozelab/")]
    (tmp_path / "scores.csv").write_text(SCORES)
    (tmp_path / "claims.yaml").write_text(CLAIMS)
    printed = run(JUDGE, tmp_path, site)
    assert printed.startswith(str(site)) and "holds" in printed
    assert (tmp_path / "report" / "report.html").is_file()
