"""What `clozelab doctor` finds: of this machine, what it can do and which way the project takes on
it.

Of an experiment every check, in the order in which they are told: what it needs, its corpora, arms
and tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from rich import filesize
from rich.console import Console

from clozelab.checks.arms import (
    check_masks,
    check_pairs,
    check_schedule,
    check_visibility,
    sample_pairs,
)
from clozelab.checks.corpus import check_duplicates, check_vocabulary, search
from clozelab.checks.subject import ERROR, OK, WARNING, Finding, Subject, finding
from clozelab.checks.tasks import (
    check_canary,
    check_contamination,
    check_labels,
    check_text,
    sample_texts,
)
from clozelab.models.attention import FULL, attention, has_varlen_kernel, reference_attention
from clozelab.models.layout import Layout
from clozelab.planning.jobs import Arm, Corpus
from clozelab.processor import multiplies_bf16
from clozelab.terminal import Heading, make_table
from clozelab.text.formatting import rough
from clozelab.training.runtime import (
    MAX_FP32_ERROR,
    choose_precision,
    matmul_ceiling,
    onednn_fp32,
    onednn_fp32_error,
)

MAX_BF16_ERROR = 0.02
MEASURE_SECONDS = 0.5

DISK_MARGIN = 1.2
LONG_SECONDS = 86_400.0  # nobody starts a day by mistake without being told


def examine(subject: Subject) -> Iterator[Finding]:
    """Every finding about an experiment; a check that fails itself is an error of its own name,
    never silence.
    """
    for what, why in subject.refusals:
        yield Finding("settings", ERROR, f"{what}: {why}", "", "the same would stop the run")
    for name in subject.unprepared:
        remedy = "run the prepare stage first; until then instances are checked on made-up text"
        yield Finding(
            "corpus", WARNING, f"{name}: not prepared yet, so its text is not checked", "", remedy
        )
    yield from subject.noticed
    for arm in subject.arms:
        yield from check_schedule(arm)
    sound = [one for arm in subject.arms for one in arm.by_objective()]
    for corpus in subject.corpora:
        found = list(
            _tried("corpus", corpus.name, partial(_examine_corpus, subject, corpus, sound))
        )
        yield from found
        # What reads instances cannot be asked where ids are impossible.
        if any(one.check in ("corpus", "vocabulary") and one.level == ERROR for one in found):
            sound = [arm for arm in sound if arm.corpus is not corpus]
    for arm in sound:
        yield from _tried("future", arm.name, partial(check_visibility, arm))
        yield from _tried("masks", arm.name, partial(check_masks, arm))
        if arm.corpus.tokenizer is None:
            yield from _tried("pairs", arm.name, partial(check_pairs, arm))
    for task in subject.tasks:
        for name, check in (
            ("labels", check_labels),
            ("label map", check_canary),
            ("unknown tokens", check_text),
        ):
            yield from _tried(name, task.name, partial(check, task))
    yield check_disk(subject)
    yield from check_time(subject)


def _examine_corpus(subject: Subject, corpus: Corpus, arms: list[Arm]) -> Iterator[Finding]:
    """One pass over the corpus for everything that wants to know where something stands."""
    pairs = [
        (arm, sampled)
        for arm in arms
        if arm.corpus is corpus and (sampled := sample_pairs(arm)) is not None
    ]
    texts = [sampled for task in subject.tasks for sampled in sample_texts(task, corpus)]
    wanted = [part for _, one in pairs for part in (one.a_hash, one.b_hash)] + [
        one.hashes for one in texts
    ]
    index = search(corpus.train, wanted, corpus.unk_id)
    yield from check_vocabulary(corpus, index)
    yield from check_duplicates(corpus)
    for arm, sampled in pairs:
        yield from check_pairs(arm, sampled, index)
    for text in texts:
        yield check_contamination(text, corpus, index)


def _tried(check: str, name: str, run: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from run()
    except (ValueError, IndexError, RuntimeError) as error:
        what = f"{name}: the check could not be run: {' '.join(str(error).split())[:200]}"
        yield Finding(
            check,
            ERROR,
            what,
            type(error).__name__,
            "see the message; the same would have stopped the run",
        )


def check_disk(subject: Subject) -> Finding:
    """Free space against what all runs leave, and one checkpoint more while it is written."""
    budget = subject.budget
    largest = max((arm.checkpoint_bytes for arm in subject.arms), default=0)
    wanted = DISK_MARGIN * (max(0, budget.run_bytes - budget.used_bytes) + largest)
    figure = f"{filesize.decimal(int(wanted))} wanted, {filesize.decimal(budget.free_bytes)} free"
    fix = "free space, or set runs_dir to a larger disk"
    full = (
        budget.free_bytes < wanted,
        ERROR,
        "the disk cannot hold the checkpoints of all runs",
        fix,
    )
    return finding("disk", budget.folder, "the disk holds all runs", figure, full)


def check_time(subject: Subject) -> Iterator[Finding]:
    """Hours of what is left, by the speeds that the planner has measured."""

    def hours(seconds: float) -> str:
        return (
            f"{seconds / 3600:,.1f} h"
            if seconds < LONG_SECONDS
            else f"{seconds / 86_400:,.1f} days"
        )

    stages, name = subject.budget.stages, subject.experiment
    if not subject.arms and not stages:
        return
    said = [f"{stage} {hours(seconds)}" for stage, seconds in stages.items() if seconds is not None]
    unknown = [stage for stage, seconds in stages.items() if seconds is None]
    if unknown or not stages:
        said.append(
            f"{' and '.join(unknown) or 'all'}: no speed is known here yet (clozelab plan"
            " measures it)"
        )
    tokens = sum(arm.count * arm.tokens for arm in subject.arms)
    figure = f"{rough(tokens)} tokens in {sum(arm.count for arm in subject.arms)} pre-training runs"
    is_long = sum(seconds or 0.0 for seconds in stages.values()) > LONG_SECONDS
    fix = (
        f"clozelab plan {name} budget=TIME says what a budget affords"
        if name
        else "fewer seeds or tokens"
    )
    what = "; ".join(said)
    yield finding("time", "what is left takes", what, figure, (is_long, WARNING, what, fix))


def print_findings(findings: Sequence[Finding], console: Console, *, shows_all: bool) -> None:
    """How many are well; then what is not, with its remedy, or (`shows_all`) one line a finding."""
    order, lines = (OK, WARNING, ERROR), []
    counts = Counter(one.level for one in findings)
    shown = [one for one in findings if shows_all or one.level != OK]
    more = "" if shows_all else " (--all shows each)"
    console.print("[bold]not ready[/]:" if counts[ERROR] else "[bold]ready[/]:", end=" ")
    console.print(
        f"{', '.join(f'{counts[level]} {level}' for level in order if counts[level])}{more}"
    )
    for one in sorted(shown, key=lambda one: -order.index(one.level)):  # what is worst first
        lines.append([one.check, one.level, one.what, one.figure])
        lines += [["", "", f"-> {one.remedy}", ""]] if one.remedy else []
    headings = [
        Heading("check"),
        Heading("result"),
        Heading("what", folds=True),
        Heading("figure", folds=True),
    ]
    if lines:
        console.print(make_table(headings, lines, console.width))


@dataclass(frozen=True)
class Fact:
    group: str
    name: str
    value: str
    note: str = ""


def look_at_machine(*, cores: int, allocator_tuned: bool) -> Iterator[Fact]:
    """Facts in the order in which they are shown."""
    cpu = torch.device("cpu")
    yield Fact(
        "ceilings",
        "matmul fp32",
        flops(matmul_ceiling("32-true", cpu, MEASURE_SECONDS)),
        "default library",
    )
    with onednn_fp32() as there:
        if there:
            rate = flops(matmul_ceiling("32-true", cpu, MEASURE_SECONDS))
            yield Fact("ceilings", "matmul fp32, oneDNN", rate, "fp32_precision = 'bf16'")
    if multiplies_bf16("cpu"):
        yield Fact(
            "ceilings",
            "matmul bf16",
            flops(matmul_ceiling("bf16-mixed", cpu, MEASURE_SECONDS)),
        )
    else:
        yield Fact(
            "ceilings",
            "matmul bf16",
            "emulated",
            "this processor has no bf16 products: fp32 is faster",
        )
    yield from chosen_path(cores, allocator_tuned)
    yield from gpu_facts()


def chosen_path(cores: int, allocator_tuned: bool) -> Iterator[Fact]:
    """What `auto` means here, on the CPU."""
    yield Fact(
        "path", "precision", choose_precision("auto", "cpu"), "trainer=cpu with precision auto"
    )
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
    note = (
        "glibc keeps freed memory"
        if allocator_tuned
        else "no glibc here: freed memory goes back to the system"
    )
    yield Fact("path", "allocator", "tuned" if allocator_tuned else "the system's", note)
    yield Fact(
        "path",
        "attention on the CPU",
        "matmul and softmax",
        "ragged batches: sorted groups, padded inside",
    )


def gpu_facts() -> Iterator[Fact]:
    """Name, ceiling, precision and kernels of each GPU; one line where there is none."""
    if not torch.cuda.is_available():
        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU-only build"
        yield Fact("GPU", "none", f"torch {torch.__version__} sees none", build)
        return
    for number in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(number).total_memory
        yield Fact(
            "GPU", f"cuda:{number}", torch.cuda.get_device_name(number), f"{memory / 2**30:.0f} GiB"
        )
    yield Fact(
        "GPU",
        "matmul bf16",
        flops(matmul_ceiling("bf16-mixed", torch.device("cuda"), MEASURE_SECONDS)),
    )
    yield Fact(
        "GPU", "precision", choose_precision("auto", "gpu"), "trainer=gpu with precision auto"
    )
    try:
        error = varlen_error()
    except (RuntimeError, NotImplementedError) as problem:
        answer = (
            "fails",
            f"{' '.join(str(problem).split())[:200]}: do not fine-tune on this GPU in bf16",
        )
    else:
        off_by = f"differs from one sequence at a time by {error or 0.0:.1e}"
        if error is None:
            answer = (
                "not available",
                "torch has it from 2.10 on, for Ampere or newer; ragged batches: sorted groups",
            )
        elif not error <= MAX_BF16_ERROR:
            answer = ("wrong", f"{off_by}: do not fine-tune on this GPU in bf16")
        else:
            answer = ("works", off_by)
    yield Fact("GPU", "variable-length attention", *answer)


@torch.no_grad()
def varlen_error() -> float | None:
    """Largest difference of the ragged CUDA kernel from one call a sequence; None where there is no
    such kernel.
    """
    layout = Layout.ragged([5, 64, 33]).to("cuda")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(102, 2, 64, generator=generator).to("cuda", torch.bfloat16) for _ in range(3)
    )
    if not has_varlen_kernel(q, FULL):
        return None
    got = attention(q, k, v, layout, dropout_prob=0.0, training=False, mask=FULL)
    expected = reference_attention(q.float(), k.float(), v.float(), layout, mask=FULL)
    return float((got.float() - expected).abs().max())


def flops(rate: float) -> str:
    """FLOP/s in the unit that suits them."""
    return f"{rate / 1e12:,.1f} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:,.0f} GFLOP/s"


def print_facts(facts: Iterable[Fact], versions: Mapping[str, str], console: Console) -> None:
    """Groups of facts as they come, and the versions."""
    every = [*facts, *(Fact("versions", name, version) for name, version in versions.items())]
    first = {fact.group: fact for fact in reversed(every)}  # a group is named once
    lines = [
        [one.group if one is first[one.group] else "", one.name, one.value, one.note]
        for one in every
    ]
    headings = [
        Heading("group"),
        Heading("what"),
        Heading("found", folds=True),
        Heading("note", folds=True),
    ]
    console.print(make_table(headings, lines, console.width))
