"""What the gate counts in a tree of Python sources. It reads them and runs none.

A count is a list of spots: a function, a line or a module that adds to it. The spots name the worst
offenders where a count has risen. Comments, docstrings, blank lines and line breaks cost nothing.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

LONGEST_LINE = 100  # characters
MOST_TOKENS = 60  # of a logical line
MOST_NAMES = 14  # distinct names in a statement
OPAQUE_LIFE = 3  # lines between the first and the last use of an opaque name

# Names that say nothing of what they hold. A loop of one line may use them.
OPAQUE = frozenset(
    {"one", "other", "others", "found", "said", "mine", "theirs", "own", "known", "asked"}
    | {"wanted", "made", "taken", "usual", "meant", "both", "rest", "there", "here", "place"}
    | {"places", "part", "parts", "kind", "words", "what", "how", "way", "thing", "things"}
    | {"of", "at", "which", "chosen", "shown"}
)
UNTYPED_JSON = frozenset({"Json", "JsonObject", "ReadOnlyJson"})
UNTYPED_MAPPINGS = frozenset({"dict[str, Any]", "Mapping[str, Any]"})
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LAYOUT_TOKENS = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    | {tokenize.ENCODING, tokenize.ENDMARKER}
)


@dataclass(frozen=True)
class Spot:
    """A function, a line or a module that adds `size` to a count."""

    where: str
    size: int = 1


@dataclass(frozen=True)
class Function:
    """A function or method with the qualified name that it has in its module."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    where: str


class Source:
    """One file: its lines, its syntax tree, its tokens."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.lines = text.splitlines()
        self.tree = ast.parse(text)

    @cached_property
    def tokens(self) -> list[tokenize.TokenInfo]:
        """As Python 3.11 has them: an f-string is one token, whatever is inside it.

        From 3.12 on it has a token at its start, at its end and for each piece.
        """
        start = getattr(tokenize, "FSTRING_START", None)
        end = getattr(tokenize, "FSTRING_END", None)
        tokens: list[tokenize.TokenInfo] = []
        depth = 0
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == start:
                depth += 1
                if depth == 1:
                    tokens.append(token._replace(type=tokenize.STRING))
            elif token.type == end:
                depth -= 1
            elif depth == 0:
                tokens.append(token)
        return tokens

    @cached_property
    def comments(self) -> list[tokenize.TokenInfo]:
        return [token for token in self.tokens if token.type == tokenize.COMMENT]

    @cached_property
    def docstring_lines(self) -> set[int]:
        numbers: set[int] = set()
        nodes: Iterable[Any] = ast.walk(self.tree)
        for node in nodes:
            if is_docstring(node):
                numbers.update(range(node.lineno, node.end_lineno + 1))
        return numbers

    @cached_property
    def statements(self) -> list[ast.stmt]:
        nodes = ast.walk(self.tree)
        return [node for node in nodes if isinstance(node, ast.stmt) and not is_docstring(node)]

    @cached_property
    def functions(self) -> list[Function]:
        return list(self._functions_below(self.tree, ""))

    def _functions_below(self, parent: ast.AST, prefix: str) -> Iterator[Function]:
        for node in ast.iter_child_nodes(parent):
            if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                yield from self._functions_below(node, prefix)
                continue
            if isinstance(node, FUNCTIONS):
                name = prefix + node.name
                yield Function(name, node, f"{self.path}:{node.lineno} {name}")
            yield from self._functions_below(node, f"{prefix}{node.name}.")

    @cached_property
    def logical_lines(self) -> list[Spot]:
        """Every logical line of code, with the number of its tokens."""
        spots = []
        size = first = 0
        for token in self.tokens:
            if token.type == tokenize.NEWLINE:
                if size:
                    spots.append(Spot(f"{self.path}:{first}", size))
                size = 0
            elif token.type not in LAYOUT_TOKENS and token.start[0] not in self.docstring_lines:
                if size == 0:
                    first = token.start[0]
                size += 1
        return spots

    @property
    def comment_lines(self) -> int:
        """Lines that hold a comment and nothing else."""
        return sum(token.line.lstrip().startswith("#") for token in self.comments)

    @property
    def code_lines(self) -> int:
        blank = sum(not line.strip() for line in self.lines)
        return len(self.lines) - blank - self.comment_lines - len(self.docstring_lines)


def read_sources(root: Path, tree: str) -> list[Source]:
    """The Python files below `root / tree`, named by their paths below `root`."""
    sources = []
    for path in sorted((root / tree).rglob("*.py")):
        sources.append(Source(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")))
    return sources


def is_docstring(node: ast.AST) -> bool:
    """A string that stands alone: the docstring of a module, class, function or constant."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def is_nested_comprehension(node: ast.AST) -> bool:
    """A comprehension with two `for`, or with another comprehension inside."""
    if not isinstance(node, COMPREHENSIONS):
        return False
    within = [child for child in ast.walk(node) if isinstance(child, COMPREHENSIONS)]
    return len(within) > 1 or len(node.generators) > 1


def is_tuple_assignment(node: ast.AST) -> bool:
    """`a, b = x, y`: two statements in one."""
    if not isinstance(node, ast.Assign):
        return False
    return isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


class CognitiveComplexity(ast.NodeVisitor):
    """Cognitive complexity of a function, after SonarSource.

    A branch or a loop costs one, and one more for each level that it is nested. A comprehension
    counts as the loop that it is, each of its conditions and further loops costs one.
    """

    def __init__(self) -> None:
        self.total = 0
        self.depth = 0

    @classmethod
    def of(cls, function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        visitor = cls()
        for statement in function.body:
            visitor.visit(statement)
        return visitor.total

    def _visit_deeper(self, nodes: Iterable[ast.AST]) -> None:
        self.depth += 1
        for node in nodes:
            self.visit(node)
        self.depth -= 1

    def visit_If(self, node: ast.If) -> None:
        self.total += 1 + self.depth
        self.visit(node.test)
        self._visit_deeper(node.body)
        otherwise = node.orelse
        # An `elif` costs one, however deep it stands.
        while len(otherwise) == 1 and isinstance(otherwise[0], ast.If):
            branch = otherwise[0]
            self.total += 1
            self.visit(branch.test)
            self._visit_deeper(branch.body)
            otherwise = branch.orelse
        if otherwise:
            self.total += 1
            self._visit_deeper(otherwise)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.target)
        self.visit(node.iter)
        self._visit_loop(node)

    visit_AsyncFor = visit_For

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._visit_loop(node)

    def _visit_loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        self.total += 1 + self.depth
        self._visit_deeper(node.body)
        if node.orelse:
            self.total += 1
            self._visit_deeper(node.orelse)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self.total += 1 + self.depth
        self._visit_deeper(node.body)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.total += 1 + self.depth
        self.visit(node.test)
        self._visit_deeper([node.body, node.orelse])

    def _visit_comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    ) -> None:
        self.total += self.depth + len(node.generators)
        self.total += sum(len(generator.ifs) for generator in node.generators)
        self._visit_deeper(ast.iter_child_nodes(node))

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.total += 1
        self.generic_visit(node)

    def visit_match_case(self, node: ast.match_case) -> None:
        self.total += 1 + self.depth
        self.generic_visit(node)

    def _visit_inner_function(self, node: ast.AST) -> None:
        self._visit_deeper(ast.iter_child_nodes(node))

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_inner_function


def statement_names(statement: ast.stmt) -> int:
    """How many distinct names a statement has, the statements inside it left out."""
    names = set()
    unread: list[ast.AST] = [statement]
    while unread:
        node = unread.pop()
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(f".{node.attr}")
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
                unread.append(child)
    return len(names)


def opaque_names(function: ast.AST) -> int:
    """How many opaque names a function binds and still uses more than OPAQUE_LIFE lines later."""
    first_binding: dict[str, int] = {}
    last_use: Counter[str] = Counter()
    for node in ast.walk(function):
        if not isinstance(node, ast.Name) or node.id not in OPAQUE:
            continue
        last_use[node.id] = max(last_use[node.id], node.lineno)
        if isinstance(node.ctx, ast.Store):
            first_binding.setdefault(node.id, node.lineno)
    lives = [last_use[name] - line for name, line in first_binding.items()]
    return sum(life > OPAQUE_LIFE for life in lives)


def untyped_json(annotation: ast.AST) -> int:
    """How many values of unknown type an annotation has: the names of text/plain.py, and the like.

    `dict[str, Any]` is `JsonObject` in other words.
    """
    number = 0
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            number += node.id in UNTYPED_JSON
        elif isinstance(node, ast.Subscript):
            number += ast.unparse(node) in UNTYPED_MAPPINGS
    return number


def untyped_annotations(source: Source) -> list[Spot]:
    """A spot for every annotation of a parameter, a result, a variable or a field."""
    spots = []
    nodes: Iterable[Any] = ast.walk(source.tree)
    for node in nodes:
        annotation = None
        if isinstance(node, (ast.arg, ast.AnnAssign)):
            annotation = node.annotation
        elif isinstance(node, FUNCTIONS):
            annotation = node.returns
        if annotation is not None and untyped_json(annotation):
            spots.append(Spot(f"{source.path}:{node.lineno}"))
    return spots


# Each of the following gives the spots of one file that add to a count.
Finder = Callable[[Source], Iterable[Spot]]


def complexities(source: Source) -> list[Spot]:
    functions = source.functions
    return [Spot(function.where, CognitiveComplexity.of(function.node)) for function in functions]


def complex_functions(ceiling: int) -> Finder:
    def find(source: Source) -> list[Spot]:
        return [spot for spot in complexities(source) if spot.size > ceiling]

    return find


def dense_lines(source: Source) -> list[Spot]:
    return [spot for spot in source.logical_lines if spot.size > MOST_TOKENS]


def crowded_functions(source: Source) -> list[Spot]:
    spots = []
    for function in source.functions:
        inner = [node for node in ast.walk(function.node) if isinstance(node, ast.stmt)]
        most = max(statement_names(node) for node in inner if node is not function.node)
        if most > MOST_NAMES:
            spots.append(Spot(function.where, most))
    return spots


def opaque_functions(source: Source) -> list[Spot]:
    spots = [Spot(function.where, opaque_names(function.node)) for function in source.functions]
    return [spot for spot in spots if spot.size]


def long_lines(source: Source) -> list[Spot]:
    spots = []
    for number, line in enumerate(source.lines, 1):
        if len(line) > LONGEST_LINE:
            spots.append(Spot(f"{source.path}:{number}", len(line)))
    return spots


def skipped_formats(source: Source) -> list[Spot]:
    comments = [token for token in source.comments if "fmt: skip" in token.string]
    return [Spot(f"{source.path}:{token.start[0]}") for token in comments]


def nodes_where(condition: Callable[[ast.AST], bool]) -> Finder:
    """A spot for every function (or the top level of a module) that has such nodes."""

    def find(source: Source) -> list[Spot]:
        lines: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        unread: list[tuple[Any, tuple[int, str]]] = [(source.tree, (0, "(top level)"))]
        while unread:
            node, owner = unread.pop()
            if isinstance(node, FUNCTIONS):
                owner = (node.lineno, node.name)
            if condition(node):
                lines[owner].append(node.lineno)
            for child in ast.iter_child_nodes(node):
                unread.append((child, owner))
        spots = []
        for (_, name), numbers in lines.items():
            spots.append(Spot(f"{source.path}:{min(numbers)} {name}", len(numbers)))
        return spots

    return find


nested_comprehensions = nodes_where(is_nested_comprehension)
comprehensions = nodes_where(lambda node: isinstance(node, COMPREHENSIONS))
conditional_expressions = nodes_where(lambda node: isinstance(node, ast.IfExp))
walrus_operators = nodes_where(lambda node: isinstance(node, ast.NamedExpr))
tuple_assignments = nodes_where(is_tuple_assignment)
