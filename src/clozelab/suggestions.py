"""What is said to people: which known word was meant, and numbers as tables and reports write them.

Also where the files that ship with the project lie, whose names are most of the known words, and
how a file of an experiment is read, which may be anybody's.
"""

from __future__ import annotations

import difflib
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from clozelab.analysis.statistics import Estimate


def _shipped(name: str) -> Path:
    """A folder of YAML: inside the package in a wheel, at the top of the repository in an editable
    checkout.
    """
    package = Path(__file__).resolve().parent
    inside = package / name
    return inside if inside.is_dir() else package.parents[1] / name


CONF_DIR = _shipped("conf")
EXPERIMENTS_DIR = _shipped("experiments")
STAGE_NAMES = {"pretrain": "pre-training", "finetune": "fine-tuning", "evaluate": "evaluation"}
LOWER_IS_BETTER = ("perplexity", "loss")
MINUS, PLUS_MINUS, DASH = "\u2212", "\u00b1", "\u2013"
MOST_VALUES, MOST_LEVELS = 100_000, 50
MOST_PASSES = 40


# the fast one where it is built
class UniqueKeys(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses a key that a mapping has twice, as Hydra does: the first one's value would be lost
    without a word.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [key for number, key in enumerate(keys) if key in keys[:number]]:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {twice[0]!r} is there twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


def own_text(file: Path, folder: Path) -> str:
    """What a file of an experiment holds. ValueError: a link out of its folder, or YAML whose
    anchors make it huge.
    """
    if not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{file} is a link that leads out of {folder}; put the file itself there")
    text = file.read_text(encoding="utf-8")
    values, begun, anchored = 0, list[tuple[str | None, int]](), dict[str | None, int]()
    for event in (
        yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if file.suffix == ".yaml"
        else ()
    ):
        if isinstance(event, yaml.CollectionStartEvent):
            begun.append((event.anchor, values))
            anchored[event.anchor] = MOST_VALUES  # an alias inside of it would have no end
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = begun.pop()
            anchored[anchor] = values - before
        values += anchored.get(event.anchor, 1) if isinstance(event, yaml.AliasEvent) else 1
        if values > MOST_VALUES or len(begun) > MOST_LEVELS:
            raise ValueError(
                f"{file} holds more than {MOST_VALUES} values, or {MOST_LEVELS} levels, with its"
                " anchors written out; no experiment is as large"
            )
    return text


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word that was probably meant: in other letters' case, the only one that begins so
    (`table5` of
    `table5_pretraining_tasks`), or the most alike of those at least `cutoff` alike (0 to 1,
    difflib's ratio); or None."""
    words = list(known)
    said = word.casefold()
    if len(said) > 2:
        beginning = [one for one in words if one.casefold().startswith(said)]
        exactly = [one for one in beginning if one.casefold() == said]
        if exactly or len(beginning) == 1:
            return (exactly or beginning)[0]
    return next(iter(difflib.get_close_matches(word, words, n=1, cutoff=cutoff)), None)


def hint(word: str, known: Iterable[str], *, cutoff: float = 0.6, prefix: str = "") -> str:
    """What to say after the refusal of a word: the nearest, else all that there are, each with
    `prefix` before it.
    """
    words = sorted(known)
    near = nearest(word, words, cutoff=cutoff)
    return (
        f"did you mean '{prefix}{near}'?"
        if near
        else f"there are {', '.join(prefix + w for w in words) or 'none'}"
    )


def shortened(text: str, most_characters: int) -> str:
    """A value for a message: its beginning and dots where it is longer."""
    if len(text) <= most_characters:
        return text
    return f"{text[:most_characters]}..."


def percent(estimate: Estimate | None, decimals: int = 1) -> str:
    """`67.4 ± 1.7`, or the mean alone where there is no interval."""
    if estimate is None:
        return "missing"
    return f"{estimate.mean:.{decimals}f} {half_width(estimate, decimals)}".rstrip()


def half_width(estimate: Estimate | None, decimals: int = 1) -> str:
    """`± 1.7`, of two seeds `(65.7, 69.1)`; empty where there is but one, in words where seeds
    happen to agree.
    """
    if estimate is None or estimate.half_width is None:
        return ""
    if len(estimate.values) == 2 and not estimate.has_no_spread:
        return f"({', '.join(f'{one:.{decimals}f}' for one in estimate.values)})"
    return (
        "(equal)" if estimate.has_no_spread else f"{PLUS_MINUS} {estimate.half_width:.{decimals}f}"
    )


def interval(estimate: Estimate | None, decimals: int = 1) -> str:
    """`[−1.2, +0.4]`; empty where there is none, and in words where there is no spread to make one
    of.
    """
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    ends = f"[{signed(estimate.low, decimals)}, {signed(estimate.high, decimals)}]"
    return "no spread" if estimate.has_no_spread else ends


def signed(value: float | None, decimals: int = 1) -> str:
    """A difference with its sign; a dash for none."""
    if value is None:
        return DASH
    text = f"{abs(value):.{decimals}f}"
    return text if float(text) == 0.0 else f"{'+' if value > 0 else MINUS}{text}"


def probability(p: float | None) -> str:
    """`p = 0.012`; empty for none."""
    return "" if p is None else "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def rough(value: float) -> str:
    """A count to three digits: 1.53 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


def span(values: Iterable[float], show: Callable[[float], str] = rough) -> str:
    """`957 k to 2.72 M` of several, `1.53 M` of one (or of what looks alike); empty for none."""
    found = sorted(values)
    return " to ".join(dict.fromkeys(show(one) for one in found[:1] + found[-1:]))


def passes(read: float, text: int) -> tuple[str, bool]:
    """How often a pre-training reads its text, in words; whether that is too often."""
    said = f"{read / text:.1f} passes over {rough(text)} tokens of text"
    advice = (
        f"; beyond {MOST_PASSES} an encoder learns the text by heart: more text, or fewer steps"
        " (steps_factor=)"
    )
    return (said + advice, True) if read > MOST_PASSES * text else (said, False)


def several(number: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def fitted(text: str) -> str:
    """A help text in the terminal's columns (at most 100): paragraphs filled, what a key means
    beside the key.
    """
    width, lines = min(shutil.get_terminal_size().columns, 100) - 1, list[str]()
    # one line a paragraph, a key, a command
    flowing = re.sub(r"(?<!\n)\n(?: {8,}|(?! |\n|clozelab ))", " ", text)
    for line in flowing.split("\n"):
        beside = re.match(r" {2}\S.*?  +", line)  # "  seed=1            which run is drawn"
        indent = " " * (
            min(beside.end(), width // 2) if beside else 4 * line.startswith("clozelab ")
        )
        lines.append(textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False))
    return "\n".join(lines)


def distinct(values: Iterable[str]) -> str:
    """Every value once, in order; a dash for none."""
    return "; ".join(dict.fromkeys(filter(None, values))) or DASH


def listed(names: Iterable[str]) -> str:
    """`1, 2 and 3`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def in_units(common: str, units: Mapping[str, str]) -> str:
    """`percent (LM perplexity: perplexity)`: the unit of most columns, and each other column's
    (name -> unit) own.
    """
    others = {name: unit for name, unit in units.items() if unit != common}
    if others and len(others) == len(units):
        return distinct(others.values())
    return common + (
        f" ({'; '.join(f'{name}: {unit}' for name, unit in others.items())})" if others else ""
    )


def with_direction(metric: str) -> str:
    """A metric's name; where less of it is better, that too."""
    return f"{metric}, lower is better" if metric in LOWER_IS_BETTER else metric


def key_of(word: str) -> str:
    """`seed` of `seed=1` and of `++seed=1`."""
    return word.partition("=")[0].lstrip("+~")
