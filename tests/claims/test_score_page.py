"""The report of a file of scores: its files, its words, all pairs, and looks."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path

import pytest
from scipy import stats
from tests.results.words import as_frozen
from tests.screens import refuses, shows

from claims.analysis.schema import Column
from claims.cli import main
from claims.report.score_page import NAME_TASKS, judge_files
from claims.tables.claim_file import OF_COLUMNS, OF_EXPERIMENTS
from claims.tables.score_file import read_scores
from clozelab.results.experiment import Experiment
from clozelab.version import __version__

SCORES = {
    "bert": (84.1, 84.4, 83.9, 84.3),
    "ours": (85.0, 85.2, 84.9, 85.1),
    "theirs": (85.2, 85.0, 85.1, 85.4),
}


def write_scores(path: Path, num_seeds: int) -> Path:
    lines = ["system,seed,mnli"]
    for system, scores in SCORES.items():
        lines += [f"{system},{seed},{scores[seed - 1]}" for seed in range(1, num_seeds + 1)]
    path.write_text("\n".join(lines))
    return path


def write_claims(path: Path) -> Path:
    path.write_text(
        "title: Is ours better?\nscores: {arm: system}\n"
        "claims: [{text: ours is better, compare: [ours, bert, mnli], direction: higher}]\n"
    )
    return path


def test_the_command_line_writes_the_whole_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = write_scores(tmp_path / "scores.csv", 4)
    claims = write_claims(tmp_path / "claims.yaml")
    out = tmp_path / "report"
    assert main(["judge", str(scores), str(claims), "--out", str(out)]) == 0
    shows(capsys.readouterr().out, "Is ours better?", "holds", "12 scores of scores.csv, 4 seeds")
    names = {path.name for path in out.iterdir()}
    assert names >= {"report.html", "report.md", "forest.svg", "results.csv", "claims.csv"}
    html = (out / "report.html").read_text()
    # What was trained with these seeds is unknown, and so is whether rows may be compared.
    assert "over seeds" in html and "pre-training" not in html and "fine-tuning" not in html
    assert "taken on trust" in html and 'class="drawing holds"' in html
    assert "mnli" in (out / "report.md").read_text()
    # Its table of scores is one that it reads again.
    assert read_scores(out / "results.csv").cells["ours", "mnli"] == {
        (seed, 0): score for seed, score in enumerate(SCORES["ours"], 1)
    }

    assert main(["judge", str(tmp_path / "none.csv"), str(claims)]) == 1
    assert "none.csv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("stoping: {first: 3, most: 8}", "has no key 'stoping'; did you mean 'stopping'?"),
        ("colums: []", "has no key 'colums'; did you mean 'columns'?"),
        ("primary: true", "has no key 'primary'; there are claims, columns, compare, scores"),
        (
            "columns: [{name: mnli, higher_is_beter: false}]",
            "columns.0: has no key 'higher_is_beter'; did you mean 'higher_is_better'?",
        ),
        ("columns: [{name: mnli, units: nats}]", "columns.0: has no key 'units'; did you mean"),
    ],
)
def test_a_misspelt_key_of_a_file_of_claims_is_refused(
    tmp_path: Path, entry: str, message: str
) -> None:
    claims = write_claims(tmp_path / "claims.yaml")
    claims.write_text(f"{claims.read_text()}{entry}\n")
    with refuses(message):
        judge_files(write_scores(tmp_path / "scores.csv", 4), claims, None)


def test_a_claim_may_name_the_input_that_it_needs(tmp_path: Path) -> None:
    """As in the paper.yaml of an experiment with inputs, where it is left out without that one."""
    claims = write_claims(tmp_path / "claims.yaml")
    text = claims.read_text()
    claims.write_text(text.replace("direction: higher", "direction: higher, needs: general"))
    page = judge_files(write_scores(tmp_path / "scores.csv", 4), claims, None)
    assert [claim.text for claim in page.judged.claims] == ["ours is better"]


def test_a_file_of_claims_may_have_the_keys_of_an_experiment() -> None:
    fields = Experiment.model_fields.keys() - {"folder", "name"}
    assert fields == {*OF_EXPERIMENTS, "claims", "columns", "stopping", "title"}
    keys = {field.alias or name for name, field in Column.model_fields.items()}
    assert {*OF_COLUMNS} == keys | {"needs"}


@pytest.mark.parametrize("name", ["results.csv", "claims.csv"])
def test_a_report_does_not_replace_the_scores_that_it_is_made_of(tmp_path: Path, name: str) -> None:
    scores = write_scores(tmp_path / name, 4)
    given = scores.read_bytes()
    (tmp_path / "link").symlink_to(tmp_path)
    for folder in (tmp_path, tmp_path / "link"):
        with refuses(f"{scores} would be replaced by the report's own {name}"):
            judge_files(scores, write_claims(tmp_path / "claims.yaml"), folder)
    assert scores.read_bytes() == given
    assert not (tmp_path / "report.html").exists()


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"claims {__version__}\n"


def test_all_pairs_are_corrected_together(tmp_path: Path) -> None:
    scores = write_scores(tmp_path / "scores.csv", 4)
    claims = tmp_path / "claims.yaml"
    claims.write_text("scores: {arm: system}\ncompare: all\n")
    page = judge_files(scores, claims, tmp_path / "report")
    found = {(one.row, one.first): one.p for one in page.judged.differences}
    p_values = {}
    for first, row in combinations(SCORES, 2):
        p_values[row, first] = stats.ttest_rel(SCORES[row], SCORES[first]).pvalue
    largest = 0.0
    for rank, pair in enumerate(sorted(p_values, key=lambda pair: p_values[pair])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[pair]))
        assert found[pair] == ("p < 0.001" if largest < 0.001 else f"p = {largest:.3f}")
    text = (tmp_path / "report" / "report.md").read_text()
    assert "Every pair of rows, paired by seed" in text and "theirs against ours" in text

    claims.write_text("scores: {arm: system}\n")
    with refuses("no claims"):
        judge_files(scores, claims, None)
    claims.write_text("compare: all\nclaims: [{text: t, compare: [a, b, c], direction: higher}]\n")
    with refuses("compare is for a file without claims"):
        judge_files(scores, claims, None)


def test_without_claims_all_rows_are_compared_with_the_first(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(write_scores(path, 3).read_text().replace("system", "arm"))
    page = judge_files(path, None, None)
    assert {(one.row, one.first) for one in page.judged.differences} == {
        ("ours", "bert"),
        ("theirs", "bert"),
    }
    page = judge_files(path, None, None, "all")
    assert ("theirs", "ours") in {(one.row, one.first) for one in page.judged.differences}
    assert main(["judge", str(path), "--compare", "all"]) == 0
    with refuses("compare=all is for scores without a file of claims"):
        judge_files(path, write_claims(tmp_path / "claims.yaml"), None, "all")


def test_seeds_that_one_of_two_differences_has_alone_are_counted(tmp_path: Path) -> None:
    """Both rows have five seeds on each task, of which two are the same."""
    lines = ["arm,seed,task,score"]
    for task, first in (("qnli", 1), ("sst2", 4)):
        for seed in range(first, first + 5):
            lines += [f"a,{seed},{task},{80 + seed % 3}", f"b,{seed},{task},{78 + seed % 2}"]
    (tmp_path / "scores.csv").write_text("\n".join(lines))
    claim = "text: more, compare: [a, b, sst2], against: [a, b, qnli], direction: higher"
    (tmp_path / "claims.yaml").write_text(f"- {{{claim}}}\n")
    page = judge_files(tmp_path / "scores.csv", tmp_path / "claims.yaml", None)
    assert page.problems["Not paired"] == ["more: 2 seeds of 8 in both of its differences"]


def test_a_claim_of_several_lines_stands_in_one_row(tmp_path: Path) -> None:
    claims = write_claims(tmp_path / "claims.yaml")
    sentence = claims.read_text().replace("ours is better,", '"ours\\n is | better\\n",')
    claims.write_text(sentence)
    judge_files(write_scores(tmp_path / "scores.csv", 4), claims, tmp_path / "report")
    lines = (tmp_path / "report" / "report.md").read_text().splitlines()
    (row,) = (line for line in lines if line.startswith("| **holds** |"))
    (heading,) = (line for line in lines if line.startswith("| verdict |"))
    assert "| ours is \\| better |" in row
    assert len(re.findall(r"(?<!\\)\|", row)) == heading.count("|")


def test_the_page_names_what_it_assumes_of_scores(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    for score, fractions in (("0.9", "mnli, rte"), ("90", "rte")):
        path.write_text(f"arm,seed,mnli,rte,loss\na,1,{score},,2.1\nb,1,0.8,0.7,2.2\n")
        page = judge_files(path, None, None)
        metrics = {heading.name: heading.metric for heading in page.table.groups[0].headings}
        assert metrics == {"mnli": "", "rte": "", "loss": "lower is better"}
        assert {one.unit for one in page.judged.differences} == {"points", "loss"}
        tasks = "each column beside arm and seed is compared as a task: mnli, rte, loss"
        assert page.problems["Assumed"] == [
            f"{tasks}; {NAME_TASKS}",
            "percent, where higher is better: mnli, rte",
            f"fractions, shown as percent: {fractions}",
            "lower is better: loss",
        ]


def test_settings_beside_scores_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were tested as tasks, and no word of it on the screen."""
    path = tmp_path / "scores.csv"
    lines = ["Unnamed: 0.1,Unnamed: 0,system,seed,mnli,lr"]
    for system, rate in (("bert", 0.5), ("ours", 0.3)):
        for seed, score in enumerate(SCORES[system], 1):
            number = len(lines) - 1
            lines.append(f"{number},{number},{system},{seed},{score},{rate}")
    path.write_text("\n".join(lines))
    assert main(["judge", str(path)]) == 0
    shows(
        capsys.readouterr().out,
        "doubtful: lr: every seed of an arm has the same number, as with a setting; if this is",
        "assumed: each column beside arm and seed is compared as a task: mnli, lr;",
    )
    claims = write_claims(tmp_path / "claims.yaml")
    page = judge_files(path, claims, None)
    assert page.problems["Assumed"] == [
        "percent, where higher is better: mnli, lr",
        "fractions, shown as percent: lr",
    ], "the claims name what they are about"
    claims.write_text("scores: {tasks: [mnli]}\ncompare: all\n")
    page = judge_files(path, claims, None)
    assert page.problems == {"Assumed": ["percent, where higher is better: mnli"]}


@pytest.mark.parametrize(
    ("seeds", "change"), [((3, 4), "seeds were added"), ((4, 3), "seeds were left out")]
)
def test_seeds_that_change_after_a_look_are_called_so(
    tmp_path: Path, seeds: tuple[int, int], change: str
) -> None:
    claims = write_claims(tmp_path / "claims.yaml")
    for num_seeds, is_exploratory in zip(seeds, (False, True), strict=True):
        scores = write_scores(tmp_path / "scores.csv", num_seeds)
        page = judge_files(scores, claims, tmp_path / "report")
        with (tmp_path / "report" / "claims.csv").open(encoding="utf-8") as file:
            (line,) = csv.DictReader(file)
        assert (line["verdict"], line["exploratory"]) == ("holds", str(is_exploratory))
    assert f"{change} after an interim analysis" in page.judged.claims[0].note


ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "docs/results"


def examples_of_the_page(first_words: str) -> list[str]:
    """The blocks of docs/judge.md that begin with these words."""
    page = (ROOT / "docs" / "judge.md").read_text(encoding="utf-8")
    blocks = rf"^```(?:csv|yaml|)\n((?:{first_words}).*?)^```"
    return re.findall(blocks, page, re.MULTILINE | re.DOTALL)


@pytest.fixture
def printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], list[str]]:
    """printed(scores, claims) -> the lines of the terminal."""
    monkeypatch.setenv("COLUMNS", "100")
    files = [tmp_path / "scores.csv", tmp_path / "claims.yaml"]

    def judge(*texts: str) -> list[str]:
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        assert main(["judge", *map(str, files)]) == 0
        shown = capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ")
        return [line.strip() for line in shown.splitlines() if line.strip()]

    return judge


def test_the_example_of_the_page_is_what_is_printed(
    printed: Callable[[str, str], list[str]],
) -> None:
    words = "recipe|scores| *holds|30 % against"
    scores, claims, verdicts, pairs, differences = examples_of_the_page(words)
    for text, expected in ((claims, verdicts), (pairs, differences)):
        lines = [line.strip() for line in expected.splitlines()]
        assert lines == [line for line in printed(scores, text) if line in lines]


def test_the_example_with_single_examples_is_what_is_printed(
    printed: Callable[[str, str], list[str]],
) -> None:
    words = "arm,seed,task,example|claims:| *inconclusive"
    scores, claims, expected = examples_of_the_page(words)
    lines = [line.strip() for line in expected.splitlines()]
    assert printed(scores, claims)[-4:] == lines


NUM_SAME = {
    "2026-11-23-zero-shot-five-seeds": 9,
    "2026-11-27-recipes": 9,
    "2026-11-27-small-fine-tuning": 13,
}
# what a file of scores cannot know: baselines, and how runs were made
UNKNOWN = ("inconclusive (below its floor)", "below_floor", "not comparable", "not_comparable")


@pytest.mark.parametrize(("name", "num_same"), NUM_SAME.items())
def test_published_scores_have_the_published_verdicts(
    tmp_path: Path, name: str, num_same: int
) -> None:
    folder = PUBLISHED / name
    with (folder / "results.csv").open(encoding="utf-8") as file:
        runs = [run for run in csv.DictReader(file) if run["counts"] == "True" and run["row"]]
    lines = ["arm,seed,finetuning_seed,task,score"]
    for run in filter(lambda run: run["column"], runs):
        keys = ("row", "pretrain_seed", "seed", "column", "score")
        lines.append(",".join(run[key] for key in keys))
    (tmp_path / "scores.csv").write_text("\n".join(lines))
    paper = ROOT / "experiments" / runs[0]["experiment"] / "paper.yaml"
    page = judge_files(tmp_path / "scores.csv", paper, None)

    with (folder / "claims.csv").open(encoding="utf-8") as file:
        published = {line["text"]: line for line in csv.DictReader(file)}
    same = 0
    for claim in page.judged.claims:
        line = published[claim.text]
        if line["verdict"] not in UNKNOWN:
            assert claim.verdict == line["verdict"], claim.text
            assert claim.figures.ours == line["ours"]
            assert as_frozen(claim.figures.interval, line["interval"]) == line["interval"]
            same += 1
    assert same == num_same


@pytest.mark.parametrize(
    ("scores", "doubtful"),
    [
        (("0.80", "0.81", "78.0", "79.0"), "qa: a with scores between 0 and 1"),
        (("80.0", "0.81", "78.0", "0.79"), "qa: a and b with scores between 0 and 1"),
        (("0.0", "0.0", "78.0", "79.0"), ""),
        (("0.9", "0.8", "1.5", "1.4"), ""),
        (("0.80", "0.81", "0.78", "0.79"), ""),
    ],
)
def test_fractions_beside_percent_are_named(
    tmp_path: Path, scores: tuple[str, ...], doubtful: str
) -> None:
    """Else the difference of 0.80 and 78 is tested, and is sure."""
    runs = ("a,1", "a,2", "b,1", "b,2")
    lines = [f"{run},qa,{score}" for run, score in zip(runs, scores, strict=True)]
    path = tmp_path / "scores.csv"
    path.write_text("\n".join(["arm,seed,task,score", *lines]))
    named = judge_files(path, None, None).problems.get("Doubtful", [])
    assert [line.partition(",")[0] for line in named] == ([doubtful] if doubtful else [])
    # With a unit nothing is guessed.
    path.write_text("\n".join(["arm,seed,task,score,unit", *(f"{line},percent" for line in lines)]))
    assert "Doubtful" not in judge_files(path, None, None).problems


@pytest.mark.parametrize(("seeds", "is_named"), [((3, 4), True), ((1, 2), False)])
def test_rows_that_share_no_seed_are_named(
    seeds: tuple[int, int], is_named: bool, tmp_path: Path
) -> None:
    """The arms are models, systems or methods here, without a word in `scores:`."""
    path = tmp_path / "scores.csv"
    rows = ["model,seed,task,score", "a,1,t,81", "a,2,t,82"]
    rows += [f"b,{seeds[0]},t,83", f"b,{seeds[1]},t,85"]
    path.write_text("\n".join(rows))
    page = judge_files(path, None, None)
    assert ("Not compared" in page.problems) is is_named
    assert bool(page.judged.differences) is not is_named


def seeds_of(arm: str, seeds: Iterable[int]) -> list[str]:
    return [f"{arm},{seed},t,{80 + seed}" for seed in seeds]


def test_runs_without_a_partner_are_named(tmp_path: Path) -> None:
    """A verdict on two pairs of five runs each has to say so."""
    path = tmp_path / "scores.csv"
    rows = [*seeds_of("a", range(1, 7)), *seeds_of("b", (1, 2, 3)), *seeds_of("c", (4, 5, 6))]
    path.write_text("\n".join(["arm,seed,task,score", *rows]))
    pairs = tmp_path / "pairs.yaml"
    pairs.write_text("compare: all")
    of_b = "b and a on t: 3 pairs of equal seeds, of 3 and 6 runs"
    assert judge_files(path, pairs, None).problems["Not paired"] == [
        of_b,
        of_b.replace("b", "c", 1),
        "c and b on t: no run has the seeds of a run of the other, so no difference",
    ]
    claims = tmp_path / "claims.yaml"
    claims.write_text("claims: [{text: b is better, compare: [b, a, t], direction: higher}]")
    page = judge_files(path, claims, tmp_path / "report")
    assert page.problems["Not paired"] == [of_b]
    assert of_b in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


def test_fine_tunings_without_a_partner_are_named(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("arm,seed,finetuning_seed,t\na,1,1,81\na,2,1,82\nb,1,,83\nb,2,,85\n")
    (line,) = judge_files(path, None, None).problems["Not paired"]
    assert line.startswith("b and a on t: no run has the seeds of a run of the other")


RESULTS = PUBLISHED / "2026-11-28-worth-it-reviews"
STOPPING = "stopping: {first: 3, most: 8}"
TASKS = ("SST-2", "UD EWT UPOS", "WNUT-17 NER")


def test_the_results_of_a_report_are_judged_as_the_report_does(tmp_path: Path) -> None:
    """A published results.csv of clozelab: verdicts, intervals and p-values are those beside it."""
    claims = []
    for task in TASKS:
        about = f"text: helps {task}, compare: [further, given, {task}], points: 1"
        claims.append(f"- {{{about}, direction: higher, primary: together}}")
    for task in TASKS:
        about = f"text: costs {task}, compare: [further, given, {task}], points: 1"
        claims.append(f"- {{{about}, direction: not_lower}}")
    claims.append("- {text: text, compare: [further, given, Your text], direction: lower}")
    similarity = "text: keeps, compare: [further, given, Similarity], points: 1"
    claims.append(f"- {{{similarity}, direction: not_lower}}")
    (tmp_path / "claims.yaml").write_text("\n".join([STOPPING, "claims:", *claims]))
    judge_files(RESULTS / "results.csv", tmp_path / "claims.yaml", tmp_path / "report")
    with (RESULTS / "claims.csv").open(newline="", encoding="utf-8") as file:
        published = list(csv.DictReader(file))
    with (tmp_path / "report/claims.csv").open(newline="", encoding="utf-8") as file:
        judged = list(csv.DictReader(file))
    assert len(judged) == len(published) == 8
    for ours, theirs in zip(judged, published, strict=True):
        for key in ("judged_on", "verdict", "ours", "interval", "p"):
            assert ours[key] == theirs[key], (key, ours, theirs)


def test_claims_are_written_as_numbers_too(tmp_path: Path) -> None:
    """Programs read no minus of typographers, and no rounded p."""
    claims = tmp_path / "claims.yaml"
    claims.write_text("claims: [{text: worse, compare: [bert, ours, mnli], direction: lower}]")
    scores = write_scores(tmp_path / "scores.csv", 4)
    judge_files(scores, claims, tmp_path / "report")
    with (tmp_path / "report/claims.csv").open(newline="", encoding="utf-8") as file:
        (line,) = csv.DictReader(file)
    paired = stats.ttest_rel(SCORES["bert"], SCORES["ours"])
    interval = paired.confidence_interval()
    assert line["unit"] == "points" and line["ours"] == "\u22120.9"
    expected = [-0.875, interval.low, interval.high, paired.pvalue, paired.pvalue]
    columns = ("difference", "low", "high", "p_value", "corrected_p")
    assert [float(line[column]) for column in columns] == pytest.approx(expected)


def test_what_has_collapsed_in_a_report_is_left_out_and_named() -> None:
    """The report decides nothing there; a judgement of the scores alone would find a difference."""
    found = read_scores(PUBLISHED / "2026-11-27-two-sides/results.csv")
    assert found.notes
    for note in found.notes:
        row, task = note.removesuffix(", where runs have collapsed").split(" on ")
        assert (row, task) not in found.cells
    assert found.cells


def test_a_column_of_a_report_has_the_metric_that_is_shown_there() -> None:
    """One task may be two columns, of two of its metrics."""
    columns = {
        column for _, column in read_scores(PUBLISHED / "2026-11-27-recipes/results.csv").cells
    }
    assert "Words" in columns and "cloze_by_side" not in columns
