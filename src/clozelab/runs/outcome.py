"""What a finished run says: its score beside what takes no context, and what to do next."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from claims.analysis.grouping import group_by
from claims.text.phrases import DASH, join_list
from clozelab.metrics.metric import PERCENT
from clozelab.runs.differences import differing_keys, overrides_of
from clozelab.runs.record import Record, Score
from clozelab.text.plain import hydra_text

LEARNT_CONTEXT_NATS = 0.2
"""A token, below the loss of a model without context: else a run is on its first plateau."""
LEARNT_SKILL = 0.05
"""The same of a pre-training that tells replaced tokens: a skill score."""
SHORT_NAMES = {"bits_per_character": "bits/char"}  # where a score's name leaves it no room
NOTHING = "learnt nothing: "
RTD_ACCURACY = "validation/rtd_accuracy"
RTD_TRIVIAL_ACCURACY = "validation/rtd_trivial_accuracy"


def context_free(run: Record) -> float | None:
    """Return the held-out loss without context, in nats.

    It comes from the training text's frequencies, and from copying what masking leaves in place.
    """
    loss = run.facts.get("unigram_loss")
    if loss is None:
        return None
    return (1.0 - same_fraction(run)) * float(loss)


def same_fraction(run: Record) -> float:
    """Return the share of the predicted tokens that masking leaves in place.

    It is 0 where every token is predicted.
    """
    token = run.last_objective.get("token")
    # A hybrid objective with causal instances alone masks nothing. A name alone says nothing.
    if not isinstance(token, Mapping) or token.get("causal_fraction") == 1:
        return 0.0
    return float(token.get("same_fraction") or 0.0)


def skill_score(run: Record) -> float:
    """Return the share of the loss that takes no context which a pre-training has learnt to avoid.

    Of replaced-token detection it is the share of the errors that one constant answer makes.
    """
    if RTD_ACCURACY in run.facts:  # the loss is the generator's, which is not kept
        accuracy = run.facts[RTD_ACCURACY]
        trivial_accuracy = run.facts[RTD_TRIVIAL_ACCURACY]
        if trivial_accuracy >= 1:
            return 0.0
        return float((accuracy - trivial_accuracy) / (1 - trivial_accuracy))
    loss = run.facts.get("validation/loss")
    plateau = context_free(run)
    if loss is None or not plateau:
        return 0.0
    return 1 - float(loss) / plateau


def ignores_context(run: Record) -> bool:
    """Whether a pre-training is no better than what takes no context, as far as it says both."""
    return _is_without_context(run) and not fresh_heads(run)


def fresh_heads(run: Record) -> list[str]:
    """Return the heads that began with fresh weights on a given encoder, which may know more."""
    return list(run.facts.get("fresh_heads", ()))


def _is_without_context(run: Record) -> bool:
    if RTD_ACCURACY in run.facts:
        return skill_score(run) <= LEARNT_SKILL
    losses = _losses(run)
    return losses is not None and losses[0] > losses[1] - LEARNT_CONTEXT_NATS


def _losses(run: Record) -> tuple[float, float] | None:
    """The held-out loss of a pre-training, and the one without context; None where one lacks."""
    loss = run.facts.get("validation/loss")
    plateau = context_free(run)
    if run.stage != "pretrain" or loss is None or plateau is None:
        return None
    return float(loss), plateau


def score_in_context(run: Record, *, with_loss: bool = True) -> str:
    """Say what a finished run's score stands beside, or nothing.

    That is a loss without context, one fixed answer, or the best simple method. Without `with_loss`
    the run's own loss is left out.
    """
    losses = _losses(run)
    if RTD_ACCURACY in run.facts:
        text = (
            f"{run.facts[RTD_ACCURACY]:.1%} of tokens rightly classified as replaced or not, one"
            f" answer gives {run.facts[RTD_TRIVIAL_ACCURACY]:.1%}"
        )
    elif losses is not None:
        loss, plateau = losses
        text = f"word frequencies give {plateau:.2f}"
        if with_loss:
            text = f"{loss:.2f} nats, {text}"
    else:
        return _describe_baselines([run], run.score)
    if ignores_context(run):
        return f"{NOTHING}{text}"
    if fresh_heads(run) and _is_without_context(run):
        heads = join_list(fresh_heads(run))
        text += f"; the given encoder had no trained {heads} head, the new one needs more steps"
    return text


def is_below_baseline(run: Record) -> bool:
    """Whether some simple method beats a run on the same examples."""
    score = run.scores.get(run.metric)
    return score is not None and _is_score_below_baseline(score, run.score)


def _is_score_below_baseline(score: Score, value: float | None) -> bool:
    """Whether a value of a score is worse than the best simple method's."""
    if score.best_baseline is None:
        return False
    _, best = score.best_baseline
    if score.falls:
        return value is None or value > best
    return (value or 0.0) < best


def _describe_baselines(runs: Sequence[Record], value: float | None) -> str:
    """Write `most frequent label 52.1, worse than unigrams 61.0`, as far as the runs have them.

    The runs differ in seeds alone, and `value` is their mean score.
    """
    phrases = []
    score = runs[0].scores.get(runs[0].metric)
    # A tenth is little of a percentage, and much of an error in points.
    digits = 1 if score is not None and score.unit == PERCENT else 3
    if score is not None and score.majority is not None:
        phrases.append(f"most frequent label {score.majority:.{digits}f}")
    if score is not None and score.best_baseline is not None:
        name, best = score.best_baseline
        prefix = "worse than " if _is_score_below_baseline(score, value) else ""
        phrases.append(f"{prefix}{name} {best:.{digits}f}")
    num_collapsed = sum(bool(run.facts.get("collapsed")) for run in runs)
    if num_collapsed:
        of_runs = "" if num_collapsed == len(runs) else f"{num_collapsed} of {len(runs)} "
        phrases.append(f"{of_runs}collapsed: one answer to (nearly) everything")
    return ", ".join(phrases)


def shown_score(run: Record, value: float | None) -> str:
    """Write a headline score as tables have it; a loss or perplexity by its name."""
    if value is None:
        return DASH
    name = run.metric.rpartition("/")[2]
    if run.scores[run.metric].unit == PERCENT:
        # A measure has several figures such as accuracy/left; a table may show another one.
        text = f"{value:.1f}"
        # Of a class: without its name the figure could be of the other.
        if run.scores[run.metric].positive_label is not None:
            text = f"{run.score_name(run.metric)} {text}"
        if run.metric.count("/") > 1:
            text = f"{name} {text}"
        return text
    return f"{SHORT_NAMES.get(name, name.replace('_', ' '))} {value:.3f}"


def results(records: Iterable[Record]) -> list[list[str]]:
    """Return a line for each arm, or row and task.

    A line has: name, task, number of finished runs, mean score, what that stands beside.
    """
    lines = []
    for name, task, runs in _alike(records):
        scores = [run.score for run in runs if run.score is not None]
        mean = statistics.fmean(scores) if scores else None
        # The loss itself is a run's own. What it stands beside is the same for all, also where some
        # seeds learnt nothing, and is said once.
        num_empty = sum(map(ignores_context, runs))
        verdicts = {0: "", len(runs): NOTHING}
        verdict = verdicts.get(num_empty, f"{num_empty} of {len(runs)} {NOTHING}")
        contexts = dict.fromkeys(
            score_in_context(run, with_loss=False).removeprefix(NOTHING) for run in runs
        )
        text = verdict + "; ".join(filter(None, contexts))
        # What a task's score stands beside is the same too, and judges the mean.
        if runs[0].stage != "pretrain":
            text = _describe_baselines(runs, mean)
        lines.append([name, task, str(len(runs)), shown_score(runs[0], mean), text])
    return lines


def _alike(records: Iterable[Record]) -> Iterator[tuple[str, str, list[Record]]]:
    """Yield (name, task, runs) of runs that differ in seeds alone.

    Where runs of one name differ in more, as in `learning_rate=5e-5,2e-4`, the name says in what.
    """
    for (name, task), runs in group_by(records, attrgetter("name", "task")).items():
        for full_name, same in _by_settings(name, runs).items():
            yield full_name, task, same


def _by_settings(name: str, runs: Sequence[Record]) -> dict[str, list[Record]]:
    """Name with what sets runs apart -> the runs that differ in seeds alone."""
    overrides = overrides_of(runs)
    keys = differing_keys(overrides)
    runs_by_name: dict[str, list[Record]] = {}
    for run, values in zip(runs, overrides, strict=True):
        settings = [f"{key}={values.get(key, 'default')}" for key in keys]
        full_name = ", ".join([name, *settings])
        runs_by_name.setdefault(full_name, []).append(run)
    return runs_by_name


def ending(run: Record) -> list[str]:
    """Return the lines of a finished run.

    They say its score, beside what; the next command, if any is of use; how its model is loaded.
    """
    context = score_in_context(run)
    if run.stage == "pretrain":
        folder = (run.folder / "encoder").resolve()
        has_model = True
        headline = context
        row = hydra_text(run.name)
        argv = [f"scale={run.scale}", f"encoder={folder}", f"row={row}", "task=TASK"]
        if run.config_dir:
            argv = ["--config-dir", run.config_dir, *argv]
        next_command = f"finetune {shlex.join(argv)}"
    else:
        folder = run.folder.resolve()
        has_model = (folder / "model").is_dir()
        headline = f"{run.title}: {shown_score(run, run.score)}; {context}".removesuffix("; ")
        next_command = run.facts.get("next_command", "predict RUN text=...")
        next_command = next_command.replace("RUN", str(folder))

    # then what to do about it: a warning, advice, or the next command
    lines = [headline] if headline else []
    if is_below_baseline(run):
        lines.append("a method without context does better: train longer, or give more examples")
    if ignores_context(run):
        lines.append("more steps, shorter sequences or more text may help")
    elif has_model:
        lines.append(f"next: clozelab {next_command}")
    if has_model:
        lines.append(f'from Python: clozelab.load("{folder}")')
    return lines
