"""What is declared before the first run: frozen with a date and a hash, and held against what was
run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.records import change, finish_job
from tests.screens import refuses, shows

from clozelab.planning.steps import make_steps
from clozelab.report import registration
from clozelab.report.registration import read_registration, registration_summary
from clozelab.report.render import write_sweep_report
from clozelab.results.experiment import load_experiment
from clozelab.runs.archive import REGISTRATION_FILE
from clozelab.runs.find import find
from clozelab.stages.register import main as verb

SAID = {
    "columns": ["mrpc"],
    "arms": {"a": {"objective": "mlm"}, "b": {"objective": "ltr"}},
    "claims": [{"text": "b is better", "compare": ["b", "a", "mrpc"], "direction": "higher"}],
}
WORDS = ["scale=demo", "pretrain.seed=1", "finetune.pretrain_seed=1", "finetune.seed=1"]


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "now", lambda: "2026-11-22T10:00:00+00:00")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """An experiment that was registered on 2026-11-22; its runs go below `runs`."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "paper.yaml").write_text(json.dumps(SAID))
    assert verb(words(folder)) == 0
    return folder


def words(folder: Path, *more: str) -> list[str]:
    return [str(folder), *WORDS, f"runs_dir={folder.parent / 'runs'}", *more]


def root(folder: Path) -> Path:
    return folder.parent / "runs" / "mine" / "demo"


def finish(folder: Path, started: str, *more: str) -> None:
    """A complete run of the first job of either stage, as it records itself."""
    for step in (one for one in make_steps(folder, words(folder, *more)[1:]) if one.is_sweep):
        finish_job(step, step.sweep.jobs[0], started)


def said(folder: Path) -> str:
    return registration_summary(load_experiment(folder), find(root(folder)))


def test_a_registration_before_the_first_run(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (entry,) = read_registration(root(mine))
    assert (
        said(mine)
        == f"registered on 2026-11-22 ({entry.hash[:12]}) before its first run; nothing of it was"
        " changed"
    )
    finish(mine, "2026-11-22T10:00:00+00:00")
    left = "no run yet of a registered setting of arm b, b on mrpc and random on mrpc"
    assert said(mine).endswith(f"before its first run; nothing of it was changed; {left}")
    assert verb(words(mine)) == 0, "the same once more is no other"
    shows(
        capsys.readouterr().out,
        "registered already on 2026-11-22T10:00:00+00:00: sha256",
        "commit it, or send it to somebody who keeps it",
    )
    assert len(read_registration(root(mine))) == 1
    finish(mine, "2026-11-22T09:59:59+00:00")
    assert said(mine).startswith(
        f"registered on 2026-11-22 ({entry.hash[:12]}), after 2 of 2 runs had begun (the first on"
        " 2026-11-22)"
    )


def test_what_was_changed_is_named(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(mine, "2026-11-23T00:00:00+00:00")
    finish(
        mine,
        "2026-11-23T00:00:00+00:00",
        "pretrain.seed=3",
        "finetune.pretrain_seed=3",
        "finetune.seed=2",
    )
    shows(said(mine), "before its first run; since then pre-training seed 3 added and")
    other = json.loads(json.dumps(SAID))
    other["claims"][0]["direction"] = "lower"
    other["claims"].append(
        {"text": "new", "compare": ["a", "random", "mrpc"], "direction": "higher", "primary": True}
    )
    other |= {
        "arms": {"a": {"objective": "mlm"}, "b": {}, "c": {}},
        "stopping": {"first": 2, "most": 5},
    }
    (mine / "paper.yaml").write_text(json.dumps(other))
    text = said(mine)
    for difference in (
        "claim b is better changed",
        "claim new added",
        "row c added",
        "arm b changed",
        "arm c added",
        "stopping rule changed",
    ):
        assert difference in text
    with refuses("of 2026-11-22 differs (claim b is better changed, claim"):
        verb(words(mine))
    monkeypatch.setattr(registration, "now", lambda: "2026-11-24T00:00:00+00:00")
    assert verb(words(mine, "--again")) == 0 and len(read_registration(root(mine))) == 2
    text = said(mine)
    assert text.startswith("registered on 2026-11-22"), "the one that came before counts"
    assert " before its first run; " in text and "claim new added" in text
    assert text.endswith("; registered again on 2026-11-24")


def test_the_report_of_a_folder_knows_no_declaration(mine: Path, tmp_path: Path) -> None:
    """Its rows are what differs between runs: that is no change of what was registered."""
    finish(mine, "2026-11-23T00:00:00+00:00")
    (entry,) = read_registration(root(mine))
    page = write_sweep_report(root(mine), tmp_path / "report").page
    assert page.overview.registered == (
        f"registered on 2026-11-22 ({entry.hash[:12]}) before its first run; what was changed"
        " since is in the report of the experiment"
    )


def test_other_settings_than_the_registered_ones(mine: Path) -> None:
    finish(mine, "2026-11-23T00:00:00+00:00", "pretrain.steps_factor=0.5", "finetune.epochs=9")
    text = said(mine)
    assert "settings of arm a changed" in text and "settings of a on mrpc changed" in text
    assert "arm b changed" not in text
    finish(mine, "2026-11-23T00:00:00+00:00", "trainer.threads=1")
    assert "nothing of it was changed" in said(mine), "how the work is laid out is no other run"


def declared(folder: Path, **more: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    (folder / "paper.yaml").write_text(json.dumps(SAID | more))
    return registration.declared(load_experiment(folder), {}, {})


def test_the_order_of_primary_claims_counts(tmp_path: Path) -> None:
    first, second = (
        {**SAID["claims"][0], "text": text, "primary": True} for text in ("first", "second")
    )  # type: ignore[dict-item]
    before = declared(tmp_path / "mine", claims=[first, second])
    assert registration.changed(before, declared(tmp_path / "mine", claims=[second, first])) == [
        "order of primary claims changed"
    ]
    older = {kind: one for kind, one in before.items() if not kind.startswith("order")}
    assert registration.changed(older, before) == [], "a declaration that says nothing of it"


MEASURED = {
    "columns": [
        "mrpc",
        {"name": "x", "from": "evaluate", "task": "pairs_next", "metric": "validation/accuracy"},
    ]
}


def test_further_checksums_of_the_same_inputs_are_no_change() -> None:
    """Those of how a text is read, and of a form's name, are of later versions."""
    older = {"key": {"title": "Mine", "given": {"text": "1", "mrpc": "2"}}, "seeds": {}}
    given = {"text": "1", "text/fields": "3", "mrpc": "2", "/form": "worth_it"}
    after: Any = {"key": {"title": "Mine", "given": given}, "seeds": {}}
    assert registration.changed(older, after) == []
    given["text"] = "4"
    assert registration.changed(older, after) == ["key given changed"]
    del after["key"]["given"]
    assert registration.changed(older, after) == ["key given taken away"]
    # An arm of that name is an arm.
    arms = [{"arm": {"given": {"seed": number}}, "seeds": {}} for number in (1, 2)]
    arms[1]["arm"]["given"] |= {"seed": 1, "steps": 2}
    assert registration.changed(*arms) == ["arm given changed"]


def test_measures_have_the_seeds_of_their_encoders_and_shared_runs_count(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    declared(folder, **MEASURED)
    there = ["scale=demo", f"runs_dir={tmp_path / 'runs'}", "finetune.seed=1"]
    assert verb([str(folder), *there, "seeds=4,5"]) == 0
    assert read_registration(root(folder))[0].content["seeds"] == {
        "fine-tuning": [1],
        "pre-training": [4, 5],
    }
    for seed, settings, changes in (
        (5, [], "; nothing of it was changed"),
        (6, ["pretrain.steps_factor=0.5"], ""),
    ):
        for step in (
            one for one in make_steps(folder, [*there, f"seeds={seed}", *settings]) if one.is_sweep
        ):
            finish_job(step, step.sweep.jobs[0], "2026-11-23T00:00:00+00:00")
        shared = {"run": "elsewhere", "fingerprint": "f", "weights": "w"}
        change(root(folder), "pretrain/*/*", shared=shared)
        changes = changes or "; since then settings of arm a changed and pre-training seed 6 added"
        assert f"{changes}; no run yet of pre-training seed 4; " in said(folder), (
            "who drops a seed has to say it"
        )


def test_every_rate_that_a_row_tries_is_registered(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    declared(folder, sweeps={"finetune": {"learning_rate": "1e-4,2e-4"}})
    assert verb(words(folder)) == 0
    for rate, difference in (
        ("1e-4", "nothing of it was changed"),
        ("3e-4", "since then settings of a on mrpc changed"),
    ):
        finish(folder, "2026-11-23T00:00:00+00:00", f"finetune.learning_rate={rate}")
        assert (
            f"{difference}; no run yet of a registered setting of a on mrpc, arm b, b on mrpc and 1"
            " more" in said(folder)
        )


def test_an_edited_file_is_named(mine: Path) -> None:
    path = root(mine) / REGISTRATION_FILE
    saved = path.read_text()
    edited = "was edited, since it does not fit its hash"
    for text, sentence in (
        (saved.replace('"higher"', '"lower"'), f"the registration of 2026-11-22 {edited}"),
        (saved.replace("2026-11-22", "2026-11-01"), f"the registration of 2026-11-01 {edited}"),
        (saved[:100], "is no registration that can be read"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=sentence) as refused:
            read_registration(root(mine))
        assert said(mine) == str(refused.value), "the report says so and goes on"


def test_a_rule_declares_all_of_its_seeds(tmp_path: Path) -> None:
    folder = tmp_path / "ruled"
    folder.mkdir()
    (folder / "paper.yaml").write_text(json.dumps(SAID | {"stopping": {"first": 3, "most": 5}}))
    content: dict[str, Any] = registration.declared(
        load_experiment(folder), {"pre-training": [1], "fine-tuning": [2, 1]}, {}
    )
    assert content["seeds"] == {"pre-training": [1, 2, 3, 4, 5], "fine-tuning": [1, 2]}
