"""Rows that were not made in the same way are not compared, and the reason names what differs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
from tests.results.made_runs import MadeRuns
from tests.results.words import NOTHING, incomparability_of, judgement_note, missing_in, why_barred

from claims.analysis.comparability import Exclusion
from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Judgement
from clozelab.launch import sweep
from clozelab.report.problems import _encoders_of_row, problems
from clozelab.results.evidence import derived_settings, treatment_factors
from clozelab.runs.find import find

MEANS = {("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0}
CHOICES = {
    "mlm_nsp": {
        "objective": "mlm_nsp",
        "objective/input": "segment_pairs",
        "objective/token": "mlm",
        "objective/pair": "nsp",
    },
    "mlm": {"objective": "mlm", "objective/input": "segment_pairs", "objective/token": "mlm"},
    "ltr": {"objective": "ltr", "objective/input": "segment_pairs", "objective/token": "ltr"},
}
"""Arm -> what Hydra chose for it in table 5."""
FEATURES = {
    "task.module._target_": "clozelab.modules.tags.FeatureBased",
    "task.module.features": "${task.data.features}",
    "task.data.features": "last",
    "task.always.head": "bilstm",
}
"""Of what a feature-based row of table 7 says."""


@pytest.fixture
def runs(runs: MadeRuns) -> MadeRuns:
    """They say of themselves what those of table 5 say."""
    runs.make(MEANS)
    for arm, choices in CHOICES.items():
        delta = {"/objective": choices["objective"], "arm": arm}
        runs.change(f"pretrain/{arm}/*", choices=choices, arm_delta=delta)
    for row in ("mlm", "ltr"):
        delta = {"row": row, "encoder_arm": row, "head": "linear"}
        runs.change(f"finetune/{row}/*/*/*", row_delta=delta)
    return runs


def protocol_differences(runs: MadeRuns, stage: str = "fine-tuned") -> str:
    """The settings that bar the claim on MRPC, and what left to right and MLM have of them."""
    reason = incomparability_of(runs.judge())
    assert reason.code == "other protocol"
    return differences_in(reason, stage)


def differences_in(reason: Exclusion, stage: str) -> str:
    before = f"another protocol: {stage} with "
    after = ", which differ_in in paper.yaml does not allow for"
    assert reason.text.startswith(before) and reason.text.endswith(after)
    return reason.text.removeprefix(before).removesuffix(after)


def provenance_of(judgement: Judgement) -> str:
    return judgement.resolved.contrasts[0].context.provenance


def test_equal_protocols_are_compared(runs: MadeRuns) -> None:
    runs.change("finetune/*/*/*/*", config__epochs=3.0, config__optimizer__learning_rate=1e-3)
    assert runs.judge().verdict == Verdict.HOLDS and runs.unequal() == []


@pytest.mark.parametrize(
    ("key", "value", "setting"),
    [
        ("config__epochs", 5.0, "epochs"),
        ("config__max_train_examples", 100, "max_train_examples"),
        ("config__task__data__max_length", 64, "task.data.max_length"),
        ("inputs__task_files", "0123", "input task_files"),
        ("facts__precision", "32-true", "precision"),
        ("config__head", "bilstm", "head"),
        ("config__initialisation", "random", "initialisation"),
        ("config__encoder_fraction", 0.1, "encoder_fraction"),  # which no row sets here
    ],
)
def test_another_protocol(runs: MadeRuns, key: str, value: Any, setting: str) -> None:
    runs.change("finetune/ltr/*/*/*", **{key: value})
    found = runs.judge()
    assert found.verdict == Verdict.NOT_COMPARABLE
    assert protocol_differences(runs) == f"{setting} {value} against none"
    # The difference is there to see, and decides nothing: nor is it one of the table's tests.
    assert found.difference is not None and found.corrected_p is None and found.num_tests == 0
    (line,) = runs.unequal()
    assert line == (
        f"fine-tuning runs on mrpc differ in {setting}: {value} (6 runs, e.g. ltr seed 1/1), none"
        " (6 runs, e.g. mlm seed 1/1)"
    )


def test_settings_are_compared_seed_by_seed(runs: MadeRuns) -> None:
    """A difference is paired: as sets, both rows' epochs would be equal here."""
    for row, (first, second) in {"ltr": (1.0, 3.0), "mlm": (3.0, 1.0)}.items():
        runs.change(f"finetune/{row}/*/*/seed-1", config__epochs=first)
        runs.change(f"finetune/{row}/*/*/seed-2", config__epochs=second)
    assert protocol_differences(runs) == "epochs 1.0/3.0 against 3.0/1.0"
    for seed, epochs in ((1, 1.0), (2, 3.0)):
        runs.change(f"finetune/*/*/*/seed-{seed}", config__epochs=epochs)
    # the control: unequal runs (a problem of its own), equal pairs
    assert runs.judge().verdict == Verdict.HOLDS
    assert len(runs.unequal()) == 1


def test_another_search_over_learning_rates(runs: MadeRuns) -> None:
    runs.change("finetune/mlm/*/*/*", config__learning_rate=1e-4)
    runs.change(
        "finetune/ltr/*/*/*", config__learning_rate=5e-5, config__optimizer={"learning_rate": 5e-5}
    )
    assert protocol_differences(runs) == "learning_rate 5e-05 against 0.0001"


def test_rates_that_were_tried_for_every_row_are_one_search(runs: MadeRuns) -> None:
    for folder in list(runs.root.glob("finetune/*/*/mrpc/*")):
        shutil.copytree(folder, folder.parent / "rate-2" / folder.name)
    runs.change("finetune/*/*/mrpc/rate-2/*", config__learning_rate=2e-5)
    runs.change("finetune/*/*/mrpc/seed-*", config__learning_rate=1e-5)
    assert runs.unequal() == find(runs.root).damaged == []
    shutil.rmtree(runs.root / "finetune/ltr/pretrain-seed-2/mrpc/seed-1")
    (line,) = runs.unequal()
    assert line.startswith("fine-tuning runs on mrpc differ in learning_rate: ")


def test_what_paper_yaml_allows_to_differ(runs: MadeRuns) -> None:
    runs.change("finetune/ltr/*/*/*", config__epochs=5.0, config__task__data__layers=4)
    assert runs.judge().verdict == Verdict.NOT_COMPARABLE
    allowed = ("epochs", "task.data")
    assert runs.judge(differ_in=allowed).verdict == Verdict.HOLDS
    assert runs.unequal(differ_in=allowed) == []
    assert runs.judge(differ_in=("epochs", "task.dat")).verdict == Verdict.NOT_COMPARABLE
    # inside a row it has to be one
    runs.change("finetune/ltr/pretrain-seed-1/*/seed-1", config__epochs=1.0)
    (line,) = runs.unequal(differ_in=allowed)
    assert line.startswith("fine-tuning runs on mrpc of ltr differ in epochs: 1.0 (1 runs")


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        # how tokens are masked and pairs are made has to be equal
        ("mlm_nsp", "mlm", {"objective.pair"}),
        ("mlm", "ltr", {"objective.token"}),
        ("mlm", "mlm", set()),
    ],
)
def test_what_two_choices_have_in_common_is_not_meant_to_differ(
    runs: MadeRuns, first: str, second: str, apart: set[str]
) -> None:
    pretrained = find(runs.root).pretrain
    of_first = [run for run in pretrained if run.name == first]
    of_second = [run for run in pretrained if run.name == second]
    found = treatment_factors(of_first, of_second)
    assert {key for key in found if key.split(".")[0] == "objective"} == apart


def test_a_choice_that_is_one_object_is_meant_to_differ_whole(runs: MadeRuns) -> None:
    for arm in ("mlm", "ltr"):
        runs.change(
            f"pretrain/{arm}/*", config__objective={"_target_": f"own.{arm}", "weight": arm}
        )
    assert runs.judge().verdict == Verdict.HOLDS
    runs.change("pretrain/ltr/*", config__model__hidden_act="other")
    differences = protocol_differences(runs, "pre-trained")
    assert differences == "model.hidden_act other against none"


@pytest.mark.parametrize(
    ("arm", "key"),
    [
        ("mlm", "objective__token__weight"),
        ("mlm", "objective__input__negative_scope"),
        ("ltr", "model__hidden_act"),
    ],
)
def test_what_no_arm_is_about_has_to_be_equal(runs: MadeRuns, arm: str, key: str) -> None:
    runs.change("pretrain/*/*", config__objective={"token": {"weight": 1.0}, "input": {}})
    other = "mlm_nsp" if arm == "mlm" else "mlm"
    assert why_barred(runs.table(), arm, other, ()) == NOTHING
    runs.change(f"pretrain/{arm}/*", **{f"config__{key}": "other"})
    reason = why_barred(runs.table(), arm, other, ())
    (found,) = differences_in(reason, "pre-trained").split("; ")
    assert found.split()[0] == key.replace("__", ".")


def test_what_follows_from_a_setting_may_differ_with_it(runs: MadeRuns) -> None:
    """As table 6's arms: a depth changes the number of layers, and not the dropout."""
    for arm, depth, layers in (("mlm", "1", 4), ("ltr", "1/2", 2)):
        delta = {"/model": "ratio", "size.depth": depth}
        runs.change(f"pretrain/{arm}/*", arm_delta=delta, config__model__num_hidden_layers=layers)
    assert runs.judge().verdict == Verdict.HOLDS and runs.unequal() == []
    runs.change("pretrain/ltr/*", config__model__hidden_size=256)
    assert runs.judge().verdict == Verdict.NOT_COMPARABLE
    differences = protocol_differences(runs, "pre-trained")
    assert differences == "model.hidden_size 256 against 128"


def test_another_tokenizer_brings_another_corpus_of_the_same_text(runs: MadeRuns) -> None:
    """As family's arms; without a tokenizer of its own, an arm on another corpus is another
    protocol.
    """
    runs.experiment = runs.experiment.model_copy(update={"arms": {}})
    for arm, kind in (("mlm", "wordpiece"), ("ltr", "byte_bpe")):
        runs.change(
            f"pretrain/{arm}/*",
            arm_delta={"tokenizer.kind": kind},
            inputs__corpus=f"{kind}'s shards",
        )
        runs.change(f"pretrain/{arm}/*", config__tokenizer={"kind": kind})
    assert runs.judge().verdict == Verdict.HOLDS and runs.unequal() == []
    for arm in ("mlm", "ltr"):
        runs.change(f"pretrain/{arm}/*", arm_delta={}, config__tokenizer={"kind": "wordpiece"})
    differences = protocol_differences(runs, "pre-trained")
    assert differences == "input corpus byte_bpe's s against wordpiece's "  # as a hash is cut


@pytest.mark.parametrize(
    ("key", "first", "second", "config"),
    [
        ("/corpus", "wiki", "books", "corpus__name"),
        ("corpus.sources", "['a']", "['b']", "corpus__sources"),
        ("corpus.steps", "['clean']", "['exact']", "corpus__steps"),
        ("corpus.validation_fraction", "0.1", "0.2", "corpus__validation_fraction"),
    ],
)
def test_arms_may_be_about_their_text(
    runs: MadeRuns, key: str, first: str, second: str, config: str
) -> None:
    """The prepared text follows from what the arms' own lines say of their corpus."""
    runs.experiment = runs.experiment.model_copy(update={"arms": {}})
    for arm, value in (("mlm", first), ("ltr", second)):
        runs.change(
            f"pretrain/{arm}/*",
            arm_delta={key: value},
            choices={"corpus": value},
            inputs__corpus=f"{value} shards",
        )
        runs.change(f"pretrain/{arm}/*", **{f"config__{config}": value})
    assert runs.judge().verdict == Verdict.HOLDS and runs.unequal() == []
    runs.change("pretrain/*/*", arm_delta={})
    assert runs.judge().verdict == Verdict.NOT_COMPARABLE
    assert runs.judge(differ_in=("corpus",)).verdict == Verdict.HOLDS
    assert runs.unequal(differ_in=("corpus",)) == []


def test_what_the_shipped_configuration_derives() -> None:
    found = derived_settings()
    assert {"task.always.epochs", "task.epochs"} < set(found["epochs"])
    for key, origin in {
        "model.num_hidden_layers": "size.depth",
        "phases.*.steps": "steps_factor",
        "objective.input.cuts": "fidelity",
        "objective.token.count_specials": "fidelity",
        "objective.dupe_factor": "fidelity",
        "model.intermediate_size": "model.hidden_size",
        "optimizer.learning_rate": "learning_rate",
    }.items():
        assert origin in found[key]


def test_a_row_about_frozen_features_frees_what_it_says(runs: MadeRuns) -> None:
    """As table 7's rows do: what the row does not say has to be equal, its recipe only if differ_in
    says so.
    """
    module = {"_target_": FEATURES["task.module._target_"], "features": "last"}
    runs.change(
        "finetune/ltr/*/*/*", row_delta=FEATURES, config__task__module=module, config__head="bilstm"
    )
    runs.edit("ltr", FEATURES)
    runs.change("finetune/mlm/*/*/*", config__head="linear")
    assert runs.judge().verdict == Verdict.HOLDS and runs.unequal() == []
    runs.change("finetune/ltr/*/*/*", config__task__data={"max_length": 64})
    assert protocol_differences(runs) == "task.data.max_length 64 against none"
    runs.change(
        "finetune/ltr/*/*/*",
        config__task__data={},
        row_delta=FEATURES | {"epochs": 9},
        config__epochs=9,
    )
    runs.edit("ltr", FEATURES | {"epochs": 9})
    assert protocol_differences(runs) == "epochs 9 against none"
    # Two such rows differ in which layers, and in what refers to that.
    runs.change(
        "finetune/mlm/*/*/*", row_delta=FEATURES | {"task.data.features": "embeddings", "epochs": 9}
    )
    tuned = find(runs.root).finetune
    of_mlm = [run for run in tuned if run.name == "mlm"]
    of_ltr = [run for run in tuned if run.name == "ltr"]
    found = treatment_factors(of_mlm, of_ltr)
    assert found == {"task.data.features", "task.module.features"}


@pytest.mark.parametrize(
    ("fact", "other", "matched", "verdict"),
    [
        ("tokens", 1_015_000, None, Verdict.HOLDS),
        ("tokens", 1_025_000, None, Verdict.NOT_COMPARABLE),
        ("tokens", 1_025_000, "steps", Verdict.HOLDS),
        ("tokens", 2_000_000, "none", Verdict.HOLDS),
        ("steps", 2000, None, Verdict.NOT_COMPARABLE),
        ("steps", 2000, "tokens", Verdict.HOLDS),
        ("training_seconds", 99.0, "time", Verdict.NOT_COMPARABLE),
        ("world_size", 2, "time", Verdict.NOT_COMPARABLE),  # seconds are those of all devices
        ("flops", 2e15, "flops", Verdict.NOT_COMPARABLE),
        ("flops", 1.01e15, "flops", Verdict.HOLDS),
    ],
)
def test_arms_that_saw_more(
    runs: MadeRuns, fact: str, other: float, matched: str | None, verdict: str
) -> None:
    for key, value in {"steps": 1000, "training_seconds": 60.0, "flops": 1e15}.items():
        runs.change("pretrain/*/*", **{f"facts__{key}": value})
    runs.change("pretrain/ltr/*", **{f"facts__{fact}": other})
    found = runs.judge(matched_by=matched)
    assert found.verdict == verdict
    is_unmatched = incomparability_of(found).code == "unmatched amount"
    assert is_unmatched == (verdict == Verdict.NOT_COMPARABLE)


@pytest.mark.parametrize(("matched", "amount"), [("flops", "flops"), ("time", "training_seconds")])
def test_what_is_not_known_is_not_matched(runs: MadeRuns, matched: str, amount: str) -> None:
    runs.change("pretrain/mlm/*", facts__training_seconds=60.0, facts__flops=1e12)
    found = runs.judge(matched_by=matched)
    assert found.verdict == Verdict.NOT_COMPARABLE
    name = "training time (seconds x devices)" if amount == "training_seconds" else amount
    assert incomparability_of(found) == Exclusion(
        "unknown amount",
        f"{name} of pre-training not known for ltr, so nobody can say the arms match",
    )


def test_arms_without_any_record_are_not_matched(runs: MadeRuns) -> None:
    shutil.rmtree(runs.root / "pretrain" / "ltr")
    found = runs.judge()
    assert found.verdict == Verdict.NOT_COMPARABLE
    reason = Exclusion("no pre-training", "no complete pre-training run of ltr")
    assert incomparability_of(found) == reason
    assert runs.judge(matched_by="none").verdict == Verdict.HOLDS


def composed(runs: MadeRuns, arm: str, *words: str) -> dict[str, Any]:
    """What run.json says of the configuration."""
    words = (f"arm={arm}", *words)
    folder = runs.experiment.folder
    return sweep.compose("sweep_pretrain", words, folder=folder, sweep=True).recorded


def train(
    runs: MadeRuns,
    arm: str,
    config: Mapping[str, Any],
    flops: float,
    delta: Mapping[str, Any] | None = None,
) -> None:
    """Records as that arm's runs leave them."""
    steps = sum(phase["steps"] for phase in config["phases"])
    for path in runs.root.glob(f"pretrain/{arm}/*/run.json"):
        state = json.loads(path.read_text())
        state["config"] = {**config, "seed": state["config"]["seed"]}
        state["facts"] |= {"steps": steps, "tokens": 1000.0 * steps, "flops": flops}
        state["arm_delta"] |= delta or {}
        path.write_text(json.dumps(state))


@pytest.mark.parametrize("is_its_own", [True, False], ids=["arm", "override"])
@pytest.mark.parametrize(
    ("matched_by", "unmatched"),
    [
        ("flops", None),
        ("none", None),
        ("tokens", "960 k against 2.4 M tokens"),
        (None, "960 against 2.4 k steps"),
    ],
)
def test_an_arm_of_other_steps(
    runs: MadeRuns, is_its_own: bool, matched_by: str | None, unmatched: str | None
) -> None:
    shorter = composed(runs, "ltr", "steps_factor=0.4")
    for arm in ("mlm_nsp", "mlm"):
        train(runs, arm, composed(runs, arm), 1e15)
    train(runs, "ltr", shorter, 1.01e15, {"steps_factor": 0.4} if is_its_own else {})
    found = runs.judge(matched_by=matched_by)
    reason = incomparability_of(found)
    if unmatched is None:
        assert found.verdict == Verdict.HOLDS
        assert reason == NOTHING
    else:
        assert found.verdict == Verdict.NOT_COMPARABLE
        assert reason == Exclusion(
            "unmatched amount",
            f"arms not matched: {unmatched} of pre-training, and matched_by in paper.yaml does not"
            " say that this is meant",
        )
    # The length is an arm's own where its lines say so, or where arms are not matched by it.
    assert bool(runs.unequal(matched_by=matched_by)) == (not is_its_own and matched_by is None)


@pytest.mark.parametrize(
    ("word", "verdict"),
    [
        ("validation.interval_steps=50", Verdict.HOLDS),
        ("checkpoint_interval_steps=50", Verdict.HOLDS),
        ("scale.pretrain.phases.0.steps=900", Verdict.HOLDS),
        ("scale.pretrain.phases.0.global_batch_size=32", Verdict.NOT_COMPARABLE),
        ("scale.pretrain.learning_rate=1", Verdict.NOT_COMPARABLE),
    ],
)
def test_what_steps_bring_with_them_and_nothing_else(
    runs: MadeRuns, word: str, verdict: str
) -> None:
    train(runs, "mlm", composed(runs, "mlm"), 1e15)
    train(runs, "ltr", composed(runs, "ltr", word), 1e15)
    assert runs.judge(matched_by="flops").verdict == verdict


@pytest.mark.parametrize("stage", ["pretrain", "finetune"])
@pytest.mark.parametrize(
    ("key", "value", "verdict"),
    [
        ("trainer__devices", 2, Verdict.HOLDS),
        ("trainer__strategy", "ddp", Verdict.HOLDS),
        ("trainer__threads", 2, Verdict.HOLDS),
        ("predict_test", True, Verdict.HOLDS),
        ("task__data__test_files", {"test": "file"}, Verdict.HOLDS),
        ("phases", [{"micro_batch_size": 8}], Verdict.HOLDS),
        ("phases", [{"global_batch_size": 8}], Verdict.NOT_COMPARABLE),
        ("trainer__precision", "32-true", Verdict.NOT_COMPARABLE),
        ("trainer__tf32", True, Verdict.NOT_COMPARABLE),
    ],
)
def test_how_the_work_is_laid_out_is_no_protocol(
    runs: MadeRuns, stage: str, key: str, value: Any, verdict: str
) -> None:
    runs.change(
        f"{stage}/ltr/" + ("*" if stage == "pretrain" else "*/*/*"), **{f"config__{key}": value}
    )
    assert runs.judge().verdict == verdict


def test_another_metric(runs: MadeRuns) -> None:
    score = {"unit": "percent", "higher_is_better": True, "value": 60.0}
    runs.change("finetune/ltr/*/mrpc/*", metric="validation/f1", scores={"validation/f1": score})
    found = runs.judge()
    assert found.verdict == Verdict.NOT_COMPARABLE
    assert missing_in(found) == (
        "another metric: 6 complete run(s) of LTR & No NSP have no validation/accuracy"
    )


def test_a_row_with_another_arms_encoder_is_barred(runs: MadeRuns) -> None:
    runs.change("finetune/*/*/mrpc/*", config__initialisation="pretrained")
    runs.change("finetune/ltr/*/mrpc/seed-1", config__encoder_arm="mlm_nsp")
    found = runs.judge()
    assert found.verdict == Verdict.NOT_COMPARABLE
    reason = incomparability_of(found)
    assert reason.code == "wrong encoder"
    assert reason.text.startswith(
        "not what it is called: paper.yaml says arm ltr of the row ltr, and 3 of 6 runs have the"
        " encoder of mlm_nsp (e.g. finetune/ltr/"
    )


@pytest.mark.parametrize(
    ("kind", "pattern", "values"),
    [
        ("arm", "pretrain/ltr/seed-1", "1 against none"),
        ("row", "finetune/ltr/*/*/seed-2", "none against 1"),
    ],
)
def test_lines_that_changed_between_runs_bar_the_row(
    runs: MadeRuns, kind: str, pattern: str, values: str
) -> None:
    runs.change(pattern, **{f"{kind}_delta__new": 1})
    text = f"the runs of ltr were made from 2 versions of its {kind}: new {values}"
    assert incomparability_of(runs.judge()) == Exclusion("several versions", text)


def test_an_arm_of_two_versions_bars_its_row_beside_its_floor_and_rows_of_its_own(
    runs: MadeRuns,
) -> None:
    tasks = ("mrpc",)
    for row, seed in product(("ltr_bilstm", "random"), (1, 2, 3)):
        runs.finetune(row, "mrpc", (seed, 1), 60.0)
    alike = [("ltr", "random"), ("random", "ltr"), ("ltr", "ltr_bilstm"), ("mlm", "random")]
    for first, second in alike:
        assert why_barred(runs.table(), first, second, tasks) == NOTHING
    for seed, rate in ((1, 0.15), (2, 0.15), (3, 0.2)):
        runs.change(f"pretrain/ltr/seed-{seed}", arm_delta={"objective.token.predict_prob": rate})
    text = (
        "the runs of ltr were made from 2 versions of its arm:"
        " objective.token.predict_prob 0.15 against 0.2"
    )
    for first, second in alike[:-1]:
        barred = why_barred(runs.table(), first, second, tasks)
        assert barred == Exclusion("several versions", text)
    assert why_barred(runs.table(), "mlm", "random", tasks) == NOTHING


@pytest.mark.parametrize(
    ("recorded", "has", "said", "listed", "barred"),
    [
        (
            {"steps_factor": 0.5},
            0.5,
            {"steps_factor": 0.25},
            "steps_factor 0.5 then, 0.25 now",
            True,
        ),
        ({}, 0.5, {"steps_factor": 0.25}, "steps_factor 0.5 then, 0.25 now", True),
        ({"steps_factor": 0.5}, 0.5, {}, "steps_factor 0.5 then, (nothing) now", False),
        ({"steps_factor": 0.5}, 0.5, {"steps_factor": "${scale.x}"}, "${scale.x} now", False),
        # written in another way, a reference that comes to the same, and a word of the command line
        ({"steps_factor": 1}, 1.0, {"+steps_factor": "1.0"}, "", False),
        ({"steps_factor": "${scale.x}"}, 0.5, {"steps_factor": 0.5}, "", False),
        ({}, 0.5, {"steps_factor": 0.5}, "", False),
        ({"steps_factor": 0.5}, 0.25, {"steps_factor": 0.5}, "", False),
        ({"/model": "mini"}, 0.5, {"model": "mini"}, "", False),
        ({"/model": "mini"}, 0.5, {"model": "tiny"}, "/model mini then, tiny now", True),
        # what a choice brings along is no line, as far as its file says the same
        ({"/model": "mini", "model.hidden_size": 256}, 0.5, {"model": "mini"}, "", False),
        (
            {"/model": "mini", "model.hidden_size": 64},
            0.5,
            {"model": "mini"},
            "model.hidden_size 64 then, (nothing) now",
            False,
        ),
        (
            {"/model": "mini", "model.hidden_size": 256, "steps_factor": 0.5},
            0.5,
            {"model": "mini"},
            "paper.yaml (steps_factor 0.5 then, (nothing) now)",
            False,
        ),
        # a reference is mostly that of a file
        ({"/model": "mini", "steps_factor": "${scale.x}"}, 0.5, {"model": "mini"}, "", False),
        # a file that is not at hand may have said it
        ({"/model": "mine", "steps_factor": 0.5}, 0.5, {"model": "mine"}, "", False),
    ],
)
def test_an_arm_that_was_edited_after_its_runs(
    runs: MadeRuns,
    recorded: dict[str, Any],
    has: float,
    said: dict[str, Any],
    listed: str,
    barred: bool,
) -> None:
    runs.change(
        "pretrain/*/*",
        arm_delta={"arm": "ltr"} | recorded,
        config__steps_factor=has,
        config__model={"hidden_size": recorded.get("model.hidden_size", 256)},
        choices={"model": recorded.get("/model", "mini")},
    )
    arms = {"ltr": said}
    lines = [line for line in runs.unequal(arms=arms) if "not of its lines" in line]
    assert len(lines) == bool(listed)
    for line in lines:
        assert line.startswith("3 pre-training run(s) of ltr are not of its lines in paper.yaml")
        assert listed in line
    reason = incomparability_of(runs.judge(arms=arms))
    text = f"runs of ltr are not of its lines in paper.yaml: {listed}"
    assert reason == (Exclusion("edited lines", text) if barred else NOTHING)


def test_a_row_that_was_edited_after_its_runs(runs: MadeRuns) -> None:
    assert runs.unequal() == []
    runs.edit("ltr", {"head": "bilstm"})
    (line,) = runs.unequal()
    assert line == (
        "6 fine-tuning run(s) of ltr are not of its lines in paper.yaml (head linear then, bilstm"
        " now): remove them and run again, or put the lines back"
    )
    assert incomparability_of(runs.judge()).code == "edited lines"


def edited_of(runs: MadeRuns, stage: str, **changes: Any) -> list[str]:
    """What a report says of edited lines of one stage's runs."""
    lines = runs.unequal(**changes)
    return [line for line in lines if "not of its lines" in line and f" {stage} run" in line]


def test_an_evaluation_of_lines_that_were_edited_after_it(runs: MadeRuns) -> None:
    """It takes of a row's lines those that say which encoder it measures."""
    lines = {"pooling": "mean", "head": "linear"}
    measured = {"row": "ltr", "pooling": "mean"}
    for seed in (1, 2):
        runs.writers.evaluation(
            runs.root, "ltr", "pseudo_perplexity", seed, {"validation/accuracy": 0.5}
        )
    runs.change("evaluate/*/*/*/*", row_delta=measured, config__pooling="mean")
    runs.edit("ltr", lines)
    assert edited_of(runs, "evaluation") == []
    runs.edit("ltr", lines | {"head": "bilstm"})
    assert edited_of(runs, "evaluation") == []
    runs.edit("ltr", lines | {"pooling": "cls"})
    (line,) = edited_of(runs, "evaluation")
    assert line.startswith("2 evaluation run(s) of ltr are not of its lines in paper.yaml")
    assert "(pooling mean then, cls now)" in line
    # what is measured may be a file, which is not looked at
    folder = runs.root / "experiment"
    (folder / "measured").mkdir(parents=True)
    (folder / "measured/ltr.yaml").write_text("row: ltr\n")
    assert edited_of(runs, "evaluation", folder=folder) == []


def test_two_rows_of_one_arm_from_different_encoders(runs: MadeRuns) -> None:
    """A row may keep its arm's name when its encoder is given: the arm's other rows then began from
    another one.
    """
    means = {("ltr", "squad_v1"): 20.0, ("ltr_bilstm", "squad_v1"): 25.0}
    runs.make(means, below="other")
    for row, encoder in (("ltr", "one"), ("ltr_bilstm", "one"), ("ltr_bilstm", "another")):
        runs.change(
            f"finetune/{row}/*/*/*", config__initialisation="pretrained", inputs__encoder=encoder
        )
        table = runs.table()
        reason = why_barred(table, "ltr", "ltr_bilstm", ("squad_v1",))
        text = "the rows stand for one encoder, and began from different ones (pre-training seed 1)"
        is_shared = reason == Exclusion("shared encoder", text)
        assert is_shared == (encoder == "another")


def test_encoders_that_are_not_one_a_seed_are_named(runs: MadeRuns) -> None:
    runs.change(
        "finetune/mlm/*/*/*", config__initialisation="pretrained", config__encoder_arm="mlm"
    )
    runs.change("finetune/mlm/pretrain-seed-1/*/seed-1", inputs__encoder="e1")
    runs.change("finetune/mlm/pretrain-seed-1/*/seed-2", inputs__encoder="e2")
    _, line = runs.unequal()  # the first one: how the two rows began
    assert line == "mlm, pre-training seed 1: its runs began with 2 different encoders"
    # A given encoder is fine-tuned alone, and measured with a head that was trained on it.
    of_mlm = [run for run in find(runs.root).finetune if run.name == "mlm"]
    assert list(_encoders_of_row("mlm", of_mlm, may_share=True)) == [line]
    second = [run.model_copy(update={"stage": "evaluate"}) for run in of_mlm if run.seed == 2]
    first = [run for run in of_mlm if run.seed == 1]
    assert list(_encoders_of_row("mlm", [*first, *second], may_share=True)) == []
    assert list(_encoders_of_row("mlm", [*first, *second], may_share=False)) == [line]
    runs.change("finetune/mlm/*/*/*", inputs__encoder="e1")
    copies = "mlm: pre-training seeds 1, 2 and 3 are one and the same encoder"
    assert runs.unequal()[1:] == [copies]
    runs.change("pretrain/mlm/seed-2", finished="2031-01-01T00:00:00+00:00")
    anew = "began before mlm seed 2 was trained to its end (anew since?)"
    assert runs.unequal()[1:] == [
        copies,
        f"finetune/mlm/pretrain-seed-2/mrpc/seed-1: {anew}",
        f"finetune/mlm/pretrain-seed-2/mrpc/seed-2: {anew}",
    ]


@pytest.mark.parametrize(
    ("fact", "usual", "other", "words"),
    [
        ("token_types", 2, 1, "the token types of a pair: 1 (1 runs, e.g. ltr seed 1/1), 2"),
        (
            "max_seq_length",
            384,
            64,
            "the length that texts are cut to: 64 tokens (1 runs, e.g. ltr seed 1/1), 384 tokens",
        ),
    ],
)
def test_what_runs_measured_otherwise_is_named_and_failed_runs_are_not(
    runs: MadeRuns, fact: str, usual: int, other: int, words: str
) -> None:
    """No bar to a claim, and no secret: an encoder that never met a second segment gives pairs one
    token type.
    """
    runs.change("finetune/*/*/*/*", facts__data={fact: usual})
    assert runs.unequal() == []
    runs.change("finetune/ltr/pretrain-seed-1/*/seed-1", facts__data={fact: other})
    (line,) = problems(runs.table())["Unequal"]
    assert line == f"fine-tuning runs on mrpc differ in {words} (11 runs, e.g. ltr seed 1/2)"
    runs.change("finetune/ltr/pretrain-seed-1/*/seed-1", status="failed")
    assert runs.unequal() == []


def made(runs: MadeRuns, pattern: str, **environment: str) -> None:
    """Versions, and hashes of modules where a name has a dot."""
    modules = {name.replace("__", "."): one for name, one in environment.items() if "__" in name}
    runs.change(
        pattern,
        modules=modules,
        environment={k: v for k, v in environment.items() if "__" not in k},
    )


def other_code(stage: str, module: str) -> Exclusion:
    text = f"other code: {stage} with two versions of {module}, and differ_in does not say code"
    return Exclusion("other code", text)


def test_arms_of_two_versions_of_the_code_are_not_compared(runs: MadeRuns) -> None:
    made(runs, "pretrain/*/*", objectives__mlm="a1", models__encoder="b1")
    made(runs, "finetune/*/*/*/*", modules__spans="c1")
    assert runs.judge().verdict == Verdict.HOLDS
    made(runs, "pretrain/ltr/*", objectives__mlm="a2", models__encoder="b1")
    found = runs.judge()
    assert found.verdict == Verdict.NOT_COMPARABLE
    assert incomparability_of(found) == other_code("pre-trained", "objectives.mlm")
    found = runs.judge(differ_in=("code",))
    assert found.verdict == Verdict.HOLDS
    assert provenance_of(found) == "pre-trained with objectives.mlm a2 against a1"
    made(runs, "pretrain/ltr/*", objectives__mlm="a1", models__encoder="b1")
    made(runs, "finetune/ltr/*/*/*", modules__spans="c2")
    reason = other_code("fine-tuned", "modules.spans")
    assert incomparability_of(runs.judge()) == reason


def test_a_run_that_went_on_under_other_code_is_of_both_versions(runs: MadeRuns) -> None:
    made(runs, "pretrain/*/*", objectives__mlm="a1", models__encoder="b1")
    begun = {
        "code": "x",
        "modules": {"objectives.mlm": "a0", "models.encoder": "b1"},
        "environment": {},
    }
    runs.change("pretrain/ltr/*", earlier_sessions=[begun])
    found = runs.judge()
    assert found.verdict == Verdict.NOT_COMPARABLE
    assert incomparability_of(found) == other_code("pre-trained", "objectives.mlm")
    runs.change("pretrain/mlm/*", earlier_sessions=[begun])
    assert runs.judge().verdict == Verdict.HOLDS


def test_modules_that_one_arm_does_not_use_are_no_difference(runs: MadeRuns) -> None:
    """Left to right has no masking; a run of which nothing is known differs in nothing."""
    made(runs, "pretrain/mlm/*", objectives__mlm="a1", models__encoder="b1")
    made(runs, "pretrain/ltr/*", objectives__ltr="d1", models__encoder="b1")
    assert runs.judge().verdict == Verdict.HOLDS and runs.unequal() == []
    made(runs, "pretrain/ltr/*", models__encoder="b2")
    made(runs, "pretrain/ltr/seed-1")
    # by the seeds that are known
    reason = other_code("pre-trained", "models.encoder")
    assert incomparability_of(runs.judge()) == reason
    made(runs, "pretrain/ltr/*")
    assert runs.judge().verdict == Verdict.HOLDS


def test_code_that_differs_only_between_seeds_is_no_difference_of_arms(runs: MadeRuns) -> None:
    for seed in (1, 2, 3):
        made(runs, f"pretrain/*/seed-{seed}", models__encoder=f"b{seed}", torch=f"2.{seed}")
    found = runs.judge()
    assert found.verdict == Verdict.HOLDS
    assert provenance_of(found) == ""
    assert runs.unequal() == []


def test_another_environment_is_a_note(runs: MadeRuns) -> None:
    made(runs, "pretrain/*/*", torch="2.13.0", kernels="x86_64 avx2")
    made(runs, "finetune/*/*/*/*", torch="2.13.0")
    assert provenance_of(runs.judge()) == ""
    made(runs, "pretrain/ltr/seed-2", torch="2.11.0", kernels="x86_64 avx2")
    found = runs.judge()
    assert found.verdict == Verdict.HOLDS
    assert provenance_of(found) == "pre-trained with torch 2.11.0 against 2.13.0"
    made(runs, "finetune/mlm/*/*/*", torch="2.11.0")
    found = runs.judge()
    assert judgement_note(found) == (
        "pre-trained with torch 2.11.0 against 2.13.0; fine-tuned with torch 2.13.0 against 2.11.0"
    )
