"""report.tex: nothing unescaped, everything balanced, as many cells in a line as columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from clozelab.ledger.reporting.latex import escape
from clozelab.stages.report import main

ROWS = ("mlm_nsp", "mlm", "ltr", "ltr_bilstm", "random", "random_bilstm")


@pytest.fixture
def tex(make_runs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("clozelab.ledger.reporting.report._plots", lambda *_: {})
    tasks = ("mrpc", "snli_95k", "qnli_derived", "squad_v1")
    root = make_runs({(row, task): 60.0 + index for index, row in enumerate(ROWS) for task in tasks})
    words = ["table5_pretraining_tasks", "scale=demo", f"runs_dir={root.parents[1]}"]
    assert main(words) == 0 and not (root / "report/report.tex").exists()
    assert main([*words, "--latex"]) == 0
    return (root / "report/report.tex").read_text()


def bare(text: str) -> str:
    """Without escaped characters and comments."""
    return re.sub(r"\\[&%$#_{}]", "", re.sub(r"(?m)^%.*$", "", text))


def test_balanced(tex: str) -> None:
    text = bare(tex)
    assert text.count("{") == text.count("}") and text.count("$") % 2 == 0
    depth = 0
    for character in text:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    for name in ("table", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") >= 3
    labels = re.findall(r"\\label\{(.+?)\}", text)
    assert len(labels) == len(set(labels)) == text.count(r"\begin{table}")


def test_nothing_unescaped(tex: str) -> None:
    text = re.sub(r"\\(begin|end|label|cmidrule|multicolumn)(\(lr\))?\{[^}]*\}(\{[clr]+\})?", "", bare(tex))
    assert not re.search(r"[%#_^~<>|]", text)
    assert all(character not in text for character in "±−–")
    assert "\\pm$" in text


def test_every_line_has_its_columns(tex: str) -> None:
    for table in re.findall(r"\\begin\{tabular\}(.+?)\\end\{tabular\}", tex, re.DOTALL):
        spec = re.match(r"\{([lr]+)\}", table)
        assert spec is not None
        lines = [line for line in table.split("\n") if line.endswith(r"\\")]
        assert len(lines) > 5
        for line in lines:
            spans = [int(count) for count in re.findall(r"\\multicolumn\{(\d+)\}", line)]
            cells = len(re.findall(r"(?<!\\)&", line)) + 1
            assert cells + sum(spans) - len(spans) == len(spec[1]), line


def test_says_what_the_report_says(tex: str) -> None:
    assert r"LTR \& No NSP" in tex and r"MLM \& NSP & 84.4" in tex
    assert r"SNLI-95k (stand-in for MNLI-m)" in tex
    stand_ins = next(part for part in tex.split(r"\begin{table}") if "stand-in for MNLI-m" in part)
    assert "84.4" not in stand_ins
    assert "dropping NSP costs QNLI" in tex and "verdict" in tex


def test_escape() -> None:
    assert escape("50 % of a_b & {c} ± 1") == r"50 \% of a\_b \& \{c\} $\pm$ 1"
    assert escape("a\\b\nc~d^e") == r"a\textbackslash{}b c\textasciitilde{}d\textasciicircum{}e"
