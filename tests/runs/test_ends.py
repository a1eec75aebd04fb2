"""How runs and sweeps end: what was reached, beside trivial answers, and what to do next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.composing import given
from tests.screens import Screens, refuses, shows

from claims.text.phrases import DASH
from clozelab.launch import launcher as launching
from clozelab.launch.process_launcher import ProcessLauncher
from clozelab.launch.processes import Job, JobState
from clozelab.results.experiment import find_experiment, own_experiments
from clozelab.runs.find import find
from clozelab.runs.inputs import require_encoder
from clozelab.runs.outcome import ending, ignores_context, results, score_in_context
from clozelab.stages.compare import main as compare
from clozelab.stages.list import main as list_all
from clozelab.stages.runs import main as runs_verb
from clozelab.stages.status import main as status_verb
from clozelab.text.paths import EXPERIMENTS_DIR
from clozelab.training.callbacks import in_one_line

NOTHING = "learnt nothing: 6.36 nats, word frequencies give 6.32"


@pytest.fixture
def root(tmp_path: Path, writers: Any) -> Path:
    root = tmp_path / "runs" / "table5_pretraining_tasks" / "demo"
    writers.pretrain(root, "mlm", 1, known={"unigram_loss": 6.32, "validation/loss": 6.36})
    writers.pretrain(root, "ltr", 1, known={"unigram_loss": 6.32, "validation/loss": 4.4})
    for seed, score in ((1, 68.4), (2, 70.4)):
        known = {
            "majority_baseline": 0.684,
            "baselines": {"bag of words": {"accuracy": 0.723}, "longest": {"accuracy": 0.6}},
        }
        writers.finetune(root, "mlm", "mrpc", (1, seed), score, collapsed=score < 69, **known)
    return root


def test_a_run_says_what_it_reached_and_what_comes_next(root: Path) -> None:
    runs = find(root)
    nothing = next(run for run in runs.pretrain if run.name == "mlm")
    learnt = next(run for run in runs.pretrain if run.name == "ltr")
    assert score_in_context(nothing) == NOTHING
    assert score_in_context(learnt) == "4.40 nats, word frequencies give 6.32"
    told = {"validation/rtd_accuracy": 0.931, "validation/rtd_trivial_accuracy": 0.894}
    nothing.facts |= told  # the loss is the generator's: the encoder that is kept has another task
    told_of = "93.1% of tokens rightly classified as replaced or not, one answer gives 89.4%"
    assert score_in_context(nothing) == told_of
    nothing.facts |= {"validation/rtd_accuracy": 0.8945}
    assert score_in_context(nothing).startswith("learnt nothing: 89.")
    # nothing was replaced
    nothing.facts |= {"validation/rtd_accuracy": 1.0, "validation/rtd_trivial_accuracy": 1.0}
    assert score_in_context(nothing).startswith("learnt nothing: 100.0% of tokens")
    for key in told:
        del nothing.facts[key]
    folder = nothing.folder.resolve() / "encoder"
    assert ending(nothing) == [
        NOTHING,
        "more steps, shorter sequences or more text may help",
        f'from Python: clozelab.load("{folder}")',
    ], "not to be fine-tuned"
    folder = learnt.folder.resolve() / "encoder"
    place = "--config-dir 'an experiment' scale=demo"
    assert ending(learnt)[1:] == [
        f"next: clozelab finetune {place} encoder={folder} row=ltr task=TASK",
        f'from Python: clozelab.load("{folder}")',
    ]
    first, second = runs.finetune
    assert score_in_context(second).endswith("label 68.4, worse than bag of words 72.3")
    assert score_in_context(first).endswith("collapsed: one answer to (nearly) everything")
    behind = "a method without context does better: train longer, or give more examples"
    assert ending(second) == [f"MRPC: 70.4; {score_in_context(second)}", behind], (
        "no model was kept to load"
    )
    (second.folder / "model").mkdir()
    assert ending(second)[2:] == [
        f"next: clozelab predict {second.folder.resolve()} text=...",
        f'from Python: clozelab.load("{second.folder.resolve()}")',
    ]
    second.facts["next_command"] = "search RUN in=FILE"
    assert ending(second)[2] == f"next: clozelab search {second.folder.resolve()} in=FILE"
    ((name, task, count, mean, beside),) = results(runs.finetune)
    assert (name, task, count, mean) == ("mlm", "mrpc", "2", "69.4")
    # The mean is judged once: one seed of the two is above the baseline, and the mean is not.
    collapsed = "1 of 2 collapsed: one answer to (nearly) everything"
    assert beside == f"most frequent label 68.4, worse than bag of words 72.3, {collapsed}"
    scores = second.scores[second.metric]
    for value, verdict in ((76.0, "worse than bag of words 72.3"), (76.4, "bag of words 72.3")):
        scores.value = value
        ((*_, beside),) = results(runs.finetune)
        assert beside == f"most frequent label 68.4, {verdict}, {collapsed}"


def test_what_a_run_is_called_is_no_verdict_on_it(root: Path) -> None:
    runs = find(root)
    named = runs.finetune[0].model_copy(update={"scores": {}})
    for title in ("learnt nothing: a study", "behind the scenes"):
        named.facts = {"title": title}
        assert ending(named) == [f"{title}: {DASH}"]
    # a record of before, with fewer facts, is read and judges nothing
    learnt, nothing = sorted(runs.pretrain, key=ignores_context)
    assert ignores_context(nothing) and not ignores_context(learnt)
    del nothing.facts["unigram_loss"]
    assert not ignores_context(nothing)


def test_a_new_head_on_given_weights_is_not_their_encoder(root: Path, writers: Any) -> None:
    facts = {"unigram_loss": 6.32, "validation/loss": 6.35, "fresh_heads": ["lm"]}
    writers.pretrain(root, "further", 1, known=facts)
    (run,) = [run for run in find(root).pretrain if run.name == "further"]
    assert not ignores_context(run)
    words = "the given encoder had no trained lm head, the new one needs more steps"
    assert score_in_context(run) == f"6.35 nats, word frequencies give 6.32; {words}"
    assert any(line.startswith("next: clozelab finetune") for line in ending(run))
    # A head that has learnt needs no words, and an encoder that came with its head has learnt
    # nothing.
    run.facts |= {"validation/loss": 4.0}
    assert words not in score_in_context(run)
    run.facts |= {"validation/loss": 6.35, "fresh_heads": []}
    assert ignores_context(run)


def test_seeds_that_learnt_nothing_are_said_once(root: Path, writers: Any) -> None:
    facts = {"unigram_loss": 6.32, "validation/loss": 6.35}
    writers.pretrain(root, "mlm", 2, known=facts)
    lines = {line[0]: line for line in results(find(root).pretrain)}
    assert lines["mlm"][2:] == ["2", "loss 6.355", "learnt nothing: word frequencies give 6.32"]
    writers.pretrain(root, "mlm", 3, known=facts | {"validation/loss": 4.4})
    lines = {line[0]: line for line in results(find(root).pretrain)}
    assert lines["mlm"][4] == "2 of 3 learnt nothing: word frequencies give 6.32"


@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
def test_a_sweep_ends_with_its_table(
    root: Path, verb: str, capsys: pytest.CaptureFixture[str], screen: Screens
) -> None:
    pool = ProcessLauncher(jobs_at_once=4, grace_seconds=1.0, fork=False)
    hydra = {"runtime": {"config_sources": []}, "job": {"config_name": verb}}
    pool.master = given(verb, {"hydra": hydra})
    pool.verb, pool.root = verb, root
    folders = [run.folder for run in find(root).runs if run.stage == verb]
    jobs = [
        Job(str(one), [], one / "log", folder=str(one), state=JobState.COMPLETE) for one in folders
    ]
    failed = Job("open", [], root / "log", folder=str(root / "open"), state=JobState.FAILED)
    records = launching.read_records([*jobs, failed])
    pool._print_scores(list(records.values()), Console(width=100))
    out = capsys.readouterr().out
    # The best is the second of them: losses of two objectives do not compare.
    if verb == "pretrain":
        screen(out)
    else:
        shows(out, "mlm mrpc 2 69.4 most frequent label 68.4, worse than bag of words 72.3, 1 of 2")
    assert max(map(len, out.splitlines()[:6])) <= 100


def test_the_inventory_says_the_same(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(root / "pretrain" / arm / "seed-1") for arm in ("mlm", "ltr")]
    runs_dir = f"runs_dir={root.parent.parent}"
    for verb, words, verdict in (
        (runs_verb, [runs_dir], "mlm 1 complete loss 6.360 learnt nothing 6.0 min"),
        (status_verb, [runs_dir], "pretrain/mlm/seed-1: learnt nothing: 6.36"),
        (compare, runs, NOTHING),
    ):
        assert verb(words) == 0
        out = capsys.readouterr().out
        shows(out, verdict)
        assert out.count("learnt nothing") == 1, "the other one has learnt"


def test_figures_are_printed_once_and_as_tables_have_them() -> None:
    pretraining = {
        "validation/loss": 6.123456,
        "validation/mlm_loss": 6.123456,
        "validation/accuracy": 0.0957,
    }
    assert in_one_line(pretraining) == "loss 6.123  accuracy 9.6%"
    both = {"train/loss": 2.0, "train/mlm_loss": 1.5, "train/nsp_loss": 0.5}
    assert in_one_line(both) == "loss 2  mlm_loss 1.5  nsp_loss 0.5"


def test_a_missing_encoder_names_those_of_other_scales(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`root` is of the scale demo; their folders are what can be given."""
    there = root / "pretrain/ltr/seed-1/encoder"
    there.mkdir()
    (there / "config.json").touch()
    monkeypatch.chdir(root.parents[2])
    wanted = "runs/adhoc/own/pretrain/mlm/seed-1/encoder"
    with refuses(f"{wanted}: no encoder here") as refused:
        require_encoder(wanted)
    assert str(refused.value).endswith(f"; there are {there.relative_to(Path.cwd())}")
    with refuses("nowhere: no encoder here (config.json is missing); pre-train it"):
        require_encoder("nowhere")


def test_own_experiments_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for place in ("mine", "experiments/other", "mine/deeper"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "paper.yaml").touch()
    arms = "arms: {mlm: {objective: mlm}, ltr: {objective: ltr}}"
    one_file = f"title: Masking of my own\ncolumns: [mrpc]\n{arms}\n"
    for name in ("paper.yaml", "masks.yaml", "experiments/rates.yaml"):
        (tmp_path / name).write_text(one_file)
    (tmp_path / "notes.yaml").write_text("no: experiment\n")
    monkeypatch.chdir(tmp_path)
    own = ["", "experiments/other", "experiments/rates.yaml", "masks.yaml", "mine"]
    assert own_experiments() == [Path(name) for name in own]
    # What is listed is what `reproduce` takes; a half-written one says what it lacks.
    assert find_experiment("masks.yaml") == tmp_path / "masks.yaml"
    assert find_experiment(".") == tmp_path
    assert list_all([]) == 0
    out = capsys.readouterr().out
    shows(out[out.index(". (your own)") :], ". (your own)", "Masking of my own")
    monkeypatch.chdir(EXPERIMENTS_DIR.parent)
    assert own_experiments() == [], "those that come along are no one's own"


def test_a_list_of_experiments_loads_no_statistics(root: Path) -> None:
    code = "from clozelab.cli import main; import sys; main(['list']);"
    code += " sys.exit(str({'hydra', 'torch', 'scipy', 'pandas'} & {*sys.modules} or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.stdout and done.stderr.strip() == "", done.stderr
