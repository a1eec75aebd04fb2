"""The bands that come along are those of the packs: one pack gives its own lines again."""

from __future__ import annotations

from pathlib import Path

from tests.simulation import ROOT, benchmark

from clozelab.runs.loss_bands import load_bands

RESULT = "2026-11-26-distillation-retention"
"""A small pack; no other one has runs of its kinds."""
PACK = ROOT / "docs/results" / RESULT / "runs.zip"
# The script, as a module.
made = benchmark("loss_bands")


def test_a_pack_makes_the_bands_that_came_from_it(tmp_path: Path) -> None:
    bands = made.bands_of(list(made.read_places([PACK], tmp_path)))
    shipped = {str(band.losses): band for band in load_bands() if band.results == [RESULT]}
    assert len(bands) == len(shipped) == 6
    for band in bands:
        of_package = shipped[str(band["losses"])]
        assert (band["name"], band["tokens"]) == (of_package.name, of_package.tokens)
        own, theirs = band["settings"], of_package.settings
        for key in own | theirs:
            assert own.get(key) == theirs.get(key), key


def test_two_seeds_make_no_band(tmp_path: Path) -> None:
    runs = list(made.read_places([PACK], tmp_path))
    two_seeds = [(place, run) for place, run in runs if run.seed in (1, 2)]
    assert len(two_seeds) == 12 and made.bands_of(two_seeds) == []
    # The same run from two places is one seed.
    assert made.bands_of(two_seeds * 2) == []
