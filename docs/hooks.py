"""mkdocs: add the pages that lie outside of docs/, and move the links to them.

On GitHub pages link each other by their paths in the repository. In the site README.md is
index.md, experiments/NAME/README.md is experiments/NAME.md, and a link to code leads to GitHub.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# A block of code, which stays as it is, or the address of a link, a picture or an HTML element.
ADDRESS = re.compile(
    r'^ *```.*?^ *```$|(?<=\]\()[^)\s]+|(?<=src=")[^"]+|(?<=srcset=")[^"]+',
    re.DOTALL | re.MULTILINE,
)


def outside_pages() -> dict[str, str]:
    """Path in the repository -> path in the site, of the pages outside of docs/."""
    pages = {"README.md": "index.md", "experiments/README.md": "experiments/index.md"}
    for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY"):
        pages[f"{name}.md"] = f"{name.lower()}.md"
    for readme in sorted(ROOT.glob("experiments/*/README.md")):
        folder = readme.parent.name
        pages[f"experiments/{folder}/README.md"] = f"experiments/{folder}.md"
    return pages


OUTSIDE = outside_pages()
SOURCES = {place: source for source, place in OUTSIDE.items()}


def api_page() -> str:
    """The public names of `clozelab`, in the order of `__all__`, for mkdocstrings."""
    introduction = "Made from the docstrings; [From Python](python.md) has examples."
    return f"# Public names\n\n{introduction}\n\n" + "\n\n".join(
        f"::: {address}" for address in public_addresses()
    )


def public_addresses() -> Iterator[str]:
    """Where each public name is defined: `_PLACES` of the package, else the package itself."""
    tree = ast.parse((ROOT / "src/clozelab/__init__.py").read_text(encoding="utf-8"))
    values = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = node.value
    places = ast.literal_eval(values["_PLACES"])
    for name in ast.literal_eval(values["__all__"]):
        module = f"clozelab.{places[name]}" if name in places else "clozelab"
        yield f"{module}.{name}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside of docs/, and the page of public names."""
    for source, place in OUTSIDE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "api.md", content=api_page()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point each link at the page of the site, or at the repository where the site has none."""
    place = page.file.src_uri
    source = SOURCES.get(place, f"docs/{place}")

    def moved(match: re.Match[str]) -> str:
        address = match[0]
        if address.lstrip().startswith("```") or re.match(r"#|[a-z]+:", address):
            return address
        path, mark, anchor = address.partition("#")
        target = normpath(join(dirname(source), path))
        there = OUTSIDE.get(target, target.removeprefix("docs/"))
        if files.get_file_from_path(there) is not None:
            return relpath(there, dirname(place) or ".") + mark + anchor
        if (ROOT / target).exists():
            return f"{config.extra['repository']}/blob/main/{target}{mark}{anchor}"
        return address

    return ADDRESS.sub(moved, markdown)
