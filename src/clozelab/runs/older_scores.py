"""The names of all scores that were written before a score had a direction.

A record of today has the unit and the direction of each score beside its value. An older one has
the unit alone, and of other held-out figures of pre-training not even that. A name that is not here
has no direction, and no unit that its record does not give.
"""

from __future__ import annotations

from itertools import product

from clozelab.metrics.metric import NO_UNIT, Metric, base_name

SHARES_OF_TASKS = (
    "accuracy",
    "macro_f1",
    "weighted_f1",
    "matthews",
    "pearson",
    "spearman",
    "precision",
    "recall",
    "exact_match",
    "exact",
    "exact_untuned",
    "f1_untuned",
)
# The further figures of SQuAD 2.0's official scorer.
SHARES_OF_SQUAD = (
    "HasAns_exact",
    "HasAns_f1",
    "NoAns_exact",
    "NoAns_f1",
    "best_exact",
    "best_f1",
    "pr_exact_ap",
    "pr_f1_ap",
    "pr_oracle_ap",
)
SHARES_OF_MEASURES = (
    "accuracy_of_field",
    "accuracy_of_others",
    "accuracy_of_permutations",
    "control_accuracy",
    "selectivity",
)
SHARES_OF_PRETRAINING = (
    "nsp_accuracy_one_source",
    "nsp_source_rule",
    "sop_accuracy_one_source",
    "sop_source_rule",
    "rtd_replaced",
    "rtd_trivial_accuracy",
)
SHARES = SHARES_OF_TASKS + SHARES_OF_SQUAD + SHARES_OF_MEASURES + SHARES_OF_PRETRAINING
THRESHOLDS = ("threshold", "best_exact_thresh", "best_f1_thresh")
# Terms of a pre-training's loss: each had NAME_loss in nats and NAME_accuracy, and of [SEP] both.
TERMS = ("mlm", "ltr", "rtl", "permuted", "rtd", "sbo", "nsp", "sop")
TERMS_OF_A_TEACHER = ("soft", "cosine", "hidden", "scores")


def _metrics() -> dict[str, Metric]:
    metrics = [Metric.share("f1", is_of_one_class=True), *map(Metric.share, SHARES)]
    metrics += [Metric(name, "logits", higher_is_better=None) for name in THRESHOLDS]
    metrics.append(Metric("perplexity", NO_UNIT, higher_is_better=False))
    metrics.append(Metric("bits_per_character", "bits", higher_is_better=False))
    # Losses and accuracies of pre-training, over all predictions and over those of [SEP] alone.
    losses = ["loss", "sep_loss", *(f"{name}_loss" for name in TERMS_OF_A_TEACHER)]
    metrics.append(Metric.share("sep_accuracy"))
    for name, suffix in product(TERMS, ("", "_sep")):
        losses.append(f"{name}{suffix}_loss")
        metrics.append(Metric.share(f"{name}{suffix}_accuracy"))
    metrics += [Metric(name, "nats", higher_is_better=False) for name in losses]
    return {metric.name: metric for metric in metrics}


METRICS = _metrics()


def older_metric(key: str, files: tuple[str, ...] = ()) -> Metric | None:
    """The metric of a key that an older run has written; None where none ever had this name.

    `files` are the run's further validation files: "mismatched_accuracy" is the accuracy of
    "mismatched". Its factor is that of shares of one: SQuAD's scores are in percent as they are.
    """
    name = base_name(key)
    for file in files:
        name = name.removeprefix(f"{file}_")
    return METRICS.get(name)
