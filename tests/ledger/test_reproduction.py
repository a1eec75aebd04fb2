"""The commands behind a report: composed again, they are the very runs; what they cannot say is said beside them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clozelab.config import EXPERIMENTS_DIR
from clozelab.launch.commands import reproduce_again
from clozelab.launch.plan import SWEEPS, make_steps
from clozelab.launch.sweep import compose, hydra_config, without_hydra
from clozelab.runs.find import Collected, FinetuneRun, PretrainRun
from clozelab.runs.fingerprint import canonical

TABLE5 = EXPERIMENTS_DIR / "table5_pretraining_tasks"
TABLE1 = EXPERIMENTS_DIR / "table1_glue"
ROOT = Path("runs/table5_pretraining_tasks/demo")


def recorded(folder: Path, stage: str, *words: str) -> dict[str, Any]:
    """What a run's record says of a composed job."""
    composed = compose(SWEEPS[stage], ["scale=demo", *words], folder=folder)
    return plain(composed)


def plain(composed: Any) -> dict[str, Any]:
    with hydra_config(composed):
        return dict(json.loads(json.dumps(canonical(without_hydra(composed)))))


def encoders(config: dict[str, Any], seeds: Sequence[int] = (1,), root: Path = ROOT) -> list[PretrainRun]:
    """A run for each seed, all of one composed configuration."""
    states = [{"status": "complete", "config_resolved": config | {"seed": seed}} for seed in seeds]
    arm = config["arm"]
    return [PretrainRun(root / f"{arm}-{seed}", arm, seed, state) for seed, state in zip(seeds, states, strict=True)]


def tuned(config: dict[str, Any], seeds: Sequence[tuple[int, int]] = ((1, 1),), root: Path = ROOT) -> list[FinetuneRun]:
    runs = []
    for first, second in seeds:
        state = {"status": "complete", "config_resolved": config | {"pretrain_seed": first, "seed": second}}
        row, task, rate = config["row"], config["task"]["name"], config["learning_rate"]
        folder = root / f"{row}-{task}-{first}-{second}-{rate}-{config['epochs']}"
        runs.append(FinetuneRun(folder, row, task, first, second, state, learning_rate=rate))
    return runs


def made_by(line: str, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Stage -> the records of all runs that a command would make."""
    found = {}
    for step in make_steps(folder, shlex.split(line)[3:]):
        if not step.is_sweep:
            continue
        sweep = step.sweep
        found[step.verb] = [plain(sweep.composer.compose(job)) for job in sweep.jobs]
    return found


def as_set(configs: Sequence[dict[str, Any]]) -> set[str]:
    return {json.dumps(config, sort_keys=True) for config in configs}


def test_settings_and_seeds_of_both_stages() -> None:
    pretrain = [
        run
        for arm in ("mlm", "ltr")
        for run in encoders(recorded(TABLE5, "pretrain", f"arm={arm}", "optimizer.weight_decay=0.02"), (1, 7))
    ]
    words = ("task=mrpc", "epochs=7", "learning_rate=3e-4")
    finetune = [
        run
        for row in ("mlm", "ltr_bilstm")
        for run in tuned(recorded(TABLE5, "finetune", f"row={row}", *words), ((1, 1), (7, 1)))
    ]
    (again,) = reproduce_again(TABLE5, Collected(ROOT, pretrain, finetune, []), "demo")
    assert again.lacking == ""
    assert again.line == (
        "clozelab reproduce table5_pretraining_tasks scale=demo pretrain.arm=mlm,ltr pretrain.seed=1,7 "
        "pretrain.optimizer.weight_decay=0.02 finetune.row=mlm,ltr_bilstm finetune.task=mrpc "
        "finetune.pretrain_seed=1,7 finetune.seed=1 finetune.epochs=7.0 finetune.learning_rate=0.0003"
    )
    made = made_by(again.line, TABLE5)
    assert as_set(made["pretrain"]) == as_set([dict(run.state["config_resolved"]) for run in pretrain])
    assert as_set(made["finetune"]) == as_set([dict(run.state["config_resolved"]) for run in finetune])


def test_encoders_alone_say_what_would_be_fine_tuned() -> None:
    """Fine-tuning looks for the scale's seeds unless it is told of others."""
    runs = [
        run for arm in ("mlm_nsp", "mlm", "ltr") for run in encoders(recorded(TABLE5, "pretrain", f"arm={arm}"), (4,))
    ]
    (again,) = reproduce_again(TABLE5, Collected(ROOT, runs, [], []), "demo")
    assert again.line.endswith("scale=demo pretrain.seed=4 finetune.pretrain_seed=4") and again.lacking == ""


def test_many_settings_are_all_said() -> None:
    words = [
        *("gradient_clip_norm=0.5", "validation.instances=256", "schedule.warmup_fraction=0.2"),
        *("optimizer.weight_decay=0.1", "optimizer.eps=1e-7", "optimizer.learning_rate=0.002"),
        *("model.hidden_dropout_prob=0.2", "model.attention_probs_dropout_prob=0.2", "model.num_hidden_layers=3"),
        *("model.intermediate_size=1024", "phases.0.steps=500", "phases.1.steps=50", "phases.0.global_batch_size=64"),
    ]
    config = recorded(TABLE5, "pretrain", "arm=mlm", *words)
    (again,) = reproduce_again(TABLE5, Collected(ROOT, encoders(config), [], []), "demo")
    assert again.lacking == ""
    missing = [key for key in (word.partition("=")[0] for word in words) if f" pretrain.{key}=" not in again.line]
    assert missing == []


@pytest.mark.parametrize("lengths", [(32,), (32, 96), (32, 64, 96)])
def test_a_list_of_another_length_is_said_as_a_whole(lengths: Sequence[int]) -> None:
    phases = ",".join(
        f"{{seq_length:{length},steps:{100 + i},global_batch_size:16,micro_batch_size:16}}"
        for i, length in enumerate(lengths)
    )
    words = [f"phases=[{phases}]", "optimizer.weight_decay=0.02", "keep_encoders=[]"]
    runs = [run for arm in ("mlm", "ltr") for run in encoders(recorded(TABLE5, "pretrain", f"arm={arm}", *words))]
    (again,) = reproduce_again(TABLE5, Collected(ROOT, runs, [], []), "demo")
    assert again.lacking == "" and " pretrain.optimizer.weight_decay=0.02" in again.line
    assert f"'pretrain.phases=[{phases}]'" in again.line or len(lengths) == 2
    made = made_by(again.line, TABLE5)["pretrain"]
    assert as_set(made) == as_set([dict(run.state["config_resolved"]) for run in runs])


def test_what_no_command_says_is_said_beside_it() -> None:
    config = recorded(TABLE5, "finetune", "row=mlm", "task=mrpc", "gradient_clip_norm=0.5")
    other = recorded(TABLE5, "finetune", "row=ltr", "task=mrpc", "gradient_clip_norm=0.5", "epochs=7")
    (again,) = reproduce_again(TABLE5, Collected(ROOT, [], tuned(config) + tuned(other), []), "demo")
    assert again.lacking == "finetune: its runs differ from the sweep, and not all in one way, in epochs"
    assert again.line.endswith("finetune.gradient_clip_norm=0.5"), "what all have is still said"
    gone = {key: value for key, value in config.items() if key != "epochs"} | {"learning_rate": 0.5}
    run = FinetuneRun(ROOT / "a", "mlm", "mrpc", 1, 1, {"status": "complete", "config_resolved": gone})
    (again,) = reproduce_again(TABLE5, Collected(ROOT, [], [run], []), "demo")
    assert again.lacking == "finetune: the sweep now has what its runs do not say: epochs"
    run = FinetuneRun(ROOT / "a", "mlm", "gone", 1, 1, {"config_resolved": config | {"task": {"name": "gone"}}})
    (again,) = reproduce_again(TABLE5, Collected(ROOT, [], [run], []), "demo")
    assert again.lacking.startswith("finetune: cannot be composed now: ") and "scale=demo" in again.line


def test_a_row_that_keeps_its_arms_name_may_be_of_a_given_encoder_too(tmp_path: Path) -> None:
    folder = EXPERIMENTS_DIR / "table7_feature_based_ner"
    (run,) = tuned(recorded(folder, "finetune", "row=last", "task=ner_microworld"), root=tmp_path)
    run.dir.mkdir()
    for encoder, is_given in (("/an/encoder", True), ("${runs_dir}/pretrain/${encoder_arm}/encoder", False)):
        (run.dir / "config.yaml").write_text(f"encoder: {encoder}\n")
        (again,) = reproduce_again(folder, Collected(tmp_path, [], [run], []), "demo")
        assert ("row=last encoder=/an/encoder" in again.line) == is_given, again.line


def test_an_encoder_from_elsewhere_has_its_own_command(tmp_path: Path) -> None:
    own = [
        run
        for row in ("mlm_nsp", "random")
        for run in tuned(recorded(TABLE1, "finetune", f"row={row}", "task=rte"), root=tmp_path)
    ]
    brought = [
        run
        for rate in (5e-5, 4e-5, 3e-5, 2e-5)
        for run in tuned(recorded(TABLE1, "finetune", "row=given", "task=rte", f"learning_rate={rate}"), root=tmp_path)
    ]
    for run in brought:
        run.dir.mkdir()
        (run.dir / "config.yaml").write_text("encoder: an encoder\n")
    first, second = reproduce_again(TABLE1, Collected(tmp_path, [], own + brought, []), "demo")
    assert "row=" not in first.line and "encoder=" not in first.line and first.lacking == second.lacking == ""
    assert shlex.split(second.line)[3:7] == ["scale=demo", "row=given", "encoder=an encoder", "finetune.task=rte"]
    assert "learning_rate" not in second.line, "the row's own rates"
    (again,) = reproduce_again(TABLE1, Collected(tmp_path, [], brought[:3], []), "demo")
    assert "finetune.learning_rate=5e-05,4e-05,3e-05" in again.line
