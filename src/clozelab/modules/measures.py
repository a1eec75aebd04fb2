"""What runs a frozen model over texts to measure it: token log-probabilities, and probes of states.

Nothing is trained by gradient steps: one pass of `trainer.validate`. Scores are in fp32, whatever
the precision of the forward: in bf16 the two sentences of a pair would often have the very same
score.

Letters: P tokens that are asked for, V vocabulary, H hidden size, B sequences, C states of an
example, N examples.
"""

# ruff: noqa: ARG002  (Lightning fixes the signatures of its hooks)

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from lightning.pytorch import LightningModule
from scipy.special import softmax
from torch import Tensor, nn

from clozelab.metrics.metric import Metric
from clozelab.models.encoder import Encoder
from clozelab.models.trained import freeze
from clozelab.modules.finetuning import Evaluation, FineTuning
from clozelab.modules.log_probs import log_probs
from clozelab.tasks.batches import Batch, BatchValues, in_order
from clozelab.tasks.class_report import ClassReport
from clozelab.tasks.sequences import TokenSequences
from clozelab.tasks.target import Files, json_lines
from clozelab.tasks.words import TaggedSequences
from clozelab.text.did_you_mean import check_count
from clozelab.text.plain import PlainDict

if TYPE_CHECKING:
    from clozelab.datamodules.scoring import ScoringDataModule


log = logging.getLogger(__name__)
DAMAGED_WEIGHT = "a weight in its folder is damaged; export or download it anew"
MIX = "mix"
# Where the blocks of an online code end, as shares of the examples: those of Voita and Titov.
CODE_BLOCKS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
CONVERGED = 1e-4  # largest entry of the mean loss's gradient at an optimum, as scikit-learn asks


class Measurement(LightningModule):
    """Base: a frozen encoder, heads (kind -> head, of `needs`), and data that knows the answers.

    After `trainer.validate`, `require_best` has the scores and a record of each example.
    """

    needs: ClassVar[tuple[str, ...]] = ()  # kinds of heads (models/families/bert.py)
    metrics: Sequence[Metric]  # what `evaluate` computes
    positive_label: str | None = None
    total_steps = 0
    history = ()
    require_best = FineTuning.require_best
    score_name = FineTuning.score_name

    def __init__(
        self, *, encoder: Encoder, heads: Mapping[str, nn.Module], data: Any, metric: str
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict(heads)
        self.data = data
        self.metric = metric
        freeze(self.parameters())
        self.best: Evaluation | None = None
        self._collected: list[object] = []

    @abstractmethod
    def evaluate(self, collected: Sequence[Any]) -> Evaluation:
        """Scores from what the steps have collected."""

    def result_files(self, best: Evaluation) -> Files:
        """What is kept of the evaluation: file name -> lines."""
        return {"predictions.jsonl": json_lines(best.predictions)}

    def class_reports(self, best: Evaluation) -> dict[str, ClassReport]:
        """None: a measure is no classification of a task's labels."""
        return {}

    def baseline(self) -> float | PlainDict | None:
        """What the most frequent answer alone scores; None where that means nothing.

        A number is of `metric`; of several figures each has its own.
        """
        return None

    def on_validation_epoch_end(self) -> None:
        result = self.evaluate(self._collected)
        scores = {f"validation/{name}": value for name, value in result.scores.items()}
        self.best = Evaluation(0, scores, result.predictions, result.is_collapsed)
        self._collected = []
        for logger in self.loggers:
            logger.log_metrics(scores, 0)


class TokenScoring(Measurement):
    """Log-probabilities of the target tokens of a data module of datamodules/scoring.py."""

    needs = ("lm",)
    data: ScoringDataModule

    def __init__(self, *, temperature: float = 1.0, **measurement: Any) -> None:
        super().__init__(**measurement)
        if not temperature > 0:
            raise ValueError(f"measure.module.temperature={temperature}: give a number above 0")
        self.temperature = temperature

    @property
    def metrics(self) -> Sequence[Metric]:  # type: ignore[override]
        return self.data.metrics

    def val_dataloader(self) -> Iterable[Batch]:
        return self.data.evaluation_loader(self.data.questions)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        head: Any = self.heads["lm"]
        slots = batch["prediction_positions"]
        output = self.encoder.read(batch, head.reads_hidden_states, slots)
        hidden = head.states(self.encoder, output, batch)
        answers = log_probs(head, hidden, batch["prediction_labels"], self.temperature)
        self._collected.append((batch["prediction_index"].cpu(), answers.cpu()))

    def evaluate(self, collected: Sequence[BatchValues]) -> Evaluation:
        answers = in_order(collected, len(self.data.questions.ids)).astype(np.float64)
        if np.isnan(answers).any():
            raise ValueError(f"the encoder answers NaN: {DAMAGED_WEIGHT}")
        return Evaluation(0, *self.data.score(answers[:, 0], answers[:, 1]), is_collapsed=False)

    def baseline(self) -> PlainDict:
        return self.data.constant_answer_scores()


class Probe(Measurement):
    """A linear classifier on frozen states of words, texts or pairs.

    Of words each layer is probed; of texts and pairs the mean of each layer, and the pooled state.

    The classifier is a logistic regression on standardised states, fitted to the training examples
    and scored on the others. The main score is the best state's, chosen by it. Words have a control
    task as well (Hewitt and Liang 2019): each word has one label, drawn at random. Selectivity is
    what a probe does better on the task than on that: how much it reads off the states, and not
    learns by heart. `strength` is the `C` of scikit-learn.

    Args:
        mix: also probe a weighted sum of the layers, whose weights are learnt with the classifier
            (Tenney et al. 2019): the score `accuracy/mix`, and each layer's `mix_weight`.
        description_length: also score how short a probe can say the training labels, `bits` a
            label (`online_code_length`).
    """

    metrics = (
        *map(Metric.share, ("accuracy", "control_accuracy", "selectivity")),
        replace(Metric.share("mix_weight"), higher_is_better=None),
        Metric("bits", unit="bits", higher_is_better=False),
    )

    def __init__(
        self,
        *,
        strength: float,
        max_iterations: int,
        mix: bool = False,
        description_length: bool = False,
        **measurement: Any,
    ) -> None:
        super().__init__(**measurement)
        check_count("measure.module.max_iterations", max_iterations)
        if not strength > 0:
            raise ValueError(f"measure.module.strength={strength}: give a number above 0")
        self.description_length = description_length
        self.strength = strength
        self.max_iterations = max_iterations
        self.splits = (self.data.train, self.data.validation)
        sequences = self.data.train_sequences
        is_of_words = isinstance(sequences, TaggedSequences)
        # Numbers have no names; choices, spans and sets of labels are no classes.
        target = getattr(self.data, "target", None)
        if target is None:
            # Pairs of held-out sentences are no task: their splits name the two answers.
            self.label_names = getattr(self.data.train, "label_names", ())
        else:
            self.label_names = target.classes
        has_one_label = getattr(target, "one_label_each", True)
        is_read = isinstance(sequences, TaggedSequences | TokenSequences)
        if not (self.label_names and has_one_label and is_read):
            raise ValueError(
                "a probe classifies words, texts or pairs by one label each; this task has numbers,"
                " choices, spans or several labels of a text"
            )
        self.words: list[list[str]] | None = None
        if is_of_words:
            self.words = [self._read(split.words) for split in self.splits]
        self.labels = []
        for split in self.splits:
            self.labels.append(np.asarray(getattr(split, "input_labels", split.labels)))
        num_states = self.encoder.config.num_hidden_layers + 1
        # One classifier a state: C of them.
        self.names = [f"layer_{number}" for number in range(num_states)]
        if not is_of_words:
            self.names.append("pooled")
        self.num_layers = num_states
        if mix:
            self.names.append(MIX)
        self.gradients: list[float] = []  # the largest entry at the end of each regression

    def val_dataloader(self) -> Iterable[Batch]:
        return [self.data.evaluation_loader(split.sequences) for split in self.splits]

    def _read(self, words: Sequence[str]) -> list[str]:
        """What the encoder is given of each word: to an uncased one, The and the are the same."""
        ids, lengths = self.data.inputs.tokenizer.encode_words(words)
        ids_of_words = np.split(ids, np.cumsum(lengths)[:-1])
        return [" ".join(map(str, word_ids)) for word_ids in ids_of_words]

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        output = self.encoder.read(batch, output_hidden_states=True)
        layout = batch["layout"]
        # [T, C, H]
        states = torch.stack(output.hidden_states, dim=1).float()
        if self.words is not None:
            values = states[batch["word_slots"]]
            index = batch["word_index"]
        else:
            # The layers side by side are one state a token, of which the mean is taken.
            means = self.encoder.sentence_states(states.flatten(1), layout, "mean")
            pooled = self.encoder.pool(output.sequence_output, layout).float()
            values = torch.cat([means.view(-1, *states.shape[1:]), pooled[:, None]], dim=1)
            index = batch["example_index"]
        self._collected.append((dataloader_idx, index.cpu(), values.cpu()))

    def evaluate(self, collected: Sequence[tuple[int, Tensor, Tensor]]) -> Evaluation:
        # [N, C, H] of the training and of the validation split
        train, validation = (self._split_states(collected, number) for number in (0, 1))
        train_labels, validation_labels = self.labels
        controls = None
        if self.words:
            controls = control_labels(self.words[0], self.words[1], len(self.label_names))
        scores: dict[str, float] = {}
        predictions: dict[str, np.ndarray] = {}
        # A classifier for each state, and one more on the control task of words.
        mix_scores: dict[str, float] = {}
        for number, name in enumerate(self.names):
            part: int | slice = number
            if name == MIX:  # of the layers, without the pooled state
                part = slice(self.num_layers)
            x, x_validation = _standardised(train[:, part], validation[:, part])
            weights = self._fit(x, train_labels)
            predictions[name] = _predict(x_validation, weights)
            accuracy = float((predictions[name] == validation_labels).mean())
            scores[f"accuracy/{name}"] = accuracy
            if self.description_length:
                scores[f"bits/{name}"] = online_code_length(
                    x,
                    train_labels,
                    len(self.label_names),
                    strength=self.strength,
                    max_iterations=self.max_iterations,
                )
            if controls:
                guesses = _predict(x_validation, self._fit(x, controls[0]))
                control_accuracy = float((guesses == controls[1]).mean())
                scores[f"control_accuracy/{name}"] = control_accuracy
                scores[f"selectivity/{name}"] = accuracy - control_accuracy
            if name == MIX:
                for layer, share in enumerate(mix_weights(weights, self.num_layers)):
                    mix_scores[f"mix_weight/layer_{layer}"] = float(share)
        self._warn_of_unfinished()
        # The scores of the best state stand in front, without its name.
        best = max(self.names, key=lambda name: scores[f"accuracy/{name}"])
        is_collapsed = len(np.unique(predictions[best])) == 1
        every_score = _scores_of(best, scores) | scores | mix_scores
        records = self._records(predictions[best], validation_labels)
        return Evaluation(0, every_score, records, is_collapsed=is_collapsed)

    def _records(self, predictions: np.ndarray, labels: np.ndarray) -> list[PlainDict]:
        """What is predicted of each validation example [N], and its label."""
        records: list[PlainDict] = []
        for index, (answer, label) in enumerate(zip(predictions, labels, strict=True)):
            names = {"prediction": self.label_names[answer], "label": self.label_names[label]}
            records.append({"id": str(index)} | names)
        return records

    def _split_states(
        self, collected: Sequence[tuple[int, Tensor, Tensor]], number: int
    ) -> np.ndarray:
        """[N, C, H]: the states of one of `splits`."""
        outputs = [(index, values) for split, index, values in collected if split == number]
        states = in_order(outputs, len(self.labels[number]))
        if not np.isfinite(states).all():
            raise ValueError(f"the encoder has states that are no numbers: {DAMAGED_WEIGHT}")
        return states

    def _fit(self, train: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The weights of a classifier that is fitted to the training states."""
        weights, gradient = logistic_regression(
            train,
            labels,
            len(self.label_names),
            strength=self.strength,
            max_iterations=self.max_iterations,
        )
        self.gradients.append(gradient)
        return weights

    def _warn_of_unfinished(self) -> None:
        unfinished = [size for size in self.gradients if size > CONVERGED]
        if unfinished:
            log.warning(
                f"{len(unfinished)} of {len(self.gradients)} classifiers are not at their optimum "
                f"after {self.max_iterations} iterations (largest gradient "
                f"{max(unfinished):.1e}): raise measure.module.max_iterations"
            )

    def baseline(self) -> float:
        return float(np.bincount(self.labels[1]).max() / len(self.labels[1]))


def _scores_of(state: str, scores: Mapping[str, float]) -> dict[str, float]:
    """The scores of one state's probe, without its name."""
    of_state = {}
    for key, value in scores.items():
        metric, _, name = key.partition("/")
        if name == state:
            of_state[metric] = value
    return of_state


def _predict(states: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The classes [N] of states [N, ...], by the weights of `logistic_regression`."""
    return (states.reshape(len(states), -1) @ weights[:-1] + weights[-1]).argmax(axis=1)


def mix_weights(weights: np.ndarray, num_layers: int) -> np.ndarray:
    """[C]: each layer's share in the mix that `logistic_regression` has learnt; they sum to 1."""
    # Every layer's weights are the same ones, times its share.
    sizes = np.linalg.norm(weights[:-1].reshape(num_layers, -1), axis=1)
    return sizes / sizes.sum()


def online_code_length(x: np.ndarray, labels: np.ndarray, num_classes: int, **solver: Any) -> float:
    """Bits a label that tell the labels [N] to who has the states [N, ...] (Voita and Titov 2020).

    The labels are sent in blocks, each by a probe that is fitted to all blocks before it, the first
    one with log2(classes) bits a label. So a probe that needs many examples costs more than one
    that needs few, though both end with the same accuracy.

    Unusual: a class has (n p + 1) / (n + classes), where p is its probability by a probe of n
    examples, which gives 0 to a class that these lack.
    """
    num_labels = len(labels)
    order = np.random.default_rng(0).permutation(num_labels)
    x = x[order]
    labels = labels[order]
    ends = sorted({max(1, round(share * num_labels)) for share in CODE_BLOCKS})
    bits = ends[0] * np.log2(num_classes)
    for start, end in pairwise(ends):
        classes, told_labels = np.unique(labels[:start], return_inverse=True)
        probs = np.zeros((end - start, num_classes))
        probs[:, classes] = 1.0
        if len(classes) > 1:
            weights, _ = logistic_regression(x[:start], told_labels, len(classes), **solver)
            states = x[start:end].reshape(end - start, -1)
            logits = (states @ weights[:-1] + weights[-1]).astype(np.float64)
            probs[:, classes] = softmax(logits, axis=1)
        shares = probs[np.arange(end - start), labels[start:end]]
        bits -= np.log2((start * shares + 1.0) / (start + num_classes)).sum()
    return float(bits / num_labels)


def _standardised(train: np.ndarray, validation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both with the mean and the standard deviation of the training states taken out; [N, ...]."""
    mean = train.mean(0)
    deviation = train.std(0)
    scale = np.where(deviation > 0, deviation, 1.0).astype("f4")
    return (train - mean) / scale, (validation - mean) / scale


def control_labels(
    train: Sequence[str], validation: Sequence[str], num_labels: int
) -> list[np.ndarray]:
    """A label for each word of both lists, the same wherever it stands, all equally likely."""
    # number[i]: which of the different words text i is.
    words, number = np.unique([*train, *validation], return_inverse=True)
    labels = np.random.default_rng(0).integers(num_labels, size=len(words))
    return np.split(labels[number], [len(train)])


def logistic_regression(
    x: np.ndarray, labels: np.ndarray, num_classes: int, *, strength: float, max_iterations: int
) -> tuple[np.ndarray, float]:
    """Weights [H + 1, classes] of the multinomial model with a squared penalty.

    Beside them the largest entry of the gradient there, 0 at the optimum. The last row is added to
    the scores. The same as scikit-learn's LogisticRegression(C=strength), whose penalty leaves the
    added row alone, and counts two classes as one difference. ValueError where only one class
    occurs.

    Of states of several layers [N, C, H] a weighted mean is classified, by a softmax of one number
    a layer that is learnt as well. The weights are then [C * H + 1, classes], with the layers'
    shares in them.
    """
    if len(np.unique(labels)) < 2:
        raise ValueError(
            "every training example has the same class: there is nothing to tell apart"
        )
    with torch.inference_mode(False), torch.enable_grad():
        states = torch.from_numpy(x)
        classes = torch.from_numpy(labels)
        weights = torch.zeros(x.shape[-1] + 1, num_classes, dtype=states.dtype, requires_grad=True)
        shares = torch.zeros(x.shape[1], dtype=states.dtype, requires_grad=True)
        has_layers = x.ndim == 3
        parameters = [weights, shares] if has_layers else [weights]
        # scikit-learn penalises the difference d of two classes' weights: d^2 / 2 is the sum of
        # both squares, as w1 = -w0 here.
        penalty = (1.0 if num_classes == 2 else 0.5) / (strength * len(x))
        solver = torch.optim.LBFGS(
            parameters,
            max_iter=max_iterations,
            tolerance_grad=1e-7,
            tolerance_change=1e-12,
            line_search_fn="strong_wolfe",
        )

        def loss() -> Tensor:
            solver.zero_grad()
            read = states
            if has_layers:
                read = torch.einsum("nch,c->nh", states, shares.softmax(0))
            mean = nn.functional.cross_entropy(read @ weights[:-1] + weights[-1], classes)
            value = mean + penalty * weights[:-1].square().sum()
            value.backward()
            return value

        solver.step(loss)
        loss()
    assert weights.grad is not None
    gradient = float(weights.grad.abs().max())
    fitted = weights.detach()
    if has_layers:
        mixed = torch.kron(shares.detach().softmax(0)[:, None], fitted[:-1])
        fitted = torch.cat([mixed, fitted[-1:]])
    return fitted.numpy(), gradient
