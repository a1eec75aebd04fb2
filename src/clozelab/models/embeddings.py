"""Token stream -> vectors: word + token type + position, LayerNorm, dropout.

Letters: T tokens in the stream, H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clozelab.models.config import EncoderConfig
from clozelab.models.kernels.cpu import Dropout
from clozelab.models.layers import Embedding


class Embeddings(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.word_embeddings = Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor) -> Tensor:
        """int64 [T] each -> [T, H]."""
        embedded = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        embedded = torch.add(embedded, self.position_embeddings(position_ids))
        return self.dropout(self.LayerNorm(embedded))

    @torch.no_grad()
    def tile_positions(self, trained: int, wanted: int) -> None:
        """Start positions trained..wanted-1 as copies of 1..trained-1, over and over; position 0 is [CLS]'s own.

        For rows that become longer during training: positions that no gradient has reached are foreign to attention
        heads that have learnt to look at neighbours, and a small late learning rate never brings them in. Copied ones
        work at once (Beltagy et al. 2020 extend 512 positions to 4,096 so).
        """
        if not 1 < trained < wanted <= self.position_embeddings.num_embeddings:
            raise ValueError(
                f"cannot extend {trained} trained positions to {wanted}: the model has "
                f"{self.position_embeddings.num_embeddings}"
            )
        positions = torch.arange(trained, wanted, device=self.position_embeddings.weight.device)
        self.position_embeddings.weight[positions] = self.position_embeddings.weight[
            1 + (positions - 1) % (trained - 1)
        ]
