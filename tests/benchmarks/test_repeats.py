"""benchmarks/repeats.py: which published verdicts come out again with other seeds."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
COSTS = "left-to-right costs tags that the right decides"
EQUAL = "NSP changes tags by less than 3 points"
HELPS = "pre-training helps tags"


@pytest.fixture
def repeats(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/repeats.py as a module."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "repeats", raising=False)
    return importlib.import_module("repeats")


def write_page(
    folder: Path, name: str, seeds: list[int], verdicts: dict[str, tuple[str, str]]
) -> None:
    """A page of two_sides with these seeds: claim -> (verdict, difference)."""
    page = folder / name
    page.mkdir()
    with (page / "results.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["experiment", "stage", "pretrain_seed"])
        writer.writerow(["two_sides", "evaluate", 1])  # of fresh weights, whose seed is no draw
        writer.writerows(["two_sides", "pretrain", seed] for seed in seeds)
    with (page / "claims.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "judged_on", "verdict", "ours", "interval"])
        for text, (verdict, difference) in verdicts.items():
            writer.writerow([text, "dials Tags", verdict, difference, "[x, y]"])


@pytest.mark.parametrize(
    ("text", "again", "outcome"),
    [
        (COSTS, ("holds", "−40.0"), "decided alike"),
        (COSTS, ("contradicted", "+40.0"), "decided otherwise"),
        (COSTS, ("inconclusive", "−2.0"), "open, on the same side"),
        (COSTS, ("inconclusive", "+2.0"), "open, on the other side"),
        (EQUAL, ("inconclusive", "+2.0"), "open, on the same side"),
        (EQUAL, ("inconclusive", "+4.0"), "open, on the other side"),
    ],
)
def test_outcomes(
    repeats: ModuleType, tmp_path: Path, text: str, again: tuple[str, str], outcome: str
) -> None:
    first = "0.0"
    if text == COSTS:
        first = "−50.0"
    write_page(tmp_path, "2026-01-02-first", [1, 2], {text: ("holds", first)})
    write_page(tmp_path, "2026-01-01-again", [3, 4], {text: again})
    verdicts = repeats.read_results(tmp_path)
    decided = [verdict for verdict in verdicts if verdict.page == "2026-01-02-first"]
    [repeat] = repeats.repeats_of(decided, verdicts)
    assert repeat.outcome == outcome


def test_the_latest_table_counts_and_shared_seeds_do_not(
    repeats: ModuleType, tmp_path: Path
) -> None:
    write_page(tmp_path, "2026-01-01-old", [1, 2, 3], {HELPS: ("holds", "+70.0")})
    write_page(tmp_path, "2026-01-02-few", [4], {HELPS: ("inconclusive", "+70.0")})
    write_page(tmp_path, "2026-01-02-a-many", [3, 5, 6], {HELPS: ("holds", "+71.0")})
    verdicts = repeats.read_results(tmp_path)
    [latest] = repeats.latest_decided(verdicts)
    assert latest.page == "2026-01-02-a-many"
    [repeat] = repeats.repeats_of([latest], verdicts)
    assert repeat.again.page == "2026-01-02-few"
    assert "1 decided claims, 1 of them asked again" in repeats.shown([latest], [repeat])


def test_a_page_without_scores_has_its_registered_seeds(
    repeats: ModuleType, tmp_path: Path
) -> None:
    write_page(tmp_path, "2026-01-01-page", [], {HELPS: ("holds", "+70.0"), COSTS: ("", "–")})
    page = tmp_path / "2026-01-01-page"
    (page / "results.csv").unlink()
    content = {"key": {"name": "two_sides"}, "seeds": {"pre-training": [7, 8]}}
    (page / "registration.json").write_text(json.dumps({"registrations": [{"content": content}]}))
    [verdict] = repeats.read_results(tmp_path)
    assert verdict.experiment == "two_sides"
    assert verdict.seeds == {"7", "8"}
