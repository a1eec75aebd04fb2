"""The written report: every file, self-contained, honest about what is missing."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from clozelab.ledger.experiment import find_experiment, load_experiment
from clozelab.ledger.report import Report, write_report
from clozelab.stages.report import main as report_verb

EVERY = ("mrpc", "snli_95k", "qnli_derived", "squad_v1")
ROWS = ("mlm_nsp", "mlm", "ltr", "ltr_bilstm", "random", "random_bilstm")


def written(root: Path) -> Report:
    experiment = load_experiment(find_experiment("table5_pretraining_tasks"))
    return write_report(experiment, root, root / "report", scale="demo")


def test_files(make_runs: Callable[..., Path], writers: Any) -> None:
    root = make_runs({(row, task): 60.0 + index for index, row in enumerate(ROWS) for task in EVERY})
    writers.finetune(root, "ltr", "mrpc", (1, 9), 0.0, status="failed")
    report = written(root)
    names = {path.name for path in report.folder.iterdir()}
    assert names == {"report.md", "report.html", "results.csv", "curves.png", "table.png"}
    text = (report.folder / "report.md").read_text()
    assert "# Ablation over the pre-training tasks" in text
    # MNLI has no run; SNLI-95k stands apart
    assert re.search(r"\| BERT-Base \| 84\.4 \| no run \| (59|60)\.\d ± ", text)
    assert "SNLI-95k (stand-in for MNLI-m), ours" in text
    assert "ValueError: broken on purpose" in text
    assert "SST-2: no run on this data set" in text
    assert "0123456789ab" in text and "torch 2.13.0" in text and "60,000" in text
    assert not re.search(
        r"\n\n\|", text.split("## The claims")[1].split("##")[0].split("\n", 3)[3]
    )  # table is unbroken


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in ("meta", "img", "source", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_self_contained_and_well_formed(make_runs: Callable[..., Path]) -> None:
    root = make_runs({("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0})
    html = written(root).html.read_text()
    page = Page()
    page.feed(html)
    assert not page.open
    assert page.links and all(link.startswith("data:image/png;base64,") for link in page.links)
    assert "prefers-color-scheme: dark" in html and "viewport" in html and "http" not in re.sub('data:[^"]*', "", html)
    assert "LTR &amp; No NSP" in html  # escaped


def test_synthetic_is_said_first(make_runs: Callable[..., Path]) -> None:
    report = written(make_runs({("mlm", "mrpc"): 70.0}, generator={"_target_": "clozelab.data.x"}))
    text = (report.folder / "report.md").read_text()
    assert text.startswith("**Synthetic data")
    # Generated MRPC is in the official format and under the official task's name; the paper's number stays apart.
    assert "| MRPC, paper | MRPC, ours | text MRPC (synthetic, for MRPC), ours |" in text
    assert "| No NSP | 83.9 | no run | 84.9 | no run | 86.5 | no run | 70" in text


def test_results_hold_every_run(make_runs: Callable[..., Path]) -> None:
    root = make_runs({("mlm", "mrpc"): 70.0}, pretrain_seeds=(1, 2), finetune_seeds=(1,))
    with (written(root).folder / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 + 2
    scores = [float(row["score_percent"]) for row in rows if row["stage"] == "finetune"]
    assert scores == pytest.approx([70.0, 70.0], abs=0.6)


def test_no_runs_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run below"):
        written(tmp_path)


def test_only_pretraining_so_far(make_runs: Callable[..., Path]) -> None:
    report = written(make_runs({}))
    assert (report.folder / "curves.png").is_file() and not (report.folder / "table.png").exists()


def test_verb_prints_table_and_path(make_runs: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    root = make_runs({("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0})
    runs_dir = root.parents[1]
    assert report_verb(["table5_pretraining_tasks", "scale=demo", f"runs_dir={runs_dir}"]) == 0
    printed = capsys.readouterr().out
    assert "No NSP" in printed and "holds" in printed and str(root / "report" / "report.html") in printed
