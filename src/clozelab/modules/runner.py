"""A finished model over many sequences: its encoder in batches of similar lengths.

The encoder runs in bf16 where the processor multiplies that, heads and probabilities in fp32.

Letters: T tokens of a batch, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozelab.datamodules.encoded import Encoded
from clozelab.models.folders import refuse_foreign
from clozelab.models.leftovers import TASK_KINDS
from clozelab.models.registry import family_for
from clozelab.modules.model import Model
from clozelab.tasks.batches import (
    Batch,
    BatchValues,
    activate,
    in_order,
    logits_fp32,
    make_batch,
)
from clozelab.tasks.sequences import Ints, Sequences, pool_windows, token_budget_batches
from clozelab.tasks.texts import sequence_states
from clozelab.training.runtime import (
    MAX_FP32_ERROR,
    choose_precision,
    onednn_fp32,
    onednn_fp32_error,
)

PRECISIONS = ("auto", "bf16-mixed", "32-true")
BATCH_TOKENS = 4096
# Kind of head -> what trains one.
COMMANDS = {
    "lm": "clozelab pretrain objective=mlm encoder=FOLDER",
    "nsp": "clozelab pretrain objective=mlm_nsp encoder=FOLDER",
    "classification": "clozelab finetune encoder=FOLDER row=NAME task=sst2",
    "tags": "clozelab finetune encoder=FOLDER row=NAME task=ner_conll2003",
    "spans": "clozelab finetune encoder=FOLDER row=NAME task=squad_v1",
}

ReadStates = Callable[[Tensor, Batch], BatchValues]  # [T, H] and their batch -> what is kept
SlotsOfBatch = Callable[[Batch], Tensor | None]  # of a batch: some of its slots, [R]; None: all


def all_slots(batch: Batch) -> Tensor | None:  # noqa: ARG001
    """None: the state of every slot is read."""
    return None


class ModelRunner:
    """A model on its device, in its precision; `run` reads sequences with it.

    `device`: cpu, cuda or auto (a GPU where there is one). `precision`: one of PRECISIONS, of the
    encoder. `progress` is put around the batches: rich.progress.track shows a bar.
    """

    def __init__(self, model: Model, *, device: str = "auto", precision: str = "auto") -> None:
        self.device = resolve_device(device)
        if precision not in PRECISIONS:
            raise ValueError(f"precision={precision}: choose one of {', '.join(PRECISIONS)}")
        # A tagger by features has learnt from those of an encoder in fp32.
        if precision == "auto" and "feature_mix" in model.heads:
            precision = "32-true"
        self.model = model
        self.tokenizer = model.tokenizer
        self.encoder = model.encoder.to(self.device).eval()
        self.heads = model.heads.to(self.device).eval()
        is_cpu = self.device.type == "cpu"
        self.precision = choose_precision(precision, "cpu" if is_cpu else "gpu")
        self.progress: Callable[[Sequence[Ints]], Iterable[Ints]] = iter
        # oneDNN multiplies fp32 faster, where it does not round the factors.
        self._fp32_library: Any = nullcontext
        if is_cpu and self.precision == "32-true":
            error = onednn_fp32_error()
            if error is not None and error <= MAX_FP32_ERROR:
                self._fp32_library = onednn_fp32

    def head(self, kind: str, verb: str) -> Any:
        """The head of a kind; ValueError where it is not there, or is not ours."""
        if kind in self.heads:
            if kind == "lm":
                family_for(self.encoder.config).require_masks(self.model.config)
            return self.heads[kind]
        if kind in TASK_KINDS:
            refuse_foreign(self.model.foreign, self.model.folder)
        trained = [name for name in self.heads if name not in ("bilstm", "feature_mix")]
        lack = f"its {kind} head was never trained"
        if {kind, "pooler"}.issubset(self.model.untrained):
            lack = f"it has no trained pooler, which its {kind} head reads"
        raise ValueError(
            f"{self.model.folder} cannot {verb}: {lack} (trained heads:"
            f" {', '.join(trained) or 'none'}); train one:"
            f" {COMMANDS[kind].replace('FOLDER', str(self.model.folder))}"
        )

    @torch.inference_mode()
    def run(
        self,
        sequences: Sequences,
        read: ReadStates,
        *,
        hidden_states: bool = False,
        reads_bilstm: bool = False,
        read_slots: SlotsOfBatch = all_slots,
        max_tokens: int = BATCH_TOKENS,
    ) -> list[BatchValues]:
        """Calls `read` with every batch's states [T, H], and returns its values on the host.

        `hidden_states`: those of all layers are in the batch. `read_slots`: of a batch, the slots
        whose states `read` reads.
        """
        is_bf16 = self.precision.startswith("bf16")
        bilstm = None
        if reads_bilstm and "bilstm" in self.heads:
            bilstm = self.heads["bilstm"]
        outputs = []
        for index in self.progress(token_budget_batches(sequences.lengths, max_tokens)):
            batch = make_batch(sequences, index, {})
            # A layout moves as tensors do.
            batch = {key: value.to(self.device) for key, value in batch.items()}
            with (
                torch.autocast(self.device.type, torch.bfloat16, enabled=is_bf16),
                self._fp32_library(),
            ):
                # A BiLSTM reads every state.
                slots = read_slots(batch) if bilstm is None else None
                states, batch["hidden_states"] = self.encoder.read(batch, hidden_states, slots)
                if bilstm is not None:
                    states = bilstm(states, batch["layout"])
                numbers, values = read(states, batch)
            self.refuse_not_finite(values)
            outputs.append((numbers.cpu(), values.cpu()))
        return outputs

    @contextmanager
    def without_global_tokens(self) -> Iterator[None]:
        """Within it the encoder reads as one without a head: what is global is the head's."""
        choose_global = self.encoder.choose_global
        self.encoder.choose_global = None
        try:
            yield
        finally:
            self.encoder.choose_global = choose_global

    def refuse_not_finite(self, values: Tensor) -> None:
        if not torch.isfinite(values).all():
            raise ValueError(
                f"{self.model.folder} gives no finite numbers: its weights are damaged or diverged"
            )

    def sequence_logits(self, head: nn.Module, encoded: Encoded) -> NDArray[np.float32]:
        """[readable texts, outputs of the head]; logits of windows are pooled as in training.

        What a cross-encoder makes of them comes behind that.
        """
        sequences = encoded.sequences
        has_bilstm = "bilstm" in self.heads

        def logits(hidden: Tensor, batch: Batch) -> BatchValues:
            states = sequence_states(self.encoder, head, hidden, batch["layout"], has_bilstm)
            return batch["example_index"], logits_fp32(head, states)

        def pooled_slots(batch: Batch) -> Tensor | None:
            return self.encoder.pooled_slots(batch["layout"])

        outputs = self.run(sequences, logits, reads_bilstm=True, read_slots=pooled_slots)
        values = in_order(outputs, len(sequences))
        pooling = self.model.provenance.get("window_pooling", "mean")
        pooled = pool_windows(values, encoded.window_offsets, pooling)
        return activate(head, torch.from_numpy(pooled)).numpy()


def resolve_device(device: str | torch.device) -> torch.device:
    """The device that `auto` or a name means; ValueError for one that is not here."""
    has_gpu = torch.cuda.is_available()
    name = str(device)
    if device == "auto":
        name = "cuda" if has_gpu else "cpu"
    device_type = name.partition(":")[0]
    if device_type != "cpu" and not (device_type == "cuda" and has_gpu):
        raise ValueError(
            f"device={device}: choose auto, cpu or cuda; there is {'a' if has_gpu else 'no'}"
            " GPU here"
        )
    return torch.device(name)
