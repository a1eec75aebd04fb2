"""A score in points of which less is better, from where it is computed to a verdict."""

from __future__ import annotations

import csv
import json
import shutil
import string
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import mean_absolute_error
from tests.runs.records import edit, predictions, record_of
from tests.runs.records import read_json as read

from claims.analysis.contrasts import ContrastTerm, make_contrast
from claims.analysis.schema import Scale
from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import judge
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.report.render import write_table
from clozelab.results.experiment import Experiment, load_experiment
from clozelab.results.table import ResultTable, build_table
from clozelab.runs.find import find
from clozelab.runs.record import Record, Score, write_record

WORDS = ("dull", "fair", "good", "great")
TOKENIZER = WordPieceTokenizer(
    [*SPECIAL_TOKENS, *string.ascii_lowercase, *WORDS, "the", "film"], lowercase=True
)
TASK = (
    "task=stsb",
    "task.metric=validation/mae",
    "task.module.metrics=[mae,spearman]",
    "task.data.text_columns=[text]",
    "task.data.id_column=null",
    "task.data.label_column=stars",
    "task.data.train_file=stars/train.tsv",
    "task.data.validation_file=stars/dev.tsv",
    "task.data.test_files={}",
    "evaluations_per_epoch=4",
    "epochs=2",
    "learning_rate=3e-3",
)
MAE = "validation/mae"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, save_encoder: Callable[..., None]) -> Path:
    """An encoder, and texts with 0 to 3 stars."""
    root = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    (root / "data/stars").mkdir(parents=True)
    for name, count in (("train", 80), ("dev", 24)):
        stars = rng.integers(len(WORDS), size=count)
        lines = ["text\tstars", *(f"the film {WORDS[number]}\t{number}" for number in stars)]
        (root / "data/stars" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    save_encoder(root / "encoder", TOKENIZER, num_hidden_layers=1, max_position_embeddings=32)
    return root


@pytest.fixture(scope="module")
def made() -> dict[str, Path]:
    return {}


@pytest.fixture
def trained(finetune: Callable[..., Path], made: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of one run, which is trained once for all tests here."""
    if not made:
        made["run"] = finetune(*TASK, name="made")
    return Path(shutil.copytree(made["run"], tmp_path / "run"))


def test_the_smallest_error_selects_the_checkpoint_and_is_recorded_as_it_is(trained: Path) -> None:
    scores = read(trained, "scores.json")
    errors = [evaluation[MAE] for evaluation in scores["evaluations"]]
    assert len(set(errors)) > 2, "else any evaluation would do"
    assert scores["scores"][MAE] == min(errors) < max(errors)
    assert scores["best_step"] == scores["evaluations"][errors.index(min(errors))]["step"]
    assert scores["selection"].startswith("lowest ")

    # It is the error of the kept predictions, in stars.
    rows = predictions(trained)
    labels = [row["label"] for row in rows]
    predicted = [row["prediction"] for row in rows]
    expected = mean_absolute_error(labels, predicted)
    recorded = read(trained, "run.json")["scores"]
    assert recorded[MAE]["value"] == pytest.approx(expected, abs=1e-5)
    assert (recorded[MAE]["unit"], recorded[MAE]["higher_is_better"]) == ("points", False)
    spearman = recorded["validation/spearman"]
    assert (spearman["unit"], spearman["higher_is_better"]) == ("percent", True)


def table_of(trained: Path, root: Path, claims: list[dict[str, Any]]) -> ResultTable:
    """Two rows of copies of one run, three seeds each; `close` has the smaller errors."""
    record = record_of(trained)
    for row, errors in (("close", (0.50, 0.51, 0.52)), ("far", (0.80, 0.82, 0.81))):
        for seed, error in enumerate(errors, start=1):
            write_copy(record, root / "runs" / row / str(seed), row, seed, error)
    experiment = root / "stars"
    experiment.mkdir()
    file: Mapping[str, Any] = {
        "columns": [{"name": "Stars", "task": "stsb"}],
        "arms": {"close": {}, "far": {}},
        "matched_by": "none",
        "rows": [{"row": row, "arm": row} for row in ("close", "far")],
        "claims": claims,
    }
    (experiment / "paper.yaml").write_text(json.dumps(file))
    return build_table(load_experiment(experiment), find(root / "runs"))


def write_copy(record: Record, folder: Path, row: str, seed: int, error: float) -> None:
    folder.mkdir(parents=True)
    copy = record.model_copy(deep=True)
    copy.folder = folder
    copy.config |= {"row": row, "encoder_arm": row, "seed": 1, "pretrain_seed": seed}
    copy.fingerprint = f"{row}-{seed}"
    # Of an encoder of its own, and with answers of its own.
    copy.overrides = []
    copy.facts["collapsed"] = False
    copy.inputs = copy.inputs | {"encoder": copy.fingerprint}
    copy.scores[MAE].value = error
    (folder / "scores.json").write_text("{}")
    write_record(copy)


COMPARED = {"compare": ["close", "far", "Stars"]}
CLAIMS = [
    COMPARED | {"text": "lower", "direction": "lower"},
    COMPARED | {"text": "higher", "direction": "higher"},
    COMPARED | {"text": "not_higher", "direction": "not_higher", "points": 0.1},
]


def test_a_claim_and_a_report_are_about_points(
    trained: Path, tmp_path: Path, no_pictures: None
) -> None:
    table = table_of(trained, tmp_path, CLAIMS)
    (column,) = table.with_results
    assert (column.scale, column.decimals) == (Scale("points", higher_is_better=False), 2)
    verdicts = {judgement.claim.direction: judgement.verdict for judgement in judge(table)}
    assert verdicts["lower"] == verdicts["not_higher"] == Verdict.HOLDS
    assert verdicts["higher"] == Verdict.CONTRADICTED

    report = write_table(table, tmp_path / "report", scale="demo")
    page = (report.folder / "report.md").read_text(encoding="utf-8")
    table_part, claims_part = page.split("## The claims")
    assert "Points on the dev sets" in table_part and "| close | 0.51 ± 0.02 |" in table_part
    assert "in points" in claims_part and "| lower | −0.30 |" in claims_part
    assert "percent" not in table_part
    assert "mae, lower is better" in (report.folder / "report.html").read_text(encoding="utf-8")
    with (report.folder / "results.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["metric"] == MAE]
    assert {line["unit"] for line in lines} == {"points"}
    assert sorted(float(line["score"]) for line in lines)[0] == 0.5


def test_of_several_learning_rates_the_one_with_the_smallest_error_stands_in_the_table(
    trained: Path, tmp_path: Path
) -> None:
    table = table_of(trained, tmp_path, CLAIMS)
    root = tmp_path / "runs"
    for seed in (1, 2, 3):
        record = record_of(root / "close" / str(seed))
        record.config["learning_rate"] = 5e-2
        write_copy(record, root / "close" / f"other-{seed}", "close", seed, 0.3)
    found = build_table(table.experiment, find(root))
    cell = found.cells["close", found.with_results[0].key]
    assert cell.estimate is not None and cell.estimate.mean == pytest.approx(0.3)


def test_scores_in_two_units_are_not_subtracted(trained: Path, tmp_path: Path) -> None:
    table = table_of(trained, tmp_path, CLAIMS[:1])
    (column,) = table.with_results
    other = replace(column, key="other", scale=Scale("percent", higher_is_better=True))
    terms = (ContrastTerm(1.0, "close", column), ContrastTerm(-1.0, "far", other))
    cells = dict(table.cells) | {("far", "other"): table.cells["far", column.key]}
    contrast = make_contrast(replace(table, cells=cells), terms)
    reason = contrast.exclusions.incomparability
    assert reason is not None
    assert reason.text == "another unit: points and percent cannot be subtracted"


def test_what_paper_yaml_says_has_to_agree_with_the_runs(trained: Path, tmp_path: Path) -> None:
    table = table_of(trained, tmp_path, CLAIMS)

    def declared(**scale: object) -> Experiment:
        column = table.experiment.columns[0].model_copy(update=scale)
        return table.experiment.model_copy(update={"columns": (column,)})

    build_table(declared(unit="points", higher_is_better=False), table.runs)
    with pytest.raises(ValueError, match="says percent, higher is better, and its runs have"):
        build_table(declared(unit="percent", higher_is_better=True), table.runs)


def test_what_guessed_by_the_name_is_refused_or_has_no_unit(trained: Path) -> None:
    """The negative control: such a record was a percentage times 100, and higher was better."""
    guessed = read(trained, "run.json")
    error = guessed["scores"][MAE].pop("value")
    guessed["scores"][MAE] = {"unit": "percent", "factor": 100.0, "value": 100.0 * error}
    edit(trained / "run.json", scores=guessed["scores"])
    score = record_of(trained).scores[MAE]
    assert (score.unit, score.higher_is_better) == ("unknown unit", None)
    assert Score(unit="percent", higher_is_better=True).falls is False
