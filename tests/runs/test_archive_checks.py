"""`clozelab verify` of a pack: a damaged file is named, and so is a table that the records do not
make.
"""

from __future__ import annotations

import csv
import hashlib
import io
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
    shows(said, "checked: 41 checksums, 18 lines of results.csv")
    change_file(
        pack,
        f"{TUNED}/run.json",
        lambda text: text.replace('"value": 6', '"value": 8'),
        with_checksum=False,
    )
    status, said = say(["verify", str(pack)], capsys)
    assert status == 1
    shows(said, "wrong")


def column_taken_out(text: str, name: str) -> str:
    header, *lines = csv.reader(text.splitlines())
    index = header.index(name)
    rows = [[*line[:index], *line[index + 1 :]] for line in (header, *lines)]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text, ""),
        (lambda text: text.replace(",True,", ",False,", 1), "results.csv says 'table5"),
        (lambda text: text.replace(",unit,", ",unt,", 1), "results.csv says 'experiment"),
        (lambda text: column_taken_out(text, "score"), "results.csv says 'experiment"),
        (lambda text: text.rstrip("\n").rpartition("\n")[0] + "\n", "results.csv says ''"),
        (lambda _: "", "results.csv says ''"),
    ],
    ids=["as it was", "a value", "an unknown column", "a missing column", "a line less", "empty"],
)
def test_a_pack_of_before_a_column_was_added_is_what_it_says(
    packed: Any, capsys: Any, change: Callable[[str], str], message: str
) -> None:
    """Its other columns are compared as ever."""
    pack = packed("one", 1, 2)
    change_file(
        pack,
        "results.csv",
        lambda text: change(column_taken_out(text, "positive_label")),
        with_checksum=True,
    )
    status, said = say(["verify", str(pack)], capsys)
    assert status == int(bool(message)) and message in said, said


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
