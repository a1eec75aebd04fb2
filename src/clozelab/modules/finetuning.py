"""The training loop of all fine-tuning tasks: global loss, evaluation, the best checkpoint.

The best checkpoint is the first with the best `metric` on the validation split, as the paper
selects on its development sets: scores of that same split are therefore slightly optimistic, for
every arm alike. Best is the highest value, or the lowest where the Metric says so. Its predictions
are kept with it. Scores keep their scorer's own unit: shares of one, SQuAD's in percent.

Last: what a run leaves behind, scores.json, every prediction and the model.
"""

from __future__ import annotations

import fnmatch
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.files.atomic import atomic_write_lines
from clozelab.metrics.metric import DECLARED, PREFIX, Metric, metric_of
from clozelab.models.config_keys import OF_ONE_TASK, Provenance
from clozelab.models.encoder import Encoder
from clozelab.models.families.bert import reads_pooler
from clozelab.models.folders import read_provenance
from clozelab.models.heads import BiLSTM
from clozelab.models.registry import family_for
from clozelab.models.trained import train_what_is_read, trained_count
from clozelab.modules.base import TrainingModule
from clozelab.modules.model import max_positions, write_model
from clozelab.modules.sentence_folders import SentenceVectors, sentence_files
from clozelab.tasks.batches import Batch, BatchValues, activate
from clozelab.tasks.class_report import ClassReport
from clozelab.tasks.target import Files, Target, metrics_of
from clozelab.tasks.unit import Split, Unit
from clozelab.text.did_you_mean import check_choice
from clozelab.text.formatting import with_class
from clozelab.text.plain import JsonObject, PlainDict, PlainMapping
from clozelab.training.checkpoints import Checkpoint, seed_forward
from clozelab.training.guards import raised_by_all_ranks

# ruff: noqa: ARG002  (Lightning fixes the signatures of its hooks)

log = logging.getLogger(__name__)
HEADS = ("linear", "bilstm")
NO_HEAD = nn.Identity()


@dataclass(frozen=True)
class Evaluation:
    """One pass over the validation split.

    `predictions`: the task's own records, one an example, JSON values.
    """

    step: int
    scores: dict[str, float]
    predictions: list[PlainDict]
    is_collapsed: bool  # the same answer for (nearly) every example
    # in the labels, where the score is of entities
    num_entities: int | None = None
    weights: dict[str, Tensor] | None = field(default=None, repr=False)
    # name of a further split -> its records
    extra_predictions: dict[str, list[PlainDict]] = field(default_factory=dict, repr=False)


class FineTuning(TrainingModule):
    """An encoder, a head on what the unit gives, and the target's loss and scores.

    Args:
        encoder: with the weights to start from.
        unit: what examples are.
        target: what is predicted of them; it knows its classes.
        validation: the split that checkpoints are selected on; its `extra` splits are scored as
            "validation/NAME_SCORE".
        head: linear | bilstm: what stands between the encoder and the output layer.
        bilstm_...: only for that head; its size is a direction's, None: the encoder's.
        metric: key of the score that selects the best checkpoint, one of the target's.
        keep_best_weights: hold a copy of the best checkpoint's weights (for saving the model).
        given_heads: kind -> an output layer of the target's that is there already.
        base: what TrainingModule takes.
    """

    def __init__(
        self,
        *,
        encoder: Encoder,
        unit: Unit,
        target: Target,
        validation: Split,
        head: str,
        bilstm_num_layers: int,
        bilstm_hidden_size: int | None,
        bilstm_dropout_prob: float,
        metric: str,
        keep_best_weights: bool,
        given_heads: Mapping[str, nn.Module] | None = None,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        check_head(head, unit)
        target.check_scores()
        self.metrics = metrics_of(target, validation.extra)
        check_metric(metric, self.metrics)
        target.check_validation(validation)
        self.encoder = encoder
        self.unit = unit
        self.target = target
        self.validation = validation
        self.metric = metric
        self.keep_best_weights = keep_best_weights
        self.best: Evaluation | None = None
        self.history: list[dict[str, float]] = []
        self.bilstm: BiLSTM | None = None
        # What the unit trains itself, such as a mix of layers.
        unit_modules = unit.parts(encoder)
        # None: the head reads the encoder's states themselves.
        self.head_input_size = unit.input_size(unit_modules)
        if head == "bilstm":
            size = bilstm_hidden_size or encoder.config.hidden_size
            self.bilstm = BiLSTM(
                self.head_input_size or encoder.config.output_size,
                size,
                bilstm_num_layers,
                bilstm_dropout_prob,
            )
            self.head_input_size = 2 * size
        # Since the last log point.
        self._loss_sum = torch.zeros(())
        self._loss_steps = 0
        # Of the validation that is running.
        self._collected: list[BatchValues] = []
        self._validated: dict[str, Tensor] | None = None  # the weights that a validation is of
        self._attach_head(given_heads or {})
        for name, module in unit_modules.items():
            self.add_module(name, module)
        target.prepare_encoder(encoder)

    def _attach_head(self, given_heads: Mapping[str, nn.Module]) -> None:
        """Adds the output layer; what neither it nor anything else reads is not trained."""
        is_on_pooler = False
        for head_kind in self.target.head_kinds:
            head = given_heads.get(head_kind)
            if head is None:
                head = family_for(self.encoder.config).head(
                    head_kind,
                    self.encoder,
                    num_labels=self.target.num_outputs,
                    input_size=self.head_input_size,
                )
            is_on_pooler = reads_pooler(head_kind, head, has_bilstm=self.bilstm is not None)
            self.encoder.has_trained_pooler |= is_on_pooler
            setattr(self, self.target.head_name, head)
        train_what_is_read(self.encoder, reads_pooler=is_on_pooler)

    @property
    def output_head(self) -> nn.Module:
        """The output layer; what has none is its states themselves."""
        return getattr(self, self.target.head_name, NO_HEAD)

    @property
    def positive_label(self) -> str | None:
        """Of an F1 of one class."""
        return self.target.positive_label

    def logits(self, batch: Batch) -> Tensor:
        """The outputs for a batch, in fp32."""
        states = self.unit.states(self, batch)
        return self.target.logits(self.output_head, states, batch, training=self.training)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Sum of the losses of all predictions, a scalar in fp32."""
        return self.target.loss(logits, batch)

    def outputs(self, logits: Tensor, batch: Batch) -> BatchValues:
        """What is kept of one evaluation batch: numbers of predictions, and their values.

        ValueError where the model answers no finite number: NaN would be its first class.
        """
        if not logits.isfinite().all():
            raise ValueError(
                "the model answers numbers that are not finite: its weights are damaged, or"
                " diverged"
            )
        return batch[self.unit.index_key].cpu(), self.target.kept(logits).cpu()

    @property
    def splits(self) -> dict[str, Split]:
        """The validation splits by their names; the one without a name is the main one."""
        return {"": self.validation, **self.validation.extra}

    def evaluate(self, outputs: Sequence[BatchValues]) -> Evaluation:
        """Scores of the validation splits from the outputs of all their batches."""
        values = self.unit.outputs(outputs, list(self.splits.values()))
        scores: dict[str, float] = {}
        outcomes = {}
        for (name, split), pooled in zip(self.splits.items(), values, strict=True):
            # A cross-encoder's sigmoid comes behind the pooling of windows, as in `predict`.
            activated = activate(self.output_head, torch.from_numpy(pooled)).numpy()
            outcome = self.target.evaluate(activated, split)
            for metric, value in outcome.scores.items():
                scores[f"{name}_{metric}" if name else metric] = value
            outcomes[name] = outcome
        main = outcomes.pop("")
        return Evaluation(
            self.trainer.global_step,
            scores,
            main.records,
            main.is_collapsed,
            main.num_entities,
            extra_predictions={name: outcome.records for name, outcome in outcomes.items()},
        )

    def records(self, best: Evaluation) -> dict[str, list[PlainDict]]:
        """The records of an evaluation's splits by their names."""
        return {"": best.predictions, **best.extra_predictions}

    def result_files(self, best: Evaluation) -> Files:
        """What is kept of the best evaluation: file name -> lines."""
        files: Files = {}
        for name, records in self.records(best).items():
            suffix = f"_{name}" if name else ""
            files |= self.target.result_files(records, self.splits[name], suffix)
        return files

    def class_reports(self, best: Evaluation) -> dict[str, ClassReport]:
        """Name of a validation split ("": the main one) -> where it fails; none of numbers."""
        reports = {}
        for name, records in self.records(best).items():
            report = self.target.class_report(records)
            if report is not None:
                reports[name] = report
        return reports

    def prediction_files(self, name: str, split: Split, outputs: Sequence[BatchValues]) -> Files:
        """Predictions for the test set `name` in the benchmark's format: file name -> lines."""
        (values,) = self.unit.outputs(outputs, [split])
        return self.target.prediction_files(name, split, values, self._best_scores())

    def _best_scores(self) -> dict[str, float]:
        """The best evaluation's, without "validation/"; none before the first."""
        scores = self.best.scores if self.best is not None else {}
        return {key.removeprefix(PREFIX): value for key, value in scores.items()}

    def baseline(self) -> float | None:
        """What the most frequent answer alone scores on `metric`; None where that means nothing."""
        name = self.metric.removeprefix(PREFIX)
        if name not in [metric.name for metric in self.target.metrics]:
            return None  # of a further split
        return self.target.majority_score(name, self.validation)

    def encode(self, batch: Batch, read_slots: Tensor | None = None) -> Tensor:
        """The encoder's sequence output [T, H], or what the BiLSTM makes of it [T, 2 * size].

        `read_slots`: the states that are wanted, see `Encoder.forward`; a BiLSTM reads all.
        """
        if self.bilstm is None:
            return self.encoder.read(batch, read_slots=read_slots).sequence_output
        states = self.encoder.read(batch).sequence_output
        return self.bilstm(states, batch["layout"])

    def heads(self) -> dict[str, nn.Module]:
        """What stands on the encoder: the output layer by its kind, the others by their names."""
        heads = {}
        for name, child in self.named_children():
            if name == self.target.head_name:
                heads[self.target.head_kinds[-1]] = child
            elif name != "encoder":
                heads[name] = child
        return heads

    def on_fit_start(self) -> None:
        self._loss_sum = self._loss_sum.to(self.device)

    def on_save_checkpoint(self, checkpoint: Checkpoint) -> None:
        super().on_save_checkpoint(checkpoint)
        record = None
        weights = None
        if self.best is not None:
            weights = self.best.weights
            record = {}
            for key, value in vars(self.best).items():
                if key != "weights":
                    record[key] = value
        # Of all ranks: each goes on with their mean, however many there are then.
        loss_sum = self.trainer.strategy.reduce(self._loss_sum.clone(), reduce_op="mean")
        checkpoint["finetuning"] = {
            "loss_sum": loss_sum,
            "loss_steps": self._loss_steps,
            # tokens since the last log point, of all ranks
            "work": [self.throughput.tokens],
            "history": json.dumps(self.history),
            # As text: a checkpoint holds tensors and plain values, and predictions are JSON values
            # by their contract.
            "best": json.dumps(record),
            "best_weights": weights,
        }

    def on_load_checkpoint(self, checkpoint: Checkpoint) -> None:
        super().on_load_checkpoint(checkpoint)
        saved = checkpoint["finetuning"]
        self._loss_sum = saved["loss_sum"]
        self._loss_steps = saved["loss_steps"]
        self.throughput.tokens = saved["work"][0]
        self.history = json.loads(saved["history"])
        record = json.loads(saved["best"])
        self.best = None
        if record:
            self.best = Evaluation(**record, weights=saved["best_weights"])
            with raised_by_all_ranks(self._trainer):
                if self.keep_best_weights and self.best.weights is None:
                    raise ValueError(
                        "the run was begun with keep_model=false, and its best weights so far are"
                        " gone: go on with that, or say reuse=never to train it anew"
                    )

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        seed_forward(self.seed, self.trainer.global_step, self.trainer.global_rank, 0)
        loss_sum = self.loss(self.logits(batch), batch)
        # Lightning averages gradients over ranks: scaled so that the result is the mean over all
        # ranks' targets.
        scale = batch["local_weight"] * self.trainer.world_size / batch["global_targets"]
        loss = loss_sum * scale
        # A sum on the device: nobody waits for it before the log point.
        self._loss_sum += loss.detach()
        self._loss_steps += 1
        self.update_batch_digest(batch.get("contents", 0))
        self.throughput.add(batch["global_tokens"])
        return loss

    def publish_log_point(self) -> None:
        """Publishes the averages of a log point, once."""
        is_log_step = self.trainer.global_step % self.log_interval_steps == 0
        if is_log_step and self._loss_steps:
            self._publish_training()

    def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
        self.publish_log_point()
        super().on_train_batch_end(outputs, batch, batch_idx)

    def on_validation_epoch_start(self) -> None:
        if self._loss_steps:
            self._publish_training()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        # Copied now: a callback that averages weights takes its own away again afterwards.
        if batch_idx == 0 and self.keep_best_weights:
            self._validated = {}
            for name, tensor in self.state_dict().items():
                self._validated[name] = tensor.detach().to("cpu", copy=True)
        self._collected.append(self.outputs(self.logits(batch), batch))

    def predict_step(self, batch: Batch, batch_idx: int) -> BatchValues:
        return self.outputs(self.logits(batch), batch)

    def on_validation_epoch_end(self) -> None:
        outputs = self._collected
        weights = self._validated
        self._collected = []
        self._validated = None
        trainer: Any = self.trainer
        num_batches = len(trainer.val_dataloaders)
        if trainer.sanity_checking:
            if len(outputs) == num_batches:  # a score needs all
                self.check_computed(self.evaluate(outputs).scores)
            return
        num_seen = sum(trainer.num_val_batches)
        if num_seen < num_batches:
            log.warning(
                "validation saw %d of %d batches, as the Trainer wants it: a score needs all,"
                " so there is none",
                num_seen,
                num_batches,
            )
            return
        # Every rank has seen all examples.
        with raised_by_all_ranks(trainer):
            result = self.evaluate(outputs)
            self.check_computed(result.scores)
        scores = {f"validation/{key}": value for key, value in result.scores.items()}
        self.latest_validation = scores
        self.publish(scores)
        self.history.append({"step": result.step, **scores})
        # The first of equally good ones stays.
        if self.best is None or self._is_better(scores[self.metric], self.best.scores[self.metric]):
            self.best = replace(result, scores=scores, weights=weights)

    def check_computed(self, names: Collection[str]) -> None:
        """ValueError where a score is computed that nothing declares, or `metric` is not."""
        declarations(names, self.metrics)
        if self.metric.removeprefix(PREFIX) not in names:
            raise ValueError(
                f"task.metric={self.metric}: {type(self.target).__name__} declares this score and"
                f" does not compute it; it computes {', '.join(names)}"
            )

    def score_name(self, key: str) -> str:
        """A score's key with the class that it is of, if it is of one."""
        if metric_of(key, self.metrics).is_of_one_class:
            return with_class(key, self.positive_label)
        return key

    def _is_better(self, value: float, other: float) -> bool:
        if metric_of(self.metric, self.metrics).higher_is_better:
            return value > other
        return value < other

    def require_best(self) -> Evaluation:
        """The best checkpoint's evaluation; there is one after every finished training."""
        assert self.best is not None, "training ended without an evaluation"
        return self.best

    def facts(self) -> PlainDict:
        """What the run's record keeps."""
        work = self.throughput
        speed = None
        if work.total_seconds:
            speed = work.total_tokens / work.total_seconds
        return {
            "steps": self.trainer.global_step,
            "tokens": work.total_tokens,
            "parameters": trained_count(self),
            "tokens_per_second": speed,
            **self.require_best().scores,
        }

    def config_to_save(self) -> PlainDict:
        """What the model's folder has to say, beside the label names, to predict as here."""
        of_target = self.target.model_config_to_save(self._best_scores())
        return self.unit.model_config_to_save() | of_target

    def restore_config(self, saved_config: Provenance) -> PlainDict:
        """Use the settings of a model's folder, so that nothing is chosen on the scored file.

        `saved_config` is what fine-tuning saved there. Returns what the run's record keeps of it.
        """
        return self.target.restore_config(saved_config)

    def restore_best(self) -> None:
        """Put the best checkpoint's weights back."""
        weights = self.require_best().weights
        assert weights is not None, "keep_best_weights was off"
        self.load_state_dict(weights)

    def _publish_training(self) -> None:
        mean = self._loss_sum / max(1, self._loss_steps)  # since the last time it was published
        if self.trainer.world_size > 1:
            mean = self.trainer.strategy.reduce(mean, reduce_op="mean")
        self.require_finite(self.trainer.global_step, mean, loss=mean)
        tokens = self.throughput.tokens
        seconds = self.throughput.settle(tokens)
        # The schedule is one step further already.
        metrics = {"train/loss": float(mean), "train/learning_rate": self.last_learning_rate}
        if seconds > 0 and tokens:
            metrics["train/tokens_per_second"] = tokens / seconds
        self.publish(metrics)
        self._loss_sum.zero_()
        self._loss_steps = 0


def check_head(head: str, unit: Unit) -> None:
    """ValueError for a head that does not exist, or that nothing here can stand on."""
    check_choice("head", head, HEADS)
    unit.check_head(head)


def check_metric(key: str, metrics: Sequence[Metric]) -> None:
    """ValueError for a selecting metric that the task does not compute, or that is never better."""
    by_key = {metric.key: metric for metric in metrics}
    if key not in by_key:
        raise ValueError(
            f"task.metric={key!r} is not a score of this task; it has {', '.join(by_key)}"
        )
    if by_key[key].higher_is_better is None:
        usable = [name for name, metric in by_key.items() if metric.higher_is_better is not None]
        raise ValueError(
            f"task.metric={key!r} is neither good nor bad, so it selects no checkpoint; take one of"
            f" {', '.join(usable)}"
        )


def write_results(folder: Path, module: FineTuning | Any, task: PlainMapping) -> JsonObject:
    """Writes scores.json and the best checkpoint's predictions; returns what scores.json holds.

    `task` is put into it as it is: name, title, stand_in_for. A Measurement (modules/measures.py)
    does as well.
    """
    best = module.require_best()
    selection = "none: scored once"
    step = ""
    if module.total_steps:
        rises = metric_of(module.metric, module.metrics).higher_is_better
        extreme = "highest" if rises else "lowest"
        selection = (
            f"{extreme} metric over the evaluations on the validation split, as in the paper"
        )
        step = f"best at step {best.step} of {module.total_steps}: "
    scores = {
        **task,
        "metric": module.metric,
        "scores": best.scores,
        "best_step": best.step,
        "total_steps": module.total_steps,
        "selection": selection,
        "evaluations": module.history,
        "num_examples": len(best.predictions),
        "num_entities": best.num_entities,
    }
    scores["metrics"] = declarations(best.scores, module.metrics)
    scores["positive_label"] = module.positive_label
    scores["majority_baseline"] = module.baseline()
    scores["collapsed"] = best.is_collapsed
    files = module.result_files(best)
    reports = module.class_reports(best)
    for name, report in reports.items():
        files |= report.files(f"_{name}" if name else "")
    for name, lines in files.items():
        atomic_write_lines(folder / name, lines)
    atomic_write_lines(folder / "scores.json", [json.dumps(scores, indent=1, ensure_ascii=False)])
    if best.is_collapsed:
        log.warning(
            "collapsed run: the same answer for (nearly) every validation example; more epochs= or"
            " another learning_rate= may help"
        )
    summary = []
    for key, value in best.scores.items():
        summary.append(f"{module.score_name(key).removeprefix(PREFIX)} {value:.4g}")
    log.info("%s: %s%s", task.get("title"), step, ", ".join(summary))
    if "" in reports:
        names = ", ".join(fnmatch.filter(files, "*.csv"))
        lines = "\n".join(reports[""].shown_lines())
        log.info("where it fails, in percent (%s in %s):\n%s", names, folder, lines)
    return scores


def declarations(keys: Iterable[str], metrics: Sequence[Metric]) -> dict[str, PlainDict]:
    """Name of each metric that some key is of -> its unit, factor and direction."""
    declared = {}
    for key in keys:
        metric = metric_of(key, metrics)
        declared[metric.name] = {field: getattr(metric, field) for field in DECLARED}
    return declared


def write_test_predictions(folder: Path, files: Mapping[str, Iterable[str]]) -> None:
    """Write what a module's `prediction_files` gives into a folder, test_predictions/ of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        atomic_write_lines(folder / name, lines)


def save_model(
    folder: Path, module: FineTuning, encoder_folder: Path, tokenizer: Tokenizer, **facts: object
) -> None:
    """Writes the best checkpoint as a model folder in the Hugging Face layout, with label names.

    What the encoder folder remembers comes along; `facts` (task, head) and what the module predicts
    by are added to it. A BiLSTM head has no class in that layout: its tensors lie below `bilstm.`.
    """
    module.restore_best()
    config_to_save: Any = dict(read_provenance(encoder_folder))
    for key in OF_ONE_TASK:
        config_to_save.pop(key, None)
    config_to_save |= facts | module.config_to_save()
    if module.encoder.has_trained_pooler:
        config_to_save.pop("untrained", None)
    elif module.encoder.has_fresh_pooler:
        config_to_save["untrained"] = ["pooler"]
    max_length = max_positions(encoder_folder)
    files: Mapping[str, str] = {}
    if "pooling" in config_to_save:
        vectors = SentenceVectors(
            config_to_save["pooling"], prompts=config_to_save.get("prompts", {})
        )
        longest = min(max_length, config_to_save.get("max_seq_length", max_length))
        files = sentence_files(vectors, module.encoder.config, longest)
    write_model(
        folder,
        module.encoder,
        module.heads(),
        tokenizer,
        labels=module.target.output_names,
        problem_type=module.target.problem_type,
        max_length=max_length,
        extra_config={"clozelab": config_to_save},
        extra_files=files,
    )
