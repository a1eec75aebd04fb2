"""The written report: every file, self-contained, honest about what is missing; and what a terminal
shows of it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from tests.records import change
from tests.report.writing import written
from tests.screens import Screens, refuses, shows

from claims.analysis.verdict_codes import Verdict
from claims.report import verdict_styles
from claims.report.page import CellView
from claims.report.screen import verdict_table
from claims.report.wording import summarise
from claims.text.phrases import duration, format_count, signed, truncate_list
from clozelab.report import page as pages
from clozelab.report.plots import known_heights
from clozelab.report.render import Report, write_report
from clozelab.report.screen import print_page, print_problems
from clozelab.results.experiment import find_experiment, load_experiment
from clozelab.runs.find import find
from clozelab.stages.report import main as report_verb

EVERY = ("mrpc", "snli_95k", "qnli_derived", "squad_v1")
ROWS = ("mlm_nsp", "mlm", "ltr", "ltr_bilstm", "random", "random_bilstm")


def texts(report: Report) -> dict[str, str]:
    """What a reader of each written page sees, without the embedded pictures."""
    pages = {
        path.name: path.read_text()
        for path in report.folder.iterdir()
        if path.suffix not in (".png", ".svg")
    }
    return {name: re.sub(r'"data:[^"]*"', '""', text) for name, text in pages.items()}


def section(page: str, heading: str) -> str:
    """What a page in Markdown has below a heading, up to the next one."""
    _, _, below = page.partition(f"# {heading}\n")
    assert below, heading
    return below.partition("\n#")[0]


def table(page: str, heading: str) -> str:
    """The rows of the tables that a page in Markdown has below a heading."""
    lines = section(page, heading).splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))


def full(make_runs: Callable[..., Path], **extra: Any) -> Path:
    """Every row above its floor."""
    means: dict[tuple[str, str], float] = {}
    for index, row in enumerate(ROWS):
        mean = 60.0 + index
        if row.startswith("random"):
            mean = 50.0
        means |= {(row, task): mean for task in EVERY}
    return make_runs(means, **extra)


ON_BOTH_PAGES = [
    "Ablation over the pre-training tasks",
    "Does next-sentence prediction help",  # the README's question
    "2 layers of 128, 1.53 M parameters",
    "finetune/ltr/pretrain-seed-1/mrpc/seed-9 (failed): ValueError: broken on purpose",
    "1 failed",
    "holds",
    "0123456789ab",
    "torch 2.13.0",
    "A processor",
    "corrected for their number by Holm",
]


def test_files(make_runs: Callable[..., Path], writers: Any) -> None:
    root = full(make_runs)
    writers.finetune(root, "ltr", "mrpc", (1, 9), 0.0, status="failed")
    report = written(root)
    names = {path.name for path in report.folder.iterdir()}
    stems = ("curves", "curves-dark", "forest", "forest-dark")
    plots = {f"{stem}.png" for stem in stems} | {f"{stem}.svg" for stem in stems}
    assert names == {"report.md", "report.html", "results.csv", "claims.csv"} | plots
    with (report.folder / "claims.csv").open(newline="") as file:
        claims = list(csv.DictReader(file))
    assert [one["verdict"] for one in claims] == [one.verdict for one in report.judgements]
    assert {one["exploratory"] for one in claims} == {"False"}
    pages = texts(report)
    for sentence in ON_BOTH_PAGES:
        assert sentence in pages["report.md"]
        assert sentence in pages["report.html"]


@pytest.mark.usefixtures("no_pictures")
def test_a_renamed_verdict_keeps_its_colours_and_its_code(
    make_runs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_runs({("mlm", "mrpc"): 80.0, ("ltr", "mrpc"): 70.0, ("mlm_nsp", "mrpc"): 80.0})
    before = texts(written(root))["report.html"]
    monkeypatch.setitem(verdict_styles.LABELS, Verdict.HOLDS, "supported")
    report = written(root)
    after = texts(report)["report.html"]

    # The only difference is the label: classes, colours and marks are those of the code.
    assert '<span class="badge holds">holds</span>' in before
    assert '<span class="badge holds">supported</span>' in after
    for rule in (".holds { color: var(--holds); }", "--holds: #00694d;", "--holds: #4cc9a0;"):
        assert rule in before and rule in after
    judgement = next(one for one in report.judgements if one.verdict is Verdict.HOLDS)
    terminal = verdict_table(report.page.judged.claims, report.page.judged.forest, 80)
    labels = {cell.plain.partition("\n")[0]: cell.style for cell in terminal.columns[0].cells}
    assert labels["supported"] == "green" and "holds" not in labels
    assert "The verdict is “supported” (“contradicted”) if" in after
    assert "A filled circle: supported." in after
    assert "“holds”" in before and "“holds”" not in after
    assert summarise([judgement] * 2) == "2 supported" and summarise([judgement]) == "1 supported"
    monkeypatch.undo()
    assert summarise([judgement] * 2) == "2 hold" and summarise([judgement]) == "1 holds"
    assert summarise([]) == "no claims"
    with (report.folder / "claims.csv").open(newline="") as file:
        assert judgement.verdict in {line["verdict"] for line in csv.DictReader(file)}


@pytest.mark.usefixtures("no_pictures")
def test_what_the_papers_numbers_are_stands_above_the_table(make_runs: Callable[..., Path]) -> None:
    root = make_runs({("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0})
    medians = load_experiment(find_experiment("table5_pretraining_tasks")).model_copy(
        update={"seeds": 5, "averaging": "median"}
    )
    found = texts(write_report(medians, root, root / "report", scale="demo"))
    for page in ("report.md", "report.html"):
        assert "are medians of 5 runs a cell." in found[page]
    (claim,) = (
        line for line in found["report.md"].splitlines() if "left-to-right costs MRPC" in line
    )
    cells = [cell.strip() for cell in claim.split("|")]
    assert cells.count("lower") == 1, "the direction alone"
    assert "9.0" not in claim


@pytest.mark.usefixtures("no_pictures")
def test_stand_ins_stand_apart(make_runs: Callable[..., Path]) -> None:
    text = texts(written(full(make_runs)))["report.md"]
    shows(
        section(text, "The paper's data sets"),
        "MLM & NSP | 84.4 | 88.4 | 86.7 | 60.1 ± 0.8 | 92.7 | 88.5 | 60.1 ± 0.8",
        "No NSP | 83.9 | 84.9 | 86.5 | 61.0 ± 1.0 | 92.6 | 87.9 | 61.1 ± 1.0",
    )  # MNLI and QNLI have no run
    apart = section(text, "Substitutes and other data sets")
    shows(apart, "MLM & NSP | 60.1 ± 0.8 | 60.1 ± 0.8", "No NSP | 61.0 ± 1.0 | 61.0 ± 1.0")
    assert not re.search(r"8\d\.\d", apart)  # no number of the paper


@pytest.mark.usefixtures("no_pictures")
def test_markdown_tables_are_whole(make_runs: Callable[..., Path]) -> None:
    lines = texts(written(full(make_runs)))["report.md"].split("\n")
    tables = [[]]
    for line in lines:
        if line.startswith("|"):
            tables[-1].append(line.count("|"))
        elif tables[-1]:
            tables.append([])
    assert [len(set(table)) for table in tables if table] == [1] * 5
    assert all(len(table) >= 4 for table in tables if table)


@pytest.mark.usefixtures("no_pictures")
def test_no_path_of_this_machine(make_runs: Callable[..., Path], writers: Any) -> None:
    root = full(make_runs)
    (root / "finetune" / "mlm" / "pretrain-seed-1" / "mrpc" / "seed-1" / "run.json").write_text("{")
    writers.finetune(root, "ltr", "mrpc", (1, 9), 0.0, status="interrupted")
    pages = texts(written(root))
    assert not [name for name, text in pages.items() if str(root) in text]


class Page(HTMLParser):
    """What a page links to, its tags and comments, and the tags that are not closed yet."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.found: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in ("meta", "img", "source", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    handle_comment = handle_pi = handle_decl = lambda self, data: self.found.append(data)


def test_html_is_self_contained_and_well_formed(make_runs: Callable[..., Path]) -> None:
    root = make_runs({("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0})
    report = written(root)
    page = Page((report.folder / "report.html").read_text())
    assert not page.open
    shown = [link for link in page.links if link.startswith("data:image/svg+xml;base64,")]
    assert len(shown) == 2
    # The rest names files that lie beside it: nothing is fetched to show the page.
    elsewhere = {link for link in page.links if not link.startswith("#")} - set(shown)
    assert sorted(elsewhere) == ["curves.png", "curves.svg"]
    assert all((report.folder / link).is_file() for link in elsewhere)
    html = texts(report)["report.html"]
    assert "http" not in html
    for text in ("prefers-color-scheme: dark", "viewport", "LTR &amp; No NSP"):
        assert text in html
    assert re.search(r'title="1/1: (69|70)\.\d, 1/2: ', html)  # the seeds behind a cell


HOSTILE = "<img src=x onerror=alert(1)> </b><!-- <script>alert(2)</script> <?php"


def test_no_text_is_html(make_runs: Callable[..., Path], writers: Any) -> None:
    """Markdown lets HTML through: labels, titles and errors are words there, as in report.html."""
    root = make_runs({("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0}, pretrain_seeds=(1, 2))
    writers.finetune(root, "ltr", "mrpc", (1, 9), 0.0, status="failed")
    experiment = load_experiment(find_experiment("table5_pretraining_tasks"))
    rows = tuple(
        one.model_copy(update={"label": f"{one.label} {HOSTILE}"}) for one in experiment.rows
    )
    claims = tuple(
        one.model_copy(update={"text": f"{one.text} {HOSTILE}"}) for one in experiment.claims
    )
    update = {"title": f"{HOSTILE} 3 < 4", "source": HOSTILE, "rows": rows, "claims": claims}
    change(root, "finetune/ltr/pretrain-seed-1/mrpc/seed-9", error=HOSTILE)
    hostile = write_report(
        experiment.model_copy(update=update), root, root / "report", scale=HOSTILE
    )
    text = (hostile.folder / "report.md").read_text()
    tags = Page(text).found
    assert text.count("&lt;img src=x") > 10 and not {*tags} - {"picture", "source", "img"}
    assert tags.count("img") == tags.count("picture")  # the report's own
    assert "<img src=x" not in texts(hostile)["report.html"]
    assert "3 < 4" in text  # what is no HTML stays as it is


@pytest.mark.usefixtures("no_pictures")
def test_synthetic_is_said_first(make_runs: Callable[..., Path]) -> None:
    report = written(make_runs({("mlm", "mrpc"): 70.0}, generator={"_target_": "microworld.x"}))
    text = texts(report)["report.md"]
    assert text.startswith("**Synthetic data.**")
    # Generated MRPC is in the official format and under the official task's name; the paper's
    # number stays apart.
    ours, paper = text.split("### ")[1:3]
    shows(ours, "Generated tasks of text", "No NSP | 70.0 ± 1.0")
    shows(
        paper.split("## ")[0],
        "MLM & NSP | 84.4 | 88.4 | 86.7 | 92.7 | 88.5",
        "No NSP | 83.9 | 84.9 | 86.5 | 92.6 | 87.9",
    )
    body = texts(report)["report.html"].split("<body>")[1]
    assert body.index("Synthetic data.") < body.index("<h1>")


KNOWN = {
    "mlm": {
        "nats": 0.53,
        "standard_error": 0.02,
        "reader": "masked",
        "view": "the unmasked words of 62 on end",
    },
    "ltr": {
        "nats": 1.08,
        "standard_error": 0.004,
        "reader": "left_to_right",
        "view": "its document",
    },
}


def test_known_bounds_and_distances(make_runs: Callable[..., Path], writers: Any) -> None:
    """Held-out loss is 4.4 in every made-up run; the arm without the fact has a dash, not a
    number.
    """
    root = make_runs({}, pretrain_seeds=())
    for arm in ("mlm_nsp", "mlm", "ltr"):
        known = {"known_loss": KNOWN[arm]} if arm in KNOWN else None
        writers.pretrain(root, arm, 1, generator={"_target_": "microworld.x"}, known=known)
    report = written(root)
    pages = texts(report)
    pretraining = section(pages["report.md"], "Pre-training")
    shows(
        pretraining,
        "MLM & NSP (mlm_nsp) | L2 H128, 1.53 M | 4.400 | – | – | 6.200 | – | – |",
        "No NSP (mlm) | L2 H128, 1.53 M | 4.400 | 0.53 ± 0.02 | 3.87 | 6.200 | –",
        "LTR & No NSP (ltr) | L2 H128, 1.53 M | 4.400 | 1.08 ± 0.00 | 3.32 |",
    )
    (bound,) = re.findall(r"No left-to-right model can be below 1\.08", pretraining)
    assert bound in pages["report.html"]
    assert (report.folder / "curves.png").is_file()
    assert known_heights(find(root).pretrain) == {
        "no masked below 0.53": 0.53,
        "no left-to-right below 1.08": 1.08,
    }


@pytest.mark.usefixtures("no_pictures")
def test_surface_baselines_are_a_row_and_no_claim(
    make_runs: Callable[..., Path], writers: Any
) -> None:
    root = make_runs({("mlm", "mrpc"): 70.0}, pretrain_seeds=(1, 2), finetune_seeds=(1,))
    known = {
        "bag of words": {"accuracy": 0.7525, "f1": 0.9},
        "longest overlap": {"accuracy": 0.675},
    }
    spans = {"longest overlap": {"f1": 68.8}}
    for seed in (1, 2):
        constant_answer_scores = {"majority_baseline": 0.684}
        writers.finetune(
            root, "ltr", "mrpc", (seed, 1), 60.0, baselines=known, **constant_answer_scores
        )
        writers.finetune(root, "ltr", "squad_v1", (seed, 1), 60.0, baselines=spans)
    report = written(root)
    group = report.page.table.groups[0]
    found = dict(
        zip([heading.name for heading in group.headings], group.surface.cells, strict=True)
    )
    assert found["MRPC"] == CellView("75.2", note="bag of words")
    assert found["SQuAD F1"] == CellView("68.8", note="longest overlap")
    assert found["QNLI"] == CellView("\u2013")
    pages = texts(report)
    assert re.search(r"\| surface baseline \|.* 75\.2 \(bag of words\) \|", pages["report.md"])
    assert pages["report.html"].count("<th>surface baseline</th>") == 1
    assert not any("surface" in one.compared for one in report.page.judged.claims)
    console = Console(width=120, file=io.StringIO())
    print_page(report.page, console)
    assert re.search(r"surface baseline .*75\.2", console.file.getvalue())
    assert re.search(r"most frequent label .*68\.4", console.file.getvalue())


@pytest.mark.usefixtures("no_pictures")
def test_only_the_exception_is_noted(make_runs: Callable[..., Path], writers: Any) -> None:
    root = make_runs(
        {("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0}, pretrain_seeds=(1, 2), finetune_seeds=(1, 2)
    )
    writers.finetune(root, "random", "mrpc", (1, 1), 68.4, collapsed=True, majority_baseline=0.684)
    writers.finetune(root, "random", "mrpc", (1, 2), 66.0, majority_baseline=0.684)
    report = written(root)
    group = report.page.table.groups[0]
    column = [heading.name for heading in group.headings].index("MRPC")
    notes = {row.label: row.cells[column].note for row in group.rows}
    assert notes["No NSP"] == "" and group.rows[0].cells[column].mean == "missing"
    assert (
        notes["No pre-training"] == "2 of 4 runs; fine-tuning seeds only; 1 collapsed, 66.0 without"
    )
    assert group.majority.cells[column].mean == "68.4"
    shows(
        "\n".join(report.page.problems["Missing"]),
        "No pre-training on MRPC (pre-training/fine-tuning seed 2/1, 2/2)",
    )


@pytest.mark.usefixtures("no_pictures")
def test_what_pretraining_has_not_learnt_is_said(make_runs: Callable[..., Path]) -> None:
    root = make_runs(
        {("mlm_nsp", "mrpc"): 70.0, ("mlm", "mrpc"): 70.0},
        pretrain_seeds=(1, 2),
        finetune_seeds=(1,),
    )
    assert not written(root).page.overview.unlearnt
    told = {"nsp_accuracy": 0.7, "nsp_source_rule": 0.769, "nsp_accuracy_one_source": 0.554}
    pairs = {f"validation/{key}": value for key, value in told.items()}
    change(root, "pretrain/mlm_nsp/*", **{f"facts__{key}": told for key, told in pairs.items()})
    change(root, "pretrain/mlm/*", **{"facts__validation/loss": 6.1})
    page = written(root).page
    # replaced-token detection: the loss is its generator's
    change(root, "pretrain/mlm/*", **{"facts__validation/rtd_loss": 0.2})
    assert len(written(root).page.problems["Not learnt"]) == 1
    shows(
        "\n".join(page.problems["Not learnt"]),
        "Next-sentence prediction, accuracy on held-out pairs of 64 tokens: MLM &",
        "No NSP (mlm): a held-out loss of 6.10 nats, where 6.20 takes no context",
    )
    of_nsp, of_mlm = ({*one.claims} for one in page.overview.unlearnt)
    assert of_nsp >= {"dropping NSP costs MNLI"}
    assert not of_nsp & {"left-to-right costs MRPC"}
    assert {"dropping NSP costs MNLI", "left-to-right costs MRPC"} <= of_mlm
    (arm,) = (one for one in page.arms if "mlm_nsp" in one.label)
    assert (arm.nsp, arm.nsp_rule, arm.nsp_inside) == ("70.0%", "76.9%", "55.4%")
    shows(
        table(texts(written(root))["report.md"], "Pre-training"),
        "MLM & NSP (mlm_nsp) | L2 H128, 1.53 M | 4.400 | 6.200 | – | 70.0% |",
    )


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("accuracy", "rule", "inside", "is_learnt"),
    [
        (0.70, 0.769, 0.60, False),
        (0.78, 0.769, 0.60, True),
        (0.78, 0.769, 0.53, False),
        (0.58, 0.51, 0.58, True),
        # every random segment is of another source: none is left inside one
        (0.99, 1.0, None, False),
    ],
)
def test_learnt_is_above_the_sources_and_inside_one(
    make_runs: Callable[..., Path],
    accuracy: float,
    rule: float,
    inside: float | None,
    is_learnt: bool,
) -> None:
    root = make_runs({("mlm_nsp", "mrpc"): 70.0}, pretrain_seeds=(1, 2), finetune_seeds=(1,))
    facts = {"nsp_accuracy": accuracy, "nsp_source_rule": rule}
    if inside is not None:
        facts["nsp_accuracy_one_source"] = inside
    known = {f"facts__validation/{key}": value for key, value in facts.items()}
    change(root, "pretrain/mlm_nsp/*", **known)
    assert (not written(root).page.overview.unlearnt) == is_learnt


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(("loss", "is_learnt"), [(5.5, False), (5.3, True)])
def test_copying_is_no_context(
    make_runs: Callable[..., Path], loss: float, is_learnt: bool
) -> None:
    """A tenth of the predicted tokens stand there to be read: with frequencies alone for the rest
    that makes 5.58.
    """
    root = make_runs({("mlm", "mrpc"): 70.0}, pretrain_seeds=(1, 2), finetune_seeds=(1,))
    token = {"random_fraction": 0.1, "same_fraction": 0.1}
    known = {"facts__validation/loss": loss, "config__objective": {"token": token}}
    change(root, "pretrain/mlm/*", **known)
    page = written(root).page
    assert (not page.overview.unlearnt) == is_learnt
    assert [one.without_context for one in page.arms if "mlm)" in one.label] == ["5.580"]


def test_no_runs_is_a_clear_error(tmp_path: Path) -> None:
    with refuses("`clozelab reproduce table5_pretraining_tasks"):
        written(tmp_path)


def test_wording() -> None:
    assert [format_count(value) for value in (7, 1_527_680, 999_950, 3.2e9)] == [
        "7",
        "1.53 M",
        "1 M",
        "3.2 G",
    ]
    assert truncate_list(list("abcde"), "; ") == "a; b; c and 2 more"
    assert [duration(value) for value in (5.2, 90, 7200)] == ["5 s", "1.5 min", "2.0 h"]
    assert [signed(value) for value in (-0.04, 1.26, -3.5, None)] == ["0.0", "+1.3", "−3.5", "–"]


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("width", [80, 140])
def test_terminal_keeps_numbers_whole(make_runs: Callable[..., Path], width: int) -> None:
    page = written(full(make_runs, pretrain_seeds=(1, 2))).page
    console = Console(width=width, file=io.StringIO())
    print_page(page, console)
    printed = console.file.getvalue()
    assert max(map(len, printed.split("\n"))) <= width
    for group in page.table.groups:
        for row in group.rows:
            for cell in row.cells:
                assert cell.ours in printed or cell.mean == "missing"
    printed = printed.replace("\N{NO-BREAK SPACE}", " ")
    assert all(one.figures.interval in printed for one in page.judged.claims)
    assert all(one.claimed.split()[0] in ("the", "claimed:") for one in page.judged.claims)


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("seeds", "reason"),
    [
        ((1,), "ours is the mean and, in brackets, each of two fine-tuning"),
        ((1, 2), "ours is the mean and, in brackets, each of two pre-training"),
        ((1, 2, 3), "ours is the mean ± the 95 % interval over pre-training seeds"),
    ],
    ids=len,
)
def test_intervals_over_two_seeds_explain_their_size(
    make_runs: Callable[..., Path], seeds: tuple[int, ...], reason: str
) -> None:
    page = written(make_runs({("mlm", "mrpc"): 70.0}, pretrain_seeds=seeds)).page
    shows(page.table.interval, reason)


@pytest.mark.usefixtures("no_pictures")
def test_what_a_cell_is_is_said_of_cells_alone(
    make_runs: Callable[..., Path], writers: Any, tmp_path: Path
) -> None:
    report = written(make_runs({}, pretrain_seeds=(1, 2)))
    assert report.page.table.interval == ""
    assert "without an interval" not in "".join(texts(report).values())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/paper.yaml").write_text(
        "columns:\n  - {name: Pairs, from: evaluate, task: pairs, metric: validation/accuracy}\n"
        "rows:\n  - {row: mlm, arm: mlm}\nmatched_by: none\n"
    )
    experiment = load_experiment(tmp_path / "mine")
    root = tmp_path / "measured" / "mine" / "demo"
    for seed in (1, 2, 3):
        writers.pretrain(root, "mlm", seed)
        scores = {"validation/accuracy": 0.6 + seed / 100}
        writers.evaluation(root, "mlm", "pairs", seed, scores, experiment="mine")
    page = write_report(experiment, root, root / "report", scale="demo").page
    assert page.table.interval == "a cell is the mean ± the 95 % interval over pre-training seeds"


@pytest.mark.usefixtures("no_pictures")
def test_verb_prints_table_and_path(
    make_runs: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    screen: Screens,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    root = make_runs({("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0})
    runs_dir = root.parents[1]
    assert report_verb(["table5_pretraining_tasks", "scale=demo", f"runs_dir={runs_dir}"]) == 0
    screen(capsys.readouterr().out)


@pytest.mark.usefixtures("no_pictures")
def test_a_collapsed_cell_has_no_interval(make_runs: Callable[..., Path], writers: Any) -> None:
    root = make_runs({("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0}, finetune_seeds=(1, 2))
    for row in ("random", "random_bilstm", "ltr_bilstm", "mlm_nsp"):
        for seeds in product((1, 2, 3), (1, 2)):
            writers.finetune(root, row, "mrpc", seeds, 68.4, collapsed=True)
    report = written(root)
    group = report.page.table.groups[0]
    column = [heading.name for heading in group.headings].index("MRPC")
    cells = {row.label: row.cells[column] for row in group.rows}
    assert (cells["No pre-training"].mean, cells["No pre-training"].half) == ("68.4", "collapsed")
    assert cells["No NSP"].half.startswith("± ")
    text = texts(report)["report.md"]
    shows(
        section(text, "The paper's data sets"),
        "MLM & NSP | 84.4 | 88.4 | 86.7 | 68.4 collapsed (every run) | 92.7 |",
        "No NSP | 83.9 | 84.9 | 86.5 | 70.0 ± 1.0 | 92.6 | 87.9",
    )
    assert text.count("give one answer to (nearly) every example") == 4
    console = Console(width=200, file=io.StringIO())
    print_page(report.page, console)
    printed = console.file.getvalue()
    assert printed.count("give one answer to (nearly) every example") == 3
    shows(
        "\n".join(line.strip() for line in printed.splitlines() if "more cell" in line),
        "collapsed: 1 more cell, in report.md",
    )


def test_the_screen_shows_the_first_lines_of_a_large_sweeps_problems() -> None:
    missing = [f"run {number} of arm a" for number in range(20)]
    arms = "; ".join(f"rate{number} 50.4%" for number in range(500))
    console = Console(width=100, file=io.StringIO())
    print_problems({"Missing": missing, "Not learnt": [arms]}, console)
    printed = console.file.getvalue()
    assert printed.count("missing: run ") == 8
    shows(printed, "missing: 12 more lines, in report.md", "not learnt: rate0 50.4%; rate1")
    assert len(printed.splitlines()) < 20 and "... (see report.md)" in printed


@pytest.mark.usefixtures("no_pictures")
def test_a_difference_that_rests_on_collapsed_runs_says_so_beside_its_verdict(
    make_runs: Callable[..., Path], writers: Any
) -> None:
    """Else a narrow interval stands beside p = 1.000 without a reason."""
    root = make_runs({("mlm_nsp", "mrpc"): 80.0, ("mlm", "mrpc"): 70.0})
    for seeds in product((1, 2, 3), (1, 2)):
        writers.finetune(root, "ltr", "mrpc", seeds, 60.0 + seeds[0], collapsed=seeds[0] < 3)
    claims = written(root).page.judged.claims
    resting = [claim.text for claim in claims if claim.needs_short == "rests on collapsed runs"]
    assert resting == ["left-to-right costs MRPC", "left-to-right is worse on every task"]


def test_updates_that_were_left_out_are_said(make_runs: Callable[..., Path]) -> None:
    root = make_runs({("mlm", "mrpc"): 70.0}, pretrain_seeds=(1, 2))
    assert "Sudden gradients" not in written(root).page.problems
    change(root / "pretrain/mlm/seed-2", facts__steps_left_out=[3, 466])
    assert written(root).page.problems["Sudden gradients"] == [
        "pretrain/mlm/seed-2: without the update of step 3 and 466"
    ]


def test_what_scores_are_of(
    make_runs: Callable[..., Path], writers: Any, no_pictures: None
) -> None:
    """The split, a part of the training examples, and the choice among evaluations are said where
    they apply.
    """
    root = full(make_runs)
    shows(
        section(texts(written(root))["report.md"], "The table"),
        "Percent on the dev sets; ours is the mean ± the 95 % interval over",
    )
    data = {"train_examples": 1000, "train_examples_available": 3668}
    change(root, "finetune/*/*/mrpc/*", facts={"data": data, "num_evaluations": 2})
    found = texts(written(root))
    assert "was scored several times on the way" in found["report.md"]
    for text in ("was scored several times on the way", "trained on 1,000 of 3,668"):
        assert text in found["report.html"]
    experiment = load_experiment(find_experiment("table5_pretraining_tasks")).model_copy(
        update={"split": "test"}
    )
    write_report(experiment, root, root / "other", scale="demo")
    shows(
        section((root / "other/report.md").read_text(), "The table"),
        "Percent ours on the dev sets and the paper's on the test sets; ours is",
    )


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (
            "steps",
            "differ in steps of pre-training by more than 2 % (nothing else is matched: why)",
        ),
        ("none", "or nothing else (arms are not matched here: why)"),
    ],
)
def test_what_is_not_matched_says_why(
    make_runs: Callable[..., Path], amount: str, words: str
) -> None:
    experiment = load_experiment(find_experiment("table5_pretraining_tasks"))
    changed = experiment.model_copy(update={"matched_by": amount, "matched_by_reason": "why"})
    root = make_runs({("mlm", "mrpc"): 70.0}, pretrain_seeds=(1, 2))
    shows(texts(write_report(changed, root, root / "report", scale="demo"))["report.md"], words)


@pytest.mark.usefixtures("no_pictures")
def test_each_length_of_held_out_rows_is_said(make_runs: Callable[..., Path]) -> None:
    root = make_runs({("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0}, pretrain_seeds=(1,))
    change(root, "pretrain/mlm/*", config__validation={"seq_length": 32})
    found = texts(written(root))
    assert re.search("All held-out rows have (32 or 64|64 or 32) tokens", found["report.md"])
    assert re.search("in rows of (32 or 64|64 or 32)<", found["report.html"])


def test_links_of_the_readme_are_words_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(
        "# T\n\n**The question.** Is it so ([100 M\ntokens](../other/README.md) say no)?\n\nMore.\n"
    )
    experiment: Any = SimpleNamespace(folder=tmp_path)
    assert pages._question(experiment) == "Is it so (100 M tokens say no)?"
