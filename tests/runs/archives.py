"""Packs of made-up runs, and what a forger makes of them."""

from __future__ import annotations

import json
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.runs.records import edit

from clozelab.cli import main
from clozelab.runs.archive import MANIFEST

NAME = "table5_pretraining_tasks"
MEANS = {
    ("mlm_nsp", "mnli"): 60.0,
    ("mlm_nsp", "mrpc"): 60.0,
    ("mlm", "mnli"): 63.0,
    ("mlm", "mrpc"): 63.0,
    ("ltr", "mnli"): 66.0,
    ("ltr", "mrpc"): 66.0,
}


def say(words: list[str], capsys: Any) -> tuple[int, str]:
    capsys.readouterr()
    status = main(words)
    out = capsys.readouterr()
    return status, " ".join((out.out + out.err).split())


def on_machines(root: Path) -> None:
    """Odd pre-training seeds on one machine, even ones on another."""
    for path in root.rglob("run.json"):
        config = json.loads(path.read_text())["config"]
        host = f"machine-{config.get('pretrain_seed', config['seed']) % 2}"
        edit(path, process={"pid": 1, "host": host})


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def rewritten(path: Path, change: Callable[[dict[str, bytes], dict[str, Any]], None]) -> None:
    """A pack with other entries and another manifest, as a forger would write it."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist() if name != MANIFEST}
        manifest = json.loads(archive.read(MANIFEST))
    change(entries, manifest)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in ({MANIFEST: json.dumps(manifest).encode()} | entries).items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (
                (stat.S_IFLNK | 0o777) << 16 if content == b"/etc/passwd" else 0o644 << 16
            )
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
