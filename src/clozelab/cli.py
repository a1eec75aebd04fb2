"""The console script: `clozelab VERB [overrides]`.

Starting it imports nothing heavy: Hydra is imported for the verbs that need it, torch only inside a
job. A job whose run folder is already complete ends before torch is imported. What the user can get
wrong is one message on stderr, no traceback (CLOZELAB_DEBUG=1 or HYDRA_FULL_ERROR=1 show it).
"""

from __future__ import annotations

import ast
import importlib
import logging
import os
import re
import select
import sys
import textwrap
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clozelab.suggestions import CONF_DIR, fitted, hint
from clozelab.training.stopping import (
    Interrupted,
    begin_process,
    die_with_first_rank,
    interrupt,
    taken_signals,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig

HYDRA_VERBS = {
    "prepare": "text -> vocabulary -> token shards in the cache",
    "pretrain": "one encoder from a prepared corpus (-m: a sweep, one process a job)",
    "finetune": "one encoder on one downstream task, scored and kept (-m: a sweep)",
    "evaluate": "an encoder or a fine-tuned model, measured without training it (-m: a sweep)",
}
PLAIN_VERBS = {
    "reproduce": "a whole experiment: prepare, the sweeps, report; stop and start at will",
    "register": "freeze claims, arms, seeds and stopping rule with a date, before the first run",
    "report": "judge an experiment from its run folders: table, verdicts, plots",
    "doctor": "what this machine can do; with an experiment: what is wrong before it is trained",
    "plan": (
        "parameters, FLOPs, jobs, time, disk and the smallest detectable difference, before"
        " anything runs"
    ),
    "status": "what runs now and how far it is, what failed and why",
    "runs": "every run folder: status, score, time",
    "verify": "is it the same run, trained again? is a pack what it says?",
    "track": "sends the numbers of runs to a tracker that was away while they trained",
    "pack": "records, scores and predictions of runs in one small file",
    "pool": "runs of several machines and days, from their packs, in one table",
    "compare": "two runs: what differs, how they learnt, a paired test on the same examples",
    "explain-cell": (
        "the runs behind a cell of an experiment's table, and the commands that make them"
    ),
    "predict": (
        "what a finished model says: masks, classes, answers, tags, embeddings, scores, test files"
    ),
    "search": "the lines of a file that are most like a text",
    "serve": "a model behind a small HTTP endpoint of this machine",
    "explain": "which tokens an answer rests on, and where attention looks: a page or a picture",
    "export": (
        "a run's model, or anybody's, for transformers, ONNX or sentence-transformers, with its"
        " card"
    ),
    "gc": "what could be deleted: checkpoints of complete runs, leftovers, unused cache",
    "submit": "the submission zip of a benchmark from runs with predict_test=true",
    "list": "experiments with their status",
}
PLACES = {verb: f"inventory.{verb}" for verb in ("runs", "status", "gc")}
PLACES |= {
    "list": "inventory.list_all",
    "doctor": "plan.doctor",
    "explain-cell": "compare.explain_cell",
}
PLACES |= {
    "register": "reproduce.register",
    "pack": "travel.pack",
    "pool": "travel.pool",
    "submit": "predict.submit",
}
"""Module and function below clozelab.stages of a plain verb; any other is `main` in the module of
its name.
"""
HYDRA_HELP = {
    "prepare": (
        """\
Cleans and splits text, learns or takes a vocabulary, and writes token shards
into the cache; what is there already is not made again. The other verbs
prepare the corpus they need by themselves.

  clozelab prepare corpus=microworld   # the embedded world, and its tasks
  clozelab prepare corpus=text corpus.sources.0.path=FOLDER   # your own text"""
    ),
    "pretrain": (
        """\
Trains one encoder on a prepared corpus and leaves it in RUN_DIR/encoder, in the
Hugging Face layout. The same command goes on with a run that was stopped, and
skips one that is complete.

  clozelab pretrain scale=demo objective=mlm seed=2
  clozelab pretrain scale=own corpus.sources.0.path=FOLDER
  clozelab pretrain -m objective=mlm,ltr seed=1,2   # a sweep"""
    ),
    "finetune": (
        """\
Fine-tunes one encoder on one task, and keeps its official scores and every
prediction (scores.json, predictions.*).

  clozelab finetune encoder=FOLDER row=NAME task=mrpc
  clozelab finetune -m encoder=FOLDER row=NAME task=mrpc,rte seed=1,2"""
    ),
    "evaluate": (
        """\
Measures one encoder, or one fine-tuned model, without training it, and keeps
scores and predictions.

  clozelab evaluate encoder=FOLDER row=NAME measure=blimp   # minimal pairs
  clozelab evaluate -m encoder_arm=mlm,ltr measure=blimp,held_out_text"""
    ),
}
USUAL_KEYS = {
    "prepare": (
        "corpus.validation_fraction tokenizer.vocab_size tokenizer.lowercase tokenizer.vocab_file "
        "max_unknown_share data_dir cache_dir"
    ),
    "pretrain": (
        "arm seed encoder steps_factor optimizer.learning_rate tokenizer.vocab_size stop_after_step"
        " keep_encoders trainer.precision trainer.devices trainer.max_time reuse data_dir cache_dir"
        " runs_dir"
    ),
    "finetune": (
        "encoder row seed pretrain_seed head learning_rate epochs global_batch_size"
        " max_train_examples keep_model predict_test hub trainer.precision trainer.max_time reuse"
        " data_dir cache_dir runs_dir"
    ),
    "evaluate": (
        "encoder row encoder_arm pretrain_seed seed initialisation pooling encoder_fraction"
        " trainer.precision reuse data_dir cache_dir runs_dir"
    ),
}
"""Those that people set; what each means, its comment in conf/ says."""
QUICK_VERBS = ("status", "runs", "gc", "list")
HELP = """clozelab: BERT-style encoders, from raw text to a judged table

  clozelab VERB [name=value ...]

{verbs}

  clozelab VERB --help           what the verb takes
  clozelab VERB --cfg job        the composed configuration
  clozelab VERB -m key=a,b ...   a sweep (of the first four verbs): each job in its own process
  clozelab --version
  CLOZELAB_DEBUG=1 clozelab ...  where an error was raised

Examples:
  clozelab reproduce table5_pretraining_tasks scale=demo
  clozelab pretrain objective=mlm seed=2
  clozelab finetune encoder=FOLDER row=NAME task=mrpc"""


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; returns the exit status: 0, 1 failed, 2 usage, 75 folder in use, 85 max_time,
    124 hung, 128 + n.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    # a torch.py in the folder that one stands in must not be what jobs import
    os.environ["PYTHONSAFEPATH"] = "1"
    begin_process()
    with taken_signals(interrupt):
        return _guarded(lambda: _run(words), words[0] if words else "")


def _run(words: list[str]) -> int:
    if any(word.startswith("allow_targets=") for word in words):
        from clozelab.targets import take_permission

        words = take_permission(words)
    verb, rest = (words[0], words[1:]) if words else ("help", [])
    if verb in ("-h", "--help", "help"):
        lines = (f"  {name:<13} {text}" for name, text in (HYDRA_VERBS | PLAIN_VERBS).items())
        print(fitted(HELP.format(verbs="\n".join(lines))))
        return 0
    if verb in ("--version", "version"):
        from clozelab import __version__

        print(f"clozelab {__version__}")
        return 0
    if {"-h", "--help"} & set(rest) and (text := _help_text(verb, rest)):
        print(text)
        return 0
    if verb in HYDRA_VERBS or verb in PLAIN_VERBS:
        _announce(verb, rest)
        if verb in HYDRA_VERBS:
            return _hydra_verb(verb, ["--help" if word == "--help-all" else word for word in rest])
        module, _, function = PLACES.get(verb, f"{verb}.main").partition(".")
        return int(
            getattr(importlib.import_module(f"clozelab.stages.{module}"), function)(rest) or 0
        )
    print(
        f"clozelab: there is no verb {verb!r}; {hint(verb, [*HYDRA_VERBS, *PLAIN_VERBS])}",
        file=sys.stderr,
    )
    return 2


def _announce(verb: str, words: Sequence[str]) -> None:
    """Say what begins, before what it needs is imported (seconds); not for each of a sweep's
    jobs.
    """
    is_idle = verb in QUICK_VERBS or (not words and verb in PLAIN_VERBS and verb != "doctor")
    if sys.stderr is None or is_idle or "hydra.mode=RUN" in words:
        return
    names = (
        []
        if verb in HYDRA_VERBS
        else [word for word in words if "=" not in word and not word.startswith("-")]
    )
    usual = "this machine" if verb == "doctor" else "the configuration"
    print(f"{verb}: reading {next(iter(names), usual)}", file=sys.stderr, flush=True)


def _help_text(verb: str, words: Sequence[str]) -> str:
    """What a verb takes, read from files and nothing heavy imported (half a second); empty where
    nothing says it.
    """
    if verb in HYDRA_VERBS:
        return _hydra_help(verb, words)
    if verb not in PLAIN_VERBS:
        return ""
    module = PLACES.get(verb, verb).partition(".")[0]
    tree = ast.parse(
        Path(__file__).parent.joinpath("stages", f"{module}.py").read_text(encoding="utf-8")
    )
    said = (
        one.value
        for one in tree.body
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant)
    )
    texts = (one.value for one in said if isinstance(one.value, str))
    return fitted(next((one for one in texts if one.split()[:2] == ["clozelab", verb]), ""))


def _hydra_help(verb: str, words: Sequence[str]) -> str:
    """The groups with their choices, one's own of `--config-dir` among them, and the usual keys
    with their meaning.
    """
    import yaml  # type: ignore[import-untyped]

    own = [
        word.partition("=")[2] or after
        for word, after in zip(words, [*words[1:], ""], strict=True)
        if word.partition("=")[0] == "--config-dir"
    ]
    folders = [CONF_DIR, *map(Path, own)]
    defaults = yaml.safe_load((CONF_DIR / f"{verb}.yaml").read_text(encoding="utf-8"))["defaults"]
    chosen = {
        group: name for one in defaults if isinstance(one, dict) for group, name in one.items()
    }
    chosen |= {} if verb == "prepare" else {"hydra/launcher": "processes", "hydra/sweeper": "grid"}
    lines = [*textwrap.wrap(f"clozelab {verb}: {HYDRA_VERBS[verb]}", 79), "", HYDRA_HELP[verb]]
    lines += ["", "Groups (NAME=CHOICE; [] what is usual):"]
    for group, usual in chosen.items():
        inner = {
            f"{group}/{one.parent.name}"
            for path in folders
            for one in path.glob(f"{group}/*/*.yaml")
        }
        for part in (group, *sorted(inner)):
            found = sorted(
                {path.stem for folder in folders for path in folder.glob(f"{part}/*.yaml")}
            )
            names = [
                f"[{one}]" if one == usual else one for one in found if not one.startswith("scale_")
            ]
            lines += _beside(
                part, " ".join([*names, *(["[the scale's]"] if part == "corpus" else [])])
            )
    lines += ["", "Keys that people set (NAME=VALUE):"]
    for key in USUAL_KEYS[verb].split():
        lines += _beside(key, meaning(key, verb, chosen, CONF_DIR))
    return "\n".join(
        [*lines, "", f"Every key: clozelab {verb} --cfg job (with every choice: --help-all)"]
    )


def _beside(name: str, text: str) -> list[str]:
    """A name and what it means, in 80 columns."""
    return textwrap.wrap(text, 79, initial_indent=f"  {name:<21} ", subsequent_indent=" " * 24)


def meaning(key: str, verb: str, chosen: Mapping[str, str], conf: Path) -> str:
    """The comment above a key in conf/ (its group's usual file, the verb's or paths.yaml) and its
    usual value.
    """
    group, _, inner = key.rpartition(".")
    usual = "microworld" if group == "corpus" else chosen.get(group)
    for file in (f"{group}/{usual}.yaml",) if group else (f"{verb}.yaml", "paths.yaml"):
        text = (conf / file).read_text(encoding="utf-8")
        if said := re.search(rf"((?:^#.*\n)+)^{inner or key}: (.*)", text, re.MULTILINE):
            value = "" if said[2] in ("null", "auto", "[]") or "$" in said[2] else f" [{said[2]}]"
            return (
                " ".join(line.lstrip("# ") for line in said[1].splitlines()).removesuffix(".")
                + value
            )
    return ""


def _guarded(action: Callable[[], int], verb: str) -> int:
    """Run; turn what a user can get wrong into one message and an exit status."""
    try:
        status = action()
        sys.stdout.flush()  # at exit a broken pipe would be a message of the interpreter's
        return status
    except (KeyboardInterrupt, Interrupted) as stopped:
        print("\ninterrupted; the same command goes on where it was", file=sys.stderr)
        return getattr(stopped, "code", 130)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return 141  # as a process that SIGPIPE ends
        # a path that is a file, a full disk
        kinds: tuple[type[BaseException], ...] = (ValueError, OSError)
        kinds += _configuration_errors()
        variables = ("CLOZELAB_DEBUG", "HYDRA_FULL_ERROR")
        wants_traceback = any(os.environ.get(name, "0") not in ("", "0") for name in variables)
        if wants_traceback or isinstance(error, ConnectionError) or not isinstance(error, kinds):
            from clozelab.runs.fingerprint import scrubbed

            print(scrubbed(traceback.format_exc()), end="", file=sys.stderr)
        else:
            _print_error(error, verb)
        return int(getattr(error, "exit_status", 1))


def _configuration_errors() -> tuple[type[BaseException], ...]:
    if "hydra" not in sys.modules:
        return ()
    from clozelab.launch.sweep import CONFIGURATION_ERRORS

    return CONFIGURATION_ERRORS


def _nobody_reads() -> bool:
    """Whether the reader of our output has gone (`| head`); then nothing more is written to it, not
    even at exit.
    """
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
            return False
    except (OSError, ValueError, AttributeError):  # no real file, or no poll on this system
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _print_error(error: BaseException, verb: str) -> None:
    from rich.console import Console
    from rich.text import Text

    from clozelab.runs.fingerprint import scrubbed

    # Hydra wraps what a constructor raises; the user wants the constructor's words.
    cause = (
        error.__cause__
        if type(error).__name__ == "InstantiationException" and error.__cause__
        else error
    )
    message = str(cause).strip()
    if "hydra" in sys.modules:
        from clozelab.launch.sweep import explain

        message = explain(cause, verb)
    console = Console(stderr=True, soft_wrap=True)
    console.print(
        Text("error: ", style="bold red").append(Text(scrubbed(message), style="default"))
    )
    # these say what to write instead
    if not isinstance(cause, (ValueError, *_configuration_errors())):
        console.print("(CLOZELAB_DEBUG=1 shows where it was raised)", style="dim")


def _clean_record(*arguments: Any, **options: Any) -> logging.LogRecord:
    """Of every log line of a stage, the libraries' too, without secrets: it goes into files."""
    from clozelab.runs.fingerprint import scrubbed

    record = logging.LogRecord(*arguments, **options)
    with suppress(TypeError, ValueError):  # a wrong call, which logging itself reports
        record.msg, record.args = scrubbed(record.getMessage()), None
    return record


def _hydra_verb(verb: str, words: list[str]) -> int:
    import hydra
    from hydra._internal import utils as hydra_utils
    from hydra._internal.hydra import Hydra
    from hydra.types import RunMode

    from clozelab import config
    from clozelab.launch import experiments, launcher
    from clozelab.launch.sweep import GatedLoader
    from clozelab.report.tracked import track_sweep

    if any(word.startswith("--ex") for word in words):  # --experimental-rerun
        raise ValueError(
            "a pickled job is not run again, because reading it may run any code; give its command"
            " line"
        )
    logging.setLogRecordFactory(_clean_record)
    config.register()
    launcher.register()
    experiments.register()
    original, status = sys.argv, 0

    def task(cfg: DictConfig) -> None:
        nonlocal status
        sys.argv = original  # Lightning starts further ranks with it, and they need the verb
        status = _guarded(lambda: job(verb, cfg), verb)

    # the launcher starts `python -m clozelab VERB`
    task.clozelab_verb = verb  # type: ignore[attr-defined]
    # the launcher knows of no tracker
    task.clozelab_track = track_sweep  # type: ignore[attr-defined]
    words = experiments.take_one_file(words)
    # known to Hydra's parser before `name=value` only
    flags = [word for word in words if word in ("-m", "--multirun")]
    sys.argv = [f"clozelab {verb}", *flags[:1], *(word for word in words if word not in flags)]
    app: Any = Hydra
    application: Any = sys.modules[Hydra.__module__]
    report, get_mode, loader = (
        hydra_utils.run_and_report,
        Hydra.get_mode,
        application.ConfigLoaderImpl,
    )
    application.ConfigLoaderImpl = GatedLoader  # before it makes callbacks, logging, launcher
    hydra_utils.run_and_report = lambda func: func()  # ours says what is wrong, see _guarded
    modes = [word for word in words if word.startswith("hydra.mode=")]
    # a sweep's job: Hydra would compose everything to find that out
    if modes[-1:] == ["hydra.mode=RUN"]:
        app.get_mode = lambda *_, **__: RunMode.RUN
    try:
        hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name=verb)(task)()
    finally:
        sys.argv, hydra_utils.run_and_report, app.get_mode = original, report, get_mode
        application.ConfigLoaderImpl = loader
    return status


def job(verb: str, cfg: DictConfig) -> int:
    """One job in this process: skip what is complete, before torch is imported."""
    from clozelab.config import check_config
    from clozelab.launch.jobs import check_overrides
    from clozelab.runs.find import is_done
    from clozelab.runs.fingerprint import require_encoder
    from clozelab.runs.record import read_record
    from clozelab.runs.store import accept_other_code
    from clozelab.targets import check_targets
    from clozelab.training.host import import_torchmetrics_quickly, tune_allocator

    die_with_first_rank()
    check_config(verb, cfg)
    check_targets(cfg, signatures=False)
    if verb != "prepare":
        check_overrides(cfg)
        if is_done(cfg.run_dir, stage=verb, config=cfg):
            accept_other_code([read_record(Path(cfg.run_dir))], cfg.reuse)
            print(f"complete already: {cfg.run_dir}")
            return 0
    if "encoder_arm" in cfg:
        require_encoder(cfg.encoder)
    tune_allocator()  # before torch and lightning are imported
    import_torchmetrics_quickly()
    importlib.import_module(f"clozelab.stages.{verb}").main(cfg)
    return 0
