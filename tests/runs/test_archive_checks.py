"""`clozelab verify` of a pack: a damaged file is named."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runs.archives import NAME, rewritten, say
from tests.screens import shows

from clozelab.runs.archive import RUNS

pytestmark = pytest.mark.usefixtures("no_pictures")
TUNED = f"{RUNS}/{NAME}/demo/finetune/mlm/pretrain-seed-1/mnli/seed-1"


def change_file(
    path: Path, name: str, change: Callable[[str], str], *, with_checksum: bool
) -> None:
    """Change one file of a pack, and its checksum in the manifest only if asked for."""

    def damage(entries: dict[str, bytes], manifest: dict[str, Any]) -> None:
        first: dict[str, str] = {}
        files = {}
        for file, checksum in manifest["files"].items():
            files[file] = entries[first.setdefault(checksum, file)]
        content = change(files[name].decode()).encode()
        assert content != files[name]
        files[name] = content
        if with_checksum:
            manifest["files"][name] = hashlib.sha256(content).hexdigest()
        # Equal files lie in the pack once, under the first of their names.
        stored = {checksum: file for file, checksum in reversed(manifest["files"].items())}
        entries.clear()
        entries |= {file: files[file] for file in stored.values()}

    rewritten(path, damage)


def test_a_whole_pack_passes_and_a_damaged_file_is_named(packed: Any, capsys: Any) -> None:
    pack = packed("one", 1, 2)
    status, said = say(["verify", str(pack)], capsys)
    assert status == 0
    shows(said, "checked: 41 checksums")
    change_file(
        pack,
        f"{TUNED}/run.json",
        lambda text: text.replace('"value": 6', '"value": 8'),
        with_checksum=False,
    )
    status, said = say(["verify", str(pack)], capsys)
    assert status == 1
    shows(said, "wrong")


def test_no_run_in_a_pack_is_going_on(packed: Any, tmp_path: Path, capsys: Any) -> None:
    pack = packed("one", 1)
    change_file(
        pack,
        f"{TUNED}/run.json",
        lambda text: text.replace('"complete"', '"running"', 1),
        with_checksum=True,
    )
    place = TUNED.removeprefix(f"{RUNS}/")
    for verb in (["verify"], ["pool", f"runs_dir={tmp_path / 'pooled'}"]):
        status, said = say([*verb, str(pack)], capsys)
        assert status == 1 and f"{place} does not match the manifest" in said
