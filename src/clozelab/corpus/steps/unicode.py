"""The step `unicode` writes each character in a single way."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from clozelab.corpus.steps.step import Arrays, CorpusStep, Document, StepReport
from clozelab.text.did_you_mean import check_choice

FORMS = ("NFC", "NFKC")


class Unicode(CorpusStep):
    """Brings text into a normal form of Unicode.

    NFC writes "é" as a single character, also where the text has "e" and an accent. NFKC also
    replaces variants of characters: the ligature "ﬁ" becomes "fi", and a wide "Ａ" an "A".
    """

    name = "unicode"

    def __init__(self, form: Literal["NFC", "NFKC"] = "NFC") -> None:
        check_choice("unicode: form", form, FORMS)
        self.form = form

    def apply(
        self,
        documents: Iterable[Document],
        table: Arrays,  # noqa: ARG002
        report: StepReport,
    ) -> Iterator[Document]:
        """As `CorpusStep` says; counts the documents that change."""
        for document in documents:
            lines = [unicodedata.normalize(self.form, line) for line in document.lines]
            if lines == list(document.lines):
                yield document
                continue
            report.changed[f"written in {self.form}"] += 1
            yield replace(document, lines=lines)
