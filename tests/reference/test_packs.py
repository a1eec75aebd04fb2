"""Published packs of runs open, and are judged as they were: `claims.csv` has the same cells.

`clozelab verify` finds each intact, and today's code makes its `results.csv` of its records. An
older one lacks the columns that were added since.

Frozen files have the labels of verdicts that earlier versions wrote, where today's have a code and
a column `exploratory`, three older words in their notes, and fewer digits of an interval whose end
came to zero; every other cell is compared as text.

`packs/NAME.csv` holds what was made of `docs/results/NAME/runs.zip`, by the pack's own experiment:
by commit 3343c5f, or by the commit that published a later one. Five of them it refused for an older
results version; of those it is what it made without that check. One small pack is opened in every
run of the suite, all others with `pytest -m slow tests/reference/test_packs.py`.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from tests.results.words import as_frozen

from claims.analysis.verdict_codes import read_verdict
from claims.tables.layout import SCORES_FILE
from clozelab.cli import main
from clozelab.report import render
from clozelab.report.packed_results import write_results_table
from clozelab.results.experiment import load_experiment
from clozelab.runs.archive import open_archive, unpack

PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "results"
FROZEN = sorted(Path(__file__).with_name("packs").glob("*.csv"))
SMALL = "2026-11-25-masking-rate-laptop"
# of the notes in frozen files -> as they are written today
FORMER_WORDS = {
    "below its floor": "below its baseline",
    "after a look at": "after an interim analysis of",
    "stand-in": "substitute",
}
# the same of what would decide a claim
FEWER_ONCE = "with fewer once the primary claim '"
# of today's files: figures that other columns have as text
NUMBERS = ("unit", "difference", "low", "high", "p_value", "corrected_p")


def claims_of(pack: Path, place: Path) -> Path:
    """The `claims.csv` that pooling a pack into an empty folder and reporting on it gives."""
    manifest, wrong = unpack(pack, place / "pack")
    assert not wrong
    assert main(["pool", str(pack), f"runs_dir={place / 'pooled'}"]) == 0
    experiment = load_experiment(place / "pack" / "experiment" / manifest.experiment)
    runs = place / "pooled" / manifest.root
    render.write_report(experiment, runs, place / "report", scale=manifest.scale)
    return place / "report" / "claims.csv"


def read_claims_file(path: Path) -> list[dict[str, str]]:
    """The lines of a claims.csv of any version, with today's columns."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        for former, present in FORMER_WORDS.items():
            line["note"] = line["note"].replace(former, present)
        line["needs"] = line["needs"].replace("with fewer once '", FEWER_ONCE)
        code, is_exploratory = read_verdict(line["verdict"])
        line["verdict"] = code
        line.setdefault("exploratory", str(is_exploratory))
        for column in NUMBERS:
            line.pop(column, None)
    return lines


def is_slow(frozen: Path) -> list[Any]:
    return [] if frozen.stem == SMALL else [pytest.mark.slow]


@pytest.mark.parametrize(
    "frozen", [pytest.param(one, id=one.stem, marks=is_slow(one)) for one in FROZEN]
)
def test_a_published_pack_is_judged_as_it_was(
    frozen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pictures take longer than everything else, and are drawn from the same table.
    monkeypatch.setattr(render, "_plots", lambda *_: {})
    found = read_claims_file(claims_of(PUBLISHED / frozen.stem / "runs.zip", tmp_path))
    expected = read_claims_file(frozen)
    for line, frozen_line in zip(found, expected, strict=True):
        line["interval"] = as_frozen(line["interval"], frozen_line["interval"])
    assert found == expected


@pytest.mark.parametrize(
    "frozen", [pytest.param(one, id=one.stem, marks=is_slow(one)) for one in FROZEN]
)
def test_a_published_pack_is_what_it_says(
    frozen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = PUBLISHED / frozen.stem / "runs.zip"
    assert main(["verify", str(pack)]) == 0, capsys.readouterr().out
    archive = open_archive(pack, tmp_path / "pack")
    (tmp_path / "again").mkdir()
    made = write_results_table(
        archive.manifest, archive.records, archive.experiment, tmp_path / "again"
    )
    packed, again = lines_of(archive.folder / SCORES_FILE), lines_of(made)
    assert len(packed) == len(again) > 0
    known = [dict(zip(packed[0], map(line.get, packed[0]), strict=True)) for line in again]
    assert packed == known
    assert set(again[0]) - set(packed[0]) <= {"positive_label", "higher_is_better"}


def lines_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_frozen_pack_makes_claims() -> None:
    """A file with a heading alone would prove nothing."""
    assert {frozen.stem for frozen in FROZEN} == {
        pack.parent.name for pack in PUBLISHED.glob("*/runs.zip")
    }
    for frozen in FROZEN:
        assert len(frozen.read_text(encoding="utf-8").splitlines()) > 3, frozen.stem
