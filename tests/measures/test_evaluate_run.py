"""Stage evaluate from configuration to run folder, and its runs in a table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.results.words import role_of

from claims.analysis.hypotheses import resolve_claim
from clozelab.results.experiment import load_experiment
from clozelab.results.table import build_table
from clozelab.runs.find import find

PAIRS = ["measure=minimal_pairs", "measure.data.files=pairs.jsonl", "measure.name=my_pairs"]
TASK_DATA = "measure.task.data"
EMPTY = "measure.data.sources=[{name: a, path: empty.txt}]"
PAPER = """
title: Mine
columns:
  - {name: MNLI, task: mnli}
  - {name: My pairs, from: evaluate, task: my_pairs, metric: validation/accuracy}
rows:
  - {row: mlm, arm: mlm, floor: random}
  - {row: random, arm: null}
arms: {mlm: {objective: mlm}}
matched_by: none
claims:
  - {text: pre-training helps, compare: [mlm, random, My pairs], direction: higher}
  - {text: pre-training helps everywhere, compare: [mlm, random, all], direction: higher}
"""


@pytest.fixture
def world(tmp_path: Path, save_encoder: Callable[..., Path]) -> Path:
    save_encoder(tmp_path / "encoder")
    rows = [("the cat sat", "sat the cat", "order"), ("a dog ran", "a dog rans", "form")] * 4
    lines = [
        json.dumps({"sentence_good": a, "sentence_bad": b, "UID": c, "field": "f"})
        for a, b, c in rows
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    for name in ("empty.jsonl", "empty.txt"):
        (tmp_path / name).touch()
    return tmp_path


def test_run_folder(world: Path, evaluate: Callable[..., Path]) -> None:
    folder = evaluate(*PAIRS)
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert names == {
        "config.yaml",
        "log.txt",
        "metrics.csv",
        "predictions.jsonl",
        "run.json",
        "scores.json",
    }
    (record,) = find(folder).evaluate
    assert (record.status, record.job_name) == ("complete", ("mlm_nsp", "my_pairs", "1/1"))
    assert {"stages.evaluate", "modules.measures", "datamodules.scoring"} <= record.modules.keys()
    assert set(record.inputs) == {"encoder", "task_files", "task_data"}
    assert record.facts["num_examples"] == 8
    scores = json.loads((folder / "scores.json").read_text())
    shares = scores["scores"]
    assert (
        shares["validation/accuracy"] * 100 == record.score == record.values["validation/accuracy"]
    )
    assert (
        shares["validation/accuracy"]
        == (shares["validation/accuracy/order"] + shares["validation/accuracy/form"]) / 2
    )
    assert record.scores["validation/accuracy/order"].unit == "percent"
    assert scores["selection"] == "none: scored once"
    before = (folder / "run.json").read_bytes()
    assert (
        evaluate(*PAIRS) == folder and (folder / "run.json").read_bytes() == before
    )  # complete: nothing is done again


def test_texts_are_cut_as_in_the_models_fine_tuning(
    world: Path, evaluate: Callable[..., Path]
) -> None:
    """The folder remembers what its texts were cut to; the task's own length is 128."""
    config = world / "encoder/config.json"
    config.write_text(
        json.dumps(json.loads(config.read_text()) | {"clozelab": {"max_seq_length": 8}})
    )
    (world / "encoder/checksums.json").unlink()
    lines = "".join(f"{'the cat sat on a dog ' * 3}\t{number % 2}\n" for number in range(8))
    for name in ("train.tsv", "dev.tsv"):
        (world / name).write_text(f"sentence\tlabel\n{lines}")
    files = ["measure.task.data.train_file=train.tsv", "measure.task.data.validation_file=dev.tsv"]
    (record,) = find(evaluate("measure=probe", "task@measure.task=sst2", *files)).evaluate
    assert record.facts["data"]["max_seq_length"] == 8
    # gc keeps what a run refers to
    assert any(name.startswith("baselines/probe_sst2-") for name in record.facts["cache"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["measure=held_out_text"], "no held-out text: the corpus that this encoder was trained"),
        (["measure=blimp"], "no files of minimal pairs at .*blimp"),
        ([*PAIRS, "trainer.devices=2"], "an evaluation runs on one device"),
        ([*PAIRS, "trainer.precision=bf16-true"], "not in bf16-true: say trainer.devices=1"),
        ([*PAIRS, "encoder_fraction=0.5"], "is no encoder that a run has kept"),
        (["measure=labelled", f"{TASK_DATA}.validation_file=x.tsv"], "benchmark file not found"),
        ([*PAIRS, "measure.data=null"], "give it a task, or module and data of its own"),
        ([*PAIRS, "measure.data.columns.bad=wrong"], "pairs.jsonl has no column 'wrong'; its col"),
        ([*PAIRS, "measure.data.masking=all"], "masking=all: choose one of token, word"),
        ([*PAIRS, "measure.data.files=empty.jsonl"], "empty.jsonl has no examples"),
        (["measure=held_out_text", EMPTY], "the held-out text has no sentence: name a longer one"),
        (["measure=pairs_next", EMPTY], "the held-out text has no sentence: name a longer one"),
        (["measure=sentence_pairs", "measure.data.question=why"], "question=why: choose one of n"),
        (["measure=cloze_by_side", "measure.data.sides=[up]"], "sides=up: choose one of left, ri"),
        ([*PAIRS, "encoder=null"], "encoder is not set: no encoder here .* pre-train it first"),
        ([*PAIRS, "encoder=WORLD/failed"], "failed: no encoder here .*; pre-train it first"),
        ([*PAIRS, f"encoder=me/mine@{'0' * 40}"], "0 is no folder here; clozelab export me/mine@"),
    ],
)
def test_bad_input_is_one_sentence_and_claims_no_folder(
    world: Path, evaluate: Callable[..., Path], words: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(*(word.replace("WORLD", str(world)) for word in words))
    assert not (world / "run").exists()


def test_an_encoder_without_the_head_is_refused(
    world: Path, evaluate: Callable[..., Path], tokenizer: Any
) -> None:
    from clozelab.models.folders import load_encoder, save_encoder_folder

    encoder = load_encoder(world / "encoder")
    save_encoder_folder(
        world / "bare", encoder, heads={}, tokenizer_files=tokenizer.files(), extra_config={}
    )
    with pytest.raises(ValueError, match="bare has no trained lm head, which my_pairs needs"):
        evaluate(*PAIRS, f"encoder={world / 'bare'}")
    # The floor needs none: its weights are fresh.
    assert (
        evaluate(*PAIRS, f"encoder={world / 'bare'}", "initialisation=random") / "scores.json"
    ).is_file()


def test_its_runs_are_a_column_of_ours(world: Path, evaluate: Callable[..., Path]) -> None:
    (world / "mine").mkdir()
    (world / "mine/paper.yaml").write_text(PAPER)
    experiment = load_experiment(world / "mine")
    for row, start in (("mlm", "pretrained"), ("random", "random")):
        for seed in (1, 2):
            words = [
                "experiment=mine",
                f"row={row}",
                "encoder_arm=mlm",
                f"initialisation={start}",
                f"pretrain_seed={seed}",
            ]
            evaluate(*PAIRS, *words, name=f"runs/{row}/{seed}")
    table = build_table(experiment, find(world / "runs"))
    (column,) = table.with_results
    assert (column.heading, role_of(column), column.is_paper, column.unit) == (
        "My pairs",
        "",
        False,
        "percent",
    )
    (world / "mine/paper.yaml").write_text(f"source: a paper{PAPER}")
    (beside,) = build_table(load_experiment(world / "mine"), find(world / "runs")).with_results
    assert role_of(beside) == "ours, not in the paper"
    cell = table.cells["mlm", column.key]
    assert sorted(cell.scores) == [(1, 1), (2, 1)] and not cell.missing
    on_pairs, on_all = experiment.claims
    assert [case.judged_on for case in resolve_claim(on_pairs, table)] == ["My pairs"]
    # the paper's columns alone
    assert [case.judged_on for case in resolve_claim(on_all, table)] == ["0 of 1 columns"]


@pytest.mark.parametrize("side", ["right", "both"])
def test_a_causal_encoder_is_not_asked_from_the_right(
    tmp_path: Path, save_encoder: Callable[..., Path], evaluate: Callable[..., Path], side: str
) -> None:
    """Refused before its text is looked for."""
    save_encoder(tmp_path / "encoder", is_causal=True)
    with pytest.raises(ValueError, match=f"sides={side}: a causal encoder reads from the left al"):
        evaluate("measure=cloze_by_side", f"measure.data.sides=[left,{side}]")


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("{name: x, from: evaluate, task: blimp}", "a column from evaluate has a metric, such as"),
        ("{name: x, from: evaluate, metric: validation/accuracy}", "task is a measure"),
        ("{name: x, from: finetune, task: mnli}", "it is pretrain, evaluate, or left out"),
    ],
)
def test_a_column_without_its_measure_or_score_is_refused(
    tmp_path: Path, column: str, reason: str
) -> None:
    (tmp_path / "paper.yaml").write_text(f"columns: [{column}]\nrows: []\n")
    with pytest.raises(ValueError, match=reason):
        load_experiment(tmp_path)
