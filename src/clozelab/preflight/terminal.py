"""Findings and facts as rich tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clozelab.preflight.findings import ERROR, OK, WARNING, Finding
from clozelab.preflight.machine import Fact

STYLES = {OK: "green", WARNING: "yellow", ERROR: "bold red"}


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """One row a finding, what went wrong last and with its remedy."""
    table = Table(box=box.SIMPLE)
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("what", overflow="fold", ratio=3)
    table.add_column("figure", overflow="fold", ratio=2)
    order = (OK, WARNING, ERROR)
    for one in sorted(findings, key=lambda one: order.index(one.level)):
        table.add_row(one.check, f"[{STYLES[one.level]}]{one.level}[/]", escape(one.what), escape(one.figure))
        if one.remedy:
            table.add_row("", "", f"[italic]-> {escape(one.remedy)}[/]", "")
    console.print(table)
    counts = Counter(one.level for one in findings)
    console.print(", ".join(f"[{STYLES[level]}]{counts[level]} {level}[/]" for level in order if counts[level]))


def print_facts(facts: Iterable[Fact], versions: Mapping[str, str], console: Console) -> None:
    """Groups of facts as they come, and the versions."""
    table = Table(box=box.SIMPLE, show_header=False)
    for _ in range(4):
        table.add_column(overflow="fold")
    group = ""
    for fact in facts:
        table.add_row(
            fact.group if fact.group != group else "",
            escape(fact.name),
            escape(fact.value),
            f"[dim]{escape(fact.note)}[/]",
        )
        group = fact.group
    for number, (name, version) in enumerate(versions.items()):
        table.add_row("versions" if not number else "", name, version, "")
    console.print(table)
