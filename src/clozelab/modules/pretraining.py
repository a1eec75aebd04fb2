"""Pre-training: one Lightning batch is one optimizer step, this rank's list of micro-batches.

Unusual: manual optimisation. Each loss term's sum is divided by the number of its predictions in
the whole global batch (all ranks, all micro-batches), so the gradient does not depend on how the
batch is cut up; a mean of means would. Dropout is a function of (seed, step, rank, micro-batch), so
a checkpoint holds no generator state. Numbers stay on the device between log points.
"""

# ruff: noqa: ARG002  (Lightning fixes the signatures of its hooks)

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, SupportsFloat

import torch
from lightning.pytorch import Callback
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from clozelab.metrics.metric import NO_UNIT, Metric, metric_of
from clozelab.models.cost import parameter_count
from clozelab.models.encoder import Encoder, compile_encoder
from clozelab.models.folders import save_encoder_folder
from clozelab.models.heads import VocabularyHead
from clozelab.models.trained import frozen_weights, train_what_is_read, trained_count
from clozelab.modules.base import TrainingModule
from clozelab.modules.graphs import DeferredNumber, StepGraphs, refusal
from clozelab.modules.model import with_max_length
from clozelab.objectives.objective import (
    ONE_SOURCE,
    EncoderWithHeads,
    LossTerm,
    Objective,
    TorchBatch,
    build_models,
)
from clozelab.text.plain import PlainDict, ReadOnlyJson
from clozelab.training.checkpoints import Checkpoint, count_step, seed_forward
from clozelab.training.guards import SpikeWatch
from clozelab.training.runtime import uncompiled, widest_float
from clozelab.training.stopping import TERMINATED

log = logging.getLogger(__name__)
# A larger encoder keeps the device busy without graphs: of BERT-Base's 55 ms they saved 0.3 on an
# H200, and a step that can be taken back copies all weights and moments.
MOST_PARAMETERS_OF_GRAPHS = 50_000_000


class PretrainingModel(nn.Module):
    """The models that the objectives train, for a strategy to wrap or shard.

    Its forward takes one micro-batch to its loss terms.
    """

    def __init__(self, encoder: Encoder, objectives: Sequence[Objective]) -> None:
        super().__init__()
        self.objectives = list(objectives)
        self.named_models = build_models(encoder, objectives)
        for objective in objectives:
            objective.token.start(self.named_models)
        # What is not trained stands beside: no state, no sharding and no checkpoint has it.
        trained = {name: model for name, model in self.named_models.items() if model.is_trained}
        self.models = nn.ModuleDict(trained)
        reads_pooler = any(objective.pair is not None for objective in objectives)
        train_what_is_read(encoder, reads_pooler=reads_pooler)

    def _apply(self, *arguments: object, **options: object) -> PretrainingModel:
        """Models that are not trained move with the others."""
        for model in self.named_models.values():
            if not model.is_trained:
                model._apply(*arguments, **options)
        return super()._apply(*arguments, **options)

    @property
    def encoder(self) -> Encoder:
        """The encoder that is kept."""
        return self.named_models["encoder"].encoder

    @property
    def encoders(self) -> list[Encoder]:
        """Those that are trained."""
        return [model.encoder for model in self.named_models.values() if model.is_trained]

    def compile_parts(self, *, whole: bool, **options: object) -> None:
        """Compiles what is trained: each layer, or (`whole`) all layers in one and the losses.

        One compilation a shape; a loss has one for every number of predictions.
        """
        for encoder in self.encoders:
            compile_encoder(encoder, dynamic=False, whole=whole, **options)
        if not whole:
            return
        for module in self.modules():
            if isinstance(module, VocabularyHead):
                module.compile_loss(dynamic=True, **options)

    def objective_of(self, batch: TorchBatch) -> Objective:
        """The objective of the batch's phase."""
        return self.objectives[batch.get("phase", 0)]

    def forward(self, batch: TorchBatch) -> list[LossTerm]:
        return self.objective_of(batch).terms(self.named_models, batch)


class PretrainingModule(TrainingModule):
    """Trains an encoder, fresh or loaded, in place on one objective, or on several in turn.

    Args:
        objectives: one a phase, often the same; a batch names its phase by its number.
        matmul_ceiling: FLOP/s of one device, for the utilisation; 0 leaves it out.
        spike: what to do about a suddenly huge gradient (training/guards.py): off, stop or skip.
        cuda_graphs: replay steps as graphs (modules/graphs.py), on one device; `choose_graphs`
            decides for a run.
    """

    def __init__(
        self,
        encoder: Encoder,
        objectives: Sequence[Objective],
        *,
        matmul_ceiling: float,
        spike: str = "off",
        cuda_graphs: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.automatic_optimization = False
        self.model = PretrainingModel(encoder, objectives)
        # of the encoder, where its other weights are given; None: all of it is fresh
        self.fresh_heads: list[str] | None = None
        # words of text that have been read after each step
        self.words_by_step: Sequence[float] = ()
        # Known once a training begins.
        self.world_size = 1
        # Sharded over ranks (FSDP), a rank has a part of each weight until they are gathered.
        self._is_sharded = False
        self._whole_weights: dict[str, Tensor] | None = None
        self.matmul_ceiling = matmul_ceiling
        # name -> [sum, count] on the device, since the last log point or validation
        self._train_sums: dict[str, Tensor] = {}
        self._validation_sums: dict[str, Tensor] = {}
        self._first_steps: Sequence[int] = ()  # of the phases, as far as the data know them
        self._validated = ""  # the token term of the validation's objective
        self._phase = -1
        self.spikes = SpikeWatch(spike)
        self.cuda_graphs = cuda_graphs
        self._graphs: StepGraphs | None = None
        self._limit = math.inf  # of the gradient's norm, where graphs leave updates out
        # As `_train_sums`, in memory that graphs add to.
        self._graph_sums: dict[str, Tensor] = {}

    def setup(self, stage: str) -> None:
        # Sharding moves the others alone.
        for model in self.model.named_models.values():
            if not model.is_trained:
                model.to(self.trainer.strategy.root_device)

    def on_fit_start(self) -> None:
        self.world_size = self.trainer.world_size
        datamodule = getattr(self.trainer, "datamodule", None)
        self._first_steps = getattr(datamodule, "first_steps", ())
        # A checkpoint is read before the module moves to its device.
        for name, values in self._train_sums.items():
            self._train_sums[name] = values.to(self.device)

    def configure_model(self) -> None:
        """Shards over ranks under trainer=fsdp.

        Each layer is a unit; the rest (tied embeddings, heads) is one more.
        """
        strategy = getattr(self._trainer, "strategy", None)
        if isinstance(strategy, DDPStrategy) and len(set(self.model.objectives)) > 1:
            # A phase leaves heads of the other objectives without a gradient.
            strategy._ddp_kwargs["find_unused_parameters"] = True
        if not isinstance(strategy, ModelParallelStrategy) or self._is_sharded:
            return
        # A lazy import: seconds of start-up that no other trainer needs.
        from torch.distributed.fsdp import fully_shard

        mesh = strategy.device_mesh["data_parallel"]
        for encoder in self.model.encoders:
            for layer in encoder.blocks:
                fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self._is_sharded = True

    def training_step(self, micro_batches: list[TorchBatch], batch_index: int) -> dict[str, Tensor]:
        """One optimizer step."""
        step = self.trainer.global_step
        rate = self.learning_rate
        objective = self.model.objective_of(micro_batches[0])
        self._log_phase(micro_batches[0].get("phase", 0), step, objective)
        counts = self._global_counts(micro_batches, objective)
        graphs = self._step_graphs()
        loss = torch.zeros((), device=self.device)
        for index, batch in enumerate(micro_batches):
            seed_forward(self.seed, step, self.global_rank, index)
            self._count_work(batch)
            if graphs is None:
                loss += self._add_gradient(batch, counts, index == len(micro_batches) - 1)
            else:
                own_counts = self._to_device(list(objective.counts(batch).values()))
                loss += graphs.add_gradient(batch, counts, own_counts)
        norm = self.clip_gradient_norm() if graphs is None else graphs.clip()
        # No mean is over steps of two phases.
        ends = (self.total_steps, *self._first_steps)
        is_log_step = (step + 1) % self.log_interval_steps == 0 or step + 1 in ends
        updates = self._decide_update(step + 1, loss, norm, is_log_step=is_log_step)
        schedule: Any = self.lr_schedulers()
        if graphs is None:
            self._update(updates=updates)
        else:
            count_step(self.trainer)
            self._last_learning_rate = rate
            graphs.finish(updates=updates, limit=self._limit)
        schedule.step()
        if is_log_step:
            self._publish_training(rate, norm, objective)
        return {"loss": loss}

    def _add_gradient(self, batch: TorchBatch, counts: Tensor, is_last: bool) -> Tensor:
        """This micro-batch's share of the loss, as `_loss`; its gradient is added."""
        with self._gradient_sync(is_last):
            loss = self._loss(batch, counts, self._train_sums)
            # DDP and FSDP average gradients over ranks; the loss is already a share of the global
            # one.
            self.manual_backward(loss * self.trainer.world_size)
        return loss.detach()

    def _decide_update(self, step: int, loss: Tensor, norm: Tensor, *, is_log_step: bool) -> bool:
        """Whether to update the weights, as far as the host knows: `_limit` is for the device.

        To read a number waits for the device: on a GPU only log points do, and `skip` without
        graphs.
        """
        is_cpu = self.device.type == "cpu"
        reads_norm = is_log_step or (is_cpu and self.spikes.action == "stop")
        noted: SupportsFloat = norm
        if self.spikes.action == "skip" and self._graphs is None:
            reads_norm = True
        elif self.spikes.action == "skip":
            noted = DeferredNumber(norm)
            self._limit = self.spikes.limit(self.trainer, self._phase)
        skips = self.spikes.should_skip(
            self.trainer, step, noted, phase=self._phase, reads_norm=reads_norm
        )
        if not self.spikes.tolerates_non_finite and (is_cpu or is_log_step):
            # All ranks see the norm of the whole gradient, each its own loss.
            deciding = norm if self.trainer.world_size > 1 else norm + loss
            self.require_finite(step, deciding, loss=loss, gradient_norm=norm)
        return not skips

    def _update(self, *, updates: bool) -> None:
        optimizer: Any = self.optimizers()
        if updates:
            optimizer.step()
        else:
            count_step(self.trainer)
        optimizer.zero_grad(set_to_none=True)

    def _log_phase(self, phase: int, step: int, objective: Objective) -> None:
        """Says which phase begins, where there are several."""
        num_phases = len(self.model.objectives)
        if phase != self._phase and num_phases > 1:
            names = " and ".join(objective.weights)
            log.info("step %d: phase %d of %d, %s", step, phase + 1, num_phases, names)
        if phase != self._phase:
            # Another phase may train other heads.
            self._end_graphs()
        self._phase = phase

    def _step_graphs(self) -> StepGraphs | None:
        """What replays this phase's steps; None where they run as written."""
        if self.cuda_graphs and self._graphs is None:
            self._graphs = StepGraphs(
                self._graph_step,
                self.clip_gradient_norm,
                self.trainer.optimizers[0],
                self.device,
                captures=self.device.type == "cuda",
                skips=self.spikes.action == "skip",
            )
        return self._graphs

    def choose_graphs(self, requested: str, callbacks: Iterable[Callback] = ()) -> None:
        """Lets steps be graphs: auto (where they can be and help), on or off.

        Those of `callbacks` that act inside of a step would be silent.

        ValueError: they cannot be.
        """
        size = sum(parameter.numel() for parameter in self.parameters())
        is_large = requested == "auto" and size > MOST_PARAMETERS_OF_GRAPHS
        if requested == "off" or is_large:
            return
        optimizer = self.optimizer_factory(self.named_parameters())
        reason = refusal(optimizer, self.model.encoders, self.model.objectives, callbacks)
        if reason and requested == "on":
            raise ValueError(f"trainer.cuda_graphs=on does not work here: {reason}; choose auto")
        self.cuda_graphs = not reason

    def _graph_step(self, batch: TorchBatch, counts: Tensor, own_counts: Tensor) -> Tensor:
        """Adds a micro-batch's gradient; `own_counts` [terms] are its predictions."""
        loss = self._loss(batch, counts, self._graph_sums, own_counts)
        loss.backward()
        return loss.detach()

    def on_validation_model_zero_grad(self) -> None:
        """Lightning frees the gradients before a validation; graphs go on in their memory."""
        if self._graphs is None:
            super().on_validation_model_zero_grad()

    def _end_graphs(self) -> None:
        """Leaves the graphs; what they have added up stays."""
        self._take_graph_sums()
        self._graphs = None
        self._graph_sums = {}

    def _take_graph_sums(self) -> None:
        """Moves what graphs have added up to the other sums."""
        for name, values in self._graph_sums.items():
            taken = values.clone()
            self._train_sums[name] = self._train_sums.get(name, 0.0) + taken
            values.zero_()

    def transfer_batch_to_device(self, batch: Any, device: torch.device, index: int) -> Any:
        """Graphs take a batch from the host to their own memory."""
        if self.cuda_graphs and self.trainer.training:
            return batch
        return super().transfer_batch_to_device(batch, device, index)

    def _loss(
        self,
        batch: TorchBatch,
        counts: Tensor,
        sums: dict[str, Tensor],
        own_counts: Tensor | None = None,
    ) -> Tensor:
        """This micro-batch's share of the global loss; counts [terms]. Adds to the running sums.

        `own_counts` [terms]: its own predictions, where numbers of the host are not to be read.
        """
        loss = torch.zeros((), device=self.device)
        # The sum over weighted terms of (sum here) / (count in the global batch).
        objective = self.model.objective_of(batch)
        for number, term in enumerate(self.model(batch)):
            loss = loss + objective.weights[term.name] / counts[number] * term.loss_sum
            if own_counts is not None:
                term = replace(term, count=own_counts[number])
            add_sums(sums, term, only_finite=True)
        return loss

    def _count_work(self, batch: TorchBatch) -> None:
        """Counts a micro-batch's tokens and operations."""
        objective = self.model.objective_of(batch)
        lengths = batch.get("text_lengths", batch["layout"].lengths_list)
        tokens = sum(lengths)
        fraction = objective.token.num_predictions(batch) / tokens
        config = self.model.encoder.config
        shape = (config, max(lengths), fraction)
        flops_per_token = objective.flops_per_token(*shape)
        has_pair = objective.pair is not None
        flops_per_token -= objective.token.frozen_flops_per_token(*shape, self.frozen, has_pair)
        self.throughput.add(tokens, tokens * flops_per_token)

    @cached_property
    def frozen(self) -> frozenset[str]:
        """The names of the encoder's weights that are not trained."""
        return frozen_weights(self.model.encoder)

    def _to_device(self, numbers: Sequence[int]) -> Tensor:
        """fp32, by a copy that does not wait for the work that is queued on a GPU."""
        values = torch.tensor(numbers, dtype=torch.float32)
        is_cuda = self.device.type == "cuda"
        if is_cuda:
            values = values.pin_memory()
        return values.to(self.device, non_blocking=is_cuda)

    def _global_counts(self, micro_batches: list[TorchBatch], objective: Objective) -> Tensor:
        """[terms] predictions of each loss term in the global batch.

        The same reduction agrees on a stop, and on the digest of what the batch holds.
        """
        batch_counts = [objective.counts(batch) for batch in micro_batches]
        totals = []
        for name in objective.weights:
            totals.append(sum(counts[name] for counts in batch_counts))
        requested = self.stop_requested()
        contents = sum(batch.get("contents", 0) for batch in micro_batches)
        if self.trainer.world_size == 1:
            self.stop_agreed = requested
            self.update_batch_digest(contents % 2**40)
            return self._to_device(totals)
        # fp64 holds these integers exactly; one reduction for all of them.
        local = torch.tensor(
            [*totals, requested, contents], dtype=torch.float64, device=self.device
        )
        reduced = self._sum_over_ranks(local)
        any_requested, contents = (int(value) for value in reduced[-2:].tolist())
        self.update_batch_digest(contents % 2**40)
        # Every rank that is asked to stop adds its exit status: any sum above zero is a stop.
        self.stop_agreed = requested or (TERMINATED if any_requested else 0)
        return reduced[:-2].float()

    def _gradient_sync(self, is_last: bool) -> AbstractContextManager[object]:
        """Reduce gradients over ranks in the last micro-batch only."""
        wrapped = self.trainer.strategy.model
        if isinstance(wrapped, DistributedDataParallel) and not is_last:
            return wrapped.no_sync()
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            # a method that sharding adds
            self.model.set_requires_gradient_sync(is_last)  # type: ignore[operator]
        return nullcontext()

    def _publish_training(self, rate: float, norm: Tensor, objective: Objective) -> None:
        """Averages since the last log point, over all ranks and finite losses."""
        sums, work = self._reduced_progress()
        tokens, flops = work
        seconds = self.throughput.settle(int(tokens), float(flops))
        self._train_sums = {}
        loss = 0.0
        for name, weight in objective.weights.items():
            total, count = sums[f"{name}_loss"]
            loss += _mean(weight * total, count)
        metrics = {"train/loss": loss}
        for name, (total, count) in sums.items():
            metrics[f"train/{name}"] = _mean(total, count)
        metrics["train/learning_rate"] = rate
        metrics["train/gradient_norm"] = float(norm)
        metrics |= {f"train/{name}": float(words) for name, words in self._words().items()}
        if seconds > 0:
            metrics["train/tokens_per_second"] = float(tokens) / seconds
            if self.matmul_ceiling:
                ceiling = self.matmul_ceiling * self.trainer.world_size
                metrics["train/mfu"] = float(flops) / seconds / ceiling
        self.publish(metrics)

    def validation_step(self, batch: TorchBatch | list[TorchBatch], batch_index: int) -> None:
        micro_batches = batch if isinstance(batch, list) else [batch]
        # A few evaluations are not worth a compilation for their shapes.
        with uncompiled():
            # What a forward draws is the same in every validation.
            seed_forward(0, 0, self.global_rank, batch_index)
            for micro_batch in micro_batches:
                self._validated = self.model.objective_of(micro_batch).token.name
                for term in self.model(micro_batch):
                    add_sums(self._validation_sums, term)

    def on_validation_epoch_end(self) -> None:
        sums = self._reduced(self._validation_sums)
        self._validation_sums = {}
        metrics = validation_metrics(sums, self._validated)
        declared = published_metrics(self.model.objectives)
        for key in metrics:
            metric_of(key, declared)  # or a ValueError
        if self.trainer.sanity_checking:
            return
        self.latest_validation = metrics
        dtype = widest_float(self.device)
        tokens = torch.tensor(self.throughput.tokens, dtype=dtype, device=self.device)
        self.publish(self.latest_validation, tokens_since_log=int(self._sum_over_ranks(tokens)))

    def _words(self) -> dict[str, int]:
        """Words of text that have been read so far, where they are counted."""
        step = self.trainer.global_step
        if not step or not self.words_by_step:
            return {}
        return {"words": round(self.words_by_step[step - 1])}

    def facts(self) -> PlainDict:
        """What run.json says of the training so far."""
        facts: PlainDict = {
            "total_steps": self.total_steps,
            "matmul_ceiling": self.matmul_ceiling,
        }
        facts["parameters"] = parameter_count(self.model.encoder.config)
        facts["trained_parameters"] = trained_count(self)
        if self.throughput.total_seconds:
            facts["steps"] = self.trainer.global_step
            facts["world_size"] = self.world_size
            facts["batches_seen"] = f"{self.batches_seen:016x}"
            facts |= self._words()
            if self.spikes.left_out:
                facts["steps_left_out"] = self.spikes.left_out
            facts |= self.throughput.facts(self.world_size, self.matmul_ceiling)
        return facts | self.latest_validation

    def save_encoder(
        self,
        folder: Path,
        tokenizer_files: Mapping[str, bytes],
        provenance: ReadOnlyJson,
        dtype: str,
        num_phases: int | None,
    ) -> None:
        """Writes the encoder with its heads in the Hugging Face layout, its weights as `dtype`.

        The other models are written likewise, beside a folder that is called `encoder`. Of
        `num_phases` alone (None: all) the objectives have begun: no other one's head is trained.
        """
        begun = self.model.objectives[:num_phases]
        longest = max(provenance["trained_seq_lengths"])
        tokenizer = with_max_length(tokenizer_files, longest)
        for name, model in self._whole_model().named_models.items():
            target = folder
            if name != "encoder":
                if not model.is_trained or folder.name != "encoder":
                    continue
                target = folder.with_name(name)
            untrained = self._untrained_parts(name, model.encoder, begun)
            save_encoder_folder(
                target,
                model.encoder,
                heads=self._trained_heads(name, model, begun),
                tokenizer_files=tokenizer,
                extra_config={"clozelab": {**provenance, **untrained}},
                dtype=dtype,
            )

    def _untrained_parts(
        self, name: str, encoder: Encoder, begun: Sequence[Objective]
    ) -> dict[str, list[str]]:
        """What config.json says of a pooler that none of these objectives reads.

        Its bytes stay: a fine-tuning begins from them.
        """
        reads_pooler = name == "encoder" and any(objective.pair is not None for objective in begun)
        if reads_pooler or not list(encoder.pooler.parameters()):
            return {}
        # A given encoder's pooler may be trained all the same.
        return {"untrained": [] if encoder.has_trained_pooler else ["pooler"]}

    def _trained_heads(
        self, name: str, model: EncoderWithHeads, begun: Sequence[Objective]
    ) -> dict[str, nn.Module]:
        """A model's heads; of the encoder those that were given, or that these objectives have."""
        heads = dict(model.heads.items())
        if name != "encoder":
            return heads
        with torch.device("meta"):
            models = build_models(Encoder(model.encoder.config), begun)
        for kind in list(heads):
            is_given = self.fresh_heads is not None and kind not in self.fresh_heads
            if not is_given and kind not in models["encoder"].heads:
                del heads[kind]
        return heads

    def gather_weights(self) -> None:
        """Collects on rank 0 what is spread over ranks.

        All ranks call it, while their strategy is still up.
        """
        if self._is_sharded:
            self._whole_weights = self.trainer.strategy.lightning_module_state_dict()

    def release_weights(self) -> None:
        """Forgets what was gathered: training goes on."""
        self._whole_weights = None

    def on_train_end(self) -> None:
        # An early stop need not be a log point.
        if self.latest_metrics_step != self.trainer.global_step:
            _, (tokens, flops) = self._reduced_progress()
            self.throughput.settle(int(tokens), flops)
        self.gather_weights()

    def _whole_model(self) -> PretrainingModel:
        """The model itself, or a copy with the gathered weights where only a shard is here."""
        if not self._is_sharded:
            return self.model
        if not self._whole_weights:
            raise RuntimeError(
                "the weights are spread over ranks and have not been gathered: this would save a"
                " shard"
            )
        encoder = self.model.encoder
        whole = PretrainingModel(type(encoder)(encoder.config), self.model.objectives)
        weights = self._whole_weights.items()
        whole.load_state_dict({name.removeprefix("model."): value for name, value in weights})
        whole.encoder.has_trained_pooler = encoder.has_trained_pooler
        return whole

    def _sum_over_ranks(self, values: Tensor) -> Tensor:
        if self.trainer.world_size == 1:
            return values
        return self.trainer.strategy.reduce(values, reduce_op="sum")

    def _reduced(self, sums: dict[str, Tensor]) -> dict[str, list[float]]:
        """name -> [sum, count] over all ranks, on the host.

        This is the only place that waits for the device.
        """
        if not sums:
            return {}
        reduced = self._sum_over_ranks(torch.stack(list(sums.values())))  # [names, 2]
        return dict(zip(sums, reduced.tolist(), strict=True))

    def _reduced_progress(self) -> tuple[dict[str, list[float]], list[float]]:
        """Sums since the last log point, and [tokens, flops], over all ranks."""
        self._take_graph_sums()
        counters = [self.throughput.tokens, self.throughput.flops]
        # The module itself leaves the device when a training ends, and may be saved then.
        device = self.trainer.strategy.root_device
        work = torch.tensor(counters, dtype=widest_float(device), device=device)
        reduced = self._reduced({**self._train_sums, "": work})
        reduced_work = reduced.pop("")
        return reduced, reduced_work

    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        super().on_save_checkpoint(checkpoint)
        self.spikes.check(self.trainer)
        sums, work = self._reduced_progress()
        checkpoint |= {
            "since_log_point": {"sums": sums, "work": work},
            "spikes": self.spikes.state(),
            "readings": self._readings(),
        }

    def _readings(self) -> dict[str, list[bool]]:
        """How each model reads by now: whether it sees the past only, and predicts the next."""
        readings = {}
        for name, model in self.model.named_models.items():
            config = model.encoder.config
            readings[name] = [config.is_causal, config.predicts_next]
        return readings

    def restore_readings(self, checkpoint: Checkpoint) -> None:
        """Lets each model read as in the phase that a checkpoint was written in."""
        for name, reading in checkpoint["readings"].items():
            self.model.named_models[name].set_reading(*reading)

    def on_load_checkpoint(self, checkpoint: Checkpoint) -> None:
        super().on_load_checkpoint(checkpoint)
        # Another state of the optimizer lies elsewhere in memory.
        self._end_graphs()
        self.spikes.load(checkpoint["spikes"])
        self.restore_readings(checkpoint)
        if self._trainer is not None and int(checkpoint["global_step"]) >= self.total_steps:
            # Killed before its encoder was written: nothing is left to train, so `on_train_end`
            # will not be called.
            self.gather_weights()
        # The saved sums are those of all ranks: one of them carries them on, the others know their
        # names.
        saved = checkpoint["since_log_point"]
        share = float(self.global_rank == 0)
        dtype = widest_float(self.device)
        self._train_sums = {}
        for name, values in saved["sums"].items():
            sums = torch.tensor(values, dtype=dtype, device=self.device)
            self._train_sums[name] = sums * share
        tokens, flops = saved["work"]
        self.throughput.tokens = int(tokens * share)
        self.throughput.flops = flops * share


def _mean(total: float, count: float) -> float:
    """NaN of nothing."""
    return total / count if count else math.nan


def add_sums(sums: dict[str, Tensor], term: LossTerm, *, only_finite: bool = False) -> None:
    """Adds what a term reports to the running [sum, count] of each name, on the device.

    `only_finite`: nothing where its loss is no number.
    """
    is_finite = term.loss_sum.detach().isfinite()
    for name, (total, count) in term.means().items():
        total = total.to(widest_float(total.device))
        count = count.to(total) if isinstance(count, Tensor) else torch.full_like(total, count)
        values = torch.stack([total, count])
        if only_finite:
            values = values.masked_fill(~is_finite, 0.0)
        if name in sums:
            sums[name] += values
        else:
            sums[name] = values


def check_lengths(
    phases: Sequence[ReadOnlyJson],
    validation: Mapping[str, int],
    max_position_embeddings: int,
    world_size: int,
) -> None:
    """ValueError names the key of what cannot run on this model and these devices.

    Warns of held-out instances longer than the first phase's.
    """
    if not phases:
        raise ValueError(
            "phases is empty: give at least one {seq_length, steps, global_batch_size,"
            " micro_batch_size}"
        )
    lengths = {"validation.seq_length": validation["seq_length"]}
    for index, phase in enumerate(phases):
        for key, value in phase.items():
            if value == "???":
                raise ValueError(
                    f"phases.{index}.{key} has no value: each phase needs {', '.join(phase)}"
                )
        if phase["global_batch_size"] % world_size:
            raise ValueError(
                f"phases.{index}.global_batch_size is {phase['global_batch_size']}: it must be a"
                f" multiple of the {world_size} devices"
            )
        lengths[f"phases.{index}.seq_length"] = phase["seq_length"]
    for key, length in lengths.items():
        if length > max_position_embeddings:
            raise ValueError(
                f"{key} is {length}, but the model has {max_position_embeddings} positions: shorten"
                " it, or raise model.max_position_embeddings"
            )
    # The validation's length stands first, then those of the phases.
    held_out, *trained = lengths.values()
    if held_out > trained[0]:
        log.warning(
            "validation.seq_length is %d, but the first phase has %d and the longest %d: where no"
            " phase so far was as long, the held-out loss is that of positions that are not"
            " trained",
            held_out,
            trained[0],
            max(trained),
        )


def validation_metrics(sums: Mapping[str, Sequence[float]], main: str) -> dict[str, float]:
    """name -> [sum, count] to what is published; the term `main` has the plain names."""
    metrics: dict[str, float] = {}
    for name, (total, count) in sums.items():
        # mlm_loss -> loss, mlm_accuracy -> accuracy; nsp_accuracy keeps its name.
        plain = name.removeprefix(f"{main}_")
        if plain == "loss":
            metrics["validation/loss"] = total / count
            metrics["validation/perplexity"] = math.exp(min(total / count, 700.0))
        elif count and not name.endswith(ONE_SOURCE):
            metrics[f"validation/{plain}"] = total / count
        elif name.endswith(ONE_SOURCE[0]):
            metrics |= _inside_sources(sums, name.removesuffix(ONE_SOURCE[0]))
    return metrics


def published_metrics(objectives: Iterable[Objective]) -> tuple[Metric, ...]:
    """What `validation_metrics` may publish of these objectives; the held-out loss stands first."""
    objectives = list(objectives)
    declared = {
        "loss": Metric("loss", "nats", higher_is_better=False),
        "perplexity": Metric("perplexity", NO_UNIT, higher_is_better=False),
    }
    prefixes = ["", *(f"{objective.token.name}_" for objective in objectives)]
    for objective in objectives:
        metrics = list(objective.metrics)
        if objective.pair is not None:
            pair = objective.pair.name
            metrics.append(Metric.share(f"{pair}_source_rule"))
            metrics.append(Metric.share(f"{pair}_accuracy_one_source"))
        for metric, prefix in product(metrics, prefixes):
            name = metric.name.removeprefix(prefix)
            declared[name] = replace(metric, name=name)
    return tuple(declared.values())


def _inside_sources(sums: Mapping[str, Sequence[float]], pair: str) -> dict[str, float]:
    """Beside a pair accuracy: what it is inside one source, and what the source alone tells.

    Inside one source both kinds of pairs count alike. The rule by source answers "random" where the
    segments are of two sources, and what is more frequent where they are of one.
    """
    both_kinds = [sums[pair + suffix] for suffix in ONE_SOURCE]
    counts = [count for _, count in both_kinds]
    total = sums[f"{pair}_accuracy"][1]
    rule = (total - sum(counts) + max(counts)) / total
    metrics = {f"validation/{pair}_source_rule": rule}
    if all(counts):
        accuracy = sum(correct / count for correct, count in both_kinds) / 2
        metrics[f"validation/{pair}_accuracy_one_source"] = accuracy
    return metrics
