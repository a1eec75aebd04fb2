"""The pages: each is in the navigation of the site, and each link leads to a file and a heading.

`make site` needs packages of the extra `docs`; this needs none of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("experiments/**/*.md")]
BLOCK = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r'(?<=\]\()[^)\s]+|(?<=src=")[^"]+|(?<=srcset=")[^"]+')
# Pages that docs/hooks.py adds: three of the repository's root, and what it makes itself.
ADDED = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "experiments/index.md": "experiments/README.md",
    "api.md": "src/clozelab/__init__.py",
}


def site() -> dict[str, object]:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def places(entry: object) -> Iterator[str]:
    """The pages of a navigation, in order: a page, a list, or a heading with its list."""
    if isinstance(entry, str):
        yield entry
        return
    below = entry.values() if isinstance(entry, dict) else entry
    for each in below:  # type: ignore[attr-defined]
        yield from places(each)


def test_every_page_is_in_the_navigation_once() -> None:
    settings = site()
    counts = Counter(places(settings["nav"]))
    assert [page for page, count in counts.items() if count > 1] == []
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    hidden = str(settings["not_in_nav"]).split()
    for pattern in hidden:
        there = {page for page in there if not fnmatch(f"/{page}", pattern)}
    assert set(counts) == there | set(ADDED)


def test_added_pages_are_those_of_the_hook() -> None:
    hook = (DOCS / "hooks.py").read_text(encoding="utf-8")
    for page, source in ADDED.items():
        assert (ROOT / source).is_file(), source
        assert page in hook or f'"{Path(source).stem}"' in hook, page


@cache
def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page in links."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    slugs: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        found.add(f"{slug}-{slugs[slug]}" if slugs[slug] else slug)
        slugs[slug] += 1
    return found


def broken_links(text: str, page: Path) -> Iterator[str]:
    """Links of a page's text whose file, or whose heading, is not there."""
    sentences = re.sub(r"`[^`\n]*`", "", BLOCK.sub("", text))
    for link in LINK.findall(sentences):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        names_heading = bool(anchor) and target.suffix == ".md"
        if not target.exists():
            yield link
            continue
        if names_heading and anchor not in anchors(target.resolve()):
            yield link


def test_links_lead_to_files_and_headings() -> None:
    broken = {}
    for page in PAGES:
        broken[str(page.relative_to(ROOT))] = [*broken_links(page.read_text("utf-8"), page)]
    assert {page: links for page, links in broken.items() if links} == {}


def test_broken_links_are_found() -> None:
    text = (
        "[a](claims.md#verdicts) [b](claims.md#verdict) [c](claim.md) [d](#glossary)"
        ' <img src="results/none.png">\n```\n[e](not-a-link.md)\n```\n'
    )
    found = [*broken_links(text, DOCS / "glossary.md")]
    assert found == ["claims.md#verdict", "claim.md", "results/none.png"]
