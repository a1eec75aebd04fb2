"""The step `quality` drops documents that are hardly running text: lists, menus, spam, word salad.

The filters are datatrove's: those of Gopher (Rae et al. 2021, table A1 and section A.1.1), and of
FineWeb (Penedo et al. 2024) the one of lines that end as sentences do. "Lorem ipsum" is from C4
(Raffel et al. 2020).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any, TypeAlias

from claims.text.did_you_mean import hint
from clozelab.corpus.steps.step import Arrays, CorpusStep, Document, StepReport
from clozelab.text.packages import require_package

Limit: TypeAlias = float | Sequence[Sequence[float]]
Filter: TypeAlias = Any  # datatrove's, which has no types

FILTERS = ("GopherQualityFilter", "GopherRepetitionFilter", "FineWebQualityFilter")
# The other rules of FineWeb's filter, off unless they are set: a text file has a sentence a line.
SWITCHED_OFF: Mapping[str, Limit] = {
    "short_line_thr": 1,
    "char_duplicates_ratio": 1,
    "new_line_ratio": 1,
}
UNCHANGED: Mapping[str, Limit] = {}


class Quality(CorpusStep):
    """Drops a document that one of FILTERS drops; the reason is the filter's own name for it.

    `limits` are arguments of the filters' classes with other values than their defaults:
    `{min_doc_words: 20, min_stop_words: 0}`. For text that is not English, `min_stop_words` should
    be 0.
    """

    name = "quality"
    version = 2

    def __init__(self, limits: Mapping[str, Limit] = UNCHANGED) -> None:
        for package in ("datatrove", "regex"):
            require_package(package, "corpus", "the corpus step quality")
        if not isinstance(limits, Mapping):
            raise ValueError(f"quality: limits={limits} must be {{LIMIT: number}}")
        self.limits: dict[str, Limit] = {}
        for make in filter_classes():
            self.limits |= _defaults(make)
        self.limits |= SWITCHED_OFF
        for name, value in limits.items():
            if name not in self.limits:
                raise ValueError(f"quality has no limit {name!r}: {hint(name, self.limits)}")
            if not _is_like(value, self.limits[name]):
                raise ValueError(f"quality: {name}={value} must be like {self.limits[name]}")
            self.limits[name] = value

    def inputs(self) -> Mapping[str, str]:
        """The version of the package that has the filters."""
        return {"datatrove": version("datatrove")}

    def apply(
        self,
        documents: Iterable[Document],
        table: Arrays,  # noqa: ARG002
        report: StepReport,
    ) -> Iterator[Document]:
        """As `CorpusStep` says; a document counts for the first reason against it."""
        filters = []
        for make in filter_classes():
            limits = {name: self.limits[name] for name in _defaults(make)}
            filters.append(make(language=WhitespaceWords(), **limits))
        for document in documents:
            reason = reason_against("\n".join(document.lines), filters)
            if reason is None:
                yield document
            else:
                report.drop(document, reason)


class WhitespaceWords:
    """The words of a text as blanks part them, in any language, for datatrove's filters."""

    word_tokenize = staticmethod(str.split)


def filter_classes() -> list[Filter]:
    """The classes of FILTERS."""
    # Its own tokenizers of words need spaCy, and a model for each language.
    import_module("datatrove.utils.word_tokenizers").WordTokenizer.register(WhitespaceWords)
    filters = import_module("datatrove.pipeline.filters")
    return [getattr(filters, name) for name in FILTERS]


def reason_against(text: str, filters: Sequence[Filter]) -> str | None:
    """The first reason to drop a text; None where it stays."""
    if not text.strip():
        return "empty"
    if "lorem ipsum" in text.lower():
        return "lorem_ipsum"
    document = import_module("datatrove.data").Document(text=text, id="")
    for each in filters:
        # True, or (False, its reason)
        verdict = each.filter(document)
        if verdict is not True:
            return str(verdict[1])
    return None


def _defaults(make: Filter) -> dict[str, Limit]:
    """The limits that a filter's class takes: its arguments that are numbers or lists of them."""
    defaults = {}
    for name, parameter in inspect.signature(make).parameters.items():
        if isinstance(parameter.default, int | float | tuple):
            defaults[name] = parameter.default
    return defaults


def _is_like(value: object, default: object) -> bool:
    """Whether both are numbers, or both lists of pairs of numbers."""
    if not isinstance(default, tuple):
        return isinstance(value, int | float)
    return isinstance(value, list | tuple) and all(map(_is_pair, value))


def _is_pair(value: object) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    return all(isinstance(number, int | float) for number in value)
