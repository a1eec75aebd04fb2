"""Masked language model: 15 % of the tokens are predicted from both sides (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

from clozelab.corpus.packing import Epoch, Masking, PackedInstances, SpecialIds
from clozelab.objectives.objective import Arrays, Sight, TokenObjective


class MaskedLanguageModel(TokenObjective):
    """Predicts `predict_prob` of each instance's tokens; of those, the encoder sees [MASK], a random token or the token
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

    def arrays(self, packed: PackedInstances, ids: SpecialIds, seed: int, epoch: Epoch) -> Arrays:
        input_ids, position, labels = self.masking.apply(packed, ids, seed, epoch)
        return {"input_ids": input_ids, "prediction_positions": position, "prediction_labels": labels}

    def allowed(self, packed: PackedInstances, arrays: Arrays) -> list[Sight]:  # noqa: ARG002
        position = arrays["prediction_positions"]
        return [Sight(self.name, "encoder", position, position, past_only=False, own_share=self.masking.same_fraction)]
