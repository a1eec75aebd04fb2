"""How large and how deep the house is: lines, modules, the longest chain of imports, what two doors
bring with them.

None of it is limited: a limit on lines was met by writing denser.

Run it at the top of a checkout: `python benchmarks/house.py`. It reads the sources below
src/clozelab and runs none. An import counts where Python follows it on loading a module: at the top
level, not inside a function and not under
`if TYPE_CHECKING`. An `__init__.py` that holds a docstring alone is the face of its package, not a
module.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = Path("src")
PACKAGE = "clozelab"
SMALL, LARGE = 60, 400


def imports(body: Iterable[ast.stmt]) -> Iterator[tuple[str, str | None]]:
    """(module, name) of every import that loading runs."""
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test):
            yield from imports([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from imports(node.body)


class House:
    """Modules of the package, their lines and what each imports of the others."""

    def __init__(self) -> None:
        files = {self._name(path): path for path in sorted((SOURCE / PACKAGE).rglob("*.py"))}
        trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in files.items()}
        self.lines = {
            name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in files.items()
        }
        self.modules = {
            name for name, tree in trees.items() if not self._is_face(files[name], tree)
        }
        self.needs = {
            name: {one for one in self._needed(tree, files) if one != name}
            for name, tree in trees.items()
        }
        self._depths: dict[str, int] = {}

    @staticmethod
    def _name(path: Path) -> str:
        return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")

    @staticmethod
    def _is_face(path: Path, tree: ast.Module) -> bool:
        return path.name == "__init__.py" and all(isinstance(node, ast.Expr) for node in tree.body)

    @staticmethod
    def _needed(tree: ast.Module, files: dict[str, Path]) -> Iterator[str]:
        for module, name in imports(tree.body):
            inner = f"{module}.{name}"
            found = inner if inner in files else module
            if found in files:
                yield found

    def closure(self, starts: Iterable[str]) -> set[str]:
        """Modules that loading `starts` loads, themselves included."""
        found: set[str] = set()
        left = list(starts)
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left.extend(self.needs[name])
        return found & self.modules

    def depth(self, name: str, above: tuple[str, ...] = ()) -> int:
        """Length of the longest chain of imports that begins at a module."""
        if name in above:
            raise SystemExit(f"modules import each other in a circle: {' > '.join([*above, name])}")
        if name not in self._depths:
            below = (self.depth(one, (*above, name)) for one in self.needs[name] & self.modules)
            self._depths[name] = 1 + max(below, default=0)
        return self._depths[name]

    def chain(self) -> list[str]:
        """The longest chain, from its top."""
        chain = [max(sorted(self.modules), key=self.depth)]
        while below := sorted(self.needs[chain[-1]] & self.modules):
            chain.append(max(below, key=self.depth))
        return chain


def main() -> None:
    house = House()
    chain = house.chain()
    verdicts = [name for name in house.modules if name.startswith(f"{PACKAGE}.verdicts")]
    counts = {
        "lines": sum(house.lines.values()),
        "modules": len(house.modules),
        "small": sum(house.lines[name] < SMALL for name in house.modules),
        "depth": len(chain),
        "verdicts": len(house.closure(verdicts)),
        "pretrain": len(house.closure([f"{PACKAGE}.stages.pretrain"])),
    }
    words = {
        "lines": f"lines below src/{PACKAGE}",
        "modules": "modules",
        "small": f"modules below {SMALL} lines",
        "depth": "modules in the longest chain of imports",
        "verdicts": f"modules loaded by {PACKAGE}.verdicts",
        "pretrain": f"modules loaded by {PACKAGE}.stages.pretrain",
    }
    for name, count in counts.items():
        print(f"{count:>7,}  {words[name]}")
    print("\nlongest chain: " + " > ".join(name.removeprefix(f"{PACKAGE}.") for name in chain))
    rooms: Counter[str] = Counter()
    for name, lines in house.lines.items():
        room = name.partition(".")[2].partition(".")[0]
        rooms[room if room and (SOURCE / PACKAGE / room).is_dir() else "(top)"] += lines
    print(
        "lines by room: " + ", ".join(f"{room} {lines:,}" for room, lines in sorted(rooms.items()))
    )
    large = sorted(
        (name.removeprefix(f"{PACKAGE}."), lines)
        for name, lines in house.lines.items()
        if lines > LARGE
    )
    print(
        f"above {LARGE} lines: " + (", ".join(f"{name} {lines}" for name, lines in large) or "none")
    )


if __name__ == "__main__":
    main()
