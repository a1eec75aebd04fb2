"""`clozelab curves`: a published run in its band, a strange one with its likely causes, another
text without a band, and what `status` and the report show of it.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import reduce
from operator import getitem
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
from tests.screens import refuses, shows

from clozelab.cli import main
from clozelab.report.curves import print_outside, sentences
from clozelab.report.plots import _draw_bands, _draw_reference_losses, plt
from clozelab.runs.archive import open_archive
from clozelab.runs.find import find, open_run
from clozelab.runs.loss_bands import expected_range, match_of
from clozelab.stages import pretrain
from clozelab.stages.curves import main as curves

PACK = Path(__file__).parents[2] / "docs/results/2026-11-25-masking-rate-laptop/runs.zip"
OTHER_TEXT = {"inputs.corpus": "0" * 64}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of a pack: three masking rates, four seeds each."""
    folder = tmp_path_factory.mktemp("pack")
    open_archive(PACK, folder)
    return folder / "runs/masking_rate/laptop/pretrain"


@pytest.fixture
def change(published: Path, tmp_path: Path) -> Callable[..., Path]:
    """change(nats, {place in the record: value}) -> a copy of a run whose held-out losses are so
    much higher.
    """

    def change(nats: float, changes: Mapping[str, Any] | None = None) -> Path:
        folder = tmp_path / "runs/mine/laptop/pretrain/rate15/seed-1"
        shutil.copytree(next(published.glob("rate15/*")), folder)
        record = json.loads((folder / "run.json").read_text())
        for place, value in (changes or {}).items():
            *names, last = place.split(".")
            reduce(getitem, names, record)[last] = value
        (folder / "run.json").write_text(json.dumps(record))
        lines = []
        for line in (folder / "metrics.csv").read_text().splitlines():
            *start, value = line.split(",")
            if start[-1] == "validation/loss":
                value = str(float(value) + nats)
            lines.append(",".join([*start, value]))
        (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
        return folder

    return change


def test_a_published_run_is_inside_of_its_band(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["curves", str(next(published.glob("rate15/*")))]) == 0
    out = capsys.readouterr().out
    shows(out, "8 other seeds of this kind are at 4.32 to 4.39 nats", "inside the band")
    shows(out, "Kind: mlm, L2 H128, wiki_books, 8,192 entries.")
    assert "Possible cause" not in out and "Near" not in out


def test_a_published_run_is_beside_the_others_of_its_band(published: Path) -> None:
    """Each run leaves out another seed: its own."""
    left_out = set()
    for folder in published.glob("rate15/*"):
        match = match_of(open_run(str(folder)))
        assert match is not None and match.own_seed is not None
        left_out.add(match.own_seed)
        last = match.readings[-1]
        assert len(last.seeds) == 8 and last.loss not in last.seeds
        assert (last.low, last.high) == expected_range(last.seeds)
    assert len(left_out) == 4


def test_a_demo_run_is_told_what_to_compare_with(change: Callable[..., Path]) -> None:
    texts = sentences(open_run(str(change(0.0, OTHER_TEXT | {"choices.scale": "demo"}))))
    shows(texts[1], "No band is of the usual runs of scale=demo, whose text is", "scale=laptop")


def test_picture_and_text_have_one_loss_of_word_frequencies(published: Path) -> None:
    """A tenth of the predicted tokens is left in place: 0.9 of the loss of frequencies."""
    runs = [open_run(str(folder)) for folder in published.glob("rate15/*")]
    figure, axes = plt.subplots()
    labels = [str(entry.get_label()) for entry in _draw_reference_losses(axes, runs)]
    plt.close(figure)
    loss = 0.9 * fmean(run.facts["unigram_loss"] for run in runs)
    assert labels == [f"frequencies alone ({loss:.2f})"] == ["frequencies alone (6.23)"]


def test_a_run_above_its_band_has_causes_that_its_record_shows(change: Callable[..., Path]) -> None:
    changes = {
        "config.optimizer.learning_rate": 0.0005,
        "config.optimizer.matrix_learning_rate": 0.002,
        "config.model.position_embedding_init": "normal",
    }
    first, *others = sentences(open_run(str(change(1.8, changes))))
    shows(first, "above the band, still on the plateau of word frequencies (6.23)")
    text = " ".join(others)
    shows(
        text,
        "learning rate: optimizer.learning_rate is 0.0005, there 0.005;",
        "matrix_learning_rate is 0.002, there 0.02. To check: train again with theirs",
        "initialisation: model.position_embedding_init is normal, there sinusoidal. To check:",
        "duplicates: the training loss is 2.13 nats below the held-out one. To check:",
    )
    assert "row length" not in text and "masks" not in text and "dropout" not in text


@pytest.mark.parametrize(("nats", "verdict"), [(0.3, "above"), (-0.3, "below")])
def test_where_nothing_differs_the_run_is_to_be_verified(
    change: Callable[..., Path], nats: float, verdict: str
) -> None:
    text = " ".join(sentences(open_run(str(change(nats)))))
    shows(
        text, f"{verdict} the band", "No cause shows in its settings. To check: `clozelab verify`"
    )


def test_another_vocabulary_gets_no_band_and_no_nats(change: Callable[..., Path]) -> None:
    changes = {"config.tokenizer.vocab_size": 4096, "facts.unigram_loss": 6.5}
    first, near, *_ = sentences(open_run(str(change(0.0, OTHER_TEXT | changes))))
    shows(first, "Not known: no published runs are of this kind at 13.5 M tokens")
    shows(near, "Near: mlm, L2 H128, wiki_books,", "tokenizer.vocab_size (4096, there 8192)")
    shows(near, "Below the loss of word frequencies it is 2.53 to 2.60 there, and this run 2.11.")
    assert "expected" not in first + near and "the band" not in first + near


def test_masks_are_named_where_they_differ(change: Callable[..., Path]) -> None:
    """Not for given weights: the published runs began with fresh ones."""
    changes = {"config.objective.token.mask_fraction": 0.3}
    run = change(0.0, changes)
    text = " ".join(sentences(open_run(str(run))))
    shows(text, "Possible cause, masks: objective.token.mask_fraction is 0.3, there 0.8. To check:")
    shutil.rmtree(run)
    given = open_run(str(change(0.0, changes | {"inputs.encoder": "1" * 64})))
    assert "Possible cause" not in " ".join(sentences(given))


def test_a_phase_of_one_run_alone_is_called_absent(change: Callable[..., Path]) -> None:
    run = open_run(str(change(0.0, OTHER_TEXT)))
    del run.config["phases"][1]
    text = " ".join(sentences(run))
    shows(text, "phases.3.seq_length is absent (no such phase), there 256")
    assert "None" not in text


def test_pages_and_pictures_show_the_band(change: Callable[..., Path], tmp_path: Path) -> None:
    run = str(change(0.5))
    page = tmp_path / "page.html"
    assert main(["curves", run, f"out={page}"]) == 0
    html = page.read_text()
    shows(html, "above the band", "Shaded: where another seed")
    assert "<script" not in html
    pictures = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", html)
    assert len(pictures) == 2, "for a light page and for a dark one"
    for picture in pictures:
        assert base64.b64decode(picture).count(b'id="FillBetweenPolyCollection_') == 1
    with refuses("give a .html or .png or .svg"):
        curves([run, f"out={tmp_path / 'picture.pdf'}"])


def test_a_run_of_no_known_kind_is_drawn_without_a_band(change: Callable[..., Path]) -> None:
    figure, axes = plt.subplots()
    run = open_run(str(change(0.5, {"config.model.num_hidden_layers": 3})))
    assert _draw_bands(axes, [run]) == []
    assert not axes.collections
    plt.close(figure)


def test_status_has_a_line_for_what_is_outside(
    change: Callable[..., Path], published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = change(0.5)
    records = [*find(run.parents[5]).records, *find(published).records]
    print_outside(records)
    out = " ".join(capsys.readouterr().out.split())
    shows(out, "mine/laptop/pretrain/rate15/seed-1", "above the band; see clozelab curves")
    assert out.count("see clozelab curves") == 1


def test_a_folder_without_pretraining_is_refused(tmp_path: Path) -> None:
    with refuses("is a pre-training; `clozelab runs` lists all"):
        curves([str(tmp_path)])


def test_a_pretraining_ends_with_its_place_in_the_band(
    change: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = SimpleNamespace(content=open_run(str(change(0.5))), is_complete=False)
    claimed = nullcontext(run)
    job = SimpleNamespace(hardware=None)
    steps = {"prepare": lambda _: job, "claim_run": lambda *_: claimed, "train": lambda *_: None}
    monkeypatch.setattr(pretrain, "pretraining", SimpleNamespace(**steps))
    monkeypatch.setattr(pretrain.factory, "hardware_of_run", lambda *_: None)
    monkeypatch.setattr(pretrain, "replace", lambda job, **_: job)
    with caplog.at_level("INFO", logger="clozelab"):
        pretrain.main(None, None)  # type: ignore[arg-type]
    shows(caplog.text, "9 seeds of this kind are at 4.32 to 4.39 nats", "4.89: above the band")


@pytest.mark.parametrize("suffix", [".html", ".svg"])
def test_a_run_without_a_held_out_loss_has_no_picture(
    change: Callable[..., Path], tmp_path: Path, suffix: str
) -> None:
    run = change(0.0)
    (run / "metrics.csv").write_text("step,tokens,seconds,key,value\n1,9,1.0,train/loss,9.0\n")
    with refuses(f"{run}: no pre-training has a held-out loss yet"):
        curves([str(run), f"out={tmp_path / 'curves'}{suffix}"])
