"""Stage prepare: from a configuration node to a prepared corpus; embedded corpora are generated
once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.screens import refuses, shows

from clozelab.assembly.corpora import forecast_corpus, planned_corpus, prepared_corpus
from clozelab.config import typed
from clozelab.corpus.preparation.forecast import CorpusForecast
from clozelab.corpus.tokenizers import SPECIAL_TOKENS
from clozelab.schema import PrepareConfig
from clozelab.stages.prepare import main, print_forecast

NUM_DOCUMENTS = 30


def config(
    folder: Path,
    vocab_size: Any = 200,
    share: float = 0.5,
    vocab_file: str | None = None,
    dry_run: bool = False,
    **corpus: Any,
) -> PrepareConfig:
    values = {
        "dry_run": dry_run,
        "runs_dir": str(folder / "runs"),
        "data_dir": str(folder / "data"),
        "cache_dir": str(folder / "cache"),
        "max_unknown_share": share,
        "tokenizer": {
            "kind": "wordpiece",
            "vocab_size": vocab_size,
            "lowercase": True,
            "vocab_file": vocab_file,
        },
        "corpus": {
            "name": "small",
            "sources": [{"name": "one", "path": "one.txt"}],
            "validation_fraction": 0.1,
            **corpus,
        },
    }
    return typed("prepare", values)


def generated_config(folder: Path) -> PrepareConfig:
    generator = {"_target_": "microworld.world.write_world", "_partial_": True, "world_seed": 1}
    generator |= {"num_documents": NUM_DOCUMENTS, "entropy_documents": 0}
    generator |= {"train_examples": 20, "validation_examples": 10}
    sources = [{"name": "microworld", "path": "corpus/microworld.txt", "format": "text"}]
    return config(folder, 400, name="microworld", sources=sources, generator=generator)


def forecast_of(cfg: PrepareConfig) -> CorpusForecast:
    """That of its source `one`."""
    plan = planned_corpus(cfg)
    assert plan is not None
    return forecast_corpus(plan)["one"]


def write_text(folder: Path) -> None:
    folder.mkdir()
    (folder / "one.txt").write_text(
        "\n\n".join(f"Document {index}.\nIt has two sentences." for index in range(50))
    )


def test_main_shows_what_each_step_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(tmp_path / "data")
    with (tmp_path / "data" / "one.txt").open("a") as file:
        file.write("\n\n<br>\n\n<b>Bold</b> text.\n\nDocument 3.\nIt has two sentences.\n")
    folder = main(config(tmp_path))
    assert folder.parent == tmp_path / "cache" / "corpora"
    shown = capsys.readouterr().out
    assert f"prepared corpus: {folder}" in shown
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    assert "read 53 1,693" in rows
    assert "clean 52 1,683 empty document: 1 dropped; cleaned: 1 changed" in rows
    assert "duplicates 51 1,651 duplicate document: 1 dropped" in rows


def test_a_dry_run_says_what_it_would_take_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text(tmp_path / "data")
    assert main(config(tmp_path, dry_run=True)) is None
    shown = capsys.readouterr().out
    shows(shown, "tokens are guessed: the vocabulary", "nothing was written (--dry-run)")
    row = next(line.split() for line in shown.splitlines() if line.strip().startswith("one "))
    assert row == ["one", "1", "1.8", "kB", "50", "1,600", "530"]
    assert not (tmp_path / "cache").exists()
    folder = main(config(tmp_path))
    assert main(config(tmp_path, dry_run=True)) is None
    assert f"prepared already: {folder}" in capsys.readouterr().out


def test_a_dry_run_is_as_good_as_its_sample(tmp_path: Path) -> None:
    """Of several files, each with lines of its own length."""
    folder = tmp_path / "data" / "texts"
    folder.mkdir(parents=True)
    for number in range(12):
        line = f"Text {number} " + "has words " * number
        lines = [f"{line}{index}." for index in range(6_000)]
        (folder / f"{number:02d}.txt").write_text("\n\n".join(lines))
    cfg = config(tmp_path, sources=[{"name": "one", "path": "texts"}])
    forecast = forecast_of(cfg)
    corpus = prepared_corpus(cfg)
    assert forecast.files == 12
    assert forecast.characters == pytest.approx(corpus.manifest["counts"]["characters"], rel=0.15)
    assert forecast.documents == pytest.approx(corpus.manifest["counts"]["documents"], rel=0.6)
    written = sum(path.stat().st_size for path in corpus.folder.rglob("*.bin"))
    assert forecast.result_bytes == pytest.approx(written, rel=0.6)


def test_a_dry_run_looks_for_its_files_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it leaves out was said twice."""
    write_text(tmp_path / "data")
    (tmp_path / "data" / "table.csv").write_text("text\nOf a table.\n")
    main(config(tmp_path, dry_run=True, sources=[{"name": "one", "path": "."}]))
    assert caplog.text.count("files left out: 1") == 1


def test_a_dry_run_takes_out_benchmarks(tmp_path: Path) -> None:
    """Which needs a table, but not all documents."""
    write_text(tmp_path / "data")
    (tmp_path / "data" / "benchmark.txt").write_text("document 7 it has two sentences\n")
    step = {"decontaminate": {"files": ["benchmark.txt"], "ngram": 6}}
    cfg = config(tmp_path, steps=["clean", step, "near_duplicates"])
    assert forecast_of(cfg).documents == 49


def test_a_dry_run_of_a_world_that_is_not_there(tmp_path: Path) -> None:
    with refuses("is generated when it is prepared, within minutes: there is no text yet"):
        print_forecast(generated_config(tmp_path))


def test_a_byte_that_has_changed_is_found(tmp_path: Path) -> None:
    """Before a sweep; its jobs compare sizes alone."""
    write_text(tmp_path / "data")
    folder = main(config(tmp_path))
    path = next(folder.glob("train/tokens*.bin"))
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    prepared_corpus(config(tmp_path))
    with refuses("has changed since it was written; delete the prepared corpus"):
        main(config(tmp_path))


def test_a_text_that_the_vocabulary_does_not_know(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warned of whenever the corpus is opened; too much is refused, and a limit lets it pass.

    The beginning of the text is known, so that only its tokens as a whole show how much is not.
    """
    monkeypatch.setattr("clozelab.corpus.preparation.beginning.FIT_CHARACTERS", 500)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/vocab.txt").write_text(
        "\n".join([*SPECIAL_TOKENS, "a", "cat", "sat", "on", "mat", "."])
    )
    # 8,260 tokens
    known = ["\n".join(["a cat sat on a mat."] * (10 + index)) for index in range(40)]
    for lines, share, unknown in ((0, 0.0, ""), (1, 0.05, "4.5%"), (50, 0.71, "70.2%")):
        odd = ["\n".join(["жук " * (10 + index)] * lines) for index in range(20) if lines]
        (tmp_path / "data/one.txt").write_text("\n\n".join([*known, *odd]))
        cfg = config(tmp_path, vocab_file="vocab.txt", validation_fraction=0.5)
        if share > 0.5:
            with refuses(f"{unknown} of the tokens of corpus small are [UNK]"):
                prepared_corpus(cfg)
            cfg = config(tmp_path, share=1.0, vocab_file="vocab.txt", validation_fraction=0.5)
        for _ in range(2):  # prepared, and found
            caplog.clear()
            found = prepared_corpus(cfg).manifest["unknown_fraction"]
            assert found == pytest.approx(share, abs=0.01)
            warnings = [record.getMessage() for record in caplog.records]
            # That its text repeats a line is said when it is prepared.
            warnings = [warning for warning in warnings if "one line has" not in warning]
            assert len(warnings) == bool(lines)
            for warning in warnings:
                shows(warning, f"{unknown} of the tokens of corpus small are [UNK]")


def test_a_missing_value_is_an_error(tmp_path: Path) -> None:
    with refuses("tokenizer.vocab_size has no value; give one"):
        config(tmp_path, vocab_size="???")


def test_an_embedded_corpus_is_generated_once(tmp_path: Path) -> None:
    corpus = prepared_corpus(generated_config(tmp_path))
    assert corpus.train.num_documents + corpus.validation.num_documents == NUM_DOCUMENTS
    text = tmp_path / "data" / "corpus" / "microworld.txt"
    written = text.stat().st_mtime_ns
    assert prepared_corpus(generated_config(tmp_path)).fingerprint == corpus.fingerprint
    assert text.stat().st_mtime_ns == written
