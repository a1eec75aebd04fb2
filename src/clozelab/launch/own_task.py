"""`task=FILE` on a command line: a labelled table of one's own, without a YAML.

    task=reviews.csv text_column=review label_column=stars

is spelt out as `task=own task.name=reviews task.title=reviews.csv task.data.train_file=reviews.csv
...`: the run is that of a YAML which says the same, at scale=own. The two columns may be left out
where the table leaves no doubt. `task@measure.task=FILE` is the same for an evaluation.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from clozelab.config import MOST_EPOCHS, Composed
from clozelab.corpus.paths import resolve_path
from clozelab.datamodules.columns import FIRST_NAMES, choose_columns
from clozelab.files.public import PUBLIC_ENCODERS
from clozelab.launch.overrides import OWN_TASK
from clozelab.metrics.glue import is_number
from clozelab.models.locate import config_path, find_model
from clozelab.readers.lines import file_suffix
from clozelab.readers.records import Table, check_columns
from clozelab.readers.tables import open_table, table_format
from clozelab.text.did_you_mean import key_of, values_of
from clozelab.text.paths import CONF_DIR
from clozelab.text.plain import JsonObject, PlainMapping, hydra_literal, hydra_text, read_json

log = logging.getLogger(__name__)
COLUMN_WORDS = ("text_column", "label_column")
SHORT_KEYS = {
    "prepare": ("text",),
    "pretrain": ("text",),
    "finetune": COLUMN_WORDS,
    "evaluate": ("text", *COLUMN_WORDS),
}
"""Verb -> keys that stand for others, and so are in no configuration."""
PLACES = {"task": "task", "task@measure.task": "measure.task"}
"""How a task is chosen -> where its settings stand."""
LABEL_NAMES = ("label", "class", "category", "target", "score", "rating")
ID_NAMES = ("id", "idx", "index")
MOST_CLASSES = 20
"""So many different whole numbers are classes; of more `are_numbers_to_predict` decides."""
GROUP_NAMES = (
    *("patient", "subject", "participant", "person", "user", "customer", "client"),
    *("author", "writer", "speaker", "student", "document", "doc", "article", "conversation"),
    *("dialogue", "dialog", "session", "thread", "case", "group"),
)
"""Names of columns that tell whose rows are, or of which text; also with "id" behind them."""
ENOUGH_ROWS = 3600
"""To go through: 100 steps of 32, where a tenth of the rows is held out for validation.

Of a file of fewer rows epochs make them, up to MOST_EPOCHS.
"""
LEAST_EPOCHS = 3


def task_settings(
    file: str,
    data_dir: str | Path,
    *,
    text_columns: Sequence[str] = (),
    label_column: str | None = None,
    numeric_labels: bool | None = None,
    is_one_of_several: bool = False,
) -> JsonObject:
    """Return what a labelled table's YAML would say over conf/task/own.yaml, nested.

    Args:
        file: below `data_dir`, or else from where one stands.
        text_columns: one column, or the two of a pair; none: the one that can only be meant.
        label_column: None: the same of the label.
        numeric_labels: whether the label is a number to be predicted, not a class; None: as
            `are_numbers_to_predict` finds.
        is_one_of_several: a file has more such columns, so the names say which one it is.

    Raises:
        ValueError: there is no such file, it is damaged, or it does not say which columns.
    """
    path = resolve_path(file, data_dir)
    if not path.is_file():
        raise ValueError(f"task={file}: there is no such file in {data_dir}, nor from here")
    table = open_table(path)
    texts, label = _columns(table, text_columns, label_column)
    counts = _count_values(path, label, path.stat().st_mtime_ns)
    num_rows = sum(counts.values())
    if numeric_labels is None:
        numeric_labels = are_numbers_to_predict(counts)
    metrics = ["accuracy", "macro_f1"]
    if numeric_labels:
        metrics = ["spearman", "pearson"]
    epochs = math.ceil(ENOUGH_ROWS / max(1, num_rows))

    # A benchmark's name would put this file's scores beside published ones.
    end = path.name.lower().rindex(file_suffix(path))
    name = re.sub(r"[^\w.-]+", "_", path.name[:end])
    if (CONF_DIR / "task" / f"{name}.yaml").exists():
        name = f"{name}_own"
    title = path.name
    if is_one_of_several:
        name = f"{name}_{label}"
        title = f"{title}, {label}"
    data = {"train_file": file, "text_columns": texts, "label_column": label}
    return {
        "name": name,
        "title": title,
        "metric": f"validation/{metrics[0]}",
        "epochs": min(max(LEAST_EPOCHS, epochs), MOST_EPOCHS),
        "module": {"metrics": metrics},
        "data": data | {"numeric_labels": numeric_labels},
    }


@cache  # a command composes its configuration several times
def _count_values(
    path: Path,
    column: str,
    modified: int,  # noqa: ARG001
) -> Mapping[str, int]:
    """The number of rows of each value of a column; read anew when the table was `modified`."""
    # What is no label is refused, with its line, when the examples are read.
    return Counter(str(row.record.get(column)) for row in open_table(path).placed_rows())


def are_numbers_to_predict(counts: Mapping[str, int]) -> bool:
    """Whether labels are numbers to be predicted, not classes, where nobody says which.

    Args:
        counts: label -> its number of rows.
    """
    if not all(map(is_number, counts)):
        return False
    # 0.5 is a measured value, and no name of a class.
    if not _are_whole(counts):
        return True
    # Stars and small sets of ids are classes; ids of many classes follow upon each other.
    return len(counts) > MOST_CLASSES and not _are_ids(counts)


def _are_whole(labels: Iterable[str]) -> bool:
    return all(float(label).is_integer() for label in labels)


def _are_ids(counts: Mapping[str, int]) -> bool:
    """Whether whole numbers run from 0 or 1 on without a gap, each in several rows.

    A class has several examples; of measured values, such as prices, many stand in one row alone.
    """
    numbers = sorted(int(float(label)) for label in counts)
    first = numbers[0]
    has_no_gap = numbers == list(range(first, first + len(numbers)))
    return first in (0, 1) and has_no_gap and min(counts.values()) > 1


def describe_doubtful_target(
    path: Path, column: str, setting: str, *, numeric_labels: bool
) -> str | None:
    """What many whole numbers are read as, by which rule, and what reads them otherwise.

    None where the labels leave no doubt, and where the user's choice is another one.

    Args:
        path: the table.
        column: of its labels.
        setting: where a user says which, for the message.
        numeric_labels: whether they are numbers to be predicted, not classes.
    """
    counts = _count_values(path, column, path.stat().st_mtime_ns)
    are_numbers = all(map(is_number, counts))
    if len(counts) <= MOST_CLASSES or not are_numbers or not _are_whole(counts):
        return None
    if numeric_labels != are_numbers_to_predict(counts):
        return None
    numbers = f"{path.name}: the {len(counts)} different whole numbers of {column}"
    rule = "run from 0 or 1 without a gap, each in several rows"
    if numeric_labels:
        is_not_so = f"since they do not {rule}"
        return f"{numbers} are to be predicted, {is_not_so}; {setting}=false makes classes"
    return f"{numbers} are classes, since they {rule}; {setting}=true predicts numbers"


def describe_likely_groups(path: Path, used: Collection[str], setting: str) -> str | None:
    """Which rows may belong together, by the name of a column, and what keeps them so.

    None where there is no such column, or each row has a value of its own.

    Args:
        path: the table, of which a part is held out.
        used: its columns that are read.
        setting: where a user names the column, for the message.
    """
    for column in open_table(path).columns:
        name = column.lower().removesuffix("id").rstrip("_ ")
        if column in used or name not in GROUP_NAMES:
            continue
        counts = _count_values(path, column, path.stat().st_mtime_ns)
        num_rows = sum(counts.values())
        if 1 < len(counts) < num_rows:
            return (
                f"{path.name}: {num_rows} rows have {len(counts)} values of {column}, and rows with"
                " the same one may be in training and in validation, which flatters scores:"
                f" {setting}={column} keeps them together"
            )
    return None


def _columns(table: Table, texts: Sequence[str], label: str | None) -> tuple[list[str], str]:
    """The columns of texts and label; ValueError where one is missing, or might be another."""
    columns = [name for name in table.columns if name.lower() not in ID_NAMES and name not in texts]
    if label is None:
        label = _label_among(columns)
    if label is not None and not texts:
        unlabelled = [name for name in columns if name != label]
        with suppress(ValueError):  # its sentence knows nothing of labels
            texts = list(choose_columns(unlabelled, "classify").values())
    if label is None or not texts:
        raise ValueError(
            f"{table.path} has the columns {', '.join(table.columns)}, and it is open which of them"
            " hold text and label: add text_column=COLUMN (of pairs FIRST,SECOND) and"
            " label_column=COLUMN"
        )
    check_columns(table.columns, [*texts, label], table.path)
    return list(texts), label


def _label_among(columns: Sequence[str]) -> str | None:
    """The one column with a name of labels, or else the one without a name of texts."""
    labels = [name for name in columns if name.lower() in LABEL_NAMES]
    if not labels:
        labels = [name for name in columns if name.lower() not in FIRST_NAMES]
    return labels[0] if len(labels) == 1 else None


# The arguments of a command line


def settings_of_words(
    file: str,
    data_dir: str | Path,
    given: Mapping[str, str],
    numeric_labels: bool | None = None,
) -> list[JsonObject]:
    """`task_settings` of each label column that a command line names, or of the one."""
    texts, labels = (given.get(word, "").strip("'\"") for word in COLUMN_WORDS)
    text_columns = [name for name in texts.split(",") if name]
    settings = []
    for label in labels.split(","):
        settings.append(
            task_settings(
                file,
                data_dir,
                text_columns=text_columns,
                label_column=label or None,
                numeric_labels=numeric_labels,
                is_one_of_several="," in labels,
            )
        )
    return settings


def with_own_task(
    config_name: str | None, overrides: Sequence[str], data_dir_of: Callable[[list[str]], str]
) -> list[str]:
    """Return overrides in which `task=FILE` and its columns are spelt out.

    A public encoder is a row of its name where nothing else is said.

    Args:
        data_dir_of: gives the data_dir of a configuration by its overrides.

    Raises:
        ValueError: as of `task_settings`; or the file is one of several tasks.
    """
    spelt = list(overrides)
    given = values_of(spelt)
    # An experiment has a configuration of its own, and says its rows and its scale.
    is_plain = config_name in ("finetune", "evaluate")
    encoder = given.get("encoder")
    if is_plain and encoder in PUBLIC_ENCODERS and not {"row", "encoder_arm"} & given.keys():
        spelt.append(f"row={encoder}")
    for choice, key in PLACES.items():
        file = given.get(choice, "").strip("'\"")
        if not _is_table(choice, file):
            continue
        said = given.get(f"{key}.data.numeric_labels", "").lower()
        numeric_labels = {"true": True, "false": False}.get(said)
        if numeric_labels is None:
            numeric_labels = _predicts_numbers(given)
        spelt = [word for word in spelt if key_of(word) not in (choice, *COLUMN_WORDS)]
        spelt.append(f"{choice}={OWN_TASK}")
        if is_plain and "scale" not in given:
            spelt.append("scale=own")
        settings = settings_of_words(file, data_dir_of(spelt), given, numeric_labels)
        # What the user says of a key comes behind, and counts.
        spelt = [*_sweep_overrides(settings, key), *spelt]
    return spelt


def _predicts_numbers(given: Mapping[str, str]) -> bool | None:
    """Whether the fine-tuned model that a file is to score predicts numbers; None without one.

    Its training file decided. A smaller test file may lack some of the classes.
    """
    if given.get("measure") != "labelled" or "encoder" not in given:
        return None
    try:
        config = read_json(config_path(find_model(given["encoder"])))
    except (ValueError, OSError):
        return None  # who loads it says what is wrong
    names = config.get("id2label") if isinstance(config, dict) else None
    if not isinstance(names, dict) or not names:
        return None
    return len(names) == 1


def has_own_task(overrides: Sequence[str]) -> bool:
    """Whether a job's task is a labelled file."""
    return any(f"{choice}={OWN_TASK}" in overrides for choice in PLACES)


def doubts_of_own_task(overrides: Sequence[str], settings: PlainMapping) -> list[str]:
    """What to say where a labelled file may be meant otherwise than it is read.

    Args:
        overrides: of a job, as `with_own_task` has spelt them out.
        settings: the job's configuration.
    """
    doubts: list[str | None] = []
    for choice, place in PLACES.items():
        if f"{choice}={OWN_TASK}" not in overrides:
            continue
        task: Any = settings
        for name in place.split("."):
            task = task[name]
        task_data = task["data"]
        path = resolve_path(task_data["train_file"], str(settings["data_dir"]))
        if not path.is_file():  # an error will say so
            continue
        label = str(task_data["label_column"])
        if task_data["validation_file"] is None and task_data["group_column"] is None:
            used = [*task_data["text_columns"], label]
            doubts.append(describe_likely_groups(path, used, f"{place}.data.group_column"))
        key = f"{place}.data.numeric_labels"
        if _is_target_open(overrides, key):
            doubts.append(
                describe_doubtful_target(
                    path, label, key, numeric_labels=task_data["numeric_labels"]
                )
            )
    return list(filter(None, doubts))


def _is_target_open(overrides: Sequence[str], key: str) -> bool:
    """Whether neither the user nor a model that is scored says if labels are classes or numbers."""
    # `with_own_task` gives the key once. A second one is the user's.
    num_given = sum(key_of(override) == key for override in overrides)
    return num_given == 1 and _predicts_numbers(values_of(overrides)) is None


def warn_of_doubts(composed: Iterable[Composed]) -> None:
    """Warn of the `doubts_of_own_task` of jobs, once of each."""
    messages = []
    for job in composed:
        if job.origin is not None:
            messages += doubts_of_own_task(job.origin.overrides, job.values)
    for message in dict.fromkeys(messages):
        log.warning(message)


def _sweep_overrides(settings: Sequence[JsonObject], place: str) -> list[str]:
    """The overrides of a task, or of a sweep over several label columns of a file.

    ValueError where some columns hold classes and others numbers, whose scores are others.
    """
    first, *_ = settings
    if len(settings) == 1:
        return _to_overrides(first, place)
    columns = [task["data"]["label_column"] for task in settings]
    if len({task["metric"] for task in settings}) > 1:
        raise ValueError(
            f"label_column={','.join(columns)}: some hold classes and some numbers, which have"
            " other scores: give each kind a command of its own; their report is one"
        )
    # The name and the title follow the column, the only key that the sweep runs through.
    label_key = f"{place}.data.label_column"
    common = dict(first)
    for key in ("name", "title"):
        common[key] = first[key].removesuffix(columns[0]) + f"${{{label_key}}}"
    overrides = _to_overrides(common, place)
    shared = [override for override in overrides if key_of(override) != label_key]
    return [*shared, f"{label_key}={','.join(map(hydra_text, columns))}"]


def _is_table(choice: str, file: str) -> bool:
    """Whether the choice of a task is a labelled file; ValueError where it is one of several."""
    is_table = any(table_format(Path(name)) for name in file.split(","))
    if is_table and "," in file:
        raise ValueError(
            f"{choice}={file}: a file is the only task of a command; for several of them write"
            " each a YAML, as docs/own-text.md shows"
        )
    return is_table


def _to_overrides(settings: JsonObject, place: str) -> list[str]:
    """Settings as overrides."""
    overrides = []
    for key, value in settings.items():
        if isinstance(value, dict):
            overrides += _to_overrides(value, f"{place}.{key}")
        else:
            overrides.append(f"{place}.{key}={hydra_literal(value)}")
    return overrides
