"""Reports on made-up runs, and their pages in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from clozelab.report.render import Report, write_report
from clozelab.results.experiment import find_experiment, load_experiment
from clozelab.stages.report import main

TABLE_5 = "table5_pretraining_tasks"
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no browser on this machine")


def written(root: Path, name: str = TABLE_5, target: str = "report") -> Report:
    experiment = load_experiment(find_experiment(name))
    return write_report(experiment, root, root / target, scale="demo")


def tex_of(root: Path, name: str = TABLE_5) -> str:
    """What the verb writes for a paper."""
    assert main([name, "scale=demo", f"runs_dir={root.parents[1]}", "--paper"]) == 0
    return (root / "report/report.tex").read_text()


def seen_in_browser(page: Path, *switches: str) -> Any:
    """What the script of a page has written into its element `seen`."""
    usual = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    usual += ["--disable-background-networking", f"--user-data-dir={page.parent / 'browser'}"]
    command = [str(BROWSER), *usual, *switches, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout)
    assert found is not None
    return json.loads(unescape(found[1]))
