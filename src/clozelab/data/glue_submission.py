"""The files of a GLUE submission: how they are written, packed, and what the server would turn away.

A submission is a flat zip with one file a test set: a header `index<TAB>prediction`, then one line an example in the
order of the test file, the index counting from 0, the prediction a label as the task's files spell it (a number for
STS-B). Unusual: a set that nobody predicted can be filled with one constant answer, so that the server accepts the
rest; its score there means nothing.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HEADER = ("index", "prediction")
FIRST_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
"""A zip that depends on its content alone."""
MAX_SHOWN = 3


@dataclass(frozen=True)
class Expected:
    """Of one test set: `labels` in the spelling of the files; empty: the prediction is a number."""

    num_examples: int
    labels: tuple[str, ...]


BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
THREE_WAY = ("contradiction", "entailment", "neutral")
TEST_SETS: dict[str, Expected] = {
    "CoLA": Expected(1063, BINARY),
    "SST-2": Expected(1821, BINARY),
    "MRPC": Expected(1725, BINARY),
    "STS-B": Expected(1379, ()),
    "QQP": Expected(390_965, BINARY),
    "MNLI-m": Expected(9796, THREE_WAY),
    "MNLI-mm": Expected(9847, THREE_WAY),
    "QNLI": Expected(5463, ENTAILMENT),
    "RTE": Expected(3000, ENTAILMENT),
    "WNLI": Expected(146, BINARY),
    "AX": Expected(1104, THREE_WAY),
}

FILE_NAMES = tuple(f"{name}.tsv" for name in TEST_SETS)


def prediction_lines(ids: Sequence[str], answers: Sequence[str]) -> Iterator[str]:
    """The lines of one file without line ends."""
    yield "\t".join(HEADER)
    for index, answer in zip(ids, answers, strict=True):
        yield f"{index}\t{answer}"


def placeholder(name: str) -> str:
    """The content of a file with one constant answer."""
    expected = TEST_SETS[name]
    answer = expected.labels[0] if expected.labels else "0.0"
    ids = [str(index) for index in range(expected.num_examples)]
    return "".join(line + "\n" for line in prediction_lines(ids, [answer] * len(ids)))


def write_submission(path: Path, contents: Mapping[str, bytes]) -> None:
    """Write the zip from test set -> file content.

    Raises:
        ValueError: the server would turn it away; says why. Nothing is written then.
    """
    problems = [problem for name, content in contents.items() for problem in file_problems(name, content)]
    problems += _missing({f"{name}.tsv" for name in contents})
    if problems:
        raise ValueError("not a valid GLUE submission:\n  " + "\n  ".join(problems))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in TEST_SETS:
            entry = zipfile.ZipInfo(f"{name}.tsv", FIRST_ZIP_DATE)
            archive.writestr(entry, contents[name], compress_type=zipfile.ZIP_DEFLATED)
    temporary.replace(path)


def submission_problems(path: Path) -> list[str]:
    """Everything the server would turn this file away for, in words; empty for a good one."""
    if not path.is_file():
        return [f"{path}: there is no such file"]
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
            if damaged is not None:
                return [f"{damaged}: damaged inside the zip"]
            names = archive.namelist()
            contents = {name: archive.read(name) for name in names if name in FILE_NAMES}
    except (zipfile.BadZipFile, OSError) as error:
        return [f"{path}: not a readable zip file ({error})"]
    problems = [f"{name}: twice in the zip" for name in sorted(set(names)) if names.count(name) > 1]
    problems += [_stranger(name) for name in names if name not in FILE_NAMES]
    problems += _missing(set(names))
    for name, content in contents.items():
        problems += file_problems(name.removesuffix(".tsv"), content)
    return problems


def file_problems(name: str, content: bytes) -> list[str]:
    """What is wrong with one test set's file."""
    where = f"{name}.tsv"
    if name not in TEST_SETS:
        return [_stranger(where)]
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        return [f"{where}: not UTF-8 text ({error.reason} at byte {error.start})"]
    if lines[-1] == "":
        lines.pop()
    header, rows = (lines[0] if lines else ""), lines[1:]
    if header != "\t".join(HEADER):
        return [f"{where}: the first line must be 'index<TAB>prediction', not {header[:60]!r}"]
    expected = TEST_SETS[name]
    if len(rows) != expected.num_examples:
        return [f"{where}: {len(rows)} predictions, the test set has {expected.num_examples} examples"]
    wrong = [problem for number, row in enumerate(rows) if (problem := _row_problem(number, row, expected))]
    shown = [f"{where}:{problem}" for problem in wrong[:MAX_SHOWN]]
    return shown + ([f"{where}: and {len(wrong) - MAX_SHOWN} more such rows"] if len(wrong) > MAX_SHOWN else [])


def _row_problem(number: int, row: str, expected: Expected) -> str | None:
    """`number` counts from 0, as the index must; lines count from 1 and begin with the header."""
    fields = row.split("\t")
    if len(fields) != len(HEADER):
        return f"{number + 2}: {len(fields)} tab-separated fields, expected 2"
    index, prediction = fields
    if index != str(number):
        return f"{number + 2}: index {index!r}, expected {number} (each index once, in the test file's order)"
    if expected.labels:
        fits, kind = prediction in expected.labels, f"one of {', '.join(expected.labels)}"
    else:
        fits, kind = _is_number(prediction), "a number"
    return None if fits else f"{number + 2}: prediction {prediction!r} is not {kind}"


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _missing(names: set[str]) -> list[str]:
    return [f"{name}.tsv: missing" for name in TEST_SETS if f"{name}.tsv" not in names]


def _stranger(name: str) -> str:
    if "/" in name:
        return f"{name}: the files must lie at the top of the zip, without a folder"
    return f"{name}: no file of a submission; they are {', '.join(FILE_NAMES)}"
