"""Who imports whom in a package, read from its sources.

An `__init__.py` that holds a docstring alone is the face of its package, not a module.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

from house_counts import Source


def all_imports(tree: ast.Module) -> Iterator[tuple[str, str | None]]:
    """(module, name) of every import, inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from _targets(node)


def loading_imports(body: Iterable[ast.stmt]) -> Iterator[tuple[str, str | None]]:
    """(module, name) of every import that Python follows where it loads the module."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from _targets(node)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test):
            yield from loading_imports([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from loading_imports(node.body)


def _targets(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str | None]]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            yield alias.name, None
        elif node.module:
            yield node.module, alias.name


class ImportGraph:
    """The modules of a package, and which of them each module imports.

    `sources` are the files below `folder`, named from the root as `src/package/room/module.py`.
    With `lazy`, imports inside functions and under TYPE_CHECKING count too.
    """

    def __init__(self, sources: list[Source], folder: str, *, lazy: bool) -> None:
        self.sources = {self._name(source.path, folder): source for source in sources}
        self.modules = {name for name, source in self.sources.items() if not self._is_face(source)}
        self.imports: dict[str, set[str]] = {}
        for name, source in self.sources.items():
            pairs = all_imports(source.tree) if lazy else loading_imports(source.tree.body)
            self.imports[name] = {self._resolve(module, member) for module, member in pairs}
            self.imports[name] -= {name, ""}

    @staticmethod
    def _name(path: str, folder: str) -> str:
        relative = Path(path).relative_to(folder).with_suffix("")
        return ".".join(relative.parts).removesuffix(".__init__")

    @staticmethod
    def _is_face(source: Source) -> bool:
        if Path(source.path).name != "__init__.py":
            return False
        return all(isinstance(node, ast.Expr) for node in source.tree.body)

    def _resolve(self, module: str, member: str | None) -> str:
        """The module that an import reaches; empty for one outside the package."""
        for name in (f"{module}.{member}", module):
            if name in self.sources:
                return name
        return ""

    def reachable(self, starts: Iterable[str]) -> set[str]:
        """Modules that are imported from `starts`, directly or through others."""
        reached: set[str] = set()
        unread = list(starts)
        while unread:
            new = self.imports.get(unread.pop(), set()) - reached
            reached |= new
            unread += new
        return reached & self.modules

    def circles(self) -> list[set[str]]:
        """The sets of modules that all import each other, directly or through others."""
        reached = {name: self.reachable([name]) for name in self.modules}
        circles: list[set[str]] = []
        for name in sorted(self.modules):
            circle = {other for other in reached[name] if name in reached[other]}
            if circle and circle not in circles:
                circles.append(circle)
        return circles

    @cached_property
    def depths(self) -> dict[str, int]:
        """Length of the longest chain of imports that begins at each module."""
        if self.circles():
            raise SystemExit(f"modules import each other in a circle: {self.circles()}")
        depths: dict[str, int] = {}

        def depth(name: str) -> int:
            if name not in depths:
                below = self.imports[name] & self.modules
                depths[name] = 1 + max(map(depth, below), default=0)
            return depths[name]

        for name in self.modules:
            depth(name)
        return depths

    def longest_chain(self) -> list[str]:
        """The longest chain of imports, from its top."""
        chain: list[str] = []
        names = self.modules
        while names:
            chain.append(max(sorted(names), key=self.depths.__getitem__))
            names = self.imports[chain[-1]] & self.modules
        return chain
