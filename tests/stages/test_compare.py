"""Two runs side by side: every difference is found, and equal tokens are equal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.screens import shows

from clozelab.results.comparison import cautions_of, differences, held_out_figures
from clozelab.runs.find import open_run
from clozelab.stages.compare import main


@pytest.fixture
def root(make_runs: Callable[..., Path]) -> Path:
    return make_runs(dict.fromkeys(product(("mlm", "ltr"), ("mrpc", "squad_v1")), 60.0))


def run_of(root: Path, row: str, task: str = "mrpc", seeds: tuple[int, int] = (1, 1)) -> Path:
    return root / "finetune" / row / f"pretrain-seed-{seeds[0]}" / task / f"seed-{seeds[1]}"


def change(folder: Path, **parts: Any) -> None:
    state = json.loads((folder / "run.json").read_text())
    for key, value in parts.items():
        state[key] = state.get(key, {}) | value
    (folder / "run.json").write_text(json.dumps(state))


def write_metrics(folder: Path, *rows: str) -> None:
    lines = ["step,tokens,seconds,key,value", *rows, ""]
    (folder / "metrics.csv").write_text("\n".join(lines))


def test_every_difference_and_nothing_else(root: Path) -> None:
    one, two = run_of(root, "mlm"), run_of(root, "ltr", seeds=(1, 2))
    change(one, config={"optimizer": {"betas": [0.9, 0.98]}}, inputs={"encoder": "a" * 64})
    change(two, config={"optimizer": {"betas": [0.9, 0.999]}}, inputs={"encoder": "b" * 64})
    change(two, versions={"torch": "2.14.0"}, facts={"precision": "32-true"})
    runs = [open_run(str(one)), open_run(str(two))]
    found = {key: values for key, *values in differences(runs, "configuration")}
    assert found == {
        "row": ["mlm", "ltr"],
        "seed": ["1", "2"],
        "optimizer.betas.1": ["0.98", "0.999"],
        "inputs.encoder": ["a" * 12, "b" * 12],
    }
    made = {key: values for key, *values in differences(runs, "made with")}
    expected = {"versions.torch": ["2.13.0", "2.14.0"], "facts.precision": ["(none)", "32-true"]}
    assert made == expected
    same = [runs[0], runs[0]]
    assert differences(same, "configuration") == differences(same, "made with") == []


def test_curves_at_equal_tokens(root: Path) -> None:
    one, two = root / "pretrain/mlm/seed-1", root / "pretrain/mlm/seed-2"
    lines = (two / "metrics.csv").read_text().splitlines()
    # stopped half-way
    (two / "metrics.csv").write_text("\n".join(lines[:6]) + "\n60,600000,6.0,validation/lo")
    (figure,) = held_out_figures(open_run(str(one)), open_run(str(two)))
    assert figure.common_tokens == 500_000
    lines = (one / "metrics.csv").read_text().splitlines()[1:]
    values = [float(line.rpartition(",")[2]) for line in lines]
    assert figure.common is not None
    assert (figure.last[0], figure.common[0]) == (values[9], values[4])
    assert figure.last[1] == figure.common[1]


def test_a_few_tokens_more_do_not_shift_the_pair(root: Path) -> None:
    """Two seeds of one recipe end with nearly as many tokens: their last evaluations belong
    together.
    """
    one, two = root / "pretrain/mlm/seed-1", root / "pretrain/mlm/seed-2"
    for folder, last, value in ((one, 1_000_956, 3.0), (two, 1_000_000, 2.5)):
        rows = ["90,900000,9.0,validation/loss,4.0", f"100,{last},10.0,validation/loss,{value}"]
        write_metrics(folder, *rows)
    (figure,) = held_out_figures(open_run(str(one)), open_run(str(two)))
    assert figure.common_tokens == 1_000_000
    assert figure.common == (pytest.approx(3.0, abs=0.02), 2.5)


def test_figures_on_other_data_are_not_offered_in_silence(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (root / "pretrain" / arm / "seed-1" for arm in ("mlm", "mlm_nsp"))
    words = "not evaluated on the same data"
    for folder in (one, two):
        change(folder, inputs={"corpus": "a" * 64})
    main([str(one), str(two)])
    assert words not in capsys.readouterr().out
    change(two, inputs={"corpus": "b" * 64})
    main([str(one), str(two)])
    assert words in capsys.readouterr().out
    assert held_out_figures(open_run(str(one)), open_run(str(run_of(root, "mlm")))) == [], (
        "stages only share names"
    )


def test_it_says_which_evaluation_and_which_unit(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = {}
    for task in ("mrpc", "squad_v1"):
        folders[task] = [run_of(root, row, task) for row in ("mlm", "ltr")]
    for task, key, value in (("mrpc", "accuracy", 0.7034), ("squad_v1", "exact_match", 6.3576)):
        for folder in folders[task]:
            cell = f"validation/{key},{value}"
            write_metrics(folder, f"5,100,1.0,{cell}", f"9,200,2.0,{cell}")
    change(folders["mrpc"][0], facts={"best_step": 5, "total_steps": 9})
    main([str(folder) for folder in folders["mrpc"]])
    out = capsys.readouterr().out
    shows(out, "A finetune mlm mrpc seed 1/1, complete", "accuracy, percent 59.70 60.30 +0.6")
    shows(out, "accuracy, percent 70.34 70.34 200 70.34 70.34")
    main([str(folder) for folder in folders["squad_v1"]])
    out = capsys.readouterr().out
    shows(out, "exact_match, percent 6.36 6.36 200 6.36 6.36")
    shows(out, "f1, percent 59.70 60.30 +0.6", "exact_match, percent 29.85 30.15 +0.3")
    main([str(root / "pretrain" / arm / "seed-1") for arm in ("mlm", "ltr")])
    shows(capsys.readouterr().out, "4.40 nats, word frequencies give 6.20")


def test_two_evaluations_show_their_scores_once(
    root: Path, writers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have no course: what was held out is the score itself."""
    folders = [root / f"evaluate/{row}/pretrain-seed-1/pairs/seed-1" for row in ("mlm", "ltr")]
    for row, folder in zip(("mlm", "ltr"), folders, strict=True):
        writers.evaluation(root, row, "pairs", 1, {"validation/accuracy": 0.625})
        write_metrics(folder, "0,0,1.0,validation/accuracy,0.625")
    assert main([str(folder) for folder in folders]) == 0
    out = capsys.readouterr().out
    assert len(re.findall("accuracy, percent", out)) == 1
    shows(out, "A evaluate mlm pairs seed 1/1, complete", "accuracy, percent 62.50 62.50 0.0")


def test_units_are_each_runs_own(
    root: Path, writers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """SQuAD 1.1 and 2.0 name one score differently, both in percent; the threshold of 2.0 is in
    neither.
    """
    scores = {"validation/f1": 55.3, "validation/exact": 50.0, "validation/threshold": -3.25}
    first, second = run_of(root, "mlm", "squad_v1"), run_of(root, "mlm", "squad_v2")
    for row in ("mlm", "ltr"):
        writers.finetune(root, row, "squad_v2", (1, 1), 55.3, scores=scores)
    write_metrics(
        first, *(f"10,1000,1.0,validation/{key}" for key in ("f1,55.3", "exact_match,50.0"))
    )
    third = run_of(root, "ltr", "squad_v2")
    for folder in (second, third):
        write_metrics(folder, *(f"10,1000,1.0,{key},{value}" for key, value in scores.items()))
    main([str(first), str(second)])
    assert re.search(r"f1, percent +55\.30 +55\.30", capsys.readouterr().out)
    main([str(second), str(third)])
    out = capsys.readouterr().out
    shows(out, "f1, percent 55.30 55.30 1 k 55.30 55.30", "f1, percent 55.30 55.30 0.0")
    shows(out, "threshold, logits -3.2500 -3.2500 1 k -3.2500 -3.2500")
    shows(out, "exact, percent 50.00 50.00 1 k 50.00 50.00")
    shares = run_of(root, "mlm")
    write_metrics(shares, "10,1000,1.0,validation/f1,0.8")
    (pair,) = held_out_figures(open_run(str(first)), open_run(str(shares)))
    assert pair.last == (55.3, 80.0), "a share beside a percentage"


@pytest.mark.parametrize(
    ("data", "caution"),
    [
        ({"tokenizer": "a", "is_causal": True}, None),
        ({"tokenizer": "b", "is_causal": True}, "Their tokenizers cut text into other tokens"),
        ({"tokenizer": "a", "is_causal": False}, "One is asked from the left, one from both sides"),
        ({}, None),
    ],
)
def test_what_a_report_would_not_compare_is_said(
    tmp_path: Path, writers: Any, data: dict[str, Any], caution: str | None
) -> None:
    for row, facts in (("mlm", {"tokenizer": "a", "is_causal": True}), ("ltr", data)):
        writers.evaluation(tmp_path, row, "held_out_text", 1, {"validation/loss": 2.0})
        (path,) = tmp_path.glob(f"evaluate/{row}/*/*/*")
        change(path, facts={"data": facts})
    records = [open_run(str(path)) for path in sorted(tmp_path.glob("evaluate/*/*/*/*"))]
    found = cautions_of(records)
    assert len(found) == (caution is not None)
    assert caution is None or found[0].startswith(caution)


@pytest.mark.parametrize(
    ("first", "second", "key"),
    [
        ({"seq_length": 32}, {"seq_length": 128}, "validation.seq_length"),
        ({"instances": 64}, {"instances": 640}, "validation.instances"),
    ],
)
def test_losses_over_other_rows_are_not_offered_in_silence(
    root: Path, capsys: Any, first: dict[str, int], second: dict[str, int], key: str
) -> None:
    folders = [root / "pretrain/mlm" / f"seed-{seed}" for seed in (1, 2)]
    sentence = f"They were not evaluated in the same way ({key}): their figures cannot be compared."
    for folder in folders:
        change(folder, config={"validation": first})
    main(list(map(str, folders)))
    assert "in the same way" not in capsys.readouterr().out
    change(folders[1], config={"validation": second})
    main(list(map(str, folders)))
    shows(capsys.readouterr().out, sentence)


def test_a_measure_with_other_settings_is_named(tmp_path: Path, writers: Any, capsys: Any) -> None:
    """Of equal files: the pairs that are read, and what is hidden of a sentence."""
    folders = []
    for row, changed in (("mlm", {"max_pairs": 100}), ("ltr", {"masking": "token"})):
        writers.evaluation(tmp_path, row, "blimp", 1, {"validation/accuracy": 0.7})
        (folder,) = tmp_path.glob(f"evaluate/{row}/*/*/*")
        data = {"max_pairs": None, "masking": "word", "how_to_get": row} | changed
        change(folder, config={"measure": {"name": "blimp", "data": data}})
        folders.append(str(folder))
    main(folders)
    shows(capsys.readouterr().out, "the same way (measure.data.max_pairs, measure.data.masking)")


def test_scores_of_two_classes_are_not_offered_in_silence(root: Path, capsys: Any) -> None:
    folders = [run_of(root, row) for row in ("mlm", "ltr")]
    for folder, label in zip(folders, ("spam", "ham"), strict=True):
        score = {"unit": "percent", "value": 80.0, "positive_label": label}
        change(folder, scores={"validation/f1": score | {"higher_is_better": True}})
    main(list(map(str, folders)))
    sentence = "f1 is of the class spam in A and of ham in B: it cannot be compared."
    shows(capsys.readouterr().out, sentence)


def test_folds_have_other_rows(root: Path, capsys: Any) -> None:
    folders = [run_of(root, "mlm", seeds=(1, seed)) for seed in (1, 2)]
    for folder in folders:
        change(folder, config={"task": {"name": "mrpc", "data": {"validation_folds": 5}}})
    main(list(map(str, folders)))
    shows(capsys.readouterr().out, "They were scored on other folds: their figures cannot be")
    # Where the other seed chooses the fold, it is that of one pre-training.
    for folder in folders:
        change(folder, config={"sampling_seed": "pretrain_seed"})
    main(list(map(str, folders)))
    assert "other folds" not in capsys.readouterr().out
    change(folders[1], config={"pretrain_seed": 2})
    main(list(map(str, folders)))
    shows(capsys.readouterr().out, "They were scored on other folds")


def test_losses_keep_the_digits_that_tell_them_apart(
    root: Path, writers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A difference of 0.04 bits a character is not 0.0."""
    scores = {"mlm": 1.231, "ltr": 1.2745}
    for row, score in scores.items():
        writers.evaluation(root, row, "text", 1, {"validation/bits_per_character": score})
    main([str(root / f"evaluate/{row}/pretrain-seed-1/text/seed-1") for row in scores])
    shows(capsys.readouterr().out, "bits_per_character, bits 1.2310 1.2745 +0.0435")
