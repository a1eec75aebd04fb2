"""Learning rates that fall from the head down to the embeddings, by one of three published rules.

With n layers, a parameter's learning rate is the optimizer's times `layer_decay ** exponent`:

    rule      embeddings   layer l of 0 to n - 1   pooler, final norm   head
    electra   n + 2        n + 1 - l               1                    0
    xlnet     0            n - 1 - l               0                    0
    ulmfit    n + 1        n - l                   0                    0

- electra: google-research/electra, model/optimization.py. It has neither a pooler nor a final norm:
  they get the one exponent between its top layer and its head that the release leaves out.
- xlnet: Yang et al. 2019, appendix A. Embeddings and head keep the whole rate in zihangdai/xlnet,
  model_utils.py. That code scales gradients, which Adam undoes; here it is the rate, as in the
  paper.
- ulmfit: Howard and Ruder 2018, section 3.2: each group has 1 / 2.6 of the rate of the one above.

A set of weights that layers share (ALBERT) is one layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from torch import nn

from clozelab.optim.groups import USUAL, GroupNodes, NamedParameters, ParameterGroup, match_groups
from clozelab.text.did_you_mean import check_choice

RULES = ("electra", "xlnet", "ulmfit")
# encoder.layer.0.output.dense.weight, encoder.backward_stack.layer.0.output.dense.weight
LAYER = re.compile(r"(?P<encoder>(?:.*?\.)?)(?:backward_stack\.)?layer\.(?P<number>\d+)\.")


class Level(NamedTuple):
    """How high a parameter stands: 0 embeddings, 1 to n layers, n + 1 behind them, n + 2 a head."""

    number: int
    num_layers: int

    @property
    def group(self) -> int:
        """The same, where what stands behind the layers belongs to the head."""
        return min(self.number, self.num_layers + 1)

    def exponent(self, rule: str) -> int:
        """Of the decay, by one of RULES."""
        if rule == "electra":
            return self.num_layers + 2 - self.number
        if rule == "ulmfit":
            return self.num_layers + 1 - self.group
        is_layer = 0 < self.number <= self.num_layers
        return self.num_layers - self.number if is_layer else 0


def levels_of(names: Iterable[str]) -> dict[str, Level]:
    """Name of a parameter -> its level in the encoder that it is of; empty without any layer."""
    names = list(names)
    # Start of an encoder's names, "encoder." -> its number of layers.
    num_layers: dict[str, int] = {}
    numbers = {}
    for name in names:
        match = LAYER.match(name)
        if match:
            numbers[name] = int(match["number"]) + 1
            num_layers[match["encoder"]] = max(numbers[name], num_layers.get(match["encoder"], 0))
    if not num_layers:
        return {}
    levels = {}
    for name in names:
        encoder = next((start for start in num_layers if name.startswith(start)), None)
        if encoder is None:
            deepest = max(num_layers.values())
            levels[name] = Level(deepest + 2, deepest)
            continue
        # embeddings and embeddings_project
        is_embedding = name.startswith(f"{encoder}embeddings")
        behind = num_layers[encoder] + 1
        number = numbers.get(name, 0 if is_embedding else behind)
        levels[name] = Level(number, num_layers[encoder])
    return levels


def match_parameters(
    named_parameters: NamedParameters, nodes: GroupNodes, layer_decay: float | None, rule: str
) -> tuple[dict[str, nn.Parameter], Mapping[str, ParameterGroup]]:
    """An optimizer's parameters by their names, and what each has of its own.

    A group's `learning_rate_factor` multiplies that of the layer. Without a decay the order stays;
    else the highest rates come first, for the first one is logged. ValueError for a decay outside
    (0, 1], for another rule, and where nothing that is trained has a layer.
    """
    named = dict(named_parameters)
    matches = match_groups(named, nodes)
    check_choice("optimizer.layer_decay_rule", rule, RULES)
    if layer_decay is None:
        return named, matches
    if not 0.0 < layer_decay <= 1.0:
        raise ValueError(f"optimizer.layer_decay is {layer_decay}: it must be in (0, 1]")
    levels = levels_of(named)
    in_encoder = [name for name, level in levels.items() if level.number <= level.num_layers]
    if not any(named[name].requires_grad for name in in_encoder):
        raise ValueError(
            "optimizer.layer_decay: no parameter of an encoder's layers is trained, so it would"
            " change nothing: leave it out"
        )
    decayed = {}
    for name, level in levels.items():
        group = matches.get(name, USUAL)
        factor = group.learning_rate_factor * layer_decay ** level.exponent(rule)
        decayed[name] = replace(group, learning_rate_factor=factor)
    order = sorted(named, key=lambda name: -decayed[name].learning_rate_factor)
    return {name: named[name] for name in order}, decayed
