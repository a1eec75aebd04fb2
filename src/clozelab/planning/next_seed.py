"""Which claim gets one more pre-training seed, and the overrides that run it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Judgement
from clozelab.launch.experiments import SWEEPS
from clozelab.planning.steps import chooses_seeds
from clozelab.results.experiment import Experiment
from clozelab.text.plain import hydra_text


def first_seeds(experiment: Experiment, until: str | None, overrides: Sequence[str]) -> str:
    """The override that gives the seeds of the first look.

    Raises:
        ValueError: there is no such rule, or the seeds are chosen already.
    """
    if not until:
        raise ValueError("budget= needs until=decided")
    if until != "decided":
        raise ValueError(f"until={until}: there is until=decided alone")
    if experiment.stopping is None:
        raise ValueError(
            f"{experiment.folder}: until=decided needs a stopping rule in paper.yaml, written"
            " before the first interim analysis, such as stopping: {first: 3, most: 8}"
        )
    for override in overrides:
        if chooses_seeds(override):
            raise ValueError(f"{override}: until=decided chooses the pre-training seeds itself")
    seeds = range(1, experiment.stopping.first + 1)
    return f"seeds={','.join(map(str, seeds))}"


def stages_with_seeds(seed_overrides: Sequence[str]) -> Collection[str]:
    """The stages that get a seed more: all, or those that the overrides name."""
    if seed_overrides[0].startswith("seeds="):
        return SWEEPS
    return {override.partition(".")[0] for override in seed_overrides}


def nearest(judgements: Sequence[Judgement], experiment: Experiment) -> Judgement | None:
    """The undecided claim to give the next seed to.

    That is the first primary one, or else the one with the nearest forecast. Of claims that are
    primary together any may be it.
    """
    max_seeds = 0
    if experiment.stopping:
        max_seeds = experiment.stopping.most
    rows_with_encoder = {row.name for row in experiment.rows if row.has_encoder}
    # The primary claims behind the first open one wait; the others gain by it.
    gate = _first_open_primary(judgements)
    candidates = []
    for judgement in judgements:
        is_waiting = judgement.claim.primary is True and judgement is not gate
        if is_waiting or not _has_analyses_left(judgement, max_seeds):
            continue
        if rows_with_encoder.intersection(judgement.rows):
            candidates.append(judgement)
    # The primary claim that the others wait for goes first.
    if any(judgement is gate for judgement in candidates):
        return gate
    return min(
        candidates,
        key=lambda judgement: (
            not judgement.claim.primary,
            judgement.decisive_seeds or math.inf,
            judgement.p_value,
        ),
        default=None,
    )


def _first_open_primary(judgements: Sequence[Judgement]) -> Judgement | None:
    for judgement in judgements:
        is_open = judgement.verdict in (Verdict.INCONCLUSIVE, Verdict.ONE_SEED)
        if judgement.claim.primary is True and is_open:
            return judgement
    return None


def _has_analyses_left(judgement: Judgement, max_seeds: int) -> bool:
    """Whether a claim is tested and undecided, and its stopping rule allows another seed."""
    if judgement.verdict is not Verdict.INCONCLUSIVE or judgement.p_value is None:
        return False
    return judgement.difference is not None and judgement.difference.count < max_seeds


def next_seed(judgement: Judgement, experiment: Experiment) -> list[str]:
    """The overrides that give a claim's rows one more seed, on the data sets that it is about."""
    arms = _arms_of(judgement, experiment)
    row_list = ",".join(map(hydra_text, judgement.rows))
    # "1 2 3/1 2": pre-training seeds, fine-tuning seeds. The row with fewest gets the next one.
    last_seeds = []
    for seeds in judgement.seeds.values():
        last_seeds.append(max(map(int, seeds.partition("/")[0].split())))
    seed = min(last_seeds) + 1

    # What else runs with the new seed depends on the data set that the claim is about.
    chosen_arms = []
    pretraining = []
    if arms:
        chosen_arms = [f"pretrain.arm={','.join(map(hydra_text, arms))}"]
        pretraining = [f"pretrain.seed={seed}", *chosen_arms]
    column = judgement.column
    if judgement.claim.against:  # another column's runs, too
        return [f"seeds={seed}", *chosen_arms, f"row={row_list}"]
    if column and column.is_pretraining:
        return pretraining
    if column and column.is_measured:
        return [
            *pretraining,
            f"evaluate.pretrain_seed={seed}",
            f"evaluate.measured={row_list}",
            f"evaluate.measure={','.join(column.tasks)}",
        ]
    finetuning = [f"finetune.pretrain_seed={seed}", f"finetune.row={row_list}"]
    if column:
        finetuning.append(f"finetune.task={','.join(map(hydra_text, column.tasks))}")
    return [*pretraining, *finetuning]


def _arms_of(judgement: Judgement, experiment: Experiment) -> list[str]:
    """The arms that are trained for a claim's rows; none where all are given encoders."""
    column = judgement.column
    is_measured = bool(judgement.claim.against) or (column is not None and column.is_measured)
    rows = [experiment.row(name) for name in judgement.rows]
    if not is_measured:
        rows = [row for row in rows if not row.fixed_encoder]
    # Fresh weights take an arm's shape from its folder, and measures of a given encoder take an
    # arm's heads.
    any_arm = next((row.arm for row in experiment.rows if row.arm), "")
    arms = [str(row.arm or row.delta.get("encoder_arm") or any_arm) for row in rows]
    return list(filter(None, dict.fromkeys(arms)))
