"""Token stream -> vectors: word + token type + position, LayerNorm, dropout.

Letters: T tokens in the stream, H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clozelab.models.config import BertConfig
from clozelab.models.dropout import Dropout
from clozelab.models.initialisation import Embedding


class Embeddings(nn.Module):
    def __init__(self, config: BertConfig) -> None:
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
