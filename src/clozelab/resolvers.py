"""What `${name:...}` means in a configuration: a size from ratios, phases from a factor, where an encoder was kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf


def fallback(*values: Any) -> Any:
    """The first value that is not None: `${fallback:${scale.finetune.epochs},${task.epochs}}`."""
    return next((value for value in values if value is not None), None)


def scaled(value: int, *ratios: Any) -> int:
    """`${scaled:${scale.size_base.hidden_size},4/3}`: a whole number times ratios, exactly.

    Raises:
        ValueError: a ratio is none, or the product is not a whole number.
    """
    try:
        product = math.prod((Fraction(str(ratio)) for ratio in ratios), start=Fraction(value))
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{', '.join(map(str, ratios))}: give a ratio as 1, 1/2 or 4/3") from error
    if product.denominator != 1 or product < 1:
        text = " x ".join(map(str, (value, *ratios)))
        raise ValueError(
            f"{text} = {float(product):g} is no size: it has to be a positive whole number. Choose a scale whose "
            "size_base this ratio divides (depth a multiple of 4, heads of 12, width of 3), or set scale.size_base"
        )
    return int(product)


def scaled_phases(phases: Sequence[Mapping[str, Any]], factor: float) -> Sequence[Mapping[str, Any]]:
    """`${scaled_phases:${scale.pretrain.phases},${steps_factor}}`: phases with a multiple of their steps, at least one.

    At 1 it is the very node that was given, so that an override of `phases.0.steps` still finds it; otherwise the list
    refuses one, which would be lost.

    Raises:
        ValueError: the factor is not above 0.
    """
    if not 0.0 < float(factor) < math.inf:
        raise ValueError(f"steps_factor is {factor}: it is a number above 0 (0.5 for half of the scale's steps)")
    if float(factor) == 1.0:
        return phases
    made = [{**phase, "steps": max(1, round(phase["steps"] * float(factor)))} for phase in phases]
    return OmegaConf.create(made, flags={"readonly": True})


def kept_step(fraction: float, total_steps: int) -> int:
    """The step after which the encoder of a fraction of the run is kept.

    Raises:
        ValueError: the fraction is not above 0 and below 1, or no step belongs to it.
    """
    step = round(float(fraction) * total_steps)
    if not 0.0 < float(fraction) < 1.0 or not 0 < step < total_steps:
        raise ValueError(
            f"{fraction} of {total_steps} steps: an encoder is kept after a fraction above 0 and below 1 that is at "
            "least one step (the last one is always there)"
        )
    return step


def encoder_place(run_dir: str, fraction: float, phases: Sequence[Mapping[str, Any]]) -> str:
    """`${encoder_place:RUN_DIR,${encoder_fraction},${scale.pretrain.phases}}`: an encoder of a pre-training run.

    Args:
        run_dir: the run's folder.
        fraction: of the run's own steps, as its record says; 1 for the last encoder.
        phases: the scale's; of a run that has not begun.
    """
    if float(fraction) == 1.0:
        return f"{run_dir}/encoder"
    step = kept_step(fraction, total_steps(_recorded_phases(run_dir) or phases))
    return f"{run_dir}/encoders/step-{step}"


def total_steps(phases: Sequence[Mapping[str, Any]]) -> int:
    return sum(int(phase["steps"]) for phase in phases)


def _recorded_phases(run_dir: str) -> list[dict[str, Any]] | None:
    """What a run was trained with; None where nothing says so."""
    try:
        found = json.loads((Path(run_dir) / "run.json").read_text(encoding="utf-8"))["config_resolved"]["phases"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, list) else None


def at_least(least: float, value: float) -> float:
    """`${at_least:4,${scale.model.num_hidden_layers}}`: the value, or the least where it is below."""
    return max(least, value)


RESOLVERS: tuple[Callable[..., Any], ...] = (fallback, at_least, scaled, scaled_phases, encoder_place)
"""Known to configurations by their own names (config.register)."""
