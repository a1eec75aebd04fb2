"""What `reproduce` does before it starts anything."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from tests.screens import refuses, shows

from claims.analysis.hypotheses import ResolvedClaim
from claims.analysis.schema import IN_PERCENT
from claims.analysis.scores import DataColumn, Origin
from claims.analysis.statistics import estimate
from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Judgement
from clozelab.cli import main
from clozelab.launch.jobs import PlannedJob
from clozelab.planning import next_seed, reproduction
from clozelab.planning.next_seed import nearest
from clozelab.planning.steps import Step
from clozelab.results.experiment import Experiment, load_experiment
from clozelab.stages import reproduce

UNTIMED = SimpleNamespace(seconds_a_seed=lambda *_: None)
STEPS = [
    Step("prepare", "prepare", None, ()),
    Step("pretrain", "sweep_pretrain", Path("experiment"), ()),
    Step("finetune", "sweep_finetune", Path("experiment"), ()),
]


def steps_that_run(_: Path, __: Sequence[str], running: Collection[str]) -> list[Step]:
    """STEPS in the place of `make_steps`."""
    return [step for step in STEPS if step.verb in running or not step.is_sweep]


def plan(monkeypatch: pytest.MonkeyPatch, **statuses: list[str]) -> list[str]:
    """Let the sweeps have jobs in these states; the list fills with those that were looked at."""
    seen: list[str] = []

    def planned(name: str) -> Iterator[PlannedJob]:
        for status in statuses[name]:
            seen.append(status)
            yield PlannedJob((), name, status)

    monkeypatch.setattr(Step, "sweep", property(lambda step: step.config_name))
    monkeypatch.setattr(reproduction, "planned_jobs", planned)
    return seen


@pytest.mark.parametrize(
    ("pretrain", "finetune", "is_complete", "num_seen"),
    [
        (["complete"] * 2, ["complete"] * 3, True, 5),
        (["complete"], ["complete", "new"], False, 3),
        *[
            # The first open job is enough.
            (["complete", status, "complete"], ["complete"] * 50, False, 2)
            for status in ("new", "failed", "interrupted", "running", "check", "shared")
        ],
    ],
)
def test_complete_runs_leave_nothing_to_do(
    monkeypatch: pytest.MonkeyPatch,
    pretrain: list[str],
    finetune: list[str],
    is_complete: bool,
    num_seen: int,
) -> None:
    seen = plan(monkeypatch, sweep_pretrain=pretrain, sweep_finetune=finetune)
    assert reproduction.all_complete(STEPS) is is_complete
    assert len(seen) == num_seen


@pytest.mark.parametrize(
    ("pretrain", "last_verb"),
    [(["complete", "conflict"], "pretrain"), (["complete", "failed"], "finetune")],
)
def test_nothing_is_fine_tuned_on_encoders_of_other_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, pretrain: list[str], last_verb: str
) -> None:
    """An arm was edited: its old runs are refused, and the fine-tunings took them all the same."""
    plan(monkeypatch, sweep_pretrain=pretrain)
    verbs: list[str] = []

    def run_verb(words: Sequence[str], **_: Any) -> int:
        verbs.append(words[0])
        return int(words[0] == "pretrain")

    monkeypatch.setattr(reproduction, "run_verb", run_verb)
    status, is_stopped = reproduction.run_steps(STEPS, Console(stderr=True))
    assert (status, is_stopped) == (1, "conflict" in pretrain)
    assert verbs[-1] == last_verb
    assert ("or of an older results version, lie in sweep_pretrain" in capsys.readouterr().out) == (
        "conflict" in pretrain
    )


def claim(text: str, compare: list[str], **more: Any) -> dict[str, Any]:
    return {"text": text, "compare": compare, "direction": "higher"} | more


def measured(task: str) -> dict[str, Any]:
    """A column of a measure."""
    return {"name": "x", "from": "evaluate", "task": task, "metric": "validation/accuracy"}


def ruled(folder: Path, **more: Any) -> Path:
    """The file of an experiment with three claims, the first of which is primary, and a stopping
    rule.
    """
    folder.mkdir()
    said = {
        "columns": ["mrpc", {"name": "loss", "from": "pretrain", "metric": "validation/loss"}],
        "arms": {"a": {}, "b": {"objective": "ltr"}},
        "claims": [
            claim("first", ["b", "a", "mrpc"], primary=True),
            claim("second", ["b", "random", "mrpc"]),
            claim("third", ["b", "a", "loss"], direction="lower"),
        ],
        "stopping": {"first": 3, "most": 5},
    } | more
    (folder / "paper.yaml").write_text(json.dumps(said))
    return folder


def judgement(
    experiment: Experiment, number: int, seeds: int, verdict: Verdict, p: float | None = 0.2
) -> Judgement:
    """A claim's judgement over so many seeds; only what choosing the next seed asks for is real."""
    values = [float(seed) for seed in range(seeds)]
    difference = estimate({(seed, 1): value for seed, value in enumerate(values, 1)})
    column = experiment.columns[0 if number < 2 else 1]
    tasks = ("mrpc",) if number < 2 else ()
    dataset = DataColumn("x", "x", "m", column, Origin.OTHER, scale=IN_PERCENT, tasks=tasks)
    seed_numbers = " ".join(map(str, range(1, seeds + 1)))
    return Judgement(
        resolved=ResolvedClaim(experiment.claims[number], dataset, "x"),
        verdict=verdict,
        verdicts=(verdict,),
        weakest=SimpleNamespace(difference=difference, p_value=p, label=""),
        corrected_p=None,
        num_tests=1,
        gated_by="",
        forecast=None,
        seeds={"key": f"{seed_numbers}/1"},
    )


def test_of_primary_claims_together_the_nearest_gets_the_next_seed(tmp_path: Path) -> None:
    """In order, the first open one does."""
    claims = json.loads((ruled(tmp_path / "first") / "paper.yaml").read_text())["claims"]
    for primary, nearest_one in ((True, "first"), ("together", "second")):
        chosen = [{**claim, "primary": primary} for claim in claims[:2]]
        folder = ruled(tmp_path / str(primary), claims=[*chosen, claims[2]])
        experiment = load_experiment(folder)
        found = [
            judgement(experiment, number, 3, Verdict.INCONCLUSIVE, p)
            for number, p in enumerate((0.3, 0.2, 0.1))
        ]
        one = nearest(found, experiment)
        assert one is not None and one.claim.text == nearest_one


def test_the_next_seed_goes_to_the_claim_that_is_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A primary one first; then the others, each by its own rows, up to the last look."""
    folder = ruled(tmp_path / "mine")
    experiment, rounds = load_experiment(folder), []
    script = [
        [(0, 3, Verdict.INCONCLUSIVE), (1, 3, Verdict.INCONCLUSIVE), (2, 3, Verdict.INCONCLUSIVE)],
        [(0, 4, Verdict.HOLDS), (1, 3, Verdict.INCONCLUSIVE), (2, 4, Verdict.INCONCLUSIVE, 0.1)],
        [(0, 4, Verdict.HOLDS), (1, 3, Verdict.INCONCLUSIVE, 0.1), (2, 5, Verdict.INCONCLUSIVE)],
        [(0, 4, Verdict.HOLDS), (1, 4, Verdict.INCONCLUSIVE, None), (2, 5, Verdict.INCONCLUSIVE)],
    ]

    def run_round(
        _: Path, __: Any, words: Sequence[str], steps: list[Step], *, is_checked: bool
    ) -> tuple[int, Any]:
        rounds.append((is_checked, len(steps), [*words]))
        return 0, SimpleNamespace(
            judgements=[judgement(experiment, *one) for one in script[len(rounds) - 1]],
            table=UNTIMED,
        )

    monkeypatch.setattr(reproduction, "run_round", run_round)
    monkeypatch.setattr(reproduction, "make_steps", steps_that_run)
    assert reproduce.main([str(folder), "until=decided", "scale=demo"]) == 0
    arms = "pretrain.arm=b,a"
    tuned = ["finetune.pretrain_seed=4", "finetune.row=ROWS", "finetune.task=mrpc"]
    fourth = ["scale=demo", "pretrain.seed=4", arms, *tuned]
    assert rounds == [
        (False, 3, ["scale=demo", "seeds=1,2,3"]),
        (True, 3, [word.replace("ROWS", "b,a") for word in fourth]),
        (True, 2, ["scale=demo", "pretrain.seed=5", arms]),
        (True, 3, [word.replace("ROWS", "b,random") for word in fourth]),
    ]


def test_a_budget_begins_no_seed_that_it_cannot_pay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ruled(tmp_path / "mine")
    experiment, clock, rounds = load_experiment(folder), [0.0], []
    table = SimpleNamespace()

    def run_round(*_: Any, **__: Any) -> tuple[int, Any]:
        rounds.append(1)
        clock[0] += 300.0 if len(rounds) == 1 else 100.0
        return 0, SimpleNamespace(
            judgements=[judgement(experiment, 0, 2 + len(rounds), Verdict.INCONCLUSIVE)],
            table=table,
        )

    monkeypatch.setattr(reproduction, "run_round", run_round)
    monkeypatch.setattr(reproduction, "make_steps", lambda *_: STEPS)
    monkeypatch.setattr(reproduction.time, "monotonic", lambda: clock[0])
    # Runs that were there already take no time in this round: what a seed took then counts.
    for budget, before, wanted in (
        ("390s", 0.0, 1),
        ("410s", 0.0, 2),
        ("2h", 0.0, 3),
        ("2h", 7000.0, 1),
    ):
        rounds.clear()
        table.seconds_a_seed = lambda *_, before=before: before or None
        assert reproduce.main([str(folder), "until=decided", f"budget={budget}"]) == 0
        assert len(rounds) == wanted, budget


def test_a_round_that_was_stopped_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduction, "run_round", lambda *_, **__: (130, None))
    monkeypatch.setattr(reproduction, "make_steps", lambda *_: STEPS)
    assert reproduce.main([str(ruled(tmp_path / "mine")), "until=decided"]) == 130


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["until=decided"], "needs a stopping rule in paper.yaml"),
        (["until=done"], "there is until=decided alone"),
        (["budget=2h"], "budget= needs until=decided"),
        (["until=decided", "pretrain.seed=1"], "chooses the pre-training seeds itself"),
        (["until=decided", "pretrain_seed=1"], "chooses the pre-training seeds itself"),
        (["until=decided", "seeds=1,2"], "chooses the pre-training seeds itself"),
        (["until=decided", "scale.pretrain.seeds='1,2'"], "chooses the pre-training seeds itself"),
    ],
)
def test_until_decided_is_refused(tmp_path: Path, words: list[str], message: str) -> None:
    folder = ruled(tmp_path / "mine", **({"stopping": None} if "rule" in message else {}))
    with pytest.raises(ValueError, match=message):
        reproduce.main([str(folder), *words])


def test_a_claim_about_two_columns_gets_its_seed_on_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ["mrpc", measured("pairs_next")]
    both = claim("t", ["b", "a", "mrpc"], against=["b", "a", "x"])
    folder = ruled(tmp_path / "mine", columns=columns, claims=[both])
    experiment = load_experiment(folder)
    found = judgement(experiment, 0, 3, Verdict.INCONCLUSIVE)
    assert next_seed.next_seed(found, experiment) == ["seeds=4", "pretrain.arm=b,a", "row=b,a"]
    stages = []

    def run_round(_: Path, __: Any, ___: Any, steps: list[Any], **____: Any) -> tuple[int, Any]:
        stages.append([step.verb for step in steps])
        return 0, SimpleNamespace(judgements=[found], table=UNTIMED)

    monkeypatch.setattr(reproduction, "run_round", run_round)
    with refuses("a seed more gave 't' none: seeds=4 pretrain.arm=b,a row=b,a"):
        reproduce.main([str(folder), "until=decided", "scale=demo"])
    assert stages == [["prepare", "pretrain", "finetune", "evaluate"]] * 2, "and not for ever"


def test_a_scale_that_lacks_every_measure_says_how_to_go_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pairs.yaml").write_text(
        "arms: {mlm: {objective: mlm}}\n"
        "columns: [{name: Pairs, from: evaluate, task: blimp, metric: validation/accuracy}]\n"
    )
    words = [f"{tmp_path}/pairs.yaml", "scale=demo", f"runs_dir={tmp_path}", "--dry-run"]
    assert main(["reproduce", *words]) == 1
    shows(capsys.readouterr().err, "measure: the experiment's measures have no files at this scale")
    assert reproduce.main([*words, "evaluate=none"]) == 0


def test_a_dry_run_refuses_what_a_job_would_refuse(tmp_path: Path) -> None:
    (tmp_path / "rates.yaml").write_text(
        "arms: {whole: {objective: mlm, objective.token.whole_word: true}}\ncolumns: [mrpc]\n"
    )
    words = [f"{tmp_path}/rates.yaml", "scale=demo", f"runs_dir={tmp_path}", "--dry-run"]
    with pytest.raises(ValueError, match=r"whole_word: .* did you mean 'whole_words'"):
        reproduce.main(words)


def test_a_claim_on_a_measure_gets_its_seed_without_fine_tuning(tmp_path: Path) -> None:
    columns = ["mrpc", measured("blimp")]
    claims = [claim("first", ["b", "a", "x"], primary=True)]
    experiment = load_experiment(ruled(tmp_path / "mine", columns=columns, claims=claims))
    column = DataColumn(
        "x", "x", "m", experiment.columns[1], Origin.OTHER, scale=IN_PERCENT, tasks=("blimp",)
    )
    found = judgement(experiment, 0, 3, Verdict.INCONCLUSIVE)
    found = replace(found, resolved=replace(found.resolved, column=column))
    assert next_seed.next_seed(found, experiment) == [
        *("pretrain.seed=4", "pretrain.arm=b,a"),
        *("evaluate.pretrain_seed=4", "evaluate.measured=b,a", "evaluate.measure=blimp"),
    ]
    assert next_seed.first_seeds(experiment, "decided", ["finetune.seed=1"]) == "seeds=1,2,3"


def test_rows_at_unequal_seeds_get_the_one_that_is_lacking(tmp_path: Path) -> None:
    """The row with fewest seeds would else stay behind for good."""
    experiment = load_experiment(ruled(tmp_path / "mine"))
    found = judgement(experiment, 0, 3, Verdict.INCONCLUSIVE)
    seeds = {"b a": "1 2 3 4/1 2", "b random": "1 2 3/1 2"}
    assert next_seed.next_seed(replace(found, seeds=seeds), experiment)[0] == "pretrain.seed=4"
