"""A sweep's jobs before they run: where each would run, how its folder stands, and what must not
run at all.

A row or an arm is what its own delta says, and its results are judged as that: an override that
differs from it needs a name of its own, and one that changes nothing is refused. What the delta
leaves open (null, `${...}`) may be overridden.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from clozelab.config import check_config, scaled_phases
from clozelab.launch.experiments import MEASURED
from clozelab.launch.sweep import Sweep, hydra_config
from clozelab.runs.inputs import are_untouched
from clozelab.runs.provenance import read_delta
from clozelab.runs.record import DAMAGED, JobName, read_record
from clozelab.runs.reuse import find_equal_run, is_done, is_record_of
from clozelab.text.did_you_mean import key_of

LIKELY_SHARED = "shared?"
ARM = "${encoder_arm}"
# the row of a table for an encoder from elsewhere (encoder=FOLDER): no pre-training then
GIVEN_ROW = "given"


class PlannedJob(NamedTuple):
    """One job of a sweep before it runs."""

    overrides: tuple[str, ...]
    run_dir: str
    status: str
    """new | conflict (a run of other settings is there, and the job will be refused) | shared (new,
    and an equal run of another experiment will be taken) | shared? (will be, if the files it read
    are still the same) | complete (nothing it was made from can have changed) | running |
    interrupted | failed | check (complete, but perhaps of other inputs, or of code that must not
    be) | damaged (its record cannot be read: the job itself will say so)."""
    source: str = ""  # folder of the run that is, or will be, shared


def planned_jobs(sweep: Sweep) -> Iterator[PlannedJob]:
    """Every job, in the order in which it is started, with how it stands now."""
    return with_own_folders(plan_job(sweep.composer.compose(words), words) for words in sweep.jobs)


def plan_job(composed: DictConfig, overrides: Sequence[str]) -> PlannedJob:
    """Where a composed job runs and how its folder stands. ValueError for overrides that cannot be
    meant.
    """
    stage = str(composed.hydra.job.name)
    with hydra_config(composed) as config:
        check_config(stage, config)
        if stage != "prepare":
            check_overrides(config)
        run_dir = str(config.get("run_dir") or "")
        status, source = job_status(stage, config, run_dir) if run_dir else ("new", "")
    return PlannedJob(tuple(overrides), run_dir, status, source)


def with_own_folders(planned: Iterable[PlannedJob]) -> Iterator[PlannedJob]:
    """The jobs as they are; ValueError for one whose folder is another's, whom it would wait for or
    be refused by.
    """
    seen: dict[str, PlannedJob] = {}
    for plan in planned:
        other = seen.setdefault(plan.run_dir, plan) if plan.run_dir else plan
        if other is not plan:
            differing = ", ".join(sorted(set(plan.overrides) ^ set(other.overrides)))
            said = (
                f"two jobs of this sweep would share the folder {plan.run_dir}; they differ in"
                f" {differing}"
            )
            raise ValueError(
                f"{said}. Sweep a key that run_dir contains, or put it there:"
                " run_dir='...${key}...'"
            )
        yield plan


def job_status(stage: str, config: DictConfig, run_dir: str) -> tuple[str, str]:
    """(the status of a PlannedJob, the run it shares)."""
    folder = Path(run_dir)
    try:
        record = read_record(folder)
    except ValueError:
        return DAMAGED, ""
    if record is None or config.get("reuse") == "never":
        if stage != "pretrain" or not (source := find_equal_run(config)):
            return "new", ""
        return "shared" if are_untouched(config, source.watched) else LIKELY_SHARED, str(
            source.folder
        )
    source_place = os.path.normpath(folder / record.shared.run) if record.shared else ""
    if is_done(run_dir, stage=stage, config=config):
        return "complete", source_place
    with suppress(ValueError):  # a value is missing: the job itself says which
        if not is_record_of(record, stage=stage, config=config):
            return "conflict", source_place
    return "check" if record.is_complete else record.status, source_place


def names_of(composed: Iterable[DictConfig]) -> list[JobName]:
    """The names that the runs of composed jobs will have."""
    found = []
    for one in composed:
        with hydra_config(one) as config:
            found.append(JobName.of(config))
    return found


def check_overrides(config: DictConfig) -> None:
    """ValueError for an override that changes nothing, or files a run as something else: says what
    to write instead.
    `config` is of a run, while Hydra's own configuration says how it was composed."""
    if not HydraConfig.initialized():
        return
    words = {key_of(word): word for word in HydraConfig.get().overrides.task}
    if "row" in config:
        if "task" in config:
            _refuse_idle_in_finetuning(config, words)
        _refuse_misfiled_encoder(config, words)
    else:
        _refuse_idle_in_pretraining(config, words)
    _refuse_undone(config, "row" if "row" in config else "arm", words)


def _refuse_idle_in_finetuning(config: DictConfig, words: Collection[str]) -> None:
    for key in ("learning_rate", "epochs", "global_batch_size"):
        if f"task.{key}" in words and config[key] != config.task[key]:
            why = (
                f"{key} is {config[key]} here, which scale={config.scale.name} or another override"
                " sets"
            )
            word = f"{key}={config.task[key]}"
            raise ValueError(f"task.{word} would change nothing: {why}. Say {word} instead")
    if config.trainer.gradient_checkpointing:
        word = "trainer.gradient_checkpointing=true"
        instead = f"leave it out, or say pretrain.{word} where a command is about both stages"
        raise ValueError(
            f"{word} would change nothing in fine-tuning, which does not have it: {instead}"
        )


def _refuse_idle_in_pretraining(config: DictConfig, words: Collection[str]) -> None:
    said = scaled_phases(config.scale.pretrain.phases, config.steps_factor)
    if config.steps_factor != 1 and config.phases != said:
        why = (
            f"steps_factor={config.steps_factor:g} would change nothing: phases=[...] says all"
            " steps outright"
        )
        instead = (
            "scale.pretrain.phases=[...] instead, which the factor multiplies, or leave one of"
            " them out"
        )
        raise ValueError(f"{why}. Say {instead}")
    ratios = sorted(key for key in words if key.partition(".")[0] == "size")
    if ratios and "${size." not in str(OmegaConf.to_container(config.model, resolve=False)):
        why = f"model={HydraConfig.get().runtime.choices.get('model')} says its sizes outright"
        instead = (
            "Say model=ratio too, for ratios of the scale's size, or model.num_hidden_layers=..."
            " itself"
        )
        raise ValueError(f"{ratios[0]} would change nothing: {why}. {instead}")


def _refuse_misfiled_encoder(config: DictConfig, words: Collection[str]) -> None:
    raw: Any = OmegaConf.to_container(
        OmegaConf.masked_copy(config, ["row", "encoder"]), resolve=False
    )
    if config.encoder_arm is None or ARM in str(raw["encoder"]):
        return
    if raw["row"] == ARM and "encoder_arm" not in words:
        filed = f"its scores would be filed as the row {config.row}"
        raise ValueError(f"encoder={config.encoder} has no name yet, and {filed}: say row=NAME too")
    if not {"row", MEASURED} & HydraConfig.get().runtime.choices.keys():
        return
    takes_any, verb = (
        bool(read_delta("row", GIVEN_ROW)),
        "finetune" if "task" in config else "evaluate",
    )
    if config.row == config.encoder_arm or not takes_any:
        instead = (
            f"take row={GIVEN_ROW}"
            if takes_any
            else f"`clozelab {verb} encoder=FOLDER row=NAME` scores another"
        )
        own = (
            f"the row {config.row} stands for the encoder that the arm {config.encoder_arm} has"
            " trained"
        )
        raise ValueError(f"encoder={config.encoder}: {own}; {instead}")


def _refuse_undone(config: DictConfig, kind: str, words: Mapping[str, str]) -> None:
    choices, name = HydraConfig.get().runtime.choices, str(config[kind])
    kind = MEASURED if MEASURED in choices else kind
    choice = choices.get(kind)
    if choice is None or (name != choice and not read_delta(kind, name)):
        return  # what has a name of its own may be anything
    own = ({} if kind == "arm" else {"encoder_fraction": 1.0}) | read_delta(
        kind, choice, with_parts=False
    )
    said = {key: value for key, value in own.items() if not key.startswith("hydra.")}
    delta = {kind: choice} if kind in config else {}
    delta |= {key: one for key, one in said.items() if one is not None and "${" not in str(one)}
    groups = {key.removeprefix("/"): said for key, said in delta.items() if key.startswith("/")}
    inside = {
        key
        for key in choices
        if key not in groups and key.startswith(tuple(f"{group}/" for group in groups))
    }
    values = {key: OmegaConf.select(config, key) for key in delta if not key.startswith("/")}
    undone = [
        f"{key}={one}"
        for key, one in values.items()
        if one != delta[key] and str(one) != str(delta[key])
    ]
    undone += [
        f"{key}={choices[key]}" for key, said in groups.items() if choices.get(key, said) != said
    ]
    undone += [word for key, word in words.items() if key.replace(".", "/") in inside]
    if undone:
        says = ", ".join([f"{key.removeprefix('/')}={value}" for key, value in delta.items()][:6])
        what = "row" if kind == MEASURED else kind
        filed = (
            f"the {what} {choice} stands for {says}, and its results would be filed and judged as"
            " that"
        )
        raise ValueError(
            f"{undone[0]}: {filed}. Leave it out, or give the experiment another {what}"
        )
