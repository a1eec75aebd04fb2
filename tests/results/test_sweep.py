"""A table of any sweep's runs without an experiment: rows for what differs, paired differences from
the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from tests.records import change, made_up

from claims.analysis.contrasts import contrast_rows
from claims.analysis.schema import Column
from claims.analysis.statistics import FINETUNING_SEEDS
from claims.analysis.verdict_codes import Verdict
from claims.report.claims import differences
from claims.text.phrases import signed
from clozelab.report.page import ArmsBelowBaselineView, answer
from clozelab.report.problems import problems
from clozelab.report.summaries import learning_summary, seed_counts
from clozelab.results.adhoc import infer_table
from clozelab.results.table import ResultTable
from clozelab.results.units import scale_without_runs
from clozelab.runs.find import Runs, find
from clozelab.runs.identity import RESULTS_VERSIONS
from clozelab.runs.outcome import results
from clozelab.runs.record import Score
from clozelab.stages.report import main


def say(root: Path, pattern: str, *overrides: str) -> None:
    """What the jobs of a multirun recorded of their command line."""
    for path in root.glob(f"{pattern}/run.json"):
        state = json.loads(path.read_text())
        seeds = [
            f"{key}={state['config'][key]}"
            for key in ("pretrain_seed", "seed")
            if key in state["config"]
        ]
        path.write_text(
            json.dumps(state | {"overrides": [*overrides, *seeds], "config_name": state["stage"]})
        )


def rows_of(table: ResultTable) -> dict[str, list[float | None]]:
    """Label -> means of the columns with results."""
    means: dict[str, list[float | None]] = {}
    for row in table.rows:
        estimates = [table.cells[row, column.key].estimate for column in table.with_results]
        means[row] = [estimate and round(estimate.mean, 4) for estimate in estimates]
    return means


@pytest.fixture
def rates(tmp_path: Path, writers: Any) -> Path:
    """`clozelab pretrain -m objective.token.predict_prob=0.15,0.3 seed=1,2,3`: every run is called
    mlm.
    """
    for rate, loss in (("0.15", 4.0), ("0.3", 4.5)):
        for seed in (1, 2, 3):
            known = {"validation/loss": loss + 0.1 * seed + (0.01 * seed if rate == "0.3" else 0.0)}
            writers.pretrain(tmp_path / f"predict_prob={rate}", "mlm", seed, known=known)
        say(
            tmp_path,
            f"predict_prob={rate}/*/*/*",
            f"objective.token.predict_prob={rate}",
            "scale=demo",
            f"arm=p-{rate}",
        )
    return tmp_path


def test_rows_are_what_the_overrides_say_differently(rates: Path) -> None:
    """The multirun has named its arms after it, too. What the rows are about is no problem of
    theirs.
    """
    table = infer_table(find(rates))
    assert "Unequal" not in problems(table)
    assert rows_of(table) == {"predict_prob=0.15": [4.2], "predict_prob=0.3": [4.72]}
    assert [one.heading for one in table.columns if not one.is_paper] == ["held-out loss"]
    (found,) = differences(table)
    assert (found.row, found.first, found.ours) == (
        "predict_prob=0.3",
        "predict_prob=0.15",
        "+0.52",
    )
    assert found.interval == "[+0.50, +0.54]" and found.p == "p < 0.001" and found.note == ""


def test_measures_of_a_swept_pre_training_are_compared(rates: Path, writers: Any) -> None:
    """What the sweep varied in pre-training is what the rows of its measures are about, too."""
    for rate in ("0.15", "0.3"):
        token = {"predict_prob": float(rate)}
        pattern = f"predict_prob={rate}/*/*/*"
        change(rates, pattern, config__arm=f"p-{rate}", config__objective={"token": token})
    for rate, score in (("0.15", 50.0), ("0.3", 60.0)):
        for seed in (1, 2, 3):
            writers.finetune(
                rates / "tuned",
                f"p-{rate}",
                "mrpc",
                (seed, 1),
                score + 0.1 * seed * (rate == "0.3"),
                config={"encoder_arm": f"p-{rate}"},
            )
        say(rates, f"tuned/finetune/p-{rate}/*/*/*", f"encoder_arm=p-{rate}")
    (found,) = differences(infer_table(find(rates)))
    assert found.p == "p < 0.001"


def test_losses_over_other_tokens_are_not_compared(
    rates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Masking twice as many is a harder question."""
    for rate in ("0.15", "0.3"):
        token = {"predict_prob": float(rate)}
        change(rates, f"predict_prob={rate}/*/*/*", config__objective={"token": token})
    table = infer_table(find(rates))
    assert "Unequal" not in problems(table)
    (found,) = differences(table)
    assert found.p == "" and found.note.startswith("their objectives predict other tokens")
    assert main([str(rates)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"predict_prob=0.3 on held-out loss: {found.note[:30]}" in shown


def test_losses_of_ones_own_objective_with_another_setting_are_told_as_scored_otherwise(
    rates: Path,
) -> None:
    """Nobody knows of a class of one's own which settings choose tokens, and which score them."""
    for rate, gamma in (("0.15", 2), ("0.3", 5)):
        token = {"_target_": "mypkg.objectives.Focal", "predict_prob": 0.15, "gamma": gamma}
        change(rates, f"predict_prob={rate}/*/*/*", config__objective={"token": token})
    (found,) = differences(infer_table(find(rates)))
    assert found.p == ""
    assert found.note.startswith(
        "their objectives predict other tokens or score them otherwise, so losses do not compare:"
    )


def test_without_overrides_rows_are_what_the_settings_say(rates: Path) -> None:
    say(rates, "*/*/*/*", "scale=demo")
    change(rates, "predict_prob=0.3/*/*/*", config__objective={"token": {"predict_prob": 0.3}})
    assert list(rows_of(infer_table(find(rates)))) == ["predict_prob=default", "predict_prob=0.3"]


def test_what_a_sweep_of_fine_tunings_varies_bars_no_difference(
    tmp_path: Path, writers: Any
) -> None:
    for epochs, gain in ((3, 0.0), (6, 2.0)):
        for seed in (1, 2, 3):
            score = 70.0 + gain + 0.01 * seed * gain
            config = {"epochs": epochs}
            writers.finetune(tmp_path / str(epochs), "mlm", "mrpc", (seed, 1), score, config=config)
        say(tmp_path, f"{epochs}/finetune/*/*/*/*", f"epochs={epochs}")
    (found,) = differences(infer_table(find(tmp_path)))
    assert (found.row, found.first, found.p) == ("epochs=6", "epochs=3", "p < 0.001")


def test_shares_of_a_pretraining_are_percent(tmp_path: Path, writers: Any) -> None:
    """Whatever the record declares: value and unit of a column agree."""
    for arm in ("mlm", "ltr"):
        known = {"validation/nsp_accuracy": 0.7, "validation/nsp_accuracy_one_source": 0.6}
        writers.pretrain(tmp_path, arm, 1, known=known)
    table = infer_table(find(tmp_path))
    assert rows_of(table) == {arm: [4.4, 70.0, 60.0] for arm in ("ltr", "mlm")}
    assert [one.unit for one in table.with_results] == ["nats", "percent", "percent"]
    units = {
        one: scale_without_runs(Column(name="a", source="pretrain", metric=one)).unit
        for one in (
            "validation/nsp_accuracy/wiki",
            "validation/rtd_trivial_accuracy",
            "validation/rtd_loss",
            "validation/perplexity",
            "tokens",
        )
    }
    assert [*units.values()] == ["percent", "percent", "nats", "perplexity", "tokens"]


def test_what_only_tasks_differ_in_names_no_row(tmp_path: Path, writers: Any) -> None:
    """Without a word of overrides, rows are what the settings say, and a task's own settings are no
    row's.
    """
    for task, file in (("mrpc", "MRPC/train.tsv"), ("sst2", "SST-2/train.tsv")):
        for seed in (1, 2):
            config = {"task": {"name": task, "data": {"train_file": file}}}
            writers.finetune(tmp_path, "mine", task, (seed, 1), 70.0, config=config)
    assert rows_of(infer_table(find(tmp_path))) == {"mine": [70.0, 70.0]}


@pytest.mark.parametrize("are_said", [True, False])
def test_rows_of_two_experiments_stay_apart(tmp_path: Path, writers: Any, are_said: bool) -> None:
    """Below one folder, whether the rows' names are overrides or not: their seeds would else be
    those of one row.
    """
    for experiment, score in (("first", 70.0), ("second", 80.0)):
        for row in ("mlm", "ltr"):
            for seed in (1, 2):
                config = {"experiment": experiment}
                writers.finetune(
                    tmp_path / experiment,
                    row,
                    "mrpc",
                    (seed, 1),
                    score + (row == "ltr"),
                    config=config,
                )
            if are_said:
                say(tmp_path, f"{experiment}/finetune/{row}/*/*/*", f"row={row}")
    assert rows_of(infer_table(find(tmp_path))) == {
        "experiment=first, row=ltr": [71.0],
        "experiment=first, row=mlm": [70.0],
        "experiment=second, row=ltr": [81.0],
        "experiment=second, row=mlm": [80.0],
    }


def test_a_given_encoder_is_not_called_by_a_default(tmp_path: Path, writers: Any) -> None:
    """As after `finetune row=mine encoder=FOLDER` beside measures of a sweep's encoders."""
    for row in ("p-0.15", "p-0.3", "mine"):
        arm = "mlm_nsp" if row == "mine" else row
        writers.finetune(tmp_path, row, "mrpc", (1, 1), 70.0, config={"encoder_arm": arm})
        overrides = ["row=mine", "encoder=a/folder"] if row == "mine" else [f"encoder_arm={arm}"]
        say(tmp_path, f"finetune/{row}/*/*/*", *overrides)
    table = infer_table(find(tmp_path))
    assert list(rows_of(table)) == ["mine", "p-0.15", "p-0.3"]
    arms = [row.arm for row in table.experiment.rows]
    assert arms == ["a/folder", "p-0.15", "p-0.3"], "mlm_nsp has nothing to do with it"


def test_a_row_of_random_weights_has_no_encoder(tmp_path: Path, writers: Any) -> None:
    for row, arm in (("mlm", "mlm"), ("random", None)):
        config = {"encoder_arm": arm, "initialisation": "pretrained" if arm else "random"}
        for seed in (1, 2):
            writers.finetune(tmp_path, row, "mrpc", (seed, 1), 50.0, config=config)
        say(tmp_path, f"finetune/{row}/*/*/*", f"row={row}")
    found = {row.name: row.has_encoder for row in infer_table(find(tmp_path)).experiment.rows}
    assert found == {"mlm": True, "random": False}


def test_nobody_misses_what_was_not_begun(
    tmp_path: Path, writers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row on one task, beside rows with more seeds on another: no run of it is lacking."""
    for seed in (1, 2):
        writers.finetune(tmp_path, "first", "mrpc", (seed, 1), 70.0)
    writers.finetune(tmp_path, "second", "sst2", (1, 1), 80.0)
    for row in ("first", "second"):
        say(tmp_path, f"finetune/{row}/*/*/*", f"row={row}")
    table = infer_table(find(tmp_path))
    assert not any(cell.missing for cell in table.cells.values())
    assert main([str(tmp_path)]) == 0
    assert "missing" not in capsys.readouterr().out


def test_the_verb_makes_the_same_page_without_a_word_of_a_paper(
    rates: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    no_pictures: None,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([str(rates)]) == 0
    pages = [(rates / "report" / name).read_text() for name in ("report.html", "report.md")]
    out = capsys.readouterr().out
    assert all("predict_prob=0.3" in page and "+0.52" in page for page in (*pages, out))
    assert max(map(len, out.splitlines()[:-1])) <= 80 and out.count("predict_prob=0.3") == 2, (
        "no name is broken"
    )
    words = pages[1].lower()
    assert [word for word in ("paper", "verdict", "claim", "ours") if word in words] == []
    assert (rates / "report" / "results.csv").read_text().count("\n") == 7


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="no run; give the folder of a sweep's runs, or the name of an experiment"
    ):
        main([str(tmp_path)])


# -- given encoders --------------------------------------------------------------------------------


def write_tunings(
    root: Path,
    writers: Any,
    scores: Mapping[str, Sequence[float]],
    over_encoders: Sequence[str] = (),
) -> None:
    """Fine-tunings of rows by hand: `encoder=FOLDER row=ROW seed=1,2,...`.

    All encoders are given but that of a row `ours`, which a scale has pre-trained. The runs of rows
    `over_encoders` differ in their pre-training seed.
    """
    for row, values in scores.items():
        for number, score in enumerate(values, 1):
            pair = (number, 1) if row in over_encoders else (1, number)
            config = {"initialisation": "pretrained", "encoder_arm": "mlm_nsp"}
            writers.finetune(root, row, "mrpc", pair, score, config=config)
            weights = f"weights of {row}"
            if row == "ours" and row in over_encoders:
                weights += f", seed {number}"
            shape = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12}
            scale = "own" if row == "ours" else ""
            change(
                root / f"finetune/{row}/pretrain-seed-{pair[0]}/mrpc/seed-{pair[1]}",
                inputs={"encoder": weights},
                facts__encoder=shape | {"scale": scale, "parameters": 22_713_216},
                overrides=[f"encoder=weights/{row}", f"row={row}", f"seed={number}"],
            )


Tunings = Callable[..., Path]


@pytest.fixture
def tunings(tmp_path: Path, writers: Any) -> Tunings:
    """tunings(first, over_encoders, below) -> the folder of `write_tunings`, of two rows."""

    def write(first: str = "further", over_encoders: Sequence[str] = (), below: str = "") -> Path:
        scores = {first: FURTHER, "public": PUBLIC}
        write_tunings(tmp_path / below, writers, scores, over_encoders)
        return tmp_path / below

    return write


FURTHER = [80.0, 81.5, 81.0, 82.5]
PUBLIC = [78.0, 79.0, 77.5, 79.5]


def test_two_given_encoders_are_judged_by_their_fine_tunings(
    tmp_path: Path, tunings: Tunings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Student's t over fine-tuning seeds, as scipy has it; and the page says what that is about."""
    tunings()
    table = infer_table(find(tmp_path))
    assert all(row.fixed_encoder for row in table.experiment.rows)
    (difference,) = differences(table)
    expected = scipy.stats.ttest_rel(PUBLIC, FURTHER)
    ends = expected.confidence_interval(0.95)
    assert difference.ours == signed(float(np.mean(PUBLIC) - np.mean(FURTHER)), 1)
    assert difference.interval == f"[{signed(ends.low, 1)}, {signed(ends.high, 1)}]"
    assert difference.p == f"p = {expected.pvalue:.3f}"
    for row in ("further", "public"):
        assert f"{row} is one encoder: its seeds are of fine-tuning alone" in difference.note

    assert main([str(tmp_path)]) == 0
    page = " ".join((tmp_path / "report/report.md").read_text().split())
    assert "given encoder: 6 layers of 384, 22.7 M parameters" in page
    assert "4 fine-tuning seeds (1, 2, 3, 4)" in page and "1 pre-training seed" not in page
    assert "a verdict is about these encoders" in page
    html = (tmp_path / "report/report.html").read_text()
    assert '<tr class="floor"' not in html
    capsys.readouterr()


def test_a_given_encoder_has_no_pre_training_seeds(tunings: Tunings) -> None:
    """Also where `pretrain_seed=1,2,3` has made its fine-tunings."""
    table = infer_table(find(tunings(over_encoders=("further", "public"))))
    assert table.most_common_basis == FINETUNING_SEEDS
    (difference,) = differences(table)
    assert difference.p == f"p = {scipy.stats.ttest_rel(PUBLIC, FURTHER).pvalue:.3f}"
    assert seed_counts(table) == "4 fine-tuning seeds (1/1, 2/1, 3/1, 4/1)"


def test_an_encoder_that_was_pre_trained_here_is_fixed_by_name_alone(
    tmp_path: Path, tunings: Tunings
) -> None:
    """Another pre-training seed of its recipe would give another encoder."""
    tunings("ours")
    (difference,) = differences(infer_table(find(tmp_path)))
    assert difference.p == "" and "over fine-tuning seeds only" in difference.note
    (named,) = differences(infer_table(find(tmp_path), ["ours"]))
    assert named.p == f"p = {scipy.stats.ttest_rel(PUBLIC, FURTHER).pvalue:.3f}"
    assert main([str(tmp_path), "fixed_encoder=ours"]) == 0
    with pytest.raises(ValueError, match="fixed_encoder=our: no such row; did you mean 'ours'"):
        infer_table(find(tmp_path), ["our"])
    with pytest.raises(ValueError, match="takes report_dir=, fixed_encoder=ROW and --paper"):
        main([str(tmp_path), "seed=1"])


def test_a_given_encoder_beside_pre_training_seeds(tunings: Tunings) -> None:
    """With the other row's pre-training seeds they are pairs; without them one pair is left."""
    both = tunings("ours", ("ours", "public"), below="both")
    (difference,) = differences(infer_table(find(both)))
    assert difference.p == f"p = {scipy.stats.ttest_rel(PUBLIC, FURTHER).pvalue:.3f}"
    one = tunings("ours", ("ours",), below="one")
    (difference,) = differences(infer_table(find(one)))
    assert difference.p == ""
    assert "give public the pretrain_seed= of ours" in difference.note


def test_two_encoders_are_not_called_by_a_setting_of_one(tmp_path: Path, tunings: Tunings) -> None:
    """`epochs=1` of one alone, and the page asked what epochs change."""
    tunings()
    change(tmp_path, "finetune/public/*/*/*", overrides=["encoder=b", "row=public", "epochs=1"])
    rows = rows_of(infer_table(find(tmp_path)))
    assert [row.partition(", ")[0] for row in rows] == ["row=further", "row=public"]


def test_encoders_of_seeds_bring_no_names_into_rows(tmp_path: Path, tunings: Tunings) -> None:
    """Each of two rates fine-tunes the same encoders, which are given by their paths."""
    tunings()
    for rate, row in enumerate(("further", "public"), 1):
        for seed in range(1, 5):
            words = [f"encoder=seed-{seed}", f"row={row}", f"learning_rate={rate}", f"seed={seed}"]
            change(tmp_path, f"finetune/{row}/*/*/seed-{seed}", overrides=words)
    assert list(rows_of(infer_table(find(tmp_path)))) == ["learning_rate=1", "learning_rate=2"]


def test_a_row_of_two_given_encoders_is_not_fixed(tmp_path: Path, tunings: Tunings) -> None:
    tunings()
    second = tmp_path / "finetune/public/pretrain-seed-1/mrpc/seed-2"
    change(second, inputs={"encoder": "another"})
    table = infer_table(find(tmp_path))
    assert [row.fixed_encoder for row in table.experiment.rows] == [True, False]
    (difference,) = differences(table)
    assert difference.p == ""
    assert any("began with 2 different encoders" in line for line in problems(table)["Unequal"])


def test_each_swept_setting_makes_a_row(tmp_path: Path, writers: Any) -> None:
    """Also where run_dir= has put runs of one name apart, and in the sweep's own table."""
    for rate, score in (("5e-5", 70.0), ("2e-4", 80.0)):
        for seed in (1, 2, 3):
            config = {"learning_rate": float(rate)}
            writers.finetune(
                tmp_path / rate, "public", "mrpc", (1, seed), score + seed, config=config
            )
        say(tmp_path, f"{rate}/*/*/*/*/*", "row=public", f"learning_rate={rate}", "encoder=public")
    runs = find(tmp_path)
    expected = {"learning_rate=5e-5": [72.0], "learning_rate=2e-4": [82.0]}
    assert rows_of(infer_table(runs)) == expected
    lines = {line[0]: line[2:4] for line in results(runs.records)}
    assert lines == {
        "public, learning_rate=5e-5": ["3", "72.0"],
        "public, learning_rate=2e-4": ["3", "82.0"],
    }
    # Seeds alone make no rows.
    assert [line[0] for line in results(runs.records[:3])] == ["public"]


def test_a_measure_is_not_called_by_settings_of_fine_tuning(tmp_path: Path, writers: Any) -> None:
    """Both flows of the README in one folder: `row=minilm epochs=3` names no row of the other."""
    scores = {"validation/accuracy": 0.5}
    for rate in ("0.15", "0.3"):
        row = f"predict_prob-{rate}"
        for seed in (1, 2):
            writers.evaluation(tmp_path, row, "held_out_text", seed, scores, encoder_arm=row)
        say(tmp_path, f"evaluate/{row}/*/*/*", f"encoder_arm={row}", "measure=held_out_text")
    for row, epochs in (("minilm", 3), ("plain", 5)):
        writers.finetune(tmp_path, row, "mrpc", (1, 1), 70.0, config={"epochs": epochs})
        say(tmp_path, f"finetune/{row}/*/*/*", f"row={row}", "task=mrpc")
    say(tmp_path, "finetune/minilm/*/*/*", "row=minilm", "task=mrpc", "epochs=3")
    assert list(rows_of(infer_table(find(tmp_path)))) == [
        "predict_prob-0.15",
        "predict_prob-0.3",
        "row=minilm, epochs=3",
        "row=plain, epochs=5",
    ]


def test_runs_of_an_experiment_are_not_held_against_lines_that_nobody_wrote(
    tmp_path: Path, writers: Any
) -> None:
    """The report of a folder has no paper.yaml, so none of its lines were edited."""
    for head in ("linear", "bilstm"):
        for seed in (1, 2):
            config = {"head": head}
            writers.finetune(tmp_path, head, "mrpc", (seed, 1), 70.0 + seed, config=config)
        change(tmp_path, f"finetune/{head}/*/*/*", row_delta={"head": head})
    assert "Unequal" not in problems(infer_table(find(tmp_path)))


def test_the_page_has_the_shape_of_the_encoder_that_was_trained_further(
    tmp_path: Path, writers: Any
) -> None:
    """Not that of the scale, which its configuration has; and its new head is named as that."""
    encoder = {"scale": "", "num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12}
    facts = {
        "encoder": encoder | {"parameters": 22_713_216},
        "parameters": 22_713_216,
        "fresh_heads": ["lm"],
        "unigram_loss": 6.0,
        "validation/loss": 6.1,
    }
    writers.pretrain(tmp_path, "further", 1, known=facts)
    (run,) = find(tmp_path).pretrain
    assert run.config["model"]["num_hidden_layers"] == 2
    assert run.encoder_shape["num_hidden_layers"] == 6
    assert main([str(tmp_path)]) == 0
    page = " ".join((tmp_path / "report/report.md").read_text().split())
    assert "6 layers of 384, 22.7 M parameters" in page and "2 layers of 128" not in page
    assert "L6 H384, 22.7 M" in page
    assert "its given encoder had no trained lm head, and the new one needs more steps" in page
    assert "learnt next to nothing" not in page


def test_a_question_is_not_answered_by_encoders_that_learnt_nothing() -> None:
    """Only if a primary claim rests on them."""
    experiment: Any = SimpleNamespace(asks="Is it?")
    claims = [
        SimpleNamespace(text=text, primary=text == "helps", limits_a_loss=True)
        for text in ("helps", "costs")
    ]
    judgements: Any = [
        SimpleNamespace(
            claim=claim, verdict=Verdict.HOLDS, difference=None, judged_on="x", is_exploratory=False
        )
        for claim in claims
    ]
    for lacking, text in (
        ([], "Yes on x."),
        (["costs"], "Yes on x."),
        (["helps"], "No answer yet"),
    ):
        lacks = [ArmsBelowBaselineView("Further: a loss of 6.7 nats", lacking)]
        assert answer(experiment, judgements, lacks).startswith(f"Is it? {text}")
    assert answer(experiment, judgements, lacks).endswith("yet. Further: a loss of 6.7 nats.")


def test_an_older_record_has_its_shape_in_its_folder(tmp_path: Path, writers: Any) -> None:
    writers.pretrain(tmp_path, "further", 1)
    (run,) = find(tmp_path).pretrain
    assert run.encoder_shape["num_hidden_layers"] == 2
    run.inputs["encoder"] = "weights"
    assert run.encoder_shape == {}
    (run.folder / "encoder").mkdir()
    (run.folder / "encoder/config.json").write_text('{"num_hidden_layers": 6, "hidden_size": 384}')
    assert run.encoder_shape["hidden_size"] == 384


def test_f1_of_two_classes_shares_no_floor_and_no_difference(tmp_path: Path, writers: Any) -> None:
    """One fixed answer has 80 of `ok` and nothing of `fraud`: neither is the other's floor."""

    def write(row: str, value: float, label: str | None, labels: list[str] | None = None) -> None:
        task = {"name": "mrpc", "title": "Mail", "metric": "validation/f1"}
        for seed in (1, 2):
            writers.finetune(
                tmp_path,
                row,
                "mrpc",
                (1, seed),
                value,
                config={"task": task | {"data": {"labels": labels}}, "encoder_arm": "mlm"},
                metric="validation/f1",
                scores={"validation/f1": (value + seed) / 100},
                majority_baseline=0.8,
                baselines={"bag of words": {"f1": 0.7}},
            )
        change(
            tmp_path, f"finetune/{row}/*/*/*", **{"scores__validation/f1__positive_label": label}
        )

    write("first", 60.0, "ok")
    write("older", 70.0, None, labels=["fraud", "ok"])  # before runs named their class
    table = infer_table(find(tmp_path))
    (column,) = table.with_results
    assert column.majority == pytest.approx(80.0) and column.baseline == ("bag of words", 70.0)
    assert problems(table)["Below the baseline"]
    assert [one.ours for one in differences(table)] == [signed(10.0)]

    write("other", 20.0, "fraud")
    table = infer_table(find(tmp_path))
    (column,) = table.with_results
    assert (column.majority, column.baseline, column.positive_label) == (None, None, None)
    assert "Below the baseline" not in problems(table)
    assert [(one.row, one.ours) for one in differences(table)] == [("older", signed(10.0))]
    reason = contrast_rows(table, "other", "first", column).exclusions.incomparability
    assert reason and reason.text == "another class: F1 of fraud against ok"


@pytest.mark.parametrize(
    ("digests", "is_compared"),
    [
        (("one", "one"), True),
        (("one", "other"), False),
        # older runs do not know their text
        ((None, None), False),
    ],
    ids=["the same text", "two texts", "unknown"],
)
def test_held_out_scores_of_two_texts_are_not_compared(
    rates: Path, digests: tuple[str | None, str | None], is_compared: bool
) -> None:
    """The same text may lie in two corpora: with other names of its files, for example."""
    for text, rate in zip(digests, ("0.15", "0.3"), strict=True):
        pattern = f"predict_prob={rate}/*/*/*"
        change(rates, pattern, inputs__corpus=f"the shards of {rate}", config__corpus__name=rate)
        if text:
            change(rates, pattern, facts__text=text)
        say(rates, f"predict_prob={rate}/*/*/*", f"corpus={rate}")
    (found,) = differences(infer_table(find(rates)))
    assert (found.p == "p < 0.001") == is_compared
    assert found.note.startswith("each arm was scored on held-out text of its own") != is_compared


def test_arms_of_one_name_in_two_experiments_are_two_recipes(tmp_path: Path) -> None:
    records = []
    for experiment, loss, score in (("rate15", 3.0, 0.1), ("rate30", 3.6, 0.3)):
        for seed in (1, 2, 3):
            common = {"experiment": experiment, "initialisation": "pretrained"}
            tuned = {"row": "mlm", "encoder_arm": "mlm", "pretrain_seed": seed, "seed": 1}
            of_stage = {
                "pretrain": {"arm": "mlm", "seed": seed, "validation": {"seq_length": 64}},
                "finetune": tuned | {"task": {"name": "mrpc"}},
            }
            percent = Score(
                unit="percent", higher_is_better=True, value=80 + score * (20 + seed**2)
            )
            for stage, config in of_stage.items():
                run = made_up(
                    stage,
                    scale="demo",
                    results_version=RESULTS_VERSIONS[stage],
                    config=common | config,
                    inputs={"encoder": f"{experiment}{seed}", "task_files": "f"},
                    metric="validation/accuracy",
                    scores={"validation/accuracy": percent},
                    facts={"validation/loss": loss, "tokens": 1000},
                    folder=tmp_path / experiment / stage / str(seed),
                )
                records.append(run)
    table = infer_table(Runs(tmp_path, records))
    (difference,) = differences(table)
    assert difference.row == "rate30" and difference.p.startswith("p ")
    losses = [(arm.label, arm.loss) for arm in learning_summary(table)]
    assert losses == [("rate15 (rate15/mlm)", "3.000"), ("rate30 (rate30/mlm)", "3.600")]
