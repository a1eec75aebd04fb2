"""Masked language model: 15 % of the WordPieces are predicted from both sides (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

from clozelab.corpus.packing import Masking, PackedRows, SpecialIds
from clozelab.objectives.objective import Arrays, Epoch, TokenObjective


class MaskedLanguageModel(TokenObjective):
    """Predicts `predict_prob` of each row's tokens; of those, the encoder sees [MASK], a random token or the token
    itself.

    ValueError where the three fractions do not sum to 1.
    """

    name = "mlm"
    is_causal = False

    def __init__(
        self, *, predict_prob: float, mask_fraction: float, random_fraction: float, same_fraction: float, weight: float
    ) -> None:
        self.masking = Masking(predict_prob, mask_fraction, random_fraction, same_fraction)
        self.predicted_fraction = predict_prob
        self.weight = weight

    def instance(self, rows: PackedRows, ids: SpecialIds, seed: int, epoch: Epoch) -> Arrays:
        input_ids, position, labels = self.masking.apply(rows, ids, seed, epoch)
        return {"input_ids": input_ids, "prediction_rows": position, "prediction_labels": labels}
