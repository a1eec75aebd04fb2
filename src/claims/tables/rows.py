"""Scores from a CSV or Parquet file: a line a score, or a line a run and a column a task.

The results.csv of a clozelab report is such a file, too.

A line a run is what W&B and MLflow export, too. MLflow writes `params.seed` and `metrics.f1`, where
a layout says `seed` and `f1`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path

from claims.tables.layout import DEFAULT_LAYOUT, ScoreLayout, ScoreRows
from claims.text.phrases import count_noun
from claims.text.safe_yaml import composed, utf8_text

# what a column is usually called, where a layout names none
USUAL_NAMES = {
    "arm": ("arm", "system", "model", "method"),
    "seed": ("pretrain_seed", "pretraining_seed", "pre_training_seed", "seed"),
    "finetuning_seed": ("finetuning_seed", "fine_tuning_seed", "finetune_seed"),
    "example": ("example", "item"),
}
# as pandas writes whether an example is right
TRUTH = {"true": "1", "false": "0"}
METRICS = "metrics."
PREFIXES = ("", "params.", METRICS, "tags.")
STATUS_NAMES = ("state", "status")  # in any case
# as W&B, MLflow, Optuna and Slurm call runs that have no score, or only that of a part
UNFINISHED = (
    "aborted",
    "cancelled",
    "canceled",
    "crashed",
    "error",
    "fail",
    "failed",
    "interrupted",
    "killed",
    "node_fail",
    "oom",
    "out_of_memory",
    "pending",
    "preempted",
    "pruned",
    "queued",
    "running",
    "scheduled",
    "timeout",
)
# pandas writes the numbers of lines into a column without a name, and reads it under another one
NUMBERS_OF_LINES = re.compile(r"|Unnamed: \d+(\.\d+)?")
# what separates cells where no comma does
DELIMITERS = ("\t", ";")
# columns by which the results.csv of a clozelab report is known
REPORT_COLUMNS = {"row", "column", "is_headline", "counts"}

# a line's number and its cells
NumberedRow = tuple[int, dict[str, str]]


def read_rows(path: Path, layout: ScoreLayout) -> ScoreRows:
    """Read a table of scores in long or wide form.

    Runs that an export calls unfinished are left out and counted. ValueError: a column is missing
    or there twice, or a line has too many cells.
    """
    read = _read_parquet if path.suffix == ".parquet" else _read_csv
    columns, rows = read(path)
    if not rows:
        raise ValueError(f"{path}: no line below the heading")
    notes: list[str] = []
    if set(columns) >= REPORT_COLUMNS:
        columns, rows, notes = _scores_of_report(rows)
    finished = list(filter(_is_finished, rows))
    if len(finished) < len(rows):
        notes.append(count_noun(len(rows) - len(finished), "unfinished run"))

    names = _names_of_columns(path, layout, columns)
    if layout.tasks or not {layout.task, layout.score} & set(columns):
        tasks = {task: _column(path, task, columns) for task in layout.tasks}
        assumed_tasks: list[str] = []
        if not tasks:
            tasks = _other_columns(columns, names.values())
            _check_numbers(path, finished, tasks)
            assumed_tasks = list(tasks)
        long_rows = list(_long_rows(finished, names, tasks))
        return ScoreRows(long_rows, notes=notes, assumed_tasks=assumed_tasks)
    for name, column in (("task", layout.task), ("score", layout.score)):
        names[name] = _column(path, column, columns)
    for name in ("metric", "unit", "higher_is_better"):
        if name in columns:
            names[name] = name
    named = [_named(row, names) for row in finished]
    return ScoreRows(named, notes=notes, has_units="unit" in columns)


def _names_of_columns(path: Path, layout: ScoreLayout, columns: Sequence[str]) -> dict[str, str]:
    """Our name of a column -> the file's. ValueError: arm or seed is missing, or one named here."""
    names = {}
    for name in USUAL_NAMES:
        column = _column_of(path, name, layout, columns)
        if column:
            names[name] = column
    # Beside a pre-training seed, `seed` is that of the fine-tuning.
    seed = _find("seed", columns)
    is_free = layout.seed == DEFAULT_LAYOUT.seed and "finetuning_seed" not in names
    if is_free and seed and seed != names["seed"]:
        names["finetuning_seed"] = seed
    return names


def _column_of(path: Path, name: str, layout: ScoreLayout, columns: Sequence[str]) -> str | None:
    """The column that a layout names, or the first that is usually called so; None for neither.

    ValueError: the layout's column is missing, or two columns may name the arms.
    """
    named = getattr(layout, name)
    present = [usual for usual in USUAL_NAMES[name] if _find(usual, columns)]
    if not present or named != getattr(DEFAULT_LAYOUT, name):
        return _column(path, named, columns) if named else None
    if name == "arm" and len(present) > 1 and present[0] != "arm":
        raise ValueError(
            f"{path}: {' and '.join(present)} may both name the arms; say which one does:"
            f" `scores: {{arm: {present[0]}}}` in the file of claims (docs/judge.md)"
        )
    return _find(present[0], columns)


def _read_csv(path: Path) -> tuple[list[str], list[NumberedRow]]:
    text = composed(utf8_text(path))
    heading = text.partition("\n")[0]
    # Excel writes semicolons where a comma is the decimal sign.
    present = [sign for sign in DELIMITERS if sign in heading and "," not in heading]
    delimiter = present[0] if present else ","
    reader = csv.DictReader(StringIO(text), restval="", delimiter=delimiter)
    columns = list(reader.fieldnames or ())
    for name in columns:
        if columns.count(name) > 1:
            raise ValueError(f"{path}: two columns are called {name!r}")
    # The reader counts the lines that it has read, also inside a quoted cell.
    rows = [(reader.line_num, row) for row in reader]
    for number, row in rows:
        # Surplus cells are filed under the key None.
        if None in row:
            raise ValueError(f"{path}, line {number}: it has more cells than the heading")
    return columns, rows


def _read_parquet(path: Path) -> tuple[list[str], list[NumberedRow]]:
    try:
        from pyarrow import parquet  # an extra of the small wheel
    except ImportError:
        raise ValueError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from None
    table = parquet.read_table(path)
    rows = []
    for number, values in enumerate(table.to_pylist(), 1):
        texts = {}
        for name, value in values.items():
            texts[composed(name)] = "" if value is None else composed(str(value))
        rows.append((number, texts))
    return list(map(composed, table.column_names)), rows


def _scores_of_report(
    rows: Sequence[NumberedRow],
) -> tuple[list[str], list[NumberedRow], list[str]]:
    """The columns of a table in long form, the scores that count in a report's table, and notes.

    Lines of pre-trainings have no row, and are left out. So is a row on a data set where a run has
    collapsed: the report decides nothing there.
    """
    columns = ["arm", "pretrain_seed", "seed", "task", "metric", "unit", "score"]
    _, first = rows[0]
    if "higher_is_better" in first:  # not in reports of earlier versions
        columns.append("higher_is_better")
    scores = []
    collapsed: dict[tuple[str, str], None] = {}
    tasks_of_columns = {cells["task"] for _, cells in rows if cells["column"]}
    for number, cells in rows:
        if not _is_shown(cells, tasks_of_columns):
            continue
        task = cells["column"] if cells["column"] else cells["task"]
        scores.append((number, {**cells, "arm": cells["row"], "task": task}))
        if cells.get("collapsed") == "True":
            collapsed[cells["row"], task] = None
    notes = [f"{arm} on {task}, where runs have collapsed" for arm, task in collapsed]
    healthy = [row for row in scores if (row[1]["arm"], row[1]["task"]) not in collapsed]
    return columns, healthy, notes


def _is_shown(cells: Mapping[str, str], tasks_of_columns: Collection[str]) -> bool:
    """Whether a line of a report's results.csv is a score of a row that counts in its table.

    A task that is no column of the experiment has its main score there.
    """
    if not cells["row"] or cells["counts"] != "True":
        return False
    if cells["column"]:
        return True
    return cells["is_headline"] == "True" and cells["task"] not in tasks_of_columns


def _is_finished(row: NumberedRow) -> bool:
    _, cells = row
    for name, cell in cells.items():
        if name.casefold() in STATUS_NAMES and cell.strip().casefold() in UNFINISHED:
            return False
    return True


def _find(name: str, columns: Collection[str]) -> str | None:
    """A column by its name, also as MLflow writes it; None where there is none."""
    for prefix in PREFIXES:
        if prefix + name in columns:
            return prefix + name
    return None


def _column(path: Path, name: str, columns: Sequence[str]) -> str:
    """The column that a layout means. ValueError: there is none."""
    column = _find(name, columns)
    if column is not None:
        return column
    raise ValueError(
        f"{path}: no column {name!r}; it has {', '.join(columns) or 'none'}. `scores:` in the file"
        " of claims names the columns (docs/judge.md)"
    )


def _other_columns(columns: Iterable[str], used: Collection[str]) -> dict[str, str]:
    """Task -> column, where a layout names no tasks: all columns that are nothing else."""
    tasks = []
    for name in columns:
        is_status = name.casefold() in STATUS_NAMES
        if name not in used and not is_status and not NUMBERS_OF_LINES.fullmatch(name):
            tasks.append(name)
    metrics = [name for name in tasks if name.startswith(METRICS)]
    if metrics:
        tasks = metrics
    return {name.removeprefix(METRICS): name for name in tasks}


def _check_numbers(path: Path, rows: Iterable[NumberedRow], tasks: Mapping[str, str]) -> None:
    """ValueError: a column that no layout names has something else than scores."""
    for number, cells in rows:
        for task, column in tasks.items():
            cell = cells[column].strip()
            try:
                float(TRUTH.get(cell.casefold(), cell) or 0.0)
            except ValueError:
                raise ValueError(
                    f"{path}, line {number}: {task} is {cells[column]!r}, which is no score; name"
                    " the columns of scores: `scores: {tasks: [...]}` in the file of claims"
                    " (docs/judge.md)"
                ) from None


def _long_rows(
    rows: Iterable[NumberedRow], names: Mapping[str, str], tasks: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """A row a score; a run without a score of a task has none."""
    for row in rows:
        where, about = _named(row, names)
        for task, column in tasks.items():
            score = row[1][column].strip()
            if score:
                yield where, about | {"task": task, "score": score}


def _named(row: NumberedRow, names: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    number, cells = row
    return f"line {number}", {name: cells[column] for name, column in names.items()}
