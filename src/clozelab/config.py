"""A composed configuration: what `${name:...}` means in it, and what its schema does not allow.

`register()` puts the schemas and the resolvers where Hydra finds them; it must run before anything
is composed.
"""

from __future__ import annotations

import functools
import json
import math
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from clozelab.schema import SCHEMAS
from clozelab.text.did_you_mean import hint, nearest


def fallback(*values: Any) -> Any:
    """`${fallback:${scale.finetune.epochs},${task.epochs}}`: the first value that is not None."""
    for value in values:
        if value is not None:
            return value
    return None


def scaled(value: int, *ratios: Any) -> int:
    """`${scaled:${scale.size_base.hidden_size},4/3}`: a whole number times ratios.

    ValueError where that is no whole number.
    """
    try:
        # exact: 4/3 of 3/4 of 12 is 12
        product = math.prod((Fraction(str(ratio)) for ratio in ratios), start=Fraction(value))
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{', '.join(map(str, ratios))}: give a ratio as 1, 1/2 or 4/3") from error
    if product.denominator != 1 or product < 1:
        factors = " x ".join(map(str, (value, *ratios)))
        raise ValueError(
            f"{factors} = {float(product):g} is no size: it has to be a positive whole number."
            " Choose a scale whose size_base this ratio divides (depth a multiple of 4, heads of"
            " 12, width of 3), or set scale.size_base"
        )
    return int(product)


def scaled_phases(
    phases: Sequence[Mapping[str, Any]], factor: float
) -> Sequence[Mapping[str, Any]]:
    """`${scaled_phases:${scale.pretrain.phases},${steps_factor}}`: phases with more or fewer steps.

    Each has a multiple of its steps, at least one. At 1 it is the very node that was given, so that
    an override of `phases.0.steps` still finds it; otherwise the list refuses one, which would be
    lost.
    """
    if float(factor) == 1.0:
        return phases
    longer_phases = []
    for phase in phases:
        steps = max(1, round(phase["steps"] * float(factor)))
        longer_phases.append({**phase, "steps": steps})
    return OmegaConf.create(longer_phases, flags={"readonly": True})


def kept_step(fraction: float, total_steps: int) -> int:
    """Return the step after which the encoder of a fraction of the run is kept.

    ValueError where there is none.
    """
    step = round(float(fraction) * total_steps)
    if not 0.0 < float(fraction) < 1.0 or not 0 < step < total_steps:
        raise ValueError(
            f"{fraction} of {total_steps} steps: an encoder is kept after a fraction above 0 and"
            " below 1 that is at least one step (the last one is always there)"
        )
    return step


def encoder_place(run_dir: str, fraction: float, phases: Sequence[Mapping[str, Any]]) -> str:
    """`${encoder_place:RUN_DIR,${encoder_fraction},${scale.pretrain.phases}}`: a run's encoder.

    It is the encoder after a fraction of the run's own steps, as its record says, or of these
    phases' where it has not begun.
    """
    if float(fraction) == 1.0:
        return f"{run_dir}/encoder"
    with suppress(OSError, ValueError, KeyError, TypeError):  # it has not begun
        record = json.loads((Path(run_dir) / "run.json").read_text(encoding="utf-8"))
        phases = record["config"]["phases"] or phases
    return f"{run_dir}/encoders/step-{kept_step(fraction, total_steps(phases))}"


def total_steps(phases: Sequence[Mapping[str, Any]]) -> int:
    """Return the optimizer steps of all phases."""
    return sum(int(phase["steps"]) for phase in phases)


def at_least(least: float, value: float) -> float:
    """`${at_least:4,${scale.model.num_hidden_layers}}`: the value, or the least if it is below."""
    return max(least, value)


def listed(*names: str) -> str:
    """`${listed:a,,b}`: the measures that are not empty, as the values of a sweep.

    ValueError where all are.
    """
    if not any(names):
        raise ValueError(
            "the experiment's measures have no files at this scale: evaluate=none leaves them out"
        )
    return ",".join(filter(None, names))


RESOLVERS: tuple[Callable[..., Any], ...] = (
    fallback,
    at_least,
    listed,
    scaled,
    scaled_phases,
    encoder_place,
)
"""Known to configurations by their own names (config.register)."""


def check_config(stage: str, config: DictConfig) -> None:
    """Refuse what a stage's schema does not allow, with a sentence for each key.

    A value that has to be given may be missing.
    """
    try:
        mistakes = _mistakes(stage, OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException:  # a resolver's refusal, perhaps of what is wrong where it stands
        mistakes = _mistakes(stage, OmegaConf.to_container(config, resolve=False))
        if not mistakes:
            raise
    if mistakes:
        raise ValueError("\n".join(mistakes))


UNRESOLVED = re.compile(r"^\?{3}$|\$\{")
"""A value that is missing, or not resolved."""


def _mistakes(stage: str, plain: Any) -> list[str]:
    """Return a sentence for each mistake in a configuration of plain values.

    Where keys are unknown, which Hydra lets past its own check as `+key=value`, there are only
    those. The scale's values are judged where they are used.
    """
    try:
        adapter(SCHEMAS[stage]).validate_python(plain)
    except ValidationError as error:
        unknown_keys = []
        wrong_values = []
        for mistake in error.errors(include_url=False):
            if mistake["type"] == "unexpected_keyword_argument":
                unknown_keys.append(_unknown_key(mistake, plain))
            elif mistake["loc"][0] != "scale" and not UNRESOLVED.search(str(mistake["input"])):
                wrong_values.append(_wrong_value(mistake))
        return unknown_keys or wrong_values
    return []


def _unknown_key(mistake: ErrorDetails, plain: Any) -> str:
    """Write the sentence for an unknown key, as pydantic reports it, of a configuration."""
    # ("model", "hiden_size"): the keys of the node that has it are those that may be meant
    *parents, name = mistake["loc"]
    node = plain
    for parent in parents:
        node = node[parent]
    known_keys = [key for key in node if key != name]
    return f"{_dotted(mistake)}: there is no such key; {hint(str(name), known_keys)}"


def _wrong_value(mistake: ErrorDetails) -> str:
    """Write the sentence for a value that its key may not have, as pydantic reports it."""
    key = _dotted(mistake)
    value = mistake["input"]
    choices = mistake.get("ctx", {}).get("choices")
    if choices:
        near = nearest(value, choices)
        meant = f"; did you mean {near!r}?" if near else ""
        return f"{key} is {value!r}: choose one of {', '.join(choices)}{meant}"
    reason = mistake["msg"].removeprefix("Value error, ").replace("Input should", "it must")
    return f"{key} is {value}: {reason}"


def _dotted(mistake: ErrorDetails) -> str:
    return ".".join(map(str, mistake["loc"]))


adapter: Callable[[type], TypeAdapter[Any]] = functools.cache(TypeAdapter)


def copied(value: Any) -> Any:
    """Return a copy, in a fifth of the time that OmegaConf's own takes."""
    return pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))


@functools.cache
def register() -> None:
    """Make the root schemas and the resolvers known to Hydra, once."""
    # lazy: the schema alone does not need Hydra
    from hydra.core.config_store import ConfigStore

    from clozelab import hydra_compat

    for stage, schema in SCHEMAS.items():
        ConfigStore.instance().store(name=f"{stage}_schema", node=schema, provider="clozelab")
    for resolver in RESOLVERS:
        OmegaConf.register_new_resolver(resolver.__name__, resolver, replace=True)
    hydra_compat.compose_quickly()
