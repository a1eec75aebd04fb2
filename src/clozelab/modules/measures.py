"""What runs a frozen model over texts to measure it: log-probabilities of tokens, and probes of its
states.

Nothing is trained by gradient steps: one pass of `trainer.validate`. Scores are in fp32, whatever
the precision of the
forward: in bf16 the two sentences of a pair would often have the very same score.

Letters: P tokens that are asked for, V vocabulary, H hidden size, B sequences, C states of an
example, N examples.
"""

# ruff: noqa: ARG002  (Lightning fixes the signatures of its hooks)

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from clozelab.datamodules.examples import TokenSequences
from clozelab.datamodules.tags import TaggedSequences
from clozelab.models.encoder import Encoder
from clozelab.models.kernels.linear_cross_entropy import CHUNK_LOGITS
from clozelab.modules.finetuning import Batch, Evaluation, FineTuning, Part, in_order
from clozelab.training.runtime import onednn_fp32

if TYPE_CHECKING:
    from clozelab.datamodules.scoring import ScoringDataModule


log = logging.getLogger(__name__)
DAMAGED_WEIGHT = "a weight in its folder is damaged; export or download it anew"
CONVERGED = 1e-4  # largest entry of the mean loss's gradient at an optimum, as scikit-learn asks


class Measurement(LightningModule):
    """Base: a frozen encoder, heads (kind -> head, of `needs`), and data that asks and knows the
    answers.

    After `trainer.validate`, `require_best` has the scores and a record of each example.
    """

    needs: ClassVar[tuple[str, ...]] = ()  # kinds of heads (models/families/bert.py)
    scores_are_shares: ClassVar[bool] = True
    total_steps, history = 0, ()
    result_files, require_best = FineTuning.result_files, FineTuning.require_best

    def __init__(
        self, *, encoder: Encoder, heads: Mapping[str, nn.Module], data: Any, metric: str
    ) -> None:
        super().__init__()
        self.encoder, self.heads, self.data, self.metric = (
            encoder,
            nn.ModuleDict(heads),
            data,
            metric,
        )
        self.requires_grad_(False)
        self.best: Evaluation | None = None
        self._collected: list[Any] = []

    @abstractmethod
    def evaluate(self, collected: Sequence[Any]) -> Evaluation:
        """Scores from what the steps have collected."""

    def baseline(self) -> float | None:
        """What the most frequent answer alone scores; None where that means nothing."""
        return None

    def states(self, batch: Batch, output_hidden_states: bool = False) -> Any:
        ids = (batch["input_ids"], batch["token_type_ids"], batch["position_ids"])
        return self.encoder(*ids, batch["layout"], output_hidden_states=output_hidden_states)

    def on_validation_epoch_end(self) -> None:
        found = self.evaluate(self._collected)
        scores = {f"validation/{name}": value for name, value in found.scores.items()}
        self.best, self._collected = (
            Evaluation(0, scores, found.predictions, found.is_collapsed),
            [],
        )
        for logger in self.loggers:
            logger.log_metrics(scores, 0)


class TokenScoring(Measurement):
    """Log-probabilities of the tokens that a data module of datamodules/scoring.py asks for."""

    needs = ("lm",)
    data: ScoringDataModule

    def val_dataloader(self) -> Any:
        return self.data.evaluation_loader(self.data.questions)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        hidden = self.states(batch).sequence_output.index_select(0, batch["prediction_positions"])
        answers = log_probs(self.heads["lm"], hidden, batch["prediction_labels"])
        self._collected.append((batch["prediction_index"].cpu(), answers.cpu()))

    def evaluate(self, collected: Sequence[Part]) -> Evaluation:
        answers = in_order(collected, len(self.data.questions.ids)).astype(np.float64)
        if np.isnan(answers).any():
            raise ValueError(f"the encoder answers NaN: {DAMAGED_WEIGHT}")
        return Evaluation(0, *self.data.score(answers[:, 0], answers[:, 1]), is_collapsed=False)


def log_probs(head: Any, hidden: Tensor, labels: Tensor) -> Tensor:
    """fp32 [P, 2] of states [P, H]: each label's log-probability; whether it is the most probable,
    shared by equals.
    """
    found = []
    rows = max(1, CHUNK_LOGITS // len(head.bias))
    # Where the forward is in bf16, so are the products' factors; sums and logits are fp32 all the
    # same.
    is_low = torch.is_autocast_enabled(hidden.device.type)
    with (
        torch.autocast(hidden.device.type, enabled=False),
        onednn_fp32() if is_low else nullcontext(),
    ):
        for states, own in zip(hidden.float().split(rows), labels.split(rows), strict=True):
            logits = head(states)  # [rows, V]
            credit = (logits.gather(1, own[:, None]) == logits.amax(1, keepdim=True)).float()
            # a model that says the same of all tokens knows none
            if (first := credit[:, 0].nonzero()[:, 0]).numel():
                best = logits[first]
                credit[first] /= (best == best.amax(1, keepdim=True)).sum(1, keepdim=True)
            loss = nn.functional.cross_entropy(logits, own, reduction="none")
            found.append(torch.cat([-loss[:, None], credit], dim=1))
    return torch.cat(found) if found else torch.zeros(0, 2)


class Probe(Measurement):
    """A linear classifier on frozen states: of words (each layer), or of texts and pairs (mean of
    each layer, pooled).

    The classifier is a logistic regression on standardised states, fitted to the training examples
    and scored on the others. The main score is the best state's, chosen by it. Words have a control
    task as well (Hewitt and Liang 2019): each word has one label, drawn at random. Selectivity is
    what a probe does better on the task than on that: how much it reads off the states, and not
    learns by heart. `strength` is the `C` of scikit-learn.
    """

    def __init__(self, *, strength: float, max_iterations: int, **measurement: Any) -> None:
        super().__init__(**measurement)
        self.solver: Any = {"strength": strength, "max_iterations": max_iterations}
        splits = self.splits = self.data.train, self.data.validation
        is_of_words = isinstance(self.data.train_sequences, TaggedSequences)
        self.label_names = getattr(splits[0], "label_names", ())
        if (
            not (is_of_words or isinstance(self.data.train_sequences, TokenSequences))
            or not self.label_names
        ):
            raise ValueError(
                "a probe tells classes of words, texts or pairs; this task has numbers, choices or"
                " spans"
            )
        self.words = [self._read(split.words) for split in splits] if is_of_words else None
        self.labels = [np.asarray(getattr(split, "input_labels", split.labels)) for split in splits]
        layers = range(self.encoder.config.num_hidden_layers + 1)
        self.names = [
            *(f"layer_{number}" for number in layers),
            *([] if is_of_words else ["pooled"]),
        ]
        self.gradients: list[float] = []  # the largest entry at the end of each regression

    def val_dataloader(self) -> Any:
        return [self.data.evaluation_loader(split.sequences) for split in self.splits]

    def _read(self, words: Sequence[str]) -> list[str]:
        """What the encoder is given of each word: to an uncased one, The and the are the same."""
        ids, lengths = self.data.inputs.tokenizer.encode_words(words)
        return [" ".join(map(str, one)) for one in np.split(ids, np.cumsum(lengths)[:-1])]

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        output, layout = self.states(batch, output_hidden_states=True), batch["layout"]
        # [T, C, H]
        found = torch.stack([*output.hidden_states[:-1], output.sequence_output], dim=1).float()
        if self.words is not None:
            values, index = found[batch["word_slots"]], batch["word_index"]
        else:
            means = self.encoder.sentence_states(found.flatten(1), layout, "mean").view(
                -1, *found.shape[1:]
            )
            values = torch.cat(
                [means, self.encoder.pool(output.sequence_output, layout).float()[:, None]], dim=1
            )
            index = batch["example_index"]
        self._collected.append((dataloader_idx, index.cpu(), values.cpu()))

    def evaluate(self, collected: Sequence[tuple[int, Tensor, Tensor]]) -> Evaluation:
        parts = [
            [(index, values) for side, index, values in collected if side == number]
            for number in (0, 1)
        ]
        # [N, C, H]
        states = [
            in_order(mine, len(labels)) for mine, labels in zip(parts, self.labels, strict=True)
        ]
        if not all(np.isfinite(values).all() for values in states):
            raise ValueError(f"the encoder has states that are no numbers: {DAMAGED_WEIGHT}")
        controls = (
            control_labels(self.words[0], self.words[1], len(self.label_names))
            if self.words
            else None
        )
        scores, answers = dict[str, float](), dict[str, np.ndarray]()
        for number, name in enumerate(self.names):
            mean, spread = states[0][:, number].mean(0), states[0][:, number].std(0)
            scale = np.where(spread > 0, spread, 1.0).astype("f4")
            train, validation = ((one[:, number] - mean) / scale for one in states)
            answers[name] = self._answers(train, self.labels[0], validation)
            scores[f"accuracy/{name}"] = float((answers[name] == self.labels[1]).mean())
            if controls:
                guesses = self._answers(train, controls[0], validation)
                scores[f"control_accuracy/{name}"] = float((guesses == controls[1]).mean())
                scores[f"selectivity/{name}"] = (
                    scores[f"accuracy/{name}"] - scores[f"control_accuracy/{name}"]
                )
        self._say_what_is_unfinished()
        best = max(self.names, key=lambda name: scores[f"accuracy/{name}"])
        scores = {
            key.partition("/")[0]: value for key, value in scores.items() if key.endswith(best)
        } | scores
        pairs = zip(
            *([self.label_names[i] for i in one] for one in (answers[best], self.labels[1])),
            strict=True,
        )
        records = [
            {"id": str(i), "prediction": said, "label": label}
            for i, (said, label) in enumerate(pairs)
        ]
        return Evaluation(0, scores, records, is_collapsed=len(np.unique(answers[best])) == 1)

    def _answers(self, train: np.ndarray, labels: np.ndarray, asked: np.ndarray) -> np.ndarray:
        weights = logistic_regression(train, labels, len(self.label_names), **self.solver)
        gradient = largest_gradient(weights, train, labels, strength=self.solver["strength"])
        self.gradients.append(gradient)
        return (asked @ weights[:-1] + weights[-1]).argmax(axis=1)

    def _say_what_is_unfinished(self) -> None:
        unfinished = [size for size in self.gradients if size > CONVERGED]
        if unfinished:
            log.warning(
                f"{len(unfinished)} of {len(self.gradients)} classifiers are not at their optimum "
                f"after {self.solver['max_iterations']} iterations (largest gradient "
                f"{max(unfinished):.1e}): raise measure.module.max_iterations"
            )

    def baseline(self) -> float:
        return float(np.bincount(self.labels[1]).max() / len(self.labels[1]))


def control_labels(train: Sequence[str], asked: Sequence[str], num_labels: int) -> list[np.ndarray]:
    """Of each word a label that is its own wherever it stands, all equally likely."""
    words, number = np.unique([*train, *asked], return_inverse=True)
    return np.split(
        np.random.default_rng(0).integers(num_labels, size=len(words))[number], [len(train)]
    )


def logistic_regression(
    x: np.ndarray, labels: np.ndarray, num_classes: int, *, strength: float, max_iterations: int
) -> np.ndarray:
    """Weights [H + 1, classes], the last row is added: the multinomial model with a squared
    penalty.

    The same as scikit-learn's LogisticRegression(C=strength), whose penalty leaves the added row
    alone, and counts two classes as one difference. ValueError where only one class occurs.
    """
    if len(np.unique(labels)) < 2:
        raise ValueError(
            "every training example has the same class: there is nothing to tell apart"
        )
    with torch.inference_mode(False), torch.enable_grad():
        states, classes = torch.from_numpy(x), torch.from_numpy(labels)
        weights = torch.zeros(x.shape[1] + 1, num_classes, dtype=states.dtype, requires_grad=True)
        penalty = (1.0 if num_classes == 2 else 0.5) / (strength * len(x))
        how: Any = {
            "tolerance_grad": 1e-7,
            "tolerance_change": 1e-12,
            "line_search_fn": "strong_wolfe",
        }
        solver = torch.optim.LBFGS([weights], max_iter=max_iterations, **how)

        def loss() -> Tensor:
            solver.zero_grad()
            mean = nn.functional.cross_entropy(states @ weights[:-1] + weights[-1], classes)
            (value := mean + penalty * weights[:-1].square().sum()).backward()
            return value

        solver.step(loss)
    return weights.detach().numpy()


def largest_gradient(
    weights: np.ndarray,
    x: np.ndarray,
    labels: np.ndarray,
    *,
    strength: float,
) -> float:
    """Largest entry of the gradient of what `logistic_regression` minimises; 0 at the optimum."""
    num_classes = weights.shape[1]
    scores = (x @ weights[:-1] + weights[-1]).astype(np.float64)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    errors = (shares - np.eye(num_classes)[labels]) / len(x)  # [N, classes]
    penalty = (2.0 if num_classes == 2 else 1.0) / (strength * len(x))
    of_states = x.T @ errors + penalty * weights[:-1]
    return float(max(np.abs(of_states).max(), np.abs(errors.sum(axis=0)).max()))
