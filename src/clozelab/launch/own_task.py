"""`task=FILE` on a command line: a labelled table of one's own, without a YAML.

    task=reviews.csv text_column=review label_column=stars

is spelt out as `task=own task.name=reviews task.title=reviews.csv task.data.train_file=reviews.csv
...`: the run is that of a YAML which says the same, at scale=own. The two columns may be left out
where the table leaves no doubt. `task@measure.task=FILE` is the same for an evaluation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from clozelab.corpus.paths import resolve_path
from clozelab.datamodules.columns import choose_columns
from clozelab.files.public import PUBLIC_ENCODERS
from clozelab.launch.overrides import OWN_TASK
from clozelab.metrics.glue import is_number
from clozelab.readers.cells import cell_text, is_missing
from clozelab.readers.lines import file_suffix
from clozelab.readers.records import DamagedRow, Table, check_columns
from clozelab.readers.tables import open_table, table_format
from clozelab.text.did_you_mean import key_of, values_of
from clozelab.text.paths import CONF_DIR
from clozelab.text.plain import Json, JsonObject, hydra_text

COLUMN_WORDS = ("text_column", "label_column")
GROUPS = {"task": "task", "task@measure.task": "measure.task"}
"""How a task is chosen -> where its settings stand."""
LABEL_NAMES = ("label", "class", "category", "target", "score", "rating")
ID_NAMES = ("id", "idx", "index")
MOST_CLASSES = 20
"""More different whole numbers than that are numbers to be predicted, not classes."""
ENOUGH_STEPS = 100
EPOCHS = (3, 25)
"""At least and at most: of a small file as many as make ENOUGH_STEPS, in batches of BATCH_SIZE."""
BATCH_SIZE = 32  # conf/task/format/texts.yaml's


def task_settings(
    file: str,
    data_dir: str | Path,
    *,
    text_columns: Sequence[str] = (),
    label_column: str | None = None,
    numeric_labels: bool | None = None,
) -> JsonObject:
    """Return what a labelled table's YAML would say over conf/task/own.yaml, nested.

    Args:
        file: below `data_dir`, or else from where one stands.
        text_columns: one column, or the two of a pair; none: the one that can only be meant.
        label_column: None: the same of the label.
        numeric_labels: whether the label is a number to be predicted, not a class; None: where it
            is one in every row, with a fraction or of more than MOST_CLASSES values.

    Raises:
        ValueError: there is no such file, it is damaged, or it does not say which columns.
    """
    path = resolve_path(file, data_dir)
    if not path.is_file():
        raise ValueError(f"task={file}: there is no such file in {data_dir}, nor from here")
    table = open_table(path)
    texts, label = _columns(table, text_columns, label_column)
    labels = _labels(table, label)
    if numeric_labels is None:
        numeric_labels = _are_numbers(set(labels))
    metrics = ["accuracy", "macro_f1"]
    if numeric_labels:
        metrics = ["spearman", "pearson"]

    least, most = EPOCHS
    enough = math.ceil(ENOUGH_STEPS * BATCH_SIZE / len(labels))
    # A benchmark's name would put this file's scores beside published ones.
    end = path.name.lower().rindex(file_suffix(path))
    name = re.sub(r"[^\w.-]+", "_", path.name[:end])
    if (CONF_DIR / "task" / f"{name}.yaml").exists():
        name = f"{name}_own"
    return {
        "name": name,
        "title": path.name,
        "metric": f"validation/{metrics[0]}",
        "epochs": min(max(least, enough), most),
        "module": {"metrics": metrics},
        "data": {
            "train_file": file,
            "text_columns": texts,
            "label_column": label,
            "numeric_labels": numeric_labels,
        },
    }


def _columns(table: Table, texts: Sequence[str], label: str | None) -> tuple[list[str], str]:
    """The columns of texts and label; ValueError where one is missing, or might be another."""
    named = [*texts, *filter(None, [label])]
    check_columns(table.columns, named, table.path)
    free = [name for name in table.columns if name not in named and name.lower() not in ID_NAMES]
    if label is None:
        labels = [name for name in free if name.lower() in LABEL_NAMES]
        # Of a text and one other column, that one is the label.
        if not labels and texts:
            labels = free
        if not labels and len(free) == 2:
            labels = [name for name in free if name.lower() not in ("text", "sentence")]
        if len(labels) == 1:
            label = labels[0]
            free.remove(label)
    if label is not None and not texts:
        try:
            texts = list(choose_columns(free, "classify").values())
        except ValueError:  # its sentence knows nothing of labels
            texts = []
    if label is None or not texts:
        raise ValueError(
            f"{table.path} has the columns {', '.join(table.columns)}, and it is open which of them"
            " hold text and label: add text_column=COLUMN (of pairs FIRST,SECOND) and"
            " label_column=COLUMN"
        )
    return list(texts), label


def _labels(table: Table, column: str) -> list[str]:
    """The labels of a table as they are written; what is none is refused when it is read."""
    labels = []
    for _, record in table.rows([column]):
        if isinstance(record, DamagedRow) or is_missing(record.get(column)):
            continue
        label = record[column]
        labels.append(str(label) if isinstance(label, list | dict) else cell_text(label))
    if not labels:
        raise ValueError(f"{table.path} has no row with a label in its column {column!r}")
    return labels


def _are_numbers(distinct: Collection[str]) -> bool:
    """Whether labels are numbers to be predicted."""
    if not all(map(is_number, distinct)):
        return False
    has_fractions = any(not float(label).is_integer() for label in distinct)
    return has_fractions or len(distinct) > MOST_CLASSES


# The words of a command line


def has_own_task(overrides: Iterable[str]) -> bool:
    """Whether a task is chosen by a file; ValueError where it is one of several tasks."""
    return any(_file_of(word) is not None for word in overrides)


def _file_of(word: str) -> str | None:
    """The file that a choice of a task names."""
    group, _, value = word.partition("=")
    if group not in GROUPS:
        return None
    is_quoted = value[:1] in ("'", '"')
    value = value.strip("'\"")
    names = [value] if is_quoted else value.split(",")
    if not any(table_format(Path(name)) for name in names):
        return None
    if len(names) > 1:
        raise ValueError(
            f"{word}: a file is the only task of a command; for several of them write each a YAML,"
            " as docs/own-text.md shows"
        )
    return value


def with_usual_names(config_name: str | None, overrides: Sequence[str]) -> list[str]:
    """Return a verb's own overrides with what nobody has to say beside the names in them.

    A public encoder is a row of its name, and a task of one's own is of the scale for that.
    """
    words = list(overrides)
    given = values_of(words)
    # An experiment, which has a configuration of its own, says both.
    if config_name not in ("finetune", "evaluate"):
        return words
    encoder = given.get("encoder")
    if encoder in PUBLIC_ENCODERS and not {"row", "encoder_arm"} & given.keys():
        words.append(f"row={encoder}")
    if "scale" not in given and has_own_task(words):
        words.append("scale=own")
    return words


def with_own_format(overrides: Sequence[str]) -> list[str]:
    """Return overrides with `task=own` for `task=FILE`, and without the words about columns."""
    words = []
    for word in overrides:
        if _file_of(word) is not None:
            words.append(f"{key_of(word)}={OWN_TASK}")
        elif key_of(word) not in COLUMN_WORDS:
            words.append(word)
    return words


def with_own_task(overrides: Sequence[str], data_dir: str) -> list[str]:
    """Return overrides in which `task=FILE` and its columns are spelt out.

    ValueError as of `task_settings`.
    """
    given = values_of(overrides)
    words = []
    for word in overrides:
        file = _file_of(word)
        if file is None:
            continue
        place = GROUPS[key_of(word)]
        texts = given.get("text_column", given.get(f"{place}.data.text_columns", ""))
        label = given.get("label_column", given.get(f"{place}.data.label_column", ""))
        numeric = given.get(f"{place}.data.numeric_labels")
        settings = task_settings(
            file,
            data_dir,
            text_columns=[_unquoted(name) for name in texts.strip("[]").split(",") if name],
            label_column=_unquoted(label) or None,
            numeric_labels=None if numeric is None else numeric.lower() == "true",
        )
        words += _as_words(settings, place)
    # What the user says of a key comes behind, and counts.
    return [*words, *with_own_format(overrides)]


def _unquoted(name: str) -> str:
    return name.strip(" '\"")


def _as_words(settings: JsonObject, place: str) -> list[str]:
    """Settings as overrides in Hydra's grammar."""
    words = []
    for key, value in settings.items():
        if isinstance(value, dict):
            words += _as_words(value, f"{place}.{key}")
        else:
            words.append(f"{place}.{key}={_hydra_value(value)}")
    return words


def _hydra_value(value: Json) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(hydra_text, value))}]"
    if isinstance(value, str):
        return hydra_text(value)
    return str(value).lower()
