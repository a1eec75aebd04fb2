"""The gate of the house on small trees: every count, and a ratchet that turns one way only."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = ("house", "house_counts", "house_imports")


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """benchmarks/house.py as a module."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("house")
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with an empty package and the other trees."""
    for folder in ("src/clozelab", "src/microworld", "tests", "benchmarks"):
        (tmp_path / folder).mkdir(parents=True)
    write(tmp_path, "src/clozelab/__init__.py", '"""The package."""\n')
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def counted(house: ModuleType, root: Path, tree: str = "src/clozelab") -> dict[str, float]:
    """Every count of a tree by its name."""
    sources = house.house_counts.read_sources(root, tree)
    return {count.name: count.value for count in house.count_tree(tree, sources)}


def limits(root: Path, tree: str = "src/clozelab") -> dict[str, dict[str, float]]:
    return json.loads((root / "benchmarks/house.json").read_text())[tree]


def complexity(house: ModuleType, body: str) -> int:
    source = house.house_counts.Source("module.py", f"def function():\n{body}")
    (spot,) = house.house_counts.complexities(source)[:1]
    return spot.size


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("    return a or b or c\n", 1),
        ("    if a:\n        b()\n    elif c:\n        d()\n    else:\n        e()\n", 3),
        ("    for a in b:\n        if a:\n            c()\n", 1 + 2),
        ("    while a:\n        b()\n    else:\n        c()\n", 2),
        ("    try:\n        a()\n    except E:\n        if b:\n            c()\n", 1 + 2),
        ("    return [a if b else c for a in d if e]\n", 1 + 1 + 2),
        ("    return [a for b in c for a in b]\n", 2),
        ("    with a:\n        return lambda: [b for b in c]\n", 2),
        ("    def inner():\n        if a:\n            b()\n    return inner\n", 2),
        ("    match a:\n        case 1:\n            b()\n        case 2:\n            c()\n", 2),
    ],
)
def test_cognitive_complexity(house: ModuleType, body: str, expected: int) -> None:
    assert complexity(house, body) == expected


BUSY = '''"""A docstring costs nothing."""
# A comment neither.
def nested():
    return [[cell for cell in row] for row in rows()]  # one and its inner one


def doubled():
    return {word for line in lines() for word in line}


def assigned():
    first, second = 1, 2
    if value := first:
        return 1 if second else 2
    return value


def opaque():
    found = 1

    # The name lives for four lines.

    return found


def short():
    found = 1
    return found
'''


def test_habits_of_a_package(house: ModuleType, root: Path) -> None:
    write(root, "src/clozelab/busy.py", BUSY)
    counts = counted(house, root)
    assert counts["nested comprehensions"] == 2
    assert counts["tuple assignments"] == counts["walrus operators"] == 1
    assert counts["opaque names that live longer than three lines"] == 1
    # 5 functions and 10 statements within; 3 comprehensions; 1 conditional expression
    assert counts["statements"] == 15
    assert counts["comprehensions per 100 statements"] == round(300 / 15, 1)
    assert counts["conditional expressions per 100 statements"] == round(100 / 15, 1)
    # nested 1 + 2, doubled 2, assigned 1 + 2
    assert counts["cognitive complexity per 1,000 statements"] == round(8_000 / 15)
    assert counts["comment lines per 100 code lines"] == round(200 / 15, 1)


UNTYPED = """def first(values: ReadOnlyJson, name: str, *rest: Json) -> dict[str, Any]:
    node: JsonObject = dict(values)
    other: dict[str, int] = {}
    return node | other | {"Json": name, "rest": rest}


class Record:
    fields: Mapping[str, Any]
    child: Any
"""


def test_annotations_of_untyped_json(house: ModuleType, root: Path) -> None:
    write(root, "src/clozelab/untyped.py", UNTYPED)
    assert counted(house, root)["annotations of untyped JSON"] == 5


def test_sizes_of_lines_and_statements(house: ModuleType, root: Path) -> None:
    names = " + ".join(f"name_{number}" for number in range(14))
    terms = ", ".join(["1"] * 29)
    text = f'''def crowded(argument):
    """A docstring with name_0, name_1 and many tokens more."""
    return argument + {names}


FULL = [{terms}]
DENSE = [{terms}, 1]
'''
    write(root, "src/clozelab/sizes.py", text)
    counts = counted(house, root)
    assert counts["functions with a statement of more than 14 names"] == 1
    # FULL has 2 + 2 + 57 tokens, DENSE 2 + 2 + 59
    assert counts["logical lines above 60 tokens"] == 2
    write(root, "src/clozelab/sizes.py", text.replace("FULL = [1, ", "FULL = ["))
    assert counted(house, root)["logical lines above 60 tokens"] == 1
    assert counts["statements"] == 4
    # The line of `def` has 6 tokens, that of `return` 15 names and 14 operators more.
    tokens = 6 + 30 + 61 + 63
    assert counts["tokens"] == tokens
    assert counts["tokens per statement"] == round(tokens / 4, 1)


def test_complex_functions(house: ModuleType, root: Path) -> None:
    branch = "    if a:\n        b()\n"
    text = f"def fifteen():\n{branch * 15}\n\ndef sixteen():\n{branch * 16}\n"
    write(root, "src/clozelab/complex.py", f"{text}\n\ndef many():\n{branch * 26}")
    counts = counted(house, root)
    assert counts["functions of cognitive complexity above 15"] == 2
    assert counts["functions of cognitive complexity above 25"] == 1


def test_style_of_the_other_trees(house: ModuleType, root: Path) -> None:
    skipped = "VALUE = 1  # fmt: skip\n"
    text = f'{skipped}TEXT = "# fmt: skip"\nLONG = "{"x" * 91}"\nLONGER = "{"x" * 90}"\n'
    write(root, "tests/test_long.py", f"{text}NESTED = [b for a in c for b in a]\n")
    assert counted(house, root, "tests") == {
        "lines above 100 characters": 1,
        "fmt: skip": 1,
        "nested comprehensions": 1,
    }


def test_circles_count_lazy_and_typing_imports(house: ModuleType, root: Path) -> None:
    typed = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import clozelab.b\n"
    write(root, "src/clozelab/a.py", typed)
    write(root, "src/clozelab/b.py", "from clozelab import c\n")
    write(root, "src/clozelab/c.py", "def load():\n    from clozelab.a import value\n")
    write(root, "src/clozelab/d.py", "import clozelab.e\nfrom clozelab.a import value\n")
    write(root, "src/clozelab/e.py", "import os\n\n\ndef load():\n    import clozelab.d\n")
    write(root, "src/clozelab/alone.py", "import clozelab.a\n")
    counts = counted(house, root)
    assert counts["import circles"] == 2 and counts["modules in import circles"] == 5

    write(root, "src/clozelab/c.py", "")
    counts = counted(house, root)
    assert counts["import circles"] == 1 and counts["modules in import circles"] == 2


def test_a_rise_fails_and_names_the_worst(
    house: ModuleType, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, "src/clozelab/busy.py", BUSY)
    arguments = ["--root", str(root)]
    assert house.main([*arguments, "--write"]) == 0
    assert limits(root)["ceilings"]["nested comprehensions"] == 2
    assert house.main(arguments) == 0

    # One more nested comprehension in a new function; the average of comprehensions rises as well.
    write(root, "src/clozelab/more.py", "def more():\n    return [b for a in c for b in a]\n")
    before = limits(root)
    capsys.readouterr()
    assert house.main([*arguments, "--write"]) == 1
    output = capsys.readouterr().out
    assert "nested comprehensions  WORSE by 1\n" in output
    assert "src/clozelab/more.py:2 more" in output
    assert limits(root)["ceilings"]["nested comprehensions"] == 2
    assert limits(root)["budgets"] == before["budgets"]


def test_a_fall_is_said_and_written_where_asked(
    house: ModuleType, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, "src/clozelab/busy.py", BUSY)
    arguments = ["--root", str(root)]
    house.main([*arguments, "--write"])
    before = limits(root)

    calm = BUSY.replace("first, second = 1, 2", "first = second = 1").replace(
        "def opaque", "# A comment more.\ndef opaque"
    )
    write(root, "src/clozelab/busy.py", calm)
    capsys.readouterr()
    assert house.main(arguments) == 0
    assert "tuple assignments  better" in capsys.readouterr().out
    assert limits(root) == before

    assert house.main([*arguments, "--write"]) == 0
    after = limits(root)
    assert after["ceilings"]["tuple assignments"] == 0
    comments = "comment lines per 100 code lines"
    assert after["floors"][comments] > before["floors"][comments]
    # Then the old code is past the limits: a ceiling and the floor.
    write(root, "src/clozelab/busy.py", BUSY)
    assert house.main([*arguments, "--write"]) == 1
    assert limits(root) == after


def test_a_budget_of_size_is_a_persons(house: ModuleType, root: Path) -> None:
    write(root, "src/clozelab/size.py", "VALUE = 1\n" * 100)
    arguments = ["--root", str(root), "--write"]
    assert house.main(arguments) == 0
    budgets = limits(root)["budgets"]
    assert budgets == {"tokens": 306, "statements": 102}

    write(root, "src/clozelab/size.py", "VALUE = 1\n" * 103)
    assert house.main(arguments) == 1
    write(root, "src/clozelab/size.py", "VALUE = 1\n" * 90)
    assert house.main(arguments) == 0
    assert limits(root)["budgets"] == budgets
