"""What a case of `make odd` is, how it is run, and what its end is called.

A case makes one input that is odd in one way, gives it to a verb and compares the result with an
answer that was found without the project: by transformers, by plain Python, or from a clean twin of
the same input. It ends as one of:

    right      the verb did its work, and the comparison agrees
    refused    the project raised an error on purpose, in a sentence that names the place
    REFUSED    the same, of an input that is ordinary enough that it ought to be read
    VAGUE      the same, but the sentence does not name the place
    WRONG      another answer, without a word
    TRACEBACK  an error that nobody raised on purpose

The first two are good ends.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import logging
import os
import re
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import clozelab

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(clozelab.__file__).resolve().parent
NOBODY = 65534  # who may read nothing that root keeps for itself
GOOD_ENDS = ("right", "refused")
PATIENCE_SECONDS = 120
SHOWN_CHARACTERS = 200  # of an error's sentence, in the table

# What may be expected of a case.
READ = "read"
REFUSED = "refused"
EITHER = "read or refused"


class WrongError(AssertionError):
    """The comparison with the independent answer disagrees."""


class HangError(BaseException):
    """A verb did not come back. No `except Exception` of the code under trial can swallow it."""


Row = Callable[..., None]
"""Writes a case down: row(oddity, expected, *given, names="", **named)."""


@dataclass(frozen=True)
class Case:
    """One odd input, called by what is odd in it.

    `act(place)` makes the input below the empty folder `place`, runs the verb and compares; it
    raises WrongError where the comparison disagrees. An error's sentence has to hold one of `names`
    (| stands between them; any sentence will do where there are none).
    """

    kind: str
    oddity: str
    verb: str
    expected: str
    act: Callable[[Path], object]
    names: str = ""


@dataclass(frozen=True)
class End:
    """How a case ended; `sentence` is the error's, or says what the comparison found."""

    case: Case
    verdict: str
    sentence: str

    @property
    def is_good(self) -> bool:
        return self.verdict in GOOD_ENDS


class Cases:
    """The cases of one kind, in the order in which they are written down."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.all: list[Case] = []

    def add(
        self, verb: str, expected: str, names: str = "", *, oddity: str = ""
    ) -> Callable[[Callable[[Path], object]], Callable[[Path], object]]:
        """A decorator; what is odd is the function's documentation, unless it is given."""

        def register(act: Callable[[Path], object]) -> Callable[[Path], object]:
            text = oddity or " ".join((act.__doc__ or "").split()).removesuffix(".")
            if not text or any(case.oddity == text for case in self.all):
                raise ValueError(f"{self.kind}: {text!r} is empty, or names two cases")
            self.all.append(Case(self.kind, text, verb, expected, act, names))
            return act

        return register

    def rows(self, verb: str, names: str = "") -> Callable[[Callable[..., object]], Row]:
        """A decorator for `act(place, *given)`, of which each row is a case.

        The function that it makes writes one down: it takes what is odd, what is expected, and what
        `act` is given.
        """

        def decorate(act: Callable[..., object]) -> Row:
            def write_row(
                oddity: str, expected: str, *given: Any, names: str = names, **named: Any
            ) -> None:
                def run(place: Path) -> object:
                    return act(place, *given, **named)

                self.add(verb, expected, names, oddity=oddity)(run)

            return write_row

        return decorate


# What a case compares with


def check(is_right: object, said: str) -> None:
    """WrongError with these words, unless it is right."""
    if not is_right:
        raise WrongError(said)


def equal(value: Any, expected: Any, subject: str) -> None:
    """WrongError where they differ; both are shown, cut short."""
    if value != expected:
        raise WrongError(f"{subject}: {_cut(repr(value), 80)}, expected {_cut(repr(expected), 80)}")


def close(values: Any, expected: Any, subject: str, tolerance: float = 2e-4) -> None:
    """WrongError where two arrays differ in shape, or by more than `tolerance` anywhere."""
    import numpy as np

    left = np.asarray(values, dtype=np.float64)
    right = np.asarray(expected, dtype=np.float64)
    if left.shape != right.shape:
        raise WrongError(f"{subject}: shape {left.shape}, expected {right.shape}")
    error = float(np.abs(left - right).max()) if left.size else 0.0
    if not error <= tolerance:
        raise WrongError(f"{subject}: differs by {error:.2g}")


# Running


class Log(io.StringIO):
    """Everything that is logged, printed or warned of while a case runs in a place."""

    place = Path()

    def begin(self, place: Path) -> None:
        self.place = place
        self.seek(0)
        self.truncate()


LOG = Log()


def heard(words: str) -> bool:
    """Whether a message of the running case has these words; | stands between words of which any
    will do. The case's folder has words of its own, and does not count.
    """
    log = _without_folders(LOG.getvalue(), LOG.place).lower()
    return any(word in log for word in words.lower().split("|"))


def run_case(case: Case, place: Path) -> End:
    """Run one case in an empty folder. An error outside of the project is the trial's own, and is
    raised.
    """
    place.mkdir(parents=True)
    try:
        with _listening(place), _patience(case.oddity):
            case.act(place)
    except WrongError as difference:
        verdict, sentence = "WRONG", str(difference)
    except HangError:
        verdict, sentence = "WRONG", f"did not come back within {PATIENCE_SECONDS} s"
    except Exception as error:
        if not _passes_through_the_project(error):
            raise RuntimeError(f"the trial {case.oddity!r} itself is broken") from error
        verdict, sentence = _verdict_of(error, case)
    else:
        verdict, sentence = "right", ""
        if case.expected == REFUSED:
            verdict, sentence = "WRONG", "taken without a word"
    return End(case, verdict, _shown(sentence, place))


def _verdict_of(error: Exception, case: Case) -> tuple[str, str]:
    cause = _cause(error)
    sentence = _printed(cause)
    if not is_on_purpose(cause):
        return "TRACEBACK", f"{type(cause).__name__}: {sentence}"
    if case.expected == READ:
        return "REFUSED", sentence
    if not any(name in sentence.lower() for name in case.names.lower().split("|")):
        return "VAGUE", sentence
    return "refused", sentence


def _printed(error: BaseException) -> str:
    """The sentence as the command prints it: a file's error without its number."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}"
    return str(error)


def is_on_purpose(error: BaseException) -> bool:
    """Whether the innermost frame is a `raise` of the project's own, or a file error that names its
    file.

    So a ValueError of json or numpy that merely passes through is none.
    """
    if isinstance(error, OSError) and error.filename is not None:
        return True
    frames = traceback.extract_tb(error.__traceback__)
    if not isinstance(error, ValueError | OSError) or not frames:
        return False
    innermost = frames[-1]
    path = Path(innermost.filename).resolve()
    return path.is_relative_to(PACKAGE) and innermost.lineno in _raising_lines(path)


@functools.cache
def _raising_lines(path: Path) -> frozenset[int]:
    """Lines of a source file that belong to a `raise` statement."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and node.end_lineno is not None:
            lines.update(range(node.lineno, node.end_lineno + 1))
    return frozenset(lines)


def _cause(error: BaseException) -> BaseException:
    """What a constructor raised, without what Hydra wraps around it."""
    if type(error).__name__ == "InstantiationException" and error.__cause__ is not None:
        return error.__cause__
    return error


def _passes_through_the_project(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return any(Path(frame.filename).resolve().is_relative_to(PACKAGE) for frame in frames)


@contextlib.contextmanager
def _listening(place: Path) -> Iterator[None]:
    """Keep what is logged, warned of and printed in LOG, and out of the terminal."""
    LOG.begin(place)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = [logging.StreamHandler(LOG)]
    root.setLevel(logging.INFO)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(LOG),
            contextlib.redirect_stderr(LOG),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@contextlib.contextmanager
def _patience(name: str) -> Iterator[None]:
    def hang(_: int, __: FrameType | None) -> None:
        raise HangError(name)

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(PATIENCE_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to read everything. What a verb imports on its way has to be there."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def _shown(sentence: str, place: Path) -> str:
    """A sentence without the machine's folders, on one line, as a cell of a table has it."""
    text = re.sub(r"[\x00-\x1f\ud800-\udfff]+", " ", _without_folders(sentence, place))
    return _cut(" ".join(text.split()), SHOWN_CHARACTERS)


def _without_folders(text: str, place: Path) -> str:
    text = text.replace(f"{place}/", "").replace(str(place), "FOLDER")
    return re.sub(r"/\S*clozelab-odd-[^/\s]*/", "", text).replace(f"{ROOT}/", "")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def quieten() -> None:
    """Libraries that speak or draw bars beside the project's own words."""
    import datasets
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
