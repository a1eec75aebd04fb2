"""The record of a run, run.json: what was said, what it was made of, and how far it came.

Written when a run folder is claimed. One type for writing and for reading; a file that does not fit
it is damaged.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, Field, ValidationError

from clozelab.corpus.files import write_whole
from clozelab.runs.fingerprint import canonical, identity_of, redacted, redacted_words
from clozelab.training.measuring import read_rows

RUN_FILE, CONFIG_FILE, LOG_FILE, LOCK_FILE = "run.json", "config.yaml", "log.txt", ".lock"
COPY_FILE = ".run.json.copy"  # of run.json, for when that is damaged
# names of what is being written, below a run's folder
TEMPORARY = (".*.tmp", ".encoder.*", ".model.*", ".step-*")
# exit status of a command whose run folder another process holds: try again later
BUSY_STATUS = os.EX_TEMPFAIL
DAMAGED, KILLED = "damaged", "killed"
STATUSES = ("complete", "running", KILLED, "interrupted", "failed", DAMAGED)
"""`killed` and `damaged` are never written: a reader says so of a run that no process holds, and of
a bad file.
"""
PERCENT: Final = "percent"
NO_UNIT: Final = ""
# of SQuAD 2.0, above which there is no answer
THRESHOLDS = ("threshold", "best_exact_thresh", "best_f1_thresh")


class Score(BaseModel):
    """A held-out figure of a run: what it is in and, at the end, its value."""

    unit: Literal["percent", "nats", "bits", "logits", ""]
    # times what metrics.csv and scores.json say: 100 where those have shares of one
    factor: float = 1.0
    value: float | None = None
    majority: float | None = None  # the figure of always answering what is most frequent
    baselines: dict[str, float] = {}  # simple method -> its figure on the same examples

    @classmethod
    def of(cls, key: str, *, are_shares: bool) -> Score:
        """By the figure's name; `are_shares` is of its scorer: 1 stands for 100 percent."""
        name = key.removeprefix("validation/").partition("/")[0]
        if name.endswith("loss"):
            return cls(unit="nats")
        if name.endswith("perplexity"):
            return cls(unit=NO_UNIT)
        if name.startswith("bits_"):
            return cls(unit="bits")
        if name in THRESHOLDS:
            return cls(unit="logits")
        return cls(unit=PERCENT, factor=100.0 if are_shares else 1.0)


class Process(BaseModel):
    pid: int
    host: str


class Git(BaseModel):
    commit: str
    dirty: bool


class Shared(BaseModel):
    """The equal run that this record speaks for: its folder as seen from here, its fingerprint, its
    encoder's.
    """

    run: str
    fingerprint: str
    weights: str


class JobName(NamedTuple):
    """What a run is found by: arm or row, task or measure ("" in pre-training), seeds ("1"; of two
    stages "1/2").
    """

    name: str
    task: str
    seeds: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> JobName:
        """By a resolved configuration; empty where that does not say."""
        if "row" in config:
            seeds = f"{config.get('pretrain_seed', '')}/{config.get('seed', '')}"
            about = config.get("task") or config.get("measure") or {}
            return cls(str(config["row"]), str(about.get("name", "")), seeds)
        return cls(str(config.get("arm", "")), "", str(config.get("seed", "")))


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
    arm_delta: dict[str, Any] = {}
    row_delta: dict[str, Any] = {}

    status: str = Field(pattern="^(complete|running|interrupted|failed)$")
    stage: str = Field(pattern="^(pretrain|finetune|evaluate)$")
    scale: str
    metric: str = ""  # the headline's key in `scores`
    scores: dict[str, Score] = {}
    fingerprint: str
    results_version: int
    home: str = ""  # the folder that it was made in, below runs_dir; a copy lies elsewhere
    config: dict[str, Any]  # resolved, without what cannot change a result; secrets as hashes
    inputs: dict[str, str]  # name -> checksum of everything that was read
    watched: dict[str, tuple[int, ...]]  # files -> what tells whether they were touched
    started: str
    finished: str | None = None
    seconds: float = 0.0
    sessions: int = 1
    error: str | None = None
    facts: dict[str, Any] = {}
    process: Process | None = None
    code: str = ""  # hash of what computes it (fingerprint.code_hash), of the last session
    # the same module by module: arms that use others may be compared in those of both
    modules: dict[str, str] = {}
    # what else decides the last digits: Python, torch, numpy, tokenizers, kernels
    environment: dict[str, str] = {}
    versions: dict[str, str] = {}
    git: Git | None = None
    host: dict[str, Any] = {}
    # each other code, set of versions and machine that trained it, once
    earlier_sessions: list[dict[str, Any]] = []
    shared: Shared | None = None

    folder: Path = Field(default=Path(), exclude=True)
    place: str = Field(default="", exclude=True)  # the folder below the place that was searched
    holder: int | None = Field(default=None, exclude=True)  # process that holds the folder now

    @property
    def is_complete(self) -> bool:
        return self.status == "complete"

    @property
    def predicts(self) -> str:
        """The tokens that its held-out loss is over: those of the last phase's objective."""
        last = (
            (self.config.get("phases") or [{}])[-1].get("objective")
            or self.config.get("objective")
            or {}
        )
        return str(last.get("token"))

    @property
    def experiment(self) -> str:
        return str(self.config.get("experiment", ""))

    @property
    def job_name(self) -> JobName:
        return JobName.of(self.config)

    @property
    def name(self) -> str:
        """Arm of a pre-training run, row of a fine-tuning run."""
        return self.job_name.name

    @property
    def task(self) -> str:
        return self.job_name.task

    @property
    def seeds(self) -> str:
        return self.job_name.seeds

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def pretrain_seed(self) -> int:
        return int(self.config.get("pretrain_seed", self.config["seed"]))

    @property
    def machine(self) -> str:
        """The name of the machine that it ended on."""
        return self.process.host if self.process else ""

    @property
    def learning_rate(self) -> float | None:
        return self.config.get("learning_rate")

    @property
    def title(self) -> str:
        about = self.config.get("task") or self.config.get("measure") or {}
        return str(self.facts.get("title") or about.get("title") or self.task)

    @property
    def synthetic(self) -> str | None:
        """Name of the generated world that wrote the task's files, or the corpus."""
        corpus = self.config.get("corpus") or {}
        return self.facts.get("synthetic") or (
            str(corpus["name"]) if corpus.get("generator") else None
        )

    @property
    def score(self) -> float | None:
        return self.scores[self.metric].value if self.metric in self.scores else None

    @cached_property
    def values(self) -> dict[str, float]:
        """Key -> value of every score that there is, each in its unit."""
        return {key: one.value for key, one in self.scores.items() if one.value is not None}

    @cached_property
    def figures(self) -> dict[str, Any]:
        """What a column may show of a run, in its unit: scores; of a pre-training every fact, and
        shares in percent.
        """
        if self.stage != "pretrain":
            return dict(self.values)
        factors = {
            key: Score.of(key, are_shares=True).factor
            for key in self.facts
            if key.startswith("validation/")
        }
        return {
            key: factors[key] * one if key in factors else one for key, one in self.facts.items()
        }

    @cached_property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Held-out figure -> [(tokens, value)] from the run's metrics.csv."""
        curves: dict[str, list[tuple[int, float]]] = {}
        for row in read_rows(self.folder / "metrics.csv"):
            if row.key.startswith("validation/"):
                curves.setdefault(row.key, []).append((row.tokens, row.value))
        return curves

    def take(self, results: Mapping[str, Any]) -> None:
        """Put what scores.json says of every figure into its score, in its unit; ValueError for
        what is no number.
        """
        majority = results.get("majority_baseline")
        majorities = majority if isinstance(majority, Mapping) else {self.metric: majority}
        found = results.get("scores", {})
        for key, one in ((key, one) for key, one in self.scores.items() if key in found):
            name, one.value = key.rpartition("/")[2], one.factor * float(found[key])
            if not math.isfinite(one.value):
                raise ValueError(f"{self.folder}: the score {key} is not a number")
            if (usual := majorities.get(key, majorities.get(name))) is not None:
                one.majority = one.factor * float(usual)
            methods = results.get("baselines", {})
            one.baselines = {
                method: one.factor * float(of[name]) for method, of in methods.items() if name in of
            }

    @property
    def problem(self) -> str:
        """Why it failed, in one line."""
        return " ".join((self.error or "").split())

    @property
    def command(self) -> str:
        """The command line that makes or goes on with this run; empty where nothing was said."""
        return command_line(["clozelab", *self.words], self.started_in) if self.config_name else ""

    @property
    def words(self) -> list[str]:
        """The same behind `clozelab`."""
        words = [self.stage, *(["--config-dir", self.config_dir] if self.config_dir else [])]
        # A configuration of another name may say of itself that it is a sweep.
        named = ["--config-name", self.config_name, *self.overrides, "hydra.mode=RUN"]
        return [*words, *(named if self.config_name != self.stage else self.overrides)]


def command_line(words: Sequence[str], started_in: str) -> str:
    """Words for a shell; from another folder it goes to the one they were said in."""
    line = shlex.join(words)
    return (
        line
        if Path(started_in).absolute() == Path.cwd()
        else f"cd {shlex.quote(started_in)} && {line}"
    )


def read_record(folder: Path) -> Record | None:
    """The record of a run folder, or its copy where that is damaged, which the next write makes the
    record again; None where there is none, ValueError where neither is a run's of this version."""
    path = folder / RUN_FILE
    try:
        record = Record.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        with suppress(OSError, ValidationError):
            found = Record.model_validate_json((folder / COPY_FILE).read_bytes())
            logging.getLogger(__name__).warning(
                "%s is damaged; its copy %s is read instead", path, COPY_FILE
            )
            return found.model_copy(update={"folder": folder})
        first = error.errors()[0]
        wrong = f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}"
        said = f"{path} is damaged, or not the record of a run of this version ({wrong})"
        raise ValueError(
            f"{said}; remove the folder to run again, or give run_dir another name"
        ) from error
    record.folder = folder
    return record


def write_record(record: Record) -> None:
    """Write run.json in the record's folder, and its copy."""
    for name in (COPY_FILE, RUN_FILE):
        write_json(record.folder / name, record.model_dump())


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file in one rename, so that a reader never sees half of it."""
    write_whole(path, [json.dumps(value, indent=2, ensure_ascii=False)])


def plain_config(config: DictConfig) -> dict[str, Any]:
    """`canonical`, as a record holds it: what JSON makes of it."""
    return dict(json.loads(json.dumps(canonical(config))))


def what_was_said() -> dict[str, Any]:
    """Those fields of a record that say what Hydra composed the configuration of this process from;
    none without it.
    """
    from hydra.core.hydra_config import HydraConfig  # lazy: a run without Hydra needs none of it

    if not HydraConfig.initialized():
        return {}
    hydra = HydraConfig.get()
    choices = {
        str(key): str(value)
        for key, value in hydra.runtime.choices.items()
        if "hydra/" not in str(key)
    }
    search_path = [word for word in hydra.overrides.hydra if word.startswith("hydra.searchpath=")]
    given = [
        str(one.path) for one in hydra.runtime.config_sources if one.provider == "command-line"
    ]
    groups = {"arm": "arm", "row": "row", "measured": "row"}
    deltas = {
        f"{kind}_delta": read_delta(one, choices[one])
        for one, kind in groups.items()
        if one in choices
    }
    return deltas | {
        "started_in": str(Path.cwd()),
        "config_dir": next(iter(given), ""),
        "config_name": str(hydra.job.config_name),
        "overrides": redacted_words([*hydra.overrides.task, *search_path]),
        "choices": choices,
    }


def read_delta(group: str, choice: str, *, with_parts: bool = True) -> dict[str, Any]:
    """What the node of one group's choice itself says: dotted key -> value, "/group" -> choice.

    Also what a file says that it chooses, or lays over a part (`/task/format/features@task`); and
    where that is of the whole configuration (`# @package _global_`: recipe, architecture) all that
    this chooses. Without `with_parts` what a chosen file says of its own group (`model: mini` of
    its sizes) is left out."""
    from hydra.core.hydra_config import HydraConfig

    sources = HydraConfig.get().runtime.config_sources
    places = tuple(
        (str(one.provider), f"{one.schema}://{one.path}") for one in sources if one.schema
    )
    return dict(_read_delta(places, group, choice, with_parts))


@cache
def _read_delta(
    places: tuple[tuple[str, str], ...], group: str, choice: str, with_parts: bool
) -> dict[str, Any]:
    from hydra._internal.config_repository import ConfigRepository
    from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
    from hydra.core.default_element import ConfigDefault, GroupDefault

    search_path = ConfigSearchPathImpl()
    for provider, path in places:
        search_path.append(provider, path)
    repository = ConfigRepository(search_path)

    def leaves(node: Any, where: str) -> Iterator[tuple[str, Any]]:
        if not isinstance(node, dict) or not node:
            yield where, node
            return
        for key, value in node.items():
            yield from leaves(value, f"{where}.{key}" if where else str(key))

    def said(config: Any, where: str) -> dict[str, Any]:
        node = redacted(OmegaConf.to_container(config, resolve=False))
        return dict(leaves(node, where)) if node else {}

    def lay_over(delta: dict[str, Any], more: Mapping[str, Any]) -> None:
        """A value replaces what was said inside of it, `architecture.pooler: null` all of a
        pooler.
        """
        for old, new in product([*delta], more):
            if old.startswith(f"{new}.") or new.startswith(f"{old}."):
                delta.pop(old, None)
        delta.update(more)

    def read(group: str, choice: str) -> dict[str, Any]:
        if (found := repository.load_config(f"{group}/{choice}")) is None:
            return {}
        delta: dict[str, Any] = {}
        for one in found.defaults_list or ():
            if isinstance(one, ConfigDefault) and one.package:
                laid = repository.load_config(str(one.path).lstrip("/"))
                lay_over(delta, said(laid.config, one.package) if laid else {})
            elif isinstance(one, ConfigDefault) and one.path != "_self_":
                lay_over(delta, read(group, str(one.path)))
            if isinstance(one, GroupDefault) and isinstance(one.value, str):
                name = (
                    str(one.group).lstrip("/")
                    if str(one.group).startswith("/")
                    else f"{group}/{one.group}"
                )
                delta[f"/{name}"] = one.value
                if chosen := repository.load_config(f"{name}/{one.value}"):
                    if chosen.header.get("package") == "_global_":
                        lay_over(delta, read(name, one.value))
                    elif with_parts:
                        lay_over(delta, said(chosen.config, name.replace("/", ".")))
        lay_over(delta, said(found.config, ""))
        return delta

    return read(group, choice)


def shown_config(config: DictConfig) -> str:
    """The configuration as composed, unresolved, without literal secrets."""
    return OmegaConf.to_yaml(
        OmegaConf.create(redacted(OmegaConf.to_container(config, resolve=False)))
    )


def now() -> str:
    """The time as records have it: ISO 8601, UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def changes(old: Record, new: Record) -> str:
    """What makes the fingerprints of two records differ, a line for each key."""
    said = []
    for one in (old, new):
        inputs = {f"input {name}": checksum for name, checksum in one.inputs.items()}
        said.append(identity_of(one.config) | inputs | {"results_version": one.results_version})
    pairs = [
        (key, *(part.get(key, "(none)") for part in said))
        for key in dict.fromkeys([*said[0], *said[1]])
    ]
    lines = [
        f"  {key}: there {before!r}, now {after!r}"
        for key, before, after in pairs
        if before != after
    ]
    return "\n".join(lines) or "  (the recorded fingerprint does not fit its own record)"
