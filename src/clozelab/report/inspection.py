"""A prepared corpus as a person looks at it: in the terminal, and as one page.

All text of the corpus is shown as text: what a terminal or a page would obey is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from claims.text.phrases import count_noun
from claims.text.terminal import Heading, make_console
from clozelab.terminal import print_table, say
from clozelab.text.formatting import visible

if TYPE_CHECKING:
    from clozelab.datamodules.inspection import (
        Histogram,
        Inspection,
        InstancePart,
        ShownDocument,
        ShownInstance,
    )

BAR_CHARACTERS = 40
# kind of a part -> colours in the terminal; without any, the marks below tell them apart
STYLES = {
    "special": "dim",
    "masked": "bold black on bright_yellow",
    "random": "bold white on red",
    "kept": "bold white on blue",
}
MARKS = {"random": "~", "kept": "="}
LEGEND = {
    "masked": "[MASK]{label}: hidden, the label is predicted",
    "random": "~token{label}: another token, drawn at random, stands in its place",
    "kept": "=token{label}: predicted, though the token itself is there",
    "one-sided": "one-sided: the text is whole, and a token is predicted from one side of it",
}


SOURCE_HEADINGS = ("source", "words", "tokens a word", "unknown words")


def word_rows(words: Mapping[str, Mapping[str, int]]) -> list[list[str]]:
    """A row of SOURCE_HEADINGS for each source of a manifest's `words`."""
    rows = []
    for source, counts in words.items():
        number = max(1, counts["words"])
        rows.append(
            [
                visible(source),
                f"{counts['words']:,}",
                f"{counts['tokens'] / number:.2f}",
                f"{counts['unknown_words'] / number:.2%}",
            ]
        )
    return rows


def print_words(words: Mapping[str, Mapping[str, int]]) -> None:
    """A table of the sources: how many tokens their words have, and how many are unknown."""
    headings = [Heading("source")]
    headings += [Heading(name, is_number=True) for name in SOURCE_HEADINGS[1:]]
    print_table(headings, word_rows(words))


def marked(part: InstancePart) -> str:
    """A part of an instance with its mark and its label, which can be read without colours."""
    text = visible(part.text)
    if part.label:
        text = f"{MARKS.get(part.kind, '')}{text}{{{visible(part.label)}}}"
    return text


def instance_title(instance: ShownInstance) -> str:
    """What is to be known of an instance before it is read."""
    numbers = [f"{number} {kind}" for kind, number in sorted(instance.predictions.items())]
    facts = [
        f"instance {instance.number}",
        f"{instance.num_tokens} of {instance.num_slots} slots ({instance.padding:.0%} padding)",
        f"predicted: {', '.join(numbers) or 'nothing'}",
        instance.pair,
        f"source {visible(instance.source)}",
    ]
    return "; ".join(filter(None, facts))


def print_inspection(inspection: Inspection) -> None:
    """Show it in the terminal."""
    console = make_console()
    say(inspection.title, "bold", console=console)
    for fact in inspection.facts:
        say(fact, wraps=True, console=console)
    if inspection.words:
        print_words(inspection.words)
    for histogram in inspection.histograms:
        _print_histogram(histogram, console)
    for document in inspection.documents:
        say(document_title(document), "bold", wraps=True, console=console)
        for sentence in document.sentences:
            say(f"  {visible(sentence)}", wraps=True, console=console)
    if inspection.instances:
        say(inspection.phase, "bold", wraps=True, console=console)
    for kind in _kinds_in(inspection.instances):
        console.print(Text(LEGEND[kind], style=STYLES.get(kind, "")))
    for instance in inspection.instances:
        say(instance_title(instance), "bold", wraps=True, console=console)
        for segment in instance.segments:
            line = Text(f"  type {segment.token_type}:")
            for part in segment.parts:
                line.append(part.space)
                line.append(marked(part), style=STYLES.get(part.kind, ""))
            console.print(line)


def document_title(document: ShownDocument) -> str:
    """A document's number, source and size."""
    sentences = count_noun(document.num_sentences, "sentence")
    tokens = count_noun(document.num_tokens, "token")
    title = f"document {document.number} of {visible(document.source)}: {sentences}, {tokens}"
    if len(document.sentences) < document.num_sentences:
        title += f"; the first {len(document.sentences)}:"
    return title


def _kinds_in(instances: Iterable[ShownInstance]) -> list[str]:
    """The kinds of predictions in some instances that the legend explains."""
    kinds = set().union(*(instance.predictions for instance in instances))
    return [kind for kind in LEGEND if kind in kinds]


def _print_histogram(histogram: Histogram, console: Console) -> None:
    say(histogram_title(histogram), "bold", wraps=True, console=console)
    widest = max(map(len, histogram.counts))
    most = max(histogram.counts.values())
    for label, count in histogram.counts.items():
        bar = "\u2588" * -(-BAR_CHARACTERS * count // most)  # rounded up: no count looks like none
        say(f"  {label:>{widest}} {count:>11,} {bar}", console=console)


def histogram_title(histogram: Histogram) -> str:
    """What its values are, their mean and the largest."""
    return f"{histogram.title}: mean {histogram.mean:,.1f}, largest {histogram.largest:,}"


def render_page(inspection: Inspection) -> bytes:
    """The page, which needs no other file."""
    from clozelab.report.page import templates

    environment = templates()
    helpers = (visible, marked, instance_title, document_title, histogram_title, word_rows)
    environment.globals.update({helper.__name__: helper for helper in helpers})
    template = environment.get_template("inspect.html.j2")
    kinds = _kinds_in(inspection.instances)
    page = template.render(it=inspection, headings=SOURCE_HEADINGS, kinds=kinds, legend=LEGEND)
    return page.encode()
