"""A forecast of what does not say how large it is, as a data set of the hub without its card."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.screens import shows
from tests.stages.test_prepare import config

from clozelab.corpus.files import TextFile
from clozelab.corpus.preparation.forecast import CorpusForecast, forecast_source
from clozelab.stages.prepare import print_forecast


@dataclass(frozen=True)
class Stream(TextFile):
    num_bytes = 0


def stream_of(path: Path, num_lines: int) -> Stream:
    path.write_text("A line of it.\n\n" * num_lines)
    return Stream("a.txt", 0, "text", "text", path)


def test_a_stream_that_was_not_read_to_its_end_is_not_known(tmp_path: Path) -> None:
    forecast = forecast_source([stream_of(tmp_path / "a.txt", 40_000)], [], None, seconds=0.0)
    assert math.isnan(forecast.tokens) and math.isnan(forecast.disk_bytes)


def test_a_short_stream_is_counted(tmp_path: Path) -> None:
    forecast = forecast_source([stream_of(tmp_path / "a.txt", 50)], [], None, seconds=10.0)
    assert (forecast.documents, forecast.disk_bytes) == (50, 750)


def test_a_dry_run_says_what_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = CorpusForecast(1, *[math.nan] * 6)
    known = CorpusForecast(1, 4e6, 1000, 4e6, 9e5, 2.0, 2e6)
    sources = {"web": unknown, "books": known}
    monkeypatch.setattr("clozelab.assembly.corpora.find_corpus", lambda _: None)
    monkeypatch.setattr("clozelab.assembly.corpora.forecast_corpus", lambda _: sources)
    print_forecast(config(tmp_path))
    out = capsys.readouterr().out
    shows(
        out,
        "web 1 not known not known not known not known",
        "books 1 4.0 MB 1,000",
        "all 2 not known",
        "time and disk: not known, since a source does not say how large it is",
    )
    assert "0 tokens" not in out and "nan" not in out
