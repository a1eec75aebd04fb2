"""`unicode`: characters that can be written in two ways are written in one."""

from __future__ import annotations

from tests.corpus.steps.sharded import run_any
from tests.screens import refuses

from clozelab.corpus.steps.unicode import Unicode

DECOMPOSED = "cafe\N{COMBINING ACUTE ACCENT}"
COMPOSED = "caf\N{LATIN SMALL LETTER E WITH ACUTE}"
LIGATURE = "\N{LATIN SMALL LIGATURE FI}ne"


def test_an_accent_becomes_part_of_its_letter() -> None:
    documents = [[DECOMPOSED, "plain"], [COMPOSED], [LIGATURE]]
    kept, report = run_any(Unicode(), documents)
    assert kept == [[COMPOSED, "plain"], [COMPOSED], [LIGATURE]]
    assert report.changed == {"written in NFC": 1}


def test_nfkc_also_replaces_variants() -> None:
    kept, report = run_any(Unicode(form="NFKC"), [[DECOMPOSED], [LIGATURE], ["fine"]])
    assert kept == [[COMPOSED], ["fine"], ["fine"]]
    assert report.changed == {"written in NFKC": 2}


def test_another_form_is_refused() -> None:
    with refuses("unicode: form=NFD: choose one of NFC, NFKC"):
        Unicode(form="NFD")  # type: ignore[arg-type]
