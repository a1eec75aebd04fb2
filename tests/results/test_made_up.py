"""Verdicts over records that are made up here: seeds of two kinds, units, looks, and what a plan
says of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.records import made_up, table_of
from tests.results.words import incomparability_of, role_of

from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Judgement, detectable_difference, judge, run_interim_analysis
from clozelab.planning.next_seed import nearest
from clozelab.results.experiment import Experiment, find_experiment, load_experiment
from clozelab.runs.record import Record, Score

METRIC = "validation/accuracy"
BITS = "validation/bits_per_character"
TASK = {"name": "task", "task": "task", "metric": METRIC}


@pytest.fixture
def declare(tmp_path: Path) -> Any:
    """An experiment with rows a, b and c, and one claim unless others are said: b above a on the
    task.
    """

    def make(**said: Any) -> Experiment:
        folder = tmp_path / f"mine-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        usual: dict[str, Any] = {
            "columns": [TASK],
            "arms": {row: {} for row in "abc"},
            "matched_by": "none",
            "rows": [{"row": row, "arm": row} for row in "abc"],
            "claims": [claim("t", "b", "a")],
        }
        (folder / "paper.yaml").write_text(json.dumps(usual | said))
        return load_experiment(folder)

    return make


def claim(text: str, one: str, other: str, **more: Any) -> dict[str, Any]:
    return {"text": text, "compare": [one, other, "task"], "direction": "higher"} | more


def run(
    stage: str, scores: dict[str, float], facts: dict[str, Any] | None = None, **config: Any
) -> Record:
    units = {}
    for key, one in scores.items():
        units[key] = Score(unit="percent", higher_is_better=True, value=one)
        if key == BITS:
            units[key] = Score(unit="bits", higher_is_better=False, value=one)
    place = Path("none") / "-".join(str(one) for one in config.values()).replace("/", "_")
    metric = next(iter(scores), METRIC)
    return made_up(
        stage, config=config, metric=metric, scores=units, facts=facts or {}, folder=place
    )


def tuned(
    row: str, seed: int, score: float, *, task: str = "task", metric: str = METRIC, again: int = 1
) -> Record:
    return run(
        "finetune", {metric: score}, row=row, task={"name": task}, pretrain_seed=seed, seed=again
    )


def judged(experiment: Experiment, records: Sequence[Record]) -> dict[str, Judgement]:
    return {one.claim.id or one.claim.text: one for one in judge(table_of(experiment, records))}


def test_a_difference_across_stages_takes_all_fine_tuning_seeds() -> None:
    key, records = "validation/spearman", []
    for seed in (1, 2, 3):
        for row, frozen in (("mean", 40 + 0.2 * seed), ("cls", 36 + 0.3 * seed)):
            measure = {"name": "similarity"}
            records.append(
                run("evaluate", {key: frozen}, row=row, measure=measure, pretrain_seed=seed, seed=1)
            )
        for again in (1, 2):
            mean, cls = 60 + 0.1 * seed + 2 * (again == 2), 59 + 0.15 * seed - 8 * (again == 2)
            for row, score in (("mean", mean), ("cls", cls)):
                records.append(
                    tuned(row, seed, score, task="stsb_siamese", metric=key, again=again)
                )
    experiment = load_experiment(find_experiment("sentence_embeddings"))
    found = judged(experiment, records)["training_narrows"]
    assert found.difference is not None and found.difference.mean == pytest.approx(5.9 - 3.8)
    assert (
        found.verdict == Verdict.CONTRADICTED
    )  # by the first fine-tuning seed alone it would hold
    lacking = [one for one in records if (one.name, one.seed) != ("cls", 2)]
    partly = judged(experiment, lacking)["training_narrows"]
    assert partly.difference is not None and partly.difference.mean == pytest.approx(0.9 - 3.8)
    for one in records:  # collapsed, its partner of the same seeds is left out with it
        one.facts["collapsed"] = (one.name, one.seed) == ("cls", 2)
    healthy = judged(experiment, records)["training_narrows"]
    assert healthy.weakest is not None and healthy.weakest.without_collapsed is not None
    assert healthy.weakest.without_collapsed.mean == pytest.approx(0.9 - 3.8)


def test_the_next_seed_goes_where_it_can_decide(declare: Any) -> None:
    """The primary claim is open after its last look; another one has looks left, a second primary
    one waits.
    """
    claims = [
        claim("p", "b", "a", primary=True),
        claim("q", "c", "a", primary=True),
        claim("r", "c", "b"),
    ]
    ruled = declare(claims=claims, stopping={"first": 3, "most": 6})
    noise = (0.9, -1.1, 0.3, -0.4, 1.2, -0.8)
    records = [
        tuned(row, seed, 70 + noise[seed - 1] * (row == "b"))
        for row, seed in product("ab", range(1, 7))
    ]
    records += [tuned("c", seed, 70.5 + 0.3 * seed) for seed in (1, 2, 3)]
    found = list(judged(ruled, records).values())
    assert [one.verdict for one in found] == [Verdict.INCONCLUSIVE] * 3
    chosen = nearest(found, ruled)
    assert chosen is not None and chosen.claim.text == "r"


def test_what_can_be_detected_is_in_points_and_under_the_rule(declare: Any) -> None:
    columns = [TASK, {"name": "m", "from": "evaluate", "task": "m", "metric": BITS}]
    claims = [claim("t", "b", "a"), {"text": "u", "compare": ["b", "a", "m"], "direction": "lower"}]
    records = [
        tuned(row, seed, 70 + (2.0 * seed) * (row == "b")) for row, seed in product("ab", (1, 2, 3))
    ]
    for row, seed in product("ab", (1, 2, 3)):
        bits = {BITS: 2.0 + 0.01 * seed * (row == "b")}
        records.append(
            run("evaluate", bits, row=row, measure={"name": "m"}, pretrain_seed=seed, seed=1)
        )
    found = []
    for more in ({}, {"stopping": {"first": 3, "most": 8}}):
        experiment = declare(columns=columns, claims=claims, **more)
        table = table_of(experiment, records)
        detectable = detectable_difference(table, 3)
        assert detectable is not None
        found.append(detectable)
    assert round(found[0].difference, 1) == 6.5 and round(found[0].sd, 1) == 2.0
    assert found[1].difference > 11.0


def asked(
    row: str, seed: int, score: float, *, measure: str = "probe", facts: Any = None, **more: Any
) -> Record:
    return run(
        "evaluate",
        {METRIC: score},
        facts,
        row=row,
        measure={"name": measure},
        pretrain_seed=seed,
        seed=1,
        **more,
    )


def measured(name: str, metric: str = METRIC, **more: Any) -> dict[str, Any]:
    return {"name": name, "from": "evaluate", "task": "probe", "metric": metric} | more


def records(make: Any, **more: Any) -> list[Record]:
    return [
        make(row, seed, base + 0.1 * seed * (row == "b"), **more)
        for seed, (row, base) in product((1, 2, 3), (("a", 70.0), ("b", 80.0)))
    ]


def test_a_misspelt_metric_of_a_measure_shows_no_other_score(declare: Any) -> None:
    experiment = declare(columns=[measured("Selectivity", "validation/selectivty")], claims=[])
    cells = table_of(experiment, records(asked)).cells
    assert not any(cell.scores for cell in cells.values())
    notes: set[str] = set()
    for cell in cells.values():
        notes |= set(cell.notes)
    assert notes == {"3 run(s) lack validation/selectivty"}


def test_what_stands_in_for_a_measure_is_called_so(declare: Any) -> None:
    experiment = declare(columns=[measured("Tags", stand_ins=["entities"])], claims=[])
    table = table_of(experiment, records(asked, measure="entities"))
    (column,) = table.with_results
    assert not column.is_paper and table.cells["a", column.key].scores
    assert role_of(column) == "substitute for Tags"
    assert "entities" in column.heading


def test_a_task_called_as_a_measure_is_not_in_its_cell(declare: Any) -> None:
    experiment = declare(columns=[measured("M", task="imdb")], claims=[])
    runs = [
        *records(tuned, task="imdb"),
        *(asked("a", seed, 50.0, measure="imdb") for seed in (1, 2)),
    ]
    table = table_of(experiment, runs)
    assert [*table.cells["a", table.with_results[0].key].scores.values()] == [50.0, 50.0]


def trained(
    arm: str, seed: int, loss: float, key: str = "validation/loss", /, **config: Any
) -> Record:
    return run(
        "pretrain",
        {key: loss},
        {key: loss, "steps": 10, "tokens": 10**6},
        arm=arm,
        seed=seed,
        **config,
    )


LOSS = {"name": "loss", "from": "pretrain", "metric": "validation/loss"}


def test_an_encoder_on_the_way_has_not_the_last_ones_figures(declare: Any) -> None:
    rows = [
        {"row": "a", "arm": "a"},
        {"row": "early", "arm": "a", "set": {"encoder_fraction": 0.1}},
    ]
    runs = [trained("a", seed, 3.0 + 0.1 * seed) for seed in (1, 2, 3)]
    table = table_of(declare(columns=[LOSS], rows=rows, claims=[]), runs)
    assert {
        row: len(cell.scores)
        for (row, key), cell in table.cells.items()
        if key.startswith("pretrain")
    } == {"a": 3, "early": 0}


@pytest.mark.parametrize("key", ["validation/loss", "validation/loss/books"])
def test_the_last_phase_says_what_a_loss_is_of(declare: Any, key: str) -> None:
    """Also a loss of one source."""
    phases = {
        arm: [{"steps": 10, "objective": {"token": {"predict_prob": p}}}]
        for arm, p in (("a", 0.15), ("b", 0.4))
    }
    runs = [
        trained(arm, seed, loss + 0.01 * seed * (arm == "b"), key, phases=phases[arm])
        for seed, (arm, loss) in product((1, 2, 3), (("a", 3.0), ("b", 3.5)))
    ]
    said = {"text": "t", "compare": ["b", "a", "loss"], "direction": "higher"}
    experiment = declare(columns=[LOSS | {"metric": key}], claims=[said])
    (judgement,) = judge(table_of(experiment, runs))
    assert judgement.verdict == Verdict.NOT_COMPARABLE
    assert incomparability_of(judgement).code == "other targets"
    same = [one.model_copy(update={"config": one.config | {"phases": phases["a"]}}) for one in runs]
    (judgement,) = judge(table_of(experiment, same))
    assert judgement.verdict == Verdict.HOLDS


@pytest.mark.parametrize("stage", ["pretrain", "evaluate"])
def test_a_loss_is_over_the_tokens_of_one_tokenizer(declare: Any, stage: str) -> None:
    column: dict[str, Any] = LOSS
    if stage == "evaluate":
        column = measured("loss", "validation/loss")
    said = {"text": "t", "compare": ["b", "a", "loss"], "direction": "lower"}
    experiment = declare(columns=[column], claims=[said])
    for tokenizers, is_comparable in (("xx", True), ("xy", False), ("x", True)):
        # Runs of b do not say theirs in the last case.
        facts_of = dict(zip("ab", tokenizers, strict=False))
        runs = []
        for (row, loss), seed in product((("a", 3.0), ("b", 1.2)), (1, 2, 3)):
            facts: dict[str, Any] = {"tokenizer": facts_of.get(row)}
            score = loss + 0.01 * seed * (row == "b")
            if stage == "pretrain":
                one = trained(row, seed, score)
                one.facts |= facts
            else:
                one = asked(row, seed, score, facts={"data": facts})
                one.scores["validation/loss"] = one.scores.pop(METRIC)
            runs.append(one)
        (judgement,) = judge(table_of(experiment, runs))
        if is_comparable:
            assert judgement.verdict == Verdict.HOLDS
        else:
            assert incomparability_of(judgement).code == "other tokens"


def test_a_phase_changes_what_the_runs_objective_says(declare: Any) -> None:
    mlm = "clozelab.objectives.mlm.MaskedLanguageModel"
    runs = {
        "words": {"objective": {"token": {"_target_": mlm, "whole_words": True}}},
        "pieces": {"objective": {"token": {"_target_": mlm, "whole_words": False}}},
        "said": {"objective": {"token": {"_target_": mlm, "predict_prob": 0.3}}},
    }
    changes = [{"objective": {"token": {"predict_prob": 0.3}}}]
    of_words = trained("a", 1, 3.0, phases=changes, **runs["words"])
    of_pieces = trained("b", 1, 3.0, phases=changes, **runs["pieces"])
    assert of_words.predicts != of_pieces.predicts
    plain = {"token": {"_target_": mlm}}
    changed = trained("a", 1, 3.0, phases=changes, objective=plain)
    assert changed.predicts == trained("a", 1, 3.0, **runs["said"]).predicts
    # Of an older record, which does not have what a name stood for.
    older = trained("a", 1, 3.0, phases=[{"objective": "ltr"}], objective=plain)
    assert older.predicts == "ltr"


def test_a_loss_from_the_left_is_not_one_from_both_sides(declare: Any) -> None:
    said = {"text": "t", "compare": ["b", "a", "Bits"], "direction": "higher"}
    experiment = declare(columns=[measured("Bits")], claims=[said])
    for sides, verdict in (
        ({"a": True, "b": True}, Verdict.HOLDS),
        ({"a": True, "b": False}, Verdict.NOT_COMPARABLE),
    ):
        runs = [
            one.model_copy(update={"facts": {"data": {"is_causal": sides[one.config["row"]]}}})
            for one in records(asked)
        ]
        (judgement,) = judge(table_of(experiment, runs))
        assert judgement.verdict == verdict
        is_barred = incomparability_of(judgement).code == "other context"
        assert is_barred == (verdict == Verdict.NOT_COMPARABLE)


def test_rows_of_two_arms_begin_with_two_encoders(declare: Any) -> None:
    both = []
    for one in records(tuned):
        began = {"encoder_arm": one.config["row"], "initialisation": "pretrained"}
        inputs = {"encoder": f"one-{one.config['pretrain_seed']}"}
        both.append(one.model_copy(update={"inputs": inputs, "config": one.config | began}))
    (judgement,) = judge(table_of(declare(), both))
    assert judgement.verdict == Verdict.NOT_COMPARABLE
    assert incomparability_of(judgement).text == (
        "the rows stand for two encoders, and began from one and the same (pre-training seed 1)"
    )


def test_no_verdict_from_no_number(declare: Any) -> None:
    runs = []
    for seed in (1, 2, 3):
        runs += [tuned("a", seed, 70.0 + seed), tuned("b", seed, float("nan"))]
    (judgement,) = judge(table_of(declare(), runs))
    assert judgement.verdict not in (Verdict.HOLDS, Verdict.CONTRADICTED)


def test_a_claim_whose_test_allows_for_less_after_a_look_is_exploratory(
    declare: Any, tmp_path: Path
) -> None:
    """Dropped, demoted or reordered claims make p smaller; added ones and those without runs do
    not.
    """
    records = [
        tuned(row, seed, at + 0.01 * seed * at)
        for (row, at), seed in product((("a", 1), ("b", 50), ("c", 90)), range(1, 6))
    ]
    first, second = claim("ab", "b", "a", primary=True), claim("bc", "c", "b", primary=True)
    third, unrun = (
        claim("ac", "c", "a"),
        claim("other", "b", "a") | {"compare": ["b", "a", "task"], "direction": "lower"},
    )
    never = claim("never", "b", "a") | {"compare": ["b", "a", "more"]}
    near = {
        "text": "near",
        "rows": ["c", "a"],
        "column": "task",
        "direction": "within",
        "points": 9,
    }
    columns = [TASK, {**TASK, "name": "more", "task": "more"}]
    for number, (then, now, exploratory) in enumerate(
        [
            ([first, second, third], [first, second, third], []),
            # ab has one before it now, where none was
            ([first, second, third], [second, first, third], ["bc"]),
            ([first, second, third], [second, third], ["bc", "ac"]),
            ([first, second, third], [first, second], ["ab", "bc"]),  # at 5 % instead of 4 %
            ([first, second, third], [first, {**second, "primary": False}, third], ["bc", "ac"]),
            ([first, second, third], [first, second, third, unrun], ["other"]),
            ([first, second, third, never], [first, second, third], []),
            ([third, near], [third], ["ac"]),  # a margin of the same rows is a test of its own
        ]
    ):
        root = tmp_path / f"root-{number}"
        root.mkdir()
        run_interim_analysis(table_of(declare(columns=columns, claims=then), records, root), root)
        found = run_interim_analysis(
            table_of(declare(columns=columns, claims=now), records, root), root
        ).judgements
        assert [one.claim.text for one in found if one.is_exploratory] == exploratory, number


@pytest.mark.parametrize(("is_given", "seconds"), [(True, 20.0), (False, 40.0)])
def test_a_seed_more_of_given_encoders_is_one_fine_tuning(
    declare: Any, is_given: bool, seconds: float
) -> None:
    """Four runs of ten seconds, all at once; an arm's encoder is fine-tuned with both seeds."""
    times = {
        "started": "2030-01-01T00:00:00+00:00",
        "finished": "2030-01-01T00:00:10+00:00",
        "seconds": 10.0,
    }
    records = []
    for row, seed in product("ab", (1, 2)):
        records.append(tuned(row, 1, 70.0, again=seed).model_copy(update=times))
    rows = [{"row": row, "arm": None, "fixed_encoder": is_given} for row in "ab"]
    table = table_of(declare(rows=rows), records)
    assert table.seconds_a_seed("ab", ["task"]) == pytest.approx(seconds / 4.0)
    # With two learning rates each of them is two runs.
    for record in tuple(records):
        config = record.config | {"learning_rate": 3e-5}
        records.append(record.model_copy(update={"config": config}))
    table = table_of(declare(rows=rows), records)
    assert table.seconds_a_seed("ab", ["task"]) == pytest.approx(2 * seconds / 8.0)
