"""The console script: `clozelab VERB [overrides]`.

Starting it imports nothing heavy: Hydra is imported for the verbs that need it, torch only inside a
job. A job whose run folder is already complete ends before torch is imported. What the user can get
wrong is one message on stderr, no traceback (CLOZELAB_DEBUG=1 or HYDRA_FULL_ERROR=1 show it).
"""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import os
import select
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from claims.text.did_you_mean import hint
from clozelab.training.host import process_rank
from clozelab.training.stopping import (
    Interrupted,
    begin_process,
    die_with_first_rank,
    interrupt,
    taken_signals,
)
from clozelab.verbs import HYDRA_VERBS, PLAIN_VERBS, VERBS_OF_EXPERIMENTS, help_of, help_of_all
from clozelab.version import __version__

if TYPE_CHECKING:
    from clozelab.config import Composed

QUICK_VERBS = ("status", "runs", "gc", "list", "completion")
TRACEBACK_VARIABLES = ("CLOZELAB_DEBUG", "HYDRA_FULL_ERROR")
RESUMED_VERBS = (*HYDRA_VERBS, "reproduce", "inspect")
SIGPIPE_STATUS = 141  # as of a process that SIGPIPE ends


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; returns the exit status.

    That is 0, 1 failed, 2 usage, 75 folder in use, 85 max_time, 124 hung, 128 + n signal n.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    # a torch.py in the folder that one stands in must not be what jobs import
    os.environ["PYTHONSAFEPATH"] = "1"
    begin_process()
    with taken_signals(interrupt):
        return _with_error_report(lambda: _run(arguments), verb="".join(arguments[:1]))


def _run(arguments: list[str]) -> int:
    if any(word.startswith("allow_targets=") for word in arguments):
        from clozelab.addresses import parse_allow_targets

        arguments = parse_allow_targets(arguments)
    verb = "help"
    if arguments:
        verb, *arguments = arguments
    if verb in ("-h", "--help", "help"):
        print(help_of_all())
        return 0
    if verb in ("--version", "version"):
        print(f"clozelab {__version__}")
        return 0
    if "-h" in arguments or "--help" in arguments:
        # A verb that does not exist has no help; it is refused below.
        text = help_of(verb, arguments)
        if text:
            print(text)
            return 0
    if verb in HYDRA_VERBS:
        _announce(verb, arguments)
        return _hydra_verb(verb, arguments)
    if verb in PLAIN_VERBS:
        _announce(verb, arguments)
        return _plain_verb(verb, arguments)
    print(
        f"clozelab: there is no verb {verb!r}; {hint(verb, [*HYDRA_VERBS, *PLAIN_VERBS])}",
        file=sys.stderr,
    )
    return 2


def _announce(verb: str, arguments: Sequence[str]) -> None:
    """Say what begins, before what it needs is imported (seconds).

    Not for each of a sweep's jobs, nor of a job's ranks.
    """
    if sys.stderr is None or verb in QUICK_VERBS or "hydra.mode=RUN" in arguments:
        return
    if process_rank():
        return
    subject = "the configuration"
    if verb == "doctor":
        subject = "this machine"
    if verb in PLAIN_VERBS:
        if not arguments and verb != "doctor":  # it prints its help
            return
        subject = _first_name(verb, arguments, subject)
    print(f"{verb}: reading {subject}", file=sys.stderr, flush=True)


def _first_name(verb: str, arguments: Sequence[str], default: str) -> str:
    """The first of a verb's files, folders or runs; the default where none is named."""
    names = []
    for word in arguments:
        if "=" not in word and not word.startswith("-"):
            names.append(word)
    # A benchmark comes before the runs.
    if verb == "submit" and len(names) > 1:
        return names[1]
    return next(iter(names), default)


def _plain_verb(verb: str, arguments: Sequence[str]) -> int:
    """Run a verb that is no application of Hydra: a function of its arguments."""
    # Modules, records and configurations stay to the end: looking for garbage among so many objects
    # takes a third of the time, and finds none.
    gc.set_threshold(50_000, 100, 20)
    atexit.register(gc.freeze)  # nor is any looked for at the end: the system takes it all
    if verb in VERBS_OF_EXPERIMENTS:
        from clozelab.planning.inputs import fill

        arguments = fill(verb, arguments)
    from clozelab.terminal import told_if_slow

    waits = nullcontext() if verb in QUICK_VERBS else told_if_slow(f"{verb}: loading libraries")
    with waits:
        stage = importlib.import_module(f"clozelab.stages.{verb}")
    return int(stage.main(arguments) or 0)


def _hydra_verb(verb: str, arguments: list[str]) -> int:
    """Run a verb as an application of Hydra: one job, or a sweep, which a launcher starts."""
    from clozelab.launch.application import run_application
    from clozelab.runs.early_log import early_log_kept

    if verb == "prepare":
        arguments = ["dry_run=true" if word == "--dry-run" else word for word in arguments]
    # Before anything is logged: no secret may get into a file.
    logging.setLogRecordFactory(_clean_record)
    status = 0

    def run_job(composed: Composed) -> None:
        nonlocal status
        with early_log_kept():
            status = _with_error_report(lambda: job(composed), verb)

    def track(*sweep: Any) -> None:
        # Only a sweep needs what a report is made with, of which a half is SciPy.
        from clozelab.report.tracked import track_sweep

        track_sweep(*sweep)

    run_application(verb, arguments, run_job, track)
    return status


def job(composed: Composed) -> int:
    """One job in this process: skip what is complete, before torch is imported."""
    from clozelab.addresses import check_targets
    from clozelab.launch.overrides import check_overrides
    from clozelab.runs.inputs import require_encoder
    from clozelab.runs.record import read_record
    from clozelab.runs.reuse import is_done
    from clozelab.runs.store import warn_of_other_code
    from clozelab.training.host import import_torchmetrics_quickly, tune_allocator

    die_with_first_rank()
    if process_rank():  # the first rank says the same
        logging.getLogger().setLevel(logging.WARNING)
    verb = composed.stage
    composed.check()
    check_targets(composed.values, signatures=False)
    check_overrides(composed)
    if verb != "prepare":
        run_dir = composed.values["run_dir"]
        if is_done(run_dir, stage=verb, config=composed):
            warn_of_other_code([read_record(Path(run_dir))])
            print(f"complete already: {run_dir}")
            return 0
    # `models` of an evaluation stands in the place of the row's own encoder.
    if "encoder_arm" in composed.values and composed.values.get("models") is None:
        require_encoder(composed.values["encoder"])
    if verb in ("prepare", "pretrain"):
        from clozelab.assembly.corpora import require_sources

        require_sources(composed.config)
    tune_allocator()  # before torch and lightning are imported
    if verb != "prepare":  # it needs no torch, which takes seconds to import
        import_torchmetrics_quickly()
    check_targets(composed.values)
    stage = importlib.import_module(f"clozelab.stages.{verb}")
    if verb == "prepare":
        stage.main(composed.config)
        return 0
    from clozelab.training.runtime import torch_settings_kept  # after torch was imported

    with torch_settings_kept():
        stage.main(composed.config, composed)
    return 0


def _with_error_report(action: Callable[[], int], verb: str) -> int:
    """Run; turn what a user can get wrong into one message and an exit status."""
    try:
        status = action()
        sys.stdout.flush()  # at exit a broken pipe would be a message of the interpreter's
        return status
    except (KeyboardInterrupt, Interrupted) as stopped:
        message = "interrupted"
        if verb in RESUMED_VERBS:
            message = "interrupted; the same command goes on where it was"
        print(f"\n{message}", file=sys.stderr)
        # 130: 128 + SIGINT, as a shell has it
        return getattr(stopped, "code", 130)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_broken_pipe():
            return SIGPIPE_STATUS
        if _is_user_error(error):
            _print_error(error, verb)
        else:
            from clozelab.text.redaction import scrubbed

            print(scrubbed(traceback.format_exc()), end="", file=sys.stderr)
        return int(getattr(error, "exit_status", 1))


def _is_user_error(error: Exception) -> bool:
    """Whether an error's message says enough, so that nobody needs the traceback."""
    if any(os.environ.get(name, "0") not in ("", "0") for name in TRACEBACK_VARIABLES):
        return False
    # It is an OSError as well, but "Connection refused" alone tells nobody what to do.
    if isinstance(error, ConnectionError):
        return False
    # OSError: a path that is a file, a full disk
    return isinstance(error, (ValueError, OSError, *_configuration_errors()))


def _configuration_errors() -> tuple[type[BaseException], ...]:
    """Hydra's and OmegaConf's own errors, which cannot have occurred where Hydra is not loaded."""
    if "hydra" not in sys.modules:
        return ()
    from clozelab.launch.mistakes import CONFIGURATION_ERRORS

    return CONFIGURATION_ERRORS


def _is_broken_pipe() -> bool:
    """Say whether the reader of our output has gone (`| head`).

    Then nothing more is written to it, not even at exit.
    """
    try:
        poll = select.poll()
        # 0: no event is asked for; errors and hang-ups are reported anyway.
        poll.register(sys.stdout.fileno(), 0)
        if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
            return False
    except (OSError, ValueError, AttributeError):  # no real file, or no poll on this system
        return False
    # The interpreter writes to stdout once more when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _print_error(error: BaseException, verb: str) -> None:
    from rich.console import Console
    from rich.text import Text

    from clozelab.addresses import PERMITTED
    from clozelab.text.redaction import scrubbed

    # Hydra wraps what a constructor raises; the user wants the constructor's words.
    if type(error).__name__ == "InstantiationException" and error.__cause__:
        error = error.__cause__
    message = str(error).strip()
    names_file = False
    if isinstance(error, OSError) and error.filename and error.strerror:
        names_file = True
        message = f"{error.filename}: {error.strerror.lower()}"  # without [Errno 2]
        path = Path(os.fsdecode(error.filename))
        if path.is_symlink() and not path.exists():
            message = f"{path} is a link to {path.readlink()}, which does not exist"
    elif "hydra" in sys.modules:
        from clozelab.launch.mistakes import explain

        message = explain(error, verb)
    console = Console(stderr=True, soft_wrap=True)
    text = Text("error: ", style="bold red")
    console.print(text.append(Text(scrubbed(message), style="default")))
    # These say what to write instead, or which file it is; code of the user's may raise them too.
    says_enough = names_file or isinstance(error, (ValueError, *_configuration_errors()))
    if not says_enough or os.environ.get(PERMITTED):
        console.print("(CLOZELAB_DEBUG=1 shows where it was raised)", style="dim")


def _clean_record(*arguments: Any, **options: Any) -> logging.LogRecord:
    """Of every log line of a stage, the libraries' too, without secrets: it goes into files."""
    from clozelab.text.redaction import scrubbed

    record = logging.LogRecord(*arguments, **options)
    with suppress(TypeError, ValueError):  # a wrong call, which logging itself reports
        record.msg = scrubbed(record.getMessage())
        record.args = None
    return record
