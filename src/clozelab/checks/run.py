"""All checks of an experiment, in the order in which they are told: what it needs, its corpora, arms and tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rich import filesize
from rich.console import Console

from clozelab.checks.arms import check_masks, check_pairs, check_schedule, check_visibility, sample_pairs
from clozelab.checks.corpus import check_duplicates, check_vocabulary, search
from clozelab.checks.subject import ERROR, OK, WARNING, Finding, Subject, finding
from clozelab.checks.tasks import check_canary, check_contamination, check_labels, check_text, sample_texts
from clozelab.planning.jobs import Arm, Corpus
from clozelab.terminal import Heading, make_table

DISK_MARGIN = 1.2
LONG_SECONDS = 86_400.0  # nobody starts a day by mistake without being told


def examine(subject: Subject) -> Iterator[Finding]:
    """Every finding about an experiment; a check that fails itself is an error of its own name, never silence."""
    for what, why in subject.refusals:
        yield Finding("settings", ERROR, f"{what}: {why}", "", "the same would stop the run")
    for name in subject.unprepared:
        remedy = "run the prepare stage first; until then instances are checked on made-up text"
        yield Finding("corpus", WARNING, f"{name}: not prepared yet, so its text is not checked", "", remedy)
    yield from subject.noticed
    for arm in subject.arms:
        yield from check_schedule(arm)
    sound = [one for arm in subject.arms for one in arm.by_objective()]
    for corpus in subject.corpora:
        found = list(_tried("corpus", corpus.name, partial(_examine_corpus, subject, corpus, sound)))
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
        for name, check in (("labels", check_labels), ("label map", check_canary), ("unknown tokens", check_text)):
            yield from _tried(name, task.name, partial(check, task))
    yield check_disk(subject)
    yield from check_time(subject)


def _examine_corpus(subject: Subject, corpus: Corpus, arms: list[Arm]) -> Iterator[Finding]:
    """One pass over the corpus for everything that wants to know where something stands."""
    pairs = [(arm, sampled) for arm in arms if arm.corpus is corpus and (sampled := sample_pairs(arm)) is not None]
    texts = [sampled for task in subject.tasks for sampled in sample_texts(task, corpus)]
    wanted = [part for _, one in pairs for part in (one.a_hash, one.b_hash)] + [one.hashes for one in texts]
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
        yield Finding(check, ERROR, what, type(error).__name__, "see the message; the same would have stopped the run")


def check_disk(subject: Subject) -> Finding:
    """Free space against what all runs leave, and one checkpoint more while it is written."""
    budget = subject.budget
    largest = max((arm.checkpoint_bytes for arm in subject.arms), default=0)
    wanted = DISK_MARGIN * (max(0, budget.run_bytes - budget.used_bytes) + largest)
    figure = f"{filesize.decimal(int(wanted))} wanted, {filesize.decimal(budget.free_bytes)} free"
    fix = "free space, or set runs_dir to a larger disk"
    full = (budget.free_bytes < wanted, ERROR, "the disk cannot hold the checkpoints of all runs", fix)
    return finding("disk", budget.folder, "the disk holds all runs", figure, full)


def check_time(subject: Subject) -> Iterator[Finding]:
    """Hours of what is left, by the speeds that the planner has measured."""

    def hours(seconds: float) -> str:
        return f"{seconds / 3600:,.1f} h" if seconds < LONG_SECONDS else f"{seconds / 86_400:,.1f} days"

    stages, name = subject.budget.stages, subject.experiment
    if not subject.arms and not stages:
        return
    said = [f"{stage} {hours(seconds)}" for stage, seconds in stages.items() if seconds is not None]
    unknown = [stage for stage, seconds in stages.items() if seconds is None]
    if unknown or not stages:
        said.append(f"{' and '.join(unknown) or 'all'}: no speed is known here yet (clozelab plan measures it)")
    tokens = sum(arm.count * arm.tokens for arm in subject.arms)
    figure = f"{tokens / 1e6:,.1f} M tokens in {sum(arm.count for arm in subject.arms)} pre-training runs"
    is_long = sum(seconds or 0.0 for seconds in stages.values()) > LONG_SECONDS
    fix = f"clozelab plan {name} budget=TIME says what a budget affords" if name else "fewer seeds or tokens"
    what = "; ".join(said)
    yield finding("time", "what is left takes", what, figure, (is_long, WARNING, what, fix))


def print_findings(findings: Sequence[Finding], console: Console, *, shows_all: bool) -> None:
    """How many are well; then what is not, with its remedy, or (`shows_all`) one line a finding."""
    order, lines = (OK, WARNING, ERROR), []
    counts = Counter(one.level for one in findings)
    shown = [one for one in findings if shows_all or one.level != OK]
    more = "" if shows_all else " (--all shows each)"
    console.print(f"{', '.join(f'{counts[level]} {level}' for level in order if counts[level])}{more}")
    for one in sorted(shown, key=lambda one: order.index(one.level)):
        lines.append([one.check, one.level, one.what, one.figure])
        lines += [["", "", f"-> {one.remedy}", ""]] if one.remedy else []
    headings = [Heading("check"), Heading("result"), Heading("what", folds=True), Heading("figure", folds=True)]
    if lines:
        console.print(make_table(headings, lines, console.width))
