"""Records and files of runs, as tests read and change them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clozelab.runs.record import Record, read_record


def read_json(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def record_of(folder: str | Path) -> Record:
    """The record in a folder, which has to be there."""
    record = read_record(Path(folder))
    assert record is not None, folder
    return record


def edit(path: Path, **changes: Any) -> None:
    """Change some keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def predictions(run: Path) -> list[dict[str, Any]]:
    """What a run answered, an example each."""
    return [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]
