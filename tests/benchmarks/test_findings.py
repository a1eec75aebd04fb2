"""The forest plots of docs/findings.md are of its figures, and of the results that it links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import findings
from claims.analysis.verdict_codes import Verdict

PAGE = (findings.DOCS / "findings.md").read_text(encoding="utf-8")
SECTIONS = dict(findings.sections(PAGE))
# Where two lines cross is no difference; a result's page alone has the other machine's runs.
NOT_DRAWN = ["[1.01, 1.37]", "[\u22121.5, +0.2]"]


def texts(picture: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", picture.read_text(encoding="utf-8"))


def test_each_interval_of_the_page_is_one_of_a_linked_result() -> None:
    unknown = []
    for table in SECTIONS.values():
        unknown += findings.claims_of(table)[1]
    assert unknown == NOT_DRAWN


def test_a_figure_that_no_linked_result_has_is_found() -> None:
    row = "| a | +5.1 [+4.7, +5.6] and +5.1 [+4.7, +5.7] | [b](results/{}.md) |"
    claims, unknown = findings.claims_of(row.format("2026-11-27-small-fine-tuning"))
    assert [(claim.text, claim.verdict) for claim in claims] == [
        ("pre-training helps tags", Verdict.HOLDS)
    ]
    assert unknown == ["[+4.7, +5.7]"]
    assert findings.claims_of(row.format("2026-11-27-recipes")) == ([], ["[+4.7, +5.6]", *unknown])


def test_each_section_shows_its_picture_on_light_and_dark_pages() -> None:
    shown = re.findall(r"assets/(findings-[^\"]+)", PAGE)
    assert sorted(shown) == sorted(path.name for path in findings.PICTURES.glob("findings-*"))
    assert len(shown) == 2 * len(SECTIONS) == 8


def test_a_picture_is_drawn_again_with_the_same_words(tmp_path: Path) -> None:
    name = "next-sentence-prediction"
    claims, _ = findings.claims_of(SECTIONS[name])
    again = tmp_path / "again.svg"
    again.write_bytes(findings.draw(claims, "dark"))
    assert texts(again) == texts(findings.PICTURES / f"findings-{name}-dark.svg")


@pytest.mark.parametrize("section", SECTIONS)
def test_a_picture_has_a_line_for_each_claim(section: str) -> None:
    claims, _ = findings.claims_of(SECTIONS[section])
    for style in ("", "-dark"):
        words = " ".join(texts(findings.PICTURES / f"findings-{section}{style}.svg"))
        for claim in claims:
            assert claim.figures in words and claim.label in words
            assert claim.caption in words
