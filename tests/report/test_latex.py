"""report.tex: nothing unescaped, everything balanced, as many cells in a line as columns."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.records import change
from tests.report.writing import TABLE_5, tex_of
from tests.results.test_sweep import write_tunings
from tests.screens import shows

from clozelab.report.render import escape, first_cell, mark
from clozelab.stages.pool import main as pool
from clozelab.stages.report import main

ROWS = ("mlm_nsp", "mlm", "ltr", "ltr_bilstm", "random", "random_bilstm")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """What `tex` has made, which four tests look at."""
    return []


@pytest.fixture
def tex(make_runs: Callable[..., Path], no_pictures: None, texts: list[str]) -> str:
    if texts:
        return texts[0]
    tasks = ("mrpc", "snli_95k", "qnli_derived", "squad_v1")
    means: dict[tuple[str, str], float] = {}
    for index, row in enumerate(ROWS):
        means |= {(row, task): 60.0 + index for task in tasks}
    root = make_runs(means)
    assert main([TABLE_5, "scale=demo", f"runs_dir={root.parents[1]}"]) == 0
    assert not (root / "report/report.tex").exists()
    texts.append(tex_of(root))
    return texts[0]


@pytest.mark.usefixtures("no_pictures")
def test_notes_stand_below(make_runs: Callable[..., Path], writers: Any) -> None:
    """A cell that is not whole must not look whole, and a verdict stands with its reservations."""
    root = make_runs(
        {("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0}, pretrain_seeds=(1, 2), finetune_seeds=(1, 2)
    )
    for seeds in ((1, 1), (1, 2), (2, 1), (2, 2)):
        writers.finetune(root, "random", "mrpc", seeds, 50.0, collapsed=True)
    writers.finetune(root, "ltr_bilstm", "mrpc", (1, 1), 61.0)
    scores, *_, verdicts = tex_of(root).split(r"\begin{table}")[1:]
    below = dict(
        re.findall(r"\\textsuperscript\{(\w+)\} (.+?)\\par", scores.split(r"\end{tabular}")[1])
    )
    marked = dict(
        re.findall(r"(?m)^(.+?) & .*\\textsuperscript\{(\w+)\}", scores.split(r"\end{tabular}")[0])
    )
    assert below[marked["No pre-training"]] == "collapsed: every run"
    assert below[marked["+ BiLSTM"]] == "1 of 4 runs; one run"
    assert set(below) == set(marked.values()) and "No NSP" not in marked
    letter = re.search(r"the BiLSTM costs MRPC .*\\textsuperscript\{(\w+)\}", verdicts)
    needs = "needs 2 or more pre-training seeds; 1 more takes about 24.0 min, as these runs took"
    said = f"one run; {needs}; 3 run(s) of + BiLSTM missing"
    assert letter is not None and rf"\textsuperscript{{{letter[1]}}} {said}\par" in verdicts


BELOW_A_TABLE = [
    "was scored several times on the way, and stands here with its best score",
    "Not learnt: No NSP (mlm): a held-out loss of 6.10 nats",
    "Not complete: finetune/ltr/pretrain-seed-1/mrpc/seed-9 (failed): ValueError",
    "Missing: ",
]


@pytest.mark.usefixtures("no_pictures")
def test_what_scores_are_of_and_every_warning_stand_below(
    make_runs: Callable[..., Path], writers: Any
) -> None:
    """A table that is taken into a paper takes along what the page says of it."""
    root = make_runs({("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0}, pretrain_seeds=(1, 2))
    writers.finetune(root, "ltr", "mrpc", (1, 9), 0.0, status="failed")
    data = {"train_examples": 1000, "train_examples_available": 3668}
    change(root, "finetune/*/*/*/*", facts={"data": data, "num_evaluations": 2})
    change(root, "pretrain/mlm/*", **{"facts__validation/loss": 6.1})
    tables = tex_of(root).split(r"\begin{table}")[1:]
    ours = [one for one in tables if "& ours" in one]
    letter = re.search(
        r"\{MRPC\}\\textsuperscript\{(\w+)\}|\{MRPC\\textsuperscript\{(\w+)\}\}", ours[0]
    )
    assert letter is not None
    assert (
        rf"\textsuperscript{{{letter[1] or letter[2]}}} trained on 1,000 of 3,668 examples\par"
        in ours[0]
    )
    for one in ours[:-1]:  # the last one is of the verdicts
        below = one.split(r"\end{tabular}")[1]
        for sentence in BELOW_A_TABLE:
            assert sentence in below
    assert BELOW_A_TABLE[0][:35] in tables[-1]


@pytest.mark.usefixtures("no_pictures")
def test_captions_say_the_unit(tmp_path: Path, writers: Any) -> None:
    root = tmp_path / "runs" / "table6_model_size" / "demo"
    for arm in ("base", "wide"):
        writers.pretrain(root, arm, 1, known={"validation/perplexity": 5.0})
    text = tex_of(root, "table6_model_size")
    of_perplexity = "in points (LM perplexity: perplexity)."
    for sentence in (
        "Substitutes and other data sets, perplexity. ",
        f"differences {of_perplexity}",
    ):
        assert sentence in text
    ours, papers = re.findall(r"\\caption\{(.*)\}", text)[:2]
    assert ours.endswith("Ours is one run, without an interval.") and papers.endswith(
        " of our runs has seen, percent (LM perplexity: perplexity)."
    )
    page = (root / "report/report.md").read_text()
    assert f"Differences between two rows, {of_perplexity}" in page


def test_baselines_stand_below_the_rows(
    make_runs: Callable[..., Path], writers: Any, no_pictures: None
) -> None:
    root = make_runs({("mlm", "mrpc"): 70.0}, pretrain_seeds=(1, 2))
    known = {"majority_baseline": 0.684, "baselines": {"bag of words": {"accuracy": 0.723}}}
    writers.finetune(root, "ltr", "mrpc", (1, 1), 60.0, **known)
    lines = tex_of(root).split("\n")
    majority = next(line for line in lines if line.startswith("most frequent label"))
    surface = next(line for line in lines if line.startswith("surface baseline"))
    shows(majority, "most frequent label & & & & 68.4 & \\\\")
    shows(surface, "surface baseline & & & & 72.3\\textsuperscript{b} & \\\\")


def test_a_note_has_one_letter() -> None:
    notes: dict[str, str] = {}
    marks = [mark(f"note {number}", notes) for number in range(28)]
    assert (
        marks[0] == r"\textsuperscript{a}"
        and marks[26] == r"\textsuperscript{aa}"
        and len(set(marks)) == 28
    )
    assert mark("note 1", notes) == marks[1] and mark("", notes) == "" and len(notes) == 28


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
    text = re.sub(
        r"\\(begin|end|label|cmidrule|multicolumn)(\(lr\))?\{[^}]*\}(\{[clr]+\})?", "", bare(tex)
    )
    assert not re.search(r"[%#_^~<>|]", text)
    assert all(character not in text for character in "±−–")
    assert "\\pm$" in text


@pytest.mark.parametrize(("name", "least"), [("tex", 6), ("odd", 3)])
def test_every_line_has_its_columns(request: pytest.FixtureRequest, name: str, least: int) -> None:
    text: str = request.getfixturevalue(name)
    for table in re.findall(r"\\begin\{tabular\}(.+?)\\end\{tabular\}", text, re.DOTALL):
        spec = re.match(r"\{(?:(p)\{.*?\})?([lr]+)\}", table)
        assert spec is not None
        lines = [line for line in table.split("\n") if line.endswith(r"\\")]
        assert len(lines) >= least
        for line in lines:
            spans = [int(count) for count in re.findall(r"\\multicolumn\{(\d+)\}", line)]
            cells = len(re.findall(r"(?<!\\)&", line)) + 1
            assert cells + sum(spans) - len(spans) == len("".join(filter(None, spec.groups())))


def test_says_what_the_report_says(tex: str) -> None:
    shows(
        tex,
        "\\cmidrule(lr){2-2} \\cmidrule(lr){3-3} \\cmidrule(lr){4-5}",
        "MLM \\& NSP & 84.4 & 88.4 & 86.7 & 60.1 $\\pm$ 0.8\\textsuperscript{a} &",
        "No NSP & 83.9 & 84.9 & 86.5 & 61.0 $\\pm$ 1.0\\textsuperscript{a} & 92.6",
        "LTR \\& No NSP & 82.1 & 84.3 & 77.5 & 62.0 $\\pm$ 0.8\\textsuperscript{a}",
        "+ BiLSTM & 82.1 & 84.1 & 75.7 & 62.9 $\\pm$ 0.8\\textsuperscript{a} &",
    )


def test_escape() -> None:
    assert escape("50 % of a_b & {c} ± 1") == r"50 \% of a\_b \& \{c\} $\pm$ 1"
    assert escape("a\\b\nc~d^e") == r"a\textbackslash{}b c\textasciitilde{}d\textasciicircum{}e"


def test_a_bracket_that_begins_a_line_is_no_argument() -> None:
    """Of the line break before it, or of the rule."""
    assert first_cell("[CLS] & mean") == r"{}[CLS] \& mean"
    assert first_cell("*ours") == "{}*ours" and first_cell("ours [a]") == "ours [a]"


def test_verdicts_stand_with_their_corrected_p(tex: str) -> None:
    verdicts = tex.split(r"\begin{table}")[-1]
    shows(
        verdicts,
        r"claim & judged on & paper & ours & 95\,\% interval & $p$ & verdict",
        "Intervals are of one difference alone; p and verdicts are corrected",
    )
    (line,) = [line for line in verdicts.split("\n") if "the BiLSTM costs MRPC &" in line]
    assert re.search(r"\] & (\\textless\{\} )?[01]\.\d{3} & \w+", line), line


@pytest.mark.usefixtures("no_pictures")
def test_without_a_paper_the_directions_are_claimed(tmp_path: Path) -> None:
    pack = Path(__file__).resolve().parents[2] / "docs/results" / "2026-11-27-small-fine-tuning"
    pooled = tmp_path / "pooled"
    assert pool([str(pack / "runs.zip"), f"runs_dir={pooled}"]) == 0
    assert main(["small_fine_tuning", "scale=laptop", f"runs_dir={pooled}", "--paper"]) == 0
    text = next(pooled.rglob("report.tex")).read_text(encoding="utf-8")
    assert "claim & judged on & claimed & ours" in text


ODD_ROWS = {
    "mlm_30 %": [78.0, 79.0, 77.5],
    "a & b #2 {x} ~ ^ $1": [80.0, 81.5, 81.0],
    "na\u00efve \u2192 gro\u0308\u00dfer <|\\|>": [80.5, 81.0, 82.0],
}


@pytest.fixture
def odd(tmp_path: Path, writers: Any, no_pictures: None) -> str:
    """The tables of a folder without an experiment; its name and its rows' have odd characters."""
    root = tmp_path / "50 %_of & #1 \u00e9 \u8868"
    write_tunings(root, writers, ODD_ROWS)
    assert main([str(root), "--paper"]) == 0
    return (root / "report/report.tex").read_text(encoding="utf-8")


def test_a_folder_has_its_differences(odd: str) -> None:
    differences = odd.split(r"\begin{table}")[-1]
    shows(
        differences,
        r"every other row against the first one (a \& b",
        r"row & column & difference & 95\,\% interval & $p$ \\",
        r"mlm\_30 \% & MRPC & ",
    )
    assert re.search(r"points & \[.+\] & [01]\.\d{3}", differences)
    assert re.findall(r"\\label\{(.+)\}", odd) == ["tab:50-of-1-1", "tab:50-of-1-differences"]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX on this machine")
def test_latex_sets_the_tables(odd: str, tex: str, tmp_path: Path) -> None:
    """With no package but the one that the file names."""
    odd = odd.replace("\u8868", "")  # which needs a font that has it
    parts = [r"\documentclass{article}\usepackage{booktabs}\begin{document}", tex, odd]
    (tmp_path / "paper.tex").write_text("\n".join([*parts, r"\end{document}"]), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    # The claims fit beside their verdicts.
    assert all(float(points) < 110 for points in re.findall(r"\((\S+?)pt too wide", done.stdout))
