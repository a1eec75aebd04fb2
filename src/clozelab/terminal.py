"""The command line of the verbs that are no Hydra applications, and what they print.

A command line has names, `key=value`, `--flag` and `--option VALUE`, in any order. (argparse would
take options for names' abbreviations, and no value that begins with a dash.)
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from threading import Timer
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console
from rich.text import Text

from claims.text.did_you_mean import hint
from claims.text.terminal import Heading, make_console, make_table
from clozelab.text.did_you_mean import check_choice
from clozelab.text.formatting import fitted
from clozelab.text.paths import CONF_DIR

SWITCH = ("true", "false")
"""The choices of a key that is on or off."""


@dataclass(frozen=True)
class ParsedArgs:
    """A command line after its verb; of two values of a key the later one counts."""

    names: list[str] = field(default_factory=list)  # in order
    values: dict[str, str] = field(default_factory=dict)  # by key
    flags: set[str] = field(default_factory=set)  # without their dashes
    options: dict[str, str] = field(default_factory=dict)  # by name, without its dashes
    argv: list[str] = field(default_factory=list)  # all of it, as it was said
    # every `key=value` whose key is not the verb's own, for Hydra
    overrides: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """What may stand after a verb.

    Attributes:
        names: how many arguments may stand without `=` and dashes: (at least, at most; None:
            any number).
        keys: of `key=value`.
        choices: of `key=value`: key -> the values that it takes.
        flags: of `--flag`.
        options: of `--option VALUE` and `--option=VALUE`.
        takes_overrides: other keys are Hydra's rather than wrong, and the `-m` of a sweep, whose
            command line may be given as it is, says nothing.
    """

    names: tuple[int, int | None]
    keys: Sequence[str] = ()
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    flags: Sequence[str] = ()
    options: Sequence[str] = ()
    takes_overrides: bool = False


def parse(verb: str, argv: Sequence[str], grammar: Grammar) -> ParsedArgs:
    """Sort the arguments of a command line after its verb, whose name is for messages.

    ValueError for a wrong argument; it names the nearest that there is.
    """
    args = ParsedArgs(argv=list(argv))
    remaining = iter(argv)  # an option takes the next argument for its value
    for argument in remaining:
        if argument.startswith("-"):
            _add_option(args, argument, remaining, verb, grammar)
            continue
        key, equals, value = argument.partition("=")
        if grammar.takes_overrides and argument.startswith("~"):
            args.overrides.append(argument)
        elif not equals or ("/" in key and not grammar.takes_overrides):
            args.names.append(argument)  # a path may have a sign in it
        elif key in grammar.keys:
            args.values[key] = value
        elif key in grammar.choices:
            check_choice(key, value, grammar.choices[key])
            args.values[key] = value
        elif grammar.takes_overrides:
            args.overrides.append(argument)
        else:
            is_name_missing = grammar.names[0] > len(args.names)
            raise ValueError(_unknown_key(verb, argument, grammar, is_name_missing))
    _check_number(verb, args.names, grammar.names)
    return args


def _unknown_key(verb: str, argument: str, grammar: Grammar, is_name_missing: bool) -> str:
    key, _, value = argument.partition("=")
    message = f"{verb} has no key {key!r}; {hint(key, [*grammar.keys, *grammar.choices])}"
    if is_name_missing:
        message += f"; what it reads stands without a key: clozelab {verb} {value}"
    return message


def _add_option(
    args: ParsedArgs, argument: str, remaining: Iterator[str], verb: str, grammar: Grammar
) -> None:
    """Add `--flag`, `--option=VALUE`, or `--option` with its value; ValueError for others."""
    if grammar.takes_overrides and argument in ("-m", "--multirun"):
        return
    # An argument with one dash is no option: it has no name here.
    name, equals, value = "", "", ""
    if argument.startswith("--"):
        name, equals, value = argument.removeprefix("--").partition("=")
    if name in grammar.options:
        following = value if equals else next(remaining, None)
        if following is None:
            raise ValueError(f"{verb}: --{name} needs a value")
        if name in args.options:
            raise ValueError(f"{verb}: --{name} is said twice, and has one value")
        args.options[name] = following
    elif name in grammar.flags and not equals:
        args.flags.add(name)
    else:
        raise ValueError(_unknown_option(argument, next(remaining, "FOLDER"), verb, grammar))


def _unknown_option(argument: str, following: str, verb: str, grammar: Grammar) -> str:
    """What to write in the place of an option that a verb has not."""
    name, equals, value = argument.lstrip("-").partition("=")
    advice = hint(name, [*grammar.flags, *grammar.options], prefix="--")
    if name == "config-dir" and grammar.takes_overrides:
        folder = value if equals else following
        advice = f"a folder with choices of yours is 'hydra.searchpath=[file://{folder}]'"
    return f"{verb} has no option {argument}; {advice}"


def _check_number(verb: str, names: Sequence[str], limits: tuple[int, int | None]) -> None:
    """ValueError where there are fewer or more names than a verb takes."""
    least, most = limits
    if len(names) >= least and (most is None or len(names) <= most):
        return
    if most is None:
        number = f"at least {least}"
    elif most > least:
        number = f"{least} to {most}"
    else:
        number = str(least)
    noun = "name" if number == "1" else "names"
    given = " ".join(names) or "none"
    raise ValueError(f"{verb} takes {number} {noun}, not {given}; see `clozelab {verb} --help`")


GRAMMARS: dict[str, Grammar] = {}
"""Verb -> what may stand after it, of the stages that were imported."""


def verb(
    name: str, text: str, **grammar: Any
) -> Callable[[Callable[[ParsedArgs], int]], Callable[[Sequence[str]], int]]:
    """Decorate what is to be done with a verb's parsed arguments, which then takes its `argv`.

    It prints its help where it is said alone and wants names; `clozelab VERB --help` is the command
    line's.

    Args:
        name: the verb.
        text: its help.
        grammar: the fields of `Grammar`.
    """
    rules = Grammar(**grammar)
    GRAMMARS[name] = rules
    least, _ = rules.names

    def verb_of(act: Callable[[ParsedArgs], int]) -> Callable[[Sequence[str]], int]:
        @wraps(act)
        def run(argv: Sequence[str]) -> int:
            if not argv and least > 0:
                print(fitted(text))
                return 0
            return act(parse(name, argv, rules))

        return run

    return verb_of


def path_of(name: str, values: Mapping[str, str]) -> str:
    """Return the user's `runs_dir`, `cache_dir` or `data_dir`, else that of conf/paths.yaml."""
    given = values.get(name)
    if given:
        return given
    return str(OmegaConf.select(OmegaConf.load(CONF_DIR / "paths.yaml"), name))


@contextmanager
def quiet_log() -> Iterator[None]:
    """Only errors are logged meanwhile."""
    logger = logging.getLogger("clozelab")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


SLOW_SECONDS = 2.0  # after which a wait is explained


def say(text: str, style: str = "", *, wraps: bool = False, console: Console | None = None) -> None:
    """Print a line of plain text, whole: a path or a command can be copied.

    Args:
        wraps: it is prose, which breaks between words at the terminal's edge.
        console: another one than the standard output.
    """
    if console is None:
        console = make_console()
    console.print(Text(text, style=style), soft_wrap=not wraps)


@contextmanager
def told_if_slow(sentence: str) -> Iterator[None]:
    """Say on stderr what is being done, once it has taken SLOW_SECONDS."""

    def tell() -> None:
        if sys.stderr is not None:  # of a service
            print(sentence, file=sys.stderr, flush=True)

    timer = Timer(SLOW_SECONDS, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def print_table(
    headings: Sequence[Heading], rows: Sequence[Sequence[str]], console: Console | None = None
) -> None:
    """Print a table that fits in the standard output, or in another console."""
    if console is None:
        console = make_console()
    console.print(make_table(headings, rows, console.width))
