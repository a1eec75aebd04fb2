"""The gate of the house: habits that make code hard to read may only become rarer.

    python benchmarks/house.py             # reports; exit 1 where a count is past its limit
    python benchmarks/house.py --write     # also writes into house.json what has become better
    python benchmarks/house.py --worst 10  # also the worst functions and lines of every count

house.json has a ceiling for each bad habit, a floor for comments and a budget for size. `--write`
lowers ceilings and raises floors, never the other way round, and leaves budgets alone: for those a
person edits the file, and says why in the commit. Rates are rounded, so that a small change of an
average passes. Lines, modules and the depth of imports are reported and have no limit: a limit on
lines was met by writing denser.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import house_counts
from house_counts import Finder, Source, Spot
from house_imports import ImportGraph

LIMITS_FILE = "benchmarks/house.json"
PACKAGE = "src/clozelab"
PARTS = (PACKAGE, "src/claims")  # counted together, below the package's name
OTHER_TREES = ("src/microworld", "tests", "benchmarks")
SMALL_MODULE, LARGE_MODULE = 60, 400  # lines
SPOTS_SHOWN = 5
AIR = 1.02  # a new budget of size is so many times the present size

# The limits of a tree by group, by name, as they stand in the file.
Limits = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Habit:
    """What a count adds up: the number of spots or their sizes, on its own or per statements."""

    name: str
    find: Finder
    sums_sizes: bool = True
    per_statements: int = 0
    digits: int = 0


@dataclass(frozen=True)
class Count:
    """A figure of a tree, and the spots that it comes from."""

    name: str
    group: str
    value: float
    spots: list[Spot]

    def is_worse_than(self, limit: float) -> bool:
        return self.value < limit if self.group == "floors" else self.value > limit

    def is_better_than(self, limit: float) -> bool:
        return self.group != "budgets" and self.value != limit and not self.is_worse_than(limit)


STYLE = (
    Habit("lines above 100 characters", house_counts.long_lines, sums_sizes=False),
    Habit("fmt: skip", house_counts.skipped_formats),
    Habit("nested comprehensions", house_counts.nested_comprehensions),
)
HABITS = (
    *STYLE,
    Habit(
        "functions of cognitive complexity above 15",
        house_counts.complex_functions(15),
        sums_sizes=False,
    ),
    Habit(
        "functions of cognitive complexity above 25",
        house_counts.complex_functions(25),
        sums_sizes=False,
    ),
    Habit(
        "cognitive complexity per 1,000 statements",
        house_counts.complexities,
        per_statements=1_000,
    ),
    Habit(
        "tokens per statement",
        lambda source: source.logical_lines,
        per_statements=1,
        digits=1,
    ),
    Habit("logical lines above 60 tokens", house_counts.dense_lines, sums_sizes=False),
    Habit(
        "functions with a statement of more than 14 names",
        house_counts.crowded_functions,
        sums_sizes=False,
    ),
    Habit(
        "comprehensions per 100 statements",
        house_counts.comprehensions,
        per_statements=100,
        digits=1,
    ),
    Habit(
        "conditional expressions per 100 statements",
        house_counts.conditional_expressions,
        per_statements=100,
        digits=1,
    ),
    Habit("tuple assignments", house_counts.tuple_assignments),
    Habit("walrus operators", house_counts.walrus_operators),
    Habit("annotations of untyped JSON", house_counts.untyped_annotations),
    Habit("opaque names that live longer than three lines", house_counts.opaque_functions),
)


def count_habit(habit: Habit, sources: list[Source]) -> Count:
    spots: list[Spot] = []
    for source in sources:
        spots += habit.find(source)
    value: float = sum(spot.size for spot in spots) if habit.sums_sizes else len(spots)
    if habit.per_statements:
        statements = sum(len(source.statements) for source in sources)
        value = round(value * habit.per_statements / max(1, statements), habit.digits)
    return Count(habit.name, "ceilings", value, spots)


def count_circles(sources: list[Source]) -> list[Count]:
    """Circles of imports, those inside functions and under TYPE_CHECKING included."""
    circles = ImportGraph(sources, "src", lazy=True).circles()
    spots = [Spot(" ".join(sorted(circle)), len(circle)) for circle in circles]
    modules = sum(len(circle) for circle in circles)
    return [
        Count("import circles", "ceilings", len(circles), spots),
        Count("modules in import circles", "ceilings", modules, spots),
    ]


def count_comments(sources: list[Source]) -> Count:
    comments = sum(source.comment_lines for source in sources)
    code = sum(source.code_lines for source in sources)
    # The worst files are the largest of those with fewer comments than the tree as a whole.
    spots = []
    for source in sources:
        if source.comment_lines * code < comments * source.code_lines:
            spots.append(Spot(source.path, source.code_lines))
    return Count(
        "comment lines per 100 code lines", "floors", round(100 * comments / max(1, code), 1), spots
    )


def count_size(sources: list[Source]) -> list[Count]:
    tokens = []
    statements = []
    for source in sources:
        tokens.append(Spot(source.path, sum(line.size for line in source.logical_lines)))
        statements.append(Spot(source.path, len(source.statements)))
    return [
        Count("tokens", "budgets", sum(spot.size for spot in tokens), tokens),
        Count("statements", "budgets", sum(spot.size for spot in statements), statements),
    ]


def count_tree(tree: str, sources: list[Source]) -> list[Count]:
    """Everything that has a limit in a tree: all habits in the package, style elsewhere."""
    if tree != PACKAGE:
        return [count_habit(habit, sources) for habit in STYLE]
    counts = [count_habit(habit, sources) for habit in HABITS]
    return [*counts, *count_circles(sources), count_comments(sources), *count_size(sources)]


def check(tree: str, counts: list[Count], limits: Limits) -> bool:
    """Prints every count beside its limit. Whether one of them is past it."""
    print(f"\n{tree}")
    any_worse = False
    for count in counts:
        limit = limits.get(count.group, {}).get(count.name)
        if limit is None:
            print(f"{count.value:>10,.10g} {'':>10}  {count.name}  no limit yet: --write sets one")
            continue
        verdict = ""
        is_worse = count.is_worse_than(limit)
        if is_worse:
            verdict = f"  WORSE by {abs(count.value - limit):,.10g}"
        elif count.is_better_than(limit):
            verdict = "  better: --write keeps it"
        print(f"{count.value:>10,.10g} {limit:>10,.10g}  {count.name}{verdict}")
        if is_worse:
            print_worst(count, SPOTS_SHOWN)
            any_worse = True
    return any_worse


def print_worst(count: Count, number: int) -> None:
    for spot in sorted(count.spots, key=lambda spot: -spot.size)[:number]:
        print(f"{'':23}{spot.size:>7,}  {spot.where}")


def improve(counts: list[Count], limits: Limits) -> None:
    """Takes over into a tree's limits what has become better, and what has no limit yet."""
    for count in counts:
        group = limits.setdefault(count.group, {})
        if count.name not in group:
            is_budget = count.group == "budgets"
            group[count.name] = math.ceil(count.value * AIR) if is_budget else count.value
        elif count.is_better_than(group[count.name]):
            group[count.name] = count.value


def describe(sources: list[Source]) -> None:
    """Prints what is only reported: lines, modules, what imports what."""
    graph = ImportGraph(sources, "src", lazy=False)
    package = f"{Path(PACKAGE).name}."
    lines = {name: len(source.lines) for name, source in graph.sources.items()}
    report(sum(lines.values()), f"lines below {' and '.join(PARTS)}")
    report(len(graph.modules), "modules")
    small = [name for name in graph.modules if lines[name] < SMALL_MODULE]
    report(len(small), f"modules below {SMALL_MODULE} lines")
    chain = graph.longest_chain()
    report(len(chain), "modules in the longest chain of imports")
    for door in ("results", "stages.pretrain"):
        names = {name for name in graph.modules if name.startswith(package + door)}
        report(len(names | graph.reachable(names)), f"modules loaded by {package}{door}")
    print("\nlongest chain: " + " > ".join(name.removeprefix(package) for name in chain))

    # A room is a folder of the package, and all of a smaller one; modules beside the folders are
    # its top.
    rooms: Counter[str] = Counter()
    for source in sources:
        _, part, *folders = Path(source.path).parts[:-1]
        room = folders[0] if folders else "(top)"
        if f"src/{part}" != PACKAGE:
            room = part
        rooms[room] += len(source.lines)
    print("lines by room: " + join(rooms.items()))
    large = [(name.removeprefix(package), lines[name]) for name in lines]
    large = [(name, number) for name, number in large if number > LARGE_MODULE]
    print(f"above {LARGE_MODULE} lines: " + (join(large) or "none"))


def report(figure: int, name: str) -> None:
    print(f"{figure:>7,}  {name}")


def join(items: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in sorted(items))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write what has become better")
    parser.add_argument("--worst", type=int, default=0, help="spots to name for every count")
    root = Path(__file__).resolve().parents[1]
    parser.add_argument("--root", type=Path, default=root, help="top of the checkout")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    limits_file = options.root / LIMITS_FILE
    limits: dict[str, Any] = {}
    if limits_file.is_file():
        limits = json.loads(limits_file.read_text(encoding="utf-8"))

    is_worse = False
    for tree in (PACKAGE, *OTHER_TREES):
        sources = []
        for part in PARTS if tree == PACKAGE else (tree,):
            sources += house_counts.read_sources(options.root, part)
        if tree == PACKAGE:
            describe(sources)
            print(f"\n{'now':>10} {'limit':>10}")
        counts = count_tree(tree, sources)
        tree_limits = limits.setdefault(tree, {})
        is_worse |= check(tree, counts, tree_limits)
        if options.worst:
            for count in counts:
                print(f"\n  {count.name}")
                print_worst(count, options.worst)
        if options.write:
            improve(counts, tree_limits)

    if options.write:
        limits_file.write_text(json.dumps(limits, indent=2) + "\n", encoding="utf-8")
    if is_worse:
        print(f"\nthe house is worse than {LIMITS_FILE} allows: see WORSE above")
    return int(is_worse)


if __name__ == "__main__":
    sys.exit(main())
