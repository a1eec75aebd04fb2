"""docs/architecture.md draws the house as it is: its floors, and who imports whom."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from clozelab.verbs import HYDRA_VERBS, PLAIN_VERBS

MOST_LINES_OF_A_VERB = 150
ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "clozelab"
CLAIMS = ROOT / "src" / "claims"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


# Public classes of one name. Recorded configurations have the addresses of these two input formats.
NAMED_IN_CONFIGURATIONS = {"SentencePairs"}


def imported_modules(path: Path) -> set[str]:
    """Full names of all that a file imports of the package, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "clozelab":
            names |= {f"clozelab.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name for name in names if name.startswith("clozelab.")}


def actual_imports() -> dict[str, set[str]]:
    """Room -> the rooms that it imports from. A file at the top is a room of its own."""
    imports: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room.startswith("__"):
            continue
        rooms = {name.split(".")[1] for name in imported_modules(path)}
        imports.setdefault(room, set()).update(rooms - {room, "version"})
    return imports


def test_the_table_says_who_imports_whom() -> None:
    section = PAGE.partition("## Who imports whom")[2].partition("\n## ")[0]
    drawn: dict[str, set[str]] = {}
    for room, names in re.findall(r"^\| `(\w+)` \| (.*?) \|$", section, re.MULTILINE):
        drawn[room] = set(re.findall(r"`(\w+)`", names))
    actual = {room: rooms for room, rooms in actual_imports().items() if rooms}
    assert drawn == actual


def test_the_floors_are_those_of_the_contract() -> None:
    picture = PAGE.partition("```\n")[2].partition("```")[0]
    floors = [line[:50].strip() for line in picture.splitlines()]
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = pyproject["tool"]["importlinter"]["contracts"]
    assert floors == next(one["layers"] for one in contracts if one["type"] == "layers")


def test_every_room_and_file_that_the_page_names_is_there() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir() if not path.name.startswith("_")}
    rooms -= {"py"}  # py.typed
    for room in rooms - {"version"}:
        assert re.search(rf"\b{room}\b", PAGE), room
    for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py|\.yaml)?)`", PAGE):
        places = (ROOT / name, PACKAGE / name, PACKAGE.parent / name)
        assert any(place.exists() for place in places), name


def test_no_two_public_classes_have_one_name() -> None:
    files: dict[str, list[str]] = {}
    for path in sorted([*PACKAGE.rglob("*.py"), *CLAIMS.rglob("*.py")]):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files.setdefault(node.name, []).append(str(path.relative_to(PACKAGE.parent)))
    twice = {name: places for name, places in files.items() if len(places) > 1}
    assert twice.keys() == NAMED_IN_CONFIGURATIONS, twice


def test_a_verb_is_a_table_of_contents() -> None:
    """Every file of stages/ is a verb of the command line, short, and imports no other one."""
    files = {path.stem: path for path in (PACKAGE / "stages").glob("[a-z]*.py")}
    verbs = PLAIN_VERBS.keys() | HYDRA_VERBS.keys()
    assert files.keys() == verbs
    for name, path in files.items():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES_OF_A_VERB, name
        others = [module for module in imported_modules(path) if ".stages" in module]
        assert not others, name
