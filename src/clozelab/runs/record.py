"""The record of a run, run.json: what was asked for, what it was made of, and how far it came.

Written when a run folder is claimed. One type for writing and for reading; a file that does not fit
it is damaged.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from clozelab.addresses import permission_for
from clozelab.files.atomic import atomic_write_lines
from clozelab.files.origin import RUN_FILE
from clozelab.metrics.metric import PREFIX, UNKNOWN_UNIT, Metric, MetricUnit, base_name
from clozelab.runs.identity import further_versions, identity_of
from clozelab.runs.older_scores import older_metric
from clozelab.text.did_you_mean import values_of
from clozelab.text.formatting import with_class
from clozelab.text.plain import (
    JsonObject,
    PlainDict,
    PlainMapping,
    ReadOnlyJson,
    read_json,
    with_changes,
)
from clozelab.training.measuring import read_rows

CONFIG_FILE = "config.yaml"
LOG_FILE = "log.txt"
LOCK_FILE = ".lock"
ID_FACT = "tracker_id"
TRACKERS_FACT = "trackers"  # labels of those that the last start had
STEP_FILE = ".step"  # of a run that trains: where it is between two lines of metrics.csv
# names of what is being written, below a run's folder
TEMPORARY = (STEP_FILE, ".*.tmp", ".encoder.*", ".model.*", ".step-*")
# exit status of a command whose run folder another process holds: try again later
BUSY_STATUS = os.EX_TEMPFAIL
STAGE_NAMES = {"pretrain": "pre-training", "finetune": "fine-tuning", "evaluate": "evaluation"}
DAMAGED = "damaged"
KILLED = "killed"
STATUSES = ("complete", "running", KILLED, "interrupted", "failed", DAMAGED)
"""`killed` and `damaged` are never written: a reader says so of a run that no process holds, and of
a bad file.
"""
# objectives whose held-out loss is the cross-entropy of masked tokens, and what chooses these
MASKED = (
    "clozelab.objectives.mlm.MaskedLanguageModel",
    "clozelab.objectives.distillation.Distillation",
    "clozelab.objectives.emd.EnhancedMaskedLanguageModel",
)
MASKING = (
    "predict_prob",
    "count_specials",
    "max_predictions_fraction",
    "whole_words",
    "span_weights",
    "one_action_a_span",
    "units",
    "mask_fraction",
    "random_fraction",
    "same_fraction",
)


class Score(BaseModel):
    """A held-out figure of a run: what it is in and, at the end, its value."""

    unit: MetricUnit | Literal["unknown unit"]
    # times what metrics.csv and scores.json say: 100 where those have shares of one
    factor: float = 1.0
    # None: it is no achievement, such as a threshold, or nobody knows
    higher_is_better: bool | None = None
    value: float | None = None
    majority: float | None = None  # the figure of always answering what is most frequent
    baselines: dict[str, float] = {}  # simple method -> its figure on the same examples
    positive_label: str | None = None  # of an F1 of one class: which class

    @classmethod
    def of(cls, metric: Metric, positive_label: str | None = None) -> Score:
        """Make a score without a value; `positive_label` is of its task."""
        return cls(
            unit=metric.unit,
            higher_is_better=metric.higher_is_better,
            factor=metric.factor,
            positive_label=positive_label if metric.is_of_one_class else None,
        )

    @property
    def falls(self) -> bool:
        """Whether a smaller value is the better one."""
        return self.higher_is_better is False

    @property
    def sign(self) -> float:
        """What turns a value into one of which the larger is better."""
        return -1.0 if self.falls else 1.0

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        """The simple method with the best figure, and that; None where there is none."""
        return max(self.baselines.items(), key=lambda item: self.sign * item[1], default=None)


class Process(BaseModel):
    """The process that worked in a run's folder last."""

    pid: int
    host: str


class Git(BaseModel):
    """The commit that made a run, and whether files differed from it."""

    commit: str
    dirty: bool


class Host(BaseModel):
    """The machine of a session."""

    cpu: str = "unknown"
    cores: int | None = None
    gpus: list[str] = []  # their names


class Session(BaseModel):
    """What computed a run from one start to its end."""

    code: str = ""
    modules: dict[str, str] = {}
    git: Git | None = None
    versions: dict[str, str] = {}
    environment: dict[str, str] = {}
    host: Host = Host()


class Shared(BaseModel):
    """The equal run that a record speaks for."""

    run: str  # its folder, relative to the record's
    fingerprint: str
    weights: str  # its encoder's fingerprint


class JobName(NamedTuple):
    """What a run is found by."""

    name: str  # arm or row
    task: str  # task or measure; "" in pre-training
    seeds: str  # "1"; of two stages "1/2"

    @classmethod
    def from_config(cls, config: PlainMapping) -> JobName:
        """Make the name of a resolved configuration; empty where that does not say."""
        seeds = str(config.get("seed", ""))
        if "row" in config:
            seeds = f"{config.get('pretrain_seed', '')}/{seeds}"
        return cls(_name_in(config), _task_in(config), seeds)


class Record(BaseModel, extra="forbid"):
    """A run. Its fields are run.json's; `folder`, `place` and `holder` are the reader's."""

    # What the command line and the experiment's files said, as Hydra composed it; empty for a run
    # without Hydra.
    started_in: str = ""  # the folder that the command was started from
    config_dir: str = ""
    config_name: str = ""
    # a job's own and its sweep's, in order; what looks like a secret is hidden
    overrides: list[str] = []
    choices: dict[str, str] = {}  # group of conf/ -> choice
    # what the arm's own node says: dotted key -> value, "/group" -> choice
    arm_delta: PlainDict = {}
    row_delta: PlainDict = {}

    # What the run is, and what it is scored by.
    status: str = Field(pattern="^(complete|running|interrupted|failed)$")
    stage: str = Field(pattern="^(pretrain|finetune|evaluate)$")
    scale: str
    metric: str = ""  # the headline's key in `scores`
    scores: dict[str, Score] = {}
    fingerprint: str
    results_version: int
    home: str = ""  # the folder that it was made in, below runs_dir; a copy lies elsewhere
    config: JsonObject  # resolved, without what cannot change a result; secrets as hashes
    inputs: dict[str, str]  # name -> checksum of everything that was read
    watched: dict[str, tuple[int, ...]]  # files -> what tells whether they were touched

    # How it went.
    started: str
    finished: str | None = None
    seconds: float = 0.0
    sessions: int = 1
    error: str | None = None
    facts: JsonObject = {}
    process: Process | None = None

    # What computed it.
    code: str = ""  # hash of what computes it (code.code_hash), of the last session
    # the same module by module: arms that use others may be compared in those of both
    modules: dict[str, str] = {}
    # what else decides the last digits: Python, torch, numpy, tokenizers, kernels
    environment: dict[str, str] = {}
    versions: dict[str, str] = {}
    git: Git | None = None
    host: JsonObject = {}
    # each other code, set of versions and machine that trained it, once
    earlier_sessions: list[PlainDict] = []
    shared: Shared | None = None

    folder: Path = Field(default=Path(), exclude=True)
    place: str = Field(default="", exclude=True)  # the folder below the place that was searched
    holder: int | None = Field(default=None, exclude=True)  # process that holds the folder now

    @model_validator(mode="after")
    def _with_directions(self) -> Self:
        """Give the scores of an older record, which have none, their directions."""
        for key, score in self.scores.items():
            if "higher_is_better" not in score.model_fields_set:
                metric = older_metric(key, self.further_files)
                if metric is None:
                    score.unit = UNKNOWN_UNIT
                score.higher_is_better = metric.higher_is_better if metric else None
        return self

    def __fspath__(self) -> str:
        """Its folder: a run stands for it wherever a path is asked for."""
        return str(self.folder)

    @property
    def is_complete(self) -> bool:
        return self.status == "complete"

    @cached_property
    def stage_version(self) -> int:
        """The results version of its stage that it is of; runs of two of them are not compared.

        What its own keys add to a version is left out.
        """
        return self.results_version - further_versions(self.config)

    @property
    def last_session(self) -> Session:
        # All but the host was checked with the record.
        fields = {name: getattr(self, name) for name in Session.model_fields}
        return Session.model_construct(**fields | {"host": Host.model_validate(self.host)})

    @property
    def sessions_before(self) -> list[Session]:
        return [Session.model_validate(session) for session in self.earlier_sessions]

    @property
    def last_objective(self) -> PlainDict:
        """The settings of the last phase's objective; the held-out loss is this one's."""
        of_run = self.config.get("objective") or {}
        phases = self.config.get("phases") or [{}]
        of_phase = phases[-1].get("objective") or {}
        if isinstance(of_phase, str):
            # Runs before 2026-11-28 only have the name.
            return self.facts.get("last_objective", {"token": of_phase})
        return with_changes(of_run, of_phase)

    @property
    def predicts(self) -> str:
        """The tokens that its held-out loss is over: those of the last phase's objective."""
        token = self.last_objective.get("token")
        if isinstance(token, Mapping) and str(token.get("_target_")) in MASKED:
            # A teacher, or another head, is asked for the same tokens.
            return str([token.get(key) for key in MASKING])
        return str(token)

    @property
    def experiment(self) -> str:
        return str(self.config.get("experiment", ""))

    @property
    def job_name(self) -> JobName:
        return JobName.from_config(self.config)

    @property
    def name(self) -> str:
        """Arm of a pre-training run, row of a fine-tuning run."""
        return _name_in(self.config)

    @property
    def task(self) -> str:
        return _task_in(self.config)

    @property
    def encoder_arm(self) -> str | None:
        """The arm whose encoder a run took; of a folder that was given instead, its place."""
        given = values_of(self.overrides)
        if "encoder" in given and "encoder_arm" not in {*given, *self.row_delta}:
            return given["encoder"]
        return self.config.get("encoder_arm")

    @property
    def shared_folder(self) -> Path | None:
        """The folder of the equal run that it speaks for, also where its own lies behind a link."""
        if self.shared is None:
            return None
        return Path(os.path.normpath(self.folder.resolve() / self.shared.run))

    @property
    def seeds(self) -> str:
        return self.job_name.seeds

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def pretrain_seed(self) -> int:
        if "pretrain_seed" in self.config:
            return int(self.config["pretrain_seed"])
        return self.seed

    @property
    def machine(self) -> str:
        """The name of the machine that it ended on."""
        return self.process.host if self.process else ""

    @property
    def encoder_shape(self) -> ReadOnlyJson:
        """The shape of a pre-trained encoder, or of the one that a run begins with.

        Empty for a record that says nothing of it.
        """
        begun_with: PlainMapping = self.facts.get("encoder", {})
        if begun_with or self.stage != "pretrain":
            return begun_with
        if "encoder" not in self.inputs:
            return self.config.get("model", {})
        # An older record: its configuration has the scale's shape, and its folder the true one.
        with suppress(OSError, ValueError):
            saved: PlainMapping = read_json(self.folder / "encoder" / "config.json")
            if "num_hidden_layers" in saved:
                return saved
        return {}

    @property
    def learning_rate(self) -> float | None:
        return self.config.get("learning_rate")

    @property
    def title(self) -> str:
        title = self.facts.get("title") or _task_or_measure(self.config).get("title")
        return str(title or self.task)

    @property
    def synthetic(self) -> str | None:
        """Name of the generated world that wrote the task's files, or the corpus."""
        world: str | None = self.facts.get("synthetic")
        corpus = self.config.get("corpus") or {}
        if not world and corpus.get("generator"):
            return str(corpus["name"])
        return world or None

    @property
    def score(self) -> float | None:
        """The headline's value, in its unit."""
        return self.scores[self.metric].value if self.metric in self.scores else None

    @property
    def further_files(self) -> tuple[str, ...]:
        """Names of a task's further validation files, whose scores are NAME_SCORE."""
        data = _task_or_measure(self.config).get("data") or {}
        return tuple(data.get("extra_validation_files") or ())

    def score_of(self, key: str) -> Score:
        """What a held-out figure is, without its value; also one of a part, such as a source.

        A figure that nobody has declared is in UNKNOWN_UNIT.
        """
        declared = self.scores.get(key, self.scores.get(PREFIX + base_name(key)))
        if declared is not None:
            return declared
        metric = older_metric(key, self.further_files)
        if metric is None:
            return Score(unit=UNKNOWN_UNIT)
        # SQuAD's scores are in percent as they are.
        factors = {score.factor for score in self.scores.values()}
        if self.stage != "pretrain" and factors == {1.0}:
            metric = replace(metric, factor=1.0)
        return Score.of(metric)

    def score_name(self, key: str) -> str:
        """`accuracy`, `f1 of fraud`: a score with the class that it is of."""
        score = self.scores.get(key)
        name = key.removeprefix("validation/")
        if score is None:
            return name
        return with_class(name, score.positive_label)

    @cached_property
    def values(self) -> dict[str, float]:
        """Key -> value of every score that there is, each in its unit."""
        return {key: score.value for key, score in self.scores.items() if score.value is not None}

    @cached_property
    def figures(self) -> JsonObject:
        """What a column may show of a run, in its unit.

        That is its scores; of a pre-training every fact, with shares in percent.
        """
        if self.stage != "pretrain":
            return dict(self.values)
        figures = dict(self.facts)
        for key in figures:
            if key.startswith(PREFIX):
                figures[key] *= self.score_of(key).factor
        return figures

    @cached_property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Held-out figure -> [(tokens, value)] from the run's metrics.csv."""
        curves: dict[str, list[tuple[int, float]]] = {}
        for row in read_rows(self.folder / "metrics.csv"):
            if row.key.startswith("validation/"):
                curves.setdefault(row.key, []).append((row.tokens, row.value))
        return curves

    def take(self, results: ReadOnlyJson) -> None:
        """Put what scores.json says of every figure into its score, in its unit.

        ValueError for what is no number. `results` may have baselines: of each simple method its
        figures by their last name (`accuracy` of `validation/accuracy`).
        """
        values = results.get("scores", {})
        # a number for the headline, or numbers by name ("accuracy") or key ("validation/accuracy")
        majorities = results.get("majority_baseline")
        if not isinstance(majorities, Mapping):
            majorities = {self.metric: majorities}
        baselines = results.get("baselines", {})

        for key, score in self.scores.items():
            if key not in values:
                continue
            score.value = score.factor * float(values[key])
            if not math.isfinite(score.value):
                raise ValueError(f"{self.folder}: the score {key} is not a number")
            name = key.rpartition("/")[2]
            majority = majorities.get(key, majorities.get(name))
            if majority is not None:
                score.majority = score.factor * float(majority)
            score.baselines = {}
            for method, figures in baselines.items():
                if name in figures:
                    score.baselines[method] = score.factor * float(figures[name])

    @property
    def problem(self) -> str:
        """Why it failed, in one line."""
        return " ".join((self.error or "").split())

    @property
    def command(self) -> str:
        """The command line that goes on with this run; "" for one without Hydra."""
        if not self.config_name:
            return ""
        return command_line(["clozelab", *words_to_go_on(self.argv)], self.started_in)

    @property
    def argv(self) -> list[str]:
        """Its arguments behind `clozelab`."""
        arguments = [self.stage]
        if self.config_dir:
            arguments += ["--config-dir", self.config_dir]
        arguments += permission_for(self.config)
        if self.config_name == self.stage:
            return arguments + self.overrides
        # A configuration of another name may say of itself that it is a sweep.
        return [*arguments, "--config-name", self.config_name, *self.overrides, "hydra.mode=RUN"]


def _name_in(config: PlainMapping) -> str:
    return str(config.get("row", config.get("arm", "")))


def _task_in(config: PlainMapping) -> str:
    if "row" not in config:
        return ""
    return str(_task_or_measure(config).get("name", ""))


def _task_or_measure(config: ReadOnlyJson) -> ReadOnlyJson:
    node: ReadOnlyJson = config.get("task") or config.get("measure") or {}
    return node


def words_to_go_on(argv: Iterable[str]) -> list[str]:
    """Return arguments without those that would stop a run again, or remove it."""
    kept = []
    for word in argv:
        key, _, value = word.partition("=")
        # A reproduction says pretrain.reuse=never.
        name = key.lstrip("+").rpartition(".")[2]
        if name != "stop_after_step" and (name, value) != ("reuse", "never"):
            kept.append(word)
    return kept


def command_line(argv: Sequence[str], started_in: str) -> str:
    """Return a command line for a shell; from another folder it first goes to `started_in`."""
    line = shlex.join(argv)
    if Path(started_in).absolute() == Path.cwd():
        return line
    return f"cd {shlex.quote(started_in)} && {line}"


def read_record(folder: Path) -> Record | None:
    """Return the record of a run folder, or None where there is none.

    ValueError where it is no run's of this version.
    """
    path = folder / RUN_FILE
    try:
        record = Record.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "it"
        raise ValueError(
            f"{path} cannot be read as the record of a run of this version"
            f" ({field}: {first['msg']}); remove the folder to run again, or give run_dir another"
            " name"
        ) from error
    record.folder = folder
    return record


def write_record(record: Record) -> None:
    """Write run.json in the record's folder."""
    write_json(record.folder / RUN_FILE, record.model_dump())


def write_json(path: Path, value: object) -> None:
    """Write a JSON file in one rename, so that a reader never sees half of it."""
    atomic_write_lines(path, [json.dumps(value, indent=2, ensure_ascii=False)])


def now() -> str:
    """Return the time as records have it: ISO 8601, UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def changes(old: Record, new: Record) -> str:
    """Say what makes the fingerprints of two records differ, a line for each key."""
    before = _fingerprinted(old)
    after = _fingerprinted(new)
    lines = []
    for key in dict.fromkeys([*before, *after]):
        old_value = before.get(key, "(none)")
        new_value = after.get(key, "(none)")
        if old_value != new_value:
            lines.append(f"  {key}: there {old_value!r}, now {new_value!r}")
    return "\n".join(lines) or "  (the recorded fingerprint does not fit its own record)"


def _fingerprinted(record: Record) -> PlainDict:
    """Return what a record's fingerprint is of (store.new_record), by names for people."""
    inputs = {f"input {name}": checksum for name, checksum in record.inputs.items()}
    return {**identity_of(record.config), **inputs, "results_version": record.results_version}
