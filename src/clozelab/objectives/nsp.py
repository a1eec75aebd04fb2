"""Next-sentence prediction: does B follow A in the text? Label 1 = B is random, as released."""

from __future__ import annotations

from clozelab.corpus.instances import InputFormat
from clozelab.corpus.packing import I64, PackedInstances
from clozelab.objectives.objective import PairObjective


class NextSentencePrediction(PairObjective):
    """The input format draws the pairs and knows which are random."""

    name = "nsp"
    label = "next_sentence_label"
    is_of_other_document = True

    def check_input(self, input: InputFormat) -> None:
        if not input.has_pairs:
            raise ValueError(
                f"Objective {self.name} needs segment pairs, but {type(input).__name__} makes none:"
                " choose objective/input=segment_pairs, or an objective without a pair part, such"
                " as objective=mlm."
            )

    def arrange(self, packed: PackedInstances) -> tuple[PackedInstances, I64]:
        assert packed.next_sentence_label is not None
        return packed, packed.next_sentence_label
