"""What `clozelab doctor` finds: of this machine, what it can do and which way is taken on it.

Of an experiment every check, in the order in which they are told: what it needs, its corpora, arms
and tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from rich import filesize

from claims.text.phrases import count_noun
from claims.text.terminal import Heading, make_console
from clozelab.checks.arms import check_masks, check_pairs, check_schedule, sample_pairs
from clozelab.checks.corpus import check_duplicates, check_vocabulary, search
from clozelab.checks.subject import ERROR, OK, WARNING, Case, Finding, Subject, first_finding
from clozelab.checks.tasks import (
    TaskNgrams,
    check_canary,
    check_contamination,
    check_labels,
    check_text,
    sample_texts,
)
from clozelab.checks.visibility import check_visibility
from clozelab.planning.arms import Arm, Corpus
from clozelab.planning.sweeps import USER_ERRORS
from clozelab.processor import multiplies_bf16
from clozelab.terminal import print_table
from clozelab.training.runtime import (
    MAX_FP32_ERROR,
    choose_precision,
    matmul_ceiling,
    onednn_fp32,
    onednn_fp32_error,
)

# What a check meets in somebody's files and settings.
CHECK_ERRORS: tuple[type[Exception], ...] = (*USER_ERRORS, OSError, IndexError, RuntimeError)
# of each matrix product whose ceiling is measured
MEASURE_SECONDS = 0.5

DISK_MARGIN = 1.2
FIGURES_BESIDE = 100  # columns of a terminal in which figures stand beside sentences


TASK_CHECKS = {"labels": check_labels, "label map": check_canary, "unknown tokens": check_text}


def examine(subject: Subject) -> Iterator[Finding]:
    """Every finding about an experiment.

    A check that crashes is reported as an error.
    """
    yield from _composing_findings(subject)
    for arm in subject.arms:
        yield from check_schedule(arm)

    # The findings are passed on; what comes back are arms whose ids can be trusted.
    sound = yield from _examine_corpora(subject)
    for arm in sound:
        yield from _run_check("future", arm.name, partial(check_visibility, arm))
        yield from _run_check("masks", arm.name, partial(check_masks, arm))
        # Pairs of a prepared corpus were looked at with the corpus.
        if arm.corpus.tokenizer is None:
            yield from _run_check("pairs", arm.name, partial(check_pairs, arm))
    for task in subject.tasks:
        for name, check_task in TASK_CHECKS.items():
            yield from _run_check(name, task.name, partial(check_task, task))
    yield check_disk(subject)


def _examine_corpora(subject: Subject) -> Generator[Finding, None, list[Arm]]:
    """Findings about the corpora; returns the arms whose instances can be read."""
    arms: list[Arm] = []
    for arm in subject.arms:
        arms += arm.by_objective()
    for corpus in subject.corpora:
        check = partial(_examine_corpus, subject, corpus, arms)
        is_readable = True
        for finding in _run_check("corpus", corpus.name, check):
            yield finding
            # What reads instances cannot be asked where ids are impossible.
            if finding.check in ("corpus", "vocabulary") and finding.level == ERROR:
                is_readable = False
        if not is_readable:
            arms = [arm for arm in arms if arm.corpus is not corpus]
    return arms


def _composing_findings(subject: Subject) -> Iterator[Finding]:
    """What composing the experiment has shown already."""
    for name, reason in subject.refusals:
        yield Finding("settings", ERROR, f"{name}: {reason}", "", "the same would stop the run")
    for name in subject.unprepared:
        yield Finding(
            "corpus",
            WARNING,
            f"{name}: not prepared yet, so its text is not checked",
            "",
            "run the prepare stage first; until then instances are checked on made-up text",
        )
    yield from subject.noticed


def _examine_corpus(subject: Subject, corpus: Corpus, arms: list[Arm]) -> Iterator[Finding]:
    """One pass over the corpus for everything that wants to know where something stands."""
    # All questions first, then one search: reading every token is what takes long.
    wanted_hashes = []
    pair_samples = []
    for arm in arms:
        if arm.corpus is not corpus:
            continue
        pairs = sample_pairs(arm)
        if pairs is not None:
            pair_samples.append((arm, pairs))
            wanted_hashes += [pairs.a_hash, pairs.b_hash]
    text_samples: list[TaskNgrams] = []
    for task in subject.tasks:
        text_samples += sample_texts(task, corpus)
    wanted_hashes += [sample.hashes for sample in text_samples]

    index = search(corpus.train, wanted_hashes, corpus.unk_id)
    yield from check_vocabulary(corpus, index)
    yield from check_duplicates(corpus)
    for arm, pairs in pair_samples:
        yield from check_pairs(arm, pairs, index)
    for sample in text_samples:
        yield check_contamination(sample, corpus, index)


def _run_check(check: str, name: str, run: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of a check; an error of its name where it fails itself."""
    try:
        yield from run()
    except CHECK_ERRORS as error:
        # One short line, whatever a library wrote.
        reason = " ".join(str(error).split())[:200]
        yield Finding(
            check,
            ERROR,
            f"{name}: the check could not be run: {reason}",
            type(error).__name__,
            "see the message; the same would have stopped the run",
        )


def check_disk(subject: Subject) -> Finding:
    """Free space against what all runs leave, and one checkpoint more while it is written."""
    disk = subject.disk
    largest_checkpoint = max((arm.checkpoint_bytes for arm in subject.arms), default=0)
    # What runs have left already takes no room again.
    left = max(0, disk.run_bytes - disk.used_bytes)
    needed = DISK_MARGIN * (left + largest_checkpoint)
    figure = f"{filesize.decimal(int(needed))} wanted, {filesize.decimal(disk.free_bytes)} free"
    case = Case(
        disk.free_bytes < needed,
        ERROR,
        "the disk cannot hold the checkpoints of all runs",
        "free space, or set runs_dir to a larger disk",
    )
    return first_finding("disk", disk.folder, "the disk holds all runs", figure, case)


def print_findings(findings: Sequence[Finding], *, shows_all: bool) -> None:
    """How many are well; then what is not, with its remedy, or (`shows_all`) one line a finding."""
    counts = Counter(finding.level for finding in findings)
    title = "[bold]ready[/]:"
    if counts[ERROR]:
        title = "[bold]not ready[/]:"
    in_words = [f"{counts[OK]} {OK}", count_noun(counts[WARNING], WARNING)]
    in_words.append(count_noun(counts[ERROR], ERROR))
    numbers = ", ".join(words for words in in_words if not words.startswith("0 "))
    if not shows_all:
        numbers += " (--all shows each)"
    console = make_console()
    console.print(title, numbers)

    lines = []
    for level in (ERROR, WARNING, OK):  # what is worst first
        if level != OK or shows_all:
            lines += _finding_lines(findings, level)
    headings = [Heading("check"), Heading("result"), Heading("what", folds=True)]
    if console.width < FIGURES_BESIDE:  # two columns of sentences would break words
        lines = _indented_figures(lines)
    else:
        headings.append(Heading("figure", folds=True))
    if lines:
        print_table(headings, lines)


def _finding_lines(findings: Sequence[Finding], level: str) -> list[list[str]]:
    """Those of one level; a remedy has a line of its own."""
    lines = []
    for finding in findings:
        if finding.level == level:
            lines.append([finding.check, level, finding.what, finding.figure])
            if finding.remedy:
                lines.append(["", "", f"-> {finding.remedy}", ""])
    return lines


def _indented_figures(lines: Sequence[list[str]]) -> list[list[str]]:
    """The same with each figure under its sentence."""
    stacked = []
    for check, level, what, figure in lines:
        stacked.append([check, level, what])
        if figure:
            stacked.append(["", "", figure])
    return stacked


@dataclass(frozen=True)
class Fact:
    group: str
    name: str
    value: str
    note: str = ""


def machine_facts(cores: int) -> Iterator[Fact]:
    """Facts in the order in which they are shown."""
    yield from _ceilings()
    yield from automatic_choices(cores)
    yield from gpu_facts()


def _ceilings() -> Iterator[Fact]:
    """How fast the processor's matrix products are."""
    cpu = torch.device("cpu")
    rate = flops(matmul_ceiling("32-true", cpu, MEASURE_SECONDS))
    yield Fact("ceilings", "matmul fp32", rate, "default library")
    with onednn_fp32() as is_available:
        if is_available:
            rate = flops(matmul_ceiling("32-true", cpu, MEASURE_SECONDS))
            yield Fact("ceilings", "matmul fp32, oneDNN", rate, "fp32_precision = 'bf16'")
    if multiplies_bf16("cpu"):
        rate = flops(matmul_ceiling("bf16-mixed", cpu, MEASURE_SECONDS))
        yield Fact("ceilings", "matmul bf16", rate)
    else:
        note = "this processor has no bf16 products: fp32 is faster"
        yield Fact("ceilings", "matmul bf16", "emulated", note)


def automatic_choices(cores: int) -> Iterator[Fact]:
    """The settings that `auto` selects on this CPU."""
    yield Fact(
        "path", "precision", choose_precision("auto", "cpu"), "trainer=cpu with precision auto"
    )
    # oneDNN calls its fast fp32 "bf16". Whether it really rounds to bf16, only a trial shows.
    error = onednn_fp32_error()
    if error is None:
        answer = ("not available", "fp32 products stay with the default library")
    elif error > MAX_FP32_ERROR:
        answer = (
            "off: it really rounds to bf16 here",
            f"relative error {error:.1e}, above {MAX_FP32_ERROR:.0e}",
        )
    else:
        answer = ("on: 'bf16' stays fp32-accurate here", f"relative error {error:.1e}")
    yield Fact("path", "fp32 through oneDNN", *answer)
    yield Fact(
        "path",
        "threads",
        str(torch.get_num_threads()),
        f"{cores} usable cores; trainer.threads sets them",
    )


def gpu_facts() -> Iterator[Fact]:
    """Name, ceiling and precision of each GPU; one line where there is none."""
    if not torch.cuda.is_available():
        build = "a CPU-only build"
        if torch.version.cuda:
            build = f"built for CUDA {torch.version.cuda}"
        yield Fact("GPU", "none", f"torch {torch.__version__} sees none", build)
        return
    for number in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(number).total_memory
        name = torch.cuda.get_device_name(number)
        yield Fact("GPU", f"cuda:{number}", name, f"{memory / 2**30:.0f} GiB")
    rate = flops(matmul_ceiling("bf16-mixed", torch.device("cuda"), MEASURE_SECONDS))
    yield Fact("GPU", "matmul bf16", rate)
    precision = choose_precision("auto", "gpu")
    yield Fact("GPU", "precision", precision, "trainer=gpu with precision auto")


def flops(rate: float) -> str:
    """FLOP/s in the unit that suits them."""
    if rate >= 1e12:
        return f"{rate / 1e12:,.1f} TFLOP/s"
    return f"{rate / 1e9:,.0f} GFLOP/s"


def print_facts(facts: Iterable[Fact], versions: Mapping[str, str]) -> None:
    """Groups of facts as they come, and the versions."""
    lines = []
    named = set()  # a group is named once
    of_versions = [Fact("versions", name, version) for name, version in versions.items()]
    for fact in [*facts, *of_versions]:
        group = ""
        if fact.group not in named:
            group = fact.group
            named.add(group)
        lines.append([group, fact.name, fact.value, fact.note])
    headings = [
        Heading("group"),
        Heading("what"),
        Heading("found", folds=True),
        Heading("note", folds=True),
    ]
    print_table(headings, lines)
