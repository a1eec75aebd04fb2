"""A stage as an application of Hydra: `hydra.main` with our loader, launchers and sweepers."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence

import hydra

from clozelab import hydra_compat
from clozelab.config import Composed
from clozelab.launch import experiments, plugins
from clozelab.launch.sweep import GatedLoader
from clozelab.text.paths import CONF_DIR

VALUED_OPTIONS = ("--config-dir", "-cd", "--config-name", "-cn", "--cfg", "-c", "--package", "-p")
NOW = re.compile(r"\$\{now:([^{}'\"\\]*)\}")  # Hydra's own word for the time
INFO_OPTIONS = ("--info", "-i")
INFO_SUBJECTS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


def run_application(
    verb: str,
    arguments: Sequence[str],
    run_job: Callable[[Composed], None],
    track: Callable[..., None],
) -> None:
    """Run a verb with its arguments: `run_job` gets the one job, or a launcher the jobs of a sweep.

    `track` shows a sweep as a whole to its jobs' tracker.
    """
    _refuse_options(arguments)
    hydra_compat.register()
    experiments.register()
    # Jobs and ranks get the words with the time of their command: each would have one of its own.
    began = time.localtime()
    arguments = [with_time(argument, began) for argument in arguments]
    argv = sys.argv
    argv_of_ranks = [with_time(argument, began) for argument in argv]

    def task(cfg: object) -> None:
        sys.argv = argv_of_ranks  # Lightning starts them with it, and they need the verb
        run_job(Composed.from_hydra_main(verb, cfg))

    # What our launchers ask of their task: which verb their jobs run, a tracker, and the command.
    task.clozelab_verb = verb  # type: ignore[attr-defined]
    task.clozelab_track = track  # type: ignore[attr-defined]
    task.clozelab_words = [verb, *arguments]  # type: ignore[attr-defined]

    hydra_arguments = experiments.take_experiment(list(arguments))
    if "--help-all" in hydra_arguments:  # Hydra's own help
        hydra_arguments.remove("--help-all")
        hydra_arguments.append("--help")
    # Hydra's parser knows `-m`, and an option behind it, before the first `name=value` only.
    flags = [argument for argument in hydra_arguments if argument in ("-m", "--multirun")]
    overrides = _with_options_first([word for word in hydra_arguments if word not in flags])
    # The launcher says `hydra.mode=RUN` to each job of a sweep.
    modes = [argument for argument in hydra_arguments if argument.startswith("hydra.mode=")]
    is_one_job = modes[-1:] == ["hydra.mode=RUN"]
    # Only a file of somebody else's, an option or a word about Hydra can ask for a sweep otherwise.
    is_plain = not any(word.startswith("-") or "hydra" in word for word in arguments)
    # Of `-m` and `hydra.mode=RUN` Hydra hears the first.
    if flags or not (is_one_job or is_plain):
        plugins.register()  # a sixth of a command's start, which only a sweep needs
    run = hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name=verb)(task)
    try:
        sys.argv = [f"clozelab {verb}", *flags[:1], *overrides]
        with hydra_compat.running_application(
            GatedLoader, is_one_job=is_one_job, is_plain=is_plain
        ):
            run()
    finally:
        sys.argv = argv
        experiments.take_experiment([])  # what is composed next is of no such place


def _refuse_options(arguments: Sequence[str]) -> None:
    """ValueError for what Hydra's parser takes, and we do not."""
    for argument in arguments:
        if argument.startswith("--ex"):  # --experimental-rerun
            raise ValueError(
                "a pickled job is not run again, because reading it may run any code; give its"
                " command line"
            )
        if argument.startswith(("--config-p", "-cp")):
            raise ValueError(
                "--config-path would be in the place of clozelab's own configuration; --config-dir"
                " FOLDER adds one of yours"
            )


def with_time(argument: str, now: time.struct_time) -> str:
    """An argument with a time in the place of each `${now:%H-%M}`."""
    return NOW.sub(lambda match: time.strftime(match[1], now), argument)


def _with_options_first(argv: Sequence[str]) -> list[str]:
    """Options with their values, then overrides: argparse takes these in one stretch alone."""
    options = []
    overrides = []
    before = ""
    for argument in argv:
        is_value = before in VALUED_OPTIONS
        if argument in INFO_OPTIONS:
            # Its value may be left out: an override behind it would pass for one.
            options.append("--info=all")
        elif before in INFO_OPTIONS and argument in INFO_SUBJECTS:
            options[-1] = f"--info={argument}"
        elif argument.startswith("-") or is_value:
            options.append(argument)
        else:
            overrides.append(argument)
        before = argument
    return [*options, *overrides]
