"""What a paper claims about its table, as paper.yaml says it: four kinds, told apart by their keys.

- order: `compare: [row, row, column]`, `direction: lower|higher`: the first row against the second, or against each of
  several (`compare: [row, [row, row], column]`): better than the best of them is better than each;
- monotone: `rows: [...]`, `column: C`, `direction: increasing|decreasing`: every row against the one before it;
- spread: `rows: [...]`, `column: C`, `direction: within`, `points: 1.0`: no two rows differ by more than that;
- difference of differences: `compare: [a, b, C1]`, `against: [a, b, C2]`, `direction`: the first difference against
  the second one.

What an experiment's files name has to be there: tasks, scores, settings, the files of its rows and arms.

A slip of the pen in them costs nothing until the last job has run, and then a column or a row is empty. So it is looked
for whenever an experiment is opened, by reading files alone: nothing is composed and torch is not imported.
"""

from __future__ import annotations

import difflib
import fnmatch
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache, cached_property
from itertools import combinations, pairwise
from pathlib import Path, PurePosixPath
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml  # type: ignore[import-untyped]

from clozelab.config import CONF_DIR, FinetuneConfig, PretrainConfig
from clozelab.launch.overrides import find_file
from clozelab.metrics.glue import SCORERS
from clozelab.runs.fingerprint import flatten
from clozelab.suggestions import hint

ALL_COLUMNS = "all"
ORDER, MONOTONE, SPREAD, CONTRAST = "order", "monotone", "spread", "difference of differences"
DIRECTIONS = {
    ORDER: ("lower", "higher"),
    MONOTONE: ("increasing", "decreasing"),
    SPREAD: ("within",),
    CONTRAST: ("lower", "higher"),
}
FALLING, RISING = ("lower", "decreasing"), ("higher", "increasing")
SHAPE = "[row, row, column]"
SHAPE_OF_ORDER = f"{SHAPE} or [row, [row, row], column]"


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper that runs can support or contradict.

    Attributes:
        rows: that it is about, in the claimed order.
        column: a column's name, or ALL_COLUMNS.
        direction: one of DIRECTIONS of its kind; of the number, not of what is good: a perplexity decreases.
        paper_delta: the paper's difference, in the column's unit; None where it has no single one.
        against: row, row and column of the difference that a CONTRAST subtracts.
        points: of a SPREAD: by how much rows may differ.
    """

    id: str
    text: str
    kind: str
    rows: tuple[str, ...]
    column: str
    direction: str
    paper_delta: float | None
    against: tuple[str, str, str] | None = None
    points: float = 0.0

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(row, row) of the differences that the claim is about, first - second."""
        if self.kind == MONOTONE:
            return [(later, earlier) for earlier, later in pairwise(self.rows)]
        return (
            list(combinations(self.rows, 2)) if self.kind == SPREAD else [(self.rows[0], row) for row in self.rows[1:]]
        )

    @property
    def is_lower(self) -> bool:
        """Whether the claimed sign of a difference is negative; says nothing of a SPREAD."""
        return self.direction in FALLING

    def in_words(self) -> str:
        """The claimed direction, where no size can be compared."""
        words = {"increasing": "rising", "decreasing": "falling", "within": f"within {self.points:g}"}
        return words.get(self.direction, self.direction)


def checked(entry: Any, keys: Iterable[str], where: str, optional: Iterable[str] = ()) -> dict[str, Any]:
    """The entry as a dictionary.

    Raises:
        ValueError: it has other keys than `keys`, of which `optional` are allowed beside.
    """
    needed = set(keys)
    if not isinstance(entry, Mapping) or set(entry) - set(optional) != needed:
        found = sorted(map(str, entry)) if isinstance(entry, Mapping) else repr(entry)
        raise ValueError(f"{where}: needs exactly the keys {sorted(needed)}, has {found}")
    return {str(key): value for key, value in entry.items()}


def load_claim(entry: Any, rows: Iterable[str], units: Mapping[str, str], where: str) -> Claim:
    """Read and check one entry of `claims`.

    Args:
        entry: as in the file.
        rows: names of the table's rows.
        units: column -> unit of its numbers.
        where: file and entry, for the message.

    Raises:
        ValueError: names the entry and what is wrong with it.
    """
    known = sorted(rows), list(units)
    if isinstance(entry, Mapping) and "rows" in entry:
        return _about_rows(entry, *known, where)
    is_contrast = isinstance(entry, Mapping) and "against" in entry
    kind = CONTRAST if is_contrast else ORDER
    keys = ("id", "text", "paper_delta", "compare", "direction", *(("against",) if is_contrast else ()))
    one = checked(entry, keys, where)
    common = _common(one, kind, where)
    if not is_contrast:
        row, others, column = _order(one["compare"], *known, where)
        return _of_one_size(Claim(kind=kind, rows=(row, *others), column=column, **common), where)
    first, second, column = _compared(one["compare"], *known, where, "compare")
    against = _compared(one["against"], *known, where, "against")
    if units[column] != units[against[2]]:
        raise ValueError(
            f"{where}: compare is in {units[column]} ({column}) and against in {units[against[2]]} ({against[2]}); "
            "one cannot be subtracted from the other"
        )
    if against == (first, second, column):
        raise ValueError(f"{where}: against is the same difference as compare")
    return Claim(kind=kind, rows=(first, second), column=column, against=against, **common)


def _about_rows(entry: Mapping[Any, Any], rows: list[str], columns: list[str], where: str) -> Claim:
    kind = SPREAD if entry.get("direction") in DIRECTIONS[SPREAD] else MONOTONE
    keys = ("id", "text", "paper_delta", "rows", "column", "direction", *(("points",) if kind == SPREAD else ()))
    one = checked(entry, keys, where)
    names = one["rows"] if isinstance(one["rows"], list) else []
    if len(names) < 2 or len(set(map(str, names))) < len(names):
        raise ValueError(f"{where}: rows needs two or more different rows, has {one['rows']!r}")
    for name in names:
        _known(name, rows, where, "rows", "rows")
    _known(one["column"], [*columns, ALL_COLUMNS], where, "column", "columns")
    points = one.get("points", 0.0)
    if kind == SPREAD and (not _is_number(points) or points <= 0):
        raise ValueError(f"{where}: points is {points!r}; it is a number above 0, in the column's unit")
    common = _common(one, kind, where)
    rows_named, column = tuple(map(str, names)), str(one["column"])
    return _of_one_size(Claim(kind=kind, rows=rows_named, column=column, points=float(points), **common), where)


def _of_one_size(claim: Claim, where: str) -> Claim:
    """The claim itself; the paper's number can stand beside one difference only."""
    if claim.paper_delta is not None and (len(claim.rows) > 2 or claim.column == ALL_COLUMNS):
        raise ValueError(f"{where}: paper_delta is {claim.paper_delta}; of several differences it is null")
    return claim


def _common(one: Mapping[str, Any], kind: str, where: str) -> dict[str, Any]:
    allowed = DIRECTIONS[kind] if kind != MONOTONE else (*DIRECTIONS[MONOTONE], *DIRECTIONS[SPREAD])
    if one["direction"] not in allowed:
        raise ValueError(f"{where}: direction is {one['direction']!r}; it is one of {', '.join(allowed)}")
    delta = one["paper_delta"]
    if delta is not None and not _is_number(delta):
        raise ValueError(f"{where}: paper_delta is {delta!r}; it is a number in the column's unit, or null")
    if delta and one["direction"] in (FALLING if delta > 0 else RISING):
        raise ValueError(
            f"{where}: paper_delta is {delta}, and direction is {one['direction']}: the paper's own number would "
            "contradict its claim; one of the two is wrong"
        )
    return {"id": str(one["id"]), "text": str(one["text"]), "direction": one["direction"], "paper_delta": delta}


def _order(value: Any, rows: list[str], columns: list[str], where: str) -> tuple[str, list[str], str]:
    """(the row, those that it is compared with, the column)."""
    others = value[1] if isinstance(value, list) and len(value) == 3 else None
    if not isinstance(others, list):
        first, second, column = _compared(value, rows, [*columns, ALL_COLUMNS], where, "compare", SHAPE_OF_ORDER)
        return first, [second], column
    if len(others) < 2 or len(set(map(str, others))) < len(others):
        raise ValueError(f"{where}: compare is {SHAPE_OF_ORDER}, with different rows in the list, not {value!r}")
    for other in others:
        _compared([value[0], other, value[2]], rows, [*columns, ALL_COLUMNS], where, "compare", SHAPE_OF_ORDER)
    return str(value[0]), list(map(str, others)), str(value[2])


def _compared(
    value: Any, rows: list[str], columns: list[str], where: str, key: str, shape: str = SHAPE
) -> tuple[str, str, str]:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError(f"{where}: {key} is {shape}, not {value!r}; rows are {rows}, columns {columns}")
    for name in value[:2]:
        _known(name, rows, where, f"{key} is {shape}", "rows")
    _known(value[2], columns, where, f"{key} is {shape}", "columns")
    if value[0] == value[1]:
        raise ValueError(f"{where}: {key} compares {value[0]!r} with itself")
    return str(value[0]), str(value[1]), str(value[2])


def _known(name: Any, known: list[str], where: str, key: str, what: str) -> None:
    if name not in known:
        raise ValueError(f"{where}: {key}: {name!r} is none of the {what}; {hint(str(name), known)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


STAGES = {"arm": ("pretrain", PretrainConfig), "row": ("finetune", FinetuneConfig)}
"""Kind of file -> the stage that it is a part of, and that stage's keys."""
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
SCORED_ON = ("validation", "test")
"""What a score's key begins with; ours are on validation sets, a record from elsewhere may have another."""
SPAN_SCORES = ("exact_match", "f1")
SPAN_SCORES_WITH_UNANSWERABLE = (
    *("exact", "f1", "threshold", "exact_untuned", "f1_untuned"),
    *("HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"),
    *("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh", "pr_exact_ap", "pr_f1_ap", "pr_oracle_ap"),
)
ENTITY_SCORES, TAG_SCORES = ("f1", "precision", "recall", "accuracy"), ("accuracy",)
"""As `score_keys` of the modules have them, which import torch."""
HELD_OUT = ("validation/loss", "validation/perplexity", "validation/accuracy")
FACTS = (
    *HELD_OUT,
    *("flops", "mfu", "parameters", "steps", "tokens", "tokens_per_second", "training_seconds", "unigram_entropy"),
    *("matmul_ceiling", "total_steps", "world_size"),
)
"""Numbers in every pre-training run's record; the terms of its objective add theirs."""
SAME_BEGINNING = 0.85
"""How much alike two keys have to be that both begin with "validation/", to be taken for one."""
SAME_WORD = 0.85
"""How much alike two names have to be for one to be a slip of the other: a letter of six or more."""
IS_NO_NAME = "$(*?[{"
"""What stands in a sweep's value that is no plain list of names."""


def read_plain(path: Path) -> dict[str, Any]:
    """A YAML file as it is written; empty where it is no mapping. ValueError, with its name, where it is no YAML."""
    try:
        plain = yaml.load(path.read_text(encoding="utf-8"), LOADER)  # a safe loader, in C where there is one
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    return {str(key): value for key, value in plain.items()} if isinstance(plain, dict) else {}


class Tasks:
    """The tasks that an experiment's fine-tuning finds: its own, those on its sweeps' search path, those of conf/."""

    def __init__(self, experiment: Path) -> None:
        self.folders = [experiment, *_search_path(experiment), CONF_DIR]

    @cached_property
    def names(self) -> set[str]:
        return {path.stem for folder in self.folders for path in (folder / "task").glob("*.yaml")}

    def check(self, name: str, where: str) -> None:
        """ValueError for a name that is a task's but for a slip of the pen.

        Any other unknown one may be on a search path of the command line, or a data set that nothing here can read.
        """
        if name not in self.names and self._is_slip(name):
            raise ValueError(
                f"{where} {name!r} is no task; {hint(name, self.names)} (one of your own is task/{name}.yaml in the "
                "experiment's folder, or in one that hydra.searchpath in sweep_finetune.yaml names)"
            )

    def _is_slip(self, name: str) -> bool:
        """Whether a task is called so but for a letter or two; `anli` and `conll` are no slips of `mnli` and `cola`."""
        swapped = {"".join(sorted(one)) for one in self.names}
        return "".join(sorted(name)) in swapped or bool(difflib.get_close_matches(name, self.names, cutoff=SAME_WORD))

    def check_metric(self, task: str, metric: str, where: str) -> None:
        """ValueError for a score that the task's runs do not have, as far as its file says which they have."""
        names = self._scores(task)
        if names and metric not in {f"{split}/{name}" for split in SCORED_ON for name in names}:
            known = [f"{SCORED_ON[0]}/{name}" for name in names]
            raise ValueError(f"{where} {metric!r} is no score of {task}; {hint(metric, known, cutoff=SAME_BEGINNING)}")

    def _scores(self, task: str) -> Sequence[str]:
        """What a task's runs write into scores.json; nothing where that cannot be told."""
        whole = self._read(task)
        module, data = whole.get("module") or {}, whole.get("data") or {}
        kind = str(module.get("_target_")).rpartition(".")[2]
        if kind == "SpanExtraction":
            return SPAN_SCORES_WITH_UNANSWERABLE if data.get("with_unanswerable") else SPAN_SCORES
        if kind in ("TokenClassification", "FeatureBased"):
            return ENTITY_SCORES if data.get("entity_tags") else TAG_SCORES
        own = module.get("metrics")
        if not isinstance(own, list) or not set(own) <= SCORERS.keys():
            return ()
        return [*own, *(f"{name}_{key}" for name in data.get("extra_validation_files") or () for key in own)]

    def _read(self, name: str) -> dict[str, Any]:
        """A task's file on those that its defaults list lays below it; empty where that takes more than laying."""
        path = find_file(self.folders, "task", name)
        if path is None:
            return {}
        own = read_plain(path)
        entries = own.pop("defaults", ["_self_"])
        whole: dict[str, Any] = {}
        for entry in entries if "_self_" in entries else [*entries, "_self_"]:
            text, _, package = str(entry).partition("@")
            if text != "_self_" and (not isinstance(entry, str) or package != "_here_"):
                return {}
            part = own if text == "_self_" else self._read(str(PurePosixPath(name).parent / text))
            whole = _laid_over(whole, part)
        return whole


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(below)
    for key, value in above.items():
        first = found.get(key)
        found[key] = _laid_over(first, value) if isinstance(first, dict) and isinstance(value, dict) else value
    return found


def _search_path(experiment: Path) -> list[Path]:
    """Folders that the sweeps' own `hydra.searchpath` names."""
    found: list[str] = []
    for path in experiment.glob("sweep_*.yaml"):
        found += (read_plain(path).get("hydra") or {}).get("searchpath") or []
    return [Path(one.removeprefix("file://")) for one in found if "$" not in one and not one.startswith("pkg:")]


def check_fact(metric: str, experiment: Path, where: str) -> None:
    """ValueError for what is no number in a pre-training run's record."""
    pairs = {path.stem for folder in (experiment, CONF_DIR) for path in (folder / "objective/pair").glob("*.yaml")}
    known = [*FACTS, *(f"validation/{pair}_{what}" for pair in sorted(pairs) for what in ("loss", "accuracy"))]
    by_source = [f"validation/{pair}_accuracy/*" for pair in pairs]
    if metric not in known and not any(fnmatch.fnmatchcase(metric, one) for one in by_source):
        raise ValueError(
            f"{where} {metric!r} is no fact of a pre-training run; {hint(metric, known, cutoff=SAME_BEGINNING)}"
        )


def check_setting(key: str, where: str) -> None:
    """ValueError for a dotted key (`phases.*.steps`, or a whole part) that neither training stage has."""
    missing = [missing_part(schema, key) for _, schema in STAGES.values()]
    if None not in missing:
        known = {name for part, names in filter(None, missing) for name in names}
        raise ValueError(f"{where} neither pretrain nor finetune has a key {key!r}; {hint(key, known)}")


def missing_part(schema: Any, key: str) -> tuple[str, list[str]] | None:
    """(the beginning of a dotted key that a schema does not have, what it has instead); None where it has it all.

    What is below a free-form part is its target's matter (`check_targets`).
    """
    kind, before = schema, ""
    for part in key.split("."):
        if isinstance(kind, types.UnionType) or get_origin(kind) is Union:
            kind = next(one for one in get_args(kind) if one is not types.NoneType)
        here = f"{before}{part}"
        if isinstance(kind, type) and is_dataclass(kind):
            fields = _fields(kind)
            names = fnmatch.filter(fields, part)
            if not names:
                return here, [f"{before}{name}" for name in fields]
            kind = fields[names[0]]
        elif get_origin(kind) is list:
            if not part.isdigit() and part != "*":
                return here, [f"{before}*"]
            kind = get_args(kind)[0]
        else:
            return None if get_origin(kind) is dict else (here, [before.rstrip(".")])
        before = f"{here}."
    return None


@cache
def _fields(schema: type) -> dict[str, Any]:
    return get_type_hints(schema)


def check_files(experiment: Path, arms: Mapping[str, str | None]) -> None:
    """ValueError for a key that an arm's, a row's or a sweep's file has and its stage has not, for a name in them that
    no file has, and for an arm or a row that its own file calls otherwise.

    Args:
        experiment: its folder.
        arms: row -> its arm, as paper.yaml has them.
    """
    known = {kind: {path.stem for path in (experiment / kind).glob("*.yaml")} for kind in STAGES}
    for kind, (stage, schema) in STAGES.items():
        for name in sorted(known[kind]):
            path = experiment / kind / f"{name}.yaml"
            said = read_plain(path)
            if "@package _global_" in path.read_text(encoding="utf-8"):
                _check_keys(path, said, stage, schema)
                _check_name(path, said, kind)
            if kind == "row":
                _check_encoder(path, said, known["arm"])
                if name in arms:
                    _check_arm(path, said, arms[name])
        _check_sweep(experiment, kind, known[kind])


def _check_keys(path: Path, said: Mapping[str, Any], stage: str, schema: type) -> None:
    for key in flatten({name: value for name, value in said.items() if name not in ("defaults", "hydra")}):
        if missing := missing_part(schema, key):
            raise ValueError(f"{path}: {stage} has no key {missing[0]!r}; {hint(missing[0], missing[1])}")


def _check_name(path: Path, said: Mapping[str, Any], kind: str) -> None:
    """Run folders are called as the file says, and looked for by the file's name."""
    own = said.get(kind, path.stem)
    if "${" not in str(own) and str(own) != path.stem:
        raise ValueError(f"{path}: it says {kind}: {own!r}; {kind}s are called as their files, so {path.stem!r}")


def _check_encoder(path: Path, said: Mapping[str, Any], known: set[str]) -> None:
    arm = said.get("encoder_arm")
    if arm is not None and "${" not in str(arm) and known and str(arm) not in known:
        raise ValueError(f"{path}: encoder_arm {arm!r} has no file arm/{arm}.yaml; {hint(str(arm), known)}")


def _check_arm(path: Path, said: Mapping[str, Any], arm: str | None) -> None:
    """The encoder that a row takes is the one whose cost and facts the report gives it; a floor has only its shape."""
    taken = said.get("encoder_arm", "${")
    is_floor = arm is None and said.get("initialisation") != "pretrained"
    if "${" not in str(taken) and taken != arm and not is_floor:
        words = [f"{one!r}" if one is not None else "null" for one in (taken, arm)]
        raise ValueError(f"{path}: encoder_arm is {words[0]}, and paper.yaml says arm: {words[1]} of this row")


def _check_sweep(experiment: Path, kind: str, known: set[str]) -> None:
    """What the sweep of a stage says that it sweeps."""
    stage, schema = STAGES[kind]
    path = experiment / f"sweep_{stage}.yaml"
    said = read_plain(path) if path.is_file() else {}
    hydra = said.get("hydra") or {}
    if not hydra.get("searchpath"):
        _check_keys(path, said, stage, schema)
    params = (hydra.get("sweeper") or {}).get("params") or {}
    for key in map(str, params):
        bare = key.lstrip("+~")
        missing = missing_part(schema, bare)
        is_group = any((folder / bare.partition("@")[0]).is_dir() for folder in (experiment, CONF_DIR))
        if missing and not is_group and "hydra" not in key and not hydra.get("searchpath"):
            raise ValueError(
                f"{path}: hydra.sweeper.params: {stage} has no key {key!r}; {hint(missing[0], missing[1])}"
            )
    value = str(params.get(kind) or "")
    for name in (one.strip("'\" ") for one in value.split(",") if value):
        if known and name not in known and not set(value) & set(IS_NO_NAME):
            raise ValueError(
                f"{path}: hydra.sweeper.params.{kind}: {name!r} has no file {kind}/{name}.yaml; {hint(name, known)}"
            )
