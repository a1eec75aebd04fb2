"""How a given encoder is adapted: what of it is trained, and what is added to it.

The head is always trained, and so is a pooler that the encoder's folder lacks. All else that a kind
of adaptation does not name stays as it is, to the bit.

Unusual: low-rank updates are part of the weight (torch.nn.utils.parametrize) and no module around
it. So they count wherever rows of a fused matrix are read directly: distances of DeBERTa, queries
of a second stream.
"""

from __future__ import annotations

import json
import logging
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

from clozelab.files.atomic import atomic_open
from clozelab.models.encoder import Bottleneck, Encoder
from clozelab.models.families.bert import POOLED_KINDS, Family
from clozelab.models.folders import encoder_tensors
from clozelab.models.layers import initialise_
from clozelab.models.peft_folders import (
    ABOUT,
    TASK_TYPES,
    AdapterNotes,
    FileUpdate,
    adapter_files,
    read_adapter,
)
from clozelab.models.registry import family_for
from clozelab.models.trained import effective_state, freeze

log = logging.getLogger(__name__)
PROJECTIONS = ("query", "key", "value")
FREEZE_WORDS = re.compile(r"all but (\d+)|(\d+)(?:-(\d+))?")
FIRST_LAYER = re.compile(r"\b0\b")
PLACEMENTS = ("houlsby", "pfeiffer")


class Adaptation(ABC):
    """What of an encoder is trained. `learning_rates`: the lowest and highest of its paper."""

    learning_rates: tuple[float, float] | None = None

    @abstractmethod
    def apply(self, encoder: Encoder) -> str:
        """Freeze what is not trained, and add what is new; ValueError where it does not fit.

        Returns what is trained of the encoder, for a log.
        """


def adapt(
    encoder: Encoder, adaptation: Adaptation | None, frozen: object, *, has_fresh_pooler: bool
) -> str:
    """Adapt an encoder whose heads stand, before it is trained; returns a line for the log.

    Args:
        frozen: what `freeze=` names (frozen_modules), or a list of such; None: nothing.
        has_fresh_pooler: the pooler's weights come from no folder: it is trained with the head.

    ValueError where both are given, where a part is not there, and where no weight of the encoder
    was to be trained anyway.
    """
    if adaptation is None and frozen is None:
        return ""
    if adaptation is not None and frozen is not None:
        raise ValueError(
            f"freeze={frozen} is for adaptation=full; any other adaptation says itself what is"
            " trained: leave one of them out"
        )
    if not any(parameter.requires_grad for parameter in encoder.parameters()):
        raise ValueError(
            "this training reads features of a frozen encoder: leave adaptation= and freeze= out"
        )
    if adaptation is None:
        return freeze_parts(encoder, frozen)
    pooler = []
    if has_fresh_pooler:
        pooler = [weight for weight in encoder.pooler.parameters() if weight.requires_grad]
    freeze(pooler)
    trained = adaptation.apply(encoder)
    for weight in pooler:
        weight.requires_grad_(True)
    return f"adaptation: of the encoder, {trained}"


# Whole layers


def freeze_parts(encoder: Encoder, parts: object) -> str:
    """Freeze what `parts` names, one text or number or a list of such; returns how much that is."""
    if not isinstance(parts, list | tuple):
        parts = [parts]
    frozen: dict[int, Tensor] = {}
    for name in parts:
        for module in frozen_modules(encoder, str(name)):
            frozen |= {id(weight): weight for weight in module.parameters()}
    freeze(frozen.values())
    count = sum(weight.numel() for weight in frozen.values())
    total = len(list(encoder.parameters()))
    names = ", ".join(map(str, parts))
    return f"freeze: {names}: {len(frozen)} of the encoder's {total} tensors, {count:,} weights"


def frozen_modules(encoder: Encoder, part: str) -> list[nn.Module]:
    """The modules of a part: `embeddings`, a layer (`3`), layers (`0-3`), or `all but 2`.

    `embeddings` is all below layer 0, `all but 2` every layer but the last two. ValueError for
    another word, for layers that are not there, and where layers share weights.
    """
    if part == "embeddings":
        below = (encoder.embeddings, encoder.embeddings_project)
        return [module for module in below if module is not None]
    match = FREEZE_WORDS.fullmatch(part)
    if match is None:
        raise ValueError(
            f"freeze={part}: write embeddings, a layer (3), layers (0-3), 'all but 2', or a list of"
            " these"
        )
    depth = encoder.config.num_hidden_layers
    trained, first, last = match.groups()
    numbers = range(depth - int(trained or 0))
    if first is not None:
        numbers = range(int(first), int(last or first) + 1)
    if not numbers or numbers[-1] >= depth:
        raise ValueError(f"freeze={part}: the encoder has the layers 0 to {depth - 1}")
    stacks = [encoder.layers()]
    if encoder.backward_stack is not None:
        stacks.append(encoder.layers(encoder.backward_stack))
    frozen: list[nn.Module] = []
    for layers in stacks:
        frozen += [layers[number] for number in numbers]
    if encoder.config.num_hidden_groups < depth:
        raise ValueError(f"freeze={part}: layers of this encoder share their weights")
    return frozen


@dataclass(frozen=True)
class TopLayers(Adaptation):
    """The last `num_layers` layers are trained."""

    num_layers: int

    def apply(self, encoder: Encoder) -> str:
        depth = encoder.config.num_hidden_layers
        if not 1 <= self.num_layers < depth:
            raise ValueError(
                f"adaptation.num_layers is {self.num_layers}: of {depth} layers choose 1 to"
                f" {depth - 1}, or adaptation=full"
            )
        freeze_parts(encoder, ["embeddings", f"all but {self.num_layers}"])
        return f"the last {self.num_layers} of {depth} layers"


@dataclass(frozen=True)
class FrozenEncoder(Adaptation):
    """The head alone is trained."""

    learning_rates = (1e-4, 1e-2)

    def apply(self, encoder: Encoder) -> str:
        freeze(encoder.parameters())
        return "nothing"


@dataclass(frozen=True)
class Biases(Adaptation):
    """Biases alone are trained, those of norms among them (Ben Zaken et al. 2022, BitFit)."""

    learning_rates = (1e-4, 1e-2)

    def apply(self, encoder: Encoder) -> str:
        for name, weight in encoder.named_parameters():
            if not name.endswith("bias"):
                freeze([weight])
        if not any(weight.requires_grad for weight in encoder.parameters()):
            raise ValueError("adaptation=bitfit: this encoder has no biases; choose another one")
        return "biases"


# Bottlenecks


@dataclass(frozen=True)
class Bottlenecks(Adaptation):
    """Bottlenecks of `size` before the residual is added (Houlsby et al. 2019).

    houlsby: behind attention and behind the feed-forward half, and every norm is trained, as there.
    pfeiffer: behind the feed-forward half alone, and no norm is trained (Pfeiffer et al. 2021).
    """

    placement: str = "houlsby"
    size: int = 64
    learning_rates = (1e-4, 3e-3)

    def apply(self, encoder: Encoder) -> str:
        if self.placement not in PLACEMENTS:
            raise ValueError(
                f"adaptation.placement is {self.placement!r}: choose one of {', '.join(PLACEMENTS)}"
            )
        if self.size < 1:
            raise ValueError(f"adaptation.size is {self.size}: it must be at least 1")
        if encoder.config.feed_forward_adapter:
            raise ValueError("adaptation=adapters: this encoder has adapters already")
        is_double = self.placement == "houlsby"
        freeze(encoder.parameters())
        encoder.config = replace(
            encoder.config,
            attention_adapter=self.size if is_double else 0,
            feed_forward_adapter=self.size,
        )
        device = encoder.embeddings.word_embeddings.weight.device
        for block in encoder.blocks:
            halves: list[Any] = [block]
            if is_double:
                halves.append(block.attention)
            for half in halves:
                half.output.adapter = Bottleneck(encoder.config, self.size).to(device)
                initialise_(half.output.adapter, encoder.config.initializer_range)
        if not is_double:
            return f"an adapter of width {self.size} a layer"
        for module in encoder.modules():
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.requires_grad_(True)
        return f"two adapters of width {self.size} a layer, and norms"


# Low-rank updates


class LowRank(nn.Module):
    """A weight plus alpha / r times a product B A, for some of the equal parts of its rows.

    Query, key and value are three parts of one matrix.
    """

    def __init__(self, weight: Tensor, num_parts: int, updates: Mapping[int, FileUpdate]) -> None:
        super().__init__()
        self.num_parts = num_parts
        self.scaling = {number: update.scaling for number, update in updates.items()}
        self.lora_A = nn.ParameterDict()
        self.lora_B = nn.ParameterDict()
        for number, update in updates.items():
            expected = (len(weight) // num_parts, weight.shape[1])
            if (len(update.up), update.down.shape[1]) != expected:
                raise ValueError(
                    f"adaptation.adapter: an update of {len(update.up)} x {update.down.shape[1]}"
                    f" numbers, where the encoder's matrix has {expected[0]} x {expected[1]}"
                )
            self.lora_A[str(number)] = nn.Parameter(update.down.to(weight))
            self.lora_B[str(number)] = nn.Parameter(update.up.to(weight))

    def forward(self, weight: Tensor) -> Tensor:
        """[outputs, inputs] -> the same."""
        if weight.is_meta:
            return weight
        rows = list(weight.chunk(self.num_parts))
        # Half precision would round each update to 8 bits, and what is saved is not rounded.
        with torch.autocast(weight.device.type, enabled=False):
            for part, scaling in self.scaling.items():
                update = self.lora_B[str(part)] @ self.lora_A[str(part)]
                rows[part] = rows[part] + scaling * update
        return torch.cat(rows)


class LoraPlace(NamedTuple):
    """A matrix of an encoder, or a part of one, that an update may be of."""

    path: str  # of its module in the encoder
    part: int
    num_parts: int
    names: tuple[str, ...]  # a file's for it, then ours where they differ
    is_in_file: bool  # whether a file has a matrix of this very shape


def lora_places(encoder: Encoder) -> Iterator[LoraPlace]:
    """Every matrix of an encoder that may get an update, by the names that `peft` users know.

    A fused matrix that a file has fused, too, can be taken whole (Wqkv) or as three.
    """
    family = family_for(encoder.config)
    for path, module in encoder.named_modules():
        if isinstance(module, nn.Linear) and ".adapter." not in path:
            yield from _places_of(path, family)


def _places_of(path: str, family: Family) -> Iterator[LoraPlace]:
    """The whole matrix of a module, or its parts."""
    files = family.file_names(f"encoder.{path}.weight")
    ours = [path]
    if path.endswith("attention.qkv"):
        ours = [path.removesuffix("qkv") + projection for projection in PROJECTIONS]
    is_plain = all(file.endswith(".weight") for file in files)
    for number, file in enumerate(files):
        names = [file.removesuffix(".weight").removeprefix(family.prefix)]
        if len(ours) == len(files):
            names.append(ours[number])
        yield LoraPlace(path, number, len(files), tuple(names), is_plain)
    if len(files) < len(ours):
        for number, name in enumerate(ours):
            yield LoraPlace(path, number, len(ours), (name,), False)


def matches_target(names: Iterable[str], target: str) -> bool:
    """As peft matches one of a list of target_modules."""
    return any(f".{name}".endswith(f".{target}") for name in names)


@dataclass(frozen=True)
class LoRA(Adaptation):
    """Low-rank updates of some matrices (Hu et al. 2022), as `peft` computes them.

    Args:
        rank, alpha: an update is alpha / rank times B [outputs, rank] by A [rank, inputs].
        targets: ends of matrices' names, as transformers has them or ours (query, key, value).
        adapter: a folder of peft's to begin with, which then says rank, alpha and targets.
    """

    rank: int = 8
    alpha: float = 16.0
    targets: Sequence[str] = ("query", "value")
    adapter: str | None = None
    learning_rates = (1e-4, 1e-3)

    def apply(self, encoder: Encoder) -> str:
        if self.rank < 1 or self.alpha <= 0.0:
            raise ValueError(
                f"adaptation: rank {self.rank} must be at least 1, alpha {self.alpha:g} above 0"
            )
        if self.adapter is None:
            updates = self._fresh(encoder)
        else:
            updates = adapter_updates(encoder, Path(self.adapter))
        freeze(encoder.parameters())
        by_matrix: dict[tuple[str, int], dict[int, FileUpdate]] = {}
        for place, update in updates.items():
            by_matrix.setdefault((place.path, place.num_parts), {})[place.part] = update
        for (path, num_parts), numbered in by_matrix.items():
            module = encoder.get_submodule(path)
            if is_parametrized(module):
                raise ValueError(
                    f"adaptation.targets: {', '.join(self.targets)} name both all of {path} and"
                    " parts of it: name one of them"
                )
            weight: Any = module.weight
            register_parametrization(module, "weight", LowRank(weight, num_parts, numbered))
        return f"low-rank updates of {len(updates)} matrices"

    def _fresh(self, encoder: Encoder) -> dict[LoraPlace, FileUpdate]:
        """Updates of the matrices that the targets name; ValueError for a target that names none.

        As peft begins: A is drawn, B is zero, so that the first step starts from the weights.
        """
        matrices = list(lora_places(encoder))
        updates: dict[LoraPlace, FileUpdate] = {}
        for target in self.targets:
            targeted = [place for place in matrices if matches_target(place.names, target)]
            if not targeted:
                names = [place.names[0] for place in matrices]
                raise ValueError(
                    f"adaptation.targets: no matrix is called {target!r}; this encoder's first"
                    f" layer has {', '.join(filter(FIRST_LAYER.search, names))}, and any end of"
                    " such a name will do"
                )
            for place in targeted:
                weight: Any = encoder.get_submodule(place.path).weight
                # What nothing reads gets no gradient: a pooler, global tokens' matrices.
                if place in updates or not weight.requires_grad:
                    continue
                down = weight.new_empty(self.rank, weight.shape[1])
                nn.init.kaiming_uniform_(down, a=math.sqrt(5))
                up = weight.new_zeros(len(weight) // place.num_parts, self.rank)
                updates[place] = FileUpdate(down, up, self.alpha / self.rank)
        return updates


def adapter_updates(encoder: Encoder, folder: Path) -> dict[LoraPlace, FileUpdate]:
    """Where each update of a folder of peft's goes.

    ValueError for a matrix that is not here, and for a part of the encoder that was trained whole.
    """
    family = family_for(encoder.config)
    adapter = read_adapter(folder)
    for name in encoder_tensors(adapter.whole, family):
        # A pooler is the head's, which begins anew.
        if "pooler." not in name:
            raise ValueError(
                f"{folder}: {name} was trained whole, and is no update: clozelab export {folder}"
                " to=MERGED makes a model of it, which encoder=MERGED begins with"
            )
    matrices = {matrix.names[0]: matrix for matrix in lora_places(encoder) if matrix.is_in_file}
    updates = {}
    for name, update in adapter.updates.items():
        matrix = matrices.get(name.removeprefix(family.prefix))
        if matrix is None:
            raise ValueError(f"{folder}: this encoder has no matrix {name}")
        if matrix.num_parts == 1:
            # A family may have the rows of a fused matrix in another order.
            own = f"encoder.{matrix.path}.weight"
            (file,) = family.file_names(own)
            update = update._replace(up=family.from_hf({file: update.up}, [own])[own])
        updates[matrix] = update
    return updates


def save_adapter(
    folder: Path,
    encoder: Encoder,
    heads: Mapping[str, nn.Module],
    base: str,
    **about: Unpack[AdapterNotes],
) -> None:
    """Write an encoder's updates, with a task's head, as a folder of peft's; without any, nothing.

    What peft cannot have is left out with a warning: the model's own folder holds it merged.
    """
    try:
        updates = file_updates(encoder)
    except ValueError as error:
        log.warning("no %s is written: %s", folder, error)
        return
    if not updates:
        return
    family = family_for(encoder.config)
    task = next(iter(heads), "")
    whole = {}
    if len(heads) == 1 and task in TASK_TYPES:
        whole = family.to_hf(_trained_whole(encoder, heads[task], task))
    else:
        updates = {name.removeprefix(family.prefix): value for name, value in updates.items()}
    if heads and not whole:
        log.warning(
            "%s has the encoder's updates alone: peft has no place for this head (%s), which the"
            " model's own folder holds",
            folder,
            ", ".join(heads),
        )
        # What tells classes in siamese training is read by no answer; the vectors' rules stay.
        kept = ("clozelab",) if task == "siamese" else ()
        config = about.get("config", {})
        about["config"] = {key: config[key] for key in kept if key in config}
    if whole and task in POOLED_KINDS and encoder.config.pools_last_token:
        log.warning(
            "%s: this head reads a causal encoder's last token, and peft would have it read the"
            " first: use the model's own folder, or clozelab export %s to=MERGED",
            folder,
            folder,
        )
    folder.mkdir(exist_ok=True)
    files = adapter_files(updates, whole, base, task)
    files[ABOUT] = (json.dumps(about, indent=2) + "\n").encode()
    for name, content in files.items():
        with atomic_open(folder / name) as file:
            file.write(content)


def _trained_whole(encoder: Encoder, head: nn.Module, task: str) -> dict[str, Tensor]:
    """Our names of a head's tensors, and of those of a fresh pooler, which was trained with it."""
    state = {f"{task}.{name}": value for name, value in head.state_dict().items()}
    # A matrix with an update is parametrized: its parts are in no state under their own names.
    plain = effective_state(encoder.pooler)
    for name, value in encoder.pooler.named_parameters():
        if value.requires_grad and name in plain:
            state[f"encoder.pooler.{name}"] = value
    return state


def file_updates(encoder: Encoder) -> dict[str, FileUpdate]:
    """A file's name of each matrix -> its update, for a folder of peft's.

    ValueError for one that a file has in another shape.
    """
    family = family_for(encoder.config)
    updates = {}
    for matrix in lora_places(encoder):
        module = encoder.get_submodule(matrix.path)
        if not is_parametrized(module, "weight"):
            continue
        low_rank: Any = module.parametrizations["weight"][0]  # type: ignore[index]
        # peft has another file for another kind of parametrization.
        if not isinstance(low_rank, LowRank):
            continue
        if low_rank.num_parts != matrix.num_parts or str(matrix.part) not in low_rank.lora_A:
            continue
        if not matrix.is_in_file:
            raise ValueError(
                f"{matrix.names[0]} is no matrix of its own in a {family.class_name}'s file, so"
                " peft cannot have its update; the model's folder holds it merged"
            )
        down = low_rank.lora_A[str(matrix.part)].detach().cpu()
        up = low_rank.lora_B[str(matrix.part)].detach().cpu()
        if matrix.num_parts == 1:
            (up,) = family.to_hf({f"encoder.{matrix.path}.weight": up}).values()
        updates[family.with_prefix(matrix.names[0])] = FileUpdate(
            down.contiguous(), up.contiguous(), low_rank.scaling[matrix.part]
        )
    return updates
