"""What became of the documents, step by step: counted by shard, added up, and shown as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from clozelab.corpus.steps.step import Document, StepReport
from clozelab.text.plain import JsonObject, PlainDict


@dataclass
class Tally:
    """What a step kept, by the number of the source, and what it says of the rest."""

    step: str
    documents: Counter[int] = field(default_factory=Counter)
    characters: Counter[int] = field(default_factory=Counter)
    report: StepReport = field(default_factory=StepReport)

    def counted(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The same documents, counted on their way."""
        for document in documents:
            self.documents[document.source] += 1
            self.characters[document.source] += document.num_characters
            yield document

    def facts(self) -> PlainDict:
        """As JSON has it."""
        return {
            "step": self.step,
            "documents": list(self.documents.items()),
            "characters": list(self.characters.items()),
            "report": vars(self.report),
        }

    def add(self, facts: JsonObject) -> None:
        """Add the tally of a later shard."""
        self.documents.update(dict(facts["documents"]))
        self.characters.update(dict(facts["characters"]))
        report = facts["report"]
        counters = {name: Counter(report[name]) for name in ("documents", "characters", "changed")}
        self.report.add(StepReport(**counters, examples=report["examples"]))


def add_tallies(shards: Iterable[Sequence[JsonObject]]) -> list[Tally]:
    """The tallies of all shards, each of which has the same steps in order."""
    totals: list[Tally] = []
    for tallies in shards:
        if not totals:
            totals = [Tally(facts["step"]) for facts in tallies]
        for total, facts in zip(totals, tallies, strict=True):
            total.add(facts)
    return totals
