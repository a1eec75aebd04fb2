"""ERNIE (Sun et al. 2019 and 2020): BERT, with embeddings of tasks where a folder has them.

Unusual: a text without a task is of task 0, whose embedding is added all the same. So it is in
transformers, and so every text is read here.
"""

from __future__ import annotations

from clozelab.models.config import EncoderConfig
from clozelab.models.config_keys import ConfigJson
from clozelab.models.families.bert import Family
from clozelab.text.plain import PlainDict

# What transformers writes where there are none.
DEFAULT_TASKS = 3


class Ernie(Family):
    model_type = "ernie"
    class_name = "Ernie"
    prefix = "ernie."
    causal_lm = "ForCausalLM"
    more_read = ("task_type_vocab_size", "use_task_id")
    # Of PaddlePaddle: how it computes, and a task that nobody asked for.
    harmless = ("enable_recompute", "fuse", "task_id")

    def to_hf_keys(self, config: EncoderConfig) -> PlainDict:
        number = config.task_type_vocab_size
        return {
            **super().to_hf_keys(config),
            "use_task_id": number > 0,
            "task_type_vocab_size": number or DEFAULT_TASKS,
        }

    def from_hf_keys(self, values: ConfigJson) -> PlainDict:
        # A file may name a number of tasks, and not use it.
        number = 0
        if values.get("use_task_id"):
            number = values.get("task_type_vocab_size", DEFAULT_TASKS)
        return {**super().from_hf_keys(values), "task_type_vocab_size": number}


FAMILY = Ernie()
