"""A forecast: of any tokenizer and mixture of files, and of what does not say how large it is."""

from __future__ import annotations

import gzip
import math
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.screens import shows
from tests.stages.test_prepare import config

from clozelab.corpus.files import CorpusCounts, CorpusSource, Rows, TextFile
from clozelab.corpus.preparation.forecast import (
    CorpusForecast,
    characters_per_token,
    forecast_source,
    guess_tokens,
)
from clozelab.corpus.tokenizer_settings import KINDS
from clozelab.readers.lines import Advance
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
    plan = SimpleNamespace(folder=tmp_path / "corpus")
    monkeypatch.setattr("clozelab.assembly.corpora.planned_corpus", lambda _: plan)
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


def test_packed_files_and_others_are_measured_apart(tmp_path: Path) -> None:
    """Small packed files say nothing of a large one that is not packed."""
    for number in range(10):
        packed = gzip.compress(f"Part {number} of it.\n".encode() * 400)
        (tmp_path / f"b{number}.txt.gz").write_bytes(packed)
    (tmp_path / "a.txt").write_text("A line of it.\n" * 20_000)
    files = CorpusSource("mine", ".").shards(0, tmp_path)
    forecast = forecast_source(files, [], None, seconds=10.0)
    assert forecast.files == 11
    assert forecast.characters == pytest.approx(20_000 * 13 + 10 * 400 * 13, rel=0.02)


class SlowToOpen(TextFile):
    """As a Parquet file with a large row group."""

    def rows(self, counts: CorpusCounts, advance: Advance) -> Rows:
        time.sleep(0.3)
        return super().rows(counts, advance)


def test_files_that_are_slow_to_open_are_measured(tmp_path: Path) -> None:
    """They were left out of the characters, and their bytes were multiplied by the seconds."""
    path = tmp_path / "a.txt"
    path.write_text("A line of it.\n\n" * 20_000)
    files = [SlowToOpen(f"{number}.txt", 0, "text", "text", path) for number in range(2)]
    forecast = forecast_source(files, [], None, seconds=0.1)
    assert forecast.characters == pytest.approx(2 * 20_000 * 13, rel=0.1)
    assert forecast.seconds < 30


CHINESE = ["今天天气很好。", "我们去公园玩。"] * 20
ENGLISH = ["The court heard the appeal of the farmers.", "The farmers went home."] * 20
SETTINGS = {"byte_bpe": {"add_prefix_space": True}, "bytes": {"add_prefix_space": True}}


def test_a_larger_vocabulary_has_longer_tokens() -> None:
    """As counted on English corpora: 4.5 were guessed for every size."""
    guessed = [characters_per_token(size) for size in (100, 2048, 4096, 8192, 30522, 60000)]
    assert guessed == pytest.approx([3.1, 3.1, 3.55, 4.0, 4.4, 4.4])


@pytest.mark.parametrize("texts", [CHINESE, ENGLISH])
@pytest.mark.parametrize("kind", ["bytes", "characters", "whitespace", "wordpiece"])
def test_tokens_are_guessed_to_within_a_factor_of_two(kind: str, texts: list[str]) -> None:
    tokenizer = KINDS[kind].train(texts, 600, lowercase=True, **SETTINGS.get(kind, {}))
    ids, _ = tokenizer.encode_flat(texts)
    guessed = sum(guess_tokens(text, kind, characters_per_token(600)) for text in texts)
    assert len(ids) / 2 < guessed < 2 * len(ids)
    if kind != "wordpiece":
        assert guessed == len(ids)
